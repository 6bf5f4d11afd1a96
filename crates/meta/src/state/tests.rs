use super::*;
use crate::NewServer;
use ebb_types::{ClusterMap, GearGroup, Holder, RackId, StoreMark};

fn bootstrap() -> Bootstrap {
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

#[test]
fn a_delta_brings_a_reader_of_any_age_up_to_date() {
    let mut state = created();
    let mut readers = vec![(0, ClusterMap::default())];
    for step in 0..12u32 {
        let id = ServerId((step % 6) as u16);
        let server = Command::SetServer {
            server: id,
            state: ServerState::Awake,
            incarnation: Incarnation(step.into()),
            mark: StoreMark::default(),
        };
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
    let same = Command::SetServer {
        server: ServerId(1),
        state: ServerState::Waking,
        incarnation: Incarnation(0),
        mark: StoreMark::default(),
    };
    let version = state.version();
    state.apply(&same);
    state.apply(&Command::AllocateObjects { count: 7 });
    state.apply(&Command::SetGear { manual: Some(2) });
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
        e.slots[1].holder = Some(Holder { server: ServerId(0), covered: true });
    });
}

#[test]
fn two_copies_never_have_one_target() {
    breaks("one target per copy", |e| {
        for slot in &mut e.slots[1..] {
            slot.state = SlotState::Away { since: Epoch(2) };
            slot.holder = Some(Holder { server: ServerId(3), covered: true });
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
