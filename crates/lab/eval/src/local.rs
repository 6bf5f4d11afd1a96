//! The generator and the analyzer of this machine. `ebb lab agent` offers the same two to another machine.

use super::matrix::{Collector, Filter};
use super::order::{
    Analyzer, Draw, Generator, Intensity, Interval, Live, Machine, Order, Performance, Place, Present,
    Reading, RunError,
};
use super::workload::Workload;
use crate::traces::{self, TraceFileError};
use ebb_client::Client;
use ebb_meter::{Figures, Quantity, Recorder, Window};
use ebb_replay::drive::{
    COLLECTED_MOST, DriveOptions, DriveProgress, DriveReport, OpenOptions, Pacing, S3Keys, Target,
    TargetError, TargetInfo, TargetSpec, drive,
};
use ebb_trace::{
    BalancedFilter, HotBand, InMemory, Mode, Options, Pace, Request, Scaled, SynthError, Synthetic,
    TraceError, TraceReader, TracerFilter, summary,
};
use ebb_types::{Bytes, Moment};
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;

/// Connects to the cluster whose volumes are evaluated.
pub type Connect = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Client, String>>>> + Send + Sync>;

/// Generates load on this machine, on any target that [`drive`] supports.
pub struct LocalGenerator {
    runtime: Runtime,
    connect: Option<Connect>,
    /// The last target stays open: most matrices have one.
    target: Option<(Place, Target)>,
}

impl LocalGenerator {
    /// `connect`: `None`: volumes of Ebb cannot be evaluated. Keys of S3 endpoints come from the environment.
    pub fn new(connect: Option<Connect>) -> Result<LocalGenerator, RunError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| RunError::Lost(format!("cannot start the runtime: {error}")))?;
        Ok(LocalGenerator { runtime, connect, target: None })
    }

    fn open(&mut self, place: &Place) -> Result<&Target, RunError> {
        let same = |open: &Place| (&open.at, open.size_bytes) == (&place.at, place.size_bytes);
        if !self.target.as_ref().is_some_and(|(open, _)| same(open)) {
            // The old one is closed first: both may be the same device.
            self.target = None;
            let spec: TargetSpec = place.at.parse().map_err(|error| RunError::Lost(format!("{error}")))?;
            let target = self.runtime.block_on(open_target(&spec, place, self.connect.as_ref()))?;
            self.target = Some((place.clone(), target));
        }
        Ok(&self.target.as_ref().expect("it has just been opened").1)
    }
}

async fn open_target(
    spec: &TargetSpec,
    place: &Place,
    connect: Option<&Connect>,
) -> Result<Target, RunError> {
    let client = match (spec, connect) {
        (TargetSpec::Volume(_), Some(connect)) => Some(connect().await.map_err(RunError::Lost)?),
        _ => None,
    };
    // A target created for the evaluation has the size in the matrix; a device or an export has its own.
    let made = matches!(spec, TargetSpec::File(_) | TargetSpec::S3 { .. } | TargetSpec::Volume(_));
    let options = OpenOptions {
        size: made.then_some(Bytes(place.size_bytes)),
        overwrite: place.overwrite,
        keys: s3_keys(),
        client,
    };
    Target::open(spec, &options, &mut |_| {}).await.map_err(|error| {
        let remedy = match error {
            TargetError::NotEmpty { .. } => " (in a matrix: overwrite = true)",
            _ => "",
        };
        RunError::Lost(format!("{error}{remedy}"))
    })
}

fn s3_keys() -> Option<S3Keys> {
    let variable = |name| std::env::var(name).ok();
    Some(S3Keys {
        access_key: variable("AWS_ACCESS_KEY_ID")?,
        secret_key: variable("AWS_SECRET_ACCESS_KEY")?,
        region: variable("AWS_REGION").unwrap_or_else(|| "us-east-1".into()),
    })
}

impl Generator for LocalGenerator {
    fn clock_offset(&mut self) -> Result<i64, RunError> {
        Ok(0)
    }

    fn prepare(&mut self, place: &Place) -> Result<Machine, RunError> {
        let device = describe(self.open(place)?.info());
        let spec: TargetSpec = place.at.parse().map_err(|error| RunError::Lost(format!("{error}")))?;
        Ok(Machine { device: Some(device), medium: medium(&spec), ..this_machine() })
    }

