//! The CPUs' own cycle counters, for the whole machine or for some of its processes: user and kernel separately. Many
//! virtual machines have none, and the kernel may refuse them to users other than root (`kernel.perf_event_paranoid`).

use super::Cycles;
use perf_event::events::{Event, Hardware};
use perf_event::{Builder, Counter};
use std::fs::File;
use std::io;

/// Open counters of a set of CPUs, threads or of a cgroup.
pub(super) struct Counters {
    user: Vec<Counter>,
    kernel: Vec<Counter>,
}

impl Counters {
    /// Counts the cycles of these CPUs from now on.
    pub fn open(cpus: &[usize]) -> io::Result<Counters> {
        Counters::of(Hardware::CPU_CYCLES, cpus)
    }

    fn of(event: impl Event + Clone, cpus: &[usize]) -> io::Result<Counters> {
        Counters::each(event, cpus, |builder, cpu| {
            builder.any_pid().one_cpu(*cpu);
        })
    }

    /// Counts the cycles that a cgroup, with those below it, spends on these CPUs. `group`: its directory.
    pub fn open_group(group: &File, cpus: &[usize]) -> io::Result<Counters> {
        Counters::each(Hardware::CPU_CYCLES, cpus, |builder, cpu| {
            builder.observe_cgroup(group).one_cpu(*cpu);
        })
    }

    /// Counts the cycles of these threads, and of all threads and processes that they start from now on.
    pub fn open_threads(threads: &[u32]) -> io::Result<Counters> {
        Counters::each(Hardware::CPU_CYCLES, threads, |builder, thread| {
            builder.observe_pid(*thread as i32).any_cpu().inherit(true);
        })
    }

    fn each<'a, T>(
        event: impl Event + Clone,
        places: &[T],
        observe: impl Fn(&mut Builder<'a>, &T),
    ) -> io::Result<Counters> {
        let open = |user: bool| -> io::Result<Vec<Counter>> {
            let mut counters = Vec::with_capacity(places.len());
            for place in places {
                let mut builder = Builder::new(event.clone());
                observe(&mut builder, place);
                builder.exclude_hv(true).exclude_user(!user).exclude_kernel(user);
                let mut counter = match builder.build() {
                    Ok(counter) => counter,
                    // A thread that has just ended: it spends nothing more.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => continue,
                    Err(error) => return Err(error),
                };
                counter.enable()?;
                counters.push(counter);
            }
            Ok(counters)
        };
        Ok(Counters { user: open(true)?, kernel: open(false)? })
    }

    /// User and kernel cycles since the counters were opened.
    pub fn read(&mut self) -> io::Result<(Cycles, Cycles)> {
        Ok((sum(&mut self.user)?, sum(&mut self.kernel)?))
    }
}

fn sum(counters: &mut [Counter]) -> io::Result<Cycles> {
    let mut cycles = 0.0;
    for counter in counters {
        let read = counter.read_count_and_time()?;
        // Others may use the same hardware: the counter then ran for a share of the time.
        if read.time_running > 0 {
            cycles += read.count as f64 * (read.time_enabled as f64 / read.time_running as f64);
        }
    }
    Ok(Cycles(cycles))
}

#[cfg(test)]
mod tests {
    use super::*;
    use perf_event::events::Software;

    #[test]
    fn counters_of_a_cpu_run() {
        let cpu = rustix::thread::sched_getcpu();
        let Ok(mut counters) = Counters::of(Software::CPU_CLOCK, &[cpu]) else {
            ebb_testing::skip("the kernel allows no counters of a whole CPU");
            return;
        };
        let (user, kernel) = counters.read().unwrap();
        let spun = (0..2_000_000_u64).fold(0, |sum: u64, n| sum.wrapping_mul(31).wrapping_add(n));
        assert_ne!(spun, 0);
        let later = counters.read().unwrap();
        assert!(later.0 >= user && later.1 >= kernel && later != (user, kernel), "{later:?}");
    }
}
