//! NVMe: a drive at high speed is in power state 0, and at low speed in the operational state that draws least [NVMe
//! base specification, Power Management].
//!
//! The states are read from Identify Controller. A state is set with Set Features and read back with Get Features; it
//! lasts until the drive loses power. A drive may accept a state and not be slower in it, so its reads are measured
//! once in both: a state without an effect does not count as a second speed. The states belong to the controller:
//! every namespace changes with it.

use super::{About, Change, DiskError, DiskSwitch, Rated, io_error, open, rate};
use crate::passthrough::{Admin, AdminCommand, nvme_power_state};
use ebb_types::Watts;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const IDENTIFY: u8 = 0x06;
const CONTROLLER: u32 = 0x01;
const SET_FEATURES: u8 = 0x09;
const POWER_MANAGEMENT: u32 = 0x02;

const IDENTIFY_BYTES: usize = 4096;
const SERIAL: std::ops::Range<usize> = 4..24;
const MODEL: std::ops::Range<usize> = 24..64;
/// Number of the last power state.
const NPSS: usize = 263;
const STATES_MAX: usize = 32;
const STATES: usize = 2048;
const STATE_BYTES: usize = 32;

/// How long reads are measured at each speed, and the most that the low one may reach of the high one.
const MEASURED: Duration = Duration::from_millis(400);
const BITES: f64 = 0.9;

#[derive(Clone, Copy, Debug, PartialEq)]
struct State {
    number: u8,
    /// `None`: the drive does not say.
    most: Option<Watts>,
    /// It serves reads and writes.
    is_operational: bool,
    entry: Duration,
    exit: Duration,
}

impl State {
    /// One descriptor of [`STATE_BYTES`].
    fn decode(number: u8, bytes: &[u8]) -> State {
        let most = u16::from_le_bytes([bytes[0], bytes[1]]);
        let scale = if bytes[3] & 1 == 0 { 0.01 } else { 0.0001 };
        let micros = |at: usize| {
            let word: [u8; 4] = bytes[at..at + 4].try_into().expect("four bytes");
            Duration::from_micros(u32::from_le_bytes(word).into())
        };
        State {
            number,
            most: (most > 0).then(|| Watts(f64::from(most) * scale)),
            is_operational: bytes[3] & 2 == 0,
            entry: micros(4),
            exit: micros(8),
        }
    }
}

/// What Identify Controller says.
#[derive(Debug, PartialEq)]
struct Controller {
    model: String,
    serial: String,
    states: Vec<State>,
}

impl Controller {
    fn identify(drive: &impl Admin, timeout: Duration) -> io::Result<Result<Controller, String>> {
        let mut page = vec![0; IDENTIFY_BYTES];
        let command = AdminCommand { opcode: IDENTIFY, cdw10: CONTROLLER, ..AdminCommand::default() };
        drive.admin(command, &mut page, timeout)?;
        Ok(Controller::decode(&page))
    }

    fn decode(page: &[u8]) -> Result<Controller, String> {
        let text = |range| String::from_utf8_lossy(&page[range]).trim_matches([' ', '\0']).to_owned();
        if page.len() < IDENTIFY_BYTES || page[MODEL].iter().all(|byte| *byte == 0) {
            return Err("its identification is empty".to_owned());
        }
        let states = usize::from(page[NPSS]) + 1;
        if states > STATES_MAX {
            return Err(format!("it names {states} power states, and there are up to {STATES_MAX}"));
        }
        let state = |n: usize| State::decode(n as u8, &page[STATES + n * STATE_BYTES..][..STATE_BYTES]);
        Ok(Controller { model: text(MODEL), serial: text(SERIAL), states: (0..states).map(state).collect() })
    }

