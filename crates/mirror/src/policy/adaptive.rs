//! Thresholds that follow from the disk's own times, a break-even rule for low speed, and a wear budget. Ours, not the paper's.
//!
//! - **Response.** A disk at utilisation ρ whose requests take S makes them wait `burstiness · S·ρ/(1-ρ)` on average (M/G/1;
//!   1 for exponential S). The highest ρ that keeps S plus the wait under the limit takes the place of GoUp, with the S of the
//!   state in which a threshold applies. The other thresholds keep their proportion to GoUp, and so the hysteresis between
//!   them. Those of the modes never rise above what is set: the log makes answers faster and takes no energy, so a generous
//!   limit is no reason to begin with it later. Scaled up like the others, they let Financial
//!   at 2x miss a limit of 40 ms by 14 ms.
//! - **Break-even.** A trip down and up costs two transitions. It pays if the disk stays low long enough. The expected stay is
//!   the mean of the past ones, later ones weighing more, or the time for which the disk could have been low already, if that
//!   is longer. So one short stay does not rule out low speed for ever, and waiting costs at most as much as one trip in vain.
//! - **Wear.** Cycles accrue at the vendor's rate; every change of speed takes one. A disk goes down only with two: the change
//!   back is paid for in advance, so going up is never refused and the budget never overdrawn. The paper argues that its
//!   disks change less often than once per 158 s [LogStore §2]; here they cannot exceed that on average.
//!
//! Invariant: as long as no change of speed fails, cycles are never below 0, so that in any time t there are at most
//! `cycles_at_once + t · cycles_per_year` changes.

use super::utilisation::{Expected, Outlook};
use crate::settings::Adaptive;
use crate::{Speed, Thresholds};
use ebb_types::{Joules, Watts};
use std::time::Duration;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// No threshold GoUp is below: a disk that does less is idle, and no speed makes its answers faster.
const IDLE: f64 = 0.01;

/// What a disk draws at a speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    pub idle: Watts,
    pub access: Watts,
}

impl Draw {
    fn at(&self, util: f64) -> Watts {
        self.idle + (self.access - self.idle) * util.min(1.0)
    }
}

/// A change of speed. `energy` is all that the disk takes during `time`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    pub time: Duration,
    pub energy: Joules,
}

/// What the policies know of a disk beforehand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiskFacts {
    /// `S_high/S_low`: how many times as long rotation and transfer take at low speed. At least 1.
    pub slowdown: f64,
    pub low: Draw,
    pub high: Draw,
    pub up: Change,
    pub down: Change,
}

/// [LogStore Table 1]
impl Default for DiskFacts {
    fn default() -> DiskFacts {
        let time = Duration::from_secs(7);
        DiskFacts {
            slowdown: 10_000.0 / 3_000.0,
            low: Draw { idle: Watts(0.5), access: Watts(2.5) },
            high: Draw { idle: Watts(6.0), access: Watts(9.0) },
            up: Change { time, energy: Joules(123.0) },
            down: Change { time, energy: Joules(17.0) },
        }
    }
}

impl DiskFacts {
    /// Shortest stay at low speed whose trip down and up takes no more energy than high speed would; `None`: none is long
    /// enough. Arguments: utilisations at high and at low speed.
    pub fn break_even(&self, high: f64, low: f64) -> Option<Duration> {
        let (high, low) = (self.high.at(high), self.low.at(low));
        let trip = self.down.energy + self.up.energy - high * (self.down.time + self.up.time);
        let stay = (trip.0 / (high - low).0).max(0.0);
        (high > low).then(|| Duration::try_from_secs_f64(stay).ok()).flatten()
    }
}

/// What one disk's past allows it.
#[derive(Clone, Debug)]
pub struct Adaptation {
    rules: Adaptive,
    facts: DiskFacts,
    /// Changes of speed that it may make.
    cycles: f64,
    /// Time at low speed since it went there.
    low_for: Duration,
    /// Mean of the past stays at low speed; `None` before the first one ended.
    stay: Option<Duration>,
    /// How long it could have been at low speed already.
    calm_for: Duration,
}

impl Adaptation {
    pub fn new(rules: Adaptive, facts: DiskFacts) -> Adaptation {
        let cycles = f64::from(rules.cycles_at_once);
        Adaptation { rules, facts, cycles, low_for: Duration::ZERO, stay: None, calm_for: Duration::ZERO }
    }

