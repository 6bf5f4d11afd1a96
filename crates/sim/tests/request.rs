//! Whole runs of the request level: every request is answered, the same arguments give the same report, the figures add
//! up.

use ebb_gear::Provision;
use ebb_sim::request::workload::Day;
use ebb_sim::request::{DiskModel, Gears, NetworkModel, Phase, Report, Setup, SimError, Traffic, simulate};
use ebb_trace::Trace;
use ebb_trace::{Kind, Request};
use std::time::Duration;

const HOURS: u64 = 6;

fn day(requests: u64) -> Trace {
    let span = Duration::from_secs(HOURS * 3600);
    Day { requests, span, volumes: 8, volume_bytes: 1 << 30, ..Day::default() }.trace()
}

fn run(trace: &Trace, setup: &Setup) -> Report {
    simulate(trace, setup, &mut |_| {}).expect("a cluster that can be")
}

/// Hours of one minute each, so that a day of shifts is short.
fn shifting() -> Setup {
    Setup { gears: Gears::Schedule, provision: Some(Provision::Peak), speed: 20.0, ..Setup::default() }
}

/// Alternating busy and quiet hours, a request every 0.1 or 2 simulated seconds at the speed of `shifting`.
fn busy_and_quiet(hours: u64) -> Trace {
    let hour = |h: u64| {
        let gap = if h.is_multiple_of(2) { 2 } else { 40 };
        (0..3600 / gap).map(move |n| h * 3600 + n * gap)
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
    let phases = |phase| report.latency.iter().any(|row| row.phase == Some(phase));
    assert!(phases(Phase::Steady) && phases(Phase::Reclaim));
    let counted: u64 =
        report.latency.iter().filter(|row| row.gear.is_some()).map(|row| row.latency.count).sum();
    assert_eq!(counted, count);
}

#[test]
fn the_same_arguments_give_the_same_report() {
    let (trace, setup) = (day(1500), Setup { gears: Gears::Auto, ..shifting() });
    let (first, second) = (run(&trace, &setup), run(&trace, &setup));
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

#[test]
fn a_lonely_read_takes_the_disk_and_two_ways() {
    let disk = DiskModel::hdd_2009();
    let DiskModel::Hdd(hdd) = &disk else { panic!("a hard disk") };
    let right = hdd.random_access_seconds(false, 4096) * 1e3;
    let network = NetworkModel::gigabit();
    // There and back, through one switch or three.
    let (near, far) = (2.0 * network.latency_seconds * 1e3, 6.0 * network.latency_seconds * 1e3);
    let setup = Setup { disk: disk.clone(), network, gears: Gears::Fixed(3), ..Setup::default() };
    let report = run(&apart(1500, Kind::Read), &setup);
    let mean = report.latency[0].latency.mean_millis;
    assert!(mean > (right + near) * 0.97 && mean < (right + far + 0.1) * 1.03, "{mean} against {right}");
    assert_eq!(report.requests.answered, 1500);
}

#[test]
fn each_copy_of_a_write_crosses_the_network_once_in_every_gear() {
    let count = 400;
    for gear in [3, 1] {
        let setup = Setup { gears: Gears::Fixed(gear), disk: DiskModel::ssd(), ..Setup::default() };
        let report = run(&apart(count, Kind::Write), &setup);
        assert_eq!(report.requests.answered, count);
        let bytes = |traffic| report.traffic.iter().find(|row| row.traffic == traffic).unwrap().bytes;
        // At midnight, with the first write, the gear groups rotate. Writes until that shift ends go to the old holder
        // of the group that stays asleep, which then hands them to the new one. Nothing else crosses the network twice.
        let turn = report.shifts.first().map_or(0.0, |s| s.at_seconds + s.took_seconds);
        let handed_on = (0..count).filter(|second| (*second as f64) < turn).count() as u64;
        assert_eq!((handed_on > 0, report.shifts.len()), (gear == 1, usize::from(gear == 1)));
        // Two of three copies leave the primary, each with a head of 150 bytes and a checksum.
        let records = 2 * count + handed_on;
        let sent = bytes(Traffic::Replication) + bytes(Traffic::Offload);
        assert_eq!(sent, records * (4096 + 150 + 4), "gear {gear}: {report}");
        assert_eq!(bytes(Traffic::Offload) > 0, gear == 1);
    }
}

#[test]
fn a_cluster_that_cannot_be_is_refused_with_a_remedy() {
    let trace = apart(3, Kind::Read);
    let error = |setup: Setup| simulate(&trace, &setup, &mut |_| {}).unwrap_err();
    let racks = error(Setup { racks: 2, ..Setup::default() });
    assert!(
        matches!(racks, SimError::Racks { racks: 2, replicas: 3 }) && racks.to_string().contains("add racks")
    );
    let gear = error(Setup { servers: 6, gears: Gears::Fixed(1), ..Setup::default() });
    assert!(gear.to_string().contains("gears 2 to 3"), "{gear}");
    let asked = error(Setup { provision: Some(Provision::Servers(10)), ..Setup::default() });
    assert!(asked.to_string().contains("9"), "{asked}");
    assert!(simulate(&Trace::default(), &Setup::default(), &mut |_| {}).is_err());
    let slow = error(Setup { speed: 0.0, ..Setup::default() });
    assert!(slow.to_string().contains("speed"), "{slow}");
}
