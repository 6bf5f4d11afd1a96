//! Multipart uploads.

use crate::bytes::backend::{Backend, Pool};
use crate::bytes::intake::{Stated, StatedChecksum, Taken, body_error, take_in};
use crate::bytes::names::{NameError, Names};
use crate::bytes::reader::Reader;
use crate::bytes::store::Store;
use crate::convert::{
    algorithm, algorithm_name, check_key, checksum_type, etag, give_checksum, kept_headers, listed_algorithm,
    multipart_checksum, parse_etag, stated_checksum, timestamp,
};
use crate::http::body::Progress;
use crate::ops::bucket::Buckets;
use crate::ops::conditions::{ReadCondition, When, present};
use crate::ops::lifecycle::{expiration_of, expiration_of_new};
use crate::ops::list::{Encoding, other_answer, owner, page_size};
use crate::ops::objects::{content, source, with_tags};
use crate::ops::pools::shown_class;
use ebb_types::{
    self as ebb, ChecksumAlgorithm, Condition, ETag, NamespaceAnswer, NamespaceDone, NamespaceError,
    NamespaceOp, NamespaceQuery, PAGE_MAX, UploadListing, UploadMeta, is_same_secret, kept_class,
};
use futures_util::{StreamExt, TryStreamExt};
use hyper::HeaderMap;
use s3s::crypto::{Checksum as _, Md5};
use s3s::dto::*;
use s3s::{Body, S3Error, S3ErrorCode, S3Request, S3Result, s3_error};
use std::collections::BTreeMap;
use std::sync::Arc;

fn part_number(number: i32) -> S3Result<u16> {
    u16::try_from(number)
        .ok()
        .filter(|n| (1..=ebb::PART_NUMBER_MAX).contains(n))
        .ok_or_else(|| s3_error!(InvalidArgument, "a part number must be 1 to {}", ebb::PART_NUMBER_MAX))
}

/// Whether the checksum of a multipart object is composite: as requested, else the algorithm's default.
fn is_composite(algorithm: ChecksumAlgorithm, asked: Option<&ChecksumType>) -> S3Result<bool> {
    let crc = !matches!(algorithm, ChecksumAlgorithm::Sha1 | ChecksumAlgorithm::Sha256);
    let composite = match asked.map(ChecksumType::as_str) {
        Some(ChecksumType::COMPOSITE) => true,
        Some(ChecksumType::FULL_OBJECT) => false,
        Some(other) => return Err(s3_error!(InvalidRequest, "unknown checksum type {other}")),
        None => algorithm != ChecksumAlgorithm::Crc64Nvme,
    };
    if (composite && algorithm == ChecksumAlgorithm::Crc64Nvme) || (!composite && !crc) {
        return Err(s3_error!(
            InvalidRequest,
            "this checksum type cannot be combined with {}",
            algorithm_name(algorithm)
        ));
    }
    Ok(composite)
}

/// Bytes of the code in an upload's id.
const CODE_BYTES: usize = 16;

/// Multipart uploads, until they are completed or aborted.
pub struct Uploads<B> {
    backend: Arc<B>,
    names: Arc<Names<B>>,
    store: Arc<Store<B>>,
    buckets: Arc<Buckets<B>>,
}

impl<B: Backend> Uploads<B> {
    pub fn new(
        backend: Arc<B>,
        names: Arc<Names<B>>,
        store: Arc<Store<B>>,
        buckets: Arc<Buckets<B>>,
    ) -> Uploads<B> {
        Uploads { backend, names, store, buckets }
    }

    /// How clients name an upload. Uploads are counted, so an id has a code, too: who has one must not guess others.
    fn upload_id(&self, bucket: &str, key: &str, upload: u64) -> S3Result<String> {
        let parts: [&[u8]; 5] =
            [b"ebb upload id", bucket.as_bytes(), b"/", key.as_bytes(), &upload.to_be_bytes()];
        let code = self.backend.code(&parts)?;
        Ok(format!("{upload:016x}{}", ebb::hex(&code[..CODE_BYTES])))
    }

