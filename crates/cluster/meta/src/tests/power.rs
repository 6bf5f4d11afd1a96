//! Switches that cannot be relied on: what others met in the field, wake paths that must prove themselves, tests,
//! exams, maintenance.

use super::*;

const SLEEP: SwitchAction = SwitchAction::Sleep(Depth::Standby);

fn path(name: &str, reliable: bool) -> WakePath {
    WakePath::switch(name, reliable)
}

/// Nine machines in three gear groups, all awake; each can be woken by these paths, none of which has proved to work.
fn machines(paths: &[&str]) -> World {
    machines_of(paths, Timing::default())
}

fn machines_of(paths: &[&str], timing: Timing) -> World {
    let ways: Vec<WakePath> = paths.iter().map(|name| path(name, false)).collect();
    let switches = (0..9).map(|id| (ServerId(id), ways.clone())).collect();
    settled(World::of(bootstrap(9, 3, 36, ebb_gear::Scheme::Rotated), Controller::new(timing, switches)))
}

/// The same, as processes on one machine.
fn processes_of(timing: Timing) -> World {
    settled(World::of(bootstrap(9, 3, 36, ebb_gear::Scheme::Rotated), Controller::new(timing, processes())))
}

fn settled(mut world: World) -> World {
    world.gear(3);
    world.run(5000);
    assert_eq!(world.states(), "AAAAAAAAA");
    world
}

impl World {
    fn prove(&mut self, name: &str) {
        for id in 0..9 {
            let fact = PowerFact::Woke { path: name.into(), took_millis: 1000 };
            let command = Command::NotePower { server: ServerId(id), at_unix_millis: 1, fact };
            assert_eq!(self.state.apply(&command), Reply::Done);
        }
        self.event(Event::Applied { own: false });
    }

    pub(super) fn status(&mut self) -> ClusterStatus {
        self.admin(AdminRequest::Status);
        match self.answer.take() {
            Some(MetaReply::Admin(AdminReply::Status(status))) => *status,
            other => panic!("{other:?}"),
        }
    }

    fn power_of(&mut self, id: u16) -> PowerStatus {
        self.status().servers.swap_remove(usize::from(id)).power
    }

    pub(super) fn why_of(&mut self, id: u16) -> Why {
        self.status().servers.swap_remove(usize::from(id)).why
    }

    /// How deep a server is shown to sleep, and what is wrong with its switch.
    fn shown_of(&mut self, id: u16) -> (Option<Depth>, Option<String>) {
        let server = self.status().servers.swap_remove(usize::from(id));
        (server.depth, server.switch_trouble)
    }

    fn state_of(&self, id: u16) -> ServerState {
        self.state.server(ServerId(id)).unwrap().state
    }

    fn asked(&mut self, request: AdminRequest) -> Result<(), String> {
        self.answer = None;
        self.admin(request);
        match self.answer.take() {
            Some(MetaReply::Failed(MetaFailure::Refused(why))) => Err(why),
            _ => Ok(()),
        }
    }

    fn test(&mut self, id: u16) -> Result<(), String> {
        self.asked(AdminRequest::PowerTest { server: ServerId(id) })
    }

    fn maintain(&mut self, id: u16, end: bool) -> Result<(), String> {
        self.asked(AdminRequest::Maintenance { server: ServerId(id), end })
    }

    fn thrown(&self, id: u16, what: &str) -> usize {
        let line = format!("switch {} {what}", ServerId(id));
        self.transcript.iter().filter(|entry| entry.ends_with(&line)).count()
    }

    fn failures(&self) -> usize {
        self.transcript.iter().filter(|line| line.contains("failed: its lease ended")).count()
    }
}

/// One path is enough for a process; machines need a second one for the set that R8 relies on.
#[test]
fn a_server_without_a_proven_path_is_not_put_to_sleep() {
    let mut world = machines(&["redfish", "wol"]);
    world.gear(1);
    world.run(20_000);
    assert_eq!(world.states(), "AAAAAAAAA");
    let why = world.power_of(5).kept_awake.unwrap();
    assert!(why.contains("ebb power test server-5"), "{why}");
    assert!(!world.status().gear.dry_run && !world.status().gear.shifting);
    world.prove("redfish");
    world.prove("wol");
    world.run(20_000);
    assert_eq!(world.states(), "AAAzzzzzz", "two proven paths each");
    assert_eq!(world.power_of(5).kept_awake, None);
}

