//! The administrator: asks the metadata service for something, until it is done.

use crate::engine::SECOND;
use crate::world::happening::{Happening, Message};
use crate::world::net::{ADMIN, Node};
use crate::world::{Delays, Disturb, Judge, World};
use ebb_gear::Mode;
use ebb_types::{AdminReply, GearWish, MetaFailure, MetaReply, MetaRequest};

impl<H: Disturb + Judge + Delays> World<H> {
    pub fn ask_gear(&mut self, gear: u8) {
        self.ask_for(GearWish::Gear(gear));
    }

    pub fn ask_for(&mut self, wish: GearWish) {
        self.note(|| format!("administrator: {wish}"));
        self.wishes.want_gear(Mode::Manual(wish));
        self.ask();
    }

    /// From now on load and forecast determine the gear.
    pub fn let_load_choose(&mut self) {
        self.note(|| "administrator: the gear follows the load".into());
        self.wishes.want_gear(Mode::Auto);
        self.ask();
    }

    /// Starts a new administrator request; the old one may still be in flight.
    pub fn ask(&mut self) {
        self.question += 1;
        self.after(0, Happening::Admin { question: self.question });
    }

    /// Retries the administrator's request until it is done.
    pub fn administer(&mut self, number: u64) {
        if number != self.question {
            return;
        }
        let state = self.newest_state();
        let maintained = state.servers().map(|e| e.id).find(|id| state.in_maintenance(*id));
        let Some(request) = self.wishes.request(maintained, self.stormy) else { return };
        for member in 1..=self.settings.members {
            let request = MetaRequest::Admin(request.clone());
            self.send(Node::Client(ADMIN), Node::Member(member), Message::AskMeta { number, request });
        }
        self.after(SECOND, Happening::Admin { question: number });
    }

    pub fn admin_receives(&mut self, message: Message) {
        let Message::MetaReply { number, reply } = message else { return };
        if number != self.question {
            return;
        }
        match reply {
            MetaReply::Admin(AdminReply::Done) => {
                self.note(|| "administrator: done".into());
                self.wishes.done();
                self.ask();
            }
            // A gear that this cluster does not have; or a loss that is not noticed yet, and is reported again.
            MetaReply::Failed(MetaFailure::Refused(_)) if self.wishes.refused() => self.ask(),
            _ => {}
        }
    }
}
