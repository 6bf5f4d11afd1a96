//! The set against what can be computed by hand, and against the paper's model.

use super::{CodedError, Failure, Report, Setup, simulate};
use ebb_erasure::model::buffer::{Buffers, Writes};
use ebb_erasure::model::energy::{Power, Run};
use ebb_erasure::{Shape, standby};
use ebb_power::PowerModel;
use ebb_trace::{Kind, Request};
use ebb_types::{Random, Watts};
use std::time::Duration;

const KIB: u64 = 1 << 10;

/// Requests of one size at random places that are whole strips apart, evenly over time.
fn requests(seconds: u64, per_second: u64, kind: Kind, bytes: u64) -> Vec<Request> {
    let mut random = Random::new(5);
    let mut request = |n: u64| Request {
        at: Duration::from_secs_f64(n as f64 / per_second as f64),
        device: 0,
        offset: random.below(1 << 22) * 16 * KIB,
        len: bytes as u32,
        kind,
    };
    (0..seconds * per_second).map(&mut request).collect()
}

/// A server that is on draws the same at any load, as in the paper's model.
fn flat() -> PowerModel {
    let on = Watts(73.2);
    PowerModel { idle: on, light: on, busy: on, ..PowerModel::default() }
}

fn setup() -> Setup {
    Setup { power: flat(), ..Setup::default() }
}

fn run(requests: &[Request], setup: &Setup) -> Report {
    simulate(&mut requests.iter().map(|request| Ok(*request)), setup).unwrap()
}

fn saved(requests: &[Request], setup: &Setup) -> f64 {
    let on = run(requests, &Setup { standby: None, ..setup.clone() });
    let asleep = run(requests, setup);
    1.0 - asleep.energy_modelled.mean_watts / on.energy_modelled.mean_watts
}

fn mean(report: &Report) -> f64 {
    report.all.unwrap().mean_millis
}

#[test]
fn without_writes_parity_sleeps_throughout_and_saves_the_optimum() {
    let reads = requests(600, 100, Kind::Read, 14 * KIB);
    assert!((saved(&reads, &setup()) - Power::default().most_saved(setup().shape, 0)).abs() < 1e-6);
    let asleep = run(&reads, &setup());
    let on = run(&reads, &Setup { standby: None, ..setup() });
    assert_eq!(asleep.all, on.all, "reads do not need parity servers");
    assert_eq!((asleep.synchronisations, asleep.most_filled), (0, 0.0));
}

/// An hour like DTRS by Table V: the simulated set against formulas (7) to (15).
#[test]
fn transitions_and_energy_are_those_of_the_papers_model() {
    let writes = requests(3600, 21, Kind::Write, 16 * KIB);
    let found = run(&writes, &setup());
    let model = Run {
        time: Duration::from_secs(3600),
        writes: Writes { per_second: 21.0, bytes: 16.0 * 1024.0 },
        buffers: Buffers { shape: setup().shape, strip_bytes: 16.0 * 1024.0, bytes: 1200e6 },
        threshold: 0.9,
    };
    let estimate = model.estimate(&Power::default());
    assert_eq!(found.synchronisations, estimate.transitions);
    let watts = estimate.energy.0 / 3600.0;
    assert!(
        (found.energy_modelled.mean_watts / watts - 1.0).abs() < 0.005,
        "{watts} {:?}",
        found.energy_modelled
    );
    assert!(found.most_filled < 0.92, "{}", found.most_filled);
    let seconds = found.synchronise_seconds.unwrap();
    assert!((6.5..7.5).contains(&seconds), "270 MB at 40 MB/s: {seconds}");
}

/// [ECS² §5.3.1]: one read, one write, and four writes to memory.
#[test]
fn an_update_takes_six_requests_at_data_servers_instead_of_two() {
    let writes = requests(60, 20, Kind::Write, 8 * KIB);
    assert_eq!(run(&writes, &setup()).asked_of_data_servers, Some(6.0));
    let on = run(&writes, &Setup { standby: None, ..setup() });
    assert_eq!(on.asked_of_data_servers, Some(2.0));
}

