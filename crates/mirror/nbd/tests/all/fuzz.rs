//! Clients that send anything: nothing panics, and nothing is believed.

use super::client::*;
use super::*;
use ebb_nbd::{Errno, Extent, Piece};
use ebb_types::Random;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// The largest allocation of this thread since it was last set to 0.
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

struct Watching;

// SAFETY: it hands everything on to the system's allocator.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static WATCHING: Watching = Watching;

/// A reply that fits, of random shape.
fn reply(request: &Request, random: &mut Random) -> Reply {
    if random.chance(200) {
        return Reply::Failed(Errno::Io);
    }
    match *request {
        Request::Read { length, .. } if random.chance(500) => Reply::Data(
            vec![Piece::Hole(512), Piece::Hole(length - 512)].into_iter().filter(not_empty).collect(),
        ),
        Request::Status { length, .. } => Reply::Extents(vec![
            Extent {
                length: 512 * (1 + random.below(9)),
                hole: random.chance(500),
                zero: random.chance(500),
            },
            Extent { length: u64::from(length) << random.below(9), hole: true, zero: false },
        ]),
        ref request => plain_reply(request),
    }
}

fn not_empty(piece: &Piece) -> bool {
    *piece != Piece::Hole(0)
}

/// An accepted request keeps the rules of its export.
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
    assert!(!payload || length <= export.block.maximum);
    assert!(!writes || !export.read_only);
}

/// Has a session hear `bytes` in random parts, answers what it accepts, and checks all that comes out.
fn converse(bytes: &[u8], random: &mut Random) -> (usize, bool) {
    let exports = exports();
    let (mut session, _) = Session::new(exports.clone());
    let (mut input, mut waiting) = (BytesMut::with_capacity(bytes.len()), Vec::new());
    let (mut opened, mut closed, mut accepted, mut sent, mut due) = (None, false, 0, 0, 0u64);
    let mut rest = bytes;
    loop {
        let longest = 1 + random.index(rest.len() + 1);
        let part = rest.len().min(1 + random.index(longest));
        input.extend_from_slice(&rest[..part]);
        rest = &rest[part..];
        let mut out = Vec::new();
        LARGEST.set(0);
        session.on_bytes(&mut input, &mut out);
        let largest = LARGEST.get();
        assert!(largest <= 4096 + 16 * bytes.len(), "{largest} bytes for an input of {}", bytes.len());
        while !waiting.is_empty() && random.chance(600) {
            let (id, request) = waiting.swap_remove(random.index(waiting.len()));
            session.reply(id, reply(&request, random), &mut out);
            if let Request::Read { length, .. } = request {
                due += u64::from(length) + 200;
            }
        }
        for output in out {
            assert!(!closed, "nothing follows a close");
            match output {
                Output::Send(bytes) => sent += bytes.len() as u64,
                Output::Opened { export } => assert_eq!(opened.replace(export), None),
                Output::Request { id, request } => {
                    check(&request, &exports[opened.expect("an export is open")]);
                    assert_eq!(id, accepted as u64);
                    accepted += 1;
                    waiting.push((id, request));
                }
                Output::Close(_) => closed = true,
            }
        }
        assert!(sent <= due + 400 + 40 * bytes.len() as u64, "{sent} bytes for an input of {}", bytes.len());
        assert!(closed || session.in_flight().requests == waiting.len());
        assert!(session.wants(input.len()) <= (28 + LONGEST as usize).max(16 + (64 << 10)));
        assert!(!closed || session.wants(input.len()) == 0);
        if rest.is_empty() {
            assert!(closed || session.wants(input.len()) > 0 || session.in_flight().requests > 0);
            return (accepted, closed);
        }
    }
}

#[test]
fn made_up_bytes_are_refused_or_served() {
    let (simple, structured) = (cuts::conversation(false), cuts::conversation(true));
    // The second half only, behind a plain opening, so that changes hit requests.
    let opening = [Say::Flags(3), Say::Option(8, b""), Say::Option(1, b"disk")];
    let mut open: Vec<u8> = opening.iter().flat_map(Say::bytes).collect();
    open.extend(request(READ, 0, 1, 0, 512).bytes());
    open.extend(request(TRIM, 0, 1, 0, 512).bytes());
    ebb_testing::fuzz(&[&simple, &structured, &open], |bytes| {
        converse(bytes, &mut Random::new(bytes.len() as u64));
    });
}

