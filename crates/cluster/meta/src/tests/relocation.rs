//! Servers come, leave and get other shares, while the cluster serves.

use super::*;
use ebb_gear::Scheme;

impl World {
    fn wish(&mut self, wish: ServerWish) -> Result<(), String> {
        self.answer = None;
        let seats = |world: &World| world.state.arrangement();
        let before = seats(self);
        self.admin(AdminRequest::Server(wish));
        match self.answer.take() {
            Some(MetaReply::Failed(MetaFailure::Refused(why))) => {
                assert_eq!(seats(self), before, "what is refused changes nothing");
                Err(why)
            }
            _ => Ok(()),
        }
    }

    /// A new server is started, and is to come to the cluster.
    fn add(&mut self, id: u16, rack: u16) -> Result<(), String> {
        let (server, address) = (ServerId(id), format!("127.0.0.1:{}", 7000 + id));
        let (weight, rack) = (Weight::default(), RackId(rack));
        let off = FakeServer { alive: false, ..fake_server() };
        let store = self.servers.entry(server).or_insert(off).store.0 + 1;
        self.wish(ServerWish::Add(NewMember { server, rack, address, weight, gear_group: None }))?;
        let (next_beat, last_beat, store) = (self.now, self.now, StoreId(store));
        self.servers.insert(server, FakeServer { next_beat, last_beat, store, ..fake_server() });
        Ok(())
    }

    /// It is no part of the cluster any more, and stopped.
    fn remove(&mut self, id: u16) -> Result<(), String> {
        self.wish(ServerWish::Remove(ServerId(id)))?;
        self.servers.get_mut(&ServerId(id)).expect("a server").alive = false;
        self.ghost.held.retain(|(_, server, _), _| server.0 != id);
        self.ghost.backups.remove(&ServerId(id));
        Ok(())
    }

    /// Each server stores so many bytes, of 100.
    fn store(&mut self, bytes: u64) {
        self.used_percent = self.state.servers().map(|e| (e.id, (bytes, 0))).collect();
    }

    fn tenure(&self, id: u16) -> Tenure {
        self.state.seat(ServerId(id)).tenure
    }

    /// Chunk groups of which the server is to have a copy, and those of which it gets one.
    fn has(&self, id: u16) -> (usize, usize) {
        let of_it = |slots: &[Slot]| slots.iter().any(|slot| slot.server.0 == id);
        let own = self.state.groups().filter(|(_, g)| of_it(g.copies())).count();
        let comes = self.state.groups().filter(|(_, g)| g.newcomer().is_some_and(|n| n.server.0 == id));
        (own, comes.count())
    }

    fn moving(&self) -> usize {
        self.state.groups().filter(|(_, g)| g.moving.is_some()).count()
    }

    /// Runs until nothing is to move any more, and looks at every step of it.
    fn settle(&mut self) {
        for _ in 0..2000 {
            self.run(50);
            for (id, group) in self.state.groups() {
                let racks = group.copies().iter().map(|s| self.state.server(s.server).unwrap().rack);
                let racks: BTreeSet<RackId> = racks.collect();
                assert_eq!(racks.len(), group.copies().len(), "{id}: {group:?}");
                let whole = group.copies().iter().filter(|s| s.state == SlotState::InSync).count();
                assert!(whole == group.copies().len(), "no copy is missing while another is made: {group:?}");
            }
            if !self.state.rearranges() && self.moving() == 0 {
                return;
            }
        }
        panic!("{} {} {:?}", self.states(), self.counts(), self.state);
    }
}

/// Twelve servers in four racks, in each of which every gear group has one.
fn twelve(groups: u32) -> World {
    let places: Vec<ebb_gear::Server> =
        (0..12).map(|id| ebb_gear::Server { id: ServerId(id), rack: RackId(id % 4) }).collect();
    let layout = ebb_gear::layout(&places, 3, groups, 1, Scheme::Rotated).expect("a layout");
    let Bootstrap { params, schedule, .. } = bootstrap(9, 3, groups, Scheme::Rotated);
    let bootstrap =
        Bootstrap::of_layout(params, &layout, schedule, |id, _| format!("127.0.0.1:{}", 7000 + id.0));
    let mut world = World::of(bootstrap, Controller::new(Timing::default(), processes()));
    world.run(3000);
    world.assert_served();
    world
}

#[test]
fn a_server_that_joins_gets_its_share_a_few_copies_at_a_time() {
    let mut world = twelve(48);
    world.reclaim = false;
    world.add(12, 1).unwrap();
    world.run(3000);
    assert_eq!((world.tenure(12), world.has(12)), (Tenure::Joining, (0, 4)), "the first are being copied");
    world.run(20_000);
    assert_eq!(world.has(12), (0, 4), "no others before these are done");
    world.assert_served();
    world.reclaim = true;
    world.settle();
    assert_eq!((world.tenure(12), world.has(12)), (Tenure::InUse, (9, 0)));
    world.run(3000);
    world.assert_served();
    let primaries = world.state.groups().filter(|(_, g)| g.primary == Some(ServerId(12))).count();
    assert!(primaries > 1, "it has its share of the primaries, too");
}

