//! Where objects' bytes are stored, and how they are read back.
//!
//! A large object has its own object id and is written in pieces while it is still being received. Small ones are
//! packed: those that arrive together are written one after another into a shared chunk with one write, each starting
//! at a block boundary, because a write of one block costs much the same as one of many. A pack is only ever appended
//! to. Several packs take turns, so that small objects spread over all servers.
//!
//! Data comes before names: an [`Unnamed`] owns data that is written and not yet named, and sends it to the garbage
//! when it is dropped, whether because of an error or because the client disconnected. If this process dies first, the
//! namespace does it: every object is leased before it is written to ([`NamespaceOp::Lease`]).

use super::backend::{Backend, BackendError};
use super::batch::{Batcher, Limits};
use super::md5::{Lanes, Md5};
use super::names::{NameError, Names};
use bytes::BytesMut;
use ebb_client::Summed;
use ebb_client::budget::{Budget, Share};
use ebb_types::{BLOCK_BYTES, ChunkId, CrcOfBlocks, Extent, NamespaceOp, ObjectId, crc32c, piece_crcs};
use futures_util::FutureExt;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Objects up to this size are packed.
pub const PACKED_MAX: usize = 512 << 10;
/// Size of the pieces in which large objects are written.
pub const PIECE_BYTES: usize = 1 << 20;
/// Size of the pieces in which they are read: small enough that a piece is still in the processor's cache when it is
/// copied on, on both sides.
const READ_BYTES: u64 = 256 << 10;
/// Memory that every object being received may use. A client that sends more than this at a time first waits for a
/// share of [`PIECES_BYTES`].
const START_BYTES: usize = 32 << 10;
/// Pieces of one object that are written concurrently.
const WRITES_AHEAD: usize = 4;
/// All pieces larger than [`START_BYTES`] together, those being filled and those being written.
const PIECES_BYTES: usize = 32 << 20;
/// A piece that is not full by then is written as it is, so that no client holds a share for long; sooner if others
/// wait for one.
const FLUSH_AFTER: Duration = Duration::from_secs(1);
const FLUSH_SOON: Duration = Duration::from_millis(50);
/// Most bytes in one write to a pack.
const PACK_WRITE_MAX: usize = 1 << 20;
/// Concurrent writes to packs: few, so that many objects share one.
const PACK_WRITES: usize = 2;
/// Packs that take turns, and how full the last one is before another is added.
const OPEN_PACKS: usize = 8;
const PACK_JOINS_AT: usize = 1 << 20;
/// Object ids leased at once.
const IDS_AHEAD: u32 = 64;
/// By this time data in a pack has its name, or will never get one.
const NAMED_WITHIN: Duration = Duration::from_secs(60);
/// A gateway that receives nothing for this long returns its leases.
const IDLE: Duration = Duration::from_secs(300);

pub struct Store<B> {
    backend: Arc<B>,
    ids: Arc<Ids<B>>,
    names: Arc<Names<B>>,
    packs: Arc<Packs<B>>,
    small: Arc<Batcher<Item, Result<Unnamed, BackendError>>>,
    discards: mpsc::UnboundedSender<Vec<Extent>>,
    /// Shared by all writers.
    writing: Arc<()>,
    last_write: Mutex<Instant>,
    pub(super) pieces: Budget,
    md5: Lanes,
    /// Objects being read in several pieces.
    readers: AtomicUsize,
}

/// A supply of leased object ids.
struct Ids<B> {
    backend: Arc<B>,
    names: Arc<Names<B>>,
    rest: tokio::sync::Mutex<Leased<Range<u64>>>,
}

/// Something leased, and how often all leases had been lost at that time.
struct Leased<T> {
    what: T,
    losses: u64,
}

