//! The namespace's messages: buckets, keys, multipart uploads, volumes, and the garbage that their changes leave.
//!
//! The namespace is part of the metadata service and knows names, not bytes: an [`Extent`] describes a whole range of
//! an object, so that nothing is stored per chunk. Data is written to the chunk servers first and named afterwards, so
//! a name never points at bytes that are not durable; bytes that lose their name go to a garbage queue, which a janitor
//! frees. A command carries many ops: one round of consensus per batch makes small PUTs cheap.

use crate::{ObjectId, PoolId, RequestId, VolumeHome, VolumeOwner, VolumeStatus};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum length of a key in bytes (the S3 limit).
pub const KEY_BYTES_MAX: usize = 1024;
/// Maximum length of a bucket or volume name in bytes (the S3 limit).
pub const NAME_BYTES_MAX: usize = 63;
/// Maximum ops per command.
pub const OPS_MAX: usize = 1024;
/// Maximum keys per lookup.
pub const LOOKUPS_MAX: usize = 32;
/// Maximum entries per answer, whatever the query's `limit`.
pub const PAGE_MAX: u32 = 1000;
/// Most object ids in an answer to [`NamespaceQuery::Named`], but for those of the last name.
pub const NAMED_IDS_MAX: usize = 100_000;
/// Highest part number of a multipart upload; the lowest is 1.
pub const PART_NUMBER_MAX: u16 = 10_000;
/// Maximum length of a bucket setting's value in bytes.
pub const SETTING_BYTES_MAX: usize = 64 << 10;
/// Minimum size in bytes of every part but the last.
pub const PART_BYTES_MIN: u64 = 5 << 20;

/// A range of an object's bytes. Chunk `offset / chunk_bytes` of the object holds its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    pub object: ObjectId,
    pub offset: u64,
    pub len: u64,
    /// The object is a pack that holds other extents too: when freed, the range is zeroed. Otherwise the object's
    /// chunks are deleted.
    pub shared: bool,
    /// [`crate::CrcOfBlocks`] over the extent's bytes, for readers of the whole extent. Zero if there are none:
    /// garbage, volumes.
    pub crc: u32,
}

/// An S3 ETag: the MD5 of the bytes, or for a multipart object the MD5 of its parts' MD5s and the number of parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ETag {
    pub md5: [u8; 16],
    /// Zero: not a multipart object.
    pub parts: u16,
}

/// Whether two lists of extents hold the same bytes, cut at the same places: then one is a copy of the other.
pub fn hold_the_same(one: &[Extent], other: &[Extent]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| (a.len, a.crc) == (b.len, b.crc))
}

impl ETag {
    /// An ETag that no object has: no upload has that many parts.
    pub const NONE: ETag = ETag { md5: [0; 16], parts: u16::MAX };
}

impl std::fmt::Display for ETag {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&crate::hex(&self.md5))?;
        if self.parts > 0 { write!(f, "-{}", self.parts) } else { Ok(()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChecksumAlgorithm {
    Crc32,
    Crc32c,
    Crc64Nvme,
    Sha1,
    Sha256,
}

/// A checksum that a client sent and the gateway verified.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    pub algorithm: ChecksumAlgorithm,
    /// Base64, as in the headers; with the suffix `-N` if composite.
    pub value: String,
    /// Computed over the parts' checksums instead of the bytes.
    pub composite: bool,
}

/// Everything stored about a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectMeta {
    pub size: u64,
    pub etag: ETag,
    /// Milliseconds since 1970; the namespace sets it to the command's time.
    pub modified_millis: u64,
    /// In order; their lengths add up to `size`.
    pub extents: Vec<Extent>,
    /// Headers to return with the object, lower case: `content-type` and the like, `x-amz-meta-*`.
    pub headers: Vec<(String, String)>,
    pub checksum: Option<Checksum>,
    /// The multipart upload that made the object, so that a retried completion gets its answer again.
    pub upload: Option<u64>,
    /// Parts of a multipart object, in order.
    pub parts: Vec<ObjectPart>,
}

/// What is kept of a part once its upload is complete.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectPart {
    pub number: u16,
    pub size: u64,
    pub checksum: Option<Checksum>,
}

/// One part of an upload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part {
    pub size: u64,
    pub etag: ETag,
    /// Set to the command's time.
    pub modified_millis: u64,
    pub extents: Vec<Extent>,
    pub checksum: Option<Checksum>,
}

/// The kept header that says which pool an object was put in, if it is not its bucket's.
pub const CLASS_HEADER: &str = "x-amz-storage-class";

