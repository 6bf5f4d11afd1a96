//! Put, get, head, delete and copy of objects.

use crate::bytes::backend::Backend;
use crate::bytes::intake::{Stated, StatedChecksum, Taken, body_error, take_in};
use crate::bytes::names::{NameError, Names};
use crate::bytes::reader::Reader;
use crate::bytes::store::Store;
use crate::convert::{
    check_key, check_version, checksum_type, custom, etag, give_checksum, give_headers, http_date,
    kept_headers, parse_etag, seconds, stated_checksum, timestamp,
};
use crate::http::body::{Id, Progress};
use crate::ops::bucket::Buckets;
use crate::ops::conditions::{ReadCondition, When};
use crate::ops::lifecycle::{expiration_of, expiration_of_new};
use crate::ops::list::page_size;
use crate::ops::pools::shown_class;
use crate::ops::tags::{self, TAGS};
use bytes::Bytes;
use ebb_types::{
    ChecksumAlgorithm, ChunkId, Condition, ETag, Extent, NamespaceOp, ObjectMeta, OnlyIf, kept_class,
};
use futures_util::{Stream, StreamExt, TryStreamExt};
use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue, IF_RANGE};
use s3s::dto::*;
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Response, S3Result, StdError, s3_error};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The library has no field for it in a HEAD.
const TAGGING_COUNT: HeaderName = HeaderName::from_static("x-amz-tagging-count");

/// Body of a response that is read while it is sent.
struct ObjectBody {
    inner: Pin<Box<dyn Stream<Item = Result<Bytes, StdError>> + Send + Sync>>,
    left: usize,
}

