//! Writes whole files: configuration, keys, registries. After a crash or a power cut at any moment the path has its old
//! content or the new one, never a part of it and never nothing.
//!
//! The order is what keeps that: write beside the file, sync it, put it in place, sync the directory. Without the first
//! sync a name may survive whose content does not; without the second the caller believes a change that is lost.
//! `cargo xtask tidy` bans `fs::rename` elsewhere.

use rustix::fs::OFlags;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Puts `bytes` in the place of the file at `path`, or creates it, with the permission bits `mode`. Durable once it
/// returns. Writers of one path take turns.
pub fn replace_file(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    put(&mut Disk::beside(path), Place::Replace, bytes, mode)
}

/// Creates the file at `path`, whole; [`io::ErrorKind::AlreadyExists`] if there is one. Durable once it returns.
pub fn create_file(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    put(&mut Disk::beside(path), Place::Create, bytes, mode)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Replace,
    Create,
}

/// The steps, in a test on a disk that is cut off after any of them.
trait Steps {
    /// An empty file beside the path, which no other writer has.
    fn begin(&mut self, mode: u32) -> io::Result<()>;
    fn write(&mut self, bytes: &[u8]) -> io::Result<()>;
    fn sync(&mut self) -> io::Result<()>;
    fn place(&mut self, place: Place) -> io::Result<()>;
    fn sync_directory(&mut self) -> io::Result<()>;
    /// Removes what was begun.
    fn abandon(&mut self);
}

fn put(steps: &mut impl Steps, place: Place, bytes: &[u8], mode: u32) -> io::Result<()> {
    steps.begin(mode)?;
    let placed = steps.write(bytes).and_then(|()| steps.sync()).and_then(|()| steps.place(place));
    if placed.is_err() {
        steps.abandon();
    }
    placed.and_then(|()| steps.sync_directory())
}

struct Disk {
    path: PathBuf,
    fresh: PathBuf,
    file: Option<File>,
}

impl Disk {
    fn beside(path: &Path) -> Disk {
        let mut fresh = path.as_os_str().to_owned();
        fresh.push(".new");
        Disk { path: path.to_owned(), fresh: fresh.into(), file: None }
    }

    fn file(&self) -> &File {
        self.file.as_ref().expect("the file was begun")
    }
}

