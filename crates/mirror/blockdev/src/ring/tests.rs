//! The ring and its disks against a model in memory, with io_uring and with threads.

use super::{Completion, Ring};
use crate::work::Work;
use crate::{Caching, DiskFile, OpenError};
use bytes::{BufMut, Bytes, BytesMut};
use ebb_mirror::{DiskOp, Found, Token};
use ebb_testing::skip;
use ebb_types::Random;
use rustix::io::Errno;
use std::fs::File;
use std::future::poll_fn;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::runtime::Runtime;

const BLOCK: u64 = 4096;

/// A directory with a sparse file of `blocks` blocks.
fn file(blocks: u64) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk");
    File::create(&path).unwrap().set_len(blocks * BLOCK).unwrap();
    (dir, path)
}

/// With io_uring, if it is permitted here, and with threads.
fn rings() -> Vec<Ring> {
    let ring = Ring::new().unwrap();
    match ring.kernel {
        Some(_) => vec![ring, Ring::on_threads().unwrap()],
        None => {
            skip("io_uring is not permitted");
            vec![ring]
        }
    }
}

/// Runs operations of disk 0 at the same time; what they found, in their order.
fn run(runtime: &Runtime, ring: &mut Ring, ops: Vec<DiskOp>) -> Vec<Found> {
    let mut found: Vec<Option<Found>> = ops.iter().map(|_| None).collect();
    for (token, op) in ops.into_iter().enumerate() {
        ring.submit(0, Token(token as u64), op);
    }
    while ring.in_flight() > 0 {
        let Completion { disk, token, found: one, .. } = next(runtime, ring);
        assert_eq!(disk, 0);
        assert_eq!(found[token.0 as usize].replace(one), None, "it ended twice");
    }
    found.into_iter().map(|found| found.expect("all have ended")).collect()
}

