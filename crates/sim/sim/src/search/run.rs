//! One seed from start to verdict.

use crate::engine::SECOND;
use crate::search::beyond::beyond;
use crate::search::brief::brief_history;
use crate::search::client::{CELLS_PER_BLOCK, FRONT, shared_chunk};
use crate::search::coder::{CODERS, Coder};
use crate::search::endure::endure;
use crate::search::harness::{Event, World};
use crate::search::history::{Action, Outcome};
use crate::search::invariants::replicas_shared;
use crate::search::linear::{Verdict, check};
use crate::search::scenario::{Plan, Scenario};
use crate::world::Configure;
use crate::world::brief::brief_entry;
use ebb_meta::State;
use ebb_testing::search::{Case, Faults, Subject, Tally, Transcript, Violation};
use ebb_types::{
    Column, GroupEntry, GroupId, PoolId, Random, Role, ServerEntry, ServerId, ServerState, SetEntry, Slot,
    SlotState, Tenure, group_of, mix,
};
use std::collections::BTreeSet;
use std::fmt::Write as _;

/// Longest time, after everything is repaired, until every operation has ended and all replicas are identical.
const REST: u64 = 90 * SECOND;
/// Longest time of a full scrub, even of thousands of blocks that are listed one by one.
const PASS: u64 = 10 * REST;
/// Longest time, after all servers but perhaps one are repaired, until surviving data is served.
const SURVIVAL: u64 = 60 * SECOND;
/// Operations of each client of the erasure-coded pool per round.
const CODED_OPS: u32 = 40;
/// How often replicas may move while the cluster comes to be quiet.
const MOVES: u32 = 30;

/// A run in figures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub events: u64,
    pub ops: usize,
    pub acknowledged: usize,
    pub given_up: usize,
    /// Digest of all events.
    pub digest: u64,
    /// Chunks whose history was too complex for a verdict.
    pub undecided: usize,
    pub epochs: u32,
    /// Number of occurrences: faults, and the cluster's reactions to them.
    pub tally: Tally,
}

/// A cluster under the faults of a seed.
pub struct Cluster<'a> {
    world: World<'a>,
    /// Rounds that have ended.
    rounds: u32,
}

/// Builds clusters whose protocol cores are configured so.
pub fn cluster<'a>(configure: &'a Configure) -> impl Fn(&Case, usize) -> Cluster<'a> + Copy {
    move |case: &Case, lines: usize| Cluster::new(case, configure, lines)
}

impl<'a> Cluster<'a> {
    fn new(case: &Case, configure: &'a Configure, lines: usize) -> Cluster<'a> {
        let Scenario { settings, plan } = Scenario::draw(case.seed);
        let (rounds, clients, ops) =
            (case.size(0, plan.rounds), case.size(1, plan.clients), case.size(2, plan.ops));
        let plan = Plan { rounds, clients, ops, ..plan };
        let mut world = World::new(Scenario { settings, plan }, configure, lines);
        world.harness.mishaps.faults = Faults::of(case);
        Cluster { world, rounds: 0 }
    }
}

impl Subject for Cluster<'_> {
    const ONE_SEED: &'static str = "-p ebb-sim --test all sweep::one_seed";
    type Summary = Summary;

    /// A round of faults, followed by rest and a comparison.
    fn step(&mut self) -> Result<bool, Violation> {
        let (world, round) = (&mut self.world, self.rounds);
        storm(world);
        survive(world, round);
        endure(world, round);
        rest(world, round);
        if let Some(violation) = world.violation.take() {
            return Err(violation);
        }
        self.rounds += 1;
        Ok(self.rounds < self.world.harness.plan.rounds)
    }

    fn check(&mut self) -> Result<Summary, Violation> {
        judge(&self.world)?;
        beyond(&mut self.world);
        match self.world.violation.take() {
            Some(violation) => Err(violation),
            None => Ok(summary(&self.world)),
        }
    }

    fn describe(&self) -> String {
        let settings = Scenario::draw(self.world.settings.seed).settings;
        let params = settings.params();
        let racks: BTreeSet<_> = settings.bootstrap.servers.iter().map(|s| s.rack).collect();
        let Plan { rounds, clients, ops, .. } = self.world.harness.plan;
        format!(
            "{} servers in {} racks, {} copies, {} groups, {} metadata members, lease {} ms; {clients} clients, {ops} \
             operations a round, {rounds} rounds",
            settings.bootstrap.servers.len(),
            racks.len(),
            params.replicas,
            params.groups,
            settings.members,
            params.lease_millis
        )
    }

