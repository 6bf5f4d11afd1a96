//! The operations of several disks on one io_uring, for a thread that must not block.
//!
//! [`Ring::submit`] queues. [`Ring::poll_next`] enters the kernel once for everything queued, hands out what has ended,
//! and lets its task sleep. A read from the page cache ends on the way in, so that a busy task learns of it without
//! being woken.
//!
//! Completions are posted only while this thread enters the kernel for them (`DEFER_TASKRUN`), and then the ring's own
//! descriptor does not become readable; an eventfd does. It is enabled only for the time of a sleep: signals to a task
//! that runs would cost it a turn of its event loop each.
//!
//! What io_uring cannot do runs on a few threads: `SEEK_HOLE` always, and everything where io_uring is not permitted.
//!
//! A shortage is no damage: an operation that lacks room in the file system, memory or descriptors is tried again every
//! second until it has them. A mirror that took it for a lost disk would lose both, whose images fill one file system.
//!
//! Invariant: memory that the kernel may still use is not freed. Dropping a ring waits until nothing is in flight.

use crate::disk::DiskFile;
use crate::threads::{Job, Threads};
use crate::work::Work;
use ebb_mirror::{DiskOp, Found, Token};
use io_uring::{IoUring, squeue};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{Ordering, fence};
use std::task::{Context, Poll, Waker, ready};
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::{Sleep, sleep};

const ENTRIES: u32 = 256;
/// After a shortage, before the operation is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// More completions than that wait in the kernel.
const COMPLETIONS: u32 = 4096;

const _: () = assert!(ENTRIES <= COMPLETIONS, "the kernel wants room for the end of each entry");

/// An operation has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Index of the disk.
    pub disk: usize,
    pub token: Token,
    /// Extents are of bytes.
    pub found: Found,
    /// From [`Ring::submit`] until its end was noticed.
    pub elapsed: Duration,
}

struct Disk {
    file: DiskFile,
    /// Failures since the last success.
    failures: u64,
    /// It was reported that operations wait for what they lack.
    is_short: bool,
    /// It was truncated: what is gone would read as zeroes as soon as a write makes the file longer again.
    cut: bool,
}

impl Disk {
    /// Whether the file has been truncated since it was opened. It is asked before and after each operation.
    fn is_cut(&mut self) -> bool {
        if !self.cut && self.file.is_cut() {
            let (path, bytes) = (self.file.path().display(), self.file.size());
            tracing::error!("{path} was truncated, it had {bytes} bytes: it fails from now on; replace it");
            self.cut = true;
        }
        self.cut
    }
}

struct Slot {
    disk: usize,
    token: Token,
    begun: Instant,
    /// Absent while a thread has it.
    work: Option<Work>,
    iovecs: Vec<libc::iovec>,
}

/// Disks, and their operations in flight. It belongs to the thread that made it.
pub struct Ring {
    /// `None`: not permitted.
    kernel: Option<IoUring>,
    /// Entries handed to the kernel, or queued for it, that have not completed.
    entries: usize,
    /// Completions that were not looked at yet: the slot and the result.
    completed: Vec<(usize, i32)>,
    threads: Threads,
    /// Jobs that the threads have.
    jobs: usize,
    disks: Vec<Disk>,
    slots: Vec<Slot>,
    free: Vec<usize>,
    ended: VecDeque<Completion>,
    /// Slots whose operations lacked something, and when they are tried again.
    short: Vec<usize>,
    again: Option<Pin<Box<Sleep>>>,
    /// The eventfd, once it is registered with the runtime.
    readable: Option<AsyncFd<OwnedFd>>,
    /// Of the task in [`Ring::poll_next`], while it sleeps.
    waker: Option<Waker>,
}

fn kernel() -> io::Result<IoUring> {
    let with = |set: fn(&mut io_uring::Builder)| {
        let mut builder = IoUring::builder();
        set(builder.setup_cqsize(COMPLETIONS));
        builder.build(ENTRIES)
    };
    // Completions are processed when this thread asks for them, not by interrupting it: since Linux 6.1.
    with(|builder| {
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    })
    .or_else(|_| with(|_| ()))
}

impl Ring {
    /// A ring without disks. Where io_uring is missing or not permitted, a few threads take its place.
    pub fn new() -> io::Result<Ring> {
        match kernel() {
            Ok(kernel) => Ring::with(Some(kernel)),
            Err(error) => match error.raw_os_error() {
                Some(libc::EPERM | libc::ENOSYS | libc::EACCES) => {
                    tracing::info!("io_uring cannot be used ({error}): threads read and write the disks");
                    Ring::on_threads()
                }
                _ => Err(error),
            },
        }
    }

    fn on_threads() -> io::Result<Ring> {
        Ring::with(None)
    }

