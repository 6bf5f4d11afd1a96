//! Lost blocks, whose version is not known here, are fetched only from copies that surely have everything. The blocks
//! of a replica that is still catching up, or of a holder alone, may be older than the lost ones.

use bytes::Bytes;
use ebb_chunkserver::{
    ClientToken, Command, Config, Event, Recovered, Replica, StoreCommand, StoreOutcome, StoreToken,
};
use ebb_types::{
    BLOCK_BYTES, ChunkError, ChunkId, ChunkOp, ClientReply, ClientRequest, Content, Epoch, GroupEntry,
    GroupId, Holder, Incarnation, Kind, ListPage, MapDelta, Moment, PeerMessage, Record, RecoveredTail,
    Refusal, Role, Run, ServerId, ServerReport, ServerState, Slot, SlotState, StoreId, TailRun, Version,
    block_crcs, lost_block_crc,
};
use std::collections::BTreeMap;

const ME: ServerId = ServerId(1);
/// Catching up, with a covered holder.
const OTHER: ServerId = ServerId(2);
const HOLDER: ServerId = ServerId(4);
/// No member.
const FORMER: ServerId = ServerId(3);
const KEPT: Role = Role::Offload { stands_for: OTHER };
const GROUP: GroupId = GroupId(0);
const CHUNK: ChunkId = ChunkId { object: ebb_types::ObjectId(0), index: 0 };

struct Server {
    replica: Replica,
    now: u64,
}

impl Server {
    /// Server `id` in epoch 9, whose primary is `ME`.
    fn new(id: ServerId) -> (Server, Vec<Command>) {
        Server::recovered(id, RecoveredTail::default())
    }

    /// One that found this tail at its start.
    fn recovered(id: ServerId, tail: RecoveredTail) -> (Server, Vec<Command>) {
        Server::started(id, tail, true)
    }

    /// `covered`: the slot's holder has everything that its server lacks.
    fn started(id: ServerId, tail: RecoveredTail, covered: bool) -> (Server, Vec<Command>) {
        Server::beside(SlotState::CatchingUp { since: Epoch(5) }, id, tail, covered)
    }

    /// `OTHER` is in this state.
    fn beside(state: SlotState, id: ServerId, tail: RecoveredTail, covered: bool) -> (Server, Vec<Command>) {
        let holder = Some(Holder::new(HOLDER, covered));
        let slots = vec![
            Slot { server: ME, state: SlotState::InSync, holder: None },
            Slot { server: OTHER, state, holder },
        ];
        Server::member_of(slots, id, tail)
    }

    fn member_of(slots: Vec<Slot>, id: ServerId, tail: RecoveredTail) -> (Server, Vec<Command>) {
        let config = Config::new(id, Incarnation(1), StoreId(1), 1 << 20, 1);
        let recovered = Recovered { tails: [(GROUP, tail)].into(), ..Recovered::default() };
        let mut server = Server { replica: Replica::new(config, recovered), now: 1 };
        server.on(Event::Lease { until: Moment(u64::MAX) });
        let entry = GroupEntry { epoch: Epoch(9), primary: Some(ME), slots, ..GroupEntry::unknown() };
        let servers = [1, 2, 3, 4].map(|id| crate::server(id, id as u8 % 2, ServerState::Awake));
        let delta = MapDelta {
            from: 0,
            to: 1,
            servers: servers.into(),
            groups: vec![(GROUP, entry)],
            ..MapDelta::default()
        };
        let out = server.on(Event::Map(delta));
        (server, out)
    }

    fn on(&mut self, event: Event) -> Vec<Command> {
        let mut out = Vec::new();
        self.replica.on(Moment(self.now), event, &mut out);
        out
    }

    /// A suspended process keeps its connections: only the map shows that it no longer answers.
    fn sleeps(&mut self, id: ServerId) -> Vec<Command> {
        self.is(id, ServerState::Asleep)
    }

    fn is(&mut self, id: ServerId, state: ServerState) -> Vec<Command> {
        let servers = vec![crate::server(id.0, id.0 as u8 % 2, state)];
        let from = self.replica.map().version;
        self.on(Event::Map(MapDelta { from, to: from + 1, servers, ..MapDelta::default() }))
    }

    fn ticks(&mut self) -> Vec<Command> {
        self.now += 200_000_000;
        self.on(Event::Tick)
    }

    fn stored(&mut self, token: StoreToken, outcome: StoreOutcome) -> Vec<Command> {
        self.on(Event::Stored { token, outcome })
    }

    /// `OTHER` requests a listing. Returns the token of the store command.
    fn is_asked_for_a_listing(&mut self, token: u64) -> StoreToken {
        let (group, epoch, role, since) = (GROUP, Epoch(9), Role::Replica, Epoch(5));
        let message = PeerMessage::List { group, epoch, token, role, since, after: None };
        let commands = self.on(Event::Peer { from: OTHER, message, payload: Bytes::new() });
        store(&commands).expect("it is listed").0
    }

    fn answers(
        &mut self,
        asked: Asked,
        result: Result<Vec<Record>, Refusal>,
        payload: Bytes,
    ) -> Vec<Command> {
        let message = PeerMessage::FetchReply { group: GROUP, token: asked.token, result };
        self.on(Event::Peer { from: asked.to, message, payload })
    }
}

#[derive(Clone, Copy, Debug)]
struct Asked {
    to: ServerId,
    role: Role,
    token: u64,
    /// First and count.
    blocks: (u32, u32),
    whole: bool,
}

fn asked(commands: &[Command]) -> Option<Asked> {
    commands.iter().find_map(|c| match c {
        Command::Send {
            to, message: PeerMessage::Fetch { role, token, first, count, whole, .. }, ..
        } => Some(Asked { to: *to, role: *role, token: *token, blocks: (*first, *count), whole: *whole }),
        _ => None,
    })
}

fn stored_by(command: &Command) -> Option<(StoreToken, StoreCommand)> {
    match command {
        Command::Store { token, command } => Some((*token, command.clone())),
        _ => None,
    }
}

fn store(commands: &[Command]) -> Option<(StoreToken, StoreCommand)> {
    commands.iter().find_map(stored_by)
}

fn record(version: Version, data: Option<&Bytes>) -> Record {
    let content = data.map_or(Content::Zero, |data| Content::Data { crcs: block_crcs(data) });
    Record { group: GROUP, chunk: CHUNK, first: 0, count: 1, version, request: None, content }
}

/// A serving primary that was asked for a lost block.
fn primary_with_a_lost_block(newest: Version) -> (Server, Vec<Command>) {
    let lost =
        StoreOutcome::Damaged { chunk: CHUNK, block: 0, lost: Some(newest), given_up: false, all: false };
    primary_that_read(false, lost)
}

