//! A holder drops its offload as soon as the slot is in sync. No server may mistake the empty remainder for "nothing
//! missed": one that did lost acknowledged writes, and as primary undid them on the others too. Nor may a server take a
//! reply to a request of its earlier incarnation for a reply to its own.

use bytes::Bytes;
use ebb_chunkserver::{Command, Config, Event, Recovered, Replica, StoreCommand, StoreOutcome};
use ebb_types::{
    ChunkId, Content, Epoch, GroupEntry, GroupId, Holder, Incarnation, Kind, ListPage, MapDelta, Moment,
    PeerMessage, Record, RecoveredTail, Refusal, Role, Run, ServerEntry, ServerId, ServerReport, ServerState,
    Slot, SlotState, StoreId, TailRun, Version,
};

const ME: ServerId = ServerId(1);
/// Also catching up; together with its holder it is complete.
const OTHER: ServerId = ServerId(2);
const HOLDER: ServerId = ServerId(4);
const GROUP: GroupId = GroupId(0);
const KEPT: Role = Role::Offload { stands_for: OTHER };

struct Server {
    replica: Replica,
    run: u64,
    version: u64,
}

impl Server {
    fn new(id: ServerId) -> Server {
        Server::run(id, 1)
    }

    fn run(id: ServerId, incarnation: u64) -> Server {
        let config = Config::new(id, Incarnation(incarnation), StoreId(1), 1 << 20, 1);
        Server { replica: Replica::new(config, Recovered::default()), run: incarnation, version: 0 }
    }

    fn on(&mut self, event: Event) -> Vec<Command> {
        let mut out = Vec::new();
        self.replica.on(Moment(1), event, &mut out);
        out
    }

    /// `ME` and a third server are catching up; so is `OTHER`, from `HOLDER`, until it is in sync.
    fn configure(&mut self, epoch: u32, in_sync: bool) -> Vec<Command> {
        match in_sync {
            true => self.configure_other(epoch, SlotState::InSync, None),
            false => {
                let holder = Some(Holder::new(HOLDER, true));
                self.configure_other(epoch, SlotState::CatchingUp { since: Epoch(1) }, holder)
            }
        }
    }

    fn configure_other(&mut self, epoch: u32, state: SlotState, holder: Option<Holder>) -> Vec<Command> {
        let slot = |server, state, holder| Slot { server, state, holder };
        let catching_up = SlotState::CatchingUp { since: Epoch(1) };
        let other = slot(OTHER, state, holder);
        let slots = vec![slot(ME, catching_up, None), other, slot(ServerId(3), catching_up, None)];
        self.adopt(epoch, slots)
    }

    fn adopt(&mut self, epoch: u32, slots: Vec<Slot>) -> Vec<Command> {
        let servers = [1, 2, 3, 4, 5].map(|id| ServerEntry {
            incarnation: Incarnation(self.run),
            ..crate::server(id, id as u8 % 3, ServerState::Awake)
        });
        let entry =
            GroupEntry { epoch: Epoch(epoch), primary: Some(ServerId(3)), slots, ..GroupEntry::unknown() };
        let (from, to) = (self.version, self.version + 1);
        self.version = to;
        self.on(Event::Map(MapDelta {
            from,
            to,
            servers: servers.into(),
            groups: vec![(GROUP, entry)],
            ..MapDelta::default()
        }))
    }

    fn hear(&mut self, from: ServerId, message: PeerMessage) -> Vec<Command> {
        self.on(Event::Peer { from, message, payload: Bytes::new() })
    }
}

const RUN: Run = Run {
    chunk: ChunkId { object: ebb_types::ObjectId(1), index: 0 },
    first: 0,
    count: 0,
    version: Version::ZERO,
    kind: Kind::Data,
};

/// What the store is asked first.
fn stored(commands: &[Command]) -> Option<ebb_chunkserver::StoreToken> {
    commands.iter().find_map(|c| match c {
        Command::Store { token, .. } => Some(*token),
        _ => None,
    })
}

/// The listing requested: from which server, in which role, and its token.
fn asked(commands: &[Command]) -> Option<(ServerId, Role, u64)> {
    commands.iter().find_map(|c| match c {
        Command::Send { to, message: PeerMessage::List { role, token, .. }, .. } => {
            Some((*to, *role, *token))
        }
        _ => None,
    })
}

