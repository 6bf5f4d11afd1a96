//! `--seeds A..B`: the same simulation with several seeds. One seed is one draw; its figures mean something with their
//! range beside them.
//!
//! The figures are all numbers of a report's JSON, so that one helper serves every simulator. A list's elements are
//! matched by what they call themselves, because a row may be missing with some seeds. Series over time are left out:
//! their points are not figures.

use crate::cli::provenance::{Seeds, pointer_to};
use ebb_cost::model::student;
use ebb_output::table;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// Keys of what is no figure: series over time, and the seed itself.
const NO_FIGURES: [&str; 8] =
    ["samples", "charts", "points", "shifts", "migrations", "reclaims", "hours", "seed"];
/// Keys by which an element of a list says what it is.
const NAMES: [&str; 7] = ["name", "what", "operation", "traffic", "depth", "gear", "phase"];

/// From the first number up to but not including the second.
pub fn parse_seeds(text: &str) -> Result<(u64, u64), String> {
    let whole = || format!("invalid range of seeds '{text}': write it as 1..1001, the end not included");
    let (from, to) = text.split_once("..").ok_or_else(whole)?;
    let (from, to) = (from.parse().map_err(|_| whole())?, to.parse().map_err(|_| whole())?);
    if from < to { Ok((from, to)) } else { Err(format!("the range {text} has no seed")) }
}

/// One number of the report, with every seed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    pub what: String,
    /// Where it is in the report of the first seed that has it.
    pub pointer: String,
    pub mean: f64,
    pub least: f64,
    pub most: f64,
    /// The mean over all seeds lies between these with a probability of 95 % (Student). Absent: only one seed has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_low: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_high: Option<f64>,
    /// By seed; `null`: that seed has none.
    pub values: Vec<Option<f64>>,
}

/// The figures of several seeds.
#[derive(Debug, Serialize)]
pub struct Spread {
    pub seeds: Seeds,
    pub figures: Vec<Figure>,
}

impl Figure {
    fn new(what: String, pointer: String, values: Vec<Option<f64>>) -> Figure {
        let there: Vec<f64> = values.iter().flatten().copied().collect();
        let count = there.len() as f64;
        let mean = there.iter().sum::<f64>() / count;
        let squares: f64 = there.iter().map(|value| (value - mean).powi(2)).sum();
        let half = student(there.len() - 1).map(|t| t * (squares / (count - 1.0) / count).sqrt());
        Figure {
            what,
            pointer,
            mean,
            least: there.iter().copied().fold(f64::INFINITY, f64::min),
            most: there.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            mean_low: half.map(|half| mean - half),
            mean_high: half.map(|half| mean + half),
            values,
        }
    }

    fn varies(&self) -> bool {
        self.least < self.most || self.values.contains(&None)
    }

    fn cells(&self) -> Vec<String> {
        let interval = match (self.mean_low, self.mean_high) {
            (Some(low), Some(high)) => format!("{} to {}", short(low), short(high)),
            _ => "–".to_owned(),
        };
        let there = self.values.iter().flatten().count().to_string();
        vec![self.what.clone(), there, short(self.mean), short(self.least), short(self.most), interval]
    }
}

impl Spread {
    /// `reports`: of each seed from the first one on.
    pub fn new(first: u64, reports: &[Value]) -> Spread {
        let mut places: BTreeMap<String, usize> = BTreeMap::new();
        let mut found: Vec<(String, String, Vec<Option<f64>>)> = Vec::new();
        for (n, report) in reports.iter().enumerate() {
            walk(report, "", "", &mut |what, pointer, value| {
                let place = *places.entry(what.to_owned()).or_insert_with(|| {
                    found.push((what.to_owned(), pointer.to_owned(), vec![None; reports.len()]));
                    found.len() - 1
                });
                found[place].2[n] = Some(value);
            });
        }
        let last = first + (reports.len() as u64).saturating_sub(1);
        let figures = found.into_iter().map(|(what, pointer, values)| Figure::new(what, pointer, values));
        Spread { seeds: Seeds { first, last }, figures: figures.collect() }
    }
}