impl<B: Backend> Ids<B> {
    async fn next(&self) -> Result<ObjectId, BackendError> {
        let mut rest = self.rest.lock().await;
        while rest.what.is_empty() || rest.losses != self.names.losses() {
            let losses = self.names.losses();
            let unused: Vec<ObjectId> = rest.what.clone().map(ObjectId).collect();
            if !unused.is_empty() {
                // Perhaps not all leases were lost.
                let close = NamespaceOp::Close { packs: Vec::new(), unused };
                self.names.commit(close).await.map_err(NameError::into_backend)?;
                rest.what = 0..0;
            }
            let first = self.backend.allocate(IDS_AHEAD).await?;
            let bytes = u64::from(self.backend.chunk_bytes());
            match self.names.commit(NamespaceOp::Lease { first, count: IDS_AHEAD, bytes }).await {
                Ok(_) => {
                    *rest = Leased { what: first.0..first.0 + u64::from(IDS_AHEAD), losses };
                }
                // Another gateway has leased newer ids meanwhile.
                Err(NameError::Refused(_)) => {}
                Err(NameError::Backend(error)) => return Err(error),
            }
        }
        Ok(ObjectId(rest.what.next().expect("just filled")))
    }
}

/// Data that is durable but has no name yet.
pub struct Unnamed {
    extents: Vec<Extent>,
    discards: mpsc::UnboundedSender<Vec<Extent>>,
}

impl Unnamed {
    /// Takes the extents to be named by a commit: from here on the commit is responsible for them.
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

/// A small object to be written to a pack.
struct Item {
    data: Summed,
    /// Length of its own bytes: `data` is padded beyond them.
    len: u64,
    /// Checksum of its extent.
    crc: u32,
}

/// Pads a piece of an object with zeroes to whole blocks: a write of whole blocks needs no prior read. Here the bytes'
/// checksums are computed, once for all (R14); `sum` adds those of the object's own bytes.
fn filled(mut piece: BytesMut, sum: &mut CrcOfBlocks) -> Summed {
    let len = piece.len();
    let mut crcs = piece_crcs(0, &piece);
    sum.add(&crcs);
    piece.resize(len.next_multiple_of(BLOCK_BYTES), 0);
    if let (true, Some(last)) = (piece.len() > len, crcs.last_mut()) {
        *last = crc32c(&piece[piece.len() - BLOCK_BYTES..]);
    }
    Summed { bytes: piece.freeze(), crcs }
}

struct Pack {
    object: ObjectId,
    next: usize,
    losses: u64,
    written: Instant,
}

/// The packs, except those being written at this moment.
#[derive(Default)]
struct Shelf {
    open: VecDeque<Pack>,
    /// Packs that are no longer written to; they are closed when everything in them has its name.
    full: Vec<Pack>,
}

struct Packs<B> {
    backend: Arc<B>,
    ids: Arc<Ids<B>>,
    shelf: Mutex<Shelf>,
    discards: mpsc::UnboundedSender<Vec<Extent>>,
}

impl<B: Backend> Packs<B> {
    /// Writes all items one after another. One outcome for all: they share the write.
    async fn write(&self, items: Vec<Item>) -> Vec<Result<Unnamed, BackendError>> {
        let total: usize = items.iter().map(|item| item.data.bytes.len()).sum();
        let mut pack = match self.open(total).await {
            Ok(pack) => pack,
            Err(error) => return items.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut at = pack.next as u64;
        let mut unnamed = Vec::with_capacity(items.len());
        for Item { data, len, crc } in &items {
            let extent = Extent { object: pack.object, offset: at, len: *len, shared: true, crc: *crc };
            unnamed.push(Unnamed { extents: vec![extent], discards: self.discards.clone() });
            at += data.bytes.len() as u64;
        }
        let chunk = ChunkId { object: pack.object, index: 0 };
        let offset = pack.next as u32;
        pack.next += total;
        let outcome = self.backend.write(chunk, offset, joined(items, total)).await;
        pack.written = Instant::now();
        self.shelf().open.push_back(pack);
        // After an error the range may or may not have been written: it is never used again.
        unnamed.into_iter().map(|data| outcome.clone().map(|()| data)).collect()
    }

    fn shelf(&self) -> std::sync::MutexGuard<'_, Shelf> {
        self.shelf.lock().expect("no panic under this lock")
    }

    async fn open(&self, bytes: usize) -> Result<Pack, BackendError> {
        let losses = self.ids.names.losses();
        if let Some(pack) = self.next_open(bytes, losses) {
            return Ok(pack);
        }
        Ok(Pack { object: self.ids.next().await?, next: 0, losses, written: Instant::now() })
    }

