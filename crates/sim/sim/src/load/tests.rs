use super::*;
use std::path::PathBuf;

const HOUR: Duration = Duration::from_secs(3600);

fn setup(servers: u32) -> Setup {
    Setup {
        servers,
        replicas: 3,
        g_min: 1,
        train_days: 1,
        provision: Provision::Peak,
        power: free_transitions(),
        wake: Duration::from_secs(60),
        dwell: Duration::from_secs(900),
        cycles_per_day: 2.0,
        suspend: None,
        short_goal: 0.03,
        rotate_days: 7,
    }
}

/// Days of three load levels, eight hours each.
fn days(loads: &[[f64; 3]]) -> Series {
    let hours = loads.iter().flat_map(|day| day.iter().flat_map(|load| [Some(*load); 8]));
    Series { interval: HOUR, values: hours.collect() }
}

fn play(case: &Case, policy: Policy) -> Outcome {
    case.play(policy).expect("a policy that runs").0
}

fn parsed(text: &str) -> Result<Series, SeriesError> {
    read(Box::new(std::io::Cursor::new(text.to_owned().into_bytes())), "hourly", &Given::default())
}

#[test]
fn every_policy_saves_what_a_hand_computes() {
    // Nine servers, one unit of load each: gears are 3, 6 and 9 servers, and three is the floor.
    let case = Case::new(setup(9), &days(&[[1.0, 4.0, 9.0], [1.0, 4.0, 9.0]])).unwrap();
    let expected = [
        (Policy::AlwaysOn, 9.0),
        (Policy::NaiveRandom, (7.0 + 8.0 + 9.0) / 3.0),
        (Policy::NaiveGrouped, 6.0),
        (Policy::Sierra, 6.0),
        (Policy::Oracle, 6.0),
        (Policy::ContinuousOracle, (3.0 + 4.0 + 9.0) / 3.0),
        (Policy::CyclesOracle, (3.0 + 4.0 + 9.0) / 3.0),
        (Policy::Ideal, 14.0 / 3.0),
    ];
    for (policy, awake) in expected {
        let outcome = play(&case, policy);
        assert!((outcome.mean_awake - awake).abs() < 1e-9, "{policy:?}: {}", outcome.mean_awake);
        assert!((outcome.savings - (1.0 - awake / 9.0)).abs() < 1e-9, "{policy:?}: {}", outcome.savings);
        assert_eq!(outcome.short_time, 0.0, "{policy:?}");
    }
}

#[test]
fn an_unforeseen_day_leaves_sierra_short() {
    let case = Case::new(setup(9), &days(&[[1.0, 4.0, 9.0], [5.0, 4.0, 9.0]])).unwrap();
    let sierra = play(&case, Policy::Sierra);
    assert!((sierra.short_time - 1.0 / 3.0).abs() < 1e-9);
    assert!((sierra.short_load - 5.0 / 18.0).abs() < 1e-9);
    assert!((sierra.excess_load - 2.0 / 18.0).abs() < 1e-9);
    assert_eq!(play(&case, Policy::Oracle).short_time, 0.0);
}

#[test]
fn overload_is_shortage_whoever_is_awake() {
    // 150 servers' worth on 30, for a third of the time.
    let setup = Setup { provision: Provision::PerServer(1.0), ..setup(30) };
    let case = Case::new(setup, &days(&[[10.0, 20.0, 150.0]; 3])).unwrap();
    for policy in [Policy::AlwaysOn, Policy::Sierra, Policy::Oracle, Policy::ContinuousOracle, Policy::Ebb] {
        let outcome = play(&case, policy);
        assert!(outcome.short_time >= 1.0 / 3.0 - 1e-9, "{outcome:?}");
        assert!(outcome.excess_load >= 120.0 / 180.0 - 1e-9, "{outcome:?}");
    }
}

#[test]
fn a_point_of_the_frontier_is_its_setting_alone_and_says_a_goal_that_it_misses() {
    let case = Case::new(setup(30), &hours(Kind::Weekly, 7, 10)).unwrap();
    let points = frontier(&case, |_, _| {}).unwrap();
    let named: Vec<&Point> = points.iter().filter(|point| point.at_sierras_shortage).collect();
    assert_eq!((points.len(), named.len()), (SETTINGS, 1));
    assert_eq!(named[0].short_goal, play(&case, Policy::Sierra).short_time, "accepted at that point");
    let wears = play(&case, Policy::Sierra).cycles_per_server_per_day;
    assert_eq!(named[0].cycles_per_day, case.setup.cycles_per_day.max(wears));
    for point in &points {
        let mut alone = case.clone();
        (alone.setup.short_goal, alone.setup.cycles_per_day) = (point.short_goal, point.cycles_per_day);
        assert_eq!(play(&alone, Policy::Ebb), point.outcome, "nothing is carried over from other settings");
        assert_eq!(point.goal_met, point.outcome.short_time <= point.short_goal);
        let oracles = Oracles::of(&alone).unwrap();
        assert_eq!(point.shares, oracles.shares(point.outcome.savings), "of oracles with the same budget");
    }
    let mut point = points[0].clone();
    (point.cycles_per_day, point.outcome.short_time, point.goal_met) = (2.172323759791123, 0.0104, false);
    let cells = point_cells(&point);
    assert_eq!((cells[1].as_str(), cells[5].as_str()), ("2.17", "1.04 %, missed"));
    (point.cycles_per_day, point.goal_met) = (8.0, true);
    let cells = point_cells(&point);
    assert_eq!((cells[1].as_str(), cells[5].as_str()), ("8", "1.04 %"));
}

