//! The way to an S3 gateway: one request, signed, on a connection of its own.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CONTENT_LENGTH, HOST};
use axum::http::{Method, StatusCode};
use axum::response::Response;
use futures_util::StreamExt;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Bytes of an upload: a browser cannot resume one, and S3 clients can.
pub const UPLOAD_MOST: u64 = 64 << 20;
/// A gateway that is there accepts at once.
const CONNECT: Duration = Duration::from_secs(5);
/// For the head of an answer: also of one to an upload over a slow network, and of a download that waits for servers to
/// wake.
const ANSWER: Duration = Duration::from_secs(600);
/// Bytes of an error's text that are looked at.
const ERROR_MOST: usize = 16 << 10;

/// Header fields by which a request is known as the key's: of its method, and its path with its query, both escaped.
pub type Sign = Arc<dyn Fn(&str, &str) -> Vec<(&'static str, String)> + Send + Sync>;

/// The way to an S3 gateway.
#[derive(Clone)]
pub struct S3 {
    /// `host:port`
    pub address: String,
    pub sign: Sign,
}

/// Why S3 did not do it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum S3Fault {
    #[error(
        "this page has no S3 key: `ebb key add` makes one; start `ebb page` with --s3-key and a file that has it alone, in the form of the gateway's keys_file"
    )]
    NoKey,
    #[error(
        "a browser uploads at most {} MiB at once, of a known length: use an S3 client, such as `aws s3 cp`",
        UPLOAD_MOST >> 20
    )]
    TooLong,
    #[error("the S3 gateway at {address} cannot be reached: {why}")]
    Unreachable { address: String, why: String },
    #[error("S3 refuses: {text}")]
    Refused { status: StatusCode, text: String },
}

impl S3Fault {
    pub fn code(&self) -> StatusCode {
        match self {
            S3Fault::NoKey => StatusCode::CONFLICT,
            S3Fault::TooLong => StatusCode::PAYLOAD_TOO_LARGE,
            S3Fault::Unreachable { .. } => StatusCode::SERVICE_UNAVAILABLE,
            S3Fault::Refused { status: StatusCode::NOT_FOUND, .. } => StatusCode::NOT_FOUND,
            S3Fault::Refused { .. } => StatusCode::CONFLICT,
        }
    }
}

/// As S3's signatures want it: all but letters, digits, four signs, and those of `plain`.
pub(crate) fn escaped(text: &str, plain: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let stays =
            byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || plain.as_bytes().contains(&byte);
        if stays {
            out.push(char::from(byte));
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

/// One request on a connection of its own, and an answer that is a success.
pub(crate) async fn send(
    s3: Option<&S3>,
    method: Method,
    path: &str,
    body: Body,
    length: u64,
) -> Result<Response, S3Fault> {
    let s3 = s3.ok_or(S3Fault::NoKey)?;
    let mut request = Request::builder().method(&method).uri(path).header(HOST, &s3.address);
    for (name, value) in (s3.sign)(method.as_str(), path) {
        request = request.header(name, value);
    }
    let unreachable = |why: String| S3Fault::Unreachable { address: s3.address.clone(), why };
    let request =
        request.header(CONTENT_LENGTH, length).body(body).map_err(|e| unreachable(e.to_string()))?;
    let late = |_| unreachable("no answer in time".to_owned());
    let connected = timeout(CONNECT, TcpStream::connect(&s3.address)).await.map_err(late)?;
    let stream = connected.map_err(|error| unreachable(error.to_string()))?;
    let (mut sender, connection) =
        handshake(TokioIo::new(stream)).await.map_err(|error| unreachable(error.to_string()))?;
    // It ends with the answer's body; what goes wrong then, the body says.
    tokio::spawn(async move { connection.await.is_ok() });
    let answer = timeout(ANSWER, sender.send_request(request)).await.map_err(late)?;
    let answer = answer.map_err(|error| unreachable(error.to_string()))?.map(Body::new);
    if answer.status().is_success() {
        return Ok(answer);
    }
    Err(S3Fault::Refused { status: answer.status(), text: reason(answer).await })
}

/// What the gateway says is wrong, in words.
async fn reason(answer: Response) -> String {
    let status = answer.status();
    let (mut parts, mut text) = (answer.into_body().into_data_stream(), Vec::new());
    while let Some(Ok(part)) = parts.next().await
        && text.len() < ERROR_MOST
    {
        text.extend_from_slice(&part);
    }
    let text = String::from_utf8_lossy(&text);
    let within = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        let (inner, _) = rest.split_once(&format!("</{name}>"))?;
        let plain = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
        Some(plain.into_iter().fold(inner.to_owned(), |inner, (from, to)| inner.replace(from, to)))
    };
    match (within("Code"), within("Message")) {
        (Some(code), Some(message)) => format!("{message} ({code})"),
        (code, message) => code.or(message).unwrap_or_else(|| status.to_string()),
    }
}
