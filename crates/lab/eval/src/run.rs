//! Runs a matrix: finds each workload's peak, then runs its levels, and stores every result as soon as it is available.
//! The first level is 100 %: the load of all others is their throughput by that run's, both measured [TRACER §VI.B].
//!
//! Resumption needs no code of its own: runs with a row are skipped, the others are run. A lane waits until its result
//! is durable before it continues, so that writing one result does not disturb the next run.

use super::evidence::Evidence;
use super::idle::{self, Idle};
use super::matrix::{Matrix, Target};
use super::order::{
    Analyzer, Draw, Generator, Intensity, Interval, Live, Machine, Order, Performance, Place, Present,
    RunError,
};
use super::plan::{Cell, cells, lanes};
use super::procedure::Phase;
use super::record::{Full, Peak, Record};
use super::store::{RunKey, Store, StoreError};
use super::workload::Workload;
use ebb_output::Latency;
use ebb_types::Moment;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

mod phases;

/// The load of a procedure's phases: as much as the target answers.
const PHASE_LOAD: f64 = 100.0;
/// After this many consecutive failures a target is given up: it would fail all night.
const FAILURES_MAX: u32 = 5;

/// Generator and analyzer for a target.
pub struct Bench {
    pub generator: Box<dyn Generator>,
    /// `None`: no power is read.
    pub analyzer: Option<Box<dyn Analyzer>>,
}

/// Progress of an evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Progress {
    /// Runs that have a result, including earlier ones.
    pub done: u64,
    pub failed: u64,
    pub total: u64,
    /// The run that has just begun.
    pub present: String,
    /// Estimated time for the remaining runs.
    pub left: Duration,
    /// The present run, where it can be watched.
    pub live: Option<Watched>,
}

/// The present run as its target and its meters show it now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Watched {
    #[serde(flatten)]
    pub live: Live,
    #[serde(flatten)]
    pub meters: Present,
    /// `None`: a peak run.
    pub load_percent: Option<f64>,
    /// IOPS by those of the replay at 100 %, where that is known.
    pub achieved_percent: Option<f64>,
}

/// How an evaluation ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    pub total: u64,
    /// Runs that already had a result.
    pub found: u64,
    /// Runs that got a result now.
    pub done: u64,
    /// The targets that were given up, with the reason.
    pub lost: Vec<String>,
    /// Peak runs whose trace was gone, and which were done again.
    pub collected_again: Vec<String>,
    pub failed: u64,
}

impl Outcome {
    /// Every run has a result.
    pub fn complete(&self) -> bool {
        self.found + self.done == self.total
    }
}

/// Creates the generator and analyzer of a target.
pub type Benches<'a> = dyn Fn(&Target) -> Result<Bench, RunError> + Sync + 'a;

/// Runs everything that `store` has no result of. `benches` is called once per target.
pub fn run(
    matrix: &Matrix,
    mut store: Store,
    benches: &Benches<'_>,
    tell: &mut (dyn FnMut(&Progress) + Send),
) -> Result<Outcome, StoreError> {
    store.begin(matrix)?;
    let done = store.done(&matrix.name)?;
    let missing = |targets: &Vec<usize>| -> Vec<Work> {
        let work = targets.iter().map(|&target| Work::missing(matrix, target, &done));
        work.filter(|work| work.runs() > 0).collect()
    };
    let lanes: Vec<Vec<Work>> = lanes(matrix).iter().map(missing).collect();
    let runs = |lane: &[Work]| lane.iter().map(Work::runs).sum::<usize>();
    let total = matrix.runs();
    let found = total - lanes.iter().map(|lane| runs(lane) as u64).sum::<u64>();
    let first_guess = matrix.settings.run_seconds + matrix.settings.settle_seconds;
    let shared = Mutex::new(Shared {
        store,
        progress: Progress { done: found, total, ..Progress::default() },
        outcome: Outcome { total, found, ..Outcome::default() },
        left: lanes.iter().map(|lane| Duration::from_secs_f64(first_guess * runs(lane) as f64)).collect(),
        tell,
        stop: false,
    });
    let ended: Result<(), StoreError> = std::thread::scope(|scope| {
        let lane = |(number, work): (usize, &Vec<Work>)| {
            let lane = Lane { number, matrix, shared: &shared, missing: runs(work), started: Instant::now() };
            let work = work.clone();
            scope.spawn(move || lane.run(&work, benches))
        };
        let started: Vec<_> = lanes.iter().enumerate().map(lane).collect();
        started.into_iter().try_for_each(|lane| lane.join().expect("a lane ends with a result"))
    });
    ended?;
    Ok(shared.into_inner().expect("no lane panicked").outcome)
}

