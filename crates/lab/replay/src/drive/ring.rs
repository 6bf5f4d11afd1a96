//! The engine for files and block devices: one io_uring, and one thread that sleeps until the next request is due or
//! one is answered, whichever comes first.
//!
//! One system call submits everything that is due and waits. The thread sleeps until shortly before the next request's
//! time and spins for the rest, at most a sixteenth of the gap and never long: precise where that is cheap, and an idle
//! gap costs nothing. Reads go to the buffer of their slot and are never looked at; writes come from one buffer of
//! incompressible bytes, at changing places, so that neither a copy nor a generator runs beside the measured I/O. Small
//! buffers and the write buffer are registered with the kernel, which saves pinning their pages each time; if the limit
//! on locked memory is too low, the kernel pins them.
//!
//! Invariant: memory that the kernel may still write to is not freed. The engine ends when nothing is in flight, or
//! leaks the buffers.

use super::feed::Feed;
use super::memory::{Pages, fill};
use super::options::NAP;
use super::place::{LONGEST, Op};
use super::record::{Issue, Recorder, Shared};
use super::report::PlacedReport;
use super::{DriveError, DriveOptions};
use ebb_trace::Kind;
use io_uring::types::{Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Bytes of a slot's own read buffer; longer reads share [`LARGE_MOST`] large ones and wait for one.
const SMALL: usize = 64 << 10;
const LARGE_MOST: usize = 64;
/// Slots with registered buffers: those that are used first.
const REGISTERED: usize = 40;
/// Size of the write buffer: a write starts at one of the pages before the last [`LONGEST`].
const PATTERN: usize = LONGEST as usize + (1 << 20);
const PAGE: usize = 4096;
const PATTERN_INDEX: u16 = 0;
const SLOTS_INDEX: u16 = 1;
/// Requests submitted at once: one time of issue is taken for all.
const BATCH: usize = 16;
const RING_ENTRIES: u32 = 256;
/// Spin at most this long, in nanoseconds, and at most this part of the gap between two requests.
const SPIN: u64 = 50_000;
const SPIN_PART: u64 = 16;

/// A request in flight.
#[derive(Default)]
struct Slot {
    issue: Issue,
    len: u32,
    write: bool,
    large: Option<Pages>,
}

struct Buffers {
    pattern: Pages,
    slots: Pages,
    large: Vec<Pages>,
    large_made: usize,
    registered: bool,
    writes: usize,
}

struct Engine<'a> {
    ring: IoUring,
    buffers: Buffers,
    slots: Vec<Slot>,
    free: Vec<u32>,
    recorder: Recorder,
    shared: &'a Shared,
    /// When a place was last freed while there was none.
    freed: u64,
    /// When the last request was issued.
    issued: u64,
}

/// The next step of the schedule.
enum Next {
    /// Nothing more.
    Done,
    /// A request without a free place.
    Blocked,
    /// A request, or the end of the replay, at this time.
    At(u64),
}

/// Replays on a file. Blocks; ends when everything is answered.
pub(super) fn run(
    file: &File,
    mut feed: Feed,
    options: &DriveOptions,
    shared: &Shared,
) -> Result<(Recorder, PlacedReport, u64), DriveError> {
    feed.fetch_blocking();
    let mut engine = Engine::new(file, options, shared).map_err(DriveError::Ring)?;
    match engine.run(&mut feed, options) {
        Ok(end) => {
            // The kernel takes down a ring some time after it is closed, and would hold on to a device meanwhile.
            engine.ring.submitter().unregister_files().map_err(DriveError::Ring)?;
            let recorder = engine.recorder;
            Ok((recorder, feed.finish()?, end))
        }
        Err(error) => {
            std::mem::forget(engine);
            Err(DriveError::Ring(error))
        }
    }
}

fn ring(in_flight: usize) -> io::Result<IoUring> {
    let completions = (2 * in_flight).next_power_of_two() as u32;
    let with = |set: fn(&mut io_uring::Builder)| {
        let mut builder = IoUring::builder();
        set(builder.setup_cqsize(completions.max(2 * RING_ENTRIES)));
        builder.build(RING_ENTRIES)
    };
    // Completions are processed when this thread asks for them, not by interrupting it: since Linux 6.1.
    with(|builder| {
        builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
    })
    .or_else(|_| with(|_| ()))
}

