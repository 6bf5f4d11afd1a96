//! A chunk server: the production protocol core over the production store, driven like the real server drives them
//! ([`drive`]).

mod drive;
mod own_sleep;
mod power;
mod timers;

use crate::engine::Clock;
use crate::world::happening::Happening;
use crate::world::net::Node;
use crate::world::settings::Settings;
use crate::world::store::Store;
use bytes::Bytes;
use ebb_chunkserver::shell::{About, Shell};
use ebb_chunkserver::{ClientToken, Config, Recovered, Replica, StoreCommand, StoreToken};
use ebb_store::Op;
use ebb_store::mem::MemDisk;
use ebb_types::{ClientRequest, Incarnation, Record, ScrubMark, ServerId, SleepOrder, StoreId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub struct Server {
    pub id: ServerId,
    pub clock: Clock,
    /// Counts runs of the process.
    pub life: u64,
    pub incarnation: Incarnation,
    /// The process runs (it may be paused nevertheless).
    pub up: bool,
    /// Paused by a fault.
    paused: bool,
    /// Paused, or off, by the power switch.
    asleep: bool,
    /// Gone for good.
    pub lost: bool,
    /// Gone until everything is repaired.
    pub missing: bool,
    pub shell: Shell,
    pub store: Store,
    /// A fault damaged data that the store needs: the operator empties the directory when it does not start.
    broken: bool,
    /// The store on record when the directory was emptied or an older copy was restored.
    pub forgot: Option<StoreId>,
    /// Disk operations take this many times as long.
    pub slowness: u64,
    /// Its disk answers nothing; what it was asked waits.
    hung: bool,
    /// Scrub marks that it keeps across a restart.
    scrubs: Vec<ScrubMark>,
    /// The operator keeps the disk full.
    soft_full: bool,
    /// When its power switch has finished its present actions.
    switch_free: u64,
    /// When its heartbeat is due, and which timers are not void.
    pub beat_at: u64,
    timers: u64,
    next_token: u64,
    process: Process,
}

/// What ends with a run of the process.
#[derive(Default)]
struct Process {
    /// It has suspended its own machine, and does not know yet that that is awake again.
    suspended: Option<SleepOrder>,
    /// What it was asked for and its disk does not do.
    stuck: Vec<Happening>,
    /// When its tick is due, if there is one.
    tick_at: Option<u64>,
    /// Suspended by a fault.
    frozen: Option<Timers>,
    tokens: BTreeMap<ClientToken, Asker>,
    /// Clients' reads, and their writes.
    intake: [Intake; 2],
    taking_in: bool,
    /// Events that arrived while the process was paused.
    stalled: Vec<Happening>,
    /// What other servers' connections have brought, unread: the store has too much to write.
    inbox: VecDeque<Happening>,
    /// The bytes of each write that the store has not completed.
    unwritten: BTreeMap<u64, usize>,
}

/// Who waits for an answer: client, number of its try and of its operation; and its share of which intake.
#[derive(Clone, Copy)]
struct Asker {
    client: u32,
    attempt: u64,
    op: usize,
    bytes: usize,
    kind: usize,
}

/// Client requests of one kind: those in flight, and those waiting in the sockets because there is no room for them.
#[derive(Default)]
pub struct Intake {
    bytes: usize,
    unread: VecDeque<(Asker, ClientRequest, Bytes)>,
}

/// What is left of a server's timers while it stands still.
#[derive(Clone, Copy)]
pub struct Timers {
    tick: Option<u64>,
    beat: u64,
}

impl Server {
    pub fn new(id: ServerId, clock: Clock, settings: &Settings) -> Server {
        let store = Store::new(id, settings.store.clone(), settings.chunk_blocks());
        Server {
            id,
            clock,
            life: 0,
            incarnation: Incarnation(0),
            up: false,
            paused: false,
            asleep: false,
            lost: false,
            missing: false,
            shell: stopped(id, clock, settings),
            store,
            broken: false,
            forgot: None,
            slowness: 1,
            hung: false,
            scrubs: Vec::new(),
            soft_full: false,
            switch_free: 0,
            beat_at: 0,
            timers: 0,
            next_token: 0,
            process: Process::default(),
        }
    }

    pub fn replica(&self) -> &Replica {
        self.shell.replica()
    }

    /// Gives the store something to write. Returns the number that identifies it.
    pub fn write(&mut self, token: StoreToken, op: Op, bytes: usize) -> u64 {
        let write = self.store.submit(token, op);
        self.process.unwritten.insert(write, bytes);
        write
    }

    fn unwritten_bytes(&self) -> usize {
        self.process.unwritten.values().sum()
    }

    /// Whether a message of another one lies unread here.
    pub fn has_unread(&self, peer: ServerId) -> bool {
        self.senders().any(|from| from == peer)
    }

    fn senders(&self) -> impl Iterator<Item = ServerId> {
        self.process.inbox.iter().filter_map(|what| match what {
            Happening::Deliver { from: Node::Server(peer), .. } => Some(*peer),
            _ => None,
        })
    }

    /// Until it is resumed.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    pub fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// Until its disk moves again.
    pub fn hang(&mut self) {
        self.hung = true;
    }

    pub fn is_hung(&self) -> bool {
        self.hung
    }

    pub fn fill_up(&mut self) {
        self.soft_full = true;
    }

    pub fn is_full(&self) -> bool {
        self.soft_full
    }

    /// There is room again. Returns whether there was none.
    pub fn make_room(&mut self) -> bool {
        std::mem::take(&mut self.soft_full)
    }

    /// A fault left it another directory. `forgot`: the store on record, if that is noticed.
    pub fn exchange_directory(&mut self, disk: MemDisk, forgot: Option<StoreId>) {
        (self.broken, self.forgot) = (true, forgot);
        self.store.replace(disk);
    }

    /// When its power switch has finished its present actions.
    pub fn switch_free(&self) -> u64 {
        self.switch_free
    }

    pub fn throw_switch(&mut self, until: u64) {
        self.switch_free = until;
    }

    /// Whether its process makes progress.
    pub fn runs(&self) -> bool {
        self.up && !self.paused && !self.asleep
    }

    /// Whether its disk has paused so often that it is called hung only after more than a lease.
    pub fn is_patient(&self, now: u64) -> bool {
        self.shell.is_patient(self.clock.at(now))
    }

    /// Whether nothing is in progress on it but repairs and catching up, which never end for what no server has.
    pub fn repairs_at_most(&self) -> bool {
        let stats = self.replica().stats();
        let busy = stats.in_flight > 0 || stats.unsettled > 0 || self.replica().owes_committed();
        !busy && self.store.is_idle() && self.process.inbox.is_empty()
    }

    /// Whether nothing is in progress on it except perhaps a scrub.
    pub fn is_idle(&self) -> bool {
        let stats = self.replica().stats();
        let busy = stats.in_flight > 0 || stats.catching_up > 0 || self.replica().is_at_work();
        !busy && self.store.is_idle() && self.process.inbox.is_empty()
    }
}

/// The shell of a process that does not run.
fn stopped(id: ServerId, clock: Clock, settings: &Settings) -> Shell {
    let about = About {
        me: id,
        incarnation: Incarnation(0),
        params: settings.params().clone(),
        heartbeat: Duration::ZERO,
        membership: Default::default(),
    };
    let config = Config::new(id, Incarnation(0), StoreId(0), 0, 0);
    Shell::new(clock.at(0), about, Replica::new(config, Recovered::default()))
}

/// The record and bytes of a writing command.
pub fn record_of(command: &StoreCommand) -> Option<(&Record, &Bytes)> {
    match command {
        StoreCommand::Apply { record, payload, .. } | StoreCommand::Repair { record, payload, .. } => {
            Some((record, payload))
        }
        _ => None,
    }
}
