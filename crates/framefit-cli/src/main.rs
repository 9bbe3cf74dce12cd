//! The program `framefit`.
//!
//! Arguments are parsed as they are typed ([`args`]), resolved into settings ([`resolve`]), and handed to one
//! command. Results go to stdout, progress and errors to stderr. Exit 0: done; 1: the answer is no; 2: an error.
#![forbid(unsafe_code)]

mod args;
mod commands;
mod interrupt;
mod machine;
mod progress;
mod report;
mod resolve;
mod table;
mod words;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let done = match cli.command {
        args::Command::Train(args) => commands::train::run(args),
        args::Command::Plan(args) => commands::plan::run(&args),
        args::Command::Summary(args) => commands::summary::run(&args),
        args::Command::Eval(args) => commands::eval::run(&args),
        args::Command::Predict(args) => commands::predict::run(&args),
        args::Command::Explain(args) => commands::explain::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(problem) => report::problem(problem),
    }
}
