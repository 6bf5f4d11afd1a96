//! The writers' output, read by the tools that it is for: blkparse, btreplay and fio. If a tool is not installed the
//! test says so and passes; `src/` tests the same files with this crate's own readers.

use ebb_trace::{BlktraceWriter, BtrecordWriter, FioWriter, Kind, Request, TraceWriter};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const REQUESTS: u64 = 600;
const FILE: u64 = 1 << 20;

/// Requests within a file of `FILE` bytes, 100 µs apart, three at a time.
fn requests() -> impl Iterator<Item = Request> {
    (0..REQUESTS).map(|i| Request {
        at: Duration::from_micros(i / 3 * 100),
        device: 0,
        offset: i * 37 * 4096 % (FILE - 16384),
        len: 4096 * (1 + i as u32 % 4),
        kind: if i % 4 == 0 { Kind::Write } else { Kind::Read },
    })
}

fn write(mut writer: impl TraceWriter, requests: impl Iterator<Item = Request>) {
    requests.for_each(|request| writer.write(&request).unwrap());
    writer.finish().unwrap();
}

/// The output of a tool, or `None`, with a note, if it is not installed.
fn run(tool: &str, arguments: &[&str], directory: &Path) -> Option<String> {
    match Command::new(tool).args(arguments).current_dir(directory).output() {
        Ok(output) => {
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{tool} fails: {out}{err}");
            Some(format!("{out}{err}"))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            ebb_testing::skip(format!("{tool} is not installed"));
            None
        }
        Err(error) => panic!("{tool}: {error}"),
    }
}

#[test]
fn blkparse_reads_what_the_blktrace_writer_writes() {
    let directory = tempfile::tempdir().unwrap();
    let file = File::create(directory.path().join("sda.blktrace.0")).unwrap();
    write(BlktraceWriter::new(BufWriter::new(file)), requests());
    let Some(text) = run("blkparse", &["-q", "-i", "sda", "-f", "%a %d %S %N %T.%9t\n"], directory.path())
    else {
        return;
    };
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("Q ")).collect();
    assert_eq!(lines.len() as u64, REQUESTS, "{text}");
    for (line, request) in lines.iter().zip(requests()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let kind = if request.kind == Kind::Read { "R" } else { "W" };
        assert_eq!(words[1..4], [kind, &(request.offset / 512).to_string(), &request.len.to_string()]);
        assert_eq!(words[4], format!("0.{:09}", request.at.as_nanos()));
    }
}

#[test]
fn fio_replays_what_the_iolog_writer_writes() {
    let directory = tempfile::tempdir().unwrap();
    File::create(directory.path().join("target")).unwrap().set_len(FILE).unwrap();
    let file = File::create(directory.path().join("log")).unwrap();
    write(FioWriter::new(BufWriter::new(file), |_| "target".into()).unwrap(), requests());
    let arguments = ["--name=x", "--read_iolog=log", "--ioengine=psync", "--output-format=terse"];
    let Some(text) = run("fio", &arguments, directory.path()) else { return };
    let line = text.lines().find(|line| line.starts_with("3;")).unwrap_or_else(|| panic!("{text}"));
    let fields: Vec<&str> = line.split(';').collect();
    // Kilobytes read and written are fields 6 and 47 of fio's terse version 3, counted from one.
    let kilobytes =
        |kind| requests().filter(|r| r.kind == kind).map(|r| u64::from(r.len)).sum::<u64>() / 1024;
    assert_eq!(fields[5], kilobytes(Kind::Read).to_string(), "{text}");
    assert_eq!(fields[46], kilobytes(Kind::Write).to_string(), "{text}");
}

#[test]
fn btreplay_replays_what_the_btrecord_writer_writes() {
    let directory = tempfile::tempdir().unwrap();
    // btreplay opens /dev/NAME, with every _ of NAME turned into a /.
    let target = directory.path().join("t");
    let name = format!("..{}", target.to_str().unwrap().replace('/', "_"));
    std::fs::write(&target, vec![0xab; FILE as usize]).unwrap();
    let file = File::create(directory.path().join(format!("{name}.replay.0"))).unwrap();
    // Writes only: btreplay writes whatever is in its buffers, where a read would leave the target's own bytes.
    let writes = || requests().filter(|r| r.kind == Kind::Write);
    write(BtrecordWriter::new(BufWriter::new(file), Duration::ZERO).unwrap(), writes());
    if run("btreplay", &["--version"], directory.path()).is_none() {
        return;
    }
    // btreplay takes a tenth of a second; about one run in fifteen waits for its own threads forever, and then ignores
    // everything but a kill.
    let hangs = !(0..10).any(|_| {
        let status = Command::new("timeout")
            .args(["-s", "KILL", "2", "btreplay", "-W", "-i", "replay", &name])
            .current_dir(directory.path())
            .status();
        status.is_ok_and(|status| status.success())
    });
    assert!(!hangs, "btreplay does not end well in ten attempts");
    let mut expected = vec![false; (FILE / 4096) as usize];
    for request in writes() {
        expected[(request.offset / 4096) as usize..][..(request.len / 4096) as usize].fill(true);
    }
    let bytes = std::fs::read(&target).unwrap();
    let changed: Vec<bool> = bytes.chunks(4096).map(|block| block.iter().any(|&b| b != 0xab)).collect();
    assert_eq!(changed, expected, "other blocks were written than the trace says");
}
