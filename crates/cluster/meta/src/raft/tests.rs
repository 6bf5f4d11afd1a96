mod rescue;

use super::log::{HEADER, ZERO_BYTES, read_log};
use super::*;
use crate::namespace::names::Names;
use crate::{Blob, Command, Reply};
use ebb_types::{Condition, ETag, NamespaceCommand, NamespaceOp, ObjectMeta, OnlyIf, RequestId};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::ops::Bound;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Commands with a visible effect: the state's next object id shows how many were applied. One of fifty names changes
/// too.
fn count(n: u32) -> Vec<u8> {
    thread_local!(static SEQ: Cell<u64> = const { Cell::new(1) });
    let seq = SEQ.replace(SEQ.get() + 1);
    let (bucket, key, when) = (String::from("b"), format!("{:03}", seq * 7 % 50), Condition::Any);
    let change = if seq.is_multiple_of(3) {
        NamespaceOp::Delete { bucket: bucket.clone(), key, when, only_if: OnlyIf::default() }
    } else {
        let meta = ObjectMeta {
            size: seq,
            etag: ETag { md5: [0; 16], parts: 0 },
            modified_millis: 0,
            extents: vec![],
            headers: vec![("x".into(), "y".repeat(60))],
            checksum: None,
            upload: None,
            parts: vec![],
        };
        NamespaceOp::Put { bucket: bucket.clone(), key, meta, when }
    };
    let ops = vec![NamespaceOp::CreateBucket { bucket, settings: BTreeMap::new() }, change];
    let request = RequestId { client: 1, seq };
    let first = Command::Namespace(NamespaceCommand::first(request, 0));
    let names = Command::Namespace(NamespaceCommand { request, session: Some(1), clock_millis: 0, ops });
    postcard::to_stdvec(&vec![Command::AllocateObjects { count: n }, first, names]).unwrap()
}

fn allocated(state: &mut State) -> u64 {
    match state.apply(&Command::AllocateObjects { count: 0 }) {
        Reply::Objects { first, .. } => first.0,
        other => panic!("{other:?}"),
    }
}

/// A log file that fails after `budget` bytes, in the middle of a write, as in a power failure.
#[derive(Clone)]
struct CrashingLog {
    log: Rc<RefCell<MemoryLog>>,
    budget: usize,
    /// Why the log that is to replace it cannot be written.
    short: Rc<Cell<Option<Errno>>>,
}

impl CrashingLog {
    /// How many of `bytes` it still accepts.
    fn take(&mut self, bytes: usize) -> usize {
        let fits = bytes.min(self.budget);
        self.budget -= fits;
        fits
    }

    fn bytes(&self) -> Vec<u8> {
        self.log.borrow().bytes.clone()
    }
}

fn power_failure() -> io::Error {
    io::Error::other("power failure")
}

impl LogFile for CrashingLog {
    fn bytes(&mut self) -> io::Result<u64> {
        self.log.borrow_mut().bytes()
    }

    fn blob(&mut self) -> io::Result<Arc<dyn Blob>> {
        self.log.borrow_mut().blob()
    }

    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let fits = self.take(bytes.len());
        self.log.borrow_mut().append(at, &bytes[..fits])?;
        if fits < bytes.len() { Err(power_failure()) } else { Ok(()) }
    }

    fn overwrite(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        // A power failure may come before it is durable.
        if self.budget > 0 { self.log.borrow_mut().overwrite(at, bytes) } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn reserve(&mut self, _: u64, _: u64) -> io::Result<bool> {
        Ok(true)
    }

    fn prepare(&mut self, job: Job) {
        self.log.borrow_mut().prepare(job);
    }

    fn prepared(&mut self) -> io::Result<Option<u64>> {
        if let Some(short) = self.short.get() {
            self.log.borrow_mut().abandon();
            return Err(short.into());
        }
        let answer = self.log.borrow_mut().prepared()?;
        let bytes = answer.unwrap_or(0) as usize;
        if self.take(bytes) < bytes { Err(power_failure()) } else { Ok(answer) }
    }

    fn abandon(&mut self) {
        self.log.borrow_mut().abandon();
    }

    fn stage(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let fits = self.take(bytes.len());
        self.log.borrow_mut().stage(at, &bytes[..fits])?;
        if fits < bytes.len() { Err(power_failure()) } else { Ok(()) }
    }

    fn take_staged(&mut self) {
        self.log.borrow_mut().take_staged();
    }

    fn replace(&mut self, head: &[u8], at: u64, more: &[u8]) -> io::Result<()> {
        // The other log gets this one's name once it is durable.
        let bytes = head.len() + more.len();
        if self.take(bytes) < bytes {
            Err(power_failure())
        } else {
            self.log.borrow_mut().replace(head, at, more)
        }
    }
}

