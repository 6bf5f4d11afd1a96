mod rescue;

use super::*;
use crate::namespace::table::Blob;
use crate::raft::{Birth, Job, LogFile, MemoryLog, create};
use crate::{Bootstrap, NewServer, SwitchAction, Timing, WakePath};
use ebb_types::*;
use std::sync::Arc;
use std::time::Duration;

fn bootstrap() -> Bootstrap {
    let params = ClusterParams {
        cluster: 1,
        instance: 1,
        chunk_bytes: CHUNK_BYTES_MIN,
        replicas: 3,
        groups: 3,
        lease_millis: 2000,
    };
    let server = |id: u16| NewServer {
        id: ServerId(id),
        rack: RackId(id),
        pool: PoolId::REPLICATED,
        gear_group: GearGroup(id as u8),
        address: format!("127.0.0.1:{}", 7000 + id),
    };
    let groups = vec![(0..3).map(ServerId).collect(); 3];
    let servers = (0..3).map(server).collect();
    let (pools, sets) = (Vec::new(), Vec::new());
    Bootstrap { params, servers, groups, pools, sets, schedule: Schedule::default() }
}

fn config(id: MemberId, members: u64) -> MemberConfig {
    MemberConfig {
        id,
        members: (1..=members).map(|id| (id, format!("127.0.0.1:{}", 6000 + id))).collect(),
        seed: 1,
        log_bytes: crate::LOG_BYTES,
        bootstrap: Some(bootstrap()),
        timing: Timing::default(),
        switches: (0..20).map(|id| (ServerId(id), vec![WakePath::switch("process", true)])).collect(),
    }
}

fn founded(id: MemberId, members: u64) -> MemoryLog {
    let mut log = MemoryLog::default();
    create(&mut log, Birth { id, instance: 77, voters: (1..=members).collect() }).unwrap();
    log
}

const FIRST_RUN: Incarnation = Incarnation(1 << 24);

fn heartbeat(server: u16, sent: u64, map_version: u64) -> Input {
    heartbeat_of(FIRST_RUN, 0, (server, sent, map_version))
}

fn heartbeat_of(run: Incarnation, position: u64, (server, sent, map_version): (u16, u64, u64)) -> Input {
    Input::Server(ServerMessage::Heartbeat {
        server: ServerId(server),
        incarnation: run,
        mark: StoreMark { store: StoreId(1), position },
        sent: Moment(sent),
        map_version,
        vitals: Box::default(),
    })
}

fn ask(token: u64, request: MetaRequest) -> Input {
    Input::Client { token: Token { connection: 1, id: token }, is_admin: true, request }
}

/// The first command of client 1, which gets session 1.
fn introduction() -> Input {
    ask(0, MetaRequest::Namespace(NamespaceCommand::first(RequestId { client: 1, seq: 0 }, 0)))
}

fn change(seq: u64, ops: Vec<NamespaceOp>) -> MetaRequest {
    let request = RequestId { client: 1, seq };
    MetaRequest::Namespace(NamespaceCommand { request, session: Some(1), clock_millis: 0, ops })
}

fn replies(out: &[Outcome]) -> Vec<(u64, MetaReply)> {
    let reply = |o: &Outcome| match o {
        Outcome::Reply { token, reply } => Some((token.id, reply.clone())),
        _ => None,
    };
    out.iter().filter_map(reply).collect()
}

fn single() -> Member<MemoryLog> {
    let mut member = Member::open(config(1, 1), founded(1, 1), Moment(1), 0).unwrap();
    member.on(Moment(1), Vec::new(), &mut Vec::new()).unwrap();
    member
}

#[test]
fn a_single_member_creates_the_cluster_and_answers_within_one_call() {
    let mut member = single();
    assert!(member.is_leader());
    let mut out = Vec::new();
    let inputs = vec![
        ask(1, MetaRequest::AllocateObjects { count: 5 }),
        ask(2, MetaRequest::AllocateObjects { count: 5 }),
        ask(3, MetaRequest::AllocateObjects { count: 0 }),
        ask(4, MetaRequest::Watch { map_version: 0 }),
        ask(5, MetaRequest::Admin(AdminRequest::Status)),
        ask(6, MetaRequest::Query(NamespaceQuery::Buckets)),
    ];
    member.on(Moment(2), inputs, &mut out).unwrap();
    let replies: BTreeMap<u64, MetaReply> = replies(&out).into_iter().collect();
    assert_eq!(replies[&1], MetaReply::Objects { first: ObjectId(1), count: 5 });
    assert_eq!(replies[&2], MetaReply::Objects { first: ObjectId(6), count: 5 });
    assert!(matches!(replies[&3], MetaReply::Failed(MetaFailure::Refused(_))));
    let MetaReply::Watch { params, map } = &replies[&4] else { panic!("{replies:?}") };
    assert_eq!((map.groups.len(), map.from), (3, 0));
    assert_eq!(params.instance, 77, "what the founder drew");
    assert!(matches!(&replies[&5], MetaReply::Admin(AdminReply::Status(s)) if s.servers.len() == 3));
    assert_eq!(replies[&6], MetaReply::Query(Ok(NamespaceAnswer::Buckets(Vec::new()))));
}

