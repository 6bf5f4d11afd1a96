//! One run's result: a row. The list of columns below is the only one: the table, reading and writing, the CSV and the
//! JSON are derived from it. `docs/results-schema.md` explains each column.

use rusqlite::{Row, ToSql};
use serde::Serialize;
use std::borrow::Borrow;
use std::fmt;

/// A table's row, with a field for each column.
macro_rules! row {
    ($(#[$about:meta])* $row:ident: $($(#[$doc:meta])* $name:ident: $type:ty,)*) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize)]
        pub struct $row { $($(#[$doc])* pub $name: $type,)* }

        impl $row {
            /// Names of the columns, in order.
            pub(super) const COLUMNS: &[&str] = &[$(stringify!($name),)*];

            /// Values in that order.
            pub(super) fn values(&self) -> Vec<&dyn ToSql> {
                vec![$(&self.$name,)*]
            }

            /// From a row that has all columns, in any order.
            pub(super) fn from_row(row: &Row<'_>) -> rusqlite::Result<$row> {
                Ok($row { $($name: row.get(stringify!($name))?,)* })
            }
        }
    };
}

macro_rules! columns {
    ($($(#[$doc:meta])* $name:ident: $type:ty, $sql:literal;)*) => {
        row! {
            /// A row of the table `result`. Fields carry their unit in their name, as the columns do.
            Record: $($(#[$doc])* $name: $type,)*
        }

        /// Names and SQL types, in order.
        pub(super) const COLUMNS: &[(&str, &str)] = &[$((stringify!($name), $sql),)*];
    };
}

columns! {
    /// The matrix's name.
    campaign: String, "TEXT NOT NULL";
    target: String, "TEXT NOT NULL";
    workload: String, "TEXT NOT NULL";
    /// Configured load, in percent of the workload's trace.
    load_percent: f64, "REAL NOT NULL";
    repetition: u32, "INTEGER NOT NULL";
    started_unix_millis: i64, "INTEGER NOT NULL";

    /// Mean size of a request.
    request_bytes: Option<f64>, "REAL";
    random_percent: Option<f64>, "REAL";
    read_percent: Option<f64>, "REAL";
    filter: String, "TEXT NOT NULL";

    /// Measured load: the run's IOPS in percent of those of the replay at 100 %.
    load_percent_iops: Option<f64>, "REAL";
    load_percent_bytes: Option<f64>, "REAL";

    /// From the first issue to the last answer.
    length_seconds: Option<f64>, "REAL";
    requests: Option<u64>, "INTEGER";
    bytes: Option<u64>, "INTEGER";
    /// Requests that the target refused or lost.
    failed_requests: Option<u64>, "INTEGER";
    iops: Option<f64>, "REAL";
    mb_per_second: Option<f64>, "REAL";
    /// From issue to answer.
    latency_mean_millis: Option<f64>, "REAL";
    latency_p50_millis: Option<f64>, "REAL";
    latency_p90_millis: Option<f64>, "REAL";
    latency_p99_millis: Option<f64>, "REAL";
    latency_p999_millis: Option<f64>, "REAL";
    latency_max_millis: Option<f64>, "REAL";
    /// 99th percentile of how late requests were issued: the instrument's own error.
    lateness_p99_millis: Option<f64>, "REAL";
    /// 99th percentile of the wait for a place among the requests in flight: the target fell behind.
    queue_p99_millis: Option<f64>, "REAL";

    volts: Option<f64>, "REAL";
    amps: Option<f64>, "REAL";
    watts: Option<f64>, "REAL";
    joules: Option<f64>, "REAL";
    /// `measured`, `stated` or `modelled`.
    watts_source: Option<String>, "TEXT";
    meters: Option<String>, "TEXT";
    /// Share of the run that the meters' samples cover, 0 to 1.
    meter_coverage: Option<f64>, "REAL";
    temperature_celsius: Option<f64>, "REAL";
    /// How far the watts can be trusted ([`super::Evidence`]), as text.
    evidence: Option<String>, "TEXT";

    iops_per_watt: Option<f64>, "REAL";
    mb_per_second_per_kilowatt: Option<f64>, "REAL";
    joules_per_io: Option<f64>, "REAL";

    /// The machine that generated the load.
    host: Option<String>, "TEXT";
    kernel: Option<String>, "TEXT";
    cpu: Option<String>, "TEXT";
    device: Option<String>, "TEXT";
    program_version: String, "TEXT NOT NULL";
    /// Why there is no result, as text. Such a run is repeated.
    error: Option<String>, "TEXT";
}

/// The most by which a replay at 100 % may be behind its trace, as a share of its length, and still be the reference of
/// other levels: they appear too high by about as much.
const BEHIND_MOST: f64 = 0.02;

impl Record {
    /// How far the run was behind its trace, as a share of its length: the 99th percentile of how long requests waited
    /// to be issued, for the instrument or for a place among those in flight. Absent: neither was measured.
    pub fn behind(&self) -> Option<f64> {
        let waits = [self.lateness_p99_millis, self.queue_p99_millis].into_iter().flatten();
        let length = self.length_seconds.filter(|&seconds| seconds > 0.0)?;
        Some(waits.max_by(f64::total_cmp)? / 1e3 / length)
    }

    /// A workload's reference, the first replay at 100 %, that was behind its trace itself: it answered less than
    /// 100 %, so no load can be measured against it. Throughput, latency and watts of all runs hold.
    pub fn is_late_reference(&self) -> bool {
        let is_reference = self.load_percent == 100.0 && self.repetition == 1 && self.error.is_none();
        is_reference && self.behind().is_some_and(|share| share > BEHIND_MOST)
    }
}

/// Loads that a file has in percent of a replay at 100 % that was late itself: earlier versions stored them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LateLoads {
    pub campaign: String,
    pub target: String,
    pub workload: String,
    /// How far that replay was behind its trace, as a share of its length: the loads are too high by about as much.
    pub behind: f64,
    /// Runs with such a load.
    pub runs: usize,
}

/// Of every workload that has some.
pub fn late_loads(records: &[impl Borrow<Record>]) -> Vec<LateLoads> {
    let all = || records.iter().map(Borrow::<Record>::borrow);
    let found = all().filter(|record| record.is_late_reference()).filter_map(|reference| {
        let key = |run: &Record| (run.campaign.clone(), run.target.clone(), run.workload.clone());
        let (campaign, target, workload) = key(reference);
        let has_load = |run: &&Record| run.load_percent_iops.or(run.load_percent_bytes).is_some();
        let runs = all().filter(has_load).filter(|run| key(run) == key(reference)).count();
        let behind = reference.behind().filter(|_| runs > 0)?;
        Some(LateLoads { campaign, target, workload, behind, runs })
    });
    found.collect()
}

impl fmt::Display for LateLoads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LateLoads { campaign, target, workload, behind, runs } = self;
        write!(
            f,
            "{campaign}/{target}: {workload}: {runs} runs have their load in percent of a replay at 100 % that was {:.1} % behind its \
             trace: these loads are too high by about as much. Delete the campaign and run it again on a quiet machine, or \
             with longer runs",
            100.0 * behind
        )
    }
}

/// The throughput of a workload's replay at 100 %, the reference for its levels. Absent: that replay was late itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Full {
    pub iops: Option<f64>,
    pub mb_per_second: Option<f64>,
}

impl Full {
    pub fn of(reference: &Record) -> Full {
        match reference.is_late_reference() {
            true => Full { iops: None, mb_per_second: None },
            false => Full { iops: reference.iops, mb_per_second: reference.mb_per_second },
        }
    }
}

row! {
    /// One interval of a longer run: a row of the table `series`.
    SeriesRow:
    campaign: String,
    target: String,
    workload: String,
    load_percent: f64,
    repetition: u32,
    from_seconds: f64,
    seconds: f64,
    iops: f64,
    mb_per_second: f64,
    failed_requests: u64,
}

row! {
    /// A workload's peak on a target: the trace that its levels replay was collected at this rate.
    Peak:
    iops: f64,
    mb_per_second: f64,
    /// The mode vector. For a trace: the average of its requests in the first run's length.
    request_bytes: f64,
    random_percent: f64,
    read_percent: f64,
}
