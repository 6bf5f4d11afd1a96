use super::log::{FRAMES_AT, read_log};
use super::*;
use crate::{Command, Reply};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

/// A command that leaves a trace: the state's next object id tells how many were applied.
fn count(n: u32) -> Vec<u8> {
    postcard::to_stdvec(&[Command::AllocateObjects { count: n }].to_vec()).unwrap()
}

fn allocated(state: &mut State) -> u64 {
    match state.apply(&Command::AllocateObjects { count: 0 }) {
        Reply::Objects { first, .. } => first.0,
        other => panic!("{other:?}"),
    }
}

/// A log file that stops taking bytes after `budget` of them, in the midst of a write, as in a power failure.
#[derive(Clone)]
struct CrashingLog {
    bytes: Rc<RefCell<Vec<u8>>>,
    budget: usize,
    prepared: Vec<u8>,
}

impl LogFile for CrashingLog {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.bytes.borrow().clone())
    }

    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let fits = bytes.len().min(self.budget);
        self.bytes.borrow_mut().truncate(at as usize);
        self.bytes.borrow_mut().extend_from_slice(&bytes[..fits]);
        self.budget -= fits;
        if fits < bytes.len() { Err(io::Error::other("power failure")) } else { Ok(()) }
    }

    fn overwrite(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        // A power failure may come before it is durable.
        if self.budget > 0 {
            self.bytes.borrow_mut()[at as usize..][..bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&mut self, _: u64, _: u64) -> io::Result<bool> {
        Ok(true)
    }

    fn prepare(&mut self, bytes: Vec<u8>) {
        self.prepared = bytes;
    }

    fn is_prepared(&mut self, _: bool) -> io::Result<bool> {
        Ok(true)
    }

    fn replace(&mut self, more: &[u8]) -> io::Result<()> {
        self.prepared.extend_from_slice(more);
        if self.budget < self.prepared.len() {
            self.budget = 0;
            return Err(io::Error::other("power failure"));
        }
        self.budget -= self.prepared.len();
        *self.bytes.borrow_mut() = std::mem::take(&mut self.prepared);
        Ok(())
    }
}

fn birth(id: MemberId, voters: &[MemberId]) -> Birth {
    Birth { id, instance: 77, voters: voters.to_vec() }
}

impl CrashingLog {
    /// A log that a founder made, and that takes `budget` more bytes.
    fn founded(voters: &[MemberId], budget: usize) -> CrashingLog {
        CrashingLog { budget, ..CrashingLog::born(birth(voters[0], voters)) }
    }

    fn born(birth: Birth) -> CrashingLog {
        let mut log = CrashingLog { bytes: Rc::default(), budget: usize::MAX, prepared: Vec::new() };
        create(&mut log, birth).unwrap();
        log
    }
}

/// Runs until nothing more follows; applies what was committed.
fn settle<L: LogFile>(node: &mut Node<L>, state: &mut State) -> Result<u64, RaftError> {
    let mut applied = 0;
    loop {
        let progress = node.ready()?;
        if progress.committed.is_empty() && progress.snapshot.is_none() {
            return Ok(applied);
        }
        if let Some(snapshot) = progress.snapshot {
            *state = snapshot;
        }
        for command in progress.committed.iter().flat_map(|c| &c.commands) {
            state.apply(command);
            applied += 1;
        }
    }
}

/// Proposes ten commands, with a snapshot in between. Returns how many were acknowledged.
fn work(log: CrashingLog) -> u64 {
    let Ok((mut node, mut state)) = Node::open(1, &[1], 0, log) else { return 0 };
    let mut acknowledged = 0;
    let mut step = |node: &mut Node<CrashingLog>, n: u32| -> Result<u64, RaftError> {
        if n > 0 {
            node.propose(count(1));
        }
        settle(node, &mut state)?;
        if n == 5 {
            node.compact_now(&state)?;
        }
        Ok(u64::from(n))
    };
    for n in 0..=10 {
        match step(&mut node, n) {
            Ok(n) => acknowledged = n,
            Err(_) => break,
        }
    }
    acknowledged
}

#[test]
fn a_crash_at_any_byte_of_the_log_loses_nothing_acknowledged() {
    let whole = CrashingLog::founded(&[1], usize::MAX);
    assert_eq!(work(whole.clone()), 10);
    let most = whole.bytes.borrow().len() * 3;
    let mut acknowledgements = std::collections::BTreeSet::new();
    for budget in 0..most {
        let log = CrashingLog::founded(&[1], budget);
        let acknowledged = work(log.clone());
        acknowledgements.insert(acknowledged);
        let (mut node, mut state) = Node::open(1, &[1], 0, CrashingLog { budget: usize::MAX, ..log })
            .unwrap_or_else(|e| panic!("crash after {budget} bytes: {e}"));
        settle(&mut node, &mut state).unwrap();
        let found = allocated(&mut state);
        assert!(
            found == acknowledged || found == acknowledged + 1,
            "{acknowledged} acknowledged, {found} found at {budget}"
        );
    }
    assert_eq!(acknowledgements.len(), 11, "the crashes hit every step");
}

#[test]
fn damage_to_acknowledged_data_is_named_and_never_skipped() {
    let log = CrashingLog::founded(&[1], usize::MAX);
    work(log.clone());
    let good = log.bytes.borrow().clone();
    assert_eq!(read_log(&good).unwrap().whole, good.len());
    for at in FRAMES_AT..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert!(matches!(read_log(&bad), Err(RaftError::Damaged { .. })), "byte {at}");
        assert!(matches!(read_log(&good[..at]), Err(RaftError::Damaged { .. })), "cut at byte {at}");
    }
    // One mark may be lost with the sector that it shares with nothing but the other: then the other one tells.
    for at in 8..FRAMES_AT {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert_eq!(read_log(&bad).unwrap().whole, good.len(), "byte {at}");
    }
    let mut foreign = good.clone();
    foreign[0] = b'X';
    assert!(matches!(read_log(&foreign), Err(RaftError::Format { .. })));
}

