//! Sets of erasure-coded pools in the small world, beside nine servers of the replicated pool.

use super::*;

/// The rows of sets reduced to "which servers hold which strips of which epoch's rows": checks that the configurations
/// never claim a strip that is not there, and never forget one.
#[derive(Default)]
pub struct Rows {
    /// Per set the epochs in which a row was acknowledged.
    acked: BTreeSet<(SetId, Epoch)>,
    held: BTreeSet<(SetId, Epoch, usize, ServerId)>,
}

fn targets(set: &SetEntry, row: Epoch) -> Vec<Option<ServerId>> {
    set.targets(ChunkId { object: ObjectId(1), index: row.0 })
}

impl Rows {
    /// If all targets are alive, a row is acknowledged.
    pub fn write(&mut self, state: &State, alive: impl Fn(ServerId) -> bool) {
        for (id, set) in state.sets() {
            let targets = targets(set, set.epoch);
            let all = targets.iter().take(set.columns.len()).all(|target| target.is_some_and(&alive));
            if all && targets.iter().flatten().all(|target| alive(*target)) {
                self.acked.insert((id, set.epoch));
                let strips =
                    targets.iter().enumerate().filter_map(|(strip, server)| Some((strip, (*server)?)));
                self.held.extend(strips.map(|(strip, server)| (id, set.epoch, strip, server)));
            }
        }
    }

    fn has(&self, id: SetId, row: Epoch, strip: usize, which: impl Fn(ServerId) -> bool) -> bool {
        let first = (id, row, strip, ServerId(0));
        self.held.range(first..=(id, row, strip, ServerId(u16::MAX))).any(|(.., server)| which(*server))
    }

    /// The strip is copied or decoded, if that is possible.
    fn fill(
        &mut self,
        (id, set): (SetId, &SetEntry),
        (row, strip): (Epoch, usize),
        to: ServerId,
        alive: impl Fn(ServerId) -> bool,
    ) -> bool {
        let there = (0..set.strips()).filter(|strip| self.has(id, row, *strip, &alive)).count();
        let can = there >= set.shape.data() || self.has(id, row, strip, &alive);
        if can {
            self.held.insert((id, row, strip, to));
        }
        can
    }

    fn rows(&self, id: SetId) -> Vec<Epoch> {
        self.acked.iter().filter(|(set, _)| *set == id).map(|(_, row)| *row).collect()
    }

    /// A server fills in what it keeps for others.
    pub fn keep(&mut self, state: &State, server: ServerId, alive: impl Fn(ServerId) -> bool) {
        for (id, set) in state.sets().filter(|(_, set)| set.column_of(server).is_some()) {
            for row in self.rows(id) {
                for (strip, target) in targets(set, row).iter().enumerate() {
                    let since = set.missing_since(strip);
                    if *target == Some(server) && since.is_some_and(|since| since <= row) {
                        self.fill((id, set), (row, strip), server, &alive);
                    }
                }
            }
        }
    }

    /// The column's server fills it; returns whether it has everything.
    pub fn catch_up(
        &mut self,
        state: &State,
        id: SetId,
        column: usize,
        epoch: Epoch,
        alive: impl Fn(ServerId) -> bool,
    ) -> bool {
        let set = state.set(id).unwrap();
        let Some(since) = set.missing_since(column).filter(|_| set.epoch == epoch) else { return false };
        let to = set.columns[column].server;
        let rows = self.rows(id).into_iter().filter(|row| *row >= since);
        let missing = rows.filter(|row| !self.fill((id, set), (*row, column), to, &alive));
        missing.count() == 0
    }

    pub fn forget(&mut self, server: ServerId) {
        self.held.retain(|(.., holder)| *holder != server);
    }

    /// Holders drop what no column lacks any more; then what the entries claim is checked.
    pub fn follow(&mut self, state: &State, forgot: impl Fn(ServerId) -> bool) {
        self.held.retain(|(id, _, strip, server)| {
            let set = state.set(*id).unwrap();
            set.missing_since(*strip).is_some()
                || set.columns.get(*strip).is_some_and(|c| c.server == *server)
        });
        for (id, row) in &self.acked {
            let set = state.set(*id).unwrap();
            for (column, own) in set.columns.iter().enumerate() {
                let claims = set.missing_since(column).is_none_or(|since| *row < since);
                let has = forgot(own.server) || self.has(*id, *row, column, |s| s == own.server);
                assert!(!claims || has, "{id}: {} lacks the row of {row}: {set:?}", own.server);
            }
        }
    }

    /// Every row can be read, from whatever servers have it.
    fn assert_kept(&self, state: &State) {
        for (id, row) in &self.acked {
            let set = state.set(*id).unwrap();
            let there = (0..set.strips()).filter(|strip| self.has(*id, *row, *strip, |_| true)).count();
            assert!(there >= set.shape.data(), "{id}: {there} strips are left of the row of {row}: {set:?}");
        }
    }
}

/// Per set its epoch, with a z while it hibernates, and a letter per column: in sync, catching up, away.
pub fn columns(state: &State) -> String {
    let letter = |column: &Column| match column.state {
        SlotState::InSync => 's',
        SlotState::CatchingUp { .. } => 'c',
        SlotState::Away { .. } => '-',
    };
    let one = |(id, set): (SetId, &SetEntry)| {
        let (data, parity) = set.columns.split_at(set.shape.data());
        let word = |columns: &[Column]| columns.iter().map(letter).collect::<String>();
        let sleeps = if set.hibernates() { "z" } else { "" };
        format!(" | {id} e{}{sleeps} {} {}", set.epoch.0, word(data), word(parity))
    };
    state.sets().map(one).collect()
}

const POOL: PoolId = PoolId(1);