    /// Utilisation up to which requests that take `service` are answered within the limit on average.
    fn highest(&self, service: Duration, saturated: f64) -> f64 {
        if service.is_zero() {
            return saturated;
        }
        let wait = self.rules.response_limit.saturating_sub(service);
        let queue = wait.div_duration_f64(service) / self.rules.burstiness;
        (queue / (1.0 + queue)).max(IDLE).min(saturated)
    }

    /// `down`: what a change to low speed would lead to.
    pub fn thresholds(&self, base: &Thresholds, outlook: &Outlook, down: &Expected) -> Thresholds {
        let scaled = |threshold: f64, state: &Expected| {
            threshold / base.go_up * self.highest(state.service, base.saturated)
        };
        let mode = |threshold: f64| scaled(threshold, &outlook.regular).min(threshold);
        Thresholds {
            balance: scaled(base.balance, &outlook.low),
            go_up: scaled(base.go_up, &outlook.now),
            go_down: scaled(base.go_down, down),
            max_regular: mode(base.max_regular),
            min_regular: mode(base.min_regular),
            max_replay: mode(base.max_replay),
            min_log: mode(base.min_log),
            saturated: base.saturated,
        }
    }

    /// `is_calm`: the load is one for low speed.
    pub fn end_epoch(&mut self, length: Duration, speed: Speed, is_calm: bool) {
        let accrued = f64::from(self.rules.cycles_per_year) * length.div_duration_f64(YEAR);
        self.cycles = (self.cycles + accrued).min(f64::from(self.rules.cycles_at_once));
        self.calm_for = if is_calm && speed == Speed::High { self.calm_for + length } else { Duration::ZERO };
        if speed == Speed::Low {
            self.low_for += length;
        }
    }

    /// Whether a trip down and up is within the wear budget and expected to save energy. Arguments: utilisation now, at high
    /// speed, and predicted after going down.
    pub fn may_go_down(&self, now: f64, predicted: f64) -> bool {
        let expected = self.stay.map_or(Duration::MAX, |stay| stay.max(self.calm_for));
        self.cycles >= 2.0 && self.facts.break_even(now, predicted).is_some_and(|least| expected >= least)
    }

