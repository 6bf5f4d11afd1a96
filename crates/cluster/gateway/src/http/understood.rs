//! What each operation understands of its request.
//!
//! The protocol library chooses an operation by the names in the query that it knows and drops all others. So a request
//! for something that S3 learnt later would be carried out as a plain PUT, POST or DELETE of the object or the bucket.
//! And the library reads a condition only where it expects one. Here both are compared with what the operation uses,
//! before anything is done (R20).

use crate::convert::unwritable;
use form_urlencoded::parse;
use hyper::{HeaderMap, Method, Uri};
use s3s::{S3Error, S3Result, s3_error};

/// All supported operations, each with the names that it uses in a query; of an operation that only reads, those that
/// choose it.
pub const OPERATIONS: &[(&str, &[&str])] = &[
    ("AbortMultipartUpload", &["uploadId"]),
    ("CompleteMultipartUpload", &["uploadId"]),
    ("CopyObject", &[]),
    ("CreateBucket", &[]),
    ("CreateMultipartUpload", &["uploads"]),
    ("DeleteBucket", &[]),
    ("DeleteBucketCors", &["cors"]),
    ("DeleteBucketEncryption", &["encryption"]),
    ("DeleteBucketLifecycle", &["lifecycle"]),
    ("DeleteBucketPolicy", &["policy"]),
    ("DeleteBucketReplication", &["replication"]),
    ("DeleteBucketTagging", &["tagging"]),
    ("DeleteBucketWebsite", &["website"]),
    ("DeleteObject", &["versionId"]),
    ("DeleteObjectTagging", &["tagging", "versionId"]),
    ("DeleteObjects", &["delete"]),
    ("DeletePublicAccessBlock", &["publicAccessBlock"]),
    ("GetBucketAccelerateConfiguration", &["accelerate"]),
    ("GetBucketAcl", &["acl"]),
    ("GetBucketCors", &["cors"]),
    ("GetBucketEncryption", &["encryption"]),
    ("GetBucketLifecycleConfiguration", &["lifecycle"]),
    ("GetBucketLocation", &["location"]),
    ("GetBucketLogging", &["logging"]),
    ("GetBucketNotificationConfiguration", &["notification"]),
    ("GetBucketOwnershipControls", &["ownershipControls"]),
    ("GetBucketPolicy", &["policy"]),
    ("GetBucketPolicyStatus", &["policyStatus"]),
    ("GetBucketReplication", &["replication"]),
    ("GetBucketRequestPayment", &["requestPayment"]),
    ("GetBucketTagging", &["tagging"]),
    ("GetBucketVersioning", &["versioning"]),
    ("GetBucketWebsite", &["website"]),
    ("GetObject", &[]),
    ("GetObjectAcl", &["acl"]),
    ("GetObjectAttributes", &["attributes"]),
    ("GetObjectLegalHold", &["legal-hold"]),
    ("GetObjectLockConfiguration", &["object-lock"]),
    ("GetObjectRetention", &["retention"]),
    ("GetObjectTagging", &["tagging"]),
    ("GetPublicAccessBlock", &["publicAccessBlock"]),
    ("HeadBucket", &[]),
    ("HeadObject", &[]),
    ("ListBuckets", &[]),
    ("ListMultipartUploads", &["uploads"]),
    ("ListObjectVersions", &["versions"]),
    ("ListObjects", &[]),
    ("ListObjectsV2", &["list-type"]),
    ("ListParts", &["uploadId"]),
    ("PostObject", &[]),
    ("PutBucketAcl", &["acl"]),
    ("PutBucketCors", &["cors"]),
    ("PutBucketLifecycleConfiguration", &["lifecycle"]),
    ("PutBucketTagging", &["tagging"]),
    ("PutObject", &[]),
    ("PutObjectAcl", &["acl", "versionId"]),
    ("PutObjectTagging", &["tagging", "versionId"]),
    ("RestoreObject", &["restore", "versionId"]),
    ("UploadPart", &["partNumber", "uploadId"]),
    ("UploadPartCopy", &["partNumber", "uploadId"]),
];

