//! The run: prepare, replay in open loop, settle, compare, tidy up.

use super::energy::{EnergyReport, changes_of, modelled};
use super::ledger::{Ledger, Span, Ticket};
use super::observe::Observer;
use super::report::{
    Answered, GearLatency, HourReport, KindLatency, LatencyReport, OffloadReport, ReplayReport,
    RequestReport, TraceReport, VolumeReport,
};
use super::target::{Target, TargetError};
use super::{Progress, ReplayError, ReplayOptions};
use crate::content::fill;
use bytes::Bytes;
use ebb_gear::{LoadSeries, rehearsal};
use ebb_trace::{Kind, Trace};
use ebb_types::{
    AdminReply, AdminRequest, ChunkId, ClusterStatus, GearMode, HourRecord, ObjectId, Schedule, ServerId,
    ShiftRecord,
};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

/// Bytes of one request when the content before the trace is written and when all is read back, and such requests
/// side by side.
const PIECE_BYTES: u64 = 1 << 20;
const PIECES: usize = 16;
/// The status is looked at ten times per hour, but not more often than this.
const STATUS_PAUSE: Duration = Duration::from_millis(50);
const STATUS_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Hours of the scheduler up to this length are waited for, so that hours of the trace are hours of the scheduler.
const ALIGN_MAX: Duration = Duration::from_secs(60);
/// Recorded hours are fetched this often: the metadata service keeps a few hundred.
const HOURS_PER_FETCH: u32 = 100;
const LATE: Duration = Duration::from_millis(10);
const AROUND_SHIFT: Duration = Duration::from_secs(2);
/// Failures and mismatches that are described.
const EXAMPLES: usize = 10;

fn cluster(what: &'static str) -> impl Fn(TargetError) -> ReplayError {
    move |error| ReplayError::Cluster { what, error }
}

async fn status<T: Target>(target: &T) -> Result<ClusterStatus, TargetError> {
    match target.admin(AdminRequest::Status).await? {
        AdminReply::Status(status) => Ok(*status),
        other => Err(TargetError(format!("the answer did not fit the question: {other:?}"))),
    }
}

async fn command<T: Target>(target: &T, request: AdminRequest) -> Result<(), TargetError> {
    target.admin(request).await.map(drop)
}

fn check(options: &ReplayOptions, trace: &Trace) -> Result<(), ReplayError> {
    if options.in_flight == 0 {
        return Err(ReplayError::InFlight);
    }
    if trace.requests.is_empty() {
        return Err(ReplayError::Empty);
    }
    Ok(options.power.check()?)
}

/// What is fixed before anything is written.
struct Setting {
    before: ClusterStatus,
    schedule: Schedule,
    load: LoadSeries,
    provisioned: Option<u32>,
}

impl Setting {
    fn new(options: &ReplayOptions, trace: &Trace, before: ClusterStatus) -> Result<Setting, ReplayError> {
        let mut schedule = rehearsal(&before.schedule, options.speed)?;
        let (replicas, chunk_bytes) = (before.params.replicas, before.params.chunk_bytes);
        let mut load = LoadSeries::new(trace.loads(chunk_bytes)?, options.speed, &schedule, replicas)?;
        let servers = before.servers.len() as u32;
        let provision = |provision| load.provision(&mut schedule, provision, servers);
        let provisioned = options.provision.map(provision).transpose()?;
        Ok(Setting { before, schedule, load, provisioned })
    }

    fn hour(&self) -> Duration {
        Duration::from_millis(self.schedule.hour_millis)
    }
}

/// See [`super::replay`].
pub(crate) async fn run<T: Target>(
    options: &ReplayOptions,
    trace: &Trace,
    target: T,
    progress: &mut dyn FnMut(Progress),
) -> Result<ReplayReport, ReplayError> {
    check(options, trace)?;
    let before = status(&target).await.map_err(cluster("read the cluster's status"))?;
    let setting = Setting::new(options, trace, before)?;
    let result = run_on(options, trace, &setting, target.clone(), progress).await;
    let restored = restore(&target, &setting.before).await;
    let mut report = result?;
    if let Err(error) = restored {
        report.notes.push(format!("the cluster's schedule could not be put back: {error}"));
    }
    Ok(report)
}

