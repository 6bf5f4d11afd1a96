//! Wake insurance: which servers may be put to sleep, by what is known of their switches, and the exam after every
//! wake-up.
//!
//! - A server without a proven wake path is not put to sleep. A path is proven when it has woken the server, alone,
//!   from a sleep in which it was silent; it is no longer when it fails to. `process` needs no proof: both ends are on
//!   this machine.
//! - **The set that R8 relies on.** When a chunk group is left with one awake copy, its other copies are what R8 wakes
//!   when that one is lost. One of them must be on a server with two proven paths, or the group keeps a second copy
//!   awake. So no single BMC, cable or relay stands between a loss and its rescue, and a cluster of machines with one
//!   path each still sleeps down to two copies of three. A set of an erasure-coded pool needs no such rule: it bears
//!   the absence of as many servers as it has parity.
//! - A server that has woken is examined; one that does not pass stays awake until it does. One that sleeps for long is
//!   woken for it, one at a time and while nothing else happens: fans, clocks' batteries and cables fail unseen.

use crate::controller::by_server::ByServer;
use crate::controller::leading::Leading;
use crate::controller::power::Power;
use crate::controller::servers::{Servers, is_gone};
use crate::{PowerFact, State, WakePath};
use ebb_types::{
    ExamReport, Incarnation, Moment, PathStatus, PowerStatus, ServerEntry, ServerId, ServerState,
};
use std::collections::BTreeSet;
use std::time::Duration;

impl Power {
    /// Whether a server may be put to sleep at all, whatever the load.
    pub fn may_sleep(&self, server: ServerId, state: &State) -> bool {
        self.kept_awake(server, state).is_none()
    }

    /// Why a server is not put to sleep, whatever the load, and the remedy.
    pub fn kept_awake(&self, server: ServerId, state: &State) -> Option<String> {
        let record = state.power(server);
        if self.paths(server).is_empty() {
            return Some("it has no power switch; configure one".into());
        }
        if state.in_maintenance(server) {
            return Some(format!("it is in maintenance; `ebb maintenance {server} --end` ends that"));
        }
        if !self.paths(server).iter().any(|path| self.is_proven(server, path, state)) {
            return Some(format!("no way to wake it has proved to work; run `ebb power test {server}`"));
        }
        let faults = record.and_then(|r| r.exam.as_ref()).map(|exam| &exam.faults);
        faults.filter(|faults| !faults.is_empty()).map(|faults| {
            format!("it did not pass its exam: {}; it is examined again every minute", faults.join("; "))
        })
    }

    /// Whether a loss may be left to this server's waking.
    fn is_reliable(&self, server: ServerId, state: &State) -> bool {
        let paths = self.paths(server);
        let proven = paths.iter().filter(|path| self.is_proven(server, path, state)).count();
        paths.iter().any(|path| path.reliable) || proven > 1
    }

    /// Servers to keep awake because a chunk group with one awake copy has no reliable sleeper: the lowest slot of
    /// each, so that different groups agree on a gear group.
    pub fn insured(
        &self,
        state: &State,
        servers: &Servers,
        wanted: &BTreeSet<ServerId>,
    ) -> BTreeSet<ServerId> {
        let mut insured = BTreeSet::new();
        let reliable = ByServer::those(servers, |e| self.is_reliable(e.id, state));
        if servers.keys().all(|id| reliable.has(*id) || wanted.contains(id)) {
            return insured;
        }
        let there = ByServer::those(servers, |e| !is_gone(e));
        for (_, entry) in state.groups() {
            let slots = || entry.copies().iter().map(|s| s.server).filter(|id| there.has(*id));
            let stays = |id: &ServerId| wanted.contains(id) || insured.contains(id);
            let awake = slots().filter(stays).count();
            if awake < 2 && !slots().any(|id| !stays(&id) && reliable.has(id)) {
                let kept: Vec<ServerId> = slots().filter(|id| !stays(id)).take(2 - awake).collect();
                insured.extend(kept);
            }
        }
        insured
    }
}

impl Leading {
    /// The long sleeper that is to be woken for an exam now: the one whose last exam is longest ago. `emergency`:
    /// copies are missing.
    pub(crate) fn examinee(&self, now: Moment, emergency: bool, state: &State) -> Option<ServerId> {
        let before = &self.wants;
        let awaits_exam = |e: &ServerEntry| {
            e.state == ServerState::Waking || e.state.is_live() && self.power.is_to_be_examined(e.id)
        };
        let comes = |e: &&ServerEntry| before.examinee == Some(e.id) && awaits_exam(e);
        if let Some(entry) = state.servers().find(comes) {
            return Some(entry.id);
        }
        // The one before sleeps again first.
        let moves = |e: &ServerEntry| match e.state {
            ServerState::Waking | ServerState::Draining => true,
            ServerState::Awake => !before.awake.contains(&e.id),
            _ => false,
        };
        let calm = !emergency && self.gears.shift.is_none() && before.examinee.is_none();
        let quiet = calm && !state.servers().any(moves);
        let unix_now = self.term.unix_now(now);
        let due = |e: &&ServerEntry| self.exam_due_at(e, state).is_some_and(|at| at <= unix_now);
        let last =
            |e: &&ServerEntry| state.power(e.id).and_then(|r| r.exam.as_ref()).map(|x| x.at_unix_millis);
        state.servers().filter(|e| quiet && due(e)).min_by_key(last).map(|e| e.id)
    }