#[test]
fn heartbeats_of_all_servers_give_every_group_a_primary_and_then_write_nothing() {
    let mut member = single();
    let mut out = Vec::new();
    member.on(Moment(10), (0..3).map(|id| heartbeat(id, 1, 0)).collect(), &mut out).unwrap();
    assert!(member.state().groups().all(|(_, g)| g.primary.is_some() && g.is_in_sync()));
    let version = member.state().version();
    out.clear();
    member.on(Moment(20), (0..3).map(|id| heartbeat(id, 2, version)).collect(), &mut out).unwrap();
    let leases =
        out.iter().filter(|o| matches!(o, Outcome::Push { push: MetaPush::Lease { .. }, .. })).count();
    assert_eq!(leases, 3, "{out:?}");
    assert_eq!(member.state().version(), version, "a heartbeat changes nothing");
    // Only silence, or a pause of this member itself, can change anything now.
    assert_eq!(member.next_wake(), Some(Moment(20) + Timing::default().heartbeat));
    let mut now = Moment(20);
    while let Some(next) = member.next_wake().filter(|at| *at < Moment(20) + Duration::from_millis(2000)) {
        now = next;
        out.clear();
        member.on(now, Vec::new(), &mut out).unwrap();
        assert_eq!((&out[..], member.state().version()), (&[][..], version));
    }
    assert!(now > Moment(20));
}

#[test]
fn a_restarted_member_continues_from_its_log() {
    let mut member = single();
    member.on(Moment(2), vec![ask(1, MetaRequest::AllocateObjects { count: 9 })], &mut Vec::new()).unwrap();
    let (state, log) = (member.state().clone(), member.into_log());
    let mut changed = config(1, 1);
    changed.bootstrap.as_mut().unwrap().servers[1].address = "10.0.0.1:7001".into();
    let mut member = Member::open(changed, log, Moment(1), 0).unwrap();
    let mut out = Vec::new();
    member.on(Moment(1), vec![ask(1, MetaRequest::AllocateObjects { count: 1 })], &mut out).unwrap();
    assert_eq!(replies(&out), [(1, MetaReply::Objects { first: ObjectId(10), count: 1 })]);
    assert_eq!(member.state().params(), state.params());
    assert_eq!(member.state().server(ServerId(1)).unwrap().address, "10.0.0.1:7001");
}

#[test]
fn a_pools_settings_follow_the_configuration_file() {
    let shape = ebb_types::Shape::new(2, 1).unwrap();
    let with = |(hibernate_after_millis, rebuild_bytes_per_second, awake_parity)| {
        let mut config = config(1, 1);
        let boot = config.bootstrap.as_mut().unwrap();
        let pool = PoolId(1);
        boot.servers.extend((10..13).map(|id| NewServer {
            id: ServerId(id),
            rack: RackId(id),
            pool,
            gear_group: ebb_types::NO_GEAR,
            address: format!("127.0.0.1:{}", 7000 + id),
        }));
        let column = |id| ebb_types::Column { server: ServerId(id), state: ebb_types::SlotState::InSync };
        let columns = (10..13).map(column).collect();
        boot.sets = vec![SetEntry { pool, shape, epoch: Epoch(1), hibernates_since: None, columns }];
        boot.pools = vec![PoolEntry {
            id: pool,
            name: "archive".into(),
            shape,
            parity_debt: ebb_types::ParityDebt::Segment,
            parity_buffer_bytes: 1,
            hibernate_after_millis,
            rebuild_bytes_per_second,
            awake_parity,
            sets: vec![SetId(0)],
        }];
        config
    };
    let mut log = founded(1, 1);
    for settings in
        [(None, None, 0), (Some(60_000), None, 0), (Some(60_000), Some(1 << 20), 1), (None, None, 0)]
    {
        let mut member = Member::open(with(settings), log, Moment(1), 0).unwrap();
        member.on(Moment(1), Vec::new(), &mut Vec::new()).unwrap();
        let pool = member.state().pool(PoolId(1)).unwrap();
        let found = (pool.hibernate_after_millis, pool.rebuild_bytes_per_second, pool.awake_parity);
        assert_eq!(found, settings);
        log = member.into_log();
    }
}

/// A founded member whose file now has a pool more: it comes when an administrator asks, and the leader counts on its
/// servers.
#[test]
fn a_pool_is_created_when_an_administrator_asks() {
    let (pool, shape) = (PoolId(1), Shape::new(2, 1).unwrap());
    let mut config = config(1, 1);
    let file = config.bootstrap.as_mut().unwrap();
    let column = |id| Column { server: ServerId(id), state: SlotState::InSync };
    file.servers.extend((10..13).map(|id| NewServer {
        id: ServerId(id),
        rack: RackId(id),
        pool,
        gear_group: NO_GEAR,
        address: format!("h{id}:1"),
    }));
    let columns = (10..13).map(column).collect();
    file.sets = vec![SetEntry { pool, shape, epoch: Epoch(1), hibernates_since: None, columns }];
    file.pools = vec![PoolEntry {
        id: pool,
        name: "archive".into(),
        shape,
        parity_debt: ebb_types::ParityDebt::Segment,
        parity_buffer_bytes: 1,
        hibernate_after_millis: None,
        rebuild_bytes_per_second: None,
        awake_parity: 0,
        sets: vec![SetId(0)],
    }];
    let mut member = Member::open(config, single().into_log(), Moment(1), 0).unwrap();
    member.on(Moment(1), Vec::new(), &mut Vec::new()).unwrap();
    assert!(member.state().pool(pool).is_none(), "a start alone adds nothing");
    let mut create = |token, name: &str| {
        let (name, mut out) = (name.to_owned(), Vec::new());
        let request = MetaRequest::Admin(AdminRequest::CreatePool { name });
        member.on(Moment(2), vec![ask(token, request)], &mut out).unwrap();
        replies(&out).into_iter().find(|(of, _)| *of == token).expect("an answer").1
    };
    let refused = |reply: MetaReply, why: &str| match reply {
        MetaReply::Failed(MetaFailure::Refused(found)) => assert!(found.contains(why), "{found}"),
        other => panic!("{other:?}"),
    };
    refused(create(1, "cold"), "has no [[pool]] called \"cold\"");
    assert_eq!(create(2, "archive"), MetaReply::Admin(AdminReply::Done));
    refused(create(3, "archive"), "exists already");
    assert_eq!(member.state().pool(pool).map(|known| known.name.as_str()), Some("archive"));
    for (n, server) in (10..13).enumerate() {
        let beat = heartbeat(server, 3 + n as u64, 0);
        member.on(Moment(3 + n as u64), vec![beat], &mut Vec::new()).unwrap();
    }
    let states: Vec<_> = (10..13).map(|id| member.state().server(ServerId(id)).unwrap().state).collect();
    assert_eq!(states, [ServerState::Awake; 3], "{:?}", member.state().set(SetId(0)));
}

