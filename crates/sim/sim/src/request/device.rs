//! What a chunk server keeps its data on: a disk, or a mirror of two two-speed disks.

use crate::request::disk::{Access, Disk, DiskModel};
use crate::request::pair::{Account, Pair};
use ebb_mirror::{Geometry, Settings};
use ebb_types::Random;

/// How a pair of two-speed disks is mirrored.
#[derive(Clone, Copy, Debug)]
pub struct Mirroring {
    pub settings: Settings,
    /// Log of each disk.
    pub log_bytes: u64,
}

/// Of `ebb mirror`, with the paper's log [LogStore §3.1].
impl Default for Mirroring {
    fn default() -> Mirroring {
        Mirroring { settings: Settings::default(), log_bytes: 3 << 30 }
    }
}

pub enum Device {
    Disk(Box<Disk>),
    Pair(Box<Pair>),
}

impl Device {
    /// The model and the mirroring were checked.
    pub fn new(model: &DiskModel, mirroring: &Mirroring, chunk_bytes: u32, random: Random) -> Device {
        let DiskModel::Pair(disk) = model else {
            return Device::Disk(Box::new(Disk::new(model.clone(), random)));
        };
        let geometry = Geometry::new(disk.capacity_bytes, mirroring.log_bytes).expect("it was checked");
        Device::Pair(Box::new(Pair::new(disk, geometry, &mirroring.settings, chunk_bytes.into(), random)))
    }

    pub fn pair(&mut self) -> Option<&mut Pair> {
        match self {
            Device::Disk(_) => None,
            Device::Pair(pair) => Some(pair),
        }
    }

    /// Bytes for data.
    pub fn capacity_bytes(&self) -> u64 {
        match self {
            Device::Disk(disk) => disk.capacity_bytes(),
            Device::Pair(pair) => pair.capacity_bytes(),
        }
    }

    /// Accesses that it serves at a time.
    pub fn channels(&self) -> usize {
        match self {
            Device::Disk(disk) => disk.channels(),
            Device::Pair(_) => 2,
        }
    }

    /// Total nanoseconds that channels were busy; of a pair, what its accesses would have taken at high speed.
    pub fn busy(&self, now: u64) -> u64 {
        match self {
            Device::Disk(disk) => disk.busy,
            Device::Pair(pair) => (pair.account(now).work_seconds * 1e9) as u64,
        }
    }

    /// Time and energy of a pair.
    pub fn account(&self, now: u64) -> Option<Account> {
        match self {
            Device::Disk(_) => None,
            Device::Pair(pair) => Some(pair.account(now)),
        }
    }

    pub fn add(&mut self, job: u32, at: u64, bytes: u64) {
        match self {
            Device::Disk(disk) => disk.add(job, at, bytes),
            Device::Pair(pair) => pair.add(job),
        }
    }

    pub fn add_background(&mut self, job: u32) {
        match self {
            Device::Disk(disk) => disk.add_background(job),
            Device::Pair(pair) => pair.add_background(job),
        }
    }

    pub fn waiting(&self) -> usize {
        match self {
            Device::Disk(disk) => disk.waiting(),
            Device::Pair(pair) => pair.waiting(),
        }
    }

    pub fn background(&self) -> usize {
        match self {
            Device::Disk(disk) => disk.background(),
            Device::Pair(pair) => pair.background(),
        }
    }

    /// The next job that can begin; call [`Device::serve`] next.
    pub fn next(&mut self, now: u64, hurry: bool) -> Option<u32> {
        match self {
            Device::Disk(disk) => disk.next(now, hurry),
            Device::Pair(pair) => pair.next(hurry),
        }
    }

    /// Begins a job. Returns when it is done; `None`: [`Pair::step`] will return that.
    pub fn serve(&mut self, now: u64, job: u32, access: Access, durable: bool) -> Option<u64> {
        match self {
            Device::Disk(disk) => Some(disk.serve(now, access)),
            Device::Pair(pair) => {
                pair.serve(now, job, access, durable);
                None
            }
        }
    }
}
