//! Configurations that follow each other faster than a write completes: the write is neither undone nor left
//! unanswered.

use bytes::Bytes;
use ebb_chunkserver::{
    ClientToken, Command, Config, Event, Recovered, Replica, StoreCommand, StoreOutcome, StoreToken,
};
use ebb_types::{
    BLOCK_BYTES, ChunkId, ChunkOp, ClientReply, ClientRequest, ClusterMap, Content, Epoch, GroupEntry,
    GroupId, Incarnation, Kind, MapDelta, Moment, PeerMessage, Received, Record, RecoveredTail, Refusal,
    RequestId, Role, Run, ServerId, ServerReport, ServerState, Slot, SlotState, StoreId, Unready, Version,
    block_crcs, piece_crcs,
};
use std::time::Duration;

const ME: ServerId = ServerId(1);
const OTHERS: [ServerId; 2] = [ServerId(2), ServerId(3)];
const GROUP: GroupId = GroupId(0);
const REQUEST: RequestId = RequestId { client: 9, seq: 1 };

/// The primary of one group of three; the test plays its store and peers.
struct Primary {
    replica: Replica,
    version: u64,
    now: Moment,
}

impl Primary {
    fn new() -> Primary {
        Primary::recovered(Recovered::default())
    }

    fn recovered(recovered: Recovered) -> Primary {
        let config = Config::new(ME, Incarnation(1), StoreId(1), 1 << 20, 1);
        let replica = Replica::new(config, recovered);
        let mut primary = Primary { replica, version: 0, now: Moment(1) };
        primary.on(Event::Lease { until: Moment(u64::MAX) });
        primary
    }

    fn on(&mut self, event: Event) -> Vec<Command> {
        let mut out = Vec::new();
        self.replica.on(self.now, event, &mut out);
        out
    }

    /// A new epoch with the same members, and the replies to its fences: no member has a tail.
    fn configure(&mut self, epoch: u32) -> Vec<Command> {
        self.configure_as(GroupEntry { epoch: Epoch(epoch), ..entry() })
    }

    fn configure_as(&mut self, entry: GroupEntry) -> Vec<Command> {
        let server = |id: ServerId| crate::server(id.0, id.0 as u8 - 1, ServerState::Awake);
        let epoch = entry.epoch;
        let servers = entry.slots.iter().map(|slot| server(slot.server)).collect();
        let delta = MapDelta {
            from: self.version,
            to: self.version + 1,
            servers,
            groups: vec![(GROUP, entry)],
            ..MapDelta::default()
        };
        self.version += 1;
        let mut out = self.on(Event::Map(delta));
        for from in OTHERS {
            let message = PeerMessage::FenceReply {
                group: GROUP,
                epoch,
                tail: Vec::new(),
                done: Vec::new(),
                forgotten: Version::ZERO,
            };
            out.extend(self.on(Event::Peer { from, message, payload: Bytes::new() }));
        }
        out
    }

    fn write(&mut self) -> Vec<Command> {
        self.write_as(1)
    }

    fn write_as(&mut self, seq: u64) -> Vec<Command> {
        let request = RequestId { client: 9, seq };
        let payload = Bytes::from(vec![7; BLOCK_BYTES]);
        let (chunk, len, crcs) = (ChunkId::default(), BLOCK_BYTES as u32, block_crcs(&payload));
        let op = ChunkOp::Write { chunk, offset: 0, len, request, crcs };
        let request =
            ClientRequest { group: GROUP, epoch: Epoch(1), since: Version::first_of(Epoch(1)), claim: 0, op };
        self.on(Event::Client { token: ClientToken(1), request, payload })
    }

    /// Everyone has the record.
    fn complete(&mut self, apply: &(StoreToken, Record)) -> Vec<Command> {
        let (token, record) = apply;
        let mut out = self.on(Event::Stored { token: *token, outcome: StoreOutcome::Applied });
        for from in OTHERS {
            let (epoch, version) = (record.version.epoch, record.version);
            let message = PeerMessage::ReplicateReply {
                group: GROUP,
                epoch,
                version,
                first: record.first,
                result: Ok(()),
            };
            out.extend(self.on(Event::Peer { from, message, payload: Bytes::new() }));
        }
        out
    }

