//! What a replay needs from a cluster. A trait, so that tests replay on an in-memory map.

use crate::drive::engine::Timer;
use crate::drive::storage::PATIENCE;
use bytes::Bytes;
use ebb_client::{Client, ClientError};
use ebb_types::{
    AdminReply, AdminRequest, ChunkId, MetaReply, MetaRequest, NamespaceOp, ObjectId, ServerId, ServerState,
    VolumeHome,
};
use ebb_volume::{Volume, VolumeError};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::time::timeout;

/// What the program must supply besides a client: access to the servers themselves. Cheap to clone.
pub trait Cluster: Clone + Send + Sync + 'static {
    /// Compares all replicas of all groups, block by block. Called when every group is in sync and nothing is being
    /// written. The error says what to do next.
    fn compare(&self) -> impl Future<Output = Result<Comparison, String>> + Send;
}

/// Result of a full comparison of replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// Groups that were compared.
    pub groups: u32,
    /// Groups whose replicas are not identical.
    pub differing: u32,
    /// Bytes of data in one replica of each group.
    pub bytes: u64,
}

/// Why the cluster did not carry out a request, in the client's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TargetError(pub String);

impl From<ClientError> for TargetError {
    fn from(error: ClientError) -> TargetError {
        TargetError(error.to_string())
    }
}

impl From<VolumeError> for TargetError {
    fn from(error: VolumeError) -> TargetError {
        TargetError(error.to_string())
    }
}

/// A cluster under replay. All clones are the same cluster.
pub(crate) trait Target: Clone + Send + Sync + 'static {
    /// The newest known state of every server.
    fn servers(&self) -> Vec<(ServerId, ServerState)>;
    /// Waits for the next change of the map.
    fn changed(&self) -> impl Future<Output = ()> + Send;
    /// Creates a volume of each size. Their ids are consecutive; returns the first.
    fn create(&self, sizes: Vec<u64>) -> impl Future<Output = Result<ObjectId, TargetError>> + Send;
    fn read(
        &self,
        volume: ObjectId,
        offset: u64,
        len: u64,
    ) -> impl Future<Output = Result<Bytes, TargetError>> + Send;
    fn write(
        &self,
        volume: ObjectId,
        offset: u64,
        bytes: Bytes,
    ) -> impl Future<Output = Result<(), TargetError>> + Send;
    fn delete(&self, chunk: ChunkId) -> impl Future<Output = Result<(), TargetError>> + Send;
    /// Nothing more is read or written. `keep`: the data is to be looked at.
    fn close(&self, keep: bool) -> impl Future<Output = Result<(), TargetError>> + Send;
    fn admin(&self, request: AdminRequest) -> impl Future<Output = Result<AdminReply, TargetError>> + Send;
    /// The timer that keeps the schedule.
    fn timer(&self) -> std::io::Result<Timer> {
        Timer::new()
    }
    /// Attempts after the first, of all requests so far.
    fn retries(&self) -> u64;
    fn compare(&self) -> impl Future<Output = Result<Comparison, TargetError>> + Send;
}

/// A real cluster.
#[derive(Clone)]
pub(crate) struct Real<C> {
    client: Client,
    cluster: C,
    /// Where the volumes' cold slices go; `None`: the volumes are plain objects.
    home: Option<VolumeHome>,
    volumes: Arc<Mutex<BTreeMap<ObjectId, Volume>>>,
}

impl<C> Real<C> {
    pub fn new(client: Client, cluster: C, home: Option<VolumeHome>) -> Real<C> {
        Real { client, cluster, home, volumes: Arc::default() }
    }

    /// `None`: a plain object.
    fn volume(&self, object: ObjectId) -> Option<Volume> {
        self.volumes.lock().expect("nothing panics under this lock").get(&object).cloned()
    }
}

impl<C: Cluster> Target for Real<C> {
    fn servers(&self) -> Vec<(ServerId, ServerState)> {
        self.client.map().servers.values().map(|entry| (entry.id, entry.state)).collect()
    }

    async fn changed(&self) {
        self.client.map_changed().await;
    }

    async fn create(&self, sizes: Vec<u64>) -> Result<ObjectId, TargetError> {
        let first = self.client.allocate_objects(sizes.len() as u32).await?;
        let Some(home) = self.home else { return Ok(first) };
        for (nth, size) in sizes.into_iter().enumerate() {
            let object = ObjectId(first.0 + nth as u64);
            let name = format!("replay-{}", object.0);
            let create = NamespaceOp::CreateVolume { name: name.clone(), size, object, home: Some(home) };
            let reply = self.client.namespace(vec![create]).await?;
            if let Some(Err(error)) = reply.results.into_iter().next() {
                return Err(TargetError(format!("volume {name}: {error}")));
            }
            let volume = Volume::open(self.client.clone(), &name, || {}).await?;
            self.volumes.lock().expect("nothing panics under this lock").insert(object, volume);
        }
        Ok(first)
    }

    async fn read(&self, volume: ObjectId, offset: u64, len: u64) -> Result<Bytes, TargetError> {
        match self.volume(volume) {
            Some(volume) => Ok(volume.read(offset, len).await?),
            None => Ok(self.client.read_object(volume, offset, len).await?),
        }
    }

    async fn write(&self, volume: ObjectId, offset: u64, bytes: Bytes) -> Result<(), TargetError> {
        match self.volume(volume) {
            Some(volume) => match timeout(PATIENCE, volume.write(offset, bytes)).await {
                Ok(written) => Ok(written?),
                Err(_) => Err(TargetError(format!("not answered within {PATIENCE:?}"))),
            },
            None => Ok(self.client.write_object(volume, offset, bytes).await?),
        }
    }

    async fn delete(&self, chunk: ChunkId) -> Result<(), TargetError> {
        Ok(self.client.delete(chunk).await?)
    }

    async fn close(&self, keep: bool) -> Result<(), TargetError> {
        let volumes = std::mem::take(&mut *self.volumes.lock().expect("nothing panics under this lock"));
        let mut closed = Ok(());
        for volume in volumes.into_values() {
            let ended = if keep { volume.close().await } else { volume.delete().await };
            closed = closed.and(ended);
        }
        Ok(closed?)
    }

    async fn admin(&self, request: AdminRequest) -> Result<AdminReply, TargetError> {
        match self.client.call(MetaRequest::Admin(request)).await? {
            MetaReply::Admin(reply) => Ok(reply),
            MetaReply::Failed(failure) => Err(TargetError(failure.to_string())),
            other => Err(TargetError(format!("unexpected reply: {other:?}"))),
        }
    }

    fn retries(&self) -> u64 {
        self.client.counters().retries
    }

    async fn compare(&self) -> Result<Comparison, TargetError> {
        self.cluster.compare().await.map_err(TargetError)
    }
}
