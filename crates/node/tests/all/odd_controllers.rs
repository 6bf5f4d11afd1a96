//! Servers that are woken through management controllers which do not do what they say, and machines that do not come up: from the
//! lists of bugs that others have met.

use crate::harness::bmc::{Asked, Bmc, Manner};
use crate::harness::machines::{emulator, install, prove, set_paths, wait_off};
use crate::harness::{Cluster, PATIENCE, Shape, Who, wait};
use ebb_types::{ServerState, ServerStatus};
use std::fs::File;
use std::path::PathBuf;
use toml::{Table, Value, toml};

/// The server behind the controller; the others are switched as processes. It sleeps in gear 2.
const SLEEPER: u16 = 9;
const MACHINE: Who = Who::Server(SLEEPER);

/// While this file is locked, a machine that goes down is not off.
fn brake(cluster: &Cluster) -> PathBuf {
    cluster.directory().join("brake")
}

/// Keeps the machine from going off, until it is dropped.
fn hold(cluster: &Cluster) -> File {
    let file = File::create(brake(cluster)).expect("a file");
    file.lock().expect("a lock");
    file
}

/// A cluster in which the sleeper's controller has proved that it can wake it; and `others` of its paths after that.
fn cluster(others: impl Fn(&Cluster) -> Vec<Table>) -> (Cluster, Bmc) {
    let mut cluster = Cluster::create(&Shape { depth_off: true, ..Shape::lively() });
    install(&mut cluster, SLEEPER);
    let bmc = Bmc::start(&cluster.data(MACHINE));
    set_paths(&cluster, |id| (id == SLEEPER).then(|| bmc.path()));
    let brake = brake(&cluster).display().to_string();
    let others: Vec<Value> = others(&cluster).into_iter().map(Value::Table).collect();
    cluster.edit(|table| {
        table["power"]["off"] = vec!["flock".to_owned(), brake, "true".to_owned()].into();
        let server = &mut table["server"].as_array_mut().expect("servers")[usize::from(SLEEPER) - 1];
        server["power"].as_array_mut().expect("its paths").extend(others);
    });
    cluster.start_all();
    prove(&cluster, &[SLEEPER]);
    (cluster, bmc)
}

/// The path by a program that does what it is told.
fn plug(cluster: &Cluster) -> Table {
    let machine = emulator("machine").display().to_string();
    let data = cluster.data(MACHINE).display().to_string();
    let mut path = toml! { driver = "command" };
    path.insert("wake".into(), vec![machine.clone(), data.clone(), "on".to_owned()].into());
    path.insert("state".into(), vec![machine, data, "state".to_owned()].into());
    path
}

fn sleeper(cluster: &Cluster) -> ServerStatus {
    let mut servers = cluster.status().servers.into_iter();
    servers.find(|server| server.id.0 == SLEEPER).expect("it is known")
}

fn wait_closed(cluster: &Cluster) {
    wait("the server has closed its store", PATIENCE, || cluster.pid(MACHINE).is_none().then_some(()));
}

/// A 204 is not a result [Ironic, redfish/power.py].
#[test]
fn a_controller_that_says_yes_and_does_nothing_is_passed_over_for_the_next_path() {
    let (cluster, bmc) = cluster(|cluster| vec![plug(cluster)]);
    cluster.shift(2);
    wait_off(&cluster, &[SLEEPER]);
    bmc.behave(Manner::DoesNothing);
    bmc.take_asked();
    println!("up in {:.2?}", cluster.shift(3));
    assert!(bmc.asked().contains(&Asked::On(204)), "it comes first: {:?}", bmc.asked());
    let paths = sleeper(&cluster).power.paths;
    let why = paths[0].failure.as_ref().map(|failure| failure.why.as_str()).unwrap_or_default();
    assert!(!paths[0].proven && why.contains("not awake yet"), "{paths:?}");
    assert!(paths[1].proven && paths[1].failure.is_none(), "{paths:?}");
    let status = cluster.ebb(&["status"]);
    let said = String::from_utf8_lossy(&status.stdout);
    assert!(said.contains("wake path: redfish, did not wake it: "), "{said}");
}

/// iDRAC 10 answers 409 while the machine is still going down [openstack-ironic#502].
#[test]
fn a_controller_that_refuses_while_the_machine_goes_down_is_told_again_and_is_not_to_blame() {
    let (cluster, bmc) = cluster(|_| Vec::new());
    bmc.behave(Manner::SaysOffTooSoon);
    let held = hold(&cluster);
    cluster.shift(2);
    wait_closed(&cluster);
    bmc.take_asked();
    cluster.gear(&["set", "3/3"]);
    wait("it is told to wake the machine, and refuses", PATIENCE, || {
        bmc.asked().contains(&Asked::On(409)).then_some(())
    });
    assert_eq!(sleeper(&cluster).state, ServerState::Waking);
    drop(held);
    cluster.shift(3);
    let asked = bmc.asked();
    assert!(asked.contains(&Asked::On(204)), "{asked:?}");
    // On a machine that boots slowly the wake-up may be late; that is another reason.
    let failure = sleeper(&cluster).power.paths[0].failure.clone();
    assert!(failure.as_ref().is_none_or(|failure| failure.why.contains("not awake yet")), "{failure:?}");
}

#[test]
fn a_server_whose_disk_is_missing_at_boot_is_late_and_not_failed_and_wakes_once_it_is_back() {
    let (cluster, _bmc) = cluster(|_| Vec::new());
    cluster.shift(2);
    wait_off(&cluster, &[SLEEPER]);
    let data = cluster.data(MACHINE);
    let away = data.with_extension("away");
    std::fs::rename(&data, &away).expect("take the disk out");
    // Nothing can be made in its place.
    File::create(&data).expect("a file");
    cluster.gear(&["set", "3/3"]);
    cluster.wait_status("the server is late", |status| {
        let server = status.servers.iter().find(|server| server.id.0 == SLEEPER).expect("it is known");
        let late = server.switch_trouble.as_ref().is_some_and(|trouble| trouble.contains("not awake yet"));
        late && server.state == ServerState::Waking
    });
    std::fs::remove_file(&data).expect("a file");
    std::fs::rename(&away, &data).expect("put the disk back");
    cluster.heal();
    assert!(cluster.verify(&[]).groups_compared > 0);
}
