use super::*;
use crate::NewServer;
use ebb_types::{
    ClusterMap, Column, GearGroup, GearWish, Holder, NO_GEAR, ParityDebt, RackId, Shape, StoreMark,
};

/// Six servers in three racks, with four groups on the first three.
pub(crate) fn bootstrap() -> Bootstrap {
    let server = |id: u16| NewServer {
        id: ServerId(id),
        rack: RackId(id % 3),
        pool: PoolId::REPLICATED,
        gear_group: GearGroup((id % 3) as u8),
        address: format!("h{id}:1"),
    };
    Bootstrap {
        params: ClusterParams {
            cluster: 1,
            instance: 1,
            chunk_bytes: 1 << 20,
            replicas: 3,
            groups: 4,
            lease_millis: 1000,
        },
        servers: (0..6).map(server).collect(),
        groups: vec![(0..3).map(ServerId).collect(); 4],
        pools: Vec::new(),
        sets: Vec::new(),
        schedule: Schedule::default(),
    }
}

fn created() -> State {
    let mut state = State::default();
    assert_eq!(state.apply(&Command::Init(bootstrap())), Reply::Done);
    state
}

/// The group's next entry, modified by `change`.
fn next(state: &State, group: u32, change: impl FnOnce(&mut GroupEntry)) -> Change {
    let old = state.group(GroupId(group)).unwrap();
    let mut entry = GroupEntry { epoch: old.epoch.next(), ..old.clone() };
    change(&mut entry);
    Change { group: GroupId(group), expected: old.stage(), entry }
}

#[test]
fn a_configuration_decided_from_an_older_one_changes_nothing() {
    let mut state = created();
    let first = next(&state, 0, |e| e.primary = Some(ServerId(0)));
    let late = next(&state, 0, |e| e.primary = Some(ServerId(1)));
    let other = next(&state, 1, |e| e.primary = Some(ServerId(2)));
    let reply = state.apply(&Command::Reconfigure(vec![first, late, other]));
    assert_eq!(reply, Reply::Reconfigured { made: 2, stale: 1 });
    assert_eq!(state.group(GroupId(0)).unwrap().primary, Some(ServerId(0)));
    let unknown = Change { group: GroupId(99), ..next(&state, 0, |_| {}) };
    assert_eq!(state.apply(&Command::Reconfigure(vec![unknown])), Reply::Reconfigured { made: 0, stale: 1 });
}

/// The leader decided that the server is back, and an operator that it is lost: whichever comes second did not know.
#[test]
fn a_verdict_on_a_server_that_changed_meanwhile_is_refused() {
    let (id, run, mark) = (ServerId(1), Incarnation(1), StoreMark::default());
    for first in [ServerState::Lost, ServerState::Awake] {
        let mut state = created();
        state.apply(&Command::set_server(&state, id, ServerState::Failed, run, mark));
        let mut verdicts =
            [ServerState::Lost, ServerState::Awake].map(|to| Command::set_server(&state, id, to, run, mark));
        if first == ServerState::Awake {
            verdicts.reverse();
        }
        assert_eq!(state.apply(&verdicts[0]), Reply::Done);
        let version = state.version();
        assert!(matches!(state.apply(&verdicts[1]), Reply::Refused(why) if why.contains("ebb status")));
        assert_eq!((state.server(id).unwrap().state, state.version()), (first, version));
    }
}

#[test]
fn a_delta_brings_a_reader_of_any_age_up_to_date() {
    let mut state = created();
    let mut readers = vec![(0, ClusterMap::default())];
    for step in 0..12u32 {
        let id = ServerId((step % 6) as u16);
        let run = Incarnation(step.into());
        let server = Command::set_server(&state, id, ServerState::Awake, run, StoreMark::default());
        state.apply(&server);
        let change = next(&state, step % 4, |e| e.primary = Some(ServerId((step % 3) as u16)));
        state.apply(&Command::Reconfigure(vec![change]));
        let mut newcomer = ClusterMap::default();
        assert!(newcomer.apply(&state.delta(0)));
        readers.push((state.version(), newcomer));
    }
    let (_, newest) = readers.last().unwrap().clone();
    for (version, mut map) in readers {
        let delta = state.delta(version);
        assert!(delta.groups.len() <= 4 && (version < state.version() || delta.groups.is_empty()));
        assert!(map.apply(&delta));
        assert_eq!(map, newest, "from version {version}");
    }
    assert_eq!(state.delta(u64::MAX).from, 0, "a version that never was gets the whole map");
}

#[test]
fn what_changes_nothing_leaves_the_map_version_alone() {
    let mut state = created();
    let (waking, run) = (ServerState::Waking, Incarnation(0));
    let same = Command::set_server(&state, ServerId(1), waking, run, StoreMark::default());
    let version = state.version();
    state.apply(&same);
    state.apply(&Command::AllocateObjects { count: 7 });
    state.apply(&Command::SetGear { manual: Some(GearWish::Gear(2)) });
    assert_eq!(state.version(), version);
}

