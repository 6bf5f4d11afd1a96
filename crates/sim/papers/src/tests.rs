use super::findings::*;
use super::*;

/// Small enough for a test, with the bands of the command's own run.
fn inputs() -> Inputs {
    let effort = Effort {
        rebuild_bytes: 24 << 30,
        rebuild_servers: vec![6, 12],
        compared_bytes: 64 << 20,
        one_client: ClientEffort { file_bytes: 64 << 20, accesses: 2_000 },
        each_client: ClientEffort { file_bytes: 8 << 20, accesses: 300 },
    };
    Inputs { series: None, trace: None, requests: 40_000, effort, seed: 7 }
}

/// Of the small run: so many requests are sped up so much that waking takes longer than an hour of the trace.
const SMALL_DAY: &[bands::Band] = &[
    ("Figure 11", "up-shift: mean, times that of always on", 1.0, 2.6),
    ("Figure 11", "down-shift: mean, times that of always on", 0.9, 1.6),
    ("Table 2", "data offloaded", 165.0, 200.0),
    ("Table 2", "achieved reclaim rate", 2.3, 4.5),
    ("Table 3", "primaries that moved", 130.0, 190.0),
    ("Table 3", "in all", 1.0, 28.0),
    ("Table 3", "requests that were tried again", 0.0, 5.0),
];

fn here(experiment: &Experiment, what: &str) -> f64 {
    let row = experiment.rows.iter().find(|row| row.what == what);
    row.and_then(|row| row.here).unwrap_or_else(|| panic!("{what} is not in {:?}", experiment.rows))
}

#[test]
fn a_week_with_a_gap_is_left_out_and_a_short_series_is_refused() {
    let mut all = made_up_series(1);
    all[0].1.values[30] = None;
    let hours = hourly(&all).unwrap();
    assert_eq!((hours[0].weeks.len(), hours[1].weeks.len()), (1, 2));
    all[1].1.values.truncate(100);
    assert!(matches!(hourly(&all), Err(PaperError::NoWeek { .. })));
}

#[test]
fn loggers_and_a_second_copy_cost_power() {
    let series = hourly(&made_up_series(1)).unwrap();
    let found = power::oracle_power(&series).unwrap();
    let power = |kind: &str| here(&found, &format!("generated office: {kind}"));
    let least = power("g_min 1, without loggers");
    // 50 of 168 hours need all servers, the others a third.
    assert!((least - (50.0 + 118.0 / 3.0) / 168.0).abs() < 0.01, "{least}");
    assert!(power("g_min 1, with loggers") > least);
    assert!(power("g_min 2, without loggers") > least);
}

#[test]
fn every_experiment_is_shown_and_every_value_is_in_its_band() {
    let mut found = sierra(&inputs(), &mut |_, _| ()).unwrap();
    for band in SMALL_DAY {
        assert!(bands::set_one(&mut found.experiments, band), "{band:?}");
    }
    let names: Vec<&str> = found.experiments.iter().map(|e| e.name.as_str()).collect();
    let all = [
        "Figure 1",
        "Figure 2",
        "Figure 4",
        "Table 1",
        "Figure 8",
        "Figure 9",
        "Figure 10",
        "Figure 11",
        "Table 2",
        "Table 3",
        "§4.5, loggers",
        "§4.5",
        "Table 4",
        "Table 5",
        "Figure 12",
    ];
    assert_eq!(names, all);
    let outside: Vec<_> = found.outside().collect();
    assert!(outside.is_empty(), "{outside:#?}");
    let charts: usize = found.experiments.iter().map(|e| e.charts.len()).sum();
    let page = found.page();
    assert_eq!(page.matches("<figure>").count(), charts);
    assert!(page.contains(">band</th>") && found.csv().lines().count() > 60);
    for experiment in &found.experiments {
        let is_drawn =
            matches!(experiment.name.as_str(), "Figure 4" | "Table 3") || !experiment.charts.is_empty();
        assert!(is_drawn, "{} has no chart", experiment.name);
        // So few requests are sped up so much that a day has no steady hour.
        let charts = experiment.charts.iter().filter(|_| experiment.name != "Figure 11");
        for series in charts.flat_map(|chart| &chart.series) {
            assert!(!series.points.is_empty(), "{}: {} has no points", experiment.name, series.name);
        }
    }
}

#[test]
fn a_value_outside_its_band_is_found() {
    let mut experiment = layouts::sleepers_of_the_example();
    let band = ("Figure 4", "naive layout: servers asleep", 1.0, 1.0);
    assert!(bands::set_one(std::slice::from_mut(&mut experiment), &band));
    assert!(!experiment.rows[0].is_outside());
    experiment.rows[0].here = Some(2.0);
    assert!(experiment.rows[0].is_outside());
    experiment.rows[0].here = None;
    assert!(experiment.rows[0].is_outside(), "a value that is missing");
}

#[test]
fn numbers_have_their_unit() {
    assert_eq!(number(Some(0.7654), "%"), "76.5 %");
    assert_eq!(number(Some(4_600_000.0), "B"), "4600000 B");
    assert_eq!(number(Some(2.0), ""), "2");
    assert_eq!(number(None, "%"), "–");
}