impl Buffers {
    fn new(in_flight: usize) -> io::Result<Buffers> {
        let (mut pattern, slots) = (Pages::new(PATTERN)?, Pages::new(in_flight * SMALL)?);
        fill(0, pattern.bytes_mut());
        Ok(Buffers { pattern, slots, large: Vec::new(), large_made: 0, registered: false, writes: 0 })
    }

    fn register(&mut self, ring: &IoUring) {
        let iovec = |pages: &Pages, len| libc::iovec { iov_base: pages.at(0).cast(), iov_len: len };
        let slots = self.slots.len().min(REGISTERED * SMALL);
        let buffers = [iovec(&self.pattern, PATTERN), iovec(&self.slots, slots)];
        // SAFETY: both mappings live until the engine has ended, and with it the ring.
        self.registered = unsafe { ring.submitter().register_buffers(&buffers) }.is_ok();
    }

    fn has_large(&self) -> bool {
        !self.large.is_empty() || self.large_made < LARGE_MOST
    }

    fn take_large(&mut self) -> io::Result<Pages> {
        match self.large.pop() {
            Some(pages) => Ok(pages),
            None => {
                self.large_made += 1;
                Pages::new(LONGEST as usize)
            }
        }
    }
}

impl<'a> Engine<'a> {
    fn new(file: &File, options: &DriveOptions, shared: &'a Shared) -> io::Result<Engine<'a>> {
        let in_flight = options.most_in_flight();
        let (ring, mut buffers) = (ring(in_flight)?, Buffers::new(in_flight)?);
        ring.submitter().register_files(&[file.as_raw_fd()])?;
        buffers.register(&ring);
        // SAFETY: sets a number of this thread. Sleeps may otherwise end 50 µs late, to save wake-ups.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
        Ok(Engine {
            ring,
            buffers,
            slots: (0..in_flight).map(|_| Slot::default()).collect(),
            // The last is taken first: the same few buffers are used while few requests are in flight.
            free: (0..in_flight as u32).rev().collect(),
            recorder: Recorder::new(options),
            shared,
            freed: 0,
            issued: 0,
        })
    }

    /// The time at which the replay ended.
    fn run(&mut self, feed: &mut Feed, options: &DriveOptions) -> io::Result<u64> {
        let end = options.duration.map(|duration| (options.warmup + duration).as_nanos() as u64);
        loop {
            let now = self.recorder.now();
            self.recorder.tick(now);
            self.reap(now);
            let next = self.issue(feed, now, end)?;
            let idle = self.free.len() == self.slots.len();
            let now = self.recorder.now();
            match next {
                Next::Done if idle => return Ok(if self.shared.stopped() { now } else { 0 }),
                Next::At(until) if idle && end == Some(until) && now >= until => return Ok(until),
                Next::Done | Next::Blocked => self.wait(now, None)?,
                // The end is not worth spinning for, and has passed while the last answers are awaited.
                Next::At(until) if end == Some(until) => {
                    self.wait(now, (until > now).then_some(until + SPIN))?
                }
                Next::At(until) => self.wait(now, Some(until))?,
            }
        }
    }

    /// Issues everything that is due and has a place.
    fn issue(&mut self, feed: &mut Feed, mut now: u64, end: Option<u64>) -> io::Result<Next> {
        loop {
            if self.shared.stopped() || !feed.fetch_blocking() {
                return Ok(Next::Done);
            }
            let Some(op) = feed.peek().copied() else { return Ok(Next::Done) };
            if let Some(end) = end.filter(|end| op.due.max(now) >= *end) {
                return Ok(Next::At(end));
            }
            if op.due > now {
                return Ok(Next::At(op.due));
            }
            let large = op.kind == Kind::Read && op.len as usize > SMALL;
            if large && !self.buffers.has_large() {
                return Ok(Next::Blocked);
            }
            let Some(slot) = self.free.pop() else { return Ok(Next::Blocked) };
            feed.next();
            self.push(slot, &op, now, large)?;
            if self.ring.submission().len() >= BATCH {
                pass(self.ring.submit())?;
                now = self.recorder.now();
            }
        }
    }

    fn push(&mut self, index: u32, op: &Op, now: u64, large: bool) -> io::Result<()> {
        let slot = &mut self.slots[index as usize];
        slot.issue = Issue { due: op.due, free: op.due.max(self.freed.min(now)), at: now };
        slot.len = op.len;
        slot.write = op.kind == Kind::Write;
        if large {
            slot.large = Some(self.buffers.take_large()?);
        }
        self.recorder.issued(op, &slot.issue);
        self.issued = now;
        self.shared.issued.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        self.shared.due.store(op.due, std::sync::atomic::Ordering::Relaxed);
        let entry = entry(&mut self.buffers, slot, index, op).user_data(index.into());
        // SAFETY: the buffer of an entry is its slot's, the writes', or held by its slot: none is freed in flight.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            pass(self.ring.submit())?;
        }
        Ok(())
    }

