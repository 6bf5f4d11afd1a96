//! The machine that a server runs on: the server puts it to sleep, if it can be woken again.
//!
//! Before every sleep it makes sure that the machine can sleep so deep, and that its network card listens for magic
//! packets if those are to wake it: the setting is lost at a reboot, or with a new driver, and then the machine would
//! stay down. It is set to magic packets alone: with any of the others an ARP request or a scrape of its figures would
//! wake it.

use crate::machine::Machine;
use crate::program::{self, ProgramError};
use crate::switch::Mac;
use ebb_types::Depth;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// For the command; the machine then goes down by itself.
const PATIENCE: Duration = Duration::from_secs(60);
/// The bit `g` of ethtool: magic packets. [linux/ethtool.h]
const WAKE_MAGIC: u32 = 1 << 5;

/// Puts this machine to sleep.
pub struct OwnMachine {
    /// Program and arguments.
    suspend: Vec<String>,
    off: Vec<String>,
    /// The cards on which magic packets are to arrive.
    macs: Vec<Mac>,
    machine: Machine,
}

#[derive(Debug, thiserror::Error)]
pub enum OwnMachineError {
    #[error("this machine cannot suspend: {path} has {found:?}; use power.depth = \"off\"")]
    NoSuspend { path: PathBuf, found: String },
    #[error(
        "suspend would only idle: {path} has {found:?}; boot with mem_sleep_default=deep, or use power.depth = \"off\""
    )]
    OnlyIdle { path: PathBuf, found: String },
    #[error("no network card here has the address {mac}: check mac in [[server.power]] against `ip link`")]
    NoCard { mac: Mac },
    #[error(
        "cannot ask {card} for its wake-on-LAN: {source}; the server needs CAP_NET_ADMIN, and the card wake-on-LAN"
    )]
    Card { card: String, source: io::Error },
    #[error(
        "{card} does not wake by magic packets; enable wake-on-LAN in the firmware, or use another driver"
    )]
    NoMagic { card: String },
    #[error("{card} does not keep the wake-on-LAN setting g; see `ethtool {card}`")]
    NotKept { card: String },
    #[error("{command}: {source}; run it by hand, and see docs/switches.md about the rights it needs")]
    Command { command: String, source: ProgramError },
}

/// The wake-on-LAN of network cards, by their names: bits as in linux/ethtool.h.
trait Cards {
    /// What the card can, and what is set.
    fn get(&self, card: &str) -> io::Result<(u32, u32)>;
    fn set(&self, card: &str, options: u32) -> io::Result<()>;
}

impl OwnMachine {
    pub fn new(suspend: Vec<String>, off: Vec<String>, macs: Vec<Mac>) -> OwnMachine {
        OwnMachine { suspend, off, macs, machine: Machine::default() }
    }

    fn command(&self, depth: Depth) -> &[String] {
        match depth {
            Depth::Standby => &self.suspend,
            Depth::Off => &self.off,
        }
    }

    /// Whether the machine can be put to sleep so deep, and be woken. Sets the wake-on-LAN of its cards if it is lost.
    pub fn check(&self, depth: Depth) -> Result<(), OwnMachineError> {
        self.check_with(depth, &Kernel)
    }

    fn check_with(&self, depth: Depth, cards: &dyn Cards) -> Result<(), OwnMachineError> {
        // What another program does is not known here.
        if depth == Depth::Standby && self.suspend.first().is_some_and(|program| program == "systemctl") {
            self.check_suspend()?;
        }
        self.macs.iter().try_for_each(|mac| self.check_card(*mac, cards))
    }

    /// Whether its cards wake it by magic packets, as set if that was lost; `None`: none is to.
    pub fn wakes_on_magic(&self) -> Option<bool> {
        let awaited = !self.macs.is_empty();
        awaited.then(|| self.macs.iter().all(|mac| self.check_card(*mac, &Kernel).is_ok()))
    }

    fn check_suspend(&self) -> Result<(), OwnMachineError> {
        let read = |name: &str| {
            let path = self.machine.sys.join("power").join(name);
            let found = std::fs::read_to_string(&path).unwrap_or_default().trim().to_string();
            (path, found)
        };
        let (path, found) = read("state");
        if !found.split_whitespace().any(|word| word == "mem") {
            return Err(OwnMachineError::NoSuspend { path, found });
        }
        let (path, found) = read("mem_sleep");
        if !found.split_whitespace().any(|word| word == "[deep]") {
            return Err(OwnMachineError::OnlyIdle { path, found });
        }
        Ok(())
    }

