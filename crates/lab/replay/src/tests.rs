//! Replays on an in-memory cluster, on a virtual clock, that can be made to lose, damage, refuse and delay.

use super::target::Target;
use super::*;
use crate::drive::DriveError;
use crate::drive::engine::Timer;
use bytes::Bytes;
use ebb_gear::{Provision, RehearsalError, rehearsal};
use ebb_trace::{Kind, Request, Trace};
use ebb_types::{
    AdminReply, AdminRequest, ChunkId, ClusterParams, ClusterStatus, GearGroup, GearMode, GearStatus,
    GearWish, GroupCounts, HourRecord, Incarnation, ObjectId, PowerStatus, RackId, Schedule, ServerId,
    ServerState, ServerStatus, ShiftRecord, Vitals,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

/// What the cluster does wrong. Requests are counted from one, including preparation.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    /// Acknowledged, and forgotten.
    lose_write: Option<u64>,
    flip_read: Option<u64>,
    fail_write: Option<u64>,
    fail_read: Option<u64>,
    /// Never reclaims its offload.
    debt: bool,
    differing: u32,
}

struct Inner {
    disks: BTreeMap<ObjectId, Vec<u8>>,
    next_object: u64,
    writes: u64,
    reads: u64,
    asleep: BTreeSet<u16>,
    gear: u8,
    mode: GearMode,
    schedule: Schedule,
    admin: Vec<AdminRequest>,
    deleted: BTreeSet<ChunkId>,
    /// When the first request came after the cluster was set to choose its gear.
    started: Option<Instant>,
}

impl Inner {
    fn disk(&mut self, volume: ObjectId) -> &mut [u8] {
        self.disks.entry(volume).or_insert_with(|| vec![0; 3 << 20])
    }
}

#[derive(Clone)]
struct Fake {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<Notify>,
    faults: Faults,
    delay: Duration,
}

impl Fake {
    fn new(faults: Faults) -> Fake {
        let inner = Inner {
            disks: BTreeMap::new(),
            next_object: 100,
            writes: 0,
            reads: 0,
            asleep: BTreeSet::new(),
            gear: 3,
            mode: GearMode::Auto,
            schedule: Schedule { dwell_millis: 7_000, ..Schedule::default() },
            admin: Vec::new(),
            deleted: BTreeSet::new(),
            started: None,
        };
        let delay = Duration::from_millis(3);
        Fake { inner: Arc::new(Mutex::new(inner)), changed: Arc::default(), faults, delay }
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }

    fn note_start(&self) {
        let mut inner = self.inner();
        if inner.mode == GearMode::Auto && inner.started.is_none() {
            inner.started = Some(Instant::now());
        }
    }

    /// All servers except those of the first `gear` gear groups go to sleep.
    fn shift(&self, gear: u8) {
        let mut inner = self.inner();
        inner.gear = gear;
        inner.asleep = (0..9).filter(|id| id % 3 >= u16::from(gear)).collect();
        self.changed.notify_waiters();
    }

    fn status(&self) -> ClusterStatus {
        let states = self.servers();
        let inner = self.inner();
        let server = |(id, state): (ServerId, ServerState)| ServerStatus {
            id,
            rack: RackId(id.0 / 3),
            pool: ebb_types::PoolId::REPLICATED,
            gear_group: GearGroup((id.0 % 3) as u8),
            logger: false,
            address: String::new(),
            state,
            why: ebb_types::Why::NotNeeded,
            depth: None,
            incarnation: Incarnation(1),
            store: ebb_types::StoreId(1),
            vitals: Some(Vitals { offloaded_bytes: inner.writes, ..Vitals::default() }),
            heartbeat_age_millis: None,
            lease_left_millis: None,
            primaries: 0,
            holder_of: 0,
            debt_since_unix_millis: None,
            modelled_watts: None,
            transition_modelled_watts: None,
            switch_trouble: None,
            power: PowerStatus::default(),
        };
        ClusterStatus {
            params: ClusterParams {
                cluster: 1,
                instance: 1,
                chunk_bytes: 1 << 20,
                replicas: 3,
                groups: 576,
                lease_millis: 1000,
            },
            pools: Vec::new(),
            map_version: 1,
            gear: GearStatus {
                mode: inner.mode,
                gear: inner.gear,
                servers: 9 - inner.asleep.len() as u32,
                steps: inner.schedule.steps,
                shifting: false,
                dry_run: false,
                short_of_room: false,
                emergency: false,
                servers_awake: 9 - inner.asleep.len() as u32,
                load: 0.5,
                servers_needed: 3,
                forecast: None,
            },
            servers: states.into_iter().map(server).collect(),
            groups: GroupCounts { total: 576, in_sync: 576, ..GroupCounts::default() },
            debt_bytes: u64::from(self.faults.debt || !inner.asleep.is_empty()) * 4096,
            schedule: inner.schedule,
            notes: Vec::new(),
            metadata: Vec::new(),
            power: None,
            energy: None,
            rack_switches: None,
            latency: None,
        }
    }
}

