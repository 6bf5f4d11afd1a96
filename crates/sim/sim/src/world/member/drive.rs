//! The program around a metadata member: it starts, is fed, and its outcomes are carried out.

use super::{MetaNode, SharedLog};
use crate::engine::{Clock, MILLI, SECOND};
use crate::world::brief::{brief_map, brief_push};
use crate::world::happening::{Happening, Message};
use crate::world::net::{ADMIN, Node};
use crate::world::{Core, Delays, Disturb, Judge, World};
use ebb_meta::{Birth, Input, Member, MemberConfig, Outcome, State, Token, joining_id};
use ebb_types::{Bug, MetaPush};
use std::collections::BTreeMap;

impl<H: Disturb + Judge + Delays> World<H> {
    pub fn start_member(&mut self, id: u64, clock: Clock) {
        let members = (1..=self.settings.members).map(|m| (m, format!("member-{m}:1"))).collect();
        let mut config = MemberConfig {
            id,
            members,
            seed: self.settings.seed ^ id,
            log_bytes: self.settings.log_bytes,
            bootstrap: Some(self.settings.bootstrap.clone()),
            timing: self.settings.timing,
            switches: self.settings.switches.clone(),
        };
        if self.settings.sleeps_itself {
            config.switches.values_mut().flatten().for_each(|path| path.puts_to_sleep = false);
        }
        self.harness.configure(Core::Member(&mut config));
        let old = self.members.remove(&id);
        let wall = H::wall_of(self, old.as_ref().map(|m| m.wall));
        let (now, true_millis) = (clock.at(self.now), self.unix_millis + self.now / 1_000_000);
        let unix_millis = true_millis.saturating_add_signed(wall);
        let life = old.as_ref().map_or(1, |m| m.life + 1);
        let joins = old.is_none() && id > self.founders;
        let mut broken = joins || old.as_ref().is_some_and(|m| m.broken);
        let log = old.map_or_else(|| self.first_log(id, life), |m| m.log);
        // A log that was being written is gone with the process.
        (log.trouble.borrow_mut().job, log.trouble.borrow_mut().pace) = (None, self.settings.log_pace);
        let member = match Member::open(config.clone(), log.clone(), now, unix_millis) {
            Ok(member) => {
                broken &= !member.votes();
                member
            }
            Err(error) if broken => {
                self.note(|| format!("member-{id} does not start: {error}; it joins again"));
                self.count("metadata member joined again");
                log.create(Birth { id: joining_id(id, life), instance: 0, voters: Vec::new() });
                Member::open(config, log.clone(), now, unix_millis).expect("a log that was just created")
            }
            Err(error) => panic!("member-{id} cannot open its log: {error}"),
        };
        let node = MetaNode {
            member,
            log,
            clock,
            life,
            up: true,
            paused: false,
            wall,
            stalled: Vec::new(),
            withheld: None,
            broken,
            wake: 0,
            wake_at: None,
            frozen: None,
            waits: BTreeMap::new(),
        };
        self.members.insert(id, node);
        self.member_input(id, Vec::new());
    }

    /// The log of a member at its first start: with the others, or later.
    fn first_log(&self, id: u64, life: u64) -> SharedLog {
        let log = SharedLog::default();
        let birth = match id <= self.founders {
            true => Birth { id, instance: self.settings.seed.max(1), voters: (1..=self.founders).collect() },
            false => Birth { id: joining_id(id, life), instance: 0, voters: Vec::new() },
        };
        log.create(birth);
        log
    }

    /// The operator sets a wall clock that is wrong, and starts the member again.
    pub fn right_the_clock(&mut self, id: u64) {
        if self.member(id).wall != 0 && self.member(id).up {
            self.crash_member(id);
        }
    }

    /// How often members replaced their logs by shorter ones, or by a leader's state.
    pub fn logs_replaced(&self) -> u64 {
        self.members.values().map(MetaNode::log_replaced).sum()
    }

