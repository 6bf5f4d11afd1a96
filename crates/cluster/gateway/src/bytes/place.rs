//! What the gateway holds in one pool: leased object ids, and the packs that small objects are written to.
//!
//! Every write begins where a row of the pool does. In the replicated pool a row is a block. In an erasure-coded one,
//! what a write leaves of its last row stays unused: rows are immutable.

use crate::bytes::backend::{Backend, BackendError, Pool};
use crate::bytes::batch::{Batcher, Limits};
use crate::bytes::names::{NameError, Names};
use bytes::BytesMut;
use ebb_client::Summed;
use ebb_types::{BLOCK_BYTES, ChunkId, Extent, NamespaceError, NamespaceOp, ObjectId, PoolId};
use futures_util::FutureExt;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// Most bytes in one write to a pack.
const PACK_WRITE_MAX: usize = 1 << 20;
/// Concurrent writes to packs: few, so that many objects share one.
const PACK_WRITES: usize = 2;
/// Packs that take turns, and how full the last one is before another is added.
const OPEN_PACKS: usize = 8;
const PACK_JOINS_AT: usize = 1 << 20;
/// Object ids leased at once.
const IDS_AHEAD: u32 = 64;
const _: () = assert!(PACK_WRITES < OPEN_PACKS, "a pack for each write, and one that may be added");

/// By this time data in a pack has its name, or will never get one.
const NAMED_WITHIN: Duration = Duration::from_secs(60);
/// In place of [`Leased::losses`]: what is leased may have been returned.
const UNSURE: u64 = u64::MAX;

/// The gateway's part of one pool.
pub struct Place<B> {
    pub pool: Pool,
    ids: Arc<Ids<B>>,
    packs: Arc<Packs<B>>,
    small: Arc<Batcher<Item, Result<Unnamed, BackendError>>>,
}

impl<B: Backend> Place<B> {
    /// `discards` receives data that was written in vain.
    pub fn new(
        pool: Pool,
        backend: Arc<B>,
        names: Arc<Names<B>>,
        discards: mpsc::UnboundedSender<Vec<Extent>>,
    ) -> Place<B> {
        debug_assert!(pool.row_bytes.is_multiple_of(BLOCK_BYTES), "a row has whole blocks");
        let rest = tokio::sync::Mutex::new(Leased { what: 0..0, losses: 0 });
        let ids = Arc::new(Ids { pool: pool.id, backend: backend.clone(), names, rest });
        let weight = PACK_WRITE_MAX.min(backend.chunk_bytes() as usize);
        let (ids_of_packs, shelf, row_bytes) = (ids.clone(), Mutex::default(), pool.row_bytes);
        let packs = Arc::new(Packs { backend, ids: ids_of_packs, row_bytes, shelf, discards });
        let limits = Limits { running: PACK_WRITES, items: weight / BLOCK_BYTES, weight };
        let weigh = |item: &Item| item.data.bytes.len();
        let shelf = packs.clone();
        let small = Batcher::new(
            limits,
            weigh,
            move |items| {
                let packs = shelf.clone();
                async move { packs.write(items).await }.boxed()
            },
            drop,
        );
        Place { pool, ids, packs, small }
    }

    /// A fresh id.
    pub async fn next_id(&self) -> Result<ObjectId, BackendError> {
        self.ids.next().await
    }

    /// Writes a small object to a pack.
    pub async fn pack(&self, item: Item) -> Result<Unnamed, BackendError> {
        self.small.submit(item).await
    }

    /// Returns leases that are no longer needed; all of them if the gateway is idle. Returns whether it keeps some.
    pub async fn give_back(&self, idle: bool) -> bool {
        let closable = self.packs.take_closable(idle);
        let mut rest = self.ids.rest.lock().await;
        let unused = if idle { self.ids.all(&rest.what) } else { Vec::new() };
        let packs: Vec<ObjectId> = closable.iter().map(|pack| pack.object).collect();
        if !packs.is_empty() || !unused.is_empty() {
            match self.ids.names.commit(NamespaceOp::Close { packs, unused }).await {
                Ok(_) if idle => rest.what = 0..0,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot return object ids; will retry in the next round");
                    self.packs.shelf().full.extend(closable);
                    // They may have been returned: none is used before that is sure.
                    rest.losses = if idle { UNSURE } else { rest.losses };
                }
            }
        }
        let shelf = self.packs.shelf();
        !rest.what.is_empty() || !shelf.open.is_empty() || !shelf.full.is_empty()
    }
}

/// A supply of leased object ids.
struct Ids<B> {
    pool: PoolId,
    backend: Arc<B>,
    names: Arc<Names<B>>,
    /// Serial numbers.
    rest: tokio::sync::Mutex<Leased<Range<u64>>>,
}

/// Something leased, and how often all leases had been lost at that time.
struct Leased<T> {
    what: T,
    losses: u64,
}

