//! Operations are carried out at once, and their ends are held back until the two-speed model says so: one access at a
//! time, first come first served. Ends are late by some microseconds, which the model's own time does not accumulate.
//! Syncs and holes take no time of their own, since the model has no write cache.

use super::ended::Ended;
use ebb_mirror::{DiskOp, Energy, Found, Speed, Spent, Token, TwoSpeedDisk};
use ebb_types::Moment;
use std::collections::{BTreeMap, BTreeSet};

struct Access {
    due: Moment,
    spent: Spent,
    /// Once it has been carried out.
    found: Option<Found>,
}

pub struct Emulated {
    disk: TwoSpeedDisk,
    /// When the last access began, which may be yet to come.
    began: Moment,
    accesses: BTreeMap<Token, Access>,
    /// Those that have been carried out.
    waiting: BTreeSet<(Moment, Token)>,
    change: Option<Moment>,
}

impl Emulated {
    pub fn new(disk: TwoSpeedDisk, now: Moment) -> Emulated {
        Emulated { disk, began: now, accesses: BTreeMap::new(), waiting: BTreeSet::new(), change: None }
    }

    pub fn begin(&mut self, now: Moment, token: Token, op: &DiskOp) {
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

    pub fn done(&mut self, now: Moment, token: Token, found: Found) -> Option<Ended> {
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

    pub fn change(&mut self, now: Moment, to: Speed) {
        self.began = now.max(self.disk.free_at());
        self.change = Some(self.disk.begin_change(self.began, to));
    }

    pub fn due(&self) -> Option<Moment> {
        let op = self.waiting.first().map(|(due, _)| *due);
        [op, self.change].into_iter().flatten().min()
    }

    pub fn pop(&mut self, now: Moment) -> Option<Ended> {
        if self.change.is_some_and(|end| end <= now) {
            self.change = None;
            self.disk.end_change(now);
            return Some(Ended::Change { changed: true });
        }
        let (_, token) = *self.waiting.first().filter(|(due, _)| *due <= now)?;
        self.waiting.pop_first();
        Some(self.end(token))
    }

    /// Energy and times since the start.
    pub fn modelled(&self, now: Moment) -> Energy {
        self.disk.energy(now.max(self.began))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_mirror::TwoSpeedModel;
    use std::time::Duration;

    fn at(millis: u64) -> Moment {
        Moment(millis * 1_000_000)
    }

    #[test]
    fn an_emulated_disk_ends_accesses_in_turn_when_the_model_says_so() {
        let model = TwoSpeedModel::paper();
        let mut drive = Emulated::new(TwoSpeedDisk::new(model.clone(), Speed::High, at(0), 3), at(0));
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
        assert_eq!(drive.pop(end), Some(Ended::Change { changed: true }));
        let energy = drive.modelled(end);
        assert!(energy.total().0 > 17.0 && energy.total().0 < 17.0 + 9.0 * 0.1, "{energy:?}");
        assert!((energy.access_high.seconds - busy.as_secs_f64()).abs() < 1e-9, "{energy:?}");
    }
}