    /// The operational state of least power, if that is less than that of state 0.
    fn low(&self) -> Option<State> {
        let least = |state: &&State| state.is_operational && state.most.is_some();
        let low = self.states.iter().filter(least).min_by(|a, b| {
            let watts = |state: &State| state.most.map_or(f64::MAX, |most| most.0);
            watts(a).total_cmp(&watts(b))
        })?;
        (low.most < self.states[0].most).then_some(*low)
    }
}

/// A drive with a second operational power state.
pub struct Nvme<A> {
    drive: A,
    path: PathBuf,
    timeout: Duration,
    low: State,
    about: About,
    serial: String,
}

impl Nvme<File> {
    /// The drive of a namespace's device, such as /dev/nvme0n1. `timeout`: of each command. Reads its states; changes
    /// nothing.
    pub fn open(path: &Path, timeout: Duration) -> Result<Nvme<File>, DiskError> {
        Nvme::new(open(path)?, path, timeout)
    }

    /// Measures reads at both speeds, and refuses a drive that is as fast in its low state. It is left at high speed.
    pub fn prove(&mut self) -> Result<(), DiskError> {
        let mut options = OpenOptions::new();
        let disk = options.read(true).custom_flags(libc::O_DIRECT).open(&self.path);
        let disk = disk.map_err(io_error("open", &self.path))?;
        self.prove_with(|| rate::read_rate(&disk, MEASURED))
    }
}

impl<A: Admin> Nvme<A> {
    fn new(drive: A, path: &Path, timeout: Duration) -> Result<Nvme<A>, DiskError> {
        let found = Controller::identify(&drive, timeout).map_err(io_error("identify", path))?;
        let found = found.map_err(|why| DiskError::Nonsense { path: path.to_owned(), why })?;
        let Some(low) = found.low() else {
            let why = match found.states.len() {
                1 => "it names one power state".to_owned(),
                n => format!("none of its {n} power states is operational and draws less than the first"),
            };
            return Err(DiskError::OneSpeed { path: path.to_owned(), why });
        };
        let high = found.states[0];
        let watts = |state: State| state.most.expect("a state without watts is not chosen");
        let rated = Rated { low: watts(low), high: watts(high) };
        let about = About {
            what: format!(
                "{}, power states {} (up to {}) and {} (up to {})",
                found.model, high.number, rated.high, low.number, rated.low
            ),
            slowdown: 1.0,
            rated: Some(rated),
            change: Change { down: low.entry, up: low.exit },
        };
        Ok(Nvme { drive, path: path.to_owned(), timeout, low, about, serial: found.serial })
    }

    /// Model and serial number: two paths may lead to one drive.
    pub fn is_same_drive<B>(&self, other: &Nvme<B>) -> bool {
        (&self.about.what, &self.serial) == (&other.about.what, &other.serial)
    }

    fn prove_with(&mut self, mut rate: impl FnMut() -> io::Result<f64>) -> Result<(), DiskError> {
        self.set(0)?;
        let mut rate = || rate().map_err(io_error("read", &self.path));
        let high = rate()?;
        let low = self.set(self.low.number).and_then(|()| rate());
        // Whatever was found, it is not left slow.
        self.set(0)?;
        let low = low?;
        if low.is_nan() || low <= 0.0 || low > BITES * high {
            let why = format!(
                "it reads {:.0} MB/s in power state 0 and {:.0} MB/s in state {}",
                high / 1e6,
                low / 1e6,
                self.low.number
            );
            return Err(DiskError::OneSpeed { path: self.path.clone(), why });
        }
        self.about.slowdown = high / low;
        Ok(())
    }

    /// Sets a state, and reads it back: a drive may accept one and stay where it is.
    fn set(&self, state: u8) -> Result<(), DiskError> {
        let command = AdminCommand {
            opcode: SET_FEATURES,
            cdw10: POWER_MANAGEMENT,
            cdw11: state.into(),
            ..AdminCommand::default()
        };
        let set = self.drive.admin(command, &mut [], self.timeout);
        set.map_err(io_error("set the power state of", &self.path))?;
        let found = nvme_power_state(&self.drive, self.timeout);
        let found = found.map_err(io_error("read the power state of", &self.path))?;
        if found != state {
            return Err(DiskError::Kept {
                path: self.path.clone(),
                wanted: format!("power state {state}"),
                found: format!("power state {found}"),
            });
        }
        Ok(())
    }
}

