//! The policy of the mirror: when a disk changes its mode and speed, and which disk serves a read. Pure; it decides,
//! and the caller carries out.
//!
//! [`Pair`] puts the parts together: [`utilisation`] measures, [`forecast`] predicts, [`manager`] is the paper's
//! mode/speed manager, [`reads`] distributes reads, and [`adaptive`] moves thresholds such that a response limit holds,
//! where the user names one. The systems that the paper compares LogStore with are the same code with parts left out:
//! [`PolicyKind`].
//!
//! Once per epoch the caller passes what has happened to [`Pair::end_epoch`] and carries out the decisions at once:
//! first the mode, then the speed. While the speed changes, nothing is decided for the disk. An epoch in which one disk
//! could not serve all the time does not count as an observation of either, where the paper is silent: the other disk
//! served the reads of both, and would follow to high speed for a load that is not its own.
//!
//! Diverted accesses keep the disk with the reads at high speed, whatever the load. The paper says "typically"
//! [LogStore §4.1]; its energies say always: in each of its six runs DIV takes half of one-speed's and half of
//! two-speed's, to within 4.6 %.
//!
//! Disks that sleep at low speed ([`Sleep`]; ours, not the paper's) go by the same thresholds. What low
//! speed would lead to is then the load of the other disk, which serves all reads alone; and the sleeper goes up when
//! that disk is as busy as GoUp.
//!
//! Invariants: one disk at a time changes its speed; at most one change of mode per disk and epoch, but for the one
//! that a failed change of speed takes back.

pub mod adaptive;
pub mod forecast;
pub mod manager;
pub mod reads;
pub mod utilisation;

pub use adaptive::{Change, DiskFacts, Draw};
pub use forecast::Access;
pub use manager::{Decision, LogFill};

use crate::{Mode, PolicyKind, Settings, Side, Sleep, Speed, Spent, Thresholds};
use adaptive::{Account, Adaptation};
use manager::{Manager, Seen};
use reads::{ReadLoad, Reads};
use std::time::Duration;
use utilisation::{Outlook, Utilisation};

#[derive(Clone, Debug)]
struct Disk {
    utilisation: Utilisation,
    manager: Manager,
    adaptation: Option<Adaptation>,
    /// Time at high speed since the start or the last change.
    awake_for: Duration,
}

impl Disk {
    fn outlook(&self) -> Option<Outlook> {
        self.utilisation.outlook(self.manager.mode(), self.manager.speed())
    }

    fn measure(&mut self, length: Duration, log: LogFill) {
        let writes_were_logged = self.manager.mode() == Mode::Log && log != LogFill::Full;
        self.utilisation.end_epoch(length, writes_were_logged);
    }

    /// What the epoch adds to what the disk's past allows.
    fn adapt(&mut self, thresholds: &Thresholds, outlook: Option<Outlook>, length: Duration, log: LogFill) {
        if self.manager.speed() == Speed::High && !self.manager.is_changing() {
            self.awake_for += length;
        }
        let (Some(adaptation), Some(outlook)) = (&mut self.adaptation, outlook) else { return };
        let is_calm = self.manager.after_going_down(&outlook, log) <= thresholds.go_down;
        adaptation.end_epoch(length, self.manager.speed(), is_calm);
    }

    fn decide(
        &mut self,
        thresholds: &Thresholds,
        outlook: Option<Outlook>,
        log: LogFill,
        may_change_speed: bool,
        stays_high: bool,
        sleep: Option<Sleep>,
    ) -> Decision {
        let Some(outlook) = outlook.filter(|_| !self.manager.is_changing()) else {
            return Decision::default();
        };
        let predicted = self.manager.after_going_down(&outlook, log);
        let adapted = self.adaptation.as_ref().is_none_or(|a| a.may_go_down(outlook.now, predicted));
        let may_go_down = adapted && sleep.is_none_or(|sleep| self.awake_for >= sleep.awake_shortest);
        let old = self.manager.mode();
        let seen = Seen { outlook, log, may_change_speed, may_go_down, stays_high };
        let decision = self.manager.at_epoch(thresholds, &seen);
        if let Some(mode) = decision.mode {
            self.utilisation.change_mode(old, mode);
        }
        if let (Some(adaptation), Some(speed)) = (&mut self.adaptation, decision.speed) {
            adaptation.change(speed);
        }
        decision
    }
}