    fn holds(&mut self, trace: &Path) -> Result<bool, RunError> {
        Ok(trace.exists())
    }

    fn run(&mut self, order: &Order, tell: &mut dyn FnMut(Live)) -> Result<Performance, RunError> {
        if let (Workload::Trace { .. }, Intensity::Peak { .. }) = (&order.workload, order.intensity) {
            return asked_for(order);
        }
        let requests = requests(order)?;
        self.open(&order.place)?;
        let (_, target) = self.target.as_ref().expect("it has just been opened");
        let pacing = match order.intensity {
            Intensity::Peak { depth } => Pacing::Peak { depth: depth as usize },
            Intensity::Level { .. } => Pacing::Times { speed: 1.0 },
        };
        let peak = matches!(order.intensity, Intensity::Peak { .. });
        // A phase of hours leaves no trace.
        let collected = peak && order.trace.is_some();
        let kernel = (collected && order.collector == Collector::Blktrace)
            .then(|| Kernel::start(order))
            .transpose()?;
        let collect = collected && kernel.is_none();
        let options =
            DriveOptions { pacing, duration: Some(order.length), collect, ..DriveOptions::default() };
        let mut watch = Watch::default();
        let mut progress = |progress| tell(watch.next(&progress));
        let report = self.runtime.block_on(drive(&options, requests, target, &mut progress));
        let recorded = kernel.map(Kernel::end).transpose()?;
        let report = report.map_err(|error| RunError::Failed(error.to_string()))?;
        if let Some(files) = &recorded {
            keep_recorded(files, order)?;
        } else if collect {
            keep(&report.issued, order)?;
        }
        let mut length = report.wall();
        // The span of a trace ends with its last request, not with the last one that a level keeps.
        if !peak && length < order.length {
            std::thread::sleep(order.length - length);
            length = order.length;
        }
        Ok(performance(&report, length, order))
    }
}

/// What happened between two reports of a replay.
#[derive(Default)]
struct Watch {
    elapsed: Duration,
    answered: u64,
    bytes: u64,
    service: Duration,
}

impl Watch {
    fn next(&mut self, progress: &DriveProgress) -> Live {
        let DriveProgress::Replaying { elapsed, issued, in_flight, bytes, service, .. } = *progress else {
            return Live::default();
        };
        let answered = issued - in_flight;
        let before = std::mem::replace(self, Watch { elapsed, answered, bytes, service });
        let seconds = elapsed.saturating_sub(before.elapsed).as_secs_f64().max(f64::MIN_POSITIVE);
        let count = answered.saturating_sub(before.answered) as f64;
        let waited = service.saturating_sub(before.service).as_secs_f64();
        Live {
            iops: count / seconds,
            mb_per_second: bytes.saturating_sub(before.bytes) as f64 / 1e6 / seconds,
            response_millis: (count > 0.0).then(|| 1e3 * waited / count),
        }
    }
}

/// blktrace at work beside a peak run.
struct Kernel(std::thread::JoinHandle<Result<Vec<PathBuf>, traces::RecordError>>);

/// Longest start of blktrace, which says nothing once it has started; it records as much longer.
const START: Duration = Duration::from_secs(1);

impl Kernel {
    fn start(order: &Order) -> Result<Kernel, RunError> {
        let lost = |why: String| {
            RunError::Lost(format!(
                "{why}; without collector = \"blktrace\" in the matrix the program collects"
            ))
        };
        let spec: TargetSpec = order.place.at.parse().map_err(|error| RunError::Lost(format!("{error}")))?;
        let TargetSpec::Device(device) = spec else {
            return Err(lost(format!("blktrace records block devices, not {}", order.place.at)));
        };
        let recorder = traces::Recorder::default();
        traces::recordable(&recorder, &device).map_err(|error| lost(error.to_string()))?;
        // Beside the trace that it becomes.
        let out = collected(order)?.with_extension("recording");
        make_directory_of(&out)?;
        let time = order.length + 2 * START;
        let work = std::thread::spawn(move || traces::record(&recorder, &device, &out, time, &mut || {}));
        std::thread::sleep(START);
        Ok(Kernel(work))
    }

