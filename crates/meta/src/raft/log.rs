//! The log of one member: one append-only file with everything that the member must not forget.
//!
//! ```text
//! file  = "EBBRAFT5" mark mark frame*      mark  = bytes of the file known to be durable u64 LE | CRC-32C of these u32 LE
//! frame = "RLOG" | body bytes u32 LE | CRC-32C of body u32 LE | body = postcard Vec<Piece>
//!       | "RSTA" | likewise                                   | body = postcard State, of the Snapshot that follows it
//! ```
//! The newest piece of each kind wins, an entry cuts off its successors.
//! The two marks are written in turn, after each sync, and become durable with the next one or when the kernel gets to it.
//! So a frame that a power failure tore is told from one that rotted later: what ends below the mark was acknowledged.
//! Damage there, or before a frame that is whole, is [`RaftError::Damaged`], never skipped. A damaged end behind the mark was
//! never acknowledged: it is cut off.
//!
//! A log that has grown long is replaced by one that begins with the present state. That one is written beside it by a thread
//! of its own, because it may take longer than a lease; what is appended meanwhile is appended to it before it takes over.

use super::RaftError;
use crate::{MemberId, State};
use ebb_types::crc32c;
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

const FILE_MAGIC: &[u8; 8] = b"EBBRAFT5";
const FRAME_MAGIC: &[u8; 4] = b"RLOG";
const STATE_MAGIC: &[u8; 4] = b"RSTA";
const FRAME_HEADER: usize = 12;
const MARK_BYTES: usize = 12;
/// Where the first frame starts.
pub(super) const FRAMES_AT: usize = FILE_MAGIC.len() + 2 * MARK_BYTES;
/// What a frame takes beside an entry's own bytes, at most.
const FRAME_ROOM: u64 = 128;
/// Room asked for beyond what is needed now.
const AHEAD_BYTES: u64 = 4 << 20;
/// By so much the log grows before compacting it is tried again.
const RETRY_BYTES: usize = 1 << 20;
const FILE_NAME: &str = "raft.log";

/// Where the log is kept. An error means that the member must stop; without room for it, preparing another log may fail.
pub trait LogFile {
    /// The whole log; empty if there is none.
    fn read(&mut self) -> io::Result<Vec<u8>>;
    /// Writes at `at`, where the log ends, whatever an earlier try left there. Durable on return.
    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Changes bytes in place. Not durable before the next append or sync.
    fn overwrite(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
    /// Makes sure that `bytes` can be appended at `at`, whatever becomes of the file system's room. `false`: there is none.
    fn reserve(&mut self, at: u64, bytes: u64) -> io::Result<bool>;
    /// Begins to write a log that will take this one's place.
    fn prepare(&mut self, bytes: Vec<u8>);
    /// Whether that is done. `wait`: until it is.
    fn is_prepared(&mut self, wait: bool) -> io::Result<bool>;
    /// Puts the prepared log, with `more` behind it, in the place of this one, all or nothing; also where there is none.
    /// Durable on return.
    fn replace(&mut self, more: &[u8]) -> io::Result<()>;
}

/// The log as a file in a directory that no other process may use meanwhile.
pub struct DiskLog {
    path: PathBuf,
    file: Option<File>,
    preparing: Option<JoinHandle<io::Result<File>>>,
    prepared: Option<File>,
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
        Ok(DiskLog { path, file, preparing: None, prepared: None, _lock: lock })
    }

    fn fresh(&self) -> PathBuf {
        self.path.with_extension("new")
    }

