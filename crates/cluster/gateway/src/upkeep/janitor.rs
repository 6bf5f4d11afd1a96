//! Frees everything that no name refers to: the namespace's garbage queue, and data that was written in vain. Data
//! under way is neither, as long as it is leased ([`crate::upkeep::leases`]).
//!
//! It sleeps until it is notified of work: an idle cluster stays idle. Freeing is idempotent, so the janitors of
//! several gateways do no harm to one another.
//!
//! Beside a volume's server it works for a cluster that may have no gateway ([`crate::tend`]). Nothing of what others
//! do passes through it there, so it looks whenever leases are looked at.

use crate::bytes::backend::{Backend, BackendError};
use crate::bytes::names::Names;
use crate::bytes::reader::GRACE;
use crate::upkeep::due;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Extent, NamespaceAnswer, NamespaceOp, NamespaceQuery, OPS_MAX, PAGE_MAX, PoolId,
};
use futures_util::StreamExt;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::time::Instant;

/// Most extents that wait: bounds memory.
const WAITING_MAX: usize = 100_000;
const _: () = assert!(WAITING_MAX >= PAGE_MAX as usize, "a page of garbage can wait");

/// Chunks freed concurrently.
const FREES_AHEAD: usize = 8;
/// Pause before the next attempt after an error.
const RETRY: Duration = Duration::from_secs(10);

pub struct Janitor<B> {
    backend: Arc<B>,
    names: Arc<Names<B>>,
    discards: mpsc::UnboundedReceiver<Vec<Extent>>,
    garbage: Arc<Notify>,
    /// The cue of [`crate::upkeep::leases`].
    leased: Arc<Notify>,
    /// Garbage by the time it was seen, oldest first.
    waiting: VecDeque<(Instant, Vec<(u64, Extent)>)>,
    /// Garbage up to this number was seen.
    seen: u64,
    /// Data to give up that the namespace could not be informed of yet.
    vain: Vec<Extent>,
    retry_at: Option<Instant>,
}

impl<B: Backend> Janitor<B> {
    pub fn new(
        backend: Arc<B>,
        names: Arc<Names<B>>,
        discards: mpsc::UnboundedReceiver<Vec<Extent>>,
        garbage: Arc<Notify>,
        leased: Arc<Notify>,
    ) -> Self {
        Janitor {
            backend,
            names,
            discards,
            garbage,
            leased,
            waiting: VecDeque::new(),
            seen: 0,
            vain: Vec::new(),
            retry_at: None,
        }
    }

    /// Runs until the gateway ends.
    pub async fn run(mut self) {
        let garbage = self.garbage.clone();
        garbage.notify_one();
        loop {
            let oldest = self.waiting.front().map(|(seen, _)| *seen + GRACE);
            tokio::select! {
                // Discards first: what they add is then freed with the rest.
                biased;
                extents = self.discards.recv() => match extents {
                    Some(extents) => self.discard(extents).await,
                    None => return,
                },
                () = garbage.notified() => {
                    self.leased.notify_one();
                    self.see().await;
                }
                () = due(oldest) => self.free_oldest().await,
                () = due(self.retry_at) => {
                    self.retry_at = None;
                    self.discard(Vec::new()).await;
                    self.see().await;
                }
            }
        }
    }

    /// After an error: another janitor may have freed what was seen, so it is looked up again.
    fn retry(&mut self) {
        self.waiting.clear();
        self.seen = 0;
        self.retry_at.get_or_insert_with(|| Instant::now() + RETRY);
    }

    async fn discard(&mut self, mut extents: Vec<Extent>) {
        extents.append(&mut self.vain);
        while extents.len() < OPS_MAX
            && let Ok(more) = self.discards.try_recv()
        {
            extents.extend(more);
        }
        if extents.is_empty() {
            return;
        }
        if let Err(error) = self.names.commit(NamespaceOp::Discard { extents: extents.clone() }).await {
            tracing::warn!(%error, "cannot give up data that was written in vain; will retry");
            self.vain = extents;
            self.retry();
        }
    }

