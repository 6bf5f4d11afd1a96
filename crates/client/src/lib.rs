//! The library that talks to an Ebb cluster: transport, routing, retry.
//!
//! [`transport`] is the framed, authenticated TCP that all programs of a cluster share. [`Client`] finds the metadata
//! leader, follows the cluster map and carries requests to the primaries of their chunk groups, again and again if need
//! be, until they are answered or their deadline passes. `docs/wire.md` describes the bytes.

mod handshake;
mod secret;
pub mod transport;

pub use secret::{SECRET_BYTES_MAX, SECRET_BYTES_MIN, Secret, SecretError};
