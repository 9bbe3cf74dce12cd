//! The borders of ARCHITECTURE.md: which crate and which module may import which.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn crates() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// What each crate may depend on, of ours.
const MAY: [(&str, &[&str]); 5] = [
    ("framefit-core", &[]),
    ("framefit-kernels", &[]),
    ("framefit-read", &["framefit-core"]),
    ("framefit", &["framefit-core", "framefit-kernels"]),
    ("framefit-cli", &["framefit", "framefit-read"]),
];

fn sources(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.push((path, text));
        }
    }
    found
}

/// Source text without comments.
fn code(text: &str) -> String {
    text.lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

fn mentions(text: &str, name: &str) -> bool {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    code(text).match_indices(name).any(|(at, _)| {
        let before = text_before(&code(text), at);
        let after = code(text)[at + name.len()..].chars().next();
        !before.is_some_and(word) && !after.is_some_and(word)
    })
}

fn text_before(text: &str, at: usize) -> Option<char> {
    text[..at].chars().next_back()
}

#[test]
fn every_crate_is_in_the_table() {
    let named: BTreeSet<&str> = MAY.iter().map(|(name, _)| *name).collect();
    for entry in std::fs::read_dir(crates()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(named.contains(name.as_str()), "{name}: say in this table what it may depend on");
    }
}

#[test]
fn manifests_depend_only_downwards() {
    for (name, may) in MAY {
        let manifest = std::fs::read_to_string(crates().join(name).join("Cargo.toml")).unwrap();
        let dependencies = manifest.split("\n[").filter(|section| {
            let title = section.lines().next().unwrap_or("");
            title.contains("dependencies") && !title.starts_with("dev-")
        });
        for line in dependencies.flat_map(str::lines) {
            let dependency = line.split(['.', '=', ' ']).next().unwrap_or("");
            if dependency.starts_with("framefit") {
                assert!(may.contains(&dependency), "{name} may not depend on {dependency}");
            }
        }
    }
}

#[test]
fn use_lines_import_only_downwards() {
    for (name, may) in MAY {
        for (path, text) in sources(&crates().join(name).join("src")) {
            for (other, _) in MAY.iter().filter(|(other, _)| *other != name && !may.contains(other)) {
                let module = format!("{}::", other.replace('-', "_"));
                // `framefit::` is also how the crate's own examples in doc comments begin; comments do not count.
                let found = code(&text).lines().any(|l| {
                    l.match_indices(&module)
                        .any(|(at, _)| !text_before(l, at).is_some_and(|c| c.is_alphanumeric() || c == '_'))
                });
                assert!(!found, "{} imports {other}", path.display());
            }
        }
    }
}

#[test]
fn data_imports_nothing_else_of_the_library() {
    let sources = sources(&crates().join("framefit/src/data"));
    assert!(!sources.is_empty());
    for (path, text) in sources {
        for line in code(&text).lines() {
            for (at, _) in line.match_indices("crate::") {
                assert!(line[at..].starts_with("crate::data"), "{}: {}", path.display(), line.trim());
            }
        }
        for other in ["framefit_core", "framefit_kernels", "engine"] {
            let imported = code(&text).lines().any(|l| l.trim_start().starts_with("use ") && mentions(l, other));
            assert!(!imported, "{} imports {other}", path.display());
        }
    }
}

#[test]
fn engine_and_models_know_nothing_of_data_and_training() {
    for folder in ["engine", "models", "weights"] {
        for (path, text) in sources(&crates().join("framefit/src").join(folder)) {
            for module in ["crate::data", "crate::train"] {
                assert!(!code(&text).contains(module), "{} imports {module}", path.display());
            }
        }
    }
}

#[test]
fn unsafe_code_is_in_the_kernels_alone() {
    for (name, _) in MAY.iter().filter(|(name, _)| *name != "framefit-kernels") {
        let all = sources(&crates().join(name).join("src"));
        let root = if *name == "framefit-cli" { "main.rs" } else { "lib.rs" };
        let (_, text) = all.iter().find(|(path, _)| path.ends_with(Path::new("src").join(root))).unwrap();
        assert!(text.contains("#![forbid(unsafe_code)]"), "{name} forbids unsafe code");
        for (path, text) in &all {
            assert!(!mentions(text, "unsafe"), "{} uses unsafe", path.display());
        }
    }
}
