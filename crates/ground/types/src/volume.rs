//! Volumes as the namespace knows them.
//!
//! A volume's bytes are in the chunks of one replicated object. A volume with a home in an erasure-coded pool moves
//! what is seldom written there, slice by slice: a moved slice is an object of its own in that pool. A block that the
//! replicated object has is newer than the slice's object (`docs/volumes.md`).

use crate::{Extent, ObjectId, PoolId};
use serde::{Deserialize, Serialize};

/// The unit in which a volume's data moves. Chunks are whole slices.
pub const SLICE_BYTES: u32 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMeta {
    pub size: u64,
    /// Owner of the volume's replicated chunks.
    pub object: ObjectId,
    pub created_millis: u64,
    /// `None`: everything stays in the replicated pool.
    pub home: Option<VolumeHome>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeHome {
    pub pool: PoolId,
    /// The volume keeps at most this many bytes in the replicated pool.
    pub front_bytes: u64,
}

/// Who serves a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeOwner {
    /// The client's id.
    pub run: u64,
    /// Grows with every sign of life.
    pub stamp: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeStatus {
    pub meta: VolumeMeta,
    pub owner: Option<VolumeOwner>,
    /// Number of slices in the home pool.
    pub moved: u64,
}

impl VolumeMeta {
    pub fn slices(&self) -> u64 {
        self.size.div_ceil(SLICE_BYTES.into())
    }

    /// The extent of the replicated object.
    pub fn front(&self) -> Extent {
        Extent { object: self.object, offset: 0, len: self.size, shared: false, crc: 0 }
    }
}

/// The extent of a moved slice.
pub fn slice_extent(object: ObjectId) -> Extent {
    Extent { object, offset: 0, len: SLICE_BYTES.into(), shared: false, crc: 0 }
}
