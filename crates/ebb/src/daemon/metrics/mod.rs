//! `/metrics` of every process, and on metadata servers `/sd`, which lists what else there is to scrape.
//!
//! A [`Page`] is made when it is asked for, from numbers that the process has in memory anyway: nothing is kept up
//! between scrapes, no timer runs, no other process is asked and no server is woken. What is not known is left out: a
//! gauge that is absent is not zero.
//!
//! Sleeping servers are not scraped. The metadata leader reports for them, from what it last heard; `docs/metrics.md`
//! lists every metric.

mod http;
pub mod leader;
pub mod mirror;
pub mod names;
mod page;
mod process;
pub mod server;
mod targets;
pub mod traffic;

pub use http::{Source, open};
pub use page::{Format, Page, Value};
pub use process::of_process;
pub use targets::Targets;