#[test]
fn servers_with_a_single_path_do_not_leave_a_group_with_one_copy() {
    let mut world = machines(&["wol"]);
    world.prove("wol");
    world.gear(1);
    world.run(20_000);
    assert_eq!(world.states(), "AAAAAAzzz", "R8 relies on no sleeper while two copies are awake");
    let why = world.power_of(4).kept_awake.unwrap();
    assert!(why.contains("single wake path"), "{why}");
    assert_eq!(world.power_of(8).kept_awake, None);
    world.gear(3);
    world.run(20_000);
    assert_eq!(world.states(), "AAAAAAAAA");
}

/// Then twice that is late, and no longer what it might have taken.
#[test]
fn a_machine_that_boots_for_a_minute_proves_its_path() {
    let slow = WakePath { patience: Some(Duration::from_secs(180)), ..path("wol", false) };
    let switches = (0..9).map(|id| (ServerId(id), vec![slow.clone()])).collect();
    let boot = bootstrap(9, 3, 36, ebb_gear::Scheme::Rotated);
    let mut world = settled(World::of(boot, Controller::new(Timing::default(), switches)));
    for (boots, tries) in [(60_000, 1), (150_000, 2)] {
        let before = world.thrown(8, "Wake");
        world.test(8).unwrap();
        while world.thrown(8, "Wake") == before {
            world.run(100);
        }
        world.servers.get_mut(&ServerId(8)).unwrap().next_beat = world.now + Duration::from_millis(boots);
        world.run(boots - 5000);
        assert_eq!(world.thrown(8, "Wake") - before, tries, "{boots} ms");
        world.servers.get_mut(&ServerId(8)).unwrap().next_beat = world.now;
        world.run(10_000);
        assert_eq!(world.state_of(8), ServerState::Awake);
        let known = world.power_of(8).paths.swap_remove(0);
        assert_eq!(known.proven, tries == 1, "{known:?}");
    }
}

/// Another order, or another path, would disturb a machine that boots.
#[test]
fn a_new_leader_gives_a_machine_that_wakes_as_much_time_as_its_path_has() {
    let slow = WakePath { patience: Some(Duration::from_secs(180)), ..path("wol", false) };
    let switches: Switches = (0..9).map(|id| (ServerId(id), vec![slow.clone()])).collect();
    let boot = bootstrap(9, 3, 36, ebb_gear::Scheme::Rotated);
    for (took_millis, wait) in [(None, 180_000), (Some(30_000), 60_000)] {
        let controller = Controller::new(Timing::default(), switches.clone());
        let mut world = settled(World::of(boot.clone(), controller));
        if let Some(took_millis) = took_millis {
            let fact = PowerFact::Woke { path: "wol".into(), took_millis };
            let command = Command::NotePower { server: ServerId(8), at_unix_millis: 1, fact };
            assert_eq!(world.state.apply(&command), Reply::Done);
            world.event(Event::Applied { own: false });
        }
        world.test(8).unwrap();
        while world.thrown(8, "Wake") == 0 {
            world.run(100);
        }
        world.servers.get_mut(&ServerId(8)).unwrap().next_beat = world.now + Duration::from_secs(600);
        world.lead();
        world.run(wait - 1000);
        assert_eq!((world.state_of(8), world.thrown(8, "Wake")), (ServerState::Waking, 1));
        world.run(2000);
        assert_eq!(world.thrown(8, "Wake"), 2, "it is late after {wait} ms");
        world.run(10_000);
        assert_eq!(world.state_of(8), ServerState::Awake);
    }
}

#[test]
fn a_server_without_a_switch_stays_awake_among_others_that_sleep() {
    let mut switches = processes();
    switches.remove(&ServerId(7));
    let boot = bootstrap(9, 3, 36, ebb_gear::Scheme::Rotated);
    let mut world = settled(World::of(boot, Controller::new(Timing::default(), switches)));
    world.gear(1);
    world.run(20_000);
    assert_eq!(world.states(), "AAAzzzzAz");
    assert!(world.power_of(7).kept_awake.unwrap().contains("no power switch"));
    // It stops and comes back like any server that was never switched.
    world.crash(7);
    world.run(5000);
    assert_eq!(world.state_of(7), ServerState::Failed);
    assert_eq!(world.thrown(7, "Wake") + world.thrown(7, "Sleep"), 0);
}

