//! The world above chunks: processes on their machines, their clients, and the modelled cluster.

use crate::above::chunks::{Chunks, Defects};
use crate::above::clients::Clients;
use crate::above::disk::{Served, VOLUMES};
use crate::above::library::{Settings, TODAY};
use crate::above::messages::{Answer, Ask, Event, Parcel, Reply, Request, Sent, Try};
use crate::above::meta::{GROUPS, Meta, POOL};
use crate::above::net::Net;
use crate::above::object::Gateway;
use crate::above::planted::{Bug, Planted};
use crate::above::process::Process;
use crate::above::scenario::{Fault, Moment, Role, SECOND, Scenario, Standstill};
use ebb_types::{ChunkOp, MetaReply, MetaRequest, NamespaceCommand, NamespaceOp, VolumeHome, mix};
use std::collections::BTreeSet;

/// More events than any healthy run has.
const EVENTS_MAX: u64 = 400_000;

/// A volume's server whose virtual machine stands still for longer may have a successor.
const LONGEST_FREEZE: u64 = 15 * SECOND;

/// What a process does for its clients.
enum Service {
    None,
    Volume(Served),
    Gateway(Gateway),
}

/// A machine on which a process runs, or is about to.
struct Host {
    role: Role,
    process: Option<Process>,
    service: Service,
    /// Counts its processes: what was sent to an earlier one does not reach a later one.
    life: u64,
    wall_ahead: i64,
    /// What has arrived while the process stood still.
    held: Vec<Parcel>,
    /// It will stand still from that moment on, for this long.
    stops: Option<(Moment, u64, Standstill)>,
}

pub(super) struct World {
    pub net: Net,
    planted: Planted,
    hosts: Vec<Host>,
    pub chunks: Chunks,
    pub meta: Meta,
    pub clients: Clients,
    /// Processes that have ended, and when.
    ended: Vec<(u64, u64)>,
    pub events: u64,
    /// The pool that is created later is there.
    has_new_pool: bool,
}

impl World {
    /// `keep`: lines of transcript.
    pub fn new(scenario: Scenario, planted: Planted, keep: usize) -> World {
        let has = |bug| planted.world == Some(bug);
        let defects = Defects {
            ignores_claims: has(Bug::IgnoreClaims),
            zeroes_exist: has(Bug::ZeroesExist),
            revives_deleted: has(Bug::ReviveDeleted),
            deletes_asleep: has(Bug::DeleteAsleep),
        };
        let host = |role: &Role| Host {
            role: *role,
            process: None,
            service: Service::None,
            life: 0,
            wall_ahead: 0,
            held: Vec::new(),
            stops: None,
        };
        let hosts = scenario.hosts.iter().map(host).collect();
        let mut net = Net::new(scenario, keep);
        let of_clients = net.random.fork();
        let mut clients = Clients::new(&net.scenario, of_clients);
        for host in 0..net.scenario.hosts.len() {
            let at = net.random.below(SECOND);
            net.at(at, Event::Start { host });
        }
        for number in 0..net.scenario.faults.len() {
            net.at(net.scenario.faults[number].0, Event::Fault(number));
        }
        clients.start(&mut net);
        if net.scenario.fronts.len() > 1 {
            net.count("several volumes");
        }
        let chunks = Chunks::new(GROUPS, net.scenario.rest_after, defects);
        let (members, log_bytes) = (net.scenario.members, net.scenario.log_bytes);
        let meta = Meta::new(TODAY, members, (log_bytes, planted.member));
        World {
            net,
            planted,
            hosts,
            chunks,
            meta,
            clients,
            ended: Vec::new(),
            events: 0,
            has_new_pool: false,
        }
    }

    /// Goes on until this time, or until a rule is broken.
    pub fn run_to(&mut self, until: u64) {
        while self.net.violation.is_none() {
            let next = self.net.next().map_or(until, |time| time.min(until));
            if self.run_processes(next) {
                continue;
            }
            let Some(event) = self.net.take(until) else { return };
            self.events += 1;
            if self.events > EVENTS_MAX {
                return self.net.break_rule("liveness", "there is no end of events".into());
            }
            self.happen(event);
            if let Some(what) = self.chunks.broken.take() {
                self.net.break_rule("rows", what);
            }
        }
    }