    /// Half of it is of no use, and takes the room that is missing.
    fn give_up_fresh(&self) {
        let _ = fs::remove_file(self.fresh());
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

    fn sync(&mut self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    fn reserve(&mut self, at: u64, bytes: u64) -> io::Result<bool> {
        match fallocate(self.file()?, FallocateFlags::KEEP_SIZE, at, bytes) {
            // A file system that cannot: then a full disk stops the member.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(true),
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn prepare(&mut self, bytes: Vec<u8>) {
        let fresh = self.fresh();
        self.preparing = Some(thread::spawn(move || write_new(&fresh, &bytes)));
    }

    fn is_prepared(&mut self, wait: bool) -> io::Result<bool> {
        if let Some(thread) = self.preparing.take_if(|thread| wait || thread.is_finished()) {
            let written =
                thread.join().unwrap_or_else(|_| Err(io::Error::other("the writing thread panicked")));
            self.prepared = Some(written.inspect_err(|_| self.give_up_fresh())?);
        }
        Ok(self.prepared.is_some())
    }

    fn replace(&mut self, more: &[u8]) -> io::Result<()> {
        let file = self.prepared.take().ok_or(io::ErrorKind::NotFound)?;
        let length = file.metadata()?.len();
        let written = file.write_all_at(more, length).and_then(|()| file.sync_all());
        written.inspect_err(|_| self.give_up_fresh())?;
        fs::rename(self.fresh(), &self.path)?;
        let directory = self.path.parent().expect("the log is in a directory");
        File::open(directory)?.sync_all()?;
        self.file = Some(file);
        Ok(())
    }
}

fn write_new(path: &Path, bytes: &[u8]) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let mut file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    Ok(file)
}

fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// The log in memory, for simulations and tests: what was written is durable.
#[derive(Clone, Debug, Default)]
pub struct MemoryLog {
    pub bytes: Vec<u8>,
    prepared: Vec<u8>,
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

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&mut self, _: u64, _: u64) -> io::Result<bool> {
        Ok(true)
    }

    fn prepare(&mut self, bytes: Vec<u8>) {
        self.prepared = bytes;
    }

    fn is_prepared(&mut self, _: bool) -> io::Result<bool> {
        Ok(true)
    }

    fn replace(&mut self, more: &[u8]) -> io::Result<()> {
        self.bytes = std::mem::take(&mut self.prepared);
        self.bytes.extend_from_slice(more);
        Ok(())
    }
}

/// How a member came to be: the first thing in its log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Birth {
    /// The member's own: its seat, or what [`super::joining_id`] makes of it.
    pub id: u64,
    /// Drawn by whoever founds the cluster, not zero: it becomes `ClusterParams::instance`. Zero for a member that joins one.
    pub instance: u64,
    /// The members that vote from the start. None: this one joins.
    pub voters: Vec<MemberId>,
}

/// One durable fact.
#[derive(Serialize, Deserialize)]
pub(super) enum Piece {
    Birth(Birth),
    /// The cluster that took this member in.
    Joined {
        instance: u64,
    },
    Vote {
        term: u64,
        vote: u64,
    },
    /// `change`: of the members.
    Entry {
        index: u64,
        term: u64,
        change: bool,
        data: Vec<u8>,
    },
    /// The members after entry `index`, as the library encodes them.
    Members {
        index: u64,
        members: Vec<u8>,
    },
    /// What the state frame before it is: the state after entry `index`.
    Snapshot {
        index: u64,
        term: u64,
        members: Vec<u8>,
    },
}

/// The log, and how long it is.
pub(super) struct Log<L> {
    pub file: L,
    pub bytes: usize,
    /// The log that will take this one's place is being written.
    shorter: Option<Shorter>,
    /// Too little room was found for a shorter log: not tried again before the log has so many bytes.
    pub retry_at: usize,
    /// Which of the two marks is written next.
    turn: bool,
    /// Up to here appending finds room, whatever becomes of the file system's.
    reserved: u64,
}

struct Shorter {
    bytes: usize,
    state_bytes: usize,
    /// What was appended to the old one since.
    since: Vec<u8>,
}

impl<L: LogFile> Log<L> {
    /// Reads a log. The next append overwrites an end that was never acknowledged.
    pub fn open(mut file: L) -> Result<(Log<L>, Content), RaftError> {
        let bytes = file.read()?;
        if bytes.is_empty() {
            return Err(RaftError::Missing);
        }
        let content = read_log(&bytes)?;
        let Content { whole, durable, .. } = content;
        if whole > durable {
            // A sync may have failed before this start: then the kernel has these bytes, thinks them written, and never
            // writes them, unless they are written anew.
            file.overwrite(durable as u64, &bytes[durable..whole])?;
            file.sync()?;
        }
        let reserved = whole as u64;
        let mut log = Log { file, bytes: whole, shorter: None, retry_at: 0, turn: false, reserved };
        log.mark()?;
        Ok((log, content))
    }