/// A serving primary that was asked for a block, and whose store answered with `outcome`.
fn primary_that_read(must_exist: bool, outcome: StoreOutcome) -> (Server, Vec<Command>) {
    let (mut primary, _) = Server::new(ME);
    let epoch = Epoch(9);
    for from in [OTHER, HOLDER] {
        let fenced = PeerMessage::FenceReply {
            group: GROUP,
            epoch,
            tail: Vec::new(),
            done: Vec::new(),
            forgotten: Version::ZERO,
        };
        primary.on(Event::Peer { from, message: fenced, payload: Bytes::new() });
    }
    let op = ChunkOp::Read { chunk: CHUNK, offset: 0, len: BLOCK_BYTES as u32, must_exist };
    let request = ClientRequest { group: GROUP, epoch, since: Version::first_of(epoch), claim: 0, op };
    let commands = primary.on(Event::Client { token: ClientToken(1), request, payload: Bytes::new() });
    let (token, _) = store(&commands).expect("the block is read");
    let commands = primary.stored(token, outcome);
    (primary, commands)
}

/// Copies beside the primary's.
const COPIES: usize = 2;

const NEW: Version = Version { epoch: Epoch(7), seq: 3 };

#[test]
fn a_lost_block_comes_from_the_holder_and_then_from_the_replica_behind_it() {
    let (mut primary, commands) = primary_with_a_lost_block(NEW);
    let first = asked(&commands).expect("a copy is asked for it");
    assert_eq!((first.to, first.role), (HOLDER, KEPT));
    // The block was not written since epoch 5: so the replica behind the holder has the latest version.
    let commands = primary.answers(first, Ok(vec![record(Version::ZERO, None)]), Bytes::new());
    let second = asked(&commands).expect("the replica is asked");
    assert_eq!((second.to, second.role, second.whole), (OTHER, Role::Replica, true));
    let data = Bytes::from(vec![7; BLOCK_BYTES]);
    let old = Version { epoch: Epoch(2), seq: 8 };
    let commands = primary.answers(second, Ok(vec![record(old, Some(&data))]), data.clone());
    let (token, command) = store(&commands).expect("it is written");
    assert!(matches!(command, StoreCommand::Repair { record: Record { version, .. }, .. } if version == old));
    let commands = primary.stored(token, StoreOutcome::Applied);
    let read = || StoreOutcome::Read { records: vec![record(old, Some(&data))], payload: data.clone() };
    let (checked, _) = store(&commands).expect("it is read, to see whether that was all");
    let commands = primary.stored(checked, read());
    let (again, _) = store(&commands).expect("the client's read continues");
    let commands = primary.stored(again, read());
    let answered = |c: &Command| matches!(c, Command::Reply { payload, .. } if *payload == data);
    assert!(commands.iter().any(answered), "{commands:?}");
}

#[test]
fn where_the_holder_does_not_answer_the_replica_behind_it_is_not_believed() {
    let (mut primary, commands) = primary_with_a_lost_block(NEW);
    let first = asked(&commands).expect("a copy is asked for it");
    let commands = primary.answers(first, Err(Refusal::Corrupt), Bytes::new());
    let second = asked(&commands).expect("it may have the newest");
    assert_eq!((second.to, second.role, second.whole), (OTHER, Role::Replica, false));
    let older = Version { seq: NEW.seq - 1, ..NEW };
    let data = Bytes::from(vec![7; BLOCK_BYTES]);
    let commands = primary.answers(second, Ok(vec![record(older, Some(&data))]), data);
    assert!(store(&commands).is_none(), "{commands:?}");
    assert_eq!(reply(&commands), Some(ClientReply::Failed { why: ChunkError::Corrupt }));
}

/// While the replica catches up, what is written goes to it alone: the holder has less than it (seed 31020000884).
#[test]
fn where_the_replica_behind_the_holder_does_not_answer_the_holder_is_not_believed() {
    let (mut primary, commands) = primary_with_a_lost_block(NEW);
    let first = asked(&commands).expect("a copy is asked for it");
    let older = Version { seq: NEW.seq - 1, ..NEW };
    let data = Bytes::from(vec![7; BLOCK_BYTES]);
    let commands = primary.answers(first, Ok(vec![record(older, Some(&data))]), data.clone());
    assert!(store(&commands).is_none(), "{commands:?}");
    let second = asked(&commands).expect("the replica is asked");
    assert_eq!((second.to, second.role), (OTHER, Role::Replica));
    let commands = primary.answers(second, Err(Refusal::Corrupt), Bytes::new());
    assert!(store(&commands).is_none(), "{commands:?}");
}

#[test]
fn of_a_pair_the_newer_version_is_stored_whoever_has_it() {
    let newer = Version { epoch: Epoch(8), ..NEW };
    for (holder, replica) in [(NEW, newer), (newer, NEW)] {
        let (mut primary, commands) = primary_with_a_lost_block(newer);
        let mut reply = |commands: &[Command], version: Version| {
            let data = Bytes::from(vec![version.epoch.0 as u8; BLOCK_BYTES]);
            let one = asked(commands).expect("a copy is asked for it");
            primary.answers(one, Ok(vec![record(version, Some(&data))]), data)
        };
        let commands = reply(&commands, holder);
        let commands = reply(&commands, replica);
        let stored: Vec<StoreCommand> = commands.iter().filter_map(stored_by).map(|(_, c)| c).collect();
        let [StoreCommand::Repair { record: Record { version, .. }, payload, .. }] = &stored[..] else {
            panic!("{stored:?}")
        };
        assert_eq!((*version, payload[0]), (newer, 8));
    }
}

/// Nothing newer than that existed, so nothing is missed.
#[test]
fn what_is_as_new_as_a_lost_block_can_have_been_is_believed_of_everybody() {
    let (mut primary, commands) = primary_with_a_lost_block(NEW);
    let first = asked(&commands).expect("a copy is asked for it");
    let commands = primary.answers(first, Err(Refusal::Corrupt), Bytes::new());
    let second = asked(&commands).expect("it may have the newest");
    let data = Bytes::from(vec![7; BLOCK_BYTES]);
    let commands = primary.answers(second, Ok(vec![record(NEW, Some(&data))]), data);
    let (_, command) = store(&commands).expect("it is written");
    assert!(matches!(command, StoreCommand::Repair { record: Record { version: NEW, .. }, .. }));
}

#[test]
fn a_block_from_before_a_replica_was_away_comes_from_it_alone() {
    let (_, commands) = primary_with_a_lost_block(Version { epoch: Epoch(4), seq: 1 });
    let first = asked(&commands).expect("a copy is asked for it");
    assert_eq!((first.to, first.role), (OTHER, Role::Replica));
    assert!(!first.whole, "what it misses is newer; and its listing may wait for this very repair");
}

