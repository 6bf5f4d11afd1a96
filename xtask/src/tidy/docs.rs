//! The pages against the code: every rule of `docs/rules.md` has its five parts, and every name in it is declared where
//! the page says; every link resolves; every file and function that a page names exists; `docs/wire.md` lists every
//! kind of frame; every message that `docs/operations.md` explains is printed by some program.

use super::{Faults, Tree};
use std::collections::BTreeSet;
use std::path::PathBuf;

/// Number of rules.
const RULES: usize = 20;
const PARTS: [&str; 5] = ["Statement", "Why", "Kept", "Checked", "Planted bug"];
/// Rules without a planted bug yet. A rule that gets one leaves this list.
const NO_PLANTED_BUG: [&str; 1] = ["R20"];

/// The rules of the page, each with the text under its heading.
fn rules_of(page: &str) -> Vec<(String, String)> {
    let sections = page.split("\n## ").skip(1).filter(|s| s.starts_with('R'));
    let rule = |section: &str| {
        let (title, text) = section.split_once('\n').unwrap_or((section, ""));
        (title.split(' ').next().unwrap_or_default().to_owned(), text.to_owned())
    };
    sections.map(rule).collect()
}

/// The five parts of a rule, or the reason they are wrong.
fn parts(text: &str) -> Result<[&str; 5], String> {
    let mut found = [""; 5];
    let starts: Vec<usize> = PARTS
        .iter()
        .map(|part| text.find(&format!("\n**{part}")).ok_or(format!("there is no {part:?}")))
        .collect::<Result<_, _>>()?;
    if !starts.is_sorted() {
        return Err(format!("its parts are not in the order {PARTS:?}"));
    }
    for (n, start) in starts.iter().enumerate() {
        let end = starts.get(n + 1).copied().unwrap_or(text.len());
        let (_, part) = text[start + 3..end].split_once("**").ok_or("a part's title does not end")?;
        found[n] = part.trim();
        if found[n].is_empty() {
            return Err(format!("{:?} says nothing", PARTS[n]));
        }
    }
    Ok(found)
}

/// The words between backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Whether a source declares the name: as a function, a type, a constant, a variant or a field.
fn declares(source: &str, name: &str) -> bool {
    let is_end = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    source.lines().map(str::trim_start).filter(|line| !line.starts_with("//")).any(|line| {
        let item = ["fn ", "struct ", "enum ", "trait ", "type ", "const "].iter().any(|keyword| {
            line.split_once(keyword).is_some_and(|(_, rest)| rest.strip_prefix(name).is_some_and(is_end))
        });
        let rest = line.strip_prefix("pub ").unwrap_or(line).strip_prefix(name);
        item || rest.is_some_and(|rest| rest.starts_with([',', ':', '(']) || rest.starts_with(" {"))
    })
}

/// Errors in a list of files, each followed by names that it declares.
fn wrong_names(text: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let mut faults = Vec::new();
    let (mut file, mut code, mut names) = ("", String::new(), 1);
    for word in quoted(text).chain(["/"]) {
        if !word.contains('/') {
            names += 1;
            if !declares(&code, word) {
                faults.push(format!("{file:?} declares no {word}"));
            }
            continue;
        }
        if names == 0 {
            faults.push(format!("nothing is named of {file}"));
        }
        if word != "/" {
            (file, names) = (word, 0);
            code = source(word).unwrap_or_else(|| {
                faults.push(format!("there is no {word}"));
                String::new()
            });
        }
    }
    if file.is_empty() {
        faults.push("no file is named".to_owned());
    }
    faults
}