    /// The next pack in turn. A new one is added when all others have filled a little.
    fn next_open(&self, bytes: usize, losses: u64) -> Option<Pack> {
        let mut shelf = self.shelf();
        let (kept, lost) = std::mem::take(&mut shelf.open).into_iter().partition(|p| p.losses == losses);
        shelf.open = kept;
        shelf.full.extend(Vec::from(lost));
        let joins = shelf.open.iter().all(|pack| pack.next >= PACK_JOINS_AT);
        if joins && shelf.open.len() + PACK_WRITES <= OPEN_PACKS {
            return None;
        }
        let pack = shelf.open.pop_front()?;
        if pack.next + bytes <= self.backend.chunk_bytes() as usize {
            return Some(pack);
        }
        shelf.full.push(pack);
        None
    }

    /// Takes the packs that can be closed off the shelf.
    fn take_closable(&self, idle: bool) -> Vec<Pack> {
        let mut shelf = self.shelf();
        if idle {
            let open = std::mem::take(&mut shelf.open);
            shelf.full.extend(open);
        }
        let named = |pack: &mut Pack| pack.written.elapsed() >= NAMED_WITHIN;
        shelf.full.extract_if(.., named).collect()
    }
}

/// The items' data, one after another.
fn joined(mut items: Vec<Item>, total: usize) -> Summed {
    if items.len() == 1 {
        return items.swap_remove(0).data;
    }
    let (mut bytes, mut crcs) = (BytesMut::with_capacity(total), Vec::with_capacity(total / BLOCK_BYTES));
    for item in items {
        bytes.extend_from_slice(&item.data.bytes);
        crcs.extend(item.data.crcs);
    }
    Summed { bytes: bytes.freeze(), crcs }
}

impl<B: Backend> Store<B> {
    /// `discards` receives data that was written in vain.
    pub fn new(backend: Arc<B>, names: Arc<Names<B>>, discards: mpsc::UnboundedSender<Vec<Extent>>) -> Self {
        let rest = tokio::sync::Mutex::new(Leased { what: 0..0, losses: 0 });
        let ids = Arc::new(Ids { backend: backend.clone(), names: names.clone(), rest });
        let packs = Arc::new(Packs {
            backend: backend.clone(),
            ids: ids.clone(),
            shelf: Mutex::default(),
            discards: discards.clone(),
        });
        let weight = PACK_WRITE_MAX.min(backend.chunk_bytes() as usize);
        let limits = Limits { running: PACK_WRITES, items: weight / BLOCK_BYTES, weight };
        let weigh = |item: &Item| item.data.bytes.len();
        let shelf = packs.clone();
        let small = Batcher::new(limits, weigh, move |items| {
            let packs = shelf.clone();
            async move { packs.write(items).await }.boxed()
        });
        let (writing, last_write) = (Arc::new(()), Mutex::new(Instant::now()));
        let (pieces, md5, readers) = (Budget::new(PIECES_BYTES), Lanes::default(), AtomicUsize::new(0));
        Store { backend, ids, names, packs, small, discards, writing, last_write, pieces, md5, readers }
    }

    fn last_write(&self) -> std::sync::MutexGuard<'_, Instant> {
        self.last_write.lock().expect("no panic under this lock")
    }

