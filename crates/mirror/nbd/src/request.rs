//! What a client asks for, and the rules that it is checked against before anyone carries it out.

use crate::errno::{Errno, Refusal};
use crate::export::Export;
use crate::terms::Terms;
use crate::wire::{self, Header};
use bytes::Bytes;

/// A request that keeps the rules. Offsets and lengths are bytes: multiples of the export's smallest block, inside the
/// export, at least one block.
///
/// `fua`: the reply waits until what was written is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// `length` is at most the longest payload. `whole`: the client wants one piece; the session sees to it.
    Read { offset: u64, length: u32, whole: bool },
    /// At most as long as a read. The payload shares the memory of the input that it came in, and keeps it allocated.
    Write { offset: u64, payload: Bytes, fua: bool },
    /// Everything that was answered before becomes durable.
    Flush,
    /// The bytes are no longer needed; doing nothing is allowed.
    Trim { offset: u64, length: u32, fua: bool },
    /// `may_trim`: the range may become a hole. `fast`: if it takes as long as a write, change nothing and fail with
    /// [`Errno::NotSupported`], which no other request may.
    WriteZeroes { offset: u64, length: u32, fua: bool, may_trim: bool, fast: bool },
    /// The range will be needed soon; doing nothing is allowed.
    Cache { offset: u64, length: u32 },
    /// Which parts are holes. `one`: the client takes the first extent only.
    Status { offset: u64, length: u32, one: bool },
}

fn refuse(errno: Errno, message: impl Into<String>) -> Result<(), Refusal> {
    Err(Refusal { errno, message: message.into() })
}

/// Whether the request keeps the rules.
pub(crate) fn check(header: &Header, export: &Export, terms: &Terms) -> Result<(), Refusal> {
    let flags = match header.command {
        wire::CMD_READ if terms.structured => wire::CMD_FLAG_DF,
        wire::CMD_WRITE_ZEROES => wire::CMD_FLAG_NO_HOLE | wire::CMD_FLAG_FAST_ZERO,
        wire::CMD_BLOCK_STATUS => wire::CMD_FLAG_REQ_ONE,
        wire::CMD_READ | wire::CMD_WRITE | wire::CMD_FLUSH | wire::CMD_TRIM | wire::CMD_CACHE => 0,
        command => return refuse(Errno::Invalid, format!("command {command} is unknown")),
    };
    // Clients set FUA on commands that do not write, too.
    let unknown = header.flags & !(flags | wire::CMD_FLAG_FUA);
    if unknown != 0 {
        return refuse(Errno::Invalid, format!("the command has no flags {unknown:#x}"));
    }
    if export.read_only && writes(header.command) {
        return refuse(Errno::NotPermitted, "the export is read-only");
    }
    match header.command {
        wire::CMD_FLUSH if (header.offset, header.length) == (0, 0) => Ok(()),
        wire::CMD_FLUSH => refuse(Errno::Invalid, "a flush has no range"),
        wire::CMD_BLOCK_STATUS if !terms.status => {
            refuse(Errno::Invalid, "base:allocation was not selected for this export")
        }
        _ => check_range(header, export),
    }
}

fn writes(command: u16) -> bool {
    matches!(command, wire::CMD_WRITE | wire::CMD_TRIM | wire::CMD_WRITE_ZEROES)
}

fn check_range(header: &Header, export: &Export) -> Result<(), Refusal> {
    let Header { command, flags, offset, length, .. } = *header;
    if length == 0 {
        return refuse(Errno::Invalid, "the range is empty");
    }
    if header.end().is_none_or(|end| end > export.size) {
        let errno = match command {
            wire::CMD_WRITE | wire::CMD_WRITE_ZEROES => Errno::NoSpace,
            _ => Errno::Invalid,
        };
        return refuse(errno, format!("the range ends after the export's {} bytes", export.size));
    }
    let minimum = export.block.minimum;
    if !length.is_multiple_of(minimum) || !offset.is_multiple_of(minimum.into()) {
        return refuse(Errno::Invalid, format!("the range is not one of whole blocks of {minimum} bytes"));
    }
    if matches!(command, wire::CMD_READ | wire::CMD_WRITE) && length > export.block.maximum {
        let errno = if flags & wire::CMD_FLAG_DF != 0 { Errno::TooLarge } else { Errno::Invalid };
        return refuse(errno, format!("a payload has at most {} bytes", export.block.maximum));
    }
    Ok(())
}

/// The request of a checked header. `payload`: of a write.
pub(crate) fn request(header: &Header, payload: Bytes) -> Request {
    let Header { offset, length, .. } = *header;
    let carried = if header.command == wire::CMD_WRITE { length as usize } else { 0 };
    debug_assert_eq!(payload.len(), carried, "what follows would be taken for another request");
    let is_set = |flag| header.flags & flag != 0;
    let fua = is_set(wire::CMD_FLAG_FUA);
    match header.command {
        wire::CMD_READ => Request::Read { offset, length, whole: is_set(wire::CMD_FLAG_DF) },
        wire::CMD_WRITE => Request::Write { offset, payload, fua },
        wire::CMD_FLUSH => Request::Flush,
        wire::CMD_TRIM => Request::Trim { offset, length, fua },
        wire::CMD_WRITE_ZEROES => Request::WriteZeroes {
            offset,
            length,
            fua,
            may_trim: !is_set(wire::CMD_FLAG_NO_HOLE),
            fast: is_set(wire::CMD_FLAG_FAST_ZERO),
        },
        wire::CMD_CACHE => Request::Cache { offset, length },
        wire::CMD_BLOCK_STATUS => Request::Status { offset, length, one: is_set(wire::CMD_FLAG_REQ_ONE) },
        command => unreachable!("command {command} was checked"),
    }
}
