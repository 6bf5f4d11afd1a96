//! The log of one member: one append-only file with everything that the member must not forget.
//!
//! ```text
//! file  = "EBBRAFT3" mark mark frame*      mark  = bytes of the file known to be durable u64 LE | CRC-32C of these u32 LE
//! frame = "RLOG" | body bytes u32 LE | CRC-32C of body u32 LE | body
//! body  = postcard Vec<Piece>; the newest of each kind wins, an entry cuts off its successors
//! ```
//! The two marks are written in turn, after each sync, and become durable with the next one or when the kernel gets to it.
//! So a frame that a power failure tore is told from one that rotted later: what ends below the mark was acknowledged.
//! Damage there, or before a frame that is whole, is [`RaftError::Damaged`], never skipped. A damaged end behind the mark was
//! never acknowledged: it is cut off.

use super::RaftError;
use crate::MemberId;
use ebb_types::crc32c;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

const FILE_MAGIC: &[u8; 8] = b"EBBRAFT3";
const FRAME_MAGIC: &[u8; 4] = b"RLOG";
const FRAME_HEADER: usize = 12;
const MARK_BYTES: usize = 12;
/// Where the first frame starts.
pub(super) const FRAMES_AT: usize = FILE_MAGIC.len() + 2 * MARK_BYTES;
const FILE_NAME: &str = "raft.log";

/// Where the log is kept. An error other than of [`LogFile::overwrite`] means that the member must stop.
pub trait LogFile {
    /// The whole log; empty if there is none.
    fn read(&mut self) -> io::Result<Vec<u8>>;
    /// Writes at `at`, where the log ends, whatever an earlier try left there. Durable on return.
    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Changes bytes in place. Not durable before the next append.
    fn overwrite(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Puts `bytes` in the place of the whole log, all or nothing, and creates it if there is none. Durable on return.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// The log as a file in a directory that no other process may use meanwhile.
pub struct DiskLog {
    path: PathBuf,
    file: Option<File>,
    /// Keeps the lock.
    _lock: File,
}

impl DiskLog {
    /// Locks the directory, creating it if there is none. Creates no log.
    pub fn open(directory: &Path) -> Result<DiskLog, RaftError> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let lock = File::open(directory)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(RaftError::InUse),
            Err(error) => return Err(RaftError::Io(error.into())),
        }
        let path = directory.join(FILE_NAME);
        let file = match OpenOptions::new().read(true).write(true).open(&path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        Ok(DiskLog { path, file, _lock: lock })
    }

    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl LogFile for DiskLog {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        if self.file.is_none() {
            return Ok(Vec::new());
        }
        fs::read(&self.path)
    }

    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.file()?;
        if file.metadata()?.len() > at {
            file.set_len(at)?;
        }
        file.write_all_at(bytes, at)?;
        file.sync_data()
    }

    fn overwrite(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file()?.write_all_at(bytes, at)
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fresh = self.path.with_extension("new");
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, &self.path)?;
        let directory = self.path.parent().expect("the log is in a directory");
        File::open(directory)?.sync_all()?;
        self.file = Some(file);
        Ok(())
    }
}

/// The log in memory, for simulations and tests: what was written is durable.
#[derive(Clone, Debug, Default)]
pub struct MemoryLog {
    pub bytes: Vec<u8>,
}

impl LogFile for MemoryLog {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.bytes.clone())
    }

    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.bytes.truncate(at as usize);
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn overwrite(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.bytes[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.bytes = bytes.to_vec();
        Ok(())
    }
}

/// How a member came to be: the first thing in its log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Birth {
    /// Drawn by whoever founds the cluster: it becomes `ClusterParams::instance`.
    pub instance: u64,
    /// The members that vote from the start.
    pub voters: Vec<MemberId>,
}

/// One durable fact.
#[derive(Serialize, Deserialize)]
pub(super) enum Piece {
    Birth(Birth),
    Vote { term: u64, vote: u64 },
    Entry { index: u64, term: u64, data: Vec<u8> },
    Snapshot { index: u64, term: u64, state: Vec<u8> },
}

/// The log, and how long it is.
pub(super) struct Log<L> {
    pub file: L,
    pub bytes: usize,
    /// Which of the two marks is written next.
    turn: bool,
}

