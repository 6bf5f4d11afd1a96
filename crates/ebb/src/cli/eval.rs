//! `ebb lab eval` and `ebb lab agent`: unattended evaluation of storage, also across several machines.

pub mod progress;

use crate::cli::provenance::{Inputs, print};
use crate::cluster::config::Config;
use crate::cluster::connect::Connector;
use crate::error::{NodeError, io, refused, writable};
use clap::{ArgGroup, Args, Subcommand};
use ebb_client::Secret;
use ebb_eval::agent::{Agent, AgentEvent, Allowed, RemoteAnalyzer, RemoteGenerator};
use ebb_eval::{
    Activity, AgentSpec, Analyzer, Bench, Connect, Content, Generator, LateLoads, LocalAnalyzer,
    LocalGenerator, Matrix, Outcome, Progress, Proportion, Record, RunError, Score, SeriesRow, Shape, Side,
    Store, Target, Watched, Workload, compare, csv, late_loads, proportions, report, run, score, series_csv,
    shapes,
};
use ebb_output::json;
use progress::Writer;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

pub const EVAL_EXAMPLES: &str = "\
Examples:
  ebb lab eval init > matrix.toml                   a first matrix to edit, with comments
  ebb lab eval run examples/tracer-matrix.toml      1,250 runs; can be stopped at any time and resumed
  ebb lab eval run examples/emerald.toml --scale 1/30   a rehearsal of a recognised procedure, in an hour
  ebb lab eval show                                 list what results.sqlite holds
  ebb lab eval compare a.sqlite b.sqlite#ssd        compare the work done per joule
  ebb lab eval report --html report.html            the figures, in one file";

pub const AGENT_EXAMPLES: &str = "\
Examples:
  ebb lab agent --listen 10.0.0.5:9950 --secret secret --target /dev/nvme0n1    a workload generator
  ebb lab agent --listen 10.0.0.6:9950 --secret secret --meter ipmi            a power analyzer
Make the secret with `(umask 077; head -c 32 /dev/urandom | base64 > secret)`, and copy it to the evaluation host.";

#[derive(Subcommand)]
pub enum EvalCommand {
    /// Print a matrix file to begin with, with comments
    #[command(after_help = "Example: ebb lab eval init > matrix.toml")]
    Init,
    /// Run every cell of a matrix of workloads, load levels and targets that has no result yet
    #[command(after_help = "Example: ebb lab eval run examples/tracer-matrix.toml --db results.sqlite")]
    Run {
        /// The matrix file; examples/tracer-matrix.toml explains the format
        #[arg(value_name = "MATRIX.toml")]
        matrix: PathBuf,
        #[command(flatten)]
        db: Db,
        /// Configuration of the cluster whose volumes (ebb:VOLUME) are evaluated
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Of a procedure: shorten all its times to this share, such as 1/30, for a rehearsal
        #[arg(long, value_name = "SHARE", value_parser = share, default_value = "1")]
        scale: f64,
        /// Print what would be run and how long it would take; run nothing
        #[arg(long)]
        dry_run: bool,
        /// Print JSON with stable keys (docs/json.md)
        #[arg(long)]
        json: bool,
    },
    /// Show results: every workload at its highest load, or all runs of some workloads
    #[command(after_help = "Example: ebb lab eval show --workload 4KiB-random50")]
    Show {
        #[command(flatten)]
        db: Db,
        #[command(flatten)]
        which: Which,
        /// Show all runs of workloads whose name contains this text
        #[arg(long, value_name = "TEXT")]
        workload: Option<String>,
        /// Print JSON with stable keys (docs/json.md)
        #[arg(long)]
        json: bool,
    },
    /// Compare the results of two targets, campaigns or files
    #[command(after_help = "Example: ebb lab eval compare results.sqlite#disk results.sqlite#ssd")]
    Compare {
        /// FILE, FILE#TARGET, FILE#CAMPAIGN or FILE#CAMPAIGN/TARGET
        a: String,
        b: String,
        /// Print JSON with stable keys (docs/json.md)
        #[arg(long)]
        json: bool,
    },
    /// Export all columns of all runs, or their series
    #[command(
        group = ArgGroup::new("form").required(true),
        after_help = "Examples:\n  ebb lab eval export --csv --out results.csv\n  ebb lab eval export --series --csv --out minutes.csv"
    )]
    Export {
        #[command(flatten)]
        db: Db,
        #[command(flatten)]
        which: Which,
        /// The series of the longer runs, a row per interval, in place of the runs
        #[arg(long)]
        series: bool,
        /// As CSV with a header
        #[arg(long, group = "form")]
        csv: bool,
        /// As JSON, an array of objects
        #[arg(long, group = "form")]
        json: bool,
        /// Output file [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
    },
    /// Delete a campaign: its results, series and peaks; traces and targets stay
    #[command(after_help = "Example: ebb lab eval delete tracer --db results.sqlite")]
    Delete {
        /// The matrix's name
        campaign: String,
        #[command(flatten)]
        db: Db,
    },
    /// Write a page of charts: efficiency against load, request size, random ratio and read ratio
    #[command(after_help = "Example: ebb lab eval report --html report.html")]
    Report {
        #[command(flatten)]
        db: Db,
        #[command(flatten)]
        which: Which,
        /// File for the self-contained page
        #[arg(long, value_name = "FILE")]
        html: PathBuf,
    },
}

