//! Compacts the packs of erasure-coded pools. Rows are immutable, so the space of a deleted object returns only with
//! its whole pack: one object of a KiB may hold 64 MiB and their parity. What is left in a pack that is mostly dead
//! moves to another pack of the same pool, as lifecycle rules move objects: in troughs, at the same rate, each copy
//! checked, and named only if the key still names what was copied ([`NamespaceOp::Repack`]). Then the pack names
//! nothing, and is freed.
//!
//! In the replicated pool there is nothing to gain: what is dead in a pack was set to zero, and a store punches whole
//! blocks of zeroes out of its files.

use crate::bytes::backend::{Backend, BackendError};
use crate::bytes::names::NameError;
use crate::bytes::reader::Reader;
use crate::upkeep::moves::{MOVES_AHEAD, Mover, go_on};
use ebb_types::{Named, NamespaceAnswer, NamespaceOp, NamespaceQuery, ObjectId, PAGE_MAX};
use futures_util::StreamExt;
use std::collections::BTreeSet;

/// A pack is compacted when less than this share of what was ever named in it still is. So for three bytes that are
/// freed, at most one is copied; and a byte that stays is copied again only when three quarters of what it moved with
/// are gone.
const SPARSE_PERCENT: u64 = 25;

impl<B: Backend> Mover<B> {
    /// Empties the packs that are mostly dead. Returns how many extents were moved.
    pub async fn compact(&self) -> Result<u64, NameError> {
        let mut moved = 0;
        loop {
            let query = NamespaceQuery::SparsePacks { percent: SPARSE_PERCENT };
            let NamespaceAnswer::Packs(packs) = self.names.query(query).await? else { return Ok(moved) };
            let packs: BTreeSet<ObjectId> = packs.into_iter().collect();
            let some = if packs.is_empty() { 0 } else { self.empty(&packs).await? };
            if some == 0 {
                break;
            }
            moved += some;
        }
        if moved > 0 {
            tracing::info!(objects = moved, "small objects moved out of packs that were mostly dead");
        }
        Ok(moved)
    }

    /// No index leads from a pack to its keys: all names are looked through, for all packs at once.
    async fn empty(&self, packs: &BTreeSet<ObjectId>) -> Result<u64, NameError> {
        let (mut moved, mut after) = (0, Vec::new());
        loop {
            self.await_trough().await?;
            let query = NamespaceQuery::Named { after, limit: PAGE_MAX };
            let NamespaceAnswer::Named { names, next } = self.names.query(query).await? else {
                return Ok(moved);
            };
            let there = names.into_iter().filter(|name| name.objects.iter().any(|id| packs.contains(id)));
            let moves = futures_util::stream::iter(there).map(|name| self.move_out(packs, name));
            let mut moves = std::pin::pin!(moves.buffer_unordered(MOVES_AHEAD));
            while let Some(outcome) = moves.next().await {
                moved += u64::from(outcome?);
            }
            match next {
                Some(next) => after = next,
                None => return Ok(moved),
            }
        }
    }

    /// Returns whether all that the key has in these packs was moved.
    async fn move_out(&self, packs: &BTreeSet<ObjectId>, name: Named) -> Result<bool, NameError> {
        self.await_trough().await?;
        go_on(self.repack(packs, &name).await, &name.bucket, &name.key)
    }

    async fn repack(&self, packs: &BTreeSet<ObjectId>, name: &Named) -> Result<bool, NameError> {
        let reader = Reader::open(&self.store, &self.names, &name.bucket, &name.key).await?;
        let (mut start, mut any) = (0, false);
        for was in &reader.meta.extents {
            let range = start..start + was.len;
            start = range.end;
            if !was.shared || !packs.contains(&was.object) {
                continue;
            }
            let Some(pool) = self.backend.pools().into_iter().find(|pool| pool.id == was.object.pool())
            else {
                return Err(BackendError::Failed(format!("the cluster has no {}", was.object.pool())).into());
            };
            let copy = self.copy(&reader, was, range, &pool).await?;
            for to in copy.take() {
                debug_assert_eq!(to.object.pool(), was.object.pool(), "an object stays in its pool");
                let (bucket, key) = (name.bucket.clone(), name.key.clone());
                self.names.commit(NamespaceOp::Repack { bucket, key, was: *was, to }).await?;
            }
            any = true;
        }
        Ok(any)
    }
}