fn next(runtime: &Runtime, ring: &mut Ring) -> Completion {
    runtime.block_on(poll_fn(|context| ring.poll_next(context))).unwrap()
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Bytes as pieces of any length, at any address.
fn cut(random: &mut Random, bytes: &[u8]) -> Vec<Bytes> {
    let mut rest = bytes;
    let mut pieces = Vec::new();
    while !rest.is_empty() {
        let (piece, more) = rest.split_at(1 + random.index(rest.len().min(6000)));
        let mut moved = BytesMut::zeroed(random.index(3));
        let pad = moved.len();
        moved.put_slice(piece);
        pieces.push(moved.freeze().slice(pad..));
        rest = more;
    }
    pieces
}

fn noise(random: &mut Random, bytes: u64) -> Vec<u8> {
    (0..bytes).map(|_| random.next() as u8 | 1).collect()
}

#[test]
fn operations_match_a_model() {
    let seed = 7;
    println!("seed {seed}");
    for caching in [Caching::Cached, Caching::Direct] {
        for mut ring in rings() {
            let (_dir, path) = file(64);
            match DiskFile::open(&path, caching) {
                Err(OpenError::NoDirect { .. }) => return skip("the file system has no direct I/O"),
                disk => ring.add(disk.unwrap()),
            };
            compare(&runtime(), ring, &mut Random::new(seed));
        }
    }
}

/// Eight operations at once, each in its own eighth of the disk.
fn compare(runtime: &Runtime, mut ring: Ring, random: &mut Random) {
    let mut model = vec![0u8; 64 * BLOCK as usize];
    for _ in 0..150 {
        let mut ops = Vec::new();
        for part in 0..8 {
            let first = random.index(8) as u64;
            let (offset, bytes) =
                ((part * 8 + first) * BLOCK, (1 + random.index(8 - first as usize) as u64) * BLOCK);
            let range = offset as usize..(offset + bytes) as usize;
            ops.push(match random.index(6) {
                0 | 1 => DiskOp::Read { offset, bytes },
                2 | 3 => {
                    let data = noise(random, bytes);
                    model[range].copy_from_slice(&data);
                    DiskOp::Write { offset, pieces: cut(random, &data), durable: random.chance(100) }
                }
                4 if random.index(4) == 0 => DiskOp::Sync,
                4 => DiskOp::Status { offset, bytes },
                _ => {
                    model[range].fill(0);
                    DiskOp::Zero { offset, bytes, may_trim: random.index(2) == 0 }
                }
            });
        }
        for (op, found) in ops.clone().into_iter().zip(run(runtime, &mut ring, ops)) {
            check(&model, &op, found);
        }
    }
    let whole = run(runtime, &mut ring, vec![DiskOp::Read { offset: 0, bytes: 64 * BLOCK }]);
    assert!(whole == [Found::Data(model.into())], "the whole disk is the model");
}

fn check(model: &[u8], op: &DiskOp, found: Found) {
    match (op, found) {
        (DiskOp::Read { offset, bytes }, Found::Data(data)) => {
            assert!(data == model[*offset as usize..(offset + bytes) as usize], "{op:?} read something else");
        }
        (DiskOp::Status { offset, bytes }, Found::Extents(runs)) => {
            let mut at = *offset;
            for (length, hole) in runs {
                assert!(length > 0 && length % BLOCK == 0);
                let range = at as usize..(at + length) as usize;
                assert!(!hole || model[range].iter().all(|byte| *byte == 0), "a hole has data");
                at += length;
            }
            assert_eq!(at, offset + bytes);
        }
        (DiskOp::Write { .. } | DiskOp::Zero { .. } | DiskOp::Sync, Found::Done) => {}
        (op, found) => panic!("{op:?} ended with {found:?}"),
    }
}

#[test]
fn holes_are_found_and_made() {
    for mut ring in rings() {
        let (runtime, (_dir, path)) = (runtime(), file(256));
        ring.add(DiskFile::open(&path, Caching::Cached).unwrap());
        let data = DiskOp::Write {
            offset: 100 * BLOCK,
            pieces: vec![vec![1; 4 * BLOCK as usize].into()],
            durable: true,
        };
        let zero = DiskOp::Zero { offset: 101 * BLOCK, bytes: BLOCK, may_trim: true };
        let status = DiskOp::Status { offset: 90 * BLOCK, bytes: 100 * BLOCK };
        assert_eq!(run(&runtime, &mut ring, vec![data]), [Found::Done]);
        let runs = vec![(10 * BLOCK, true), (4 * BLOCK, false), (86 * BLOCK, true)];
        assert_eq!(run(&runtime, &mut ring, vec![status.clone()]), [Found::Extents(runs)]);
        assert_eq!(run(&runtime, &mut ring, vec![zero]), [Found::Done]);
        let runs = [(10, true), (1, false), (1, true), (2, false), (86, true)];
        let runs = runs.map(|(blocks, hole)| (blocks * BLOCK, hole)).to_vec();
        assert_eq!(run(&runtime, &mut ring, vec![status]), [Found::Extents(runs)]);
    }
}

#[test]
fn more_operations_and_pieces_than_one_call_takes() {
    for mut ring in rings() {
        let (runtime, (_dir, path)) = (runtime(), file(2000));
        ring.add(DiskFile::open(&path, Caching::Cached).unwrap());
        let data = noise(&mut Random::new(1), 2000 * BLOCK);
        let pieces: Vec<Bytes> = data.chunks(1000).map(Bytes::copy_from_slice).collect();
        assert!(pieces.len() > 8000);
        assert_eq!(
            run(&runtime, &mut ring, vec![DiskOp::Write { offset: 0, pieces, durable: false }]),
            [Found::Done]
        );
        let reads = (0..2000).map(|block| DiskOp::Read { offset: block * BLOCK, bytes: BLOCK });
        let found = run(&runtime, &mut ring, reads.collect());
        for (found, expected) in found.into_iter().zip(data.chunks(BLOCK as usize)) {
            assert_eq!(found, Found::Data(Bytes::copy_from_slice(expected)));
        }
    }
}

#[test]
fn what_cannot_be_done_fails_and_the_rest_is_served() {
    for mut ring in rings() {
        let (runtime, (_dir, path)) = (runtime(), file(16));
        ring.add(DiskFile::open(&path, Caching::Cached).unwrap());
        let read = |offset| DiskOp::Read { offset, bytes: BLOCK };
        let write =
            |offset| DiskOp::Write { offset, pieces: vec![vec![1; BLOCK as usize].into()], durable: false };
        let beyond = vec![
            read(16 * BLOCK),
            write(u64::MAX - 100),
            DiskOp::Zero { offset: 15 * BLOCK, bytes: 2 * BLOCK, may_trim: true },
            DiskOp::Status { offset: 0, bytes: 17 * BLOCK },
            read(15 * BLOCK),
        ];
        let found = run(&runtime, &mut ring, beyond);
        assert_eq!(found[..4], [Found::Failed, Found::Failed, Found::Failed, Found::Failed]);
        assert_eq!(found[4], Found::Data(vec![0; BLOCK as usize].into()));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 16 * BLOCK);
        // A descriptor that takes no writes.
        ring.disks[0].file.file = Arc::new(File::open(&path).unwrap());
        let found = run(&runtime, &mut ring, vec![write(0), read(0)]);
        assert_eq!(found, [Found::Failed, Found::Data(vec![0; BLOCK as usize].into())]);
    }
}