#[test]
fn a_server_that_drains_loses_nothing_and_may_be_removed() {
    let mut world = twelve(48);
    let why = world.remove(4).unwrap_err();
    assert!(why.contains("drain it first"), "{why}");
    world.wish(ServerWish::Drain(ServerId(4))).unwrap();
    world.run(600);
    let why = world.remove(4).unwrap_err();
    assert!(why.contains("wait until it is drained"), "{why}");
    world.settle();
    assert_eq!((world.tenure(4), world.has(4)), (Tenure::Drained, (0, 0)));
    world.remove(4).unwrap();
    world.run(5000);
    world.assert_served();
    assert!(world.state.server(ServerId(4)).is_none());
    assert!(world.servers.values().filter(|f| f.alive).all(|f| !f.map.servers.contains_key(&ServerId(4))));
    // Under its number comes another one.
    world.add(4, 1).unwrap();
    world.settle();
    assert_eq!(world.has(4).0, 12);
    world.assert_served();
}

#[test]
fn a_drain_that_is_taken_back_is_undone() {
    let mut world = twelve(48);
    world.wish(ServerWish::Drain(ServerId(4))).unwrap();
    for _ in 0..100 {
        world.run(100);
        if world.has(4).0 < 8 {
            break;
        }
    }
    assert!((1..8).contains(&world.has(4).0), "{:?}", world.has(4));
    world.wish(ServerWish::Keep(ServerId(4))).unwrap();
    world.settle();
    assert_eq!((world.tenure(4), world.has(4)), (Tenure::InUse, (12, 0)));
}

/// The newcomer is dropped at once, because writes would wait for it, and the move begins anew when it is back.
#[test]
fn a_newcomer_that_fails_ends_its_move_and_begins_again() {
    let mut world = twelve(48);
    world.reclaim = false;
    world.add(12, 1).unwrap();
    world.run(3000);
    assert_eq!(world.has(12), (0, 4));
    world.crash(12);
    world.run(4000);
    assert_eq!((world.has(12), world.moving()), ((0, 0), 0));
    world.assert_served();
    world.restart(12);
    world.run(4000);
    assert_eq!(world.has(12), (0, 4));
    world.reclaim = true;
    world.settle();
    assert_eq!(world.has(12), (9, 0));
}

#[test]
fn a_server_that_is_lost_while_it_drains_leaves_the_newcomer_as_its_heir() {
    let mut world = twelve(48);
    world.reclaim = false;
    world.wish(ServerWish::Drain(ServerId(4))).unwrap();
    world.run(1000);
    let moving = world.moving();
    assert!(moving > 0);
    world.crash(4);
    world.run(4000);
    world.admin(AdminRequest::MarkLost { server: ServerId(4), accept_loss: false });
    assert_eq!(world.moving(), moving, "they go on");
    world.reclaim = true;
    world.run(20_000);
    world.assert_served();
    assert_eq!((world.has(4), world.moving()), ((0, 0), 0));
    world.remove(4).unwrap();
    world.run(5000);
    world.assert_served();
}

#[test]
fn a_new_leader_goes_on_with_what_moves() {
    let mut world = twelve(48);
    world.add(12, 2).unwrap();
    for _ in 0..40 {
        world.run(150);
        world.lead();
    }
    world.run(10_000);
    world.settle();
    assert_eq!(world.has(12), (9, 0));
}

#[test]
fn no_move_begins_while_a_copy_is_missing() {
    let mut world = twelve(48);
    world.reclaim = false;
    world.crash(0);
    world.run(4000);
    world.restart(0);
    world.run(2000);
    world.add(12, 1).unwrap();
    world.run(10_000);
    assert_eq!(world.moving(), 0, "{}", world.counts());
    world.reclaim = true;
    world.run(5000);
    world.settle();
}

/// It copies from primaries, which are awake. What it relieves may sleep on, and so may all others.
#[test]
fn a_server_that_joins_while_others_sleep_is_kept_awake_and_wakes_none() {
    let mut world = twelve(48);
    world.gear(1);
    world.run(8000);
    let asleep = |world: &World| world.state.servers().filter(|e| e.state == ServerState::Asleep).count();
    assert_eq!(asleep(&world), 8);
    world.add(12, 0).unwrap();
    for _ in 0..200 {
        world.run(200);
        assert_eq!(asleep(&world).max(8), 8);
        world.assert_served();
        if !world.state.rearranges() {
            break;
        }
        assert_eq!(asleep(&world), 8, "{}", world.states());
    }
    assert_eq!((world.tenure(12), world.has(12)), (Tenure::InUse, (9, 0)), "{}", world.states());
    world.run(8000);
    world.gear(3);
    world.run(10_000);
    world.assert_served();
    assert!(world.state.groups().all(|(_, g)| g.is_in_sync()));
}