/// Names in a query by which S3, and its dialects elsewhere, choose operations that are not supported.
const OF_OTHERS: &[&str] = &[
    "abac",
    "analytics",
    "annotation",
    "append",
    "events",
    "intelligent-tiering",
    "inventory",
    "metadataAnnotationTable",
    "metadataConfiguration",
    "metadataInventoryTable",
    "metadataJournalTable",
    "metadataTable",
    "metrics",
    "renameObject",
    "select",
    "select-type",
    "session",
    "torrent",
];

/// Whether a name in a query makes a request another operation.
fn selects(name: &str) -> bool {
    let is_used = OPERATIONS.iter().any(|(_, used)| used.contains(&name));
    // Of a read, these say which version or part is meant.
    (is_used && !["partNumber", "versionId"].contains(&name)) || OF_OTHERS.contains(&name)
}

/// Names in the query of a presigned URL that belong to its signature.
pub const OF_SIGNATURE: [&str; 6] =
    ["algorithm", "credential", "date", "expires", "signedheaders", "signature"];

/// Refuses a request that has more to say than its operation understands.
pub fn check(operation: &str, method: &Method, uri: &Uri, headers: &HeaderMap) -> S3Result<()> {
    let found = OPERATIONS.iter().find(|(name, _)| *name == operation);
    let Some((_, used)) = found else { return Err(unsupported(operation)) };
    let reads = [Method::GET, Method::HEAD].contains(method);
    if operation.starts_with("List") {
        check_shown(uri)?;
    }
    for (name, value) in parse(uri.query().unwrap_or_default().as_bytes()) {
        let understood = match &*name {
            // SDKs name the operation that they mean.
            "x-id" => *value == *operation,
            _ if used.contains(&&*name) => true,
            _ if reads => !selects(&name),
            _ => is_no_wish(&name, &value, headers),
        };
        if !understood {
            return Err(s3_error!(
                NotImplemented,
                "{name:?} in the query is not supported by {operation}: nothing was done"
            ));
        }
    }
    let strange = headers.iter().filter(|_| !reads).find(|(name, _)| !may_have(operation, name.as_str()));
    if let Some((name, _)) = strange {
        return Err(s3_error!(NotImplemented, "{operation} with {name} is not supported: nothing was done"));
    }
    Ok(())
}

/// Listings repeat what they were asked for.
fn check_shown(uri: &Uri) -> S3Result<()> {
    const ENCODED: [&str; 5] = ["delimiter", "key-marker", "marker", "prefix", "start-after"];
    let query = || parse(uri.query().unwrap_or_default().as_bytes());
    let is_encoded = query().any(|(name, value)| name == "encoding-type" && value == "url");
    for (name, value) in query() {
        if let Some(c) = unwritable(&value).filter(|_| !(is_encoded && ENCODED.contains(&&*name))) {
            return Err(s3_error!(
                InvalidArgument,
                "{name:?} has the character U+{:04X}, which a listing can show only with encoding-type=url",
                u32::from(c)
            ));
        }
    }
    Ok(())
}

/// Whether a name in the query of a change asks for nothing: S3 leaves those that begin with `x-` to clients and their
/// logs, and a presigned URL holds its signature and its headers.
fn is_no_wish(name: &str, value: &str, headers: &HeaderMap) -> bool {
    let name = name.to_ascii_lowercase();
    match name.strip_prefix("x-amz-") {
        Some(rest) if OF_SIGNATURE.contains(&rest) => true,
        Some(_) => headers.get(&name).is_some_and(|header| header.as_bytes() == value.as_bytes()),
        None => name.starts_with("x-"),
    }
}

/// Whether an operation that changes something uses this header, or field of a form, if it is a condition or says what
/// bytes are meant.
pub fn may_have(operation: &str, header: &str) -> bool {
    let writes = ["PutObject", "CopyObject", "CompleteMultipartUpload", "CreateMultipartUpload"];
    let copies = ["CopyObject", "UploadPartCopy"];
    match header {
        "if-match" => writes.contains(&operation) || operation == "DeleteObject",
        "if-none-match" => writes.contains(&operation),
        "if-modified-since" | "if-unmodified-since" | "content-range" => false,
        "x-amz-copy-source-range" => operation == "UploadPartCopy",
        "x-amz-mp-object-size" => operation == "CompleteMultipartUpload",
        _ if header.starts_with("x-amz-copy-source") => copies.contains(&operation),
        _ if header.starts_with("x-amz-if-") => operation == "DeleteObject",
        _ => true,
    }
}