    /// Collects all completions.
    fn reap(&mut self, now: u64) {
        let full = self.free.is_empty();
        for completion in self.ring.completion() {
            let index = completion.user_data() as u32;
            let slot = &mut self.slots[index as usize];
            let mut large = slot.large.take();
            if full || large.is_some() && !self.buffers.has_large() {
                self.freed = now;
            }
            self.buffers.large.extend(large.take());
            let kind = if slot.write { Kind::Write } else { Kind::Read };
            let outcome = outcome(completion.result(), slot.len);
            self.recorder.answered(kind, &slot.issue, now, outcome, self.shared);
            self.free.push(index);
        }
    }

    /// Submits the queued requests and sleeps until there is a completion, or until shortly before a time.
    fn wait(&mut self, now: u64, until: Option<u64>) -> io::Result<()> {
        let mut sleep = NAP;
        if let Some(until) = until {
            let spin = (until.saturating_sub(self.issued) / SPIN_PART).min(SPIN);
            sleep = until.saturating_sub(now).saturating_sub(spin).min(NAP);
        }
        if sleep == 0 || !self.ring.completion().is_empty() {
            if !self.ring.submission().is_empty() {
                return pass(self.ring.submit());
            }
            std::hint::spin_loop();
            return Ok(());
        }
        let time = Timespec::new().sec(sleep / 1_000_000_000).nsec((sleep % 1_000_000_000) as u32);
        pass(self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&time)))
    }
}

/// A sleep that ended by its time or by a signal, or a kernel that is briefly short of memory, is not a failure.
fn pass(outcome: io::Result<usize>) -> io::Result<()> {
    match outcome {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            Some(libc::ETIME | libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
            _ => Err(error),
        },
    }
}

fn entry(buffers: &mut Buffers, slot: &Slot, index: u32, op: &Op) -> squeue::Entry {
    let (file, len, offset) = (Fixed(0), op.len, op.offset);
    if slot.write {
        let from = buffers.pattern.at(buffers.writes % (PATTERN - LONGEST as usize));
        buffers.writes = buffers.writes.wrapping_add(PAGE);
        return match buffers.registered {
            true => opcode::WriteFixed::new(file, from, len, PATTERN_INDEX).offset(offset).build(),
            false => opcode::Write::new(file, from, len).offset(offset).build(),
        };
    }
    if let Some(large) = &slot.large {
        return opcode::Read::new(file, large.at(0), len).offset(offset).build();
    }
    let to = buffers.slots.at(index as usize * SMALL);
    match buffers.registered && (index as usize) < REGISTERED {
        true => opcode::ReadFixed::new(file, to, len, SLOTS_INDEX).offset(offset).build(),
        false => opcode::Read::new(file, to, len).offset(offset).build(),
    }
}

fn outcome(result: i32, len: u32) -> Result<u32, String> {
    match u32::try_from(result) {
        Ok(moved) if moved == len => Ok(len),
        Ok(moved) => Err(format!("moved only {moved} of {len} bytes")),
        Err(_) => Err(io::Error::from_raw_os_error(-result).to_string()),
    }
}