    fn with(kernel: Option<IoUring>) -> io::Result<Ring> {
        let threads = Threads::new()?;
        if let Some(kernel) = &kernel {
            kernel.submitter().register_eventfd(threads.fd().as_raw_fd())?;
        }
        Ok(Ring {
            kernel,
            entries: 0,
            completed: Vec::new(),
            threads,
            jobs: 0,
            disks: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            ended: VecDeque::new(),
            short: Vec::new(),
            again: None,
            readable: None,
            waker: None,
        })
    }

    /// Takes a disk; returns its index.
    pub fn add(&mut self, disk: DiskFile) -> usize {
        self.disks.push(Disk { file: disk, failures: 0, is_short: false, cut: false });
        self.disks.len() - 1
    }

    pub fn disk(&self, disk: usize) -> &DiskFile {
        &self.disks[disk].file
    }

    /// Operations that have not come out of [`Ring::poll_next`].
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len() + self.ended.len()
    }

    /// Queues an operation; [`Ring::poll_next`] begins it. It must not be empty. `token` comes back with its end. One
    /// beyond the disk's end fails; a sync covers what had ended.
    pub fn submit(&mut self, disk: usize, token: Token, op: DiskOp) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
        let begun = Instant::now();
        let at_once = |found| Completion { disk, token, found, elapsed: Duration::ZERO };
        if self.disks[disk].is_cut() {
            return self.ended.push_back(at_once(Found::Failed));
        }
        let file = &self.disks[disk].file;
        // Devices have no holes that could be asked for.
        if let DiskOp::Status { offset, bytes } = op
            && file.is_device()
            && file.has(offset, bytes)
        {
            return self.ended.push_back(at_once(Found::Extents(vec![(bytes, false)])));
        }
        let Some(work) = Work::new(file, op) else {
            let (path, size) = (file.path(), file.size());
            tracing::error!("{}: an operation ends after the disk's {size} bytes", path.display());
            return self.ended.push_back(at_once(Found::Failed));
        };
        let slot = Slot { disk, token, begun, work: Some(work), iovecs: Vec::new() };
        let index = match self.free.pop() {
            Some(index) => {
                let iovecs = std::mem::take(&mut self.slots[index].iovecs);
                self.slots[index] = Slot { iovecs, ..slot };
                index
            }
            None => {
                self.slots.push(slot);
                self.slots.len() - 1
            }
        };
        self.begin(index);
    }

    /// Begins everything that is queued, and takes what ends next. [`Ring::submit`] wakes the task that sleeps here.
    /// Only one may, and always on the same tokio runtime, with I/O and time; an error is the runtime's.
    pub fn poll_next(&mut self, context: &mut Context) -> Poll<io::Result<Completion>> {
        if self.ended.is_empty() {
            // Whatever woke the task: it is awake.
            self.set_signals(false);
        }
        loop {
            if self.ended.is_empty() {
                self.flush();
            }
            if let Some(completion) = self.ended.pop_front() {
                return Poll::Ready(Ok(completion));
            }
            ready!(self.poll_sleep(context))?;
        }
    }

    /// Ready: there may be something to collect.
    fn poll_sleep(&mut self, context: &mut Context) -> Poll<io::Result<()>> {
        if self.readable.is_none() {
            let fd = self.threads.fd().try_clone()?;
            // SAFETY: the descriptor is owned, and closed only by the `AsyncFd`, after it has been deregistered.
            self.readable = Some(unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE)? });
        }
        self.set_signals(true);
        // What ended before has not been signalled.
        self.flush();
        if let Some(again) = &mut self.again
            && again.as_mut().poll(context).is_ready()
        {
            return Poll::Ready(Ok(()));
        }
        if self.ended.is_empty() {
            let readable = self.readable.as_ref().expect("it was set above");
            self.waker = Some(context.waker().clone());
            // It is not read: each signal is an event of its own.
            ready!(readable.poll_read_ready(context))?.clear_ready();
            self.waker = None;
        }
        Poll::Ready(Ok(()))
    }

    /// Whether completions count up the eventfd.
    fn set_signals(&mut self, enabled: bool) {
        let Some(kernel) = &mut self.kernel else { return };
        match enabled {
            true => kernel.completion().enable_eventfd(),
            false => kernel.completion().disable_eventfd(),
        }
        // The kernel sees it before this thread looks for completions.
        fence(Ordering::SeqCst);
    }

    /// Begins everything that is queued, with one system call, and collects what has ended.
    fn flush(&mut self) {
        if self.again.as_ref().is_some_and(|again| again.deadline() <= tokio::time::Instant::now()) {
            self.again = None;
            std::mem::take(&mut self.short).into_iter().for_each(|slot| self.begin(slot));
        }
        loop {
            self.enter();
            if self.completed.is_empty() {
                break;
            }
            self.entries -= self.completed.len();
            let mut completed = std::mem::take(&mut self.completed);
            for (slot, result) in completed.drain(..) {
                self.on_step(slot, result);
            }
            // A full queue may have been entered for further steps.
            completed.append(&mut self.completed);
            self.completed = completed;
        }
        if self.jobs > 0 {
            self.collect_jobs();
        }
    }

    /// The next step of a slot's operation.
    fn begin(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        let file = &self.disks[slot.disk].file.file;
        let work = slot.work.as_mut().expect("it is not with a thread");
        if self.kernel.is_some() && work.is_for_kernel() {
            let entry = work.entry(file, &mut slot.iovecs).user_data(index as u64);
            return self.push(&entry);
        }
        let work = slot.work.take().expect("as above");
        self.threads.begin(Job { slot: index, file: file.clone(), work });
        self.jobs += 1;
    }

    fn push(&mut self, entry: &squeue::Entry) {
        self.entries += 1;
        debug_assert!(
            self.entries <= self.slots.len() - self.free.len(),
            "an operation has one step at a time"
        );
        loop {
            let kernel = self.kernel.as_mut().expect("entries are for the kernel");
            // SAFETY: what the entry points to belongs to a slot's work and iovecs, which stay until its completion.
            if unsafe { kernel.submission().push(entry) }.is_ok() {
                return;
            }
            self.enter();
        }
    }

    /// Hands over the queued entries, and takes the completions.
    fn enter(&mut self) {
        let Some(kernel) = &mut self.kernel else { return };
        loop {
            let queue = kernel.submission();
            let is_needed = !queue.is_empty() || queue.taskrun() || queue.cq_overflow();
            drop(queue);
            let outcome = if is_needed { kernel.submit() } else { Ok(0) };
            let completions = kernel.completion();
            self.completed
                .extend(completions.map(|completion| (completion.user_data() as usize, completion.result())));
            match outcome {
                Ok(_) if kernel.submission().is_empty() => return,
                Ok(_) => {}
                Err(error) if is_passing(&error) => std::thread::yield_now(),
                Err(error) => panic!("io_uring refuses entries that are correct: {error}"),
            }
        }
    }

    fn on_step(&mut self, index: usize, result: i32) {
        let work = self.slots[index].work.as_mut().expect("no thread has what the kernel had");
        let moved = match usize::try_from(result) {
            Ok(moved) => Ok(moved),
            Err(_) => Err(Errno::from_raw_os_error(-result)),
        };
        match work.advance(moved) {
            None => self.begin(index),
            Some(ended) => self.end(index, ended),
        }
    }

    fn collect_jobs(&mut self) {
        for (job, ended) in self.threads.collect() {
            self.jobs -= 1;
            self.slots[job.slot].work = Some(job.work);
            self.end(job.slot, ended);
        }
    }

    fn end(&mut self, index: usize, ended: Result<Found, Errno>) {
        let slot = &mut self.slots[index];
        let disk = &mut self.disks[slot.disk];
        let ended = if disk.is_cut() { Err(Errno::IO) } else { ended };
        if let Err(error) = ended
            && is_shortage(error)
        {
            if !std::mem::replace(&mut disk.is_short, true) {
                let path = disk.file.path().display();
                tracing::error!("{path}: {error}: what needs it waits; make room, and it goes on");
            }
            self.short.push(index);
            self.again.get_or_insert_with(|| Box::pin(sleep(PAUSE)));
            return;
        }
        let work = slot.work.take().expect("it was given back");
        let found = match ended {
            Ok(found) => {
                if std::mem::take(&mut disk.is_short) {
                    tracing::info!("{} has what it lacked", disk.file.path().display());
                }
                if disk.failures > 0 {
                    let (path, failures) = (disk.file.path().display(), disk.failures);
                    tracing::warn!("{path} serves again after {failures} failed operations");
                    disk.failures = 0;
                }
                found
            }
            Err(error) => {
                if disk.failures == 0 {
                    let (path, name, at) = (disk.file.path().display(), work.name(), work.at());
                    tracing::error!("{path}: {name} at byte {at} failed: {error}; more failures are counted");
                }
                disk.failures += 1;
                Found::Failed
            }
        };
        let (disk, token, elapsed) = (slot.disk, slot.token, slot.begun.elapsed());
        self.ended.push_back(Completion { disk, token, found, elapsed });
        self.free.push(index);
    }
}

/// What an operation lacks may be there later: the disk itself is sound.
fn is_shortage(error: Errno) -> bool {
    matches!(error, Errno::NOSPC | Errno::DQUOT | Errno::NOMEM | Errno::NOBUFS | Errno::MFILE | Errno::NFILE)
}

/// The kernel is briefly short of memory or was interrupted, or completions have to be taken first.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

impl Drop for Ring {
    fn drop(&mut self) {
        let Some(kernel) = &mut self.kernel else { return };
        // The threads end their jobs by themselves.
        self.entries -= self.completed.len();
        while self.entries > 0 {
            let outcome = kernel.submit_and_wait(1);
            self.entries -= kernel.completion().count();
            match outcome {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(error) => {
                    tracing::error!("the disks' last operations cannot be awaited: {error}");
                    // The kernel may still use their memory.
                    std::mem::forget(std::mem::take(&mut self.slots));
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
