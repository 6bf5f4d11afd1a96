//! Disks that spin, with ATA or SCSI (SAS) commands: at low speed they are in standby or in a low idle condition, and
//! serve nothing there. [ATA/ATAPI Command Set 4: Power Management, Extended Power Conditions; SCSI Block Commands 4:
//! power conditions]
//!
//! | condition | ATA | SCSI |
//! |---|---|---|
//! | idle-b: heads unloaded, full speed | SET FEATURES (EPC: go to power condition) | START STOP UNIT |
//! | idle-c: heads unloaded, reduced speed | the same | the same |
//! | standby: stopped | STANDBY IMMEDIATE | the same |
//! | high speed | IDLE IMMEDIATE | START STOP UNIT (start) |
//!
//! What was set is read back: with CHECK POWER MODE, or with REQUEST SENSE. Neither wakes a disk. Any read or write
//! does, and takes as long as starting up.

use super::{About, Change, DiskError, DiskSwitch, io_error, open};
use crate::passthrough::{Scsi, ScsiEnd, ata_power_mode};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a disk is put in at low speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    IdleB,
    IdleC,
    #[default]
    Standby,
}

impl Condition {
    fn word(self) -> &'static str {
        match self {
            Condition::IdleB => "idle-b",
            Condition::IdleC => "idle-c",
            Condition::Standby => "standby",
        }
    }

    /// Whether CHECK POWER MODE reports it so.
    fn is_ata_mode(self, mode: u8) -> bool {
        match self {
            Condition::IdleB => mode == 0x82,
            Condition::IdleC => mode == 0x83,
            Condition::Standby => mode <= 0x01,
        }
    }

    /// Whether REQUEST SENSE reports it so: the qualifiers of "low power condition", set by a timer or a command.
    fn is_scsi_qualifier(self, qualifier: u8) -> bool {
        match self {
            Condition::IdleB => matches!(qualifier, 0x05 | 0x06),
            Condition::IdleC => matches!(qualifier, 0x07 | 0x08),
            Condition::Standby => matches!(qualifier, 0x02 | 0x04 | 0x09 | 0x0a),
        }
    }
}

const IDENTIFY_DEVICE: u8 = 0xec;
const STANDBY_IMMEDIATE: u8 = 0xe0;
const IDLE_IMMEDIATE: u8 = 0xe1;
const SET_FEATURES: u8 = 0xef;
const EXTENDED_POWER_CONDITIONS: u8 = 0x4a;
const GO_TO_POWER_CONDITION: u8 = 0x01;
const IDENTIFY_BYTES: usize = 512;
/// "Low power condition on", the code of REQUEST SENSE.
const LOW_POWER: u8 = 0x5e;
const CHECK_CONDITION: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ata,
    Scsi,
}

/// A disk that sleeps at low speed.
pub struct Ata<S> {
    disk: S,
    path: PathBuf,
    timeout: Duration,
    condition: Condition,
    kind: Kind,
    about: About,
}

impl Ata<File> {
    /// The whole disk, such as /dev/sda. `timeout`: of each command, so longer than it takes to start up. Changes
    /// nothing.
    pub fn open(path: &Path, condition: Condition, timeout: Duration) -> Result<Ata<File>, DiskError> {
        Ata::new(open(path)?, path, condition, timeout)
    }
}

/// ATA PASS-THROUGH (16) of a command without data.
fn pass_through(command: u8, feature: u8, count: u8, lba: u8) -> [u8; 16] {
    [0x85, 3 << 1, 0, 0, feature, 0, count, 0, lba, 0, 0, 0, 0, 0, command, 0]
}

/// ATA PASS-THROUGH (16) that reads one sector.
const IDENTIFY: [u8; 16] = [0x85, 4 << 1, 0x0e, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, IDENTIFY_DEVICE, 0];

/// INQUIRY and REQUEST SENSE, with their lengths.
const INQUIRY: [u8; 6] = [0x12, 0, 0, 0, 36, 0];
const REQUEST_SENSE: [u8; 6] = [0x03, 0, 0, 0, 32, 0];

/// START STOP UNIT into a power condition and its modifier; 1: active.
fn start_stop(condition: u8, modifier: u8) -> [u8; 6] {
    [0x1b, 0, 0, modifier, condition << 4, 0]
}