impl Target for Fake {
    fn servers(&self) -> Vec<(ServerId, ServerState)> {
        let inner = self.inner();
        let state = |id| if inner.asleep.contains(&id) { ServerState::Asleep } else { ServerState::Awake };
        (0..9).map(|id| (ServerId(id), state(id))).collect()
    }

    async fn changed(&self) {
        self.changed.notified().await;
    }

    async fn create(&self, sizes: Vec<u64>) -> Result<ObjectId, TargetError> {
        let mut inner = self.inner();
        let first = inner.next_object;
        inner.next_object += sizes.len() as u64;
        Ok(ObjectId(first))
    }

    async fn read(&self, volume: ObjectId, offset: u64, len: u64) -> Result<Bytes, TargetError> {
        self.note_start();
        sleep(self.delay).await;
        let mut inner = self.inner();
        inner.reads += 1;
        if self.faults.fail_read == Some(inner.reads) {
            return Err(TargetError("the read went wrong".into()));
        }
        let mut bytes = inner.disk(volume)[offset as usize..][..len as usize].to_vec();
        if self.faults.flip_read == Some(inner.reads) {
            bytes[len as usize / 2] ^= 4;
        }
        Ok(bytes.into())
    }

    async fn write(&self, volume: ObjectId, offset: u64, bytes: Bytes) -> Result<(), TargetError> {
        self.note_start();
        sleep(self.delay).await;
        let mut inner = self.inner();
        inner.writes += 1;
        if self.faults.fail_write == Some(inner.writes) {
            return Err(TargetError("the write went wrong".into()));
        }
        if self.faults.lose_write != Some(inner.writes) {
            inner.disk(volume)[offset as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }

    async fn delete(&self, chunk: ChunkId) -> Result<(), TargetError> {
        assert!(self.inner().deleted.insert(chunk), "each chunk once");
        Ok(())
    }

    async fn close(&self, _keep: bool) -> Result<(), TargetError> {
        Ok(())
    }

    async fn admin(&self, request: AdminRequest) -> Result<AdminReply, TargetError> {
        self.inner().admin.push(request.clone());
        Ok(match request {
            AdminRequest::Status => AdminReply::Status(Box::new(self.status())),
            AdminRequest::GearSet(GearWish::Gear(gear)) => {
                self.inner().mode = GearMode::Manual;
                self.shift(gear);
                AdminReply::Done
            }
            AdminRequest::GearAuto => {
                self.inner().mode = GearMode::Auto;
                AdminReply::Done
            }
            AdminRequest::SetSchedule(schedule) => {
                self.inner().schedule = schedule;
                AdminReply::Done
            }
            AdminRequest::ListHours => {
                let hour = |hour| HourRecord {
                    hour,
                    peak_load: 1.25,
                    terms: None,
                    forecast: Some(1.5),
                    gear: 1,
                    servers_awake: 3,
                    prices: None,
                    power_cycles: 6,
                };
                AdminReply::Hours((0..5).map(hour).collect())
            }
            AdminRequest::ListShifts => {
                let shift = |at_unix_millis| ShiftRecord {
                    at_unix_millis,
                    from_gear: 3,
                    to_gear: 1,
                    from_servers: 9,
                    to_servers: 3,
                    why: "test".into(),
                    woken: 0,
                    put_to_sleep: 6,
                    migrations: 40,
                    took_millis: 120,
                };
                AdminReply::Shifts(vec![shift(1), shift(u64::MAX / 2)])
            }
            other => panic!("a replay does not ask for {other:?}"),
        })
    }

    fn timer(&self) -> std::io::Result<Timer> {
        Ok(Timer::on_the_virtual_clock())
    }

    fn retries(&self) -> u64 {
        self.inner().writes
    }

    async fn compare(&self) -> Result<Comparison, TargetError> {
        Ok(Comparison { groups: 576, differing: self.faults.differing, bytes: 9 })
    }
}

const SPEED: f64 = 1000.0;

/// Two devices, two hours: reads of data that was never written, writes and reads that overlap in odd ways.
fn trace() -> Arc<Trace> {
    let mut requests = Vec::new();
    for n in 0..400u64 {
        let at = Duration::from_secs(n * 18);
        let (device, offset) = ((n % 2) as u32, (n * 7919) % 40_000 + (n % 3) * (1 << 20) - (n % 3) * 100);
        let kind = if n % 3 == 1 { Kind::Read } else { Kind::Write };
        requests.push(Request { at, device, offset, len: 300 + (n % 5) as u32 * 1111, kind });
    }
    let devices = vec!["a".into(), "b".into()];
    Arc::new(Trace { name: "made".into(), requests, devices, left_out: 3, ..Trace::default() })
}

fn options() -> ReplayOptions {
    ReplayOptions {
        speed: SPEED,
        provision: Some(Provision::Peak),
        settle: Duration::from_secs(2),
        ..ReplayOptions::default()
    }
}

async fn run(fake: &Fake, trace: &Arc<Trace>) -> Result<ReplayReport, ReplayError> {
    engine::run(&options(), trace, fake.clone(), &mut |_| {}).await
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_obeys_passes_and_is_left_as_it_was() {
    let fake = Fake::new(Faults::default());
    let before = fake.inner().schedule;
    let trace = trace();
    let mut stages = Vec::new();
    let report =
        engine::run(&options(), &trace, fake.clone(), &mut |progress| stages.push(progress)).await.unwrap();
    assert!(report.passed() && report.fell_behind().is_none(), "{report}");
    assert!(report.to_string().ends_with("PASSED\n"), "{report}");
    let json = ebb_output::json(&report);
    assert!(json.contains("\"behind\": null") && json.contains("\"saved_percent\": "), "{json}");
    assert_eq!(report.trace.left_out, 3);
    assert!(report.to_string().contains("requests without data (trim, sync), left out: 3\n"), "{report}");
    let performance = &report.performance;
    assert_eq!((performance.requests, performance.failed), (400, 0));
    let check = performance.check.as_ref().unwrap();
    assert_eq!((check.mismatched, check.unchecked_bytes), (0, 0));
    assert!(check.read_back_bytes > report.prepared_bytes);
    assert_eq!(performance.reads.requests + performance.writes.requests, 400);
    let reads = performance.reads.service.unwrap();
    assert!((reads.p50_millis - 3.0).abs() < 1.1, "{reads:?}");
    assert!(report.prepared_bytes > 0 && report.trace.read_bytes >= report.prepared_bytes);
    // 7.2 s of the clock, and the schedule of a rehearsal.
    let took = performance.wall_seconds;
    assert!((7.18..7.3).contains(&took), "{took}");
    assert_eq!((report.schedule.hour_millis, report.schedule.dwell_millis), (3600, 7));
    assert_eq!((report.hours.len(), report.hours[0].reads + report.hours[1].reads), (2, 133));
    assert_eq!((report.shifts.len(), report.migrations), (1, 40), "the shift of 1970 is not ours");
    // Only offload during the replay counts, on each of nine servers.
    assert!(report.offload.offloaded_bytes > 0 && report.offload.offloaded_bytes <= 9 * 267);
    let inner = fake.inner();
    assert_eq!((inner.schedule, inner.mode), (before, GearMode::Auto));
    assert_eq!(inner.deleted.len(), 2 * 3, "all chunks of both volumes");
    assert!(report.volumes.iter().all(|volume| !volume.kept));
    let commands = |r: &&AdminRequest| !matches!(r, AdminRequest::Status | AdminRequest::ListHours);
    let commands: Vec<_> = inner.admin.iter().filter(commands).cloned().collect();
    assert_eq!(
        commands,
        [
            AdminRequest::GearSet(GearWish::Gear(3)),
            AdminRequest::SetSchedule(report.schedule),
            AdminRequest::GearAuto,
            AdminRequest::GearSet(GearWish::Gear(3)),
            AdminRequest::ListShifts,
            AdminRequest::SetSchedule(before),
            AdminRequest::GearAuto,
        ]
    );
    assert!(matches!(stages[0], Progress::Preparing { .. }));
    assert!(matches!(stages.last(), Some(Progress::Comparing)));
    assert!(
        stages.iter().any(|stage| matches!(stage, Progress::Replaying { servers_awake: 9, gear: 3, .. }))
    );
}

#[tokio::test(start_paused = true)]
async fn a_halted_replay_settles_checks_and_reports_the_time_until_then() {
    let fake = Fake::new(Faults::default());
    let (before, options, trace) = (fake.inner().schedule, options(), trace());
    let halt_in_the_first_hour = &mut |progress| {
        if let Progress::Replaying { issued: 100.., .. } = progress {
            options.halt.set();
        }
    };
    let report = engine::run(&options, &trace, fake.clone(), halt_in_the_first_hour).await.unwrap();
    assert!(report.passed(), "{report}");
    let performance = &report.performance;
    assert!((100..200).contains(&performance.requests), "{report}");
    assert_eq!(performance.stopped_at_seconds, Some(performance.wall_seconds));
    // Hours, reads and energy are of the time until then, and the cluster is left as it was.
    let [hour] = &report.hours[..] else { panic!("{report}") };
    let (replayed, energy) = (performance.reads.requests, &report.modelled_energy.always_on);
    assert!(hour.reads.abs_diff(replayed) <= 1, "{} of {replayed}: {report}", hour.reads);
    let servers = energy.on_seconds / (performance.wall_seconds * SPEED);
    assert!((servers - 9.0).abs() < 0.1, "{servers}");
    assert!(report.comparison.is_some() && report.to_string().contains("stopped at "));
    let inner = fake.inner();
    assert_eq!((inner.schedule, inner.deleted.len()), (before, 2 * 3));
}

#[tokio::test(start_paused = true)]
async fn requests_go_out_at_their_time_whether_or_not_others_are_answered() {
    let mut fake = Fake::new(Faults::default());
    fake.delay = Duration::from_secs(2);
    let report = run(&fake, &trace()).await.unwrap();
    assert!(report.passed());
    let latest = |report: &ReplayReport| report.performance.lateness.unwrap().max_millis;
    assert!(latest(&report) < 1.1, "{}", latest(&report));
    assert!(report.performance.check.as_ref().unwrap().waited > 0, "slow writes are overtaken");
    assert!(report.performance.wall_seconds < 7.182 + 2.0 * 20.0);
    let narrow = ReplayOptions { in_flight: 2, ..options() };
    let fake = Fake { delay: Duration::from_millis(100), ..Fake::new(Faults::default()) };
    let report = engine::run(&narrow, &trace(), fake, &mut |_| {}).await.unwrap();
    // They wait for a place, and that is not the engine's lateness.
    let queue = report.performance.queue.unwrap();
    assert!(report.passed() && queue.p50_millis > 1000.0 && latest(&report) < 1.1, "{queue:?}");
    // 20 s of work in the time of 7 s: what was served is not the trace's load.
    let behind = report.fell_behind().expect("far behind an hour of 3.6 s");
    assert_eq!((behind.most_millis, behind.wait_p95_millis), (3600.0, queue.p95_millis));
    assert_eq!(report.modelled_energy.compared, None);
    let text = report.to_string();
    assert!(text.contains("kWh; no savings, because") && !text.contains("PASSED"), "{text}");
    assert!(
        text.contains("\nbehind    the trace was not kept up with") && !text.contains(" % saved"),
        "{text}"
    );
    let json = ebb_output::json(&report);
    assert!(json.contains("\"wait_p95_millis\": ") && !json.contains("\"saved_percent\""), "{json}");
}

/// Whether losing a write is noticed: some byte of it is read before it is overwritten, or remains at the end.
fn is_missed(trace: &Trace, index: usize) -> bool {
    let range = |request: &Request| request.offset..request.offset + u64::from(request.len);
    let lost = &trace.requests[index];
    let mut left: BTreeSet<u64> = range(lost).collect();
    for later in trace.requests[index + 1..].iter().filter(|later| later.device == lost.device) {
        match later.kind {
            Kind::Read if left.range(range(later)).next().is_some() => return true,
            Kind::Read => {}
            Kind::Write => left.retain(|at| !range(later).contains(at)),
        }
    }
    !left.is_empty()
}

#[tokio::test(start_paused = true)]
async fn a_lost_write_and_a_damaged_read_are_found() {
    let trace = trace();
    let clean = Fake::new(Faults::default());
    run(&clean, &trace).await.unwrap();
    let is_write = |index: &usize| trace.requests[*index].kind == Kind::Write;
    let writes: Vec<usize> = (0..trace.requests.len()).filter(is_write).collect();
    let prepared = clean.inner().writes - writes.len() as u64;
    let mut found = 0;
    for (nth, index) in writes.iter().enumerate().step_by(13) {
        let number = prepared + nth as u64 + 1;
        let fake = Fake::new(Faults { lose_write: Some(number), ..Faults::default() });
        let report = run(&fake, &trace).await.unwrap();
        let check = report.performance.check.as_ref().unwrap();
        assert_eq!(check.mismatched > 0, is_missed(&trace, *index), "write {number}: {report}");
        assert_eq!(check.mismatches.is_empty(), report.passed());
        assert_eq!(fake.inner().deleted.is_empty(), !report.passed(), "volumes are kept to be looked at");
        found += u32::from(!report.passed());
    }
    assert!(found >= 8, "{found}");
    for number in [1, 77, 133] {
        let fake = Fake::new(Faults { flip_read: Some(number), ..Faults::default() });
        let report = run(&fake, &trace).await.unwrap();
        let check = report.performance.check.as_ref().unwrap();
        assert_eq!((check.mismatched, check.mismatches.len()), (1, 1));
        let text = report.to_string();
        assert!(text.contains("wrong: volume ") && text.ends_with("FAILED\n"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn failures_debt_and_differing_replicas_fail_the_replay() {
    let trace = trace();
    let writes_before = Fake::new(Faults::default());
    run(&writes_before, &trace).await.unwrap();
    let last = writes_before.inner().writes;
    for faults in [
        Faults { fail_write: Some(last - 3), ..Faults::default() },
        Faults { fail_read: Some(5), ..Faults::default() },
        Faults { debt: true, ..Faults::default() },
        Faults { differing: 1, ..Faults::default() },
    ] {
        let report = run(&Fake::new(faults), &trace).await.unwrap();
        assert!(!report.passed(), "{faults:?}");
        assert_eq!(report.comparison.is_none(), faults.debt);
        assert_eq!(report.performance.failed, u64::from(faults.fail_write.or(faults.fail_read).is_some()));
        assert!(report.volumes.iter().all(|volume| volume.kept));
    }
    let fake = Fake::new(Faults { fail_write: Some(1), ..Faults::default() });
    let error = run(&fake, &trace).await.unwrap_err();
    assert!(error.to_string().contains("the write went wrong"), "{error}");
    assert_eq!(fake.inner().mode, GearMode::Auto, "put back after an error, too");
}

/// Shifts to gears, each a number of milliseconds after the cluster was first allowed to choose.
fn shift_after_the_start(fake: &Fake, gears: [(u64, u8); 2]) {
    let sleeper = fake.clone();
    tokio::spawn(async move {
        let start = loop {
            if let Some(start) = sleeper.inner().started {
                break start;
            }
            sleep(Duration::from_millis(1)).await;
        };
        for (millis, gear) in gears {
            tokio::time::sleep_until(start + Duration::from_millis(millis)).await;
            sleeper.shift(gear);
        }
    });
}

#[tokio::test(start_paused = true)]
async fn sleep_is_seen_and_its_energy_counted_in_trace_time() {
    let fake = Fake::new(Faults::default());
    shift_after_the_start(&fake, [(1800, 1), (5400, 2)]);
    let report = run(&fake, &trace()).await.unwrap();
    let energy = &report.modelled_energy;
    assert_eq!(energy.cluster.transitions, 6 + 3);
    // Six servers asleep from 1800 s on, three of them back at 5400 s; the run ends at 7182 s.
    let asleep = 3.0 * 3600.0 + 3.0 * 5382.0 - 6.0 * 7.0;
    assert!((energy.cluster.standby_seconds / asleep - 1.0).abs() < 0.01, "{energy:?}");
    let saved = energy.compared.as_ref().unwrap().saved_percent;
    assert!(saved > 30.0 && saved < 45.0, "{energy:?}");
    let gears: Vec<u8> = report.latency.by_gear.iter().map(|gear| gear.gear).collect();
    assert_eq!(gears, [1, 2, 3]);
    let counts =
        report.latency.by_gear.iter().map(|g| g.of.reads.unwrap().count + g.of.writes.unwrap().count);
    let counts: Vec<u64> = counts.collect();
    // A quarter, a half, a quarter of the time; the gear is sampled ten times per hour.
    for (count, right) in counts.iter().zip([200, 99, 100]) {
        assert!(count.abs_diff(right) <= 25, "{counts:?}");
    }
    // Windows of 2 s around 1.8 s and 5.4 s: all but 0.4 s at the end, less the last sample.
    let stretches = &report.latency.stretches;
    let count = |of: &KindLatency| of.reads.unwrap().count + of.writes.unwrap().count;
    let near = count(&stretches.up_shifts) + count(&stretches.down_shifts);
    assert!((380..=400).contains(&near), "{near}");
}

#[tokio::test(start_paused = true)]
async fn a_prelude_leaves_its_state_and_is_in_no_figure_and_its_bytes_are_checked_too() {
    let (fake, options) = (Fake::new(Faults::default()), ReplayOptions { prelude: 1, ..options() });
    shift_after_the_start(&fake, [(1800, 1), (5400, 2)]);
    let mut stages = Vec::new();
    let report =
        engine::run(&options, &trace(), fake.clone(), &mut |progress| stages.push(progress)).await.unwrap();
    assert!(report.passed(), "{report}");
    let prelude = report.prelude.unwrap();
    assert_eq!(prelude, PreludeReport { hours: 1, requests: 200, failed: 0, debt_bytes: 4096 });
    let text = report.to_string();
    assert!(
        text.contains("prelude   1 h, not measured: 200 requests, 0 failed; 4.0 KiB of offload"),
        "{text}"
    );
    // The second of two hours, at a thousandth of its length.
    let performance = &report.performance;
    assert_eq!((performance.requests, report.trace.requests), (200, 200));
    assert!((3.58..3.7).contains(&performance.wall_seconds), "{}", performance.wall_seconds);
    assert!((3581.0..3583.0).contains(&report.trace.span_seconds), "{:?}", report.trace);
    let [hour] = &report.hours[..] else { panic!("{report}") };
    assert_eq!((hour.hour, hour.reads + hour.writes, hour.gear), (1, 200, Some(1)));
    let counts =
        report.latency.by_gear.iter().map(|g| g.of.reads.unwrap().count + g.of.writes.unwrap().count);
    assert_eq!(counts.sum::<u64>(), 200);
    let gears: Vec<u8> = report.latency.by_gear.iter().map(|gear| gear.gear).collect();
    assert_eq!(gears, [1, 2], "it begins in the gear of the prelude");
    // Six asleep from the start on, three of them for half of it.
    let energy = &report.modelled_energy.cluster;
    assert_eq!(energy.transitions, 3);
    let asleep = 6.0 * 1800.0 + 3.0 * 1782.0;
    assert!((energy.standby_seconds / asleep - 1.0).abs() < 0.01, "{energy:?}");
    assert!(stages.iter().any(|stage| matches!(stage, Progress::Prelude { debt_bytes: 4096, .. })));
    let first = stages.iter().position(|stage| matches!(stage, Progress::Replaying { .. })).unwrap();
    assert!(!stages[first..].iter().any(|stage| matches!(stage, Progress::Prelude { .. })));

    let whole = Fake::new(Faults::default());
    let of_all = run(&whole, &trace()).await.unwrap();
    let read_back = |report: &ReplayReport| report.performance.check.as_ref().unwrap().read_back_bytes;
    assert_eq!((read_back(&report), report.prepared_bytes), (read_back(&of_all), of_all.prepared_bytes));
    let prepared = whole.inner().writes - 267;
    let early = |faults| async move {
        let options = ReplayOptions { prelude: 1, ..self::options() };
        engine::run(&options, &trace(), Fake::new(faults), &mut |_| {}).await.unwrap()
    };
    let refused = early(Faults { fail_write: Some(prepared + 50), ..Faults::default() }).await;
    assert_eq!(
        (refused.passed(), refused.prelude.unwrap().failed, refused.performance.failed),
        (false, 1, 0)
    );
    let damaged = early(Faults { flip_read: Some(1), ..Faults::default() }).await;
    let check = damaged.performance.check.as_ref().unwrap();
    assert_eq!((damaged.passed(), damaged.prelude.unwrap().failed, check.mismatched), (false, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_replay_that_is_halted_in_its_prelude_has_measured_nothing() {
    let (fake, options) = (Fake::new(Faults::default()), ReplayOptions { prelude: 1, ..options() });
    let halt_in_the_prelude = &mut |progress| {
        if let Progress::Prelude { at, .. } = progress
            && at > Duration::from_secs(1000)
        {
            options.halt.set();
        }
    };
    let report = engine::run(&options, &trace(), fake.clone(), halt_in_the_prelude).await.unwrap();
    assert!(report.passed() && report.comparison.is_some(), "{report}");
    let (performance, prelude) = (&report.performance, report.prelude.unwrap());
    assert_eq!((performance.requests, performance.stopped_at_seconds), (0, Some(0.0)));
    assert!((1..200).contains(&prelude.requests), "{report}");
    assert_eq!(fake.inner().deleted.len(), 2 * 3);
}

#[tokio::test(start_paused = true)]
async fn a_run_with_every_server_awake_is_compared_by_the_stretches_of_the_first() {
    let fake = Fake::new(Faults::default());
    shift_after_the_start(&fake, [(1800, 1), (5400, 2)]);
    let options = ReplayOptions { beside_always_on: true, ..options() };
    let report = engine::run(&options, &trace(), fake.clone(), &mut |_| {}).await.unwrap();
    assert!(report.passed(), "{report}");
    let beside = report.always_on.as_ref().unwrap();
    let counts = |of: &StretchLatency| {
        of.named().map(|(_, of)| of.reads.map_or(0, |l| l.count) + of.writes.map_or(0, |l| l.count))
    };
    let own = counts(&report.latency.stretches);
    assert_eq!(own, counts(&beside.latency));
    assert!(own[1] > 150 && own[2] > 150, "{own:?}");
    assert_eq!(beside.performance.requests, 400);
    // The cluster chooses in the first run, and again once the replay has ended.
    let admin = fake.inner().admin.clone();
    assert_eq!(admin.iter().filter(|request| **request == AdminRequest::GearAuto).count(), 2);
    assert_eq!(fake.inner().asleep.len(), 0);
    let text = report.to_string();
    assert!(text.contains("times always on"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_replayed_is_refused_before_anything_is_written() {
    let fake = Fake::new(Faults::default());
    let refused = async |options: ReplayOptions, trace: &Arc<Trace>| {
        engine::run(&options, trace, fake.clone(), &mut |_| {}).await.unwrap_err()
    };
    for speed in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(
            refused(ReplayOptions { speed, ..options() }, &trace()).await,
            ReplayError::Drive(DriveError::Speed(_))
        ));
    }
    assert!(matches!(refused(options(), &Arc::default()).await, ReplayError::Empty));
    let fast = ReplayOptions { speed: 1e6, ..options() };
    assert!(matches!(
        refused(fast, &trace()).await,
        ReplayError::Rehearsal(RehearsalError::HourTooShort { .. })
    ));
    for asked in [0, 10] {
        let many = ReplayOptions { provision: Some(Provision::Servers(asked)), ..options() };
        assert!(matches!(
            refused(many, &trace()).await,
            ReplayError::Rehearsal(RehearsalError::Provision { servers: 9, .. })
        ));
    }
    let all = ReplayOptions { prelude: 2, ..options() };
    let error = refused(all, &trace()).await.to_string();
    assert!(error.contains("a prelude of 2 h: the trace ends after 2.0 h"), "{error}");
    let none = ReplayOptions { in_flight: 0, ..options() };
    assert!(matches!(refused(none, &trace()).await, ReplayError::Drive(DriveError::InFlight(0))));
    assert!(fake.inner().admin.iter().all(|request| *request == AdminRequest::Status));
}

#[tokio::test(start_paused = true)]
async fn hours_of_an_earlier_replay_are_forgotten() {
    let fake = Fake::new(Faults::default());
    let same = rehearsal(&fake.inner().schedule, SPEED).unwrap();
    fake.inner().schedule = same;
    run(&fake, &trace()).await.unwrap();
    let set = |request: &AdminRequest| match request {
        AdminRequest::SetSchedule(schedule) => Some((schedule.hour_millis, schedule.hour_zero_unix_millis)),
        _ => None,
    };
    let set: Vec<(u64, u64)> = fake.inner().admin.iter().filter_map(set).collect();
    assert!(matches!(set[..], [(3600, 1..), (3600, 0)]), "hours are counted from another time: {set:?}");
}