#[test]
fn a_new_leader_knows_how_deep_a_server_sleeps_and_refills_no_wear_budget() {
    // By the configuration alone it would be taken for off.
    let mut world = processes_of(Timing { depth: Depth::Off, ..Timing::default() });
    let depth = |world: &World| world.controller.depth(ServerId(8));
    let credit = |world: &World| world.state.power(ServerId(8)).unwrap().slept.unwrap().credit.unwrap();
    world.gear(1);
    world.run(10_000);
    assert_eq!((world.states().as_str(), depth(&world)), ("AAAzzzzzz", Some(Depth::Standby)));
    let first = credit(&world);
    world.lead();
    world.run(1000);
    assert_eq!(depth(&world), Some(Depth::Standby));
    for gear in [3, 1] {
        world.gear(gear);
        world.run(20_000);
    }
    assert_eq!(world.states(), "AAAzzzzzz");
    assert!((first - 1.0..first - 0.5).contains(&credit(&world)), "{first} and then {}", credit(&world));
}

#[test]
fn power_cycles_are_counted_through_leaders_for_each_server_and_each_hour() {
    let mut world = processes_of(Timing::default());
    for gear in [1, 3, 1] {
        world.gear(gear);
        world.run(20_000);
        world.lead();
    }
    assert_eq!(world.states(), "AAAzzzzzz");
    let cycles: Vec<u64> = (0..9).map(|id| world.power_of(id).cycles).collect();
    assert_eq!(cycles, [0, 0, 0, 2, 2, 2, 2, 2, 2]);
    let (saved, all) = (world.power_of(8).cycles_saved.unwrap(), 7.0 * 24.0);
    assert!((all - 2.0..all - 1.9).contains(&saved), "{saved} of {all} are left");
    let before = world.state.hours().last().map_or(0, |hour| hour.hour);
    world.run(2 * 3_600_000);
    let hours: Vec<(bool, u64)> =
        world.state.hours().map(|hour| (hour.hour > before, hour.power_cycles)).collect();
    assert_eq!(hours.last(), Some(&(true, 12)), "{hours:?}");
}

#[test]
fn a_sleep_of_a_depth_that_does_not_wear_is_no_power_cycle() {
    let mut sleep = Timing::default().sleep;
    sleep.standby.as_mut().expect("the usual depth").wears = false;
    let mut world = processes_of(Timing { sleep, ..Timing::default() });
    world.gear(1);
    world.run(20_000);
    assert_eq!((world.states().as_str(), world.power_of(8).cycles), ("AAAzzzzzz", 0));
}

// What ThreeFold's farmerbot and others met (field notes, A4).

/// [zos#2332]
#[test]
fn a_server_that_goes_off_without_having_said_so_is_failed_and_comes_back_with_what_it_has() {
    let mut world = processes_of(Timing::default());
    world.gear(1);
    world.run(10_000);
    world.crash(1);
    world.run(4000);
    assert_eq!(world.state_of(1), ServerState::Failed, "not asleep: it was not put to sleep");
    assert!(!world.states().contains('z'), "R8: {}", world.states());
    world.restart(1);
    world.run(2000);
    assert_eq!(world.state_of(1), ServerState::Awake);
    assert!(
        !world.transcript.iter().any(|line| line.contains("copies everything")),
        "never taken for amnesia"
    );
    let all = |s: &Slot| s.state == SlotState::CatchingUp { since: Epoch(0) };
    assert!(!world.state.groups().any(|(_, g)| g.slots.iter().any(all)));
}