/// A drain goes to servers that are awake; the others wait until the load wakes them.
#[test]
fn a_drain_waits_for_servers_that_sleep() {
    let mut world = twelve(48);
    world.gear(1);
    world.run(8000);
    let sleeper = world.state.servers().find(|e| e.state == ServerState::Asleep).expect("some sleep").id;
    world.wish(ServerWish::Drain(sleeper)).unwrap();
    let before = world.states();
    world.run(20_000);
    assert_eq!((world.states(), world.moving()), (before, 0));
    let notes = world.status().notes;
    assert!(notes.iter().any(|note| note.contains("draining")), "{notes:?}");
    world.gear(3);
    world.run(8000);
    world.settle();
    assert_eq!(world.has(sleeper.0), (0, 0));
}

#[test]
fn a_larger_server_gets_more_and_one_with_less_weight_gives_away() {
    let mut world = twelve(48);
    let weigh = |weight| ServerWish::Weigh { server: ServerId(0), weight: Weight(weight) };
    for (weight, share) in [(200, 19), (50, 7), (100, 12)] {
        world.wish(weigh(weight)).unwrap();
        world.settle();
        assert_eq!((world.has(0), world.tenure(0)), ((share, 0), Tenure::InUse), "weight {weight}");
    }
    let why = world.wish(weigh(0)).unwrap_err();
    assert!(why.contains("a weight is 1 to"), "{why}");
}

#[test]
fn what_cannot_be_done_is_refused_with_the_remedy() {
    let mut world = World::new(3, 3, 12);
    world.run(3000);
    let refused = |world: &mut World, wish, words: &str| {
        let why = world.wish(wish).expect_err("it is refused");
        assert!(why.contains(words), "{why}");
    };
    refused(&mut world, ServerWish::Drain(ServerId(1)), "is the last of");
    refused(&mut world, ServerWish::Keep(ServerId(1)), "does not drain");
    refused(&mut world, ServerWish::Remove(ServerId(9)), "is not part of the cluster");
    let why = world.add(2, 0).unwrap_err();
    assert!(why.contains("give the new server another id"), "{why}");
    // A second server in the rack of server 0 is of its gear group: only there it can have copies.
    world.add(3, 0).unwrap();
    world.settle();
    let place = |id| world.state.server(ServerId(id)).unwrap().gear_group;
    assert_eq!(place(3), place(0));
    let in_other = NewMember {
        server: ServerId(4),
        rack: RackId(0),
        address: "h:1".into(),
        weight: Weight::default(),
        gear_group: Some(GearGroup((place(0).0 + 1) % 3)),
    };
    world.wish(ServerWish::Add(in_other)).unwrap();
    world.run(5000);
    assert_eq!(world.has(4), (0, 0), "each group has a copy in its rack (R13)");
    assert_eq!(world.tenure(4), Tenure::InUse);
}

#[test]
fn a_drain_that_only_a_rack_with_another_copy_could_take_is_refused() {
    let mut bootstrap = bootstrap(3, 3, 12, Scheme::Rotated);
    // In the gear group of server 0, but in the rack of server 1.
    let first = bootstrap.servers[0].clone();
    let other = bootstrap.servers[1].rack;
    bootstrap.servers.push(NewServer { id: ServerId(3), rack: other, address: "h:3".into(), ..first });
    let mut world = World::of(bootstrap, Controller::new(Timing::default(), processes()));
    world.run(3000);
    let why = world.wish(ServerWish::Drain(ServerId(0))).unwrap_err();
    assert!(why.contains("has nowhere to go: 12 of its copies"), "{why}");
}

#[test]
fn a_drain_for_which_the_others_lack_room_is_refused() {
    let mut world = twelve(48);
    world.store(66);
    world.run(2000);
    let why = world.wish(ServerWish::Drain(ServerId(4))).unwrap_err();
    assert!(why.contains("has no room for its share"), "{why}");
    world.store(50);
    world.run(2000);
    world.wish(ServerWish::Drain(ServerId(4))).unwrap();
}

