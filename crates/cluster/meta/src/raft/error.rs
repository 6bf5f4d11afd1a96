//! Why the Raft log cannot continue, and what to do about it.

use crate::MemberId;
use crate::namespace::table::TableError;
use std::io;

#[derive(Debug, thiserror::Error)]
pub enum RaftError {
    #[error("the metadata log cannot be written or read: {0}; stop this member and check its disk")]
    Io(#[from] io::Error),
    #[error("{what} is not a metadata log of this release: it starts with {found:02x?}")]
    Format { what: &'static str, found: Vec<u8> },
    #[error(
        "there is no metadata log; if its disk is not mounted, mount it; if this cluster is new, start one metadata server \
         with --create; if it is not, start this one with --join"
    )]
    Missing,
    #[error("there is a metadata log already; start without --create or --join")]
    Exists,
    #[error("another process uses the metadata directory; stop it first")]
    InUse,
    #[error(
        "the metadata log is damaged at byte {at}, in what was acknowledged; if other metadata servers run, move this \
         directory away and start with --join; if not, keep it, and put back a copy that lacks nothing"
    )]
    Damaged { at: usize },
    #[error(
        "the metadata log has a gap before entry {index}; do as with a damaged one: with others running, move this directory \
         away and start with --join"
    )]
    Gap { index: u64 },
    #[error(
        "this member forgot what it acknowledged: its log is an older copy; move the directory away and start with --join"
    )]
    Older,
    #[error(
        "this member is of generation {own} of the metadata, and the cluster was rescued since: it is of generation {present}. Nothing \
         that only this member has counts any more: move its directory away and start with --join"
    )]
    Replaced { own: u32, present: u32 },
    #[error(
        "this member never heard from the cluster that it joined, so there is nothing in its log: rescue another one, or put back \
         the directory of one that voted"
    )]
    NeverJoined,
    #[error("the directory belongs to metadata server {found}, not {expected}: name another directory")]
    OtherMember { found: MemberId, expected: MemberId },
    #[error("metadata server {member} votes and is not in the configuration file: put it back")]
    MemberMissing { member: MemberId },
    #[error("the metadata log holds a state that cannot be decoded: {0}; run the release that wrote it")]
    Decode(#[from] postcard::Error),
    #[error("the metadata log holds members that cannot be decoded: {0}; run the release that wrote it")]
    DecodeMembers(#[from] protobuf::ProtobufError),
    #[error("the Raft library refused: {0}")]
    Library(#[from] raft::Error),
}

impl From<TableError> for RaftError {
    fn from(error: TableError) -> RaftError {
        match error {
            TableError::Damaged { at } => RaftError::Damaged { at: at as usize },
            TableError::Io(error) => RaftError::Io(io::Error::new(error.kind(), error)),
        }
    }
}