#[test]
fn dropping_a_ring_ends_what_is_in_flight() {
    for mut ring in rings() {
        let (_dir, path) = file(600);
        ring.add(DiskFile::open(&path, Caching::Cached).unwrap());
        let data = noise(&mut Random::new(2), 600 * BLOCK);
        for (block, data) in data.chunks(BLOCK as usize).enumerate() {
            let pieces = vec![Bytes::copy_from_slice(&data[..100]), Bytes::copy_from_slice(&data[100..])];
            let offset = block as u64 * BLOCK;
            ring.submit(0, Token(0), DiskOp::Write { offset, pieces, durable: false });
            ring.submit(0, Token(0), DiskOp::Read { offset, bytes: BLOCK });
            ring.submit(0, Token(0), DiskOp::Status { offset, bytes: BLOCK });
        }
        ring.submit(0, Token(0), DiskOp::Sync);
        drop(ring);
        assert!(std::fs::read(&path).unwrap() == data, "every write has ended");
        // The lock is gone with the descriptor.
        DiskFile::open(&path, Caching::Cached).unwrap();
    }
}

#[test]
fn a_sleeping_task_is_woken_by_a_new_operation() {
    for mut ring in rings() {
        let (runtime, (_dir, path)) = (runtime(), file(4));
        ring.add(DiskFile::open(&path, Caching::Cached).unwrap());
        let ring = std::rc::Rc::new(std::cell::RefCell::new(ring));
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let shared = ring.clone();
            let sleeper = tokio::task::spawn_local(async move {
                poll_fn(|context| shared.borrow_mut().poll_next(context)).await.unwrap()
            });
            while ring.borrow().waker.is_none() {
                tokio::task::yield_now().await;
            }
            ring.borrow_mut().submit(0, Token(5), DiskOp::Sync);
            let Completion { token, found, .. } = sleeper.await.unwrap();
            assert_eq!((token, found), (Token(5), Found::Done));
        });
    }
}

#[test]
fn steps_may_move_a_part() {
    let mut random = Random::new(3);
    let (_dir, path) = file(16);
    let disk = DiskFile::open(&path, Caching::Cached).unwrap();
    for _ in 0..200 {
        let blocks = 1 + random.index(8) as u64;
        let data = noise(&mut random, blocks * BLOCK);
        let pieces = cut(&mut random, &data);
        let mut work = Work::new(&disk, DiskOp::Write { offset: 0, pieces, durable: false }).unwrap();
        let mut written = Vec::new();
        loop {
            assert_eq!(work.advance(Err([Errno::INTR, Errno::AGAIN][random.index(2)])), None);
            let left: Vec<u8> = work.pieces().flatten().copied().collect();
            let moved = 1 + random.index(left.len());
            written.extend_from_slice(&left[..moved]);
            if let Some(ended) = work.advance(Ok(moved)) {
                assert_eq!(ended, Ok(Found::Done));
                break;
            }
        }
        assert!(written == data);
    }
}

