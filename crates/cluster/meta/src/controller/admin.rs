//! Administrators' requests: figures from the state and the leader's memory, and commands that they want proposed.

use crate::controller::event::Output;
use crate::controller::force::loss;
use crate::controller::gears::{check, policy};
use crate::controller::give_up::{last_copies_on, may_be_needed};
use crate::controller::leading::Leading;
use crate::controller::set_notes::set_notes;
use crate::controller::switch::Switch;
use crate::{Command, State, Token};
use ebb_gear::check_wish;
use ebb_types::{
    AdminReply, AdminRequest, ClusterStatus, Column, GearMode, GearStatus, GroupCounts, GroupId, MetaFailure,
    MetaReply, Moment, PoolEntry, PoolId, PoolStatus, RackId, ServerEntry, ServerId, ServerState,
    ServerStatus, SetEntry, SetId, SetStatus, SlotState, StoreMark, Tenure, Vitals,
};
use std::collections::BTreeSet;

impl Leading {
    pub(crate) fn admin(
        &mut self,
        now: Moment,
        token: Token,
        request: AdminRequest,
        state: &State,
        out: &mut Vec<Output>,
    ) {
        let answer = match request {
            AdminRequest::Status => Ok(AdminReply::Status(Box::new(self.status(now, state)))),
            AdminRequest::GearPlan => self.dry_run(now, state).map(|plan| AdminReply::Plan(Box::new(plan))),
            AdminRequest::Trough => Ok(AdminReply::Trough(self.is_in_trough(now, state))),
            AdminRequest::ListHours => Ok(AdminReply::Hours(state.hours().cloned().collect())),
            AdminRequest::ListShifts => Ok(AdminReply::Shifts(state.shifts().cloned().collect())),
            AdminRequest::ListNotices { .. } => unreachable!("the member keeps them: not all are from here"),
            AdminRequest::ServerPlan(wish) => {
                self.server_plan(wish.as_ref(), state).map(|plan| AdminReply::ServerPlan(Box::new(plan)))
            }
            AdminRequest::PowerTest { server } => {
                self.begin_test(now, server, state).map(|()| AdminReply::Done)
            }
            AdminRequest::GearSet(_)
            | AdminRequest::GearAuto
            | AdminRequest::SetSchedule(_)
            | AdminRequest::CreatePool { .. }
            | AdminRequest::Force { .. }
            | AdminRequest::Maintenance { .. }
            | AdminRequest::Server(_)
            | AdminRequest::MarkLost { .. } => match self.wish(now, &request, state) {
                Ok(command) => return out.push(Output::ProposeFor { token, command }),
                Err(why) => Err(why),
            },
        };
        let reply = match answer {
            Ok(answer) => MetaReply::Admin(answer),
            Err(why) => MetaReply::Failed(MetaFailure::Refused(why)),
        };
        out.push(Output::Reply { token, reply });
    }

    /// Limits that the hardware imposes at any gear.
    pub(crate) fn hardware_notes(&self, state: &State) -> Vec<String> {
        let (racks, r) = (racks_of(state), state.params().map_or(1, |p| usize::from(p.replicas)));
        let few = (racks < r).then(|| {
            format!(
                "{racks} racks for {r} copies: copies share a rack, and die with it; {} more would part them",
                r - racks
            )
        });
        let still = (!self.power.has_switches())
            .then(|| "dry run: power.switch is \"none\", so no server is put to sleep".to_owned());
        few.into_iter().chain(empty_servers(state)).chain(still).collect()
    }

    pub(crate) fn status(&self, now: Moment, state: &State) -> ClusterStatus {
        let schedule = *state.schedule();
        let awake = state.geared().filter(|e| e.state.is_live()).count() as u32;
        let load = self.gears.load();
        let gear = GearStatus {
            mode: if state.manual_gear().is_some() { GearMode::Manual } else { GearMode::Auto },
            gear: self.gears.gear(),
            servers: self.gears.awake().len() as u32,
            steps: schedule.steps,
            shifting: self.gears.shift.is_some(),
            emergency: self.wants.emergency,
            dry_run: !self.power.has_switches(),
            short_of_room: self.wants.short_of_room,
            servers_awake: awake,
            load: load.0,
            servers_needed: policy(&schedule, state).servers_needed(load),
            forecast: self.gears.expected(now).map(|load| load.0),
        };
        let servers = self.server_statuses(now, state);
        // A sleeping server's last figure is stale: its own offload was moved before it slept.
        let replicated = servers.iter().filter(|s| s.pool == PoolId::REPLICATED);
        let debts = replicated.filter(|s| s.state.is_live()).filter_map(|s| s.vitals.as_ref());
        let outlooks = state.servers().filter_map(|e| self.outlook(now, e, state));
        let replicated = servers.iter().filter(|s| s.pool == PoolId::REPLICATED && s.state.is_live());
        let unsettled: u32 = replicated.filter_map(|s| s.vitals.as_ref()).map(|v| v.unsettled).sum();
        let groups = self.groups.census().groups;
        let groups = GroupCounts { not_served: groups.without_primary + unsettled, ..groups };
        ClusterStatus {
            params: state.params().expect("only a created cluster has a status").clone(),
            map_version: state.version(),
            gear,
            debt_bytes: debts.map(|v| v.debt_bytes).sum(),
            servers,
            pools: state.pools().map(|pool| self.pool_status(now, pool, state)).collect(),
            groups,
            schedule,
            notes: self
                .hardware_notes(state)
                .into_iter()
                .chain(set_notes(state))
                .chain(outlooks)
                .chain(self.relocation_notes(state))
                .collect(),
            // The member and its driver fill these in.
            metadata: Vec::new(),
            power: None,
            energy: None,
            rack_switches: None,
            latency: self.figures.latency(),
        }
    }

