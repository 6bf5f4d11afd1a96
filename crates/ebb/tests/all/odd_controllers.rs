//! Servers that are woken through management controllers which do not do what they say, and machines that do not come
//! up: from the lists of bugs that others have met.

use crate::harness::bmc::{Asked, Bmc, Manner};
use crate::harness::load::{Load, Options};
use crate::harness::machines::{emulator, has_programs, install, library, prove, set_paths, wait_off};
use crate::harness::{Cluster, EBB, PATIENCE, Shape, Who, wait};
use ebb_types::{ServerState, ServerStatus};
use serde_json::Value as Json;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use toml::{Table, Value, toml};

/// The server behind the controller; the others are switched as processes. It sleeps in gear 2.
const SLEEPER: u16 = 9;
const MACHINE: Who = Who::Server(SLEEPER);
/// In milliseconds, and that of heartbeats. No server fails here: one that waits for a processor is not to be taken for
/// one that did.
const LEASE: Option<(u32, u32)> = Some((6000, 300));

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
    let (cluster, bmc) = unproven(|_| (), others);
    prove(&cluster, &[SLEEPER]);
    (cluster, bmc)
}

/// `prepare`: before the sleeper's process becomes a machine.
fn unproven(prepare: impl FnOnce(&mut Cluster), others: impl Fn(&Cluster) -> Vec<Table>) -> (Cluster, Bmc) {
    let mut cluster = Cluster::create(&Shape { depth_off: true, lease: LEASE, ..Shape::lively() });
    prepare(&mut cluster);
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

/// Nothing has proved that it can wake the sleeper: so a wake-up has three minutes until it is late.
#[test]
fn a_machine_that_says_on_while_it_goes_down_is_not_awake_and_is_woken_when_it_is_off() {
    let (mut cluster, bmc) = unproven(|_| (), |_| Vec::new());
    cluster.gear(&["set", "3/3"]);
    let held = hold(&cluster);
    let mut test = Command::new(EBB);
    test.args(["power", "test", "9", "--config"]).arg(&cluster.config).stdout(Stdio::null());
    let mut test = test.spawn().expect("start ebb");
    wait_closed(&cluster);
    // The leader that ordered the sleep waits for its end. The next one does not know that the machine is not down yet.
    cluster.kill(Who::Meta(1));
    test.kill().expect("it waits");
    test.wait().expect("a child");
    let says = bmc.dictate();
    bmc.take_asked();
    cluster.launch(Who::Meta(1));
    says.send("On").expect("it hears");
    wait("it is looked at again", PATIENCE, || (bmc.asked().len() == 1 && bmc.waits()).then_some(()));
    let found = sleeper(&cluster);
    assert_eq!(found.state, ServerState::Waking);
    assert_eq!(found.switch_trouble, None, "the first attempt continues");
    drop(held);
    wait_off(&cluster, &[SLEEPER]);
    drop(says);
    cluster.heal();
    let asked = bmc.asked();
    // Off: that decides; and again, with the types of reset that it takes.
    let expected = [Asked::State("On"), Asked::State("Off"), Asked::State("Off"), Asked::On(204)];
    assert_eq!(asked[..4], expected, "an order to a machine that goes down is lost: {asked:?}");
}

/// The file that says by how many seconds the sleeper's clock is ahead, once it is there.
fn ahead(cluster: &Cluster) -> PathBuf {
    cluster.directory().join("ahead")
}

/// One that goes by the time of day would take the order for an old one.
#[test]
fn a_server_whose_clock_is_two_hours_off_sleeps_wakes_and_serves_and_is_told_of() {
    if !has_programs(&["cc"]) {
        return;
    }
    let with_clock = |cluster: &mut Cluster| {
        let (library, ahead) = (library(cluster, "clock"), ahead(cluster));
        let settings =
            [format!("LD_PRELOAD={}", library.display()), format!("CLOCK_AHEAD={}", ahead.display())];
        let command = ["env".to_owned()].into_iter().chain(settings).chain(cluster.command(MACHINE));
        let command = command.collect();
        cluster.commands.insert(MACHINE, command);
    };
    let (cluster, _bmc) = unproven(with_clock, |_| Vec::new());
    prove(&cluster, &[SLEEPER]);
    let exam = || sleeper(&cluster).power.exam.expect("it woke up").faults;
    assert_eq!(exam(), Vec::<String>::new());
    let load = Load::start(cluster.client_config(), Options { workers: 4, ..Options::default() });
    std::fs::write(ahead(&cluster), "7200").expect("write");
    cluster.shift(2);
    wait_off(&cluster, &[SLEEPER]);
    load.go_on_for(100);
    cluster.shift(3);
    cluster.wait_status("its exam reports the clock", |status| {
        let server = status.servers.iter().find(|server| server.id.0 == SLEEPER).expect("it is known");
        let faults = server.power.exam.as_ref().map_or(&[][..], |exam| &exam.faults);
        faults.iter().any(|fault| fault.contains("s ahead of the metadata leader's"))
    });
    cluster.heal();
    load.go_on_for(200);
    load.stop().assert_flawless();
    assert!(sleeper(&cluster).power.kept_awake.is_some(), "it is not trusted until that is put right");
    assert!(cluster.verify(&["--read"]).blocks > 0);
}

/// What the controllers measure: all of it, the sleeper's part, and as text.
fn measured(cluster: &Cluster) -> (Json, Json, String) {
    let text = cluster.ebb(&["status", "--measured"]);
    let said = String::from_utf8_lossy(&text.stdout).into_owned();
    assert!(text.status.success(), "{said}{}", String::from_utf8_lossy(&text.stderr));
    let json = cluster.ebb(&["status", "--measured", "--json"]);
    let all: Json = serde_json::from_slice(&json.stdout).expect("JSON");
    (all["measured"].clone(), all["measured"]["by_server"][usize::from(SLEEPER) - 1].clone(), said)
}

#[test]
fn a_status_shows_what_a_controller_measures_and_asks_it_only_when_it_is_told_to() {
    let (cluster, bmc) = cluster(|_| Vec::new());
    bmc.measure(Some(75.0));
    bmc.take_asked();
    cluster.status();
    assert!(!bmc.asked().contains(&Asked::Watts), "{:?}", bmc.asked());
    let (all, server, said) = measured(&cluster);
    let number = |value: &Json, key: &str| value[key].as_f64().unwrap_or_else(|| panic!("{key} in {value}"));
    let error = 100.0 * (number(&server, "modelled_watts") / 75.0 - 1.0);
    assert_eq!((number(&server, "watts"), &server["absent"]), (75.0, &Json::Null));
    assert!((number(&server, "model_error_percent") - error).abs() < 1e-9, "{server}");
    assert!((number(&all, "model_error_percent") - error).abs() < 1e-9, "of one server: {all}");
    assert_eq!((&all["servers"], &all["of"], number(&all, "watts")), (&1.into(), &9.into(), 75.0));
    let other = all["by_server"][0]["absent"].as_str().expect("a reason");
    assert!(other.contains("process measures nothing"), "{other}");
    assert!(said.contains("measured 75.0 W by the controllers of 1 of 9 servers"), "{said}");
    assert!(said.contains("  75.0      ") && said.contains("–"), "{said}");

    // A machine that is off has a controller that draws something, and is not woken by the question.
    cluster.shift(2);
    wait_off(&cluster, &[SLEEPER]);
    bmc.measure(Some(9.0));
    bmc.take_asked();
    assert_eq!(number(&measured(&cluster).1, "watts"), 9.0);
    assert!(!bmc.asked().iter().any(|asked| matches!(asked, Asked::On(_))), "{:?}", bmc.asked());
    assert_eq!(sleeper(&cluster).state, ServerState::Asleep);
    bmc.measure(None);
    let (all, server, said) = measured(&cluster);
    assert_eq!((&server["watts"], &all["watts"]), (&Json::Null, &Json::Null), "{all}");
    assert!(server["absent"].as_str().is_some_and(|why| why.contains("no reading of power now")), "{server}");
    assert!(said.contains("not measured: redfish,"), "{said}");
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
