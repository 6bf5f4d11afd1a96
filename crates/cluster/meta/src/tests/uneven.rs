//! Gear groups of different sizes, as racks of different sizes give them: what is set by hand is reached, or refused
//! with what is possible instead.

use super::*;

const STEPS: [GearSteps; 2] = [GearSteps::Servers, GearSteps::Groups];
const DAY: Duration = Duration::from_secs(60);

/// Servers in these racks, which take turns every day, or never.
fn in_racks(racks: &[u16], steps: GearSteps, rotate_days: u32) -> World {
    let founded = bootstrap(3, 3, 12 * racks.len() as u32, ebb_gear::Scheme::Rotated);
    let places =
        (0u16..).map(ServerId).zip(racks).map(|(id, rack)| ebb_gear::Server { id, rack: RackId(*rack) });
    let places: Vec<ebb_gear::Server> = places.collect();
    let layout = ebb_gear::layout(&places, 3, founded.params.groups, 1, ebb_gear::Scheme::Rotated).unwrap();
    let hour_millis = DAY.as_millis() as u64 / 2;
    let schedule = Schedule { steps, rotate_days, hour_millis, hours_per_day: 2, ..founded.schedule };
    let address = |id: ServerId, _| format!("127.0.0.1:{}", 7000 + id.0);
    let founded = Bootstrap::of_layout(founded.params, &layout, schedule, address);
    World::of(founded, Controller::new(Timing::default(), processes()))
}

impl World {
    /// Servers awake, and whether no shift is in progress: then `ebb gear set --wait` ends.
    fn stands(&mut self) -> (u32, bool) {
        let gear = self.status().gear;
        (gear.servers_awake, !gear.shifting)
    }
}

#[test]
fn a_gear_of_too_few_servers_is_refused_and_what_is_named_instead_is_reached() {
    for steps in STEPS {
        let mut world = in_racks(&[1, 1, 1, 1, 1, 1, 1, 1, 2], steps, 0);
        world.run(6000);
        world.gear(1);
        let answer = format!("{:?}", world.answer.take());
        assert!(answer.contains("runs in gears 2 to 3") && answer.contains("only 1)"), "{answer}");
        assert_eq!(answer.contains("a number of servers from 3 on"), steps == GearSteps::Servers, "{answer}");
        world.gear(2);
        world.run(10_000);
        assert_eq!(world.stands(), (5, true), "{steps:?}: {:#?}", world.transcript);
        if steps == GearSteps::Servers {
            world.admin(AdminRequest::GearSet(GearWish::Servers(3)));
            world.run(10_000);
            assert_eq!(world.stands(), (3, true), "{:#?}", world.transcript);
        }
        world.assert_served();
    }
}

#[test]
fn a_gear_that_has_become_impossible_is_replaced_by_the_nearest_one() {
    for steps in STEPS {
        let mut world = in_racks(&[1, 1, 1, 1, 1, 1, 1, 1, 2], steps, 0);
        world.state.apply(&Command::SetGear { manual: Some(GearWish::Gear(1)) });
        world.run(15_000);
        assert_eq!(world.stands(), (5, true), "{steps:?}: {:#?}", world.transcript);
    }
}

/// Of ten servers the first gear group has four, the others three.
#[test]
fn a_gear_is_held_in_every_turn() {
    for steps in STEPS {
        let mut world = in_racks(&[0, 1, 2, 0, 1, 2, 0, 1, 2, 0], steps, 1);
        world.run(6000);
        world.gear(1);
        let mut held = BTreeSet::new();
        for _ in 0..4 {
            world.run(DAY.as_millis() as u64);
            let (awake, stands) = world.stands();
            assert!(stands, "{steps:?}, {awake} awake: {:#?}", world.transcript);
            held.insert(awake);
        }
        assert_eq!(held, BTreeSet::from([3, 4]), "{steps:?}");
        world.assert_served();
    }
}
