//! From a request to its response: the front door, the protocol library, and the work that both leave over.

use crate::bytes::backend::Backend;
use crate::convert::{REGION, custom, unwritable};
use crate::gateway::Gateway;
use crate::http::body::{Id, Paced, Progress};
use crate::http::chunked::{self, Chunked};
use crate::http::document::{self, Document, Refused};
use crate::http::limits::Limits;
use crate::http::{form, front};
use crate::ops::cors::{self, Asked};
use crate::ops::s3::Place;
use hyper::body::Incoming;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Request, StatusCode};
use s3s::service::S3Service;
use s3s::{Body, HttpError, HttpResponse, S3Error, S3Result, s3_error};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Called for every request. Must be cheap: it is called on the way to the answer.
pub trait Watcher: Send + Sync {
    fn asked(&self);
    /// `status`: `None`: the client went away before its answer. `took`: until the answer's head.
    fn answered(&self, method: &Method, status: Option<StatusCode>, took: Duration);
}

/// Browser forms that are received at once: the library holds each one in memory until it is complete.
const FORMS_AT_ONCE: usize = 2;

pub struct Front<B> {
    pub gateway: Arc<Gateway<B>>,
    pub service: S3Service,
    pub domains: Arc<Vec<String>>,
    pub limits: Limits,
    watcher: Arc<dyn Watcher>,
    forms: Semaphore,
    /// Id of the next request.
    next: AtomicU64,
}

impl<B: Backend> Front<B> {
    pub fn new(
        gateway: Arc<Gateway<B>>,
        service: S3Service,
        domains: Arc<Vec<String>>,
        limits: Limits,
        watcher: Arc<dyn Watcher>,
    ) -> Self {
        // So that a later run uses different ids.
        let start = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_nanos() as u64);
        let forms = Semaphore::new(FORMS_AT_ONCE);
        Front { gateway, service, domains, limits, watcher, forms, next: start.into() }
    }

    pub async fn answer(&self, request: Request<Incoming>) -> Result<HttpResponse, HttpError> {
        let mut watched = Watched::begin(&self.watcher, request.method());
        let id = format!("{:016X}", self.next.fetch_add(1, Ordering::Relaxed));
        let expects = expects_continue(&request);
        let progress = Progress::new();
        let (mut parts, body) = request.into_parts();
        let (method, uri) = (parts.method.clone(), parts.uri.clone());
        parts.extensions.insert(Id(id.clone()));
        let page = Page::of(&parts, &self.domains);
        let mut answer = match self.carried_out(parts, body, &progress).await {
            Ok(answer) => answer,
            Err(Failure::Refused(error)) => refusal(error)?,
            Err(Failure::Broken(error)) => return Err(error),
        };
        finish(&mut answer, &id, &method, &uri);
        if let Some(page) = &page
            && let Some(headers) = self.granted(page, method.as_str(), "").await
        {
            answer.headers_mut().extend(headers);
        }
        // Such a client may misread the next response on the same connection if this one came instead of `100
        // Continue`, as AWS's Python clients do: so there must be no next one.
        if expects && !progress.body_wanted() {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        watched.status = Some(answer.status());
        log(&id, &method, uri.path(), answer.status(), watched.began.elapsed());
        Ok(answer)
    }

    async fn carried_out(
        &self,
        mut parts: Parts,
        body: Incoming,
        progress: &Progress,
    ) -> Result<HttpResponse, Failure> {
        if parts.method == Method::OPTIONS {
            return Ok(self.preflight(&parts).await?);
        }
        front::admit(&mut parts)?;
        parts.extensions.insert(progress.clone());
        let form = form::boundary(&parts)?;
        let mut body = Body::http_body_unsync(Paced::new(body, progress.clone(), self.limits.stall));
        if let Some(signed) = chunked::signed(&parts.headers) {
            body = Body::http_body_unsync(Chunked::new(body, signed));
        }
        let refused = Refused::default();
        if document::is_expected(&parts, &self.domains) {
            body = Body::http_body_unsync(Document::new(body, refused.clone()));
        }
        let answered = async {
            let _turn = match &form {
                Some(boundary) => {
                    let turn = self.forms.acquire().await.expect("it is never closed");
                    body = form::checked(boundary, body).await?;
                    Some(turn)
                }
                None => None,
            };
            let answer = self.service.call(Request::from_parts(parts, body)).await.map_err(Failure::Broken);
            refused.take().map_or(answer, |error| Err(error.into()))
        };
        tokio::select! {
            answer = answered => answer,
            () = progress.silent_for(self.limits.answer) => {
                Err(s3_error!(SlowDown, "the cluster did not complete this in time: retry in a few seconds").into())
            }
        }
    }

    /// A browser asks whether a page may send a request.
    async fn preflight(&self, parts: &Parts) -> S3Result<HttpResponse> {
        let text = |name: HeaderName| parts.headers.get(name).and_then(|value| value.to_str().ok());
        let page = Page::of(parts, &self.domains);
        let (Some(page), Some(method)) = (page, text(header::ACCESS_CONTROL_REQUEST_METHOD)) else {
            return Err(s3_error!(
                InvalidRequest,
                "OPTIONS needs a bucket, Origin and Access-Control-Request-Method"
            ));
        };
        let headers = text(header::ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default();
        let Some(allowed) = self.granted(&page, method, headers).await else {
            let why = "the bucket's CORS configuration does not allow this request";
            return Err(custom("AccessForbidden", StatusCode::FORBIDDEN, why));
        };
        let mut answer = HttpResponse::new(Body::empty());
        *answer.headers_mut() = allowed;
        Ok(answer)
    }

    /// The headers by which a page may send such a request and read the answer; `None`: it may not.
    async fn granted(&self, page: &Page, method: &str, headers: &str) -> Option<HeaderMap> {
        let asked = Asked { origin: &page.origin, method, headers };
        cors::answer_of(&self.gateway.buckets, &page.bucket, &asked).await
    }
}

/// A request that was reported to the watcher, and is reported again when this ends, answered or not.
struct Watched<'a> {
    watcher: &'a Arc<dyn Watcher>,
    method: Method,
    began: Instant,
    status: Option<StatusCode>,
}

