//! What trains on synthetic digits trains on real video: wings of courting flies, extended or folded.
//!
//! The recordings are not in the repository; without them this test says so and checks nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use common::{last_json, succeed};
use std::io::Write;
use std::path::PathBuf;

/// Always saying the commoner class gives 0.71.
const LEAST_ACCURACY: f64 = 0.85;

#[test]
fn a_3d_cnn_learns_to_see_wings_of_flies() {
    let manifest =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/datasets/fly_wing").join("clips.csv");
    if !manifest.exists() {
        // Past the test harness, which shows nothing of tests that pass.
        let _ = writeln!(std::io::stderr(), "SKIPPED: there is no {}", manifest.display());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let settings = "--model cnn3d-flatten --widths 8,16,32,32 --channels 1 --mean 0.08 --std 0.17 --lr 0.0003 \
                    --weight-decay 0.001 --class-weights balanced --flip horizontal,vertical --epochs 10 --seed 0";
    let mut args = vec!["train", manifest.to_str().unwrap(), "--json", "--out", "run"];
    args.extend(settings.split_whitespace());
    let end = last_json(&succeed(folder.path(), &args));
    let (clips, correct) =
        (end["validation"]["labels"].as_f64().unwrap(), end["validation"]["correct"].as_f64().unwrap());
    let accuracy = correct / clips;
    println!("validation accuracy {accuracy:.3} after the last epoch");
    assert!(accuracy >= LEAST_ACCURACY, "{accuracy:.3} of the validation clips are right: {end}");
}
