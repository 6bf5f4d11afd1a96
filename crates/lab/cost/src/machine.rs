//! CPU, disk and process data from the kernel, read from `/proc` and `/sys` below a root, so that tests can supply
//! their own trees.

use super::error::CostError;
use super::model::Hertz;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A file tree that contains `proc` and `sys`: `/`, except in tests.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    root: PathBuf,
    /// Ticks per second of the times in `/proc`.
    ticks: u64,
}

/// How a set of CPUs spent its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CpuTimes {
    pub user: Duration,
    /// Including interrupts.
    pub system: Duration,
    pub idle: Duration,
    pub iowait: Duration,
    /// Time in which the CPU ran another guest: no process here used those cycles.
    pub stolen: Duration,
}

impl CpuTimes {
    pub fn busy(&self) -> Duration {
        self.user + self.system
    }

    fn zip(&self, other: &CpuTimes, op: impl Fn(Duration, Duration) -> Duration) -> CpuTimes {
        CpuTimes {
            user: op(self.user, other.user),
            system: op(self.system, other.system),
            idle: op(self.idle, other.idle),
            iowait: op(self.iowait, other.iowait),
            stolen: op(self.stolen, other.stolen),
        }
    }

    /// Never below zero: the kernel occasionally lets a CPU's iowait run backwards.
    pub fn since(&self, before: &CpuTimes) -> CpuTimes {
        self.zip(before, Duration::saturating_sub)
    }

    pub fn plus(&self, other: &CpuTimes) -> CpuTimes {
        self.zip(other, |a, b| a + b)
    }
}

/// Bytes of one process and of the descendants that it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ProcessIo {
    /// Through read and write calls, wherever they led.
    pub calls: u64,
    /// Requested from storage: read from it, or dirtied and not dropped before it was written.
    pub storage: u64,
}

impl ProcessIo {
    pub fn plus(&self, other: &ProcessIo) -> ProcessIo {
        ProcessIo { calls: self.calls + other.calls, storage: self.storage + other.storage }
    }

    /// Never below zero: the kernel takes back what was dirtied and dropped.
    pub fn since(&self, before: &ProcessIo) -> ProcessIo {
        ProcessIo {
            calls: self.calls.saturating_sub(before.calls),
            storage: self.storage.saturating_sub(before.storage),
        }
    }
}

/// CPU time of one group of processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OwnTimes {
    pub user: Duration,
    pub system: Duration,
}

impl OwnTimes {
    pub fn plus(&self, other: &OwnTimes) -> OwnTimes {
        OwnTimes { user: self.user + other.user, system: self.system + other.system }
    }

    pub fn since(&self, before: &OwnTimes) -> OwnTimes {
        OwnTimes {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }
}

/// One process, as `/proc/PID/stat` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessStat {
    /// `Z`: it has ended and was not waited for yet.
    pub state: char,
    pub parent: u32,
    /// Its own and that of the descendants that were waited for.
    pub times: OwnTimes,
    /// Ticks since boot.
    pub start: u64,
}

impl Machine {
    pub fn new(root: impl Into<PathBuf>, ticks: u64) -> Machine {
        Machine { root: root.into(), ticks: ticks.max(1) }
    }

    pub fn this() -> Machine {
        Machine::new("/", rustix::param::clock_ticks_per_second())
    }

    fn read(&self, path: &str) -> Result<String, CostError> {
        let path = self.root.join(path);
        fs::read_to_string(&path).map_err(|source| CostError::Read { path, source })
    }

    fn trimmed(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok().map(|text| text.trim().to_owned())
    }

    fn time(&self, ticks: u64) -> Duration {
        Duration::from_nanos((u128::from(ticks) * 1_000_000_000 / u128::from(self.ticks)) as u64)
    }

    /// The kernel's clock, in which processes have their starts.
    pub fn ticks_since_boot(&self) -> Option<u64> {
        let seconds: f64 = self.trimmed("proc/uptime")?.split(' ').next()?.parse().ok()?;
        Some((seconds * self.ticks as f64) as u64)
    }

    pub fn stat_of(&self, pid: u32) -> Option<ProcessStat> {
        let text = self.trimmed(format!("proc/{pid}/stat"))?;
        // The name may have spaces and parentheses of its own.
        let (_, rest) = text.rsplit_once(')')?;
        let words: Vec<&str> = rest.split_ascii_whitespace().collect();
        let number = |at: usize| words.get(at)?.parse::<u64>().ok();
        Some(ProcessStat {
            state: words.first()?.chars().next()?,
            parent: number(1)? as u32,
            times: OwnTimes {
                user: self.time(number(11)? + number(13)?),
                system: self.time(number(12)? + number(14)?),
            },
            start: number(19)?,
        })
    }

