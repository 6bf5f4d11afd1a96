//! The files of a crate do not import each other in circles: each can be read after those that it builds on.
//!
//! An import is a path that begins with `crate`, `super`, `self` or a child module, in a `use` or in the code. A
//! re-export (`pub use`) is not an import of the module that has it: what it names counts as an import of its home.

use super::{Faults, Tree};
use crate::source::{code, files};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::read_to_string;
use std::path::Path;

type Modules = BTreeMap<String, String>;

/// The module of each source file, with its code.
fn modules(src: &Path) -> Modules {
    let module = |path: &Path| {
        let path = path.strip_prefix(src).expect("it is below").with_extension("");
        let mut parts: Vec<&str> = path.iter().map(|part| part.to_str().expect("a plain name")).collect();
        if matches!(parts.last(), Some(&("mod" | "lib" | "main"))) {
            parts.pop();
        }
        std::iter::once("crate").chain(parts).collect::<Vec<_>>().join("::")
    };
    files(src, &[]).iter().map(|path| (module(path), code(&read_to_string(path).unwrap()))).collect()
}

/// The paths of a `use` tree, `a::{b, c::d}` as `a::b` and `a::c::d`. Stops at the first character that belongs to no
/// tree.
fn tree(prefix: &str, text: &mut &str, paths: &mut Vec<String>) {
    let mut path = prefix.to_owned();
    loop {
        *text = text.trim_start();
        if let Some(inside) = text.strip_prefix('{') {
            *text = inside;
            loop {
                tree(&path, text, paths);
                *text = text.trim_start();
                match text.strip_prefix(',') {
                    Some(rest) => *text = rest,
                    None => break *text = text.strip_prefix('}').unwrap_or(text),
                }
            }
            return;
        }
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
        if end == 0 {
            break;
        }
        path = if path.is_empty() { text[..end].to_owned() } else { format!("{path}::{}", &text[..end]) };
        *text = &text[end..];
        match text.strip_prefix("::") {
            Some(rest) => *text = rest,
            None => break,
        }
    }
    if path != prefix {
        paths.push(path);
    }
}

/// The paths that code names, each absolute. `exports`: those of its `pub use` only, otherwise those of everything
/// else.
fn paths(module: &str, code: &str, modules: &Modules, exports: bool) -> Vec<String> {
    let mut found = Vec::new();
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let mut last = 0;
    for (at, _) in code.match_indices(is_word).filter(|(at, _)| !code[..*at].ends_with(is_word)) {
        let rest = &code[at..];
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        let before = code[..at].trim_end();
        let begins = !before.ends_with("::") && !before.ends_with('{') && !before.ends_with(',');
        let used = before.ends_with("use");
        let starts = matches!(&rest[..end], "crate" | "super" | "self") && rest[end..].starts_with("::");
        let child =
            modules.contains_key(&format!("{module}::{}", &rest[..end])) && rest[end..].starts_with("::");
        if at < last || !(used || starts || child && begins) {
            continue;
        }
        let is_export = used && {
            let line = before[..before.len() - 3].trim_end().rsplit('\n').next().unwrap_or_default();
            line.ends_with("pub") || line.trim_start().starts_with("pub(") && line.ends_with(')')
        };
        let (mut text, mut inner) = (rest, Vec::new());
        tree("", &mut text, &mut inner);
        last = code.len() - text.len();
        if is_export == exports {
            found.extend(inner.iter().filter_map(|path| absolute(module, path, modules)));
        }
    }
    found
}

/// The path from the crate's root, if it is one of this crate.
fn absolute(module: &str, path: &str, modules: &Modules) -> Option<String> {
    let (mut at, mut parts) = (module.to_owned(), path.split("::").peekable());
    match parts.peek()? {
        &"crate" => "crate".clone_into(&mut at),
        &"self" => {}
        &"super" => {
            while parts.next_if_eq(&"super").is_some() {
                at.truncate(at.rfind("::")?);
            }
            return Some([at].into_iter().chain(parts.map(str::to_owned)).collect::<Vec<_>>().join("::"));
        }
        child if modules.contains_key(&format!("{at}::{child}")) => return Some(format!("{at}::{path}")),
        _ => return None,
    }
    parts.next();
    Some([at].into_iter().chain(parts.map(str::to_owned)).collect::<Vec<_>>().join("::"))
}

