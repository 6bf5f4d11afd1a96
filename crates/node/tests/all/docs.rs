//! Checks the documentation against the code: every rule of `docs/rules.md` has its five parts, and every name in it is
//! declared where the page says; every link resolves; `docs/wire.md` lists every kind of frame.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Number of rules.
const RULES: usize = 14;
const PARTS: [&str; 5] = ["Statement", "Why", "Kept", "Checked", "Planted bug"];
/// Rules without a planted bug yet. A rule that gets one leaves this list.
const NO_PLANTED_BUG: [&str; 1] = ["R12"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The rules of the page, each with the text under its heading.
fn rules(page: &str) -> Vec<(String, String)> {
    let sections = page.split("\n## ").skip(1).filter(|s| s.starts_with('R'));
    let rule = |section: &str| {
        let (title, text) = section.split_once('\n').expect("a rule has a text");
        (title.split(' ').next().expect("a title has a word").to_owned(), text.to_owned())
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
        let (_, part) = text[start + 3..end].split_once("**").expect("the marker ends");
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
fn faults(text: &str, source: impl Fn(&str) -> Option<String>) -> Vec<String> {
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

fn source(path: &str) -> Option<String> {
    std::fs::read_to_string(root().join(path)).ok()
}

#[test]
fn every_rule_has_five_parts_that_are_true_of_the_code() {
    let page = read("docs/rules.md");
    let rules = rules(&page);
    let ids: Vec<&str> = rules.iter().map(|(id, _)| id.as_str()).collect();
    let expected: Vec<String> = (1..=RULES).map(|n| format!("R{n}")).collect();
    assert_eq!(ids, expected);
    let mut wrong = Vec::new();
    for (id, text) in &rules {
        let [_, _, kept, checked, planted] = parts(text).unwrap_or_else(|why| panic!("{id}: {why}"));
        let none_yet = planted.starts_with("None yet");
        assert_eq!(none_yet, NO_PLANTED_BUG.contains(&id.as_str()), "{id}: whether it has a planted bug");
        for part in [kept, checked, planted].into_iter().take(if none_yet { 2 } else { 3 }) {
            wrong.extend(faults(part, source).into_iter().map(|fault| format!("{id}: {fault}")));
        }
    }
    assert!(wrong.is_empty(), "docs/rules.md is not true of the code:\n{}", wrong.join("\n"));
}

#[test]
fn every_check_and_every_planted_bug_belongs_to_a_rule() {
    let page = read("docs/rules.md");
    let named: BTreeSet<&str> = quoted(&page).collect();
    let invariants = root().join("crates/sim/src/search/invariants");
    let mut expected: BTreeSet<String> = std::fs::read_dir(invariants)
        .unwrap()
        .map(|entry| format!("crates/sim/src/search/invariants/{}", entry.unwrap().file_name().display()))
        .filter(|path| !path.ends_with("/mod.rs"))
        .collect();
    let bugs = read("crates/replica/src/config.rs");
    let (_, bugs) = bugs.split_once("pub enum PlantedBug {").expect("the core has planted bugs");
    let (bugs, _) = bugs.split_once("\n}").expect("the list ends");
    let variants = bugs.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    expected.extend(variants.map(|line| line.trim_end_matches(',').to_owned()));
    let tests = read("crates/sim/tests/planted.rs");
    let tests = tests.split("#[test]\nfn ").skip(1).map(|rest| rest.split('(').next().unwrap().to_owned());
    expected.extend(tests);
    let missing: Vec<&String> = expected.iter().filter(|name| !named.contains(name.as_str())).collect();
    assert!(expected.len() > 20 && missing.is_empty(), "docs/rules.md does not name {missing:?}");
}

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
    let code = "pub fn f(x: u8) {}\nenum T {\n    /// fn g()\n    A,\n}\nstruct S {\n    pub field: u8,\n}\n";
    let source = |path: &str| (path == "a/b.rs").then(|| code.to_owned());
    assert!(faults("`a/b.rs`: `f`, `T`, `A` and `field`", source).is_empty());
    for bad in ["`a/b.rs`: `g`", "`a/b.rs`: `fiel`", "`a/b.rs`", "`a/c.rs`: `f`", "words alone", "`f`"] {
        assert!(!faults(bad, source).is_empty(), "{bad}");
    }
}

/// Every page that people read, relative to the repository.
fn pages() -> Vec<String> {
    let mut pages: Vec<String> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(str::to_owned).into();
    for dir in ["docs", "docs/decisions"] {
        for entry in std::fs::read_dir(root().join(dir)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            pages.extend(name.ends_with(".md").then(|| format!("{dir}/{name}")));
        }
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

#[test]
fn every_file_and_function_that_a_page_names_exists() {
    let mut wrong = Vec::new();
    for page in pages() {
        let (_, text) = outline(&read(&page));
        wrong.extend(
            untrue(&text.replace('\n', " "), source).into_iter().map(|what| format!("{page}: {what}")),
        );
    }
    assert!(wrong.is_empty(), "pages name what is not there:\n{}", wrong.join("\n"));
    let code = |path: &str| (path == "crates/a.rs").then(|| "fn f() {}".to_owned());
    assert!(untrue("`f` in `crates/a.rs`, `T::f` in `crates/a.rs`", code).is_empty());
    assert_eq!(untrue("`g` in `crates/a.rs` and `crates/b.rs`", code), ["crates/b.rs", "g in crates/a.rs"]);
}

/// Checks the table of "The life of a write": files, each relative to `crates/` or to the previous file, with functions
/// that they declare.
#[test]
fn the_life_of_a_write_is_that_of_the_code() {
    let page = read("docs/protocol.md");
    let (_, story) =
        page.split_once("## 14. The life of a write").expect("the page tells the life of a write");
    let rows: Vec<&str> = story.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let (mut wrong, mut file, mut code) = (Vec::new(), PathBuf::new(), String::new());
    for row in &rows {
        for word in quoted(row.split('|').nth(2).expect("a row says where")) {
            if word.ends_with(".rs") {
                let near = file.ancestors().skip(1).map(|dir| dir.join(word));
                let mut places = near.chain([PathBuf::from("crates").join(word)]);
                let found = places.find(|place| root().join(place).is_file());
                file = found.unwrap_or_else(|| panic!("{row}: there is no {word}"));
                code = read(file.to_str().expect("a path of ours"));
                continue;
            }
            let name = word.rsplit("::").next().expect("a split has a first part");
            if !declares(&code, name) {
                wrong.push(format!("{} declares no {name}", file.display()));
            }
        }
    }
    assert!(rows.len() > 10 && wrong.is_empty(), "{wrong:#?}");
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

#[test]
fn every_link_leads_somewhere() {
    let (mut followed, mut broken) = (0, Vec::new());
    for page in pages() {
        let (_, text) = outline(&read(&page));
        for rest in text.split("](").skip(1) {
            let target = rest.split(')').next().expect("a split has a first part");
            if target.contains("://") {
                continue;
            }
            followed += 1;
            let (path, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = match path {
                "" => root().join(&page),
                path => root().join(&page).parent().expect("a page has a directory").join(path),
            };
            // A picture is no text, and has no headings.
            let known = match std::fs::read(&file) {
                Ok(text) => {
                    heading.is_empty() || outline(&String::from_utf8_lossy(&text)).0.contains(heading)
                }
                Err(_) => file.is_dir() && heading.is_empty(),
            };
            if !known {
                broken.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(followed > 80, "the pages have links");
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn every_kind_of_frame_is_documented() {
    let code = read("crates/client/src/transport.rs");
    let (_, kinds) = code.split_once("pub mod kind {").expect("the transport has kinds");
    let (kinds, _) = kinds.split_once("\n}").expect("the list ends");
    let numbers = kinds.lines().filter(|line| line.contains("pub const "));
    let kinds: BTreeSet<&str> = numbers.map(|line| line.rsplit([' ', ';']).nth(1).unwrap()).collect();
    let page = read("docs/wire.md");
    let (_, table) = page.split_once("| kind |").expect("the page has a table of kinds");
    let rows = table.lines().skip(2).take_while(|line| line.starts_with('|'));
    let rows: BTreeSet<&str> = rows.map(|line| line.split('|').nth(1).unwrap().trim()).collect();
    assert!(kinds.len() >= 12);
    assert_eq!(rows, kinds, "docs/wire.md against transport.rs");
}

/// All production code.
fn all_sources(dir: &Path, out: &mut String) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all_sources(&path, out);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            out.push_str(&std::fs::read_to_string(&path).unwrap());
        }
    }
}

#[test]
fn every_message_that_is_explained_exists() {
    let page = read("docs/operations.md");
    let (_, table) =
        page.split_once("## Troubleshooting by message").expect("the page has a table of messages");
    let mut code = String::new();
    for entry in std::fs::read_dir(root().join("crates")).unwrap() {
        let sources = entry.unwrap().path().join("src");
        if sources.is_dir() {
            all_sources(&sources, &mut code);
        }
    }
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let messages: Vec<&str> =
        rows.map(|row| quoted(row).next().expect("a row begins with a message")).collect();
    let gone: Vec<&&str> = messages.iter().filter(|message| !code.contains(**message)).collect();
    assert!(messages.len() > 20 && gone.is_empty(), "no program says {gone:?}");
}