/// What is missing of a target.
#[derive(Clone)]
struct Work {
    target: usize,
    idle: Vec<Idle>,
    phases: Vec<Phase>,
    cells: Vec<Cell>,
}

impl Work {
    fn missing(matrix: &Matrix, target: usize, done: &HashSet<RunKey>) -> Work {
        let name = &matrix.targets[target].name;
        let mut idle = Idle::all(matrix, &matrix.targets[target]);
        idle.retain(|idle| !done.contains(&(name.clone(), idle.name(), 0f64.to_bits(), idle.repetition)));
        let cells = cells(matrix, &[target]).filter(|cell| !done.contains(&key(matrix, cell))).collect();
        let mut phases = matrix.phases();
        phases.retain(|phase| !done.contains(&(name.clone(), phase.name.into(), PHASE_LOAD.to_bits(), 1)));
        Work { target, idle, phases, cells }
    }

    fn runs(&self) -> usize {
        self.idle.len() + self.phases.len() + self.cells.len()
    }
}

/// Identifies a run in the results.
fn key(matrix: &Matrix, cell: &Cell) -> RunKey {
    let (target, workload) = (&matrix.targets[cell.target].name, matrix.workloads[cell.workload].name());
    (target.clone(), workload, matrix.levels[cell.level].to_bits(), cell.repetition)
}

/// State shared by the lanes.
struct Shared<'a> {
    store: Store,
    progress: Progress,
    outcome: Outcome,
    /// Estimated remaining time of each lane.
    left: Vec<Duration>,
    tell: &'a mut (dyn FnMut(&Progress) + Send),
    /// Results cannot be stored: all lanes stop.
    stop: bool,
}

/// Runs that are carried out one after another.
struct Lane<'a, 'b> {
    number: usize,
    matrix: &'a Matrix,
    shared: &'a Mutex<Shared<'b>>,
    missing: usize,
    started: Instant,
}