#[test]
fn a_replica_does_not_answer_for_blocks_that_it_may_miss() {
    let (mut other, _) = Server::new(OTHER);
    let mut fetch = |whole| {
        let (group, epoch, role) = (GROUP, Epoch(9), Role::Replica);
        let message =
            PeerMessage::Fetch { group, epoch, token: 5, role, chunk: CHUNK, first: 0, count: 1, whole };
        other.on(Event::Peer { from: ME, message, payload: Bytes::new() })
    };
    let refused = |c: &Command| {
        let PeerMessage::FetchReply { result, .. } = (match c {
            Command::Send { to: ME, message, .. } => message,
            _ => return false,
        }) else {
            return false;
        };
        *result == Err(Refusal::NotReady)
    };
    assert!(fetch(true).iter().any(refused), "its listing is not done");
    let reads = |c: &Command| matches!(c, Command::Store { command: StoreCommand::Read { .. }, .. });
    assert!(fetch(false).iter().any(reads), "who knows the version that it wants may have it");
}

#[test]
fn a_listing_that_meets_damage_is_given_when_that_is_repaired() {
    let (mut primary, _) = Server::new(ME);
    let first = primary.is_asked_for_a_listing(6);
    // A second listing is requested before the first completes.
    let second = primary.is_asked_for_a_listing(5);
    let commands = primary.stored(first, listed_lost());
    primary.stored(second, listed_lost());
    let replies = |commands: &[Command]| {
        let reply = |c: &Command| matches!(c, Command::Send { message: PeerMessage::ListReply { .. }, .. });
        commands.iter().any(reply)
    };
    assert!(!replies(&commands));
    let first = asked(&commands).expect("the block is repaired");
    let data = Bytes::from(vec![7; BLOCK_BYTES]);
    let commands = primary.answers(first, Ok(vec![record(NEW, Some(&data))]), data.clone());
    // The replica behind the holder has the other blocks of the page.
    let second = asked(&commands).expect("the second of the pair");
    let commands = primary.answers(second, Ok(vec![record(Version::ZERO, None)]), Bytes::new());
    let (token, _) = store(&commands).expect("it is written");
    let commands = primary.stored(token, StoreOutcome::Applied);
    let (token, _) = store(&commands).expect("it is read");
    let read = StoreOutcome::Read { records: vec![record(NEW, Some(&data))], payload: data };
    let commands = primary.stored(token, read);
    let Some((token, StoreCommand::List { .. })) = store(&commands) else { panic!("{commands:?}") };
    let listed = StoreOutcome::Listed(ListPage { runs: Vec::new(), next: None });
    let commands = primary.stored(token, listed);
    let answered = |c: &Command| match c {
        Command::Send { message: PeerMessage::ListReply { token, .. }, .. } => Some(*token),
        _ => None,
    };
    assert_eq!(
        commands.iter().find_map(answered),
        Some(5),
        "no one waits for the answer to the first question"
    );
}

#[test]
fn a_server_that_repairs_a_block_does_not_sleep() {
    let (mut member, _) = Server::new(OTHER);
    let state = SlotState::Away { since: Epoch(10) };
    let holder = Some(Holder::new(HOLDER, true));
    let slots = vec![
        Slot { server: ME, state: SlotState::InSync, holder: None },
        Slot { server: OTHER, state, holder },
    ];
    let entry = GroupEntry { epoch: Epoch(10), primary: Some(ME), slots, ..GroupEntry::unknown() };
    let servers = vec![crate::server(OTHER.0, 0, ServerState::Draining)];
    member.on(Event::Map(MapDelta {
        from: 1,
        to: 2,
        servers,
        groups: vec![(GROUP, entry)],
        ..MapDelta::default()
    }));
    let (group, epoch, role) = (GROUP, Epoch(10), Role::Replica);
    let message = PeerMessage::List { group, epoch, token: 6, role, since: Epoch(5), after: None };
    let commands = member.on(Event::Peer { from: ME, message, payload: Bytes::new() });
    let (listing, _) = store(&commands).expect("it is listed");
    let is_ready = |commands: &[Command]| commands.iter().any(|c| matches!(c, Command::ReadyToSleep { .. }));
    assert!(!is_ready(&member.on(Event::Drain)));
    let mut commands = member.stored(listing, listed_lost());
    let first = asked(&commands);
    assert!(first.is_some(), "the block is repaired");
    while let Some(fetch) = asked(&commands) {
        assert!(!is_ready(&commands), "the block is on its way");
        commands = member.answers(fetch, Err(Refusal::Corrupt), Bytes::new());
    }
    let (listing, _) = store(&commands).expect("no copy has it, and the listing continues");
    let none = StoreOutcome::Listed(ListPage { runs: Vec::new(), next: None });
    assert!(is_ready(&member.stored(listing, none)));
}

/// Ordered by a leader that was deposed, or by one that does not know yet what its successor's map says.
#[test]
fn a_server_that_a_newer_epoch_may_need_obeys_no_order_to_sleep() {
    let (mut member, _) = Server::new(OTHER);
    let is = |member: &mut Server, version: u64, state: ServerState| {
        let holder = Some(Holder::new(HOLDER, true));
        let epoch = Epoch(8 + version as u32);
        let slots = vec![
            Slot { server: ME, state: SlotState::InSync, holder: None },
            Slot { server: OTHER, state: SlotState::Away { since: Epoch(10) }, holder },
        ];
        let entry = GroupEntry { epoch, primary: Some(ME), slots, ..GroupEntry::unknown() };
        member.on(Event::Map(MapDelta {
            from: version - 1,
            to: version,
            servers: vec![crate::server(OTHER.0, 0, state)],
            groups: vec![(GROUP, entry)],
            ..MapDelta::default()
        }))
    };
    is(&mut member, 2, ServerState::Draining);
    assert!(!member.replica.may_sleep(), "it has not said that it is ready");
    let said = member.on(Event::Drain);
    assert!(said.iter().any(|c| matches!(c, Command::ReadyToSleep { .. })) && member.replica.may_sleep());
    let fence = PeerMessage::Fence { group: GROUP, epoch: Epoch(11), done: Vec::new() };
    member.on(Event::Peer { from: ME, message: fence, payload: Bytes::new() });
    assert!(!member.replica.may_sleep(), "it may be a target in epoch 11");
    is(&mut member, 3, ServerState::Asleep);
    assert!(member.replica.may_sleep(), "it is not");
    is(&mut member, 4, ServerState::Awake);
    assert!(!member.replica.may_sleep());
}

/// The first block is lost.
fn listed_lost() -> StoreOutcome {
    let runs = vec![Run { chunk: CHUNK, first: 0, count: 1, version: NEW, kind: Kind::Lost }];
    StoreOutcome::Listed(ListPage { runs, next: None })
}

