//! `ebb simulate fuzz`: random clusters, workloads, gears and faults in the virtual world, until a rule breaks or the
//! seeds or the minutes run out.

use super::seeds::parse_seeds;
use crate::cli::provenance::{Inputs, Seeds, print_or};
use crate::error::{NodeError, refused};
use clap::Args;
use ebb_output::Progress;
use ebb_sim::above::{Planted, processes};
use ebb_sim::harness::{self, Failure, Outcome, Shrunk, Tally};
use ebb_sim::{Summary, cluster};
use serde::Serialize;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

pub const EXAMPLES: &str = "\
Examples:
  ebb simulate fuzz                      1,000 seeds
  ebb simulate fuzz --minutes 60         as many seeds as an hour allows
  ebb simulate fuzz --seeds 3125..3126   one seed again; a seed always gives the same run, to the last byte
  ebb simulate fuzz --above              gateways and volume servers on a modelled cluster

Exit code 3: a rule broke. Then the lowest failing seed is shrunk, and its transcript is printed.";

/// Seeds that run if neither a range nor a time is given.
const SEEDS: std::ops::Range<u64> = 1..1001;

#[derive(Args)]
pub struct FuzzArgs {
    /// Seeds to run, from A up to but not including B [default: 1..1001, or from 1 on with --minutes]
    #[arg(long, value_name = "A..B", value_parser = parse_seeds)]
    seeds: Option<(u64, u64)>,
    /// Search what is above chunks: gateways and volume servers that are suspended, crash and lose connections
    #[arg(long)]
    above: bool,
    /// Run for this many minutes, or until the seeds run out
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// Seeds run in parallel [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Number of last lines of a failing seed's transcript to print
    #[arg(long, value_name = "N", default_value_t = 60)]
    lines: usize,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// Totals over all seeds.
#[derive(Default, Serialize)]
struct Totals {
    seeds: u64,
    seconds: f64,
    events: u64,
    operations: u64,
    acknowledged: u64,
    given_up: u64,
    /// Chunks whose history was too complex to decide.
    undecided: u64,
    /// How often each event happened.
    tally: Tally,
    failures: Vec<Broken>,
}

#[derive(Serialize)]
struct Broken {
    seed: u64,
    rule: &'static str,
    what: String,
    reproduce: String,
}

/// A failing seed, shrunk.
#[derive(Serialize)]
struct Small {
    seed: u64,
    case: String,
    faults: u64,
    faults_left: u64,
    runs: u32,
    transcript: Vec<String>,
}

#[derive(Serialize)]
struct Output<'a> {
    #[serde(flatten)]
    totals: &'a Totals,
    shrunk: Option<Small>,
}

