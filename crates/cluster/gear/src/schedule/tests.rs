use super::*;
use crate::State;

const HOUR: Duration = Duration::from_secs(3600);
const SECOND: Duration = Duration::from_secs(1);

/// One read per second is a load of one server.
fn policy(group_sizes: &[u32]) -> Policy {
    let rates =
        ServerRates { read_iops: 1.0, write_iops: 1.0, read_bytes_per_s: 1e18, write_bytes_per_s: 1e18 };
    Policy {
        group_sizes: group_sizes.to_vec(),
        g_min: 1,
        rates,
        hour: HOUR,
        hours_per_day: 24,
        dwell: Duration::from_secs(600),
        lead: Duration::ZERO,
        rotate_days: 0,
    }
}

/// Its servers, gear group by gear group.
fn members(policy: &Policy) -> BTreeMap<ServerId, GearGroup> {
    let groups = (0..).map(GearGroup).zip(&policy.group_sizes);
    let groups = groups.flat_map(|(group, size)| std::iter::repeat_n(group, *size as usize));
    (0..).map(ServerId).zip(groups).collect()
}

fn scheduler(policy: Policy, calendar: Calendar, now: Moment, gear: u8) -> Scheduler {
    let members = members(&policy);
    Scheduler::new(policy, members, calendar, now, Mode::Auto, gear).unwrap()
}

/// A scheduler, its replicated history, and a clock.
struct World {
    scheduler: Scheduler,
    history: History,
    now: Moment,
    shifts: Vec<(u64, u8, Vec<GearGroup>)>,
    recorded: Vec<(u64, Load)>,
}

impl World {
    fn new(policy: Policy) -> World {
        let calendar = Calendar { origin: Moment::ZERO, elapsed: Duration::ZERO };
        let gear = policy.replicas();
        World {
            scheduler: scheduler(policy, calendar, Moment::ZERO, gear),
            history: History::default(),
            now: Moment::ZERO,
            shifts: Vec::new(),
            recorded: Vec::new(),
        }
    }

    /// Fills the history with days of the same hourly peaks and starts after them.
    fn after_days(policy: Policy, days: u64, peak: impl Fn(u64) -> f64) -> World {
        let mut world = World::new(policy.clone());
        let day = u64::from(policy.hours_per_day);
        for hour in 0..days * day {
            world.history.record(hour, Load(peak(hour % day)), policy.hours_per_day);
        }
        let elapsed = policy.hour * (days * day) as u32;
        let calendar = Calendar { origin: Moment::ZERO, elapsed };
        let gear = policy.replicas();
        world.scheduler = scheduler(policy, calendar, Moment::ZERO, gear);
        world
    }

    fn send(&mut self, event: Event) {
        let mut out = Vec::new();
        self.scheduler.on(self.now, &self.history, event, &mut out);
        let mut moved = BTreeMap::new();
        for command in out {
            match command {
                Command::Wake(server) => moved.extend([(server, true)]),
                Command::Sleep(server) => moved.extend([(server, false)]),
                Command::RecordHour { hour, peak, .. } => {
                    let hours = self.scheduler.policy.hours_per_day;
                    self.history.record(hour, peak, hours);
                    self.recorded.push((hour, peak));
                }
                Command::Bug(bug) => panic!("{bug:?}"),
            }
        }
        if !moved.is_empty() {
            let awake = self.scheduler.awake.clone().expect("it has decided");
            let wanted = self.scheduler.members.iter().map(|(id, group)| (*id, awake.contains(group)));
            assert!(wanted.eq(moved), "every server is named");
            self.shifts.push((self.now.since(Moment::ZERO).as_secs(), self.scheduler.gear, awake));
        }
    }

    /// `seconds` samples of one second each at constant load.
    fn load_for(&mut self, load: u64, seconds: u64) {
        for _ in 0..seconds {
            self.now = self.now + SECOND;
            self.send(Event::Sample { load: Load(load as f64), interval: SECOND });
        }
    }

