//! Which fault strikes when, and what of the world's own mechanics goes wrong while they do.

use crate::search::harness::{Event, Search, World};
use crate::search::scenario::Fault;
use crate::world::happening::Message;
use crate::world::net::Node;
use crate::world::{Core, Disturb};
use ebb_meta::SwitchAction;
use ebb_types::{AdminRequest, ServerId};

/// Starts per mille that crash.
const CRASHES_AT_START: u64 = 80;
/// Per mille of the machines that cannot put themselves to sleep.
const CANNOT: u64 = 100;

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
        let fault = self.harness.plan.faults.draw(&mut self.fault_random);
        let servers: Vec<ServerId> = self.servers.values().filter(|s| !s.lost).map(|s| s.id).collect();
        let id = *self.fault_random.pick(&servers).expect("not all are lost");
        if self.harness.plan.faults.of(Fault::Forget) > 0 && self.fault_random.chance(400) {
            let copy = self.servers[&id].store.disk.copy();
            self.harness.mishaps.backups.insert(id, copy);
        }
        let is_thin = self.rebuilds();
        if is_thin && !(is_harmless(fault) || fault == Fault::Crash && !self.needs_memory()) {
            return;
        }
        if is_thin {
            self.count("fault during a rebuild");
        }
        self.strike(fault, id);
    }

    fn strike(&mut self, fault: Fault, id: ServerId) {
        match fault {
            Fault::Crash => self.crash_for_a_while(self.busy_or(id)),
            Fault::Pause => self.pause_for_a_while(id),
            Fault::Member => self.disturb_member(),
            Fault::Cut => self.partition(id),
            Fault::Reset => self.reset_connection(id),
            Fault::Slow => self.slow_down(id),
            Fault::Poison => self.poison(id),
            Fault::Full => self.fill_up(id),
            Fault::Rot => self.rot(id),
            Fault::Gear => self.shift_gear(),
            Fault::Lost => self.lose(id),
            Fault::Rack => self.crash_rack(id),
            Fault::Forget => self.forget(id),
            Fault::Storm => self.storm(),
            Fault::Power => self.cut_power(),
            Fault::Log => self.disturb_log(),
            Fault::Exchange => self.exchange(id),
            Fault::Burst => self.burst(),
            Fault::PowerTest => {
                self.count("power test");
                self.ask_power(id, AdminRequest::PowerTest { server: id });
            }
            Fault::Maintenance => self.maintain(id),
            Fault::Suspend => self.suspend(id),
            Fault::LoseAsleep => self.lose_asleep(),
            Fault::Outage => self.outage(),
            Fault::Reboot => self.reboot(id),
            Fault::Hang => self.hang(id),
            Fault::Split => self.split(),
            Fault::Ruin => self.ruin(),
            Fault::FillAll => self.fill_all(),
            Fault::Grow => self.grow(),
            Fault::HangLog => self.hang_log(),
            Fault::Mute => self.mute(id),
            Fault::FullQueue => self.fill_queue(),
            Fault::Overload => self.overload_disks(),
            Fault::Ambush => self.ambush_leader(),
            Fault::DeafInPart => self.deafen_in_part(),
            Fault::CutOff => self.cut_off_client(),
            Fault::Roster => self.change_roster(id),
        }
    }
}

/// It destroys nothing: it may strike while the last copy is copied.
fn is_harmless(fault: Fault) -> bool {
    use Fault::*;
    matches!(fault, Pause | Member | Cut | Reset | Slow | Gear | Storm | CutOff | Suspend | Split | Grow)
        || matches!(fault, HangLog | Mute | FullQueue | Overload | Ambush | DeafInPart | Roster)
}