    /// The files of all CPUs.
    fn end(self) -> Result<Vec<PathBuf>, RunError> {
        let recorded = self.0.join().map_err(|_| RunError::Failed("blktrace's thread has failed".into()))?;
        recorded.map_err(|error| RunError::Lost(error.to_string()))
    }
}

/// What the kernel sees of requests that were submitted together is this close.
const TOGETHER: Duration = Duration::from_micros(100);

/// Stores the trace that blktrace recorded of a peak run, in place of its files.
fn keep_recorded(files: &[PathBuf], order: &Order) -> Result<(), RunError> {
    let reader = traces::open(files, &Options::default(), &traces::silent());
    let mut reader = reader.map_err(|error| RunError::Failed(error.to_string()))?;
    store(reader.as_mut(), order, TOGETHER)?;
    // They only take room.
    files.iter().for_each(|file| drop(std::fs::remove_file(file)));
    Ok(())
}

/// Stores the trace of a peak run where its levels find it.
fn keep(issued: &[Request], order: &Order) -> Result<(), RunError> {
    if issued.len() == COLLECTED_MOST {
        return Err(RunError::Failed(format!(
            "the peak run has more than {COLLECTED_MOST} requests; shorten peak_seconds"
        )));
    }
    let devices = [order.place.at.clone()];
    store(&mut InMemory::new(issued, &devices), order, Duration::ZERO)
}

fn store(trace: &mut dyn TraceReader, order: &Order, window: Duration) -> Result<(), RunError> {
    let path = collected(order)?;
    let failed =
        |why: String| RunError::Failed(format!("the trace of the peak run, {}: {why}", path.display()));
    make_directory_of(path)?;
    let options = traces::WriteOptions { target: traces::Target::Btrecord, window, overwrite: true };
    traces::write(trace, path, &options).map(drop).map_err(|error| failed(error.to_string()))
}

fn make_directory_of(file: &Path) -> Result<(), RunError> {
    let Some(directory) = file.parent() else { return Ok(()) };
    let made = std::fs::create_dir_all(directory);
    made.map_err(|error| RunError::Failed(format!("cannot make {}: {error}", directory.display())))
}

/// The collected trace of a synthetic workload.
fn collected(order: &Order) -> Result<&PathBuf, RunError> {
    let nowhere =
        || RunError::Failed("the order does not say where the trace of the peak run is kept".into());
    order.trace.as_ref().ok_or_else(nowhere)
}

/// The requests of an order, up to its length.
fn requests(order: &Order) -> Result<impl TraceReader + 'static, RunError> {
    let whole = whole(order)?;
    let failed = |error: &dyn std::fmt::Display| RunError::Failed(error.to_string());
    let bunch = match order.workload {
        Workload::Trace { bunch, .. } => bunch,
        Workload::Synthetic { .. } | Workload::HotBand | Workload::Fill { .. } => Duration::ZERO,
    };
    if let Intensity::Level { percent, filter } = order.intensity
        && let Some(problem) = filter.problem(percent)
    {
        return Err(RunError::Failed(format!("{percent} {problem}")));
    }
    let filtered: Box<dyn TraceReader> = match order.intensity {
        Intensity::Peak { .. } => whole,
        Intensity::Level { percent, filter } => match filter {
            Filter::Tracer => Box::new(
                TracerFilter::new(whole, (percent / 10.0) as u8, bunch).map_err(|error| failed(&error))?,
            ),
            Filter::Balanced => {
                Box::new(BalancedFilter::new(whole, percent / 100.0).map_err(|error| failed(&error))?)
            }
            Filter::Scale => Box::new(Scaled::new(whole, percent / 100.0).map_err(|error| failed(&error))?),
        },
    };
    Ok(Until { inner: filtered, end: order.length })
}

