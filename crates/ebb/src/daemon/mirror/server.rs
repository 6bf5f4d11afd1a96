//! One mirror between clients and disks: the driver of [`ebb_mirror::Mirror`]. Clients are NBD's, or this process.
//!
//! Everything is on one thread. A request, a completion or a timer becomes an event, and the commands that come out are
//! carried out before the next one.

use crate::daemon::clock;
use crate::daemon::mirror::drive::{Drive, Ended};
use crate::daemon::mirror::timer::Timer;
use ebb_blockdev::{Backend, Completion, Replies, RequestId, Ring};
use ebb_mirror::{
    BLOCK_BYTES, Command, DiskState, Energy, Event, Found, Mirror, Request, Side, Speed, Status,
};
use ebb_nbd::{Errno, Extent, Piece, Reply};
use ebb_power::disk::Rated;
use ebb_types::{Bug, Moment};
use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

/// Completions handled before clients have their turn: copying makes new ones without end.
const TURN: u32 = 256;

/// An emulated end that is later than that stays late: the process did not run.
const LATE_MAX: Duration = Duration::from_millis(10);

/// Who gets the reply to a request.
enum Asker {
    Nbd(RequestId),
    Here(Box<dyn FnOnce(ebb_mirror::Reply)>),
}

/// Clients' requests in progress. The mirror knows them by their index.
#[derive(Default)]
struct Requests {
    begun: Vec<Option<Asker>>,
    free: Vec<usize>,
}

impl Requests {
    fn add(&mut self, asker: Asker) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.begun.push(None);
            self.begun.len() - 1
        });
        self.begun[index] = Some(asker);
        index as u64
    }

    fn take(&mut self, index: u64) -> Asker {
        let index = index as usize;
        self.free.push(index);
        self.begun[index].take().expect("a request is answered once")
    }
}

struct Inner {
    mirror: Mirror,
    ring: Ring,
    /// Indices in the ring; `None`: the disk is missing.
    places: [Option<usize>; 2],
    drives: [Drive; 2],
    requests: Requests,
    replies: Replies,
    alarm: Option<Moment>,
    /// Of the last event.
    last: Moment,
    closed: bool,
    /// Of the task that waits for disks and timers, while it sleeps.
    waker: Option<Waker>,
}

pub struct Server {
    inner: RefCell<Inner>,
}

impl Server {
    /// `out`: what the mirror wants first.
    pub fn new(
        mirror: Mirror,
        ring: Ring,
        places: [Option<usize>; 2],
        drives: [Drive; 2],
        replies: Replies,
        out: Vec<Command>,
    ) -> Server {
        let mut inner = Inner {
            mirror,
            ring,
            places,
            drives,
            requests: Requests::default(),
            replies,
            alarm: None,
            last: Moment::ZERO,
            closed: false,
            waker: None,
        };
        inner.carry_out(clock::now(), out);
        Server { inner: RefCell::new(inner) }
    }

    /// Carries disks' answers and timers to the mirror, until it has closed. An error is the runtime's.
    pub async fn run(&self) -> io::Result<()> {
        let mut timer = Timer::new()?;
        poll_fn(|context| self.inner.borrow_mut().poll(context, &mut timer)).await
    }

    /// Begins a request of this process. `answer` is called from within this call or later, and must not come back
    /// here.
    pub fn request(&self, request: Request, answer: impl FnOnce(ebb_mirror::Reply) + 'static) {
        let inner = &mut *self.inner.borrow_mut();
        let id = inner.requests.add(Asker::Here(Box::new(answer)));
        inner.event(clock::now(), Event::Request { id, request });
    }

    pub fn scrub(&self) {
        self.event(Event::Scrub);
    }

    /// Ends in order: [`Server::run`] returns when both disks have noted it.
    pub fn close(&self) {
        self.event(Event::Close);
    }

    fn event(&self, event: Event) {
        self.inner.borrow_mut().event(clock::now(), event);
    }

