//! Whole runs of the request level: every request is answered, the same arguments give the same report, the figures add
//! up.

use ebb_gear::{Provision, Scheme, Server, Window, layout};
use ebb_meta::Timing;
use ebb_power::PowerModel;
use ebb_sim::mirror::{PolicyKind, Settings, Thresholds};
use ebb_sim::request::workload::Day;
use ebb_sim::request::{
    DepthRow, DiskModel, Existing, Gears, Mirroring, NetworkModel, PHASES, Phase, Report, Setup, SimError,
    Suspend, Traffic, hours, servers_for_peak, simulate,
};
use ebb_trace::Trace;
use ebb_trace::{Kind, Request};
use ebb_types::{Depth, RackId, Schedule, ServerId, ServerState, Watts};
use std::time::Duration;

fn run(trace: &Trace, setup: &Setup) -> Report {
    simulate(trace, setup, &mut |_| true).expect("a cluster that can be")
}

/// The default cluster with few chunk groups: each shift plans and reports for every one of them.
fn small() -> Setup {
    Setup { groups_per_server: 8, ..Setup::default() }
}

/// Hours of three minutes each, so that a day of shifts is short.
fn shifting() -> Setup {
    Setup { gears: Gears::Schedule, provision: Some(Provision::Peak), speed: 20.0, ..small() }
}

/// Alternating busy and quiet hours, a request every 0.1 or 2 simulated seconds at the speed of `shifting`. Of the
/// quiet ones the first comes with the down-shift, and the last 0.95 seconds before the hour ends, while servers that
/// are up in time for the next reclaim.
fn busy_and_quiet(hours: u64) -> Trace {
    let hour = |h: u64| {
        let busy = h.is_multiple_of(2);
        let at = move |n: u64| if busy { n * 2 } else { (n * 40).saturating_sub(19) };
        (0..if busy { 1800 } else { 91 }).map(move |n| h * 3600 + at(n))
    };
    let request = |(n, at): (u64, u64)| Request {
        at: Duration::from_secs(at),
        device: (n % 4) as u32,
        offset: (n * 7919) % 5000 * 65_536,
        len: 16_384,
        kind: if n % 5 < 2 { Kind::Read } else { Kind::Write },
    };
    Trace {
        requests: (0..).zip((0..hours).flat_map(hour)).map(request).collect(),
        devices: (0..4).map(|n| format!("volume-{n}")).collect(),
        ..Trace::default()
    }
}

#[test]
fn a_run_that_is_stopped_reports_the_time_until_then() {
    let (trace, setup) = (busy_and_quiet(2), Setup { gears: Gears::Fixed(3), ..shifting() });
    let report = simulate(&trace, &setup, &mut |done| done < 0.5).expect("a cluster that can be");
    let half = trace.span().as_secs_f64() / 2.0;
    assert!((report.stopped_at_seconds.unwrap() - half).abs() < 0.1, "{report}");
    let came = trace.requests.iter().filter(|request| request.at.as_secs_f64() <= half).count() as u64;
    let requests = report.requests;
    assert!(requests.arrived.abs_diff(came) <= 1 && requests.answered == requests.arrived, "{report}");
    assert!((report.energy_modelled.mean_servers_awake - 9.0).abs() < 0.01, "{report}");
    assert!(report.to_string().contains("stopped at "), "{report}");
    let whole = run(&trace, &setup);
    assert!(whole.stopped_at_seconds.is_none() && !whole.to_string().contains("stopped"), "{whole}");
}

