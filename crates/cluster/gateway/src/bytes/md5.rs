//! MD5 of many bodies side by side.
//!
//! S3 requires the MD5 of every object, and for one stream it cannot be made fast: each step depends on the previous
//! one. It took a quarter of all CPU time that a large PUT costs on the gateway and three servers. But the same step of
//! several streams is one vector operation. So bodies that arrive together are hashed together, each in its own lane:
//! with AVX-512 eight of them take the time of one (4.5 GB/s against 0.55). Without it they are hashed one after
//! another.
//!
//! A stream's bytes wait for other streams until all lanes are taken, or there is no other stream, or a caller needs
//! the result. An object's write takes longer than its hash, so no request waits for company. (A
//! [`Batcher`](crate::bytes::batch::Batcher) does the opposite: it never waits, and takes what came while it was busy.)

use bytes::Bytes;
use std::array::from_fn;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::oneshot;

/// Bytes hashed at a time.
const BLOCK: usize = 64;
/// Most streams side by side.
const LANES: usize = 8;
/// Less than this is not worth another thread's time.
const AT_ONCE: usize = 16 << 10;

const _: () = assert!(LANES * size_of::<u32>() == 256 / 8, "a vector has a word of each stream");

type State = [u32; 4];

const START: State = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// Whole blocks of a stream, and its state before them.
struct Job {
    state: State,
    bytes: Bytes,
}

/// Hashes streams together.
#[derive(Clone, Default)]
pub struct Lanes(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    /// Number of existing streams.
    streams: usize,
    waiting: VecDeque<(Job, oneshot::Sender<State>)>,
    /// Jobs ever taken off the queue, so the first waiting job has this number.
    begun: u64,
    /// The last job that a caller needs.
    needed: Option<u64>,
    /// There is one thread: jobs that arrive meanwhile form the next batch.
    running: bool,
    /// All bytes are hashed at once, by who has them.
    stays_here: bool,
}

impl Lanes {
    /// No other thread is used from now on: a simulation repeats itself only in one.
    pub fn stay_here(&self) {
        self.queue().stays_here = true;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().expect("no panic under this lock")
    }

    /// Queues a job. Returns its number, and the receiver of its result.
    fn submit(&self, job: Job) -> (u64, oneshot::Receiver<State>) {
        let (answer, answered) = oneshot::channel();
        let mut queue = self.queue();
        queue.waiting.push_back((job, answer));
        let number = queue.begun + queue.waiting.len() as u64 - 1;
        self.go_on(&mut queue);
        (number, answered)
    }

    /// A caller waits for this job now.
    fn need(&self, number: u64) {
        let mut queue = self.queue();
        debug_assert!(
            number < queue.begun + queue.waiting.len() as u64,
            "no request waits for what is to come"
        );
        queue.needed = queue.needed.max(Some(number));
        self.go_on(&mut queue);
    }

    /// Hashes the waiting jobs, unless there is something to wait for.
    fn go_on(&self, queue: &mut Queue) {
        let needed = queue.needed.is_some_and(|number| number >= queue.begun);
        let full = queue.waiting.len() >= LANES.min(queue.streams);
        if queue.running || queue.waiting.is_empty() || !(needed || full) {
            return;
        }
        let batch = queue.waiting.len().min(LANES);
        let (jobs, answers): (Vec<Job>, Vec<_>) = queue.waiting.drain(..batch).unzip();
        queue.begun += batch as u64;
        queue.running = true;
        let lanes = self.clone();
        tokio::task::spawn_blocking(move || {
            let states = hash(&jobs);
            debug_assert_eq!(states.len(), answers.len(), "every stream gets its own state");
            {
                let mut queue = lanes.queue();
                queue.running = false;
                lanes.go_on(&mut queue);
            }
            for (answer, state) in answers.into_iter().zip(states) {
                // Fails only if the caller no longer waits.
                let _ = answer.send(state);
            }
        });
    }
}

/// One stream's MD5.
pub struct Md5 {
    lanes: Lanes,
    len: u64,
    state: State,
    /// Receives the state, while bytes wait or are being hashed.
    hashing: Option<(u64, oneshot::Receiver<State>)>,
    /// Less than a block, at the end.
    rest: Bytes,
}

impl Drop for Md5 {
    fn drop(&mut self) {
        let mut queue = self.lanes.queue();
        queue.streams -= 1;
        self.lanes.go_on(&mut queue);
    }
}

impl Md5 {
    pub fn new(lanes: &Lanes) -> Md5 {
        lanes.queue().streams += 1;
        Md5 { lanes: lanes.clone(), len: 0, state: START, hashing: None, rest: Bytes::new() }
    }

