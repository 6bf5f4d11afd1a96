//! Recognised procedures: what is run, in which order and for how long, is theirs; it is carried out by the same engine
//! as any matrix.
//!
//! **Emerald**: the phases of SNIA's power efficiency measurement specification (ISO/IEC 24091) for online block
//! storage: fill, condition, then hot band, random and sequential reads and writes in closed loop, then ready idle;
//! each figure is a phase's work by its mean watts in a stable interval. **Graduated**: SPECpower's load from 100 % in
//! tenths to idle, for any workload or trace.
//!
//! Neither standard's full text could be read when this was written: what is from memory is listed with every report
//! ([`Followed::unread`]), and no run calls itself conformant.

use super::evidence;
use super::workload::Workload;
use ebb_trace::HotBand;
use serde::{Deserialize, Serialize};
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Procedure {
    Emerald,
    Graduated,
}

/// A procedure, and by how much its times are shortened.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Followed {
    pub procedure: Procedure,
    /// Of all times, above 0 to 1. Below 1 it is a rehearsal.
    pub scale: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Activity {
    /// In closed loop: as much as the target answers.
    Load(Workload),
    /// Ready to answer, without requests.
    Idle,
}

/// What is divided by watts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    /// Not measured for its own sake.
    None,
    IopsPerWatt,
    MibPerSecondPerWatt,
    GigabytesPerWatt,
}

impl Figure {
    pub fn unit(self) -> &'static str {
        match self {
            Figure::None => "",
            Figure::IopsPerWatt => "IOPS/W",
            Figure::MibPerSecondPerWatt => "MiB/s/W",
            Figure::GigabytesPerWatt => "GB/W",
        }
    }
}

/// One phase of a procedure.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    pub name: &'static str,
    pub activity: Activity,
    /// The same activity before it, which does not count.
    pub warm_up: Duration,
    /// The longest time for a fill, which ends when everything is written.
    pub length: Duration,
    pub figure: Figure,
}

/// The settings that a procedure prescribes.
pub(super) struct Times {
    pub run_seconds: f64,
    pub settle_seconds: f64,
    pub idle_seconds: Option<f64>,
    pub interval_seconds: u32,
}

const MINUTE: f64 = 60.0;
const HOUR: f64 = 3600.0;
/// Emerald's times, from memory.
const CONDITIONING: f64 = 12.0 * HOUR;
const WARM_UP: f64 = 10.0 * MINUTE;
const MEASURED: f64 = 30.0 * MINUTE;
const READY_IDLE: f64 = 2.0 * HOUR;
/// Ends with what is to be written; this is the longest wait for it.
const FILL: Duration = Duration::from_secs(24 * 3600);
const RANDOM: u32 = 8 << 10;
const SEQUENTIAL: u32 = 256 << 10;

/// SPECpower's times, from memory.
const LEVEL: f64 = 240.0;
const BETWEEN_LEVELS: f64 = 10.0;

/// Shortest run.
const LEAST: f64 = 0.01;
/// Intervals in which a measured phase keeps its throughput, if they are no shorter than a second.
const INTERVALS: f64 = 30.0;

impl Followed {
    fn time(&self, seconds: f64) -> f64 {
        (seconds * self.scale).max(LEAST)
    }

    /// Empty: it is a matrix of workloads and [`Followed::levels`].
    pub fn phases(&self) -> Vec<Phase> {
        if self.procedure == Procedure::Graduated {
            return Vec::new();
        }
        let time = |seconds| Duration::from_secs_f64(self.time(seconds));
        let measured = |name, workload, figure| Phase {
            name,
            activity: Activity::Load(workload),
            warm_up: time(WARM_UP),
            length: time(MEASURED),
            figure,
        };
        let mode = |size, random, reads| Workload::Synthetic { size, random, reads };
        let before = |name, workload, length| Phase {
            name,
            activity: Activity::Load(workload),
            warm_up: Duration::ZERO,
            length,
            figure: Figure::None,
        };
        vec![
            before("pre-fill", Workload::Fill { size: SEQUENTIAL }, FILL),
            before("conditioning", Workload::HotBand, time(CONDITIONING)),
            measured("hot-band", Workload::HotBand, Figure::IopsPerWatt),
            measured("random-read", mode(RANDOM, 100, 100), Figure::IopsPerWatt),
            measured("random-write", mode(RANDOM, 100, 0), Figure::IopsPerWatt),
            measured("sequential-read", mode(SEQUENTIAL, 0, 100), Figure::MibPerSecondPerWatt),
            measured("sequential-write", mode(SEQUENTIAL, 0, 0), Figure::MibPerSecondPerWatt),
            Phase {
                name: "ready-idle",
                activity: Activity::Idle,
                warm_up: Duration::ZERO,
                length: time(READY_IDLE),
                figure: Figure::GigabytesPerWatt,
            },
        ]
    }

