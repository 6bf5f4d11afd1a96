//! The process driver: every chunk server is a process on this machine; for the development cluster and rehearsals.
//!
//! Standby is SIGSTOP and SIGCONT. Off ends the process, and waking starts it again: it ends by itself after it has
//! reported that it is ready, and one that has not gets SIGTERM. The metadata process that switches is generally not
//! the parent, so a server is found by `server.process` in its data directory. That file holds pid, start time and boot
//! id: a pid that was reused by another process is never signalled. `server.pid` beside it has the pid alone, for
//! service managers and scripts; Ebb never reads it. The signal goes through a pidfd opened before the start
//! time is compared, so the process cannot be replaced in between either.
//!
//! Started servers get their own session: otherwise the kernel would hang up the stopped ones when the process that
//! started them ends (a process group that becomes orphaned while members are stopped gets SIGHUP and SIGCONT).

use super::{About, Clock, Driver, Fields, Launch, Managed, PowerState, SwitchError};
use ebb_types::{Depth, ServerId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::retry_on_intr;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal, setsid};
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Longest pid file that is read: three short words.
const PID_FILE_MAX: u64 = 128;

/// A unique name of a process: pids are reused, start times within a boot are not.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    pid: u32,
    /// Clock ticks from boot to the start of the process.
    start: u64,
    boot: String,
}

/// The content of `/proc/<pid>/stat`.
struct Stat {
    state: char,
    start: u64,
}

impl Stat {
    /// `None`: there is no such process.
    fn read(pid: u32) -> Result<Option<Stat>, SwitchError> {
        let text = match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(text) => text,
            Err(source) if is_gone(&source) => return Ok(None),
            Err(source) => return Err(SwitchError::Process { pid, source }),
        };
        // The name in brackets may contain anything, including brackets: fields count from the last one. proc(5)
        let mut fields = text.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let state = fields.next().and_then(|field| field.chars().next());
        let start = fields.nth(18).and_then(|field| field.parse().ok());
        match (state, start) {
            (Some(state), Some(start)) => Ok(Some(Stat { state, start })),
            _ => {
                let source = std::io::Error::new(ErrorKind::InvalidData, "unknown format of stat");
                Err(SwitchError::Process { pid, source })
            }
        }
    }
}

/// Whether all its threads have: until then it holds its locks and sockets, although the one that carries its name may
/// be a zombie. pidfd_open(2)
fn has_ended(process: &OwnedFd) -> Result<bool, rustix::io::Errno> {
    let mut polled = [PollFd::new(process, PollFlags::IN)];
    // A signal that is pending interrupts it, although it does not wait.
    Ok(retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())))? > 0)
}

fn is_gone(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

fn process_path(data: &Path) -> PathBuf {
    data.join("server.process")
}

fn pid_path(data: &Path) -> PathBuf {
    data.join("server.pid")
}

fn boot_id(pid: u32) -> Result<String, SwitchError> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.map(|id| id.trim().to_string()).map_err(|source| SwitchError::Process { pid, source })
}

/// Writes `server.process` and `server.pid` for process `pid` into the data directory, each atomically: a reader sees
/// the old or the new one. On a full disk they are written over those of an earlier process, which takes no more room;
/// a reader in between finds no process. A server calls it with its own pid once it holds its data directory.
pub fn write_pid_file(data: &Path, pid: u32) -> Result<(), SwitchError> {
    let gone = || SwitchError::Process { pid, source: ErrorKind::NotFound.into() };
    let start = Stat::read(pid)?.ok_or_else(gone)?.start;
    let files = [
        (process_path(data), format!("{pid} {start} {}\n", boot_id(pid)?), 0o600),
        (pid_path(data), format!("{pid}\n"), 0o644),
    ];
    files.into_iter().try_for_each(|(path, text, mode)| {
        let written = ebb_files::replace_file(&path, text.as_bytes(), mode);
        let written = written.or_else(|error| match ebb_types::is_full(&error) {
            true => write_over(&path, text.as_bytes()).map_err(|_| error),
            false => Err(error),
        });
        written.map_err(|source| SwitchError::PidFile { path, source })
    })
}

