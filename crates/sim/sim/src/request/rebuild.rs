//! The rebuild of a permanently lost server on a modelled cluster: the time until all data has all its copies again.
//!
//! The cluster is filled through its own protocol, rests until the disks have no more work, and loses a server.

use super::copies::lost_server;
use super::feed::Feed;
use super::later::Later;
use super::setup::{Setup, SimError};
use super::store::ChunkData;
use crate::engine::SECOND;
use crate::request::harness::World;
use ebb_gear::Layout;
use ebb_trace::Trace;
use ebb_trace::{Kind, Request};
use ebb_types::{GroupId, ServerId, ServerState, SlotState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Simulated time from the cluster's creation to the first write.
const WARM_UP: u64 = 30 * SECOND;
/// Longest rest after the last write, and longest rebuild.
const REST_MAX: u64 = 3600 * SECOND;
const REBUILD_MAX: u64 = 100 * 3600 * SECOND;
/// Precision of the end time.
const STEP: u64 = SECOND / 20;
/// Size of one filling write, and the number of objects written in turn.
const WRITE_BYTES: u32 = 1 << 20;
const OBJECTS: u64 = 8;
/// Share of the disks' sustained rates at which the cluster is filled.
const FILL_SHARE: f64 = 0.4;

/// The result of a rebuild.
#[derive(Clone, Debug, PartialEq)]
pub struct Rebuilt {
    /// Other servers that wrote: those that the controller chose.
    pub write_servers: usize,
    /// The lost server's data.
    pub chunks: Vec<ChunkData>,
    /// From the decision that it is lost until every chunk group had all its copies.
    pub took: Duration,
}

/// Loses one server of a cluster with about `bytes_each` of data per server, or with none. The same arguments give the
/// same result.
pub fn rebuild(setup: &Setup, bytes_each: u64) -> Result<Rebuilt, SimError> {
    let trace = filling(setup, bytes_each);
    setup.check()?;
    let (schedule, layout) = (setup.schedule()?, setup.layout()?);
    let lost = lost_server(&layout);
    let feed = Feed { requests: &trace.requests, next: 0, start: WARM_UP, speed: 1.0 };
    let models = setup.models(&layout, feed)?;
    let mut world = World::modelled(setup.settings(&layout, schedule), models);
    world.its_at(5 * SECOND, Later::Gear { gear: setup.replicas });
    world.run_to(WARM_UP)?;
    world.its_after(0, Later::Arrivals);
    let end = WARM_UP + trace.span().as_nanos() as u64 + 1;
    world.run_to(end)?;
    rest(&mut world, end + REST_MAX)?;

    let chunks = world.models().machine(lost).store.replicas().collect();
    world.crash(lost);
    world.wishes.want_lost(Some(lost));
    world.ask();
    let (write_servers, took) = until_whole(&mut world, &layout, lost)?;
    Ok(Rebuilt { write_servers, chunks, took })
}

/// Runs until every chunk group has all its copies. Returns how many servers took the lost one's place, and the time
/// since it was declared lost.
fn until_whole(world: &mut World, layout: &Layout, lost: ServerId) -> Result<(usize, Duration), SimError> {
    let held = layout.groups.iter().enumerate();
    let held: Vec<(GroupId, usize)> =
        held.filter_map(|(n, on)| Some((GroupId(n as u32), on.iter().position(|s| *s == lost)?))).collect();
    // The first server in the lost one's place: copies may move on later, to part from those in their rack.
    let mut taken: BTreeMap<GroupId, ServerId> = BTreeMap::new();
    let limit = world.now + REBUILD_MAX;
    let mut since = None;
    while world.now < limit {
        let next = world.now + STEP;
        world.run_to(next)?;
        for (group, slot) in &held {
            let entry = world.newest_state().group(*group).expect("a group of the layout");
            let server = entry.slots[*slot].server;
            if server != lost {
                taken.entry(*group).or_insert(server);
            }
        }
        if since.is_none() && is_lost(world, lost) {
            since = Some(world.now);
        }
        if let Some(since) = since.filter(|_| is_whole(world, lost)) {
            let writers: BTreeSet<ServerId> = taken.into_values().collect();
            return Ok((writers.len(), Duration::from_nanos(world.now - since)));
        }
    }
    Err(SimError::Broken(format!(
        "{lost} was not rebuilt in {} simulated hours",
        REBUILD_MAX / SECOND / 3600
    )))
}

/// Writes that fill the cluster, one after another through the objects.
fn filling(setup: &Setup, bytes_each: u64) -> Trace {
    let all = bytes_each * u64::from(setup.servers) / u64::from(setup.replicas);
    let writes = all / u64::from(WRITE_BYTES);
    let rate = setup.disk.rates().write_bytes_per_s * FILL_SHARE * f64::from(setup.servers)
        / f64::from(setup.replicas);
    let write = |n: u64| Request {
        at: Duration::from_secs_f64(n as f64 * f64::from(WRITE_BYTES) / rate),
        device: (n % OBJECTS) as u32,
        offset: n / OBJECTS * u64::from(WRITE_BYTES),
        len: WRITE_BYTES,
        kind: Kind::Write,
    };
    Trace {
        name: "filling".into(),
        requests: (0..writes).map(write).collect(),
        devices: (0..OBJECTS).map(|n| format!("object-{n}")).collect(),
        ..Trace::default()
    }
}

/// Runs until every write is answered and every disk is idle.
pub(super) fn rest(world: &mut World, limit: u64) -> Result<(), SimError> {
    while world.now < limit {
        let next = world.now + SECOND;
        world.run_to(next)?;
        let models = world.models();
        if models.clients.under_way() == 0 && models.machines.values().all(|machine| machine.is_idle()) {
            return Ok(());
        }
    }
    Err(SimError::Broken("the cluster did not come to rest after its work".into()))
}

fn is_lost(world: &World, lost: ServerId) -> bool {
    world.newest_state().server(lost).is_some_and(|entry| entry.state == ServerState::Lost)
}

fn is_whole(world: &World, lost: ServerId) -> bool {
    let mut slots = world.newest_state().groups().flat_map(|(_, entry)| entry.slots.iter());
    slots.all(|slot| slot.server != lost && slot.state == SlotState::InSync)
}
