//! Replicated chunk groups: order, replicate, offload, reclaim, hand over, fence, rebuild, scrub.

pub(crate) mod applying;
pub(crate) mod catch_up;
pub(crate) mod cover;
pub(crate) mod group;
pub(crate) mod member;
pub(crate) mod primary;
pub(crate) mod repair;
pub(crate) mod scrub;
pub(crate) mod settlement;
pub(crate) mod tail;