    /// Lets all processes run up to this time. Returns whether one has sent something: then there may be earlier
    /// events.
    fn run_processes(&mut self, until: u64) -> bool {
        for host in 0..self.hosts.len() {
            let Some(process) = &mut self.hosts[host].process else { continue };
            let sent = process.run_to(until);
            if !sent.is_empty() {
                for (time, what) in sent {
                    let stops = self.hosts[host].stops.filter(|(when, ..)| is_at(*when, &what));
                    self.send(host, time, what);
                    if let Some((_, millis, how)) = stops {
                        self.hosts[host].stops = None;
                        self.stop(host, time, millis, how);
                    }
                }
                return true;
            }
        }
        false
    }

    fn send(&mut self, host: usize, time: u64, what: Sent) {
        let (net, life) = (&mut self.net, self.hosts[host].life);
        net.digest = mix(net.digest ^ time ^ host as u64);
        match what {
            Sent::Ask(tried) => {
                let until = time + tried.left;
                if net.random.chance(net.repeats()) {
                    net.count("a request that arrives twice");
                    let (arrives, tried) = (time + net.delay(), tried.clone());
                    net.at(arrives, Event::Arrive { host, life, tried, until });
                }
                let arrives = time + net.delay();
                net.at(arrives, Event::Arrive { host, life, tried, until });
            }
            Sent::Reply { client, attempt, reply } => {
                let back = time + net.delay();
                net.at(back, Event::Back { client, attempt, reply });
            }
            Sent::Ended => net.at(time + 1, Event::Ended { host, life }),
            Sent::Panicked(why) => net.break_rule("panic", why),
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { host, life, tried, until } => self.arrive(host, life, tried, until),
            Event::Late { op, payload, claim } => {
                self.net.note(|| format!("claim {claim}, from a connection that broke: {}", brief(&op)));
                self.net.count("a request that is read late");
                if !self.chunks.sleeps(self.net.now, &op) {
                    self.chunks.serve(self.net.now, &op, &payload, claim);
                }
            }
            Event::Deliver { host, life, parcel } => {
                if life.is_none() && self.is_cut_off(&parcel) {
                    self.net.note(|| format!("process {host} does not get what a closed connection had"));
                    self.net.count("a request that is lost with its connection");
                } else if life.is_none_or(|life| life == self.hosts[host].life) {
                    self.deliver(host, parcel);
                }
            }
            Event::Back { client, attempt, reply } => {
                self.clients.answered(&mut self.net, client, attempt, reply);
            }
            Event::Look { client, attempt, why } => {
                self.clients.look(&mut self.net, client, attempt, why);
            }
            Event::Ended { host, life } if life == self.hosts[host].life => {
                self.net.note(|| format!("process {host} ended"));
                self.end(host);
                let pause = self.net.random.between(200, 5 * SECOND);
                self.net.after(pause, Event::Start { host });
            }
            Event::Ended { .. } => {}
            Event::Start { host } => self.start(host),
            Event::CreatePool => self.create_pool(),
            Event::Resume { host } => self.resume(host),
            Event::Fault(number) => {
                let (_, fault) = self.net.scenario.faults[number].clone();
                if !self.net.is_calm {
                    self.strike(fault);
                }
            }
        }
    }

    /// Processes hear of the pool one after another: those that stand still much later.
    fn create_pool(&mut self) {
        if !self.meta.create_pool(self.net.now) {
            return self.net.after(SECOND, Event::CreatePool);
        }
        self.net.note(|| "a pool is created".into());
        self.net.count("a pool that is created");
        self.has_new_pool = true;
        for host in 0..self.hosts.len() {
            let delay = self.net.random.below(20 * SECOND);
            self.net.after(delay, Event::Deliver { host, life: None, parcel: Parcel::Map });
        }
    }