fn walk(value: &Value, what: &str, pointer: &str, tell: &mut dyn FnMut(&str, &str, f64)) {
    let below = |name: &str| if what.is_empty() { name.to_owned() } else { format!("{what}: {name}") };
    match value {
        Value::Number(number) => {
            if let Some(number) = number.as_f64() {
                tell(what, pointer, number);
            }
        }
        Value::Object(members) => {
            for (key, value) in members.iter().filter(|(key, _)| !NO_FIGURES.contains(&key.as_str())) {
                walk(value, &below(key), &pointer_to(pointer, key), tell);
            }
        }
        Value::Array(elements) => {
            let mut seen: BTreeMap<String, u32> = BTreeMap::new();
            for (n, element) in elements.iter().enumerate() {
                let name = name(element).unwrap_or_else(|| n.to_string());
                let times = seen.entry(name.clone()).or_default();
                *times += 1;
                let name = if *times == 1 { name } else { format!("{name} ({times})") };
                walk(element, &below(&name), &format!("{pointer}/{n}"), tell);
            }
        }
        _ => {}
    }
}

/// What an element of a list calls itself.
fn name(element: &Value) -> Option<String> {
    let word = |key: &&str| match element.get(*key)? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let words: Vec<String> = NAMES.iter().filter_map(word).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// Four digits.
fn short(value: f64) -> String {
    match value.abs() {
        1e-3..1e6 => {
            let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 6) as usize;
            format!("{value:.digits$}")
        }
        0.0 => "0".to_owned(),
        _ => format!("{value:.3e}"),
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seeds { first, last } = self.seeds;
        let rows: Vec<Vec<String>> =
            self.figures.iter().filter(|figure| figure.varies()).map(Figure::cells).collect();
        let mut out = format!("Seeds {first} to {last}\n\n");
        table(&mut out, &["", "seeds", "mean", "least", "most", "mean, with 95 %"], &rows);
        let same = self.figures.len() - rows.len();
        write!(f, "{out}\n{same} figures are the same with every seed; --json has them\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn seeds_are_a_range() {
        assert_eq!(parse_seeds("3..5"), Ok((3, 5)));
        assert!(parse_seeds("5..5").is_err() && parse_seeds("5").is_err() && parse_seeds("a..b").is_err());
    }

    fn figure<'a>(spread: &'a Spread, what: &str) -> &'a Figure {
        let found = spread.figures.iter().find(|figure| figure.what == what);
        found.unwrap_or_else(|| panic!("no {what:?} in {spread:?}"))
    }

    #[test]
    fn a_figure_has_its_mean_its_range_and_the_interval_of_the_mean() {
        let report = |watts: f64| json!({ "energy": { "watts": watts }, "setup": { "disks": 2 } });
        let spread = Spread::new(4, &[report(1.0), report(2.0), report(3.0)]);
        assert_eq!(spread.seeds, Seeds { first: 4, last: 6 });
        let watts = figure(&spread, "energy: watts");
        assert_eq!((watts.mean, watts.least, watts.most), (2.0, 1.0, 3.0));
        assert_eq!(watts.pointer, "/energy/watts");
        // The deviation is 1, so that the mean's is 1/√3; Student's quantile of two degrees of freedom is 4.303.
        let half = 4.303 / 3f64.sqrt();
        assert!((watts.mean_low.unwrap() - (2.0 - half)).abs() < 1e-9);
        assert!((watts.mean_high.unwrap() - (2.0 + half)).abs() < 1e-9);
        let text = spread.to_string();
        assert!(text.contains("energy: watts") && !text.contains("setup: disks"), "{text}");
        assert!(text.ends_with("1 figures are the same with every seed; --json has them\n"), "{text}");
        let one = Spread::new(1, &[report(1.0)]);
        assert_eq!(figure(&one, "energy: watts").mean_low, None, "one draw has no interval");
    }

    #[test]
    fn rows_are_matched_by_their_names_and_series_are_left_out() {
        let row = |what: &str, here: f64| json!({ "what": what, "here": here });
        let with = json!({ "rows": [row("waits", 5.0), row("mean", 7.0)], "samples": [1] });
        let without = json!({ "rows": [row("mean", 9.0), row("mean", 1.0)], "samples": [] });
        let spread = Spread::new(1, &[with, without]);
        assert_eq!(figure(&spread, "rows: mean: here").values, [Some(7.0), Some(9.0)]);
        assert_eq!(figure(&spread, "rows: waits: here").values, [Some(5.0), None]);
        assert_eq!(figure(&spread, "rows: mean (2): here").values, [None, Some(1.0)]);
        assert_eq!(spread.figures.len(), 3, "{spread:?}");
    }

    #[test]
    fn numbers_are_shown_with_four_digits() {
        let shown = [0.0, 0.01234, 1.5, -60.25, 1234.2, 2.5e9, 1e-5].map(short);
        assert_eq!(shown, ["0", "0.01234", "1.500", "-60.25", "1234", "2.500e9", "1.000e-5"]);
    }
}
