//! Browser forms that upload objects (POST).
//!
//! The library reads a form into memory before it checks who sent it, ignores unknown fields, and stores `${filename}`
//! literally. So the fields before the file are read here first, up to a limit.

use crate::http::body::Polled;
use crate::http::front::{check_wish, is_form, old_signature};
use crate::http::understood::may_have;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use hyper::body::{Body as HttpBody, Frame};
use hyper::header;
use hyper::http::request::Parts;
use s3s::{Body, S3Error, S3Result, StdError, s3_error};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Most bytes before the file.
pub const FIELDS_BYTES_MAX: usize = 64 << 10;
/// Largest file in a form; larger ones must be PUT.
pub const FILE_BYTES_MAX: u64 = 32 << 20;

/// The boundary between a form's fields; `None`: the request is not a form.
pub fn boundary(request: &Parts) -> S3Result<Option<String>> {
    if !is_form(request) {
        return Ok(None);
    }
    let kind =
        request.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let mut parameters = kind.split(';').skip(1).filter_map(|parameter| parameter.trim().split_once('='));
    let found = parameters.find(|(name, _)| name.trim().eq_ignore_ascii_case("boundary"));
    let (_, value) = found.ok_or_else(|| s3_error!(MalformedPOSTRequest, "the form has no boundary"))?;
    Ok(Some(value.trim().trim_matches('"').to_owned()))
}

/// Returns the body unread, if the fields before its file are signed and Ebb supports all of them.
pub async fn checked(boundary: &str, mut body: Body) -> S3Result<Body> {
    let delimiter = format!("\r\n--{boundary}");
    let mut head = BytesMut::from("\r\n");
    let mut seen = 0;
    loop {
        // The head of a field, or of the file, must end in the new bytes.
        let ends = find(&head, seen, b"\r\n\r\n").is_some();
        seen = head.len().saturating_sub(3);
        if ends && let Some(fields) = fields(&head, delimiter.as_bytes())? {
            let start = checked_fields(&head, fields)?.slice(2..);
            return Ok(Body::http_body_unsync(Rejoined { start: Some(start), rest: body }));
        }
        if head.len() > FIELDS_BYTES_MAX {
            return Err(too_long());
        }
        match body.next().await {
            Some(data) => head.extend_from_slice(&data.map_err(crate::bytes::intake::body_error)?),
            None => return Err(s3_error!(MalformedPOSTRequest, "the form has no file")),
        }
    }
}

fn too_long() -> S3Error {
    s3_error!(
        MaxPostPreDataLengthExceededError,
        "the fields before the file have more than {FIELDS_BYTES_MAX} bytes"
    )
}

/// A field: its name in lower case, and the position of its value.
struct Field {
    name: String,
    value: std::ops::Range<usize>,
}

struct Fields {
    fields: Vec<Field>,
    /// The file's name, without the directories it came from.
    file: String,
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    let at = bytes.get(from..)?.windows(what.len()).position(|window| window == what)?;
    Some(from + at)
}

/// The fields up to the head of the file; `None`: more must be read.
fn fields(head: &[u8], delimiter: &[u8]) -> S3Result<Option<Fields>> {
    let mut fields = Vec::new();
    let mut at = 0;
    loop {
        let Some(start) = find(head, at, delimiter).map(|found| found + delimiter.len()) else {
            return Ok(None);
        };
        let Some(end) = find(head, start, b"\r\n\r\n") else { return Ok(None) };
        let lines = String::from_utf8_lossy(&head[start..end]);
        let disposition = lines.lines().filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
            name.trim().eq_ignore_ascii_case("content-disposition").then(|| value.trim().to_owned())
        });
        let malformed = || s3_error!(MalformedPOSTRequest, "a field has no name");
        let disposition = disposition.ok_or_else(malformed)?;
        let name = parameter(&disposition, "name").ok_or_else(malformed)?.to_ascii_lowercase();
        if end > FIELDS_BYTES_MAX {
            return Err(too_long());
        }
        if name == "file" {
            let file = parameter(&disposition, "filename").unwrap_or_default();
            let file = file.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
            return Ok(Some(Fields { fields, file }));
        }
        let Some(after) = find(head, end + 4, delimiter) else { return Ok(None) };
        fields.push(Field { name, value: end + 4..after });
        at = after;
    }
}

/// A parameter of a Content-Disposition.
fn parameter(disposition: &str, wanted: &str) -> Option<String> {
    let mut rest = disposition.split_once(';')?.1;
    loop {
        let (name, after) = rest.trim_start_matches([';', ' ']).split_once('=')?;
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(';').unwrap_or((after, "")),
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value.to_owned());
        }
        rest = after;
    }
}

