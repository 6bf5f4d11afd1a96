//! A load that verifies everything: acknowledged data is read back, and no reader ever sees older data.
//!
//! Volumes are divided into cells of a few sectors that do not end at block boundaries, so neighbouring cells, which
//! have other writers, share blocks. One worker writes a cell, all workers read it. Every sector of a cell's version n
//! has content derived from (cell, sector, n), so a read shows whether it is one version, and which. For each cell the
//! load tracks the floor, the newest version that was acknowledged or read, and the newest version ever sent: a read
//! must show a version that is not older than the floor was when the read began, nor newer than what had been sent when
//! it ended. A failed write may or may not be visible; the same rule covers it.
//!
//! One more worker creates and deletes volumes, and checks that the metadata service forgets none of it.

use ebb_client::{Client, ClientConfig, ClientError};
use ebb_types::{
    ChunkId, NamespaceAnswer, NamespaceError, NamespaceOp, NamespaceQuery, ObjectId, Random, group_of, mix,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::task::LocalSet;

const SECTOR: usize = 512;
/// Sectors of a small cell: 5 KiB, so that cells and blocks never align.
const SMALL: u64 = 10;
/// Sectors of a large cell: above the size from which the store writes directly to its chunk file.
const LARGE: u64 = 400;
/// Operations longer than this are recorded individually.
const NOTABLE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub struct Options {
    pub workers: usize,
    /// Small cells per worker, in addition to one large cell.
    pub cells: usize,
    /// Chunks of 1 MiB that the small cells are spread over. Odd, so that neighbours have different writers.
    pub chunks: u64,
    /// Pause of a worker between two operations.
    pub pause: Duration,
    pub seed: u64,
    pub namespace: bool,
}

impl Default for Options {
    fn default() -> Self {
        let pause = Duration::from_millis(20);
        Options { workers: 32, cells: 32, chunks: 201, pause, seed: 1, namespace: true }
    }
}

#[derive(Debug)]
struct Cell {
    object: ObjectId,
    /// In sectors of the object.
    first: u64,
    sectors: u64,
    /// The newest version that was acknowledged or read.
    floor: AtomicU64,
    /// The newest version that was sent.
    sent: AtomicU64,
    /// Time of the newest write, in milliseconds from the start.
    acknowledged: AtomicU64,
}

/// An operation that took long.
#[derive(Clone, Debug)]
pub struct Long {
    pub began: Instant,
    pub ended: Instant,
    pub what: String,
}

#[derive(Debug, Default)]
struct Findings {
    failures: Vec<String>,
    mismatches: Vec<String>,
    long: Vec<Long>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    paused: AtomicBool,
    base: Instant,
    /// Nanoseconds since `base` at which each worker's operation began; zero: none in progress.
    running: Vec<AtomicU64>,
    reads: AtomicU64,
    writes: AtomicU64,
    names: AtomicU64,
    retries: AtomicU64,
    found: Mutex<Findings>,
}

/// Findings of a load; complete once it has ended.
#[derive(Clone, Debug)]
pub struct Report {
    pub reads: u64,
    pub writes: u64,
    pub names: u64,
    pub retries: u64,
    pub failures: Vec<String>,
    pub mismatches: Vec<String>,
    pub longest: Duration,
    pub long: Vec<Long>,
    base: Instant,
}

impl Report {
    /// The longest operations, as readable lines.
    pub fn longest_operations(&self) -> String {
        let mut long: Vec<&Long> = self.long.iter().collect();
        long.sort_by_key(|l| std::cmp::Reverse(l.ended - l.began));
        let line = |l: &&Long| {
            format!("  {:>7.2?} from {:.3?} on: {}\n", l.ended - l.began, l.began - self.base, l.what)
        };
        long.iter().take(8).map(line).collect()
    }

    /// Checks that no acknowledged write is lost or stale.
    pub fn assert_sound(&self) {
        assert!(
            self.mismatches.is_empty(),
            "{} mismatches: {:#?}",
            self.mismatches.len(),
            first(&self.mismatches)
        );
        assert!(self.reads > 0 && self.writes > 0, "the load did nothing");
    }

    /// Also checks that nothing failed.
    pub fn assert_flawless(&self) {
        self.assert_sound();
        assert!(
            self.failures.is_empty(),
            "{} requests failed: {:#?}",
            self.failures.len(),
            first(&self.failures)
        );
    }
}

impl Report {
    /// Checks that nothing is lost or stale, and that every failure was a refusal for this reason.
    pub fn assert_refused_only(&self, why: &str) {
        self.assert_sound();
        let other: Vec<&String> = self.failures.iter().filter(|f| !f.contains(why)).collect();
        assert!(other.is_empty(), "{} requests failed otherwise: {:#?}", other.len(), other.first());
    }
}

fn first(list: &[String]) -> &[String] {
    &list[..list.len().min(8)]
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Report { reads, writes, names, retries, longest, .. } = self;
        write!(
            f,
            "{reads} reads, {writes} writes, {names} name changes, {retries} retries, {} failed; longest {longest:.2?}",
            self.failures.len()
        )
    }
}

