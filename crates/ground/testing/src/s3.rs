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

/// The head of a signed request. `keys`: access and secret key. `path` begins with a slash. `more`: unsigned header
/// lines.
pub fn head(address: &str, keys: (&str, &str), what: (&str, &str), body: &[u8], more: &str) -> String {
    head_with(address, keys, what, &[], body, more)
}

/// The same with more signed headers, their names in lower case. One may be the hash of the payload.
fn head_with(
    address: &str,
    keys: (&str, &str),
    (method, path): (&str, &str),
    headers: &[(&str, &str)],
    body: &[u8],
    more: &str,
) -> String {
    let (date, time) = now();
    let (own_hash, stamp) = (hex(&Sha256::digest(body)), format!("{date}T{time}Z"));
    let given = headers.iter().find(|(name, _)| *name == "x-amz-content-sha256");
    let hash = given.map_or(own_hash.as_str(), |(_, hash)| hash);
    let mut all = vec![("host", address), ("x-amz-content-sha256", hash), ("x-amz-date", &stamp)];
    all.extend(headers.iter().filter(|(name, _)| *name != "x-amz-content-sha256"));
    all.sort_unstable();
    let signed: Vec<&str> = all.iter().map(|(name, _)| *name).collect();
    let signed = signed.join(";");
    let lines: String = all.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let (resource, query) = path.split_once('?').unwrap_or((path, ""));
    let part = |part: &str| if part.contains('=') { part.to_owned() } else { format!("{part}=") };
    let mut query: Vec<String> = query.split('&').filter(|part| !part.is_empty()).map(part).collect();
    // By name: `select=` comes before `select-type=2`.
    query.sort_unstable_by(|a, b| a.split_once('=').cmp(&b.split_once('=')));
    let canonical = format!("{method}\n{resource}\n{}\n{lines}\n{signed}\n{hash}", query.join("&"));
    let scope = format!("{date}/us-east-1/s3/aws4_request");
    let to_sign = format!("AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{}", hex(&Sha256::digest(canonical)));
    let mut key = format!("AWS4{}", keys.1).into_bytes();
    for part in [date.as_str(), "us-east-1", "s3", "aws4_request"] {
        key = mac(&key, part);
    }
    let signature = hex(&mac(&key, &to_sign));
    let sent: String = all.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!(
        "{method} {path} HTTP/1.1\r\n{sent}{more}Content-Length: {}\r\n\
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
    request_with(address, keys, (method, path), &[], body)
}

/// The same with more signed headers, their names in lower case.
pub fn request_with(
    address: &str,
    keys: (&str, &str),
    what: (&str, &str),
    headers: &[(&str, &str)],
    body: &[u8],
) -> std::io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(head_with(address, keys, what, headers, body, "Connection: close\r\n").as_bytes())?;
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
