//! Conversion between S3's types and the namespace's.

use crate::bytes::backend::BackendError;
use crate::bytes::names::NameError;
use ebb_client::bug;
use ebb_types::{Checksum, ChecksumAlgorithm, ETag, NamespaceError};
use hyper::StatusCode;
use hyper::header::{HeaderValue, RETRY_AFTER};
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
use s3s::dto::{self, Timestamp, TimestampFormat};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use std::borrow::Cow;
use std::time::{Duration, SystemTime};

/// The region of buckets that were created without a location.
pub const REGION: &str = "us-east-1";

/// The only account: everything belongs to the cluster.
pub const OWNER: &str = "ebb";

impl From<NameError> for S3Error {
    fn from(error: NameError) -> S3Error {
        match error {
            NameError::Refused(refused) => refusal(&refused),
            NameError::Backend(error) => error.into(),
            NameError::Replaced => s3_error!(SlowDown, "{error}"),
        }
    }
}

impl From<BackendError> for S3Error {
    fn from(error: BackendError) -> S3Error {
        match error {
            BackendError::Unavailable(_) | BackendError::GivenUp => s3_error!(SlowDown, "{error}"),
            BackendError::Hibernates { retry_after, .. } => {
                let mut asleep = s3_error!(SlowDown, "{error}");
                let seconds = HeaderValue::from(retry_after.as_millis().div_ceil(1000).max(1) as u64);
                asleep.set_headers([(RETRY_AFTER, seconds)].into_iter().collect());
                asleep
            }
            BackendError::NoSpace => {
                custom("InsufficientStorage", StatusCode::INSUFFICIENT_STORAGE, error.to_string())
            }
            // Clients try again a few times, and are told so each time. What says that there is no such object would
            // have tools that keep a copy delete theirs.
            BackendError::Lost(_) | BackendError::Failed(_) => s3_error!(InternalError, "{error}"),
        }
    }
}

/// An error whose code the library does not know.
pub fn custom(code: &'static str, status: StatusCode, why: impl Into<Cow<'static, str>>) -> S3Error {
    let mut error = S3Error::with_message(S3ErrorCode::Custom(code.into()), why);
    error.set_status_code(status);
    error
}

/// There is no versioning: the only version of an object is "null".
pub(crate) fn check_version(version: Option<&str>) -> S3Result<()> {
    match version {
        None | Some("null") => Ok(()),
        Some(_) => Err(s3_error!(NoSuchVersion, "objects have no versions here")),
    }
}

/// The algorithm of a list entry.
pub(crate) fn listed_algorithm(algorithm: ChecksumAlgorithm) -> s3s::dto::ChecksumAlgorithm {
    s3s::dto::ChecksumAlgorithm::from_static(algorithm_name(algorithm))
}

fn refusal(error: &NamespaceError) -> S3Error {
    let code = match error {
        NamespaceError::NoSuchBucket => S3ErrorCode::NoSuchBucket,
        NamespaceError::BucketExists => S3ErrorCode::BucketAlreadyOwnedByYou,
        NamespaceError::BucketNotEmpty => S3ErrorCode::BucketNotEmpty,
        NamespaceError::NoSuchKey => S3ErrorCode::NoSuchKey,
        NamespaceError::NoSuchUpload => S3ErrorCode::NoSuchUpload,
        NamespaceError::InvalidPart { .. } => S3ErrorCode::InvalidPart,
        NamespaceError::InvalidPartOrder => S3ErrorCode::InvalidPartOrder,
        NamespaceError::PartTooSmall { .. } => S3ErrorCode::EntityTooSmall,
        NamespaceError::PreconditionFailed => S3ErrorCode::PreconditionFailed,
        NamespaceError::BadName => S3ErrorCode::InvalidBucketName,
        NamespaceError::BadKey => S3ErrorCode::KeyTooLongError,
        NamespaceError::Expired => S3ErrorCode::RequestTimeout,
        NamespaceError::SettingTooLong => S3ErrorCode::InvalidRequest,
        NamespaceError::NotLeased | NamespaceError::ClocksApart { .. } | NamespaceError::RulesChanged => {
            S3ErrorCode::ServiceUnavailable
        }
        NamespaceError::VolumeExists
        | NamespaceError::NoSuchVolume
        | NamespaceError::VolumeInUse(_)
        | NamespaceError::VolumeTaken
        | NamespaceError::SliceMoved
        | NamespaceError::NoSuchPool { .. }
        | NamespaceError::TooMany => S3ErrorCode::InternalError,
    };
    S3Error::with_message(code, error.to_string())
}

/// `millis` since 1970.
pub fn timestamp(millis: u64) -> Timestamp {
    Timestamp::from(SystemTime::UNIX_EPOCH + Duration::from_millis(millis))
}

