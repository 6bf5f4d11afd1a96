//! `cargo xtask papers --ranges`: how far the papers' figures range over seeds, measured and written into
//! `docs/claims`.
//!
//! One seed is one draw. A row's command is run with `--seeds A..B`, and each of its figures that differs between seeds
//! gets its value with the first seed, its mean and its range. A figure's line is edited and nothing else, so that the
//! tables keep their comments and their layout. Each command's figures are written when it has ended: all of them take
//! hours of CPU.

use crate::claims::{self, Claims, Figure, Spread};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Digits that are kept: enough that seed 1 alone is never outside.
const DIGITS: i32 = 6;

/// What is asked for.
#[derive(Debug, PartialEq)]
struct Options {
    /// From the first up to but not including the second, as the program takes them.
    seeds: (u64, u64),
    /// Only commands that have this in them.
    only: String,
    /// The program; a build with optimisation, or it takes days.
    ebb: PathBuf,
}

impl Options {
    fn parse(root: &Path, words: &[&str]) -> Result<Options, String> {
        let ebb = root.join("target/release/ebb");
        let mut options = Options { seeds: (1, 21), only: String::new(), ebb };
        for pair in words.chunks(2) {
            match *pair {
                ["--seeds", range] => {
                    let ends =
                        range.split_once("..").and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
                    options.seeds = ends.filter(|(from, to)| *from == 1 && *to > 1).ok_or_else(|| {
                        format!("--seeds {range}: from 1, the rows' own, and the end not included: 1..21")
                    })?;
                }
                ["--only", text] => options.only = text.to_owned(),
                ["--ebb", path] => options.ebb = PathBuf::from(path),
                _ => return Err(format!("{}: not understood", pair.join(" "))),
            }
        }
        Ok(options)
    }
}

/// `cargo xtask papers --ranges [--seeds A..B] [--only TEXT] [--ebb PATH]`. Returns whether all is well.
pub fn run(root: &Path, words: &[&str]) -> bool {
    let measured = Options::parse(root, words).and_then(|options| {
        if !options.ebb.is_file() {
            let path = options.ebb.display();
            return Err(format!("there is no {path}: run `make build`, or name the program by --ebb"));
        }
        measure(root, &options, &|command| printed(&options, command))
    });
    match measured {
        Ok(notes) => {
            notes.iter().for_each(|note| eprintln!("papers: {note}"));
            claims::write(root)
        }
        Err(why) => claims::told(vec![why]),
    }
}

/// What a command prints of all seeds.
fn printed(options: &Options, command: &str) -> Result<Value, String> {
    let (from, to) = options.seeds;
    eprintln!("{command} --seeds {from}..{to}");
    let mut program = Command::new(&options.ebb);
    program.args(command.split_whitespace().skip(1)).args(["--seeds", &format!("{from}..{to}"), "--json"]);
    let said = program.stdin(Stdio::null()).stderr(Stdio::inherit()).output();
    let said = said.map_err(|error| format!("{command}: {error}"))?;
    // It ends with 3 where a seed leaves one of its own bands, and prints its figures all the same.
    serde_json::from_slice(&said.stdout)
        .map_err(|_| format!("{command} ended with {} and no JSON", said.status))
}

/// Writes the spreads of every command that has seeds, and returns what a reader should know of them.
fn measure(
    root: &Path,
    options: &Options,
    printed: &dyn Fn(&str) -> Result<Value, String>,
) -> Result<Vec<String>, String> {
    let mut notes = Vec::new();
    let mut commands = 0;
    for table in claims::TABLES {
        let path = claims::path(table);
        let claims = claims::read_one(root, &path)?;
        let file = root.join(&path);
        let failed = |error: std::io::Error| format!("{path}: {error}");
        for (command, figures) in seeded(&claims, &options.only) {
            commands += 1;
            let report = printed(command)?;
            let mut text = std::fs::read_to_string(&file).map_err(failed)?;
            for (id, figure) in figures {
                let spread = spread(&report, figure, &mut |note| notes.push(format!("{id}: {note}")));
                text = with_spread(&text, id, &figure.pointer, spread.as_ref())?;
            }
            text = with_ranges(&text, &report)?;
            std::fs::write(&file, text).map_err(failed)?;
        }
    }
    match commands {
        0 => Err(format!("no command with seeds has {:?} in it", options.only)),
        _ => Ok(notes),
    }
}

/// The figures of each command that takes seeds, which one of its rows says, with the row that each is of.
fn seeded<'a>(claims: &'a Claims, only: &str) -> BTreeMap<&'a str, Vec<(&'a str, &'a Figure)>> {
    let mut found: BTreeMap<&str, Vec<(&str, &Figure)>> = BTreeMap::new();
    let has_figures = || claims.rows.iter().filter(|row| !row.figures.is_empty());
    for row in has_figures() {
        let command = row.command[0].as_str();
        let takes_seeds = has_figures().any(|other| other.command[0] == command && other.seeds.is_some());
        if takes_seeds && command.contains(only) {
            let figures = row.figures.iter().map(|figure| (row.id.as_str(), figure));
            found.entry(command).or_default().extend(figures);
        }
    }
    found
}