/// Puts the schedule and the mode back.
async fn restore<T: Target>(target: &T, before: &ClusterStatus) -> Result<(), TargetError> {
    command(target, AdminRequest::SetSchedule(before.schedule)).await?;
    let mode = match before.gear.mode {
        GearMode::Auto => AdminRequest::GearAuto,
        GearMode::Manual => AdminRequest::GearSet { gear: before.gear.gear },
    };
    command(target, mode).await
}

async fn run_on<T: Target>(
    options: &ReplayOptions,
    trace: &Trace,
    setting: &Setting,
    target: T,
    progress: &mut dyn FnMut(Progress),
) -> Result<ReplayReport, ReplayError> {
    let all_awake = AdminRequest::GearSet { gear: setting.before.params.replicas };
    command(&target, all_awake.clone()).await.map_err(cluster("wake all servers"))?;
    let count = trace.devices.len() as u32;
    let first = target.allocate(count).await.map_err(cluster("allocate volumes"))?;
    let mut ledger = Ledger::default();
    for (index, name) in trace.devices.iter().enumerate() {
        ledger.add_volume(ObjectId(first.0 + index as u64), name.clone());
    }
    let prepared_bytes = prepare(&target, trace, &mut ledger, progress).await?;
    let begun = begin(&target, setting).await.map_err(cluster("set the schedule"))?;

    let mut run = Run::new(options, trace, target.clone(), ledger, setting);
    run.replay(progress).await;
    command(&target, all_awake).await.map_err(cluster("wake all servers"))?;
    let settled = run.settle(progress).await?;
    progress(Progress::Comparing);
    let read_back_bytes = run.read_back().await;
    run.fetch_hours().await;
    let shifts = run.shifts(begun.unix_millis).await;
    let comparison =
        if settled { Some(target.compare().await.map_err(cluster("compare the replicas"))?) } else { None };
    let mut report = run.report(setting, begun.first_hour, shifts)?;
    (report.prepared_bytes, report.comparison) = (prepared_bytes, comparison);
    report.read_back_bytes = read_back_bytes;
    let keep = !report.passed();
    report.volumes = volumes(trace, first, keep);
    if !keep {
        let failed = delete(&target, trace, first, setting.before.params.chunk_bytes).await;
        report.notes.extend(failed.map(|error| format!("the volumes could not all be deleted: {error}")));
    }
    Ok(report)
}

fn volumes(trace: &Trace, first: ObjectId, kept: bool) -> Vec<VolumeReport> {
    let volume = |(index, device): (usize, &String)| VolumeReport {
        device: device.clone(),
        object: first.0 + index as u64,
        kept,
    };
    trace.devices.iter().enumerate().map(volume).collect()
}

/// Writes what the trace reads. Returns the bytes.
async fn prepare<T: Target>(
    target: &T,
    trace: &Trace,
    ledger: &mut Ledger,
    progress: &mut dyn FnMut(Progress),
) -> Result<u64, ReplayError> {
    let mut pieces = Vec::new();
    for (volume, ranges) in trace.read_ranges().into_iter().enumerate() {
        for (start, end) in ranges {
            ledger.prepared(&Span { volume, bytes: start..end });
            pieces.extend(cut(start, end).map(|(at, len)| (ledger.volume(volume), at, len)));
        }
    }
    let of = pieces.iter().map(|(_, _, len)| len).sum();
    let (mut bytes, mut writes, mut told) = (0, JoinSet::new(), Instant::now());
    let mut pieces = pieces.into_iter();
    loop {
        while writes.len() < PIECES
            && let Some((volume, at, len)) = pieces.next()
        {
            let target = target.clone();
            writes.spawn(
                async move { target.write(volume, at, payload(volume, at, len, 0)).await.map(|()| len) },
            );
        }
        let Some(done) = writes.join_next().await else { return Ok(of) };
        bytes += done.expect("a write does not panic").map_err(cluster("write what the trace reads"))?;
        if told.elapsed() >= Duration::from_millis(100) || bytes == of {
            told = Instant::now();
            progress(Progress::Preparing { bytes, of });
        }
    }
}

