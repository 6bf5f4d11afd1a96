//! The papers' claims (`docs/claims/`) say which command shows each: every `ebb` command must exist, and what it prints
//! must lie in the row's bands. Commands of seconds run by day, the others by night. `cargo xtask tidy` checks the rest
//! of the data, and that `docs/papers.md` is what they give.

use crate::harness::EBB;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

#[derive(Deserialize)]
struct Claims {
    row: Vec<Row>,
}

/// Of a row, what is tested; `xtask/src/claims.rs` has the whole.
#[derive(Deserialize)]
struct Row {
    id: String,
    #[serde(default)]
    command: Vec<String>,
    /// Of the first command.
    #[serde(default)]
    figures: Vec<Figure>,
    #[serde(default)]
    nightly: bool,
}

#[derive(Deserialize)]
struct Figure {
    pointer: String,
    band: [f64; 2],
    /// Over several seeds, of which the command's own is the first.
    spread: Option<Spread>,
}

#[derive(Deserialize)]
struct Spread {
    range: [f64; 2],
}

/// The rows of all papers.
fn rows() -> Vec<Row> {
    let tables = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/claims");
    let files = std::fs::read_dir(tables).expect("docs/claims").map(|file| file.unwrap().path());
    let claims = files.map(|file| {
        let text = std::fs::read_to_string(&file).unwrap();
        toml::from_str::<Claims>(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    });
    claims.flat_map(|claims| claims.row).collect()
}

/// What a JSON pointer leads to; an element of an array has its index, or its `name` or `what`: rows of findings move.
fn at<'a>(value: &'a Value, pointer: &str) -> Option<&'a Value> {
    pointer.split('/').skip(1).try_fold(value, |value, step| {
        let step = step.replace("~1", "/").replace("~0", "~");
        let is_called = |item: &&Value| ["name", "what"].iter().any(|key| item[*key] == step.as_str());
        match value {
            Value::Array(items) => match step.parse::<usize>() {
                Ok(index) => items.get(index),
                Err(_) => items.iter().find(is_called),
            },
            _ => value.get(&step),
        }
    })
}

/// Why a figure is not what the row says.
fn outside(printed: &Value, figure: &Figure) -> Option<String> {
    let Figure { pointer, band, spread } = figure;
    let Some(found) = at(printed, pointer).and_then(Value::as_f64) else {
        return Some(format!("{pointer} is no number that it prints"));
    };
    let within = |[least, most]: &[f64; 2]| (*least..=*most).contains(&found);
    if !within(band) {
        return Some(format!("{pointer} is {found}, outside {} to {}", band[0], band[1]));
    }
    let range = spread.as_ref().map(|spread| spread.range).filter(|range| !within(range))?;
    let [least, most] = range;
    Some(format!(
        "{pointer} is {found}, outside of its range over seeds, {least} to {most}: measure that again"
    ))
}

/// What a command prints as JSON.
fn printed(command: &str) -> Result<Value, String> {
    let words = command.strip_prefix("ebb ").ok_or("it is no command of ebb")?;
    let said = Command::new(EBB).args(words.split_whitespace()).arg("--json").output();
    let said = said.map_err(|error| error.to_string())?;
    if !said.status.success() {
        return Err(format!("{}: {}", said.status, String::from_utf8_lossy(&said.stderr)));
    }
    serde_json::from_slice(&said.stdout).map_err(|error| error.to_string())
}

/// Runs each command once, and compares the figures of its rows.
fn compare(nightly: bool) {
    let rows = rows();
    let mut by_command: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.nightly == nightly && !row.figures.is_empty()) {
        by_command.entry(&row.command[0]).or_default().push(row);
    }
    assert!(by_command.len() >= 3, "only {:?} have figures", by_command.keys());
    let mut wrong = Vec::new();
    for (command, rows) in by_command {
        match printed(command) {
            Err(why) => wrong.push(format!("{command}: {why}")),
            Ok(printed) => wrong.extend(rows.iter().flat_map(|row| {
                let faults = row.figures.iter().filter_map(|figure| outside(&printed, figure));
                faults.map(|why| format!("{}: {command}: {why}", row.id)).collect::<Vec<_>>()
            })),
        }
    }
    assert!(wrong.is_empty(), "docs/claims:\n{}", wrong.join("\n"));
}