/// The module where a path's name is at home.
fn home(path: &str, modules: &Modules, exports: &BTreeMap<String, String>) -> Option<String> {
    let mut path = path.to_owned();
    while let Some(real) = exports.get(&path).filter(|real| **real != path) {
        path.clone_from(real);
    }
    let ends = path.match_indices("::").map(|(at, _)| at).chain([path.len()]).collect::<Vec<_>>();
    let found = ends.iter().rev().map(|end| &path[..*end]).find(|prefix| modules.contains_key(*prefix))?;
    let next = path[found.len()..].trim_start_matches("::").split("::").next().unwrap_or_default();
    let named = format!("{found}::{next}");
    match exports.get(&named).filter(|real| **real != named) {
        Some(real) if path != named => home(real, modules, exports),
        _ => Some(found.to_owned()),
    }
}

/// The sets of modules that reach each other.
fn found_in(modules: &Modules) -> BTreeSet<BTreeSet<String>> {
    let of = |exported: bool| {
        modules.iter().flat_map(move |(module, code)| {
            paths(module, code, modules, exported).into_iter().map(move |path| (module.clone(), path))
        })
    };
    let mut exports: BTreeMap<String, String> = BTreeMap::new();
    for (module, path) in of(true) {
        let name = path.rsplit("::").next().unwrap_or_default();
        exports.insert(format!("{module}::{name}"), path.clone());
    }
    let mut reach: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, path) in of(false) {
        if let Some(to) = home(&path, modules, &exports).filter(|to| *to != module) {
            reach.entry(module).or_default().insert(to);
        }
    }
    loop {
        let mut grown = reach.clone();
        for (from, to) in &reach {
            let further = to.iter().filter_map(|module| reach.get(module)).flatten().cloned();
            grown.get_mut(from).expect("it has edges").extend(further);
        }
        if grown == reach {
            break;
        }
        reach = grown;
    }
    let back = |from: &str, to: &str| reach.get(to).is_some_and(|all| all.contains(from));
    let with =
        |from: &String| reach[from].iter().filter(|to| back(from, to)).cloned().collect::<BTreeSet<_>>();
    reach.keys().map(with).filter(|circle| !circle.is_empty()).collect()
}

pub fn circles(tree: &Tree, faults: &mut Faults) {
    for package in &tree.packages {
        let src = package.manifest.with_file_name("src");
        let name = |module: &String| module.replacen("crate", package.name.trim_start_matches("ebb-"), 1);
        let circles = found_in(&modules(&src));
        let names = circles.iter().map(|circle| circle.iter().map(name).collect::<Vec<_>>().join(" "));
        faults.extend(names.map(|names| format!("these files import each other: {names}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_seen_through_braces_re_exports_and_children() {
        let given = |files: &[(&str, &str)]| {
            found_in(&files.iter().map(|(m, c)| ((*m).to_owned(), (*c).to_owned())).collect())
        };
        let circle = |of: &[&str]| BTreeSet::from([of.iter().map(|m| (*m).to_owned()).collect()]);
        let (a, b) = ("crate::a", "crate::b");
        let root = ("crate", "mod a;\nmod b;\npub use a::Thing;");
        assert_eq!(given(&[root, (a, "use crate::b::Other;"), (b, "")]), BTreeSet::new());
        assert_eq!(
            given(&[root, (a, "use crate::{c, b::{Other, X}};"), (b, "fn f() -> crate::a::T {}")]),
            circle(&[a, b])
        );
        assert_eq!(given(&[root, (a, "use super::b::Other;"), (b, "use crate::Thing;")]), circle(&[a, b]));
        assert_eq!(
            given(&[root, (a, "use c::X;"), ("crate::a::c", "use super::Y;")]),
            circle(&[a, "crate::a::c"])
        );
        assert_eq!(given(&[root, (a, "pub use c::X;"), ("crate::a::c", "use super::Y;")]), BTreeSet::new());
        let used = ("crate", "pub(crate) mod a;\n\nuse a::Thing;");
        assert_eq!(given(&[used, (a, "use crate::Y;")]), circle(&["crate", a]));
        let shown = ("crate", "mod a;\npub(crate) use a::Thing;");
        assert_eq!(given(&[shown, (a, "use crate::Y;")]), BTreeSet::new());
    }
}
