//! Frames: the layout of messages on a TCP stream. Pure encoding and decoding; `client::transport` does the I/O.
//!
//! ```text
//! 0        4    5    6        8            12           16           20                 20+body
//! | "EBB1" | v  |kind| channel| body bytes | payload b. | CRC-32C of | body (postcard)  | payload (raw) |
//! |        | u8 | u8 | u16    | u32 LE     | u32 LE     | 0..16+body | ...              | ...           |
//! ```
//! The checksum covers header and body. The payload is covered by the per-block checksums in its record, so that it is
//! not summed twice. Lengths are checked against the bounds before anything is allocated.

use crate::{BLOCK_BYTES, RECORD_BLOCKS_MAX, crc32c};
use serde::{Serialize, de::DeserializeOwned};

pub const MAGIC: [u8; 4] = *b"EBB1";
/// Version of the message enums. Peers refuse any other.
pub const WIRE_VERSION: u8 = 33;
pub const HEADER_BYTES: usize = 20;
/// Bounds on what one frame may make the receiver allocate.
pub const BODY_MAX: usize = 16 << 20;
pub const PAYLOAD_MAX: usize = RECORD_BLOCKS_MAX as usize * BLOCK_BYTES + BLOCK_BYTES;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Which message enum the body holds; the transport gives it meaning.
    pub kind: u8,
    /// Free for the transport.
    pub channel: u16,
    pub body_len: usize,
    pub payload_len: usize,
    checksum: u32,
    bytes: [u8; 16],
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("not an Ebb stream: the frame starts with {found:02x?}; check the address and port")]
    Magic { found: [u8; 4] },
    #[error(
        "the other side speaks wire version {found}, this one {WIRE_VERSION}; run the same release on both"
    )]
    WireVersion { found: u8 },
    #[error("frame of {body} + {payload} bytes is larger than allowed ({BODY_MAX} + {PAYLOAD_MAX})")]
    TooLarge { body: usize, payload: usize },
    #[error("frame checksum mismatch: the stream is damaged")]
    Checksum,
    #[error("frame body cannot be decoded: {0}")]
    Body(String),
}

/// Header and body of a frame; the payload follows it on the stream.
pub fn encode<T: Serialize>(kind: u8, channel: u16, body: &T, payload_len: usize) -> Vec<u8> {
    let mut out = Vec::new();
    encode_into(&mut out, kind, channel, body, payload_len);
    out
}

/// [`encode`], appended to `out`: many small frames share one buffer and one system call. Returns the body's length.
pub fn encode_into<T: Serialize>(
    out: &mut Vec<u8>,
    kind: u8,
    channel: u16,
    body: &T,
    payload_len: usize,
) -> usize {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    *out = postcard::to_extend(body, std::mem::take(out)).expect("messages are plain data");
    let frame = &mut out[start..];
    let body_len = frame.len() - HEADER_BYTES;
    frame[..4].copy_from_slice(&MAGIC);
    frame[4] = WIRE_VERSION;
    frame[5] = kind;
    frame[6..8].copy_from_slice(&channel.to_le_bytes());
    frame[8..12].copy_from_slice(&(body_len as u32).to_le_bytes());
    frame[12..16].copy_from_slice(&(payload_len as u32).to_le_bytes());
    let checksum = checksum(&frame[..16], &frame[HEADER_BYTES..]);
    frame[16..20].copy_from_slice(&checksum.to_le_bytes());
    body_len
}

/// Reads a header. Refuses lengths past the bounds.
pub fn decode_header(bytes: &[u8; HEADER_BYTES]) -> Result<Header, FrameError> {
    let u32_at = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let magic: [u8; 4] = bytes[..4].try_into().expect("four bytes");
    if magic != MAGIC {
        return Err(FrameError::Magic { found: magic });
    }
    if bytes[4] != WIRE_VERSION {
        return Err(FrameError::WireVersion { found: bytes[4] });
    }
    let (body_len, payload_len) = (u32_at(8) as usize, u32_at(12) as usize);
    if body_len > BODY_MAX || payload_len > PAYLOAD_MAX {
        return Err(FrameError::TooLarge { body: body_len, payload: payload_len });
    }
    Ok(Header {
        kind: bytes[5],
        channel: u16::from_le_bytes([bytes[6], bytes[7]]),
        body_len,
        payload_len,
        checksum: u32_at(16),
        bytes: bytes[..16].try_into().expect("sixteen bytes"),
    })
}

