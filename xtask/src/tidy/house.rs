//! Which crate may import which, what the pure ring must not touch, how long a file may be. The tables stand in
//! ARCHITECTURE.md: a page that people read and a check that enforces it cannot differ if they are one.

use super::{Faults, Tree};
use crate::source;
use std::collections::BTreeSet;
use std::path::Path;

/// Names that would bring a clock, randomness, a thread, a socket or a file into the pure ring.
const BANNED: &[&str] = &[
    "Instant::now",
    "SystemTime",
    "thread::spawn",
    "thread::sleep",
    "std::fs",
    "std::net",
    "std::process",
    "std::env::",
    "File::open",
    "File::create",
    "TcpStream",
    "UdpSocket",
    "tokio::",
    "rand::",
    "getrandom",
    "HashMap",
    "HashSet",
    "RandomState",
];

/// Files that may rename a file: what replaces one durably, and the stores, which have an order of their own.
const MAY_RENAME: &[&str] = &[
    "crates/ground/files/src/lib.rs",
    // Progress that is of no use after a crash, and whose file must stay locked.
    "crates/ebb/src/cli/eval/progress.rs",
    "crates/cluster/store/src/disk.rs",
    "crates/cluster/meta/src/raft/log.rs",
];

/// What stores and serves data, outside the pure ring too.
const SERVING: [&str; 5] = [
    "crates/cluster",
    "crates/mirror",
    "crates/ebb/src/daemon",
    "crates/ebb/src/mirror",
    "crates/ebb/src/cluster",
];

/// Its files that count by `Instant`, a clock that stands still in a suspend: how long something took, or when to look
/// again. A process whose machine was suspended waits longer than it needs to, and no data depends on that (R15). All
/// else asks `ebb_client::Clock`, which runs on.
const MAY_STAND_STILL: &[&str] = &[
    // The clock that runs on, and what it adds to.
    "crates/cluster/client/src/clock.rs",
    // For how long a member has been asked.
    "crates/cluster/client/src/meta.rs",
    // For how long a request or a connection has been silent, and what one took.
    "crates/cluster/gateway/src/http/answer.rs",
    "crates/cluster/gateway/src/http/body.rs",
    "crates/cluster/gateway/src/http/connections.rs",
    "crates/cluster/gateway/src/memory.rs",
    "crates/cluster/gateway/src/bytes/store.rs",
    "crates/mirror/blockdev/src/nbd.rs",
    // When to look again: at keys, at what is garbage, at leases. When to move more.
    "crates/cluster/gateway/src/upkeep/janitor.rs",
    "crates/cluster/gateway/src/upkeep/leases.rs",
    "crates/cluster/gateway/src/upkeep/moves.rs",
    "crates/cluster/gateway/src/http/rights.rs",
    // How long a pack has been open, or a round of rules takes.
    "crates/cluster/gateway/src/upkeep/expire.rs",
    "crates/cluster/gateway/src/bytes/place.rs",
    // For how long a program, a driver or a disk has been waited for.
    "crates/cluster/power/src/disk/rate.rs",
    "crates/cluster/power/src/program.rs",
    "crates/ebb/src/cluster/launch.rs",
    "crates/ebb/src/mirror/disks.rs",
    "crates/mirror/blockdev/src/ring.rs",
    // What a request took.
    "crates/ebb/src/daemon/volume.rs",
];

/// Of a function, with its signature.
const LONGEST_FUNCTION: usize = 70;
const MOST_LINES: usize = 1000;
const WIDEST_COMMENT: usize = 120;
const WINGS: [&str; 5] = ["ground", "cluster", "mirror", "lab", "sim"];
/// A wing's README says what it is, where to begin, what always holds and what it must never import: no more.
const README_LINES: usize = 20;

/// A row of ARCHITECTURE.md's table of crates.
#[derive(Debug, PartialEq)]
pub struct Row {
    pub name: String,
    /// `None`: all that its wing may.
    imports: Option<BTreeSet<String>>,
    is_pure: bool,
    /// Files and folders of a pure crate that are not pure.
    except: Vec<String>,
}

