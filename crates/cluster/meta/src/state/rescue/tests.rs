use super::*;
use crate::{Bootstrap, Command};
use ebb_types::*;
use std::collections::BTreeMap;

const RUN: u64 = 7;

fn bootstrap() -> Bootstrap {
    let mut bootstrap = crate::state::tests::bootstrap();
    bootstrap.servers.truncate(3);
    bootstrap
}

fn created() -> State {
    let mut state = State::default();
    assert_eq!(state.apply(&Command::Init(bootstrap())), Reply::Done);
    state
}

/// The next epoch of a group, with this primary.
fn reconfigure(state: &mut State, group: u32, primary: u16) {
    let old = state.group(GroupId(group)).unwrap();
    let entry = GroupEntry { epoch: old.epoch.next(), primary: Some(ServerId(primary)), ..old.clone() };
    let change = crate::Change { group: GroupId(group), expected: old.stage(), entry };
    assert_eq!(state.apply(&Command::Reconfigure(vec![change])), Reply::Reconfigured { made: 1, stale: 0 });
}

fn first(generation: u32) -> Recalled {
    Recalled { generation, ..Recalled::default() }
}

fn rescued(mut state: State, recalled: Recalled) -> State {
    assert_eq!(state.apply(&Command::Rescue(recalled)), Reply::Done);
    state
}

/// What a server with this whole map remembers.
fn recalls(map: &State) -> Recalled {
    let groups = map.groups().map(|(id, entry)| (id, entry.epoch));
    Recalled { seen: map.version(), map: map.delta(0), epochs: groups.collect(), ..first(1) }
}

fn apply(state: &mut State, client: u64, seq: u64, session: Option<u64>, op: NamespaceOp) -> NamespaceReply {
    let request = RequestId { client, seq };
    let ops = if session.is_some() { vec![op] } else { Vec::new() };
    let command = NamespaceCommand { request, session, clock_millis: 0, ops };
    match state.apply(&Command::Namespace(command)) {
        Reply::Namespace(reply) => reply,
        other => panic!("{other:?}"),
    }
}

/// A cluster with a bucket, a volume, an upload, garbage and leased ids, and the session of its client.
fn lived_in() -> (State, u64) {
    let mut state = created();
    state.apply(&Command::AllocateObjects { count: 10 });
    let nothing = NamespaceOp::DeleteBucket { bucket: "x".into() };
    let session = apply(&mut state, RUN, 0, None, nothing).session;
    let bucket = String::from("b");
    let ops = [
        NamespaceOp::CreateBucket { bucket: bucket.clone(), settings: BTreeMap::new() },
        NamespaceOp::Lease { first: ObjectId(1), count: 4, bytes: 4096 },
        upload(),
        NamespaceOp::CreateVolume { name: "v".into(), size: 1 << 20, object: ObjectId(9), home: None },
        claim(),
        NamespaceOp::Discard { extents: vec![whole(1)] },
    ];
    for (n, op) in ops.into_iter().enumerate() {
        let reply = apply(&mut state, RUN, 1 + n as u64, Some(session), op);
        assert!(reply.results[0].is_ok(), "{reply:?}");
    }
    (state, session)
}

fn whole(object: u64) -> Extent {
    Extent { object: ObjectId(object), offset: 0, len: 4096, shared: false, crc: 0 }
}

fn upload() -> NamespaceOp {
    NamespaceOp::CreateUpload { bucket: "b".into(), key: "k".into(), headers: Vec::new(), checksum: None }
}

fn claim() -> NamespaceOp {
    let noted = Extent { object: ObjectId(9), offset: 1 << 40, len: 9, shared: false, crc: 0 };
    NamespaceOp::ClaimVolume { name: "v".into(), from: None, noted }
}