/// Nine servers in the replicated pool, and from server-9 on `sets` sets of 6+3, then the spares.
fn bootstrap_of(sets: u16, spares: u16) -> Bootstrap {
    let mut boot = bootstrap(9, 3, 36, ebb_gear::Scheme::Rotated);
    let shape = Shape::new(6, 3).unwrap();
    let ids = 9..9 + 9 * sets + spares;
    let places: Vec<ebb_gear::Server> =
        ids.map(|id| ebb_gear::Server { id: ServerId(id), rack: RackId(id % 5) }).collect();
    boot.servers.extend(places.iter().map(|place| NewServer {
        id: place.id,
        rack: place.rack,
        pool: POOL,
        gear_group: ebb_types::NO_GEAR,
        address: format!("127.0.0.1:{}", 7000 + place.id.0),
    }));
    let fresh = |servers: Vec<ServerId>| SetEntry {
        pool: POOL,
        shape,
        epoch: Epoch(1),
        hibernates_since: None,
        columns: servers.into_iter().map(|server| Column { server, state: SlotState::InSync }).collect(),
    };
    // In order of their ids, so that transcripts can be read.
    let chunks = places.chunks_exact(9).map(|set| set.iter().map(|place| place.id).collect());
    boot.sets = chunks.map(fresh).collect();
    boot.pools = vec![PoolEntry {
        id: POOL,
        name: "archive".into(),
        shape,
        parity_debt: ParityDebt::Ram,
        parity_buffer_bytes: 100,
        hibernate_after_millis: None,
        rebuild_bytes_per_second: None,
        awake_parity: 0,
        sets: (0..sets).map(SetId).collect(),
    }];
    boot
}

fn world(sets: u16, spares: u16, switched: bool) -> World {
    World::of(
        bootstrap_of(sets, spares),
        Controller::new(Timing::default(), if switched { processes() } else { Switches::new() }),
    )
}

/// Its parity servers have gone to sleep.
fn at_rest(sets: u16, spares: u16) -> World {
    let mut world = world(sets, spares, true);
    world.run(6000);
    for set in 0..sets {
        assert_eq!(world.set(set), "ssssss ---", "{}", world.transcript.join("\n"));
        assert_eq!(world.coded_states(set), "AAAAAAzzz");
    }
    world.transcript.clear();
    world
}

/// Servers are given up after half a minute.
fn that_gives_up(spares: u16) -> World {
    that_gives_up_with(ParityDebt::Ram, spares)
}

fn that_gives_up_with(debt: ParityDebt, spares: u16) -> World {
    let timing = Timing { lost_after: Some(Duration::from_secs(30)), ..Timing::default() };
    let mut boot = bootstrap_of(1, spares);
    boot.pools[0].parity_debt = debt;
    let mut world = World::of(boot, Controller::new(timing, processes()));
    world.run(6000);
    world
}

impl World {
    fn set(&self, id: u16) -> String {
        let all = columns(&self.state);
        let one = all.split(" | ").nth(usize::from(id) + 1).unwrap();
        one.split_once(' ').unwrap().1.split_once(' ').unwrap().1.to_owned()
    }

    /// The states of a set's servers, column by column.
    fn coded_states(&self, set: u16) -> String {
        let states: Vec<char> = self.states().chars().collect();
        let columns = &self.state.set(SetId(set)).unwrap().columns;
        columns.iter().map(|c| states[usize::from(c.server.0)]).collect()
    }

    /// What the data servers of a set keep grows to `percent` of what they may, by one in a second.
    fn fill(&mut self, set: u16, percent: u64) {
        let first = 9 + 9 * set;
        let now = self.used_percent.get(&ServerId(first)).map_or(0, |(_, debt)| *debt);
        for debt in now..=percent {
            self.used_percent.extend((first..first + 6).map(|id| (ServerId(id), (0, debt))));
            self.run(1000);
        }
    }

    fn empty(&mut self, set: u16) {
        self.used_percent.extend((9 + 9 * set..15 + 9 * set).map(|id| (ServerId(id), (0, 0))));
    }

