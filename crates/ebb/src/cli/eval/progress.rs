//! How far a campaign is, in a file beside its results, for others to watch: `results.sqlite.progress`, lines of JSON.
//!
//! `ebb lab eval run` writes it, wherever it was started, and holds its lock: the campaign of an unlocked file has
//! ended. A file that has grown too large is replaced by an empty one, so a follower tells files apart by their inodes.
//! A line that cannot be written is missing to those who look on; the results are complete without it.

use crate::daemon::clock::unix_millis;
use crate::error::{NodeError, io};
use ebb_eval::{Progress, Watched};
use serde::{Deserialize, Serialize};
use std::fs::{File, TryLockError};
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Between two lines about the same run.
const PAUSE: Duration = Duration::from_millis(500);
/// About two hours of lines.
const FILE_MOST: u64 = 8 << 20;

/// A line.
#[derive(Serialize, Deserialize)]
pub struct Told {
    pub campaign: String,
    /// The process that runs it.
    pub process: u32,
    pub at_unix_millis: u64,
    /// Runs that have a result.
    pub done: u64,
    pub failed: u64,
    pub total: u64,
    /// The run in progress.
    pub present: String,
    pub seconds_left: f64,
    pub live: Option<Watched>,
}

impl Told {
    fn of(campaign: &str, progress: &Progress) -> Told {
        Told {
            campaign: campaign.to_owned(),
            process: std::process::id(),
            at_unix_millis: unix_millis(),
            done: progress.done,
            failed: progress.failed,
            total: progress.total,
            present: progress.present.clone(),
            seconds_left: progress.left.as_secs_f64(),
            live: progress.live.clone(),
        }
    }
}

pub fn path(db: &Path) -> PathBuf {
    with_end(db, ".progress")
}

/// Nothing of the name is replaced, so it is never the name of the results.
fn with_end(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    name.into()
}

/// Writes lines, not more often than somebody watches: what is new at once, the same run again after a pause.
pub struct Writer {
    campaign: String,
    path: PathBuf,
    file: File,
    bytes: u64,
    /// When, of which run, and whether it was seen in progress.
    last: Option<(Instant, String, bool)>,
}

impl Writer {
    /// For the only program that runs on `db`.
    pub fn create(db: &Path, campaign: &str) -> Result<Writer, NodeError> {
        let path = path(db);
        let file = empty(&path).map_err(io("write", &path))?;
        Ok(Writer { campaign: campaign.to_owned(), path, file, bytes: 0, last: None })
    }

    pub fn tell(&mut self, progress: &Progress) {
        let goes_on = progress.live.is_some();
        let due = |(at, present, went_on): &(Instant, String, bool)| {
            at.elapsed() >= PAUSE || *present != progress.present || (goes_on && !went_on)
        };
        if self.last.as_ref().is_none_or(due) {
            self.last = Some((Instant::now(), progress.present.clone(), goes_on));
            let told = Told::of(&self.campaign, progress);
            let line = serde_json::to_string(&told).expect("plain data can be written as JSON") + "\n";
            // See above.
            let _ = self.write(&line);
        }
    }

    fn write(&mut self, line: &str) -> std::io::Result<()> {
        if self.bytes + line.len() as u64 > FILE_MOST {
            (self.file, self.bytes) = (empty(&self.path)?, 0);
        }
        self.file.write_all(line.as_bytes())?;
        self.bytes += line.len() as u64;
        Ok(())
    }
}

/// A locked, empty file in the place of the one that may be there.
fn empty(path: &Path) -> std::io::Result<File> {
    let new = with_end(path, ".new");
    let file = File::create(&new)?;
    file.lock()?;
    std::fs::rename(&new, path)?;
    Ok(file)
}

/// Reads a file that may still be written.
#[derive(Default)]
pub struct Follower {
    file: Option<BufReader<File>>,
    /// What there is of the last line.
    begun: String,
}

impl Follower {
    /// Hands out the lines that are new, and returns whether a campaign runs.
    pub fn look(&mut self, path: &Path, hear: &mut impl FnMut(Told)) -> std::io::Result<bool> {
        self.read(hear)?;
        let found = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            found => found?,
        };
        let runs = match found.try_lock_shared() {
            Ok(()) => false,
            Err(TryLockError::WouldBlock) => true,
            Err(TryLockError::Error(error)) => return Err(error),
        };
        let known = self.file.as_ref().map(|file| file.get_ref().metadata()).transpose()?;
        let present = found.metadata()?.ino();
        if known.is_none_or(|known| known.ino() != present) {
            (self.file, self.begun) = (Some(BufReader::new(found)), String::new());
            self.read(hear)?;
        }
        Ok(runs)
    }

    fn read(&mut self, hear: &mut impl FnMut(Told)) -> std::io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        while file.take(FILE_MOST).read_line(&mut self.begun)? > 0 && self.begun.ends_with('\n') {
            let told = serde_json::from_str(&self.begun);
            self.begun.clear();
            hear(told.map_err(|error| Error::new(ErrorKind::InvalidData, error))?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(done: u64) -> Progress {
        Progress { done, total: 9, present: format!("run {done}"), ..Progress::default() }
    }

    /// What is new, and whether the campaign runs.
    fn look(follower: &mut Follower, db: &Path) -> (Vec<u64>, bool) {
        let mut heard = Vec::new();
        let runs = follower.look(&path(db), &mut |told| heard.push(told.done)).unwrap();
        (heard, runs)
    }

    #[test]
    fn a_follower_hears_every_line_once_and_whether_the_campaign_runs() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("r.progress");
        let mut follower = Follower::default();
        assert_eq!(look(&mut follower, &db), (vec![], false), "there is none yet");
        let mut writer = Writer::create(&db, "c").unwrap();
        assert!(!db.exists(), "it is not the results");
        assert_eq!(look(&mut follower, &db), (vec![], true));
        writer.tell(&progress(1));
        writer.tell(&progress(2));
        assert_eq!(look(&mut follower, &db), (vec![1, 2], true));
        assert_eq!(look(&mut follower, &db), (vec![], true));
        assert_eq!(look(&mut Follower::default(), &db), (vec![1, 2], true), "who comes later hears all");
        // The next file begins before the last line of this one was read.
        writer.tell(&progress(3));
        writer.bytes = FILE_MOST;
        writer.tell(&progress(4));
        assert_eq!(look(&mut follower, &db), (vec![3, 4], true));
        writer.tell(&progress(5));
        drop(writer);
        assert_eq!(look(&mut follower, &db), (vec![5], false));
    }

    #[test]
    fn a_line_that_is_being_written_is_heard_once_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let db = dir.path().join("r");
        let mut writer = Writer::create(&db, "c").unwrap();
        let line = serde_json::to_string(&Told::of("c", &progress(7))).unwrap() + "\n";
        let (begun, rest) = line.split_at(20);
        let mut follower = Follower::default();
        writer.write(begun).unwrap();
        assert_eq!(look(&mut follower, &db), (vec![], true));
        writer.write(rest).unwrap();
        assert_eq!(look(&mut follower, &db), (vec![7], true));
        writer.write("no line of ours\n").unwrap();
        writer.tell(&progress(8));
        assert!(follower.look(&path(&db), &mut |_| ()).is_err(), "it is named");
        assert_eq!(look(&mut follower, &db), (vec![8], true), "and left out");
    }
}
