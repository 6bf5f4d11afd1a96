//! How a server is, as its heartbeat says it: client load and latencies since the last one, what is kept here for
//! others, what is damaged.

use super::api::Facts;
use crate::common::api::ClientToken;
use ebb_types::{ClientReply, LoadCount, Moment, ServedLatencies, Vitals};
use std::collections::BTreeMap;

/// Client requests, each counted once.
#[derive(Default)]
pub(super) struct Count {
    /// When those came that wait for an answer.
    asked: BTreeMap<ClientToken, Moment>,
    /// Load that no metadata leader has confirmed yet, and the start of its period.
    load: (LoadCount, Moment),
    /// All of it since the start.
    served: LoadCount,
    /// Latencies since the last heartbeat.
    fresh: ServedLatencies,
    /// In heartbeats that no metadata leader has confirmed yet.
    told: ServedLatencies,
    /// In all heartbeats so far.
    all: ServedLatencies,
}

impl Count {
    pub fn new(now: Moment) -> Count {
        Count { load: (LoadCount::default(), now), ..Count::default() }
    }

    pub fn served(&self) -> LoadCount {
        self.served
    }

    pub fn latencies(&self) -> ServedLatencies {
        let mut total = self.all.clone();
        total += &self.fresh;
        total
    }

    pub fn asked(&mut self, token: ClientToken, now: Moment) {
        self.asked.insert(token, now);
    }

    /// Only what was done counts: an answer that sends the client elsewhere, or makes it wait, comes at once.
    pub fn answered(&mut self, token: ClientToken, reply: &ClientReply, now: Moment) {
        let Some(since) = self.asked.remove(&token) else {
            return debug_assert!(false, "a request was answered twice");
        };
        match reply {
            ClientReply::Data { .. } => self.fresh.reads.add(now.since(since)),
            ClientReply::Done { .. } => self.fresh.writes.add(now.since(since)),
            _ => {}
        }
    }

    /// A heartbeat leaves.
    pub fn tell(&mut self) {
        let fresh = std::mem::take(&mut self.fresh);
        self.told += &fresh;
        self.all += &fresh;
    }

    /// A metadata leader has received the heartbeat of `sent`, which is the last one.
    pub fn confirmed(&mut self, sent: Moment) {
        self.load = (LoadCount::default(), sent);
        self.told = ServedLatencies::default();
    }

    /// `load`: since the last call.
    pub fn vitals(
        &mut self,
        now: Moment,
        load: LoadCount,
        stats: Vitals,
        facts: &Facts,
        stalled: bool,
    ) -> Vitals {
        self.load.0 += load;
        self.served += load;
        let figures = facts.store;
        Vitals {
            load: self.load.0,
            load_millis: now.since(self.load.1).as_millis() as u32,
            latencies: self.told.clone(),
            used_bytes: figures.used.0,
            capacity_bytes: figures.capacity.0,
            own_bytes: figures.own.0,
            debt_bytes: figures.offload.0 + stats.memory_bytes,
            in_flight: stats.in_flight + facts.queued as u32,
            poisoned: stats.poisoned || figures.poisoned,
            stalled,
            ..stats
        }
    }
}