    pub fn change(&mut self, to: Speed) {
        self.cycles -= 1.0;
        if to == Speed::High {
            self.stay = Some(self.stay.map_or(self.low_for, |stay| (stay + self.low_for) / 2));
        }
        self.low_for = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EPOCH: Duration = Duration::from_secs(3);

    fn adaptation(rules: Adaptive) -> Adaptation {
        Adaptation::new(rules, DiskFacts::default())
    }

    fn rules(limit_millis: u64) -> Adaptive {
        Adaptive { response_limit: Duration::from_millis(limit_millis), ..Adaptive::default() }
    }

    fn is(found: f64, wanted: f64) {
        assert!((found - wanted).abs() < 1e-6, "{found} is not {wanted}");
    }

    #[test]
    fn six_hundred_thousand_cycles_in_three_years_are_one_per_158_s() {
        let per_change = YEAR.div_f64(f64::from(Adaptive::default().cycles_per_year)).as_secs_f64();
        is(per_change, 3.0 * 365.0 * 86_400.0 / 600_000.0);
        assert_eq!(per_change.round(), 158.0);
        let mut disk = adaptation(Adaptive { cycles_at_once: 2, ..rules(20) });
        disk.change(Speed::Low);
        disk.change(Speed::High);
        let mut epochs = 0;
        while !disk.may_go_down(0.1, 0.1) {
            disk.end_epoch(EPOCH, Speed::High, true);
            epochs += 1;
        }
        assert_eq!(epochs, 106, "315.36 s for two changes, in epochs of 3 s");
    }

    #[test]
    fn cycles_are_saved_up_to_the_number_at_once() {
        let mut disk = adaptation(Adaptive { cycles_at_once: 3, ..rules(20) });
        disk.end_epoch(YEAR, Speed::High, true);
        disk.change(Speed::Low);
        assert!(disk.may_go_down(0.0, 0.0));
        disk.change(Speed::High);
        disk.end_epoch(EPOCH, Speed::High, true);
        assert!(!disk.may_go_down(0.0, 0.0), "one cycle and a little");
    }

    /// 123 + 17 - 14 s · 6 W = 56 J; 6 - 0.5 = 5.5 W.
    #[test]
    fn the_papers_disk_breaks_even_after_10_s_when_idle() {
        let facts = DiskFacts::default();
        is(facts.break_even(0.0, 0.0).unwrap().as_secs_f64(), 56.0 / 5.5);
        is(facts.break_even(0.2, 0.5).unwrap().as_secs_f64(), (140.0 - 14.0 * 6.6) / 5.1);
        is(facts.break_even(0.2, 7.0).unwrap().as_secs_f64(), (140.0 - 14.0 * 6.6) / 4.1);
        let cheap = Change { time: Duration::from_secs(7), energy: Joules(1.0) };
        assert_eq!(DiskFacts { up: cheap, down: cheap, ..facts }.break_even(0.0, 0.0), Some(Duration::ZERO));
        assert_eq!(DiskFacts { low: facts.high, ..facts }.break_even(0.5, 0.5), None);
        assert_eq!(DiskFacts { low: facts.high, ..facts }.break_even(0.1, 0.5), None);
    }

    /// At ρ = 0.5 a request of 10 ms waits 10 ms (M/M/1), or 20 ms if arrivals are twice as bursty.
    #[test]
    fn go_up_is_where_the_mean_response_reaches_the_limit() {
        let at = |limit, burstiness, service| {
            let disk = adaptation(Adaptive { burstiness, ..rules(limit) });
            disk.highest(Duration::from_millis(service), 0.9)
        };
        is(at(20, 1.0, 10), 0.5);
        is(at(30, 2.0, 10), 0.5);
        is(at(40, 1.0, 10), 0.75);
        is(at(1000, 1.0, 10), 0.9);
        is(at(20, 1.0, 20), IDLE);
        is(at(20, 1.0, 30), IDLE);
        is(at(20, 1.0, 0), 0.9);
    }

    #[test]
    fn thresholds_keep_their_proportions_in_the_state_that_they_apply_to() {
        let expect = |millis| Expected { util: 0.1, service: Duration::from_millis(millis) };
        let (now, regular, low, low_log) = (expect(5), expect(10), expect(16), expect(4));
        let outlook = Outlook { now, regular, low, low_log, reads: 0.0 };
        let found = adaptation(rules(20)).thresholds(&Thresholds::default(), &outlook, &low_log);
        let (of_5, of_10, of_16, of_4) = (0.75, 0.5, 0.2, 0.8);
        is(found.go_up, of_5);
        is(found.go_down, of_4 * 0.6);
        is(found.max_regular, of_10);
        is(found.min_regular, of_10 * 0.6);
        is(found.max_replay, of_10);
        is(found.min_log, of_10 * 0.6);
        is(found.balance, of_16 * 1.2);
        is(found.saturated, 0.9);
    }

    #[test]
    fn a_generous_limit_does_not_put_the_log_off() {
        let state = Expected { util: 0.1, service: Duration::from_millis(10) };
        let outlook = Outlook { now: state, regular: state, low: state, low_log: state, reads: 0.0 };
        let base = Thresholds::default();
        let found = adaptation(rules(40)).thresholds(&base, &outlook, &state);
        is(found.go_up, 0.75);
        let modes = |t: &Thresholds| [t.max_regular, t.min_regular, t.max_replay, t.min_log];
        assert_eq!(modes(&found), modes(&base));
    }

    #[test]
    fn after_a_short_stay_a_disk_waits_until_low_speed_would_have_paid() {
        let mut disk = adaptation(rules(20));
        assert!(disk.may_go_down(0.0, 0.0), "nothing speaks against it yet");
        disk.change(Speed::Low);
        disk.end_epoch(EPOCH, Speed::Low, false);
        disk.change(Speed::High);
        let mut epochs = 0;
        while !disk.may_go_down(0.0, 0.0) {
            disk.end_epoch(EPOCH, Speed::High, true);
            epochs += 1;
        }
        assert_eq!(epochs, 4, "10.2 s, in epochs of 3 s");
        disk.end_epoch(EPOCH, Speed::High, false);
        assert!(!disk.may_go_down(0.0, 0.0), "the load was too high in between");
        (0..9).for_each(|_| disk.end_epoch(EPOCH, Speed::Low, true));
        assert!(
            !disk.may_go_down(0.0, 0.0),
            "time at low speed is not time for which it could have been there"
        );
    }

    #[test]
    fn long_stays_make_up_for_a_short_one() {
        let mut disk = adaptation(rules(20));
        let mut may = Vec::new();
        for epochs in [1, 6, 30, 1, 1, 1] {
            disk.change(Speed::Low);
            (0..epochs).for_each(|_| disk.end_epoch(EPOCH, Speed::Low, false));
            disk.change(Speed::High);
            may.push(disk.may_go_down(0.0, 0.0));
        }
        assert_eq!(
            may,
            [false, true, true, true, true, false],
            "means of 3, 10.5, 50.25, 26.6, 14.8 and 8.9 s"
        );
    }
}
