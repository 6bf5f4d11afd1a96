//! The shell around the core: when a server says that its machine may sleep, what it keeps of the metadata, and how it
//! notices that its store hangs.

use ebb_chunkserver::shell::{About, Command, EDGE_TOKENS, Ended, Event, Facts, News, OWN_TOKENS, Shell};
use ebb_chunkserver::{Config, Moves, Recovered, Replica, StoreToken};
use ebb_types::{
    Bytes, ClusterParams, Depth, GroupEntry, GroupId, Incarnation, MapDelta, Membership, MetaPush, Moment,
    Refusal, ServerId, ServerMessage, ServerState, SleepOrder, StoreFigures, StoreId, StoreOutcome,
    StoreTask,
};
use std::time::Duration;

const ME: ServerId = ServerId(1);
const RUN: Incarnation = Incarnation(1);
const INSTANCE: u64 = 77;
const LEASE: Duration = Duration::from_secs(2);

fn params() -> ClusterParams {
    ClusterParams {
        cluster: 7,
        instance: INSTANCE,
        chunk_bytes: 1 << 20,
        replicas: 3,
        groups: 1,
        lease_millis: LEASE.as_millis() as u32,
    }
}

struct Server {
    shell: Shell,
    now: Moment,
    figures: StoreFigures,
    moves: Moves,
}

impl Server {
    /// It has never served.
    fn new() -> Server {
        let params = ClusterParams { instance: 0, ..params() };
        let (heartbeat, membership) = (Duration::from_millis(500), Membership::default());
        let about = About { me: ME, incarnation: RUN, params, heartbeat, membership };
        let config = Config::new(ME, RUN, StoreId(1), 1 << 20, 1);
        let replica = Replica::new(config, Recovered::default());
        let figures = StoreFigures { capacity: Bytes(1000), ..StoreFigures::default() };
        let moves = Moves { busy: false, count: 0, short: false };
        let now = Moment(1_000_000_000_000);
        Server { shell: Shell::new(now, about, replica), now, figures, moves }
    }

    /// In a cluster, and drained.
    fn drained() -> Server {
        let mut server = Server::new();
        server.push(MetaPush::Params(params()));
        server.map(1, ServerState::Draining);
        server
    }

    fn on(&mut self, event: Event) -> Vec<Command> {
        let mut out = Vec::new();
        self.shell.on(self.now, event, &mut out);
        out
    }

    fn push(&mut self, push: MetaPush) -> Vec<Command> {
        self.on(Event::Push(push))
    }

    fn map(&mut self, to: u64, state: ServerState) -> Vec<Command> {
        let servers = vec![crate::server(ME.0, 0, state)];
        let groups = vec![(GroupId(0), GroupEntry::unknown())];
        self.push(MetaPush::Map(MapDelta { from: to - 1, to, servers, groups, ..MapDelta::default() }))
    }

    fn beat(&mut self) -> Vec<Command> {
        self.now = self.now + Duration::from_millis(500);
        let (store, moves) = (self.figures, self.moves);
        self.on(Event::Beat(Facts { unix_seconds: 1, store, queued: 0, moves }))
    }

    fn end(&mut self, token: StoreToken, outcome: StoreOutcome) -> Vec<Command> {
        self.on(Event::Stored { token, outcome })
    }

    fn order(&self) -> SleepOrder {
        SleepOrder { incarnation: RUN, map_version: 1, depth: Depth::Standby, heard: self.now }
    }
}

fn flush(commands: &[Command]) -> Option<StoreToken> {
    commands.iter().find_map(|command| match command {
        Command::Task { token, task: StoreTask::Flush } => Some(*token),
        _ => None,
    })
}

fn remembers(commands: &[Command]) -> Option<(StoreToken, Membership)> {
    commands.iter().find_map(|command| match command {
        Command::Task { token, task: StoreTask::Remember(membership) } => Some((*token, *membership)),
        _ => None,
    })
}