    fn parse_upload_id(&self, bucket: &str, key: &str, text: &str) -> S3Result<u64> {
        let unknown = || NameError::Refused(NamespaceError::NoSuchUpload);
        let upload = text.get(..16).and_then(|id| u64::from_str_radix(id, 16).ok()).ok_or_else(unknown)?;
        match is_same_secret(self.upload_id(bucket, key, upload)?.as_bytes(), text.as_bytes()) {
            true => Ok(upload),
            false => Err(unknown().into()),
        }
    }

    pub async fn create(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<CreateMultipartUploadOutput> {
        let mut input = req.input;
        check_key(&input.key)?;
        self.check_now(&req.headers, &input.bucket, &input.key).await?;
        let headers = with_tags(kept_headers!(input)?, input.tagging.as_deref())?;
        let class = input.storage_class.as_ref().map(StorageClass::as_str);
        let headers = self.buckets.destination(&input.bucket, class).await?.mark(headers);
        let checksum = match &input.checksum_algorithm {
            Some(name) => {
                let algorithm = algorithm(name.as_str())?;
                Some((algorithm, is_composite(algorithm, input.checksum_type.as_ref())?))
            }
            None => None,
        };
        let (bucket, key) = (input.bucket.clone(), input.key.clone());
        let created = self.names.commit(NamespaceOp::CreateUpload { bucket, key, headers, checksum }).await?;
        let NamespaceDone::Upload(id) = created else { return Err(other_answer()) };
        Ok(CreateMultipartUploadOutput {
            upload_id: Some(self.upload_id(&input.bucket, &input.key, id)?),
            bucket: Some(input.bucket),
            key: Some(input.key),
            checksum_algorithm: checksum.map(|(algorithm, _)| listed_algorithm(algorithm)),
            checksum_type: checksum.map(|(_, composite)| checksum_type(composite)),
            ..Default::default()
        })
    }

    /// A condition at the beginning of an upload holds for that moment; the one at its completion decides.
    async fn check_now(&self, headers: &HeaderMap, bucket: &str, key: &str) -> S3Result<()> {
        let When { condition: when, found } = When::of(&self.names, headers, bucket, key).await?;
        if found || when == Condition::Any {
            return Ok(());
        }
        let present = present(&self.names, bucket, key).await?;
        let refused = match (when, present) {
            (Condition::Matches(_) | Condition::Present, None) => NamespaceError::NoSuchKey,
            (Condition::Matches(wanted), Some(etag)) if etag != wanted => NamespaceError::PreconditionFailed,
            (Condition::Differs(known), Some(etag)) if etag == known => NamespaceError::PreconditionFailed,
            (Condition::Absent, Some(_)) => NamespaceError::PreconditionFailed,
            _ => return Ok(()),
        };
        Err(NameError::Refused(refused).into())
    }

    async fn commit_part(
        &self,
        name: (String, String),
        upload: u64,
        number: u16,
        taken: Taken,
    ) -> S3Result<()> {
        let extents = taken.data.take();
        let bytes = extents.iter().map(|extent| extent.len).sum::<u64>();
        debug_assert_eq!(bytes, taken.size, "a part is as long as what was stored of it");
        debug_assert!((1..=ebb::PART_NUMBER_MAX).contains(&number), "a part's number was checked");
        let part = ebb::Part {
            size: taken.size,
            etag: taken.etag,
            modified_millis: 0,
            extents,
            checksum: taken.checksum,
        };
        let (bucket, key) = name;
        self.names.commit(NamespaceOp::PutPart { bucket, key, upload, number, part }).await?;
        Ok(())
    }

    /// The pool of an upload's parts.
    async fn pool_of(&self, bucket: &str, upload: &UploadMeta) -> S3Result<Pool> {
        Ok(self.buckets.destination(bucket, kept_class(&upload.headers)).await?.pool)
    }

    pub async fn put_part(&self, req: S3Request<UploadPartInput>) -> S3Result<UploadPartOutput> {
        let mut input = req.input;
        let upload = self.parse_upload_id(&input.bucket, &input.key, &input.upload_id)?;
        let number = part_number(input.part_number)?;
        let given = stated_checksum!(input)?;
        let stated = Stated {
            length: input.content_length.and_then(|n| u64::try_from(n).ok()),
            md5: input.content_md5.take(),
            checksum: StatedChecksum::from_request(&req.headers, given)?,
            trailers: req.trailing_headers,
        };
        let name = (input.bucket, input.key);
        let pool = match self.backend.pools().is_empty() {
            true => Pool::replicated(),
            false => self.pool_of(&name.0, &self.upload(name.clone(), upload).await?).await?,
        };
        let body = input.body.unwrap_or_else(|| StreamingBlob::from(Body::empty()));
        let taken = take_in(&self.store, &pool, body.map_err(body_error), stated).await?;
        let mut output = UploadPartOutput { e_tag: Some(etag(taken.etag)), ..Default::default() };
        give_checksum!(output, &taken.checksum);
        self.commit_part(name, upload, number, taken).await?;
        Ok(output)
    }

    pub async fn copy_part(&self, req: S3Request<UploadPartCopyInput>) -> S3Result<UploadPartCopyOutput> {
        let mut input = req.input;
        let upload = self.parse_upload_id(&input.bucket, &input.key, &input.upload_id)?;
        let number = part_number(input.part_number)?;
        let times =
            (input.copy_source_if_modified_since.take(), input.copy_source_if_unmodified_since.take());
        let condition = ReadCondition::of_source(&req.headers, times)?;
        let (from_bucket, from_key) = source(&input.copy_source)?;
        let reader = Reader::open(&self.store, &self.names, from_bucket, from_key).await?;
        condition.check_source(&reader.meta)?;
        let range = source_range(input.copy_source_range.as_deref(), reader.meta.size)?;
        let name = (input.bucket.clone(), input.key.clone());
        let announced = self.upload(name.clone(), upload).await?;
        let pool = self.pool_of(&name.0, &announced).await?;
        let checksum = announced.checksum.map(|(algorithm, _)| StatedChecksum::wanted(algorithm));
        let length = Some(range.end - range.start);
        let stated = Stated { length, checksum, ..Stated::default() };
        let progress = Progress::of(&req.extensions);
        let source = content(reader, range).inspect(|_| progress.touch());
        let taken = take_in(&self.store, &pool, source, stated).await?;
        debug_assert_eq!(Some(taken.size), length, "a copy is as long as its source");
        let mut result = CopyPartResult {
            e_tag: Some(etag(taken.etag)),
            last_modified: Some(Timestamp::from(std::time::SystemTime::now())),
            ..Default::default()
        };
        give_checksum!(result, &taken.checksum);
        self.commit_part(name, upload, number, taken).await?;
        Ok(UploadPartCopyOutput { copy_part_result: Some(result), ..Default::default() })
    }

    async fn upload(&self, (bucket, key): (String, String), upload: u64) -> S3Result<UploadMeta> {
        match self.names.query(NamespaceQuery::Upload { bucket, key, upload }).await? {
            NamespaceAnswer::Upload(meta) => Ok(meta),
            _ => Err(other_answer()),
        }
    }

    async fn parts(
        &self,
        (bucket, key): (String, String),
        upload: u64,
        after: u16,
        limit: u32,
    ) -> S3Result<(Vec<(u16, ebb::Part)>, bool)> {
        match self.names.query(NamespaceQuery::Parts { bucket, key, upload, after, limit }).await? {
            NamespaceAnswer::Parts { parts, more } => Ok((parts, more)),
            _ => Err(other_answer()),
        }
    }

    /// What an upload announced about its checksum, and all its parts.
    async fn whole_upload(
        &self,
        name: &(String, String),
        upload: u64,
    ) -> S3Result<(Option<(ChecksumAlgorithm, bool)>, BTreeMap<u16, ebb::Part>)> {
        let announced = self.upload(name.clone(), upload).await?.checksum;
        let mut all = BTreeMap::new();
        loop {
            let after = all.last_key_value().map_or(0, |(number, _)| *number);
            let (parts, more) = self.parts(name.clone(), upload, after, PAGE_MAX).await?;
            all.extend(parts);
            if !more {
                return Ok((announced, all));
            }
        }
    }

    pub async fn complete(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<CompleteMultipartUploadOutput> {
        let mut input = req.input;
        let name = (input.bucket.clone(), input.key.clone());
        let upload = self.parse_upload_id(&input.bucket, &input.key, &input.upload_id)?;
        let when = When::of(&self.names, &req.headers, &name.0, &name.1).await?;
        let named = input.multipart_upload.take().and_then(|u| u.parts).unwrap_or_default();
        if named.is_empty() {
            return Err(s3_error!(MalformedXML, "a completion names at least one part"));
        }
        let stated = stated_checksum!(input)?;
        // The same completion, sent before, may be carried out at any time, also between these questions.
        let (announced, have) = match self.whole_upload(&name, upload).await {
            Err(error) if *error.code() == S3ErrorCode::NoSuchUpload => {
                return self.completed(&name, upload, &named, stated).await.unwrap_or(Err(error));
            }
            found => found?,
        };
        let parts = named_parts(named, &have)?;
        let sums: Vec<(u64, Option<ebb::Checksum>)> =
            parts.iter().map(|(number, _)| (have[number].size, have[number].checksum.clone())).collect();
        check_whole(announced, input.checksum_type.as_ref(), stated, &sums)?;
        let checksum =
            announced.and_then(|(algorithm, composite)| multipart_checksum(algorithm, composite, &sums));
        let size: u64 = sums.iter().map(|(size, _)| size).sum();
        if input.mpu_object_size.is_some_and(|stated| u64::try_from(stated) != Ok(size)) {
            return Err(s3_error!(InvalidRequest, "size mismatch: the parts have {size} bytes in total"));
        }
        let etag_of_all = joined_etag(&parts);
        let mut output = completion(&name, etag_of_all, &checksum);
        let (bucket, key) = name.clone();
        let (etag, condition) = (etag_of_all, when.condition);
        let op = NamespaceOp::CompleteUpload { bucket, key, upload, parts, etag, checksum, when: condition };
        self.names.commit(op).await.map_err(|error| when.refused(error))?;
        output.expiration = expiration_of_new(&self.buckets, &self.names, (&name.0, &name.1)).await;
        Ok(output)
    }

    /// The reply to a repeated completion, if the key names what the first one made.
    async fn completed(
        &self,
        name: &(String, String),
        upload: u64,
        named: &[CompletedPart],
        stated: Option<(ChecksumAlgorithm, String)>,
    ) -> Option<S3Result<CompleteMultipartUploadOutput>> {
        let meta = self.names.object(&name.0, &name.1).await.ok()?;
        let tags = named.iter().map(|part| Some((0, parse_etag(part.e_tag.as_ref()?.value())?)));
        let again =
            meta.upload == Some(upload) && joined_etag(&tags.collect::<Option<Vec<_>>>()?) == meta.etag;
        if !again {
            return None;
        }
        let own =
            stated.zip(meta.checksum.as_ref()).filter(|((algorithm, _), own)| *algorithm == own.algorithm);
        if own.is_some_and(|((_, stated), own)| !is_sum_of_whole(&stated, own, named.len())) {
            return Some(Err(other_sum()));
        }
        let expiration = expiration_of(&self.buckets, (&name.0, &name.1), &meta).await;
        let made = completion(name, meta.etag, &meta.checksum);
        Some(Ok(CompleteMultipartUploadOutput { expiration, ..made }))
    }

    pub async fn abort(&self, input: AbortMultipartUploadInput) -> S3Result<()> {
        let upload = self.parse_upload_id(&input.bucket, &input.key, &input.upload_id)?;
        self.names
            .commit(NamespaceOp::AbortUpload { bucket: input.bucket, key: input.key, upload, rules: None })
            .await?;
        Ok(())
    }

    pub async fn list_parts(&self, input: ListPartsInput) -> S3Result<ListPartsOutput> {
        let name = (input.bucket.clone(), input.key.clone());
        let upload = self.parse_upload_id(&input.bucket, &input.key, &input.upload_id)?;
        let marker = input.part_number_marker.unwrap_or(0);
        let after = u16::try_from(marker)
            .map_err(|_| s3_error!(InvalidArgument, "part-number-marker is 0 to {}", u16::MAX))?;
        let limit = page_size(input.max_parts)?;
        let UploadMeta { checksum, headers, .. } = self.upload(name.clone(), upload).await?;
        let (parts, more) = self.parts(name, upload, after, limit).await?;
        let last = parts.last().map(|(number, _)| i32::from(*number));
        let parts = parts.into_iter().map(|(number, part)| {
            let mut shown = Part {
                e_tag: Some(etag(part.etag)),
                last_modified: Some(timestamp(part.modified_millis)),
                part_number: Some(i32::from(number)),
                size: i64::try_from(part.size).ok(),
                ..Default::default()
            };
            give_checksum!(shown, &part.checksum);
            shown
        });
        Ok(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            parts: Some(parts.collect()),
            part_number_marker: Some(marker),
            next_part_number_marker: last.filter(|_| more),
            max_parts: Some(limit as i32),
            is_truncated: Some(more),
            owner: Some(owner()),
            checksum_algorithm: checksum.map(|(algorithm, _)| listed_algorithm(algorithm)),
            checksum_type: checksum.map(|(_, composite)| checksum_type(composite)),
            storage_class: Some(StorageClass::from(shown_class(kept_class(&headers)))),
            ..Default::default()
        })
    }

    pub async fn list(&self, input: ListMultipartUploadsInput) -> S3Result<ListMultipartUploadsOutput> {
        let encoding = Encoding::of(input.encoding_type.as_ref())?;
        let limit = page_size(input.max_uploads)?;
        let key_marker = input.key_marker.clone().unwrap_or_default();
        let after = match input.upload_id_marker.as_deref().filter(|m| !m.is_empty()) {
            Some(id) => {
                let after = self.parse_upload_id(&input.bucket, &key_marker, id)?;
                (key_marker, after)
            }
            None if key_marker.is_empty() => (key_marker, 0),
            None => (key_marker, u64::MAX),
        };
        let page = self.uploads_page(&input, after, limit as usize).await?;
        let id_of = |key: &str, upload| self.upload_id(&input.bucket, key, upload);
        let shown = |upload: UploadListing| {
            Ok(MultipartUpload {
                initiated: Some(timestamp(upload.initiated_millis)),
                key: Some(encoding.name(&upload.key)),
                owner: Some(owner()),
                storage_class: Some(StorageClass::from(shown_class(upload.class.as_deref()))),
                upload_id: Some(id_of(&upload.key, upload.upload)?),
                ..Default::default()
            })
        };
        let uploads = page.uploads.into_iter().map(shown).collect::<S3Result<_>>()?;
        let next_id = match &page.next {
            Some((key, Some(upload))) => Some(id_of(key, *upload)?),
            Some((_, None)) => Some(String::new()),
            None => None,
        };
        Ok(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            common_prefixes: Some(encoding.prefixes(&page.prefixes)),
            delimiter: encoding.delimiter(input.delimiter.as_deref()),
            encoding_type: encoding.shown(),
            key_marker: input.key_marker.as_deref().map(|marker| encoding.name(marker)),
            upload_id_marker: input.upload_id_marker,
            prefix: input.prefix.as_deref().map(|prefix| encoding.name(prefix)),
            max_uploads: Some(limit as i32),
            is_truncated: Some(page.next.is_some()),
            next_key_marker: page.next.as_ref().map(|(key, _)| encoding.name(key)),
            next_upload_id_marker: next_id,
            uploads: Some(uploads),
            ..Default::default()
        })
    }

