//! Which of the finished runs somebody asks for: by campaign, target, mode vector, load and time.

use super::record::Record;
use ebb_types::parse_bytes;
use std::str::FromStr;

/// Conditions on runs; an absent one holds for all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    pub campaign: Option<String>,
    pub target: Option<String>,
    /// Part of the workload's name.
    pub workload: Option<String>,
    /// Mean bytes of a request.
    pub size: Option<Range>,
    /// Percent.
    pub random: Option<Range>,
    pub reads: Option<Range>,
    /// The configured load.
    pub load: Option<Range>,
    /// Started at or after.
    pub from_unix_millis: Option<i64>,
    /// Started before.
    pub to_unix_millis: Option<i64>,
}

impl Selection {
    /// A run whose mode vector is not known fits no condition on it.
    pub fn wants(&self, run: &Record) -> bool {
        let is = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
        let within = |range: Option<Range>, value: Option<f64>| {
            range.is_none_or(|range| value.is_some_and(|value| range.has(value)))
        };
        is(&self.campaign, &run.campaign)
            && is(&self.target, &run.target)
            && self.workload.as_ref().is_none_or(|part| run.workload.contains(part))
            && within(self.size, run.request_bytes)
            && within(self.random, run.random_percent)
            && within(self.reads, run.read_percent)
            && within(self.load, Some(run.load_percent))
            && self.from_unix_millis.is_none_or(|from| run.started_unix_millis >= from)
            && self.to_unix_millis.is_none_or(|to| run.started_unix_millis < to)
    }
}

/// `4KiB`, `50`, `45..55`, `>=90%` or `<=10`; ends included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    least: f64,
    most: f64,
}

impl Range {
    fn has(self, value: f64) -> bool {
        (self.least..=self.most).contains(&value)
    }
}

impl FromStr for Range {
    type Err = String;
    fn from_str(text: &str) -> Result<Range, String> {
        let wrong =
            || format!("{text:?} is not a condition: write 50, 45..55, >=90, <=10 or, of sizes, 4KiB");
        let number = |text: &str| {
            let plain = text.trim().trim_end_matches('%').trim_end().parse::<f64>().ok();
            let bytes = || parse_bytes(text.trim()).ok().map(|bytes| bytes.0 as f64);
            plain.filter(|number| number.is_finite()).or_else(bytes).ok_or_else(wrong)
        };
        let text = text.trim();
        if let Some((least, most)) = text.split_once("..") {
            return Ok(Range { least: number(least)?, most: number(most)? });
        }
        if let Some(least) = text.strip_prefix(">=") {
            return Ok(Range { least: number(least)?, most: f64::INFINITY });
        }
        if let Some(most) = text.strip_prefix("<=") {
            return Ok(Range { least: f64::NEG_INFINITY, most: number(most)? });
        }
        number(text).map(|value| Range { least: value, most: value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_is_a_value_or_a_range_of_them() {
        let has = |text: &str, value: f64| text.parse::<Range>().unwrap().has(value);
        assert!(has("4KiB", 4096.0) && !has("4KiB", 4097.0) && has("4096", 4096.0) && has(" 50 % ", 50.0));
        assert!(has("45..55", 45.0) && has("45%..55%", 55.0) && !has("45..55", 55.1));
        assert!(has("512..64KiB", 65536.0) && has(">=90", 100.0) && !has(">=90", 89.9) && has("<=10", 0.0));
        for wrong in ["", "x", "..", "1..", ">90", "nan", "inf", ">=", "4 KiB..x"] {
            let error = wrong.parse::<Range>().unwrap_err();
            assert!(error.contains("45..55"), "{error}");
        }
    }

    #[test]
    fn runs_are_chosen_by_what_they_are_and_an_unknown_mode_fits_no_condition_on_it() {
        let run = Record {
            campaign: "c".into(),
            target: "t".into(),
            workload: "4KiB-random50-read0".into(),
            load_percent: 20.0,
            request_bytes: Some(4096.0),
            started_unix_millis: 1000,
            ..Record::default()
        };
        let range = |text: &str| text.parse().ok();
        assert!(Selection::default().wants(&run));
        let fitting = Selection {
            campaign: Some("c".into()),
            workload: Some("random50".into()),
            size: range("4KiB"),
            load: range("10..20"),
            from_unix_millis: Some(1000),
            to_unix_millis: Some(1001),
            ..Selection::default()
        };
        assert!(fitting.wants(&run));
        let none = Selection::default();
        for other in [
            Selection { campaign: Some("d".into()), ..none.clone() },
            Selection { target: Some("u".into()), ..none.clone() },
            Selection { workload: Some("read100".into()), ..none.clone() },
            Selection { size: range("512"), ..none.clone() },
            Selection { random: range("50"), ..none.clone() },
            Selection { load: range(">=30"), ..none.clone() },
            Selection { from_unix_millis: Some(1001), ..none.clone() },
            Selection { to_unix_millis: Some(1000), ..none.clone() },
        ] {
            assert!(!other.wants(&run), "{other:?}");
        }
    }
}