/// [zos#2269]
#[test]
fn when_the_one_sender_sends_nothing_the_next_path_wakes_the_server_and_a_substitute_is_not_needed() {
    let mut world = machines(&["wol", "redfish"]);
    world.prove("wol");
    world.prove("redfish");
    world.gear(1);
    world.run(10_000);
    world.idle_switches.insert((ServerId(5), SwitchAction::Wake { path: 0 }));
    world.gear(3);
    world.run(9000);
    assert_eq!(world.state_of(5), ServerState::Waking);
    world.run(5000);
    assert_eq!((world.states(), world.failures()), ("AAAAAAAAA".into(), 0));
    assert_eq!((world.thrown(5, "Wake"), world.thrown(5, "Wake by path 1")), (1, 1));
    let paths = world.power_of(5).paths;
    let failure = paths[0].failure.as_ref().unwrap();
    assert!(!paths[0].proven && failure.why.contains("not awake yet"), "{paths:?}");
    assert!(paths[1].proven, "as before: the wake-up was not its alone");
    // The next time the path that still stands is the first.
    world.gear(2);
    world.gear(1);
    world.run(20_000);
    world.gear(3);
    world.run(5000);
    assert_eq!(world.thrown(5, "Wake"), 1);
}

/// [zos#2029]
#[test]
fn a_clock_that_is_two_hours_off_fails_the_exam_and_the_server_stays_awake_until_it_is_right() {
    let mut world = processes_of(Timing::default());
    world.gear(1);
    world.run(10_000);
    world.servers.get_mut(&ServerId(5)).unwrap().skew_millis = 7_200_000;
    world.gear(3);
    world.run(10_000);
    let power = world.power_of(5);
    assert!(power.exam.unwrap().faults[0].contains("7200 s ahead"));
    assert!(power.kept_awake.unwrap().contains("NTP"));
    world.gear(1);
    world.run(20_000);
    assert_eq!(world.states(), "AAAzzAzzz");
    world.servers.get_mut(&ServerId(5)).unwrap().skew_millis = 0;
    world.run(70_000);
    assert_eq!(world.states(), "AAAzzzzzz");
    assert_eq!(world.power_of(5).exam.unwrap().faults, Vec::<String>::new());
}

#[test]
fn a_store_that_takes_no_writes_fails_the_exam() {
    let mut world = processes_of(Timing::default());
    world.gear(1);
    world.run(10_000);
    world.servers.get_mut(&ServerId(4)).unwrap().read_only = true;
    world.gear(3);
    world.run(10_000);
    assert!(world.power_of(4).kept_awake.unwrap().contains("takes no writes"));
}

/// Two of them: a disk is missing, so the server does not start [zos#2009]; or the network is not up at boot, so it is
/// not heard [zos#1991].
#[test]
fn a_server_that_wakes_and_is_not_heard_is_late_and_never_failed() {
    let mut world = machines(&["redfish", "wol"]);
    world.prove("redfish");
    world.prove("wol");
    world.gear(1);
    world.run(10_000);
    for path in 0..2 {
        world.idle_switches.insert((ServerId(5), SwitchAction::Wake { path }));
    }
    world.gear(3);
    world.run(120_000);
    assert_eq!((world.states(), world.failures()), ("AAAAAWAAA".into(), 0));
    let status = world.status();
    assert!(status.servers[5].switch_trouble.as_ref().unwrap().contains("not awake yet"));
    assert!(status.servers[5].power.paths.iter().all(|path| !path.proven));
    let facts = world.state.power(ServerId(5)).unwrap().paths.len();
    assert_eq!(facts, 2, "what is known of each path, however often it is tried");
    // The disk is back: it is started by hand.
    world.idle_switches.clear();
    world.restart(5);
    world.run(2000);
    assert_eq!(world.states(), "AAAAAAAAA");
    world.gear(1);
    world.run(20_000);
    assert_eq!(world.state_of(5), ServerState::Awake, "it must prove itself first");
}

/// iDRAC answers 409 while the machine is still going down.
#[test]
fn a_wake_up_that_is_refused_while_the_machine_still_goes_down_is_tried_again_at_once() {
    let mut world = processes_of(Timing::default());
    world.gear(1);
    world.run(10_000);
    world.failing_wakes = 1;
    world.gear(3);
    world.run(3000);
    assert_eq!((world.states(), world.failures()), ("AAAAAAAAA".into(), 0));
}

/// A BMC answers 204 and does nothing, or shows "On" while the machine goes down: what it reports proves nothing.
#[test]
fn a_switch_that_reports_success_and_does_nothing_proves_no_path() {
    let mut world = machines(&["redfish"]);
    world.idle_switches.insert((ServerId(8), SLEEP));
    world.test(8).unwrap();
    world.run(60_000);
    let power = world.power_of(8);
    let test = power.test.unwrap();
    assert!(test.given_up.as_ref().unwrap().contains("does not go down"), "{test:?}");
    assert!(!power.paths[0].proven && !test.has_passed(1));
    assert_eq!((world.states(), world.failures()), ("AAAAAAAAA".into(), 0));
}

