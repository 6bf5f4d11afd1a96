//! Crates that keep data say what must hold: so many assertions and calls of `bug()` per 1,000 production lines.

use super::{Faults, Tree};
use crate::source;

/// At least so many in each of them.
const LEAST: usize = 10;

const KEEP_DATA: [&str; 11] = [
    "ebb-blockdev",
    "ebb-chunkserver",
    "ebb-client",
    "ebb-client-core",
    "ebb-erasure",
    "ebb-gateway",
    "ebb-meta",
    "ebb-mirror",
    "ebb-nbd",
    "ebb-store",
    "ebb-volume",
];

/// Files of tests whose names do not say so.
const OF_TESTS: [&str; 2] = ["gateway/src/memory.rs", "store/src/flat/mem.rs"];

pub fn floors(tree: &Tree, faults: &mut Faults) {
    for name in KEEP_DATA {
        let Some(package) = tree.packages.iter().find(|package| package.name == name) else {
            faults.push(format!("there is no {name}: take it off the list in assertions.rs"));
            continue;
        };
        let mut files = source::files(&package.manifest.with_file_name("src"), &[]);
        files.retain(|path| !OF_TESTS.iter().any(|name| path.ends_with(name)));
        let codes: Vec<String> = files.iter().map(|path| source::code(&tree.text(path))).collect();
        let lines: usize = codes.iter().map(|code| lines(code)).sum();
        let found: usize = codes.iter().map(|code| assertions(code)).sum();
        let share = found * 1000 / lines.max(1);
        if share < LEAST {
            faults.push(format!(
                "{name} has {found} assertions in {lines} lines, {share} per 1,000: say what must hold in what is new, until they are {LEAST}"
            ));
        }
    }
}

fn lines(code: &str) -> usize {
    code.lines().filter(|line| !line.trim().is_empty()).count()
}

/// Assertions of any kind, also at compile time, and calls of `bug()`.
fn assertions(code: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let is_call = |before: &str| !before.ends_with(is_word) && !before.ends_with("fn ");
    let bugs = code.match_indices("bug(").filter(|(at, _)| is_call(&code[..*at])).count();
    ["assert!(", "assert_eq!(", "assert_ne!("].iter().map(|word| code.matches(word).count()).sum::<usize>()
        + bugs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assertions_and_bugs_are_counted_and_nothing_like_them() {
        assert_eq!(assertions("assert!(a); debug_assert_eq!(a, b); const _: () = assert!(A < B);"), 3);
        assert_eq!(assertions("cx.bug(\"a\"); return bug(out, \"b\");"), 2);
        assert_eq!(assertions("pub fn bug(what: &str) {} name.escape_debug() log.debug(a)"), 0);
        assert_eq!(lines("a\n\n   \n  b\n"), 2);
    }
}
