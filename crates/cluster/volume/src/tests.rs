//! Volumes on a cluster in memory, whose requests take time, fail before or after they took effect, and stop with their
//! process. The namespace is the real one.

use super::*;
use bytes::Bytes;
use ebb_client::{ClientError, Clock};
use ebb_meta::Namespace;
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, Epoch, Extent, Looked, NamespaceCommand, NamespaceDone, NamespaceError,
    ObjectId, PoolId, Random, RequestId, Version,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

const BLOCK: u64 = BLOCK_BYTES as u64;
const SIZE: u64 = 3 * SLICE_BYTES as u64 + 5 * BLOCK + 700;
const POOL: PoolId = PoolId(3);
/// Half of a slice: moves begin after a few writes.
const HOME: VolumeHome = VolumeHome { pool: POOL, front_bytes: 128 * BLOCK };

#[derive(Default)]
struct Stored {
    namespace: Namespace,
    /// Blocks of the front with their versions; `None`: set to zero.
    front: BTreeMap<u64, (Version, Option<Vec<u8>>)>,
    moved: BTreeMap<ObjectId, Bytes>,
    seq: u64,
    serial: u64,
    random: Option<Random>,
    /// One request in this many fails.
    failing: Option<u64>,
    /// Requests take up to seconds.
    slow: bool,
    /// Slices whose blocks in the front cannot be read.
    unreadable: std::ops::Range<u32>,
    /// Garbage by its number, and when it was first seen.
    garbage: BTreeMap<u64, (ObjectId, Instant)>,
    /// The newest claim that was noted.
    claim: u64,
    /// Runs of this machine that have ended.
    ended: BTreeSet<u64>,
    /// The slice of which nothing that changes the front ends.
    stuck: Option<u32>,
    /// The next clearing fails, and is carried out later: slice and version.
    clears_late: bool,
    late: Option<(u32, Version)>,
}

/// One process's access to the cluster.
#[derive(Clone)]
struct Fake {
    run: u64,
    claim: u64,
    clock: Clock,
    stored: Arc<Mutex<Stored>>,
    /// While `true`, the process stands still: its requests do not reach the cluster.
    stopped: Arc<watch::Sender<bool>>,
}

impl Stored {
    /// Frees what has been garbage for longer than any read takes, as a gateway's janitor does.
    fn free(&mut self) {
        let Ok(NamespaceAnswer::Garbage(page)) =
            self.namespace.query(&NamespaceQuery::Garbage { after: 0, limit: 1000 })
        else {
            panic!("no garbage");
        };
        for (number, Extent { object, .. }) in page {
            let (_, seen) = self.garbage.entry(number).or_insert((object, Instant::now()));
            if seen.elapsed() > Duration::from_millis(100) {
                self.moved.remove(&object);
            }
        }
    }

    fn version(&mut self) -> Version {
        self.seq += 1;
        Version { epoch: Epoch(1), seq: self.seq }
    }

    fn block(&self, number: u64) -> Vec<u8> {
        let data = self.front.get(&number).and_then(|(_, data)| data.clone());
        data.unwrap_or_else(|| vec![0; BLOCK_BYTES])
    }

    fn set(&mut self, offset: u64, bytes: &[u8]) {
        let version = self.version();
        for number in offset / BLOCK..(offset + bytes.len() as u64).div_ceil(BLOCK) {
            let mut block = self.block(number);
            let (from, to) =
                (offset.max(number * BLOCK), (offset + bytes.len() as u64).min((number + 1) * BLOCK));
            block[(from - number * BLOCK) as usize..(to - number * BLOCK) as usize]
                .copy_from_slice(&bytes[(from - offset) as usize..(to - offset) as usize]);
            self.front.insert(number, (version, Some(block)));
        }
    }

    fn zero(&mut self, offset: u64, len: u64) {
        self.set(offset, &vec![0; len as usize]);
        let version = self.version();
        for number in offset.div_ceil(BLOCK)..(offset + len) / BLOCK {
            self.front.insert(number, (version, None));
        }
    }

