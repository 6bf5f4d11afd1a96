use super::*;

const DAY: u32 = 8;
const SHAPE: [f64; DAY as usize] = [2.0, 2.0, 4.0, 8.0, 16.0, 16.0, 8.0, 4.0];

fn history(days: u64, load: impl Fn(u64, usize) -> Option<f64>) -> History {
    let mut history = History::default();
    for hour in 0..days * u64::from(DAY) {
        if let Some(load) = load(hour / u64::from(DAY), (hour % u64::from(DAY)) as usize) {
            history.record(hour, Load(load), DAY);
        }
    }
    history
}

/// Possible futures from the end of `history` on.
fn ahead(history: &History) -> Ahead {
    let hour = history.newest().expect("a history") + 1;
    let seasonal = Seasonal::fit(history, hour / u64::from(DAY), DAY).expect("a forecast");
    seasonal.ahead(history, hour)
}

#[test]
fn nothing_is_forecast_from_nothing() {
    assert_eq!(Seasonal::fit(&History::default(), 3, DAY), None);
    assert_eq!(Seasonal::fit(&history(3, |_, h| Some(SHAPE[h])), 0, DAY), None);
}

#[test]
fn a_steady_day_comes_again_leaning_on_its_neighbours() {
    let ahead = ahead(&history(5, |_, h| Some(SHAPE[h])));
    assert!((ahead.median(0).0 - 2.0).abs() < 0.5, "{:?}", ahead.median(0));
    assert!((12.0..16.5).contains(&ahead.median(4).0), "{:?}", ahead.median(4));
    assert!((12.0..16.5).contains(&ahead.mean(4).0), "{:?}", ahead.mean(4));
}

#[test]
fn one_burst_and_one_outage_move_nothing() {
    let calm = ahead(&history(9, |_, h| Some(SHAPE[h])));
    let rough = ahead(&history(9, |day, h| match (day, h) {
        (4, 3) => Some(500.0),
        (5, 2..6) => None,
        _ => Some(SHAPE[h]),
    }));
    for hour in 0..DAY as usize {
        let (a, b) = (calm.median(hour).0, rough.median(hour).0);
        assert!((a - b).abs() < 0.2 * a + 5.0 * 0.01 * 500.0 / 16.0, "hour {hour}: {a} and {b}");
    }
}

#[test]
fn an_hour_that_often_bursts_is_likely_to_exceed_its_median() {
    let ahead = ahead(&history(20, |day, h| Some(if h == 4 && day % 4 == 0 { 40.0 } else { 4.0 })));
    assert!(ahead.median(4).0 < 6.0);
    let (bursts, calm) = (ahead.exceeds(4)(Load(10.0)), ahead.exceeds(1)(Load(10.0)));
    assert!(bursts > 0.1 && calm < 0.05, "{bursts} and {calm}");
}

#[test]
fn what_comes_in_trains_is_foreseen() {
    // Every third hour bursts, whatever the time of day: eight hours a day shift it from day to day.
    let trains = |hour: u64| if hour.is_multiple_of(3) { 30.0 } else { 3.0 };
    let ahead = ahead(&history(20, |day, h| Some(trains(day * u64::from(DAY) + h as u64))));
    let next = (20 * u64::from(DAY)) % 3;
    for hour in 0..6u64 {
        let exceeds = ahead.exceeds(hour as usize)(Load(10.0));
        let bursts = (next + hour).is_multiple_of(3);
        assert_eq!(exceeds > 0.5, bursts, "{hour} hours ahead: {exceeds}");
    }
    let quiet = ahead.quiet(Load(10.0));
    assert!((quiet - ((3 - next) % 3) as f64).abs() < 0.5, "{quiet}");
}

#[test]
fn growth_and_the_day_of_the_week_are_followed() {
    let load = |day: u64, h: usize| {
        let weekend = if day % 7 >= 5 { 0.25 } else { 1.0 };
        Some(SHAPE[h] * weekend * 1.02f64.powi(day as i32))
    };
    let (weekday, weekend) = (ahead(&history(28, load)), ahead(&history(33, load)));
    let usual = |day: i32| SHAPE[4] * 1.02f64.powi(day);
    // The preceding weekend affects Monday's forecast until Monday's first hours are known.
    assert!((0.65 * usual(28)..1.3 * usual(28)).contains(&weekday.median(4).0), "{:?}", weekday.median(4));
    assert!(weekend.median(4).0 < 0.6 * usual(33), "{:?}", weekend.median(4));
}