#[test]
fn overwrites_of_the_same_bytes_wake_no_parity_server() {
    let mut writes = requests(600, 50, Kind::Write, 16 * KIB);
    writes.iter_mut().for_each(|request| request.offset %= 1 << 20);
    let found = run(&writes, &Setup { buffer_bytes: 2_000_000, ..setup() });
    assert_eq!(found.synchronisations, 0, "a mebibyte is kept once: {}", found.most_filled);
}

/// An hour like Fin-2 by Table V: all its rows fit in the buffers, if what is written twice is kept once.
#[test]
fn without_folding_overwrites_fill_the_buffers_as_by_formula_10() {
    let mut writes = requests(3600, 23, Kind::Write, 3 * KIB);
    writes.iter_mut().for_each(|request| request.offset %= 77_000 * 16 * KIB);
    let at = |threshold| Some(standby::Settings { threshold, ..standby::Settings::default() });
    let woken = |folds_overwrites| {
        let found = run(&writes, &Setup { folds_overwrites, standby: at(0.75), ..setup() });
        found.synchronisations
    };
    let model = Run {
        time: Duration::from_secs(3600),
        writes: Writes { per_second: 23.0, bytes: 3.0 * 1024.0 },
        buffers: Buffers { shape: setup().shape, strip_bytes: 16.0 * 1024.0, bytes: 1200e6 },
        threshold: 0.75,
    };
    assert_eq!((woken(true), woken(false), model.transitions()), (0, 1, 1));
}

/// A write over two strips of a stripe changes rows of parity that they have in common.
#[test]
fn strips_of_one_write_are_folded_even_where_writes_are_not() {
    let write = |n: u64| Request {
        at: Duration::from_secs(n),
        device: 0,
        offset: 0,
        len: (32 * KIB) as u32,
        kind: Kind::Write,
    };
    let writes: Vec<Request> = (0..11).map(write).collect();
    let filled = |folds_overwrites| {
        let setup = Setup { folds_overwrites, buffer_bytes: 1 << 20, ..setup() };
        run(&writes, &setup).most_filled * 6.0 * (1 << 20) as f64
    };
    // Four strips of parity for each write; the last one is answered before the next look at the buffers.
    let strip = 4.0 * 16.0 * KIB as f64;
    assert!((filled(true) - strip).abs() < 1.0, "{}", filled(true));
    assert!((filled(false) - 10.0 * strip).abs() < 1.0, "{}", filled(false));
}

/// By Table VI: 61.8 W without load and at most 75.6 W.
#[test]
fn the_second_account_follows_the_load_and_sleeps_as_the_first_one() {
    let (idle, busy) = (reads_at(&[0.0, 300.0]), requests(300, 250, Kind::Read, 14 * KIB));
    let on = Setup { standby: None, ..setup() };
    let watts = |requests: &[Request], setup: &Setup| {
        let found = run(requests, setup);
        assert_eq!(found.by_load_modelled.transitions, found.energy_modelled.transitions);
        (found.energy_modelled.mean_watts, found.by_load_modelled.mean_watts)
    };
    let ((flat, quiet), (still_flat, loaded)) = (watts(&idle, &on), watts(&busy, &on));
    close(flat, 9.0 * 73.2);
    close(still_flat, flat);
    close(quiet, 9.0 * 61.8);
    // The parity servers have nothing to do.
    let data = (loaded - 3.0 * 61.8) / 6.0;
    assert!((70.8..75.6).contains(&data), "{data}");
    close(watts(&idle, &setup()).1, 6.0 * 61.8 + 3.0 * 5.4);
}

#[test]
fn with_one_failure_p1_is_awake_and_two_thirds_of_the_saving_remain() {
    let reads = requests(900, 60, Kind::Read, 14 * KIB);
    let failed = |megabits: f64| Setup {
        failure: Some(Failure { server: 2, rebuild_bytes_per_second: megabits * 1e6 / 8.0 }),
        ..setup()
    };
    let share = saved(&reads, &failed(450.0));
    assert!((share - Power::default().most_saved(setup().shape, 1)).abs() < 0.003, "{share}");
    let (none, slow, fast) =
        (run(&reads, &setup()), run(&reads, &failed(450.0)), run(&reads, &failed(750.0)));
    assert!(mean(&none) < mean(&slow) && mean(&slow) < mean(&fast), "a rebuild takes disks' time");
}

#[test]
fn a_seed_gives_the_same_run() {
    let writes = requests(100, 100, Kind::Write, 5 * KIB);
    let text = || format!("{:?}", run(&writes, &setup()));
    assert_eq!(text(), text());
}