#[test]
fn a_day_with_shifts_answers_every_request_and_pays_every_debt() {
    let trace = busy_and_quiet(5);
    let report = run(&trace, &shifting());
    println!("{report}");
    let (requests, count) = (report.requests, trace.requests.len() as u64);
    assert_eq!((requests.answered, requests.failed, requests.unanswered), (count, 0, 0));
    let up = report.shifts.iter().filter(|s| s.from_gear < s.to_gear).count();
    let down = report.shifts.iter().filter(|s| s.from_gear > s.to_gear).count();
    assert!(up > 0 && down > 0, "{:?}", report.shifts);
    assert!(!report.reclaims.is_empty() && report.reclaims.iter().all(|r| r.fetched_bytes > 0));
    assert!(report.migrations.iter().all(|m| m.migrations > 0) && !report.migrations.is_empty());
    let offload = report.offload;
    assert!(offload.taken_bytes >= offload.most_debt_bytes && offload.most_debt_bytes > 0, "{offload:?}");
    assert!(report.energy_modelled.mean_servers_awake < 8.9, "{:?}", report.energy_modelled);
    assert!(report.samples.iter().map(|s| s.servers_awake).min() < Some(9));
    let phases = |phase: &Phase| report.latency.iter().any(|row| row.phase == Some(*phase));
    assert!(PHASES.iter().all(phases), "{report}");
    // A request is of the reclaim during which it came.
    let mut reclaims = report.reclaims.iter().map(|r| r.at_seconds..r.at_seconds + r.took_seconds);
    for done in &report.done {
        let within = reclaims.clone().any(|reclaim| reclaim.contains(&(done.at as f64 / 1e9)));
        assert_eq!(done.phase == Phase::Reclaim, within, "{done:?}");
    }
    assert!(reclaims.all(|reclaim| reclaim.end < reclaim.start.div_euclid(180.0) * 180.0 + 180.0), "in time");
    let counted: u64 =
        report.latency.iter().filter(|row| row.gear.is_some()).map(|row| row.latency.count).sum();
    assert_eq!(counted, count);
}

/// What the paper was about to implement [Sierra §4.5]: reclaim at the least rate that suffices is not felt by clients.
#[test]
fn reclaim_at_the_rate_that_it_needs_takes_its_time_and_delays_no_reads() {
    let trace = Day { requests: 30_000, ..Day::default() }.trace();
    let within = Duration::from_secs(60);
    let [fast, paced] = [Duration::ZERO, within].map(|reclaim_within| {
        let setup =
            Setup { reclaim_within, groups_per_server: Setup::default().groups_per_server, ..shifting() };
        run(&trace, &setup)
    });
    let reads = |report: &Report, phase: Option<Phase>| {
        let is = |row: &&ebb_sim::request::LatencyRow| {
            row.operation == "read" && row.phase == phase && row.gear == phase.map(|_| 3)
        };
        report.latency.iter().find(is).expect("there are reads").latency.mean_millis
    };
    let reclaim = Some(Phase::Reclaim);
    assert!(reads(&fast, reclaim) > 3.0 * reads(&fast, None), "without a pace they wait: {fast}");
    assert!(reads(&paced, reclaim) < 1.2 * reads(&paced, None), "{paced}");
    for reclaim in &paced.reclaims {
        assert!((59.0..=61.0).contains(&reclaim.took_seconds), "{reclaim:?}");
    }
    assert_eq!(paced.reclaims.len(), fast.reclaims.len());
    assert_eq!((paced.requests.failed, paced.requests.unanswered), (0, 0));
}

/// [Sierra §4.3]: "We do not provision for this peak, but for the peak excluding this maintenance window. We do keep
/// the maintenance period in the highest gear though."
#[test]
fn a_night_of_maintenance_is_in_the_highest_gear_and_does_not_set_the_size() {
    // Hours of a day, each with so many writes at once.
    let bursts = [(0, 1000), (1, 10), (2, 300), (3, 10), (24, 1000), (25, 10)];
    let writes = bursts.into_iter().flat_map(|(hour, count)| (0..count).map(move |n| (hour, n)));
    let request = |(hour, n): (u64, u64)| Request {
        at: Duration::from_secs(3600 * hour),
        device: 0,
        offset: n * 65_536,
        len: 16_384,
        kind: Kind::Write,
    };
    let devices = vec!["volume".to_owned()];
    let trace = Trace { requests: writes.map(request).collect(), devices, ..Trace::default() };
    let except: Vec<Window> = vec!["00:00-02:00".parse().unwrap()];
    let all = Setup { provision: None, ..shifting() };
    let day = Setup { except, ..all.clone() };

    let peaks: Vec<f64> = hours(&trace, &all).unwrap().into_iter().map(|(load, _)| load.0).collect();
    let rounded_up = |load: f64| (load / 3.0).ceil() as u32 * 3;
    let servers = servers_for_peak(&trace, &day).unwrap();
    assert_eq!(servers, rounded_up(peaks[2]), "{peaks:?}");
    assert_eq!(servers_for_peak(&trace, &all).unwrap(), rounded_up(peaks[0]), "{peaks:?}");
    assert!(servers >= 9 && peaks[0] > 2.0 * f64::from(servers), "the night needs far more: {peaks:?}");

    let gears = |setup: Setup| {
        let hours = hours(&trace, &Setup { servers: servers as u16, ..setup }).unwrap();
        [0, 1, 2, 3, 24, 25].map(|hour| hours[hour].1)
    };
    assert_eq!(gears(all), [3, 1, 3, 1, 3, 1]);
    assert_eq!(gears(day.clone()), [3, 3, 3, 1, 3, 3], "though little is to be done in hours 1 and 25");
    // Rates that are scaled to a given cluster go by the same peak.
    let given = Setup { provision: Some(Provision::Peak), ..day };
    let peak = hours(&trace, &given).unwrap()[2].0.0;
    assert!((peak - f64::from(given.servers)).abs() < 1e-6, "{peak}");
}

