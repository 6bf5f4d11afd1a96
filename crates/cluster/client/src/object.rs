//! Byte ranges of whole objects and volumes: their pieces are carried concurrently.

use crate::client::Client;
use crate::error::ClientError;
use bytes::{Bytes, BytesMut};
use ebb_types::{BLOCK_BYTES, CLAIMS_FROM, ChunkId, Extent, ObjectId, Piece, group_of, pieces};
use std::collections::BTreeSet;
use tokio::task::JoinSet;

/// Maximum requests in flight for one range.
const PIECES_IN_FLIGHT: usize = 8;

impl Client {
    fn pieces(
        &self,
        object: ObjectId,
        offset: u64,
        len: u64,
    ) -> Result<impl Iterator<Item = Piece> + use<>, ClientError> {
        pieces(object, offset, len, self.params().chunk_bytes).ok_or(ClientError::ObjectRange)
    }

    /// Reads a range of an object. Never-written bytes are zero. A range of a single piece is returned without a copy.
    pub async fn read_object(&self, object: ObjectId, offset: u64, len: u64) -> Result<Bytes, ClientError> {
        let pieces: Vec<Piece> = self.pieces(object, offset, len)?.collect();
        if let [only] = pieces[..] {
            return self.read(only.chunk, only.offset, only.len).await;
        }
        let mut whole = BytesMut::zeroed(len as usize);
        let parts: Vec<(Piece, BytesMut)> =
            pieces.into_iter().map(|piece| (piece, whole.split_to(piece.len as usize))).collect();
        let mut done = self
            .each(parts, |client, (piece, mut part)| async move {
                part.copy_from_slice(&client.read(piece.chunk, piece.offset, piece.len).await?);
                Ok((piece.start, part))
            })
            .await?;
        done.sort_unstable_by_key(|(start, _)| *start);
        // The parts are adjacent in one buffer: joining them copies nothing.
        let joined = done.into_iter().map(|(_, part)| part).reduce(|mut whole, part| {
            whole.unsplit(part);
            whole
        });
        let joined = joined.unwrap_or_default();
        debug_assert_eq!(joined.len() as u64, len, "the pieces of a range are all of it");
        Ok(joined.freeze())
    }

    /// Writes a range of an object. Returns when all of it is durable. After an error any part of it may have
    /// been written.
    pub async fn write_object(&self, object: ObjectId, offset: u64, bytes: Bytes) -> Result<(), ClientError> {
        let pieces = self.pieces(object, offset, bytes.len() as u64)?;
        let parts: Vec<(Piece, Bytes)> = pieces
            .map(|piece| {
                (piece, bytes.slice(piece.start as usize..piece.start as usize + piece.len as usize))
            })
            .collect();
        let carried: usize = parts.iter().map(|(_, part)| part.len()).sum();
        debug_assert_eq!(carried, bytes.len(), "the pieces of a range are all of it");
        self.each(parts, |client, (piece, part)| async move {
            client.write(piece.chunk, piece.offset, part).await
        })
        .await
        .map(drop)
    }

    /// Sets a range of an object to zero.
    pub async fn zero_object(&self, object: ObjectId, offset: u64, len: u64) -> Result<(), ClientError> {
        let parts = self.pieces(object, offset, len)?;
        self.each(
            parts,
            |client, piece| async move { client.zero(piece.chunk, piece.offset, piece.len).await },
        )
        .await
        .map(drop)
    }

    /// Removes all chunks of an object of `len` bytes for good.
    pub async fn delete_object(&self, object: ObjectId, len: u64) -> Result<(), ClientError> {
        let chunks = len.div_ceil(u64::from(self.params().chunk_bytes));
        let chunks = u32::try_from(chunks).map_err(|_| ClientError::ObjectRange)?;
        let parts = (0..chunks).map(|index| ChunkId { object, index });
        self.each(parts, |client, chunk| async move { client.delete(chunk).await }).await.map(drop)
    }

    /// Where the claims on an object are noted.
    pub fn claims_of(&self, object: ObjectId) -> Extent {
        let (params, chunk_bytes) = (self.params(), u64::from(self.params().chunk_bytes));
        let offset = u64::from(CLAIMS_FROM) * chunk_bytes;
        Extent { object, offset, len: u64::from(params.groups) * chunk_bytes, shared: false, crc: 0 }
    }

