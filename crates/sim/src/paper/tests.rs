use super::findings::*;
use super::*;

fn inputs() -> Inputs {
    Inputs {
        series: made_up_series(3),
        trace: None,
        requests: 20_000,
        rebuild_bytes: 64 << 20,
        rebuild_servers: vec![6, 12],
        seed: 7,
    }
}

fn here(experiment: &Experiment, what: &str) -> f64 {
    let row = experiment.rows.iter().find(|row| row.what == what);
    row.and_then(|row| row.here).unwrap_or_else(|| panic!("{what} is not in {:?}", experiment.rows))
}

#[test]
fn the_layouts_keep_the_papers_table() {
    let found = layouts::power_down_and_rebuild(1).unwrap();
    assert_eq!(here(&found, "naive random: servers asleep in gear 1"), 2.0);
    assert_eq!(here(&found, "naive random: servers asleep in gear 2"), 1.0);
    assert_eq!(here(&found, "naive grouping: servers asleep in gear 1"), 10.0);
    assert_eq!(here(&found, "power-aware grouping: servers asleep in gear 1"), 10.0);
    assert_eq!(here(&found, "power-aware grouping: servers asleep in gear 2"), 5.0);
    assert_eq!(here(&found, "naive grouping: servers that rebuild one"), 1.0);
    assert_eq!(here(&found, "power-aware grouping: servers that rebuild one"), 4.0);
    assert!(here(&found, "naive random: servers that rebuild one") > 13.0);
}

#[test]
fn metadata_has_nothing_per_chunk_and_little_per_group() {
    let found = layouts::metadata_size(1).unwrap();
    assert!(here(&found, "each further chunk group") < 100.0, "{:?}", found.rows);
    assert!(here(&found, "per chunk, of 4.6 million") < 1.0);
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
fn dedicated_holders_and_a_second_copy_cost_power() {
    let series = hourly(&made_up_series(1)).unwrap();
    let found = power::oracle_power(&series).unwrap();
    let power = |kind: &str| here(&found, &format!("made-up office: {kind}"));
    let least = power("g_min 1, no dedicated holders");
    // 50 of 168 hours need all servers, the others a third.
    assert!((least - (50.0 + 118.0 / 3.0) / 168.0).abs() < 0.01, "{least}");
    assert!(power("g_min 1, dedicated holders") > least);
    assert!(power("g_min 2, no dedicated holders") > least);
}

#[test]
fn every_experiment_is_run_and_shown() {
    let found = sierra(&inputs(), &mut |_, _| ()).unwrap();
    let names: Vec<&str> = found.experiments.iter().map(|e| e.name.as_str()).collect();
    let all = [
        "Table 1",
        "§4.5",
        "Figure 8",
        "Figure 9",
        "Figure 10",
        "Figure 11",
        "Table 2",
        "Table 3",
        "Figure 12",
    ];
    assert_eq!(names, all);
    assert_eq!(
        found.page().matches("<figure>").count(),
        found.experiments.iter().map(|e| e.charts.len()).sum::<usize>()
    );
    let plots = found.experiments.iter().filter(|e| !e.charts.is_empty()).count();
    assert_eq!(plots, all.len() - 1, "the migration of primaries is three numbers");
    assert!(found.text().contains("power-aware grouping") && found.csv().lines().count() > 30);
    let rebuilds = &found.experiments[8];
    let rate = |what: &str| here(rebuilds, what);
    assert!(rate("chunks of 1 MiB, 3 servers write") > 1.5 * rate("chunks of 1 MiB, 1 server writes"));
}

#[test]
fn numbers_have_their_unit() {
    assert_eq!(number(Some(0.7654), "%"), "76.5 %");
    assert_eq!(number(Some(4_600_000.0), "B"), "4600000 B");
    assert_eq!(number(Some(2.0), ""), "2");
    assert_eq!(number(None, "%"), "–");
}