/// The rows of `| crate | … | imports | ring |`, in the sections of the wings.
pub fn rows(page: &str) -> Vec<Row> {
    let quoted = |text: &str| text.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let mut found = Vec::new();
    let mut in_table = false;
    for line in page.lines() {
        in_table = line.starts_with("| crate |") || in_table && line.starts_with('|');
        let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
        let [name, .., imports, ring] = cells[..] else { continue };
        let Some(name) = quoted(name).pop().filter(|_| in_table) else { continue };
        let imports = (!imports.starts_with("all")).then(|| quoted(imports).into_iter().collect());
        found.push(Row { name, imports, is_pure: ring.starts_with("pure"), except: quoted(ring) });
    }
    found
}

/// What a wing may import of others, besides the ground.
fn may_import(wing: &str, of: &str, name: &str) -> bool {
    match (wing, of) {
        (_, "ground") | ("", _) => true,
        ("lab", "cluster") => ["client", "volume", "gear", "power"].contains(&name),
        ("sim", "cluster" | "mirror" | "lab") => true,
        _ => wing == of,
    }
}

/// `ebb-types` is `types`; the program is `ebb`.
fn short(package: &str) -> &str {
    package.strip_prefix("ebb-").unwrap_or(package)
}

/// The wing of a crate, from its path; the program has none.
fn wing(manifest: &Path, root: &Path) -> String {
    let path = manifest.strip_prefix(root.join("crates")).unwrap_or(manifest);
    let first = path.iter().next().and_then(|part| part.to_str()).unwrap_or_default();
    WINGS.iter().find(|wing| **wing == first).copied().unwrap_or_default().to_owned()
}

pub fn imports(tree: &Tree, faults: &mut Faults) {
    let rows = rows(&tree.read("ARCHITECTURE.md"));
    let wings: Vec<(&str, String)> =
        tree.packages.iter().map(|p| (short(&p.name), wing(&p.manifest, &tree.root))).collect();
    let wing_of = |name: &str| wings.iter().find(|(n, _)| *n == name).map_or("", |(_, wing)| wing.as_str());
    for package in &tree.packages {
        let name = short(&package.name);
        if package.description.is_empty() {
            faults.push(format!("{name} has no description in its Cargo.toml"));
        }
        // It is the check itself, and imports nothing.
        if name == "xtask" {
            continue;
        }
        let found: BTreeSet<String> = package.imports.iter().map(|import| short(import).to_owned()).collect();
        let Some(row) = rows.iter().find(|row| row.name == name) else {
            faults.push(format!("ARCHITECTURE.md has no row for {name}"));
            continue;
        };
        if row.imports.as_ref().is_some_and(|imports| *imports != found) {
            faults.push(format!("{name} imports {found:?}; ARCHITECTURE.md says {:?}", row.imports));
        }
        for import in found.iter().filter(|i| !may_import(wing_of(name), wing_of(i), i)) {
            faults.push(format!("{name} ({}) must not import {import} ({})", wing_of(name), wing_of(import)));
        }
    }
    let known: BTreeSet<&str> = wings.iter().map(|(name, _)| *name).collect();
    let gone = rows.iter().filter(|row| !known.contains(row.name.as_str()));
    faults
        .extend(gone.map(|row| format!("ARCHITECTURE.md has a row for {}, which is not a crate", row.name)));
    for wing in WINGS {
        let lines = tree.read(&format!("crates/{wing}/README.md")).lines().count();
        if !(5..=README_LINES).contains(&lines) {
            faults.push(format!("crates/{wing}/README.md has {lines} lines: 5 to {README_LINES} are right"));
        }
    }
}

fn banned_in(text: &str) -> Vec<&'static str> {
    let code = source::code(text);
    BANNED.iter().copied().filter(|word| code.contains(word)).collect()
}

pub fn pure_ring(tree: &Tree, faults: &mut Faults) {
    let rows = rows(&tree.read("ARCHITECTURE.md"));
    for row in rows.iter().filter(|row| row.is_pure) {
        let package = tree.packages.iter().find(|p| short(&p.name) == row.name);
        let Some(package) = package else { continue };
        let files = source::files(&package.manifest.with_file_name("src"), &row.except);
        if files.is_empty() {
            faults.push(format!("{} has no source", row.name));
        }
        for file in files {
            let found = banned_in(&tree.text(&file));
            if !found.is_empty() {
                faults.push(format!("{} uses {found:?} in the pure ring", tree.name(&file)));
            }
        }
    }
}

