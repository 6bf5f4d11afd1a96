//! The files that define the workloads: what each stands for, the programs that it needs, and its shell scripts.
//!
//! All of them are read and checked before anything runs. A script runs in a directory of its own, with `SCALE` (how
//! much data) and `SEED` in its environment. The command may run several times after one setup.

use ebb_types::numbers_in_words;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The workloads of the paper [OS layers Table 1].
pub const PAPERS_WORKLOADS: [&str; 8] =
    ["IOR", "Psearchy", "Dedup", "Metis", "BDB", "HBase", "TPC-E", "BLAST"];
/// Longest file that is read.
const FILE_MAX: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum WorkloadError {
    #[error(
        "cannot read {path}: {source}: name a workload file or a directory of them, such as examples/os-layers"
    )]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {}", numbers_in_words(&.error.to_string()))]
    Parse { path: PathBuf, error: Box<toml::de::Error> },
    #[error("{path}: {key}: {problem}")]
    Value { path: PathBuf, key: &'static str, problem: String },
    #[error("{path} has no workload file (.toml)")]
    NoFiles { path: PathBuf },
    #[error("{a} and {b} both define the workload {name}: rename one")]
    Twice { name: String, a: PathBuf, b: PathBuf },
}

/// What precedes each script. Its arguments: directory, log, scale, seed, more of `PATH`.
pub(super) const PRELUDE: &str =
    "cd -- \"$1\"; exec >>\"$2\" 2>&1 </dev/null; export SCALE=\"$3\" SEED=\"$4\" PATH=\"$PATH$5\"\n";

/// The generated data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dataset {
    /// How much, in units of the workloads' own.
    pub scale: u32,
    pub seed: u64,
}

/// One workload.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Lower-case letters, digits and hyphens: it also names the workload's directory.
    pub name: String,
    /// The workload of the paper for which it stands.
    pub paper: Option<String>,
    /// What it does, and how much.
    pub about: String,
    /// Programs without which it is skipped.
    #[serde(default)]
    pub tools: Vec<String>,
    /// Directories that are searched for programs after those of `PATH`.
    #[serde(default)]
    pub path: Vec<PathBuf>,
    /// Makes the data; not measured.
    #[serde(default)]
    pub setup: String,
    /// What is measured.
    pub command: String,
    /// Ends what the setup started; not measured. The directory is removed in any case.
    #[serde(default)]
    pub cleanup: String,
    /// The command does not end by itself: it is stopped after this time.
    window_seconds: Option<f64>,
}

impl Workload {
    /// Reads files, and all `.toml` files of directories, in the order of their names.
    pub fn load_all(paths: &[PathBuf]) -> Result<Vec<Workload>, WorkloadError> {
        let mut files = Vec::new();
        for path in paths {
            if !path.is_dir() {
                files.push(path.clone());
                continue;
            }
            let read = |source| WorkloadError::Read { path: path.clone(), source };
            let entries: Vec<_> = std::fs::read_dir(path).and_then(Iterator::collect).map_err(read)?;
            let mut found: Vec<PathBuf> =
                entries.iter().map(|entry: &std::fs::DirEntry| entry.path()).collect();
            found.retain(|file| file.extension().is_some_and(|ending| ending == "toml"));
            if found.is_empty() {
                return Err(WorkloadError::NoFiles { path: path.clone() });
            }
            found.sort();
            files.append(&mut found);
        }
        let mut names = BTreeMap::new();
        let mut workloads = Vec::new();
        for file in files {
            let workload = Workload::load(&file)?;
            if let Some(a) = names.insert(workload.name.clone(), file.clone()) {
                return Err(WorkloadError::Twice { name: workload.name, a, b: file });
            }
            workloads.push(workload);
        }
        Ok(workloads)
    }

    fn load(path: &Path) -> Result<Workload, WorkloadError> {
        let mut text = String::new();
        File::open(path)
            .and_then(|file| file.take(FILE_MAX).read_to_string(&mut text))
            .map_err(|source| WorkloadError::Read { path: path.to_owned(), source })?;
        Workload::parse(path, &text)
    }

    /// `path`: the file of the text, for messages.
    pub fn parse(path: &Path, text: &str) -> Result<Workload, WorkloadError> {
        let workload: Workload = toml::from_str(text)
            .map_err(|error| WorkloadError::Parse { path: path.to_owned(), error: Box::new(error) })?;
        match workload.problem() {
            Some((key, problem)) => Err(WorkloadError::Value { path: path.to_owned(), key, problem }),
            None => Ok(workload),
        }
    }

