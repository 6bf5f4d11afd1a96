//! Keys and their rights: who may read, who may write, who may change buckets; and which buckets.
//!
//! Keys are kept in a file that only its owner may read. It is read again when it changes, so `ebb key` takes effect at
//! the next request. Without a key a client may do nothing.

use crate::http::understood;
use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::{CopyObjectInput, CopySource, UploadPartCopyInput};
use s3s::{S3Request, S3Result, s3_error};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The file is checked at most this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Right {
    /// Objects, and listing them.
    Read,
    /// Objects and uploads.
    Write,
    /// Buckets and their settings, but not their objects.
    Admin,
}

impl Right {
    pub const ALL: [Right; 3] = [Right::Read, Right::Write, Right::Admin];
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Right::Read => "read",
            Right::Write => "write",
            Right::Admin => "admin",
        })
    }
}

impl FromStr for Right {
    type Err = String;
    fn from_str(name: &str) -> Result<Right, String> {
        let found = Right::ALL.into_iter().find(|right| right.to_string() == name);
        found.ok_or_else(|| "unknown right: use read, write or admin".to_owned())
    }
}

/// What a key's owner may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    pub secret: String,
    pub rights: BTreeSet<Right>,
    /// Names of buckets; a `*` at the end matches every name with this prefix. Absent: every bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buckets: Option<Vec<String>>,
}

impl Key {
    pub fn reaches(&self, bucket: &str) -> bool {
        let matches = |pattern: &String| match pattern.strip_suffix('*') {
            Some(start) => bucket.starts_with(start),
            None => bucket == pattern,
        };
        self.buckets.as_ref().is_none_or(|buckets| buckets.iter().any(matches))
    }

    fn allows(&self, right: Option<Right>, bucket: Option<&str>) -> bool {
        right.is_none_or(|right| self.rights.contains(&right))
            && bucket.is_none_or(|bucket| self.reaches(bucket))
    }
}

/// By access key id.
pub type KeyTable = BTreeMap<String, Key>;

/// Reads the file again.
pub type ReadKeys = Box<dyn Fn() -> Result<KeyTable, String> + Send + Sync>;

/// The current keys.
#[derive(Clone)]
pub struct Keys(Arc<Mutex<Known>>);

struct Known {
    table: KeyTable,
    file: Option<(PathBuf, ReadKeys)>,
    modified: Option<SystemTime>,
    looked: Instant,
}

impl Keys {
    /// Keys that never change.
    pub(crate) fn fixed(table: KeyTable) -> Keys {
        Keys(Arc::new(Mutex::new(Known { table, file: None, modified: None, looked: Instant::now() })))
    }

    /// Keys of a file, which `read` reads.
    pub fn of_file(path: PathBuf, table: KeyTable, read: ReadKeys) -> Keys {
        let modified = modified(&path);
        let known = Known { table, file: Some((path, read)), modified, looked: Instant::now() };
        Keys(Arc::new(Mutex::new(known)))
    }

    pub fn get(&self, id: &str) -> Option<Key> {
        let mut known = self.0.lock().expect("no panic under this lock");
        known.look();
        known.table.get(id).cloned()
    }
}

fn modified(path: &PathBuf) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

impl Known {
    fn look(&mut self) {
        let Some((path, read)) = &self.file else { return };
        if self.looked.elapsed() < LOOK_EVERY {
            return;
        }
        self.looked = Instant::now();
        let modified = modified(path);
        if modified == self.modified {
            return;
        }
        match read() {
            Ok(table) => (self.table, self.modified) = (table, modified),
            Err(error) => tracing::warn!(error, "cannot read the keys again: the previous keys stay valid"),
        }
    }
}

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        let key = self.get(access_key).ok_or_else(|| s3_error!(InvalidAccessKeyId, "unknown access key"))?;
        Ok(SecretKey::from(key.secret))
    }
}

