//! The front door: the conditions a request must meet before the protocol library sees it.
//!
//! The library verifies a signature over the headers that the client lists, but also obeys headers that are not listed.
//! So a presigned URL for one key, plus one more header, could copy any object of the store. Here every header with a
//! meaning in S3 must be signed. And a request for something that Ebb cannot do is refused: ignoring it silently would
//! be a lie.

use crate::convert::{OWNER, REGION, algorithm};
use crate::http::understood::OF_SIGNATURE;
use form_urlencoded::parse;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method};
use s3s::host::{S3Host, VirtualHost};
use s3s::validation::{AwsNameValidation, NameValidation};
use s3s::{S3Error, S3Result, s3_error};
use std::sync::Arc;

/// S3's maximum lifetime of a presigned URL, in seconds: a week.
const EXPIRES_MAX: u64 = 7 * 24 * 3600;

/// The payload's hash of a body in chunks that are not signed.
const UNSIGNED_CHUNKS: &str = "STREAMING-UNSIGNED-PAYLOAD-TRAILER";

/// What those do whose client still signs with version 2.
const OLD_SIGNATURE: &str = "signature version 2 is not supported: sign with version 4 (AWS4-HMAC-SHA256). boto3: \
    Config(signature_version='s3v4'); aws: `aws configure set default.s3.signature_version s3v4`; \
    s3cmd: without --signature-v2, and its signurl has no version 4";

/// Whether the request is a form, or may be mistaken for one.
pub fn is_form(request: &Parts) -> bool {
    const KIND: &str = "multipart/form-data";
    let kind = request.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let form =
        kind.and_then(|kind| kind.get(..KIND.len())).is_some_and(|kind| kind.eq_ignore_ascii_case(KIND));
    form && request.method == Method::POST
}

/// How a request authenticates its sender.
enum Signed {
    /// The names of the headers that the signature covers.
    Headers(String),
    Presigned(String),
    /// A browser's form: its policy is signed, no header is.
    Form,
    Nobody,
}

/// Refuses requests that must not reach the library. Headers that a presigned URL carries in its query become headers.
pub fn admit(request: &mut Parts) -> S3Result<()> {
    let signed = signed(request)?;
    match &signed {
        Signed::Headers(names) => check_signed(&request.headers, names)?,
        Signed::Presigned(names) => {
            check_signed(&request.headers, names)?;
            hoist(request)?;
        }
        Signed::Form => check_signed(&request.headers, "host")?,
        // Refused later for lack of rights.
        Signed::Nobody => {}
    }
    for (name, value) in &request.headers {
        check_wish(name.as_str(), value.to_str().unwrap_or_default())?;
    }
    check_md5(&request.headers)?;
    announce_trailer(&mut request.headers);
    Ok(())
}

/// The library wants trailers announced even if there are none. [`crate::bytes::intake`] refuses those that come
/// unannounced.
fn announce_trailer(headers: &mut HeaderMap) {
    let unsigned = headers.get("x-amz-content-sha256").is_some_and(|kind| kind == UNSIGNED_CHUNKS);
    if unsigned && !headers.contains_key("x-amz-trailer") {
        headers.insert("x-amz-trailer", HeaderValue::from_static(""));
    }
}

fn signed(request: &Parts) -> S3Result<Signed> {
    let query = request.uri.query().unwrap_or_default().as_bytes();
    let of_query = |name: &str| parse(query).find(|(n, _)| n == name).map(|(_, value)| value.into_owned());
    let mut authorizations = request.headers.get_all(header::AUTHORIZATION).iter();
    let authorization = authorizations.next().map(|value| value.to_str().unwrap_or_default());
    let presigned = of_query("X-Amz-Signature").is_some();
    if authorizations.next().is_some() || (presigned && authorization.is_some()) {
        return Err(s3_error!(InvalidArgument, "only one way to authenticate is allowed"));
    }
    let version_2 =
        authorization.is_some_and(|text| text.starts_with("AWS ")) || of_query("Signature").is_some();
    if version_2 {
        return Err(old_signature());
    }
    if is_form(request) {
        return Ok(Signed::Form);
    }
    let credential = authorization.and_then(|text| text.split("Credential=").nth(1)?.split(',').next());
    if let Some(credential) = of_query("X-Amz-Credential").as_deref().or(credential) {
        check_region(credential)?;
    }
    if presigned {
        check_expiry(&of_query("X-Amz-Expires").unwrap_or_default())?;
        return Ok(Signed::Presigned(of_query("X-Amz-SignedHeaders").unwrap_or_default()));
    }
    let Some(text) = authorization else { return Ok(Signed::Nobody) };
    // The library accepts the fields in this order only, so there is one list of names.
    let names = text.split("SignedHeaders=").nth(1).and_then(|rest| rest.split(',').next());
    Ok(Signed::Headers(names.unwrap_or_default().to_owned()))
}