    fn check_card(&self, mac: Mac, cards: &dyn Cards) -> Result<(), OwnMachineError> {
        let name = card_of(&self.machine.sys, mac).ok_or(OwnMachineError::NoCard { mac })?;
        let card = || name.clone();
        let failed = |source| OwnMachineError::Card { card: card(), source };
        let (supported, active) = cards.get(&name).map_err(failed)?;
        if supported & WAKE_MAGIC == 0 {
            return Err(OwnMachineError::NoMagic { card: card() });
        }
        if active == WAKE_MAGIC {
            return Ok(());
        }
        cards.set(&name, WAKE_MAGIC).map_err(failed)?;
        let (_, active) = cards.get(&name).map_err(failed)?;
        if active == WAKE_MAGIC { Ok(()) } else { Err(OwnMachineError::NotKept { card: card() }) }
    }

    /// The network cards of this machine.
    pub fn cards() -> Vec<Card> {
        cards(&Machine::default().sys, &Kernel)
    }

    /// Runs the command. The machine goes down during it or soon after; from a suspend this returns.
    pub fn sleep(&self, depth: Depth) -> Result<(), OwnMachineError> {
        let words = self.command(depth);
        let (program, arguments) = words.split_first().expect("the configuration was checked");
        let mut command = Command::new(program);
        command.args(arguments);
        let ran = program::run(command, PATIENCE);
        ran.map(|_| ()).map_err(|source| OwnMachineError::Command { command: words.join(" "), source })
    }
}

/// A network card of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Card {
    pub name: String,
    pub mac: Mac,
    /// Why it does not wake the machine by magic packets.
    pub unable: Option<String>,
}

fn cards(sys: &Path, kernel: &dyn Cards) -> Vec<Card> {
    let card = |path: PathBuf| {
        let mac = std::fs::read_to_string(path.join("address")).ok()?.trim().parse().ok()?;
        let name = path.file_name()?.to_string_lossy().into_owned();
        let unable = match kernel.get(&name) {
            Ok((supported, _)) if supported & WAKE_MAGIC != 0 => None,
            Ok(_) => Some("the card cannot, or the firmware forbids it".to_owned()),
            Err(source) => Some(source.to_string()),
        };
        Some(Card { name, mac, unable })
    };
    let entries = std::fs::read_dir(sys.join("class/net")).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.join("device").exists()).collect();
    paths.sort();
    paths.into_iter().filter_map(card).collect()
}

/// The card with this address; of a bond and its members, a real one.
fn card_of(sys: &Path, mac: Mac) -> Option<String> {
    let entries = std::fs::read_dir(sys.join("class/net")).ok()?;
    let has = |path: &Path| {
        let text = std::fs::read_to_string(path.join("address")).unwrap_or_default();
        text.trim().parse::<Mac>().is_ok_and(|found| found == mac)
    };
    let mut found: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| has(path)).collect();
    found.sort_by_key(|path| (!path.join("device").exists(), path.clone()));
    Some(found.first()?.file_name()?.to_string_lossy().into_owned())
}

struct Kernel;

/// `struct ethtool_wolinfo` of linux/ethtool.h.
#[repr(C)]
#[derive(Default)]
struct WolInfo {
    cmd: u32,
    supported: u32,
    wolopts: u32,
    sopass: [u8; 6],
}

const SIOCETHTOOL: libc::Ioctl = 0x8946;
const GET_WOL: u32 = 5;
const SET_WOL: u32 = 6;

impl Kernel {
    fn ask(card: &str, info: &mut WolInfo) -> io::Result<()> {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
        // SAFETY: a structure of plain numbers and pointers, for which zero is valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if card.len() >= request.ifr_name.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        for (to, from) in request.ifr_name.iter_mut().zip(card.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = std::ptr::from_mut(info).cast();
        // SAFETY: the request names a card and points to a structure of the size that its command fills; both outlive
        // the call.
        match unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL, &mut request) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }
}

impl Cards for Kernel {
    fn get(&self, card: &str) -> io::Result<(u32, u32)> {
        let mut info = WolInfo { cmd: GET_WOL, ..WolInfo::default() };
        Kernel::ask(card, &mut info)?;
        Ok((info.supported, info.wolopts))
    }