    fn clear(&mut self, slice: u32, up_to: Version) {
        let is_old = |(_, version): &(u64, Version)| *version <= up_to;
        let old: Vec<u64> = self.data_of(slice).filter(is_old).map(|(block, _)| block).collect();
        let (first, version) = (u64::from(slice) * u64::from(SLICE_BYTES) / BLOCK, self.version());
        old.into_iter().for_each(|block| _ = self.front.insert(first + block, (version, None)));
    }

    fn data_of(&self, slice: u32) -> impl Iterator<Item = (u64, Version)> {
        let first = u64::from(slice) * u64::from(SLICE_BYTES) / BLOCK;
        let range = self.front.range(first..first + u64::from(SLICE_BYTES) / BLOCK);
        range.filter(|(_, (_, data))| data.is_some()).map(move |(n, (version, _))| (n - first, *version))
    }
}

impl Fake {
    fn other(&self, run: u64) -> Fake {
        let stopped = Arc::new(watch::Sender::new(false));
        Fake { run, claim: 0, clock: Clock::new(), stored: self.stored.clone(), stopped }
    }

    /// Carries out a request, which takes time and may fail.
    async fn ask<T>(&self, act: impl FnOnce(&mut Stored) -> T) -> Result<T, ClientError> {
        let (before, after, fails) = {
            let mut stored = self.stored.lock().unwrap();
            let (failing, longest) = (stored.failing, if stored.slow { 2_000 } else { 20 });
            let random = stored.random.as_mut().unwrap();
            let fails = failing.is_some_and(|one_in| random.below(one_in) == 0);
            (random.below(longest), random.below(longest), fails.then(|| random.below(2)))
        };
        sleep(Duration::from_millis(before)).await;
        let mut stopped = self.stopped.subscribe();
        stopped.wait_for(|stopped| !stopped).await.expect("its sender is here");
        let failed = ClientError::ObjectRange;
        if fails == Some(0) {
            return Err(failed);
        }
        let answer = act(&mut self.stored.lock().unwrap());
        sleep(Duration::from_millis(after)).await;
        stopped.wait_for(|stopped| !stopped).await.expect("its sender is here");
        if fails == Some(1) { Err(failed) } else { Ok(answer) }
    }
}

impl Fake {
    /// A request for the front, which is carried out under the newest claim only.
    async fn ask_front<T>(&self, act: impl FnOnce(&mut Stored) -> T) -> Result<T, ClientError> {
        let taken = ClientError::Chunk { chunk: ChunkId::default(), why: ChunkError::Taken };
        let claim = self.claim;
        self.ask(|stored| if claim == stored.claim { Ok(act(stored)) } else { Err(taken) }).await?
    }
}

impl Backend for Fake {
    fn clock(&self) -> &Clock {
        &self.clock
    }

    fn has_ended(&self, run: u64) -> bool {
        self.stored.lock().unwrap().ended.contains(&run)
    }

    fn claimed(&self, claim: u64) -> Fake {
        Fake { claim, ..self.clone() }
    }

    fn noted(&self, object: ObjectId) -> Extent {
        Extent { object, offset: 1 << 50, len: 1, shared: false, crc: 0 }
    }

    async fn raise_claim(&self, _: ObjectId, _: u64) -> Result<(), ClientError> {
        let claim = self.claim;
        self.ask(|stored| stored.claim = stored.claim.max(claim)).await
    }

    async fn namespace(&self, op: NamespaceOp) -> Result<Result<NamespaceDone, NamespaceError>, ClientError> {
        let run = self.run;
        self.ask(move |stored| {
            let request = RequestId { client: run, seq: stored.version().seq };
            let session = Some(stored.namespace.introduce(run));
            let command = NamespaceCommand { request, session, clock_millis: 0, ops: vec![op] };
            let result = stored.namespace.apply(&command, |pool| pool == POOL).results.remove(0);
            stored.free();
            result
        })
        .await
    }

    async fn query(
        &self,
        query: NamespaceQuery,
    ) -> Result<Result<NamespaceAnswer, NamespaceError>, ClientError> {
        self.ask(|stored| stored.namespace.query(&query)).await
    }

    async fn allocate(&self, count: u32) -> Result<ObjectId, ClientError> {
        let serial = |stored: &mut Stored| {
            stored.serial += u64::from(count);
            ObjectId(stored.serial - u64::from(count))
        };
        self.ask(serial).await
    }