    pub fn member(&mut self, id: u64) -> &mut MetaNode {
        self.members.get_mut(&id).expect("members are never removed")
    }

    pub fn member_receives(&mut self, id: u64, from: Node, message: Message) {
        let input = match (message, from) {
            (Message::ToMeta(message), _) => Input::Server(message),
            (Message::Refuses(refusal), Node::Server(server)) => {
                self.member(id).waits.remove(&server);
                Input::Refuses { server, refusal }
            }
            (Message::AskMeta { number, request }, Node::Client(client)) => {
                let token = Token { connection: client.into(), id: number };
                Input::Client { token, is_admin: client == ADMIN, request }
            }
            (Message::Raft(message), Node::Member(from)) => Input::Raft { from, message },
            (message, from) => unreachable!("{from:?} sends a member {message:?}"),
        };
        if self.member(id).up {
            self.member_hears(id, input);
        }
    }

    pub(super) fn member_hears(&mut self, id: u64, input: Input) {
        let node = self.member(id);
        if node.paused {
            return node.stalled.push(input);
        }
        self.member_input(id, vec![input]);
    }

    pub fn member_wakes(&mut self, id: u64, stamp: u64) {
        let node = self.member(id);
        if node.wake == stamp && node.up && !node.paused {
            self.member_input(id, Vec::new());
        }
    }

    pub fn resume_member(&mut self, id: u64) {
        let node = self.member(id);
        if !std::mem::take(&mut node.paused) || !node.up {
            return;
        }
        let mut stalled = std::mem::take(&mut node.stalled);
        let frozen = node.frozen.take();
        self.note(|| format!("member-{id} continues"));
        if let Some((outcomes, _)) = self.member(id).withheld.take() {
            self.member_says(id, outcomes);
        }
        // Its timer is due unless it stood still too, and messages waiting in sockets are read a few at a time.
        match frozen {
            None => self.member_input(id, Vec::new()),
            Some(left) => left.into_iter().for_each(|left| self.set_wake(id, self.now + left)),
        }
        while !stalled.is_empty() {
            let few = self.fault_random.between(1, 4).min(stalled.len() as u64) as usize;
            let rest = stalled.split_off(few);
            let inputs = std::mem::replace(&mut stalled, rest);
            let node = self.member(id);
            match (node.up, node.paused) {
                (true, false) => self.member_input(id, inputs),
                // Its log hangs again.
                (true, true) => node.stalled.extend(inputs),
                (false, _) => return,
            }
        }
    }

    /// It must run.
    pub fn suspend_member(&mut self, id: u64) {
        let now = self.now;
        let node = self.member(id);
        node.paused = true;
        // Voids the timer that is set.
        node.wake += 1;
        node.frozen = Some(node.wake_at.map(|at| at.saturating_sub(now)));
    }

    fn set_wake(&mut self, id: u64, at: u64) {
        let node = self.member(id);
        node.wake_at = Some(at);
        let stamp = node.wake;
        self.at(at, Happening::MemberWake { member: id, stamp });
    }

    pub fn crash_member(&mut self, id: u64) {
        let node = self.member(id);
        node.up = false;
        (node.paused, node.frozen) = (false, None);
        node.life += 1;
        node.stalled.clear();
        // The write that hung was made, or not.
        let undone = node.withheld.take().filter(|_| self.fault_random.chance(500));
        if let Some((_, bytes)) = undone {
            self.member(id).log.log().bytes = bytes;
        }
        self.net.reset_all(Node::Member(id));
        self.note(|| format!("member-{id} crashes"));
    }

    pub fn restart_member(&mut self, id: u64) {
        if self.member(id).up {
            return;
        }
        let clock = self.member(id).clock;
        self.note(|| format!("member-{id} starts"));
        self.start_member(id, clock);
    }

