//! A minimal S3 client: one signed request on one connection. The protocol's breadth is tested with real clients.

use ebb_types::hex;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use time::OffsetDateTime;

/// A server that does not answer for this long never will.
const PATIENCE: Duration = Duration::from_secs(180);

pub struct Answer {
    pub status: u16,
    /// The status line and the header lines.
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        let named = |line: &&str| line.split(':').next().is_some_and(|n| n.eq_ignore_ascii_case(name));
        self.head.lines().find(named).and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
    }
}

/// The head of a signed request. `keys`: access and secret key. `path` begins with a slash; a query has a `=` in each
/// of its parts, which are in order. `more`: unsigned header lines.
pub fn head(
    address: &str,
    keys: (&str, &str),
    (method, path): (&str, &str),
    body: &[u8],
    more: &str,
) -> String {
    let (date, time) = now();
    let hash = hex(&Sha256::digest(body));
    let signed = "host;x-amz-content-sha256;x-amz-date";
    let (resource, query) = path.split_once('?').unwrap_or((path, ""));
    let canonical = format!(
        "{method}\n{resource}\n{query}\nhost:{address}\nx-amz-content-sha256:{hash}\nx-amz-date:{date}T{time}Z\n\n{signed}\n{hash}"
    );
    let scope = format!("{date}/us-east-1/s3/aws4_request");
    let digest = hex(&Sha256::digest(canonical));
    let to_sign = format!("AWS4-HMAC-SHA256\n{date}T{time}Z\n{scope}\n{digest}");
    let mut key = format!("AWS4{}", keys.1).into_bytes();
    for part in [date.as_str(), "us-east-1", "s3", "aws4_request"] {
        key = mac(&key, part);
    }
    let signature = hex(&mac(&key, &to_sign));
    format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\n{more}Content-Length: {}\r\n\
         x-amz-content-sha256: {hash}\r\nx-amz-date: {date}T{time}Z\r\n\
         Authorization: AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={signed}, Signature={signature}\r\n\r\n",
        body.len(),
        keys.0,
    )
}

pub fn request(
    address: &str,
    keys: (&str, &str),
    method: &str,
    path: &str,
    body: &[u8],
) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(head(address, keys, (method, path), body, "Connection: close\r\n").as_bytes())?;
    stream.write_all(body)?;
    let mut whole = Vec::new();
    stream.read_to_end(&mut whole)?;
    let end = whole.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or(whole.len());
    let head = String::from_utf8_lossy(&whole[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok(Answer { status, head, body: whole.get(end + 4..).unwrap_or_default().to_vec() })
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

/// `20260131` and `235959` in UTC.
fn now() -> (String, String) {
    let now = OffsetDateTime::now_utc();
    let ((year, month, day), (hour, minute, second)) = (now.to_calendar_date(), now.to_hms());
    (format!("{year:04}{:02}{day:02}", u8::from(month)), format!("{hour:02}{minute:02}{second:02}"))
}