/// Cuts a range into pieces: offset and length.
fn cut(start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    (start..end).step_by(PIECE_BYTES as usize).map(move |at| (at, PIECE_BYTES.min(end - at)))
}

fn payload(volume: ObjectId, offset: u64, len: u64, number: u64) -> Bytes {
    let mut bytes = vec![0; len as usize];
    fill(volume.0, offset, number, &mut bytes);
    bytes.into()
}

struct Begun {
    /// Time of day when the cluster was told to choose its gear.
    unix_millis: u64,
    /// The scheduler's number of the trace's first hour.
    first_hour: u64,
}

/// Sets the schedule, lets the cluster choose its gear, and waits for the start of an hour.
async fn begin<T: Target>(target: &T, setting: &Setting) -> Result<Begun, TargetError> {
    let schedule = setting.schedule;
    if setting.before.schedule.hour_millis == schedule.hour_millis {
        // A change of the hour's length makes the cluster forget its hours: those of other loads say nothing about
        // these.
        let other = Schedule { hour_millis: schedule.hour_millis + 1, ..schedule };
        command(target, AdminRequest::SetSchedule(other)).await?;
    }
    command(target, AdminRequest::SetSchedule(schedule)).await?;
    command(target, AdminRequest::GearAuto).await?;
    let hour = setting.hour();
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix_millis = unix.as_millis() as u64;
    let first_hour = unix_millis / setting.schedule.hour_millis;
    if hour > ALIGN_MAX {
        return Ok(Begun { unix_millis, first_hour });
    }
    let into = Duration::from_nanos((unix.as_nanos() % hour.as_nanos()) as u64);
    sleep(hour - into).await;
    Ok(Begun { unix_millis, first_hour: first_hour + 1 })
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
        while deletions.len() < PIECES
            && let Some(chunk) = chunks.next()
        {
            let target = target.clone();
            deletions.spawn(async move { target.delete(chunk).await });
        }
        let Some(done) = deletions.join_next().await else { return failed };
        failed = failed.or(done.expect("a deletion does not panic").err());
    }
}

/// An answer to a request of the trace.
struct Done {
    ticket: Ticket,
    issued: Instant,
    answered: Instant,
    result: Result<Option<Bytes>, TargetError>,
}

/// Where a write that waits for an earlier one goes.
struct Place {
    volume: ObjectId,
    offset: u64,
    len: u64,
}

struct Run<'a, T> {
    options: &'a ReplayOptions,
    trace: &'a Trace,
    target: T,
    ledger: Ledger,
    hour: Duration,
    start: Instant,
    end: Instant,
    /// Requests issued; the next one's index.
    issued: usize,
    tasks: JoinSet<Done>,
    waiting: BTreeMap<Ticket, Place>,
    answered: Vec<Answered>,
    requests: RequestReport,
    retries_before: u64,
    seen: Observer,
    hours: BTreeMap<u64, HourRecord>,
}

