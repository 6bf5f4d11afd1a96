//! Dependencies: permissively licensed, from the registry, and used. The same checks as `cargo deny check licenses bans
//! sources`. Advisories need a database from the network: `make lint` asks `cargo deny` for them where it is installed.

use super::{Faults, Tree, metadata};
use crate::source;

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

/// Crates whose library has another name than the package with underscores.
const LIBRARIES: &[(&str, &str)] = &[("md-5", "md5"), ("perf-event2", "perf_event")];

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

pub fn licences(tree: &Tree, faults: &mut Faults) {
    if tree.packages.is_empty() {
        return;
    }
    let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let metadata = match metadata(&tree.root, &["--filter-platform", &host]) {
        Ok(metadata) => metadata,
        Err(why) => return faults.push(why),
    };
    let packages = metadata["packages"].as_array().cloned().unwrap_or_default();
    let others: Vec<_> = packages.iter().filter(|p| !p["source"].is_null()).collect();
    if others.len() < 100 {
        faults.push(format!("cargo metadata lists {} dependencies only", others.len()));
    }
    for package in others {
        let (name, source) = (&package["name"], package["source"].as_str().unwrap_or_default());
        let licence = package["license"].as_str().unwrap_or("none");
        if !is_permissive(licence) {
            faults.push(format!("{name} may be used under {licence} only: find another crate"));
        }
        if !source.starts_with("registry+") {
            faults.push(format!("{name} comes from {source}: only the registry's crates do not change"));
        }
    }
}

/// Whether `code` names the library at all, as a whole word.
fn names(code: &str, library: &str) -> bool {
    let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    code.match_indices(library).any(|(at, _)| {
        !is_word(code[..at].chars().next_back()) && !is_word(code[at + library.len()..].chars().next())
    })
}

/// What `cargo machete` would report: a dependency that no source file names costs compile time for nothing.
pub fn unused(tree: &Tree, faults: &mut Faults) {
    for package in &tree.packages {
        let mut code = String::new();
        for folder in ["src", "tests", "examples"] {
            let files = source::all_files(&package.manifest.with_file_name(folder));
            files.iter().for_each(|file| code += &tree.text(file));
        }
        for name in &package.dependencies {
            let other = LIBRARIES.iter().find(|(package, _)| package == name).map(|(_, library)| *library);
            let library = other.map_or_else(|| name.replace('-', "_"), str::to_owned);
            if !names(&code, &library) {
                faults.push(format!("{} does not use {name}: remove it", package.name));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn licence_expressions_are_understood() {
        for good in [
            "MIT",
            "MIT/GPL-3.0",
            "GPL-2.0 OR MIT",
            "(MIT OR GPL-3.0) AND ISC",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert!(is_permissive(good), "{good}");
        }
        for bad in ["none", "", "GPL-3.0", "MIT AND GPL-3.0", "(MIT OR ISC) AND AGPL-3.0", "(MIT", "MIT)"] {
            assert!(!is_permissive(bad), "{bad}");
        }
    }

    #[test]
    fn a_library_is_named_as_a_whole_word() {
        assert!(names("use md5::Digest", "md5") && !names("use md5sum; my_md5", "md5"));
    }
}
