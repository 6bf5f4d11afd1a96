//! The request level as a world sees it: the models say how long a message takes, what a store's command costs and how
//! long a switch takes; the hosts of the trace are the clients. Nothing disturbs the world, and only its gears are
//! watched.

use crate::engine::SECOND;
use crate::request::energy::Way;
use crate::request::later::Later;
use crate::request::models::{MESSAGE_BYTES, Models, weigh};
use crate::world::happening::{Happening, Message};
use crate::world::net::Node;
use crate::world::{Delays, Disturb, Harness, Judge};
use ebb_chunkserver::{Recovered, StoreCommand, StoreOutcome, StoreToken};
use ebb_meta::SwitchAction;
use ebb_power::Draw;
use ebb_types::{Moment, ServerId, StoreTask};

/// A world with models of time.
pub type World<'a> = crate::world::World<Models<'a>>;

impl<'a> Harness for Models<'a> {
    type Event = Later;

    fn happens(world: &mut World<'a>, later: Later) {
        match later {
            Later::Arrivals => world.requests_arrive(),
            Later::TaskDone { server, life, token } if world.servers[&server].life == life => {
                world.stored(server, token, StoreOutcome::Applied);
            }
            Later::DiskDone { server, life, job } if world.servers[&server].life == life => {
                world.jobs_done(server, &[job]);
            }
            Later::DiskFree { server, life } if world.servers[&server].life == life => {
                world.models().machine(server).wake_at = 0;
                world.pump_disk(server);
            }
            Later::TaskDone { .. } | Later::DiskDone { .. } | Later::DiskFree { .. } => {}
            Later::Mirror { server } => world.step_mirror(server),
            Later::Resume { server } => world.resume_mirror(server),
            Later::Retry { piece } => world.look_at_piece(piece),
            Later::Refresh { host } => world.refresh_host(host),
            Later::Timeouts => {
                world.look_for_timeouts();
                world.its_after(SECOND, Later::Timeouts);
            }
            Later::Sample if world.now > world.models().sample_until => {}
            Later::Sample => {
                world.take_sample();
                let every = world.models().sample_every;
                world.its_after(every, Later::Sample);
            }
            Later::Gear { gear } => world.ask_gear(gear),
        }
    }

    /// They notice a dead server by its silence alone.
    fn clients(&self) -> Vec<u32> {
        Vec::new()
    }

    fn client_receives(world: &mut World<'a>, client: u32, from: Node, message: Message) {
        world.host_receives(client, from, message);
    }

    fn link_lost(_world: &mut World<'a>, _client: u32, _server: ServerId) {}
}

impl Disturb for Models<'_> {}

impl<'a> Judge for Models<'a> {
    fn check_map(world: &mut World<'a>, _member: u64) {
        world.follow_gears();
    }
}

impl<'a> Delays for Models<'a> {
    fn transmit(&mut self, now: u64, from: Node, to: Node, message: &Message) -> Option<u64> {
        let (traffic, bytes) = weigh(message);
        Some(self.fabric.send(now, from, to, MESSAGE_BYTES + bytes, traffic))
    }

    fn submit(world: &mut World<'a>, server: ServerId, token: StoreToken, command: StoreCommand) {
        let now = world.now;
        match world.models().machine(server).submit(now, token, command) {
            Some((job, done)) => {
                let life = world.servers[&server].life;
                world.its_at(done, Later::DiskDone { server, life, job });
            }
            None => world.pump_disk(server),
        }
    }

    /// Only a flush takes the disk's time: before a server sleeps, all data is moved to its chunk files.
    fn give_task(world: &mut World<'a>, server: ServerId, token: StoreToken, task: StoreTask) {
        let machine = world.models().machine(server);
        match task {
            StoreTask::Drop { group, role } => machine.store.drop_role(group, role),
            StoreTask::ForgetTombstones { .. } | StoreTask::Remember(_) => {}
            StoreTask::Flush => {
                machine.settle();
                if !machine.is_idle() {
                    machine.flushing.push(token);
                    return world.pump_disk(server);
                }
            }
        }
        world.task_done(server, token);
    }

