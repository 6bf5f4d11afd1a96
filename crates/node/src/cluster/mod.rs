//! A cluster as its operator describes it: configuration, secrets and keys, and how its processes are started and reached.

pub mod config;
pub mod connect;
pub mod keys;
pub mod launch;
pub mod random;
pub mod secrets;