    fn pool_status(&self, now: Moment, pool: &PoolEntry, state: &State) -> PoolStatus {
        let one = |id: &SetId| {
            let (id, entry) = (*id, state.set(*id)?.clone());
            let watch = self.sets.watch(id)?;
            let data = entry.columns[..entry.shape.data()].iter();
            let live = data.filter(|c| state.server(c.server).is_some_and(|e| e.state.is_live()));
            let vitals: Vec<_> = live.filter_map(|c| self.figures.vitals(c.server)).collect();
            let servers = entry.columns.iter().filter_map(|c| state.server(c.server));
            let rest = self.sets.rests_at(id, &entry, state).filter(|_| !entry.hibernates());
            let activation = watch.fullest.and_then(|_| watch.standby.activation());
            Some(SetStatus {
                id,
                parity_debt_bytes: vitals.iter().map(|v| v.debt_bytes).sum(),
                memory_bytes: vitals.iter().map(|v| v.memory_bytes).sum(),
                stored_bytes: self.sum_of(&entry.columns, |v| v.own_bytes + v.debt_bytes),
                data_bytes: self.data_bytes(&entry),
                fullest: watch.fullest,
                threshold: watch.standby.threshold(),
                next_activation_millis: activation.map(|time| time.as_millis() as u64),
                servers_awake: servers.filter(|e| e.state.is_live()).count() as u32,
                hibernates_in_millis: rest.map(|at| at.since(now).as_millis() as u64),
                hibernated_millis: entry
                    .hibernates_since
                    .map(|at| self.term.unix_now(now).saturating_sub(at)),
                entry,
            })
        };
        let wakes_within_millis = self.sets.wake_time().as_millis() as u64;
        PoolStatus {
            pool: pool.clone(),
            wakes_within_millis,
            energy: None,
            sets: pool.sets.iter().filter_map(one).collect(),
        }
    }

    /// The sum over the columns' servers by their last heartbeats; `None` if one was never heard.
    fn sum_of(&self, columns: &[Column], figure: impl Fn(&Vitals) -> u64) -> Option<u64> {
        columns.iter().map(|column| self.figures.vitals(column.server).map(&figure)).sum()
    }

    fn data_bytes(&self, entry: &SetEntry) -> Option<u64> {
        let data = &entry.columns[..entry.shape.data()];
        let whole = data.iter().all(|column| column.state == SlotState::InSync);
        self.sum_of(data, |v| v.own_bytes).filter(|_| whole)
    }

    fn server_statuses(&self, now: Moment, state: &State) -> Vec<ServerStatus> {
        let one = |entry: &ServerEntry| {
            let switch = self.power.switch(entry.id);
            let sleeps = entry.state == ServerState::Asleep && !self.resists(now, entry.id, state);
            let heard = self.liveness.heard(entry.id);
            let left = self.liveness.granted_until(entry.id).since(now);
            ServerStatus {
                id: entry.id,
                rack: entry.rack,
                pool: entry.pool,
                gear_group: entry.gear_group,
                logger: entry.is_logger(),
                seat: state.seat(entry.id),
                copies: self.groups.census().replicas(entry.id),
                address: entry.address.clone(),
                state: entry.state,
                why: self.why(now, entry, state),
                depth: switch.and_then(Switch::depth).filter(|_| sleeps),
                incarnation: entry.incarnation,
                store: entry.store,
                vitals: self.figures.vitals(entry.id).cloned(),
                heartbeat_age_millis: heard.map(|at| now.since(at).as_millis() as u64),
                lease_left_millis: (entry.state.is_live() && !left.is_zero())
                    .then_some(left.as_millis() as u64),
                primaries: self.groups.census().primaries(entry.id),
                holder_of: self.groups.census().holders(entry.id),
                debt_since_unix_millis: self.groups.holds_since(entry.id),
                modelled_watts: None,
                transition_modelled_watts: None,
                switch_trouble: switch.and_then(|switch| switch.trouble.clone()),
                power: self.power_status(now, entry, state),
            }
        };
        state.servers().map(one).collect()
    }
}

