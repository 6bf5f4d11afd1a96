//! A client that was cut off retries its write after others have written there: the write is not carried out twice.

use bytes::Bytes;
use ebb_chunkserver::{ClientToken, Command, Config, Event, Recovered, Replica, StoreCommand, StoreOutcome};
use ebb_types::{
    BLOCK_BYTES, ChunkId, ChunkOp, ClientReply, ClientRequest, Epoch, GroupEntry, GroupId, Incarnation,
    MapDelta, Moment, PeerMessage, Record, RequestId, Run, ServerId, ServerState, Slot, SlotState, StoreId,
    TailRun, Unready, Version, block_crcs,
};
use std::collections::VecDeque;

pub const ME: ServerId = ServerId(1);
pub const OTHER: ServerId = ServerId(2);
const GROUP: GroupId = GroupId(0);
/// One more than a server remembers.
const MANY: u64 = 1025;
/// The request of the client that is cut off.
const CUT_OFF: RequestId = RequestId { client: 1, seq: 1 };

/// One server of a group of two. Its store and the other server always succeed.
pub struct Server {
    replica: Replica,
    epoch: u32,
    entry: GroupEntry,
    /// What the other server reports as remembered when it is fenced.
    pub remembers: (Vec<TailRun>, Version),
    pub ordered: Vec<Record>,
    fenced: Option<PeerMessage>,
}

impl Server {
    pub fn new() -> Server {
        let mut server = Server {
            replica: Server::started(),
            epoch: 0,
            entry: GroupEntry::unknown(),
            remembers: (Vec::new(), Version::ZERO),
            ordered: Vec::new(),
            fenced: None,
        };
        server.configure(ME);
        server
    }

    fn started() -> Replica {
        let config = Config::new(ME, Incarnation(1), StoreId(1), 1 << 20, 1);
        let mut replica = Replica::new(config, Recovered::default());
        replica.on(Moment(1), Event::Lease { until: Moment(u64::MAX) }, &mut Vec::new());
        replica
    }

    /// Restarts it without any memory.
    pub fn restart(&mut self) {
        self.replica = Server::started();
    }

    pub fn configure(&mut self, primary: ServerId) {
        let slots = [ME, OTHER].map(|server| Slot { server, state: SlotState::InSync, holder: None });
        self.configure_slots(primary, slots.into());
    }

    /// Begins the next epoch.
    fn configure_slots(&mut self, primary: ServerId, slots: Vec<Slot>) {
        self.epoch += 1;
        let epoch = Epoch(self.epoch);
        let received = self.entry.received.clone();
        let mut entry =
            GroupEntry { epoch, primary: Some(primary), slots, received, ..GroupEntry::unknown() };
        entry.follow(&self.entry);
        self.entry = entry.clone();
        let servers = [1, 2].map(|id| crate::server(id, id as u8 - 1, ServerState::Awake)).to_vec();
        let from = self.replica.map().version;
        let delta = MapDelta {
            from,
            to: u64::from(self.epoch),
            servers,
            groups: vec![(GROUP, entry)],
            ..MapDelta::default()
        };
        assert_eq!(self.run(Event::Map(delta)), []);
    }

    /// Runs until nothing is left to do. Returns the replies to clients.
    fn run(&mut self, event: Event) -> Vec<ClientReply> {
        let mut events = VecDeque::from([event]);
        let mut replies = Vec::new();
        while let Some(event) = events.pop_front() {
            let mut commands = Vec::new();
            self.replica.on(Moment(1), event, &mut commands);
            for command in commands {
                match command {
                    Command::Reply { reply, .. } => replies.push(reply),
                    command => events.extend(self.carry_out(command)),
                }
            }
        }
        replies
    }

    fn carry_out(&mut self, command: Command) -> Option<Event> {
        let peer = |from, message| Some(Event::Peer { from, message, payload: Bytes::new() });
        match command {
            Command::Store { token, command } => {
                let outcome = match command {
                    StoreCommand::Apply { record, .. } => {
                        self.ordered.push(record);
                        StoreOutcome::Applied
                    }
                    StoreCommand::Newer { .. } => StoreOutcome::Newer(Vec::new()),
                    other => unreachable!("{other:?}"),
                };
                Some(Event::Stored { token, outcome })
            }
            Command::Send { to, message: PeerMessage::Fence { group, epoch, .. }, .. } => {
                let (done, forgotten) = self.remembers.clone();
                peer(to, PeerMessage::FenceReply { group, epoch, tail: Vec::new(), done, forgotten })
            }
            Command::Send { to, message: PeerMessage::Replicate { epoch, record, .. }, .. } => {
                let (group, version, first) = (record.group, record.version, record.first);
                peer(to, PeerMessage::ReplicateReply { group, epoch, version, first, result: Ok(()) })
            }
            Command::Send { message: message @ PeerMessage::FenceReply { .. }, .. } => {
                self.fenced = Some(message);
                None
            }
            _ => None,
        }
    }

    /// A client writes the block that all clients write. Returns the reply, and whether the write was carried out.
    fn write(&mut self, request: RequestId, since: Version) -> (ClientReply, bool) {
        let payload = Bytes::from(vec![7; BLOCK_BYTES]);
        let (len, crcs) = (payload.len() as u32, block_crcs(&payload));
        let op = ChunkOp::Write { chunk: ChunkId::default(), offset: 0, len, request, crcs };
        self.send(op, since, payload)
    }

    pub fn send(&mut self, op: ChunkOp, since: Version, payload: Bytes) -> (ClientReply, bool) {
        let request = ClientRequest { group: GROUP, epoch: Epoch(self.epoch), since, claim: 0, op };
        self.ordered.clear();
        let mut replies = self.run(Event::Client { token: ClientToken(1), request, payload });
        assert_eq!(replies.len(), 1, "{replies:?}");
        (replies.remove(0), !self.ordered.is_empty())
    }

