//! How a request ended, as its driver says it and as the client reads it.

use crate::errno::{Errno, Refusal};
use crate::wire::{self, Header};
use bytes::{BufMut, Bytes};

/// What the zeroes of holes are sent from, where the client understands no holes.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Anything but a read or a status succeeded.
    Done,
    /// What a read found: together exactly the bytes asked for, in order; no piece is empty.
    Data(Vec<Piece>),
    /// What a status found, from the offset asked for: at least one extent, and none is empty. They may end before the
    /// range does; what lies beyond it is cut off, and neighbours that are alike are joined.
    Extents(Vec<Extent>),
    Failed(Errno),
}

/// A part of what was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    Data(Bytes),
    /// This many bytes read as zeroes.
    Hole(u32),
}

/// A part of an export whose state is the same throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes: a multiple of the smallest block.
    pub length: u64,
    /// Takes no space: a write may find none.
    pub hole: bool,
    /// Reads as zeroes.
    pub zero: bool,
}

impl Piece {
    fn len(&self) -> u64 {
        match self {
            Piece::Data(bytes) => bytes.len() as u64,
            Piece::Hole(len) => (*len).into(),
        }
    }
}

/// Encodes the reply to a request that came with `header`. `block`: the smallest one, in bytes.
pub(crate) fn encode(
    header: &Header,
    reply: Reply,
    structured: bool,
    block: u32,
    send: &mut impl FnMut(Bytes),
) {
    match (header.command, reply) {
        (_, Reply::Failed(errno)) => {
            let refusal = Refusal { errno, message: errno.to_string() };
            encode_refusal(header.cookie, &refusal, structured, send);
        }
        (wire::CMD_READ, Reply::Data(pieces)) => encode_data(header, pieces, structured, send),
        (wire::CMD_BLOCK_STATUS, Reply::Extents(extents)) => encode_extents(header, &extents, block, send),
        (wire::CMD_READ | wire::CMD_BLOCK_STATUS, reply)
        | (_, reply @ (Reply::Data(_) | Reply::Extents(_))) => {
            panic!("{reply:?} does not answer command {}", header.command)
        }
        (_, Reply::Done) => send(wire::simple_reply(header.cookie, 0)),
    }
}

pub(crate) fn encode_refusal(cookie: u64, refusal: &Refusal, structured: bool, send: &mut impl FnMut(Bytes)) {
    let (errno, text) = (refusal.errno as u32, refusal.message.as_bytes());
    if !structured {
        return send(wire::simple_reply(cookie, errno));
    }
    let len = u16::try_from(text.len()).expect("messages are short");
    let mut chunk = wire::chunk(wire::REPLY_ERROR, true, cookie, 6 + u32::from(len), 6 + text.len());
    chunk.put_u32(errno);
    chunk.put_u16(len);
    chunk.put_slice(text);
    send(chunk.freeze());
}

fn encode_data(header: &Header, pieces: Vec<Piece>, structured: bool, send: &mut impl FnMut(Bytes)) {
    let covered: u64 = pieces.iter().map(Piece::len).sum();
    assert!(covered == header.length.into(), "{covered} bytes answer a read of {}", header.length);
    assert!(pieces.iter().all(|piece| piece.len() > 0), "a piece is empty");
    if !structured {
        send(wire::simple_reply(header.cookie, 0));
        return pieces.into_iter().for_each(|piece| send_plain(piece, send));
    }
    if header.flags & wire::CMD_FLAG_DF != 0 && pieces.len() > 1 {
        send(data_chunk(header.cookie, true, header.offset, header.length));
        return pieces.into_iter().for_each(|piece| send_plain(piece, send));
    }
    let (mut offset, end) = (header.offset, header.offset + covered);
    for piece in pieces {
        let (at, len) = (offset, piece.len() as u32);
        offset += u64::from(len);
        let last = offset == end;
        match piece {
            Piece::Data(bytes) => {
                send(data_chunk(header.cookie, last, at, len));
                send(bytes);
            }
            Piece::Hole(_) => {
                let mut chunk = wire::chunk(wire::REPLY_OFFSET_HOLE, last, header.cookie, 12, 12);
                chunk.put_u64(at);
                chunk.put_u32(len);
                send(chunk.freeze());
            }
        }
    }
}

/// The head of a chunk of `len` bytes of data at `offset`.
fn data_chunk(cookie: u64, last: bool, offset: u64, len: u32) -> Bytes {
    let mut chunk = wire::chunk(wire::REPLY_OFFSET_DATA, last, cookie, 8 + len, 8);
    chunk.put_u64(offset);
    chunk.freeze()
}

/// Sends a piece as bytes, whatever it is.
fn send_plain(piece: Piece, send: &mut impl FnMut(Bytes)) {
    match piece {
        Piece::Data(bytes) => send(bytes),
        Piece::Hole(len) => {
            let mut left = len as usize;
            while left > 0 {
                let part = left.min(ZEROES.len());
                send(Bytes::from_static(&ZEROES[..part]));
                left -= part;
            }
        }
    }
}

fn encode_extents(header: &Header, extents: &[Extent], block: u32, send: &mut impl FnMut(Bytes)) {
    let is_whole = |extent: &Extent| extent.length > 0 && extent.length.is_multiple_of(block.into());
    assert!(!extents.is_empty() && extents.iter().all(is_whole), "{extents:?} are not extents of blocks");
    // Length and flags, as they are sent.
    let mut joined: Vec<(u32, u32)> = Vec::new();
    let mut left = header.length;
    for extent in extents {
        let length = u32::try_from(extent.length).map_or(left, |length| length.min(left));
        let hole = if extent.hole { wire::STATE_HOLE } else { 0 };
        let flags = hole | if extent.zero { wire::STATE_ZERO } else { 0 };
        match joined.last_mut() {
            _ if length == 0 => break,
            Some(last) if last.1 == flags => last.0 += length,
            Some(_) if header.flags & wire::CMD_FLAG_REQ_ONE != 0 => break,
            _ => joined.push((length, flags)),
        }
        left -= length;
    }
    debug_assert!(!joined.is_empty(), "a client takes a reply without extents for an error");
    let len = 4 + 8 * joined.len();
    let claimed = u32::try_from(len).expect("an extent per block of at most 4 GiB");
    let mut chunk = wire::chunk(wire::REPLY_BLOCK_STATUS, true, header.cookie, claimed, len);
    chunk.put_u32(wire::CONTEXT_ID);
    for (length, flags) in joined {
        chunk.put_u32(length);
        chunk.put_u32(flags);
    }
    send(chunk.freeze());
}
