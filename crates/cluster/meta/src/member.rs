//! A metadata member: the replicated log, the state and the leader's decisions as one object, fed by a driver.
//!
//! One call takes everything that has arrived and returns once everything its outcomes rely on is durable. All commands
//! of a call share one log entry and one sync. Reads, lease grants and everything else that acts on servers wait until
//! this member has proved that it still leads; a single member needs no proof.

use crate::clocks::{Clocks, Whose};
use crate::controller::{Controller, Event, Output};
use crate::hearing::Hearing;
use crate::raft::{LogFile, Node, Progress, RaftError, Said};
use crate::rescue::{Rescue, Verdict};
use crate::shell::{Shell, View};
use crate::state::Unsure;
use crate::{Command, Input, MemberConfig, MemberId, Outcome, PlantedBug, Reply, State, SwitchAction, Token};
use ebb_types::{
    ALLOCATE_MAX, AdminReply, AdminRequest, ClusterStatus, Depth, MapDelta, MetaFailure, MetaPush, MetaReply,
    MetaRequest, MetadataMember, Moment, NamespaceAnswer, NamespaceError, NamespaceQuery, Notice,
    NoticeRecord, ServerId, ServerMessage, SleepRefusal,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

pub struct Member<L: LogFile> {
    config: MemberConfig,
    node: Node<L>,
    state: State,
    controller: Controller,
    shell: Shell,
    hearing: Hearing,
    clocks: Clocks,
    /// The driver's clock when it was last set, and the time of day then.
    set: Moment,
    unix_millis: u64,
    next_tick: Moment,
    /// The term in which this member leads, once the controller knows it.
    leading: Option<u64>,
    /// This member leads a new generation whose state has not caught up with the chunk servers: it does nothing else.
    rescue: Option<Rescue>,
    /// Commands of the present call that are not proposed yet, each with its waiter.
    queue: Vec<(Command, Waiter)>,
    /// Proposed entries by index: their term, and the waiters in the order of their commands.
    proposed: BTreeMap<u64, (u64, Vec<Waiter>)>,
    /// Requests that wait for the proof that this member leads, oldest first, each with the number of the proof.
    unproven: VecDeque<(u64, Unproven)>,
    proof: u64,
    /// The controller's batch was refused: when it decides again. At once it would only decide the same.
    again_at: Option<Moment>,
    /// Whether the log has no room for clients' commands.
    full: bool,
    /// The state has been advanced to this time.
    told_time: Moment,
    /// The newest notices since this member leads, oldest first, and how many there were.
    notices: VecDeque<NoticeRecord>,
    noticed: u32,
}

/// How long the controller waits after its batch was refused.
const AGAIN: Duration = Duration::from_secs(1);
/// Decisions that may follow from one another in one moment.
const ROUNDS: u32 = 200;

/// How many notices are kept: those of a busy day.
const NOTICES: usize = 1000;

/// Where the result of a command goes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Waiter {
    /// A client or an administrator.
    Token(Token),
    /// The controller's batch; its last command completes it.
    Batch {
        last: bool,
    },
    Nobody,
}

#[derive(Debug)]
enum Unproven {
    /// A lease, a duty or a switch: a former leader, which does not know yet that it is one, must do none of these.
    Act(Outcome),
    /// That the leader went back: servers know a newer map, too, if another member leads by now.
    Notice(Notice),
    Watch {
        token: Token,
        map_version: u64,
    },
    Query {
        token: Token,
        query: NamespaceQuery,
    },
    Admin {
        token: Token,
        reply: MetaReply,
    },
}

impl<L: LogFile> Member<L> {
    /// Starts from the log. `unix_millis` is the time of day at `now`; hours of the gear scheduler count from it.
    pub fn open(config: MemberConfig, log: L, now: Moment, unix_millis: u64) -> Result<Member<L>, RaftError> {
        let ids: Vec<MemberId> = config.members.keys().copied().collect();
        let (mut node, state) = Node::open(config.id, &ids, config.seed, log)?;
        node.log_bytes = config.log_bytes;
        let controller = Controller::new(config.timing, config.switches.clone());
        Ok(Member {
            next_tick: now + config.timing.raft_tick,
            config,
            node,
            state,
            controller,
            shell: Shell::default(),
            hearing: Hearing::default(),
            clocks: Clocks::default(),
            set: now,
            unix_millis,
            leading: None,
            rescue: None,
            queue: Vec::new(),
            proposed: BTreeMap::new(),
            unproven: VecDeque::new(),
            proof: 0,
            again_at: None,
            full: false,
            told_time: now,
            notices: VecDeque::new(),
            noticed: 0,
        })
    }

