//! A metadata member: the production member with its Raft, over a log in memory, and a driver that obeys it.
//!
//! The log fails an append halfway, has no room, rots or is lost. A member whose log failed stops, as its process
//! would, and is restarted; one whose log rotted or is gone joins under a new id, as its own error message advises.

mod drive;
mod switch;

use crate::engine::Clock;
use ebb_meta::raft::{self, Job};
use ebb_meta::{Birth, Blob, Input, LogFile, Member, MemoryLog, Outcome};
use ebb_types::ServerId;
use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// A log that outlives the member: every append is durable.
#[derive(Clone, Default)]
pub struct SharedLog {
    log: Rc<RefCell<MemoryLog>>,
    trouble: Rc<RefCell<LogTrouble>>,
}

#[derive(Default)]
struct LogTrouble {
    full: bool,
    /// The log that is being written, and how often it is looked at before it is done.
    job: Option<(Job, u32)>,
    pace: u32,
    /// The next append fails after writing half of it.
    fails: bool,
    /// The next append is answered only after this long.
    hangs: Option<u64>,
    /// How long the one that was made is not answered, and the bytes of the log before it.
    hung: Option<(u64, Vec<u8>)>,
    /// How often the log was replaced.
    replaced: u64,
}

impl SharedLog {
    fn log(&self) -> RefMut<'_, MemoryLog> {
        self.log.borrow_mut()
    }

    /// Replaces what there is.
    fn create(&self, birth: Birth) {
        *self.log() = MemoryLog::default();
        *self.trouble.borrow_mut() = LogTrouble::default();
        raft::create(&mut self.clone(), birth).expect("a log in memory can be created");
    }
}

impl LogFile for SharedLog {
    fn bytes(&mut self) -> io::Result<u64> {
        self.log().bytes()
    }

    fn blob(&mut self) -> io::Result<Arc<dyn Blob>> {
        self.log().blob()
    }

    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if std::mem::take(&mut self.trouble.borrow_mut().fails) {
            self.log().append(at, &bytes[..bytes.len() / 2])?;
            return Err(io::Error::other("the device does not answer"));
        }
        let mut trouble = self.trouble.borrow_mut();
        if let Some(time) = trouble.hangs.take() {
            trouble.hung = Some((time, self.log().bytes.clone()));
        }
        self.log().append(at, bytes)
    }

    fn overwrite(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.log().overwrite(at, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.log().sync()
    }

    fn reserve(&mut self, at: u64, bytes: u64) -> io::Result<bool> {
        if self.trouble.borrow().full { Ok(false) } else { self.log().reserve(at, bytes) }
    }

    fn prepare(&mut self, job: Job) {
        let mut trouble = self.trouble.borrow_mut();
        trouble.job = Some((job, trouble.pace));
    }

    fn prepared(&mut self) -> io::Result<Option<u64>> {
        let mut trouble = self.trouble.borrow_mut();
        match &mut trouble.job {
            None => return Ok(None),
            Some((_, left)) if *left > 0 => {
                *left -= 1;
                return Ok(None);
            }
            Some(_) => {}
        }
        let Some((job, _)) = trouble.job.take() else { return Ok(None) };
        if trouble.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.log().prepare(job);
        self.log().prepared()
    }

    fn abandon(&mut self) {
        self.trouble.borrow_mut().job = None;
    }

    fn stage(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if self.trouble.borrow().full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.log().stage(at, bytes)
    }

    fn take_staged(&mut self) {
        self.log().take_staged();
    }

    fn replace(&mut self, head: &[u8], at: u64, more: &[u8]) -> io::Result<()> {
        let mut trouble = self.trouble.borrow_mut();
        if std::mem::take(&mut trouble.fails) {
            return Err(io::Error::other("the device does not answer"));
        }
        trouble.replaced += 1;
        self.log().replace(head, at, more)
    }
}

pub struct MetaNode {
    pub member: Member<SharedLog>,
    log: SharedLog,
    pub clock: Clock,
    pub life: u64,
    pub up: bool,
    pub paused: bool,
    /// Milliseconds by which its wall clock is wrong.
    wall: i64,
    stalled: Vec<Input>,
    /// What depends on a write of the log that hangs, and the log's bytes before it.
    withheld: Option<(Vec<Outcome>, Vec<u8>)>,
    /// A fault damaged the log, and the member will join again if it does not start; or it has joined and is catching
    /// up.
    pub broken: bool,
    wake: u64,
    /// When its timer ends.
    wake_at: Option<u64>,
    /// Suspended: what is left of its timer.
    frozen: Option<Option<u64>>,
    /// Until when it waits for the servers that it ordered to put themselves to sleep.
    pub waits: BTreeMap<ServerId, u64>,
}

/// What becomes of its log.
impl MetaNode {
    /// The next write of it fails.
    pub fn fail_log(&mut self) {
        self.log.trouble.borrow_mut().fails = true;
    }

    /// There is no room for it.
    pub fn fill_log(&mut self) {
        self.log.trouble.borrow_mut().full = true;
    }

    /// The next write of it is answered only after this long.
    pub fn hang_log(&mut self, time: u64) {
        self.log.trouble.borrow_mut().hangs = Some(time);
    }

    /// One of its bits, by this number, flips.
    pub fn rot_log(&mut self, bit: u64) {
        let mut log = self.log.log();
        let at = bit as usize / 8 % log.bytes.len();
        log.bytes[at] ^= 1 << (bit % 8);
    }

    pub fn lose_log(&mut self) {
        self.log.log().bytes.clear();
    }

    /// Its device works again.
    pub fn mend_log(&mut self) {
        let mut trouble = self.log.trouble.borrow_mut();
        (trouble.full, trouble.fails, trouble.hangs) = (false, false, None);
    }

    /// How often it was replaced by a shorter one, or by a leader's state.
    pub fn log_replaced(&self) -> u64 {
        self.log.trouble.borrow().replaced.saturating_sub(1)
    }
}
