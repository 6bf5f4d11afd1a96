//! A cluster as seen by its operator: configuration, secrets and keys, and starting and reaching its processes.

pub mod config;
pub mod connect;
#[cfg(feature = "lab")]
pub mod edit;
pub mod keys;
pub mod launch;
pub mod pools;
pub mod random;
pub mod secrets;
