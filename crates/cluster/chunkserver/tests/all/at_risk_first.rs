//! A server that rebuilds several chunk groups starts with the one that has the fewest copies. Also: what it does where
//! no copy is complete.

use crate::server;
use bytes::Bytes;
use ebb_chunkserver::{Command, Config, Event, Recovered, Replica, StoreCommand, StoreOutcome};
use ebb_types::{
    BLOCK_BYTES, ChunkId, Content, Epoch, GroupEntry, GroupId, Incarnation, Kind, ListPage, MapDelta, Moment,
    ObjectId, PeerMessage, Record, Run, ServerId, ServerState, Slot, SlotState, StoreId, Version, block_crcs,
};

const ME: ServerId = ServerId(1);
const SAFE: GroupId = GroupId(0);
const AT_RISK: GroupId = GroupId(1);
const VERSION: Version = Version { epoch: Epoch(1), seq: 1 };

fn on(replica: &mut Replica, event: Event) -> Vec<Command> {
    let mut out = Vec::new();
    replica.on(Moment(1), event, &mut out);
    out
}

fn peer(from: u16, message: PeerMessage) -> Event {
    Event::Peer { from: ServerId(from), message, payload: Bytes::new() }
}

/// This server rebuilds both groups. One has its other two replicas; the other has lost one of them to a failure.
fn map() -> MapDelta {
    let servers = vec![
        server(1, 0, ServerState::Awake),
        server(2, 1, ServerState::Awake),
        server(3, 2, ServerState::Awake),
        server(4, 2, ServerState::Failed),
    ];
    let slot = |server, state| Slot { server: ServerId(server), state, holder: None };
    let entry = |third, state| GroupEntry {
        epoch: Epoch(2),
        primary: Some(ServerId(2)),
        slots: vec![
            slot(1, SlotState::CatchingUp { since: Epoch(0) }),
            slot(2, SlotState::InSync),
            slot(third, state),
        ],
        ..GroupEntry::unknown()
    };
    let groups =
        vec![(SAFE, entry(3, SlotState::InSync)), (AT_RISK, entry(4, SlotState::Away { since: Epoch(2) }))];
    MapDelta { from: 0, to: 1, servers, groups, ..MapDelta::default() }
}

/// The runs that the group's source has: one block in each of `count` chunks.
fn runs(group: GroupId, count: u32) -> Vec<Run> {
    let chunk = |index| ChunkId { object: ObjectId(u64::from(group.0)), index };
    (0..count)
        .map(|n| Run { chunk: chunk(n), first: 0, count: 1, version: VERSION, kind: Kind::Data })
        .collect()
}

fn asked_lists(out: &[Command]) -> Vec<(GroupId, u64)> {
    out.iter()
        .filter_map(|c| match c {
            Command::Send { message: PeerMessage::List { group, token, .. }, .. } => Some((*group, *token)),
            _ => None,
        })
        .collect()
}

fn fetches(out: &[Command]) -> Vec<(GroupId, u64, ChunkId)> {
    out.iter()
        .filter_map(|c| match c {
            Command::Send { message: PeerMessage::Fetch { group, token, chunk, .. }, .. } => {
                Some((*group, *token, *chunk))
            }
            _ => None,
        })
        .collect()
}

/// The source lists its runs, and the own store has none of them.
fn list(replica: &mut Replica, (group, token): (GroupId, u64), count: u32) -> Vec<(GroupId, u64, ChunkId)> {
    let page = ListPage { runs: runs(group, count), next: None };
    let out = on(replica, peer(2, PeerMessage::ListReply { group, token, result: Ok(page) }));
    let own = out.iter().find_map(|c| match c {
        Command::Store { token, command: StoreCommand::List { .. } } => Some(*token),
        _ => None,
    });
    let token = own.expect("it looks for what the source does not have");
    let out = on(replica, Event::Stored { token, outcome: StoreOutcome::Listed(ListPage::default()) });
    let compared = out.iter().find_map(|c| match c {
        Command::Store { token, command: StoreCommand::Newer { .. } } => Some(*token),
        _ => None,
    });
    let token = compared.expect("it compares with its own store");
    fetches(&on(replica, Event::Stored { token, outcome: StoreOutcome::Newer(runs(group, count)) }))
}

