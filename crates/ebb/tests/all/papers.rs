//! `docs/papers.md` says of every claim of the papers which command shows it: each `ebb` command must exist. `cargo
//! xtask tidy` checks the rest of the page.

use crate::harness::EBB;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

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
fn every_command_that_the_page_names_exists() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/papers.md");
    let page = std::fs::read_to_string(page).expect("docs/papers.md");
    let (mut named, mut wrong, mut commands) = (0, Vec::new(), Commands::default());
    for line in page.lines().filter(|line| line.starts_with("| ")) {
        for words in line.split('`').skip(1).step_by(2).filter_map(|command| command.strip_prefix("ebb ")) {
            named += 1;
            wrong.extend(commands.fault(words).map(|why| format!("{words}: {why}")));
        }
    }
    assert!(named > 100, "the page names {named} commands");
    assert!(wrong.is_empty(), "docs/papers.md:\n{}", wrong.join("\n"));
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
