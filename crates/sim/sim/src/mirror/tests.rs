//! The paper's claims on a part of the generated days, at the same rates; and the bookkeeping of a run.

use super::*;
use ebb_trace::{Format, InMemory, Kind, Request, Trace};
use std::collections::BTreeMap;
use std::time::Duration;

/// The rhythm of the whole day, with one in this many of its requests. Shorter days of Proxy end before the log pays.
fn part(workload: Workload) -> u32 {
    if workload == Workload::Proxy { 4 } else { 12 }
}

fn day(workload: Workload) -> Trace {
    let daily = workload.after_cache().part(part(workload));
    Trace::collect(workload.name().to_owned(), &mut daily.requests(1).unwrap()).unwrap()
}

fn setup(kind: PolicyKind, rate: f64) -> Setup {
    // The paper's average, read as one that weighs the new value.
    let settings = Settings { kind, ack: Ack::One, smoothing: 0.125, ..Settings::default() };
    Setup { settings, rate, ..Setup::default() }
}

fn run(trace: &Trace, setup: &Setup) -> Report {
    let mut reader = InMemory::new(&trace.requests, &trace.devices);
    simulate(&trace.name, &mut reader, setup, &mut |_| ()).unwrap()
}

fn joules(report: &Report) -> f64 {
    report.energy_modelled.total.0
}

fn close(found: f64, right: f64, share: f64) {
    assert!((found / right - 1.0).abs() < share, "{found} is not {right}");
}

/// All systems at these rates, one-speed disks last.
fn systems(workload: Workload, rates: [f64; 3]) -> Vec<[Report; 4]> {
    let trace = day(workload);
    let kinds = [PolicyKind::LogStore, PolicyKind::TwoSpeed, PolicyKind::Div, PolicyKind::OneSpeed];
    rates.map(|rate| kinds.map(|kind| run(&trace, &setup(kind, rate)))).into()
}

/// [LogStore Tables 3 and 4]: LogStore takes the least energy at each acceleration, and the throughput is the load.
fn logstore_takes_least(all: &[[Report; 4]]) {
    for [logstore, others @ ..] in all {
        for other in others {
            let rate = logstore.trace.rate;
            assert!(joules(logstore) < joules(other), "{rate}: {} {:?}", joules(other), other.setup.policy);
            assert_eq!(other.requests, logstore.requests, "all requests are answered");
            close(other.trace.span_seconds, logstore.trace.span_seconds, 0.002);
        }
        assert!(logstore.energy_modelled.low_share > others[0].energy_modelled.low_share);
    }
}

/// The paper's energies of one-speed disks; a part of the day takes a part of them.
fn one_speed_takes(all: &[[Report; 4]], part: u32, kilojoules: [f64; 3]) {
    for ([.., one], paper) in all.iter().zip(kilojoules) {
        close(joules(one) / 1e3 * f64::from(part), paper, 0.05);
    }
}

/// Its disk with the reads never slows down, and the other one has the writes alone: as in the paper, to within 4.6 %,
/// whose days are whole.
fn div_takes_half_of_one_speed_and_half_of_two(all: &[[Report; 4]]) {
    for [_, two, div, one] in all {
        close(joules(div), (joules(one) + joules(two)) / 2.0, 0.1);
        assert_eq!(div.disks[0].energy.changes_up + div.disks[0].energy.changes_down, 0);
        assert!(div.disks[1].low_share > Some(0.0));
    }
}

#[test]
fn on_financial_logstore_saves_against_all_and_one_speed_disks_take_what_table_3_says() {
    let all = systems(Workload::Financial, [2.0, 4.0, 6.0]);
    logstore_takes_least(&all);
    one_speed_takes(&all, 12, [274.5, 142.9, 98.9]);
    div_takes_half_of_one_speed_and_half_of_two(&all);
    let saved = |[logstore, .., one]: &[Report; 4]| 1.0 - joules(logstore) / joules(one);
    assert!(saved(&all[0]) > 0.7 && saved(&all[2]) > 0.33, "{} {}", saved(&all[0]), saved(&all[2]));
}

