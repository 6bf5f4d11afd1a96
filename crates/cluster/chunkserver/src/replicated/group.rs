//! A server's part in one chunk group: the owners of its state, and what passes between them.
//!
//! | owner | is there | state |
//! |---|---|---|
//! | [`Member`] | always | configuration, fence, tail, records on their way to the store |
//! | [`Primary`], [`Covers`] | while this server is the primary | phase, operations, records in flight; new holders brought up to date |
//! | [`CatchUp`] | while this server's slot catches up | sources, missing blocks, fetches |
//! | [`Repairs`] | always | damaged blocks that are fetched from other copies |
//! | [`Scrub`] | while this primary compares a page | windows, copies |
//!
//! No owner knows another one's insides. An owner does what it can by itself and returns what it needs from the others;
//! the files of this folder pass that on: `activate` (a new configuration, until it serves), `operations` (client and
//! other operations of a primary), `copies` (catch-up, covers, repairs and scrubs beside them), `messages` (what
//! arrives from other servers and from the store).

mod activate;
mod copies;
mod messages;
mod operations;

use crate::common::context::{Context, Waiting};
use crate::replicated::catch_up::CatchUp;
use crate::replicated::cover::Covers;
use crate::replicated::member::Member;
use crate::replicated::primary::Primary;
use crate::replicated::repair::Repairs;
use crate::replicated::scrub::Scrub;
use crate::replicated::tail::Tail;
use ebb_types::{ClientReply, Epoch, GroupEntry, GroupId, Role, ServerId, Unready};
use std::collections::VecDeque;

#[derive(Default)]
pub(crate) struct Group {
    member: Member,
    primary: Option<Primary>,
    covers: Covers,
    catch_up: Option<CatchUp>,
    /// In this epoch.
    repairs: Repairs,
    /// In this epoch.
    scrub: Option<Scrub>,
    /// Client requests that wait until this server serves, or learns which server does.
    waiting: VecDeque<Waiting>,
}

impl Group {
    /// A group whose configuration is not known yet.
    pub fn new(id: GroupId, fence: Epoch, tail: Tail) -> Group {
        Group { member: Member::new(id, fence, tail), ..Group::default() }
    }

    pub fn entry(&self) -> &GroupEntry {
        self.member.entry()
    }

    pub fn fence(&self) -> Epoch {
        self.member.fence()
    }

    /// What is kept in this role is dropped.
    pub fn dropped(&mut self, role: Role) {
        self.member.applying.dropped(role);
    }

    /// The newest epoch that any message or record of the group had.
    pub fn newest_epoch(&self) -> Epoch {
        self.member.fence().max(self.member.tail.newest().epoch)
    }

    /// The metadata service has counted on this incarnation since this epoch.
    pub fn begin(&mut self, epoch: Epoch) {
        self.member.tail.begin(epoch);
    }

    /// True while this group needs [`Group::on_tick`].
    pub fn is_busy(&self) -> bool {
        !self.waiting.is_empty()
            || !self.member.applying.is_empty()
            || self.catch_up.is_some()
            || !self.repairs.is_empty()
            || self.scrub.is_some()
            || !self.covers.is_empty()
            || self.primary.as_ref().is_some_and(|p| p.is_busy(&self.member))
    }

    /// Blocks that a holder has for this server.
    pub fn reclaims(&self) -> u64 {
        self.catch_up.as_ref().map_or(0, CatchUp::reclaims)
    }

    /// Whether it would carry out client requests.
    pub fn is_serving(&self) -> bool {
        !self.member.is_superseded() && self.primary.as_ref().is_some_and(Primary::is_serving)
    }

    /// Whether it is primary and does not serve all blocks yet.
    pub fn is_unsettled(&self) -> bool {
        self.primary.as_ref().is_some_and(|p| !p.is_over() && (!p.is_serving() || p.ops.any_unsettled()))
    }

    pub fn is_catching_up(&self) -> bool {
        self.catch_up.is_some()
    }

    /// Whether this member is repairing blocks of its own copy.
    pub fn is_repairing(&self) -> bool {
        self.repairs.any_own()
    }

    pub fn is_scrubbing(&self) -> bool {
        self.scrub.is_some()
    }

    /// Whether targets do not know yet what is on all of them.
    pub fn owes_committed(&self) -> bool {
        let owes = |primary: &Primary| primary.owes_committed(&self.member) || primary.has_unheard();
        self.primary.as_ref().is_some_and(owes)
    }

    /// Number of client requests that wait until this server serves.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether this replica misses nothing and repairs nothing.
    fn is_complete(&self) -> bool {
        self.catch_up.is_none() && self.repairs.is_empty()
    }

    /// The connection to a server broke, or the server is not live: outstanding requests to it may never be answered.
    pub fn on_peer_lost(&mut self, cx: &mut Context, peer: ServerId) {
        if let Some(primary) = &mut self.primary {
            primary.peer_lost(cx, &self.member, peer);
        }
        self.covers.peer_lost(peer);
        self.repairs_lost(cx, peer);
        if let Some(scrub) = &mut self.scrub {
            let next = scrub.peer_lost(cx, peer);
            self.go_on_scrubbing(cx, next);
        }
        if let Some(catch_up) = &mut self.catch_up {
            catch_up.peer_lost(cx, peer);
        }
    }

    pub fn on_tick(&mut self, cx: &mut Context) {
        self.await_live_sources(cx);
        if let Some(primary) = &mut self.primary {
            primary.tick(cx, &mut self.member);
            self.advance_fetching(cx);
        }
        if self.primary.as_ref().is_some_and(|p| p.owes_committed(&self.member)) {
            self.send_committed(cx);
        }
        if !cx.has_lease() {
            for waiting in self.waiting.drain(..) {
                waiting.turn_away(cx, ClientReply::Retry { why: Unready::NoLease });
            }
        }
        self.member.forget_deletions(cx, self.is_complete());
        if let Some(catch_up) = &mut self.catch_up {
            catch_up.tick(cx, &self.member);
            self.pump_catch_up(cx);
        }
        self.tick_covers(cx);
        self.advance_scrub(cx);
    }
}
