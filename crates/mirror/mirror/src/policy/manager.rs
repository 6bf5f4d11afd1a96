//! The mode/speed manager of one disk: Figures 3 and 4 [LogStore §3.1].
//!
//! At most one change of mode per epoch, and speeds only when the mode stays. Where the paper is silent:
//! - GoUp applies in every mode (Figure 4 tests none). The mode log-replay is set even if the log is empty; lines 13
//!   and 14 end it an epoch later.
//! - A full log ends log mode, and none begins. If regular mode would reach GoUp, the disk goes up instead: at low
//!   speed it could not serve this load, and requests would queue until an epoch has shown that. The paper only limits
//!   the log.
//! - A disk that fails to slow down leaves the log mode that was set for it: Figure 3 has no line that ends log mode at
//!   high speed.
//! - A mirror that starts with entries in its log starts in log-replay. At high speed no line leads there from regular
//!   mode.

use super::utilisation::Outlook;
use crate::{Mode, PolicyKind, Speed, Thresholds};

/// How much a disk's log holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFill {
    Empty,
    Partial,
    /// There is only the room left that both disks need until they have gone up. When that is used up, writes go to the
    /// regular place.
    Full,
}

/// What changes as an epoch begins. `None`: what it is now stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decision {
    pub mode: Option<Mode>,
    /// The change begins with the new mode in force.
    pub speed: Option<Speed>,
}

/// What a decision depends on.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub outlook: Outlook,
    pub log: LogFill,
    /// The other disk can serve alone.
    pub may_change_speed: bool,
    /// There is no other reason against low speed.
    pub may_go_down: bool,
    /// The policy keeps this disk at high speed, whatever the load.
    pub stays_high: bool,
}

/// Mode and speed of one disk.
#[derive(Clone, Debug)]
pub struct Manager {
    kind: PolicyKind,
    settle_epochs: u32,
    mode: Mode,
    /// While a change is under way, the old one.
    speed: Speed,
    changing_to: Option<Speed>,
    /// Since the last change of speed ended.
    epochs: u32,
}

impl Manager {
    /// After `settle_epochs` epochs since a change of speed, there may be another.
    pub fn new(kind: PolicyKind, settle_epochs: u32, speed: Speed, log: LogFill) -> Manager {
        let mode = if log == LogFill::Empty { Mode::Regular } else { Mode::Replay };
        Manager { kind, settle_epochs, mode, speed, changing_to: None, epochs: u32::MAX }
    }

    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// While it changes, the old speed.
    pub fn speed(&self) -> Speed {
        self.speed
    }

    pub fn is_changing(&self) -> bool {
        self.changing_to.is_some()
    }

    /// At the start of each epoch in which the disk's speed is not changing.
    pub fn at_epoch(&mut self, thresholds: &Thresholds, seen: &Seen) -> Decision {
        assert!(!self.is_changing(), "a disk that changes its speed decides nothing");
        self.epochs = self.epochs.saturating_add(1);
        let decision = match self.next_mode(thresholds, seen) {
            Some(mode) => Decision { mode: Some(mode), speed: None },
            None if self.epochs > self.settle_epochs && seen.may_change_speed => {
                self.next_speed(thresholds, seen)
            }
            None => Decision::default(),
        };
        self.mode = decision.mode.unwrap_or(self.mode);
        self.changing_to = decision.speed;
        decision
    }

    fn may_log(&self, log: LogFill) -> bool {
        self.kind == PolicyKind::LogStore && log != LogFill::Full
    }

    /// What GoUp is compared with. A full log ends log mode: then it is the load of regular mode.
    fn load(&self, seen: &Seen) -> f64 {
        let ends = self.mode == Mode::Log && !self.may_log(seen.log);
        if ends { seen.outlook.regular } else { seen.outlook.now }
    }

