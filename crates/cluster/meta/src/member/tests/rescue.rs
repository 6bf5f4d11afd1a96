use super::*;
use crate::raft::rescue;

/// What server `id` knows: the map of this state.
fn recalls(id: u16, state: &State) -> Input {
    let recollection = Recollection {
        store: StoreId(1),
        seen: state.version(),
        map: state.delta(0),
        epochs: state.groups().map(|(group, entry)| (group, entry.epoch)).collect(),
    };
    Input::Server(ServerMessage::Recalls { server: ServerId(id), recollection: Box::new(recollection) })
}

/// A cluster that served; then one member is left. Returns its log, and the state at the end of it.
fn last_of_three() -> (MemberId, MemoryLog, State) {
    let mut three = Three::new();
    three.run(3000);
    let leader = three.leader();
    three.beat(&[leader]);
    three.input(leader, vec![introduction(), ask(1, MetaRequest::AllocateObjects { count: 7 })]);
    three.run(1000);
    let last = 1 + leader % 3;
    let member = three.members.remove(&last).unwrap();
    let state = member.state().clone();
    assert!(state.groups().all(|(_, entry)| entry.primary.is_some()));
    (last, member.into_log(), state)
}

/// The rescued member, fed until this time with heartbeats of every server.
struct Alone {
    now: Moment,
    member: Member<MemoryLog>,
    out: Vec<Outcome>,
}

impl Alone {
    fn start(id: MemberId, log: MemoryLog) -> Alone {
        Alone {
            now: Moment(0),
            member: Member::open(config(id, 3), log, Moment(0), 0).unwrap(),
            out: Vec::new(),
        }
    }

    fn input(&mut self, inputs: Vec<Input>) {
        self.member.on(self.now, inputs, &mut self.out).unwrap();
    }

    fn run(&mut self, millis: u64, versions: [u64; 3]) {
        for _ in 0..millis / 50 {
            self.now = self.now + Duration::from_millis(50);
            let beat = |id: usize| heartbeat(id as u16, self.now.0, versions[id]);
            let beats = if (self.now.0 / 50_000_000).is_multiple_of(10) {
                (0..3).map(beat).collect()
            } else {
                vec![]
            };
            self.input(beats);
        }
    }

    fn leases(&self) -> usize {
        let lease = |o: &&Outcome| matches!(o, Outcome::Push { push: MetaPush::Lease { .. }, .. });
        self.out.iter().filter(lease).count()
    }

    fn asked(&self) -> BTreeSet<ServerId> {
        let asked = |o: &Outcome| match o {
            Outcome::Push { to, push: MetaPush::Recall } => Some(*to),
            _ => None,
        };
        self.out.iter().filter_map(asked).collect()
    }
}

#[test]
fn a_rescued_member_serves_nobody_before_it_knows_what_the_servers_know() {
    let (id, log, truth) = last_of_three();
    let mut behind = Alone::start(id, rescue(log).unwrap());
    // The servers are ahead of its log.
    let seen = truth.version() + 5;
    behind.run(3000, [seen; 3]);
    behind.input(vec![
        ask(1, MetaRequest::AllocateObjects { count: 1 }),
        ask(2, MetaRequest::Watch { map_version: 0 }),
        ask(3, MetaRequest::Query(NamespaceQuery::Buckets)),
        ask(4, MetaRequest::Admin(AdminRequest::Status)),
        change_as_input(5),
    ]);
    let answers: BTreeMap<u64, MetaReply> = replies(&behind.out).into_iter().collect();
    let nobody = MetaReply::NotLeader { leader: None };
    assert!([1, 2, 3, 5].iter().all(|token| answers[token] == nobody), "{answers:?}");
    assert!(matches!(&answers[&4], MetaReply::Failed(MetaFailure::Refused(why)) if why.contains("rescued")));
    assert_eq!(behind.leases(), 0);
    assert!(!behind.member.is_leader() && behind.member.status(behind.now).is_none());
    assert_eq!(behind.asked(), (0..3).map(ServerId).collect());
    let waits = Notice::RescueWaits { servers: (0..3).map(ServerId).collect() };
    assert_eq!(behind.out.iter().filter(|o| **o == Outcome::Notice(waits.clone())).count(), 1, "said once");

    behind.input((0..3).map(|id| recalls(id, &truth)).collect());
    assert!(behind.member.is_leader());
    let done = Notice::Rescued { generation: 1, groups: Vec::new(), sets: Vec::new() };
    assert!(behind.out.contains(&Outcome::Notice(done)));
    behind.out.clear();
    behind.input(vec![ask(6, MetaRequest::AllocateObjects { count: 1 })]);
    let [(6, MetaReply::Objects { first, .. })] = &replies(&behind.out)[..] else {
        panic!("{:?}", behind.out)
    };
    assert!(first.0 > 8 + (1 << 40), "{first}");
    let version = behind.member.state().version();
    assert!(version > seen + (1 << 30));
    behind.run(5000, [version; 3]);
    assert!(behind.leases() > 0, "it leads as any other");
    assert!(behind.member.state().groups().all(|(_, entry)| entry.is_in_sync() && entry.primary.is_some()));
}

fn change_as_input(token: u64) -> Input {
    ask(
        token,
        change(9, vec![NamespaceOp::CreateBucket { bucket: "b".into(), settings: Default::default() }]),
    )
}

/// The log is a member's only memory: it is killed before, between and after its steps.
#[test]
fn a_rescued_member_that_is_killed_at_any_moment_ends_in_the_same_state() {
    let (id, log, truth) = last_of_three();
    let rescued = rescue(log).unwrap();
    let ends = |kills: &[u64]| {
        let mut log = rescued.clone();
        for after in kills {
            let mut alone = Alone::start(id, log);
            alone.run(*after, [truth.version(); 3]);
            if *after > 3000 {
                alone.input((0..3).map(|id| recalls(id, &truth)).collect());
            }
            log = rescue(alone.member.into_log()).unwrap();
        }
        let mut alone = Alone::start(id, log);
        alone.run(3500, [truth.version(); 3]);
        alone.input((0..3).map(|id| recalls(id, &truth)).collect());
        assert!(alone.member.is_leader() && alone.member.state().generation() == 1);
        (
            alone.member.state().version(),
            alone.member.state().groups().map(|(_, e)| e.epoch).collect::<Vec<_>>(),
        )
    };
    let whole = ends(&[]);
    assert_eq!(ends(&[0]), whole);
    assert_eq!(ends(&[100, 900, 2000]), whole);
    let (version, epochs) = ends(&[3500, 3500]);
    assert!(version - whole.0 < 100, "the numbers jump once");
    assert!(epochs.iter().zip(&whole.1).all(|(one, other)| one.0 - other.0 < 100));
}