/// The class kept with an object or an upload; `None`: its bucket's.
pub fn kept_class(headers: &[(String, String)]) -> Option<&str> {
    headers.iter().find(|(name, _)| name == CLASS_HEADER).map(|(_, class)| class.as_str())
}

/// What a multipart upload's object will have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadMeta {
    pub initiated_millis: u64,
    pub headers: Vec<(String, String)>,
    /// The checksum that the client announced, and whether it is composite.
    pub checksum: Option<(ChecksumAlgorithm, bool)>,
}

/// Precondition on a key for a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    #[default]
    Any,
    /// If-None-Match: *
    Absent,
    /// If-Match: *
    Present,
    /// If-Match: etag
    Matches(ETag),
    /// If-None-Match: etag
    Differs(ETag),
}

/// Further preconditions for deleting a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnlyIf {
    pub size: Option<u64>,
    /// Unix seconds: dates in requests have no finer resolution.
    pub modified_seconds: Option<u64>,
    /// CRC-32C of the bucket's lifecycle rules, by which it is deleted.
    pub rules: Option<u32>,
}

/// A setting of a bucket. Its value is opaque to the namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BucketSetting {
    Location,
    Tags,
    Cors,
    Lifecycle,
}

pub type BucketSettings = BTreeMap<BucketSetting, Vec<u8>>;

/// A change of the namespace. The ops are carried out in order and independently: one that fails does not stop the
/// others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceCommand {
    /// A repeated command with the same id is answered, not carried out again.
    pub request: RequestId,
    /// `None`: this is the sender's first command. It has no ops, and its answer names the session in which the
    /// sender's commands are remembered. A client that was silent for long is forgotten; a command of that session may
    /// have been carried out before, so it is refused.
    pub session: Option<u64>,
    /// The sender's clock in milliseconds since 1970. It is compared with others and decides nothing.
    pub clock_millis: u64,
    /// At most [`OPS_MAX`].
    pub ops: Vec<NamespaceOp>,
}