    fn gears(&self) -> Vec<(u64, u8)> {
        self.shifts.iter().map(|(at, gear, _)| (*at, *gear)).collect()
    }
}

#[test]
fn the_gear_is_the_lowest_that_sustains_the_load() {
    // N = 9, r = 3: each gear sustains three servers' work.
    for (load, gear) in [(0.0, 1), (0.1, 1), (3.0, 1), (3.001, 2), (6.0, 2), (6.5, 3), (9.0, 3), (50.0, 3)] {
        assert_eq!(gear_for(Load(load), 9, 3, 1), gear, "load {load}");
    }
    assert_eq!(gear_for(Load(0.0), 9, 3, 2), 2);
    // N = 10: a gear is 3.33 servers.
    assert_eq!(gear_for(Load(10.0 / 3.0), 10, 3, 1), 1);
    assert_eq!(gear_for(Load(3.4), 10, 3, 1), 2);
    assert_eq!(gear_for(Load(f64::INFINITY), 9, 3, 1), 3);
    let formula = [0.0, 3.0, 3.1, 30.0].map(|load| gear_by_formula(Load(load), 9, 3));
    assert_eq!(formula, [0, 1, 2, 10], "before any constraint");
}

#[test]
fn a_load_of_exactly_one_gear_never_costs_a_second() {
    for servers in 1..500u32 {
        for replicas in 1..=4u8 {
            for gear in 1..=replicas {
                let capacity = Load(f64::from(servers) / f64::from(replicas) * f64::from(gear));
                assert_eq!(gear_for(capacity, servers, replicas, 1), gear, "{servers} {replicas}");
            }
        }
    }
}

#[test]
fn r_awake_servers_are_the_floor() {
    assert_eq!([(1, 3), (3, 3), (4, 3), (10, 3)].map(|(lowest, r)| floor_servers(lowest, r)), [3, 3, 4, 10]);
    let sizes: [&[u32]; 7] = [&[1, 1, 1], &[2, 2, 2], &[3, 3, 2], &[3, 3, 3], &[4, 4, 4], &[2, 2], &[2, 1]];
    assert_eq!(sizes.map(|sizes| lowest_gear(1, sizes, 7)), [3, 2, 2, 1, 1, 1, 2]);
    // Without turns only the first gear groups count, and with them every one.
    let uneven: [&[u32]; 3] = [&[1, 4, 4], &[4, 4, 1], &[4, 1, 1]];
    assert_eq!(uneven.map(|sizes| lowest_gear(1, sizes, 0)), [2, 1, 1]);
    assert_eq!(uneven.map(|sizes| lowest_gear(1, sizes, 7)), [2, 2, 3]);
    assert_eq!(lowest_gear(2, &[3, 3, 3], 7), 2);
}

/// Racks of different sizes give gear groups of different sizes.
#[test]
fn gear_groups_of_any_sizes_hold_r_servers_and_the_load_in_every_turn() {
    for seed in 0..300 {
        let reproduce = format!("seed {seed}: cargo test -p ebb-gear gear_groups_of_any_sizes");
        let mut random = ebb_types::Random::new(seed);
        let r = 2 + random.below(3) as u8;
        let sizes: Vec<u32> = (0..r).map(|_| 1 + random.below(6) as u32).collect();
        let rotate_days = random.below(3) as u32;
        let g_min = 1 + random.below(u64::from(r)) as u8;
        let policy = Policy { rotate_days, g_min, hours_per_day: 1, ..policy(&sizes) };
        let calendar = Calendar { origin: Moment::ZERO, elapsed: Duration::ZERO };
        let mut scheduler = scheduler(policy.clone(), calendar, Moment::ZERO, r);
        let awake = |gear, hour| policy.servers_awake(&policy.awake_groups(gear, hour));
        let days = || 0..2 * u64::from(r);
        for gear in 1..=r {
            let suffices = gear == r || days().all(|day| awake(gear, day) >= u32::from(r));
            assert_eq!(policy.check_gear(gear).is_ok(), suffices && gear >= g_min, "{reproduce}");
        }
        for day in days() {
            let load = random.below(u64::from(policy.servers()) + 1) as u32;
            assert!(awake(policy.gear_for(Load(load.into())), day) >= load, "{reproduce}");
            let wish = GearWish::Gear(random.below(u64::from(r) + 2) as u8);
            let (now, mut out) = (Moment::ZERO + HOUR * day as u32, Vec::new());
            scheduler.on(now, &History::default(), Event::Mode(Mode::Manual(wish)), &mut out);
            let groups = scheduler.awake.as_ref().expect("it has decided");
            let least = policy.servers().min(r.into());
            assert!(policy.servers_awake(groups) >= least, "{reproduce}: {wish:?} on day {day}");
        }
    }
}

