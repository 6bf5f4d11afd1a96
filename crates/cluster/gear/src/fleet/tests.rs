use super::*;
use crate::{Policy, check_wish};
use ebb_types::{GearSteps, LoadOf};

const STEP: Duration = Duration::from_secs(60);

const OFF: DepthSpec =
    DepthSpec { depth: Depth::Off, watts: Watts(5.4), joules: Joules(1839.0), wake: STEP, wears: true };
const STANDBY: DepthSpec = DepthSpec {
    depth: Depth::Standby,
    watts: Watts(10.0),
    joules: Joules(900.0),
    wake: Duration::from_secs(15),
    wears: false,
};

fn policy() -> FleetPolicy {
    FleetPolicy {
        replicas: 3,
        g_min: 1,
        hour: Duration::from_secs(3600),
        hours_per_day: 24,
        idle: Watts(61.8),
        depths: vec![OFF],
        dwell: Duration::from_secs(900),
        cycles_per_day: 2.0,
        short_goal: 0.01,
        rotate_days: 7,
    }
}

/// A fleet under one load value per minute; a woken server is up one minute later.
struct World {
    fleet: Fleet,
    history: History,
    minute: u64,
    waking: Vec<ServerId>,
    /// The events: minute, server, and whether it was woken.
    shifts: Vec<(u64, ServerId, bool)>,
    /// Events after which one server was woken and another one let go.
    swaps: u32,
}

impl World {
    fn new(policy: FleetPolicy, servers: u16) -> World {
        let members = (0..servers).map(|id| (ServerId(id), GearGroup((id % 3) as u8), State::Awake, true));
        let calendar = Calendar { origin: Moment::ZERO, elapsed: Duration::ZERO };
        let fleet = Fleet::new(policy, calendar, Moment::ZERO, Mode::Auto, members).expect("a fleet");
        World {
            fleet,
            history: History::default(),
            minute: 0,
            waking: Vec::new(),
            shifts: Vec::new(),
            swaps: 0,
        }
    }

    fn step(&mut self, load: Option<f64>) {
        self.minute += 1;
        let now = Moment::ZERO + STEP * self.minute as u32;
        let mut commands = Vec::new();
        for server in std::mem::take(&mut self.waking) {
            self.is(server, State::Awake);
        }
        let event = load.map_or(Event::Tick, |load| Event::Sample { load: Load(load), interval: STEP });
        self.fleet.on(now, &self.history, event, &mut commands);
        self.obey(commands);
    }

    fn now(&self) -> Moment {
        Moment::ZERO + STEP * self.minute as u32
    }

    fn is(&mut self, server: ServerId, state: State) {
        let event = Event::Is { server, state, may_sleep: true };
        self.fleet.on(self.now(), &self.history, event, &mut Vec::new());
    }

    fn tell(&mut self, event: Event) {
        let mut commands = Vec::new();
        self.fleet.on(self.now(), &self.history, event, &mut commands);
        self.obey(commands);
    }

    fn obey(&mut self, commands: Vec<Command>) {
        let woken = commands.iter().any(|c| matches!(c, Command::Wake(_)));
        let slept = commands.iter().any(|c| matches!(c, Command::Sleep(_)));
        self.swaps += u32::from(woken && slept);
        let recorded = commands.iter().any(|c| matches!(c, Command::RecordHour { .. }));
        for command in commands {
            match command {
                Command::Wake(server) => {
                    if matches!(self.fleet.state(server), Some(State::Asleep(_))) {
                        self.is(server, State::Waking);
                        self.waking.push(server);
                        self.shifts.push((self.minute, server, true));
                    }
                }
                Command::Sleep(server) => {
                    let depth = self.fleet.depth(server).expect("a server");
                    self.is(server, State::Asleep(depth));
                    self.shifts.push((self.minute, server, false));
                }
                Command::RecordHour { hour, peak, .. } => self.history.record(hour, peak, 24),
                Command::Bug(bug) => panic!("{bug:?}"),
            }
        }
        // The replicated state has the hour: the leader looks again.
        if recorded {
            self.tell(Event::Tick);
        }
    }

