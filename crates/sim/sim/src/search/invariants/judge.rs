//! Which check runs after which event, and what several of them ask.

use super::{BEYOND_LOSS, values_of};
use crate::search::coder::CODED_OP;
use crate::search::harness::{Search, World};
use crate::world::Judge;
use crate::world::store::Kept;
use ebb_chunkserver::StoreCommand;
use ebb_meta::SwitchAction;
use ebb_types::{
    ChunkId, ClientReply, GroupId, MetaPush, PeerMessage, Role, ServerId, ServerReport, Version,
};

impl<'a> Judge for Search<'a> {
    const EVENTS_MAX: u64 = 1_000_000;

    fn excuses(&self, rule: &str) -> bool {
        self.invariants.beyond && !BEYOND_LOSS.contains(&rule)
    }

    fn check_peers(world: &mut World<'a>) {
        world.r8_peers_are_woken();
    }

    fn check_server(world: &mut World<'a>, server: ServerId) {
        world.r1_fences(server);
        world.r2_one_serves(server);
        world.r4_scrubs_find_nothing(server);
    }

    fn check_pushed(world: &mut World<'a>, server: ServerId) {
        world.server_begins_to_remember(server);
    }

    fn check_map(world: &mut World<'a>, member: u64) {
        world.r3_configurations(member);
        world.r3_sets(member);
        world.nothing_is_given_up_with_a_server(member);
        world.dwell_of_gears(member);
        world.dwell_of_servers();
    }

    /// The gear's dwell time begins when it was chosen, and not when the log has it (seed 99 with `LostRowLacks`).
    fn check_gear(world: &mut World<'a>, member: u64) {
        world.dwell_of_gears(member);
    }

    fn check_push(world: &mut World<'a>, member: u64, push: &MetaPush) {
        world.r3_pushed_map(member, push);
    }

    fn check_order(world: &mut World<'a>, member: u64, server: ServerId, action: SwitchAction) {
        if !action.is_wake() {
            world.r8_it_can_be_woken(member, server);
        }
    }

    fn check_send(world: &mut World<'a>, from: ServerId, message: &PeerMessage) {
        world.r1_only_the_primary_orders(from, message);
    }

    fn check_reply(world: &mut World<'a>, from: ServerId, op: usize, reply: &ClientReply) {
        if op != CODED_OP {
            world.r5_every_copy_is_durable(from, op, reply);
        }
        world.r9_poisoned_is_silent(from, reply);
    }

    fn check_report(world: &mut World<'a>, from: ServerId, report: &ServerReport) {
        world.r12_unread_is_not_silent(from, report);
    }

    fn check_submit(world: &mut World<'a>, command: &StoreCommand) {
        world.r1_one_content_per_version(command);
    }

    fn check_drop(world: &mut World<'a>, server: ServerId, group: GroupId, role: Role) {
        world.r6_nothing_is_lost_with_it(server, group, role);
        world.r6_column_has_it(server, group, role);
    }

    fn check_sleep(world: &mut World<'a>, server: ServerId) {
        world.r7_no_server_needs_it(server);
    }
}

impl World<'_> {
    /// How often a group's primary changed.
    pub fn primaries_moved(&self) -> u64 {
        let known: Vec<_> =
            self.harness.invariants.entries.iter().filter_map(|((g, _), e)| Some((*g, e.primary?))).collect();
        known.windows(2).filter(|w| w[0].0 == w[1].0 && w[0].1 != w[1].1).count() as u64
    }

    /// Whether the server durably has this block in `version` or newer, in that role.
    pub(super) fn has(
        &self,
        server: ServerId,
        group: GroupId,
        role: Role,
        chunk: ChunkId,
        block: u32,
        version: Version,
    ) -> bool {
        let server = self.servers.get(&server);
        server.is_some_and(|s| s.store.has(group, role, chunk, block, version))
    }

    /// The acknowledged client values in `kept`: chunk, block, value, and the version by which it must be present.
    /// Chunks that may be deleted are left out: a server without them may have forgotten why.
    pub(super) fn acknowledged_in(&self, kept: &Kept) -> Vec<(ChunkId, u32, u64, Version)> {
        let history = &self.harness.history;
        let mut found = Vec::new();
        for (&chunk, blocks) in kept.iter().filter(|(chunk, _)| !history.was_to_be_deleted(**chunk)) {
            for (&n, block) in blocks {
                for value in values_of(block) {
                    if history.is_acknowledged(value)
                        && let Some(version) = self.harness.invariants.first_version.get(&value)
                    {
                        found.push((chunk, n, value, *version));
                    }
                }
            }
        }
        found
    }
}