    /// Adds bytes, once the previous ones are hashed. All but the last are whole blocks.
    pub async fn add(&mut self, mut bytes: Bytes) {
        assert!(self.rest.is_empty(), "only the last bytes may be less than a block");
        self.settle().await;
        self.len += bytes.len() as u64;
        self.rest = bytes.split_off(bytes.len() / BLOCK * BLOCK);
        if bytes.len() <= AT_ONCE || self.lanes.queue().stays_here {
            self.state = at_once(self.state, &bytes);
            return;
        }
        self.hashing = Some(self.lanes.submit(Job { state: self.state, bytes }));
    }

    pub async fn finish(mut self) -> [u8; 16] {
        self.settle().await;
        let len = self.rest.len();
        debug_assert!(len < BLOCK, "whole blocks are hashed by now");
        let mut last = [0; 2 * BLOCK];
        last[..len].copy_from_slice(&self.rest);
        last[len] = 0x80;
        let end = (len + 9).next_multiple_of(BLOCK);
        last[end - 8..end].copy_from_slice(&self.len.wrapping_mul(8).to_le_bytes());
        let mut md5 = [0; 16];
        for (out, word) in md5.chunks_exact_mut(4).zip(at_once(self.state, &last[..end])) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        md5
    }

    async fn settle(&mut self) {
        if let Some((number, hashing)) = self.hashing.take() {
            self.lanes.need(number);
            self.state = hashing.await.expect("every job is carried out");
        }
    }
}

/// A stream's state, and the bytes left to hash.
type Lane<'a> = (State, &'a [u8]);

/// The states of all jobs after their bytes.
fn hash(jobs: &[Job]) -> Vec<State> {
    let mut lanes: Vec<Lane> = jobs.iter().map(|job| (job.state, &job.bytes[..])).collect();
    loop {
        let mut open: Vec<&mut Lane> = lanes.iter_mut().filter(|(_, rest)| !rest.is_empty()).collect();
        let Some(run) = open.iter().map(|(_, rest)| rest.len()).min() else { break };
        advance(&mut open, run);
    }
    lanes.into_iter().map(|(state, _)| state).collect()
}

fn at_once(mut state: State, bytes: &[u8]) -> State {
    md5::block_api::compress(&mut state, bytes.as_chunks().0);
    state
}

/// Advances every lane by `run` bytes.
fn advance(lanes: &mut [&mut Lane], run: usize) {
    debug_assert!(run > 0 && run.is_multiple_of(BLOCK), "{run} bytes are no whole blocks");
    #[cfg(target_arch = "x86_64")]
    if lanes.len() > 1 && is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vl") {
        for some in lanes.chunks_mut(LANES) {
            // With fewer streams the last one's work is done several times, which costs nothing.
            let last = some.len() - 1;
            let mut states: [[u32; LANES]; 4] = from_fn(|word| from_fn(|lane| some[lane.min(last)].0[word]));
            // SAFETY: this processor has the required instructions.
            unsafe { wide::compress(&mut states, from_fn(|lane| &some[lane.min(last)].1[..run])) };
            for (number, lane) in some.iter_mut().enumerate() {
                **lane = (states.map(|word| word[number]), &lane.1[run..]);
            }
        }
        return;
    }
    for lane in lanes {
        **lane = (at_once(lane.0, &lane.1[..run]), &lane.1[run..]);
    }
}

/// RFC 1321 on as many streams as a vector has lanes.
#[cfg(target_arch = "x86_64")]
mod wide {
    use super::{BLOCK, K, LANES};
    use std::arch::x86_64::*;

    #[target_feature(enable = "avx512f,avx512vl")]
    fn load(words: &[u32; LANES]) -> __m256i {
        // SAFETY: eight words are as long as the vector.
        unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
    }

    #[target_feature(enable = "avx512f,avx512vl")]
    pub fn compress(states: &mut [[u32; LANES]; 4], data: [&[u8]; LANES]) {
        let data = data.map(|bytes| bytes.as_chunks::<BLOCK>().0);
        debug_assert!(data.iter().all(|blocks| blocks.len() == data[0].len()), "all streams go as far");
        let mut state = [load(&states[0]), load(&states[1]), load(&states[2]), load(&states[3])];
        let mut words = [[0; LANES]; 16];
        for block in 0..data[0].len() {
            for (lane, blocks) in data.iter().enumerate() {
                for (words, word) in words.iter_mut().zip(blocks[block].as_chunks().0) {
                    words[lane] = u32::from_le_bytes(*word);
                }
            }
            let [mut a, mut b, mut c, mut d] = state;
            // `mix`: the truth table of the function of b, c and d.
            macro_rules! turn {
                ($mix:expr, $turn:expr, $i:expr, $word:expr) => {
                    let sum =
                        _mm256_add_epi32(load(&words[$word % 16]), _mm256_set1_epi32(K[$i].cast_signed()));
                    let sum = _mm256_add_epi32(a, sum);
                    let sum = _mm256_add_epi32(sum, _mm256_ternarylogic_epi32::<$mix>(b, c, d));
                    (a, d, c, b) = (d, c, b, _mm256_add_epi32(b, _mm256_rol_epi32::<$turn>(sum)));
                };
            }
            macro_rules! round {
                ($mix:expr, $turns:tt, $first:expr, $word:expr, $step:expr) => {
                    round!($mix, $turns, $first, $word, $step, 0, 4, 8, 12);
                };
                ($mix:expr, [$r:expr, $s:expr, $t:expr, $u:expr], $first:expr, $word:expr, $step:expr, $($i:expr),*) => {$(
                    turn!($mix, $r, $first + $i, $word + $step * $i);
                    turn!($mix, $s, $first + $i + 1, $word + $step * ($i + 1));
                    turn!($mix, $t, $first + $i + 2, $word + $step * ($i + 2));
                    turn!($mix, $u, $first + $i + 3, $word + $step * ($i + 3));
                )*};
            }
            round!(0xca, [7, 12, 17, 22], 0, 0, 1);
            round!(0xe4, [5, 9, 14, 20], 16, 1, 5);
            round!(0x96, [4, 11, 16, 23], 32, 5, 3);
            round!(0x39, [6, 10, 15, 21], 48, 0, 7);
            for (state, sum) in state.iter_mut().zip([a, b, c, d]) {
                *state = _mm256_add_epi32(*state, sum);
            }
        }
        for (words, state) in states.iter_mut().zip(state) {
            // SAFETY: eight words are as long as the vector.
            unsafe { _mm256_storeu_si256(words.as_mut_ptr().cast(), state) };
        }
    }
}