/// A word of IDENTIFY DEVICE.
fn word(page: &[u8], number: usize) -> u16 {
    u16::from_le_bytes([page[2 * number], page[2 * number + 1]])
}

/// Text of IDENTIFY DEVICE, whose bytes are exchanged in pairs.
fn text(page: &[u8], words: std::ops::Range<usize>) -> String {
    let bytes: Vec<u8> = words.flat_map(|n| word(page, n).to_be_bytes()).collect();
    String::from_utf8_lossy(&bytes).trim_matches([' ', '\0']).to_owned()
}

/// Code and qualifier of sense data of either format.
fn sense_code(sense: &[u8]) -> Option<(u8, u8)> {
    match sense.first()? & 0x7f {
        0x70 | 0x71 => Some((*sense.get(12)?, *sense.get(13)?)),
        0x72 | 0x73 => Some((*sense.get(2)?, *sense.get(3)?)),
        _ => None,
    }
}

impl<S: Scsi> Ata<S> {
    fn new(disk: S, path: &Path, condition: Condition, timeout: Duration) -> Result<Ata<S>, DiskError> {
        let refusal = |why: String| DiskError::OneSpeed { path: path.to_owned(), why };
        let mut page = [0; IDENTIFY_BYTES];
        let identified = disk.scsi(&IDENTIFY, &mut page, timeout).map_err(io_error("identify", path))?;
        let is_ata = identified.received == IDENTIFY_BYTES && page.iter().any(|byte| *byte != 0);
        let (kind, model) = if is_ata {
            check_ata(&page, condition).map_err(refusal)?;
            (Kind::Ata, text(&page, 27..47))
        } else {
            (Kind::Scsi, inquire(&disk, timeout).map_err(io_error("identify", path))?.map_err(refusal)?)
        };
        let about = About {
            what: format!("{model}, active and {}", condition.word()),
            slowdown: 1.0,
            rated: None,
            change: Change { down: Duration::from_secs(5), up: Duration::from_secs(15) },
        };
        Ok(Ata { disk, path: path.to_owned(), timeout, condition, kind, about })
    }

    fn send(&self, action: &'static str, command: &[u8]) -> Result<(), DiskError> {
        let end = self.disk.scsi(command, &mut [], self.timeout).map_err(io_error(action, &self.path))?;
        match refusal(&end) {
            Some(why) => Err(DiskError::Refused { path: self.path.clone(), action, why }),
            None => Ok(()),
        }
    }

    /// What the disk reports, and whether that is `wanted`; `None` wants it awake.
    fn check(&self, wanted: Option<Condition>) -> Result<(), DiskError> {
        let failed = io_error("read the power condition of", &self.path);
        let (found, is_wanted) = match self.kind {
            Kind::Ata => {
                let mode = ata_power_mode(&self.disk, self.timeout).map_err(failed)?;
                // 0x80, 0x81: idle with the heads loaded; 0xff: active or idle.
                let awake = matches!(mode, 0x80 | 0x81 | 0xff);
                (format!("power mode {mode:#04x}"), wanted.map_or(awake, |wanted| wanted.is_ata_mode(mode)))
            }
            Kind::Scsi => {
                let mut sense = [0; 32];
                let end = self.disk.scsi(&REQUEST_SENSE, &mut sense, self.timeout).map_err(failed)?;
                let (code, qualifier) = sense_code(&sense[..end.received.min(32)]).unwrap_or((0, 0));
                let is_low = code == LOW_POWER;
                let is_wanted = match wanted {
                    Some(wanted) => is_low && wanted.is_scsi_qualifier(qualifier),
                    // Not ready: it starts up, or has failed to.
                    None => !is_low && code != 0x04,
                };
                (format!("sense code {code:02x}/{qualifier:02x}"), is_wanted)
            }
        };
        if is_wanted {
            return Ok(());
        }
        let wanted = wanted.map_or("active", Condition::word).to_owned();
        Err(DiskError::Kept { path: self.path.clone(), wanted, found })
    }
}