#[test]
fn the_same_arguments_give_the_same_report() {
    let (trace, setup) = (busy_and_quiet(3), Setup { gears: Gears::Auto, ..shifting() });
    let (first, second) = (run(&trace, &setup), run(&trace, &setup));
    assert!(!first.shifts.is_empty() && !first.reclaims.is_empty());
    assert_eq!(format!("{first:?}"), format!("{second:?}"));
    let other = run(&trace, &Setup { seed: 2, ..setup });
    assert_ne!(first.done, other.done);
}

/// Far apart, so that no request waits for another.
fn apart(count: u64, kind: Kind) -> Trace {
    let request = |n: u64| Request {
        at: Duration::from_secs(n),
        device: (n % 4) as u32,
        offset: (n * 7919) % 50_000 * (64 << 20),
        len: 4096,
        kind,
    };
    Trace {
        name: "apart".into(),
        requests: (0..count).map(request).collect(),
        devices: (0..4).map(|n| format!("volume-{n}")).collect(),
        ..Trace::default()
    }
}

/// Six racks, each a third of a gear group; in gear 1 two are awake, and another server so that copies stand in three.
#[test]
fn loggers_hold_all_offload_and_a_rack_that_sleeps_needs_no_switch() {
    let power = PowerModel { rack_switch: Watts(100.0), ..PowerModel::default() };
    let setup = Setup {
        servers: 12,
        racks: 6,
        layout: Scheme::RackAligned,
        gears: Gears::Fixed(1),
        disk: DiskModel::ssd(),
        power,
        ..small()
    };
    let trace = apart(100, Kind::Write);
    let alone = run(&trace, &setup);
    let with = run(&trace, &Setup { loggers: 3, ..setup.clone() });
    for report in [&alone, &with] {
        assert_eq!((report.requests.answered, report.requests.failed), (100, 0));
    }
    let holders = |report: &Report| report.holders.iter().map(|row| row.mean_holders).fold(0.0, f64::max);
    assert!(holders(&alone) > 3.0, "{:?}", alone.holders);
    assert_eq!(holders(&with), 3.0, "the loggers and no other: {:?}", with.holders);
    let awake = |report: &Report| report.energy_modelled.mean_servers_awake.round();
    assert_eq!((awake(&alone), awake(&with)), (4.0 + 1.0, 4.0 + 3.0));
    let switches = |report: &Report| report.energy_modelled.switch_joules.0 / (100.0 * 99.0);
    close(switches(&alone), 2.0 + 1.0, 1e-6);
    // Racks 3 and 6 are the gear's, racks 1 to 3 have the loggers.
    close(switches(&with), 4.0, 1e-6);
}

#[test]
fn a_lonely_read_takes_the_disk_and_two_ways() {
    let disk = DiskModel::hdd_2009();
    let DiskModel::Hdd(hdd) = &disk else { panic!("a hard disk") };
    let right = hdd.random_access_seconds(false, 4096) * 1e3;
    let network = NetworkModel::gigabit();
    // There and back, through one switch or three.
    let (near, far) = (2.0 * network.latency_seconds * 1e3, 6.0 * network.latency_seconds * 1e3);
    let setup = Setup { disk: disk.clone(), network, gears: Gears::Fixed(3), ..small() };
    let report = run(&apart(1500, Kind::Read), &setup);
    let mean = report.latency[0].latency.mean_millis;
    assert!(mean > (right + near) * 0.97 && mean < (right + far + 0.1) * 1.03, "{mean} against {right}");
    assert_eq!(report.requests.answered, 1500);
}

