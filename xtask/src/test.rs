//! `cargo xtask test`: builds every test program and runs each as soon as it is built.
//!
//! Cargo builds all and then runs one program after another. Here the programs run while the rest still compiles; those
//! that use the processors take turns, each with a thread per processor, and clusters of processes, which mostly wait,
//! run beside them. Compiles with clippy's compiler, so that the lints cost no build of their own. At the end it lists
//! what failed, what was skipped, the slowest tests, and what compiling took.
//!
//! The test programs report as JSON with times, which libtest calls unstable: `rust-toolchain.toml` pins the compiler.

use crate::changed;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// How much of it.
#[derive(Clone, Copy, PartialEq)]
pub enum Tier {
    /// For each change: all tests in their short form.
    Day,
    /// What changed, and what depends on it; of clusters of processes only the README's.
    Quick,
    /// Everything, and what is random with fresh seeds.
    Night,
}

const SLOWEST: usize = 20;
/// A package and its test program whose clusters of processes mostly wait.
const CLUSTERS: (&str, &str) = ("ebb", "all");
const README_CLUSTER: &str = "example::";
const RULE: &str = "----------------------------------------------------------------";

struct Program {
    package: String,
    target: String,
    executable: PathBuf,
    /// Where its crate is.
    directory: PathBuf,
}

impl Program {
    /// The test program of a line of cargo's, if it is one.
    fn of(message: &Value) -> Option<Program> {
        if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
            return None;
        }
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let directory = PathBuf::from(text(&message["manifest_path"])?).parent()?.to_owned();
        let id = text(&message["package_id"])?;
        let name = id.rsplit(['/', '#']).next()?.split('@').next()?.to_owned();
        // `path+file:///…/gear#ebb-gear@0.2.0`, or `…/ebb#0.2.0` where the folder has the package's name.
        let package = match name.starts_with(|c: char| c.is_ascii_digit()) {
            true => directory.file_name()?.to_str()?.to_owned(),
            false => name,
        };
        let target = text(&message["target"]["name"])?;
        Some(Program { package, target, executable: text(&message["executable"])?.into(), directory })
    }

    fn is_clusters(&self) -> bool {
        (self.package.as_str(), self.target.as_str()) == CLUSTERS
    }

    fn name(&self) -> String {
        match self.target == self.package.replace('-', "_") {
            true => self.package.clone(),
            false => format!("{} {}", self.package, self.target),
        }
    }
}

/// Whether a line of cargo's says that the program which clusters consist of is built.
fn is_the_program(message: &Value) -> bool {
    message["reason"] == "compiler-artifact"
        && message["profile"]["test"] == false
        && message["target"]["kind"] == serde_json::json!(["bin"])
        && message["target"]["name"] == CLUSTERS.0
}

/// What the programs reported.
#[derive(Default)]
struct Results {
    passed: usize,
    /// Each with what it printed.
    failed: Vec<(String, String)>,
    times: Vec<(f64, String)>,
}

struct Session<'a> {
    root: &'a Path,
    tier: Tier,
    /// Packages whose tests run; all, where there is none.
    only: BTreeSet<String>,
    /// Where a test notes that it was skipped.
    skipped: PathBuf,
    results: Mutex<Results>,
    /// Programs that use the processors take turns.
    processors: Mutex<()>,
}

