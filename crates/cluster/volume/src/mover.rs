//! Moves slices from the front to the home pool.
//!
//! A move of a slice:
//!
//! 1. Look: which blocks the front has, and up to which version.
//! 2. Read the whole slice, and write it as a new object to the home pool.
//! 3. Name that object as the slice's. From here on the front's blocks up to that version are only copies.
//! 4. Free those blocks in the front.
//! 5. Delete the slice's former object.
//!
//! A process that ends after any step leaves a volume that is right: before step 3 the new object has no name, and the
//! namespace frees it with the lease; after it the front may have blocks that the object has too, and the former object
//! is in the namespace's garbage already. Writes to the slice wait for all of it, reads for step 4 alone.

use crate::backend::Backend;
use crate::error::VolumeError;
use crate::slice::Slice;
use crate::state::{Inner, commit, query};
use ebb_types::{
    Looked, NamespaceAnswer, NamespaceError, NamespaceOp, NamespaceQuery, ObjectId, PAGE_MAX, PoolId,
    SLICE_BYTES, Version, VolumeHome, slice_extent,
};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Slices that are moved at a time.
const MOVES: usize = 4;
/// Objects of a deleted volume that are freed at a time.
const FREES: usize = 8;
/// Slices that are chosen at a time.
const CHOSEN: usize = 16;
/// Object ids leased ahead.
const IDS_AHEAD: u32 = 16;
/// Former objects after which their entries are taken out of the namespace's garbage.
const FORMER: usize = 64;
/// For this long a move waits for the writes of its slice. Then others come first: a write may be held for as long as
/// a group is not served.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause after a failed move or a refused op.
const RETRY: Duration = Duration::from_secs(1);

/// Runs until the volume is closed or taken over.
pub(crate) async fn run<B: Backend>(weak: Weak<Inner<B>>, home: VolumeHome) {
    survey(&weak).await;
    loop {
        let Some(volume) = weak.upgrade() else { return };
        if !volume.is_due(home) {
            let grown = volume.front.grown();
            // Without the volume: it may end meanwhile.
            drop(volume);
            grown.notified().await;
            continue;
        }
        match volume.make_room(home).await {
            Ok(()) => {}
            Err(VolumeError::Taken) => return,
            Err(error) => {
                tracing::warn!(volume = volume.name, %error, "cannot move data of the volume to its pool; will retry");
                sleep(RETRY).await;
            }
        }
    }
}

/// Finds out about every slice, so that the size of the front is known.
async fn survey<B: Backend>(weak: &Weak<Inner<B>>) {
    let slices = weak.upgrade().map_or(0, |volume| volume.meta.slices());
    for number in 0..slices as u32 {
        let Some(volume) = weak.upgrade() else { return };
        let slice = volume.slice(number);
        if !slice.is_known()
            && let Err(error) = volume.find_out(&slice, PATIENCE).await
        {
            tracing::warn!(volume = volume.name, number, %error, "cannot see what the volume has; the slice is left for later");
        }
        drop(slice);
        volume.drop_if_empty(number);
    }
}

/// Frees what a deleted volume had.
pub(crate) async fn free<B: Backend>(volume: &Arc<Inner<B>>) -> Result<(), VolumeError> {
    let mut freed = BTreeSet::from([volume.meta.object]);
    let mut running = JoinSet::new();
    for slice in volume.all_slices() {
        let Some(object) = *slice.object.read().await else { continue };
        freed.insert(object);
        if running.len() >= FREES {
            running.join_next().await.expect("some run").expect("no deletion panics")?;
        }
        let backend = volume.backend.clone();
        running.spawn(async move { backend.delete_moved(object).await });
    }
    while let Some(deleted) = running.join_next().await {
        deleted.expect("no deletion panics")?;
    }
    volume.backend.delete(volume.meta.object, volume.meta.size).await?;
    let former = std::mem::take(&mut *volume.former.lock().expect("nothing panics under this lock"));
    volume.collect(freed.into_iter().chain(former).collect()).await
}

/// The slices to move: those that free most, and were not written for longest. `slices`: number, blocks in the front,
/// number of the last write; `now`: number of the newest write.
fn choose(mut slices: Vec<(u32, u32, u64)>, now: u64) -> Vec<u32> {
    let benefit = |(_, blocks, written): &(u32, u32, u64)| u64::from(*blocks) * (now - written + 1);
    slices.sort_by_key(|slice| std::cmp::Reverse(benefit(slice)));
    slices.into_iter().take(CHOSEN).map(|(number, ..)| number).collect()
}

impl<B: Backend> Inner<B> {
    /// Begins at three quarters of what the front may have ...
    fn is_due(&self, home: VolumeHome) -> bool {
        self.front.bytes() >= home.front_bytes / 4 * 3
    }

    /// ... and ends at half of it.
    fn is_done(&self, home: VolumeHome) -> bool {
        self.front.bytes() <= home.front_bytes / 2
    }

