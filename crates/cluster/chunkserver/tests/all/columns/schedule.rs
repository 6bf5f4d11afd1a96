//! Random schedules: writes, deletions and reads while servers sleep, wake, crash and are replaced, and while messages
//! are late, reordered and lost. What was acknowledged must read back at any time, and in the end every strip must be
//! at home.

use super::world::{BLOCKS, Row, SET, World, id};
use bytes::Bytes;
use ebb_chunkserver::Event;
use ebb_testing::search::{self, Case, Faults, Subject, Transcript, Violation, broken};
use ebb_types::{
    ChunkError, ChunkId, ChunkOp, ClientReply, Epoch, GroupId, Random, RequestId, ServerId, ServerState,
    SetEntry, SlotState, block_crcs, mix,
};
use std::collections::{BTreeMap, BTreeSet};

/// A client that sends each strip until all are done under one epoch; or a deletion.
struct Job {
    row: Row,
    deletes: bool,
    /// The configuration that the client knows.
    entry: SetEntry,
    /// The epoch of each column's last acknowledgement.
    done: BTreeMap<usize, Epoch>,
    asked: BTreeMap<usize, u64>,
    /// The most strips that it sends.
    stops_after: usize,
}

struct Schedule {
    seed: u64,
    world: World,
    /// Of the present step alone: no fault that is left out before it changes it.
    random: Random,
    faults: Faults,
    step: u32,
    steps: u32,
    jobs: Vec<Job>,
    written: Vec<Row>,
    deleted: Vec<ChunkId>,
    reads: Vec<(u64, usize, usize)>,
    /// Servers that are down, or that came back and may lack something.
    weak: BTreeSet<usize>,
    /// Rows so far.
    next: u64,
}

impl Job {
    /// Sends what is not acknowledged under the epoch that the client knows. Returns whether all is.
    fn go_on(&mut self, world: &mut World) -> bool {
        for (column, token) in std::mem::take(&mut self.asked) {
            match world.replies.get(&token).map(|(reply, _)| reply.clone()) {
                None => drop(self.asked.insert(column, token)),
                Some(ClientReply::Done { newest }) => drop(self.done.insert(column, newest.epoch)),
                Some(ClientReply::SetMoved { entry, .. }) if entry.epoch > self.entry.epoch => {
                    self.entry = entry
                }
                Some(_) => {}
            }
        }
        let (targets, epoch) = (self.entry.targets(self.row.chunk), self.entry.epoch);
        let needed: Vec<(usize, ServerId)> =
            targets.iter().enumerate().filter_map(|(n, to)| to.map(|to| (n, to))).collect();
        let servers = world.entry.shape.servers();
        if needed.iter().filter(|(column, _)| *column < servers).count() < servers {
            return false;
        }
        for &(column, to) in &needed {
            if self.done.get(&column) == Some(&epoch)
                || self.asked.contains_key(&column)
                || self.stops_after == 0
            {
                continue;
            }
            self.stops_after -= 1;
            let token = match self.deletes {
                // A connection to a server that is down brings no answer.
                _ if world.nodes[&to].replica.is_none() => continue,
                false => world.send_strip(&self.row, column, to, epoch),
                true => {
                    let (chunk, request) = (self.row.chunk, RequestId { client: 1, seq: 1 });
                    world.request(to, column, epoch, ChunkOp::Delete { chunk, request }, Bytes::new())
                }
            };
            self.asked.insert(column, token);
        }
        needed.iter().all(|(column, _)| self.done.get(column) == Some(&epoch))
    }

    /// The replies that a crash swallowed do not come.
    fn forget(&mut self) {
        self.asked.clear();
    }
}

impl Schedule {
    fn new(case: &Case, prepare: impl Fn(&mut World), lines: usize) -> Schedule {
        let seed = case.seed;
        let (k, r) = if seed.is_multiple_of(2) { (4, 2) } else { (6, 3) };
        // Half of them keep parity in memory, and half of those have little.
        let memory = match seed % 8 {
            0..4 => None,
            4 | 5 => Some(20 << 12),
            _ => Some(1 << 30),
        };
        let mut world = World::with_memory(k, r, memory);
        world.transcript = Transcript::of(lines);
        prepare(&mut world);
        Schedule {
            seed,
            world,
            random: Random::new(seed),
            faults: Faults::of(case),
            step: 0,
            steps: case.size(0, STEPS),
            jobs: Vec::new(),
            written: Vec::new(),
            deleted: Vec::new(),
            reads: Vec::new(),
            weak: BTreeSet::new(),
            next: 0,
        }
    }

    /// Whether the next fault happens. It draws from a source of its own.
    fn strikes(&mut self) -> bool {
        let (random, happens) = self.faults.draw(self.seed);
        self.random = random;
        happens
    }