    /// The driver's wall clock, which may have been set since.
    pub fn set_clock(&mut self, now: Moment, unix_millis: u64) {
        (self.set, self.unix_millis) = (now, unix_millis);
    }

    fn wall(&self, now: Moment) -> u64 {
        self.unix_millis + now.since(self.set).as_millis() as u64
    }

    /// The cluster's time now, as far as this leader advanced it; zero: there is none.
    fn cluster_time(&self, now: Moment) -> u64 {
        match self.state.namespace().unix_millis() {
            0 => 0,
            known => known + now.since(self.told_time).as_millis() as u64,
        }
    }

    /// Why the time by this leader's clock is not to be believed.
    fn doubt(&mut self, now: Moment) -> Option<String> {
        let (own, cluster) = (self.wall(now), self.cluster_time(now));
        self.clocks.doubt(now, own, cluster)
    }

    /// Stops, and returns the log.
    pub fn into_log(self) -> L {
        self.node.into_log()
    }

    pub fn state(&self) -> &State {
        &self.state
    }

    /// What changed in the map since version `from`.
    pub fn delta(&self, from: u64) -> MapDelta {
        self.state.delta(from)
    }

    /// Whether this member leads and answers requests.
    pub fn is_leader(&self) -> bool {
        self.leading.is_some() && self.rescue.is_none()
    }

    /// Whether this member counts towards the majority: one that joined does so once it has caught up.
    pub fn votes(&self) -> bool {
        self.node.votes()
    }

    /// Whether the log has no room for clients' commands.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// The term that this member knows, and the leader.
    pub fn term(&self) -> (u64, Option<MemberId>) {
        (self.node.term(), self.node.leader())
    }

    /// The cluster as this member sees it as leader, without the proof that it still leads: it asks no other.
    /// `None`: it does not lead.
    pub fn status(&self, now: Moment) -> Option<ClusterStatus> {
        self.leading?;
        let mut status = self.controller.status(now, &self.state)?;
        self.add_members(&mut status);
        Some(status)
    }

    /// The metadata members, and what an operator should know of them.
    fn add_members(&self, status: &mut ClusterStatus) {
        status.metadata = self.node.members(self.config.timing.raft_tick);
        status.notes.extend(member_notes(&status.metadata));
    }

    /// The gear that this member asks for as leader, and the term in which it leads.
    pub fn gear(&self) -> Option<(u64, u8)> {
        self.leading.zip(self.controller.gear())
    }

    /// The servers that it wants awake for the load; empty: this member does not lead.
    pub fn awake(&self) -> BTreeSet<ServerId> {
        self.controller.awake()
    }

    /// Whether a new epoch of a group or set, or that one serves, is in the log and not committed, as far as this
    /// member knows.
    pub fn has_open_epochs(&self) -> bool {
        self.node.has_open(|command| {
            matches!(command, Command::Reconfigure(_) | Command::ReconfigureSets(_) | Command::Serve(_))
        })
    }

    /// How deep a server sleeps; `None`: it does not, or this member does not lead.
    pub fn depth(&self, server: ServerId) -> Option<Depth> {
        self.controller.depth(server)
    }

    /// Whether a server that is asleep on record is up all the same: it refused the order, or that had no effect.
    pub fn resists(&self, now: Moment, server: ServerId) -> bool {
        self.controller.resists(now, server, self.state())
    }

    /// Call [`Member::on`] at this time if nothing arrives before. `None`: nothing to do until something arrives.
    pub fn next_wake(&self) -> Option<Moment> {
        let tick = (self.config.members.len() > 1).then_some(self.next_tick);
        let judge = if self.leading.is_some() { self.controller.next_wake(&self.state) } else { None };
        let rescue = self.rescue.as_ref().map(|rescue| rescue.next_wake(&self.config.timing));
        let packets = self.shell.next_wake();
        tick.into_iter().chain(judge).chain(rescue).chain(self.again_at).chain(packets).min()
    }

