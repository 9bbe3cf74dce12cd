//! `framefit explain`.

use super::{print, print_json};
use crate::args::ExplainArgs;
use crate::report::Problem;
use crate::resolve::{self, Extents};
use framefit_read::oom;
use std::io::Read;
use std::process::ExitCode;

/// Longest message that is read; what comes after is left out.
const LONGEST: u64 = 64 << 20;

pub fn run(args: &ExplainArgs) -> Result<ExitCode, Problem> {
    let batch = resolve::batch(args.batch)?;
    let text = read(args)?;
    let graph = match (args.clip, args.size) {
        (Some(frames), Some(size)) => {
            let extents = Extents { frames, height: size.height, width: size.width, channels: args.channels };
            Some(resolve::model(&args.model, extents, args.classes)?.build()?)
        }
        _ => None,
    };
    let reports: Vec<oom::Report> = oom::read(&text)
        .into_iter()
        .map(|message| oom::explain(message, graph.as_ref().map(|graph| oom::Against { graph, clips: batch })))
        .collect();
    if args.json {
        print_json(&reports)?;
    } else if reports.is_empty() {
        print("no out-of-memory message of PyTorch was found\n")?;
    } else {
        for report in &reports {
            print(&report.to_string())?;
        }
    }
    Ok(if reports.is_empty() { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

fn read(args: &ExplainArgs) -> Result<String, Problem> {
    let failed = |cause| Problem::Read { path: args.log.clone(), cause };
    let mut bytes = Vec::new();
    if args.log.as_os_str() == "-" {
        std::io::stdin().lock().take(LONGEST).read_to_end(&mut bytes).map_err(failed)?;
    } else {
        let file = std::fs::File::open(&args.log).map_err(failed)?;
        file.take(LONGEST).read_to_end(&mut bytes).map_err(failed)?;
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