/// The source's reply arrives and becomes durable. Returns the next fetches.
fn answer(replica: &mut Replica, fetch: (GroupId, u64, ChunkId)) -> Vec<(GroupId, u64, ChunkId)> {
    let (group, token, chunk) = fetch;
    let payload = Bytes::from(vec![7; BLOCK_BYTES]);
    let content = Content::Data { crcs: block_crcs(&payload) };
    let record = Record { group, chunk, first: 0, count: 1, version: VERSION, request: None, content };
    let message = PeerMessage::FetchReply { group, token, result: Ok(vec![record]) };
    let out = on(replica, Event::Peer { from: ServerId(2), message, payload });
    let applied = out.iter().find_map(|c| match c {
        Command::Store { token, command: StoreCommand::Apply { .. } } => Some(*token),
        _ => None,
    });
    let token = applied.expect("it writes what it fetched");
    fetches(&on(replica, Event::Stored { token, outcome: StoreOutcome::Applied }))
}

#[test]
fn the_group_with_the_fewest_copies_is_fetched_first() {
    let mut replica =
        Replica::new(Config::new(ME, Incarnation(1), StoreId(1), 1 << 20, 2), Recovered::default());
    on(&mut replica, Event::Lease { until: Moment(u64::MAX) });
    let asked = asked_lists(&on(&mut replica, Event::Map(map())));
    let of = |group| *asked.iter().find(|(g, _)| *g == group).expect("both are listed");
    // The safe group begins first, and takes all fetch slots.
    let first = list(&mut replica, of(SAFE), 40);
    assert!(!first.is_empty() && first.len() < 40 && first.iter().all(|f| f.0 == SAFE), "{first:?}");
    assert_eq!(list(&mut replica, of(AT_RISK), 2), [], "there is no place for more");
    // Every fetch slot that becomes free goes to the group at risk, until it has everything.
    let mut fetched = Vec::new();
    for fetch in &first[..4] {
        fetched.extend(answer(&mut replica, *fetch));
    }
    let groups: Vec<GroupId> = fetched.iter().map(|f| f.0).collect();
    assert_eq!(groups, [AT_RISK, AT_RISK, SAFE, SAFE]);
}

#[test]
fn without_a_complete_copy_every_server_is_asked_and_all_must_answer() {
    let mut replica =
        Replica::new(Config::new(ME, Incarnation(1), StoreId(1), 1 << 20, 2), Recovered::default());
    on(&mut replica, Event::Lease { until: Moment(u64::MAX) });
    let mut delta = map();
    let catching_up = SlotState::CatchingUp { since: Epoch(0) };
    for (_, entry) in &mut delta.groups {
        entry.salvage = true;
        entry.slots.iter_mut().for_each(|slot| slot.state = catching_up);
    }
    // A member of the second group has failed: writes that it alone may have must not be left out.
    let asked = asked_lists(&on(&mut replica, Event::Map(delta)));
    assert!(matches!(asked[..], [(SAFE, _)]), "{asked:?}");
    // Sources are asked one after another.
    let page = ListPage { runs: Vec::new(), next: None };
    let message = PeerMessage::ListReply { group: SAFE, token: asked[0].1, result: Ok(page) };
    let out = on(&mut replica, peer(2, message));
    let compared = out.iter().find_map(|c| match c {
        Command::Store { token, command: StoreCommand::Newer { .. } } => Some(*token),
        _ => None,
    });
    let token = compared.expect("it compares with its own store");
    let out = on(&mut replica, Event::Stored { token, outcome: StoreOutcome::Newer(Vec::new()) });
    let to = |c: &Command| match c {
        Command::Send { to, message: PeerMessage::List { .. }, .. } => Some(*to),
        _ => None,
    };
    assert_eq!(out.iter().filter_map(to).collect::<Vec<_>>(), [ServerId(3)]);
    assert!(!out.iter().any(|c| matches!(c, Command::Report(_))), "it has not heard all of them");
}