pub fn rules(tree: &Tree, faults: &mut Faults) {
    let page = tree.read("docs/rules.md");
    let rules = rules_of(&page);
    let ids: Vec<&str> = rules.iter().map(|(id, _)| id.as_str()).collect();
    let expected: Vec<String> = (1..=RULES).map(|n| format!("R{n}")).collect();
    if ids != expected {
        faults.push(format!("docs/rules.md has the rules {ids:?}"));
    }
    let source = |path: &str| Some(tree.read(path)).filter(|text| !text.is_empty());
    for (id, text) in &rules {
        let [_, _, kept, checked, planted] = match parts(text) {
            Ok(parts) => parts,
            Err(why) => {
                faults.push(format!("docs/rules.md, {id}: {why}"));
                continue;
            }
        };
        let none_yet = planted.starts_with("None yet");
        if none_yet != NO_PLANTED_BUG.contains(&id.as_str()) {
            faults.push(format!("docs/rules.md, {id}: whether it has a planted bug"));
        }
        for part in [kept, checked, planted].into_iter().take(if none_yet { 2 } else { 3 }) {
            let wrong = wrong_names(part, source);
            faults.extend(wrong.into_iter().map(|fault| format!("docs/rules.md, {id}: {fault}")));
        }
    }
    belong_to_rules(tree, &page, faults);
}

/// Every check of the fault search, every planted bug and every test that finds one belongs to a rule.
fn belong_to_rules(tree: &Tree, page: &str, faults: &mut Faults) {
    const INVARIANTS: &str = "crates/sim/sim/src/search/invariants";
    let named: BTreeSet<&str> = quoted(page).collect();
    let files = crate::source::all_files(&tree.root.join(INVARIANTS));
    let mut expected: BTreeSet<String> = files.iter().map(|file| tree.name(file)).collect();
    expected.retain(|path| !path.ends_with("/mod.rs"));
    let bugs = tree.read("crates/cluster/chunkserver/src/common/config.rs");
    let bugs = between(&bugs, "pub enum PlantedBug {", "\n}");
    let variants = bugs.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    expected.extend(variants.map(|line| line.trim_end_matches(',').to_owned()));
    let tests = tree.read("crates/sim/sim/tests/all/planted.rs");
    let tests = tests.split("#[test]\nfn ").skip(1).filter_map(|rest| rest.split('(').next());
    expected.extend(tests.map(str::to_owned));
    if expected.len() < 40 {
        faults.push(format!(
            "the fault search has {} checks, planted bugs and their tests only",
            expected.len()
        ));
    }
    let missing = expected.iter().filter(|name| !named.contains(name.as_str()));
    faults.extend(missing.map(|name| format!("docs/rules.md does not name {name}")));
}

/// The text after `begin`, up to `end`; empty where there is none.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> &'a str {
    let rest = text.split_once(begin).map_or("", |(_, rest)| rest);
    rest.split_once(end).map_or(rest, |(inside, _)| inside)
}

/// Every page that people read, relative to the checkout.
fn pages(tree: &Tree) -> Vec<String> {
    let mut pages: Vec<String> = Vec::new();
    let wings = ["ground", "cluster", "mirror", "lab", "sim"].map(|wing| format!("crates/{wing}"));
    for dir in [".", "docs", "docs/decisions"].map(str::to_owned).into_iter().chain(wings) {
        let Ok(entries) = std::fs::read_dir(tree.root.join(&dir)) else { continue };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        pages.extend(names.filter(|name| name.ends_with(".md")).map(|name| match dir.as_str() {
            "." => name,
            dir => format!("{dir}/{name}"),
        }));
    }
    pages.sort();
    pages
}

/// Names on a page that are not in the code: missing files, and functions of "`f` in `file`" that the file does not
/// declare.
fn untrue(text: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
    let is_file = |word: &&str| word.starts_with("crates/") && word.ends_with(".rs") && !word.contains('*');
    let mut untrue: Vec<String> =
        quoted(text).filter(is_file).filter(|word| source(word).is_none()).map(str::to_owned).collect();
    for (at, _) in text.match_indices("` in `crates/") {
        let name = text[..at].rsplit('`').next().expect("a split has a first part");
        let name = name.rsplit("::").next().expect("a split has a first part");
        let file = text[at + "` in `".len()..].split('`').next().expect("a split has a first part");
        if source(file).is_some_and(|code| !declares(&code, name)) {
            untrue.push(format!("{name} in {file}"));
        }
    }
    untrue
}

