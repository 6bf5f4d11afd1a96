//! A trace recorded from a block device with the kernel's own recorder, blktrace.
//!
//! blktrace needs the kernel's tracing (`CONFIG_BLK_DEV_IO_TRACE`), a mounted debugfs to carry the events, and root.
//! Missing prerequisites are reported before anything is started; problems that only show in the attempt are derived
//! from blktrace's output.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Locations; tests have their own.
#[derive(Clone, Debug)]
pub struct Recorder {
    pub blktrace: PathBuf,
    pub debugfs: PathBuf,
}

impl Default for Recorder {
    /// blktrace from the search path or where Debian installs it; debugfs at its usual place.
    fn default() -> Recorder {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
        places.push("/usr/sbin".into());
        let found = places.into_iter().map(|place| place.join("blktrace")).find(|file| file.is_file());
        Recorder { blktrace: found.unwrap_or_else(|| "blktrace".into()), debugfs: "/sys/kernel/debug".into() }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot examine {}: {error}; name a block device such as /dev/nvme0n1", device.display())]
    Device { device: PathBuf, error: io::Error },
    #[error("{} is not a block device: name one such as /dev/nvme0n1 (`lsblk` lists them)", device.display())]
    NotBlock { device: PathBuf },
    #[error("blktrace is not installed: `apt install blktrace` (or your system's package of that name)")]
    NoTool,
    #[error("debugfs is not mounted at {}: `mount -t debugfs none {}` as root", path.display(), path.display())]
    NoDebugfs { path: PathBuf },
    #[error("not permitted to read {}: run this as root; in a container, on the host", path.display())]
    NoPermission { path: PathBuf },
    #[error(
        "this kernel does not let blktrace read its events of {}: debugfs is locked, see /sys/kernel/security/lockdown; in a \
         container, run on the host",
        device.display()
    )]
    Locked { device: PathBuf },
    #[error(
        "this kernel does not trace block devices: it needs CONFIG_BLK_DEV_IO_TRACE (or the module blktrace)"
    )]
    NoKernel,
    #[error("{} exists: name another output, or remove it", path.display())]
    Exists { path: PathBuf },
    #[error("cannot run {}: {error}", path.display())]
    Run { path: PathBuf, error: io::Error },
    #[error("blktrace failed on {}: {words}", device.display())]
    Failed { device: PathBuf, words: String },
    #[error("blktrace wrote no file {}.blktrace.*; its output: {words}", out.display())]
    Nothing { out: PathBuf, words: String },
}

/// Records `device` for `time` into `OUT.blktrace.CPU`. Returns the files of all CPUs when the time is over. `starting`
/// is called once all prerequisites are met.
pub fn record(
    recorder: &Recorder,
    device: &Path,
    out: &Path,
    time: Duration,
    starting: &mut dyn FnMut(),
) -> Result<Vec<PathBuf>, RecordError> {
    recordable(recorder, device)?;
    if let Some(path) = recorded_files(out).into_iter().next() {
        return Err(RecordError::Exists { path });
    }
    starting();
    run(recorder, device, out, time)
}

/// Whether a device could be recorded, as far as it shows before the attempt.
pub fn recordable(recorder: &Recorder, device: &Path) -> Result<(), RecordError> {
    use std::os::unix::fs::FileTypeExt;
    let about =
        std::fs::metadata(device).map_err(|error| RecordError::Device { device: device.into(), error })?;
    if !about.file_type().is_block_device() {
        return Err(RecordError::NotBlock { device: device.into() });
    }
    possible(recorder)
}

/// Whether blktrace's prerequisites are met.
fn possible(recorder: &Recorder) -> Result<(), RecordError> {
    if !recorder.blktrace.is_file() {
        return Err(RecordError::NoTool);
    }
    let path = &recorder.debugfs;
    // An unmounted debugfs is an empty directory.
    match std::fs::read_dir(path).map(|mut entries| entries.next().is_some()) {
        Ok(true) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(RecordError::NoPermission { path: path.clone() })
        }
        _ => Err(RecordError::NoDebugfs { path: path.clone() }),
    }
}

fn run(recorder: &Recorder, device: &Path, out: &Path, time: Duration) -> Result<Vec<PathBuf>, RecordError> {
    let directory = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let result = Command::new(&recorder.blktrace)
        .arg("-d")
        .arg(device)
        // Only queue events: the requests as they arrive.
        .args(["-a", "queue", "-w", &time.as_secs().max(1).to_string(), "-r"])
        .arg(&recorder.debugfs)
        .arg("-D")
        .arg(directory)
        .arg("-o")
        .arg(super::open::name_of(out))
        .stdin(Stdio::null())
        .output()
        .map_err(|error| RecordError::Run { path: recorder.blktrace.clone(), error })?;
    let words = [result.stderr, result.stdout].concat();
    let words = String::from_utf8_lossy(&words).split_whitespace().collect::<Vec<_>>().join(" ");
    // blktrace reports success even if its threads could not be started.
    if !result.status.success() || words.contains("BLKTRACESETUP") || words.contains("FAILED to start") {
        return Err(why(recorder, device, words));
    }
    match recorded_files(out) {
        files if files.is_empty() => Err(RecordError::Nothing { out: out.into(), words }),
        files => Ok(files),
    }
}

