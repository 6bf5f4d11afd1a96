//! Recorded samples, and the energy in a window of them.
//!
//! Watts are joined by straight lines (the trapezoid rule); energy counters are subtracted, wraps undone. The time
//! between two samples is covered if both have readings and they are no further apart than [`Track::longest_step`]; a
//! counter bridges any gap that is too short for a second wrap. Energy, mean, least and most refer to the covered time,
//! and are reported with the coverage.

use super::{Channel, Clock, Quantity, Source};
use ebb_types::{Joules, Moment, Watts};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// No channel draws this much: a counter that cannot have wrapped twice at this power wrapped once.
const MOST_WATTS: f64 = 2_000.0;

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub at: Moment,
    /// In the unit of the channel's quantity. `None`: the meter was read and had no value.
    pub value: Option<f64>,
}

/// The samples of one channel in time order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Track {
    pub channel: Channel,
    /// Planned time between samples.
    pub interval: Duration,
    pub samples: Vec<Sample>,
}

/// Everything recorded from one meter.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeterRecord {
    pub name: String,
    pub tracks: Vec<Track>,
    pub reads: u64,
    /// Reads that failed completely.
    pub failed_reads: u64,
    /// Why the last one failed.
    pub last_failure: Option<String>,
    /// Why a channel had no value the last time that one had none although the read did not fail.
    pub why_absent: Option<String>,
    /// How long the slowest read took.
    pub slowest_read: Duration,
}

/// Everything recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recording {
    pub clock: Clock,
    pub meters: Vec<MeterRecord>,
}

/// One channel over a window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub meter: String,
    pub channel: Channel,
    /// Readings inside the window.
    pub samples: usize,
    /// Part of the window that samples cover, 0 to 1.
    pub coverage: f64,
    /// Energy of the covered time; only for power and energy channels.
    pub energy: Option<Joules>,
    /// Time-weighted mean over the covered time; in the quantity's unit, watts for energy counters. Absent for power
    /// states.
    pub mean: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
}

/// The energy that one meter saw in a window: the sum of its channels that are not part of another one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Energy {
    /// Of the covered time.
    pub energy: Joules,
    /// Mean power of the covered time.
    pub power: Watts,
    /// Of the least covered channel, 0 to 1.
    pub coverage: f64,
    /// The least trustworthy of the channels': modelled if any of them is.
    pub source: Source,
}

/// All channels over one window of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Window {
    pub from: Moment,
    pub to: Moment,
    pub figures: Vec<Figures>,
}

impl Window {
    /// The energy seen by `meter`. `None`: it has no channel of power or energy, or one of them has no reading in the
    /// window.
    pub fn energy(&self, meter: &str) -> Option<Energy> {
        let counts = |f: &&Figures| {
            f.meter == meter
                && f.channel.part_of.is_none()
                && matches!(f.channel.quantity, Quantity::Power | Quantity::Energy { .. })
        };
        let mut sum: Option<Energy> = None;
        for figures in self.figures.iter().filter(counts) {
            let (energy, power) = (figures.energy?, Watts(figures.mean?));
            let one = Energy { energy, power, coverage: figures.coverage, source: figures.channel.source };
            sum = Some(sum.map_or(one, |sum| Energy {
                energy: sum.energy + one.energy,
                power: sum.power + one.power,
                coverage: sum.coverage.min(one.coverage),
                source: sum.source.max(one.source),
            }));
        }
        sum
    }

    /// The first channel of `meter` with that quantity (by [`Quantity::name`]).
    pub fn first(&self, meter: &str, quantity: &str) -> Option<&Figures> {
        self.figures.iter().find(|f| f.meter == meter && f.channel.quantity.name() == quantity)
    }
}

impl Recording {
    pub fn window(&self, from: Moment, to: Moment) -> Window {
        let figures = self.meters.iter().flat_map(|meter| meter.figures(from, to)).collect();
        Window { from, to, figures }
    }
}

impl MeterRecord {
    /// Every channel over the window.
    pub fn figures(&self, from: Moment, to: Moment) -> Vec<Figures> {
        self.tracks.iter().map(|track| track.figures(&self.name, from, to)).collect()
    }
}

/// Two neighbouring readings, joined by a straight line.
struct Step {
    from: Moment,
    to: Moment,
    before: f64,
    after: f64,
}

impl Step {
    /// The part of it inside the window.
    fn clip(&self, from: Moment, to: Moment) -> Option<Step> {
        let (start, end) = (self.from.max(from), self.to.min(to));
        (start < end).then(|| Step { from: start, to: end, before: self.at(start), after: self.at(end) })
    }

    fn at(&self, moment: Moment) -> f64 {
        let whole = self.to.since(self.from).as_secs_f64();
        self.before + (self.after - self.before) * (moment.since(self.from).as_secs_f64() / whole)
    }

    fn seconds(&self) -> f64 {
        self.to.since(self.from).as_secs_f64()
    }
}