const K: [u32; 64] = [
    0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501,
    0x698098d8, 0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821,
    0xf61e2562, 0xc040b340, 0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8,
    0x21e1cde6, 0xc33707d6, 0xf4d50d87, 0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a,
    0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c, 0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70,
    0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039, 0xe6db99e5, 0x1fa27cf8, 0xc4ac5665,
    0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92, 0xffeff47d, 0x85845dd1,
    0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb, 0xeb86d391,
];

#[cfg(test)]
mod tests {
    use super::*;
    use s3s::crypto::{Checksum as _, Md5 as Known};

    /// A job waits while another stream could join it, and no longer.
    #[tokio::test]
    async fn bytes_wait_for_those_of_other_streams_until_they_are_needed() {
        let (lanes, bytes) = (Lanes::default(), Bytes::from(vec![7; AT_ONCE + BLOCK]));
        let waiting = |lanes: &Lanes| lanes.queue().waiting.len();
        let mut streams: Vec<Md5> = (0..3).map(|_| Md5::new(&lanes)).collect();
        streams[0].add(bytes.clone()).await;
        streams[1].add(bytes.clone()).await;
        assert_eq!(waiting(&lanes), 2, "the third may come");
        streams[2].add(bytes.clone()).await;
        assert_eq!(waiting(&lanes), 0, "all are there");
        streams[0].add(bytes.clone()).await;
        assert_eq!(waiting(&lanes), 1);
        let (third, second) = (streams.pop().unwrap(), streams.pop().unwrap());
        let first = streams.pop().unwrap().finish().await;
        assert_eq!((waiting(&lanes), second.finish().await), (0, third.finish().await));
        let mut known = Known::new();
        known.update(&bytes.repeat(2));
        assert_eq!(first, known.finalize());
        let mut alone = Md5::new(&lanes);
        alone.add(bytes).await;
        assert_eq!(waiting(&lanes), 0, "no other stream is there");
    }

    /// A client that disconnects leaves nothing waiting.
    #[tokio::test]
    async fn what_a_dropped_stream_left_is_not_kept() {
        let (lanes, bytes) = (Lanes::default(), Bytes::from(vec![7; AT_ONCE + BLOCK]));
        let (mut gone, other) = (Md5::new(&lanes), Md5::new(&lanes));
        gone.add(bytes).await;
        drop(gone);
        assert_eq!(lanes.queue().waiting.len(), 0);
        drop(other);
        assert_eq!(lanes.queue().streams, 0);
    }

    /// Streams of all lengths, at the same time, each in pieces of different lengths.
    #[tokio::test]
    async fn many_streams_get_the_md5_of_each() {
        let lanes = Lanes::default();
        let lens = [0, 1, 55, 56, 64, 119, 4096, AT_ONCE + 1, 100_000, 1 << 20, (1 << 20) + 63];
        let streams = (0..40).map(|number| {
            let len = lens[number % lens.len()] + number / lens.len() * 200_000;
            let bytes: Bytes = (0..len).map(|at| (at * (number + 3) % 251) as u8).collect();
            let mut md5 = Md5::new(&lanes);
            tokio::spawn(async move {
                let mut rest = bytes.clone();
                while !rest.is_empty() {
                    md5.add(rest.split_to(rest.len().min(BLOCK * (500 + 1000 * (number % 9))))).await;
                }
                let mut known = Known::new();
                known.update(&bytes);
                assert_eq!(md5.finish().await, known.finalize(), "{len} bytes");
            })
        });
        for stream in streams.collect::<Vec<_>>() {
            stream.await.unwrap();
        }
    }
}
