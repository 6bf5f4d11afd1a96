//! Memory of readers and generators: the same for a trace of any length, and bounded for one designed to exhaust it.
//! The allocator counts, so this file has only one test: others would be counted too.

use ebb_trace::{BlktraceWriter, Daily, Format, Input, Kind, Options, Request, TraceWriter, open_with};
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(now, Relaxed);
        // SAFETY: the caller's promise is the system allocator's condition.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A trace generated while it is read, so that it takes no memory itself: a head, then pieces from `piece(n)`.
struct Made<F> {
    ready: Vec<u8>,
    at: usize,
    piece: F,
    pieces: std::ops::Range<u64>,
}

impl<F: FnMut(u64, &mut Vec<u8>)> Read for Made<F> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.at == self.ready.len() {
            let Some(next) = self.pieces.next() else { return Ok(0) };
            (self.at, self.ready) = (0, std::mem::take(&mut self.ready));
            self.ready.clear();
            (self.piece)(next, &mut self.ready);
        }
        let count = into.len().min(self.ready.len() - self.at);
        into[..count].copy_from_slice(&self.ready[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// Reads such a trace to its end and returns the requests, whether it ended in an error, and the peak memory in bytes.
fn read(
    format: Format,
    pieces: u64,
    head: &[u8],
    piece: impl FnMut(u64, &mut Vec<u8>) + Send + 'static,
) -> (u64, bool, usize) {
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    let made = Made { ready: head.to_vec(), at: 0, piece, pieces: 0..pieces };
    let input = Input { name: "x".into(), read: Box::new(made) };
    let options = Options { format: Some(format), ..Options::default() };
    let mut reader = open_with(vec![input], &options).expect("a readable input");
    let good = reader.by_ref().take_while(|request| request.is_ok()).count() as u64;
    let failed = good < pieces;
    drop(reader);
    (good, failed, MOST.load(Relaxed) - before)
}

fn text(line: impl Fn(u64) -> String) -> impl FnMut(u64, &mut Vec<u8>) {
    move |n, out| out.extend_from_slice(line(n).as_bytes())
}

#[test]
fn no_trace_fills_the_memory() {
    // Long traces: a reader's memory does not grow with them. 600,000 requests would show as megabytes.
    let spc = |n| format!("0,{n},512,R,{}.{:06}\n", n / 1000, n % 1000);
    let tencent = |n: u64| format!("{},{n},1,0,1\n", n / 300_000);
    let blktrace = |n: u64, out: &mut Vec<u8>| {
        let at = Duration::from_micros(n);
        let request = Request { at, device: 0, offset: n * 512, len: 512, kind: Kind::Read };
        BlktraceWriter::new(out).write(&request).expect("memory");
    };
    for (found, most) in [
        (read(Format::Spc, 600_000, b"", text(spc)), 1 << 20),
        (read(Format::Blktrace, 600_000, b"", blktrace), 1 << 20),
        // One second's requests, up to 65,536, are spread.
        (read(Format::Tencent, 600_000, b"", text(tencent)), 8 << 20),
    ] {
        assert_eq!((found.0, found.1), (600_000, false));
        assert!(found.2 <= most, "{} bytes", found.2);
    }
    // A generated day needs less still.
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    let day = Daily { count: 600_000, ..Daily::financial() }.requests(1).expect("good parameters");
    assert_eq!(day.count(), 600_000);
    let bytes = MOST.load(Relaxed) - before;
    assert!(bytes <= 4 << 10, "{bytes} bytes");
    // Traces in which every line names another device: refused before they exhaust memory.
    let many = read(Format::Spc, 2_000_000, b"", text(|n| format!("{n},0,512,R,0\n")));
    assert_eq!((many.0, many.1), (1 << 20, true));
    let name = "n".repeat(4000);
    let long = read(Format::Msr, 100_000, b"", text(move |n| format!("{n},{name},{n},Read,0,512,0\n")));
    assert!(long.0 < 5000 && long.1, "{long:?}");
    for (_, _, bytes) in [many, long] {
        assert!(bytes <= 160 << 20, "{bytes} bytes");
    }
    // A line without an end, and a header without one.
    let endless = |_, out: &mut Vec<u8>| out.extend_from_slice(&[b'1'; 4096]);
    for (format, head) in
        [(Format::Spc, &b""[..]), (Format::Srt, b"$$TR_IOREC-1.7"), (Format::Fio, b"fio version 3 ")]
    {
        let found = read(format, 10_000, head, endless);
        assert!(found.0 == 0 && found.2 <= 1 << 20, "{format}: {found:?}");
    }
}