pub fn old_signature() -> S3Error {
    s3_error!(InvalidRequest, "{OLD_SIGNATURE}")
}

/// Any well-formed region will do. Others, such as s3cmd's US, the library would refuse with an error that no client
/// understands.
fn check_region(credential: &str) -> S3Result<()> {
    // Key, date, region, service, aws4_request.
    let region = credential.rsplit('/').nth(2).unwrap_or_default();
    match region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-') {
        true => Ok(()),
        false => Err(s3_error!(
            AuthorizationHeaderMalformed,
            "the region {region} is wrong: expecting {REGION}, or another in lower case"
        )),
    }
}

fn check_expiry(seconds: &str) -> S3Result<()> {
    match seconds.parse::<u64>() {
        Ok(seconds) if seconds <= EXPIRES_MAX => Ok(()),
        _ => Err(s3_error!(
            AuthorizationQueryParametersError,
            "X-Amz-Expires must be a number of seconds up to {EXPIRES_MAX} (a week)"
        )),
    }
}

/// The payload's hash is part of every signature, whether its header is listed or not.
fn check_signed(headers: &HeaderMap, names: &str) -> S3Result<()> {
    let is_signed = |name: &str| names.split(';').any(|signed| signed == name);
    if !is_signed("host") {
        return Err(s3_error!(AccessDenied, "the header Host must be signed"));
    }
    let unsigned = headers.keys().find(|name| {
        name.as_str().starts_with("x-amz-") && *name != "x-amz-content-sha256" && !is_signed(name.as_str())
    });
    match unsigned {
        Some(name) => Err(s3_error!(AccessDenied, "headers present in the request were not signed: {name}")),
        None => Ok(()),
    }
}

/// SDKs move headers of a presigned request into its query, where the signature covers them.
fn hoist(request: &mut Parts) -> S3Result<()> {
    let query = request.uri.query().unwrap_or_default().to_owned();
    for (name, value) in parse(query.as_bytes()) {
        let name = name.to_ascii_lowercase();
        if name.strip_prefix("x-amz-").is_none_or(|rest| OF_SIGNATURE.contains(&rest)) {
            continue;
        }
        let bad = || s3_error!(InvalidArgument, "the query's {name} is malformed");
        let key = HeaderName::try_from(&name).map_err(|_| bad())?;
        let value = HeaderValue::try_from(value.as_bytes()).map_err(|_| bad())?;
        if request.headers.get(&key).is_some_and(|present| present != value) {
            return Err(s3_error!(InvalidArgument, "{name} is both in the headers and in the query"));
        }
        request.headers.insert(key, value);
    }
    Ok(())
}

