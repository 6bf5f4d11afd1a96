//! Which servers of an erasure-coded pool form its sets.
//!
//! A set has k data servers and m parity servers. A failed rack should take as few columns of a set as possible, and
//! only one parity server: then what the others keep or have suffices to read on. So a set takes its servers from as
//! many racks as there are, and its parity servers stand in different ones. Servers left over are spares: one takes the
//! place of a lost server.
//!
//! Gears do not concern these servers: they are in [`ebb_types::NO_GEAR`].

use crate::Server;
use ebb_types::{RackId, ServerId, Shape};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetsError {
    #[error("the code {shape} needs {} servers and the pool has {servers}: add {} servers, or choose a narrower code",
        shape.servers(), shape.servers() - servers)]
    TooFewServers { servers: usize, shape: Shape },
    #[error("{server} is named twice: give every server its own id")]
    DuplicateServer { server: ServerId },
}

/// As many sets as there are servers for: each its k data servers, then its m parity servers. The same arguments give
/// the same sets.
pub fn sets(servers: &[Server], shape: Shape) -> Result<Vec<Vec<ServerId>>, SetsError> {
    if servers.len() < shape.servers() {
        return Err(SetsError::TooFewServers { servers: servers.len(), shape });
    }
    let mut racks: BTreeMap<RackId, BTreeSet<ServerId>> = BTreeMap::new();
    let mut known = BTreeSet::new();
    for server in servers {
        if !known.insert(server.id) {
            return Err(SetsError::DuplicateServer { server: server.id });
        }
        racks.entry(server.rack).or_default().insert(server.id);
    }
    Ok((0..servers.len() / shape.servers()).map(|_| take_set(&mut racks, shape)).collect())
}

/// Each server from a rack that the set uses least; of these, from the one with the most servers left.
fn take_set(racks: &mut BTreeMap<RackId, BTreeSet<ServerId>>, shape: Shape) -> Vec<ServerId> {
    let mut members: BTreeMap<RackId, Vec<ServerId>> = BTreeMap::new();
    for _ in 0..shape.servers() {
        let used = |rack: &RackId| members.get(rack).map_or(0, Vec::len);
        let left = racks.iter_mut().filter(|(_, servers)| !servers.is_empty());
        let (rack, servers) = left
            .min_by_key(|(rack, servers)| (used(rack), Reverse(servers.len()), **rack))
            .expect("a set is only taken while there are servers for it");
        members.entry(*rack).or_default().extend(servers.pop_first());
    }
    let mut parity = Vec::new();
    while parity.len() < shape.parity() {
        // One from each rack, the fullest first: so the data servers, too, are in as many racks as possible.
        let mut rounds: Vec<&mut Vec<ServerId>> = members.values_mut().filter(|m| !m.is_empty()).collect();
        rounds.sort_by_key(|servers| Reverse(servers.len()));
        let missing = shape.parity() - parity.len();
        parity.extend(rounds.into_iter().take(missing).filter_map(Vec::pop));
    }
    let mut set: Vec<ServerId> = members.into_values().flatten().collect();
    set.sort();
    parity.sort();
    set.extend(parity);
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(racks: &[u16]) -> Vec<Server> {
        let server = |(id, rack): (usize, &u16)| Server { id: ServerId(id as u16), rack: RackId(*rack) };
        racks.iter().enumerate().map(server).collect()
    }

    /// Sets over `racks`, checked: each server once, and per set the numbers of racks of all and of the parity servers.
    fn laid_out(racks: &[u16], shape: &str) -> Vec<(usize, usize)> {
        let (servers, shape) = (servers(racks), shape.parse::<Shape>().unwrap());
        let sets = sets(&servers, shape).unwrap();
        assert_eq!(sets.len(), servers.len() / shape.servers());
        let used: BTreeSet<ServerId> = sets.iter().flatten().copied().collect();
        assert_eq!(used.len(), sets.len() * shape.servers(), "{sets:?}");
        let apart =
            |of: &[ServerId]| of.iter().map(|id| racks[usize::from(id.0)]).collect::<BTreeSet<u16>>().len();
        sets.iter().map(|set| (apart(set), apart(&set[shape.data()..]))).collect()
    }

    #[test]
    fn a_set_is_in_as_many_racks_as_there_are_and_its_parity_in_different_ones() {
        let nine: Vec<u16> = (0..9).collect();
        assert_eq!(laid_out(&nine, "6+3"), [(9, 3)]);
        let three: Vec<u16> = (0..18).map(|id| id % 3).collect();
        assert_eq!(laid_out(&three, "6+3"), [(3, 3), (3, 3)]);
        assert_eq!(laid_out(&[0; 9], "6+3"), [(1, 1)], "one rack is all there is");
        assert_eq!(laid_out(&[0, 0, 0, 0, 0, 0, 1, 2, 3], "6+3"), [(4, 3)]);
        assert_eq!(laid_out(&[0, 0, 0, 0, 1, 1, 2], "3+1"), [(3, 1)], "three are spares");
        assert_eq!(laid_out(&[0, 0, 1, 1, 1, 1], "2+1"), [(2, 1), (2, 1)]);
    }

    /// No rack has more servers of a set than it must.
    #[test]
    fn a_rack_takes_no_more_columns_than_it_must() {
        let racks: Vec<u16> = (0..20).map(|id| id % 4).collect();
        let shape = Shape::new(6, 3).unwrap();
        for set in sets(&servers(&racks), shape).unwrap() {
            let mut count = [0; 4];
            set.iter().for_each(|id| count[usize::from(racks[usize::from(id.0)])] += 1);
            assert!(count.iter().all(|n| (2..=3).contains(n)), "{count:?}");
        }
    }

    #[test]
    fn too_few_servers_and_doubled_ones_are_refused() {
        let shape = Shape::new(6, 3).unwrap();
        let few = sets(&servers(&[0; 8]), shape).unwrap_err();
        assert_eq!(few, SetsError::TooFewServers { servers: 8, shape });
        assert!(few.to_string().contains("add 1 servers"), "{few}");
        let mut twice = servers(&[0; 9]);
        twice[3].id = ServerId(5);
        assert_eq!(sets(&twice, shape), Err(SetsError::DuplicateServer { server: ServerId(5) }));
    }
}
