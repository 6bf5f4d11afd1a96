//! Meters that talk to another program: Redfish and Prometheus served by a small HTTP server here, Redfish by
//! sushy-tools, IPMI by `ipmi_sim`. Tests of programs that are not installed are skipped with a message:
//! `scripts/install-test-tools` installs them.

use ebb_meter::{MeterError, OpenMeter, Quantity, open, open_on};
use ebb_power::Machine;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

type Pages = Arc<Mutex<BTreeMap<String, Value>>>;

/// Serves JSON pages by path and query to clients with the expected Authorization, until the test's process ends.
fn serve(pages: &[(&str, Value)], authorization: Option<&'static str>) -> (String, Pages) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let pages: Pages =
        Arc::new(Mutex::new(pages.iter().map(|(path, page)| (path.to_string(), page.clone())).collect()));
    let shared = pages.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let lines: Vec<String> = BufReader::new(stream.try_clone().unwrap())
                .lines()
                .map_while(Result::ok)
                .take_while(|line| !line.is_empty())
                .collect();
            let path = lines.first().and_then(|l| l.split(' ').nth(1)).unwrap_or_default().to_string();
            let header = |line: &String| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("authorization").then(|| value.to_string())
            };
            let sent = lines.iter().find_map(header);
            let (status, body) = match shared.lock().unwrap().get(&path) {
                _ if sent.as_deref() != authorization => ("401 Unauthorized", "{}".to_string()),
                Some(Value::String(text)) => ("200 OK", text.clone()),
                Some(page) => ("200 OK", page.to_string()),
                None => ("404 Not Found", "{}".to_string()),
            };
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = (&stream).write_all((head + &body).as_bytes());
        }
    });
    (address, pages)
}

fn link(path: &str) -> Value {
    json!({ "@odata.id": path })
}

/// A blade enclosure of the old schema containing one blade of the new one.
fn redfish_tree() -> Vec<(&'static str, Value)> {
    vec![
        (
            "/redfish/v1/Chassis",
            json!({ "Members": [link("/redfish/v1/Chassis/Enc"), link("/redfish/v1/Chassis/Blade1"), link("/redfish/v1/Chassis/Gone")] }),
        ),
        (
            "/redfish/v1/Chassis/Enc",
            json!({ "Id": "Enc", "Power": link("/redfish/v1/Chassis/Enc/Power"),
                    "Thermal": link("/redfish/v1/Chassis/Enc/Thermal") }),
        ),
        (
            "/redfish/v1/Chassis/Enc/Power",
            json!({ "PowerControl": [
                { "Name": "Chassis Power", "PowerConsumedWatts": 344.5 },
                { "Name": "Memory Power", "PowerConsumedWatts": 41 } ] }),
        ),
        (
            "/redfish/v1/Chassis/Enc/Thermal",
            json!({ "Temperatures": [
                { "Name": "Inlet", "ReadingCelsius": 23, "Status": { "State": "Enabled" } },
                { "Name": "Slot", "ReadingCelsius": null, "Status": { "State": "Absent" } },
                { "Name": "Slot", "ReadingCelsius": 51.5 } ] }),
        ),
        (
            "/redfish/v1/Chassis/Blade1",
            json!({ "Id": "Blade1", "Links": { "ContainedBy": link("/redfish/v1/Chassis/Enc") },
                    "EnvironmentMetrics": link("/redfish/v1/Chassis/Blade1/EnvironmentMetrics"),
                    "ThermalSubsystem": link("/redfish/v1/Chassis/Blade1/ThermalSubsystem"),
                    "Power": link("/redfish/v1/Chassis/Blade1/Power"),
                    "Thermal": link("/redfish/v1/Chassis/Enc/Thermal") }),
        ),
        (
            "/redfish/v1/Chassis/Blade1/EnvironmentMetrics",
            json!({ "PowerWatts": { "Reading": 120 }, "TemperatureCelsius": { "Reading": 39 } }),
        ),
        (
            "/redfish/v1/Chassis/Blade1/ThermalSubsystem",
            json!({ "ThermalMetrics": link("/redfish/v1/Chassis/Blade1/ThermalSubsystem/ThermalMetrics") }),
        ),
        (
            "/redfish/v1/Chassis/Blade1/ThermalSubsystem/ThermalMetrics",
            json!({ "TemperatureReadingsCelsius": [{ "DeviceName": "CPU1", "Reading": 62 }],
                    "TemperatureSummaryCelsius": { "Exhaust": { "Reading": 40.5 }, "Ambient": {} } }),
        ),
    ]
}