    /// How often each kind of input came and of outcome followed, since the start.
    pub fn actions(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.shell.actions()
    }

    /// A connection that does not take an [`Outcome::Map`] watches no more.
    pub fn unwatch(&mut self, connection: u64) {
        self.shell.unwatch(connection);
    }

    /// Processes everything that arrived up to `now` and returns what must be carried out. After an error the member
    /// must not be used.
    pub fn on(&mut self, now: Moment, inputs: Vec<Input>, out: &mut Vec<Outcome>) -> Result<(), RaftError> {
        let mut outcomes = Vec::new();
        inputs.iter().for_each(|input| self.shell.took(input));
        self.turn(now, inputs, &mut outcomes)?;
        let (state, switches, leads) = (&self.state, &self.config.switches, self.is_leader());
        self.shell.on(now, outcomes, &View { state, switches, leads }, out);
        Ok(())
    }

    fn turn(&mut self, now: Moment, inputs: Vec<Input>, out: &mut Vec<Outcome>) -> Result<(), RaftError> {
        self.tick(now, out)?;
        // A single member elects itself here, before its first inputs.
        self.advance(now, out)?;
        for input in inputs {
            self.take(now, input, out)?;
        }
        if self.again_at.is_some_and(|at| at <= now) {
            self.again_at = None;
            self.decide(now, Event::Refused, out);
        }
        self.plan(now, out);
        let mut rounds = 0..ROUNDS;
        loop {
            self.advance(now, out)?;
            self.plan(now, out);
            if self.queue.is_empty() {
                break;
            }
            if rounds.next().is_none() {
                // Leases and clients must not wait for what only time or other facts can end.
                out.push(Outcome::Broken("the leader's decisions undo one another".into()));
                break;
            }
        }
        while self.unproven.back().is_some_and(|(number, _)| *number > self.proof) {
            self.prove(now, out)?;
        }
        let alone = self.config.members.len() == 1;
        debug_assert!(!alone || self.unproven.is_empty(), "a single member proves at once that it leads");
        self.check_names()?;
        self.node.keep_house(&mut self.state)
    }

    /// Answers from names that could not be read are void: the driver carries nothing out after an error.
    fn check_names(&self) -> Result<(), RaftError> {
        match self.state.names().fault() {
            Some(fault) => Err(fault.clone().into()),
            None => Ok(()),
        }
    }

    /// Once for all inputs of a call: a heartbeat read first must not count against those read after it.
    fn plan(&mut self, now: Moment, out: &mut Vec<Outcome>) {
        self.judge_rescue(now, out);
        if self.leading.is_some() {
            self.decide(now, Event::Tick, out);
        }
    }

    fn tick(&mut self, now: Moment, out: &mut Vec<Outcome>) -> Result<(), RaftError> {
        if self.config.members.len() == 1 || now < self.next_tick {
            return Ok(());
        }
        // After a pause of this process it is one tick late, not many: silence in the meantime proves nothing.
        self.node.tick()?;
        let next = self.next_tick + self.config.timing.raft_tick;
        self.next_tick = if next > now { next } else { now + self.config.timing.raft_tick };
        debug_assert!(self.next_tick > now, "it would tick without end");
        self.compare_hearing(now, out)
    }

    /// Says how many servers this member hears, or lets one lead that hears more. Before the controller decides: to
    /// hand over is better than to call servers failed.
    fn compare_hearing(&mut self, now: Moment, out: &mut Vec<Outcome>) -> Result<(), RaftError> {
        let Some(lease) = self.state.params().map(|p| Duration::from_millis(p.lease_millis.into())) else {
            return Ok(());
        };
        self.hearing.turn(now, lease);
        if self.leading.is_none() {
            let Some(servers) = self.hearing.news(now, lease) else { return Ok(()) };
            // One that does not vote cannot lead.
            let servers = if self.node.votes() { servers } else { 0 };
            return self.node.say(Said { servers, unix_millis: self.wall(now) });
        }
        let leads_deaf = self.config.timing.has(PlantedBug::LeadDeaf);
        let successor = self.hearing.successor(now, lease).filter(|_| !leads_deaf);
        if let Some((member, hears, own)) = successor {
            self.tell(now, Notice::HandsOver { member, hears, own }, out);
            self.node.hand_over(member);
        }
        Ok(())
    }

