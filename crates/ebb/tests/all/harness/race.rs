//! Two gateways put and read the same keys, each on its own thread: what is read is never older than what was certainly
//! there when the read began.

use super::{ACCESS_KEY, PATIENCE, SECRET_KEY, wait};
use ebb_testing::s3::request;
use ebb_types::Random;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const KEYS: u64 = 8;
const PAUSE: Duration = Duration::from_millis(30);
/// Times without an answered request that are kept.
const NOTABLE: Duration = Duration::from_millis(200);

/// A request that was answered, or may have been carried out.
#[derive(Clone, Copy, Debug)]
struct Op {
    key: u64,
    /// That was put or read; zero: there was none.
    version: u64,
    put: bool,
    began: Instant,
    /// `None`: it was not confirmed, and may take effect at any time.
    ended: Option<Instant>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    done: [AtomicU64; 2],
    refused: AtomicU64,
    versions: AtomicU64,
    ops: Mutex<Vec<Op>>,
    /// Of any gateway: begin and end.
    silences: Mutex<Vec<(Instant, Instant)>>,
    strange: Mutex<Vec<String>>,
}

pub struct Race {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Race {
    pub fn start(gateways: [String; 2], seed: u64) -> Race {
        let shared = Arc::new(Shared::default());
        super::objects::Objects::create_bucket(&gateways[0], "race", None);
        let run = |(place, gateway): (usize, String)| {
            let (shared, random) = (shared.clone(), Random::new(seed * 2 + place as u64));
            std::thread::spawn(move || work(&shared, place, &gateway, random))
        };
        let threads = gateways.into_iter().enumerate().map(run).collect();
        Race { shared, threads }
    }

    /// Returns after as many more requests of each gateway.
    pub fn go_on_for(&self, requests: u64) {
        let done = |place: usize| self.shared.done[place].load(Ordering::Relaxed);
        let goals = [0, 1].map(|place| done(place) + requests);
        wait("both gateways answer", PATIENCE, || {
            [0, 1].into_iter().all(|place| done(place) >= goals[place]).then_some(())
        });
    }

    /// The longest time after `since` in which a gateway answered nothing.
    pub fn longest_after(&self, since: Instant) -> Duration {
        let silences = self.shared.silences.lock().expect("no thread panics with it");
        let after = silences.iter().filter(|(_, ended)| *ended > since);
        after.map(|(began, ended)| *ended - (*began).max(since)).max().unwrap_or_default()
    }

    pub fn wrong(&self) -> Vec<String> {
        let mut wrong = self.shared.strange.lock().expect("no thread panics with it").clone();
        wrong.extend(stale(&self.shared.ops.lock().expect("no thread panics with it")));
        wrong
    }

    /// Ends it; returns the numbers of requests that were answered and refused.
    pub fn stop(mut self) -> (u64, u64) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.threads.drain(..).for_each(|thread| thread.join().expect("it ran to its end"));
        let done = self.shared.done.each_ref().map(|done| done.load(Ordering::Relaxed));
        (done.iter().sum(), self.shared.refused.load(Ordering::Relaxed))
    }
}

