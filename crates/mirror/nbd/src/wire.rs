//! Numbers and layouts of the protocol. All integers are big-endian. The names are the protocol's, without `NBD_`.

use bytes::{Buf, BufMut, Bytes, BytesMut};

pub const GREETING: u64 = u64::from_be_bytes(*b"NBDMAGIC");
pub const OPTION: u64 = u64::from_be_bytes(*b"IHAVEOPT");
pub const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
pub const REQUEST: u32 = 0x2560_9513;
pub const SIMPLE_REPLY: u32 = 0x6744_6698;
pub const STRUCTURED_REPLY: u32 = 0x668e_33ef;

/// Of the server's and of the client's flags alike.
pub const FIXED_NEWSTYLE: u16 = 1 << 0;
pub const NO_ZEROES: u16 = 1 << 1;

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED_REPLY: u32 = 8;
pub const OPT_LIST_META_CONTEXT: u32 = 9;
pub const OPT_SET_META_CONTEXT: u32 = 10;

pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const REP_META_CONTEXT: u32 = 4;
pub const REP_ERR_UNSUP: u32 = 1 << 31 | 1;
pub const REP_ERR_INVALID: u32 = 1 << 31 | 3;
pub const REP_ERR_UNKNOWN: u32 = 1 << 31 | 6;

pub const INFO_EXPORT: u16 = 0;
pub const INFO_NAME: u16 = 1;
pub const INFO_DESCRIPTION: u16 = 2;
pub const INFO_BLOCK_SIZE: u16 = 3;

/// Flags of an export.
pub const HAS_FLAGS: u16 = 1 << 0;
pub const READ_ONLY: u16 = 1 << 1;
pub const SEND_FLUSH: u16 = 1 << 2;
pub const SEND_FUA: u16 = 1 << 3;
pub const ROTATIONAL: u16 = 1 << 4;
pub const SEND_TRIM: u16 = 1 << 5;
pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
pub const SEND_DF: u16 = 1 << 7;
pub const CAN_MULTI_CONN: u16 = 1 << 8;
pub const SEND_CACHE: u16 = 1 << 10;
pub const SEND_FAST_ZERO: u16 = 1 << 11;

pub const CMD_READ: u16 = 0;
pub const CMD_WRITE: u16 = 1;
pub const CMD_DISC: u16 = 2;
pub const CMD_FLUSH: u16 = 3;
pub const CMD_TRIM: u16 = 4;
pub const CMD_CACHE: u16 = 5;
pub const CMD_WRITE_ZEROES: u16 = 6;
pub const CMD_BLOCK_STATUS: u16 = 7;

pub const CMD_FLAG_FUA: u16 = 1 << 0;
pub const CMD_FLAG_NO_HOLE: u16 = 1 << 1;
pub const CMD_FLAG_DF: u16 = 1 << 2;
pub const CMD_FLAG_REQ_ONE: u16 = 1 << 3;
pub const CMD_FLAG_FAST_ZERO: u16 = 1 << 4;

pub const REPLY_FLAG_DONE: u16 = 1 << 0;
pub const REPLY_OFFSET_DATA: u16 = 1;
pub const REPLY_OFFSET_HOLE: u16 = 2;
pub const REPLY_BLOCK_STATUS: u16 = 5;
pub const REPLY_ERROR: u16 = 1 << 15 | 1;

pub const STATE_HOLE: u32 = 1 << 0;
pub const STATE_ZERO: u32 = 1 << 1;

/// The one metadata context, the query that lists its namespace, and the number that stands for it in replies.
pub const CONTEXT: &[u8] = b"base:allocation";
pub const CONTEXT_NAMESPACE: &[u8] = b"base:";
pub const CONTEXT_ID: u32 = 1;

/// Longest text, in bytes.
pub const TEXT_MAX: usize = 4096;
pub const OPTION_HEADER_BYTES: usize = 16;
pub const REQUEST_BYTES: usize = 28;

const _: () = assert!(OPTION_HEADER_BYTES == 8 + 4 + 4, "magic, option, length");
const _: () =
    assert!(REQUEST_BYTES == 4 + 2 + 2 + 8 + 8 + 4, "magic, flags, command, cookie, offset, length");

/// A request without its payload.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    pub flags: u16,
    pub command: u16,
    /// The client's name for the request; it need not be unique.
    pub cookie: u64,
    /// Bytes.
    pub offset: u64,
    pub length: u32,
}

impl Header {
    /// `None`: it is not a request.
    pub fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Header> {
        let mut bytes = &bytes[..];
        (bytes.get_u32() == REQUEST).then(|| Header {
            flags: bytes.get_u16(),
            command: bytes.get_u16(),
            cookie: bytes.get_u64(),
            offset: bytes.get_u64(),
            length: bytes.get_u32(),
        })
    }

    pub fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.length.into())
    }
}

pub fn greeting() -> Bytes {
    let mut bytes = BytesMut::with_capacity(18);
    bytes.put_u64(GREETING);
    bytes.put_u64(OPTION);
    bytes.put_u16(FIXED_NEWSTYLE | NO_ZEROES);
    bytes.freeze()
}

/// A reply of kind `REP_*` to an option.
pub fn option_reply(option: u32, kind: u32, data: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(20 + data.len());
    bytes.put_u64(OPTION_REPLY);
    bytes.put_u32(option);
    bytes.put_u32(kind);
    bytes.put_u32(u32::try_from(data.len()).expect("replies to options are short"));
    bytes.put_slice(data);
    bytes.freeze()
}

/// `error`: 0 for success.
pub fn simple_reply(cookie: u64, error: u32) -> Bytes {
    let mut bytes = BytesMut::with_capacity(16);
    bytes.put_u32(SIMPLE_REPLY);
    bytes.put_u32(error);
    bytes.put_u64(cookie);
    bytes.freeze()
}

/// The head of a chunk of `length` bytes, of which the caller appends the `follows` first ones.
pub fn chunk(kind: u16, last: bool, cookie: u64, length: u32, follows: usize) -> BytesMut {
    let mut bytes = BytesMut::with_capacity(20 + follows);
    bytes.put_u32(STRUCTURED_REPLY);
    bytes.put_u16(if last { REPLY_FLAG_DONE } else { 0 });
    bytes.put_u16(kind);
    bytes.put_u64(cookie);
    bytes.put_u32(length);
    bytes
}

/// Takes an integer off the front. `None`: there are too few bytes.
pub fn take_u16(data: &mut &[u8]) -> Option<u16> {
    let (number, rest) = data.split_first_chunk()?;
    *data = rest;
    Some(u16::from_be_bytes(*number))
}

/// As [`take_u16`].
pub fn take_u32(data: &mut &[u8]) -> Option<u32> {
    let (number, rest) = data.split_first_chunk()?;
    *data = rest;
    Some(u32::from_be_bytes(*number))
}

/// Takes a length and as many bytes off the front. `None`: there are too few bytes.
pub fn take_text<'a>(data: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = take_u32(data)?;
    let (text, rest) = data.split_at_checked(length.try_into().ok()?)?;
    *data = rest;
    Some(text)
}
