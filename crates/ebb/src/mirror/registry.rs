//! The directory in which a machine's mirrors are noted: `NAME.toml` says which disks and settings, and `NAME.sock` is
//! where the process that serves the mirror answers.
//!
//! The disks themselves say what they are and how current they are; the directory only finds them. So it may be lost,
//! and be written again by hand.

use crate::cluster::launch::private_directory;
use crate::cluster::secrets::write_new;
use crate::error::{NodeError, io};
use crate::mirror::MirrorError;
use crate::mirror::drivers::DriverConfig;
use ebb_mirror::{MirrorId, Settings, Side, Sleep, Thresholds};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest name of a mirror.
const NAME_MAX: usize = ebb_mirror::superblock::NAME_BYTES_MAX;
/// Longest epoch, in seconds.
const EPOCH_SECONDS_MAX: f64 = 86_400.0;
/// Longest time that a disk may be behind or must be awake, in seconds.
const SLEEP_SECONDS_MAX: f64 = 365.0 * 86_400.0;

/// A checked name: also the NBD export's, and a file's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(String);

impl Name {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Display for Name {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::str::FromStr for Name {
    type Err = MirrorError;
    fn from_str(text: &str) -> Result<Name, MirrorError> {
        let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if (1..=NAME_MAX).contains(&text.len()) && text.chars().all(is_plain) {
            Ok(Name(text.to_owned()))
        } else {
            Err(MirrorError::Name(text.to_owned()))
        }
    }
}

/// `NAME.toml`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Hexadecimal: the mirror's id, as its disks have it.
    #[serde(with = "hex")]
    pub mirror: MirrorId,
    /// Paths.
    pub disk_a: PathBuf,
    pub disk_b: PathBuf,
    #[serde(default)]
    pub driver: DriverConfig,
    #[serde(default)]
    pub settings: Tuning,
}

/// The settings that a user may change between two starts; the command line has the others.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tuning {
    pub epoch_seconds: f64,
    pub settle_epochs: u32,
    pub smoothing: f64,
    pub postponed_bytes: u64,
    /// Of disks that sleep at low speed: see [`Sleep`].
    pub behind_seconds: f64,
    pub awake_seconds: f64,
    pub thresholds: Thresholds,
}

impl Tuning {
    pub fn sleep(&self) -> Sleep {
        Sleep {
            behind_longest: Duration::from_secs_f64(self.behind_seconds),
            awake_shortest: Duration::from_secs_f64(self.awake_seconds),
        }
    }
}

impl Default for Tuning {
    fn default() -> Tuning {
        let Settings { thresholds, epoch, settle_epochs, smoothing, postponed_bytes, .. } =
            Settings::default();
        let Sleep { behind_longest, awake_shortest } = Sleep::default();
        Tuning {
            epoch_seconds: epoch.as_secs_f64(),
            settle_epochs,
            smoothing,
            postponed_bytes,
            behind_seconds: behind_longest.as_secs_f64(),
            awake_seconds: awake_shortest.as_secs_f64(),
            thresholds,
        }
    }
}

impl Entry {
    pub fn disk(&self, side: Side) -> &Path {
        match side {
            Side::A => &self.disk_a,
            Side::B => &self.disk_b,
        }
    }

    pub fn set_disk(&mut self, side: Side, path: PathBuf) {
        match side {
            Side::A => self.disk_a = path,
            Side::B => self.disk_b = path,
        }
    }
}

pub struct Registry {
    directory: PathBuf,
}

