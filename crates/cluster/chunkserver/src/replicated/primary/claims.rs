//! The newest claims on objects, as the primary of a group knows them. (R16)

use ebb_types::{ChunkOp, Kind, ObjectId};
use std::collections::BTreeMap;

/// Whether a request's claim is the newest on its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    Present,
    Past,
    /// The store has to say which is.
    Unknown,
}

/// The newest claim on each object that is written under claims, as far as it was asked for in this epoch.
#[derive(Clone, Debug, Default)]
pub struct Claims(BTreeMap<ObjectId, u64>);

impl Claims {
    /// Judges a request's claim on the object, and takes note of one that is raised.
    pub fn judge(&mut self, op: &ChunkOp, claim: u64) -> Judged {
        let chunk = op.chunk();
        let Some(known) = self.0.get_mut(&chunk.object) else { return Judged::Unknown };
        // From now on, before it is durable: the namespace has it already.
        if chunk.is_of_claim() && op.kind() == Some(Kind::Data) && claim > *known {
            *known = claim;
        }
        if claim == *known { Judged::Present } else { Judged::Past }
    }

    /// The group's store has this block as the note of the newest claim on the object; empty: it has none.
    pub fn learn(&mut self, object: ObjectId, note: &[u8]) {
        let claim = note.first_chunk::<8>().map_or(0, |number| u64::from_le_bytes(*number));
        self.0.insert(object, claim);
    }
}