#[test]
fn rotation_gives_every_gear_group_the_same_time_awake() {
    assert_eq!(awake_groups(2, 5, 3, 0), [GearGroup(0), GearGroup(1)]);
    assert_eq!(awake_groups(2, 1, 3, 1), [GearGroup(1), GearGroup(2)]);
    assert_eq!(awake_groups(2, 2, 3, 1), [GearGroup(2), GearGroup(0)]);
    for rotate_days in 1..=3 {
        for gear in 1..=3 {
            let mut days = [0; 3];
            for day in 0..u64::from(rotate_days) * 3 {
                awake_groups(gear, day, 3, rotate_days).iter().for_each(|g| days[usize::from(g.0)] += 1);
            }
            assert_eq!(days, [u32::from(gear) * rotate_days; 3]);
        }
    }
}

#[test]
fn the_oracle_knows_the_peaks() {
    let peaks = [1.0, 4.0, 8.0].map(Load);
    let alike = policy(&[3, 3, 3]);
    assert_eq!(oracle(5, &peaks, &alike), Schedule { first_hour: 5, gears: vec![1, 2, 3] });
    assert_eq!(oracle(0, &peaks, &Policy { g_min: 2, ..alike }).gears, [2, 2, 3]);
    // By the formula, two gears have six servers; the two smallest gear groups have five.
    let peaks = [3.0, 5.0, 5.5, 6.0].map(Load);
    assert_eq!(oracle(0, &peaks, &policy(&[1, 4, 4])).gears, [2, 2, 3, 3]);
}

#[test]
fn a_new_cluster_keeps_every_server_awake_until_it_has_seen_an_hour() {
    let mut world = World::new(policy(&[3, 3, 3]));
    world.load_for(1, 3600 - 1);
    assert_eq!((world.gears(), world.recorded.len()), (vec![(1, 3)], 0));
    world.load_for(1, 1);
    assert_eq!(world.recorded, [(0, Load(1.0))]);
    // The record comes back through the replicated state before the next event.
    world.load_for(1, 1);
    assert_eq!(world.gears(), [(1, 3), (3601, 1)]);
    assert_eq!(world.shifts[1].2, [GearGroup(0)]);
}

#[test]
fn the_day_follows_its_forecast() {
    // Busy from hour 8 to 20, as on the days before.
    let busy = |hour: u64| (8..20).contains(&hour);
    let mut world = World::after_days(policy(&[3, 3, 3]), 3, |hour| if busy(hour) { 5.0 } else { 1.0 });
    for hour in 0..24 {
        world.load_for(if busy(hour) { 5 } else { 1 }, 3600);
    }
    // Down after the first dwell time, up on the hour, down one dwell time after the load is gone.
    assert_eq!(world.gears(), [(1, 3), (600, 1), (8 * 3600, 2), (20 * 3600 + 601, 1)]);
}

#[test]
fn an_up_shift_is_made_the_lead_time_before_its_hour() {
    let lead = Policy { lead: Duration::from_secs(120), ..policy(&[3, 3, 3]) };
    let mut world = World::after_days(lead, 1, |hour| if hour == 2 { 5.0 } else { 1.0 });
    world.load_for(1, 2 * 3600);
    assert_eq!(world.gears(), [(1, 3), (600, 1), (2 * 3600 - 120, 2)]);
}