    /// The store has the tail's record. Its request is noted, then its blocks are read.
    fn compare(&mut self, commands: &[Command]) -> Vec<Command> {
        let (token, mut runs) = newer(commands).expect("what the store has is asked");
        let newest = runs.iter().map(|run| run.version).max();
        runs.retain(|run| Some(run.version) == newest || run.kind == Kind::Delete);
        let compared = self.on(Event::Stored { token, outcome: StoreOutcome::Newer(runs) });
        let note = apply(&compared).expect("the request is noted");
        assert_eq!(
            (&note.1.content, note.1.request),
            (&Content::Note, Some(REQUEST)),
            "a retry must be recognised"
        );
        assert_eq!(read(&compared), None, "nothing passes the note");
        self.complete(&note)
    }

    /// Answers a read with the bytes of the write.
    fn answer(&mut self, token: StoreToken, record: &Record) -> Vec<Command> {
        let payload = Bytes::from(vec![7; BLOCK_BYTES]);
        let content = Content::Data { crcs: block_crcs(&payload) };
        let records = vec![Record { content, request: None, ..record.clone() }];
        self.on(Event::Stored { token, outcome: StoreOutcome::Read { records, payload } })
    }
}

/// All three in sync.
fn entry() -> GroupEntry {
    let slot = |server| Slot { server, state: SlotState::InSync, holder: None };
    let slots = [ME, OTHERS[0], OTHERS[1]].map(slot).to_vec();
    let received = slots.iter().map(|s| Received { server: s.server, from: Epoch(1), until: None }).collect();
    GroupEntry { primary: Some(ME), slots, received, ..GroupEntry::unknown() }
}

fn apply(commands: &[Command]) -> Option<(StoreToken, Record)> {
    commands.iter().find_map(|c| match c {
        Command::Store { token, command: StoreCommand::Apply { record, .. } } => {
            Some((*token, record.clone()))
        }
        _ => None,
    })
}

fn read(commands: &[Command]) -> Option<StoreToken> {
    commands.iter().find_map(|c| match c {
        Command::Store { token, command: StoreCommand::Read { .. } } => Some(*token),
        _ => None,
    })
}

fn newer(commands: &[Command]) -> Option<(StoreToken, Vec<Run>)> {
    commands.iter().find_map(|c| match c {
        Command::Store { token, command: StoreCommand::Newer { runs, .. } } => Some((*token, runs.clone())),
        _ => None,
    })
}

fn replies(commands: &[Command]) -> Vec<ClientReply> {
    let reply = |c: &Command| match c {
        Command::Reply { token: ClientToken(1), reply, .. } => Some(reply.clone()),
        _ => None,
    };
    commands.iter().filter_map(reply).collect()
}

#[test]
fn bytes_that_were_damaged_on_the_way_are_not_taken() {
    let mut primary = Primary::new();
    primary.configure(1);
    let good = vec![7; 5000];
    let (chunk, offset, len, crcs) = (ChunkId::default(), 100, 5000, piece_crcs(100, &good));
    let mut send = |token, bytes: Vec<u8>| {
        let request = RequestId { client: 9, seq: 1 };
        let op = ChunkOp::Write { chunk, offset, len, request, crcs: crcs.clone() };
        let request =
            ClientRequest { group: GROUP, epoch: Epoch(1), since: Version::first_of(Epoch(1)), claim: 0, op };
        primary.on(Event::Client { token: ClientToken(token), request, payload: bytes.into() })
    };
    let mut bad = good.clone();
    bad[4999] ^= 1;
    let commands = send(1, bad);
    let refused = ClientReply::Retry { why: Unready::Garbled };
    assert!(matches!(&commands[..], [Command::Reply { reply, .. }] if *reply == refused), "{commands:?}");
    assert!(read(&send(2, good)).is_some(), "the edges are read, to merge it with them");
}

