//! `ebb lab trace`: inspects traces, converts them, generates and records them, and finds them in a catalogue.

use crate::cli::provenance::{Inputs, print_or};
use crate::cli::trace_options::{TraceOptions, advised};
use crate::error::{NodeError, io, refused, writable};
use clap::{Args, Subcommand, ValueEnum};
use ebb_eval::traces::{
    self, Bound, Catalogue, Query, Recorder, Sort, Tallied, Target, WriteOptions, WrittenTrace,
};
use ebb_output::{Progress, clear_line};
use ebb_trace::{BalancedFilter, Format, Mode, Options, Pace, Scaled, Synthetic, TraceReader, TracerFilter};
use ebb_types::{Bytes, counted, parse_bytes, parse_duration};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub const EXAMPLES: &str = "\
Examples:
  ebb lab trace info web.spc                                       show its workload
  ebb lab trace filter web.spc thirty.blktrace.0 --load 30%        30 % of the load, same characteristics
  ebb lab trace scale web.spc fast.blktrace.0 --intensity 250%     all requests in two fifths of the time
  ebb lab trace convert sda.blktrace.* sda.fio                     for fio --read_iolog
  ebb lab trace synth mixed.blktrace.0 --size 4KiB --random 50% --read 70% --rate 500 --seconds 60
  ebb lab trace list traces --reads '>60%' --sort rate             the catalogue of a directory

Formats are detected by content and name; compressed files (gz, xz, bz2, zst) are unpacked on the fly; - is standard input.";

/// Seed of the synthetic modes by which filters are judged.
const SEED: u64 = 1;

#[derive(Subcommand)]
pub enum TraceCommand {
    /// Show the workload of traces: rate, sizes, reads, randomness, footprint, bursts
    #[command(after_help = "Example: ebb lab trace info web.spc cello.srt.gz --html traces.html")]
    Info(InfoArgs),
    /// Write a trace in a format that blktrace's tools or fio replay
    #[command(
        after_help = "Examples:\n  ebb lab trace convert cello.srt.gz cello.fio\n  ebb lab trace convert cello.srt.gz cello/ --to btrecord    one file per device"
    )]
    Convert(ConvertArgs),
    /// Keep a share of a trace's requests, at their original times
    #[command(after_help = "Example: ebb lab trace filter web.spc web30.blktrace.0 --load 30%")]
    Filter(FilterArgs),
    /// Keep every request and change the time between them
    #[command(after_help = "Example: ebb lab trace scale web.spc web250.blktrace.0 --intensity 250%")]
    Scale(ScaleArgs),
    /// Measure how accurately both filters keep a trace's load at 10 % to 100 %, by counting requests and bytes
    #[command(
        after_help = "What is kept of the trace is compared with the trace; nothing is replayed. `ebb lab eval run` measures throughput on a target\n\
                      against that of the replay at 100 %. Errors are measured load over configured load, minus one. reads pt: difference of the share of reads in points. gaps: Kolmogorov-Smirnov\n\
                      distance of inter-arrival times from the original's, slowed down to the level. shape: share of requests that would have to\n\
                      arrive in another hundredth of the time. Without a trace: the 125 synthetic modes."
    )]
    Accuracy(AccuracyArgs),
    /// Generate a synthetic trace, reproducible from its seed
    #[command(
        after_help = "Examples:\n  ebb lab trace synth peak.fio --size 4KiB --random 100% --read 70% --requests 100000\n  ebb lab trace synth modes/ --mode all --rate 1000 --seconds 10    the 125 modes of the paper"
    )]
    Synth(SynthArgs),
    /// Record a trace from a block device with blktrace (Linux, root)
    #[command(after_help = "Example: sudo ebb lab trace record /dev/nvme0n1 nvme --seconds 60")]
    Record(RecordArgs),
    /// List the traces of a directory from its catalogue, which is refreshed when a file changes
    #[command(
        after_help = "Example: ebb lab trace list traces --size 4KiB --random '45%..55%' --reads '<=0%'"
    )]
    List(ListArgs),
}

