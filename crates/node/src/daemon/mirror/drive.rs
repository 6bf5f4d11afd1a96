//! What a disk reports of its time to the mirror, and what its speed is: by driver.
//!
//! - *None*: a disk of one speed, as it is. How long an operation kept the disk busy cannot be seen from outside while several
//!   are in flight, so the time with any operation in flight is busy time, and each completion reports what has passed of it
//!   since the last one. The sum is right, and so is the utilisation; the parts are not known, and all of it is given as
//!   transfer.
//! - *Emulated*: operations are carried out at once, and their ends are held back until the two-speed model says so: one access
//!   at a time, first come first served. Timers of the runtime have a grain of a millisecond, which the model's own time does
//!   not accumulate. Syncs and holes take no time of their own, since the model has no write cache.

use ebb_mirror::{DiskOp, Found, ModelDisk, Parts, Speed, Spent, Token};
use ebb_types::{Joules, Moment, Watts};
use std::collections::{BTreeMap, BTreeSet};

/// What has come to its end on a drive.
#[derive(Debug, PartialEq)]
pub enum Ended {
    Op { token: Token, found: Found, spent: Spent },
    Change,
}

pub enum Drive {
    None(Busy),
    Emulated(Box<Emulated>),
}

impl Drive {
    pub fn begin(&mut self, now: Moment, token: Token, op: &DiskOp) {
        match self {
            Drive::None(busy) => busy.begin(now),
            Drive::Emulated(disk) => disk.begin(now, token, op),
        }
    }

    /// An operation has been carried out. `None`: it ends later.
    pub fn done(&mut self, now: Moment, token: Token, found: Found) -> Option<Ended> {
        match self {
            Drive::None(busy) => Some(Ended::Op { token, found, spent: busy.end(now) }),
            Drive::Emulated(disk) => disk.done(now, token, found),
        }
    }

    pub fn change(&mut self, now: Moment, to: Speed) {
        match self {
            Drive::None(_) => unreachable!("a disk of one speed is not asked to change it"),
            Drive::Emulated(disk) => disk.change(now, to),
        }
    }

    /// When [`Drive::pop`] has something next.
    pub fn due(&self) -> Option<Moment> {
        match self {
            Drive::None(_) => None,
            Drive::Emulated(disk) => disk.due(),
        }
    }

    pub fn pop(&mut self, now: Moment) -> Option<Ended> {
        match self {
            Drive::None(_) => None,
            Drive::Emulated(disk) => disk.pop(now),
        }
    }

    /// Energy since the start and mean power, if they are modelled.
    pub fn modelled(&self, now: Moment) -> Option<(Joules, Watts)> {
        match self {
            Drive::None(_) => None,
            Drive::Emulated(disk) => Some(disk.modelled(now)),
        }
    }
}

/// Time with at least one operation in flight.
#[derive(Default)]
pub struct Busy {
    in_flight: u32,
    /// Up to here everything is reported.
    since: Moment,
}

impl Busy {
    fn begin(&mut self, now: Moment) {
        if self.in_flight == 0 {
            self.since = now;
        }
        self.in_flight += 1;
    }

    fn end(&mut self, now: Moment) -> Spent {
        self.in_flight -= 1;
        let transfer = now.since(std::mem::replace(&mut self.since, now));
        Spent { parts: Parts { transfer, ..Parts::default() } }
    }
}

struct Access {
    due: Moment,
    spent: Spent,
    /// Once it has been carried out.
    found: Option<Found>,
}

pub struct Emulated {
    disk: ModelDisk,
    /// When the last access began, which may be yet to come.
    began: Moment,
    accesses: BTreeMap<Token, Access>,
    /// Those that have been carried out.
    waiting: BTreeSet<(Moment, Token)>,
    change: Option<Moment>,
}

impl Emulated {
    pub fn new(disk: ModelDisk, now: Moment) -> Emulated {
        Emulated { disk, began: now, accesses: BTreeMap::new(), waiting: BTreeSet::new(), change: None }
    }

    fn begin(&mut self, now: Moment, token: Token, op: &DiskOp) {
        let access = match op {
            DiskOp::Read { offset, bytes } => Some((false, *offset, *bytes)),
            DiskOp::Write { offset, pieces, .. } => {
                Some((true, *offset, pieces.iter().map(|piece| piece.len() as u64).sum()))
            }
            DiskOp::Zero { offset, bytes, may_trim: false } => Some((true, *offset, *bytes)),
            DiskOp::Zero { may_trim: true, .. } | DiskOp::Sync | DiskOp::Status { .. } => None,
        };
        let mut spent = Spent::default();
        if let Some((write, offset, bytes)) = access {
            self.began = now.max(self.disk.free_at());
            spent = self.disk.access(self.began, write, offset, bytes);
        }
        let due = now.max(self.disk.free_at());
        self.accesses.insert(token, Access { due, spent, found: None });
    }

