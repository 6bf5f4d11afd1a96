//! When a deletion may be forgotten, and what must not be believed afterwards.

use bytes::Bytes;
use ebb_chunkserver::{Command, Config, Event, Recovered, Replica, StoreCommand, StoreOutcome, StoreToken};
use ebb_types::{
    ChunkId, Content, Epoch, GroupEntry, GroupId, Holder, Incarnation, Kind, ListPage, MapDelta, Moment,
    PeerMessage, Received, Record, Refusal, Role, Run, ServerId, ServerState, Slot, SlotState, StoreId,
    Version,
};

const ME: ServerId = ServerId(1);
const PRIMARY: ServerId = ServerId(2);
const THIRD: ServerId = ServerId(3);
const HOLDER: ServerId = ServerId(4);
const GROUP: GroupId = GroupId(0);
const IN_SYNC: SlotState = SlotState::InSync;

struct Member {
    replica: Replica,
    map: u64,
    /// Of the configurations that come.
    received: Vec<Received>,
}

fn version(epoch: u32, seq: u64) -> Version {
    Version { epoch: Epoch(epoch), seq }
}

impl Member {
    fn new() -> Member {
        let config = Config::new(ME, Incarnation(1), StoreId(1), 1 << 20, 1);
        Member { replica: Replica::new(config, Recovered::default()), map: 0, received: Vec::new() }
    }

    fn on(&mut self, event: Event) -> Vec<Command> {
        let mut out = Vec::new();
        self.replica.on(Moment(1), event, &mut out);
        out
    }

    /// `states`: each slot's state and holder.
    fn configure(&mut self, epoch: u32, states: [(SlotState, Option<ServerId>); 3]) -> Vec<Command> {
        let slot = |(server, (state, holder)): (ServerId, (SlotState, Option<ServerId>))| {
            let holder = holder.map(|server| Holder::new(server, true));
            Slot { server, state, holder }
        };
        let slots = [ME, PRIMARY, THIRD].into_iter().zip(states).map(slot).collect();
        let (epoch, primary, received) = (Epoch(epoch), Some(PRIMARY), self.received.clone());
        let entry = GroupEntry { epoch, primary, slots, received, ..GroupEntry::unknown() };
        let servers = [1, 2, 3, 4].map(|id| crate::server(id, id as u8 % 3, ServerState::Awake)).to_vec();
        let (from, to) = (self.map, self.map + 1);
        self.map = to;
        self.on(Event::Map(MapDelta {
            from,
            to,
            servers,
            groups: vec![(GROUP, entry)],
            ..MapDelta::default()
        }))
    }

    /// The primary sends a record; returns the immediate commands, and the token of the store command.
    fn replicate(&mut self, version: Version, content: Content) -> (Vec<Command>, Option<StoreToken>) {
        let (first, count) = (0, u32::from(content != Content::Delete));
        let chunk = ChunkId::default();
        let record = Record { group: GROUP, chunk, first, count, version, request: None, content };
        let (epoch, committed) = (version.epoch, Version { seq: 0, ..version });
        let role = Role::Replica;
        let message = PeerMessage::Replicate { epoch, role, record, committed, must_fit: true };
        let out = self.on(Event::Peer { from: PRIMARY, message, payload: Bytes::new() });
        let applied = out.iter().find_map(|c| match c {
            Command::Store { token, command: StoreCommand::Apply { .. } } => Some(*token),
            _ => None,
        });
        (out, applied)
    }

    /// The primary reports that all writes up to `committed` are on all targets; returns up to where deletions are
    /// forgotten.
    fn commit(&mut self, committed: Version) -> Option<Version> {
        let message = PeerMessage::Committed { group: GROUP, epoch: committed.epoch, committed };
        forgotten(&self.on(Event::Peer { from: PRIMARY, message, payload: Bytes::new() }))
    }

    fn delete(&mut self, version: Version) {
        let (_, token) = self.replicate(version, Content::Delete);
        self.on(Event::Stored { token: token.expect("it is stored"), outcome: StoreOutcome::Applied });
    }
}

fn forgotten(commands: &[Command]) -> Option<Version> {
    commands.iter().find_map(|c| match c {
        Command::ForgetTombstones { group: GROUP, up_to } => Some(*up_to),
        _ => None,
    })
}

/// The listings requested: from which server, in which role, since which epoch.
fn asked(commands: &[Command]) -> Vec<(ServerId, Role, Epoch)> {
    let asked = |c: &Command| match c {
        Command::Send { to, message: PeerMessage::List { role, since, .. }, .. } => {
            Some((*to, *role, *since))
        }
        _ => None,
    };
    commands.iter().filter_map(asked).collect()
}