    /// Carries out `many` requests of other clients; returns the newest version.
    fn others(&mut self, many: u64) -> Version {
        let mut newest = Version::first_of(Epoch(self.epoch));
        for seq in 1..=many {
            let (reply, carried_out) =
                self.write(RequestId { client: 2, seq: u64::from(self.epoch) << 32 | seq }, newest);
            let ClientReply::Done { newest: received } = reply else { panic!("{reply:?}") };
            assert!(carried_out);
            newest = received;
        }
        newest
    }

    /// The other server becomes primary and fences this one; returns up to where this one has forgotten.
    fn forgotten(&mut self) -> Version {
        let message = PeerMessage::Fence { group: GROUP, epoch: Epoch(self.epoch), done: Vec::new() };
        self.run(Event::Peer { from: OTHER, message, payload: Bytes::new() });
        let Some(PeerMessage::FenceReply { forgotten, .. }) = self.fenced.take() else { panic!() };
        forgotten
    }
}

fn version(epoch: u32, seq: u64) -> Version {
    Version { epoch: Epoch(epoch), seq }
}

#[test]
fn a_write_that_was_carried_out_is_not_repeated_over_others() {
    let mut server = Server::new();
    let begun = version(1, 0);
    assert!(server.write(CUT_OFF, begun).1);
    server.others(MANY - 2);
    let (reply, repeated) = server.write(CUT_OFF, begun);
    assert!(matches!(reply, ClientReply::Done { .. }) && !repeated, "it is remembered: {reply:?}");
    let newest = server.others(0).max(version(1, MANY - 1));
    for seq in 1..3 {
        server.write(RequestId { client: 3, seq }, newest);
    }
    let newest = version(1, MANY + 1);
    assert_eq!(server.write(CUT_OFF, begun), (ClientReply::Forgotten { newest, in_part: false }, false));
    assert!(server.write(RequestId { client: 1, seq: 2 }, newest).1, "what begins now is carried out");
}

/// The same with a restart in between: what another target remembers is known.
#[test]
fn a_restarted_primary_repeats_only_what_no_target_can_have_forgotten() {
    let (done, before, after) = (CUT_OFF, version(1, 0), version(1, 1));
    let run = |server: &Server| TailRun { run: server.ordered[0].run(), request: server.ordered[0].request };
    for (forgotten, answered) in [(version(1, 0), true), (version(1, 300), false)] {
        let mut server = Server::new();
        server.write(done, before);
        server.remembers = (if answered { vec![run(&server)] } else { Vec::new() }, forgotten);
        server.others(300);
        server.restart();
        server.configure(ME);
        let (reply, repeated) = server.write(done, before);
        let expected = match reply {
            ClientReply::Done { .. } => answered,
            ClientReply::Forgotten { newest, in_part: false } => !answered && newest >= forgotten,
            _ => false,
        };
        assert!(expected && !repeated, "{reply:?}");
        let never_carried_out = server.write(RequestId { client: 1, seq: 2 }, after);
        assert_eq!(never_carried_out.1, answered, "no server has forgotten anything that is so new");
    }
}

/// Several configurations often arrive as one, and a restart forgets.
#[test]
fn a_run_answers_for_all_that_it_received() {
    let mut server = Server::new();
    assert_eq!(server.forgotten(), version(1, 0), "this run was counted on in epoch 1 first");
    server.epoch += 3;
    assert_eq!(server.forgotten(), version(1, 0), "what was between it does not know, and others do");
    server.configure(OTHER);
    assert_eq!(server.forgotten(), version(1, 0));
    server.restart();
    server.configure(OTHER);
    assert_eq!(server.forgotten(), version(6, 0));
}

/// A write that was ordered when the epoch ended may be on some servers: whichever server gets it next, it is not a new
/// request.
#[test]
fn what_was_ordered_is_never_sent_away_as_new() {
    let mut server = Server::new();
    let payload = Bytes::from(vec![7; BLOCK_BYTES]);
    let (len, crcs) = (payload.len() as u32, block_crcs(&payload));
    let op = ChunkOp::Write { chunk: ChunkId::default(), offset: 0, len, request: CUT_OFF, crcs };
    let request = ClientRequest { group: GROUP, epoch: Epoch(1), since: version(1, 0), claim: 0, op };
    let mut commands = Vec::new();
    let event = Event::Client { token: ClientToken(1), request, payload };
    server.replica.on(Moment(1), event, &mut commands);
    server.epoch += 1;
    let slots = [ME, OTHER].map(|server| Slot { server, state: SlotState::InSync, holder: None });
    let entry =
        GroupEntry { epoch: Epoch(2), primary: Some(OTHER), slots: slots.into(), ..GroupEntry::unknown() };
    let delta =
        MapDelta { from: 1, to: 2, servers: Vec::new(), groups: vec![(GROUP, entry)], ..MapDelta::default() };
    assert_eq!(server.run(Event::Map(delta)), [ClientReply::Retry { why: Unready::Interrupted }]);
}

/// One of two blocks is known to be written; the outcome of the other is forgotten.
#[test]
fn what_is_known_in_part_and_forgotten_in_part_is_not_started_over() {
    let mut server = Server::new();
    assert!(server.write(CUT_OFF, version(1, 0)).1);
    let half = server.ordered[0].run();
    server.remembers =
        (vec![TailRun { run: Run { first: 1, ..half }, request: Some(CUT_OFF) }], version(1, 300));
    server.restart();
    server.configure(ME);
    let (reply, carried_out) = server.write(CUT_OFF, version(1, 0));
    assert!(matches!(reply, ClientReply::Forgotten { in_part: true, .. }) && !carried_out, "{reply:?}");
}