#[test]
fn an_oracle_with_few_cycles_lets_as_many_servers_sleep() {
    // Three cycles in the one day that counts, and six servers that are not needed for a third of it.
    let setup = Setup { cycles_per_day: 1.0 / 3.0, ..setup(9) };
    let case = Case::new(setup, &days(&[[9.0, 1.0, 9.0]; 2])).unwrap();
    let outcome = play(&case, Policy::CyclesOracle);
    assert!((outcome.mean_awake - 8.0).abs() < 1e-9, "{outcome:?}");
    assert!((outcome.cycles_per_server_per_day - 1.0 / 3.0).abs() < 1e-9, "{outcome:?}");
    let shares = Oracles::of(&case).unwrap().shares(1.0 / 18.0);
    assert!((shares.of_cycles_oracle.unwrap() - 0.5).abs() < 1e-9, "{shares:?}");
    assert!((shares.of_continuous_oracle.unwrap() - 0.25).abs() < 1e-9, "{shares:?}");
    // A depth that wears nothing is not bounded by cycles.
    let suspend = Some(Suspend { watts: ebb_types::Watts(10.0), wake: Duration::from_secs(15) });
    let case = Case { setup: Setup { suspend, ..case.setup.clone() }, ..case };
    assert_eq!(Oracles::of(&case).unwrap().shares(0.1).of_cycles_oracle, None);
}

#[test]
fn an_oracle_with_a_budget_is_never_short_and_keeps_it() {
    let mut series = service(8, 6);
    let free = Case::new(Setup { train_days: 2, cycles_per_day: 1e6, ..setup(30) }, &series).unwrap();
    let [all, any] = [Policy::CyclesOracle, Policy::ContinuousOracle].map(|policy| play(&free, policy));
    assert!((all.savings - any.savings).abs() < 1e-9, "{all:?} with any number of cycles, {any:?}");
    let within = |series: &Series, cycles_per_day: f64| {
        let case = Case::new(Setup { train_days: 2, cycles_per_day, ..setup(30) }, series).unwrap();
        let (outcome, line) = case.play(Policy::CyclesOracle).unwrap();
        assert_eq!((outcome.short_time, outcome.shortage), (0.0, None));
        assert!(outcome.cycles_per_server_per_day <= cycles_per_day + 1e-9, "{outcome:?}");
        (case, outcome, line.unwrap())
    };
    let mut last = 0.0;
    for cycles_per_day in [0.1, 0.5, 1.0, 2.0, 3.0] {
        let (case, outcome, line) = within(&series, cycles_per_day);
        assert!(outcome.savings > last && outcome.savings <= any.savings + 1e-9, "{outcome:?}");
        last = outcome.savings;
        // The bound counts wake-ups, the budget the times that a server goes to sleep.
        let wakes: u32 = line.woken[case.first..].iter().sum();
        let bound = Bound::new(&case).unwrap().asleep(0.0, f64::from(wakes) / (30.0 * case.days()));
        assert!(1.0 - outcome.mean_awake / 30.0 <= bound + 1e-9, "{outcome:?} beats the bound of {bound}");
    }
    series.values[4000..4700].fill(None);
    within(&series, 1.0);
}

#[test]
fn no_server_sleeps_in_a_step_in_which_another_one_wakes() {
    let case = Case::new(setup(30), &service(5, 20)).unwrap();
    let line = case.play(Policy::Ebb).unwrap().1.unwrap();
    let swaps =
        line.woken.iter().zip(&line.slept).filter(|(woken, slept)| **woken > 0 && **slept > 0).count();
    assert_eq!(swaps, 0);
}

