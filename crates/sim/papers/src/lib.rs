//! Repeats a paper's evaluation with the production decision makers on models: every figure next to the paper's.
//! [Sierra §3.3, §4], [LogStore §4], [ECS² §4, §5]
//!
//! The Hotmail, Messenger and Cambridge traces are not public; load series and traces of other services replace them.
//! The question, the procedure and the convention are the same, but not the input: a figure that differs from the
//! paper's does not contradict it if the input determines it. Layout, metadata and rebuild need no trace.
//!
//! An [`Experiment`] is plain data: rows to compare, tables and charts. [`Findings`] turn them into a page, CSV and
//! text.

mod bands;
mod ecs2;
mod effort;
mod findings;
mod forecasts;
mod layouts;
mod loads;
mod logstore;
mod metadata;
mod microbench;
mod power;
mod rebuild;
mod requests;
mod side_by_side;
mod testbed;

pub use ecs2::{Ecs2Inputs, ecs2};
pub use effort::Effort;
pub use findings::{Experiment, Findings, PaperError, Row, Table};
pub use logstore::{LogStoreInputs, logstore};
pub use microbench::ClientEffort;

use ebb_sim::load::Series;
use ebb_sim::request::workload::Day;
use ebb_trace::Trace;
use testbed::{DAY_HOURS, HOUR, Hourly, WEEK};

/// Replacements for the paper's inputs.
pub struct Inputs {
    /// Load of whole services; their names are shown. `None`: generated ones.
    pub series: Option<Vec<(String, Series)>>,
    /// Block-device requests for the experiments on the testbed. `None`: a synthetic day.
    pub trace: Option<Trace>,
    /// Requests of the synthetic day.
    pub requests: u64,
    pub effort: Effort,
    pub seed: u64,
}

const PAPER: &str = "Sierra: practical power-proportionality for data center storage (EuroSys 2011)";
const ABOUT: &str = "Its evaluation again, with Ebb's own layout, gear scheduler and protocol on modelled servers, disks and networks. \
    Nothing here is measured.";

/// Runs all experiments. `tell` gets the present one and its progress, 0 to 1.
pub fn sierra(inputs: &Inputs, tell: &mut dyn FnMut(&str, f64)) -> Result<Findings, PaperError> {
    let made_up = inputs.series.is_none().then(|| made_up_series(inputs.seed));
    let loads = inputs.series.as_ref().or(made_up.as_ref()).expect("one of the two is there");
    let series = hourly(loads)?;
    tell("load series (Figures 1, 2, 8 and 9)", 0.0);
    let mut experiments = vec![loads::weeks(&series), loads::utilisation(&series)];
    tell("layouts (Figure 4, Table 1)", 0.0);
    experiments.push(layouts::sleepers_of_the_example());
    experiments.push(layouts::power_down_and_rebuild(inputs.seed)?);
    experiments.push(forecasts::errors(&series)?);
    let made_up = inputs.trace.is_none().then(|| made_up_day(inputs));
    let trace = inputs.trace.as_ref().or(made_up.as_ref()).expect("one of the two is there");
    let runs = requests::run(trace, inputs.seed, tell)?;
    let mut power = power::oracle_power(&series)?;
    requests::power(&runs, &mut power);
    experiments.push(power);
    experiments.extend(requests::experiments(&runs));
    experiments.push(metadata::size(trace, &runs.one, inputs.seed)?);
    let effort = &inputs.effort;
    tell("single servers and nine (Tables 4 and 5)", 0.0);
    let paces = microbench::run(effort.one_client, effort.each_client, inputs.seed)?;
    experiments.push(microbench::one_server(&paces, effort.one_client));
    experiments.push(microbench::nine_servers(&paces, effort.each_client));
    experiments.push(rebuild::rates(effort, inputs.seed, tell)?);
    let generated_day = inputs.trace.is_none().then_some(inputs.requests);
    bands::set(&mut experiments, inputs.series.is_none(), generated_day);
    let inputs = told(inputs, loads, trace);
    Ok(Findings { paper: PAPER, about: ABOUT, inputs, experiments })
}

/// What stands in for the paper's inputs.
fn told(inputs: &Inputs, series: &[(String, Series)], trace: &Trace) -> Vec<String> {
    let mut told = vec![
        "The Hotmail, Messenger and Cambridge traces are not public; what follows stands in for them."
            .to_owned(),
    ];
    if inputs.series.is_none() {
        told.push("No load series was given: these are generated, not recorded from a service.".to_owned());
    }
    told.extend(series.iter().map(|(name, series)| {
        let days = series.values.len() as f64 / series.per_day() as f64;
        format!("Load series {name}: {days:.1} days in steps of {} s.", series.interval.as_secs())
    }));
    let hours = trace.span().as_secs_f64() / 3600.0;
    told.push(format!("Requests: {} ({} in {hours:.1} hours).", trace.name, trace.requests.len()));
    told
}

fn made_up_day(inputs: &Inputs) -> Trace {
    Day { requests: inputs.requests, seed: inputs.seed, ..Day::default() }.trace()
}

fn hourly(inputs: &[(String, Series)]) -> Result<Vec<Hourly>, PaperError> {
    let one = |(name, series): &(String, Series)| {
        let named = |error| PaperError::Series { name: name.clone(), error };
        let series =
            if series.interval == HOUR { series.clone() } else { series.folded(HOUR).map_err(named)? };
        // A series may lack an hour here and there: a week restarts at the next whole day.
        let mut weeks = Vec::new();
        let mut first = 0;
        while let Some(hours) = series.values.get(first..first + WEEK) {
            match hours.iter().copied().collect::<Option<Vec<f64>>>() {
                Some(week) => {
                    weeks.push(week);
                    first += WEEK;
                }
                None => first += DAY_HOURS,
            }
        }
        if weeks.is_empty() {
            return Err(PaperError::NoWeek { name: name.clone() });
        }
        Ok(Hourly { name: name.clone(), series, weeks })
    };
    inputs.iter().map(one).collect()
}

/// Two synthetic services, two weeks each, for users without a series: one whose load drops slightly at night, and one
/// used in office hours.
fn made_up_series(seed: u64) -> Vec<(String, Series)> {
    let mut random = ebb_types::Random::new(seed);
    let mut noise = move || 0.95 + 0.1 * random.below(1000) as f64 / 1000.0;
    let mut make = |name: &str, load: &dyn Fn(usize, usize) -> f64| {
        let values =
            (0..2 * WEEK).map(|hour| Some(load(hour / DAY_HOURS, hour % DAY_HOURS) * noise())).collect();
        (name.to_owned(), Series { interval: HOUR, values })
    };
    let wave = |hour: usize| 0.65 - 0.35 * ((hour as f64 - 4.0) / 24.0 * std::f64::consts::TAU).cos();
    vec![
        make("generated service", &|_, hour| 1000.0 * wave(hour)),
        make("generated office", &|day, hour| {
            let at_work = day % 7 < 5 && (8..18).contains(&hour);
            if at_work { 800.0 } else { 60.0 }
        }),
    ]
}

#[cfg(test)]
mod tests;
