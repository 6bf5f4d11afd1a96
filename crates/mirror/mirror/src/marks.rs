//! Which regions may differ between the disks: the write-intent map, as md keeps one, so that a resync touches little.
//!
//! A write to a region waits until its mark is durable: *dirty* on both disks when both take the write, *ahead* on the
//! one disk that takes it while the other is away. Marks of regions in use stay; those that have been quiet for long
//! are cleared together after a sync of both. One write of the map is under way at a time, to all disks that serve;
//! what is marked meanwhile waits for the next.
//!
//! A mark costs an access far from the data on each disk, so regions are large and marks stay for minutes; a resync
//! after a crash then copies more. With 65,000 regions and marks of a minute, notes were 23 % of the disks' work in
//! LogStore's Proxy at 7x, and the disks at high speed for 23 % of the time; now they are 4 %, and the disks stay at
//! low speed.

use crate::api::Side;
use crate::intent::IntentMap;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Epochs without a write after which a region's mark may go, and between two clearings.
pub(crate) const QUIET_EPOCHS: u64 = 100;

/// What a mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mark {
    /// The copies may differ; none of the differences was acknowledged.
    Dirty,
    /// This disk has what the other lacks.
    Ahead(Side),
}

pub(crate) struct Marks {
    maps: [IntentMap; 2],
    /// Set since the last write of the map began.
    fresh: BTreeSet<(u32, Mark)>,
    /// Being written.
    moving: BTreeSet<(u32, Mark)>,
    /// Writes of the map that have not ended.
    left: u32,
    /// Operations that wait for the write under way, and for the one after it.
    waiting: Vec<u64>,
    next: Vec<u64>,
    /// Something was cleared since the last write.
    stale: bool,
    users: BTreeMap<u32, u32>,
    /// The epoch in which a region was last written.
    touched: BTreeMap<u32, u64>,
    /// Regions being cleared, and the syncs that have not ended.
    clearing: Option<(Vec<u32>, u32)>,
}

impl Marks {
    /// `maps` may have marks that are not on the disks yet: all are written before any is relied on.
    pub fn new(maps: [IntentMap; 2]) -> Marks {
        let dirty = maps[0].dirty.iter().map(|region| (region, Mark::Dirty));
        let ahead =
            |side: Side| maps[side.index()].ahead.iter().map(move |region| (region, Mark::Ahead(side)));
        Marks {
            fresh: dirty.chain(ahead(Side::A)).chain(ahead(Side::B)).collect(),
            maps,
            moving: BTreeSet::new(),
            left: 0,
            waiting: Vec::new(),
            next: Vec::new(),
            // Also without a mark: from here on both disks have the same number.
            stale: true,
            users: BTreeMap::new(),
            touched: BTreeMap::new(),
            clearing: None,
        }
    }

    fn regions(&self, blocks: &Range<u64>) -> Range<u32> {
        let map = &self.maps[0];
        map.region_of(blocks.start)..map.region_of(blocks.end - 1) + 1
    }

    fn is_set(&self, region: u32, mark: Mark) -> bool {
        match mark {
            Mark::Dirty => self.maps[0].dirty.contains(region),
            Mark::Ahead(side) => self.maps[side.index()].ahead.contains(region),
        }
    }

    fn set(&mut self, region: u32, mark: Mark) {
        if self.is_set(region, mark) {
            return;
        }
        match mark {
            Mark::Dirty => {
                for map in &mut self.maps {
                    map.dirty.insert(region);
                }
            }
            Mark::Ahead(side) => {
                self.maps[side.index()].ahead.insert(region);
            }
        }
        self.fresh.insert((region, mark));
    }

    /// Whether the blocks have the mark, durably. If not, they are marked, and the operation is among those that a
    /// later [`Marks::written`] returns.
    pub fn mark(&mut self, op: u64, blocks: &Range<u64>, mark: Mark) -> bool {
        let mut durable = true;
        for region in self.regions(blocks) {
            let key = (region, mark);
            self.set(region, mark);
            durable &= !self.fresh.contains(&key) && !self.moving.contains(&key);
        }
        if !durable {
            let is_fresh = self.regions(blocks).any(|region| self.fresh.contains(&(region, mark)));
            if is_fresh { self.next.push(op) } else { self.waiting.push(op) }
        }
        durable
    }

    /// Every dirty region is ahead on this disk from now on: the other leaves, and what is in use will be written
    /// without it.
    pub fn lead(&mut self, side: Side) {
        for region in self.maps[side.index()].dirty.iter().collect::<Vec<_>>() {
            self.set(region, Mark::Ahead(side));
        }
    }

