//! A primary that is catching up may lose its source at any time and must then list what it misses from another. Until
//! it has, it orders and answers nothing from its own blocks: they may be old, and would undo acknowledged writes on
//! all targets.

use bytes::Bytes;
use ebb_chunkserver::{
    ClientToken, Command, Config, Event, Recovered, Replica, StoreCommand, StoreOutcome, StoreToken,
};
use ebb_types::{
    ChunkId, ChunkOp, ClientReply, ClientRequest, Epoch, GroupEntry, GroupId, Incarnation, Kind, ListPage,
    MapDelta, Moment, PeerMessage, Run, ServerId, ServerState, Slot, SlotState, StoreId, TailRun, Unready,
    Version,
};
use std::time::Duration;

const ME: ServerId = ServerId(1);
const OTHERS: [ServerId; 2] = [ServerId(2), ServerId(3)];
const GROUP: GroupId = GroupId(0);
const EPOCH: Epoch = Epoch(5);
const MISSED: Run = Run {
    chunk: ChunkId { object: ebb_types::ObjectId(0), index: 0 },
    first: 0,
    count: 1,
    version: Version { epoch: Epoch(4), seq: 1 },
    kind: Kind::Data,
};

struct Primary {
    replica: Replica,
    now: Moment,
    /// The server asked for a listing, and the token.
    asked: Option<(ServerId, u64)>,
    /// Runs to be compared with its own store.
    compared: Vec<(StoreToken, Vec<Run>)>,
    reads: usize,
    ordered: usize,
    fetched_from: Vec<ServerId>,
    replies: Vec<ClientReply>,
}

impl Primary {
    /// It misses a write that both others have; `open`: neither knows whether the write is on all targets.
    fn new(open: bool) -> Primary {
        let config = Config::new(ME, Incarnation(1), StoreId(1), 1 << 20, 1);
        let mut primary = Primary {
            replica: Replica::new(config, Recovered::default()),
            now: Moment(1),
            asked: None,
            compared: Vec::new(),
            reads: 0,
            ordered: 0,
            fetched_from: Vec::new(),
            replies: Vec::new(),
        };
        primary.on(Event::Lease { until: Moment(u64::MAX) });
        let slot = |server, state| Slot { server, state, holder: None };
        let mut slots = vec![slot(ME, SlotState::CatchingUp { since: Epoch(1) })];
        slots.extend(OTHERS.map(|server| slot(server, SlotState::InSync)));
        let entry = GroupEntry { epoch: EPOCH, primary: Some(ME), slots, ..GroupEntry::unknown() };
        let servers = [1, 2, 3].map(|id| crate::server(id, id as u8 - 1, ServerState::Awake)).to_vec();
        primary.on(Event::Map(MapDelta {
            from: 0,
            to: 1,
            servers,
            groups: vec![(GROUP, entry)],
            ..MapDelta::default()
        }));
        primary.list();
        for from in OTHERS {
            let tail = if open { vec![TailRun { run: MISSED, request: None }] } else { Vec::new() };
            let (done, forgotten) = (Vec::new(), Version::ZERO);
            let message = PeerMessage::FenceReply { group: GROUP, epoch: EPOCH, tail, done, forgotten };
            primary.hear(from, message);
        }
        primary
    }

    fn on(&mut self, event: Event) {
        let mut out = Vec::new();
        self.replica.on(self.now, event, &mut out);
        for command in out {
            match command {
                Command::Send { to, message: PeerMessage::List { token, .. }, .. } => {
                    self.asked = Some((to, token));
                }
                Command::Send { to, message: PeerMessage::Fetch { .. }, .. } => self.fetched_from.push(to),
                Command::Store { token, command: StoreCommand::Newer { runs, .. } } => {
                    self.compared.push((token, runs));
                }
                Command::Store { command: StoreCommand::Read { .. }, .. } => self.reads += 1,
                Command::Store { command: StoreCommand::Apply { .. }, .. } => self.ordered += 1,
                Command::Reply { reply, .. } => self.replies.push(reply),
                _ => {}
            }
        }
    }