#[test]
fn a_gap_between_entries_is_reported() {
    let log = CrashingLog::founded(&[1], usize::MAX);
    let (mut kept, _) = Log::open(log.clone()).unwrap();
    let later = Piece::Entry { index: 3, term: 1, change: false, data: Vec::new() };
    kept.append(&[later], None).unwrap();
    assert!(matches!(Node::open(1, &[1], 0, log), Err(RaftError::Gap { index: 3 })));
}

#[test]
fn a_single_member_writes_nothing_while_idle() {
    let log = CrashingLog::founded(&[1], usize::MAX);
    let (mut node, mut state) = Node::open(1, &[1], 0, log.clone()).unwrap();
    settle(&mut node, &mut state).unwrap();
    assert!(node.is_leader_ready());
    let before = log.bytes.borrow().len();
    for _ in 0..100 {
        settle(&mut node, &mut state).unwrap();
    }
    assert_eq!(log.bytes.borrow().len(), before);
}

#[test]
fn the_log_file_on_disk_is_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("meta");
    let opened = |path| Node::open(1, &[1], 0, DiskLog::open(path)?);
    assert!(matches!(opened(&path), Err(RaftError::Missing)), "a lost log founds nothing");
    create(&mut DiskLog::open(&path).unwrap(), birth(1, &[1])).unwrap();
    assert!(matches!(create(&mut DiskLog::open(&path).unwrap(), birth(1, &[1])), Err(RaftError::Exists)));
    for run in 1..=3u32 {
        let (mut node, mut state) = opened(&path).unwrap();
        assert!(matches!(DiskLog::open(&path), Err(RaftError::InUse)));
        settle(&mut node, &mut state).unwrap();
        assert_eq!(allocated(&mut state), u64::from(run - 1));
        node.propose(count(1)).unwrap();
        settle(&mut node, &mut state).unwrap();
        if run == 2 {
            node.compact_now(&state).unwrap();
        }
    }
}

/// Three members and a network that loses, repeats and reorders.
struct Cluster {
    nodes: BTreeMap<MemberId, Member>,
    network: VecDeque<(MemberId, MemberId, Vec<u8>)>,
    dice: u64,
    /// Index and content of every entry that any member committed.
    committed: BTreeMap<u64, Vec<u8>>,
    /// Members that had to stop, and why.
    stopped: Vec<(MemberId, RaftError)>,
}

struct Member {
    node: Option<Node<CrashingLog>>,
    log: CrashingLog,
    state: State,
    applied: u64,
}

const MEMBERS: [MemberId; 3] = [1, 2, 3];