impl<'b> Lane<'_, 'b> {
    fn lock(&self) -> MutexGuard<'_, Shared<'b>> {
        self.shared.lock().expect("no lane panicked")
    }

    fn run(&self, work: &[Work], benches: &Benches<'_>) -> Result<(), StoreError> {
        let mut before = 0;
        for work in work {
            let outcome = self.target(work, before, benches);
            if outcome.is_err() {
                self.lock().stop = true;
                return outcome;
            }
            before += work.runs();
        }
        Ok(())
    }

    /// The runs on one target; `before`: runs of this lane before them.
    fn target(&self, work: &Work, before: usize, benches: &Benches<'_>) -> Result<(), StoreError> {
        let target = &self.matrix.targets[work.target];
        let place = self.place(target)?;
        let mut bench = match benches(target) {
            Ok(bench) => bench,
            Err(error) => return self.give_up(target, &error),
        };
        // First, while nothing has the target open.
        if let Err(error) = self.idle(&mut bench, target, work, before)? {
            return self.give_up(target, &error);
        }
        if work.cells.is_empty() && work.phases.is_empty() {
            return Ok(());
        }
        let machine = match bench.generator.prepare(&place) {
            Ok(machine) => machine,
            Err(error) => return self.give_up(target, &error),
        };
        self.phases(&mut bench, (target, &place, &machine), work, before)?;
        let (mut done, mut failures) = (before + work.idle.len() + work.phases.len(), 0);
        for of_workload in work.cells.chunk_by(|a, b| a.workload == b.workload) {
            let workload = &self.matrix.workloads[of_workload[0].workload];
            self.show(done, &format!("{} {}: peak rate", target.name, workload.name()));
            let trace = self.trace(target, workload, &machine);
            let again = self.trace_is_gone(&mut bench, target, workload, trace.as_ref())?;
            let peak = self.peak(&mut bench, &place, target, workload, trace.as_ref(), again)?;
            let mut failed_full: Option<String> = None;
            let mut full = self.lock().store.full(&self.matrix.name, &target.name, &workload.name())?;
            // Another trace needs another reference.
            let reference = Cell { level: 0, repetition: 1, ..of_workload[0] };
            let extra = (again && full.take().is_some()).then_some(reference);
            for cell in extra.iter().chain(of_workload) {
                if self.lock().stop {
                    return Ok(());
                }
                let percent = self.matrix.levels[cell.level];
                self.show(done, &format!("{} {} at {percent} %", target.name, workload.name()));
                let mut record = self.blank(cell, SystemTime::now(), &machine);
                let measured = peak.clone().and_then(|peak| {
                    if full.is_none() && !is_reference(cell) {
                        let why = "the replay at 100 %, which the load is measured against, failed";
                        return Err(RunError::Failed(with_first(why.into(), failed_full.as_slice())));
                    }
                    Ok((self.measure(&mut bench, &place, cell, trace.as_ref(), full)?, peak))
                });
                let filled = measured.map(|((performance, draw), peak)| {
                    fill(&mut record, &performance, &draw, &peak, target);
                    let whole = *full.get_or_insert_with(|| Full::of(&record));
                    record.load_percent_iops = share(record.iops, whole.iops);
                    record.load_percent_bytes = share(record.mb_per_second, whole.mb_per_second);
                    performance.series
                });
                record.error = filled.as_ref().err().map(ToString::to_string);
                if is_reference(cell) {
                    failed_full.clone_from(&record.error);
                }
                let repeated = extra.as_ref().is_some_and(|extra| extra == cell);
                done += usize::from(!repeated);
                self.add(&record, filled.as_deref().unwrap_or_default(), repeated)?;
                failures = if filled.is_err() { failures + 1 } else { 0 };
                match filled.err() {
                    Some(error) if failures == FAILURES_MAX || matches!(error, RunError::Lost(_)) => {
                        return self.give_up(target, &error);
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// The idle runs of a target.
    fn idle(
        &self,
        bench: &mut Bench,
        target: &Target,
        work: &Work,
        before: usize,
    ) -> Result<Result<(), RunError>, StoreError> {
        let settings = &self.matrix.settings;
        let (Some(analyzer), Some(length)) = (&mut bench.analyzer, settings.idle_seconds) else {
            return Ok(Ok(()));
        };
        let settle = Duration::from_secs_f64(settings.settle_seconds);
        for (at, &idle) in work.idle.iter().enumerate() {
            self.show(before + at, &format!("{} {}", target.name, idle.name()));
            let mut record = Record {
                target: target.name.clone(),
                workload: idle.name(),
                repetition: idle.repetition,
                filter: settings.filter.name().into(),
                program_version: env!("CARGO_PKG_VERSION").into(),
                ..self.row(SystemTime::now(), &Machine::default())
            };
            match idle::measure(target, idle, settle, Duration::from_secs_f64(length), analyzer.as_mut()) {
                Ok(draw) => {
                    record.length_seconds = Some(length);
                    fill_power(&mut record, &draw, length, target);
                }
                Err(error @ RunError::Lost(_)) => return Ok(Err(error)),
                Err(error) => record.error = Some(error.to_string()),
            }
            self.add(&record, &[], false)?;
        }
        Ok(Ok(()))
    }

    /// Whether a workload's peak is known and its trace is not there any more: then both are made again.
    fn trace_is_gone(
        &self,
        bench: &mut Bench,
        target: &Target,
        workload: &Workload,
        trace: Option<&PathBuf>,
    ) -> Result<bool, StoreError> {
        let (campaign, name) = (&self.matrix.name, workload.name());
        let Some(trace) = trace else { return Ok(false) };
        if self.lock().store.peak(campaign, &target.name, &name)?.is_none() {
            return Ok(false);
        }
        // If it cannot be asked, the run will say why.
        let gone = bench.generator.holds(trace).is_ok_and(|holds| !holds);
        if gone {
            let text = format!("{} {name}: the trace of its peak run was gone", target.name);
            self.lock().outcome.collected_again.push(text);
        }
        Ok(gone)
    }

    /// A target that this campaign has written to before may be written to again.
    fn place(&self, target: &Target) -> Result<Place, StoreError> {
        let overwrite = target.overwrite || self.lock().store.has_written(&self.matrix.name, &target.name)?;
        Ok(Place { at: target.at.clone(), size_bytes: target.size_bytes, overwrite })
    }

    /// Where the trace of a synthetic workload's peak run is kept: `CAMPAIGN/TARGET/MEDIUM-SIZE-RANDOM-READ.replay.0`,
    /// named by device type, request size, random and read ratio [TRACER §III.A].
    fn trace(&self, target: &Target, workload: &Workload, machine: &Machine) -> Option<PathBuf> {
        if matches!(workload, Workload::Trace { .. }) {
            return None;
        }
        // An agent has its own directory of traces.
        let depository =
            if target.generator.is_some() { PathBuf::new() } else { self.matrix.depository.clone() };
        let name = format!("{}-{}.replay.0", machine.medium, workload.name());
        Some(depository.join(&self.matrix.name).join(&target.name).join(name))
    }

    /// The workload's peak: known already, or measured and stored, with its trace.
    fn peak(
        &self,
        bench: &mut Bench,
        place: &Place,
        target: &Target,
        workload: &Workload,
        trace: Option<&PathBuf>,
        again: bool,
    ) -> Result<Result<Peak, RunError>, StoreError> {
        let (campaign, name) = (&self.matrix.name, workload.name());
        if let Some(peak) = self.lock().store.peak(campaign, &target.name, &name)?.filter(|_| !again) {
            return Ok(Ok(peak));
        }
        let settings = &self.matrix.settings;
        let seconds = match workload {
            Workload::Trace { .. } => settings.run_seconds,
            _ => settings.peak_seconds,
        };
        let intensity = Intensity::Peak { depth: settings.depth };
        let order = self.order(place, workload, intensity, seconds, trace);
        let show =
            |live, meters| self.watch(Watched { live, meters, load_percent: None, achieved_percent: None });
        let performance = match seen(bench, &order, &show) {
            Ok(performance) => performance,
            Err(error) => return Ok(Err(error)),
        };
        let Some(peak) = peak_of(&performance) else {
            let why = format!("no peak rate: none of {} requests succeeded", performance.failed);
            return Ok(Err(RunError::Failed(with_first(why, &performance.errors))));
        };
        self.lock().store.add_peak(campaign, &target.name, &name, &peak)?;
        Ok(Ok(peak))
    }

    fn order(
        &self,
        place: &Place,
        workload: &Workload,
        intensity: Intensity,
        seconds: f64,
        trace: Option<&PathBuf>,
    ) -> Order {
        Order {
            place: place.clone(),
            workload: workload.clone(),
            intensity,
            length: Duration::from_secs_f64(seconds),
            seed: self.matrix.settings.seed,
            trace: trace.cloned(),
            collector: self.matrix.settings.collector,
            interval: Duration::from_secs(self.matrix.settings.interval_seconds.into()),
        }
    }

    /// One run, with the power drawn during it.
    fn measure(
        &self,
        bench: &mut Bench,
        place: &Place,
        cell: &Cell,
        trace: Option<&PathBuf>,
        full: Option<Full>,
    ) -> Result<(Performance, Draw), RunError> {
        let (settings, workload) = (&self.matrix.settings, &self.matrix.workloads[cell.workload]);
        let percent = self.matrix.levels[cell.level];
        let intensity = Intensity::Level { percent, filter: settings.filter };
        let order = self.order(place, workload, intensity, settings.run_seconds, trace);
        let show = |live: Live, meters| {
            let achieved_percent = share(Some(live.iops), full.and_then(|full| full.iops));
            self.watch(Watched { live, meters, load_percent: Some(percent), achieved_percent });
        };
        std::thread::sleep(Duration::from_secs_f64(settings.settle_seconds));
        metered(bench, &order, &show)
    }

    /// A row without figures.
    fn blank(&self, cell: &Cell, started: SystemTime, machine: &Machine) -> Record {
        let (target, workload, _, repetition) = key(self.matrix, cell);
        Record {
            target,
            workload,
            load_percent: self.matrix.levels[cell.level],
            repetition,
            filter: self.matrix.settings.filter.name().into(),
            ..self.row(started, machine)
        }
    }

    fn row(&self, started: SystemTime, machine: &Machine) -> Record {
        let Machine { host, kernel, cpu, device, program_version, .. } = machine.clone();
        Record {
            campaign: self.matrix.name.clone(),
            started_unix_millis: unix_millis(started),
            host,
            kernel,
            cpu,
            device,
            program_version,
            ..Record::default()
        }
    }

    /// Stores a result; one that is `repeated` had one before, and is not counted.
    fn add(&self, record: &Record, series: &[Interval], repeated: bool) -> Result<(), StoreError> {
        let mut shared = self.lock();
        shared.store.add(record, series)?;
        if repeated && record.error.is_none() {
            return Ok(());
        }
        if record.error.is_none() {
            shared.outcome.done += 1;
            shared.progress.done += 1;
        } else {
            shared.outcome.failed += 1;
            shared.progress.failed += 1;
        }
        Ok(())
    }

    fn give_up(&self, target: &Target, error: &RunError) -> Result<(), StoreError> {
        let mut shared = self.lock();
        shared.left[self.number] = Duration::ZERO;
        shared.outcome.lost.push(format!("{}: {error}", target.name));
        Ok(())
    }

    /// Shows the present run.
    fn watch(&self, watched: Watched) {
        let mut shared = self.lock();
        shared.progress.live = Some(watched);
        let progress = shared.progress.clone();
        (shared.tell)(&progress);
    }

    /// `done`: number of runs that this lane has finished.
    fn show(&self, done: usize, present: &str) {
        let mut shared = self.lock();
        let rest = (self.missing - done) as f64;
        if done > 0 {
            let each = self.started.elapsed().as_secs_f64() / done as f64;
            shared.left[self.number] = Duration::from_secs_f64(each * rest);
        }
        shared.progress.left = shared.left.iter().copied().max().unwrap_or_default();
        shared.progress.present = present.to_owned();
        shared.progress.live = None;
        let progress = shared.progress.clone();
        (shared.tell)(&progress);
    }
}

/// An order, with the power drawn while it is carried out.
fn metered(
    bench: &mut Bench,
    order: &Order,
    show: &dyn Fn(Live, Present),
) -> Result<(Performance, Draw), RunError> {
    let offset = match &mut bench.analyzer {
        Some(analyzer) => Some(analyzer.clock_offset()? - bench.generator.clock_offset()?),
        None => None,
    };
    let performance = seen(bench, order, show)?;
    let draw = match bench.analyzer.as_mut().zip(offset) {
        Some((analyzer, offset)) => {
            let moved = |moment: Moment| Moment(moment.0.saturating_add_signed(offset));
            analyzer.draw(moved(performance.from), moved(performance.to))?
        }
        None => Draw::default(),
    };
    Ok((performance, draw))
}

/// An order that shows its meters while it is carried out.
fn seen(bench: &mut Bench, order: &Order, show: &dyn Fn(Live, Present)) -> Result<Performance, RunError> {
    let Bench { generator, analyzer } = bench;
    analyzer.iter_mut().try_for_each(|analyzer| analyzer.mark())?;
    let mut present = || analyzer.as_mut().map_or_else(Present::default, |analyzer| analyzer.present());
    generator.run(order, &mut |live| show(live, present()))
}

/// What a run in closed loop reached; `None`: no request succeeded.
fn peak_of(performance: &Performance) -> Option<Peak> {
    let seconds = performance.length().as_secs_f64();
    (performance.requests > 0 && seconds > 0.0).then(|| Peak {
        iops: performance.requests as f64 / seconds,
        mb_per_second: performance.bytes as f64 / 1e6 / seconds,
        request_bytes: performance.request_bytes,
        random_percent: performance.random_percent,
        read_percent: performance.read_percent,
    })
}

/// Whether this run is the one that its workload's other runs are compared with.
fn is_reference(cell: &Cell) -> bool {
    cell.level == 0 && cell.repetition == 1
}

fn share(part: Option<f64>, whole: Option<f64>) -> Option<f64> {
    Some(100.0 * part? / whole.filter(|&whole| whole > 0.0)?)
}

fn with_first(why: String, errors: &[String]) -> String {
    errors.first().map_or(why.clone(), |first| format!("{why}: {first}"))
}

/// The figures of a run.
fn fill(record: &mut Record, performance: &Performance, draw: &Draw, peak: &Peak, target: &Target) {
    let seconds = performance.length().as_secs_f64();
    let (iops, mb_per_second) =
        (performance.requests as f64 / seconds, performance.bytes as f64 / 1e6 / seconds);
    let latency = |part: fn(&Latency) -> f64| performance.latency.as_ref().map(part);
    record.request_bytes = Some(peak.request_bytes);
    record.random_percent = Some(peak.random_percent);
    record.read_percent = Some(peak.read_percent);
    record.length_seconds = Some(seconds);
    record.requests = Some(performance.requests);
    record.bytes = Some(performance.bytes);
    record.failed_requests = Some(performance.failed);
    record.iops = Some(iops);
    record.mb_per_second = Some(mb_per_second);
    record.latency_mean_millis = latency(|l| l.mean_millis);
    record.latency_p50_millis = latency(|l| l.p50_millis);
    record.latency_p90_millis = latency(|l| l.p90_millis);
    record.latency_p99_millis = latency(|l| l.p99_millis);
    record.latency_p999_millis = latency(|l| l.p999_millis);
    record.latency_max_millis = latency(|l| l.max_millis);
    record.lateness_p99_millis = performance.lateness_p99_millis;
    record.queue_p99_millis = performance.queue_p99_millis;
    fill_power(record, draw, seconds, target);
    // A draw of zero has no efficiency.
    if let Some(watts) = record.watts {
        record.iops_per_watt = Some(iops / watts);
        record.mb_per_second_per_kilowatt = Some(mb_per_second / (watts / 1e3));
        record.joules_per_io = (iops > 0.0).then(|| watts / iops);
    }
}

/// What the meters say of a run that lasted `seconds`.
fn fill_power(record: &mut Record, draw: &Draw, seconds: f64, target: &Target) {
    record.volts = draw.volts;
    record.amps = draw.amps;
    record.temperature_celsius = draw.celsius;
    record.meters = (!draw.meters.is_empty()).then(|| draw.meters.clone());
    record.meter_coverage = draw.coverage;
    if let Some(watts) = draw.watts.filter(|&watts| watts > 0.0) {
        record.watts = Some(watts);
        record.watts_source = draw.source.map(|source| source.name().into());
        record.joules = Some(watts * seconds);
        let known = target.instrumented.unwrap_or_default();
        record.evidence = draw.source.map(|source| Evidence::of(source, draw.coverage, &known).to_string());
    }
}

fn unix_millis(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64)
}

#[cfg(test)]
mod tests;
