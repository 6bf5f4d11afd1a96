//! The next configuration of one set of an erasure-coded pool.
//!
//! [`next_set`] is for a set what [`super::group::next_entry`] is for a chunk group: events only change the facts, it
//! compares them with the entry and keeps no memory. It is simpler, because rows are immutable and a set has no
//! primary: a column whose server does not take part is away, one that takes part again catches up, and its server says
//! when it has everything.

use ebb_types::{Column, Epoch, PoolId, ServerEntry, ServerId, SetEntry, SlotState};

/// What a column's server can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Takes part.
    Up,
    /// Does not take part, and no server does without it yet: it has never run and has a lease's time to report, or
    /// its set hibernates.
    Expected,
    /// Draining, asleep, waking or failed, while the set does not hibernate.
    Down,
    /// Gone for good. `spare` takes its place.
    Lost { spare: Option<ServerId> },
}

/// Facts about one column, with its server as it will be once the batch is applied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnFacts {
    pub standing: Standing,
    /// It returned or restarted: what it kept in memory may be gone.
    pub restarted: bool,
    /// It runs on another store than before (R11).
    pub emptied: bool,
    /// It reported in the present epoch that it has everything.
    pub caught_up: bool,
}

/// What `entry` should become; `None`: it is right as it is. One fact per column. `remembers`: it wants another epoch,
/// to forget deletions under.
pub(crate) fn next_set(
    entry: &SetEntry,
    facts: &[ColumnFacts],
    hibernates_since: Option<u64>,
    remembers: bool,
) -> Option<SetEntry> {
    debug_assert_eq!(facts.len(), entry.columns.len(), "one fact per column");
    let epoch = entry.epoch.next();
    let next = |(column, fact): (&Column, &ColumnFacts)| next_column(*column, fact, epoch);
    let columns: Vec<Column> = entry.columns.iter().zip(facts).map(next).collect();
    // While it hibernates no server keeps or fills anything: the epoch in which it wakes is new to all.
    let again = hibernates_since.is_none() && (remembers || facts.iter().any(|fact| fact.restarted));
    let is_alone = |(n, column): (usize, &Column)| columns[..n].iter().all(|c| c.server != column.server);
    debug_assert!(columns.iter().enumerate().all(is_alone), "a server has one column of a set");
    let catches_up = |column: &Column| matches!(column.state, SlotState::CatchingUp { .. });
    debug_assert!(
        hibernates_since.is_none() || !columns.iter().any(catches_up),
        "what sleeps is filled later"
    );
    let next = SetEntry { epoch, columns, hibernates_since, ..entry.clone() };
    let same = next.columns == entry.columns && hibernates_since == entry.hibernates_since;
    (again || !same).then_some(next)
}

fn next_column(column: Column, fact: &ColumnFacts, epoch: Epoch) -> Column {
    let Column { server, state } = column;
    let nothing = Epoch(0);
    let missing = match state {
        _ if fact.emptied => Some(nothing),
        SlotState::InSync => None,
        // One that has failed since it said so is not known to have been in sync: what it lacked stays on record.
        SlotState::CatchingUp { .. } if fact.caught_up && fact.standing != Standing::Down => None,
        SlotState::CatchingUp { since } | SlotState::Away { since } => Some(since),
    };
    let (server, state) = match (fact.standing, missing) {
        (Standing::Lost { spare: Some(spare) }, _) => (spare, SlotState::CatchingUp { since: nothing }),
        (Standing::Lost { spare: None }, _) => (server, SlotState::Away { since: nothing }),
        (Standing::Up | Standing::Expected, None) => (server, SlotState::InSync),
        (Standing::Up, Some(since)) => (server, SlotState::CatchingUp { since }),
        (Standing::Down | Standing::Expected, missing) => {
            (server, SlotState::Away { since: missing.unwrap_or(epoch) })
        }
    };
    Column { server, state }
}

