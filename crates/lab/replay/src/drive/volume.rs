//! A volume of an Ebb cluster as a target.

use super::error::TargetError;
use super::memory::fill;
use super::options::DriveProgress;
use super::report::TargetInfo;
use super::storage::{Answering, Failure, PATIENCE, Storage};
use bytes::Bytes;
use ebb_client::Client;
use ebb_types::NamespaceError;
use ebb_volume::{Volume, VolumeError};
use std::time::{Duration, Instant};

/// Bytes of one write while a volume is filled, and the number of such writes in parallel.
const PIECE: u64 = 1 << 20;
const TOLD_EVERY: Duration = Duration::from_millis(200);

/// An open volume.
pub(super) struct Device(Volume);

impl Storage for Device {
    fn read(&self, _: u32, offset: u64, len: u32) -> Answering<'_, Bytes> {
        Box::pin(async move {
            self.0.read(offset, len.into()).await.map_err(|error| Failure::Request(error.to_string()))
        })
    }

    fn write(&self, _: u32, offset: u64, payload: Bytes) -> Answering<'_, ()> {
        Box::pin(async move {
            let written = tokio::time::timeout(PATIENCE, self.0.write(offset, payload)).await;
            let written = written.map_err(|_| format!("not answered within {PATIENCE:?}"));
            written.and_then(|written| written.map_err(|error| error.to_string())).map_err(Failure::Request)
        })
    }

    fn close(&self) -> Answering<'_, ()> {
        Box::pin(
            async move { self.0.clone().close().await.map_err(|error| Failure::Request(error.to_string())) },
        )
    }
}

impl Device {
    /// Opens a volume by its name. A missing one is created with `size` in the replicated pool, and filled, so that
    /// reads find data.
    pub async fn open(
        target: &str,
        name: &str,
        client: Client,
        size: Option<u64>,
        overwrite: bool,
        progress: &mut dyn FnMut(DriveProgress),
    ) -> Result<(TargetInfo, Device), TargetError> {
        let failed = |error: VolumeError| TargetError::Refused {
            target: target.to_owned(),
            reason: error.to_string(),
        };
        let fresh = match Volume::status(&client, name).await {
            Ok(_) if !overwrite => {
                let found = "the data of a volume".to_owned();
                return Err(TargetError::NotEmpty { target: target.to_owned(), found });
            }
            Ok(_) => false,
            Err(VolumeError::Refused(NamespaceError::NoSuchVolume)) => {
                let size = size.ok_or_else(|| TargetError::NoSize { target: target.to_owned() })?;
                Volume::create(&client, name, size, None).await.map_err(failed)?;
                true
            }
            Err(error) => return Err(failed(error)),
        };
        let device = Device(Volume::open(client, name, || {}).await.map_err(failed)?);
        let whole = device.0.size();
        if fresh {
            device.fill(whole, progress).await.map_err(failed)?;
        }
        let size_bytes = size.unwrap_or(whole);
        if size_bytes == 0 || size_bytes > whole {
            return Err(TargetError::TooSmall { target: target.to_owned(), size: whole, block: 1 });
        }
        Ok((TargetInfo::new(target, size_bytes), device))
    }

    async fn fill(&self, size: u64, progress: &mut dyn FnMut(DriveProgress)) -> Result<(), VolumeError> {
        let mut told = Instant::now();
        for at in (0..size).step_by(PIECE as usize) {
            let mut piece = vec![0; PIECE.min(size - at) as usize];
            fill(at, &mut piece);
            self.0.write(at, piece.into()).await?;
            if told.elapsed() >= TOLD_EVERY {
                told = Instant::now();
                progress(DriveProgress::Preparing { bytes: at, of: size });
            }
        }
        Ok(())
    }
}