fn unsupported(operation: &str) -> S3Error {
    let instead = match operation {
        "PutBucketVersioning" => ": an object has one version, named null",
        "PutBucketEncryption" => ": encrypt before storing",
        "PutBucketPolicy" => ": rights belong to keys, see `ebb key`",
        _ => "",
    };
    s3_error!(NotImplemented, "{operation} is not supported{instead}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(operation: &str, method: Method, path: &str, headers: &[(&'static str, &str)]) -> bool {
        let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        check(operation, &method, &path.parse().unwrap(), &headers.collect()).is_ok()
    }

    #[test]
    fn a_change_uses_every_name_in_its_query() {
        let put = |path: &str| outcome("PutObject", Method::PUT, path, &[]);
        assert!(put("/b/k") && put("/b/k?") && put("/b/k?x-id=PutObject") && put("/b/k?x-job=7"));
        for name in ["annotation", "append", "invented", "partNumber=1", "versionId=null", "=", "%61cl"] {
            assert!(!put(&format!("/b/k?{name}")), "{name}");
        }
        assert!(!put("/b/k?x-id=PutObjectAnnotation"), "another operation is meant");
        assert!(outcome("UploadPart", Method::PUT, "/b/k?partNumber=1&uploadId=0", &[]));
        assert!(
            !outcome("PutObjectTagging", Method::PUT, "/b/k?tagging&acl", &[]),
            "one of the two is dropped"
        );
        assert!(!outcome("PutBucketAbac", Method::PUT, "/b?abac", &[]));
    }

    #[test]
    fn a_presigned_change_has_its_signature_and_headers_in_the_query() {
        let put = |path: &str, headers: &[_]| outcome("PutObject", Method::PUT, path, headers);
        assert!(put("/b/k?X-Amz-Signature=0&X-Amz-Date=1", &[]));
        assert!(put("/b/k?X-Amz-Meta-A=b", &[("x-amz-meta-a", "b")]));
        assert!(!put("/b/k?X-Amz-Meta-A=b", &[]), "only a presigned request has headers in its query");
    }

    #[test]
    fn a_read_may_have_what_is_no_operation_of_s3() {
        assert!(outcome("GetObject", Method::GET, "/b/k?colour=red&versionId=null", &[]));
        assert!(outcome("ListObjectsV2", Method::GET, "/b?list-type=2&prefix=a", &[]));
        for (operation, path) in [
            ("GetObject", "/b/k?annotation"),
            ("ListObjects", "/b?abac"),
            ("ListObjects", "/b?list-type=3"),
            ("GetObjectTagging", "/b/k?tagging&attributes"),
        ] {
            assert!(!outcome(operation, Method::GET, path, &[]), "{path}");
        }
    }

    #[test]
    fn a_change_has_only_the_conditions_that_it_keeps() {
        let put = |name, operation| outcome(operation, Method::PUT, "/b/k", &[(name, "x")]);
        for (name, operation, good) in [
            ("if-match", "PutObject", true),
            ("if-match", "DeleteObject", true),
            ("if-match", "PutBucketAcl", false),
            ("if-none-match", "CopyObject", true),
            ("if-none-match", "DeleteObject", false),
            ("if-modified-since", "PutObject", false),
            ("if-unmodified-since", "DeleteObject", false),
            ("content-range", "PutObject", false),
            ("x-amz-if-match-size", "DeleteObject", true),
            ("x-amz-if-match-size", "PutObject", false),
            ("x-amz-if-match-last-modified-time", "CompleteMultipartUpload", false),
            ("x-amz-copy-source-if-match", "CopyObject", true),
            ("x-amz-copy-source-if-match", "PutObject", false),
            ("x-amz-copy-source-range", "UploadPartCopy", true),
            ("x-amz-copy-source-range", "CopyObject", false),
            ("x-amz-meta-a", "PutObject", true),
        ] {
            assert_eq!(put(name, operation), good, "{operation} with {name}");
        }
        assert!(outcome("GetObject", Method::GET, "/b/k", &[("if-modified-since", "x")]));
    }
}