/// Seconds since 1970: HTTP dates have no finer resolution.
pub fn seconds(time: &Timestamp) -> i64 {
    let mut text = Vec::new();
    // A date that cannot be formatted is not the date of any object.
    if time.format(TimestampFormat::EpochSeconds, &mut text).is_err() {
        return i64::MIN;
    }
    let text = String::from_utf8_lossy(&text);
    text.split('.').next().and_then(|whole| whole.parse().ok()).unwrap_or(i64::MIN)
}

pub fn etag(etag: ETag) -> dto::ETag {
    dto::ETag::Strong(etag.to_string())
}

pub fn parse_etag(text: &str) -> Option<ETag> {
    let (hex, parts) = match text.split_once('-') {
        Some((hex, parts)) => (hex, parts.parse().ok().filter(|n| *n > 0)?),
        None => (text, 0),
    };
    if hex.len() != 32 || !hex.is_ascii() {
        return None;
    }
    let mut md5 = [0u8; 16];
    for (i, byte) in md5.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(ETag { md5, parts })
}

/// The headers to keep, from any input that can set them.
macro_rules! kept_headers {
    ($input:expr) => {{
        let mut headers: Vec<(String, String)> = Vec::new();
        let mut keep = |name: &str, value: Option<String>| {
            headers.extend(value.map(|value| (name.to_owned(), value)));
        };
        keep("content-type", $input.content_type.take());
        keep("content-encoding", $crate::convert::own_encoding($input.content_encoding.take()));
        keep("content-language", $input.content_language.take());
        keep("content-disposition", $input.content_disposition.take());
        keep("cache-control", $input.cache_control.take());
        keep("expires", $input.expires.take().and_then(|time| $crate::convert::http_date(&time)));
        for (name, value) in $input.metadata.take().unwrap_or_default() {
            keep(&format!("x-amz-meta-{}", name.to_ascii_lowercase()), Some(value));
        }
        $crate::convert::check_sizes(&headers).map(|()| headers)
    }};
}
pub(crate) use kept_headers;

/// The first character that XML 1.0 has no way to write: listings are XML, and one such name would hide all others.
pub fn unwritable(text: &str) -> Option<char> {
    let is_lost = |c: &char| match c {
        '\t' | '\n' | '\r' => false,
        '\u{fffe}' | '\u{ffff}' => true,
        c => *c < ' ',
    };
    text.chars().find(is_lost)
}

/// Whether a new object may have this key.
pub fn check_key(key: &str) -> S3Result<()> {
    match unwritable(key) {
        None => Ok(()),
        Some(c) => Err(s3_error!(
            InvalidArgument,
            "the key has the character U+{:04X}, which no listing can show: choose another name",
            u32::from(c)
        )),
    }
}

/// S3's limits, in bytes: all names and values of a client's own metadata together, and all other kept headers.
const METADATA_BYTES_MAX: usize = 2 << 10;
const HEADERS_BYTES_MAX: usize = 8 << 10;

/// Limits what one key may cost the metadata service.
pub fn check_sizes(headers: &[(String, String)]) -> S3Result<()> {
    let (mut own, mut others) = (0, 0);
    for (name, value) in headers {
        match name.strip_prefix("x-amz-meta-") {
            Some(name) => own += name.len() + value.len(),
            None => others += name.len() + value.len(),
        }
    }
    if own > METADATA_BYTES_MAX || others > HEADERS_BYTES_MAX {
        return Err(s3_error!(
            MetadataTooLarge,
            "x-amz-meta-* may have {METADATA_BYTES_MAX} bytes together, other headers to keep {HEADERS_BYTES_MAX}"
        ));
    }
    Ok(())
}

/// Returns the kept headers, in any output that has them.
macro_rules! give_headers {
    ($output:expr, $headers:expr) => {
        // S3's content type for an object without one.
        $output.content_type = Some("binary/octet-stream".to_owned());
        for (name, value) in $headers {
            match name.as_str() {
                "content-type" => $output.content_type = Some(value),
                "content-encoding" => $output.content_encoding = Some(value),
                "content-language" => $output.content_language = Some(value),
                "content-disposition" => $output.content_disposition = Some(value),
                "cache-control" => $output.cache_control = Some(value),
                ebb_types::CLASS_HEADER => $output.storage_class = Some(StorageClass::from(value)),
                "expires" => $output.expires = Timestamp::parse(TimestampFormat::HttpDate, &value).ok(),
                other => {
                    if let Some(name) = other.strip_prefix("x-amz-meta-") {
                        $output.metadata.get_or_insert_default().insert(name.to_owned(), value);
                    }
                }
            }
        }
    };
}
pub(crate) use give_headers;