    fn sizes(&self) -> Vec<u32> {
        let Plan { rounds, clients, ops, .. } = self.world.harness.plan;
        vec![rounds, clients, ops]
    }

    fn faults(&self) -> u64 {
        self.world.harness.mishaps.faults.drawn()
    }

    fn transcript(&self) -> &Transcript {
        &self.world.transcript
    }
}

/// Everything is repaired, except perhaps one server, and the cluster runs in some gear: surviving data must be served,
/// with its copies in different racks.
fn survive(world: &mut World, round: u32) {
    if world.violation.is_some() {
        return;
    }
    let mut random = Random::new(mix(world.settings.seed ^ mix(u64::from(round) ^ 0x90e6)));
    if random.chance(200) && !world.needs_memory() {
        world.cut_power();
        world.run_until(world.now + random.below(8) * SECOND, |_| false);
    }
    let missing = stays_away(world, round);
    world.heal_all_but(missing);
    world.count(if missing.is_some() { "rest without a server" } else { "rest in some gear" });
    world.ask_gear(random.between(1, world.settings.params().replicas.into()) as u8);
    let end = world.now + SURVIVAL;
    world.run_until(end, |world| suffering(world).is_none());
    if let (None, Some(what)) = (&world.violation, suffering(world)) {
        return world.fail("liveness", format!("{} s without a fault, {what}", SURVIVAL / SECOND));
    }
    world.r13_racks_apart();
}

/// The server that crashes and is not repaired. What it keeps in memory for others goes with it: none may, while a disk
/// that is lost can only be computed from that (seed 30263021443).
fn stays_away(world: &World, round: u32) -> Option<ServerId> {
    let mut random = Random::new(mix(world.settings.seed ^ mix(u64::from(round) ^ 0x5a7e)));
    let servers: Vec<ServerId> = world.servers.values().filter(|s| !s.lost).map(|s| s.id).collect();
    let enough = servers.len() > usize::from(world.settings.params().replicas);
    let spare = world.harness.lost.is_none() && enough && !world.needs_memory();
    random.pick(&servers).copied().filter(|_| spare && random.chance(400))
}

/// A remaining problem of the survivors: a group that could be served is not, or a copy could be in a better place.
fn suffering(world: &World) -> Option<String> {
    let state = world.newest_state();
    if let Some(what) = world.forsaken() {
        return Some(what);
    }
    let moving = |s: ServerState| matches!(s, ServerState::Draining | ServerState::Waking);
    // If servers rotate every few seconds, one is always in transition.
    let rotates = world.settings.bootstrap.schedule.rotate_days > 0;
    let there = |s: &ServerEntry| !world.servers[&s.id].missing;
    let hangs = |s: &&ServerEntry| moving(s.state) && there(s) && !rotates && !may_be_needed(world, state, s);
    if let Some(server) = state.servers().find(hangs) {
        return Some(format!("{} is {}", server.id, format!("{:?}", server.state).to_lowercase()));
    }
    world.wishes.gear().map(|_| "the administrator waits".to_owned()).or_else(|| world.racks_shared())
}

/// Whether it drains for as long as another server is missing: a group that lacks that one's complete copy may need
/// what this one holds, or keeps for a server that was lost (seeds 34000033483, 34000052390).
fn may_be_needed(world: &World, state: &State, server: &ServerEntry) -> bool {
    let keeps = |group: GroupId| {
        let roles = world.servers[&server.id].store.roles();
        roles.into_iter().any(|(of, role)| of == group && matches!(role, Role::Offload { .. }))
    };
    let may_need = |(group, entry): (GroupId, &GroupEntry)| {
        !entry.is_complete()
            && entry.slots.iter().any(|slot| world.servers[&slot.server].missing)
            && (entry.members().any(|(member, _)| member == server.id) || keeps(group))
    };
    server.state == ServerState::Draining && state.groups().any(may_need)
}

