//! Random requests on a real array of bytes, answered in any order: a client sees what a model of it says.
//!
//! The driver carries requests out as they arrive and keeps the replies, which it gives in random order. So the model
//! is changed when the client sends, and each reply is compared with what the model was then.

use super::client::*;
use super::*;
use ebb_nbd::{Extent, Piece};
use ebb_types::Random;
use std::collections::BTreeMap;

const BLOCK: usize = 512;
const BLOCKS: usize = 64;

/// Bytes, and of each block whether it is a hole and whether it is known to be zero.
#[derive(Clone)]
struct Disk {
    bytes: Vec<u8>,
    state: Vec<(bool, bool)>,
}

impl Disk {
    fn new() -> Disk {
        Disk { bytes: vec![0; BLOCKS * BLOCK], state: vec![(true, true); BLOCKS] }
    }

    fn set(&mut self, offset: u64, bytes: &[u8], state: (bool, bool)) {
        let at = offset as usize;
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        self.state[at / BLOCK..(at + bytes.len()) / BLOCK].fill(state);
    }

    /// The driver's side. It may cut what it reports anywhere.
    fn carry_out(&mut self, request: &Request, random: &mut Random) -> Reply {
        match request {
            Request::Read { offset, length, .. } => {
                return self.read(*offset as usize, *length as usize, random);
            }
            Request::Status { offset, length, .. } => {
                let first = *offset as usize / BLOCK;
                // More than was asked for, or less.
                let blocks = 1 + random.index((*length as usize / BLOCK + 3).min(BLOCKS - first));
                let extents = self.state[first..first + blocks].iter();
                let extents = extents.map(|(hole, zero)| Extent { length: 512, hole: *hole, zero: *zero });
                return Reply::Extents(extents.collect());
            }
            Request::Write { offset, payload, .. } => self.set(*offset, payload, (false, false)),
            Request::Trim { offset, length, .. } => {
                self.set(*offset, &vec![0; *length as usize], (true, true))
            }
            Request::WriteZeroes { offset, length, may_trim, .. } => {
                self.set(*offset, &vec![0; *length as usize], (*may_trim, true))
            }
            Request::Flush | Request::Cache { .. } => {}
        }
        Reply::Done
    }

    fn read(&self, mut at: usize, length: usize, random: &mut Random) -> Reply {
        let (end, mut pieces) = (at + length, Vec::new());
        while at < end {
            let len = (1 + random.index(BLOCK)).min(BLOCK - at % BLOCK).min(end - at);
            pieces.push(match self.state[at / BLOCK].0 {
                true => Piece::Hole(len as u32),
                false => Piece::Data(Bytes::copy_from_slice(&self.bytes[at..at + len])),
            });
            at += len;
        }
        Reply::Data(pieces)
    }
}

/// What the client expects, by cookie: the disk as it was when it asked.
struct Asked {
    command: u16,
    flags: u16,
    offset: u64,
    length: u32,
    then: Disk,
    /// Bytes of a read that have come.
    found: Vec<Option<u8>>,
    chunks: usize,
}

struct Client {
    model: Disk,
    asked: BTreeMap<u64, Asked>,
    checked: usize,
}

impl Client {
    fn ask(&mut self, cookie: u64, structured: bool, random: &mut Random) -> Say<'static> {
        let commands = [READ, READ, WRITE, WRITE, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS];
        let command = commands[random.index(if structured { commands.len() } else { commands.len() - 1 })];
        let first = random.index(BLOCKS);
        let longest = (BLOCKS - first).min(1 + random.index(BLOCKS));
        let blocks = 1 + random.index(longest);
        let (mut offset, mut length) = ((first * BLOCK) as u64, (blocks * BLOCK) as u32);
        let flags = match command {
            READ if structured && random.chance(500) => DF,
            BLOCK_STATUS if random.chance(300) => REQ_ONE,
            WRITE_ZEROES if random.chance(500) => NO_HOLE,
            _ => 0,
        };
        let mut payload = Vec::new();
        match command {
            FLUSH => (offset, length) = (0, 0),
            WRITE => {
                payload = (0..length).map(|_| random.next() as u8).collect();
                self.model.set(offset, &payload, (false, false));
            }
            TRIM => self.model.set(offset, &vec![0; length as usize], (true, true)),
            WRITE_ZEROES => self.model.set(offset, &vec![0; length as usize], (flags != NO_HOLE, true)),
            _ => {}
        }
        let found = vec![None; if command == READ { length as usize } else { 0 }];
        let then = self.model.clone();
        self.asked.insert(cookie, Asked { command, flags, offset, length, then, found, chunks: 0 });
        Say::Request { command, flags, cookie, offset, length, payload }
    }

    fn hears(&mut self, message: FromServer, structured: bool) {
        let (cookie, last) = match &message {
            FromServer::Simple { cookie, .. } => (*cookie, true),
            FromServer::Chunk { cookie, last, .. } => (*cookie, *last),
            other => panic!("{other:?}"),
        };
        let asked = self.asked.get_mut(&cookie).expect("it was asked and is not answered yet");
        match message {
            FromServer::Simple { error, data, .. } => {
                assert_eq!((error, asked.command == BLOCK_STATUS), (0, false));
                assert!(!structured || asked.command != READ, "a read has a structured reply");
                asked.found = data.into_iter().map(Some).collect();
            }
            FromServer::Chunk { kind, payload, .. } => asked.chunk(kind, &payload),
            FromServer::Option { .. } => unreachable!(),
        }
        if last {
            let asked = self.asked.remove(&cookie).expect("it was there");
            asked.check();
            self.checked += 1;
        }
    }
}

