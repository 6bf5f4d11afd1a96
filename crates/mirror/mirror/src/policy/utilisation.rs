//! How busy a disk is: the share of the epoch in which it worked, filtered and smoothed [LogStore §2].
//!
//! The filter drops the first observation that is more than twice as high or as low as the previous one and takes the
//! next one into account, whatever it is. A moving average smooths what passes; `smoothing` weighs its old value.
//!
//! The paper does not say what becomes of the average when the disk changes. We convert it by the forecast that led to
//! the decision. Kept as it is, it would describe another disk for many epochs: a disk that enters log mode at 60 %
//! would still show 60 % in the next epoch (the filter drops the valley), reach GoUp and leave low speed at once; that
//! is what the log is there to prevent. Starting afresh would let one epoch, full of postponed writes, decide. The
//! first epoch with accesses shows by how much the forecast of the mean access time was wrong, and corrects the average
//! by as much.
//!
//! The replay's own operations are no load and are not recorded: it works when the disk has nothing else to do, and
//! would reach MaxReplay and GoUp by itself.
//!
//! Invariant: everything remembered stands for the disk's present speed.

use super::forecast::{Access, Accesses};
use crate::{Mode, Speed, Spent};
use std::time::Duration;

/// Utilisation as it is and as it would be. A predicted one may be above 1: more than the disk can serve.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outlook {
    pub now: f64,
    /// In regular mode, at the present speed.
    pub regular: f64,
    /// At low speed, in the present mode.
    pub low: f64,
    /// At low speed in log mode.
    pub low_log: f64,
    /// Part of the present utilisation that reads cause.
    pub reads: f64,
}

/// Utilisation of one disk.
#[derive(Clone, Debug)]
pub struct Utilisation {
    smoothing: f64,
    /// `S_high/S_low`.
    slowdown: f64,
    /// Of the present epoch.
    present: Accesses,
    /// Of the last epoch with accesses; after a change of mode or speed, what they would be now.
    last: Accesses,
    /// `last` was not measured.
    is_forecast: bool,
    /// As `last` when log mode was entered.
    before_log: Accesses,
    /// Last reads and last writes of log mode.
    in_log: Accesses,
    /// Above 1 after a conversion to a state in which the disk could not serve this load.
    average: Option<f64>,
    /// Last observation that passed the filter.
    previous: f64,
    /// The last observation did not pass.
    has_dropped: bool,
}

impl Utilisation {
    /// `smoothing`: weight of the old average. `slowdown`: `S_high/S_low`.
    pub fn new(smoothing: f64, slowdown: f64) -> Utilisation {
        assert!(slowdown >= 1.0 && slowdown.is_finite(), "a disk is no faster at low speed: {slowdown}");
        Utilisation {
            smoothing,
            slowdown,
            present: Accesses::default(),
            last: Accesses::default(),
            is_forecast: false,
            before_log: Accesses::default(),
            in_log: Accesses::default(),
            average: None,
            previous: 0.0,
            has_dropped: false,
        }
    }

    /// An operation ended that served `requests` of clients; 0 for one that only accompanies others.
    pub fn record(&mut self, access: Access, requests: u32, spent: Spent) {
        self.present.add(access, requests, spent);
    }

    /// `writes_were_logged`: all of this epoch's writes went to the log.
    pub fn end_epoch(&mut self, length: Duration, writes_were_logged: bool) {
        assert!(!length.is_zero(), "an epoch takes time");
        let accesses = std::mem::take(&mut self.present);
        if !accesses.total().is_zero() {
            let (service, forecast) = (accesses.service(), self.last.service());
            if std::mem::take(&mut self.is_forecast) && !service.is_zero() && !forecast.is_zero() {
                self.scale(service.div_duration_f64(forecast));
            }
            self.last = accesses;
            if writes_were_logged {
                self.in_log.update(&accesses);
            }
        }
        self.observe(accesses.total().div_duration_f64(length).min(1.0));
    }

    /// Ends an epoch that says nothing about the load, because the disk could not serve all the time.
    pub fn skip_epoch(&mut self) {
        self.present = Accesses::default();
    }

    fn observe(&mut self, raw: f64) {
        // A conversion may have led above 1, which no observation can follow.
        let Some(average) = self.average() else {
            (self.average, self.previous) = (Some(raw), raw);
            return;
        };
        self.previous = self.previous.min(1.0);
        let is_jump = raw > 2.0 * self.previous || 2.0 * raw < self.previous;
        self.has_dropped = is_jump && !self.has_dropped;
        if !self.has_dropped {
            self.average = Some(self.smoothing * average + (1.0 - self.smoothing) * raw);
            self.previous = raw;
        }
    }

    /// Smoothed utilisation, 0 to 1; `None` before the first epoch.
    pub fn average(&self) -> Option<f64> {
        self.average.map(|average| average.min(1.0))
    }

    pub fn change_mode(&mut self, old: Mode, new: Mode) {
        if old != Mode::Log && new == Mode::Log {
            self.before_log.update(&self.last);
            self.convert(self.last.in_log(&self.in_log));
        }
        if old == Mode::Log && new != Mode::Log {
            self.convert(self.last.in_regular_place(&self.before_log));
        }
    }

