use super::*;
use crate::state::tests::bootstrap;
use crate::{Change, Command};
use ebb_types::{ClusterMap, Epoch, GroupEntry, GroupId, Holder, RackId, Slot, SlotState, StoreMark};

/// Six servers in three racks, with four groups on the first three.
fn created() -> State {
    let mut state = State::default();
    assert_eq!(state.apply(&Command::Init(bootstrap())), Reply::Done);
    state
}

fn joiner(id: u16) -> Joiner {
    let server = NewServer {
        id: ServerId(id),
        rack: RackId(id),
        pool: PoolId::REPLICATED,
        gear_group: GearGroup(0),
        address: format!("h{id}:1"),
    };
    Joiner { server, weight: Weight(200) }
}

fn change(state: &mut State, change: SeatChange) -> Result<(), SeatRefusal> {
    let checked = state.check_seat(&change);
    let before = state.clone();
    let reply = state.apply(&Command::ChangeSeat(change));
    match &checked {
        Ok(()) => assert_eq!(reply, Reply::Done),
        Err(refusal) => {
            assert_eq!(reply, Reply::Refused(refusal.to_string()));
            assert_eq!(*state, before, "what is refused changes nothing");
        }
    }
    checked
}

/// The first group's next configuration.
fn reconfigure(state: &mut State, change: impl FnOnce(&mut GroupEntry)) -> Reply {
    let old = state.group(GroupId(0)).unwrap();
    let mut entry = GroupEntry { epoch: old.epoch.next(), ..old.clone() };
    change(&mut entry);
    let change = Change { group: GroupId(0), expected: old.stage(), entry };
    state.apply(&Command::Reconfigure(vec![change]))
}

#[test]
fn a_server_joins_with_nothing_and_is_in_use_once_nothing_moves() {
    let mut state = created();
    let version = state.version();
    assert!(!state.rearranges());
    change(&mut state, SeatChange::Add(joiner(9))).unwrap();
    assert_eq!(state.seat(ServerId(9)), Seat { tenure: Tenure::Joining, weight: Weight(200) });
    assert_eq!(state.server(ServerId(9)).unwrap().state, ServerState::Waking);
    assert!(state.rearranges());
    let mut map = ClusterMap::default();
    assert!(map.apply(&state.delta(0)));
    assert!(map.servers.contains_key(&ServerId(9)));
    assert_eq!(state.delta(version).servers.len(), 1, "only the new one is news");
    change(&mut state, SeatChange::Settle).unwrap();
    assert_eq!(state.seat(ServerId(9)), Seat { tenure: Tenure::InUse, weight: Weight(200) });
    assert!(!state.rearranges());
}

#[test]
fn who_cannot_join_is_refused() {
    let mut state = created();
    let with = |change: &dyn Fn(&mut Joiner)| {
        let mut joiner = joiner(9);
        change(&mut joiner);
        SeatChange::Add(joiner)
    };
    let cases = [
        (with(&|j| j.server.id = ServerId(3)), SeatRefusal::Exists(ServerId(3))),
        (with(&|j| j.server.address = String::new()), SeatRefusal::NoAddress(ServerId(9))),
        (
            with(&|j| j.server.address = "h4:1".into()),
            SeatRefusal::AddressTaken { server: ServerId(4), address: "h4:1".into() },
        ),
        (with(&|j| j.server.pool = PoolId(1)), SeatRefusal::Coded(ServerId(9))),
        (with(&|j| j.server.gear_group = GearGroup(3)), SeatRefusal::NoGearGroup(GearGroup(3), 3)),
        (with(&|j| j.weight = Weight(0)), SeatRefusal::Weight),
        (with(&|j| j.weight = Weight(Weight::MOST.0 + 1)), SeatRefusal::Weight),
    ];
    for (wish, refusal) in cases {
        assert_eq!(change(&mut state, wish), Err(refusal));
    }
    let logger = with(&|j| j.server.gear_group = NO_GEAR);
    assert_eq!(change(&mut state, logger), Ok(()));
}

