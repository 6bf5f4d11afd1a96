//! Load generator for any S3 endpoint: what it serves, how fast, and what that costs the servers.
//!
//! A cell is one operation (PUT, GET, DELETE), one size and one concurrency. Every worker has one connection and one
//! request in flight (closed loop). The generator must not be the bottleneck: bodies are slices of one buffer and are
//! never hashed (`UNSIGNED-PAYLOAD`, which S3 allows); response bodies are checked as they pass through a small buffer
//! and are not kept. Its own CPU time is reported beside that of the servers, so that a bottleneck shows.
//!
//! The CPU time of a cell includes the servers' work after the last response (deferred writes): it is read again when
//! they have become quiet. Many servers free deleted data some seconds later. That belongs to the DELETE, and not to
//! the next cell's PUT.

pub mod content;
mod error;
pub mod http;
mod process;
mod report;
pub mod sign;

pub use error::BenchError;
pub use http::HttpError;
pub use report::{BenchReport, CellReport, Operation};

use ebb_output::Histogram;
use http::{Connection, Response};
use process::Usage;
use sign::Signer;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Objects begin at different offsets of one pattern, so that they can be told apart.
const VARIANTS: u64 = 509;
const VARIANT_STEP: u64 = 8;
/// Bytes at each end of an object that are always checked.
const ENDS: u64 = 32;
/// Longest time of one operation.
const OPERATION_LIMIT: Duration = Duration::from_secs(60);
/// Servers are quiet when they use less than this share of one core over this time; the wait is limited.
const QUIET_SHARE: f64 = 0.08;
const QUIET_WINDOW: Duration = Duration::from_millis(250);
const QUIET_LIMIT: Duration = Duration::from_secs(5);
/// After DELETEs servers must have been quiet for this long; the wait is limited.
const FREED_WINDOW: Duration = Duration::from_secs(5);
const FREED_LIMIT: Duration = Duration::from_secs(60);
const ERRORS_TOLD: usize = 5;
/// Created if it does not exist; all objects put into it are deleted again.
const BUCKET: &str = "ebb-bench";
const REGION: &str = "us-east-1";

/// How long a cell lasts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Extent {
    Time(Duration),
    Operations(u64),
}

/// What to measure. [`BenchOptions::new`] has the usual cells.
#[derive(Clone, Debug)]
pub struct BenchOptions {
    /// `http://host:port`.
    pub endpoint: String,
    pub access_key: String,
    pub secret_key: String,
    /// Location of a bucket that is created: a pool of the service, or a region.
    pub location: Option<String>,
    /// Bytes per object.
    pub sizes: Vec<u64>,
    pub concurrency: Vec<usize>,
    pub extent: Extent,
    /// A PUT cell ends after this many bytes, so that it does not fill a disk.
    pub most_bytes: u64,
    /// Compare every byte read, not only length and ends.
    pub full_check: bool,
    /// Server processes whose CPU time and context switches are counted; may be empty.
    pub pids: Vec<u32>,
}

impl BenchOptions {
    pub fn new(endpoint: &str, access_key: &str, secret_key: &str) -> BenchOptions {
        BenchOptions {
            endpoint: endpoint.to_owned(),
            access_key: access_key.to_owned(),
            secret_key: secret_key.to_owned(),
            location: None,
            sizes: vec![4 << 10, 64 << 10, 1 << 20, 16 << 20],
            concurrency: vec![1, 8, 32],
            extent: Extent::Time(Duration::from_secs(5)),
            most_bytes: 4 << 30,
            full_check: false,
            pids: Vec::new(),
        }
    }

    /// Everything that can be refused before a request.
    pub fn check(&self) -> Result<(), BenchError> {
        self.host()?;
        let any_zero = self.sizes.contains(&0) || self.concurrency.contains(&0);
        if self.sizes.is_empty() || self.concurrency.is_empty() || any_zero {
            return Err(BenchError::Empty);
        }
        Usage::of(&self.pids).map(drop)
    }

    fn host(&self) -> Result<&str, BenchError> {
        let host = self.endpoint.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        host.filter(|host| !host.is_empty() && !host.contains('/'))
            .ok_or_else(|| BenchError::Endpoint { endpoint: self.endpoint.clone() })
    }
}

/// Measures all cells and reports each one when it is done. Runs on the caller's tokio runtime; one thread is enough.
pub async fn bench_s3(
    options: &BenchOptions,
    progress: &mut dyn FnMut(&CellReport),
) -> Result<BenchReport, BenchError> {
    options.check()?;
    let bench = Bench::new(options, options.sizes.iter().copied().max().unwrap_or(0))?;
    let created = bench.create_bucket().await?;
    let mut report = BenchReport::new(options);
    for size in &options.sizes {
        for concurrency in &options.concurrency {
            bench.cells(*size, *concurrency, &mut report, progress).await?;
        }
    }
    if created {
        // A leftover bucket does no harm.
        let _ = bench.ask("DELETE", &format!("/{BUCKET}"), &[]).await;
    }
    Ok(report)
}

/// State shared by all workers.
struct Shared {
    address: String,
    signer: Signer,
    /// Prefix of this run's objects.
    run: String,
    pattern: Vec<u8>,
    full_check: bool,
}