#[test]
fn what_no_copy_can_repair_is_listed_as_lost() {
    let (mut primary, _) = Server::new(ME);
    let token = primary.is_asked_for_a_listing(6);
    let mut commands = primary.stored(token, listed_lost());
    while let Some(question) = asked(&commands) {
        commands = primary.answers(question, Err(Refusal::Corrupt), Bytes::new());
    }
    let (token, command) = store(&commands).expect("it is listed as it is");
    assert!(matches!(command, StoreCommand::List { .. }), "{command:?}");
    let commands = primary.stored(token, listed_lost());
    let StoreOutcome::Listed(page) = listed_lost() else { unreachable!() };
    let given = |c: &Command| match c {
        Command::Send { message: PeerMessage::ListReply { result, .. }, .. } => Some(result.clone()),
        _ => None,
    };
    assert_eq!(commands.iter().find_map(given), Some(Ok(page)));
}

/// The copies refused all blocks that were lost together, because of one that no copy has: the sound ones were never
/// repaired, and the replica that waited for them never caught up.
#[test]
fn one_block_that_no_copy_has_does_not_keep_its_neighbours_from_being_repaired() {
    let pair = neighbours_of_a_block_that_no_copy_has(true);
    assert_eq!(pair.keys().copied().collect::<Vec<_>>(), [(OTHER, Role::Replica), (HOLDER, KEPT)]);
    // Whoever may have kept something is asked once: for all blocks.
    let mut all = neighbours_of_a_block_that_no_copy_has(false);
    assert!(all.remove(&(OTHER, Role::Replica)).is_some_and(|questions| questions > 1));
    assert!(all.len() > 1 && all.values().all(|questions| *questions == 1), "{all:?}");
}

/// All but one are repaired. Returns how often each copy was asked. `covered`: [`HOLDER`] has what [`OTHER`] lacks.
fn neighbours_of_a_block_that_no_copy_has(covered: bool) -> BTreeMap<(ServerId, Role), u32> {
    const BAD: u32 = 100;
    let (mut primary, _) = Server::started(ME, RecoveredTail::default(), covered);
    let token = primary.is_asked_for_a_listing(6);
    let mut commands = primary.stored(token, listed_lost());
    let mut repaired = std::collections::BTreeSet::new();
    let mut questions = BTreeMap::new();
    loop {
        if let Some(question) = asked(&commands) {
            let (first, count) = question.blocks;
            let blocks = first..first + count;
            let has = question.role == Role::Replica;
            *questions.entry((question.to, question.role)).or_insert(0) += 1;
            let records = match has {
                false => vec![Record { first, count, ..record(Version::ZERO, None) }],
                true => blocks.clone().map(|first| Record { first, ..record(NEW, None) }).collect(),
            };
            let damaged = blocks.contains(&BAD) && has;
            let result = if damaged { Err(Refusal::Corrupt) } else { Ok(records) };
            commands = primary.answers(question, result, Bytes::new());
            continue;
        }
        let stored: Vec<_> = commands.iter().filter_map(stored_by).collect();
        commands = Vec::new();
        for (token, command) in stored {
            let outcome = match command {
                StoreCommand::Repair { record, .. } => {
                    repaired.extend(record.first..record.first + record.count);
                    StoreOutcome::Applied
                }
                StoreCommand::Read { first, count, .. } => {
                    match (first..first + count).find(|block| !repaired.contains(block)) {
                        Some(block) => StoreOutcome::Damaged {
                            chunk: CHUNK,
                            block,
                            lost: Some(NEW),
                            given_up: false,
                            all: false,
                        },
                        None => StoreOutcome::Read { records: Vec::new(), payload: Bytes::new() },
                    }
                }
                StoreCommand::List { .. } => {
                    let sound = (0..256).filter(|block| *block != BAD).collect();
                    assert_eq!(repaired, sound);
                    return questions;
                }
                other => panic!("{other:?}"),
            };
            commands.extend(primary.stored(token, outcome));
        }
        assert!(!commands.is_empty(), "it ended with {} blocks repaired", repaired.len());
    }
}

/// Another server fetches a block, of which the own store reports this. Returns what follows the refusal.
fn is_fetched(primary: &mut Server, given_up: bool) -> (Refusal, Vec<Command>) {
    let (group, epoch, role) = (GROUP, Epoch(9), Role::Replica);
    let (chunk, first, count, whole) = (CHUNK, 0, 1, false);
    let message = PeerMessage::Fetch { group, epoch, token: 6, role, chunk, first, count, whole };
    let commands = primary.on(Event::Peer { from: OTHER, message, payload: Bytes::new() });
    let (token, _) = store(&commands).expect("it is read");
    let damaged = StoreOutcome::Damaged { chunk: CHUNK, block: 0, lost: None, given_up, all: given_up };
    let commands = primary.stored(token, damaged);
    let refused = |c: &Command| match c {
        Command::Send { message: PeerMessage::FetchReply { result, .. }, .. } => result.clone().err(),
        _ => None,
    };
    (commands.iter().find_map(refused).expect("the other server asks elsewhere"), commands)
}

/// Each copy that lacked it made this server ask all others again (seed 37000009635).
#[test]
fn what_was_given_up_is_not_sought_for_another_server() {
    let (mut primary, _) = Server::new(ME);
    let (refusal, commands) = is_fetched(&mut primary, true);
    assert!(refusal == Refusal::Lost && asked(&commands).is_none(), "{refusal:?} {commands:?}");
}

/// Else the holder would never have all, and the search for the block would go on for as long as the replica is away.
#[test]
fn what_was_given_up_is_passed_on_to_a_new_holder_as_lost() {
    let away = SlotState::Away { since: Epoch(5) };
    let (mut primary, _) = Server::beside(away, ME, RecoveredTail::default(), false);
    let fenced = PeerMessage::FenceReply {
        group: GROUP,
        epoch: Epoch(9),
        tail: Vec::new(),
        done: Vec::new(),
        forgotten: Version::ZERO,
    };
    let mut commands = primary.on(Event::Peer { from: HOLDER, message: fenced, payload: Bytes::new() });
    let mut sent = std::collections::BTreeMap::new();
    while !commands.iter().any(|c| matches!(c, Command::Report(ServerReport::Covered { .. }))) {
        assert!(asked(&commands).is_none(), "{commands:?}");
        let (mut next, mut stored) = (Vec::new(), commands.iter().filter_map(stored_by).collect::<Vec<_>>());
        for (token, command) in stored.drain(..) {
            let outcome = match command {
                StoreCommand::List { .. } => {
                    StoreOutcome::Listed(ListPage { runs: vec![run_of(0, 4, Kind::Zero)], next: None })
                }
                StoreCommand::Read { first, count, .. } if (first..first + count).contains(&1) => {
                    let all = count == 1;
                    StoreOutcome::Damaged { chunk: CHUNK, block: 1, lost: None, given_up: true, all }
                }
                StoreCommand::Read { first, count, .. } => StoreOutcome::Read {
                    records: vec![Record { first, count, ..record(NEW, None) }],
                    payload: Bytes::new(),
                },
                other => panic!("{other:?}"),
            };
            next.extend(primary.stored(token, outcome));
        }
        for command in &commands {
            if let Command::Send { to: HOLDER, message: PeerMessage::Replicate { record, .. }, .. } = command
            {
                sent.insert((record.first, record.count), is_lost(record));
                let (epoch, result) = (Epoch(9), Ok(()));
                let (version, first) = (record.version, record.first);
                let message = PeerMessage::ReplicateReply { group: GROUP, epoch, version, first, result };
                next.extend(primary.on(Event::Peer { from: HOLDER, message, payload: Bytes::new() }));
            }
        }
        commands = if next.is_empty() { primary.ticks() } else { next };
    }
    assert_eq!(sent, [((0, 1), false), ((1, 1), true), ((2, 2), false)].into());
}

