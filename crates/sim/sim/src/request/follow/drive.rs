//! What is followed and sampled in the world.

use super::{Sampled, Span, view};
use crate::request::harness::World;
use crate::request::measure::Sample;
use crate::request::network::Traffic;
use crate::world::net::Node;
use ebb_types::{Joules, Moment, ServerId};
use std::collections::BTreeMap;
use std::time::Duration;

impl World<'_> {
    /// Called after every input of a metadata member: the map may have changed.
    pub fn follow_gears(&mut self) {
        let now = self.now;
        let models = &mut self.harness;
        let state = self.members.values().next().expect("there is a member").member.state();
        if state.version() == models.watch.map_version {
            return;
        }
        models.watch.map_version = state.version();
        let view = view(state);
        let (debt, fetched) = (models.debt_bytes(), models.fabric.bytes[Traffic::CatchUp as usize]);
        let start = models.feed.start;
        models.watch.follow_states(Duration::from_nanos(now.saturating_sub(start)), state);
        models.watch.follow_primaries(now, start, &view, state);
        models.watch.follow_offload(now, start, &view, debt, fetched);
        if (view.gear, view.phase) != (models.watch.gear, models.watch.phase) {
            self.end_span();
        }
        let watch = &mut self.models().watch;
        (watch.gear, watch.phase, watch.holders) = (view.gear, view.phase, view.holders);
    }

    /// Records the period that ends now.
    pub fn end_span(&mut self) {
        let now = self.now;
        let models = self.models();
        let areas: BTreeMap<ServerId, (u128, u128)> = models
            .machines
            .iter()
            .map(|(id, m)| (*id, (m.queue.area_at(now), m.offload_queue.area_at(now))))
            .collect();
        let watch = &mut models.watch;
        let time = (now - watch.since) as f64;
        let mean = |which: fn(&(u128, u128)) -> u128| {
            let before = |id: &ServerId| watch.areas.get(id).map_or(0, which);
            let area: u128 = watch.holders.iter().map(|id| which(&areas[id]) - before(id)).sum();
            area as f64 / time.max(1.0) / watch.holders.len().max(1) as f64
        };
        let (queue, offload_queue) = (mean(|a| a.0), mean(|a| a.1));
        let longest = models.machines.iter_mut().map(|(id, m)| (id, m.queue.take_most()));
        let longest = longest.filter(|(id, _)| watch.holders.contains(id)).map(|(_, most)| most).max();
        let longest_queue = longest.unwrap_or(0);
        let (phase, gear, holders) = (watch.phase, watch.gear, watch.holders.len());
        let (from, to) = (watch.since, now);
        watch.spans.push(Span { phase, gear, from, to, holders, queue, offload_queue, longest_queue });
        watch.areas = areas;
        watch.since = now;
    }

    /// Takes a sample of the cluster, and adds up the energy since the last one. Work is spread evenly over the servers
    /// that are on, here and in the cluster that never sleeps: over the same time and by the same law, so that only
    /// sleep makes a difference.
    pub fn take_sample(&mut self) {
        let now = self.now;
        let models = &mut self.harness;
        let watch = &mut models.watch;
        let nanos = now - watch.sampled.at;
        if nanos == 0 {
            return;
        }
        let mut busy_seconds = 0.0;
        for (&id, machine) in &models.machines {
            let busy = machine.disk.busy(now);
            let before = watch.sampled.busy.insert(id, busy).unwrap_or(0);
            busy_seconds += (busy - before) as f64 / 1e9 / machine.disk.channels() as f64;
        }
        let seconds = nanos as f64 / 1e9;
        let (model, energy) = (models.energy.clock.model(), models.energy.clock.energy(Moment(now)));
        let own_on_seconds = models.energy.own.energy(Moment(now)).on_seconds;
        let on_seconds = energy.on_seconds - watch.sampled.energy.on_seconds;
        let utilisation = if on_seconds > 0.0 { busy_seconds / on_seconds } else { 0.0 };
        let adds = (model.on(utilisation) - model.idle).0;
        let work = adds * on_seconds;
        let all_seconds = models.machines.len() as f64 * seconds;
        watch.work += Joules(work);
        watch.own_work += Joules(adds * (own_on_seconds - watch.sampled.own_on_seconds));
        watch.always_on += Joules(model.on(busy_seconds / all_seconds).0 * all_seconds)
            + model.rack_switch * Duration::from_nanos(nanos) * models.fabric.racks() as f64;
        let pairs = watch.pairs.sample(&models.machines, now);
        // The power model's watts contain disks of one speed.
        let slower = pairs.map_or(0.0, |pairs| (pairs.one_speed - pairs.taken).0);
        let joules = (energy.total() - watch.sampled.energy.total()).0 + work - slower;
        let arrived = models.clients.arrived - watch.sampled.arrived;
        let mut awake_by_rack = vec![0; models.fabric.racks()];
        models.on.iter().for_each(|id| awake_by_rack[models.fabric.rack(Node::Server(*id))] += 1);
        let sample = Sample {
            at_seconds: now.saturating_sub(models.feed.start) as f64 / 1e9,
            requests_per_second: arrived as f64 / seconds,
            gear: watch.gear,
            servers_awake: models.on.len() as u32,
            awake_by_rack,
            watts: joules / seconds,
            debt_bytes: models.machines.values().map(|m| m.store.offload_bytes()).sum(),
            disk_busy: utilisation,
            disks_low: pairs.and_then(|pairs| pairs.low_share()),
            phase: watch.phase,
        };
        // The run may end just after a sample: no rate can be computed over so short a time.
        if nanos >= models.sample_every / 2 {
            watch.samples.push(sample);
        }
        (watch.sampled.at, watch.sampled.arrived) = (now, models.clients.arrived);
        (watch.sampled.energy, watch.sampled.own_on_seconds) = (energy, own_on_seconds);
    }

    /// Measuring starts: everything before does not count. `hour`: nanoseconds of an hour of the trace.
    pub fn begin_measuring(&mut self, hour: u64) {
        self.end_span();
        let now = self.now;
        let models = self.models();
        models.watch.spans.clear();
        models.watch.migrations.clear();
        models.watch.reclaims.clear();
        let first = models.watch.known.iter().map(|(server, state)| (Duration::ZERO, *server, *state));
        models.watch.states = first.collect();
        let busy = models.machines.iter().map(|(id, m)| (*id, m.disk.busy(now))).collect();
        models.watch.sampled =
            Sampled { at: now, arrived: models.clients.arrived, busy, ..Sampled::default() };
        models.watch.pairs.begin(&models.machines, now, hour);
        models.fabric.forget_bytes();
    }
}