impl Registry {
    /// `given`, or the directory that the environment names.
    pub fn find(given: Option<PathBuf>) -> Result<Registry, MirrorError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let state = || {
            let home = || variable("HOME").map(|home| home.join(".local/state"));
            variable("XDG_STATE_HOME").or_else(home).map(|state| state.join("ebb/mirrors"))
        };
        let directory = given.or_else(|| variable("EBB_MIRRORS")).or_else(state);
        Ok(Registry { directory: directory.ok_or(MirrorError::NoRegistry)? })
    }

    pub fn file(&self, name: &Name) -> PathBuf {
        self.directory.join(format!("{name}.toml"))
    }

    pub fn socket(&self, name: &Name) -> PathBuf {
        self.directory.join(format!("{name}.sock"))
    }

    pub fn load(&self, name: &Name) -> Result<Entry, NodeError> {
        let file = self.file(name);
        match std::fs::read_to_string(&file) {
            Ok(text) => Ok(parse(&file, &text)?),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                Err(MirrorError::Unknown { name: name.to_string(), file }.into())
            }
            Err(error) => Err(io("read", file)(error)),
        }
    }

    /// The settings of an entry, checked. Policy and acknowledgement are the defaults.
    pub fn settings(&self, name: &Name, entry: &Entry) -> Result<Settings, MirrorError> {
        let file = self.file(name);
        let tuning = entry.settings;
        if !(0.0..=EPOCH_SECONDS_MAX).contains(&tuning.epoch_seconds) {
            let why = format!("epoch_seconds is {}: set it to 3, or up to a day", tuning.epoch_seconds);
            return Err(MirrorError::Entry { file, why });
        }
        for (key, value) in
            [("behind_seconds", tuning.behind_seconds), ("awake_seconds", tuning.awake_seconds)]
        {
            if !(0.0..=SLEEP_SECONDS_MAX).contains(&value) {
                let why = format!("{key} is {value}: set it to 1800, or up to a year");
                return Err(MirrorError::Entry { file, why });
            }
        }
        if let Err(why) = entry.driver.check() {
            return Err(MirrorError::Entry { file, why });
        }
        let settings = Settings {
            thresholds: tuning.thresholds,
            epoch: Duration::from_secs_f64(tuning.epoch_seconds),
            settle_epochs: tuning.settle_epochs,
            smoothing: tuning.smoothing,
            postponed_bytes: tuning.postponed_bytes,
            ..Settings::default()
        };
        settings.check().map_err(|error| MirrorError::Settings { file, error })?;
        Ok(settings)
    }

    /// Whether the name is free.
    pub fn check_free(&self, name: &Name) -> Result<(), MirrorError> {
        let file = self.file(name);
        match file.exists() {
            true => Err(MirrorError::Taken { name: name.to_string(), file }),
            false => Ok(()),
        }
    }

    /// Notes a new mirror.
    pub fn add(&self, name: &Name, entry: &Entry) -> Result<(), NodeError> {
        private_directory(&self.directory)?;
        write_new(&self.file(name), &text(entry))
    }

    /// Notes a change, atomically.
    pub fn replace(&self, name: &Name, entry: &Entry) -> Result<(), NodeError> {
        let file = self.file(name);
        ebb_files::replace_file(&file, text(entry).as_bytes(), 0o600).map_err(io("replace", file))
    }

    /// The mirror with this id, if one is noted here. An entry that cannot be read is not asked.
    pub fn with_id(&self, id: MirrorId) -> Option<(String, PathBuf)> {
        let files = std::fs::read_dir(&self.directory).ok()?;
        files.flatten().map(|file| file.path()).find_map(|file| {
            let name = file.file_stem()?.to_str()?.to_owned();
            let is_entry = file.extension().is_some_and(|extension| extension == "toml");
            let text = std::fs::read_to_string(&file).ok().filter(|_| is_entry)?;
            (parse(&file, &text).ok()?.mirror == id).then_some((name, file))
        })
    }
}

fn parse(file: &Path, text: &str) -> Result<Entry, MirrorError> {
    toml::from_str(text).map_err(|error| MirrorError::Entry { file: file.to_owned(), why: error.to_string() })
}

fn text(entry: &Entry) -> String {
    toml::to_string(entry).expect("an entry has plain fields, and paths that were arguments")
}

/// An id as 32 hexadecimal digits.
mod hex {
    use ebb_mirror::MirrorId;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(id: &MirrorId, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&format!("{:032x}", u128::from_be_bytes(id.0)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<MirrorId, D::Error> {
        let text = String::deserialize(from)?;
        let digits = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(&text, 16).ok().filter(|_| digits);
        let number = number.ok_or_else(|| D::Error::custom("an id has 32 hexadecimal digits"))?;
        Ok(MirrorId(number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_no_file_names_are_refused() {
        for good in ["a", "vm-images-2", &"x".repeat(64)] {
            assert_eq!(good.parse::<Name>().unwrap().as_str(), good);
        }
        for bad in ["", "A", "a.b", "../a", "a b", "ä", &"x".repeat(65)] {
            assert!(bad.parse::<Name>().is_err(), "{bad}");
        }
    }

    #[test]
    fn entries_are_read_as_they_were_written_and_mistakes_are_named() {
        let entry = Entry {
            mirror: MirrorId([3; 16]),
            disk_a: "/dev/disk/by-id/a".into(),
            disk_b: "/b".into(),
            driver: DriverConfig::default(),
            settings: Tuning::default(),
        };
        let good = text(&entry);
        assert_eq!(parse(Path::new("m.toml"), &good).unwrap(), entry);
        for (from, to, why) in [
            ("disk_a", "disk_x", "unknown field `disk_x`"),
            ("03", "3", "32 hexadecimal digits"),
            ("03", "+3", "32 hexadecimal digits"),
            ("epoch_seconds", "epoch", "unknown field `epoch`"),
        ] {
            let error = parse(Path::new("m.toml"), &good.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("m.toml"), "{error}");
        }
        let registry = Registry { directory: "/nowhere".into() };
        let name: Name = "m".parse().unwrap();
        for (tuning, why) in [
            (Tuning { epoch_seconds: f64::NAN, ..Tuning::default() }, "epoch_seconds is NaN"),
            (Tuning { epoch_seconds: 0.0, ..Tuning::default() }, "the epoch has no length"),
            (Tuning { smoothing: 1.0, ..Tuning::default() }, "smoothing is 1"),
            (Tuning { awake_seconds: -1.0, ..Tuning::default() }, "awake_seconds is -1"),
            (Tuning { behind_seconds: f64::INFINITY, ..Tuning::default() }, "behind_seconds is inf"),
        ] {
            let error = registry.settings(&name, &Entry { settings: tuning, ..entry.clone() }).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        let mut wrong = entry.clone();
        wrong.driver.deadline_seconds = 0.0;
        let error = registry.settings(&name, &wrong).unwrap_err().to_string();
        assert!(error.contains("m.toml: driver.deadline_seconds is 0"), "{error}");
        assert_eq!(registry.settings(&name, &entry).unwrap(), Settings::default());
        assert_eq!(entry.settings.sleep(), Sleep::default());
    }
}