    fn arrive(&mut self, host: usize, life: u64, tried: Try, until: u64) {
        let (net, Try { call, ask, .. }) = (&mut self.net, tried);
        if net.now > until || net.random.chance(net.losses()) {
            if let Ask::Chunk { op, payload, claim } = ask
                && net.random.chance(500)
            {
                let delay = net.random.below(60 * SECOND);
                return net.after(delay, Event::Late { op, payload, claim });
            }
            return net.count("a request that is lost");
        }
        let answer = match ask {
            Ask::Chunk { op, .. } if self.chunks.sleeps(net.now, &op) => {
                net.note(|| format!("process {host}: {} -> its pool sleeps", brief(&op)));
                net.count("a request that waits until its pool wakes");
                Answer::Asleep
            }
            Ask::Chunk { op, payload, claim } => {
                if let Some(served) = self.chunks.unserved_until(net.now, &op)
                    && net.random.chance(300)
                {
                    // Its server keeps it, and the client closes the connection.
                    let delay = served - net.now + net.random.below(5 * SECOND);
                    return net.after(delay, Event::Late { op, payload, claim });
                }
                let (reply, bytes) = self.chunks.serve(net.now, &op, &payload, claim);
                net.note(|| {
                    let got = if bytes.is_empty() {
                        format!("{reply:?}")
                    } else {
                        format!("{} bytes", bytes.len())
                    };
                    format!("process {host} claim {claim}: {} -> {got}", brief(&op))
                });
                Answer::Chunk(reply, bytes)
            }
            Ask::Meta(_) | Ask::Wake(_) if net.now < self.meta.silent_until => return,
            Ask::Wake(pool) => {
                let by = net.now + net.random.between(SECOND, net.scenario.wakes_within);
                Answer::Woken(self.chunks.wake(net.now, pool, by))
            }
            Ask::Meta(request) => {
                count_ops(net, &request);
                let shown = (net.transcript.keep > 0).then(|| format!("{request:?}"));
                let command = self.clients.expiring(net, &request);
                let Some(reply) = self.meta.ask(net.now, request) else { return };
                if let (Some(command), MetaReply::Namespace(reply)) = (command, &reply) {
                    self.clients.expired(net, command, &reply.results);
                }
                net.note(|| format!("process {host}: {} -> {reply:?}", shown.unwrap_or_default()));
                Answer::Meta(reply)
            }
        };
        if net.random.chance(net.losses()) {
            return net.count("an answer that is lost");
        }
        let delay = net.delay();
        let parcel = Parcel::Answer { call, answer };
        net.after(delay, Event::Deliver { host, life: Some(life), parcel });
    }

    /// Whether a request was still in the network when its client got the answer on another connection, and has closed
    /// this one: no server could tell it from a new one. What a process that stands still has received, it has.
    fn is_cut_off(&self, parcel: &Parcel) -> bool {
        matches!(parcel, Parcel::Request { op, .. } if self.clients.is_answered(*op))
    }

    fn deliver(&mut self, number: usize, parcel: Parcel) {
        let host = &mut self.hosts[number];
        let from = match &parcel {
            Parcel::Request { client, attempt, op, .. } => Some((*client, *attempt, *op)),
            Parcel::Answer { .. } | Parcel::Map | Parcel::Broken { .. } => None,
        };
        let is_taken = match (&host.process, parcel, &mut host.service) {
            (Some(process), parcel, _) if process.is_stopped() => return host.held.push(parcel),
            (Some(process), Parcel::Answer { call, answer }, _) => {
                process.library.answered(call, answer);
                true
            }
            (Some(process), Parcel::Map, _) => {
                process.library.learn();
                true
            }
            (
                Some(process),
                Parcel::Request { client, attempt, request: Request::Object(request), .. },
                Service::Gateway(gateway),
            ) => {
                gateway.request(process, (client, attempt), &request);
                true
            }
            (Some(process), Parcel::Broken { client, attempt }, Service::Gateway(gateway)) => {
                process.inside(|| gateway.broken((client, attempt)));
                true
            }
            (
                Some(process),
                Parcel::Request { client, attempt, request: Request::Block(request), .. },
                Service::Volume(served),
            ) => served.request(process, (client, attempt), &request),
            _ => false,
        };
        let Some((client, attempt, op)) = from else { return };
        self.clients.arrived(op, is_taken.then_some((number, host.life)), self.net.now);
        if !is_taken {
            let delay = self.net.delay();
            self.net.after(delay, Event::Back { client, attempt, reply: Reply::Gone });
        }
    }

