//! When this server asks for scrubs of its replicas, and, as primary, begins one page after another. A column of an
//! erasure-coded set has no primary: its own server scrubs it.

use super::{Replica, SCRUB_UNDER_LOAD};
use crate::coded::CodedSet;
use crate::common::api::Command;
use crate::replicated::group::Group;
use bytes::Bytes;
use ebb_types::{GroupEntry, GroupId, LoadCount, Moment, PeerMessage, SlotState};

impl Replica {
    /// Finds the replicas that are due for a scrub, and whether this is a quiet time.
    pub(super) fn on_beat(&mut self, unix_seconds: u64, out: &mut Vec<Command>) {
        // The beat after the last page says that nothing is wanted any more.
        let is_off = self.scrubber.is_off() && self.shared.stats.scrub.asked == 0;
        if is_off || self.draining || !self.is_registered() {
            return;
        }
        let me = self.config.me;
        let replica = |(id, group): (&GroupId, &Group)| {
            group.entry().slot_of(me).map(|slot| (*id, slot.state == SlotState::InSync))
        };
        let LoadCount { reads, writes, .. } = self.shared.stats.load;
        let columns = self.coded.sets.values().filter_map(|set| set.scrubs(me, &self.map));
        let replicas = self.groups.iter().filter_map(replica).chain(columns);
        self.scrubber.beat(unix_seconds, reads + writes, replicas);
        let rate = self.config.scrub_bytes_per_second;
        self.shared.scrubs.rate = if self.scrubber.quiet { rate } else { rate / SCRUB_UNDER_LOAD };
        self.shared.stats.scrub = self.scrubber.vitals(self.shared.stats.scrub);
        if let Some(marks) = self.scrubber.take_changed() {
            out.push(Command::KeepScrubs { marks });
        }
        self.ask_for_scrub(out);
    }

    /// Asks the primary of the most overdue replica to compare its next page.
    fn ask_for_scrub(&mut self, out: &mut Vec<Command>) {
        // None is due.
        let Some((id, wanted)) = self.scrubber.ask() else { return };
        if id.column().is_some() {
            self.shared.scrubs.want(id, wanted);
            return;
        }
        let Some(GroupEntry { epoch, primary: Some(to), .. }) = self.groups.get(&id).map(Group::entry) else {
            return;
        };
        if *to == self.config.me {
            self.shared.scrubs.want(id, wanted);
            return;
        }
        let message =
            PeerMessage::Scrub { group: id, epoch: *epoch, after: wanted.after, overdue: wanted.overdue };
        out.push(Command::Send { to: *to, message, payload: Bytes::new() });
    }

    /// Records scrub results for replicas here and, as primary, begins the next page if none is in progress.
    pub(super) fn go_on_scrubbing(&mut self, now: Moment, out: &mut Vec<Command>) {
        loop {
            let found = self.shared.scrubs.take_found();
            if !found.is_empty() {
                for page in found {
                    self.scrubber.advance(page);
                }
                self.ask_for_scrub(out);
            }
            let busy = |id: &GroupId| match id.column() {
                Some((set, _)) => self.coded.sets.get(&set).is_some_and(CodedSet::is_scrubbing),
                None => self.groups.get(id).is_some_and(|g| g.is_scrubbing()),
            };
            self.scrubbing = self.scrubbing.filter(busy);
            let quiet = self.scrubber.quiet;
            // One at a time, and while clients are served only what is overdue.
            let (None, Some((id, wanted))) = (self.scrubbing, self.shared.scrubs.next(quiet)) else { return };
            self.shared.scrubs.begin(id);
            self.scrubbing = Some(id);
            match id.column() {
                Some((set, _)) => self.with_set(now, set, out, |set, cx| set.begin_scrub(cx, wanted.after)),
                None => self.with_group(now, id, out, |group, cx| group.begin_scrub(cx, wanted.after)),
            }
        }
    }
}
