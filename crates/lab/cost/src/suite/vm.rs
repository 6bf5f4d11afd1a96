//! A workload in one or several virtual machines at once, beside the host [OS layers §6, Fig. 4].
//!
//! A guest is QEMU with a kernel from a directory, a system that holds busybox and drivers, and a disk of its own. The
//! host's files are the guest's, read-only, so every program of the host is there; data and scripts are on the disk.
//! All guests set up first; then all run the command at the same time, and that is the window. Cycles and time are
//! those of the whole host, I/Os are what the guests' disks moved: as in the paper, a guest's own accounting is not
//! trusted.
//!
//! Under TCG the guest's instructions are emulated by software. Such figures are the emulation's, and say so.

use super::super::model::Hertz;
use super::super::run::{Measured, Own, OwnSource, Readings, allowed_cpus};
use super::super::{CostOptions, IoSource, Run, judge};
use super::workload::{Dataset, PRELUDE, Workload};
use crate::machine::{Machine, OwnTimes};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Arguments;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

const INIT: &str = include_str!("vm-init.sh");
/// Drivers of the guest's disk and files, with what they need.
const MODULES: &str = "virtio virtio_ring virtio_pci virtio_pci_modern_dev virtio_pci_legacy_dev virtio_blk \
                       9p 9pnet 9pnet_virtio netfs fscache ext4 jbd2 mbcache crc16 crc32c_generic libcrc32c";
const PROGRAMS: [&str; 5] = ["qemu-system-x86_64", "busybox", "cpio", "mkfs.ext4", "find"];
const MEMORY_MIB: u32 = 1024;
/// Size of a guest's disk by unit of scale; only what is written takes room.
const DISK: u64 = 4 << 30;
/// A guest that is silent for this long will never boot.
const BOOT: Duration = Duration::from_secs(120);
/// For the setup, and for the command.
const WORK: Duration = Duration::from_secs(1800);

/// What runs the guests' instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Accelerator {
    /// The processor, by the kernel's help.
    Kvm,
    /// QEMU itself: emulation by software.
    Tcg,
}

/// Which virtual machines to start.
#[derive(Clone, Debug)]
pub struct GuestOptions {
    /// Numbers of guests, one after another.
    pub counts: Vec<usize>,
    /// Has `boot/vmlinuz-RELEASE` and `lib/modules/RELEASE`, with 9p and ext4.
    pub kernel: PathBuf,
    pub accelerator: Accelerator,
}

impl GuestOptions {
    /// Why no guest can be started, before anything runs.
    pub fn check(&self) -> Result<(), String> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places: Vec<PathBuf> = std::env::split_paths(&path).chain(["/usr/sbin".into()]).collect();
        let absent = |program: &&&str| !places.iter().any(|place| place.join(program).is_file());
        if let Some(program) = PROGRAMS.iter().find(absent) {
            return Err(format!("virtual machines need {program}, which is not installed"));
        }
        Kernel::find(&self.kernel).map(|_| ())
    }
}

/// A kernel and its drivers.
struct Kernel {
    image: PathBuf,
    modules: PathBuf,
    release: String,
}

impl Kernel {
    fn find(directory: &Path) -> Result<Kernel, String> {
        let all = directory.join("lib/modules");
        let mut found: Vec<Kernel> = fs::read_dir(&all)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let release = entry.file_name().into_string().ok()?;
                let image = directory.join(format!("boot/vmlinuz-{release}"));
                image.is_file().then(|| Kernel { image, modules: entry.path(), release })
            })
            .collect();
        found.sort_by(|a, b| a.release.cmp(&b.release));
        found.pop().ok_or_else(|| {
            format!(
                "{} has no kernel with its modules: give a directory with boot/vmlinuz-RELEASE and lib/modules/RELEASE by \
                 --vm-kernel, such as the unpacked package linux-image-amd64 of Debian",
                directory.display()
            )
        })
    }
}