    fn start(&mut self, number: usize) {
        if self.hosts[number].process.is_some() {
            return;
        }
        let run = self.net.random.next() | 1;
        let has = |bug| self.planted.world == Some(bug);
        let settings = Settings {
            began: self.net.now,
            groups: GROUPS,
            has_new_pool: self.has_new_pool,
            wall_ahead: self.hosts[number].wall_ahead,
            renews_sessions: has(Bug::ForgetSessions),
        };
        let process = Process::start(self.net.now, run, settings);
        let service = match self.hosts[number].role {
            Role::Volume(volume) => {
                let home = |front_bytes| VolumeHome { pool: POOL, front_bytes };
                let home = self.net.scenario.fronts[volume].map(home);
                Service::Volume(Served::start(&process, VOLUMES[volume], home, self.planted.volume))
            }
            Role::Gateway => Service::Gateway(Gateway::start(&process, self.planted.world, run as usize)),
        };
        let host = &mut self.hosts[number];
        host.life += 1;
        (host.process, host.service) = (Some(process), service);
        self.net.note(|| format!("process {number} starts as run {run:016x}"));
    }

    /// The process is gone, with all that it had not sent.
    fn end(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        host.life += 1;
        let process = host.process.take().map(|process| (process.library.run(), self.net.now));
        self.ended.extend(process);
        host.service = Service::None;
        for parcel in std::mem::take(&mut host.held) {
            if let Parcel::Request { client, attempt, op, .. } = parcel {
                self.clients.arrived(op, None, self.net.now);
                self.net.after(1, Event::Back { client, attempt, reply: Reply::Gone });
            }
        }
    }

    fn resume(&mut self, number: usize) {
        let boot_clock_stands = self.planted.world.is_some_and(Bug::has_monotonic_clock);
        let host = &mut self.hosts[number];
        let Some(process) = host.process.as_mut().filter(|process| process.is_stopped()) else { return };
        process.resume(self.net.now, boot_clock_stands);
        // Its peers may have given its connections up.
        let is_cut = self.net.random.chance(800);
        if is_cut {
            process.library.lose_connections();
        }
        self.net.note(|| format!("process {number} continues"));
        for parcel in std::mem::take(&mut host.held) {
            if is_cut && matches!(parcel, Parcel::Answer { .. }) {
                continue;
            }
            // What has arrived meanwhile is read at once, or after what was due meanwhile.
            let (delay, life) = (self.net.random.below(3), Some(host.life));
            self.net.after(delay, Event::Deliver { host: number, life, parcel });
        }
    }

    fn strike(&mut self, fault: Fault) {
        let now = self.net.now;
        self.net.note(|| format!("fault: {fault:?}"));
        self.net.count(fault.name());
        match fault {
            Fault::Stop { host, millis, how, when } => {
                let fronts = &self.net.scenario.fronts;
                let has_home =
                    matches!(self.hosts[host].role, Role::Volume(volume) if fronts[volume].is_some());
                let is_limited =
                    how == Standstill::Freeze && has_home && self.planted.world != Some(Bug::LongFreeze);
                let millis = if is_limited { millis.min(LONGEST_FREEZE) } else { millis };
                match when {
                    Moment::Now => self.stop(host, now, millis, how),
                    when => self.hosts[host].stops = Some((when, millis, how)),
                }
            }
            Fault::Crash { host, millis } => {
                self.end(host);
                self.net.after(millis, Event::Start { host });
            }
            Fault::Close { host } => match &self.hosts[host].service {
                Service::Volume(served) => served.stop(),
                // A gateway that is asked to end leaves nothing that it would not leave in a crash.
                Service::Gateway(_) | Service::None => {}
            },
            Fault::Break => self.clients.break_all(&mut self.net),
            Fault::Storm { millis } => self.net.storm_until = now + millis,
            Fault::Unserved { group, millis } => self.chunks.unserve(group, now + millis),
            Fault::Primary { group } => self.chunks.move_primary(group),
            Fault::NewPool => {
                self.meta.extend(now, TODAY + now);
                self.create_pool();
            }
            Fault::MetaSilent { millis } => self.meta.silent_until = now + millis,
            Fault::MetaLeader => {
                let leader = self.meta.leader().unwrap_or(1);
                self.meta.restart(now, leader, TODAY + now);
            }
            Fault::MetaCut { member, millis } => self.meta.cut(member, now + millis),
            Fault::MetaClock { ahead } => {
                let leader = self.meta.leader().unwrap_or(1);
                self.meta.set_wall(now, leader, TODAY.saturating_add_signed(ahead) + now);
            }
            Fault::Clock { host, ahead } => {
                self.hosts[host].wall_ahead = ahead;
                if let Some(process) = &self.hosts[host].process {
                    process.library.set_wall(ahead);
                }
            }
        }
    }

