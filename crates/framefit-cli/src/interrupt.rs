//! Ctrl-C during training: it stops at once, unless files are being written; then when they are. The second
//! Ctrl-C stops at once whatever is being done.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is to be said to whom has pressed Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopping {
    /// The process ends; so many epochs are saved.
    Now { epochs: usize },
    /// It ends when the files are written.
    WhenWritten,
}

/// Shared by the thread that waits for signals and the one that trains.
pub struct Interrupt {
    say: Box<dyn Fn(Stopping) + Send + Sync>,
    /// Held while files are written.
    writing: Mutex<()>,
    asked: AtomicBool,
    /// Epochs saved.
    epochs: AtomicUsize,
}

impl Interrupt {
    /// From now on, Ctrl-C ends the process after `say` was called. `epochs` are saved already.
    pub fn watch(epochs: usize, say: impl Fn(Stopping) + Send + Sync + 'static) -> Arc<Self> {
        let interrupt = Arc::new(Self {
            say: Box::new(say),
            writing: Mutex::new(()),
            asked: AtomicBool::new(false),
            epochs: AtomicUsize::new(epochs),
        });
        #[cfg(unix)]
        interrupt.clone().wait_for_signals();
        interrupt
    }

    /// Files are about to be written. What is returned goes to [`Interrupt::written`].
    pub fn writing(&self) -> MutexGuard<'_, ()> {
        self.writing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// They are written, and so many epochs are saved now.
    pub fn written(&self, writing: MutexGuard<'_, ()>, epochs: usize) {
        self.epochs.store(epochs, Ordering::SeqCst);
        drop(writing);
        if self.asked.load(Ordering::SeqCst) {
            self.end();
        }
    }

    #[cfg(unix)]
    fn wait_for_signals(self: Arc<Self>) {
        if ignored() {
            return;
        }
        // Where signals cannot be waited for, Ctrl-C does what it does to any program.
        let Ok(mut signals) = signal_hook::iterator::Signals::new([signal_hook::consts::SIGINT]) else { return };
        let wait = move || {
            for _ in &mut signals {
                let again = self.asked.swap(true, Ordering::SeqCst);
                // Never given back, so that nothing begins to be written.
                let free = self.writing.try_lock();
                if again || free.is_ok() {
                    self.end();
                }
                (self.say)(Stopping::WhenWritten);
            }
        };
        let _ = std::thread::Builder::new().name("framefit-signals".to_owned()).spawn(wait);
    }

    fn end(&self) -> ! {
        (self.say)(Stopping::Now { epochs: self.epochs.load(Ordering::SeqCst) });
        // By the signal itself, so that a shell's loop over trainings ends, too.
        #[cfg(unix)]
        let _ = signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGINT);
        std::process::exit(130)
    }
}

/// Whether whoever started the process wants it to outlive Ctrl-C, as a shell script does with `&`.
#[cfg(unix)]
fn ignored() -> bool {
    let mask = std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|text| u64::from_str_radix(text.lines().find_map(|l| l.strip_prefix("SigIgn:"))?.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal_hook::consts::SIGINT - 1) & 1 == 1)
}