    /// Records new garbage.
    async fn see(&mut self) {
        while self.waiting.iter().map(|(_, some)| some.len()).sum::<usize>() < WAITING_MAX {
            match self.names.query(NamespaceQuery::Garbage { after: self.seen, limit: PAGE_MAX }).await {
                Ok(NamespaceAnswer::Garbage(page)) => {
                    let Some((last, _)) = page.last() else { return };
                    self.seen = *last;
                    self.waiting.push_back((Instant::now(), page));
                }
                Ok(_) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot query garbage");
                    return self.retry();
                }
            }
        }
    }

    /// Frees garbage that has waited long enough: no reader uses it any more.
    async fn free_oldest(&mut self) {
        let mut ripe = Vec::new();
        while self.waiting.front().is_some_and(|(seen, _)| seen.elapsed() >= GRACE) {
            let (_, some) = self.waiting.pop_front().expect("just looked at");
            ripe.extend(some);
        }
        if self.free(ripe).await {
            self.see().await;
        } else {
            self.retry();
        }
    }

    /// Returns whether everything was freed, and the namespace informed.
    async fn free(&self, ripe: Vec<(u64, Extent)>) -> bool {
        let chunk_bytes = u64::from(self.backend.chunk_bytes());
        let freed = futures_util::stream::iter(joined(ripe))
            .map(|(numbers, extent)| {
                let backend = self.backend.clone();
                async move { (numbers, free(&*backend, extent, chunk_bytes).await) }
            })
            .buffer_unordered(FREES_AHEAD);
        let mut freed = std::pin::pin!(freed.ready_chunks(OPS_MAX));
        let mut complete = true;
        while let Some(some) = freed.next().await {
            let mut garbage = Vec::new();
            for (numbers, outcome) in some {
                match outcome {
                    Ok(()) => garbage.extend(numbers),
                    Err(error) => {
                        tracing::warn!(%error, "cannot free garbage; will retry");
                        complete = false;
                    }
                }
            }
            if !garbage.is_empty()
                && let Err(error) = self.names.commit(NamespaceOp::Collected { garbage }).await
            {
                tracing::warn!(%error, "cannot report that garbage was freed: it will be freed again");
                complete = false;
            }
        }
        complete
    }
}

/// Merges adjacent ranges of packs, and ranges of a pack that is freed as a whole, so that one request frees them.
fn joined(mut seen: Vec<(u64, Extent)>) -> Vec<(Vec<u64>, Extent)> {
    let numbers = seen.len();
    seen.sort_by_key(|(_, e)| (e.object, e.shared, e.offset));
    let mut out: Vec<(Vec<u64>, Extent)> = Vec::new();
    for (number, mut extent) in seen {
        if let Some((numbers, whole)) = out.last_mut()
            && !whole.shared
            && whole.object == extent.object
            && extent.offset < whole.offset + whole.len
        {
            numbers.push(number); // goes with the whole object
            continue;
        }
        if extent.shared {
            extent.len = extent.len.next_multiple_of(BLOCK_BYTES as u64);
        }
        match out.last_mut() {
            Some((numbers, last))
                if extent.shared
                    && last.shared
                    && last.object == extent.object
                    && last.offset + last.len == extent.offset =>
            {
                last.len += extent.len;
                numbers.push(number);
            }
            _ => out.push((vec![number], extent)),
        }
    }
    debug_assert_eq!(
        out.iter().map(|(some, _)| some.len()).sum::<usize>(),
        numbers,
        "each is freed and reported"
    );
    out
}

/// In an erasure-coded pool, part of a pack is not freed: rows are immutable. Its space returns with the whole pack.
async fn free<B: Backend>(backend: &B, extent: Extent, chunk_bytes: u64) -> Result<(), BackendError> {
    if extent.shared && extent.object.pool() != PoolId::REPLICATED {
        return Ok(());
    }
    if extent.shared {
        let chunk = ChunkId { object: extent.object, index: 0 };
        return backend.zero(chunk, extent.offset as u32, extent.len as u32).await;
    }
    for index in extent.offset / chunk_bytes..(extent.offset + extent.len).div_ceil(chunk_bytes) {
        backend.delete(ChunkId { object: extent.object, index: index as u32 }).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::ObjectId;

    #[test]
    fn neighbours_in_a_pack_are_freed_together_up_to_whole_blocks() {
        let extent =
            |object, offset, len, shared| Extent { object: ObjectId(object), offset, len, shared, crc: 0 };
        let seen = vec![
            (1, extent(1, 4096, 10, true)),
            (2, extent(1, 0, 4000, true)),
            (3, extent(1, 16384, 4096, true)),
            (4, extent(2, 0, 10, false)),
            (5, extent(1, 8192, 4096, true)),
            (6, extent(3, 4096, 10, true)),
            (7, extent(3, 0, 8192, false)),
        ];
        let expected = vec![
            (vec![2, 1, 5], extent(1, 0, 12288, true)),
            (vec![3], extent(1, 16384, 4096, true)),
            (vec![4], extent(2, 0, 10, false)),
            (vec![7, 6], extent(3, 0, 8192, false)),
        ];
        assert_eq!(joined(seen), expected);
    }
}
