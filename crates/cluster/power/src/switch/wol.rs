//! Wake-on-LAN: a packet with the card's address in it, sixteen times, wakes the machine.
//!
//! Nothing answers. One sender is not enough: the only awake server of a fleet once did not send. So every awake server
//! of the sleeper's rack sends, too, and again until it is up ([`About::magic`]); whether the card listens is checked
//! before every sleep, by the machine itself.
//!
//! IPv6 has no broadcast: there the packet goes to all nodes of a link, `ff02::1`. Every interface has a link of its
//! own, and the senders' interfaces have different names, so it goes out of all of them.

use super::{About, Clock, Driver, Fields, PowerState, SwitchError};
use crate::machine::Machine;
use ebb_types::Depth;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::path::Path;
use std::str::FromStr;

/// An Ethernet address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mac(pub [u8; 6]);

impl FromStr for Mac {
    type Err = String;

    fn from_str(text: &str) -> Result<Mac, String> {
        let wrong = || format!("{text:?} is not the address of a network card, such as 52:54:00:12:34:56");
        let mut bytes = [0; 6];
        let words: Vec<&str> = text.split([':', '-']).collect();
        if words.len() != 6 || words.iter().any(|word| word.len() != 2) {
            return Err(wrong());
        }
        for (byte, word) in bytes.iter_mut().zip(words) {
            *byte = u8::from_str_radix(word, 16).map_err(|_| wrong())?;
        }
        // The lowest bit of the first byte marks a group of cards.
        if bytes == [0; 6] || bytes[0] & 1 == 1 { Err(wrong()) } else { Ok(Mac(bytes)) }
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        f.write_str(&words.join(":"))
    }
}

/// Where magic packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MagicTo {
    /// A broadcast address of the machine's own network, as a rule.
    Address(SocketAddr),
    /// An IPv6 address of a link, on the links of all interfaces.
    Links { address: Ipv6Addr, port: u16 },
}

impl FromStr for MagicTo {
    type Err = String;

    /// `10.0.7.255:9`, `[ff02::1]:9`.
    fn from_str(text: &str) -> Result<MagicTo, String> {
        // Its name or number is another one on each machine.
        if text.contains('%') {
            return Err(format!("{text:?}: leave the interface out, it is sent out of all"));
        }
        let wrong = |_| {
            format!(
                "{text:?} is not an address with a port, such as \"10.0.7.255:9\", or \"[ff02::1]:9\" for all nodes of a link"
            )
        };
        match text.parse::<SocketAddr>().map_err(wrong)? {
            // [RFC 4291 §2.7]: the multicast scope 2 is the link.
            SocketAddr::V6(v6)
                if v6.ip().is_unicast_link_local() || v6.ip().segments()[0] & 0xff0f == 0xff02 =>
            {
                Ok(MagicTo::Links { address: *v6.ip(), port: v6.port() })
            }
            address => Ok(MagicTo::Address(address)),
        }
    }
}

impl fmt::Display for MagicTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MagicTo::Address(address) => write!(f, "{address}"),
            MagicTo::Links { address, port } => write!(f, "[{address}]:{port}"),
        }
    }
}

/// What wakes a machine, and where it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Magic {
    pub mac: Mac,
    pub to: MagicTo,
}

/// Flags of linux/if.h: it is up; it is the loopback.
const UP: u32 = 0x1;
const LOOPBACK: u32 = 0x8;

/// The numbers of the interfaces that are up and lead somewhere.
fn interfaces(sys: &Path) -> io::Result<Vec<u32>> {
    let read =
        |directory: &Path, name: &str| std::fs::read_to_string(directory.join(name)).unwrap_or_default();
    let number = |entry: io::Result<std::fs::DirEntry>| {
        let directory = entry.ok()?.path();
        let flags = u32::from_str_radix(read(&directory, "flags").trim().strip_prefix("0x")?, 16).ok()?;
        let number: u32 = read(&directory, "ifindex").trim().parse().ok()?;
        (flags & UP != 0 && flags & LOOPBACK == 0).then_some(number)
    };
    Ok(std::fs::read_dir(sys.join("class/net"))?.filter_map(number).collect())
}

/// Six bytes of ones, and the address sixteen times. [AMD 20213]
fn packet(mac: Mac) -> [u8; 102] {
    let mut packet = [0xff; 102];
    packet[6..].as_chunks_mut::<6>().0.fill(mac.0);
    packet
}

/// Sends the packet once.
pub fn send_magic(magic: &Magic) -> Result<(), SwitchError> {
    send(magic, &Machine::default().sys).map_err(|source| SwitchError::Unavailable {
        what: format!("the magic packet to {}", magic.to),
        why: format!(
            "{source}; name the broadcast address of the machine's network: broadcast = \"10.0.7.255:9\", or \"[ff02::1]:9\" by IPv6"
        ),
    })
}

