//! Which blocks have data, and freeing those that are old.

use super::overload::{EPOCH, GROUP, ME, Server, sent};
use bytes::Bytes;
use ebb_chunkserver::{ClientToken, Command, Event, StoreCommand, StoreOutcome};
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, ChunkOp, ClientReply, ClientRequest, Content, Looked, Record,
    RequestId, ServerId, Version, block_crcs,
};

const BLOCK: u32 = BLOCK_BYTES as u32;

fn at(seq: u64) -> Version {
    Version { epoch: EPOCH, seq }
}

fn record(first: u32, count: u32, version: Version, data: bool) -> (Record, Vec<u8>) {
    let bytes = vec![7; if data { count * BLOCK } else { 0 } as usize];
    let content = if data { Content::Data { crcs: block_crcs(&bytes) } } else { Content::Zero };
    let record =
        Record { group: GROUP, chunk: ChunkId::default(), first, count, version, request: None, content };
    (record, bytes)
}

/// A store with ten blocks: never written, data of version 3, zeroes of version 4, data of versions 9 and 5.
fn stored() -> StoreOutcome {
    let parts = [
        record(0, 2, Version::ZERO, false),
        record(2, 3, at(3), true),
        record(5, 1, at(4), false),
        record(6, 1, at(9), true),
        record(7, 3, at(5), true),
    ];
    let (records, payloads): (Vec<Record>, Vec<Vec<u8>>) = parts.into_iter().unzip();
    StoreOutcome::Read { records, payload: payloads.concat().into() }
}

/// Sends an op to the primary, and answers its read.
fn ask(op: ChunkOp) -> Vec<Command> {
    let mut server = Server::new(ME);
    let request = ClientRequest { group: GROUP, epoch: EPOCH, since: Version::first_of(EPOCH), claim: 0, op };
    let asked = server.on(Event::Client { token: ClientToken(1), request, payload: Bytes::new() });
    let read = asked.iter().find_map(|command| match command {
        Command::Store { token, command: StoreCommand::Read { first: 0, count: 10, .. } } => Some(*token),
        _ => None,
    });
    match read {
        Some(token) => server.on(Event::Stored { token, outcome: stored() }),
        None => asked,
    }
}

fn reply(commands: &[Command]) -> &ClientReply {
    let reply = commands.iter().find_map(|command| match command {
        Command::Reply { reply, .. } => Some(reply),
        _ => None,
    });
    reply.expect("a reply")
}

fn zero(offset: u32, len: u32, up_to: Version) -> ChunkOp {
    let request = RequestId { client: 9, seq: 1 };
    ChunkOp::Zero { chunk: ChunkId::default(), offset, len, up_to: Some(up_to), request }
}

#[test]
fn a_look_says_which_blocks_have_data_and_the_newest_version() {
    let commands = ask(ChunkOp::Look { chunk: ChunkId::default(), offset: 0, len: 10 * BLOCK });
    let looked = Looked { runs: vec![(2, 3), (6, 1), (7, 3)], newest: at(9) };
    assert_eq!(*reply(&commands), ClientReply::Looked(looked));
}

#[test]
fn only_blocks_up_to_the_version_are_freed() {
    let commands = ask(zero(0, 10 * BLOCK, at(5)));
    let near: Vec<(u32, u32, Content)> = sent(&commands)
        .into_iter()
        .filter(|(to, _)| *to == ServerId(2))
        .map(|(_, r)| (r.first, r.count, r.content))
        .collect();
    assert_eq!(near, [(2, 3, Content::Zero), (7, 3, Content::Zero)]);
    let nothing = ask(zero(0, 10 * BLOCK, at(2)));
    assert!(sent(&nothing).is_empty() && matches!(reply(&nothing), ClientReply::Done { .. }));
}

#[test]
fn both_take_whole_blocks_of_one_record() {
    let chunk = ChunkId::default();
    let failed = |op| reply(&ask(op)).clone();
    let malformed = ClientReply::Failed { why: ChunkError::Malformed };
    assert_eq!(failed(ChunkOp::Look { chunk, offset: 1, len: BLOCK }), malformed);
    assert_eq!(failed(zero(0, BLOCK + 1, at(5))), malformed);
    let outside = ClientReply::Failed { why: ChunkError::OutOfRange };
    assert_eq!(failed(ChunkOp::Look { chunk, offset: 0, len: 2 << 20 }), outside);
}
