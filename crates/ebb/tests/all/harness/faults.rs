//! Faults of running processes, by a preloaded library (`tests/emulators/faults.c`): wrong wall clocks, disks that
//! hang, peers that are not reached. The processes' code knows nothing of it.

use super::machines::library;
use super::{Cluster, Who};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// What does not work between a process and a peer of its.
pub const CALL: u8 = 1;
pub const SEND: u8 = 2;
pub const HEAR: u8 = 4;
/// Calls reach a peer that takes them and never says anything.
pub const MUTE: u8 = 8;

/// What is wrong with a process.
#[derive(Clone, Debug, Default)]
pub struct Fault {
    /// Of its wall clock, in seconds.
    pub ahead: i64,
    /// Its disk answers nothing.
    pub hangs: bool,
    pub cut: BTreeMap<Who, u8>,
}

pub struct Faults {
    directory: PathBuf,
    /// Address number and port of each process.
    places: BTreeMap<Who, (u8, u16)>,
    dark: TcpListener,
    mute: TcpListener,
    /// They fill the queue of `dark`.
    _waiting: Vec<TcpStream>,
}

impl Faults {
    /// Has these processes preload the library from their next start on. `None`: there is no C compiler here.
    pub fn prepare(cluster: &mut Cluster, processes: &[Who]) -> Option<Faults> {
        if !super::machines::has_programs(&["cc"]) {
            return None;
        }
        let directory = cluster.directory().join("faults");
        std::fs::create_dir(&directory).expect("a directory");
        let settings = [
            format!("LD_PRELOAD={}", library(cluster, "faults").display()),
            format!("EBB_FAULTS={}", directory.display()),
        ];
        for who in processes {
            let command = ["env".to_owned()].into_iter().chain(settings.clone()).chain(cluster.command(*who));
            let command = command.collect();
            cluster.commands.insert(*who, command);
        }
        let places = (1..).zip(processes).map(|(own, who)| (*who, (own, cluster.port(*who)))).collect();
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let (dark, mute) = (listen(), listen());
        let _waiting = fill(&dark);
        let faults = Faults { directory, places, dark, mute, _waiting };
        processes.iter().for_each(|who| faults.set(*who, &Fault::default()));
        Some(faults)
    }

    /// From now on this, and nothing else, is wrong with the process.
    pub fn set(&self, who: Who, fault: &Fault) {
        let port = |listener: &TcpListener| listener.local_addr().expect("it listens").port();
        let (own, _) = self.places[&who];
        let mut bytes = fault.ahead.to_le_bytes().to_vec();
        bytes.extend(u32::from(fault.hangs).to_le_bytes());
        bytes.extend(u32::from(own).to_le_bytes());
        bytes.extend(port(&self.dark).to_le_bytes());
        bytes.extend(port(&self.mute).to_le_bytes());
        bytes.extend((fault.cut.len() as u32).to_le_bytes());
        for (peer, what) in &fault.cut {
            let (own, port) = self.places[peer];
            bytes.extend(port.to_le_bytes());
            bytes.extend([own, *what]);
        }
        // The size of `struct control`; the file is mapped, so it is changed and not replaced.
        bytes.resize(24 + 4 * 32, 0);
        let name = match who {
            Who::Meta(id) => format!("meta-{id}"),
            Who::Server(id) => format!("server-{id}"),
            Who::Gateway => "gateway".to_owned(),
            Who::SecondGateway => format!("gateway-127.0.0.1:{}", self.places[&who].1),
        };
        let path = self.directory.join(name);
        let file = std::fs::OpenOptions::new().create(true).truncate(false).write(true).open(path);
        let written = file.and_then(|file| std::os::unix::fs::FileExt::write_all_at(&file, &bytes, 0));
        written.expect("write a control file");
    }

    pub fn clear(&self, who: Who) {
        self.set(who, &Fault::default());
    }
}

/// Fills its queue: it answers no more calls.
fn fill(listener: &TcpListener) -> Vec<TcpStream> {
    rustix::net::listen(listener, 0).expect("it listens");
    let address: SocketAddr = listener.local_addr().expect("it listens");
    let call = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
    std::iter::from_fn(call).collect()
}