impl<'a, T: Target> Run<'a, T> {
    fn new(
        options: &'a ReplayOptions,
        trace: &'a Trace,
        target: T,
        ledger: Ledger,
        setting: &Setting,
    ) -> Run<'a, T> {
        Run {
            options,
            trace,
            ledger,
            hour: setting.hour(),
            start: Instant::now(),
            end: Instant::now(),
            issued: 0,
            tasks: JoinSet::new(),
            waiting: BTreeMap::new(),
            answered: Vec::with_capacity(trace.requests.len()),
            requests: RequestReport::default(),
            retries_before: target.retries(),
            seen: Observer::default(),
            hours: BTreeMap::new(),
            target,
        }
    }

    fn in_flight(&self) -> usize {
        self.tasks.len() + self.waiting.len()
    }

    fn due(&self, index: usize) -> Option<Instant> {
        let at = self.trace.requests.get(index)?.at;
        Some(self.start + at.div_f64(self.options.speed))
    }

    /// Issues every request at its time and waits for the answers, watching the cluster meanwhile.
    async fn replay(&mut self, progress: &mut dyn FnMut(Progress)) {
        self.start = Instant::now();
        self.seen.servers(Duration::ZERO, &self.target.servers());
        let mut watch = watch(self.target.clone());
        let pause = (self.hour / 10).clamp(STATUS_PAUSE, STATUS_PAUSE_MAX);
        let mut look = self.start;
        let mut looking: JoinSet<Result<ClusterStatus, TargetError>> = JoinSet::new();
        let mut next_fetch = self.hour * HOURS_PER_FETCH;
        loop {
            let next = self.due(self.issued).filter(|_| self.in_flight() < self.options.in_flight);
            if next.is_none() && self.in_flight() == 0 {
                break;
            }
            if next.is_some_and(|due| due <= Instant::now()) {
                self.issue();
                continue;
            }
            tokio::select! {
                biased;
                Some(done) = self.tasks.join_next() => self.complete(done.expect("a request does not panic")),
                Some((at, servers)) = watch.recv() => self.seen.servers(at.duration_since(self.start), &servers),
                Some(found) = looking.join_next() => {
                    if let Ok(Ok(status)) = found {
                        self.seen.status(self.start.elapsed(), &status);
                    }
                    progress(self.progress());
                }
                () = sleep_until(look), if looking.is_empty() => {
                    look = Instant::now() + pause;
                    self.seen.servers(self.start.elapsed(), &self.target.servers());
                    let target = self.target.clone();
                    looking.spawn(async move { status(&target).await });
                    if self.start.elapsed() > next_fetch {
                        next_fetch += self.hour * HOURS_PER_FETCH;
                        self.fetch_hours().await;
                    }
                }
                () = sleep_until(next.unwrap_or(self.start)), if next.is_some() => {}
            }
        }
        self.end = Instant::now();
        self.requests.issued = self.issued as u64;
        self.requests.retries = self.target.retries() - self.retries_before;
    }

    fn progress(&self) -> Progress {
        let span = self.trace.span();
        Progress::Replaying {
            at: self.start.elapsed().mul_f64(self.options.speed).min(span),
            span,
            issued: self.issued as u64,
            in_flight: self.in_flight(),
            bad: self.requests.failed + self.requests.mismatched,
            gear: self.seen.gear(),
            servers_awake: self.seen.awake(),
            load: self.seen.load,
            debt_bytes: self.seen.debt,
        }
    }

    fn issue(&mut self) {
        let late = self.due(self.issued).map_or(Duration::ZERO, |due| due.elapsed());
        self.requests.late += u64::from(late > LATE);
        self.requests.latest_millis = self.requests.latest_millis.max(late.as_secs_f64() * 1e3);
        let request = self.trace.requests[self.issued];
        self.issued += 1;
        let (offset, len) = (request.offset, u64::from(request.len));
        let span = Span { volume: request.device as usize, bytes: offset..offset + len };
        let volume = self.ledger.volume(span.volume);
        match request.kind {
            Kind::Read => {
                let (ticket, target, issued) = (self.ledger.read(span), self.target.clone(), Instant::now());
                self.tasks.spawn(async move {
                    let result = target.read(volume, offset, len).await.map(Some);
                    Done { ticket, issued, answered: Instant::now(), result }
                });
            }
            Kind::Write => {
                let (ticket, number) = self.ledger.write(span);
                let place = Place { volume, offset, len };
                match number {
                    Some(number) => self.send_write(ticket, &place, number),
                    None => {
                        self.requests.waited += 1;
                        self.waiting.insert(ticket, place);
                    }
                }
            }
        }
    }

    fn send_write(&mut self, ticket: Ticket, place: &Place, number: u64) {
        let Place { volume, offset, len } = *place;
        let (target, issued, bytes) =
            (self.target.clone(), Instant::now(), payload(volume, offset, len, number));
        self.tasks.spawn(async move {
            let result = target.write(volume, offset, bytes).await.map(|()| None);
            Done { ticket, issued, answered: Instant::now(), result }
        });
    }

    fn complete(&mut self, done: Done) {
        let Done { ticket, issued, answered, result } = done;
        let read = self.ledger.is_read(ticket);
        match &result {
            Ok(Some(bytes)) => self.check(ticket, bytes),
            Ok(None) => self.end_write(ticket, true),
            Err(error) => {
                self.failed(error);
                if read { self.ledger.forget_read(ticket) } else { self.end_write(ticket, false) }
            }
        }
        if result.is_ok() {
            let (at, latency) = (issued.duration_since(self.start), answered.duration_since(issued));
            self.answered.push(Answered { issued: at, latency, read });
        }
    }

    /// Ends a write and sends those that waited for it.
    fn end_write(&mut self, ticket: Ticket, acknowledged: bool) {
        for (ticket, number) in self.ledger.end_write(ticket, acknowledged) {
            let place = self.waiting.remove(&ticket).expect("it waited");
            self.send_write(ticket, &place, number);
        }
    }

    fn check(&mut self, ticket: Ticket, bytes: &[u8]) {
        match self.ledger.end_read(ticket, bytes) {
            Ok(unchecked) => self.requests.unchecked_bytes += unchecked,
            Err(mismatch) => {
                self.requests.mismatched += 1;
                if self.requests.mismatches.len() < EXAMPLES {
                    self.requests.mismatches.push(*mismatch);
                }
            }
        }
    }

    fn failed(&mut self, error: &TargetError) {
        self.requests.failed += 1;
        if self.requests.failures.len() < EXAMPLES {
            self.requests.failures.push(error.to_string());
        }
    }

    /// Reads everything that the trace touched once more: a lost write that the trace never read would go unseen.
    /// Returns the bytes that were read.
    async fn read_back(&mut self) -> u64 {
        let mut pieces = Vec::new();
        for (volume, ranges) in self.trace.touched_ranges().into_iter().enumerate() {
            pieces.extend(
                ranges.into_iter().flat_map(|(start, end)| cut(start, end)).map(|piece| (volume, piece)),
            );
        }
        let (mut reads, mut pieces, mut total) = (JoinSet::new(), pieces.into_iter(), 0);
        loop {
            while reads.len() < PIECES
                && let Some((volume, (at, len))) = pieces.next()
            {
                let ticket = self.ledger.read(Span { volume, bytes: at..at + len });
                let (target, id) = (self.target.clone(), self.ledger.volume(volume));
                reads.spawn(async move { (ticket, target.read(id, at, len).await) });
            }
            let Some(done) = reads.join_next().await else { return total };
            let (ticket, result) = done.expect("a read does not panic");
            match result {
                Ok(bytes) => {
                    total += bytes.len() as u64;
                    self.check(ticket, &bytes);
                }
                Err(error) => {
                    self.failed(&error);
                    self.ledger.forget_read(ticket);
                }
            }
        }
    }

    /// Waits until all servers are awake, all groups in sync and nothing is owed; false if that takes too long.
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

    /// What the metadata service recorded of hours. A failure costs columns of the report, not the replay.
    async fn fetch_hours(&mut self) {
        if let Ok(AdminReply::Hours(hours)) = self.target.admin(AdminRequest::ListHours).await {
            self.hours.extend(hours.into_iter().map(|hour| (hour.hour, hour)));
        }
    }

    async fn shifts(&self, from_unix_millis: u64) -> Vec<ShiftRecord> {
        match self.target.admin(AdminRequest::ListShifts).await {
            Ok(AdminReply::Shifts(shifts)) => {
                shifts.into_iter().filter(|shift| shift.at_unix_millis >= from_unix_millis).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Tells of every change of servers' states, until it is dropped.
fn watch<T: Target>(target: T) -> tokio::sync::mpsc::UnboundedReceiver<(Instant, Servers)> {
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
                // The receiver may just have gone: then nobody wants to know.
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
        first_hour: u64,
        shifts: Vec<ShiftRecord>,
    ) -> Result<ReplayReport, ReplayError> {
        let (offloaded_bytes, reclaimed_bytes) = self.seen.moved();
        let oracle = self.oracle(setting);
        Ok(ReplayReport {
            trace: trace_report(self.trace),
            speed: self.options.speed,
            provisioned_servers: setting.provisioned,
            schedule: setting.schedule,
            took_seconds: self.end.duration_since(self.start).as_secs_f64(),
            prepared_bytes: 0,
            read_back_bytes: 0,
            latency: self.latencies(),
            offload: OffloadReport {
                offloaded_bytes,
                reclaimed_bytes,
                most_bytes: self.seen.most_debt,
                left_bytes: self.seen.debt,
            },
            migrations: shifts.iter().map(|shift| u64::from(shift.migrations)).sum(),
            shifts,
            modelled_energy: self.energy(setting, &oracle)?,
            hours: self.hour_reports(setting, first_hour, &oracle),
            comparison: None,
            volumes: Vec::new(),
            notes: Vec::new(),
            requests: self.requests,
        })
    }

    fn oracle(&self, setting: &Setting) -> Vec<u8> {
        let (servers, replicas) = (setting.before.servers.len() as u32, setting.before.params.replicas);
        let lowest = setting.schedule.g_min.max(ebb_gear::lowest_gear(servers, replicas));
        ebb_gear::oracle(0, &setting.load.peaks(), servers, replicas, lowest).gears
    }

    fn energy(&self, setting: &Setting, oracle: &[u8]) -> Result<EnergyReport, ReplayError> {
        let (power, load) = (&self.options.power, &setting.load);
        let end = self.end.duration_since(self.start).mul_f64(self.options.speed).max(self.trace.span());
        let servers: Vec<_> = setting.before.servers.iter().map(|s| (s.id, s.gear_group)).collect();
        let of_gears = |gears: &[u8]| modelled(power, load, &changes_of(gears, load.hour, &servers), end);
        let cluster = modelled(power, load, &self.seen.power_changes(self.options.speed), end)?;
        let always_on = of_gears(&[setting.before.params.replicas])?;
        Ok(EnergyReport::new(cluster, always_on, of_gears(oracle)?))
    }

    fn latencies(&self) -> LatencyReport {
        let gear_of = |answered: &Answered| self.seen.gear_at(answered.issued);
        let gears: BTreeSet<u8> = self.answered.iter().map(gear_of).collect();
        let by_gear = gears.into_iter().map(|gear| {
            let KindLatency { reads, writes } =
                KindLatency::of(self.answered.iter().filter(|answered| gear_of(answered) == gear));
            GearLatency { gear, reads, writes }
        });
        let near = |answered: &&Answered| self.seen.near_change(answered.issued, AROUND_SHIFT);
        LatencyReport {
            all: KindLatency::of(self.answered.iter()),
            by_gear: by_gear.collect(),
            around_shifts: KindLatency::of(self.answered.iter().filter(near)),
        }
    }

    fn hour_reports(&self, setting: &Setting, first_hour: u64, oracle: &[u8]) -> Vec<HourReport> {
        let peaks = setting.load.peaks();
        let hour = |(index, (peak, oracle)): (usize, (&ebb_gear::Load, &u8))| {
            let record = self.hours.get(&(first_hour + index as u64));
            HourReport {
                hour: index as u64,
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
        let mut hours: Vec<HourReport> = peaks.iter().zip(oracle).enumerate().map(hour).collect();
        for request in &self.trace.requests {
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

fn trace_report(trace: &Trace) -> TraceReport {
    let mut report = TraceReport {
        name: trace.name.clone(),
        span_seconds: trace.span().as_secs_f64(),
        requests: trace.requests.len() as u64,
        empty: trace.empty,
        skipped: trace.skipped,
        ..TraceReport::default()
    };
    for request in &trace.requests {
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
