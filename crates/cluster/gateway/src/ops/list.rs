//! Listings of objects.

use crate::bytes::backend::Backend;
use crate::bytes::names::Names;
use crate::convert::{OWNER, checksum_type, etag, listed_algorithm, timestamp, url_encoded};
use crate::ops::pools::shown_class;
use ebb_types::{KeyListing, KeyPage, NamespaceAnswer, NamespaceQuery, PAGE_MAX};
use s3s::dto::*;
use s3s::{S3Error, S3Result, s3_error};

pub(crate) fn owner() -> Owner {
    Owner { display_name: Some(OWNER.to_owned()), id: Some(OWNER.to_owned()) }
}

/// The requested page size.
pub(crate) fn page_size(asked: Option<i32>) -> S3Result<u32> {
    match u32::try_from(asked.unwrap_or(PAGE_MAX as i32)) {
        Ok(size) => Ok(size.min(PAGE_MAX)),
        Err(_) => Err(s3_error!(InvalidArgument, "a page size is 0 to {PAGE_MAX}")),
    }
}

/// Wrong kind of reply: the metadata service runs another release.
pub(crate) fn other_answer() -> S3Error {
    s3_error!(InternalError, "unexpected reply of the metadata service: run the same release everywhere")
}

/// How names are encoded in a reply.
#[derive(Clone, Copy)]
pub(crate) struct Encoding {
    url: bool,
}

impl Encoding {
    pub(crate) fn of(asked: Option<&EncodingType>) -> S3Result<Encoding> {
        match asked.map(EncodingType::as_str) {
            None | Some("") => Ok(Encoding { url: false }),
            Some(EncodingType::URL) => Ok(Encoding { url: true }),
            Some(other) => Err(s3_error!(InvalidArgument, "the encoding-type {other} is unknown: use url")),
        }
    }

    pub(crate) fn name(self, name: &str) -> String {
        if self.url { url_encoded(name) } else { name.to_owned() }
    }

    /// S3 does not return an empty one.
    pub(crate) fn delimiter(self, delimiter: Option<&str>) -> Option<String> {
        delimiter.filter(|d| !d.is_empty()).map(|d| self.name(d))
    }

    pub(crate) fn shown(self) -> Option<EncodingType> {
        self.url.then(|| EncodingType::from_static(EncodingType::URL))
    }

    fn object(self, listing: KeyListing, with_owner: bool) -> Object {
        Object {
            checksum_algorithm: listing.checksum.map(|(algorithm, _)| vec![listed_algorithm(algorithm)]),
            checksum_type: listing.checksum.map(|(_, composite)| checksum_type(composite)),
            e_tag: Some(etag(listing.etag)),
            key: Some(self.name(&listing.key)),
            last_modified: Some(timestamp(listing.modified_millis)),
            owner: with_owner.then(owner),
            size: i64::try_from(listing.size).ok(),
            storage_class: Some(ObjectStorageClass::from(shown_class(listing.class.as_deref()))),
            ..Default::default()
        }
    }

    fn version(self, listing: KeyListing) -> ObjectVersion {
        let class = shown_class(listing.class.as_deref());
        let object = self.object(listing, true);
        ObjectVersion {
            checksum_algorithm: object.checksum_algorithm,
            checksum_type: object.checksum_type,
            e_tag: object.e_tag,
            is_latest: Some(true),
            key: object.key,
            last_modified: object.last_modified,
            owner: object.owner,
            size: object.size,
            storage_class: Some(ObjectVersionStorageClass::from(class)),
            version_id: Some("null".to_owned()),
            ..Default::default()
        }
    }

    pub(crate) fn prefixes(self, prefixes: &[String]) -> Vec<CommonPrefix> {
        prefixes.iter().map(|p| CommonPrefix { prefix: Some(self.name(p)) }).collect()
    }
}

async fn page<B: Backend>(
    names: &Names<B>,
    bucket: &str,
    prefix: Option<&str>,
    delimiter: Option<&str>,
    after: String,
    limit: u32,
) -> S3Result<KeyPage> {
    debug_assert!(limit <= PAGE_MAX, "a page is as long as its answer says");
    let (bucket, prefix) = (bucket.to_owned(), prefix.unwrap_or_default().to_owned());
    let delimiter = delimiter.unwrap_or_default().to_owned();
    match names.query(NamespaceQuery::List { bucket, prefix, delimiter, after, limit }).await? {
        NamespaceAnswer::List(page) => Ok(page),
        _ => Err(other_answer()),
    }
}

