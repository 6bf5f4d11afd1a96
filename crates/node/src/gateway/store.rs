//! Where objects' bytes go, and how they come back.
//!
//! A large object has an object id of its own and is written in pieces while it is still being received. Small ones are
//! packed: those that arrive together are written behind one another into a shared chunk with one write, each at a whole
//! block, because a write costs much the same for one block as for many. A pack is only ever appended to.
//!
//! Data comes before names: an [`Unnamed`] holds what is written and not yet named, and sends it to the garbage when it
//! is dropped, be it for an error or because the client went away.

use super::backend::{Backend, BackendError};
use super::batch::{Batcher, Limits};
use bytes::{Bytes, BytesMut};
use ebb_types::{BLOCK_BYTES, ChunkId, Extent, ObjectId};
use futures_util::FutureExt;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Objects up to this size are packed.
pub const PACKED_MAX: usize = 512 << 10;
/// Size of the pieces in which large objects are written.
pub const PIECE_BYTES: usize = 1 << 20;
/// Size of the pieces in which they are read: small enough that a piece is still in the processor's cache when it is
/// copied on, on both sides.
const READ_BYTES: u64 = 256 << 10;
/// Pieces of one object that are written at once: with one being filled, what a PUT holds in memory.
const WRITES_AHEAD: usize = 4;
/// Most bytes in one write to a pack.
const PACK_WRITE_MAX: usize = 1 << 20;
/// Packs that are written to at once.
const OPEN_PACKS: usize = 2;
/// Object ids fetched at once.
const IDS_AHEAD: u32 = 256;

pub struct Store<B> {
    backend: Arc<B>,
    ids: Arc<Ids<B>>,
    packs: Arc<Batcher<Bytes, Result<Unnamed, BackendError>>>,
    discards: mpsc::UnboundedSender<Vec<Extent>>,
}

/// A supply of fresh object ids.
struct Ids<B> {
    backend: Arc<B>,
    rest: tokio::sync::Mutex<Range<u64>>,
}

impl<B: Backend> Ids<B> {
    async fn next(&self) -> Result<ObjectId, BackendError> {
        let mut rest = self.rest.lock().await;
        if rest.is_empty() {
            let first = self.backend.allocate(IDS_AHEAD).await?.0;
            *rest = first..first + u64::from(IDS_AHEAD);
        }
        Ok(ObjectId(rest.next().expect("just filled")))
    }
}

/// Data that is durable but has no name yet.
pub struct Unnamed {
    extents: Vec<Extent>,
    discards: mpsc::UnboundedSender<Vec<Extent>>,
}

impl Unnamed {
    /// The extents, to be named by a commit: from here on the commit answers for them.
    pub fn take(mut self) -> Vec<Extent> {
        std::mem::take(&mut self.extents)
    }
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        if !self.extents.is_empty() {
            // Fails only when the program ends.
            let _ = self.discards.send(std::mem::take(&mut self.extents));
        }
    }
}

struct Pack {
    object: ObjectId,
    next: usize,
}

/// The open packs that are not written to this moment.
struct Packs<B> {
    backend: Arc<B>,
    ids: Arc<Ids<B>>,
    idle: Mutex<Vec<Pack>>,
    discards: mpsc::UnboundedSender<Vec<Extent>>,
}

