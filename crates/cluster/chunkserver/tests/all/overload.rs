//! Overload is not failure: a copy in flight is not sent twice, a copy received twice is written once, and a server is
//! suspected only if it sends nothing at all. (R12)

use bytes::Bytes;
use ebb_chunkserver::{
    ClientToken, Command, Config, Event, Recovered, Replica, StoreCommand, StoreOutcome, StoreToken, TICK,
};
use ebb_types::{
    BLOCK_BYTES, ChunkId, ChunkOp, ClientReply, ClientRequest, Epoch, GroupEntry, GroupId, Incarnation,
    MapDelta, Moment, PeerMessage, Record, Refusal, RequestId, Role, ServerId, ServerReport, ServerState,
    Slot, SlotState, StoreId, Unready, Version,
};

pub const ME: ServerId = ServerId(1);
pub const NEAR: ServerId = ServerId(2);
pub const FAR: ServerId = ServerId(3);
pub const GROUP: GroupId = GroupId(0);
pub const EPOCH: Epoch = Epoch(1);

/// One server of a group of three; the test plays its clock, store and peers.
pub struct Server {
    replica: Replica,
    now: Moment,
}

impl Server {
    /// Starts it in a configuration with this primary and all three in sync.
    pub fn new(primary: ServerId) -> Server {
        let config = Config::new(ME, Incarnation(1), StoreId(1), 1 << 20, 1);
        let mut server = Server { replica: Replica::new(config, Recovered::default()), now: Moment(1) };
        server.on(Event::Lease { until: Moment(u64::MAX) });
        let members = [ME, NEAR, FAR];
        let entry = |id: ServerId| crate::server(id.0, id.0 as u8 - 1, ServerState::Awake);
        let slots = members.map(|server| Slot { server, state: SlotState::InSync, holder: None });
        let groups = vec![(
            GROUP,
            GroupEntry { epoch: EPOCH, primary: Some(primary), slots: slots.into(), ..GroupEntry::unknown() },
        )];
        server.on(Event::Map(MapDelta {
            from: 0,
            to: 1,
            servers: members.map(entry).into(),
            groups,
            ..MapDelta::default()
        }));
        for from in [NEAR, FAR] {
            let (tail, done) = (Vec::new(), Vec::new());
            server.hear(
                from,
                PeerMessage::FenceReply { group: GROUP, epoch: EPOCH, tail, done, forgotten: Version::ZERO },
            );
        }
        server
    }

    pub fn on(&mut self, event: Event) -> Vec<Command> {
        let mut out = Vec::new();
        self.replica.on(self.now, event, &mut out);
        out
    }

    fn hear(&mut self, from: ServerId, message: PeerMessage) -> Vec<Command> {
        self.on(Event::Peer { from, message, payload: Bytes::new() })
    }

    pub fn answer(&mut self, from: ServerId, version: Version, result: Result<(), Refusal>) -> Vec<Command> {
        self.hear(from, PeerMessage::ReplicateReply { group: GROUP, epoch: EPOCH, version, first: 0, result })
    }

    /// A client writes block `n`.
    pub fn write(&mut self, n: u32) -> Vec<Command> {
        let request = RequestId { client: 9, seq: u64::from(n) + 1 };
        let (offset, len) = (n * BLOCK_BYTES as u32, BLOCK_BYTES as u32);
        let payload = Bytes::from(vec![7; BLOCK_BYTES]);
        let (chunk, crcs) = (ChunkId::default(), ebb_types::block_crcs(&payload));
        let op = ChunkOp::Write { chunk, offset, len, request, crcs };
        let request =
            ClientRequest { group: GROUP, epoch: EPOCH, since: Version::first_of(EPOCH), claim: 0, op };
        let token = ClientToken(u64::from(n));
        self.on(Event::Client { token, request, payload })
    }

    /// Lets seconds pass, tick by tick; `each` runs before each tick.
    fn wait(&mut self, seconds: u32, mut each: impl FnMut(&mut Server)) -> Vec<Command> {
        let mut out = Vec::new();
        for _ in 0..seconds * 10 {
            self.now = self.now + TICK;
            each(self);
            out.extend(self.on(Event::Tick));
        }
        out
    }
}

/// The records sent, with their receivers.
pub fn sent(commands: &[Command]) -> Vec<(ServerId, Record)> {
    let record = |c: &Command| match c {
        Command::Send { to, message: PeerMessage::Replicate { record, .. }, .. } => {
            Some((*to, record.clone()))
        }
        _ => None,
    };
    commands.iter().filter_map(record).collect()
}

pub fn applies(commands: &[Command]) -> Vec<StoreToken> {
    let apply = |c: &Command| match c {
        Command::Store { token, command: StoreCommand::Apply { .. } } => Some(*token),
        _ => None,
    };
    commands.iter().filter_map(apply).collect()
}

pub fn replies(commands: &[Command]) -> Vec<ClientReply> {
    let reply = |c: &Command| match c {
        Command::Reply { reply, .. } => Some(reply.clone()),
        _ => None,
    };
    commands.iter().filter_map(reply).collect()
}

fn suspects(commands: &[Command]) -> Vec<ServerId> {
    let suspect = |c: &Command| match c {
        Command::Report(ServerReport::Suspect { server, .. }) => Some(*server),
        _ => None,
    };
    commands.iter().filter_map(suspect).collect()
}

fn versions_sent(commands: &[Command]) -> Vec<(ServerId, u64)> {
    sent(commands).into_iter().map(|(to, record)| (to, record.version.seq)).collect()
}

#[test]
fn a_record_on_its_way_is_sent_once_however_long_it_takes() {
    let mut server = Server::new(ME);
    assert_eq!(versions_sent(&server.write(0)), [(NEAR, 1), (FAR, 1)]);
    assert_eq!(sent(&server.wait(60, |_| {})), []);
}

