//! Put, get, head, delete and copy of objects.

use super::Gateway;
use super::backend::Backend;
use super::convert::{
    ReadCondition, algorithm_name, checksum_type, condition, etag, give_checksum, give_headers, kept_headers,
    parse_etag, stated_checksum, timestamp,
};
use super::intake::{Stated, StatedChecksum, Taken, body_error, take_in};
use super::names::NameError;
use super::reader::Reader;
use bytes::Bytes;
use ebb_types::{ChecksumAlgorithm, Condition, NamespaceOp, ObjectMeta};
use futures_util::{Stream, StreamExt, TryStreamExt};
use hyper::HeaderMap;
use s3s::dto::*;
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{Body, S3ErrorCode, S3Request, S3Result, StdError, s3_error};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Headers that ask for what Ebb does not do. Ignoring them would be a lie.
const REFUSED_HEADERS: [&str; 6] = [
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-legal-hold",
    "x-amz-website-redirect-location",
    "x-amz-write-offset-bytes",
];

pub(super) fn refuse_unsupported(headers: &HeaderMap) -> S3Result<()> {
    match REFUSED_HEADERS.iter().find(|name| headers.contains_key(**name)) {
        Some(name) => Err(s3_error!(NotImplemented, "{name} is not supported: leave it away")),
        None => Ok(()),
    }
}

/// Nothing is versioned here: the only version of an object is "null".
fn check_version(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("null") => Ok(()),
        Some(_) => Err(s3_error!(NoSuchVersion, "objects have no versions here")),
    }
}

/// Body of an answer that is read while it is sent.
struct ObjectBody {
    inner: Pin<Box<dyn Stream<Item = Result<Bytes, StdError>> + Send + Sync>>,
    left: usize,
}

impl Stream for ObjectBody {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = std::task::ready!(self.inner.as_mut().poll_next(context));
        if let Some(Ok(data)) = &next {
            self.left = self.left.saturating_sub(data.len());
        }
        Poll::Ready(next)
    }
}

impl ByteStream for ObjectBody {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(self.left)
    }
}

/// Which bytes a GET or HEAD asks for.
struct Selection {
    range: Range<u64>,
    /// Whether it is an answer to a range or a part: then the answer says which bytes it has.
    partial: bool,
}

fn select(meta: &ObjectMeta, range: Option<s3s::dto::Range>, part: Option<i32>) -> S3Result<Selection> {
    match (range, part) {
        (Some(_), Some(_)) => Err(s3_error!(InvalidRequest, "a range and a part number together")),
        (Some(range), None) => Ok(Selection { range: range.check(meta.size)?, partial: true }),
        (None, Some(number)) => {
            let index = usize::try_from(number).ok().and_then(|n| n.checked_sub(1));
            let sizes =
                if meta.part_sizes.is_empty() { std::slice::from_ref(&meta.size) } else { &meta.part_sizes };
            let index = index.filter(|i| *i < sizes.len()).ok_or(S3ErrorCode::InvalidRange)?;
            let start: u64 = sizes[..index].iter().sum();
            Ok(Selection { range: start..start + sizes[index], partial: meta.size > 0 })
        }
        (None, None) => Ok(Selection { range: 0..meta.size, partial: false }),
    }
}

impl Selection {
    fn content_range(&self, size: u64) -> Option<String> {
        self.partial.then(|| format!("bytes {}-{}/{size}", self.range.start, self.range.end - 1))
    }
}

impl<B: Backend> Gateway<B> {
    pub(super) async fn open(&self, bucket: &str, key: &str) -> Result<Arc<Reader<B>>, NameError> {
        Reader::open(&self.store, &self.names, bucket, key).await
    }

