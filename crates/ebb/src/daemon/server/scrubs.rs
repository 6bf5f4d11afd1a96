//! A server's scrub progress across restarts: one JSON file beside the store, rewritten at most once per heartbeat
//! while a scrub runs. An unreadable file does not stop the server: without it replicas are read
//! again sooner or later than necessary, and nothing is lost.

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
            tracing::warn!("{}: {error}; scrubs start over", self.path.display());
            Vec::new()
        })
    }

    pub fn keep(&self, marks: &[ScrubMark]) {
        let text = serde_json::to_vec(marks).map_err(std::io::Error::other);
        let kept = text.and_then(|text| ebb_files::replace_file(&self.path, &text, 0o600));
        if let Err(error) = kept {
            tracing::warn!("{}: {error}; scrubs will start over after a restart", self.path.display());
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
        let (group, sound_at, new_at) = (GroupId(7), 1_700_000_000, Some(1_700_000_900));
        let mark = ScrubMark { group, sound_at, new_at, after, sound_so_far: false, sound: true };
        Scrubs::new(path.clone()).keep(&[mark]);
        assert_eq!(Scrubs::new(path.clone()).load(), [mark]);
        // Of a former release, which did not note when a replica came.
        let old = std::fs::read_to_string(&path).unwrap().replace("\"new_at\":1700000900,", "");
        std::fs::write(&path, old).unwrap();
        assert_eq!(Scrubs::new(path.clone()).load(), [ScrubMark { new_at: None, ..mark }]);
        std::fs::write(&path, "torn").unwrap();
        assert!(Scrubs::new(path).load().is_empty());
    }
}
