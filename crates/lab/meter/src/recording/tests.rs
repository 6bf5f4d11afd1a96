//! Energy computed by hand: the expected results for windows of samples.

use super::*;

fn at(seconds: f64) -> Moment {
    Moment((seconds * 1e9).round() as u64)
}

fn track(quantity: Quantity, samples: &[(f64, Option<f64>)]) -> Track {
    let channel =
        Channel { name: "c".into(), quantity, source: Source::Measured, part_of: None, sees: String::new() };
    let samples = samples.iter().map(|(seconds, value)| Sample { at: at(*seconds), value: *value }).collect();
    Track { channel, interval: Duration::from_secs(1), samples }
}

fn every_second(quantity: Quantity, values: &[f64]) -> Track {
    let samples: Vec<_> = values.iter().enumerate().map(|(i, v)| (i as f64, Some(*v))).collect();
    track(quantity, &samples)
}

fn close(left: Option<f64>, right: f64) {
    assert!(left.is_some_and(|left| (left - right).abs() < 1e-6), "{left:?} is not {right}");
}

fn joules(figures: &Figures) -> Option<f64> {
    figures.energy.map(|energy| energy.0)
}

#[test]
fn watts_are_joined_by_straight_lines_and_cut_at_the_window() {
    let track = every_second(Quantity::Power, &[10.0, 20.0, 20.0, 0.0]);
    let all = track.figures("m", at(0.0), at(3.0));
    close(joules(&all), 15.0 + 20.0 + 10.0);
    assert_eq!((all.samples, all.coverage, all.min, all.max), (4, 1.0, Some(0.0), Some(20.0)));
    close(all.mean, 15.0);
    let part = track.figures("m", at(0.5), at(2.5));
    close(joules(&part), 0.5 * 17.5 + 20.0 + 0.5 * 15.0);
    assert_eq!((part.samples, part.min), (2, Some(10.0)));
    assert_eq!(part.coverage, 1.0);
}

#[test]
fn time_outside_the_samples_is_not_covered() {
    let track = every_second(Quantity::Power, &[10.0, 10.0]);
    let wide = track.figures("m", at(0.5), at(4.5));
    close(joules(&wide), 5.0);
    close(wide.mean, 10.0);
    assert_eq!(wide.coverage, 0.125);
    let beside = track.figures("m", at(2.0), at(3.0));
    assert_eq!((beside.energy, beside.mean, beside.min, beside.coverage), (None, None, None, 0.0));
    let nothing = every_second(Quantity::Power, &[]).figures("m", at(0.0), at(1.0));
    assert_eq!((nothing.energy, nothing.coverage, nothing.samples), (None, 0.0, 0));
    assert_eq!(track.figures("m", at(1.0), at(1.0)).coverage, 0.0);
}

#[test]
fn a_missing_reading_of_watts_leaves_a_hole_that_is_not_zero() {
    let samples = [(0.0, Some(10.0)), (1.0, Some(10.0)), (2.0, None), (3.0, Some(10.0)), (4.0, Some(10.0))];
    let figures = track(Quantity::Power, &samples).figures("m", at(0.0), at(4.0));
    close(joules(&figures), 20.0);
    close(figures.mean, 10.0);
    assert_eq!((figures.coverage, figures.samples, figures.min), (0.5, 4, Some(10.0)));
    // So does a sampler that was stopped; a slightly late one does not.
    let samples = [(0.0, Some(10.0)), (2.4, Some(10.0)), (9.0, Some(10.0)), (10.0, Some(10.0))];
    let figures = track(Quantity::Power, &samples).figures("m", at(0.0), at(10.0));
    close(Some(figures.coverage), 0.34);
}

#[test]
fn a_window_that_begins_in_a_hole_does_not_reach_over_it() {
    let samples = [(0.0, Some(10.0)), (1.0, None), (2.0, Some(30.0)), (3.0, Some(30.0))];
    let figures = track(Quantity::Power, &samples).figures("m", at(1.5), at(3.0));
    close(joules(&figures), 30.0);
    close(Some(figures.coverage), 1.0 / 1.5);
}