fn readings(open: &mut OpenMeter) -> Vec<(String, Option<f64>)> {
    let names = open.channels.iter().map(|c| c.name.clone()).collect::<Vec<_>>();
    names.into_iter().zip(open.meter.read(&mut None).unwrap()).collect()
}

fn expected(list: &[(&str, Option<f64>)]) -> Vec<(String, Option<f64>)> {
    list.iter().map(|(name, value)| (name.to_string(), *value)).collect()
}

/// The expected readings of the tree above.
fn tree_readings() -> Vec<(String, Option<f64>)> {
    expected(&[
        ("Enc/power", Some(344.5)),
        ("Enc/power #2", Some(41.0)),
        ("Enc/Inlet", Some(23.0)),
        ("Enc/Slot", None),
        ("Enc/Slot #2", Some(51.5)),
        ("Blade1/power", Some(120.0)),
        ("Blade1/CPU1", Some(62.0)),
        ("Blade1/Exhaust", Some(40.5)),
        ("Blade1/temperature", Some(39.0)),
    ])
}

/// A file with a password, and the option that names it.
fn password(dir: &TempDir, text: &str) -> String {
    let path = dir.path().join("password");
    std::fs::write(&path, format!("{text}\n")).unwrap();
    format!("password-file={}", path.display())
}

fn failure(spec: &str) -> String {
    open(spec).map(|open| open.name).unwrap_err().to_string()
}

#[test]
fn redfish_old_and_new_with_a_blade_in_its_enclosure() {
    let dir = TempDir::new().unwrap();
    // "admin:pass word" in base 64
    let (address, pages) = serve(&redfish_tree(), Some("Basic YWRtaW46cGFzcyB3b3Jk"));
    let option = password(&dir, "pass word");
    let mut meter = open(&format!("redfish,insecure,{option}:http://admin@{address}")).unwrap();
    assert_eq!(readings(&mut meter), tree_readings());
    let part = |name: &str| meter.channels.iter().find(|c| c.name == name).unwrap().part_of.clone();
    assert_eq!(part("Enc/power"), None);
    assert_eq!(part("Enc/power #2").as_deref(), Some("Enc/power"));
    assert_eq!(part("Blade1/power").as_deref(), Some("Enc/power"));

    // A missing number is absent, a missing page is a failure.
    let power = "/redfish/v1/Chassis/Enc/Power".to_string();
    pages
        .lock()
        .unwrap()
        .insert(power.clone(), json!({ "PowerControl": [{}, { "PowerConsumedWatts": 40 }] }));
    assert_eq!(meter.meter.read(&mut None).unwrap()[..2], [None, Some(40.0)]);
    pages.lock().unwrap().remove(&power);
    assert!(matches!(meter.meter.read(&mut None), Err(MeterError::Http { .. })));

    let blade = format!("redfish,insecure,{option}:http://admin@{address}/redfish/v1/Chassis/Blade1");
    assert_eq!(open(&blade).unwrap().channels.len(), 4);
}

#[test]
fn one_machine_of_a_controller_is_measured_by_the_chassis_that_it_has_to_itself() {
    let chassis = |machines: &[&str], watts: f64, name: &str| {
        let machines: Vec<Value> = machines.iter().map(|path| link(path)).collect();
        let power = json!({ "PowerControl": [{ "PowerConsumedWatts": watts }] });
        (
            json!({ "Id": name, "Links": { "ComputerSystems": machines },
                    "Power": link(&format!("/redfish/v1/Chassis/{name}/Power")) }),
            power,
        )
    };
    let (one, two) = ("/redfish/v1/Systems/1", "/redfish/v1/Systems/2");
    let (whole, whole_power) = chassis(&[one, two], 300.0, "Enc");
    let (own, own_power) = chassis(&[one], 61.8, "Sled1");
    let of = |chassis: &[&str]| json!({ "PowerState": "On", "Links": { "Chassis": chassis.iter().map(|path| link(path)).collect::<Vec<_>>() } });
    let pages = [
        (one, of(&["/redfish/v1/Chassis/Enc", "/redfish/v1/Chassis/Sled1"])),
        (two, of(&["/redfish/v1/Chassis/Enc"])),
        ("/redfish/v1/Chassis/Enc", whole),
        ("/redfish/v1/Chassis/Enc/Power", whole_power),
        ("/redfish/v1/Chassis/Sled1", own),
        ("/redfish/v1/Chassis/Sled1/Power", own_power),
    ];
    let (address, _) = serve(&pages, None);
    let mut meter = open(&format!("redfish:http://{address}{one}")).unwrap();
    assert_eq!(readings(&mut meter), expected(&[("Sled1/power", Some(61.8))]));
    let shared = failure(&format!("redfish:http://{address}{two}"));
    assert!(shared.contains("no chassis that holds this machine alone"), "{shared}");
}