struct Bench<'a> {
    options: &'a BenchOptions,
    shared: Arc<Shared>,
}

/// One cell's work, as seen by each worker.
#[derive(Clone)]
struct Work {
    operation: Operation,
    size: u64,
    folder: String,
    next: Arc<AtomicU64>,
    /// Numbers from here on are not carried out.
    limit: u64,
    deadline: Option<Instant>,
    /// The objects that exist: GETs use them in turn, DELETEs each once. Empty for PUT: the number is the object.
    objects: Arc<Vec<u64>>,
}

/// Result of one worker.
#[derive(Default)]
struct Outcome {
    latencies: Histogram,
    done: Vec<u64>,
    failed: u64,
    wrong: u64,
    errors: Vec<String>,
}

impl Work {
    fn take(&self) -> Option<u64> {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        if number >= self.limit {
            return None;
        }
        match self.objects.len() as u64 {
            0 => Some(number),
            len => Some(self.objects[(number % len) as usize]),
        }
    }
}

impl Shared {
    fn body(&self, object: u64, size: u64) -> &[u8] {
        let from = (object % VARIANTS * VARIANT_STEP) as usize;
        &self.pattern[from..from + size as usize]
    }

    /// Carries out one operation. Returns whether the response was correct.
    async fn carry(&self, work: &Work, object: u64, connection: &mut Connection) -> Result<bool, HttpError> {
        let path = format!("/{BUCKET}/{}/{}/{object}", self.run, work.folder);
        let body = self.body(object, work.size);
        let (method, sent) = match work.operation {
            Operation::Put => ("PUT", body),
            Operation::Get => ("GET", &[][..]),
            Operation::Delete => ("DELETE", &[][..]),
        };
        let head = self.signer.head(method, &path, sent.len(), SystemTime::now());
        let (mut at, mut right) = (0u64, true);
        let mut check = |part: &[u8]| {
            if work.operation == Operation::Get {
                right &= fits(body, at, part, self.full_check);
            }
            at += part.len() as u64;
        };
        let response = connection.exchange(head.as_bytes(), sent, &mut check).await?;
        response.success()?;
        Ok(right && (work.operation != Operation::Get || at == work.size))
    }

    /// Works until the cell ends. A failed connection is reopened for the next operation.
    async fn worker(self: Arc<Shared>, work: Work, connection: Connection) -> Outcome {
        let mut connection = Some(connection);
        let mut outcome = Outcome::default();
        while let Some(object) = work.take() {
            let started = Instant::now();
            let result = tokio::time::timeout(OPERATION_LIMIT, async {
                let mut open = match connection.take() {
                    Some(connection) => connection,
                    None => Connection::open(&self.address).await?,
                };
                let right = self.carry(&work, object, &mut open).await?;
                connection = Some(open).filter(Connection::is_open);
                Ok::<bool, HttpError>(right)
            });
            match result.await.unwrap_or(Err(HttpError::Late)) {
                Ok(right) => {
                    outcome.latencies.record(started.elapsed());
                    outcome.wrong += u64::from(!right);
                    outcome.done.push(object);
                }
                Err(error) => {
                    outcome.failed += 1;
                    if outcome.errors.len() < ERRORS_TOLD {
                        outcome.errors.push(format!("{} of object {object}: {error}", work.operation));
                    }
                }
            }
        }
        outcome
    }
}

/// Whether a part of a body, starting at `at`, is correct; checks the ends, or with `full` everything.
fn fits(body: &[u8], at: u64, part: &[u8], full: bool) -> bool {
    let (size, end) = (body.len() as u64, at + part.len() as u64);
    if end > size {
        return false;
    }
    let same = |from: u64, to: u64| {
        let (from, to) = (from.max(at), to.min(end));
        from >= to || part[(from - at) as usize..(to - at) as usize] == body[from as usize..to as usize]
    };
    if full { same(0, size) } else { same(0, ENDS) && same(size.saturating_sub(ENDS), size) }
}