/// Its card has lost its setting, say. It stays asleep on record, so that it can sleep as soon as it is able to.
#[test]
fn a_server_that_refuses_to_sleep_is_shown_up_with_its_reason_until_it_sleeps() {
    let mut world = processes_of(Timing::default());
    let refused = (None, Some("refused to sleep: no card".to_owned()));
    let asleep = (Some(Depth::Standby), None);
    world.refusers.insert(ServerId(5));
    world.gear(1);
    world.run(30_000);
    assert_eq!(world.states(), "AAAzzzzzz");
    assert_eq!((world.shown_of(5), world.shown_of(4)), (refused.clone(), asleep.clone()));
    // Between two orders, too, and for a new leader as soon as it has heard the reason.
    world.run(200_000);
    assert_eq!(world.shown_of(5), refused);
    world.lead();
    world.run(30_000);
    assert_eq!(world.shown_of(5), refused);
    assert!(world.controller.resists(world.now, ServerId(5), &world.state));
    // It is there at once when it is wanted.
    world.gear(3);
    world.run(3000);
    assert_eq!((world.state_of(5), world.shown_of(5).1), (ServerState::Awake, None));
    world.gear(1);
    world.run(30_000);
    assert_eq!(world.shown_of(5), refused);
    // The next order after the remedy: what was wrong is over, and it is asleep.
    world.refusers.clear();
    world.run(120_000);
    assert_eq!((world.states().as_str(), world.shown_of(5)), ("AAAzzzzzz", asleep));
    assert!(!world.controller.resists(world.now, ServerId(5), &world.state));
}

#[test]
fn a_server_that_stays_up_although_its_switch_reports_sleep_is_shown_up() {
    let mut world = processes_of(Timing::default());
    world.idle_switches.insert((ServerId(5), SLEEP));
    world.gear(1);
    world.run(8000);
    let (depth, trouble) = world.shown_of(5);
    assert_eq!((world.states().as_str(), depth), ("AAAzzzzzz", None));
    assert!(trouble.unwrap().contains("still sends heartbeats"));
    world.idle_switches.clear();
    world.run(60_000);
    assert_eq!(world.shown_of(5), (Some(Depth::Standby), None));
}

/// It is asleep on record, and somebody wakes it; or the order to sleep is carried out late.
#[test]
fn a_server_that_wakes_although_nobody_asked_takes_part_again() {
    let mut world = processes_of(Timing::default());
    world.gear(1);
    world.run(10_000);
    world.restart(8);
    world.run(1000);
    assert!(world.transcript.iter().any(|line| line.contains("was started while it should sleep")));
    world.run(20_000);
    assert_eq!((world.states(), world.failures()), ("AAAzzzzzz".into(), 0), "and sleeps again");
}

#[test]
fn a_test_wakes_the_server_by_each_path_and_it_may_sleep_from_then_on() {
    let mut world = machines(&["redfish", "wol"]);
    world.test(8).unwrap();
    let refused = world.test(7).unwrap_err();
    assert!(refused.contains("server-8 is being tested"), "{refused}");
    world.run(60_000);
    let power = world.power_of(8);
    let test = power.test.unwrap();
    assert!(test.has_passed(2), "{test:?}");
    assert!(test.results.iter().all(|path| path.in_sync_millis >= path.woke_millis));
    assert_eq!(
        (world.thrown(8, "Sleep(Standby)"), world.thrown(8, "Sleep")),
        (0, 2),
        "never more than asked"
    );
    assert_eq!((world.thrown(8, "Wake"), world.thrown(8, "Wake by path 1")), (1, 1));
    assert!(power.paths.iter().all(|path| path.proven) && power.kept_awake.is_none());
    assert_eq!((world.states(), world.failures()), ("AAAAAAAAA".into(), 0));
    world.gear(1);
    world.run(20_000);
    assert_eq!(world.states(), "AAAAAAAAz", "it is the only one that has proved itself");
}