#[test]
fn redfish_failures_say_what_to_do() {
    let dir = TempDir::new().unwrap();
    let (address, _) = serve(&redfish_tree(), Some("Basic YWRtaW46cmlnaHQ="));
    let wrong = password(&dir, "wrong");
    let text = failure(&format!("redfish,insecure,{wrong}:http://admin@{address}"));
    assert!(text.contains("401") && text.contains("password-file") && !text.contains("wrong"), "{text}");
    let text = failure(&format!("redfish,{wrong}:http://admin@{address}"));
    assert!(text.contains("can be read by everyone"), "{text}");

    let (address, pages) = serve(&[], None);
    assert!(failure(&format!("redfish:http://{address}")).contains("no such page"));
    let list = "/redfish/v1/Chassis".to_string();
    pages.lock().unwrap().insert(list.clone(), Value::String("<html>".into()));
    assert!(failure(&format!("redfish:http://{address}")).contains("not JSON"));
    pages.lock().unwrap().insert(list, json!({ "Members": [] }));
    assert!(failure(&format!("redfish:http://{address}")).contains("none of them shows power"));
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(failure(&format!("redfish:http://{refused}")).contains("check the address"));
}

#[test]
fn prometheus_has_a_channel_per_series() {
    let one = |labels: Value, value: &str| json!({ "metric": labels, "value": [1795305599.5, value] });
    let answer = |result: Vec<Value>| json!({ "status": "success", "data": { "resultType": "vector", "result": result } });
    let left = json!({ "__name__": "psu_watts", "psu": "left" });
    let right = json!({ "__name__": "psu_watts", "psu": "right" });
    let path = "/prom/api/v1/query?query=psu_watts%7Bx%3D%22a%2Cb%22%7D";
    let both = answer(vec![one(left.clone(), "101.5"), one(right.clone(), "99")]);
    let (address, pages) = serve(&[(path, both)], None);
    let mut meter =
        open(&format!("prometheus,name=rack:http://{address}/prom?psu_watts{{x=\"a,b\"}}")).unwrap();
    let names = ["__name__=psu_watts,psu=left", "__name__=psu_watts,psu=right"];
    assert_eq!(meter.name, "rack");
    assert_eq!(readings(&mut meter), expected(&[(names[0], Some(101.5)), (names[1], Some(99.0))]));
    pages.lock().unwrap().insert(path.into(), answer(vec![one(right, "NaN")]));
    assert_eq!(meter.meter.read(&mut None).unwrap(), [None, None]);

    let scalar = json!({ "status": "success", "data": { "resultType": "scalar", "result": [1, "42"] } });
    let bad = json!({ "status": "error", "error": "parse error" });
    let query = |q: &str| format!("/api/v1/query?query={q}");
    let (address, _) =
        serve(&[(&query("up"), scalar), (&query("bad"), bad), (&query("none"), answer(vec![]))], None);
    let mut meter = open(&format!("prometheus,quantity=temperature:http://{address}?up")).unwrap();
    assert_eq!(meter.channels[0].quantity, Quantity::Temperature);
    assert_eq!(readings(&mut meter), expected(&[("result", Some(42.0))]));
    assert!(failure(&format!("prometheus:http://{address}?bad")).contains("parse error"));
    assert!(failure(&format!("prometheus:http://{address}?none")).contains("no series"));
}

/// Ends with the test.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program of this checkout's virtual environment, or of the system; `None`, and a message, if there is none.
fn program(name: &str) -> Option<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../.venv/bin").join(name);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::iter::once(own)
        .chain(std::env::split_paths(&path).map(|dir| dir.join(name)))
        .find(|p| p.exists());
    if found.is_none() {
        ebb_testing::skip(format!("{name} is not installed"));
    }
    found
}