#[test]
fn figures_that_take_seconds_are_in_their_bands() {
    compare(false);
}

#[test]
#[ignore = "by night: the papers' evaluations take minutes"]
fn figures_that_take_minutes_are_in_their_bands() {
    compare(true);
}

#[test]
fn a_figure_outside_its_band_is_noticed() {
    let printed = serde_json::json!({
        "experiments": [{ "name": "Table 1", "rows": [{ "what": "a/b", "here": 2.0 }, { "what": "c", "here": null }] }],
        "list": [1, 5]
    });
    let figure = |pointer: &str, band| Figure { pointer: pointer.to_owned(), band, spread: None };
    let why = |pointer: &str, band| outside(&printed, &figure(pointer, band));
    assert_eq!(why("/experiments/Table 1/rows/a~1b/here", [2.0, 2.0]), None);
    let ranging = |range| Figure { spread: Some(Spread { range }), ..figure("/list/1", [4.0, 6.0]) };
    assert_eq!(outside(&printed, &ranging([4.5, 7.0])), None);
    let found = outside(&printed, &ranging([5.1, 6.0]));
    assert!(found.is_some_and(|why| why.contains("range over seeds")), "within its band alone");
    assert_eq!(why("/list/1", [4.0, 6.0]), None);
    for (pointer, band, said) in [
        ("/list/1", [1.0, 4.9], "outside"),
        ("/experiments/Table 1/rows/a~1b/here", [2.1, 3.0], "outside"),
        ("/experiments/Table 1/rows/c/here", [0.0, 1.0], "no number"),
        ("/experiments/Table 2/rows/c/here", [0.0, 1.0], "no number"),
        ("/list/2", [0.0, 1.0], "no number"),
    ] {
        assert!(why(pointer, band).is_some_and(|why| why.contains(said)), "{pointer}");
    }
}

/// What each subcommand says of itself.
#[derive(Default)]
struct Commands(BTreeMap<String, Option<String>>);

impl Commands {
    /// Why `ebb WORDS` does not exist.
    fn fault(&mut self, words: &str) -> Option<String> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let is_name = |word: &&&str| word.starts_with(|c: char| c.is_ascii_lowercase());
        let path: Vec<&str> = words.iter().take_while(is_name).copied().collect();
        let name = format!("ebb {}", path.join(" "));
        let help = self.0.entry(path.join(" ")).or_insert_with(|| {
            let said = Command::new(EBB).args(&path).arg("--help").output().unwrap();
            said.status.success().then(|| String::from_utf8(said.stdout).unwrap())
        });
        let Some(help) = help else { return Some(format!("there is no `{name}`")) };
        let known: BTreeSet<&str> = help.split_whitespace().map(|word| word.trim_end_matches(',')).collect();
        let unknown = words.iter().find(|word| word.starts_with("--") && !known.contains(*word))?;
        Some(format!("`{name}` has no {unknown}"))
    }
}

#[test]
fn every_command_that_a_row_names_exists() {
    let (mut named, mut wrong, mut commands) = (0, Vec::new(), Commands::default());
    for Row { id, command, .. } in rows() {
        for words in command.iter().filter_map(|command| command.strip_prefix("ebb ")) {
            named += 1;
            wrong.extend(commands.fault(words).map(|why| format!("{id}: {words}: {why}")));
        }
    }
    assert!(named > 100, "the rows name {named} commands");
    assert!(wrong.is_empty(), "docs/claims:\n{}", wrong.join("\n"));
}

#[test]
fn a_command_that_does_not_exist_is_noticed() {
    let mut commands = Commands::default();
    for known in ["lab replay TRACE --speed 2000", "simulate paper sierra"] {
        assert_eq!(commands.fault(known), None, "{known}");
    }
    for unknown in ["fly", "lab replay TRACE --fly", "replay TRACE"] {
        assert!(commands.fault(unknown).is_some(), "{unknown}");
    }
}