    fn take(&mut self, now: Moment, input: Input, out: &mut Vec<Outcome>) -> Result<(), RaftError> {
        match input {
            Input::Raft { from, message } => {
                self.node.step(from, &message)?;
                for (member, said) in self.node.take_told() {
                    self.hearing.told(now, member, said.servers);
                    let own = self.wall(now);
                    self.clocks.heard(now, Whose::Member(member), said.unix_millis, own);
                }
            }
            // On followers too: the controller remembers what servers report about their stores.
            Input::Server(message) => {
                if let ServerMessage::Heartbeat { server, sent, .. } = &message {
                    self.shell.heard(*server, *sent);
                    self.hearing.heard(now, *server);
                    if self.rescue.as_ref().is_some_and(|rescue| rescue.lacks(*server)) {
                        out.push(Outcome::Push { to: *server, push: MetaPush::Recall });
                    }
                }
                if let (ServerMessage::Recalls { server, recollection }, Some(rescue)) =
                    (&message, &mut self.rescue)
                {
                    rescue.take(*server, (**recollection).clone());
                }
                self.decide(now, Event::Server(message), out);
            }
            Input::Refuses { server, refusal: SleepRefusal { depth, why } } => {
                self.shell.refused(server);
                let (action, result) = (SwitchAction::Sleep(depth), Err(format!("refused to sleep: {why}")));
                self.decide(now, Event::Switched { server, action, result }, out);
            }
            Input::Client { token, is_admin: false, request: MetaRequest::Admin(asked) }
                if !asked.only_asks() =>
            {
                let why = "only an administrator may change the cluster: this needs the cluster secret, or an administrator's keys (`ebb secret --admin FILE`)";
                out.push(Outcome::Reply {
                    token,
                    reply: MetaReply::Failed(MetaFailure::Refused(why.into())),
                });
            }
            Input::Client { token, request, .. } => self.client(now, token, request, out),
            Input::Switched { server, action, result } => {
                self.decide(now, Event::Switched { server, action, result }, out);
            }
        }
        Ok(())
    }

    fn client(&mut self, now: Moment, token: Token, request: MetaRequest, out: &mut Vec<Outcome>) {
        if self.rescue.is_some() && matches!(request, MetaRequest::Admin(_)) {
            let why = "the metadata was rescued and first hears from the chunk servers what the cluster did since its last entry: start \
                       them all; its log names those that are missing";
            out.push(Outcome::Reply { token, reply: MetaReply::Failed(MetaFailure::Refused(why.into())) });
            return;
        }
        if !self.is_leader() {
            let other = self.node.leader().filter(|id| *id != self.config.id);
            let leader = other.and_then(|id| self.config.members.get(&id).cloned());
            out.push(Outcome::Reply { token, reply: MetaReply::NotLeader { leader } });
            return;
        }
        if self.state.params().is_none() {
            out.push(Outcome::Reply { token, reply: MetaReply::Failed(MetaFailure::NotCreated) });
            return;
        }
        match request {
            MetaRequest::Watch { map_version } => self.wait(Unproven::Watch { token, map_version }),
            MetaRequest::Query(query) => self.wait(Unproven::Query { token, query }),
            MetaRequest::Admin(AdminRequest::CreatePool { name }) => self.create_pool(now, token, &name, out),
            MetaRequest::Admin(AdminRequest::ListNotices { after }) => {
                let newer = self.notices.iter().filter(|record| record.number > after).cloned().collect();
                let reply = MetaReply::Admin(AdminReply::Notices(newer));
                self.wait(Unproven::Admin { token, reply });
            }
            MetaRequest::Admin(request) => self.decide(now, Event::Admin { token, request }, out),
            MetaRequest::Wake { set } => self.decide(now, Event::Wake { token, set }, out),
            MetaRequest::Namespace(command) => {
                let (whose, own) = (Whose::Client(command.request.client), self.wall(now));
                self.clocks.heard(now, whose, command.clock_millis, own);
                self.queue.push((Command::Namespace(command), Waiter::Token(token)));
            }
            MetaRequest::AllocateObjects { count } if (1..=ALLOCATE_MAX).contains(&count) => {
                self.queue.push((Command::AllocateObjects { count }, Waiter::Token(token)));
            }
            MetaRequest::AllocateObjects { count } => {
                let why =
                    format!("{count} object ids were asked for; 1 to {ALLOCATE_MAX} can be had at once");
                out.push(Outcome::Reply { token, reply: MetaReply::Failed(MetaFailure::Refused(why)) });
            }
        }
    }

