//! Each rule that a request must keep, each way to end a connection, and what is in flight.

use super::client::*;
use super::*;
use ebb_nbd::{Errno, Extent, InFlight, Piece};

const MIB: u64 = 1 << 20;

/// The errno of the only answer, or `None`: the request went to the driver. The connection must survive.
fn errno(peer: &mut Peer, say: Say) -> Option<u32> {
    let before = peer.requests.len();
    peer.says(&say);
    let accepted = peer.requests.len() > before;
    let errno = match &peer.heard(|_| 0)[..] {
        [] => None,
        [FromServer::Simple { error, .. }] => Some(*error),
        [FromServer::Chunk { last: true, kind: 0x8001, payload, .. }] => {
            Some(u32::from_be_bytes(payload[..4].try_into().unwrap()))
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(accepted, errno.is_none());
    peer.says(&request(FLUSH, 0, 0, 0, 0));
    assert_eq!(peer.requests.pop().map(|(_, request)| request), Some(Request::Flush), "it survives");
    errno
}

#[test]
fn each_refusal_has_the_errno_that_the_protocol_prescribes() {
    let (eperm, einval, enospc, eoverflow) = (Some(1), Some(22), Some(28), Some(75));
    let cases = [
        ("disk", READ, 0, 0, 512, None),
        ("disk", READ, FUA, MIB - 512, 512, None),
        ("disk", READ, 0, MIB - 512, 1024, einval),
        ("disk", READ, 0, u64::MAX - 511, 512, einval),
        ("disk", READ, 0, 256, 512, einval),
        ("disk", READ, 0, 512, 256, einval),
        ("disk", READ, 0, 0, 0, einval),
        ("disk", READ, 0, 0, LONGEST, None),
        ("disk", READ, 0, 0, LONGEST + 512, einval),
        ("disk", READ, NO_HOLE, 0, 512, einval),
        ("disk", READ, 1 << 15, 0, 512, einval),
        ("disk", WRITE, FUA, MIB - 512, 512, None),
        ("disk", WRITE, 0, MIB - 512, 1024, enospc),
        ("disk", WRITE, 0, u64::MAX - 511, 512, enospc),
        ("disk", WRITE, 0, 1, 512, einval),
        ("disk", WRITE, 0, 0, 0, einval),
        ("disk", WRITE, 0, 0, LONGEST, None),
        ("disk", WRITE, 0, 0, LONGEST + 512, einval),
        ("disk", WRITE, DF, 0, 512, einval),
        ("disk", FLUSH, FUA, 0, 0, None),
        ("disk", FLUSH, 0, 512, 0, einval),
        ("disk", FLUSH, 0, 0, 512, einval),
        ("disk", TRIM, FUA, 0, MIB as u32, None),
        ("disk", TRIM, 0, 512, MIB as u32, einval),
        ("disk", TRIM, 0, 1, 512, einval),
        ("disk", TRIM, FAST_ZERO, 0, 512, einval),
        ("disk", CACHE, 0, 0, MIB as u32, None),
        ("disk", CACHE, 0, 512, MIB as u32, einval),
        ("disk", CACHE, REQ_ONE, 0, 512, einval),
        ("disk", WRITE_ZEROES, FUA | NO_HOLE | FAST_ZERO, 0, MIB as u32, None),
        ("disk", WRITE_ZEROES, 0, 512, MIB as u32, enospc),
        ("disk", WRITE_ZEROES, 0, 0, 1, einval),
        ("disk", WRITE_ZEROES, DF, 0, 512, einval),
        ("disk", 8, 0, 0, 0, einval),
        ("disk", u16::MAX, 0, 0, 0, einval),
        ("huge", TRIM, 0, 1 << 30, u32::MAX - 511, None),
        ("huge", WRITE_ZEROES, 0, 1 << 30, u32::MAX - 511, None),
        ("huge", CACHE, 0, 1 << 30, u32::MAX - 511, None),
        ("huge", READ, 0, 0, u32::MAX - 511, einval),
        ("old", READ, 0, 0, 512, None),
        ("old", FLUSH, 0, 0, 0, None),
        ("old", CACHE, 0, 0, 512, None),
        ("old", WRITE, 0, 0, 512, eperm),
        ("old", WRITE, 0, 1 << 40, 512, eperm),
        ("old", TRIM, 0, 0, 512, eperm),
        ("old", WRITE_ZEROES, 0, 0, 512, eperm),
    ];
    for structured in [false, true] {
        for (name, command, flags, offset, length, expected) in cases {
            let mut peer = Peer::open(name, structured);
            let found = errno(&mut peer, request(command, flags, 7, offset, length));
            assert_eq!(found, expected, "{name}: {}", request(command, flags, 7, offset, length));
        }
        let expected = |without, with| if structured { with } else { without };
        for (command, flags, length, expected) in [
            (READ, DF, 512, expected(einval, None)),
            (READ, DF, LONGEST, expected(einval, None)),
            (READ, DF, LONGEST + 512, expected(einval, eoverflow)),
            (BLOCK_STATUS, 0, MIB as u32, expected(einval, None)),
            (BLOCK_STATUS, REQ_ONE, 512, expected(einval, None)),
            (BLOCK_STATUS, DF, 512, einval),
            (BLOCK_STATUS, 0, 2 * MIB as u32, einval),
            (BLOCK_STATUS, 0, 0, einval),
        ] {
            let mut peer = Peer::open("disk", structured);
            assert_eq!(
                errno(&mut peer, request(command, flags, 7, 0, length)),
                expected,
                "{command} {length}"
            );
        }
    }
}

#[test]
fn the_payload_of_a_refused_write_is_skipped_without_being_kept_up_to_a_bound() {
    let mut peer = Peer::open("disk", true);
    let header =
        Say::Request { command: WRITE, flags: 0, cookie: 9, offset: 0, length: 32 << 20, payload: vec![] };
    peer.says(&header);
    for _ in 0..32 << 20 >> 16 {
        assert!(peer.sent.is_empty(), "the answer follows the payload");
        assert_eq!(peer.session.wants(peer.input.len()), 1);
        peer.receives(&[1; 1 << 16]);
        assert!(peer.input.is_empty());
    }
    assert!(matches!(&peer.heard(|_| 0)[..], [FromServer::Chunk { cookie: 9, kind: 0x8001, .. }]));
    assert_eq!(peer.session.in_flight(), InFlight::default());

    let length = (32 << 20) + 512;
    peer.says(&Say::Request { command: WRITE, flags: 0, cookie: 9, offset: 0, length, payload: vec![] });
    assert_eq!(peer.closed, Some(CloseReason::PayloadTooLong { length }));
}

/// How a connection ends that opens with these messages.
fn end(says: &[Say]) -> Option<CloseReason> {
    let mut peer = Peer::new(exports());
    says.iter().for_each(|say| peer.says(say));
    let left = peer.input.len();
    if peer.closed.is_some() {
        peer.receives(b"more");
        assert_eq!(
            (peer.input.len(), peer.session.wants(0)),
            (left + 4, 0),
            "after a close nothing is taken"
        );
    }
    peer.closed
}

#[test]
fn each_way_to_end_a_connection_has_its_reason() {
    let flags = || Say::Flags(3);
    assert_eq!(end(&[Say::Flags(4)]), Some(CloseReason::ClientFlags(4)));
    assert_eq!(end(&[Say::Flags(1 << 31)]), Some(CloseReason::ClientFlags(1 << 31)));
    assert_eq!(end(&[flags(), request(READ, 0, 0, 0, 0)]), Some(CloseReason::NotAnOption));
    assert_eq!(end(&[flags(), Say::Option(2, b"ignored")]), Some(CloseReason::Aborted));
    assert_eq!(end(&[flags(), Say::Option(1, b"no")]), Some(CloseReason::NoSuchExport("\"no\"".to_owned())));
    let longest = vec![0; 64 << 10];
    assert_eq!(end(&[flags(), Say::Option(99, &longest)]), None);
    let longer = vec![0; (64 << 10) + 1];
    let too_long = CloseReason::OptionTooLong { option: 99, length: (64 << 10) + 1 };
    assert_eq!(end(&[flags(), Say::Option(99, &longer)]), Some(too_long));
    assert_eq!(
        end(&[flags(), Say::Option(1, b""), Say::Option(3, b"123456789012")]),
        Some(CloseReason::NotARequest)
    );
    let goodbye = [flags(), Say::Option(1, b"disk"), request(DISC, 0, 0, 0, 0)];
    assert_eq!(end(&goodbye), Some(CloseReason::Disconnected));

    let mut many = vec![flags()];
    many.extend((0..1000).map(|_| Say::Option(99, b"")));
    assert_eq!(end(&many), None);
    many.push(Say::Option(99, b""));
    assert_eq!(end(&many), Some(CloseReason::TooManyOptions));
}

/// The last reply to an option, after structured replies were negotiated: its kind and text.
fn option(say: Say) -> (u32, String) {
    let mut peer = Peer::new(exports());
    peer.says(&Say::Flags(1));
    peer.says(&Say::Option(8, b""));
    peer.says(&say);
    let Some(FromServer::Option { kind, data, .. }) = peer.heard(|_| 0).pop() else { panic!("no reply") };
    (kind & !(1 << 31), String::from_utf8(data).unwrap())
}

#[test]
fn a_wrong_option_is_refused_and_the_negotiation_goes_on() {
    const UNSUP: u32 = 1;
    const INVALID: u32 = 3;
    for (number, data, expected) in [
        (0, &b""[..], UNSUP),
        (5, b"", UNSUP),
        (11, b"", UNSUP),
        (u32::MAX, b"x", UNSUP),
        (3, b"x", INVALID),
        (8, b"x", INVALID),
        (7, b"", INVALID),
        (7, b"\0\0\0\x04disk", INVALID),
        (7, b"\0\0\0\x05disk\0\0", INVALID),
        (7, b"\xff\xff\xff\xffdisk\0\0", INVALID),
        (7, b"\0\0\0\x04disk\0\x02\0\0", INVALID),
        (7, b"\0\0\0\x04disk\0\x00\0\0", INVALID),
        (9, b"\0\0\0\x04disk", INVALID),
        (9, b"\0\0\0\x04disk\0\0\0\x01", INVALID),
        (10, b"\0\0\0\x04disk\xff\xff\xff\xff\0\0\0\0", INVALID),
        (10, b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocatio", INVALID),
        (10, b"\0\0\0\x04disk\0\0\0\0x", INVALID),
    ] {
        assert_eq!(option(Say::Option(number, data)).0, expected, "{number} {}", data.escape_ascii());
    }
    let long = "\u{1}".repeat(5000);
    for name in ["none", "Disk", "disk ", "no\0ne", &long] {
        for say in [Say::Info { go: true, name, kinds: &[] }, Say::Contexts { set: true, name, queries: &[] }]
        {
            let (kind, text) = option(say);
            assert_eq!(kind, 6);
            let shown: String = name.chars().take(256).collect();
            assert!(
                text.contains(&format!("{shown:?}")) && text.len() <= 4096 && !text.contains('\0'),
                "{text}"
            );
        }
    }
}

/// The reply to the old way of opening ends with zeroes, unless the client has declined them.
#[test]
fn zeroes_are_sent_unless_they_are_declined() {
    for (flags, zeroes) in [(0, 124), (1, 124), (2, 0), (3, 0)] {
        let mut peer = Peer::new(exports());
        peer.says(&Say::Flags(flags));
        peer.says(&Say::Option(1, b"disk"));
        assert_eq!(peer.sent.len(), 8 + 2 + zeroes);
        assert_eq!((peer.opened, peer.sent[..8] == (1u64 << 20).to_be_bytes()), (Some(0), true));
    }
}

#[test]
fn the_last_selection_of_contexts_counts_and_only_for_its_export() {
    let select = |queries| Say::Contexts { set: true, name: "disk", queries };
    let all: &[&str] = &["base:allocation"];
    let unknown = || Say::Contexts { set: true, name: "none", queries: &["base:allocation"] };
    for (says, open, works) in [
        (vec![select(all)], "disk", true),
        (vec![select(all)], "", true),
        (vec![select(all)], "huge", false),
        (vec![select(&[])], "disk", false),
        (vec![select(&["base:", "base:allocations", "qemu:allocation"])], "disk", false),
        (vec![select(all), select(&[])], "disk", false),
        (vec![select(all), unknown()], "disk", false),
        (vec![select(&[]), select(&["x:y", "base:allocation"])], "disk", true),
    ] {
        let mut peer = Peer::new(exports());
        peer.says(&Say::Flags(3));
        peer.says(&Say::Option(8, b""));
        says.iter().for_each(|say| peer.says(say));
        peer.says(&Say::Info { go: true, name: open, kinds: &[] });
        peer.says(&request(BLOCK_STATUS, 0, 1, 0, 512));
        assert_eq!(peer.requests.len(), usize::from(works), "{open}: {}", says.last().unwrap());
    }
}

#[test]
fn what_is_in_flight_is_counted_until_it_is_answered() {
    let mut peer = Peer::open("disk", false);
    let count = |peer: &Peer| peer.session.in_flight();
    peer.says(&request(READ, 0, 1, 0, 1024));
    peer.says(&request(WRITE, 0, 1, 0, 512));
    peer.says(&request(TRIM, 0, 1, 0, 4096));
    assert_eq!(count(&peer), InFlight { requests: 3, bytes: 1536 });
    peer.answers(1, Reply::Failed(Errno::Io));
    assert_eq!(count(&peer), InFlight { requests: 2, bytes: 1024 });
    peer.says(&request(DISC, 0, 0, 0, 0));
    peer.says(&request(FLUSH, 0, 1, 0, 0));
    assert_eq!((count(&peer).requests, peer.input.len(), peer.session.wants(0)), (2, 28, 0));
    peer.answers(2, Reply::Done);
    assert_eq!(peer.closed, None);
    peer.answers(0, Reply::Data(vec![Piece::Hole(1024)]));
    assert_eq!((count(&peer), peer.closed), (InFlight::default(), Some(CloseReason::Disconnected)));
}

#[test]
fn replies_after_a_close_are_dropped() {
    let mut peer = Peer::open("disk", true);
    peer.says(&request(READ, 0, 1, 0, 512));
    peer.receives(&[0; 28]);
    assert_eq!(peer.closed, Some(CloseReason::NotARequest));
    peer.answers(0, Reply::Data(vec![Piece::Hole(512)]));
    assert_eq!((peer.session.in_flight(), peer.sent.len()), (InFlight::default(), 0));
}

/// A driver's bugs: each of these replies to request 0 is noticed.
#[test]
fn a_reply_that_does_not_fit_is_our_bug() {
    let hole = |length| Extent { length, hole: true, zero: true };
    let data = |len| Piece::Data(Bytes::from(vec![0; len]));
    let read = || request(READ, 0, 1, 0, 1024);
    let status = || request(BLOCK_STATUS, 0, 1, 0, 1024);
    for (say, id, reply) in [
        (read(), 1, Reply::Failed(Errno::Io)),
        (read(), 0, Reply::Done),
        (read(), 0, Reply::Extents(vec![hole(1024)])),
        (read(), 0, Reply::Data(vec![])),
        (read(), 0, Reply::Data(vec![data(512)])),
        (read(), 0, Reply::Data(vec![data(1024), data(512)])),
        (read(), 0, Reply::Data(vec![data(1024), data(0)])),
        (status(), 0, Reply::Done),
        (status(), 0, Reply::Extents(vec![])),
        (status(), 0, Reply::Extents(vec![hole(512), hole(0)])),
        (status(), 0, Reply::Extents(vec![hole(100)])),
        (request(TRIM, 0, 1, 0, 1024), 0, Reply::Data(vec![Piece::Hole(1024)])),
        (request(FLUSH, 0, 1, 0, 0), 0, Reply::Extents(vec![hole(1024)])),
    ] {
        let mut peer = Peer::open("disk", true);
        peer.says(&say);
        let shown = format!("{say}: {reply:?}");
        let noticed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| peer.answers(id, reply)));
        assert!(noticed.is_err(), "{shown}");
    }
}
