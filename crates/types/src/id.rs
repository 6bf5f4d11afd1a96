//! Ids. Each is a newtype, so that the compiler tells one from another.

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
    /// A rack: a fault domain. Copies of one chunk stand in different racks.
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
    /// The owner of chunks: a large object, a pack of small objects, or a volume. Never used twice.
    ObjectId(u64), "object-"
);
id!(
    /// Number of a chunk group's configuration. It grows with every change and fences everything older. Zero comes before all.
    Epoch(u32), "epoch-"
);
id!(
    /// Drawn at random when a store is made in an empty directory. Another id under a server's name is another store, which
    /// has nothing of what that server acknowledged. Zero: none yet.
    StoreId(u64), "store-"
);

/// Number of a server process's run. A new one says that all the process held in memory is gone.
///
/// The upper 40 bits count how often the server's store was opened. The store counts durably, so that no clock can turn it
/// back. The lower 24 bits are random: a store that went back to an older copy counts to a number that was used before, and
/// is not taken for that run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub u64);

impl Incarnation {
    const RANDOM_BITS: u32 = 24;

    /// The next run's number, from any random number.
    pub fn next(self, random: u64) -> Incarnation {
        let count = (self.0 >> Self::RANDOM_BITS) + 1;
        Incarnation(count << Self::RANDOM_BITS | random & ((1 << Self::RANDOM_BITS) - 1))
    }

    /// Whether a store that was opened for `earlier` can have been opened for this run afterwards. Two runs with one count were
    /// opened from one state: they are two copies of a store.
    pub fn follows(self, earlier: Incarnation) -> bool {
        self.0 >> Self::RANDOM_BITS > earlier.0 >> Self::RANDOM_BITS
    }

    /// Differs between any two runs of any two stores, for numbers that no two runs may share.
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

impl Epoch {
    pub fn next(self) -> Epoch {
        Epoch(self.0.checked_add(1).expect("four thousand million configurations of one chunk group"))
    }
}

/// What a store can prove about itself, carried by every heartbeat. A store that went back to an older copy of its directory, or
/// that lost the end of its segments, is recognised by it (R11).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreMark {
    pub store: StoreId,
    /// How much the store has ever made durable; it only grows: end of its newest segment, as segment number << 32 | offset.
    pub position: u64,
}

/// A chunk: `index` counts chunks from the start of its object or volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ChunkId {
    pub object: ObjectId,
    pub index: u32,
}

impl fmt::Display for ChunkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "chunk-{}.{}", self.object.0, self.index)
    }
}

/// Order of a write within its chunk group. The newest version of a block wins, always and everywhere.
///
/// A version is given once, by the primary of its epoch, to one content: equal versions mean equal bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Version {
    pub epoch: Epoch,
    pub seq: u64,
}

impl Version {
    pub const ZERO: Version = Version { epoch: Epoch(0), seq: 0 };
    /// The first version that a primary of `epoch` can give.
    pub fn first_of(epoch: Epoch) -> Version {
        Version { epoch, seq: 0 }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch.0, self.seq)
    }
}

/// Names one request of one client, so that a retry is carried out once. `client` is random per client run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId {
    pub client: u64,
    pub seq: u64,
}
