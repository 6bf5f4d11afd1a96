//! Changes single values of the configuration file, line by line, so that its comments and its order stay.
//!
//! A parser that writes TOML would drop every comment, and the file is the operator's. The result is read and checked
//! like any configuration before it replaces the file.

use crate::cluster::config::{Config, ConfigError};
use crate::error::{NodeError, io};
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// A line that changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineChange {
    /// `None`: the key was not there.
    pub before: Option<String>,
    pub after: String,
}

impl fmt::Display for LineChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.before {
            Some(before) => write!(f, "{before}  ->  {}", self.after),
            None => write!(f, "added  {}", self.after),
        }
    }
}

/// Sets numbers of `[section]` in the file at `path`, which is replaced atomically. Returns what changes.
pub fn set_numbers(
    path: &Path,
    section: &str,
    numbers: &[(&str, f64)],
) -> Result<Vec<LineChange>, NodeError> {
    let text = std::fs::read_to_string(path).map_err(io("read", path))?;
    let (mut lines, mut changes) = (text.lines().map(str::to_owned).collect::<Vec<_>>(), Vec::new());
    numbers.iter().for_each(|(key, value)| changes.extend(set(&mut lines, section, key, *value)));
    if changes.is_empty() {
        return Ok(changes);
    }
    let text = lines.join("\n") + "\n";
    let parsed: Result<Config, _> = toml::from_str(&text);
    let parsed =
        parsed.map_err(|source| ConfigError::Parse { path: path.to_owned(), source: Box::new(source) })?;
    parsed.check()?;
    let rights = std::fs::metadata(path).map_err(io("read", path))?.permissions();
    ebb_files::replace_file(path, text.as_bytes(), rights.mode()).map_err(io("replace", path))?;
    Ok(changes)
}

/// The key of a line `key = value`, and where the value ends before white space and a comment.
fn assignment(line: &str) -> Option<(&str, usize)> {
    let (key, _) = line.split_once('=')?;
    let end = line.find('#').unwrap_or(line.len());
    Some((key.trim(), line[..end].trim_end().len()))
}

fn set(lines: &mut Vec<String>, section: &str, key: &str, value: f64) -> Option<LineChange> {
    let header = format!("[{section}]");
    let is_header = |line: &String| line.trim_start().starts_with('[');
    let start = lines.iter().position(|line| bare(line) == header).unwrap_or_else(|| {
        lines.extend([String::new(), header.clone()]);
        lines.len() - 1
    });
    let end = lines[start + 1..].iter().position(is_header).map_or(lines.len(), |n| start + 1 + n);
    let after = format!("{key} = {value:?}");
    for line in &mut lines[start + 1..end] {
        let Some((_, value_end)) = assignment(line).filter(|(found, _)| *found == key) else { continue };
        let before = line[..value_end].trim_start().to_owned();
        if before == after {
            return None;
        }
        *line = format!("{after}{}", &line[value_end..]);
        return Some(LineChange { before: Some(before), after });
    }
    // Behind the section's last setting, before the comments of the next one.
    let is_setting = |line: &str| assignment(line).is_some_and(|(key, _)| !key.starts_with('#'));
    let last = (start + 1..end).rev().find(|n| is_setting(&lines[*n]));
    lines.insert(last.unwrap_or(start) + 1, after.clone());
    Some(LineChange { before: None, after })
}

/// The line without white space around it and without a comment.
fn bare(line: &str) -> &str {
    line.split('#').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> String {
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/cluster.toml")).unwrap()
    }

    fn edited(text: &str) -> (String, Vec<String>) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.toml");
        std::fs::write(&path, text).unwrap();
        let numbers = [("read_iops", 137.0), ("write_iops", 200.0), ("read_mb_per_second", 82.5)];
        let done = set_numbers(&path, "scheduler", &numbers).unwrap();
        let names: Vec<_> =
            std::fs::read_dir(directory.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["cluster.toml"], "nothing else is left");
        (std::fs::read_to_string(&path).unwrap(), done.iter().map(LineChange::to_string).collect())
    }

    #[test]
    fn only_the_values_change() {
        let text = example().replace("read_iops = 200.0", "  read_iops=200.0   # of the old disks");
        let (after, changes) = edited(&text);
        let expected = text
            .replace("  read_iops=200.0   # of", "read_iops = 137.0   # of")
            .replace("read_mb_per_second = 100.0", "read_mb_per_second = 82.5");
        assert_eq!(after, expected, "comments, order and all other keys stay");
        assert_eq!(
            changes,
            [
                "read_iops=200.0  ->  read_iops = 137.0",
                "read_mb_per_second = 100.0  ->  read_mb_per_second = 82.5"
            ]
        );
    }

    #[test]
    fn missing_keys_and_a_missing_section_are_added() {
        let without: String =
            example().lines().filter(|l| !l.starts_with("read_")).map(|l| format!("{l}\n")).collect();
        let (after, changes) = edited(&without);
        assert_eq!(changes, ["added  read_iops = 137.0", "added  read_mb_per_second = 82.5"]);
        assert!(
            after.contains("rotate_days = 7\nread_iops = 137.0\nread_mb_per_second = 82.5\n\n[scrub]"),
            "{after}"
        );

        let (front, rest) =
            example().split_once("[scheduler]").map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
        let (_, back) = rest.split_once("[scrub]").unwrap();
        let (after, changes) = edited(&format!("{front}[scrub]{back}"));
        assert_eq!(changes.len(), 3);
        assert!(after.ends_with(
            "\n\n[scheduler]\nread_iops = 137.0\nwrite_iops = 200.0\nread_mb_per_second = 82.5\n"
        ));
    }

    #[test]
    fn a_value_that_the_configuration_refuses_changes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cluster.toml");
        std::fs::write(&path, example()).unwrap();
        let error = set_numbers(&path, "scheduler", &[("read_iops", 0.0)]).unwrap_err().to_string();
        assert!(error.contains("scheduler.read_iops is 0"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), example());
    }
}
