//! A chunk that was deleted takes no more writes: ids are never used again, so the bytes would belong to nothing. (R19)

use super::late_retry::{self, ME, OTHER};
use super::overload::{self, EPOCH, FAR, GROUP, NEAR, applies, replies, sent};
use bytes::Bytes;
use ebb_chunkserver::{ClientToken, Command, Event, StoreOutcome};
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, ChunkOp, ClientReply, ClientRequest, Epoch, ObjectId, RequestId,
    TailRun, Version, block_crcs,
};

const LEN: u32 = BLOCK_BYTES as u32;
const REFUSED: ClientReply = ClientReply::Failed { why: ChunkError::Deleted };

struct World {
    server: late_retry::Server,
    requests: u64,
    newest: Version,
}

impl World {
    fn new() -> World {
        World { server: late_retry::Server::new(), requests: 0, newest: Version::first_of(Epoch(1)) }
    }

    /// Returns the reply, and whether anything was ordered.
    fn send(&mut self, op: ChunkOp, payload: Bytes) -> (ClientReply, bool) {
        let (reply, ordered) = self.server.send(op, self.newest, payload);
        if let ClientReply::Done { newest } = reply {
            self.newest = newest;
        }
        (reply, ordered)
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId { client: 7, seq: self.requests }
    }

    fn write(&mut self, chunk: ChunkId) -> (ClientReply, bool) {
        let (payload, request) = (Bytes::from(vec![7; BLOCK_BYTES]), self.request());
        let op = ChunkOp::Write { chunk, offset: 0, len: LEN, request, crcs: block_crcs(&payload) };
        self.send(op, payload)
    }

    fn zero(&mut self, chunk: ChunkId) -> (ClientReply, bool) {
        let request = self.request();
        self.send(ChunkOp::Zero { chunk, offset: 0, len: LEN, up_to: None, request }, Bytes::new())
    }

    fn delete(&mut self, chunk: ChunkId) -> (ClientReply, bool) {
        let request = self.request();
        self.send(ChunkOp::Delete { chunk, request }, Bytes::new())
    }

    fn configure(&mut self) {
        self.server.configure(ME);
        self.newest = self.newest.max(Version { seq: u64::MAX >> 1, ..self.newest });
    }
}

fn chunk(object: u64) -> ChunkId {
    ChunkId { object: ObjectId(object), index: 0 }
}

#[test]
fn a_deleted_chunk_takes_no_writes_under_this_primary_and_the_next() {
    let mut world = World::new();
    assert!(world.write(chunk(1)).1);
    assert!(world.delete(chunk(1)).1);
    for _ in 0..2 {
        assert_eq!(world.write(chunk(1)), (REFUSED, false));
        let (zeroed, ordered) = world.zero(chunk(1));
        assert!(matches!(zeroed, ClientReply::Done { .. }) && !ordered, "who frees it has what it wants");
        assert!(world.write(chunk(2)).1, "others are not concerned");
        world.server.configure(OTHER);
        world.configure();
    }
    assert!(world.delete(chunk(1)).1, "it can be deleted again");
    assert_eq!(world.write(chunk(1)), (REFUSED, false));
}

/// The store has forgotten it by then: all targets had it.
#[test]
fn a_primary_that_restarted_learns_of_deletions_from_the_others() {
    let mut world = World::new();
    world.write(chunk(1));
    world.delete(chunk(1));
    let deletion = world.server.ordered[0].clone();
    let run = TailRun { run: deletion.run(), request: deletion.request };
    world.server.remembers = (vec![run], Version::ZERO);
    world.server.restart();
    world.configure();
    assert_eq!(world.write(chunk(1)), (REFUSED, false));
}

#[test]
fn what_waits_for_the_deletion_to_end_is_refused_when_it_has() {
    let mut server = overload::Server::new(ME);
    let request = RequestId { client: 8, seq: 1 };
    let op = ChunkOp::Delete { chunk: ChunkId::default(), request };
    let request = ClientRequest { group: GROUP, epoch: EPOCH, since: Version::first_of(EPOCH), claim: 0, op };
    let token = ClientToken(1 << 32);
    let deletion = server.on(Event::Client { token, request, payload: Bytes::new() });
    let waits = server.write(3);
    assert!(sent(&waits).is_empty() && !replies(&waits).contains(&REFUSED), "the deletion may yet fail");
    let version = Version { epoch: EPOCH, seq: 1 };
    let mut after: Vec<Command> =
        [NEAR, FAR].into_iter().flat_map(|from| server.answer(from, version, Ok(()))).collect();
    let token = applies(&deletion)[0];
    after.extend(server.on(Event::Stored { token, outcome: StoreOutcome::Applied }));
    assert!(replies(&after).contains(&REFUSED) && sent(&after).is_empty(), "{after:?}");
}
