//! Erasure-coded pools in the configuration: `[[pool]]` sections, and the servers that name one.
//!
//! Pools are founded with the cluster, like chunk groups, or come to it later with servers of their own (`ebb pool
//! create`): ids follow the order of the sections, from 1, and sets follow from the servers and their racks. The
//! metadata service keeps what it has, so a file that says otherwise is an error ([`unchanged`]), not a wish. Only
//! `hibernate_after`, `awake_parity` and `rebuild_mib_per_second` may change.
//!
//! Sections are checked before anything is founded ([`check`]): [`found`] relies on it.

use ebb_gear::layout::Server;
use ebb_gear::{SetsError, sets};
use ebb_meta::{Bootstrap, NewServer};
use ebb_types::{
    Column, Epoch, MapDelta, NO_GEAR, ParityDebt, PoolEntry, PoolId, RackId, Rows, ServerId, SetEntry, SetId,
    Shape, SlotState, text::parse_duration,
};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// A pool's id has 8 bits, of which most are for pools and some stay free.
const POOLS_MAX: usize = 200;
const NAME_MAX: usize = 63;
/// The name of the pool of chunk groups, which has no section.
const REPLICATED: &str = "replicated";
const MIB: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSection {
    pub name: String,
    pub code: Shape,
    /// Where the strips of sleeping parity servers wait.
    #[serde(default = "segment")]
    pub parity_debt: ParityDebt,
    /// What each data server may keep for them.
    #[serde(default = "one_gib")]
    pub parity_buffer_mib: u32,
    /// Idle time after which a whole set sleeps; absent: never. Unlike the rest, it may change.
    pub hibernate_after: Option<Pause>,
    /// Parity servers of each set that stay awake. It may change.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub awake_parity: u8,
    /// What a server may fetch to fill a column that was lost; absent: as much as it can. It may change.
    pub rebuild_mib_per_second: Option<u32>,
}

/// A time as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pause(pub Duration);

impl TryFrom<String> for Pause {
    type Error = String;

    fn try_from(text: String) -> Result<Pause, String> {
        parse_duration(&text).map(Pause)
    }
}

impl From<Pause> for String {
    fn from(pause: Pause) -> String {
        format!("{}ms", pause.0.as_millis())
    }
}

impl PoolSection {
    /// With the default of every other setting.
    pub fn of_code(name: String, code: Shape) -> PoolSection {
        let (parity_debt, parity_buffer_mib) = (segment(), one_gib());
        PoolSection {
            name,
            code,
            parity_debt,
            parity_buffer_mib,
            hibernate_after: None,
            awake_parity: 0,
            rebuild_mib_per_second: None,
        }
    }
}

fn segment() -> ParityDebt {
    ParityDebt::Segment
}
fn one_gib() -> u32 {
    1024
}
/// As serde asks.
fn is_zero(count: &u8) -> bool {
    *count == 0
}

/// A chunk server as the file places it.
#[derive(Clone, Copy, Debug)]
pub struct Placed<'a> {
    pub id: ServerId,
    pub rack: RackId,
    /// Absent: the replicated pool.
    pub pool: Option<&'a str>,
    /// It holds offload of the replicated pool, and no chunks.
    pub logger: bool,
    pub address: &'a str,
}

