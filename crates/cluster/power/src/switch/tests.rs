//! The drivers against emulated machines: a management controller served here, a script in the place of ipmitool, a
//! monitor on a Unix socket. They do what real ones were seen to do. Time is virtual; no test waits.

use super::settle;
use super::*;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path as FilePath;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use tempfile::TempDir;

/// A clock that does not wait. It calls the order off after some pauses.
pub struct Virtual {
    pub now: Duration,
    pub pauses_left: u32,
}

impl Default for Virtual {
    fn default() -> Virtual {
        Virtual { now: Duration::ZERO, pauses_left: u32::MAX }
    }
}

impl Clock for Virtual {
    fn now(&self) -> Duration {
        self.now
    }

    fn pause(&mut self, time: Duration) -> bool {
        self.now += time;
        self.pauses_left = self.pauses_left.saturating_sub(1);
        self.pauses_left > 0
    }
}

fn driver(dir: &TempDir, text: &str) -> Box<dyn Driver> {
    let process = Managed { data: dir.path().to_owned(), launch: None };
    let fields = Fields::new(ServerId(7), toml::from_str(text).unwrap(), dir.path().to_owned(), process);
    open(fields).unwrap().unwrap()
}

fn wake(driver: &mut Box<dyn Driver>) -> Result<(), SwitchError> {
    settle::wake(driver.as_mut(), &mut Virtual::default())
}

fn next<T: Clone>(list: &mut VecDeque<T>) -> T {
    if list.len() > 1 { list.pop_front().unwrap() } else { list[0].clone() }
}

/// A management controller of one machine.
#[derive(Clone)]
struct Bmc {
    /// What it says of the machine, the last for ever.
    states: VecDeque<&'static str>,
    /// The status of its answers to orders, the last for ever.
    answers: VecDeque<u16>,
    allowed: Value,
    info: Value,
    password: &'static str,
    delay: Duration,
    orders: Vec<String>,
}

impl Bmc {
    fn new(states: &[&'static str], answers: &[u16]) -> Bmc {
        Bmc {
            states: states.iter().copied().collect(),
            answers: answers.iter().copied().collect(),
            allowed: json!([
                "On",
                "ForceOff",
                "GracefulShutdown",
                "GracefulRestart",
                "ForceOn",
                "PushPowerButton"
            ]),
            info: Value::Null,
            // "ebb:secret"
            password: "Basic ZWJiOnNlY3JldA==",
            delay: Duration::ZERO,
            orders: Vec::new(),
        }
    }

    fn answer(&mut self, line: &str, authorization: Option<&str>, body: &str) -> (u16, Value) {
        const RESET: &str = "POST /redfish/v1/Systems/1/Actions/ComputerSystem.Reset";
        if authorization != Some(self.password) {
            return (401, json!({}));
        }
        let link = |path: &str| json!({ "@odata.id": path });
        match line.rsplit_once(' ').unwrap().0 {
            "GET /redfish/v1/Systems" => (200, json!({ "Members": [link("/redfish/v1/Systems/1")] })),
            "GET /redfish/v1/Two" | "GET /redfish/v1/Systems/1" => {
                let mut reset = json!({ "target": "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset" });
                reset["ResetType@Redfish.AllowableValues"] = self.allowed.clone();
                reset["@Redfish.ActionInfo"] = json!("/redfish/v1/Systems/1/ResetActionInfo");
                (
                    200,
                    json!({ "PowerState": next(&mut self.states), "Actions": { "#ComputerSystem.Reset": reset } }),
                )
            }
            "GET /redfish/v1/Systems/1/ResetActionInfo" => {
                (200, json!({ "Parameters": [{ "Name": "ResetType", "AllowableValues": self.info }] }))
            }
            RESET => {
                let order: Value = serde_json::from_str(body).unwrap();
                self.orders.push(order["ResetType"].as_str().unwrap().to_string());
                (next(&mut self.answers), json!({ "error": { "message": "Base.1.0.GeneralError" } }))
            }
            _ => (404, json!({})),
        }
    }

    /// Serves it until the test's process ends.
    fn serve(self) -> (String, Arc<Mutex<Bmc>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let bmc = Arc::new(Mutex::new(self));
        let shared = bmc.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut lines = Vec::new();
                let mut line = String::new();
                while reader.read_line(&mut line).unwrap_or(0) > 2 {
                    lines.push(std::mem::take(&mut line).trim_end().to_string());
                }
                let header = |name: &str| {
                    let value = |line: &String| {
                        line.split_once(": ")
                            .filter(|(n, _)| n.eq_ignore_ascii_case(name))
                            .map(|(_, v)| v.to_string())
                    };
                    lines.iter().find_map(value)
                };
                let length = header("content-length").map_or(0, |text| text.parse().unwrap());
                let mut body = vec![0; length];
                reader.read_exact(&mut body).unwrap();
                let Some(first) = lines.first() else { continue };
                let mut bmc = shared.lock().unwrap();
                std::thread::sleep(bmc.delay);
                let (status, page) =
                    bmc.answer(first, header("authorization").as_deref(), &String::from_utf8(body).unwrap());
                let page = page.to_string();
                let head = format!(
                    "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
                    page.len()
                );
                let _ = stream.write_all((head + &page).as_bytes());
            }
        });
        (address, bmc)
    }

    fn driver(self, dir: &TempDir) -> (Box<dyn Driver>, Arc<Mutex<Bmc>>) {
        let (address, bmc) = self.serve();
        std::fs::write(dir.path().join("password"), "secret\n").unwrap();
        let login = "user = \"ebb\"\npassword_file = \"password\"\ninsecure = true";
        (driver(dir, &format!("driver = \"redfish\"\nurl = \"http://{address}\"\n{login}")), bmc)
    }
}

