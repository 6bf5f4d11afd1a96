//! The run: prepare, replay in open loop, settle, compare, clean up.
//!
//! A prelude is replayed in the same run, without a pause before the rest: it is the engine's warm-up, and what is
//! observed begins anew when it ends. Hours of the schedule count from the start of the trace.

use super::energy::{Account, EnergyReport, Member};
use super::observe::{Observer, Stretches};
use super::options::{Progress, ReplayError, ReplayOptions};
use super::report::{
    AlwaysOnReport, Behind, GearLatency, HourReport, KindLatency, LatencyReport, OffloadReport,
    PreludeReport, ReplayReport, StretchLatency, TraceReport, VolumeReport,
};
use super::target::{Target, TargetError};

use crate::drive::engine::{
    self, Answered, Answering, Check, Course, Failure, Feed, Placer, Shared, Span, Storage,
};
use crate::drive::{DriveError, DriveOptions, DriveReport, Pacing, TargetInfo};
use bytes::Bytes;
use ebb_bench::content::Content;
use ebb_gear::{LoadSeries, rehearsal};
use ebb_trace::{Kind, Request, Trace};
use ebb_types::{
    AdminReply, AdminRequest, BLOCK_BYTES, ChunkId, ClusterStatus, GearMode, GearSteps, GearWish, HourRecord,
    NO_GEAR, ObjectId, PoolId, Schedule, ServerId, ServerStatus, ShiftRecord,
};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// The status is read ten times per hour, but not more often than this.
const STATUS_PAUSE: Duration = Duration::from_millis(50);
const STATUS_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Recorded hours are fetched this often: the metadata service keeps a few hundred.
const HOURS_PER_FETCH: u32 = 100;
/// Concurrent deletions.
const DELETIONS: usize = 16;

fn cluster(what: &'static str) -> impl Fn(TargetError) -> ReplayError {
    move |error| ReplayError::Cluster { what, error }
}

async fn status<T: Target>(target: &T) -> Result<ClusterStatus, TargetError> {
    match target.admin(AdminRequest::Status).await? {
        AdminReply::Status(status) => Ok(*status),
        other => Err(TargetError(format!("unexpected reply: {other:?}"))),
    }
}

async fn command<T: Target>(target: &T, request: AdminRequest) -> Result<(), TargetError> {
    target.admin(request).await.map(drop)
}

fn drive_options(options: &ReplayOptions) -> DriveOptions {
    DriveOptions {
        pacing: Pacing::Times { speed: options.speed },
        in_flight: options.in_flight,
        halt: options.halt.clone(),
        ..DriveOptions::default()
    }
}

fn check(options: &ReplayOptions, trace: &Trace) -> Result<(), ReplayError> {
    drive_options(options).check()?;
    if trace.requests.is_empty() {
        return Err(ReplayError::Empty);
    }
    Ok(options.power.check()?)
}

/// Facts that are fixed before anything is written.
struct Setting {
    before: ClusterStatus,
    schedule: Schedule,
    /// Of what is measured.
    load: LoadSeries,
    provisioned: Option<u32>,
    /// Hours of the schedule that are replayed first.
    prelude: u32,
}

impl Setting {
    fn new(options: &ReplayOptions, trace: &Trace, before: ClusterStatus) -> Result<Setting, ReplayError> {
        let mut schedule = rehearsal(&before.schedule, options.speed)?;
        schedule.steps = options.steps.unwrap_or(schedule.steps);
        let (replicas, chunk_bytes) = (before.params.replicas, before.params.chunk_bytes);
        let mut load = LoadSeries::new(trace.loads(chunk_bytes)?, options.speed, &schedule, replicas)?;
        let servers = before.servers.iter().filter(|server| is_geared(server)).count() as u32;
        let provision = |provision| load.provision(&mut schedule, provision, servers, &[]);
        let provisioned = options.provision.map(provision).transpose()?;
        let (hours, prelude) = (options.prelude, load.hour * options.prelude);
        if hours > 0 {
            if trace.span() < prelude {
                return Err(ReplayError::Prelude { hours, span: trace.span().as_secs_f64() / 3600.0 });
            }
            let rest = trace.loads(chunk_bytes)?.filter(|(at, _)| *at >= prelude);
            let rest = rest.map(|(at, count)| (at - prelude, count));
            load = LoadSeries::new(rest, options.speed, &schedule, replicas)?;
        }
        Ok(Setting { before, schedule, load, provisioned, prelude: hours })
    }

