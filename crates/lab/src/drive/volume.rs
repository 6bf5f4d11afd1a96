//! A volume of an Ebb cluster as a target.

use super::error::TargetError;
use super::memory::fill;
use super::options::DriveProgress;
use super::report::TargetInfo;
use super::storage::{Answering, Failure, Storage};
use bytes::Bytes;
use ebb_client::{Client, ClientError};
use ebb_types::{NamespaceAnswer, NamespaceError, NamespaceOp, NamespaceQuery, ObjectId};
use std::time::{Duration, Instant};

/// Bytes of one write while a volume is filled, and the number of such writes in parallel.
const PIECE: u64 = 1 << 20;
const TOLD_EVERY: Duration = Duration::from_millis(200);

/// An open volume.
#[derive(Clone)]
pub(super) struct Volume {
    client: Client,
    object: ObjectId,
}

impl Storage for Volume {
    fn read(&self, _: u32, offset: u64, len: u32) -> Answering<'_, Bytes> {
        Box::pin(async move {
            let read = self.client.read_object(self.object, offset, len.into()).await;
            read.map_err(|error| Failure::Request(error.to_string()))
        })
    }

    fn write(&self, _: u32, offset: u64, payload: Bytes) -> Answering<'_, ()> {
        Box::pin(async move {
            let written = self.client.write_object(self.object, offset, payload).await;
            written.map_err(|error| Failure::Request(error.to_string()))
        })
    }
}

impl Volume {
    /// Opens a volume by its name. A missing one is created with `size` and filled, so that reads find data.
    pub async fn open(
        target: &str,
        name: &str,
        client: Client,
        size: Option<u64>,
        overwrite: bool,
        progress: &mut dyn FnMut(DriveProgress),
    ) -> Result<(TargetInfo, Volume), TargetError> {
        let failed = |error: ClientError| TargetError::Cluster { target: target.to_owned(), error };
        let refused = |reason: String| TargetError::Refused { target: target.to_owned(), reason };
        let answer = client.query(NamespaceQuery::Volume { name: name.to_owned() }).await.map_err(failed)?;
        let (volume, whole) = match answer {
            Ok(NamespaceAnswer::Volume(_)) if !overwrite => {
                let found = "the data of a volume".to_owned();
                return Err(TargetError::NotEmpty { target: target.to_owned(), found });
            }
            Ok(NamespaceAnswer::Volume(found)) => {
                (Volume { client, object: found.meta.object }, found.meta.size)
            }
            Ok(other) => return Err(refused(format!("unexpected reply: {other:?}"))),
            Err(NamespaceError::NoSuchVolume) => {
                let size = size.ok_or_else(|| TargetError::NoSize { target: target.to_owned() })?;
                let object = client.allocate_objects(1).await.map_err(failed)?;
                let create = NamespaceOp::CreateVolume { name: name.to_owned(), size, object, home: None };
                let reply = client.namespace(vec![create]).await.map_err(failed)?;
                if let Some(Err(error)) = reply.results.into_iter().next() {
                    return Err(refused(error.to_string()));
                }
                let volume = Volume { client, object };
                volume.fill(size, progress).await.map_err(failed)?;
                (volume, size)
            }
            Err(error) => return Err(refused(error.to_string())),
        };
        let size_bytes = size.unwrap_or(whole);
        if size_bytes == 0 || size_bytes > whole {
            return Err(TargetError::TooSmall { target: target.to_owned(), size: whole, block: 1 });
        }
        let info = TargetInfo {
            name: target.to_owned(),
            size_bytes,
            block_bytes: 1,
            direct: None,
            checkable: true,
            notes: Vec::new(),
        };
        Ok((info, volume))
    }

    async fn fill(&self, size: u64, progress: &mut dyn FnMut(DriveProgress)) -> Result<(), ClientError> {
        let mut told = Instant::now();
        for at in (0..size).step_by(PIECE as usize) {
            let mut piece = vec![0; PIECE.min(size - at) as usize];
            fill(at, &mut piece);
            self.client.write_object(self.object, at, piece.into()).await?;
            if told.elapsed() >= TOLD_EVERY {
                told = Instant::now();
                progress(DriveProgress::Preparing { bytes: at, of: size });
            }
        }
        Ok(())
    }
}