impl Stream for ObjectBody {
    type Item = Result<Bytes, StdError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = std::task::ready!(self.inner.as_mut().poll_next(context));
        if let Some(Ok(data)) = &next {
            debug_assert!(data.len() <= self.left, "an answer has as many bytes as its head says");
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

/// The bytes that a GET or HEAD requests.
struct Selection {
    range: Range<u64>,
    /// Index of the requested part.
    part: Option<usize>,
    /// Whether a range or a part was requested: then the response states which bytes it has.
    partial: bool,
}

/// `if_range`: the request's If-Range; if the object has changed since, the range is ignored.
fn select(
    meta: &ObjectMeta,
    range: Option<s3s::dto::Range>,
    part: Option<i32>,
    if_range: Option<&HeaderValue>,
) -> S3Result<Selection> {
    let range = range.filter(|_| if_range.is_none_or(|known| is_same(meta, known)));
    let whole = Selection { range: 0..meta.size, part: None, partial: false };
    match (range, part) {
        (Some(_), Some(_)) => Err(s3_error!(InvalidRequest, "a range and a part number together")),
        (Some(range), None) => {
            let range = range.check(meta.size)?;
            // The last bytes of an empty object, or its last zero bytes.
            let range = Some(range).filter(|r| !r.is_empty()).ok_or(S3ErrorCode::InvalidRange)?;
            Ok(Selection { range, partial: true, ..whole })
        }
        (None, Some(1)) if meta.parts.is_empty() => Ok(Selection { partial: meta.size > 0, ..whole }),
        (None, Some(number)) => {
            let index = meta.parts.iter().position(|part| i32::from(part.number) == number);
            let index = index.ok_or_else(|| no_part(meta, number))?;
            let start: u64 = meta.parts[..index].iter().map(|part| part.size).sum();
            let range = start..start + meta.parts[index].size;
            Ok(Selection { partial: !range.is_empty(), range, part: Some(index) })
        }
        (None, None) => Ok(whole),
    }
}

fn no_part(meta: &ObjectMeta, number: i32) -> S3Error {
    let why = format!("the object has no part {number}: it has {}", meta.parts.len().max(1));
    custom("InvalidPartNumber", StatusCode::RANGE_NOT_SATISFIABLE, why)
}

fn is_same(meta: &ObjectMeta, known: &HeaderValue) -> bool {
    let text = known.to_str().unwrap_or_default();
    text == format!("\"{}\"", meta.etag)
        || http_date(&timestamp(meta.modified_millis)).as_deref() == Some(text)
}

impl Selection {
    fn content_range(&self, size: u64) -> Option<String> {
        debug_assert!(!self.partial || !self.range.is_empty(), "there is no range without a byte");
        self.partial.then(|| format!("bytes {}-{}/{size}", self.range.start, self.range.end - 1))
    }

    /// The checksum of exactly these bytes, if there is one.
    fn checksum(&self, meta: &ObjectMeta) -> Option<ebb_types::Checksum> {
        match self.part {
            Some(index) => meta.parts[index].checksum.clone(),
            None if self.partial && meta.size != self.range.end - self.range.start => None,
            None => meta.checksum.clone(),
        }
    }
}

/// Single objects: their bytes, and what their names say.
pub struct Objects<B> {
    backend: Arc<B>,
    names: Arc<Names<B>>,
    store: Arc<Store<B>>,
    buckets: Arc<Buckets<B>>,
}

impl<B: Backend> Objects<B> {
    pub fn new(
        backend: Arc<B>,
        names: Arc<Names<B>>,
        store: Arc<Store<B>>,
        buckets: Arc<Buckets<B>>,
    ) -> Objects<B> {
        Objects { backend, names, store, buckets }
    }

    pub async fn open(&self, bucket: &str, key: &str) -> Result<Arc<Reader<B>>, NameError> {
        Reader::open(&self.store, &self.names, bucket, key).await
    }

    /// Commits a received body under its key.
    async fn commit_put(
        &self,
        (bucket, key): (String, String),
        taken: Taken,
        headers: Vec<(String, String)>,
        when: When,
    ) -> S3Result<()> {
        let extents = taken.data.take();
        let bytes = extents.iter().map(|extent| extent.len).sum::<u64>();
        debug_assert_eq!(bytes, taken.size, "an object is as long as what was stored of it");
        let meta = ObjectMeta {
            size: taken.size,
            etag: taken.etag,
            modified_millis: 0,
            extents,
            headers,
            checksum: taken.checksum,
            upload: None,
            parts: Vec::new(),
        };
        let put = NamespaceOp::Put { bucket, key, meta, when: when.condition };
        self.names.commit(put).await.map_err(|error| when.refused(error))?;
        Ok(())
    }

    pub async fn put(&self, req: S3Request<PutObjectInput>) -> S3Result<PutObjectOutput> {
        let mut input = req.input;
        check_key(&input.key)?;
        let when = When::of(&self.names, &req.headers, &input.bucket, &input.key).await?;
        let given = stated_checksum!(input)?;
        let stated = Stated {
            length: input.content_length.and_then(|n| u64::try_from(n).ok()),
            md5: input.content_md5.take(),
            checksum: StatedChecksum::from_request(&req.headers, given)?,
            trailers: req.trailing_headers,
        };
        let headers = with_tags(kept_headers!(input)?, input.tagging.as_deref())?;
        let class = input.storage_class.as_ref().map(StorageClass::as_str);
        let destination = self.buckets.destination(&input.bucket, class).await?;
        let headers = destination.mark(headers);
        let body = input.body.unwrap_or_else(|| StreamingBlob::from(Body::empty()));
        let taken = take_in(&self.store, &destination.pool, body.map_err(body_error), stated).await?;
        let mut output = PutObjectOutput { e_tag: Some(etag(taken.etag)), ..Default::default() };
        give_checksum!(output, &taken.checksum);
        output.checksum_type = taken.checksum.as_ref().map(|c| checksum_type(c.composite));
        let (bucket, key) = (input.bucket.clone(), input.key.clone());
        self.commit_put((input.bucket, input.key), taken, headers, when).await?;
        output.expiration = expiration_of_new(&self.buckets, &self.names, (&bucket, &key)).await;
        Ok(output)
    }

    pub async fn get(&self, mut req: S3Request<GetObjectInput>) -> S3Result<GetObjectOutput> {
        let id: Id = req.extensions.remove().unwrap_or_default();
        let input = req.input;
        check_version(input.version_id.as_deref())?;
        let times = (input.if_modified_since, input.if_unmodified_since);
        let condition = ReadCondition::of(&req.headers, times)?;
        let (reader, selection, body) = loop {
            let reader = self.open(&input.bucket, &input.key).await?;
            condition.check(&reader.meta)?;
            let if_range = req.headers.get(IF_RANGE);
            let selection = select(&reader.meta, input.range, input.part_number, if_range)?;
            match body(reader.clone(), selection.range.clone(), id.clone()).await {
                // Nothing is sent yet: begin again with what the key names now.
                Err(NameError::Replaced) => {}
                body => break (reader, selection, body?),
            }
        };
        let meta = &reader.meta;
        let mut output = GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            body: Some(body),
            content_length: i64::try_from(selection.range.end - selection.range.start).ok(),
            content_range: selection.content_range(meta.size),
            e_tag: Some(etag(meta.etag)),
            expiration: expiration_of(&self.buckets, (&input.bucket, &input.key), meta).await,
            last_modified: Some(timestamp(meta.modified_millis)),
            parts_count: input.part_number.and_then(|_| parts_count(meta)),
            tag_count: tags::count(meta),
            ..Default::default()
        };
        give_headers!(output, meta.headers.iter().cloned());
        if input.checksum_mode.is_some() {
            let checksum = selection.checksum(meta);
            give_checksum!(output, &checksum);
            output.checksum_type = checksum.and(meta.checksum.as_ref()).map(|c| checksum_type(c.composite));
        }
        Ok(output)
    }

    pub async fn head(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let input = req.input;
        check_version(input.version_id.as_deref())?;
        let times = (input.if_modified_since, input.if_unmodified_since);
        let condition = ReadCondition::of(&req.headers, times)?;
        let meta = self.names.object(&input.bucket, &input.key).await?;
        condition.check(&meta)?;
        let selection = select(&meta, input.range, input.part_number, req.headers.get(IF_RANGE))?;
        let mut output = HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            content_length: i64::try_from(selection.range.end - selection.range.start).ok(),
            content_range: selection.content_range(meta.size),
            e_tag: Some(etag(meta.etag)),
            expiration: expiration_of(&self.buckets, (&input.bucket, &input.key), &meta).await,
            last_modified: Some(timestamp(meta.modified_millis)),
            parts_count: input.part_number.and_then(|_| parts_count(&meta)),
            ..Default::default()
        };
        if input.checksum_mode.is_some() {
            let checksum = selection.checksum(&meta);
            give_checksum!(output, &checksum);
            output.checksum_type = checksum.and(meta.checksum.as_ref()).map(|c| checksum_type(c.composite));
        }
        let tags = tags::count(&meta);
        give_headers!(output, meta.headers);
        // The library does this for a GET alone.
        output.cache_control = input.response_cache_control.or(output.cache_control);
        output.content_disposition = input.response_content_disposition.or(output.content_disposition);
        output.content_encoding = input.response_content_encoding.or(output.content_encoding);
        output.content_language = input.response_content_language.or(output.content_language);
        output.content_type = input.response_content_type.or(output.content_type);
        output.expires = input.response_expires.or(output.expires);
        let mut response = S3Response::new(output);
        if let Some(count) = tags {
            response.headers.insert(TAGGING_COUNT, HeaderValue::from(count));
        }
        Ok(response)
    }

