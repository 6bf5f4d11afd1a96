//! `ebb lab provenance`: where the figures of a report come from, and whether they can be made again.
//!
//! A report may come from anyone, and names a command line. So only commands that compute run by themselves: they read
//! files, and what would write one is left out of them ([`arguments`]). What drives storage, reads meters or runs other
//! programs needs `--again`.

use crate::cli::provenance::{InputFile, Inputs, Provenance, pointer_to};
use crate::cli::trace::Percent;
use crate::error::{NodeError, io, refused};
use clap::Args;
use ebb_output::print_json;
use ebb_types::Bytes;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

pub const EXAMPLES: &str = "\
Examples:
  ebb simulate load week.csv --json > week.json
  ebb lab provenance week.json                       run it again, and compare every figure
  ebb lab provenance week.json --show                only where it comes from, and whether its inputs are the same
  ebb lab provenance disk.json --with today.json     compare two reports of a long measurement; run nothing
  ebb lab provenance disk.json --again --tolerance 20% --except /wall_seconds

Run it where the command was run: relative paths are those of the report. Exit code 3: an input or a figure differs.";

/// Options that name files of results.
const OUTPUTS: [&str; 4] = ["--out", "--save", "--html", "--csv"];
/// Exit code: a check found a difference.
const DIFFERENT: u8 = 3;
/// Differences that people are shown.
const SHOWN: usize = 20;

#[derive(Args)]
pub struct ProvenanceArgs {
    /// A report: what a command printed with --json, or wrote with --out or --save
    #[arg(value_name = "REPORT.json")]
    report: PathBuf,
    /// By how much a number may differ, as a share of the larger one
    #[arg(long, value_name = "PERCENT", default_value = "5%")]
    tolerance: Percent,
    /// Do not compare what this JSON pointer names, such as /seconds; may be repeated
    #[arg(long, value_name = "POINTER")]
    except: Vec<String>,
    /// Compare with this report, and run nothing
    #[arg(long, value_name = "REPORT.json", conflicts_with = "again")]
    with: Option<PathBuf>,
    /// Run nothing and compare nothing
    #[arg(long, conflicts_with_all = ["with", "again"])]
    show: bool,
    /// Also run again what drives storage, reads meters or runs other programs: look at the command first
    #[arg(long)]
    again: bool,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// What an input is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Same,
    Changed,
    Missing,
    /// The report has no digest of it.
    Unknown,
}

#[derive(Serialize)]
struct Checked {
    #[serde(flatten)]
    file: InputFile,
    state: State,
}

/// Where a report comes from.
#[derive(Serialize)]
struct Origin {
    report: PathBuf,
    of: Provenance,
    inputs: Vec<Checked>,
    /// This program, on this machine.
    here: Provenance,
}

/// A value that differs. An absent one is `null`, and differs from nothing that is `null`.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Difference {
    pointer: String,
    was: Value,
    is: Value,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct Comparison {
    /// Values, numbers or not.
    compared: u64,
    differences: Vec<Difference>,
}

#[derive(Serialize)]
struct Found<'a> {
    #[serde(flatten)]
    origin: &'a Origin,
    tolerance_percent: f64,
    /// Absent: nothing was compared.
    #[serde(flatten)]
    comparison: Option<&'a Comparison>,
}

pub fn run(args: &ProvenanceArgs) -> Result<ExitCode, NodeError> {
    let Percent(percent) = args.tolerance;
    if percent < 0.0 {
        return Err(refused(format!("--tolerance {percent}%: it must not be less than 0%")));
    }
    let was = read(&args.report)?;
    let origin = Origin::of(&args.report, &was)?;
    if !args.json {
        print!("{origin}");
    }
    let is = match &args.with {
        _ if args.show => None,
        Some(other) => Some(read(other)?),
        None if origin.is_intact() => Some(make_again(&origin.of, args.again)?),
        None => None,
    };
    let rule = Rule { tolerance: percent / 100.0, except: &args.except };
    let comparison = is.map(|is| rule.compare(&was, &is));
    if args.json {
        print_json(&Found { origin: &origin, tolerance_percent: percent, comparison: comparison.as_ref() });
    } else {
        match &comparison {
            Some(comparison) => print!("{comparison}"),
            None if args.show => {}
            None => println!("not run again: its inputs are not what they were"),
        }
    }
    let same = comparison.is_none_or(|comparison| comparison.differences.is_empty());
    Ok(if same && origin.is_intact() { ExitCode::SUCCESS } else { ExitCode::from(DIFFERENT) })
}

