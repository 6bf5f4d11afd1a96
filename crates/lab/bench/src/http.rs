//! The part of HTTP/1.1 that a load generator needs: one request after another on one connection.

use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Bodies up to this size are sent in one call with their head.
const TOGETHER: usize = 64 << 10;
const READ_BUFFER: usize = 128 << 10;
const HEAD_MAX: usize = 32 << 10;
/// This much of an error's body is reported.
const TOLD: usize = 400;

#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    #[error("the connection failed: {0}")]
    Io(#[from] io::Error),
    #[error("no response in time")]
    Late,
    #[error("the server closed the connection in the middle of a response")]
    Closed,
    #[error("the server closed the connection without a response")]
    Unanswered,
    #[error("the response is not valid HTTP/1.1: {0}")]
    Malformed(&'static str),
    #[error("status {status}: {text}")]
    Status { status: u16, text: String },
}

/// A response, without its body; `text` has the start of it if the status is not a success.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    text: String,
}

impl Response {
    pub fn success(self) -> Result<(), HttpError> {
        match self.status {
            200..=299 => Ok(()),
            status => Err(HttpError::Status { status, text: told(self.text) }),
        }
    }
}

/// What an S3 service says in its XML, or else the text as it is.
fn told(text: String) -> String {
    let of = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        // A long message was cut off.
        let text = rest.split('<').next().unwrap_or(rest);
        let text = ["&lt;<", "&gt;>", "&quot;\"", "&apos;'", "&#39;'", "&amp;&"].iter().fold(
            text.to_owned(),
            |text, pair| {
                let (name, sign) = pair.split_at(pair.len() - 1);
                text.replace(name, sign)
            },
        );
        Some(text).filter(|text| !text.is_empty())
    };
    match (of("Code"), of("Message")) {
        (Some(code), Some(message)) => format!("{code}: {message}"),
        (Some(code), None) => code,
        _ => text,
    }
}

/// A connection that is kept open between requests.
pub struct Connection {
    stream: TcpStream,
    out: Vec<u8>,
    buffer: Vec<u8>,
    /// Bytes `start..end` of the buffer were read but not consumed yet.
    start: usize,
    end: usize,
    open: bool,
}

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Framing {
    Length(u64),
    Chunked,
}

#[derive(Debug, PartialEq)]
struct Head {
    status: u16,
    framing: Framing,
    keep: bool,
}

/// Whether the other side closed the connection.
fn is_closed(error: &HttpError) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset};
    match error {
        HttpError::Closed => true,
        HttpError::Io(error) => matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset),
        _ => false,
    }
}

impl Connection {
    pub async fn open(address: &str) -> io::Result<Connection> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream, out: Vec::new(), buffer: vec![0; READ_BUFFER], start: 0, end: 0, open: true })
    }

    /// Whether another request may be sent.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Sends a request and reads the response; the parts of a successful response's body go to `sink` as they arrive.
    pub async fn exchange(
        &mut self,
        head: &[u8],
        body: &[u8],
        sink: &mut impl FnMut(&[u8]),
    ) -> Result<Response, HttpError> {
        // After an error the state of the connection is unknown.
        self.open = false;
        let sent = self.send(head, body).await;
        let found = match (self.head().await, sent) {
            (Ok(found), _) => found,
            (Err(error), _) if self.start == self.end && is_closed(&error) => {
                return Err(HttpError::Unanswered);
            }
            // A server that refuses a body closes the connection: its response, if any, says more.
            (Err(_), Err(error)) => return Err(error.into()),
            (Err(error), Ok(())) => return Err(error),
        };
        let (mut text, success) = (Vec::new(), (200..300).contains(&found.status));
        let mut take = |part: &[u8]| {
            if success {
                sink(part);
            } else if text.len() < TOLD {
                text.extend_from_slice(&part[..part.len().min(TOLD - text.len())]);
            }
        };
        match found.framing {
            Framing::Length(len) => self.body(len, &mut take).await?,
            Framing::Chunked => self.chunks(&mut take).await?,
        }
        self.open = found.keep;
        Ok(Response { status: found.status, text: String::from_utf8_lossy(&text).into_owned() })
    }

    async fn send(&mut self, head: &[u8], body: &[u8]) -> io::Result<()> {
        if body.len() <= TOGETHER {
            self.out.clear();
            self.out.extend_from_slice(head);
            self.out.extend_from_slice(body);
            return self.stream.write_all(&self.out).await;
        }
        self.stream.write_all(head).await?;
        self.stream.write_all(body).await
    }

    /// Reads more; there is room, because consumed bytes are discarded first.
    async fn fill(&mut self) -> Result<(), HttpError> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        match self.stream.read(&mut self.buffer[self.end..]).await? {
            0 => Err(HttpError::Closed),
            n => {
                self.end += n;
                Ok(())
            }
        }
    }

    async fn head(&mut self) -> Result<Head, HttpError> {
        loop {
            let ready = &self.buffer[self.start..self.end];
            if let Some(len) = ready.windows(4).position(|w| w == b"\r\n\r\n") {
                let head = parse(&ready[..len])?;
                self.start += len + 4;
                if head.status >= 200 {
                    return Ok(head);
                }
                continue;
            }
            if ready.len() > HEAD_MAX {
                return Err(HttpError::Malformed("the head is too long"));
            }
            self.fill().await?;
        }
    }

    async fn body(&mut self, len: u64, sink: &mut impl FnMut(&[u8])) -> Result<(), HttpError> {
        let mut left = len;
        while left > 0 {
            if self.start == self.end {
                self.fill().await?;
            }
            let n = ((self.end - self.start) as u64).min(left) as usize;
            sink(&self.buffer[self.start..self.start + n]);
            self.start += n;
            left -= n as u64;
        }
        Ok(())
    }

    async fn chunks(&mut self, sink: &mut impl FnMut(&[u8])) -> Result<(), HttpError> {
        loop {
            let line = self.line().await?;
            let digits = line.split(';').next().unwrap_or("").trim();
            let len =
                u64::from_str_radix(digits, 16).map_err(|_| HttpError::Malformed("invalid chunk length"))?;
            if len == 0 {
                while !self.line().await?.is_empty() {}
                return Ok(());
            }
            self.body(len, sink).await?;
            if !self.line().await?.is_empty() {
                return Err(HttpError::Malformed("invalid chunk end"));
            }
        }
    }

    async fn line(&mut self) -> Result<String, HttpError> {
        loop {
            let ready = &self.buffer[self.start..self.end];
            if let Some(len) = ready.windows(2).position(|w| w == b"\r\n") {
                let line = String::from_utf8_lossy(&ready[..len]).into_owned();
                self.start += len + 2;
                return Ok(line);
            }
            if ready.len() > HEAD_MAX {
                return Err(HttpError::Malformed("a line is too long"));
            }
            self.fill().await?;
        }
    }
}

