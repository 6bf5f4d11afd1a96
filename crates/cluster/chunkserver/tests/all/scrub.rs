//! Scrubs, played by hand: the primary compares the copies of a group, makes differing blocks equal, and disturbs
//! neither clients nor sleepers.

use bytes::Bytes;
use ebb_chunkserver::{
    ClientToken, Command, Config, Event, Recovered, Replica, StoreCommand, StoreOutcome, StoreToken,
};
use ebb_types::{
    BLOCK_BYTES, ChunkId, ChunkOp, ClientRequest, Content, Epoch, GroupEntry, GroupId, Holder, Incarnation,
    Kind, ListPage, MapDelta, Moment, PeerMessage, Record, Refusal, RequestId, Role, Run, ScrubMark,
    ServerId, ServerState, Slot, SlotState, StoreId, Version, block_crcs,
};
use std::time::Duration;

const ME: ServerId = ServerId(1);
const OTHER: ServerId = ServerId(2);
const SLEEPER: ServerId = ServerId(3);
const HOLDER: ServerId = ServerId(4);
const GROUP: GroupId = GroupId(0);
const CHUNK: ChunkId = ChunkId { object: ebb_types::ObjectId(0), index: 0 };
const EPOCH: Epoch = Epoch(9);
const DAY: u64 = 24 * 3600;
const V: Version = Version { epoch: Epoch(7), seq: 3 };
const OLD: Version = Version { epoch: Epoch(2), seq: 8 };

struct Primary {
    replica: Replica,
    now: Moment,
}

impl Primary {
    /// The primary of a group with a replica on `OTHER` and one on `SLEEPER`, whose holder is `HOLDER` since epoch 5.
    /// Its own replica was found sound a day after the beginning of time; the period is ten days.
    fn new() -> Primary {
        let mut config = Config::new(ME, Incarnation(1), StoreId(1), 4 << 20, 1);
        config.scrub_period = Duration::from_secs(10 * DAY);
        config.scrub_bytes_per_second = 3 * BLOCK_BYTES as u64; // a block of three copies
        let mark = ScrubMark {
            group: GROUP,
            sound_at: DAY,
            new_at: None,
            after: None,
            sound_so_far: true,
            sound: true,
        };
        let recovered = Recovered { scrubs: vec![mark], ..Recovered::default() };
        let mut primary = Primary { replica: Replica::new(config, recovered), now: Moment(1) };
        primary.on(Event::Lease { until: Moment(u64::MAX) });
        let holder = Some(Holder::new(HOLDER, true));
        let slots = vec![
            Slot { server: ME, state: SlotState::InSync, holder: None },
            Slot { server: OTHER, state: SlotState::InSync, holder: None },
            Slot { server: SLEEPER, state: SlotState::Away { since: Epoch(5) }, holder },
        ];
        let entry = GroupEntry { epoch: EPOCH, primary: Some(ME), slots, ..GroupEntry::unknown() };
        let servers = [1, 2, 3, 4].map(|id| {
            let state = if id == 3 { ServerState::Asleep } else { ServerState::Awake };
            crate::server(id, id as u8 % 3, state)
        });
        primary.on(Event::Map(MapDelta {
            from: 0,
            to: 1,
            servers: servers.into(),
            groups: vec![(GROUP, entry)],
            ..MapDelta::default()
        }));
        for from in [OTHER, HOLDER] {
            let fenced = PeerMessage::FenceReply {
                group: GROUP,
                epoch: EPOCH,
                tail: vec![],
                done: vec![],
                forgotten: Version::ZERO,
            };
            primary.peer(from, fenced);
        }
        primary
    }

    fn on(&mut self, event: Event) -> Vec<Command> {
        let mut out = Vec::new();
        self.replica.on(self.now, event, &mut out);
        out
    }

    fn peer(&mut self, from: ServerId, message: PeerMessage) -> Vec<Command> {
        self.on(Event::Peer { from, message, payload: Bytes::new() })
    }

    fn beat(&mut self, unix_seconds: u64) -> Vec<Command> {
        self.on(Event::Beat { unix_seconds })
    }

