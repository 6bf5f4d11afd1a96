//! XML documents of requests. Of the elements directly below the root the library drops those that it does not know,
//! and carries the rest out. Here each is compared with what the operation understands, and the document with what XML
//! can carry, before anything is done (R20).

use crate::convert::unwritable;
use crate::http::body::Polled;
use crate::http::front::bucket_of_host;
use bytes::{Bytes, BytesMut};
use form_urlencoded::parse;
use hyper::Method;
use hyper::body::{Body as HttpBody, Frame};
use hyper::http::request::Parts;
use quick_xml::events::Event;
use s3s::{Body, S3Error, S3Result, StdError, s3_error};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};

/// Largest document: 10,000 parts of an upload with their checksums.
pub const BYTES_MAX: usize = 8 << 20;

/// What is understood directly below each root. A root that is not here is not known to the library either.
const UNDERSTOOD: &[(&str, &[&str])] = &[
    ("AccessControlPolicy", &["AccessControlList", "Owner"]),
    ("CORSConfiguration", &["CORSRule"]),
    ("CompleteMultipartUpload", &["Part"]),
    ("CreateBucketConfiguration", &["Bucket", "Location", "LocationConstraint"]),
    ("Delete", &["Object", "Quiet"]),
    ("LifecycleConfiguration", &["Rule"]),
    (
        "RestoreRequest",
        &[
            "Days",
            "Description",
            "GlacierJobParameters",
            "OutputLocation",
            "SelectParameters",
            "Tier",
            "Type",
        ],
    ),
    ("Tagging", &["TagSet"]),
];

/// Whether the body of this request is a document. One that comes in chunks is not looked at: no client sends it so.
pub fn is_expected(request: &Parts, domains: &[String]) -> bool {
    let of_query = |names: &[&str]| {
        parse(request.uri.query().unwrap_or_default().as_bytes()).any(|(name, _)| names.contains(&&*name))
    };
    let text = |name: &str| request.headers.get(name).and_then(|value| value.to_str().ok());
    let is_for_bucket = || {
        let in_host = bucket_of_host(domains, text("host").unwrap_or_default()).is_some();
        let names = request.uri.path().split('/').filter(|name| !name.is_empty()).count();
        names + usize::from(in_host) == 1
    };
    let is_chunked = text("x-amz-content-sha256").is_some_and(|kind| kind.starts_with("STREAMING-"));
    let has = match request.method {
        Method::POST => of_query(&["delete", "restore", "uploadId"]),
        Method::PUT => of_query(&["acl", "cors", "lifecycle", "tagging"]) || is_for_bucket(),
        _ => false,
    };
    has && !is_chunked
}

/// Why a document was refused, once it was.
#[derive(Clone, Default)]
pub struct Refused(Arc<Mutex<Option<S3Error>>>);

impl Refused {
    pub fn take(&self) -> Option<S3Error> {
        self.0.lock().expect("no panic under this lock").take()
    }
}

/// A body that is a document. The library reads it when it knows that its sender may send it: only then is it held, and
/// looked at when it is complete.
pub struct Document {
    body: Body,
    held: BytesMut,
    refused: Refused,
    ended: bool,
}

impl Document {
    pub fn new(body: Body, refused: Refused) -> Document {
        Document { body, held: BytesMut::new(), refused, ended: false }
    }

    fn refuse(&mut self, error: S3Error) -> Polled {
        self.ended = true;
        let why = error.message().unwrap_or_default().to_owned();
        let before = self.refused.0.lock().expect("no panic under this lock").replace(error);
        debug_assert!(before.is_none(), "a document is refused once");
        Poll::Ready(Some(Err(why.into())))
    }
}

impl HttpBody for Document {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        while !self.ended {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.held.extend_from_slice(&data);
                    }
                    if self.held.len() > BYTES_MAX {
                        let error =
                            s3_error!(MaxMessageLengthExceeded, "a document has at most {BYTES_MAX} bytes");
                        return self.refuse(error);
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.ended = true;
                    let whole = std::mem::take(&mut self.held).freeze();
                    return match check(&whole) {
                        Err(error) => self.refuse(error),
                        Ok(()) if whole.is_empty() => Poll::Ready(None),
                        Ok(()) => Poll::Ready(Some(Ok(Frame::data(whole)))),
                    };
                }
            }
        }
        Poll::Ready(None)
    }
}

/// What is not well-formed is left to the library.
fn check(document: &[u8]) -> S3Result<()> {
    let Ok(text) = std::str::from_utf8(document) else { return Ok(()) };
    let mut reader = quick_xml::Reader::from_str(text);
    let mut path: Vec<String> = Vec::new();
    loop {
        match reader.read_event() {
            Ok(Event::Start(start)) => {
                path.push(String::from_utf8_lossy(start.local_name().as_ref()).into_owned());
                check_place(&path)?;
            }
            Ok(Event::Empty(start)) => {
                path.push(String::from_utf8_lossy(start.local_name().as_ref()).into_owned());
                check_place(&path)?;
                path.pop();
            }
            Ok(Event::End(_)) => drop(path.pop()),
            Ok(Event::GeneralRef(named)) => {
                if let Ok(Some(c)) = named.resolve_char_ref() {
                    check_text(c.encode_utf8(&mut [0; 4]), &path)?;
                }
            }
            Ok(Event::Text(text)) => check_text(&String::from_utf8_lossy(&text), &path)?,
            Ok(Event::CData(text)) => check_text(&String::from_utf8_lossy(&text), &path)?,
            Ok(Event::Eof) | Err(_) => return Ok(()),
            Ok(_) => {}
        }
    }
}