    /// Figure 3.
    fn next_mode(&self, thresholds: &Thresholds, seen: &Seen) -> Option<Mode> {
        let (util, is_empty) = (seen.outlook.now, seen.log == LogFill::Empty);
        let may_log = self.may_log(seen.log);
        match (self.speed, self.mode) {
            // Lines 3 to 5.
            (Speed::Low, Mode::Regular) if may_log && util >= thresholds.max_regular => Some(Mode::Log),
            // Lines 6 and 7.
            (Speed::Low, Mode::Regular) if util <= thresholds.min_regular && !is_empty => Some(Mode::Replay),
            // Lines 8 and 9.
            (Speed::Low, Mode::Log)
                if seen.outlook.regular <= thresholds.min_log
                    || !may_log && self.load(seen) < thresholds.go_up =>
            {
                Some(Mode::Regular)
            }
            // Lines 10 to 12.
            (Speed::Low, Mode::Replay) if is_empty || util >= thresholds.max_replay => Some(Mode::Regular),
            // Lines 13 and 14.
            (Speed::High, Mode::Replay) if is_empty => Some(Mode::Regular),
            _ => None,
        }
    }

    /// What a change to low speed would lead to: log mode where there is a log with room.
    pub fn after_going_down(&self, outlook: &Outlook, log: LogFill) -> f64 {
        if self.may_log(log) { outlook.low_log } else { outlook.low }
    }

    /// Figure 4.
    fn next_speed(&self, thresholds: &Thresholds, seen: &Seen) -> Decision {
        let predicted = self.after_going_down(&seen.outlook, seen.log);
        let (mode, speed) = match self.speed {
            Speed::Low if seen.stays_high => (self.mode, Speed::High),
            // Lines 3 to 5.
            Speed::Low if self.load(seen) >= thresholds.go_up => {
                (if self.kind == PolicyKind::LogStore { Mode::Replay } else { self.mode }, Speed::High)
            }
            // Lines 6 to 8.
            Speed::High if !seen.stays_high && seen.may_go_down && predicted <= thresholds.go_down => {
                (if self.may_log(seen.log) { Mode::Log } else { self.mode }, Speed::Low)
            }
            Speed::Low | Speed::High => return Decision::default(),
        };
        Decision { mode: (mode != self.mode).then_some(mode), speed: Some(speed) }
    }

    /// A disk that sleeps at low speed begins to go up, whatever the load: something needs it.
    pub fn wake(&mut self) {
        assert!(self.speed == Speed::Low && !self.is_changing(), "it sleeps");
        self.changing_to = Some(Speed::High);
    }