#[test]
fn each_copy_of_a_write_crosses_the_network_once_in_every_gear() {
    let count = 400;
    for gear in [3, 1] {
        let setup = Setup { gears: Gears::Fixed(gear), disk: DiskModel::ssd(), ..small() };
        let report = run(&apart(count, Kind::Write), &setup);
        assert_eq!(report.requests.answered, count);
        let bytes = |traffic| report.traffic.iter().find(|row| row.traffic == traffic).unwrap().bytes;
        assert_eq!(report.shifts.len(), 0, "the gear is reached before the first write");
        // Two of three copies leave the primary, each with a head of 150 bytes and a checksum.
        let sent = bytes(Traffic::Replication) + bytes(Traffic::Offload);
        assert_eq!(sent, 2 * count * (4096 + 150 + 4), "gear {gear}: {report}");
        assert_eq!(bytes(Traffic::Offload) > 0, gear == 1);
    }
}

fn ups(report: &Report) -> impl Iterator<Item = f64> + '_ {
    report.shifts.iter().filter(|s| s.from_servers < s.to_servers).map(|s| s.took_seconds)
}

#[test]
fn a_suspended_server_draws_what_is_said_of_it_and_wakes_in_its_own_time() {
    let trace = busy_and_quiet(3);
    // Being off would save less, however long it is quiet.
    let power = PowerModel { standby: Watts(20.0), ..PowerModel::default() };
    for (wake, watts) in [(5.0, 10.0), (40.0, 12.0)] {
        let suspend = Suspend { watts: Watts(watts), wake: Duration::from_secs_f64(wake) };
        let report = run(&trace, &Setup { suspend: Some(suspend), power, ..shifting() });
        let [standby, off] = &report.depths[..] else { panic!("two depths: {:?}", report.depths) };
        assert_eq!(
            (standby.depth, standby.wears, off.depth, off.wears),
            (Depth::Standby, false, Depth::Off, true)
        );
        assert_eq!((off.sleeps, off.asleep_seconds, off.watts), (0, 0.0, Watts(20.0)));
        assert!(standby.sleeps > 3 && standby.asleep_seconds > 100.0, "{standby:?}");
        close(standby.asleep_joules.0, watts * standby.asleep_seconds, 1e-9);
        // Down and up take `wake` each, at the draw of an idle server; the last may be under way at the end.
        let each = 61.8 * wake;
        let most = each * report.energy_modelled.transitions as f64;
        let transitions = standby.transition_joules.0;
        assert!(transitions <= most + 1e-6 && transitions > most - 9.0 * each, "{transitions} of {most}");
        let took: Vec<f64> = ups(&report).collect();
        assert!(!took.is_empty() && took.iter().all(|t| *t > wake && *t < wake + 20.0), "{wake}: {took:?}");
        let days = report.trace.span_seconds / 86_400.0;
        close(standby.sleeps_per_server_day * 9.0 * days, standby.sleeps as f64, 1e-9);
        assert!(report.to_string().contains("no wear"), "{report}");
    }
}

#[test]
fn a_single_depth_is_off_with_the_power_models_transitions_or_a_wake_time_of_its_own() {
    let trace = busy_and_quiet(3);
    let off = |report: &Report| -> DepthRow {
        assert_eq!(report.depths.len(), 1);
        report.depths[0].clone()
    };
    let usual = run(&trace, &shifting());
    let row = off(&usual);
    assert_eq!((row.depth, row.watts, row.up_seconds, row.wears), (Depth::Off, Watts(5.4), 13.0, true));
    close(row.asleep_joules.0, 5.4 * row.asleep_seconds, 1e-9);
    assert!(ups(&usual).all(|took| took > 13.0 && took < 33.0), "{:?}", usual.shifts);
    let slow = run(&trace, &Setup { wake: Some(Duration::from_secs(60)), ..shifting() });
    assert!(ups(&slow).all(|took| took > 60.0), "{:?}", slow.shifts);
    assert_eq!(off(&slow).up_seconds, 60.0);
    // The transition costs no more: the rest of the way up is spent at the draw of an idle server.
    let each = |report: &Report| off(report).transition_joules.0 / report.energy_modelled.transitions as f64;
    close(each(&slow), each(&usual), 0.2);
    // At the trace's own speed transitions count once.
    let (clock, own) = (usual.energy_modelled.clock, usual.energy_modelled.own_speed.expect("no pairs"));
    assert_eq!((clock.transition_weight, own.transition_weight), (20.0, 1.0));
    close(own.always_on_joules.0, clock.always_on_joules.0 * 20.0, 1e-9);
    close(own.transition_joules.0, clock.transition_joules.0, 1e-9);
    assert!(
        own.saved > clock.saved && own.transition_share < clock.transition_share,
        "{clock:?} and {own:?}"
    );
    let text = usual.to_string();
    assert!(text.contains("costs 20 times its real share"), "{text}");
    assert!(text.contains(&format!("saved at the trace's own speed: {:.1} %", own.saved * 100.0)), "{text}");
}