#[test]
fn what_cannot_be_run_is_refused() {
    let check = |setup: Setup| setup.check().unwrap_err().to_string();
    let narrow = Shape::new(3, 3).unwrap();
    assert!(check(Setup { shape: narrow, ..setup() }).contains("widen it to 4+3"));
    assert!(Setup { shape: narrow, standby: None, ..setup() }.check().is_ok());
    assert!(check(Setup { row_bytes: 3, ..setup() }).contains("give a row that divides it"));
    assert!(check(Setup { rate: f64::NAN, ..setup() }).contains("rate is NaN"));
    let failure = Some(Failure { server: 6, rebuild_bytes_per_second: 1.0 });
    assert!(check(Setup { failure, ..setup() }).contains("0 to 5"));
    let settings = standby::Settings::default();
    let slow = Setup { standby: Some(settings), rate: 1e6, ..setup() };
    let writes = requests(5000, 100, Kind::Write, 16 * KIB);
    let overloaded = simulate(&mut writes.iter().map(|request| Ok(*request)), &slow);
    assert!(matches!(overloaded, Err(CodedError::Overloaded { .. })));
}

/// Reads at these seconds.
fn reads_at(seconds: &[f64]) -> Vec<Request> {
    let read = |at: &f64| Request {
        at: Duration::from_secs_f64(*at),
        device: 0,
        offset: 0,
        len: 4096,
        kind: Kind::Read,
    };
    seconds.iter().map(read).collect()
}

fn hibernating() -> Setup {
    Setup { hibernate: Some(Duration::from_secs(27)), ..setup() }
}

/// Histograms round to three digits.
fn close(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 1e-3, "{found} instead of {wanted}");
}

/// Quiet from the first answer, so down at the sample after 27 s of that, and up 13 s after the next request.
#[test]
fn a_quiet_set_sleeps_as_a_whole_and_a_request_wakes_it_and_waits() {
    let found = run(&reads_at(&[0.0, 300.0]), &hibernating());
    let slept = found.hibernation.unwrap();
    let waited = slept.waited.unwrap();
    assert_eq!((slept.times, waited.count), (1, 1));
    close(waited.max_millis, 13_000.0);
    assert!((13_000.0..13_100.0).contains(&found.all.unwrap().max_millis), "{:?}", found.all);
    let served = found.span_seconds - 313.0;
    let data = 6.0 * (28.0 * 73.2 + 569.0 + (300.0 - 28.0 - 7.0) * 5.4 + 1270.0 + served * 73.2);
    let parity = 3.0 * found.span_seconds * 5.4;
    let energy = found.energy_modelled;
    assert!((energy.total.0 - data - parity).abs() < 1e-3, "{} {}", energy.total.0, data + parity);
    assert_eq!(energy.transitions, 12);
}

#[test]
fn a_request_that_comes_while_the_set_goes_down_waits_for_both_transitions() {
    let found = run(&reads_at(&[0.0, 30.0, 31.0]), &hibernating());
    let slept = found.hibernation.unwrap();
    let waited = slept.waited.unwrap();
    // Down from 28 s to 35 s, up at 48 s.
    assert_eq!((slept.times, waited.count), (1, 2));
    close(waited.max_millis, 18_000.0);
    close(waited.mean_millis, 17_500.0);
}

#[test]
fn a_set_without_a_long_enough_quiet_spell_saves_nothing_more() {
    let seconds: Vec<f64> = (0..20).map(|n| f64::from(n) * 26.0).collect();
    let (with, without) = (run(&reads_at(&seconds), &hibernating()), run(&reads_at(&seconds), &setup()));
    let slept = with.hibernation.unwrap();
    assert_eq!((slept.times, slept.waited), (0, None));
    assert_eq!(with.energy_modelled, without.energy_modelled);
    assert_eq!(with.all, without.all);
}

#[test]
fn a_set_does_not_sleep_while_parity_is_awake() {
    let on = Setup { standby: None, ..hibernating() };
    let found = run(&reads_at(&[0.0, 300.0]), &on);
    assert_eq!(found.hibernation.unwrap().times, 0);
    assert!((found.energy_modelled.mean_watts - 9.0 * 73.2).abs() < 1e-6);
}
