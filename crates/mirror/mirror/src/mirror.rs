//! The mirror: one state machine for both disks [LogStore §3].
//!
//! A request becomes an operation. It takes its blocks ([`Locks`]), waits for a durable mark if it writes ([`Marks`]),
//! and is carried out in parts on one disk or both; where a part goes is decided per disk: to the blocks' own places,
//! to the log, or, while the disk changes its speed, to memory. Policies move modes and speeds at the end of each
//! epoch; the mirror carries that out.
//!
//! - An acknowledged write is on both disks; during a change of speed, on the other disk under a durable mark, and in
//!   memory for the disk that is away. So a crash, or the loss of either disk, loses nothing. What was flushed also
//!   survives a power failure.
//! - A read never sees what a disk lacks: blocks that are postponed or still to be copied are read from the other disk.
//! - A change of speed fails no request. What needs the disk that is away waits, and wakes it if it sleeps.

use crate::BLOCK_BYTES;
use crate::api::{Command, DiskOp, Event, Mode, Request, Side, Speed, Token};
use crate::disk::{Disk, Serving};
use crate::geometry::Geometry;
use crate::locks::Locks;
use crate::log::{Log, Place};
use crate::marks::Marks;
use crate::members::{self, Members};
use crate::op::{Op, Step, Wait, Work};
use crate::open::Opened;
use crate::policy::{DiskFacts, Pair};
use crate::settings::{PlantedBug, Settings};
use crate::state::{Change, Closing, Copies, Scrub};
use ebb_types::{Moment, bug};
use std::collections::{BTreeMap, VecDeque};

pub struct Mirror {
    pub(crate) settings: Settings,
    pub(crate) geometry: Geometry,
    pub(crate) disks: [Disk; 2],
    pub(crate) pair: Pair,
    pub(crate) locks: Locks,
    pub(crate) ops: BTreeMap<u64, Op>,
    next_op: u64,
    next_token: u64,
    pub(crate) marks: Marks,
    pub(crate) members: Members,
    pub(crate) change: Option<Change>,
    pub(crate) copies: Option<Copies>,
    pub(crate) scrub: Scrub,
    /// Operations whose blocks or marks have become free.
    pub(crate) ready: VecDeque<u64>,
    /// Operations that wait for a disk, for the end of a change, or for room.
    pub(crate) held: Vec<u64>,
    /// Operations that wait for room in a log, without their blocks.
    pub(crate) stuck: Vec<u64>,
    /// Acknowledgements that wait until the only disk left has what memory alone has.
    pub(crate) late: Vec<u64>,
    /// Parts that failed because their disk is lost: they end when the other disk knows.
    pub(crate) orphans: Vec<(u64, Side)>,
    pub(crate) epoch: u64,
    /// When the present epoch began, and whether its end is awaited.
    pub(crate) epoch_began: Moment,
    pub(crate) alarm: Option<Moment>,
    /// Regions being cleared, and the syncs that have not ended.
    pub(crate) clearing: Option<(Vec<u32>, u32)>,
    /// Number of the last intent map that was written.
    pub(crate) map_written: u64,
    /// Parts of reads that failed, or whose data was wrong, on one disk.
    pub(crate) unreadable: u64,
    pub(crate) closing: Closing,
    /// The number of client requests that are not answered, and since when it is that number.
    unanswered: (u64, Moment),
}

impl Mirror {
    /// Begins with what was found on the disks. `facts`, by side; both disks run at `speeds`. Appends what is to be
    /// done first.
    pub fn new(
        settings: Settings,
        facts: [DiskFacts; 2],
        speeds: [Speed; 2],
        opened: Opened,
        out: &mut Vec<Command>,
    ) -> Mirror {
        assert!(settings.sleep.is_none() || speeds == [Speed::High; 2], "disks that were read are awake");
        let Opened { geometry, superblocks, maps, maps_written, logs, copy, lost } = opened;
        let fills = logs.each_ref().map(Log::fill);
        let region_blocks = geometry.region_bytes() / BLOCK_BYTES;
        let [a, b] = logs;
        let mut mirror = Mirror {
            pair: Pair::new(&settings, facts, speeds, fills),
            settings,
            geometry,
            disks: [Disk::new(Side::A, speeds[0], a), Disk::new(Side::B, speeds[1], b)],
            locks: Locks::default(),
            ops: BTreeMap::new(),
            next_op: 0,
            next_token: 0,
            marks: Marks::new(maps),
            members: Members::new(superblocks, maps_written),
            change: None,
            copies: copy.clone().map(|copy| Copies::new(copy.from, copy.ahead, region_blocks, copy.regions)),
            scrub: Scrub::default(),
            ready: VecDeque::new(),
            held: Vec::new(),
            stuck: Vec::new(),
            late: Vec::new(),
            orphans: Vec::new(),
            epoch: 0,
            epoch_began: Moment::ZERO,
            alarm: None,
            clearing: None,
            map_written: maps_written[0].max(maps_written[1]),
            unreadable: 0,
            closing: Closing::No,
            unanswered: (0, Moment::ZERO),
        };
        for side in Side::BOTH {
            mirror.disk(side).mode = mirror.pair.mode(side);
        }
        match lost {
            Some(side) => mirror.lose(side, out),
            None => {
                // First the source: what the other disk notes must not make it look newer before.
                let ahead = copy.filter(|copy| copy.ahead).map(|copy| members::Change::Ahead(copy.from));
                ahead
                    .into_iter()
                    .chain([members::Change::Open])
                    .for_each(|change| mirror.members.request(change));
            }
        }
        mirror.pump(out);
        mirror
    }