#[test]
fn load_beyond_the_forecast_shifts_up_at_once_and_down_only_after_the_dwell_time() {
    let mut world = World::after_days(policy(&[3, 3, 3]), 1, |_| 1.0);
    world.load_for(1, 1000);
    world.load_for(8, 1);
    assert_eq!(world.gears(), [(1, 3), (600, 1), (1001, 3)]);
    world.load_for(1, 600);
    assert_eq!(world.gears().len(), 3);
    world.load_for(1, 1);
    assert_eq!(world.gears().last(), Some(&(1602, 1)));
}

#[test]
fn a_flickering_load_does_not_flap() {
    let mut world = World::after_days(policy(&[3, 3, 3]), 1, |_| 1.0);
    world.load_for(1, 700);
    for _ in 0..20 {
        world.load_for(5, 1);
        world.load_for(1, 500);
    }
    assert_eq!(world.gears(), [(1, 3), (600, 1), (701, 2)]);
}

#[test]
fn a_low_load_does_not_override_a_high_forecast() {
    let mut world = World::after_days(policy(&[3, 3, 3]), 2, |_| 8.0);
    world.load_for(0, 2 * 3600);
    // The forecast of every hour is 3; the recorded hours without load affect only the same hours of later days.
    assert_eq!(world.gears(), [(1, 3)]);
}

#[test]
fn g_min_and_the_floor_bound_the_gear() {
    let mut world = World::after_days(Policy { g_min: 2, ..policy(&[3, 3, 3]) }, 1, |_| 0.0);
    world.load_for(0, 700);
    assert_eq!(world.scheduler.gear, 2);
    let mut world = World::after_days(policy(&[2, 2, 2]), 1, |_| 0.0);
    world.load_for(0, 700);
    assert_eq!(world.scheduler.gear, 2, "one gear group has two servers, and a write needs three");
}

#[test]
fn the_operator_overrides_forecast_and_load_until_auto() {
    let mut world = World::after_days(policy(&[3, 3, 3]), 1, |_| 8.0);
    world.load_for(8, 10);
    world.send(Event::Mode(Mode::Manual(GearWish::Gear(1))));
    world.load_for(8, 3600);
    assert_eq!(world.gears(), [(1, 3), (10, 1)]);
    assert_eq!(world.scheduler.plan(world.now, &world.history, 2)[1].gear, 1);
    world.send(Event::Mode(Mode::Auto));
    assert_eq!(world.gears().last(), Some(&(3610, 3)));
    let policy = &world.scheduler.policy;
    assert_eq!(policy.check_gear(2), Ok(()));
    let error = policy.check_gear(4).unwrap_err();
    assert_eq!((error.lowest, error.highest), (1, 3));
    assert!(policy.check_gear(0).is_err());
    world.send(Event::Mode(Mode::Manual(GearWish::Gear(0))));
    assert_eq!(world.scheduler.gear, 1);
}

#[test]
fn rotation_moves_the_lowest_gear_at_the_day_boundary() {
    let rotating = Policy { rotate_days: 1, ..policy(&[3, 3, 3]) };
    let mut world = World::after_days(rotating, 3, |_| 1.0);
    world.load_for(1, 2 * 24 * 3600);
    let lowest: Vec<(u64, &[GearGroup])> =
        world.shifts.iter().map(|(at, _, awake)| (*at, &awake[..])).collect();
    let all = [GearGroup(0), GearGroup(1), GearGroup(2)];
    let expected: [(u64, &[GearGroup]); 4] =
        [(1, &all), (600, &all[..1]), (86400, &all[1..2]), (2 * 86400, &all[2..])];
    assert_eq!(lowest, expected);
}

