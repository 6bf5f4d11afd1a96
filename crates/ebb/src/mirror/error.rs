//! Why a command on a mirror is refused. Nothing has been written then.

use ebb_mirror::open::OpenError;
use ebb_mirror::{GeometryError, ModelError, SettingsError};
use ebb_power::disk::DiskError;
use ebb_types::Bytes;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    #[error("invalid name {0:?}: use 1 to 64 of the characters a to z, 0 to 9 and -")]
    Name(String),
    #[error("there is no directory for mirrors: set EBB_MIRRORS, or give --registry DIR")]
    NoRegistry,
    #[error("there is no mirror {name}: {file} does not exist; create it, or give its --registry")]
    Unknown { name: String, file: PathBuf },
    #[error("there is a mirror {name} already: choose another name, or remove {file}")]
    Taken { name: String, file: PathBuf },
    #[error("{file}: {why}")]
    Entry { file: PathBuf, why: String },
    #[error("{file}: {error}")]
    Settings { file: PathBuf, error: SettingsError },
    #[error(transparent)]
    Disk(#[from] ebb_blockdev::OpenError),
    #[error("the path {path} is not UTF-8, so that it cannot be noted: give another path of the disk")]
    NotText { path: PathBuf },
    #[error("{a} and {b} are the same disk: give two, so that one may fail")]
    Same { a: PathBuf, b: PathBuf },
    #[error("{path} contains {what}: give --overwrite to lose it, or another disk")]
    NotEmpty { path: PathBuf, what: String },
    #[error("{path} is a disk of the mirror {mirror}: give another, or remove {file} first")]
    OfAnother { path: PathBuf, mirror: String, file: PathBuf },
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    #[error("mirror {name}, disks {a} and {b}: {error}")]
    Open { name: String, a: PathBuf, b: PathBuf, error: OpenError },
    #[error(
        "the disks {a} and {b} are not those of mirror {name}: another mirror was created on them; give the right disks in {file}"
    )]
    NotTheMirrors { name: String, a: PathBuf, b: PathBuf, file: PathBuf },
    #[error("mirror {0} is being served: stop that process first")]
    Served(String),
    #[error("mirror {0} is not served: start it with `ebb mirror serve {0}`")]
    NotServed(String),
    #[error(
        "mirror {name} has both its disks, {a} and {b}: take out the one that is to be replaced, or name it to rebuild it"
    )]
    NothingLost { name: String, a: PathBuf, b: PathBuf },
    #[error("{path} has {found} and the mirror needs {needed}: give a larger disk")]
    Small { path: PathBuf, found: Bytes, needed: Bytes },
    #[error(
        "driver none serves at one speed: give another, such as --driver emulated (`ebb mirror drivers`), or leave out --policy"
    )]
    OneSpeed,
    #[error(transparent)]
    Combination(SettingsError),
    #[error(transparent)]
    Switch(#[from] DiskError),
    #[error("driver command has no programs: give them in [driver.command] of {0}.toml, as low and high")]
    NoCommand(String),
    #[error(
        "{a} and {b} are one NVMe drive, whose speed they share: mirror two drives, or use --driver none"
    )]
    OneDrive { a: PathBuf, b: PathBuf },
    #[error(
        "ended at once, without waiting for the disks: the next start compares what was being written, and a disk may be at low speed"
    )]
    Interrupted,
    #[error("--disk-model is for --driver emulated: give both or neither")]
    ModelUnused,
    #[error("{path}: {error}")]
    Model { path: PathBuf, error: ModelError },
    #[error("{path}: {why}")]
    ModelFile { path: PathBuf, why: String },
    #[error(
        "the disk model {model:?} has {capacity} and the mirror needs {needed}: raise capacity_bytes in a model of your own (--disk-model)"
    )]
    ModelSmall { model: String, capacity: Bytes, needed: Bytes },
    #[error(
        "the server's disks were {a} and {b}, as {file} notes: give these, or put a new disk in the place of one with `ebb mirror replace`"
    )]
    OtherDisks { a: PathBuf, b: PathBuf, file: PathBuf },
    #[error("{0}. A chunk server starts degraded with `degraded = true` under [mirror]")]
    OfServer(Box<MirrorError>),
    #[error("mirror {name}: {why}")]
    Answer { name: String, why: String },
}