    /// Has the servers woken that the object needs. Returns whether they slept.
    pub async fn restore(&self, input: RestoreObjectInput) -> S3Result<bool> {
        check_version(input.version_id.as_deref())?;
        if input.restore_request.is_some_and(|asked| asked.type_.is_some() || asked.output_location.is_some())
        {
            return Err(s3_error!(NotImplemented, "a restore that selects or copies is not supported"));
        }
        let meta = self.names.object(&input.bucket, &input.key).await?;
        let chunk_bytes = u64::from(self.backend.chunk_bytes());
        let of_extent = |extent: &Extent| {
            let (object, last) = (extent.object, extent.offset + extent.len.saturating_sub(1));
            let indexes = extent.offset / chunk_bytes..=last / chunk_bytes;
            indexes.map(move |index| ChunkId { object, index: index as u32 })
        };
        Ok(self.backend.wake(meta.extents.iter().flat_map(of_extent).collect()).await?)
    }

    pub async fn delete(&self, req: S3Request<DeleteObjectInput>) -> S3Result<DeleteObjectOutput> {
        let input = req.input;
        check_version(input.version_id.as_deref())?;
        let when = When::of(&self.names, &req.headers, &input.bucket, &input.key).await?;
        let only_if = only_if(input.if_match_size, input.if_match_last_modified_time.as_ref());
        let (bucket, key) = (input.bucket, input.key);
        let deletion = NamespaceOp::Delete { bucket, key, when: when.condition, only_if };
        self.names.commit(deletion).await.map_err(|error| when.refused(error))?;
        Ok(DeleteObjectOutput::default())
    }

