//! The metadata service: production members, one or three, with the production namespace and its judgement of clocks.
//! Messages between members take no time; a member may be cut off for a while.

use ebb_meta::{
    Birth, Bootstrap, Input, Member, MemberConfig, MemoryLog, Namespace, NewPool, NewServer, Outcome,
    PlantedBug, Timing, Token, raft,
};
use ebb_types::{
    AdminRequest, CHUNK_BYTES_MIN, ClusterParams, Column, Epoch, GearGroup, MetaReply, MetaRequest, Moment,
    NO_GEAR, NamespaceAnswer, NamespaceQuery, ObjectId, ParityDebt, PoolEntry, PoolId, RackId, Schedule,
    ServerId, SetEntry, SetId, Shape, SlotState,
};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The replicated pool's chunk groups.
pub(super) const GROUPS: u32 = 3;
/// The erasure-coded pool.
pub(super) const POOL: PoolId = PoolId(3);
pub(super) const POOL_NAME: &str = "archive";
/// One that is created later: the second one.
pub(super) const NEW_POOL: PoolId = PoolId(2);
pub(super) const NEW_POOL_NAME: &str = "cold";

/// How often members tick, in milliseconds.
const TICK: u64 = 250;
/// While the service is asked nothing for long, so many ticks are enough: every election ends within them.
const TICKS: u64 = 60;

pub(super) struct Meta {
    seats: BTreeMap<u64, Seat>,
    setup: Setup,
    /// It answers nothing until then.
    pub silent_until: u64,
    asked: u64,
    /// When its members have ticked last.
    ticked: u64,
}

/// What all members are configured with.
#[derive(Clone, Copy)]
struct Setup {
    log_bytes: usize,
    /// The configuration files have another pool.
    has_new_pool: bool,
    planted: Option<PlantedBug>,
}

struct Seat {
    /// Absent only while it starts again.
    member: Option<Member<MemoryLog>>,
    /// It neither hears nor says anything until then, and stands still.
    cut_until: u64,
}

fn at(now: u64) -> Moment {
    Moment::ZERO + Duration::from_millis(now + 1)
}

/// An erasure-coded pool of one set, and its servers.
fn pool(id: PoolId, name: &str, set: SetId, first: u16) -> NewPool {
    let shape = Shape::new(2, 1).expect("a small shape");
    let ids = first..first + 3;
    let columns = ids.clone().map(|id| Column { server: ServerId(id), state: SlotState::InSync });
    let entry =
        SetEntry { pool: id, shape, epoch: Epoch(1), hibernates_since: None, columns: columns.collect() };
    let pool = PoolEntry {
        id,
        name: name.into(),
        shape,
        parity_debt: ParityDebt::Ram,
        parity_buffer_bytes: 1 << 20,
        hibernate_after_millis: None,
        rebuild_bytes_per_second: None,
        awake_parity: 0,
        sets: vec![set],
    };
    NewPool { pool, sets: vec![entry], servers: ids.map(|number| server(number, id, NO_GEAR)).collect() }
}

fn server(id: u16, pool: PoolId, gear_group: GearGroup) -> NewServer {
    NewServer { id: ServerId(id), rack: RackId(id), pool, gear_group, address: format!("server-{id}") }
}

fn config(id: u64, members: u64, Setup { log_bytes, has_new_pool, planted }: Setup) -> MemberConfig {
    let params = ClusterParams {
        cluster: 1,
        instance: 1,
        chunk_bytes: CHUNK_BYTES_MIN,
        replicas: 3,
        groups: GROUPS,
        lease_millis: 2000,
    };
    let mut bootstrap = Bootstrap {
        params,
        servers: (0..3).map(|id| server(id, PoolId::REPLICATED, GearGroup(id as u8))).collect(),
        groups: vec![(0..3).map(ServerId).collect(); GROUPS as usize],
        pools: Vec::new(),
        sets: Vec::new(),
        schedule: Schedule::default(),
    };
    let mut pools = vec![pool(POOL, POOL_NAME, SetId(0), 3)];
    if has_new_pool {
        pools.push(pool(NEW_POOL, NEW_POOL_NAME, SetId(1), 6));
    }
    for NewPool { pool, sets, servers } in pools {
        bootstrap.pools.push(pool);
        bootstrap.sets.extend(sets);
        bootstrap.servers.extend(servers);
    }
    let timing = Timing { raft_tick: Duration::from_millis(TICK), planted, ..Timing::default() };
    MemberConfig {
        id,
        members: (1..=members).map(|id| (id, format!("meta-{id}"))).collect(),
        seed: id,
        bootstrap: Some(bootstrap),
        timing,
        switches: [].into(),
        log_bytes,
    }
}

impl Meta {
    pub fn new(wall: u64, members: u64, (log_bytes, planted): (usize, Option<PlantedBug>)) -> Meta {
        let setup = Setup { log_bytes, has_new_pool: false, planted };
        let open = |id| {
            let mut log = MemoryLog::default();
            let birth = Birth { id, instance: 77, voters: (1..=members).collect() };
            raft::create(&mut log, birth).expect("a log in memory takes it");
            let member = Member::open(config(id, members, setup), log, at(0), wall);
            Seat { member: Some(member.expect("a fresh log opens")), cut_until: 0 }
        };
        let seats = (1..=members).map(|id| (id, open(id))).collect();
        Meta { seats, setup, silent_until: 0, asked: 0, ticked: 0 }
    }

    /// Sets the wall clock of one member, of those that there are.
    pub fn set_wall(&mut self, now: u64, member: u64, wall: u64) {
        if let Some(seat) = self.seats.get_mut(&member) {
            seat.member.as_mut().expect("it runs").set_clock(at(now), wall);
        }
    }