impl<A: Admin> DiskSwitch for Nvme<A> {
    fn go_low(&mut self) -> Result<(), DiskError> {
        self.set(self.low.number)
    }

    fn go_high(&mut self) -> Result<(), DiskError> {
        self.set(0)
    }

    fn about(&self) -> &About {
        &self.about
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// An emulated drive.
    struct Drive {
        page: Vec<u8>,
        state: Cell<u8>,
        /// States that it accepts and does not enter.
        keeps: bool,
        fails: bool,
        commands: RefCell<Vec<AdminCommand>>,
    }

    impl Admin for &Drive {
        fn admin(&self, command: AdminCommand, data: &mut [u8], _: Duration) -> io::Result<u32> {
            self.commands.borrow_mut().push(command);
            match command.opcode {
                _ if self.fails => Err(io::Error::from_raw_os_error(libc::EACCES)),
                IDENTIFY => {
                    let length = self.page.len().min(data.len());
                    data[..length].copy_from_slice(&self.page[..length]);
                    Ok(0)
                }
                SET_FEATURES if command.cdw11 > 31 => Err(io::Error::other("NVMe status 0x2")),
                SET_FEATURES => {
                    if !self.keeps {
                        self.state.set(command.cdw11 as u8);
                    }
                    Ok(0)
                }
                // With a workload hint.
                _ => Ok(u32::from(self.state.get()) | 0b0110_0000),
            }
        }
    }

    /// Each state: hundredths of a watt, and flags.
    fn drive(states: &[(u16, u8)]) -> Drive {
        let mut page = vec![0; IDENTIFY_BYTES];
        page[SERIAL].copy_from_slice(b"S1                  ");
        page[MODEL].copy_from_slice(b"Emulated drive                          ");
        page[NPSS] = states.len() as u8 - 1;
        for (n, (most, flags)) in states.iter().enumerate() {
            let state = &mut page[STATES + n * STATE_BYTES..][..STATE_BYTES];
            state[..2].copy_from_slice(&most.to_le_bytes());
            state[3] = *flags;
            state[4..8].copy_from_slice(&1500u32.to_le_bytes());
            state[8..12].copy_from_slice(&2500u32.to_le_bytes());
        }
        Drive { page, state: Cell::new(0), keeps: false, fails: false, commands: RefCell::default() }
    }

    /// 8.5, 4.5, 3 W; the last two states serve nothing, and count in 0.0001 W.
    const USUAL: &[(u16, u8)] = &[(850, 0), (450, 0), (300, 0), (400, 3), (25, 3)];

    fn new(drive: &Drive) -> Result<Nvme<&Drive>, DiskError> {
        Nvme::new(drive, Path::new("/dev/nvme0n1"), Duration::from_secs(1))
    }

    fn refusal(drive: &Drive) -> String {
        new(drive).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn the_operational_state_of_least_power_is_low_speed() {
        let drive = drive(USUAL);
        let mut nvme = new(&drive).unwrap();
        assert_eq!(nvme.about.what, "Emulated drive, power states 0 (up to 8.5 W) and 2 (up to 3.0 W)");
        let change = Change { down: Duration::from_micros(1500), up: Duration::from_micros(2500) };
        assert_eq!(nvme.about.change, change);
        assert_eq!(drive.commands.borrow().len(), 1, "opening changes nothing");
        nvme.go_low().unwrap();
        assert_eq!(drive.state.get(), 2);
        nvme.go_high().unwrap();
        assert_eq!(drive.state.get(), 0);
        let set = drive.commands.borrow()[1];
        assert_eq!((set.opcode, set.cdw10, set.cdw11), (0x09, 0x02, 2), "not saved over a loss of power");
    }

    #[test]
    fn states_that_serve_nothing_or_draw_no_less_are_no_second_speed() {
        for (states, why) in [
            (&[(850, 0)][..], "names one power state"),
            (&[(850, 0), (40, 2)], "none of its 2 power states is operational"),
            (&[(850, 0), (850, 0)], "is operational and draws less"),
            (&[(850, 0), (0, 0)], "is operational and draws less"),
            (&[(0, 0), (0, 0)], "is operational and draws less"),
        ] {
            let text = refusal(&drive(states));
            assert!(text.contains("has one speed") && text.contains(why), "{text}");
        }
        // 0.9 W in ten-thousandths is less than 850 hundredths.
        assert_eq!(new(&drive(&[(850, 0), (9000, 1)])).unwrap().low.number, 1);
    }

    #[test]
    fn nonsense_and_errors_are_named() {
        let mut many = drive(USUAL);
        many.page[NPSS] = 255;
        assert!(refusal(&many).contains("256 power states"), "{}", refusal(&many));
        many.page[NPSS] = 31;
        assert_eq!(new(&many).unwrap().low.number, 2, "descriptors of zeroes have no watts");
        let mut short = drive(USUAL);
        short.page.truncate(20);
        assert!(refusal(&short).contains("identification is empty"));
        let mut fails = drive(USUAL);
        fails.fails = true;
        assert!(
            refusal(&fails).contains("cannot identify /dev/nvme0n1")
                && refusal(&fails).contains("run as root")
        );
        let mut keeps = drive(USUAL);
        keeps.keeps = true;
        let text = new(&keeps).unwrap().go_low().unwrap_err().to_string();
        assert!(text.contains("asked for power state 2 and reports power state 0"), "{text}");
    }

    #[test]
    fn a_state_that_does_not_bite_is_refused_and_the_drive_left_fast() {
        for (low, bites) in [(0.5, true), (0.9, true), (0.91, false), (1.3, false), (0.0, false)] {
            let drive = drive(USUAL);
            let mut nvme = new(&drive).unwrap();
            let rate = || Ok(if drive.state.get() == 0 { 2e9 } else { 2e9 * low });
            let proved = nvme.prove_with(rate);
            assert_eq!(drive.state.get(), 0);
            match proved {
                Ok(()) => assert!(bites && (nvme.about.slowdown - 1.0 / low).abs() < 1e-9, "{low}"),
                Err(error) => {
                    assert!(!bites && error.to_string().contains("has one speed: it reads 2000 MB/s"))
                }
            }
        }
        let drive = drive(USUAL);
        let mut nvme = new(&drive).unwrap();
        let fails = || if drive.state.get() == 0 { Ok(1e9) } else { Err(io::Error::other("no")) };
        assert!(nvme.prove_with(fails).unwrap_err().to_string().contains("cannot read"));
        assert_eq!(drive.state.get(), 0, "an error does not leave it slow");
    }

    #[test]
    fn two_namespaces_of_one_drive_are_noticed() {
        let (a, b) = (drive(USUAL), drive(USUAL));
        assert!(new(&a).unwrap().is_same_drive(&new(&b).unwrap()));
        let mut other = drive(USUAL);
        other.page[SERIAL.start + 1] = b'2';
        assert!(!new(&a).unwrap().is_same_drive(&new(&other).unwrap()));
    }

    #[test]
    fn made_up_pages_are_refused_or_read() {
        let page = drive(USUAL).page;
        ebb_testing::fuzz(&[&page], |bytes| {
            let mut page = bytes.to_vec();
            page.resize(IDENTIFY_BYTES, 0xff);
            if let Ok(controller) = Controller::decode(&page) {
                assert!(controller.low().is_none_or(|low| low.is_operational));
            }
        });
    }
}
