//! R10: a full disk gives a clear error and drops no write: a client gets a no-space error only when a server is full,
//! and a refused write never takes effect (the linearizability check treats it as never sent).

use crate::engine::SECOND;
use crate::search::harness::World;

/// How long a server may be considered full after it was.
const REMEMBERED: u64 = 20 * SECOND;

impl World<'_> {
    pub fn r10_a_server_is_full(&mut self, op: usize) {
        let full = self.servers.values().any(|s| s.is_full());
        let was_full = self.harness.invariants.full_at.is_some_and(|at| self.now - at < REMEMBERED);
        if !full && !was_full {
            self.fail("R10", format!("op {op} was refused for lack of space, and no server is full"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::stories::{broken, cluster, secondary};

    #[test]
    fn a_refusal_while_no_server_is_full_is_seen() {
        let mut world = cluster();
        let id = secondary(&world);
        world.server(id).fill_up();
        world.r10_a_server_is_full(0);
        assert_eq!(broken(&mut world), None);
        world.heal_disk(id);
        world.r10_a_server_is_full(0);
        assert_eq!(broken(&mut world), None, "it was full a moment ago");
        world.now += REMEMBERED;
        world.r10_a_server_is_full(0);
        assert_eq!(broken(&mut world), Some("R10"));
    }
}