    fn set(&self, card: &str, options: u32) -> io::Result<()> {
        Kernel::ask(card, &mut WolInfo { cmd: SET_WOL, wolopts: options, ..WolInfo::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use tempfile::TempDir;

    const MAC: Mac = Mac([0x52, 0x54, 0, 0, 0, 7]);

    /// One card: what it can, what is set, and whether it keeps what is set.
    struct Fake {
        supported: u32,
        active: Cell<u32>,
        keeps: bool,
    }

    impl Cards for Fake {
        fn get(&self, card: &str) -> io::Result<(u32, u32)> {
            assert_eq!(card, "eth7");
            Ok((self.supported, self.active.get()))
        }
        fn set(&self, _: &str, options: u32) -> io::Result<()> {
            if self.keeps {
                self.active.set(options);
            }
            Ok(())
        }
    }

    fn write(dir: &TempDir, path: &str, text: &str) {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn own(dir: &TempDir, macs: Vec<Mac>) -> OwnMachine {
        let at = |name: &str| dir.path().join(name);
        let words = |word: &str| vec!["systemctl".to_string(), word.to_string()];
        let machine = Machine { sys: at("sys"), proc: at("proc"), dev: at("dev") };
        OwnMachine { machine, ..OwnMachine::new(words("suspend"), words("poweroff"), macs) }
    }

    fn none() -> Fake {
        Fake { supported: 0, active: Cell::new(0), keeps: true }
    }

    #[test]
    fn suspend_is_checked_before_it_is_used() {
        let dir = TempDir::new().unwrap();
        let own = own(&dir, Vec::new());
        let error = || own.check_with(Depth::Standby, &none()).unwrap_err().to_string();
        assert!(error().contains("cannot suspend") && error().contains("power.depth = \"off\""));
        write(&dir, "sys/power/state", "freeze disk\n");
        assert!(error().contains("\"freeze disk\""));
        write(&dir, "sys/power/state", "freeze mem disk\n");
        write(&dir, "sys/power/mem_sleep", "[s2idle] deep\n");
        assert!(error().contains("mem_sleep_default=deep"));
        write(&dir, "sys/power/mem_sleep", "s2idle [deep]\n");
        own.check_with(Depth::Standby, &none()).unwrap();
        assert!(own.check_with(Depth::Off, &none()).is_ok());
    }

    #[test]
    fn a_card_listens_for_magic_packets_alone_or_the_machine_stays_awake() {
        let dir = TempDir::new().unwrap();
        let own = own(&dir, vec![MAC]);
        let check = |fake: &Fake| own.check_with(Depth::Off, fake).map_err(|error| error.to_string());
        assert!(
            check(&none()).unwrap_err().contains("no network card here has the address 52:54:00:00:00:07")
        );
        write(&dir, "sys/class/net/bond0/address", "52:54:00:00:00:07\n");
        write(&dir, "sys/class/net/eth7/address", "52:54:00:00:00:07\n");
        write(&dir, "sys/class/net/eth7/device/vendor", "0x1af4\n");
        write(&dir, "sys/class/net/eth8/address", "52:54:00:00:00:08\n");
        let fake = |supported, active, keeps| Fake { supported, active: Cell::new(active), keeps };
        assert!(check(&fake(0b1, 0b1, true)).unwrap_err().contains("does not wake by magic packets"));
        // Set to g; lost; set to g and to unicast.
        for active in [WAKE_MAGIC, 0, WAKE_MAGIC | 0b10] {
            let card = fake(WAKE_MAGIC | 0b10, active, true);
            check(&card).unwrap();
            assert_eq!(card.active.get(), WAKE_MAGIC);
        }
        assert!(check(&fake(WAKE_MAGIC, 0, false)).unwrap_err().contains("does not keep"));
        let all = cards(&dir.path().join("sys"), &fake(WAKE_MAGIC, 0, true));
        assert_eq!(all, [Card { name: "eth7".into(), mac: MAC, unable: None }], "the others are no devices");
        assert!(cards(&dir.path().join("sys"), &fake(1, 0, true))[0].unable.is_some());
    }

    #[test]
    fn a_command_that_fails_is_told() {
        let words = |script: &str| ["sh", "-c", script].map(str::to_owned).to_vec();
        let own = OwnMachine::new(
            words("true"),
            words("echo Interactive authentication required. >&2; exit 1"),
            Vec::new(),
        );
        own.sleep(Depth::Standby).unwrap();
        let error = own.sleep(Depth::Off).unwrap_err().to_string();
        assert!(error.contains("authentication required") && error.contains("docs/switches.md"), "{error}");
    }
}
