//! Frees what no name points at: the namespace's garbage queue, and data that was written in vain.
//!
//! One task. It sleeps until somebody says that there is work, so an idle cluster stays idle. Freeing is idempotent, so
//! several gateways' janitors do no harm to each other.

use super::backend::{Backend, BackendError};
use super::names::{NameError, Names};
use super::reader::GRACE;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Extent, NamespaceAnswer, NamespaceOp, NamespaceQuery, OPS_MAX, PAGE_MAX,
};
use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};

/// Extents freed after one wait: bounds memory.
const ROUND_MAX: usize = 100_000;
/// Chunks freed at once.
const FREES_AHEAD: usize = 8;
/// Pause before the next attempt after an error.
const RETRY: Duration = Duration::from_secs(10);

pub struct Janitor<B> {
    pub backend: Arc<B>,
    pub names: Arc<Names<B>>,
    pub discards: mpsc::UnboundedReceiver<Vec<Extent>>,
    pub garbage: Arc<Notify>,
}

impl<B: Backend> Janitor<B> {
    /// Runs until the gateway ends.
    pub async fn run(mut self) {
        let garbage = self.garbage.clone();
        // An earlier run may have left some.
        garbage.notify_one();
        loop {
            tokio::select! {
                // Discards first: what they add is then freed with the rest.
                biased;
                extents = self.discards.recv() => match extents {
                    Some(extents) => self.discard(extents).await,
                    None => return,
                },
                () = garbage.notified() => self.collect().await,
            }
        }
    }

    async fn discard(&mut self, mut extents: Vec<Extent>) {
        while extents.len() < OPS_MAX
            && let Ok(more) = self.discards.try_recv()
        {
            extents.extend(more);
        }
        // An error may mean that it was done: what is lost with it is space, not data.
        if let Err(error) = self.names.commit(NamespaceOp::Discard { extents }).await {
            tracing::warn!(%error, "cannot give up data that was written in vain: its space is lost");
        }
    }

    /// One round: sees, waits, frees. Says so itself when there is more to do.
    async fn collect(&mut self) {
        let seen = match self.seen().await {
            Ok(seen) if seen.is_empty() => return,
            Ok(seen) => seen,
            Err(error) => {
                tracing::warn!(%error, "cannot ask for garbage");
                tokio::time::sleep(RETRY).await;
                return self.garbage.notify_one();
            }
        };
        tokio::time::sleep(GRACE).await;
        let chunk_bytes = u64::from(self.backend.chunk_bytes());
        let freed = futures_util::stream::iter(joined(seen))
            .map(|(numbers, extent)| {
                let backend = self.backend.clone();
                async move { (numbers, free(&*backend, extent, chunk_bytes).await) }
            })
            .buffer_unordered(FREES_AHEAD);
        let mut freed = std::pin::pin!(freed.ready_chunks(OPS_MAX));
        let mut pause = false;
        while let Some(some) = freed.next().await {
            let mut garbage = Vec::new();
            for (numbers, outcome) in some {
                match outcome {
                    Ok(()) => garbage.extend(numbers),
                    Err(error) => {
                        tracing::warn!(%error, "cannot free garbage yet");
                        pause = true;
                    }
                }
            }
            if !garbage.is_empty()
                && let Err(error) = self.names.commit(NamespaceOp::Collected { garbage }).await
            {
                tracing::warn!(%error, "cannot say that garbage was freed: it will be freed again");
                pause = true;
            }
        }
        if pause {
            tokio::time::sleep(RETRY).await;
        }
        self.garbage.notify_one();
    }

    async fn seen(&self) -> Result<Vec<(u64, Extent)>, NameError> {
        let mut seen: Vec<(u64, Extent)> = Vec::new();
        while seen.len() < ROUND_MAX {
            let after = seen.last().map_or(0, |(number, _)| *number);
            match self.names.query(NamespaceQuery::Garbage { after, limit: PAGE_MAX }).await? {
                NamespaceAnswer::Garbage(page) if !page.is_empty() => seen.extend(page),
                _ => break,
            }
        }
        Ok(seen)
    }
}

/// Joins neighbouring ranges of packs, so that they are freed with one request.
fn joined(mut seen: Vec<(u64, Extent)>) -> Vec<(Vec<u64>, Extent)> {
    seen.sort_by_key(|(_, e)| (e.object, e.offset));
    let mut out: Vec<(Vec<u64>, Extent)> = Vec::new();
    for (number, mut extent) in seen {
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
    out
}

async fn free<B: Backend>(backend: &B, extent: Extent, chunk_bytes: u64) -> Result<(), BackendError> {
    if extent.shared {
        let chunk = ChunkId { object: extent.object, index: 0 };
        return backend.zero(chunk, extent.offset as u32, extent.len as u32).await;
    }
    for index in 0..extent.len.div_ceil(chunk_bytes) {
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
        let extent = |object, offset, len, shared| Extent { object: ObjectId(object), offset, len, shared };
        let seen = vec![
            (1, extent(1, 4096, 10, true)),
            (2, extent(1, 0, 4000, true)),
            (3, extent(1, 16384, 4096, true)),
            (4, extent(2, 0, 10, false)),
            (5, extent(1, 8192, 4096, true)),
        ];
        let expected = vec![
            (vec![2, 1, 5], extent(1, 0, 12288, true)),
            (vec![3], extent(1, 16384, 4096, true)),
            (vec![4], extent(2, 0, 10, false)),
        ];
        assert_eq!(joined(seen), expected);
    }
}