    /// The change of speed ended; `false`: the disk stays at the old one. Returns the mode, if it changes for that.
    pub fn changed(&mut self, changed: bool) -> Option<Mode> {
        let wanted = self.changing_to.take().expect("a change that ends has begun");
        self.epochs = 0;
        if changed {
            self.speed = wanted;
        }
        let is_stranded = self.speed == Speed::High && self.mode == Mode::Log;
        is_stranded.then(|| std::mem::replace(&mut self.mode, Mode::Regular)).map(|_| self.mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Mode::{Log, Regular, Replay};
    use Speed::{High, Low};

    /// Each has another value, so that no line can take one for another.
    const THRESHOLDS: Thresholds = Thresholds {
        balance: 0.6,
        go_up: 0.75,
        go_down: 0.15,
        max_regular: 0.55,
        min_regular: 0.35,
        max_replay: 0.45,
        min_log: 0.25,
        saturated: 0.9,
    };

    fn manager(kind: PolicyKind, mode: Mode, speed: Speed) -> Manager {
        Manager { mode, ..Manager::new(kind, 3, speed, LogFill::Empty) }
    }

    /// Far from every threshold of forecasts, unless a test changes that.
    fn seen(util: f64, log: LogFill) -> Seen {
        let outlook = Outlook { now: util, regular: 0.99, low: 0.99, low_log: 0.99, reads: 0.0 };
        Seen { outlook, log, may_change_speed: true, may_go_down: true, stays_high: false }
    }

    fn mode(mode: Mode) -> Decision {
        Decision { mode: Some(mode), speed: None }
    }

    fn both(mode: Mode, speed: Speed) -> Decision {
        Decision { mode: Some(mode), speed: Some(speed) }
    }

    fn nothing() -> Decision {
        Decision::default()
    }

    fn check(kind: PolicyKind, state: (Mode, Speed), seen: Seen, wanted: Decision) {
        let mut manager = manager(kind, state.0, state.1);
        assert_eq!(manager.at_epoch(&THRESHOLDS, &seen), wanted, "{state:?}, {seen:?}");
        assert_eq!(manager.mode(), wanted.mode.unwrap_or(state.0));
        assert_eq!((manager.speed(), manager.is_changing()), (state.1, wanted.speed.is_some()));
    }

    fn logstore(state: (Mode, Speed), util: f64, log: LogFill, wanted: Decision) {
        check(PolicyKind::LogStore, state, seen(util, log), wanted);
    }

    const FILLS: [LogFill; 2] = [LogFill::Empty, LogFill::Partial];

    #[test]
    fn figure_3_lines_3_to_5_a_busy_disk_logs() {
        for log in FILLS {
            logstore((Regular, Low), 0.55, log, mode(Log));
            logstore((Regular, Low), 0.54, log, nothing());
            logstore((Regular, High), 0.99, log, nothing());
        }
        logstore((Regular, Low), 0.99, LogFill::Empty, mode(Log));
    }

    #[test]
    fn figure_3_lines_6_and_7_a_calm_disk_with_a_log_replays() {
        logstore((Regular, Low), 0.35, LogFill::Partial, mode(Replay));
        logstore((Regular, Low), 0.36, LogFill::Partial, nothing());
        logstore((Regular, Low), 0.35, LogFill::Empty, nothing());
        logstore((Regular, High), 0.35, LogFill::Partial, nothing());
    }

    #[test]
    fn figure_3_lines_8_and_9_log_mode_ends_at_min_log() {
        for (predicted, wanted) in [(0.25, mode(Regular)), (0.26, nothing())] {
            for log in FILLS {
                let mut seen = seen(0.1, log);
                seen.outlook.regular = predicted;
                check(PolicyKind::LogStore, (Log, Low), seen, wanted);
            }
        }
    }

    #[test]
    fn figure_3_lines_10_to_12_replay_ends_with_the_log_or_with_traffic() {
        logstore((Replay, Low), 0.0, LogFill::Empty, mode(Regular));
        logstore((Replay, Low), 0.45, LogFill::Partial, mode(Regular));
        logstore((Replay, Low), 0.44, LogFill::Partial, nothing());
    }

    #[test]
    fn figure_3_lines_13_and_14_replay_at_high_speed_ends_with_the_log_only() {
        logstore((Replay, High), 0.99, LogFill::Empty, mode(Regular));
        logstore((Replay, High), 0.99, LogFill::Partial, nothing());
    }

    #[test]
    fn figure_4_lines_3_to_5_go_up_in_any_mode() {
        for log in FILLS {
            logstore((Log, Low), 0.75, log, both(Replay, High));
            logstore((Log, Low), 0.74, log, nothing());
        }
        // Only thresholds that let the modes stay lead here from the other modes.
        let lazy = Thresholds { max_regular: 1.0, max_replay: 1.0, ..THRESHOLDS };
        let seen = seen(0.75, LogFill::Partial);
        let up = manager(PolicyKind::LogStore, Regular, Low).at_epoch(&lazy, &seen);
        assert_eq!(up, both(Replay, High));
        let up = manager(PolicyKind::LogStore, Replay, Low).at_epoch(&lazy, &seen);
        assert_eq!(up, Decision { mode: None, speed: Some(High) });
    }

    #[test]
    fn figure_4_lines_6_to_8_go_down_into_log_mode() {
        for (state, log) in [((Regular, High), LogFill::Empty), ((Replay, High), LogFill::Partial)] {
            for (predicted, wanted) in [(0.15, both(Log, Low)), (0.16, nothing())] {
                let mut seen = seen(0.05, log);
                seen.outlook.low_log = predicted;
                check(PolicyKind::LogStore, state, seen, wanted);
                check(PolicyKind::LogStore, state, Seen { may_go_down: false, ..seen }, nothing());
            }
        }
    }

    #[test]
    fn going_up_needs_no_leave_to_go_down_and_no_change_comes_while_the_other_disk_cannot_serve_alone() {
        let up = seen(0.75, LogFill::Empty);
        check(PolicyKind::LogStore, (Log, Low), Seen { may_go_down: false, ..up }, both(Replay, High));
        check(PolicyKind::LogStore, (Log, Low), Seen { may_change_speed: false, ..up }, nothing());
    }

    #[test]
    fn a_change_of_mode_excludes_a_change_of_speed_in_its_epoch() {
        logstore((Regular, Low), 0.9, LogFill::Empty, mode(Log));
        let mut down = seen(0.0, LogFill::Empty);
        down.outlook.low_log = 0.0;
        check(PolicyKind::LogStore, (Replay, High), down, mode(Regular));
    }

    /// "More than 3 epochs": the fourth.
    #[test]
    fn speeds_change_again_after_more_than_3_epochs() {
        for (changed, at, next) in [(true, High, Low), (false, Low, High)] {
            let mut manager = manager(PolicyKind::LogStore, Log, Low);
            let mut busy = seen(0.8, LogFill::Partial);
            busy.outlook.low_log = 0.0;
            assert_eq!(manager.at_epoch(&THRESHOLDS, &busy), both(Replay, High));
            assert_eq!(manager.changed(changed), None);
            assert_eq!(manager.speed(), at);
            manager.mode = if changed { Regular } else { Log };
            for _ in 0..3 {
                assert_eq!(manager.at_epoch(&THRESHOLDS, &busy), nothing());
            }
            assert_eq!(manager.at_epoch(&THRESHOLDS, &busy).speed, Some(next));
        }
    }

    #[test]
    fn a_disk_that_fails_to_slow_down_leaves_log_mode() {
        let mut manager = manager(PolicyKind::LogStore, Regular, High);
        let mut calm = seen(0.0, LogFill::Empty);
        calm.outlook.low_log = 0.0;
        assert_eq!(manager.at_epoch(&THRESHOLDS, &calm), both(Log, Low));
        assert_eq!(manager.changed(false), Some(Regular));
        assert_eq!((manager.mode(), manager.speed()), (Regular, High));
    }

    #[test]
    fn a_full_log_ends_log_mode_and_go_up_decides_by_the_load_without_a_log() {
        for (regular, wanted) in [(0.74, mode(Regular)), (0.75, both(Replay, High))] {
            let mut seen = seen(0.5, LogFill::Full);
            seen.outlook.regular = regular;
            check(PolicyKind::LogStore, (Log, Low), seen, wanted);
            check(PolicyKind::LogStore, (Log, Low), Seen { log: LogFill::Partial, ..seen }, nothing());
        }
        logstore((Regular, Low), 0.74, LogFill::Full, nothing());
        logstore((Regular, Low), 0.75, LogFill::Full, both(Replay, High));
        for (predicted, wanted) in [(0.15, Decision { mode: None, speed: Some(Low) }), (0.16, nothing())] {
            let mut seen = seen(0.1, LogFill::Full);
            (seen.outlook.low, seen.outlook.low_log) = (predicted, 0.0);
            check(PolicyKind::LogStore, (Replay, High), seen, wanted);
        }
    }

    #[test]
    fn a_log_left_from_before_is_replayed_at_either_speed() {
        for speed in [Low, High] {
            let mut manager = Manager::new(PolicyKind::LogStore, 3, speed, LogFill::Partial);
            assert_eq!(manager.mode(), Replay);
            assert_eq!(manager.at_epoch(&THRESHOLDS, &seen(0.1, LogFill::Empty)), mode(Regular));
            assert_eq!(Manager::new(PolicyKind::LogStore, 3, speed, LogFill::Empty).mode(), Regular);
        }
    }

    #[test]
    fn two_speed_and_div_change_speeds_without_a_log() {
        for kind in [PolicyKind::TwoSpeed, PolicyKind::Div] {
            check(kind, (Regular, Low), seen(0.74, LogFill::Empty), nothing());
            let only = |speed| Decision { mode: None, speed: Some(speed) };
            check(kind, (Regular, Low), seen(0.75, LogFill::Empty), only(High));
            for (predicted, wanted) in [(0.15, only(Low)), (0.16, nothing())] {
                let mut seen = seen(0.1, LogFill::Empty);
                (seen.outlook.low, seen.outlook.low_log) = (predicted, 0.0);
                check(kind, (Regular, High), seen, wanted);
            }
        }
    }

    #[test]
    fn a_disk_that_stays_high_goes_up_and_stays() {
        let mut calm = Seen { stays_high: true, ..seen(0.0, LogFill::Empty) };
        (calm.outlook.low, calm.outlook.low_log) = (0.0, 0.0);
        for kind in [PolicyKind::OneSpeed, PolicyKind::Div] {
            check(kind, (Regular, High), calm, nothing());
            let up = Decision { mode: None, speed: Some(High) };
            check(kind, (Regular, Low), calm, up);
        }
    }
}