    /// All processes that this one may see.
    pub fn processes(&self) -> BTreeMap<u32, ProcessStat> {
        let entries = fs::read_dir(self.root.join("proc")).into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(|pid| Some((pid, self.stat_of(pid)?))).collect()
    }

    pub fn threads_of(&self, pid: u32) -> Vec<u32> {
        let entries =
            fs::read_dir(self.root.join(format!("proc/{pid}/task"))).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
    }

    /// The words of its command line; of a kernel thread its name.
    pub fn command_of(&self, pid: u32) -> Vec<String> {
        let line = fs::read(self.root.join(format!("proc/{pid}/cmdline"))).unwrap_or_default();
        let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let words: Vec<String> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        if words.is_empty() { self.trimmed(format!("proc/{pid}/comm")).into_iter().collect() } else { words }
    }

    /// Times since boot of every online CPU.
    pub fn cpus(&self) -> Result<BTreeMap<usize, CpuTimes>, CostError> {
        let text = self.read("proc/stat")?;
        let mut cpus = BTreeMap::new();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let name = words.next().and_then(|word| word.strip_prefix("cpu"));
            let Some(cpu) = name.and_then(|name| name.parse().ok()) else { continue };
            let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
            let time = |at: usize| self.time(ticks.get(at).copied().unwrap_or(0));
            // user nice system idle iowait irq softirq steal; guest time is included in user.
            cpus.insert(
                cpu,
                CpuTimes {
                    user: time(0) + time(1),
                    system: time(2) + time(5) + time(6),
                    idle: time(3),
                    iowait: time(4),
                    stolen: time(7),
                },
            );
        }
        if cpus.is_empty() {
            return Err(CostError::Strange { path: self.root.join("proc/stat"), what: "no line of a CPU" });
        }
        Ok(cpus)
    }

    /// Sectors of 512 bytes that each disk has moved since boot. Only devices that the data really passes through: no
    /// partitions, no devices made of others (their disks count), none in memory.
    pub fn sectors(&self) -> Result<BTreeMap<String, u64>, CostError> {
        let text = self.read("proc/diskstats")?;
        let mut disks = BTreeMap::new();
        for line in text.lines() {
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let (Some(name), Some(read), Some(written)) = (words.get(2), words.get(5), words.get(9)) else {
                continue;
            };
            let (Ok(read), Ok(written)) = (read.parse::<u64>(), written.parse::<u64>()) else { continue };
            if self.is_disk(name) {
                disks.insert((*name).to_owned(), read.saturating_add(written));
            }
        }
        Ok(disks)
    }

    fn is_disk(&self, name: &str) -> bool {
        // The kernel writes `!` for the `/` in a device's name.
        let block = self.root.join("sys/block").join(name.replace('/', "!"));
        let made_of_others =
            fs::read_dir(block.join("slaves")).is_ok_and(|mut slaves| slaves.next().is_some());
        let in_memory = ["loop", "ram", "zram"].iter().any(|prefix| name.starts_with(prefix));
        block.exists() && !made_of_others && !in_memory
    }

    /// I/O of a process, even of one that has ended and was not waited for yet.
    pub fn io_of(&self, pid: u32) -> Option<ProcessIo> {
        let text = self.trimmed(format!("proc/{pid}/io"))?;
        let value = |key: &str| -> u64 {
            let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
        };
        let storage = value("read_bytes") + value("write_bytes");
        Some(ProcessIo {
            calls: value("rchar") + value("wchar"),
            storage: storage.saturating_sub(value("cancelled_write_bytes")),
        })
    }

    /// The mean of the CPUs' current frequencies, as reported by the frequency driver.
    pub fn cpufreq(&self, cpus: &[usize]) -> Option<Hertz> {
        mean(cpus.iter().filter_map(|cpu| {
            let path = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq");
            self.trimmed(path)?.parse::<f64>().ok().map(|kilohertz| kilohertz * 1e3)
        }))
    }

    /// The mean of the CPUs' frequencies in `/proc/cpuinfo`: in a virtual machine the nominal one.
    pub fn cpuinfo(&self, cpus: &[usize]) -> Option<Hertz> {
        let text = self.trimmed("proc/cpuinfo")?;
        let mut cpu = None;
        mean(text.lines().filter_map(|line| {
            let (key, value) = line.split_once(':')?;
            match key.trim() {
                "processor" => cpu = value.trim().parse::<usize>().ok(),
                "cpu MHz" if cpu.is_some_and(|cpu| cpus.contains(&cpu)) => {
                    return value.trim().parse::<f64>().ok().map(|megahertz| megahertz * 1e6);
                }
                _ => {}
            }
            None
        }))
    }

    /// The directory of the v2 hierarchy of cgroups.
    pub fn cgroups(&self) -> Option<PathBuf> {
        let mounts = self.trimmed("proc/self/mounts")?;
        let mount = mounts.lines().find_map(|line| {
            let mut words = line.split(' ');
            let place = words.nth(1)?;
            (words.next() == Some("cgroup2")).then(|| place.trim_start_matches('/').to_owned())
        })?;
        Some(self.root.join(mount))
    }

    /// Bytes that a v2 cgroup moved on disks. `None`: the kernel does not count them for it.
    pub fn cgroup_bytes(&self, group: &Path) -> Option<u64> {
        let text = fs::read_to_string(group.join("io.stat")).ok()?;
        let mut bytes = 0;
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let device = words.next()?;
            let uevent = self.trimmed(format!("sys/dev/block/{device}/uevent"));
            let name = uevent
                .as_deref()
                .and_then(|text| text.lines().find_map(|line| line.strip_prefix("DEVNAME=")));
            if !name.is_some_and(|name| self.is_disk(name)) {
                continue;
            }
            let of = |key: &str, word: &str| word.strip_prefix(key)?.parse::<u64>().ok();
            bytes +=
                words.filter_map(|word| of("rbytes=", word).or_else(|| of("wbytes=", word))).sum::<u64>();
        }
        Some(bytes)
    }

    /// Where process groups can be created: this process's own cgroup in the v2 hierarchy.
    pub fn cgroup(&self) -> Option<PathBuf> {
        let mount = self.cgroups()?;
        let own = self.trimmed("proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::"))?.trim_start_matches('/').to_owned();
        Some(mount.join(own))
    }
}

