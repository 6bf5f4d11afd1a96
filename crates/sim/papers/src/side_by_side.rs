//! Runs side by side on all processors.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

/// Runs all jobs, and tells after each the share of them that has ended. Results are in the order of the jobs. The
/// first error ends it: jobs that have not begun are left out.
pub fn side_by_side<J: Sync, R: Send, E: Send>(
    jobs: &[J],
    run: impl Fn(&J) -> Result<R, E> + Sync,
    mut tell: impl FnMut(f64),
) -> Result<Vec<R>, E> {
    let (next, run) = (AtomicUsize::new(0), &run);
    let (send, receive) = mpsc::channel();
    let workers = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let at = next.fetch_add(1, Relaxed);
                    let Some(job) = jobs.get(at) else { return };
                    if send.send((at, run(job))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        let mut results = BTreeMap::new();
        for (at, result) in receive {
            results.insert(at, result.inspect_err(|_| next.store(jobs.len(), Relaxed))?);
            tell(results.len() as f64 / jobs.len() as f64);
        }
        Ok(results.into_values().collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_job_runs_once_and_an_error_ends_the_rest() {
        let jobs: Vec<u32> = (0..100).collect();
        let mut told = Vec::new();
        let all = side_by_side(&jobs, |job| Ok::<u32, ()>(job * 2), |share| told.push(share));
        assert_eq!(all, Ok(jobs.iter().map(|job| job * 2).collect()));
        assert_eq!((told.len(), told.last()), (100, Some(&1.0)));
        let mut ended = 0;
        let failed = side_by_side(&jobs, |_| Err::<(), &str>("enough"), |_| ended += 1);
        assert_eq!((failed, ended), (Err("enough"), 0));
    }
}
