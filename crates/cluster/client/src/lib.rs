//! The library that talks to an Ebb cluster: transport, routing, retry.
//!
//! [`transport`] is the framed, authenticated TCP that all programs of a cluster share. [`Client`] finds the metadata
//! leader, follows the cluster map and carries requests to the primaries of their chunk groups, with retries until they
//! are answered or their deadline passes. A chunk of an erasure-coded pool is coded here, and its strips go to the
//! servers of its set (`docs/coded.md`). `docs/wire.md` describes the bytes.

pub mod budget;
mod bug;
mod chunk;
mod client;
mod clock;
mod coded;
mod error;
mod handshake;
mod link;
mod meta;
mod object;
mod reach;
mod run;
mod secret;
mod shared;
mod strangers;
pub mod transport;
mod unreached;

pub use bug::{bug, bugs};
pub use client::Client;
pub use clock::{Clock, since_boot};
pub use ebb_client_core::{Patience, Summed, Trouble};
pub use error::ClientError;
pub use object::to_their_ends;
pub use secret::{Key, SECRET_BYTES_MAX, SECRET_BYTES_MIN, Secret, SecretError};
pub use shared::{ClientConfig, Counters};