impl Steps for Disk {
    fn begin(&mut self, mode: u32) -> io::Result<()> {
        // A file that a crash left over is used again: there is never more than one. No link is followed.
        let flags = OFlags::NOFOLLOW.bits() as i32;
        loop {
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(false).mode(mode).custom_flags(flags);
            let file = options.open(&self.fresh)?;
            file.lock()?;
            // The last holder of the lock may have put this file in place: then it is no longer ours to write.
            let is_still_here = fs::symlink_metadata(&self.fresh);
            if is_still_here.is_ok_and(|here| file.metadata().is_ok_and(|ours| ours.ino() == here.ino())) {
                file.set_permissions(fs::Permissions::from_mode(mode))?;
                file.set_len(0)?;
                self.file = Some(file);
                return Ok(());
            }
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file().write_all(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file().sync_all()
    }

    fn place(&mut self, place: Place) -> io::Result<()> {
        match place {
            Place::Replace => fs::rename(&self.fresh, &self.path),
            // A link is refused where a file is; a rename is not.
            Place::Create => {
                fs::hard_link(&self.fresh, &self.path).and_then(|()| fs::remove_file(&self.fresh))
            }
        }
    }

    fn sync_directory(&mut self) -> io::Result<()> {
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }

    fn abandon(&mut self) {
        // It may not be there; and what failed is what the caller wants to know.
        let _ = fs::remove_file(&self.fresh);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const PATH: &str = "path";
    const FRESH: &str = "path.new";

    /// A disk that loses power after some steps. What is not synced may survive or not: the names in the order of their
    /// changes, each file's content for itself.
    #[derive(Clone, Default)]
    struct Cut {
        left: usize,
        /// Content of each file, durable and now.
        files: Vec<(Option<Vec<u8>>, Vec<u8>)>,
        names: BTreeMap<&'static str, usize>,
        /// Every state of the directory since it was last synced, the durable one first.
        directories: Vec<BTreeMap<&'static str, usize>>,
    }

    impl Cut {
        fn with(old: Option<&[u8]>, left: usize) -> Cut {
            let files: Vec<_> = old.map(|old| (Some(old.to_vec()), old.to_vec())).into_iter().collect();
            let names = (0..files.len()).map(|file| (PATH, file)).collect::<BTreeMap<_, _>>();
            Cut { left, files, directories: vec![names.clone()], names }
        }

        fn step(&mut self) -> io::Result<()> {
            self.left = self.left.checked_sub(1).ok_or(io::Error::other("the power is cut"))?;
            Ok(())
        }

        /// What a reader may find at the path when the power is back: `None`, no file.
        fn survivors(&self) -> Vec<Option<Vec<u8>>> {
            let mut found = Vec::new();
            for names in self.directories.iter().chain([&self.names]) {
                match names.get(PATH) {
                    None => found.push(None),
                    Some(file) => {
                        let (durable, now) = &self.files[*file];
                        // A name whose file was never synced may come back empty, or cut short.
                        let lost = durable.clone().unwrap_or_default();
                        found.extend([Some(lost), Some(now.clone()), Some(now[..now.len() / 2].to_vec())]);
                        if durable.as_ref() == Some(now) {
                            found.pop();
                        }
                    }
                }
            }
            found
        }
    }

    impl Steps for Cut {
        fn begin(&mut self, _mode: u32) -> io::Result<()> {
            self.step()?;
            self.files.push((None, Vec::new()));
            self.directories.push(self.names.clone());
            self.names.insert(FRESH, self.files.len() - 1);
            Ok(())
        }

        fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
            self.step()?;
            self.files[self.names[FRESH]].1 = bytes.to_vec();
            Ok(())
        }

        fn sync(&mut self) -> io::Result<()> {
            self.step()?;
            let (durable, now) = &mut self.files[self.names[FRESH]];
            *durable = Some(now.clone());
            Ok(())
        }

        fn place(&mut self, place: Place) -> io::Result<()> {
            self.step()?;
            if place == Place::Create && self.names.contains_key(PATH) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            self.directories.push(self.names.clone());
            let file = self.names.remove(FRESH).expect("it was begun");
            self.names.insert(PATH, file);
            Ok(())
        }

        fn sync_directory(&mut self) -> io::Result<()> {
            self.step()?;
            self.directories.clear();
            Ok(())
        }

        fn abandon(&mut self) {
            // Nothing runs after the power is cut.
            if self.left > 0 {
                self.names.remove(FRESH);
            }
        }
    }

    #[test]
    fn a_power_cut_after_any_step_leaves_the_old_file_or_the_new_one() {
        let (old, new) = (b"the old content".as_slice(), b"the new one".as_slice());
        for before in [Some(old), None] {
            for left in 0..=5 {
                let mut disk = Cut::with(before, left);
                let done = put(&mut disk, Place::Replace, new, 0o600);
                assert_eq!(done.is_ok(), left == 5);
                for found in disk.survivors() {
                    let good = if done.is_ok() { vec![Some(new)] } else { vec![before, Some(new)] };
                    assert!(good.contains(&found.as_deref()), "after {left} steps: {found:?}");
                }
            }
        }
    }

    #[test]
    fn what_exists_is_not_created() {
        let mut disk = Cut::with(Some(b"old"), 9);
        let refused = put(&mut disk, Place::Create, b"new", 0o600).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(disk.names.len(), 1, "what was begun is removed");
    }

    #[test]
    fn on_a_real_disk() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("keys.toml");
        create_file(&path, b"one", 0o600).unwrap();
        assert_eq!(create_file(&path, b"two", 0o600).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        // Left over by a crash, and longer.
        fs::write(dir.path().join("keys.toml.new"), "something longer").unwrap();
        replace_file(&path, b"three", 0o640).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"three");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        replace_file(&dir.path().join("no/such/folder"), b"", 0o600).unwrap_err();
        // A directory cannot be replaced by a file, and nothing is left beside it.
        fs::create_dir(dir.path().join("folder")).unwrap();
        replace_file(&dir.path().join("folder"), b"", 0o600).unwrap_err();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }

    #[test]
    fn writers_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::thread::scope(|scope| {
            for writer in 0..4_u8 {
                let path = &path;
                scope
                    .spawn(move || (0..20).for_each(|_| replace_file(path, &[writer; 5000], 0o600).unwrap()));
            }
        });
        let found = fs::read(&path).unwrap();
        assert!(found.len() == 5000 && found.iter().all(|byte| *byte == found[0]));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
