//! What the processes of a running service do in a window: CPU time from `/proc/PID/stat`, bytes from `/proc/PID/io`.
//!
//! The service is a process with its descendants, or the processes of a cgroup. They come and go. What one has done
//! passes to its parent when that waits for it, and so stays in the sum as long as the parent belongs to the service;
//! otherwise the last reading before its end counts. Invariant: what a process did before the window, or before it
//! joined, is in its `base` and is subtracted for good, also after it has ended.

use super::machine::{Machine, OwnTimes, ProcessIo, ProcessStat};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which processes belong to the service.
#[derive(Clone, Debug)]
pub(super) enum Members {
    /// The process and its descendants, also those that lose their parent meanwhile.
    Tree(u32),
    /// The processes of the cgroup in this directory, and of those below it.
    Group(PathBuf),
}

/// CPU time and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub times: OwnTimes,
    pub io: ProcessIo,
}

impl Tally {
    fn plus(&self, other: &Tally) -> Tally {
        Tally { times: self.times.plus(&other.times), io: self.io.plus(&other.io) }
    }

    /// Never below zero.
    fn since(&self, before: &Tally) -> Tally {
        Tally { times: self.times.since(&before.times), io: self.io.since(&before.io) }
    }
}

/// A process of the service. Its number may be used again after its end, its start may not.
struct Member {
    start: u64,
    parent: u32,
    /// What it had done when the window began, or when it joined.
    base: Tally,
    last: Tally,
    /// It has ended, and its parent did not wait for it yet.
    is_zombie: bool,
}

/// The processes of a service, from the start of a window on.
pub(super) struct Tracker {
    machine: Machine,
    who: Members,
    /// When the window began, in the kernel's ticks since boot.
    opened: u64,
    /// Start of the tree's process: another one may get its number.
    root_start: Option<u64>,
    members: BTreeMap<u32, Member>,
    /// Of those that have ended: subtracted, and added.
    bases: Tally,
    lasts: Tally,
    /// The kernel showed the bytes of every member.
    io_readable: bool,
}

impl Tracker {
    pub fn open(machine: &Machine, who: Members) -> Tracker {
        let root_start = match &who {
            Members::Tree(root) => machine.stat_of(*root).map(|stat| stat.start),
            Members::Group(_) => None,
        };
        let mut tracker = Tracker {
            machine: machine.clone(),
            who,
            root_start,
            opened: machine.ticks_since_boot().unwrap_or(0),
            members: BTreeMap::new(),
            bases: Tally::default(),
            lasts: Tally::default(),
            io_readable: true,
        };
        tracker.sample();
        // Whatever they did up to now was before the window.
        tracker.members.values_mut().for_each(|member| member.base = member.last);
        tracker
    }

    /// For a command that has just been started: all that it did counts.
    pub fn open_at_start(machine: &Machine, child: u32) -> Tracker {
        let mut tracker = Tracker::open(machine, Members::Tree(child));
        tracker.members.values_mut().for_each(|member| member.base = Tally::default());
        tracker
    }

    /// No process of it runs: the process of a tree has ended, or the cgroup is empty.
    pub fn has_ended(&self) -> bool {
        match &self.who {
            Members::Tree(root) => self.members.get(root).is_none_or(|member| member.is_zombie),
            Members::Group(_) => self.members.is_empty(),
        }
    }

    pub fn pids(&self) -> impl Iterator<Item = u32> {
        self.members.keys().copied()
    }

    /// Reads every process of the service once more.
    pub fn sample(&mut self) {
        let all = self.machine.processes();
        let found = match &self.who {
            Members::Tree(root) => self.tree(*root, &all),
            Members::Group(group) => pids_of(group),
        };
        let is_gone = |pid: &u32, member: &Member| {
            !(found.contains(pid) && all.get(pid).is_some_and(|stat| stat.start == member.start))
        };
        let members = self.members.iter();
        let ended: Vec<u32> =
            members.filter(|(pid, member)| is_gone(pid, member)).map(|(pid, _)| *pid).collect();
        self.forget(&ended);
        for pid in &found {
            if let Some(stat) = all.get(pid) {
                self.read(*pid, stat);
            }
        }
    }

    fn read(&mut self, pid: u32, stat: &ProcessStat) {
        let io = self.machine.io_of(pid);
        if io.is_none() && self.machine.stat_of(pid).is_some() {
            self.io_readable = false;
        }
        let now = Tally { times: stat.times, io: io.unwrap_or_default() };
        let before = stat.start < self.opened;
        let member = self.members.entry(pid).or_insert_with(|| Member {
            start: stat.start,
            parent: stat.parent,
            // Older than the window: what it did elsewhere is not the service's.
            base: if before { now } else { Tally::default() },
            last: now,
            is_zombie: false,
        });
        member.is_zombie = stat.state == 'Z';
        (member.parent, member.last) = (stat.parent, now);
    }

