//! The thread pool that kernels run on.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::shared::SharedMut;

/// The stack of a worker thread, in bytes. Kernels keep their buffers in scratch, so this is ample; it is part
/// of what a process of ours costs.
pub const WORKER_STACK: usize = 512 * 1024;

/// Looks at the job counter this often before a worker or a caller sleeps.
const SPINS: usize = 2_000;

/// One task of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// Which task, in `0..tasks`.
    pub index: usize,
    /// The thread that runs it, in `0..threads`; the caller of [`Pool::run`] is 0. Two tasks with the same
    /// `thread` never run at the same time, so per-thread scratch may be indexed by it.
    pub thread: usize,
}

/// A fixed set of threads that hand out the tasks of one run at a time.
///
/// A run allocates nothing. Bodies must not call `run` on the same pool.
#[derive(Debug)]
pub struct Pool {
    state: Arc<State>,
    /// Held for the length of a run: runs of several callers take turns.
    turn: Mutex<()>,
    workers: Vec<JoinHandle<()>>,
}

type Body<'a> = dyn Fn(Task) + Sync + 'a;

#[derive(Clone, Copy)]
struct Job {
    body: *const Body<'static>,
    tasks: usize,
}

// SAFETY: the body is `Sync`, and is only called while the run that lent it waits (see `Pool::run`).
unsafe impl Send for Job {}

impl std::fmt::Debug for Job {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Job").field("tasks", &self.tasks).finish()
    }
}

#[derive(Debug, Default)]
struct Board {
    /// Open while its tasks are being handed out.
    job: Option<Job>,
    /// Workers that took part in the open job and have not left it.
    active: usize,
    closing: bool,
    panic: Option<Payload>,
}

struct Payload(Box<dyn Any + Send>);

impl std::fmt::Debug for Payload {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Payload")
    }
}

#[derive(Debug, Default)]
struct State {
    board: Mutex<Board>,
    /// Counts jobs posted; what idle workers watch.
    posted: AtomicUsize,
    /// The next task of the open job.
    next: AtomicUsize,
    /// Mirrors `Board::active`, for the caller to watch without the lock.
    active: AtomicUsize,
    work: Condvar,
    done: Condvar,
}

impl State {
    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes tasks until none are left.
    fn work_on(&self, body: &Body<'_>, tasks: usize, thread: usize) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= tasks {
                return;
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| body(Task { index, thread })));
            if let Err(payload) = outcome {
                self.board().panic.get_or_insert(Payload(payload));
            }
        }
    }
}

impl Pool {
    /// A pool of `threads` threads (at least one), the caller of [`Pool::run`] being one of them.
    ///
    /// Each of the others has a stack of [`WORKER_STACK`] bytes. Fails when the system refuses a thread.
    pub fn new(threads: usize) -> io::Result<Pool> {
        let mut pool = Pool { state: Arc::new(State::default()), turn: Mutex::new(()), workers: Vec::new() };
        for thread in 1..threads {
            let state = Arc::clone(&pool.state);
            let worker = std::thread::Builder::new()
                .name(format!("framefit-{thread}"))
                .stack_size(WORKER_STACK)
                .spawn(move || attend(&state, thread))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// The number of threads, the caller among them.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `body` once for each of `tasks` tasks, on all threads, and returns when all are done.
    ///
    /// If a task panics the others still run; then the first panic goes on in the caller. With one thread, or
    /// one task, this is a plain loop and a panic ends it at once.
    pub fn run(&self, tasks: usize, body: &(dyn Fn(Task) + Sync)) {
        if self.workers.is_empty() || tasks <= 1 {
            for index in 0..tasks {
                body(Task { index, thread: 0 });
            }
            return;
        }
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &*self.state;
        let lent: *const Body<'_> = body;
        // SAFETY: only the lifetime changes. Workers call the body only while counted in `active`, which they
        // enter under the lock while the job is open; below, the job is closed under the lock and this
        // function does not return, nor unwind, before `active` is zero.
        let body_static = unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(lent) };
        {
            let mut board = state.board();
            state.next.store(0, Ordering::Relaxed);
            board.job = Some(Job { body: body_static, tasks });
            state.posted.fetch_add(1, Ordering::Release);
        }
        state.work.notify_all();

        state.work_on(body, tasks, 0);

        state.board().job = None;
        for _ in 0..SPINS {
            if state.active.load(Ordering::Acquire) == 0 {
                break;
            }
            std::hint::spin_loop();
        }
        let mut board = state.board();
        while board.active > 0 {
            board = state.done.wait(board).unwrap_or_else(PoisonError::into_inner);
        }
        let panic = board.panic.take();
        drop(board);
        drop(turn);
        if let Some(Payload(payload)) = panic {
            resume_unwind(payload);
        }
    }

    /// Cuts `data` into chunks of `chunk` elements (the last may be shorter) and calls `body` on each, as one
    /// task.
    pub fn chunks<T: Send>(&self, data: &mut [T], chunk: usize, body: &(dyn Fn(Task, &mut [T]) + Sync)) {
        let len = data.len();
        let chunk = chunk.max(1);
        let shared = SharedMut::new(data);
        self.run(len.div_ceil(chunk), &|task| {
            let start = task.index * chunk;
            // SAFETY: chunks of different tasks are disjoint, and each task runs once.
            let part = unsafe { shared.part(start..(start + chunk).min(len)) };
            body(task, part);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let mut board = self.state.board();
            board.closing = true;
            self.state.posted.fetch_add(1, Ordering::Release);
        }
        self.state.work.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so it always ends normally.
            let _ = worker.join();
        }
    }
}

/// The life of a worker: wait for a job, take part in it, again.
fn attend(state: &State, thread: usize) {
    let mut seen = 0;
    loop {
        for _ in 0..SPINS {
            if state.posted.load(Ordering::Acquire) != seen {
                break;
            }
            std::hint::spin_loop();
        }
        let mut board = state.board();
        while state.posted.load(Ordering::Acquire) == seen {
            board = state.work.wait(board).unwrap_or_else(PoisonError::into_inner);
        }
        seen = state.posted.load(Ordering::Acquire);
        if board.closing {
            return;
        }
        let Some(job) = board.job else { continue };
        board.active += 1;
        state.active.fetch_add(1, Ordering::Relaxed);
        drop(board);

        // SAFETY: this thread is counted in `active`, so the run that lent the body still waits.
        let body = unsafe { &*job.body };
        state.work_on(body, job.tasks, thread);

        let mut board = state.board();
        board.active -= 1;
        state.active.fetch_sub(1, Ordering::Release);
        if board.active == 0 {
            state.done.notify_all();
        }
    }
}
