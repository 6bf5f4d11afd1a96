//! `docs/papers.md`: every claim of the papers is a whole row, and the tests and targets that its commands name exist.
//! That `ebb` has the commands, a test of the program asks (`crates/ebb/tests/all/papers.rs`).

use super::{Faults, Tree};
use crate::source;
use std::collections::BTreeSet;

const PAPERS: [&str; 5] = ["Sierra", "TRACER", "The energy cost of the OS layers", "LogStore", "ECS²"];
const CELLS: usize = 8;
/// The column of the commands.
const COMMAND: usize = 4;

/// The rows of a table, without its head, as cells.
fn cells(section: &str) -> Vec<Vec<&str>> {
    let lines = section.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| row |"));
    lines.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Why a command that the page names does not exist.
fn fault(tree: &Tree, command: &str) -> Option<String> {
    match command.split_whitespace().collect::<Vec<_>>()[..] {
        ["ebb", ..] => None,
        ["make", target] => {
            let rule = format!("\n{target}:");
            (!tree.read("Makefile").contains(&rule)).then(|| format!("the Makefile has no {target}"))
        }
        ["cargo", "test", "-p", package, .., name] => no_test(tree, package, name),
        _ => Some("neither `ebb`, `make TARGET` nor `cargo test -p PACKAGE NAME`".to_owned()),
    }
}

/// Whether no source of the package has a test, or a module of tests, by this name.
fn no_test(tree: &Tree, package: &str, name: &str) -> Option<String> {
    let Some(found) = tree.packages.iter().find(|p| p.name == package) else {
        return Some(format!("there is no {package}"));
    };
    let dir = found.manifest.parent().expect("a manifest is in a directory");
    let has = source::all_files(dir).iter().any(|path| {
        let text = tree.text(path);
        let named = ["fn", "mod"].iter().any(|item| text.contains(&format!("{item} {name}")));
        named && text.contains("#[test]")
    });
    (!has).then(|| format!("{package} has no test {name}"))
}

pub fn rows(tree: &Tree, faults: &mut Faults) {
    let page = tree.read("docs/papers.md");
    let sections: Vec<(&str, &str)> =
        page.split("\n## ").skip(1).filter_map(|s| s.split_once('\n')).collect();
    let mut ids = BTreeSet::new();
    for paper in PAPERS {
        let section = sections.iter().find(|(title, _)| *title == paper).map_or("", |(_, text)| text);
        let rows = cells(section);
        if rows.len() < 15 {
            faults.push(format!("docs/papers.md: {paper} has {} rows", rows.len()));
        }
        for row in rows {
            if row.len() != CELLS || !ids.insert(row[0].to_owned()) {
                let count = row.len();
                faults.push(format!("{}: {count} cells instead of {CELLS}, or a second row of it", row[0]));
                continue;
            }
            for command in row[COMMAND].split('`').skip(1).step_by(2) {
                faults.extend(fault(tree, command).map(|why| format!("{}: {command}: {why}", row[0])));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_does_not_exist_is_noticed() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let tree = Tree::load(root).unwrap();
        for known in ["make sweep", "cargo test -p ebb-gear table_1"] {
            assert_eq!(fault(&tree, known), None, "{known}");
        }
        for unknown in ["make coffee", "cargo test -p ebb-gear table_99", "cargo test -p ebb-x y", "curl x"] {
            assert!(fault(&tree, unknown).is_some(), "{unknown}");
        }
    }
}
