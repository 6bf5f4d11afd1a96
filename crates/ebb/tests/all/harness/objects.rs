//! Puts and reads objects through the gateway, on its own thread: a read returns what was acknowledged last, or
//! nothing.

use super::{ACCESS_KEY, PATIENCE, SECRET_KEY, wait};
use ebb_testing::s3::request;
use ebb_types::Random;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const KEYS: usize = 40;
const LARGEST: u64 = 300_000;
const PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Default)]
pub struct Found {
    pub puts: u64,
    pub gets: u64,
    /// Requests that were refused, and replies that broke off.
    pub refused: u64,
    /// Replies that differ from what was acknowledged.
    pub wrong: Vec<String>,
}

pub struct Objects {
    stop: Arc<AtomicBool>,
    /// Held for each request.
    turn: Arc<Mutex<()>>,
    found: Arc<Mutex<Found>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// A key, and the versions that it may have: the last one acknowledged, and those sent since.
#[derive(Default)]
struct Key {
    may_be: BTreeSet<u64>,
    acknowledged: bool,
    sent: u64,
}

impl Objects {
    /// `pool`: the erasure-coded pool of the objects; `None`: the replicated one.
    pub fn start(gateway: &str, seed: u64, pool: Option<&str>) -> Objects {
        let (stop, found) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Found::default())));
        let turn = Arc::new(Mutex::new(()));
        let work = Work {
            turn: turn.clone(),
            gateway: gateway.to_owned(),
            pool: pool.map(str::to_owned),
            random: Random::new(seed),
            keys: (0..KEYS).map(|_| Key::default()).collect(),
            found: found.clone(),
        };
        let own = stop.clone();
        let thread = std::thread::spawn(move || work.run(&own));
        Objects { stop, turn, found, thread: Some(thread) }
    }

    /// Returns after `requests` more requests.
    pub fn go_on_for(&self, requests: u64) {
        let done = || {
            let found = self.found.lock().expect("no thread panics with it");
            found.puts + found.gets
        };
        let until = done() + requests;
        wait(&format!("{requests} requests"), PATIENCE, || (done() >= until).then_some(()));
    }

    /// Asks for a bucket until the gateway answers; returns status and body.
    pub fn create_bucket(gateway: &str, bucket: &str, pool: Option<&str>) -> (u16, String) {
        let place = location(pool);
        wait("the gateway answers", PATIENCE, || {
            let keys = (ACCESS_KEY, SECRET_KEY);
            let answer = request(gateway, keys, "PUT", &format!("/{bucket}"), place.as_bytes()).ok()?;
            Some((answer.status, String::from_utf8_lossy(&answer.body).into_owned()))
        })
    }

    pub fn wrong(&self) -> Vec<String> {
        self.found.lock().expect("no thread panics with it").wrong.clone()
    }

    /// Runs something while no request is in flight.
    pub fn pausing<T>(&self, work: impl FnOnce() -> T) -> T {
        let _turn = self.turn.lock().expect("no thread panics with it");
        work()
    }

    /// Ends it, reads everything once more, and returns the findings.
    pub fn stop(mut self) -> Found {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("it is stopped once").join().expect("it ran to its end");
        std::mem::take(&mut self.found.lock().expect("no thread panics with it"))
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

struct Work {
    turn: Arc<Mutex<()>>,
    gateway: String,
    pool: Option<String>,
    random: Random,
    keys: Vec<Key>,
    found: Arc<Mutex<Found>>,
}

impl Work {
    fn run(mut self, stop: &AtomicBool) {
        let place = location(self.pool.as_deref());
        while !stop.load(Ordering::Relaxed) && self.send("PUT", "/objects", place.as_bytes()).0 != 200 {
            std::thread::sleep(PAUSE);
        }
        while !stop.load(Ordering::Relaxed) {
            let key = self.random.below(KEYS as u64) as usize;
            if self.random.below(2) == 0 {
                self.put(key)
            } else {
                self.get(key)
            }
            std::thread::sleep(PAUSE);
        }
        (0..KEYS).for_each(|key| self.get(key));
    }

    /// Status zero: no reply.
    fn send(&self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let _turn = self.turn.lock().expect("no thread panics with it");
        let answer = request(&self.gateway, (ACCESS_KEY, SECRET_KEY), method, path, body);
        answer.map_or((0, Vec::new()), |a| (a.status, a.body))
    }

    fn note(&self, what: impl FnOnce(&mut Found)) {
        what(&mut self.found.lock().expect("no thread panics with it"));
    }

    fn put(&mut self, key: usize) {
        let version = self.keys[key].sent + 1;
        self.keys[key].sent = version;
        self.keys[key].may_be.insert(version);
        let (status, _) = self.send("PUT", &format!("/objects/{key}"), &content(key, version));
        if status == 200 {
            self.keys[key].may_be = BTreeSet::from([version]);
            self.keys[key].acknowledged = true;
        }
        self.note(|f| {
            f.puts += 1;
            f.refused += u64::from(status != 200);
        });
    }

    fn get(&mut self, key: usize) {
        if self.keys[key].may_be.is_empty() {
            return;
        }
        let (status, body) = self.send("GET", &format!("/objects/{key}"), b"");
        let whole = self.keys[key].may_be.iter().find(|version| content(key, **version) == body);
        let part = || self.keys[key].may_be.iter().any(|version| content(key, *version).starts_with(&body));
        let fine = match status {
            200 => whole.is_some() || part(),
            404 => !self.keys[key].acknowledged,
            _ => true,
        };
        let refused = status != 200 || whole.is_none();
        if let (200, Some(&version)) = (status, whole) {
            self.keys[key].may_be = self.keys[key].may_be.split_off(&version);
        }
        self.note(|f| {
            f.gets += 1;
            f.refused += u64::from(refused);
            if !fine {
                f.wrong.push(format!("object {key}: status {status}, {} bytes", body.len()));
            }
        });
    }
}

fn location(pool: Option<&str>) -> String {
    pool.map_or(String::new(), |pool| {
        format!(
            "<CreateBucketConfiguration><LocationConstraint>{pool}</LocationConstraint></CreateBucketConfiguration>"
        )
    })
}

fn content(key: usize, version: u64) -> Vec<u8> {
    let mut random = Random::new((key as u64) << 32 | version);
    let size = 1 + random.below(if version.is_multiple_of(3) { LARGEST } else { 9_000 });
    let words = (0..size / 8 + 1).flat_map(|_| random.next().to_le_bytes());
    words.take(size as usize).collect()
}