fn checked_fields(head: &[u8], Fields { fields, file }: Fields) -> S3Result<Bytes> {
    let has = |name: &str| fields.iter().any(|field| field.name == name);
    if !has("x-amz-signature") && (has("signature") || has("awsaccesskeyid")) {
        return Err(old_signature());
    }
    if !has("x-amz-signature") {
        return Err(s3_error!(AccessDenied, "the form is not signed"));
    }
    let mut out = BytesMut::with_capacity(head.len());
    let mut copied = 0;
    for Field { name, value } in fields {
        let text = String::from_utf8_lossy(&head[value.clone()]);
        match name.as_str() {
            "acl" => check_wish("x-amz-acl", &text)?,
            "tagging" => {
                return Err(s3_error!(
                    NotImplemented,
                    "tags in a form are not supported: set them afterwards"
                ));
            }
            // It is no header here, so nothing compares it.
            "x-amz-content-sha256" => return Err(not_in_form(&name)),
            _ if !may_have("PostObject", &name) => return Err(not_in_form(&name)),
            _ => check_wish(&name, &text)?,
        }
        debug_assert!(copied <= value.start, "fields follow one another");
        if name == "key" && text.contains("${filename}") {
            out.extend_from_slice(&head[copied..value.start]);
            out.extend_from_slice(text.replace("${filename}", &file).as_bytes());
            copied = value.end;
        }
    }
    out.extend_from_slice(&head[copied..]);
    Ok(out.freeze())
}

fn not_in_form(name: &str) -> S3Error {
    s3_error!(NotImplemented, "{name} in a form is not supported: nothing was done")
}

/// The bytes already read, followed by the rest.
struct Rejoined {
    start: Option<Bytes>,
    rest: Body,
}

impl HttpBody for Rejoined {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        match self.start.take() {
            Some(start) => Poll::Ready(Some(Ok(Frame::data(start)))),
            None => Pin::new(&mut self.rest).poll_frame(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: &str = "--B\r\nContent-Disposition: form-data; name=\"key\"\r\n\r\nup/${filename}\r\n--B\r\n\
        Content-Disposition: form-data; name=\"X-Amz-Signature\"\r\n\r\n00\r\n--B\r\n\
        content-disposition: form-data; name=\"file\"; filename=\"C:\\dir\\a b.txt\"\r\n\r\nbytes\r\n--B--\r\n";

    async fn outcome(form: &str, size: usize) -> Result<String, String> {
        let pieces: Vec<_> =
            form.as_bytes().chunks(size).map(|c| Ok(Frame::data(Bytes::copy_from_slice(c)))).collect();
        struct Pieces(std::vec::IntoIter<Result<Frame<Bytes>, StdError>>);
        impl HttpBody for Pieces {
            type Data = Bytes;
            type Error = StdError;
            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
                Poll::Ready(self.0.next())
            }
        }
        let body = Body::http_body_unsync(Pieces(pieces.into_iter()));
        let mut body = checked("B", body).await.map_err(|error| error.code().as_str().to_owned())?;
        let mut all = Vec::new();
        while let Some(data) = body.next().await {
            all.extend_from_slice(&data.unwrap());
        }
        Ok(String::from_utf8(all).unwrap())
    }

    #[tokio::test]
    async fn the_files_name_stands_in_the_key_and_the_rest_stays_as_it_was() {
        let expected = FORM.replace("${filename}", "a b.txt");
        for size in [1, 7, 1000] {
            assert_eq!(outcome(FORM, size).await, Ok(expected.clone()));
        }
    }

    #[tokio::test]
    async fn unsigned_forms_unmet_wishes_and_endless_fields_are_refused() {
        let with = |name: &str, value: &str| {
            let field = format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
            field + FORM
        };
        assert_eq!(outcome(&FORM.replace("X-Amz-Signature", "none"), 9).await, Err("AccessDenied".into()));
        for (name, value) in [
            ("x-amz-write-offset-bytes", "5"),
            ("x-amz-server-side-encryption", "AES256"),
            ("tagging", "<T/>"),
            ("If-None-Match", "*"),
            ("if-match", "\"a\""),
            ("x-amz-if-match-size", "3"),
            ("x-amz-copy-source", "/b/k"),
            ("x-amz-copy-source-if-match", "a"),
            ("x-amz-mp-object-size", "1"),
            ("Content-Range", "bytes 0-1/9"),
            ("x-amz-content-sha256", "00"),
        ] {
            assert_eq!(outcome(&with(name, value), 9).await, Err("NotImplemented".into()), "{name}");
        }
        let public = outcome(&with("acl", "public-read"), 9).await;
        assert_eq!(public, Err("AccessControlListNotSupported".into()));
        let old = FORM.replace("X-Amz-Signature", "signature");
        assert_eq!(outcome(&old, 9).await, Err("InvalidRequest".into()), "version 2");
        assert!(outcome(&with("acl", "private"), 9).await.is_ok());
        let endless = with("x-amz-meta-a", &"x".repeat(FIELDS_BYTES_MAX));
        assert_eq!(outcome(&endless, 999).await, Err("MaxPostPreDataLengthExceededError".into()));
        assert_eq!(outcome("--B\r\n", 9).await, Err("MalformedPOSTRequest".into()));
    }
}
