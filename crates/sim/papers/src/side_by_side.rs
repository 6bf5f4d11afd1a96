//! Runs side by side on all processors.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

/// Runs all jobs, and passes each with its result to `done`, one after another and in any order. The first error of
/// `done` ends it: jobs that have not begun are left out.
pub fn side_by_side<J: Sync, R: Send, E>(
    jobs: &[J],
    run: impl Fn(&J) -> R + Sync,
    mut done: impl FnMut(&J, R) -> Result<(), E>,
) -> Result<(), E> {
    let (next, run) = (AtomicUsize::new(0), &run);
    let (send, receive) = mpsc::channel();
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                while let Some(job) = jobs.get(next.fetch_add(1, Relaxed)) {
                    if send.send((job, run(job))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let ended = receive.into_iter().try_for_each(|(job, result)| done(job, result));
        if ended.is_err() {
            next.store(jobs.len(), Relaxed);
        }
        ended
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_runs_once_and_an_error_ends_the_rest() {
        let jobs: Vec<u32> = (0..100).collect();
        let mut found = Vec::new();
        let all = side_by_side(
            &jobs,
            |job| job * 2,
            |job, twice| {
                found.push((*job, twice));
                Ok::<(), ()>(())
            },
        );
        found.sort();
        assert_eq!(all, Ok(()));
        assert_eq!(found, jobs.iter().map(|job| (*job, job * 2)).collect::<Vec<_>>());
        let mut ended = 0;
        let failed = side_by_side(
            &jobs,
            |job| *job,
            |_, _| {
                ended += 1;
                Err("enough")
            },
        );
        assert_eq!((failed, ended), (Err("enough"), 1));
    }
}