    fn problem(&self) -> Option<(&'static str, String)> {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(plain) {
            return Some((
                "name",
                format!("{:?}: use 1 to 64 lower-case letters, digits and hyphens", self.name),
            ));
        }
        if let Some(paper) = self.paper.as_ref().filter(|paper| !PAPERS_WORKLOADS.contains(&paper.as_str())) {
            return Some(("paper", format!("{paper:?} is none of {}", PAPERS_WORKLOADS.join(", "))));
        }
        if self.command.trim().is_empty() {
            return Some(("command", "it is empty".into()));
        }
        if let Some(tool) = self.tools.iter().find(|tool| tool.is_empty() || tool.contains('/')) {
            return Some(("tools", format!("{tool:?}: write the name of a program, without its directory")));
        }
        let wrong = |path: &&PathBuf| !path.is_absolute() || path.to_string_lossy().contains(':');
        if let Some(path) = self.path.iter().find(wrong) {
            return Some(("path", format!("{} is not an absolute path without colons", path.display())));
        }
        let seconds = self
            .window_seconds
            .filter(|seconds| Duration::try_from_secs_f64(*seconds).is_err() || *seconds == 0.0);
        seconds.map(|seconds| ("window_seconds", format!("{seconds} is not a length of time")))
    }

    pub fn window(&self) -> Option<Duration> {
        self.window_seconds.map(Duration::from_secs_f64)
    }

    /// What follows `PATH` for it, with the colon that parts them.
    pub(super) fn more_path(&self) -> String {
        self.path.iter().map(|path| format!(":{}", path.display())).collect()
    }

    /// The needed programs that this machine does not have.
    pub fn missing(&self) -> Vec<&str> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places: Vec<PathBuf> = std::env::split_paths(&path).chain(self.path.iter().cloned()).collect();
        let absent = |tool: &&String| !places.iter().any(|place| place.join(tool.as_str()).is_file());
        self.tools.iter().filter(absent).map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str =
        "name = \"a-1\"\npaper = \"IOR\"\nabout = \"x\"\ntools = [\"sh\"]\ncommand = \"true\"\n";

    fn parse(text: &str) -> Result<Workload, WorkloadError> {
        Workload::parse(Path::new("a.toml"), text)
    }

    #[test]
    fn a_workload_is_read_and_each_mistake_is_named() {
        let good = parse(GOOD).unwrap();
        assert_eq!((good.name.as_str(), good.window(), good.missing()), ("a-1", None, vec![]));
        let windowed = parse(&format!("{GOOD}window_seconds = 1.5")).unwrap();
        assert_eq!(windowed.window(), Some(Duration::from_millis(1500)));
        for (from, to, said) in [
            ("a-1", "A b", "name: \"A b\": use 1 to 64"),
            ("a-1", "../x", "name"),
            ("IOR", "IOZone", "is none of IOR, Psearchy"),
            ("\"true\"", "\" \"", "command: it is empty"),
            ("[\"sh\"]", "[\"/bin/sh\"]", "tools: \"/bin/sh\""),
            ("about", "abuot", "unknown field `abuot`"),
            ("command = \"true\"", "", "missing field `command`"),
            ("name", "path = [\"bin\"]\nname", "path: bin is not"),
            ("name", "window_seconds = -1.0\nname", "window_seconds: -1"),
            ("name", "window_seconds = 0.0\nname", "window_seconds: 0"),
            ("name", "[", "line 1"),
        ] {
            let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(said) && error.contains("a.toml"), "{said:?} is not in {error:?}");
        }
    }

    #[test]
    fn made_up_workload_files_never_panic() {
        ebb_testing::fuzz(&[GOOD.as_bytes()], |bytes| {
            if let Ok(text) = std::str::from_utf8(bytes) {
                let _ = parse(text);
            }
        });
    }

    #[test]
    fn a_program_that_is_not_there_is_missing() {
        let text = GOOD.replace("\"sh\"", "\"sh\", \"no-such-program-anywhere\"");
        assert_eq!(parse(&text).unwrap().missing(), ["no-such-program-anywhere"]);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("no-such-program-anywhere"), "").unwrap();
        let text = format!("path = [{:?}]\n{text}", dir.path());
        assert!(parse(&text).unwrap().missing().is_empty());
    }

    #[test]
    fn names_are_unique_and_a_directory_has_workloads() {
        let dir = tempfile::tempdir().unwrap();
        let all = || Workload::load_all(&[dir.path().to_owned()]);
        assert!(matches!(all(), Err(WorkloadError::NoFiles { .. })));
        std::fs::write(dir.path().join("b.toml"), GOOD.replace("a-1", "b")).unwrap();
        std::fs::write(dir.path().join("a.toml"), GOOD).unwrap();
        std::fs::write(dir.path().join("notes.txt"), "no workload").unwrap();
        let names: Vec<String> = all().unwrap().into_iter().map(|workload| workload.name).collect();
        assert_eq!(names, ["a-1", "b"]);
        std::fs::write(dir.path().join("c.toml"), GOOD).unwrap();
        assert!(all().unwrap_err().to_string().contains("both define the workload a-1"));
        let nowhere = Workload::load_all(&["no/such/file.toml".into()]).unwrap_err().to_string();
        assert!(nowhere.contains("no/such/file.toml") && nowhere.contains("examples/os-layers"), "{nowhere}");
    }

    #[test]
    fn the_examples_stand_for_every_workload_of_the_paper() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/os-layers");
        let workloads = Workload::load_all(&[directory]).unwrap();
        let mut stand_for: Vec<&str> = workloads.iter().filter_map(|w| w.paper.as_deref()).collect();
        stand_for.sort_unstable();
        let mut all = PAPERS_WORKLOADS.to_vec();
        all.sort_unstable();
        assert_eq!(stand_for, all);
    }
}