/// Clients work while things go wrong.
fn storm(world: &mut World) {
    world.stormy = true;
    if let Some(gear) = world.harness.plan.begin_in {
        world.ask_gear(gear);
    }
    world.net.model = world.settings.net;
    let each = world.harness.plan.ops / world.harness.plan.clients / world.harness.plan.rounds;
    for client in 0..world.harness.plan.clients {
        world.employ(client, each.max(1));
    }
    for coder in CODERS..CODERS + world.harness.plan.coders {
        world.employ_coder(coder, CODED_OPS);
    }
    if world.harness.plan.pulse.is_some() {
        world.let_load_choose();
    }
    let gap = world.harness.plan.fault_gap;
    world.its_after(gap, Event::Fault);
    let end = world.now + world.harness.plan.round;
    world.run_until(end, |_| false);
}

/// Everything is repaired; then every operation must end, every replica catch up, and all be identical.
fn rest(world: &mut World, round: u32) {
    if world.violation.is_some() {
        return;
    }
    world.heal_everything();
    let all = Action::Read { first: 0, cells: (world.settings.chunk_blocks() * CELLS_PER_BLOCK).min(64) };
    let shared = (0..world.harness.plan.chunks).map(shared_chunk);
    let reads: Vec<_> =
        shared.chain(world.harness.plan.has_front.then_some(FRONT)).map(|chunk| (chunk, all)).collect();
    if !comes_to_rest(world) {
        return;
    }
    world.r4_replicas_are_equal();
    world.r4_columns_are_right();
    if !comes_to_be_quiet(world) {
        return;
    }
    world.r19_deletions_are_forgotten();
    world.r19_roles_are_needed();
    world.r19_records_are_settled(round);
    scrub(world);
    for client in 0..world.harness.plan.clients.min(2) {
        world.client(client).to_do = reads.clone();
        world.employ(client, 0);
    }
    for coder in CODERS..CODERS + world.harness.plan.coders {
        world.coder(coder).read_all();
        world.employ_coder(coder, 0);
    }
    comes_to_rest(world);
}

/// Waits until no node has anything left to do but what never ends.
fn comes_to_rest(world: &mut World) -> bool {
    let rests =
        |world: &mut World| world.run_until(world.now + REST, |world| trouble(world, false).is_none());
    rests(world) || accepts_loss(world) && rests(world) || !unrest(world)
}

/// A column waits for what only a server that is gone for good can say: whether it has a strip of a write that failed
/// (seed 39000036699). So the administrator accepts the loss, as the refusal to declare that server lost advises. All
/// that was acknowledged is read afterwards.
fn accepts_loss(world: &mut World) -> bool {
    let lost = world.wishes.lost();
    let is_of_set = |id| world.newest_state().sets().any(|(_, set)| set.column_of(id).is_some());
    let accepts = world.violation.is_none() && lost.is_some_and(is_of_set);
    if accepts {
        world.count("loss of what a coded write left accepted");
        world.wishes.accept_loss(true);
        world.run_until(world.now + REST, |world| world.wishes.lost().is_none());
        world.wishes.accept_loss(false);
    }
    accepts
}

/// At rest nothing happens for a second: what was said last of commits has arrived, and no replica has moved since.
fn comes_to_be_quiet(world: &mut World) -> bool {
    for _ in 0..MOVES {
        let version = world.newest_state().version();
        world.run_until(world.now + SECOND, |_| false);
        if world.newest_state().version() == version {
            return true;
        }
        if !comes_to_rest(world) {
            return false;
        }
    }
    world.fail("liveness", format!("{MOVES} times replicas moved although all was at rest"));
    false
}

/// Whether anything is in progress that should have ended by now.
fn unrest(world: &mut World) -> bool {
    let what = trouble(world, true);
    if let Some(what) = &what {
        world.fail("liveness", format!("{} s after all faults ended, {what}", REST / SECOND));
    }
    what.is_some()
}

/// Every replica is found sound in a pass that starts now: all rot was repaired, although it was never read.
pub(crate) fn scrub(world: &mut World) {
    if world.settings.scrub_period.is_zero() || !world.harness.invariants.ruined.is_empty() {
        return;
    }
    // The first pass may have started before the last fault.
    for _ in 0..2 {
        let (since, end) = (world.unix_seconds() + 1, world.now + PASS);
        if !world.run_until(end, |world| unscrubbed(world, since).is_none())
            && let Some(what) = unscrubbed(world, since)
        {
            return world.fail("liveness", format!("{} s after all faults ended, {what}", PASS / SECOND));
        }
    }
    world.count("every replica scrubbed");
    world.r9_all_is_sound();
}