/// What cannot be read must never look absent.
#[test]
fn a_damaged_name_stops_the_member_without_an_answer() {
    let mut member = single();
    let ops = vec![NamespaceOp::CreateBucket { bucket: "b".into(), settings: Default::default() }, put_of(0)];
    let ops = [vec![NamespaceOp::Lease { first: ObjectId(1), count: 1, bytes: 4096 }], ops].concat();
    let inputs = vec![introduction(), ask(1, change(1, ops))];
    member.on(Moment(2), inputs, &mut Vec::new()).unwrap();
    member.node.compact_now(&mut member.state).unwrap();
    let look = |log: MemoryLog, key: String| {
        let mut member = Member::open(config(1, 1), log, Moment(3), 0).unwrap();
        let names = vec![("b".into(), key)];
        let mut out = Vec::new();
        let question = ask(2, MetaRequest::Query(NamespaceQuery::Objects { names }));
        member.on(Moment(3), vec![question], &mut out).map(|()| replies(&out).remove(0).1)
    };
    let found = |reply: Result<MetaReply, RaftError>| match reply {
        Ok(MetaReply::Query(Ok(NamespaceAnswer::Objects(mut objects)))) => objects.remove(0).is_ok(),
        other => panic!("{other:?}"),
    };
    let good = member.into_log();
    assert!(found(look(good.clone(), key_of(0))) && !found(look(good.clone(), key_of(1))));
    let mut bad = good;
    bad.bytes[100] ^= 1;
    assert!(matches!(look(bad.clone(), key_of(0)), Err(RaftError::Damaged { .. })));
    let mut member = Member::open(config(1, 1), bad, Moment(3), 0).unwrap();
    let done = member.on(Moment(3), vec![ask(1, change(2, vec![delete_of(0)]))], &mut Vec::new());
    assert!(matches!(done, Err(RaftError::Damaged { .. })), "{done:?}");
}

#[test]
fn a_wish_that_cannot_be_is_refused_with_its_reason() {
    let mut member = single();
    let mut out = Vec::new();
    member
        .on(Moment(2), vec![ask(1, MetaRequest::Admin(AdminRequest::GearSet(GearWish::Gear(1))))], &mut out)
        .unwrap();
    let [(1, MetaReply::Failed(MetaFailure::Refused(why)))] = &replies(&out)[..] else { panic!("{out:?}") };
    assert!(why.contains("gears 3 to 3"), "{why}");
    out.clear();
    let lost = AdminRequest::MarkLost { server: ServerId(9), accept_loss: false };
    member.on(Moment(3), vec![ask(1, MetaRequest::Admin(lost))], &mut out).unwrap();
    assert!(matches!(&replies(&out)[..], [(1, MetaReply::Failed(MetaFailure::Refused(_)))]));
}

#[test]
fn only_an_administrator_changes_the_cluster_and_anyone_may_ask() {
    let mut member = single();
    let of_client = |id, request| {
        let (token, request) = (Token { connection: 1, id }, MetaRequest::Admin(request));
        Input::Client { token, is_admin: false, request }
    };
    let change = AdminRequest::GearSet(GearWish::Gear(3));
    let mut out = Vec::new();
    let inputs = vec![of_client(1, change), of_client(2, AdminRequest::Status)];
    member.on(Moment(2), inputs, &mut out).unwrap();
    let replies: BTreeMap<u64, MetaReply> = replies(&out).into_iter().collect();
    let MetaReply::Failed(MetaFailure::Refused(why)) = &replies[&1] else { panic!("{replies:?}") };
    assert!(why.starts_with("only an administrator"), "{why}");
    assert!(matches!(replies[&2], MetaReply::Admin(AdminReply::Status(_))), "{replies:?}");
    assert_eq!(member.state().manual_gear(), None);
}

#[test]
fn a_switch_that_ends_for_an_unknown_server_harms_nothing() {
    let mut member = single();
    let (server, action) = (ServerId(77), SwitchAction::Wake { path: 0 });
    let input = Input::Switched { server, action, result: Err("no such machine".into()) };
    member.on(Moment(2), vec![input], &mut Vec::new()).unwrap();
    assert!(member.is_leader());
}

/// Three members whose messages arrive in order, except those to or from `cut`.
struct Three {
    now: Moment,
    members: BTreeMap<MemberId, Member<MemoryLog>>,
    cut: Option<MemberId>,
    outcomes: Vec<(MemberId, Outcome)>,
}

impl Three {
    fn new() -> Three {
        let open = |id| (id, Member::open(config(id, 3), founded(id, 3), Moment(0), 0).unwrap());
        Three { now: Moment(0), members: (1..=3).map(open).collect(), cut: None, outcomes: Vec::new() }
    }

    fn input(&mut self, id: MemberId, inputs: Vec<Input>) {
        let mut queue = VecDeque::from([(id, inputs)]);
        while let Some((id, inputs)) = queue.pop_front() {
            let mut out = Vec::new();
            self.members.get_mut(&id).unwrap().on(self.now, inputs, &mut out).unwrap();
            for outcome in out {
                match outcome {
                    Outcome::SendRaft { to, message } if self.cut != Some(id) && self.cut != Some(to) => {
                        queue.push_back((to, vec![Input::Raft { from: id, message }]));
                    }
                    Outcome::SendRaft { .. } => {}
                    other => self.outcomes.push((id, other)),
                }
            }
        }
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis / 50 {
            self.now = self.now + Duration::from_millis(50);
            (1..=3).for_each(|id| self.input(id, Vec::new()));
        }
    }