/// How a wake-up of a machine behind such a controller ends, and what the controller was told.
fn woken(bmc: Bmc) -> (Result<(), String>, Vec<String>) {
    let dir = TempDir::new().unwrap();
    let (mut driver, bmc) = bmc.driver(&dir);
    let outcome = wake(&mut driver).map_err(|error| error.to_string());
    let orders = bmc.lock().unwrap().orders.clone();
    assert!(
        orders.iter().all(|order| ["On", "ForceOn", "PushPowerButton"].contains(&order.as_str())),
        "{orders:?}"
    );
    (outcome, orders)
}

#[test]
fn a_controller_is_told_once_and_read_until_the_machine_is_on() {
    let states = ["Off", "Off", "PoweringOn", "PoweringOn", "On"];
    assert_eq!(woken(Bmc::new(&states, &[204])), (Ok(()), vec!["On".into()]));
    let slow = Bmc { delay: Duration::from_millis(30), ..Bmc::new(&["Off", "On"], &[200]) };
    assert_eq!(woken(slow).0, Ok(()));
}

#[test]
fn a_conflict_while_the_machine_goes_down_is_tried_again() {
    let (outcome, orders) =
        woken(Bmc::new(&["Off", "Off", "Off", "Off", "Off", "Off", "On"], &[409, 409, 204]));
    assert_eq!((outcome, orders.len()), (Ok(()), 3));
    let error = woken(Bmc::new(&["Off"], &[409])).0.unwrap_err();
    assert!(error.contains("still reports Off 180 s after"), "{error}");
}

#[test]
fn on_while_the_machine_goes_down_is_not_believed() {
    let (outcome, orders) =
        woken(Bmc::new(&["On", "On", "PoweringOff", "Off", "Off", "PoweringOn", "On"], &[204]));
    assert_eq!((outcome, orders.len()), (Ok(()), 1));
    assert_eq!(woken(Bmc::new(&["On"], &[204])), (Ok(()), Vec::new()));
    let (outcome, orders) = woken(Bmc::new(&["PoweringOff"], &[204]));
    assert!(outcome.unwrap_err().contains("still going down") && orders.is_empty());
}

#[test]
fn a_yes_without_an_effect_is_no_result() {
    let (outcome, orders) = woken(Bmc::new(&["Off"], &[204]));
    let error = outcome.unwrap_err();
    assert!(error.contains("still reports Off 180 s after the wake command"), "{error}");
    assert!(orders.len() > 2, "it was told again");
}

