//! A management controller that answers as some real ones do, though no emulator: Redfish, on a thread of the test. Its
//! machine is the process of a server ([`machines`](super::machines)).

use super::machines::{emulator, is_off};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use toml::{Table, toml};

const SYSTEM: &str = "/redfish/v1/Systems/1";
const CHASSIS: &str = "/redfish/v1/Chassis/1";

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Manner {
    /// It does what it is told. A machine that goes down is on until it is off; to turn it on meanwhile does nothing.
    Obeys,
    /// It says yes, and does nothing.
    DoesNothing,
    /// It says that a machine is off which is going down, and then answers 409.
    SaysOffTooSoon,
}

/// What a controller was asked, and its answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asked {
    State(&'static str),
    /// To turn the machine on; the HTTP status.
    On(u16),
    /// What the machine draws.
    Watts,
}

struct Shared {
    /// The server's data directory.
    data: PathBuf,
    manner: Mutex<Manner>,
    /// What it measures.
    watts: Mutex<Option<f64>>,
    asked: Mutex<Vec<Asked>>,
    /// What it says of the machine, whatever that does; it waits for the next.
    dictated: Mutex<Option<Receiver<&'static str>>>,
    /// It waits.
    waits: AtomicBool,
}

pub struct Bmc {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl Bmc {
    /// It ends with the test program.
    pub fn start(data: &Path) -> Bmc {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let address = listener.local_addr().expect("an address");
        let (manner, watts, asked) = (Mutex::new(Manner::Obeys), Mutex::default(), Mutex::default());
        let (dictated, waits) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { data: data.to_owned(), manner, watts, asked, dictated, waits });
        let own = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                // A client that is gone asks again.
                let _ = stream.and_then(|stream| own.serve(stream));
            }
        });
        Bmc { address, shared }
    }

    /// The `[[server.power]]` that uses it.
    pub fn path(&self) -> Table {
        let mut path = toml! { driver = "redfish" };
        path.insert("url".into(), format!("http://{}", self.address).into());
        path.insert("system".into(), SYSTEM.into());
        // A test may keep it waiting.
        path.insert("timeout".into(), "10m".into());
        path
    }

    pub fn behave(&self, manner: Manner) {
        *self.shared.manner.lock().expect("no panic") = manner;
    }

    /// From now on it says of its machine only what it is told to, and waits until then; the truth again when the
    /// sender is gone. Who asked before has been answered.
    pub fn dictate(&self) -> Sender<&'static str> {
        // Clients are served in turn.
        let mut stream = TcpStream::connect(self.address).expect("it listens");
        write!(stream, "GET / HTTP/1.1\r\n\r\n").expect("it reads");
        stream.read_to_string(&mut String::new()).expect("an answer");
        let (sender, receiver) = channel();
        *self.shared.dictated.lock().expect("no panic") = Some(receiver);
        sender
    }

    /// Whether it keeps a client waiting, because it was not given an answer yet.
    pub fn waits(&self) -> bool {
        self.shared.waits.load(Ordering::Relaxed)
    }

    /// `None`: it has a meter, which has no reading.
    pub fn measure(&self, watts: Option<f64>) {
        *self.shared.watts.lock().expect("no panic") = watts;
    }

    /// Everything since the last call.
    pub fn take_asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.shared.asked())
    }

    /// Everything since the last call of [`Bmc::take_asked`].
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.asked().clone()
    }
}

impl Shared {
    fn asked(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().expect("no panic")
    }

    fn manner(&self) -> Manner {
        *self.manner.lock().expect("no panic")
    }

    fn serve(&self, stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(&stream);
        let (mut request, mut length) = (String::new(), 0);
        reader.read_line(&mut request)?;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
        }
        std::io::copy(&mut reader.by_ref().take(length), &mut std::io::sink())?;
        let path = request.split(' ').nth(1).unwrap_or_default();
        let (status, body) =
            if request.starts_with("POST") { (self.turn_on(), "{}".into()) } else { (200, self.page(path)) };
        let body = if status == 204 { String::new() } else { body };
        let length = body.len();
        write!(&stream, "HTTP/1.1 {status} -\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
    }

    fn page(&self, path: &str) -> String {
        let link = |path: &str| serde_json::json!({ "@odata.id": path });
        let power = format!("{CHASSIS}/Power");
        match path {
            CHASSIS => {
                let links = serde_json::json!({ "ComputerSystems": [link(SYSTEM)] });
                serde_json::json!({ "Id": "1", "Links": links, "Power": link(&power) }).to_string()
            }
            _ if path == power => {
                self.asked().push(Asked::Watts);
                let watts = *self.watts.lock().expect("no panic");
                serde_json::json!({ "PowerControl": [{ "PowerConsumedWatts": watts }] }).to_string()
            }
            _ => self.machine(),
        }
    }

    fn dictated(&self) -> Option<&'static str> {
        let mut dictated = self.dictated.lock().expect("no panic");
        self.waits.store(dictated.is_some(), Ordering::Relaxed);
        let said = dictated.as_ref()?.recv().ok();
        self.waits.store(false, Ordering::Relaxed);
        if said.is_none() {
            *dictated = None;
        }
        said
    }

    fn machine(&self) -> String {
        let is_off = || match self.manner() {
            Manner::SaysOffTooSoon => ebb_power::running_pid(&self.data).is_none(),
            _ => is_off(&self.data),
        };
        let state = self.dictated().unwrap_or_else(|| if is_off() { "Off" } else { "On" });
        self.asked().push(Asked::State(state));
        let reset = serde_json::json!({
            "target": format!("{SYSTEM}/Actions/ComputerSystem.Reset"),
            "ResetType@Redfish.AllowableValues": ["On"],
        });
        let links = serde_json::json!({ "Chassis": [{ "@odata.id": CHASSIS }] });
        let actions = serde_json::json!({ "#ComputerSystem.Reset": reset });
        serde_json::json!({ "PowerState": state, "Links": links, "Actions": actions }).to_string()
    }

    fn turn_on(&self) -> u16 {
        let status = match self.manner() {
            Manner::SaysOffTooSoon if !is_off(&self.data) => 409,
            Manner::DoesNothing => 204,
            _ => {
                let done = Command::new(emulator("machine")).arg(&self.data).arg("on").status();
                assert!(done.expect("run a program").success(), "the machine is turned on");
                204
            }
        };
        self.asked().push(Asked::On(status));
        status
    }
}