fn read(path: &Path) -> Result<Value, NodeError> {
    let text = std::fs::read(path).map_err(io("read", path))?;
    serde_json::from_slice(&text).map_err(|error| refused(format!("{} is not JSON: {error}", path.display())))
}

impl Origin {
    fn of(path: &Path, report: &Value) -> Result<Origin, NodeError> {
        let of = report.get("provenance").ok_or_else(|| {
            refused(format!(
                "{} does not say where it comes from: reports have `provenance` since the release that has this \
                 command; make it again with --json",
                path.display()
            ))
        })?;
        let of: Provenance = serde_json::from_value(of.clone())
            .map_err(|error| refused(format!("{}: provenance: {error}", path.display())))?;
        let inputs =
            of.inputs.iter().map(|file| Checked { file: file.clone(), state: state(file) }).collect();
        Ok(Origin { report: path.to_owned(), of, inputs, here: Provenance::now(&Inputs::default()) })
    }

    /// Whether no input is known to have changed.
    fn is_intact(&self) -> bool {
        self.inputs.iter().all(|input| matches!(input.state, State::Same | State::Unknown))
    }
}

fn state(was: &InputFile) -> State {
    let is = InputFile::at(Path::new(&was.path));
    match (&was.sha256, &is.sha256) {
        (None, _) => State::Unknown,
        (Some(_), None) => State::Missing,
        (Some(was), Some(is)) if was == is => State::Same,
        (Some(_), Some(_)) => State::Changed,
    }
}

/// Runs the command of a report, and returns what it reports now.
fn make_again(of: &Provenance, consent: bool) -> Result<Value, NodeError> {
    if of.redacted {
        return Err(refused(
            "the command had a secret, which is not in the report: run it yourself with --json, and compare the two \
             reports with --with",
        ));
    }
    if !only_computes(&of.command) && !consent {
        return Err(refused(
            "the command drives storage, reads meters, runs programs or writes files: look at it, and add --again to \
             run it; or compare with another report (--with), or only look (--show)",
        ));
    }
    let program = std::env::current_exe().map_err(io("find", "this program"))?;
    let mut command = Command::new(program);
    command.args(arguments(&of.command)).stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(io("run", "this program"))?;
    // A command that found something ends with another code than 0, and reports it.
    serde_json::from_slice(&output.stdout).map_err(|_| {
        refused(format!("the command ended with {} and reported nothing: its reason is above", output.status))
    })
}

/// Whether a command reads what it is given and computes, no more. Its files of results are left out.
fn only_computes(command: &[String]) -> bool {
    let words: Vec<&str> = command.iter().skip(1).map(String::as_str).collect();
    matches!(
        words[..],
        ["simulate", ..]
            | ["lab", "trace", "info" | "accuracy", ..]
            | ["lab", "cost", "compare", ..]
            | ["lab", "eval", "show" | "compare", ..]
            | ["lab", "meter", "import", ..]
    )
}

/// The arguments that make the same figures: with `--json`, and without files of results. What follows a bare `--`
/// belongs to another program.
fn arguments(command: &[String]) -> Vec<String> {
    let end = command.iter().position(|word| word == "--").unwrap_or(command.len());
    let (own, others) = command.split_at(end);
    let mut own = own.iter().skip(1);
    let mut kept = Vec::new();
    while let Some(word) = own.next() {
        match OUTPUTS.iter().find_map(|output| word.strip_prefix(output)) {
            // The next word is its value.
            Some("") => {
                own.next();
            }
            Some(value) if value.starts_with('=') => {}
            _ => kept.push(word.clone()),
        }
    }
    if !kept.iter().any(|word| word == "--json") {
        kept.push("--json".to_owned());
    }
    kept.extend_from_slice(others);
    kept
}

