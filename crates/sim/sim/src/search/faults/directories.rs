//! Directories that are damaged, emptied, older than they were, or another server's (R11).

use super::TRIES;
use super::disks::gone_unnoticed;
use crate::engine::{MILLI, SECOND};
use crate::search::harm::Harm;
use crate::search::harness::World;
use crate::world::happening::Happening;
use crate::world::store::Found;
use ebb_store::mem::MemDisk;
use ebb_types::{Incarnation, ServerId, StoreId};

impl World<'_> {
    /// The server's directory after a power cut with one file damaged; and whether the metadata service will recognise
    /// that it is not the original.
    fn broken_directory(&mut self, id: ServerId, on_record: u64) -> Option<(MemDisk, bool)> {
        for _ in 0..TRIES {
            let store = &self.servers[&id].store;
            let disk = store.disk.crash(self.fault_random.next());
            let before = store.find(&disk)?;
            let harm = Harm::draw(&mut self.fault_random, &disk)?;
            harm.happen(&disk);
            let after = store.find(&disk);
            // Writes of the last moments before a crash are in the last segment only; their loss goes unnoticed.
            let unnoticed = |found: &Found| (on_record..before.mark.position).contains(&found.mark.position);
            if after.as_ref().is_some_and(unnoticed) {
                continue;
            }
            self.note(|| format!("{id} has damage in {harm}"));
            let Some(after) = after else { return Some((disk, true)) };
            if after.mark.position < on_record {
                return Some((disk, true));
            }
            if self.parity_is_in_memory(id) {
                continue;
            }
            if let Some(what) = gone_unnoticed(&before, &after) {
                self.fail("R9", format!("{id} does not notice the damage in {harm}: {what}"));
            }
            self.server(id).store.was_damaged(&after);
            return Some((disk, false));
        }
        None
    }

    /// R11: the server's directory is emptied, or an older copy of it is restored, and the server starts normally.
    pub(super) fn forget(&mut self, id: ServerId) {
        let Some(entry) = self.newest_state().server(id) else { return };
        let (known, on_record) = (entry.store, self.newest_state().position(id));
        if entry.incarnation == Incarnation(0) || !self.can_spare(&[id]) {
            return;
        }
        let (what, disk, noticed) = match self.fault_random.below(3) {
            0 => match self.broken_directory(id, on_record) {
                Some((disk, noticed)) => ("a file of its directory is damaged", disk, noticed),
                None => return,
            },
            _ => match self.older_directory(id, known, on_record) {
                Some(old) => ("an older copy of its directory is put back", old, true),
                None => ("its directory is emptied", MemDisk::new(), true),
            },
        };
        self.crash(id);
        self.note(|| format!("{id}: {what}"));
        self.count(what);
        self.harness.invariants.rot_seen |= !noticed;
        self.server(id).exchange_directory(disk, noticed.then_some(known));
        let down = self.fault_random.delay(400 * MILLI).min(12 * SECOND);
        self.after(down, Happening::Restart { server: id });
    }

    /// Two servers start on each other's directories. Each refuses the other's, and the operator empties both.
    pub(super) fn exchange(&mut self, id: ServerId) {
        let others: Vec<ServerId> = self.servers.keys().copied().filter(|other| *other != id).collect();
        let pair = [id, *self.fault_random.pick(&others).expect("there are two servers")];
        let state = self.newest_state();
        let known =
            pair.map(|id| state.server(id).filter(|e| e.incarnation > Incarnation(0)).map(|e| e.store));
        if known.contains(&None) || !self.can_spare(&pair) {
            return;
        }
        self.note(|| format!("the directories of {} and {} are exchanged", pair[0], pair[1]));
        self.count("directories exchanged");
        pair.iter().for_each(|id| self.crash(*id));
        let disks = pair.map(|id| self.servers[&id].store.disk.crash(self.fault_random.next()));
        for ((id, known), disk) in pair.into_iter().zip(known).zip(disks.into_iter().rev()) {
            self.server(id).exchange_directory(disk, known);
            let down = self.fault_random.delay(400 * MILLI).min(12 * SECOND);
            self.after(down, Happening::Restart { server: id });
        }
    }

    /// The operator's backup. A store that went back is recognised by its recorded position: a copy made since then is
    /// not older.
    fn older_directory(&mut self, id: ServerId, known: StoreId, on_record: u64) -> Option<MemDisk> {
        let old = self.harness.mishaps.backups.remove(&id)?.crash(self.fault_random.next());
        let mark = self.servers[&id].store.find(&old)?.mark;
        (mark.store == known && mark.position < on_record).then_some(old)
    }
}
