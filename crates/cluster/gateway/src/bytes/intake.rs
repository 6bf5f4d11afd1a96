//! Receives the body of a request: one pass over the bytes for storing, MD5 and checksum.

use crate::bytes::backend::{Backend, Pool};
use crate::bytes::place::Unnamed;
use crate::bytes::store::Store;
use crate::convert::{algorithm, algorithm_name, custom, finished, hasher};
use crate::http::body::Stalled;
use bytes::Bytes;
use ebb_types::{Checksum, ChecksumAlgorithm, ETag};
use futures_util::{Stream, StreamExt};
use hyper::{HeaderMap, StatusCode};
use s3s::checksum::ChecksumHasher;
use s3s::{S3Error, S3Result, StdError, TrailingHeaders, s3_error};

/// What a client states about the bytes that it sends.
#[derive(Default)]
pub struct Stated {
    pub length: Option<u64>,
    /// Base64.
    pub md5: Option<String>,
    pub checksum: Option<StatedChecksum>,
    /// What comes after the bytes.
    pub trailers: Option<TrailingHeaders>,
}

pub struct StatedChecksum {
    algorithm: ChecksumAlgorithm,
    value: Value,
}

enum Value {
    Header(String),
    /// It comes after the bytes.
    Trailer,
    /// Only an algorithm was named: compute and keep its checksum.
    Absent,
}

impl StatedChecksum {
    /// From the request's checksum header (`given`), announced trailer, or named algorithm; they must not contradict
    /// one another.
    pub fn from_request(
        headers: &HeaderMap,
        given: Option<(ChecksumAlgorithm, String)>,
    ) -> S3Result<Option<StatedChecksum>> {
        let text =
            |name| headers.get(name).and_then(|value: &hyper::header::HeaderValue| value.to_str().ok());
        let announced = text("x-amz-trailer").and_then(|name| name.trim().strip_prefix("x-amz-checksum-"));
        let named = text("x-amz-sdk-checksum-algorithm").or(text("x-amz-checksum-algorithm"));
        let named = named.map(algorithm).transpose()?;
        let stated = match (given, announced) {
            (Some(_), Some(_)) => {
                return Err(s3_error!(InvalidRequest, "state one checksum: in a header or in a trailer"));
            }
            (Some((algorithm, value)), None) => StatedChecksum { algorithm, value: Value::Header(value) },
            (None, Some(name)) => StatedChecksum { algorithm: algorithm(name)?, value: Value::Trailer },
            (None, None) => return Ok(named.map(StatedChecksum::wanted)),
        };
        if named.is_some_and(|named| named != stated.algorithm) {
            return Err(s3_error!(
                InvalidRequest,
                "the named checksum algorithm does not match the checksum"
            ));
        }
        Ok(Some(stated))
    }

    /// Computes and keeps a checksum that the client did not state.
    pub fn wanted(algorithm: ChecksumAlgorithm) -> StatedChecksum {
        StatedChecksum { algorithm, value: Value::Absent }
    }

    /// The name of the announced trailer.
    fn trailer(&self) -> Option<String> {
        let name = || format!("x-amz-checksum-{}", algorithm_name(self.algorithm).to_lowercase());
        matches!(self.value, Value::Trailer).then(name)
    }

    /// Checks the computed checksum against the stated one. Called after the whole body was read.
    fn check(self, computed: String, trailers: &HeaderMap) -> S3Result<Checksum> {
        let sent = self.trailer().map(|name| {
            let value = trailers.get(name).and_then(|value| value.to_str().ok().map(str::to_owned));
            value.ok_or_else(|| s3_error!(InvalidRequest, "the announced checksum trailer is missing"))
        });
        let stated = match self.value {
            Value::Header(value) => Some(value),
            Value::Trailer => sent.transpose()?,
            Value::Absent => None,
        };
        if stated.is_some_and(|stated| stated != computed) {
            return Err(s3_error!(
                BadDigest,
                "checksum mismatch: the bytes received do not match the declared checksum"
            ));
        }
        Ok(Checksum { algorithm: self.algorithm, value: computed, composite: false })
    }
}

/// A received body: durable, not yet named.
pub struct Taken {
    pub data: Unnamed,
    pub size: u64,
    pub etag: ETag,
    pub checksum: Option<Checksum>,
}

/// Stores a body in a pool and checks it against what the client stated.
pub async fn take_in<B: Backend>(
    store: &Store<B>,
    pool: &Pool,
    body: impl Stream<Item = S3Result<Bytes>>,
    stated: Stated,
) -> S3Result<Taken> {
    let mut body = std::pin::pin!(body);
    let mut writer = store.writer(pool, stated.length);
    let mut sums: Option<ChecksumHasher> = stated.checksum.as_ref().map(|c| hasher(c.algorithm));
    let mut size = 0u64;
    loop {
        let next = match writer.flush_at() {
            Some(end) => tokio::time::timeout_at(end, body.next()).await,
            None => Ok(body.next().await),
        };
        let Ok(next) = next else {
            writer.flush().await?;
            continue;
        };
        let Some(data) = next.transpose()? else { break };
        size += data.len() as u64;
        if stated.length.is_some_and(|length| size > length) {
            return Err(s3_error!(IncompleteBody, "more bytes than Content-Length states"));
        }
        if let Some(sums) = &mut sums {
            sums.update(&data);
        }
        writer.push(&data).await?;
    }
    if stated.length.is_some_and(|length| size != length) {
        return Err(s3_error!(IncompleteBody, "fewer bytes than Content-Length states"));
    }
    let trailers = stated.trailers.and_then(|trailers| trailers.take()).unwrap_or_default();
    let announced = stated.checksum.as_ref().and_then(StatedChecksum::trailer);
    if let Some(name) = trailers.keys().find(|name| Some(name.as_str()) != announced.as_deref()) {
        return Err(s3_error!(InvalidRequest, "x-amz-trailer does not announce the trailer {name}"));
    }
    let checksum = match (stated.checksum, sums) {
        (Some(stated), Some(sums)) => Some(stated.check(finished(sums), &trailers)?),
        _ => None,
    };
    let (data, md5) = writer.finish().await?;
    if let Some(text) = stated.md5 {
        let decoded = base64_simd::STANDARD.decode_to_vec(text).ok().filter(|sum| sum.len() == md5.len());
        let decoded = decoded.ok_or_else(|| s3_error!(InvalidDigest, "Content-MD5 is 16 bytes in base64"))?;
        if decoded != md5 {
            return Err(s3_error!(BadDigest, "Content-MD5 does not match the bytes received"));
        }
    }
    Ok(Taken { data, size, etag: ETag { md5, parts: 0 }, checksum })
}

/// Why a request's body could not be read. The library's error types are private; their texts are not.
pub fn body_error(error: StdError) -> S3Error {
    let text = error.to_string();
    if text.contains(&Stalled.to_string()) {
        return s3_error!(RequestTimeout, "{text}");
    }
    if text.contains("SignatureMismatch") {
        return s3_error!(SignatureDoesNotMatch, "the signature of a chunk of the body is wrong");
    }
    if text.contains("Sha256Mismatch") {
        let why = "x-amz-content-sha256 does not match the bytes received";
        return custom("XAmzContentSHA256Mismatch", StatusCode::BAD_REQUEST, why);
    }
    s3_error!(IncompleteBody, "the body ended early or is malformed: {text}")
}