#[test]
fn an_hour_that_was_not_watched_to_its_end_is_absent() {
    let mut world = World::new(policy(&[3, 3, 3]));
    // A leader that took over during hour 0 does not know its peak.
    let calendar = Calendar { origin: Moment::ZERO, elapsed: SECOND };
    world.scheduler = scheduler(policy(&[3, 3, 3]), calendar, Moment::ZERO, 3);
    world.load_for(2, 2 * 3600);
    assert_eq!(world.recorded, [(1, Load(2.0))]);
    // No samples for three hours, then one whole hour without a sample.
    world.now = world.now + HOUR * 3;
    world.send(Event::Tick);
    world.now = world.now + HOUR;
    world.send(Event::Tick);
    assert_eq!(world.recorded.len(), 1);
    world.load_for(1, 3600);
    assert_eq!(world.recorded, [(1, Load(2.0)), (6, Load(1.0))]);
}

#[test]
fn a_sample_across_the_boundary_belongs_to_the_hour_that_it_mostly_covers() {
    let mut world = World::new(policy(&[3, 3, 3]));
    world.load_for(1, 2 * 3600 - 1);
    world.now = world.now + Duration::from_secs(2);
    world.send(Event::Sample { load: Load(10.0), interval: Duration::from_secs(100) });
    assert_eq!(world.recorded.last(), Some(&(1, Load(10.0))));
    // Counted only for the past hour.
    world.load_for(1, 3599);
    assert_eq!(world.recorded.last(), Some(&(2, Load(1.0))));
}

#[test]
fn a_new_leader_counts_the_same_hours_and_says_the_shift_again() {
    let mut world = World::after_days(policy(&[3, 3, 3]), 1, |_| 1.0);
    world.load_for(1, 3000);
    assert_eq!(world.scheduler.gear, 1);
    // Another machine: its clock differs, cluster time is the same.
    let now = Moment(77);
    let calendar = Calendar { origin: now, elapsed: HOUR * 24 + Duration::from_secs(3000) };
    let mut heir = scheduler(world.scheduler.policy.clone(), calendar, now, 1);
    let mut out = Vec::new();
    heir.on(now, &world.history, Event::Tick, &mut out);
    let said = |id| if id < 3 { Command::Wake(ServerId(id)) } else { Command::Sleep(ServerId(id)) };
    assert_eq!(out, [0, 1, 2, 3, 4, 5, 6, 7, 8].map(said));
    assert_eq!(heir.hour(now + Duration::from_secs(599)), 24);
    assert_eq!(heir.hour(now + Duration::from_secs(600)), 25);
    out.clear();
    heir.on(now + SECOND, &world.history, Event::Tick, &mut out);
    assert_eq!(out, []);
}

#[test]
fn single_servers_states_decide_nothing() {
    let mut world = World::after_days(policy(&[3, 3, 3]), 1, |_| 1.0);
    world.send(Event::Is { server: ServerId(4), state: State::Gone, may_sleep: false });
    world.send(Event::Seen);
    assert!(world.gears().is_empty());
    world.send(Event::Tick);
    assert_eq!(world.gears(), [(0, 3)]);
}

#[test]
fn every_server_has_a_reason_to_be_awake_or_not() {
    let mut world = World::after_days(policy(&[3, 3, 3]), 1, |_| 5.0);
    world.load_for(5, 700);
    let reasons = |world: &World| [0, 3, 6, 9].map(|id| world.scheduler.why(world.now, ServerId(id)));
    let idle = || Some(Why::NotNeeded);
    assert_eq!(reasons(&world), [Some(Why::LowestGear), Some(Why::Gear { gear: 2 }), idle(), None]);
    world.send(Event::Mode(Mode::Manual(GearWish::Gear(1))));
    assert_eq!(reasons(&world), [Some(Why::Administrator), idle(), idle(), None]);
}

