//! A metadata member: the production member with its Raft, over a log in memory, and a driver that obeys it.
//!
//! The log fails an append halfway, has no room, rots or is lost. A member whose log failed stops, as its process
//! would, and is restarted; one whose log rotted or is gone joins under a new id, as its own error message advises.

use crate::search::brief::{brief_map, brief_push};
use crate::world::client::ADMIN;
use crate::engine::{Clock, MILLI, SECOND};
use crate::world::net::Node;
use crate::world::{Core, Happening, Message, World};
use ebb_gear::Mode;
use ebb_meta::raft::{self, Job};
use ebb_meta::{
    Birth, Blob, Input, LogFile, Member, MemberConfig, MemoryLog, Outcome, SwitchAction, Token, joining_id,
};
use ebb_types::{
    AdminReply, AdminRequest, Bug, MetaFailure, MetaPush, MetaReply, MetaRequest, ServerId, ServerState,
};
use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

/// A log that outlives the member: every append is durable.
#[derive(Clone, Default)]
pub struct SharedLog {
    log: Rc<RefCell<MemoryLog>>,
    trouble: Rc<RefCell<LogTrouble>>,
}

#[derive(Default)]
struct LogTrouble {
    full: bool,
    /// The log that is being written, and how often it is looked at before it is done.
    job: Option<(Job, u32)>,
    pace: u32,
    /// The next append fails after writing half of it.
    fails: bool,
    /// The next append is answered only after this long.
    hangs: Option<u64>,
    /// How long the one that was made is not answered, and the bytes of the log before it.
    hung: Option<(u64, Vec<u8>)>,
    /// How often the log was replaced.
    replaced: u64,
}

impl SharedLog {
    fn log(&self) -> RefMut<'_, MemoryLog> {
        self.log.borrow_mut()
    }
}

impl LogFile for SharedLog {
    fn bytes(&mut self) -> io::Result<u64> {
        self.log().bytes()
    }

    fn blob(&mut self) -> io::Result<Arc<dyn Blob>> {
        self.log().blob()
    }

    fn append(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if std::mem::take(&mut self.trouble.borrow_mut().fails) {
            self.log().append(at, &bytes[..bytes.len() / 2])?;
            return Err(io::Error::other("the device does not answer"));
        }
        let mut trouble = self.trouble.borrow_mut();
        if let Some(time) = trouble.hangs.take() {
            trouble.hung = Some((time, self.log().bytes.clone()));
        }
        self.log().append(at, bytes)
    }

