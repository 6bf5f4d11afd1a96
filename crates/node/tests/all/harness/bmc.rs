//! A management controller that answers as some real ones do, though no emulator: Redfish, on a thread of the test. Its machine is the
//! process of a server ([`machines`](super::machines)).

use super::machines::{emulator, is_off};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};
use toml::{Table, toml};

const SYSTEM: &str = "/redfish/v1/Systems/1";

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
}

struct Shared {
    /// The server's data directory.
    data: PathBuf,
    manner: Mutex<Manner>,
    asked: Mutex<Vec<Asked>>,
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
        let (manner, asked) = (Mutex::new(Manner::Obeys), Mutex::default());
        let shared = Arc::new(Shared { data: data.to_owned(), manner, asked });
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
        path
    }

    pub fn behave(&self, manner: Manner) {
        *self.shared.manner.lock().expect("no panic") = manner;
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
        let (status, body) =
            if request.starts_with("POST") { (self.turn_on(), "{}".into()) } else { (200, self.page()) };
        let body = if status == 204 { String::new() } else { body };
        let length = body.len();
        write!(&stream, "HTTP/1.1 {status} -\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
    }

    fn page(&self) -> String {
        let off = match self.manner() {
            Manner::SaysOffTooSoon => ebb_power::running_pid(&self.data).is_none(),
            _ => is_off(&self.data),
        };
        let state = if off { "Off" } else { "On" };
        self.asked().push(Asked::State(state));
        let reset = serde_json::json!({
            "target": format!("{SYSTEM}/Actions/ComputerSystem.Reset"),
            "ResetType@Redfish.AllowableValues": ["On"],
        });
        serde_json::json!({ "PowerState": state, "Actions": { "#ComputerSystem.Reset": reset } }).to_string()
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
