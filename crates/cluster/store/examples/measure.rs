//! Measures the store on a real disk: `cargo run --profile dist -p ebb-store --example measure -- DIR [SECONDS]`. Keeps
//! 32 operations in flight through a `StoreHandle`, and prints operations per second and CPU time per operation of this
//! process, the deferred move to chunk files included.

use bytes::Bytes;
use ebb_store::{Completion, Config, LinuxDisk, Op, Outcome, StoreCore, StoreHandle};
use ebb_types::*;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

const IN_FLIGHT: usize = 32;
const CHUNK_BLOCKS: u64 = 16384;

fn cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn resident() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find(|l| l.starts_with("VmRSS")).unwrap_or("VmRSS: ?").replace(char::is_whitespace, "")
}

fn place(write: u64, blocks: u64) -> (ChunkId, u32) {
    let block = write * blocks;
    (
        ChunkId { object: ObjectId(blocks), index: (block / CHUNK_BLOCKS) as u32 },
        (block % CHUNK_BLOCKS) as u32,
    )
}

struct Bench {
    handle: StoreHandle,
    done: Receiver<Vec<Completion>>,
}

impl Bench {
    /// Runs `op(n)` for n = 0.. for `time`; returns how many completed.
    fn run(&self, name: &str, time: Duration, mut op: impl FnMut(u64) -> Op) -> u64 {
        let (start, cpu_start) = (Instant::now(), cpu());
        let (mut sent, mut ended, mut wakeups) = (0u64, 0u64, 0u64);
        while ended < sent || start.elapsed() < time {
            while sent - ended < IN_FLIGHT as u64 && start.elapsed() < time {
                self.handle.submit(sent, op(sent));
                sent += 1;
            }
            self.handle.wake();
            if sent == ended {
                break;
            }
            let batch = self.done.recv().expect("the I/O thread lives");
            wakeups += 1;
            for completion in &batch {
                assert!(!matches!(completion.outcome, Outcome::Failed(_)), "{completion:?}");
            }
            ended += batch.len() as u64;
        }
        report(
            name,
            ended,
            start.elapsed(),
            cpu() - cpu_start,
            &format!("{:.1} per batch", ended as f64 / wakeups as f64),
        );
        ended
    }
}

fn report(name: &str, count: u64, wall: Duration, cpu: Duration, more: &str) {
    let rate = count as f64 / wall.as_secs_f64();
    let micros = cpu.as_secs_f64() * 1e6 / count as f64;
    println!("{name:<28} {rate:>9.0}/s  {micros:>8.1} us CPU each  {more}  {}", resident());
}

fn main() {
    let mut args = std::env::args().skip(1);
    let dir = args.next().expect("a directory");
    let time = Duration::from_secs(args.next().map_or(5, |s| s.parse().expect("seconds")));
    let disk = LinuxDisk::new(dir.as_ref()).unwrap();
    let opened = Instant::now();
    let (core, _) =
        StoreCore::open(Arc::new(disk), Config::new(1, ServerId(1), ebb_types::StoreId(1))).unwrap();
    println!("opened in {:?}, {}", opened.elapsed(), resident());
    let (sender, done) = channel();
    let handle = StoreHandle::start(core, move |batch| sender.send(batch).unwrap()).unwrap();
    let bench = Bench { handle, done };
    for blocks in [1u64, 16, 256, 1024] {
        let payload = Bytes::from(vec![7u8; blocks as usize * BLOCK_BYTES]);
        let crcs = block_crcs(&payload);
        let kib = blocks * 4;
        let count = bench.run(&format!("apply {kib} KiB"), time, |n| {
            let (chunk, first) = place(n, blocks);
            let version = Version { epoch: Epoch(1), seq: n + 1 };
            let content = Content::Data { crcs: crcs.clone() };
            let (group, count) = (GroupId(chunk.index % 64), blocks as u32);
            let record = Record { group, chunk, first, count, version, request: None, content };
            let payload = payload.clone();
            Op::Apply {
                role: Role::Replica,
                record,
                payload,
                must_fit: false,
                repair: None,
                committed: Version { seq: version.seq.saturating_sub(IN_FLIGHT as u64), ..version },
            }
        });
        let at = |n: u64| {
            let (chunk, first) = place((n * 7919) % count, blocks);
            (GroupId(chunk.index % 64), chunk, first)
        };
        let (start, cpu_start) = (Instant::now(), cpu());
        let (mut tried, mut hits) = (0, 0);
        while start.elapsed() < time / 4 {
            let (group, chunk, first) = at(tried);
            tried += 1;
            hits += bench.handle.try_read(Role::Replica, group, chunk, first, blocks as u32).is_some() as u64;
        }
        report(
            &format!("  try_read {kib} KiB"),
            tried,
            start.elapsed(),
            cpu() - cpu_start,
            &format!("{hits} answered"),
        );
        bench.run(&format!("  read {kib} KiB"), time / 4, |n| {
            let (group, chunk, first) = at(n);
            Op::Read { role: Role::Replica, group, chunk, first, count: blocks as u32 }
        });
    }
    bench.run("flush", Duration::from_millis(1), |_| Op::Flush);
    println!("{:?}", bench.handle.figures());
}