#[test]
fn a_cluster_that_exists_is_simulated_as_it_is() {
    let trace = busy_and_quiet(3);
    let rack = |n: u16| RackId([4, 7, 9][usize::from(n % 3)]);
    let servers: Vec<Server> = (0..9).map(|n| Server { id: ServerId(10 + 2 * n), rack: rack(n) }).collect();
    let existing = Existing {
        layout: layout(&servers, 3, 72, 1, Scheme::Rotated).unwrap(),
        loggers: vec![(ServerId(40), RackId(7))],
        schedule: Schedule::default(),
        timing: Timing::default(),
        up: Duration::from_secs(2),
    };
    let report = run(&trace, &Setup { loggers: 1, existing: Some(existing), ..shifting() });
    assert!(report.all_served(), "{report}");
    let [standby] = &report.depths[..] else { panic!("one depth: {:?}", report.depths) };
    assert_eq!((standby.depth, standby.up_seconds, standby.wears), (Depth::Standby, 2.0, true));
    assert_eq!(report.samples[0].awake_by_rack.len(), 3);
    let (first, later): (Vec<_>, Vec<_>) = report.states.iter().partition(|(at, ..)| at.is_zero());
    let ids: Vec<u16> = first.iter().map(|(_, id, _)| id.0).collect();
    assert_eq!(ids, [10, 12, 14, 16, 18, 20, 22, 24, 26, 40]);
    // From the decision on: the switch takes two seconds, and the server is heard of soon after.
    let woke = |id: ServerId| later.iter().filter(move |(_, of, _)| *of == id);
    let mut wakes = Vec::new();
    for id in first.iter().map(|(_, id, _)| *id) {
        for (from, to) in woke(id).zip(woke(id).skip(1)).filter(|(from, _)| from.2 == ServerState::Waking) {
            assert_eq!(to.2, ServerState::Awake);
            wakes.push((to.0 - from.0).as_secs_f64());
        }
    }
    assert!(wakes.len() >= 3 && wakes.iter().all(|took| *took >= 2.0 && *took < 4.0), "{wakes:?}");
}

#[test]
fn depths_of_sleep_that_cannot_be_are_refused_with_a_remedy() {
    let trace = apart(3, Kind::Read);
    let refused = |setup: Setup| simulate(&trace, &setup, &mut |_| true).unwrap_err().to_string();
    let suspend = Some(Suspend { watts: Watts(10.0), wake: Duration::ZERO });
    for setup in [Setup { suspend, ..small() }, Setup { wake: Some(Duration::ZERO), ..small() }] {
        let why = refused(setup);
        assert!(why.contains("no wake time") && why.contains("--suspend 10,15s"), "{why}");
    }
    let why = refused(Setup { cycles_per_day: 0.0, ..small() });
    assert!(why.contains("cycles per day is 0"), "{why}");
    let suspend = Some(Suspend { watts: Watts(-1.0), wake: Duration::from_secs(15) });
    assert!(refused(Setup { suspend, ..small() }).contains("not negative"));
}

