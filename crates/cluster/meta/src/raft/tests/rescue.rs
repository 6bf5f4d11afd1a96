use super::*;
use crate::raft::rescue::TERM_JUMP;

/// Three members that applied `count(5)`; then all of them stop. Returns the one that led.
fn stopped(cluster: &mut Cluster) -> MemberId {
    let leader = cluster.elect();
    cluster.nodes.get_mut(&leader).unwrap().node.as_mut().unwrap().propose(count(5)).unwrap();
    (0..20).for_each(|_| cluster.round(0));
    MEMBERS.into_iter().for_each(|id| cluster.kill(id));
    leader
}

fn rounds(cluster: &mut Cluster, rounds: u32) {
    (0..rounds).for_each(|_| cluster.round(0));
}

fn replaced(stopped: &[(MemberId, RaftError)]) -> Vec<MemberId> {
    let is = |error: &RaftError| matches!(error, RaftError::Replaced { own: 0, present: 1 });
    stopped.iter().filter(|(_, error)| is(error)).map(|(id, _)| *id).collect()
}

#[test]
fn one_of_three_goes_on_alone_and_others_join_it() {
    for seed in 0..6 {
        let mut cluster = Cluster::new(seed);
        let leader = stopped(&mut cluster);
        let last = 1 + (leader + seed) % 3;
        let before = log_end(cluster.nodes[&last].log.clone()).unwrap();
        assert_eq!((before.generation, before.votes, before.is_alone()), (0, true, false));
        cluster.start(last);
        rounds(&mut cluster, 100);
        assert_eq!(cluster.leader(), None, "without the others it elects nobody");
        cluster.kill(last);
        drop(rescue(cluster.nodes[&last].log.clone()).unwrap());
        let after = log_end(cluster.nodes[&last].log.clone()).unwrap();
        assert_eq!((after.generation, after.index), (1, before.index));
        assert!(after.is_alone());
        cluster.start(last);
        assert_eq!(cluster.elect(), last);
        let member = &cluster.nodes[&last];
        assert!(member.node.as_ref().unwrap().term() > before.term + TERM_JUMP);
        assert_eq!(allocated(&mut member.state.clone()), 5, "all of its log counts");
        MEMBERS.into_iter().filter(|id| *id != last).for_each(|id| cluster.wipe(id));
        rounds(&mut cluster, 300);
        assert!(cluster.all_vote() && cluster.stopped.is_empty(), "{:?}", cluster.stopped);
        cluster.kill(last);
        let next = cluster.elect();
        assert_eq!(cluster.nodes[&next].node.as_ref().unwrap().generation(), 1, "it learnt it");
        assert_eq!(allocated(&mut cluster.nodes[&next].state.clone()), 5);
        // Also from a log that was replaced since.
        let member = cluster.nodes.get_mut(&next).unwrap();
        member.node.as_mut().unwrap().compact_now(&mut member.state).unwrap();
        cluster.kill(next);
        assert_eq!(log_end(cluster.nodes[&next].log.clone()).unwrap().generation, 1);
    }
}

/// Two of three are a majority of their generation, and are told that it has passed.
#[test]
fn members_of_an_earlier_generation_stop_and_disturb_nobody() {
    let mut cluster = Cluster::new(7);
    stopped(&mut cluster);
    drop(rescue(cluster.nodes[&1].log.clone()).unwrap());
    cluster.start(1);
    cluster.elect();
    let term = cluster.nodes[&1].node.as_ref().unwrap().term();
    let old = cluster.nodes[&3].log.bytes();
    [2, 3].into_iter().for_each(|id| cluster.start(id));
    rounds(&mut cluster, 30);
    assert_eq!(replaced(&cluster.stopped), [2, 3], "{:?}", cluster.stopped);
    let node = cluster.nodes[&1].node.as_ref().unwrap();
    assert_eq!((node.is_leader(), node.term()), (true, term), "no election followed");
    cluster.stopped.clear();
    [2, 3].into_iter().for_each(|id| cluster.wipe(id));
    rounds(&mut cluster, 300);
    assert!(cluster.all_vote() && cluster.stopped.is_empty(), "{:?}", cluster.stopped);
    // The directory that one of them had before is put back.
    let leader = cluster.leader().unwrap();
    let term = cluster.nodes[&leader].node.as_ref().unwrap().term();
    cluster.kill(3);
    cluster.nodes.get_mut(&3).unwrap().log.log.borrow_mut().bytes = old;
    cluster.start(3);
    rounds(&mut cluster, 60);
    assert_eq!(replaced(&cluster.stopped), [3], "{:?}", cluster.stopped);
    if leader != 3 {
        assert_eq!(cluster.nodes[&leader].node.as_ref().unwrap().term(), term);
    }
}