#[test]
fn the_plan_says_what_the_coming_hours_would_be() {
    let world = World::after_days(policy(&[4, 3, 3]), 2, |hour| hour as f64 / 3.0);
    let plan = world.scheduler.plan(Moment::ZERO, &world.history, 24);
    assert_eq!(plan.len(), 24);
    let gears: Vec<u8> = plan.iter().map(|hour| hour.gear).collect();
    // A gear is 10/3 servers: hour 10 fills one, hour 20 two.
    let expected: Vec<u8> = (0..24)
        .map(|hour| {
            if hour <= 10 {
                1
            } else if hour <= 20 {
                2
            } else {
                3
            }
        })
        .collect();
    assert_eq!(gears, expected);
    assert_eq!((plan[0].hour, plan[23].hour), (48, 71));
    assert_eq!([0, 15, 23].map(|hour| plan[hour].awake.len()), [4, 7, 10]);
    assert_eq!(plan[6].forecast, Some(Load(2.0)));
    let unknown = World::new(policy(&[3, 3, 3]));
    let plan = unknown.scheduler.plan(Moment::ZERO, &unknown.history, 1);
    assert_eq!((plan[0].gear, plan[0].forecast, plan[0].awake.len()), (3, None, 9));
}

/// Under any load the gear sustains the present load and the forecast at every moment, stays within its bounds, and
/// never drops within the dwell time after a change.
#[test]
fn under_random_load_the_gear_is_never_too_low_and_never_flaps() {
    for seed in 0..40 {
        let reproduce = format!("seed {seed}: cargo test -p ebb-gear under_random_load");
        let mut random = ebb_types::Random::new(seed);
        let policy = Policy {
            hour: Duration::from_secs(60),
            hours_per_day: 6,
            dwell: Duration::from_secs(10),
            lead: Duration::from_secs(random.below(20)),
            rotate_days: random.below(3) as u32,
            ..policy(&[3, 3, 3])
        };
        let mut world = World::new(policy.clone());
        let mut changed = (0u64, 3u8);
        for second in 1..4000u64 {
            let burst = if random.below(50) == 0 { random.below(10) } else { 0 };
            let tide = (second / 60 % 6) * 2 / 3;
            let planned = world.scheduler.plan(world.now + SECOND, &world.history, 1)[0].gear;
            world.load_for(tide.max(burst), 1);
            let gear = world.scheduler.gear;
            let load = (tide.max(burst) as f64).min(9.0);
            assert!(f64::from(policy.fewest_awake(gear)) >= load, "{reproduce}");
            assert!(gear >= planned, "{reproduce}");
            if gear != changed.1 {
                assert!(gear > changed.1 || second - changed.0 >= 10, "{reproduce}");
                changed = (second, gear);
            }
        }
        assert!(world.recorded.len() > 60, "{reproduce}");
        assert!(world.shifts.iter().any(|(_, gear, _)| *gear == 1), "{reproduce}");
    }
}

#[test]
fn a_wrong_policy_is_named() {
    let good = policy(&[3, 3, 3]);
    assert_eq!(good.check(), Ok(()));
    let wrong = |change: fn(&mut Policy)| {
        let mut policy = good.clone();
        change(&mut policy);
        policy.check().unwrap_err()
    };
    assert!(matches!(wrong(|p| p.group_sizes.clear()), PolicyError::Groups { groups: 0 }));
    assert!(matches!(wrong(|p| p.group_sizes[1] = 0), PolicyError::EmptyGroup { group: GearGroup(1) }));
    assert!(matches!(wrong(|p| p.g_min = 4), PolicyError::GMin { g_min: 4, replicas: 3 }));
    assert!(matches!(wrong(|p| p.g_min = 0), PolicyError::GMin { .. }));
    assert!(matches!(wrong(|p| p.hour = Duration::ZERO), PolicyError::Hour { .. }));
    assert!(matches!(wrong(|p| p.hours_per_day = 0), PolicyError::Day));
    assert!(matches!(wrong(|p| p.lead = HOUR * 2), PolicyError::Lead { .. }));
    assert!(matches!(wrong(|p| p.rates.read_iops = 0.0), PolicyError::Rates(_)));
}
