//! Which run of a program a client is, and whether another one on this machine still runs.
//!
//! A run's id begins with a number of its machine: of this boot of it, and of the network namespace. For as long as it
//! runs, the process holds a socket whose name has the id. The kernel drops it with the process, however that ended;
//! one that is suspended or does not answer still has it.

use crate::secret::random;
use ebb_types::crc32c;
use std::io::{self, ErrorKind};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// A run of this process.
#[derive(Debug)]
pub(crate) struct Run {
    pub id: u64,
    /// `None`: it cannot have one. Others then wait until it has been silent for long enough.
    _alive: Option<UnixDatagram>,
}

impl Run {
    pub fn begin() -> Run {
        let low = u32::from_le_bytes(random());
        Run::with(low, |id| name(id).and_then(|name| UnixDatagram::bind_addr(&name)))
    }

    /// Without a socket, an id of this machine would say that the run has ended.
    fn with(low: u32, bind: impl Fn(u64) -> io::Result<UnixDatagram>) -> Run {
        let own = machine().and_then(|machine| {
            let id = u64::from(machine) << 32 | u64::from(low);
            Ok(Run { id, _alive: Some(bind(id)?) })
        });
        own.unwrap_or_else(|_| Run { id: id_elsewhere(), _alive: None })
    }
}

/// An id of no process of this machine.
fn id_elsewhere() -> u64 {
    loop {
        let id = u64::from_le_bytes(random());
        if machine().ok() != Some((id >> 32) as u32) {
            return id;
        }
    }
}

/// Whether this run was one of this machine and has ended. `false`: it runs, or is another machine's.
pub(crate) fn has_ended(id: u64) -> bool {
    if machine().ok() != Some((id >> 32) as u32) {
        return false;
    }
    let asked =
        UnixDatagram::unbound().and_then(|socket| name(id).and_then(|name| socket.connect_addr(&name)));
    asked.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
}

/// Not a file: nothing is left of it.
fn name(id: u64) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("ebb-run-{id:016x}"))
}

/// Processes for which this is the same see each other's sockets.
fn machine() -> io::Result<u32> {
    let mut about = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    about.extend(std::fs::read_link("/proc/self/ns/net")?.as_os_str().as_encoded_bytes());
    Ok(crc32c(&about))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_ended_when_its_process_has() {
        let run = Run::begin();
        assert!(!has_ended(run.id), "it runs");
        let id = run.id;
        drop(run);
        assert!(has_ended(id));
        assert!(!has_ended(id ^ 1 << 40), "another machine's");
    }

    #[test]
    fn a_run_without_a_socket_is_not_taken_for_one_that_has_ended() {
        let run = Run::with(7, |_| Err(ErrorKind::OutOfMemory.into()));
        assert!(!has_ended(run.id));
    }
}
