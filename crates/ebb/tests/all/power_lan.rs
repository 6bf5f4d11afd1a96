//! Servers that are woken by magic packets, in racks that are network namespaces: only a neighbour of the sleeper
//! reaches it. One rack is woken by IPv6.

use crate::harness::load::{Load, Options};
use crate::harness::machines::{
    Beside, emulator, has_programs, install, library, prove, set_paths, wait_off,
};
use crate::harness::{Cluster, Shape, Who, array};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use toml::{Table, toml};

/// One server of each rack.
const MACHINES: std::ops::RangeInclusive<u16> = 7..=9;

/// Network namespaces; removed at the end.
struct Racks {
    number: String,
}

impl Racks {
    /// `None`: not permitted here.
    fn up(count: u16) -> Option<Racks> {
        let made = Command::new(emulator("racks")).args(["up", &count.to_string()]).output().expect("run sh");
        if !made.status.success() {
            ebb_testing::skip("network namespaces are not permitted");
            return None;
        }
        Some(Racks { number: String::from_utf8(made.stdout).expect("a number").trim().to_owned() })
    }

    fn namespace(&self, rack: u16) -> String {
        format!("ebb-{}-{rack}", self.number)
    }

    /// The `host`th address of a rack's network: 2 is the rack's servers', 3 everybody's.
    fn address(&self, rack: u16, host: u16) -> String {
        format!("198.18.{}.{}", self.number, 4 * rack + host)
    }

    /// Starts a command in the rack's namespace, with the emulated cards' settings.
    fn command(&self, rack: u16, directory: &Path) -> Vec<String> {
        let at = |name: &str| directory.join(name).display().to_string();
        let words = ["ip", "netns", "exec", &self.namespace(rack), "env"].map(str::to_owned);
        let settings = [format!("WOL_CARDS={}", at("cards")), format!("LD_PRELOAD={}", at("wol_card.so"))];
        words.into_iter().chain(settings).collect()
    }
}

impl Drop for Racks {
    fn drop(&mut self) {
        let down = Command::new(emulator("racks")).args(["down", &self.number]).output();
        assert!(
            down.is_ok_and(|down| down.status.success()) || std::thread::panicking(),
            "racks stay behind"
        );
    }
}