    /// Uploads after `after`; those with a common prefix appear only as the prefix. Uploads are few: all are examined.
    async fn uploads_page(
        &self,
        input: &ListMultipartUploadsInput,
        mut after: (String, u64),
        limit: usize,
    ) -> S3Result<UploadsPage> {
        let prefix = input.prefix.clone().unwrap_or_default();
        let delimiter = input.delimiter.as_deref().filter(|d| !d.is_empty());
        // A page may have ended with a common prefix.
        let passed = after.0.clone();
        let mut page = UploadsPage::default();
        let mut last = None;
        loop {
            let (bucket, prefix) = (input.bucket.clone(), prefix.clone());
            let query = NamespaceQuery::Uploads { bucket, prefix: prefix.clone(), after, limit: PAGE_MAX };
            let NamespaceAnswer::Uploads { uploads, more } = self.names.query(query).await? else {
                return Err(other_answer());
            };
            let Some(end) = uploads.last().map(|upload| (upload.key.clone(), upload.upload)) else {
                return Ok(page);
            };
            for upload in uploads {
                let end_of_prefix =
                    |d: &str| Some(prefix.len() + upload.key[prefix.len()..].find(d)? + d.len());
                let common = delimiter.and_then(end_of_prefix).map(|end| upload.key[..end].to_owned());
                if common.as_ref().is_some_and(|c| *c == passed || page.prefixes.last() == Some(c)) {
                    continue;
                }
                if page.uploads.len() + page.prefixes.len() == limit {
                    page.next = last;
                    return Ok(page);
                }
                match common {
                    Some(common) => {
                        last = Some((common.clone(), None));
                        page.prefixes.push(common);
                    }
                    None => {
                        last = Some((upload.key.clone(), Some(upload.upload)));
                        page.uploads.push(upload);
                    }
                }
            }
            if !more {
                return Ok(page);
            }
            after = end;
        }
    }
}