    /// Notes that everything is durable.
    fn mark(&mut self) -> io::Result<()> {
        let at = FILE_MAGIC.len() + if self.turn { MARK_BYTES } else { 0 };
        self.turn = !self.turn;
        self.file.overwrite(at as u64, &mark(self.bytes))
    }

    /// `state`: encoded, of the snapshot among the pieces.
    pub fn append(&mut self, pieces: &[Piece], state: Option<&[u8]>) -> io::Result<()> {
        let mut frames = Vec::new();
        if let Some(state) = state {
            push_frame(&mut frames, STATE_MAGIC, |out| out.extend_from_slice(state));
        }
        push_pieces(&mut frames, pieces);
        self.file.append(self.bytes as u64, &frames)?;
        self.bytes += frames.len();
        if let Some(shorter) = &mut self.shorter {
            shorter.since.append(&mut frames);
        }
        self.mark()
    }

    pub fn is_shortening(&self) -> bool {
        self.shorter.is_some()
    }

    /// Begins to write a log that holds just this.
    pub fn shorten(&mut self, state: &State, pieces: &[Piece]) {
        let (out, state_bytes) = file_of(Some(state), pieces);
        self.shorter = Some(Shorter { bytes: out.len(), state_bytes, since: Vec::new() });
        self.file.prepare(out);
    }