/// Puts this in the place of what is in the file, which is there.
fn write_over(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let file = OpenOptions::new().write(true).open(path)?;
    file.write_all_at(bytes, 0)?;
    file.set_len(bytes.len() as u64)?;
    file.sync_all()
}

/// Removes both files if they name process `pid`. A server calls it with its own pid when it ends.
pub fn remove_pid_file(data: &Path, pid: u32) -> Result<(), SwitchError> {
    match read_pid_file(&process_path(data))? {
        Some(identity) if identity.pid == pid => [pid_path(data), process_path(data)]
            .into_iter()
            .try_for_each(|path| match std::fs::remove_file(&path) {
                Err(source) if source.kind() != ErrorKind::NotFound => {
                    Err(SwitchError::PidFile { path, source })
                }
                _ => Ok(()),
            }),
        _ => Ok(()),
    }
}

fn read_pid_file(path: &Path) -> Result<Option<Identity>, SwitchError> {
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(PID_FILE_MAX).read_to_string(&mut text));
    match read {
        Ok(_) => {}
        Err(source) if source.kind() == ErrorKind::NotFound => return Ok(None),
        Err(source) if source.kind() == ErrorKind::InvalidData => {
            return Err(SwitchError::BadPidFile { path: path.to_path_buf() });
        }
        Err(source) => return Err(SwitchError::PidFile { path: path.to_path_buf(), source }),
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let identity = match words[..] {
        [pid, start, boot] => pid
            .parse::<i32>()
            .ok()
            .filter(|pid| *pid > 1)
            .zip(start.parse().ok())
            .map(|(pid, start)| Identity { pid: pid.unsigned_abs(), start, boot: boot.to_string() }),
        _ => None,
    };
    identity.map(Some).ok_or_else(|| SwitchError::BadPidFile { path: path.to_path_buf() })
}

/// A server's process, held through a pidfd so that it cannot be mistaken for another.
struct Found {
    pid: u32,
    handle: OwnedFd,
    state: char,
}

impl Found {
    /// `None`: the process that the pid file names has ended.
    fn by_pid_file(path: &Path) -> Result<Option<Found>, SwitchError> {
        let Some(identity) = read_pid_file(path)? else { return Ok(None) };
        let pid = identity.pid;
        if identity.boot != boot_id(pid)? {
            return Ok(None);
        }
        let raw = Pid::from_raw(pid as i32).expect("read_pid_file gives positive pids");
        let handle = match pidfd_open(raw, PidfdFlags::empty()) {
            Ok(handle) => handle,
            Err(rustix::io::Errno::SRCH) => return Ok(None),
            Err(source) => return Err(SwitchError::Process { pid, source: source.into() }),
        };
        match Stat::read(pid)? {
            Some(stat) if stat.start == identity.start => {
                let ended = has_ended(&handle);
                let ended = ended.map_err(|source| SwitchError::Process { pid, source: source.into() })?;
                Ok((!ended).then_some(Found { pid, handle, state: stat.state }))
            }
            _ => Ok(None),
        }
    }

    fn signal(&self, signal: Signal, name: &'static str) -> Result<(), SwitchError> {
        match pidfd_send_signal(&self.handle, signal) {
            // It has just ended: no process is left to signal.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(source) => Err(SwitchError::Signal { pid: self.pid, signal: name, source: source.into() }),
        }
    }
}

/// The process named in the pid file of `data`, if it runs. An unreadable file counts as not running.
pub fn running_pid(data: &Path) -> Option<u32> {
    Found::by_pid_file(&process_path(data)).ok().flatten().map(|found| found.pid)
}