fn check_place(path: &[String]) -> S3Result<()> {
    let [root, child] = path else { return Ok(()) };
    let understood = UNDERSTOOD.iter().find(|(name, _)| name == root).map(|(_, children)| *children);
    match understood {
        Some(children) if !children.contains(&child.as_str()) => Err(s3_error!(
            NotImplemented,
            "<{}> in <{root}> is not supported: nothing was done",
            child.escape_debug()
        )),
        _ => Ok(()),
    }
}

fn check_text(text: &str, path: &[String]) -> S3Result<()> {
    let Some(c) = unwritable(text) else { return Ok(()) };
    let place = path.last().map(|name| name.escape_debug().to_string()).unwrap_or_default();
    Err(s3_error!(MalformedXML, "<{place}> has the character U+{:04X}, which XML cannot carry", u32::from(c)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;
    use hyper::Request;

    fn code(document: &str) -> Option<String> {
        check(document.as_bytes()).err().map(|error| error.code().as_str().to_owned())
    }

    #[test]
    fn what_is_not_understood_below_the_root_is_refused() {
        for (root, children) in UNDERSTOOD {
            for child in *children {
                assert_eq!(code(&format!("<{root} xmlns=\"a\"><{child}>1</{child}></{root}>")), None);
            }
            for strange in ["<Append/>", "<DryRun>true</DryRun>", "<x:Tags xmlns:x=\"b\"><Tag/></x:Tags>"] {
                assert_eq!(
                    code(&format!("<{root}>{strange}</{root}>")),
                    Some("NotImplemented".into()),
                    "{root}"
                );
            }
        }
        assert_eq!(code("<Delete><Object><Key>DryRun</Key></Object></Delete>"), None);
        assert_eq!(code("<?xml version=\"1.0\"?>\n<Delete>\n <Quiet/>\n</Delete>"), None);
        assert_eq!(code("<Other><DryRun/></Other>"), None, "the library refuses the root");
        assert_eq!((code(""), code("<Delete><Obj"), code("no XML")), (None, None, None));
    }

    #[test]
    fn characters_that_xml_cannot_carry_are_refused_as_they_come() {
        for text in ["q\u{8}", "&#8;", "&#x1F;", "<![CDATA[\u{1}]]>", "\u{fffe}"] {
            let document =
                format!("<CORSConfiguration><CORSRule><ID>{text}</ID></CORSRule></CORSConfiguration>");
            assert_eq!(code(&document), Some("MalformedXML".into()), "{text:?}");
        }
        assert_eq!(code("<Tagging><TagSet>&#9;\r\n\u{e9}&amp;&#x1F600;</TagSet></Tagging>"), None);
    }

    #[test]
    fn documents_are_expected_where_operations_read_one() {
        let domains = ["s3.example".to_owned()];
        let expected = |method: &str, uri: &str, host: &str| {
            let request = Request::builder().method(method).uri(uri).header("host", host).body(()).unwrap();
            is_expected(&request.into_parts().0, &domains)
        };
        for (method, uri, host) in [
            ("PUT", "/b", "x"),
            ("PUT", "/b/", "x"),
            ("PUT", "/", "b.s3.example"),
            ("PUT", "/b?cors", "x"),
            ("PUT", "/b/k?tagging", "x"),
            ("POST", "/b?delete", "x"),
            ("POST", "/b/k?uploadId=1", "x"),
        ] {
            assert!(expected(method, uri, host), "{method} {uri}");
        }
        for (method, uri, host) in [
            ("PUT", "/b/k", "x"),
            ("PUT", "/k", "b.s3.example"),
            ("PUT", "/b/k?partNumber=1&uploadId=1", "x"),
            ("POST", "/b/k?uploads", "x"),
            ("GET", "/b?cors", "x"),
        ] {
            assert!(!expected(method, uri, host), "{method} {uri}");
        }
    }

    #[tokio::test]
    async fn a_document_passes_as_it_came_or_not_at_all() {
        let passed = async |text: &str| {
            let refused = Refused::default();
            let document = Document::new(Body::from(text.to_owned()), refused.clone());
            let mut body = Body::http_body_unsync(document);
            let mut all = Vec::new();
            while let Some(Ok(data)) = body.next().await {
                all.extend_from_slice(&data);
            }
            (String::from_utf8(all).unwrap(), refused.take().is_some())
        };
        let sound = "<Delete><Object><Key>k</Key></Object></Delete>";
        assert_eq!(passed(sound).await, (sound.to_owned(), false));
        assert_eq!(passed("").await, (String::new(), false));
        assert_eq!(passed("<Delete><DryRun/></Delete>").await, (String::new(), true));
        let long = format!("<Delete>{}</Delete>", " ".repeat(BYTES_MAX));
        assert_eq!(passed(&long).await, (String::new(), true));
    }
}