#[test]
fn a_path_that_fails_its_test_is_named_and_the_others_bring_the_server_back() {
    let mut world = machines(&["redfish", "wol"]);
    world.idle_switches.insert((ServerId(8), SwitchAction::Wake { path: 0 }));
    world.test(8).unwrap();
    world.run(120_000);
    let power = world.power_of(8);
    let test = power.test.unwrap();
    let woke: Vec<bool> = test.results.iter().map(|path| path.woke_millis.is_some()).collect();
    assert_eq!((woke, test.has_passed(2)), (vec![false, true], false), "{test:?}");
    assert!(test.results[0].trouble.as_ref().unwrap().contains("not awake yet"));
    assert_eq!(power.paths.iter().map(|path| path.proven).collect::<Vec<_>>(), [false, true]);
    assert_eq!((world.states(), world.failures()), ("AAAAAAAAA".into(), 0));
}

#[test]
fn a_test_says_how_long_a_step_may_take_and_gives_up_after_that() {
    let mut world = machines(&["redfish", "wol"]);
    world.idle_switches.extend([0, 1].map(|path| (ServerId(8), SwitchAction::Wake { path })));
    world.test(8).unwrap();
    let test = |world: &mut World| world.power_of(8).test.unwrap();
    assert_eq!(test(&mut world).limit_millis, Some(1_800_000), "for handing over");
    while test(&mut world).step != TestStep::Waking {
        world.run(100);
    }
    let limit = test(&mut world).limit_millis.unwrap();
    world.run(limit - 1000);
    assert_eq!(test(&mut world).step, TestStep::Waking);
    world.run(5000);
    let ended = test(&mut world);
    assert!(
        ended.given_up.is_some_and(|why| why.contains("no path wakes it")) && ended.limit_millis.is_none()
    );
}

#[test]
fn a_test_is_refused_when_it_would_do_harm_and_ends_with_its_leader() {
    let mut world = machines(&["wol"]);
    assert!(world.test(99).unwrap_err().contains("not part of the cluster"));
    world.maintain(8, false).unwrap();
    assert!(world.test(8).unwrap_err().contains("in maintenance"));
    world.maintain(8, true).unwrap();
    world.run(10_000);
    world.crash(2);
    world.run(5000);
    assert!(world.test(8).unwrap_err().contains("copies are missing"));
    world.restart(2);
    world.run(10_000);
    world.test(8).unwrap();
    world.run(2000);
    world.lead();
    world.run(30_000);
    assert_eq!((world.states(), world.failures()), ("AAAAAAAAA".into(), 1));
    assert_eq!(world.power_of(8).test, None);
    let mut world = World::of(
        bootstrap(9, 3, 36, ebb_gear::Scheme::Rotated),
        Controller::new(Timing::default(), Switches::new()),
    );
    world.run(5000);
    assert!(world.test(8).unwrap_err().contains("no power switch"));
}

#[test]
fn a_test_in_the_lowest_gear_wakes_the_peers_first() {
    let mut world = processes_of(Timing::default());
    world.gear(1);
    world.run(10_000);
    world.test(1).unwrap();
    world.run(60_000);
    assert!(world.power_of(1).test.unwrap().has_passed(1));
    assert_eq!((world.states(), world.failures()), ("AAAzzzzzz".into(), 0));
}

#[test]
fn long_sleepers_are_woken_for_an_exam_one_at_a_time() {
    let mut world = processes_of(Timing { exam_after: Some(Duration::from_secs(600)), ..Timing::default() });
    world.gear(1);
    world.run(10_000);
    assert_eq!(world.states(), "AAAzzzzzz");
    let start = world.transcript.len();
    world.run(580_000);
    assert_eq!(world.transcript.len(), start, "nothing happens before");
    world.run(300_000);
    assert_eq!((world.states(), world.failures()), ("AAAzzzzzz".into(), 0));
    for id in 3..9 {
        assert_eq!(world.thrown(id, "Wake"), 1, "server {id}");
        assert!(world.power_of(id).exam.unwrap().at_unix_millis > 1_600_000);
    }
    let most = world.transcript.iter().map(|line| line.matches(['W', 'D']).count()).skip(start).max();
    assert_eq!(most, Some(1), "one at a time");
}