#[derive(Default)]
struct UploadsPage {
    uploads: Vec<UploadListing>,
    prefixes: Vec<String>,
    /// Where the next page begins: a key and its upload, or a common prefix. `None`: this is the last page.
    next: Option<(String, Option<u64>)>,
}

/// The parts that a completion names, checked against the existing ones.
fn named_parts(named: Vec<CompletedPart>, have: &BTreeMap<u16, ebb::Part>) -> S3Result<Vec<(u16, ETag)>> {
    let mut parts = Vec::with_capacity(named.len());
    for mut part in named {
        let number = part.part_number.ok_or_else(|| s3_error!(MalformedXML, "a part needs its number"))?;
        let number = part_number(number)?;
        let tag = part.e_tag.take().and_then(|tag| parse_etag(tag.value()));
        let own = tag.and_then(|tag| have.get(&number).filter(|own| own.etag == tag));
        let (Some(tag), Some(own)) = (tag, own) else {
            return Err(NameError::Refused(NamespaceError::InvalidPart { number }).into());
        };
        if let Some((algorithm, value)) = stated_checksum!(part)?
            && own.checksum.as_ref().is_none_or(|sum| algorithm != sum.algorithm || value != sum.value)
        {
            return Err(s3_error!(InvalidPart, "the checksum of part {number} does not match"));
        }
        parts.push((number, tag));
    }
    Ok(parts)
}

