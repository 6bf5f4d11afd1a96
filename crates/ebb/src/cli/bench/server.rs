//! `ebb lab bench server`: what one server sustains. [Sierra §3.4; §4.6, Table 4]
//!
//! The load metric counts the cluster's requests in servers' worth of them, so they must be what a *server* can do: its
//! own store, in its own directory, with durable writes, checksums and the deferred move to chunk files. The network is
//! not part of it.
//!
//! - Writes count until everything written is where it stays: a burst that fits into segments says nothing of an hour.
//! - Random reads come from the device, whatever the page cache has. Sequential reads go through the page cache, which
//!   reads ahead, and start with none of the area in it; they end after one pass.
//! - On a file system in memory there is no device to measure, so nothing is written into the configuration.

use crate::cli::bench::store::StoreTarget;
use crate::cli::provenance::Inputs;
use crate::cli::report::ReportArgs;
use crate::cluster::config::Config;
use crate::cluster::edit;
use crate::cluster::launch::Stop;
use crate::error::{NodeError, io, refused};
use clap::Args;
use ebb_output::{Progress, table};
use ebb_replay::drive::{
    DriveOptions, DriveProgress, DriveReport, Failure, Pacing, Target, TargetInfo, drive,
};
use ebb_trace::{Mode, Pace, Synthetic};
use ebb_types::{Bytes, ServerId, parse_bytes, parse_duration};
use rustix::fs::{Advice, fadvise, statfs};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub const EXAMPLE: &str = "\
Examples:
  ebb lab bench server --config cluster.toml --id 3            on server 3's machine, before the cluster is founded
  ebb lab bench server --config cluster.toml --id 3 --write    and put the rates into [scheduler]";

/// Requests kept in flight. [Sierra §4.6]
const OUTSTANDING: usize = 64;
const RANDOM_BYTES: u32 = 4 << 10;
const STREAM_BYTES: [u32; 2] = [64 << 10, 1 << 20];
/// The area is a multiple of the largest request.
const GRAIN: u64 = STREAM_BYTES[1] as u64;
/// More requests than any measurement issues.
const ENDLESS: u64 = 1 << 40;
/// `f_type` of file systems in memory: tmpfs, ramfs.
const IN_MEMORY: [u64; 2] = [0x0102_1994, 0x8584_58f6];

#[derive(Args)]
pub struct ServerArgs {
    /// The cluster's configuration file
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Server whose directory is measured; it may run, but its load is then part of the figures
    #[arg(long)]
    id: u16,
    /// Measure in this directory instead, such as one on the disk that a server's mirror will have
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Space to use; larger than what a disk caches
    #[arg(long, value_name = "SIZE", default_value = "2400MiB", value_parser = parse_bytes)]
    size: Bytes,
    /// Length of each measurement
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_duration)]
    time: Duration,
    /// Measurements of each kind
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Write the rates into `[scheduler]` of the configuration, and show what changes
    #[arg(long)]
    write: bool,
    #[command(flatten)]
    report: ReportArgs,
}

/// One kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Work {
    write: bool,
    random: bool,
    size_bytes: u32,
}

/// Sequential writes come first and fill the area; random ones come last, because they scatter it.
const WORK: [Work; 6] = [
    Work { write: true, random: false, size_bytes: STREAM_BYTES[1] },
    Work { write: true, random: false, size_bytes: STREAM_BYTES[0] },
    Work { write: false, random: false, size_bytes: STREAM_BYTES[1] },
    Work { write: false, random: false, size_bytes: STREAM_BYTES[0] },
    Work { write: false, random: true, size_bytes: RANDOM_BYTES },
    Work { write: true, random: true, size_bytes: RANDOM_BYTES },
];

/// All runs of one kind of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Cell {
    #[serde(flatten)]
    work: Work,
    /// Requests per second of each run.
    runs: Vec<f64>,
    min_iops: f64,
    mean_iops: f64,
    max_iops: f64,
    /// 10^6 bytes per second, of the mean.
    mean_megabytes_per_second: f64,
}