impl<B: Backend> Ids<B> {
    fn all(&self, serials: &Range<u64>) -> Vec<ObjectId> {
        serials.clone().map(|serial| ObjectId(serial).in_pool(self.pool)).collect()
    }

    async fn next(&self) -> Result<ObjectId, BackendError> {
        let mut rest = self.rest.lock().await;
        while rest.what.is_empty() || rest.losses != self.names.losses() {
            let losses = self.names.losses();
            let unused = self.all(&rest.what);
            if !unused.is_empty() {
                // Perhaps not all leases were lost.
                let close = NamespaceOp::Close { packs: Vec::new(), unused };
                self.names.commit(close).await.map_err(NameError::into_backend)?;
                rest.what = 0..0;
            }
            let serial = self.backend.allocate(IDS_AHEAD).await?.0;
            let first = ObjectId(serial).in_pool(self.pool);
            let bytes = u64::from(self.backend.chunk_bytes());
            match self.names.commit(NamespaceOp::Lease { first, count: IDS_AHEAD, bytes }).await {
                Ok(_) => {
                    *rest = Leased { what: serial..serial + u64::from(IDS_AHEAD), losses };
                }
                // Another gateway has leased newer ids meanwhile.
                Err(NameError::Refused(NamespaceError::NotLeased)) => {}
                Err(error) => return Err(error.into_backend()),
            }
        }
        Ok(ObjectId(rest.what.next().expect("just filled")).in_pool(self.pool))
    }
}

/// Data that is durable but has no name yet.
pub struct Unnamed {
    extents: Vec<Extent>,
    discards: mpsc::UnboundedSender<Vec<Extent>>,
}

impl Unnamed {
    pub fn new(extents: Vec<Extent>, discards: mpsc::UnboundedSender<Vec<Extent>>) -> Unnamed {
        Unnamed { extents, discards }
    }

    /// The only extent of an object that is not empty.
    pub fn own(&mut self) -> &mut Extent {
        debug_assert_eq!(self.extents.len(), 1, "what is written as one is one extent");
        &mut self.extents[0]
    }

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
pub struct Item {
    pub data: Summed,
    /// Length of its own bytes: `data` is padded beyond them.
    pub len: u64,
    /// Checksum of its extent.
    pub crc: u32,
}

struct Pack {
    object: ObjectId,
    /// Where the next write begins.
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
    row_bytes: usize,
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
        let is_whole = |item: &Item| item.data.bytes.len().is_multiple_of(BLOCK_BYTES) && item.len > 0;
        debug_assert!(items.iter().all(is_whole), "the next item would begin within a block");
        let is_padded =
            |item: &Item| item.len.next_multiple_of(BLOCK_BYTES as u64) == item.data.bytes.len() as u64;
        debug_assert!(
            items.iter().all(is_padded),
            "the janitor frees an extent's whole blocks, and no others"
        );
        debug_assert!(pack.next.is_multiple_of(self.row_bytes), "no row is written twice");
        debug_assert!(pack.next + total <= self.backend.chunk_bytes() as usize, "a pack is one chunk");
        let mut at = pack.next as u64;
        let mut unnamed = Vec::with_capacity(items.len());
        for Item { data, len, crc } in &items {
            let extent = Extent { object: pack.object, offset: at, len: *len, shared: true, crc: *crc };
            unnamed.push(Unnamed { extents: vec![extent], discards: self.discards.clone() });
            at += data.bytes.len() as u64;
        }
        let chunk = ChunkId { object: pack.object, index: 0 };
        let offset = pack.next as u32;
        pack.next = (pack.next + total).next_multiple_of(self.row_bytes);
        debug_assert!(pack.next as u64 >= at, "a pack's extents do not overlap");
        let outcome = self.backend.write(chunk, offset, joined(items, total)).await;
        if outcome == Err(BackendError::GivenUp) {
            self.ids.names.lose(pack.losses);
        }
        pack.written = Instant::now();
        self.put_back(pack);
        // After an error the range may or may not have been written: it is never used again.
        unnamed.into_iter().map(|data| outcome.clone().map(|()| data)).collect()
    }

    fn shelf(&self) -> std::sync::MutexGuard<'_, Shelf> {
        self.shelf.lock().expect("no panic under this lock")
    }

    fn put_back(&self, pack: Pack) {
        let mut shelf = self.shelf();
        shelf.open.push_back(pack);
        debug_assert!(shelf.open.len() <= OPEN_PACKS, "few packs take turns: each is to fill");
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
        let is_open = |pack: &Pack| shelf.open.iter().any(|open| open.object == pack.object);
        debug_assert!(!shelf.full.iter().any(is_open), "a pack that is closed takes no more writes");
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
    debug_assert_eq!((bytes.len(), crcs.len() * BLOCK_BYTES), (total, total), "a checksum for each block");
    Summed { bytes: bytes.freeze(), crcs }
}