#[test]
fn maintenance_hands_over_and_leaves_the_switch_alone_until_it_ends() {
    let mut world = processes_of(Timing { lost_after: Some(Duration::from_secs(60)), ..Timing::default() });
    world.gear(1);
    world.run(10_000);
    world.maintain(1, false).unwrap();
    assert!(!world.power_of(1).may_be_stopped);
    assert!(matches!(world.why_of(1), Why::Kept { why } if why.contains("--end")));
    world.run(10_000);
    assert!(world.power_of(1).may_be_stopped, "{}", world.states());
    let primary = |world: &World| world.state.groups().any(|(_, g)| g.primary == Some(ServerId(1)));
    assert!(!primary(&world));
    let headless = world.transcript.len();
    // Stopped, away for longer than a failed server may be, and started twice.
    world.crash(1);
    world.run(100_000);
    assert_eq!(world.state_of(1), ServerState::Failed, "and not lost");
    assert!(world.status().notes.iter().any(|note| note.contains("server-1 is in maintenance")));
    assert!(!world.transcript[headless..].iter().any(|line| line.contains("headless")), "no group waited");
    for _ in 0..2 {
        world.restart(1);
        world.run(10_000);
        assert!(world.power_of(1).may_be_stopped && !primary(&world), "{}", world.states());
    }
    assert_eq!(world.thrown(1, "Wake") + world.thrown(1, "Sleep"), 0);
    world.maintain(1, true).unwrap();
    world.run(30_000);
    assert_eq!(world.states(), "AAAzzzzzz");
    assert_eq!(world.power_of(1).maintenance_unix_millis, None);
}

/// It never comes back as it was, and its machine may be used again.
#[test]
fn maintenance_of_a_server_that_was_declared_lost_can_be_ended() {
    let mut world = processes_of(Timing::default());
    world.run(10_000);
    world.maintain(1, false).unwrap();
    world.run(10_000);
    world.crash(1);
    world.run(20_000);
    world.asked(AdminRequest::MarkLost { server: ServerId(1), accept_loss: false }).unwrap();
    world.run(3_000);
    assert_eq!(world.state_of(1), ServerState::Lost);
    assert!(world.state.in_maintenance(ServerId(1)));
    assert!(world.maintain(1, false).unwrap_err().contains("declared lost"));
    world.maintain(1, true).unwrap();
    world.run(1_000);
    assert!(!world.state.in_maintenance(ServerId(1)));
}

#[test]
fn a_sleeper_in_maintenance_is_not_woken_and_its_peers_do_what_r8_needs() {
    let mut world = processes_of(Timing::default());
    world.gear(1);
    world.run(10_000);
    world.maintain(5, false).unwrap();
    world.run(10_000);
    assert!(world.power_of(5).may_be_stopped);
    assert_eq!(world.state_of(5), ServerState::Asleep);
    let of_it = world.state.groups().filter(|(_, g)| g.slot_of(ServerId(5)).is_some());
    let peers: BTreeSet<u16> = of_it.flat_map(|(_, g)| g.slots.iter().map(|s| s.server.0)).collect();
    assert!(peers.iter().all(|id| *id == 5 || world.state_of(*id) == ServerState::Awake));
    world.gear(3);
    world.run(10_000);
    assert_eq!(world.states(), "AAAAAzAAA");
    world.maintain(5, true).unwrap();
    world.run(10_000);
    assert_eq!(world.states(), "AAAAAAAAA");
}

#[test]
fn maintenance_is_refused_where_a_group_would_have_no_complete_copy() {
    let mut world = processes_of(Timing { lost_after: None, ..Timing::default() });
    let (_, group) = world.state.groups().next().unwrap();
    let ids: Vec<u16> = group.slots.iter().map(|s| s.server.0).collect();
    world.crash(ids[0]);
    world.run(4000);
    world.crash(ids[1]);
    world.run(4000);
    let why = world.maintain(ids[2], false).unwrap_err();
    assert!(why.contains("no complete copy") && !world.state.in_maintenance(ServerId(ids[2])), "{why}");
    assert!(world.maintain(99, false).unwrap_err().contains("not part of the cluster"));
    // One that is away already may be repaired in peace.
    world.maintain(ids[0], false).unwrap();
    assert!(world.power_of(ids[0]).may_be_stopped);
}