/// Checks what a completion states about the checksum of the whole: its type, and its value with or without the number
/// of parts that S3 appends to a composite one.
fn check_whole(
    announced: Option<(ChecksumAlgorithm, bool)>,
    kind: Option<&ChecksumType>,
    stated: Option<(ChecksumAlgorithm, String)>,
    parts: &[(u64, Option<ebb::Checksum>)],
) -> S3Result<()> {
    if let (Some((algorithm, composite)), Some(_)) = (announced, kind)
        && is_composite(algorithm, kind)? != composite
    {
        return Err(s3_error!(InvalidRequest, "the upload was created with the other checksum type"));
    }
    let Some((algorithm, stated)) = stated else { return Ok(()) };
    let composite = match announced {
        Some((_, composite)) => composite,
        None => is_composite(algorithm, kind)?,
    };
    let Some(own) = multipart_checksum(algorithm, composite, parts) else {
        let name = algorithm_name(algorithm);
        return Err(s3_error!(
            InvalidRequest,
            "not every part has a {name} checksum to verify the whole by: name {name} when you create the upload"
        ));
    };
    match is_sum_of_whole(&stated, &own, parts.len()) {
        true => Ok(()),
        false => Err(other_sum()),
    }
}

/// With the number of parts, or without.
fn is_sum_of_whole(stated: &str, own: &ebb::Checksum, parts: usize) -> bool {
    let bare = own.value.strip_suffix(&format!("-{parts}")).filter(|_| own.composite);
    stated == own.value || Some(stated) == bare
}

