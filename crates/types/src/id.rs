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
    /// Number of a server process's run. A new one says that all it held in memory is gone.
    Incarnation(u64), "run-"
);

impl Epoch {
    pub fn next(self) -> Epoch {
        Epoch(self.0.checked_add(1).expect("four thousand million configurations of one chunk group"))
    }
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