    /// Names what was taken in.
    async fn commit_put(
        &self,
        (bucket, key): (String, String),
        taken: Taken,
        headers: Vec<(String, String)>,
        when: Condition,
    ) -> S3Result<()> {
        let meta = ObjectMeta {
            size: taken.size,
            etag: taken.etag,
            modified_millis: 0,
            extents: taken.data.take(),
            headers,
            checksum: taken.checksum,
            part_sizes: Vec::new(),
        };
        self.names.commit(NamespaceOp::Put { bucket, key, meta, when }).await?;
        Ok(())
    }

    pub(super) async fn put(&self, req: S3Request<PutObjectInput>) -> S3Result<PutObjectOutput> {
        refuse_unsupported(&req.headers)?;
        let mut input = req.input;
        let when = condition(input.if_match.as_ref(), input.if_none_match.as_ref())?;
        let given = stated_checksum!(input);
        let stated = Stated {
            length: input.content_length.and_then(|n| u64::try_from(n).ok()),
            md5: input.content_md5.take(),
            checksum: StatedChecksum::from_request(&req.headers, given, req.trailing_headers)?,
        };
        let headers = kept_headers!(input);
        let body = input.body.unwrap_or_else(|| StreamingBlob::from(Body::empty()));
        let taken = take_in(&self.store, body.map_err(body_error), stated).await?;
        let mut output = PutObjectOutput { e_tag: Some(etag(taken.etag)), ..Default::default() };
        give_checksum!(output, &taken.checksum);
        output.checksum_type = taken.checksum.as_ref().map(|c| checksum_type(c.composite));
        self.commit_put((input.bucket, input.key), taken, headers, when).await?;
        Ok(output)
    }

    pub(super) async fn get(&self, req: S3Request<GetObjectInput>) -> S3Result<GetObjectOutput> {
        let input = req.input;
        check_version(input.version_id.as_deref())?;
        let reader = self.open(&input.bucket, &input.key).await?;
        let meta = &reader.meta;
        let condition = ReadCondition {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        condition.check(meta)?;
        let selection = select(meta, input.range, input.part_number)?;
        let mut output = GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(selection.range.end - selection.range.start).ok(),
            content_range: selection.content_range(meta.size),
            e_tag: Some(etag(meta.etag)),
            last_modified: Some(timestamp(meta.modified_millis)),
            parts_count: input.part_number.and_then(|_| parts_count(meta)),
            ..Default::default()
        };
        give_headers!(output, meta.headers.iter().cloned());
        if input.checksum_mode.is_some() && !selection.partial {
            give_checksum!(output, &meta.checksum);
            output.checksum_type = meta.checksum.as_ref().map(|c| checksum_type(c.composite));
        }
        output.body = Some(body(reader, selection.range).await?);
        Ok(output)
    }

