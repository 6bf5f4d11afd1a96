//! What replicated groups and coded sets share: events and commands, configuration, records, waiting.

pub(crate) mod api;
pub(crate) mod blocks;
pub(crate) mod budget;
pub(crate) mod config;
pub(crate) mod context;
pub(crate) mod deleted;
pub(crate) mod due;
pub(crate) mod limit;
pub(crate) mod peers;
pub(crate) mod reclaim;
pub(crate) mod run_map;
pub(crate) mod stall;
pub(crate) mod wait;