    fn act(&mut self) {
        match self.random.below(100) {
            0..40 if !self.world.net.is_empty() => {
                let nth = self.random.index(self.world.net.len());
                self.world.deliver(nth);
            }
            40..70 => {
                if let Some(server) = self.random.pick(&self.world.works()).copied() {
                    let nth = self.random.index(1 << 20);
                    self.world.work(server, nth);
                }
            }
            70..78 => {
                let server = self.random.pick(&self.world.ids()).copied().unwrap();
                self.world.next_map(server);
            }
            78..88 => self.clients(),
            88..94 => self.world.tick(),
            94 if !self.world.net.is_empty() && self.random.chance(300) && self.strikes() => {
                let nth = self.random.index(self.world.net.len());
                self.world.lose(nth);
            }
            95 => self.read(),
            96 => self.begin(),
            _ if self.random.chance(150) && self.strikes() => self.metadata(),
            _ => {}
        }
    }

    fn clients(&mut self) {
        let Some(nth) = (!self.jobs.is_empty()).then(|| self.random.index(self.jobs.len())) else { return };
        if self.random.chance(100) {
            self.jobs[nth].entry = self.world.entry.clone();
        }
        if self.jobs[nth].go_on(&mut self.world) {
            let job = self.jobs.swap_remove(nth);
            match job.deletes {
                true => self.deleted.push(job.row.chunk),
                false => self.written.push(job.row),
            }
        }
        self.check_reads();
    }

    fn begin(&mut self) {
        if self.jobs.len() > 4 {
            return;
        }
        let stops_after = if self.random.chance(150) { self.random.index(8) } else { usize::MAX };
        let deletes = self.random.chance(150) && !self.written.is_empty() && self.reads.is_empty();
        let row = if deletes {
            let nth = self.random.index(self.written.len());
            self.written.swap_remove(nth)
        } else {
            self.next += 1;
            let blocks = 1 + self.random.below(u64::from(BLOCKS)) as u32;
            self.world.row(self.next, blocks, &mut self.random)
        };
        let (done, asked) = (BTreeMap::new(), BTreeMap::new());
        let stops_after = if deletes { usize::MAX } else { stops_after };
        let entry = self.world.entry.clone();
        self.jobs.push(Job { row, deletes, entry, done, asked, stops_after });
    }

    fn read(&mut self) {
        let Some(nth) = (!self.written.is_empty()).then(|| self.random.index(self.written.len())) else {
            return;
        };
        let column = self.random.index(self.world.entry.shape.data());
        let (chunk, len) = (self.written[nth].chunk, self.written[nth].strips[0].len() as u32);
        if let Some(token) = self.world.ask(chunk, column, len) {
            self.reads.push((token, chunk.object.serial().0 as usize, column));
        }
    }

    fn check_reads(&mut self) {
        let (world, written) = (&self.world, &self.written);
        self.reads.retain(|(token, serial, column)| {
            let Some((reply, bytes)) = world.replies.get(token) else { return true };
            let row = written.iter().find(|row| row.chunk.object.serial().0 as usize == *serial);
            let wanted = &row.expect("no row is deleted while it is read").strips[*column];
            match reply {
                ClientReply::Data { crcs } if bytes == wanted && *crcs == block_crcs(wanted) => {}
                ClientReply::Retry { .. } | ClientReply::SetMoved { .. } => {}
                ClientReply::Data { .. } => broken("coded", format!("request {token} gets a wrong answer")),
                other => broken("coded", format!("column {column} of an acknowledged row: {other:?}")),
            }
            false
        });
    }

    /// One thing happens to the cluster.
    fn metadata(&mut self) {
        let shape = self.world.entry.shape;
        let (data, all) = (shape.data(), shape.servers());
        for n in data..all {
            if self.world.state_of(id(n)) == ServerState::Draining {
                self.world.on(id(n), Event::Drain);
            }
        }
        self.world.let_sleep();
        let n = self.random.index(all);
        let is_down = |n: &usize| self.world.state_of(id(*n)) == ServerState::Failed;
        match self.random.below(12) {
            0 | 1 => {
                for n in data..all {
                    let in_sync = self.world.entry.columns[n].state == SlotState::InSync;
                    if in_sync && self.world.state_of(id(n)) == ServerState::Awake {
                        self.world.drain(n);
                    }
                }
            }
            2 => {
                if let Some(n) = (data..all).find(|n| self.world.state_of(id(*n)) == ServerState::Asleep) {
                    self.world.restart(n);
                }
            }
            3 | 4
                if self.world.state_of(id(n)) == ServerState::Awake
                    && (self.weak.contains(&n) || self.weak.len() < shape.awake_tolerance()) =>
            {
                self.weak.insert(n);
                self.world.crash(n);
                self.jobs.iter_mut().for_each(Job::forget);
                self.forget_reads();
            }
            5..9 => match (0..all).find(is_down) {
                Some(n) if n < data && self.random.chance(500) => {
                    self.world.replace(n);
                }
                Some(n) => self.world.restart(n),
                None => {}
            },
            9 if self.random.chance(100) => self.settle(),
            _ => {}
        }
    }

