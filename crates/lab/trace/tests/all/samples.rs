//! The figures of real traces, which are not part of the project. If they are absent the tests say so and pass: every
//! behaviour is also tested on inputs made here.

use ebb_trace::{Format, Input, Options, Summary, open_with, summary};
use std::fs::File;
use std::path::{Path, PathBuf};

/// The directory of block traces, or a note that it is missing.
fn traces() -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../../shared/traces/block");
    if !path.is_dir() {
        ebb_testing::skip("no real traces at ../shared/traces/block");
        return None;
    }
    Some(path)
}

fn read(directory: &Path, names: &[&str]) -> (Format, Summary) {
    let inputs = names.iter().map(|name| Input {
        name: (*name).into(),
        read: Box::new(File::open(directory.join(name)).expect("a listed trace exists")),
    });
    let mut reader = open_with(inputs.collect(), &Options::default()).expect("a known format");
    let found = summary(reader.as_mut()).expect("a good trace");
    (reader.format().expect("a read trace"), found)
}

struct Row {
    name: &'static str,
    format: &'static str,
    requests: u64,
    seconds: f64,
    read_percent: f64,
    mean_size: f64,
    devices: usize,
}

#[test]
fn real_traces_have_the_figures_of_their_catalogue() {
    let Some(directory) = traces() else { return };
    let rows = [
        ("hplajw.1week.srt", "srt", 44_519, 603_064.6, 29.3, 5_914.0, 2),
        ("hp2003.hour.srt.bz2", "srt", 43_000, 3_699.1, 24.6, 15_865.0, 77),
        ("Financial1.first10000.spc", "spc", 10_000, 260.0, 41.0, 5_500.0, 22),
        ("Financial_mini.spc", "spc", 949, 28.4, 19.0, 2_700.0, 0),
        ("WebSearch1.first60s.spc", "spc", 24_783, 60.0, 100.0, 15_400.0, 6),
        ("msr.rw_20_80.csv", "msr", 10_000, 243.0, 20.0, 5_500.0, 1),
        ("msr.rw_40_60.csv", "msr", 10_000, 86.0, 40.0, 4_900.0, 1),
        ("ms-dtrs.ssdsim.xz", "ssdsim", 127_043, 30_000.0, 89.0, 56_700.0, 0),
        ("cloudphysics.vscsi", "vscsi", 113_872, 7_200.0, 41.0, 36_900.0, 1),
        ("btrecord.sdi.replay.0", "btrecord", 652, 0.01976, 28.07, 4_096.0, 1),
        ("nvme.blkparse.txt", "blkparse", 1_695, 0.68, 100.0, 117_000.0, 1),
    ]
    .map(|(name, format, requests, seconds, read_percent, mean_size, devices)| Row {
        name,
        format,
        requests,
        seconds,
        read_percent,
        mean_size,
        devices,
    });
    for row in rows {
        let (format, found) = read(&directory, &[row.name]);
        println!(
            "{}: {} requests, {:?}, devices {}",
            row.name,
            found.requests,
            found.span,
            found.devices.len()
        );
        assert_eq!(format.to_string(), row.format, "{}", row.name);
        assert_eq!(found.requests, row.requests, "{}", row.name);
        let close = |found: f64, want: f64, within: f64| (found - want).abs() <= within;
        assert!(
            close(found.span.as_secs_f64(), row.seconds, 0.006 * row.seconds),
            "{} {:?}",
            row.name,
            found.span
        );
        let reads = found.read_share().expect("not empty") * 100.0;
        assert!(close(reads, row.read_percent, 0.6), "{} reads {reads}", row.name);
        let mean = found.mean_size().expect("not empty");
        assert!(close(mean, row.mean_size, 0.02 * row.mean_size), "{} mean size {mean}", row.name);
        assert!(row.devices == 0 || found.devices.len() == row.devices, "{} {:?}", row.name, found.devices);
    }
}

#[test]
fn a_real_capture_of_two_cpus_is_merged() {
    let Some(directory) = traces() else { return };
    let (format, found) = read(&directory, &["blktrace/sda.blktrace.0", "blktrace/sda.blktrace.1"]);
    println!("{found:?}");
    assert_eq!((format, found.reads), (Format::Blktrace, 0));
    assert!((105..115).contains(&found.span.as_secs()), "{found:?}");
}
