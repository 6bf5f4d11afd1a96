//! The fault search above chunks: production gateways and volume servers, each on a machine of its own, under faults.
//!
//! What runs is the code of `ebb_volume`, of `ebb_gateway` and of the metadata member with its namespace. Tasks run on
//! tokio, each process with a runtime whose clock the world drives ([`process`]). What they see of a cluster is a
//! model: [`chunks`] stands for the chunk servers and judges claims with the primary's code, [`library`] for the client
//! library. The network delays, repeats and loses ([`net`]). Processes are suspended, freeze, crash and end; wall
//! clocks jump ([`scenario`]).
//!
//! Checked: each cell of each volume is linearizable, where a request that is sent again counts as one ([`cells`]); so
//! is each key of the gateways ([`keys`]); no byte is read that was never written; no object expires that is not due;
//! all requests end once the faults have; and at rest every chunk is named, garbage or leased ([`rest`]).

mod cells;
mod chunks;
mod clients;
mod disk;
mod keys;
mod library;
mod messages;
mod meta;
mod net;
mod object;
mod planted;
mod process;
mod rest;
mod run;
mod scenario;
mod uploads;
mod world;

pub use planted::{Bug, Planted};
pub use run::{Above, processes};
