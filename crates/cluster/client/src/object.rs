//! Byte ranges of whole objects and volumes: their pieces are carried concurrently.

use crate::client::Client;
use crate::error::ClientError;
use bytes::{Bytes, BytesMut};
use ebb_types::{ChunkId, ObjectId, Piece, pieces};
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
        Ok(joined.unwrap_or_default().freeze())
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

    /// Runs `work` for every part, several concurrently; the first error ends it. Results are in no particular order.
    async fn each<P, T, F>(
        &self,
        parts: impl IntoIterator<Item = P>,
        work: impl Fn(Client, P) -> F,
    ) -> Result<Vec<T>, ClientError>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ClientError>> + Send + 'static,
    {
        let mut parts = parts.into_iter().peekable();
        let mut results = Vec::new();
        let mut running = JoinSet::new();
        while let Some(part) = parts.next() {
            let task = work(self.clone(), part);
            if parts.peek().is_none() && running.is_empty() && results.is_empty() {
                return Ok(vec![task.await?]);
            }
            running.spawn(task);
            if running.len() >= PIECES_IN_FLIGHT {
                results.push(running.join_next().await.expect("some run").expect("a piece does not panic")?);
            }
        }
        while let Some(done) = running.join_next().await {
            results.push(done.expect("a piece does not panic")?);
        }
        Ok(results)
    }
}
