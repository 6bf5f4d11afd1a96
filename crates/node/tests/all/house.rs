//! House rules that the compiler does not check: which crate may import which, what the pure ring must not touch, and
//! which licences dependencies may have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// ARCHITECTURE.md, "Three rings": the imports of each crate within the project, no less and no more.
const IMPORTS: &[(&str, &[&str])] = &[
    ("ebb-types", &[]),
    // For tests only: not in the page's table.
    ("ebb-testing", &["ebb-types"]),
    ("ebb-gear", &["ebb-types"]),
    ("ebb-meta", &["ebb-types", "ebb-gear", "ebb-ec"]),
    ("ebb-replica", &["ebb-types", "ebb-ec"]),
    ("ebb-trace", &["ebb-types"]),
    ("ebb-store", &["ebb-types"]),
    ("ebb-power", &["ebb-types"]),
    ("ebb-route", &["ebb-types"]),
    ("ebb-mirror", &["ebb-types"]),
    ("ebb-ec", &["ebb-types"]),
    ("ebb-nbd", &[]),
    ("ebb-blockdev", &["ebb-mirror", "ebb-nbd"]),
    ("ebb-client", &["ebb-types", "ebb-ec", "ebb-route"]),
    ("ebb-volume", &["ebb-types", "ebb-client"]),
    ("ebb-gateway", &["ebb-types", "ebb-client"]),
    ("ebb-page", &["ebb-types"]),
    ("ebb-report", &[]),
    (
        "ebb-sim",
        &[
            "ebb-types",
            "ebb-gear",
            "ebb-ec",
            "ebb-meta",
            "ebb-mirror",
            "ebb-replica",
            "ebb-route",
            "ebb-trace",
            "ebb-store",
            "ebb-power",
            "ebb-report",
        ],
    ),
    (
        "ebb-lab",
        &["ebb-types", "ebb-gear", "ebb-trace", "ebb-power", "ebb-client", "ebb-volume", "ebb-report"],
    ),
    (
        "ebb",
        &[
            "ebb-types",
            "ebb-gear",
            "ebb-ec",
            "ebb-meta",
            "ebb-replica",
            "ebb-mirror",
            "ebb-nbd",
            "ebb-blockdev",
            "ebb-trace",
            "ebb-store",
            "ebb-power",
            "ebb-client",
            "ebb-volume",
            "ebb-gateway",
            "ebb-page",
            "ebb-report",
            "ebb-sim",
            "ebb-lab",
        ],
    ),
];

/// Crates that decide and touch nothing. `raft.rs` of `meta` writes the Raft log.
const PURE: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("gear", &[]),
    ("meta", &["raft.rs", "raft"]),
    ("replica", &[]),
    ("route", &[]),
    ("mirror", &[]),
    ("ec", &[]),
    ("nbd", &[]),
    ("trace", &[]),
];

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

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn metadata(what: &[&str]) -> serde_json::Value {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--offline"])
        .args(what)
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON")
}

#[test]
fn crates_import_what_the_table_says() {
    let allowed: BTreeMap<&str, BTreeSet<&str>> =
        IMPORTS.iter().map(|(name, imports)| (*name, imports.iter().copied().collect())).collect();
    let metadata = metadata(&["--no-deps"]);
    let packages = metadata["packages"].as_array().unwrap();
    assert_eq!(packages.len(), IMPORTS.len(), "every crate of the house has a row, and every row a crate");
    for package in packages {
        let name = package["name"].as_str().unwrap();
        let allowed = allowed.get(name).unwrap_or_else(|| panic!("{name} has no row in the table"));
        // Tests may use more: they are programs.
        let edges = package["dependencies"].as_array().unwrap().iter();
        let edges = edges.filter(|edge| edge["kind"].as_str() != Some("dev"));
        let edges = edges.map(|edge| edge["name"].as_str().unwrap()).filter(|name| name.starts_with("ebb"));
        assert_eq!(&edges.collect::<BTreeSet<_>>(), allowed, "{name} imports something else");
    }
}

/// Source files below `dir`, without tests and without files and folders named in `except`.
pub fn sources(dir: &Path, except: &[&str]) -> Vec<PathBuf> {
    let is_left_out = |name: &std::ffi::OsStr| {
        let name = name.to_str().expect("names of source files are plain");
        except.contains(&name) || name == "tests.rs" || name == "tests"
    };
    let mut found = all_sources(dir);
    found.retain(|path| !path.strip_prefix(dir).expect("it is below").iter().any(is_left_out));
    found
}