fn birth(id: MemberId, voters: &[MemberId]) -> Birth {
    Birth { id, instance: 77, voters: voters.to_vec() }
}

impl CrashingLog {
    /// A founder's log that accepts `budget` more bytes.
    fn founded(voters: &[MemberId], budget: usize) -> CrashingLog {
        CrashingLog { budget, ..CrashingLog::born(birth(voters[0], voters)) }
    }

    fn born(birth: Birth) -> CrashingLog {
        let mut log = CrashingLog { log: Rc::default(), budget: usize::MAX, short: Rc::default() };
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
            node.compact_now(&mut state)?;
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
fn made_up_logs_and_snapshots_are_refused_or_read() {
    let young = CrashingLog::founded(&[1, 2, 3], usize::MAX).bytes();
    let grown = CrashingLog::founded(&[1], usize::MAX);
    assert_eq!(work(grown.clone()), 10);
    let (grown, snapshot) = (grown.bytes(), postcard::to_stdvec(&State::default()).unwrap());
    let all = |bytes: &[u8]| {
        let mut content = read_log(Arc::new(bytes.to_vec()), bytes.len() as u64)?;
        let mut names = content.state.names_mut().range(Bound::Unbounded);
        let mut count = 0;
        while names.next().is_some() {
            count += 1;
        }
        Ok::<_, RaftError>(count)
    };
    assert!(all(&grown).unwrap() > 0, "a table is among the samples");
    ebb_testing::fuzz(&[&young, &grown, &snapshot, &count(1)], |bytes| {
        let _ = all(bytes);
        let _ = postcard::from_bytes::<State>(bytes);
        let _ = postcard::from_bytes::<Vec<Command>>(bytes);
    });
}

#[test]
fn a_crash_at_any_byte_of_the_log_loses_nothing_acknowledged() {
    let whole = CrashingLog::founded(&[1], usize::MAX);
    assert_eq!(work(whole.clone()), 10);
    let most = whole.bytes().len() * 3;
    let mut acknowledgements = std::collections::BTreeSet::new();
    for budget in 0..most {
        let log = CrashingLog::founded(&[1], budget);
        let acknowledged = work(log.clone());
        acknowledgements.insert(acknowledged);
        // Zeroes may be ahead: the rest of a torn frame, and more.
        log.log.borrow_mut().bytes.extend(vec![0; budget % 3 * 40]);
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
    let good = log.bytes();
    let read = |bytes: &[u8]| {
        let content = read_log(Arc::new(bytes.to_vec()), bytes.len() as u64)?;
        let written = content.state.names().write_table(&mut io::sink());
        match content.state.names().fault() {
            Some(fault) => Err(fault.clone().into()),
            None => written.map(|_| content).map_err(RaftError::Io),
        }
    };
    assert_eq!(read(&good).unwrap().whole, good.len());
    let ahead = |bytes: &[u8]| [bytes, &[0; 100]].concat();
    assert_eq!(read(&ahead(&good)).unwrap().whole, good.len(), "zeroes ahead are no damage");
    let marks = 8..HEADER - 12;
    for at in marks.end..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert!(matches!(read(&bad), Err(RaftError::Damaged { .. })), "byte {at}");
        for bad in [good[..at].to_vec(), ahead(&good[..at]), ahead(&bad)] {
            // What was cut off may have been zeroes.
            let harmed = !bad.starts_with(&good);
            assert_eq!(matches!(read(&bad), Err(RaftError::Damaged { .. })), harmed, "byte {at}");
        }
    }
    // One mark may be lost, with a sector that it shares only with the other; then the other one is used.
    for at in marks {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        assert_eq!(read(&bad).unwrap().whole, good.len(), "byte {at}");
    }
    let mut foreign = good.clone();
    foreign[0] = b'X';
    assert!(matches!(read(&foreign), Err(RaftError::Format { .. })));
}

#[test]
fn a_gap_between_entries_is_reported() {
    let log = CrashingLog::founded(&[1], usize::MAX);
    let (mut kept, _) = Log::open(log.clone()).unwrap();
    let later = Piece::Entry { index: 3, term: 1, change: false, data: Vec::new() };
    kept.append(&[later]).unwrap();
    assert!(matches!(Node::open(1, &[1], 0, log), Err(RaftError::Gap { index: 3 })));
}

#[test]
fn a_single_member_writes_nothing_while_idle() {
    let log = CrashingLog::founded(&[1], usize::MAX);
    let (mut node, mut state) = Node::open(1, &[1], 0, log.clone()).unwrap();
    settle(&mut node, &mut state).unwrap();
    assert!(node.is_leader_ready());
    let before = log.bytes().len();
    for _ in 0..100 {
        settle(&mut node, &mut state).unwrap();
    }
    assert_eq!(log.bytes().len(), before);
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
        assert_eq!(state.names().table().is_some(), run == 3, "it is in the log that was put in place");
        node.propose(count(1)).unwrap();
        settle(&mut node, &mut state).unwrap();
        if run == 2 {
            node.compact_now(&mut state).unwrap();
        }
    }
}

#[test]
fn a_log_file_is_written_ahead_with_zeroes_and_keeps_no_torn_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("raft.log");
    let mut log = DiskLog::open(directory.path()).unwrap();
    create(&mut log, birth(1, &[1])).unwrap();
    let end = log.bytes().unwrap();
    let content = || std::fs::read(&path).unwrap()[end as usize..].to_vec();
    let is = |bytes: &[u8]| {
        let found = content();
        found.starts_with(bytes) && found[bytes.len()..].iter().all(|byte| *byte == 0)
    };
    log.append(end, b"one").unwrap();
    let length = log.bytes().unwrap();
    log.append(end + 3, b"two").unwrap();
    assert!(is(b"onetwo"));
    assert_eq!(log.bytes().unwrap(), length, "the second one was written over zeroes");
    drop(log);
    // A torn append of an earlier run is gone before the next one, and before room is reserved behind the end.
    for reserves in [false, true] {
        std::fs::OpenOptions::new().append(true).open(&path).unwrap().write_all(&[7; 5000]).unwrap();
        let mut log = DiskLog::open(directory.path()).unwrap();
        if reserves {
            assert!(log.reserve(end + 3, 1 << 20).unwrap());
            assert_eq!(log.bytes().unwrap(), end + 3);
        }
        log.append(end + 3, b"2").unwrap();
        assert!(is(b"one2"));
        // An append before the end cuts off what was behind it.
        log.append(end + 2, b"!").unwrap();
        assert!(is(b"on!"));
        log.append(end + 2, b"e").unwrap();
    }
    let big = vec![9; ZERO_BYTES + 1];
    let mut log = DiskLog::open(directory.path()).unwrap();
    log.append(end, &big).unwrap();
    assert!(is(&big));
}