impl Session<'_> {
    fn results(&self) -> MutexGuard<'_, Results> {
        self.results.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn is_wanted(&self, program: &Program) -> bool {
        self.tier != Tier::Quick || self.only.contains(&program.package)
    }

    fn run(&self, program: &Program) {
        let turn = || self.processors.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        // Clusters mostly wait.
        let _turn = (!program.is_clusters()).then(turn);
        let since = Instant::now();
        let log = self.root.join("target/test-logs").join(program.name().replace(' ', "-"));
        let outcome = self.start(program, &log).and_then(|child| self.follow(program, child));
        let seconds = since.elapsed().as_secs_f64();
        match outcome {
            Ok((passed, 0)) => println!("{:32} {passed:5} passed {seconds:8.1} s", program.name()),
            Ok((passed, failed)) => {
                println!("{:32} {passed:5} passed {seconds:8.1} s, {failed} FAILED", program.name());
            }
            Err(why) => {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                self.results().failed.push((program.name(), format!("{why}\n{said}")));
            }
        }
    }

    fn start(&self, program: &Program, log: &Path) -> Result<Child, String> {
        let create = || {
            std::fs::create_dir_all(log.parent().expect("a file is in a folder"))?;
            std::fs::File::create(log)
        };
        let log = create().map_err(|error| format!("{}: {error}", log.display()))?;
        let mut command = Command::new(&program.executable);
        command.args(["-Z", "unstable-options", "--report-time", "--format", "json"]);
        if program.is_clusters() {
            // Two clusters, and a test that needs none.
            command.arg("--test-threads=3");
        }
        match self.tier {
            // What is ignored by day, but for one that serves until it is killed.
            Tier::Night => drop(command.args(["--include-ignored", "--skip", "serve_in_memory"])),
            Tier::Quick if program.is_clusters() => drop(command.arg(README_CLUSTER)),
            _ => {}
        }
        let started = command
            .current_dir(&program.directory)
            .env("CARGO_MANIFEST_DIR", &program.directory)
            .env("RUSTC_BOOTSTRAP", "1")
            .env("EBB_SKIPPED", &self.skipped)
            .env_remove("RUSTC_WORKSPACE_WRAPPER")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn();
        started.map_err(|error| format!("{}: {error}", program.executable.display()))
    }

    /// Counts what a program reports; an error if it ends otherwise than it should.
    fn follow(&self, program: &Program, mut child: Child) -> Result<(usize, usize), String> {
        let lines = BufReader::new(child.stdout.take().expect("its output is a pipe")).lines();
        let (mut passed, mut failed) = (0, 0);
        for line in lines.map_while(Result::ok) {
            let Ok(event) = serde_json::from_str::<Value>(&line) else { continue };
            if event["type"] != "test" {
                continue;
            }
            let name = format!("{}: {}", program.name(), event["name"].as_str().unwrap_or_default());
            if let Some(seconds) = event["exec_time"].as_f64() {
                self.results().times.push((seconds, name.clone()));
            }
            match event["event"].as_str() {
                Some("ok") => passed += 1,
                Some("failed") => {
                    failed += 1;
                    let said = event["stdout"].as_str().unwrap_or_default().to_owned();
                    self.results().failed.push((name, said));
                }
                _ => {}
            }
        }
        self.results().passed += passed;
        let status = child.wait().map_err(|error| error.to_string())?;
        match status.success() || failed > 0 {
            true => Ok((passed, failed)),
            false => Err(format!("ended with {status} after {passed} tests")),
        }
    }

    /// The examples in the code's documentation, which cargo builds and runs itself.
    fn run_examples(&self) {
        let since = Instant::now();
        let name = "examples in documentation";
        let out = match cargo(self.root).arg("--doc").output() {
            Ok(out) => out,
            Err(error) => return self.results().failed.push((name.to_owned(), error.to_string())),
        };
        let said = String::from_utf8_lossy(&out.stdout);
        let (passed, failed) = (said.matches(" ... ok\n").count(), said.matches(" ... FAILED\n").count());
        println!("{name:32} {passed:5} passed {:8.1} s", since.elapsed().as_secs_f64());
        let mut results = self.results();
        results.passed += passed;
        if !out.status.success() || failed > 0 {
            let said = format!("{said}{}", String::from_utf8_lossy(&out.stderr));
            results.failed.push((name.to_owned(), said));
        }
    }
}

/// Cargo, about to test the workspace.
fn cargo(root: &Path) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["test", "--workspace", "--locked"]);
    cargo.current_dir(root).stdout(Stdio::piped());
    // What `cargo run` told this program about itself is not for the build scripts of others: they would run again.
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("CARGO_PKG_")) {
        cargo.env_remove(name);
    }
    cargo.env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO_MANIFEST_PATH");
    if has_clippy() {
        // As `cargo clippy -- -D warnings` does it.
        cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
        cargo.env("CLIPPY_ARGS", "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__");
    }
    cargo
}

fn has_clippy() -> bool {
    Command::new("clippy-driver").arg("--version").output().is_ok_and(|out| out.status.success())
}