#[test]
fn nothing_is_ordered_again_before_it_is_in_the_store() {
    let mut primary = Primary::new();
    primary.configure(1);
    let written = apply(&primary.write()).expect("the write is given to the store");
    let changed = primary.configure(2);
    assert!(newer(&changed).is_none(), "what is there now is what was there before the write");
    let stored = primary.on(Event::Stored { token: written.0, outcome: StoreOutcome::Applied });
    let token = read(&primary.compare(&stored)).expect("its content is ordered again");
    let again = apply(&primary.answer(token, &written.1)).expect("under the new epoch");
    assert_eq!(again.1.version.epoch, Epoch(2));
    assert!(matches!(replies(&primary.complete(&again))[..], [ClientReply::Done { .. }]));
}

#[test]
fn a_write_is_answered_however_often_the_configuration_changes_under_it() {
    let mut primary = Primary::new();
    primary.configure(1);
    let written = apply(&primary.write()).expect("the write is given to the store");
    primary.on(Event::Stored { token: written.0, outcome: StoreOutcome::Applied });
    let mut commands = Vec::new();
    for epoch in 2..5 {
        commands = primary.configure(epoch);
        assert_eq!(replies(&commands), [], "it is on one server of three");
    }
    let token = read(&primary.compare(&commands)).expect("its content is ordered again");
    let again = apply(&primary.answer(token, &written.1)).expect("under the newest epoch");
    assert!(matches!(replies(&primary.complete(&again))[..], [ClientReply::Done { .. }]));
}

#[test]
fn a_listing_does_not_overtake_what_is_under_way_from_an_older_epoch() {
    let mut primary = Primary::new();
    primary.configure(1);
    let written = apply(&primary.write()).expect("the write is given to the store");
    let lists = |commands: &[Command]| {
        let list = |c: &Command| matches!(c, Command::Store { command: StoreCommand::List { .. }, .. });
        commands.iter().any(list)
    };
    let (role, since, after) = (Role::Replica, Epoch(0), None);
    let message = PeerMessage::List { group: GROUP, epoch: Epoch(2), token: 1, role, since, after };
    let asked = primary.on(Event::Peer { from: OTHERS[0], message, payload: Bytes::new() });
    assert!(
        !lists(&asked),
        "the write may still be acknowledged under epoch 1, and the listing would lack it"
    );
    let stored = primary.on(Event::Stored { token: written.0, outcome: StoreOutcome::Applied });
    assert!(lists(&stored));
}

/// The others may have the write: it takes effect, and its client must not learn that nothing was done.
#[test]
fn a_write_that_was_ordered_is_not_refused_although_the_own_store_failed() {
    let mut primary = Primary::new();
    primary.configure(1);
    let (token, _) = apply(&primary.write()).expect("the write is given to the store");
    primary.on(Event::Stored { token, outcome: StoreOutcome::Failed(Refusal::Poisoned) });
    primary.on(Event::Space { full: true });
    let carried_over = primary.configure(2);
    let answered = carried_over.iter().any(|c| matches!(c, Command::Reply { .. }));
    assert!(!answered && apply(&carried_over).is_some(), "{carried_over:?}");
}

/// In an idle group no record says it: a server that missed it would remember deletions for ever (R19).
#[test]
fn what_is_on_all_targets_is_said_again_after_a_connection_broke() {
    let told = |commands: &[Command]| {
        let told = commands.iter().filter_map(|c| match c {
            Command::Send { to, message: PeerMessage::Committed { committed, .. }, .. } => {
                Some((*to, *committed))
            }
            _ => None,
        });
        told.collect::<Vec<(ServerId, Version)>>()
    };
    let mut primary = Primary::new();
    primary.configure(1);
    let apply = apply(&primary.write()).expect("it is ordered");
    primary.complete(&apply);
    let version = apply.1.version;
    assert_eq!(told(&primary.on(Event::Tick)), OTHERS.map(|to| (to, version)));
    assert!(!primary.replica.wants_ticks());
    primary.on(Event::PeerLost { peer: OTHERS[1] });
    assert!(primary.replica.wants_ticks());
    assert_eq!(told(&primary.on(Event::Tick)), [], "it may be down");
    primary.now = primary.now + Duration::from_secs(3);
    assert_eq!(told(&primary.on(Event::Tick)), [(OTHERS[1], version)]);
    assert!(!primary.replica.wants_ticks(), "once");
    primary.on(Event::PeerLost { peer: ServerId(9) });
    assert!(!primary.replica.wants_ticks(), "it has no part in the group");
}

