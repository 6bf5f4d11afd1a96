//! Dedicated loggers: they hold offload, and nothing else. [Sierra §3.6, Fig. 7a]

use super::*;
use ebb_gear::Scheme;

/// Nine servers in three racks, and a logger in each of `racks`, from server 20 on.
fn with_loggers(scheme: Scheme, racks: &[u16]) -> World {
    let mut bootstrap = bootstrap(9, 3, 36, scheme);
    bootstrap.servers.extend((20..).zip(racks).map(|(id, rack)| NewServer {
        id: ServerId(id),
        rack: RackId(*rack),
        pool: PoolId::REPLICATED,
        gear_group: NO_GEAR,
        address: format!("127.0.0.1:{}", 7000 + id),
    }));
    let mut world = World::of(bootstrap, Controller::new(Timing::default(), processes()));
    world.run(3000);
    world.assert_served();
    world
}

impl World {
    /// The servers that hold offload.
    fn holders(&self) -> BTreeSet<ServerId> {
        self.state.groups().flat_map(|(_, g)| &g.slots).filter_map(|s| Some(s.holder?.server)).collect()
    }
}

#[test]
fn loggers_hold_what_sleepers_miss_and_never_sleep() {
    let mut world = with_loggers(Scheme::Rotated, &[0, 1, 2]);
    let loggers: BTreeSet<ServerId> = (20..23).map(ServerId).collect();
    let keeps = |world: &World| {
        world.state.groups().flat_map(|(_, g)| &g.slots).any(|slot| loggers.contains(&slot.server))
    };
    for (gear, awake) in [(1, 3), (2, 6), (3, 9), (1, 3)] {
        world.gear(gear);
        world.run(8000);
        world.assert_served();
        world.assert_apart();
        let states = world.states();
        assert_eq!(states[..9].matches('A').count(), awake, "{states}");
        assert_eq!(&states[9..], "AAA", "loggers stay awake");
        assert!(!keeps(&world), "a logger has no slot");
        assert!(world.holders().is_subset(&loggers), "{:?}", world.holders());
        assert_eq!(world.holders().is_empty(), gear == 3);
    }
}

#[test]
fn whole_racks_sleep_where_each_has_a_logger() {
    let mut world = with_loggers(Scheme::RackAligned, &[0, 1, 2]);
    world.gear(1);
    world.run(8000);
    world.assert_served();
    world.assert_apart();
    assert_eq!(world.states()[..9].matches('A').count(), 3, "{}", world.states());
    let awake = world.state.geared().filter(|e| e.state == ServerState::Awake);
    assert_eq!(awake.map(|e| e.rack).collect::<BTreeSet<_>>().len(), 1, "{}", world.states());
}

#[test]
fn one_logger_is_used_where_it_fits_and_others_stand_in() {
    let mut world = with_loggers(Scheme::Rotated, &[1]);
    world.gear(1);
    world.run(8000);
    world.assert_served();
    world.assert_apart();
    let holders = world.holders();
    assert!(holders.contains(&ServerId(20)) && holders.len() > 1, "{holders:?}");
}

#[test]
fn what_a_failed_logger_held_is_held_again_and_it_comes_back() {
    let mut world = with_loggers(Scheme::Rotated, &[0, 1, 2]);
    world.gear(1);
    world.run(8000);
    world.crash(21);
    world.run(12_000);
    world.assert_served();
    world.assert_apart();
    assert!(!world.holders().contains(&ServerId(21)));
    world.admin(AdminRequest::MarkLost { server: ServerId(21), accept_loss: false });
    world.run(3000);
    assert_eq!(
        world.state.server(ServerId(21)).unwrap().state,
        ServerState::Lost,
        "nothing of it is to be rebuilt"
    );
    world.restart_empty(21);
    world.run(12_000);
    world.assert_served();
    assert_eq!(&world.states()[9..], "AAA");
}

#[test]
fn a_logger_in_maintenance_hands_over_in_the_lowest_gear() {
    let mut world = with_loggers(Scheme::Rotated, &[0, 1, 2]);
    world.gear(1);
    world.run(8000);
    world.admin(AdminRequest::Maintenance { server: ServerId(20), end: false });
    world.run(8000);
    assert_eq!(&world.states()[9..], "DAA", "{}", world.states());
    world.assert_served();
    assert!(!world.holders().contains(&ServerId(20)));
    world.admin(AdminRequest::Maintenance { server: ServerId(20), end: true });
    world.run(8000);
    assert_eq!(&world.states()[9..], "AAA");
}

/// Else it would be re-sent to another holder first (seed 30263020644). A server that does not come is not waited for.
#[test]
fn a_logger_in_maintenance_keeps_what_those_that_wake_are_about_to_fetch() {
    for (broken, after) in [(false, "AAAAAAAAADAA"), (true, "AAAWWWWWWDAA")] {
        let mut world = with_loggers(Scheme::Rotated, &[0, 1, 2]);
        world.gear(1);
        world.run(8000);
        assert!(world.holders().contains(&ServerId(20)));
        if broken {
            world.broken_switches.extend((3..9).map(ServerId));
        }
        // One plan wakes them and could let the logger go.
        let gear = Command::SetGear { manual: Some(GearWish::Gear(3)) };
        assert_eq!(world.state.apply(&gear), Reply::Done);
        world.admin(AdminRequest::Maintenance { server: ServerId(20), end: false });
        assert_eq!(world.states(), "AAAWWWWWWAAA");
        world.run(8000);
        assert_eq!(world.states(), after);
        world.assert_served();
        assert!(!world.holders().contains(&ServerId(20)));
    }
}