    fn create_pool(&mut self, now: Moment, token: Token, name: &str, out: &mut Vec<Outcome>) {
        match self.config.bootstrap.as_ref().and_then(|file| file.pool(name)) {
            Some(pool) => self.decide(now, Event::CreatePool { token, pool }, out),
            None => {
                let why = format!(
                    "the metadata server's configuration file has no [[pool]] called {name:?}: add it after the others, with new [[server]] \
                     sections, to the file of each metadata server, and restart them"
                );
                out.push(Outcome::Reply { token, reply: MetaReply::Failed(MetaFailure::Refused(why)) });
            }
        }
    }

    fn wait(&mut self, what: Unproven) {
        debug_assert!(
            self.unproven.back().is_none_or(|(number, _)| *number <= self.proof + 1),
            "they wait in order"
        );
        self.unproven.push_back((self.proof + 1, what));
    }

    /// Lets the controller decide and sorts its outputs.
    fn decide(&mut self, now: Moment, event: Event, out: &mut Vec<Outcome>) {
        let mut outputs = Vec::new();
        self.controller.on(now, event, &self.state, &mut outputs);
        for output in outputs {
            match output {
                Output::Propose(commands) => {
                    debug_assert!(!commands.is_empty(), "the last command completes a batch");
                    let last = commands.len() - 1;
                    let each = commands.into_iter().enumerate();
                    self.queue.extend(each.map(|(i, c)| (c, Waiter::Batch { last: i == last })));
                }
                Output::ProposeFor { token, command } => self.queue.push((command, Waiter::Token(token))),
                // What is committed is true whatever this member is now.
                Output::Push { to, push: push @ (MetaPush::Map(_) | MetaPush::Params(_)) } => {
                    out.push(Outcome::Push { to, push });
                }
                Output::Push { to, push } => self.wait(Unproven::Act(Outcome::Push { to, push })),
                Output::Switch { server, action } => {
                    self.wait(Unproven::Act(Outcome::Switch { server, action }));
                }
                Output::Reply { token, reply } => self.wait(Unproven::Admin { token, reply }),
                Output::Notice(notice @ Notice::WentBack { .. }) => self.wait(Unproven::Notice(notice)),
                Output::Notice(notice) => self.tell(now, notice, out),
                Output::Bug(bug) => out.push(Outcome::Bug(bug)),
            }
        }
    }

    /// Proposes the queued commands and repeats until nothing more follows at once.
    fn advance(&mut self, now: Moment, out: &mut Vec<Outcome>) -> Result<(), RaftError> {
        loop {
            self.propose(now, out)?;
            let progress = self.node.ready()?;
            let idle =
                progress.committed.is_empty() && progress.snapshot.is_none() && progress.confirmed.is_empty();
            self.carry_out(now, progress, out);
            self.check_names()?;
            self.follow_leadership(now, out);
            if idle && self.queue.is_empty() {
                return Ok(());
            }
        }
    }