/// Sets the checksum field of the right algorithm.
macro_rules! give_checksum {
    ($output:expr, $checksum:expr) => {
        if let Some(checksum) = $checksum {
            let value = Some(checksum.value.clone());
            match checksum.algorithm {
                ChecksumAlgorithm::Crc32 => $output.checksum_crc32 = value,
                ChecksumAlgorithm::Crc32c => $output.checksum_crc32c = value,
                ChecksumAlgorithm::Crc64Nvme => $output.checksum_crc64nvme = value,
                ChecksumAlgorithm::Sha1 => $output.checksum_sha1 = value,
                ChecksumAlgorithm::Sha256 => $output.checksum_sha256 = value,
            }
        }
    };
}
pub(crate) use give_checksum;

/// The checksum that an input states, if any.
macro_rules! stated_checksum {
    ($input:expr) => {
        $crate::convert::the_only([
            (ChecksumAlgorithm::Crc32, $input.checksum_crc32.take()),
            (ChecksumAlgorithm::Crc32c, $input.checksum_crc32c.take()),
            (ChecksumAlgorithm::Crc64Nvme, $input.checksum_crc64nvme.take()),
            (ChecksumAlgorithm::Sha1, $input.checksum_sha1.take()),
            (ChecksumAlgorithm::Sha256, $input.checksum_sha256.take()),
        ])
    };
}
pub(crate) use stated_checksum;

/// With several checksums one would go unverified: like S3, accept only one.
pub fn the_only(
    stated: [(ChecksumAlgorithm, Option<String>); 5],
) -> S3Result<Option<(ChecksumAlgorithm, String)>> {
    let mut given = stated.into_iter().filter_map(|(algorithm, value)| Some((algorithm, value?)));
    let first = given.next();
    match given.next() {
        Some(_) => Err(s3_error!(InvalidRequest, "state one checksum, not several")),
        None => Ok(first),
    }
}

/// A content encoding without `aws-chunked`, which belongs to the transfer.
pub fn own_encoding(encoding: Option<String>) -> Option<String> {
    let encoding = encoding?;
    if !encoding.contains("aws-chunked") {
        return Some(encoding);
    }
    let own: Vec<&str> =
        encoding.split(',').map(str::trim).filter(|e| !e.is_empty() && *e != "aws-chunked").collect();
    (!own.is_empty()).then(|| own.join(", "))
}

pub fn http_date(time: &Timestamp) -> Option<String> {
    let mut text = Vec::new();
    time.format(TimestampFormat::HttpDate, &mut text).ok()?;
    String::from_utf8(text).ok()
}

const ALGORITHMS: [(ChecksumAlgorithm, &str); 5] = [
    (ChecksumAlgorithm::Crc32, "CRC32"),
    (ChecksumAlgorithm::Crc32c, "CRC32C"),
    (ChecksumAlgorithm::Crc64Nvme, "CRC64NVME"),
    (ChecksumAlgorithm::Sha1, "SHA1"),
    (ChecksumAlgorithm::Sha256, "SHA256"),
];

pub fn algorithm_name(algorithm: ChecksumAlgorithm) -> &'static str {
    let Some((_, name)) = ALGORITHMS.iter().find(|(a, _)| *a == algorithm) else {
        bug("a checksum algorithm has no name");
        return "";
    };
    name
}

pub fn algorithm(name: &str) -> S3Result<ChecksumAlgorithm> {
    let found = ALGORITHMS.iter().find(|(_, n)| n.eq_ignore_ascii_case(name));
    found.map(|(a, _)| *a).ok_or_else(|| s3_error!(InvalidRequest, "unknown checksum algorithm {name}"))
}

pub fn checksum_type(composite: bool) -> dto::ChecksumType {
    let name = if composite { dto::ChecksumType::COMPOSITE } else { dto::ChecksumType::FULL_OBJECT };
    dto::ChecksumType::from_static(name)
}

pub fn hasher(algorithm: ChecksumAlgorithm) -> ChecksumHasher {
    let mut hasher = ChecksumHasher::default();
    match algorithm {
        ChecksumAlgorithm::Crc32 => hasher.crc32 = Some(Crc32::new()),
        ChecksumAlgorithm::Crc32c => hasher.crc32c = Some(Crc32c::new()),
        ChecksumAlgorithm::Crc64Nvme => hasher.crc64nvme = Some(Crc64Nvme::new()),
        ChecksumAlgorithm::Sha1 => hasher.sha1 = Some(Sha1::new()),
        ChecksumAlgorithm::Sha256 => hasher.sha256 = Some(Sha256::new()),
    }
    hasher
}

