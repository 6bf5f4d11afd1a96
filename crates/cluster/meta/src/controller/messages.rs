//! What arrives from chunk servers and from their switches. Each owner is told what concerns it.

use crate::controller::event::Output;
use crate::controller::heartbeat::Beat;
use crate::controller::leading::Leading;
use crate::{State, SwitchAction};
use ebb_types::{Moment, Notice, ServerEntry, ServerId, ServerMessage, ServerReport, ServerState};

impl Leading {
    pub(crate) fn server_message(
        &mut self,
        now: Moment,
        message: ServerMessage,
        state: &State,
        out: &mut Vec<Output>,
    ) {
        match message {
            ServerMessage::Heartbeat { server, incarnation, mark, sent, map_version, vitals } => {
                let vitals = *vitals;
                let beat = Beat { server, run: incarnation, mark, sent, map_version, vitals };
                self.heartbeat(now, beat, state, out);
            }
            ServerMessage::Reports { server, incarnation, reports } => {
                if state.server(server).is_some_and(|entry| entry.incarnation == incarnation) {
                    reports.into_iter().for_each(|report| self.report(now, server, report, state));
                }
            }
            ServerMessage::ReadyToSleep { server, incarnation, map_version } => {
                let draining =
                    |e: &ServerEntry| e.incarnation == incarnation && e.state == ServerState::Draining;
                let of_this_drain = map_version >= state.server_changed(server);
                if of_this_drain && state.server(server).is_some_and(draining) {
                    self.dirty |= self.power.note_ready(server);
                }
            }
            ServerMessage::Exam { server, incarnation, exam } => {
                self.exam(now, server, incarnation, &exam, state);
            }
            // For a member that was rescued ([`crate::rescue`]).
            ServerMessage::Recalls { .. } => {}
        }
    }

    /// A report counts if it refers to the present epoch and comes from the server entitled to make it.
    fn report(&mut self, now: Moment, from: ServerId, report: ServerReport, state: &State) {
        let (ServerReport::CaughtUp { group, epoch }
        | ServerReport::Covered { group, epoch, .. }
        | ServerReport::Suspect { group, epoch, .. }
        | ServerReport::Damaged { group, epoch }
        | ServerReport::Owes { group, epoch }
        | ServerReport::Remembers { group, epoch }
        | ServerReport::Serving { group, epoch }
        | ServerReport::Released { group, epoch }) = report;
        let counts = if let Some((set, nth)) = group.column() {
            let Some(entry) = state.set(set).filter(|entry| entry.epoch == epoch) else { return };
            let Some(own) = entry.column_of(from).filter(|_| nth < entry.columns.len()) else { return };
            let knows = |server: ServerId| entry.column_of(server).is_some();
            self.note_trouble(now, from, &report, knows, state)
                || self.sets.report(set, entry, own, nth, &report)
        } else {
            let Some(entry) = state.group(group).filter(|entry| entry.epoch == epoch) else { return };
            let knows = |server: ServerId| entry.members().any(|(member, _)| member == server);
            let fails = self.liveness.is_condemned(from);
            entry.primary == Some(from) && self.note_trouble(now, from, &report, knows, state)
                || self.groups.report(from, fails, &report, entry)
        };
        self.dirty |= counts;
    }

    /// A report of damage, or that the sender cannot work with a server that it `knows`. Returns whether it is one.
    fn note_trouble(
        &mut self,
        now: Moment,
        from: ServerId,
        report: &ServerReport,
        knows: impl Fn(ServerId) -> bool,
        state: &State,
    ) -> bool {
        match *report {
            ServerReport::Damaged { group, .. } => self.groups.note_damage(now, group),
            ServerReport::Suspect { server, .. } if knows(server) => {
                self.liveness.suspect(now, from, server, state);
            }
            _ => return false,
        }
        true
    }

    pub(crate) fn switched(
        &mut self,
        now: Moment,
        server: ServerId,
        action: SwitchAction,
        result: Result<(), String>,
        out: &mut Vec<Output>,
    ) {
        if let Err(why) = &result {
            let (action, why) = (action.to_string(), why.clone());
            out.push(Output::Notice(Notice::SwitchFailed { server, action, why }));
        }
        self.power.ended(now, server, action, result);
        self.dirty = true;
    }
}