/// Whether Ebb supports what a header requests. Form fields have the same names.
pub fn check_wish(name: &str, value: &str) -> S3Result<()> {
    let Some(wish) = name.strip_prefix("x-amz-") else { return Ok(()) };
    let unsupported = || s3_error!(NotImplemented, "{name}: {value} is not supported: remove it");
    // The library takes an empty header for an absent one.
    let weighs = ["checksum-", "copy-source", "if-"].iter().any(|start| wish.starts_with(start));
    match wish {
        _ if wish.starts_with("meta-") => Ok(()),
        _ if weighs && value.is_empty() => {
            Err(s3_error!(InvalidArgument, "{name} is empty or not ASCII: state a value, or remove it"))
        }
        "checksum-crc32" | "checksum-crc32c" | "checksum-crc64nvme" | "checksum-sha1" | "checksum-sha256" => {
            Ok(())
        }
        "algorithm"
        | "api-version"
        | "content-sha256"
        | "copy-source"
        | "copy-source-if-match"
        | "copy-source-if-modified-since"
        | "copy-source-if-none-match"
        | "copy-source-if-unmodified-since"
        | "copy-source-range"
        | "checksum-algorithm"
        | "checksum-mode"
        | "checksum-type"
        | "credential"
        | "date"
        | "decoded-content-length"
        | "if-match-size"
        | "if-match-last-modified-time"
        | "max-parts"
        | "metadata-directive"
        | "mp-object-size"
        | "object-attributes"
        | "optional-object-attributes"
        | "part-number-marker"
        | "request-payer"
        | "sdk-checksum-algorithm"
        | "signature"
        | "storage-class"
        | "tagging"
        | "tagging-directive"
        | "user-agent" => Ok(()),
        // Nothing is locked, so there is nothing to bypass.
        "bypass-governance-retention" => Ok(()),
        "trailer" => match value.trim().strip_prefix("x-amz-checksum-") {
            Some(checksum) => algorithm(checksum).map(drop),
            None => Err(unsupported()),
        },
        // All objects are private to their owner.
        "acl" if ["private", "bucket-owner-full-control", "bucket-owner-read"].contains(&value) => Ok(()),
        "object-ownership" if value == "BucketOwnerEnforced" => Ok(()),
        "acl" => Err(no_acl()),
        _ if wish.starts_with("grant-") => Err(no_acl()),
        "bucket-object-lock-enabled" if value.eq_ignore_ascii_case("false") => Ok(()),
        "server-side-encryption-bucket-key-enabled" if value.eq_ignore_ascii_case("false") => Ok(()),
        "expected-bucket-owner" | "source-expected-bucket-owner" if value == OWNER => Ok(()),
        "expected-bucket-owner" | "source-expected-bucket-owner" => {
            Err(s3_error!(AccessDenied, "the bucket's owner is {OWNER}, not {value}"))
        }
        "security-token" => {
            Err(s3_error!(InvalidToken, "session tokens are not supported: use a key pair alone"))
        }
        "server-side-encryption-customer-key" | "copy-source-server-side-encryption-customer-key" => {
            Err(s3_error!(NotImplemented, "{name} is not supported: remove it"))
        }
        _ => Err(unsupported()),
    }
}

/// As in S3, this is not a 501: clients send again what failed with 501.
pub fn no_acl() -> S3Error {
    s3_error!(
        AccessControlListNotSupported,
        "access control lists other than private are not supported: rights belong to keys, see `ebb key`"
    )
}

/// The library ignores an empty one.
fn check_md5(headers: &HeaderMap) -> S3Result<()> {
    let Some(text) = headers.get("content-md5") else { return Ok(()) };
    match base64_simd::STANDARD.decode_to_vec(text.as_bytes()) {
        Ok(md5) if md5.len() == 16 => Ok(()),
        _ => Err(s3_error!(InvalidDigest, "Content-MD5 is 16 bytes in base64")),
    }
}

/// The bucket that a host name begins with, if the rest is one of `domains`.
pub fn bucket_of_host<'a>(domains: &[String], host: &'a str) -> Option<&'a str> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let of = |domain: &String| {
        name.strip_suffix(domain.as_str())?.strip_suffix('.').filter(|name| !name.is_empty())
    };
    domains.iter().find_map(of)
}

/// Host names of buckets; every other host serves all buckets by path.
pub struct Domains(pub Arc<Vec<String>>);

impl S3Host for Domains {
    fn parse_host_header<'a>(&'a self, host: &'a str) -> S3Result<VirtualHost<'a>> {
        let found = VirtualHost::new(host);
        Ok(match bucket_of_host(&self.0, host) {
            Some(bucket) => found.with_bucket(bucket),
            None => found,
        })
    }
}

/// S3's rules for bucket names.
pub struct BucketNames;

