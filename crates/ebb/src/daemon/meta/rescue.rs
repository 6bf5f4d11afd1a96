//! `ebb meta --rescue`: the last resort when the majority of the metadata servers is lost for good.

use crate::cluster::config::{Config, MetaSection};
use crate::daemon::clock;
use crate::error::{NodeError, refused};
use ebb_client::Secret;
use ebb_client::transport::{Identity, connect};
use ebb_meta::{DiskLog, LogEnd, log_end, raft};
use std::time::Duration;

/// A metadata server that has not answered within this time does not run.
const ANSWER: Duration = Duration::from_secs(5);

/// Makes this metadata server the only one of a new generation, or says what that would cost.
pub async fn rescue(
    config: &Config,
    section: &MetaSection,
    (secret, own): (&Secret, Identity),
    accept_loss: bool,
) -> Result<(), NodeError> {
    let data = config.path(&section.data);
    let in_place = |source| NodeError::Metadata { data: data.clone(), source };
    let end = DiskLog::open(&data).and_then(log_end).map_err(in_place)?;
    if end.is_alone() && !accept_loss {
        let why =
            "this metadata server needs no other one: there is nothing to rescue; start it without --rescue";
        return Err(refused(why));
    }
    if end.is_alone() {
        tracing::info!("this metadata server is the only member of generation {} already", end.generation);
        return Ok(());
    }
    for other in config.meta.iter().filter(|other| other.id != section.id) {
        if let Ok(Ok(_)) = tokio::time::timeout(ANSWER, connect(&other.address, secret, own)).await {
            return Err(refused(answers(other, section.id, &end)));
        }
    }
    if !accept_loss {
        return Err(refused(format!("{}: {}", data.display(), facts(section.id, &end))));
    }
    drop(DiskLog::open(&data).and_then(raft::rescue).map_err(in_place)?);
    tracing::warn!(
        "this metadata server is the only member of generation {} from now on; it serves once the chunk servers have said what they know",
        end.generation + 1
    );
    Ok(())
}

fn answers(other: &MetaSection, id: u64, end: &LogEnd) -> String {
    format!(
        "metadata server {} answers at {}, so --rescue does not apply: {} of {} are enough to continue without any loss. Start this one \
         without --rescue. If that one is new and waits to join, stop it, start this one with `--id {id} --rescue`, then that one with --join",
        other.id,
        other.address,
        end.voters.len() / 2 + 1,
        end.voters.len(),
    )
}

/// What is known, what may be lost, and what to do.
fn facts(id: u64, end: &LogEnd) -> String {
    let LogEnd { generation, term, index, voters, votes, unix_millis } = end;
    let others: Vec<String> = voters.iter().filter(|v| **v != id).map(u64::to_string).collect();
    let when = match unix_millis {
        0 => String::new(),
        at => format!(", {} ago by this machine's clock", age(clock::unix_millis().saturating_sub(*at))),
    };
    let standing =
        if *votes { "" } else { " It never had caught up with the others, so it lacks more than they did." };
    format!(
        "nothing was changed. This log ends with entry {index} of term {term}{when}; it knows of these other members that vote: {}.{standing} \
         What was acknowledged after that entry may be lost: objects, buckets and volumes that were created, changed or deleted, and \
         administrators' orders. First try to start the others with their directories: {} of {} members are enough, and nothing is lost. \
         If several are left, rescue the one whose log ends last. If the others are lost for good, `ebb meta --id {id} --rescue \
         --accept-loss` makes this one the only member of generation {}; new ones then join it with --join and empty directories",
        others.join(", "),
        voters.len() / 2 + 1,
        voters.len(),
        generation + 1,
    )
}

fn age(millis: u64) -> String {
    match millis / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_facts_say_where_the_log_ends_who_else_votes_and_what_to_do() {
        let end = LogEnd {
            generation: 1,
            term: 7,
            index: 4711,
            voters: vec![1, 2, 3],
            votes: true,
            unix_millis: clock::unix_millis() - 600_000,
        };
        let said = facts(2, &end);
        let words = ["entry 4711 of term 7, 10 min ago", "vote: 1, 3.", "2 of 3 members", "generation 2"];
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
        assert!(said.contains("`ebb meta --id 2 --rescue --accept-loss`"), "{said}");
        let learner = facts(2, &LogEnd { votes: false, unix_millis: 0, ..end });
        assert!(learner.contains("never had caught up") && !learner.contains("ago"), "{learner}");
    }

    #[test]
    fn ages_have_a_unit_that_one_reads_at_once() {
        assert_eq!(
            [900, 119_000, 120_000, 7_199_000, 7_200_000].map(age),
            ["0 s", "119 s", "2 min", "119 min", "2 h"]
        );
    }
}
