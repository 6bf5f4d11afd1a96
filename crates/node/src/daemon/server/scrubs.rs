//! What a server remembers of its scrubs over a restart: one JSON file beside the store, written again at most once per heartbeat
//! while something is scrubbed. It is not synced, and whatever is wrong with it is no reason to stop: without it
//! replicas are read again sooner or later than they must be, and nothing is lost.

use ebb_types::ScrubMark;
use std::path::PathBuf;

pub struct Scrubs {
    path: PathBuf,
}

impl Scrubs {
    pub fn new(path: PathBuf) -> Scrubs {
        Scrubs { path }
    }

    pub fn load(&self) -> Vec<ScrubMark> {
        let Ok(text) = std::fs::read(&self.path) else { return Vec::new() };
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::warn!("{}: {error}; scrubs begin again", self.path.display());
            Vec::new()
        })
    }

    pub fn keep(&self, marks: &[ScrubMark]) {
        let new = self.path.with_extension("new");
        let text = serde_json::to_vec(marks).map_err(std::io::Error::other);
        let kept =
            text.and_then(|text| std::fs::write(&new, text)).and_then(|()| std::fs::rename(&new, &self.path));
        if let Err(error) = kept {
            tracing::warn!("{}: {error}; after a restart scrubs begin again", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{ChunkId, Cursor, GroupId, ObjectId};

    #[test]
    fn what_was_kept_is_there_after_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("scrubs.json");
        assert!(Scrubs::new(path.clone()).load().is_empty());
        let after = Some(Cursor { chunk: ChunkId { object: ObjectId(u64::MAX), index: 3 }, block: 255 });
        let mark =
            ScrubMark { group: GroupId(7), sound_at: 1_700_000_000, after, sound_so_far: false, sound: true };
        Scrubs::new(path.clone()).keep(&[mark]);
        assert_eq!(Scrubs::new(path.clone()).load(), [mark]);
        std::fs::write(&path, "torn").unwrap();
        assert!(Scrubs::new(path).load().is_empty());
    }
}
