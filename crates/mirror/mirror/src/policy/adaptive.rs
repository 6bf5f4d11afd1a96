//! Thresholds that follow a limit of the mean response time, a break-even rule for low speed, and a wear budget. Ours,
//! not the paper's.
//!
//! - **Response.** The limit is one on the mean, so a fast answer is credit for a slow one. An [`Account`] adds the
//!   limit for each answer and takes off the time that it took. It begins even, with the thresholds that are set. In
//!   credit, GoUp, GoDown and Balance rise together, until GoUp is where a disk counts as saturated: low speed takes
//!   less power, and an answer later than it must be is worth nothing. In debt all thresholds fall, in the end to zero,
//!   which is high speed for both disks; no thresholds answer faster. The thresholds of the modes never rise: the log
//!   makes answers faster and takes no power, so credit does not delay it.
//!
//!   The account counts in requests, so that it does most where most requests are. Quiet hours at low speed, whose
//!   answers are beyond the limit, are little debt. It is repaid when the load is high, where a second at high speed
//!   shortens many answers. Thresholds by what the limit allows each moment go up in the quiet hours: with a limit near
//!   the mean of the paper's thresholds they took three times their energy.
//!
//!   Bound: while the account is not at an end of its range, n requests take at most `(n + CREDIT + DEBT) · limit`
//!   together.
//! - **Break-even.** A trip down and up costs two transitions. It pays if the disk stays low long enough. The expected
//!   stay is the mean of the past ones, later ones weighing more, or the time for which the disk could have been low
//!   already, if that is longer. So one short stay does not rule out low speed for ever, and waiting costs at most as
//!   much as one trip in vain.
//! - **Wear.** Cycles accrue at the vendor's rate; every change of speed takes one. A disk goes down only with two: the
//!   change back is paid for in advance, so going up is never refused and the budget never overdrawn. The paper argues
//!   that its disks change less often than once per 158 s [LogStore §2]; here they cannot exceed that on average.
//!
//! Invariant: as long as no change of speed fails, cycles are never below 0, so that in any time t there are at most
//! `cycles_at_once + t · cycles_per_year` changes.

use crate::settings::Adaptive;
use crate::two_speed::TwoSpeedModel;
use crate::{Speed, Thresholds};
use ebb_types::{Joules, Watts};
use std::time::Duration;

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
/// Ends of the account, in requests of the limit's length. Debt moves thresholds less than credit does: it may be that
/// of a quiet time, and going up for it takes more than staying down for credit gives.
const CREDIT: f64 = 250_000.0;
const DEBT: f64 = 2_000_000.0;

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
        DiskFacts::of(&TwoSpeedModel::paper())
    }
}

impl DiskFacts {
    pub fn of(model: &TwoSpeedModel) -> DiskFacts {
        let draw = |speed: Speed| Draw { idle: model.speed(speed).idle, access: model.speed(speed).access };
        let change = |to: Speed| {
            let change = model.change(to);
            Change { time: Duration::from_secs_f64(change.seconds), energy: change.energy }
        };
        DiskFacts {
            slowdown: model.high.rpm / model.low.rpm,
            low: draw(Speed::Low),
            high: draw(Speed::High),
            up: change(Speed::High),
            down: change(Speed::Low),
        }
    }

    /// Shortest stay at low speed whose trip down and up takes no more energy than high speed would; `None`: none is
    /// long enough. Arguments: utilisations at high and at low speed.
    pub fn break_even(&self, high: f64, low: f64) -> Option<Duration> {
        let (high, low) = (self.high.at(high), self.low.at(low));
        let trip = self.down.energy + self.up.energy - high * (self.down.time + self.up.time);
        let stay = (trip.0 / (high - low).0).max(0.0);
        (high > low).then(|| Duration::try_from_secs_f64(stay).ok()).flatten()
    }
}

/// What clients' requests may still take, or have taken too much.
#[derive(Clone, Debug)]
pub struct Account {
    limit: Duration,
    /// In requests of the limit's length, from `-DEBT` to `CREDIT`.
    balance: f64,
}

impl Account {
    pub fn new(limit: Duration) -> Account {
        Account { limit, balance: 0.0 }
    }

    /// `unanswered` requests waited for `time`; then `answered` of them were answered. What all requests wait is the
    /// sum of their response times (Little), so that none has to be timed.
    pub fn add(&mut self, unanswered: u64, time: Duration, answered: u64) {
        let waited = unanswered as f64 * time.div_duration_f64(self.limit);
        self.balance = (self.balance + answered as f64 - waited).clamp(-DEBT, CREDIT);
        debug_assert!(!self.balance.is_nan(), "a limit of no time has no account");
    }