pub fn files(tree: &Tree, faults: &mut Faults) {
    for file in tree.sources() {
        let (name, text) = (tree.name(&file), tree.text(&file));
        let production = source::production(&text);
        let lines = production.lines().count();
        if lines > MOST_LINES {
            faults.push(format!("{name} has {lines} lines before its tests: {MOST_LINES} at most"));
        }
        for (function, lines) in long_functions(&production) {
            faults.push(format!("{name}: {function} has {lines} lines: {LONGEST_FUNCTION} at most"));
        }
        let renames = [concat!("fs::", "rename("), concat!("use std::fs::", "rename")]
            .iter()
            .any(|call| production.contains(call));
        if renames && !MAY_RENAME.contains(&name.as_str()) {
            faults.push(format!("{name} renames a file: use `replace_file`, which survives a power cut"));
        }
    }
    for file in tree.all_sources() {
        let text = tree.text(&file);
        let mut is_drawing = false;
        for (number, line) in text.lines().enumerate() {
            is_drawing ^= line.trim_start().trim_start_matches(['/', '!', ' ']).starts_with("```");
            let wide = line.chars().count() > WIDEST_COMMENT;
            // A link, a drawing and a row of a table cannot be broken.
            let breaks = !is_drawing && !line.contains("://") && !line.contains("//! |");
            if wide && breaks && (line.trim_start().starts_with("//") || line.contains("; // ")) {
                faults.push(format!("{}:{} is wider than {WIDEST_COMMENT}", tree.name(&file), number + 1));
            }
        }
    }
}

/// Functions of formatted code that are too long, and their lines. A body ends with the brace below its beginning.
fn long_functions(text: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let begin = line.trim_start();
        let is_item =
            ["fn ", "pub", "async fn ", "const fn ", "unsafe fn "].iter().any(|w| begin.starts_with(w));
        let Some((_, name)) = begin.split_once("fn ").filter(|_| is_item) else { continue };
        let name = name.split(['(', '<']).next().unwrap_or_default();
        let signature = lines[first..].iter().position(|line| line.ends_with(['{', ';', '}']));
        let has_body = signature.is_some_and(|n| lines[first + n].ends_with('{'));
        let last = format!("{}}}", &line[..line.len() - begin.len()]);
        let end = lines[first..].iter().position(|line| *line == last).filter(|_| has_body);
        found
            .extend(end.map(|end| (name.to_owned(), end + 1)).filter(|(_, lines)| *lines > LONGEST_FUNCTION));
    }
    found
}

/// What serves data counts by a clock that runs on in a suspend, unless nothing depends on it.
pub fn clocks(tree: &Tree, faults: &mut Faults) {
    let mut unused: BTreeSet<&str> = MAY_STAND_STILL.iter().copied().collect();
    for file in tree.sources() {
        let name = tree.name(&file);
        if !SERVING.iter().any(|part| name.starts_with(part)) || !counts_by_instant(&tree.text(&file)) {
            continue;
        }
        if !unused.remove(name.as_str()) {
            faults.push(format!(
                "{name} counts by a clock that stands still in a suspend: use `ebb_client::Clock`, or list the file in house.rs with the reason"
            ));
        }
    }
    faults.extend(
        unused.iter().map(|name| format!("{name} counts by no `Instant`: take it off the list in house.rs")),
    );
}

fn counts_by_instant(text: &str) -> bool {
    source::code(text).contains("Instant::now")
}

/// An example in the code's documentation is compiled and run, or marked as text.
pub fn examples(tree: &Tree, faults: &mut Faults) {
    for package in tree.packages.iter().filter(|p| tree.text(&p.manifest).contains("doctest = false")) {
        for file in source::all_files(&package.manifest.with_file_name("src")) {
            for line in untested_examples(&tree.text(&file)) {
                faults.push(format!(
                    "{}:{line} is an example that no test runs: mark it `text`, or remove `doctest = false`",
                    tree.name(&file)
                ));
            }
        }
    }
}