/// A figure's spread in a report of several seeds; `None`, of which a note says why: it is the same with every seed, or
/// seed 1 has none.
fn spread(report: &Value, figure: &Figure, note: &mut dyn FnMut(String)) -> Option<Spread> {
    let pointer = &figure.pointer;
    // Such a report names a figure by its path, with the names of a list's elements in the place of their indices.
    let steps: Vec<String> =
        pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
    let what = steps.join(": ");
    let found =
        report["figures"].as_array().into_iter().flatten().find(|figure| figure["what"] == what.as_str());
    let Some(found) = found else {
        note(format!("{pointer} is in no report"));
        return None;
    };
    let values: Vec<Option<f64>> = found["values"].as_array()?.iter().map(Value::as_f64).collect();
    let [mean, least, most] = ["mean", "least", "most"].map(|key| found[key].as_f64());
    let (Some(value), Some(mean), Some(least), Some(most)) = (*values.first()?, mean, least, most) else {
        note(format!("{pointer} is absent with seed 1"));
        return None;
    };
    let absent = values.iter().filter(|value| value.is_none()).count();
    if absent > 0 {
        note(format!("{pointer} is absent with {absent} of {} seeds", values.len()));
    }
    if least == most {
        return None;
    }
    let [low, high] = figure.band;
    if least < low || most > high {
        note(format!("{pointer} is {least} to {most}, and its band {low} to {high}"));
    }
    let seeds = ["first", "last"].map(|end| report["seeds"][end].as_u64().unwrap_or_default());
    // Outwards, so that what was measured stays inside.
    let range = [rounded(least, f64::floor), rounded(most, f64::ceil)];
    Some(Spread { seeds, value: rounded(value, f64::round), mean: rounded(mean, f64::round), range })
}

fn rounded(value: f64, how: fn(f64) -> f64) -> f64 {
    if value == 0.0 {
        return value;
    }
    let places = DIGITS - 1 - value.abs().log10().floor() as i32;
    // Powers of ten with a positive exponent are exact.
    let unit = 10f64.powi(places.abs());
    if places >= 0 { how(value * unit) / unit } else { how(value / unit) * unit }
}

/// A table with this spread, or none, in the line of one figure.
fn with_spread(text: &str, id: &str, pointer: &str, spread: Option<&Spread>) -> Result<String, String> {
    let begin = format!("{{ pointer = \"{pointer}\", band = [");
    let spread = spread.map_or(String::new(), |Spread { seeds: [first, last], value, mean, range: [least, most] }| {
        format!(
            ", spread = {{ seeds = [{first}, {last}], value = {value:?}, mean = {mean:?}, range = [{least:?}, {most:?}] }}"
        )
    });
    let (mut row, mut edited) = (None, 0);
    let mut lines = Vec::new();
    for line in text.lines() {
        row = line.strip_prefix("id = ").map(|id| id.trim_matches('"')).or(row);
        let band_ends = line.find("]").filter(|_| row == Some(id) && line.trim_start().starts_with(&begin));
        match band_ends {
            Some(end) => {
                lines.push(format!("{}{spread} }},", &line[..=end]));
                edited += 1;
            }
            None => lines.push(line.to_owned()),
        }
    }
    match edited {
        1 => Ok(lines.join("\n") + "\n"),
        _ => Err(format!("{id}: {edited} lines begin with {begin}: give each figure a line of its own")),
    }
}

