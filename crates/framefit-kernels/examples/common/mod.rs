//! Timing, shared by the examples.
#![allow(dead_code)]

use std::time::Instant;

use framefit_kernels::{Pool, Row};

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

/// Numbers in −0.5..0.5.
pub fn fill(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 7 % 17) as f32 / 17.0 - 0.5).collect()
}

/// Prints rates of the rows whose name holds the filter.
pub struct Bench {
    filter: String,
    pools: [Pool; 2],
}

impl Bench {
    /// The filter is the program's first argument.
    pub fn new() -> std::io::Result<Bench> {
        println!("{:44} {:>8} {:>8}", "GB/s, threads", 1, 2);
        let pools = [Pool::new(1)?, Pool::new(2)?];
        Ok(Bench { filter: std::env::args().nth(1).unwrap_or_default(), pools })
    }

    /// `body` runs a row on a pool and returns the number of f32 it read and wrote.
    pub fn table<S, R: Row<S>>(&self, table: &'static [R], shape: &S, mut body: impl FnMut(&R, &Pool) -> usize) {
        let wanted = |row: &&R| row.isa().available() && row.handles(shape) && row.name().contains(&self.filter);
        for row in table.iter().filter(wanted) {
            let bytes = 4 * body(row, &self.pools[0]) as u64;
            let rates = self.pools.each_ref().map(|pool| {
                rate(bytes, pool, || {
                    body(row, pool);
                })
            });
            println!("{:44} {:8.1} {:8.1}", row.name(), rates[0], rates[1]);
        }
    }
}