    pub async fn delete_many(&self, req: S3Request<DeleteObjectsInput>) -> S3Result<DeleteObjectsOutput> {
        let DeleteObjectsInput { bucket, delete, .. } = req.input;
        let asked = delete.objects.len();
        if asked > 1000 {
            return Err(s3_error!(MalformedXML, "at most 1000 keys are allowed"));
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
        debug_assert!(quiet || deleted.len() + errors.len() == asked, "each key has its answer");
        Ok(DeleteObjectsOutput { deleted: Some(deleted), errors: Some(errors), ..Default::default() })
    }

    async fn delete_one(&self, bucket: String, object: ObjectIdentifier) -> S3Result<()> {
        check_version(object.version_id.as_deref())?;
        let when = match &object.e_tag {
            Some(tag) if tag.value() == "*" => Condition::Present,
            Some(tag) => Condition::Matches(tag.as_strong().and_then(parse_etag).unwrap_or(ETag::NONE)),
            None => Condition::Any,
        };
        let only_if = only_if(object.size, object.last_modified_time.as_ref());
        self.names.commit(NamespaceOp::Delete { bucket, key: object.key, when, only_if }).await?;
        Ok(())
    }

    pub async fn copy(&self, req: S3Request<CopyObjectInput>) -> S3Result<CopyObjectOutput> {
        let mut input = req.input;
        check_key(&input.key)?;
        let times =
            (input.copy_source_if_modified_since.take(), input.copy_source_if_unmodified_since.take());
        let of_source = ReadCondition::of_source(&req.headers, times)?;
        let replace = replaces(input.metadata_directive.as_ref().map(MetadataDirective::as_str))?;
        let replace_tags = replaces(input.tagging_directive.as_ref().map(TaggingDirective::as_str))?;
        let (from_bucket, from_key) = source(&input.copy_source)?;
        let reader = self.open(from_bucket, from_key).await?;
        of_source.check_source(&reader.meta)?;
        let class = input.storage_class.as_ref().map(StorageClass::as_str);
        let target = self.buckets.destination(&input.bucket, class).await?;
        let moves = target.class.as_deref() != kept_class(&reader.meta.headers);
        if !replace && !moves && *from_bucket == *input.bucket && *from_key == *input.key {
            return Err(s3_error!(
                InvalidRequest,
                "a copy to itself must replace the metadata, or change the storage class"
            ));
        }
        let when = When::of(&self.names, &req.headers, &input.bucket, &input.key).await?;
        let tags =
            if replace_tags { input.tagging.take() } else { Some(tags::of_object(&reader.meta).into()) };
        let headers = if replace { kept_headers!(input)? } else { reader.meta.headers.clone() };
        let headers = target.mark(with_tags(headers, tags.as_deref())?);
        let stated = Stated {
            length: Some(reader.meta.size),
            md5: None,
            checksum: StatedChecksum::from_request(&req.headers, None)?,
            trailers: None,
        };
        let meta = reader.meta.clone();
        let progress = Progress::of(&req.extensions);
        let source = content(reader, 0..meta.size).inspect(|_| progress.touch());
        let mut taken = take_in(&self.store, &target.pool, source, stated).await?;
        debug_assert_eq!(taken.size, meta.size, "a copy is as long as its source");
        if meta.etag.parts == 0 && taken.etag != meta.etag {
            return Err(s3_error!(InternalError, "the source's bytes do not match its ETag"));
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
        let (bucket, key) = (input.bucket.clone(), input.key.clone());
        self.commit_put((input.bucket, input.key), taken, headers, when).await?;
        let expiration = expiration_of_new(&self.buckets, &self.names, (&bucket, &key)).await;
        Ok(CopyObjectOutput { copy_object_result: Some(result), expiration, ..Default::default() })
    }

    pub async fn attributes(
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
            output.storage_class = Some(StorageClass::from(shown_class(kept_class(&meta.headers))));
        }
        if let (true, Some(kept)) = (wants(ObjectAttributes::CHECKSUM), &meta.checksum) {
            let mut checksum =
                Checksum { checksum_type: Some(checksum_type(kept.composite)), ..Default::default() };
            give_checksum!(checksum, Some(kept));
            output.checksum = Some(checksum);
        }
        if wants(ObjectAttributes::OBJECT_PARTS) && !meta.parts.is_empty() {
            let page = page_size(input.max_parts)?;
            output.object_parts = Some(parts_page(&meta, input.part_number_marker.unwrap_or(0), page));
        }
        Ok(output)
    }
}

fn parts_count(meta: &ObjectMeta) -> Option<i32> {
    i32::try_from(meta.parts.len()).ok().filter(|n| *n > 0)
}

/// Parts with numbers above `marker`. S3 lists them only if they have checksums.
fn parts_page(meta: &ObjectMeta, marker: i32, limit: u32) -> GetObjectAttributesParts {
    let mut rest = meta.parts.iter().filter(|part| i32::from(part.number) > marker).peekable();
    let page: Vec<_> = rest.by_ref().take(limit as usize).collect();
    let last = page.last().map_or(marker, |part| i32::from(part.number));
    let parts = page.into_iter().map(|part| {
        let (part_number, size) = (Some(i32::from(part.number)), i64::try_from(part.size).ok());
        let mut shown = s3s::dto::ObjectPart { part_number, size, ..Default::default() };
        give_checksum!(shown, &part.checksum);
        shown
    });
    GetObjectAttributesParts {
        parts: meta.checksum.as_ref().map(|_| parts.collect()),
        is_truncated: Some(rest.peek().is_some()),
        max_parts: Some(limit as i32),
        part_number_marker: Some(marker),
        next_part_number_marker: Some(last),
        total_parts_count: parts_count(meta),
    }
}

/// The headers to keep, with exactly these tags.
pub(crate) fn with_tags(
    mut headers: Vec<(String, String)>,
    tags: Option<&str>,
) -> S3Result<Vec<(String, String)>> {
    headers.retain(|(name, _)| name != TAGS);
    let tags = tags.map(tags::from_header).transpose()?.flatten();
    headers.extend(tags.map(|tags| (TAGS.to_owned(), tags)));
    Ok(headers)
}

fn only_if(size: Option<i64>, modified: Option<&Timestamp>) -> OnlyIf {
    // A value that cannot be a size or a time does not match any object.
    let number = |n: i64| u64::try_from(n).unwrap_or(u64::MAX);
    OnlyIf {
        size: size.map(number),
        modified_seconds: modified.map(|time| number(seconds(time))),
        rules: None,
    }
}

/// Whether a copy has its own metadata, or its own tags, instead of its source's.
fn replaces(directive: Option<&str>) -> S3Result<bool> {
    match directive {
        None | Some("COPY") => Ok(false),
        Some("REPLACE") => Ok(true),
        Some(other) => Err(s3_error!(InvalidArgument, "the directive {other} is neither COPY nor REPLACE")),
    }
}

/// Bucket and key of a copy's source.
pub(crate) fn source(source: &CopySource) -> S3Result<(&str, &str)> {
    match source {
        CopySource::Bucket { bucket, key, version_id } => {
            check_version(version_id.as_deref())?;
            Ok((bucket, key))
        }
        _ => Err(s3_error!(NotImplemented, "copies from access points")),
    }
}

/// A range of an object's bytes as a source for [`take_in`].
pub(crate) fn content<B: Backend>(
    reader: Arc<Reader<B>>,
    range: Range<u64>,
) -> impl Stream<Item = S3Result<Bytes>> + Send {
    let pieces = reader.pieces(range);
    reader.stream(pieces).map(|data| Ok(data?))
}

/// The body of a response. Its first piece is read before the response begins, so that common errors get their own
/// status.
async fn body<B: Backend>(
    reader: Arc<Reader<B>>,
    range: Range<u64>,
    Id(id): Id,
) -> Result<StreamingBlob, NameError> {
    let left = (range.end - range.start) as usize;
    let pieces = reader.pieces(range);
    match pieces[..] {
        [] => Ok(StreamingBlob::from(Body::empty())),
        [piece] => Ok(StreamingBlob::from(Body::from(reader.read_only(piece).await?))),
        _ => {
            let mut rest = Box::pin(reader.clone().stream(pieces));
            let first = rest.next().await.transpose()?;
            let first = futures_util::stream::iter(first.map(Ok));
            // An error here breaks the connection: the client sees that bytes are missing.
            let broken_off = move |error: NameError| {
                let Reader { bucket, key, .. } = &*reader;
                tracing::warn!(target: "ebb::s3", id, bucket, key, %error, "an answer was broken off");
                StdError::from(error.to_string())
            };
            let inner = Box::pin(first.chain(rest).map_err(broken_off));
            Ok(StreamingBlob::new(ObjectBody { inner, left }))
        }
    }
}