#[test]
fn a_cluster_that_cannot_be_is_refused_with_a_remedy() {
    let trace = apart(3, Kind::Read);
    let error = |setup: Setup| simulate(&trace, &setup, &mut |_| true).unwrap_err();
    let racks = error(Setup { racks: 2, ..small() });
    assert!(
        matches!(racks, SimError::Racks { racks: 2, replicas: 3 }) && racks.to_string().contains("add racks")
    );
    let gear = error(Setup { servers: 6, gears: Gears::Fixed(1), ..small() });
    assert!(gear.to_string().contains("gears 2 to 3"), "{gear}");
    let asked = error(Setup { provision: Some(Provision::Servers(10)), ..small() });
    assert!(asked.to_string().contains("9"), "{asked}");
    assert!(simulate(&Trace::default(), &Setup::default(), &mut |_| true).is_err());
    let slow = error(Setup { speed: 0.0, ..small() });
    assert!(slow.to_string().contains("speed"), "{slow}");
}

#[test]
fn nothing_is_saved_where_nothing_sleeps_not_even_in_overload() {
    // Bursts that the disks need minutes for, and quiet in between: the power model is concave.
    let request = |n: u64| Request {
        at: Duration::from_millis(n / 2000 * 60_000 + n % 2000),
        device: (n % 4) as u32,
        offset: n * 7919 % 5000 * (1 << 20),
        len: 1 << 20,
        kind: Kind::Write,
    };
    let trace = Trace {
        requests: (0..6000).map(request).collect(),
        devices: (0..4).map(|n| format!("volume-{n}")).collect(),
        ..Trace::default()
    };
    let report = run(&trace, &Setup { gears: Gears::Fixed(3), ..small() });
    let span = report.trace.span_seconds;
    let late = report.done.iter().filter(|done| (done.at + done.took) as f64 / 1e9 > span + 1.0).count();
    assert!(late > 0 || report.requests.unanswered > 0, "no backlog is left at the end");
    let energy = report.energy_modelled;
    assert_eq!(energy.comparable, report.requests.failed + report.requests.unanswered == 0, "{report}");
    assert_eq!(report.to_string().contains("no savings"), !energy.comparable, "{report}");
    close(energy.clock.total_joules.0, energy.clock.always_on_joules.0, 1e-9);
    assert_eq!((energy.clock.transition_share, energy.own_speed), (None, Some(energy.clock)));
    assert!(energy.clock.saved.abs() < 1e-9 && (energy.mean_servers_awake - 9.0).abs() < 1e-6, "{energy:?}");
    // The samples are of the same energy over the same time.
    let last = report.samples.last().expect("samples");
    assert!(last.at_seconds <= span + 1e-6, "{} of {span}", last.at_seconds);
    let watts = report.samples.iter().map(|s| s.watts).sum::<f64>() / report.samples.len() as f64;
    close(watts * span, energy.clock.total_joules.0, 0.02);
}

fn on_pairs(kind: PolicyKind, setup: Setup) -> Setup {
    let settings = Settings { kind, ..Settings::default() };
    Setup { disk: DiskModel::pair(), mirroring: Mirroring { settings, ..Mirroring::default() }, ..setup }
}

fn close(found: f64, right: f64, share: f64) {
    assert!((found / right - 1.0).abs() < share, "{found} is not {right}");
}