/// Two servers whose copies are both damaged once asked each other for ever.
#[test]
fn what_no_copy_can_repair_is_not_tried_again_with_each_fetch() {
    let (mut primary, _) = Server::new(ME);
    let is_fetched = |primary: &mut Server| is_fetched(primary, false).1;
    let mut commands = is_fetched(&mut primary);
    assert!(asked(&commands).is_some(), "the block is repaired");
    while let Some(question) = asked(&commands) {
        commands = primary.answers(question, Err(Refusal::Corrupt), Bytes::new());
    }
    assert!(asked(&is_fetched(&mut primary)).is_none(), "it was just given up");
    primary.now += 10_000_000_000;
    assert!(asked(&is_fetched(&mut primary)).is_some(), "another copy may have it now");
}

/// A replica that is catching up and misses these runs, one block each, of its holder's.
fn catches_up(kinds: &[Kind]) -> (Server, Vec<Command>) {
    let runs: Vec<Run> = (0..).zip(kinds).map(|(first, kind)| run_of(first, 1, *kind)).collect();
    misses(&runs, Server::new(OTHER))
}

fn run_of(first: u32, count: u32, kind: Kind) -> Run {
    Run { chunk: CHUNK, first, count, version: NEW, kind }
}

fn misses(runs: &[Run], (mut replica, commands): (Server, Vec<Command>)) -> (Server, Vec<Command>) {
    let listing = |c: &Command| match c {
        Command::Send { to, message: PeerMessage::List { token, .. }, .. } => Some((*to, *token)),
        _ => None,
    };
    let asked: Vec<(ServerId, u64)> = commands.iter().filter_map(listing).collect();
    assert!(!asked.is_empty(), "others are asked what they have");
    let mut commands = Vec::new();
    for (from, token) in asked {
        let result = Ok(ListPage { runs: runs.to_vec(), next: None });
        let message = PeerMessage::ListReply { group: GROUP, token, result };
        commands = replica.on(Event::Peer { from, message, payload: Bytes::new() });
        let (token, _) = store(&commands).expect("it is compared with what is here");
        commands = replica.stored(token, StoreOutcome::Newer(runs.to_vec()));
    }
    (replica, commands)
}

fn has_caught_up(commands: &[Command]) -> bool {
    commands.iter().any(|c| matches!(c, Command::Report(ServerReport::CaughtUp { .. })))
}

fn replicates(replica: &mut Server, first: u32) -> Vec<Command> {
    let data = Bytes::from(vec![7; BLOCK_BYTES]);
    let version = Version { epoch: Epoch(9), seq: 1 };
    let record = Record { first, ..record(version, Some(&data)) };
    let (epoch, role, committed, must_fit) = (Epoch(9), Role::Replica, Version::ZERO, false);
    let message = PeerMessage::Replicate { epoch, role, record, committed, must_fit };
    let commands = replica.on(Event::Peer { from: ME, message, payload: data });
    let (token, _) = store(&commands).expect("it is written");
    replica.stored(token, StoreOutcome::Applied)
}

#[test]
fn what_is_lost_is_missing_until_it_is_written_and_the_rest_is_fetched() {
    let (mut replica, commands) = catches_up(&[Kind::Lost, Kind::Data]);
    let question = asked(&commands).expect("the other block is fetched");
    let data = Bytes::from(vec![7; BLOCK_BYTES]);
    let block = Record { first: 1, ..record(NEW, Some(&data)) };
    let commands = replica.answers(question, Ok(vec![block]), data);
    let (token, _) = store(&commands).expect("it is written");
    let commands = replica.stored(token, StoreOutcome::Applied);
    assert!(asked(&commands).is_none() && !has_caught_up(&commands), "{commands:?}");
    assert!(has_caught_up(&replicates(&mut replica, 0)), "a client has overwritten what was lost");
}

/// Every copy says that one of the blocks that it is asked for is damaged there.
fn nobody_has_it(server: &mut Server, commands: Vec<Command>) -> Vec<Command> {
    all_refuse(server, commands, Refusal::Corrupt).1
}

/// Returns the number of questions, and what follows the last one.
fn all_refuse(server: &mut Server, mut commands: Vec<Command>, refusal: Refusal) -> (usize, Vec<Command>) {
    let mut questions = 0;
    while let Some(question) = asked(&commands) {
        questions += 1;
        assert!(questions < 20, "it asks again and again");
        commands = server.answers(question, Err(refusal), Bytes::new());
    }
    (questions, commands)
}

fn is_lost(record: &Record) -> bool {
    record.content == Content::Data { crcs: vec![lost_block_crc(); record.count as usize] }
}

/// Else a replica would catch up for as long as nobody writes a block that nobody can read.
#[test]
fn a_block_that_no_copy_can_read_is_caught_up_with_as_lost() {
    let (mut replica, commands) = catches_up(&[Kind::Data]);
    let commands = nobody_has_it(&mut replica, commands);
    let Some((token, StoreCommand::Apply { record, .. })) = store(&commands) else { panic!("{commands:?}") };
    assert!(is_lost(&record) && record.version == NEW, "{record:?}");
    let commands = replica.stored(token, StoreOutcome::Applied);
    assert!(has_caught_up(&commands), "{commands:?}");
}

/// Its holder listed a block as lost, with a version that nothing in it exceeds. What the primary, which is complete,
/// has of it by then is all that was acknowledged, and no reason to store it as lost (seed 30261205407).
#[test]
fn what_a_complete_copy_has_of_a_block_that_was_listed_as_lost_is_believed() {
    let older = Version { epoch: Epoch(3), seq: 5 };
    for (version, is_stored) in [(older, true), (Version::ZERO, false)] {
        let (mut replica, _) = catches_up(&[Kind::Lost]);
        let mut commands =
            (0..200).map(|_| replica.ticks()).find(|c| asked(c).is_some()).expect("it asks again");
        let data = Bytes::from(vec![7; BLOCK_BYTES]);
        let found = record(version, Some(&data).filter(|_| is_stored));
        let payload = if is_stored { data } else { Bytes::new() };
        while let Some(question) = asked(&commands) {
            let refused = (question.to, question.role) != (ME, Role::Replica);
            commands = match refused {
                true => replica.answers(question, Err(Refusal::Corrupt), Bytes::new()),
                false => replica.answers(question, Ok(vec![found.clone()]), payload.clone()),
            };
        }
        if is_stored {
            let Some((token, StoreCommand::Apply { record, .. })) = store(&commands) else {
                panic!("{commands:?}")
            };
            assert!(!is_lost(&record) && record.version == older, "{record:?}");
            commands = replica.stored(token, StoreOutcome::Applied);
        }
        assert!(has_caught_up(&commands), "{commands:?}");
    }
}

