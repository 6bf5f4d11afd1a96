//! What is measured during a run: response times by kind, load over time, and the states of the disks over time.

use super::report::{Responses, Sample, States};
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

#[derive(Default)]
pub(super) struct Measures {
    reads: Histogram,
    writes: Histogram,
    in_change: Histogram,
    outside: Histogram,
    samples: Vec<Counts>,
    /// The present state of each disk, and since when.
    states: [Option<(State, Moment)>; 2],
    totals: [States; 2],
}

impl Measures {
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

    /// Ends the run. Returns response times, samples, and the times of each disk.
    pub fn end(mut self, now: Moment) -> (Responses, Vec<Sample>, [States; 2]) {
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
        (responses, samples.collect(), self.totals)
    }
}