    /// Notes this client's claim on an object of `len` bytes in every group that has a chunk of it. Afterwards no
    /// request under an older claim is carried out.
    pub async fn raise_claim(&self, object: ObjectId, len: u64) -> Result<(), ClientError> {
        debug_assert!(self.claim() > 0, "zero is no claim");
        let mut block = BytesMut::zeroed(BLOCK_BYTES);
        block[..8].copy_from_slice(&self.claim().to_le_bytes());
        let block = block.freeze();
        let write = |client: Client, chunk| {
            let block = block.clone();
            async move { client.write(chunk, 0, block).await }
        };
        self.each(self.claim_chunks(object, len)?, write).await.map(drop)
    }

    /// Removes what [`Client::raise_claim`] noted.
    pub async fn delete_claims(&self, object: ObjectId, len: u64) -> Result<(), ClientError> {
        let parts = self.claim_chunks(object, len)?;
        self.each(parts, |client, chunk| async move { client.delete(chunk).await }).await.map(drop)
    }

    fn claim_chunks(&self, object: ObjectId, len: u64) -> Result<Vec<ChunkId>, ClientError> {
        let params = self.params();
        let chunks = len.div_ceil(u64::from(params.chunk_bytes));
        let chunks = u32::try_from(chunks).map_err(|_| ClientError::ObjectRange)?;
        let mut groups = BTreeSet::new();
        // Many chunks are in all groups.
        let of_chunk = (0..chunks).map(|index| group_of(ChunkId { object, index }, params.groups));
        for group in of_chunk {
            groups.insert(group);
            if groups.len() == params.groups as usize {
                break;
            }
        }
        Ok(groups.into_iter().map(|group| ChunkId::of_claim(object, group)).collect())
    }

    /// Runs `work` for every part, as [`to_their_ends`].
    async fn each<P, T, F>(
        &self,
        parts: impl IntoIterator<Item = P>,
        work: impl Fn(Client, P) -> F,
    ) -> Result<Vec<T>, ClientError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ClientError>> + Send + 'static,
    {
        let mut tasks = parts.into_iter().map(|part| work(self.clone(), part)).peekable();
        let Some(first) = tasks.next() else { return Ok(Vec::new()) };
        if tasks.peek().is_none() {
            return Ok(vec![first.await?]);
        }
        to_their_ends(std::iter::once(first).chain(tasks)).await
    }
}

/// Runs tasks, several concurrently. After an error no other begins; those that are on their way have ended when it is
/// returned. Results are in no particular order.
pub async fn to_their_ends<T, E, F>(mut tasks: impl Iterator<Item = F>) -> Result<Vec<T>, E>
where
    T: Send + 'static,
    E: Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let (mut running, mut results) = (JoinSet::new(), Ok(Vec::new()));
    loop {
        while running.len() < PIECES_IN_FLIGHT
            && results.is_ok()
            && let Some(task) = tasks.next()
        {
            running.spawn(task);
        }
        let Some(done) = running.join_next().await else { return results };
        match (done.expect("a piece does not panic"), &mut results) {
            (Ok(done), Ok(results)) => results.push(done),
            (Err(error), Ok(_)) => results = Err(error),
            (_, Err(_)) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn an_error_is_returned_when_all_that_began_has_ended() {
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let tasks = (0..20u64).map(|n| {
            let (begun, ended) = (begun.clone(), ended.clone());
            async move {
                begun.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(if n == 2 { 1 } else { 10 * (n + 1) })).await;
                ended.fetch_add(1, Ordering::Relaxed);
                if n == 2 { Err(ClientError::ObjectRange) } else { Ok(n) }
            }
        });
        assert!(to_their_ends(tasks).await.is_err());
        let [begun, ended] = [begun, ended].map(|count| count.load(Ordering::Relaxed));
        assert_eq!((begun, ended), (PIECES_IN_FLIGHT, PIECES_IN_FLIGHT));
    }

    #[tokio::test]
    async fn results_of_all_are_returned() {
        let mut found = to_their_ends((0..20).map(|n| async move { Ok::<_, ClientError>(n) })).await.unwrap();
        found.sort_unstable();
        assert_eq!(found, Vec::from_iter(0..20));
    }
}
