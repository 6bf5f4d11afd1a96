//! Chunked bodies (aws-chunked), before the library sees them.
//!
//! The library buffers each chunk until it is complete, whatever its size, and takes the end of the connection for the
//! last chunk. So unsigned chunks are split here as they arrive, signed ones are limited in size, and the last chunk
//! must arrive.

use crate::http::body::Polled;
use bytes::{Buf, Bytes};
use hyper::HeaderMap;
use hyper::body::{Body as HttpBody, Frame};
use s3s::{Body, StdError};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Longest line with a chunk's size and signature.
const LINE_BYTES_MAX: usize = 1 << 10;
/// Largest signed chunk: it cannot be split.
const SIGNED_BYTES_MAX: u64 = 8 << 20;

/// Whether the chunks of a request are signed; `None`: its body is not chunked.
pub fn signed(headers: &HeaderMap) -> Option<bool> {
    let kind = headers.get("x-amz-content-sha256")?.to_str().ok()?;
    kind.starts_with("STREAMING-").then(|| !kind.starts_with("STREAMING-UNSIGNED-"))
}

/// Why such a body is malformed.
#[derive(Debug, thiserror::Error)]
enum Malformed {
    #[error("a chunk has a malformed header line")]
    Line,
    #[error("a signed chunk has more than {SIGNED_BYTES_MAX} bytes")]
    TooLarge,
    #[error("a chunk does not end at its stated size")]
    End,
    #[error("the last chunk is missing")]
    NoLast,
}

enum State {
    /// In the line before a chunk's data.
    Line,
    /// In a chunk's data: bytes left.
    Data(u64),
    /// Before the line end that follows the data.
    End,
    /// After the last chunk: trailers, which are passed on unchanged.
    Last,
}

pub struct Chunked {
    inner: Body,
    signed: bool,
    state: State,
    /// Received but not passed on: between two frames less than a line.
    have: Bytes,
    out: VecDeque<Bytes>,
}

impl Chunked {
    pub fn new(inner: Body, signed: bool) -> Chunked {
        Chunked { inner, signed, state: State::Line, have: Bytes::new(), out: VecDeque::new() }
    }

    /// Moves everything that can be passed on to `out`.
    fn advance(&mut self) -> Result<(), Malformed> {
        loop {
            match self.state {
                State::Line => {
                    let Some(end) = self.have.windows(2).position(|pair| pair == b"\r\n") else {
                        return if self.have.len() > LINE_BYTES_MAX { Err(Malformed::Line) } else { Ok(()) };
                    };
                    let line = self.have.split_to(end + 2);
                    let digits = line[..end].split(|byte| *byte == b';').next().unwrap_or_default();
                    let text = std::str::from_utf8(digits).map_err(|_| Malformed::Line)?;
                    let size = u64::from_str_radix(text, 16).map_err(|_| Malformed::Line)?;
                    if self.signed && size > SIGNED_BYTES_MAX {
                        return Err(Malformed::TooLarge);
                    }
                    if self.signed || size == 0 {
                        self.out.push_back(line);
                    }
                    self.state = if size == 0 { State::Last } else { State::Data(size) };
                }
                State::Data(left) => {
                    debug_assert!(left > 0, "a chunk ends with its last byte");
                    let take = usize::try_from(left).unwrap_or(usize::MAX).min(self.have.len());
                    if take == 0 {
                        return Ok(());
                    }
                    let data = self.have.split_to(take);
                    if self.signed {
                        self.out.push_back(data);
                    } else {
                        self.out.extend([format!("{take:x}\r\n").into(), data, Bytes::from_static(b"\r\n")]);
                    }
                    let left = left - take as u64;
                    self.state = if left == 0 { State::End } else { State::Data(left) };
                }
                State::End => {
                    if self.have.len() < 2 {
                        return Ok(());
                    }
                    if !self.have.starts_with(b"\r\n") {
                        return Err(Malformed::End);
                    }
                    self.have.advance(2);
                    if self.signed {
                        self.out.push_back(Bytes::from_static(b"\r\n"));
                    }
                    self.state = State::Line;
                }
                State::Last => {
                    if !self.have.is_empty() {
                        self.out.push_back(std::mem::take(&mut self.have));
                    }
                    return Ok(());
                }
            }
        }
    }
}

impl HttpBody for Chunked {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Polled {
        loop {
            if let Some(bytes) = self.out.pop_front() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            match std::task::ready!(Pin::new(&mut self.inner).poll_frame(context)) {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    self.have = match self.have.is_empty() {
                        true => data,
                        false => [&self.have[..], &data].concat().into(),
                    };
                    if let Err(error) = self.advance() {
                        return Poll::Ready(Some(Err(error.into())));
                    }
                    debug_assert!(
                        self.have.len() <= LINE_BYTES_MAX,
                        "all but the rest of a line is passed on"
                    );
                    // The rest of a line must not keep the whole frame alive.
                    self.have = Bytes::copy_from_slice(&self.have);
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None if matches!(self.state, State::Last) => return Poll::Ready(None),
                None => return Poll::Ready(Some(Err(Malformed::NoLast.into()))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::StreamExt;

    /// The output for `text` received in pieces of `size`.
    async fn passed(text: &str, signed: bool, size: usize) -> Result<String, String> {
        struct Pieces(VecDeque<Bytes>);
        impl HttpBody for Pieces {
            type Data = Bytes;
            type Error = StdError;
            fn poll_frame(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
            ) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
                Poll::Ready(self.0.pop_front().map(|bytes| Ok(Frame::data(bytes))))
            }
        }
        let pieces = text.as_bytes().chunks(size).map(Bytes::copy_from_slice).collect();
        let mut body = Body::http_body_unsync(Chunked::new(Body::http_body_unsync(Pieces(pieces)), signed));
        let mut out = Vec::new();
        while let Some(data) = body.next().await {
            out.extend_from_slice(&data.map_err(|error| error.to_string())?);
        }
        Ok(String::from_utf8(out).unwrap())
    }

    #[tokio::test]
    async fn chunks_are_cut_as_they_come_unless_they_are_signed() {
        let plain = "a\r\n0123456789\r\n3\r\nabc\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n";
        assert_eq!(passed(plain, false, 1000).await.as_deref(), Ok(plain));
        let cut = passed(plain, false, 7).await.unwrap();
        assert!(cut.starts_with("4\r\n0123\r\n6\r\n456789\r\n"), "{cut}");
        assert!(cut.ends_with("0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n"), "{cut}");
        let signed = "3;chunk-signature=00\r\nabc\r\n0;chunk-signature=00\r\n\r\n";
        for size in [1, 5, 1000] {
            assert_eq!(passed(signed, true, size).await.as_deref(), Ok(signed));
        }
    }

    #[tokio::test]
    async fn malformed_chunks_and_a_missing_last_one_are_errors() {
        for (text, signed) in [
            ("3\r\nabc\r\n", false),
            ("3\r\nab", false),
            ("x\r\n", false),
            ("3\r\nabcd\r\n0\r\n\r\n", false),
            ("800001;chunk-signature=00\r\n", true),
            (&"1".repeat(2000), false),
        ] {
            assert!(passed(text, signed, 3).await.is_err(), "{text}");
        }
    }
}
