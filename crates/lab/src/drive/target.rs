//! An open target.

use super::disk::{self, Disk, Filled};
use super::nbd::{Nbd, NbdError};
use super::remote::Storage;
use super::report::TargetInfo;
use super::s3::S3;
use super::spec::TargetSpec;
use super::volume::Volume;
use super::{DriveProgress, TICK};
use crate::bench::HttpError;
use ebb_client::{Client, ClientError};
use ebb_types::Bytes;
use std::io;
use std::sync::Arc;

/// Keys of an S3 endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Keys {
    pub access_key: String,
    pub secret_key: String,
    pub region: String,
}

/// Options for opening a target.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// Bytes of the target to use. `None`: all of them; a new target needs a size.
    pub size: Option<Bytes>,
    /// Existing data may be destroyed.
    pub overwrite: bool,
    /// For an S3 endpoint.
    pub keys: Option<S3Keys>,
    /// A client of the cluster whose volume is the target; must live on the runtime of the replay.
    pub client: Option<Client>,
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

/// Storage to replay on; [`drive`](super::drive) may be called on it repeatedly.
pub struct Target {
    pub(super) info: TargetInfo,
    pub(super) means: Means,
}

/// How requests reach the target.
pub(super) enum Means {
    Disk(Arc<Disk>),
    Remote(Arc<dyn Storage>),
}

impl Target {
    /// Opens a target, and creates and fills it if requested. Runs on the caller's tokio runtime, which must have time
    /// and I/O. Destroys only what `options` allow.
    pub async fn open(
        spec: &TargetSpec,
        options: &OpenOptions,
        progress: &mut dyn FnMut(DriveProgress),
    ) -> Result<Target, TargetError> {
        let (name, size) = (spec.to_string(), options.size.map(|size| size.0));
        let (info, storage): (TargetInfo, Arc<dyn Storage>) = match spec {
            TargetSpec::File(path) => {
                let (path, overwrite) = (path.clone(), options.overwrite);
                let open = move |filled: &Filled| disk::open_file(name, &path, size, overwrite, filled);
                return open_disk(open, progress).await;
            }
            TargetSpec::Device(path) => {
                let (path, overwrite) = (path.clone(), options.overwrite);
                return open_disk(move |_| disk::open_device(name, &path, size, overwrite), progress).await;
            }
            TargetSpec::Nbd { address, export } => {
                let (info, nbd) = Nbd::open(&name, address, export, size, options.overwrite).await?;
                (info, Arc::new(nbd))
            }
            TargetSpec::S3 { endpoint, bucket } => {
                let keys =
                    options.keys.as_ref().ok_or_else(|| TargetError::NoKeys { target: name.clone() })?;
                let (info, s3) = S3::open(&name, endpoint, bucket, keys, size, progress).await?;
                (info, Arc::new(s3))
            }
            TargetSpec::Volume(volume) => {
                let client =
                    options.client.clone().ok_or_else(|| TargetError::NoCluster { target: name.clone() })?;
                let (info, volume) =
                    Volume::open(&name, volume, client, size, options.overwrite, progress).await?;
                (info, Arc::new(volume))
            }
        };
        Ok(Target { info, means: Means::Remote(storage) })
    }

    pub fn info(&self) -> &TargetInfo {
        &self.info
    }
}

async fn open_disk(
    open: impl FnOnce(&Filled) -> Result<Disk, TargetError> + Send + 'static,
    progress: &mut dyn FnMut(DriveProgress),
) -> Result<Target, TargetError> {
    let filled = Arc::new(Filled::default());
    let mut opening = tokio::task::spawn_blocking({
        let filled = filled.clone();
        move || open(&filled)
    });
    let disk = loop {
        match tokio::time::timeout(TICK, &mut opening).await {
            Ok(opened) => break opened.expect("the thread that opens the target does not panic")?,
            Err(_) => progress(filled.progress()),
        }
    };
    Ok(Target { info: disk.info.clone(), means: Means::Disk(Arc::new(disk)) })
}