#[test]
fn a_holder_lists_only_what_it_still_keeps() {
    let list = |epoch| PeerMessage::List {
        group: GROUP,
        epoch: Epoch(epoch),
        token: 7,
        role: KEPT,
        since: Epoch(1),
        after: None,
    };
    let mut holder = Server::new(HOLDER);
    holder.configure(5, false);
    let commands = holder.hear(ME, list(5));
    let stored =
        |c: &Command| matches!(c, Command::Store { command: StoreCommand::List { role: KEPT, .. }, .. });
    assert!(commands.iter().any(stored), "{commands:?}");
    holder.configure(6, true);
    let commands = holder.hear(ME, list(6));
    let refused = |c: &Command| {
        let PeerMessage::ListReply { token: 7, result, .. } = (match c {
            Command::Send { to: ME, message, .. } => message,
            _ => return false,
        }) else {
            return false;
        };
        *result == Err(Refusal::NotReady)
    };
    assert!(commands.iter().any(refused), "{commands:?}");
}

/// The store is slow to list, and drops before it has listed.
#[test]
fn a_listing_of_an_ended_epoch_is_not_given() {
    let (group, epoch, since) = (GROUP, Epoch(5), Epoch(1));
    let mut holder = Server::new(HOLDER);
    holder.configure(5, false);
    let list = PeerMessage::List { group, epoch, token: 7, role: KEPT, since, after: None };
    let commands = holder.hear(ME, list);
    let listed = commands.iter().find_map(|c| match c {
        Command::Store { token, command: StoreCommand::List { .. } } => Some(*token),
        _ => None,
    });
    holder.configure(6, true);
    let outcome = StoreOutcome::Listed(ListPage::default());
    let commands = holder.on(Event::Stored { token: listed.expect("it is listed"), outcome });
    let given = |c: &Command| match c {
        Command::Send { message: PeerMessage::ListReply { result, .. }, .. } => Some(result.clone()),
        _ => None,
    };
    let refused = Err(Refusal::Stale { newest: Epoch(6) });
    assert_eq!(commands.iter().find_map(given), Some(refused));
}

/// A write that is not known to be on all targets stays in doubt for as long as it is kept.
#[test]
fn a_tail_is_kept_with_what_it_is_of() {
    let version = Version { epoch: Epoch(4), seq: 13 };
    let run = Run { chunk: ChunkId::default(), first: 6, count: 3, version, kind: Kind::Data };
    let tail = RecoveredTail { open: vec![TailRun { run, request: None }], ..RecoveredTail::default() };
    let config = Config::new(HOLDER, Incarnation(1), StoreId(1), 1 << 20, 1);
    let tails = [(GROUP, tail)].into();
    let recovered = Recovered { tails, roles: vec![(GROUP, KEPT)], ..Recovered::default() };
    let mut holder = Server { replica: Replica::new(config, recovered), run: 1, version: 0 };
    let away = SlotState::Away { since: Epoch(1) };
    holder.configure_other(5, away, None);
    holder.configure_other(6, away, Some(Holder::new(HOLDER, false)));
    let fence = PeerMessage::Fence { group: GROUP, epoch: Epoch(6), done: Vec::new() };
    let commands = holder.hear(ServerId(3), fence);
    let received = commands.iter().find_map(|c| match c {
        Command::Send { message: PeerMessage::FenceReply { tail, .. }, .. } => Some(tail.clone()),
        _ => None,
    });
    let received = received.expect("it is fenced");
    assert_eq!(received.iter().map(|t| t.run).collect::<Vec<_>>(), [run]);
}

#[test]
fn a_drop_for_which_there_was_no_room_is_tried_again() {
    let config = Config::new(HOLDER, Incarnation(1), StoreId(1), 1 << 20, 1);
    let recovered = Recovered { roles: vec![(GROUP, KEPT)], ..Recovered::default() };
    let mut holder = Server { replica: Replica::new(config, recovered), run: 1, version: 0 };
    let drops = |commands: Vec<Command>| {
        let drop = |c: &&Command| matches!(c, Command::Drop { group: GROUP, role: KEPT });
        commands.iter().filter(drop).count()
    };
    let (beat, full) = (Event::Beat { unix_seconds: 1 }, Event::NotDropped { group: GROUP, role: KEPT });
    assert_eq!(drops(holder.configure(5, false)), 0);
    assert_eq!(drops(holder.configure(6, true)), 1);
    assert_eq!(drops(holder.on(beat.clone())), 0, "once is enough");
    holder.on(full.clone());
    assert_eq!(drops(holder.on(beat.clone())), 1);
    holder.on(full);
    assert_eq!(drops(holder.configure(7, false)), 0, "it is needed again");
    assert_eq!(drops(holder.on(beat)), 0);
}

