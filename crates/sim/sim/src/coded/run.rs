//! The run of a trace: its events, and what each leads to.

use super::hibernation::Hibernation;
use super::kept::{Kept, Row};
use super::report::{Energies, Report, Sample};
use super::server::{JobId, Server};
use super::setup::{CodedError, Setup};
use crate::engine::{Agenda, Due, MILLI, SECOND};
use crate::request::disk::Access;
use ebb_erasure::standby::{self, Command, Standby, State};
use ebb_output::Histogram;
use ebb_power::{Draw, EnergyMeter};
use ebb_trace::{Kind, Request, TraceError};
use ebb_types::{Moment, Random, ServerId};
use std::collections::BTreeMap;
use std::time::Duration;

/// How often fills are reported and watts recorded.
const SAMPLE: u64 = SECOND;
/// What is synchronised or rebuilt with one message.
const UNIT_BYTES: u64 = 256 << 10;
/// Requests in progress at which a run is given up.
const WAITING_MAX: usize = 100_000;

enum Happens {
    Arrival,
    /// The access in service ended.
    Disk {
        server: usize,
    },
    /// A part of a request is done.
    Part {
        request: u64,
    },
    /// The bytes of a write are at their server.
    Received {
        job: JobId,
    },
    Up {
        parity: usize,
    },
    Down {
        parity: usize,
    },
    /// The data servers slept, and are up again; or they sleep now.
    SetUp,
    SetDown,
    /// More of what was kept can be sent.
    Send {
        parity: usize,
    },
    Rebuild,
    Sample,
}

/// What an access is for.
#[derive(Clone, Copy, Debug)]
enum Purpose {
    Read,
    /// The old bytes of an overwrite.
    Old {
        rows: (Row, Row),
    },
    New,
    /// For a replacement, or of a parity server's disk, for which no request waits.
    Aside {
        write: bool,
    },
}

#[derive(Clone, Copy, Debug)]
struct Job {
    server: usize,
    request: u64,
    at: u64,
    bytes: u64,
    purpose: Purpose,
}

struct Open {
    arrived: u64,
    parts: u32,
    write: bool,
    synchronising: bool,
}

pub struct Run<'a> {
    setup: &'a Setup,
    now: u64,
    agenda: Agenda<Happens>,
    servers: Vec<Server>,
    jobs: BTreeMap<JobId, Job>,
    next_job: JobId,
    open: BTreeMap<u64, Open>,
    next_request: u64,
    standby: Option<Standby>,
    hibernation: Option<Hibernation>,
    /// When the last request was answered.
    answered: u64,
    kept: Kept,
    /// Bytes still to be sent, and since when.
    sending: BTreeMap<usize, (u64, u64)>,
    rebuilt: u64,
    /// Reads for it in progress.
    rebuilding: u32,
    energy: EnergyMeter,
    /// The second account.
    by_load: EnergyMeter,
    times: Times,
    upcoming: Option<Request>,
}

#[derive(Default)]
struct Times {
    all: Histogram,
    reads: Histogram,
    writes: Histogram,
    synchronising: Histogram,
    requests: u64,
    written: u64,
    /// Changes of strips, and what each asked of data servers: accesses of their disks and of their memory.
    changes: u64,
    asked_for_changes: u64,
    synchronisations: u64,
    sent: u64,
    sent_nanos: u64,
    most_filled: f64,
    samples: Vec<Sample>,
}

