//! The loop: the next arrival, the end of a disk's work or the mirror's alarm, whichever comes first.

use super::disk::{Disk, Zeroes};
use super::measure::{Asked, Measures};
use super::report::{DiskReport, Energies, Report, Requests, SetupReport, TraceReport};
use super::setup::{MirrorError, Setup, UNANSWERED_MAX};
use super::state::State;
use bytes::Bytes;
use ebb_mirror::open::{Accept, Medium, create, open};
use ebb_mirror::policy::DiskFacts;
use ebb_mirror::{
    BLOCK_BYTES, Command, DiskId, Event, Geometry, Mirror, MirrorId, Reply, Request, Settings, Side, Speed,
    TwoSpeedDisk, TwoSpeedModel,
};
use ebb_trace::{Kind, TraceReader};
use ebb_types::{Bug, Moment, Random};
use std::collections::VecDeque;

/// Requests between two reports of progress.
const TELL: u64 = 1 << 14;

/// A new disk, as far as the mirror reads it when it opens.
struct NewDisk {
    bytes: u64,
    written: Vec<(u64, Bytes)>,
}

impl Medium for NewDisk {
    fn size(&self) -> u64 {
        self.bytes
    }

    fn read(&mut self, offset: u64, bytes: u64) -> Result<Bytes, String> {
        let mut data = vec![0; bytes as usize];
        for (at, content) in &self.written {
            let (first, end) = ((*at).max(offset), (at + content.len() as u64).min(offset + bytes));
            if first < end {
                let part = &content[(first - at) as usize..(end - at) as usize];
                data[(first - offset) as usize..(end - offset) as usize].copy_from_slice(part);
            }
        }
        Ok(data.into())
    }
}

/// A new mirror of disks at high speed, with empty logs. `geometry` is that of disks of this model.
pub(crate) fn new_mirror(
    model: &TwoSpeedModel,
    geometry: Geometry,
    settings: Settings,
    mut random: Random,
    out: &mut Vec<Command>,
) -> (Mirror, [Disk; 2]) {
    let (ids, bytes) = ([DiskId([1; 16]), DiskId([2; 16])], model.capacity_bytes);
    let [mut a, mut b] =
        create(MirrorId([0; 16]), "simulated", ids, geometry).map(|written| NewDisk { bytes, written });
    let opened = open([Some(&mut a as &mut dyn Medium), Some(&mut b)], Accept::default());
    let opened = opened.expect("a mirror that was just created opens");
    let mirror = Mirror::new(settings, [DiskFacts::of(model); 2], [Speed::High; 2], opened, out);
    let disks = Side::BOTH.map(|side| {
        let disk = TwoSpeedDisk::new(model.clone(), Speed::High, Moment::ZERO, random.next());
        Disk::new(side, disk, &geometry)
    });
    (mirror, disks)
}

pub(super) struct Run<'a> {
    setup: &'a Setup,
    geometry: Geometry,
    mirror: Mirror,
    disks: [Disk; 2],
    now: Moment,
    wake: Option<Moment>,
    /// Requests from `first` on, in order; `None`: answered.
    asked: VecDeque<Option<Asked>>,
    first: u64,
    zeroes: Zeroes,
    out: Vec<Command>,
    measures: Measures,
    requests: Requests,
    /// Blocks in each log after the last event, and those that have left it.
    logged: [u64; 2],
    replayed: [u64; 2],
}