pub fn run(args: &FuzzArgs) -> Result<ExitCode, NodeError> {
    if args.minutes.is_some_and(|m| !m.is_finite() || m <= 0.0) {
        return Err(refused("--minutes must be a positive number"));
    }
    // A failed assertion of a protocol core is a finding like any other; its location is in the transcript.
    std::panic::set_hook(Box::new(|_| {}));
    let totals = search(args);
    let shrunk = totals.failures.first().and_then(|least| shrink(least.seed, args.above));
    let shrunk = shrunk.map(|s| small(s, args.lines));
    let _ = std::panic::take_hook();
    let inputs = Inputs::default().seeded(seeds_run(args, &totals));
    let text = describe(&totals, shrunk.as_ref());
    print_or(&Output { totals: &totals, shrunk }, args.json, &inputs, text);
    Ok(if totals.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

/// The seeds that ran: where minutes end a search, not all that were meant to.
fn seeds_run(args: &FuzzArgs, totals: &Totals) -> Seeds {
    let first = args.seeds.map_or(SEEDS.start, |(from, _)| from);
    Seeds { first, last: first + totals.seeds.saturating_sub(1) }
}

fn play(seed: u64, above: bool) -> Outcome<Summary> {
    match above {
        true => harness::run(seed, processes(Planted::default())),
        false => harness::run(seed, cluster(&|_| {})),
    }
}

fn shrink(seed: u64, above: bool) -> Option<Shrunk> {
    match above {
        true => harness::shrink(seed, processes(Planted::default())),
        false => harness::shrink(seed, cluster(&|_| {})),
    }
}

/// Runs the seeds on all threads.
fn search(args: &FuzzArgs) -> Totals {
    let started = Instant::now();
    let (from, to) =
        args.seeds.unwrap_or((SEEDS.start, if args.minutes.is_some() { u64::MAX } else { SEEDS.end }));
    let until = args.minutes.map(|m| started + Duration::from_secs_f64(m * 60.0));
    let jobs = args.jobs.map_or_else(harness::cores, usize::from);
    let totals = Mutex::new(Totals::default());
    let play_one = |seed| {
        if until.is_some_and(|until| Instant::now() >= until) {
            return false;
        }
        let outcome = play(seed, args.above);
        totals.lock().expect("no thread panics while it counts").add(outcome, args.above);
        true
    };
    std::thread::scope(|scope| {
        let workers = scope.spawn(|| harness::spread(from..to, jobs, play_one));
        let mut line = Progress::new();
        while !workers.is_finished() {
            std::thread::sleep(Duration::from_millis(100));
            let totals = totals.lock().expect("no thread panics while it counts");
            let rate = totals.seeds as f64 / started.elapsed().as_secs_f64();
            let failed = totals.failures.len();
            line.show(format_args!("{} seeds, {rate:.0} per second, {failed} failed", totals.seeds));
        }
    });
    let mut totals = totals.into_inner().expect("no thread panics while it counts");
    totals.failures.sort_by_key(|f| f.seed);
    totals.seconds = started.elapsed().as_secs_f64();
    totals
}

impl Totals {
    fn add(&mut self, outcome: Outcome<Summary>, above: bool) {
        self.seeds += 1;
        match outcome {
            Ok(summary) => {
                self.events += summary.events;
                self.operations += summary.ops as u64;
                self.acknowledged += summary.acknowledged as u64;
                self.given_up += summary.given_up as u64;
                self.undecided += summary.undecided as u64;
                for (what, times) in summary.tally {
                    *self.tally.entry(what).or_default() += times;
                }
            }
            Err(failure) => {
                let Failure { seed, violation, .. } = *failure;
                let which = if above { "--above " } else { "" };
                let reproduce = format!("ebb simulate fuzz {which}--seeds {seed}..{}", seed + 1);
                self.failures.push(Broken { seed, rule: violation.rule, what: violation.what, reproduce });
            }
        }
    }
}

fn small(shrunk: Shrunk, lines: usize) -> Small {
    let Shrunk { case, about, faults: (faults, faults_left), runs, lines: all, .. } = shrunk;
    let transcript = readable(&all, lines);
    Small { seed: case.seed, case: about, faults, faults_left, runs, transcript }
}

/// The external faults from the beginning, then everything in the last lines.
fn readable(all: &[String], last: usize) -> Vec<String> {
    let split = all.len().saturating_sub(last);
    let inside = [" <- ", " -> ", " op ", " has map "];
    let mut lines: Vec<String> =
        all[..split].iter().filter(|line| inside.iter().all(|i| !line.contains(i))).cloned().collect();
    if split > 0 {
        lines.push(format!(
            "... complete from here on; internal events were omitted from the {split} lines before ..."
        ));
    }
    lines.extend_from_slice(&all[split..]);
    lines
}

fn describe(totals: &Totals, shrunk: Option<&Small>) -> String {
    let mut text = String::new();
    let mut line = |words: String| writeln!(text, "{words}").expect("a string takes everything");
    let Totals { seeds, seconds, events, operations, acknowledged, given_up, undecided, .. } = totals;
    line(format!("{seeds} seeds in {seconds:.1} s: {events} events, {operations} client operations"));
    line(format!(
        "{acknowledged} operations acknowledged, {given_up} given up, {undecided} histories undecided"
    ));
    line(String::new());
    for (what, times) in &totals.tally {
        line(format!("{times:>12}  {what}"));
    }
    line(String::new());
    if let Some(small) = shrunk {
        line(format!("Seed {}, shrunk in {} runs: {}", small.seed, small.runs, small.case));
        line(format!("{} of {} faults remain.", small.faults_left, small.faults));
        small.transcript.iter().for_each(|l| line(l.clone()));
        line(String::new());
    }
    for Broken { seed, rule, what, reproduce } in &totals.failures {
        line(format!("Seed {seed} breaks {rule}: {what}"));
        line(format!("Reproduce: {reproduce}"));
    }
    if totals.failures.is_empty() {
        line("No rule was broken.".into());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_sim::harness::Violation;

    #[test]
    fn a_failure_is_shown_small_and_with_the_command_that_repeats_it() {
        let mut totals = Totals::default();
        let violation = Violation { rule: "R6", what: "server-1 drops the only copy".into() };
        let failure = Failure { seed: 7, violation, transcript: Vec::new(), test: "sweep::one_seed" };
        totals.add(Err(Box::new(failure)), false);
        let transcript = vec!["   1.000000 server-1 crashes".into()];
        let case = "4 servers".into();
        let small = Small { seed: 7, case, faults: 9, faults_left: 1, runs: 30, transcript };
        let text = describe(&totals, Some(&small));
        assert!(text.contains("Seed 7, shrunk in 30 runs: 4 servers\n1 of 9 faults remain.\n"), "{text}");
        assert!(text.contains("server-1 crashes\n"), "{text}");
        assert!(text.contains("Seed 7 breaks R6: server-1 drops the only copy\n"), "{text}");
        assert!(text.ends_with("Reproduce: ebb simulate fuzz --seeds 7..8\n"), "{text}");
    }

    #[test]
    fn a_transcript_shows_the_faults_before_its_end() {
        let all = ["0 server-1 crashes", "1 server-2 <- map", "2 server-1 starts", "3 server-2 -> x"];
        let all: Vec<String> = all.iter().map(|l| l.to_string()).collect();
        let lines = readable(&all, 1);
        assert_eq!((lines.len(), &lines[0], &lines[1]), (4, &all[0], &all[2]));
        assert_eq!(lines[3], all[3]);
    }
}