#[test]
fn object_ids_are_given_once() {
    let mut state = created();
    assert_eq!(
        state.apply(&Command::AllocateObjects { count: 3 }),
        Reply::Objects { first: ObjectId(1), count: 3 }
    );
    assert_eq!(
        state.apply(&Command::AllocateObjects { count: 1 }),
        Reply::Objects { first: ObjectId(4), count: 1 }
    );
}

#[test]
fn a_cluster_is_created_once_and_only_if_its_layout_fits() {
    let mut state = created();
    assert!(matches!(state.apply(&Command::Init(bootstrap())), Reply::Refused(_)));
    let spoil: [fn(&mut Bootstrap); 5] = [
        |b| b.groups[0].truncate(2),
        |b| b.groups[0][1] = ServerId(77),
        |b| b.groups[0][1] = ServerId(3),
        |b| b.params.groups = 5,
        |b| b.servers[0].id = ServerId(1),
    ];
    for spoil in spoil {
        let mut bad = bootstrap();
        spoil(&mut bad);
        let mut state = State::default();
        assert!(matches!(state.apply(&Command::Init(bad)), Reply::Refused(_)));
        assert_eq!(state, State::default());
    }
}

#[test]
fn a_snapshot_is_the_whole_state() {
    let mut state = created();
    let change = next(&state, 2, |e| e.primary = Some(ServerId(0)));
    state.apply(&Command::Reconfigure(vec![change]));
    let bytes = postcard::to_stdvec(&state).unwrap();
    assert_eq!(postcard::from_bytes::<State>(&bytes).unwrap(), state);
}

/// A command that breaks `rule`, next to a change that does not.
fn breaks(rule: &str, change: impl FnOnce(&mut GroupEntry)) {
    let mut state = created();
    let good = next(&state, 1, |e| e.primary = Some(ServerId(0)));
    let bad = next(&state, 0, change);
    let before = state.clone();
    let reply = state.apply(&Command::Reconfigure(vec![good, bad]));
    assert!(matches!(&reply, Reply::Broken(why) if why.contains(rule)), "{reply:?}");
    assert_eq!(state, before, "nothing is changed");
}

#[test]
fn an_epoch_is_never_passed_over() {
    breaks("the epoch grows by one", |e| e.epoch = Epoch(9));
}

#[test]
fn a_slot_never_leaves_its_gear_group() {
    breaks("slot k stays in gear group k", |e| e.slots[1].server = ServerId(3));
}

#[test]
fn a_holder_never_holds_another_copy() {
    breaks("a holder has no slot", |e| {
        e.slots[1].state = SlotState::Away { since: Epoch(2) };
        e.slots[1].holder = Some(Holder::new(ServerId(0), true));
    });
}

#[test]
fn two_copies_never_have_one_target() {
    breaks("one target per copy", |e| {
        for slot in &mut e.slots[1..] {
            slot.state = SlotState::Away { since: Epoch(2) };
            slot.holder = Some(Holder::new(ServerId(3), true));
        }
    });
}

#[test]
fn a_primary_is_awake() {
    breaks("the primary is not away", |e| {
        e.primary = Some(ServerId(1));
        e.slots[1].state = SlotState::Away { since: Epoch(2) };
    });
}

const POOL: PoolId = PoolId(1);

type Spoil<T> = fn(&mut T);

/// Two sets of 2+1 on servers 10 to 15, and server 16 to spare.
fn with_sets() -> Bootstrap {
    let shape = Shape::new(2, 1).unwrap();
    let mut boot = bootstrap();
    boot.servers.extend((10..17).map(|id| NewServer {
        id: ServerId(id),
        rack: RackId(id),
        pool: POOL,
        gear_group: NO_GEAR,
        address: format!("h{id}:1"),
    }));
    let column = |id| Column { server: ServerId(id), state: SlotState::InSync };
    let set = |first: u16| SetEntry {
        pool: POOL,
        shape,
        epoch: Epoch(1),
        hibernates_since: None,
        columns: (first..first + 3).map(column).collect(),
    };
    boot.sets = vec![set(10), set(13)];
    boot.pools = vec![PoolEntry {
        id: POOL,
        name: "archive".into(),
        shape,
        parity_debt: ParityDebt::Segment,
        parity_buffer_bytes: 1 << 30,
        hibernate_after_millis: None,
        rebuild_bytes_per_second: None,
        awake_parity: 0,
        sets: vec![SetId(0), SetId(1)],
    }];
    boot
}

