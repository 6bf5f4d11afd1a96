//! An NBD connection: any bytes, in parts of any length, and the replies to what was accepted, in any order. A request
//! that comes out keeps the rules of its export, and whatever else is said ends the connection or is refused.
#![no_main]

use bytes::{Bytes, BytesMut};
use ebb_nbd::{BlockSizes, Errno, Export, Extent, Output, Piece, Reply, Request, Session};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

const LONGEST: u32 = 64 << 10;

fn export(name: &str, size: u64, read_only: bool) -> Export {
    Export {
        name: name.to_owned(),
        description: String::new(),
        size,
        block: BlockSizes { minimum: 512, preferred: 4096, maximum: LONGEST },
        read_only,
        rotational: true,
        multi_conn: !read_only,
    }
}

static EXPORTS: LazyLock<Arc<[Export]>> =
    LazyLock::new(|| [export("disk", 1 << 20, false), export("old", 64 << 10, true), export("huge", 1 << 40, false)].into());

/// Two opened connections, with simple and with structured replies, so that few inputs are spent on negotiating.
const SIMPLE: &[u8] = b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x04disk";
const STRUCTURED: &[u8] = b"\0\0\0\x03IHAVEOPT\0\0\0\x08\0\0\0\0IHAVEOPT\0\0\0\x0a\0\0\0\x1f\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation\
    IHAVEOPT\0\0\0\x07\0\0\0\x0a\0\0\0\x04disk\0\0";

fn check(request: &Request, export: &Export) {
    let (offset, length, payload, writes) = match *request {
        Request::Read { offset, length, .. } => (offset, length, true, false),
        Request::Write { offset, ref payload, .. } => (offset, payload.len() as u32, true, true),
        Request::Trim { offset, length, .. } => (offset, length, false, true),
        Request::WriteZeroes { offset, length, .. } => (offset, length, false, true),
        Request::Cache { offset, length } => (offset, length, false, false),
        Request::Status { offset, length, .. } => (offset, length, false, false),
        Request::Flush => return,
    };
    assert!(length > 0 && offset.checked_add(length.into()).is_some_and(|end| end <= export.size));
    assert!(offset.is_multiple_of(512) && length.is_multiple_of(512));
    assert!(!payload || length <= LONGEST);
    assert!(!writes || !export.read_only);
}

fn reply(request: &Request, fails: bool) -> Reply {
    match *request {
        _ if fails => Reply::Failed(Errno::Io),
        Request::Read { length: 512, .. } => Reply::Data(vec![Piece::Hole(512)]),
        Request::Read { length, .. } => {
            Reply::Data(vec![Piece::Hole(512), Piece::Data(Bytes::from(vec![1; length as usize - 512]))])
        }
        Request::Status { length, .. } => Reply::Extents(vec![
            Extent { length: 512, hole: false, zero: false },
            Extent { length: u64::from(length), hole: true, zero: true },
        ]),
        _ => Reply::Done,
    }
}

fuzz_target!(|data: &[u8]| {
    let Some(([which, cut], rest)) = data.split_first_chunk::<2>() else { return };
    let opening = [&b""[..], SIMPLE, STRUCTURED][usize::from(which % 3)];
    let bytes = [opening, rest].concat();
    let (mut session, _) = Session::new(EXPORTS.clone());
    let (mut input, mut waiting, mut opened, mut closed) = (BytesMut::new(), Vec::new(), None, false);
    for part in bytes.chunks(1 + usize::from(*cut)) {
        let mut out = Vec::new();
        input.extend_from_slice(part);
        session.on_bytes(&mut input, &mut out);
        if waiting.len() > usize::from(which / 3 % 4) {
            let (id, request) = waiting.swap_remove(usize::from(*cut) % waiting.len());
            session.reply(id, reply(&request, which / 12 % 4 == 1), &mut out);
        }
        for output in out {
            assert!(!closed, "nothing follows a close");
            match output {
                Output::Send(_) => {}
                Output::Opened { export } => assert_eq!(opened.replace(export), None),
                Output::Request { id, request } => {
                    check(&request, &EXPORTS[opened.expect("an export is open")]);
                    waiting.push((id, request));
                }
                Output::Close(_) => closed = true,
            }
        }
        assert!(closed || session.in_flight().requests == waiting.len());
        assert!(session.wants(input.len()) <= (28 + LONGEST as usize).max(16 + (64 << 10)));
    }
    for (id, request) in waiting {
        session.reply(id, reply(&request, false), &mut Vec::new());
    }
});