/// A load that runs on its own thread.
pub struct Load {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Load {
    /// Returns once the volumes exist and the first operations are done.
    pub fn start(mut config: ClientConfig, options: Options) -> Load {
        // Each cell has one writer.
        config.patience.sole_writer = true;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            base: Instant::now(),
            running: (0..=options.workers).map(|_| AtomicU64::new(0)).collect(),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            names: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            found: Mutex::default(),
        });
        let own = shared.clone();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            LocalSet::new().block_on(&runtime, run(config, options, own));
        });
        let load = Load { shared, thread: Some(thread) };
        super::wait("the load runs", super::PATIENCE, || {
            let dead = load.thread.as_ref().is_some_and(|t| t.is_finished());
            assert!(!dead, "the load ended before it began: {:?}", load.shared.found());
            load.has_done(64).then_some(())
        });
        load
    }

    fn has_done(&self, operations: u64) -> bool {
        self.operations() >= operations
    }

    pub fn operations(&self) -> u64 {
        self.shared.reads.load(Ordering::Relaxed) + self.shared.writes.load(Ordering::Relaxed)
    }

    /// Waits until this many more operations are done.
    pub fn go_on_for(&self, operations: u64) {
        let goal = self.operations() + operations;
        super::wait("the load continues", super::PATIENCE, || self.has_done(goal).then_some(()));
    }

    /// Waits until this many more operations were refused, or are done. Writes that a full server had accepted before
    /// wait for room.
    pub fn go_on_until_refused(&self, refused: usize, done: u64) {
        let failures = || self.shared.found().failures.len();
        let (refused, done) = (failures() + refused, self.operations() + done);
        super::wait("the load continues, or is refused", super::PATIENCE, || {
            (failures() >= refused || self.has_done(done)).then_some(())
        });
    }

    /// Runs something while no operation is in flight.
    pub fn pausing<T>(&self, work: impl FnOnce() -> T) -> T {
        self.shared.paused.store(true, Ordering::SeqCst);
        // A worker that checked before the pause is seen at the second check: it begins at once.
        for _ in 0..2 {
            super::wait("the load pauses", super::PATIENCE, || {
                std::thread::sleep(Duration::from_millis(10));
                self.shared.running.iter().all(|began| began.load(Ordering::SeqCst) == 0).then_some(())
            });
        }
        let done = work();
        self.shared.paused.store(false, Ordering::SeqCst);
        done
    }

    /// The longest operation that was in flight at `since` or began later; running ones count with their time so far.
    pub fn longest_since(&self, since: Instant) -> Duration {
        self.spans(since).map(|(began, ended)| ended - began).max().unwrap_or_default()
    }

    /// The longest time that an operation took after `since`, not counting its time before.
    pub fn longest_after(&self, since: Instant) -> Duration {
        self.spans(since).map(|(began, ended)| ended - began.max(since)).max().unwrap_or_default()
    }

    /// Begin and end of the notable operations that had not ended at `since`; running ones end now.
    fn spans(&self, since: Instant) -> impl Iterator<Item = (Instant, Instant)> {
        let now = Instant::now();
        let ended: Vec<_> = self.shared.found().long.iter().map(|l| (l.began, l.ended)).collect();
        let running =
            self.shared.running.iter().filter_map(move |started| match started.load(Ordering::Relaxed) {
                0 => None,
                nanos => Some((self.shared.base + Duration::from_nanos(nanos), now)),
            });
        ended.into_iter().chain(running).filter(move |(began, ended)| *ended >= since && ended > began)
    }

    /// Time since the start.
    pub fn elapsed(&self) -> Duration {
        self.shared.base.elapsed()
    }

    pub fn mismatches(&self) -> Vec<String> {
        self.shared.found().mismatches.clone()
    }

    /// Ends the load, reads everything once more, and returns the findings.
    pub fn stop(mut self) -> Report {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("a load is stopped once").join().expect("the load ran to its end");
        let shared = &self.shared;
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let found = std::mem::take(&mut *shared.found());
        Report {
            reads: load(&shared.reads),
            writes: load(&shared.writes),
            names: load(&shared.names),
            retries: load(&shared.retries),
            failures: found.failures,
            mismatches: found.mismatches,
            longest: found.long.iter().map(|l| l.ended - l.began).max().unwrap_or_default(),
            long: found.long,
            base: shared.base,
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn found(&self) -> std::sync::MutexGuard<'_, Findings> {
        self.found.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Pauses between two operations.
    async fn rest(&self, pause: Duration) {
        tokio::time::sleep(pause).await;
        while self.paused.load(Ordering::SeqCst) && !self.stopped() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn mismatch(&self, what: &str, why: &str) {
        self.found().mismatches.push(format!("{:.3?} after the start: {why}: {what}", self.base.elapsed()));
    }

    /// Runs one operation and records it.
    async fn timed<T>(
        &self,
        worker: usize,
        what: impl Fn() -> String,
        operation: impl Future<Output = Result<T, ClientError>>,
    ) -> Option<T> {
        let began = Instant::now();
        self.running[worker].store((began - self.base).as_nanos().max(1) as u64, Ordering::Relaxed);
        let outcome = operation.await;
        self.running[worker].store(0, Ordering::Relaxed);
        let ended = Instant::now();
        if ended - began >= NOTABLE {
            self.found().long.push(Long { began, ended, what: what() });
        }
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                self.found().failures.push(format!("{}, after {:.1?}: {error}", what(), self.base.elapsed()));
                None
            }
        }
    }
}

