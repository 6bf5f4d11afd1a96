//! The last resort when the majority of the members is lost for good: one that is left becomes the only member of a new
//! generation.
//!
//! Everything in its log counts as committed: what it lacks is gone, and what it has may have been acknowledged.
//! Changes of the membership in it no longer count. One append makes all of this durable, so a crash leaves the log as
//! it was or rescued. The term is above every one that the others can have reached: an election raises it by one.

use super::log::{Content, Log, LogFile, Piece};
use super::{Kept, RaftError, encode, read, seat};
use crate::{Command, MemberId, State};
use raft::Storage;
use raft::eraftpb::ConfState;

/// By how much a rescue raises the term.
pub(super) const TERM_JUMP: u64 = 1 << 20;

/// Where a log ends, and what it knows of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEnd {
    pub generation: u32,
    /// Of its last entry.
    pub term: u64,
    pub index: u64,
    /// Seats of the members that vote, as far as it knows.
    pub voters: Vec<MemberId>,
    /// Whether this member votes.
    pub votes: bool,
    /// The cluster's time by its last entry that tells it, since 1970; zero: none does.
    pub unix_millis: u64,
}

impl LogEnd {
    /// Whether it can elect itself: there is nothing to rescue.
    pub fn is_alone(&self) -> bool {
        self.votes && self.voters.len() == 1
    }
}

/// Where the log ends. Its content is not changed.
pub fn log_end(log: impl LogFile) -> Result<LogEnd, RaftError> {
    let (_, Content { pieces, state, .. }) = Log::open(log)?;
    let (kept, birth, lineage) = read(pieces)?;
    lineage.instance.ok_or(RaftError::NeverJoined)?;
    let (index, term) = last(&kept)?;
    let voters = &kept.members.voters;
    Ok(LogEnd {
        generation: lineage.generation,
        term,
        index,
        voters: voters.iter().copied().map(seat).collect(),
        votes: voters.contains(&birth.id),
        unix_millis: time_at_end(&kept, &state),
    })
}

/// Makes the member the only one of a new generation. Repeated, it changes nothing.
pub fn rescue<L: LogFile>(log: L) -> Result<L, RaftError> {
    let (mut log, Content { pieces, .. }) = Log::open(log)?;
    let (kept, birth, lineage) = read(pieces)?;
    lineage.instance.ok_or(RaftError::NeverJoined)?;
    if kept.members.voters == [birth.id] {
        return Ok(log.file);
    }
    let (index, term) = last(&kept)?;
    let alone = ConfState { voters: vec![birth.id], ..ConfState::default() };
    let rescued = Piece::Rescued {
        generation: lineage.generation + 1,
        index,
        term: kept.hard.term.max(term) + TERM_JUMP,
        members: encode(&alone),
    };
    log.append(&[rescued])?;
    Ok(log.file)
}

fn last(kept: &Kept) -> Result<(u64, u64), RaftError> {
    Ok((kept.last(), kept.term(kept.last())?))
}

fn time_at_end(kept: &Kept, state: &State) -> u64 {
    let commands = |data: &[u8]| postcard::from_bytes::<Vec<Command>>(data).unwrap_or_default();
    let told = kept.entries.iter().rev().flat_map(|entry| commands(&entry.data)).find_map(|c| match c {
        Command::Elapsed { unix_millis, .. } => Some(unix_millis),
        _ => None,
    });
    told.unwrap_or(state.namespace().unix_millis())
}