impl NameValidation for BucketNames {
    fn validate_bucket_name(&self, name: &str) -> bool {
        AwsNameValidation::new().validate_bucket_name(name) && !name.contains(".-") && !name.contains("-.")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    const SCOPE: &str = "key/20260101/us-east-1/s3/aws4_request";

    fn outcome(method: &str, uri: &str, headers: &[(&str, &str)]) -> (Parts, Result<(), String>) {
        let mut request = Request::builder().method(method).uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut parts = request.body(()).unwrap().into_parts().0;
        let admitted = admit(&mut parts).map_err(|error| error.code().as_str().to_owned());
        (parts, admitted)
    }

    fn by_header(names: &str, headers: &[(&str, &str)]) -> Result<(), String> {
        let authorization =
            format!("AWS4-HMAC-SHA256 Credential={SCOPE}, SignedHeaders={names}, Signature=00");
        let all: Vec<_> =
            [("authorization", authorization.as_str())].into_iter().chain(headers.to_vec()).collect();
        outcome("PUT", "/b/k", &all).1
    }

    fn presigned(names: &str, more: &str) -> String {
        format!("/b/k?X-Amz-Signature=00&X-Amz-Expires=60&X-Amz-SignedHeaders={names}{more}")
    }

    #[test]
    fn headers_of_s3_must_be_signed() {
        let copy = [("x-amz-copy-source", "/other/secret")];
        assert_eq!(by_header("host;x-amz-copy-source", &copy), Ok(()));
        assert_eq!(by_header("host", &copy), Err("AccessDenied".into()));
        assert_eq!(by_header("host;x-amz-copy", &copy), Err("AccessDenied".into()));
        assert_eq!(by_header("x-amz-date", &[]), Err("AccessDenied".into()), "Host names the bucket");
        let harmless = [("range", "bytes=0-1"), ("x-amz-content-sha256", "UNSIGNED-PAYLOAD")];
        assert_eq!(by_header("host", &harmless), Ok(()));
        assert_eq!(outcome("PUT", &presigned("host", ""), &copy).1, Err("AccessDenied".into()));
        assert_eq!(outcome("PUT", &presigned("host%3Bx-amz-copy-source", ""), &copy).1, Ok(()));
        let form = [("content-type", "Multipart/form-data; boundary=x"), copy[0]];
        assert_eq!(outcome("POST", "/b", &form).1, Err("AccessDenied".into()));
    }

    #[test]
    fn there_is_one_way_to_sign() {
        let authorization = [("authorization", "AWS4-HMAC-SHA256 SignedHeaders=host,")];
        assert_eq!(outcome("GET", &presigned("host", ""), &authorization).1, Err("InvalidArgument".into()));
        assert_eq!(
            outcome("GET", "/b/k", &[("authorization", "AWS key:sig")]).1,
            Err("InvalidRequest".into())
        );
        assert_eq!(outcome("GET", "/b/k?Signature=x", &[]).1, Err("InvalidRequest".into()));
        assert!(old_signature().message().is_some_and(|cure| cure.contains("signature_version='s3v4'")));
    }

    #[test]
    fn chunks_without_trailers_need_no_announcement() {
        let chunks = ("x-amz-content-sha256", UNSIGNED_CHUNKS);
        let (request, admitted) = outcome("PUT", &presigned("host", ""), &[chunks]);
        assert_eq!((admitted, request.headers["x-amz-trailer"].is_empty()), (Ok(()), true));
        for (name, code) in [("x-amz-checksum-crc32", None), ("x-amz-checksum-md5", Some("InvalidRequest"))] {
            let announced = [chunks, ("x-amz-trailer", name)];
            let outcome = outcome("PUT", &presigned("host%3Bx-amz-trailer", ""), &announced).1;
            assert_eq!(outcome.err().as_deref(), code, "{name}");
        }
        let other = [("x-amz-trailer", "x-amz-meta-a")];
        assert_eq!(by_header("host;x-amz-trailer", &other), Err("NotImplemented".into()));
    }

    #[test]
    fn a_host_may_name_a_bucket_and_a_region_may_be_any() {
        let domains = ["s3.example.org".to_owned(), "localhost".to_owned()];
        assert_eq!(bucket_of_host(&domains, "a.b.s3.example.org:80"), Some("a.b"));
        assert_eq!(bucket_of_host(&domains, "b.localhost:9000"), Some("b"));
        assert_eq!(bucket_of_host(&domains, "s3.example.org"), None);
        assert_eq!(bucket_of_host(&domains, "127.0.0.1:9000"), None);
        assert!(BucketNames.validate_bucket_name("a.b-c") && !BucketNames.validate_bucket_name("foo.-bar"));
        for (region, good) in [("us-east-1", true), ("garage", true), ("US", false)] {
            let authorization = format!(
                "AWS4-HMAC-SHA256 Credential=k/20260101/{region}/s3/aws4_request, SignedHeaders=host, S=0"
            );
            assert_eq!(
                outcome("GET", "/b", &[("authorization", &authorization)]).1.is_ok(),
                good,
                "{region}"
            );
        }
        let md5 = [("content-md5", "")];
        assert_eq!(by_header("host", &md5), Err("InvalidDigest".into()));
    }

    #[test]
    fn a_presigned_url_lasts_a_week_at_most() {
        for (seconds, good) in [("604800", true), ("604801", false), ("-1", false), ("", false)] {
            let uri = format!("/b/k?X-Amz-Signature=00&X-Amz-SignedHeaders=host&X-Amz-Expires={seconds}");
            assert_eq!(outcome("GET", &uri, &[]).1.is_ok(), good, "{seconds}");
        }
    }

    #[test]
    fn headers_in_a_signed_query_count_as_headers() {
        let (request, admitted) =
            outcome("PUT", &presigned("host", "&x-amz-meta-a=b&X-Amz-Acl=private"), &[]);
        assert_eq!(admitted, Ok(()));
        assert_eq!(request.headers["x-amz-meta-a"], "b");
        let wish = presigned("host", "&x-amz-server-side-encryption=AES256");
        assert_eq!(outcome("PUT", &wish, &[]).1, Err("NotImplemented".into()));
        let twice = presigned("host%3Bx-amz-meta-a", "&x-amz-meta-a=b");
        assert_eq!(outcome("PUT", &twice, &[("x-amz-meta-a", "c")]).1, Err("InvalidArgument".into()));
    }

    #[test]
    fn what_is_not_done_is_refused() {
        for (name, value, code) in [
            ("x-amz-acl", "public-read", "AccessControlListNotSupported"),
            ("x-amz-grant-read", "id=a", "AccessControlListNotSupported"),
            ("x-amz-if-match-size", "", "InvalidArgument"),
            ("x-amz-copy-source-if-match", "", "InvalidArgument"),
            ("x-amz-copy-source-range", "", "InvalidArgument"),
            ("x-amz-checksum-crc32", "", "InvalidArgument"),
            ("x-amz-write-offset-bytes", "5", "NotImplemented"),
            ("x-amz-server-side-encryption", "AES256", "NotImplemented"),
            ("x-amz-server-side-encryption-customer-key", "a2V5", "NotImplemented"),
            ("x-amz-server-side-encryption-customer-key-md5", "a2V5", "NotImplemented"),
            ("x-amz-server-side-encryption-aws-kms-key-id", "k", "NotImplemented"),
            ("x-amz-object-lock-retain-until-date", "2030-01-01T00:00:00Z", "NotImplemented"),
            ("x-amz-bucket-object-lock-enabled", "true", "NotImplemented"),
            ("x-amz-object-ownership", "ObjectWriter", "NotImplemented"),
            ("x-amz-expected-bucket-owner", "111122223333", "AccessDenied"),
            ("x-amz-source-expected-bucket-owner", "111122223333", "AccessDenied"),
            ("x-amz-security-token", "t", "InvalidToken"),
            ("x-amz-invented-tomorrow", "1", "NotImplemented"),
        ] {
            assert_eq!(by_header(&format!("host;{name}"), &[(name, value)]), Err(code.into()), "{name}");
        }
        for (name, value) in [
            ("x-amz-acl", "private"),
            ("x-amz-storage-class", "STANDARD"),
            ("x-amz-expected-bucket-owner", "ebb"),
            ("x-amz-meta-anything", ""),
            ("x-amz-bypass-governance-retention", "true"),
        ] {
            assert_eq!(by_header(&format!("host;{name}"), &[(name, value)]), Ok(()), "{name}");
        }
    }
}