/// The keys of `[scheduler]`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Rates {
    read_iops: f64,
    write_iops: f64,
    read_mb_per_second: f64,
    write_mb_per_second: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
struct Report {
    server: u16,
    directory: PathBuf,
    area_bytes: u64,
    outstanding: usize,
    /// There is no device under the directory.
    in_memory: bool,
    cells: Vec<Cell>,
    rates: Rates,
}

impl Cell {
    fn new(work: Work, runs: Vec<f64>) -> Cell {
        let mean_iops = runs.iter().sum::<f64>() / runs.len() as f64;
        Cell {
            work,
            min_iops: runs.iter().copied().fold(f64::INFINITY, f64::min),
            mean_iops,
            max_iops: runs.iter().copied().fold(0.0, f64::max),
            mean_megabytes_per_second: mean_iops * f64::from(work.size_bytes) / 1e6,
            runs,
        }
    }
}

/// Means; a stream counts as that of the slower of both sizes. Rounded: more digits are noise.
fn rates(cells: &[Cell]) -> Rates {
    let of = |write: bool, random: bool| {
        cells.iter().filter(move |cell| (cell.work.write, cell.work.random) == (write, random))
    };
    let iops = |write| of(write, true).map(|cell| cell.mean_iops).fold(f64::INFINITY, f64::min).round();
    let stream = |write| {
        let slower =
            of(write, false).map(|cell| cell.mean_megabytes_per_second).fold(f64::INFINITY, f64::min);
        (slower * 10.0).round() / 10.0
    };
    Rates {
        read_iops: iops(false),
        write_iops: iops(true),
        read_mb_per_second: stream(false),
        write_mb_per_second: stream(true),
    }
}