    fn pool_status(&mut self) -> (PoolStatus, Vec<String>) {
        self.admin(AdminRequest::Status);
        match self.answer.take() {
            Some(MetaReply::Admin(AdminReply::Status(status))) => (status.pools[0].clone(), status.notes),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn parity_sleeps_wakes_at_the_threshold_catches_up_and_sleeps_again() {
    let mut world = world(1, 0, true);
    world.run(6000);
    world.assert_served();
    world.fill(0, 50);
    let (status, notes) = world.pool_status();
    assert_eq!(notes, [""; 0]);
    let set = &status.sets[0];
    assert_eq!((set.fullest, set.parity_debt_bytes), (Some(0.5), 300));
    let left = set.next_activation_millis.expect("it fills");
    assert!((30_000..45_000).contains(&left), "{left}");
    world.fill(0, 80);
    assert_eq!(world.coded_states(0), "AAAAAAzzz");
    world.fill(0, 90);
    assert_eq!((world.coded_states(0), world.set(0)), ("AAAAAAAAA".into(), "ssssss sss".into()));
    world.empty(0);
    world.run(6000);
    assert_eq!((world.coded_states(0), world.set(0)), ("AAAAAAzzz".into(), "ssssss ---".into()));
    world.rows.assert_kept(&world.state);
    assert_transcript(&mut world, "parity_cycle");
}

#[test]
fn what_a_set_stores_is_what_its_servers_said_last() {
    let mut world = world(1, 0, true);
    world.own_bytes = 70;
    world.run(6000);
    assert_eq!(world.coded_states(0), "AAAAAAzzz");
    // It is not asked of those that sleep.
    world.own_bytes = 80;
    world.fill(0, 5);
    let stored = |world: &mut World| {
        let status = world.pool_status().0;
        (status.sets[0].stored_bytes, status.sets[0].data_bytes)
    };
    assert_eq!(stored(&mut world), (Some(6 * (80 + 5) + 3 * 70), Some(6 * 80)));
    // A new leader has not heard those that sleep.
    world.lead();
    world.run(2000);
    assert_eq!(world.coded_states(0), "AAAAAAzzz");
    assert_eq!(stored(&mut world), (None, Some(6 * 80)));
    // Without a data server, others keep some of the data.
    let mut world = at_rest(1, 0);
    world.crash(9);
    world.run(5000);
    assert_eq!(&world.coded_states(0)[..1], "F", "{}", world.transcript.join("\n"));
    assert_eq!(stored(&mut world).1, None);
}

#[test]
fn one_failed_data_server_wakes_p1_two_wake_two_three_wake_all() {
    let mut world = at_rest(1, 0);
    for (failed, states) in [(9, "FAAAAAAzz"), (11, "FAFAAAAAz"), (13, "FAFAFAAAA")] {
        world.crash(failed);
        world.run(5000);
        assert_eq!(world.coded_states(0), states);
        assert!(world.set(0).ends_with(&states[6..].replace('A', "s").replace('z', "-")), "{}", world.set(0));
    }
    for failed in [9, 11, 13] {
        world.restart(failed);
    }
    world.run(10_000);
    assert_eq!((world.coded_states(0), world.set(0)), ("AAAAAAzzz".into(), "ssssss ---".into()));
    world.rows.assert_kept(&world.state);
}

#[test]
fn parity_servers_take_turns_to_help() {
    let mut world = at_rest(1, 0);
    for states in ["FAAAAAAzz", "FAAAAAzAz", "FAAAAAzzA", "FAAAAAAzz"] {
        world.crash(9);
        world.run(5000);
        assert_eq!(world.coded_states(0), states);
        world.restart(9);
        world.run(10_000);
        assert_eq!(world.coded_states(0), "AAAAAAzzz");
    }
    world.rows.assert_kept(&world.state);
}

#[test]
fn a_number_of_parity_servers_stays_awake_if_the_pool_says_so() {
    let mut boot = bootstrap_of(1, 0);
    boot.pools[0].awake_parity = 1;
    let mut world = World::of(boot, Controller::new(Timing::default(), processes()));
    world.run(6000);
    assert_eq!((world.coded_states(0), world.set(0)), ("AAAAAAAzz".into(), "ssssss s--".into()));
    world.crash(9);
    world.run(5000);
    assert_eq!(world.coded_states(0), "FAAAAAAzz", "it is there to help");
    world.crash(15);
    world.run(5000);
    assert_eq!(world.coded_states(0), "FAAAAAFAz", "another one stays in its place");
    world.restart(9);
    world.restart(15);
    world.run(20_000);
    assert_eq!(world.coded_states(0).matches('A').count(), 7, "{}", world.coded_states(0));
    let pool = world.state.pool(POOL).unwrap().clone();
    world.apply(&[Command::SetPool(PoolEntry { awake_parity: 0, ..pool })]);
    world.event(Event::Applied { own: false });
    world.run(8000);
    assert_eq!(world.coded_states(0), "AAAAAAzzz");
    world.rows.assert_kept(&world.state);
}

#[test]
fn a_parity_server_that_failed_is_no_help_so_the_next_one_is_woken() {
    let mut world = at_rest(1, 0);
    world.crash(9);
    world.run(5000);
    world.crash(15);
    world.run(5000);
    assert_eq!(world.coded_states(0), "FAAAAAFAz");
    world.restart(15);
    world.run(5000);
    assert_eq!(world.coded_states(0), "FAAAAAAAz", "while data is missing, nothing goes to sleep");
    world.restart(9);
    world.run(5000);
    assert_eq!(world.coded_states(0), "AAAAAAzzz");
}

fn power_of(world: &mut World, id: u16) -> PowerStatus {
    world.status().servers.into_iter().find(|server| server.id == ServerId(id)).unwrap().power
}

/// What it keeps for parity in its memory goes with it.
#[test]
fn a_data_server_in_maintenance_is_not_stopped_before_parity_has_every_row() {
    let mut world = at_rest(1, 0);
    world.reclaim = false;
    world.admin(AdminRequest::Maintenance { server: ServerId(9), end: false });
    world.run(5000);
    assert_eq!((world.coded_states(0), world.set(0)), ("AAAAAAAAA".into(), "ssssss ccc".into()));
    assert!(!power_of(&mut world, 9).may_be_stopped, "parity is awake and lacks what its memory has");
    world.reclaim = true;
    world.run(5000);
    assert_eq!((world.coded_states(0), world.set(0)), ("AAAAAAAAA".into(), "ssssss sss".into()));
    assert!(power_of(&mut world, 9).may_be_stopped);
    // Another one that may be stopped at any time has nothing for sure.
    for id in [10, 11, 12] {
        world.admin(AdminRequest::Maintenance { server: ServerId(id), end: false });
    }
    world.run(5000);
    assert!(!world.state.in_maintenance(ServerId(12)), "five would be left");
    assert!([9, 10, 11].iter().all(|id| power_of(&mut world, *id).may_be_stopped));
    world.crash(15);
    world.run(5000);
    assert!(![9, 10, 11].iter().any(|id| power_of(&mut world, *id).may_be_stopped));
}

/// When the test was asked for, all were there.
#[test]
fn a_parity_server_under_test_does_not_sleep_once_its_set_lacks_data() {
    let mut world = world(1, 0, true);
    world.gear(3);
    world.run(6000);
    assert_eq!((world.coded_states(0), world.set(0)), ("AAAAAAAAA".into(), "ssssss sss".into()));
    world.crash(9);
    world.run(1500);
    world.admin(AdminRequest::PowerTest { server: ServerId(15) });
    assert_eq!(world.coded_states(0), "AAAAAADAA", "the failure is not known yet");
    // It says that it is ready when it is.
    let next_beat = world.now + Duration::from_millis(900);
    world.servers.get_mut(&ServerId(15)).unwrap().next_beat = next_beat;
    world.run(5000);
    assert_eq!(world.coded_states(0), "FAAAAAAAA", "{}", world.transcript.join("\n"));
    let given_up = power_of(&mut world, 15).test.and_then(|test| test.given_up);
    assert!(given_up.is_some_and(|why| why.contains("copies are missing")));
    assert!(!world.transcript.iter().any(|line| line.ends_with("switch server-15 Sleep")));
    world.admin(AdminRequest::PowerTest { server: ServerId(15) });
    let Some(MetaReply::Failed(MetaFailure::Refused(why))) = world.answer.take() else { panic!("it begins") };
    assert!(why.contains("copies are missing"), "{why}");
}

#[test]
fn a_lost_server_is_replaced_by_a_spare() {
    let mut world = at_rest(1, 1);
    world.crash(10);
    world.run(4000);
    let (_, notes) = world.pool_status();
    assert!(notes.iter().any(|note| note.contains("data column 2 has no server")), "{notes:?}");
    world.admin(AdminRequest::MarkLost { server: ServerId(10), accept_loss: false });
    world.run(8000);
    let set = world.state.set(SetId(0)).unwrap();
    assert_eq!(set.columns[1], Column { server: ServerId(18), state: SlotState::InSync });
    assert_eq!(world.coded_states(0), "AAAAAAzzz");
    world.rows.assert_kept(&world.state);
    // It may come back on an empty directory, as a spare.
    world.restart_empty(10);
    world.run(3000);
    assert_eq!(world.state.server(ServerId(10)).unwrap().state, ServerState::Awake);
    assert_eq!(world.state.set(SetId(0)).unwrap().column_of(ServerId(10)), None);
}

#[test]
fn the_status_says_that_a_set_with_one_parity_column_takes_no_writes_without_a_data_server() {
    let mut boot = bootstrap_of(1, 0);
    let shape = Shape::new(8, 1).unwrap();
    (boot.sets[0].shape, boot.pools[0].shape) = (shape, shape);
    let mut world = World::of(boot, Controller::new(Timing::default(), processes()));
    world.run(6000);
    world.crash(10);
    world.run(5000);
    world.admin(AdminRequest::MarkLost { server: ServerId(10), accept_loss: false });
    world.run(5000);
    let (_, notes) = world.pool_status();
    let says = notes.iter().any(|note| note.contains("data column 2 has no server; the set takes no writes"));
    assert!(says, "{notes:?}");
}

#[test]
fn without_a_spare_a_lost_servers_column_stays_away_until_it_is_back() {
    let mut world = at_rest(1, 0);
    world.crash(10);
    world.run(4000);
    world.admin(AdminRequest::MarkLost { server: ServerId(10), accept_loss: false });
    world.run(5000);
    let column = |world: &World| world.state.set(SetId(0)).unwrap().columns[1];
    assert_eq!(column(&world), Column { server: ServerId(10), state: SlotState::Away { since: Epoch(0) } });
    world.restart_empty(10);
    world.run(6000);
    assert_eq!(column(&world).state, SlotState::InSync);
    world.rows.assert_kept(&world.state);
}

#[test]
fn a_server_that_failed_for_long_is_given_up_only_if_there_is_a_spare() {
    for spares in [0, 1] {
        let mut world = that_gives_up(spares);
        world.crash(12);
        world.run(40_000);
        let state = world.state.server(ServerId(12)).unwrap().state;
        assert_eq!(state, if spares == 0 { ServerState::Failed } else { ServerState::Lost });
        let (_, notes) = world.pool_status();
        assert_eq!(notes.iter().any(|note| note.contains("no spare server")), spares == 0, "{notes:?}");
    }
}

/// Three data servers fail while parity sleeps: two is what rows written meanwhile bear. Parity wakes and cannot get
/// everything, so each of the three may have the strip that is missing.
#[test]
fn no_server_is_given_up_while_rows_may_need_what_it_has() {
    for debt in [ParityDebt::Ram, ParityDebt::Segment] {
        let mut world = that_gives_up_with(debt, 1);
        for failed in [9, 11, 13] {
            world.crash(failed);
        }
        world.run(60_000);
        assert_eq!(world.coded_states(0), "FAFAFAAAA", "{debt:?}: {}", world.set(0));
        let (_, notes) = world.pool_status();
        let says = |why: &str| notes.iter().any(|note| note.contains(why));
        assert!(says("of its set catches up and may need what it has"), "{debt:?}: {notes:?}");
        // An administrator is told the same, in both commands, and may know better.
        let refusal = |world: &mut World, request: AdminRequest| {
            world.admin(request);
            match world.answer.take() {
                Some(MetaReply::Failed(MetaFailure::Refused(why))) => why,
                other => panic!("{other:?}"),
            }
        };
        let lost = |accept_loss| AdminRequest::MarkLost { server: ServerId(9), accept_loss };
        let why = refusal(&mut world, lost(false));
        assert!(why.contains("`ebb lost 9 --accept-loss`") && why.contains("catches up"), "{why}");
        let loss = "rows of which fewer than 6 strips are left would be lost";
        assert!(why.contains(loss), "{why}");
        let why = refusal(&mut world, AdminRequest::Force { accept_loss: true });
        assert!(
            why.contains("server-9, server-11, server-13 may have what is missing")
                && why.contains("`ebb lost 9 --accept-loss`")
                && why.contains(loss),
            "{why}"
        );
        assert_eq!(world.coded_states(0), "FAFAFAAAA", "nothing was done yet");
        // One returns: everything is there, and what still does not return can be given up.
        world.restart(9);
        world.run(60_000);
        assert_eq!(world.set(0).matches('-').count(), 1, "{}", world.set(0));
        let given_up = world.state.servers().filter(|e| e.state == ServerState::Lost).count();
        assert_eq!(given_up, 1, "a spare for one: {}", world.coded_states(0));
        world.rows.assert_kept(&world.state);

        let mut world = that_gives_up_with(debt, 1);
        [9, 11, 13].into_iter().for_each(|failed| world.crash(failed));
        world.run(10_000);
        world.admin(lost(true));
        assert_eq!(world.state.server(ServerId(9)).unwrap().state, ServerState::Lost);
    }
}

#[test]
fn the_status_names_racks_that_are_shared_without_need() {
    let mut boot = bootstrap_of(1, 1);
    boot.servers.iter_mut().filter(|s| s.pool == POOL).for_each(|s| s.rack = RackId(s.id.0));
    let mut world = World::of(boot.clone(), Controller::new(Timing::default(), processes()));
    assert_eq!(world.pool_status().1, [""; 0]);
    boot.servers[12].rack = RackId(10);
    let mut world = World::of(boot, Controller::new(Timing::default(), processes()));
    let (_, notes) = world.pool_status();
    assert!(notes.len() == 1 && notes[0].contains("server-10 and server-12 share rack-10"), "{notes:?}");
}

#[test]
fn a_failed_spare_is_not_given_up() {
    let mut world = that_gives_up(1);
    world.crash(18);
    world.run(40_000);
    assert_eq!(world.state.server(ServerId(18)).unwrap().state, ServerState::Failed);
}

#[test]
fn a_change_of_leader_moves_nothing() {
    let mut world = at_rest(2, 1);
    let map = world.state.delta(0);
    world.fill(0, 40);
    world.lead();
    world.run(10_000);
    assert_eq!(world.state.delta(0), map, "{:?}", world.transcript);
    // A parity server that is awake for a failed one stays so.
    world.crash(9);
    world.run(6000);
    let map = world.state.delta(0);
    world.lead();
    world.run(10_000);
    assert_eq!(world.state.delta(0), map, "{:?}", world.transcript);
}

#[test]
fn without_power_switches_all_stay_awake() {
    let mut world = world(1, 0, false);
    world.run(6000);
    world.fill(0, 95);
    assert_eq!((world.coded_states(0), world.set(0)), ("AAAAAAAAA".into(), "ssssss sss".into()));
}

#[test]
fn gears_and_sets_do_not_concern_each_other() {
    let mut world = at_rest(1, 0);
    let set = world.state.set(SetId(0)).unwrap().clone();
    world.gear(1);
    world.run(8000);
    assert_eq!(world.states(), "AAAzzzzzzAAAAAAzzz");
    world.gear(2);
    world.run(8000);
    world.assert_served();
    assert_eq!(world.states(), "AAAAAAzzzAAAAAAzzz");
    assert_eq!(world.state.set(SetId(0)).unwrap(), &set);
    // The floor of the replicated pool counts no coded server; its shifts count none either.
    let shifts: Vec<_> = world.state.shifts().map(|s| (s.woken, s.put_to_sleep)).collect();
    assert_eq!(shifts, [(0, 6), (3, 0)]);
    let groups: Vec<GroupEntry> = world.state.groups().map(|(_, g)| g.clone()).collect();
    world.fill(0, 95);
    world.crash(9);
    world.run(6000);
    assert!(world.state.groups().map(|(_, g)| g.clone()).eq(groups), "no group has changed");
}

#[test]
fn a_failed_server_of_the_replicated_pool_is_replaced_by_no_coded_one() {
    let mut world = at_rest(1, 1);
    for id in [0, 4] {
        world.crash(id);
        world.run(6000);
    }
    let servers = world.state.groups().flat_map(|(_, g)| g.members());
    assert!(servers.into_iter().all(|(server, _)| server.0 < 9));
    assert_eq!(world.coded_states(0), "AAAAAAzzz");
}

#[test]
fn an_emptied_data_server_fetches_its_whole_column() {
    for failed_first in [false, true] {
        let mut world = at_rest(1, 0);
        if failed_first {
            world.crash(12);
            world.run(4000);
        }
        world.reclaim = false;
        world.restart_empty(12);
        world.run(5000);
        let state = world.state.set(SetId(0)).unwrap().columns[3].state;
        assert_eq!(state, SlotState::CatchingUp { since: Epoch(0) });
        world.reclaim = true;
        world.run(6000);
        assert_eq!((world.coded_states(0), world.set(0)), ("AAAAAAzzz".into(), "ssssss ---".into()));
        world.rows.assert_kept(&world.state);
    }
}

#[test]
fn a_poisoned_data_server_is_away_until_it_restarts() {
    let mut world = at_rest(1, 0);
    world.servers.get_mut(&ServerId(9)).unwrap().poisoned = true;
    world.run(5000);
    assert_eq!(world.coded_states(0), "FAAAAAAzz");
    world.servers.get_mut(&ServerId(9)).unwrap().poisoned = false;
    world.restart(9);
    world.run(5000);
    assert_eq!(world.set(0), "ssssss ---");
}

#[test]
fn a_restart_within_the_lease_begins_an_epoch_and_nothing_else() {
    let mut world = at_rest(1, 0);
    let epoch = world.state.set(SetId(0)).unwrap().epoch;
    world.restart(9);
    world.run(3000);
    let set = world.state.set(SetId(0)).unwrap();
    assert_eq!((set.epoch, world.set(0)), (epoch.next(), "ssssss ---".into()));
}

#[test]
fn damage_wakes_the_whole_set_for_a_while() {
    let mut world = at_rest(2, 0);
    let report = |world: &mut World, epoch: Epoch| {
        let server = ServerId(10);
        let incarnation = world.servers[&server].run;
        let reports = vec![ServerReport::Damaged { group: GroupId::of_column(SetId(0), 2), epoch }];
        world.event(Event::Server(ServerMessage::Reports { server, incarnation, reports }));
        world.run(5000);
    };
    let epoch = world.state.set(SetId(0)).unwrap().epoch;
    report(&mut world, Epoch(epoch.0 - 1));
    assert_eq!(world.coded_states(0), "AAAAAAzzz", "an old epoch's report does not count");
    report(&mut world, epoch);
    assert_eq!(world.coded_states(0), "AAAAAAAAA");
    assert_eq!(world.coded_states(1), "AAAAAAzzz");
    world.run(20_000);
    assert_eq!(world.coded_states(0), "AAAAAAzzz");
}

#[test]
fn a_caught_up_report_counts_from_the_columns_server_only() {
    let mut world = at_rest(1, 0);
    world.reclaim = false;
    world.crash(9);
    world.run(4000);
    world.restart(9);
    world.run(4000);
    let epoch = world.state.set(SetId(0)).unwrap().epoch;
    let group = GroupId::of_column(SetId(0), 0);
    let say = |world: &mut World, server: ServerId, epoch: Epoch| {
        let incarnation = world.servers[&server].run;
        let reports = vec![ServerReport::CaughtUp { group, epoch }];
        world.event(Event::Server(ServerMessage::Reports { server, incarnation, reports }));
        world.state.set(SetId(0)).unwrap().columns[0].state == SlotState::InSync
    };
    assert!(!say(&mut world, ServerId(10), epoch));
    assert!(!say(&mut world, ServerId(9), Epoch(epoch.0 - 1)));
    // All rows since it was away are on others: the world's own bookkeeping must agree.
    let alive = |_| true;
    assert!(world.rows.catch_up(&world.state, SetId(0), 0, epoch, alive));
    assert!(say(&mut world, ServerId(9), epoch));
}

#[test]
fn sets_of_a_pool_synchronise_one_after_another_unless_one_is_nearly_full() {
    let mut world = at_rest(2, 0);
    world.reclaim = false;
    world.fill(1, 90);
    assert_eq!(world.set(1), "ssssss ccc");
    world.fill(0, 92);
    assert_eq!(world.coded_states(0), "AAAAAAzzz", "it waits for the other set");
    world.reclaim = true;
    world.empty(1);
    world.run(2000);
    assert_eq!(world.coded_states(1), "AAAAAAzzz");
    assert_eq!(world.coded_states(0), "AAAAAAAAA", "its turn");
    world.empty(0);
    world.run(8000);
    world.reclaim = false;
    world.fill(1, 90);
    world.fill(0, 96);
    assert_eq!(world.set(0), "ssssss ccc", "it cannot wait");
}

#[test]
fn an_administrator_who_sets_the_highest_gear_wakes_parity_too() {
    let mut world = at_rest(1, 0);
    world.gear(3);
    world.run(8000);
    assert_eq!((world.states(), world.set(0)), ("A".repeat(18), "ssssss sss".into()));
    world.gear(2);
    world.run(8000);
    assert_eq!(world.set(0), "ssssss ---");
}

#[test]
fn a_power_cut_loses_nothing() {
    for gear in [1, 2] {
        let mut world = at_rest(1, 0);
        world.gear(gear);
        world.run(6000);
        for id in (9..18).rev() {
            world.crash(id);
            world.run(150);
        }
        world.run(6000);
        for id in 9..18 {
            world.restart(id);
        }
        world.run(15_000);
        assert_eq!(world.set(0), "ssssss ---");
        world.rows.assert_kept(&world.state);
    }
}

/// Crashes, returns and changes of leader, never more servers at once than the set bears: in the end everything is
/// there.
#[test]
fn no_random_run_forgets_a_strip() {
    for seed in 0..30 {
        let mut dice = Random::new(seed);
        let mut world = at_rest(1, 1);
        let mut down: Vec<u16> = Vec::new();
        for _ in 0..25 {
            let coded = 9 + dice.below(10) as u16;
            match dice.below(7) {
                0 | 1 if down.len() < 2 && world.servers[&ServerId(coded)].alive => {
                    world.crash(coded);
                    down.push(coded);
                }
                2 | 3 => down.pop().into_iter().for_each(|id| world.restart(id)),
                4 => world.lead(),
                5 if down.is_empty() && world.set(0).starts_with("ssssss") => {
                    world.restart_empty(coded);
                    world.run(5000);
                }
                _ if world.servers[&ServerId(coded)].alive => world.restart(coded),
                _ => {}
            }
            world.run(100 + dice.below(4000));
        }
        down.into_iter().for_each(|id| world.restart(id));
        world.run(30_000);
        assert_eq!(world.set(0), "ssssss ---", "seed {seed}: {}", world.transcript.join("\n"));
        world.rows.assert_kept(&world.state);
    }
}

/// A pool of one set and a spare whose sets hibernate after 20 s; its parity servers sleep.
fn that_hibernates(debt: ParityDebt, sets: u16) -> World {
    let mut boot = bootstrap_of(sets, 1);
    boot.pools[0].hibernate_after_millis = Some(20_000);
    boot.pools[0].parity_debt = debt;
    let mut world = World::of(boot, Controller::new(Timing::default(), processes()));
    world.run(6000);
    assert_eq!(world.coded_states(0), "AAAAAAzzz");
    world
}

impl World {
    /// A client asks for a set; returns within what time it should be awake.
    fn wake(&mut self, set: u16) -> u64 {
        self.event(Event::Wake { token: Token { connection: 1, id: 2 }, set: SetId(set) });
        match self.answer.take() {
            Some(MetaReply::Wakes { within_millis }) => within_millis,
            other => panic!("{other:?}"),
        }
    }

    /// Clients use a set until the next heartbeat of its first server.
    fn use_set(&mut self, set: u16) {
        self.used_by.insert(ServerId(9 + 9 * set));
    }

    fn hibernates(&self, set: u16) -> bool {
        self.state.set(SetId(set)).unwrap().hibernates()
    }
}

#[test]
fn a_set_that_nobody_uses_sleeps_whole_and_is_woken_by_a_client() {
    let mut world = that_hibernates(ParityDebt::Segment, 1);
    world.run(5000);
    world.use_set(0);
    world.run(19_000);
    assert_eq!(world.coded_states(0), "AAAAAAzzz", "it was used 19 s ago");
    let (status, _) = world.pool_status();
    let left = status.sets[0].hibernates_in_millis.unwrap();
    assert!((500..=1500).contains(&left), "{left}");
    world.run(4000);
    assert_eq!(world.states(), "AAAAAAAAAzzzzzzzzzz", "the spare too");
    assert_eq!(world.set(0), "ssssss ---");
    let asleep = world.state.set(SetId(0)).unwrap().clone();
    assert!((1_030_000..1_034_000).contains(&asleep.hibernates_since.unwrap()), "{asleep:?}");
    // Neither a question nor a new leader wakes a server.
    world.pool_status();
    world.lead();
    world.run(60_000);
    assert_eq!(world.state.set(SetId(0)).unwrap(), &asleep);
    let expected = world.wake(0);
    assert_eq!(expected, 14_000, "as long as a server takes, and two heartbeats: nothing was measured yet");
    world.run(3000);
    assert_eq!((world.coded_states(0), world.set(0)), ("AAAAAAzzz".into(), "ssssss ---".into()));
    assert!(!world.hibernates(0) && world.states().ends_with('A'), "and the spare: {}", world.states());
    let measured = world.wake(0);
    assert!((100..3000).contains(&measured), "{measured}");
    world.run(24_000);
    assert!(world.hibernates(0));
    world.rows.assert_kept(&world.state);
    assert_transcript(&mut world, "hibernation");
}

#[test]
fn what_is_kept_in_memory_is_synchronised_before_a_set_hibernates() {
    for debt in [ParityDebt::Ram, ParityDebt::Segment] {
        let mut world = that_hibernates(debt, 1);
        world.fill(0, 10);
        world.reclaim = false;
        world.run(12_000);
        let (states, sleeps) = match debt {
            ParityDebt::Ram => ("AAAAAAAAA", false),
            ParityDebt::Segment => ("zzzzzzzzz", true),
        };
        assert_eq!((world.coded_states(0).as_str(), world.hibernates(0)), (states, sleeps), "{debt:?}");
        world.reclaim = true;
        world.empty(0);
        world.run(6000);
        assert_eq!((world.coded_states(0).as_str(), world.hibernates(0)), ("zzzzzzzzz", true), "{debt:?}");
        world.rows.assert_kept(&world.state);
    }
}

/// A row is acknowledged after the last heartbeat that counts, which said that nothing is owed.
#[test]
fn a_server_with_strips_in_memory_only_ends_its_sets_hibernation() {
    let mut world = that_hibernates(ParityDebt::Ram, 1);
    let owing = ServerId(11);
    world.in_memory.insert(owing);
    let mut settled = false;
    for _ in 0..600 {
        world.run(50);
        let asleep = world.state.server(owing).unwrap().state == ServerState::Asleep;
        assert!(!asleep || world.in_memory.is_empty(), "{}", world.transcript.join("\n"));
        settled |= world.in_memory.is_empty();
    }
    assert!(settled, "{}", world.transcript.join("\n"));
    assert_eq!((world.hibernates(0), world.coded_states(0)), (true, "zzzzzzzzz".into()));
    assert_eq!(world.set(0), "ssssss sss", "parity had everything before it slept again");
    // A new leader hears it too.
    world.wake(0);
    world.run(3000);
    world.in_memory.insert(owing);
    while !world.hibernates(0) {
        world.run(50);
    }
    world.lead();
    world.run(30_000);
    assert!(world.in_memory.is_empty(), "{}", world.transcript.join("\n"));
    world.rows.assert_kept(&world.state);
}

#[test]
fn a_set_that_lacks_a_server_does_not_hibernate_and_wakes_if_it_does() {
    let mut world = that_hibernates(ParityDebt::Segment, 1);
    world.crash(10);
    world.run(40_000);
    assert!(!world.hibernates(0), "{}", world.coded_states(0));
    world.restart(10);
    world.run(10_000);
    assert_eq!((world.coded_states(0).as_str(), world.hibernates(0)), ("zzzzzzzzz", true));
    world.admin(AdminRequest::MarkLost { server: ServerId(10), accept_loss: false });
    world.run(15_000);
    let moved = Column { server: ServerId(18), state: SlotState::InSync };
    assert_eq!(world.state.set(SetId(0)).unwrap().columns[1], moved);
    world.rows.assert_kept(&world.state);
}

#[test]
fn a_server_that_does_not_wake_holds_its_set_up_no_longer_than_a_wake_up_may_take() {
    let mut world = that_hibernates(ParityDebt::Segment, 1);
    world.run(24_000);
    assert_eq!(world.coded_states(0), "zzzzzzzzz");
    world.broken_switches.insert(ServerId(12));
    world.wake(0);
    world.run(500);
    assert!(world.hibernates(0), "it waits for the last one");
    world.run(5000);
    assert_eq!(
        (world.hibernates(0), world.coded_states(0)),
        (false, "AAAWAAAzz".into()),
        "{}",
        world.transcript.join("\n")
    );
    assert!(world.set(0).starts_with("sss-ss"), "{}", world.set(0));
    world.broken_switches.clear();
    world.run(20_000);
    assert!(world.set(0).starts_with("ssssss"), "{}", world.set(0));
    world.rows.assert_kept(&world.state);
}

#[test]
fn a_client_that_comes_while_a_set_goes_to_sleep_stops_it() {
    for after in [21_000, 21_200, 21_400, 21_600, 21_800, 22_000, 22_500] {
        let mut world = that_hibernates(ParityDebt::Segment, 1);
        world.run(after - 6000);
        let before = world.coded_states(0);
        world.wake(0);
        world.run(2000);
        if before != "AAAAAAzzz" {
            assert_eq!((world.hibernates(0), world.coded_states(0)), (false, "AAAAAAzzz".into()), "{before}");
        }
        world.rows.assert_kept(&world.state);
    }
}

#[test]
fn each_set_of_a_pool_sleeps_by_itself_and_the_spare_with_the_last() {
    let mut world = that_hibernates(ParityDebt::Segment, 2);
    for _ in 0..8 {
        world.use_set(1);
        world.run(5000);
    }
    assert_eq!(world.states(), format!("{}{}{}A", "A".repeat(9), "z".repeat(9), "AAAAAAzzz"));
    world.run(24_000);
    assert_eq!(world.states(), format!("{}{}", "A".repeat(9), "z".repeat(19)));
    world.wake(1);
    world.run(3000);
    assert_eq!(world.states(), format!("{}{}{}A", "A".repeat(9), "z".repeat(9), "AAAAAAzzz"));
}

#[test]
fn a_set_hibernates_no_more_often_than_its_servers_bear() {
    let mut boot = bootstrap_of(1, 0);
    boot.pools[0].hibernate_after_millis = Some(20_000);
    let sleep = ebb_gear::Sleep { cycles_per_day: 2.0, ..ebb_gear::Sleep::default() };
    let timing = Timing { sleep, ..Timing::default() };
    let mut world = World::of(boot, Controller::new(timing, processes()));
    world.run(6000);
    for _ in 0..2 {
        world.run(25_000);
        assert!(world.hibernates(0));
        world.wake(0);
        world.run(5000);
    }
    world.run(60_000);
    assert!(!world.hibernates(0));
    let left = world.pool_status().0.sets[0].hibernates_in_millis.unwrap() / 1000;
    assert!((11 * 3600..=12 * 3600).contains(&left), "two a day: {left} s");
}

#[test]
fn the_highest_gear_and_a_pool_without_the_setting_keep_sets_awake() {
    let mut world = that_hibernates(ParityDebt::Segment, 1);
    world.run(30_000);
    assert!(world.hibernates(0));
    world.gear(3);
    world.run(8000);
    assert_eq!((world.states(), world.set(0)), ("A".repeat(19), "ssssss sss".into()));
    world.gear(2);
    world.run(30_000);
    assert!(world.hibernates(0));
    let pool = world.state.pool(POOL).unwrap().clone();
    world.apply(&[Command::SetPool(PoolEntry { hibernate_after_millis: None, ..pool })]);
    world.event(Event::Applied { own: false });
    world.run(8000);
    assert_eq!((world.hibernates(0), world.coded_states(0)), (false, "AAAAAAzzz".into()));
}

/// Clients come and go, servers crash while their set goes to sleep or wakes, leaders change: every row is kept.
#[test]
fn no_random_run_of_a_hibernating_pool_forgets_a_strip() {
    let mut slept = 0;
    for seed in 0..30 {
        let mut dice = Random::new(seed);
        let debt = [ParityDebt::Ram, ParityDebt::Segment][dice.index(2)];
        let mut world = that_hibernates(debt, 1);
        let mut down: Vec<u16> = Vec::new();
        for _ in 0..25 {
            let coded = 9 + dice.below(10) as u16;
            match dice.below(9) {
                7 if world.hibernates(0)
                    && !world.ghost.forgot.contains_key(&ServerId(coded))
                    && down.is_empty() =>
                {
                    world.restart_empty(coded);
                    world.run(15_000);
                }
                0 if down.len() < 2 && world.servers[&ServerId(coded)].alive => {
                    world.crash(coded);
                    down.push(coded);
                }
                1 | 2 => down.pop().into_iter().for_each(|id| world.restart(id)),
                3 => world.lead(),
                4 if world.servers[&ServerId(coded)].alive => world.restart(coded),
                5 => _ = world.wake(0),
                6 => world.use_set(0),
                _ => {}
            }
            world.run(if dice.chance(300) { 30_000 } else { 100 + dice.below(3000) });
            slept += usize::from(world.hibernates(0));
        }
        down.into_iter().for_each(|id| world.restart(id));
        world.wake(0);
        world.run(19_000);
        assert_eq!(world.set(0), "ssssss ---", "seed {seed}: {}", world.transcript.join("\n"));
        world.rows.assert_kept(&world.state);
    }
    assert!(slept > 50, "{slept}");
}

#[test]
fn a_set_whose_servers_cannot_all_be_trusted_to_wake_does_not_hibernate() {
    let mut boot = bootstrap_of(1, 1);
    boot.pools[0].hibernate_after_millis = Some(20_000);
    let doubtful = boot.sets[0].columns[2].server;
    let mut switches = processes();
    switches.insert(doubtful, vec![WakePath::switch("redfish", false)]);
    let mut world = World::of(boot, Controller::new(Timing::default(), switches));
    world.gear(1);
    world.run(60_000);
    assert!(!world.hibernates(0), "{}", world.states());
    let fact = PowerFact::Woke { path: "redfish".into(), took_millis: 1000 };
    let command = Command::NotePower { server: doubtful, at_unix_millis: 1, fact };
    assert_eq!(world.state.apply(&command), Reply::Done);
    world.event(Event::Applied { own: false });
    world.run(60_000);
    assert!(world.hibernates(0), "{}", world.states());
}