#[test]
fn the_csv_gives_every_figure_again() {
    let mut series = service(6, 8);
    series.values[5000..5600].fill(None);
    let power = PowerModel::default();
    let case = Case::new(Setup { power, train_days: 2, ..setup(12) }, &series).unwrap();
    let outcomes: Vec<_> = [Policy::AlwaysOn, Policy::Ebb].map(|policy| case.play(policy).unwrap()).into();
    let text = csv(&case, &outcomes);
    let (mut joules, mut always, mut awake, mut steps, mut short, mut cycles, mut all) =
        (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    for line in text.lines().skip(1) {
        let cells: Vec<f64> = line.split(',').map(|cell| cell.parse().unwrap_or(f64::NAN)).collect();
        if cells[0] < 2.0 * 86_400.0 {
            continue;
        }
        let (load, [serving, waking, woken, slept]) = (cells[1], [cells[9], cells[10], cells[11], cells[12]]);
        (all, cycles) = (all + 1.0, cycles + slept);
        if load.is_nan() {
            continue;
        }
        steps += 1.0;
        awake += serving + waking;
        short += f64::from(u8::from(load * (1.0 - 1e-9) > serving));
        always += power.on(load / 12.0).0 * 60.0 * 12.0;
        let asleep = 12.0 - serving - waking;
        joules += power.on(load / serving).0 * 60.0 * serving + 5.4 * 60.0 * asleep + 61.8 * 60.0 * waking;
        // 13 s to come up, in which it is counted as idle, and 7 s to go down, in which it is counted as asleep.
        joules += woken * (1270.0 - 13.0 * 61.8) + slept * (569.0 - 7.0 * 5.4);
    }
    let ebb = &outcomes[1].0;
    assert!(ebb.savings > 0.1 && cycles > 0.0, "{ebb:?}");
    for (found, right) in [
        (joules, ebb.modelled_joules.0),
        (1.0 - joules / always, ebb.savings),
        (awake / steps, ebb.mean_awake),
        (short / steps, ebb.short_time),
        (cycles / 12.0 / (all / 1440.0), ebb.cycles_per_server_per_day),
    ] {
        assert!((found - right).abs() <= 1e-9 * right.abs(), "{found} is not {right}: {ebb:?}");
    }
}

#[test]
fn gaps_are_in_no_figure() {
    let mut series = days(&[[1.0, 4.0, 9.0], [1.0, 4.0, 9.0]]);
    series.values[24..32].fill(Some(0.0));
    assert_eq!(series.zeros_are_gaps(), 8);
    assert_eq!(series.gaps(8), Gaps { runs: 1, intervals: 8, zeros: 8, first: Some(24) });
    let case = Case::new(setup(9), &series).unwrap();
    assert!((play(&case, Policy::Oracle).mean_awake - 7.5).abs() < 1e-9);
    assert!((play(&case, Policy::Ideal).savings - (1.0 - 6.5 / 9.0)).abs() < 1e-9);
    assert!(play(&case, Policy::Ebb).mean_awake.is_finite());
}

#[test]
fn energy_is_the_power_model_s_to_the_joule() {
    let mut setup = setup(4);
    setup.power = PowerModel::default();
    setup.provision = Provision::PerServer(1.0);
    let mut series = days(&[[1.0, 1.0, 1.0]]);
    setup.train_days = 0;
    series.values.truncate(24);
    let case = Case::new(setup, &series).unwrap();
    let line = Timeline {
        suspended: Vec::new(),
        serving: vec![2; 24],
        waking: vec![0; 24],
        slept: [vec![2], vec![0; 23]].concat(),
        woken: [vec![0; 23], vec![1]].concat(),
        spells: Vec::new(),
    };
    let power = PowerModel::default();
    let hours = 24.0 * 3600.0;
    let steady = 2.0 * power.on(0.5).0 * hours + 2.0 * 5.4 * hours;
    let switched = 2.0 * (569.0 - 7.0 * 5.4) + (1270.0 - 13.0 * 5.4);
    let outcome = case.account(Policy::Ebb, Some(&line));
    assert!((outcome.modelled_joules.0 - steady - switched).abs() < 1e-3, "{:?}", outcome.modelled_joules);
    assert!((outcome.cycles_per_server_per_day - 0.5).abs() < 1e-9);
}

/// A synthetic service: a daily wave, weekends, growth, noise and unpredictable bursts, per minute.
fn service(seed: u64, days: usize) -> Series {
    let mut state = seed;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    let trough = 0.15 + 0.3 * random();
    let mut burst: f64 = 0.0;
    let load = |minute: usize| {
        let wave = 0.5 - 0.5 * (std::f64::consts::TAU * (minute % 1440) as f64 / 1440.0).cos();
        let weekend = if minute / 1440 % 7 >= 5 { 0.8 } else { 1.0 };
        burst = if random() < 0.002 { 0.3 * random() } else { burst * 0.9 };
        let growth = 1.0 + 0.004 * (minute as f64 / 1440.0);
        Some(((trough + (1.0 - trough) * wave) * weekend * growth + burst) * (0.97 + 0.06 * random()))
    };
    Series { interval: Duration::from_secs(60), values: (0..days * 1440).map(load).collect() }
}

#[test]
fn the_policy_keeps_its_promises_on_services_that_it_was_never_tuned_to() {
    for seed in 1..=5 {
        let mut setup = setup(30);
        (setup.train_days, setup.short_goal) = (6, 0.01);
        let case = Case::new(setup, &service(seed, 14)).unwrap();
        let (ebb, sierra) = (play(&case, Policy::Ebb), play(&case, Policy::Sierra));
        assert!(ebb.short_time <= 0.015, "seed {seed}: {ebb:?}");
        assert!(ebb.cycles_per_server_per_day <= 2.0, "seed {seed}: {ebb:?}");
        assert!(ebb.savings > sierra.savings, "seed {seed}: {ebb:?} against {sierra:?}");
        let bound = Bound::new(&case).unwrap().asleep(ebb.short_time, ebb.cycles_per_server_per_day);
        assert!(
            1.0 - ebb.mean_awake / 30.0 <= bound + 0.01,
            "seed {seed}: {ebb:?} beats the bound of {bound}"
        );
    }
}

/// What a service's hours are like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Every day is like the others but for two per cent.
    Steady,
    /// Two days of seven carry half.
    Weekly,
    /// A crowd comes in one hour of three hundred, and loses two thirds from hour to hour.
    Bursty,
}

