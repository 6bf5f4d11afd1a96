//! Where a figure comes from: the key `provenance` in the JSON of every command that makes figures.
//!
//! Whoever doubts a figure makes it again. So a report names the program and its commit, the command line, the seeds,
//! each input file by its content, and the machine; `ebb lab provenance` makes the figures again and compares.
//!
//! - Reports are passed on, so no secret of the command line is in them ([`redacted`]). In doubt a word is left out:
//!   then the command cannot be run again from its report, which is the smaller loss.
//! - The commit is what the builder says (`EBB_COMMIT`, as `make build` does). A build script that asks git would name
//!   a commit from which the files differ, and would compile this crate again after each.
//! - Inputs are read again for their digests when the report is written, and only for JSON.

use ebb_output::Machine;
use ebb_types::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use time::UtcDateTime;

/// The page of the known inputs: one table for people and for reports.
const KNOWN_INPUTS: &str = include_str!("../../../../docs/inputs.md");
/// What stands in the place of a secret.
const REDACTED: &str = "[redacted]";
/// Parts of the names of secrets.
const SECRETS: [&str; 10] = [
    "password",
    "passwd",
    "passphrase",
    "secret",
    "token",
    "credential",
    "signature",
    "authorization",
    "cookie",
    "apikey",
];
/// The same, as whole words of a name: within other words they mean other things.
const SECRET_WORDS: [&str; 6] = ["key", "pass", "pw", "pwd", "auth", "sig"];
/// Ends of names that say where a secret is, and not what it is.
const PLACES: [&str; 4] = ["-file", "_file", "-env", "_env"];

/// Where the figures of a report come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// Of the program.
    pub version: String,
    /// The commit that it was built from, with `-dirty` if files differed from it; absent: its builder named none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The command line, from `ebb` on.
    pub command: Vec<String>,
    /// The command line had secrets, which are not in `command`.
    pub redacted: bool,
    /// Absent: nothing was drawn, or nothing that a seed decides.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seeds: Option<Seeds>,
    pub inputs: Vec<InputFile>,
    pub machine: Machine,
    /// When the report was written, in UTC: `2026-11-27T13:00:00Z`.
    pub date: String,
}

/// The seeds of the runs, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seeds {
    pub first: u64,
    pub last: u64,
}

impl From<u64> for Seeds {
    fn from(seed: u64) -> Seeds {
        Seeds { first: seed, last: seed }
    }
}

/// A file that the command read, named by its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputFile {
    /// As it was given.
    pub path: String,
    /// Absent, with the digest: it is no regular file, such as a pipe, or cannot be read any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
    /// Of the file as it is, compressed or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// Its name among the known inputs, if it is one of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub known_as: Option<String>,
    /// Where the recording is from, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// What a command knows of its own provenance: the files that it read, and its seeds.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    files: Vec<PathBuf>,
    seeds: Option<Seeds>,
}

impl Inputs {
    /// Of a directory, the files directly in it.
    pub fn of<P: AsRef<Path>>(files: impl IntoIterator<Item = P>) -> Inputs {
        Inputs::default().and(files)
    }

    pub fn and<P: AsRef<Path>>(mut self, files: impl IntoIterator<Item = P>) -> Inputs {
        self.files.extend(files.into_iter().map(|file| file.as_ref().to_owned()));
        self
    }

    pub fn seeded(mut self, seeds: impl Into<Seeds>) -> Inputs {
        self.seeds = Some(seeds.into());
        self
    }
}

/// A report, with where it comes from.
#[derive(Serialize)]
pub struct Traced<'a, R> {
    #[serde(flatten)]
    report: &'a R,
    provenance: Provenance,
}

/// A report, which must be an object in JSON.
pub fn traced<'a, R: Serialize>(report: &'a R, inputs: &Inputs) -> Traced<'a, R> {
    Traced { report, provenance: Provenance::now(inputs) }
}

/// A report as JSON. It must be an object.
pub fn json(report: &impl Serialize, inputs: &Inputs) -> String {
    ebb_output::json(&traced(report, inputs))
}

/// Prints a report: as JSON for machines, or as text for people.
pub fn print(report: &(impl Serialize + Display), as_json: bool, inputs: &Inputs) {
    print_or(report, as_json, inputs, report);
}

/// The same with a text that is not the report's own.
pub fn print_or(report: &impl Serialize, as_json: bool, inputs: &Inputs, text: impl Display) {
    if as_json { println!("{}", json(report, inputs)) } else { print!("{text}") }
}