    async fn read(&self, _: ObjectId, offset: u64, len: u64) -> Result<Bytes, ClientError> {
        self.ask_front(|stored| {
            let blocks = offset / BLOCK..(offset + len).div_ceil(BLOCK);
            if stored.unreadable.contains(&((offset / u64::from(SLICE_BYTES)) as u32)) {
                return Err(ClientError::ObjectRange);
            }
            let bytes: Vec<u8> = blocks.flat_map(|number| stored.block(number)).collect();
            Ok(Bytes::from(bytes).slice((offset % BLOCK) as usize..(offset % BLOCK + len) as usize))
        })
        .await?
    }

    async fn write(&self, _: ObjectId, offset: u64, bytes: Bytes) -> Result<(), ClientError> {
        let slice = (offset / u64::from(SLICE_BYTES)) as u32;
        while self.stored.lock().unwrap().stuck == Some(slice) {
            sleep(Duration::from_millis(100)).await;
        }
        self.ask_front(|stored| stored.set(offset, &bytes)).await
    }

    async fn zero(&self, _: ObjectId, offset: u64, len: u64) -> Result<(), ClientError> {
        self.ask_front(|stored| stored.zero(offset, len)).await
    }

    async fn delete(&self, _: ObjectId, _: u64) -> Result<(), ClientError> {
        self.ask(|stored| stored.front.clear()).await
    }

    async fn look(&self, _: ObjectId, slice: u32) -> Result<Looked, ClientError> {
        self.ask_front(|stored| Looked {
            runs: stored.data_of(slice).map(|(block, _)| (block as u32, 1)).collect(),
            newest: stored.data_of(slice).map(|(_, version)| version).max().unwrap_or(Version::ZERO),
        })
        .await
    }

    async fn clear(&self, _: ObjectId, slice: u32, up_to: Version) -> Result<(), ClientError> {
        self.ask_front(|stored| match std::mem::take(&mut stored.clears_late) {
            true => {
                stored.late = Some((slice, up_to));
                Err(ClientError::ObjectRange)
            }
            false => {
                stored.clear(slice, up_to);
                Ok(())
            }
        })
        .await?
    }

    async fn read_moved(&self, object: ObjectId, offset: u32, len: u32) -> Result<Bytes, ClientError> {
        let read = |stored: &mut Stored| {
            let bytes = stored.moved.get(&object).ok_or(ClientError::Chunk {
                chunk: ChunkId { object, index: 0 },
                why: ChunkError::Missing,
            })?;
            Ok(bytes.slice(offset as usize..(offset + len) as usize))
        };
        self.ask(read).await?
    }

    async fn write_moved(&self, object: ObjectId, bytes: Bytes) -> Result<(), ClientError> {
        let write = |stored: &mut Stored| {
            assert_eq!(object.pool(), POOL);
            assert_eq!(stored.moved.insert(object, bytes), None, "rows are immutable");
        };
        self.ask(write).await
    }

    async fn delete_moved(&self, object: ObjectId) -> Result<(), ClientError> {
        self.ask(|stored| _ = stored.moved.remove(&object)).await
    }
}

fn cluster(seed: u64, failing: Option<u64>) -> Fake {
    let stored = Stored { random: Some(Random::new(seed)), serial: 1, failing, ..Stored::default() };
    let (stored, stopped) = (Arc::new(Mutex::new(stored)), Arc::new(watch::Sender::new(false)));
    Fake { run: 1, claim: 0, clock: Clock::new(), stored, stopped }
}

async fn create(fake: &Fake) {
    while Volume::create(fake, "v", SIZE, Some(HOME))
        .await
        .is_err_and(|error| !matches!(error, VolumeError::Refused(NamespaceError::VolumeExists)))
    {}
}