#[test]
fn a_deletion_is_forgotten_when_it_is_on_all_replicas_and_once() {
    let mut me = Member::new();
    me.configure(5, [(IN_SYNC, None); 3]);
    assert_eq!(me.commit(version(5, 1)), Some(version(5, 1)), "what a start finds is not known");
    me.delete(version(5, 2));
    me.delete(version(5, 3));
    assert_eq!(me.commit(version(5, 2)), Some(version(5, 2)));
    assert_eq!(me.commit(version(5, 3)), Some(version(5, 3)));
    assert_eq!(me.commit(version(5, 4)), None, "there is nothing to forget");
}

#[test]
fn a_deletion_is_remembered_while_a_slot_may_have_missed_it() {
    let since = Epoch(4);
    let late = [
        (SlotState::CatchingUp { since }, None),
        (SlotState::Away { since }, Some(HOLDER)),
        (SlotState::CatchingUp { since }, Some(HOLDER)),
    ];
    for third in late {
        let mut me = Member::new();
        me.configure(5, [(IN_SYNC, None), (IN_SYNC, None), third]);
        me.delete(version(5, 1));
        assert_eq!(me.commit(version(5, 1)), None, "{third:?}");
        me.configure(6, [(IN_SYNC, None); 3]);
        assert_eq!(me.commit(version(5, 1)), None, "it says nothing of this epoch");
        assert_eq!(me.commit(version(6, 0)), Some(version(6, 0)));
    }
}

/// Nothing more comes in an idle group.
#[test]
fn a_deletion_is_forgotten_also_when_the_commit_comes_before_the_configuration() {
    let away = (SlotState::Away { since: Epoch(4) }, Some(HOLDER));
    let mut me = Member::new();
    me.configure(5, [(IN_SYNC, None), (IN_SYNC, None), away]);
    me.delete(version(5, 1));
    assert_eq!(me.commit(version(5, 1)), None);
    let fence = PeerMessage::Fence { group: GROUP, epoch: Epoch(6), done: Vec::new() };
    me.on(Event::Peer { from: PRIMARY, message: fence, payload: Bytes::new() });
    assert_eq!(me.commit(version(6, 0)), None, "it is not known here that all are in sync");
    assert_eq!(forgotten(&me.configure(6, [(IN_SYNC, None); 3])), Some(version(6, 0)));
}

/// No further commit comes in an idle group, and no tick (seed 30263026681).
#[test]
fn a_deletion_is_forgotten_also_when_the_commit_comes_during_a_repair() {
    let (group, epoch, role, whole) = (GROUP, Epoch(5), Role::Replica, false);
    let (chunk, first, count) = (ChunkId { index: 1, ..ChunkId::default() }, 0, 1);
    let (older, content) = (version(4, 1), Content::Zero);
    let sound = Record { group, chunk, first, count, version: older, request: None, content };
    let read = StoreOutcome::Read { records: vec![sound.clone()], payload: Bytes::new() };
    for found in [Ok(vec![sound]), Err(Refusal::Corrupt)] {
        let mut me = Member::new();
        me.configure(5, [(IN_SYNC, None); 3]);
        me.delete(version(5, 1));
        let message = PeerMessage::Fetch { group, epoch, token: 1, role, chunk, first, count, whole };
        let out = me.on(Event::Peer { from: PRIMARY, message, payload: Bytes::new() });
        let [Command::Store { token, .. }] = out[..] else { panic!("{out:?}") };
        let outcome = StoreOutcome::Damaged { chunk, block: first, lost: None, given_up: false, all: false };
        let mut out = me.on(Event::Stored { token, outcome });
        assert_eq!(me.commit(version(5, 1)), None, "a repair may bring back what was deleted");
        let answer = |c: &Command| match c {
            Command::Send { to, message: PeerMessage::Fetch { token, .. }, .. } => {
                let message = PeerMessage::FetchReply { group, token: *token, result: found.clone() };
                Some(Event::Peer { from: *to, message, payload: Bytes::new() })
            }
            Command::Store { token, command: StoreCommand::Repair { .. } } => {
                Some(Event::Stored { token: *token, outcome: StoreOutcome::Applied })
            }
            Command::Store { token, .. } => Some(Event::Stored { token: *token, outcome: read.clone() }),
            _ => None,
        };
        while let Some(event) = out.iter().find_map(answer) {
            out = me.on(event);
        }
        assert_eq!(forgotten(&out), Some(version(5, 1)), "{found:?}");
    }
}

/// A record resent over another connection may arrive after the deletion that followed it, even after that was
/// forgotten.
#[test]
fn a_record_that_comes_late_is_not_stored_again() {
    let mut me = Member::new();
    me.configure(5, [(IN_SYNC, None); 3]);
    let (_, token) = me.replicate(version(5, 1), Content::Zero);
    me.on(Event::Stored { token: token.expect("it is stored"), outcome: StoreOutcome::Applied });
    me.delete(version(5, 2));
    assert_eq!(me.commit(version(5, 2)), Some(version(5, 2)));
    let (out, token) = me.replicate(version(5, 1), Content::Zero);
    let answered = |c: &Command| {
        matches!(
            c,
            Command::Send { to: PRIMARY, message: PeerMessage::ReplicateReply { result: Ok(()), .. }, .. }
        )
    };
    assert!(token.is_none() && out.iter().any(answered), "{out:?}");
}