#[test]
fn a_day_that_is_unlike_the_others_is_followed_by_the_hour() {
    // Every third day is twice as busy throughout: its first hours predict the rest.
    let busy = |day: u64| if day.is_multiple_of(3) { 2.0 } else { 1.0 };
    let learned = history(24, |day, h| Some(SHAPE[h] * busy(day)));
    let seasonal = Seasonal::fit(&learned, 24, DAY).unwrap();
    let mut today = learned.clone();
    for hour in 192..196 {
        today.record(hour, Load(SHAPE[(hour - 192) as usize] * 2.0), DAY);
    }
    let (blind, seeing) = (seasonal.ahead(&learned, 196), seasonal.ahead(&today, 196));
    assert!(seeing.median(0).0 > 1.2 * blind.median(0).0, "{:?}, {:?}", blind.median(0), seeing.median(0));
}

#[test]
fn chances_fall_and_quiet_grows_with_the_load() {
    let ahead =
        ahead(&history(14, |day, h| Some(SHAPE[h] * (1.0 + 0.1 * ((day * 7 + h as u64 * 3) % 5) as f64))));
    let (mut chance, mut quiet) = (1.0, 0.0);
    for load in 1..30 {
        let load = Load(f64::from(load));
        let (exceeds, spell) = (ahead.exceeds(4)(load), ahead.quiet(load));
        assert!(exceeds <= chance && spell >= quiet, "{load:?}");
        assert!(spell <= 1.0 + ahead.quiet_from_next(load) + 1e-9);
        (chance, quiet) = (exceeds, spell);
    }
    assert!(chance < 0.01 && quiet == f64::from(DAY));
}

#[test]
fn what_is_still_to_come_goes_as_expected() {
    // The only similar moment is the last one: its future is not known, and is assumed to be as usual.
    let ahead = ahead(&history(1, |_, h| Some(SHAPE[h])));
    assert!((0..DAY as usize).all(|hour| ahead.mean(hour).0 < 20.0));
}

#[test]
fn the_closer_possible_loads_are_the_less_is_kept_above_them() {
    // Eight loads around ten, in no order.
    let swing = |size: f64| {
        let place = |hour: u64| {
            let mixed = (hour + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            ((mixed ^ (mixed >> 31)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 61) as f64 - 3.5
        };
        history(20, move |day, h| Some(10.0 + 10.0 * size * place(day * u64::from(DAY) + h as u64) / 3.5))
    };
    let above = |history: &History| {
        let ahead = ahead(history);
        ahead.exceeds(0)(Load(1.1 * ahead.median(0).0))
    };
    let (calm, rough) = (above(&swing(0.01)), above(&swing(0.2)));
    assert!(calm < 0.001 && rough > 0.05, "{calm} and {rough}");
}

#[test]
fn a_deviation_larger_than_any_before_stays_as_long_as_others_did() {
    // Loads swing by a tenth in 13 hours, so an hour is much like the one before it.
    let load = |hour: u64| 10.0 * (0.1 * (std::f64::consts::TAU * hour as f64 / 13.0).sin()).exp();
    let learned = history(20, |day, h| Some(load(day * u64::from(DAY) + h as u64)));
    let seasonal = Seasonal::fit(&learned, 20, DAY).unwrap();
    let mut today = learned.clone();
    for hour in 160..164 {
        today.record(hour, Load(load(hour) * if hour == 163 { 1.3 } else { 1.0 }), DAY);
    }
    let highest = learned.peaks().map(|(_, peak)| peak.0).fold(0.0, f64::max);
    let ahead = seasonal.ahead(&today, 164);
    assert!(ahead.median(0).0 > 1.05 * highest, "{:?} against {highest}", ahead.median(0));
}