/// Every replica of a group, and every column that can be scrubbed, with its server: it is in sync, and parity only
/// while all data is.
pub(crate) fn copies(world: &World) -> impl Iterator<Item = (GroupId, ServerId)> {
    let state = world.newest_state();
    let replicas = state.groups().flat_map(|(id, e)| e.slots.iter().map(move |s| (id, s.server)));
    let awake = state.sets().filter(|(_, entry)| !entry.hibernates());
    let columns = awake.flat_map(|(id, entry)| {
        let in_sync = |column: &Column| column.state == SlotState::InSync;
        let data = entry.shape.data();
        let whole = entry.columns[..data].iter().all(in_sync);
        let may = move |(nth, column): &(usize, &Column)| in_sync(column) && (*nth < data || whole);
        let of = move |(nth, column): (usize, &Column)| (GroupId::of_column(id, nth), column.server);
        entry.columns.iter().enumerate().filter(may).map(of)
    });
    replicas.chain(columns)
}

/// A replica or a column that was not found sound since then.
fn unscrubbed(world: &World, since: u64) -> Option<String> {
    copies(world).find_map(|(group, server)| {
        let mut marks = world.servers[&server].replica().scrubs();
        let scrubbed = marks.any(|mark| mark.group == group && mark.sound_at >= since);
        (!scrubbed).then(|| format!("{server} has not found its replica of {group} right"))
    })
}

/// What is still in progress. `ends`: leaves out what never ends, because it waits for what no server has.
fn trouble(world: &World, ends: bool) -> Option<String> {
    if let Some(client) = world.harness.clients.iter().find(|c| !c.is_done()) {
        let op = client.under_way().map_or("nothing yet".into(), |op| format!("op {op}"));
        return Some(format!("client-{} waits for {op}", client.id));
    }
    let works = |coder: &Coder| !coder.is_done() && !coder.stores().is_some_and(|set| world.is_exposed(set));
    if let Some(nth) = world.harness.coders.iter().position(works) {
        return Some(format!("coder-{} is at work", CODERS + nth as u32));
    }
    if let Some((id, _)) = world.members.iter().find(|(_, m)| m.broken) {
        return Some(format!("member-{id} does not vote"));
    }
    // What it said last there is lost, and it says it again when it notices (seed 33300043500).
    if let Some((id, to)) = world.half_open().find(|(id, _)| world.servers[id].runs()) {
        return Some(format!("{id} does not know that its connection to {to} broke"));
    }
    let state = world.newest_state();
    for server in state.servers().filter(|s| s.state != ServerState::Lost && takes_part(s.id, state)) {
        if server.state != ServerState::Awake || !world.servers[&server.id].runs() {
            let state = format!("{:?}", server.state).to_lowercase();
            let stands = if world.servers[&server.id].runs() { "runs" } else { "does not run" };
            return Some(format!("{} {stands}, and the map says {state}", server.id));
        }
    }
    let unfinished = |(group, entry): &(GroupId, &GroupEntry)| {
        !(entry.is_in_sync() || ends && is_held_up(world, *group, entry)) || entry.primary.is_none()
    };
    if let Some((group, entry)) = state.groups().find(unfinished) {
        return Some(format!("{group} is not in sync, {}", brief_entry(entry)));
    }
    if let Some(what) = unsettled_roster(state) {
        return Some(what);
    }
    let lost = |server| state.server(server).is_none_or(|s| s.state == ServerState::Lost);
    let incomplete =
        |entry: &SetEntry| entry.columns.iter().any(|c| c.state != SlotState::InSync && !lost(c.server));
    if let Some((set, entry)) = state.sets().find(|(_, entry)| incomplete(entry)) {
        return Some(format!("{set} is not in sync: {entry:?}"));
    }
    // Without a spare server, others keep the strips of a lost one.
    let stands_in = state.sets().any(|(_, entry)| entry.columns.iter().any(|c| lost(c.server)));
    for server in world.servers.values().filter(|s| s.up && takes_part(s.id, state)) {
        // Another store is waiting for its predecessor's lease to end.
        let on_record = state.server(server.id).map(|entry| (entry.incarnation, entry.store));
        if on_record != Some((server.incarnation, server.store.mark().store)) {
            return Some(format!("the metadata service does not know what {} runs on", server.id));
        }
        if server.replica().map().version != state.version() {
            return Some(format!("{} has an old map", server.id));
        }
        let is_ruined = !world.harness.invariants.ruined.is_empty();
        let rests = server.is_idle() || is_ruined && server.repairs_at_most();
        if !rests {
            let stats = server.replica().stats();
            let (flight, behind) = (stats.in_flight, stats.catching_up);
            return Some(format!("{}: {flight} requests in flight, {behind} replicas catch up", server.id));
        }
        let coded = state.server(server.id).is_some_and(|s| s.pool != PoolId::REPLICATED);
        let debt = server.store.offload_bytes() + server.replica().stats().memory_bytes;
        let holds = ends && state.groups().any(|(group, entry)| is_held_up(world, group, entry));
        if debt > 0 && !(coded && stands_in) && !holds {
            return Some(format!("{} still has a debt of {debt} bytes", server.id));
        }
    }
    if let Some(what) = replicas_shared(state) {
        return Some(what);
    }
    world.wishes.is_waiting().then(|| "the administrator waits".into())
}