/// The workload at 100 %.
fn whole(order: &Order) -> Result<Box<dyn TraceReader>, RunError> {
    let (area, seed) = (order.place.size_bytes, order.seed);
    let failed = |error: SynthError| RunError::Failed(error.to_string());
    match &order.workload {
        &Workload::Synthetic { size, random, reads } => match order.intensity {
            Intensity::Peak { .. } => {
                let made = Synthetic::new(Mode { size, random, reads }, Pace::Peak, area, u64::MAX, seed);
                Ok(Box::new(made.map_err(failed)?))
            }
            Intensity::Level { .. } => trace(collected(order)?, 0),
        },
        Workload::HotBand => Ok(Box::new(HotBand::new(area, seed).map_err(failed)?)),
        &Workload::Fill { size } => {
            let mode = Mode { size, random: 0, reads: 0 };
            let once = area / u64::from(size.max(1));
            Ok(Box::new(Synthetic::new(mode, Pace::Peak, area, once, seed).map_err(failed)?))
        }
        Workload::Trace { file, skip_bad, .. } => trace(file, *skip_bad),
    }
}

fn trace(path: &Path, skip_bad: u64) -> Result<Box<dyn TraceReader>, RunError> {
    let failed =
        |error: &dyn std::fmt::Display| RunError::Failed(format!("the trace {}: {error}", path.display()));
    let options = Options { skip_bad, ..Options::default() };
    traces::open(&[path.to_owned()], &options, &traces::silent()).map_err(|error| match error {
        TraceFileError::Read(error @ TraceError::Implausible { .. }) => {
            failed(&format!("{error}: convert it once, `ebb lab trace convert --unit …`"))
        }
        TraceFileError::Read(error) => failed(&error),
        unopened => RunError::Failed(unopened.to_string()),
    })
}

/// A trace up to a given time.
struct Until<R> {
    inner: R,
    end: Duration,
}

impl<R: TraceReader> Iterator for Until<R> {
    type Item = R::Item;

    fn next(&mut self) -> Option<R::Item> {
        self.inner.next().filter(|next| next.as_ref().map_or(true, |request| request.at < self.end))
    }
}

ebb_trace::pass_on!(Until);

/// The load of a trace within the length of a run: its 100 %.
fn asked_for(order: &Order) -> Result<Performance, RunError> {
    let failed = |why: String| RunError::Failed(format!("the trace {}: {why}", order.workload.name()));
    let total = summary(&mut requests(order)?).map_err(|error| failed(error.to_string()))?;
    let percent = |share: Option<f64>| share.map(|share| 100.0 * share);
    let vector = || Some((total.mean_size()?, percent(total.random_share())?, percent(total.read_share())?));
    let (request_bytes, random_percent, read_percent) =
        vector().ok_or_else(|| failed("it has no requests within the length of a run".into()))?;
    Ok(Performance {
        from: Moment::ZERO,
        to: Moment::ZERO + order.length,
        requests: total.requests,
        bytes: total.bytes,
        request_bytes,
        random_percent,
        read_percent,
        ..Performance::default()
    })
}

fn performance(report: &DriveReport, length: Duration, order: &Order) -> Performance {
    let to = ebb_meter::now();
    let (request_bytes, random_percent, read_percent) = match order.workload {
        Workload::Synthetic { size, random, reads } => (size.into(), random.into(), reads.into()),
        Workload::Fill { size } => (size.into(), 0.0, 0.0),
        Workload::HotBand => mix(report),
        // The vector of the peak run is stored with every run.
        Workload::Trace { .. } => (0.0, 0.0, 0.0),
    };
    Performance {
        from: Moment(to.0.saturating_sub(length.as_nanos() as u64)),
        to,
        requests: report.reads.requests + report.writes.requests,
        bytes: report.reads.bytes + report.writes.bytes,
        failed: report.failed,
        errors: report.errors.iter().take(3).cloned().collect(),
        request_bytes,
        random_percent,
        read_percent,
        latency: report.service,
        lateness_p99_millis: report.lateness.map(|lateness| lateness.p99_millis),
        queue_p99_millis: report.queue.map(|queue| queue.p99_millis),
        series: series(report, length, order.interval),
    }
}

/// The mode vector of the hot band's mix: as measured, but for the streams, of which two in five requests are.
fn mix(report: &DriveReport) -> (f64, f64, f64) {
    let requests = ((report.reads.requests + report.writes.requests) as f64).max(1.0);
    let bytes = (report.reads.bytes + report.writes.bytes) as f64;
    (bytes / requests, 60.0, 100.0 * report.reads.requests as f64 / requests)
}