impl Cell {
    fn bytes(&self) -> (u64, u64) {
        (self.first * SECTOR as u64, self.sectors * SECTOR as u64)
    }

    fn content(&self, version: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.sectors as usize * SECTOR);
        for sector in self.first..self.first + self.sectors {
            let key = mix(self.object.0 ^ mix(sector ^ mix(version)));
            out.extend_from_slice(&version.to_le_bytes());
            out.extend((1..SECTOR as u64 / 8).flat_map(|word| key.wrapping_add(word).to_le_bytes()));
        }
        out
    }

    /// The version of the bytes; zero: never written.
    fn version_of(&self, bytes: &[u8]) -> Result<u64, String> {
        let head = bytes.first_chunk::<8>().ok_or("too short")?;
        let version = u64::from_le_bytes(*head);
        let whole = if version == 0 {
            bytes.iter().all(|b| *b == 0)
        } else {
            version <= self.sent.load(Ordering::SeqCst) && bytes == self.content(version)
        };
        if whole {
            Ok(version)
        } else {
            Err(format!("bytes that no write gave (they begin as version {version})"))
        }
    }
}

async fn run(config: ClientConfig, options: Options, shared: Arc<Shared>) {
    let client = match Client::connect(config).await {
        Ok(client) => client,
        Err(error) => return shared.found().failures.push(format!("connect: {error}")),
    };
    let Some(cells) = make_cells(&client, &options, &shared).await else { return };
    let cells: Rc<[Cell]> = cells.into();
    let mut tasks = Vec::new();
    for worker in 0..options.workers {
        let (client, options, shared, cells) =
            (client.clone(), options.clone(), shared.clone(), cells.clone());
        tasks.push(tokio::task::spawn_local(work(client, options, shared, cells, worker)));
    }
    if options.namespace {
        tasks.push(tokio::task::spawn_local(names(client.clone(), options.clone(), shared.clone())));
    }
    for task in tasks {
        task.await.expect("a worker does not panic");
    }
    for cell in cells.iter() {
        read(&client, &shared, cell, 0).await;
    }
    shared.retries.store(client.counters().retries, Ordering::Relaxed);
}

