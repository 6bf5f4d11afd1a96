//! Buckets and objects: the page's program asks the S3 gateway on a browser's behalf, with a key of its own.
//!
//! The browser talks to the page only. Lists are S3's own XML. What an object has in it is never shown: it comes as an
//! attachment of no type, in a sandbox, so that it cannot act as the page. Who may look lists and downloads; uploads
//! and deletions need the administrator's token, and are logged. What is done is also limited by the rights of the key.

use crate::answer::{Fault, Shared, json};
use crate::guard::Right;
use crate::s3::{S3Fault, UPLOAD_MOST, escaped, send};
use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Query, Request, State};
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, Method};
use axum::response::Response;
use axum::routing::get;
use serde::Deserialize;
use std::fmt::Write;
use std::net::SocketAddr;

/// Names of one list.
const LISTED_MOST: u32 = 200;
/// An answer that is never shown as a page, whatever is in it.
const INERT: &str = "sandbox; default-src 'none'; frame-ancestors 'none'";

/// An object.
#[derive(Deserialize)]
struct Place {
    bucket: String,
    key: String,
}

impl Place {
    fn path(&self) -> String {
        format!("/{}/{}", escaped(&self.bucket, ""), escaped(&self.key, "/"))
    }
}

/// A part of a bucket.
#[derive(Deserialize)]
struct Part {
    bucket: String,
    #[serde(default)]
    prefix: String,
    /// Where the last list ended.
    after: Option<String>,
}

impl Part {
    /// S3 wants its parameters in order.
    fn path(&self) -> String {
        let mut query = String::new();
        if let Some(after) = &self.after {
            let _ = write!(query, "continuation-token={}&", escaped(after, ""));
        }
        let prefix = escaped(&self.prefix, "");
        let _ = write!(query, "delimiter=%2F&list-type=2&max-keys={LISTED_MOST}&prefix={prefix}");
        format!("/{}?{query}", escaped(&self.bucket, ""))
    }
}

pub(crate) fn routes() -> Router<Shared> {
    Router::new()
        .route("/api/s3/buckets", get(buckets))
        .route("/api/s3/objects", get(objects))
        .route("/api/s3/object", get(download).put(upload).delete(delete))
}

async fn buckets(State(shared): State<Shared>, headers: HeaderMap) -> Result<Response, Fault> {
    shared.tokens.need(&headers, Right::Look)?;
    let answer = send(shared.s3.as_ref(), Method::GET, "/", Body::empty(), 0).await?;
    Ok(inert(answer, "application/xml"))
}

async fn objects(
    State(shared): State<Shared>,
    headers: HeaderMap,
    Query(part): Query<Part>,
) -> Result<Response, Fault> {
    shared.tokens.need(&headers, Right::Look)?;
    let answer = send(shared.s3.as_ref(), Method::GET, &part.path(), Body::empty(), 0).await?;
    Ok(inert(answer, "application/xml"))
}

async fn download(
    State(shared): State<Shared>,
    headers: HeaderMap,
    Query(place): Query<Place>,
) -> Result<Response, Fault> {
    shared.tokens.need(&headers, Right::Look)?;
    let answer = send(shared.s3.as_ref(), Method::GET, &place.path(), Body::empty(), 0).await?;
    Ok(inert(answer, "application/octet-stream"))
}

async fn upload(
    State(shared): State<Shared>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    Query(place): Query<Place>,
    request: Request,
) -> Result<Response, Fault> {
    let headers = request.headers();
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    shared.tokens.may_act(headers, from, "an upload")?;
    let length = length.filter(|length| *length <= UPLOAD_MOST).ok_or(S3Fault::TooLong)?;
    let sent = send(shared.s3.as_ref(), Method::PUT, &place.path(), request.into_body(), length).await;
    done(from, "upload", &place, sent)
}

async fn delete(
    State(shared): State<Shared>,
    ConnectInfo(from): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    Query(place): Query<Place>,
) -> Result<Response, Fault> {
    shared.tokens.may_act(&headers, from, "a deletion")?;
    let sent = send(shared.s3.as_ref(), Method::DELETE, &place.path(), Body::empty(), 0).await;
    done(from, "deletion", &place, sent)
}

fn done(
    from: SocketAddr,
    what: &str,
    place: &Place,
    sent: Result<Response, S3Fault>,
) -> Result<Response, Fault> {
    // Names come from outside: written so that they cannot pass for other lines of the log.
    let Place { bucket, key } = place;
    match &sent {
        Ok(_) => tracing::info!("the administrator at {from}: {what} of {key:?} in {bucket:?}"),
        Err(why) => tracing::warn!("the administrator at {from}: {what} of {key:?} in {bucket:?}: {why}"),
    }
    sent?;
    Ok(json("{\"done\":true}".to_owned()))
}

/// The body alone, to be kept: none of the gateway's header fields, which are the object's owner's to choose.
fn inert(answer: Response, kind: &'static str) -> Response {
    let length = answer.headers().get(CONTENT_LENGTH).cloned();
    let mut kept = Response::new(answer.into_body());
    let headers = kept.headers_mut();
    for (name, value) in
        [(CONTENT_TYPE, kind), (CONTENT_DISPOSITION, "attachment"), (CONTENT_SECURITY_POLICY, INERT)]
    {
        headers.insert(name, HeaderValue::from_static(value));
    }
    length.into_iter().for_each(|length| drop(headers.insert(CONTENT_LENGTH, length)));
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_as_signatures_want_it() {
        let place = Place { bucket: "b".into(), key: "a b/ü+?&#%/../c~".into() };
        assert_eq!(place.path(), "/b/a%20b/%C3%BC%2B%3F%26%23%25/../c~");
        let part = Part { bucket: "x/y".into(), prefix: "a/&b=".into(), after: Some("k=/".into()) };
        assert_eq!(
            part.path(),
            "/x%2Fy?continuation-token=k%3D%2F&delimiter=%2F&list-type=2&max-keys=200&prefix=a%2F%26b%3D"
        );
    }
}