    /// The disk has reached `new` from the other speed.
    pub fn change_speed(&mut self, new: Speed) {
        let factor = match new {
            Speed::Low => self.slowdown,
            Speed::High => 1.0 / self.slowdown,
        };
        self.convert(self.last.turned(factor));
        self.before_log = self.before_log.turned(factor);
        self.in_log = self.in_log.turned(factor);
    }

    fn convert(&mut self, forecast: Accesses) {
        self.scale(self.last.factor(&forecast));
        self.last = forecast;
        self.is_forecast = true;
    }

    fn scale(&mut self, factor: f64) {
        debug_assert!(factor.is_finite() && factor >= 0.0, "no comparison holds for what is no number");
        self.average = self.average.map(|average| average * factor);
        self.previous *= factor;
    }

    /// Of a disk in `mode` at `speed`; `None` before the first epoch.
    pub fn outlook(&self, mode: Mode, speed: Speed) -> Option<Outlook> {
        let average = self.average?;
        let expect = |accesses: Accesses| average * self.last.factor(&accesses);
        let is_log = mode == Mode::Log;
        let log = if is_log { self.last } else { self.last.in_log(&self.in_log) };
        let regular = if is_log { self.last.in_regular_place(&self.before_log) } else { self.last };
        let to_low = if speed == Speed::Low { 1.0 } else { self.slowdown };
        Some(Outlook {
            now: expect(self.last),
            regular: expect(regular),
            low: expect(self.last.turned(to_low)),
            low_log: expect(log.turned(to_low)),
            reads: average * self.last.read_share(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Parts;

    const EPOCH: Duration = Duration::from_secs(3);
    const RATIO: f64 = 10_000.0 / 3_000.0;

    fn spent(seek: u64, rotation: u64, transfer: u64) -> Spent {
        let [seek, rotation, transfer] = [seek, rotation, transfer].map(Duration::from_millis);
        Spent { parts: Parts { seek, rotation, transfer } }
    }

    fn is(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-6, "{found} is not {wanted}");
    }

    /// Averages after each of these raw observations, in per mille of an epoch.
    fn averages(smoothing: f64, raw: &[u64]) -> Vec<f64> {
        let mut disk = Utilisation::new(smoothing, RATIO);
        let each = raw.iter().map(|permille| {
            disk.record(Access::Read, 1, spent(0, 0, 3 * permille));
            disk.end_epoch(EPOCH, false);
            disk.average().unwrap()
        });
        each.collect()
    }

    fn are(found: &[f64], wanted: &[f64]) {
        assert_eq!(found.len(), wanted.len());
        found.iter().zip(wanted).for_each(|(found, wanted)| is(*found, *wanted));
    }

    #[test]
    fn smoothing_weighs_the_old_value() {
        are(&averages(0.875, &[400, 800, 400]), &[0.4, 0.45, 0.44375]);
        are(&averages(0.125, &[400, 800]), &[0.4, 0.75]);
    }

    #[test]
    fn only_the_first_of_several_far_observations_is_dropped() {
        are(&averages(0.5, &[200, 800, 800, 800]), &[0.2, 0.2, 0.5, 0.65]);
        are(&averages(0.5, &[800, 200, 200]), &[0.8, 0.8, 0.5]);
        are(&averages(0.5, &[200, 800, 200, 800, 200]), &[0.2, 0.2, 0.2, 0.2, 0.2]);
        are(&averages(0.5, &[200, 800, 100]), &[0.2, 0.2, 0.15]);
    }

    #[test]
    fn twice_as_high_passes_and_a_little_more_does_not() {
        are(&averages(0.5, &[200, 400]), &[0.2, 0.3]);
        are(&averages(0.5, &[200, 401]), &[0.2, 0.2]);
        are(&averages(0.5, &[400, 200]), &[0.4, 0.3]);
        are(&averages(0.5, &[400, 199]), &[0.4, 0.4]);
    }

    #[test]
    fn nothing_after_something_is_a_valley_and_nothing_after_nothing_is_not() {
        are(&averages(0.5, &[400, 0, 0, 0]), &[0.4, 0.4, 0.2, 0.1]);
        are(&averages(0.5, &[0, 0, 1, 1]), &[0.0, 0.0, 0.0, 0.0005]);
    }

    #[test]
    fn a_disk_that_was_busy_longer_than_the_epoch_is_full() {
        are(&averages(0.5, &[1700]), &[1.0]);
    }

    #[test]
    fn a_skipped_epoch_changes_nothing() {
        let mut disk = Utilisation::new(0.5, RATIO);
        disk.record(Access::Read, 1, spent(300, 0, 0));
        disk.skip_epoch();
        assert_eq!((disk.average(), disk.outlook(Mode::Regular, Speed::Low)), (None, None));
        disk.end_epoch(EPOCH, false);
        assert_eq!(disk.average(), Some(0.0));
    }

    /// 50 writes of 5 + 10 + 1 ms at low speed.
    fn busy_with_writes() -> Utilisation {
        let mut disk = Utilisation::new(0.875, RATIO);
        disk.record(Access::Write, 50, spent(250, 500, 50));
        disk.end_epoch(EPOCH, false);
        disk
    }

    #[test]
    fn parts_are_those_of_the_last_epoch_with_accesses() {
        let mut disk = busy_with_writes();
        disk.end_epoch(EPOCH, false);
        disk.end_epoch(EPOCH, false);
        let outlook = disk.outlook(Mode::Regular, Speed::Low).unwrap();
        is(outlook.low_log / outlook.now, 1.0 / 16.0);
    }

    #[test]
    fn a_change_of_mode_converts_the_average_and_back() {
        let mut disk = busy_with_writes();
        let before = disk.average().unwrap();
        let outlook = disk.outlook(Mode::Regular, Speed::Low).unwrap();
        is(outlook.low_log, before / 16.0);
        disk.change_mode(Mode::Regular, Mode::Log);
        is(disk.average().unwrap(), before / 16.0);
        let outlook = disk.outlook(Mode::Log, Speed::Low).unwrap();
        is(outlook.regular, before);
        // What log mode brings in fact replaces the presumption: 2 ms of rotation per write.
        disk.end_epoch(EPOCH, true);
        disk.record(Access::Write, 50, spent(0, 100, 50));
        disk.end_epoch(EPOCH, true);
        let now = disk.average().unwrap();
        is(now, 0.05);
        is(disk.outlook(Mode::Log, Speed::Low).unwrap().regular, before);
        disk.record(Access::Write, 50, spent(0, 125, 50));
        disk.end_epoch(EPOCH, true);
        is(disk.average().unwrap(), 0.875 * 0.05 + 0.125 * 0.175 / 3.0);
        let now = disk.average().unwrap();
        disk.change_mode(Mode::Log, Mode::Regular);
        is(disk.average().unwrap(), now * 16.0 / 3.5);
        is(disk.outlook(Mode::Regular, Speed::Low).unwrap().low_log, now);
    }

    #[test]
    fn parts_before_log_mode_are_those_before_log_mode_even_from_the_other_speed() {
        let mut disk = Utilisation::new(0.875, RATIO);
        disk.record(Access::Write, 10, spent(50, 30, 3));
        disk.end_epoch(EPOCH, false);
        let outlook = disk.outlook(Mode::Regular, Speed::High).unwrap();
        is(outlook.low_log, 0.010 / 3.0);
        is(outlook.low, 0.160 / 3.0);
        disk.change_mode(Mode::Regular, Mode::Log);
        disk.change_speed(Speed::Low);
        is(disk.average().unwrap(), 0.010 / 3.0);
        disk.record(Access::Write, 10, spent(0, 0, 10));
        disk.end_epoch(EPOCH, true);
        is(disk.outlook(Mode::Log, Speed::Low).unwrap().regular, 0.160 / 3.0);
    }

    #[test]
    fn a_change_of_speed_converts_the_average_and_what_is_remembered() {
        let mut disk = busy_with_writes();
        let before = disk.average().unwrap();
        disk.change_speed(Speed::High);
        is(disk.average().unwrap(), before * (5.0 + 0.3 * 11.0) / 16.0);
        is(disk.outlook(Mode::Regular, Speed::High).unwrap().low, before);
        disk.change_speed(Speed::Low);
        is(disk.average().unwrap(), before);
    }

    #[test]
    fn a_converted_average_is_at_most_full_and_the_next_observation_is_compared_with_it() {
        let mut disk = Utilisation::new(0.5, RATIO);
        disk.record(Access::Read, 12, spent(0, 1080, 0));
        disk.end_epoch(EPOCH, false);
        disk.change_speed(Speed::Low);
        is(disk.average().unwrap(), 1.0);
        let mut other = disk.clone();
        other.change_speed(Speed::High);
        is(other.average().unwrap(), 0.36);
        disk.record(Access::Read, 9, spent(0, 2700, 0));
        disk.end_epoch(EPOCH, false);
        is(disk.average().unwrap(), 0.95);
    }

    /// Otherwise 60 % would reach GoUp in the first epoch of log mode.
    #[test]
    fn a_disk_that_enters_log_mode_shows_what_log_mode_brings_at_once() {
        let mut disk = Utilisation::new(0.875, RATIO);
        disk.record(Access::Write, 100, spent(600, 1100, 100));
        disk.end_epoch(EPOCH, false);
        is(disk.average().unwrap(), 0.6);
        disk.change_mode(Mode::Regular, Mode::Log);
        disk.record(Access::Write, 100, spent(0, 0, 100));
        disk.end_epoch(EPOCH, true);
        is(disk.average().unwrap(), 0.1 / 3.0);
    }

    #[test]
    fn reads_cause_their_share() {
        let mut disk = busy_with_writes();
        disk.record(Access::Write, 25, spent(200, 200, 200));
        disk.record(Access::Read, 25, spent(100, 50, 50));
        disk.end_epoch(EPOCH, false);
        let outlook = disk.outlook(Mode::Regular, Speed::Low).unwrap();
        is(outlook.reads, outlook.now / 4.0);
    }
}