/// Whether the disk spins, and knows the condition.
fn check_ata(page: &[u8], condition: Condition) -> Result<(), String> {
    if word(page, 217) == 1 {
        return Err("it is an SSD, which does not spin".to_owned());
    }
    if word(page, 82) & 1 << 3 == 0 {
        return Err("it has no power management".to_owned());
    }
    // Word 119 says nothing unless its two highest bits are 01.
    let extended = word(page, 119) >> 14 == 1 && word(page, 119) & 1 << 7 != 0;
    let enabled = word(page, 120) >> 14 == 1 && word(page, 120) & 1 << 7 != 0;
    if condition != Condition::Standby && !(extended && enabled) {
        let why = if extended { "are not enabled" } else { "are unknown to it" };
        return Err(format!("extended power conditions {why}: use condition standby"));
    }
    Ok(())
}

/// Vendor and product of a disk that speaks SCSI.
fn inquire(disk: &impl Scsi, timeout: Duration) -> io::Result<Result<String, String>> {
    let mut page = [0; 36];
    let end = disk.scsi(&INQUIRY, &mut page, timeout)?;
    if end.received < page.len() || page[0] & 0x1f != 0 {
        return Ok(Err("it is neither an ATA nor a SCSI disk".to_owned()));
    }
    Ok(Ok(String::from_utf8_lossy(&page[8..32]).split_whitespace().collect::<Vec<_>>().join(" ")))
}

fn refusal(end: &ScsiEnd) -> Option<String> {
    if end.status == 0 {
        return None;
    }
    let code = sense_code(&end.sense);
    // An ATA command that was asked for its registers ends so, too: code 00/1d, "ATA pass through information
    // available".
    if end.status == CHECK_CONDITION && code == Some((0x00, 0x1d)) {
        return None;
    }
    Some(match code {
        Some((code, qualifier)) => format!("status {}, sense code {code:02x}/{qualifier:02x}", end.status),
        None => format!("status {}", end.status),
    })
}

impl<S: Scsi> DiskSwitch for Ata<S> {
    fn go_low(&mut self) -> Result<(), DiskError> {
        let action = "put to sleep";
        match (self.kind, self.condition) {
            (Kind::Ata, Condition::Standby) => {
                self.send(action, &pass_through(STANDBY_IMMEDIATE, 0, 0, 0))?;
            }
            (Kind::Ata, condition) => {
                let count = if condition == Condition::IdleB { 0x82 } else { 0x83 };
                let command =
                    pass_through(SET_FEATURES, EXTENDED_POWER_CONDITIONS, count, GO_TO_POWER_CONDITION);
                self.send(action, &command)?;
            }
            (Kind::Scsi, Condition::IdleB) => self.send(action, &start_stop(2, 1))?,
            (Kind::Scsi, Condition::IdleC) => self.send(action, &start_stop(2, 2))?,
            (Kind::Scsi, Condition::Standby) => self.send(action, &start_stop(3, 0))?,
        }
        self.check(Some(self.condition))
    }

    fn go_high(&mut self) -> Result<(), DiskError> {
        match self.kind {
            Kind::Ata => self.send("wake", &pass_through(IDLE_IMMEDIATE, 0, 0, 0))?,
            Kind::Scsi => self.send("wake", &start_stop(1, 0))?,
        }
        self.check(None)
    }

