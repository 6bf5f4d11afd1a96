//! QEMU: a virtual machine, through its monitor (QMP) on a Unix socket.
//!
//! It has to be started with `-no-shutdown`, so that it still is there when its guest has powered off; then a reset
//! starts it again. [QEMU, interop/qmp-spec]

use super::{About, Clock, Driver, Fields, PowerState, Settle, SwitchError};
use ebb_types::Depth;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result as IoResult, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

/// Most bytes that are read in one conversation: answers and events.
const MOST_BYTES: u64 = 1 << 20;

struct Qemu {
    about: About,
    path: PathBuf,
    timeout: Duration,
}

pub(super) fn open(fields: &mut Fields) -> Result<Box<dyn Driver>, SwitchError> {
    let path = fields.path("qmp")?.ok_or_else(|| fields.missing("qmp", "/run/vm7.qmp"))?;
    let (poll, watch) = (Duration::from_secs(1), Duration::from_secs(3));
    let about = About {
        settle: Some(Settle { poll, watch, ..Settle::MACHINE }),
        ..About::new("qemu", path.display().to_string(), vec![Depth::Standby, Depth::Off])
    };
    let timeout = fields.duration("timeout")?.unwrap_or(Duration::from_secs(10));
    Ok(Box::new(Qemu { about, path, timeout }))
}

/// One conversation. The monitor talks to one client at a time.
struct Monitor {
    stream: UnixStream,
    lines: BufReader<std::io::Take<UnixStream>>,
}

impl Monitor {
    fn open(path: &PathBuf, timeout: Duration) -> IoResult<Monitor> {
        // A server that is started meanwhile would inherit it, and hold the only conversation for as long as it runs.
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        for way in [Timeout::Send, Timeout::Recv] {
            set_socket_timeout(&socket, way, Some(timeout))?;
        }
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        let stream = UnixStream::from(socket);
        let lines = BufReader::new(stream.try_clone()?.take(MOST_BYTES));
        let mut monitor = Monitor { stream, lines };
        // The greeting.
        monitor.line()?;
        monitor.execute("qmp_capabilities")?;
        Ok(monitor)
    }

    fn line(&mut self) -> IoResult<Value> {
        let mut line = String::new();
        match self.lines.read_line(&mut line)? {
            0 => Err(Error::new(ErrorKind::UnexpectedEof, "it hung up")),
            _ => serde_json::from_str(&line).map_err(Error::other),
        }
    }

    fn execute(&mut self, command: &str) -> IoResult<Value> {
        writeln!(self.stream, "{}", json!({ "execute": command }))?;
        loop {
            let mut answer = self.line()?;
            if let Some(error) = answer.get("error") {
                return Err(Error::other(format!(
                    "{command}: {}",
                    error["desc"].as_str().unwrap_or("refused")
                )));
            }
            // Anything else is an event.
            if answer.get("return").is_some() {
                return Ok(answer["return"].take());
            }
        }
    }

    fn status(&mut self) -> IoResult<String> {
        let answer = self.execute("query-status")?;
        Ok(answer["status"].as_str().unwrap_or_default().to_string())
    }

    fn wake(&mut self) -> IoResult<()> {
        match self.status()?.as_str() {
            "suspended" => self.execute("system_wakeup").map(|_| ()),
            "shutdown" => self.execute("system_reset").and_then(|_| self.execute("cont")).map(|_| ()),
            "prelaunch" | "paused" => self.execute("cont").map(|_| ()),
            "running" => Ok(()),
            other => {
                Err(Error::other(format!("it is {other}, which no order ends: restart the virtual machine")))
            }
        }
    }
}

impl Qemu {
    fn talk<T>(&self, talk: impl FnOnce(&mut Monitor) -> IoResult<T>) -> Result<T, SwitchError> {
        Monitor::open(&self.path, self.timeout).and_then(|mut monitor| talk(&mut monitor)).map_err(|error| {
            let remedy = match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => {
                    "; start it with -qmp unix:PATH,server=on,wait=off -no-shutdown"
                }
                ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                    "; it hangs, or another program holds its monitor"
                }
                _ => "",
            };
            SwitchError::Unreachable { machine: self.about.machine.clone(), why: format!("{error}{remedy}") }
        })
    }
}

impl Driver for Qemu {
    fn about(&self) -> &About {
        &self.about
    }

    fn available(&self) -> Result<(), SwitchError> {
        if self.path.exists() {
            return Ok(());
        }
        let why = "there is no such socket here: start the machine with -qmp unix:PATH,server=on,wait=off -no-shutdown, on the \
                   metadata server's machine";
        Err(SwitchError::Unavailable { what: self.path.display().to_string(), why: why.into() })
    }

    fn wake(&mut self, _: &mut dyn Clock) -> Result<(), SwitchError> {
        self.talk(Monitor::wake)
    }

    fn observe(&mut self, _: &mut dyn Clock) -> Result<PowerState, SwitchError> {
        let status = self.talk(Monitor::status)?;
        Ok(match status.as_str() {
            "running" => PowerState::On,
            "suspended" => PowerState::Standby,
            "shutdown" | "prelaunch" => PowerState::Off,
            _ => PowerState::Unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// The monitor has one conversation at a time: a server that was started meanwhile held it for ever.
    #[test]
    fn a_program_that_is_started_does_not_inherit_the_conversation() {
        let dir = tempfile::TempDir::new().unwrap();
        let path = dir.path().join("qmp");
        let listener = UnixListener::bind(&path).unwrap();
        let qemu = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            client.write_all(b"{\"QMP\": {}}\n{\"return\": {}}\n").unwrap();
            client
        });
        let monitor = Monitor::open(&path, Duration::from_secs(60)).unwrap();
        let flags = rustix::io::fcntl_getfd(&monitor.stream).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        drop(qemu.join().unwrap());
    }
}