    fn hour(&self) -> Duration {
        Duration::from_millis(self.schedule.hour_millis)
    }

    /// In trace time.
    fn prelude(&self) -> Duration {
        self.load.hour * self.prelude
    }
}

/// The server is of the replicated pool, whose servers take the load and shift gears.
fn is_geared(server: &ServerStatus) -> bool {
    server.pool == PoolId::REPLICATED && !server.logger
}

/// See [`super::replay`].
pub(crate) async fn run<T: Target>(
    options: &ReplayOptions,
    trace: &Arc<Trace>,
    target: T,
    progress: &mut dyn FnMut(Progress),
) -> Result<ReplayReport, ReplayError> {
    check(options, trace)?;
    let before = status(&target).await.map_err(cluster("read the cluster's status"))?;
    let setting = Setting::new(options, trace, before)?;
    let result = run_both(options, trace, &setting, &target, progress).await;
    let restored = restore(&target, &setting.before).await;
    let mut report = result?;
    if let Err(error) = restored {
        report.notes.push(format!("the cluster's schedule could not be restored: {error}"));
    }
    Ok(report)
}

/// Restores the schedule and the mode.
async fn restore<T: Target>(target: &T, before: &ClusterStatus) -> Result<(), TargetError> {
    command(target, AdminRequest::SetSchedule(before.schedule)).await?;
    let mode = match before.gear.mode {
        GearMode::Auto => AdminRequest::GearAuto,
        GearMode::Manual if before.gear.steps == GearSteps::Groups => {
            AdminRequest::GearSet(GearWish::Gear(before.gear.gear))
        }
        GearMode::Manual => AdminRequest::GearSet(GearWish::Servers(before.gear.servers)),
    };
    command(target, mode).await
}

async fn run_both<T: Target>(
    options: &ReplayOptions,
    trace: &Arc<Trace>,
    setting: &Setting,
    target: &T,
    progress: &mut dyn FnMut(Progress),
) -> Result<ReplayReport, ReplayError> {
    let (mut report, stretches) =
        run_on(options, trace, setting, Gears::Automatic, target.clone(), progress).await?;
    // What is wrong already is looked at as it is.
    if options.beside_always_on && report.passed() && !options.halt.is_set() {
        let always_on = Gears::AlwaysOn(stretches);
        let (beside, _) = run_on(options, trace, setting, always_on, target.clone(), progress).await?;
        let passed = beside.passed();
        report.volumes.extend(beside.volumes);
        report.notes.extend(beside.notes);
        let (performance, behind, latency) = (beside.performance, beside.behind, beside.latency.stretches);
        report.always_on = Some(AlwaysOnReport { performance, behind, latency, passed });
    }
    Ok(report)
}

/// Who chooses the gear during a run.
enum Gears {
    /// The cluster.
    Automatic,
    /// All servers stay awake. Latencies are by the stretches of a run before, to which this one is compared.
    AlwaysOn(Stretches),
}

