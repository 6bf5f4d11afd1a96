//! What the administrator wants of the metadata service, until that says that it is done.

use ebb_gear::Mode;
use ebb_types::{AdminRequest, ServerId};

#[derive(Default)]
pub struct Wishes {
    gear: Option<Mode>,
    /// It is to be declared lost.
    lost: Option<ServerId>,
    /// Groups without a complete copy are to be served from what is left.
    force: bool,
    /// The administrator gives up what only lost servers have.
    accepts_loss: bool,
}

impl Wishes {
    pub fn gear(&self) -> Option<Mode> {
        self.gear
    }

    pub fn want_gear(&mut self, mode: Mode) {
        self.gear = Some(mode);
    }

    pub fn lost(&self) -> Option<ServerId> {
        self.lost
    }

    pub fn want_lost(&mut self, server: Option<ServerId>) {
        self.lost = server;
    }

    pub fn want_force(&mut self, force: bool) {
        self.force = force;
    }

    pub fn accepts_loss(&self) -> bool {
        self.accepts_loss
    }

    pub fn accept_loss(&mut self, accepts: bool) {
        self.accepts_loss = accepts;
    }

    /// Whether a gear or a loss is not confirmed yet.
    pub fn is_waiting(&self) -> bool {
        self.gear.is_some() || self.lost.is_some()
    }

    /// What to ask for now. `maintained`: a server in maintenance, which ends when nothing else is wanted; `stormy`:
    /// that can wait.
    pub fn request(&self, maintained: Option<ServerId>, stormy: bool) -> Option<AdminRequest> {
        match (self.gear, self.lost, maintained) {
            (Some(Mode::Manual(wish)), ..) => Some(AdminRequest::GearSet(wish)),
            (Some(Mode::Auto), ..) => Some(AdminRequest::GearAuto),
            (None, Some(server), _) => {
                Some(AdminRequest::MarkLost { server, accept_loss: self.accepts_loss })
            }
            (None, None, _) if self.force => Some(AdminRequest::Force { accept_loss: true }),
            (None, None, Some(server)) if !stormy => Some(AdminRequest::Maintenance { server, end: true }),
            (None, None, _) => None,
        }
    }

    /// What was asked for is done.
    pub fn done(&mut self) {
        if self.gear.take().is_none() && self.lost.take().is_none() {
            self.force = false;
        }
    }

    /// It was refused. Returns whether it was a gear, which is not asked for again.
    pub fn refused(&mut self) -> bool {
        self.gear.take().is_some()
    }
}
