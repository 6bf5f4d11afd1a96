//! Clients of the erasure-coded pool. Each stores chunks of its own, reads them back, and deletes some: what was
//! acknowledged must read as it was written, whatever happens to servers. A chunk is written once, or is a pack: filled
//! by several writes, each of which begins with a row, whatever became of the one before. The client library's own
//! [`CodedWrite`] and [`Request`] decide. Strips are computed here from the definition of a row, not by the library's
//! code.

mod drive;

use crate::world::client::Heard;
use bytes::Bytes;
use ebb_client_core::{CodedWrite, Patience, Request, View};
use ebb_erasure::Codes;
use ebb_types::{
    BLOCK_BYTES, ChunkId, Epoch, ObjectId, PoolId, Random, Rows, STRIP_BLOCKS, SetId, Shape, mix,
};
use std::collections::BTreeMap;

/// Coders have the numbers from here on; other clients have smaller ones, the administrator a greater one.
pub const CODERS: u32 = 500;
/// Instead of the index of an operation in the history.
pub const CODED_OP: usize = usize::MAX;
/// Most blocks of a chunk that are written.
const BLOCKS_MAX: u64 = 64;

/// A range of a chunk that was, or may have been, written by one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    pub chunk: ChunkId,
    /// In bytes.
    pub offset: u32,
    pub len: u32,
    /// The blocks of every column that it takes.
    pub first: u32,
    pub blocks: u32,
    /// Under which all its strips were taken; zero before that.
    pub epoch: Epoch,
}

impl Stored {
    pub fn takes(&self, block: u32) -> bool {
        (self.first..self.first + self.blocks).contains(&block)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Put,
    Get,
    Delete,
}

/// The request for one strip, or one column's part of a read.
struct Part {
    request: Request,
    payload: Bytes,
    attempt: u64,
}

struct Work {
    job: Job,
    stored: Stored,
    write: CodedWrite,
    parts: BTreeMap<usize, Part>,
    patience: Patience,
}

pub struct Coder {
    id: u32,
    random: Random,
    view: View,
    heard: Heard,
    work: Option<Work>,
    attempts: u64,
    requests: u64,
    chunks: u64,
    /// Operations still to do.
    left: u32,
    /// Acknowledged and not asked to be deleted.
    pub stored: Vec<Stored>,
    /// Chunks whose deletion was acknowledged.
    pub deleted: Vec<Stored>,
    to_read: Vec<Stored>,
    /// Packs with room, and where the next write to each begins.
    open: BTreeMap<ChunkId, u32>,
}

impl Coder {
    pub fn new(id: u32, random: Random) -> Coder {
        Coder {
            id,
            random,
            view: View::default(),
            heard: Heard::default(),
            work: None,
            attempts: 0,
            requests: 0,
            chunks: 0,
            left: 0,
            stored: Vec::new(),
            deleted: Vec::new(),
            to_read: Vec::new(),
            open: BTreeMap::new(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.work.is_none() && self.left == 0 && self.to_read.is_empty()
    }

    /// The set in which it is storing something.
    pub fn stores(&self) -> Option<SetId> {
        self.works_in().filter(|_| self.work.as_ref().is_some_and(|work| work.job == Job::Put))
    }

    pub fn works_in(&self) -> Option<SetId> {
        self.view.map().set_of(self.work.as_ref()?.stored.chunk)
    }

    /// Reads all that it has stored, after the rest of its work.
    pub fn read_all(&mut self) {
        self.to_read = self.stored.clone();
    }

    fn next_chunk(&mut self) -> ChunkId {
        self.chunks += 1;
        let serial = u64::from(self.id) << 32 | self.chunks;
        ChunkId { object: ObjectId(serial).in_pool(PoolId(1)), index: 0 }
    }

    /// In a chunk of its own, or in a pack behind the write before, whatever became of that. `packs`: how likely, per
    /// mille; zero: there are none.
    fn next_write(&mut self, chunk_bytes: u32, packs: u64) -> Stored {
        let packs_it = packs > 0 && !self.open.is_empty() && self.random.chance(packs);
        let (chunk, offset) = if packs_it {
            let nth = self.random.index(self.open.len());
            self.open.iter().nth(nth).map(|(chunk, at)| (*chunk, *at)).expect("one of them")
        } else {
            (self.next_chunk(), 0)
        };
        let map = self.view.map();
        let set =
            map.set_of(chunk).and_then(|set| map.set(set)).expect("a coder works when it knows the set");
        let rows = Rows::new(set.shape, chunk_bytes);
        let row_blocks = u64::from(rows.row_bytes() / BLOCK_BYTES as u32);
        let most = u64::from((chunk_bytes - offset) / BLOCK_BYTES as u32).min(BLOCKS_MAX);
        let most = if packs > 0 { most.min(row_blocks * 3 / 2) } else { most };
        let len = self.random.between(1, most) as u32 * BLOCK_BYTES as u32;
        let (first, blocks) = rows.blocks(offset, len);
        let end = (offset + len).next_multiple_of(rows.row_bytes());
        self.open.remove(&chunk);
        if packs > 0 && end < chunk_bytes {
            self.open.insert(chunk, end);
        }
        Stored { chunk, offset, len, first, blocks, epoch: Epoch(0) }
    }

    /// Takes one of the chunks that it stored, with all that is in it, to delete it.
    fn take_chunk(&mut self, index: usize) -> Stored {
        let taken = self.stored.remove(index);
        self.stored.retain(|stored| stored.chunk != taken.chunk);
        self.open.remove(&taken.chunk);
        taken
    }
}

/// The bytes of a write.
fn content(stored: Stored) -> Vec<u8> {
    let mut random = Random::new(mix(stored.chunk.object.0 ^ u64::from(stored.offset) << 16));
    (0..stored.len / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

/// The blocks of every strip of a write: k data, r parity, and the extra ones. As the page on erasure-coded pools
/// defines them.
pub fn strips_of(stored: Stored, shape: Shape, turn: usize) -> Vec<Vec<u8>> {
    let codes = Codes::new(shape);
    let code = codes.of(turn);
    let (bytes, blocks) = (content(stored), stored.blocks);
    let mut data = vec![Vec::new(); shape.data()];
    for (n, strip) in bytes.chunks(STRIP_BLOCKS as usize * BLOCK_BYTES).enumerate() {
        data[n % shape.data()].extend_from_slice(strip);
    }
    data.iter_mut().for_each(|column| column.resize(blocks as usize * BLOCK_BYTES, 0));
    let mut further = vec![vec![0; blocks as usize * BLOCK_BYTES]; code.strips() - shape.data()];
    let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    code.encode(&sources, &mut further.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
    [data, further].concat()
}