impl Provenance {
    /// Of this process.
    pub fn now(inputs: &Inputs) -> Provenance {
        let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
        let (command, redacted) = redacted(std::iter::once("ebb".to_owned()).chain(words));
        Provenance {
            version: env!("CARGO_PKG_VERSION").into(),
            commit: option_env!("EBB_COMMIT").filter(|commit| !commit.is_empty()).map(str::to_owned),
            command,
            redacted,
            seeds: inputs.seeds,
            inputs: inputs
                .files
                .iter()
                .flat_map(|path| files_of(path))
                .map(|path| InputFile::at(&path))
                .collect(),
            machine: Machine::this(),
            date: date(UtcDateTime::now()),
        }
    }
}

impl InputFile {
    /// The file as it is now.
    pub fn at(path: &Path) -> InputFile {
        let (bytes, sha256) = digest(path).unzip();
        let known = sha256.as_deref().and_then(|sum| known().find(|known| known.sha256 == sum));
        let (known_as, from) = known.map(|known| (known.name.to_owned(), known.from.to_owned())).unzip();
        InputFile { path: path.display().to_string(), bytes, sha256, known_as, from }
    }
}

/// A row of the page.
#[derive(Debug)]
struct Known {
    name: &'static str,
    from: &'static str,
    sha256: &'static str,
}

/// The rows of the page: name, what, from, licence, digest.
fn known() -> impl Iterator<Item = Known> {
    KNOWN_INPUTS.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.strip_suffix("` |")?.split(" | ").collect();
        let [name, _, from, _, sha256] = cells[..] else { return None };
        Some(Known { name: name.split('`').next()?, from, sha256: sha256.strip_prefix('`')? })
    })
}

/// The JSON pointer of a member of what `pointer` names. [RFC 6901]
pub fn pointer_to(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

fn date(at: UtcDateTime) -> String {
    let ((year, month, day), (hour, minute, second)) = (at.to_calendar_date(), at.as_hms());
    let month = u8::from(month);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The regular files of a directory, by name; any other path as it is.
fn files_of(path: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(path) else { return vec![path.to_owned()] };
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    files.sort();
    files
}

/// Length and SHA-256 of a regular file.
fn digest(path: &Path) -> Option<(u64, String)> {
    if !path.metadata().ok()?.is_file() {
        return None;
    }
    let mut file = File::open(path).ok()?;
    let (mut sum, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).ok()? {
            0 => break Some((bytes, hex(&sum.finalize()))),
            read => {
                sum.update(&buffer[..read]);
                bytes += read as u64;
            }
        }
    }
}

/// A command line without its secrets, and whether it had any: who is in a URL, what follows the name of a secret in a
/// word, and the word after an option that is such a name.
fn redacted(words: impl Iterator<Item = String>) -> (Vec<String>, bool) {
    let (mut shown, mut any, mut is_value) = (Vec::new(), false, false);
    for word in words {
        let safe = if is_value { REDACTED.to_owned() } else { without_secrets(&word) };
        any |= safe != word;
        is_value = !is_value && word.starts_with('-') && !word.contains('=') && is_secret(&word);
        shown.push(safe);
    }
    (shown, any)
}

fn without_secrets(word: &str) -> String {
    let word = without_user(word);
    for (at, _) in word.match_indices(['=', ':']) {
        let before = word[..at].trim_end_matches(['"', '\'', ' ']);
        let key = before.rsplit(|c: char| !c.is_alphanumeric() && c != '-' && c != '_').next();
        if key.is_some_and(is_secret) {
            return format!("{}{REDACTED}", &word[..=at]);
        }
    }
    word
}

/// A URL without user and password. A password may have any character, so that only the last `@` surely ends it.
fn without_user(word: &str) -> String {
    let parts = word.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.1)));
    match parts {
        Some((scheme, rest)) => format!("{scheme}://{REDACTED}@{rest}"),
        None => word.to_owned(),
    }
}