    fn about(&self) -> &About {
        &self.about
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::{Cell, RefCell};

    /// An emulated disk of either kind.
    struct Disk {
        kind: Kind,
        page: [u8; IDENTIFY_BYTES],
        mode: Cell<u8>,
        /// It accepts commands and stays as it is.
        keeps: bool,
        refuses: bool,
        mute: bool,
        last: RefCell<Vec<u8>>,
    }

    const AWAKE: u8 = 0xff;

    impl Disk {
        fn set(&self, mode: u8) -> io::Result<ScsiEnd> {
            if self.refuses {
                let sense = vec![0x70, 0, 5, 0, 0, 0, 0, 10, 0, 0, 0, 0, 0x24, 0];
                return Ok(ScsiEnd { status: CHECK_CONDITION, sense, received: 0 });
            }
            if !self.keeps {
                self.mode.set(mode);
            }
            Ok(ScsiEnd::default())
        }

        fn fill(data: &mut [u8], with: &[u8]) -> io::Result<ScsiEnd> {
            let received = data.len().min(with.len());
            data[..received].copy_from_slice(&with[..received]);
            Ok(ScsiEnd { received, ..ScsiEnd::default() })
        }

        fn ata(&self, command: &[u8], data: &mut [u8]) -> io::Result<ScsiEnd> {
            match (command[14], command[4], command[6]) {
                (IDENTIFY_DEVICE, ..) => Disk::fill(data, &self.page),
                (STANDBY_IMMEDIATE, ..) => self.set(0),
                (IDLE_IMMEDIATE, ..) => self.set(0x81),
                (SET_FEATURES, 0x4a, count) => self.set(count),
                (0xe5, ..) => {
                    let mut sense = vec![0; 22];
                    (sense[0], sense[3], sense[8], sense[9]) = (0x72, 0x1d, 0x09, 0x0c);
                    sense[13] = self.mode.get();
                    Ok(ScsiEnd { status: CHECK_CONDITION, sense, received: 0 })
                }
                other => panic!("{other:?}"),
            }
        }

        fn sas(&self, command: &[u8], data: &mut [u8]) -> io::Result<ScsiEnd> {
            match (command[0], command[4] >> 4, command[3]) {
                (0x85, ..) => Ok(ScsiEnd { status: CHECK_CONDITION, ..ScsiEnd::default() }),
                (0x12, ..) => {
                    let mut page = [0; 36];
                    page[8..32].copy_from_slice(b"VENDOR  A disk          ");
                    Disk::fill(data, &page)
                }
                (0x1b, 1, 0) => self.set(AWAKE),
                (0x1b, 2, 1) => self.set(0x06),
                (0x1b, 2, 2) => self.set(0x08),
                (0x1b, 3, 0) => self.set(0x04),
                (0x03, ..) if self.mode.get() == AWAKE => Disk::fill(data, &[0x70; 1]),
                (0x03, ..) => {
                    let mut sense = [0; 18];
                    (sense[0], sense[12], sense[13]) = (0x70, LOW_POWER, self.mode.get());
                    Disk::fill(data, &sense)
                }
                other => panic!("{other:?}"),
            }
        }
    }

    impl Scsi for &Disk {
        fn scsi(&self, command: &[u8], data: &mut [u8], _: Duration) -> io::Result<ScsiEnd> {
            *self.last.borrow_mut() = command.to_vec();
            match self.kind {
                _ if self.mute => Err(io::Error::other("the drive did not answer within 1s (host status 3)")),
                Kind::Ata => self.ata(command, data),
                Kind::Scsi => self.sas(command, data),
            }
        }
    }

    /// With extended power conditions.
    fn disk(kind: Kind) -> Disk {
        let mut page = [0; IDENTIFY_BYTES];
        for (n, pair) in b"Emulated disk       ".chunks(2).enumerate() {
            page[2 * (27 + n)..2 * (28 + n)].copy_from_slice(&[pair[1], pair[0]]);
        }
        let mut set = |number: usize, value: u16| {
            page[2 * number..2 * number + 2].copy_from_slice(&value.to_le_bytes());
        };
        set(82, 1 << 3);
        set(119, 1 << 14 | 1 << 7);
        set(120, 1 << 14 | 1 << 7);
        set(217, 7200);
        let last = RefCell::default();
        Disk { kind, page, mode: Cell::new(AWAKE), keeps: false, refuses: false, mute: false, last }
    }

    fn new(disk: &Disk, condition: Condition) -> Result<Ata<&Disk>, DiskError> {
        Ata::new(disk, Path::new("/dev/sda"), condition, Duration::from_secs(1))
    }

    fn refused<T>(result: Result<T, DiskError>) -> String {
        result.map(|_| ()).unwrap_err().to_string()
    }

    const CONDITIONS: [Condition; 3] = [Condition::IdleB, Condition::IdleC, Condition::Standby];

    #[test]
    fn disks_of_both_kinds_sleep_and_wake_and_say_so() {
        for (kind, modes) in [(Kind::Ata, [0x82, 0x83, 0]), (Kind::Scsi, [0x06, 0x08, 0x04])] {
            for (condition, mode) in CONDITIONS.into_iter().zip(modes) {
                let disk = disk(kind);
                let mut switch = new(&disk, condition).unwrap();
                assert!(switch.about.what.contains(condition.word()), "{}", switch.about.what);
                switch.go_low().unwrap();
                assert_eq!(disk.mode.get(), mode);
                switch.go_high().unwrap();
                assert!([AWAKE, 0x81].contains(&disk.mode.get()));
            }
        }
        assert_eq!(
            new(&disk(Kind::Ata), Condition::Standby).unwrap().about.what,
            "Emulated disk, active and standby"
        );
        assert!(new(&disk(Kind::Scsi), Condition::Standby).unwrap().about.what.starts_with("VENDOR A disk,"));
    }

    #[test]
    fn the_go_to_command_is_the_standards() {
        let disk = disk(Kind::Ata);
        let mut switch = new(&disk, Condition::IdleB).unwrap();
        switch.send("try", &pass_through(SET_FEATURES, 0x4a, 0x82, 1)).unwrap();
        assert_eq!(*disk.last.borrow(), [0x85, 6, 0, 0, 0x4a, 0, 0x82, 0, 1, 0, 0, 0, 0, 0, 0xef, 0]);
        switch.go_low().unwrap();
    }

    #[test]
    fn disks_that_cannot_sleep_are_refused() {
        let with = |number: usize, value: u16, condition| {
            let mut disk = disk(Kind::Ata);
            disk.page[2 * number..2 * number + 2].copy_from_slice(&value.to_le_bytes());
            new(&disk, condition).map(|_| ()).map_err(|error| error.to_string())
        };
        for (number, value, condition, why) in [
            (217, 1, Condition::Standby, "it is an SSD"),
            (82, 0, Condition::Standby, "no power management"),
            (119, 1 << 14, Condition::IdleB, "are unknown to it: use condition standby"),
            (119, 0xffff, Condition::IdleB, "are unknown to it"),
            (119, 0, Condition::IdleC, "are unknown to it"),
            (120, 1 << 14, Condition::IdleC, "are not enabled"),
        ] {
            let text = with(number, value, condition).unwrap_err();
            assert!(text.contains("has one speed") && text.contains(why), "{text}");
        }
        assert_eq!(with(119, 0, Condition::Standby), Ok(()));
    }

    #[test]
    fn refusals_silence_and_disks_that_stay_as_they_are_are_noticed() {
        for kind in [Kind::Ata, Kind::Scsi] {
            let mut refuses = disk(kind);
            refuses.refuses = true;
            let text = refused(new(&refuses, Condition::Standby).unwrap().go_low());
            assert!(text.contains("/dev/sda refused to put to sleep: status 2, sense code 24/00"), "{text}");
            let mut mute = disk(kind);
            mute.mute = true;
            assert!(refused(new(&mute, Condition::Standby)).contains("did not answer within 1s"));
            for condition in CONDITIONS {
                let mut keeps = disk(kind);
                keeps.keeps = true;
                let text = refused(new(&keeps, condition).unwrap().go_low());
                assert!(text.contains(&format!("asked for {} and reports", condition.word())), "{text}");
                keeps.mode.set(if kind == Kind::Ata { 0 } else { 4 });
                let text = refused(new(&keeps, condition).unwrap().go_high());
                assert!(text.contains("asked for active and reports"), "{text}");
            }
        }
    }

    #[test]
    fn made_up_answers_are_refused_or_read() {
        struct Any<'a>(&'a [u8]);
        impl Scsi for Any<'_> {
            fn scsi(&self, _: &[u8], data: &mut [u8], _: Duration) -> io::Result<ScsiEnd> {
                let received = data.len().min(self.0.len());
                data[..received].copy_from_slice(&self.0[..received]);
                let status = self.0.first().copied().unwrap_or(0) % 3;
                Ok(ScsiEnd { status, sense: self.0.to_vec(), received })
            }
        }
        ebb_testing::fuzz(&[&disk(Kind::Ata).page, &[0x72, 0, 0x5e, 4]], |bytes| {
            let opened = Ata::new(Any(bytes), Path::new("x"), Condition::IdleB, Duration::from_secs(1));
            if let Ok(mut switch) = opened {
                let _ = (switch.go_low(), switch.go_high());
            }
        });
    }
}