    /// A new leader takes over.
    fn lead(&mut self) {
        let found: Vec<_> = (0..self.fleet.servers() as u16)
            .map(|id| {
                let server = ServerId(id);
                let state = self.fleet.state(server).expect("a server");
                (server, GearGroup((id % 3) as u8), state, !self.sleeps(server))
            })
            .collect();
        let calendar = Calendar { origin: Moment::ZERO, elapsed: Duration::ZERO };
        let policy = self.fleet.policy.clone();
        self.fleet = Fleet::new(policy, calendar, self.now(), self.fleet.mode(), found).expect("a fleet");
    }

    fn sleeps(&self, server: ServerId) -> bool {
        matches!(self.fleet.state(server), Some(State::Asleep(_)))
    }

    fn on(&self) -> u32 {
        self.fleet.count(|state| matches!(state, State::Awake | State::Waking))
    }
}

/// Twelve quiet hours and twelve busy ones.
fn daily(minute: u64) -> f64 {
    if minute % 1440 < 720 { 3.0 } else { 20.0 }
}

#[test]
fn without_a_forecast_every_server_is_awake_and_on_the_first_day_the_last_hour_is_one() {
    let mut world = World::new(policy(), 30);
    for _ in 0..59 {
        world.step(Some(0.0));
        assert_eq!(world.on(), 30);
    }
    for _ in 59..75 {
        world.step(Some(0.0));
    }
    assert_eq!(world.on(), 10);
}

#[test]
fn the_quiet_half_of_the_day_is_slept_through_and_the_busy_one_met_in_time() {
    let mut world = World::new(policy(), 30);
    let (mut short, mut quiet) = (0, 0.0);
    for minute in 0..10 * 1440 {
        let load = daily(minute);
        if minute >= 5 * 1440 {
            short += u32::from(world.fleet.count(|state| state == State::Awake) < load as u32);
            quiet += if load < 10.0 { f64::from(world.on()) / (5.0 * 720.0) } else { 0.0 };
        }
        world.step(Some(load));
    }
    assert!(quiet < 15.0, "{quiet} servers awake on average while ten are enough");
    // The operator accepts 1 % of the time: 72 minutes.
    assert!(short <= 16, "{short} minutes short in five days");
}

#[test]
fn load_that_outruns_the_forecast_wakes_servers_at_once() {
    let mut world = World::new(policy(), 30);
    for minute in 0..8 * 1440 + 300 {
        world.step(Some(daily(minute)));
    }
    let before = world.on();
    world.step(Some(26.0));
    assert!(before < 20 && world.on() >= 26, "from {before} to {}", world.on());
}

#[test]
fn a_server_that_fails_is_replaced() {
    let mut world = World::new(policy(), 30);
    for minute in 0..8 * 1440 + 300 {
        world.step(Some(daily(minute)));
    }
    let before = world.on();
    let awake = |id: &ServerId| world.fleet.state(*id) == Some(State::Awake);
    let victim = (0..30).map(ServerId).find(awake).unwrap();
    world.is(victim, State::Gone);
    world.tell(Event::Tick);
    assert_eq!(world.on(), before, "another one wakes in its place");
    assert_eq!(world.fleet.count(|state| state == State::Gone), 1);
    world.is(victim, State::Awake);
    world.tell(Event::Tick);
    assert_eq!(world.on(), before + 1, "no server is sent to sleep just because it is back");
}