impl Watched<'_> {
    fn begin<'a>(watcher: &'a Arc<dyn Watcher>, method: &Method) -> Watched<'a> {
        watcher.asked();
        Watched { watcher, method: method.clone(), began: Instant::now(), status: None }
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        self.watcher.answered(&self.method, self.status, self.began.elapsed());
    }
}

enum Failure {
    Refused(S3Error),
    /// Not even an error response can be sent.
    Broken(HttpError),
}

impl From<S3Error> for Failure {
    fn from(error: S3Error) -> Failure {
        Failure::Refused(error)
    }
}

fn refusal(error: S3Error) -> Result<HttpResponse, HttpError> {
    error.to_http_response().map_err(|error| HttpError::new(Box::new(error)))
}

/// The browser page that sends a request, and the bucket it is for.
struct Page {
    origin: String,
    bucket: String,
}

impl Page {
    fn of(parts: &Parts, domains: &[String]) -> Option<Page> {
        let origin = parts.headers.get(header::ORIGIN)?.to_str().ok()?.to_owned();
        let host = parts.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
        let of_path = || parts.uri.path().split('/').nth(1).filter(|name| !name.is_empty());
        let bucket = front::bucket_of_host(domains, host).or_else(of_path)?.to_owned();
        Some(Page { origin, bucket })
    }
}