/// A run longer than one interval, in intervals of whole seconds; the last one may be shorter.
fn series(report: &DriveReport, length: Duration, interval: Duration) -> Vec<Interval> {
    let (each, length) = (interval.as_secs().max(1), length.as_secs_f64());
    if length <= each as f64 {
        return Vec::new();
    }
    let count = (length / each as f64).ceil() as usize;
    let seconds = |from: f64| (length - from).min(each as f64);
    let mut all: Vec<Interval> = (0..count)
        .map(|index| index as f64 * each as f64)
        .map(|from_seconds| Interval { from_seconds, seconds: seconds(from_seconds), ..Interval::default() })
        .collect();
    for (at, second) in report.seconds.iter().enumerate() {
        let interval = &mut all[(at / each as usize).min(count - 1)];
        interval.requests += second.reads + second.writes;
        interval.bytes += second.read_bytes + second.written_bytes;
        interval.failed += second.failed;
    }
    all
}

/// The kind of device, for the names of traces.
fn medium(spec: &TargetSpec) -> String {
    let word = match spec {
        TargetSpec::File(_) => "file",
        TargetSpec::Nbd { .. } => "nbd",
        TargetSpec::S3 { .. } => "s3",
        TargetSpec::Volume(_) => "volume",
        TargetSpec::Device(path) => {
            let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.clone());
            let block = Path::new("/sys/class/block").join(real.file_name().unwrap_or_default());
            // A partition has its disk's queue.
            let queue =
                [block.join("queue"), std::fs::canonicalize(&block).unwrap_or(block).join("../queue")];
            let rotates =
                queue.iter().find_map(|queue| std::fs::read_to_string(queue.join("rotational")).ok());
            match rotates.as_deref().map(str::trim) {
                Some("1") => "hdd",
                Some("0") => "ssd",
                _ => "device",
            }
        }
    };
    word.to_owned()
}

fn describe(info: &TargetInfo) -> String {
    let cache = match info.direct {
        Some(true) => ", direct",
        Some(false) => ", through the page cache",
        None => "",
    };
    format!("{}, {}, blocks of {} B{cache}", info.name, Bytes(info.size_bytes), info.block_bytes)
}

/// Facts about this machine.
fn this_machine() -> Machine {
    let ebb_output::Machine { cpu, kernel, .. } = ebb_output::Machine::this();
    Machine {
        host: ebb_output::host(),
        kernel,
        cpu,
        device: None,
        medium: String::new(),
        program_version: env!("CARGO_PKG_VERSION").into(),
    }
}

/// What is read now is the mean of this time.
const LIVE: Duration = Duration::from_secs(2);

/// The meters of this machine.
pub struct LocalAnalyzer {
    recorder: Recorder,
    names: Vec<String>,
}

impl LocalAnalyzer {
    /// Opens meters, named as in `ebb lab meter`, and starts sampling them.
    pub fn open(meters: &[String]) -> Result<LocalAnalyzer, RunError> {
        let lost = |error: ebb_meter::MeterError| RunError::Lost(error.to_string());
        let opened = meters.iter().map(|spec| ebb_meter::open(spec));
        let opened = opened.collect::<Result<Vec<_>, _>>().map_err(lost)?;
        let names = opened.iter().map(|meter| meter.name.clone()).collect();
        Ok(LocalAnalyzer { recorder: Recorder::start(opened).map_err(lost)?, names })
    }
}

impl Analyzer for LocalAnalyzer {
    fn clock_offset(&mut self) -> Result<i64, RunError> {
        Ok(0)
    }

    fn mark(&mut self) -> Result<(), RunError> {
        // The samples of the last run are no longer needed; counters need the reading before this one.
        self.recorder.forget_before(ebb_meter::now());
        self.recorder.sample();
        Ok(())
    }

    fn draw(&mut self, from: Moment, to: Moment) -> Result<Draw, RunError> {
        self.recorder.sample();
        Ok(add_up(&self.recorder.window(from, to), &self.names))
    }