/// Creates two volumes: one for the small cells, and one for the large ones with a chunk per worker.
async fn make_cells(client: &Client, options: &Options, shared: &Shared) -> Option<Vec<Cell>> {
    let chunk_sectors = u64::from(client.params().chunk_bytes) / SECTOR as u64;
    let (workers, chunks) = (options.workers as u64, options.chunks);
    let small = volume(client, shared, "small", chunks * chunk_sectors).await?;
    let large = volume(client, shared, "large", workers * chunk_sectors).await?;
    let cell = |object, first, sectors| Cell {
        object,
        first,
        sectors,
        floor: AtomicU64::new(0),
        sent: AtomicU64::new(0),
        acknowledged: AtomicU64::new(0),
    };
    // Cell n belongs to worker n % workers.
    let small = (0..workers * options.cells as u64).map(|n| {
        let (chunk, place) = (n % chunks, n / chunks);
        assert!((place + 1) * SMALL <= chunk_sectors, "too many cells for the chunks");
        cell(small, chunk * chunk_sectors + place * SMALL, SMALL)
    });
    let large = (0..workers).map(|w| cell(large, w * chunk_sectors + 3, LARGE));
    Some(small.chain(large).collect())
}

async fn volume(client: &Client, shared: &Shared, name: &str, sectors: u64) -> Option<ObjectId> {
    let name = format!("{name}-{}", client.next_request().client);
    shared
        .timed(0, || format!("create volume {name}"), async {
            let object = client.allocate_objects(1).await?;
            let size = sectors * SECTOR as u64;
            client
                .namespace(vec![NamespaceOp::CreateVolume { name: name.clone(), size, object, home: None }])
                .await?;
            Ok(object)
        })
        .await
}

async fn work(client: Client, options: Options, shared: Arc<Shared>, cells: Rc<[Cell]>, worker: usize) {
    let mut random = Random::new(options.seed.wrapping_mul(1000) + worker as u64);
    while !shared.stopped() {
        if random.below(2) == 0 {
            let own = random.below(cells.len() as u64 / options.workers as u64) as usize;
            write(&client, &shared, &cells[own * options.workers + worker], worker).await;
        } else {
            read(&client, &shared, random.pick(&cells).expect("there are cells"), worker).await;
        }
        shared.rest(options.pause).await;
    }
}

async fn write(client: &Client, shared: &Shared, cell: &Cell, worker: usize) {
    let version = cell.sent.fetch_add(1, Ordering::SeqCst) + 1;
    let (offset, _) = cell.bytes();
    let bytes = cell.content(version).into();
    let what = || format!("write {version} of {}", place(client, cell));
    if shared.timed(worker, what, client.write_object(cell.object, offset, bytes)).await.is_some() {
        cell.floor.fetch_max(version, Ordering::SeqCst);
        cell.acknowledged.store(shared.base.elapsed().as_millis() as u64, Ordering::Relaxed);
        shared.writes.fetch_add(1, Ordering::Relaxed);
    }
}

