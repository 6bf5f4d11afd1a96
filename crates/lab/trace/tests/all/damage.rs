//! Damaged input to every reader: bytes flipped, cut, repeated or invented. No reader may panic or run forever, and
//! what it does return keeps the guarantees of `Request`.
//!
//! Rerun one case with `EBB_SEED=… cargo test -p ebb-trace --test all damage`.

use ebb_trace::{
    BlktraceWriter, BtrecordWriter, FioWriter, Format, Input, Kind, Options, Request, TraceWriter, open_with,
};
use ebb_types::Random;
use std::io::Cursor;
use std::time::Duration;

const FORMATS: [&str; 13] = [
    "blktrace", "btrecord", "blkparse", "spc", "msr", "srt", "fio", "alibaba", "tencent", "vscsi", "fiu",
    "ssdsim", "disksim",
];

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

/// The layouts that `good` does not produce: the other byte order and the other versions, each with its format.
fn others() -> Vec<(&'static str, Vec<u8>)> {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let mut blktrace = Vec::new();
    let mut btrecord = words(&[0x1_00_00, 7, 40, 40]);
    let mut srt = b"$$TR_IOREC-1.3 made here\n\x0c".to_vec();
    let mut fio = b"fio version 2 iolog\n/dev/x add\n/dev/x open\n".to_vec();
    let mut vscsi = Vec::new();
    for r in requests() {
        let (ns, us, sector, len) = (r.at.as_nanos() as u64, r.at.as_micros() as u64, r.offset / 512, r.len);
        let read = r.kind == Kind::Read;
        let action = 1 | 1 << if read { 16 } else { 17 };
        blktrace.extend(words(&[0x6561_7407 << 32, ns, sector, u64::from(len) << 32 | action, 8 << 20, 8]));
        blktrace.extend([0; 8]);
        btrecord.extend(words(&[1, ns, sector, len.into(), u64::from(read) << 32]));
        let mut record = [0u32; 14];
        (record[0], record[3], record[6], record[7]) = (56, us as u32, len, 2 * sector as u32);
        (record[8], record[11]) = (0x0800_0100, u32::from(read));
        srt.extend(record.iter().flat_map(|word| word.to_be_bytes()));
        let action = if read { "read" } else { "write" };
        fio.extend(format!("/dev/x {action} {} {len}\n/dev/x wait 7 0\n", r.offset).as_bytes());
        vscsi.extend([if read { 0x28 } else { 0x2a }, 0, 0, 2, 1, 0, 0, 0]);
        vscsi.extend(u64::from(len).to_le_bytes());
        vscsi.extend([sector, us, 5].iter().flat_map(|word| word.to_le_bytes()));
    }
    vec![("blktrace", blktrace), ("btrecord", btrecord), ("srt", srt), ("fio", fio), ("vscsi", vscsi)]
}

/// The same trace in every supported compression.
fn packed(bytes: &[u8]) -> Vec<Vec<u8>> {
    use std::io::Write;
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gz.write_all(bytes).unwrap();
    let mut bz = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    bz.write_all(bytes).unwrap();
    let mut xz = lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(0)).unwrap();
    xz.write_all(bytes).unwrap();
    let zst = ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest);
    vec![gz.finish().unwrap(), bz.finish().unwrap(), xz.finish().unwrap(), zst]
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

#[test]
fn other_byte_orders_and_versions_read_the_same_requests() {
    for (name, bytes) in others() {
        let mut reader = open_with(input(bytes), &Options::default()).unwrap();
        assert_eq!(reader.format().unwrap().to_string(), name);
        let found: Vec<Request> = reader.by_ref().map(|r| r.unwrap()).collect();
        assert_eq!(found.len(), 40, "{name}");
        for (found, want) in found.iter().zip(requests()) {
            assert_eq!((found.offset, found.len, found.kind), (want.offset, want.len, want.kind), "{name}");
            assert!(found.at == want.at || name == "fio", "{name}: {found:?} {want:?}");
        }
    }
}

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.index(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.index(bytes.len());
        match random.index(5) {
            0 => bytes[at] = random.next() as u8,
            1 => bytes.truncate(at),
            2 => drop(bytes.remove(at)),
            3 => {
                let end = (at + random.index(64)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            _ => {
                let end = (at + 8).min(bytes.len());
                bytes[at..end].fill(if random.index(2) == 0 { 0xff } else { b'9' });
            }
        }
    }
}

/// Reads possibly damaged input to its end and checks the guarantees that hold for any input. At most `most` items may
/// come.
fn check(name: &str, bytes: Vec<u8>, most: usize, skip_bad: u64, seed: u64) {
    let format = name.parse::<Format>().unwrap();
    let Ok(mut reader) =
        open_with(input(bytes), &Options { format: Some(format), skip_bad, ..Options::default() })
    else {
        return;
    };
    let (mut count, mut last) = (0, Duration::ZERO);
    while let Some(item) = reader.next() {
        count += 1;
        assert!(count <= most, "{name} does not end, EBB_SEED={seed}");
        match item {
            Ok(request) => {
                assert!(request.at >= last, "{name} runs backwards, EBB_SEED={seed}");
                assert!(request.offset + u64::from(request.len) <= i64::MAX as u64, "EBB_SEED={seed}");
                assert!((request.device as usize) < reader.devices().len(), "EBB_SEED={seed}");
                last = request.at;
            }
            Err(_) => assert!(reader.next().is_none(), "{name} continues after an error, EBB_SEED={seed}"),
        }
    }
    assert!(reader.skipped() <= skip_bad, "{name} skips too much, EBB_SEED={seed}");
}

/// The seeds to run: `usual` of them, or the one from the environment.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let named = std::env::var("EBB_SEED").ok().and_then(|seed| seed.parse().ok());
    named.map_or(1..1 + usual, |seed| seed..seed + 1)
}

#[test]
fn damaged_traces_end_in_requests_and_errors_only() {
    let good = FORMATS.into_iter().map(|name| (name, good(name))).chain(others()).collect::<Vec<_>>();
    for seed in seeds(1500) {
        for (name, bytes) in &good {
            let random = &mut Random::new(seed);
            let mut bytes = bytes.clone();
            damage(&mut bytes, random);
            let most = bytes.len() + 1;
            check(name, bytes, most, random.next() % 4, seed);
        }
    }
}

#[test]
fn damaged_compression_ends_in_requests_and_errors_only() {
    // Damage may decompress to any bytes, but not endlessly many.
    const MOST: usize = 1 << 20;
    for name in ["spc", "blktrace"] {
        for packed in packed(&good(name).repeat(3)) {
            for seed in seeds(400) {
                let random = &mut Random::new(seed);
                let mut bytes = packed.clone();
                damage(&mut bytes, random);
                check(name, bytes, MOST, random.next() % 4, seed);
            }
        }
    }
}

#[test]
fn noise_is_refused_or_ends() {
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let noise: Vec<u8> = (0..random.index(3000)).map(|_| random.next() as u8).collect();
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
    let options = Options { format: Some(Format::Spc), skip_bad: 100, ..Options::default() };
    // So short a trace is cut within its first lines, which are looked at when it is opened.
    let error = match open_with(input(packed), &options) {
        Ok(reader) => reader.last().unwrap().unwrap_err(),
        Err(error) => error,
    };
    assert!(error.to_string().contains("cut short"), "{error}");
}