#[test]
fn reset_types_are_read_and_those_that_are_refused_are_left() {
    let lies = Bmc::new(&["Off", "Off", "On"], &[400, 204]);
    assert_eq!(woken(lies), (Ok(()), vec!["On".into(), "ForceOn".into()]));
    let button =
        Bmc { allowed: json!(["PushPowerButton", "ForceOff"]), ..Bmc::new(&["Off", "Off", "On"], &[204]) };
    assert_eq!(woken(button), (Ok(()), vec!["PushPowerButton".into()]));
    let elsewhere =
        Bmc { allowed: Value::Null, info: json!(["ForceOn"]), ..Bmc::new(&["Off", "Off", "On"], &[204]) };
    assert_eq!(woken(elsewhere), (Ok(()), vec!["ForceOn".into()]));
    let none = Bmc { allowed: json!(["ForceOff"]), ..Bmc::new(&["Off"], &[204]) };
    let (outcome, orders) = woken(none);
    assert!(outcome.unwrap_err().contains("reset_type = \"On\"") && orders.is_empty());
    let error = woken(Bmc::new(&["Off"], &[400])).0.unwrap_err();
    assert!(error.contains("PushPowerButton: the server answered 400"), "{error}");
    // The button would turn a machine off that is on.
    let blind = Bmc { allowed: json!(["PushPowerButton"]), ..Bmc::new(&["Curious"], &[204]) };
    assert!(woken(blind).1.is_empty());
}

#[test]
fn who_is_not_let_in_is_told_and_the_password_is_not() {
    let (outcome, _) = woken(Bmc { password: "Basic other", ..Bmc::new(&["Off"], &[204]) });
    let error = outcome.unwrap_err();
    assert!(
        error.contains("401") && error.contains("check user and password") && !error.contains("secret"),
        "{error}"
    );
    let dir = TempDir::new().unwrap();
    let (driver, _) = Bmc::new(&["Off"], &[204]).driver(&dir);
    driver.available().unwrap();
    std::fs::remove_file(dir.path().join("password")).unwrap();
    assert!(driver.available().unwrap_err().to_string().contains("password_file"));
}

#[test]
fn the_controllers_of_machines_are_their_meters_too() {
    let dir = TempDir::new().unwrap();
    let meter = |text: &str| {
        driver(&dir, text)
            .about()
            .meter
            .clone()
            .map(|spec| spec.replace(&dir.path().display().to_string(), "D"))
    };
    let login = "user = \"ebb\"\npassword_file = \"p\"";
    let redfish = format!("driver = \"redfish\"\nurl = \"https://bmc7:8443/\"\n{login}\nca_file = \"c.pem\"");
    assert_eq!(
        meter(&redfish).as_deref(),
        Some("redfish,password-file=D/p,ca=D/c.pem:https://ebb@bmc7:8443")
    );
    let one_of_several = format!("{redfish}\nsystem = \"/redfish/v1/Systems/2\"\ntimeout = \"1m\"");
    assert_eq!(
        meter(&one_of_several).as_deref(),
        Some("redfish,password-file=D/p,ca=D/c.pem,timeout=60s:https://ebb@bmc7:8443/redfish/v1/Systems/2")
    );
    let digits = "0f".repeat(32);
    let pinned = format!("driver = \"redfish\"\nurl = \"https://bmc7\"\nfingerprint = \"sha256:{digits}\"");
    assert_eq!(meter(&pinned), Some(format!("redfish,fingerprint={digits}:https://bmc7")));
    let ipmi = format!("driver = \"ipmi\"\nhost = \"bmc7\"\n{login}");
    assert_eq!(meter(&ipmi).as_deref(), Some("ipmi,password-file=D/p:ebb@bmc7"));
    let other = "driver = \"ipmi\"\nhost = \"bmc7\"\nprogram = \"/opt/ipmitool\"\ntimeout = \"9s\"";
    assert_eq!(meter(other).as_deref(), Some("ipmi,program=/opt/ipmitool,timeout=9s:bmc7"));
    let plug = "driver = \"command\"\nwake = [\"true\"]";
    assert_eq!(meter(plug), None);
}

#[test]
fn a_controller_that_hangs_costs_its_time_limits_and_no_more() {
    let dir = TempDir::new().unwrap();
    let hangs = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = hangs.local_addr().unwrap();
    let mut driver =
        driver(&dir, &format!("driver = \"redfish\"\nurl = \"http://{address}\"\ntimeout = \"50ms\""));
    let error = wake(&mut driver).unwrap_err();
    assert!(matches!(error, SwitchError::Unreachable { .. }), "{error}");
}