fn created_with_sets() -> State {
    let mut state = State::default();
    assert_eq!(state.apply(&Command::Init(with_sets())), Reply::Done);
    state
}

#[test]
fn a_set_goes_to_sleep_whole() {
    for (column, whole) in [(0, false), (1, false), (2, true)] {
        let mut state = created_with_sets();
        let sleep = next_set(&state, 0, |entry| {
            entry.hibernates_since = Some(1);
            entry.columns[column].state = SlotState::Away { since: entry.epoch };
        });
        let reply = state.apply(&Command::ReconfigureSets(vec![sleep]));
        assert_eq!(matches!(reply, Reply::Reconfigured { made: 1, .. }), whole, "{reply:?}");
    }
}

/// The set's next entry, modified by `change`.
fn next_set(state: &State, set: u16, change: impl FnOnce(&mut SetEntry)) -> SetChange {
    let old = state.set(SetId(set)).unwrap();
    let mut entry = SetEntry { epoch: old.epoch.next(), ..old.clone() };
    change(&mut entry);
    SetChange { set: SetId(set), expected: old.epoch, entry }
}

#[test]
fn a_sets_configuration_follows_the_one_that_it_was_decided_from() {
    let mut state = created_with_sets();
    let leave = |e: &mut SetEntry| e.columns[2].state = SlotState::Away { since: e.epoch };
    let (first, other) = (next_set(&state, 0, leave), next_set(&state, 1, leave));
    let version = state.version();
    let reply = state.apply(&Command::ReconfigureSets(vec![first.clone(), other]));
    assert_eq!(reply, Reply::Reconfigured { made: 2, stale: 0 });
    assert_eq!(state.version(), version + 1);
    assert_eq!(state.set(SetId(0)), Some(&first.entry));
    let unknown = SetChange { set: SetId(9), ..first.clone() };
    let late = Command::ReconfigureSets(vec![first.clone(), unknown]);
    assert_eq!(state.apply(&late), Reply::Reconfigured { made: 0, stale: 2 });
    assert_eq!(state.version(), version + 1);
    let delta = state.delta(version);
    assert_eq!((delta.sets.len(), delta.pools.len(), delta.groups.len()), (2, 0, 0));
    let mut map = ClusterMap::default();
    assert!(map.apply(&state.delta(0)) && map.set(SetId(0)) == Some(&first.entry));
    let bytes = postcard::to_stdvec(&state).unwrap();
    assert_eq!(postcard::from_bytes::<State>(&bytes).unwrap(), state);
}

#[test]
fn a_set_breaks_no_rule() {
    let away = |since| SlotState::Away { since: Epoch(since) };
    let rules: [(&str, Spoil<SetEntry>); 10] = [
        ("the epoch grows by one", |e| e.epoch = Epoch(9)),
        ("keeps its pool", |e| e.pool = PoolId(2)),
        ("k + m columns", |e| {
            e.columns.pop();
        }),
        ("one column per server", |e| e.columns[1].server = ServerId(10)),
        ("two sets", |e| {
            let state = SlotState::Away { since: Epoch(0) };
            e.columns[1] = Column { server: ServerId(13), state };
        }),
        ("part of the cluster", |e| e.columns[0].server = ServerId(77)),
        ("of the set's pool", |e| e.columns[0].server = ServerId(1)),
        ("from the future", |e| e.columns[0].state = SlotState::Away { since: Epoch(9) }),
        ("a column that moves lacks everything", |e| e.columns[0].server = ServerId(16)),
        ("a column that moves lacks everything", |e| {
            e.columns[0] = Column { server: ServerId(16), state: SlotState::CatchingUp { since: Epoch(1) } };
        }),
    ];
    let refused = |state: &mut State, change: SetChange, rule: &str| {
        let good = next_set(state, 1, |_| {});
        let before = state.clone();
        let reply = state.apply(&Command::ReconfigureSets(vec![good, change]));
        assert!(matches!(&reply, Reply::Broken(why) if why.contains(rule)), "{rule}: {reply:?}");
        assert_eq!(*state, before, "nothing is changed");
    };
    for (rule, spoil) in rules {
        let mut state = created_with_sets();
        let change = next_set(&state, 0, spoil);
        refused(&mut state, change, rule);
    }
    let mut state = created_with_sets();
    let leave = next_set(&state, 0, |e| e.columns[0].state = away(2));
    state.apply(&Command::ReconfigureSets(vec![leave]));
    let back = next_set(&state, 0, |e| e.columns[0].state = SlotState::InSync);
    refused(&mut state, back, "a column that was away catches up");
    let less = next_set(&state, 0, |e| e.columns[0].state = away(3));
    refused(&mut state, less, "what a column lacks stays on record");
    let moved = next_set(&state, 0, |e| {
        e.columns[0] = Column { server: ServerId(16), state: SlotState::CatchingUp { since: Epoch(0) } };
    });
    assert_eq!(
        state.apply(&Command::ReconfigureSets(vec![moved])),
        Reply::Reconfigured { made: 1, stale: 0 }
    );
}