pub fn names(tree: &Tree, faults: &mut Faults) {
    let source = |path: &str| Some(tree.read(path)).filter(|text| !text.is_empty());
    let pages = pages(tree);
    if pages.len() < 20 {
        faults.push(format!("there are {} pages only", pages.len()));
    }
    for page in pages {
        let (_, text) = outline(&tree.read(&page));
        let wrong = untrue(&text.replace('\n', " "), source);
        faults.extend(wrong.into_iter().map(|what| format!("{page} names what is not there: {what}")));
    }
}

/// The table of "The life of a write": files, each relative to `crates/` or to the previous file, with functions that
/// they declare.
pub fn life_of_a_write(tree: &Tree, faults: &mut Faults) {
    let page = tree.read("docs/protocol.md");
    let story = between(&page, "## 14. The life of a write", "\n## ");
    let rows: Vec<&str> = story.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    if rows.len() <= 10 {
        faults.push(format!("docs/protocol.md: the life of a write has {} rows", rows.len()));
    }
    let (mut file, mut code) = (PathBuf::new(), String::new());
    for row in rows {
        for word in quoted(row.split('|').nth(2).unwrap_or_default()) {
            if word.ends_with(".rs") {
                let near = file.ancestors().skip(1).map(|dir| dir.join(word));
                let mut places = near.chain([PathBuf::from("crates").join(word)]);
                match places.find(|place| tree.root.join(place).is_file()) {
                    Some(found) => (code, file) = (tree.text(&tree.root.join(&found)), found),
                    None => faults.push(format!("docs/protocol.md, the life of a write: there is no {word}")),
                }
                continue;
            }
            let name = word.rsplit("::").next().expect("a split has a first part");
            if !declares(&code, name) {
                faults.push(format!("docs/protocol.md: {} declares no {name}", file.display()));
            }
        }
    }
}

/// The anchor of a heading, as forges generate it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// The headings of a page, and its text without the examples.
fn outline(page: &str) -> (BTreeSet<String>, String) {
    let (mut headings, mut text, mut example) = (BTreeSet::new(), String::new(), false);
    for line in page.lines() {
        example ^= line.trim_start().starts_with("```");
        if example || line.starts_with("    ") {
            continue;
        }
        if line.starts_with('#') {
            headings.insert(anchor(line.trim_start_matches('#')));
        }
        text.push_str(line);
        text.push('\n');
    }
    (headings, text)
}

pub fn links(tree: &Tree, faults: &mut Faults) {
    let mut followed = 0;
    for page in pages(tree) {
        let (_, text) = outline(&tree.read(&page));
        for rest in text.split("](").skip(1) {
            let target = rest.split(')').next().expect("a split has a first part");
            if target.contains("://") {
                continue;
            }
            followed += 1;
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let here = tree.root.join(&page);
            let file = match path {
                "" => here,
                path => here.parent().expect("a page has a directory").join(path),
            };
            // A picture is not text, and has no headings.
            let known = match std::fs::read(&file) {
                Ok(text) => {
                    heading.is_empty() || outline(&String::from_utf8_lossy(&text)).0.contains(heading)
                }
                Err(_) => file.is_dir() && heading.is_empty(),
            };
            if !known {
                faults.push(format!("{page}: {target} leads nowhere"));
            }
        }
    }
    if followed < 80 {
        faults.push(format!("the pages have {followed} links only"));
    }
}

