//! The part of Signature Version 4 that a load generator and the page need: header authentication, unhashed bodies.

use ebb_types::hex;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::time::SystemTime;
use time::OffsetDateTime;

/// Makes signed request heads for one endpoint and one pair of keys.
pub struct Signer {
    host: String,
    access_key: String,
    secret_key: String,
    region: String,
}

const UNSIGNED: &str = "UNSIGNED-PAYLOAD";
const SIGNED_HEADERS: &str = "host;x-amz-content-sha256;x-amz-date";

fn hmac(key: &[u8], text: &str) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes a key of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().into()
}

/// `20130524T000000Z`.
fn timestamp(now: SystemTime) -> String {
    let t = OffsetDateTime::from(now);
    let (year, month, day) = t.to_calendar_date();
    let (hour, minute, second) = t.to_hms();
    format!("{year:04}{:02}{day:02}T{hour:02}{minute:02}{second:02}Z", u8::from(month))
}

impl Signer {
    pub fn new(host: String, access_key: &str, secret_key: &str, region: &str) -> Signer {
        Signer {
            host,
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            region: region.to_owned(),
        }
    }

    /// The header fields that show whose a request is, beside `host`. `path`: escaped, and so are the parameters of its
    /// query, each with a `=`, in their order.
    pub fn headers(&self, method: &str, path: &str, now: SystemTime) -> [(&'static str, String); 3] {
        let time = timestamp(now);
        let (day, host) = (&time[..8], &self.host);
        let (resource, query) = path.split_once('?').unwrap_or((path, ""));
        let canonical = format!(
            "{method}\n{resource}\n{query}\nhost:{host}\nx-amz-content-sha256:{UNSIGNED}\nx-amz-date:{time}\n\n{SIGNED_HEADERS}\n{UNSIGNED}"
        );
        let scope = format!("{day}/{}/s3/aws4_request", self.region);
        let signature = self.sign(day, &time, &scope, &canonical);
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={SIGNED_HEADERS}, Signature={signature}",
            self.access_key
        );
        [
            ("x-amz-date", time),
            ("x-amz-content-sha256", UNSIGNED.to_owned()),
            ("authorization", authorization),
        ]
    }

    /// The head of a request with a body of `len` bytes.
    pub fn head(&self, method: &str, path: &str, len: usize, now: SystemTime) -> String {
        let mut head = String::with_capacity(512);
        let host = &self.host;
        write!(head, "{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len}\r\n")
            .expect("a string takes everything");
        for (name, value) in self.headers(method, path, now) {
            write!(head, "{name}: {value}\r\n").expect("a string takes everything");
        }
        head + "\r\n"
    }

    fn sign(&self, day: &str, time: &str, scope: &str, canonical: &str) -> String {
        let text =
            format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hex(&Sha256::digest(canonical.as_bytes())));
        let key = hmac(format!("AWS4{}", self.secret_key).as_bytes(), day);
        let key = [self.region.as_str(), "s3", "aws4_request"].iter().fold(key, |key, part| hmac(&key, part));
        hex(&hmac(&key, &text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use std::time::UNIX_EPOCH;

    #[test]
    fn the_signature_is_that_of_the_published_example() {
        // "GET Object" of the S3 documentation on authorization headers.
        let signer = Signer::new(
            "examplebucket.s3.amazonaws.com".into(),
            "AKIAIOSFODNN7EXAMPLE",
            "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
            "us-east-1",
        );
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let canonical = format!(
            "GET\n/test.txt\n\nhost:examplebucket.s3.amazonaws.com\nrange:bytes=0-9\nx-amz-content-sha256:{empty}\n\
             x-amz-date:20130524T000000Z\n\nhost;range;x-amz-content-sha256;x-amz-date\n{empty}"
        );
        let scope = "20130524/us-east-1/s3/aws4_request";
        assert_eq!(
            signer.sign("20130524", "20130524T000000Z", scope, &canonical),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
    }

    #[test]
    fn times_are_written_as_the_protocol_wants() {
        let at = |seconds| timestamp(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "19700101T000000Z");
        assert_eq!(at(1_369_353_600), "20130524T000000Z");
        assert_eq!(at(951_827_696), "20000229T123456Z");
        assert_eq!(at(4_107_542_399), "21000228T235959Z");
        assert_eq!(at(4_107_542_400), "21000301T000000Z");
    }
}
