//! Clients in a closed loop: each keeps a number of requests outstanding, and sends the next one as soon as one is
//! answered. What they reach is the cluster's rate for one kind of work. [Sierra §4.6]

use crate::engine::SECOND;
use crate::request::client::Clients;
use crate::request::feed::{Closed, Feed};
use crate::request::harness::World;
use crate::request::later::Later;
use crate::request::rebuild::rest;
use crate::request::run::CREATED;
use crate::request::setup::{Setup, SimError};
use ebb_trace::Request;
use ebb_types::ServerId;
use std::time::Duration;

/// Simulated time from the cluster's creation to the first request.
const WARM_UP: u64 = 30 * SECOND;
/// Longest time for one kind of work, and longest rest after it.
const WORK_MAX: u64 = 100 * 3600 * SECOND;
/// How often it is checked whether a kind of work is done.
const STEP: u64 = SECOND / 10;

/// One kind of work.
pub struct Work {
    /// Of each client, in order; their times mean nothing.
    pub clients: Vec<Vec<Request>>,
    /// Requests that each client keeps outstanding.
    pub outstanding: usize,
}

/// How fast it was done, by all clients and by the slowest and the fastest of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    pub requests: u64,
    pub failed: u64,
    pub bytes: u64,
    /// From the first request to the last answer.
    pub took: Duration,
    /// From the first request until everything written is in its chunk file, to a second.
    pub settled: Duration,
    pub requests_per_second: f64,
    pub bytes_per_second: f64,
    /// Requests per second of one client, until its own last answer.
    pub slowest_client: f64,
    pub fastest_client: f64,
}

/// Carries out one kind of work after another on a new cluster with every server awake; between two, the disks come to
/// rest. There is one client host per list of requests.
pub fn closed(setup: &Setup, works: &[Work]) -> Result<Vec<Pace>, SimError> {
    setup.check()?;
    let (schedule, layout) = (setup.schedule()?, setup.layout()?);
    let feed = Feed { requests: &[], next: 0, start: CREATED + WARM_UP, speed: 1.0 };
    let mut models = setup.models(&layout, feed)?;
    let hosts = works.iter().map(|work| work.clients.len()).max().unwrap_or(1);
    models.clients = Clients::new(hosts as u32);
    let mut world = World::modelled(setup.settings(&layout, schedule), models);
    world.its_at(CREATED + 5 * SECOND, Later::Gear { gear: setup.replicas });
    world.run_to(CREATED + WARM_UP)?;
    works.iter().map(|work| carry_out(&mut world, work)).collect()
}

fn carry_out<'a>(world: &mut World<'a>, work: &'a Work) -> Result<Pace, SimError> {
    let (since, clients) = (world.now, work.clients.len());
    let models = world.models();
    models.clients.answered.clear();
    models.closed = Some(Closed::new(&work.clients, since));
    for _ in 0..work.outstanding {
        (0..clients).for_each(|client| world.send_next(client));
    }
    while world.models().clients.under_way() > 0 {
        if world.now - since > WORK_MAX {
            return Err(SimError::Broken("a closed loop of requests did not end".into()));
        }
        let next = world.now + STEP;
        world.run_to(next)?;
    }
    let models = world.models();
    let Closed { ended, .. } = models.closed.take().expect("set above");
    let failed = models.clients.answered.iter().filter(|done| done.failed).count() as u64;
    let last = ended.iter().map(|(_, at)| *at).max().unwrap_or(since);
    let seconds = |until: u64| (until - since) as f64 / 1e9;
    let of_client = |(count, at): &(u64, u64)| *count as f64 / seconds(*at).max(1e-9);
    let requests: u64 = ended.iter().map(|(count, _)| count).sum();
    let bytes = work.clients.iter().flatten().map(|request| u64::from(request.len)).sum();
    let ids: Vec<ServerId> = models.machines.keys().copied().collect();
    for id in ids {
        world.models().machine(id).settle();
        world.pump_disk(id);
    }
    let limit = world.now + WORK_MAX;
    rest(world, limit)?;
    Ok(Pace {
        requests,
        failed,
        bytes,
        took: Duration::from_nanos(last - since),
        settled: Duration::from_nanos(world.now - since),
        requests_per_second: requests as f64 / seconds(last).max(1e-9),
        bytes_per_second: bytes as f64 / seconds(last).max(1e-9),
        slowest_client: ended.iter().map(of_client).fold(f64::MAX, f64::min),
        fastest_client: ended.iter().map(of_client).fold(0.0, f64::max),
    })
}
