//! Traces as raw material for measurements: the workload of a trace ([`profile`](profile())), how accurately its load
//! can be controlled ([`accuracy`](accuracy())), other traces derived from it ([`write`](write())), a trace recorded
//! from a device ([`record`](record())), and a directory of traces with a catalogue ([`Catalogue`]).
//!
//! The formats, filters and synthetic workloads themselves are in the crate `ebb-trace`, which touches no file. This
//! module has the files and the output for people and machines. Except for [`accuracy`](accuracy()), memory does not
//! grow with the trace.

mod accuracy;
mod catalogue;
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
pub use catalogue::{Bound, CATALOGUE, Catalogue, CatalogueError, Entry, Query, Sort, group, table};
pub use open::{ReadProgress, TraceFileError, heard, load, name_of, open, silent};
pub use page::page;
pub use profile::{DeviceProfile, Figures, Load, Profile, SizeClass, profile};
pub use record::{RecordError, Recorder, record, recordable};
pub use spread::Spread;
pub use tally::{Tallied, Tally};
pub use write::{Target, TraceWriteError, WriteOptions, WrittenTrace, write};