    /// Puts it in place once it is written; returns the bytes of the state in it. Without room the log stays as it is.
    pub fn finish_shortening(&mut self, wait: bool) -> io::Result<Option<usize>> {
        if self.shorter.is_none() {
            return Ok(None);
        }
        let done = match self.file.is_prepared(wait) {
            Ok(false) => return Ok(None),
            Ok(true) => Ok(()),
            Err(error) => Err(error),
        };
        let Some(Shorter { bytes, state_bytes, since }) = self.shorter.take() else { return Ok(None) };
        match done.and_then(|()| self.file.replace(&since)) {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                self.retry_at = self.bytes + RETRY_BYTES;
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        self.bytes = bytes + since.len();
        (self.reserved, self.retry_at) = (self.bytes as u64, 0);
        self.mark()?;
        Ok(Some(state_bytes))
    }

    /// Makes sure that `bytes` more can be appended and `keep` are left then; `false`: there is no room.
    pub fn has_room(&mut self, bytes: u64, keep: u64) -> io::Result<bool> {
        let need = FRAME_ROOM + bytes + keep;
        if self.bytes as u64 + need <= self.reserved {
            return Ok(true);
        }
        // Ahead, so that it is rarely asked for.
        for need in [need + AHEAD_BYTES, need] {
            if self.file.reserve(self.bytes as u64, need)? {
                self.reserved = self.bytes as u64 + need;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Makes the log of a member that never was. Refused if there is one.
pub fn create(log: &mut impl LogFile, birth: Birth) -> Result<(), RaftError> {
    if !log.read()?.is_empty() {
        return Err(RaftError::Exists);
    }
    log.prepare(file_of(None, &[Piece::Birth(birth)]).0);
    log.is_prepared(true)?;
    Ok(log.replace(&[])?)
}

/// A whole file, and the bytes of the state in it.
fn file_of(state: Option<&State>, pieces: &[Piece]) -> (Vec<u8>, usize) {
    let mut out = vec![0; FRAMES_AT];
    if let Some(state) = state {
        push_frame(&mut out, STATE_MAGIC, |out| {
            let encoded = postcard::to_extend(state, std::mem::take(out));
            *out = encoded.expect("plain data");
        });
    }
    let state_bytes = out.len() - FRAMES_AT;
    push_pieces(&mut out, pieces);
    let mark = mark(out.len());
    out[..FRAMES_AT].copy_from_slice(&[&FILE_MAGIC[..], &mark, &mark].concat());
    (out, state_bytes)
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

fn push_pieces(out: &mut Vec<u8>, pieces: &[Piece]) {
    push_frame(out, FRAME_MAGIC, |out| {
        out.extend_from_slice(&postcard::to_stdvec(pieces).expect("plain data"));
    });
}

/// Appends a frame with the body that `write` appends.
fn push_frame(out: &mut Vec<u8>, magic: &[u8; 4], write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(magic);
    out.resize(at + FRAME_HEADER, 0);
    write(out);
    let (header, body) = out[at..].split_at_mut(FRAME_HEADER);
    header[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[8..].copy_from_slice(&crc32c(body).to_le_bytes());
}

/// Kind and body of the whole frame that starts at `at`, if there is one.
fn frame_at(bytes: &[u8], at: usize) -> Option<(&[u8], &[u8])> {
    let header = bytes.get(at..at + FRAME_HEADER)?;
    let magic = &header[..4];
    if magic != FRAME_MAGIC && magic != STATE_MAGIC {
        return None;
    }
    let u32_at = |i: usize| u32::from_le_bytes(header[i..i + 4].try_into().expect("four bytes"));
    let body = bytes.get(at + FRAME_HEADER..)?.get(..u32_at(4) as usize)?;
    (crc32c(body) == u32_at(8)).then_some((magic, body))
}

/// What a log says.
pub(super) struct Content {
    pub pieces: Vec<Piece>,
    /// Of the last snapshot among the pieces.
    pub state: State,
    pub state_bytes: usize,
    /// How long the part is that was written whole, and the part known to be durable.
    pub whole: usize,
    pub durable: usize,
}

pub(super) fn read_log(bytes: &[u8]) -> Result<Content, RaftError> {
    if !bytes.starts_with(FILE_MAGIC) {
        let found = bytes[..bytes.len().min(FILE_MAGIC.len())].to_vec();
        return Err(RaftError::Format { what: "the file", found });
    }
    let marks = [0, MARK_BYTES].map(|at| mark_at(bytes, FILE_MAGIC.len() + at));
    let Some(durable) = marks.into_iter().flatten().max() else {
        return Err(RaftError::Damaged { at: FILE_MAGIC.len() });
    };
    let mut pieces = Vec::new();
    let (mut last, mut state) = (None, None);
    let mut at = FRAMES_AT;
    while let Some((magic, body)) = frame_at(bytes, at) {
        if magic == STATE_MAGIC {
            last = Some(body);
        } else {
            let mut some: Vec<Piece> = postcard::from_bytes(body)?;
            if some.iter().any(|piece| matches!(piece, Piece::Snapshot { .. })) {
                state = Some(last.take().ok_or(RaftError::Damaged { at })?);
            }
            pieces.append(&mut some);
        }
        at += FRAME_HEADER + body.len();
    }
    let mut tail = at + 1..bytes.len().saturating_sub(FRAME_HEADER - 1);
    if at < durable || tail.any(|later| frame_at(bytes, later).is_some()) {
        return Err(RaftError::Damaged { at });
    }
    let state_bytes = state.map_or(0, <[u8]>::len);
    let state = state.map(postcard::from_bytes).transpose()?.unwrap_or_default();
    Ok(Content { pieces, state, state_bytes, whole: at, durable })
}
