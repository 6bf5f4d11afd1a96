//! Where objects' bytes are stored, and how they are read back.
//!
//! A large object has its own object id and is written in pieces while it is still being received. Small ones are
//! packed: those that arrive together are written one after another into a shared chunk with one write, each starting
//! at a block boundary, because a write of one block costs much the same as one of many. A pack is only ever appended
//! to ([`crate::bytes::place`]). Several packs take turns, so that small objects spread over all servers.
//!
//! Every write begins where a row of the object's pool does, so all pieces but the last of a chunk are whole rows.
//!
//! Data comes before names: an [`Unnamed`] owns data that is written and not yet named, and sends it to the garbage
//! when it is dropped, whether because of an error or because the client disconnected. If this process dies first, the
//! namespace does it: every object is leased before it is written to ([`NamespaceOp::Lease`]).

use crate::bytes::backend::{Backend, BackendError, Pool};
use crate::bytes::md5::{Lanes, Md5};
use crate::bytes::names::{NameError, Names};
use crate::bytes::place::{Item, Place, Unnamed};
use bytes::BytesMut;
use ebb_client::Summed;
use ebb_client::budget::{Budget, Share};
use ebb_types::{
    BLOCK_BYTES, ChunkId, CrcOfBlocks, Extent, Moment, NamespaceOp, PoolId, STRIP_BLOCKS, Shape, crc32c,
    piece_crcs,
};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Objects up to this size are packed.
pub const PACKED_MAX: usize = 512 << 10;
/// Size of the pieces in which large objects are written, at least.
pub const PIECE_BYTES: usize = 1 << 20;
/// Rows of a piece in an erasure-coded pool: each server gets 512 KiB at a time, because a durable write costs a server
/// much whatever its length.
const PIECE_ROWS: usize = 32;
/// Longest row of any pool.
const ROW_BYTES_MAX: usize = Shape::DATA_MAX as usize * STRIP_BLOCKS as usize * BLOCK_BYTES;
/// Size of the pieces in which they are read: small enough that a piece is still in the processor's cache when it is
/// copied on, on both sides.
const READ_BYTES: u64 = 256 << 10;
/// The same in erasure-coded pools: every server of a set has a part worth asking for.
const CODED_READ_BYTES: u64 = 1 << 20;
/// Memory that every object being received may use; in an erasure-coded pool, up to a row. A client that sends more
/// than this at a time first waits for a share of [`PIECES_BYTES`].
const START_BYTES: usize = 32 << 10;
/// Pieces of one object that are written concurrently.
const WRITES_AHEAD: usize = 4;
/// All pieces larger than [`START_BYTES`] together, those being filled and those being written.
const PIECES_BYTES: usize = 32 << 20;
const _: () = assert!(PACKED_MAX < PIECE_BYTES, "what is packed is all in the first piece");
const _: () = assert!(START_BYTES.is_multiple_of(BLOCK_BYTES) && START_BYTES < PIECE_BYTES);
const _: () = assert!(READ_BYTES.is_multiple_of(BLOCK_BYTES as u64), "blocks' checksums make up an extent's");
const _: () = assert!(CODED_READ_BYTES.is_multiple_of(BLOCK_BYTES as u64), "as above");
const _: () = assert!(PIECE_ROWS * ROW_BYTES_MAX < PIECES_BYTES, "the longest piece gets its share");

/// A piece that is not full by then is written as it is, so that no client holds a share for long; sooner if others
/// wait for one.
const FLUSH_AFTER: Duration = Duration::from_secs(1);
const FLUSH_SOON: Duration = Duration::from_millis(50);
/// A gateway that receives nothing for this long returns its leases.
const IDLE: Duration = Duration::from_secs(300);

pub struct Store<B> {
    backend: Arc<B>,
    names: Arc<Names<B>>,
    /// Of the pools that were written to.
    places: Mutex<BTreeMap<PoolId, Arc<Place<B>>>>,
    discards: mpsc::UnboundedSender<Vec<Extent>>,
    /// Shared by all writers.
    writing: Arc<()>,
    last_write: Mutex<Instant>,
    pub(crate) pieces: Budget,
    pub(crate) md5: Lanes,
    /// Shared by all who read an object in several pieces.
    pub(crate) reading: Arc<()>,
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
    debug_assert_eq!(crcs.len() * BLOCK_BYTES, piece.len(), "a checksum for each block");
    Summed { bytes: piece.freeze(), crcs }
}