    fn present(&mut self) -> Present {
        let to = ebb_meter::now();
        let from = Moment(to.0.saturating_sub(LIVE.as_nanos() as u64));
        let window = self.recorder.window(from, to);
        let Draw { watts, celsius, .. } = add_up(&window, &self.names);
        let reading = |figures: &Figures| {
            // Counters of energy have a mean in watts.
            let unit = match figures.channel.quantity {
                Quantity::Power | Quantity::Energy { .. } => Quantity::Power.unit(),
                Quantity::Temperature => Quantity::Temperature.unit(),
                _ => return None,
            };
            Some(Reading {
                name: format!("{} {}", figures.meter, figures.channel.name),
                unit: unit.to_owned(),
                source: figures.channel.source,
                value: figures.mean?,
            })
        };
        Present { watts, celsius, channels: window.figures.iter().filter_map(reading).collect() }
    }
}

/// Combines the meters' figures: power is added up, temperature is the maximum, other figures come from the first
/// meter.
fn add_up(window: &Window, meters: &[String]) -> Draw {
    let first = |name| meters.iter().find_map(|meter| window.first(meter, name)?.mean);
    let has_power = |meter: &&String| {
        let power = |f: &&Figures| matches!(f.channel.quantity, Quantity::Power | Quantity::Energy { .. });
        window.figures.iter().filter(power).any(|f| f.meter == **meter)
    };
    let temperatures = window.figures.iter().filter(|f| f.channel.quantity == Quantity::Temperature);
    let mut draw = Draw {
        volts: first("voltage"),
        amps: first("current"),
        celsius: temperatures.filter_map(|f| f.mean).max_by(f64::total_cmp),
        meters: meters.join(","),
        ..Draw::default()
    };
    // A sum without one of its parts would be wrong: then there is none.
    let parts: Option<Vec<_>> = meters.iter().filter(has_power).map(|meter| window.energy(meter)).collect();
    for part in parts.unwrap_or_default() {
        draw.watts = Some(draw.watts.unwrap_or(0.0) + part.power.0);
        draw.source = draw.source.max(Some(part.source));
        draw.coverage = Some(draw.coverage.map_or(part.coverage, |least| least.min(part.coverage)));
    }
    draw
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(at: &str, trace: &Path) -> Order {
        Order {
            place: Place { at: at.into(), size_bytes: 1 << 20, overwrite: false },
            workload: Workload::Synthetic { size: 4096, random: 50, reads: 50 },
            intensity: Intensity::Peak { depth: 4 },
            length: Duration::from_millis(50),
            seed: 1,
            trace: Some(trace.to_owned()),
            collector: Collector::Blktrace,
            interval: Duration::from_secs(60),
        }
    }

    #[test]
    fn a_collector_that_cannot_is_said_with_what_can() {
        let dir = tempfile::tempdir().unwrap();
        let at = format!("file:{}", dir.path().join("data").display());
        let trace = dir.path().join("t.replay.0");
        let error = LocalGenerator::new(None).unwrap().run(&order(&at, &trace), &mut |_| {}).unwrap_err();
        assert!(matches!(&error, RunError::Lost(why) if why.contains("the program collects")), "{error}");
        assert!(!trace.exists());
    }

    #[test]
    fn what_the_kernel_recorded_becomes_the_trace_that_levels_replay() {
        use ebb_trace::{BlktraceWriter, Kind, TraceWriter};
        let dir = tempfile::tempdir().unwrap();
        let files = ["0", "1"].map(|cpu| dir.path().join(format!("r.blktrace.{cpu}")));
        for (cpu, file) in files.iter().enumerate() {
            let mut writer = BlktraceWriter::new(std::fs::File::create(file).unwrap());
            for at in [0, 20, 5000] {
                let at = Duration::from_micros(at + cpu as u64);
                writer.write(&Request { at, device: 0, offset: 4096, len: 512, kind: Kind::Read }).unwrap();
            }
            writer.finish().unwrap();
        }
        let trace = dir.path().join("deep/t.replay.0");
        keep_recorded(&files, &order("/dev/x", &trace)).unwrap();
        let kept: Vec<Request> = super::trace(&trace, 0).unwrap().map(|request| request.unwrap()).collect();
        let bunches: std::collections::BTreeSet<Duration> = kept.iter().map(|request| request.at).collect();
        assert_eq!((kept.len(), bunches.len()), (6, 2), "those of 100 us are one bunch");
        assert!(files.iter().all(|file| !file.exists()));
    }
}