impl<B: Backend> Packs<B> {
    /// Writes all items behind one another. One outcome for all: they share the write.
    async fn write(&self, items: Vec<Bytes>) -> Vec<Result<Unnamed, BackendError>> {
        let padded: Vec<usize> = items.iter().map(|i| i.len().next_multiple_of(BLOCK_BYTES)).collect();
        let total: usize = padded.iter().sum();
        let mut pack = match self.open(total).await {
            Ok(pack) => pack,
            Err(error) => return items.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut at = pack.next as u64;
        let mut unnamed = Vec::with_capacity(items.len());
        for (item, padded) in items.iter().zip(&padded) {
            let extent = Extent { object: pack.object, offset: at, len: item.len() as u64, shared: true };
            unnamed.push(Unnamed { extents: vec![extent], discards: self.discards.clone() });
            at += *padded as u64;
        }
        let chunk = ChunkId { object: pack.object, index: 0 };
        let offset = pack.next as u32;
        pack.next += total;
        let outcome = self.backend.write(chunk, offset, joined(items, &padded, total)).await;
        self.idle.lock().expect("no panic under this lock").push(pack);
        // After an error the range may have been written or not: it is never used again.
        unnamed.into_iter().map(|data| outcome.clone().map(|()| data)).collect()
    }

    async fn open(&self, bytes: usize) -> Result<Pack, BackendError> {
        let idle = self.idle.lock().expect("no panic under this lock").pop();
        match idle {
            Some(pack) if pack.next + bytes <= self.backend.chunk_bytes() as usize => Ok(pack),
            _ => Ok(Pack { object: self.ids.next().await?, next: 0 }),
        }
    }
}

/// The items, each filled up with zeros to whole blocks: a write of whole blocks needs no read before it.
fn joined(mut items: Vec<Bytes>, padded: &[usize], total: usize) -> Bytes {
    if items.len() == 1 && items[0].len() == total {
        return items.swap_remove(0);
    }
    let mut all = BytesMut::with_capacity(total);
    let mut end = 0;
    for (item, padded) in items.iter().zip(padded) {
        all.extend_from_slice(item);
        end += padded;
        all.resize(end, 0);
    }
    all.freeze()
}

impl<B: Backend> Store<B> {
    /// `discards` receives what was written in vain.
    pub fn new(backend: Arc<B>, discards: mpsc::UnboundedSender<Vec<Extent>>) -> Self {
        let ids = Arc::new(Ids { backend: backend.clone(), rest: tokio::sync::Mutex::new(0..0) });
        let packs = Arc::new(Packs {
            backend: backend.clone(),
            ids: ids.clone(),
            idle: Mutex::new(Vec::new()),
            discards: discards.clone(),
        });
        let weight = PACK_WRITE_MAX.min(backend.chunk_bytes() as usize);
        let limits = Limits { running: OPEN_PACKS, items: weight / BLOCK_BYTES, weight };
        let weigh = |item: &Bytes| item.len().next_multiple_of(BLOCK_BYTES);
        let packs = Batcher::new(limits, weigh, move |items| {
            let packs = packs.clone();
            async move { packs.write(items).await }.boxed()
        });
        Store { backend, ids, packs, discards }
    }

    fn unnamed(&self, extents: Vec<Extent>) -> Unnamed {
        Unnamed { extents, discards: self.discards.clone() }
    }

    /// Starts to take in an object. `expected`: its size, if that is known; a hint only.
    pub fn writer(&self, expected: Option<u64>) -> Writer<'_, B> {
        Writer {
            store: self,
            expected: expected.unwrap_or(PIECE_BYTES as u64),
            piece: BytesMut::new(),
            own: None,
            writes: JoinSet::new(),
        }
    }

    /// Reads a piece.
    pub async fn read(&self, piece: Piece) -> Result<Bytes, BackendError> {
        let data = self.backend.read(piece.chunk, piece.offset, piece.len).await?;
        if data.len() != piece.len as usize {
            return Err(BackendError::Failed(format!(
                "{} answered {} bytes instead of {}",
                piece.chunk,
                data.len(),
                piece.len
            )));
        }
        Ok(data)
    }