#[test]
fn on_pairs_what_sleeping_servers_and_slow_disks_save_adds_up_to_what_is_not_taken() {
    let trace = busy_and_quiet(5);
    // Such that the busy hours need high speed.
    let mut disk = ebb_sim::mirror::TwoSpeedModel::paper();
    disk.low.rpm = 300.0;
    let mut setup = Setup { disk: DiskModel::Pair(disk), ..on_pairs(PolicyKind::LogStore, shifting()) };
    setup.mirroring.settings.thresholds = Thresholds {
        go_up: 0.1,
        go_down: 0.05,
        max_regular: 0.1,
        min_regular: 0.05,
        max_replay: 0.1,
        min_log: 0.05,
        ..Thresholds::default()
    };
    let report = run(&trace, &setup);
    println!("{report}");
    assert_eq!(report.requests.answered, trace.requests.len() as u64);
    let (pairs, energy) = (report.pairs.as_ref().expect("pairs"), report.energy_modelled);
    let scales = pairs.scales;
    assert!(scales.servers_saved.0 > 0.0 && scales.disks_saved.0 > 0.0 && scales.disks.0 > 0.0, "{scales:?}");
    close(
        scales.servers_saved.0 + scales.disks_saved.0 + scales.total().0,
        energy.clock.always_on_joules.0,
        1e-9,
    );
    assert_eq!((energy.clock.total_joules, pairs.saved_joules), (scales.total(), scales.saved()));
    assert_eq!(energy.own_speed, None, "a pair's changes of speed are part of its watts");
    close(pairs.servers_saved + pairs.disks_saved, energy.clock.saved, 1e-9);
    let low = pairs.low_share.expect("servers were awake");
    assert!(low > 0.1 && low < 0.9, "{low}");
    let changes: u64 = pairs.hours.iter().map(|hour| hour.changes).sum();
    let days = report.trace.span_seconds / report.trace.speed / 86_400.0;
    assert!(changes > 0 && pairs.most_changes_per_disk_day > pairs.changes_per_disk_day);
    close(pairs.changes_per_disk_day * 18.0 * days, changes as f64, 0.001);
    // The hours give the whole.
    assert_eq!(pairs.hours.len(), 5);
    let awake: f64 = pairs.hours.iter().map(|hour| hour.mean_servers_awake).sum();
    let mean: f64 =
        pairs.hours.iter().map(|hour| hour.mean_servers_awake * hour.low_share).sum::<f64>() / awake;
    close(mean, low, 0.01);
    assert!(pairs.hours.iter().all(|h| h.least_low_share <= h.low_share && h.low_share <= h.most_low_share));
    assert!(report.samples.iter().filter_map(|s| s.disks_low).any(|low| low > 0.5));
    let again = run(&trace, &setup);
    assert_eq!(format!("{report:?}"), format!("{again:?}"));
}

#[test]
fn pairs_of_one_speed_take_what_the_power_model_says() {
    let trace = busy_and_quiet(2);
    let setup = Setup { gears: Gears::Fixed(3), speed: 20.0, ..small() };
    let report = run(&trace, &on_pairs(PolicyKind::OneSpeed, setup.clone()));
    let pairs = report.pairs.as_ref().expect("pairs");
    let scales = pairs.scales;
    assert!(scales.disks_saved.0.abs() < 1e-6 * scales.disks.0, "{scales:?}");
    // Never asleep: 61.8 W idle, and more by load.
    let span = report.trace.span_seconds / report.trace.speed;
    close(scales.total().0, scales.always_on.0, 0.01);
    let watts = scales.total().0 / span / 9.0;
    assert!(watts > 61.8 && watts < 75.6, "{watts}");
    // Of these, two disks of 6 W.
    let disks = scales.disks.0 / span / 9.0;
    assert!(disks > 12.0 && disks < 14.0, "{disks}");
    assert_eq!((pairs.low_share, pairs.changes_per_disk_day), (Some(0.0), 0.0));
    assert!(run(&trace, &setup).pairs.is_none());
    let slow = run(&trace, &on_pairs(PolicyKind::LogStore, setup));
    let saved = slow.pairs.expect("pairs").scales;
    assert!(
        saved.disks_saved.0 > 0.3 * saved.disks.0 && saved.servers_saved.0.abs() < 0.01 * saved.servers.0
    );
}

#[test]
fn pairs_that_cannot_be_are_refused_with_a_remedy() {
    let trace = apart(3, Kind::Read);
    let refused = |change: &dyn Fn(&mut Setup)| {
        let mut setup = on_pairs(PolicyKind::LogStore, small());
        change(&mut setup);
        simulate(&trace, &setup, &mut |_| true).unwrap_err().to_string()
    };
    let model = |change: fn(&mut ebb_sim::mirror::TwoSpeedModel)| {
        let mut disk = ebb_sim::mirror::TwoSpeedModel::paper();
        change(&mut disk);
        refused(&move |setup| setup.disk = DiskModel::Pair(disk.clone()))
    };
    assert!(model(|disk| disk.low.rpm = 0.0).contains("low.rpm"));
    assert!(model(|disk| disk.capacity_bytes = 3 << 30).contains("log"));
    assert!(model(|disk| disk.capacity_bytes = 4 << 30).contains("capacity_bytes"));
    assert!(model(|disk| disk.high.idle = Watts(40.0)).contains("disks alone"));
    assert!(refused(&|setup| setup.mirroring.settings.epoch = Duration::ZERO).contains("epoch"));
}