#[test]
fn on_proxy_logstore_saves_against_all_and_one_speed_disks_take_what_table_4_says() {
    let all = systems(Workload::Proxy, [7.0, 14.0, 21.0]);
    logstore_takes_least(&all);
    one_speed_takes(&all, 4, [155.8, 82.0, 56.0]);
    div_takes_half_of_one_speed_and_half_of_two(&all);
}

#[test]
fn without_writes_logstore_is_as_good_as_two_speed_disks() {
    // The whole day: in a part of it, a single wave, a change of speed more or less is 5 % of the energy.
    let mut requests = Workload::Search.after_cache().requests(1).unwrap();
    let trace = Trace::collect("search".to_owned(), &mut requests).unwrap();
    let [logstore, two, one] = [PolicyKind::LogStore, PolicyKind::TwoSpeed, PolicyKind::OneSpeed]
        .map(|kind| run(&trace, &setup(kind, 6.0)));
    close(joules(&logstore), joules(&two), 0.02);
    assert!(joules(&logstore) < 0.8 * joules(&one));
    assert_eq!(logstore.disks.map(|disk| disk.work.logged_blocks), [0; 2]);
}

fn mean_millis(report: &Report) -> f64 {
    report.response.all.unwrap().mean_millis
}

/// With a limit of `times` the mean response time of the paper's thresholds.
fn adaptive(trace: &Trace, fixed: &Report, times: f64) -> Report {
    let response_limit = Duration::from_secs_f64(times * mean_millis(fixed) / 1e3);
    let mut setup = setup(PolicyKind::LogStore, fixed.trace.rate);
    setup.settings.adaptive = Some(Adaptive { response_limit, ..Adaptive::default() });
    run(trace, &setup)
}

#[test]
fn at_the_response_time_of_the_papers_thresholds_adaptive_ones_are_no_worse() {
    for (workload, rate) in [(Workload::Financial, 2.0), (Workload::Proxy, 21.0), (Workload::Search, 6.0)] {
        let trace = day(workload);
        let fixed = run(&trace, &setup(PolicyKind::LogStore, rate));
        let found = adaptive(&trace, &fixed, 1.0);
        assert!(joules(&found) < 1.02 * joules(&fixed), "{} at {rate}x", workload.name());
        assert!(mean_millis(&found) < 1.02 * mean_millis(&fixed), "{} at {rate}x", workload.name());
    }
}

#[test]
fn on_financial_at_6x_adaptive_thresholds_save_five_points_more_within_their_limit() {
    let trace = day(Workload::Financial);
    let [fixed, one] =
        [PolicyKind::LogStore, PolicyKind::OneSpeed].map(|kind| run(&trace, &setup(kind, 6.0)));
    let found = adaptive(&trace, &fixed, 4.0);
    let points = 100.0 * (joules(&fixed) - joules(&found)) / joules(&one);
    let later = mean_millis(&found) / mean_millis(&fixed);
    assert!(points > 5.0 && later < 4.1, "{points} points, {later} times the response time");
}

#[test]
fn every_second_of_a_disk_has_one_state_and_every_joule_one_cause() {
    let report = run(&day(Workload::Proxy), &setup(PolicyKind::LogStore, 14.0));
    let span = report.trace.span_seconds;
    for (n, disk) in report.disks.iter().enumerate() {
        close(disk.states.seconds(), span, 1e-9);
        close(disk.energy.seconds(), span, 1e-9);
        close(disk.states.change_seconds, disk.energy.change.seconds, 1e-9);
        close(
            disk.states.high_seconds,
            disk.energy.idle_high.seconds + disk.energy.access_high.seconds,
            1e-9,
        );
        let sampled: f64 = report.samples.iter().map(|sample| sample.disks[n].seconds()).sum();
        close(sampled, span, 1e-9);
        let w = &disk.work;
        let busy =
            [w.read_seconds, w.write_seconds, w.log_read_seconds, w.log_write_seconds, w.notes_seconds];
        close(busy.iter().sum(), disk.energy.access_low.seconds + disk.energy.access_high.seconds, 0.001);
        assert!(disk.states.low_log_seconds > 0.0 && w.logged_blocks > disk.replayed_blocks);
        assert!(disk.replayed_blocks > 0);
    }
    close(report.disks.map(|disk| disk.total.0).iter().sum(), joules(&report), 1e-12);
    let sum = |of: fn(&Sample) -> f64| report.samples.iter().map(of).sum::<f64>();
    close(sum(|s| s.offered_per_second), sum(|s| s.answered_per_second), 0.001);
    let r = report.response;
    let counts = [r.reads, r.writes, r.in_changes, r.outside_changes].map(|l| l.map_or(0, |l| l.count));
    let all = r.all.unwrap().count;
    assert_eq!([counts[0] + counts[1], counts[2] + counts[3], all], [report.trace.requests; 3]);
}