    fn propose(&mut self, now: Moment, out: &mut Vec<Outcome>) -> Result<(), RaftError> {
        if self.queue.is_empty() {
            return Ok(());
        }
        let mut queue = std::mem::take(&mut self.queue);
        self.tell_time(now, &mut queue);
        let (mut commands, mut waiters): (Vec<Command>, Vec<Waiter>) = queue.into_iter().unzip();
        let mut encoded = encode(&commands);
        let is_full = self.node.is_leader() && !self.node.has_room(encoded.len(), false)?;
        self.note_room(now, is_full, out);
        if is_full {
            // The leader's own decisions keep the data safe: the log reserves room for them.
            let whole = commands.into_iter().zip(waiters);
            let is_theirs = |(command, waiter): &(Command, Waiter)| {
                matches!(waiter, Waiter::Token(_)) || matches!(command, Command::Elapsed { .. })
            };
            let (theirs, own): (Vec<_>, Vec<_>) = whole.partition(is_theirs);
            let theirs = theirs.into_iter().map(|(_, waiter)| waiter).collect();
            give_up(theirs, MetaReply::Failed(MetaFailure::Full), out);
            (commands, waiters) = own.into_iter().unzip();
            if commands.is_empty() {
                return Ok(());
            }
            encoded = encode(&commands);
            if !self.node.has_room(encoded.len(), true)? {
                self.again_at = Some(now + AGAIN);
                return Ok(());
            }
        }
        match self.node.propose(encoded) {
            Some((term, index)) => {
                self.proposed.insert(index, (term, waiters));
            }
            None => {
                // While it hands over, a leader can propose nothing; and that may come to nothing.
                let is_own = waiters.iter().any(|waiter| matches!(waiter, Waiter::Batch { .. }));
                if is_own && self.node.is_leader() {
                    self.again_at = Some(now + AGAIN);
                }
                give_up(waiters, MetaReply::NotLeader { leader: None }, out);
            }
        }
        Ok(())
    }

    /// The state has no clock: the leader reports the time with the commands that depend on it.
    fn tell_time(&mut self, now: Moment, queue: &mut Vec<(Command, Waiter)>) {
        if queue.iter().any(|(c, _)| matches!(c, Command::Namespace(_))) {
            let agreed = self.doubt(now).is_none();
            let millis = now.since(self.told_time).as_millis() as u64;
            self.told_time = self.told_time + Duration::from_millis(millis);
            let millis = if self.config.timing.has(PlantedBug::TellNoTime) { 0 } else { millis };
            let unix_millis = self.wall(now);
            queue.insert(0, (Command::Elapsed { millis, unix_millis, agreed }, Waiter::Nobody));
        }
    }

    fn note_room(&mut self, now: Moment, is_full: bool, out: &mut Vec<Outcome>) {
        if is_full != self.full {
            self.full = is_full;
            let notice = if is_full { Notice::MetadataDiskFull } else { Notice::MetadataDiskHasRoom };
            self.tell(now, notice, out);
        }
    }

    /// Says it in the log, and keeps it for those who ask.
    fn tell(&mut self, now: Moment, notice: Notice, out: &mut Vec<Outcome>) {
        self.noticed += 1;
        let at_unix_millis = self.wall(now);
        let number = self.leading.unwrap_or(0) << 32 | u64::from(self.noticed);
        self.notices.push_back(NoticeRecord { number, at_unix_millis, notice: notice.clone() });
        if self.notices.len() > NOTICES {
            self.notices.pop_front();
        }
        out.push(Outcome::Notice(notice));
    }

    fn carry_out(&mut self, now: Moment, progress: Progress, out: &mut Vec<Outcome>) {
        out.extend(progress.send.into_iter().map(|(to, message)| Outcome::SendRaft { to, message }));
        if let Some(state) = progress.snapshot {
            debug_assert!(state.version() >= self.state.version(), "a state does not go back");
            self.state = state;
        }
        self.state.plant(self.config.timing.planted());
        for entry in progress.committed {
            let replies: Vec<Reply> = entry.commands.iter().map(|c| self.state.apply(c)).collect();
            let Some((term, waiters)) = self.proposed.remove(&entry.index) else { continue };
            if term != entry.term {
                give_up(waiters, MetaReply::Failed(MetaFailure::Unknown), out);
                continue;
            }
            debug_assert_eq!(waiters.len(), entry.commands.len(), "a waiter for each command");
            let own = waiters.iter().any(|w| matches!(w, Waiter::Batch { last: true }));
            let told = waiters.iter().zip(&entry.commands).any(|(w, c)| !is_plain(c) && *w != Waiter::Nobody);
            let mut refused = false;
            for (waiter, reply) in waiters.into_iter().zip(replies) {
                match (waiter, reply) {
                    (_, Reply::Broken(rule)) => {
                        refused = true;
                        out.push(Outcome::Broken(rule));
                    }
                    (Waiter::Token(token), reply) => out.push(Outcome::Reply { token, reply: answer(reply) }),
                    (_, Reply::Refused(why)) => self.tell(now, Notice::Refused { why }, out),
                    _ => {}
                }
            }
            if own && refused {
                self.again_at = Some(now + AGAIN);
            } else if own || told {
                self.decide(now, Event::Applied { own }, out);
            }
        }
        for (proof, _index) in progress.confirmed {
            self.release(now, proof, out);
        }
    }