/// A synthetic service by the hour.
fn hours(kind: Kind, seed: u64, days: usize) -> Series {
    let mut state = seed;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    let (trough, mut crowd) = (0.2 + 0.1 * random(), 0.0);
    let noise = if kind == Kind::Steady { 0.02 } else { 0.03 };
    let load = |hour: usize| {
        let wave = 0.5 - 0.5 * (std::f64::consts::TAU * (hour % 24) as f64 / 24.0).cos();
        let off = kind == Kind::Weekly && hour / 24 % 7 >= 5;
        crowd = if random() < 1.0 / 300.0 { 0.2 + 0.3 * random() } else { crowd / 3.0 };
        let more = if kind == Kind::Bursty { crowd } else { 0.0 };
        // The sum of four is close to a normal distribution, and their standard deviation is 0.577.
        let normal = ((0..4).map(|_| random()).sum::<f64>() - 2.0) / 0.577;
        let usual = (trough + (1.0 - trough) * wave) * if off { 0.5 } else { 1.0 };
        Some((usual + more) * (1.0 + noise * normal))
    };
    Series { interval: HOUR, values: (0..days * 24).map(load).collect() }
}

#[test]
fn savings_and_shortage_stay_in_three_bands_on_hours_never_seen() {
    // What a crowd costs that nothing announces comes on top of the goal of 1 %.
    for (kind, seed, accepted) in
        [(Kind::Steady, 11, 0.01), (Kind::Weekly, 12, 0.01), (Kind::Bursty, 13, 0.02)]
    {
        let mut setup = setup(30);
        (setup.train_days, setup.short_goal) = (7, 0.01);
        let case = Case::new(setup, &hours(kind, seed, 28)).unwrap();
        let hour = 1.0 / case.counted() as f64;
        let [ebb, sierra, oracle] =
            [Policy::Ebb, Policy::Sierra, Policy::ContinuousOracle].map(|p| play(&case, p));
        assert!(ebb.short_time <= accepted + hour, "{kind:?}: {ebb:?}");
        assert!(
            kind == Kind::Bursty || ebb.savings >= 0.9 * oracle.savings,
            "{kind:?}: {ebb:?} against {oracle:?}"
        );
        let ebb = play(&case.at_sierras_shortage().unwrap(), Policy::Ebb);
        assert!(ebb.savings >= sierra.savings, "{kind:?}: {ebb:?} against {sierra:?}");
        assert!(
            ebb.short_time <= sierra.short_time.max(accepted) + hour,
            "{kind:?}: {ebb:?} against {sierra:?}"
        );
    }
}

#[test]
fn the_same_series_gives_the_same_timeline() {
    let case = Case::new(setup(12), &service(9, 4)).unwrap();
    assert_eq!(case.play(Policy::Ebb).unwrap(), case.play(Policy::Ebb).unwrap());
}

#[test]
fn the_bound_is_what_one_who_knows_the_future_does() {
    // Two quiet thirds and one busy: with cycles and no shortage the oracle is optimal, without cycles no server
    // sleeps.
    let case = Case::new(setup(9), &days(&[[3.0, 3.0, 9.0], [3.0, 3.0, 9.0]])).unwrap();
    let bound = Bound::new(&case).unwrap();
    assert!((bound.asleep(0.0, 10.0) - 4.0 / 9.0).abs() < 1e-6);
    assert!(bound.asleep(0.0, 0.0) < 4.0 / 9.0);
    assert!(bound.asleep(0.4, 10.0) > 0.6);
}

#[test]
fn the_seasonal_forecast_errs_less_than_the_hour_of_day() {
    let case = Case::new(setup(30), &service(3, 14)).unwrap();
    let scores = scores(&case);
    let last = scores.last().unwrap();
    assert_eq!(last.days, 13);
    assert!(last.seasonal_live.unwrap() < last.hour_of_day.unwrap(), "{last:?}");
}

#[test]
fn series_are_read_with_and_without_times() {
    let series = parsed("hour,value\n0,1\n1,2.5\n4,3\n").unwrap();
    assert_eq!(series.values, [Some(1.0), Some(2.5), None, None, Some(3.0)]);
    assert_eq!(series.interval, HOUR);
    let dated =
        parsed("period,count\n2024-02-28 23:59:00,7\n2024-02-29 00:00:00,8\n2024-02-29 00:02:00,\n").unwrap();
    assert_eq!(
        (dated.interval, dated.values),
        (Duration::from_secs(60), vec![Some(7.0), Some(8.0), None, None])
    );
    assert_eq!(parsed("1 2 NaN 4").unwrap().values, [Some(1.0), Some(2.0), None, Some(4.0)]);
    assert_eq!(parsed("load\n1\n\n3\n\n").unwrap().values, [Some(1.0), None, Some(3.0)]);
}

#[test]
fn bad_series_are_refused_with_the_line() {
    let refused = |text: &str| parsed(text).unwrap_err().to_string();
    assert!(refused("hour,value\n0,1\n1,-2\n").contains("line 3: the load is -2"));
    assert!(refused("1\n2\nmany\n").contains("line 3: \"many\""));
    assert!(refused("hour,value\n1,1\n1,2\n").contains("line 3"));
    assert!(refused("hour,value\n0,1\n1,2\n99999999999,2\n").contains("line 4"));
    assert!(refused("a,b,c\n1,2,3\n").contains("3 columns"));
    assert!(refused("").contains("no load"));
    assert!(refused("2024-13-01,5\n").contains("line 1"));
    assert!(parse_error_without_name().contains("--interval"));
}

