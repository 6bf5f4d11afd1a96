//! Damaged input to every reader: bytes flipped, cut, repeated or made up. No reader may panic or run on for ever, and what
//! it does return keeps the promises of `Request`.
//!
//! Rerun one case with `EBB_SEED=… cargo test -p ebb-trace --test damage`.

use ebb_trace::{
    BlktraceWriter, BtrecordWriter, FioWriter, Format, Input, Kind, Options, Request, TraceWriter, open_with,
};
use std::io::Cursor;
use std::time::Duration;

const FORMATS: [&str; 13] = [
    "blktrace", "btrecord", "blkparse", "spc", "msr", "srt", "fio", "alibaba", "tencent", "vscsi", "fiu",
    "ssdsim", "disksim",
];

/// SplitMix64: the test needs repeatable, not good, randomness.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

fn requests() -> impl Iterator<Item = Request> {
    (0..40u64).map(|i| Request {
        at: Duration::from_micros(i / 3 * 700),
        device: 0,
        offset: i * 4096 % 77_824,
        len: 512 * (1 + i as u32 % 8),
        kind: if i % 3 == 0 { Kind::Read } else { Kind::Write },
    })
}

fn written(mut writer: impl TraceWriter) {
    requests().for_each(|request| writer.write(&request).unwrap());
    writer.finish().unwrap();
}

/// Forty good requests of each format.
fn good(format: &str) -> Vec<u8> {
    let mut out = Cursor::new(Vec::new());
    match format {
        "blktrace" => written(BlktraceWriter::new(&mut out)),
        "btrecord" => written(BtrecordWriter::new(&mut out, Duration::ZERO).unwrap()),
        "fio" => written(FioWriter::new(&mut out, |d| format!("/dev/x{d}")).unwrap()),
        "srt" => out.get_mut().extend(b"$$TR_IOREC-1.7 made here\n\x0c"),
        _ => {}
    }
    let mut out = out.into_inner();
    for r in requests() {
        let (ns, us, byte, len, sector, sectors) =
            (r.at.as_nanos(), r.at.as_micros(), r.offset, r.len, r.offset / 512, r.len / 512);
        let read = r.kind == Kind::Read;
        let (letter, bit) = if read { ("R", 1) } else { ("W", 0) };
        let line = match format {
            "spc" => format!("0,{sector},{len},{letter},0.{us:06}"),
            "msr" => format!("{},h,1,{letter}ead,{byte},{len},0", 128_166_372_000_000_000 + us * 10),
            "alibaba" => format!("3,{letter},{byte},{len},{us}"),
            "tencent" => format!("{},{sector},{sectors},{},9", us / 1000, 1 - bit),
            "ssdsim" => format!("{ns} 0 {sector} {sectors} {bit}"),
            "disksim" => format!("{}.{:03} 0 {sector} {sectors} {bit}", us / 1000, us % 1000),
            "fiu" => format!("{ns} 1 cat {sector} {sectors} {letter} 8 0 0123abcd"),
            "blkparse" => format!("8,0 1 7 0.{ns:09} 99 Q {letter}S {sector} + {sectors} [fio]"),
            "vscsi" => {
                out.extend(1u32.to_le_bytes());
                out.extend(len.to_le_bytes());
                out.extend([1, 0, 0, 0, if read { 0x28 } else { 0x2a }, 0, 0, 1]);
                out.extend(sector.to_le_bytes());
                out.extend((us as u64).to_le_bytes());
                continue;
            }
            "srt" => {
                let mut words = [0u32; 22];
                (words[0], words[3], words[6], words[11], words[17]) = (88, us as u32, len, bit, byte as u32);
                out.extend(words.iter().flat_map(|word| word.to_be_bytes()));
                continue;
            }
            _ => continue,
        };
        out.extend(line.as_bytes());
        out.push(b'\n');
    }
    out
}

fn input(bytes: Vec<u8>) -> Vec<Input> {
    vec![Input { name: "x".into(), read: Box::new(Cursor::new(bytes)) }]
}

#[test]
fn every_format_is_known_by_its_content_and_reads_the_same_requests() {
    for name in FORMATS {
        let mut reader = open_with(input(good(name)), &Options::default()).unwrap();
        assert_eq!(reader.format().unwrap().to_string(), name);
        let found: Vec<Request> = reader.by_ref().map(|r| r.unwrap()).collect();
        assert_eq!(found.len(), 40, "{name}");
        for (found, want) in found.iter().zip(requests()) {
            assert_eq!((found.offset, found.len), (want.offset, want.len), "{name}");
            assert!(found.kind == want.kind || name == "msr", "{name}");
            assert!(found.at == want.at || name == "tencent", "{name} {found:?} {want:?}");
        }
    }
}

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(5) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes.truncate(at),
            2 => drop(bytes.remove(at)),
            3 => {
                let end = (at + random.below(64)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let end = (at + 8).min(bytes.len());
                bytes[at..end].fill(if random.below(2) == 0 { 0xff } else { b'9' });
            }
        }
    }
}

#[test]
fn damaged_traces_end_in_requests_and_errors_only() {
    let first: u64 = std::env::var("EBB_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let count = if std::env::var("EBB_SEED").is_ok() { 1 } else { 1500 };
    for seed in first..first + count {
        for name in FORMATS {
            let random = &mut Random(seed);
            let mut bytes = good(name);
            damage(&mut bytes, random);
            let length = bytes.len();
            let format = name.parse::<Format>().unwrap();
            let options = Options { format: Some(format), skip_bad: random.next() % 4 };
            let mut reader = open_with(input(bytes), &options).unwrap();
            let (mut count, mut last) = (0, Duration::ZERO);
            while let Some(item) = reader.next() {
                count += 1;
                assert!(count <= length + 1, "{name} does not end, EBB_SEED={seed}");
                match item {
                    Ok(request) => {
                        assert!(request.at >= last, "{name} runs backwards, EBB_SEED={seed}");
                        assert!(
                            request.offset + u64::from(request.len) <= i64::MAX as u64,
                            "EBB_SEED={seed}"
                        );
                        assert!((request.device as usize) < reader.devices().len(), "EBB_SEED={seed}");
                        last = request.at;
                    }
                    Err(_) => {
                        assert!(reader.next().is_none(), "{name} goes on after an error, EBB_SEED={seed}")
                    }
                }
            }
        }
    }
}

#[test]
fn noise_is_refused_or_ends() {
    for seed in 0..500 {
        let mut random = Random(seed);
        let noise: Vec<u8> = (0..random.below(3000)).map(|_| random.next() as u8).collect();
        if let Ok(reader) = open_with(input(noise.clone()), &Options::default()) {
            assert!(reader.count() <= noise.len() + 1, "seed {seed}");
        }
    }
}

#[test]
fn a_compressed_trace_cut_short_is_an_error_and_not_an_end() {
    use std::io::Write;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    packed.write_all(&good("spc")).unwrap();
    let mut packed = packed.finish().unwrap();
    packed.truncate(packed.len() - 9);
    let options = Options { format: Some(Format::Spc), skip_bad: 100 };
    let last = open_with(input(packed), &options).unwrap().last().unwrap();
    assert!(last.unwrap_err().to_string().contains("cut short"));
}
