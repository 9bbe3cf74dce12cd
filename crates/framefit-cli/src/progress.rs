//! Progress on stderr: a bar on a terminal, a line per epoch elsewhere.

use crate::words::percent;
use framefit::train::{EpochReport, Event, Score};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

pub struct Progress {
    bar: ProgressBar,
    epochs: usize,
    width: usize,
    terminal: bool,
    /// Whether epochs are told on stderr, too.
    lines: bool,
    at: (usize, bool),
}

/// The bar's texts; without the bar on a terminal too narrow for both.
fn style() -> ProgressStyle {
    let columns = console::Term::stderr().size_checked().map_or(80, |(_, columns)| columns);
    let template = match columns {
        0..70 => "{prefix} {pos}/{len} {msg}",
        70.. => "{prefix} {bar:24} {pos}/{len} {per_sec:>8} {msg}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─")
}

impl Progress {
    pub fn new(epochs: usize, lines: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr_with_hz(8) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        bar.set_style(style());
        Self { bar, epochs, width: epochs.to_string().len(), terminal, lines, at: (0, false) }
    }

    /// A bar for clips that are classified.
    pub fn of_clips(clips: usize) -> Self {
        let progress = Self::new(1, false);
        progress.bar.set_length(clips as u64);
        progress.bar.set_prefix("clips");
        progress
    }

    pub fn clips(&self, done: usize) {
        self.bar.set_position(done as u64);
    }

    fn epoch(&self, epoch: usize) -> String {
        format!("epoch {epoch:>width$}/{}", self.epochs, width = self.width)
    }

    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Batch { epoch, validating, clips, of, score } => {
                if self.at != (*epoch, *validating) {
                    self.at = (*epoch, *validating);
                    self.bar.reset();
                    self.bar.set_length(*of as u64);
                    let what = if *validating { " validating" } else { "" };
                    self.bar.set_prefix(format!("{}{what}", self.epoch(*epoch)));
                }
                self.bar.set_position(*clips as u64);
                self.bar.set_message(words(score));
            }
            Event::Epoch(report) => {
                if self.lines {
                    let line = self.line(report);
                    if self.terminal {
                        self.bar.suspend(|| eprintln!("{line}"));
                    } else {
                        eprintln!("{line}");
                    }
                }
            }
        }
    }

    fn line(&self, report: &EpochReport) -> String {
        let validation = report.validation.map_or_else(String::new, |v| format!("   validation {}", words(&v)));
        let best = if report.best { "  best" } else { "" };
        format!(
            "{}   training {}{validation}   {:.1} s{best}",
            self.epoch(report.epoch),
            words(&report.training),
            report.seconds
        )
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn words(score: &Score) -> String {
    format!("loss {:.3} accuracy {}", score.loss, percent(score.accuracy()))
}