impl Cluster {
    fn new(seed: u64) -> Cluster {
        let member = |id: &MemberId| Member {
            node: None,
            log: CrashingLog::born(birth(*id, &MEMBERS)),
            state: State::default(),
            applied: 0,
        };
        let nodes = MEMBERS.iter().map(|id| (*id, member(id))).collect();
        let mut cluster = Cluster {
            nodes,
            network: VecDeque::new(),
            dice: seed,
            committed: BTreeMap::new(),
            stopped: Vec::new(),
        };
        MEMBERS.iter().for_each(|id| cluster.start(*id));
        cluster
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.dice >> 33) % sides
    }

    fn start(&mut self, id: MemberId) {
        let member = self.nodes.get_mut(&id).unwrap();
        let (node, state) = Node::open(id, &MEMBERS, 42, member.log.clone()).unwrap();
        (member.node, member.state, member.applied) = (Some(node), state, 0);
    }

    /// The member loses its data and starts with nothing, as a new member.
    fn wipe(&mut self, id: MemberId) {
        self.kill(id);
        let drawn = self.roll(1 << 30);
        self.nodes.get_mut(&id).unwrap().log =
            CrashingLog::born(Birth { id: joining_id(id, drawn), instance: 0, voters: Vec::new() });
        self.start(id);
    }

    /// Whether every member knows that every member votes. Before that the loss of one more may be one too many: the library
    /// counts a majority by the members that are *applied*.
    fn all_vote(&self) -> bool {
        let knows = |m: &Member| m.node.as_ref().is_some_and(|n| n.members().iter().all(|m| m.votes));
        self.leader().is_some() && self.nodes.values().all(knows)
    }

    /// Carries out what a member has ready, and checks that no two members commit different things.
    fn pump(&mut self, id: MemberId) {
        loop {
            let member = self.nodes.get_mut(&id).unwrap();
            let Some(node) = &mut member.node else { return };
            let progress = node.ready().unwrap();
            let idle = progress.committed.is_empty() && progress.snapshot.is_none();
            if let Some(snapshot) = progress.snapshot {
                member.state = snapshot;
            }
            for entry in progress.committed {
                assert!(entry.index > member.applied, "in order and once");
                member.applied = entry.index;
                entry.commands.iter().for_each(|c| drop(member.state.apply(c)));
                let content = postcard::to_stdvec(&entry.commands).unwrap();
                let known = self.committed.entry(entry.index).or_insert_with(|| content.clone());
                assert_eq!(*known, content, "entry {} is the same on every member", entry.index);
            }
            self.network.extend(progress.send.into_iter().map(|(to, bytes)| (id, to, bytes)));
            if idle {
                return node.keep_house(&member.state).unwrap();
            }
        }
    }

    /// A round: a tick for everybody, then deliveries with `loss` in a hundred lost and some twice or late.
    fn round(&mut self, loss: u64) {
        for id in MEMBERS {
            if let Some(node) = &mut self.nodes.get_mut(&id).unwrap().node {
                node.tick();
            }
            self.pump(id);
        }
        for _ in 0..self.network.len() * 2 {
            if self.network.is_empty() {
                break;
            }
            let at = if loss > 0 { self.roll(self.network.len() as u64) as usize } else { 0 };
            let (from, to, bytes) = self.network.remove(at).unwrap();
            if loss > 0 && self.roll(100) < loss {
                continue;
            }
            if loss > 0 && self.roll(10) == 0 {
                self.network.push_back((from, to, bytes.clone()));
            }
            if let Some(node) = &mut self.nodes.get_mut(&to).unwrap().node
                && let Err(error) = node.step(from, &bytes)
            {
                self.stopped.push((to, error));
                self.kill(to);
            }
            self.pump(to);
        }
    }

    fn leader(&self) -> Option<MemberId> {
        let leads = |m: &Member| m.node.as_ref().filter(|n| n.is_leader_ready()).map(|n| n.term());
        self.nodes.iter().filter_map(|(id, m)| Some((leads(m)?, *id))).max().map(|(_, id)| id)
    }

    fn elect(&mut self) -> MemberId {
        for _ in 0..200 {
            self.round(0);
            if let Some(leader) = self.leader() {
                return leader;
            }
        }
        panic!("no leader after 200 rounds");
    }

    fn kill(&mut self, id: MemberId) {
        self.nodes.get_mut(&id).unwrap().node = None;
        self.network.retain(|(_, to, _)| *to != id);
    }
}

#[test]
fn a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost() {
    let mut cluster = Cluster::new(1);
    for kills in 1..=5u64 {
        let leader = cluster.elect();
        let member = cluster.nodes.get_mut(&leader).unwrap();
        member.node.as_mut().unwrap().propose(count(1)).unwrap();
        for _ in 0..5 {
            cluster.round(0);
        }
        let mut state = cluster.nodes[&leader].state.clone();
        assert_eq!(allocated(&mut state), kills, "acknowledged by a majority");
        cluster.kill(leader);
        let next = cluster.elect();
        assert_ne!(next, leader);
        let mut state = cluster.nodes[&next].state.clone();
        assert_eq!(allocated(&mut state), kills);
        cluster.start(leader);
    }
}