    /// All copies list these runs.
    fn listed(&mut self, asked: Vec<Command>, runs: &[Run]) -> Vec<Command> {
        let page = || ListPage { runs: runs.to_vec(), next: None };
        let (own, command) = store(&asked).expect("the own copy is listed");
        assert!(matches!(command, StoreCommand::List { since: Epoch(0), .. }));
        for (to, message) in sent(&asked) {
            let PeerMessage::List { token, role, since, .. } = message else { continue };
            let kept = matches!(role, Role::Offload { stands_for: SLEEPER });
            assert_eq!((kept, since), (to == HOLDER, Epoch(if kept { 5 } else { 0 })));
            let reply = PeerMessage::ListReply { group: GROUP, token, result: Ok(page()) };
            assert!(self.peer(to, reply).is_empty());
        }
        self.on(Event::Stored { token: own, outcome: StoreOutcome::Listed(page()) })
    }

    /// The own window is read; then the other copies are asked.
    fn own(&mut self, asked: &[Command], records: Vec<Record>) -> Vec<Command> {
        let (token, command) = store(asked).expect("the own blocks are read");
        assert!(matches!(command, StoreCommand::Check { first: 0, count: 256, .. }), "{command:?}");
        self.on(Event::Stored { token, outcome: StoreOutcome::Read { records, payload: Bytes::new() } })
    }

    /// No copy has a sound block to give, and no sleeper is woken for it.
    fn refused_by_all(&mut self, mut asked: Vec<Command>) -> Vec<Command> {
        while let Some((to, token)) = fetch(&asked) {
            let message = PeerMessage::FetchReply { group: GROUP, token, result: Err(Refusal::Corrupt) };
            asked = self.peer(to, message);
            assert!(!asked.iter().any(|c| matches!(c, Command::Report(_))), "{asked:?}");
        }
        asked
    }

    /// One block of the own window turns out to be damaged, and no copy has it.
    fn own_without(&mut self, asked: &[Command], block: u32) -> Vec<Command> {
        let (token, _) = store(asked).expect("the own blocks are read");
        let outcome = StoreOutcome::Damaged { chunk: CHUNK, block, lost: None, given_up: false, all: false };
        let asked = self.on(Event::Stored { token, outcome });
        self.refused_by_all(asked)
    }

    /// The blocks behind the first one, of which none was ever written, are read; then the other copies are asked.
    fn rest(&mut self, asked: &[Command]) -> Vec<Command> {
        let (token, command) = store(asked).expect("the rest is read");
        assert!(matches!(command, StoreCommand::Check { first: 1, count: 255, .. }), "{command:?}");
        let records = vec![window(V, 7).remove(1)];
        self.on(Event::Stored { token, outcome: StoreOutcome::Read { records, payload: Bytes::new() } })
    }

    fn checked(
        &mut self,
        asked: &[Command],
        from: ServerId,
        result: Result<Vec<Record>, Refusal>,
    ) -> Vec<Command> {
        let token = sent(asked).find_map(|(to, m)| match m {
            PeerMessage::Check { token, .. } if to == from => Some(token),
            _ => None,
        });
        self.peer(from, PeerMessage::CheckReply { group: GROUP, token: token.expect("it is asked"), result })
    }
}

fn sent(commands: &[Command]) -> impl Iterator<Item = (ServerId, PeerMessage)> {
    commands.iter().filter_map(|c| match c {
        Command::Send { to, message, .. } => Some((*to, message.clone())),
        _ => None,
    })
}

fn store(commands: &[Command]) -> Option<(StoreToken, StoreCommand)> {
    commands.iter().find_map(|c| match c {
        Command::Store { token, command } => Some((*token, command.clone())),
        _ => None,
    })
}

fn fetch(commands: &[Command]) -> Option<(ServerId, u64)> {
    sent(commands).find_map(|(to, message)| match message {
        PeerMessage::Fetch { token, .. } => Some((to, token)),
        _ => None,
    })
}

/// The own blocks that are to be read (first, count).
fn reads(commands: &[Command]) -> Vec<(StoreToken, (u32, u32))> {
    let blocks = |c: &Command| match c {
        Command::Store {
            token,
            command: StoreCommand::Check { first, count, .. } | StoreCommand::Read { first, count, .. },
        } => Some((*token, (*first, *count))),
        _ => None,
    };
    commands.iter().filter_map(blocks).collect()
}

fn replicates(commands: &[Command]) -> bool {
    sent(commands).any(|(_, message)| matches!(message, PeerMessage::Replicate { .. }))
}

fn run(version: Version) -> Run {
    Run { chunk: CHUNK, first: 0, count: 1, version, kind: Kind::Data }
}

fn bytes(fill: u8) -> Bytes {
    Bytes::from(vec![fill; BLOCK_BYTES])
}

