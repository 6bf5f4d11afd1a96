//! How far a run's watts can be trusted, in the four aspects of the EE HPC Working Group's power measurement
//! methodology: the span of time, the fraction of the machine that was instrumented, the subsystems included, and where
//! in the power distribution and how exactly it was measured. Each has the levels 1 to 3, and a run has the lowest of
//! its four.
//!
//! That much is from the methodology's summary. Its thresholds could not be read and are from memory ([`UNREAD`]). What
//! is not known counts as level 0, and so do watts that were not measured: a modelled or partial watt never passes for
//! a measured one.

use ebb_meter::Source;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What of the levels is not from the methodology's own text.
pub const UNREAD: &str = "the thresholds of the levels of evidence (EE HPC WG)";

/// What the operator says of a target's meters; what is left out is not known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Instrumented {
    /// The fraction of the target that the meters see, above 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fraction: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subsystems: Option<Subsystems>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<MeterPlace>,
    /// Of the meters' readings, by their maker or a calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accuracy_percent: Option<f64>,
    /// The meters count energy, so that nothing between two readings is missed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub integrates: bool,
}

impl Instrumented {
    /// Why it cannot be.
    pub(super) fn problem(&self) -> Option<&'static str> {
        if self.fraction.is_some_and(|fraction| !(fraction > 0.0 && fraction <= 1.0)) {
            return Some("fraction is not above 0 and at most 1");
        }
        let impossible = |percent: f64| !(percent.is_finite() && percent >= 0.0);
        self.accuracy_percent.is_some_and(impossible).then_some("accuracy_percent is not a number from 0 on")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subsystems {
    /// Of what takes part only the storage itself: no network, no cooling.
    Storage,
    /// All, some of them estimated.
    AllSomeEstimated,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MeterPlace {
    /// Behind the power supplies: their losses are missing.
    Inside,
    /// Before the power supplies.
    Wall,
}

/// The level in each aspect, 0 to 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Evidence {
    pub span: u8,
    pub fraction: u8,
    pub subsystems: u8,
    pub place: u8,
    #[serde(skip)]
    source: Option<Source>,
}

impl Evidence {
    /// Of watts from this source, whose samples cover the share `coverage` of the run, 0 to 1.
    pub(super) fn of(source: Source, coverage: Option<f64>, known: &Instrumented) -> Evidence {
        if source != Source::Measured {
            return Evidence { source: Some(source), ..Evidence::default() };
        }
        let levels = |value: Option<f64>, bounds: [f64; 3]| {
            value.map_or(0, |value| bounds.iter().filter(|bound| value >= **bound).count() as u8)
        };
        let exact = levels(known.accuracy_percent.map(|percent| -percent), [-5.0, -2.0, -1.0]);
        let most = if known.integrates { 3 } else { 2 };
        Evidence {
            span: levels(coverage, [0.2, 0.9, 0.99]).min(most),
            fraction: levels(known.fraction, [1.0 / 64.0, 1.0 / 8.0, 1.0]),
            subsystems: match known.subsystems {
                None => 0,
                Some(Subsystems::Storage) => 1,
                Some(Subsystems::AllSomeEstimated) => 2,
                Some(Subsystems::All) => 3,
            },
            place: match known.place {
                None => 0,
                Some(MeterPlace::Inside) => exact.min(1),
                Some(MeterPlace::Wall) => exact,
            },
            source: Some(source),
        }
    }

    /// The run's level: the lowest of the four.
    pub fn level(&self) -> u8 {
        self.span.min(self.fraction).min(self.subsystems).min(self.place)
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evidence { span, fraction, subsystems, place, source } = self;
        match source {
            Some(source) if *source != Source::Measured => write!(f, "level 0: {} watts", source.name()),
            _ => write!(
                f,
                "level {}: span {span}, fraction {fraction}, subsystems {subsystems}, place {place}",
                self.level()
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_or_not_measured_is_level_0() {
        let label =
            |source, coverage, known: &Instrumented| Evidence::of(source, coverage, known).to_string();
        let best = Instrumented {
            fraction: Some(1.0),
            subsystems: Some(Subsystems::All),
            place: Some(MeterPlace::Wall),
            accuracy_percent: Some(0.5),
            integrates: true,
        };
        let cases = [
            (best, "level 3: span 3, fraction 3, subsystems 3, place 3"),
            (
                Instrumented { integrates: false, ..best },
                "level 2: span 2, fraction 3, subsystems 3, place 3",
            ),
            (
                Instrumented { fraction: Some(0.1), ..best },
                "level 1: span 3, fraction 1, subsystems 3, place 3",
            ),
            (
                Instrumented { place: Some(MeterPlace::Inside), ..best },
                "level 1: span 3, fraction 3, subsystems 3, place 1",
            ),
            (
                Instrumented { accuracy_percent: None, ..best },
                "level 0: span 3, fraction 3, subsystems 3, place 0",
            ),
            (Instrumented::default(), "level 0: span 2, fraction 0, subsystems 0, place 0"),
        ];
        for (known, expected) in cases {
            assert_eq!(label(Source::Measured, Some(1.0), &known), expected);
        }
        assert_eq!(label(Source::Modelled, Some(1.0), &best), "level 0: modelled watts");
        assert_eq!(label(Source::Stated, Some(1.0), &best), "level 0: stated watts");
        assert_eq!(Evidence::of(Source::Measured, Some(0.5), &best).level(), 1);
        assert_eq!(Evidence::of(Source::Measured, None, &best).level(), 0);
    }
}