#[derive(Args)]
pub struct Db {
    /// The results, an SQLite file (docs/results-schema.md)
    #[arg(long, value_name = "FILE", default_value = "results.sqlite")]
    db: PathBuf,
}

/// Selects results; absent: all.
#[derive(Args)]
pub struct Which {
    /// Only results of this matrix
    #[arg(long, value_name = "NAME")]
    campaign: Option<String>,
    /// Only results of this target
    #[arg(long, value_name = "NAME")]
    target: Option<String>,
}

#[derive(Args)]
pub struct AgentArgs {
    /// Address to listen on; for other machines to connect, use an address that they can reach
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9950")]
    listen: String,
    /// File with the secret that evaluation hosts must know, readable by its owner only
    #[arg(long, value_name = "FILE")]
    secret: PathBuf,
    /// A target that may be driven, and overwritten if the matrix says so; may be repeated
    #[arg(long = "target", value_name = "TARGET")]
    targets: Vec<String>,
    /// Directory of the traces that may be replayed, where those of peak runs are kept
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// A meter that may be read, as named by `ebb lab meter list`; may be repeated
    #[arg(long = "meter", value_name = "METER")]
    meters: Vec<String>,
    /// Configuration of the cluster whose volumes (ebb:VOLUME) may be driven
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

pub async fn eval(command: EvalCommand) -> Result<ExitCode, NodeError> {
    match command {
        EvalCommand::Init => {
            print!("{}", ebb_eval::EXAMPLE);
            Ok(ExitCode::SUCCESS)
        }
        EvalCommand::Run { matrix, scale, db, config, dry_run: dry, json } => {
            let inputs = Inputs::of([&matrix]).and(&config);
            let matrix = Matrix::load(&matrix, scale).map_err(refused)?;
            let inputs = inputs.and(matrix.workloads.iter().filter_map(recorded));
            if dry {
                dry_run(matrix, &db.db, json, &inputs)
            } else {
                run_matrix(matrix, &db.db, config.as_deref(), json, &inputs).await
            }
        }
        EvalCommand::Show { db, which, workload, json } => show(&db.db, &which, workload.as_deref(), json),
        EvalCommand::Compare { a, b, json } => {
            let open = |side: &str| Side::open(side).map_err(refused);
            let found = compare(open(&a)?, open(&b)?).map_err(refused)?;
            let files = [&a, &b].map(|side| side.rsplit_once('#').map_or(side.as_str(), |(file, _)| file));
            print(&found, json, &Inputs::of(files));
            Ok(ExitCode::SUCCESS)
        }
        EvalCommand::Export { db, which, series, csv: as_csv, out, .. } => {
            out.iter().try_for_each(|path| writable(path))?;
            let text = match (series, as_csv) {
                (false, true) => csv(&records(&db.db, &which)?),
                (false, false) => json(&records(&db.db, &which)?) + "\n",
                (true, true) => series_csv(&series_of(&db.db, &which)?),
                (true, false) => json(&series_of(&db.db, &which)?) + "\n",
            };
            match out {
                Some(path) => std::fs::write(&path, text).map_err(io("write", &path))?,
                None => print!("{text}"),
            }
            Ok(ExitCode::SUCCESS)
        }
        EvalCommand::Delete { campaign, db } => {
            Store::read(&db.db).map_err(refused)?;
            let deleted =
                Store::open(&db.db).and_then(|mut store| store.forget(&campaign)).map_err(refused)?;
            if deleted == 0 {
                return Err(refused(format!("{} has no results of {campaign:?}", db.db.display())));
            }
            println!("{deleted} results of {campaign} deleted");
            Ok(ExitCode::SUCCESS)
        }
        EvalCommand::Report { db, which, html } => {
            writable(&html)?;
            let records = records(&db.db, &which)?;
            let series = rows(&db.db, &which)?;
            std::fs::write(&html, report(&records, &series)).map_err(io("write", &html))?;
            println!("{} runs in {}", records.len(), html.display());
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn records(db: &Path, which: &Which) -> Result<Vec<Record>, NodeError> {
    let store = Store::read(db).map_err(refused)?;
    let records = store.records(which.campaign.as_deref(), which.target.as_deref()).map_err(refused)?;
    if records.is_empty() {
        return Err(refused(format!("{} has no such results; `ebb lab eval show` lists them", db.display())));
    }
    Ok(records)
}

/// The series of the longer runs; may be empty.
fn rows(db: &Path, which: &Which) -> Result<Vec<SeriesRow>, NodeError> {
    let store = Store::read(db).map_err(refused)?;
    store.series(which.campaign.as_deref(), which.target.as_deref()).map_err(refused)
}

fn series_of(db: &Path, which: &Which) -> Result<Vec<SeriesRow>, NodeError> {
    let rows = rows(db, which)?;
    match rows.is_empty() {
        true => Err(refused(format!(
            "{} has no such series: only runs longer than interval_seconds have one",
            db.display()
        ))),
        false => Ok(rows),
    }
}

/// Connects to the cluster whose volumes are evaluated.
fn connector(config: Option<&Path>) -> Result<Option<Connect>, NodeError> {
    let Some(file) = config else { return Ok(None) };
    let connector = Connector::new(&Config::load(file)?)?;
    Ok(Some(Arc::new(move || {
        let connector = connector.clone();
        Box::pin(async move { connector.connect().await.map_err(|error| error.to_string()) })
    })))
}

/// Report of a run or a dry run.
#[derive(Serialize)]
struct RunReport {
    campaign: String,
    db: PathBuf,
    #[serde(flatten)]
    outcome: Outcome,
    /// Dry run only: time that the remaining runs would take.
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds_left: Option<f64>,
    /// Of a procedure that has been run.
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<Score>,
}

impl std::fmt::Display for RunReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Outcome { total, found, done, lost, failed, collected_again } = &self.outcome;
        write!(
            f,
            "{}: {} of {total} runs have results in {}",
            self.campaign,
            found + done,
            self.db.display()
        )?;
        match self.seconds_left {
            Some(seconds) => {
                let left = rough(Duration::from_secs_f64(seconds));
                writeln!(f, "; the other {} would take about {left}", total - found)?;
            }
            None => writeln!(f, ", {done} of them new; {failed} failed")?,
        }
        let again = "collected again, and replayed at 100 % again";
        collected_again.iter().try_for_each(|trace| writeln!(f, "{trace}: {again}"))?;
        lost.iter().try_for_each(|why| writeln!(f, "given up: {why}"))?;
        self.score.iter().try_for_each(|score| write!(f, "\n{score}"))
    }
}

/// `1/30`, `0.1` or `1`.
fn share(text: &str) -> Result<f64, String> {
    let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| *number > 0.0);
    let share = match text.split_once('/') {
        Some((part, whole)) => number(part).zip(number(whole)).map(|(part, whole)| part / whole),
        None => number(text),
    };
    share
        .filter(|share| *share <= 1.0)
        .ok_or_else(|| format!("{text:?} is not a share above 0 and at most 1, such as 1/30"))
}

/// Runs of a matrix that have a result already, and the seconds that the others would take.
pub fn remaining(matrix: &Matrix, db: &Path) -> Result<(u64, f64), NodeError> {
    let (total, settings) = (matrix.runs(), &matrix.settings);
    let mut found = 0;
    if db.exists() {
        let store = Store::read(db).map_err(refused)?;
        found = store.done(&matrix.name).map_err(refused)?.len() as u64;
    }
    let peaks = (matrix.workloads.len() * matrix.targets.len()) as f64 * settings.peak_seconds;
    let each = settings.run_seconds + settings.settle_seconds;
    let left = total.saturating_sub(found) as f64;
    let phases = matrix.phases();
    let seconds = match phases.is_empty() {
        true => left * each + peaks * left / total as f64,
        // How long a fill takes only the target knows; it is not counted.
        false => {
            let timed = phases
                .iter()
                .filter(|phase| !matches!(phase.activity, Activity::Load(Workload::Fill { .. })));
            let whole = timed.map(|phase| (phase.warm_up + phase.length).as_secs_f64()).sum::<f64>();
            whole * matrix.targets.len() as f64 * left / total as f64
        }
    };
    Ok((found.min(total), seconds))
}

/// The file of a recorded workload.
fn recorded(workload: &Workload) -> Option<&Path> {
    match workload {
        Workload::Trace { file, .. } => Some(file),
        _ => None,
    }
}

fn dry_run(matrix: Matrix, db: &Path, json: bool, inputs: &Inputs) -> Result<ExitCode, NodeError> {
    let (found, seconds) = remaining(&matrix, db)?;
    let outcome = Outcome { total: matrix.runs(), found, ..Outcome::default() };
    let seconds_left = Some(seconds);
    let report = RunReport { campaign: matrix.name, db: db.to_owned(), outcome, seconds_left, score: None };
    print(&report, json, inputs);
    Ok(ExitCode::SUCCESS)
}

async fn run_matrix(
    matrix: Matrix,
    db: &Path,
    config: Option<&Path>,
    json: bool,
    inputs: &Inputs,
) -> Result<ExitCode, NodeError> {
    let store = Store::open(db).map_err(refused)?;
    let connect = connector(config)?;
    let campaign = matrix.name.clone();
    let mut beside = Writer::create(db, &campaign)?;
    let scored = matrix.clone();
    let work = move || {
        let mut line = ebb_output::Progress::new();
        let benches = |target: &Target| bench(&matrix, target, connect.clone());
        let outcome = run(&matrix, store, &benches, &mut |progress| {
            beside.tell(progress);
            line.show(format_args!("{}", describe(progress)));
        });
        line.clear();
        outcome
    };
    // It blocks for hours, and starts its own runtimes where it needs one.
    let outcome = tokio::task::spawn_blocking(work).await.expect("an evaluation ends with a result");
    let outcome = outcome.map_err(refused)?;
    let complete = outcome.complete();
    let score = score(&scored, &Store::read(db).map_err(refused)?).map_err(refused)?;
    let report = RunReport { campaign, db: db.to_owned(), outcome, seconds_left: None, score };
    print(&report, json, inputs);
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Generator and analyzer of a target: on this machine, or an agent's.
fn bench(matrix: &Matrix, target: &Target, connect: Option<Connect>) -> Result<Bench, RunError> {
    let agent = |name: &str| -> &AgentSpec {
        matrix.agents.iter().find(|agent| agent.name == name).expect("the matrix was checked")
    };
    let generator: Box<dyn Generator> = match &target.generator {
        Some(name) => Box::new(RemoteGenerator::connect(agent(name))?),
        None => Box::new(LocalGenerator::new(connect)?),
    };
    let analyzer: Option<Box<dyn Analyzer>> = match &target.meter_agent {
        _ if target.meters.is_empty() => None,
        Some(name) => Some(Box::new(RemoteAnalyzer::connect(agent(name), &target.meters)?)),
        None => Some(Box::new(LocalAnalyzer::open(&target.meters)?)),
    };
    Ok(Bench { generator, analyzer })
}

fn describe(progress: &Progress) -> String {
    let Progress { done, failed, total, present, left, live } = progress;
    let failed = if *failed > 0 { format!(", {failed} failed") } else { String::new() };
    let live = live.as_ref().map_or(String::new(), live_text);
    format!("{done} of {total} runs{failed}, {} left  {present}{live}", rough(*left))
}

/// `  812 IOPS  3.3 MB/s  1.22 ms  71.3 W  load 19.8 of 20 %`
fn live_text(watched: &Watched) -> String {
    let Watched { live, meters, load_percent, achieved_percent } = watched;
    let mut text = format!("  {:.0} IOPS  {:.1} MB/s", live.iops, live.mb_per_second);
    if let Some(millis) = live.response_millis {
        text += &format!("  {millis:.2} ms");
    }
    if let Some(watts) = meters.watts {
        text += &format!("  {watts:.1} W");
    }
    match (achieved_percent, load_percent) {
        (Some(achieved), Some(configured)) => text += &format!("  load {achieved:.1} of {configured} %"),
        (None, Some(configured)) => text += &format!("  load {configured} %"),
        (_, None) => {}
    }
    text
}

/// A duration for people: `2 h 05 min`, `3 min`, `12 s`.
fn rough(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[derive(Serialize)]
struct Shown {
    contents: Vec<Content>,
    runs: Vec<Record>,
    proportions: Vec<Proportion>,
    shapes: Vec<Shape>,
    late_loads: Vec<LateLoads>,
}

fn show(db: &Path, which: &Which, workload: Option<&str>, json: bool) -> Result<ExitCode, NodeError> {
    let store = Store::read(db).map_err(refused)?;
    let contents = store.contents().map_err(refused)?;
    let mut runs = store.records(which.campaign.as_deref(), which.target.as_deref()).map_err(refused)?;
    let mut proportions = proportions(&runs);
    proportions.retain(|found| workload.is_none_or(|part| found.workload.contains(part)));
    let series = store.series(which.campaign.as_deref(), which.target.as_deref()).map_err(refused)?;
    let mut shapes = shapes(&series);
    shapes.retain(|found| workload.is_none_or(|part| found.workload.contains(part)));
    let mut late_loads = late_loads(&runs);
    late_loads.retain(|found| workload.is_none_or(|part| found.workload.contains(part)));
    match workload {
        Some(part) => runs.retain(|run| run.workload.contains(part)),
        None => keep_highest_level(&mut runs),
    }
    print(&Shown { contents, runs, proportions, shapes, late_loads }, json, &Inputs::of([db]));
    Ok(ExitCode::SUCCESS)
}

fn keep_highest_level(runs: &mut Vec<Record>) {
    let key = |run: &Record| (run.campaign.clone(), run.target.clone(), run.workload.clone());
    let mut highest: BTreeMap<_, f64> = BTreeMap::new();
    for run in runs.iter() {
        let level = highest.entry(key(run)).or_insert(0.0);
        *level = level.max(run.load_percent);
    }
    runs.retain(|run| run.load_percent == highest[&key(run)]);
}

impl std::fmt::Display for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for Content { campaign, target, results, failed } in &self.contents {
            writeln!(f, "{campaign}/{target}: {results} results, {failed} failed runs")?;
        }
        let header = ["load", "IOPS", "MB/s", "p50 ms", "p99 ms", "late ms", "W", "IOPS/W", "MB/s/kW", "°C"];
        write!(f, "\n{:<30}{:>7}", "workload", header[0])?;
        header[1..].iter().try_for_each(|name| write!(f, "{name:>11}"))?;
        let mut part = ("", "");
        for run in &self.runs {
            if part != (run.campaign.as_str(), run.target.as_str()) {
                part = (run.campaign.as_str(), run.target.as_str());
                write!(f, "\n{}/{}", run.campaign, run.target)?;
            }
            write!(f, "\n  {:<28}{:>5} %", run.workload, run.load_percent)?;
            if let Some(why) = &run.error {
                write!(f, "  failed: {why}")?;
                continue;
            }
            let values = [
                run.iops,
                run.mb_per_second,
                run.latency_p50_millis,
                run.latency_p99_millis,
                run.lateness_p99_millis,
                run.watts,
                run.iops_per_watt,
                run.mb_per_second_per_kilowatt,
                run.temperature_celsius,
            ];
            for value in values {
                match value {
                    Some(value) => write!(f, "{value:>11.2}")?,
                    None => write!(f, "{:>11}", "-")?,
                }
            }
            if let Some(source) = run.watts_source.as_deref().filter(|source| *source != "measured") {
                write!(f, "  {source} watts")?;
            } else if let Some(evidence) = &run.evidence {
                write!(f, "  {evidence}")?;
            }
            if let Some(behind) = run.behind().filter(|_| run.is_late_reference()) {
                let behind = 100.0 * behind;
                write!(f, "  late itself, {behind:.1} % behind its trace: no load is measured against it")?;
            }
        }
        writeln!(f)?;
        for found in &self.proportions {
            writeln!(f, "{}/{}: {found}", found.campaign, found.target)?;
        }
        self.shapes.iter().try_for_each(|found| writeln!(f, "{found}"))?;
        self.late_loads.iter().try_for_each(|found| writeln!(f, "{found}"))
    }
}

pub async fn agent(args: AgentArgs) -> Result<ExitCode, NodeError> {
    let secret = Secret::load(&args.secret)?;
    let connect = connector(args.config.as_deref())?;
    let allowed = Allowed { targets: args.targets, traces: args.traces, meters: args.meters };
    let agent = Agent::listen(&args.listen, &secret, allowed, connect).await.map_err(refused)?;
    let address = agent.address().map_err(io("listen on", args.listen.as_str()))?;
    println!("listening on {address}");
    agent
        .serve(|event| match event {
            AgentEvent::Connected(host) => eprintln!("{host}: evaluation host connected"),
            AgentEvent::Refused(host, why) => eprintln!("{host}: refused: {why}"),
            AgentEvent::Ended(host) => eprintln!("{host}: disconnected"),
        })
        .await;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_shown_and_a_reference_that_was_late_is_marked() {
        let run = |repetition, lateness| Record {
            load_percent: 100.0,
            repetition,
            length_seconds: Some(2.0),
            lateness_p99_millis: Some(lateness),
            ..Record::default()
        };
        let runs = vec![run(1, 180.0), run(2, 181.0), run(1, 0.25)];
        let shown = |runs, late_loads| Shown {
            contents: Vec::new(),
            runs,
            proportions: Vec::new(),
            shapes: Vec::new(),
            late_loads,
        };
        let text = shown(runs.clone(), late_loads(&runs)).to_string();
        assert!(!text.contains("too high"), "no load is stored: {text}");
        let lines: Vec<&str> = text.lines().filter(|line| line.contains("100 %")).collect();
        assert!(
            lines[0].contains(" 180.00 ")
                && lines[0].ends_with("9.0 % behind its trace: no load is measured against it"),
            "{text}"
        );
        assert!(
            lines[1].contains(" 181.00 ") && !lines[1].contains("late"),
            "only the first is a reference: {text}"
        );
        assert!(lines[2].contains(" 0.25 ") && !lines[2].contains("late"), "{text}");
        // As files of earlier versions have it; another workload's reference was not late.
        let level = |workload: &str, load_percent_iops| Record {
            workload: workload.into(),
            load_percent: 50.0,
            load_percent_iops,
            ..Record::default()
        };
        let other = Record { workload: "b".into(), ..runs[2].clone() };
        let stored = [runs[0].clone(), level("", Some(54.8)), level("", None), other, level("b", Some(50.0))];
        let found = late_loads(&stored);
        assert_eq!((found.len(), found[0].runs, found[0].workload.as_str()), (1, 1, ""), "{found:?}");
        let text = shown(stored.to_vec(), found).to_string();
        let said = "1 runs have their load in percent of a replay at 100 % that was 9.0 % behind its trace";
        assert!(text.contains(said), "{text}");
    }
}
