//! The gateway's cluster: [`Backend`] over the client library.

use crate::bytes::backend::{Backend, BackendError, Pool};
use ebb_client::{Client, ClientError, Summed};
use ebb_types::{
    AdminReply, AdminRequest, ChunkError, ChunkId, GearStatus, MetaFailure, MetaReply, MetaRequest, Moment,
    NamespaceAnswer, NamespaceError, NamespaceOp, NamespaceQuery, NamespaceReply, ObjectId, PlannedHour,
    Rows,
};

pub struct Cluster {
    client: Client,
    chunk_bytes: u32,
}

impl Cluster {
    pub fn new(client: Client) -> Cluster {
        let chunk_bytes = client.params().chunk_bytes;
        Cluster { client, chunk_bytes }
    }

    /// Position of a chunk's byte in its object: the object calls split what one request cannot carry.
    fn at(&self, chunk: ChunkId, offset: u32) -> u64 {
        debug_assert!(offset < self.chunk_bytes, "{chunk}: byte {offset} is of another chunk");
        u64::from(chunk.index) * u64::from(self.chunk_bytes) + u64::from(offset)
    }
}

impl From<ClientError> for BackendError {
    fn from(error: ClientError) -> BackendError {
        match error {
            error if error.says_lost() => BackendError::Lost(error.to_string()),
            ClientError::Chunk { why: ChunkError::NoSpace, .. } | ClientError::Meta(MetaFailure::Full) => {
                BackendError::NoSpace
            }
            ClientError::Chunk { why: ChunkError::Deleted, .. } => BackendError::GivenUp,
            ClientError::Hibernates { retry_after, .. } => {
                BackendError::Hibernates { why: error.to_string(), retry_after }
            }
            ClientError::Unserved { .. }
            | ClientError::Unknown { .. }
            | ClientError::NoMeta { .. }
            | ClientError::Meta(_) => BackendError::Unavailable(error.to_string()),
            _ => BackendError::Failed(error.to_string()),
        }
    }
}

impl Backend for Cluster {
    fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    fn now(&self) -> Moment {
        ebb_client::since_boot()
    }

    fn pools(&self) -> Vec<Pool> {
        let row_bytes = |shape| Rows::new(shape, self.chunk_bytes).row_bytes() as usize;
        let pools = self.client.pools().into_iter();
        pools.map(|pool| Pool { id: pool.id, name: pool.name, row_bytes: row_bytes(pool.shape) }).collect()
    }

    fn code(&self, parts: &[&[u8]]) -> Result<[u8; 32], BackendError> {
        self.client.code(parts).map_err(|error| BackendError::Failed(error.to_string()))
    }

    async fn allocate(&self, count: u32) -> Result<ObjectId, BackendError> {
        Ok(self.client.allocate_objects(count).await?)
    }

    async fn read(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<Summed, BackendError> {
        Ok(self.client.read_written(chunk, offset, len).await?)
    }

    async fn write(&self, chunk: ChunkId, offset: u32, data: Summed) -> Result<(), BackendError> {
        Ok(self.client.write_summed(chunk, offset, data).await?)
    }

    async fn zero(&self, chunk: ChunkId, offset: u32, len: u32) -> Result<(), BackendError> {
        Ok(self.client.zero_object(chunk.object, self.at(chunk, offset), u64::from(len)).await?)
    }

    async fn delete(&self, chunk: ChunkId) -> Result<(), BackendError> {
        Ok(self.client.delete(chunk).await?)
    }

    async fn wake(&self, chunks: Vec<ChunkId>) -> Result<bool, BackendError> {
        Ok(self.client.wake(&chunks).await?)
    }

    async fn commit(&self, ops: Vec<NamespaceOp>) -> Result<NamespaceReply, BackendError> {
        Ok(self.client.namespace(ops).await?)
    }

    async fn query(
        &self,
        query: NamespaceQuery,
    ) -> Result<Result<NamespaceAnswer, NamespaceError>, BackendError> {
        Ok(self.client.query(query).await?)
    }

    async fn is_in_trough(&self) -> Result<bool, BackendError> {
        let plan = match self.client.call(MetaRequest::Admin(AdminRequest::GearPlan)).await {
            Ok(MetaReply::Admin(AdminReply::Plan(plan))) => plan.hours,
            // Without gears every hour is like any other.
            Err(ClientError::Meta(MetaFailure::Refused(_))) => Vec::new(),
            Ok(_) => return Err(other_reply()),
            Err(error) => return Err(error.into()),
        };
        match self.client.call(MetaRequest::Admin(AdminRequest::Status)).await? {
            MetaReply::Admin(AdminReply::Status(status)) => Ok(is_trough(&status.gear, &plan)),
            _ => Err(other_reply()),
        }
    }
}

fn other_reply() -> BackendError {
    BackendError::Failed("the metadata service's reply does not match the request".into())
}

/// What is awake says what the load is and what it is about to be. `plan`: the coming day.
fn is_trough(now: &GearStatus, plan: &[PlannedHour]) -> bool {
    let fewest = plan.iter().map(|hour| hour.awake.len()).min();
    fewest.is_none_or(|fewest| now.servers as usize <= fewest) && !now.shifting && !now.emergency
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{GearMode, GearSteps, ServerId};

    #[test]
    fn a_trough_is_the_fewest_servers_to_come_while_nothing_shifts() {
        let gear = |gear: u8, shifting, emergency| GearStatus {
            mode: GearMode::Auto,
            gear,
            servers: u32::from(gear) * 3,
            steps: GearSteps::Servers,
            shifting,
            dry_run: false,
            short_of_room: false,
            emergency,
            servers_awake: 9,
            load: 0.0,
            servers_needed: 3,
            forecast: None,
        };
        let hour = |gear: u16| PlannedHour {
            gear: gear as u8,
            awake: (0..gear * 3).map(ServerId).collect(),
            ..PlannedHour::default()
        };
        let day = [hour(3), hour(2), hour(3)];
        assert!(is_trough(&gear(2, false, false), &day));
        assert!(is_trough(&gear(1, false, false), &day), "an administrator set it");
        assert!(!is_trough(&gear(3, false, false), &day));
        assert!(is_trough(&gear(3, false, false), &[hour(3), hour(3)]), "all hours are alike");
        assert!(is_trough(&gear(3, false, false), &[]), "there are no gears");
        assert!(!is_trough(&gear(2, true, false), &day));
        assert!(!is_trough(&gear(2, false, true), &day));
    }
}