fn record(first: u32, count: u32, version: Version, content: Content) -> Record {
    Record { group: GROUP, chunk: CHUNK, first, count, version, request: None, content }
}

/// A window with this first block; no other block of it was ever written.
fn window(version: Version, fill: u8) -> Vec<Record> {
    let data = Content::Data { crcs: block_crcs(&bytes(fill)) };
    vec![record(0, 1, version, data), record(1, 255, Version::ZERO, Content::Zero)]
}

fn scrubbed(commands: &[Command]) -> Vec<(ServerId, bool)> {
    let received = sent(commands).filter_map(|(to, m)| match m {
        PeerMessage::Scrubbed { after: None, end: None, sound, .. } => Some((to, sound)),
        _ => None,
    });
    received.collect()
}

/// A primary that has read its window and asked the others for theirs.
fn comparing() -> (Primary, Vec<Command>) {
    let mut primary = Primary::new();
    let asked = primary.beat(7 * DAY);
    let asked = primary.listed(asked, &[run(V)]);
    let asked = primary.own(&asked, window(V, 7));
    (primary, asked)
}

/// A client's write of a block that is compared.
fn write() -> Event {
    let (len, crcs) = (BLOCK_BYTES as u32, block_crcs(&bytes(8)));
    let op = ChunkOp::Write { chunk: CHUNK, offset: 0, len, request: RequestId { client: 1, seq: 1 }, crcs };
    let request = ClientRequest { group: GROUP, epoch: EPOCH, since: Version::first_of(EPOCH), claim: 0, op };
    Event::Client { token: ClientToken(1), request, payload: bytes(8) }
}

fn is_written(command: &Command) -> bool {
    matches!(command, Command::Store { command: StoreCommand::Apply { .. }, .. })
}

/// Ten seconds later: after the last answer, the next tick ends the page.
fn later(primary: &mut Primary) -> Vec<Command> {
    primary.now = primary.now + Duration::from_secs(10);
    primary.on(Event::Tick)
}

#[test]
fn copies_that_are_alike_are_found_right_and_the_date_is_kept() {
    let (mut primary, asked) = comparing();
    assert!(sent(&asked).all(|(to, _)| to != SLEEPER), "a sleeper is left alone");
    primary.checked(&asked, OTHER, Ok(window(V, 7)));
    primary.checked(&asked, HOLDER, Ok(window(V, 7)));
    assert_eq!(scrubbed(&later(&mut primary)), [(OTHER, true)]);
    assert!(!primary.replica.wants_ticks(), "nothing runs until the next one is due");
    let kept = primary.beat(7 * DAY + 1);
    let kept = kept.iter().find_map(|c| match c {
        Command::KeepScrubs { marks } => Some(marks[0].sound_at),
        _ => None,
    });
    assert_eq!(kept, Some(7 * DAY));
    let vitals = primary.replica.stats().scrub;
    assert_eq!((vitals.due, vitals.oldest_seconds, vitals.differing_blocks), (0, 1, 0));
}

#[test]
fn nothing_is_compared_before_it_is_due() {
    let mut primary = Primary::new();
    assert!(primary.beat(6 * DAY - 1).is_empty());
    assert!(store(&primary.beat(6 * DAY)).is_some());
}

#[test]
fn an_older_copy_gets_what_the_primary_has() {
    let (mut primary, asked) = comparing();
    primary.checked(&asked, OTHER, Ok(window(OLD, 1)));
    let asked = primary.checked(&asked, HOLDER, Ok(window(V, 7)));
    let (token, command) = store(&asked).expect("what differs is read");
    assert!(matches!(command, StoreCommand::Read { first: 0, count: 1, .. }), "{command:?}");
    let records = vec![window(V, 7).remove(0)];
    let asked =
        primary.on(Event::Stored { token, outcome: StoreOutcome::Read { records, payload: bytes(7) } });
    let version = Version { epoch: EPOCH, seq: 1 };
    let ordered: Vec<ServerId> = sent(&asked)
        .filter(|(_, m)| matches!(m, PeerMessage::Replicate { record, .. } if record.version == version))
        .map(|(to, _)| to)
        .collect();
    assert_eq!(ordered, [OTHER, HOLDER]);
    let (token, _) = store(&asked).expect("and on this server");
    primary.on(Event::Stored { token, outcome: StoreOutcome::Applied });
    for from in [OTHER, HOLDER] {
        let done =
            PeerMessage::ReplicateReply { group: GROUP, epoch: EPOCH, version, first: 0, result: Ok(()) };
        primary.peer(from, done);
    }
    assert_eq!(scrubbed(&later(&mut primary)), [(OTHER, true)]);
    let vitals = primary.replica.stats().scrub;
    assert_eq!((vitals.differing_blocks, vitals.equalled_blocks), (1, 1));
}