impl<B: Backend> Store<B> {
    /// `discards` receives data that was written in vain.
    pub fn new(backend: Arc<B>, names: Arc<Names<B>>, discards: mpsc::UnboundedSender<Vec<Extent>>) -> Self {
        let (writing, last_write) = (Arc::new(()), Mutex::new(Instant::now()));
        let (pieces, md5, reading) = (Budget::new(PIECES_BYTES), Lanes::default(), Arc::new(()));
        let places = Mutex::default();
        Store { backend, names, places, discards, writing, last_write, pieces, md5, reading }
    }

    fn place(&self, pool: &Pool) -> Arc<Place<B>> {
        let new = || {
            let (backend, names) = (self.backend.clone(), self.names.clone());
            Arc::new(Place::new(pool.clone(), backend, names, self.discards.clone()))
        };
        let place = self.places().entry(pool.id).or_insert_with(new).clone();
        debug_assert_eq!(place.pool.row_bytes, pool.row_bytes, "a pool keeps its code");
        place
    }

    fn places(&self) -> std::sync::MutexGuard<'_, BTreeMap<PoolId, Arc<Place<B>>>> {
        self.places.lock().expect("no panic under this lock")
    }

    fn last_write(&self) -> std::sync::MutexGuard<'_, Instant> {
        self.last_write.lock().expect("no panic under this lock")
    }

    /// Returns leases that are no longer needed. Returns whether it keeps some.
    pub async fn give_back(&self) -> bool {
        let writing = Arc::strong_count(&self.writing) > 1;
        let idle = !writing && self.last_write().elapsed() >= IDLE;
        let places: Vec<Arc<Place<B>>> = self.places().values().cloned().collect();
        let mut keeps = writing;
        for place in places {
            keeps |= place.give_back(idle).await;
        }
        keeps
    }

    fn unnamed(&self, extents: Vec<Extent>) -> Unnamed {
        Unnamed::new(extents, self.discards.clone())
    }

    /// Starts receiving an object. `expected`: its size, if known; only a hint.
    pub fn writer(&self, pool: &Pool, expected: Option<u64>) -> Writer<'_, B> {
        *self.last_write() = Instant::now();
        Writer {
            _writing: self.writing.clone(),
            reach: u64::from(self.backend.chunk_bytes()),
            store: self,
            place: self.place(pool),
            expected: expected.unwrap_or(u64::MAX),
            piece: BytesMut::new(),
            share: None,
            begun: None,
            own: None,
            losses: 0,
            written: 0,
            sum: CrcOfBlocks::default(),
            md5: Md5::new(&self.md5),
            writes: JoinSet::new(),
        }
    }

    pub fn now(&self) -> Moment {
        self.backend.now()
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
            let is_coded = extent.object.pool() != PoolId::REPLICATED;
            let most = if is_coded { CODED_READ_BYTES } else { READ_BYTES };
            while from < to {
                let at = extent.offset + (from - start);
                let in_chunk = at % chunk_bytes;
                let len = (to - from).min(chunk_bytes - in_chunk).min(most);
                pieces.push(Piece {
                    at: from,
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
        debug_assert_eq!(
            pieces.iter().map(|piece| u64::from(piece.len)).sum::<u64>(),
            range.end.min(start).saturating_sub(range.start),
            "the pieces are all of the range"
        );
        debug_assert!(
            pieces.is_sorted_by(|one, next| one.at + u64::from(one.len) == next.at),
            "no gap is between pieces"
        );
        pieces
    }
}

/// A part of one chunk that is read with one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Position in the object.
    pub at: u64,
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
    place: Arc<Place<B>>,
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
    /// How often all leases had been lost when its id was leased.
    losses: u64,
    /// Bytes of it before the piece.
    written: u64,
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
            debug_assert!(take > 0, "there is room for a byte");
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

    /// Writes the whole rows received so far: a slow client holds no share of the memory for long.
    pub async fn flush(&mut self) -> Result<(), BackendError> {
        let row_bytes = self.place.pool.row_bytes;
        let whole = self.piece.len() / row_bytes * row_bytes;
        let rest = BytesMut::from(&self.piece[whole..]);
        if whole > 0 {
            self.piece.truncate(whole);
            self.write_piece().await?;
        }
        self.share = None;
        self.piece = rest;
        self.begun = None;
        Ok(())
    }

    /// Size of the piece being filled: whole rows, unless the chunk ends.
    fn piece_bytes(&self) -> usize {
        let (chunk_bytes, row_bytes) =
            (u64::from(self.store.backend.chunk_bytes()), self.place.pool.row_bytes);
        let rows = PIECE_BYTES.max(PIECE_ROWS * row_bytes).next_multiple_of(row_bytes);
        (chunk_bytes - self.written % chunk_bytes).min(rows as u64) as usize
    }

    /// Returns when everything is durable; also returns the MD5.
    pub async fn finish(mut self) -> Result<(Unnamed, [u8; 16]), BackendError> {
        if self.own.is_none() && self.piece.len() <= PACKED_MAX {
            debug_assert!(self.written == 0 && self.writes.is_empty(), "what is packed is all in the piece");
            let len = self.piece.len() as u64;
            let data = filled(std::mem::take(&mut self.piece), &mut self.sum);
            self.md5.add(data.bytes.slice(..len as usize)).await;
            let item = Item { data, len, crc: self.sum.finish() };
            let stored = match len {
                0 => Ok(self.store.unnamed(Vec::new())),
                _ => self.place.pack(item).await,
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
        debug_assert_eq!(own.own().len, self.written, "the extent names all that was written");
        own.own().crc = self.sum.finish();
        Ok((own, self.md5.finish().await))
    }

    async fn write_piece(&mut self) -> Result<(), BackendError> {
        if self.own.is_none() {
            self.losses = self.store.names.losses();
            let object = self.place.next_id().await?;
            let extent = Extent { object, offset: 0, len: 0, shared: false, crc: 0 };
            self.own = Some(self.store.unnamed(vec![extent]));
        }
        let extent = self.own.as_mut().expect("set above").own();
        let (at, object) = (extent.len, extent.object);
        let end = at + self.piece.len() as u64;
        debug_assert!(end > at, "an empty piece is no extent");
        if end > self.reach {
            let bytes = end.max(2 * self.reach);
            let grow = NamespaceOp::Lease { first: object, count: 1, bytes };
            self.store.names.commit(grow).await.map_err(NameError::into_backend)?;
            self.reach = bytes;
        }
        debug_assert!(end <= self.reach, "what is not leased may be freed while it is written");
        extent.len = end;
        self.written = end;
        let chunk_bytes = u64::from(self.store.backend.chunk_bytes());
        let data = filled(std::mem::take(&mut self.piece), &mut self.sum);
        self.begun = None;
        self.md5.add(data.bytes.slice(..(end - at) as usize)).await;
        let chunk = ChunkId { object, index: (at / chunk_bytes) as u32 };
        let offset = (at % chunk_bytes) as u32;
        debug_assert!((offset as usize).is_multiple_of(self.place.pool.row_bytes), "no row is written twice");
        debug_assert!(at % chunk_bytes + (end - at) <= chunk_bytes, "{chunk}: a piece is of one chunk");
        while self.writes.len() >= WRITES_AHEAD {
            let written = self.writes.join_next().await.expect("some are under way");
            written.expect("a write neither panics nor is aborted")?;
        }
        let (backend, share) = (self.store.backend.clone(), self.share.take());
        let (names, losses) = (self.store.names.clone(), self.losses);
        self.writes.spawn(async move {
            let written = backend.write(chunk, offset, data).await;
            drop(share);
            if written == Err(BackendError::GivenUp) {
                names.lose(losses);
            }
            written
        });
        Ok(())
    }
}