/// When two values count as the same.
struct Rule<'a> {
    /// Of the larger number.
    tolerance: f64,
    /// JSON pointers of what is not compared.
    except: &'a [String],
}

impl Rule<'_> {
    fn compare(&self, was: &Value, is: &Value) -> Comparison {
        let mut found = Comparison::default();
        self.walk(was, is, "", &mut found);
        found
    }

    fn walk(&self, was: &Value, is: &Value, pointer: &str, found: &mut Comparison) {
        if pointer == "/provenance" || self.except.iter().any(|except| except == pointer) {
            return;
        }
        match (was, is) {
            (Value::Object(was), Value::Object(is)) => {
                let keys: BTreeSet<&String> = was.keys().chain(is.keys()).collect();
                for key in keys {
                    let below = pointer_to(pointer, key);
                    self.walk(or_null(was.get(key)), or_null(is.get(key)), &below, found);
                }
            }
            (Value::Array(was), Value::Array(is)) => {
                for n in 0..was.len().max(is.len()) {
                    self.walk(or_null(was.get(n)), or_null(is.get(n)), &format!("{pointer}/{n}"), found);
                }
            }
            _ => {
                found.compared += 1;
                if !self.is_same(was, is) {
                    let (was, is) = (was.clone(), is.clone());
                    found.differences.push(Difference { pointer: pointer.to_owned(), was, is });
                }
            }
        }
    }

    fn is_same(&self, was: &Value, is: &Value) -> bool {
        match (was.as_f64(), is.as_f64()) {
            (Some(was), Some(is)) => (was - is).abs() <= self.tolerance * was.abs().max(is.abs()),
            _ => was == is,
        }
    }
}

fn or_null(value: Option<&Value>) -> &Value {
    static NULL: Value = Value::Null;
    value.unwrap_or(&NULL)
}

/// The program, with its commit if it is known.
fn program(of: &Provenance) -> String {
    match &of.commit {
        Some(commit) => format!("ebb {}, commit {commit}", of.version),
        None => format!("ebb {}, of an unknown commit", of.version),
    }
}