    pub fn status(&self) -> Status {
        self.inner.borrow().mirror.status()
    }

    /// Ends in order, after [`Server::close`], and leaves disks of two speeds at high speed: others may use them next.
    pub async fn end(&self) -> io::Result<()> {
        self.run().await?;
        for side in Side::BOTH {
            let disk = &self.status().disks[side.index()];
            let lost = disk.state == DiskState::Lost;
            if disk.speed == Speed::Low && !lost && self.inner.borrow().drives[side.index()].about().is_some()
            {
                self.inner.borrow_mut().drives[side.index()].change(clock::now(), Speed::High);
                // It has said why, if it failed.
                poll_fn(|context| self.inner.borrow_mut().drives[side.index()].poll_change(context)).await;
            }
        }
        Ok(())
    }

    /// What is known of the disks' power, by side.
    pub fn power(&self) -> [Power; 2] {
        let now = clock::now();
        self.inner.borrow().drives.each_ref().map(|drive| Power {
            modelled: drive.modelled(now),
            rated: drive.about().and_then(|about| about.rated),
        })
    }
}

/// A disk's power, as far as it is known.
pub struct Power {
    /// Energy and times since the start.
    pub modelled: Option<Energy>,
    pub rated: Option<Rated>,
}

impl Inner {
    fn poll(&mut self, context: &mut Context, timer: &mut Timer) -> Poll<io::Result<()>> {
        for _ in 0..TURN {
            if self.closed {
                return Poll::Ready(Ok(()));
            }
            if let Poll::Ready(completion) = self.ring.poll_next(context) {
                self.complete(completion?);
                continue;
            }
            timer.look(context)?;
            if self.end_due(clock::now() + timer.lead()) || self.end_change(clock::now(), context) {
                continue;
            }
            self.waker = Some(context.waker().clone());
            let Some(due) = self.due() else { return Poll::Pending };
            match timer.poll(context, due) {
                Poll::Ready(fired) => fired?,
                Poll::Pending => return Poll::Pending,
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    fn due(&self) -> Option<Moment> {
        let drives = self.drives.iter().filter_map(Drive::due);
        drives.chain(self.alarm).min()
    }

    fn complete(&mut self, completion: Completion) {
        let place = self.places.iter().position(|place| *place == Some(completion.disk));
        let side = Side::BOTH[place.expect("the ring has the mirror's disks only")];
        let now = clock::now();
        if let Some(ended) = self.drives[side.index()].done(now, completion.token, completion.found) {
            self.ended(now, side, ended);
        }
    }

    /// Whether something was due.
    fn end_due(&mut self, now: Moment) -> bool {
        if self.alarm.is_some_and(|at| at <= now) {
            self.alarm = None;
            self.event(now, Event::Tick);
            return true;
        }
        let due = |side: &Side| self.drives[side.index()].due().unwrap_or(Moment(u64::MAX));
        let side = if due(&Side::A) <= due(&Side::B) { Side::A } else { Side::B };
        let at = self.on_time(due(&side), now);
        match self.drives[side.index()].pop(at) {
            Some(ended) => self.ended(at, side, ended),
            None => return false,
        }
        true
    }

    /// When an end that was due counts as come: in time, although timers are late. What follows from it begins then,
    /// too, so that lateness does not add up over the steps of a request.
    fn on_time(&self, due: Moment, now: Moment) -> Moment {
        let latest = Moment(now.0.saturating_sub(LATE_MAX.as_nanos() as u64));
        due.max(self.last).max(latest).min(now)
    }

    /// Whether a change of speed has ended that no clock ends.
    fn end_change(&mut self, now: Moment, context: &mut Context) -> bool {
        for side in Side::BOTH {
            if let Poll::Ready(ended) = self.drives[side.index()].poll_change(context) {
                self.ended(now, side, ended);
                return true;
            }
        }
        false
    }

    fn ended(&mut self, now: Moment, side: Side, ended: Ended) {
        match ended {
            Ended::Op { token, found, spent } => {
                let failed = found == Found::Failed;
                self.event(now, Event::Done { side, token, found, spent });
                if failed {
                    let state = self.mirror.status().disks[side.index()].state;
                    tracing::warn!("disk {side:?} failed an operation; it is {state:?} now");
                }
            }
            Ended::Change { changed } => self.event(now, Event::Changed { side, changed }),
        }
    }

    fn event(&mut self, now: Moment, event: Event) {
        // What was due may have come a little early.
        let now = now.max(self.last);
        self.last = now;
        let mut out = Vec::new();
        self.mirror.on(now, event, &mut out);
        self.carry_out(now, out);
    }

    fn carry_out(&mut self, now: Moment, out: Vec<Command>) {
        for command in out {
            match command {
                Command::Disk { side, token, op } => {
                    let place = self.places[side.index()].expect("a missing disk is not asked");
                    self.drives[side.index()].begin(now, token, &op);
                    self.ring.submit(place, token, op);
                    continue;
                }
                Command::SetSpeed { side, speed } => {
                    tracing::info!("disk {side:?} changes to {} speed", word(speed));
                    self.drives[side.index()].change(now, speed);
                }
                Command::Reply { id, reply } => {
                    match self.requests.take(id) {
                        Asker::Nbd(id) => self.replies.reply(id, answer(reply)),
                        Asker::Here(answer) => answer(reply),
                    }
                    continue;
                }
                Command::WakeAt(at) => self.alarm = at,
                Command::Closed => self.closed = true,
                Command::Bug(Bug(what)) => ebb_client::bug(what),
            }
            if let Some(waker) = self.waker.take() {
                waker.wake();
            }
        }
    }
}

fn word(speed: Speed) -> &'static str {
    match speed {
        Speed::Low => "low",
        Speed::High => "high",
    }
}

fn answer(reply: ebb_mirror::Reply) -> Reply {
    match reply {
        ebb_mirror::Reply::Done => Reply::Done,
        ebb_mirror::Reply::Data(pieces) => Reply::Data(pieces.into_iter().map(Piece::Data).collect()),
        ebb_mirror::Reply::Extents(runs) => {
            let extent = |(blocks, hole)| Extent { length: blocks * BLOCK_BYTES, hole, zero: hole };
            Reply::Extents(runs.into_iter().map(extent).collect())
        }
        ebb_mirror::Reply::Failed => Reply::Failed(Errno::Io),
    }
}

impl Backend for Server {
    fn request(&self, id: RequestId, _: usize, request: ebb_nbd::Request) {
        use ebb_nbd::Request as Nbd;
        let inner = &mut *self.inner.borrow_mut();
        let block = |offset: u64| offset / BLOCK_BYTES;
        let blocks = |length: u32| u64::from(length) / BLOCK_BYTES;
        let request = match request {
            Nbd::Read { offset, length, .. } => {
                Request::Read { block: block(offset), count: blocks(length) as u32 }
            }
            Nbd::Write { offset, payload, fua } => Request::Write { block: block(offset), payload, fua },
            Nbd::Flush => Request::Flush,
            Nbd::Trim { offset, length, fua } => {
                Request::Zero { block: block(offset), count: blocks(length), fua, may_trim: true }
            }
            Nbd::WriteZeroes { fast: true, .. } => {
                return inner.replies.reply(id, Reply::Failed(Errno::NotSupported));
            }
            Nbd::WriteZeroes { offset, length, fua, may_trim, .. } => {
                Request::Zero { block: block(offset), count: blocks(length), fua, may_trim }
            }
            Nbd::Cache { .. } => return inner.replies.reply(id, Reply::Done),
            Nbd::Status { offset, length, .. } => {
                Request::Status { block: block(offset), count: blocks(length) }
            }
        };
        let id = inner.requests.add(Asker::Nbd(id));
        inner.event(clock::now(), Event::Request { id, request });
    }
}