fn start(command: &mut Command) -> Program {
    Program(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Opens a meter of a program that has just been started: it may not listen yet.
fn open_when_ready(spec: &str, program: &mut Program) -> OpenMeter {
    let deadline = Instant::now() + Duration::from_secs(120);
    loop {
        match open(spec) {
            Ok(meter) => return meter,
            Err(error) => {
                assert_eq!(program.0.try_wait().unwrap(), None, "the program has ended");
                assert!(Instant::now() < deadline, "{error}");
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn redfish_over_tls_by_sushy_static() {
    let Some(sushy) = program("sushy-static") else { return };
    let dir = TempDir::new().unwrap();
    if !ebb_testing::certificate(dir.path()) {
        return;
    }
    for (path, page) in redfish_tree() {
        let at = dir.path().join("tree").join(path.trim_start_matches("/redfish/v1/"));
        std::fs::create_dir_all(&at).unwrap();
        std::fs::write(at.join("index.json"), page.to_string()).unwrap();
    }
    let port = free_port();
    let mut served = start(Command::new(sushy).current_dir(dir.path()).args([
        "-i",
        "127.0.0.1",
        "-p",
        &port.to_string(),
        "-m",
        "tree",
        "-c",
        "cert.pem",
        "-k",
        "key.pem",
    ]));
    let ca = format!("ca={}", dir.path().join("cert.pem").display());
    let option = password(&dir, "secret");
    let mut meter = open_when_ready(
        &format!("redfish,{ca},{option}:https://admin@127.0.0.1:{port}/redfish/v1"),
        &mut served,
    );
    assert_eq!(readings(&mut meter), tree_readings());
    let text = failure(&format!("redfish:https://127.0.0.1:{port}"));
    assert!(text.contains("certificate") && text.contains("ca=FILE"), "{text}");
    let pin = text.split("fingerprint=").nth(1).and_then(|rest| rest.get(..64)).expect("what it presented");
    let mut meter = open(&format!("redfish,fingerprint={pin}:https://127.0.0.1:{port}")).unwrap();
    assert_eq!(readings(&mut meter), tree_readings());
    let both = failure(&format!("redfish,fingerprint={pin},{ca}:https://127.0.0.1:{port}"));
    assert!(both.contains("ca and fingerprint"), "{both}");
    let cut = failure(&format!("redfish,fingerprint=sha256:{pin}:https://127.0.0.1:{port}"));
    assert!(cut.contains("64 digits alone"), "{cut}");
    let mut meter = open(&format!("redfish,insecure:https://127.0.0.1:{port}")).unwrap();
    assert_eq!(readings(&mut meter), tree_readings());
}

#[test]
fn redfish_with_a_password_by_the_sushy_emulator() {
    let Some(sushy) = program("sushy-emulator") else { return };
    let dir = TempDir::new().unwrap();
    // The bcrypt digest of "secret".
    let user = "ebb:$2b$04$KZ0qvikBk.vvrmW14LWfi.zy5nvc50dt0ozQIS9zhDrfgcJvobIsy\n";
    std::fs::write(dir.path().join("users"), user).unwrap();
    let at = dir.path().display();
    let config = format!("SUSHY_EMULATOR_STATE_DIR = '{at}'\nSUSHY_EMULATOR_AUTH_FILE = '{at}/users'\n");
    std::fs::write(dir.path().join("conf.py"), config).unwrap();
    let port = free_port();
    let mut served = start(Command::new(sushy).current_dir(dir.path()).args([
        "--fake",
        "-i",
        "127.0.0.1",
        "-p",
        &port.to_string(),
        "--config",
        "conf.py",
    ]));
    let option = password(&dir, "secret");
    let spec = |option: &str| format!("redfish,insecure,{option}:http://ebb@127.0.0.1:{port}");
    let mut meter = open_when_ready(&spec(&option), &mut served);
    let values: Vec<_> = readings(&mut meter)
        .into_iter()
        .map(|(name, value)| (name.split('/').nth(1).map(str::to_string), value))
        .collect();
    let name = |name: &str| Some(name.to_string());
    assert_eq!(values, [(name("CPU Temp"), Some(41.0)), (name("Chassis Intake Temp"), Some(25.0))]);
    assert!(failure(&spec(&password(&dir, "public"))).contains("401"));
}

/// One full sensor record of the repository [IPMI 2.0, table 43-1]: value = factor × raw.
fn sensor_record(number: u8, kind: u8, unit: u8, factor: u8, name: &str) -> String {
    let mut body =
        vec![0x20, 0, number, 7, number, 0x7f, 0x68, kind, 1, 0, 0, 0, 0, 0, 0, 0, unit, 0, 0, factor];
    body.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0]);
    body.extend([0; 11]);
    body.push(0xc0 | name.len() as u8);
    body.extend(name.bytes());
    let record = [&[0, 0, 0x51, 1, body.len() as u8][..], &body].concat();
    record.iter().map(|byte| format!(" {byte:#04x}")).collect()
}

/// A simulated controller with a temperature, a power sensor, and DCMI.
fn ipmi_sim(dir: &TempDir, port: u16) -> Option<Program> {
    let (sim, _, cc) = (program("ipmi_sim")?, program("ipmitool")?, program("cc")?);
    let at = |name: &str| dir.path().join(name);
    let module = Command::new(cc)
        .args(["-shared", "-fPIC", "-o"])
        .arg(at("dcmi.so"))
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ipmi_sim_dcmi.c"))
        .output()
        .unwrap();
    assert!(module.status.success(), "{}", String::from_utf8_lossy(&module.stderr));
    let config = format!(
        "loadlib \"{}\" \"\"\nname \"ebb\"\nset_working_mc 0x20\n startlan 1\n  addr 127.0.0.1 {port}\n  priv_limit admin\n  \
         allowed_auths_admin md5\n  guid a123456789abcdefa123456789abcdef\n endlan\n user 2 true \"ebb\" \"secret\" admin 10 md5\n",
        at("dcmi.so").display()
    );
    std::fs::write(at("lan.conf"), config).unwrap();
    let mut commands =
        "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02\n".to_string();
    for (number, kind, unit, factor, name, raw) in
        [(1, 1, 1, 1, "CPU Temp", 41), (2, 0x0b, 6, 4, "Sys Power", 42)]
    {
        let record = sensor_record(number, kind, unit, factor, name);
        commands += &format!("main_sdr_add 0x20{record}\nsensor_add 0x20 0 {number} {kind} 1\n");
        commands += &format!("sensor_set_value 0x20 0 {number} {raw} 0\n");
    }
    std::fs::write(at("commands"), commands + "mc_enable 0x20\n").unwrap();
    std::fs::create_dir(at("state")).unwrap();
    Some(start(
        Command::new(sim)
            .arg("-n")
            .arg("-c")
            .arg(at("lan.conf"))
            .arg("-f")
            .arg(at("commands"))
            .arg("-s")
            .arg(at("state")),
    ))
}

#[test]
fn ipmi_by_ipmi_sim() {
    let dir = TempDir::new().unwrap();
    let port = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let Some(mut sim) = ipmi_sim(&dir, port) else { return };
    let option = password(&dir, "secret");
    let spec = |options: &str| format!("ipmi,cipher=3,{options}:ebb@127.0.0.1:{port}");
    let mut dcmi = open_when_ready(&spec(&option), &mut sim);
    assert_eq!(readings(&mut dcmi), expected(&[("power", Some(214.0))]));
    let mut sensors = open(&spec(&format!("sensors,{option}"))).unwrap();
    assert_eq!(readings(&mut sensors), expected(&[("CPU Temp", Some(41.0)), ("Sys Power", Some(168.0))]));
    let quantities: Vec<_> = sensors.channels.iter().map(|c| c.quantity).collect();
    assert_eq!(quantities, [Quantity::Temperature, Quantity::Power]);
    let text = failure(&spec(&password(&dir, "hidden")));
    assert!(text.contains("check host, user and password") && !text.contains("hidden"), "{text}");
}

#[test]
fn without_ipmitool_or_a_controller_the_error_says_what_to_do() {
    let machine =
        Machine { sys: "/nonexistent".into(), proc: "/nonexistent".into(), dev: "/nonexistent".into() };
    let error = open_on(&machine, "ipmi,timeout=5s").map(|open| open.name);
    // A machine with its own controller opens it.
    if let Err(error) = error {
        let text = error.to_string();
        assert!(text.contains("ipmitool") && text.contains("; "), "{text}");
    }
}
