//! Damage to the directories of stopped servers: emptied, replaced by an older copy, files removed, truncated, bytes
//! flipped.

use ebb_types::Random;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Copies a directory recursively, preserving holes.
pub fn copy_tree(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory");
    for entry in std::fs::read_dir(from).expect("a directory").flatten() {
        let target = to.join(entry.file_name());
        match entry.file_type().expect("a file's type").is_dir() {
            true => copy_tree(&entry.path(), &target),
            false => drop(std::fs::copy(entry.path(), target).expect("a copy")),
        }
    }
}

/// Replaces a directory by a copy of another, or by nothing. They may be on different file systems.
pub fn put_in_place(directory: &Path, by: Option<&Path>) {
    remove(directory);
    if let Some(by) = by {
        copy_tree(by, directory);
    }
}

pub fn remove(directory: &Path) {
    if directory.exists() {
        std::fs::remove_dir_all(directory).expect("a directory is removed");
    }
}

pub fn exchange(one: &Path, other: &Path) {
    let aside = one.with_extension("aside");
    for (from, to) in [(one, aside.as_path()), (other, one), (&aside, other)] {
        std::fs::rename(from, to).expect("a directory moves");
    }
}

/// The files below a directory, without empty ones.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
            let about = entry.metadata().expect("about a file");
            if about.is_dir() {
                left.push(entry.path());
            } else if about.len() > 0
                && !["server.pid", "server.process"].iter().any(|own| entry.file_name() == *own)
            {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    found
}

pub fn has_files(directory: &Path) -> bool {
    directory.is_dir() && !files(directory).is_empty()
}

/// Removes some files; returns their names.
pub fn remove_files(directory: &Path, random: &mut Random) -> String {
    let mut all = files(directory);
    let count = 1 + random.below(8.min(all.len() as u64)) as usize;
    let mut gone = Vec::new();
    for _ in 0..count {
        let path = all.swap_remove(random.below(all.len() as u64) as usize);
        std::fs::remove_file(&path).expect("a file is removed");
        gone.push(name(directory, &path));
    }
    gone.join(" ")
}

/// Truncates a file at a random place; returns its name and the place.
pub fn cut_file(directory: &Path, random: &mut Random) -> String {
    let all = files(directory);
    let path = random.pick(&all).expect("there are files");
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("open");
    let at = random.below(file.metadata().expect("about a file").len());
    file.set_len(at).expect("a file is cut");
    format!("{} at {at}", name(directory, path))
}

/// Changes some bytes, most of them in written areas; returns where.
pub fn flip_bytes(directory: &Path, random: &mut Random) -> String {
    let all = files(directory);
    let mut changed = Vec::new();
    for _ in 0..1 + random.below(12) {
        let path = random.pick(&all).expect("there are files");
        let bytes = std::fs::read(path).expect("a file");
        let from = random.below(bytes.len() as u64) as usize;
        let written = bytes[from..].iter().position(|b| *b != 0).map_or(from, |n| from + n);
        let mask = 1 + random.below(255) as u8;
        let file = std::fs::OpenOptions::new().write(true).open(path).expect("open");
        file.write_all_at(&[bytes[written] ^ mask], written as u64).expect("write");
        changed.push(format!("{}+{written}", name(directory, path)));
    }
    changed.join(" ")
}

fn name(directory: &Path, path: &Path) -> String {
    path.strip_prefix(directory).expect("it is below").display().to_string()
}