impl<'a> Run<'a> {
    pub fn new(setup: &'a Setup) -> Result<Run<'a>, CodedError> {
        let shape = setup.shape;
        let mut random = Random::new(setup.seed);
        let mut run = Run {
            setup,
            now: 0,
            agenda: Agenda::default(),
            servers: (0..shape.servers()).map(|_| Server::new(setup, random.fork())).collect(),
            jobs: BTreeMap::new(),
            next_job: 0,
            open: BTreeMap::new(),
            next_request: 0,
            standby: setup.standby.map(|settings| Standby::new(shape, settings)),
            hibernation: setup.hibernate.map(Hibernation::new),
            answered: 0,
            kept: Kept::new(shape.parity(), shape.extra(), setup.row_bytes),
            sending: BTreeMap::new(),
            rebuilt: 0,
            rebuilding: 0,
            energy: EnergyMeter::new(setup.power, 1.0)?,
            by_load: EnergyMeter::new(setup.by_load, 1.0)?,
            times: Times::default(),
            upcoming: None,
        };
        let asleep = run.standby.is_some();
        for server in 0..shape.servers() {
            let draw =
                if asleep && server >= shape.data() { Draw::Standby } else { Draw::On { utilisation: 0.0 } };
            run.draw(server, draw);
        }
        if !asleep {
            for parity in 0..shape.parity() {
                run.kept.send(parity);
            }
        }
        if setup.failure.is_some() {
            run.decide(standby::Event::Failed);
            run.later(0, Happens::Rebuild);
        }
        run.later(SAMPLE, Happens::Sample);
        Ok(run)
    }

    fn later(&mut self, at: u64, what: Happens) {
        self.agenda.put(at, what);
    }

    pub fn play(
        mut self,
        trace: &mut dyn Iterator<Item = Result<Request, TraceError>>,
    ) -> Result<Report, CodedError> {
        self.fetch(trace)?;
        while self.upcoming.is_some() || !self.open.is_empty() {
            let Due { at, what, .. } = self.agenda.take_by(u64::MAX).expect("samples never end");
            self.now = at;
            match what {
                Happens::Arrival => {
                    let request = self.upcoming.take().expect("it arrives");
                    self.arrive(&request);
                    self.fetch(trace)?;
                }
                what => self.happened(what),
            }
            if self.open.len() > WAITING_MAX {
                return Err(CodedError::Overloaded { waiting: self.open.len(), seconds: self.now / SECOND });
            }
        }
        Ok(self.report())
    }

    fn fetch(
        &mut self,
        trace: &mut dyn Iterator<Item = Result<Request, TraceError>>,
    ) -> Result<(), CodedError> {
        self.upcoming = trace.next().transpose().map_err(CodedError::Trace)?;
        if let Some(request) = &self.upcoming {
            let at = (request.at.as_secs_f64() / self.setup.rate * SECOND as f64) as u64;
            self.later(at.max(self.now), Happens::Arrival);
        }
        Ok(())
    }

    fn happened(&mut self, what: Happens) {
        match what {
            Happens::Arrival => unreachable!("arrivals are the trace's"),
            Happens::Disk { server } => self.disk_done(server),
            Happens::Part { request } => self.part_done(request),
            Happens::Received { job } => self.access(job, false),
            Happens::Up { parity } => self.decide(standby::Event::Up { parity }),
            Happens::Down { parity } => self.decide(standby::Event::Down { parity }),
            Happens::SetUp => self.set_up(),
            Happens::SetDown => self.set_down(),
            Happens::Send { parity } => self.send(parity),
            Happens::Rebuild => self.rebuild(),
            Happens::Sample => self.sample(),
        }
    }

    fn arrive(&mut self, request: &Request) {
        let write = request.kind == Kind::Write;
        let id = self.next_request;
        self.next_request += 1;
        self.times.requests += 1;
        self.times.written += u64::from(write);
        let synchronising = !self.sending.is_empty();
        self.open.insert(id, Open { arrived: self.now, parts: 0, write, synchronising });
        match self.hibernation.as_mut().filter(|hibernation| !hibernation.is_awake()) {
            None => self.serve(id, request),
            Some(hibernation) => {
                if hibernation.hold(self.now, id, *request) {
                    self.wake_set();
                }
            }
        }
    }

    /// Cuts a request at strips, and gives each part to its server.
    fn serve(&mut self, id: u64, request: &Request) {
        let write = request.kind == Kind::Write;
        let strip = self.setup.strip_bytes;
        let (mut at, end) = (request.offset, request.offset + u64::from(request.len));
        while at < end {
            let bytes = (strip - at % strip).min(end - at);
            self.part(id, write, at, bytes);
            at += bytes;
        }
        if self.open[&id].parts == 0 {
            self.open.get_mut(&id).expect("it is open").parts = 1;
            self.part_done(id);
        }
    }

    fn part(&mut self, request: u64, write: bool, offset: u64, bytes: u64) {
        let (strip, data) = (self.setup.strip_bytes, self.setup.shape.data() as u64);
        let (number, within) = (offset / strip, offset % strip);
        let (stripe, server) = (number / data, (number % data) as usize);
        let at = (stripe * strip + within) % (self.setup.disk.capacity_bytes() - strip);
        let lost = self.setup.failure.is_some_and(|failure| failure.server == server);
        match write {
            true => {
                let row = self.setup.row_bytes;
                let rows = ((stripe * strip + within) / row, (stripe * strip + within + bytes).div_ceil(row));
                let purpose = Purpose::Old { rows };
                let received = self.servers[server].transmit(self.now, bytes, self.setup);
                let job = self.job(Job { server, request, at, bytes, purpose });
                self.parts(request, 2);
                self.later(received, Happens::Received { job });
            }
            false if lost => self.decode(request, server, at, bytes),
            false => {
                self.parts(request, 1);
                let job = self.job(Job { server, request, at, bytes, purpose: Purpose::Read });
                self.access(job, false);
            }
        }
    }

    /// Reads a lost strip from the others and P1. Before P1 is up, what is kept of it serves: as fast, from memory.
    fn decode(&mut self, request: u64, lost: usize, at: u64, bytes: u64) {
        let data = self.setup.shape.data();
        let p1 = self.kept.is_awake(0).then_some(data);
        let others: Vec<usize> = (0..data).filter(|server| *server != lost).chain(p1).collect();
        self.parts(request, others.len() as u32);
        for server in others {
            let job = self.job(Job { server, request, at, bytes, purpose: Purpose::Read });
            self.access(job, false);
        }
    }

    fn parts(&mut self, request: u64, more: u32) {
        self.open.get_mut(&request).expect("it is open").parts += more;
    }

    fn job(&mut self, job: Job) -> JobId {
        let id = self.next_job;
        self.next_job = self.next_job.wrapping_add(1);
        self.jobs.insert(id, job);
        id
    }

    fn access(&mut self, id: JobId, background: bool) {
        let job = self.jobs[&id];
        let write = matches!(job.purpose, Purpose::New | Purpose::Aside { write: true });
        let access = Access { write, at: job.at, bytes: job.bytes, hops: 0 };
        self.servers[job.server].add(id, access, background);
        self.begin(job.server);
    }

    fn begin(&mut self, server: usize) {
        if let Some(end) = self.servers[server].begin(self.now) {
            self.later(end, Happens::Disk { server });
        }
    }

    fn disk_done(&mut self, server: usize) {
        let id = self.servers[server].end();
        let job = self.jobs.remove(&id).expect("it was begun");
        match job.purpose {
            Purpose::Read => {
                let sent = self.servers[server].transmit(self.now, job.bytes, self.setup);
                self.later(sent, Happens::Part { request: job.request });
            }
            Purpose::Old { rows } => {
                let new = self.job(Job { purpose: Purpose::New, ..job });
                self.access(new, false);
                self.change(&job, rows);
            }
            Purpose::New => self.part_done(job.request),
            Purpose::Aside { write: false } => {
                self.rebuilding -= 1;
                self.servers[server].transmit(self.now, job.bytes, self.setup);
            }
            Purpose::Aside { write: true } => {}
        }
        self.begin(server);
    }

    /// Sends the change of a strip to the servers that keep its parity.
    fn change(&mut self, job: &Job, rows: (Row, Row)) {
        let data = self.setup.shape.data();
        let write = if self.setup.folds_overwrites { 0 } else { job.request };
        self.kept.change(rows.0..rows.1, write);
        let messages = self.kept.messages() as usize;
        let turn = (rows.0 * self.setup.row_bytes / self.setup.strip_bytes) as usize;
        let mut arrived = self.now;
        self.times.changes += 1;
        // The old bytes and the new ones.
        self.times.asked_for_changes += 2;
        for message in 0..messages {
            let to = match message {
                parity if parity < self.setup.shape.parity() && self.kept.is_awake(parity) => data + parity,
                strip => (turn + strip) % data,
            };
            let sent = match to == job.server {
                true => self.now,
                false => self.servers[job.server].transmit(self.now, job.bytes, self.setup),
            };
            arrived = arrived.max(self.servers[to].transmit(sent, job.bytes, self.setup));
            match to >= data {
                true => self.follow(to, job.at, job.bytes),
                false => self.times.asked_for_changes += 1,
            }
        }
        self.later(arrived, Happens::Part { request: job.request });
    }

    /// The disk of a parity server follows a change that it has in memory.
    fn follow(&mut self, server: usize, at: u64, bytes: u64) {
        let purpose = Purpose::Aside { write: true };
        let id = self.job(Job { server, request: u64::MAX, at, bytes, purpose });
        self.access(id, true);
    }

    fn part_done(&mut self, request: u64) {
        let Some(open) = self.open.get_mut(&request) else { return };
        open.parts -= 1;
        if open.parts > 0 {
            return;
        }
        let open = self.open.remove(&request).expect("it is open");
        self.answered = self.now;
        let took = Duration::from_nanos(self.now - open.arrived);
        self.times.all.record(took);
        match open.write {
            true => self.times.writes.record(took),
            false => self.times.reads.record(took),
        }
        if open.synchronising {
            self.times.synchronising.record(took);
        }
    }

    fn decide(&mut self, event: standby::Event) {
        let Some(standby) = &mut self.standby else { return };
        let mut out = Vec::new();
        standby.on(Moment(self.now), event, &mut out);
        let woken = out.iter().filter(|command| matches!(command, Command::Wake { .. })).count();
        self.times.synchronisations += u64::from(woken > 0 && self.setup.failure.is_none());
        for command in out {
            self.carry_out(command);
        }
    }

    fn carry_out(&mut self, command: Command) {
        let power = &self.setup.power;
        match command {
            Command::Wake { parity } => {
                let up = self.after(power.up.seconds);
                self.draw_parity(parity, Draw::On { utilisation: 0.0 });
                self.later(up, Happens::Up { parity });
            }
            Command::Synchronise { parity } => {
                let bytes = self.kept.send(parity);
                self.sending.insert(parity, (bytes, self.now));
                self.later(self.now, Happens::Send { parity });
            }
            Command::Sleep { parity } => {
                let down = self.after(power.down.seconds);
                self.kept.sleep(parity);
                self.draw_parity(parity, Draw::Standby);
                self.later(down, Happens::Down { parity });
            }
        }
    }

    /// Whether no server has anything to do.
    fn is_quiet(&self) -> bool {
        let asleep = |standby: &Standby| {
            (0..self.setup.shape.parity()).all(|parity| standby.state(parity) == State::Asleep)
        };
        let parity_sleeps = self.standby.as_ref().is_some_and(asleep);
        self.open.is_empty() && parity_sleeps && self.setup.failure.is_none()
    }

    fn hibernate_if_quiet(&mut self) {
        if !self.is_quiet() {
            return;
        }
        let quiet = Duration::from_nanos(self.now - self.answered);
        if self.hibernation.as_mut().is_some_and(|hibernation| hibernation.quiet(quiet)) {
            self.draw_data(Draw::Standby);
            self.later(self.after(self.setup.power.down.seconds), Happens::SetDown);
        }
    }

    fn set_down(&mut self) {
        if self.hibernation.as_mut().is_some_and(Hibernation::down) {
            self.wake_set();
        }
    }

    fn wake_set(&mut self) {
        self.draw_data(Draw::On { utilisation: 0.0 });
        self.later(self.after(self.setup.power.up.seconds), Happens::SetUp);
    }

    fn set_up(&mut self) {
        let Some(hibernation) = &mut self.hibernation else { return };
        for (id, request) in hibernation.up(self.now) {
            self.serve(id, &request);
        }
    }

    fn draw_data(&mut self, draw: Draw) {
        for server in 0..self.setup.shape.data() {
            self.draw(server, draw);
        }
    }

    fn after(&self, seconds: f64) -> u64 {
        self.now + (seconds * SECOND as f64) as u64
    }

    fn draw_parity(&mut self, parity: usize, draw: Draw) {
        self.draw(self.setup.shape.data() + parity, draw);
    }

    fn draw(&mut self, server: usize, draw: Draw) {
        let (now, id) = (Moment(self.now), ServerId(server as u16));
        self.energy.set(now, id, draw);
        self.by_load.set(now, id, draw);
    }

    /// Sends a unit of what was kept for a parity server, from one data server after the other.
    fn send(&mut self, parity: usize) {
        let data = self.setup.shape.data();
        let Some((left, since)) = self.sending.get_mut(&parity) else { return };
        if *left == 0 {
            self.times.sent += 1;
            self.times.sent_nanos += self.now - *since;
            self.sending.remove(&parity);
            self.kept.sent(parity);
            return self.decide(standby::Event::Synchronised { parity });
        }
        let bytes = (*left).min(UNIT_BYTES);
        *left -= bytes;
        let from = (*left / UNIT_BYTES) as usize % data;
        let sent = self.servers[from].transmit(self.now, bytes, self.setup);
        let arrived = self.servers[data + parity].transmit(sent, bytes, self.setup);
        let paced =
            self.now + (bytes as f64 / self.setup.synchronise_bytes_per_second * SECOND as f64) as u64;
        self.later(arrived.max(paced), Happens::Send { parity });
    }

    /// The replacement receives a unit from each of the others and from P1, at its rate.
    fn rebuild(&mut self) {
        let failure = self.setup.failure.expect("a server failed");
        let data = self.setup.shape.data();
        let p1 = self.kept.is_awake(0).then_some(data);
        let others: Vec<usize> = (0..data).filter(|server| *server != failure.server).chain(p1).collect();
        let (at, bytes) = (self.rebuilt, UNIT_BYTES);
        // Clients come first: a unit is not asked for before the last one has come.
        if p1.is_some() && self.rebuilding == 0 {
            self.rebuilt = (self.rebuilt + bytes) % (self.setup.disk.capacity_bytes() - bytes);
            for server in others.iter().copied() {
                let purpose = Purpose::Aside { write: false };
                let job = self.job(Job { server, request: u64::MAX, at, bytes, purpose });
                self.access(job, true);
                self.rebuilding += 1;
            }
            self.follow(failure.server, at, bytes);
        }
        let unit = (bytes * data as u64) as f64 / failure.rebuild_bytes_per_second;
        self.later(self.now + (unit * SECOND as f64) as u64, Happens::Rebuild);
    }

    fn sample(&mut self) {
        let data = self.setup.shape.data();
        let all = (self.setup.buffer_bytes * data as u64) as f64;
        let filled = self.kept.bytes() as f64 / all;
        self.times.most_filled = self.times.most_filled.max(filled);
        self.decide(standby::Event::Filled { share: filled });
        self.hibernate_if_quiet();
        let data_sleeps = self.hibernation.as_ref().is_some_and(Hibernation::is_down);
        let (mut watts, mut parity_awake) = (ebb_types::Watts(0.0), 0);
        for server in 0..self.servers.len() {
            let utilisation = self.servers[server].utilisation(SAMPLE);
            let asleep = |standby: &Standby| {
                let state = server.checked_sub(data).map(|parity| standby.state(parity));
                matches!(state, Some(State::Asleep | State::GoingDown))
            };
            let (id, now) = (ServerId(server as u16), Moment(self.now));
            let is_down = if server < data { data_sleeps } else { self.standby.as_ref().is_some_and(asleep) };
            if !is_down {
                self.draw(server, Draw::On { utilisation });
                parity_awake += usize::from(server >= data);
            }
            watts = watts + self.energy.watts(now, id).unwrap_or(watts);
        }
        let at_seconds = self.now as f64 / SECOND as f64;
        self.times.samples.push(Sample { at_seconds, watts, filled, parity_awake });
        self.later(self.now + SAMPLE, Happens::Sample);
    }

    fn report(mut self) -> Report {
        debug_assert!(self.servers.iter().all(|server| server.waiting() < WAITING_MAX));
        let now = Moment(self.now);
        let span_seconds = self.now.max(MILLI) as f64 / SECOND as f64;
        let times = &mut self.times;
        Report {
            requests: times.requests,
            writes: times.written,
            span_seconds,
            all: times.all.latency(),
            reads: times.reads.latency(),
            written: times.writes.latency(),
            synchronising: times.synchronising.latency(),
            energy_modelled: Energies::of(&self.energy, now, span_seconds),
            by_load_modelled: Energies::of(&self.by_load, now, span_seconds),
            hibernation: self.hibernation.as_ref().map(Hibernation::report),
            asked_of_data_servers: (times.changes > 0)
                .then(|| times.asked_for_changes as f64 / times.changes as f64),
            synchronisations: times.synchronisations,
            synchronise_seconds: (times.sent > 0)
                .then(|| times.sent_nanos as f64 / SECOND as f64 / times.sent as f64),
            most_filled: times.most_filled,
            samples: std::mem::take(&mut times.samples),
        }
    }
}