/// A message that is mostly well formed, with numbers that are mostly near a limit.
fn message(random: &mut Random, open: &mut bool) -> Vec<u8> {
    let names = ["disk", "old", "huge", "", "none", "d\u{1F4BE}k"];
    let known = if random.chance(900) { 4 } else { 6 };
    let name = names[random.index(known)];
    if !*open {
        let queries = ["base:allocation", "base:", "x-y:z", ""];
        let queries: Vec<&str> = (0..random.index(4)).map(|_| queries[random.index(4)]).collect();
        let kinds: Vec<u16> = (0..random.index(6)).map(|_| random.below(6) as u16).collect();
        let say = match random.index(8) {
            0 => Say::Contexts { set: false, name, queries: &queries },
            1 | 2 => Say::Contexts { set: true, name, queries: &queries },
            3 => Say::Info { go: false, name, kinds: &kinds },
            4 => Say::Option(8, b""),
            5 => Say::Option(random.below(14) as u32, name.as_bytes()),
            6 => Say::Option(1, name.as_bytes()),
            _ => Say::Info { go: true, name, kinds: &kinds },
        };
        *open |= matches!(say, Say::Info { go: true, .. } | Say::Option(1, _));
        return say.bytes();
    }
    let command = if random.chance(980) { random.below(8) as u16 } else { random.next() as u16 };
    // A goodbye ends it: rarely.
    let command = if command == DISC && random.chance(900) { FLUSH } else { command };
    let flags = if random.chance(700) { 0 } else { 1 << random.index(6) };
    let near = |random: &mut Random, of: u64| match random.index(16) {
        0 => of,
        1 => of.wrapping_sub(512),
        2 => of.wrapping_add(512),
        3 => of.wrapping_sub(1),
        4 => random.next(),
        _ => random.below(of / 512 + 1) * 512,
    };
    let size = [64 << 10, 64 << 10, 1 << 20, 1 << 40][random.index(4)];
    let limit = [1 << 10, 4 << 10, 64 << 10, 1 << 20, 1 << 32][random.index(5)];
    let (offset, length) = match command {
        FLUSH if random.chance(900) => (0, 0),
        _ => (near(random, size), near(random, limit) as u32),
    };
    // Payloads that come are short, and most do come.
    let length = if command == WRITE && random.chance(980) { length % 2048 } else { length };
    let paid = if length <= 4096 { length } else { random.below(4096) as u32 };
    let payload = if command == WRITE { vec![7; paid as usize] } else { Vec::new() };
    Say::Request { command, flags, cookie: random.below(4), offset, length, payload }.bytes()
}

/// Prints the seed of a failing conversation.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("repeat with: EBB_SEED={} cargo test -p ebb-nbd made_up_conversations", self.0);
        }
    }
}

/// 20,000 conversations, always the same ones. `EBB_SEED` repeats one.
#[test]
fn made_up_conversations_are_refused_or_served() {
    let one = std::env::var("EBB_SEED").ok().map(|seed| seed.parse::<u64>().expect("EBB_SEED is a number"));
    let (mut accepted, mut ended) = (0, 0);
    for seed in one.map_or(0..20_000, |seed| seed..seed + 1) {
        let _shown = Seed(seed);
        let mut random = Random::new(seed);
        let mut bytes = Say::Flags(3).bytes();
        let mut open = false;
        for _ in 0..4 + random.index(20) {
            bytes.extend(message(&mut random, &mut open));
        }
        if random.chance(200) {
            let at = random.index(bytes.len());
            bytes[at] ^= 1 << random.index(8);
        }
        let (requests, closed) = converse(&bytes, &mut random);
        accepted += requests;
        ended += usize::from(closed);
    }
    if one.is_none() {
        assert!(accepted > 40_000 && (1_000..19_000).contains(&ended), "{accepted} accepted, {ended} closed");
    }
}