    pub fn on(&mut self, now: Moment, event: Event, out: &mut Vec<Command>) {
        let (first, asked) = (out.len(), matches!(event, Event::Request { .. }));
        match event {
            Event::Request { id, request } => self.request(id, request),
            Event::Done { side, token, found, spent } => self.done(side, token, found, spent, out),
            Event::Changed { side, changed } => self.changed(side, changed),
            Event::Tick => self.tick(now, out),
            Event::Scrub => self.begin_scrub(),
            Event::Close => self.closing = Closing::Asked,
        }
        self.pump(out);
        self.set_alarm(now, out);
        let replies = out[first..].iter().filter(|command| matches!(command, Command::Reply { .. }));
        let (answered, (unanswered, since)) = (replies.count() as u64, self.unanswered);
        self.pair.waited(unanswered, now.since(since), answered);
        let open = unanswered + u64::from(asked);
        if answered > open {
            bug(out, "more requests are answered than there are");
        }
        self.unanswered = (open.saturating_sub(answered), now);
    }

    pub(crate) fn has(&self, bug: PlantedBug) -> bool {
        #[cfg(feature = "planted-bugs")]
        let planted = self.settings.planted;
        #[cfg(not(feature = "planted-bugs"))]
        let planted = None;
        planted == Some(bug)
    }

    /// Where the disk's writes go.
    pub fn mode(&self, side: Side) -> Mode {
        self.disks[side.index()].mode
    }

    /// Filtered and smoothed, 0 to 1; `None` before the first epoch.
    pub fn utilisation(&self, side: Side) -> Option<f64> {
        self.pair.utilisation(side)
    }

    /// Blocks that the disk has in its log and not in their own places.
    pub fn logged_blocks(&self, side: Side) -> u64 {
        self.disks[side.index()].log.logged_blocks()
    }

    /// Where a run of blocks is on a disk, in bytes; if it is in the log, also its slot.
    pub(crate) fn at(&self, block: u64, place: Place) -> (u64, Option<u64>) {
        match place {
            Place::Regular => (self.geometry.data_at(block), None),
            Place::Slot(slot) => (self.geometry.log_at(slot), Some(slot)),
        }
    }

    fn request(&mut self, id: u64, request: Request) {
        let (work, blocks) = match request {
            Request::Read { block, count } => {
                (Work::Read { side: Side::A, other: false }, block..block + u64::from(count))
            }
            Request::Write { block, payload, fua } => {
                let end = block + payload.len() as u64 / BLOCK_BYTES;
                (Work::Write { payload, fua }, block..end)
            }
            Request::Flush => (Work::Flush, 0..0),
            Request::Zero { block, count, fua, may_trim } => {
                (Work::Zero { may_trim, fua }, block..block + count)
            }
            Request::Status { block, count } => (Work::Status, block..block + count),
        };
        assert!(blocks.end <= self.geometry.data_blocks(), "{blocks:?} is beyond the mirror's end");
        self.start(Op::new(Some(id), work, blocks));
    }

    /// Begins an operation: it runs as soon as it has its blocks.
    pub(crate) fn start(&mut self, op: Op) -> u64 {
        let id = self.next_op;
        self.next_op += 1;
        if op.blocks.is_empty() || self.locks.take(id, op.blocks.clone(), op.usage()) {
            self.ready.push_back(id);
        }
        self.ops.insert(id, op);
        id
    }

