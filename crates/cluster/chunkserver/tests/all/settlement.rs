//! A settlement that is interrupted, anywhere and more than once, forgets no request that took effect, and treats none
//! as done that did not.

use bytes::Bytes;
use ebb_chunkserver::{ClientToken, Command, Config, Event, Recovered, Replica, StoreCommand, StoreOutcome};
use ebb_types::{
    BLOCK_BYTES, ChunkId, ChunkOp, ClientReply, ClientRequest, Content, Epoch, GroupEntry, GroupId,
    Incarnation, Kind, MapDelta, Moment, PeerMessage, Received, Record, RecoveredTail, RequestId, Run,
    ServerId, ServerState, Slot, SlotState, StoreId, TailRun, Version, block_crcs,
};
use std::collections::{BTreeMap, VecDeque};

const ME: ServerId = ServerId(1);
const OTHERS: [ServerId; 2] = [ServerId(2), ServerId(3)];
const GROUP: GroupId = GroupId(0);
const CHUNK: ChunkId = ChunkId { object: ebb_types::ObjectId(0), index: 0 };

fn version(epoch: u32, seq: u64) -> Version {
    Version { epoch: Epoch(epoch), seq }
}

fn record(version: Version, first: u32, count: u32, request: u64) -> TailRun {
    let run = Run { chunk: CHUNK, first, count, version, kind: Kind::Data };
    TailRun { run, request: Some(RequestId { client: 9, seq: request }) }
}

/// How a settlement is interrupted.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Interrupted {
    Restart,
    NewEpoch,
}

/// A primary over a store that is durable at once. The other members store everything they are sent, and remember
/// nothing.
struct Primary {
    replica: Replica,
    epoch: u32,
    map: u64,
    versions: BTreeMap<u32, Version>,
    durable: Vec<TailRun>,
    /// The tail of another member.
    foreign: Vec<TailRun>,
    replies: Vec<(ClientToken, ClientReply)>,
    ordered: Vec<Record>,
    /// Events still to be delivered.
    events: VecDeque<Event>,
    how: Interrupted,
    /// Records given to the store since `run` began, and the number after which it is interrupted.
    stored: usize,
    stored_max: usize,
}

impl Primary {
    /// With these records in its store, each but the last partly overwritten by the next.
    fn new(durable: &[TailRun], foreign: &[TailRun], how: Interrupted) -> Primary {
        let mut versions = BTreeMap::new();
        for TailRun { run, .. } in durable {
            (run.first..run.first + run.count).for_each(|n| _ = versions.insert(n, run.version));
        }
        let durable = durable.to_vec();
        Primary {
            replica: Primary::started(&durable),
            epoch: 1,
            map: 0,
            versions,
            durable,
            foreign: foreign.to_vec(),
            replies: Vec::new(),
            ordered: Vec::new(),
            events: VecDeque::new(),
            how,
            stored: 0,
            stored_max: 0,
        }
    }

    fn started(durable: &[TailRun]) -> Replica {
        Primary::found(RecoveredTail { open: durable.to_vec(), ..RecoveredTail::default() })
    }

    fn found(tail: RecoveredTail) -> Replica {
        let config = Config::new(ME, Incarnation(1), StoreId(1), 4 << 20, 1);
        let tails = [(GROUP, tail)].into();
        let mut replica = Replica::new(config, Recovered { tails, ..Recovered::default() });
        replica.on(Moment(1), Event::Lease { until: Moment(u64::MAX) }, &mut Vec::new());
        replica
    }

    fn restart(&mut self) {
        self.replica = Primary::started(&self.durable);
        self.map = 0;
        self.events.clear();
    }

    /// Begins the next epoch and runs until `stored_max` records were stored in it. Returns whether nothing is left to
    /// do.
    fn settle(&mut self, stored_max: usize) -> bool {
        self.epoch += 1;
        let slot = |server| Slot { server, state: SlotState::InSync, holder: None };
        let slots = [ME, OTHERS[0], OTHERS[1]].map(slot).to_vec();
        let received =
            slots.iter().map(|s| Received { server: s.server, from: Epoch(1), until: None }).collect();
        let (epoch, primary) = (Epoch(self.epoch), Some(ME));
        let entry = GroupEntry { epoch, primary, slots, received, ..GroupEntry::unknown() };
        let servers = [1, 2, 3].map(|id| crate::server(id, id as u8 - 1, ServerState::Awake)).to_vec();
        let delta = MapDelta {
            from: self.map,
            to: self.map + 1,
            servers,
            groups: vec![(GROUP, entry)],
            ..MapDelta::default()
        };
        self.map += 1;
        self.run(Event::Map(delta), stored_max)
    }