/// The policy of a mirror of two disks.
#[derive(Clone, Debug)]
pub struct Pair {
    base: Thresholds,
    /// In force since the last epoch.
    thresholds: Thresholds,
    account: Option<Account>,
    disks: [Disk; 2],
    reads: Reads,
    kind: PolicyKind,
    sleep: Option<Sleep>,
    /// A change of speed ended in the present epoch.
    was_changing: bool,
}

impl Pair {
    /// `settings` that [`Settings::check`] accepts; for each disk what is known of it, its speed, and how much its log
    /// holds.
    pub fn new(settings: &Settings, facts: [DiskFacts; 2], speeds: [Speed; 2], logs: [LogFill; 2]) -> Pair {
        let disk = |side: Side| {
            let (facts, speed, log) = (facts[side.index()], speeds[side.index()], logs[side.index()]);
            Disk {
                utilisation: Utilisation::new(settings.smoothing, facts.slowdown),
                manager: Manager::new(settings.kind, settings.settle_epochs, speed, log),
                adaptation: settings.adaptive.map(|rules| Adaptation::new(rules, facts)),
                awake_for: Duration::ZERO,
            }
        };
        Pair {
            base: settings.thresholds,
            thresholds: settings.thresholds,
            account: settings.adaptive.map(|rules| Account::new(rules.response_limit)),
            disks: Side::BOTH.map(disk),
            reads: Reads::new(settings.kind),
            kind: settings.kind,
            sleep: settings.sleep,
            was_changing: false,
        }
    }

    /// Where writes of the disk go.
    pub fn mode(&self, side: Side) -> Mode {
        self.disks[side.index()].manager.mode()
    }

    /// While it changes, the old speed.
    pub fn speed(&self, side: Side) -> Speed {
        self.disks[side.index()].manager.speed()
    }

    pub fn is_changing(&self, side: Side) -> bool {
        self.disks[side.index()].manager.is_changing()
    }

    /// Smoothed utilisation, 0 to 1; `None` before the first epoch.
    pub fn utilisation(&self, side: Side) -> Option<f64> {
        self.disks[side.index()].utilisation.average()
    }

    /// What the utilisation would be at low speed in the present mode; above 1, it could not serve. Of a disk that
    /// sleeps at low speed, what that of the other one would be. `None` before the first epoch.
    pub fn at_low(&self, side: Side) -> Option<f64> {
        let disk = &self.disks[side.index()];
        let outlook = self.outlook(side)?;
        Some(if disk.manager.mode() == Mode::Log { outlook.low_log } else { outlook.low })
    }

    /// Up to this forecast the disk goes to low speed; `None`: it does not.
    pub fn low_speed_limit(&self, side: Side) -> Option<f64> {
        (!self.stays_high(side)).then_some(self.thresholds.go_down)
    }

    /// Whether the policy keeps the disk at high speed, whatever the load.
    pub fn stays_high(&self, side: Side) -> bool {
        match self.kind {
            PolicyKind::LogStore | PolicyKind::TwoSpeed => false,
            PolicyKind::Div => side == self.reads.first(),
            PolicyKind::OneSpeed => true,
        }
    }

    /// The disk that is at a low speed at which it serves nothing.
    fn asleep(&self) -> Option<Side> {
        let sleeps = |side: &Side| self.speed(*side) == Speed::Low && !self.is_changing(*side);
        self.sleep.and(Side::BOTH.into_iter().find(sleeps))
    }

    /// As [`Disk::outlook`]. What low speed would lead to if the disk slept there: the other one serves all reads.
    fn outlook(&self, side: Side) -> Option<Outlook> {
        let outlook = self.disks[side.index()].outlook()?;
        if self.sleep.is_none() {
            return Some(outlook);
        }
        let other = self.disks[(!side).index()].outlook()?.now;
        let alone = other + if self.asleep() == Some(side) { 0.0 } else { outlook.reads };
        Some(Outlook { low: alone, low_log: alone, ..outlook })
    }

    /// Whether there is so little traffic that the log is replayed: "when disk traffic is low" is up to MinRegular.
    pub fn may_replay(&self, side: Side) -> bool {
        let is_calm = self.utilisation(side).is_some_and(|util| util <= self.thresholds.min_regular);
        is_calm && self.mode(side) == Mode::Replay && !self.is_changing(side)
    }

    /// An operation ended that served `requests` of clients: several for an append or a run that carries several, 0 for
    /// one that only accompanies others, as a sync or the invalidation of a log entry. The replay's operations are not
    /// recorded.
    pub fn record(&mut self, side: Side, access: Access, requests: u32, spent: Spent) {
        self.disks[side.index()].utilisation.record(access, requests, spent);
    }

