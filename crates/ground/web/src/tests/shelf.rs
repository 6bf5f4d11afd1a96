//! A fake S3 gateway: objects in memory, lists in the form of S3, and only for who signs as the page does here.

use crate::{S3, Sign};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};

/// Clones are the same one.
#[derive(Clone, Default)]
pub struct Shelf(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    /// By bucket and key.
    objects: BTreeMap<(String, String), Vec<u8>>,
    /// Method and path of each request.
    asked: Vec<String>,
    /// The page is given no key.
    is_locked: bool,
}

/// What is signed, legibly.
fn signature(method: &str, path: &str) -> String {
    format!("signed {method} {path}")
}

impl Shelf {
    pub fn put(&self, bucket: &str, key: &str, content: &[u8]) {
        let place = (bucket.to_owned(), key.to_owned());
        self.0.lock().unwrap().objects.insert(place, content.to_vec());
    }

    pub fn get(&self, bucket: &str, key: &str) -> Option<Vec<u8>> {
        let place = (bucket.to_owned(), key.to_owned());
        self.0.lock().unwrap().objects.get(&place).cloned()
    }

    pub fn asked(&self) -> Vec<String> {
        self.0.lock().unwrap().asked.clone()
    }

    pub fn lock(&self) {
        self.0.lock().unwrap().is_locked = true;
    }

    /// Listens on the runtime of the caller.
    pub async fn serve(self) -> Option<S3> {
        if self.0.lock().unwrap().is_locked {
            return None;
        }
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let app = Router::new().fallback(answer).with_state(self);
        tokio::spawn(async move { axum::serve(listener, app).await });
        let sign: Sign = Arc::new(|method, path| vec![("authorization", signature(method, path))]);
        Some(S3 { address, sign })
    }
}

fn fault(status: StatusCode, code: &str, message: &str) -> Response {
    let text = format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>");
    (status, text).into_response()
}

/// The characters that `escaped` stands for.
fn plain(escaped: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = escaped.as_bytes();
    while let [first, more @ ..] = rest {
        rest = more;
        if *first == b'%' {
            let (hex, more) = rest.split_at(2);
            bytes.push(u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap());
            rest = more;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).unwrap()
}

async fn answer(
    State(Shelf(kept)): State<Shelf>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    Query(query): Query<BTreeMap<String, String>>,
    body: Bytes,
) -> Response {
    let whole = uri.path_and_query().unwrap().as_str();
    let mut kept = kept.lock().unwrap();
    kept.asked.push(format!("{method} {whole}"));
    let signed = headers.get("authorization").and_then(|value| value.to_str().ok());
    if signed != Some(&signature(method.as_str(), whole)) || headers.contains_key("cookie") {
        return fault(StatusCode::FORBIDDEN, "SignatureDoesNotMatch", "not by this key");
    }
    let (bucket, key) = uri.path()[1..].split_once('/').unwrap_or((&uri.path()[1..], ""));
    let place = (plain(bucket), plain(key));
    let has_bucket = kept.objects.keys().any(|(bucket, _)| *bucket == place.0);
    match (method.as_str(), bucket, key) {
        ("GET", "", "") => {
            let mut names: Vec<&String> = kept.objects.keys().map(|(bucket, _)| bucket).collect();
            names.dedup();
            let one = |name: &&String| {
                format!(
                    "<Bucket><Name>{name}</Name><CreationDate>2026-01-02T03:04:05.000Z</CreationDate></Bucket>"
                )
            };
            let all: String = names.iter().map(one).collect();
            format!("<ListAllMyBucketsResult><Buckets>{all}</Buckets></ListAllMyBucketsResult>")
                .into_response()
        }
        ("GET", ..) if !has_bucket => fault(StatusCode::NOT_FOUND, "NoSuchBucket", "there is no such bucket"),
        ("GET", _, "") => list(&kept.objects, &place.0, &query).into_response(),
        ("GET", ..) => match kept.objects.get(&place) {
            // What an attacker would have a browser show.
            Some(content) => ([("content-type", "text/html"), ("x-evil", "1")], Body::from(content.clone()))
                .into_response(),
            None => fault(StatusCode::NOT_FOUND, "NoSuchKey", "there is no &quot;such&quot; key"),
        },
        ("PUT", ..) => {
            kept.objects.insert(place, body.to_vec());
            StatusCode::OK.into_response()
        }
        ("DELETE", ..) => {
            kept.objects.remove(&place);
            StatusCode::NO_CONTENT.into_response()
        }
        _ => fault(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", "no"),
    }
}

/// Two names at a time.
fn list(
    objects: &BTreeMap<(String, String), Vec<u8>>,
    bucket: &str,
    query: &BTreeMap<String, String>,
) -> String {
    let (prefix, after) = (&query["prefix"], query.get("continuation-token"));
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;");
    let mut out = String::from("<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">");
    let mut names: Vec<(String, Option<usize>)> = Vec::new();
    for ((_, key), content) in objects.iter().filter(|((of, _), _)| of == bucket) {
        let Some(rest) = key.strip_prefix(prefix.as_str()) else { continue };
        let name = match rest.split_once('/') {
            Some((folder, _)) => (format!("{prefix}{folder}/"), None),
            None => (key.clone(), Some(content.len())),
        };
        if names.last() != Some(&name) && after.is_none_or(|after| name.0 > *after) {
            names.push(name);
        }
    }
    let more = names.len() > 2;
    names.truncate(2);
    for (name, size) in &names {
        let name = escape(name);
        match size {
            None => write!(out, "<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"),
            Some(size) => write!(
                out,
                "<Contents><Key>{name}</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><Size>{size}</Size></Contents>"
            ),
        }
        .unwrap();
    }
    if let Some((last, _)) = names.last().filter(|_| more) {
        write!(out, "<NextContinuationToken>{}</NextContinuationToken>", escape(last)).unwrap();
    }
    write!(out, "<IsTruncated>{more}</IsTruncated></ListBucketResult>").unwrap();
    out
}
