//! Only requests under the newest claim on an object are carried out (R16): a process that lost a volume changes
//! nothing, whatever it sent before and whenever that arrives.

use super::overload::{EPOCH, GROUP, ME, Server, replies, sent};
use bytes::Bytes;
use ebb_chunkserver::{ClientToken, Command, Event, StoreCommand, StoreOutcome, StoreToken};
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, ChunkOp, ClientReply, ClientRequest, Content, ObjectId, PeerMessage,
    Record, RequestId, Version, block_crcs,
};

const NOTE: ChunkId = ChunkId { object: ObjectId(0), index: ebb_types::CLAIMS_FROM };

struct World {
    server: Server,
    requests: u64,
    /// The claim that the store has noted, and the read that asks for it.
    noted: u64,
    read: Option<StoreToken>,
}

impl World {
    fn new(noted: u64) -> World {
        World { server: Server::new(ME), requests: 0, noted, read: None }
    }

    fn send(&mut self, claim: u64, op: ChunkOp, payload: Bytes) -> Vec<Command> {
        let request =
            ClientRequest { group: GROUP, epoch: EPOCH, since: Version::first_of(EPOCH), claim, op };
        let token = ClientToken(self.requests);
        let commands = self.server.on(Event::Client { token, request, payload });
        for command in &commands {
            if let Command::Store { token, command: StoreCommand::Read { chunk: NOTE, .. } } = command {
                assert_eq!(self.read.replace(*token), None, "it is asked for once");
            }
        }
        commands
    }

    fn write_to(&mut self, chunk: ChunkId, claim: u64, block: u32) -> Vec<Command> {
        self.requests += 1;
        let payload = Bytes::from(vec![claim as u8; BLOCK_BYTES]);
        let request = RequestId { client: 9, seq: self.requests };
        let (offset, len) = (block * BLOCK_BYTES as u32, BLOCK_BYTES as u32);
        let op = ChunkOp::Write { chunk, offset, len, request, crcs: block_crcs(&payload) };
        self.send(claim, op, payload)
    }

    fn write(&mut self, claim: u64, block: u32) -> Vec<Command> {
        self.write_to(ChunkId::default(), claim, block)
    }

    /// The store answers with what it has noted.
    fn answer(&mut self) -> Vec<Command> {
        let mut payload = vec![0; BLOCK_BYTES];
        payload[..8].copy_from_slice(&self.noted.to_le_bytes());
        let (version, content) = match self.noted {
            0 => (Version::ZERO, Content::Zero),
            _ => (Version { epoch: EPOCH, seq: 1 }, Content::Data { crcs: block_crcs(&payload) }),
        };
        let record =
            Record { group: GROUP, chunk: NOTE, first: 0, count: 1, version, request: None, content };
        let payload = if self.noted == 0 { Bytes::new() } else { payload.into() };
        let token = self.read.take().expect("it was asked for");
        self.server
            .on(Event::Stored { token, outcome: StoreOutcome::Read { records: vec![record], payload } })
    }
}

fn is_refused(commands: &[Command]) -> bool {
    let taken = ClientReply::Failed { why: ChunkError::Taken };
    commands.iter().any(|command| matches!(command, Command::Reply { reply, .. } if *reply == taken))
}

#[test]
fn only_the_newest_claim_changes_anything() {
    let mut world = World::new(7);
    let asked = world.write(7, 0);
    assert!(sent(&asked).is_empty(), "the newest claim is not known in this epoch");
    assert_eq!(sent(&world.answer()).len(), 2);
    assert_eq!(sent(&world.write(7, 1)).len(), 2, "now it is");
    for past in [6, 8] {
        let late = world.write(past, 2);
        assert!(is_refused(&late) && sent(&late).is_empty(), "{past}: noted nowhere, or no more");
    }
    let (chunk, len) = (ChunkId::default(), BLOCK_BYTES as u32);
    let read = ChunkOp::Read { chunk, offset: 0, len, must_exist: false };
    assert!(is_refused(&world.send(6, read, Bytes::new())), "what it would read may be old");
    assert_eq!(sent(&world.write(0, 3)).len(), 2, "what is written without claims is not asked for one");
}

#[test]
fn a_raised_claim_counts_before_it_is_durable() {
    let mut world = World::new(0);
    world.write_to(NOTE, 1, 0);
    assert_eq!(sent(&world.answer()).len(), 2, "the note is ordered");
    assert_eq!(sent(&world.write(1, 0)).len(), 2);
    assert_eq!(sent(&world.write_to(NOTE, 2, 0)).len(), 0, "after the note before it");
    assert!(is_refused(&world.write(1, 1)));
    assert!(is_refused(&world.write_to(NOTE, 1, 0)), "no claim goes back");
    assert_eq!(sent(&world.write(2, 1)).len(), 2);
}

#[test]
fn what_comes_while_the_claim_is_looked_up_waits_and_is_judged() {
    let mut world = World::new(7);
    for (block, claim) in [(0, 6), (1, 7), (2, 8)] {
        let commands = world.write(claim, block);
        assert!(sent(&commands).is_empty() && !is_refused(&commands));
    }
    let judged = world.answer();
    assert!(is_refused(&judged));
    let blocks: Vec<u32> = sent(&judged).iter().map(|(_, record)| record.first).collect();
    assert_eq!(blocks, [1, 1]);
}

#[test]
fn a_full_server_takes_a_claim_and_no_data() {
    let full = [ClientReply::Failed { why: ChunkError::NoSpace }];
    let mut world = World::new(0);
    world.server.on(Event::Space { full: true });
    assert_eq!(replies(&world.write(0, 0)), full);
    world.write_to(NOTE, 1, 0);
    let reserved = |command: &Command| match command {
        Command::Send { message: PeerMessage::Replicate { must_fit, .. }, .. } => *must_fit,
        Command::Store { command: StoreCommand::Apply { must_fit, .. }, .. } => *must_fit,
        _ => false,
    };
    let noted = world.answer();
    assert_eq!(noted.iter().filter(|command| reserved(command)).count(), 3, "on each copy, from the reserve");
    assert_eq!(replies(&world.write_to(NOTE, 2, 1)), full, "a claim has one block");
}
