//! The log of one member: one append-only file with everything that the member must not forget.
//!
//! ```text
//! file  = "EBBRAFTN" mark mark size table frame*
//! mark  = bytes of the file known to be durable u64 LE | CRC-32C of these u32 LE
//! size  = bytes of the table u64 LE                    | CRC-32C of these u32 LE
//! table = the names of the state (crate::namespace::table); none if its size is zero
//! frame = "RLOG" | body bytes u32 LE | CRC-32C of body u32 LE | body = postcard Vec<Piece>
//!       | "RSTA" | likewise                                   | body = postcard State, of the Snapshot that follows it: all of
//!                                                               it but the names that are in the table
//! ```
//! The newest piece of each kind wins; an entry cuts off its successors. The two marks are written in turn, after each
//! sync, and become durable with the next one or when the kernel writes them back. They distinguish a frame torn by a
//! power failure from one that rotted later: what ends below the mark was acknowledged. Damage there, or before an
//! intact frame, is [`RaftError::Damaged`], never skipped. A damaged end behind the mark was never acknowledged: it is
//! cut off. The table was durable before the file got its name. Zeroes may be ahead of the end: no frame begins with
//! one.
//!
//! A log that has grown long is replaced by one that starts with the present state. That one is written beside it by a
//! separate thread, because it may take longer than a lease; entries appended meanwhile are also added to it before it
//! takes over. A log that starts with the leader's state takes over in the same way; its table is written as it
//! arrives. A log that is being written at that time is abandoned: its file has lost its name by then. A table is read
//! in place, from the log.

use super::error::RaftError;
use crate::namespace::names::Names;
use crate::namespace::table::{Blob, Table, TableError};
use crate::{MemberId, State};
use ebb_types::{crc32c, is_full};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

const FILE_MAGIC: &[u8; 8] = b"EBBRAFTO";
const FRAME_MAGIC: &[u8; 4] = b"RLOG";
const STATE_MAGIC: &[u8; 4] = b"RSTA";
const FRAME_HEADER: usize = 12;
const MARK_BYTES: usize = 12;
/// Where the table starts.
pub(super) const HEADER: usize = FILE_MAGIC.len() + 3 * MARK_BYTES;
// As drawn above.
const _: () = assert!(FRAME_HEADER == FRAME_MAGIC.len() + 4 + 4 && MARK_BYTES == 8 + 4 && HEADER == 44);
/// Most bytes of a frame beyond the entry's own.
const FRAME_ROOM: u64 = 128;
/// Zeroes written at once ahead of the log's end.
pub(super) const ZERO_BYTES: usize = 256 << 10;
/// Room reserved beyond the present need.
const AHEAD_BYTES: u64 = 4 << 20;
/// Compaction is retried once the log has grown by this much, and by this fraction of its table.
const RETRY_BYTES: usize = 1 << 20;
const RETRY_PARTS: usize = 64;
/// A thread's writes are synced each time they reach this size, so that an append does not wait for all of them.
const PACE_BYTES: usize = 8 << 20;
const FILE_NAME: &str = "raft.log";

/// Writes a log on another thread; [`LogFile::prepared`] returns its result.
pub type Job = Box<dyn FnOnce(&mut dyn Write) -> io::Result<u64> + Send>;

