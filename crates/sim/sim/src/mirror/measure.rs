//! What is measured during a run: response times by kind, load over time, and the states of the disks over time.

use super::report::{Busiest, Responses, Sample, States};
use super::state::State;
use ebb_output::Histogram;
use ebb_types::Moment;
use std::time::Duration;

/// The span of each point of the paper's figures over time [LogStore §4.2].
pub(super) const SAMPLE: Duration = Duration::from_secs(30);

/// A request that is not answered.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub at: Moment,
    pub write: bool,
    /// A disk was changing its speed.
    pub in_change: bool,
}

/// Of one [`SAMPLE`].
#[derive(Clone, Copy, Default)]
struct Counts {
    arrived: u64,
    answered: u64,
    busy: [Duration; 2],
    states: [States; 2],
}

/// Epochs of a disk, as long as the policy's, one after another.
#[derive(Clone, Copy, Default)]
struct Epochs {
    /// The present one, and how long the disk has worked in it.
    nth: u64,
    busy: Duration,
    busiest: Busiest,
}

#[derive(Default)]
pub(super) struct Measures {
    /// The policy's.
    epoch: Duration,
    epochs: [Epochs; 2],
    reads: Histogram,
    writes: Histogram,
    in_change: Histogram,
    outside: Histogram,
    samples: Vec<Counts>,
    /// The present state of each disk, and since when.
    states: [Option<(State, Moment)>; 2],
    totals: [States; 2],
}

impl Epochs {
    /// An access ended.
    fn worked(&mut self, now: Moment, time: Duration, length: Duration) {
        let nth = (now.0 as u128 / length.as_nanos()) as u64;
        if nth != self.nth {
            (self.nth, self.busy) = (nth, Duration::ZERO);
        }
        self.busy += time;
        self.busiest.raw = self.busiest.raw.max(self.busy.div_duration_f64(length).min(1.0));
    }
}

impl Measures {
    /// `epoch`: of the policy.
    pub fn new(epoch: Duration) -> Measures {
        Measures { epoch, ..Measures::default() }
    }

    fn sample(&mut self, at: Moment) -> &mut Counts {
        let n = (at.0 / SAMPLE.as_nanos() as u64) as usize;
        if self.samples.len() <= n {
            self.samples.resize(n + 1, Counts::default());
        }
        &mut self.samples[n]
    }

    pub fn arrived(&mut self, at: Moment) {
        self.sample(at).arrived += 1;
    }

    /// `in_change`: a disk is changing its speed now.
    pub fn answered(&mut self, now: Moment, asked: Asked, in_change: bool) {
        self.sample(now).answered += 1;
        let time = now.since(asked.at);
        if asked.write { &mut self.writes } else { &mut self.reads }.record(time);
        if asked.in_change || in_change { &mut self.in_change } else { &mut self.outside }.record(time);
    }

    /// A disk ends an access. One at the end of a sample counts as of the sample in which it ends.
    pub fn worked(&mut self, disk: usize, now: Moment, time: Duration) {
        self.sample(now).busy[disk] += time;
        self.epochs[disk].worked(now, time, self.epoch);
    }

    /// What the policy takes a disk's utilisation for.
    pub fn takes(&mut self, disk: usize, utilisation: f64) {
        let smoothed = &mut self.epochs[disk].busiest.smoothed;
        *smoothed = smoothed.max(utilisation);
    }

    /// A disk is in this state from now on.
    pub fn enter(&mut self, disk: usize, state: State, now: Moment) {
        match self.states[disk] {
            Some((old, _)) if old == state => {}
            _ => {
                self.leave(disk, now);
                self.states[disk] = Some((state, now));
            }
        }
    }

    /// Counts the time of a disk's state up to now.
    fn leave(&mut self, disk: usize, now: Moment) {
        let Some((state, mut since)) = self.states[disk].take() else { return };
        let length = SAMPLE.as_nanos() as u64;
        while since < now {
            let until = Moment((since.0 / length + 1) * length).min(now);
            let time = until.since(since).as_secs_f64();
            self.sample(since).states[disk].add(state, time);
            self.totals[disk].add(state, time);
            since = until;
        }
    }

    /// Ends the run. Returns response times, samples, and the times and the busiest epoch of each disk.
    pub fn end(mut self, now: Moment) -> (Responses, Vec<Sample>, [(States, Busiest); 2]) {
        (0..2).for_each(|disk| self.leave(disk, now));
        let mut all = self.reads.clone();
        all.add(&self.writes);
        let responses = Responses {
            all: all.latency(),
            reads: self.reads.latency(),
            writes: self.writes.latency(),
            in_changes: self.in_change.latency(),
            outside_changes: self.outside.latency(),
        };
        let samples = self.samples.iter().enumerate().map(|(n, counts)| {
            let at = SAMPLE * n as u32;
            let length = now.since(Moment::ZERO + at).min(SAMPLE).as_secs_f64();
            let rate = |count: u64| if length > 0.0 { count as f64 / length } else { 0.0 };
            let share =
                |time: Duration| if length > 0.0 { (time.as_secs_f64() / length).min(1.0) } else { 0.0 };
            Sample {
                at_seconds: at.as_secs_f64(),
                offered_per_second: rate(counts.arrived),
                answered_per_second: rate(counts.answered),
                busy: counts.busy.map(share),
                disks: counts.states,
            }
        });
        (responses, samples.collect(), [0, 1].map(|n| (self.totals[n], self.epochs[n].busiest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_epoch_is_the_one_with_the_most_work() {
        let mut measures = Measures::new(Duration::from_secs(2));
        for (now, worked) in [(500, 500), (1900, 300), (2100, 100), (3900, 900), (4500, 200)] {
            measures.worked(1, Moment(now * 1_000_000), Duration::from_millis(worked));
        }
        for utilisation in [0.3, 0.45, 0.4] {
            measures.takes(1, utilisation);
        }
        let (_, _, [(_, idle), (_, busy)]) = measures.end(Moment(5_000_000_000));
        assert_eq!((idle, busy), (Busiest::default(), Busiest { raw: 0.5, smoothed: 0.45 }));
    }
}