/// Too few descriptors, too little memory or room are no damage; a disk that fails is.
#[test]
fn a_log_that_cannot_be_rewritten_for_a_shortage_stays_as_it_is() {
    let short = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::AGAIN, Errno::NOSPC, Errno::DQUOT];
    for (errno, stays) in short.map(|errno| (errno, true)).into_iter().chain([(Errno::IO, false)]) {
        let file = CrashingLog::born(birth(1, &[1]));
        let (mut log, _) = Log::open(file.clone()).unwrap();
        let pieces = |term| [Piece::Birth(birth(1, &[1])), Piece::Vote { term, vote: 1 }];
        let state = encode_state(&State::default());
        file.short.set(Some(errno));
        let before = file.bytes();
        log.shorten(Names::default(), &state, &pieces(2));
        let ended = log.finish_shortening();
        assert_eq!(matches!(ended, Ok(None)), stays, "{errno}");
        assert_eq!(file.bytes(), before);
        if stays {
            log.append(&[Piece::Vote { term: 3, vote: 1 }]).unwrap();
            file.short.set(None);
            log.shorten(Names::default(), &state, &pieces(4));
            assert!(matches!(log.finish_shortening(), Ok(Some(_))), "it is tried again");
        }
    }
}

/// A table on a disk that stands still for as long as it is told to, but not for ever.
struct Stalling {
    bytes: Vec<u8>,
    stalls: Arc<AtomicBool>,
}