    /// Of those whose parents stay, what they did is the parents' now.
    fn forget(&mut self, ended: &[u32]) {
        let gone: Vec<(u32, Member)> =
            ended.iter().filter_map(|pid| Some((*pid, self.members.remove(pid)?))).collect();
        let parents: BTreeMap<u32, u32> = gone.iter().map(|(pid, member)| (*pid, member.parent)).collect();
        for (_, member) in &gone {
            self.bases = self.bases.plus(&member.base);
            let mut parent = member.parent;
            // At most as many steps as have ended: numbers that are used again could make a circle.
            for _ in &gone {
                parent = parents.get(&parent).copied().unwrap_or(parent);
            }
            if !self.members.contains_key(&parent) {
                self.lasts = self.lasts.plus(&member.last);
            }
        }
    }

    /// The root, descendants of members, and members that lost their parent.
    fn tree(&self, root: u32, all: &BTreeMap<u32, ProcessStat>) -> BTreeSet<u32> {
        let same = |pid: &u32, member: &Member| all.get(pid).is_some_and(|stat| stat.start == member.start);
        let mut found: BTreeSet<u32> =
            self.members.iter().filter(|(pid, member)| same(pid, member)).map(|(pid, _)| *pid).collect();
        found.extend(all.get(&root).filter(|stat| Some(stat.start) == self.root_start).map(|_| root));
        loop {
            let more: Vec<u32> = all
                .iter()
                .filter(|(pid, stat)| found.contains(&stat.parent) && !found.contains(pid))
                .map(|(pid, _)| *pid)
                .collect();
            if more.is_empty() {
                return found;
            }
            found.extend(more);
        }
    }

    /// What the service did since the window began, as of the last sample.
    pub fn done(&self) -> Tally {
        let members = || self.members.values();
        let lasts = members().fold(self.lasts, |sum, member| sum.plus(&member.last));
        lasts.since(&members().fold(self.bases, |sum, member| sum.plus(&member.base)))
    }

    /// Its bytes. `None`: the kernel hides those of some process.
    pub fn io(&self) -> Option<ProcessIo> {
        self.io_readable.then(|| self.done().io)
    }
}

