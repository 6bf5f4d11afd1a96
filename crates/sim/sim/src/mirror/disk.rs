//! A mirror's disk in virtual time: the queue of what the mirror asks of it. How long that takes is the answer of the
//! model ([`TwoSpeedDisk`]), as for the daemon's emulated disks.

use ebb_mirror::{BLOCK_BYTES, DiskOp, Event, Found, Geometry, Side, Speed, Spent, Token, TwoSpeedDisk};
use ebb_types::Moment;
use std::collections::VecDeque;
use std::time::Duration;

use super::report::Work;

/// What an access is for, by where it goes.
#[derive(Clone, Copy)]
enum Area {
    /// Superblock and intent map.
    Notes,
    Log,
    Data,
}

/// What a disk does now.
enum Doing {
    Nothing,
    Access { token: Token, answer: Answer, spent: Spent, until: Moment },
    Change { until: Moment },
}

enum Answer {
    Done,
    /// This many zeroes.
    Data(u64),
    Extents(u64),
}

pub(crate) struct Disk {
    side: Side,
    pub model: TwoSpeedDisk,
    queue: VecDeque<(Token, DiskOp)>,
    doing: Doing,
    /// Where the log and the data begin.
    log_offset: u64,
    data_offset: u64,
    pub work: Work,
}

impl Disk {
    pub fn new(side: Side, model: TwoSpeedDisk, geometry: &Geometry) -> Disk {
        Disk {
            side,
            model,
            queue: VecDeque::new(),
            doing: Doing::Nothing,
            log_offset: geometry.log_offset(),
            data_offset: geometry.data_offset(),
            work: Work::default(),
        }
    }

    pub fn ask(&mut self, token: Token, op: DiskOp) {
        self.queue.push_back((token, op));
    }

    pub fn is_changing(&self) -> bool {
        matches!(self.doing, Doing::Change { .. })
    }

    /// The mirror lets a disk end everything before it changes its speed.
    pub fn change(&mut self, now: Moment, to: Speed) {
        assert!(
            matches!(self.doing, Doing::Nothing) && self.queue.is_empty(),
            "a busy disk was to change its speed"
        );
        self.doing = Doing::Change { until: self.model.begin_change(now, to) };
    }

    /// When the disk ends what it does.
    pub fn due(&self) -> Option<Moment> {
        match self.doing {
            Doing::Nothing => None,
            Doing::Access { until, .. } | Doing::Change { until } => Some(until),
        }
    }

    /// Begins the next operation, if there is one and the disk is free.
    pub fn begin(&mut self, now: Moment) {
        if !matches!(self.doing, Doing::Nothing) {
            return;
        }
        let Some((token, op)) = self.queue.pop_front() else { return };
        let (write, offset, bytes, answer) = match op {
            DiskOp::Read { offset, bytes } => (false, offset, bytes, Answer::Data(bytes)),
            DiskOp::Write { offset, pieces, .. } => {
                (true, offset, pieces.iter().map(|piece| piece.len() as u64).sum(), Answer::Done)
            }
            // As a write without its transfer.
            DiskOp::Zero { offset, .. } => (true, offset, 0, Answer::Done),
            DiskOp::Sync => return self.free(token, Answer::Done, now),
            DiskOp::Status { bytes, .. } => return self.free(token, Answer::Extents(bytes), now),
        };
        let spent = self.model.access(now, write, offset, bytes);
        self.count(write, offset, bytes, spent.total());
        self.doing = Doing::Access { token, answer, spent, until: now + spent.total() };
    }

    /// An operation that takes no time.
    fn free(&mut self, token: Token, answer: Answer, until: Moment) {
        self.doing = Doing::Access { token, answer, spent: Spent::default(), until };
    }

    fn count(&mut self, write: bool, offset: u64, bytes: u64, time: Duration) {
        let area = match offset {
            _ if offset >= self.data_offset => Area::Data,
            _ if offset >= self.log_offset => Area::Log,
            _ => Area::Notes,
        };
        let (count, seconds) = match (area, write) {
            (Area::Notes, _) => (&mut self.work.notes, &mut self.work.notes_seconds),
            (Area::Log, true) => (&mut self.work.log_writes, &mut self.work.log_write_seconds),
            (Area::Log, false) => (&mut self.work.log_reads, &mut self.work.log_read_seconds),
            (Area::Data, true) => (&mut self.work.writes, &mut self.work.write_seconds),
            (Area::Data, false) => (&mut self.work.reads, &mut self.work.read_seconds),
        };
        *count += 1;
        *seconds += time.as_secs_f64();
        if matches!((area, write), (Area::Log, true)) {
            // One block is the batch's header.
            self.work.logged_blocks += (bytes / BLOCK_BYTES).saturating_sub(1);
        }
    }

    /// Ends what the disk does, and says so. `zeroes` is what it reads.
    pub fn end(&mut self, now: Moment, zeroes: &mut Zeroes) -> Event {
        match std::mem::replace(&mut self.doing, Doing::Nothing) {
            Doing::Nothing => unreachable!("only what is due ends"),
            Doing::Access { token, answer, spent, .. } => {
                let found = match answer {
                    Answer::Done => Found::Done,
                    Answer::Data(bytes) => Found::Data(zeroes.of(bytes)),
                    Answer::Extents(bytes) => Found::Extents(vec![(bytes, false)]),
                };
                Event::Done { side: self.side, token, found, spent }
            }
            Doing::Change { .. } => {
                self.model.end_change(now);
                Event::Changed { side: self.side, changed: true }
            }
        }
    }
}

/// Slices of one buffer of zeroes: all data there is.
#[derive(Default)]
pub(crate) struct Zeroes(bytes::Bytes);

impl Zeroes {
    pub fn of(&mut self, bytes: u64) -> bytes::Bytes {
        let bytes = usize::try_from(bytes).expect("a request's length fits the memory");
        if self.0.len() < bytes {
            self.0 = bytes::Bytes::from(vec![0; bytes.next_power_of_two().max(1 << 20)]);
        }
        self.0.slice(..bytes)
    }
}
