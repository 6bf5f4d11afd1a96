//! The CPUs' own cycle counters, for the whole machine: user and kernel separately. Many virtual machines have none,
//! and the kernel may refuse them to users other than root (`kernel.perf_event_paranoid`).

use super::Cycles;
use perf_event::events::{Event, Hardware};
use perf_event::{Builder, Counter};
use std::io;

/// Open counters of a set of CPUs.
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
        let open = |user: bool| -> io::Result<Vec<Counter>> {
            cpus.iter()
                .map(|cpu| {
                    let mut builder = Builder::new(event.clone());
                    builder.any_pid().one_cpu(*cpu).exclude_hv(true).exclude_user(!user).exclude_kernel(user);
                    let mut counter = builder.build()?;
                    counter.enable()?;
                    Ok(counter)
                })
                .collect()
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
