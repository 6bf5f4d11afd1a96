//! How a client's request finds its primary and ends: route, retry, pause, deadline, map refresh. Pure.
//!
//! A [`Request`] decides for one request, by what its [`View`] knows of the cluster map. The client library drives it with sockets,
//! the fault search and the request-level simulator with their virtual ones: all three follow `Moved`, pause and give up by this
//! code.
//!
//! Not here: how the metadata leader is found, and how much may be under way on a connection. Those are the driver's.

mod request;
mod trouble;
mod view;

pub use request::{Command, Event, Failure, Patience, Request, Summed};
pub use trouble::Trouble;
pub use view::{Route, View};
