//! Why an Ebb program could not start or continue.

use ebb_client::transport::TransportError;
use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error(transparent)]
    Config(#[from] crate::cluster::config::ConfigError),
    #[error(transparent)]
    Secret(#[from] ebb_client::SecretError),
    #[error(transparent)]
    Store(#[from] ebb_store::OpenError),
    #[error(transparent)]
    Files(#[from] ebb_store::FlatError),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: TransportError },
    #[error(transparent)]
    Client(#[from] ebb_client::ClientError),
    #[error(transparent)]
    Volume(#[from] ebb_volume::VolumeError),
    #[error("{data}: {source}")]
    Metadata { data: PathBuf, source: ebb_meta::RaftError },
    #[error(transparent)]
    Switch(#[from] ebb_power::SwitchError),
    #[error(transparent)]
    Meter(#[from] ebb_meter::MeterError),
    #[error(transparent)]
    Mirror(#[from] crate::mirror::MirrorError),
    #[error("cannot {action} {path}: {source}")]
    Io { action: &'static str, path: PathBuf, source: std::io::Error },
    #[error("{0}")]
    Refused(String),
}

/// Adds the action and its object to an I/O error.
pub fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> NodeError {
    let path = path.into();
    move |source| NodeError::Io { action, path, source }
}

/// Refuses an output that cannot be written, before the work. What is in the file stays.
pub fn writable(path: &Path) -> Result<(), NodeError> {
    let opened = OpenOptions::new().create(true).append(true).open(path);
    opened.map(drop).map_err(io("write", path))
}