fn machine(of: &Provenance) -> String {
    let machine = &of.machine;
    let unknown = || "unknown".to_owned();
    let cores = machine.cores.map_or_else(unknown, |cores| cores.to_string());
    let memory = machine.memory_bytes.map_or_else(unknown, |bytes| Bytes(bytes).to_string());
    let [cpu, kernel] = [&machine.cpu, &machine.kernel].map(|text| text.clone().unwrap_or_else(unknown));
    format!("{cpu}, cores: {cores}, memory: {memory}, kernel {kernel}")
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Origin { report, of, inputs, here } = self;
        writeln!(f, "{}: by {}, {}", report.display(), program(of), of.date)?;
        writeln!(f, "command  {}", of.command.join(" "))?;
        writeln!(f, "machine  {}", machine(of))?;
        if let Some(seeds) = of.seeds {
            writeln!(f, "seeds    {} to {}", seeds.first, seeds.last)?;
        }
        for Checked { file, state } in inputs {
            let bytes = file.bytes.map_or(String::new(), |bytes| format!(", {}", Bytes(bytes)));
            let state = match state {
                State::Same => "the same",
                State::Changed => "HAS CHANGED",
                State::Missing => "IS MISSING",
                State::Unknown => "not checked: the report has no digest of it",
            };
            writeln!(f, "input    {}{bytes}: {state}", file.path)?;
            if let (Some(name), Some(from)) = (&file.known_as, &file.from) {
                writeln!(f, "         known as {name}, from {from}")?;
            }
        }
        if (program(of), machine(of)) != (program(here), machine(here)) {
            writeln!(f, "here     {}; {}", program(here), machine(here))?;
        }
        Ok(())
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Comparison { compared, differences } = self;
        for Difference { pointer, was, is } in differences.iter().take(SHOWN) {
            writeln!(f, "{pointer}: was {was}, is {is}")?;
        }
        if differences.len() > SHOWN {
            writeln!(f, "and {} more, which --json has", differences.len() - SHOWN)?;
        }
        writeln!(f, "{compared} values compared, {} differ", differences.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn pointers(tolerance: f64, except: &[&str], was: &Value, is: &Value) -> Vec<String> {
        let except: Vec<String> = except.iter().map(|pointer| (*pointer).to_owned()).collect();
        let found = Rule { tolerance, except: &except }.compare(was, is);
        found.differences.into_iter().map(|difference| difference.pointer).collect()
    }

    #[test]
    fn numbers_within_the_tolerance_are_the_same_and_all_else_must_be_equal() {
        let was = json!({ "iops": 100.0, "failed": 0, "rows": [{ "a/b~c": 2 }, "x"], "watts": null, "provenance": 1 });
        let is = json!({ "iops": 104.9, "failed": 0, "rows": [{ "a/b~c": 2 }, "x"], "provenance": 2 });
        assert_eq!(pointers(0.05, &[], &was, &is), [""; 0], "an absent value is null");
        assert_eq!(pointers(0.04, &[], &was, &is), ["/iops"]);
        assert_eq!(pointers(0.0, &["/iops"], &was, &is), [""; 0]);
        let is = json!({ "iops": 106, "failed": 1, "rows": [{ "a/b~c": 3 }, "y", 7], "watts": 3.5 });
        assert_eq!(
            pointers(0.05, &[], &was, &is),
            ["/failed", "/iops", "/rows/0/a~1b~0c", "/rows/1", "/rows/2", "/watts"]
        );
        assert_eq!(pointers(0.5, &["/rows", "/watts"], &was, &is), ["/failed"], "what was 0 is not nearly 1");
        assert_eq!(pointers(0.05, &["/row"], &json!({ "rows": 1 }), &json!({ "rows": 2 })), ["/rows"]);
    }

    #[test]
    fn values_are_counted_and_shown_with_both_sides() {
        let found = Rule { tolerance: 0.0, except: &[] }.compare(&json!([1, 2, 3]), &json!([1, 2, 4]));
        assert_eq!(found.compared, 3);
        assert_eq!(found.to_string(), "/2: was 3, is 4\n3 values compared, 1 differ\n");
    }

    #[test]
    fn files_of_results_are_not_written_again() {
        for (line, expected) in [
            ("ebb simulate load w.csv --html a.html --csv=b.csv", "simulate load w.csv --json"),
            ("ebb simulate paper ecs2 --json --out e --seed 3", "simulate paper ecs2 --json --seed 3"),
            ("ebb lab cost --save a.json --runs 2 -- fio --out x", "lab cost --runs 2 --json -- fio --out x"),
            ("ebb lab replay w --outer 3", "lab replay w --outer 3 --json"),
        ] {
            assert_eq!(arguments(&words(line)).join(" "), expected);
        }
    }

    #[test]
    fn what_does_more_than_compute_needs_consent() {
        for line in ["ebb simulate load w.csv", "ebb lab trace accuracy", "ebb lab meter import a.csv"] {
            assert!(only_computes(&words(line)), "{line}");
        }
        for line in [
            "ebb lab cost -- rm x",
            "ebb lab replay w",
            "ebb lab meter read rapl",
            "ebb lab eval run m",
            "ebb dev",
        ] {
            assert!(!only_computes(&words(line)), "{line}");
        }
        let line = "ebb lab cost -- true";
        let mut of = Provenance { command: words(line), ..Provenance::now(&Inputs::default()) };
        of.redacted = false;
        let why = make_again(&of, false).unwrap_err().to_string();
        assert!(why.contains("--again") && why.contains("--with"), "{why}");
        of.redacted = true;
        let why = make_again(&of, true).unwrap_err().to_string();
        assert!(why.contains("secret") && why.contains("--with"), "{why}");
    }

    #[test]
    fn an_input_is_compared_by_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("week.csv");
        std::fs::write(&path, "1\n").unwrap();
        let file = InputFile::at(&path);
        assert_eq!(state(&file), State::Same);
        std::fs::write(&path, "2\n").unwrap();
        assert_eq!(state(&file), State::Changed);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(state(&file), State::Missing);
        assert_eq!(state(&InputFile::at(&path)), State::Unknown);
    }
}