    fn overwrite(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.log().overwrite(at, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.log().sync()
    }

    fn reserve(&mut self, at: u64, bytes: u64) -> io::Result<bool> {
        if self.trouble.borrow().full { Ok(false) } else { self.log().reserve(at, bytes) }
    }

    fn prepare(&mut self, job: Job) {
        let mut trouble = self.trouble.borrow_mut();
        trouble.job = Some((job, trouble.pace));
    }

    fn prepared(&mut self) -> io::Result<Option<u64>> {
        let mut trouble = self.trouble.borrow_mut();
        match &mut trouble.job {
            None => return Ok(None),
            Some((_, left)) if *left > 0 => {
                *left -= 1;
                return Ok(None);
            }
            Some(_) => {}
        }
        let Some((job, _)) = trouble.job.take() else { return Ok(None) };
        if trouble.full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.log().prepare(job);
        self.log().prepared()
    }

    fn abandon(&mut self) {
        self.trouble.borrow_mut().job = None;
    }

    fn stage(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        if self.trouble.borrow().full {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.log().stage(at, bytes)
    }

    fn take_staged(&mut self) {
        self.log().take_staged();
    }

    fn replace(&mut self, head: &[u8], at: u64, more: &[u8]) -> io::Result<()> {
        let mut trouble = self.trouble.borrow_mut();
        if std::mem::take(&mut trouble.fails) {
            return Err(io::Error::other("the device does not answer"));
        }
        trouble.replaced += 1;
        self.log().replace(head, at, more)
    }
}

pub struct MetaNode {
    pub member: Member<SharedLog>,
    log: SharedLog,
    pub clock: Clock,
    pub life: u64,
    pub up: bool,
    pub paused: bool,
    /// Milliseconds by which its wall clock is wrong.
    wall: i64,
    stalled: Vec<Input>,
    /// What depends on a write of the log that hangs, and the log's bytes before it.
    withheld: Option<(Vec<Outcome>, Vec<u8>)>,
    /// A fault damaged the log, and the member will join again if it does not start; or it has joined and is catching
    /// up.
    pub broken: bool,
    wake: u64,
    /// When its timer ends.
    wake_at: Option<u64>,
    /// Suspended: what is left of its timer.
    frozen: Option<Option<u64>>,
    /// Until when it waits for the servers that it ordered to put themselves to sleep.
    pub waits: BTreeMap<ServerId, u64>,
}

impl World<'_> {
    pub fn start_member(&mut self, id: u64, clock: Clock) {
        let members = (1..=self.scenario.members).map(|m| (m, format!("member-{m}:1"))).collect();
        let mut config = MemberConfig {
            id,
            members,
            seed: self.scenario.seed ^ id,
            log_bytes: self.scenario.log_bytes,
            bootstrap: Some(self.scenario.bootstrap.clone()),
            timing: self.scenario.timing,
            switches: self.scenario.switches.clone(),
        };
        if self.scenario.sleeps_itself {
            config.switches.values_mut().flatten().for_each(|path| path.puts_to_sleep = false);
        }
        (self.configure)(Core::Member(&mut config));
        let old = self.members.remove(&id);
        let wall = self.wall_of(old.as_ref());
        let (now, true_millis) = (clock.at(self.now), self.unix_millis + self.now / 1_000_000);
        let unix_millis = true_millis.saturating_add_signed(wall);
        let life = old.as_ref().map_or(1, |m| m.life + 1);
        let joins = old.is_none() && id > self.founders;
        let mut broken = joins || old.as_ref().is_some_and(|m| m.broken);
        let log = old.map_or_else(|| self.first_log(id, life), |m| m.log);
        // A log that was being written is gone with the process.
        (log.trouble.borrow_mut().job, log.trouble.borrow_mut().pace) = (None, self.scenario.log_pace);
        let member = match Member::open(config.clone(), log.clone(), now, unix_millis) {
            Ok(member) => {
                broken &= !member.votes();
                member
            }
            Err(error) if broken => {
                self.note(|| format!("member-{id} does not start: {error}; it joins again"));
                self.count("metadata member joined again");
                self.create_log(&log, Birth { id: joining_id(id, life), instance: 0, voters: Vec::new() });
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

    /// A member's wall clock when it starts: right at first and once faults have ended.
    fn wall_of(&mut self, old: Option<&MetaNode>) -> i64 {
        let Some(old) = old.filter(|_| self.stormy) else { return 0 };
        if !self.fault_random.chance(self.scenario.wall_jumps) {
            return old.wall;
        }
        self.count("wall clock jumps");
        let most = [SECOND, 7200 * SECOND, 400 * 86_400 * SECOND][self.fault_random.index(3)] / MILLI;
        self.fault_random.between(0, 2 * most) as i64 - most as i64
    }

    /// The log of a member at its first start: with the others, or later.
    fn first_log(&self, id: u64, life: u64) -> SharedLog {
        let log = SharedLog::default();
        let birth = match id <= self.founders {
            true => Birth { id, instance: self.scenario.seed.max(1), voters: (1..=self.founders).collect() },
            false => Birth { id: joining_id(id, life), instance: 0, voters: Vec::new() },
        };
        self.create_log(&log, birth);
        log
    }

    pub fn member_log_hangs(&mut self, id: u64, time: u64) {
        self.member(id).log.trouble.borrow_mut().hangs = Some(time);
    }

    /// Replaces an existing log.
    fn create_log(&self, log: &SharedLog, birth: Birth) {
        *log.log() = MemoryLog::default();
        *log.trouble.borrow_mut() = LogTrouble::default();
        raft::create(&mut log.clone(), birth).expect("a log in memory can be created");
    }

    /// A disk of the metadata service fails once, or is full; or a log rots or is lost, while the others are healthy.
    pub fn disturb_log(&mut self) {
        let members: Vec<u64> = self.members.keys().copied().collect();
        let id = *self.fault_random.pick(&members).expect("there is a member");
        let well = |m: &MetaNode| m.up && !m.paused && !m.broken && m.member.votes();
        let spare = members.len() > 2 && self.members.values().all(well);
        let until = self.fault_random.delay(SECOND).min(10 * SECOND);
        let kind = self.fault_random.below(if spare { 4 } else { 2 });
        let bit = self.fault_random.next();
        let node = self.members.get_mut(&id).expect("picked from them");
        match kind {
            0 => {
                node.log.trouble.borrow_mut().fails = true;
                self.count("metadata log that fails");
                return self.note(|| format!("member-{id} will fail to write its log"));
            }
            1 => {
                node.log.trouble.borrow_mut().full = true;
                self.count("metadata disk full");
                self.note(|| format!("the disk of member-{id} is full"));
                return self.after(until, Happening::HealMember { member: id });
            }
            2 => {
                let mut log = node.log.log();
                let at = bit as usize / 8 % log.bytes.len();
                log.bytes[at] ^= 1 << (bit % 8);
            }
            _ => node.log.log().bytes.clear(),
        }
        node.broken = true;
        self.count(if kind == 2 { "metadata log rotten" } else { "metadata log lost" });
        self.crash_member(id);
        self.after(until, Happening::RestartMember { member: id });
    }

    /// The operator sets a wall clock that is wrong, and starts the member again.
    pub fn right_the_clock(&mut self, id: u64) {
        if self.member(id).wall != 0 && self.member(id).up {
            self.crash_member(id);
        }
    }

    /// How often members replaced their logs by shorter ones, or by a leader's state.
    pub fn logs_replaced(&self) -> u64 {
        self.members.values().map(|m| m.log.trouble.borrow().replaced.saturating_sub(1)).sum()
    }

    pub fn heal_member(&mut self, id: u64) {
        let node = self.member(id);
        let mut trouble = node.log.trouble.borrow_mut();
        (trouble.full, trouble.fails, trouble.hangs) = (false, false, None);
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

    fn member_hears(&mut self, id: u64, input: Input) {
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

    /// The operator starts it again.
    pub fn operator_restarts(&mut self, id: u64, down: u64) {
        if self.member(id).up {
            self.crash_member(id);
            self.after(down, Happening::RestartMember { member: id });
        }
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
            self.check_gear(id);
            return self.after(time, Happening::ResumeMember { member: id });
        }
        self.member_says(id, outcomes);
        self.spring_ambush(id);
    }

    fn member_says(&mut self, id: u64, outcomes: Vec<Outcome>) {
        for outcome in outcomes {
            self.member_outcome(id, outcome);
        }
        self.check_map(id);
        self.follow_gears();
    }

    /// Reports a map change once, from the first member that has it.
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

    fn order_switch(&mut self, id: u64, server: ServerId, action: SwitchAction) {
        self.check_order(id, server, action);
        self.note(|| format!("member-{id} throws the switch of {server}: {action}"));
        let life = self.member(id).life;
        if self.modelled.is_some() {
            return self.throw_switch(id, life, server, action);
        }
        let limit = self.scenario.timing.wake_limit.as_nanos() as u64;
        let until = if action.is_wake() { 0 } else { self.now + limit };
        self.member(id).waits.insert(server, until);
        // Stopping is immediate, starting takes time.
        let delay = match action {
            SwitchAction::Sleep(_) => self.fault_random.between(0, 2 * MILLI),
            SwitchAction::Wake { .. } => {
                let longest = if self.prompt { limit } else { 20 * SECOND };
                self.fault_random.delay(self.scenario.switch).min(longest)
            }
        };
        if delay > limit {
            self.count("wake that comes late");
        }
        // A switch performs one action after another.
        let at = self.now.max(self.server(server).switch_free) + delay;
        self.server(server).switch_free = at;
        let stormy = self.stormy;
        self.at(at, Happening::Switch { member: id, life, server, action, stormy });
    }

    /// The switch acts, or fails, and reports to the member that asked. It is driven by that member's process: when it
    /// dies, the action is not carried out. Once everything is mended, no order to sleep from before acts of one that
    /// leads no more: its successor may have stopped to reckon with it.
    pub fn switch(&mut self, (id, life): (u64, u64), server: ServerId, action: SwitchAction, stormy: bool) {
        if self.member(id).life != life {
            return;
        }
        if self.scenario.sleeps_itself && !action.is_wake() {
            return match self.went_to_sleep(id, server) {
                Some(result) => self.switched(id, server, action, result),
                None => self.look_again(Happening::Switch { member: id, life, server, action, stormy }),
            };
        }
        let fails = self.stormy && self.fault_random.chance(self.scenario.switch_fails);
        let lies = self.stormy && self.fault_random.chance(self.scenario.switch_lies);
        let failed = || Err("the switch does not answer".to_string());
        let is_over = stormy && !self.stormy && !action.is_wake() && !self.members[&id].member.is_leader();
        let is_over = is_over || !action.is_wake() && self.takes_part(server) && self.rebuilds();
        let result = if lies && !is_over {
            self.lie(server, action)
        } else if fails || is_over || self.is_dead(server, action) {
            self.count("switch that fails");
            failed()
        } else {
            self.act(server, action);
            Ok(())
        };
        self.switched(id, server, action, result);
    }

    fn switched(&mut self, id: u64, server: ServerId, action: SwitchAction, result: Result<(), String>) {
        self.member_hears(id, Input::Switched { server, action, result });
    }

    /// The server is awake on record, so that a switch that turns it off crashes it.
    fn takes_part(&self, server: ServerId) -> bool {
        self.newest_state().server(server).is_some_and(|entry| entry.state == ServerState::Awake)
    }

    /// The path is broken for good.
    fn is_dead(&self, server: ServerId, action: SwitchAction) -> bool {
        matches!(action, SwitchAction::Wake { path } if self.scenario.dead_paths.contains(&(server, path)))
    }

    /// The switch acts now, asked or not.
    pub fn act(&mut self, server: ServerId, action: SwitchAction) {
        match action {
            SwitchAction::Wake { .. } => self.power_on(server),
            SwitchAction::Sleep(_) => self.power_off(server),
        }
    }

    /// The switch does not do what it says.
    fn lie(&mut self, server: ServerId, action: SwitchAction) -> Result<(), String> {
        let failed = || Err("the switch does not answer".to_string());
        match self.fault_random.below(5) {
            0 => {
                self.count("switch that does nothing and reports success");
                Ok(())
            }
            1 => {
                self.count("switch that acts and reports failure");
                self.act(server, action);
                failed()
            }
            2 => {
                self.count("switch that acts twice");
                self.act(server, action);
                let again = self.fault_random.delay(SECOND).min(10 * SECOND);
                self.after(again, Happening::LateSwitch { server, action });
                Ok(())
            }
            3 => {
                self.count("switch that acts long after its report");
                let later = self.fault_random.delay(SECOND).min(10 * SECOND);
                self.after(later, Happening::LateSwitch { server, action });
                Ok(())
            }
            _ => {
                let all: Vec<ServerId> = self.servers.values().filter(|s| !s.lost).map(|s| s.id).collect();
                let other = *self.fault_random.pick(&all).expect("not all are lost");
                self.count("switch that acts on another machine");
                self.late_switch(other, action);
                Ok(())
            }
        }
    }

    /// A switch acts although it is no longer asked to, or never was. To a server that takes part it is a crash.
    pub fn late_switch(&mut self, server: ServerId, action: SwitchAction) {
        if self.stormy && !self.servers[&server].lost && (action.is_wake() || !self.rebuilds()) {
            self.act(server, action);
        }
    }

    /// Retries the administrator's request until it is done.
    pub fn administer(&mut self, number: u64) {
        if number != self.question {
            return;
        }
        let state = self.newest_state();
        let maintained = state.servers().map(|e| e.id).find(|id| state.in_maintenance(*id));
        let request = match (self.gear_wanted, self.lost_wanted, maintained) {
            (Some(Mode::Manual(wish)), ..) => AdminRequest::GearSet(wish),
            (Some(Mode::Auto), ..) => AdminRequest::GearAuto,
            (None, Some(server), _) => AdminRequest::MarkLost { server, accept_loss: self.accepts_loss },
            (None, None, _) if self.force_wanted => AdminRequest::Force { accept_loss: true },
            (None, None, Some(server)) if !self.stormy => AdminRequest::Maintenance { server, end: true },
            (None, None, _) => return,
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
                if self.gear_wanted.take().is_none() && self.lost_wanted.take().is_none() {
                    self.force_wanted = false;
                }
                self.ask();
            }
            // A gear that this cluster does not have; or a loss that is not noticed yet, and is reported again.
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
