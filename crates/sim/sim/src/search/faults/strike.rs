//! Which fault strikes when, and what of the world's own mechanics goes wrong while they do.

use crate::search::harness::{Event, Search, World};
use crate::world::happening::Message;
use crate::world::net::Node;
use crate::world::{Core, Disturb};
use ebb_meta::SwitchAction;
use ebb_types::{AdminRequest, ServerId};

/// Starts per mille that crash.
const CRASHES_AT_START: u64 = 80;
/// Per mille of the machines that cannot put themselves to sleep.
const CANNOT: u64 = 100;

/// Among the weights.
const CRASH: usize = 0;
/// Those that destroy nothing, by their places among the weights: they may strike while the last copy is copied.
const HARMLESS: [usize; 17] = [1, 2, 3, 4, 5, 9, 13, 18, 21, 26, 29, 30, 31, 32, 33, 34, 35];

impl<'a> Disturb for Search<'a> {
    fn configure(&self, core: Core) {
        (self.configure)(core);
    }

    fn comes_late(world: &mut World<'a>, from: Node, to: Node, message: Message) {
        world.read_late(from, to, message);
    }

    fn crashes_at_start(world: &mut World<'a>) -> bool {
        world.stormy && world.disk_random.chance(CRASHES_AT_START)
    }

    fn exam_is_wrong(world: &mut World<'a>) -> bool {
        world.stormy && world.fault_random.chance(world.harness.plan.exam_fails)
    }

    fn cannot_sleep(world: &mut World<'a>) -> bool {
        world.stormy && world.fault_random.chance(CANNOT)
    }

    fn wall_of(world: &mut World<'a>, was: Option<i64>) -> i64 {
        world.wall_of(was)
    }

    fn misthrow(
        world: &mut World<'a>,
        member: u64,
        action: (ServerId, SwitchAction),
        stormy: bool,
    ) -> Option<Result<(), String>> {
        world.misthrow(member, action, stormy)
    }

    fn member_acted(world: &mut World<'a>, member: u64) {
        world.spring_ambush(member);
    }
}

impl World<'_> {
    /// Injects one fault and schedules the next.
    pub fn next_fault(&mut self) {
        if !self.stormy {
            return;
        }
        let (random, happens) = self.harness.mishaps.faults.draw(self.settings.seed);
        self.fault_random = random;
        let gap = self.fault_random.between(self.harness.plan.fault_gap / 4, self.harness.plan.fault_gap * 2);
        self.its_after(gap, Event::Fault);
        if !happens {
            return;
        }
        let weights = self.harness.plan.faults.weights();
        let mut at = self.fault_random.below(weights.iter().sum());
        let kind = weights.iter().position(|w| {
            let found = at < *w;
            at = at.saturating_sub(*w);
            found
        });
        let servers: Vec<ServerId> = self.servers.values().filter(|s| !s.lost).map(|s| s.id).collect();
        let id = *self.fault_random.pick(&servers).expect("not all are lost");
        if self.harness.plan.faults.forget > 0 && self.fault_random.chance(400) {
            let copy = self.servers[&id].store.disk.copy();
            self.harness.mishaps.backups.insert(id, copy);
        }
        let kind = kind.expect("a weight is met");
        let is_thin = self.rebuilds();
        if is_thin && !(HARMLESS.contains(&kind) || kind == CRASH && !self.needs_memory()) {
            return;
        }
        if is_thin {
            self.count("fault during a rebuild");
        }
        self.strike(kind, id);
    }

    /// `kind`: its place among the weights.
    fn strike(&mut self, kind: usize, id: ServerId) {
        match kind {
            CRASH => self.crash_for_a_while(self.busy_or(id)),
            1 => self.pause_for_a_while(id),
            2 => self.disturb_member(),
            3 => self.partition(id),
            4 => self.reset_connection(id),
            5 => self.slow_down(id),
            6 => self.poison(id),
            7 => self.fill_up(id),
            8 => self.rot(id),
            9 => self.shift_gear(),
            10 => self.lose(id),
            11 => self.crash_rack(id),
            12 => self.forget(id),
            13 => self.storm(),
            14 => self.cut_power(),
            15 => self.disturb_log(),
            16 => self.exchange(id),
            17 => self.burst(),
            19 => {
                self.count("power test");
                self.ask_power(id, AdminRequest::PowerTest { server: id });
            }
            20 => self.maintain(id),
            21 => self.suspend(id),
            22 => self.lose_asleep(),
            23 => self.outage(),
            24 => self.reboot(id),
            25 => self.hang(id),
            26 => self.split(),
            27 => self.ruin(),
            28 => self.fill_all(),
            29 => self.grow(),
            30 => self.hang_log(),
            31 => self.mute(id),
            32 => self.fill_queue(),
            33 => self.overload_disks(),
            34 => self.ambush_leader(),
            35 => self.deafen_in_part(),
            _ => self.cut_off_client(),
        }
    }
}