/// Base64 of the hasher's result.
pub fn finished(hasher: ChecksumHasher) -> String {
    let mut sum = hasher.finalize();
    stated_checksum!(sum).ok().flatten().map_or_else(
        || {
            bug("a checksum was asked for, and there is none");
            String::new()
        },
        |(_, value)| value,
    )
}

/// The checksum of a multipart object, from its parts' checksums and sizes; `None` unless every part has one.
pub fn multipart_checksum(
    algorithm: ChecksumAlgorithm,
    composite: bool,
    parts: &[(u64, Option<Checksum>)],
) -> Option<Checksum> {
    let mut raw = Vec::with_capacity(parts.len());
    for (size, checksum) in parts {
        let checksum = checksum.as_ref().filter(|c| c.algorithm == algorithm)?;
        raw.push((*size, base64_simd::STANDARD.decode_to_vec(&checksum.value).ok()?));
    }
    if composite {
        let mut hasher = hasher(algorithm);
        raw.iter().for_each(|(_, sum)| hasher.update(sum));
        let value = format!("{}-{}", finished(hasher), parts.len());
        return Some(Checksum { algorithm, value, composite });
    }
    let (kind, width) = match algorithm {
        ChecksumAlgorithm::Crc32 => (crc_fast::CrcAlgorithm::Crc32IsoHdlc, 4),
        ChecksumAlgorithm::Crc32c => (crc_fast::CrcAlgorithm::Crc32Iscsi, 4),
        ChecksumAlgorithm::Crc64Nvme => (crc_fast::CrcAlgorithm::Crc64Nvme, 8),
        ChecksumAlgorithm::Sha1 | ChecksumAlgorithm::Sha256 => return None,
    };
    let number = |sum: &[u8]| sum.iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
    let mut sums = raw.iter().map(|(size, sum)| (*size, number(sum)));
    let (_, first) = sums.next()?;
    let whole = sums.fold(first, |all, (size, sum)| crc_fast::checksum_combine(kind, all, sum, size));
    let value = base64_simd::STANDARD.encode_to_string(&whole.to_be_bytes()[8 - width..]);
    Some(Checksum { algorithm, value, composite })
}

/// Encodes as `encoding-type=url` requires.
pub fn url_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => {
                out.push(char::from(byte))
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags_are_read_as_they_are_shown_and_nothing_else_is() {
        for tag in [ETag { md5: [0xab; 16], parts: 0 }, ETag { md5: [1; 16], parts: 10_000 }] {
            assert_eq!(parse_etag(&tag.to_string()), Some(tag));
        }
        let hex = "ab".repeat(16);
        let bad = ["", "abc", &hex[..31], &format!("{hex}-0"), &format!("{hex}-x"), &"é".repeat(16)];
        assert!(bad.iter().all(|text| parse_etag(text).is_none()));
    }

    #[test]
    fn a_key_has_only_what_a_listing_can_show() {
        for good in ["a b", "tab\tcr\rlf\n", "del\u{7f}", "\u{fffd}\u{10000}"] {
            check_key(good).unwrap();
        }
        for bad in ["a\u{8}b", "\0", "\u{b}", "\u{1f}", "a\u{fffe}b", "\u{ffff}"] {
            assert!(check_key(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn full_object_checksums_of_parts_join_to_the_checksum_of_the_whole() {
        let (a, b, c) = (vec![1u8; 1000], vec![2u8; 77], vec![3u8; 1]);
        for algorithm in [ChecksumAlgorithm::Crc32, ChecksumAlgorithm::Crc32c, ChecksumAlgorithm::Crc64Nvme] {
            let sum = |bytes: &[u8]| {
                let mut hasher = hasher(algorithm);
                hasher.update(bytes);
                finished(hasher)
            };
            let part = |bytes: &[u8]| {
                let checksum = Checksum { algorithm, value: sum(bytes), composite: false };
                (bytes.len() as u64, Some(checksum))
            };
            let parts = [part(&a), part(&b), part(&c)];
            let whole = multipart_checksum(algorithm, false, &parts).unwrap();
            assert_eq!(whole.value, sum(&[a.clone(), b.clone(), c.clone()].concat()));
        }
    }

    #[test]
    fn the_transfers_own_encoding_is_not_kept() {
        assert_eq!(own_encoding(Some("aws-chunked".into())), None);
        assert_eq!(own_encoding(Some("gzip, aws-chunked".into())).as_deref(), Some("gzip"));
        assert_eq!(own_encoding(Some("deflate, gzip".into())).as_deref(), Some("deflate, gzip"));
        assert_eq!(own_encoding(None), None);
    }

    #[test]
    fn url_encoding_keeps_slashes_and_hides_the_rest() {
        assert_eq!(url_encoded("a b/ü\n"), "a%20b/%C3%BC%0A");
    }
}