impl NamespaceCommand {
    /// A client's first command.
    pub fn first(request: RequestId, clock_millis: u64) -> NamespaceCommand {
        NamespaceCommand { request, session: None, clock_millis, ops: Vec::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceOp {
    CreateBucket {
        bucket: String,
        settings: BucketSettings,
    },
    /// Sets or removes one setting.
    SetBucket {
        bucket: String,
        setting: BucketSetting,
        value: Option<Vec<u8>>,
    },
    /// Also aborts the bucket's uploads.
    DeleteBucket {
        bucket: String,
    },
    Put {
        bucket: String,
        key: String,
        meta: ObjectMeta,
        when: Condition,
    },
    /// Deleting a key that does not exist succeeds, as in S3.
    Delete {
        bucket: String,
        key: String,
        when: Condition,
        only_if: OnlyIf,
    },
    /// Sets or removes one of the object's kept headers. The modification time does not change.
    SetHeader {
        bucket: String,
        key: String,
        name: String,
        value: Option<String>,
    },
    CreateUpload {
        bucket: String,
        key: String,
        headers: Vec<(String, String)>,
        checksum: Option<(ChecksumAlgorithm, bool)>,
    },
    PutPart {
        bucket: String,
        key: String,
        upload: u64,
        number: u16,
        part: Part,
    },
    /// `parts`: number and etag of each part, ascending. `etag` and `checksum` are the finished object's. A retry
    /// succeeds again as long as the key names the object that it made.
    CompleteUpload {
        bucket: String,
        key: String,
        upload: u64,
        parts: Vec<(u16, ETag)>,
        etag: ETag,
        checksum: Option<Checksum>,
        when: Condition,
    },
    AbortUpload {
        bucket: String,
        key: String,
        upload: u64,
        /// As in [`OnlyIf`].
        rules: Option<u32>,
    },
    /// `object` must be fresh from the metadata service's allocation.
    CreateVolume {
        name: String,
        size: u64,
        object: ObjectId,
        home: Option<VolumeHome>,
    },
    /// Refused while another client serves the volume.
    DeleteVolume {
        name: String,
    },
    /// The sender serves the volume from now on, or still does: a sign of life. `from`: this owner has been silent
    /// since, for too long.
    ///
    /// `noted`: where the sender notes its claim in the volume's chunk groups. That becomes garbage with the volume.
    ClaimVolume {
        name: String,
        from: Option<VolumeOwner>,
        noted: Extent,
    },
    /// The sender no longer serves the volume.
    ReleaseVolume {
        name: String,
    },
    /// A slice of a volume that the sender serves is in the object `to` now, which the sender has leased; `None`: it is
    /// nowhere. Before, it was in `was`, which becomes garbage. `claim`: the number of the claim under which the slice
    /// was read: one that ended is not revived by a later one of the same run.
    MoveSlice {
        name: String,
        claim: u64,
        slice: u32,
        was: Option<ObjectId>,
        to: Option<ObjectId>,
    },
    /// The sender is about to write to these fresh objects of one pool, up to `bytes` in each; or a leased object
    /// grows. The lease lasts until they are named, discarded or closed, or until the sender falls silent. Without ids:
    /// a sign of life.
    Lease {
        first: ObjectId,
        count: u32,
        bytes: u64,
    },
    /// The sender writes no more to these `packs`, and nothing that it wrote there awaits a name; it has not used the
    /// ids `unused`.
    Close {
        packs: Vec<ObjectId>,
        unused: Vec<ObjectId>,
    },
    /// The sender with this id has been silent since `stamp`, for too long: what it has leased goes to the garbage.
    EndRun {
        run: u64,
        stamp: u64,
    },
    /// Data that was written and will never be named goes to the garbage. Data that has a name keeps it.
    Discard {
        extents: Vec<Extent>,
    },
    /// The janitor has freed the garbage with these numbers.
    Collected {
        garbage: Vec<u64>,
    },
    /// The object's bytes were copied to another pool: from now on it is in the new `extents`, and has this class.
    /// Nothing else about it changes. `was`: the first extent of the bytes that were copied. No other bytes ever had
    /// it, so it tells whether the key still names them.
    Move {
        bucket: String,
        key: String,
        was: Extent,
        extents: Vec<Extent>,
        class: String,
    },
    /// One extent of the object was copied within its pool: its bytes are in `to` from now on, if they are still in
    /// `was`.
    Repack {
        bucket: String,
        key: String,
        was: Extent,
        to: Extent,
    },
}

/// Reply to a [`NamespaceCommand`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamespaceReply {
    /// The sender's session; zero: it is not known in the one that it named, and nothing was carried out.
    pub session: u64,
    /// One per op.
    pub results: Vec<Result<NamespaceDone, NamespaceError>>,
    /// Number of extents in the garbage queue.
    pub garbage: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceDone {
    Done,
    /// The new upload's id.
    Upload(u64),
    /// The number of the sender's claim: larger than those of all owners before.
    Claimed(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceQuery {
    /// The time by which the age of objects is judged.
    Now,
    Buckets,
    Bucket {
        bucket: String,
    },
    /// Several (bucket, key) pairs at once, because concurrent GETs share a lookup. At most [`LOOKUPS_MAX`].
    Objects {
        names: Vec<(String, String)>,
    },
    /// Keys and common prefixes after `after`, in order. `after` may be a common prefix: then all keys under it are
    /// skipped.
    List {
        bucket: String,
        prefix: String,
        delimiter: String,
        after: String,
        limit: u32,
    },
    Upload {
        bucket: String,
        key: String,
        upload: u64,
    },
    /// Parts with numbers above `after`.
    Parts {
        bucket: String,
        key: String,
        upload: u64,
        after: u16,
        limit: u32,
    },
    /// Uploads after (key, id), in that order. An `after` with id `u64::MAX` skips the whole key.
    Uploads {
        bucket: String,
        prefix: String,
        after: (String, u64),
        limit: u32,
    },
    Volumes,
    Volume {
        name: String,
    },
    /// The moved slices after this one.
    Slices {
        name: String,
        after: Option<u32>,
        limit: u32,
    },
    /// Senders that hold leases.
    Runs,
    /// Leased objects after this one.
    Leased {
        after: Option<ObjectId>,
        limit: u32,
    },
    /// Packs of erasure-coded pools that no run writes to any more, and of whose bytes less than this share still has a
    /// name.
    SparsePacks {
        percent: u64,
    },
    /// Objects of all buckets, with what their bytes are in. `after`: what the page before gave as `next`; empty: from
    /// the first on.
    Named {
        after: Vec<u8>,
        limit: u32,
    },
    /// The oldest garbage with numbers above `after`.
    Garbage {
        after: u64,
        limit: u32,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NamespaceAnswer {
    /// Milliseconds since 1970.
    Now {
        unix_millis: u64,
    },
    /// Name and creation time.
    Buckets(Vec<(String, u64)>),
    Bucket {
        created_millis: u64,
        settings: BucketSettings,
    },
    /// One per name.
    Objects(Vec<Result<ObjectMeta, NamespaceError>>),
    List(KeyPage),
    Upload(UploadMeta),
    Parts {
        parts: Vec<(u16, Part)>,
        more: bool,
    },
    Uploads {
        uploads: Vec<UploadListing>,
        more: bool,
    },
    Volumes(Vec<(String, VolumeStatus)>),
    Volume(VolumeStatus),
    Slices {
        slices: Vec<(u32, ObjectId)>,
        more: bool,
    },
    /// Id, and a stamp that changes with every sign of life.
    Runs(Vec<(u64, u64)>),
    Leased(Vec<ObjectId>),
    /// Not all of them, if there are many.
    Packs(Vec<ObjectId>),
    Named {
        names: Vec<Named>,
        /// `None`: this is the last page.
        next: Option<Vec<u8>>,
    },
    Garbage(Vec<(u64, Extent)>),
}

/// A key, and the objects that its bytes are in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    pub bucket: String,
    pub key: String,
    pub objects: Vec<ObjectId>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyPage {
    pub keys: Vec<KeyListing>,
    pub common_prefixes: Vec<String>,
    /// `after` for the next page; `None`: this is the last one.
    pub next: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyListing {
    pub key: String,
    pub size: u64,
    pub etag: ETag,
    pub modified_millis: u64,
    /// The algorithm of the object's checksum, and whether it is composite.
    pub checksum: Option<(ChecksumAlgorithm, bool)>,
    /// The value of [`CLASS_HEADER`].
    pub class: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UploadListing {
    pub key: String,
    pub upload: u64,
    pub initiated_millis: u64,
    /// The value of [`CLASS_HEADER`].
    pub class: Option<String>,
}

/// Why the namespace refused an op or query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum NamespaceError {
    #[error("the bucket does not exist")]
    NoSuchBucket,
    #[error("the bucket exists already")]
    BucketExists,
    #[error("the bucket is not empty: delete its objects first")]
    BucketNotEmpty,
    #[error("the key does not exist")]
    NoSuchKey,
    #[error("the upload does not exist: it was completed or aborted, or never created")]
    NoSuchUpload,
    #[error("part {number} was not uploaded, or its ETag is another")]
    InvalidPart { number: u16 },
    #[error("the list of parts is not in ascending order")]
    InvalidPartOrder,
    #[error("part {number} has {size} bytes: every part but the last needs at least {PART_BYTES_MIN}")]
    PartTooSmall { number: u16, size: u64 },
    #[error("the precondition does not hold")]
    PreconditionFailed,
    #[error("the volume exists already")]
    VolumeExists,
    #[error("the volume does not exist")]
    NoSuchVolume,
    #[error("another client serves the volume: end it first, or wait until it has been silent for a while")]
    VolumeInUse(VolumeOwner),
    #[error("another client has taken the volume over")]
    VolumeTaken,
    #[error("the slice is not where the request says: it was moved meanwhile")]
    SliceMoved,
    #[error("a name has 1 to {NAME_BYTES_MAX} bytes")]
    BadName,
    #[error("a key has 1 to {KEY_BYTES_MAX} bytes")]
    BadKey,
    #[error("a bucket's setting has at most {SETTING_BYTES_MAX} bytes")]
    SettingTooLong,
    #[error("a command has at most {OPS_MAX} ops, a lookup at most {LOOKUPS_MAX} names")]
    TooMany,
    #[error("the request is too old to know whether it was carried out: check before you send it again")]
    Expired,
    #[error("the bucket's lifecycle rules have changed since: nothing is removed by the former ones")]
    RulesChanged,
    /// The time cannot be told.
    #[error("nothing is judged by its age now: {why}")]
    ClocksApart { why: String },
    #[error("the data was given up because its writer was silent for too long: send the object again")]
    NotLeased,
    #[error("the cluster has no {pool}: nothing can be written there")]
    NoSuchPool { pool: PoolId },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_etag_is_shown_as_s3_shows_it() {
        let md5 =
            [0xd4, 0x1d, 0x8c, 0xd9, 0x8f, 0x00, 0xb2, 0x04, 0xe9, 0x80, 0x09, 0x98, 0xec, 0xf8, 0x42, 0x7e];
        assert_eq!(ETag { md5, parts: 0 }.to_string(), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(ETag { md5, parts: 3 }.to_string(), "d41d8cd98f00b204e9800998ecf8427e-3");
    }
}
