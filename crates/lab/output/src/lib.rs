//! How results are shown: pages with charts, tables, latencies, JSON, progress on a terminal, and the machine that they
//! are of.
//!
//! It knows nothing about storage. Callers have their figures as plain data: `Serialize` for machines, `Display` for
//! people. This crate has what they share, so that all reports look alike.

mod deviations;
mod latency;
mod lines;
mod machine;
mod page;
mod progress;
mod table;

pub use deviations::Deviations;
pub use latency::{Histogram, Latency, distribution};
pub use lines::{grouped, wrapped};
pub use machine::{Machine, host};
pub use page::{Axis, Chart, Mark, Page, Series, Ticks};
pub use progress::{Progress, clear_line};
pub use table::table;

use serde::Serialize;

pub fn print_json(value: &impl Serialize) {
    println!("{}", json(value));
}

/// One of our own values as JSON, with line breaks.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("our own types can be written as JSON")
}