/// Builds and runs; returns whether all is well.
pub fn run(root: &Path, tier: Tier) -> bool {
    let since = Instant::now();
    let skipped = std::env::temp_dir().join(format!("ebb-skipped-{}", std::process::id()));
    std::fs::write(&skipped, "").expect("the folder for temporary files can be written");
    let only = match tier {
        Tier::Quick => match changed::packages(root) {
            Ok(only) => only,
            Err(why) => {
                eprintln!("{why}");
                return false;
            }
        },
        _ => BTreeSet::new(),
    };
    if tier == Tier::Quick {
        println!(
            "changed, or depends on what changed: {}",
            only.iter().cloned().collect::<Vec<_>>().join(" ")
        );
        if only.is_empty() {
            return true;
        }
    }
    if !has_clippy() {
        println!("skipped: lints: clippy is not installed (rustup component add clippy)");
    }
    let (results, processors) = (Mutex::default(), Mutex::default());
    let session = Session { root, tier, only, skipped, results, processors };
    let mut compiled = Duration::ZERO;
    let (mut is_built, mut is_there, mut waiting) = (false, false, Vec::new());
    std::thread::scope(|scope| {
        let mut build = cargo(root);
        build.args(["--no-run", "--message-format=json-render-diagnostics"]);
        let mut cargo = build.spawn().expect("cargo runs");
        let lines = BufReader::new(cargo.stdout.take().expect("its output is a pipe")).lines();
        for line in lines.map_while(Result::ok) {
            let message = serde_json::from_str::<Value>(&line).unwrap_or_default();
            is_there |= is_the_program(&message);
            waiting.extend(Program::of(&message).filter(|program| session.is_wanted(program)));
            // Cargo may have built the tests of clusters before the program that they start.
            for program in waiting.extract_if(.., |program| is_there || !program.is_clusters()) {
                let session = &session;
                scope.spawn(move || session.run(&program));
            }
        }
        is_built = cargo.wait().is_ok_and(|status| status.success());
        compiled = since.elapsed();
        println!("compiled after {:.0} s", compiled.as_secs_f64());
        if is_built {
            session.run_examples();
        }
    });
    let good = tell(&session, compiled, since.elapsed());
    good && is_built
}

/// Prints what there is to know, the counts last.
fn tell(session: &Session, compiled: Duration, all: Duration) -> bool {
    let mut results = session.results();
    for (name, said) in &results.failed {
        println!("{RULE}\nFAILED {name}\n{said}");
    }
    results.times.sort_by(|a, b| b.0.total_cmp(&a.0));
    println!("{RULE}\nthe {SLOWEST} slowest tests");
    for (seconds, name) in results.times.iter().take(SLOWEST) {
        println!("{seconds:8.1} s  {name}");
    }
    let lines = std::fs::read_to_string(&session.skipped).unwrap_or_default();
    // It is ours alone; where it cannot be removed, the system clears it away.
    let _ = std::fs::remove_file(&session.skipped);
    let reasons: BTreeMap<&str, &str> = lines.lines().filter_map(|line| line.split_once(": ")).collect();
    for (test, why) in &reasons {
        println!("skipped: {test}: {why}");
    }
    if !reasons.is_empty() {
        println!("`make tools` installs the programs that are missing");
    }
    let (passed, failed) = (results.passed, results.failed.len());
    println!("compiling took {:.0} s of {:.0} s", compiled.as_secs_f64(), all.as_secs_f64());
    println!("{passed} passed, {failed} failed, {} skipped", reasons.len());
    // A run without a test proves nothing.
    failed == 0 && passed > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_among_what_cargo_says() {
        let line = |id: &str, manifest: &str, name: &str, test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact", "package_id": id, "manifest_path": manifest,
                "target": { "name": name }, "profile": { "test": test }, "executable": "/t/x"
            })
        };
        let name = |value| Program::of(&value).map(|program| program.name());
        let gear = "path+file:///w/crates/cluster/gear#ebb-gear@0.2.0";
        assert_eq!(
            name(line(gear, "/w/crates/cluster/gear/Cargo.toml", "ebb_gear", true)).as_deref(),
            Some("ebb-gear")
        );
        assert_eq!(name(line(gear, "/w/crates/cluster/gear/Cargo.toml", "ebb_gear", false)), None);
        let ebb = "path+file:///w/crates/ebb#0.2.0";
        let all = Program::of(&line(ebb, "/w/crates/ebb/Cargo.toml", "all", true)).unwrap();
        assert!(all.is_clusters() && all.name() == "ebb all");
        assert_eq!(name(serde_json::json!({ "reason": "build-finished" })), None);
        let program = |kind: &str| {
            let mut line = line(ebb, "/w/crates/ebb/Cargo.toml", "ebb", false);
            line["target"]["kind"] = serde_json::json!([kind]);
            is_the_program(&line)
        };
        assert!(program("bin") && !program("lib"));
    }
}
