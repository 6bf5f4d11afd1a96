//! Evaluations: a matrix of workloads, load levels and targets, run unattended, with the power drawn [TRACER §III, §V].
//!
//! A [`Matrix`] says what to run, a [`Store`] holds the results, and [`run()`] does what is missing: first each
//! workload's peak, in closed loop, of which the trace is kept with its bunches, then its levels, each a proportional
//! selection of that trace, in open loop. The load comes from a [`Generator`] and the watts from an [`Analyzer`],
//! either of which may be on another machine ([`crate::agent`]).

pub mod agent;
mod compare;
mod evidence;
mod export;
mod figures;
mod idle;
mod local;
mod matrix;
mod order;
mod plan;
mod procedure;
mod proportion;
mod record;
mod run;
mod score;
mod select;
mod shape;
mod store;
pub mod traces;
mod workload;

pub use compare::{
    Both, CompareError, LEAST, MOST, Overall, Pair, ResultComparison, Side, compare, comparison_charts,
};
pub use evidence::{Evidence, Instrumented, MeterPlace, Subsystems};
pub use export::{csv, series_csv};
pub use figures::{charts, report};
pub use local::{Connect, LocalAnalyzer, LocalGenerator};
pub use matrix::{AgentSpec, Collector, EXAMPLE, Filter, Matrix, MatrixError, RUNS_MAX, Settings, Target};
pub use order::{
    Analyzer, Draw, Generator, Intensity, Interval, Live, Machine, Order, Performance, Place, Present,
    Reading, RunError,
};
pub use procedure::{Activity, Figure, Followed, Phase, Procedure};
pub use proportion::{Proportion, proportions};
pub use record::{LateLoads, Peak, Record, SeriesRow, late_loads};
pub use run::{Bench, Benches, Outcome, Progress, Watched, run};
pub use score::{Score, ScoredPhase, ScoredTarget, score};
pub use select::{Range, Selection};
pub use shape::{Shape, shapes};
pub use store::{Content, RunKey, SCHEMA_VERSION, Store, StoreError};
pub use workload::Workload;