    /// Does whatever can be done now.
    fn pump(&mut self, out: &mut Vec<Command>) {
        loop {
            while let Some(id) = self.ready.pop_front() {
                self.run(id, out);
            }
            self.pump_change(out);
            self.pump_copies(out);
            self.pump_scrub();
            for side in Side::BOTH {
                self.pump_replay(side, out);
            }
            self.pump_marks(out);
            self.pump_members(out);
            for side in Side::BOTH {
                self.pump_log(side, out);
            }
            if self.ready.is_empty() {
                break;
            }
        }
        self.pump_close(out);
    }

    /// Carries out an operation that has its blocks, from its beginning.
    fn run(&mut self, id: u64, out: &mut Vec<Command>) {
        if self.overtakes(id) {
            return self.give_way(id);
        }
        if self.has_passed(id) {
            return self.queue_again(id);
        }
        let op = &self.ops[&id];
        match op.work {
            Work::Read { .. } => self.run_read(id, out),
            Work::Write { .. } | Work::Zero { .. } => self.run_write(id, out),
            Work::Flush => self.run_flush(id, out),
            Work::Status => self.run_status(id, out),
            Work::Return { side } => self.run_return(id, side, out),
            Work::Replay { side, slot } => self.run_replay(id, side, slot, out),
            Work::Copy { from } => self.run_copy(id, from, out),
            Work::Compare { .. } => self.run_compare(id, out),
        }
    }

    pub(crate) fn disk(&mut self, side: Side) -> &mut Disk {
        &mut self.disks[side.index()]
    }

    /// Disks that take operations.
    pub(crate) fn serving(&self) -> impl Iterator<Item = Side> + use<> {
        let serves = self.disks.each_ref().map(Disk::serves);
        Side::BOTH.into_iter().filter(move |side| serves[side.index()])
    }

    pub(crate) fn issue(&mut self, side: Side, wait: Wait, op: DiskOp, out: &mut Vec<Command>) {
        let token = Token(self.next_token);
        self.next_token += 1;
        self.disk(side).issued(token, &op, wait);
        out.push(Command::Disk { side, token, op });
    }

    /// Puts an operation aside until something changes: a disk returns, a change ends, a log has room.
    pub(crate) fn hold(&mut self, id: u64) {
        self.held.push(id);
    }

    /// As [`Mirror::hold`], without the operation's blocks: what it waits for needs them.
    pub(crate) fn give_way(&mut self, id: u64) {
        let op = self.ops.get_mut(&id).expect("it is in progress");
        debug_assert_eq!(op.left, [0; 2], "what gives its blocks away writes none of them");
        op.step = Step::Waiting;
        let mut ready = Vec::new();
        self.locks.release(id, &op.blocks, &mut ready);
        self.ready.extend(ready);
        self.stuck.push(id);
    }

    /// Whether an earlier write of a client gave way that writes some of the same blocks. Its connection may have gone:
    /// what is newer must come after it all the same.
    fn overtakes(&self, id: u64) -> bool {
        let op = &self.ops[&id];
        op.is_clients_write()
            && self.stuck.iter().any(|earlier| {
                let other = &self.ops[earlier];
                let overlaps = other.blocks.start < op.blocks.end && op.blocks.start < other.blocks.end;
                *earlier < id && overlaps && other.is_clients_write()
            })
    }

    /// Whether an earlier write of a client, which gave way, waits for some of these blocks again.
    fn has_passed(&self, id: u64) -> bool {
        let op = &self.ops[&id];
        op.is_clients_write()
            && self.locks.waiting(&op.blocks).any(|other| other < id && self.ops[&other].is_clients_write())
    }

    /// Gives back an operation's blocks, and takes them after those that wait for them.
    fn queue_again(&mut self, id: u64) {
        let op = &self.ops[&id];
        let (blocks, usage, mut ready) = (op.blocks.clone(), op.usage(), Vec::new());
        self.locks.release(id, &blocks, &mut ready);
        let again = self.locks.take(id, blocks, usage);
        self.ready.extend(ready.into_iter().chain(again.then_some(id)));
    }

    pub(crate) fn release_held(&mut self) {
        self.stuck.sort_unstable();
        self.ready.extend(self.held.drain(..));
        for id in std::mem::take(&mut self.stuck) {
            let op = &self.ops[&id];
            if self.locks.take(id, op.blocks.clone(), op.usage()) {
                self.ready.push_back(id);
            }
        }
    }

    /// Whether neither disk is left.
    pub(crate) fn is_lost(&self) -> bool {
        self.disks.iter().all(|disk| disk.serving == Serving::Lost)
    }
}