#[test]
fn a_follower_that_is_far_behind_takes_a_snapshot() {
    let mut cluster = Cluster::new(2);
    let leader = cluster.elect();
    let behind = MEMBERS.into_iter().find(|id| *id != leader).unwrap();
    cluster.kill(behind);
    for _ in 0..10 {
        cluster.nodes.get_mut(&leader).unwrap().node.as_mut().unwrap().propose(count(1)).unwrap();
        cluster.round(0);
    }
    let member = cluster.nodes.get_mut(&leader).unwrap();
    member.node.as_mut().unwrap().compact_now(&member.state).unwrap();
    cluster.start(behind);
    for _ in 0..200 {
        cluster.round(20);
    }
    for _ in 0..50 {
        cluster.round(0);
    }
    assert_eq!(cluster.nodes[&behind].state, cluster.nodes[&leader].state);
    assert_eq!(allocated(&mut cluster.nodes[&behind].state.clone()), 10);
}

#[test]
fn random_losses_repeats_and_crashes_leave_all_members_with_the_same_state() {
    let (mut wipes, mut entries) = (0, 0);
    for seed in 0..40 {
        println!("seed {seed}");
        let mut cluster = Cluster::new(seed);
        for step in 0..300u32 {
            cluster.round(15);
            if let Some(leader) = cluster.leader()
                && step.is_multiple_of(3)
            {
                cluster.nodes.get_mut(&leader).unwrap().node.as_mut().unwrap().propose(count(step + 1));
            }
            let id = 1 + cluster.roll(3);
            match cluster.roll(40) {
                0 if cluster.nodes.values().all(|m| m.node.is_some()) => cluster.kill(id),
                1 => {
                    let down = MEMBERS.into_iter().find(|id| cluster.nodes[id].node.is_none());
                    down.into_iter().for_each(|id| cluster.start(id));
                }
                2 if cluster.nodes.values().all(|m| m.node.is_some()) && cluster.all_vote() => {
                    cluster.wipe(id);
                    wipes += 1;
                }
                3 => {
                    let member = cluster.nodes.get_mut(&id).unwrap();
                    if let Some(node) = member.node.as_mut().filter(|n| n.applied > 0) {
                        node.compact_now(&member.state).unwrap();
                    }
                }
                _ => {}
            }
        }
        let down: Vec<MemberId> = MEMBERS.into_iter().filter(|id| cluster.nodes[id].node.is_none()).collect();
        down.into_iter().for_each(|id| cluster.start(id));
        for _ in 0..400 {
            cluster.round(0);
        }
        assert!(cluster.stopped.is_empty(), "{:?}", cluster.stopped);
        assert!(cluster.all_vote(), "who lost its data is a member again");
        entries += cluster.committed.len();
        assert_eq!(cluster.nodes[&1].state, cluster.nodes[&2].state);
        assert_eq!(cluster.nodes[&1].state, cluster.nodes[&3].state);
    }
    assert!(entries > 40 * 20, "{entries} entries");
    assert!(wipes > 40, "members lost their data {wipes} times");
}

#[test]
fn one_member_becomes_three_and_the_new_ones_found_nothing() {
    let mut cluster = Cluster::new(3);
    for id in MEMBERS {
        cluster.kill(id);
        cluster.nodes.get_mut(&id).unwrap().log = CrashingLog::born(birth(1, &[1]));
    }
    [2, 3].into_iter().for_each(|id| cluster.wipe(id));
    for _ in 0..100 {
        cluster.round(0);
    }
    assert_eq!(cluster.leader(), None, "nobody who joins leads");
    cluster.start(1);
    assert_eq!(cluster.elect(), 1);
    cluster.nodes.get_mut(&1).unwrap().node.as_mut().unwrap().propose(count(5)).unwrap();
    for _ in 0..200 {
        cluster.round(0);
    }
    assert!(cluster.all_vote());
    cluster.kill(1);
    let next = cluster.elect();
    assert_eq!(allocated(&mut cluster.nodes[&next].state.clone()), 5);
}

/// What it acknowledged is forgotten: nobody must count on its word.
#[test]
fn a_member_with_an_older_copy_of_its_log_stops() {
    let mut cluster = Cluster::new(4);
    let leader = cluster.elect();
    let other = MEMBERS.into_iter().find(|id| *id != leader).unwrap();
    let older = cluster.nodes[&other].log.bytes.borrow().clone();
    for _ in 0..10 {
        cluster.nodes.get_mut(&leader).unwrap().node.as_mut().unwrap().propose(count(1)).unwrap();
        cluster.round(0);
    }
    cluster.kill(other);
    cluster.nodes.get_mut(&other).unwrap().log.bytes = Rc::new(RefCell::new(older));
    cluster.start(other);
    for _ in 0..20 {
        cluster.round(0);
    }
    assert!(matches!(cluster.stopped[..], [(id, RaftError::Older)] if id == other), "{:?}", cluster.stopped);
}