#[test]
fn what_another_copy_has_newer_is_fetched_first() {
    let mut primary = Primary::new();
    let asked = primary.beat(7 * DAY);
    let asked = primary.listed(asked, &[run(V)]);
    let asked = primary.own(&asked, window(OLD, 1));
    primary.checked(&asked, OTHER, Ok(window(V, 7)));
    let asked = primary.checked(&asked, HOLDER, Ok(window(V, 7)));
    let fetch = sent(&asked).find_map(|(to, m)| match m {
        PeerMessage::Fetch { token, role, first: 0, count: 1, .. } => Some((to, role, token)),
        _ => None,
    });
    let (from, role, token) = fetch.expect("it is fetched");
    assert_eq!((from, role), (OTHER, Role::Replica));
    let message = PeerMessage::FetchReply { group: GROUP, token, result: Ok(vec![window(V, 7).remove(0)]) };
    let asked = primary.on(Event::Peer { from, message, payload: bytes(7) });
    let (token, command) = store(&asked).expect("it is written");
    assert!(matches!(command, StoreCommand::Repair { record, .. } if record.version == V));
    let asked = primary.on(Event::Stored { token, outcome: StoreOutcome::Applied });
    let (token, _) = store(&asked).expect("it is read again");
    let read = StoreOutcome::Read { records: vec![window(V, 7).remove(0)], payload: bytes(7) };
    let asked = primary.on(Event::Stored { token, outcome: read });
    let asked = primary.own(&asked, window(V, 7));
    primary.checked(&asked, OTHER, Ok(window(V, 7)));
    primary.checked(&asked, HOLDER, Ok(window(V, 7)));
    assert_eq!(scrubbed(&later(&mut primary)), [(OTHER, true)]);
}

#[test]
fn what_is_newer_elsewhere_and_cannot_be_had_is_never_overwritten() {
    let mut primary = Primary::new();
    let asked = primary.beat(7 * DAY);
    let asked = primary.listed(asked, &[run(V)]);
    let asked = primary.own(&asked, window(OLD, 1));
    primary.checked(&asked, OTHER, Ok(window(V, 7)));
    let asked = primary.checked(&asked, HOLDER, Ok(window(OLD, 1)));
    assert_eq!(fetch(&asked).map(|(from, _)| from), Some(OTHER));
    let asked = primary.refused_by_all(asked);
    let asked = primary.rest(&asked);
    let answered = primary.checked(&asked, OTHER, Ok(window(V, 7)));
    assert!(!replicates(&answered));
    let answered = primary.checked(&asked, HOLDER, Ok(window(OLD, 1)));
    assert!(!replicates(&answered));
    let ended = later(&mut primary);
    assert!(!replicates(&ended));
    assert_eq!(scrubbed(&ended), [(OTHER, false)]);
    primary.beat(7 * DAY + 1);
    assert_eq!(primary.replica.stats().scrub.unsound, 1);
}

#[test]
fn a_holder_needs_only_what_was_written_since_it_became_one() {
    let mut primary = Primary::new();
    let asked = primary.beat(7 * DAY);
    let asked = primary.listed(asked, &[run(OLD)]);
    let asked = primary.own(&asked, window(OLD, 7));
    primary.checked(&asked, OTHER, Ok(window(OLD, 7)));
    let nothing = vec![record(0, 256, Version::ZERO, Content::Zero)];
    let asked = primary.checked(&asked, HOLDER, Ok(nothing));
    assert!(store(&asked).is_none(), "nothing is ordered again");
    let (mut primary, asked) = comparing();
    primary.checked(&asked, OTHER, Ok(window(V, 7)));
    let asked = primary.checked(&asked, HOLDER, Err(Refusal::Corrupt));
    assert!(matches!(store(&asked), Some((_, StoreCommand::Read { first: 0, count: 1, .. }))), "{asked:?}");
}

