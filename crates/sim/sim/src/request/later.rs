//! The events of a modelled world only. They build on none of the models, so that each of these can put its own down.

use ebb_chunkserver::StoreToken;
use ebb_types::ServerId;

#[derive(Clone, Debug)]
pub enum Later {
    /// The next requests of the trace.
    Arrivals,
    /// A store's task is done.
    TaskDone { server: ServerId, life: u64, token: StoreToken },
    /// A disk access is done.
    DiskDone { server: ServerId, life: u64, job: u32 },
    /// A channel of the disk is free for a waiting access.
    DiskFree { server: ServerId, life: u64 },
    /// Something is due in a server's mirror.
    Mirror { server: ServerId },
    /// A server has power again: its mirror continues.
    Resume { server: ServerId },
    /// The pause before a piece's next try is over.
    Retry { piece: u32 },
    /// A client host asks for the map again.
    Refresh { host: u32 },
    /// Check for tries without an answer.
    Timeouts,
    /// Take a sample of the cluster.
    Sample,
    /// The schedule's gear from now on.
    Gear { gear: u8 },
}
