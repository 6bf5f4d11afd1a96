//! `ebb simulate reliability`: mean time to data loss of erasure-coded sets, by the model of ECS².

use crate::cli::provenance::{Inputs, print_or};
use crate::error::{NodeError, io, refused};
use clap::Args;
use ebb_erasure::Shape;
use ebb_erasure::model::reliability::{Rates, approximate_hours, chain_hours, loss_probability};
use ebb_output::table;
use ebb_types::{numbers_in_words, parse_duration};
use serde::Serialize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

pub const EXAMPLES: &str = "\
Examples:
  ebb simulate reliability --code 6+3                          while parity servers sleep, and with everything synchronised
  ebb simulate reliability --code 6+3 --code 4+2 --repair 2h   two codes, with faster repairs
  ebb simulate reliability --code 6+3 --rates rates.toml       server_per_hour, disk_per_hour, sector_per_hour, memory_per_hour";

const HOURS_PER_YEAR: f64 = 365.0 * 24.0;

#[derive(Args)]
pub struct ReliabilityArgs {
    /// Data and parity servers; may be repeated
    #[arg(long = "code", value_name = "K+M", required = true)]
    codes: Vec<Shape>,
    /// Failures per hour, a TOML file [default: those of the ECS² paper]
    #[arg(long, value_name = "FILE")]
    rates: Option<PathBuf>,
    /// Mean time in which a failed server is rebuilt [default: that of the rates, 10h]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    repair: Option<Duration>,
    /// How long data is kept
    #[arg(long, value_name = "YEARS", default_value_t = 10.0)]
    years: f64,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// A set of servers in one state.
#[derive(Serialize)]
struct Estimate {
    code: String,
    state: &'static str,
    servers: usize,
    survives: usize,
    mean_years: f64,
    /// By the paper's approximation.
    approximate_years: f64,
    loss_in_hour: f64,
    loss_in_years: f64,
}

#[derive(Serialize)]
struct Report {
    rates: Rates,
    years: f64,
    estimates: Vec<Estimate>,
}

pub fn run(args: &ReliabilityArgs) -> Result<ExitCode, NodeError> {
    let rates = rates(args)?;
    if !(args.years.is_finite() && args.years > 0.0) {
        return Err(refused(format!("--years {}: give a number of years above 0", args.years)));
    }
    let estimates = args.codes.iter().flat_map(|shape| states(*shape, &rates, args.years)).collect();
    let report = Report { rates, years: args.years, estimates };
    print_or(&report, args.json, &Inputs::of(&args.rates), text(&report));
    Ok(ExitCode::SUCCESS)
}

fn rates(args: &ReliabilityArgs) -> Result<Rates, NodeError> {
    let mut rates = match &args.rates {
        None => Rates::default(),
        Some(file) => {
            let text = std::fs::read_to_string(file).map_err(io("read", file))?;
            let said = |error: toml::de::Error| numbers_in_words(&error.to_string());
            toml::from_str(&text).map_err(|error| refused(format!("{}: {}", file.display(), said(error))))?
        }
    };
    if let Some(repair) = args.repair {
        rates.repair_per_hour = 3600.0 / repair.as_secs_f64();
    }
    rates.check().map_err(refused)?;
    Ok(rates)
}

/// Alone awake, if the data servers are enough for that; synchronised; and copies that survive as much.
fn states(shape: Shape, rates: &Rates, years: f64) -> Vec<Estimate> {
    let estimate = |code, state, servers, survives| {
        let hours = chain_hours(servers, survives, rates);
        Estimate {
            code,
            state,
            servers,
            survives,
            mean_years: hours / HOURS_PER_YEAR,
            approximate_years: approximate_hours(servers, survives, rates) / HOURS_PER_YEAR,
            loss_in_hour: loss_probability(1.0, hours),
            loss_in_years: loss_probability(years * HOURS_PER_YEAR, hours),
        }
    };
    let code = || shape.to_string();
    let asleep = shape
        .may_sleep()
        .is_ok()
        .then(|| estimate(code(), "parity asleep, not synchronised", shape.data(), shape.awake_tolerance()));
    let synchronised = estimate(code(), "synchronised", shape.servers(), shape.parity());
    let copies = shape.parity() + 1;
    let copied = estimate(format!("{copies} copies"), "for comparison", copies, shape.parity());
    asleep.into_iter().chain([synchronised, copied]).collect()
}

fn text(report: &Report) -> String {
    let mut out = format!(
        "Mean time to data loss of one set of servers, by the model of ECS² (§4.1); {} years\n\n",
        report.years
    );
    let over = format!("loss in {} years", report.years);
    let header =
        ["code", "state", "servers", "survives", "mean years", "approximated", "loss in 1 hour", &over];
    let rows: Vec<Vec<String>> = report
        .estimates
        .iter()
        .map(|e| {
            let numbers = [e.mean_years, e.approximate_years, e.loss_in_hour, e.loss_in_years];
            let words = [e.code.clone(), e.state.into(), e.servers.to_string(), e.survives.to_string()];
            words.into_iter().chain(numbers.map(|number| format!("{number:.2e}"))).collect()
        })
        .collect();
    table(&mut out, &header, &rows);
    out.push_str("\nA set is lost as a whole here: a cluster of n sets loses data n times as often.\n");
    out
}