#[test]
fn a_server_that_cannot_go_to_sleep_yet_is_the_first_to_be_wanted_again() {
    let mut world = World::new(policy(), 30);
    for minute in 0..8 * 1440 + 300 {
        world.step(Some(daily(minute)));
    }
    let mut commands = Vec::new();
    let busy = (0..30).map(ServerId).find(|id| world.sleeps(*id)).unwrap();
    world.is(busy, State::Awake);
    world.fleet.on(
        world.now(),
        &world.history,
        Event::Sample { load: Load(26.0), interval: STEP },
        &mut commands,
    );
    assert_eq!(commands.first(), Some(&Command::Wake(busy)));
}

#[test]
fn a_change_of_leader_moves_no_server() {
    for hours in [0, 5, 11, 13, 20] {
        let mut world = World::new(policy(), 30);
        for minute in 0..8 * 1440 + hours * 60 {
            world.step(Some(daily(minute)));
        }
        let before = world.shifts.len();
        world.lead();
        world.tell(Event::Tick);
        world.step(Some(daily(hours * 60)));
        assert_eq!(world.shifts.len(), before, "{hours} hours into the day");
    }
}

#[test]
fn an_operator_holds_a_number_of_servers_or_a_gear_against_load_and_dwell() {
    let mut world = World::new(policy(), 12);
    for servers in [7, 4, 5, 12] {
        world.tell(Event::Mode(Mode::Manual(GearWish::Servers(servers))));
        assert_eq!(world.fleet.wants().count() as u32, servers);
        assert!(
            (0..12).step_by(3).all(|id| world.fleet.wants().any(|s| s.0 == id)),
            "the lowest gear is awake"
        );
        world.step(Some(11.0));
        assert_eq!(world.on(), servers);
    }
    world.tell(Event::Mode(Mode::Manual(GearWish::Gear(2))));
    assert!(world.fleet.wants().all(|server| server.0 % 3 < 2) && world.on() == 8);
    assert_eq!(world.fleet.gear(world.now()), 2);
    world.tell(Event::Mode(Mode::Auto));
    assert_eq!(world.on(), 12, "nothing is known of the load");
}

#[test]
fn a_server_that_may_not_sleep_counts_and_stays() {
    let mut world = World::new(policy(), 12);
    world.tell(Event::Is { server: ServerId(5), state: State::Awake, may_sleep: false });
    world.tell(Event::Mode(Mode::Manual(GearWish::Servers(5))));
    let wants: Vec<u16> = world.fleet.wants().map(|server| server.0).collect();
    assert_eq!((wants.len(), wants.contains(&5)), (5, true), "{wants:?}");
}

#[test]
fn the_depth_of_sleep_follows_from_the_quiet_that_is_expected() {
    let mut world = World::new(FleetPolicy { depths: vec![STANDBY, OFF], ..policy() }, 30);
    let best = |world: &World, minutes: f64, credit| world.fleet.best_depth(minutes * 60.0, credit);
    assert_eq!(best(&world, 0.2, true), None);
    assert_eq!(best(&world, 20.0, true), Some(Depth::Standby), "a power cycle costs an hour at first");
    assert_eq!(best(&world, 24.0 * 60.0, true), Some(Depth::Off));
    assert_eq!(best(&world, 24.0 * 60.0, false), Some(Depth::Standby), "its power cycles are spent");
    world.is(ServerId(4), State::Asleep(Depth::Off));
    world.is(ServerId(7), State::Asleep(Depth::Standby));
    for sleeper in [ServerId(4), ServerId(7)] {
        world.fleet.members.change(sleeper, |member| member.wanted = false);
    }
    let rested = |world: &World| -> Vec<ServerId> {
        world.fleet.members.in_turn(Line::Rested, &[0, 1, 2].map(GearGroup)).collect()
    };
    assert_eq!(rested(&world), [ServerId(7), ServerId(4)], "the shallow sleeper wakes first");
    world.fleet.set_wake(Depth::Standby, STEP * 2);
    assert_eq!(rested(&world), [ServerId(4), ServerId(7)], "by the time that it takes, as measured");
    assert_eq!((world.fleet.lead(), world.fleet.coming), (Duration::ZERO, 0), "nobody is missing");
    for (coming, lead) in [(29, STEP), (30, STEP * 2), (99, STEP * 2)] {
        world.fleet.coming = coming;
        assert_eq!(world.fleet.lead(), lead, "{coming} servers");
    }
}