    fn leader(&self) -> MemberId {
        let leaders = self.members.iter().filter(|(id, m)| m.is_leader() && self.cut != Some(**id));
        leaders.map(|(id, _)| *id).next().expect("a leader")
    }
}

#[test]
fn three_members_elect_one_that_answers_and_the_others_name_it() {
    let mut three = Three::new();
    three.run(3000);
    let leader = three.leader();
    for id in 1..=3 {
        three.outcomes.clear();
        three.input(id, vec![ask(id, MetaRequest::Watch { map_version: 0 })]);
        let (_, Outcome::Reply { reply, .. }) = &three.outcomes[0] else { panic!("{:?}", three.outcomes) };
        match reply {
            MetaReply::Watch { .. } => assert_eq!(id, leader),
            MetaReply::NotLeader { leader: Some(address) } => {
                assert_ne!(id, leader);
                assert_eq!(*address, format!("127.0.0.1:{}", 6000 + leader));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_leader_that_is_cut_off_grants_no_lease_and_answers_no_read() {
    let mut three = Three::new();
    three.run(3000);
    let leader = three.leader();
    (0..3).for_each(|id| three.input(leader, vec![heartbeat(id, 1, 0)]));
    let version = three.members[&leader].state().version();
    three.outcomes.clear();
    three.input(leader, vec![heartbeat(0, 2, version)]);
    let lease =
        |(_, o): &(MemberId, Outcome)| matches!(o, Outcome::Push { push: MetaPush::Lease { .. }, .. });
    assert!(three.outcomes.iter().any(lease), "with the others' consent: {:?}", three.outcomes);
    three.cut = Some(leader);
    three.outcomes.clear();
    let inputs = vec![
        heartbeat(0, 3, version),
        ask(1, MetaRequest::Query(NamespaceQuery::Buckets)),
        ask(2, MetaRequest::AllocateObjects { count: 1 }),
    ];
    three.input(leader, inputs);
    assert!(!three.outcomes.iter().any(lease), "{:?}", three.outcomes);
    three.run(5000);
    assert_ne!(three.leader(), leader);
    assert!(!three.outcomes.iter().any(|o| o.0 == leader && lease(o)));
    let from_old: Vec<Outcome> =
        three.outcomes.iter().filter(|(id, _)| *id == leader).map(|(_, o)| o.clone()).collect();
    let answers: BTreeMap<u64, MetaReply> = replies(&from_old).into_iter().collect();
    assert!(matches!(answers[&1], MetaReply::NotLeader { .. }), "{answers:?}");
    assert_eq!(answers[&2], MetaReply::Failed(MetaFailure::Unknown));
}

impl Three {
    /// Half a second, with a heartbeat of each server to each of these members.
    fn beat(&mut self, to: &[MemberId]) {
        self.run(500);
        to.iter().for_each(|id| self.hear(*id, 3));
    }

    /// A heartbeat of each of the first servers reaches this member.
    fn hear(&mut self, id: MemberId, servers: u16) {
        let (sent, version) = (self.now.0, self.members[&id].state().version());
        (0..servers).for_each(|server| self.input(id, vec![heartbeat(server, sent, version)]));
    }

    fn all_awake(&self) -> bool {
        let state = self.members[&self.leader()].state();
        state.servers().all(|entry| entry.state == ServerState::Awake)
    }
}

/// The network parts it from all servers and gateways, and from no member.
#[test]
fn a_leader_that_hears_no_server_while_its_members_do_hands_over_within_two_leases() {
    let mut three = Three::new();
    three.run(3000);
    (0..8).for_each(|_| three.beat(&[1, 2, 3]));
    let deaf = three.leader();
    let others: Vec<MemberId> = (1..=3).filter(|id| *id != deaf).collect();
    (0..8).for_each(|_| three.beat(&others));
    let leader = three.leader();
    assert_ne!(leader, deaf, "{:?}", three.outcomes);
    assert!(!three.members[&deaf].is_leader());
    let says = |(id, outcome): &(MemberId, Outcome)| {
        *id == deaf && matches!(outcome, Outcome::Notice(Notice::HandsOver { hears: 3, own: 0, .. }))
    };
    assert!(three.outcomes.iter().any(says));
    // The successor leads on, and so it does when all hear again.
    (0..12).for_each(|_| three.beat(&others));
    (0..12).for_each(|_| three.beat(&[1, 2, 3]));
    assert_eq!(three.leader(), leader);
    // When no member hears a server, it is no member's fault.
    (0..12).for_each(|_| three.beat(&[]));
    assert_eq!(three.leader(), leader);
}

/// The network parts it from that one only. To call that failed would cost more than another leader does.
#[test]
fn a_leader_hands_over_before_it_calls_a_server_failed_that_its_members_hear() {
    let mut three = Three::new();
    three.run(3000);
    (0..8).for_each(|_| three.beat(&[1, 2, 3]));
    assert!(three.all_awake());
    let deaf = three.leader();
    three.outcomes.clear();
    for _ in 0..12 {
        three.run(500);
        (1..=3).for_each(|id| three.hear(id, if id == deaf { 2 } else { 3 }));
    }
    let failed = |(_, o): &(MemberId, Outcome)| matches!(o, Outcome::Notice(Notice::Failed { .. }));
    assert!(three.leader() != deaf && !three.outcomes.iter().any(failed), "{:?}", three.outcomes);
    assert!(three.all_awake());
}

/// It would decide nothing more for as long as it leads.
#[test]
fn what_a_leader_decides_while_it_hands_over_in_vain_is_decided_again() {
    let mut three = Three::new();
    three.run(3000);
    (0..8).for_each(|_| three.beat(&[1, 2, 3]));
    let leader = three.leader();
    let successor = (1..=3).find(|id| *id != leader).expect("three");
    three.cut = Some(successor);
    three.members.get_mut(&leader).expect("it leads").node.hand_over(successor);
    let run = FIRST_RUN.next(0);
    let (sent, version) = (three.now.0, three.members[&leader].state().version());
    let on_record =
        |three: &Three| three.members[&leader].state().server(ServerId(0)).map(|entry| entry.incarnation);
    three.input(leader, vec![heartbeat_of(run, 0, (0, sent, version))]);
    three.run(100);
    assert_eq!(on_record(&three), Some(FIRST_RUN), "nothing can be proposed now");
    for _ in 0..20 {
        three.run(500);
        let (sent, version) = (three.now.0, three.members[&leader].state().version());
        let beats = vec![heartbeat_of(run, 0, (0, sent, version)), heartbeat(1, sent, version)];
        three.input(leader, beats);
        three.input(leader, vec![heartbeat(2, sent, version)]);
    }
    assert_eq!((three.leader(), on_record(&three)), (leader, Some(run)));
}

const HOUR: u64 = 3_600_000;

/// The answer to the question for the time, at this wall clock of the leader, by a client with that one.
fn asked_for_time(member: &mut Member<MemoryLog>, now: Moment, own: u64, client: u64) -> Result<u64, String> {
    let command = NamespaceCommand::first(RequestId { client: 1, seq: 0 }, client);
    let status = MetaRequest::Admin(AdminRequest::Status);
    let inputs = vec![
        ask(1, MetaRequest::Namespace(command)),
        ask(2, MetaRequest::Query(NamespaceQuery::Now)),
        ask(3, status),
    ];
    let mut out = Vec::new();
    member.set_clock(now, own);
    member.on(now, inputs, &mut out).unwrap();
    let answers: BTreeMap<u64, MetaReply> = replies(&out).into_iter().collect();
    let MetaReply::Admin(AdminReply::Status(status)) = &answers[&3] else { panic!("{answers:?}") };
    let noted = status.notes.iter().any(|note| note.starts_with("lifecycle rules stand still"));
    match &answers[&2] {
        MetaReply::Query(Ok(NamespaceAnswer::Now { unix_millis })) => {
            assert!(!noted, "{:?}", status.notes);
            Ok(*unix_millis)
        }
        MetaReply::Query(Err(NamespaceError::ClocksApart { why })) => {
            assert!(noted, "{:?}", status.notes);
            Err(why.clone())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_wrong_wall_clock_moves_no_time_and_judges_nothing() {
    let at = |seconds: u64| Moment(seconds * 1_000_000_000);
    let today = 20_000 * 24 * HOUR;
    let mut member = single();
    assert_eq!(asked_for_time(&mut member, at(1), today, today), Ok(today));
    assert_eq!(asked_for_time(&mut member, at(2), today + 1000, today + 5000), Ok(today + 1000));
    // A gateway's clock is 400 days ahead.
    let wrong = today + 400 * 24 * HOUR + HOUR;
    let why = asked_for_time(&mut member, at(3), today + 2000, wrong).unwrap_err();
    assert!(why.contains("client 0000000000000001") && why.contains("400 days ahead of"), "{why}");
    assert_eq!(
        asked_for_time(&mut member, at(4), today + 3000, today + 3000),
        Ok(today + 3000),
        "it was set"
    );
    // So are all.
    for seconds in 5..15 {
        let why = asked_for_time(&mut member, at(seconds), wrong, wrong).unwrap_err();
        assert!(why.contains("400 days ahead of the last time"), "{why}");
    }
    let known = member.state().namespace().unix_millis();
    assert_eq!(known, today + 13_000, "time advances by the steady clock");
    // Even a new leader with the wrong clock believes what is on record.
    let log = member.into_log();
    let mut member = Member::open(config(1, 1), log, at(20), wrong).unwrap();
    assert!(asked_for_time(&mut member, at(21), wrong, wrong).is_err());
    assert_eq!(asked_for_time(&mut member, at(22), today + 20_000, today + 20_000), Ok(today + 20_000));
}

#[test]
fn a_member_whose_clock_is_wrong_keeps_the_leader_from_judging() {
    let mut three = Three::new();
    three.run(3000);
    let leader = three.leader();
    let other = if leader == 1 { 2 } else { 1 };
    for (ahead, agrees) in [(400 * 24 * HOUR, false), (HOUR / 2, true)] {
        let own = three.members[&leader].wall(three.now);
        three.members.get_mut(&other).unwrap().set_clock(three.now, own + ahead);
        three.run(3000);
        three.outcomes.clear();
        three.input(leader, vec![ask(1, MetaRequest::Query(NamespaceQuery::Now))]);
        let out: Vec<Outcome> = three.outcomes.iter().map(|(_, outcome)| outcome.clone()).collect();
        match &replies(&out)[..] {
            [(1, MetaReply::Query(Ok(NamespaceAnswer::Now { .. })))] => assert!(agrees),
            [(1, MetaReply::Query(Err(NamespaceError::ClocksApart { why })))] => {
                assert!(!agrees && why.contains(&format!("metadata server {other} ")), "{why}");
            }
            answers => panic!("{answers:?}"),
        }
    }
}

/// It stood still while the others chose another leader, and what it decided before lies in its outcomes.
#[test]
fn a_former_leader_throws_no_switch_and_gives_no_orders() {
    let mut three = Three::new();
    three.run(3000);
    (0..4).for_each(|_| three.beat(&[1, 2, 3]));
    for _ in 0..8 {
        three.run(500);
        let sent = three.now.0;
        for id in 1..=3 {
            let version = three.members[&id].state().version();
            (1..3).for_each(|server| three.input(id, vec![heartbeat(server, sent, version)]));
        }
    }
    let former = three.leader();
    assert_eq!(three.members[&former].state().server(ServerId(0)).unwrap().state, ServerState::Failed);
    three.cut = Some(former);
    three.outcomes.clear();
    // An older run of the failed server, on another store, would be told to draw a higher number.
    let other = Input::Server(ServerMessage::Heartbeat {
        server: ServerId(0),
        incarnation: Incarnation(1),
        mark: StoreMark { store: StoreId(9), position: 0 },
        sent: three.now,
        map_version: 0,
        vitals: Box::default(),
    });
    let acts = |three: &Three| {
        let act = |o: &Outcome| match o {
            Outcome::Switch { .. } => true,
            Outcome::Push { push, .. } => !matches!(push, MetaPush::Map(_) | MetaPush::Params(_)),
            _ => false,
        };
        three.outcomes.iter().filter(|(id, o)| *id == former && act(o)).count()
    };
    for _ in 0..10 {
        three.input(former, vec![other.clone()]);
        three.run(400);
    }
    assert!(!three.members[&former].is_leader(), "it has noticed by now");
    assert_eq!(acts(&three), 0, "{:?}", three.outcomes);
}

/// Positions are recorded once a minute; what a store has reached since then is known to every member.
#[test]
fn a_store_that_went_back_while_the_leader_changed_is_recognised() {
    let mut three = Three::new();
    three.run(3000);
    let first = three.leader();
    for (sent, position) in [(1, 0), (2, 100)] {
        let version = three.members[&first].state().version();
        for id in 1..=3 {
            (0..3).for_each(|s| three.input(id, vec![heartbeat_of(FIRST_RUN, position, (s, sent, version))]));
        }
        three.run(100);
    }
    three.cut = Some(first);
    three.run(9000);
    let leader = three.leader();
    let superseded = |o: &(MemberId, Outcome)| {
        matches!(o, (_, Outcome::Push { to: ServerId(0), push: MetaPush::Superseded { .. } }))
    };
    for (position, went_back) in [(99, true), (100, false)] {
        three.outcomes.clear();
        three.input(leader, vec![heartbeat_of(FIRST_RUN.next(0), position, (0, 1, 0))]);
        assert_eq!(three.outcomes.iter().any(superseded), went_back, "{:?}", three.outcomes);
    }
}

/// A leader that stood still hears from servers of its successor's map: it is no older copy (seed 30261601221). One
/// that still leads is.
#[test]
fn only_a_leader_that_proves_to_be_one_says_that_it_went_back() {
    let says = |three: &Three| {
        three.outcomes.iter().any(|(_, o)| matches!(o, Outcome::Notice(Notice::WentBack { .. })))
    };
    for is_cut in [true, false] {
        let mut three = Three::new();
        three.run(3000);
        let first = three.leader();
        three.cut = Some(first).filter(|_| is_cut);
        let version = three.members[&first].state().version();
        three.input(first, vec![heartbeat(0, 1, version + 1)]);
        three.run(9000);
        three.cut = None;
        three.run(3000);
        assert_eq!(says(&three), !is_cut, "{:?}", three.outcomes);
    }
}

/// A log on a disk with room for `room` bytes of it.
struct SmallDisk {
    log: MemoryLog,
    room: std::rc::Rc<std::cell::Cell<u64>>,
}

impl LogFile for SmallDisk {
    fn bytes(&mut self) -> std::io::Result<u64> {
        self.log.bytes()
    }

    fn blob(&mut self) -> std::io::Result<Arc<dyn Blob>> {
        self.log.blob()
    }

    fn append(&mut self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.log.append(at, bytes)
    }

    fn overwrite(&mut self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.log.overwrite(at, bytes)
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.log.sync()
    }

    fn reserve(&mut self, at: u64, bytes: u64) -> std::io::Result<bool> {
        Ok(at + bytes <= self.room.get())
    }

    fn prepare(&mut self, job: Job) {
        self.log.prepare(job);
    }

    fn prepared(&mut self) -> std::io::Result<Option<u64>> {
        self.log.prepared()
    }

    fn abandon(&mut self) {
        self.log.abandon();
    }

    fn stage(&mut self, at: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.log.stage(at, bytes)
    }

    fn take_staged(&mut self) {
        self.log.take_staged();
    }

    fn replace(&mut self, head: &[u8], at: u64, more: &[u8]) -> std::io::Result<()> {
        self.log.replace(head, at, more)
    }
}

#[test]
fn a_full_disk_refuses_writes_and_nothing_else_until_there_is_room() {
    let room = std::rc::Rc::new(std::cell::Cell::new(5 << 20));
    let disk = SmallDisk { log: founded(1, 1), room: room.clone() };
    let mut member = Member::open(config(1, 1), disk, Moment(1), 0).unwrap();
    member.on(Moment(1), Vec::new(), &mut Vec::new()).unwrap();
    member.on(Moment(2), vec![introduction()], &mut Vec::new()).unwrap();
    let long = "k".repeat(1000);
    let ask_for = |seq: u64, member: &mut Member<SmallDisk>| {
        let ops = vec![NamespaceOp::CreateBucket { bucket: long.clone(), settings: Default::default() }; 100];
        let mut out = Vec::new();
        member.on(Moment(2), vec![ask(seq, change(seq, ops))], &mut out).unwrap();
        replies(&out).pop().unwrap().1
    };
    let full = MetaReply::Failed(MetaFailure::Full);
    let refused = (1..100).find(|seq| ask_for(*seq, &mut member) == full).expect("refused some time");
    assert!(refused > 5, "there was room at first");
    let version = member.state().version();
    let mut out = Vec::new();
    let inputs = (0..3)
        .map(|id| heartbeat(id, 3, version))
        .chain([ask(1, MetaRequest::Query(NamespaceQuery::Buckets))]);
    member.on(Moment(3), inputs.collect(), &mut out).unwrap();
    assert!(matches!(&replies(&out)[..], [(1, MetaReply::Query(Ok(_)))]), "{out:?}");
    assert!(
        member.state().groups().all(|(_, g)| g.primary.is_some()),
        "the leader's own decisions have their room"
    );
    room.set(u64::MAX);
    assert_ne!(ask_for(200, &mut member), full);
    let notices = notices(&mut member, 0).into_iter().map(|record| record.notice);
    let about_disk: Vec<Notice> = notices.filter(|notice| !matches!(notice, Notice::Back { .. })).collect();
    assert_eq!(about_disk, [Notice::MetadataDiskFull, Notice::MetadataDiskHasRoom]);
}

fn notices<L: LogFile>(member: &mut Member<L>, after: u64) -> Vec<NoticeRecord> {
    let mut out = Vec::new();
    let request = MetaRequest::Admin(AdminRequest::ListNotices { after });
    member.on(Moment(4_000_000), vec![ask(1, request)], &mut out).unwrap();
    let [(1, MetaReply::Admin(AdminReply::Notices(found)))] = &replies(&out)[..] else { panic!("{out:?}") };
    found.clone()
}

#[test]
fn the_newest_notices_are_kept_and_numbered_for_those_who_ask_again() {
    let mut member = single();
    let failed = |member: &mut Member<MemoryLog>, why: String| {
        let action = SwitchAction::Wake { path: 0 };
        let input = Input::Switched { server: ServerId(1), action, result: Err(why) };
        member.on(Moment(3_000_000), vec![input], &mut Vec::new()).unwrap();
    };
    failed(&mut member, "no answer".into());
    let first = notices(&mut member, 0);
    let [NoticeRecord { number, at_unix_millis: 2, notice }] = &first[..] else { panic!("{first:?}") };
    let expected = "server-1: switch to wake failed: no answer; it will be tried again";
    assert_eq!(notice.to_string(), expected);
    assert!(*number >> 32 > 0, "the term");
    assert_eq!(notices(&mut member, *number), []);
    (0..NOTICES).for_each(|n| failed(&mut member, n.to_string()));
    let all = notices(&mut member, 0);
    assert_eq!((all.len(), all[0].number, all[NOTICES - 1].number), (NOTICES, number + 1, number + 1000));
}

#[test]
fn what_a_full_disk_refused_is_decided_again_for_every_group() {
    let room = std::rc::Rc::new(std::cell::Cell::new(u64::MAX));
    let disk = SmallDisk { log: founded(1, 1), room: room.clone() };
    let mut member = Member::open(config(1, 1), disk, Moment(1), 0).unwrap();
    member.on(Moment(1), (0..3).map(|id| heartbeat(id, 1, 0)).collect(), &mut Vec::new()).unwrap();
    room.set(0);
    let mut member = Member::open(config(1, 1), member.into_log(), Moment(2), 0).unwrap();
    member.on(Moment(2), Vec::new(), &mut Vec::new()).unwrap();
    let (version, epochs) = (member.state().version(), epochs_of(&member));
    let again = heartbeat_of(FIRST_RUN.next(0), 0, (0, 2, version));
    member
        .on(Moment(2), vec![again, heartbeat(1, 2, version), heartbeat(2, 2, version)], &mut Vec::new())
        .unwrap();
    assert_eq!(member.state().version(), version, "there is no room to write down that a server runs again");
    room.set(u64::MAX);
    let later = member.next_wake().unwrap().max(Moment(2) + AGAIN);
    member.on(later, Vec::new(), &mut Vec::new()).unwrap();
    assert!(
        epochs_of(&member).iter().zip(&epochs).all(|(now, before)| now > before),
        "of each group that it serves"
    );
}

fn epochs_of<L: LogFile>(member: &Member<L>) -> Vec<Epoch> {
    member.state().groups().map(|(_, entry)| entry.epoch).collect()
}

/// Memory, speed and restart with many keys, on a real disk. Run by hand:
/// `EBB_KEYS=1000000 cargo test --release -p ebb-meta -- --ignored --nocapture many_keys`
#[test]
#[ignore = "measures, takes minutes"]
fn many_keys() {
    let keys: u64 = std::env::var("EBB_KEYS").map_or(100_000, |text| text.parse().unwrap());
    let mut work = ManyKeys::new();
    let empty = memory("VmRSS");
    let said = |work: &mut ManyKeys, what: &str, count: u64, took: Duration| {
        let (seconds, worst) = (took.as_secs_f64(), std::mem::take(&mut work.worst));
        println!("{what}: {:.0}/s, {seconds:.1} s, the longest call {worst:.1?}", count as f64 / seconds);
    };
    let report = |what: &str| {
        let (now, most) = (memory("VmRSS"), memory("VmHWM"));
        let per_key = now.saturating_sub(empty) / keys;
        println!("{what}: memory {} MiB, {per_key} bytes per key, peak {} MiB", now >> 20, most >> 20);
    };
    println!("{keys} keys, {OPS} per command; empty {} MiB", empty >> 20);
    let packs = NamespaceOp::Lease { first: ObjectId(1), count: keys as u32 / 1000 + 1, bytes: 64 << 20 };
    work.send(vec![packs, NamespaceOp::CreateBucket { bucket: "b".into(), settings: Default::default() }]);
    let took = work.timed(|work| {
        (0..keys).step_by(OPS).for_each(|n| work.send((n..n + OPS as u64).map(put_of).collect()));
    });
    said(&mut work, "put", keys, took);
    report("all put");
    for what in ["live", "restarted"] {
        let reads = keys.min(200_000);
        let took = work.timed(|work| (0..reads).step_by(32).for_each(|n| work.get(n * 7919 % keys, keys)));
        said(&mut work, &format!("get, {what}"), reads, took);
        let took = work.timed(|work| assert_eq!(work.list(reads), reads));
        said(&mut work, &format!("list, {what}"), reads, took);
        let (bytes, took) = work.restart();
        println!("restart: {:.2} s, log {} MiB", took.as_secs_f64(), bytes >> 20);
        report("restarted");
    }
    let deletes = keys.min(1_000_000);
    let took = work.timed(|work| {
        for n in (0..deletes).step_by(OPS) {
            work.send((n..n + OPS as u64).map(delete_of).collect());
            work.send(vec![NamespaceOp::Collected { garbage: (n + 1..n + 1 + OPS as u64).collect() }]);
        }
    });
    said(&mut work, "delete", deletes, took);
    report("deleted");
}

const OPS: usize = 500;

/// One line of the kernel's figures for this process, in bytes.
fn memory(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with(line)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn key_of(n: u64) -> String {
    format!("photos/2026/{:012x}/DSC_{:08}.JPG", n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16, n)
}

fn put_of(n: u64) -> NamespaceOp {
    let (object, offset, crc) = (ObjectId(n / 1000 + 1), n % 1000 * 100, n as u32);
    let extent = Extent { object, offset, len: 100, shared: true, crc };
    let meta = ObjectMeta {
        size: 100,
        etag: ETag { md5: [n as u8; 16], parts: 0 },
        modified_millis: 0,
        extents: vec![extent],
        headers: vec![("content-type".into(), "binary/octet-stream".into())],
        checksum: None,
        upload: None,
        parts: vec![],
    };
    NamespaceOp::Put { bucket: "b".into(), key: key_of(n), meta, when: Condition::Any }
}

fn delete_of(n: u64) -> NamespaceOp {
    let (when, only_if) = (Condition::Any, OnlyIf::default());
    NamespaceOp::Delete { bucket: "b".into(), key: key_of(n), when, only_if }
}

/// One member on a real disk, and its only client.
struct ManyKeys {
    directory: tempfile::TempDir,
    member: Option<Member<crate::raft::DiskLog>>,
    seq: u64,
    worst: Duration,
}

impl ManyKeys {
    fn new() -> ManyKeys {
        let directory = tempfile::tempdir_in(".").unwrap();
        let mut disk = crate::raft::DiskLog::open(directory.path()).unwrap();
        create(&mut disk, Birth { id: 1, instance: 77, voters: vec![1] }).unwrap();
        drop(disk);
        let mut work = ManyKeys { directory, member: None, seq: 0, worst: Duration::ZERO };
        work.restart();
        work
    }

    /// Returns the length of the log and the duration of the start.
    fn restart(&mut self) -> (u64, Duration) {
        drop(self.member.take());
        let bytes = std::fs::metadata(self.directory.path().join("raft.log")).unwrap().len();
        let took = self.timed(|work| {
            let disk = crate::raft::DiskLog::open(work.directory.path()).unwrap();
            let mut member = Member::open(config(1, 1), disk, Moment(1), 0).unwrap();
            member.on(Moment(1), Vec::new(), &mut Vec::new()).unwrap();
            work.member = Some(member);
        });
        (bytes, took)
    }

    fn timed(&mut self, run: impl FnOnce(&mut ManyKeys)) -> Duration {
        let begin = std::time::Instant::now();
        run(self);
        begin.elapsed()
    }

    fn ask(&mut self, request: MetaRequest) -> MetaReply {
        self.seq += 1;
        let (begin, mut out) = (std::time::Instant::now(), Vec::new());
        let inputs = vec![ask(self.seq, request)];
        self.member.as_mut().unwrap().on(Moment(self.seq * 1_000_000), inputs, &mut out).unwrap();
        self.worst = self.worst.max(begin.elapsed());
        replies(&out).remove(0).1
    }

    fn send(&mut self, ops: Vec<NamespaceOp>) {
        if self.seq == 0 {
            self.ask(MetaRequest::Namespace(NamespaceCommand::first(RequestId { client: 1, seq: 0 }, 0)));
        }
        let reply = self.ask(change(self.seq + 1, ops));
        assert!(
            matches!(&reply, MetaReply::Namespace(r) if r.results.iter().all(Result::is_ok)),
            "{reply:?}"
        );
    }

    fn get(&mut self, first: u64, keys: u64) {
        let names = (0..32).map(|i| ("b".into(), key_of((first + i * 104_729) % keys))).collect();
        let reply = self.ask(MetaRequest::Query(NamespaceQuery::Objects { names }));
        let all = |reply: &MetaReply| match reply {
            MetaReply::Query(Ok(NamespaceAnswer::Objects(found))) => found.iter().all(Result::is_ok),
            _ => false,
        };
        assert!(all(&reply), "{reply:?}");
    }

    fn list(&mut self, most: u64) -> u64 {
        let (mut after, mut found) = (String::new(), 0);
        while found < most {
            let limit = (most - found).min(1000) as u32;
            let (bucket, prefix, delimiter) = ("b".into(), String::new(), String::new());
            let query = NamespaceQuery::List { bucket, prefix, delimiter, after, limit };
            let MetaReply::Query(Ok(NamespaceAnswer::List(page))) = self.ask(MetaRequest::Query(query))
            else {
                panic!("no list");
            };
            found += page.keys.len() as u64;
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        found
    }
}

#[test]
fn silent_members_are_noted_with_what_may_still_fail() {
    let member =
        |id, votes, heard_millis| MetadataMember { id, votes, learns: !votes, leads: id == 1, heard_millis };
    let three = [member(1, true, None), member(2, true, Some(100)), member(3, true, Some(20_400))];
    let notes = member_notes(&three);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("metadata server 3 has not been heard for 20 s"), "{notes:?}");
    assert!(notes[0].ends_with("one more loss stops the cluster"), "{notes:?}");
    let five: Vec<_> = (1..=5).map(|id| member(id, true, Some(if id == 5 { 9_000 } else { 10 }))).collect();
    assert!(member_notes(&five)[0].ends_with("1 more may fail"), "{:?}", member_notes(&five));
    assert_eq!(member_notes(&three[..2]), [""; 0]);
}