#[test]
fn a_server_leaves_once_no_configuration_names_it_and_may_come_back_as_a_new_one() {
    let (mut state, zero) = (created(), ServerId(0));
    let remove = || SeatChange::Remove(zero);
    assert_eq!(change(&mut state, remove()), Err(SeatRefusal::InUse(zero)));
    change(&mut state, SeatChange::Drain(zero)).unwrap();
    assert_eq!(change(&mut state, SeatChange::Drain(zero)), Err(SeatRefusal::Leaves(zero)));
    assert_eq!(change(&mut state, remove()), Err(SeatRefusal::Holds { server: zero, groups: 4 }));
    let other = Slot { server: ServerId(3), state: SlotState::InSync, holder: None };
    for group in 0..4 {
        let old = state.group(GroupId(group)).unwrap().clone();
        let mut entry = GroupEntry { epoch: old.epoch.next(), ..old.clone() };
        entry.slots[0] = other;
        let change = Change { group: GroupId(group), expected: old.stage(), entry };
        state.apply(&Command::Reconfigure(vec![change]));
    }
    assert_eq!(
        change(&mut state, remove()),
        Err(SeatRefusal::Holds { server: zero, groups: 0 }),
        "in a moment"
    );
    change(&mut state, SeatChange::Emptied(zero)).unwrap();
    assert!(!state.rearranges());
    let mut map = ClusterMap::default();
    map.apply(&state.delta(0));
    let (whole, version) = (map.clone(), state.version());
    change(&mut state, remove()).unwrap();
    assert!(state.server(zero).is_none());
    assert!(map.apply(&state.delta(version)) && !map.servers.contains_key(&zero), "by what is new");
    map = whole;
    assert!(map.apply(&state.delta(0)) && !map.servers.contains_key(&zero), "and by the whole map");
    assert_eq!(change(&mut state, remove()), Err(SeatRefusal::Unknown(zero)));
    let again = Joiner { server: NewServer { id: zero, ..joiner(9).server }, weight: Weight(1) };
    change(&mut state, SeatChange::Add(again)).unwrap();
    assert!(map.apply(&state.delta(version)) && map.servers.contains_key(&zero));
    assert_eq!(state.server(zero).unwrap().incarnation, Incarnation(0));
}

#[test]
fn a_drain_is_refused_where_the_server_is_the_last_of_its_gear_group_and_can_be_taken_back() {
    let mut state = created();
    let id = ServerId;
    change(&mut state, SeatChange::Drain(id(0))).unwrap();
    let last = SeatRefusal::Last { server: id(3), gear_group: GearGroup(0) };
    assert_eq!(change(&mut state, SeatChange::Drain(id(3))), Err(last.clone()));
    assert_eq!(change(&mut state, SeatChange::Weigh(id(0), Weight(5))), Err(SeatRefusal::Leaves(id(0))));
    assert_eq!(change(&mut state, SeatChange::Keep(id(3))), Err(SeatRefusal::Stays(id(3))));
    change(&mut state, SeatChange::Keep(id(0))).unwrap();
    assert_eq!(state.seat(id(0)).tenure, Tenure::Joining);
    change(&mut state, SeatChange::Drain(id(3))).unwrap();
    // One that is lost is no heir.
    let mark = StoreMark::default();
    state.apply(&Command::set_server(&state, id(1), ServerState::Lost, Incarnation(1), mark));
    assert_eq!(change(&mut state, SeatChange::Drain(id(1))), Err(SeatRefusal::Lost(id(1))));
    assert!(matches!(change(&mut state, SeatChange::Drain(id(4))), Err(SeatRefusal::Last { .. })));
    assert_eq!(change(&mut state, SeatChange::Drain(id(77))), Err(SeatRefusal::Unknown(id(77))));
}

#[test]
fn a_lost_server_is_removed_without_a_drain_once_it_is_rebuilt() {
    let (mut state, lost) = (created(), ServerId(5));
    let mark = StoreMark::default();
    state.apply(&Command::set_server(&state, lost, ServerState::Lost, Incarnation(1), mark));
    // It may still keep what another one needs.
    let holder = Some(Holder { former: Some(lost), ..Holder::new(ServerId(4), false) });
    reconfigure(&mut state, |entry| {
        entry.primary = Some(ServerId(1));
        entry.slots[0] = Slot { state: SlotState::Away { since: Epoch(1) }, holder, ..entry.slots[0] };
    });
    assert_eq!(
        change(&mut state, SeatChange::Remove(lost)),
        Err(SeatRefusal::Holds { server: lost, groups: 1 })
    );
    reconfigure(&mut state, |entry| entry.slots[0].holder = Some(Holder::new(ServerId(4), true)));
    change(&mut state, SeatChange::Remove(lost)).unwrap();
    assert!(state.server(lost).is_none());
}

#[test]
fn a_newcomer_is_of_the_gear_group_of_the_slot_that_moves() {
    let newcomer =
        |id| Slot { server: ServerId(id), state: SlotState::CatchingUp { since: Epoch(0) }, holder: None };
    let add = |slot: Slot, moving: Option<u8>| {
        let mut state = created();
        reconfigure(&mut state, |entry| {
            entry.slots.push(slot);
            entry.moving = moving;
        })
    };
    assert_eq!(add(newcomer(3), Some(0)), Reply::Reconfigured { made: 1, stale: 0 });
    let is_broken = |reply| matches!(reply, Reply::Broken(_));
    assert!(is_broken(add(newcomer(3), Some(1))), "it is of gear group 0");
    assert!(is_broken(add(newcomer(3), Some(3))), "there is no such slot");
    assert!(is_broken(add(newcomer(3), None)), "one slot too many");
    assert!(is_broken(add(newcomer(0), Some(0))), "a server has one slot");
    let away = Slot { state: SlotState::Away { since: Epoch(0) }, ..newcomer(3) };
    assert!(is_broken(add(away, Some(0))));
    let late = Slot { state: SlotState::CatchingUp { since: Epoch(1) }, ..newcomer(3) };
    assert!(is_broken(add(late, Some(0))), "what it had before does not count");
}
