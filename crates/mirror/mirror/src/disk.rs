//! One disk of the pair, as the mirror sees it. It keeps by itself what it was given to do and has not ended, and what
//! was written without it.

use crate::BLOCK_BYTES;
use crate::api::{DiskOp, Mode, Side, Speed, Token};
use crate::log::{Log, Place};
use crate::op::Wait;
use bytes::{Bytes, BytesMut};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;

/// Whether a disk takes operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Serving {
    Yes,
    /// Ends what it has, before a change of speed.
    Leaving,
    /// Changes its speed.
    Away,
    Lost,
}

/// How far the log's new beginning is. Nothing is appended meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Restarting {
    No,
    /// The superblock with the next epoch is being written.
    Noting,
    /// Reads of old entries are in flight.
    Draining,
}

/// Blocks on their way from the log to their own places.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    /// What is still to be replayed of the log as it was when this began.
    pub runs: VecDeque<(u64, Range<u64>)>,
    /// The operation that reads or writes.
    pub busy: Option<u64>,
    /// Blocks that wait to be written and have no room in the log: they came before all others, once.
    pub urged: BTreeSet<(u64, u64)>,
    /// Operations whose blocks are in their own places; they are voided together.
    pub placed: Vec<u64>,
    /// The placed ones are being synced or voided.
    pub voiding: u32,
}

impl Replay {
    pub fn is_idle(&self) -> bool {
        self.busy.is_none() && self.placed.is_empty() && self.voiding == 0
    }
}

pub(crate) struct Disk {
    pub side: Side,
    pub serving: Serving,
    speed: Speed,
    pub mode: Mode,
    pub log: Log,
    /// The log has no room for a block that it has: it is replayed, whatever the mode.
    must_replay: bool,
    pub restarting: Restarting,
    pub replay: Replay,
    /// Blocks that were written without this disk, and that it gets when it is back.
    postponed: BTreeMap<u64, Bytes>,
    waits: BTreeMap<Token, Wait>,
    /// Syncs in progress, and the last batch of the log that each covers.
    syncs: BTreeMap<Token, u64>,
    /// The other disk has noted that this one is lost.
    pub lost_noted: bool,
    speed_changes: u64,
}

impl Disk {
    pub fn new(side: Side, speed: Speed, log: Log) -> Disk {
        Disk {
            side,
            serving: Serving::Yes,
            speed,
            mode: Mode::Regular,
            log,
            must_replay: false,
            restarting: Restarting::No,
            replay: Replay::default(),
            postponed: BTreeMap::new(),
            waits: BTreeMap::new(),
            syncs: BTreeMap::new(),
            lost_noted: false,
            speed_changes: 0,
        }
    }

    pub fn speed(&self) -> Speed {
        self.speed
    }

    pub fn speed_changes(&self) -> u64 {
        self.speed_changes
    }

    pub fn came_to(&mut self, speed: Speed) {
        self.speed = speed;
        self.speed_changes += 1;
    }

    /// It was given an operation. A sync covers the log's batches that have ended.
    pub fn issued(&mut self, token: Token, op: &DiskOp, wait: Wait) {
        if *op == DiskOp::Sync {
            self.syncs.insert(token, self.log.complete());
        }
        self.waits.insert(token, wait);
    }

    /// An operation has ended. Returns what it was for.
    pub fn ended(&mut self, token: Token, ok: bool) -> Wait {
        let wait = self.waits.remove(&token).expect("only what was issued ends");
        if let Some(batch) = self.syncs.remove(&token).filter(|_| ok) {
            self.log.synced(batch);
        }
        wait
    }

    /// Whether all that it was given has ended.
    pub fn is_idle(&self) -> bool {
        self.waits.is_empty()
    }

    /// Whether entries of the log are being read.
    pub fn reads_log(&self) -> bool {
        self.waits.values().any(|wait| matches!(wait, Wait::Read { slot: Some(_), .. }))
    }

    pub fn serves(&self) -> bool {
        self.serving == Serving::Yes
    }

    /// Whether what the mirror itself notes can be written: until the disk has left.
    pub fn is_writable(&self) -> bool {
        matches!(self.serving, Serving::Yes | Serving::Leaving)
    }

    /// Whether a write of these blocks goes to the log; `None`: it can go nowhere, because the log has them and no room
    /// to void them.
    pub fn logs(&self, blocks: &Range<u64>) -> Option<bool> {
        let room = self.restarting == Restarting::No && self.log.has_room(blocks.end - blocks.start);
        match room && self.mode == Mode::Log {
            true => Some(true),
            false if self.log.has_any(blocks) && !self.log.can_overwrite() => None,
            false => Some(false),
        }
    }

    /// The log has no room for these blocks, which it has: it is replayed, whatever the mode, and these blocks first.
    pub fn urge(&mut self, blocks: &Range<u64>) {
        self.must_replay = true;
        if self.replay.urged.insert((blocks.start, blocks.end)) {
            for (run, place) in self.log.runs(blocks.clone()) {
                if let Place::Slot(slot) = place {
                    self.replay.runs.push_front((slot, run));
                }
            }
        }
    }

    /// Whether its log is replayed, whatever the mode.
    pub fn must_replay(&self) -> bool {
        self.must_replay
    }

    /// There is room again, or the log begins again.
    pub fn calm(&mut self) {
        self.must_replay = false;
        self.replay.urged.clear();
    }

    /// The log begins again, on the disk: no sync in progress covers anything of it.
    pub fn restart_log(&mut self) {
        self.log.restart();
        self.syncs.clear();
        self.calm();
        (self.restarting, self.replay.voiding) = (Restarting::Draining, 0);
    }

    /// Whether it lacks anything that was postponed.
    pub fn is_behind(&self) -> bool {
        !self.postponed.is_empty()
    }

    pub fn postponed_blocks(&self) -> u64 {
        self.postponed.len() as u64
    }

    /// Whether it lacks some of the blocks.
    pub fn lacks(&self, blocks: &Range<u64>) -> bool {
        self.postponed.range(blocks.clone()).next().is_some()
    }

    pub fn postpone(&mut self, block: u64, payload: &Bytes) {
        let size = BLOCK_BYTES as usize;
        for n in 0..payload.len() / size {
            self.postponed.insert(block + n as u64, payload.slice(n * size..(n + 1) * size));
        }
    }

    /// The first run of postponed blocks from `from` on.
    pub fn next_postponed(&self, from: u64, most: u64) -> Option<Range<u64>> {
        let (&first, _) = self.postponed.range(from..).next()?;
        let mut end = first + 1;
        while end - first < most && self.postponed.contains_key(&end) {
            end += 1;
        }
        Some(first..end)
    }

    /// The first run of these blocks that is postponed; empty: there is none.
    pub fn missed(&self, blocks: &Range<u64>) -> (u64, Bytes) {
        let mut data = BytesMut::new();
        let mut first = blocks.start;
        for (&block, payload) in self.postponed.range(blocks.clone()) {
            if data.is_empty() {
                first = block;
            } else if block != first + data.len() as u64 / BLOCK_BYTES {
                break;
            }
            data.extend_from_slice(payload);
        }
        (first, data.freeze())
    }

    /// A write to this disk takes the place of what was postponed.
    pub fn drop_postponed(&mut self, blocks: &Range<u64>) {
        self.postponed.extract_if(blocks.clone(), |_, _| true).for_each(drop);
    }

    /// It never gets what was postponed.
    pub fn forget_postponed(&mut self) {
        self.postponed.clear();
    }
}