#[test]
fn a_plan_says_what_would_move_and_moves_nothing() {
    let mut world = twelve(48);
    world.store(24);
    world.run(2000);
    let before = world.state.clone();
    let ask = |world: &mut World, wish: Option<ServerWish>| {
        world.admin(AdminRequest::ServerPlan(wish));
        match world.answer.take() {
            Some(MetaReply::Admin(AdminReply::ServerPlan(plan))) => *plan,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ask(&mut world, None).copies, 0);
    let plan = ask(&mut world, Some(ServerWish::Drain(ServerId(4))));
    assert_eq!(
        (plan.copies, plan.bytes, plan.notes.len()),
        (13, Some(26), 0),
        "one moves twice as far: {plan:?}"
    );
    let then = |id: u16| plan.servers.iter().find(|s| s.id.0 == id).map(|s| (s.now, s.then));
    assert_eq!(then(4), Some((12, 0)));
    assert_eq!(world.state.groups().collect::<Vec<_>>(), before.groups().collect::<Vec<_>>());
    let unknown = Some(ServerWish::Drain(ServerId(99)));
    world.admin(AdminRequest::ServerPlan(unknown));
    assert!(matches!(world.answer.take(), Some(MetaReply::Failed(_))));
    world.wish(ServerWish::Drain(ServerId(4))).unwrap();
    let plan = ask(&mut world, None);
    assert_eq!(plan.copies + plan.moving, 13, "{plan:?}");
}

#[test]
fn three_servers_become_nine_one_at_a_time_and_three_again() {
    let mut world = World::new(3, 3, 18);
    world.run(3000);
    for id in 3..9 {
        world.add(id, id % 3).unwrap();
        world.settle();
        assert!(world.has(id).0 > 0, "{id}");
    }
    assert!(
        (0..9).all(|id| world.has(id).0 == 6),
        "{:?}",
        (0..9).map(|id| world.has(id)).collect::<Vec<_>>()
    );
    for id in (3..9).rev() {
        world.wish(ServerWish::Drain(ServerId(id))).unwrap();
        world.settle();
        world.remove(id).unwrap();
        world.run(1000);
    }
    world.run(3000);
    world.assert_served();
    assert_eq!(world.state.servers().count(), 3);
}

/// Nothing that was acknowledged is lost (the ghost looks at every step), and everybody gets what is theirs in the end.
fn random_run(seed: u64) {
    let mut dice = Random::new(seed);
    let mut world = twelve(24);
    for _ in 0..60 {
        let ids: Vec<u16> = world.state.servers().map(|e| e.id.0).collect();
        let id = *dice.pick(&ids).expect("there are servers");
        match dice.below(12) {
            0 | 1 => _ = world.add(12 + dice.below(4) as u16, dice.below(5) as u16),
            2 | 3 => _ = world.wish(ServerWish::Drain(ServerId(id))),
            4 => _ = world.wish(ServerWish::Keep(ServerId(id))),
            5 => {
                let weight = Weight(50 << dice.below(3));
                _ = world.wish(ServerWish::Weigh { server: ServerId(id), weight });
            }
            6 => {
                let all: Vec<u16> =
                    ids.iter().copied().filter(|id| world.tenure(*id) == Tenure::Drained).collect();
                all.into_iter().for_each(|id| _ = world.remove(id));
            }
            _ => mishap(&mut world, &mut dice),
        }
        let pause = [0, 100, 700, 2500, 8000][dice.below(5) as usize];
        world.run(pause);
        world.transcript.clear();
    }
    (world.failing_wakes, world.reclaim) = (0, true);
    world.gear(3);
    world.servers.values_mut().for_each(|f| f.poisoned = false);
    for _ in 0..3 {
        let is_part = |id: &ServerId| world.state.server(*id).is_some();
        let down = world.servers.iter().filter(|(id, f)| !f.alive && is_part(id)).map(|(id, _)| id.0);
        down.collect::<Vec<u16>>().into_iter().for_each(|id| world.restart(id));
        world.run(60_000);
    }
    world.assert_served();
    assert!(world.state.groups().all(|(_, g)| g.is_in_sync() && g.moving.is_none()), "{}", world.counts());
    let stays = |e: &&ServerEntry| world.tenure(e.id.0) == Tenure::InUse;
    let (stay, leave): (Vec<&ServerEntry>, Vec<&ServerEntry>) = world.state.servers().partition(stays);
    assert!(stay.len() >= 3);
    for entry in leave {
        // Others may be in racks with another copy only.
        let (tenure, has) = (world.tenure(entry.id.0), world.has(entry.id.0));
        assert!(
            tenure == Tenure::Drained && has == (0, 0) || tenure == Tenure::Draining && has.0 > 0,
            "{entry:?}"
        );
    }
}

#[test]
fn no_random_run_loses_data_while_servers_come_and_go() {
    let one = std::env::var("EBB_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in one.map_or(0..100, |seed: u64| seed..seed + 1) {
        println!("seed {seed}: EBB_SEED={seed} cargo test -p ebb-meta no_random_run_loses_data_while");
        random_run(seed);
    }
}