#[test]
fn a_certificate_that_is_not_trusted_is_refused_with_the_way_to_trust_it() {
    let dir = TempDir::new().unwrap();
    if !ebb_testing::certificate(dir.path()) {
        return;
    }
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let accept = format!("127.0.0.1:{port}");
    let mut served = Command::new("openssl")
        .current_dir(dir.path())
        .args(["s_server", "-accept", &accept, "-cert", "cert.pem", "-key", "key.pem", "-www"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let ask = |fields: &str| loop {
        let mut driver = driver(&dir, &format!("driver = \"redfish\"\nurl = \"https://{accept}\"\n{fields}"));
        match driver.observe(&mut Virtual::default()).unwrap_err().to_string() {
            // It does not listen yet.
            text if text.contains("refused (os error") => std::thread::sleep(Duration::from_millis(10)),
            text => return text,
        }
    };
    let error = ask("");
    assert!(
        error.contains("openssl s_client -connect 127.0.0.1:") && error.contains("ca_file = FILE"),
        "{error}"
    );
    let pin =
        error.split('"').find(|word| word.starts_with("sha256:")).expect("what it presented").to_owned();
    assert!(error.contains(&format!("fingerprint = \"{pin}\"")), "{error}");
    // It is not a controller, but it is talked to.
    assert!(ask("ca_file = \"cert.pem\"").contains("is not JSON"));
    assert!(ask(&format!("fingerprint = \"{pin}\"")).contains("is not JSON"));
    let wrong = ask(&format!("fingerprint = \"{}\"", "0".repeat(64)));
    assert!(wrong.contains(&pin) && wrong.contains(&format!("sha256:{}", "0".repeat(64))), "{wrong}");
    let _ = served.kill();
    let _ = served.wait();
}

/// A program in the place of ipmitool that keeps what it was called with.
fn ipmi(dir: &TempDir, script: &str) -> Box<dyn Driver> {
    let path = dir.path().join("tool");
    let log = dir.path().join("log").display().to_string();
    std::fs::write(
        &path,
        format!(
            "#!/bin/sh\necho \"$* password=$IPMI_PASSWORD\" >> {log}\ncalls=$(wc -l < {log})\n{script}\n"
        ),
    )
    .unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::write(dir.path().join("password"), "secret\n").unwrap();
    let login = "user = \"ebb\"\npassword_file = \"password\"";
    driver(
        dir,
        &format!("driver = \"ipmi\"\nhost = \"bmc7\"\nprogram = {:?}\n{login}", path.display().to_string()),
    )
}

fn calls(dir: &TempDir) -> Vec<String> {
    std::fs::read_to_string(dir.path().join("log")).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn an_old_controller_is_asked_with_the_old_cipher_suite_and_never_hurried() {
    let dir = TempDir::new().unwrap();
    let script = "case \"$*\" in\n*'-C 17'*) echo 'Error: Unable to establish IPMI v2 / RMCP+ session' >&2; exit 1;;\n\
                  *status) if [ $calls -lt 5 ]; then echo 'Chassis Power is off'; else echo 'Chassis Power is on'; fi;;\n*) echo 'Chassis Power Control: Up/On';;\nesac";
    let mut driver = ipmi(&dir, script);
    let mut clock = Virtual::default();
    settle::wake(driver.as_mut(), &mut clock).unwrap();
    let common = "-I lanplus -H bmc7 -U ebb -E -C";
    let expected = [
        "17 chassis power status",
        "3 chassis power status",
        "3 chassis power on",
        "3 chassis power status",
        "3 chassis power status",
    ];
    let expected: Vec<String> =
        expected.iter().map(|call| format!("{common} {call} password=secret")).collect();
    let calls = calls(&dir);
    assert_eq!(calls, expected, "the password is in the environment and in no argument");
    assert!(clock.now >= Duration::from_secs(5) * (calls.len() as u32 - 1), "{:?}", clock.now);
}

#[test]
fn a_controller_without_sessions_to_spare_is_asked_again_and_a_missing_program_named() {
    let dir = TempDir::new().unwrap();
    let script = "if [ $calls -le 4 ]; then echo 'insufficient resources for session' >&2; exit 1; fi\necho 'Chassis Power is off'";
    let mut driver = ipmi(&dir, script);
    settle::asleep(driver.as_mut(), &mut Virtual::default()).unwrap();
    assert_eq!(calls(&dir).len(), 5);
    let mut driver = ipmi(
        &dir,
        "echo 'Set Chassis Power Control to Up/On failed: Command not supported in present state' >&2; exit 1",
    );
    assert!(matches!(driver.wake(&mut Virtual::default()), Err(SwitchError::GoingDown { .. })));
    let missing =
        self::driver(&dir, "driver = \"ipmi\"\nhost = \"bmc7\"\nprogram = \"/nonexistent/ipmitool\"");
    assert!(missing.available().unwrap_err().to_string().contains("install ipmitool"));
}

/// A monitor that says these states, and keeps what it is told.
fn monitor(path: &FilePath, states: &[&'static str]) -> Arc<Mutex<Vec<String>>> {
    let listener = UnixListener::bind(path).unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (keep, mut states) = (told.clone(), states.iter().copied().collect::<VecDeque<_>>());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            writeln!(stream, "{}", json!({ "QMP": { "version": {}, "capabilities": [] } })).unwrap();
            for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
                let command =
                    serde_json::from_str::<Value>(&line).unwrap()["execute"].as_str().unwrap().to_string();
                let answer = match command.as_str() {
                    "query-status" => json!({ "return": { "status": next(&mut states), "running": false } }),
                    "qmp_capabilities" => json!({ "return": {} }),
                    _ => {
                        keep.lock().unwrap().push(command);
                        writeln!(stream, "{}", json!({ "event": "RESET", "data": {} })).unwrap();
                        json!({ "return": {} })
                    }
                };
                writeln!(stream, "{answer}").unwrap();
            }
        }
    });
    told
}