/// Whether a name, of an option or a variable, is that of a secret.
fn is_secret(name: &str) -> bool {
    let name = name.to_lowercase();
    let is_word = |word: &str| SECRET_WORDS.contains(&word);
    !PLACES.iter().any(|end| name.ends_with(end))
        && (SECRETS.iter().any(|part| name.contains(part)) || name.split(['-', '_']).any(is_word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(line: &[&str]) -> (String, bool) {
        let (words, any) = redacted(line.iter().map(|word| (*word).to_owned()));
        (words.join(" "), any)
    }

    #[test]
    fn secrets_of_a_command_line_are_left_out() {
        for (line, expected) in [
            (&["http://joe:hunter2@h:9000/b"][..], "http://[redacted]@h:9000/b"),
            (&["redfish,user=joe:https://joe:a@b/c@bmc"], "redfish,user=joe:https://[redacted]@bmc"),
            (&["--token", "hunter2", "--json"], "--token [redacted] --json"),
            (&["--secret-key=hunter2"], "--secret-key=[redacted]"),
            (&["AWS_SECRET_ACCESS_KEY=hunter2", "fio"], "AWS_SECRET_ACCESS_KEY=[redacted] fio"),
            (&["http://h/b?X-Amz-Signature=hunter2"], "http://h/b?X-Amz-Signature=[redacted]"),
            (&["-H", "Authorization: Bearer hunter2"], "-H Authorization:[redacted]"),
            (&["{\"password\": \"hunter2\"}"], "{\"password\":[redacted]"),
        ] {
            assert_eq!(shown(line), (expected.to_owned(), true));
            assert!(!shown(line).0.contains("hunter2"), "{line:?}");
        }
    }

    #[test]
    fn what_is_no_secret_stays_so_that_the_command_can_be_run_again() {
        for line in [
            &["simulate", "load", "week.csv", "--suspend", "10,15s", "--policy=ebb"][..],
            &["lab", "replay", "web.spc", "--target", "nbd://127.0.0.1/disk", "--column", "time=1,size=4"],
            &["lab", "meter", "read", "redfish,password-file=bmc.txt:https://bmc", "--seconds", "3"],
            &["lab", "bench", "s3", "http://127.0.0.1:9000", "--keys-per-run", "7"],
            &["lab", "trace", "info", "monkey=1", "passes=3"],
        ] {
            assert_eq!(shown(line), (line.join(" "), false));
        }
    }

    #[test]
    fn inputs_are_named_by_their_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        std::fs::write(path("a"), "abc").unwrap();
        std::fs::write(path("b"), "").unwrap();
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let input = InputFile::at(&path("a"));
        assert_eq!((input.bytes, input.sha256.as_deref()), (Some(3), Some(sum)));
        let gone = InputFile::at(&path("c"));
        assert_eq!((gone.bytes, gone.sha256), (None, None));
        let given = Inputs::of([dir.path()]).and([path("c")]).seeded(7);
        let traced = Provenance::now(&given);
        let paths: Vec<&str> = traced.inputs.iter().map(|input| input.path.as_str()).collect();
        assert_eq!(
            paths,
            ["a", "b", "c"].map(|name| path(name).display().to_string()),
            "a directory is its files"
        );
        assert_eq!(traced.seeds, Some(Seeds { first: 7, last: 7 }));
    }

    #[test]
    fn a_known_input_has_its_name_and_where_it_is_from_whatever_its_file_is_called() {
        let all: Vec<Known> = known().collect();
        let rows = KNOWN_INPUTS.lines().filter(|line| line.starts_with("| `")).count();
        assert!(rows > 10 && all.len() == rows, "{rows} rows, of which {} can be read", all.len());
        for Known { name, from, sha256 } in &all {
            let is_digest = sha256.len() == 64 && sha256.bytes().all(|b| b.is_ascii_hexdigit());
            assert!(is_digest && !name.contains(' ') && !from.is_empty(), "{name}: {sha256}");
            let same = all.iter().filter(|other| other.name == *name || other.sha256 == *sha256).count();
            assert_eq!(same, 1, "{name} is twice in the page");
        }
        let web = all.iter().find(|known| known.name == "WebSearch1.first60s.spc").unwrap();
        assert_eq!(web.from, "UMass Trace Repository, WebSearch1");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("mine"), "1").unwrap();
        let mine = InputFile::at(&dir.path().join("mine"));
        assert_eq!((mine.known_as, mine.from), (None, None), "its own is not known");
        // Those that are given to the project's tests.
        let given = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
        for (folder, name) in [("block", "WebSearch1.first60s.spc"), ("load", "worldcup98.hourly.csv")] {
            let path = given.join(folder).join(name);
            if !path.exists() {
                return ebb_testing::skip("no real traces at ../shared/traces");
            }
            assert_eq!(InputFile::at(&path).known_as.as_deref(), Some(name));
        }
    }

    #[test]
    fn a_report_has_its_own_keys_and_where_it_comes_from_and_is_read_again() {
        let text = json(&serde_json::json!({ "iops": 812.5 }), &Inputs::default());
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(report["iops"], 812.5);
        let read: Provenance = serde_json::from_value(report["provenance"].clone()).unwrap();
        let now = Provenance::now(&Inputs::default());
        assert_eq!((&read.command, &read.machine), (&now.command, &now.machine));
        assert_eq!((read.version.as_str(), read.command[0].as_str()), (env!("CARGO_PKG_VERSION"), "ebb"));
        assert_eq!(report["provenance"].get("seeds"), None, "what is not known is absent");
    }

    #[test]
    fn a_date_is_written_in_utc() {
        let at = UtcDateTime::UNIX_EPOCH + std::time::Duration::from_secs(1_795_308_367);
        assert_eq!(date(at), "2026-11-22T00:46:07Z");
    }
}