impl Asked {
    fn chunk(&mut self, kind: u16, payload: &[u8]) {
        self.chunks += 1;
        let mut reader = Reader(payload);
        match (self.command, kind) {
            (READ, 1) => {
                let at = (reader.u64() - self.offset) as usize;
                assert!(!reader.0.is_empty());
                self.fill(at, reader.0);
            }
            (READ, 2) => {
                let at = (reader.u64() - self.offset) as usize;
                let len = reader.u32() as usize;
                assert!(len > 0 && reader.0.is_empty());
                self.fill(at, &vec![0; len]);
            }
            (BLOCK_STATUS, 5) => {
                assert_eq!(reader.u32(), 1, "the context's number");
                self.status(reader);
            }
            other => panic!("{other:?}"),
        }
    }

    fn fill(&mut self, at: usize, bytes: &[u8]) {
        for (found, byte) in self.found[at..at + bytes.len()].iter_mut().zip(bytes) {
            assert_eq!(found.replace(*byte), None, "a byte comes once");
        }
    }

    fn status(&self, mut reader: Reader) {
        let (mut block, mut extents, mut before) = (self.offset as usize / BLOCK, 0, None);
        while !reader.0.is_empty() {
            let (length, flags) = (reader.u32() as usize, reader.u32());
            assert!(length > 0 && length.is_multiple_of(BLOCK));
            let state = (flags & 1 != 0, flags & 2 != 0);
            assert_ne!(before.replace(state), Some(state), "neighbours differ");
            assert!(self.then.state[block..block + length / BLOCK].iter().all(|s| *s == state));
            block += length / BLOCK;
            extents += 1;
        }
        assert!(block * BLOCK <= self.offset as usize + self.length as usize);
        assert!(extents == 1 || extents > 1 && self.flags & REQ_ONE == 0);
    }

    fn check(self) {
        assert!(self.flags & DF == 0 || self.chunks == 1, "it is not in one piece");
        let (at, len) = (self.offset as usize, self.length as usize);
        if self.command == READ {
            let found: Option<Vec<u8>> = self.found.into_iter().collect();
            assert!(found.expect("every byte came") == self.then.bytes[at..at + len], "a read at {at}");
        }
    }
}

#[test]
fn a_client_reads_what_a_model_says_with_replies_in_any_order() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let structured = seed % 2 == 0;
        let exports = [export("disk", (BLOCKS * BLOCK) as u64, false)].into();
        let mut peer = Peer::new(exports);
        peer.says(&Say::Flags(3));
        if structured {
            peer.says(&Say::Option(8, b""));
            peer.says(&Say::Contexts { set: true, name: "disk", queries: &["base:allocation"] });
        }
        peer.says(&Say::Info { go: true, name: "disk", kinds: &[] });
        peer.sent.clear();
        let mut client = Client { model: Disk::new(), asked: BTreeMap::new(), checked: 0 };
        let (mut disk, mut replies) = (Disk::new(), Vec::new());
        for cookie in 0..150 {
            let say = client.ask(cookie, structured, &mut random);
            peer.says(&say);
            for (id, request) in std::mem::take(&mut peer.requests) {
                replies.push((id, disk.carry_out(&request, &mut random)));
            }
            while replies.len() > random.index(12) {
                let (id, reply) = replies.swap_remove(random.index(replies.len()));
                peer.answers(id, reply);
                let read = |cookie| client.asked[&cookie].found.len();
                let heard = peer.heard(read);
                heard.into_iter().for_each(|message| client.hears(message, structured));
            }
        }
        assert!(client.asked.len() == replies.len() && client.checked == 150 - replies.len());
        assert_eq!(peer.session.in_flight().requests, replies.len());
    }
}