fn other_sum() -> S3Error {
    s3_error!(BadDigest, "checksum mismatch: the parts do not match the declared checksum")
}

fn completion(
    (bucket, key): &(String, String),
    tag: ETag,
    checksum: &Option<ebb::Checksum>,
) -> CompleteMultipartUploadOutput {
    let mut output = CompleteMultipartUploadOutput {
        bucket: Some(bucket.clone()),
        key: Some(key.clone()),
        location: Some(format!("/{bucket}/{key}")),
        e_tag: Some(etag(tag)),
        checksum_type: checksum.as_ref().map(|c| checksum_type(c.composite)),
        ..Default::default()
    };
    give_checksum!(output, checksum);
    output
}

/// The source range of a part: a range beyond the source would make the part shorter than requested.
fn source_range(text: Option<&str>, size: u64) -> S3Result<std::ops::Range<u64>> {
    let Some(text) = text else { return Ok(0..size) };
    match Range::parse(text) {
        Ok(Range::Int { first, last: Some(last) }) if last < size => Ok(first..last + 1),
        Ok(Range::Int { last: Some(_), .. }) => {
            Err(s3_error!(InvalidArgument, "the source has {size} bytes: {text} goes beyond its end"))
        }
        _ => Err(s3_error!(InvalidArgument, "invalid copy range: write bytes=first-last")),
    }
}