    fn member_input(&mut self, id: u64, inputs: Vec<Input>) {
        let now = self.now;
        let node = self.member(id);
        let local = node.clock.at(now);
        let (mut outcomes, failing) = (Vec::new(), node.log.trouble.borrow().fails);
        match node.member.on(local, inputs, &mut outcomes) {
            Ok(()) => node.broken &= !node.member.votes(),
            Err(error) if failing && !node.log.trouble.borrow().fails => {
                self.note(|| format!("member-{id} stops: {error}"));
                self.crash_member(id);
                let down = self.fault_random.delay(300 * MILLI).min(6 * SECOND);
                return self.after(down, Happening::RestartMember { member: id });
            }
            Err(error) => return self.fail("R3", format!("member-{id}: {error}")),
        }
        self.note_map(id);
        let node = self.member(id);
        let wake = node.member.next_wake();
        (node.wake, node.wake_at) = (node.wake + 1, None);
        if let Some(moment) = wake {
            let at = node.clock.when(moment.max(local)).max(now + 1000);
            self.set_wake(id, at);
        }
        let hung = self.member(id).log.trouble.borrow_mut().hung.take();
        if let Some((time, bytes)) = hung {
            let node = self.member(id);
            (node.paused, node.withheld) = (true, Some((outcomes, bytes)));
            self.note(|| format!("the log of member-{id} hangs"));
            H::check_gear(self, id);
            return self.after(time, Happening::ResumeMember { member: id });
        }
        self.member_says(id, outcomes);
        H::member_acted(self, id);
    }

    fn member_says(&mut self, id: u64, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            self.member_outcome(id, outcome);
        }
        let version = self.members[&id].member.state().version();
        self.newest_map = self.newest_map.max(version);
        H::check_map(self, id);
    }

    /// Reports a map change once, from the first member that has it.
    fn note_map(&mut self, id: u64) {
        let member = &self.members[&id].member;
        let (known, version) = (self.noted_map, member.state().version());
        if self.transcript.keep > 0 && version > known {
            let text = brief_map(&member.delta(known));
            self.noted_map = version;
            self.note(|| format!("member-{id} has {text}"));
        }
    }

    fn member_outcome(&mut self, id: u64, outcome: Outcome) {
        match outcome {
            Outcome::SendRaft { to, message } => {
                self.send(Node::Member(id), Node::Member(to), Message::Raft(message));
            }
            Outcome::Push { to, push } => {
                if self.transcript.keep > 0
                    && let Some(text) = brief_push(&push)
                {
                    self.note(|| format!("member-{id} -> {to}: {text}"));
                }
                H::check_push(self, id, &push);
                self.send(Node::Member(id), Node::Server(to), Message::Push(push));
            }
            Outcome::Reply { token: Token { connection, id: number }, reply } => {
                let client = Node::Client(connection as u32);
                self.send(Node::Member(id), client, Message::MetaReply { number, reply });
            }
            Outcome::Map { to, delta } => {
                let client = Node::Client(to as u32);
                if self.net.is_full(self.now, Node::Member(id), client) {
                    return self.member(id).member.unwatch(to);
                }
                self.send(Node::Member(id), client, Message::Push(MetaPush::Map(delta)));
            }
            Outcome::Order { to, order } => {
                self.send(Node::Member(id), Node::Server(to), Message::Order(order));
            }
            Outcome::Switch { server, action } => self.order_switch(id, server, action),
            Outcome::Magic { .. } => unreachable!("no packet wakes a machine here"),
            Outcome::Notice(notice) => self.note(|| format!("member-{id}: {notice}")),
            Outcome::Bug(Bug(what)) => self.fail("an assertion", format!("member-{id}: {what}")),
            Outcome::Broken(rule) => self.fail("R3", format!("member-{id} decided against a rule: {rule}")),
        }
    }

    /// The newest state that any member has.
    pub fn newest_state(&self) -> &State {
        let members = self.members.values().map(|m| m.member.state());
        members.max_by_key(|s| s.version()).expect("there is a member")
    }
}