/// Each was once read as another load, without a word.
#[test]
fn what_could_be_another_number_is_refused_with_its_line() {
    let refused = |text: &str, columns: Option<&str>| {
        let given = Given { columns: columns.map(|c| c.parse().unwrap()), ..Given::default() };
        let text = std::io::Cursor::new(text.to_owned());
        read(Box::new(text), "x", &given).unwrap_err().to_string()
    };
    let decimals = "t,l\n2026-03-23T00:00:00Z,20,67\n2026-03-23T01:00:00Z,21,96\n";
    for columns in [None, Some("load=3,time=1"), Some("load=2,time=1")] {
        let error = refused(decimals, columns);
        assert!(error.contains("decimal sign") || error.contains("no column"), "{error}");
        assert!(!error.contains("load=3"), "the remedy names a column that was not looked at: {error}");
    }
    let bare = "2026-03-23T00:00:00Z,20,67\n2026-03-23T01:00:00Z,21,96\n";
    let error = refused(bare, Some("load=3,time=1"));
    assert!(error.contains("line 1: \"20,67\" may be one number") && error.contains("titles"), "{error}");
    let thousands = "t,l\n2026-03-01T07:00:00Z,\"990\"\n2026-03-01T08:00:00Z,\"1,060\"\n";
    for columns in [None, Some("load=2,time=1")] {
        assert!(refused(thousands, columns).contains("line 3: \"1,060\" has a comma"));
    }
    for number in ["1.060,5", "1,060,500", "1.060.500", "1,060.5"] {
        let error = refused(&format!("t;l\n0;990,5\n1;{number}\n"), None);
        assert!(error.contains(&format!("line 3: {number:?} has a separator for thousands")), "{error}");
        assert!(!error.contains("between columns"), "that is so already: {error}");
    }
    assert!(refused("t,l\n0,\"1\"2\n", None).contains("line 2: text follows"));
    assert!(refused("t,l\n0,\"1\n1,2\n2,3\n", None).contains("line 2: nothing closes"));
    assert!(refused("t,l\n1700000000500,1\n", None).contains("whole seconds"));
    assert!(refused("t,l\n2026-10-25 02:00:00,1\n2026-10-25 02:00:00,1\n", None).contains("UTC"));
    let utf16: Vec<u8> = "t,l\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
    for text in [[b"\xff\xfe", &utf16[..]].concat(), utf16] {
        let error = read(Box::new(std::io::Cursor::new(text)), "x", &Given::default()).unwrap_err();
        assert!(error.to_string().contains("UTF-16"), "{error}");
    }
}

/// `990` and `1.060` were once read as 990 and 1.06.
#[test]
fn what_may_be_thousands_is_refused_until_it_is_clear() {
    let columns = "load=2,time=1".parse().unwrap();
    let given = Given { columns: Some(columns), ..Given::default() };
    let times = |hour: usize| format!("2026-03-{:02}T{:02}:00:00Z", 1 + hour / 24, hour % 24);
    let loads = [990, 1060, 1177, 871];
    let table = |separator: char, write: &dyn Fn(u32) -> String| {
        let rows: String =
            (0..192).map(|i| format!("{}{separator}{}\n", times(i), write(loads[i % 4]))).collect();
        let text = std::io::Cursor::new(format!("Zeit{separator}Last\n{rows}"));
        read(Box::new(text), "x", &given).map(|series| series.values[..4].to_vec())
    };
    for (sign, quote) in [('.', ""), (',', ""), (',', "\"")] {
        for separator in [';', '\t'] {
            let grouped = |load: u32| match load {
                1000.. => format!("{quote}{}{sign}{:03}{quote}", load / 1000, load % 1000),
                _ => load.to_string(),
            };
            let error = table(separator, &grouped).unwrap_err().to_string();
            assert!(error.contains(&format!("line 3: \"1{sign}060\"")), "{error}");
            // Both remedies that the message names.
            let right = loads.map(|load| Some(f64::from(load)));
            assert_eq!(table(separator, &|load| load.to_string()).unwrap(), right);
            let decimals = |load| match grouped(load) {
                text if text.contains(sign) => text,
                text => format!("{text}{sign}000"),
            };
            let right = [990.0, 1.06, 1.177, 871.0].map(Some);
            assert_eq!(table(separator, &decimals).unwrap(), right);
        }
    }
}

#[test]
fn tables_of_other_countries_and_programs_are_understood() {
    let right = [Some(20.67), Some(1060.5)];
    for text in [
        "Zeit;Last\n2026-03-23T00:00:00Z;20,670\n2026-03-23T01:00:00Z;1060,5\n",
        "Zeit\tLast\n2026-03-23T02:00:00+02:00\t20,67\n2026-03-23T03:00:00+0200\t1060,5\n",
        "\"Zeit\",\"Last\nin MW\"\n1774224000000,20.67\n1774227600000,1060.5\n",
        "t,l\n\"2026-03-22 20:30:00-03:30\",\"20.67\"\n\"2026-03-22 21:30:00-03:30\",\"1060.5\",\n",
    ] {
        let found = read_found(Box::new(std::io::Cursor::new(text)), "x", &Given::default());
        let found = found.unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((found.series.interval, &found.series.values[..]), (HOUR, &right[..]), "{text}");
        assert_eq!(found.begins, Some(1_774_224_000), "{text}");
    }
}