#[test]
fn a_counter_is_subtracted_and_its_wrap_undone() {
    let range = Quantity::Energy { range: Some(65_536.0) };
    let figures = every_second(range, &[65_500.0, 65_530.0, 24.0, 54.0]).figures("m", at(0.0), at(3.0));
    close(joules(&figures), 90.0);
    close(figures.mean, 30.0);
    close(figures.max, 30.0);
    assert_eq!(figures.coverage, 1.0);
    let part = every_second(range, &[65_500.0, 65_530.0, 24.0]).figures("m", at(1.25), at(1.75));
    close(joules(&part), 15.0);
}

#[test]
fn a_counter_advances_unread_but_wraps_at_most_once() {
    let range = Quantity::Energy { range: Some(65_536.0) };
    let samples = [(0.0, Some(100.0)), (1.0, None), (2.0, None), (20.0, Some(700.0))];
    let figures = track(range, &samples).figures("m", at(0.0), at(20.0));
    close(joules(&figures), 600.0);
    assert_eq!((figures.coverage, figures.samples), (1.0, 2));
    // The window starts among absent readings: the last reading before them counts.
    close(joules(&track(range, &samples).figures("m", at(1.5), at(11.5))), 300.0);
    let long = track(range, &[(0.0, Some(100.0)), (40.0, Some(700.0))]);
    assert_eq!(long.figures("m", at(0.0), at(40.0)).energy, None);
}

#[test]
fn a_counter_that_was_set_back_is_not_guessed() {
    let figures = every_second(Quantity::Energy { range: None }, &[500.0, 600.0, 3.0, 53.0]).figures(
        "m",
        at(0.0),
        at(3.0),
    );
    close(joules(&figures), 150.0);
    close(Some(figures.coverage), 2.0 / 3.0);
}

#[test]
fn temperatures_have_a_mean_and_no_energy_and_states_hold() {
    let figures = every_second(Quantity::Temperature, &[30.0, 40.0, 40.0]).figures("m", at(0.0), at(2.0));
    close(figures.mean, 37.5);
    assert_eq!((figures.energy, figures.min, figures.max), (None, Some(30.0), Some(40.0)));
    let figures = every_second(Quantity::PowerState, &[0.0, 4.0]).figures("m", at(0.0), at(1.0));
    assert_eq!((figures.mean, figures.min, figures.max), (None, Some(0.0), Some(0.0)));
}

#[test]
fn a_meters_energy_counts_nothing_twice_and_hides_no_gap() {
    let channel = |name: &str, part_of: Option<&str>, source, samples: &[(f64, Option<f64>)]| {
        let mut track = track(Quantity::Power, samples);
        track.channel.name = name.into();
        track.channel.part_of = part_of.map(str::to_string);
        track.channel.source = source;
        track
    };
    let full = [(0.0, Some(10.0)), (1.0, Some(10.0)), (2.0, Some(10.0))];
    let half = [(0.0, Some(5.0)), (1.0, Some(5.0))];
    let mut record = MeterRecord {
        name: "m".into(),
        tracks: vec![
            channel("package", None, Source::Measured, &full),
            channel("core", Some("package"), Source::Measured, &full),
            channel("dram", None, Source::Modelled, &half),
            every_second(Quantity::Temperature, &[40.0, 40.0, 40.0]),
        ],
        reads: 3,
        failed_reads: 0,
        last_failure: None,
        why_absent: None,
        slowest_read: Duration::ZERO,
    };
    let clock = Clock { unix_nanos_at_zero: 0 };
    let window =
        |record: &MeterRecord| Recording { clock, meters: vec![record.clone()] }.window(at(0.0), at(2.0));
    let energy = window(&record).energy("m").unwrap();
    assert_eq!((energy.energy, energy.power, energy.coverage), (Joules(25.0), Watts(15.0), 0.5));
    assert_eq!(energy.source, Source::Modelled);
    assert_eq!(window(&record).energy("other"), None);
    close(window(&record).first("m", "temperature").unwrap().mean, 40.0);
    record.tracks[2].samples.clear();
    assert_eq!(window(&record).energy("m"), None);
}