/// Why pools cannot be used as they are configured.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    #[error("[[pool]] has the name {0:?}: give it one of 1 to {NAME_MAX} characters a-z, 0-9 and -")]
    Name(String),
    #[error(
        "[[pool]] has the name \"{REPLICATED}\", which means the servers without a pool: give it another"
    )]
    Reserved,
    #[error("[[pool]] has the name {0:?} twice: give each its own")]
    Twice(String),
    #[error("the number of [[pool]] sections is {0} and must be at most {POOLS_MAX}: merge some")]
    Many(usize),
    #[error(
        "pool {pool}: parity_buffer_mib is {found} and must be at least {least}: a data server may have to keep that much of one chunk"
    )]
    Buffer { pool: String, found: u32, least: u64 },
    #[error(
        "pool {pool}: hibernate_after is {found:?} and must be at least {} s: a shorter sleep costs its servers more energy than it saves, \
         by [power.model]",
        .least.as_secs_f64().ceil()
    )]
    Hibernate { pool: String, found: Duration, least: Duration },
    #[error(
        "pool {0}: hibernate_after is for servers that draw less asleep than idle, and by [power.model] these do not: leave it out"
    )]
    HibernateInVain(String),
    #[error("pool {pool}: awake_parity is {found} and must be at most {most}, the parity servers of a set of {code}",
        most = code.parity()
    )]
    Awake { pool: String, found: u8, code: Shape },
    #[error(
        "pool {0}: rebuild_mib_per_second is 0, so no lost column would ever be filled: leave it out for no limit"
    )]
    NoRebuild(String),
    #[error("server {server} is in pool {pool:?}, which has no [[pool]]: {known}")]
    Unknown { server: u16, pool: String, known: String },
    #[error(
        "pool {pool} has {found} servers and its code {code} needs at least {needed}: put `pool = \"{pool}\"` into more \
         [[server]] sections, or choose a narrower code",
        needed = code.servers()
    )]
    Few { pool: String, code: Shape, found: usize },
    #[error(
        "the pools leave {left} servers for the replicated pool, and {replicas} copies need at least {replicas}: add servers, or \
         take some out of a [[pool]]"
    )]
    Replicated { left: usize, replicas: u8 },
    #[error("pool {pool}: {source}")]
    Sets { pool: String, source: SetsError },
}

/// What differs from the founding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} was {was} when the cluster was founded, and is {now} in this configuration file. A pool's code and servers \
     cannot be changed while it holds data: restore the file, or add another pool after the others (`ebb pool create`) and move the data there"
)]
pub struct Changed {
    what: String,
    was: String,
    now: String,
}

/// Checks the sections against the servers. `break_even`: the shortest pause after which a server saves energy by
/// sleeping.
pub fn check(
    pools: &[PoolSection],
    servers: &[Placed],
    replicas: u8,
    chunk_bytes: u32,
    break_even: Option<Duration>,
) -> Result<(), PoolError> {
    if pools.len() > POOLS_MAX {
        return Err(PoolError::Many(pools.len()));
    }
    let mut names = BTreeSet::new();
    for pool in pools {
        check_section(pool, chunk_bytes)?;
        check_hibernation(pool, break_even)?;
        if !names.insert(pool.name.as_str()) {
            return Err(PoolError::Twice(pool.name.clone()));
        }
    }
    for server in servers {
        if let Some(pool) = server.pool.filter(|name| !names.contains(name)) {
            let known = if names.is_empty() {
                "add one, or take `pool` out".to_owned()
            } else {
                format!("name one of {}, or add one", names.iter().copied().collect::<Vec<_>>().join(", "))
            };
            return Err(PoolError::Unknown { server: server.id.0, pool: pool.to_owned(), known });
        }
    }
    for pool in pools {
        let found = of_pool(servers, Some(&pool.name)).len();
        if found < pool.code.servers() {
            return Err(PoolError::Few { pool: pool.name.clone(), code: pool.code, found });
        }
    }
    let left = of_pool(servers, None).len();
    if left < usize::from(replicas) && !pools.is_empty() {
        return Err(PoolError::Replicated { left, replicas });
    }
    Ok(())
}

fn check_section(pool: &PoolSection, chunk_bytes: u32) -> Result<(), PoolError> {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !(1..=NAME_MAX).contains(&pool.name.len()) || !pool.name.chars().all(is_plain) {
        return Err(PoolError::Name(pool.name.clone()));
    }
    if pool.name == REPLICATED {
        return Err(PoolError::Reserved);
    }
    let least = least_buffer(pool.code, chunk_bytes).div_ceil(MIB);
    if u64::from(pool.parity_buffer_mib) < least {
        return Err(PoolError::Buffer { pool: pool.name.clone(), found: pool.parity_buffer_mib, least });
    }
    if usize::from(pool.awake_parity) > pool.code.parity() {
        let (found, code) = (pool.awake_parity, pool.code);
        return Err(PoolError::Awake { pool: pool.name.clone(), found, code });
    }
    if pool.rebuild_mib_per_second == Some(0) {
        return Err(PoolError::NoRebuild(pool.name.clone()));
    }
    Ok(())
}

