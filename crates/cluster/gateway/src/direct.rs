//! The gateway's operations without HTTP around them, for the fault search: the same code behind it.

use crate::bytes::backend::Backend;
use crate::convert::timestamp;
use crate::gateway::{Gateway, run_beside};
use crate::http::rights::Keys;
use crate::ops::{lifecycle, list};
use bytes::Bytes;
use futures_util::future::{join, try_join_all};
use futures_util::{Stream, StreamExt, TryStreamExt};
use hyper::http::Extensions;
use hyper::{HeaderMap, Method, Uri};
use s3s::dto::*;
use s3s::{S3Error, S3ErrorCode, S3Request, S3Result, StdError};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use tokio::task::JoinSet;

/// A gateway that runs until this is dropped.
pub struct Direct<B> {
    gateway: Arc<Gateway<B>>,
    _tasks: JoinSet<()>,
}

/// Why a request was not carried out, or perhaps was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub code: String,
    pub why: String,
}

impl Refused {
    /// The object does not exist.
    pub fn is_no_such_key(&self) -> bool {
        self.code == S3ErrorCode::NoSuchKey.as_str()
    }
}

impl From<S3Error> for Refused {
    fn from(error: S3Error) -> Refused {
        Refused { code: error.code().as_str().to_owned(), why: error.to_string() }
    }
}

/// Bytes as they arrive from a client.
pub type Body = Pin<Box<dyn Stream<Item = Bytes> + Send + Sync>>;

/// What is sent of a multipart upload: numbers of parts, and their bodies.
pub struct Parts {
    /// Those of an entry at the same time, once those of the entry before are stored.
    pub first: Vec<Vec<(i32, Body)>>,
    /// At the same time as the request that ends the upload.
    pub late: Vec<(i32, Body)>,
}

fn request<T>(input: T) -> S3Request<T> {
    S3Request {
        input,
        method: Method::PUT,
        uri: Uri::default(),
        headers: HeaderMap::new(),
        extensions: Extensions::new(),
        credentials: None,
        region: None,
        service: None,
        trailing_headers: None,
    }
}

fn class_of(class: Option<&str>) -> Option<StorageClass> {
    class.map(|class| StorageClass::from(class.to_owned()))
}

fn source(bucket: &str, key: &str) -> CopySource {
    CopySource::Bucket { bucket: bucket.into(), key: key.into(), version_id: None }
}

fn body(bytes: Body) -> StreamingBlob {
    StreamingBlob::wrap(bytes.map(Ok::<Bytes, Infallible>))
}

impl<B: Backend> Direct<B> {
    /// `first`: where in a page of keys this gateway begins to move objects.
    pub fn start(backend: Arc<B>, move_bytes_per_second: u64, expire_most: u64, first: usize) -> Direct<B> {
        let mut tasks = JoinSet::new();
        let gateway = Arc::new(Gateway::start(backend, Keys::fixed([].into()), &mut tasks));
        gateway.store.md5.stay_here();
        let mover = gateway.mover(move_bytes_per_second).beginning_at(first);
        run_beside(&gateway, expire_most, Some(mover), &mut tasks);
        Direct { gateway, _tasks: tasks }
    }

    pub async fn create_bucket(&self, bucket: &str) -> Result<(), Refused> {
        let input = CreateBucketInput { bucket: bucket.to_owned(), ..Default::default() };
        Ok(self.gateway.buckets.create(input).await?)
    }

    /// Objects below `expire` go after this many days, those below `dated` at this midnight in seconds since 1970;
    /// those below `moved.0` go to the pool `moved.1` at once.
    pub async fn set_rules(
        &self,
        bucket: &str,
        (expire, days): (&str, i32),
        (dated, date): (&str, u64),
        moved: (&str, &str),
    ) -> Result<(), Refused> {
        let rule = |prefix: &str| LifecycleRule {
            abort_incomplete_multipart_upload: None,
            expiration: None,
            filter: None,
            id: Some(prefix.to_owned()),
            noncurrent_version_expiration: None,
            noncurrent_version_transitions: None,
            prefix: None,
            status: ExpirationStatus::from_static(ExpirationStatus::ENABLED),
            transitions: None,
        };
        let below = |prefix: &str| LifecycleRuleAndOperator {
            prefix: Some(prefix.to_owned()),
            object_size_greater_than: Some(0),
            ..Default::default()
        };
        let filter =
            |prefix: &str| Some(LifecycleRuleFilter { and: Some(below(prefix)), ..Default::default() });
        let after = LifecycleExpiration { days: Some(days), ..Default::default() };
        let at = LifecycleExpiration { date: Some(timestamp(date * 1000)), ..Default::default() };
        let class = TransitionStorageClass::from(moved.1.to_owned());
        let to = Transition { days: Some(0), storage_class: Some(class), ..Default::default() };
        let rules = vec![
            LifecycleRule { filter: filter(expire), expiration: Some(after), ..rule(expire) },
            LifecycleRule { filter: filter(dated), expiration: Some(at), ..rule(dated) },
            LifecycleRule { filter: filter(moved.0), transitions: Some(vec![to]), ..rule(moved.0) },
        ];
        let input = PutBucketLifecycleConfigurationInput {
            bucket: bucket.to_owned(),
            lifecycle_configuration: Some(BucketLifecycleConfiguration { rules }),
            ..Default::default()
        };
        Ok(lifecycle::set(&self.gateway.buckets, input).await?)
    }