#[test]
fn a_cluster_is_created_only_with_pools_that_fit() {
    assert_eq!(with_sets().fault(), None);
    let spoil: [(&str, Spoil<Bootstrap>); 15] = [
        ("two columns", |b| b.sets[0].columns[1].server = ServerId(10)),
        ("two columns", |b| b.sets[0].columns[1].server = ServerId(13)),
        ("not configured", |b| b.sets[0].columns[1].server = ServerId(77)),
        ("which is in pool-0", |b| b.sets[0].columns[1].server = ServerId(1)),
        ("gears do not concern it", |b| b.servers[7].gear_group = GearGroup(1)),
        ("which is not configured", |b| b.servers[12].pool = PoolId(5)),
        ("name each once", |b| b.pools[0].sets.push(SetId(2))),
        ("name each once", |b| b.pools[0].sets.push(SetId(1))),
        ("name each once", |b| {
            b.pools[0].sets.pop();
        }),
        ("not of 3+1", |b| b.pools[0].shape = Shape::new(3, 1).unwrap()),
        ("has 2 servers, not 3", |b| {
            b.sets[1].columns.pop();
        }),
        ("which is in pool-1", |b| b.groups[0][1] = ServerId(10)),
        ("epoch 1", |b| b.sets[1].epoch = Epoch(2)),
        ("no room for the parity", |b| b.pools[0].parity_buffer_bytes = 0),
        ("the id of another pool", |b| b.pools[0].id = PoolId::REPLICATED),
    ];
    for (why, spoil) in spoil {
        let mut bad = with_sets();
        spoil(&mut bad);
        let fault = bad.fault().unwrap_or_default();
        assert!(fault.contains(why), "{why}: {fault:?}");
    }
}

/// A pool of servers 20 to 23, to come to a cluster with [`with_sets`].
fn another() -> NewPool {
    let (pool, shape) = (PoolId(2), Shape::new(2, 1).unwrap());
    let old = with_sets();
    let server =
        |id| NewServer { id: ServerId(id), pool, address: format!("h{id}:1"), ..old.servers[12].clone() };
    let column = |id| Column { server: ServerId(id), state: SlotState::InSync };
    let columns = (20..23).map(column).collect();
    NewPool {
        pool: PoolEntry { id: pool, name: "cold".into(), sets: vec![SetId(2)], ..old.pools[0].clone() },
        sets: vec![SetEntry { pool, shape, epoch: Epoch(1), hibernates_since: None, columns }],
        servers: (20..24).map(server).collect(),
    }
}

#[test]
fn a_pool_comes_to_a_cluster_once() {
    let mut state = created_with_sets();
    let before = state.version();
    assert_eq!(state.apply(&Command::AddPool(another())), Reply::Done);
    let delta = state.delta(before);
    assert_eq!((delta.servers.len(), delta.pools.len(), delta.sets.len()), (4, 1, 1));
    assert_eq!(state.set(SetId(2)).map(|set| set.pool), Some(PoolId(2)));
    assert_eq!(state.server(ServerId(23)).map(|entry| entry.state), Some(ServerState::Waking));
    let version = state.version();
    let Reply::Refused(why) = state.apply(&Command::AddPool(another())) else { panic!("twice") };
    assert!(why.contains("exists already") && state.version() == version, "{why}");
}

#[test]
fn a_pool_that_does_not_fit_changes_nothing() {
    let spoil: [(&str, Spoil<NewPool>); 9] = [
        ("exists already", |p| p.pool.name = "archive".into()),
        ("not the next one", |p| p.pool.id = PoolId(3)),
        ("not the next one", |p| p.pool.sets = vec![SetId(1)]),
        ("part of the cluster already", |p| p.servers[3].id = ServerId(16)),
        ("name each once", |p| p.pool.sets.push(SetId(4))),
        ("two columns", |p| p.sets[0].columns[1].server = ServerId(20)),
        ("not configured", |p| p.sets[0].columns[1].server = ServerId(10)),
        ("epoch 1", |p| p.sets[0].epoch = Epoch(2)),
        ("no room for the parity", |p| p.pool.parity_buffer_bytes = 0),
    ];
    for (why, spoil) in spoil {
        let (mut state, mut bad) = (created_with_sets(), another());
        spoil(&mut bad);
        let (before, reply) = (state.clone(), state.apply(&Command::AddPool(bad)));
        let Reply::Refused(found) = reply else { panic!("{why}: {reply:?}") };
        assert!(found.contains(why) && state == before, "{why}: {found:?}");
    }
}