fn check_hibernation(pool: &PoolSection, break_even: Option<Duration>) -> Result<(), PoolError> {
    let Some(Pause(found)) = pool.hibernate_after else { return Ok(()) };
    let name = || pool.name.clone();
    let least = break_even.ok_or_else(|| PoolError::HibernateInVain(name()))?;
    if found < least {
        return Err(PoolError::Hibernate { pool: name(), found, least });
    }
    Ok(())
}

/// A holder has one strip of each row of a chunk. Formula (4) of ECS² wants more, but needs the rate of writes, which
/// no file knows; parity servers wake earlier where they come faster.
fn least_buffer(code: Shape, chunk_bytes: u32) -> u64 {
    Rows::new(code, chunk_bytes).column_bytes().into()
}

/// The servers of a pool that keep chunks; `None`: of the replicated one.
pub fn of_pool(servers: &[Placed], pool: Option<&str>) -> Vec<Server> {
    let members = servers.iter().filter(|server| server.pool == pool && !server.logger);
    members.map(|server| Server { id: server.id, rack: server.rack }).collect()
}

/// The loggers of the replicated pool.
pub fn loggers(servers: &[Placed]) -> Vec<NewServer> {
    let loggers = servers.iter().filter(|server| server.logger);
    loggers.map(|server| without_gear(server, PoolId::REPLICATED)).collect()
}

fn without_gear(server: &Placed, pool: PoolId) -> NewServer {
    let address = server.address.to_owned();
    NewServer { id: server.id, rack: server.rack, pool, gear_group: NO_GEAR, address }
}

/// Adds the pools, their sets and their servers to a new cluster.
pub fn found(pools: &[PoolSection], servers: &[Placed], into: &mut Bootstrap) -> Result<(), PoolError> {
    for (id, section) in (1..).map(PoolId).zip(pools) {
        let members = of_pool(servers, Some(&section.name));
        let of_sets = sets(&members, section.code)
            .map_err(|source| PoolError::Sets { pool: section.name.clone(), source })?;
        let first = into.sets.len() as u16;
        let entry = |columns: Vec<ServerId>| SetEntry {
            pool: id,
            shape: section.code,
            epoch: Epoch(1),
            hibernates_since: None,
            columns: columns.into_iter().map(|server| Column { server, state: SlotState::InSync }).collect(),
        };
        into.sets.extend(of_sets.into_iter().map(entry));
        into.pools.push(PoolEntry {
            id,
            name: section.name.clone(),
            shape: section.code,
            parity_debt: section.parity_debt,
            parity_buffer_bytes: u64::from(section.parity_buffer_mib) * MIB,
            hibernate_after_millis: section.hibernate_after.map(|pause| pause.0.as_millis() as u64),
            rebuild_bytes_per_second: section.rebuild_mib_per_second.map(|mib| u64::from(mib) * MIB),
            awake_parity: section.awake_parity,
            sets: (first..into.sets.len() as u16).map(SetId).collect(),
        });
        let members = servers.iter().filter(|server| server.pool == Some(&section.name));
        into.servers.extend(members.map(|server| without_gear(server, id)));
    }
    Ok(())
}