#[test]
fn zeroes_are_written_where_nothing_else_is_supported() {
    let (_dir, path) = file(1024);
    std::fs::write(&path, vec![1; 1024 * BLOCK as usize]).unwrap();
    let disk = DiskFile::open(&path, Caching::Cached).unwrap();
    let zero = DiskOp::Zero { offset: BLOCK, bytes: 1022 * BLOCK, may_trim: true };
    let mut work = Work::new(&disk, zero).unwrap();
    assert_eq!(work.advance(Err(Errno::OPNOTSUPP)), None, "another way is left");
    assert_eq!(work.advance(Err(Errno::OPNOTSUPP)), None, "they can be written");
    assert_eq!(work.run(&disk.file), Ok(Found::Done));
    assert!(path.metadata().unwrap().blocks() * 512 >= 1024 * BLOCK, "nothing became a hole");
    let found = std::fs::read(&path).unwrap();
    let (first, last) = (BLOCK as usize, 1023 * BLOCK as usize);
    assert!(found[first..last].iter().all(|byte| *byte == 0));
    assert!(
        found[..first].iter().chain(&found[last..]).all(|byte| *byte == 1) && found.len() == last + first
    );
    let mut work = Work::new(&disk, DiskOp::Zero { offset: 0, bytes: BLOCK, may_trim: false }).unwrap();
    assert_eq!(work.advance(Err(Errno::NOSPC)), Some(Err(Errno::NOSPC)));
}

#[test]
fn a_disk_belongs_to_one_program() {
    let (dir, path) = file(4);
    let disk = DiskFile::open(&path, Caching::Cached).unwrap();
    assert_eq!((disk.size(), disk.is_device()), (4 * BLOCK, false));
    assert!(matches!(DiskFile::open(&path, Caching::Cached), Err(OpenError::Locked { .. })));
    drop(disk);
    DiskFile::open(&path, Caching::Cached).unwrap();
    assert!(matches!(DiskFile::open(dir.path(), Caching::Cached), Err(OpenError::Kind { .. })));
    let missing = dir.path().join("missing");
    assert!(matches!(DiskFile::open(&missing, Caching::Cached), Err(OpenError::Io { .. })));
}

#[test]
fn a_mounted_device_is_refused() {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let mut devices = mounts.lines().filter_map(|line| line.split(' ').next());
    let device = devices.find(|device| device.starts_with("/dev/") && Path::new(device).exists());
    let Some(device) = device else { return skip("no device is mounted") };
    match DiskFile::open(device.as_ref(), Caching::Cached) {
        Err(OpenError::InUse { .. }) => {}
        Err(OpenError::Io { error, .. }) => skip(format_args!("{device} cannot be opened: {error}")),
        opened => panic!("{device} is mounted, and yet: {opened:?}"),
    }
}

/// A loop device over a file.
struct Loop(PathBuf);