    /// `class`: the pool, if it is not the bucket's.
    pub async fn put(
        &self,
        (bucket, key): (&str, &str),
        class: Option<&str>,
        bytes: Body,
    ) -> Result<(), Refused> {
        let input = PutObjectInput {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            body: Some(body(bytes)),
            storage_class: class_of(class),
            ..Default::default()
        };
        self.gateway.objects.put(request(input)).await?;
        Ok(())
    }

    /// `range`: first byte and number of bytes.
    pub async fn get(
        &self,
        (bucket, key): (&str, &str),
        range: Option<(u64, u64)>,
    ) -> Result<Bytes, Refused> {
        let range = range.map(|(first, len)| Range::Int { first, last: Some(first + len - 1) });
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let input = GetObjectInput { bucket, key, range, ..Default::default() };
        let output = self.gateway.objects.get(request(input)).await?;
        let Some(body) = output.body else { return Ok(Bytes::new()) };
        let parts: Result<Vec<Bytes>, StdError> = body.try_collect().await;
        let broken = |error: StdError| Refused { code: "Broken".to_owned(), why: error.to_string() };
        Ok(parts.map_err(broken)?.concat().into())
    }

    pub async fn delete(&self, (bucket, key): (&str, &str)) -> Result<(), Refused> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let input = DeleteObjectInput { bucket, key, ..Default::default() };
        self.gateway.objects.delete(request(input)).await?;
        Ok(())
    }

    /// Has what the object needs woken. Returns whether that slept.
    pub async fn restore(&self, (bucket, key): (&str, &str)) -> Result<bool, Refused> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let input = RestoreObjectInput { bucket, key, ..Default::default() };
        Ok(self.gateway.objects.restore(input).await?)
    }

    /// Returns the keys that were not deleted.
    pub async fn delete_all(&self, bucket: &str, keys: Vec<String>) -> Result<BTreeSet<String>, Refused> {
        let objects = keys.into_iter().map(|key| ObjectIdentifier { key, ..Default::default() }).collect();
        let delete = Delete { objects, quiet: Some(true) };
        let input = DeleteObjectsInput::builder().bucket(bucket.to_owned()).delete(delete);
        let input = input.build().expect("it names a bucket and keys");
        let output = self.gateway.objects.delete_many(request(input)).await?;
        Ok(output.errors.into_iter().flatten().filter_map(|error| error.key).collect())
    }

    /// All keys of the bucket with their objects' sizes, a page of `page` keys at a time.
    pub async fn list(&self, bucket: &str, page: i32) -> Result<BTreeMap<String, u64>, Refused> {
        let (mut listed, mut continuation_token) = (BTreeMap::new(), None);
        loop {
            let (bucket, max_keys) = (bucket.to_owned(), Some(page));
            let input = ListObjectsV2Input { bucket, max_keys, continuation_token, ..Default::default() };
            let output = list::v2(&self.gateway.names, input).await?;
            let size = |object: &Object| object.size.and_then(|size| u64::try_from(size).ok());
            listed.extend(
                output.contents.into_iter().flatten().filter_map(|o| Some((o.key.clone()?, size(&o)?))),
            );
            continuation_token = output.next_continuation_token;
            if continuation_token.is_none() {
                return Ok(listed);
            }
        }
    }

    /// `class`: the pool, if it is not the bucket's.
    pub async fn copy(&self, bucket: &str, from: &str, to: &str, class: Option<&str>) -> Result<(), Refused> {
        let input = CopyObjectInput::builder().bucket(bucket.to_owned()).key(to.to_owned());
        let input = input.copy_source(source(bucket, from)).storage_class(class_of(class));
        self.gateway.objects.copy(request(input.build().expect("it names both"))).await?;
        Ok(())
    }

    /// The same by a multipart upload whose part is the copy.
    pub async fn copy_in_parts(
        &self,
        bucket: &str,
        from: &str,
        to: &str,
        class: Option<&str>,
    ) -> Result<(), Refused> {
        let upload_id = self.begin_upload((bucket, to), class).await?;
        let part = UploadPartCopyInput::builder().bucket(bucket.to_owned()).key(to.to_owned());
        let part = part.copy_source(source(bucket, from)).upload_id(upload_id.clone()).part_number(1);
        let copied = self.gateway.uploads.copy_part(request(part.build().expect("it is complete"))).await?;
        let e_tag = copied.copy_part_result.and_then(|result| result.e_tag);
        Ok(self.complete((bucket, to), &upload_id, &[(1, e_tag)].into(), &[1]).await?)
    }

    /// Puts an object by a multipart upload: it consists of the parts `named`. The completion is sent `times` times: so
    /// do clients that miss an answer.
    pub async fn put_in_parts(
        &self,
        name: (&str, &str),
        class: Option<&str>,
        parts: Parts,
        (named, times): (&[i32], usize),
    ) -> Result<(), Refused> {
        let upload_id = self.begin_upload(name, class).await?;
        let mut e_tags = BTreeMap::new();
        for some in parts.first {
            e_tags.extend(self.put_some(name, &upload_id, some).await?);
        }
        let complete = || self.complete(name, &upload_id, &e_tags, named);
        // What comes so late changes nothing of what the completion names, or has it refused.
        let (_, ended) = join(self.put_some(name, &upload_id, parts.late), complete()).await;
        ended?;
        for _ in 1..times {
            // It has been completed, whatever is answered now.
            let _ = complete().await;
        }
        Ok(())
    }

    /// Begins a multipart upload, and aborts it.
    pub async fn abandon(&self, name: (&str, &str), parts: Parts) -> Result<(), Refused> {
        let upload_id = self.begin_upload(name, None).await?;
        for some in parts.first {
            self.put_some(name, &upload_id, some).await?;
        }
        let (bucket, key, aborted) = (name.0.to_owned(), name.1.to_owned(), upload_id.clone());
        let input = AbortMultipartUploadInput { bucket, key, upload_id: aborted, ..Default::default() };
        let late = self.put_some(name, &upload_id, parts.late);
        let (_, ended) = join(late, self.gateway.uploads.abort(input)).await;
        Ok(ended?)
    }

    /// Puts parts at the same time. Returns their tags.
    async fn put_some(
        &self,
        name: (&str, &str),
        upload_id: &str,
        some: Vec<(i32, Body)>,
    ) -> S3Result<Vec<(i32, Option<ETag>)>> {
        let put = |(number, bytes)| async move {
            Ok((number, self.put_part(name, upload_id, (number, bytes)).await?))
        };
        try_join_all(some.into_iter().map(put)).await
    }

    async fn begin_upload(&self, (bucket, key): (&str, &str), class: Option<&str>) -> S3Result<String> {
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let input =
            CreateMultipartUploadInput { bucket, key, storage_class: class_of(class), ..Default::default() };
        let created = self.gateway.uploads.create(request(input)).await?;
        Ok(created.upload_id.expect("a new upload has an id"))
    }

    async fn put_part(
        &self,
        (bucket, key): (&str, &str),
        upload_id: &str,
        (number, bytes): (i32, Body),
    ) -> S3Result<Option<ETag>> {
        let part = UploadPartInput {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            upload_id: upload_id.to_owned(),
            part_number: number,
            body: Some(body(bytes)),
            ..Default::default()
        };
        Ok(self.gateway.uploads.put_part(request(part)).await?.e_tag)
    }

    async fn complete(
        &self,
        (bucket, key): (&str, &str),
        upload_id: &str,
        e_tags: &BTreeMap<i32, Option<ETag>>,
        named: &[i32],
    ) -> S3Result<()> {
        let part = |number: &i32| CompletedPart {
            e_tag: e_tags.get(number).cloned().flatten(),
            part_number: Some(*number),
            ..Default::default()
        };
        let parts = Some(named.iter().map(part).collect());
        let input = CompleteMultipartUploadInput {
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            upload_id: upload_id.to_owned(),
            multipart_upload: Some(CompletedMultipartUpload { parts }),
            ..Default::default()
        };
        self.gateway.uploads.complete(request(input)).await?;
        Ok(())
    }
}