/// N3: without it, every group's last record is written once more after a crash of all servers, and a full cluster has
/// no room for that.
#[test]
fn what_is_on_all_targets_is_recorded_while_the_store_fills_up() {
    let mut primary = Primary::new();
    primary.configure(1);
    let settled = apply(&primary.on(Event::NoteCommits)).expect("nothing of older epochs is open");
    assert_eq!(settled.1.version, Version::first_of(Epoch(1)));
    primary.on(Event::Stored { token: settled.0, outcome: StoreOutcome::Applied });
    let first = apply(&primary.write()).expect("the write is given to the store");
    assert_eq!(apply(&primary.on(Event::NoteCommits)), None, "it is not yet on all targets");
    primary.complete(&first);
    let noted = primary.on(Event::NoteCommits);
    let committed = noted.iter().find_map(|c| match c {
        Command::Store { command: StoreCommand::Apply { committed, .. }, .. } => Some(*committed),
        _ => None,
    });
    assert_eq!(committed, Some(first.1.version));
    let (token, note) = apply(&noted).expect("it is noted");
    assert_eq!((note.content, note.version), (Content::Note, first.1.version));
    assert_eq!(apply(&primary.on(Event::NoteCommits)), None, "once");
    primary.on(Event::Stored { token, outcome: StoreOutcome::Failed(Refusal::NoSpace) });
    let (token, _) = apply(&primary.on(Event::NoteCommits)).expect("again, until it is durable");
    primary.on(Event::Stored { token, outcome: StoreOutcome::Applied });
    assert_eq!(apply(&primary.on(Event::NoteCommits)), None);
}

/// A directory that is older than the cluster knows must not grow by itself: it is recognised by how far it reaches.
#[test]
fn a_server_that_was_just_started_notes_nothing() {
    let version = Version { epoch: Epoch(1), seq: 7 };
    let tail = RecoveredTail { committed: version, ..RecoveredTail::default() };
    let recovered = Recovered { tails: [(GROUP, tail)].into(), ..Recovered::default() };
    let mut primary = Primary::recovered(recovered);
    assert_eq!(apply(&primary.on(Event::NoteCommits)), None);
}

/// R11: obeying metadata that reverted to an older copy would destroy data.
#[test]
fn a_map_older_than_the_store_has_served_under_is_not_obeyed() {
    let mut config = Config::new(ME, Incarnation(1), StoreId(1), 1 << 20, 1);
    config.known_map = 7;
    let mut replica = Replica::new(config, Recovered::default());
    let mut offer = |from, to| {
        let mut out = Vec::new();
        let delta = MapDelta { from, to, servers: Vec::new(), groups: Vec::new(), ..MapDelta::default() };
        replica.on(Moment(1), Event::Map(delta), &mut out);
        (out, replica.map_version())
    };
    let (refused, says) = offer(0, 6);
    assert!(matches!(refused[..], [Command::OldMetadata { known: 7, offered: 6 }]), "{refused:?}");
    assert_eq!(says, 7, "a member that is behind it leads nothing");
    let (asks, _) = offer(7, 8);
    assert!(matches!(asks[..], [Command::MapGap]), "it has no map yet: {asks:?}");
    let (nothing, says) = offer(0, 9);
    assert_eq!((nothing.len(), says), (0, 9));
}