/// A table that says when and where its ranges were made, as the report says it.
fn with_ranges(text: &str, report: &Value) -> Result<String, String> {
    const BEGIN: &str = "ranges = {";
    let of = &report["provenance"];
    let date = of["date"].as_str().and_then(|date| date.get(..10)).ok_or("the report has no date")?;
    let cpu = of["machine"]["cpu"].as_str().unwrap_or("unknown CPU");
    let machine = match of["machine"]["cores"].as_u64() {
        Some(cores) => format!("{cpu}, {cores} cores"),
        None => cpu.to_owned(),
    };
    let commit = of["commit"].as_str().map_or(String::new(), |commit| format!(", commit = {commit:?}"));
    let mut lines: Vec<String> =
        text.lines().filter(|line| !line.starts_with(BEGIN)).map(str::to_owned).collect();
    let has_spread = |line: &String| line.contains(", spread = {");
    if lines.iter().any(has_spread) {
        let letter = lines.iter().position(|line| line.starts_with("letter = ")).ok_or("it has no letter")?;
        lines.insert(letter + 1, format!("{BEGIN} date = {date:?}, machine = {machine:?}{commit} }}"));
    }
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const TABLE: &str = "\
# A comment.

paper = \"X\"
letter = \"X\"

[[row]]
id = \"X1\"
claim = \"c\" # why
command = [\"ebb simulate x\"]
figures = [
  { pointer = \"/a~1b/c/here\", band = [1.0, 2.0] },
  { pointer = \"/same\", band = [1.0, 2.0] },
]
state = \"works\"
seeds = [1, 1]

[[row]]
id = \"X2\"
claim = \"c\"
command = [\"ebb simulate x\"]
figures = [
  { pointer = \"/a~1b/c/here\", band = [1.0, 2.0] },
]
state = \"works\"

[[row]]
id = \"X3\"
claim = \"c\"
command = [\"ebb simulate y\"]
figures = [
  { pointer = \"/same\", band = [1.0, 2.0] },
]
state = \"works\"
";

    fn report() -> Value {
        json!({
            "seeds": { "first": 1, "last": 3 },
            "figures": [
                { "what": "a/b: c: here", "mean": 1.2345678, "least": 1.0000019, "most": 2.0000001, "values": [1.5, null, 2.0000001] },
                { "what": "same", "mean": 1.0, "least": 1.0, "most": 1.0, "values": [1.0, 1.0, 1.0] },
            ],
            "provenance": { "date": "2026-11-30T01:02:03Z", "machine": { "cpu": "a \"CPU\"", "cores": 2 } },
        })
    }

    fn options(words: &[&str]) -> Result<Options, String> {
        Options::parse(Path::new("/r"), words)
    }

    #[test]
    fn the_figures_of_commands_with_seeds_get_their_spreads_and_all_else_stays() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("docs/claims")).unwrap();
        for table in claims::TABLES {
            std::fs::write(dir.path().join(claims::path(table)), TABLE).unwrap();
        }
        let all = options(&[]).unwrap();
        let asked = std::cell::RefCell::new(Vec::new());
        let printed = |command: &str| {
            asked.borrow_mut().push(command.to_owned());
            Ok(report())
        };
        let notes = measure(dir.path(), &all, &printed).unwrap();
        assert_eq!(*asked.borrow(), vec!["ebb simulate x"; claims::TABLES.len()], "y takes no seeds");
        let notes = notes.join("\n");
        assert!(notes.contains("X1: /a~1b/c/here is absent with 1 of 3 seeds"), "{notes}");
        assert!(notes.contains("X2: /a~1b/c/here is 1.0000019 to 2.0000001, and its band 1 to 2"), "{notes}");
        let path = claims::path("sierra");
        let text = std::fs::read_to_string(dir.path().join(&path)).unwrap();
        let spread = ", spread = { seeds = [1, 3], value = 1.5, mean = 1.23457, range = [1.0, 2.00001] }";
        let right = TABLE
            .replace("here\", band = [1.0, 2.0]", &format!("here\", band = [1.0, 2.0]{spread}"))
            .replace(
                "letter = \"X\"\n",
                "letter = \"X\"\nranges = { date = \"2026-11-30\", machine = \"a \\\"CPU\\\", 2 cores\" }\n",
            );
        assert_eq!(text, right);
        let read = claims::read_one(dir.path(), &path).unwrap();
        assert_eq!(read.ranges.unwrap().machine, "a \"CPU\", 2 cores");
        measure(dir.path(), &all, &printed).unwrap();
        assert_eq!(
            std::fs::read_to_string(dir.path().join(&path)).unwrap(),
            right,
            "written twice it is the same"
        );
        let other = Options { only: "y".to_owned(), ..all };
        assert!(measure(dir.path(), &other, &printed).unwrap_err().contains("no command"));
    }

    #[test]
    fn a_spread_that_is_no_more_is_taken_away_with_its_date() {
        let spread = Spread { seeds: [1, 3], value: 1e-9, mean: 2.0, range: [1e-9, 3e20] };
        let with = with_spread(TABLE, "X2", "/a~1b/c/here", Some(&spread)).unwrap();
        let with = with_ranges(&with, &report()).unwrap();
        let claims: Claims = toml::from_str(&with).unwrap();
        assert_eq!(claims.rows[1].figures[0].spread.as_ref(), Some(&spread));
        assert_eq!(claims.rows[0].figures[0].spread, None, "the same pointer of another row");
        let without = with_spread(&with, "X2", "/a~1b/c/here", None).unwrap();
        assert_eq!(with_ranges(&without, &report()).unwrap(), TABLE);
        assert!(with_spread(TABLE, "X2", "/nothing", None).unwrap_err().contains("0 lines"));
    }

    #[test]
    fn ranges_are_rounded_outwards_to_six_digits() {
        for (value, down, up) in [
            (0.0, 0.0, 0.0),
            (1.2345678, 1.23456, 1.23457),
            (-60.1234567, -60.1235, -60.1234),
            (1_085_225.0, 1_085_220.0, 1_085_230.0),
            (0.000_123_456_7, 0.000_123_456, 0.000_123_457),
        ] {
            assert_eq!((rounded(value, f64::floor), rounded(value, f64::ceil)), (down, up));
        }
    }

    #[test]
    fn seeds_begin_with_the_rows_own() {
        assert_eq!(options(&["--seeds", "1..3", "--only", "mirror"]).unwrap().seeds, (1, 3));
        assert_eq!(options(&[]).unwrap().ebb, Path::new("/r/target/release/ebb"));
        for wrong in [&["--seeds", "2..9"][..], &["--seeds", "1..1"], &["--seeds"], &["--fly", "1"]] {
            assert!(options(wrong).is_err(), "{wrong:?}");
        }
    }
}
