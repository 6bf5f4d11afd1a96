//! Requests about one chunk. A chunk of the replicated pool has a primary, and its requests go there as they are. One
//! of an erasure-coded pool is split into strips, which go to the servers of its set.

use crate::client::{Carried, Client};
use crate::coded::{Strip, split};
use crate::error::ClientError;
use bytes::{Bytes, BytesMut};
use ebb_client_core::{CodedWrite, Orders, Summed};
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, ChunkOp, Epoch, GroupId, Looked, MetaRequest, Moment, PoolId, Rows,
    SetId, Shape, Version, group_of, piece_crcs,
};
use std::collections::BTreeSet;
use tokio::task::{AbortHandle, JoinError, JoinSet};

/// Where a chunk of an erasure-coded pool is, and how it lies there.
#[derive(Clone, Copy)]
struct Coded {
    set: SetId,
    shape: Shape,
    rows: Rows,
    began: Moment,
}

impl Client {
    /// Reads `len` bytes at `offset` of a chunk. Never-written bytes are zero.
    pub async fn read(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<Bytes, ClientError> {
        Ok(self.read_op(chunk, offset, len, false).await?.bytes)
    }

    /// Reads bytes that are known to be written, with their checksums. It is an error if no copy has them.
    pub async fn read_written(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<Summed, ClientError> {
        self.read_op(chunk, offset, len, true).await
    }

    /// Writes at `offset` of a chunk. Returns when all copies, or all strips, are durable. In an erasure-coded pool, a
    /// write begins where a row does ([`Rows::row_bytes`]), and no row is written twice.
    pub async fn write(&self, chunk: ChunkId, offset: u32, bytes: Bytes) -> Result<(), ClientError> {
        let crcs = piece_crcs(offset, &bytes);
        self.write_summed(chunk, offset, Summed { bytes, crcs }).await
    }

    /// The same with checksums that the caller computed.
    pub async fn write_summed(&self, chunk: ChunkId, offset: u32, data: Summed) -> Result<(), ClientError> {
        let Ok(len) = u32::try_from(data.bytes.len()) else { return Err(ClientError::TooLong { chunk }) };
        match self.coded(chunk, offset, len)? {
            Some(coded) => self.write_coded(coded, chunk, offset, data).await,
            None => {
                let Summed { bytes, crcs } = data;
                let request = self.next_request();
                self.to_primary(ChunkOp::Write { chunk, offset, len, request, crcs }, bytes).await.map(drop)
            }
        }
    }

    /// Sets a range of a chunk to zero and frees its whole blocks. Not in an erasure-coded pool.
    pub async fn zero(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<(), ClientError> {
        if chunk.object.pool() != PoolId::REPLICATED {
            return Err(ClientError::Immutable { chunk });
        }
        self.zero_up_to(chunk, offset, len, None).await
    }

    /// The same; with a version for whole blocks of at most one record, and only for those that are not newer.
    pub async fn zero_up_to(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
        up_to: Option<Version>,
    ) -> Result<(), ClientError> {
        let request = self.next_request();
        self.to_primary(ChunkOp::Zero { chunk, offset, len, up_to, request }, Bytes::new()).await.map(drop)
    }

    /// Which of these whole blocks, at most one record, have data. Only in the replicated pool.
    pub async fn look(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<Looked, ClientError> {
        let carried = self.to_primary(ChunkOp::Look { chunk, offset, len }, Bytes::new()).await?;
        Ok(carried.looked.unwrap_or_default())
    }

    /// Removes a chunk for good.
    pub async fn delete(&self, chunk: ChunkId) -> Result<(), ClientError> {
        let Some(coded) = self.coded(chunk, 0, 0)? else {
            let request = self.next_request();
            return self.to_primary(ChunkOp::Delete { chunk, request }, Bytes::new()).await.map(drop);
        };
        self.to_targets(coded.set, |client, nth| async move {
            let request = client.next_request();
            let op = ChunkOp::Delete { chunk, request };
            client.to_column(coded, nth, op, Bytes::new()).await
        })
        .await
    }

    /// Has the erasure-coded sets woken that these chunks are in. Returns whether any of them hibernated; it does not
    /// wait for them.
    pub async fn wake(&self, chunks: &[ChunkId]) -> Result<bool, ClientError> {
        let map = self.map();
        let sets: BTreeSet<SetId> = chunks.iter().filter_map(|chunk| map.set_of(*chunk)).collect();
        let hibernates = |set: &SetId| map.set(*set).is_some_and(|entry| entry.hibernates());
        let mut any = false;
        for set in sets.into_iter().filter(hibernates) {
            self.call(MetaRequest::Wake { set }).await?;
            any = true;
        }
        Ok(any)
    }

    async fn read_op(
        &self,
        chunk: ChunkId,
        offset: u32,
        len: u32,
        must_exist: bool,
    ) -> Result<Summed, ClientError> {
        match self.coded(chunk, offset, len)? {
            Some(coded) => self.read_coded(coded, chunk, (offset, len), must_exist).await,
            None => {
                let op = ChunkOp::Read { chunk, offset, len, must_exist };
                Ok(self.to_primary(op, Bytes::new()).await?.data)
            }
        }
    }

    async fn to_primary(&self, op: ChunkOp, payload: Bytes) -> Result<Carried, ClientError> {
        debug_assert!(op.chunk().object.pool() == PoolId::REPLICATED, "other pools have no primaries");
        let shared = self.shared();
        let groups = shared.view().params().expect("known since connect").groups;
        let group = group_of(op.chunk(), groups);
        self.carry(shared.now(), group, op, payload).await
    }

    /// `None`: the chunk is in the replicated pool.
    fn coded(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<Option<Coded>, ClientError> {
        let pool = chunk.object.pool();
        if pool == PoolId::REPLICATED {
            return Ok(None);
        }
        let (chunk_bytes, map) = (self.params().chunk_bytes, self.map());
        let set = map.set_of(chunk).filter(|set| map.set(*set).is_some());
        let (Some(pool), Some(set)) = (map.pools.get(&pool), set) else {
            return Err(ClientError::NoPool { chunk });
        };
        if offset.checked_add(len).is_none_or(|end| end > chunk_bytes) {
            return Err(ClientError::Chunk { chunk, why: ChunkError::OutOfRange });
        }
        let rows = Rows::new(pool.shape, chunk_bytes);
        Ok(Some(Coded { set, shape: pool.shape, rows, began: self.shared().now() }))
    }

    async fn read_coded(
        &self,
        coded: Coded,
        chunk: ChunkId,
        (offset, len): (u32, u32),
        must_exist: bool,
    ) -> Result<Summed, ClientError> {
        // One read of each column.
        let ranges = coded.rows.columns(offset, len);
        let mut reads = JoinSet::new();
        for (column, (offset, len)) in ranges.into_iter().enumerate().filter(|(_, (_, len))| *len > 0) {
            let client = self.clone();
            reads.spawn(async move {
                let op = ChunkOp::Read { chunk, offset, len, must_exist };
                let group = GroupId::of_column(coded.set, column);
                let read = client.carry(coded.began, group, op, Bytes::new()).await;
                read.map(|read| (column, read.data))
            });
        }
        let mut columns = vec![Summed::default(); coded.shape.data()];
        let several = reads.len() > 1;
        while let Some(read) = reads.join_next().await {
            let (column, data) = finished(read).expect("no read is aborted")?;
            if !several {
                return Ok(data);
            }
            columns[column] = data;
        }
        Ok(joined(coded.rows, (offset, len), columns))
    }

    async fn write_coded(
        &self,
        coded: Coded,
        chunk: ChunkId,
        offset: u32,
        data: Summed,
    ) -> Result<(), ClientError> {
        let row_bytes = coded.rows.row_bytes();
        if !offset.is_multiple_of(row_bytes) {
            return Err(ClientError::InsideRow { chunk, offset, row_bytes });
        }
        if data.crcs.len() != data.bytes.len().div_ceil(BLOCK_BYTES) {
            return Err(ClientError::Chunk { chunk, why: ChunkError::Malformed });
        }
        if data.bytes.is_empty() {
            return Ok(());
        }
        let turn = self.map().set(coded.set).map_or(0, |entry| entry.turn(chunk));
        let codes = self.shared().codes(coded.shape);
        let strips = split(coded.rows, coded.shape, codes.of(turn), offset, &data);
        debug_assert_eq!(strips.len(), codes.of(turn).strips(), "every strip of the code is written");
        drop(data);
        self.to_targets(coded.set, |client, nth| {
            let strip = strips[nth].clone();
            async move { client.write_strip(coded, chunk, nth, strip).await }
        })
        .await
    }

    /// Writes a strip, and zeroes after it where others are longer. Returns the older of the epochs under which they
    /// were taken.
    async fn write_strip(
        &self,
        coded: Coded,
        chunk: ChunkId,
        nth: usize,
        strip: Strip,
    ) -> Result<Epoch, ClientError> {
        let Strip { offset, bytes, crcs, zeroes } = strip;
        let len = bytes.len() as u32;
        let request = self.next_request();
        let write = ChunkOp::Write { chunk, offset, len, request, crcs };
        let request = self.next_request();
        let zero = ChunkOp::Zero { chunk, offset: offset + len, len: zeroes, up_to: None, request };
        match (len, zeroes) {
            (_, 0) => self.to_column(coded, nth, write, bytes).await,
            (0, _) => self.to_column(coded, nth, zero, Bytes::new()).await,
            _ => {
                let write = self.to_column(coded, nth, write, bytes);
                let zero = self.to_column(coded, nth, zero, Bytes::new());
                let (written, zeroed) = tokio::try_join!(write, zero)?;
                Ok(written.min(zeroed))
            }
        }
    }

    /// Returns the epoch under which it was taken.
    async fn to_column(
        &self,
        coded: Coded,
        nth: usize,
        op: ChunkOp,
        payload: Bytes,
    ) -> Result<Epoch, ClientError> {
        let group = GroupId::of_column(coded.set, nth);
        let carried = self.carry(coded.began, group, op, payload).await?;
        debug_assert!(carried.version.is_some(), "a change that was done has a version");
        Ok(carried.version.map_or(Epoch(0), |version| version.epoch))
    }

    /// Sends all strips of a write, as [`CodedWrite`] orders.
    async fn to_targets<F>(&self, set: SetId, send: impl Fn(Client, usize) -> F) -> Result<(), ClientError>
    where
        F: Future<Output = Result<Epoch, ClientError>> + Send + 'static,
    {
        let shared = self.shared();
        let mut changes = shared.changes();
        let mut write = CodedWrite::default();
        let mut running = JoinSet::new();
        let mut handles: Vec<(usize, AbortHandle)> = Vec::new();
        loop {
            let map = shared.view().map().clone();
            let orders = write.next(map.set(set).expect("what is known of a set stays known"));
            let Orders::Go { send: sent, drop } = orders else { return Ok(()) };
            handles.iter().filter(|(nth, _)| drop.contains(nth)).for_each(|(_, handle)| handle.abort());
            for nth in sent {
                let strip = send(self.clone(), nth);
                let handle = running.spawn(async move { strip.await.map(|epoch| (nth, epoch)) });
                handles.retain(|(other, _)| *other != nth);
                handles.push((nth, handle));
            }
            tokio::select! {
                Some(done) = running.join_next() => {
                    if let Some(done) = finished(done) {
                        let (nth, epoch) = done?;
                        write.taken(nth, epoch);
                    }
                }
                // Cannot fail: we hold the sender.
                _ = changes.changed() => {}
            }
        }
    }
}

/// The outcome of a task; `None`: it was aborted.
fn finished<T>(done: Result<T, JoinError>) -> Option<T> {
    match done {
        Ok(outcome) => Some(outcome),
        Err(error) if error.is_cancelled() => None,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// A range of a chunk from what was read of its columns.
fn joined(rows: Rows, (offset, len): (u32, u32), columns: Vec<Summed>) -> Summed {
    let mut bytes = BytesMut::with_capacity(len as usize);
    let mut crcs = Vec::with_capacity(len as usize / BLOCK_BYTES + 2);
    let mut taken = vec![(0, 0); columns.len()];
    for part in rows.parts(offset, len) {
        let (bytes_taken, crcs_taken) = &mut taken[part.column];
        let blocks = (part.offset as usize % BLOCK_BYTES + part.len as usize).div_ceil(BLOCK_BYTES);
        let column = &columns[part.column];
        bytes.extend_from_slice(&column.bytes[*bytes_taken..][..part.len as usize]);
        crcs.extend_from_slice(&column.crcs[*crcs_taken..][..blocks]);
        *bytes_taken += part.len as usize;
        *crcs_taken += blocks;
    }
    debug_assert_eq!(bytes.len(), len as usize, "the parts of a range are all of it");
    Summed { bytes: bytes.freeze(), crcs }
}