impl Drop for Race {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

fn work(shared: &Shared, place: usize, gateway: &str, mut random: Random) {
    let mut answered = Instant::now();
    while !shared.stop.load(Ordering::Relaxed) {
        let key = random.below(KEYS);
        let put = random.below(2) == 0;
        let version = if put { shared.versions.fetch_add(1, Ordering::Relaxed) + 1 } else { 0 };
        let (method, body) = if put { ("PUT", content(version)) } else { ("GET", Vec::new()) };
        let began = Instant::now();
        let answer = request(gateway, (ACCESS_KEY, SECRET_KEY), method, &format!("/race/{key}"), &body).ok();
        let ended = Instant::now();
        let op = |version, ended| Op { key, version, put, began, ended };
        let op = match (&answer, put) {
            (Some(answer), true) if answer.status == 200 => Some(op(version, Some(ended))),
            (_, true) => Some(op(version, None)),
            (Some(answer), false) if answer.status == 404 => Some(op(0, Some(ended))),
            (Some(answer), false) if answer.status == 200 => {
                let head = answer.body.first_chunk::<8>().map_or(0, |head| u64::from_le_bytes(*head));
                let whole = head > 0 && answer.body == content(head);
                if !whole && !content(head).starts_with(&answer.body) {
                    let what = format!("object {key}: {} bytes that no put gave", answer.body.len());
                    shared.strange.lock().expect("no thread panics with it").push(what);
                }
                whole.then(|| op(head, Some(ended)))
            }
            (_, false) => None,
        };
        if op.is_some_and(|op| op.ended.is_some()) {
            shared.done[place].fetch_add(1, Ordering::Relaxed);
            if ended - answered > NOTABLE {
                shared.silences.lock().expect("no thread panics with it").push((answered, ended));
            }
            answered = ended;
        } else {
            shared.refused.fetch_add(1, Ordering::Relaxed);
        }
        shared.ops.lock().expect("no thread panics with it").extend(op);
        std::thread::sleep(PAUSE);
    }
}

fn content(version: u64) -> Vec<u8> {
    let mut random = Random::new(version);
    let words = 1 + random.below(if version.is_multiple_of(4) { 30_000 } else { 900 });
    let mut out = version.to_le_bytes().to_vec();
    out.extend((0..words).flat_map(|_| random.next().to_le_bytes()));
    out
}

/// Reads that no order of the requests explains: of a version that was certainly replaced, by a put or as a read had
/// shown, before the read began.
fn stale(ops: &[Op]) -> Vec<String> {
    (0..KEYS).flat_map(|key| stale_of(&ops.iter().filter(|op| op.key == key).collect::<Vec<_>>())).collect()
}

fn stale_of(ops: &[&Op]) -> Vec<String> {
    let puts: BTreeMap<u64, &Op> = ops.iter().filter(|op| op.put).map(|op| (op.version, *op)).collect();
    // From when on a version was certainly there, and when its put began; then the latest such beginning until then.
    let mut there: Vec<(Instant, Instant)> =
        ops.iter().filter_map(|op| Some((op.ended?, puts.get(&op.version)?.began))).collect();
    there.sort_unstable();
    for at in 1..there.len() {
        there[at].1 = there[at].1.max(there[at - 1].1);
    }
    let is_stale = |read: &Op| {
        let before = there.partition_point(|(since, _)| *since < read.began);
        let Some((_, newest)) = before.checked_sub(1).map(|last| there[last]) else { return false };
        // A put that is under way is not in the list yet.
        let ended = puts.get(&read.version).map_or((read.version > 0).then_some(None), |put| Some(put.ended));
        ended.is_none_or(|ended| ended.is_some_and(|ended| ended < newest))
    };
    let reads = ops.iter().filter(|op| !op.put && is_stale(op));
    reads.map(|read| format!("a read shows what was replaced before: {read:?}")).collect()
}

#[test]
fn a_read_of_what_was_replaced_before_is_found() {
    let start = Instant::now();
    let at = |millis| start + Duration::from_millis(millis);
    let op = |put, version, began, ended: Option<u64>| Op {
        key: 1,
        version,
        put,
        began: at(began),
        ended: ended.map(at),
    };
    let (first, second) = (op(true, 1, 0, Some(10)), op(true, 2, 20, Some(30)));
    assert_eq!(stale(&[first, second, op(false, 1, 40, Some(50))]).len(), 1, "replaced by a put");
    assert_eq!(stale(&[first, op(false, 0, 40, Some(50))]).len(), 1, "gone");
    let open = op(true, 2, 20, None);
    let reads = [op(false, 2, 30, Some(40)), op(false, 1, 50, Some(60))];
    assert_eq!(stale(&[first, open, reads[0], reads[1]]).len(), 1, "a read had shown the newer one");
    for fine in [op(false, 1, 25, Some(40)), op(false, 2, 40, Some(50))] {
        assert_eq!(stale(&[first, second, fine]), Vec::<String>::new());
    }
    let late = op(true, 1, 0, None);
    assert_eq!(stale(&[late, second, op(false, 1, 40, Some(50))]), Vec::<String>::new(), "it may come late");
}