/// The right that an operation needs; inner `None`: any key will do. Outer `None`: an operation that no key may do.
fn needed(operation: &str) -> Option<Option<Right>> {
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| operation.starts_with(prefix));
    match operation {
        "ListBuckets" | "HeadBucket" => Some(None),
        "GetPublicAccessBlock" | "GetObjectLockConfiguration" => Some(None),
        "PutPublicAccessBlock" | "DeletePublicAccessBlock" | "PutObjectLockConfiguration" => {
            Some(Some(Right::Admin))
        }
        _ if starts(&["GetBucket"]) => Some(None),
        _ if starts(&["CreateBucket", "PutBucket", "DeleteBucket"]) => Some(Some(Right::Admin)),
        _ if starts(&["Get", "Head", "List", "RestoreObject"]) => Some(Some(Right::Read)),
        _ if starts(&["Put", "Post", "Delete", "Copy", "Upload", "Create", "Complete", "Abort"]) => {
            Some(Some(Right::Write))
        }
        _ => None,
    }
}

#[async_trait::async_trait]
impl S3Access for Keys {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let credentials =
            context.credentials().ok_or_else(|| s3_error!(AccessDenied, "the request is not signed"))?;
        let operation = context.s3_op().name();
        let bucket = context.s3_path().get_bucket_name();
        let key = self.get(&credentials.access_key);
        match (key, needed(operation)) {
            (Some(key), Some(right)) if key.allows(right, bucket) => {
                understood::check(operation, context.method(), context.uri(), context.headers())
            }
            (_, None) => Err(s3_error!(NotImplemented, "{operation} is not supported")),
            _ => Err(s3_error!(AccessDenied, "the key has no right to {operation} here")),
        }
    }

    async fn copy_object(&self, request: &mut S3Request<CopyObjectInput>) -> S3Result<()> {
        self.check_source(request, |input| &input.copy_source)
    }

    async fn upload_part_copy(&self, request: &mut S3Request<UploadPartCopyInput>) -> S3Result<()> {
        self.check_source(request, |input| &input.copy_source)
    }
}

impl Keys {
    /// A copy reads its source.
    fn check_source<T>(&self, request: &S3Request<T>, source: fn(&T) -> &CopySource) -> S3Result<()> {
        let CopySource::Bucket { bucket, .. } = source(&request.input) else { return Ok(()) };
        let key = request.credentials.as_ref().and_then(|credentials| self.get(&credentials.access_key));
        match key {
            Some(key) if key.allows(Some(Right::Read), Some(bucket)) => Ok(()),
            _ => Err(s3_error!(AccessDenied, "the key has no right to read the copy's source")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reaches_its_buckets_with_its_rights() {
        let key = |rights: &[Right], buckets: Option<&[&str]>| Key {
            secret: "s".into(),
            rights: rights.iter().copied().collect(),
            buckets: buckets.map(|names| names.iter().map(|name| name.to_string()).collect()),
        };
        let reader = key(&[Right::Read], Some(&["logs", "backup-*"]));
        let may = |key: &Key, operation, bucket| needed(operation).is_some_and(|r| key.allows(r, bucket));
        assert!(may(&reader, "GetObject", Some("logs")));
        assert!(may(&reader, "ListObjectsV2", Some("backup-1")));
        assert!(may(&reader, "ListBuckets", None));
        assert!(!may(&reader, "GetObject", Some("logs2")));
        assert!(!may(&reader, "PutObject", Some("logs")));
        assert!(!may(&reader, "CreateBucket", Some("logs")));
        let admin = key(&[Right::Admin], None);
        assert!(may(&admin, "PutBucketCors", Some("b")) && may(&admin, "DeleteBucket", Some("b")));
        assert!(!may(&admin, "GetObject", Some("b")) && !may(&admin, "ListObjects", Some("b")));
        let writer = key(&[Right::Write], None);
        for operation in
            ["PutObject", "PostObject", "DeleteObjects", "CompleteMultipartUpload", "UploadPartCopy"]
        {
            assert!(may(&writer, operation, Some("b")), "{operation}");
        }
        assert!(!may(&writer, "DeleteBucketCors", Some("b")) && !may(&writer, "GetObjectTagging", Some("b")));
        assert!(may(&reader, "RestoreObject", Some("logs")), "it wakes no more than reading does");
        assert!(needed("SelectObjectContent").is_none());
    }
}