/// Whatever is in it: here a leader of a later term.
#[test]
fn a_message_of_an_earlier_generation_is_answered_and_never_stepped() {
    let mut cluster = Cluster::new(8);
    let leader = stopped(&mut cluster);
    let to = 1 + leader % 3;
    drop(rescue(cluster.nodes[&to].log.clone()).unwrap());
    cluster.start(to);
    let node = cluster.nodes.get_mut(&to).unwrap().node.as_mut().unwrap();
    let term = node.term();
    let beat =
        |term| Message { msg_type: MessageType::MsgHeartbeat, from: leader, to, term, ..Message::default() };
    let mut step = |generation, term| {
        let its = Lineage { instance: Some(77), generation };
        let (mut sent, packet) = (Out::new(), Packet::Raft(&encode(&beat(term))).write(its));
        Courier::default().send(to, packet, None, &mut sent).unwrap();
        node.step(leader, &sent[0].1).unwrap();
        let answers = node.ready().unwrap().send;
        let passed = Packet::Passed.write(node.lineage);
        (node.term(), answers.len(), answers.iter().filter(|(_, bytes)| bytes.ends_with(&passed)).count())
    };
    assert_eq!(step(0, term + 1), (term, 1, 1));
    assert_eq!(step(1, term + 1), (term + 1, 1, 0), "of its own it is");
}

#[test]
fn a_crash_at_any_byte_of_a_rescue_leaves_the_log_as_it_was_or_rescued() {
    let mut cluster = Cluster::new(9);
    stopped(&mut cluster);
    let bytes = cluster.nodes[&1].log.bytes();
    let (mut crashed, mut done) = (0, 0);
    for budget in 0.. {
        let log = CrashingLog { log: Rc::default(), budget, short: Rc::default() };
        log.log.borrow_mut().bytes = bytes.clone();
        let outcome = rescue(log.clone()).map(drop);
        let whole = CrashingLog { budget: usize::MAX, ..log };
        let found = log_end(whole.clone()).unwrap();
        match outcome {
            Err(_) => assert_eq!((found.generation, found.voters.len()), (0, 3), "after {budget} bytes"),
            Ok(()) => assert!(found.generation == 1 && found.is_alone()),
        }
        // Repeated, it ends the same way.
        for _ in 0..2 {
            drop(rescue(whole.clone()).unwrap());
            let again = log_end(whole.clone()).unwrap();
            assert!(again.generation == 1 && again.is_alone() && again.index == found.index);
        }
        if outcome.is_ok() {
            done += 1;
            break;
        }
        crashed += 1;
    }
    assert!(crashed > 20 && done == 1, "{crashed} crashes");
}

#[test]
fn a_change_of_the_membership_at_the_end_of_the_log_does_not_count() {
    let mut cluster = Cluster::new(10);
    let leader = cluster.elect();
    MEMBERS.into_iter().filter(|id| *id != leader).for_each(|id| cluster.kill(id));
    let other = 1 + leader % 3;
    let node = cluster.nodes.get_mut(&leader).unwrap().node.as_mut().unwrap();
    node.change_members(ConfChangeType::AddNode, joining_id(other, 99));
    cluster.pump(leader);
    cluster.kill(leader);
    drop(rescue(cluster.nodes[&leader].log.clone()).unwrap());
    cluster.start(leader);
    assert_eq!(cluster.elect(), leader, "it needs nobody");
    cluster.nodes.get_mut(&leader).unwrap().node.as_mut().unwrap().propose(count(1)).unwrap();
    rounds(&mut cluster, 5);
    assert_eq!(allocated(&mut cluster.nodes[&leader].state.clone()), 1);
}

#[test]
fn a_member_that_never_heard_from_its_cluster_is_not_rescued() {
    let born = || CrashingLog::born(Birth { id: joining_id(2, 9), instance: 0, voters: Vec::new() });
    assert!(matches!(log_end(born()), Err(RaftError::NeverJoined)));
    assert!(matches!(rescue(born()), Err(RaftError::NeverJoined)));
}