#[test]
fn a_date_and_its_hour_may_have_columns_of_their_own() {
    for (text, columns) in [
        ("Date,Hour,MW\n2026-03-23,0,20\n2026-03-23,1,21\n2026-03-23,3,23\n", "load=3,time=1+2"),
        ("h;d;l\n00:00;2026-03-23;20\n01:00;2026-03-23;21\n03:00;2026-03-23;23\n", "load=l,time=d+h"),
        ("2026-03-23\t0:00\t20\n2026-03-23\t1:00\t21\n2026-03-23\t3:00\t23\n", "load=3,time=1+2"),
    ] {
        let given = Given { columns: Some(columns.parse().unwrap()), ..Given::default() };
        let found = read_found(Box::new(std::io::Cursor::new(text)), "x", &given);
        let found = found.unwrap_or_else(|error| panic!("{text}: {error}"));
        let right = [Some(20.0), Some(21.0), None, Some(23.0)];
        assert_eq!((found.series.interval, &found.series.values[..]), (HOUR, &right[..]), "{text}");
        assert_eq!(found.begins, Some(1_774_224_000), "{text}");
    }
    for wrong in ["load=3,time=1+", "load=3,time=+2", "load=3,time=1+2,time=1"] {
        assert!(wrong.parse::<LoadColumns>().is_err(), "{wrong}");
    }
}

#[test]
fn a_load_far_above_the_others_is_named() {
    let outlier = |high: &str| {
        let rows: String =
            (0..300).map(|hour| format!("{hour},{}\n", if hour == 29 { high } else { "100" })).collect();
        let text = std::io::Cursor::new(format!("hour,load\n{rows}"));
        read_found(Box::new(text), "x", &Given::default()).unwrap().outlier()
    };
    assert_eq!(outlier("1e30"), Some(Outlier { line: 31, load: 1e30, times_p99: 1e28 }));
    assert_eq!(outlier("300"), None);
}

#[test]
fn columns_are_named_by_number_or_title() {
    let text = "host,when,ops,load\na,0,9,1\nb,3600,9,\"2\"\nc,7200,9,3\n";
    let given = |columns: &str| Given { columns: Some(columns.parse().unwrap()), ..Given::default() };
    let named = |columns: &str| read(Box::new(std::io::Cursor::new(text)), "x", &given(columns));
    for columns in ["load=4,time=2", "load=LOAD,time=when", "time=2,load=load"] {
        let series = named(columns).unwrap();
        assert_eq!(
            (series.interval, series.values),
            (HOUR, vec![Some(1.0), Some(2.0), Some(3.0)]),
            "{columns}"
        );
    }
    let refused = named("load=watts").unwrap_err().to_string();
    assert!(refused.contains("\"watts\""), "{refused}");
    // One row shows that the column before the load has other things than whole numbers.
    let bare = "2026-03-23T00:00:00Z,20,67\n2026-03-23T01:00:00Z,2.5,96\n2026-03-23T02:00:00Z,20,97\n";
    let series = read(Box::new(std::io::Cursor::new(bare)), "x", &given("load=3,time=1")).unwrap();
    assert_eq!(series.values, [Some(67.0), Some(96.0), Some(97.0)]);
    assert!("time=1".parse::<LoadColumns>().is_err() && "load=0".parse::<LoadColumns>().is_err());
}

/// A series is folded while it is read: the same as afterwards, and a gap anywhere is the same gap.
#[test]
fn folding_while_reading_is_folding_afterwards() {
    let rows: String = (0..5000u32)
        .filter(|second| !(1200..1290).contains(second) && *second != 4097)
        .map(|second| format!("{second},{}\n", second % 7))
        .collect();
    let text = format!("second,load\n{rows}");
    let at = |fold| {
        let given = Given { fold, ..Given::default() };
        read(Box::new(std::io::Cursor::new(text.clone())), "x", &given).unwrap()
    };
    let (whole, minutes) = (at(Fold::No), at(Fold::To(Duration::from_secs(60))));
    assert_eq!((whole.values.len(), minutes.values.len()), (5000, 84));
    assert_eq!(minutes, whole.folded(Duration::from_secs(60)).unwrap());
    assert_eq!(minutes, at(Fold::AtLeast(Duration::from_secs(60))));
    assert_eq!(
        (minutes.values[20], minutes.values[21].is_some()),
        (None, true),
        "30 of 60 seconds are enough"
    );
    // By hand: 60 numbers from 0 on, modulo 7, are eight times 21, and 0 + 1 + 2 + 3.
    assert_eq!(minutes.values[0], Some((8.0 * 21.0 + 6.0) / 60.0));
    let odd = Given { fold: Fold::To(Duration::from_millis(1500)), ..Given::default() };
    assert!(read(Box::new(std::io::Cursor::new(text.clone())), "x", &odd).is_err());
}

fn parse_error_without_name() -> String {
    read(Box::new(&b"1 2 3"[..]), "load.txt", &Given::default()).unwrap_err().to_string()
}