/// Servers that no chunk group uses: clusters of an older release may have some.
fn empty_servers(state: &State) -> Option<String> {
    let used: BTreeSet<ServerId> =
        state.groups().flat_map(|(_, group)| group.slots.iter().map(|slot| slot.server)).collect();
    let empty = servers_of(state, |e| {
        e.pool == PoolId::REPLICATED
            && !e.is_logger()
            && e.state != ServerState::Lost
            && state.seat(e.id).tenure == Tenure::InUse
            && !used.contains(&e.id)
    });
    let names: Vec<String> = empty.iter().map(ServerId::to_string).collect();
    (!used.is_empty() && !names.is_empty()).then(|| {
        format!(
            "nothing is stored on {}: by racks and gear groups no chunk group can use it; a cluster that is founded \
             anew deals gear groups so that every server holds some",
            names.join(", ")
        )
    })
}

impl Leading {
    /// The command that the request asks for, or why it is refused.
    fn wish(&self, now: Moment, request: &AdminRequest, state: &State) -> Result<Command, String> {
        match request {
            AdminRequest::GearSet(wish) => {
                let schedule = state.schedule();
                check_wish(*wish, schedule.steps, &policy(schedule, state)).map_err(|e| e.to_string())?;
                Ok(Command::SetGear { manual: Some(*wish) })
            }
            AdminRequest::Maintenance { server, end } => self.maintain(now, *server, *end, state),
            AdminRequest::Force { accept_loss } => self.force(now, *accept_loss, state),
            AdminRequest::GearAuto => Ok(Command::SetGear { manual: None }),
            AdminRequest::SetSchedule(schedule) => {
                check(schedule, state, &self.term.timing.sleep)?;
                if let Some(wish) = state.manual_gear() {
                    check_wish(wish, schedule.steps, &policy(schedule, state))
                        .map_err(|e| format!("{e} (`ebb gear auto` ends what was set)"))?;
                }
                Ok(Command::SetSchedule(*schedule))
            }
            AdminRequest::MarkLost { server, accept_loss } => self.mark_lost(*server, *accept_loss, state),
            AdminRequest::Server(wish) => self.change_seat(wish, state),
            AdminRequest::Status
            | AdminRequest::GearPlan
            | AdminRequest::Trough
            | AdminRequest::ListHours
            | AdminRequest::ListShifts
            | AdminRequest::ServerPlan(_)
            | AdminRequest::ListNotices { .. } => unreachable!("questions change nothing"),
            AdminRequest::PowerTest { .. } => unreachable!("a test is in this leader's memory"),
            AdminRequest::CreatePool { .. } => {
                unreachable!("the member looks the pool up: Event::CreatePool")
            }
        }
    }

    fn mark_lost(&self, server: ServerId, accept_loss: bool, state: &State) -> Result<Command, String> {
        let entry = state.server(server).ok_or_else(|| format!("{server} is not part of the cluster"))?;
        if entry.state.is_live() {
            return Err(format!("{server} still answers: stop it first, or wait until it counts as failed"));
        }
        let peers = |e: &&ServerEntry| {
            e.gear_group == entry.gear_group && e.id != server && e.state != ServerState::Lost
        };
        let has_slots = entry.pool == PoolId::REPLICATED && !entry.is_logger();
        if has_slots && state.servers().filter(peers).count() == 0 {
            return Err(format!(
                "{server} is the last of {}: no server can take its place",
                entry.gear_group
            ));
        }
        if let Some((why, loss)) = needed(server, state).filter(|_| !accept_loss) {
            return Err(format!(
                "{server} may have the only copy of acknowledged data: {why}; start what is down and wait until nothing \
                 catches up, or accept the loss with `ebb lost {} --accept-loss`: {loss}",
                server.0
            ));
        }
        // What is lost is the store that spoke last, also if the state does not know that run yet: what it sent before
        // this verdict does not bring it back.
        let spoke = self.runs.of(server);
        let is_new = spoke.run > entry.incarnation;
        let (run, store) = if is_new { (spoke.run, spoke.store) } else { (entry.incarnation, entry.store) };
        let position = if store == entry.store { state.position(server) } else { 0 };
        Ok(Command::set_server(state, server, ServerState::Lost, run, StoreMark { store, position }))
    }
}

/// Why data may depend on what the server has, and what would be lost with it.
fn needed(server: ServerId, state: &State) -> Option<(String, String)> {
    if let Some((_, set)) = state.sets().find(|(_, set)| set.column_of(server).is_some()) {
        return Some((may_be_needed(server, set, |id| state.server(id))?, loss(set)));
    }
    let groups: Vec<GroupId> = last_copies_on(server, state).collect();
    let why = format!(
        "{} chunk groups (the first is {}) have no other complete copy",
        groups.len(),
        groups.first()?
    );
    let loss = "these groups are then served from older data, or from nothing, once `ebb force --accept-loss` says so";
    Some((why, loss.into()))
}

pub(crate) fn servers_of(state: &State, which: impl Fn(&ServerEntry) -> bool) -> BTreeSet<ServerId> {
    state.replicated().filter(|e| e.state != ServerState::Lost && which(e)).map(|e| e.id).collect()
}

/// Racks with a server of the replicated pool that is not lost.
fn racks_of(state: &State) -> usize {
    let racks = state.replicated().filter(|e| e.state != ServerState::Lost).map(|e| e.rack);
    racks.collect::<BTreeSet<RackId>>().len()
}