impl Blob for Stalling {
    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let end = Instant::now() + Duration::from_secs(10);
        while self.stalls.load(Ordering::Relaxed) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.bytes.read_at(at, out)
    }
}

#[test]
fn a_log_from_the_leader_waits_for_no_other_one_that_is_being_written() {
    let directory = tempfile::tempdir().unwrap();
    let mut disk = DiskLog::open(directory.path()).unwrap();
    create(&mut disk, birth(1, &[1])).unwrap();
    let (mut log, _) = Log::open(disk).unwrap();
    let (mut names, mut bytes, stalls) = (Names::default(), Vec::new(), Arc::new(AtomicBool::new(false)));
    names.set(b"key", Some(vec![1; 100]));
    let length = names.write_table(&mut bytes).unwrap();
    let blob = Arc::new(Stalling { bytes, stalls: stalls.clone() });
    names.attach(Some(Arc::new(Table::open(blob, 0, length).unwrap())));
    stalls.store(true, Ordering::Relaxed);
    let state = encode_state(&State::default());
    let vote = |term| Piece::Vote { term, vote: 1 };
    let pieces = |term| [Piece::Birth(birth(1, &[1])), vote(term)];
    log.shorten(names, &state, &pieces(1));
    assert!(log.stage(0, &[]).unwrap());
    log.install(0, &state, &pieces(2)).unwrap();
    let is_being_written = || Arc::strong_count(&stalls) > 1;
    assert!(is_being_written(), "the other one was waited for");
    // The next one is written beside it, and takes the name.
    log.append(&[vote(3)]).unwrap();
    log.shorten(Names::default(), &state, &pieces(3));
    while log.is_being_shortened() {
        log.finish_shortening().unwrap();
        std::thread::yield_now();
    }
    log.append(&[vote(4)]).unwrap();
    assert!(is_being_written());
    stalls.store(false, Ordering::Relaxed);
    while is_being_written() {
        std::thread::yield_now();
    }
    drop(log);
    let files = std::fs::read_dir(directory.path()).unwrap();
    let files: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(files, ["raft.log"]);
    let (_, content) = Log::open(DiskLog::open(directory.path()).unwrap()).unwrap();
    let [Piece::Birth(_), Piece::Vote { term: 3, .. }, Piece::Vote { term: 4, .. }] = content.pieces[..]
    else {
        panic!("the newest log is another one");
    };
}

/// Three members and a network that loses, repeats and reorders messages.
struct Cluster {
    nodes: BTreeMap<MemberId, Member>,
    network: VecDeque<(MemberId, MemberId, Vec<u8>)>,
    dice: u64,
    /// Index and content of every entry that any member committed.
    committed: BTreeMap<u64, Vec<u8>>,
    /// Members that had to stop, and the reason.
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

    /// The member loses its data and starts empty, as a new member.
    fn wipe(&mut self, id: MemberId) {
        self.kill(id);
        let drawn = self.roll(1 << 30);
        self.nodes.get_mut(&id).unwrap().log =
            CrashingLog::born(Birth { id: joining_id(id, drawn), instance: 0, voters: Vec::new() });
        self.start(id);
    }