/// Takes a spare server of the pool, preferably of a rack that the set does not use.
pub(crate) fn take_spare(
    spares: &mut Vec<&ServerEntry>,
    pool: PoolId,
    racks: &[ebb_types::RackId],
) -> Option<ServerId> {
    let able = spares.iter().enumerate().filter(|(_, e)| e.pool == pool);
    let (nth, _) = able.min_by_key(|(_, e)| (racks.iter().filter(|rack| **rack == e.rack).count(), e.id))?;
    Some(spares.remove(nth).id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{Incarnation, ServerState, Shape};

    const NOW: Epoch = Epoch(7);

    fn entry(states: [SlotState; 3]) -> SetEntry {
        let column = |(nth, state)| Column { server: ServerId(nth as u16), state };
        let columns = states.into_iter().enumerate().map(column).collect();
        SetEntry {
            pool: PoolId(1),
            shape: Shape::new(2, 1).unwrap(),
            epoch: NOW,
            hibernates_since: None,
            columns,
        }
    }

    const UP: ColumnFacts =
        ColumnFacts { standing: Standing::Up, restarted: false, emptied: false, caught_up: false };
    const DOWN: ColumnFacts = ColumnFacts { standing: Standing::Down, ..UP };

    fn catching(since: u32) -> SlotState {
        SlotState::CatchingUp { since: Epoch(since) }
    }

    fn away(since: u32) -> SlotState {
        SlotState::Away { since: Epoch(since) }
    }

    /// What becomes of a column beside two that are in sync; `None`: the entry is right as it is.
    fn becomes(state: SlotState, fact: ColumnFacts) -> Option<(ServerId, SlotState)> {
        let next =
            next_set(&entry([SlotState::InSync, state, SlotState::InSync]), &[UP, fact, UP], None, false)?;
        assert_eq!(next.epoch, Epoch(8));
        assert!([0, 2].map(|n| next.columns[n].state) == [SlotState::InSync; 2]);
        Some((next.columns[1].server, next.columns[1].state))
    }

    #[test]
    fn a_column_whose_server_leaves_is_away_from_the_new_epoch_on() {
        let own = |state| Some((ServerId(1), state));
        assert_eq!(becomes(SlotState::InSync, DOWN), own(away(8)));
        assert_eq!(becomes(catching(3), DOWN), own(away(3)));
        assert_eq!(becomes(away(3), DOWN), None);
        let caught_up = ColumnFacts { caught_up: true, ..DOWN };
        assert_eq!(
            becomes(catching(3), caught_up),
            own(away(3)),
            "seed 30320003459: it was never in sync on record"
        );
        let expected = ColumnFacts { standing: Standing::Expected, ..UP };
        assert_eq!(becomes(SlotState::InSync, expected), None);
        assert_eq!(becomes(catching(3), expected), own(away(3)));
    }

    #[test]
    fn a_server_that_is_back_catches_up_and_is_in_sync_when_it_says_so() {
        let own = |state| Some((ServerId(1), state));
        let caught_up = ColumnFacts { caught_up: true, ..UP };
        assert_eq!(becomes(SlotState::InSync, UP), None);
        assert_eq!(becomes(away(3), UP), own(catching(3)));
        assert_eq!(becomes(catching(3), UP), None);
        assert_eq!(becomes(catching(3), caught_up), own(SlotState::InSync));
        assert_eq!(becomes(away(3), caught_up), own(catching(3)), "it must catch up first");
    }

    #[test]
    fn a_set_that_remembers_many_deletions_gets_an_epoch() {
        let own = entry([SlotState::InSync; 3]);
        assert_eq!(next_set(&own, &[UP; 3], None, false), None);
        let next = next_set(&own, &[UP; 3], None, true).expect("a new epoch");
        assert_eq!(next, SetEntry { epoch: Epoch(8), ..own });
    }

    #[test]
    fn a_restart_begins_an_epoch() {
        let restarted = ColumnFacts { restarted: true, ..UP };
        for state in [SlotState::InSync, catching(3)] {
            assert_eq!(becomes(state, restarted), Some((ServerId(1), state)));
        }
    }

    #[test]
    fn an_emptied_server_lacks_everything() {
        let emptied = ColumnFacts { restarted: true, emptied: true, caught_up: true, ..UP };
        for state in [SlotState::InSync, catching(3), away(3)] {
            assert_eq!(becomes(state, emptied), Some((ServerId(1), catching(0))));
            let down = ColumnFacts { standing: Standing::Down, ..emptied };
            assert_eq!(becomes(state, down), Some((ServerId(1), away(0))));
        }
    }

    #[test]
    fn a_lost_servers_column_moves_to_a_spare() {
        let lost = |spare| ColumnFacts { standing: Standing::Lost { spare }, ..UP };
        for state in [SlotState::InSync, catching(3), away(3)] {
            assert_eq!(becomes(state, lost(Some(ServerId(9)))), Some((ServerId(9), catching(0))));
            assert_eq!(becomes(state, lost(None)), Some((ServerId(1), away(0))));
        }
        assert_eq!(becomes(away(0), lost(None)), None);
    }

    #[test]
    fn a_spare_comes_from_another_rack_if_there_is_one() {
        let spare = |id: u16, rack: u16, pool: u8| ServerEntry {
            id: ServerId(id),
            rack: ebb_types::RackId(rack),
            pool: PoolId(pool),
            gear_group: ebb_types::NO_GEAR,
            address: String::new(),
            state: ServerState::Awake,
            incarnation: Incarnation(1),
            store: ebb_types::StoreId(1),
        };
        let racks = [1, 2, 2].map(ebb_types::RackId);
        let servers = [spare(3, 2, 1), spare(4, 3, 2), spare(5, 1, 1), spare(6, 3, 1)];
        let mut spares = servers.iter().collect();
        let mut take = || take_spare(&mut spares, PoolId(1), &racks).map(|id| id.0);
        assert_eq!([take(), take(), take(), take()], [Some(6), Some(5), Some(3), None]);
    }
}
