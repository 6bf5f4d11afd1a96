//! Workload generators and power analyzers on other machines, driven by one evaluation host [TRACER §III.C].
//!
//! `ebb lab agent` offers its machine's [`LocalGenerator`](crate::LocalGenerator) and meters ([`Agent`]); the host
//! drives them as [`RemoteGenerator`] and [`RemoteAnalyzer`], as if they were local. They communicate over the
//! cluster's framed TCP ([`ebb_client::transport`]): both sides prove that they know a secret, and every length is
//! checked before anything is allocated.
//!
//! A host with the secret may still do only what the agent was started for: drive the targets, read the traces and use
//! the meters that it names. Runs are carried out one after another, whichever host requests them, so that none
//! disturbs another.

mod message;
mod remote;
mod serve;

pub use remote::{RemoteAnalyzer, RemoteGenerator};
pub use serve::{Agent, AgentError, AgentEvent, Allowed};

#[cfg(test)]
mod tests;