#[test]
fn a_seed_decides_everything() {
    let trace = day(Workload::Proxy);
    let json = |seed| {
        let setup = Setup { seed, ..setup(PolicyKind::LogStore, 21.0) };
        ebb_output::json(&run(&trace, &setup))
    };
    assert_eq!(json(1), json(1));
    assert_ne!(json(1), json(2));
}

/// At high speed 6 W each while they idle, and nothing else.
#[test]
fn idle_disks_take_twelve_watts_at_one_speed_one_at_two_and_half_of_each_with_div() {
    let read = |seconds| Request {
        at: Duration::from_secs(seconds),
        device: 0,
        offset: 0,
        len: 512,
        kind: Kind::Read,
    };
    let trace = Trace { requests: vec![read(0), read(1000)], ..Trace::default() };
    let report = run(&trace, &setup(PolicyKind::OneSpeed, 1.0));
    close(report.energy_modelled.mean_watts, 12.0, 0.001);
    let low = run(&trace, &setup(PolicyKind::TwoSpeed, 1.0));
    assert!(low.energy_modelled.mean_watts < 1.5 && low.energy_modelled.changes == 2, "{}", joules(&low));
    let div = run(&trace, &setup(PolicyKind::Div, 1.0));
    let is_half = (6.4..6.7).contains(&div.energy_modelled.mean_watts);
    assert!(is_half && div.energy_modelled.changes == 1, "{}", joules(&div));
}

#[test]
fn a_faster_disk_model_and_a_safe_acknowledgement_are_what_they_say() {
    let trace = day(Workload::Proxy);
    let one = run(&trace, &setup(PolicyKind::LogStore, 14.0));
    let mut safe = setup(PolicyKind::LogStore, 14.0);
    safe.settings.ack = Ack::Safe;
    let mean = |report: &Report| report.response.writes.unwrap().mean_millis;
    assert!(mean(&run(&trace, &safe)) > mean(&one), "two disks are slower than the first of them");
    let mut quick = setup(PolicyKind::LogStore, 14.0);
    quick.disk.average_seek_seconds /= 2.0;
    quick.disk.full_stroke_seconds /= 2.0;
    assert!(mean(&run(&trace, &quick)) < mean(&one));
}

#[test]
fn requests_are_rounded_outward_and_folded_into_the_mirror() {
    let at = |offset, len, device| Request { at: Duration::ZERO, device, offset, len, kind: Kind::Write };
    let disk = TwoSpeedModel { capacity_bytes: 64 << 20, ..TwoSpeedModel::paper() };
    let setup = Setup { disk, log_bytes: 0, ..setup(PolicyKind::LogStore, 1.0) };
    let requests = vec![at(4095, 2, 0), at(1 << 40, 4096, 0), at(0, 4096, 1), at(0, 0, 0)];
    let trace = Trace { requests, devices: vec!["a".into(), "b".into()], ..Trace::default() };
    let report = run(&trace, &setup);
    assert_eq!((report.trace.requests, report.trace.folded, report.trace.empty), (3, 1, 1));
    // The first takes two blocks.
    assert_eq!(report.trace.written_bytes, 2 + 4096 + 4096);
    assert_eq!(report.disks.map(|disk| disk.work.writes), [3; 2]);
    let long = Trace { requests: vec![at(0, 1 << 30, 0)], ..Trace::default() };
    let mut reader = InMemory::new(&long.requests, &long.devices);
    let error = simulate("long", &mut reader, &setup, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("capacity_bytes"), "{error}");
}