    fn run(&mut self, event: Event, stored_max: usize) -> bool {
        self.events.push_front(event);
        (self.stored, self.stored_max) = (0, stored_max);
        self.go_on()
    }

    /// Runs until it is interrupted (false), or nothing is left to do (true).
    fn go_on(&mut self) -> bool {
        while self.stored <= self.stored_max {
            let Some(event) = self.events.pop_front() else { return true };
            let mut commands = Vec::new();
            self.replica.on(Moment(1), event, &mut commands);
            for command in commands {
                let event = self.carry_out(command);
                self.events.extend(event);
            }
        }
        false
    }

    fn carry_out(&mut self, command: Command) -> Option<Event> {
        let peer = |from, message| Some(Event::Peer { from, message, payload: Bytes::new() });
        if let Command::Store { command: StoreCommand::Apply { .. }, .. } = &command {
            self.stored = self.stored.saturating_add(1);
            if self.stored > self.stored_max && self.how == Interrupted::Restart {
                return None;
            }
        }
        match command {
            Command::Store { token, command } => Some(Event::Stored { token, outcome: self.store(command) }),
            Command::Send { to, message: PeerMessage::Fence { group, epoch, .. }, .. } => {
                let tail = if to == OTHERS[0] { self.foreign.clone() } else { Vec::new() };
                peer(
                    to,
                    PeerMessage::FenceReply {
                        group,
                        epoch,
                        tail,
                        done: Vec::new(),
                        forgotten: Version::ZERO,
                    },
                )
            }
            Command::Send { to, message: PeerMessage::Replicate { epoch, record, .. }, .. } => {
                let (group, version, first) = (record.group, record.version, record.first);
                peer(to, PeerMessage::ReplicateReply { group, epoch, version, first, result: Ok(()) })
            }
            Command::Reply { token, reply, .. } => {
                self.replies.push((token, reply));
                None
            }
            _ => None,
        }
    }

    fn version_of(&self, block: u32) -> Version {
        self.versions.get(&block).copied().unwrap_or(Version::ZERO)
    }

    fn store(&mut self, command: StoreCommand) -> StoreOutcome {
        match command {
            StoreCommand::Newer { runs, .. } => {
                let blocks = |run: Run| {
                    (run.first..run.first + run.count).map(move |first| Run { first, count: 1, ..run })
                };
                let newer = |run: &Run| self.version_of(run.first) < run.version;
                let (deletions, others): (Vec<Run>, _) =
                    runs.into_iter().partition(|run| run.kind == Kind::Delete);
                let others = others.into_iter().flat_map(blocks).filter(newer);
                StoreOutcome::Newer(deletions.into_iter().chain(others).collect())
            }
            StoreCommand::Read { group, chunk, first, count, .. } => {
                let payload = Bytes::from(vec![0; BLOCK_BYTES]);
                let block = |first| {
                    let content = Content::Data { crcs: block_crcs(&payload) };
                    let version = self.version_of(first);
                    Record { group, chunk, first, count: 1, version, request: None, content }
                };
                let records = (first..first + count).map(block).collect();
                let payload = Bytes::from(vec![0; BLOCK_BYTES * count as usize]);
                StoreOutcome::Read { records, payload }
            }
            StoreCommand::Apply { record, .. } => {
                if record.content != Content::Note {
                    for n in record.first..record.first + record.count {
                        self.versions.insert(n, self.version_of(n).max(record.version));
                    }
                }
                self.durable.push(TailRun { run: record.run(), request: record.request });
                self.ordered.push(record);
                StoreOutcome::Applied
            }
            other => unreachable!("{other:?}"),
        }
    }

    /// A client retries the request. Returns whether it was carried out again.
    fn retry(&mut self, of: &TailRun) -> bool {
        let (run, request) = (of.run, of.request.expect("a client's"));
        let payload = Bytes::from(vec![0; BLOCK_BYTES * run.count as usize]);
        let (len, crcs) = (payload.len() as u32, block_crcs(&payload));
        let op = ChunkOp::Write { chunk: CHUNK, offset: run.first * BLOCK_BYTES as u32, len, request, crcs };
        let request =
            ClientRequest { group: GROUP, epoch: Epoch(self.epoch), since: version(1, 0), claim: 0, op };
        self.ordered.clear();
        let token = ClientToken(7);
        assert!(self.run(Event::Client { token, request, payload }, usize::MAX));
        assert!(matches!(self.replies.pop(), Some((t, ClientReply::Done { .. })) if t == token));
        !self.ordered.is_empty()
    }
}