/// Gears do not concern what is drained, and what has left: it may sleep.
fn takes_part(server: ServerId, state: &State) -> bool {
    state.server(server).is_some() && state.seat(server).tenure != Tenure::Drained
}

/// A server that has not its share yet.
fn unsettled_roster(state: &State) -> Option<String> {
    let arrangement = state.rearrangement();
    if let Some(m) = arrangement.moves.first() {
        return Some(format!(
            "{} copies are still to move, one from {} to {}",
            arrangement.moves.len(),
            m.from,
            m.to
        ));
    }
    let joins = |s: &&ServerEntry| state.seat(s.id).tenure == Tenure::Joining;
    if let Some(server) = state.servers().find(joins) {
        return Some(format!("{} still joins, though nothing is left to move", server.id));
    }
    None
}

/// Whether replicas stay catching up, and their holders keep what they stand in for, because no server has some of what
/// they lack.
fn is_held_up(world: &World, group: GroupId, entry: &GroupEntry) -> bool {
    let groups = world.settings.params().groups;
    let settled = |slot: &Slot| matches!(slot.state, SlotState::InSync | SlotState::CatchingUp { .. });
    !entry.is_in_sync()
        && entry.slots.iter().all(settled)
        && world.harness.invariants.ruined.iter().any(|chunk| group_of(*chunk, groups) == group)
}

/// Whether each chunk's operations have an order that explains all answers.
fn judge(world: &World) -> Result<(), Violation> {
    for (chunk, ops) in world.harness.history.by_chunk() {
        if let Verdict::Broken { after, stuck } = check(&ops) {
            let mut what = format!("{chunk}: no order explains what was seen; {after} operations in, one of");
            for (n, op) in ops.iter().filter(|(n, _)| stuck.contains(n)) {
                write!(what, "\n    op {n} {}", brief_history(op, *n as u64 + 1))
                    .expect("a string takes everything");
            }
            return Err(Violation { rule: "linearizability", what });
        }
    }
    Ok(())
}

