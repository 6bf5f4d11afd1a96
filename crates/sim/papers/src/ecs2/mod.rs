//! Repeats ECS²'s evaluation with the production decision maker on a modelled set: every figure next to the paper's.
//! [ECS² §4, §5]
//!
//! The paper plays an hour of each of four traces. Requests with the figures of Table V stand in for them:
//! [`workloads`].

mod beside;
mod failures;
mod inputs;
mod models;
mod runs;
mod scenarios;
mod workloads;

pub use inputs::Ecs2Inputs;

use super::findings::{Findings, PaperError, given};
use runs::Runs;

const PAPER: &str = "Exploiting redundancies and deferred writes to conserve energy in erasure-coded storage clusters (ACM TOS 2013)";
const ABOUT: &str = "Its evaluation again, with Ebb's own decisions on when parity servers wake and sleep, on modelled servers, disks and networks. \
    Nothing here is measured.";

/// Runs all experiments. `tell` gets the present step and its progress, 0 to 1.
pub fn ecs2(inputs: &Ecs2Inputs, tell: &mut dyn FnMut(&str, f64)) -> Result<Findings, PaperError> {
    let mut runs = Runs::new(inputs);
    scenarios::plan(&mut runs);
    failures::plan(&mut runs);
    beside::plan(&mut runs)?;
    runs.run(&mut |done| tell("workloads, intensities, codes and failures", done))?;
    let mut experiments =
        vec![models::reliability(), models::energy(), workloads::table_v(&runs.traces, inputs.seconds)];
    experiments.extend(scenarios::found(&runs));
    experiments.push(beside::found(&runs));
    experiments.extend(failures::found(&runs));
    Ok(Findings { paper: PAPER, about: ABOUT, inputs: holders(inputs), experiments })
}

fn holders(inputs: &Ecs2Inputs) -> Vec<String> {
    let lines = [
        "The paper's hours of Web-2, Fin-2, DTRS and RAD-BE are not public; generated ones with the figures of its Table V stand in for \
         them.",
        "A server that is on draws 73.2 W at any load, as in the paper's model; in the rows \"by its load\" its watts follow how busy its \
         disk is. Response times are those of a modelled disk of its time.",
    ];
    lines.map(str::to_owned).into_iter().chain(inputs.traces.iter().map(given)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_trace::{Kind, Request, Trace};
    use std::time::Duration;

    #[test]
    fn every_table_and_figure_is_repeated() {
        let request = |n: u64| Request {
            at: Duration::from_millis(n * 100),
            device: 0,
            offset: n << 20,
            len: 4096,
            kind: Kind::Write,
        };
        let given =
            Trace { name: "given".into(), requests: (0..200).map(request).collect(), ..Trace::default() };
        let inputs = Ecs2Inputs { traces: vec![given], seconds: 60, seed: 3 };
        let found = ecs2(&inputs, &mut |_, _| ()).unwrap();
        let names: Vec<&str> = found.experiments.iter().map(|experiment| experiment.name.as_str()).collect();
        let all = [
            "§4.1",
            "§4.3",
            "Table V",
            "Table VII",
            "Figure 9",
            "Figure 10",
            "Table VIII",
            "Figure 15",
            "Trace given",
            "Beside Table VII",
            "Figure 11",
        ];
        assert_eq!(names, all);
        let absent: Vec<&str> = found
            .experiments
            .iter()
            .flat_map(|experiment| &experiment.rows)
            .filter(|row| row.here.is_none())
            .map(|row| row.what.as_str())
            .collect();
        assert_eq!(absent, Vec::<&str>::new());
        let charts: usize = found.experiments.iter().map(|experiment| experiment.charts.len()).sum();
        assert_eq!(found.page().matches("<figure>").count(), charts);
    }

    #[test]
    fn results_do_not_depend_on_which_run_ends_first() {
        let text =
            || ecs2(&Ecs2Inputs { traces: Vec::new(), seconds: 20, seed: 5 }, &mut |_, _| ()).unwrap().csv();
        assert_eq!(text(), text());
    }
}