/// The holder also held offload earlier; the chunk was deleted since, and the deletion is forgotten.
#[test]
fn what_a_holder_has_from_an_earlier_time_is_not_fetched() {
    let mut primary = Primary::new();
    let asked = primary.beat(7 * DAY);
    let asked = primary.listed(asked, &[run(V)]);
    let nothing = || vec![record(0, 256, Version::ZERO, Content::Zero)];
    let asked = primary.own(&asked, nothing());
    primary.checked(&asked, OTHER, Ok(nothing()));
    let asked = primary.checked(&asked, HOLDER, Ok(window(OLD, 7)));
    let fetched = sent(&asked).any(|(_, m)| matches!(m, PeerMessage::Fetch { .. }));
    assert!(!fetched && store(&asked).is_none(), "{asked:?}");
    assert!(scrubbed(&later(&mut primary)).iter().all(|(_, sound)| *sound));
}

#[test]
fn damage_that_only_a_sleeper_could_repair_wakes_no_server() {
    let mut primary = Primary::new();
    let asked = primary.beat(7 * DAY);
    let asked = primary.listed(asked, &[run(V)]);
    let asked = primary.own_without(&asked, 0);
    let asked = primary.rest(&asked);
    primary.checked(&asked, OTHER, Err(Refusal::Corrupt));
    let mut ended = primary.checked(&asked, HOLDER, Err(Refusal::Corrupt));
    ended.extend(later(&mut primary));
    assert!(!ended.iter().any(|c| matches!(c, Command::Report(_))));
    primary.beat(7 * DAY + 1);
    assert_eq!(primary.replica.stats().scrub.unsound, 1, "and it is said");
}

#[test]
fn no_copy_is_called_sound_where_the_primary_could_not_read() {
    let mut primary = Primary::new();
    let asked = primary.beat(7 * DAY);
    let asked = primary.listed(asked, &[run(V)]);
    let asked = primary.own_without(&asked, 0);
    let asked = primary.rest(&asked);
    let checks = sent(&asked).filter(|(_, m)| matches!(m, PeerMessage::Check { first: 0, count: 256, .. }));
    assert_eq!(checks.map(|(to, _)| to).collect::<Vec<_>>(), [OTHER, HOLDER], "each checks all that it has");
    primary.checked(&asked, OTHER, Ok(window(OLD, 1)));
    let mut ended = primary.checked(&asked, HOLDER, Ok(window(V, 7)));
    ended.extend(later(&mut primary));
    assert!(!replicates(&ended), "nothing takes the place of what may come back");
    assert_eq!(scrubbed(&ended), [(OTHER, false)]);
    primary.beat(7 * DAY + 1);
    let vitals = primary.replica.stats().scrub;
    assert_eq!((vitals.unsound, vitals.differing_blocks), (1, 0));
}

#[test]
fn blocks_beside_one_that_nobody_can_read_are_made_equal() {
    // Three blocks of data, the outer ones at this version.
    let three = |outer: Version| {
        let data = |first, version| record(first, 1, version, Content::Data { crcs: block_crcs(&bytes(7)) });
        let never = record(3, 253, Version::ZERO, Content::Zero);
        vec![data(0, outer), data(1, V), data(2, outer), never]
    };
    let mut primary = Primary::new();
    let asked = primary.beat(7 * DAY);
    let asked = primary.listed(asked, &[run(V)]);
    let mut asked = primary.own_without(&asked, 1);
    let own = three(V);
    let parts = [((0, 1), &own[..1]), ((2, 254), &own[2..])];
    for ((token, blocks), (wanted, records)) in reads(&asked).into_iter().zip(parts) {
        assert_eq!(blocks, wanted);
        let outcome = StoreOutcome::Read { records: records.to_vec(), payload: Bytes::new() };
        asked = primary.on(Event::Stored { token, outcome });
    }
    primary.checked(&asked, OTHER, Ok(three(OLD)));
    let mut asked = primary.checked(&asked, HOLDER, Ok(three(V)));
    let outer = reads(&asked);
    assert_eq!(outer.iter().map(|(_, blocks)| *blocks).collect::<Vec<_>>(), [(0, 1), (2, 1)]);
    for (token, (first, _)) in outer {
        let records = vec![own[first as usize].clone()];
        let outcome = StoreOutcome::Read { records, payload: bytes(7) };
        asked = primary.on(Event::Stored { token, outcome });
    }
    let ordered = sent(&asked).filter_map(|(to, m)| match m {
        PeerMessage::Replicate { record, .. } if to == OTHER => Some((record.first, record.count)),
        _ => None,
    });
    assert_eq!(ordered.collect::<Vec<_>>(), [(0, 1), (2, 1)], "the one between is left as it is");
}

