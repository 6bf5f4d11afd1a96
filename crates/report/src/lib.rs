//! How findings are shown: pages with charts, tables, latencies, JSON, and progress on a terminal.
//!
//! It knows nothing of storage. Whoever finds something out has its figures as plain data: `Serialize` for machines,
//! `Display` for people. Here is what they share, so that every report reads alike.

mod latency;
mod page;
mod progress;
mod table;

pub use latency::{Histogram, Latency};
pub use page::{Axis, Chart, Mark, Page, Series, Ticks};
pub use progress::{Progress, clear_line};
pub use table::table;

use serde::Serialize;
use std::fmt::Display;

/// Prints findings: as JSON for machines, or as text for people.
pub fn print(findings: &(impl Serialize + Display), as_json: bool) {
    if as_json {
        print_json(findings);
    } else {
        print!("{findings}");
    }
}

pub fn print_json(value: &impl Serialize) {
    println!("{}", json(value));
}

/// A value of our own as JSON, with line breaks.
pub fn json(value: &impl Serialize) -> String {
    serde_json::to_string_pretty(value).expect("our own types can be written as JSON")
}