    /// The pieces that `range` of an object consists of, in order.
    pub fn pieces(&self, extents: &[Extent], range: Range<u64>) -> Vec<Piece> {
        let chunk_bytes = u64::from(self.backend.chunk_bytes());
        let mut pieces = Vec::new();
        let mut start = 0;
        for extent in extents {
            let end = start + extent.len;
            let (mut from, to) = (range.start.max(start), range.end.min(end));
            while from < to {
                let at = extent.offset + (from - start);
                let in_chunk = at % chunk_bytes;
                let len = (to - from).min(chunk_bytes - in_chunk).min(READ_BYTES);
                pieces.push(Piece {
                    chunk: ChunkId { object: extent.object, index: (at / chunk_bytes) as u32 },
                    offset: in_chunk as u32,
                    len: len as u32,
                });
                from += len;
            }
            start = end;
        }
        pieces
    }
}

/// A part of one chunk that is read at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub chunk: ChunkId,
    pub offset: u32,
    pub len: u32,
}

/// Takes in the bytes of one object.
pub struct Writer<'a, B> {
    store: &'a Store<B>,
    /// Bytes still expected.
    expected: u64,
    piece: BytesMut,
    /// The object's own extent, once it has grown past what is packed.
    own: Option<Unnamed>,
    writes: JoinSet<Result<(), BackendError>>,
}

impl<B: Backend> Writer<'_, B> {
    /// Waits while enough pieces are being written.
    pub async fn push(&mut self, mut data: &[u8]) -> Result<(), BackendError> {
        while !data.is_empty() {
            if self.piece.capacity() == 0 {
                let room = self.expected.clamp(1, PIECE_BYTES as u64) as usize;
                self.piece.reserve(room.next_multiple_of(BLOCK_BYTES));
            }
            let room = self.piece_bytes() - self.piece.len();
            let take = data.len().min(room);
            self.piece.extend_from_slice(&data[..take]);
            self.expected = self.expected.saturating_sub(take as u64);
            data = &data[take..];
            if take == room {
                self.write_piece().await?;
            }
        }
        Ok(())
    }

    /// Size of the piece being filled: none crosses a chunk's end.
    fn piece_bytes(&self) -> usize {
        let chunk_bytes = u64::from(self.store.backend.chunk_bytes());
        let at = self.own.as_ref().map_or(0, |own| own.extents[0].len);
        (chunk_bytes - at % chunk_bytes).min(PIECE_BYTES as u64) as usize
    }

    /// Returns when all is durable.
    pub async fn finish(mut self) -> Result<Unnamed, BackendError> {
        if self.own.is_none() && self.piece.len() <= PACKED_MAX {
            if self.piece.is_empty() {
                return Ok(self.store.unnamed(Vec::new()));
            }
            return self.store.packs.submit(self.piece.freeze()).await;
        }
        if !self.piece.is_empty() {
            self.write_piece().await?;
        }
        while let Some(written) = self.writes.join_next().await {
            written.expect("a write neither panics nor is aborted")?;
        }
        Ok(self.own.expect("a piece was written"))
    }

    async fn write_piece(&mut self) -> Result<(), BackendError> {
        if self.own.is_none() {
            let object = self.store.ids.next().await?;
            self.own = Some(self.store.unnamed(vec![Extent { object, offset: 0, len: 0, shared: false }]));
        }
        let extent = &mut self.own.as_mut().expect("set above").extents[0];
        let (at, object) = (extent.len, extent.object);
        extent.len += self.piece.len() as u64;
        let chunk_bytes = u64::from(self.store.backend.chunk_bytes());
        let mut data = std::mem::take(&mut self.piece);
        data.resize(data.len().next_multiple_of(BLOCK_BYTES), 0);
        let chunk = ChunkId { object, index: (at / chunk_bytes) as u32 };
        let offset = (at % chunk_bytes) as u32;
        if self.writes.len() >= WRITES_AHEAD {
            let written = self.writes.join_next().await.expect("some are under way");
            written.expect("a write neither panics nor is aborted")?;
        }
        let backend = self.store.backend.clone();
        self.writes.spawn(async move { backend.write(chunk, offset, data.freeze()).await });
        Ok(())
    }
}