#[derive(Args)]
struct Writing {
    /// blktrace, btrecord or fio [default: as OUT's name says]
    #[arg(long)]
    to: Option<Target>,
    /// btrecord: gather requests that arrive within this time of a bunch's first, such as 10ms [default: equal times]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0", hide_default_value = true)]
    bunch: Duration,
    /// Replace files that exist
    #[arg(long)]
    overwrite: bool,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct InfoArgs {
    /// Traces; the files of one blktrace or btrecord capture count as one
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    /// Treat all files as one trace, merged by time
    #[arg(long)]
    merge: bool,
    /// Write a page with charts
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    options: TraceOptions,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct ConvertArgs {
    /// Files of one trace, merged by time
    #[arg(required = true)]
    input: Vec<PathBuf>,
    /// Output file; for btrecord a directory takes a file per device
    out: PathBuf,
    #[command(flatten)]
    options: TraceOptions,
    #[command(flatten)]
    writing: Writing,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Method {
    /// Any share; preserves IOPS, bytes, reads and the shape of the load
    Balanced,
    /// TRACER's: whole bunches, 10 % to 100 % in steps of 10 %
    Tracer,
}

#[derive(Args)]
pub struct FilterArgs {
    /// Files of one trace, merged by time
    #[arg(required = true)]
    input: Vec<PathBuf>,
    /// Output file; for btrecord a directory takes a file per device
    out: PathBuf,
    /// Share of the load to keep, such as 30%
    #[arg(long, value_name = "PERCENT")]
    load: Percent,
    #[arg(long, value_enum, default_value_t = Method::Balanced)]
    method: Method,
    /// tracer: requests that arrive within this time of a bunch's first belong to it, such as 10ms [default: equal
    /// times]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0", hide_default_value = true)]
    window: Duration,
    #[command(flatten)]
    options: TraceOptions,
    #[command(flatten)]
    writing: Writing,
}

#[derive(Args)]
pub struct ScaleArgs {
    /// Files of one trace, merged by time
    #[arg(required = true)]
    input: Vec<PathBuf>,
    /// Output file; for btrecord a directory takes a file per device
    out: PathBuf,
    /// Rate relative to the original, 1% to 1000%
    #[arg(long, value_name = "PERCENT")]
    intensity: Percent,
    #[command(flatten)]
    options: TraceOptions,
    #[command(flatten)]
    writing: Writing,
}

#[derive(Args)]
pub struct AccuracyArgs {
    /// Traces; the files of one blktrace or btrecord capture count as one [default: the 125 synthetic modes]
    traces: Vec<PathBuf>,
    /// TRACER's filter: requests that arrive within this time of a bunch's first belong to it, such as 10ms [default:
    /// equal times]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0", hide_default_value = true)]
    window: Duration,
    #[command(flatten)]
    options: TraceOptions,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct SynthArgs {
    /// Output file; with `--mode all` a directory
    out: PathBuf,
    /// `all`: the 125 modes of the paper, one file each
    #[arg(long, value_parser = ["all"], conflicts_with_all = ["size", "random", "read"])]
    mode: Option<String>,
    /// Size of every request, such as 4KiB
    #[arg(long, value_parser = parse_bytes, default_value = "4KiB")]
    size: Bytes,
    /// Share of requests that begin at a random offset; the others follow the previous one
    #[arg(long, value_name = "PERCENT", default_value = "50%")]
    random: Percent,
    /// Share of reads
    #[arg(long, value_name = "PERCENT", default_value = "50%")]
    read: Percent,
    /// Requests per second, evenly paced; absent: all arrive at once, and a replay issues them as fast as the target
    /// allows
    #[arg(long)]
    rate: Option<f64>,
    /// Number of requests [default: 100000, or as many as --seconds needs]
    #[arg(long, conflicts_with = "seconds")]
    requests: Option<u64>,
    /// Length of a paced trace
    #[arg(long, requires = "rate")]
    seconds: Option<f64>,
    /// Part of the device that is used, from its start
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes, default_value = "1GiB")]
    area: Bytes,
    /// Seed of everything random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    writing: Writing,
}

#[derive(Args)]
pub struct RecordArgs {
    /// A block device
    device: PathBuf,
    /// Prefix of the files OUT.blktrace.0, OUT.blktrace.1 …, one per CPU
    out: PathBuf,
    /// Duration in seconds
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct ListArgs {
    /// A directory of traces, including its subdirectories
    directory: PathBuf,
    /// Share of reads, such as '>60%', '<=10%' or '25%..75%'
    #[arg(long, value_name = "CONDITION")]
    reads: Option<Bound>,
    /// Share of random requests, such as '>60%'
    #[arg(long, value_name = "CONDITION")]
    random: Option<Bound>,
    /// Mean size of a request, to within 1 %, such as 4KiB
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    size: Option<Bytes>,
    /// Only traces of this format
    #[arg(long)]
    format: Option<Format>,
    /// Only traces with at least this many requests
    #[arg(long, value_name = "N", default_value_t = 0)]
    min_requests: u64,
    /// Largest first: requests, span, rate, reads, random, size, burst, distinct [default: by name]
    #[arg(long)]
    sort: Option<Sort>,
    /// Reverse the order
    #[arg(long)]
    reverse: bool,
    /// Skip and count up to this many bad lines or records of each trace
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip_bad: u64,
    /// Print JSON with stable keys (docs/json.md)
    #[arg(long)]
    json: bool,
}

/// A percentage with its sign: `30%`, `2.5%`. A bare number could be a percentage or a fraction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Percent(pub(crate) f64);

impl FromStr for Percent {
    type Err = String;
    fn from_str(text: &str) -> Result<Percent, String> {
        let number = text.trim().strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        let number = number.filter(|number| number.is_finite());
        number.map(Percent).ok_or_else(|| format!("{text:?} is not a percentage: write it like 30%"))
    }
}

impl Percent {
    /// A whole percentage from 0 to 100.
    fn whole(self) -> Result<u8, NodeError> {
        let Percent(number) = self;
        let good = (0.0..=100.0).contains(&number) && number.fract() == 0.0;
        good.then_some(number as u8).ok_or_else(|| {
            refused(format!("invalid ratio {number} %: use a whole percentage from 0% to 100%"))
        })
    }
}

/// Runs one command. The commands only read and compute, so they need not be asynchronous.
pub fn run(command: TraceCommand) -> Result<ExitCode, NodeError> {
    match command {
        TraceCommand::Info(args) => info(&args),
        TraceCommand::Convert(args) => {
            let reader = args.options.open(&args.input, &reading())?;
            args.writing.put(reader, &args.out, &Inputs::of(&args.input))
        }
        TraceCommand::Filter(args) => filter(&args),
        TraceCommand::Scale(args) => {
            let reader = args.options.open(&args.input, &reading())?;
            let scaled = Scaled::new(reader, args.intensity.0 / 100.0).map_err(refused)?;
            args.writing.put(Box::new(scaled), &args.out, &Inputs::of(&args.input))
        }
        TraceCommand::Accuracy(args) => accuracy(&args),
        TraceCommand::Synth(args) => synth(&args),
        TraceCommand::Record(args) => record(&args),
        TraceCommand::List(args) => list(&args),
    }
}

/// Shows read progress.
pub(crate) fn reading() -> traces::ReadProgress {
    let line = Mutex::new(Progress::new());
    Arc::new(move |done, of| {
        let Ok(mut line) = line.lock() else { return };
        // The length of standard input is unknown.
        let share =
            if of > done { format!("{:3.0} %", 100.0 * done as f64 / of as f64) } else { String::new() };
        line.show(format_args!("{share} {} read", ebb_types::Bytes(done)));
    })
}

impl Writing {
    fn options(&self, out: &Path) -> Result<WriteOptions, NodeError> {
        let target = self.to.or_else(|| Target::of_name(out)).ok_or_else(|| {
            refused(format!(
                "cannot tell the format from the name {}: end it in .blktrace.0, .replay.0 or .fio, or give --to",
                out.display()
            ))
        })?;
        Ok(WriteOptions { target, window: self.bunch, overwrite: self.overwrite })
    }

    fn write(&self, mut reader: Box<dyn TraceReader>, out: &Path) -> Result<WrittenTrace, NodeError> {
        let written = traces::write(reader.as_mut(), out, &self.options(out)?);
        clear_line();
        written.map_err(advised)
    }

    /// Writes a trace and reports it.
    fn put(&self, reader: Box<dyn TraceReader>, out: &Path, inputs: &Inputs) -> Result<ExitCode, NodeError> {
        let written = self.write(reader, out)?;
        print_or(&written, self.json, inputs, describe(&written) + "\n");
        Ok(ExitCode::SUCCESS)
    }
}

fn describe(written: &WrittenTrace) -> String {
    let WrittenTrace { files, requests, empty, skipped, left_out } = written;
    let requests = counted(*requests, "request");
    let mut text = match files.as_slice() {
        [file] => format!("{}: {requests}", file.display()),
        files => format!("{} files, {requests}", files.len()),
    };
    if *empty > 0 {
        text += &format!("; {empty} zero-length ones omitted");
    }
    if *skipped > 0 {
        text += &format!("; {skipped} bad ones skipped");
    }
    if *left_out > 0 {
        text += &format!("; {left_out} without data (trim, sync) left out");
    }
    text
}

/// The named traces; a capture of several files is one trace.
fn grouped(paths: &[PathBuf], merge: bool) -> Vec<(String, Vec<PathBuf>)> {
    let mut groups = traces::group(paths);
    if merge && groups.len() > 1 {
        let name = format!("{} and {} more", groups[0].0, groups.len() - 1);
        groups = vec![(name, paths.to_vec())];
    }
    groups
}

fn info(args: &InfoArgs) -> Result<ExitCode, NodeError> {
    args.html.iter().try_for_each(|path| writable(path))?;
    let mut profiles = Vec::new();
    for (name, files) in grouped(&args.traces, args.merge) {
        let mut reader = args.options.open(&files, &reading())?;
        let profile = traces::profile(&name, reader.as_mut());
        clear_line();
        profiles.push(profile.map_err(advised)?);
    }
    if let Some(path) = &args.html {
        std::fs::write(path, traces::page(&profiles)).map_err(io("write", path))?;
    }
    let texts: Vec<String> = profiles.iter().map(ToString::to_string).collect();
    print_or(&json!({ "traces": profiles }), args.json, &Inputs::of(&args.traces), texts.join("\n"));
    Ok(ExitCode::SUCCESS)
}

fn filter(args: &FilterArgs) -> Result<ExitCode, NodeError> {
    let reader = args.options.open(&args.input, &reading())?;
    let (before, seen) = Tallied::new(reader);
    let Percent(percent) = args.load;
    let filtered: Box<dyn TraceReader> = match args.method {
        Method::Balanced => Box::new(BalancedFilter::new(before, percent / 100.0).map_err(refused)?),
        Method::Tracer => {
            let tenths =
                (percent.fract() == 0.0 && percent % 10.0 == 0.0 && (10.0..=100.0).contains(&percent))
                    .then_some((percent / 10.0) as u8);
            let tenths = tenths.ok_or_else(|| {
                refused(format!(
                    "TRACER's filter keeps 10 % to 100 % in steps of 10 %, not {percent} %; --method balanced keeps any share"
                ))
            })?;
            Box::new(TracerFilter::new(before, tenths, args.window).map_err(refused)?)
        }
    };
    let (after, kept) = Tallied::new(filtered);
    let written = args.writing.write(Box::new(after), &args.out)?;
    let share = |kept: u64, seen: u64| (seen > 0).then(|| kept as f64 / seen as f64);
    let requests = share(kept.requests(), seen.requests());
    let bytes = share(kept.bytes(), seen.bytes());
    let report = json!({
        "written": written,
        "original_requests": seen.requests(),
        "kept_requests_share": requests,
        "kept_bytes_share": bytes,
    });
    let percent = |share: Option<f64>| share.map_or("–".into(), |share| format!("{:.2} %", share * 100.0));
    let (about, requests, bytes) = (describe(&written), percent(requests), percent(bytes));
    let text = format!("{about}\nkept {requests} of the requests, {bytes} of the bytes\n");
    print_or(&report, args.writing.json, &Inputs::of(&args.input), text);
    if kept.requests() == 0 && args.method == Method::Tracer {
        eprintln!(
            "nothing was kept: requests that arrive together form one bunch, and this trace has too few bunches; use --method balanced"
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn accuracy(args: &AccuracyArgs) -> Result<ExitCode, NodeError> {
    let mut reports = Vec::new();
    for (name, files) in grouped(&args.traces, false) {
        let mut reader = args.options.open(&files, &reading())?;
        let report = traces::accuracy(&name, reader.as_mut(), args.window);
        clear_line();
        reports.push(report.map_err(advised)?);
    }
    let mut inputs = Inputs::of(&args.traces);
    if args.traces.is_empty() {
        reports.push(traces::accuracy_of_modes(SEED));
        inputs = inputs.seeded(SEED);
    }
    let texts: Vec<String> = reports.iter().map(ToString::to_string).collect();
    print_or(&json!({ "traces": reports }), args.json, &inputs, texts.join("\n"));
    Ok(ExitCode::SUCCESS)
}

fn synth(args: &SynthArgs) -> Result<ExitCode, NodeError> {
    let (pace, count) = match (args.rate, args.seconds) {
        (None, _) => (Pace::Peak, args.requests),
        (Some(rate), None) => (Pace::PerSecond(rate), args.requests),
        (Some(rate), Some(seconds)) => (Pace::PerSecond(rate), Some((rate * seconds).round() as u64)),
    };
    let count = count.unwrap_or(100_000);
    let make = |mode: Mode| Synthetic::new(mode, pace, args.area.0, count, args.seed).map_err(refused);
    if args.mode.is_none() {
        let size = u32::try_from(args.size.0).map_err(|_| refused("a request has at most 4 GiB"))?;
        let mode = Mode { size, random: args.random.whole()?, reads: args.read.whole()? };
        return args.writing.put(Box::new(make(mode)?), &args.out, &Inputs::default().seeded(args.seed));
    }
    std::fs::create_dir_all(&args.out).map_err(io("create", &args.out))?;
    let target = args.writing.to.unwrap_or(Target::Blktrace);
    let mut total = WrittenTrace::default();
    for mode in Mode::all() {
        let out = args.out.join(target.file_name(&mode_name(mode)));
        let writing = Writing { to: Some(target), ..args.writing };
        let written = writing.write(Box::new(make(mode)?), &out)?;
        total.requests += written.requests;
        total.files.extend(written.files);
    }
    let text = format!("{}: {}\n", args.out.display(), describe(&total));
    print_or(&total, args.writing.json, &Inputs::default().seeded(args.seed), text);
    Ok(ExitCode::SUCCESS)
}

/// `4096-random50-read75`: by size, then ratios, so that names sort as modes do.
fn mode_name(mode: Mode) -> String {
    format!("{:07}-random{:03}-read{:03}", mode.size, mode.random, mode.reads)
}

fn record(args: &RecordArgs) -> Result<ExitCode, NodeError> {
    let time = Duration::from_secs(args.seconds);
    let mut starting = || eprintln!("recording {} for {} s", args.device.display(), args.seconds);
    let files = traces::record(&Recorder::default(), &args.device, &args.out, time, &mut starting);
    let files = files.map_err(refused)?;
    let mut reader = traces::open(&files, &Options::default(), &reading()).map_err(refused)?;
    let name = args.out.display().to_string();
    let profile = traces::profile(&name, reader.as_mut()).map_err(refused)?;
    let text = format!("{} files, {}.blktrace.*\n\n{profile}", files.len(), args.out.display());
    print_or(&json!({ "files": files, "trace": profile }), args.json, &Inputs::default(), text);
    Ok(ExitCode::SUCCESS)
}

fn list(args: &ListArgs) -> Result<ExitCode, NodeError> {
    let mut line = Progress::new();
    let mut name = |name: &str| line.show(format_args!("reading {name}"));
    let catalogue = Catalogue::open(&args.directory, args.skip_bad, &mut name, &reading());
    clear_line();
    let catalogue = catalogue.map_err(refused)?;
    let query = Query {
        format: args.format,
        reads: args.reads,
        random: args.random,
        size: args.size,
        min_requests: args.min_requests,
        sort: args.sort,
        reverse: args.reverse,
    };
    let found = catalogue.find(&query);
    if args.json {
        let entries: Vec<_> = found.iter().map(|(entry, _)| entry).collect();
        let others: Vec<_> =
            catalogue.others().map(|(name, why)| json!({ "name": name, "trouble": why })).collect();
        ebb_output::print_json(&json!({
            "traces": entries,
            "refreshed": catalogue.refreshed,
            "not_traces": others,
            "catalogue_trouble": catalogue.unkept,
        }));
    } else {
        print!("{}", traces::table(&found));
        let others = catalogue.others().count();
        if others > 0 {
            println!("\n{others} files could not be read as traces; --json says why");
        }
    }
    if let Some(trouble) = &catalogue.unkept {
        eprintln!("the catalogue could not be saved, so the next run reads every file again: {trouble}");
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_sizes_and_times_are_read_with_their_units() {
        assert_eq!("30%".parse(), Ok(Percent(30.0)));
        assert_eq!(" 2.5 % ".parse(), Ok(Percent(2.5)));
        for wrong in ["30", "0.3", "%", "inf%", "x%"] {
            assert!(wrong.parse::<Percent>().is_err(), "{wrong}");
        }
        assert_eq!(Percent(70.0).whole().unwrap(), 70);
        for wrong in [-1.0, 101.0, 0.5] {
            assert!(Percent(wrong).whole().is_err(), "{wrong}");
        }
    }
}