/// Every source file below `dir`, tests included.
pub fn all_sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(all_sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// The code of a file, without its unit tests and comments.
pub fn code(text: &str) -> String {
    let before_tests = text.split("#[cfg(test)]\nmod ").next().unwrap();
    before_tests.lines().filter(|l| !l.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

fn banned_in(text: &str) -> Vec<&'static str> {
    let code = code(text);
    BANNED.iter().copied().filter(|word| code.contains(word)).collect()
}

#[test]
fn the_pure_ring_has_no_clock_chance_thread_socket_or_file() {
    for (name, except) in PURE {
        let dir = root().join("crates").join(name).join("src");
        let files = sources(&dir, except);
        assert!(!files.is_empty(), "{} has no source", dir.display());
        for file in files {
            let found = banned_in(&std::fs::read_to_string(&file).unwrap());
            assert!(found.is_empty(), "{} uses {found:?}", file.display());
        }
    }
}

#[test]
fn the_search_for_banned_calls_finds_them() {
    assert_eq!(banned_in("fn f() { let t = std::time::Instant::now(); }"), ["Instant::now"]);
    assert!(
        banned_in("// std::fs is not used here\nfn f() {}\n#[cfg(test)]\nmod tests { use std::fs; }")
            .is_empty()
    );
}

#[test]
fn files_stay_readable() {
    let mut crates: Vec<PathBuf> =
        std::fs::read_dir(root().join("crates")).unwrap().map(|e| e.unwrap().path().join("src")).collect();
    crates.sort();
    for file in crates.iter().flat_map(|dir| sources(dir, &[])) {
        let text = std::fs::read_to_string(&file).unwrap();
        let lines = text.split("#[cfg(test)]\nmod ").next().unwrap().lines().count();
        assert!(lines <= 1000, "{} has {lines} lines before its tests", file.display());
    }
}

/// Permitted licences of dependencies: permissive ones, which require no more than a notice.
const LICENCES: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "bzip2-1.0.6",
    // The certificates of webpki-roots: data, under a permissive licence for data.
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Whether an SPDX expression can be satisfied with permissive licences only. `/` is an old form of `OR`.
fn is_permissive(expression: &str) -> bool {
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    fn any<'a>(words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> bool {
        let mut allowed = all(words);
        while words.next_if_eq(&"OR").is_some() {
            allowed |= all(words);
        }
        allowed
    }
    fn all<'a>(words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> bool {
        let mut allowed = one(words);
        while words.next_if_eq(&"AND").is_some() {
            allowed &= one(words);
        }
        allowed
    }
    fn one<'a>(words: &mut std::iter::Peekable<impl Iterator<Item = &'a str>>) -> bool {
        if words.next_if_eq(&"(").is_some() {
            let allowed = any(words);
            return words.next_if_eq(&")").is_some() && allowed;
        }
        let allowed = words.next().is_some_and(|name| LICENCES.contains(&name));
        // An exception allows more, never less.
        if words.next_if_eq(&"WITH").is_some() {
            words.next();
        }
        allowed
    }
    any(&mut words) && words.next().is_none()
}

/// The same checks as `cargo deny check licenses bans sources`. Advisories need a database from the network:
/// `scripts/lint` runs `cargo deny` for them where it is installed, and says so where it is not.
#[test]
fn dependencies_are_permissive_and_from_the_registry() {
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = metadata(&["--filter-platform", &host]);
    let packages = metadata["packages"].as_array().unwrap();
    let others: Vec<_> = packages.iter().filter(|p| !p["source"].is_null()).collect();
    assert!(others.len() > 100, "the list of dependencies is not whole");
    for package in others {
        let (name, source) = (&package["name"], package["source"].as_str().unwrap());
        let licence = package["license"].as_str().unwrap_or("none");
        assert!(is_permissive(licence), "{name} may be used under {licence} only: find another crate");
        assert!(
            source.starts_with("registry+"),
            "{name} comes from {source}: only the registry's crates do not change"
        );
    }
}

/// Crates whose library has another name than the package with underscores.
const LIBRARIES: &[(&str, &str)] = &[("md-5", "md5"), ("perf-event2", "perf_event")];

/// Whether `code` names the library at all, as a whole word.
fn names(code: &str, library: &str) -> bool {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    code.match_indices(library).any(|(at, _)| {
        !is_word(code[..at].chars().next_back()) && !is_word(code[at + library.len()..].chars().next())
    })
}

/// What `cargo machete` would report: a dependency that no source file names costs compile time for nothing.
#[test]
fn every_dependency_is_used() {
    let metadata = metadata(&["--no-deps"]);
    for package in metadata["packages"].as_array().unwrap() {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        let mut code = String::new();
        for folder in ["src", "tests", "examples"].map(|folder| manifest.with_file_name(folder)) {
            let files = if folder.is_dir() { all_sources(&folder) } else { Vec::new() };
            files.iter().for_each(|file| code += &std::fs::read_to_string(file).unwrap());
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let name = dependency["name"].as_str().unwrap();
            let other = LIBRARIES.iter().find(|(package, _)| *package == name).map(|(_, library)| *library);
            let library = other.map_or_else(|| name.replace('-', "_"), str::to_owned);
            assert!(names(&code, &library), "{} does not use {name}: remove it", package["name"]);
        }
    }
    assert!(names("use md5::Digest", "md5") && !names("use md5sum; my_md5", "md5"));
}

#[test]
fn licence_expressions_are_understood() {
    for good in
        ["MIT", "MIT/GPL-3.0", "GPL-2.0 OR MIT", "(MIT OR GPL-3.0) AND ISC", "Apache-2.0 WITH LLVM-exception"]
    {
        assert!(is_permissive(good), "{good}");
    }
    for bad in ["none", "", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND AGPL-3.0", "(MIT", "MIT)"] {
        assert!(!is_permissive(bad), "{bad}");
    }
}