/// Checks and decodes a body that belongs to `header`.
pub fn decode_body<T: DeserializeOwned>(header: &Header, body: &[u8]) -> Result<T, FrameError> {
    if body.len() != header.body_len || checksum(&header.bytes, body) != header.checksum {
        return Err(FrameError::Checksum);
    }
    postcard::from_bytes(body).map_err(|e| FrameError::Body(e.to_string()))
}

fn checksum(header: &[u8], body: &[u8]) -> u32 {
    crc32c(header) ^ crc32c(body).rotate_left(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Epoch, GroupId, PeerMessage, Version};

    fn split(frame: &[u8]) -> (Header, &[u8]) {
        let header = decode_header(frame[..HEADER_BYTES].try_into().unwrap()).unwrap();
        (header, &frame[HEADER_BYTES..])
    }

    #[test]
    fn a_frame_comes_back_as_it_was() {
        let message = PeerMessage::Committed { group: GroupId(7), epoch: Epoch(9), committed: Version::ZERO };
        let frame = encode(3, 42, &message, 4096);
        let (header, body) = split(&frame);
        assert_eq!((header.kind, header.channel, header.payload_len), (3, 42, 4096));
        assert_eq!(decode_body::<PeerMessage>(&header, body).unwrap(), message);
    }

    #[test]
    fn every_flipped_bit_of_header_or_body_is_noticed() {
        let frame = encode(
            1,
            0,
            &PeerMessage::Committed { group: GroupId(7), epoch: Epoch(9), committed: Version::ZERO },
            0,
        );
        for bit in 0..frame.len() * 8 {
            let mut bad = frame.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            let seen = decode_header(bad[..HEADER_BYTES].try_into().unwrap())
                .and_then(|h| decode_body::<PeerMessage>(&h, &bad[HEADER_BYTES..]));
            assert!(seen.is_err(), "bit {bit}");
        }
    }

    /// Decoded as messages of every kind: a frame with a valid checksum may still come from another release or a broken
    /// peer.
    #[test]
    fn made_up_frames_and_bodies_are_refused_or_decoded() {
        use crate::{
            AdminRequest, ClientReply, ClientRequest, InspectRequest, MetaPush, MetaReply, MetaRequest,
            ServerMessage,
        };
        let committed =
            PeerMessage::Committed { group: GroupId(7), epoch: Epoch(9), committed: Version::ZERO };
        let frame = encode(3, 42, &committed, 4096);
        let watch = postcard::to_stdvec(&MetaRequest::Watch { map_version: 7 }).unwrap();
        let status = postcard::to_stdvec(&MetaRequest::Admin(AdminRequest::MarkLost {
            server: crate::ServerId(3),
            accept_loss: false,
        }))
        .unwrap();
        ebb_testing::fuzz(&[&frame, &frame[HEADER_BYTES..], &watch, &status], |bytes| {
            if let Some((header, body)) = bytes.split_first_chunk::<HEADER_BYTES>()
                && let Ok(header) = decode_header(header)
            {
                let _ = decode_body::<PeerMessage>(&header, body);
            }
            let _ = postcard::from_bytes::<PeerMessage>(bytes);
            let _ = postcard::from_bytes::<ClientRequest>(bytes);
            let _ = postcard::from_bytes::<ClientReply>(bytes);
            let _ = postcard::from_bytes::<ServerMessage>(bytes);
            let _ = postcard::from_bytes::<MetaPush>(bytes);
            let _ = postcard::from_bytes::<MetaRequest>(bytes);
            let _ = postcard::from_bytes::<MetaReply>(bytes);
            let _ = postcard::from_bytes::<InspectRequest>(bytes);
        });
    }

    #[test]
    fn oversized_lengths_are_refused_before_anything_is_allocated() {
        let mut frame = encode(1, 0, &0u8, 0);
        frame[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let refused = decode_header(frame[..HEADER_BYTES].try_into().unwrap());
        assert!(matches!(refused, Err(FrameError::TooLarge { .. })));
    }
}