/// What a workload cost in guests.
#[derive(Clone, Debug, Serialize)]
pub struct GuestRun {
    pub cores_each: usize,
    pub memory_mib: u32,
    pub accelerator: Accelerator,
    /// Of the whole host, while all guests ran the command.
    pub run: Run,
}

impl GuestRun {
    /// How it was measured.
    pub fn about(&self) -> String {
        let how = match self.accelerator {
            Accelerator::Kvm => "by KVM",
            Accelerator::Tcg => {
                "by TCG: the guests' instructions are emulated by software, so the cycles are the emulation's and do not \
                 show what virtualization costs"
            }
        };
        format!(
            "each virtual machine has {} of the host's cores and {} MiB, and is run {how}; cycles and time are the whole \
             host's, I/Os are the guests' disks'",
            self.cores_each, self.memory_mib
        )
    }
}

/// A running guest; it ends with this value.
struct Guest {
    child: Child,
    lines: Receiver<String>,
    log: PathBuf,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Guest {
    fn start(mut command: Command, log: PathBuf) -> Result<Guest, String> {
        let errors = File::create(&log).map_err(|e| format!("cannot create {}: {e}", log.display()))?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().map_err(|e| format!("cannot start QEMU: {e}"))?;
        let output = child.stdout.take().ok_or("QEMU has no output")?;
        let (tell, lines) = channel();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).is_ok_and(|bytes| bytes > 0) {
                if tell.send(String::from_utf8_lossy(&line).trim().to_owned()).is_err() {
                    return;
                }
                line.clear();
            }
        });
        Ok(Guest { child, lines, log })
    }

    fn say(&mut self, word: &str) -> Result<(), String> {
        let input = self.child.stdin.as_mut().ok_or("QEMU has no input")?;
        writeln!(input, "{word}")
            .and_then(|()| input.flush())
            .map_err(|e| format!("the guest does not listen: {e}"))
    }

    /// What follows this word, which the guest says by then. `tell` is called as time passes.
    fn hear(&self, word: &str, within: Duration, tell: &mut dyn FnMut()) -> Result<String, String> {
        let start = Instant::now();
        while start.elapsed() < within {
            match self.lines.recv_timeout(Duration::from_millis(250)) {
                Ok(line) => {
                    let Some(said) = line.strip_prefix("EBB ") else { continue };
                    if let Some(why) = said.strip_prefix("failed ") {
                        return Err(why.to_owned());
                    }
                    if let Some(rest) = said.strip_prefix(word) {
                        return Ok(rest.trim().to_owned());
                    }
                }
                Err(RecvTimeoutError::Timeout) => tell(),
                Err(RecvTimeoutError::Disconnected) => {
                    let log = fs::read_to_string(&self.log).unwrap_or_default();
                    return Err(format!("QEMU ended: {}", log.trim()));
                }
            }
        }
        Err(format!(
            "no word {word:?} from the guest within {} s; where KVM cannot run this kernel, take --vm-accelerator tcg",
            within.as_secs()
        ))
    }
}

