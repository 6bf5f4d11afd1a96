//! The leader's decisions. Pure and volatile: they may be lost at any moment, and the next leader starts from the
//! state.
//!
//! Events change facts (which servers were heard, which hold leases, what they reported). Once per turn, at its
//! [`Event::Tick`], one planning step compares the facts with the [`State`] and proposes everything that follows as one
//! batch of commands, so all changes of a turn cost one round of consensus and many groups change under one command.
//! While a batch is in flight nothing new is planned: a plan always starts from a state in which the previous one has
//! taken effect.
//!
//! What the leader knows belongs to several owners, which [`leading`] lists; the invariants stand with the owner that
//! keeps them.

mod admin;
pub(crate) mod by_server;
mod census;
mod dry_run;
mod duties;
mod event;
mod failure;
mod figures;
mod force;
pub(crate) mod gears;
mod give_up;
pub(crate) mod group;
mod groups;
mod heartbeat;
pub(crate) mod hibernation;
mod latency;
pub(crate) mod leading;
pub(crate) mod liveness;
mod maintenance;
mod maps;
mod messages;
pub(crate) mod plan;
mod plan_sets;
pub(crate) mod power;
mod power_test;
pub(crate) mod racks;
mod rebuild;
mod relocation;
mod runs;
mod seats;
mod servers;
mod set;
mod set_notes;
mod sets;
mod switch;
mod term;
mod trial;
mod trust;
mod usage;
mod wake_times;
mod wants;
pub(crate) mod watch;
mod why;

use crate::controller::leading::Leading;
use crate::{Command, State, Switches, Timing};

pub use dry_run::plan_after;
pub use event::{Event, Output};

use ebb_types::{
    ClusterStatus, Depth, MetaFailure, MetaReply, Moment, Notice, ServerId, ServerMessage, StoreMark,
};
use std::collections::{BTreeMap, BTreeSet};

/// The leader's decisions; on a follower it does nothing.
pub struct Controller {
    timing: Timing,
    switches: Switches,
    /// The newest store marks from servers' heartbeats, also those received while another member led.
    marks: BTreeMap<ServerId, StoreMark>,
    leading: Option<Leading>,
}

impl Controller {
    pub fn new(timing: Timing, switches: Switches) -> Controller {
        Controller { timing, switches, marks: BTreeMap::new(), leading: None }
    }

    pub fn on(&mut self, now: Moment, event: Event, state: &State, out: &mut Vec<Output>) {
        match event {
            Event::BecameLeader { unix_millis } => {
                self.leading = Some(Leading::new(self.timing, self.switches.clone(), now, unix_millis));
            }
            Event::LostLeadership => self.leading = None,
            _ => {}
        }
        self.remember(&event, state);
        let Some(leading) = &mut self.leading else { return };
        leading.begin_turn(now, state, out);
        if state.params().is_none() {
            leading.await_cluster(now);
            if let Some(token) = event.token() {
                out.push(Output::Reply { token, reply: MetaReply::Failed(MetaFailure::NotCreated) });
            }
            return;
        }
        let behind = leading.maps.behind();
        if behind > 0 {
            if let Some(token) = event.token() {
                let why = Notice::WentBack { seen: behind, own: state.version() };
                let reply = MetaReply::Failed(MetaFailure::Refused(why.to_string()));
                out.push(Output::Reply { token, reply });
            }
            return;
        }
        leading.follow(now, state, &self.marks);
        match event {
            Event::Server(message) => leading.server_message(now, message, state, out),
            Event::Applied { own } => leading.applied(now, own, state, out),
            Event::Refused => leading.refused(now, state, out),
            Event::Switched { server, action, result } => leading.switched(now, server, action, result, out),
            Event::Admin { token, request } => leading.admin(now, token, request, state, out),
            Event::CreatePool { token, pool } => {
                out.push(Output::ProposeFor { token, command: Command::AddPool(pool) });
            }
            Event::Wake { token, set } => {
                out.push(Output::Reply { token, reply: leading.wake(now, set, state) });
            }
            Event::Tick => leading.run(now, state, out),
            Event::BecameLeader { .. } | Event::LostLeadership => {}
        }
    }

    /// Remembers what stores have made durable: this member may become leader, or become it again (R11).
    fn remember(&mut self, event: &Event, state: &State) {
        if let Event::Server(ServerMessage::Heartbeat { server, incarnation, mark, .. }) = event
            && state.server(*server).is_some_and(|e| (e.incarnation, e.store) == (*incarnation, mark.store))
        {
            self.marks.insert(*server, *mark);
        }
    }

    /// The gear that this leader asks for; `None`: this member does not lead.
    pub fn gear(&self) -> Option<u8> {
        self.leading.as_ref().map(|l| l.gears.gear())
    }

    /// The servers that it wants awake for the load, without those that help (R8, R10, R13); empty: this member does
    /// not lead.
    pub fn awake(&self) -> BTreeSet<ServerId> {
        self.leading.as_ref().map(|l| l.gears.awake().clone()).unwrap_or_default()
    }

    /// What `ebb status` shows, but for what member and driver add; `None`: this member does not lead a cluster.
    pub fn status(&self, now: Moment, state: &State) -> Option<ClusterStatus> {
        let leading = self.leading.as_ref().filter(|leading| leading.maps.behind() == 0);
        leading.filter(|_| state.params().is_some()).map(|leading| leading.status(now, state))
    }

    /// How deep a server sleeps.
    pub fn depth(&self, server: ServerId) -> Option<Depth> {
        self.leading.as_ref()?.power.switch(server)?.depth()
    }

    /// Whether a server is up although it was ordered to sleep: it refused, or the order had no effect.
    pub fn resists(&self, now: Moment, server: ServerId, state: &State) -> bool {
        self.leading.as_ref().is_some_and(|leading| leading.resists(now, server, state))
    }

    /// When [`Event::Tick`] is wanted; `None`: not before another event.
    pub fn next_wake(&self, state: &State) -> Option<Moment> {
        self.leading.as_ref().filter(|l| l.maps.behind() == 0).and_then(|l| l.next_wake(state))
    }
}
