//! What a holder has for a server that wakes is fetched at the pace of reclaim; what makes up for a copy that is gone,
//! and what a server owes that is to sleep again, as fast as it can.

use crate::server;
use bytes::Bytes;
use ebb_chunkserver::{Command, Config, Event, Recovered, Replica, StoreCommand, StoreOutcome};
use ebb_types::{
    ChunkId, Epoch, GroupEntry, GroupId, Holder, Incarnation, Kind, ListPage, MapDelta, Moment, ObjectId,
    PeerMessage, Run, ServerId, ServerState, Slot, SlotState, StoreId, Version,
};
use std::time::Duration;

const ME: ServerId = ServerId(1);
const HOLDER: ServerId = ServerId(4);
const GROUP: GroupId = GroupId(0);
const RUNS: u32 = 40;
const WITHIN: Duration = Duration::from_secs(100);

struct Waking {
    replica: Replica,
    now: Moment,
    /// Fetches sent, none of which is answered.
    sent: usize,
}

impl Waking {
    /// It was away since epoch 1, and its holder has everything. `third`: the state of another member.
    fn new(third: ServerState) -> Waking {
        let mut config = Config::new(ME, Incarnation(1), StoreId(1), 1 << 20, 1);
        config.reclaim_within = WITHIN;
        let mut waking =
            Waking { replica: Replica::new(config, Recovered::default()), now: Moment(1), sent: 0 };
        waking.on(Event::Lease { until: Moment(u64::MAX) });
        let slot = |server, state, holder| Slot { server: ServerId(server), state, holder };
        let own = Some(Holder::new(HOLDER, true));
        let entry = GroupEntry {
            epoch: Epoch(2),
            primary: Some(ServerId(2)),
            slots: vec![
                slot(1, SlotState::CatchingUp { since: Epoch(1) }, own),
                slot(2, SlotState::InSync, None),
                slot(3, SlotState::InSync, None),
            ],
            ..GroupEntry::unknown()
        };
        let awake = [1, 2, 4].map(|id| server(id, id as u8 % 3, ServerState::Awake));
        let servers = awake.into_iter().chain([server(3, 0, third)]).collect();
        waking.adopt(0, servers, entry);
        waking
    }

    fn adopt(&mut self, from: u64, servers: Vec<ebb_types::ServerEntry>, entry: GroupEntry) {
        let groups = vec![(GROUP, entry)];
        let out =
            self.on(Event::Map(MapDelta { from, to: from + 1, servers, groups, ..MapDelta::default() }));
        let asked = out.iter().find_map(|c| match c {
            Command::Send { to: HOLDER, message: PeerMessage::List { token, .. }, .. } => Some(*token),
            _ => None,
        });
        let page = ListPage { runs: runs(), next: None };
        let message = PeerMessage::ListReply {
            group: GROUP,
            token: asked.expect("it asks its holder"),
            result: Ok(page),
        };
        let out = self.on(Event::Peer { from: HOLDER, message, payload: Bytes::new() });
        let compared = out.iter().find_map(|c| match c {
            Command::Store { token, command: StoreCommand::Newer { .. } } => Some(*token),
            _ => None,
        });
        let token = compared.expect("it compares with its own store");
        self.on(Event::Stored { token, outcome: StoreOutcome::Newer(runs()) });
    }

    fn on(&mut self, event: Event) -> Vec<Command> {
        let mut out = Vec::new();
        self.replica.on(self.now, event, &mut out);
        let is_fetch = |c: &&Command| matches!(c, Command::Send { message: PeerMessage::Fetch { .. }, .. });
        self.sent += out.iter().filter(is_fetch).count();
        out
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.now = self.now + Duration::from_millis(100);
            self.on(Event::Tick);
        }
    }
}

fn runs() -> Vec<Run> {
    let run = |index| Run {
        chunk: ChunkId { object: ObjectId(1), index },
        first: 0,
        count: 256,
        version: Version { epoch: Epoch(1), seq: 1 },
        kind: Kind::Data,
    };
    (0..RUNS).map(run).collect()
}

#[test]
fn reclaim_takes_the_time_that_it_is_given() {
    let mut waking = Waking::new(ServerState::Awake);
    assert_eq!(waking.sent, 0, "its pace is not known before a tick");
    waking.pass(Duration::from_secs(1));
    assert_eq!(waking.sent, 1);
    waking.pass(Duration::from_secs(10));
    assert!((4..=6).contains(&waking.sent), "{} of {RUNS} in 11 of 100 s", waking.sent);
}

#[test]
fn what_makes_up_for_a_lost_copy_is_not_paced() {
    let mut waking = Waking::new(ServerState::Lost);
    waking.pass(Duration::from_millis(100));
    assert!(waking.sent >= 8, "{}: as many as may be in flight", waking.sent);
}