    pub fn thresholds(&self, base: &Thresholds) -> Thresholds {
        let most = base.saturated / base.go_up;
        let factor = match self.balance {
            credit if credit > 0.0 => 1.0 + (most - 1.0).max(0.0) * credit / CREDIT,
            debt => 1.0 + debt / DEBT,
        };
        let mode = |threshold: f64| threshold * factor.min(1.0);
        Thresholds {
            balance: base.balance * factor,
            go_up: base.go_up * factor,
            go_down: base.go_down * factor,
            max_regular: mode(base.max_regular),
            min_regular: mode(base.min_regular),
            max_replay: mode(base.max_replay),
            min_log: mode(base.min_log),
            saturated: base.saturated,
        }
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

    /// `is_calm`: the load is one for low speed.
    pub fn end_epoch(&mut self, length: Duration, speed: Speed, is_calm: bool) {
        let accrued = f64::from(self.rules.cycles_per_year) * length.div_duration_f64(YEAR);
        self.cycles = (self.cycles + accrued).min(f64::from(self.rules.cycles_at_once));
        self.calm_for = if is_calm && speed == Speed::High { self.calm_for + length } else { Duration::ZERO };
        if speed == Speed::Low {
            self.low_for += length;
        }
    }

    /// Whether a trip down and up is within the wear budget and expected to save energy. Arguments: utilisation now, at
    /// high speed, and predicted after going down.
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

    const LIMIT: Duration = Duration::from_millis(20);

    /// After `requests` requests that took `millis` each.
    fn after(requests: u64, millis: u64) -> Thresholds {
        let mut account = Account::new(LIMIT);
        account.add(requests, Duration::from_millis(millis), requests);
        account.thresholds(&Thresholds::default())
    }

    #[test]
    fn as_long_as_the_mean_is_the_limit_the_thresholds_are_the_papers() {
        assert_eq!(after(1_000_000, 20), Thresholds::default());
        let mut account = Account::new(LIMIT);
        account.add(1, 4 * LIMIT, 1);
        account.add(2, Duration::ZERO, 2);
        account.add(1, Duration::ZERO, 1);
        assert_eq!(account.thresholds(&Thresholds::default()), Thresholds::default(), "one in four is slow");
    }

    #[test]
    fn credit_raises_the_thresholds_of_speeds_alone_and_go_up_to_saturation() {
        let (base, most) = (Thresholds::default(), after(u64::from(u32::MAX), 1));
        is(most.go_up, base.saturated);
        is(most.go_down, 0.54);
        is(most.balance, 1.08);
        let half = after(CREDIT as u64, 10);
        is(half.go_up, 0.7);
        for found in [most, half] {
            assert_eq!(Thresholds { go_up: 0.5, go_down: 0.3, balance: 0.6, ..found }, base);
        }
    }

    #[test]
    fn debt_lowers_all_thresholds_to_zero_in_proportion() {
        let all = |t: &Thresholds| {
            [t.balance, t.go_up, t.go_down, t.max_regular, t.min_regular, t.max_replay, t.min_log]
        };
        let base = Thresholds::default();
        let half = after(DEBT as u64 / 2, 40);
        all(&half).into_iter().zip(all(&base)).for_each(|(found, base)| is(found, base / 2.0));
        assert_eq!(all(&after(u64::from(u32::MAX), 40)), [0.0; 7]);
        is(half.saturated, base.saturated);
    }

    /// The bound of the module's documentation: whatever is answered slowly, fast answers must have paid for or will
    /// have to.
    #[test]
    fn what_goes_beyond_the_limit_is_bounded_by_the_range() {
        let mut random = ebb_types::Random::new(7);
        let (mut account, mut requests, mut seconds) = (Account::new(LIMIT), 0, 0.0);
        while account.thresholds(&Thresholds::default()).go_up > 0.0 {
            let (n, millis) = (random.below(1000), random.below(45));
            account.add(n, Duration::from_millis(millis), n);
            (requests, seconds) = (requests + n, seconds + n as f64 * millis as f64 / 1e3);
            let most = (requests as f64 + CREDIT + DEBT) * LIMIT.as_secs_f64();
            assert!(seconds <= most, "{requests} requests took {seconds} s");
        }
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
