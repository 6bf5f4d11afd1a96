//! Traces of every format, compressed or not.
#![no_main]

use ebb_trace::{Format, Input, Options, open_with};
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;

/// `None`: found from the bytes.
const FORMATS: [Option<&str>; 14] = [
    None,
    Some("blktrace"),
    Some("btrecord"),
    Some("blkparse"),
    Some("spc"),
    Some("msr"),
    Some("srt"),
    Some("fio"),
    Some("alibaba"),
    Some("tencent"),
    Some("vscsi"),
    Some("fiu"),
    Some("ssdsim"),
    Some("disksim"),
];

fuzz_target!(|data: &[u8]| {
    let Some((&which, bytes)) = data.split_first() else { return };
    let format = FORMATS[usize::from(which) % FORMATS.len()];
    let format = format.map(|name| name.parse::<Format>().expect("a format of ours"));
    let input = Input { name: "made".into(), read: Box::new(Cursor::new(bytes.to_vec())) };
    let options = Options { format, skip_bad: u64::from(which) % 3, ..Options::default() };
    let Ok(reader) = open_with(vec![input], &options) else { return };
    // Packed bytes may stand for very many requests.
    for request in reader.take(100_000).map_while(Result::ok) {
        assert!(request.offset + u64::from(request.len) <= i64::MAX as u64);
    }
});
