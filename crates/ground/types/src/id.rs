//! Ids. Each is a newtype, so that the compiler keeps them apart.

use serde::{Deserialize, Serialize};
use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

id!(
    /// A chunk server.
    ServerId(u16), "server-"
);
id!(
    /// A rack: a fault domain. Copies of one chunk are in different racks.
    RackId(u16), "rack-"
);
id!(
    /// One of the r gear groups. A cluster in gear g keeps `g` of them awake.
    GearGroup(u8), "gear-group-"
);
id!(
    /// A chunk group: chunks that share replicas and primary.
    GroupId(u32), "group-"
);
id!(
    /// A pool of servers. Zero is the replicated pool, all others are erasure-coded.
    PoolId(u8), "pool-"
);
id!(
    /// An erasure-coded set of servers.
    SetId(u16), "set-"
);
id!(
    /// The owner of chunks: a large object, a pack of small objects, or a volume. Never used twice.
    ///
    /// The upper 8 bits are the pool that its chunks are in, so that a chunk's servers follow from its id. The lower 56
    /// are its serial number, unique over all pools.
    ObjectId(u64), "object-"
);
id!(
    /// Number of a chunk group's configuration. It grows with every change and fences everything older. Zero precedes
    /// all.
    Epoch(u32), "epoch-"
);
id!(
    /// Drawn at random when a store is created in an empty directory. A different id under the same server is a
    /// different store, which has nothing of what that server acknowledged. Zero: none yet.
    StoreId(u64), "store-"
);

/// Number of a server process's run. A new incarnation means that everything the process had in memory is gone.
///
/// The upper 40 bits count how often the server's store was opened. The store counts durably, so that no clock can turn
/// it back. The lower 24 bits are random: a store that was rolled back to an older copy reuses a count, and must not be
/// mistaken for the run that had it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

impl Incarnation {
    const RANDOM_BITS: u32 = 24;

    /// The next run's incarnation; `random`: any random number.
    pub fn next(self, random: u64) -> Incarnation {
        let count = (self.0 >> Self::RANDOM_BITS) + 1;
        Incarnation(count << Self::RANDOM_BITS | random & ((1 << Self::RANDOM_BITS) - 1))
    }

    /// Whether a store that was opened for `earlier` can have been opened for this run afterwards. Two runs with the
    /// same count were opened from the same state: they are two copies of a store.
    pub fn follows(self, earlier: Incarnation) -> bool {
        self.0 >> Self::RANDOM_BITS > earlier.0 >> Self::RANDOM_BITS
    }

    /// A number that differs between any two runs of any two stores, as a base for numbers that no two runs may share.
    pub fn fingerprint(self, store: StoreId) -> u64 {
        let mut key = [0u8; 16];
        key[..8].copy_from_slice(&store.0.to_le_bytes());
        key[8..].copy_from_slice(&self.0.to_le_bytes());
        xxhash_rust::xxh3::xxh3_64(&key)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let random = self.0 & ((1 << Self::RANDOM_BITS) - 1);
        write!(f, "run-{}.{random:06x}", self.0 >> Self::RANDOM_BITS)
    }
}

/// The gear group of servers that gears do not concern: loggers, and those of erasure-coded pools.
pub const NO_GEAR: GearGroup = GearGroup(u8::MAX);

impl PoolId {
    pub const REPLICATED: PoolId = PoolId(0);
}

impl ObjectId {
    const SERIAL_BITS: u32 = 56;

    pub fn pool(self) -> PoolId {
        PoolId((self.0 >> Self::SERIAL_BITS) as u8)
    }

    /// The same without its pool: what the metadata service allocates, and leases once.
    pub fn serial(self) -> ObjectId {
        ObjectId(self.0 & ((1 << Self::SERIAL_BITS) - 1))
    }

    pub fn in_pool(self, pool: PoolId) -> ObjectId {
        ObjectId(self.serial().0 | u64::from(pool.0) << Self::SERIAL_BITS)
    }
}

impl Epoch {
    pub fn next(self) -> Epoch {
        self.after(1)
    }

    /// That many epochs later.
    pub fn after(self, epochs: u32) -> Epoch {
        Epoch(self.0.checked_add(epochs).expect("four thousand million configurations of one chunk group"))
    }
}

/// Identity and position of a store, carried by every heartbeat. They expose a store that was rolled back to an older
/// copy of its directory, or that lost the end of its segments (R11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreMark {
    pub store: StoreId,
    /// End of the newest segment, as segment number << 32 | offset: how much the store has ever made durable. It only
    /// grows.
    pub position: u64,
}

/// A chunk: `index` counts chunks from the start of its object or volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkId {
    pub object: ObjectId,
    pub index: u32,
}

/// Chunks from this index on hold no bytes of their object, but its [claims](ChunkId::of_claim).
pub const CLAIMS_FROM: u32 = 1 << 31;

impl ChunkId {
    /// Where a chunk group keeps the number of the newest claim on an object that one process at a time writes
    /// (`docs/protocol.md`, "Claims"): the first eight bytes, little endian. An object has one such chunk in each
    /// group.
    pub fn of_claim(object: ObjectId, group: GroupId) -> ChunkId {
        ChunkId { object, index: CLAIMS_FROM | group.0 }
    }

    pub fn is_of_claim(&self) -> bool {
        self.index >= CLAIMS_FROM
    }
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk-{}.{}", self.object.0, self.index)
    }
}

/// Order of a write within its chunk group. The newest version of a block wins, always and everywhere.
///
/// A version is assigned once, by the primary of its epoch, to one content: equal versions mean equal bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    pub epoch: Epoch,
    pub seq: u64,
}

impl Version {
    pub const ZERO: Version = Version { epoch: Epoch(0), seq: 0 };
    /// No version is newer.
    pub const MAX: Version = Version { epoch: Epoch(u32::MAX), seq: u64::MAX };
    /// Lower bound of the versions of `epoch`: the primary assigns only newer ones.
    pub fn first_of(epoch: Epoch) -> Version {
        Version { epoch, seq: 0 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch.0, self.seq)
    }
}

/// Identifies a request of a client, so that its retries are carried out once. `client` is random per client run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId {
    pub client: u64,
    pub seq: u64,
}
