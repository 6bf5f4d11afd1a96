//! Why a target cannot be used, and what to do about it.

use ebb_bench::HttpError;
use ebb_client::ClientError;
use std::io;
use std::time::Duration;

/// Time limit for connecting and for each reply in the negotiation.
pub(super) const GREET: Duration = Duration::from_secs(10);

#[derive(Debug, thiserror::Error)]
pub enum NbdError {
    #[error("cannot connect: {0}; check that an NBD server listens there")]
    Connect(io::Error),
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("no reply within {} seconds", GREET.as_secs())]
    Late,
    #[error("the server does not speak NBD's fixed newstyle: {0}")]
    Protocol(&'static str),
    #[error("the server refuses the export {export:?}: {reason}; list what it offers with `nbdinfo --list`")]
    Refused { export: String, reason: String },
    #[error("the first or last bytes cannot be read: {0}")]
    Unreadable(String),
}

/// Why a target cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("cannot {action} {target}: {error}")]
    Io { action: &'static str, target: String, error: io::Error },
    #[error("{target} is {what}")]
    Kind { target: String, what: &'static str },
    #[error("{target} does not exist or is empty: give its size (--size 1GiB) to create it")]
    NoSize { target: String },
    #[error("{target} has {size} bytes and blocks of {block}: choose a smaller size, or a larger target")]
    TooSmall { target: String, size: u64, block: u32 },
    #[error(
        "{target} holds {found}: a replay would destroy it; allow that with --overwrite, or name another target"
    )]
    NotEmpty { target: String, found: String },
    #[error(
        "{target} is in use: it is mounted, is swap, or carries another device or a partition that is in use; release \
         it first"
    )]
    InUse { target: String },
    #[error("cannot use {target}: {error}")]
    Nbd { target: String, error: NbdError },
    #[error("{target} needs keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")]
    NoKeys { target: String },
    #[error("cannot prepare {target}: {error}; check address, bucket name, keys and region")]
    S3 { target: String, error: HttpError },
    #[error("{target} is a volume of a cluster: name the cluster with --config")]
    NoCluster { target: String },
    #[error("cannot use {target}: {error}")]
    Cluster { target: String, error: ClientError },
    #[error("cannot use {target}: {reason}")]
    Refused { target: String, reason: String },
}
