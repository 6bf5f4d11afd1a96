//! Wake-on-LAN: a packet with the card's address in it, sixteen times, wakes the machine.
//!
//! Nothing answers. One sender is not enough: the only awake server of a fleet once did not send. So every awake server of the
//! sleeper's rack sends, too, and again until it is up ([`About::magic`]); whether the card listens is checked before every
//! sleep, by the machine itself.

use super::{About, Clock, Driver, Fields, PowerState, SwitchError};
use ebb_types::Depth;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
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

/// What wakes a machine, and where it is sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Magic {
    pub mac: Mac,
    /// A broadcast address of the machine's own network, as a rule.
    pub to: SocketAddr,
}

/// Six bytes of ones, and the address sixteen times. [AMD 20213]
fn packet(mac: Mac) -> [u8; 102] {
    let mut packet = [0xff; 102];
    packet[6..].as_chunks_mut::<6>().0.fill(mac.0);
    packet
}

/// Sends the packet once.
pub fn send_magic(magic: &Magic) -> Result<(), SwitchError> {
    let any: IpAddr = match magic.to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let send = || -> std::io::Result<usize> {
        let socket = UdpSocket::bind((any, 0))?;
        socket.set_broadcast(true)?;
        socket.send_to(&packet(magic.mac), magic.to)
    };
    send().map(|_| ()).map_err(|source| SwitchError::Unavailable {
        what: format!("the magic packet to {}", magic.to),
        why: format!(
            "{source}; name the broadcast address of the machine's network: broadcast = \"10.0.7.255:9\""
        ),
    })
}

struct Wol {
    about: About,
    magic: Magic,
}

pub(super) fn open(fields: &mut Fields) -> Result<Box<dyn Driver>, SwitchError> {
    let mac: Mac =
        fields.needed("mac", "52:54:00:12:34:56")?.parse().map_err(|why: String| fields.wrong(why))?;
    let to = fields.text("broadcast")?.unwrap_or_else(|| "255.255.255.255:9".into());
    let to = to.parse().map_err(|_| {
        fields.wrong(format!(
            "broadcast is an address with a port, such as \"10.0.7.255:9\", and {to:?} is none"
        ))
    })?;
    let magic = Magic { mac, to };
    let about = About {
        driver: "wol",
        machine: mac.to_string(),
        controller: mac.to_string(),
        depths: vec![Depth::Standby, Depth::Off],
        puts_to_sleep: false,
        settle: None,
        magic: Some(magic.clone()),
        meter: None,
    };
    Ok(Box::new(Wol { about, magic }))
}

impl Driver for Wol {
    fn about(&self) -> &About {
        &self.about
    }

    fn available(&self) -> Result<(), SwitchError> {
        Ok(())
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
        send_magic(&Magic { mac, to: listener.local_addr().unwrap() }).unwrap();
        let mut received = [0; 200];
        let length = listener.recv(&mut received).unwrap();
        let mut expected = vec![0xff; 6];
        for _ in 0..16 {
            expected.extend([0x52, 0x54, 0x00, 0xab, 0xcd, 0x01]);
        }
        assert_eq!(received[..length], expected[..]);
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