    /// Unix time in milliseconds at which a sleeper is due for an exam.
    pub(crate) fn exam_due_at(&self, entry: &ServerEntry, state: &State) -> Option<u64> {
        let record = state.power(entry.id)?;
        let sleeps = entry.state == ServerState::Asleep && record.maintenance.is_none();
        let after = self.term.timing.exam_after?.as_millis() as u64;
        record.exam.as_ref().filter(|_| sleeps).map(|exam| exam.at_unix_millis.saturating_add(after))
    }

    pub(crate) fn exam(
        &mut self,
        now: Moment,
        server: ServerId,
        run: Incarnation,
        exam: &ExamReport,
        state: &State,
    ) {
        let present = state.server(server).is_some_and(|e| e.incarnation == run && e.state.is_live());
        if !present || !self.power.take_exam(now, server) {
            return;
        }
        let faults = faults(exam, self.term.unix_now(now), self.term.timing.skew_limit);
        let known = state.power(server).and_then(|record| record.exam.as_ref());
        // A repeated exam with the same result changes nothing.
        if faults.is_empty() || known.is_none_or(|exam| exam.faults != faults) {
            self.power.note(server, PowerFact::Examined { faults });
        }
        self.dirty = true;
    }

    /// Why it is not put to sleep whatever the load.
    fn stays_awake(&self, server: ServerId, state: &State) -> Option<String> {
        let insured = || self.wants.insured.contains(&server).then(|| relied_on(server));
        self.power.kept_awake(server, state).or_else(insured)
    }

    pub(crate) fn power_status(&self, now: Moment, entry: &ServerEntry, state: &State) -> PowerStatus {
        let record = state.power(entry.id);
        let path = |path: &WakePath| {
            let known = record.and_then(|r| r.paths.get(&path.name)).cloned().unwrap_or_default();
            PathStatus {
                name: path.name.clone(),
                proven: self.power.is_proven(entry.id, path, state),
                success: known.success,
                failure: known.failure,
            }
        };
        PowerStatus {
            paths: self.power.paths(entry.id).iter().map(path).collect(),
            kept_awake: self.stays_awake(entry.id, state),
            cycles: record.map_or(0, |r| r.cycles),
            cycles_saved: self.gears.saved_cycles(now, entry.id),
            exam: record.and_then(|r| r.exam.clone()),
            maintenance_unix_millis: record.and_then(|r| r.maintenance),
            may_be_stopped: self.may_be_stopped(entry, state),
            test: self.test_status(entry.id),
        }
    }

    /// For the plan: servers that stay awake for it, with the reason.
    pub(crate) fn kept_notes(&self, state: &State) -> Vec<String> {
        if !self.power.has_switches() {
            return Vec::new();
        }
        let why = |e: &ServerEntry| {
            let why = self.stays_awake(e.id, state)?;
            Some(format!("{} is not put to sleep: {why}", e.id))
        };
        state.servers().filter(|e| e.state != ServerState::Lost).filter_map(why).collect()
    }
}

/// Why a server is in the set that R8 relies on.
pub(crate) fn relied_on(server: ServerId) -> String {
    format!(
        "the other copies of a chunk group rely on its single wake path; give it a second one and run `ebb power test {server}`"
    )
}

/// What is wrong with a server by its exam, at this time of day by the leader's clock.
fn faults(exam: &ExamReport, unix_millis: u64, limit: Duration) -> Vec<String> {
    let skew = exam.unix_millis.abs_diff(unix_millis);
    let clock = (u128::from(skew) > limit.as_millis()).then(|| {
        let which = if exam.unix_millis > unix_millis { "ahead of" } else { "behind" };
        format!("its clock is {} s {which} the metadata leader's: set the time of both by NTP", skew / 1000)
    });
    let store =
        (!exam.writable).then(|| "its store takes no writes: look at its log and its disks".to_owned());
    let card = (exam.wake_on_lan == Some(false)).then(|| {
        "its network card does not wake on a magic packet any more: `ethtool -s DEVICE wol g`".to_owned()
    });
    [clock, store, card].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exam_names_what_is_wrong_and_the_remedy() {
        let exam = |unix_millis, writable, wake_on_lan| ExamReport { unix_millis, writable, wake_on_lan };
        let limit = Duration::from_secs(60);
        let now = 1_700_000_000_000;
        assert_eq!(faults(&exam(now + 59_000, true, Some(true)), now, limit), Vec::<String>::new());
        assert_eq!(faults(&exam(now - 60_000, true, None), now, limit), Vec::<String>::new());
        let wrong = faults(&exam(now + 7_200_000, false, Some(false)), now, limit);
        let says = |nth: usize, text: &str| wrong[nth].contains(text);
        assert!(
            wrong.len() == 3 && says(0, "7200 s ahead") && says(1, "store") && says(2, "wol g"),
            "{wrong:?}"
        );
        assert!(faults(&exam(0, true, None), now, limit)[0].contains("behind"), "a flat clock battery");
    }
}