fn summary(world: &World) -> Summary {
    let ops = &world.harness.history.ops;
    let chunks = world.harness.history.by_chunk();
    let groups = world.newest_state().groups();
    let moved = Some(world.primaries_moved()).filter(|times| *times > 0);
    let mut tally = world.tally();
    tally.extend(moved.map(|times| ("primary moved", times)));
    Summary {
        events: world.events(),
        ops: ops.len(),
        acknowledged: ops.iter().filter(|op| op.outcome == Outcome::Done).count(),
        given_up: ops.iter().filter(|op| op.outcome == Outcome::Unknown).count(),
        digest: world.digest(),
        undecided: chunks.values().filter(|ops| check(ops) == Verdict::Unknown).count(),
        epochs: groups.map(|(_, e)| e.epoch.0).sum(),
        tally,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::search::stories::{self, ask, begin, entry, secondary, write};
    use crate::world::Core;
    use ebb_chunkserver::PlantedBug;
    use ebb_testing::search::{run, shrink, with_transcript};
    use ebb_types::ParityDebt;

    #[test]
    fn a_cluster_at_rest_has_no_trouble_and_any_other_has() {
        let mut world = stories::cluster();
        assert_eq!(trouble(&world, false), None);
        begin(&mut world, write(0, 1));
        assert!(trouble(&world, false).is_some_and(|t| t.starts_with("client-0 waits")));
        let mut world = stories::cluster();
        let id = secondary(&world);
        world.crash(id);
        assert!(trouble(&world, false).is_some_and(|t| t.starts_with(&id.to_string())));
        rest(&mut world, 0);
        assert!(world.violation.is_none() && trouble(&world, false).is_none(), "it is started again");
    }

    #[test]
    fn a_cluster_that_never_comes_to_rest_is_seen() {
        let mut world = stories::cluster();
        assert!(!unrest(&mut world) && world.violation.is_none());
        begin(&mut world, write(0, 1));
        assert!(unrest(&mut world));
        assert_eq!(world.violation.map(|v| v.rule), Some("liveness"));
    }

    #[test]
    fn no_server_stays_away_while_a_lost_disk_is_computed_from_memory() {
        let in_memory =
            |s: &Scenario| s.settings.bootstrap.pools.iter().any(|p| p.parity_debt == ParityDebt::Ram);
        let scenario = (1..).map(Scenario::draw).find(in_memory).expect("some seeds have such a pool");
        let mut world = World::new(scenario, &|_| {}, 0);
        world.run_until(10 * SECOND, |_| false);
        let rounds = |world: &World| (0..100).filter_map(|round| stays_away(world, round)).count();
        assert!(rounds(&world) > 0);
        let (_, entry) = world.newest_state().sets().next().expect("the pool has a set");
        let id = entry.columns[0].server;
        let known = world.newest_state().server(id).map(|entry| entry.store);
        world.server(id).forgot = known;
        assert_eq!(rounds(&world), 0, "{id} has another disk, and the metadata service does not know yet");
    }

    #[test]
    fn slow_disks_make_no_server_suspect() {
        let mut world = stories::cluster();
        let epoch = entry(&world).epoch;
        // More than a second per write, and no other request to answer meanwhile.
        world.servers.values_mut().for_each(|server| server.slowness = 60);
        for first in 0..8 {
            ask(&mut world, write(first, 1));
        }
        assert!(world.violation.is_none());
        assert_eq!((world.tally().get("suspicion"), entry(&world).epoch), (None, epoch));
    }

    #[test]
    fn a_failing_seed_becomes_a_small_case_that_breaks_the_same_rule() {
        let plant = |core: Core| {
            if let Core::Server(config) = core {
                config.planted = Some(PlantedBug::DropEarly);
            }
        };
        let (seed, failure) = (1..=100)
            .find_map(|seed| run(seed, cluster(&plant)).err().map(|failure| (seed, failure)))
            .expect("the defect is found");
        let all = with_transcript(&Case::whole(seed), usize::MAX, cluster(&plant)).0;
        let whole = cluster(&plant)(&Case::whole(seed), 0).sizes();
        let shrunk = shrink(seed, cluster(&plant)).expect("the seed fails");
        assert_eq!(shrunk.violation.rule, failure.violation.rule);
        let sizes = &shrunk.case.sizes;
        assert!(sizes[0] <= whole[0] && sizes[1] < whole[1] && sizes[2] < whole[2], "{}", shrunk.about);
        assert!(
            shrunk.faults.1 < shrunk.faults.0 && shrunk.lines.len() < all.len() / 2,
            "{:?}",
            shrunk.faults
        );
        // Played again it is the same, to the last line; and without the defect it breaks no rule.
        let again = with_transcript(&shrunk.case, usize::MAX, cluster(&plant)).0;
        assert_eq!(again, shrunk.lines);
        assert!(with_transcript(&shrunk.case, 0, cluster(&|_| {})).1.is_ok());
        // It states what was done, by which node and when, and ends with the violation.
        let says = |words: &str| shrunk.lines.iter().any(|line| line.contains(words));
        assert!(says("op 0 begins: chunk-") && says(" writes as replica of group-"), "{:#?}", shrunk.lines);
        assert!(says(" keep as offload for server-") && says(" forgets what it kept of group-"));
        let last = shrunk.lines.last().expect("there are lines");
        assert!(
            last.contains("VIOLATION of R6") && last.trim_start().starts_with(|c: char| c.is_ascii_digit())
        );
        let raw = ["Slot {", "PeerMessage", "ServerId(", "Epoch("];
        let mut told = shrunk.lines.iter();
        assert!(!told.any(|line| raw.iter().any(|word| line.contains(word))), "no line is written in code");
    }
}