/// MD5 of the parts' MD5s.
fn joined_etag(parts: &[(u16, ETag)]) -> ETag {
    let mut md5 = Md5::new();
    parts.iter().for_each(|(_, tag)| md5.update(&tag.md5));
    ETag { md5: md5.finalize(), parts: parts.len() as u16 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::{finished, hasher};

    #[test]
    fn a_composite_checksum_is_the_same_with_and_without_the_number_of_parts() {
        use ChecksumAlgorithm::{Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
        let sum = |algorithm, bytes: &[u8]| {
            let mut hasher = hasher(algorithm);
            hasher.update(bytes);
            finished(hasher)
        };
        for algorithm in [Crc32, Crc32c, Sha1, Sha256] {
            let part = |bytes: &[u8]| {
                let value = sum(algorithm, bytes);
                (bytes.len() as u64, Some(ebb::Checksum { algorithm, value, composite: false }))
            };
            let parts = [part(b"one"), part(b"two")];
            let own = multipart_checksum(algorithm, true, &parts).unwrap().value;
            let bare = own.strip_suffix("-2").unwrap();
            let states = |value: String| {
                let stated = Some((algorithm, value));
                let outcome = check_whole(Some((algorithm, true)), None, stated, &parts);
                outcome.map_err(|error| error.code().as_str().to_owned())
            };
            assert_eq!(states(own.clone()), Ok(()));
            assert_eq!(states(bare.to_owned()), Ok(()));
            for wrong in [format!("{bare}-3"), format!("{bare}-"), sum(algorithm, b"onetwo"), String::new()] {
                assert_eq!(states(wrong.clone()), Err("BadDigest".into()), "{algorithm:?} {wrong}");
            }
            let unannounced = check_whole(None, None, Some((algorithm, bare.to_owned())), &parts);
            assert!(unannounced.is_ok(), "the parts tell");
        }
        let bare = [(3, None), (3, None)];
        let stated = || Some((Crc64Nvme, sum(Crc64Nvme, b"onetwo")));
        assert!(check_whole(None, None, None, &bare).is_ok());
        assert!(check_whole(None, None, stated(), &bare).is_err(), "it cannot be verified");
        let full = ChecksumType::from_static(ChecksumType::FULL_OBJECT);
        assert!(check_whole(Some((Crc32, true)), Some(&full), None, &bare).is_err(), "the other type");
        assert!(check_whole(Some((Crc32, false)), Some(&full), None, &bare).is_ok());
    }
}
