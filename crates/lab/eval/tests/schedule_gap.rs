//! How far the scheduler falls short of an oracle: the production scheduler is fed the load samples of a trace, as the
//! metadata service does in a rehearsal, and its energy is compared with the oracle's. No cluster runs.

use ebb_gear::{
    Calendar, Command, Decider, Event, History, LoadSeries, Mode, Policy, Provision, Scheduler, ServerRates,
    load, rehearsal, sample_interval,
};
use ebb_power::PowerModel;
use ebb_replay::energy::{Change, Compared, EnergyReport, changes_of, modelled};
use ebb_trace::{Kind, Request, Trace};
use ebb_types::{GearGroup, Moment, Schedule, ServerId};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

const SERVERS: u32 = 9;
const REPLICAS: u8 = 3;
/// Time by the clock from the decision until a server is in standby: it hands over, flushes and is switched.
const TO_SLEEP: Duration = Duration::from_millis(1500);

fn servers() -> Vec<(ServerId, GearGroup)> {
    (0..SERVERS as u16).map(|id| (ServerId(id), GearGroup((id % u16::from(REPLICAS)) as u8))).collect()
}

fn policy(schedule: &Schedule) -> Policy {
    Policy::of(schedule, vec![SERVERS / u32::from(REPLICAS); usize::from(REPLICAS)])
}

/// What the scheduler does with the samples, in trace time. All servers are awake at first.
fn live(series: &LoadSeries, schedule: &Schedule, speed: f64) -> Vec<Change> {
    let calendar = Calendar { origin: Moment::ZERO, elapsed: Duration::ZERO };
    let members = servers().into_iter().collect();
    let mut scheduler =
        Scheduler::new(policy(schedule), members, calendar, Moment::ZERO, Mode::Auto, REPLICAS)
            .expect("a good policy");
    let (mut history, interval) = (History::default(), sample_interval(schedule));
    let mut awake: BTreeSet<ServerId> = servers().into_iter().map(|(server, _)| server).collect();
    let mut changes: Vec<Change> = servers()
        .iter()
        .map(|(server, _)| Change { at: Duration::ZERO, server: *server, on: true })
        .collect();
    for (index, count) in series.counts.iter().enumerate() {
        let at = interval * (index as u32 + 1);
        let mut commands = Vec::new();
        let load = load(count, interval, &ServerRates::from(schedule), REPLICAS);
        scheduler.on(Moment::ZERO + at, &history, Event::Sample { load, interval }, &mut commands);
        for command in commands {
            match command {
                Command::RecordHour { hour, peak, .. } => history.record(hour, peak, schedule.hours_per_day),
                Command::Wake(server) => {
                    if awake.insert(server) {
                        changes.push(Change { at: at.mul_f64(speed), server, on: true });
                    }
                }
                Command::Sleep(server) => {
                    if awake.remove(&server) {
                        changes.push(Change { at: (at + TO_SLEEP).mul_f64(speed), server, on: false });
                    }
                }
                Command::Bug(bug) => panic!("{bug:?}"),
            }
        }
    }
    changes.sort_by_key(|change| change.at);
    changes
}

fn gap(trace: &Trace, speed: f64) -> Compared {
    let mut schedule = rehearsal(&Schedule::default(), speed).unwrap();
    let mut series = LoadSeries::new(trace.loads(64 << 20).unwrap(), speed, &schedule, REPLICAS).unwrap();
    series.provision(&mut schedule, Provision::Peak, SERVERS, &[]).unwrap();
    let gears = ebb_gear::oracle(0, &series.peaks(), &policy(&schedule)).gears;
    let energy =
        |changes: &[Change]| modelled(&PowerModel::default(), &series, changes, &[], trace.span()).unwrap();
    let of_gears = |gears: &[u8]| energy(&changes_of(gears, series.hour, &servers()));
    let report =
        EnergyReport::new(energy(&live(&series, &schedule, speed)), of_gears(&[REPLICAS]), of_gears(&gears));
    let compared = report.compared.expect("a simulation keeps up");
    println!(
        "{} at speed {speed}: saves {:.1} %, the oracle {:.1} %: {:.1} points behind; {} transitions against {}",
        trace.name,
        compared.saved_percent,
        compared.oracle_saved_percent,
        compared.behind_oracle_points,
        report.cluster.transitions,
        report.oracle.transitions
    );
    compared
}

/// A week with a daily rhythm, a quiet weekend, and unexpected bursts.
fn week() -> Trace {
    let mut random = 0x5eed_u64;
    let mut draw = move |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let mut requests = Vec::new();
    for hour in 0..7 * 24u64 {
        let day = (0.5 - 0.5 * (std::f64::consts::TAU * (hour % 24) as f64 / 24.0).cos()).powi(2);
        let weekend = if hour / 24 >= 5 { 0.3 } else { 1.0 };
        let count = 40 + (400.0 * day * weekend) as u64;
        let mut times: Vec<u64> = (0..count).map(|_| hour * 3600 + draw(3600)).collect();
        if draw(40) == 0 {
            times.extend((0..60).map(|_| hour * 3600 + 900 + draw(60)));
        }
        times.sort_unstable();
        requests.extend(times.into_iter().map(|at| Request {
            at: Duration::from_secs(at),
            device: 0,
            offset: draw(1000) * 4096,
            len: 4096,
            kind: if draw(3) == 0 { Kind::Read } else { Kind::Write },
        }));
    }
    Trace { name: "a made week".into(), requests, devices: vec!["made".into()], ..Trace::default() }
}

#[test]
fn a_week_with_a_rhythm_is_served_within_five_points_of_the_oracle() {
    // At 2000, a server that goes to sleep would be charged most of an hour for its second and a half of handing over.
    let report = gap(&week(), 100.0);
    assert!(report.oracle_saved_percent > 20.0, "the week gives the oracle something to save");
    assert!(report.behind_oracle_points <= 5.0, "{report:?}");
}

#[test]
fn the_real_week_is_served_within_five_points_of_the_oracle() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/traces/block/hplajw.1week.srt");
    if !path.exists() {
        return ebb_testing::skip("no real week at ../shared/traces/block");
    }
    let trace =
        ebb_eval::traces::load(&[path], &ebb_trace::Options::default(), &ebb_eval::traces::silent()).unwrap();
    let report = gap(&trace, 2000.0);
    assert!(report.oracle_saved_percent > 50.0 && report.behind_oracle_points <= 5.0, "{report:?}");
}