/// Compares the file's pools with the whole map; pools that the file has after those are to be created yet. Sets are
/// not compared: their columns move to other servers when one is lost.
pub fn unchanged(file: &Bootstrap, founded: &MapDelta) -> Result<(), Changed> {
    let changed = |what: String, was: String, now: String| Err(Changed { what, was, now });
    let names = |pools: &[PoolEntry]| match pools {
        [] => "empty".to_owned(),
        pools => pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", "),
    };
    let known = &file.pools[..founded.pools.len().min(file.pools.len())];
    let (was, now) = (names(&founded.pools), names(known));
    if was != now {
        return changed("the list of pools".to_owned(), was, now);
    }
    for (was, now) in founded.pools.iter().zip(&file.pools) {
        let of = |what: &str| format!("the {what} of pool {}", was.name);
        if was.shape != now.shape {
            return changed(of("code"), was.shape.to_string(), now.shape.to_string());
        }
        if was.parity_debt != now.parity_debt {
            return changed(of("parity_debt"), in_words(was.parity_debt), in_words(now.parity_debt));
        }
        if was.parity_buffer_bytes != now.parity_buffer_bytes {
            let mib = |pool: &PoolEntry| (pool.parity_buffer_bytes / MIB).to_string();
            return changed(of("parity_buffer_mib"), mib(was), mib(now));
        }
    }
    let was: BTreeMap<ServerId, PoolId> =
        founded.servers.iter().map(|server| (server.id, server.pool)).collect();
    let now: BTreeMap<ServerId, PoolId> =
        file.servers.iter().map(|server| (server.id, server.pool)).collect();
    let coded = |pool: Option<&PoolId>| pool.copied().filter(|pool| *pool != PoolId::REPLICATED);
    let is_new = |pool: PoolId| founded.pools.iter().all(|known| known.id != pool);
    let moved = |id: &&ServerId| {
        let (was_in, is_in) = (coded(was.get(id)), coded(now.get(id)));
        was_in != is_in && (was.contains_key(id) || is_in.is_some_and(|pool| !is_new(pool)))
    };
    let name = |pool: Option<PoolId>| {
        let found = pool.and_then(|id| file.pools.iter().find(|pool| pool.id == id));
        found.map_or("not an erasure-coded one".to_owned(), |pool| pool.name.clone())
    };
    match was.keys().chain(now.keys()).find(moved) {
        Some(id) => {
            let (was, now) = (name(coded(was.get(id))), name(coded(now.get(id))));
            changed(format!("the pool of server {}", id.0), was, now)
        }
        None => Ok(()),
    }
}