#[test]
fn a_record_is_sent_again_when_the_connection_broke_and_only_there() {
    let mut server = Server::new(ME);
    server.write(0);
    server.on(Event::PeerLost { peer: FAR });
    assert_eq!(versions_sent(&server.wait(10, |_| {})), [(FAR, 1)]);
}

#[test]
fn a_record_that_was_refused_is_sent_again_after_a_pause() {
    let mut server = Server::new(ME);
    let version = sent(&server.write(0))[0].1.version;
    server.answer(NEAR, version, Err(Refusal::NotReady));
    assert_eq!(versions_sent(&server.wait(10, |_| {})), [(NEAR, 1)]);
}

#[test]
fn a_slow_server_that_answers_anything_is_not_suspected_and_a_silent_one_is() {
    let mut server = Server::new(ME);
    let first = sent(&server.write(0))[0].1.version;
    // One server acknowledges a record every two seconds, but never the first; the other sends nothing.
    let mut ticks = 0;
    let commands = server.wait(30, |server| {
        ticks += 1;
        if ticks % 20 == 0 {
            let written = sent(&server.write(ticks / 20));
            server.answer(NEAR, written[0].1.version, Ok(()));
        }
    });
    let suspects = suspects(&commands);
    assert!(suspects.contains(&FAR) && !suspects.contains(&NEAR), "{suspects:?}");
    // The report is repeated, but not a hundred times a second.
    assert!((10..=60).contains(&suspects.len()), "{suspects:?}");
    server.answer(FAR, first, Ok(()));
    assert_eq!(self::suspects(&server.wait(1, |_| {})), []);
}

/// It is this server that is slow: it has no room for what the other one sent.
#[test]
fn a_server_whose_messages_lie_unread_is_not_suspected() {
    let mut server = Server::new(ME);
    let version = sent(&server.write(0))[0].1.version;
    for peer in [NEAR, FAR] {
        server.on(Event::Unread { peer });
    }
    assert_eq!(suspects(&server.wait(30, |_| {})), []);
    server.answer(NEAR, version, Ok(()));
    server.on(Event::PeerLost { peer: FAR });
    let suspects = suspects(&server.wait(30, |_| {}));
    assert!(suspects.contains(&FAR) && !suspects.contains(&NEAR), "{suspects:?}");
}

#[test]
fn a_full_server_is_never_suspected() {
    let mut server = Server::new(ME);
    let version = sent(&server.write(0))[0].1.version;
    let commands = server.wait(60, |server| {
        for from in [NEAR, FAR] {
            server.answer(from, version, Err(Refusal::NoSpace));
        }
    });
    assert_eq!(suspects(&commands), []);
    assert!(sent(&commands).len() <= 2 * 60 * 2 + 2, "it is asked again at the pace of refusals");
}

/// The write is on some copies: it is carried out as soon as there is room, and the client learns what it waits for.
#[test]
fn a_client_whose_write_waits_for_room_hears_so() {
    let full = [ClientReply::Retry { why: Unready::Full }];
    let mut server = Server::new(ME);
    let commands = server.write(0);
    let (own, version) = (applies(&commands), sent(&commands)[0].1.version);
    server.on(Event::Stored { token: own[0], outcome: StoreOutcome::Applied });
    server.answer(FAR, version, Ok(()));
    assert_eq!(replies(&server.answer(NEAR, version, Err(Refusal::NoSpace))), [], "there is the reserve");
    assert_eq!(replies(&server.answer(NEAR, version, Err(Refusal::NoSpace))), full);
    assert_eq!(replies(&server.write(0)), [], "the same request waits again");
    assert_eq!(replies(&server.answer(NEAR, version, Err(Refusal::NoSpace))), full);
    server.write(0);
    assert!(matches!(replies(&server.answer(NEAR, version, Ok(())))[..], [ClientReply::Done { .. }]));
}

#[test]
fn a_record_that_comes_twice_is_written_once_and_answered() {
    let mut primary = Server::new(ME);
    let record = sent(&primary.write(0)).remove(0).1;
    let mut member = Server::new(NEAR);
    let mut replicate = || {
        let (role, committed) = (Role::Replica, Version::ZERO);
        let message =
            PeerMessage::Replicate { epoch: EPOCH, role, record: record.clone(), committed, must_fit: false };
        let payload = Bytes::from(vec![7; BLOCK_BYTES]);
        member.on(Event::Peer { from: NEAR, message, payload })
    };
    let token = applies(&replicate());
    assert_eq!(token.len(), 1);
    assert_eq!(applies(&replicate()), [], "the store works on it");
    let answers = member.on(Event::Stored { token: token[0], outcome: StoreOutcome::Applied });
    let answered = |c: &&Command| {
        matches!(
            c,
            Command::Send { to: NEAR, message: PeerMessage::ReplicateReply { result: Ok(()), .. }, .. }
        )
    };
    assert_eq!(answers.iter().filter(answered).count(), 1);
}

#[test]
fn a_write_is_answered_after_a_connection_broke_twice() {
    let mut server = Server::new(ME);
    let commands = server.write(0);
    let version = sent(&commands)[0].1.version;
    server.on(Event::Stored { token: applies(&commands)[0], outcome: StoreOutcome::Applied });
    for _ in 0..2 {
        server.on(Event::PeerLost { peer: NEAR });
        server.wait(1, |_| {});
    }
    server.answer(NEAR, version, Ok(()));
    let done = server.answer(FAR, version, Ok(()));
    assert!(done.iter().any(|c| matches!(c, Command::Reply { reply: ClientReply::Done { .. }, .. })));
}
