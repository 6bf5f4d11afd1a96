//! Repeats LogStore's evaluation with the production mirror on two modelled disks: every figure next to the paper's.
//! [LogStore §4]
//!
//! Of the three traces only the beginnings of two are public. Generated ones with the figures of Table 2 and the spans
//! that follow from the energies of Tables 3 and 4 replace them, as they are behind a file system's cache
//! ([`ebb_trace::Daily::after_cache`]). Number, sizes and mixture of the requests are the paper's; the rhythm of the
//! day follows from its two-speed disks' times at high speed ([`ebb_trace::Daily`]).

mod figures;
mod inputs;
mod runs;
mod sensitivity;
mod tables;

pub use inputs::LogStoreInputs;

use super::findings::{Findings, PaperError, given};
use runs::Runs;

const PAPER: &str = "LogStore: toward energy-proportional storage servers (ISLPED 2012)";
const ABOUT: &str = "Its evaluation again, with Ebb's own mirror (policy, log, replay, notes for safety) on modelled two-speed disks. \
    Nothing here is measured.";

/// Runs all experiments. `tell` gets the present step and its progress, 0 to 1.
pub fn logstore(inputs: &LogStoreInputs, tell: &mut dyn FnMut(&str, f64)) -> Result<Findings, PaperError> {
    let mut runs = Runs::new(inputs)?;
    tables::plan(&mut runs);
    figures::plan(&mut runs, inputs);
    sensitivity::plan(&mut runs);
    runs.run(&mut |done| tell("the four systems and the paper's parameters", done))?;
    sensitivity::plan_adaptive(&mut runs);
    runs.run(&mut |done| tell("adaptive thresholds", done))?;
    let mut experiments = vec![figures::power_by_rate(&runs), tables::traces(&runs)];
    experiments.extend(tables::energies(&runs));
    experiments.extend(figures::over_time(&runs));
    experiments.push(tables::search(&runs));
    experiments.extend(tables::given(&runs));
    experiments.push(sensitivity::parameters(&runs));
    experiments.push(sensitivity::smoothing(&runs));
    experiments.push(sensitivity::adaptive(&runs));
    Ok(Findings { paper: PAPER, about: ABOUT, inputs: holders(inputs), experiments })
}

fn holders(inputs: &LogStoreInputs) -> Vec<String> {
    let lines = [
        "The paper's traces are not public but for parts; generated ones with its figures stand in for them, behind a file \
         system's cache.",
        "Both disks start at high speed. Writes are acknowledged by one disk, as in the paper. Logs of 3 GiB, as in the paper.",
        "Beside the paper's response times stand ours as it counts them: the buffer cache answers all but the reads that miss.",
    ];
    lines.map(str::to_owned).into_iter().chain(inputs.traces.iter().map(given)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_trace::Trace;
    use ebb_trace::{Kind, Request};
    use std::time::Duration;

    #[test]
    fn every_table_and_figure_is_repeated() {
        let request = |n: u64| Request {
            at: Duration::from_millis(n * 50),
            device: 0,
            offset: n << 20,
            len: 4096,
            kind: Kind::Write,
        };
        let given =
            Trace { name: "given".into(), requests: (0..400).map(request).collect(), ..Trace::default() };
        let inputs = LogStoreInputs { traces: vec![given], part: 24, seed: 3 };
        let mut steps = Vec::new();
        let found = logstore(&inputs, &mut |what, done| steps.push((what.to_owned(), done))).unwrap();
        let names: Vec<&str> = found.experiments.iter().map(|experiment| experiment.name.as_str()).collect();
        let all = [
            "Figure 1",
            "Table 2",
            "Table 3",
            "Table 4",
            "Figure 5",
            "Figure 6",
            "§4.2",
            "Trace given",
            "§4.3",
            "§2",
            "Ours",
        ];
        assert_eq!(names, all);
        assert!(
            found.experiments.iter().all(|experiment| experiment.rows.iter().all(|row| row.here.is_some()))
        );
        assert_eq!(steps.last().map(|(_, done)| *done), Some(1.0));
        let charts: usize = found.experiments.iter().map(|experiment| experiment.charts.len()).sum();
        assert_eq!(found.page().matches("<figure>").count(), charts);
        let row = |experiment: usize, what: &str| {
            let rows = &found.experiments[experiment].rows;
            rows.iter()
                .find(|row| row.what == what)
                .unwrap_or_else(|| panic!("{what} is not in {rows:?}"))
                .clone()
        };
        let saved = row(2, "2x LogStore saves against one-speed");
        assert!((saved.paper.unwrap() - 0.81).abs() < 0.001 && saved.here.unwrap() > 0.6, "{saved:?}");
        // Of a part of the day, whose changes of speed weigh more.
        let div = row(2, "2x DIV: energy, by half of one-speed's and half of two-speed's");
        assert!(div.band.is_some() && (0.8..1.2).contains(&div.here.unwrap()), "{div:?}");
        let steady = |kind: &str| row(0, &format!("{kind} at 55 requests/s")).here.unwrap();
        assert!(
            steady("LogStore") < steady("two-speed"),
            "the log keeps disks at low speed up to a higher rate"
        );
    }

    #[test]
    fn results_do_not_depend_on_which_run_ends_first() {
        let text = || {
            logstore(&LogStoreInputs { traces: Vec::new(), part: 200, seed: 5 }, &mut |_, _| ())
                .unwrap()
                .csv()
        };
        assert_eq!(text(), text());
    }
}