async fn open(fake: &Fake) -> Volume<Fake> {
    loop {
        match Volume::open(fake.clone(), "v", || {}).await {
            Ok(volume) => return volume,
            Err(VolumeError::Client(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// A volume of a cluster in which nothing fails.
async fn opened(seed: u64) -> (Fake, Volume<Fake>) {
    let fake = cluster(seed, None);
    create(&fake).await;
    let volume = open(&fake).await;
    (fake, volume)
}

/// What a range of bytes that only one worker touches may be: each worker numbers its writes, and a byte is the number
/// of the last one.
struct Worker {
    range: std::ops::Range<u64>,
    /// By byte: what it may be. More than one: a write failed.
    may_be: Vec<Vec<u8>>,
    random: Random,
    value: u8,
}

impl Worker {
    fn new(nth: u64, of: u64, seed: u64) -> Worker {
        // Neighbours share blocks.
        let len = SIZE / of;
        let range = nth * len..if nth + 1 == of { SIZE } else { (nth + 1) * len };
        let may_be = vec![vec![0]; (range.end - range.start) as usize];
        Worker { range, may_be, random: Random::new(seed * 100 + nth), value: 0 }
    }

    fn some_range(&mut self) -> (u64, u64) {
        let whole = self.range.end - self.range.start;
        let len = match self.random.below(8) {
            0 => self.random.below(whole) + 1,
            1 => 1 + self.random.below(300),
            _ => BLOCK * (1 + self.random.below(6)),
        };
        let len = len.min(whole);
        let offset = self.random.below(whole - len + 1);
        // Often whole blocks.
        let aligned = (self.range.start + offset).next_multiple_of(BLOCK);
        match self.random.below(2) == 0 && aligned + len <= self.range.end {
            true => (aligned, len),
            false => (self.range.start + offset, len),
        }
    }

    async fn step(&mut self, volume: &Volume<Fake>) {
        let (offset, len) = self.some_range();
        match self.random.below(5) {
            0 | 1 => self.read(volume, (offset, len)).await,
            2 => {
                let done = volume.zero(offset, len).await;
                self.note((offset, len), 0, done.is_ok());
            }
            _ => self.write(volume, (offset, len)).await,
        }
    }

    async fn read_all(&mut self, volume: &Volume<Fake>) {
        self.read(volume, (self.range.start, self.range.end - self.range.start)).await;
    }

    async fn write_all(&mut self, volume: &Volume<Fake>) {
        self.write(volume, (self.range.start, self.range.end - self.range.start)).await;
    }

    async fn read(&mut self, volume: &Volume<Fake>, (offset, len): (u64, u64)) {
        let Ok(bytes) = volume.read(offset, len).await else {
            return assert!(volume.inner.backend.stored.lock().unwrap().failing.is_some(), "a read failed");
        };
        for (at, byte) in (offset..).zip(&bytes) {
            let may_be = &self.may_be[(at - self.range.start) as usize];
            assert!(may_be.contains(byte), "byte {at} is {byte}, and may be {may_be:?}");
        }
    }

    async fn write(&mut self, volume: &Volume<Fake>, (offset, len): (u64, u64)) {
        self.value = self.value % 250 + 1;
        let done = volume.write(offset, vec![self.value; len as usize].into()).await;
        self.note((offset, len), self.value, done.is_ok());
    }

    fn note(&mut self, (offset, len): (u64, u64), value: u8, done: bool) {
        let first = (offset - self.range.start) as usize;
        for may_be in &mut self.may_be[first..first + len as usize] {
            if done {
                may_be.clear();
            }
            may_be.push(value);
        }
    }
}

async fn work(volume: &Volume<Fake>, workers: Vec<Worker>, steps: usize) -> Vec<Worker> {
    let mut running = JoinSet::new();
    for mut worker in workers {
        let volume = volume.clone();
        running.spawn(async move {
            for _ in 0..steps {
                worker.step(&volume).await;
            }
            worker
        });
    }
    running.join_all().await
}

fn workers(seed: u64) -> Vec<Worker> {
    (0..6).map(|nth| Worker::new(nth, 6, seed)).collect()
}

/// What the cluster has that no volume names, garbage apart.
fn unnamed(fake: &Fake) -> Vec<ObjectId> {
    let stored = fake.stored.lock().unwrap();
    let answer = |query| stored.namespace.query(&query).unwrap();
    let NamespaceAnswer::Slices { slices, .. } =
        answer(NamespaceQuery::Slices { name: "v".to_owned(), after: None, limit: 1000 })
    else {
        panic!("no slices");
    };
    let NamespaceAnswer::Garbage(garbage) = answer(NamespaceQuery::Garbage { after: 0, limit: 1000 }) else {
        panic!("no garbage");
    };
    let named: Vec<ObjectId> = slices.into_iter().map(|(_, object)| object).collect();
    let garbage: Vec<ObjectId> = garbage.into_iter().map(|(_, Extent { object, .. })| object).collect();
    stored.moved.keys().filter(|o| !named.contains(o) && !garbage.contains(o)).copied().collect()
}

/// Reproduce one: EBB_SEED=N cargo test -p ebb-volume.
fn seeds(count: u64) -> std::ops::Range<u64> {
    match std::env::var("EBB_SEED").ok().and_then(|seed| seed.parse().ok()) {
        Some(seed) => seed..seed + 1,
        None => 0..count,
    }
}

fn virtual_time(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(test);
}

#[test]
fn what_was_written_is_read_while_slices_move() {
    for seed in seeds(10) {
        virtual_time(async {
            let (fake, volume) = opened(seed).await;
            let workers = work(&volume, workers(seed), 60).await;
            let moved = Volume::status(&fake, "v").await.unwrap().moved;
            assert!(moved > 0, "seed {seed}: nothing was moved");
            volume.close().await.unwrap();
            let volume = open(&fake).await;
            work(&volume, workers, 10).await;
            volume.close().await.unwrap();
            assert_eq!(unnamed(&fake), [], "seed {seed}");
        });
    }
}

#[test]
fn requests_that_fail_lose_nothing_that_was_acknowledged() {
    for seed in seeds(10) {
        virtual_time(async {
            let fake = cluster(seed, Some(15));
            create(&fake).await;
            let volume = open(&fake).await;
            let mut workers = work(&volume, workers(seed), 60).await;
            fake.stored.lock().unwrap().failing = None;
            for worker in &mut workers {
                worker.read_all(&volume).await;
                worker.write_all(&volume).await;
            }
            sleep(Duration::from_secs(20)).await;
            assert!(volume.front_bytes() < HOME.front_bytes, "seed {seed}: {}", volume.front_bytes());
            for worker in &mut workers {
                assert!(worker.may_be.iter().all(|may_be| may_be.len() == 1), "seed {seed}: a write failed");
                worker.read_all(&volume).await;
            }
        });
    }
}

/// As many slices as are chosen at a time free more than any other, and cannot be read.
#[test]
fn slices_that_cannot_be_read_do_not_keep_others_in_the_front() {
    virtual_time(async {
        let fake = cluster(3, None);
        let home = VolumeHome { pool: POOL, front_bytes: 256 * BLOCK };
        Volume::create(&fake, "v", 24 * u64::from(SLICE_BYTES), Some(home)).await.unwrap();
        let volume = open(&fake).await;
        fake.stored.lock().unwrap().unreadable = 0..16;
        for slice in 0..16 {
            let bytes = vec![1; 6 * BLOCK_BYTES].into();
            volume.write(slice * u64::from(SLICE_BYTES), bytes).await.unwrap();
        }
        for block in 0..250 {
            let offset = 20 * u64::from(SLICE_BYTES) + block % 125 * BLOCK;
            volume.write(offset, vec![2; BLOCK_BYTES].into()).await.unwrap();
        }
        sleep(Duration::from_secs(60)).await;
        assert!(volume.front_bytes() < home.front_bytes / 4 * 3, "{}", volume.front_bytes());
        fake.stored.lock().unwrap().unreadable = 0..0;
        volume.write(23 * u64::from(SLICE_BYTES), vec![3; 100 * BLOCK_BYTES].into()).await.unwrap();
        sleep(Duration::from_secs(60)).await;
        assert!(volume.front_bytes() <= home.front_bytes / 2, "{}", volume.front_bytes());
        assert_eq!(volume.read(0, 2).await.unwrap(), [1; 2][..]);
    });
}

/// The blocks that a client of several connections uses: on both sides of a slice's end.
const USED: std::ops::Range<u64> = SLICE_BYTES as u64 / BLOCK - 4..SLICE_BYTES as u64 / BLOCK + 4;

async fn used(volume: &Volume<Fake>) -> Vec<u8> {
    loop {
        if let Ok(bytes) = volume.read(USED.start * BLOCK, (USED.end - USED.start) * BLOCK).await {
            return bytes.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
        }
    }
}

/// A client's connection breaks while a write is on its way. The client asks for it again, or gives it up.
#[test]
fn what_was_asked_for_on_a_broken_connection_never_comes_after_what_is_newer() {
    for seed in seeds(60) {
        virtual_time(async {
            let fake = cluster(seed, (seed % 3 == 0).then_some(10));
            let home = (seed % 2 == 0).then_some(HOME);
            while Volume::create(&fake, "v", SIZE, home).await.is_err() {
                if Volume::status(&fake, "v").await.is_ok() {
                    break;
                }
            }
            let volume = open(&fake).await;
            fake.stored.lock().unwrap().slow = true;
            let (mut random, mut expected) = (Random::new(seed), vec![0; (USED.end - USED.start) as usize]);
            for value in 1..40 {
                let first = random.index(expected.len());
                let count = 1 + random.index(expected.len() - first);
                let ask = || {
                    let bytes = vec![value; count * BLOCK_BYTES].into();
                    volume.write((USED.start + first as u64) * BLOCK, bytes)
                };
                for _ in 0..random.below(3) {
                    // The server carries it out although the connection has gone, or its task goes, too.
                    match random.chance(500) {
                        true => drop(tokio::spawn(ask())),
                        false => drop(
                            tokio::time::timeout(Duration::from_millis(random.below(3_000)), ask()).await,
                        ),
                    }
                }
                if random.chance(800) {
                    while ask().await.is_err() {}
                    expected[first..first + count].fill(value);
                    if random.chance(500) {
                        assert_eq!(used(&volume).await, expected, "seed {seed}");
                    }
                } else {
                    // Whatever became of it: after a flush that does not change any more.
                    volume.flush().await;
                    expected = used(&volume).await;
                }
            }
            sleep(Duration::from_secs(60)).await;
            assert_eq!(used(&volume).await, expected, "seed {seed}");
        });
    }
}

/// What a server has sent has ended before another one may open the volume.
#[test]
fn a_volume_is_closed_when_its_requests_have_ended() {
    for seed in seeds(20) {
        virtual_time(async {
            let (fake, volume) = opened(seed).await;
            fake.stored.lock().unwrap().slow = true;
            drop(tokio::spawn(volume.write(0, vec![1; 3 * SLICE_BYTES as usize].into())));
            sleep(Duration::from_millis(Random::new(seed).below(4_000))).await;
            volume.close().await.unwrap();
            let blocks = |fake: &Fake| fake.stored.lock().unwrap().front.clone();
            let closed = blocks(&fake);
            sleep(Duration::from_secs(60)).await;
            assert!(closed == blocks(&fake), "seed {seed}: it was written to after its end");
        });
    }
}

/// A process is stopped wherever it is, another one takes the volume over, and the first one continues as if nothing
/// had happened.
#[test]
fn a_server_that_was_taken_over_changes_nothing() {
    for seed in seeds(24) {
        virtual_time(async {
            let first = cluster(seed, None);
            create(&first).await;
            let old = open(&first).await;
            let mut workers = work(&old, workers(seed), 10).await;
            for worker in &mut workers {
                worker.write_all(&old).await;
            }
            // All slices are being moved, and one write is on its way.
            sleep(Duration::from_millis(Random::new(seed).below(150))).await;
            first.stopped.send_replace(true);
            let late = tokio::spawn(old.write(0, vec![251; 2 * BLOCK_BYTES].into()));
            let second = first.other(2);
            let new = open(&second).await;
            workers = work(&new, workers, 10).await;
            first.stopped.send_replace(false);
            workers = work(&new, workers, 30).await;
            assert!(late.await.unwrap().is_err(), "seed {seed}: it was acknowledged");
            for worker in &mut workers {
                worker.read_all(&new).await;
            }
            assert!(matches!(old.read(0, 1).await, Err(VolumeError::Taken)), "seed {seed}");
            new.close().await.unwrap();
            let third = open(&first.other(3)).await;
            work(&third, workers, 20).await;
        });
    }
}

#[test]
fn a_failed_write_took_effect_or_did_not_and_that_does_not_change_later() {
    for seed in seeds(20) {
        virtual_time(async {
            let (fake, volume) = opened(seed).await;
            volume.write(0, vec![1; 2 * BLOCK_BYTES].into()).await.unwrap();
            let fail = |one_in| fake.stored.lock().unwrap().failing = one_in;
            fail(Some(1));
            volume.write(BLOCK, vec![2; 2 * BLOCK_BYTES].into()).await.unwrap_err();
            fail(None);
            let seen = volume.read(0, 4 * BLOCK).await.unwrap();
            volume.write(SLICE_BYTES.into(), vec![3; SLICE_BYTES as usize].into()).await.unwrap();
            sleep(Duration::from_secs(5)).await;
            assert_eq!(Volume::status(&fake, "v").await.unwrap().moved, 2, "seed {seed}");
            assert_eq!(volume.read(0, 4 * BLOCK).await.unwrap(), seen, "seed {seed}");
        });
    }
}

/// It once freed blocks that a look had found in the front meanwhile: they then read as zeroes.
#[test]
fn a_clearing_that_is_carried_out_late_frees_nothing_that_counts() {
    for seed in seeds(20) {
        virtual_time(async {
            let (fake, volume) = opened(seed).await;
            fake.stored.lock().unwrap().clears_late = true;
            volume.write(0, vec![5; SLICE_BYTES as usize].into()).await.unwrap();
            while fake.stored.lock().unwrap().late.is_none() {
                sleep(Duration::from_millis(10)).await;
            }
            assert!(volume.read(0, SLICE_BYTES.into()).await.unwrap().iter().all(|byte| *byte == 5));
            {
                let mut stored = fake.stored.lock().unwrap();
                let (slice, up_to) = stored.late.take().unwrap();
                stored.clear(slice, up_to);
            }
            assert!(volume.read(0, SLICE_BYTES.into()).await.unwrap().iter().all(|byte| *byte == 5));
            volume.write(7, vec![6; 3].into()).await.unwrap();
            let bytes = volume.read(0, BLOCK).await.unwrap();
            let wanted = |n: usize| if (7..10).contains(&n) { 6 } else { 5 };
            assert!(bytes.iter().enumerate().all(|(n, byte)| *byte == wanted(n)), "seed {seed}");
        });
    }
}

/// A server may still carry it out, so its client does not end it.
#[test]
fn a_write_that_does_not_end_holds_up_its_blocks_and_its_slice_and_nothing_else() {
    for seed in seeds(20) {
        virtual_time(async {
            let (fake, volume) = opened(seed).await;
            let slice = u64::from(SLICE_BYTES);
            let stuck = |stuck| fake.stored.lock().unwrap().stuck = stuck;
            stuck(Some(0));
            let held = volume.write(0, vec![1; BLOCK_BYTES].into());
            let since = Instant::now();
            let later = volume.write(10, vec![2; 20].into()).await;
            assert!(matches!(later, Err(VolumeError::HeldUp(_))), "{later:?}");
            assert!(since.elapsed() < Duration::from_secs(61));
            // More than the front may have, so it is moved.
            for n in 1..SIZE / slice {
                volume.write(n * slice, vec![n as u8; SLICE_BYTES as usize].into()).await.unwrap();
            }
            sleep(Duration::from_secs(60)).await;
            let moved = Volume::status(&fake, "v").await.unwrap().moved;
            assert!(moved > 0 && volume.front_bytes() < HOME.front_bytes, "seed {seed}: {moved}");
            assert!(matches!(volume.clone().close().await, Err(VolumeError::HeldUp(_))));
            let volume = open(&fake.other(2)).await;
            stuck(None);
            assert!(matches!(held.await, Err(VolumeError::Taken)), "another owner was there first");
            assert_eq!(volume.read(0, 1).await.unwrap()[0], 0);
        });
    }
}

#[test]
fn a_server_that_gives_signs_of_life_is_not_taken_over() {
    virtual_time(async {
        let fake = cluster(1, None);
        create(&fake).await;
        let volume = open(&fake).await;
        let second = Volume::open(fake.other(2), "v", || {}).await;
        assert!(matches!(second, Err(VolumeError::InUse(owner)) if owner.run == 1));
        volume.read(0, 10).await.unwrap();
    });
}

#[test]
fn a_server_that_was_killed_is_replaced_in_5_s_on_its_machine_and_in_15_s_elsewhere() {
    for (here, within) in [(true, 5), (false, 15)] {
        for seed in seeds(20) {
            virtual_time(async {
                let first = cluster(seed, None);
                create(&first).await;
                let old = open(&first).await;
                old.write(0, vec![7; BLOCK_BYTES].into()).await.unwrap();
                first.stopped.send_replace(true);
                first.stored.lock().unwrap().ended.extend(here.then_some(first.run));
                let since = Instant::now();
                let new = open(&first.other(2)).await;
                assert_eq!(new.read(0, 1).await.unwrap()[0], 7, "seed {seed}");
                assert!(since.elapsed() <= Duration::from_secs(within), "seed {seed}: {:?}", since.elapsed());
            });
        }
    }
}

/// While a machine is suspended its runtime's clock stands still.
#[test]
fn a_server_that_was_suspended_acknowledges_nothing_that_is_not_its_own() {
    for seed in seeds(20) {
        virtual_time(async {
            let first = cluster(seed, None);
            create(&first).await;
            let old = open(&first).await;
            old.write(0, vec![1; BLOCK_BYTES].into()).await.unwrap();
            first.stopped.send_replace(true);
            let second = first.other(2);
            let suspend =
                || [&first, &second].map(|fake| fake.clock.suspend(owner::SILENCE)).into_iter().count();
            let new = Volume::open(second.clone(), "v", || _ = suspend()).await.unwrap();
            new.write(0, vec![2; BLOCK_BYTES].into()).await.unwrap();
            first.stopped.send_replace(false);
            let written = old.write(BLOCK, vec![3; BLOCK_BYTES].into()).await;
            assert!(matches!(written, Err(VolumeError::Taken)), "seed {seed}: {written:?}");
            assert!(matches!(old.read(0, 1).await, Err(VolumeError::Taken)), "seed {seed}");
            let both = new.read(0, 2 * BLOCK).await.unwrap();
            assert_eq!((both[0], both[BLOCK as usize]), (2, 0), "seed {seed}");
        });
    }
}

#[test]
fn names_that_a_list_or_a_url_cannot_carry_are_refused() {
    virtual_time(async {
        let fake = cluster(1, None);
        let (most, more) = ("v".repeat(63), "v".repeat(64));
        for name in ["v", "Web.disk-2_a", &most] {
            Volume::create(&fake, name, 1, None).await.unwrap();
        }
        for name in ["", "x\ny", "a b", "a/b", "é", &more] {
            let refused = Volume::create(&fake, name, 1, None).await;
            assert!(matches!(refused, Err(VolumeError::Name(_))), "{name:?}");
        }
    });
}

#[test]
fn a_deleted_volume_leaves_nothing_behind() {
    virtual_time(async {
        let fake = cluster(7, None);
        create(&fake).await;
        let volume = open(&fake).await;
        volume.write(0, vec![1; 2 << 20].into()).await.unwrap();
        sleep(Duration::from_secs(5)).await;
        assert!(volume.front_bytes() <= HOME.front_bytes / 2, "{}", volume.front_bytes());
        let outside = volume.read(SIZE - 1, 2).await;
        assert!(matches!(outside, Err(VolumeError::OutOfRange { .. })));
        volume.zero(0, SLICE_BYTES.into()).await.unwrap();
        assert_eq!(volume.read(0, 3).await.unwrap(), [0; 3][..]);
        assert_eq!(volume.read(u64::from(SLICE_BYTES), 3).await.unwrap(), [1; 3][..]);
        volume.delete().await.unwrap();
        let gone = Volume::status(&fake, "v").await;
        assert!(matches!(gone, Err(VolumeError::Refused(NamespaceError::NoSuchVolume))));
        let stored = fake.stored.lock().unwrap();
        let Ok(NamespaceAnswer::Garbage(garbage)) =
            stored.namespace.query(&NamespaceQuery::Garbage { after: 0, limit: 1000 })
        else {
            panic!("no garbage");
        };
        assert_eq!(garbage, []);
        assert!(stored.front.is_empty() && stored.moved.is_empty());
        assert_eq!(stored.namespace.query(&NamespaceQuery::Runs), Ok(NamespaceAnswer::Runs(Vec::new())));
    });
}