    async fn make_room(self: &Arc<Inner<B>>, home: VolumeHome) -> Result<(), VolumeError> {
        // What cannot be moved now. The others come first: a few slices that free most and cannot be read would keep
        // them in the front until it is full.
        let mut passed = BTreeSet::new();
        let mut outcome = Ok(());
        while !self.is_done(home) {
            let mut failed = self.find_out_all(&passed).await;
            let known: Vec<(u32, u32, u64)> = {
                let movable = |slice: &Arc<Slice>| slice.is_known() && !passed.contains(&slice.number);
                let known = self.all_slices().into_iter().filter(movable);
                known.map(|slice| (slice.number, slice.count(), slice.written())).collect()
            };
            let movable = known.into_iter().filter(|(_, blocks, _)| *blocks > 0).collect();
            let chosen = choose(movable, self.front.next_write());
            if chosen.is_empty() && failed.is_empty() {
                return outcome;
            }
            failed.extend(self.move_all(chosen, home.pool).await);
            let some_failed = !failed.is_empty();
            for (number, error) in failed {
                if matches!(error, VolumeError::Taken) {
                    return Err(error);
                }
                passed.insert(number);
                outcome = Err(error);
            }
            if some_failed {
                sleep(RETRY).await;
            }
        }
        Ok(())
    }

    /// Finds out about every slice that is not known and not passed over; returns those that do not say.
    async fn find_out_all(&self, passed: &BTreeSet<u32>) -> Vec<(u32, VolumeError)> {
        let slices = self.all_slices();
        let mut failed = Vec::new();
        for slice in slices.iter().filter(|slice| !slice.is_known() && !passed.contains(&slice.number)) {
            if let Err(error) = self.find_out(slice, PATIENCE).await {
                failed.push((slice.number, error));
            }
        }
        failed
    }

    /// Moves these slices, a few at a time; returns those that could not be moved.
    async fn move_all(self: &Arc<Inner<B>>, chosen: Vec<u32>, pool: PoolId) -> Vec<(u32, VolumeError)> {
        let (mut moves, mut ended) = (JoinSet::new(), Vec::new());
        for number in chosen {
            if moves.len() >= MOVES {
                ended.push(moves.join_next().await.expect("some run"));
            }
            let volume = self.clone();
            moves.spawn(async move { (number, volume.move_slice(&volume.slice(number), pool).await) });
        }
        // All of them to their ends, whatever one of them met: the namespace and the slice must agree.
        while let Some(moved) = moves.join_next().await {
            ended.push(moved);
        }
        let ended = ended.into_iter().map(|moved| moved.expect("no move panics"));
        ended.filter_map(|(number, moved)| Some((number, moved.err()?))).collect()
    }

    async fn move_slice(&self, slice: &Slice, pool: PoolId) -> Result<(), VolumeError> {
        let _gate = self.within(PATIENCE, slice.gate.write()).await?;
        self.owner.sure().await?;
        if slice.owed().is_some() {
            let _object = slice.object.write().await;
            self.clear(slice, None).await?;
        }
        let looked = self.look(slice).await?;
        if looked.runs.is_empty() {
            return Ok(());
        }
        let (was, bytes) = {
            let object = slice.object.read().await;
            let len = self.slice_len(slice.number);
            (*object, self.read_slice(slice, *object, 0, len).await?)
        };
        let to = self.fresh_object(pool).await?;
        debug_assert_ne!(was, Some(to), "a slice's object is written once");
        let written = self.backend.write_moved(to, bytes).await.map_err(VolumeError::from);
        let named = match written {
            Ok(()) => self.name_slice(slice, was, Some(to)).await,
            Err(error) => Err(error),
        };
        if let Err(error) = named {
            self.give_up(to).await;
            return Err(error);
        }
        {
            let mut object = slice.object.write().await;
            *object = Some(to);
            slice.doubt();
            self.clear(slice, Some(looked.newest)).await?;
            self.look(slice).await?;
        }
        if let Some(was) = was {
            self.forget_object(was).await;
        }
        Ok(())
    }

