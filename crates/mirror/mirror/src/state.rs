//! What is in progress besides clients' requests: a change of speed, copies from one disk to the other, a pass of
//! comparison, the present epoch, the end.

use crate::BLOCK_BYTES;
use crate::api::{Command, Side, Speed};
use ebb_types::Moment;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// Blocks copied by one operation, and operations at once.
const COPY_BLOCKS: u64 = 64;
const COPYING: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Draining,
    Syncing,
    Noting,
    Moving,
    /// It has come to a low speed at which it serves nothing, and stays until it is wanted.
    Asleep,
    Waking,
    Returning,
    /// Nothing is postponed any more. Writes that took the place of what was are still in flight.
    Landing,
    /// All is written; it is being synced and noted.
    Settling,
}

#[derive(Debug)]
pub(crate) struct Change {
    pub side: Side,
    pub to: Speed,
    pub step: Step,
    /// The policy wants the sleeping disk.
    pub wanted: bool,
    /// Since when the sleeping disk lacks something, to the epoch.
    pub behind_since: Option<Moment>,
    /// Operations that write what was missed, or take its place.
    pub returning: Vec<u64>,
    /// Where the search for missed blocks continues.
    pub next: u64,
}

impl Change {
    pub fn new(side: Side, to: Speed) -> Change {
        Change {
            side,
            to,
            step: Step::Draining,
            wanted: false,
            behind_since: None,
            returning: Vec::new(),
            next: 0,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Copies {
    pub from: Side,
    /// The source has what was acknowledged and the other disk lacks. Otherwise either copy is as good.
    pub ahead: bool,
    pub region_blocks: u64,
    /// Not copied yet, or not readable.
    pub pending: BTreeSet<u64>,
    pub waiting: VecDeque<u64>,
    /// The region being copied, and its blocks that no operation has.
    pub current: Option<(u64, Range<u64>)>,
    pub busy: BTreeSet<u64>,
    /// A block of the present region could not be read; of any region.
    pub failed: bool,
    pub any_failed: bool,
    pub settling: bool,
    /// Regions copied since the progress was last noted; of a rebuild.
    pub unnoted: u32,
    /// The blocks that are copied and being synced.
    pub noting: Option<u64>,
}

impl Copies {
    pub fn new(from: Side, ahead: bool, region_blocks: u64, pending: BTreeSet<u64>) -> Copies {
        let waiting = pending.iter().copied().collect();
        Copies {
            from,
            ahead,
            region_blocks,
            pending,
            waiting,
            current: None,
            busy: BTreeSet::new(),
            failed: false,
            any_failed: false,
            settling: false,
            unnoted: 0,
            noting: None,
        }
    }

    pub fn to(&self) -> Side {
        !self.from
    }

    pub fn is_settling(&self, side: Side) -> bool {
        self.settling && self.to() == side
    }

    /// Whether any of the blocks is not copied yet.
    pub fn concerns(&self, blocks: &Range<u64>) -> bool {
        let (first, last) =
            (blocks.start / self.region_blocks, blocks.end.saturating_sub(1) / self.region_blocks);
        self.pending.range(first..=last).next().is_some()
    }

    pub fn left_bytes(&self) -> u64 {
        self.pending.len() as u64 * self.region_blocks * BLOCK_BYTES
    }

    /// The next blocks to copy.
    pub fn next(&mut self, data_blocks: u64) -> Option<Range<u64>> {
        if self.busy.len() == COPYING {
            return None;
        }
        if self.current.is_none() && self.busy.is_empty() {
            let region = self.waiting.pop_front()?;
            let first = region * self.region_blocks;
            self.current = Some((region, first..(first + self.region_blocks).min(data_blocks)));
        }
        let (_, rest) = self.current.as_mut()?;
        let end = (rest.start + COPY_BLOCKS).min(rest.end);
        let blocks = std::mem::replace(&mut rest.start, end)..end;
        (!blocks.is_empty()).then_some(blocks)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Scrub {
    /// The next block; `None`: no pass is under way.
    pub next: Option<u64>,
    pub busy: bool,
    pub compared_blocks: u64,
    pub differing_blocks: u64,
    pub first_differing: Vec<u64>,
    pub passes: u64,
}

impl Scrub {
    pub fn is_running(&self) -> bool {
        self.next.is_some()
    }
}

/// The epochs, by which the policy measures and decides.
#[derive(Debug)]
pub(crate) struct Epochs {
    number: u64,
    /// When the present one began, and whether its end is awaited.
    began: Moment,
    alarm: Option<Moment>,
}

impl Epochs {
    pub fn new() -> Epochs {
        Epochs { number: 0, began: Moment::ZERO, alarm: None }
    }

    pub fn number(&self) -> u64 {
        self.number
    }

    /// Ends the present one if it is at least that long. Returns its length.
    pub fn end(&mut self, now: Moment, least: Duration) -> Option<Duration> {
        let length = now.since(self.began);
        if length < least {
            return None;
        }
        (self.number, self.began) = (self.number + 1, now);
        Some(length)
    }

    /// Awaits the end of an epoch of this length; `None`: of none, until something happens. Returns what changes.
    pub fn await_end(&mut self, now: Moment, length: Option<Duration>) -> Option<Command> {
        if length.is_some() && self.alarm.is_none() {
            self.began = now;
        }
        let wanted = length.map(|length| self.began + length);
        (wanted != std::mem::replace(&mut self.alarm, wanted)).then_some(Command::WakeAt(wanted))
    }
}

/// How far the end of the mirror is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    No,
    Asked,
    /// Both disks are being synced; how many of the syncs have not ended.
    Syncing(u32),
    Noting,
}