    /// The other disk has all that this one has, but perhaps not durably: what was ahead differs as any dirty region
    /// may.
    pub fn level(&mut self, side: Side) {
        for region in self.maps[side.index()].ahead.iter().collect::<Vec<_>>() {
            self.set(region, Mark::Dirty);
        }
        // Also without a mark: the other disk gets the number that this one has.
        self.stale = true;
    }

    /// The other disk has everything again.
    pub fn follow(&mut self, side: Side) {
        let map = &mut self.maps[side.index()];
        for region in map.ahead.iter().collect::<Vec<_>>() {
            map.ahead.remove(region);
            self.fresh.remove(&(region, Mark::Ahead(side)));
            self.stale = true;
        }
    }

    pub fn begin(&mut self, blocks: &Range<u64>) {
        for region in self.regions(blocks) {
            *self.users.entry(region).or_default() += 1;
        }
    }

    pub fn end(&mut self, blocks: &Range<u64>, epoch: u64) {
        for region in self.regions(blocks) {
            let users = self.users.get_mut(&region).expect("it is in use");
            *users -= 1;
            if *users == 0 {
                self.users.remove(&region);
            }
            self.touched.insert(region, epoch);
        }
    }

    /// Whether the map must be written, and no write is under way.
    pub fn is_due(&self) -> bool {
        self.left == 0 && (!self.fresh.is_empty() || self.stale)
    }

    /// Whether something is marked or cleared and not durably so.
    pub fn is_busy(&self) -> bool {
        self.left > 0 || !self.fresh.is_empty() || self.stale
    }

    /// Begins a write to `disks` disks.
    pub fn begin_write(&mut self, disks: u32) {
        assert!(self.left == 0, "the map is being written");
        self.moving = std::mem::take(&mut self.fresh);
        self.waiting = std::mem::take(&mut self.next);
        self.stale = false;
        self.left = disks;
    }

    /// Begins a write to the one disk that has an older map. What is marked still waits for a write to both.
    pub fn begin_level(&mut self) {
        assert!(self.left == 0, "the map is being written");
        self.left = 1;
    }

    /// The map as this disk is to have it.
    pub fn map(&self, side: Side) -> &IntentMap {
        &self.maps[side.index()]
    }

    /// One disk has the map. Once all have, returns the operations that waited for it.
    pub fn written(&mut self) -> Vec<u64> {
        self.left -= 1;
        if self.left > 0 {
            return Vec::new();
        }
        self.moving.clear();
        std::mem::take(&mut self.waiting)
    }

    /// Dirty regions that no operation uses and that have been quiet for long.
    fn quiet(&self, epoch: u64) -> Vec<u32> {
        let is_quiet = |region: &u32| {
            !self.users.contains_key(region)
                && self.touched.get(region).is_none_or(|at| at + QUIET_EPOCHS <= epoch)
        };
        self.maps[0].dirty.iter().filter(is_quiet).collect()
    }

    pub fn is_clearing(&self) -> bool {
        self.clearing.is_some()
    }

    /// Begins to clear the regions that are quiet: after a sync of both disks. `false`: none is.
    pub fn begin_clearing(&mut self, epoch: u64) -> bool {
        let quiet = self.quiet(epoch);
        let any = !quiet.is_empty();
        self.clearing = any.then_some((quiet, 2));
        any
    }

    pub fn stop_clearing(&mut self) {
        self.clearing = None;
    }

    /// One disk is synced.
    pub fn clear_synced(&mut self, epoch: u64) {
        let Some((_, left)) = &mut self.clearing else { return };
        *left -= 1;
        if *left == 0
            && let Some((regions, _)) = self.clearing.take()
        {
            self.clear(&regions, epoch);
        }
    }

    /// Clears those of the regions that are still quiet: both disks were synced since.
    fn clear(&mut self, regions: &[u32], epoch: u64) {
        let quiet: BTreeSet<u32> = self.quiet(epoch).into_iter().collect();
        for region in regions.iter().filter(|region| quiet.contains(region)) {
            for map in &mut self.maps {
                map.dirty.remove(*region);
            }
            self.touched.remove(region);
            self.stale = true;
        }
    }

    pub fn dirty_regions(&self) -> u64 {
        self.maps[0].dirty.len().into()
    }

    pub fn has_dirty(&self) -> bool {
        !self.maps[0].dirty.is_empty()
    }
}