/// Each of thousands of lost blocks was asked of each server by itself (seed 37000009635).
#[test]
fn blocks_of_which_no_copy_has_any_are_asked_for_together() {
    const BLOCKS: u32 = 64;
    for (kind, refused) in [(Kind::Data, true), (Kind::Lost, true), (Kind::Data, false)] {
        let (mut replica, mut commands) = misses(&[run_of(0, BLOCKS, kind)], Server::new(OTHER));
        if kind == Kind::Lost {
            commands = (0..200).map(|_| replica.ticks()).find(|c| asked(c).is_some()).expect("it asks");
        }
        let mut questions = Vec::new();
        while let Some(question) = asked(&commands) {
            assert_eq!(question.blocks, (0, BLOCKS), "none of them has a part");
            questions.push((question.to, question.role));
            let never = Record { count: BLOCKS, ..record(Version::ZERO, None) };
            let lost = refused || question.role == Role::Replica;
            let result = if lost { Err(Refusal::Lost) } else { Ok(vec![never]) };
            commands = replica.answers(question, result, Bytes::new());
        }
        let distinct: std::collections::BTreeSet<_> = questions.iter().collect();
        assert_eq!(distinct.len(), questions.len(), "{questions:?}");
        let Some((token, StoreCommand::Apply { record, .. })) = store(&commands) else {
            panic!("{commands:?}")
        };
        assert!(is_lost(&record) && (record.first, record.count, record.version) == (0, BLOCKS, NEW));
        assert!(has_caught_up(&replica.stored(token, StoreOutcome::Applied)));
    }
}

#[test]
fn a_block_that_a_failed_member_may_have_stays_missing_and_does_not_keep_the_rest() {
    let (mut replica, commands) = catches_up(&[Kind::Data]);
    replica.is(ME, ServerState::Failed);
    let commands = nobody_has_it(&mut replica, commands);
    assert!(store(&commands).is_none() && !has_caught_up(&commands), "{commands:?}");
    assert!(asked(&replica.ticks()).is_none());
    assert!(has_caught_up(&replicates(&mut replica, 0)), "a client has overwritten what was damaged");
}

#[test]
fn a_block_that_only_a_lost_member_had_is_caught_up_with_as_lost() {
    let (mut replica, commands) = catches_up(&[Kind::Data]);
    replica.is(ME, ServerState::Lost);
    let commands = nobody_has_it(&mut replica, commands);
    let Some((_, StoreCommand::Apply { record, .. })) = store(&commands) else { panic!("{commands:?}") };
    assert!(is_lost(&record) && record.version == NEW, "{record:?}");
}

/// A holder that was replaced while it was gone keeps what it has until the group is complete (seed 30263000440).
#[test]
fn a_block_that_a_former_holder_may_have_stays_missing() {
    for (covered, state, is_given_up) in [
        (false, ServerState::Failed, false),
        (false, ServerState::Lost, true),
        (true, ServerState::Failed, true),
    ] {
        let started = Server::started(OTHER, RecoveredTail::default(), covered);
        let (mut replica, commands) = misses(&[run_of(0, 1, Kind::Data)], started);
        replica.is(FORMER, state);
        let commands = nobody_has_it(&mut replica, commands);
        let stored = store(&commands);
        let lost =
            stored.is_some_and(|(_, c)| matches!(c, StoreCommand::Apply { record, .. } if is_lost(&record)));
        assert_eq!(lost, is_given_up, "{covered} {state:?}: {commands:?}");
    }
}

/// A primary that settles, has these records in its own tail, and block 0 of whose tails is lost or damaged. Returns
/// what it asks the copies.
fn settles(own: Vec<TailRun>, states: &[(ServerId, ServerState)]) -> (Server, Vec<Command>) {
    let tail = RecoveredTail { open: own, ..RecoveredTail::default() };
    settles_as(Server::recovered(ME, tail).0, states)
}

fn settles_as(mut primary: Server, states: &[(ServerId, ServerState)]) -> (Server, Vec<Command>) {
    let epoch = Epoch(9);
    let version = Version { seq: 4, ..NEW };
    let open = Run { chunk: CHUNK, first: 0, count: 2, version, kind: Kind::Data };
    let mut commands = Vec::new();
    for from in [OTHER, HOLDER] {
        let (group, done, forgotten) = (GROUP, Vec::new(), Version::ZERO);
        let tail = vec![TailRun { run: open, request: None }];
        let fenced = PeerMessage::FenceReply { group, epoch, tail, done, forgotten };
        commands = primary.on(Event::Peer { from, message: fenced, payload: Bytes::new() });
    }
    states.iter().for_each(|(id, state)| _ = primary.is(*id, *state));
    let Some((token, StoreCommand::Newer { runs, .. })) = store(&commands) else { panic!("{commands:?}") };
    let mut commands = primary.stored(token, StoreOutcome::Newer(runs));
    let (token, command) = store(&commands).expect("the blocks are read");
    assert!(matches!(command, StoreCommand::Read { first: 0, count: 2, .. }), "{command:?}");
    commands.extend(primary.stored(
        token,
        StoreOutcome::Damaged { chunk: CHUNK, block: 0, lost: Some(NEW), given_up: false, all: false },
    ));
    commands.retain(|c| matches!(c, Command::Send { .. }));
    (primary, commands)
}

/// The own store is read until nothing of it is asked for any more: these blocks are sound.
fn own_blocks(primary: &mut Server, mut commands: Vec<Command>, sound: &[u32]) -> Vec<Command> {
    let read = |c: &Command| match c {
        Command::Store { token, command: StoreCommand::Read { first, count, .. } } => {
            Some((*token, *first, *count))
        }
        _ => None,
    };
    while let Some(at) = commands.iter().position(|c| read(c).is_some()) {
        let (token, first, count) = read(&commands.swap_remove(at)).expect("it is a read");
        let damaged: Vec<u32> = (first..first + count).filter(|block| !sound.contains(block)).collect();
        let (chunk, lost, given_up) = (CHUNK, Some(NEW), false);
        let outcome = match damaged.first() {
            Some(&block) => {
                let all = damaged.len() == count as usize;
                StoreOutcome::Damaged { chunk, block, lost, given_up, all }
            }
            None => {
                let records = vec![Record { first, count, ..record(NEW, None) }];
                StoreOutcome::Read { records, payload: Bytes::new() }
            }
        };
        commands.extend(primary.stored(token, outcome));
    }
    commands
}