#[test]
fn a_window_of_which_the_primary_can_read_nothing_is_checked_by_the_others() {
    let mut primary = Primary::new();
    let asked = primary.beat(7 * DAY);
    let asked = primary.listed(asked, &[run(V)]);
    let (token, _) = store(&asked).expect("the own blocks are read");
    let lost = StoreOutcome::Damaged { chunk: CHUNK, block: 0, lost: Some(V), given_up: false, all: true };
    let mut asked = primary.on(Event::Stored { token, outcome: lost.clone() });
    while let Some((to, token)) = fetch(&asked) {
        asked = primary.peer(to, PeerMessage::FetchReply { group: GROUP, token, result: Err(Refusal::Lost) });
    }
    let (token, _) = reads(&asked)[0];
    let asked = primary.on(Event::Stored { token, outcome: lost });
    assert!(reads(&asked).is_empty());
    primary.checked(&asked, OTHER, Err(Refusal::Corrupt));
    let mut ended = primary.checked(&asked, HOLDER, Err(Refusal::Corrupt));
    ended.extend(later(&mut primary));
    assert_eq!(scrubbed(&ended), [(OTHER, false)]);
}

#[test]
fn nothing_is_said_of_the_others_if_the_own_store_gives_no_answer() {
    let mut primary = Primary::new();
    let asked = primary.beat(7 * DAY);
    let asked = primary.listed(asked, &[run(V)]);
    let (token, _) = store(&asked).expect("the own blocks are read");
    let outcome = StoreOutcome::Failed(Refusal::NotReady);
    let mut ended = primary.on(Event::Stored { token, outcome });
    ended.extend(later(&mut primary));
    assert_eq!(scrubbed(&ended), []);
    primary.beat(7 * DAY + 1);
    assert_eq!(primary.replica.stats().scrub.unsound, 1);
}

#[test]
fn windows_keep_to_the_rate_and_let_writes_in_between() {
    let mut primary = Primary::new();
    let asked = primary.beat(7 * DAY);
    let second = Run { first: 256, ..run(V) };
    let asked = primary.listed(asked, &[run(V), second]);
    let asked = primary.own(&asked, window(V, 7));
    assert!(primary.on(write()).is_empty(), "it waits while its blocks are compared");
    primary.checked(&asked, OTHER, Ok(window(V, 7)));
    let asked = primary.checked(&asked, HOLDER, Ok(window(V, 7)));
    assert!(asked.iter().any(is_written), "{asked:?}");
    // Three blocks were read: one second's budget.
    let checks = |commands: &[Command]| {
        let checks =
            |c: &Command| matches!(c, Command::Store { command: StoreCommand::Check { first: 256, .. }, .. });
        commands.iter().any(checks)
    };
    assert!(!checks(&asked));
    primary.now = primary.now + Duration::from_millis(999);
    assert!(!checks(&primary.on(Event::Tick)));
    primary.now = primary.now + Duration::from_millis(1);
    assert!(checks(&primary.on(Event::Tick)));
}

/// Its disk takes long, or its answer was lost with a connection that has not broken yet (seed 30261203763).
#[test]
fn a_copy_that_does_not_answer_holds_writes_up_for_two_seconds_only() {
    let (mut primary, asked) = comparing();
    assert!(primary.on(write()).is_empty(), "it waits while its blocks are compared");
    primary.checked(&asked, HOLDER, Ok(window(V, 7)));
    let writes = |primary: &mut Primary, millis| {
        primary.now = primary.now + Duration::from_millis(millis);
        primary.on(Event::Tick).iter().any(is_written)
    };
    assert!(!writes(&mut primary, 1999));
    assert!(writes(&mut primary, 1));
    assert_eq!(scrubbed(&later(&mut primary)), [], "nothing is said of the one that was left out");
}

/// The same while it lists.
#[test]
fn a_copy_that_does_not_list_is_left_out() {
    let mut primary = Primary::new();
    let asked = primary.beat(7 * DAY);
    let (own, _) = store(&asked).expect("the own copy is listed");
    let page = ListPage { runs: vec![run(V)], next: None };
    primary.on(Event::Stored { token: own, outcome: StoreOutcome::Listed(page) });
    primary.now = primary.now + Duration::from_secs(2);
    let commands = primary.on(Event::Tick);
    let checks = |(_, command): &(StoreToken, StoreCommand)| matches!(command, StoreCommand::Check { .. });
    assert!(store(&commands).is_some_and(|of| checks(&of)), "{commands:?}");
}