/// Also returns the stretches that its latencies are by.
async fn run_on<T: Target>(
    options: &ReplayOptions,
    trace: &Arc<Trace>,
    setting: &Setting,
    gears: Gears,
    target: T,
    progress: &mut dyn FnMut(Progress),
) -> Result<(ReplayReport, Stretches), ReplayError> {
    let all_awake = AdminRequest::GearSet(GearWish::Gear(setting.before.params.replicas));
    command(&target, all_awake.clone()).await.map_err(cluster("wake all servers"))?;
    let first = target.create(sizes(trace)).await.map_err(cluster("create volumes"))?;
    let mut check = Check::default();
    for (index, name) in trace.devices.iter().enumerate() {
        check.add_device(ObjectId(first.0 + index as u64), name.clone(), Content::Zero);
    }
    let storage: Arc<dyn Storage> = Arc::new(Volumes { target: target.clone(), first });
    let prepared_bytes = prepare(&storage, trace, &mut check, progress).await?;
    let schedule = begin(&target, setting, &gears).await.map_err(cluster("set the schedule"))?;

    let mut run = Run::new(options, trace, target.clone(), setting);
    let mut performance = run.replay(&storage, &mut check, progress).await?;
    command(&target, all_awake).await.map_err(cluster("wake all servers"))?;
    let settled = run.settle(progress).await?;
    progress(Progress::Comparing);
    check.finish(&storage, &mut performance).await?;
    run.fetch_hours().await;
    let shifts = run.shifts(schedule.hour_zero_unix_millis).await;
    let comparison =
        if settled { Some(target.compare().await.map_err(cluster("compare the replicas"))?) } else { None };
    let stretches = match gears {
        Gears::Automatic => Stretches::of(&run.seen.changes),
        Gears::AlwaysOn(stretches) => stretches,
    };
    let mut report = run.report(setting, performance, &stretches, shifts)?;
    (report.schedule, report.prepared_bytes, report.comparison) = (schedule, prepared_bytes, comparison);
    let keep = !report.passed();
    report.volumes = volumes(trace, first, keep);
    if let Err(error) = target.close(keep).await {
        report.notes.push(format!("the volumes could not all be closed: {error}"));
    }
    if !keep {
        let failed = delete(&target, trace, first, setting.before.params.chunk_bytes).await;
        report.notes.extend(failed.map(|error| format!("the volumes could not all be deleted: {error}")));
    }
    Ok((report, stretches))
}

/// The size of each device's volume: up to the last byte touched, in whole blocks.
fn sizes(trace: &Trace) -> Vec<u64> {
    let end = |ranges: &BTreeMap<u64, u64>| ranges.values().copied().max().unwrap_or(1);
    let block = BLOCK_BYTES as u64;
    trace.touched_ranges().iter().map(|ranges| end(ranges).next_multiple_of(block)).collect()
}

/// The volumes of a trace's devices, as storage.
struct Volumes<T> {
    target: T,
    first: ObjectId,
}

impl<T: Target> Storage for Volumes<T> {
    fn read(&self, device: u32, offset: u64, len: u32) -> Answering<'_, Bytes> {
        let volume = ObjectId(self.first.0 + u64::from(device));
        let read = self.target.read(volume, offset, len.into());
        Box::pin(async move { read.await.map_err(|error| Failure::Request(error.0)) })
    }

    fn write(&self, device: u32, offset: u64, payload: Bytes) -> Answering<'_, ()> {
        let volume = ObjectId(self.first.0 + u64::from(device));
        let written = self.target.write(volume, offset, payload);
        Box::pin(async move { written.await.map_err(|error| Failure::Request(error.0)) })
    }
}

fn volumes(trace: &Trace, first: ObjectId, kept: bool) -> Vec<VolumeReport> {
    let volume = |(index, device): (usize, &String)| VolumeReport {
        device: device.clone(),
        object: first.0 + index as u64,
        kept,
    };
    trace.devices.iter().enumerate().map(volume).collect()
}