fn send(magic: &Magic, sys: &Path) -> io::Result<()> {
    let packet = packet(magic.mac);
    match &magic.to {
        MagicTo::Address(to) => {
            let any: IpAddr = match to {
                SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
                SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
            };
            let socket = UdpSocket::bind((any, 0))?;
            socket.set_broadcast(true)?;
            socket.send_to(&packet, to).map(|_| ())
        }
        MagicTo::Links { address, port } => {
            let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
            let none = io::Error::new(io::ErrorKind::NotFound, "no network interface of this machine is up");
            let mut outcome = Err(none);
            for number in interfaces(sys)? {
                let sent = socket.send_to(&packet, SocketAddrV6::new(*address, *port, 0, number));
                // One way out is enough: others may have no IPv6.
                if outcome.is_err() {
                    outcome = sent.map(|_| ());
                }
            }
            outcome
        }
    }
}

struct Wol {
    about: About,
    magic: Magic,
}

pub(super) fn open(fields: &mut Fields) -> Result<Box<dyn Driver>, SwitchError> {
    let mac: Mac =
        fields.needed("mac", "52:54:00:12:34:56")?.parse().map_err(|why: String| fields.wrong(why))?;
    let to = fields.text("broadcast")?.unwrap_or_else(|| "255.255.255.255:9".into());
    let to = to.parse().map_err(|why| fields.wrong(format!("broadcast: {why}")))?;
    let magic = Magic { mac, to };
    let depths = vec![Depth::Standby, Depth::Off];
    let about = About { magic: Some(magic.clone()), ..About::new("wol", mac.to_string(), depths) };
    Ok(Box::new(Wol { about, magic }))
}

impl Driver for Wol {
    fn about(&self) -> &About {
        &self.about
    }

    fn wake(&mut self, _: &mut dyn Clock) -> Result<(), SwitchError> {
        send_magic(&self.magic)
    }

    fn observe(&mut self, _: &mut dyn Clock) -> Result<PowerState, SwitchError> {
        Ok(PowerState::Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_packet_is_six_ones_and_the_address_sixteen_times() {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        listener.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mac: Mac = "52:54:00:AB-cd:01".parse().unwrap();
        assert_eq!(mac.to_string(), "52:54:00:ab:cd:01");
        send_magic(&Magic { mac, to: MagicTo::Address(listener.local_addr().unwrap()) }).unwrap();
        let mut received = [0; 200];
        let length = listener.recv(&mut received).unwrap();
        let mut expected = vec![0xff; 6];
        for _ in 0..16 {
            expected.extend([0x52, 0x54, 0x00, 0xab, 0xcd, 0x01]);
        }
        assert_eq!(received[..length], expected[..]);
    }

    #[test]
    fn a_packet_to_a_link_goes_out_of_the_interfaces_that_are_up() {
        let dir = tempfile::TempDir::new().unwrap();
        let card = |name: &str, number: u32, flags: &str| {
            let at = dir.path().join("class/net").join(name);
            std::fs::create_dir_all(&at).unwrap();
            std::fs::write(at.join("ifindex"), format!("{number}\n")).unwrap();
            std::fs::write(at.join("flags"), format!("{flags}\n")).unwrap();
        };
        let found = || {
            let mut all = interfaces(dir.path()).unwrap();
            all.sort_unstable();
            all
        };
        card("lo", 1, "0x9");
        card("eth1", 3, "0x1002");
        assert_eq!(found(), Vec::<u32>::new());
        let mac = "52:54:00:00:00:07".parse().unwrap();
        let magic = Magic { mac, to: "[ff02::1]:9".parse().unwrap() };
        assert!(send(&magic, dir.path()).unwrap_err().to_string().contains("no network interface"));
        card("eth0", 2, "0x1003");
        card("bond0", 7, "0x1403");
        assert_eq!(found(), [2, 7]);
    }

    #[test]
    fn where_a_packet_goes_is_read_and_written_alike() {
        let links = |text: &str, port| MagicTo::Links { address: text.parse().unwrap(), port };
        for (text, expected) in [
            ("10.0.7.255:9", MagicTo::Address("10.0.7.255:9".parse().unwrap())),
            ("[2001:db8::7]:7", MagicTo::Address("[2001:db8::7]:7".parse().unwrap())),
            ("[ff02::1]:9", links("ff02::1", 9)),
            ("[fe80::1]:40000", links("fe80::1", 40000)),
        ] {
            assert_eq!(text.parse(), Ok(expected));
            assert_eq!(expected.to_string(), text);
        }
        for wrong in ["", "lan", "10.0.7.255", "ff02::1:9", "[ff02::1]", "[ff02::1]:x"] {
            let error = wrong.parse::<MagicTo>().unwrap_err();
            assert!(error.contains("10.0.7.255:9") && error.contains("[ff02::1]:9"), "{error}");
        }
        for named in ["[ff02::1%eth0]:9", "[ff02::1%2]:9"] {
            assert!(named.parse::<MagicTo>().unwrap_err().contains("out of all"), "{named}");
        }
    }

    #[test]
    fn what_is_no_address_of_a_card_is_refused() {
        for wrong in [
            "",
            "52:54:00:12:34",
            "52:54:00:12:34:5",
            "52:54:00:12:34:xx",
            "52:54:00:12:34:56:78",
            "ff:ff:ff:ff:ff:ff",
            "00:00:00:00:00:00",
            "+1:54:00:12:34:56",
        ] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
    }
}