#[test]
fn the_dry_run_names_the_servers_that_the_coming_day_wakes_and_changes_nothing() {
    let mut world = World::new(policy(), 30);
    for minute in 0..8 * 1440 {
        world.step(Some(daily(minute)));
    }
    let before: Vec<ServerId> = world.fleet.wants().collect();
    let plan = world.fleet.plan(world.now(), &world.history, 24);
    assert_eq!(world.fleet.wants().collect::<Vec<_>>(), before);
    let planned = |hour: usize| plan[hour].awake.len();
    assert!(planned(5) < 15 && planned(15) >= 20, "{:?}", (0..24).map(planned).collect::<Vec<_>>());
    assert_eq!((plan.len(), plan[0].hour), (24, 8 * 24));
}

#[test]
fn servers_take_turns() {
    let mut world = World::new(policy(), 12);
    let mut asleep = [0u32; 12];
    for minute in 0..26 * 1440 {
        world.step(Some(daily(minute) / 2.5));
        if minute >= 5 * 1440 {
            for id in 0..12 {
                asleep[usize::from(id)] += u32::from(world.sleeps(ServerId(id)));
            }
        }
    }
    let (least, most) = (asleep.iter().min().unwrap(), asleep.iter().max().unwrap());
    assert!(*least > 0 && most < &(2 * least), "minutes asleep: {asleep:?}");
    assert_eq!(world.swaps, 0, "the one that takes its turn is up before another one sleeps");
}

/// A small generator: the same seed gives the same loads.
fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 40) as f64 / (1u64 << 24) as f64
}

#[test]
fn dwell_budget_and_floor_hold_under_any_load() {
    for seed in 1..=12u64 {
        let mut state = seed;
        let mut policy = policy();
        policy.cycles_per_day = 0.5 + 4.0 * random(&mut state);
        policy.dwell = STEP * (1.0 + 60.0 * random(&mut state)) as u32;
        policy.short_goal = 0.001 + 0.3 * random(&mut state);
        policy.rotate_days = (random(&mut state) * 4.0) as u32;
        let servers = 9 + (random(&mut state) * 20.0) as u16;
        let mut world = World::new(policy.clone(), servers);
        let mut level = 5.0;
        for minute in 0..9 * 1440u64 {
            if random(&mut state) < 0.02 {
                level = f64::from(servers) * random(&mut state) * random(&mut state);
            }
            let gap = minute % 3000 > 2900;
            world.step((!gap).then(|| level * (0.8 + 0.4 * random(&mut state))));
            assert!(world.on() >= floor_servers(u32::from(servers) / 3, 3), "seed {seed}, minute {minute}");
        }
        assert!(world.shifts.len() > 50, "seed {seed}: nothing happened");
        for id in (0..servers).map(ServerId) {
            let own: Vec<(u64, bool)> =
                world.shifts.iter().filter(|(_, s, _)| *s == id).map(|(m, _, up)| (*m, *up)).collect();
            for pair in own.windows(2).filter(|pair| pair[0].1) {
                // Up one minute after it was woken, then awake for the dwell time.
                let awake = STEP * (pair[1].0 - pair[0].0 - 1) as u32;
                assert!(!pair[1].1 && awake >= policy.dwell, "seed {seed}, {id}: awake for {awake:?}");
            }
            let sleeps: Vec<u64> = own.iter().filter(|(_, up)| !up).map(|(minute, _)| *minute).collect();
            for (i, first) in sleeps.iter().enumerate() {
                for (j, last) in sleeps.iter().enumerate().skip(i) {
                    let days = (last - first) as f64 / 1440.0;
                    let allowed = policy.cycles_per_day * (days + CARRY_DAYS);
                    assert!(
                        (j - i) as f64 <= allowed,
                        "seed {seed}, {id}: {} cycles in {days} days",
                        j - i + 1
                    );
                }
            }
        }
    }
}