    /// Whether every member knows that every member votes. Until then the loss of another one may be one too many: the
    /// library counts a majority of the *applied* members.
    fn all_vote(&self) -> bool {
        let knows =
            |m: &Member| m.node.as_ref().is_some_and(|n| n.members(Duration::ZERO).iter().all(|m| m.votes));
        self.leader().is_some() && self.nodes.values().all(knows)
    }

    /// Carries out a member's ready work, and checks that no two members commit different things.
    fn pump(&mut self, id: MemberId) {
        loop {
            let member = self.nodes.get_mut(&id).unwrap();
            let Some(node) = &mut member.node else { return };
            let progress = match node.ready() {
                Ok(progress) => progress,
                Err(error) => return self.stop(id, error),
            };
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
                let kept = node.keep_house(&mut member.state);
                return kept.unwrap_or_else(|error| self.stop(id, error));
            }
        }
    }

    /// One round: a tick for every member, then deliveries with `loss` percent lost and some duplicated or late.
    fn round(&mut self, loss: u64) {
        for id in MEMBERS {
            if let Some(node) = &mut self.nodes.get_mut(&id).unwrap().node {
                node.tick().unwrap();
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
                self.stop(to, error);
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

    fn stop(&mut self, id: MemberId, error: RaftError) {
        self.stopped.push((id, error));
        self.kill(id);
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

/// Dying is not leaving: the member still votes, as far as the configuration knows.
#[test]
fn the_leader_knows_how_long_each_member_has_been_silent() {
    let mut cluster = Cluster::new(4);
    let leader = cluster.elect();
    let rounds = |cluster: &mut Cluster, count| (0..count).for_each(|_| cluster.round(0));
    let silent = |cluster: &Cluster, of: MemberId| -> BTreeMap<MemberId, Option<u64>> {
        let node = cluster.nodes[&of].node.as_ref().unwrap();
        node.members(Duration::from_millis(100)).iter().map(|m| (m.id, m.heard_millis)).collect()
    };
    rounds(&mut cluster, 50);
    let others: Vec<MemberId> = MEMBERS.into_iter().filter(|id| *id != leader).collect();
    let at_first = silent(&cluster, leader);
    assert_eq!(at_first[&leader], None);
    assert!(others.iter().all(|id| at_first[id].is_some_and(|millis| millis < 1_000)), "{at_first:?}");
    assert!(silent(&cluster, others[0]).values().all(Option::is_none), "a follower hears its leader only");
    let [gone, stays] = others[..] else { panic!("two others") };
    cluster.kill(gone);
    rounds(&mut cluster, 200);
    let later = silent(&cluster, leader);
    assert!(later[&gone].is_some_and(|millis| (19_000..21_000).contains(&millis)), "{later:?}");
    assert!(later[&stays].is_some_and(|millis| millis < 1_000), "{later:?}");
    // A new leader has heard none of those that followed, for as long: it counts from its beginning.
    cluster.start(gone);
    rounds(&mut cluster, 20);
    cluster.kill(leader);
    let next = cluster.elect();
    let now = silent(&cluster, next);
    assert!(now.values().flatten().all(|millis| *millis < 2_000), "{now:?}");
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
    member.node.as_mut().unwrap().compact_now(&mut member.state).unwrap();
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

/// A follower needs a snapshot and its disk accepts `budget` more bytes. Returns how many it used.
fn install_with(budget: usize) -> usize {
    let mut cluster = Cluster::new(5);
    let leader = cluster.elect();
    let behind = MEMBERS.into_iter().find(|id| *id != leader).unwrap();
    cluster.kill(behind);
    for n in 0..40 {
        let member = cluster.nodes.get_mut(&leader).unwrap();
        let node = member.node.as_mut().unwrap();
        node.propose(count(1)).unwrap();
        cluster.round(0);
        if n == 30 {
            let member = cluster.nodes.get_mut(&leader).unwrap();
            member.node.as_mut().unwrap().compact_now(&mut member.state).unwrap();
            assert!(member.state.names().table().is_some(), "the snapshot has a table");
        }
    }
    let member = cluster.nodes.get_mut(&leader).unwrap();
    member.node.as_mut().unwrap().compact_now(&mut member.state).unwrap();
    cluster.nodes.get_mut(&behind).unwrap().log.budget = budget;
    cluster.start(behind);
    (0..40).for_each(|_| cluster.round(0));
    let crashed = !cluster.stopped.is_empty();
    let took = cluster.nodes[&behind].node.as_ref().map(|node| budget - node.log.file.budget);
    assert_eq!(took.is_none(), crashed, "{:?}", cluster.stopped);
    cluster.kill(behind);
    cluster.nodes.get_mut(&behind).unwrap().log.budget = usize::MAX;
    cluster.start(behind);
    let is_there = |cluster: &Cluster| cluster.nodes[&behind].state == cluster.nodes[&leader].state;
    // The leader gives up the transfer that the crash interrupted before it sends another.
    let mut rounds = 0;
    while !is_there(&cluster) && rounds < 400 {
        cluster.round(0);
        rounds += 1;
    }
    assert!(is_there(&cluster), "after {budget} bytes");
    assert!(cluster.nodes[&behind].state.names().fault().is_none());
    took.unwrap_or(budget)
}

#[test]
fn a_crash_while_a_snapshot_arrives_leaves_the_old_log_or_the_new_one() {
    let all = install_with(usize::MAX);
    assert!(all > COMMITTED_MAX, "table, room and state were written");
    // Between the table and the last bytes lies a large reserve of zeros: only both ends are sampled.
    for budget in (1..6000).step_by(61).chain((all - 3000..=all).step_by(61)) {
        install_with(budget);
    }
    assert_eq!(install_with(all), all);
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
                        node.compact_now(&mut member.state).unwrap();
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
    assert_eq!(cluster.leader(), None, "no member that joins leads");
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

/// It has forgotten what it acknowledged: no member may rely on it.
#[test]
fn a_member_with_an_older_copy_of_its_log_stops() {
    let mut cluster = Cluster::new(4);
    let leader = cluster.elect();
    let other = MEMBERS.into_iter().find(|id| *id != leader).unwrap();
    let older = cluster.nodes[&other].log.bytes();
    for _ in 0..10 {
        cluster.nodes.get_mut(&leader).unwrap().node.as_mut().unwrap().propose(count(1)).unwrap();
        cluster.round(0);
    }
    cluster.kill(other);
    cluster.nodes.get_mut(&other).unwrap().log.log.borrow_mut().bytes = older;
    cluster.start(other);
    for _ in 0..20 {
        cluster.round(0);
    }
    assert!(matches!(cluster.stopped[..], [(id, RaftError::Older)] if id == other), "{:?}", cluster.stopped);
}

/// No member speaks to it any more, and the cluster counts on its successor.
#[test]
fn a_copy_from_before_the_member_joined_again_stops() {
    for new_leader in [false, true] {
        let mut cluster = Cluster::new(5);
        let leader = cluster.elect();
        let other = MEMBERS.into_iter().find(|id| *id != leader).unwrap();
        let older = cluster.nodes[&other].log.bytes();
        cluster.wipe(other);
        for _ in 0..300 {
            cluster.round(0);
        }
        assert!(cluster.all_vote() && cluster.stopped.is_empty(), "{:?}", cluster.stopped);
        cluster.kill(other);
        if new_leader {
            cluster.kill(leader);
            cluster.start(leader);
            cluster.elect();
        }
        cluster.nodes.get_mut(&other).unwrap().log.log.borrow_mut().bytes = older;
        cluster.start(other);
        for _ in 0..60 {
            cluster.round(0);
        }
        assert!(
            matches!(cluster.stopped[..], [(id, RaftError::Older)] if id == other),
            "{:?}",
            cluster.stopped
        );
    }
}