/// Runs the workload in `count` guests at once.
pub(super) fn run_guests(
    cost: &CostOptions,
    dataset: &Dataset,
    asked: &GuestOptions,
    count: usize,
    workload: &Workload,
    place: &Path,
    tell: &mut dyn FnMut(Arguments<'_>),
) -> Result<GuestRun, String> {
    let directory = place.join(format!("{}-guests", workload.name));
    let done = with_guests(cost, dataset, asked, count, workload, &directory, tell);
    let _ = fs::remove_dir_all(&directory);
    done
}

fn with_guests(
    cost: &CostOptions,
    dataset: &Dataset,
    asked: &GuestOptions,
    count: usize,
    workload: &Workload,
    directory: &Path,
    tell: &mut dyn FnMut(Arguments<'_>),
) -> Result<GuestRun, String> {
    if workload.window().is_some() {
        return Err("its command does not end by itself, so guests cannot say when it is done".into());
    }
    let kernel = Kernel::find(&asked.kernel)?;
    pack(directory, &kernel).map_err(|e| format!("cannot make the guest's system: {e}"))?;
    let cpus = allowed_cpus().map_err(|e| e.to_string())?;
    // As in the paper: half of the cores are the guests', the rest is left to the host.
    let cores_each = (cpus.len() / 2 / count).max(1);
    let mut guests = Vec::new();
    for number in 0..count {
        let disk = directory.join(format!("disk.{number}"));
        make_disk(&disk, directory, dataset, workload)
            .map_err(|e| format!("cannot make the guest's disk: {e}"))?;
        let command = qemu(directory, &kernel, &disk, asked.accelerator, cores_each, dataset, workload);
        guests.push(Guest::start(command, directory.join(format!("qemu.{number}.log")))?);
    }
    for guest in &guests {
        guest.hear("booted", BOOT, &mut || tell(format_args!("{count} guests boot")))?;
    }
    for guest in &guests {
        guest.hear("ready", WORK, &mut || tell(format_args!("setup in {count} guests")))?;
    }
    let machine = Machine::this();
    let measured = window(&machine, &cpus, cost.frequency, &mut guests, tell)?;
    guests.iter_mut().try_for_each(|guest| guest.say("end"))?;
    let cost = CostOptions { io: Some(IoSource::Devices), ..cost.clone() };
    let all = machine.cpus().map_err(|e| e.to_string())?.len();
    let run = judge(&measured, &cost, cpus.len(), all).map_err(|e| e.to_string())?;
    Ok(GuestRun { cores_each, memory_mib: MEMORY_MIB, accelerator: asked.accelerator, run })
}

/// All guests run the command.
fn window(
    machine: &Machine,
    cpus: &[usize],
    given: Option<Hertz>,
    guests: &mut [Guest],
    tell: &mut dyn FnMut(Arguments<'_>),
) -> Result<Measured, String> {
    let mut readings = Readings::start(machine, cpus).map_err(|e| e.to_string())?;
    guests.iter_mut().try_for_each(|guest| guest.say("go"))?;
    let mut sectors = BTreeMap::new();
    let count = guests.len();
    for (number, guest) in guests.iter().enumerate() {
        let said = guest.hear("done", WORK, &mut || {
            readings.sample();
            tell(format_args!("{count} guests, {:.0} s", readings.elapsed().as_secs_f64()));
        })?;
        let moved: u64 = said.parse().map_err(|_| format!("a guest says its disk moved {said:?} sectors"))?;
        sectors.insert(format!("guest {}", number + 1), moved);
    }
    // What QEMU itself spent is part of the machine's figures; no process is singled out.
    let none = Own { io: None, times: OwnTimes::default(), source: OwnSource::Processes, cycles: None };
    let measured = readings.end(given, |_| Ok(none), Vec::new()).map_err(|e| e.to_string())?;
    Ok(Measured { sectors, ..measured })
}

/// The guest's first file system: busybox, drivers, and `vm-init.sh`.
fn pack(directory: &Path, kernel: &Kernel) -> std::io::Result<()> {
    let root = directory.join("root");
    let modules = root.join("lib/modules").join(&kernel.release);
    for path in ["bin", "dev", "proc", "sys", "host"] {
        fs::create_dir_all(root.join(path))?;
    }
    fs::create_dir_all(&modules)?;
    fs::create_dir_all(directory.join("files/data"))?;
    fs::write(root.join("init"), INIT)?;
    // The words of the script are this program's own; what varies are its arguments.
    const SCRIPT: &str = r#"
        cp "$(command -v busybox)" "$1/bin/busybox"
        chmod 755 "$1/init"
        for name in $4; do find "$2" -name "$name.ko*" -exec cp {} "$1/lib/modules/$3" \; ; done
        busybox depmod -b "$1" "$3"
        cd "$1" && find . | cpio --quiet -o -H newc >../initrd"#;
    let output = Command::new("/bin/sh")
        .args(["-euc", SCRIPT, "pack"])
        .args([root.as_os_str(), kernel.modules.as_os_str()])
        .args([kernel.release.as_str(), MODULES])
        .output()?;
    said(&output)
}

/// A disk that holds the scripts.
fn make_disk(disk: &Path, directory: &Path, dataset: &Dataset, workload: &Workload) -> std::io::Result<()> {
    let files = directory.join("files");
    for (name, script) in [("setup", &workload.setup), ("command", &workload.command)] {
        fs::write(files.join(name), format!("{PRELUDE}{script}"))?;
    }
    File::create(disk)?.set_len(DISK * u64::from(dataset.scale))?;
    let mut command = Command::new("mkfs.ext4");
    command.args(["-q", "-F", "-d"]).args([files.as_os_str(), disk.as_os_str()]);
    command.env("PATH", format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default()));
    said(&command.output()?)
}

/// What a program that failed wrote.
fn said(output: &std::process::Output) -> std::io::Result<()> {
    if output.status.success() {
        return Ok(());
    }
    Err(std::io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Words of the kernel's command line that it does not know become variables of the guest's init.
fn qemu(
    directory: &Path,
    kernel: &Kernel,
    disk: &Path,
    accelerator: Accelerator,
    cores: usize,
    dataset: &Dataset,
    workload: &Workload,
) -> Command {
    let (accel, cpu) = match accelerator {
        // Nested hosts refuse to set these registers.
        Accelerator::Kvm => ("kvm", "host,arch-capabilities=off"),
        Accelerator::Tcg => ("tcg", "max"),
    };
    let (scale, seed) = (dataset.scale, dataset.seed);
    let words =
        format!("console=ttyS0 quiet panic=-1 SCALE={scale} SEED={seed} MORE_PATH={}", workload.more_path());
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-accel", accel, "-machine", "q35", "-cpu", cpu, "-smp", &cores.to_string()])
        .args(["-m", &MEMORY_MIB.to_string()])
        .args("-nodefaults -display none -no-reboot -serial stdio".split(' '))
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(directory.join("initrd"))
        .args(["-append", &words])
        .arg("-drive")
        .arg(format!("file={},if=virtio,format=raw,cache=none", disk.display()))
        .arg("-virtfs")
        .arg("local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap");
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_one_with_its_modules() {
        let dir = tempfile::tempdir().unwrap();
        let missing = Kernel::find(dir.path()).err().unwrap();
        assert!(missing.contains("--vm-kernel") && missing.contains("vmlinuz-RELEASE"), "{missing}");
        for release in ["6.1.0-1", "6.1.0-2", "6.1.0-3"] {
            fs::create_dir_all(dir.path().join("lib/modules").join(release)).unwrap();
        }
        fs::create_dir_all(dir.path().join("boot")).unwrap();
        for release in ["6.1.0-1", "6.1.0-2"] {
            fs::write(dir.path().join(format!("boot/vmlinuz-{release}")), "").unwrap();
        }
        assert_eq!(Kernel::find(dir.path()).ok().unwrap().release, "6.1.0-2");
    }

    #[test]
    fn a_guest_is_heard_or_its_failure_is() {
        let dir = tempfile::tempdir().unwrap();
        let start = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            Guest::start(command, dir.path().join("log")).unwrap()
        };
        let long = Duration::from_secs(60);
        let mut guest = start("echo noise; echo EBB ready; read go; echo \"EBB done $go\"; read end");
        assert_eq!(guest.hear("ready", long, &mut || {}), Ok(String::new()));
        guest.say("77").unwrap();
        assert_eq!(guest.hear("done", long, &mut || {}), Ok("77".into()));
        let refused = start("echo EBB failed setup: no room").hear("ready", long, &mut || {});
        assert_eq!(refused, Err("setup: no room".into()));
        let broken = start("echo no such machine >&2").hear("ready", long, &mut || {}).unwrap_err();
        assert!(broken.contains("QEMU ended") && broken.contains("no such machine"), "{broken}");
        let silent = start("read end").hear("booted", Duration::ZERO, &mut || {}).unwrap_err();
        assert!(silent.contains("--vm-accelerator tcg"), "{silent}");
    }
}