    /// Reads that a crash swallowed.
    fn forget_reads(&mut self) {
        self.check_reads();
        self.reads.clear();
    }

    /// All servers come back, and everything under way arrives: whatever was lost is whole again.
    fn settle(&mut self) {
        for n in 0..self.world.entry.shape.servers() {
            match self.world.state_of(id(n)) {
                ServerState::Failed | ServerState::Asleep => self.world.restart(n),
                ServerState::Draining => {
                    self.world.crash(n);
                    self.world.restart(n);
                }
                _ => {}
            }
        }
        self.world.ready.clear();
        for _ in 0..40 {
            self.world.run();
        }
        self.check_reads();
        for (n, own) in self.world.entry.columns.iter().enumerate() {
            if own.state != SlotState::InSync {
                broken("liveness", format!("column {n} stays {:?}", own.state));
            }
        }
        let holding = self.world.holding();
        if holding > 0 {
            broken("R19", format!("{holding} servers keep strips for others, who have everything"));
        }
        self.weak.clear();
    }
}

impl Subject for Schedule {
    const ONE_SEED: &'static str = "-p ebb-chunkserver --test all one_schedule";
    type Summary = ();

    fn step(&mut self) -> Result<bool, Violation> {
        self.step += 1;
        self.random = Random::new(mix(self.seed ^ mix(u64::from(self.step) << 32)));
        self.act();
        Ok(self.step < self.steps)
    }

    fn check(&mut self) -> Result<(), Violation> {
        self.settle();
        for _ in 0..50 {
            self.jobs.iter_mut().for_each(Job::forget);
            (0..self.jobs.len() * 4).for_each(|_| self.clients());
            self.world.run();
        }
        for row in std::mem::take(&mut self.written) {
            self.world.assert_reads(&row);
            self.world.assert_at_home(&row);
        }
        let missing = ClientReply::Failed { why: ChunkError::Missing };
        for chunk in std::mem::take(&mut self.deleted) {
            assert_eq!(self.world.read(chunk, 0, 4096).0, missing);
            for (column, own) in self.world.entry.columns.iter().enumerate() {
                let block =
                    self.world.nodes[&own.server].store.block(GroupId::of_column(SET, column), chunk, 0);
                assert_eq!(block, None, "column {column} of deleted {chunk}");
            }
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let (shape, steps) = (self.world.entry.shape, self.steps);
        format!("a set of {} servers, {} of them for data; {steps} steps", shape.servers(), shape.data())
    }

    fn sizes(&self) -> Vec<u32> {
        vec![self.steps]
    }

    fn faults(&self) -> u64 {
        self.faults.drawn()
    }

    fn transcript(&self) -> &Transcript {
        &self.world.transcript
    }
}

const STEPS: u32 = 12_000;

/// Builds schedules in worlds that are prepared so.
fn schedules(prepare: impl Fn(&mut World) + Copy) -> impl Fn(&Case, usize) -> Schedule + Copy {
    move |case: &Case, lines: usize| Schedule::new(case, prepare, lines)
}

#[test]
fn what_is_acknowledged_stays_readable_under_random_schedules() {
    search::sound(search::seeds(0, 40), |seed| search::run(seed, schedules(|_| ())));
}

#[test]
fn one_schedule() {
    search::one_seed(schedules(|_| ()));
}

/// The schedules find what is broken on purpose.
#[cfg(feature = "planted-bugs")]
#[test]
fn planted_bugs_are_found() {
    use ebb_chunkserver::PlantedBug;
    for bug in [PlantedBug::DropStripsEarly, PlantedBug::SkipColumnFence] {
        let plant = move |world: &mut World| {
            world.planted = Some(bug);
            for server in world.ids() {
                world.start(server, Default::default());
            }
        };
        let (name, rules) = (format!("{bug:?}"), ["coded", "liveness", "R19"]);
        let hunt = search::Hunt { name: &name, first: 0, near: 300, all: 300, rules: &rules };
        let sound = |seed| search::run(seed, schedules(|_| ()));
        search::is_found(&hunt, |seed| search::run(seed, schedules(plant)), sound);
    }
}