/// What is ordered of the other replica: first block, count, and whether as lost.
fn ordered(commands: &[Command]) -> Vec<(u32, u32, bool)> {
    let record = |c: &Command| match c {
        Command::Send { to: OTHER, message: PeerMessage::Replicate { record, .. }, .. } => {
            assert_eq!(record.version.epoch, Epoch(9), "{record:?}");
            Some((record.first, record.count, is_lost(record)))
        }
        _ => None,
    };
    commands.iter().filter_map(record).collect()
}

/// A block that is damaged makes the store refuse all that are read with it. What is ordered as lost is lost for good
/// (seed 40000060231).
#[test]
fn what_is_sound_beside_a_block_that_no_copy_has_is_ordered_as_it_is() {
    for refusal in [Refusal::Corrupt, Refusal::Lost] {
        let (mut primary, commands) = settles(Vec::new(), &[]);
        let (_, commands) = all_refuse(&mut primary, commands, refusal);
        let commands = own_blocks(&mut primary, commands, &[1]);
        let mut ordered = ordered(&commands);
        ordered.sort_unstable();
        assert_eq!(ordered, [(0, 1, true), (1, 1, false)], "{refusal:?}: {commands:?}");
    }
}

/// It is not passed over: the request in it would count as carried out, and who never had it as complete.
#[test]
fn what_no_copy_has_is_ordered_again_as_lost() {
    // A copy that has lost all of it is asked once.
    let halves = 3;
    for (refusal, asked, expected) in [
        (Refusal::Corrupt, COPIES * halves, vec![(0, 1, true), (1, 1, true)]),
        (Refusal::Lost, COPIES, vec![(0, 2, true)]),
    ] {
        let (mut primary, commands) = settles(Vec::new(), &[]);
        let (questions, commands) = all_refuse(&mut primary, commands, refusal);
        assert_eq!(questions, asked, "{refusal:?}");
        let mut ordered = ordered(&own_blocks(&mut primary, commands, &[]));
        ordered.sort_unstable();
        assert_eq!(ordered, expected);
    }
}

/// It may have what the others have lost.
#[test]
fn what_no_copy_has_waits_for_a_member_that_is_away() {
    for state in [ServerState::Failed, ServerState::Asleep] {
        let (mut primary, commands) = settles(Vec::new(), &[(HOLDER, state)]);
        let commands = nobody_has_it(&mut primary, commands);
        let commands = own_blocks(&mut primary, commands, &[]);
        assert!(store(&commands).is_none(), "{state:?}: {commands:?}");
        let (_, again) = store(&primary.ticks()).expect("it is tried again");
        assert!(matches!(again, StoreCommand::Read { first: 0, count: 2, .. }), "{again:?}");
    }
}

/// One that does not say what it has may have it.
#[test]
fn what_a_copy_refuses_to_show_is_not_given_up() {
    let (mut primary, commands) = settles(Vec::new(), &[]);
    let question = asked(&commands).expect("a copy is asked");
    let commands = primary.answers(question, Err(Refusal::NotReady), Bytes::new());
    let commands = nobody_has_it(&mut primary, commands);
    let commands = own_blocks(&mut primary, commands, &[]);
    assert!(store(&commands).is_none(), "{commands:?}");
}

/// The own tail proves that the lost block was newer: with the older one, its request would count as carried out.
#[test]
fn a_lost_block_is_not_repaired_with_less_than_the_own_tail_knows() {
    let newer = Version { epoch: Epoch(7), seq: 9 };
    let run = Run { chunk: CHUNK, first: 0, count: 1, version: newer, kind: Kind::Data };
    for (own, believed) in [(Vec::new(), true), (vec![TailRun { run, request: None }], false)] {
        let (mut primary, commands) = settles(own, &[]);
        let question = asked(&commands).expect("a copy is asked");
        let data = Bytes::from(vec![3; BLOCK_BYTES]);
        let older = record(NEW, Some(&data));
        let commands = primary.answers(question, Ok(vec![older]), data);
        let second = asked(&commands).expect("the second of the pair");
        let commands = primary.answers(second, Ok(vec![record(Version::ZERO, None)]), Bytes::new());
        let repairs = store(&commands).is_some_and(|(_, c)| matches!(c, StoreCommand::Repair { .. }));
        assert_eq!(repairs, believed, "{commands:?}");
    }
}

fn never_written() -> StoreOutcome {
    StoreOutcome::Read { records: vec![record(Version::ZERO, None)], payload: Bytes::new() }
}

fn reply(commands: &[Command]) -> Option<ClientReply> {
    commands.iter().find_map(|c| match c {
        Command::Reply { reply, .. } => Some(reply.clone()),
        _ => None,
    })
}

#[test]
fn a_block_that_must_exist_and_does_not_comes_from_another_copy() {
    let (_, commands) = primary_that_read(false, never_written());
    assert!(matches!(reply(&commands), Some(ClientReply::Data { .. })), "else it reads as zeroes");
    let (mut primary, commands) = primary_that_read(true, never_written());
    assert_eq!(reply(&commands), None);
    let first = asked(&commands).expect("a copy is asked for it");
    let commands = primary.answers(first, Ok(vec![record(Version::ZERO, None)]), Bytes::new());
    let second = asked(&commands).expect("the replica behind the holder is asked");
    assert_eq!((second.to, second.role, second.whole), (OTHER, Role::Replica, true));
    let data = Bytes::from(vec![7; BLOCK_BYTES]);
    let commands = primary.answers(second, Ok(vec![record(NEW, Some(&data))]), data.clone());
    let (token, command) = store(&commands).expect("it is written");
    assert!(matches!(command, StoreCommand::Repair { record: Record { version: NEW, .. }, .. }));
    let read = || StoreOutcome::Read { records: vec![record(NEW, Some(&data))], payload: data.clone() };
    let commands = primary.stored(token, StoreOutcome::Applied);
    let (checked, _) = store(&commands).expect("it is read, to see whether that was all");
    let commands = primary.stored(checked, read());
    let (again, _) = store(&commands).expect("the client's read continues");
    let crcs = block_crcs(&data);
    assert_eq!(reply(&primary.stored(again, read())), Some(ClientReply::Data { crcs }));
}

#[test]
fn a_block_that_must_exist_and_that_no_copy_has_is_an_error() {
    let (mut primary, commands) = primary_that_read(true, never_written());
    let first = asked(&commands).expect("a copy is asked for it");
    let commands = primary.answers(first, Ok(vec![record(Version::ZERO, None)]), Bytes::new());
    let second = asked(&commands).expect("the replica behind the holder is asked");
    let commands = primary.answers(second, Ok(vec![record(Version::ZERO, None)]), Bytes::new());
    assert_eq!(reply(&commands), Some(ClientReply::Failed { why: ChunkError::Missing }));
}

