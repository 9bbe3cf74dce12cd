//! The pool.
#![allow(clippy::unwrap_used)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use framefit_kernels::Pool;

#[test]
fn every_task_runs_once_for_any_number_of_threads() {
    for threads in 0..=5 {
        let pool = Pool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads.max(1));
        for tasks in [0, 1, 2, 3, 100, 1000] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, &|task| {
                assert!(task.thread < threads.max(1));
                counts[task.index].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{threads} {tasks}");
        }
    }
}

#[test]
fn runs_follow_each_other() {
    let pool = Pool::new(3).unwrap();
    let mut data = vec![0_u32; 1003];
    for round in 0..2000 {
        pool.chunks(&mut data, 10, &|task, chunk| {
            assert!(chunk.len() == 10 || task.index == 100);
            chunk.iter_mut().for_each(|x| *x += 1);
        });
        assert_eq!(data[round % 1003], round as u32 + 1);
    }
    assert!(data.iter().all(|x| *x == 2000));
}

#[test]
fn two_tasks_of_one_thread_never_overlap() {
    let pool = Pool::new(4).unwrap();
    let busy: Vec<AtomicUsize> = (0..4).map(|_| AtomicUsize::new(0)).collect();
    pool.run(5000, &|task| {
        assert_eq!(busy[task.thread].fetch_add(1, Ordering::SeqCst), 0);
        busy[task.thread].fetch_sub(1, Ordering::SeqCst);
    });
}

#[test]
fn a_panic_reaches_the_caller_after_the_other_tasks() {
    let pool = Pool::new(3).unwrap();
    for _ in 0..50 {
        let ran = AtomicUsize::new(0);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            pool.run(100, &|task| {
                if task.index == 7 {
                    std::panic::resume_unwind(Box::new("seven"));
                }
                ran.fetch_add(1, Ordering::Relaxed);
            });
        }));
        assert_eq!(outcome.unwrap_err().downcast_ref::<&str>(), Some(&"seven"));
        assert_eq!(ran.load(Ordering::Relaxed), 99);
    }
    let after = AtomicUsize::new(0);
    pool.run(10, &|_| {
        after.fetch_add(1, Ordering::Relaxed);
    });
    assert_eq!(after.load(Ordering::Relaxed), 10);
}

#[test]
fn callers_take_turns() {
    let pool = Pool::new(2).unwrap();
    let total = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    pool.run(8, &|_| {
                        total.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(total.load(Ordering::Relaxed), 4 * 200 * 8);
}