/// Interprets blktrace's output.
fn why(recorder: &Recorder, device: &Path, words: String) -> RecordError {
    let says = |part: &str| words.contains(part);
    if says("Inappropriate ioctl") || says("Function not implemented") {
        RecordError::NoKernel
    } else if says("failed open") && says("/trace") {
        RecordError::Locked { device: device.into() }
    } else if says("Operation not permitted") || says("Permission denied") {
        RecordError::NoPermission { path: device.into() }
    } else if says("Debugfs") || says("debugfs") {
        RecordError::NoDebugfs { path: recorder.debugfs.clone() }
    } else {
        RecordError::Failed { device: device.into(), words }
    }
}

/// The files `OUT.blktrace.N` that exist, by number.
fn recorded_files(out: &Path) -> Vec<PathBuf> {
    let directory = out.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let prefix = format!("{}.blktrace.", super::open::name_of(out));
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut found: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let cpu = name.to_str()?.strip_prefix(&prefix)?.parse().ok()?;
            Some((cpu, entry.path()))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A recorder whose blktrace is a script, with a mounted debugfs.
    fn recorder(dir: &Path, script: &str) -> Recorder {
        let blktrace = dir.join("blktrace");
        std::fs::write(&blktrace, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&blktrace, std::fs::Permissions::from_mode(0o755)).unwrap();
        let debugfs = dir.join("debug");
        std::fs::create_dir_all(debugfs.join("block")).unwrap();
        Recorder { blktrace, debugfs }
    }

    #[test]
    fn what_is_missing_is_said_before_anything_starts() {
        let dir = tempfile::tempdir().unwrap();
        let good = recorder(dir.path(), "exit 0");
        assert!(possible(&good).is_ok());
        let no_tool = Recorder { blktrace: dir.path().join("none"), ..good.clone() };
        assert!(matches!(possible(&no_tool), Err(RecordError::NoTool)));
        std::fs::create_dir(dir.path().join("empty")).unwrap();
        for place in ["empty", "none"] {
            let unmounted = Recorder { debugfs: dir.path().join(place), ..good.clone() };
            assert!(matches!(possible(&unmounted), Err(RecordError::NoDebugfs { .. })));
        }
        let attempt = |device: &Path| {
            record(&good, device, &dir.path().join("x"), Duration::from_secs(1), &mut || panic!("it starts"))
                .unwrap_err()
        };
        let file = attempt(&good.blktrace);
        assert!(file.to_string().contains("not a block device"), "{file}");
        assert!(matches!(attempt(&dir.path().join("none")), RecordError::Device { .. }));
    }

    #[test]
    fn blktraces_words_are_understood() {
        let dir = tempfile::tempdir().unwrap();
        let fail = |words: &str| {
            let recorder = recorder(dir.path(), &format!("echo '{words}' >&2; exit 1"));
            run(&recorder, Path::new("/dev/x"), &dir.path().join("t"), Duration::from_secs(1)).unwrap_err()
        };
        let setup = "BLKTRACESETUP(2) /dev/x failed: 25/Inappropriate ioctl for device";
        assert!(matches!(fail(setup), RecordError::NoKernel));
        let locked = "Thread 0 failed open /sys/kernel/debug/block/x/trace0: 1/Operation not permitted";
        assert!(matches!(fail(locked), RecordError::Locked { .. }));
        let permission = "BLKTRACESETUP(2) /dev/x failed: 1/Operation not permitted";
        assert!(matches!(fail(permission), RecordError::NoPermission { .. }));
        assert!(fail("the moon is wrong").to_string().contains("the moon is wrong"));
    }

    #[test]
    fn a_recording_is_the_files_of_all_cpus_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let script =
            r#"while [ "$1" != -D ]; do shift; done; for cpu in 10 2 0; do : > "$2/$4.blktrace.$cpu"; done"#;
        let recorder = recorder(dir.path(), script);
        let out = dir.path().join("disk");
        let found = run(&recorder, Path::new("/dev/x"), &out, Duration::from_secs(1)).unwrap();
        let names: Vec<_> = found.iter().map(|path| super::super::open::name_of(path)).collect();
        assert_eq!(names, ["disk.blktrace.0", "disk.blktrace.2", "disk.blktrace.10"]);
    }
}