/// Metadata that was rescued from a minority asks it: what is forgotten here may be taken for never served.
#[test]
fn a_server_recalls_every_configuration_that_it_knows_of() {
    let version = Version { epoch: Epoch(4), seq: 7 };
    let tail = RecoveredTail { committed: version, ..RecoveredTail::default() };
    let mut config = Config::new(ME, Incarnation(1), StoreId(1), 1 << 20, 1);
    config.known_map = 7;
    let recovered = Recovered { tails: [(GROUP, tail)].into(), ..Recovered::default() };
    let restarted = Replica::new(config, recovered).recall();
    assert_eq!((restarted.store, restarted.seen, restarted.map.to), (StoreId(1), 7, 0));
    assert_eq!(restarted.epochs, [(GROUP, Epoch(4))], "of its records");

    let mut primary = Primary::new();
    primary.configure(5);
    let known = primary.replica.recall();
    assert_eq!(known.epochs, [(GROUP, Epoch(5))]);
    let mut map = ClusterMap::default();
    assert!(map.apply(&known.map));
    assert_eq!(map, *primary.replica.map(), "all of it");
    let fence = PeerMessage::Fence { group: GROUP, epoch: Epoch(9), done: Vec::new() };
    primary.on(Event::Peer { from: OTHERS[0], message: fence, payload: Bytes::new() });
    assert_eq!(primary.replica.recall().epochs, [(GROUP, Epoch(9))], "of a fence without its map");
}

/// A slot has lost its complete copy: until the epoch is on record as serving, its server may return as having missed
/// nothing.
#[test]
fn nothing_is_ordered_or_answered_before_the_epoch_is_on_record() {
    let mut primary = Primary::new();
    primary.configure(1);
    let slots = entry().slots;
    let unserved = GroupEntry { epoch: Epoch(2), fallback: Some(slots), ..entry() };
    let asks = |commands: &[Command]| {
        let serving = ServerReport::Serving { group: GROUP, epoch: Epoch(2) };
        commands.iter().filter(|c| matches!(c, Command::Report(r) if *r == serving)).count()
    };
    let fenced = primary.configure_as(unserved.clone());
    assert_eq!(asks(&fenced), 1, "{fenced:?}");
    assert!(primary.write().is_empty() && !primary.replica.serves(Moment(1), GROUP));
    let leave = primary.configure_as(GroupEntry { fallback: None, ..unserved.clone() });
    let written = apply(&leave).expect("the write is ordered");
    assert_eq!(written.1.version.epoch, Epoch(2));

    // Without a third target no write can be ordered. Reads need no permission.
    let mut lacking = GroupEntry { epoch: Epoch(3), ..unserved };
    lacking.slots[2].state = SlotState::Away { since: Epoch(3) };
    let fenced = primary.configure_as(lacking);
    let stored = primary.on(Event::Stored { token: written.0, outcome: StoreOutcome::Applied });
    assert_eq!(asks(&fenced), 0);
    let (token, _) = newer(&stored).expect("what the store has is asked");
    primary.on(Event::Stored { token, outcome: StoreOutcome::Newer(Vec::new()) });
    assert!(primary.replica.serves(Moment(1), GROUP));
}

/// The store keeps the commit point known at the time with every record, so that a restart rewrites little.
#[test]
fn what_is_on_all_targets_is_said_with_the_next_record() {
    let mut primary = Primary::new();
    primary.configure(1);
    let mut said = Vec::new();
    for request in 1..=2 {
        let commands = primary.write_as(request);
        said.extend(commands.iter().filter_map(|c| match c {
            Command::Store { command: StoreCommand::Apply { record, committed, .. }, .. } => {
                Some((record.version.seq, committed.seq))
            }
            _ => None,
        }));
        let written = apply(&commands).expect("the write is given to the store");
        primary.complete(&written);
    }
    assert_eq!(said, [(1, 0), (2, 1)]);
}

#[test]
fn a_drain_that_comes_late_takes_no_server_out_of_service() {
    let mut primary = Primary::new();
    primary.configure(1);
    assert!(primary.on(Event::Drain).is_empty() && !primary.replica.is_draining());
    assert!(apply(&primary.write()).is_some(), "it serves");
}