    /// Informs the controller when this member starts or stops leading.
    fn follow_leadership(&mut self, now: Moment, out: &mut Vec<Outcome>) {
        let term = Some(self.node.term()).filter(|_| self.node.is_leader());
        if self.leading.is_some() && self.leading != term {
            (self.leading, self.again_at, self.rescue) = (None, None, None);
            self.decide(now, Event::LostLeadership, out);
            for (_, waiters) in std::mem::take(&mut self.proposed).into_values() {
                give_up(waiters, MetaReply::Failed(MetaFailure::Unknown), out);
            }
            for (_, what) in std::mem::take(&mut self.unproven) {
                if let Some(token) = what.token() {
                    out.push(Outcome::Reply { token, reply: MetaReply::NotLeader { leader: None } });
                }
            }
        }
        if self.leading.is_none() && self.node.is_leader_ready() {
            self.leading = term;
            self.notices.clear();
            self.told_time = now;
            if self.state.generation() < self.node.generation() && self.state.params().is_some() {
                self.rescue = Some(Rescue::new(now));
            } else {
                self.begin(now, out);
            }
        }
        if self.rescue.is_some() && self.state.generation() == self.node.generation() {
            self.rescue = None;
            self.begin(now, out);
        }
        debug_assert!(self.leading.is_none() || self.node.is_leader(), "who is deposed decides nothing");
        debug_assert!(self.rescue.is_none() || self.leading.is_some(), "who is deposed rescues nothing");
    }

    fn begin(&mut self, now: Moment, out: &mut Vec<Outcome>) {
        debug_assert!(self.rescue.is_none(), "what it may have forgotten is heard first");
        let unix_millis = self.wall(now);
        self.bootstrap();
        self.decide(now, Event::BecameLeader { unix_millis }, out);
    }

    /// The state catches up once enough chunk servers have said what they know.
    fn judge_rescue(&mut self, now: Moment, out: &mut Vec<Outcome>) {
        let under_way = !self.queue.is_empty() || !self.proposed.is_empty();
        let Some(rescue) = self.rescue.as_mut().filter(|_| !under_way) else { return };
        let generation = self.node.generation();
        match rescue.judge(now, generation, &self.state, &self.config.timing) {
            Verdict::Waits(servers) => {
                if rescue.announces(&servers) {
                    self.tell(now, Notice::RescueWaits { servers }, out);
                }
            }
            Verdict::Done(recalled) => {
                let Unsure { groups, sets } = self.state.unsure(&recalled);
                self.tell(now, Notice::Rescued { generation, groups, sets }, out);
                self.queue.push((Command::Rescue(recalled), Waiter::Nobody));
            }
        }
    }

    /// Creates the cluster if it does not exist, or adopts addresses, and pools' settings, that changed in the
    /// configuration file.
    fn bootstrap(&mut self) {
        let Some(bootstrap) = &self.config.bootstrap else { return };
        if self.state.params().is_none() {
            // Reported to the controller as a batch of its own.
            let mut bootstrap = bootstrap.clone();
            bootstrap.params.instance = self.node.instance().expect("a leader knows its cluster");
            self.queue.push((Command::Init(bootstrap), Waiter::Batch { last: true }));
            return;
        }
        for server in &bootstrap.servers {
            if self.state.server(server.id).is_some_and(|known| known.address != server.address) {
                let (server, address) = (server.id, server.address.clone());
                self.queue.push((Command::SetAddress { server, address }, Waiter::Nobody));
            }
        }
        for pool in &bootstrap.pools {
            if self.state.pool(pool.id).is_some_and(|known| known.with_settings_of(pool) != *known) {
                self.queue.push((Command::SetPool(pool.clone()), Waiter::Nobody));
            }
        }
    }

    /// Proves that this member leads, for every request that waits for it.
    fn prove(&mut self, now: Moment, out: &mut Vec<Outcome>) -> Result<(), RaftError> {
        self.proof += 1;
        if self.config.members.len() == 1 {
            self.release(now, self.proof, out);
            return Ok(());
        }
        self.node.confirm(self.proof);
        self.advance(now, out)
    }

