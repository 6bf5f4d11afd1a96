//! Disks that do only a few operations per second: the kernel makes a process wait for its disk.
//!
//! Uses the blkio controller of control groups (version 1), for file systems on their own devices. Requires root.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const CONTROLLER: &str = "/sys/fs/cgroup/blkio";
/// About as many as a disk does under heavy load from others.
const PER_SECOND: u32 = 10;
const LIMITS: [&str; 2] = ["blkio.throttle.write_iops_device", "blkio.throttle.read_iops_device"];

/// A process whose disk is slow until this is dropped.
pub struct Brake {
    group: PathBuf,
    pid: u32,
}

/// Whether [`Brake::on`] is permitted here.
pub fn is_allowed() -> bool {
    Path::new(CONTROLLER).join(LIMITS[0]).exists()
}

impl Brake {
    pub fn on(pid: u32, directory: &Path) -> io::Result<Brake> {
        let group = Path::new(CONTROLLER).join(format!("ebb-test-{pid}"));
        fs::create_dir(&group)?;
        let brake = Brake { group, pid };
        let device = fs::metadata(directory)?.dev();
        let device = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        for limit in LIMITS {
            fs::write(brake.group.join(limit), format!("{device} {PER_SECOND}"))?;
        }
        fs::write(brake.group.join("cgroup.procs"), pid.to_string())?;
        Ok(brake)
    }
}

impl Drop for Brake {
    fn drop(&mut self) {
        // Waiting operations continue once the process has left the group. The process may have exited.
        let _ = fs::write(Path::new(CONTROLLER).join("cgroup.procs"), self.pid.to_string());
        let _ = fs::remove_dir(&self.group);
    }
}