fn object(state: &mut State) -> u64 {
    match state.apply(&Command::AllocateObjects { count: 1 }) {
        Reply::Objects { first, .. } => first.0,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_number_that_is_handed_out_is_above_all_that_were() {
    let (before, session) = lived_in();
    let mut state = rescued(before.clone(), first(1));
    assert_eq!(state.generation(), 1);
    assert!(state.version() >= before.version() + JUMP);
    for (id, entry) in state.groups() {
        assert_eq!(entry.epoch, before.group(id).unwrap().epoch.after(EPOCH_JUMP));
        assert_eq!(entry.slots, before.group(id).unwrap().slots, "nothing speaks against them");
    }
    assert!(object(&mut state) >= 11 + OBJECT_JUMP);
    // Its client was answered what is not known here: it must begin again.
    let reply = apply(&mut state, RUN, 99, Some(session), upload());
    assert_eq!(reply.results, [Err(NamespaceError::Expired)]);
    let again = apply(&mut state, RUN, 0, None, upload()).session;
    assert!(again > session + JUMP, "{again}");
    let mut seq = 100;
    let mut next = |state: &mut State, op| {
        seq += 1;
        apply(state, RUN, seq, Some(again), op).results.remove(0)
    };
    match next(&mut state, upload()) {
        Ok(NamespaceDone::Upload(id)) => assert!(id > 1 + JUMP, "{id}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(next(&mut state, claim()), Ok(NamespaceDone::Claimed(1)), "its owner keeps its claim");
    assert_eq!(next(&mut state, NamespaceOp::ReleaseVolume { name: "v".into() }), Ok(NamespaceDone::Done));
    match next(&mut state, claim()) {
        Ok(NamespaceDone::Claimed(number)) => assert!(number > 1 + JUMP, "{number}"),
        other => panic!("{other:?}"),
    }
    let late = NamespaceOp::Lease { first: ObjectId(8), count: 1, bytes: 1 };
    assert_eq!(next(&mut state, late), Err(NamespaceError::NotLeased), "it may have been leased and named");
    assert_eq!(
        state.apply(&Command::Rescue(first(1))),
        Reply::Refused("it is of generation 1 already".into())
    );
}

#[test]
fn what_was_leased_is_neither_freed_nor_can_it_be_named() {
    let (before, _) = lived_in();
    let garbage =
        |state: &State| match state.namespace().query(&NamespaceQuery::Garbage { after: 0, limit: 99 }) {
            Ok(NamespaceAnswer::Garbage(extents)) => extents,
            other => panic!("{other:?}"),
        };
    assert!(before.namespace().is_leased(ObjectId(3)));
    let state = rescued(before.clone(), first(1));
    assert!(!state.namespace().is_leased(ObjectId(3)));
    assert_eq!(garbage(&state), garbage(&before), "only what had lost its name before");
}

#[test]
fn a_server_that_knows_a_newer_map_than_the_rescued_one_takes_all_of_it() {
    let mut truth = created();
    let behind = truth.clone();
    let mut server = ClusterMap::default();
    (0..4).for_each(|group| reconfigure(&mut truth, group, 1));
    assert!(server.apply(&truth.delta(0)));
    let state = rescued(behind, recalls(&truth));
    assert!(server.apply(&state.delta(server.version)));
    let mut fresh = ClusterMap::default();
    fresh.apply(&state.delta(0));
    assert_eq!(server, fresh);
}

#[test]
fn the_newest_configuration_that_a_server_knows_counts() {
    let mut truth = created();
    let mut behind = truth.clone();
    reconfigure(&mut truth, 0, 1);
    reconfigure(&mut truth, 0, 2);
    // An entry of the log that was never committed: of the same epoch, and of a later one.
    reconfigure(&mut behind, 1, 0);
    reconfigure(&mut truth, 1, 1);
    reconfigure(&mut behind, 2, 0);
    let recalled = recalls(&truth);
    assert_eq!(behind.unsure(&recalled), Unsure::default());
    let state = rescued(behind, recalled);
    let primaries: Vec<_> = state.groups().map(|(_, entry)| entry.primary.map(|id| id.0)).collect();
    assert_eq!(primaries, [Some(2), Some(1), None, None]);
    assert!(state.groups().all(|(_, entry)| entry.is_in_sync() && entry.epoch > Epoch(EPOCH_JUMP)));
}

#[test]
fn a_group_with_an_unknown_newer_epoch_has_no_complete_copy() {
    let own = created();
    let fenced = |recalled: Recalled| {
        let epochs = BTreeMap::from([(GroupId(2), Epoch(5))]);
        Recalled { epochs, ..recalled }
    };
    for recalled in [fenced(first(1)), fenced(recalls(&own))] {
        let unsure = own.unsure(&recalled);
        assert_eq!(unsure, Unsure { groups: vec![GroupId(2)], sets: Vec::new() });
        let state = rescued(own.clone(), recalled);
        let entry = state.group(GroupId(2)).unwrap();
        assert_eq!((entry.epoch, entry.primary), (Epoch(5 + EPOCH_JUMP), None));
        let nothing = SlotState::CatchingUp { since: Epoch(0) };
        assert!(entry.slots.iter().all(|slot| slot.state == nothing), "{entry:?}");
        assert!(state.group(GroupId(1)).unwrap().is_in_sync());
    }
}

#[test]
fn a_map_that_no_server_has_any_more_leaves_no_complete_copy() {
    let own = created();
    let all: Vec<GroupId> = (0..4).map(GroupId).collect();
    let seen = |seen, recalled: Recalled| Recalled { seen, ..recalled };
    assert_eq!(own.unsure(&seen(own.version(), first(1))).groups, [], "it was this one");
    assert_eq!(own.unsure(&seen(own.version() + 1, first(1))).groups, all);
    assert_eq!(own.unsure(&seen(own.version() + 1, recalls(&own))).groups, all);
    assert_eq!(own.unsure(&Recalled { unknown: true, ..recalls(&own) }).groups, all, "too few were heard");
    let state = rescued(own.clone(), seen(500, first(1)));
    assert!(state.version() >= 500 + JUMP);
}

#[test]
fn a_set_that_may_have_changed_compares_what_its_columns_have() {
    let shape = Shape::new(2, 1).unwrap();
    let column = |id| Column { server: ServerId(id), state: SlotState::InSync };
    let columns: Vec<Column> = (10..13).map(column).collect();
    let entry = SetEntry { pool: PoolId(1), shape, epoch: Epoch(3), hibernates_since: None, columns };
    let mut own = created();
    own.sets.push(Versioned { item: entry.clone(), changed: 1 });
    let of = |state: State| state.sets().map(|(_, set)| set.clone()).next().unwrap();
    let sure = of(rescued(own.clone(), first(1)));
    assert_eq!(sure, SetEntry { epoch: Epoch(3).after(EPOCH_JUMP), ..entry.clone() });
    let behind = of(rescued(own.clone(), Recalled { seen: 99, ..first(1) }));
    let since = SlotState::CatchingUp { since: Epoch(3) };
    assert!(behind.columns.iter().all(|column| column.state == since), "{behind:?}");
    let mut away = SetEntry { epoch: Epoch(4), ..entry };
    away.columns[2].state = SlotState::Away { since: Epoch(4) };
    let mut recalled = Recalled { seen: 99, ..first(1) };
    recalled.map = MapDelta { to: 99, sets: vec![(SetId(0), away.clone())], ..MapDelta::default() };
    assert_eq!(of(rescued(own, recalled)).columns, away.columns, "what a server knows");
}