/// Starts a server: in its own session, without input, its output appended to the log, its pid file written. The caller
/// keeps the handle and reaps the process when it ends.
pub fn launch(launch: &Launch, data: &Path) -> Result<Child, SwitchError> {
    let log_error = |source| SwitchError::Log { path: launch.log.clone(), source };
    let log =
        OpenOptions::new().create(true).append(true).mode(0o600).open(&launch.log).map_err(log_error)?;
    let errors = log.try_clone().map_err(log_error)?;
    let mut command = Command::new(&launch.program);
    command.args(&launch.args).stdin(Stdio::null()).stdout(log).stderr(errors);
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; setsid is one system call.
    unsafe {
        command.pre_exec(|| setsid().map(|_| ()).map_err(Into::into));
    }
    let start_error = |source| SwitchError::Start { program: launch.program.clone(), source };
    let mut child = command.spawn().map_err(start_error)?;
    if let Err(error) = write_pid_file(data, child.id()) {
        // Without a pid file the server could not be put to sleep or found again. It may have ended by itself: that is
        // fine.
        let _ = child.kill();
        let _ = child.wait();
        return Err(error);
    }
    Ok(child)
}

/// One server process on this machine.
pub struct Process {
    about: About,
    managed: Managed,
    /// Started by this process, which must reap it.
    child: Option<Child>,
    /// The process that was asked to end: waking the server starts another one.
    told_to_end: Option<u32>,
}

pub(super) fn open(fields: &mut Fields) -> Result<Box<dyn Driver>, SwitchError> {
    Ok(Box::new(Process::new(fields.server, fields.process.clone())))
}

impl Process {
    pub fn new(server: ServerId, managed: Managed) -> Process {
        let machine = format!("{server}, process in {}", managed.data.display());
        let about = About {
            controller: managed.data.display().to_string(),
            puts_to_sleep: true,
            // A signal has its effect at once, and a process that is to end shows that it has not.
            settle: None,
            ..About::new("process", machine, vec![Depth::Standby, Depth::Off])
        };
        Process { about, managed, child: None, told_to_end: None }
    }

    fn find(&mut self) -> Result<Option<Found>, SwitchError> {
        // A child that has ended stays a zombie until it is waited for.
        if let Some(child) = &mut self.child
            && let Ok(Some(_)) = child.try_wait()
        {
            self.child = None;
        }
        Found::by_pid_file(&process_path(&self.managed.data))
    }

    fn not_running(&self) -> SwitchError {
        SwitchError::NotRunning {
            machine: self.about.machine.clone(),
            path: process_path(&self.managed.data),
        }
    }
}

impl Driver for Process {
    fn about(&self) -> &About {
        &self.about
    }

    fn sleep(&mut self, depth: Depth, clock: &mut dyn Clock) -> Result<(), SwitchError> {
        let found = self.find()?;
        // A disk that hangs may have held that up.
        if !clock.pause(Duration::ZERO) {
            return Err(SwitchError::Replaced);
        }
        match (depth, found) {
            (Depth::Standby, Some(found)) => found.signal(Signal::STOP, "SIGSTOP"),
            (Depth::Standby, None) => Err(self.not_running()),
            (Depth::Off, Some(found)) => {
                found.signal(Signal::TERM, "SIGTERM")?;
                self.told_to_end = Some(found.pid);
                // A stopped process handles no other signal before this one.
                found.signal(Signal::CONT, "SIGCONT")
            }
            (Depth::Off, None) => Ok(()),
        }
    }

    fn wake(&mut self, _: &mut dyn Clock) -> Result<(), SwitchError> {
        if let Some(found) = self.find()? {
            if self.told_to_end == Some(found.pid) {
                return Err(SwitchError::GoingDown { machine: format!("process {}", found.pid) });
            }
            return found.signal(Signal::CONT, "SIGCONT");
        }
        let Some(command) = &self.managed.launch else { return Err(self.not_running()) };
        self.child = Some(launch(command, &self.managed.data)?);
        Ok(())
    }

    fn observe(&mut self, _: &mut dyn Clock) -> Result<PowerState, SwitchError> {
        Ok(match self.find()? {
            Some(Found { state: 'T', .. }) => PowerState::Standby,
            Some(_) => PowerState::On,
            None => PowerState::Off,
        })
    }
}

#[cfg(test)]
mod tests;