/// By which map it says that it is ready to sleep.
fn ready(commands: &[Command]) -> Option<u64> {
    commands.iter().find_map(|command| match command {
        Command::Tell(ServerMessage::ReadyToSleep { map_version, .. }) => Some(*map_version),
        _ => None,
    })
}

fn says(commands: &[Command]) -> Vec<News> {
    let news = |command: &Command| if let Command::Say(news) = command { Some(news.clone()) } else { None };
    commands.iter().filter_map(news).collect()
}

#[test]
fn it_is_ready_to_sleep_when_a_flush_has_ended_and_says_so_until_it_is_heard() {
    let mut server = Server::drained();
    let said = server.push(MetaPush::Drain);
    assert_eq!(ready(&said), None);
    let token = flush(&said).expect("a flush");
    assert!((OWN_TOKENS..EDGE_TOKENS).contains(&token.0));
    assert_eq!(ready(&server.beat()), None, "it has not ended");
    assert_eq!(ready(&server.end(token, StoreOutcome::Applied)), Some(1));
    assert_eq!((ready(&server.beat()), ready(&server.beat())), (Some(1), Some(1)));
    server.map(2, ServerState::Awake);
    assert_eq!(ready(&server.beat()), None, "it is needed again");
}

#[test]
fn a_flush_that_failed_or_was_overtaken_makes_no_server_ready() {
    let mut server = Server::drained();
    let failed = flush(&server.push(MetaPush::Drain)).expect("a flush");
    assert_eq!(ready(&server.end(failed, StoreOutcome::Failed(Refusal::NotReady))), None);
    assert_eq!(ready(&server.beat()), None);
    let order = server.order();
    assert!(server.on(Event::Order(order)).is_empty(), "its disk lacks something");
    let overtaken = flush(&server.push(MetaPush::Drain)).expect("the drain is repeated");
    server.map(2, ServerState::Awake);
    server.map(3, ServerState::Draining);
    assert_eq!(ready(&server.end(overtaken, StoreOutcome::Applied)), None, "it took writes meanwhile");
    let last = flush(&server.push(MetaPush::Drain)).expect("a flush");
    assert_eq!(ready(&server.end(last, StoreOutcome::Applied)), Some(3));
}

#[test]
fn a_machine_sleeps_by_an_order_that_is_true_when_it_comes_and_when_the_machine_is_known_to_be_able() {
    let mut server = Server::drained();
    let order = server.order();
    assert!(server.on(Event::Order(order)).is_empty(), "it is not ready");
    let token = flush(&server.push(MetaPush::Drain)).expect("a flush");
    server.end(token, StoreOutcome::Applied);
    for wrong in [
        SleepOrder { incarnation: Incarnation(9), ..order },
        SleepOrder { map_version: 0, ..order },
        SleepOrder { heard: Moment(order.heard.0 - 3_000_000_000), ..order },
    ] {
        assert!(server.on(Event::Order(wrong)).is_empty(), "{wrong:?}");
    }
    let asked = server.on(Event::Order(order));
    assert!(matches!(asked[..], [Command::Check(_)]), "{asked:?}");
    assert!(server.on(Event::Order(order)).is_empty(), "one at a time");
    // Meanwhile it is needed.
    server.map(2, ServerState::Awake);
    assert!(server.on(Event::Checked { order, outcome: Ok(()) }).is_empty());
    server.map(3, ServerState::Draining);
    let token = flush(&server.push(MetaPush::Drain)).expect("a flush");
    server.end(token, StoreOutcome::Applied);
    let order = SleepOrder { map_version: 3, ..server.order() };
    server.on(Event::Order(order));
    let said = server.on(Event::Checked { order, outcome: Err("no card".into()) });
    assert!(matches!(said[..], [Command::Say(News::StaysAwake(_)), Command::Refuse(_)]), "{said:?}");
    server.on(Event::Order(order));
    let said = server.on(Event::Checked { order, outcome: Ok(()) });
    assert!(matches!(said[..], [Command::Suspend(_)]), "{said:?}");
    assert!(server.on(Event::Suspended { order, outcome: Ok(()) }).is_empty());
    let off = SleepOrder { depth: Depth::Off, ..order };
    server.on(Event::Order(off));
    let said = server.on(Event::Checked { order: off, outcome: Ok(()) });
    assert!(matches!(said[..], [Command::End(Ended::PowerOff)]), "{said:?}");
}