    /// Returns leases that are no longer needed. Returns whether it keeps some.
    pub async fn give_back(&self) -> bool {
        let writing = Arc::strong_count(&self.writing) > 1;
        let idle = !writing && self.last_write().elapsed() >= IDLE;
        let closable = self.packs.take_closable(idle);
        let mut rest = self.ids.rest.lock().await;
        let unused = if idle { rest.what.clone().map(ObjectId).collect() } else { Vec::new() };
        let packs: Vec<ObjectId> = closable.iter().map(|pack| pack.object).collect();
        if !packs.is_empty() || !unused.is_empty() {
            match self.names.commit(NamespaceOp::Close { packs, unused }).await {
                Ok(_) if idle => rest.what = 0..0,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot return object ids; will retry in the next round");
                    self.packs.shelf().full.extend(closable);
                }
            }
        }
        let shelf = self.packs.shelf();
        writing || !rest.what.is_empty() || !shelf.open.is_empty() || !shelf.full.is_empty()
    }

    fn unnamed(&self, extents: Vec<Extent>) -> Unnamed {
        Unnamed { extents, discards: self.discards.clone() }
    }

    /// Starts receiving an object. `expected`: its size, if known; only a hint.
    pub fn writer(&self, expected: Option<u64>) -> Writer<'_, B> {
        *self.last_write() = Instant::now();
        Writer {
            _writing: self.writing.clone(),
            reach: u64::from(self.backend.chunk_bytes()),
            store: self,
            expected: expected.unwrap_or(u64::MAX),
            piece: BytesMut::new(),
            share: None,
            begun: None,
            own: None,
            sum: CrcOfBlocks::default(),
            md5: Md5::new(&self.md5),
            writes: JoinSet::new(),
        }
    }

    /// Counts a reader for as long as the returned value lives.
    pub fn reading(self: &Arc<Self>) -> Reading<B> {
        self.readers.fetch_add(1, Ordering::Relaxed);
        Reading(self.clone())
    }

    /// Reads a piece.
    pub async fn read(&self, piece: Piece) -> Result<Summed, BackendError> {
        let data = self.backend.read(piece.chunk, piece.offset, piece.len).await?;
        if data.bytes.len() != piece.len as usize {
            return Err(BackendError::Failed(format!(
                "{} answered {} bytes instead of {}",
                piece.chunk,
                data.bytes.len(),
                piece.len
            )));
        }
        Ok(data)
    }

    /// The pieces that make up `range` of an object, in order.
    pub fn pieces(&self, extents: &[Extent], range: Range<u64>) -> Vec<Piece> {
        let chunk_bytes = u64::from(self.backend.chunk_bytes());
        let mut pieces = Vec::new();
        let mut start = 0;
        for extent in extents {
            let end = start + extent.len;
            let (mut from, to) = (range.start.max(start), range.end.min(end));
            let whole = (from, to) == (start, end);
            while from < to {
                let at = extent.offset + (from - start);
                let in_chunk = at % chunk_bytes;
                let len = (to - from).min(chunk_bytes - in_chunk).min(READ_BYTES);
                pieces.push(Piece {
                    chunk: ChunkId { object: extent.object, index: (at / chunk_bytes) as u32 },
                    offset: in_chunk as u32,
                    len: len as u32,
                    begins: whole && from == start,
                    ends: (whole && from + len == end).then_some(extent.crc),
                });
                from += len;
            }
            start = end;
        }
        pieces
    }
}

/// A counted reader.
pub struct Reading<B>(Arc<Store<B>>);

impl<B> Reading<B> {
    /// Number of readers, including this one.
    pub fn readers(&self) -> usize {
        self.0.readers.load(Ordering::Relaxed)
    }
}

impl<B> Drop for Reading<B> {
    fn drop(&mut self) {
        self.0.readers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A part of one chunk that is read with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub chunk: ChunkId,
    pub offset: u32,
    pub len: u32,
    /// First of an extent that is read whole.
    pub begins: bool,
    /// Last of such an extent: the extent's checksum.
    pub ends: Option<u32>,
}

/// Receives the bytes of one object.
pub struct Writer<'a, B> {
    _writing: Arc<()>,
    store: &'a Store<B>,
    /// Bytes of the object that are leased.
    reach: u64,
    /// Bytes still expected.
    expected: u64,
    piece: BytesMut,
    /// Share of the memory for pieces, if the piece has outgrown its start.
    share: Option<Share>,
    /// When the first byte of the piece arrived.
    begun: Option<Instant>,
    /// The object's own extent, once it has outgrown packing.
    own: Option<Unnamed>,
    /// Checksum of its bytes before the piece.
    sum: CrcOfBlocks,
    md5: Md5,
    writes: JoinSet<Result<(), BackendError>>,
}