    fn stop(&mut self, host: usize, time: u64, millis: u64, how: Standstill) {
        if let Some(process) = &mut self.hosts[host].process {
            process.stop(time, how);
            self.net.at(time + millis, Event::Resume { host });
        }
    }

    /// What became of the metadata service's logs. Nothing happens any more.
    pub fn count_logs(&mut self) {
        let (rewritten, received) = self.meta.end();
        for (times, what) in
            [(rewritten, "metadata log rewritten"), (received, "metadata member sent a snapshot")]
        {
            (0..times).for_each(|_| self.net.count(what));
        }
    }

    /// The processes that run, or ran within this time.
    pub fn runs(&self, within: u64) -> BTreeSet<u64> {
        let run = self.hosts.iter().filter_map(|host| host.process.as_ref()).map(|p| p.library.run());
        let lately = self.ended.iter().filter(|(_, at)| at + within > self.net.now).map(|(run, _)| *run);
        run.chain(lately).collect()
    }

    /// All faults end.
    pub fn calm_down(&mut self) {
        self.net.note(|| "all faults end".into());
        (self.net.is_calm, self.net.storm_until) = (true, 0);
        self.chunks.serve_all();
        self.meta.heal();
        (1..=self.net.scenario.members)
            .for_each(|id| self.meta.set_wall(self.net.now, id, TODAY + self.net.now));
        for host in 0..self.hosts.len() {
            (self.hosts[host].wall_ahead, self.hosts[host].stops) = (0, None);
            if let Some(process) = &self.hosts[host].process {
                process.library.set_wall(0);
            }
            self.resume(host);
        }
    }
}

/// Whether what a process has sent is the moment to stop it.
fn is_at(when: Moment, sent: &Sent) -> bool {
    let Sent::Ask(Try { ask, .. }) = sent else {
        return when == Moment::Answering && matches!(sent, Sent::Reply { .. });
    };
    let commands = |is_such: fn(&NamespaceOp) -> bool| match ask {
        Ask::Meta(MetaRequest::Namespace(NamespaceCommand { ops, .. })) => ops.iter().any(is_such),
        _ => false,
    };
    let changes = |op: &NamespaceOp| {
        !matches!(op, NamespaceOp::Lease { .. } | NamespaceOp::Close { .. } | NamespaceOp::Collected { .. })
    };
    match when {
        Moment::Now | Moment::Answering => false,
        Moment::Sent => true,
        Moment::Reading => matches!(ask, Ask::Chunk { op: ChunkOp::Read { .. }, .. }),
        Moment::Commanding => commands(changes),
        Moment::Deleting => commands(|op| matches!(op, NamespaceOp::Delete { .. })),
    }
}

/// What production code is seen to do.
fn count_ops(net: &mut Net, request: &MetaRequest) {
    let MetaRequest::Namespace(NamespaceCommand { ops, .. }) = request else { return };
    for op in ops {
        match op {
            NamespaceOp::Move { .. } => net.count("an object that moves"),
            NamespaceOp::MoveSlice { .. } => net.count("a slice that moves"),
            NamespaceOp::ClaimVolume { from: Some(_), .. } => net.count("a volume that is taken over"),
            NamespaceOp::EndRun { .. } => net.count("a silent run that is ended"),
            NamespaceOp::Discard { .. } => net.count("data that was written in vain"),
            NamespaceOp::CompleteUpload { .. } => net.count("an upload that is completed"),
            NamespaceOp::AbortUpload { .. } => net.count("an upload that is aborted"),
            NamespaceOp::Repack { .. } => net.count("an object that leaves a sparse pack"),
            _ => {}
        }
    }
}

fn brief(op: &ChunkOp) -> String {
    let (chunk, (offset, len)) = (op.chunk(), op.range());
    let name = match op {
        ChunkOp::Read { must_exist: true, .. } => "read written",
        ChunkOp::Read { .. } => "read",
        ChunkOp::Look { .. } => "look",
        ChunkOp::Write { .. } => "write",
        ChunkOp::Zero { up_to: Some(_), .. } => "clear",
        ChunkOp::Zero { .. } => "zero",
        ChunkOp::Delete { .. } => "delete",
    };
    let request = op.request().map(|request| format!(" #{}", request.seq)).unwrap_or_default();
    format!("{name}{request} {chunk} {offset}+{len}")
}