    /// Carries out what waited for proof number `proof` or an earlier one.
    fn release(&mut self, now: Moment, proof: u64, out: &mut Vec<Outcome>) {
        debug_assert!(proof <= self.proof, "only what was asked for is proved");
        while self.unproven.front().is_some_and(|(number, _)| *number <= proof) {
            let (_, what) = self.unproven.pop_front().expect("just seen");
            let outcome = match what {
                Unproven::Act(outcome) => outcome,
                Unproven::Notice(notice) => {
                    self.tell(now, notice, out);
                    continue;
                }
                Unproven::Admin { token, mut reply } => {
                    if let MetaReply::Admin(AdminReply::Status(status)) = &mut reply {
                        self.add_members(status);
                        let doubt = self.doubt(now).map(|why| format!("lifecycle rules stand still: {why}"));
                        status.notes.extend(doubt);
                    }
                    Outcome::Reply { token, reply }
                }
                Unproven::Query { token, query: NamespaceQuery::Now } => {
                    let unix_millis = self.wall(now).max(self.state.namespace().unix_millis());
                    let answer = match self.doubt(now) {
                        Some(why) => Err(NamespaceError::ClocksApart { why }),
                        None => Ok(NamespaceAnswer::Now { unix_millis }),
                    };
                    Outcome::Reply { token, reply: MetaReply::Query(answer) }
                }
                Unproven::Query { token, query } => {
                    let reply = MetaReply::Query(self.state.namespace().query(&query));
                    Outcome::Reply { token, reply }
                }
                Unproven::Watch { token, map_version } => {
                    let params = self.state.params().expect("only a created cluster is watched").clone();
                    let map = self.state.delta(map_version);
                    Outcome::Reply { token, reply: MetaReply::Watch { params, map } }
                }
            };
            out.push(outcome);
        }
    }
}

impl Unproven {
    fn token(&self) -> Option<Token> {
        match self {
            Unproven::Act(_) | Unproven::Notice(_) => None,
            Unproven::Watch { token, .. } | Unproven::Query { token, .. } | Unproven::Admin { token, .. } => {
                Some(*token)
            }
        }
    }
}

/// Whether the command is irrelevant to the controller.
fn is_plain(command: &Command) -> bool {
    matches!(command, Command::Namespace(_) | Command::AllocateObjects { .. } | Command::Elapsed { .. })
}

fn encode(commands: &[Command]) -> Vec<u8> {
    postcard::to_stdvec(commands).expect("plain data")
}

fn answer(reply: Reply) -> MetaReply {
    match reply {
        Reply::Done | Reply::Reconfigured { .. } => MetaReply::Admin(AdminReply::Done),
        Reply::Objects { first, count } => MetaReply::Objects { first, count },
        Reply::Namespace(reply) => MetaReply::Namespace(reply),
        Reply::Refused(why) | Reply::Broken(why) => MetaReply::Failed(MetaFailure::Refused(why)),
    }
}

fn give_up(waiters: Vec<Waiter>, reply: MetaReply, out: &mut Vec<Outcome>) {
    for waiter in waiters {
        if let Waiter::Token(token) = waiter {
            out.push(Outcome::Reply { token, reply: reply.clone() });
        }
    }
}

/// One note per member that is silent, with how many more may fail.
fn member_notes(members: &[MetadataMember]) -> Vec<String> {
    let voters = members.iter().filter(|m| m.votes).count();
    let heard = members.iter().filter(|m| m.votes && !m.is_silent()).count();
    let more = match heard.saturating_sub(voters / 2 + 1) {
        0 => "one more loss stops the cluster".to_owned(),
        more => format!("{more} more may fail"),
    };
    let silent = members.iter().filter(|m| m.is_silent()).map(|m| {
        let (id, seconds) = (m.id, m.heard_millis.unwrap_or(0) / 1000);
        format!(
            "metadata server {id} has not been heard for {seconds} s: start it, or if its log is lost, `ebb meta --id {id} --join`; {more}"
        )
    });
    silent.collect()
}

#[cfg(test)]
mod tests;