#[test]
fn impossible_runs_are_refused() {
    let refused = |change: fn(&mut Setup), trace: &Trace| {
        let mut setup = setup(PolicyKind::LogStore, 1.0);
        change(&mut setup);
        let mut reader = InMemory::new(&trace.requests, &trace.devices);
        simulate("x", &mut reader, &setup, &mut |_| ()).unwrap_err().to_string()
    };
    let none = Trace::default();
    assert!(refused(|_| (), &none).contains("x has no request"));
    assert!(refused(|s| s.rate = 0.0, &none).contains("rate of 0"));
    assert!(refused(|s| s.rate = f64::NAN, &none).contains("rate of NaN"));
    assert!(refused(|s| s.disk.low.rpm = 0.0, &none).contains("low.rpm"));
    assert!(refused(|s| s.settings.epoch = Duration::ZERO, &none).contains("epoch"));
    assert!(refused(|s| s.log_bytes = 1 << 40, &none).contains("log of"));
    assert!(refused(|s| s.rate = 400.0, &day(Workload::Search)).contains("unanswered"));
}

#[test]
fn a_file_is_read_and_a_page_has_both_charts() {
    let text = "0,8,4096,W,0.5\n0,8,4096,R,60.0\n1,8,512,W,90.25\n";
    let mut trace = ebb_trace::open("x.spc", text.as_bytes()).unwrap();
    assert_eq!(trace.format(), Some(Format::Spc));
    let report = simulate("x.spc", trace.as_mut(), &setup(PolicyKind::LogStore, 1.0), &mut |_| ()).unwrap();
    assert_eq!((report.trace.requests, report.trace.reads, report.samples.len()), (3, 1, 3));
    assert_eq!(page(&report).matches("<figure>").count(), 2);
    let shown = report.to_string();
    for part in ["x.spc at 1x: 3 requests (1 reads)", "policy logstore", "disk B", "at other times"] {
        assert!(shown.contains(part), "{shown}");
    }
    let keys: BTreeMap<String, serde_json::Value> = serde_json::from_str(&ebb_output::json(&report)).unwrap();
    assert!(keys["energy_modelled"]["total_joules"].as_f64().is_some_and(|joules| joules > 0.0));
}

/// All keys, at any depth.
fn keys(value: &serde_json::Value, out: &mut std::collections::BTreeSet<String>) {
    match value {
        serde_json::Value::Object(map) => map.iter().for_each(|(key, value)| {
            out.insert(key.clone());
            keys(value, out);
        }),
        serde_json::Value::Array(all) => all.iter().for_each(|value| keys(value, out)),
        _ => {}
    }
}

#[test]
fn every_key_of_the_json_is_documented() {
    let report = run(&day(Workload::Search), &setup(PolicyKind::LogStore, 6.0));
    let mut found = std::collections::BTreeSet::new();
    keys(&serde_json::from_str(&ebb_output::json(&report)).unwrap(), &mut found);
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/json.md")).unwrap();
    let (head, rest) = page.split_once("## `ebb simulate mirror --json`").expect("the page has the section");
    let section = rest.split("\n## ").next().unwrap();
    // A latency is explained once, at the top.
    let explained = |key: &String| {
        ["", "[]"].iter().any(|end| section.contains(&format!("`{key}{end}`")))
            || head.contains(&format!(" {key},"))
            || head.contains(&format!("{{{key},"))
            || head.contains(&format!(" {key}}}"))
    };
    let missing: Vec<&String> = found.iter().filter(|key| !explained(key)).collect();
    assert!(found.len() > 60 && missing.is_empty(), "{missing:?} of {} keys are not documented", found.len());
}
