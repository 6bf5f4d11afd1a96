//! `docs/papers.md` says of every claim of the papers which command shows it: each of these commands must exist.

use crate::harness::EBB;
use crate::house::{all_sources, root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::read_to_string;
use std::process::Command;

const PAPERS: [&str; 5] = ["Sierra", "TRACER", "The energy cost of the OS layers", "LogStore", "ECS²"];
const CELLS: usize = 8;
/// The column of the commands.
const COMMAND: usize = 4;

/// The rows of a table, without its head, as cells.
fn rows(section: &str) -> Vec<Vec<&str>> {
    let lines = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| row |"));
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Why a command that the page names does not exist.
#[derive(Default)]
struct Commands {
    /// What each subcommand says of itself.
    help: BTreeMap<String, Option<String>>,
}

impl Commands {
    fn fault(&mut self, command: &str) -> Option<String> {
        match command.split_whitespace().collect::<Vec<_>>()[..] {
            ["ebb", ref words @ ..] => self.no_subcommand(words),
            ["make", target] => {
                let makefile = read_to_string(root().join("Makefile")).unwrap();
                let rule = format!("\n{target}:");
                (!makefile.contains(&rule)).then(|| format!("the Makefile has no {target}"))
            }
            ["cargo", "test", "-p", package, .., name] => no_test(package, name),
            _ => Some("neither `ebb`, `make TARGET` nor `cargo test -p PACKAGE NAME`".to_owned()),
        }
    }

    fn no_subcommand(&mut self, words: &[&str]) -> Option<String> {
        let is_name = |word: &&&str| word.starts_with(|c: char| c.is_ascii_lowercase());
        let path: Vec<&str> = words.iter().take_while(is_name).copied().collect();
        let name = format!("ebb {}", path.join(" "));
        let help = self.help.entry(path.join(" ")).or_insert_with(|| {
            let said = Command::new(EBB).args(&path).arg("--help").output().unwrap();
            said.status.success().then(|| String::from_utf8(said.stdout).unwrap())
        });
        let Some(help) = help else { return Some(format!("there is no `{name}`")) };
        let known: BTreeSet<&str> = help.split_whitespace().map(|word| word.trim_end_matches(',')).collect();
        let unknown = words.iter().find(|word| word.starts_with("--") && !known.contains(*word))?;
        Some(format!("`{name}` has no {unknown}"))
    }
}

/// Whether no source of the package has a test, or a module of tests, by this name.
fn no_test(package: &str, name: &str) -> Option<String> {
    let directory = if package == "ebb" { "node" } else { package.trim_start_matches("ebb-") };
    let found = all_sources(&root().join("crates").join(directory)).iter().any(|path| {
        let text = read_to_string(path).unwrap();
        let named = ["fn", "mod"].iter().any(|item| text.contains(&format!("{item} {name}")));
        named && text.contains("#[test]")
    });
    (!found).then(|| format!("{package} has no test {name}"))
}

#[test]
fn every_row_is_whole_and_every_command_in_it_exists() {
    let page = read_to_string(root().join("docs/papers.md")).expect("docs/papers.md");
    let sections: BTreeMap<&str, &str> =
        page.split("\n## ").skip(1).filter_map(|s| s.split_once('\n')).collect();
    let (mut wrong, mut ids, mut commands) = (Vec::new(), BTreeSet::new(), Commands::default());
    for paper in PAPERS {
        let rows = rows(sections.get(paper).unwrap_or_else(|| panic!("no section {paper:?}")));
        assert!(rows.len() >= 15, "{paper} has {} rows", rows.len());
        for row in rows {
            if row.len() != CELLS || !ids.insert(row[0].to_owned()) {
                wrong.push(format!(
                    "{}: {} cells instead of {CELLS}, or a second row of that name",
                    row[0],
                    row.len()
                ));
                continue;
            }
            for command in row[COMMAND].split('`').skip(1).step_by(2) {
                wrong.extend(commands.fault(command).map(|why| format!("{}: {command}: {why}", row[0])));
            }
        }
    }
    assert!(wrong.is_empty(), "docs/papers.md:\n{}", wrong.join("\n"));
}

#[test]
fn a_command_that_does_not_exist_is_noticed() {
    let mut commands = Commands::default();
    for known in [
        "ebb replay TRACE --speed 2000",
        "ebb simulate paper sierra",
        "make sweep",
        "cargo test -p ebb-gear table_1",
    ] {
        assert_eq!(commands.fault(known), None, "{known}");
    }
    for unknown in
        ["ebb fly", "ebb replay TRACE --fly", "make coffee", "cargo test -p ebb-gear table_99", "curl x"]
    {
        assert!(commands.fault(unknown).is_some(), "{unknown}");
    }
}