impl Rates {
    fn keys(&self) -> [(&'static str, f64); 4] {
        [
            ("read_iops", self.read_iops),
            ("write_iops", self.write_iops),
            ("read_mb_per_second", self.read_mb_per_second),
            ("write_mb_per_second", self.write_mb_per_second),
        ]
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (how, what) =
            (if self.random { "random" } else { "sequential" }, if self.write { "writes" } else { "reads" });
        write!(f, "{how} {what} of {}", Bytes(self.size_bytes.into()))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (area, directory) = (Bytes(self.area_bytes), self.directory.display());
        writeln!(
            f,
            "server {}: its store in {directory}, {area}, {} in flight",
            self.server, self.outstanding
        )?;
        let row = |cell: &Cell| {
            let iops = [cell.min_iops, cell.mean_iops, cell.max_iops].map(|iops| format!("{iops:.0}"));
            let megabytes = format!("{:.1}", cell.mean_megabytes_per_second);
            [vec![cell.work.to_string()], iops.to_vec(), vec![megabytes]].concat()
        };
        let mut out = String::new();
        let rows: Vec<Vec<String>> = self.cells.iter().map(row).collect();
        table(&mut out, &["", "least IOPS", "mean IOPS", "most IOPS", "mean MB/s"], &rows);
        write!(f, "{out}\n[scheduler]")?;
        self.rates.keys().iter().try_for_each(|(key, value)| write!(f, "\n{key} = {value:?}"))?;
        if self.in_memory {
            write!(f, "\nnote: the directory is in memory, so these rates are not a disk's")?;
        }
        Ok(())
    }
}

pub async fn run(args: ServerArgs) -> Result<ExitCode, NodeError> {
    let config = Config::load(&args.config)?;
    let section = config.server_section(args.id)?;
    let dir = match (&args.dir, &section.disks) {
        (Some(dir), _) => dir.clone(),
        (None, None) => config.path(&section.data),
        (None, Some(_)) => {
            return Err(refused(format!(
                "server {} keeps its data on a mirror of two disks, which cannot be measured without overwriting it: name a directory \
                 on such a disk with --dir",
                args.id
            )));
        }
    };
    let area_bytes = args.size.0 / GRAIN * GRAIN;
    if area_bytes == 0 {
        return Err(refused(format!("--size {} is too small: give at least 1MiB", args.size)));
    }
    args.report.check()?;
    if !dir.is_dir() {
        return Err(refused(format!(
            "{} is not a directory: create it on the disk that the server will use, or name another one with --dir",
            dir.display()
        )));
    }
    let in_memory = statfs(&dir).is_ok_and(|about| IN_MEMORY.contains(&(about.f_type as u64)));
    if in_memory && args.write {
        return Err(refused(format!(
            "{} is in memory: rates measured there must not be written into the configuration",
            dir.display()
        )));
    }
    let space = tempfile::Builder::new().prefix("ebb-bench-").tempdir_in(&dir).map_err(io("create", &dir))?;
    let (mut stop, cluster) = (Stop::new()?, config.cluster_id()?);
    let store = Arc::new(StoreTarget::open(space.path(), cluster, ServerId(args.id))?);
    let bench = Bench { store, area_bytes, time: args.time, directory: space.path() };
    let cells = tokio::select! {
        cells = bench.all(args.runs) => cells?,
        () = stop.asked() => return Ok(ExitCode::FAILURE),
    };
    let rates = rates(&cells);
    let (server, directory) = (args.id, dir);
    let report = Report { server, directory, area_bytes, outstanding: OUTSTANDING, in_memory, cells, rates };
    args.report.write(&report, &Inputs::of([&args.config]))?;
    if args.write {
        write_rates(&args.config, &rates)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Puts the rates into the configuration and shows the lines that changed, on standard error: standard output has the
/// report.
fn write_rates(config: &Path, rates: &Rates) -> Result<(), NodeError> {
    let changes = edit::set_numbers(config, "scheduler", &rates.keys())?;
    if changes.is_empty() {
        eprintln!("{}: nothing changes", config.display());
    }
    changes.iter().for_each(|change| eprintln!("{}: {change}", config.display()));
    eprintln!("[scheduler] is read when a cluster is founded: one that exists keeps the rates that it has.");
    Ok(())
}

struct Bench<'a> {
    store: Arc<StoreTarget>,
    area_bytes: u64,
    time: Duration,
    directory: &'a Path,
}

impl Bench<'_> {
    async fn all(&self, runs: u32) -> Result<Vec<Cell>, NodeError> {
        let mut line = Progress::of_minutes();
        let mut cells = Vec::new();
        for work in WORK {
            let mut rates = Vec::new();
            for run in 1..=runs {
                let fills = cells.is_empty() && run == 1;
                let mut progress = |elapsed: Duration, requests: u64| {
                    let seconds = elapsed.as_secs_f64();
                    line.show(format_args!("{work}, run {run} of {runs}: {requests} in {seconds:.1} s"));
                };
                rates.push(self.measure(work, fills, run, &mut progress).await?);
            }
            cells.push(Cell::new(work, rates));
        }
        line.clear();
        Ok(cells)
    }

    /// Requests per second. `fills`: it writes the whole area once, however long that takes.
    async fn measure(
        &self,
        work: Work,
        fills: bool,
        run: u32,
        progress: &mut dyn FnMut(Duration, u64),
    ) -> Result<f64, NodeError> {
        let Work { write, random, size_bytes } = work;
        let one_pass = fills || !write && !random;
        let count = if one_pass { self.area_bytes / u64::from(size_bytes) } else { ENDLESS };
        let (random, reads) = (if random { 100 } else { 0 }, if write { 0 } else { 100 });
        let mode = Mode { size: size_bytes, random, reads };
        let requests =
            Synthetic::new(mode, Pace::Peak, self.area_bytes, count, run.into()).map_err(refused)?;
        self.store.read_past_cache(work.random);
        if !write {
            drop_cache(self.directory);
        }
        let options = DriveOptions {
            pacing: Pacing::Peak { depth: OUTSTANDING },
            duration: (!fills).then_some(self.time),
            ..DriveOptions::default()
        };
        let target = Target::of(self.info(), self.store.clone());
        let started = Instant::now();
        let mut told = |told: DriveProgress| {
            if let DriveProgress::Replaying { elapsed, issued, .. } = told {
                progress(elapsed, issued);
            }
        };
        let report = drive(&options, requests, &target, &mut told).await.map_err(refused)?;
        if let Some(error) = failure(&report) {
            return Err(refused(format!("{work} failed: {error}")));
        }
        if write {
            let failed = |(Failure::Request(reason) | Failure::Lost(reason))| refused(reason);
            self.store.flush().await.map_err(failed)?;
        }
        if report.requests == 0 {
            let time = self.time;
            return Err(refused(format!(
                "{work}: no request was answered in {time:?}: give a longer --time"
            )));
        }
        let seconds = if write { started.elapsed().as_secs_f64() } else { report.wall_seconds };
        Ok(report.requests as f64 / seconds.max(f64::MIN_POSITIVE))
    }

    fn info(&self) -> TargetInfo {
        TargetInfo {
            name: self.directory.display().to_string(),
            size_bytes: self.area_bytes,
            block_bytes: RANDOM_BYTES,
            direct: None,
            checkable: false,
            notes: Vec::new(),
        }
    }
}

fn failure(report: &DriveReport) -> Option<&str> {
    (report.failed > 0).then(|| report.errors.first().map_or("no reason given", String::as_str))
}

/// Lets the kernel forget what it keeps of the files below. It only advises: what cannot be forgotten makes reads look
/// faster, so that random ones do not rely on it.
fn drop_cache(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => drop_cache(&entry.path()),
            Ok(kind) if kind.is_file() => {
                if let Ok(file) = std::fs::File::open(entry.path()) {
                    let _ = fadvise(&file, 0, None, Advice::DontNeed);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_means_and_streams_count_by_the_slower_size() {
        let runs = |iops: f64| vec![iops - 10.0, iops, iops + 10.0];
        let iops = [90.4, 1000.0, 120.0, 2000.0, 137.4, 178.6];
        let cells: Vec<Cell> =
            WORK.iter().zip(iops).map(|(work, iops)| Cell::new(*work, runs(iops))).collect();
        let cell = &cells[4];
        assert_eq!([cell.min_iops, cell.mean_iops, cell.max_iops].map(f64::round), [127.0, 137.0, 147.0]);
        // 1,000 writes of 64 KiB are 65.5 MB, 90.4 of 1 MiB are 94.8; 2,000 reads of 64 KiB 131.1, 120 of 1 MiB 125.8.
        let expected = Rates {
            read_iops: 137.0,
            write_iops: 179.0,
            read_mb_per_second: 125.8,
            write_mb_per_second: 65.5,
        };
        assert_eq!(rates(&cells), expected);
    }

    /// Through the real store, in a directory of the file system: as many measurements as there are, each of them above
    /// zero.
    #[tokio::test]
    async fn a_store_is_measured_with_every_kind_of_work() {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(StoreTarget::open(directory.path(), 7, ServerId(3)).unwrap());
        let (area_bytes, time) = (8 << 20, Duration::from_millis(500));
        let bench = Bench { store, area_bytes, time, directory: directory.path() };
        let cells = bench.all(1).await.unwrap();
        assert_eq!(cells.iter().map(|cell| cell.work).collect::<Vec<_>>(), WORK);
        assert!(cells.iter().all(|cell| cell.min_iops > 0.0), "{cells:?}");
        let figures = bench.store.figures();
        assert!(figures.used.0 >= area_bytes, "the area is filled: {figures:?}");
    }
}
