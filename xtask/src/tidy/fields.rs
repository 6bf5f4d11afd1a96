//! Who may write a field is who must know what it means: a struct shows at most a dozen of them to others, and keeps
//! the rest behind methods.
//!
//! What is serialised may show more: a message, a report or a file of configuration is its fields. All else that shows
//! more is listed here with the reason.

use super::{Faults, Tree};
use crate::source;

const MOST_SHOWN: usize = 12;

/// File and type.
const MAY_SHOW_MORE: &[(&str, &str)] = &[
    // Configuration: those who set it up write it once, those who carry it out read it.
    ("crates/cluster/chunkserver/src/common/config.rs", "Config"),
    ("crates/cluster/meta/src/api.rs", "Timing"),
    ("crates/cluster/store/src/api.rs", "Config"),
    ("crates/lab/trace/src/daily.rs", "Daily"),
    ("crates/sim/sim/src/above/scenario.rs", "Scenario"),
    ("crates/sim/sim/src/coded/setup.rs", "Setup"),
    ("crates/sim/sim/src/request/setup.rs", "Setup"),
    ("crates/sim/sim/src/search/scenario.rs", "Plan"),
    ("crates/sim/sim/src/world/settings.rs", "Settings"),
    // Layouts on disk, with an encoding of their own.
    ("crates/cluster/store/src/layout.rs", "Head"),
    ("crates/mirror/mirror/src/superblock.rs", "Superblock"),
];

pub fn fields(tree: &Tree, faults: &mut Faults) {
    let mut unused = MAY_SHOW_MORE.to_vec();
    for file in tree.sources() {
        let (name, code) = (tree.name(&file), source::code(&tree.text(&file)));
        for (of, shown) in shown_in(&code).into_iter().filter(|(_, shown)| *shown > MOST_SHOWN) {
            match unused.iter().position(|listed| *listed == (name.as_str(), of.as_str())) {
                Some(at) => _ = unused.remove(at),
                None => faults.push(format!(
                    "{name}: {of} shows {shown} fields, {MOST_SHOWN} at most: give those that belong together an owner with methods"
                )),
            }
        }
    }
    let shows_few = |(file, of): (&str, &str)| {
        format!("{file}: {of} shows {MOST_SHOWN} fields or fewer: take it off the list in fields.rs")
    };
    faults.extend(unused.into_iter().map(shows_few));
}

/// The structs of formatted code that are not serialised, with the number of fields that others can reach. A body ends
/// with the brace below its beginning.
fn shown_in(code: &str) -> Vec<(String, usize)> {
    let lines: Vec<&str> = code.lines().collect();
    let mut found = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let begin = line.trim_start();
        let is_item = begin.starts_with("struct ") || begin.starts_with("pub");
        let Some((_, name)) = begin.split_once("struct ").filter(|_| is_item) else { continue };
        let name = name.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
        let header = lines[first..].iter().position(|line| line.ends_with(['{', ';', '}']));
        let has_body = header.is_some_and(|n| lines[first + n].ends_with('{'));
        let mut attributes = lines[..first].iter().rev().take_while(|line| !line.ends_with(['{', ';', '}']));
        if !has_body || attributes.any(|line| line.contains("erialize")) {
            continue;
        }
        let indent = &line[..line.len() - begin.len()];
        let (last, field) = (format!("{indent}}}"), format!("{indent}    pub"));
        let body = lines[first..].iter().take_while(|line| **line != last);
        let shown =
            body.filter(|line| line.strip_prefix(&field).is_some_and(|rest| rest.starts_with([' ', '('])));
        found.push((name.to_owned(), shown.count()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_that_others_can_reach() {
        let text = "pub struct A<T> {\n    pub a: T,\n    pub(crate) b: u8,\n    pub(super) c: Vec<u8>,\n    public: u8,\n}\n\n\
            struct B\nwhere\n    T: C,\n{\n    pub a: T,\n}\n\npub struct D(pub u8);\nmod m {\n    struct E {\n        pub a: u8,\n    }\n}\n";
        let found = |name: &str, shown| (name.to_owned(), shown);
        assert_eq!(shown_in(text), [found("A", 3), found("B", 1), found("E", 1)]);
    }

    #[test]
    fn what_is_serialised_may_show_what_it_has() {
        let text = "struct A {\n    pub a: u8,\n}\n#[derive(Clone, Serialize)]\n#[serde(default)]\npub struct B {\n    pub b: u8,\n}\n\
            #[derive(Clone)]\npub struct C {\n    pub c: u8,\n}\n";
        assert_eq!(shown_in(text), [("A".to_owned(), 1), ("C".to_owned(), 1)]);
    }
}