/// A slot was given to another server while its own was away. A low gear may last for months, with a slot that is away.
#[test]
fn offload_for_a_former_slot_ends_in_a_low_gear_too() {
    let config = Config::new(HOLDER, Incarnation(1), StoreId(1), 1 << 20, 1);
    let roles = [(GROUP, Role::Replica), (GROUP, KEPT)];
    let recovered = Recovered { roles: roles.into(), ..Recovered::default() };
    let mut former = Server { replica: Replica::new(config, recovered), run: 1, version: 0 };
    let slot = |server, state, holder| Slot { server, state, holder };
    let (away, from_zero) = (SlotState::Away { since: Epoch(2) }, SlotState::CatchingUp { since: Epoch(0) });
    let mut drops = |epoch, state, covered| {
        let holder = Some(Holder::new(ServerId(3), covered));
        let slots = vec![
            slot(ME, away, holder),
            slot(ServerId(5), state, None),
            slot(ServerId(3), SlotState::InSync, None),
        ];
        let dropped = |c: &Command| matches!(c, Command::Drop { .. });
        former.adopt(epoch, slots).into_iter().filter(dropped).count()
    };
    assert_eq!(drops(5, from_zero, true), 0, "the server that has the slot now does not have it all");
    assert_eq!(
        drops(6, SlotState::InSync, false),
        0,
        "the sleeping one has nothing of what it missed elsewhere"
    );
    assert_eq!(drops(7, SlotState::InSync, true), 2);
}

#[test]
fn a_listing_that_lost_a_source_starts_over() {
    let mut me = Server::new(ME);
    let commands = me.configure(5, false);
    let (to, role, token) = asked(&commands).expect("the replica is asked first");
    assert_eq!((to, role), (OTHER, Role::Replica));
    // It has fetched nothing from its holder yet.
    let page = ListPage { runs: Vec::new(), next: None };
    let commands = me.hear(OTHER, PeerMessage::ListReply { group: GROUP, token, result: Ok(page) });
    let newer = commands.iter().find_map(|c| match c {
        Command::Store { token, command: StoreCommand::Newer { .. } } => Some(*token),
        _ => None,
    });
    let outcome = StoreOutcome::Newer(Vec::new());
    let commands = me.on(Event::Stored { token: newer.expect("the page is compared"), outcome });
    assert_eq!(asked(&commands).map(|(to, role, _)| (to, role)), Some((HOLDER, KEPT)));
    // Before the reply comes the other replica is in sync: now it has everything, and the holder nothing.
    let commands = me.configure(6, true);
    assert_eq!(asked(&commands).map(|(to, role, _)| (to, role)), Some((OTHER, Role::Replica)));
}

/// The store is slow: it has not written what came before the drop when the same record comes again, to be kept again.
/// Its end once counted for both, and nothing was kept.
#[test]
fn what_is_sent_again_after_a_drop_is_stored_again() {
    let (away, mine) = (SlotState::Away { since: Epoch(3) }, Some(Holder::new(HOLDER, false)));
    let version = Version { epoch: Epoch(3), seq: 2 };
    let content = Content::Zero;
    let record =
        Record { group: GROUP, chunk: RUN.chunk, first: 0, count: 1, version, request: None, content };
    let sent = |epoch| {
        let (epoch, record) = (Epoch(epoch), record.clone());
        PeerMessage::Replicate { epoch, role: KEPT, record, committed: Version::ZERO, must_fit: true }
    };
    let mut holder = Server::new(HOLDER);
    holder.configure_other(5, away, mine);
    let first = stored(&holder.hear(ServerId(3), sent(5))).expect("it is stored");
    assert_eq!(stored(&holder.hear(ServerId(3), sent(5))), None, "it is being stored");
    let commands = holder.configure_other(6, away, Some(Holder::new(ServerId(5), true)));
    assert!(
        commands.iter().any(|c| matches!(c, Command::Drop { role: Role::Offload { .. }, .. })),
        "{commands:?}"
    );
    holder.configure_other(7, away, mine);
    let second = stored(&holder.hear(ServerId(3), sent(7))).expect("it is stored after the drop");
    let is_kept = |commands: &[Command]| {
        commands.iter().any(|c| {
            let Command::Send { message: PeerMessage::ReplicateReply { epoch, result, .. }, .. } = c else {
                return false;
            };
            *epoch == Epoch(7) && result.is_ok()
        })
    };
    let applied = |token| Event::Stored { token, outcome: StoreOutcome::Applied };
    assert!(!is_kept(&holder.on(applied(first))));
    assert_eq!(stored(&holder.hear(ServerId(3), sent(7))), None, "it is still being stored");
    assert!(is_kept(&holder.on(applied(second))));
}