/// Writes the data that the trace reads. Returns the number of bytes.
async fn prepare(
    storage: &Arc<dyn Storage>,
    trace: &Trace,
    check: &mut Check,
    progress: &mut dyn FnMut(Progress),
) -> Result<u64, ReplayError> {
    let devices = trace.read_ranges().into_iter().enumerate();
    let spans: Vec<Span> = devices
        .flat_map(|(volume, ranges)| {
            ranges.into_iter().map(move |(start, end)| Span { volume, bytes: start..end })
        })
        .collect();
    let of = spans.iter().map(|span| span.bytes.end - span.bytes.start).sum();
    let prepared =
        check.prepare(storage, &spans, &mut |bytes| progress(Progress::Preparing { bytes, of })).await;
    prepared.map_err(|failure| {
        let (Failure::Request(error) | Failure::Lost(error)) = failure;
        ReplayError::Cluster { what: "write what the trace reads", error: TargetError(error) }
    })
}

/// Sets the schedule, whose hours and days begin now, with the trace, and lets the cluster choose its gear if it may.
/// The cluster forgets its hours: those of other loads are not comparable.
async fn begin<T: Target>(target: &T, setting: &Setting, gears: &Gears) -> Result<Schedule, TargetError> {
    let unix_millis = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let schedule = Schedule { hour_zero_unix_millis: unix_millis, ..setting.schedule };
    command(target, AdminRequest::SetSchedule(schedule)).await?;
    if matches!(gears, Gears::Automatic) {
        command(target, AdminRequest::GearAuto).await?;
    }
    Ok(schedule)
}

/// Deletes the chunks of all volumes. Returns the first error.
async fn delete<T: Target>(
    target: &T,
    trace: &Trace,
    first: ObjectId,
    chunk_bytes: u32,
) -> Option<TargetError> {
    let chunk_bytes = u64::from(chunk_bytes);
    let mut chunks = BTreeSet::new();
    for (volume, ranges) in trace.touched_ranges().into_iter().enumerate() {
        let object = ObjectId(first.0 + volume as u64);
        for (start, end) in ranges {
            let indices = start / chunk_bytes..end.div_ceil(chunk_bytes);
            chunks.extend(indices.map(|index| ChunkId { object, index: index as u32 }));
        }
    }
    let (mut deletions, mut chunks, mut failed) = (JoinSet::new(), chunks.into_iter(), None);
    loop {
        while deletions.len() < DELETIONS
            && let Some(chunk) = chunks.next()
        {
            let target = target.clone();
            deletions.spawn(async move { target.delete(chunk).await });
        }
        let Some(done) = deletions.join_next().await else { return failed };
        failed = failed.or(done.expect("a deletion does not panic").err());
    }
}

struct Run<'a, T> {
    options: &'a ReplayOptions,
    trace: &'a Arc<Trace>,
    target: T,
    hour: Duration,
    /// By the clock.
    prelude: Duration,
    /// Of measuring, once it has begun; before, of the prelude.
    start: Instant,
    measuring: bool,
    /// Offload that was owed when measuring began.
    owed: u64,
    /// Requests of the prelude that failed.
    failed_before: u64,
    end: Instant,
    /// How much of what is measured, in trace time.
    played: Duration,
    answered: Vec<Answered>,
    retries: u64,
    seen: Observer,
    hours: BTreeMap<u64, HourRecord>,
}

