//! Progress on stderr: a bar on a terminal, and a table with a row per epoch.

use crate::commands::say;
use crate::words::percent;
use framefit::train::{EpochReport, Event, Score};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

pub struct Progress {
    bar: ProgressBar,
    epochs: usize,
    width: usize,
    terminal: bool,
    narrow: bool,
    /// Whether epochs are told on stderr, too.
    lines: bool,
    headed: bool,
    at: (usize, bool),
}

/// Whether the bar and the table of epochs are wider than the terminal.
fn narrow() -> bool {
    console::Term::stderr().size_checked().is_some_and(|(_, columns)| columns < 80)
}

/// The bar's texts; without the bar, and cut off, on a terminal too narrow for both.
fn style(narrow: bool) -> ProgressStyle {
    let template = match narrow {
        true => "{prefix} {pos}/{len} {wide_msg}",
        false => "{prefix} {bar:16} {pos}/{len} {msg} {eta:>4}",
    };
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("━╸─")
}

impl Progress {
    pub fn new(epochs: usize, lines: bool) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let target = if terminal { ProgressDrawTarget::stderr_with_hz(8) } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(0), target);
        let narrow = narrow();
        bar.set_style(style(narrow));
        Self { bar, epochs, width: epochs.to_string().len(), terminal, narrow, lines, headed: false, at: (0, false) }
    }

    /// A bar for clips that are classified.
    pub fn of_clips(clips: usize) -> Self {
        let progress = Self::new(1, false);
        progress.bar.set_length(clips as u64);
        progress.bar.set_prefix("clips");
        progress
    }

    /// Frames of a stream, whose number nobody knows.
    pub fn of_frames() -> Self {
        let progress = Self::new(1, false);
        progress.bar.set_style(ProgressStyle::with_template("{pos} frames").unwrap_or_else(|_| style(true)));
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
                self.bar.set_message(format!("loss {:.3}, {}", score.loss, percent(score.accuracy())));
            }
            Event::Saving => self.bar.set_message("saving"),
            Event::Epoch(report) => {
                if self.lines && self.narrow {
                    self.say(&short(&self.epoch(report.epoch), report));
                } else if self.lines {
                    if !self.headed {
                        self.headed = true;
                        self.say(&heading(self.epoch(report.epoch).len(), report.validation.is_some()));
                    }
                    self.say(&row(&self.epoch(report.epoch), report));
                }
            }
        }
    }

    fn say(&self, line: &str) {
        let say = || say(&format!("{line}\n"));
        if self.terminal { self.bar.suspend(say) } else { say() }
    }

    /// The bar, for whom has to remove it before the end.
    pub fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }
}

/// The bar goes, whether the work is done or an error is to be told.
impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The heading of the rows of epochs, whose first column is this wide.
fn heading(width: usize, validated: bool) -> String {
    let validation = if validated { "  validation loss  accuracy" } else { "" };
    format!("{:width$}  training loss  accuracy{validation}     time", "")
}

fn row(epoch: &str, report: &EpochReport) -> String {
    let cells = |score: Score, width: usize| format!("  {:>width$.3}  {:>8}", score.loss, percent(score.accuracy()));
    let validation = report.validation.map_or_else(String::new, |v| cells(v, "validation loss".len()));
    let best = if report.best { "  best" } else { "" };
    format!("{epoch}{}{validation}  {:>5.1} s{best}", cells(report.training, "training loss".len()), report.seconds)
}

/// What matters most of the row, for narrow terminals.
fn short(epoch: &str, report: &EpochReport) -> String {
    let (name, score) = report.validation.map_or(("training", report.training), |v| ("validation", v));
    let best = if report.best { ", best" } else { "" };
    format!("{epoch} {name} {}, {:.3}{best}", percent(score.accuracy()), score.loss)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_line_up_below_their_heading() {
        let score = |loss, correct| Score { labels: 8, correct, loss };
        let report = EpochReport {
            epoch: 9,
            training: score(0.25, 8),
            validation: Some(score(12.5, 4)),
            best: true,
            seconds: 61.25,
        };
        let expected = [
            "             training loss  accuracy  validation loss  accuracy     time",
            "epoch  9/10          0.250   100.0 %           12.500    50.0 %   61.2 s  best",
        ];
        assert_eq!([heading(11, true), row("epoch  9/10", &report)], expected);
        assert_eq!(short("epoch 9/10", &report), "epoch 9/10 validation 50.0 %, 12.500, best");
    }
}