    pub fn leader(&self) -> Option<u64> {
        self.seats.iter().find(|(_, seat)| seat.leads()).map(|(id, _)| *id)
    }

    /// A member starts again, with this wall clock.
    pub fn restart(&mut self, now: u64, member: u64, wall: u64) {
        let (setup, members) = (self.setup, self.seats.len() as u64);
        let Some(seat) = self.seats.get_mut(&member) else { return };
        let log = seat.member.take().expect("it runs").into_log();
        let again = Member::open(config(member, members, setup), log, at(now), wall);
        seat.member = Some(again.expect("the log of one that ran"));
    }

    /// All members start again, with another pool in their files.
    pub fn extend(&mut self, now: u64, wall: u64) {
        self.setup.has_new_pool = true;
        (1..=self.seats.len() as u64).for_each(|id| self.restart(now, id, wall));
    }

    /// Creates the pool. Returns whether it is there now.
    pub fn create_pool(&mut self, now: u64) -> bool {
        let name = NEW_POOL_NAME.to_owned();
        if now >= self.silent_until {
            self.ask(now, MetaRequest::Admin(AdminRequest::CreatePool { name }));
        }
        let leader = self.leader().and_then(|id| self.seats.get(&id)?.member.as_ref());
        leader.is_some_and(|member| member.state().pool(NEW_POOL).is_some())
    }

    /// A member is cut off until this time, if others can continue without it.
    pub fn cut(&mut self, member: u64, until: u64) {
        if self.seats.len() > 1
            && self.seats.values().all(|seat| seat.cut_until <= self.ticked)
            && let Some(seat) = self.seats.get_mut(&member)
        {
            seat.cut_until = until;
        }
    }

    pub fn heal(&mut self) {
        self.silent_until = 0;
        self.seats.values_mut().for_each(|seat| seat.cut_until = 0);
    }

    /// `None`: there is no answer.
    pub fn ask(&mut self, now: u64, request: MetaRequest) -> Option<MetaReply> {
        self.tick(now);
        self.asked += 1;
        let token = Token { connection: 0, id: self.asked };
        // A client tries one after another until one leads. One that is alone leads once it is asked.
        let hears = |seat: &Seat| seat.cut_until <= now;
        let leader = self.seats.iter().find(|(_, seat)| hears(seat) && seat.leads()).map(|(id, _)| *id);
        let alone = (self.seats.len() == 1).then_some(1);
        let Some(leader) = leader.or(alone) else { return Some(MetaReply::NotLeader { leader: None }) };
        self.feed(now, leader, vec![Input::Client { token, is_admin: true, request }])
            .into_iter()
            .find_map(|(of, reply)| (of == token).then_some(reply))
    }

    fn tick(&mut self, now: u64) {
        let missed = (now - self.ticked) / TICK;
        if self.seats.len() == 1 || missed == 0 {
            return;
        }
        for back in (0..missed.min(TICKS)).rev() {
            for id in 1..=self.seats.len() as u64 {
                self.feed(now - back * TICK, id, Vec::new());
            }
        }
        self.ticked = now;
    }

    /// Gives something to a member, and carries all messages that follow from it. Returns the answers to clients.
    fn feed(&mut self, now: u64, to: u64, inputs: Vec<Input>) -> Vec<(Token, MetaReply)> {
        let (mut under_way, mut replies) = (VecDeque::from([(to, inputs)]), Vec::new());
        while let Some((to, inputs)) = under_way.pop_front() {
            let Some(seat) = self.seats.get_mut(&to).filter(|seat| seat.cut_until <= now) else { continue };
            let (member, mut out) = (seat.member.as_mut().expect("it runs"), Vec::new());
            member.on(at(now), inputs, &mut out).expect("a log in memory takes all");
            for outcome in out {
                match outcome {
                    Outcome::Reply { token, reply } => replies.push((token, reply)),
                    Outcome::SendRaft { to: peer, message } => {
                        under_way.push_back((peer, vec![Input::Raft { from: to, message }]));
                    }
                    Outcome::Broken(_) | Outcome::Bug(_) => panic!("member-{to}: {outcome:?}"),
                    _ => {}
                }
            }
        }
        replies
    }

    /// Whether a process holds the object under a lease.
    pub fn is_leased(&self, object: ObjectId) -> bool {
        self.namespace().is_some_and(|namespace| namespace.is_leased(object))
    }

    /// The clients that have a session.
    pub fn sessions(&self) -> Vec<u64> {
        self.namespace().map_or(Vec::new(), |namespace| namespace.sessions().collect())
    }

    /// Without time passing.
    pub fn query(&self, query: &NamespaceQuery) -> Option<NamespaceAnswer> {
        self.namespace()?.query(query).ok()
    }

    fn namespace(&self) -> Option<&Namespace> {
        let leader = self.seats.get(&self.leader()?)?;
        leader.member.as_ref().map(|member| member.state().namespace())
    }

    /// How often logs were rewritten, and how often members were sent the state. Nothing is asked any more.
    pub fn end(&mut self) -> (u64, u64) {
        let seats = self.seats.values_mut();
        let logs: Vec<MemoryLog> =
            seats.filter_map(|seat| seat.member.take()).map(Member::into_log).collect();
        let received: u64 = logs.iter().map(|log| log.received).sum();
        (logs.iter().map(|log| log.replaced).sum::<u64>().saturating_sub(received), received)
    }
}

impl Seat {
    fn leads(&self) -> bool {
        self.member.as_ref().is_some_and(Member::is_leader)
    }
}