impl<'a, T: Target> Run<'a, T> {
    fn new(options: &'a ReplayOptions, trace: &'a Arc<Trace>, target: T, setting: &Setting) -> Run<'a, T> {
        Run {
            options,
            trace,
            hour: setting.hour(),
            prelude: setting.hour() * setting.prelude,
            start: Instant::now(),
            measuring: setting.prelude == 0,
            owed: 0,
            failed_before: 0,
            end: Instant::now(),
            played: trace.span() - setting.prelude(),
            answered: Vec::with_capacity(trace.requests.len()),
            retries: 0,
            seen: Observer::default(),
            hours: BTreeMap::new(),
            target,
        }
    }

    /// Issues every request at its time and waits for the answers, observing the cluster meanwhile.
    async fn replay(
        &mut self,
        storage: &Arc<dyn Storage>,
        check: &mut Check,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<DriveReport, ReplayError> {
        let options = DriveOptions { warmup: self.prelude, ..drive_options(self.options) };
        let trace = self.trace.clone();
        let requests = (0..trace.requests.len()).map(move |index| Ok(trace.requests[index]));
        let feed = Feed::start(requests, Placer::apart(options.pacing), |_, _| ());
        let shared = Shared::new(&options);
        (self.start, self.retries) = (Instant::now(), self.target.retries());
        let mut answered = std::mem::take(&mut self.answered);
        let course = Course {
            storage,
            name: "the cluster",
            options: &options,
            shared: &shared,
            timer: self.target.timer().map_err(DriveError::Timer)?,
            check: Some(&mut *check),
            answered: &mut |request| answered.push(request),
        };
        let (recorder, placed, end) = tokio::select! {
            biased;
            outcome = engine::run(course, feed) => outcome?,
            never = self.watch(&shared, progress) => match never {},
        };
        self.end = Instant::now();
        if !self.measuring {
            // It was halted before that.
            self.measure_from(self.end);
        }
        answered.retain(|request| request.issued >= self.start);
        (self.answered, self.retries) = (answered, self.target.retries() - self.retries);
        let mut report = recorder.report(&options, self.info(), placed, end);
        self.failed_before = shared.counts().2 - report.failed - check.report.mismatched;
        if self.options.halt.is_set() {
            report.stopped_at_seconds = Some(report.wall_seconds);
            self.played = self.played.min((self.end - self.start).mul_f64(self.options.speed));
        }
        Ok(report)
    }

    /// From now on things count.
    fn measure_from(&mut self, start: Instant) {
        (self.start, self.measuring) = (start, true);
        (self.owed, self.retries) = (self.seen.debt, self.target.retries());
        self.seen.restart();
    }

    fn info(&self) -> TargetInfo {
        let ranges = self.trace.touched_ranges();
        let bytes = ranges.iter().filter_map(|ranges| ranges.last_key_value()).map(|(_, end)| end).sum();
        TargetInfo::new("cluster", bytes)
    }

    /// Records what the cluster does, until it is dropped.
    async fn watch(&mut self, shared: &Shared, progress: &mut dyn FnMut(Progress)) -> Infallible {
        self.seen.servers(Duration::ZERO, &self.target.servers());
        let mut changes = changes(self.target.clone());
        let pause = (self.hour / 10).clamp(STATUS_PAUSE, STATUS_PAUSE_MAX);
        let (mut look, measured) = (self.start, self.start + self.prelude);
        let mut looking: JoinSet<Result<ClusterStatus, TargetError>> = JoinSet::new();
        let mut next_fetch = self.start + self.hour * HOURS_PER_FETCH;
        loop {
            tokio::select! {
                biased;
                () = sleep_until(measured), if !self.measuring => self.measure_from(measured),
                Some((at, servers)) = changes.recv() => self.seen.servers(at.duration_since(self.start), &servers),
                Some(found) = looking.join_next() => {
                    if let Ok(Ok(status)) = found {
                        self.seen.status(self.start.elapsed(), &status);
                    }
                    progress(self.progress(shared));
                }
                () = sleep_until(look), if looking.is_empty() => {
                    look = Instant::now() + pause;
                    self.seen.servers(self.start.elapsed(), &self.target.servers());
                    let target = self.target.clone();
                    looking.spawn(async move { status(&target).await });
                    if Instant::now() > next_fetch {
                        next_fetch += self.hour * HOURS_PER_FETCH;
                        self.fetch_hours().await;
                    }
                }
            }
        }
    }

    fn progress(&self, shared: &Shared) -> Progress {
        let (at, span) = (self.start.elapsed().mul_f64(self.options.speed), self.played);
        let (issued, in_flight, bad) = shared.counts();
        if !self.measuring {
            let span = self.prelude.mul_f64(self.options.speed);
            return Progress::Prelude { at, span, debt_bytes: self.seen.debt };
        }
        Progress::Replaying {
            at: at.min(span),
            span,
            issued,
            in_flight,
            bad,
            gear: self.seen.gear(),
            servers_awake: self.seen.awake(),
            load: self.seen.load,
            debt_bytes: self.seen.debt,
        }
    }

    /// Waits until all servers are awake, all groups in sync and no offload is left; false if that takes too long.
    async fn settle(&mut self, progress: &mut dyn FnMut(Progress)) -> Result<bool, ReplayError> {
        let deadline = Instant::now() + self.options.settle;
        loop {
            let status = status(&self.target).await.map_err(cluster("read the cluster's status"))?;
            self.seen.status(self.start.elapsed(), &status);
            let groups = &status.groups;
            if groups.in_sync == groups.total && status.debt_bytes == 0 && !status.gear.shifting {
                return Ok(true);
            }
            progress(Progress::Settling { debt_bytes: status.debt_bytes });
            if Instant::now() >= deadline {
                return Ok(false);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// The hours recorded by the metadata service. A failure costs columns of the report, not the replay.
    async fn fetch_hours(&mut self) {
        if let Ok(AdminReply::Hours(hours)) = self.target.admin(AdminRequest::ListHours).await {
            self.hours.extend(hours.into_iter().map(|hour| (hour.hour, hour)));
        }
    }

    /// Since measuring began.
    async fn shifts(&self, hour_zero_unix_millis: u64) -> Vec<ShiftRecord> {
        let from_unix_millis = hour_zero_unix_millis + self.prelude.as_millis() as u64;
        match self.target.admin(AdminRequest::ListShifts).await {
            Ok(AdminReply::Shifts(shifts)) => {
                shifts.into_iter().filter(|shift| shift.at_unix_millis >= from_unix_millis).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Reports every change of servers' states, until it is dropped.
fn changes<T: Target>(target: T) -> tokio::sync::mpsc::UnboundedReceiver<(Instant, Servers)> {
    let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut known = target.servers();
        loop {
            tokio::select! {
                () = target.changed() => {}
                () = sender.closed() => return,
            }
            let servers = target.servers();
            if servers != known {
                known.clone_from(&servers);
                // The receiver may just have gone: then the change is not needed.
                let _ = sender.send((Instant::now(), servers));
            }
        }
    });
    receiver
}

type Servers = Vec<(ServerId, ebb_types::ServerState)>;

impl<T: Target> Run<'_, T> {
    fn report(
        self,
        setting: &Setting,
        performance: DriveReport,
        stretches: &Stretches,
        shifts: Vec<ShiftRecord>,
    ) -> Result<ReplayReport, ReplayError> {
        let (offloaded_bytes, reclaimed_bytes) = self.seen.moved();
        let account = self.account(setting);
        let oracle = account.oracle_gears();
        let behind = Behind::of(&performance, setting.hour());
        let cluster = account.of_states(&self.seen.changes)?;
        let always_on = account.of_gears(&[setting.before.params.replicas])?;
        let mut modelled_energy = EnergyReport::new(cluster, always_on, account.of_gears(&oracle)?);
        if behind.is_some() {
            modelled_energy.compared = None;
        }
        Ok(ReplayReport {
            trace: trace_report(self.trace, setting.prelude()),
            speed: self.options.speed,
            provisioned_servers: setting.provisioned,
            schedule: setting.schedule,
            prepared_bytes: 0,
            prelude: (setting.prelude > 0).then_some(PreludeReport {
                hours: setting.prelude,
                requests: performance.warmup_requests,
                failed: self.failed_before,
                debt_bytes: self.owed,
            }),
            behind,
            latency: self.latencies(stretches),
            offload: OffloadReport {
                offloaded_bytes,
                reclaimed_bytes,
                most_bytes: self.seen.most_debt,
                left_bytes: self.seen.debt,
            },
            migrations: shifts.iter().map(|shift| u64::from(shift.migrations)).sum(),
            shifts,
            modelled_energy,
            hours: self.hour_reports(setting, &oracle),
            comparison: None,
            always_on: None,
            volumes: Vec::new(),
            notes: Vec::new(),
            retries: self.retries,
            performance,
            account,
            states: self.seen.changes,
        })
    }

    fn account(&self, setting: &Setting) -> Account {
        let member = |server: &ServerStatus| Member {
            id: server.id,
            rack: server.rack,
            gear_group: if is_geared(server) { server.gear_group } else { NO_GEAR },
        };
        Account {
            power: self.options.power,
            load: setting.load.clone(),
            schedule: setting.schedule,
            replicas: setting.before.params.replicas,
            servers: setting.before.servers.iter().map(member).collect(),
            speed: self.options.speed,
            end: self.end.duration_since(self.start).mul_f64(self.options.speed).max(self.played),
        }
    }

    fn latencies(&self, stretches: &Stretches) -> LatencyReport {
        let since = |answered: &Answered| answered.issued.duration_since(self.start);
        let gear_of = |answered: &Answered| self.seen.gear_at(since(answered));
        let gears: BTreeSet<u8> = self.answered.iter().map(gear_of).collect();
        let by_gear = gears.into_iter().map(|gear| {
            let of = KindLatency::of(self.answered.iter().filter(|answered| gear_of(answered) == gear));
            GearLatency { gear, of }
        });
        let answered =
            self.answered.iter().map(|answered| (since(answered), answered.kind, answered.service));
        LatencyReport { by_gear: by_gear.collect(), stretches: StretchLatency::of(stretches, answered) }
    }

    fn hour_reports(&self, setting: &Setting, oracle: &[u8]) -> Vec<HourReport> {
        let peaks = setting.load.peaks();
        let hour = |(hour, (peak, oracle)): (u64, (&ebb_gear::Load, &u8))| {
            let record = self.hours.get(&hour);
            HourReport {
                hour,
                load: record.map(|record| record.peak_load),
                trace_load: peak.0,
                forecast: record.and_then(|record| record.forecast),
                gear: record.map(|record| record.gear),
                servers_awake: record.map(|record| record.servers_awake),
                oracle_gear: *oracle,
                reads: 0,
                writes: 0,
            }
        };
        let begun = self.played.as_nanos() / setting.load.hour.as_nanos() + 1;
        let all = peaks.iter().zip(oracle).take(begun as usize);
        let mut hours: Vec<HourReport> = (u64::from(setting.prelude)..).zip(all).map(hour).collect();
        let played = measured(self.trace, setting.prelude()).take_while(|request| request.at <= self.played);
        for request in played {
            let at = (request.at.as_nanos() / setting.load.hour.as_nanos()) as usize;
            let Some(hour) = hours.get_mut(at) else { continue };
            match request.kind {
                Kind::Read => hour.reads += 1,
                Kind::Write => hour.writes += 1,
            }
        }
        hours
    }
}

/// What comes after the prelude, timed from its end.
fn measured(trace: &Trace, prelude: Duration) -> impl Iterator<Item = Request> {
    let first = trace.requests.partition_point(|request| request.at < prelude);
    trace.requests[first..].iter().map(move |request| Request { at: request.at - prelude, ..*request })
}

fn trace_report(trace: &Trace, prelude: Duration) -> TraceReport {
    let mut report = TraceReport {
        name: trace.name.clone(),
        span_seconds: (trace.span() - prelude).as_secs_f64(),
        empty: trace.empty,
        skipped: trace.skipped,
        left_out: trace.left_out,
        ..TraceReport::default()
    };
    for request in measured(trace, prelude) {
        report.requests += 1;
        match request.kind {
            Kind::Read => {
                report.reads += 1;
                report.read_bytes += u64::from(request.len);
            }
            Kind::Write => report.written_bytes += u64::from(request.len),
        }
    }
    report
}