/// The processes of a cgroup and of those below it.
fn pids_of(group: &Path) -> BTreeSet<u32> {
    let mut found: BTreeSet<u32> = fs::read_to_string(group.join("cgroup.procs"))
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.parse().ok())
        .collect();
    for entry in fs::read_dir(group).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(pids_of(&entry.path()));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};
    use tempfile::TempDir;

    /// Processes as the kernel would show them, 100 ticks per second.
    struct Table(TempDir);

    impl Table {
        fn new() -> Table {
            let table = Table(TempDir::new().unwrap());
            table.put("uptime", "50.00 1.00");
            table
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.path().join("proc").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// `ticks`: user time, own and of the children waited for.
        fn process(&self, pid: u32, parent: u32, ticks: [u64; 2], bytes: u64, start: u64) {
            let stat = format!(
                "{pid} (a) b (c) S {parent} 1 1 0 -1 0 0 0 0 0 {} 7 {} 0 20 0 1 0 {start} 0 0",
                ticks[0], ticks[1]
            );
            self.put(&format!("{pid}/stat"), &stat);
            self.put(
                &format!("{pid}/io"),
                &format!("rchar: {bytes}\nwchar: 0\nread_bytes: 512\nwrite_bytes: 0\n"),
            );
        }

        fn end(&self, pid: u32) {
            fs::remove_dir_all(self.0.path().join(format!("proc/{pid}"))).unwrap();
        }

        fn track(&self, root: u32) -> Tracker {
            Tracker::open(&Machine::new(self.0.path(), 100), Members::Tree(root))
        }
    }

    fn user_and_calls(tracker: &mut Tracker) -> (u64, u64) {
        tracker.sample();
        let done = tracker.done();
        (done.times.user.as_millis() as u64, done.io.calls)
    }

    #[test]
    fn only_what_the_tree_did_in_the_window_counts() {
        let table = Table::new();
        table.process(10, 1, [100, 0], 1000, 100);
        table.process(11, 10, [50, 0], 500, 200);
        table.process(99, 1, [1, 0], 1, 100);
        let mut tracker = table.track(10);
        assert_eq!(user_and_calls(&mut tracker), (0, 0));
        table.process(10, 1, [110, 0], 1100, 100);
        table.process(11, 10, [70, 0], 700, 200);
        table.process(99, 1, [900, 0], 90_000, 100);
        // Started in the window: all that it did.
        table.process(12, 11, [5, 0], 30, 6000);
        assert_eq!(user_and_calls(&mut tracker), (100 + 200 + 50, 100 + 200 + 30));
    }

    #[test]
    fn what_a_process_did_outlives_it_once() {
        let table = Table::new();
        table.process(10, 1, [100, 0], 1000, 100);
        table.process(11, 10, [50, 0], 500, 200);
        let mut tracker = table.track(10);
        table.process(11, 10, [90, 0], 800, 200);
        assert_eq!(user_and_calls(&mut tracker), (400, 300));
        // It ends 10 ticks and 100 bytes later, and its parent waits for it.
        table.end(11);
        table.process(10, 1, [100, 100], 1900, 100);
        assert_eq!(user_and_calls(&mut tracker), (500, 400));
        // A child of a process that ends still belongs to the tree; no process of the tree waits for it.
        table.process(12, 10, [0, 0], 0, 6000);
        table.process(13, 12, [3, 0], 33, 6001);
        assert_eq!(user_and_calls(&mut tracker), (530, 433));
        table.end(12);
        table.process(13, 1, [8, 0], 88, 6001);
        assert_eq!(user_and_calls(&mut tracker), (580, 488));
        table.end(13);
        assert_eq!(user_and_calls(&mut tracker), (580, 488));
        assert!(!tracker.has_ended());
        table.end(10);
        tracker.sample();
        assert!(tracker.has_ended());
    }

    #[test]
    fn a_number_that_is_used_again_is_another_process() {
        let table = Table::new();
        table.process(10, 1, [100, 0], 1000, 100);
        let mut tracker = table.track(10);
        table.process(10, 1, [900, 0], 9000, 7000);
        for _ in 0..2 {
            tracker.sample();
            assert!(tracker.has_ended(), "it ended, and a stranger has its number");
        }
    }

    #[test]
    fn a_cgroup_counts_those_below_it_and_newcomers_from_when_they_come() {
        let table = Table::new();
        table.process(10, 1, [100, 0], 1000, 100);
        table.process(11, 1, [100, 0], 1000, 100);
        let group = table.0.path().join("group");
        fs::create_dir_all(group.join("below")).unwrap();
        fs::write(group.join("cgroup.procs"), "").unwrap();
        fs::write(group.join("below/cgroup.procs"), "10\n").unwrap();
        let mut tracker = Tracker::open(&Machine::new(table.0.path(), 100), Members::Group(group.clone()));
        table.process(10, 1, [101, 0], 1001, 100);
        fs::write(group.join("cgroup.procs"), "11\n").unwrap();
        assert_eq!(user_and_calls(&mut tracker), (10, 1));
        table.process(11, 1, [102, 0], 1020, 100);
        assert_eq!(user_and_calls(&mut tracker), (30, 21));
        assert_eq!(tracker.io(), Some(ProcessIo { calls: 21, storage: 0 }));
        fs::remove_file(table.0.path().join("proc/11/io")).unwrap();
        tracker.sample();
        assert_eq!(tracker.io(), None, "the kernel hides them");
    }

    #[test]
    fn every_byte_of_a_real_process_and_of_its_children_is_counted() {
        const BYTES: usize = 100_000;
        let (dir, machine) = (TempDir::new().unwrap(), Machine::this());
        // Nothing but the shell's own commands, so that no other byte moves: no program is loaded.
        let script =
            "echo ready; read go; printf %s \"$DATA\" >a; (printf %s \"$DATA\" >b); echo done; read end";
        let mut shell = Command::new("sh")
            .args(["-c", script])
            .current_dir(dir.path())
            .env("DATA", "x".repeat(BYTES))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = shell.stdin.take().unwrap();
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        let mut line = String::new();
        // A byte is counted when the call that moved it returns: when the shell waits for the next line.
        let mut hear = |expected: &str| {
            line.clear();
            output.read_line(&mut line).unwrap();
            assert_eq!(line, expected);
            while machine.stat_of(shell.id()).unwrap().state != 'S' {
                std::thread::yield_now();
            }
        };
        hear("ready\n");
        let mut tracker = Tracker::open(&machine, Members::Tree(shell.id()));
        input.write_all(b"go\n").unwrap();
        hear("done\n");
        tracker.sample();
        assert_eq!(tracker.io().unwrap().calls, ("go\n".len() + 2 * BYTES + "done\n".len()) as u64);
        assert!(!tracker.has_ended());
        drop(input);
        shell.wait().unwrap();
        tracker.sample();
        assert!(tracker.has_ended());
    }
}