pub fn frames(tree: &Tree, faults: &mut Faults) {
    let code = tree.read("crates/cluster/client/src/transport.rs");
    let kinds = between(&code, "pub mod kind {", "\n}");
    let numbers = kinds.lines().filter(|line| line.contains("pub const "));
    let kinds: BTreeSet<&str> = numbers.filter_map(|line| line.rsplit([' ', ';']).nth(1)).collect();
    let page = tree.read("docs/wire.md");
    let table = between(&page, "| kind |", "\n\n");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let rows: BTreeSet<&str> = rows.filter_map(|line| line.split('|').nth(1)).map(str::trim).collect();
    if kinds.len() < 12 || rows != kinds {
        faults.push(format!("docs/wire.md has the frames {rows:?}, transport.rs {kinds:?}"));
    }
}

pub fn messages(tree: &Tree, faults: &mut Faults) {
    let page = tree.read("docs/operations.md");
    let table = between(&page, "## Troubleshooting by message", "\n## ");
    let code: String = tree.sources().iter().map(|file| tree.text(file)).collect();
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let messages: Vec<&str> = rows.filter_map(|row| quoted(row).next()).collect();
    if messages.len() <= 20 {
        faults.push(format!("docs/operations.md explains {} messages only", messages.len()));
    }
    let gone = messages.iter().filter(|message| !code.contains(**message));
    faults.extend(gone.map(|message| format!("docs/operations.md: no program says {message:?}")));
}

/// `CITATION.cff` has the version and the licence of the workspace.
pub fn citation(tree: &Tree, faults: &mut Faults) {
    let (page, manifest) = (tree.read("CITATION.cff"), tree.read("Cargo.toml"));
    let package = between(&manifest, "[workspace.package]", "\n\n");
    let value = |text: &str, begin: &str| {
        text.lines().find_map(|line| Some(line.strip_prefix(begin)?.trim_matches('"').to_owned()))
    };
    for key in ["version", "license"] {
        let cited = value(&page, &format!("{key}: "));
        let is = value(package, &format!("{key} = "));
        if is.is_none() || cited != is {
            faults.push(format!("CITATION.cff: {key} is {cited:?}, in Cargo.toml {is:?}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_is_not_true_is_noticed() {
        let text = "\n**Statement.** S.\n\n**Why.** W.\n\n**Kept**\n- `a/b.rs`: `f`.\n\n**Checked**\n- `a/b.rs`: `T`.\n\n**Planted bug.** None yet.\n";
        let [statement, .., planted] = parts(text).unwrap();
        assert_eq!((statement, planted), ("S.", "None yet."));
        for (from, to, why) in [
            ("**Why.** W.", "", "no \"Why\""),
            ("**Why.** W.", "**Why.**", "\"Why\" says nothing"),
            ("**Statement.** S.\n\n**Why.** W.", "**Why.** W.\n\n**Statement.** S.", "order"),
        ] {
            let error = parts(&text.replacen(from, to, 1)).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let code =
            "pub fn f(x: u8) {}\nenum T {\n    /// fn g()\n    A,\n}\nstruct S {\n    pub field: u8,\n}\n";
        let source = |path: &str| (path == "a/b.rs").then(|| code.to_owned());
        assert!(wrong_names("`a/b.rs`: `f`, `T`, `A` and `field`", source).is_empty());
        for bad in ["`a/b.rs`: `g`", "`a/b.rs`: `fiel`", "`a/b.rs`", "`a/c.rs`: `f`", "words alone", "`f`"] {
            assert!(!wrong_names(bad, source).is_empty(), "{bad}");
        }
    }

    #[test]
    fn names_that_are_not_there_are_noticed() {
        let code = |path: &str| (path == "crates/a.rs").then(|| "fn f() {}".to_owned());
        assert!(untrue("`f` in `crates/a.rs`, `T::f` in `crates/a.rs`", code).is_empty());
        assert_eq!(
            untrue("`g` in `crates/a.rs` and `crates/b.rs`", code),
            ["crates/b.rs", "g in crates/a.rs"]
        );
    }
}