impl<'a> Run<'a> {
    pub fn new(setup: &'a Setup) -> Result<Run<'a>, MirrorError> {
        let bytes = setup.disk.capacity_bytes;
        let geometry = Geometry::common(bytes, bytes, setup.log_bytes)?;
        let mut out = Vec::new();
        let random = Random::new(setup.seed);
        let (mirror, disks) = new_mirror(&setup.disk, geometry, setup.settings, random, &mut out);
        let mut run = Run {
            setup,
            geometry,
            mirror,
            disks,
            now: Moment::ZERO,
            wake: None,
            asked: VecDeque::new(),
            first: 0,
            zeroes: Zeroes::default(),
            out,
            measures: Measures::new(setup.settings.epoch),
            requests: Requests { answered: 0, failed: 0 },
            logged: [0; 2],
            replayed: [0; 2],
        };
        run.carry_out();
        Ok(run)
    }

    pub fn play(
        mut self,
        name: &str,
        trace: &mut dyn TraceReader,
        tell: &mut dyn FnMut(u64),
    ) -> Result<Report, MirrorError> {
        let mut about =
            TraceReport { name: name.to_owned(), rate: self.setup.rate, ..TraceReport::default() };
        for request in &mut *trace {
            let request = request?;
            if request.len == 0 {
                about.empty += 1;
                continue;
            }
            let at = Moment(self.setup.moment(request.at));
            while self.step(Some(at)) {}
            self.now = at;
            self.arrive(&request, &mut about)?;
            if about.requests.is_multiple_of(TELL) {
                tell(about.requests);
            }
        }
        if about.requests == 0 {
            return Err(MirrorError::Empty(name.to_owned()));
        }
        while !self.asked.is_empty() {
            assert!(self.step(None), "requests wait for ever: {:?}", self.mirror.status());
        }
        Ok(self.report(about))
    }

    /// Lets the next thing happen, if it is due by then.
    fn step(&mut self, until: Option<Moment>) -> bool {
        let due = |disk: &Disk| disk.due().unwrap_or(Moment(u64::MAX));
        let [a, b] = self.disks.each_ref().map(due);
        let disk = a.min(b);
        let wake = self.wake.unwrap_or(Moment(u64::MAX));
        let next = disk.min(wake);
        if next == Moment(u64::MAX) || until.is_some_and(|until| next > until) {
            return false;
        }
        self.now = next;
        let event = match () {
            () if disk > wake => Event::Tick,
            () if a <= b => self.disks[0].end(next, &mut self.zeroes),
            () => self.disks[1].end(next, &mut self.zeroes),
        };
        if let Event::Done { side, spent, .. } = &event {
            self.measures.worked(side.index(), next, spent.total());
        }
        self.event(event);
        true
    }

    fn arrive(&mut self, request: &ebb_trace::Request, about: &mut TraceReport) -> Result<(), MirrorError> {
        let write = request.kind == Kind::Write;
        let (count, bytes) = match write {
            true => (&mut about.writes, &mut about.written_bytes),
            false => (&mut about.reads, &mut about.read_bytes),
        };
        *count += 1;
        *bytes += u64::from(request.len);
        about.requests += 1;
        let (block, count) = self.place(request, &mut about.folded)?;
        let in_change = self.is_changing();
        let unanswered = about.requests - self.requests.answered - self.requests.failed;
        if unanswered > UNANSWERED_MAX {
            let seconds = self.now.since(Moment::ZERO).as_secs_f64();
            return Err(MirrorError::Overloaded { unanswered, seconds });
        }
        self.measures.arrived(self.now);
        let id = self.first + self.asked.len() as u64;
        self.asked.push_back(Some(Asked { at: self.now, write, in_change }));
        let request = match write {
            true => Request::Write { block, payload: self.zeroes.of(count * BLOCK_BYTES), fua: false },
            // A request's length in bytes has 32 bits.
            false => Request::Read { block, count: count as u32 },
        };
        self.event(Event::Request { id, request });
        Ok(())
    }

    /// First block and number of blocks of a request: rounded outward, the trace's devices spread over the mirror, and
    /// folded into it.
    fn place(&self, request: &ebb_trace::Request, folded: &mut u64) -> Result<(u64, u64), MirrorError> {
        let blocks = self.geometry.data_blocks();
        let first = request.offset / BLOCK_BYTES;
        let count = (request.offset + u64::from(request.len)).div_ceil(BLOCK_BYTES) - first;
        if count > blocks {
            let [bytes, room_bytes] = [count, blocks].map(|blocks| blocks * BLOCK_BYTES);
            return Err(MirrorError::TooLong { bytes, room_bytes });
        }
        // Multiples of the golden ratio: no two of few devices are near each other.
        let share = f64::from(request.device) * 0.618_033_988_749_895;
        let device = (share.fract() * blocks as f64) as u64;
        *folded += u64::from(first + count > blocks);
        Ok((((device + first) % blocks).min(blocks - count), count))
    }

    fn event(&mut self, event: Event) {
        self.mirror.on(self.now, event, &mut self.out);
        self.carry_out();
    }

    fn is_changing(&self) -> bool {
        self.disks.iter().any(Disk::is_changing)
    }

    fn carry_out(&mut self) {
        let mut out = std::mem::take(&mut self.out);
        for command in out.drain(..) {
            match command {
                Command::Disk { side, token, op } => self.disks[side.index()].ask(token, op),
                Command::SetSpeed { side, speed } => self.disks[side.index()].change(self.now, speed),
                Command::Reply { id, reply } => self.replied(id, &reply),
                Command::WakeAt(at) => self.wake = at,
                Command::Closed => unreachable!("nothing closes the mirror"),
                Command::Bug(Bug(what)) => panic!("{what}"),
            }
        }
        self.out = out;
        for (n, side) in Side::BOTH.into_iter().enumerate() {
            let disk = &mut self.disks[n];
            disk.begin(self.now);
            let state = match disk.is_changing() {
                true => State::Changing,
                false => State::At(disk.model.speed(), self.mirror.mode(side)),
            };
            self.measures.enter(n, state, self.now);
            self.measures.takes(n, self.mirror.utilisation(side).unwrap_or_default());
            let logged = self.mirror.logged_blocks(side);
            self.replayed[n] += self.logged[n].saturating_sub(logged);
            self.logged[n] = logged;
        }
    }

    fn replied(&mut self, id: u64, reply: &Reply) {
        let asked = self.asked[(id - self.first) as usize].take().expect("a request is answered once");
        while let Some(None) = self.asked.front() {
            self.asked.pop_front();
            self.first += 1;
        }
        match reply {
            Reply::Failed => self.requests.failed += 1,
            _ => self.requests.answered += 1,
        }
        let in_change = self.is_changing();
        self.measures.answered(self.now, asked, in_change);
    }

    fn report(self, about: TraceReport) -> Report {
        let Run { setup, disks, now, measures, requests, logged, replayed, .. } = self;
        let (response, samples, measured) = measures.end(now);
        let side = |n: usize| {
            let energy = disks[n].model.energy(now);
            let (states, busiest_epoch) = measured[n];
            DiskReport {
                total: energy.total(),
                low_share: energy.low_share(),
                energy,
                states,
                busiest_epoch,
                replayed_blocks: replayed[n],
                left_blocks: logged[n],
                work: disks[n].work,
            }
        };
        let disks = [side(0), side(1)];
        let total = disks[0].total + disks[1].total;
        let seconds = now.since(Moment::ZERO).as_secs_f64();
        Report {
            trace: TraceReport { span_seconds: seconds, ..about },
            setup: SetupReport {
                policy: setup.settings.kind,
                ack: setup.settings.ack,
                response_limit_millis: setup.settings.adaptive.map(|a| a.response_limit.as_secs_f64() * 1e3),
                log_bytes: setup.log_bytes,
                disk: setup.disk.name.clone(),
                disk_source: setup.disk.source.clone(),
                seed: setup.seed,
            },
            requests,
            response,
            energy_modelled: Energies {
                total,
                mean_watts: if seconds > 0.0 { total.0 / seconds } else { 0.0 },
                low_share: disks.iter().map(|disk| disk.low_share).sum::<Option<f64>>().map(|sum| sum / 2.0),
                changes: disks.iter().map(|disk| disk.energy.changes_up + disk.energy.changes_down).sum(),
            },
            disks,
            samples,
        }
    }
}
