//! What arrives from chunk servers and from their switches. Each owner is told what concerns it.

use crate::controller::event::Output;
use crate::controller::heartbeat::Beat;
use crate::controller::leading::Leading;
use crate::{State, SwitchAction};
use ebb_types::{
    Moment, Notice, ServerEntry, ServerId, ServerMessage, ServerReport, ServerState, SetId, SlotState,
};

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
        if let Some(column) = group.column() {
            return self.report_of_column(now, from, column, &report, state);
        }
        let Some(entry) = state.group(group).filter(|entry| entry.epoch == epoch) else { return };
        match report {
            ServerReport::Suspect { server, .. } => {
                if entry.primary != Some(from) || entry.members().all(|(member, _)| member != server) {
                    return;
                }
                self.liveness.suspect(now, from, server, state);
                self.dirty = true;
            }
            _ => {
                let fails = self.liveness.is_condemned(from);
                self.dirty |= self.groups.report(now, from, fails, &report, entry);
            }
        }
    }

    /// The same for a report about a column.
    fn report_of_column(
        &mut self,
        now: Moment,
        from: ServerId,
        (set, nth): (SetId, usize),
        report: &ServerReport,
        state: &State,
    ) {
        let Some(entry) = state.set(set) else { return };
        let (Some(own), Some(column)) = (entry.column_of(from), entry.columns.get(nth)) else { return };
        match *report {
            ServerReport::CaughtUp { epoch, .. } if epoch == entry.epoch && own == nth => {
                if !matches!(column.state, SlotState::CatchingUp { .. }) {
                    return;
                }
                self.sets.note_caught_up(set, epoch, nth);
            }
            ServerReport::Damaged { group, epoch } if epoch == entry.epoch => {
                self.groups.note_damage(now, group);
            }
            ServerReport::Owes { epoch, .. } if epoch == entry.epoch && entry.hibernates() => {
                self.sets.note_unsettled(set);
            }
            ServerReport::Remembers { epoch, .. } if epoch == entry.epoch => {
                self.sets.note_remembering(set, epoch);
            }
            ServerReport::Suspect { epoch, server, .. }
                if epoch == entry.epoch && entry.column_of(server).is_some() =>
            {
                self.liveness.suspect(now, from, server, state);
            }
            _ => return,
        }
        self.dirty = true;
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
