//! The servers of one set, a network that reorders and loses when it is to, a metadata service that does as the test
//! says, and a client that codes.

use super::store::Store;
use bytes::Bytes;
use ebb_chunkserver::{
    ClientToken, Command, Config, Event, KeptBlock, Recovered, Replica, StoreCommand, StoreToken,
};
use ebb_erasure::Codes;
use ebb_testing::search::Transcript;
use ebb_types::{
    ChunkId, ChunkOp, ClientReply, ClientRequest, Column, Epoch, GroupId, Incarnation, MapDelta, Moment,
    ObjectId, ParityDebt, PeerMessage, PoolEntry, PoolId, Random, RequestId, Role, STRIP_BLOCKS, ServerEntry,
    ServerId, ServerReport, ServerState, SetEntry, SetId, Shape, SlotState, StoreId, Version, block_crcs,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

pub const SET: SetId = SetId(0);
pub const POOL: PoolId = PoolId(1);

pub struct Node {
    pub replica: Option<Replica>,
    pub store: Store,
    incarnation: u64,
    orders: Vec<(StoreToken, StoreCommand)>,
    maps: VecDeque<MapDelta>,
}

pub struct Letter {
    pub from: ServerId,
    pub to: ServerId,
    pub message: PeerMessage,
    payload: Bytes,
}

/// A write of one chunk: all blocks of all strips.
#[derive(Clone)]
pub struct Row {
    pub chunk: ChunkId,
    pub strips: Vec<Bytes>,
}

pub struct World {
    pub nodes: BTreeMap<ServerId, Node>,
    pub entry: SetEntry,
    pub net: Vec<Letter>,
    pub replies: BTreeMap<u64, (ClientReply, Bytes)>,
    pub reports: Vec<(ServerId, ServerReport)>,
    /// Of servers that start from now on.
    pub deletions: usize,
    pub ready: BTreeSet<ServerId>,
    pub now: u64,
    pub transcript: Transcript,
    pub codes: Codes,
    servers: BTreeMap<ServerId, ServerEntry>,
    version: u64,
    tokens: u64,
    /// The store of this server carries out nothing.
    pub slow: Option<ServerId>,
    /// The metadata service makes a column in sync when its server says so.
    pub follows: bool,
    /// Bytes of memory for the strips of sleeping parity servers, if they are kept there.
    memory: Option<u64>,
    /// The pool's limit for rebuilds.
    pub rebuild_bytes_per_second: Option<u64>,
    #[cfg(feature = "planted-bugs")]
    pub planted: Option<ebb_chunkserver::PlantedBug>,
}

pub fn chunk(n: u64) -> ChunkId {
    ChunkId { object: ObjectId(n).in_pool(POOL), index: 0 }
}

pub fn id(n: usize) -> ServerId {
    ServerId(n as u16)
}

impl World {
    pub fn new(k: u8, r: u8) -> World {
        World::with_memory(k, r, None)
    }

    pub fn with_memory(k: u8, r: u8, memory: Option<u64>) -> World {
        let shape = Shape::new(k, r).unwrap();
        let columns = (0..shape.servers()).map(|n| Column { server: id(n), state: SlotState::InSync });
        let entry = SetEntry {
            pool: POOL,
            shape,
            epoch: Epoch(1),
            hibernates_since: None,
            columns: columns.collect(),
        };
        let mut world = World {
            nodes: BTreeMap::new(),
            entry,
            net: Vec::new(),
            replies: BTreeMap::new(),
            reports: Vec::new(),
            deletions: usize::MAX,
            ready: BTreeSet::new(),
            now: 1,
            transcript: Transcript::default(),
            codes: Codes::new(shape),
            servers: BTreeMap::new(),
            version: 1,
            tokens: 0,
            slow: None,
            follows: true,
            memory,
            rebuild_bytes_per_second: None,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        };
        for n in 0..shape.servers() {
            world.start(id(n), Store::default());
        }
        world
    }

    pub fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now as f64 / 1e9;
        self.transcript.note(|| format!("{now:8.1} {}", line()));
    }

    /// Starts a server with what its store has.
    pub fn start(&mut self, server: ServerId, store: Store) {
        self.note(|| format!("{server} starts"));
        let incarnation = self.nodes.get(&server).map_or(1, |node| node.incarnation + 1);
        let config = self.config(server, incarnation);
        let recovered = Recovered { roles: store.roles.iter().copied().collect(), ..Recovered::default() };
        let replica = Some(Replica::new(config, recovered));
        let node = Node { replica, store, incarnation, orders: Vec::new(), maps: VecDeque::new() };
        self.nodes.insert(server, node);
        self.servers.insert(server, self.server(server, ServerState::Awake));
        self.tell_all();
        self.on(server, Event::Lease { until: Moment(u64::MAX) });
    }

    fn config(&self, server: ServerId, incarnation: u64) -> Config {
        let mut config = Config::new(server, Incarnation(incarnation), StoreId(1), 1 << 20, 1);
        config.deletions = self.deletions;
        #[cfg(feature = "planted-bugs")]
        {
            config.planted = self.planted;
        }
        config
    }

    fn server(&self, server: ServerId, state: ServerState) -> ServerEntry {
        let incarnation = Incarnation(self.nodes[&server].incarnation);
        ServerEntry { incarnation, ..crate::server(server.0, 0, state) }
    }

    /// The whole map goes to all.
    fn tell_all(&mut self) {
        self.version += 1;
        let pool = PoolEntry {
            id: POOL,
            name: "archive".to_owned(),
            shape: self.entry.shape,
            parity_debt: if self.memory.is_some() { ParityDebt::Ram } else { ParityDebt::Segment },
            parity_buffer_bytes: self.memory.unwrap_or(1 << 30),
            hibernate_after_millis: None,
            rebuild_bytes_per_second: self.rebuild_bytes_per_second,
            awake_parity: 0,
            sets: vec![SET],
        };
        let delta = MapDelta {
            from: 0,
            to: self.version,
            servers: self.servers.values().cloned().collect(),
            groups: Vec::new(),
            pools: vec![pool],
            sets: vec![(SET, self.entry.clone())],
        };
        self.nodes
            .values_mut()
            .filter(|node| node.replica.is_some())
            .for_each(|n| n.maps.push_back(delta.clone()));
    }

    /// A new epoch.
    pub fn configure(&mut self, states: &[(usize, SlotState)]) {
        for (column, state) in states {
            self.entry.columns[*column].state = *state;
        }
        self.entry.epoch = self.entry.epoch.next();
        let epoch = self.entry.epoch;
        self.note(|| format!("{epoch} begins: {states:?}"));
        self.tell_all();
    }

    fn since(&self, column: usize) -> Epoch {
        self.entry.missing_since(column).unwrap_or(self.entry.epoch.next())
    }

    pub fn set_server(&mut self, server: ServerId, state: ServerState) {
        let entry = self.server(server, state);
        self.servers.insert(server, entry);
        self.tell_all();
    }

    pub fn state_of(&self, server: ServerId) -> ServerState {
        self.servers[&server].state
    }

    /// Its process ends; what its store had not made durable is gone, and so are its connections.
    pub fn crash(&mut self, n: usize) {
        self.stop(id(n));
        self.servers.insert(id(n), self.server(id(n), ServerState::Failed));
        let since = self.since(n);
        self.configure(&[(n, SlotState::Away { since })]);
    }

    fn stop(&mut self, server: ServerId) {
        self.note(|| format!("{server} stops"));
        let node = self.nodes.get_mut(&server).unwrap();
        node.replica = None;
        node.orders.clear();
        node.maps.clear();
        self.net.retain(|letter| letter.to != server && letter.from != server);
        for other in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.on(other, Event::PeerLost { peer: server });
        }
    }

    pub fn restart(&mut self, n: usize) {
        let store = self.nodes[&id(n)].store.clone();
        let since = self.since(n);
        self.start(id(n), store);
        self.configure(&[(n, SlotState::CatchingUp { since })]);
    }

    /// It comes back with nothing.
    pub fn replace(&mut self, n: usize) {
        self.start(id(n), Store::default());
        self.configure(&[(n, SlotState::CatchingUp { since: Epoch(0) })]);
    }

    pub fn drain(&mut self, n: usize) {
        let since = self.since(n);
        self.servers.insert(id(n), self.server(id(n), ServerState::Draining));
        self.configure(&[(n, SlotState::Away { since })]);
    }

    /// Those that said that they are ready fall asleep.
    pub fn let_sleep(&mut self) {
        for server in std::mem::take(&mut self.ready) {
            if self.state_of(server) == ServerState::Draining {
                self.stop(server);
                self.set_server(server, ServerState::Asleep);
            }
        }
    }

    pub fn sleep(&mut self, columns: &[usize]) {
        columns.iter().for_each(|n| self.drain(*n));
        self.run();
        columns.iter().for_each(|n| self.on(id(*n), Event::Drain));
        self.run();
        assert_eq!(self.ready.len(), columns.len(), "ready to sleep");
        self.let_sleep();
        self.run();
    }

    pub fn on(&mut self, server: ServerId, event: Event) {
        let node = self.nodes.get_mut(&server).unwrap();
        let Some(replica) = &mut node.replica else { return };
        let mut out = Vec::new();
        replica.on(Moment(self.now), event, &mut out);
        for command in out {
            self.carry_out(server, command);
        }
    }

    fn carry_out(&mut self, server: ServerId, command: Command) {
        let node = self.nodes.get_mut(&server).unwrap();
        match command {
            Command::Send { to, message, payload } => {
                if self.nodes[&to].replica.is_some() {
                    self.net.push(Letter { from: server, to, message, payload });
                } else {
                    self.on(server, Event::PeerLost { peer: to });
                }
            }
            Command::Reply { token, reply, payload } => {
                self.note(|| match payload.len() {
                    0 => format!("{server} answers request {}: {reply:?}", token.0),
                    bytes => format!("{server} answers request {}: {bytes} bytes", token.0),
                });
                self.replies.insert(token.0, (reply, payload));
            }
            Command::Report(report) => self.report(server, report),
            Command::Store { token, command } => node.orders.push((token, command)),
            Command::Drop { group, role } => node.store.drop_all(role, group),
            Command::ReadyToSleep { .. } => drop(self.ready.insert(server)),
            Command::MapGap | Command::OldMetadata { .. } | Command::Bug { .. } => panic!("{command:?}"),
            Command::ForgetTombstones { group, up_to } => node.store.forget(group, up_to),
            Command::KeepScrubs { .. } => {}
        }
    }

    fn report(&mut self, server: ServerId, report: ServerReport) {
        if let ServerReport::CaughtUp { group, epoch } = report
            && self.follows
            && epoch == self.entry.epoch
        {
            let (_, column) = group.column().unwrap();
            assert_eq!(self.entry.columns[column].server, server);
            self.configure(&[(column, SlotState::InSync)]);
        }
        self.note(|| format!("{server} reports {report:?}"));
        self.reports.push((server, report));
    }

    pub fn deliver(&mut self, nth: usize) {
        let Letter { from, to, message, payload } = self.net.swap_remove(nth);
        self.note(|| format!("{to} <- {from}: {message:?}"));
        self.on(to, Event::Peer { from, message, payload });
    }

    pub fn lose(&mut self, nth: usize) {
        let Letter { from, to, .. } = self.net.swap_remove(nth);
        self.note(|| format!("the connection of {from} and {to} breaks"));
        self.on(from, Event::PeerLost { peer: to });
        self.on(to, Event::PeerLost { peer: from });
    }

    pub fn works(&self) -> Vec<ServerId> {
        let works = |(server, node): (&ServerId, &Node)| {
            (!node.orders.is_empty() && self.slow != Some(*server)).then_some(*server)
        };
        self.nodes.iter().filter_map(works).collect()
    }

    /// The store carries out one of its commands; they are in no order.
    pub fn work(&mut self, server: ServerId, nth: usize) {
        let node = self.nodes.get_mut(&server).unwrap();
        let nth = nth % node.orders.len();
        let (token, command) = node.orders.remove(nth);
        let outcome = node.store.carry_out(command);
        self.on(server, Event::Stored { token, outcome });
    }

    /// Everything arrives, and the server's store carries out all but what it was given first.
    pub fn overtake(&mut self, server: ServerId) {
        for _ in 0..20 {
            self.flow();
            while self.nodes[&server].orders.len() > 1 {
                let last = self.nodes[&server].orders.len() - 1;
                self.work(server, last);
            }
            self.tick();
        }
    }

    pub fn next_map(&mut self, server: ServerId) -> bool {
        let Some(delta) = self.nodes.get_mut(&server).unwrap().maps.pop_front() else { return false };
        self.on(server, Event::Map(delta));
        true
    }

    pub fn ids(&self) -> Vec<ServerId> {
        self.nodes.keys().copied().collect()
    }

    pub fn tick(&mut self) {
        self.now += 100_000_000;
        for server in self.ids() {
            if self.nodes[&server].replica.as_ref().is_some_and(|replica| replica.wants_ticks()) {
                self.on(server, Event::Tick);
            }
        }
    }

    /// Everything that is under way arrives, in order.
    pub fn run(&mut self) {
        for ticks in 0..2000 {
            self.flow();
            if ticks > 20 && !self.ids().iter().any(|n| self.is_busy(*n)) {
                return;
            }
            self.tick();
        }
    }

    fn is_busy(&self, server: ServerId) -> bool {
        let replica = self.nodes[&server].replica.as_ref();
        replica.is_some_and(|replica| replica.stats().catching_up > 0 || replica.stats().in_flight > 0)
    }

    pub fn flow(&mut self) {
        loop {
            let mut moved = false;
            for server in self.ids() {
                moved |= self.next_map(server);
            }
            if !self.net.is_empty() {
                self.deliver(0);
                moved = true;
            }
            for server in self.works() {
                self.work(server, 0);
                moved = true;
            }
            if !moved {
                return;
            }
        }
    }

    pub fn request(&mut self, to: ServerId, column: usize, epoch: Epoch, op: ChunkOp, payload: Bytes) -> u64 {
        self.tokens += 1;
        let token = ClientToken(self.tokens);
        let what = match op {
            ChunkOp::Read { .. } => "read",
            ChunkOp::Delete { .. } => "delete",
            _ => "write",
        };
        let chunk = op.chunk();
        self.note(|| format!("request {} to {to}: {what} column {column} of {chunk} in {epoch}", token.0));
        let group = GroupId::of_column(SET, column);
        let request = ClientRequest { group, epoch, since: Version::ZERO, claim: 0, op };
        self.on(to, Event::Client { token, request, payload });
        self.tokens
    }

    /// All strips of some rows with random content.
    pub fn row(&self, n: u64, blocks: u32, random: &mut Random) -> Row {
        let (chunk, k) = (chunk(n), self.entry.shape.data());
        let len = (blocks * 4096) as usize;
        let mut data: Vec<Vec<u8>> =
            (0..k).map(|_| (0..len).map(|_| random.next() as u8).collect()).collect();
        if random.chance(300) {
            data[k - 1].fill(0);
        }
        let code = self.codes.of(self.entry.turn(chunk));
        let mut further = vec![vec![0; len]; code.strips() - k];
        let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        code.encode(&sources, &mut further.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        Row { chunk, strips: data.into_iter().chain(further).map(Bytes::from).collect() }
    }

    pub fn send_strip(&mut self, row: &Row, column: usize, to: ServerId, epoch: Epoch) -> u64 {
        let (chunk, payload) = (row.chunk, row.strips[column].clone());
        let (len, crcs) = (payload.len() as u32, block_crcs(&payload));
        let request = RequestId { client: 1, seq: self.tokens };
        let zero = payload.iter().all(|byte| *byte == 0);
        match zero {
            true => {
                let op = ChunkOp::Zero { chunk, offset: 0, len, up_to: None, request };
                self.request(to, column, epoch, op, Bytes::new())
            }
            false => {
                let op = ChunkOp::Write { chunk, offset: 0, len, request, crcs };
                self.request(to, column, epoch, op, payload)
            }
        }
    }

    /// Writes a row under the present epoch; everything else stands still but what is under way. Returns whether all
    /// strips are durable.
    pub fn write(&mut self, row: &Row) -> bool {
        let targets = self.entry.targets(row.chunk);
        let epoch = self.entry.epoch;
        let asked: Vec<u64> = (0..targets.len())
            .filter_map(|column| targets[column].map(|to| (column, to)))
            .map(|(column, to)| self.send_strip(row, column, to, epoch))
            .collect();
        self.flow();
        asked.iter().all(|token| self.is_done(*token, epoch))
    }

    pub fn is_done(&self, token: u64, epoch: Epoch) -> bool {
        let reply = self.replies.get(&token).map(|(reply, _)| reply.clone());
        matches!(reply, Some(ClientReply::Done { newest }) if newest.epoch == epoch)
    }

    pub fn delete(&mut self, chunk: ChunkId) -> bool {
        let (targets, epoch) = (self.entry.targets(chunk), self.entry.epoch);
        let request = RequestId { client: 1, seq: self.tokens };
        let asked: Vec<u64> = (0..targets.len())
            .filter_map(|column| targets[column].map(|to| (column, to)))
            .map(|(column, to)| {
                self.request(to, column, epoch, ChunkOp::Delete { chunk, request }, Bytes::new())
            })
            .collect();
        self.flow();
        asked.iter().all(|token| self.is_done(*token, epoch))
    }

    pub fn ask(&mut self, chunk: ChunkId, column: usize, len: u32) -> Option<u64> {
        let to = self.entry.targets(chunk)[column]?;
        let op = ChunkOp::Read { chunk, offset: 0, len, must_exist: true };
        Some(self.request(to, column, self.entry.epoch, op, Bytes::new()))
    }

    pub fn read(&mut self, chunk: ChunkId, column: usize, len: usize) -> (ClientReply, Bytes) {
        let token = self.ask(chunk, column, len as u32).expect("there is a target");
        self.run();
        self.replies[&token].clone()
    }

    /// Reads all data strips.
    pub fn assert_reads(&mut self, row: &Row) {
        for column in 0..self.entry.shape.data() {
            let wanted = row.strips[column].clone();
            let (reply, bytes) = self.read(row.chunk, column, wanted.len());
            assert_eq!(
                reply,
                ClientReply::Data { crcs: block_crcs(&wanted) },
                "column {column} of {}",
                row.chunk
            );
            assert!(bytes == wanted, "column {column} of {}", row.chunk);
        }
    }

    /// Every server has its own strip, and it is right.
    pub fn assert_at_home(&self, row: &Row) {
        for (column, own) in self.entry.columns.iter().enumerate() {
            self.assert_has(row, column, own.server);
        }
    }

    pub fn assert_has(&self, row: &Row, column: usize, server: ServerId) {
        for (nth, wanted) in row.strips[column].chunks(4096).enumerate() {
            let nth = nth as u32;
            let kept = || self.in_memory(server, column).find(|b| (b.chunk, b.block) == (row.chunk, nth));
            let in_memory = || kept().map(|block| block.data.unwrap_or(Bytes::from_static(&[0; 4096])));
            let on_disk = self.nodes[&server].store.block(GroupId::of_column(SET, column), row.chunk, nth);
            assert!(
                on_disk.or_else(in_memory).as_deref() == Some(wanted),
                "block {nth} of column {column} of {} on {server}",
                row.chunk
            );
        }
    }

    /// The servers that have blocks of a chunk in a column.
    pub fn holders(&self, column: usize, chunk: ChunkId) -> Vec<ServerId> {
        let group = GroupId::of_column(SET, column);
        let has = |node: &Node| (0..BLOCKS).any(|block| node.store.block(group, chunk, block).is_some());
        self.nodes.iter().filter(|(_, node)| has(node)).map(|(server, _)| *server).collect()
    }

    /// What a server keeps of a column for another, in memory.
    pub fn in_memory(&self, server: ServerId, column: usize) -> impl Iterator<Item = KeptBlock> {
        let last = self.entry.columns.len() - 1;
        let stands_for = self.entry.columns[column.min(last)].server;
        let replica = self.nodes[&server].replica.as_ref();
        let group = GroupId::of_column(SET, column);
        replica
            .into_iter()
            .flat_map(move |replica| replica.kept_in_memory(group, Role::Offload { stands_for }))
    }

    /// The servers that keep strips for others.
    pub fn holding(&self) -> usize {
        let in_memory =
            |node: &Node| node.replica.as_ref().is_some_and(|replica| replica.stats().memory_bytes > 0);
        let on_disk = |node: &Node| node.store.roles.iter().any(|(_, role)| *role != Role::Replica);
        let keeps = |node: &&Node| in_memory(node) || on_disk(node);
        self.nodes.values().filter(keeps).count()
    }
}

pub const BLOCKS: u32 = 2 * STRIP_BLOCKS + 1;