/// Offload that a holder failed to drop may have been deleted since. A full comparison asks a holder for no more than
/// it must have, and prefers a replica that is in sync.
#[test]
fn a_replica_that_compares_everything_asks_no_holder_for_it() {
    let everything = SlotState::CatchingUp { since: Epoch(0) };
    let mut me = Member::new();
    let out = me.configure(5, [(everything, Some(HOLDER)), (IN_SYNC, None), (IN_SYNC, None)]);
    assert!(matches!(asked(&out)[..], [(PRIMARY | THIRD, Role::Replica, Epoch(0))]), "{out:?}");
    let mut me = Member::new();
    let (since, away) = (Epoch(4), SlotState::Away { since: Epoch(4) });
    let states = [(everything, None), (SlotState::CatchingUp { since }, Some(HOLDER)), (away, None)];
    let out = me.configure(5, states);
    assert_eq!(asked(&out), [(PRIMARY, Role::Replica, Epoch(0))]);
    let token = out.iter().find_map(|c| match c {
        Command::Send { message: PeerMessage::List { token, .. }, .. } => Some(*token),
        _ => None,
    });
    let (token, result) = (token.expect("just seen"), Ok(ListPage::default()));
    let message = PeerMessage::ListReply { group: GROUP, token, result };
    let out = me.on(Event::Peer { from: PRIMARY, message, payload: Bytes::new() });
    let [Command::Store { token, .. }] = out[..] else { panic!("{out:?}") };
    let out = me.on(Event::Stored { token, outcome: StoreOutcome::Listed(ListPage::default()) });
    let [Command::Store { token, .. }] = out[..] else { panic!("{out:?}") };
    let out = me.on(Event::Stored { token, outcome: StoreOutcome::Newer(Vec::new()) });
    assert_eq!(asked(&out), [(HOLDER, Role::Offload { stands_for: PRIMARY }, since)]);
    let mut me = Member::new();
    let some = SlotState::CatchingUp { since: Epoch(3) };
    let out = me.configure(5, [(some, Some(HOLDER)), (IN_SYNC, None), (IN_SYNC, None)]);
    assert_eq!(asked(&out), [(HOLDER, Role::Offload { stands_for: ME }, Epoch(3))]);
}

/// A rebuild that goes on from the own holder, because the primary failed: what came here since the server takes part,
/// the holder never got. It was once deleted as what no source lists.
#[test]
fn what_came_here_directly_is_not_deleted_because_the_own_holder_lacks_it() {
    let everything = SlotState::CatchingUp { since: Epoch(0) };
    for (gap, deleted) in [(false, vec![version(3, 1)]), (true, vec![version(3, 1), version(5, 1)])] {
        let mut me = Member::new();
        me.configure(5, [(everything, Some(HOLDER)), (IN_SYNC, None), (IN_SYNC, None)]);
        let away = SlotState::Away { since: Epoch(6) };
        me.received = vec![Received { server: ME, from: Epoch(if gap { 6 } else { 5 }), until: None }];
        let out = me.configure(6, [(everything, Some(HOLDER)), (away, None), (away, None)]);
        let [(HOLDER, Role::Offload { stands_for: ME }, Epoch(0))] = asked(&out)[..] else {
            panic!("{out:?}")
        };
        let token = out.iter().find_map(|c| match c {
            Command::Send { message: PeerMessage::List { token, .. }, .. } => Some(*token),
            _ => None,
        });
        let (token, result) = (token.expect("just seen"), Ok(ListPage::default()));
        let message = PeerMessage::ListReply { group: GROUP, token, result };
        let out = me.on(Event::Peer { from: HOLDER, message, payload: Bytes::new() });
        let [Command::Store { token, .. }] = out[..] else { panic!("{out:?}") };
        let run = |index, version| Run {
            chunk: ChunkId { object: ebb_types::ObjectId(9), index },
            first: 0,
            count: 1,
            version,
            kind: Kind::Data,
        };
        let runs = vec![run(0, version(3, 1)), run(1, version(5, 1))];
        let own = StoreOutcome::Listed(ListPage { runs, next: None });
        let out = me.on(Event::Stored { token, outcome: own });
        let [Command::Store { token, .. }] = out[..] else { panic!("{out:?}") };
        let out = me.on(Event::Stored { token, outcome: StoreOutcome::Newer(Vec::new()) });
        let removed: Vec<Version> = out.iter().filter_map(removed).collect();
        assert_eq!(removed, deleted, "{out:?}");
    }
}

fn removed(command: &Command) -> Option<Version> {
    match command {
        Command::Store { command: StoreCommand::Apply { record, .. }, .. } => {
            (record.content == Content::Delete).then_some(record.version)
        }
        _ => None,
    }
}