    pub(super) async fn head(&self, req: S3Request<HeadObjectInput>) -> S3Result<HeadObjectOutput> {
        let input = req.input;
        check_version(input.version_id.as_deref())?;
        let meta = self.names.object(&input.bucket, &input.key).await?;
        let condition = ReadCondition {
            if_match: input.if_match,
            if_none_match: input.if_none_match,
            if_modified_since: input.if_modified_since,
            if_unmodified_since: input.if_unmodified_since,
        };
        condition.check(&meta)?;
        let selection = select(&meta, input.range, input.part_number)?;
        let mut output = HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(selection.range.end - selection.range.start).ok(),
            content_range: selection.content_range(meta.size),
            e_tag: Some(etag(meta.etag)),
            last_modified: Some(timestamp(meta.modified_millis)),
            parts_count: input.part_number.and_then(|_| parts_count(&meta)),
            ..Default::default()
        };
        if input.checksum_mode.is_some() && !selection.partial {
            give_checksum!(output, &meta.checksum);
            output.checksum_type = meta.checksum.as_ref().map(|c| checksum_type(c.composite));
        }
        give_headers!(output, meta.headers);
        Ok(output)
    }

    pub(super) async fn delete(&self, req: S3Request<DeleteObjectInput>) -> S3Result<DeleteObjectOutput> {
        let input = req.input;
        check_version(input.version_id.as_deref())?;
        let when = condition(input.if_match.as_ref(), None)?;
        self.names.commit(NamespaceOp::Delete { bucket: input.bucket, key: input.key, when }).await?;
        Ok(DeleteObjectOutput::default())
    }

    pub(super) async fn delete_many(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<DeleteObjectsOutput> {
        let DeleteObjectsInput { bucket, delete, .. } = req.input;
        if delete.objects.len() > 1000 {
            return Err(s3_error!(MalformedXML, "at most 1000 keys"));
        }
        let quiet = delete.quiet.unwrap_or(false);
        let deletions = delete.objects.into_iter().map(|object| {
            let bucket = bucket.clone();
            async move {
                let key = object.key.clone();
                (key, self.delete_one(bucket, object).await)
            }
        });
        let (mut deleted, mut errors) = (Vec::new(), Vec::new());
        for (key, outcome) in futures_util::future::join_all(deletions).await {
            match outcome {
                Ok(()) if quiet => {}
                Ok(()) => deleted.push(DeletedObject { key: Some(key), ..Default::default() }),
                Err(error) if *error.code() == S3ErrorCode::NoSuchBucket => return Err(error),
                Err(error) => errors.push(Error {
                    code: Some(error.code().as_str().to_owned()),
                    key: Some(key),
                    message: error.message().map(str::to_owned),
                    version_id: None,
                }),
            }
        }
        Ok(DeleteObjectsOutput { deleted: Some(deleted), errors: Some(errors), ..Default::default() })
    }

    async fn delete_one(&self, bucket: String, object: ObjectIdentifier) -> S3Result<()> {
        check_version(object.version_id.as_deref())?;
        let when = match &object.e_tag {
            Some(tag) => Condition::Matches(parse_etag(tag.value()).ok_or(S3ErrorCode::PreconditionFailed)?),
            None => Condition::Any,
        };
        self.names.commit(NamespaceOp::Delete { bucket, key: object.key, when }).await?;
        Ok(())
    }

    pub(super) async fn copy(&self, req: S3Request<CopyObjectInput>) -> S3Result<CopyObjectOutput> {
        refuse_unsupported(&req.headers)?;
        let mut input = req.input;
        let condition = ReadCondition {
            if_match: input.copy_source_if_match.take(),
            if_none_match: input.copy_source_if_none_match.take(),
            if_modified_since: input.copy_source_if_modified_since.take(),
            if_unmodified_since: input.copy_source_if_unmodified_since.take(),
        };
        let (from_bucket, from_key) = source(&input.copy_source)?;
        let reader = self.open(from_bucket, from_key).await?;
        condition.check_source(&reader.meta)?;
        let replace =
            input.metadata_directive.as_ref().is_some_and(|d| d.as_str() == MetadataDirective::REPLACE);
        if !replace && *from_bucket == *input.bucket && *from_key == *input.key {
            return Err(s3_error!(InvalidRequest, "a copy to itself must replace the metadata"));
        }
        let headers = if replace { kept_headers!(input) } else { reader.meta.headers.clone() };
        let stated = Stated {
            length: Some(reader.meta.size),
            md5: None,
            checksum: StatedChecksum::from_request(&req.headers, None, None)?,
        };
        let meta = reader.meta.clone();
        let mut taken = take_in(&self.store, content(reader, 0..meta.size), stated).await?;
        if meta.etag.parts == 0 && taken.etag != meta.etag {
            return Err(s3_error!(InternalError, "the source's bytes do not fit its ETag"));
        }
        if taken.checksum.is_none() {
            taken.checksum = meta.checksum.filter(|c| !c.composite);
        }
        let mut result = CopyObjectResult {
            e_tag: Some(etag(taken.etag)),
            last_modified: Some(Timestamp::from(std::time::SystemTime::now())),
            ..Default::default()
        };
        give_checksum!(result, &taken.checksum);
        self.commit_put((input.bucket, input.key), taken, headers, Condition::Any).await?;
        Ok(CopyObjectOutput { copy_object_result: Some(result), ..Default::default() })
    }

    pub(super) async fn attributes(
        &self,
        req: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<GetObjectAttributesOutput> {
        let input = req.input;
        check_version(input.version_id.as_deref())?;
        let meta = self.names.object(&input.bucket, &input.key).await?;
        // One header may hold several, separated by commas.
        let wants = |name: &str| {
            let mut asked = input.object_attributes.iter().flat_map(|a| a.as_str().split(','));
            asked.any(|a| a.trim() == name)
        };
        let mut output = GetObjectAttributesOutput {
            last_modified: Some(timestamp(meta.modified_millis)),
            ..Default::default()
        };
        if wants(ObjectAttributes::ETAG) {
            output.e_tag = Some(etag(meta.etag));
        }
        if wants(ObjectAttributes::OBJECT_SIZE) {
            output.object_size = i64::try_from(meta.size).ok();
        }
        if wants(ObjectAttributes::STORAGE_CLASS) {
            output.storage_class = Some(StorageClass::from_static(StorageClass::STANDARD));
        }
        if let (true, Some(kept)) = (wants(ObjectAttributes::CHECKSUM), &meta.checksum) {
            let mut checksum =
                Checksum { checksum_type: Some(checksum_type(kept.composite)), ..Default::default() };
            give_checksum!(checksum, Some(kept));
            output.checksum = Some(checksum);
        }
        if wants(ObjectAttributes::OBJECT_PARTS) && !meta.part_sizes.is_empty() {
            let total_parts_count = parts_count(&meta);
            output.object_parts = Some(GetObjectAttributesParts { total_parts_count, ..Default::default() });
        }
        Ok(output)
    }
}

fn parts_count(meta: &ObjectMeta) -> Option<i32> {
    i32::try_from(meta.part_sizes.len()).ok().filter(|n| *n > 0)
}

/// Bucket and key of a copy's source.
pub(super) fn source(source: &CopySource) -> S3Result<(&str, &str)> {
    match source {
        CopySource::Bucket { bucket, key, version_id } => {
            check_version(version_id.as_deref())?;
            Ok((bucket, key))
        }
        _ => Err(s3_error!(NotImplemented, "copies from access points")),
    }
}

/// A range of an object's bytes as a source for [`take_in`].
pub(super) fn content<B: Backend>(
    reader: Arc<Reader<B>>,
    range: Range<u64>,
) -> impl Stream<Item = S3Result<Bytes>> + Send {
    let pieces = reader.pieces(range);
    reader.stream(pieces).map(|data| Ok(data?))
}

/// The body of an answer. Its first piece is read before the answer begins, so that common errors get their own status.
async fn body<B: Backend>(reader: Arc<Reader<B>>, range: Range<u64>) -> S3Result<StreamingBlob> {
    let left = (range.end - range.start) as usize;
    let pieces = reader.pieces(range);
    match pieces[..] {
        [] => Ok(StreamingBlob::from(Body::empty())),
        [piece] => Ok(StreamingBlob::from(Body::from(reader.read(piece).await?))),
        _ => {
            let mut rest = Box::pin(reader.stream(pieces));
            let first = rest.next().await.transpose()?;
            let first = futures_util::stream::iter(first.map(Ok));
            let inner =
                Box::pin(first.chain(rest).map_err(|error: NameError| StdError::from(error.to_string())));
            Ok(StreamingBlob::new(ObjectBody { inner, left }))
        }
    }
}

/// The algorithm of a listing's entry.
pub(super) fn listed_algorithm(algorithm: ChecksumAlgorithm) -> s3s::dto::ChecksumAlgorithm {
    s3s::dto::ChecksumAlgorithm::from_static(algorithm_name(algorithm))
}
