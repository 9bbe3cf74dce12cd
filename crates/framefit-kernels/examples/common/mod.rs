//! Timing, shared by the examples.

use std::time::Instant;

use framefit_kernels::Pool;

/// Repeats until this much time has passed.
const SECONDS: f64 = 0.4;

/// Seconds that this thread has run.
#[cfg(unix)]
fn processor_seconds(_: Instant) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Seconds by the clock.
#[cfg(not(unix))]
fn processor_seconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64()
}

/// `amount` per second, in 1e9, of the quickest of several runs.
pub fn rate(amount: u64, pool: &Pool, mut body: impl FnMut()) -> f64 {
    body();
    let start = Instant::now();
    let now = || if pool.threads() == 1 { processor_seconds(start) } else { start.elapsed().as_secs_f64() };
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < SECONDS {
        let before = now();
        body();
        best = best.min(now() - before);
    }
    amount as f64 / best / 1e9
}