/// Racks of different sizes give gear groups of different sizes. What was possible when it was set may not be after a
/// server is lost, so every wish comes.
#[test]
fn what_is_set_by_hand_is_held_in_every_turn_whatever_the_gear_groups_have() {
    for seed in 0..200 {
        let mut random = ebb_types::Random::new(seed);
        let sizes: Vec<u32> = (0..3).map(|_| 1 + random.below(6) as u32).collect();
        let (g_min, rotate_days) = (1 + random.below(2) as u8, random.below(3) as u32);
        let schedule = ebb_types::Schedule { g_min, rotate_days, ..ebb_types::Schedule::default() };
        let whole = Policy::of(&schedule, sizes.clone());
        let groups = (0..3u8).flat_map(|group| (0..sizes[usize::from(group)]).map(move |_| GearGroup(group)));
        let members = (0u16..).map(ServerId).zip(groups).map(|(id, group)| (id, group, State::Awake, true));
        let calendar = Calendar { origin: Moment::ZERO, elapsed: Duration::ZERO };
        let policy = FleetPolicy { g_min, rotate_days, ..policy() };
        let mut fleet = Fleet::new(policy, calendar, Moment::ZERO, Mode::Auto, members).expect("a fleet");
        for turn in 0..8 {
            let wish = match random.below(2) {
                0 => GearWish::Gear(random.below(5) as u8),
                _ => GearWish::Servers(random.below(u64::from(whole.servers()) + 2) as u32),
            };
            let possible = check_wish(wish, GearSteps::Servers, &whole).is_ok();
            let begins = 6 * turn;
            for day in begins..begins + 6 {
                let now = Moment::ZERO + Duration::from_secs(86_400) * day;
                let event = if day == begins { Event::Mode(Mode::Manual(wish)) } else { Event::Tick };
                fleet.on(now, &History::default(), event, &mut Vec::new());
                let on = fleet.wants().count() as u32;
                let awake = |gear| whole.servers_awake(&whole.awake_groups(gear, u64::from(day) * 24));
                let held = match wish {
                    _ if !possible => on >= 3.max(awake(g_min)),
                    GearWish::Gear(gear) => (on, fleet.gear(now)) == (awake(gear), gear) && on >= 3,
                    GearWish::Servers(servers) => on == servers,
                };
                assert!(held, "seed {seed}, day {day}: {on} of {sizes:?} with {wish:?}");
            }
        }
    }
}

#[test]
fn a_minute_looks_at_the_servers_that_it_moves_and_at_few_others() {
    let mut world = World::new(FleetPolicy { rotate_days: 2, ..policy() }, 900);
    let mut most = 0;
    for minute in 0..9 * 1440 {
        // A load that the forecast does not know to the digit, with a burst now and then.
        let wave = 1.0 + (minute % 97) as f64 / 1000.0;
        let burst = if minute % 1009 < 5 { 200.0 } else { 0.0 };
        let (looked, shifts) = (world.fleet.members.looked(), world.shifts.len());
        let arrive = world.waking.len();
        world.step(Some(daily(minute) * 30.0 * wave + burst));
        let moved = (world.shifts.len() - shifts + arrive) as u64;
        let looked = world.fleet.members.looked() - looked;
        assert!(looked <= 11 * moved + 20, "minute {minute}: {looked} servers looked at, {moved} moved");
        most = most.max(moved);
    }
    assert!(most > 100 && world.shifts.len() > 1000, "{most} servers at once, {} in all", world.shifts.len());
}

