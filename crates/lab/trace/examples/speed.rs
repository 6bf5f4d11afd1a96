//! Measures the readers' speed on this machine: `cargo run --profile dist -p ebb-trace --example speed`.

use ebb_trace::{BlktraceWriter, Kind, Request, TraceWriter, open, summary};
use std::io::{Cursor, Write};
use std::time::{Duration, Instant};

fn main() {
    let requests = 4_000_000u32;
    let all = || {
        (0..requests).map(|i| Request {
            at: Duration::from_micros(u64::from(i) * 13),
            device: i % 4,
            offset: u64::from(i.wrapping_mul(2_654_435_761) % 50_000_000) * 512,
            len: 512 << (i % 7),
            kind: if i % 3 == 0 { Kind::Read } else { Kind::Write },
        })
    };
    let mut spc = Vec::new();
    let mut blktrace = Vec::new();
    let mut writer = BlktraceWriter::new(&mut blktrace);
    for r in all() {
        let letter = if r.kind == Kind::Read { 'R' } else { 'W' };
        writeln!(spc, "{},{},{},{letter},{:.6}", r.device, r.offset / 512, r.len, r.at.as_secs_f64())
            .expect("memory");
        writer.write(&r).expect("memory");
    }
    for (name, bytes) in [("spc", spc), ("blktrace", blktrace)] {
        let mut reader = open(name, Cursor::new(bytes)).expect("just written");
        let start = Instant::now();
        let found = summary(reader.as_mut()).expect("just written");
        let seconds = start.elapsed().as_secs_f64();
        assert_eq!(found.requests, u64::from(requests));
        println!("{name}: {:.1} million requests/s", f64::from(requests) / seconds / 1e6);
    }
}
