//! Independent jobs on this machine's cores.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Most threads.
const MOST_THREADS: usize = 8;

/// Does the jobs, and hands their results to `each` in the order of the jobs, each as soon as those
/// before it are there.
pub(super) fn in_order<T: Send>(
    jobs: usize,
    job: impl Fn(usize) -> T + Sync,
    mut each: impl FnMut(usize, T),
) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(MOST_THREADS).min(jobs);
    if threads < 2 {
        (0..jobs).for_each(|i| each(i, job(i)));
        return;
    }
    let next = AtomicUsize::new(0);
    let (done, results) = mpsc::channel();
    let work = |done: mpsc::Sender<(usize, T)>| {
        let mine = std::iter::repeat_with(|| next.fetch_add(1, Ordering::Relaxed));
        let mut mine = mine.take_while(|&i| i < jobs);
        // Nobody receives where `each` has panicked.
        while mine.next().is_some_and(|i| done.send((i, job(i))).is_ok()) {}
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                let done = done.clone();
                scope.spawn(|| work(done))
            })
            .collect();
        drop(done);
        let mut early: BTreeMap<usize, T> = BTreeMap::new();
        let mut told = 0;
        for (i, result) in results {
            early.insert(i, result);
            while let Some(result) = early.remove(&told) {
                each(told, result);
                told += 1;
            }
        }
        for worker in workers {
            worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
}

/// Does the jobs; results are in the order of the jobs.
pub(super) fn in_parallel<T: Send>(jobs: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let mut all = Vec::with_capacity(jobs);
    in_order(jobs, job, |_, result| all.push(result));
    all
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    /// Results come in the order of the jobs, and the first ones while later jobs still run.
    #[test]
    fn results_come_in_order_and_at_once() {
        let (told, seen) = (Mutex::new(0), Condvar::new());
        let job = |i: usize| {
            if i == 7 {
                // The last job ends once the first has been told.
                let wait = std::time::Duration::from_secs(60);
                let first = seen.wait_timeout_while(told.lock().unwrap(), wait, |n| *n == 0);
                assert!(!first.unwrap().1.timed_out(), "told at the end");
            }
            i * i
        };
        let mut all = Vec::new();
        in_order(8, job, |i, square| {
            all.push((i, square));
            *told.lock().unwrap() += 1;
            seen.notify_all();
        });
        assert_eq!(all, (0..8).map(|i| (i, i * i)).collect::<Vec<_>>());
        assert!(in_parallel(0, |i| i).is_empty());
    }

    #[test]
    #[should_panic(expected = "job 3")]
    fn a_panic_is_the_callers() {
        in_parallel(8, |i| assert!(i != 3, "job {i}"));
    }

    /// As many jobs run at once as there may be threads: each ends when all have begun.
    #[test]
    fn jobs_run_at_once() {
        let jobs = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        let (begun, all) = (Mutex::new(0), Condvar::new());
        let ended = in_parallel(jobs, |_| {
            *begun.lock().unwrap() += 1;
            all.notify_all();
            let wait = std::time::Duration::from_secs(10);
            let guard = begun.lock().unwrap();
            !all.wait_timeout_while(guard, wait, |n| *n < jobs).unwrap().1.timed_out()
        });
        assert!(ended.iter().all(|met| *met), "{ended:?}");
    }
}