#[test]
fn a_virtual_machine_is_woken_from_where_it_sleeps() {
    let dir = TempDir::new().unwrap();
    let woken = |states: &[&'static str], name: &str| {
        let told = monitor(&dir.path().join(name), states);
        let mut driver = driver(&dir, &format!("driver = \"qemu\"\nqmp = \"{name}\""));
        wake(&mut driver).unwrap();
        assert_eq!(driver.observe(&mut Virtual::default()).unwrap(), PowerState::On);
        told.lock().unwrap().clone()
    };
    assert_eq!(woken(&["suspended", "suspended", "running"], "a"), ["system_wakeup"]);
    assert_eq!(woken(&["shutdown", "shutdown", "running"], "b"), ["system_reset", "cont"]);
    // It still goes down.
    assert_eq!(
        woken(&["running", "running", "shutdown", "shutdown", "running"], "c"),
        ["system_reset", "cont"]
    );
    assert!(woken(&["running"], "d").is_empty());
}

#[test]
fn a_monitor_that_is_missing_hangs_or_babbles_is_an_error() {
    let dir = TempDir::new().unwrap();
    let ask = |name: &str| {
        let mut driver = driver(&dir, &format!("driver = \"qemu\"\nqmp = \"{name}\"\ntimeout = \"50ms\""));
        driver.observe(&mut Virtual::default()).unwrap_err().to_string()
    };
    assert!(ask("missing").contains("-no-shutdown"));
    let _hangs = UnixListener::bind(dir.path().join("hangs")).unwrap();
    assert!(ask("hangs").contains("it hangs"), "{}", ask("hangs"));
    let babbles = UnixListener::bind(dir.path().join("babbles")).unwrap();
    std::thread::spawn(move || babbles.accept().unwrap().0.write_all(b"login: \n").unwrap());
    assert!(ask("babbles").contains("cannot be asked"));
}

