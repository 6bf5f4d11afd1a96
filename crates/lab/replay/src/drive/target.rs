//! An open target.

use super::disk::{self, Disk, Filled};
use super::error::TargetError;
use super::nbd::Nbd;
use super::options::{DriveProgress, TICK};
use super::report::TargetInfo;
use super::s3::{S3, S3Keys};
use super::spec::TargetSpec;
use super::storage::{Failure, Storage};
use super::volume::Device;
use ebb_client::Client;
use ebb_types::Bytes;
use std::sync::Arc;

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
                    Device::open(&name, volume, client, size, options.overwrite, progress).await?;
                (info, Arc::new(volume))
            }
        };
        Ok(Target { info, means: Means::Remote(storage) })
    }

    /// A target of the caller's own.
    pub fn of(info: TargetInfo, storage: Arc<dyn Storage>) -> Target {
        Target { info, means: Means::Remote(storage) }
    }

    /// Gives the storage back. A volume that is not closed stays claimed for a minute.
    pub async fn close(self) -> Result<(), TargetError> {
        let Means::Remote(storage) = &self.means else { return Ok(()) };
        storage.close().await.map_err(|failure| {
            let (Failure::Request(reason) | Failure::Lost(reason)) = failure;
            TargetError::Refused { target: self.info.name.clone(), reason }
        })
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