    /// Clients had `unanswered` requests for `time`; summed up, that is their response times. `answered` of them were
    /// answered at the end of that time.
    pub fn waited(&mut self, unanswered: u64, time: Duration, answered: u64) {
        if let Some(account) = &mut self.account {
            account.add(unanswered, time, answered);
        }
    }

    /// Ends an epoch of `length` and decides for the next one, by side. `may_change_speed`: each disk can serve alone
    /// while the other changes.
    pub fn end_epoch(
        &mut self,
        length: Duration,
        logs: [LogFill; 2],
        may_change_speed: bool,
    ) -> [Decision; 2] {
        if let Some(account) = &self.account {
            self.thresholds = account.thresholds(&self.base);
        }
        let asleep = self.asleep();
        let changing =
            std::mem::take(&mut self.was_changing) || Side::BOTH.iter().any(|s| self.is_changing(*s));
        for (side, log) in Side::BOTH.into_iter().zip(logs) {
            let disk = &mut self.disks[side.index()];
            if changing || asleep == Some(side) {
                disk.utilisation.skip_epoch();
            } else {
                disk.measure(length, log);
            }
        }
        for (side, log) in Side::BOTH.into_iter().zip(logs) {
            let outlook = self.outlook(side);
            self.disks[side.index()].adapt(&self.thresholds, outlook, length, log);
        }
        self.distribute_reads();
        let mut decisions = [Decision::default(); 2];
        for side in self.order() {
            decisions[side.index()] = if asleep == Some(side) {
                self.decide_to_wake(side)
            } else {
                let is_free = may_change_speed && !self.is_changing(!side);
                let (outlook, stays_high, sleep) = (self.outlook(side), self.stays_high(side), self.sleep);
                let (disk, log) = (&mut self.disks[side.index()], logs[side.index()]);
                disk.decide(&self.thresholds, outlook, log, is_free, stays_high, sleep)
            };
        }
        let changing = Side::BOTH.into_iter().filter(|side| self.is_changing(*side));
        debug_assert!(changing.count() < 2, "one disk can serve");
        decisions
    }

    /// The sleeping disk goes up when the other one is as busy as that. The caller wakes it: [`Pair::wake`].
    fn decide_to_wake(&self, side: Side) -> Decision {
        let other = &self.disks[(!side).index()];
        let busy = other.utilisation.average().is_some_and(|util| util >= self.thresholds.go_up);
        Decision { mode: None, speed: busy.then_some(Speed::High) }
    }

    /// The sleeping disk begins to go up.
    pub fn wake(&mut self, side: Side) {
        let disk = &mut self.disks[side.index()];
        disk.manager.wake();
        if let Some(adaptation) = &mut disk.adaptation {
            adaptation.change(Speed::High);
        }
    }

    fn distribute_reads(&mut self) {
        let [Some(a), Some(b)] = [self.disks[0].outlook(), self.disks[1].outlook()] else { return };
        let load = |side, outlook: Outlook| ReadLoad {
            speed: self.speed(side),
            util: outlook.now,
            at_low: outlook.low,
            reads: outlook.reads,
        };
        let loads = [load(Side::A, a), load(Side::B, b)];
        self.reads.at_epoch(&self.thresholds, loads);
    }

    /// Who decides first, and so may change its speed: a disk that may have to go up before one that may go down, and
    /// of two alike the one with the reads goes up and the other down.
    fn order(&self) -> [Side; 2] {
        let first = self.reads.first();
        match (self.speed(first), self.speed(!first)) {
            (Speed::Low, _) => [first, !first],
            (Speed::High, _) => [!first, first],
        }
    }

    /// A change of speed ended; `false`: the disk stays at the old one. Returns the disk's mode, if it changes for
    /// that.
    pub fn changed(&mut self, side: Side, changed: bool) -> Option<Mode> {
        self.was_changing = true;
        let sleeps = self.sleep.is_some();
        let disk = &mut self.disks[side.index()];
        let mode = disk.manager.changed(changed);
        disk.awake_for = Duration::ZERO;
        if changed && !sleeps {
            disk.utilisation.change_speed(disk.manager.speed());
        }
        if let Some(mode) = mode {
            disk.utilisation.change_mode(Mode::Log, mode);
        }
        mode
    }

    /// The disk for a read. `able`, by side: it holds the newest data and serves. `None`: no disk can serve now.
    pub fn choose(&mut self, able: [bool; 2]) -> Option<Side> {
        let able = Side::BOTH.map(|side| able[side.index()] && !self.is_changing(side));
        self.reads.choose(able)
    }
}

#[cfg(test)]
mod tests;
