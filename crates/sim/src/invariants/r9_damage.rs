//! R9: a store that failed a sync serves nothing any more. [DESIGN, R9]

use crate::world::World;
use ebb_types::{ClientReply, ServerId};

impl World<'_> {
    pub(super) fn r9_poisoned_is_silent(&mut self, from: ServerId, reply: &ClientReply) {
        let poisoned = self.servers[&from].replica.stats().poisoned;
        if poisoned && matches!(reply, ClientReply::Data) {
            self.fail("R9", format!("{from} answers a read from a store that failed a sync"));
        }
    }
}