    fn done(&mut self, now: Moment, token: Token, found: Found) -> Option<Ended> {
        let access = self.accesses.get_mut(&token).expect("it was begun");
        access.found = Some(found);
        if access.due <= now {
            return Some(self.end(token));
        }
        self.waiting.insert((access.due, token));
        None
    }

    fn end(&mut self, token: Token) -> Ended {
        let access = self.accesses.remove(&token).expect("it was begun");
        let found = access.found.expect("it has been carried out");
        Ended::Op { token, found, spent: access.spent }
    }

    fn change(&mut self, now: Moment, to: Speed) {
        self.began = now.max(self.disk.free_at());
        self.change = Some(self.disk.begin_change(self.began, to));
    }

    fn due(&self) -> Option<Moment> {
        let op = self.waiting.first().map(|(due, _)| *due);
        [op, self.change].into_iter().flatten().min()
    }

    fn pop(&mut self, now: Moment) -> Option<Ended> {
        if self.change.is_some_and(|end| end <= now) {
            self.change = None;
            self.disk.end_change(now);
            return Some(Ended::Change);
        }
        let (_, token) = *self.waiting.first().filter(|(due, _)| *due <= now)?;
        self.waiting.pop_first();
        Some(self.end(token))
    }

    fn modelled(&self, now: Moment) -> (Joules, Watts) {
        let energy = self.disk.energy(now.max(self.began));
        let (joules, seconds) = (energy.total(), energy.seconds());
        (joules, Watts(if seconds > 0.0 { joules.0 / seconds } else { 0.0 }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_mirror::DiskModel;
    use std::time::Duration;

    fn at(millis: u64) -> Moment {
        Moment(millis * 1_000_000)
    }

    #[test]
    fn busy_time_is_the_time_with_something_in_flight() {
        let mut drive = Drive::None(Busy::default());
        let mut total = Duration::ZERO;
        let mut end =
            |drive: &mut Drive, millis, token| match drive.done(at(millis), Token(token), Found::Done) {
                Some(Ended::Op { spent, .. }) => total += spent.total(),
                other => panic!("{other:?}"),
            };
        drive.begin(at(10), Token(1), &DiskOp::Sync);
        drive.begin(at(12), Token(2), &DiskOp::Sync);
        end(&mut drive, 15, 2);
        end(&mut drive, 20, 1);
        drive.begin(at(100), Token(3), &DiskOp::Sync);
        end(&mut drive, 101, 3);
        assert_eq!(total, Duration::from_millis(11));
    }

    #[test]
    fn an_emulated_disk_ends_accesses_in_turn_when_the_model_says_so() {
        let model = DiskModel::paper();
        let mut drive = Drive::Emulated(Box::new(Emulated::new(
            ModelDisk::new(model.clone(), Speed::High, at(0), 3),
            at(0),
        )));
        let write = DiskOp::Write { offset: 1 << 30, pieces: vec![vec![0; 4096].into()], durable: false };
        for token in [1, 2] {
            drive.begin(at(1), Token(token), &write);
        }
        drive.begin(at(1), Token(3), &DiskOp::Sync);
        for token in [3, 2, 1] {
            assert_eq!(drive.done(at(1), Token(token), Found::Done), None, "the arm is not there yet");
        }
        let (mut ended, mut moments, mut busy) = (Vec::new(), Vec::new(), Duration::ZERO);
        while let Some(due) = drive.due() {
            assert_eq!(drive.pop(Moment(due.0 - 1)), None);
            let Some(Ended::Op { token, spent, .. }) = drive.pop(due) else { panic!("it is due") };
            busy += spent.total();
            ended.push(token.0);
            moments.push(due);
        }
        assert_eq!(ended, [1, 2, 3], "the sync covers both");
        assert_eq!(moments[1], at(1) + busy);
        let idle = moments[1];
        drive.change(idle, Speed::Low);
        assert_eq!(drive.due(), Some(idle + Duration::from_secs(7)));
        let end = idle + Duration::from_secs(7);
        assert_eq!(drive.pop(end), Some(Ended::Change));
        let (joules, watts) = drive.modelled(end).expect("it is modelled");
        assert!(joules.0 > 17.0 && joules.0 < 17.0 + 9.0 * 0.1 && watts.0 > 0.0, "{joules:?}");
    }
}
