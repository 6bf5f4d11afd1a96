//! The metadata service: a production member, alone, with the production namespace and its judgement of clocks.

use ebb_meta::{
    Birth, Bootstrap, Input, LOG_BYTES, Member, MemberConfig, MemoryLog, NewServer, Outcome, Timing, Token,
    raft,
};
use ebb_types::{
    CHUNK_BYTES_MIN, ClusterParams, Column, Epoch, GearGroup, MetaReply, MetaRequest, Moment, NO_GEAR,
    NamespaceAnswer, NamespaceQuery, ObjectId, ParityDebt, PoolEntry, PoolId, RackId, Schedule, ServerId,
    SetEntry, SetId, Shape, SlotState,
};
use std::time::Duration;

/// The replicated pool's chunk groups.
pub(super) const GROUPS: u32 = 3;
/// The erasure-coded pool.
pub(super) const POOL: PoolId = PoolId(3);
pub(super) const POOL_NAME: &str = "archive";

pub(super) struct Meta {
    /// Absent only while it starts again.
    member: Option<Member<MemoryLog>>,
    /// It answers nothing until then.
    pub silent_until: u64,
    asked: u64,
}

fn at(now: u64) -> Moment {
    Moment::ZERO + Duration::from_millis(now + 1)
}

fn config() -> MemberConfig {
    let params = ClusterParams {
        cluster: 1,
        instance: 1,
        chunk_bytes: CHUNK_BYTES_MIN,
        replicas: 3,
        groups: GROUPS,
        lease_millis: 2000,
    };
    let server = |id: u16, pool, gear_group| NewServer {
        id: ServerId(id),
        rack: RackId(id),
        pool,
        gear_group,
        address: format!("server-{id}"),
    };
    let shape = Shape::new(2, 1).expect("a small shape");
    let columns = (3..6).map(|id| Column { server: ServerId(id), state: SlotState::InSync });
    let set =
        SetEntry { pool: POOL, shape, epoch: Epoch(1), hibernates_since: None, columns: columns.collect() };
    let pool = PoolEntry {
        id: POOL,
        name: POOL_NAME.into(),
        shape,
        parity_debt: ParityDebt::Ram,
        parity_buffer_bytes: 1 << 20,
        hibernate_after_millis: None,
        sets: vec![SetId(0)],
    };
    let replicated = (0..3).map(|id| server(id, PoolId::REPLICATED, GearGroup(id as u8)));
    let bootstrap = Bootstrap {
        params,
        servers: replicated.chain((3..6).map(|id| server(id, POOL, NO_GEAR))).collect(),
        groups: vec![(0..3).map(ServerId).collect(); GROUPS as usize],
        pools: vec![pool],
        sets: vec![set],
        schedule: Schedule::default(),
    };
    MemberConfig {
        id: 1,
        members: [(1, "meta-1".to_owned())].into(),
        seed: 1,
        bootstrap: Some(bootstrap),
        timing: Timing::default(),
        log_bytes: LOG_BYTES,
        switches: [].into(),
    }
}

impl Meta {
    pub fn new(wall: u64) -> Meta {
        let mut log = MemoryLog::default();
        let birth = Birth { id: 1, instance: 77, voters: [1].into() };
        raft::create(&mut log, birth).expect("a log in memory takes it");
        let member = Member::open(config(), log, at(0), wall).expect("a fresh log opens");
        Meta { member: Some(member), silent_until: 0, asked: 0 }
    }

    pub fn set_wall(&mut self, now: u64, today: u64, ahead: i64) {
        let wall = (today as i64 + now as i64 + ahead).max(1) as u64;
        self.member.as_mut().expect("it runs").set_clock(at(now), wall);
    }

    /// Another leader, whose wall clock is its own.
    pub fn restart(&mut self, now: u64, today: u64, ahead: i64) {
        let log = self.member.take().expect("it runs").into_log();
        let wall = (today as i64 + now as i64 + ahead).max(1) as u64;
        self.member = Some(Member::open(config(), log, at(now), wall).expect("the log of one that ran"));
    }

    pub fn ask(&mut self, now: u64, request: MetaRequest) -> MetaReply {
        self.asked += 1;
        let (token, mut out) = (Token(self.asked), Vec::new());
        let member = self.member.as_mut().expect("it runs");
        member
            .on(at(now), vec![Input::Client { token, request }], &mut out)
            .expect("a log in memory takes all");
        let reply = out.into_iter().find_map(|outcome| match outcome {
            Outcome::Reply { token: of, reply } if of == token => Some(reply),
            _ => None,
        });
        reply.expect("a member that is alone answers within the call")
    }

    /// Whether a process holds the object under a lease.
    pub fn is_leased(&self, object: ObjectId) -> bool {
        self.member.as_ref().is_some_and(|member| member.state().namespace().is_leased(object))
    }

    /// Without time passing.
    pub fn query(&self, query: &NamespaceQuery) -> Option<NamespaceAnswer> {
        self.member.as_ref()?.state().namespace().query(query).ok()
    }
}