    fn hear(&mut self, from: ServerId, message: PeerMessage) {
        self.on(Event::Peer { from, message, payload: Bytes::new() });
    }

    /// The source asked lists the missed write, and the own store does not have it. Returns the source.
    fn list(&mut self) -> ServerId {
        let (from, token) = self.asked.take().expect("a listing is asked for");
        let page = ListPage { runs: vec![MISSED], next: None };
        self.hear(from, PeerMessage::ListReply { group: GROUP, token, result: Ok(page) });
        self.compare();
        from
    }

    fn compare(&mut self) {
        for (token, runs) in std::mem::take(&mut self.compared) {
            self.on(Event::Stored { token, outcome: StoreOutcome::Newer(runs) });
        }
    }

    /// The servers' state changes, and the configuration does not.
    fn are(&mut self, servers: &[ServerId], state: ServerState) {
        let from = self.replica.map().version;
        let servers = servers.iter().map(|id| crate::server(id.0, id.0 as u8 - 1, state)).collect();
        let to = from + 1;
        self.on(Event::Map(MapDelta { from, to, servers, groups: Vec::new(), ..MapDelta::default() }));
    }

    fn read(&mut self) {
        let op = ChunkOp::Read { chunk: MISSED.chunk, offset: 0, len: 1, must_exist: false };
        let request =
            ClientRequest { group: GROUP, epoch: EPOCH, since: Version::first_of(EPOCH), claim: 0, op };
        self.on(Event::Client { token: ClientToken(1), request, payload: Bytes::new() });
    }

    /// The server fails, and the next configuration has not arrived yet.
    fn loses(&mut self, server: ServerId) {
        self.are(&[server], ServerState::Failed);
        self.tick();
    }

    fn tick(&mut self) {
        self.now = self.now + Duration::from_secs(1);
        self.on(Event::Tick);
    }
}

#[test]
fn a_settlement_waits_for_the_new_listing() {
    let mut primary = Primary::new(true);
    let source = primary.fetched_from[0];
    primary.loses(source);
    primary.compare();
    assert_eq!((primary.reads, primary.ordered), (0, 0), "it does not know what it misses");
    assert_ne!(primary.list(), source);
    primary.compare();
    assert_eq!((primary.reads, primary.ordered), (0, 0), "it misses the block");
    assert_ne!(primary.fetched_from.last(), Some(&source), "which it fetches from the other");
}

#[test]
fn a_read_waits_for_the_new_listing() {
    let mut primary = Primary::new(false);
    let source = primary.fetched_from[0];
    primary.loses(source);
    primary.read();
    assert_eq!(primary.reads, 0, "it does not know what it misses");
    primary.list();
    primary.on(Event::Tick);
    assert_eq!(primary.reads, 0, "it misses the block");
    assert_ne!(primary.fetched_from.last(), Some(&source), "which it fetches from the other");
}

/// Nothing is damaged: the only copies are on servers that cannot be asked now (seed 30263023807). Those of servers
/// that were declared lost are gone.
#[test]
fn what_is_missing_here_while_its_sources_are_away_is_not_answered_with_damage() {
    for state in [ServerState::Failed, ServerState::Asleep] {
        let mut primary = Primary::new(false);
        primary.are(&OTHERS, state);
        primary.read();
        let retry = ClientReply::Retry { why: Unready::Busy };
        assert_eq!((&primary.replies[..], primary.reads, primary.ordered), (&[retry][..], 0, 0), "{state:?}");
        let asked = primary.fetched_from.len();
        primary.are(&OTHERS, ServerState::Awake);
        (0..3).for_each(|_| primary.tick());
        assert!(primary.fetched_from.len() > asked, "{state:?}: it is fetched from those that came back");
    }
    let mut primary = Primary::new(false);
    primary.are(&OTHERS, ServerState::Lost);
    primary.read();
    assert_eq!(
        (primary.replies.len(), primary.ordered),
        (0, 1),
        "it is stored as lost before it is answered"
    );
}
