//! Starting and stopping the processes of a cluster on this machine.

use crate::cluster::config::Config;
use crate::error::{NodeError, io};
use ebb_power::Launch;
use rustix::process::{Pid, Signal, kill_process};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal as unix_signal};

/// Time for a process to exit after SIGTERM before it is killed. A kill loses nothing: every store recovers.
const STOP_PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(5);

/// Waits for SIGTERM or Ctrl-C: a program that owns processes must end them first.
pub struct Stop {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Stop {
    pub fn new() -> Result<Stop, NodeError> {
        let terminate = unix_signal(SignalKind::terminate()).map_err(io("catch", "SIGTERM"))?;
        let interrupt = unix_signal(SignalKind::interrupt()).map_err(io("catch", "SIGINT"))?;
        Ok(Stop { terminate, interrupt })
    }

    /// Returns when one of them has arrived.
    pub async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Creates a directory that only its owner can enter. An existing one is closed to others.
pub fn private_directory(path: &Path) -> Result<(), NodeError> {
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io("create", path))?;
    let about = std::fs::metadata(path).map_err(io("read", path))?;
    if about.permissions().mode() & 0o077 != 0 {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o700))
            .map_err(io("close to others", path))?;
    }
    Ok(())
}

/// The command that runs one process of this cluster. `args`: the subcommand and its arguments, except the
/// configuration.
pub fn launch_of(config: &Config, args: &[&str], data: &Path) -> Result<Launch, NodeError> {
    let mut all: Vec<String> = args.iter().map(|a| a.to_string()).collect();
    all.extend(["--config".into(), config.file.to_string_lossy().into_owned()]);
    Ok(Launch {
        program: std::env::current_exe().map_err(io("find", "this program"))?,
        args: all,
        log: data.with_extension("log"),
    })
}

/// One process of the cluster, started by this program or by the metadata server.
pub struct Process {
    pub name: String,
    /// Contains its pid file.
    pub data: PathBuf,
    child: Option<Child>,
}

impl Process {
    pub fn start(config: &Config, name: String, args: &[&str], data: PathBuf) -> Result<Process, NodeError> {
        private_directory(&data)?;
        let child = ebb_power::launch(&launch_of(config, args, &data)?, &data)?;
        Ok(Process { name, data, child: Some(child) })
    }

    /// A process that an earlier run started, if it is still running.
    pub fn found(name: String, data: PathBuf) -> Process {
        Process { name, data, child: None }
    }

    /// The process that runs in this directory now. A server that slept with power off has a new process since.
    pub fn pid(&self) -> Option<u32> {
        ebb_power::running_pid(&self.data)
    }

    /// `Some`: it exited with an error by itself; with the end of its log.
    pub fn has_failed(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        self.child = None;
        if status.success() {
            return None;
        }
        let log = std::fs::read_to_string(self.data.with_extension("log")).unwrap_or_default();
        let tail: Vec<&str> = log.lines().rev().take(3).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        Some(format!("{} ended ({status}): {}", self.name, tail.join("; ")))
    }
}

/// Stops processes cleanly and in parallel. Suspended servers are resumed first, because they could not handle the
/// signal.
pub async fn stop_all(processes: &mut [Process]) {
    let mut waiting: Vec<u32> = Vec::new();
    for process in processes.iter_mut() {
        if let Some(pid) = process.pid() {
            signal(pid, Signal::TERM);
            signal(pid, Signal::CONT);
            waiting.push(pid);
        }
    }
    let since = Instant::now();
    while !waiting.is_empty() {
        for process in processes.iter_mut() {
            // Reap children that have exited, else they would seem to run.
            if let Some(child) = &mut process.child
                && matches!(child.try_wait(), Ok(Some(_)))
            {
                process.child = None;
            }
        }
        waiting.retain(|pid| processes.iter().any(|p| p.pid() == Some(*pid)));
        if since.elapsed() > STOP_PATIENCE {
            waiting.drain(..).for_each(|pid| signal(pid, Signal::KILL));
        }
        tokio::time::sleep(POLL).await;
    }
}

fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid as i32) {
        // It may have exited meanwhile, which is the goal.
        let _ = kill_process(pid, signal);
    }
}