/// Numbers of the lines where an example begins that the compiler would take for code.
fn untested_examples(text: &str) -> Vec<usize> {
    let is_doc = |line: &str| line.starts_with("///") || line.starts_with("//!");
    let fence =
        |line: &str| line.trim_start_matches(['/', '!']).trim().strip_prefix("```").map(str::to_owned);
    let (mut found, mut is_open) = (Vec::new(), false);
    for (number, line) in text.lines().map(str::trim_start).enumerate().filter(|(_, line)| is_doc(line)) {
        let Some(tag) = fence(line) else { continue };
        if !is_open && (tag.is_empty() || tag.starts_with("rust")) {
            found.push(number + 1);
        }
        is_open = !is_open;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_for_banned_calls_finds_them() {
        assert_eq!(banned_in("fn f() { let t = std::time::Instant::now(); }"), ["Instant::now"]);
        assert!(
            banned_in("// std::fs is not used here\nfn f() {}\n#[cfg(test)]\nmod tests { use std::fs; }")
                .is_empty()
        );
        assert_eq!(banned_in("#[cfg(test)]\nmod tests;\nuse std::fs;"), ["std::fs"]);
    }

    #[test]
    fn long_functions_are_found() {
        let body = |lines| "    x();\n".repeat(lines);
        let text =
            |lines| format!("impl A {{\n    pub fn a(&self) {{\n{}    }}\n    fn b();\n}}\n", body(lines));
        assert_eq!(long_functions(&text(LONGEST_FUNCTION - 2)), []);
        assert_eq!(long_functions(&text(LONGEST_FUNCTION - 1)), [("a".to_owned(), LONGEST_FUNCTION + 1)]);
        let signatures = format!("trait A {{\n    fn a(\n        x: u8,\n    ) -> u8;\n{}}}\n", body(90));
        assert_eq!(long_functions(&signatures), []);
    }

    #[test]
    fn clocks_that_stand_still_are_found() {
        assert!(counts_by_instant("fn f() { let t = tokio::time::Instant::now(); }"));
        assert!(counts_by_instant("fn f() { at.get_or_insert_with(Instant::now); }"));
        assert!(!counts_by_instant(
            "// Instant::now\nfn f() {}\n#[cfg(test)]\nmod tests { fn g() { Instant::now(); } }"
        ));
    }

    #[test]
    fn examples_that_no_test_runs_are_found() {
        let text = "//! ```text\n//! a\n//! ```\n\n    /// ```\n    /// f();\n    /// ```\nlet s = \"```\";";
        assert_eq!(untested_examples(text), [5]);
    }

    #[test]
    fn rows_are_read_from_the_page() {
        let page = "| a | b |\n\n| crate | its job | imports | ring |\n|---|---|---|---|\n| `types` | units | – | pure |\n\
            | `meta` | `apply` | `types`, `gear` | pure, but `raft` |\n| `ebb` | all | all | program |\n\nText `x` | y";
        let set = |names: &[&str]| Some(names.iter().map(|n| (*n).to_owned()).collect::<BTreeSet<_>>());
        let row = |name: &str, imports, is_pure, except: &[&str]| Row {
            name: name.to_owned(),
            imports,
            is_pure,
            except: except.iter().map(|e| (*e).to_owned()).collect(),
        };
        assert_eq!(
            rows(page),
            [
                row("types", set(&[]), true, &[]),
                row("meta", set(&["types", "gear"]), true, &["raft"]),
                row("ebb", None, false, &[])
            ]
        );
    }

    #[test]
    fn wings_import_what_stands_below_them() {
        assert!(may_import("cluster", "ground", "types") && may_import("cluster", "cluster", "gear"));
        assert!(!may_import("cluster", "mirror", "mirror") && !may_import("mirror", "cluster", "gear"));
        assert!(may_import("lab", "cluster", "client") && !may_import("lab", "cluster", "meta"));
        assert!(may_import("sim", "lab", "trace") && !may_import("ground", "cluster", "gear"));
        assert!(!may_import("sim", "", "ebb") && may_import("", "sim", "sim"));
    }
}
