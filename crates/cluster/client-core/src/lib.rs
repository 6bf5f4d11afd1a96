//! How a client's request finds its primary and ends: route, retry, pause, deadline, map refresh. Pure.
//!
//! A [`Request`] decides for one request, based on its [`View`] of the cluster map. The client library drives it with
//! sockets, the fault search and the request-level simulator with virtual ones: all three follow `Moved`, pause and
//! give up by this code.
//!
//! A write to an erasure-coded pool is one request per strip; [`CodedWrite`] decides when they are a complete write.
//!
//! Not here: finding the metadata leader, and bounding what is in flight on a connection. Those are up to the driver.

mod coded;
mod request;
mod trouble;
mod view;

pub use coded::{CodedWrite, Orders};
pub use request::{Command, Event, Failure, Patience, Request, Summed};
pub use trouble::Trouble;
pub use view::{Route, View};