#[test]
fn programs_of_the_users_wake_put_to_sleep_and_say_the_state() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("plug").display().to_string();
    let text = format!(
        "driver = \"command\"\nwake = [\"sh\", \"-c\", \"echo on > {file}\"]\nsleep = [\"sh\", \"-c\", \"echo $EBB_DEPTH > {file}\"]\n\
         state = [\"cat\", \"{file}\"]\ndepths = [\"standby\", \"off\"]"
    );
    let mut driver = driver(&dir, &text);
    assert!(driver.about().puts_to_sleep);
    for (depth, state) in [(Depth::Standby, PowerState::Standby), (Depth::Off, PowerState::Off)] {
        driver.sleep(depth, &mut Virtual::default()).unwrap();
        assert_eq!(driver.observe(&mut Virtual::default()).unwrap(), state);
        wake(&mut driver).unwrap();
        assert_eq!(driver.observe(&mut Virtual::default()).unwrap(), PowerState::On);
    }
    std::fs::write(&file, "burning").unwrap();
    assert!(
        driver
            .observe(&mut Virtual::default())
            .unwrap_err()
            .to_string()
            .contains("\"burning\" where on, off")
    );
    let names = "driver = \"command\"\nwake = [\"sh\", \"-c\", \"echo $EBB_SERVER $EBB_SERVER_NAME > FILE\"]";
    wake(&mut self::driver(&dir, &names.replace("FILE", &file))).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "7 server-7\n");
    let missing = self::driver(&dir, "driver = \"command\"\nwake = [\"/nonexistent/plug\"]");
    assert!(missing.available().unwrap_err().to_string().contains("/nonexistent/plug"));
}

#[test]
fn an_order_that_hangs_has_ended_before_the_next_one_begins() {
    let dir = TempDir::new().unwrap();
    let file = |name: &str| dir.path().join(name).display().to_string();
    let (begun, found) = (file("begun"), file("found"));
    let text = format!(
        "driver = \"command\"\ntimeout = \"20s\"\nsleep = [\"sh\", \"-c\", \"echo $$ > {begun}; exec sleep 1000\"]\n\
         wake = [\"sh\", \"-c\", \"kill -0 $(cat {begun}) && echo both > {found} || echo alone > {found}\"]"
    );
    let mut switches = Switches::default();
    switches.add(ServerId(7), vec![driver(&dir, &text)]).unwrap();
    let (say, said) = std::sync::mpsc::channel();
    let of_sleep = say.clone();
    switches.sleep(ServerId(7), Depth::Off, move |ended| of_sleep.send(("sleep", ended)).unwrap());
    while !std::fs::read_to_string(&begun).is_ok_and(|pid| pid.ends_with('\n')) {
        std::thread::yield_now();
    }
    switches.wake(ServerId(7), 0, move |ended| say.send(("wake", ended)).unwrap());
    let (order, ended) = said.recv().unwrap();
    assert!(order == "wake" && ended.is_ok(), "{order}: {ended:?}");
    assert_eq!(std::fs::read_to_string(&found).unwrap(), "alone\n");
}

#[test]
fn a_server_without_a_path_or_with_an_unable_one_is_an_error() {
    let dir = TempDir::new().unwrap();
    let mut switches = Switches::default();
    switches.add(ServerId(1), vec![driver(&dir, "driver = \"ipmi\"\nhost = \"bmc1\"")]).unwrap();
    switches.add(ServerId(2), Vec::new()).unwrap();
    assert!(matches!(switches.check(Depth::Standby), Err(SwitchError::NoDepth { server: ServerId(1), .. })));
    switches.check(Depth::Off).unwrap();
    let mut add = |server: u16, text: &str| switches.add(ServerId(server), vec![driver(&dir, text)]);
    let redfish = "driver = \"redfish\"\nurl = \"https://bmc1\"";
    for text in [
        "driver = \"ipmi\"\nhost = \"bmc1\"",
        redfish,
        &format!("{redfish}\nsystem = \"/redfish/v1/Systems/2\""),
    ] {
        let same = add(3, text);
        assert!(
            matches!(same, Err(SwitchError::SameMachine { first: ServerId(1), second: ServerId(3), .. })),
            "{text}"
        );
    }
    // Blades of one enclosure.
    let blade = |n: u16| {
        format!("driver = \"redfish\"\nurl = \"https://rack\"\nsystem = \"/redfish/v1/Systems/{n}\"")
    };
    add(4, &blade(4)).unwrap();
    add(5, &blade(5)).unwrap();
    assert!(matches!(add(6, &blade(5)), Err(SwitchError::SameMachine { first: ServerId(5), .. })));
    let (say, said) = std::sync::mpsc::channel();
    for (server, path) in [(1, 1), (2, 0)] {
        let say = say.clone();
        switches
            .wake(ServerId(server), path, move |outcome| say.send(outcome.unwrap_err().to_string()).unwrap());
        assert!(said.recv().unwrap().contains(&format!("{} has no power path {path}", ServerId(server))));
    }
}