/// Where the log is kept. An error means that the member must stop; only preparing another log may fail, for lack of
/// room.
pub trait LogFile {
    /// Length of the log; zero if there is none.
    fn bytes(&mut self) -> io::Result<u64>;
    /// The log, readable even after another one has replaced it.
    fn blob(&mut self) -> io::Result<Arc<dyn Blob>>;
    /// Writes at `at`, the end of the log, in place of anything left there by an earlier try. Durable on return.
    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Changes bytes in place. Not durable before the next append or sync.
    fn overwrite(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
    /// Reserves `bytes` at `at`, so that they can be appended even if the file system fills up. `false`: there is no
    /// room.
    fn reserve(&mut self, at: u64, bytes: u64) -> io::Result<bool>;
    /// Starts to write the log that will replace this one.
    fn prepare(&mut self, job: Job);
    /// The job's result once it is done and its output is durable. Does not wait for it.
    fn prepared(&mut self) -> io::Result<Option<u64>>;
    /// The log that is being prepared, if there is one, is not wanted any more. Does not wait for its writer either.
    fn abandon(&mut self);
    /// Writes part of a log received from another member; `at` 0 starts a new one.
    fn stage(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Makes the staged log the one that [`LogFile::replace`] will install.
    fn take_staged(&mut self);
    /// Replaces this log, if there is one, by the other, with `head` at its start and `more` at `at`, its end. All or
    /// nothing. Durable on return.
    fn replace(&mut self, head: &[u8], at: u64, more: &[u8]) -> io::Result<()>;
    /// Drops what is no longer needed; on another thread if that takes long.
    fn let_go(&mut self, what: Box<dyn Send>) {
        drop(what);
    }
}

/// The log as a file in a directory that is locked against other processes.
pub struct DiskLog {
    path: PathBuf,
    file: Option<Arc<File>>,
    /// The part of the file behind the log's end, known to be zeroes. Written ahead, so that most syncs find length and
    /// blocks of the file as they were, and need not make them durable (docs/cost.md).
    zeroes: Range<u64>,
    preparing: Option<Preparing>,
    staged: Option<File>,
    /// The log to be installed, and its path.
    fresh: Option<(PathBuf, File)>,
    /// Keeps the lock.
    _lock: File,
}

/// A thread that writes a log.
struct Preparing {
    /// Or why there is none.
    thread: io::Result<JoinHandle<io::Result<(File, u64)>>>,
    /// It is to stop.
    abandoned: Arc<AtomicBool>,
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
            Ok(file) => Some(Arc::new(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let log =
            DiskLog { path, file, zeroes: 0..0, preparing: None, staged: None, fresh: None, _lock: lock };
        // Left by an earlier run.
        give_up(&log.new_path());
        give_up(&log.staged_path());
        Ok(log)
    }

    fn new_path(&self) -> PathBuf {
        self.path.with_extension("new")
    }

    fn staged_path(&self) -> PathBuf {
        self.path.with_extension("in")
    }

    fn file(&self) -> io::Result<&Arc<File>> {
        self.file.as_ref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Leaves only zeroes behind `at`, the end of the log.
    fn clear(&mut self, at: u64) -> io::Result<()> {
        if self.zeroes.start != at {
            let file = self.file()?;
            if file.metadata()?.len() > at {
                file.set_len(at)?;
            }
            self.zeroes = at..at;
        }
        Ok(())
    }
}

/// A partial log is useless, and takes room that is needed.
fn give_up(path: &Path) {
    let _ = fs::remove_file(path);
}

fn create_file(path: &Path) -> io::Result<File> {
    give_up(path);
    OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
}

impl Blob for File {
    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        self.read_exact_at(out, at)
    }
}

impl LogFile for DiskLog {
    fn bytes(&mut self) -> io::Result<u64> {
        self.file.as_ref().map_or(Ok(0), |file| Ok(file.metadata()?.len()))
    }

    fn blob(&mut self) -> io::Result<Arc<dyn Blob>> {
        Ok(self.file()?.clone())
    }

    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        static ZEROES: [u8; ZERO_BYTES] = [0; ZERO_BYTES];
        self.clear(at)?;
        let end = at + bytes.len() as u64;
        // Until it is durable, it is not known what is there.
        let mut ahead = std::mem::take(&mut self.zeroes).end;
        let file = self.file()?;
        if end > ahead {
            ahead = match file.write_all_at(&ZEROES, end) {
                Ok(()) => end + ZERO_BYTES as u64,
                // The room for the log itself is reserved.
                Err(error) if is_full(&error) => end,
                Err(error) => return Err(error),
            };
        }
        file.write_all_at(bytes, at)?;
        file.sync_data()?;
        self.zeroes = end..ahead;
        Ok(())
    }

    fn overwrite(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.file()?.write_all_at(bytes, at)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file()?.sync_data()
    }

    fn reserve(&mut self, at: u64, bytes: u64) -> io::Result<bool> {
        // First: it would free what is reserved.
        self.clear(at)?;
        match fallocate(self.file()?, FallocateFlags::KEEP_SIZE, at, bytes) {
            // A file system without this call: then a full disk stops the member.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(true),
            Err(Errno::NOSPC | Errno::DQUOT | Errno::FBIG) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn prepare(&mut self, job: Job) {
        debug_assert!(self.preparing.is_none(), "one log is prepared at a time");
        // Created here: a thread that was abandoned before it began would take the name from the next one's file.
        let file = create_file(&self.new_path());
        let abandoned = Arc::new(AtomicBool::new(false));
        let stops = abandoned.clone();
        let thread = thread::Builder::new().spawn(move || write_new(file, stops, job));
        self.preparing = Some(Preparing { thread, abandoned });
    }

    fn prepared(&mut self) -> io::Result<Option<u64>> {
        let is_done =
            |preparing: &mut Preparing| preparing.thread.as_ref().map_or(true, JoinHandle::is_finished);
        let Some(done) = self.preparing.take_if(is_done) else { return Ok(None) };
        let panicked = |_| Err(io::Error::other("the writing thread panicked"));
        let written = done.thread.and_then(|thread| thread.join().unwrap_or_else(panicked));
        let (file, answer) = written.inspect_err(|_| give_up(&self.new_path()))?;
        self.fresh = Some((self.new_path(), file));
        Ok(Some(answer))
    }

    fn abandon(&mut self) {
        let Some(Preparing { thread, abandoned }) = self.preparing.take() else { return };
        abandoned.store(true, Ordering::Relaxed);
        // Its room is free once the thread has noticed, or with the result of one that has ended.
        give_up(&self.new_path());
        self.let_go(Box::new(thread));
    }

    fn stage(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let path = self.staged_path();
        if at == 0 {
            self.staged = Some(create_file(&path)?);
        }
        let file = self.staged.as_ref().ok_or(io::ErrorKind::NotFound)?;
        let written = file.write_all_at(bytes, at).and_then(|()| file.sync_data());
        written.inspect_err(|_| {
            give_up(&path);
            self.staged = None;
        })
    }

    fn take_staged(&mut self) {
        let path = self.staged_path();
        self.fresh = self.staged.take().map(|file| (path, file));
    }

    fn replace(&mut self, head: &[u8], at: u64, more: &[u8]) -> io::Result<()> {
        let (path, file) = self.fresh.take().ok_or(io::ErrorKind::NotFound)?;
        let parent = self.path.parent().expect("the log is in a directory");
        let write = || {
            // Opened before the old log is gone: for lack of a descriptor it stays as it is.
            let directory = File::open(parent)?;
            file.write_all_at(more, at)?;
            file.set_len(at + more.len() as u64)?;
            file.write_all_at(head, 0)?;
            file.sync_all()?;
            Ok(directory)
        };
        let directory = write().inspect_err(|_: &io::Error| give_up(&path))?;
        fs::rename(&path, &self.path).inspect_err(|_| give_up(&path))?;
        // The old log is gone: whatever this lacks, there is no going back to it.
        directory.sync_all().map_err(io::Error::other)?;
        self.file = Some(Arc::new(file));
        self.zeroes = 0..0;
        Ok(())
    }

    /// Closing the file of a large old log and freeing a hundred thousand changes took 200 ms together.
    fn let_go(&mut self, what: Box<dyn Send>) {
        // Without a thread it is done here.
        let _ = thread::Builder::new().spawn(move || drop(what));
    }
}

fn write_new(file: io::Result<File>, abandoned: Arc<AtomicBool>, job: Job) -> io::Result<(File, u64)> {
    let paced = Paced { file: file?, unsynced: 0, abandoned };
    let mut out = BufWriter::with_capacity(1 << 20, paced);
    let answer = job(&mut out)?;
    let Paced { file, .. } = out.into_inner().map_err(|error| error.into_error())?;
    file.sync_all()?;
    Ok((file, answer))
}

struct Paced {
    file: File,
    unsynced: usize,
    abandoned: Arc<AtomicBool>,
}

impl Write for Paced {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.abandoned.load(Ordering::Relaxed) {
            return Err(io::Error::other("another log was installed meanwhile"));
        }
        let written = self.file.write(bytes)?;
        self.unsynced += written;
        if self.unsynced >= PACE_BYTES {
            self.file.sync_data()?;
            self.unsynced = 0;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Whether the machine lacks room, descriptors, memory or threads for now: that is no damage.
fn is_short(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    is_full(error) || matches!(code, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::AGAIN))
}

/// The log in memory, for simulations and tests: every write is durable.
#[derive(Clone, Debug, Default)]
pub struct MemoryLog {
    pub bytes: Vec<u8>,
    answer: Option<u64>,
    staged: Vec<u8>,
    fresh: Vec<u8>,
    /// How often it was rewritten, or replaced by what another member sent.
    pub replaced: u64,
    /// How often another member sent it.
    pub received: u64,
}

impl LogFile for MemoryLog {
    fn bytes(&mut self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn blob(&mut self) -> io::Result<Arc<dyn Blob>> {
        Ok(Arc::new(self.bytes.clone()))
    }

    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        debug_assert!(at as usize <= self.bytes.len(), "a log has no gaps");
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

    fn prepare(&mut self, job: Job) {
        self.fresh.clear();
        self.answer = job(&mut self.fresh).ok();
    }

    fn prepared(&mut self) -> io::Result<Option<u64>> {
        self.answer.take().map(Some).ok_or_else(|| io::Error::other("the job failed"))
    }

    fn abandon(&mut self) {
        self.answer = None;
    }

    fn stage(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.staged.truncate(at as usize);
        self.staged.extend_from_slice(bytes);
        Ok(())
    }

    fn take_staged(&mut self) {
        self.received += 1;
        self.fresh = std::mem::take(&mut self.staged);
    }

    fn replace(&mut self, head: &[u8], at: u64, more: &[u8]) -> io::Result<()> {
        self.replaced += 1;
        self.bytes = std::mem::take(&mut self.fresh);
        self.bytes.truncate(at as usize);
        self.bytes.extend_from_slice(more);
        self.bytes[..head.len()].copy_from_slice(head);
        Ok(())
    }
}

/// How a member was created: the first piece of its log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Birth {
    /// The member's id: its seat, or the result of [`super::joining_id`].
    pub id: u64,
    /// Drawn by the founder of the cluster, not zero: it becomes `ClusterParams::instance`. Zero for a member that
    /// joins one.
    pub instance: u64,
    /// The members that vote from the start. Empty: this one joins.
    pub voters: Vec<MemberId>,
}

/// One durable fact.
#[derive(Serialize, Deserialize)]
pub(super) enum Piece {
    Birth(Birth),
    /// The group that accepted this member.
    Joined {
        instance: u64,
        generation: u32,
    },
    Vote {
        term: u64,
        vote: u64,
    },
    /// `change`: of the membership.
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
    /// Identifies the state frame before it as the state after entry `index`.
    Snapshot {
        index: u64,
        term: u64,
        members: Vec<u8>,
    },
    /// This member is the only one of a new generation: everything up to entry `index` is committed, and no change of
    /// the membership in it counts any more.
    Rescued {
        generation: u32,
        index: u64,
        term: u64,
        members: Vec<u8>,
    },
}

/// The log, and its length.
pub(super) struct Log<L> {
    pub file: L,
    pub bytes: usize,
    /// Where the frames start.
    frames_at: usize,
    /// The log that will replace this one is being written.
    shorter: Option<Shorter>,
    /// There was no room for a shorter log: not tried again before the log reaches this size.
    retry_at: usize,
    /// Which of the two marks is written next.
    turn: bool,
    /// Room is reserved up to this offset, even if the file system fills up.
    reserved: u64,
}

struct Shorter {
    /// Bytes of its frames.
    frames: usize,
    /// Appended to the old log since then.
    since: Vec<u8>,
}

impl<L: LogFile> Log<L> {
    /// Reads a log. The next append overwrites a tail that was never acknowledged.
    pub fn open(mut file: L) -> Result<(Log<L>, Content), RaftError> {
        let bytes = file.bytes()?;
        if bytes == 0 {
            return Err(RaftError::Missing);
        }
        let content = read_log(file.blob()?, bytes)?;
        let Content { frames_at, whole, durable, ref unsure, .. } = content;
        if whole > durable {
            // A sync may have failed before this start: then the kernel has these bytes, believes them written, and
            // never writes them unless they are written again.
            file.overwrite(durable as u64, unsure)?;
            file.sync()?;
        }
        let reserved = whole as u64;
        let mut log =
            Log { file, bytes: whole, frames_at, shorter: None, retry_at: 0, turn: false, reserved };
        log.mark()?;
        Ok((log, content))
    }

    /// Records that everything is durable.
    fn mark(&mut self) -> io::Result<()> {
        let at = FILE_MAGIC.len() + if self.turn { MARK_BYTES } else { 0 };
        self.turn = !self.turn;
        self.file.overwrite(at as u64, &mark(self.bytes))
    }

    pub fn append(&mut self, pieces: &[Piece]) -> io::Result<()> {
        let mut frames = Vec::new();
        push_pieces(&mut frames, pieces);
        self.file.append(self.bytes as u64, &frames)?;
        self.bytes += frames.len();
        if let Some(shorter) = &mut self.shorter {
            shorter.since.append(&mut frames);
        }
        self.mark()
    }

    /// Whether it should be replaced because its frames exceed `most` bytes.
    pub fn is_long(&self, most: usize) -> bool {
        !self.is_being_shortened() && self.bytes - self.frames_at >= most && self.bytes >= self.retry_at
    }

    /// Whether the log that will replace this one is being written.
    pub fn is_being_shortened(&self) -> bool {
        self.shorter.is_some()
    }

    /// Starts to write a log with only these contents. `state`: encoded, all but the names.
    pub fn shorten(&mut self, names: Names, state: &[u8], pieces: &[Piece]) {
        debug_assert!(!self.is_being_shortened(), "one log is prepared at a time");
        let frames = frames_of(Some(state), pieces);
        self.shorter = Some(Shorter { frames: frames.len(), since: Vec::new() });
        self.file.prepare(Box::new(move |out| {
            out.write_all(&[0; HEADER])?;
            let table = names.write_table(out)?;
            out.write_all(&frames)?;
            Ok(table)
        }));
    }

    /// Installs it once it is written, and returns its table. Without room, or while the machine is short of something
    /// else, the log stays as it is.
    pub fn finish_shortening(&mut self) -> Result<Option<Option<Arc<Table>>>, RaftError> {
        if !self.is_being_shortened() {
            return Ok(None);
        }
        let written = match self.file.prepared() {
            Ok(None) => return Ok(None),
            Ok(Some(table)) => Ok(table),
            Err(error) => Err(error),
        };
        let Some(Shorter { frames, since }) = self.shorter.take() else { return Ok(None) };
        let done = written.and_then(|table| {
            let end = HEADER + table as usize + frames;
            self.file.replace(&header(end + since.len(), table), end as u64, &since)?;
            Ok((table, end))
        });
        match done {
            Ok((table, end)) => {
                self.begin(table, end + since.len())?;
                Ok(Some(self.table(table)?))
            }
            Err(error) if is_short(&error) => {
                self.retry_at = self.bytes + RETRY_BYTES.max(self.frames_at / RETRY_PARTS);
                Ok(None)
            }
            // The data that the job had to read may be damaged.
            Err(error) => Err(error.downcast::<TableError>().map_or_else(RaftError::Io, RaftError::from)),
        }
    }

    /// Another log has been installed.
    fn begin(&mut self, table: u64, bytes: usize) -> io::Result<()> {
        (self.bytes, self.reserved, self.retry_at) = (bytes, bytes as u64, 0);
        self.frames_at = HEADER + table as usize;
        debug_assert!(self.frames_at < self.bytes, "a log begins with frames");
        self.mark()
    }

    fn table(&mut self, bytes: u64) -> Result<Option<Arc<Table>>, RaftError> {
        table_in(self.file.blob()?, bytes)
    }

    /// Stages part of a table received from another member. `false`: there is no room for it.
    pub fn stage(&mut self, at: u64, bytes: &[u8]) -> io::Result<bool> {
        let begun = if at == 0 { self.file.stage(0, &[0; HEADER]) } else { Ok(()) };
        match begun.and_then(|()| self.file.stage(HEADER as u64 + at, bytes)) {
            Ok(()) => Ok(true),
            Err(error) if is_short(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Installs a log with only these contents: the staged table of `table` bytes, the state with all but the names in
    /// it, and the pieces. There is room for it: it was staged behind the table.
    pub fn install(
        &mut self,
        table: u64,
        state: &[u8],
        pieces: &[Piece],
    ) -> Result<Option<Arc<Table>>, RaftError> {
        // A log in preparation is obsolete. It is not waited for: a long one takes longer than a lease.
        self.shorter = None;
        self.file.abandon();
        let frames = frames_of(Some(state), pieces);
        let at = HEADER + table as usize;
        let end = at + frames.len();
        self.file.take_staged();
        self.file.replace(&header(end, table), at as u64, &frames)?;
        self.begin(table, end)?;
        self.table(table)
    }

    /// Makes sure that `bytes` more can be appended with `keep` left after that; `false`: there is no room.
    pub fn has_room(&mut self, bytes: u64, keep: u64) -> io::Result<bool> {
        let need = FRAME_ROOM + bytes + keep;
        if self.bytes as u64 + need <= self.reserved {
            return Ok(true);
        }
        // Ahead, so that reserving is rare.
        for need in [need + AHEAD_BYTES, need] {
            if self.file.reserve(self.bytes as u64, need)? {
                self.reserved = self.bytes as u64 + need;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Creates the log of a new member. Refused if there is one.
pub fn create(log: &mut impl LogFile, birth: Birth) -> Result<(), RaftError> {
    if log.bytes()? > 0 {
        return Err(RaftError::Exists);
    }
    let frames = frames_of(None, &[Piece::Birth(birth)]);
    let end = HEADER + frames.len();
    log.stage(0, &[0; HEADER])?;
    log.take_staged();
    Ok(log.replace(&header(end, 0), HEADER as u64, &frames)?)
}

fn frames_of(state: Option<&[u8]>, pieces: &[Piece]) -> Vec<u8> {
    let mut out = Vec::new();
    if let Some(state) = state {
        push_frame(&mut out, STATE_MAGIC, |out| out.extend_from_slice(state));
    }
    push_pieces(&mut out, pieces);
    out
}

/// The first bytes of a file with `bytes` durable bytes and such a table.
fn header(bytes: usize, table: u64) -> Vec<u8> {
    let mark = mark(bytes);
    [&FILE_MAGIC[..], &mark, &mark, &self::mark(table as usize)].concat()
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

/// Appends a frame whose body is written by `write`.
fn push_frame(out: &mut Vec<u8>, magic: &[u8; 4], write: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(magic);
    out.resize(at + FRAME_HEADER, 0);
    write(out);
    let (header, body) = out[at..].split_at_mut(FRAME_HEADER);
    assert!((1..=u32::MAX as usize).contains(&body.len()), "a frame says how long it is");
    header[4..8].copy_from_slice(&(body.len() as u32).to_le_bytes());
    header[8..].copy_from_slice(&crc32c(body).to_le_bytes());
}

/// Kind and body of the complete frame that starts at `at`, if there is one.
fn frame_at(bytes: &[u8], at: usize) -> Option<(&[u8], &[u8])> {
    let header = bytes.get(at..at + FRAME_HEADER)?;
    let magic = &header[..4];
    if magic != FRAME_MAGIC && magic != STATE_MAGIC {
        return None;
    }
    let u32_at = |i: usize| u32::from_le_bytes(header[i..i + 4].try_into().expect("four bytes"));
    let body = bytes.get(at + FRAME_HEADER..)?.get(..u32_at(4) as usize)?;
    // Nothing but zeroes after a torn magic number would fit: the checksum of no bytes is zero.
    (!body.is_empty() && crc32c(body) == u32_at(8)).then_some((magic, body))
}

/// The content of a log.
pub(super) struct Content {
    pub pieces: Vec<Piece>,
    /// Of the last snapshot among the pieces.
    pub state: State,
    frames_at: usize,
    /// Length of the part that is intact, and of the part known to be durable.
    pub whole: usize,
    durable: usize,
    /// The bytes between these two.
    unsure: Vec<u8>,
}

fn table_in(blob: Arc<dyn Blob>, bytes: u64) -> Result<Option<Arc<Table>>, RaftError> {
    if bytes == 0 { Ok(None) } else { Ok(Some(Arc::new(Table::open(blob, HEADER as u64, bytes)?))) }
}

pub(super) fn read_log(blob: Arc<dyn Blob>, bytes: u64) -> Result<Content, RaftError> {
    let mut head = vec![0; HEADER.min(bytes as usize)];
    blob.read_at(0, &mut head)?;
    if !head.starts_with(FILE_MAGIC) {
        let found = head[..head.len().min(FILE_MAGIC.len())].to_vec();
        return Err(RaftError::Format { what: "the file", found });
    }
    let [one, two, table] = [0, 1, 2].map(|i| mark_at(&head, FILE_MAGIC.len() + i * MARK_BYTES));
    let table = table.ok_or(RaftError::Damaged { at: HEADER - MARK_BYTES })? as u64;
    let durable = one.max(two).ok_or(RaftError::Damaged { at: FILE_MAGIC.len() })?;
    let length = bytes.checked_sub(HEADER as u64).and_then(|rest| rest.checked_sub(table));
    let length = length.ok_or(RaftError::Damaged { at: bytes as usize })?;
    let start = HEADER + table as usize;
    let mut frames = vec![0; length as usize];
    blob.read_at(start as u64, &mut frames)?;
    let mut content = read_frames(&frames, start, durable)?;
    content.state.names_mut().attach(table_in(blob, table)?);
    Ok(content)
}

/// `start`: offset of the frames in the file.
fn read_frames(bytes: &[u8], start: usize, durable: usize) -> Result<Content, RaftError> {
    let mut pieces = Vec::new();
    let (mut last, mut state) = (None, None);
    let mut at = 0;
    while let Some((magic, body)) = frame_at(bytes, at) {
        if magic == STATE_MAGIC {
            last = Some(body);
        } else {
            let mut some: Vec<Piece> = postcard::from_bytes(body)?;
            if some.iter().any(|piece| matches!(piece, Piece::Snapshot { .. })) {
                state = Some(last.take().ok_or(RaftError::Damaged { at: start + at })?);
            }
            pieces.append(&mut some);
        }
        at += FRAME_HEADER + body.len();
    }
    let mut tail = at + 1..bytes.len().saturating_sub(FRAME_HEADER - 1);
    let whole = start + at;
    if whole < durable || tail.any(|later| frame_at(bytes, later).is_some()) {
        return Err(RaftError::Damaged { at: whole });
    }
    let state = state.map(postcard::from_bytes).transpose()?.unwrap_or_default();
    let unsure = bytes[durable.saturating_sub(start)..at].to_vec();
    Ok(Content { pieces, state, frames_at: start, whole, durable, unsure })
}
