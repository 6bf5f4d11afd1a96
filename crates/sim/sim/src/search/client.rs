//! Clients: each does one operation after another on a few chunks, so that operations collide. The client library's own
//! [`Request`] decides how an operation finds its primary and when it is retried.

mod drive;
mod standstill;

use crate::search::history::Action;
use crate::world::client::Heard;
use crate::world::happening::Happening;
use bytes::{Bytes, BytesMut};
use ebb_client_core::{Request, View};
use ebb_types::{BLOCK_BYTES, ChunkId, ChunkOp, Epoch, ObjectId, Random, ServerId, Version, group_of};

/// Unit of the workload: smaller than a block, so that a write must preserve the rest of the block.
pub const CELL_BYTES: u32 = 1024;
pub const CELLS_PER_BLOCK: u32 = BLOCK_BYTES as u32 / CELL_BYTES;
/// The front of a volume: one client at a time reads and writes it, under a claim that it has to raise first.
pub const FRONT: ChunkId = ChunkId { object: ObjectId(90), index: 0 };

struct Current {
    /// Index in the history.
    op: usize,
    request: Request,
    payload: Bytes,
    /// Destination of the last try. The transcript reports only the first of several tries to one destination.
    route: Option<(ServerId, Epoch)>,
    /// The version that the last try gave for the first one.
    since: Version,
}

pub struct Client {
    pub id: u32,
    pub random: Random,
    view: View,
    heard: Heard,
    current: Option<Current>,
    /// Number of the present try; answers to earlier ones are void.
    attempt: u64,
    seq: u64,
    /// Operations still to do.
    pub left: u32,
    /// A chunk that only this client uses and deletes.
    own: ChunkId,
    /// Works only during load bursts, only on its own chunks, with many operations and without pauses.
    in_bursts: bool,
    /// Its last acknowledged write: chunk, first cell, cells. It must exist from then on.
    written: Option<(ChunkId, u32, u32)>,
    /// Number of its claim on the front, from the acknowledgement on until it is refused; zero: none.
    claim: u64,
    /// What it last looked at under this claim: the look's number, first block, blocks, and their newest version.
    looked: Option<(usize, u32, u32, Version)>,
    /// Final operations, the last one first: reads of every chunk, or what a story scripts.
    pub to_do: Vec<(ChunkId, Action)>,
}

/// The timer of a client or coder.
#[derive(Default)]
pub struct Timer {
    /// Voids earlier ends.
    stamp: u64,
    due: u64,
}

/// A client or coder that stands still.
pub struct Still {
    /// What is left of its timer.
    left: u64,
    /// What arrived meanwhile.
    held: Vec<Happening>,
}

impl Client {
    pub fn new(id: u32, random: Random, in_bursts: bool) -> Client {
        let own = ChunkId { object: ObjectId(100 + u64::from(id)), index: 0 };
        Client {
            id,
            random,
            view: View::default(),
            heard: Heard::default(),
            current: None,
            attempt: 0,
            seq: 0,
            left: 0,
            own,
            in_bursts,
            written: None,
            claim: 0,
            looked: None,
            to_do: Vec::new(),
        }
    }

    pub fn is_done(&self) -> bool {
        self.current.is_none() && self.left == 0 && self.to_do.is_empty()
    }

    /// No client uses a chunk after requesting its deletion, whatever the outcome.
    fn end_op(&mut self) -> Option<Current> {
        let ended = self.current.take()?;
        if matches!(ended.request.op(), ChunkOp::Delete { .. }) {
            self.own.index += 1;
            self.written = None;
        }
        Some(ended)
    }

    fn give_claim_up(&mut self) {
        (self.claim, self.looked) = (0, None);
    }

    /// The number of the operation in progress in the history.
    pub fn under_way(&self) -> Option<usize> {
        self.current.as_ref().map(|c| c.op)
    }
}

/// A chunk that all clients share.
pub fn shared_chunk(n: u32) -> ChunkId {
    ChunkId { object: ObjectId(1 + u64::from(n) / 2), index: n % 2 }
}

/// The bytes that a write puts into cells: every word is its number.
pub fn fill(value: u64, cells: u32) -> Bytes {
    let mut bytes = BytesMut::with_capacity((cells * CELL_BYTES) as usize);
    for _ in 0..cells * CELL_BYTES / 8 {
        bytes.extend_from_slice(&value.to_le_bytes());
    }
    bytes.freeze()
}

/// The number that fills a cell; `None`: the cell is torn.
pub fn value_of(cell: &[u8]) -> Option<u64> {
    let value = u64::from_le_bytes(cell[..8].try_into().expect("eight bytes"));
    cell.chunks(8).all(|word| word == value.to_le_bytes()).then_some(value)
}

/// Chooses the next operation.
fn draw(client: &mut Client, chunks: u32, blocks: u32) -> (ChunkId, Action) {
    let random = &mut client.random;
    let cells = (blocks * CELLS_PER_BLOCK).min(64);
    let is_own = client.in_bursts || random.chance(100);
    let chunk = if is_own { client.own } else { shared_chunk(random.below(chunks.into()) as u32) };
    let first = random.below(cells.into()) as u32;
    let most = u64::from(cells - first);
    let longest = if client.in_bursts || random.chance(100) { most } else { most.min(10) };
    let len = random.between(1, longest) as u32;
    let draw = random.below(100);
    if let (0..10, Some((chunk, first, cells))) = (draw, client.written) {
        return (chunk, Action::Read { first, cells });
    }
    let action = match draw {
        0..=39 => Action::Read { first, cells: len },
        40..=88 => Action::Write { first, cells: len },
        89..=92 if is_own => Action::Delete,
        89..=96 => Action::Zero { first, cells: len },
        _ => Action::Zero { first: 0, cells: blocks * CELLS_PER_BLOCK },
    };
    (chunk, action)
}

/// The next operation on the front: the owner's, or another client raises the claim.
fn draw_front(client: &mut Client, blocks: u32, groups: u32) -> (ChunkId, Action) {
    if client.claim == 0 || client.random.chance(50) {
        client.give_claim_up();
        let noted = ChunkId::of_claim(FRONT.object, group_of(FRONT, groups));
        return (noted, Action::Write { first: 0, cells: 1 });
    }
    let random = &mut client.random;
    let blocks = blocks.min(16);
    let first = random.below(blocks.into()) as u32;
    let count = random.between(1, u64::from(blocks - first)) as u32;
    let (first_cell, cells) = (first * CELLS_PER_BLOCK, count * CELLS_PER_BLOCK);
    let action = match (random.below(100), client.looked) {
        (0..=19, _) => Action::Look { first: first_cell, cells },
        (20..=44, Some((look, first, blocks, _))) => {
            Action::Clear { first: first * CELLS_PER_BLOCK, cells: blocks * CELLS_PER_BLOCK, look }
        }
        (45..=64, _) => Action::Read { first: first_cell, cells },
        _ => Action::Write { first: first_cell, cells },
    };
    (FRONT, action)
}
