//! What a modelled disk takes: time in each state times its watts, and the energy of each change of speed
//! [LogStore §4.1]. A change's joules are everything that the disk takes while it lasts: idle power is not added.

use crate::Speed;
use crate::two_speed::model::{ChangeModel, SpeedModel, TwoSpeedModel};
use ebb_types::{Joules, Moment, Watts};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Time in one state, and the energy taken in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Share {
    pub seconds: f64,
    #[serde(rename = "energy_joules")]
    pub energy: Joules,
}

/// Energy and times of a disk from its start to some moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Energy {
    pub idle_low: Share,
    pub access_low: Share,
    pub idle_high: Share,
    pub access_high: Share,
    /// In changes of speed, either way. The energy of an unfinished one counts in proportion to its time.
    pub change: Share,
    /// Changes to high speed that have begun.
    pub changes_up: u64,
    pub changes_down: u64,
}

impl Energy {
    fn shares(&self) -> [Share; 5] {
        [self.idle_low, self.access_low, self.idle_high, self.access_high, self.change]
    }

    pub fn total(&self) -> Joules {
        self.shares().map(|share| share.energy).into_iter().sum()
    }

    pub fn seconds(&self) -> f64 {
        self.shares().map(|share| share.seconds).into_iter().sum()
    }

    /// Share of time at low speed, 0 to 1; a disk that changes its speed is at neither. `None`: no time has passed.
    pub fn low_share(&self) -> Option<f64> {
        let all = self.seconds();
        (all > 0.0).then(|| (self.idle_low.seconds + self.access_low.seconds) / all)
    }
}

/// Keeps the times of one disk. Every state lasts until the next one begins.
#[derive(Clone, Debug)]
pub struct DiskEnergy {
    /// Low speed, high speed.
    speeds: [SpeedModel; 2],
    /// To low speed, to high speed.
    changes: [ChangeModel; 2],
    /// During a change the new one.
    speed: Speed,
    /// Up to here everything is counted.
    since: Moment,
    /// What the disk does from `since` on; then it idles.
    busy: Option<(Busy, Moment)>,
    /// Whole joules of the changes that ended.
    changed: Joules,
    times: Times,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// By speed.
    idle: [Duration; 2],
    access: [Duration; 2],
    change: Duration,
    /// Changes begun, by the new speed.
    changes: [u64; 2],
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Busy {
    Access,
    Change,
}

impl DiskEnergy {
    /// A disk that idles from `now` on.
    pub fn new(model: &TwoSpeedModel, speed: Speed, now: Moment) -> DiskEnergy {
        DiskEnergy {
            speeds: [model.low, model.high],
            changes: [model.down, model.up],
            speed,
            since: now,
            busy: None,
            changed: Joules(0.0),
            times: Times::default(),
        }
    }

    /// An access lasts from `now` to `end`.
    pub fn access(&mut self, now: Moment, end: Moment) {
        self.begin(now, end, Busy::Access);
    }

    /// A change of speed lasts from `now` to `end`.
    pub fn change(&mut self, now: Moment, end: Moment, to: Speed) {
        self.begin(now, end, Busy::Change);
        self.speed = to;
        self.times.changes[to as usize] += 1;
    }

    fn begin(&mut self, now: Moment, end: Moment, what: Busy) {
        self.count(now);
        assert!(self.busy.is_none(), "a disk does one thing at a time");
        self.busy = Some((what, end));
    }

    /// Counts everything up to `now`.
    fn count(&mut self, now: Moment) {
        assert!(now >= self.since, "time does not run backwards");
        if let Some((what, end)) = self.busy {
            let time = now.min(end).since(self.since);
            match what {
                Busy::Access => self.times.access[self.speed as usize] += time,
                Busy::Change => self.times.change += time,
            }
            self.since = now.min(end);
            if now < end {
                return;
            }
            if what == Busy::Change {
                self.changed += self.changes[self.speed as usize].energy;
            }
            self.busy = None;
        }
        self.times.idle[self.speed as usize] += now.since(self.since);
        self.since = now;
    }

    /// Energy and times up to `now`, which is not before the last access or change began.
    pub fn at(&self, now: Moment) -> Energy {
        let mut then = self.clone();
        then.count(now);
        let Times { idle, access, change, changes } = then.times;
        let [low, high] = self.speeds;
        let share =
            |watts: Watts, time: Duration| Share { seconds: time.as_secs_f64(), energy: watts * time };
        Energy {
            idle_low: share(low.idle, idle[0]),
            access_low: share(low.access, access[0]),
            idle_high: share(high.idle, idle[1]),
            access_high: share(high.access, access[1]),
            change: Share { seconds: change.as_secs_f64(), energy: then.changed + then.unfinished() },
            changes_up: changes[Speed::High as usize],
            changes_down: changes[Speed::Low as usize],
        }
    }

    /// Energy so far of a change that has not ended.
    fn unfinished(&self) -> Joules {
        match self.busy {
            Some((Busy::Change, end)) => {
                let change = self.changes[self.speed as usize];
                change.energy * (1.0 - end.since(self.since).as_secs_f64() / change.seconds)
            }
            _ => Joules(0.0),
        }
    }
}
