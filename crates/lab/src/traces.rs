//! Traces as an instrument's raw material: what a trace asks of storage ([`profile`](profile())), how truly its load can be controlled
//! ([`accuracy`](accuracy())), another trace out of it ([`write`](write())), one from a device ([`record`](record())), and a directory
//! of them with a catalogue ([`Depository`]).
//!
//! The formats, filters and synthetic workloads themselves are the crate `ebb-trace`, which touches no file. Here are the files,
//! and what people and machines are told. All but [`accuracy`](accuracy()) takes memory that does not grow with the trace.

mod accuracy;
mod depository;
mod open;
mod page;
mod profile;
mod record;
mod show;
mod sketch;
mod spread;
mod tally;
mod write;

pub use accuracy::{
    AccuracyReport, FilterAccuracy, LevelAccuracy, MODE_REQUESTS, accuracy, accuracy_of_modes,
};
pub use depository::{Bound, CATALOGUE, Depository, DepositoryError, Entry, Query, Sort, group, table};
pub use open::{ReadProgress, TraceFileError, load, name_of, open, silent};
pub use page::page;
pub use profile::{DeviceProfile, Figures, Load, Profile, SizeClass, profile};
pub use record::{RecordError, Recorded, Recorder, record};
pub use spread::Spread;
pub use tally::{Tallied, Tally};
pub use write::{Target, TraceWriteError, WriteOptions, WrittenTrace, write};
