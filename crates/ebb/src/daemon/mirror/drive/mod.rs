//! What a disk reports of its time to the mirror, and how its speed changes: by driver.
//!
//! - *None*: a disk of one speed, as it is ([`Busy`]).
//! - *Emulated*: any disk, delayed as a two-speed model says ([`Emulated`]).
//! - *Switched*: a disk as it is, whose speed a switch of [`ebb_power::disk`] changes ([`Switched`]).

mod busy;
mod emulated;
mod ended;
mod switched;

pub use busy::Busy;
pub use emulated::Emulated;
pub use ended::Ended;
pub use switched::Switched;

use ebb_mirror::{DiskOp, Energy, Found, Speed, Token};
use ebb_power::disk::About;
use ebb_types::Moment;
use std::task::{Context, Poll};

pub enum Drive {
    None(Busy),
    Emulated(Box<Emulated>),
    Switched(Box<Switched>),
}

impl Drive {
    pub fn begin(&mut self, now: Moment, token: Token, op: &DiskOp) {
        match self {
            Drive::None(busy) => busy.begin(now),
            Drive::Emulated(disk) => disk.begin(now, token, op),
            Drive::Switched(disk) => disk.busy.begin(now),
        }
    }

    /// An operation has been carried out. `None`: it ends later.
    pub fn done(&mut self, now: Moment, token: Token, found: Found) -> Option<Ended> {
        match self {
            Drive::None(busy) => Some(Ended::Op { token, found, spent: busy.end(now) }),
            Drive::Emulated(disk) => disk.done(now, token, found),
            Drive::Switched(disk) => Some(Ended::Op { token, found, spent: disk.busy.end(now) }),
        }
    }

    pub fn change(&mut self, now: Moment, to: Speed) {
        match self {
            Drive::None(_) => unreachable!("a disk of one speed is not asked to change it"),
            Drive::Emulated(disk) => disk.change(now, to),
            Drive::Switched(disk) => disk.change(to),
        }
    }

    /// When [`Drive::pop`] has something next.
    pub fn due(&self) -> Option<Moment> {
        match self {
            Drive::Emulated(disk) => disk.due(),
            Drive::None(_) | Drive::Switched(_) => None,
        }
    }

    pub fn pop(&mut self, now: Moment) -> Option<Ended> {
        match self {
            Drive::Emulated(disk) => disk.pop(now),
            Drive::None(_) | Drive::Switched(_) => None,
        }
    }

    /// A change of speed that ends when it does, not when a clock says so.
    pub fn poll_change(&mut self, context: &mut Context) -> Poll<Ended> {
        match self {
            Drive::Switched(disk) => disk.poll(context).map(|changed| Ended::Change { changed }),
            Drive::None(_) | Drive::Emulated(_) => Poll::Pending,
        }
    }

    /// Energy and times since the start, if they are modelled.
    pub fn modelled(&self, now: Moment) -> Option<Energy> {
        match self {
            Drive::Emulated(disk) => Some(disk.modelled(now)),
            Drive::None(_) | Drive::Switched(_) => None,
        }
    }

    /// What the switch knows of the disk.
    pub fn about(&self) -> Option<&About> {
        match self {
            Drive::Switched(disk) => Some(&disk.about),
            Drive::None(_) | Drive::Emulated(_) => None,
        }
    }
}