/// Neither the former holder nor the one that took over has everything: both are listed, and both list.
#[test]
fn a_former_holder_and_the_present_one_are_listed_together() {
    const FORMER: ServerId = ServerId(5);
    let since = SlotState::CatchingUp { since: Epoch(1) };
    let both = Holder { former: Some(FORMER), ..Holder::new(HOLDER, false) };
    let mut other = Server::new(OTHER);
    let mut commands = other.configure_other(5, since, Some(both));
    for source in [FORMER, HOLDER] {
        let (to, role, token) = asked(&commands).expect("it is asked");
        assert_eq!((to, role), (source, KEPT));
        let mut keeps = Server::new(source);
        keeps.configure_other(5, since, Some(both));
        let list = |epoch| {
            let (role, since) = (KEPT, Epoch(1));
            PeerMessage::List { group: GROUP, epoch: Epoch(epoch), token, role, since, after: None }
        };
        let listed = |commands: &[Command]| stored(commands).is_some();
        assert!(listed(&keeps.hear(OTHER, list(5))), "{source}");
        keeps.configure_other(6, since, Some(Holder::new(HOLDER, false)));
        assert!(
            !listed(&keeps.hear(OTHER, list(6))),
            "{source} is not all, and nobody knows who has the rest"
        );
        let page = Ok(ListPage { runs: Vec::new(), next: None });
        let compared = other.hear(source, PeerMessage::ListReply { group: GROUP, token, result: page });
        let token = stored(&compared).expect("the page is compared");
        commands = other.on(Event::Stored { token, outcome: StoreOutcome::Newer(Vec::new()) });
    }
    let caught_up = |c: &Command| matches!(c, Command::Report(ServerReport::CaughtUp { .. }));
    assert!(commands.iter().any(caught_up), "{commands:?}");
}

/// The source listed everything in the beginning; its directory was emptied since.
#[test]
fn a_source_that_comes_back_with_less_is_asked_no_more() {
    let mut me = Server::new(ME);
    let from = asked(&me.configure(5, true));
    assert_eq!(from.map(|(to, role, _)| (to, role)), Some((OTHER, Role::Replica)));
    let commands = me.configure_other(6, SlotState::CatchingUp { since: Epoch(0) }, None);
    assert_eq!(asked(&commands), None, "no source is complete");
    let page = Ok(ListPage::default());
    let (_, _, token) = from.expect("it was asked");
    let commands = me.hear(OTHER, PeerMessage::ListReply { group: GROUP, token, result: page });
    assert!(!commands.iter().any(|c| matches!(c, Command::Store { .. })), "{commands:?}");
    let commands = me.configure(7, true);
    assert_eq!(asked(&commands).map(|(to, ..)| to), Some(OTHER), "it is complete again");
}

#[test]
fn an_answer_to_an_earlier_run_answers_nothing() {
    let (mut earlier, mut later) = (Server::run(ME, 1), Server::run(ME, 2));
    let (_, _, before) = asked(&earlier.configure(5, false)).expect("a listing is asked for");
    let (_, _, now) = asked(&later.configure(5, false)).expect("a listing is asked for");
    let answer = |token| PeerMessage::ListReply { group: GROUP, token, result: Ok(ListPage::default()) };
    let compares = |commands: &[Command]| {
        let newer = |c: &Command| matches!(c, Command::Store { command: StoreCommand::Newer { .. }, .. });
        commands.iter().any(newer)
    };
    assert!(!compares(&later.hear(OTHER, answer(before))), "the answer was delayed, and is another run's");
    assert!(compares(&later.hear(OTHER, answer(now))));
}

/// A rebuild copies a replica here, and before any write of the primary comes another server takes the slot.
#[test]
fn a_replica_that_was_only_fetched_is_dropped_with_its_slot() {
    let mut me = Server::new(ME);
    let (from, _, token) = asked(&me.configure(5, true)).expect("a listing is asked for");
    let run = Run { count: 1, version: Version { epoch: Epoch(4), seq: 1 }, kind: Kind::Zero, ..RUN };
    let page = ListPage { runs: vec![run], next: None };
    let commands = me.hear(from, PeerMessage::ListReply { group: GROUP, token, result: Ok(page) });
    let compared = stored(&commands).expect("the page is compared");
    let commands = me.on(Event::Stored { token: compared, outcome: StoreOutcome::Newer(vec![run]) });
    let applied = stored(&commands).expect("zeroes need no bytes");
    me.on(Event::Stored { token: applied, outcome: StoreOutcome::Applied });
    let slot = |server| Slot { server, state: SlotState::InSync, holder: None };
    let commands = me.adopt(6, vec![slot(OTHER), slot(ServerId(3)), slot(HOLDER)]);
    assert!(
        commands.iter().any(|c| matches!(c, Command::Drop { group: GROUP, role: Role::Replica })),
        "{commands:?}"
    );
}