#[test]
fn policies_that_make_no_sense_are_refused() {
    let refused = |change: &dyn Fn(&mut FleetPolicy)| {
        let mut policy = policy();
        change(&mut policy);
        policy.check().unwrap_err().to_string()
    };
    assert!(refused(&|p| p.g_min = 4).contains("g_min"));
    assert!(refused(&|p| p.hours_per_day = 0).contains("day"));
    assert!(refused(&|p| p.depths.clear()).contains("depth"));
    assert!(refused(&|p| p.depths[0].watts = Watts(-1.0)).contains("not negative"));
    assert!(refused(&|p| p.cycles_per_day = 0.0).contains("above 0"));
    assert!(refused(&|p| p.short_goal = f64::NAN).contains("0.5"));
}

#[test]
fn a_fleet_that_takes_over_continues_with_the_prices_that_were_learnt() {
    let mut world = World::new(policy(), 12);
    let start = world.fleet.prices();
    for minute in 0..3 * 1440u64 {
        world.step(Some(if minute % 1440 < 400 { 11.0 } else { 2.0 }));
    }
    let learnt = world.fleet.prices();
    assert!(learnt.shortage != start.shortage && learnt.power_cycle != start.power_cycle, "{learnt:?}");
    let mut next = World::new(policy(), 12).fleet;
    next.take_over_prices(learnt);
    for (found, right) in
        [(next.prices().shortage, learnt.shortage), (next.prices().power_cycle, learnt.power_cycle)]
    {
        assert!((found / right - 1.0).abs() < 1e-12, "{found} is not {right}");
    }
    next.take_over_prices(Prices { shortage: 1e9, power_cycle: 1e-9 });
    assert_eq!(
        next.prices().shortage.round(),
        *SHORT_PRICE.end(),
        "within its bounds, whatever is taken over"
    );
}

#[test]
fn every_server_has_a_reason_to_be_awake_or_not() {
    let mut world = World::new(policy(), 30);
    let reasons = |world: &World| -> Vec<Why> {
        (0..30).filter_map(|id| world.fleet.why(world.now(), ServerId(id))).collect()
    };
    let count = |world: &World, why: Why| reasons(world).iter().filter(|reason| **reason == why).count();
    world.step(Some(3.0));
    assert_eq!((count(&world, Why::LowestGear), count(&world, Why::NoForecast)), (10, 20));
    for minute in 1..8 * 1440 + 900 {
        world.step(Some(daily(minute)));
    }
    let servers = world.on();
    let by = |of| count(&world, Why::Load { servers, of });
    assert_eq!(by(LoadOf::ThisHour) + by(LoadOf::Now), servers as usize - 10, "{:?}", reasons(&world));
    for minute in 900..1440 + 300 {
        world.step(Some(daily(minute)));
    }
    let asleep = 30 - world.on() as usize;
    assert_eq!((count(&world, Why::LowestGear), count(&world, Why::NotNeeded)), (10, asleep));
    world.step(Some(26.0));
    let servers = world.on();
    assert_eq!(count(&world, Why::Load { servers, of: LoadOf::Now }), servers as usize - 10);
    world.tell(Event::Mode(Mode::Manual(GearWish::Servers(12))));
    assert_eq!((count(&world, Why::Administrator), count(&world, Why::NotNeeded)), (12, 18));
    assert_eq!(world.fleet.why(world.now(), ServerId(30)), None);
}

#[test]
fn an_hour_of_many_times_the_clusters_load_counts_as_one_of_all_servers() {
    let expected = |at: u64, burst: f64| {
        let mut world = World::new(policy(), 30);
        for hour in 20..30 {
            world.history.record(hour, Load(if hour == at { burst } else { 12.0 }), 24);
        }
        world.minute = 30 * 60;
        world.step(Some(11.0));
        (world.fleet.median(), world.fleet.wants().count())
    };
    for at in 20..30 {
        assert_eq!(expected(at, 600.0), expected(at, 30.0), "hour {at}");
    }
}