    /// A power switch takes the time of the depth of sleep. Going down begins at once and must end before going up can
    /// begin.
    fn throw_switch(
        world: &mut World<'a>,
        (member, life): (u64, u64),
        server: ServerId,
        action: SwitchAction,
    ) {
        let now = world.now;
        let models = world.models();
        let draw = match action {
            SwitchAction::Wake { .. } => {
                models.on.insert(server);
                Draw::On { utilisation: 0.0 }
            }
            SwitchAction::Sleep(depth) => {
                models.on.remove(&server);
                models.slept.insert(server, depth);
                if let Some(pair) = models.machine(server).disk.pair() {
                    pair.suspend(now);
                }
                Draw::asleep(depth)
            }
        };
        models.energy.set(Moment(now), server, draw);
        // One that never slept comes from the deepest.
        let (deepest, _) = models.ways.last_key_value().expect("there is a depth of sleep");
        let Way { up, down } = models.ways[models.slept.get(&server).unwrap_or(deepest)];
        let free = world.server(server).switch_free().max(now);
        let (at, until) = match action {
            SwitchAction::Wake { .. } => (free + up.as_nanos() as u64, free + up.as_nanos() as u64),
            SwitchAction::Sleep(_) => (free, free + down.as_nanos() as u64),
        };
        world.server(server).throw_switch(until);
        if action.is_wake() && world.models().machine(server).disk.pair().is_some() {
            world.its_at(at, Later::Resume { server });
        }
        world.at(at, Happening::Switch { member, life, server, action, stormy: false });
    }

    fn recovered(&self, server: ServerId, _found: Recovered) -> Recovered {
        self.machines[&server].store.recovered()
    }

    fn queued(&self, server: ServerId) -> usize {
        self.machines[&server].queued() as usize
    }

    /// Own columns are not modelled.
    fn figures(&self, server: ServerId) -> Option<(u64, u64, u64)> {
        let store = &self.machines[&server].store;
        Some((store.used_bytes(), 0, store.offload_bytes()))
    }
}

impl<'a> World<'a> {
    /// The models of time.
    pub fn models(&mut self) -> &mut Models<'a> {
        &mut self.harness
    }

    /// Starts every access that the disk can take.
    pub(super) fn pump_disk(&mut self, server: ServerId) {
        let (now, life) = (self.now, self.servers[&server].life);
        while let Some((job, done)) = self.models().machine(server).start(now) {
            if let Some(done) = done {
                self.its_at(done, Later::DiskDone { server, life, job });
            }
        }
        let machine = self.models().machine(server);
        if let Some(at) = machine.next_look(now) {
            let later = match machine.disk.pair() {
                None => Later::DiskFree { server, life },
                Some(_) => Later::Mirror { server },
            };
            self.its_at(at, later);
        }
    }

    /// A server has power: its mirror, if it has one, begins or continues.
    pub fn resume_mirror(&mut self, server: ServerId) {
        let now = self.now;
        if let Some(pair) = self.models().machine(server).disk.pair() {
            pair.resume(now);
            self.pump_disk(server);
        }
    }

    /// Lets a server's mirror do what is due, unless that has become due at another time.
    fn step_mirror(&mut self, server: ServerId) {
        let now = self.now;
        let machine = self.models().machine(server);
        if machine.wake_at != now {
            return;
        }
        machine.wake_at = 0;
        let pair = machine.disk.pair().expect("only a mirror asked for it");
        let jobs = pair.step(now);
        self.jobs_done(server, &jobs);
    }

    fn jobs_done(&mut self, server: ServerId, jobs: &[u32]) {
        let now = self.now;
        let mut ended = Vec::new();
        for job in jobs {
            self.models().machine(server).end(now, *job, &mut ended);
        }
        self.pump_disk(server);
        for (token, outcome) in ended {
            self.stored(server, token, outcome);
        }
        let machine = self.models().machine(server);
        if machine.is_idle() {
            for token in std::mem::take(&mut machine.flushing) {
                self.task_done(server, token);
            }
        }
    }

    fn task_done(&mut self, server: ServerId, token: StoreToken) {
        let life = self.servers[&server].life;
        self.its_after(0, Later::TaskDone { server, life, token });
    }
}
