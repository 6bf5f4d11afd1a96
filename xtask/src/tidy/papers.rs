//! The papers' claims: the data are sound, `docs/papers.md` is what they give, and the tests and targets that their
//! commands name exist. That `ebb` has the commands, a test of the program asks (`crates/ebb/tests/all/papers.rs`).

use super::{Faults, Tree};
use crate::{claims, source};

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
    let papers = match claims::read(&tree.root) {
        Ok(papers) => papers,
        Err(why) => return faults.push(why),
    };
    faults.extend(claims::faults(&tree.root, &papers));
    for row in papers.iter().flat_map(|claims| &claims.rows) {
        let wrong = row.command.iter().filter_map(|command| Some((command, fault(tree, command)?)));
        faults.extend(wrong.map(|(command, why)| format!("{}: {command}: {why}", row.id)));
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
