//! Write leases: object ids held by a gateway's run, and the contents of packs.
//!
//! A gateway leases object ids before it writes to them. Bytes under a lease are neither named nor garbage yet. Naming
//! an object's bytes, or giving them up, ends its lease; a run that falls silent loses everything it holds, and that
//! becomes garbage. So every byte has an owner, whenever a gateway dies. Bytes that are not held cannot be named: a
//! late or repeated command never names bytes that were freed.
//!
//! A serial number is leased once, in one pool: leases have it with its pool, so that what a dead gateway left is freed
//! there.
//!
//! A pack holds the bytes of many objects. Its lease lasts until its run closes it; a closed pack that names nothing is
//! garbage as a whole.

use crate::api::{Planted, PlantedBug};
use ebb_types::{BLOCK_BYTES, Extent, NamespaceError, ObjectId, PoolId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Leases {
    /// By the run's client id.
    runs: BTreeMap<u64, Run>,
    packs: BTreeMap<ObjectId, Pack>,
    /// Serial numbers below this were leased before, in whichever pool, and are never leased again.
    pub(super) leased_to: u64,
    /// Counts signs of life.
    stamp: u64,
    #[serde(skip)]
    pub(super) planted: Planted,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Run {
    stamp: u64,
    /// With the upper bound of the bytes written to each.
    objects: BTreeMap<ObjectId, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Pack {
    /// Extents that have a name.
    named: u64,
    bytes: u64,
    /// Bytes of these extents, and of all that ever had a name, in whole blocks.
    live: u64,
    ever: u64,
}

fn in_blocks(extent: &Extent) -> u64 {
    extent.len.next_multiple_of(BLOCK_BYTES as u64)
}

fn whole(object: ObjectId, bytes: u64) -> Extent {
    Extent { object, offset: 0, len: bytes, shared: false, crc: 0 }
}

impl Leases {
    /// Records a sign of life.
    pub fn heard(&mut self, run: u64) {
        self.stamp += 1;
        if let Some(run) = self.runs.get_mut(&run) {
            run.stamp = self.stamp;
        }
    }

    /// Forgets what is leased, without making it garbage; serial numbers below `objects` are never leased again.
    pub fn rescue(&mut self, objects: u64, jump: u64) {
        debug_assert!(objects >= self.leased_to, "a serial number is leased once");
        self.runs.clear();
        self.packs.retain(|_, pack| pack.named > 0);
        self.leased_to = objects;
        self.stamp += jump;
    }

    /// Leases fresh ids, all in the pool of the first; or lets a held object grow to `bytes`.
    pub fn lease(&mut self, run: u64, first: ObjectId, count: u32, bytes: u64) -> Result<(), NamespaceError> {
        let serials = first.serial().0..first.serial().0 + u64::from(count);
        let id = |serial: u64| ObjectId(serial).in_pool(first.pool());
        let held = |serial: u64| self.runs.get(&run).is_some_and(|r| r.objects.contains_key(&id(serial)));
        let Some(last) = serials.clone().next_back() else { return Ok(()) };
        let is_fresh = serials.start >= self.leased_to && id(last).serial().0 == last;
        if !is_fresh && !serials.clone().all(held) {
            return Err(NamespaceError::NotLeased);
        }
        debug_assert!(!is_fresh || !self.has(id(serials.start)), "a serial number is leased once");
        self.leased_to = self.leased_to.max(serials.end);
        let run = self.runs.entry(run).or_insert(Run { stamp: self.stamp, ..Run::default() });
        for serial in serials {
            let reach = run.objects.entry(id(serial)).or_default();
            *reach = bytes.max(*reach);
        }
        Ok(())
    }

    pub fn check(&self, run: u64, extents: &[Extent]) -> Result<(), NamespaceError> {
        let held = |e: &Extent| self.runs.get(&run).is_some_and(|r| r.objects.contains_key(&e.object));
        if extents.iter().all(|e| e.len == 0 || held(e)) { Ok(()) } else { Err(NamespaceError::NotLeased) }
    }

    /// Names these extents; they passed [`Leases::check`].
    pub fn name(&mut self, run: u64, extents: &[Extent]) {
        debug_assert!(self.check(run, extents).is_ok(), "only what is held is named");
        for extent in extents.iter().filter(|e| e.len > 0) {
            let Some(run) = self.runs.get_mut(&run) else { return };
            if extent.shared {
                let bytes = run.objects.get(&extent.object).copied().unwrap_or(extent.len);
                let pack = self.packs.entry(extent.object).or_insert(Pack { bytes, ..Pack::default() });
                pack.named += 1;
                pack.live += in_blocks(extent);
                pack.ever += in_blocks(extent);
                debug_assert!(pack.live <= pack.ever, "what has a name was named");
            } else {
                run.objects.remove(&extent.object);
                debug_assert!(!self.has(extent.object), "what has a name has no lease");
            }
        }
        self.forget_empty(run);
    }

    /// The extent has lost its name. Returns what is garbage now.
    pub fn unname(&mut self, extent: Extent) -> Extent {
        if !extent.shared {
            return extent;
        }
        debug_assert!(
            self.packs.contains_key(&extent.object),
            "a pack is known as long as it names anything"
        );
        if let Some(pack) = self.packs.get_mut(&extent.object) {
            debug_assert!(pack.named > 0 && pack.live >= in_blocks(&extent), "what loses its name had one");
            pack.named = pack.named.saturating_sub(1);
            pack.live = pack.live.saturating_sub(in_blocks(&extent));
        }
        self.dead_pack(extent.object).unwrap_or(extent)
    }

    /// The run gives up unnamed bytes. What it does not hold is named or already garbage.
    pub fn give_up(&mut self, run: u64, extent: Extent) -> Option<Extent> {
        let held = self.runs.get_mut(&run)?.objects.get(&extent.object).copied()?;
        if extent.shared {
            return Some(extent);
        }
        self.runs.get_mut(&run)?.objects.remove(&extent.object);
        self.forget_empty(run);
        Some(whole(extent.object, held.max(extent.len)))
    }

    /// The run has stopped writing to these packs, and none of its bytes there wait for a name; `unused` ids were never
    /// written. Returns the packs that name nothing.
    pub fn close(&mut self, run: u64, packs: &[ObjectId], unused: &[ObjectId]) -> Vec<Extent> {
        let Some(held) = self.runs.get_mut(&run) else { return Vec::new() };
        held.objects.retain(|id, _| !unused.contains(id));
        let closed: Vec<(ObjectId, u64)> =
            packs.iter().filter_map(|id| Some((*id, held.objects.remove(id)?))).collect();
        self.forget_empty(run);
        closed.into_iter().filter_map(|(id, bytes)| self.abandoned(id, bytes)).collect()
    }

    /// Ends a run that was not heard since `stamp`. Returns what it held without a name.
    pub fn end(&mut self, run: u64, stamp: u64) -> Vec<Extent> {
        if self.runs.get(&run).is_none_or(|r| r.stamp != stamp) {
            return Vec::new();
        }
        let held = self.runs.remove(&run).map(|r| r.objects).unwrap_or_default();
        held.into_iter().filter_map(|(id, bytes)| self.abandoned(id, bytes)).collect()
    }

    pub fn has(&self, object: ObjectId) -> bool {
        self.runs.values().any(|run| run.objects.contains_key(&object))
    }

    /// Runs that hold something, and when they were last heard.
    pub fn runs(&self) -> Vec<(u64, u64)> {
        self.runs.iter().map(|(id, run)| (*id, run.stamp)).collect()
    }

    /// Objects that any run holds, after this one, in order. A page costs what the runs hold: a few hundred ids each.
    pub fn leased(&self, after: Option<ObjectId>, limit: usize) -> Vec<ObjectId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let of_run =
            |run: &Run| run.objects.range((from, Bound::Unbounded)).map(|(id, _)| *id).collect::<Vec<_>>();
        let mut all: Vec<ObjectId> = self.runs.values().flat_map(of_run).collect();
        all.sort_unstable();
        all.truncate(limit);
        all
    }

    /// The object's writer is gone.
    fn abandoned(&mut self, object: ObjectId, bytes: u64) -> Option<Extent> {
        if self.packs.contains_key(&object) { self.dead_pack(object) } else { Some(whole(object, bytes)) }
    }

    /// The whole pack, if it has no writer and names nothing.
    fn dead_pack(&mut self, object: ObjectId) -> Option<Extent> {
        let pack = self.packs.get(&object)?;
        let is_open = self.has(object) && !self.planted.has(PlantedBug::FreeOpenPacks);
        if is_open || pack.named > 0 {
            return None;
        }
        let pack = self.packs.remove(&object)?;
        debug_assert_eq!(pack.live, 0, "a pack that names nothing has no bytes that have a name");
        Some(whole(object, pack.bytes))
    }

    /// Packs of erasure-coded pools that are closed, and in which less than this share of what was ever named still is.
    pub fn sparse(&self, percent: u64, limit: usize) -> Vec<ObjectId> {
        let sparse = |(id, pack): &(&ObjectId, &Pack)| {
            let coded = id.pool() != PoolId::REPLICATED;
            coded && pack.live * 100 < pack.ever * percent && !self.has(**id)
        };
        self.packs.iter().filter(sparse).map(|(id, _)| *id).take(limit).collect()
    }

    fn forget_empty(&mut self, run: u64) {
        if self.runs.get(&run).is_some_and(|r| r.objects.is_empty()) {
            self.runs.remove(&run);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: u64 = 7;
    const PACK: ObjectId = ObjectId(2);

    fn part(object: ObjectId, block: u64) -> Extent {
        Extent { object, offset: block << 12, len: 4096, shared: true, crc: 0 }
    }

    fn leased() -> Leases {
        let mut leases = Leases::default();
        leases.lease(RUN, ObjectId(1), 4, 100).unwrap();
        leases
    }

    #[test]
    fn an_object_is_named_once_or_given_up_once() {
        let mut leases = leased();
        let one = [whole(ObjectId(1), 50)];
        leases.check(RUN, &one).unwrap();
        assert_eq!(leases.check(8, &one), Err(NamespaceError::NotLeased), "another run's");
        leases.name(RUN, &one);
        assert_eq!(leases.check(RUN, &one), Err(NamespaceError::NotLeased), "a command that comes again");
        assert_eq!(leases.give_up(RUN, one[0]), None, "what has a name is not given up");
        assert_eq!(leases.lease(RUN, ObjectId(1), 1, 100), Err(NamespaceError::NotLeased), "never again");
    }

    #[test]
    fn a_serial_number_is_leased_once_whatever_the_pool() {
        let mut leases = leased();
        let cold = |serial: u64| ObjectId(serial).in_pool(PoolId(255));
        assert_eq!(
            leases.lease(RUN, cold(4), 1, 100),
            Err(NamespaceError::NotLeased),
            "held in another pool"
        );
        leases.lease(RUN, cold(5), 2, 100).unwrap();
        assert_eq!(leases.lease(8, ObjectId(5), 1, 100), Err(NamespaceError::NotLeased));
        leases.lease(RUN, ObjectId(7), 1, 100).unwrap();
        leases.lease(RUN, cold(6), 1, 900).unwrap();
        assert_eq!(leases.check(RUN, &[whole(ObjectId(6), 1)]), Err(NamespaceError::NotLeased), "not there");
        leases.name(RUN, &[part(cold(5), 0)]);
        assert_eq!(leases.unname(part(cold(5), 0)), part(cold(5), 0));
        let (_, stamp) = leases.runs()[0];
        let left: Vec<Extent> = leases.end(RUN, stamp).into_iter().filter(|e| e.object.0 > 4).collect();
        assert_eq!(left, [whole(ObjectId(7), 100), whole(cold(5), 100), whole(cold(6), 900)]);
        let end = ObjectId(u64::MAX);
        assert_eq!(leases.lease(RUN, end, 2, 100), Err(NamespaceError::NotLeased), "the serial numbers end");
        leases.lease(RUN, end, 1, 100).unwrap();
    }

    #[test]
    fn a_silent_run_loses_what_it_holds() {
        let mut leases = leased();
        leases.lease(RUN, ObjectId(3), 1, 900).unwrap();
        let (_, stamp) = leases.runs()[0];
        leases.name(RUN, &[whole(ObjectId(1), 50), part(PACK, 0)]);
        leases.heard(RUN);
        assert_eq!(leases.end(RUN, stamp), [], "it was heard");
        let (_, stamp) = leases.runs()[0];
        assert_eq!(leases.end(RUN, stamp), [whole(ObjectId(3), 900), whole(ObjectId(4), 100)]);
        assert_eq!(leases.check(RUN, &[part(PACK, 1)]), Err(NamespaceError::NotLeased));
        assert_eq!(leases.unname(part(PACK, 0)), whole(PACK, 100), "the last that the pack named");
        assert_eq!(leases, Leases { leased_to: 5, stamp: leases.stamp, ..Leases::default() });
    }

    #[test]
    fn a_closed_pack_of_a_coded_pool_is_sparse_when_little_of_it_has_a_name() {
        let mut leases = Leases::default();
        let pack = ObjectId(2).in_pool(PoolId(1));
        leases.lease(RUN, pack, 1, 1 << 20).unwrap();
        leases.lease(RUN, ObjectId(3), 1, 1 << 20).unwrap();
        for block in 0..8 {
            leases.name(RUN, &[part(pack, block), part(ObjectId(3), block)]);
        }
        let tiny = |block| Extent { len: 9, ..part(pack, block) };
        leases.name(RUN, &[tiny(8)]);
        for block in 0..7 {
            leases.unname(part(pack, block));
            leases.unname(part(ObjectId(3), block));
        }
        assert_eq!(leases.sparse(25, 9), [], "its run may fill it yet");
        leases.close(RUN, &[pack, ObjectId(3)], &[]);
        assert_eq!(
            leases.sparse(25, 9),
            [pack],
            "two blocks of nine; in the replicated pool zeroes take no space"
        );
        assert_eq!(leases.sparse(22, 9), []);
        leases.unname(tiny(8));
        assert_eq!(leases.sparse(22, 9), [pack]);
        assert_eq!(leases.unname(part(pack, 7)), whole(pack, 1 << 20));
        assert_eq!(leases.sparse(100, 9), []);
    }

    #[test]
    fn what_is_leased_is_listed_over_all_runs_page_by_page() {
        let mut leases = leased();
        leases.lease(8, ObjectId(5), 3, 100).unwrap();
        leases.name(RUN, &[whole(ObjectId(2), 50)]);
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let page = leases.leased(after, 2);
            assert!(page.len() <= 2);
            let Some(last) = page.last() else { break };
            after = Some(*last);
            found.extend(page);
        }
        assert_eq!(found, [1, 3, 4, 5, 6, 7].map(ObjectId));
    }

    #[test]
    fn a_pack_dies_when_it_is_closed_and_names_nothing() {
        let mut leases = leased();
        leases.name(RUN, &[part(PACK, 0), part(PACK, 1)]);
        assert_eq!(leases.unname(part(PACK, 0)), part(PACK, 0));
        assert_eq!(leases.unname(part(PACK, 1)), part(PACK, 1), "it is open: more may come");
        leases.name(RUN, &[part(PACK, 2)]);
        assert_eq!(leases.close(RUN, &[PACK], &[]), []);
        assert_eq!(leases.unname(part(PACK, 2)), whole(PACK, 100));
        leases.name(RUN, &[part(ObjectId(3), 0)]);
        leases.unname(part(ObjectId(3), 0));
        assert_eq!(leases.close(RUN, &[ObjectId(3)], &[ObjectId(1), ObjectId(4)]), [whole(ObjectId(3), 100)]);
        assert_eq!(leases.runs(), []);
    }
}