#[test]
fn the_map_that_it_serves_under_is_kept_with_a_heartbeat_one_write_at_a_time() {
    let mut server = Server::drained();
    assert_eq!(remembers(&server.map(2, ServerState::Awake)), None, "not with each map");
    let (token, kept) = remembers(&server.beat()).expect("a newer map");
    assert_eq!(kept, Membership { instance: INSTANCE, map_version: 2 });
    server.map(3, ServerState::Awake);
    assert_eq!(remembers(&server.beat()), None, "the first has not ended");
    let failed = || StoreOutcome::Failed(Refusal::NoSpace);
    assert_eq!(says(&server.end(token, failed())), [News::Forgets(Refusal::NoSpace)]);
    let (token, kept) = remembers(&server.beat()).expect("a newer map");
    assert_eq!(kept.map_version, 3);
    assert_eq!(says(&server.end(token, failed())), [], "once is enough");
}

#[test]
fn a_store_belongs_to_one_founding_of_the_cluster() {
    let mut server = Server::drained();
    let other = ClusterParams { instance: 78, ..params() };
    let said = server.push(MetaPush::Params(other));
    assert!(matches!(&said[..], [Command::End(Ended::Rejected { why })] if why.contains("created again")));
    assert!(server.push(MetaPush::Params(params())).is_empty(), "it obeys no more");
    let mut server = Server::new();
    let said = server.push(MetaPush::Params(ClusterParams { replicas: 2, ..params() }));
    assert!(matches!(&said[..], [Command::End(Ended::Rejected { why })] if why.contains("other parameters")));
}

#[test]
fn a_store_that_hangs_takes_part_again_when_a_flush_has_ended() {
    let mut server = Server::drained();
    server.moves = Moves { busy: true, count: 5, short: false };
    let said = (0..20).map(|_| server.beat()).find(|said| !says(said).is_empty()).expect("it is noticed");
    assert!(matches!(says(&said)[..], [News::Hangs(still, None)] if still > LEASE), "{said:?}");
    let stalled = |commands: &[Command]| {
        commands.iter().any(|command| match command {
            Command::Tell(ServerMessage::Heartbeat { vitals, .. }) => vitals.stalled,
            _ => false,
        })
    };
    let token = flush(&said).expect("a flush");
    assert!(stalled(&said) && stalled(&server.beat()));
    assert_eq!(says(&server.end(token, StoreOutcome::Applied)), [News::Moves]);
    server.moves.count += 1;
    assert!(!stalled(&server.beat()));
}

#[test]
fn a_full_store_is_reported_once_and_an_exam_is_answered_after_a_flush() {
    let mut server = Server::drained();
    server.figures.used = Bytes(960);
    assert_eq!(says(&server.beat()), [News::Full(Bytes(960), Bytes(1000))]);
    assert_eq!(says(&server.beat()), []);
    let token = flush(&server.push(MetaPush::Exam)).expect("a flush");
    assert_eq!(flush(&server.push(MetaPush::Exam)), None, "it is repeated until answered");
    let said = server.end(token, StoreOutcome::Failed(Refusal::Poisoned));
    assert!(matches!(said[..], [Command::Exam { writable: false }]), "{said:?}");
}

#[test]
fn after_its_last_flush_a_server_says_nothing_more() {
    let mut server = Server::drained();
    let mut out = Vec::new();
    let last = server.shell.end(&mut out);
    assert_eq!(flush(&out), Some(last));
    let tells = |commands: &[Command]| commands.iter().any(|c| matches!(c, Command::Tell(_)));
    assert!(!tells(&server.beat()) && !tells(&server.push(MetaPush::Recall)));
}