/// The output of a listing: what all kinds of them repeat of their input and say of the page that begins `after` a key,
/// and what only this kind says, of the page and in the encoding.
macro_rules! listed {
    ($names:expr, $input:ident, after $after:expr, |$page:ident, $encoding:ident| $output:ident { $($more:tt)* }) => {{
        let $encoding = Encoding::of($input.encoding_type.as_ref())?;
        let limit = page_size($input.max_keys)?;
        let (prefix, delimiter) = ($input.prefix.as_deref(), $input.delimiter.as_deref());
        let $page = page($names, &$input.bucket, prefix, delimiter, $after, limit).await?;
        Ok($output {
            name: Some($input.bucket.clone()),
            prefix: Some($encoding.name(prefix.unwrap_or_default())),
            delimiter: $encoding.delimiter(delimiter),
            max_keys: Some(limit as i32),
            is_truncated: Some($page.next.is_some()),
            common_prefixes: Some($encoding.prefixes(&$page.common_prefixes)),
            encoding_type: $encoding.shown(),
            $($more)*
            ..Default::default()
        })
    }};
}

pub async fn v1<B: Backend>(names: &Names<B>, input: ListObjectsInput) -> S3Result<ListObjectsOutput> {
    let marker = input.marker.clone().unwrap_or_default();
    listed!(names, input, after marker.clone(), |page, encoding| ListObjectsOutput {
        marker: Some(encoding.name(&marker)),
        next_marker: page.next.as_deref().map(|next| encoding.name(next)),
        contents: Some(page.keys.into_iter().map(|k| encoding.object(k, true)).collect()),
    })
}

pub async fn v2<B: Backend>(names: &Names<B>, input: ListObjectsV2Input) -> S3Result<ListObjectsV2Output> {
    let after = || match &input.continuation_token {
        Some(token) => from_token(token),
        None => Ok(input.start_after.clone().unwrap_or_default()),
    };
    let with_owner = input.fetch_owner.unwrap_or(false);
    listed!(names, input, after after()?, |page, encoding| ListObjectsV2Output {
        key_count: i32::try_from(page.keys.len() + page.common_prefixes.len()).ok(),
        continuation_token: input.continuation_token.clone(),
        next_continuation_token: page.next.as_deref().map(token),
        start_after: input.start_after.as_deref().map(|s| encoding.name(s)),
        contents: Some(page.keys.into_iter().map(|k| encoding.object(k, with_owner)).collect()),
    })
}

/// Lists every object as its only version.
pub async fn versions<B: Backend>(
    names: &Names<B>,
    input: ListObjectVersionsInput,
) -> S3Result<ListObjectVersionsOutput> {
    let marker = input.key_marker.clone().unwrap_or_default();
    listed!(names, input, after marker.clone(), |page, encoding| ListObjectVersionsOutput {
        key_marker: Some(encoding.name(&marker)),
        version_id_marker: Some(input.version_id_marker.clone().unwrap_or_default()),
        next_key_marker: page.next.as_deref().map(|next| encoding.name(next)),
        next_version_id_marker: page.next.as_ref().map(|_| "null".to_owned()),
        versions: Some(page.keys.into_iter().map(|k| encoding.version(k)).collect()),
    })
}

/// A key as a token that is safe in XML and in URLs.
pub(crate) fn token(key: &str) -> String {
    base64_simd::URL_SAFE_NO_PAD.encode_to_string(key)
}

pub(crate) fn from_token(token: &str) -> S3Result<String> {
    let key =
        base64_simd::URL_SAFE_NO_PAD.decode_to_vec(token).ok().and_then(|key| String::from_utf8(key).ok());
    key.ok_or_else(|| {
        s3_error!(InvalidArgument, "invalid continuation token: it was not issued by this store")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::parse_etag;

    #[test]
    fn names_are_encoded_as_asked_or_not_at_all() {
        let of = |text: &str| Encoding::of(Some(&EncodingType::from(text.to_owned())));
        assert_eq!(of("url").unwrap().name("a b"), "a%20b");
        assert_eq!(Encoding::of(None).unwrap().name("a b"), "a b");
        assert!(of("x").is_err());
    }

    #[test]
    fn made_up_tokens_and_etags_are_refused_or_read() {
        let etag = b"\"0123456789abcdef0123456789abcdef-7\"";
        ebb_testing::fuzz(&[token("a key/\u{1f600}").as_bytes(), etag], |bytes| {
            let text = String::from_utf8_lossy(bytes);
            if let Ok(key) = from_token(&text) {
                assert_eq!(from_token(&token(&key)).unwrap(), key);
            }
            let _ = parse_etag(&text);
        });
    }
}