impl<'a> Bench<'a> {
    fn new(options: &'a BenchOptions, largest: u64) -> Result<Bench<'a>, BenchError> {
        let host = options.host()?.to_owned();
        let address = if host.contains(':') { host.clone() } else { format!("{host}:80") };
        let mut pattern = vec![0; (largest + VARIANTS * VARIANT_STEP) as usize];
        crate::content::fill(0, 0, 0, &mut pattern);
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let shared = Arc::new(Shared {
            address,
            signer: Signer::new(host, &options.access_key, &options.secret_key, REGION),
            run: format!("run-{}", unix.as_millis()),
            pattern,
            full_check: options.full_check,
        });
        Ok(Bench { options, shared })
    }

    async fn connect(&self) -> Result<Connection, BenchError> {
        let failed = |error| BenchError::Connect { endpoint: self.options.endpoint.clone(), error };
        Connection::open(&self.shared.address).await.map_err(failed)
    }

    /// Sends a request on its own connection.
    async fn ask(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Result<Response, HttpError>, BenchError> {
        let mut connection = self.connect().await?;
        let head = self.shared.signer.head(method, path, body.len(), SystemTime::now());
        Ok(connection.exchange(head.as_bytes(), body, &mut |_| {}).await)
    }

    /// Returns whether the bucket is new.
    async fn create_bucket(&self) -> Result<bool, BenchError> {
        let location = self.options.location.as_ref().map_or(String::new(), |location| {
            format!(
                "<CreateBucketConfiguration><LocationConstraint>{location}</LocationConstraint></CreateBucketConfiguration>"
            )
        });
        let answer = self.ask("PUT", &format!("/{BUCKET}"), location.as_bytes()).await?;
        match answer {
            Ok(response) if response.status == 409 => Ok(false),
            other => match other.and_then(|response| response.success()) {
                Ok(()) => Ok(true),
                Err(error) => Err(BenchError::Bucket { bucket: BUCKET, error }),
            },
        }
    }

    /// PUT, GET, and DELETE of the objects put.
    async fn cells(
        &self,
        size: u64,
        concurrency: usize,
        report: &mut BenchReport,
        progress: &mut dyn FnMut(&CellReport),
    ) -> Result<(), BenchError> {
        let (put, objects) = self.cell(Operation::Put, size, concurrency, Arc::default()).await?;
        if objects.is_empty() {
            let error = put.errors.into_iter().next().unwrap_or_default();
            return Err(BenchError::NothingPut { size, concurrency, error });
        }
        progress(&put);
        let objects = Arc::new(objects);
        let (get, _) = self.cell(Operation::Get, size, concurrency, objects.clone()).await?;
        progress(&get);
        let (delete, _) = self.cell(Operation::Delete, size, concurrency, objects).await?;
        progress(&delete);
        report.cells.extend([put, get, delete]);
        Ok(())
    }

    fn work(&self, operation: Operation, size: u64, concurrency: usize, objects: Arc<Vec<u64>>) -> Work {
        let (limit, time) = match (operation, self.options.extent) {
            (Operation::Delete, _) => (objects.len() as u64, None),
            (_, Extent::Operations(count)) => (count, None),
            (Operation::Put, Extent::Time(time)) => ((self.options.most_bytes / size).max(1), Some(time)),
            (Operation::Get, Extent::Time(time)) => (u64::MAX, Some(time)),
        };
        Work {
            operation,
            size,
            folder: format!("{size}-{concurrency}"),
            next: Arc::default(),
            limit,
            deadline: time.map(|time| Instant::now() + time),
            objects,
        }
    }

    /// Measures one cell. Also returns the objects that it handled successfully.
    async fn cell(
        &self,
        operation: Operation,
        size: u64,
        concurrency: usize,
        objects: Arc<Vec<u64>>,
    ) -> Result<(CellReport, Vec<u64>), BenchError> {
        // Opened before the clock starts; kept for one cell only, as servers close connections that are idle for long.
        let mut connections = Vec::new();
        while connections.len() < concurrency {
            connections.push(self.connect().await?);
        }
        let (servers, own) = (Usage::of(&self.options.pids)?, Usage::of(&[std::process::id()])?);
        let started = Instant::now();
        let work = self.work(operation, size, concurrency, objects);
        let mut workers = JoinSet::new();
        for connection in connections {
            workers.spawn(self.shared.clone().worker(work.clone(), connection));
        }
        let mut cell = CellReport::new(operation, size, concurrency as u64);
        let (mut latencies, mut done) = (Histogram::default(), Vec::new());
        while let Some(outcome) = workers.join_next().await {
            let outcome = outcome.expect("a worker does not panic");
            latencies.add(&outcome.latencies);
            done.extend(outcome.done);
            cell.failed += outcome.failed;
            cell.wrong += outcome.wrong;
            cell.errors
                .extend(outcome.errors.into_iter().take(ERRORS_TOLD.saturating_sub(cell.errors.len())));
        }
        let seconds = started.elapsed().as_secs_f64();
        let own = Usage::of(&[std::process::id()])?.since(&own);
        let servers = match self.options.pids.is_empty() {
            true => None,
            false => Some(self.quiet(operation).await?.since(&servers)),
        };
        cell.measure(seconds, latencies.latency(), servers, own);
        Ok((cell, done))
    }

    /// Waits until the servers are quiet, and returns what they have used.
    async fn quiet(&self, after: Operation) -> Result<Usage, BenchError> {
        let (window, limit) = match after {
            Operation::Delete => (FREED_WINDOW, FREED_LIMIT),
            Operation::Put | Operation::Get => (QUIET_WINDOW, QUIET_LIMIT),
        };
        let (started, mut busy) = (Instant::now(), Instant::now());
        let mut last = Usage::of(&self.options.pids)?;
        loop {
            tokio::time::sleep(QUIET_WINDOW).await;
            let now = Usage::of(&self.options.pids)?;
            if now.since(&last).cpu_seconds > QUIET_SHARE * QUIET_WINDOW.as_secs_f64() {
                busy = Instant::now();
            }
            if busy.elapsed() >= window || started.elapsed() >= limit {
                return Ok(now);
            }
            last = now;
        }
    }
}

#[cfg(test)]
mod tests;