async fn read(client: &Client, shared: &Shared, cell: &Cell, worker: usize) {
    let floor = cell.floor.load(Ordering::SeqCst);
    let (offset, len) = cell.bytes();
    let what = || format!("read of {}", place(client, cell));
    let Some(bytes) = shared.timed(worker, what, client.read_object(cell.object, offset, len)).await else {
        return;
    };
    shared.reads.fetch_add(1, Ordering::Relaxed);
    match cell.version_of(&bytes) {
        Ok(version) if version >= floor => {
            cell.floor.fetch_max(version, Ordering::SeqCst);
        }
        Ok(version) => shared.mismatch(&what(), &format!("version {version}, not {floor}")),
        Err(why) => shared.mismatch(&what(), &format!("{why}, not {floor}")),
    }
}

/// Location of a cell, and the current configuration of its chunk group.
fn place(client: &Client, cell: &Cell) -> String {
    let (params, map) = (client.params(), client.map());
    let (offset, len) = cell.bytes();
    let chunk_bytes = u64::from(params.chunk_bytes);
    let chunk = ChunkId { object: cell.object, index: (offset / chunk_bytes) as u32 };
    let group = group_of(chunk, params.groups);
    let entry = map.group(group);
    let written = cell.acknowledged.load(Ordering::Relaxed);
    let at = offset % chunk_bytes;
    format!("{chunk}+{at}, {len} bytes, last written after {written} ms, in {group}: {entry:?}")
}

/// Creates and deletes volumes. Volumes known to exist are looked up repeatedly, and at the end.
async fn names(client: Client, options: Options, shared: Arc<Shared>) {
    let worker = options.workers;
    let mut random = Random::new(options.seed.wrapping_add(77));
    let known: RefCell<BTreeMap<String, bool>> = RefCell::default();
    let prefix = format!("name-{}", client.next_request().client);
    let check = async |name: &str| {
        let expected = known.borrow().get(name).copied();
        let query = NamespaceQuery::Volume { name: name.to_owned() };
        let answer = shared.timed(worker, || format!("look up {name}"), client.query(query)).await;
        let (Some(answer), Some(expected)) = (answer, expected) else { return };
        let there = match answer {
            Ok(NamespaceAnswer::Volume(_)) => true,
            Err(NamespaceError::NoSuchVolume) => false,
            other => return shared.mismatch(&format!("look up {name}"), &format!("{other:?}")),
        };
        if there != expected {
            shared.mismatch(&format!("volume {name}"), &format!("there {there}, expected {expected}"));
        }
    };
    while !shared.stopped() {
        let name = format!("{prefix}-{}", random.below(200));
        let there = known.borrow().get(&name).copied();
        let create = there != Some(true);
        // While the outcome is open, nothing is expected.
        known.borrow_mut().remove(&name);
        let change = async {
            let op = if create {
                let object = client.allocate_objects(1).await?;
                NamespaceOp::CreateVolume { name: name.clone(), size: 1 << 20, object, home: None }
            } else {
                NamespaceOp::DeleteVolume { name: name.clone() }
            };
            client.namespace(vec![op]).await
        };
        if shared.timed(worker, || format!("change {name}"), change).await.is_some() {
            known.borrow_mut().insert(name, create);
            shared.names.fetch_add(1, Ordering::Relaxed);
        }
        let other = format!("{prefix}-{}", random.below(200));
        if known.borrow().contains_key(&other) {
            check(&other).await;
        }
        shared.rest(options.pause).await;
    }
    let all: Vec<String> = known.borrow().keys().cloned().collect();
    for name in all {
        check(&name).await;
    }
}