fn run(words: &[&str]) {
    let ran = Command::new(words[0]).args(&words[1..]).output().expect("it is installed");
    assert!(ran.status.success(), "{words:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

fn mac(id: u16) -> String {
    format!("52:54:00:00:00:{id:02x}")
}

/// The racks' servers, as the example has them.
fn racks_of(cluster: &Cluster) -> BTreeMap<u16, u16> {
    let text = std::fs::read_to_string(&cluster.config).expect("a file");
    let table: Table = text.parse().expect("TOML");
    let number = |server: &Table, key: &str| server[key].as_integer().expect("a number") as u16;
    array(&table, "server").into_iter().map(|s| (number(s, "id"), number(s, "rack"))).collect()
}

/// Gives every process the address of its namespace.
fn move_into(cluster: &mut Cluster, racks: &Racks, rack_of: &BTreeMap<u16, u16>) {
    let moved = |entry: &mut toml::Value, host: &str| {
        let address = entry["address"].as_str().expect("an address");
        let port = address.rsplit_once(':').expect("a port").1;
        entry["address"] = format!("{host}:{port}").into();
    };
    cluster.edit(|table| {
        for meta in table["meta"].as_array_mut().expect("an array") {
            moved(meta, &racks.address(0, 1));
        }
        for server in table["server"].as_array_mut().expect("an array") {
            let id = server["id"].as_integer().expect("a number") as u16;
            moved(server, &racks.address(rack_of[&id], 2));
        }
    });
    for (id, rack) in rack_of {
        let mut command = racks.command(*rack, cluster.directory());
        command.extend(cluster.command(Who::Server(*id)));
        cluster.commands.insert(Who::Server(*id), command);
    }
}

/// Gives every server a card that does not listen for magic packets, as after a reboot, and starts what wakes its
/// machine.
fn start_cards(cluster: &mut Cluster, racks: &Racks, rack_of: &BTreeMap<u16, u16>) -> Vec<Beside> {
    let directory = cluster.directory().to_owned();
    library(cluster, "wol_card");
    std::fs::create_dir(directory.join("cards")).expect("a directory");
    for (id, rack) in rack_of.iter().filter(|(id, _)| MACHINES.contains(id)) {
        let (card, wire) = (format!("card{id}"), format!("wire{id}"));
        let link = ["ip", "-n", &racks.namespace(*rack), "link", "add", &card, "address", &mac(*id)];
        run(&[&link[..], &["type", "veth", "peer", "name", &wire]].concat());
        std::fs::write(directory.join("cards").join(&card), "d").expect("write");
        install(cluster, *id);
    }
    let listener = |rack: u16| {
        let words = racks.command(rack, &directory);
        let log = directory.join(format!("rack-{rack}.packets"));
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).arg("python3").arg(emulator("wol.py")).arg(&log);
        for (id, _) in rack_of.iter().filter(|(id, of)| **of == rack && MACHINES.contains(id)) {
            command.arg(format!("card{id}={}", cluster.data(Who::Server(*id)).display()));
        }
        Beside::start(&mut command, &directory.join(format!("rack-{rack}.out")), || log.exists())
    };
    (1..=3).map(listener).collect()
}

/// Where the packets for a server go: one of three has no IPv4 to be woken by.
fn broadcast(racks: &Racks, rack: u16) -> String {
    match rack {
        2 => "[ff02::1]:9".to_owned(),
        _ => format!("{}:9", racks.address(rack, 3)),
    }
}

/// In the lowest gear one server of each rack is awake: if it does not send, its neighbours stay down.
#[test]
fn neighbours_wake_sleepers_by_magic_packets() {
    if !has_programs(&["ip", "cc", "python3"]) {
        return;
    }
    let Some(racks) = Racks::up(3) else { return };
    let mut cluster = Cluster::create(&Shape { depth_off: true, ..Shape::lively() });
    let rack_of = racks_of(&cluster);
    move_into(&mut cluster, &racks, &rack_of);
    set_paths(&cluster, |id| {
        let mut path = toml! { driver = "wol" };
        path.insert("mac".into(), mac(id).into());
        path.insert("broadcast".into(), broadcast(&racks, rack_of[&id]).into());
        // A process that the leader starts would not be in its rack's namespace.
        let stays = toml! { driver = "none" };
        Some(if MACHINES.contains(&id) { path } else { stays })
    });
    let _cards = start_cards(&mut cluster, &racks, &rack_of);
    cluster.start_all();
    let asleep: Vec<u16> = MACHINES.collect();
    prove(&cluster, &asleep);
    let options = Options { workers: 8, pause: Duration::from_millis(50), ..Options::default() };
    let load = Load::start(cluster.client_config(), options);
    cluster.gear(&["set", "1/3"]);
    wait_off(&cluster, &asleep);
    let up = cluster.shift(3);
    println!("up in {up:.2?}, debt paid in {:.2?}", cluster.heal());
    for id in asleep {
        let card = std::fs::read_to_string(cluster.directory().join(format!("cards/card{id}")));
        assert_eq!(card.expect("it was written"), "g", "server {id} sets its card before it sleeps");
        let rack = rack_of[&id];
        let packets = std::fs::read_to_string(cluster.directory().join(format!("rack-{rack}.packets")));
        // The addresses of a link are the kernel's choice. Only the servers of the rack send there.
        let sender = if rack == 2 { "fe80:".to_owned() } else { format!("{} ", racks.address(rack, 2)) };
        let packets = packets.expect("a log");
        let is_one = |line: &str| line.starts_with(&sender) && line.ends_with(&mac(id));
        assert!(packets.lines().any(is_one), "none from {sender:?} in {packets}");
    }
    load.stop().assert_flawless();
    assert!(cluster.verify(&["--read"]).blocks > 0);
}
