//! How long things take in the search: random delays of disks and switches, over stores that keep bytes. What the
//! network does is up to the world's settings.

use crate::engine::{MILLI, SECOND};
use crate::search::harness::{Search, World};
use crate::world::Delays;
use crate::world::happening::Happening;
use crate::world::server::record_of;
use ebb_chunkserver::{StoreCommand, StoreToken};
use ebb_meta::SwitchAction;
use ebb_store::Op;
use ebb_types::{ServerId, StoreTask};

/// The longest that a disk takes, and that a switch takes unless it comes late.
const DISK_MAX: u64 = 4 * SECOND;
const SWITCH_MAX: u64 = 20 * SECOND;

impl<'a> Delays for Search<'a> {
    fn submit(world: &mut World<'a>, server: ServerId, token: StoreToken, command: StoreCommand) {
        let (first, second) = (world.disk_delay(server), world.disk_delay(server));
        let life = world.server(server).life;
        let Some((_, payload)) = record_of(&command) else {
            return world.after(first, Happening::Answer { server, life, token, command });
        };
        let (bytes, page) = (payload.len(), world.settings.page);
        let id = world.server(server).write(token, Op::asked(command, page), bytes);
        let heard = world.disk_random.below(first);
        world.after(first + second, Happening::Effect { server, life, id });
        world.after(first + second + heard, Happening::Complete { server, life, id });
    }

    fn give_task(world: &mut World<'a>, server: ServerId, token: StoreToken, task: StoreTask) {
        let life = world.server(server).life;
        // No work for the disk.
        let is_light = matches!(task, StoreTask::ForgetTombstones { .. });
        let delay = if is_light { MILLI } else { world.disk_delay(server) };
        let happening = match task {
            StoreTask::Drop { .. } | StoreTask::ForgetTombstones { .. } => {
                let id = world.server(server).store.submit(token, task.into());
                Happening::Complete { server, life, id }
            }
            StoreTask::Remember(_) | StoreTask::Flush => Happening::Task { server, life, token, task },
        };
        world.after(delay, happening);
    }

    fn throw_switch(
        world: &mut World<'a>,
        (member, life): (u64, u64),
        server: ServerId,
        action: SwitchAction,
    ) {
        let limit = world.settings.timing.wake_limit.as_nanos() as u64;
        let until = if action.is_wake() { 0 } else { world.now + limit };
        world.member(member).waits.insert(server, until);
        // Stopping is immediate, starting takes time.
        let delay = match action {
            SwitchAction::Sleep(_) => world.fault_random.between(0, 2 * MILLI),
            SwitchAction::Wake { .. } => {
                let longest = if world.harness.prompt { limit } else { SWITCH_MAX };
                world.fault_random.delay(world.harness.plan.switch).min(longest)
            }
        };
        if delay > limit {
            world.count("wake that comes late");
        }
        // A switch performs one action after another.
        let at = world.now.max(world.server(server).switch_free()) + delay;
        world.server(server).throw_switch(at);
        let stormy = world.stormy;
        world.at(at, Happening::Switch { member, life, server, action, stormy });
    }

    fn started(world: &mut World<'a>, server: ServerId) {
        world.store_was_used(server);
    }
}

impl World<'_> {
    fn disk_delay(&mut self, id: ServerId) -> u64 {
        let slowness = self.server(id).slowness;
        (self.disk_random.delay(self.harness.plan.disk) * slowness).min(DISK_MAX)
    }
}