    /// In percent, the order of the runs. Emerald has none.
    pub(super) fn levels(&self) -> Vec<f64> {
        match self.procedure {
            Procedure::Emerald => Vec::new(),
            Procedure::Graduated => (1..=10).rev().map(|tenth| 10.0 * f64::from(tenth)).collect(),
        }
    }

    pub(super) fn times(&self) -> Times {
        let interval = |length: f64| (length / INTERVALS).floor().max(1.0) as u32;
        match self.procedure {
            Procedure::Emerald => Times {
                run_seconds: self.time(MEASURED),
                settle_seconds: 0.0,
                idle_seconds: None,
                interval_seconds: interval(self.time(MEASURED)),
            },
            Procedure::Graduated => Times {
                run_seconds: self.time(LEVEL),
                settle_seconds: self.time(BETWEEN_LEVELS),
                idle_seconds: Some(self.time(LEVEL)),
                interval_seconds: interval(self.time(LEVEL)),
            },
        }
    }

    /// What the procedure is, in words.
    pub fn title(&self) -> &'static str {
        match self.procedure {
            Procedure::Emerald => "SNIA Emerald (ISO/IEC 24091), online block storage",
            Procedure::Graduated => "graduated load after SPECpower",
        }
    }

    /// Where it departs from the standard, whatever the results.
    pub fn departures(&self) -> Vec<String> {
        let mut departures = Vec::new();
        if self.scale < 1.0 {
            departures.push(
                format!("a rehearsal: every time is 1/{:.3} of the procedure's", 1.0 / self.scale)
                    .replace(".000", ""),
            );
        }
        match self.procedure {
            Procedure::Emerald => departures.extend(
                [
                    "the load is this program's; the specification requires Vdbench 5.04.05 and its script",
                    "no capacity optimization tests, no temperature and line voltage of the room",
                    "GB are those of the target's size in the file, not the raw capacity of its disks",
                ]
                .map(str::to_owned),
            ),
            Procedure::Graduated => departures.extend(
                [
                    "the workload is the file's; SPECpower's is server-side Java",
                    "100 % is one closed-loop run and its replay; SPECpower calibrates several times",
                    "idle is measured first, with the target closed; SPECpower measures active idle last",
                ]
                .map(str::to_owned),
            ),
        }
        departures
    }

    /// Figures that are from memory, because the standard's text could not be read.
    pub fn unread(&self) -> Vec<&'static str> {
        let own = match self.procedure {
            Procedure::Emerald => vec![
                "the times: conditioning 12 h, warm-up 10 min, measurement 30 min, ready idle 2 h",
                HotBand::UNREAD,
                "the limits of response times (none is applied) and the criterion of stability (here: the line through the \
                 throughput rises or falls by at most 5 % of its mean)",
            ],
            Procedure::Graduated => vec!["the times: 240 s per level, 10 s between levels"],
        };
        own.into_iter().chain([evidence::UNREAD]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_shrink_with_the_scale_and_a_rehearsal_says_so() {
        let emerald = |scale| Followed { procedure: Procedure::Emerald, scale };
        let minutes = |scale: f64| -> Vec<f64> {
            emerald(scale).phases()[1..].iter().map(|phase| phase.length.as_secs_f64() / 60.0).collect()
        };
        assert_eq!(minutes(1.0), [720.0, 30.0, 30.0, 30.0, 30.0, 30.0, 120.0]);
        assert_eq!(minutes(1.0 / 30.0), [24.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0]);
        assert_eq!(emerald(1.0 / 30.0).departures()[0], "a rehearsal: every time is 1/30 of the procedure's");
        assert!(!emerald(1.0).departures().concat().contains("rehearsal"));
        for procedure in [Procedure::Emerald, Procedure::Graduated] {
            let full = Followed { procedure, scale: 1.0 };
            assert!(!full.departures().is_empty() && !full.unread().is_empty(), "nothing here is conformant");
        }
    }
}