impl<B: Backend> Writer<'_, B> {
    /// Waits while enough pieces are being written.
    pub async fn push(&mut self, mut data: &[u8]) -> Result<(), BackendError> {
        while !data.is_empty() {
            self.begun.get_or_insert_with(Instant::now);
            if self.piece.len() == self.piece.capacity() {
                self.grow().await;
            }
            let most = self.piece_bytes();
            let take = data.len().min(self.piece.capacity().min(most) - self.piece.len());
            self.piece.extend_from_slice(&data[..take]);
            self.expected = self.expected.saturating_sub(take as u64);
            data = &data[take..];
            if self.piece.len() == most {
                self.write_piece().await?;
            }
        }
        Ok(())
    }

    /// Makes room in a full piece: first a start, then enough for everything expected of it.
    async fn grow(&mut self) {
        let (len, most) = (self.piece.len(), self.piece_bytes());
        // More arrived than was expected: the rest can be of any length.
        let expected = if self.expected == 0 { most } else { self.expected.min(most as u64) as usize };
        let all = (len + expected).next_multiple_of(BLOCK_BYTES).min(most);
        if len < START_BYTES {
            return self.piece.reserve(all.min(START_BYTES) - len);
        }
        if self.share.is_none() {
            self.share = Some(self.store.pieces.share(all).await);
            self.begun = Some(Instant::now());
        }
        self.piece.reserve(all - len);
    }

    /// When to [`Self::flush`] unless more bytes arrive.
    pub fn flush_at(&self) -> Option<Instant> {
        let after = if self.store.pieces.is_exhausted() { FLUSH_SOON } else { FLUSH_AFTER };
        self.begun.map(|begun| begun + after)
    }

    /// Writes the whole blocks received so far: a slow client does not hold memory for long.
    pub async fn flush(&mut self) -> Result<(), BackendError> {
        let whole = self.piece.len() / BLOCK_BYTES * BLOCK_BYTES;
        let rest = BytesMut::from(&self.piece[whole..]);
        if whole > 0 {
            self.piece.truncate(whole);
            self.write_piece().await?;
        }
        self.piece = rest;
        self.begun = None;
        Ok(())
    }

    /// Size of the piece being filled: no piece crosses a chunk boundary.
    fn piece_bytes(&self) -> usize {
        let chunk_bytes = u64::from(self.store.backend.chunk_bytes());
        let at = self.own.as_ref().map_or(0, |own| own.extents[0].len);
        (chunk_bytes - at % chunk_bytes).min(PIECE_BYTES as u64) as usize
    }

    /// Returns when everything is durable; also returns the MD5.
    pub async fn finish(mut self) -> Result<(Unnamed, [u8; 16]), BackendError> {
        if self.own.is_none() && self.piece.len() <= PACKED_MAX {
            let len = self.piece.len() as u64;
            let data = filled(std::mem::take(&mut self.piece), &mut self.sum);
            self.md5.add(data.bytes.slice(..len as usize)).await;
            let item = Item { data, len, crc: self.sum.finish() };
            let stored = match len {
                0 => Ok(self.store.unnamed(Vec::new())),
                _ => self.store.small.submit(item).await,
            };
            return Ok((stored?, self.md5.finish().await));
        }
        if !self.piece.is_empty() {
            self.write_piece().await?;
        }
        while let Some(written) = self.writes.join_next().await {
            written.expect("a write neither panics nor is aborted")?;
        }
        let mut own = self.own.take().expect("a piece was written");
        own.extents[0].crc = self.sum.finish();
        Ok((own, self.md5.finish().await))
    }

    async fn write_piece(&mut self) -> Result<(), BackendError> {
        if self.own.is_none() {
            let object = self.store.ids.next().await?;
            let extent = Extent { object, offset: 0, len: 0, shared: false, crc: 0 };
            self.own = Some(self.store.unnamed(vec![extent]));
        }
        let extent = &mut self.own.as_mut().expect("set above").extents[0];
        let (at, object) = (extent.len, extent.object);
        let end = at + self.piece.len() as u64;
        if end > self.reach {
            let bytes = end.max(2 * self.reach);
            let grow = NamespaceOp::Lease { first: object, count: 1, bytes };
            self.store.names.commit(grow).await.map_err(NameError::into_backend)?;
            self.reach = bytes;
        }
        extent.len = end;
        let chunk_bytes = u64::from(self.store.backend.chunk_bytes());
        let data = filled(std::mem::take(&mut self.piece), &mut self.sum);
        self.begun = None;
        self.md5.add(data.bytes.slice(..(end - at) as usize)).await;
        let chunk = ChunkId { object, index: (at / chunk_bytes) as u32 };
        let offset = (at % chunk_bytes) as u32;
        while self.writes.len() >= WRITES_AHEAD {
            let written = self.writes.join_next().await.expect("some are under way");
            written.expect("a write neither panics nor is aborted")?;
        }
        let (backend, share) = (self.store.backend.clone(), self.share.take());
        self.writes.spawn(async move {
            let written = backend.write(chunk, offset, data).await;
            drop(share);
            written
        });
        Ok(())
    }
}