fn parse(head: &[u8]) -> Result<Head, HttpError> {
    let text = std::str::from_utf8(head).map_err(|_| HttpError::Malformed("the head is not text"))?;
    let mut lines = text.split("\r\n");
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1.1 ")).and_then(|rest| rest.get(..3));
    let status: u16 =
        status.and_then(|s| s.parse().ok()).ok_or(HttpError::Malformed("invalid status line"))?;
    let (mut framing, mut keep) = (None, true);
    for line in lines {
        let (name, value) = line.split_once(':').ok_or(HttpError::Malformed("invalid header line"))?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            let len = value.parse().map_err(|_| HttpError::Malformed("invalid content-length"))?;
            framing.get_or_insert(Framing::Length(len));
        } else if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
            framing = Some(Framing::Chunked);
        } else if name.eq_ignore_ascii_case("connection") && value.eq_ignore_ascii_case("close") {
            keep = false;
        }
    }
    if framing.is_none() && status >= 200 && status != 204 && status != 304 {
        return Err(HttpError::Malformed("the length is missing"));
    }
    Ok(Head { status, framing: framing.unwrap_or(Framing::Length(0)), keep })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_heads_are_refused_or_understood() {
        let samples: [&[u8]; 2] = [
            b"HTTP/1.1 200 OK\r\nCONTENT-Length:  12\r\nx: y",
            b"HTTP/1.1 403 No\r\ntransfer-encoding: chunked\r\nConnection: close",
        ];
        ebb_testing::fuzz(&samples, |bytes| drop(parse(bytes)));
    }

    #[test]
    fn what_a_service_says_is_told_without_its_xml() {
        let xml = "<?xml version=\"1.0\"?>\n<Error><Code>NoSuchBucket</Code><Message>there is no &quot;b&quot; &amp; none</Message></Error>";
        assert_eq!(told(xml.into()), "NoSuchBucket: there is no \"b\" & none");
        let cut = &xml[..xml.len() - 28];
        assert_eq!(told(cut.into()), "NoSuchBucket: there is no \"b\" ");
        assert_eq!(told("<Error><Code>SlowDown</Code></Error>".into()), "SlowDown");
        for text in ["denied", "<Error>denied", "", "<Code></Code>"] {
            assert_eq!(told(text.into()), text);
        }
    }

    #[test]
    fn heads_are_understood_in_any_case_and_bad_ones_refused() {
        let head = parse(b"HTTP/1.1 200 OK\r\nCONTENT-Length:  12\r\nx: y").unwrap();
        assert_eq!(head, Head { status: 200, framing: Framing::Length(12), keep: true });
        let head = parse(b"HTTP/1.1 403 No\r\ntransfer-encoding: chunked\r\nConnection: close").unwrap();
        assert_eq!(head, Head { status: 403, framing: Framing::Chunked, keep: false });
        assert_eq!(parse(b"HTTP/1.1 204 No Content").unwrap().framing, Framing::Length(0));
        for bad in
            ["HTTP/2 200", "HTTP/1.1 2x0 OK", "HTTP/1.1 200 OK", "HTTP/1.1 200 OK\r\nx", "", "HTTP/1.1 "]
        {
            assert!(matches!(parse(bad.as_bytes()), Err(HttpError::Malformed(_))), "{bad:?}");
        }
    }
}