#[test]
fn a_block_that_must_exist_and_was_freed_is_an_error_and_never_zeroes() {
    let freed = || StoreOutcome::Read { records: vec![record(NEW, None)], payload: Bytes::new() };
    let (_, commands) = primary_that_read(true, freed());
    assert_eq!(reply(&commands), Some(ClientReply::Failed { why: ChunkError::Missing }));
    let (_, commands) = primary_that_read(false, freed());
    assert!(matches!(reply(&commands), Some(ClientReply::Data { .. })), "a volume reads what it zeroed");
}

#[test]
fn a_repair_does_not_wait_for_a_copy_that_falls_asleep() {
    let (mut primary, commands) = primary_with_a_lost_block(NEW);
    assert_eq!(asked(&commands).expect("a copy is asked for it").to, HOLDER);
    let commands = primary.sleeps(HOLDER);
    assert_eq!(asked(&commands).expect("the next is asked").to, OTHER);
}

/// Blocks that the copies named in the configuration cannot supply are looked for on all servers, including servers
/// that may go to sleep at any time.
#[test]
fn a_fetch_does_not_wait_for_a_copy_that_falls_asleep() {
    let (mut replica, mut commands) = catches_up(&[Kind::Data]);
    // No server asked can read it, until one is asked that falls asleep.
    let sleeper = ServerId(3);
    loop {
        let Some(question) = asked(&commands) else {
            commands = replica.ticks();
            continue;
        };
        if question.to == sleeper {
            break;
        }
        commands = replica.answers(question, Err(Refusal::Corrupt), Bytes::new());
    }
    let mut commands = replica.sleeps(sleeper);
    for _ in 0..20 {
        if let Some(question) = asked(&commands) {
            assert_ne!(question.to, sleeper);
            return;
        }
        commands = replica.ticks();
    }
    panic!("no server is asked any more");
}

/// Of a record that both blocks of a pair's second copy are in, one may be older than what was here. The other block is
/// not what the first copy has of it (seed 41000055230).
#[test]
fn where_one_block_of_a_pair_is_refused_the_other_is_not_the_older_one() {
    let newest = Version { seq: 9, ..NEW };
    let run = Run { chunk: CHUNK, first: 0, count: 1, version: newest, kind: Kind::Data };
    let (mut primary, mut commands) = settles(vec![TailRun { run, request: None }], &[]);
    for seq in [3, 5] {
        let question = asked(&commands).expect("a copy of the pair is asked");
        assert_eq!(question.blocks, (0, 2));
        let data = Bytes::from(vec![seq as u8; 2 * BLOCK_BYTES]);
        let both = Record { count: 2, ..record(Version { seq, ..NEW }, Some(&data)) };
        commands = primary.answers(question, Ok(vec![both]), data);
    }
    let stored: Vec<StoreCommand> = commands.iter().filter_map(stored_by).map(|(_, c)| c).collect();
    let [StoreCommand::Repair { record, payload, .. }] = &stored[..] else { panic!("{stored:?}") };
    assert_eq!((record.first, record.count, record.version.seq, payload[0]), (1, 1, 5, 5));
}

/// A source lists as lost what it could not repair while a member was away. That one may have it, in an older version
/// than the source can rule out.
#[test]
fn what_was_listed_as_lost_while_a_member_was_away_is_listed_again() {
    let lists = |commands: &Vec<Command>| {
        commands.iter().any(|c| matches!(c, Command::Send { message: PeerMessage::List { .. }, .. }))
    };
    let (mut replica, _) = catches_up(&[Kind::Lost]);
    replica.is(ME, ServerState::Failed);
    let commands = (0..200).map(|_| replica.ticks()).find(lists).expect("it begins again");
    let (mut replica, _) = misses(&[run_of(0, 1, Kind::Lost)], (replica, commands));
    replica.is(ME, ServerState::Awake);
    let next = (0..200).map(|_| replica.ticks()).find(|c| asked(c).is_some() || lists(c));
    let next = next.expect("it goes on");
    assert!(asked(&next).is_none(), "{next:?}");
}

/// A store that has failed says nothing of what it has.
#[test]
fn what_a_copy_that_failed_may_have_is_not_stored_as_lost() {
    let (mut replica, commands) = catches_up(&[Kind::Data]);
    let (_, commands) = all_refuse(&mut replica, commands, Refusal::Poisoned);
    assert!(store(&commands).is_none() && !has_caught_up(&commands), "{commands:?}");
    let again = (0..200).map(|_| replica.ticks()).find(|c| asked(c).is_some());
    assert!(again.is_some(), "it is asked for again");
}

/// It was passed over, and is there again before the others have said that they have none.
#[test]
fn what_a_copy_that_was_away_at_its_turn_may_have_is_not_given_up() {
    let (mut primary, commands) = settles_as(Server::started(ME, RecoveredTail::default(), false).0, &[]);
    let question = asked(&commands).expect("a copy is asked");
    primary.is(FORMER, ServerState::Failed);
    let commands = primary.answers(question, Err(Refusal::Lost), Bytes::new());
    let commands = nobody_has_it(&mut primary, commands);
    primary.is(FORMER, ServerState::Awake);
    let commands = own_blocks(&mut primary, commands, &[]);
    assert_eq!(ordered(&commands), [], "{commands:?}");
}

/// A source said that it has lost the block. That no other copy has it is not known before they are asked.
#[test]
fn what_a_primary_that_catches_up_is_told_is_lost_is_not_ordered_as_lost() {
    let state = SlotState::CatchingUp { since: Epoch(5) };
    let slots = vec![
        Slot { server: ME, state, holder: Some(Holder::new(HOLDER, true)) },
        Slot { server: OTHER, state: SlotState::InSync, holder: None },
    ];
    let started = Server::member_of(slots, ME, RecoveredTail::default());
    let (mut primary, _) = misses(&[run_of(0, 1, Kind::Lost)], started);
    let (group, epoch, forgotten) = (GROUP, Epoch(9), Version::ZERO);
    let open = Run { version: Version { seq: 9, ..NEW }, ..run_of(0, 1, Kind::Data) };
    let mut commands = Vec::new();
    for from in [OTHER, HOLDER] {
        let tail = vec![TailRun { run: open, request: None }];
        let fenced = PeerMessage::FenceReply { group, epoch, tail, done: Vec::new(), forgotten };
        commands.extend(primary.on(Event::Peer { from, message: fenced, payload: Bytes::new() }));
    }
    while let Some(at) = commands.iter().position(|c| stored_by(c).is_some()) {
        let (token, command) = stored_by(&commands.swap_remove(at)).expect("it is one");
        let StoreCommand::Newer { runs, .. } = command else { panic!("{command:?}") };
        commands.extend(primary.stored(token, StoreOutcome::Newer(runs)));
    }
    assert_eq!(ordered(&commands), [], "{commands:?}");
    let question = (0..200).map(|_| primary.ticks()).find_map(|c| asked(&c));
    assert!(question.is_some(), "the copies are asked");
}