impl<L: LogFile> Log<L> {
    /// Reads a log. The next append overwrites an end that was never acknowledged.
    pub fn open(mut file: L) -> Result<(Log<L>, Vec<Piece>), RaftError> {
        let bytes = file.read()?;
        if bytes.is_empty() {
            return Err(RaftError::Missing);
        }
        let (pieces, whole) = read_log(&bytes)?;
        Ok((Log { file, bytes: whole, turn: false }, pieces))
    }

    pub fn append(&mut self, pieces: &[Piece]) -> io::Result<()> {
        let frame = frame(pieces);
        self.file.append(self.bytes as u64, &frame)?;
        self.bytes += frame.len();
        let at = FILE_MAGIC.len() + if self.turn { MARK_BYTES } else { 0 };
        self.turn = !self.turn;
        self.file.overwrite(at as u64, &mark(self.bytes))
    }

    pub fn replace(&mut self, pieces: &[Piece]) -> io::Result<()> {
        let bytes = file_of(pieces);
        self.file.replace(&bytes)?;
        self.bytes = bytes.len();
        Ok(())
    }
}

/// Makes the log of a member that never was. Refused if there is one.
pub fn create(log: &mut impl LogFile, birth: Birth) -> Result<(), RaftError> {
    if !log.read()?.is_empty() {
        return Err(RaftError::Exists);
    }
    Ok(log.replace(&file_of(&[Piece::Birth(birth)]))?)
}

fn file_of(pieces: &[Piece]) -> Vec<u8> {
    let frame = frame(pieces);
    let mark = mark(FRAMES_AT + frame.len());
    [&FILE_MAGIC[..], &mark, &mark, &frame].concat()
}

fn mark(durable: usize) -> [u8; MARK_BYTES] {
    let mut out = [0; MARK_BYTES];
    out[..8].copy_from_slice(&(durable as u64).to_le_bytes());
    let check = crc32c(&out[..8]);
    out[8..].copy_from_slice(&check.to_le_bytes());
    out
}

fn mark_at(bytes: &[u8], at: usize) -> Option<usize> {
    let (length, check) = bytes.get(at..at + MARK_BYTES)?.split_at(8);
    let good = crc32c(length).to_le_bytes() == check;
    good.then(|| u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize)
}

fn frame(pieces: &[Piece]) -> Vec<u8> {
    let body = postcard::to_stdvec(pieces).expect("plain data");
    let mut out = Vec::with_capacity(FRAME_HEADER + body.len());
    out.extend_from_slice(FRAME_MAGIC);
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&crc32c(&body).to_le_bytes());
    out.extend_from_slice(&body);
    out
}

/// The body of the whole frame that starts at `at`, if there is one.
fn frame_at(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let header = bytes.get(at..at + FRAME_HEADER)?;
    let u32_at = |i: usize| u32::from_le_bytes(header[i..i + 4].try_into().expect("four bytes"));
    let body = bytes.get(at + FRAME_HEADER..)?.get(..u32_at(4) as usize)?;
    (&header[..4] == FRAME_MAGIC && crc32c(body) == u32_at(8)).then_some(body)
}

/// What the log says, and how long its whole part is.
pub(super) fn read_log(bytes: &[u8]) -> Result<(Vec<Piece>, usize), RaftError> {
    if !bytes.starts_with(FILE_MAGIC) {
        let found = bytes[..bytes.len().min(FILE_MAGIC.len())].to_vec();
        return Err(RaftError::Format { what: "the file", found });
    }
    let marks = [0, MARK_BYTES].map(|at| mark_at(bytes, FILE_MAGIC.len() + at));
    let Some(durable) = marks.into_iter().flatten().max() else {
        return Err(RaftError::Damaged { at: FILE_MAGIC.len() });
    };
    let mut pieces = Vec::new();
    let mut at = FRAMES_AT;
    while let Some(body) = frame_at(bytes, at) {
        pieces.append(&mut postcard::from_bytes(body)?);
        at += FRAME_HEADER + body.len();
    }
    let mut tail = at + 1..bytes.len().saturating_sub(FRAME_HEADER - 1);
    if at < durable || tail.any(|later| frame_at(bytes, later).is_some()) {
        return Err(RaftError::Damaged { at });
    }
    Ok((pieces, at))
}