fn in_words(debt: ParityDebt) -> String {
    match debt {
        ParityDebt::Ram => "\"ram\"".to_owned(),
        ParityDebt::Segment => "\"segment\"".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{ClusterParams, Incarnation, Schedule, ServerEntry, ServerState, StoreId};

    const BREAK_EVEN: Option<Duration> = Some(Duration::from_secs(35));

    fn section(name: &str, code: &str) -> PoolSection {
        PoolSection::of_code(name.into(), code.parse().unwrap())
    }

    /// Servers from 1 on, in three racks: `counts` of each pool in turn, of the replicated one first.
    fn servers<'a>(counts: &[(Option<&'a str>, usize)]) -> Vec<Placed<'a>> {
        let pools = counts.iter().flat_map(|(pool, count)| std::iter::repeat_n(*pool, *count));
        let (logger, address) = (false, "here:1");
        let place = |(n, pool)| Placed { id: ServerId(n), rack: RackId(n % 3), pool, logger, address };
        (1..).zip(pools).map(place).collect()
    }

    fn founded(pools: &[PoolSection], servers: &[Placed]) -> Bootstrap {
        let params = ClusterParams {
            cluster: 1,
            instance: 0,
            chunk_bytes: 64 << 20,
            replicas: 3,
            groups: 0,
            lease_millis: 3000,
        };
        let (sets, groups) = (Vec::new(), Vec::new());
        let mut bootstrap = Bootstrap {
            params,
            servers: Vec::new(),
            groups,
            pools: Vec::new(),
            sets,
            schedule: Schedule::default(),
        };
        found(pools, servers, &mut bootstrap).unwrap();
        bootstrap
    }

    #[test]
    fn pools_and_sets_are_numbered_in_the_order_of_the_file() {
        let pools = [section("archive", "6+3"), section("cold-2", "2+1")];
        let servers = servers(&[(None, 9), (Some("archive"), 19), (Some("cold-2"), 6)]);
        check(&pools, &servers, 3, 64 << 20, BREAK_EVEN).unwrap();
        let bootstrap = founded(&pools, &servers);
        let ids = |n: usize| (bootstrap.pools[n].id, bootstrap.pools[n].sets.clone());
        assert_eq!(ids(0), (PoolId(1), vec![SetId(0), SetId(1)]));
        assert_eq!(ids(1), (PoolId(2), vec![SetId(2), SetId(3)]));
        let of_pool = |n| bootstrap.servers.iter().filter(|server| server.pool == PoolId(n)).count();
        assert_eq!([0, 1, 2].map(of_pool), [0, 19, 6], "a spare is in the pool, and in no set");
        assert!(bootstrap.servers.iter().all(|server| server.gear_group == NO_GEAR));
        let mut seen = BTreeSet::new();
        for (nth, set) in bootstrap.sets.iter().enumerate() {
            let pool = bootstrap.pools.iter().find(|pool| pool.sets.contains(&SetId(nth as u16))).unwrap();
            assert_eq!((set.pool, set.shape, set.epoch), (pool.id, pool.shape, Epoch(1)));
            assert_eq!(set.columns.len(), pool.shape.servers());
            for column in &set.columns {
                assert_eq!(column.state, SlotState::InSync);
                assert!(seen.insert(column.server), "{} is in two sets", column.server);
                let server = bootstrap.servers.iter().find(|server| server.id == column.server).unwrap();
                assert_eq!(server.pool, pool.id);
            }
        }
    }

    #[test]
    fn mistakes_are_named_with_their_remedy() {
        let archive = || section("archive", "6+3");
        let enough = servers(&[(None, 3), (Some("archive"), 9)]);
        let wrong = |pools: &[PoolSection], servers: &[Placed]| {
            check(pools, servers, 3, 64 << 20, BREAK_EVEN).unwrap_err().to_string()
        };
        assert_eq!(check(&[archive()], &enough, 3, 64 << 20, BREAK_EVEN), Ok(()));
        for name in ["", "Archive", "a_b", "a b", "ä", &"a".repeat(64)] {
            let error = wrong(&[PoolSection { name: name.into(), ..archive() }], &enough);
            assert!(error.contains(&format!("the name {name:?}: give it one of 1 to 63")), "{error}");
        }
        let cases = [
            (vec![section("replicated", "6+3")], &enough, "means the servers without a pool"),
            (vec![archive(), archive()], &enough, "\"archive\" twice"),
            (vec![PoolSection { parity_buffer_mib: 10, ..archive() }], &enough, "must be at least 11"),
            (
                vec![PoolSection { awake_parity: 4, ..archive() }],
                &enough,
                "awake_parity is 4 and must be at most 3",
            ),
            (
                vec![PoolSection { rebuild_mib_per_second: Some(0), ..archive() }],
                &enough,
                "leave it out for no limit",
            ),
            (
                vec![section("other", "6+3")],
                &enough,
                "server 4 is in pool \"archive\", which has no [[pool]]",
            ),
            (vec![section("other", "6+3")], &enough, "name one of other, or add one"),
            (vec![], &enough, "add one, or take `pool` out"),
            (vec![section("archive", "7+3")], &enough, "has 9 servers and its code 7+3 needs at least 10"),
            (vec![archive()], &servers(&[(None, 2), (Some("archive"), 9)]), "leave 2 servers"),
        ];
        for (pools, servers, expected) in cases {
            let error = wrong(&pools, servers);
            assert!(error.contains(expected), "{error:?} does not say {expected:?}");
        }
        let sleepy = |after| PoolSection { hibernate_after: Some(Pause(after)), ..archive() };
        let soon = wrong(&[sleepy(Duration::from_millis(34_500))], &enough);
        assert!(soon.contains("hibernate_after is 34.5s and must be at least 35 s"), "{soon}");
        assert_eq!(check(&[sleepy(Duration::from_secs(35))], &enough, 3, 64 << 20, BREAK_EVEN), Ok(()));
        let in_vain = check(&[sleepy(Duration::from_secs(35))], &enough, 3, 64 << 20, None);
        assert_eq!(in_vain, Err(PoolError::HibernateInVain("archive".into())));
        let many: Vec<PoolSection> = (0..201).map(|n| section(&format!("p{n}"), "2+1")).collect();
        assert!(wrong(&many, &enough).contains("is 201 and must be at most 200"));
    }

    #[test]
    fn the_least_buffer_has_room_for_a_holders_part_of_one_chunk() {
        let least = |code: &str, chunk: u32| least_buffer(code.parse().unwrap(), chunk);
        assert_eq!(least("2+1", 64 << 20), 32 << 20);
        assert_eq!(least("6+3", 64 << 20), 683 * 16 * 1024);
        let exact = PoolSection { parity_buffer_mib: 32, ..section("cold", "2+1") };
        assert_eq!(check_section(&exact, 64 << 20), Ok(()));
        let in_memory = PoolSection { parity_debt: ParityDebt::Ram, ..exact.clone() };
        assert_eq!(check_section(&in_memory, 64 << 20), Ok(()));
    }

    /// The map of a cluster that was founded with these pools.
    fn map_of(bootstrap: &Bootstrap) -> MapDelta {
        let entry = |server: &NewServer| ServerEntry {
            id: server.id,
            rack: server.rack,
            pool: server.pool,
            gear_group: server.gear_group,
            address: "moved:2".into(),
            state: ServerState::Awake,
            incarnation: Incarnation(1),
            store: StoreId(1),
        };
        MapDelta {
            servers: bootstrap.servers.iter().map(entry).collect(),
            pools: bootstrap.pools.clone(),
            ..MapDelta::default()
        }
    }

    #[test]
    fn a_file_whose_pools_changed_since_the_founding_is_refused() {
        let members = servers(&[(None, 3), (Some("archive"), 10)]);
        let map = map_of(&founded(&[section("archive", "6+3")], &members));
        let after = |pools: &[PoolSection], servers: &[Placed]| {
            unchanged(&founded(pools, servers), &map).map_err(|changed| changed.to_string())
        };
        assert_eq!(after(&[section("archive", "6+3")], &members), Ok(()));
        let mut more = members.clone();
        more.extend(
            servers(&[(Some("cold"), 3)]).into_iter().map(|s| Placed { id: ServerId(s.id.0 + 100), ..s }),
        );
        let both = [section("archive", "6+3"), section("cold", "2+1")];
        assert_eq!(after(&both, &more), Ok(()), "one that is to be created");
        let mut taken = more.clone();
        taken[3].pool = Some("cold");
        assert!(after(&both, &taken).unwrap_err().contains("the pool of server 4 was archive"));
        let reversed = [section("cold", "2+1"), section("archive", "6+3")];
        assert!(after(&reversed, &more).unwrap_err().contains("the list of pools was archive"));
        let mut fewer = members.clone();
        fewer.last_mut().unwrap().pool = None;
        let archive = || section("archive", "6+3");
        let cases = [
            (vec![section("archive", "7+3")], &members, "the code of pool archive was 6+3"),
            (vec![section("cold", "6+3")], &members, "the list of pools was archive"),
            (vec![], &members, "is empty in this configuration file"),
            (vec![PoolSection { parity_buffer_mib: 64, ..archive() }], &members, "parity_buffer_mib of pool"),
            (
                vec![PoolSection { parity_debt: ParityDebt::Ram, ..archive() }],
                &members,
                "parity_debt of pool",
            ),
            (vec![archive()], &fewer, "the pool of server 13 was archive"),
        ];
        for (pools, servers, expected) in cases {
            // A section without servers is not founded, and does not need to be.
            let mut servers = servers.clone();
            servers.extend(
                super::tests::servers(&[(Some("cold"), 9)])
                    .into_iter()
                    .map(|server| Placed { id: ServerId(server.id.0 + 100), ..server }),
            );
            let error = after(&pools, &servers).unwrap_err();
            assert!(error.contains(expected), "{error:?} does not say {expected:?}");
            assert!(error.contains("cannot be changed while it holds data"), "{error}");
        }
    }
}
