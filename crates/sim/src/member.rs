//! A metadata member: the production member with its Raft, over a log in memory, driven as the real driver drives it.

use crate::brief::{brief_map, brief_push};
use crate::client::ADMIN;
use crate::clock::{Clock, MILLI, SECOND};
use crate::net::Node;
use crate::world::{Core, Happening, Message, World};
use ebb_gear::Mode;
use ebb_meta::raft::{self, Job};
use ebb_meta::{Birth, Blob, Input, LogFile, Member, MemberConfig, MemoryLog, Outcome, SwitchAction, Token};
use ebb_types::{AdminReply, AdminRequest, MetaFailure, MetaPush, MetaReply, MetaRequest, ServerId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// A log that outlives the member: what was appended is durable.
#[derive(Clone, Default)]
pub struct SharedLog(Rc<RefCell<MemoryLog>>);

impl LogFile for SharedLog {
    fn bytes(&mut self) -> io::Result<u64> {
        self.0.borrow_mut().bytes()
    }

    fn blob(&mut self) -> io::Result<Arc<dyn Blob>> {
        self.0.borrow_mut().blob()
    }

    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().append(at, bytes)
    }

    fn overwrite(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().overwrite(at, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.0.borrow_mut().sync()
    }

    fn reserve(&mut self, at: u64, bytes: u64) -> io::Result<bool> {
        self.0.borrow_mut().reserve(at, bytes)
    }

    fn prepare(&mut self, job: Job) {
        self.0.borrow_mut().prepare(job);
    }

    fn prepared(&mut self, wait: bool) -> io::Result<Option<u64>> {
        self.0.borrow_mut().prepared(wait)
    }

    fn stage(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().stage(at, bytes)
    }

    fn take_staged(&mut self) {
        self.0.borrow_mut().take_staged();
    }

    fn replace(&mut self, head: &[u8], at: u64, more: &[u8]) -> io::Result<()> {
        self.0.borrow_mut().replace(head, at, more)
    }
}

pub struct MetaNode {
    pub member: Member<SharedLog>,
    log: SharedLog,
    pub clock: Clock,
    pub life: u64,
    pub up: bool,
    pub paused: bool,
    stalled: Vec<Input>,
    /// Who asked, and the number of the question.
    tokens: BTreeMap<Token, (u32, u64)>,
    next_token: u64,
    /// Map version that each watching client was sent.
    watchers: BTreeMap<u32, u64>,
    wake: u64,
}

impl World<'_> {
    pub fn start_member(&mut self, id: u64, clock: Clock) {
        let members = (1..=self.scenario.members).map(|m| (m, format!("member-{m}:1"))).collect();
        let mut config = MemberConfig {
            id,
            members,
            seed: self.scenario.seed ^ id,
            bootstrap: Some(self.scenario.bootstrap.clone()),
            timing: self.scenario.timing,
            switched: true,
        };
        (self.configure)(Core::Member(&mut config));
        let (now, unix_millis) = (clock.at(self.now), self.unix_millis + self.now / 1_000_000);
        let old = self.members.remove(&id);
        let life = old.as_ref().map_or(1, |m| m.life + 1);
        let log = old.map_or_else(|| self.founding_log(id), |m| m.log);
        let member = match Member::open(config, log.clone(), now, unix_millis) {
            Ok(member) => member,
            Err(error) => panic!("member-{id} cannot open its log: {error}"),
        };
        let node = MetaNode {
            member,
            log,
            clock,
            life,
            up: true,
            paused: false,
            stalled: Vec::new(),
            tokens: BTreeMap::new(),
            next_token: 0,
            watchers: BTreeMap::new(),
            wake: 0,
        };
        self.members.insert(id, node);
        self.member_input(id, Vec::new());
    }

    /// The log of a member at the cluster's first start.
    fn founding_log(&self, id: u64) -> SharedLog {
        let mut log = SharedLog::default();
        let voters = (1..=self.scenario.members).collect();
        let birth = Birth { id, instance: self.scenario.seed.max(1), voters };
        raft::create(&mut log, birth).expect("a log in memory can be created");
        log
    }

    fn member(&mut self, id: u64) -> &mut MetaNode {
        self.members.get_mut(&id).expect("members are never removed")
    }

    pub fn member_receives(&mut self, id: u64, from: Node, message: Message) {
        let input = match (message, from) {
            (Message::ToMeta(message), _) => Input::Server(message),
            (Message::AskMeta { number, request }, Node::Client(client)) => {
                let node = self.member(id);
                node.next_token += 1;
                let token = Token(node.next_token);
                node.tokens.insert(token, (client, number));
                Input::Client { token, request }
            }
            (Message::Raft(message), Node::Member(from)) => Input::Raft { from, message },
            (message, from) => unreachable!("{from:?} sends a member {message:?}"),
        };
        let node = self.member(id);
        if !node.up {
            return;
        }
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
        self.note(|| format!("member-{id} goes on"));
        // Its timer is due, and what waits in sockets is read a few messages at a time.
        self.member_input(id, Vec::new());
        while !stalled.is_empty() {
            let few = self.fault_random.between(1, 4).min(stalled.len() as u64) as usize;
            let rest = stalled.split_off(few);
            self.member_input(id, std::mem::replace(&mut stalled, rest));
        }
    }

    pub fn crash_member(&mut self, id: u64) {
        let node = self.member(id);
        node.up = false;
        node.paused = false;
        node.life += 1;
        node.stalled.clear();
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

    pub fn member_input(&mut self, id: u64, inputs: Vec<Input>) {
        let now = self.now;
        let node = self.member(id);
        let local = node.clock.at(now);
        let mut outcomes = Vec::new();
        if let Err(error) = node.member.on(local, inputs, &mut outcomes) {
            return self.fail("R3", format!("member-{id}: {error}"));
        }
        self.note_map(id);
        let node = self.member(id);
        let wake = node.member.next_wake();
        node.wake += 1;
        let stamp = node.wake;
        if let Some(moment) = wake {
            let at = self.member(id).clock.when(moment.max(local)).max(now + 1000);
            self.at(at, Happening::MemberWake { member: id, stamp });
        }
        for outcome in outcomes {
            self.member_outcome(id, outcome);
        }
        self.check_map(id);
        self.follow_gears();
    }

    /// What is new in the map, once, whoever has it first.
    fn note_map(&mut self, id: u64) {
        let member = &self.members[&id].member;
        let (known, version) = (self.transcript.map_version, member.state().version());
        if self.transcript.keep > 0 && version > known {
            let text = brief_map(&member.delta(known));
            self.transcript.map_version = version;
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
                self.check_push(id, &push);
                self.send(Node::Member(id), Node::Server(to), Message::Push(push));
            }
            Outcome::Reply { token, reply } => {
                let node = self.member(id);
                let Some((client, number)) = node.tokens.remove(&token) else { return };
                if let MetaReply::Watch { map, .. } = &reply {
                    node.watchers.insert(client, map.to);
                }
                self.send(Node::Member(id), Node::Client(client), Message::MetaReply { number, reply });
            }
            Outcome::Switch { server, action } => {
                self.note(|| {
                    format!(
                        "member-{id} throws the switch of {server}: {}",
                        format!("{action:?}").to_lowercase()
                    )
                });
                let life = self.member(id).life;
                if self.modelled.is_some() {
                    return self.throw_switch(id, life, server, action);
                }
                // To stop is done at once, to start takes its time.
                let delay = match action {
                    SwitchAction::Sleep => self.fault_random.between(0, 2 * MILLI),
                    SwitchAction::Wake => self.fault_random.delay(self.scenario.switch).min(20 * SECOND),
                };
                if delay > self.scenario.timing.wake_limit.as_nanos() as u64 {
                    self.count("wake that comes late");
                }
                // A switch does one thing after another.
                let at = self.now.max(self.server(server).switch_free) + delay;
                self.server(server).switch_free = at;
                self.at(at, Happening::Switch { member: id, life, server, action });
            }
            Outcome::MapChanged { version } => {
                let node = self.member(id);
                let mut pushes = Vec::new();
                for (client, known) in &mut node.watchers {
                    pushes.push((*client, node.member.delta(*known)));
                    *known = version;
                }
                for (client, delta) in pushes {
                    let message = Message::Push(MetaPush::Map(delta));
                    self.send(Node::Member(id), Node::Client(client), message);
                }
            }
            Outcome::Note(text) => self.note(|| format!("member-{id}: {text}")),
            Outcome::Broken(rule) => self.fail("R3", format!("member-{id} decided against a rule: {rule}")),
        }
    }

    /// The switch acts, or fails, and says so to the member that asked. The member's own process drives it: when it dies, the
    /// action is not carried out.
    pub fn switch(&mut self, id: u64, life: u64, server: ServerId, action: SwitchAction) {
        if self.member(id).life != life {
            return;
        }
        let fails = self.stormy && self.fault_random.chance(self.scenario.switch_fails);
        let result = if fails {
            self.count("switch that fails");
            Err("the switch does not answer".to_string())
        } else {
            match action {
                SwitchAction::Wake => self.power_on(server),
                SwitchAction::Sleep => self.power_off(server),
            }
            Ok(())
        };
        let node = self.member(id);
        let input = Input::Switched { server, action, result };
        if node.paused {
            return node.stalled.push(input);
        }
        self.member_input(id, vec![input]);
    }

    /// Asks for what the administrator wants, until it is done.
    pub fn administer(&mut self, number: u64) {
        if number != self.question {
            return;
        }
        let request = match (self.gear_wanted, self.lost_wanted) {
            (Some(Mode::Manual(gear)), _) => AdminRequest::GearSet { gear },
            (Some(Mode::Auto), _) => AdminRequest::GearAuto,
            (None, Some(server)) => AdminRequest::MarkLost { server },
            (None, None) => return,
        };
        for member in 1..=self.scenario.members {
            let request = MetaRequest::Admin(request.clone());
            self.send(Node::Client(ADMIN), Node::Member(member), Message::AskMeta { number, request });
        }
        self.after(SECOND, Happening::Admin { question: number });
    }

    pub fn admin_receives(&mut self, message: Message) {
        let Message::MetaReply { number, reply } = message else { return };
        if number != self.question {
            return;
        }
        match reply {
            MetaReply::Admin(AdminReply::Done) => {
                self.note(|| "administrator: done".into());
                if self.gear_wanted.take().is_none() {
                    self.lost_wanted = None;
                }
                self.ask();
            }
            // A gear that this cluster does not have; or a loss that is not noticed yet, and is told again.
            MetaReply::Failed(MetaFailure::Refused(_)) if self.gear_wanted.take().is_some() => self.ask(),
            _ => {}
        }
    }

    /// The newest state that any member has.
    pub fn newest_state(&self) -> &ebb_meta::State {
        let members = self.members.values().map(|m| m.member.state());
        members.max_by_key(|s| s.version()).expect("there is a member")
    }
}