impl Loop {
    fn new(file: &Path) -> Result<Loop, String> {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(file).output();
        let made = made.map_err(|error| format!("losetup: {error}"))?;
        match made.status.success() {
            true => Ok(Loop(String::from_utf8(made.stdout).unwrap().trim().into())),
            false => Err(String::from_utf8_lossy(&made.stderr).trim().to_owned()),
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

#[test]
fn a_block_device_matches_the_model() {
    let (_dir, path) = file(64);
    let device = match Loop::new(&path) {
        Ok(device) => device,
        Err(error) => return skip(format_args!("there is no loop device: {error}")),
    };
    for caching in [Caching::Cached, Caching::Direct] {
        for mut ring in rings() {
            let disk = DiskFile::open(&device.0, caching).unwrap();
            assert_eq!((disk.size(), disk.is_device()), (64 * BLOCK, true));
            assert!(matches!(DiskFile::open(&device.0, caching), Err(OpenError::InUse { .. })));
            ring.add(disk);
            let runtime = runtime();
            let zero = DiskOp::Zero { offset: 0, bytes: 64 * BLOCK, may_trim: true };
            assert_eq!(run(&runtime, &mut ring, vec![zero]), [Found::Done]);
            compare(&runtime, ring, &mut Random::new(11));
        }
    }
}

/// A small file system in memory, for as long as it lives.
struct Small(TempDir);

impl Small {
    fn new(kib: u64) -> Result<Small, String> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={kib}k");
        let made = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(dir.path()).output();
        let made = made.map_err(|error| format!("mount: {error}"))?;
        match made.status.success() {
            true => Ok(Small(dir)),
            false => Err(String::from_utf8_lossy(&made.stderr).trim().to_owned()),
        }
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// It once counted as a lost disk; and the other one, whose image fills the same file system, too.
#[test]
fn what_finds_no_room_waits_until_there_is_some() {
    for mut ring in rings() {
        let small = match Small::new(256) {
            Ok(small) => small,
            Err(error) => return skip(format_args!("no file system can be mounted: {error}")),
        };
        let path = small.0.path().join("disk");
        File::create(&path).unwrap().set_len(64 * BLOCK).unwrap();
        let other = small.0.path().join("other");
        std::fs::write(&other, vec![1; 48 * BLOCK as usize]).unwrap();
        ring.add(DiskFile::open(&path, Caching::Cached).unwrap());
        // Its pauses take no time.
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        let bytes = Bytes::from(noise(&mut Random::new(3), 32 * BLOCK));
        let write = DiskOp::Write { offset: 0, pieces: vec![bytes.clone()], durable: false };
        ring.submit(0, Token(1), write);
        // What needs no room is served.
        ring.submit(0, Token(2), DiskOp::Read { offset: 60 * BLOCK, bytes: BLOCK });
        let Completion { token, found, .. } = next(&runtime, &mut ring);
        assert_eq!((token, found), (Token(2), Found::Data(Bytes::from(vec![0; BLOCK as usize]))));
        let waits = async {
            tokio::time::timeout(super::PAUSE * 3, poll_fn(|context| ring.poll_next(context))).await
        };
        assert!(runtime.block_on(waits).is_err(), "it waits, and is tried again in vain");
        assert_eq!(ring.in_flight(), 1);
        std::fs::remove_file(&other).unwrap();
        let Completion { token, found, .. } = next(&runtime, &mut ring);
        assert_eq!((token, found), (Token(1), Found::Done));
        let read = DiskOp::Read { offset: 0, bytes: 32 * BLOCK };
        assert_eq!(run(&runtime, &mut ring, vec![read]), [Found::Data(bytes)]);
    }
}

/// The kernel would read zeroes where the file was, once a write has made it longer again.
#[test]
fn a_truncated_file_fails_and_never_reads_as_zeroes() {
    for mut ring in rings() {
        let (_dir, path) = file(64);
        ring.add(DiskFile::open(&path, Caching::Cached).unwrap());
        let runtime = runtime();
        let data = vec![7; BLOCK as usize];
        let write = |block: u64| DiskOp::Write {
            offset: block * BLOCK,
            pieces: vec![data.clone().into()],
            durable: false,
        };
        let read = |block: u64| DiskOp::Read { offset: block * BLOCK, bytes: BLOCK };
        assert_eq!(run(&runtime, &mut ring, vec![write(3)]), [Found::Done]);
        let outside = std::fs::File::options().write(true).open(&path).unwrap();
        outside.set_len(BLOCK).unwrap();
        assert_eq!(run(&runtime, &mut ring, vec![write(10)]), [Found::Failed]);
        assert_eq!(
            run(&runtime, &mut ring, vec![read(3), read(0), DiskOp::Sync]),
            [Found::Failed, Found::Failed, Found::Failed]
        );
        outside.set_len(64 * BLOCK).unwrap();
        assert_eq!(run(&runtime, &mut ring, vec![read(3)]), [Found::Failed], "its content is gone");
    }
}

#[test]
fn what_a_truncation_overtakes_fails() {
    for mut ring in rings() {
        let (_dir, path) = file(64);
        ring.add(DiskFile::open(&path, Caching::Cached).unwrap());
        ring.submit(
            0,
            Token(0),
            DiskOp::Write { offset: 9 * BLOCK, pieces: vec![vec![7; BLOCK as usize].into()], durable: false },
        );
        std::fs::File::options().write(true).open(&path).unwrap().set_len(BLOCK).unwrap();
        assert_eq!(next(&runtime(), &mut ring).found, Found::Failed);
    }
}