#[test]
fn impossible_cases_are_refused() {
    let series = days(&[[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]);
    let refused = |change: &dyn Fn(&mut Setup)| {
        let mut setup = setup(9);
        change(&mut setup);
        Case::new(setup, &series).unwrap_err().to_string()
    };
    assert!(refused(&|s| s.servers = 2).contains("replicas"));
    assert!(refused(&|s| s.train_days = 2).contains("--train"));
    assert!(refused(&|s| s.g_min = 7).contains("g_min"));
    assert!(refused(&|s| s.provision = Provision::PerServer(-1.0)).contains("above 0"));
    assert!("sleepy".parse::<Policy>().unwrap_err().contains("continuous-oracle"));
}

#[test]
fn server_types_are_averaged_by_number() {
    let model = power("[[type]]\nservers = 1\nidle = 20.0\n[[type]]\nservers = 3\nidle = 40.0\n").unwrap();
    assert_eq!(model.idle.0, 35.0);
    assert!(power("[[type]]\nidle = 20.0\n").is_err());
    assert!(power("idle = -1.0\n").unwrap_err().to_string().contains("idle"));
    assert!(power("iddle = 1.0\n").is_err());
}

#[test]
fn the_page_holds_the_policies_the_frontier_and_the_servers() {
    let case = Case::new(setup(9), &service(4, 3)).unwrap();
    let outcomes: Vec<_> =
        [Policy::Sierra, Policy::Ebb, Policy::Ideal].map(|policy| case.play(policy).unwrap()).into();
    let points = frontier(&case, |_, _| {}).unwrap();
    let report = Report {
        name: "a & b",
        case: &case,
        gaps: Gaps::default(),
        // 2024-02-28 00:00 UTC.
        begins: Some(1_709_078_400),
        price: Some(&"0.5 EUR".parse().unwrap()),
        outcomes: &outcomes,
        oracles: Oracles::of(&case).unwrap(),
        learning: Some(Learning::of(&case.loads, &outcomes[1].1.as_ref().unwrap().serving, case.step)),
        scores: &scores(&case),
        frontier: &points,
        pools: &[],
    };
    let page = html(&report);
    for text in ["a &amp; b", "Frontier", "Each server under Ebb", "Forecast error", "Modelled power"] {
        assert!(page.contains(text), "{text} is missing");
    }
    // Of three days, one of training.
    for text in [
        "of what an oracle with the same 2.0 power cycles per server and day saves",
        "In the first 3 days, while it learns, it was short",
        "afterwards its shortage was not known, as nothing later is recorded. Some of these first days are in the figures",
        "load unserved, median",
    ] {
        assert!(page.contains(text), "{text} is missing");
    }
    assert!(page.contains(&verdict(&report)));
    let line = rows(&report).into_iter().map(|row| table_csv(&[row])).nth(1).unwrap();
    let (joules, savings) = (outcomes[1].0.modelled_joules.0, outcomes[1].0.savings);
    assert!(line.contains(&format!(",ebb,2,0.03,2,{joules},{savings},")), "{line}");
    assert_eq!(rows(&report).len(), outcomes.len() + SETTINGS);
    // Shortage beside savings: a bar of each for each policy, with its value.
    let (sierra, ebb) = (&outcomes[0].0, &outcomes[1].0);
    for value in [sierra.savings, ebb.savings] {
        assert!(page.contains(&format!("<title>energy saved {value}</title>")), "{value} has no bar");
    }
    let short = format!("<title>time with too few servers awake {}</title>", sierra.short_time);
    assert!(page.contains(&short), "{short} has no bar");
    assert!(page.contains("<tr class=\"s\"><td>ebb</td>"), "Ebb stands out");
    // Days 2 and 3 of the series are shown: it begins on 28 February.
    assert!(page.contains(">1 Mar<") && page.contains(">12:00<"), "dates on the axes");
    // Money per year, by hand.
    let kwh = |outcome: &Outcome| outcome.modelled_joules.0 / 3.6e6 / case.seconds() * 31_557_600.0;
    assert!((ebb.modelled_kwh_per_year / kwh(ebb) - 1.0).abs() < 1e-12);
    assert!(page.contains(&format!("<td class=\"n\">{:.0} EUR</td>", 0.5 * kwh(ebb))));
    for wrong in ["0.3.3", "EUR", "EUR0.30", "0,30EUR", "1e999EUR", "1e2EUR", &"9".repeat(400)] {
        assert!(wrong.parse::<Price>().is_err(), "{wrong}");
    }
}

/// Every step of the policy that takes long is heard, so that a terminal can show how far it is.
#[test]
fn a_long_series_is_heard_while_it_is_played() {
    let case = Case::new(setup(9), &service(4, 3)).unwrap();
    let mut heard = Vec::new();
    case.play_heard(Policy::Ebb, &mut |done| heard.push(done)).unwrap();
    assert_eq!(heard, (0..case.loads.len()).collect::<Vec<_>>());
}

fn shared(name: &str) -> Option<Series> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/traces/load").join(name);
    let Ok(file) = std::fs::File::open(&path) else {
        ebb_testing::skip(format!("{name} is not at ../shared/traces/load"));
        return None;
    };
    Some(read(Box::new(file), name, &Given::default()).expect("a series"))
}

#[test]
fn the_check_points_on_a_real_series() {
    let Some(series) = shared("twitter-2021-08.hourly.csv") else { return };
    let case = Case::new(Setup { train_days: 6, ..setup(30) }, &series).unwrap();
    let percent = |share: f64| (share * 1000.0).round() / 10.0;
    assert_eq!(percent(play(&case, Policy::Oracle).savings), 47.6);
    let sierra = play(&case, Policy::Sierra);
    assert_eq!((percent(sierra.savings), percent(sierra.short_time)), (45.8, 8.6));
    assert_eq!(percent(play(&case, Policy::ContinuousOracle).savings), 60.0);
    assert_eq!(percent(play(&case, Policy::Ideal).savings), 63.9);
    // Ebb, with its own forecast, saves within half a point what whole gears save only with an oracle.
    let ebb = play(&case, Policy::Ebb);
    assert!(ebb.savings >= 0.471 && ebb.short_time <= 0.03, "{ebb:?}");
}