    /// A fresh object in the home pool.
    async fn fresh_object(&self, pool: PoolId) -> Result<ObjectId, VolumeError> {
        loop {
            if let Some(object) = self.ids.lock().expect("nothing panics under this lock").pop() {
                debug_assert_eq!(object.pool(), pool, "ids are leased for the volume's home");
                return Ok(object);
            }
            let first = self.backend.allocate(IDS_AHEAD).await?.in_pool(pool);
            let lease = NamespaceOp::Lease { first, count: IDS_AHEAD, bytes: SLICE_BYTES.into() };
            match commit(&self.backend, lease).await {
                Ok(()) => {
                    let serials = first.serial().0..first.serial().0 + u64::from(IDS_AHEAD);
                    let ids = serials.map(|serial| ObjectId(serial).in_pool(pool));
                    self.ids.lock().expect("nothing panics under this lock").extend(ids);
                }
                // Another process has leased newer ids meanwhile.
                Err(VolumeError::Refused(NamespaceError::NotLeased)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// An object that was written in vain. All other ids may be lost too, if this process was silent for too long.
    async fn give_up(&self, object: ObjectId) {
        let unused = std::mem::take(&mut *self.ids.lock().expect("nothing panics under this lock"));
        let close = NamespaceOp::Close { packs: Vec::new(), unused };
        let discard = NamespaceOp::Discard { extents: vec![slice_extent(object)] };
        for op in [close, discard] {
            if let Err(error) = commit(&self.backend, op).await {
                tracing::warn!(volume = self.name, %error, "objects that were written in vain are freed when this process ends");
            }
        }
    }

    /// Frees the slice's blocks in the front up to this version, or what is still owed. The caller holds `object`
    /// alone.
    ///
    /// A clearing that failed may yet be carried out, after a look that found its blocks in the front: they would then
    /// read as zeroes. So it is repeated before a look is believed. What comes late finds nothing that old.
    async fn clear(&self, slice: &Slice, up_to: Option<Version>) -> Result<(), VolumeError> {
        debug_assert!(slice.object.try_read().is_err(), "no reader is there while blocks leave the front");
        let Some(version) = up_to.max(slice.owed()) else { return Ok(()) };
        slice.owe(Some(version));
        self.backend.clear(self.meta.object, slice.number, version).await?;
        slice.owe(None);
        Ok(())
    }

    /// Finds out which blocks of the slice the front has. `patience`: with writes of the slice.
    pub(crate) async fn find_out(&self, slice: &Slice, patience: Duration) -> Result<(), VolumeError> {
        let _gate = self.within(patience, slice.gate.write()).await?;
        let _object = slice.object.write().await;
        if !slice.is_known() {
            self.clear(slice, None).await?;
            self.look(slice).await?;
        }
        Ok(())
    }

    /// Afterwards it is known which blocks the front has.
    async fn look(&self, slice: &Slice) -> Result<Looked, VolumeError> {
        debug_assert!(slice.gate.try_read().is_err(), "what is written meanwhile would not be seen");
        let looked = self.backend.look(self.meta.object, slice.number).await?;
        self.front.count(slice.learn(&looked.runs));
        Ok(looked)
    }

    /// Has the namespace name the slice's object. The outcome must be known before anything else is done with the
    /// slice, so this ends only with an answer, or when the volume is no longer served here.
    pub(crate) async fn name_slice(
        &self,
        slice: &Slice,
        was: Option<ObjectId>,
        to: Option<ObjectId>,
    ) -> Result<(), VolumeError> {
        loop {
            let (name, claim, slice) = (self.name.clone(), self.owner.number, slice.number);
            let op = NamespaceOp::MoveSlice { name, claim, slice, was, to };
            match commit(&self.backend, op).await {
                Err(error @ VolumeError::Client(_)) => {
                    tracing::warn!(volume = self.name, %error, "cannot name a slice of the volume; will retry");
                    self.owner.still_claims()?;
                    sleep(RETRY).await;
                }
                answer => return answer,
            }
        }
    }

    /// Deletes an object that no longer belongs to a slice. Its entry in the namespace's garbage goes later, so that it
    /// need not wait for a gateway.
    pub(crate) async fn forget_object(&self, object: ObjectId) {
        if let Err(error) = self.backend.delete_moved(object).await {
            // A gateway's janitor will: it is in the namespace's garbage.
            return tracing::warn!(volume = self.name, %error, "cannot delete a moved slice's former object");
        }
        let former = {
            let mut former = self.former.lock().expect("nothing panics under this lock");
            former.insert(object);
            if former.len() < FORMER {
                return;
            }
            std::mem::take(&mut *former)
        };
        if let Err(error) = self.collect(former).await {
            tracing::warn!(volume = self.name, %error, "cannot clear the namespace's garbage; a gateway will");
        }
    }

    /// These objects are deleted.
    async fn collect(&self, former: BTreeSet<ObjectId>) -> Result<(), VolumeError> {
        let (mut after, mut garbage) = (0, Vec::new());
        loop {
            let page = NamespaceQuery::Garbage { after, limit: PAGE_MAX };
            let NamespaceAnswer::Garbage(page) = query(&self.backend, page).await? else {
                return Err(VolumeError::Nonsense);
            };
            let Some((last, _)) = page.last() else { break };
            after = *last;
            garbage
                .extend(page.iter().filter(|(_, e)| former.contains(&e.object)).map(|(number, _)| *number));
        }
        commit(&self.backend, NamespaceOp::Collected { garbage }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_moved_that_free_much_and_are_seldom_written() {
        assert_eq!(choose(vec![(0, 1, 0), (1, 100, 90), (2, 100, 99), (3, 2, 0)], 99), [1, 3, 0, 2]);
        assert_eq!(choose((0..40).map(|n| (n, 1, u64::from(n))).collect(), 40), Vec::from_iter(0..16));
    }
}