/// Adds what the library leaves out of its responses.
fn finish(answer: &mut HttpResponse, id: &str, method: &Method, uri: &hyper::Uri) {
    if let Ok(value) = HeaderValue::try_from(id) {
        answer.headers_mut().insert(HeaderName::from_static("x-amz-request-id"), value);
    }
    if *method == Method::HEAD && answer.headers().contains_key(header::CONTENT_RANGE) {
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    if let Some(Place(place)) = answer.extensions_mut().remove()
        && let Ok(place) = HeaderValue::try_from(place)
    {
        // A form may lead elsewhere.
        answer.headers_mut().entry(header::LOCATION).or_insert(place);
    }
    let Some(bytes) = answer.body().bytes() else { return };
    let Ok(text) = std::str::from_utf8(&bytes) else { return };
    let changed = if answer.status().is_client_error() || answer.status().is_server_error() {
        let mut text = text.to_owned();
        if text.contains("<Code>InvalidPolicyDocument</Code><Message>Policy condition") {
            text = text.replace("<Code>InvalidPolicyDocument</Code>", "<Code>AccessDenied</Code>");
            *answer.status_mut() = StatusCode::FORBIDDEN;
        }
        let text: String = explained(text).chars().map(shown).collect();
        // A client that signs for an invalid region learns the right one from this, and retries.
        let region = match text.contains("<Code>AuthorizationHeaderMalformed</Code>") {
            true => format!("<Region>{REGION}</Region>"),
            false => String::new(),
        };
        text.replace("</Error>", &format!("{region}<RequestId>{id}</RequestId></Error>"))
    } else if uri.query().is_some_and(|query| query.split('&').any(|part| part.starts_with("attributes"))) {
        // Only in this response the ETag has no quotes.
        text.replace("<ETag>\"", "<ETag>").replace("\"</ETag>", "</ETag>")
    } else if text.contains('\r') && is_xml(answer.headers()) {
        // An XML parser turns a bare carriage return into a line feed, which would change the key.
        text.replace('\r', "&#13;")
    } else {
        return;
    };
    if let Some(length) = answer.headers_mut().get_mut(header::CONTENT_LENGTH) {
        *length = HeaderValue::from(changed.len());
    }
    *answer.body_mut() = Body::from(changed);
}

/// Messages repeat what the client sent, and XML cannot carry all of that.
fn shown(c: char) -> char {
    if unwritable(c.encode_utf8(&mut [0; 4])).is_some() { char::REPLACEMENT_CHARACTER } else { c }
}

/// The library leaves some errors without a message; clients then print "Unknown".
fn explained(text: String) -> String {
    let code =
        text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>")).map(|(code, _)| code);
    match code {
        Some(code) if !text.contains("<Message>") => {
            text.replacen("</Code>", &format!("</Code><Message>{}</Message>", meaning(code)), 1)
        }
        _ => text,
    }
}

fn meaning(code: &str) -> &'static str {
    match code {
        "IncompleteBody" => "the body has fewer or more bytes than Content-Length states",
        "InternalError" => "the gateway failed: its log has the reason under this request's id",
        "InvalidBucketName" => {
            "a bucket's name has 3 to 63 lower-case letters, digits, dots and hyphens, begins and ends with a letter \
             or a digit, and is no IP address"
        }
        "InvalidRange" => "the object has no such bytes",
        "InvalidURI" => "the path or the query cannot be decoded",
        "KeyTooLongError" => "a key has at most 1,024 bytes",
        "MalformedPOSTRequest" => "the form is malformed",
        "MalformedXML" => {
            "the body is not the XML that this operation takes: an element is missing, unknown or malformed"
        }
        "MaxMessageLengthExceeded" => "the XML body is too long",
        "MethodNotAllowed" => "this method is not allowed here",
        "MissingContentLength" => "state the body's length in Content-Length",
        "MissingRequestBodyError" => "this operation needs a body",
        "SignatureDoesNotMatch" => {
            "the signature is not the one of this request: check the secret key, and that no proxy changes the header \
             Host, the path or the query"
        }
        _ => "the request is refused: what is supported is in docs/s3.md",
    }
}

fn is_xml(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/xml"))
        && !headers.contains_key(header::ETAG)
}

/// A reader who searches for a request's error has its id. The query is omitted: it may contain a signature.
fn log(id: &str, method: &Method, path: &str, status: StatusCode, took: Duration) {
    let (status, millis) = (status.as_u16(), took.as_millis());
    match status {
        500.. => tracing::warn!(target: "ebb::s3", id, %method, path, status, millis, "request"),
        400.. => tracing::info!(target: "ebb::s3", id, %method, path, status, millis, "request"),
        _ => tracing::debug!(target: "ebb::s3", id, %method, path, status, millis, "request"),
    }
}

fn expects_continue(request: &Request<Incoming>) -> bool {
    request.headers().get(header::EXPECT).is_some_and(|value| value.as_bytes() == b"100-continue")
}

#[cfg(test)]
mod tests {
    use super::*;
    use s3s::S3ErrorCode;

    #[test]
    fn an_error_without_a_message_gets_one() {
        let bare = S3Error::new(S3ErrorCode::InvalidBucketName);
        let told = S3Error::with_message(S3ErrorCode::InvalidBucketName, "own words");
        for (error, message) in [(bare, meaning("InvalidBucketName")), (told, "own words")] {
            let mut answer = error.to_http_response().unwrap();
            finish(&mut answer, "1F", &Method::PUT, &"/B".parse().unwrap());
            let text = String::from_utf8(answer.body().bytes().unwrap().to_vec()).unwrap();
            let end = format!("<Message>{message}</Message><RequestId>1F</RequestId></Error>");
            assert!(text.ends_with(&end), "{text}");
        }
    }
}