/// Writes of several blocks that overlap; the other member alone has writes that the crash of their epoch's primary cut
/// short.
#[test]
fn a_settlement_interrupted_anywhere_forgets_no_request() {
    let effective = [
        record(version(1, 1), 0, 2, 1),
        record(version(1, 2), 1, 2, 2),
        record(version(1, 3), 1, 1, 3),
        record(version(1, 4), 3, 1, 4),
    ];
    let lost = [record(version(1, 5), 2, 1, 5), record(version(1, 6), 4, 1, 6)];
    let mut interruptions = 0;
    for how in [Interrupted::Restart, Interrupted::NewEpoch] {
        for first in 0..12 {
            for second in 0..12 {
                let mut primary = Primary::new(&effective, &lost, how);
                for records in [first, second] {
                    interruptions += usize::from(!primary.settle(records));
                    if how == Interrupted::Restart {
                        primary.restart();
                    }
                }
                assert!(primary.settle(usize::MAX));
                let again: Vec<bool> = effective.iter().map(|of| primary.retry(of)).collect();
                assert_eq!(again, [false; 4], "{how:?} after {first} and after {second} records");
                let again: Vec<bool> = lost.iter().map(|of| primary.retry(of)).collect();
                assert_eq!(again, [true; 2], "{how:?} after {first} and after {second} records");
            }
        }
    }
    assert!(interruptions > 150, "{interruptions}");
}

/// Notes are ordered before the blocks: that a request is noted does not prove that its blocks are on all targets.
#[test]
fn a_retry_is_not_answered_before_the_blocks_are_ordered_again() {
    let written = record(version(1, 1), 0, 1, 1);
    for stored in 0..2 {
        let mut primary = Primary::new(&[written], &[], Interrupted::Restart);
        assert!(!primary.settle(stored));
        let request = written.request.expect("a client's");
        let payload = Bytes::from(vec![0; BLOCK_BYTES]);
        let (len, crcs) = (BLOCK_BYTES as u32, block_crcs(&payload));
        let op = ChunkOp::Write { chunk: CHUNK, offset: 0, len, request, crcs };
        let request = ClientRequest { group: GROUP, epoch: Epoch(2), since: version(1, 0), claim: 0, op };
        primary.run(Event::Client { token: ClientToken(7), request, payload }, 0);
        assert_eq!(primary.replies, [], "after {stored} records");
    }
}

#[test]
fn what_a_restart_knows_to_be_on_all_targets_is_not_ordered_again() {
    let written = [1, 2, 3].map(|seq| record(version(1, seq), seq as u32, 1, seq));
    let mut primary = Primary::new(&written, &[], Interrupted::Restart);
    let (done, open) = (written[..2].to_vec(), written[2..].to_vec());
    primary.replica = Primary::found(RecoveredTail { committed: version(1, 2), open, done });
    assert!(primary.settle(usize::MAX));
    let ordered: Vec<u32> = primary.ordered.iter().map(|record| record.first).collect();
    assert_eq!(ordered, [3, 3], "a note and the block");
    let again: Vec<bool> = written.iter().map(|of| primary.retry(of)).collect();
    assert_eq!(again, [false; 3], "their requests are known to be done");
}

/// A long tail is rewritten a little at a time: a request that comes meanwhile waits only for the blocks that it
/// touches.
#[test]
fn what_waits_for_the_end_of_a_long_settlement_is_answered() {
    let read_meanwhile = |blocks: &[u32]| {
        let tails = [record(version(1, 1), 0, 300, 1), record(version(1, 2), 400, 1, 2)];
        let mut primary = Primary::new(&tails, &[], Interrupted::NewEpoch);
        assert!(!primary.settle(2), "it is interrupted while the first is under way");
        for &block in blocks {
            let (offset, len) = (block * BLOCK_BYTES as u32, BLOCK_BYTES as u32);
            let op = ChunkOp::Read { chunk: CHUNK, offset, len, must_exist: false };
            let request = ClientRequest { group: GROUP, epoch: Epoch(2), since: version(1, 0), claim: 0, op };
            let token = ClientToken(block.into());
            primary.events.push_front(Event::Client { token, request, payload: Bytes::new() });
        }
        primary.stored_max = usize::MAX;
        primary.go_on();
        let ordered: Vec<u32> =
            primary.ordered.iter().filter(|r| r.request.is_none()).map(|r| r.first).collect();
        assert_eq!(ordered, (0..300).chain([400]).collect::<Vec<_>>());
        primary.replies.iter().map(|(token, _)| token.0).collect::<Vec<_>>()
    };
    assert_eq!(read_meanwhile(&[400]), [400]);
    assert_eq!(read_meanwhile(&[350, 400]), [350, 400]);
}