#[test]
fn seconds_are_folded_into_minutes_and_days_end_in_gaps() {
    let Some(series) = shared("twitter-2021-08.per-second.txt.xz") else { return };
    let mut minutes = series.folded(Duration::from_secs(60)).unwrap();
    let zeros = minutes.zeros_are_gaps();
    assert!(minutes.gaps(zeros).runs >= 21, "{:?}", minutes.gaps(zeros));
    let case = Case::new(Setup { train_days: 6, short_goal: 0.01, ..setup(30) }, &minutes).unwrap();
    let oracle = play(&case, Policy::ContinuousOracle);
    assert!((0.63..0.65).contains(&oracle.savings), "{oracle:?}");
    assert!((0.36..0.39).contains(&play(&case, Policy::Oracle).savings));
}

/// 18 servers that draw 100 W each while on, two days after one of training; half of the data is cold, in one set of
/// 6+3.
fn cold(requests_per_second: f64) -> (Case, Series, Cold) {
    let series = days(&[[1.0, 4.0, 9.0]; 3]);
    let case = Case::new(Setup { provision: Provision::PerServer(1.0), ..setup(18) }, &series).unwrap();
    let shape = "6+3".parse().unwrap();
    let cold = Cold {
        shape,
        share: 0.5,
        requests: Requests::Rate(requests_per_second),
        hibernate_after: Duration::from_secs(600),
    };
    (case, series, cold)
}

#[test]
fn cold_data_in_a_set_that_sleeps_costs_what_a_hand_computes() {
    let (case, series, none) = cold(0.0);
    let rows = none.play(&case, &series, Policy::Ebb).unwrap();
    let servers: Vec<(u32, u32)> =
        rows.iter().map(|row| (row.replicated_servers, row.coded_servers)).collect();
    // Half of the replicas, and half of the other half.
    assert_eq!(servers, [(18, 0), (18, 0), (9, 9), (9, 9)]);
    let kilowatt_hours: Vec<f64> = rows.iter().map(|row| row.modelled_joules.0 / 3.6e6).collect();
    assert!((kilowatt_hours[0] - 18.0 * 0.1 * 48.0).abs() < 1e-9, "{kilowatt_hours:?}");
    // Six data servers are on, or none: with steps of an hour the set sleeps from the first one on.
    assert!((kilowatt_hours[2] - kilowatt_hours[3] - 6.0 * 0.1 * 48.0).abs() < 1e-9, "{kilowatt_hours:?}");
    let all = case.play(Policy::Ebb).unwrap().0.mean_awake;
    assert!((rows[1].mean_awake - all).abs() < 1e-9 && rows[3].mean_awake < rows[2].mean_awake);
    assert!(rows[3].savings > rows[1].savings, "the lowest gear of 9 servers is 3, that of 18 is 6");
    assert_eq!((rows[3].wakes_per_set_per_day, rows[3].waiting), (Some(0.0), None));
}

#[test]
fn a_set_that_is_read_often_does_not_sleep() {
    let (case, series, often) = cold(1.0);
    let rows = often.play(&case, &series, Policy::Ebb).unwrap();
    assert_eq!(rows[3].modelled_joules, rows[2].modelled_joules);
    let (case, series, seldom) = cold(1.0 / 14_400.0);
    let seldom = seldom.play(&case, &series, Policy::Ebb).unwrap().remove(3);
    let wakes = seldom.wakes_per_set_per_day.unwrap();
    assert!((2.0..7.0).contains(&wakes), "{wakes} of 6 requests a day");
    assert!(seldom.waiting.unwrap() > 0.3 && seldom.modelled_joules < rows[2].modelled_joules);
}

#[test]
fn requests_of_a_trace_wake_the_set_that_they_reach() {
    let (case, series, none) = cold(0.0);
    let touch = |hour: u64| Touch { at: HOUR * hour as u32, chunk: hour };
    // The first day is for learning. Two in one hour wake the set once.
    let touches = [3, 30, 30, 31, 50].map(touch).into();
    let rows = Cold { requests: Requests::Seen(touches), ..none }.play(&case, &series, Policy::Ebb).unwrap();
    assert_eq!(rows[3].wakes_per_set_per_day, Some(1.0), "in the hours 30 and 50");
    assert_eq!(rows[3].waiting, Some(0.5), "of four, those that came to a set asleep");
    let awake = 6.0 * 0.1 * 3.0 + rows[2].modelled_joules.0 / 3.6e6 - 6.0 * 0.1 * 48.0;
    assert!((rows[3].modelled_joules.0 / 3.6e6 - awake).abs() < 1e-9, "awake in three hours of 48");
}

#[test]
fn shares_and_rates_that_cannot_be_are_refused() {
    let (case, series, cold) = cold(0.0);
    for share in [0.0, 1.0, f64::NAN] {
        assert!(matches!(
            Cold { share, ..cold.clone() }.play(&case, &series, Policy::Ebb),
            Err(LoadError::ColdShare { .. })
        ));
    }
    let negative = Cold { requests: Requests::Rate(-1.0), ..cold };
    assert!(matches!(negative.play(&case, &series, Policy::Ebb), Err(LoadError::ColdRequests { .. })));
}