/// CPU time of a v2 cgroup.
pub(super) fn cgroup_times(directory: &Path) -> Option<OwnTimes> {
    let text = fs::read_to_string(directory.join("cpu.stat")).ok()?;
    let value = |key: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?;
        line.trim().parse().ok().map(Duration::from_micros)
    };
    Some(OwnTimes { user: value("user_usec")?, system: value("system_usec")? })
}

fn mean(values: impl Iterator<Item = f64>) -> Option<Hertz> {
    let (sum, count) =
        values.filter(|hertz| *hertz > 0.0).fold((0.0, 0.0), |(sum, n), value| (sum + value, n + 1.0));
    (count > 0.0).then(|| Hertz(sum / count))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn tree(files: &[(&str, &str)]) -> (TempDir, Machine) {
        let dir = TempDir::new().unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let machine = Machine::new(dir.path(), 100);
        (dir, machine)
    }

    #[test]
    fn cpu_times_add_up_what_belongs_together() {
        let (_dir, machine) = tree(&[(
            "proc/stat",
            "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 20 30 400 50 6 7 8 90 1\ncpu2 1 0 0 0 0 0 0 0 0 0\nintr 5\n",
        )]);
        let cpus = machine.cpus().unwrap();
        assert_eq!(cpus.keys().copied().collect::<Vec<_>>(), [0, 2]);
        let millis = Duration::from_millis;
        let right = CpuTimes {
            user: millis(1200),
            system: millis(430),
            idle: millis(4000),
            iowait: millis(500),
            stolen: millis(80),
        };
        assert_eq!(cpus[&0], right);
        assert_eq!(cpus[&0].since(&CpuTimes { iowait: millis(600), ..right }), CpuTimes::default());
        let (_dir, empty) = tree(&[("proc/stat", "intr 5\n")]);
        assert!(empty.cpus().is_err());
        let (_dir, none) = tree(&[]);
        assert!(none.cpus().unwrap_err().to_string().contains("proc/stat"));
    }

    #[test]
    fn only_disks_count_and_each_byte_once() {
        let (dir, machine) = tree(&[
            (
                "proc/diskstats",
                "8 0 sda 1 1 1000 1 1 1 500 1 0 1 1\n8 1 sda1 1 1 900 1 1 1 400 1 0 1 1\n\
                 253 0 dm-0 1 1 700 1 1 1 1 1 0 1 1\n7 0 loop0 1 1 80 1 1 1 1 1 0 1 1\nbroken line\n\
                 104 0 cciss/c0d0 1 1 5 1 1 1 6 1 0 1 1\n",
            ),
            ("sys/block/sda/size", "1"),
            ("sys/block/dm-0/size", "1"),
            ("sys/block/loop0/size", "1"),
            ("sys/block/cciss!c0d0/size", "1"),
        ]);
        fs::create_dir_all(dir.path().join("sys/block/dm-0/slaves/sda")).unwrap();
        fs::create_dir_all(dir.path().join("sys/block/sda/slaves")).unwrap();
        let right = BTreeMap::from([("sda".to_owned(), 1500), ("cciss/c0d0".to_owned(), 11)]);
        assert_eq!(machine.sectors().unwrap(), right);
    }

    #[test]
    fn a_commands_io_is_distinguished_from_its_calls() {
        let (_dir, machine) = tree(&[(
            "proc/7/io",
            "rchar: 1000\nwchar: 200\nsyscr: 1\nsyscw: 1\nread_bytes: 512\nwrite_bytes: 4096\ncancelled_write_bytes: 1024\n",
        )]);
        assert_eq!(machine.io_of(7), Some(ProcessIo { calls: 1200, storage: 3584 }));
        assert_eq!(machine.io_of(8), None);
    }

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let stat = "7 (a) (b c) S 3 7 7 0 -1 4194560 1 2 3 4 100 20 30 4 20 0 2 0 4321 9 9";
        let (_dir, machine) =
            tree(&[("proc/7/stat", stat), ("proc/8/stat", "8 (x) S"), ("proc/uptime", "12.34 5")]);
        let millis = Duration::from_millis;
        let times = OwnTimes { user: millis(1300), system: millis(240) };
        let right = ProcessStat { state: 'S', parent: 3, times, start: 4321 };
        assert_eq!(machine.stat_of(7), Some(right));
        assert_eq!(machine.processes(), BTreeMap::from([(7, right)]), "a short line is nothing");
        assert_eq!(machine.ticks_since_boot(), Some(1234));
    }

    #[test]
    fn a_cgroups_bytes_are_those_of_disks() {
        let (dir, machine) = tree(&[
            (
                "group/io.stat",
                "8:0 rbytes=1000 wbytes=24 rios=9 wios=9 dbytes=7 dios=1\n7:0 rbytes=5 wbytes=5\n9:9\n",
            ),
            ("sys/dev/block/8:0/uevent", "MAJOR=8\nDEVNAME=sda\n"),
            ("sys/dev/block/7:0/uevent", "MAJOR=7\nDEVNAME=loop0\n"),
            ("sys/block/sda/size", "1"),
            ("sys/block/loop0/size", "1"),
        ]);
        assert_eq!(machine.cgroup_bytes(&dir.path().join("group")), Some(1024));
        assert_eq!(machine.cgroup_bytes(&dir.path().join("none")), None);
    }

    #[test]
    fn the_frequency_comes_from_the_driver_or_else_from_cpuinfo_or_is_not_known() {
        let (_dir, machine) = tree(&[
            ("sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq", "2000000\n"),
            ("sys/devices/system/cpu/cpu1/cpufreq/scaling_cur_freq", "3000000\n"),
            ("proc/cpuinfo", "processor : 0\ncpu MHz\t: 2100.000\n\nprocessor : 1\ncpu MHz\t: 2200.5\n"),
        ]);
        assert_eq!(machine.cpufreq(&[0, 1]), Some(Hertz(2.5e9)));
        assert_eq!(machine.cpufreq(&[1]), Some(Hertz(3e9)));
        assert_eq!(machine.cpufreq(&[7]), None);
        assert_eq!(machine.cpuinfo(&[0]), Some(Hertz(2.1e9)));
        assert_eq!(machine.cpuinfo(&[2]), None);
    }

    #[test]
    fn the_own_cgroup_is_found_in_hybrid_hierarchies_too() {
        let (dir, machine) = tree(&[
            (
                "proc/self/mounts",
                "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n",
            ),
            ("proc/self/cgroup", "4:memory:/a\n0::/user.slice/b\n"),
            ("sys/fs/cgroup/unified/user.slice/b/cpu.stat", "usage_usec 30\nuser_usec 20\nsystem_usec 10\n"),
        ]);
        let cgroup = machine.cgroup().unwrap();
        assert_eq!(cgroup, dir.path().join("sys/fs/cgroup/unified/user.slice/b"));
        let times = OwnTimes { user: Duration::from_micros(20), system: Duration::from_micros(10) };
        assert_eq!(cgroup_times(&cgroup), Some(times));
        let (_dir, old) =
            tree(&[("proc/self/mounts", "proc /proc proc rw 0 0\n"), ("proc/self/cgroup", "0::/\n")]);
        assert_eq!(old.cgroup(), None);
    }
}