impl Track {
    /// Two samples further apart than this leave a gap: twice the interval plus a margin, which tolerates a late thread
    /// but not a stopped one.
    pub fn longest_step(&self) -> Duration {
        self.interval * 5 / 2 + Duration::from_millis(20)
    }

    /// This channel over the window `from` to `to`; `meter` is its meter's name.
    pub fn figures(&self, meter: &str, from: Moment, to: Moment) -> Figures {
        let (mut seconds, mut area) = (0.0, 0.0);
        let mut range: Option<(f64, f64)> = None;
        for step in self.steps(from, to) {
            seconds += step.seconds();
            area += (step.before + step.after) / 2.0 * step.seconds();
            let (low, high) = (step.before.min(step.after), step.before.max(step.after));
            range = Some(range.map_or((low, high), |(min, max)| (low.min(min), high.max(max))));
        }
        let inside = |s: &&Sample| s.value.is_some() && s.at >= from && s.at <= to;
        let wanted = to.since(from).as_secs_f64();
        let quantity = self.channel.quantity;
        let is_energy = matches!(quantity, Quantity::Power | Quantity::Energy { .. });
        Figures {
            meter: meter.to_string(),
            channel: self.channel.clone(),
            samples: self.samples.iter().filter(inside).count(),
            coverage: if wanted > 0.0 { (seconds / wanted).min(1.0) } else { 0.0 },
            energy: (is_energy && seconds > 0.0).then_some(Joules(area)),
            mean: (quantity != Quantity::PowerState && seconds > 0.0).then(|| area / seconds),
            min: range.map(|(min, _)| min),
            max: range.map(|(_, max)| max),
        }
    }

    /// The covered parts of the window. For an energy counter: its power.
    fn steps(&self, from: Moment, to: Moment) -> Vec<Step> {
        let first = self.samples.partition_point(|s| s.at <= from).saturating_sub(1);
        let first = self.last_reading_before(first);
        let mut steps = Vec::new();
        let mut previous: Option<Sample> = None;
        for sample in &self.samples[first..] {
            let step = match (previous, sample.value) {
                (Some(before), Some(_)) => self.step(before, *sample),
                _ => None,
            };
            steps.extend(step.and_then(|step| step.clip(from, to)));
            // A counter continues between reads: an absent reading does not end its step.
            if sample.value.is_some() || !matches!(self.channel.quantity, Quantity::Energy { .. }) {
                previous = sample.value.map(|_| *sample);
            }
            if sample.at >= to && sample.value.is_some() {
                break;
            }
        }
        steps
    }

    /// Why a counter with readings covers no time.
    pub fn why_uncovered(&self) -> Option<String> {
        let Quantity::Energy { range: Some(range) } = self.channel.quantity else { return None };
        let readings: Vec<Moment> = self.samples.iter().filter(|s| s.value.is_some()).map(|s| s.at).collect();
        let longest = range / MOST_WATTS;
        let gap = |pair: &[Moment]| pair[1].since(pair[0]).as_secs_f64();
        let gap = readings.windows(2).map(gap).find(|gap| *gap > longest)?;
        Some(format!(
            "in the {gap:.0} s between two readings the counter may have wrapped more than once: read it at least every \
             {longest:.0} s"
        ))
    }

    /// Drops the samples that no window from `moment` on needs.
    pub(super) fn forget_before(&mut self, moment: Moment) {
        let later = self.samples.partition_point(|s| s.at <= moment);
        let first = self.last_reading_before(later);
        self.samples.drain(..first);
    }

    /// The index of the last reading before `index`; 0 if there is none.
    fn last_reading_before(&self, index: usize) -> usize {
        self.samples[..index.min(self.samples.len())]
            .iter()
            .rposition(|sample| sample.value.is_some())
            .unwrap_or(0)
    }

    /// The step between two readings, if that time is covered.
    fn step(&self, a: Sample, b: Sample) -> Option<Step> {
        let (before, after) = (a.value?, b.value?);
        let gap = b.at.since(a.at);
        if gap.is_zero() {
            return None;
        }
        let (before, after) = match self.channel.quantity {
            Quantity::Energy { range } => {
                let watts = counted(before, after, range, gap.as_secs_f64())? / gap.as_secs_f64();
                (watts, watts)
            }
            _ if gap > self.longest_step() => return None,
            // A state holds until another one is read.
            Quantity::PowerState => (before, before),
            _ => (before, after),
        };
        Some(Step { from: a.at, to: b.at, before, after })
    }
}

/// Joules between two readings of a counter; `None` if it was reset, or may have wrapped more than once.
fn counted(before: f64, after: f64, range: Option<f64>, seconds: f64) -> Option<f64> {
    match range {
        Some(range) if seconds * MOST_WATTS > range => None,
        Some(range) if after < before => Some(after - before + range),
        None if after < before => None,
        _ => Some(after - before),
    }
}

#[cfg(test)]
mod tests;
