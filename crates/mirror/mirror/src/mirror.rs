//! The mirror: one state machine for both disks [LogStore §3].
//!
//! A request becomes an operation. It takes its blocks ([`Ops`]), waits for a durable mark if it writes ([`Marks`]),
//! and is carried out in parts on one disk or both; where a part goes is decided per disk: to the blocks' own places,
//! to the log, or, while the disk changes its speed, to memory. Policies move modes and speeds at the end of each
//! epoch; the mirror carries that out.
//!
//! | owner | state |
//! |---|---|
//! | [`Ops`] | operations, the blocks that they have, what they wait for |
//! | [`Disk`], twice | what it does and was given, its log, what it missed |
//! | [`Pair`] | modes and speeds, and who reads |
//! | [`Marks`], [`Members`] | what the disks note: which regions may differ; who has everything |
//! | [`Change`], [`Copies`], [`Scrub`], [`Epochs`], [`Closing`] | what is in progress besides requests |
//!
//! The files of this folder pass on between them what follows from an event.
//!
//! - An acknowledged write is on both disks; during a change of speed, on the other disk under a durable mark, and in
//!   memory for the disk that is away. So a crash, or the loss of either disk, loses nothing. What was flushed also
//!   survives a power failure.
//! - A read never sees what a disk lacks: blocks that are postponed or still to be copied are read from the other disk.
//! - A change of speed fails no request. What needs the disk that is away waits, and wakes it if it sleeps.

mod change;
mod closing;
mod copies;
mod ending;
mod epochs;
mod replay;
mod requests;
mod scrub;
pub mod status;

use crate::BLOCK_BYTES;
use crate::api::{Command, DiskOp, Event, Mode, Request, Side, Speed, Token};
use crate::disk::{Disk, Serving};
use crate::geometry::Geometry;
use crate::log::{Log, Place};
use crate::marks::Marks;
use crate::members::{self, Members};
use crate::op::{Op, Wait, Work};
use crate::open::Opened;
use crate::ops::Ops;
use crate::policy::{DiskFacts, Pair};
use crate::settings::{PlantedBug, Settings};
use crate::state::{Change, Closing, Copies, Epochs, Scrub};
use ebb_types::{Moment, bug};

pub struct Mirror {
    settings: Settings,
    geometry: Geometry,
    disks: [Disk; 2],
    pair: Pair,
    ops: Ops,
    next_token: u64,
    marks: Marks,
    members: Members,
    change: Option<Change>,
    copies: Option<Copies>,
    scrub: Scrub,
    /// Acknowledgements that wait until the only disk left has what memory alone has.
    late: Vec<u64>,
    /// Parts that failed because their disk is lost: they end when the other disk knows.
    orphans: Vec<(u64, Side)>,
    epochs: Epochs,
    /// Parts of reads that failed, or whose data was wrong, on one disk.
    unreadable: u64,
    closing: Closing,
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
            ops: Ops::default(),
            next_token: 0,
            marks: Marks::new(maps),
            members: Members::new(superblocks, maps_written),
            change: None,
            copies: copy.clone().map(|copy| Copies::new(copy.from, copy.ahead, region_blocks, copy.regions)),
            scrub: Scrub::default(),
            late: Vec::new(),
            orphans: Vec::new(),
            epochs: Epochs::new(),
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
        self.ops.start(Op::new(Some(id), work, blocks));
    }

    /// Does whatever can be done now.
    fn pump(&mut self, out: &mut Vec<Command>) {
        loop {
            while let Some(id) = self.ops.take_ready() {
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
            if !self.ops.any_ready() {
                break;
            }
        }
        self.pump_close(out);
    }

    /// Carries out an operation that has its blocks, from its beginning.
    fn run(&mut self, id: u64, out: &mut Vec<Command>) {
        if self.ops.overtakes(id) {
            return self.ops.give_way(id);
        }
        if self.ops.has_passed(id) {
            return self.ops.queue_again(id);
        }
        let op = &self.ops[id];
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

    /// Whether neither disk is left.
    pub(crate) fn is_lost(&self) -> bool {
        self.disks.iter().all(|disk| disk.serving == Serving::Lost)
    }
}
