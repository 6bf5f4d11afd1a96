//! Why the fleet wants a server awake: the rules of [`Fleet::decide`] and [`Fleet::let_go`] as answers.

use super::{Fleet, Member};
use crate::Mode;
use ebb_types::{LoadOf, Moment, Why};
use std::time::Duration;

impl Fleet {
    pub(super) fn why_wanted(&self, now: Moment, member: &Member) -> Why {
        if self.mode != Mode::Auto {
            return Why::Administrator;
        }
        if self.base(now, self.policy.g_min).contains(&member.group) {
            return Why::LowestGear;
        }
        if self.ahead.is_none() {
            return Why::NoForecast;
        }
        let wanted = self.wanted(now);
        if self.on_count() <= wanted {
            return Why::Load { servers: wanted, of: self.load_of(now, wanted) };
        }
        let millis = |time: Duration| time.as_millis() as u64;
        let woken = now.since(member.since);
        if woken < self.policy.dwell {
            return Why::Dwell { left_millis: millis(self.policy.dwell - woken) };
        }
        let affordable = self.credit(now, member) >= 1.0;
        let quiet = self.quiet(now, self.on_count());
        if !affordable && self.best_depth(quiet, true).is_some() {
            return Why::NoPowerCycle;
        }
        Why::QuietTooShort { quiet_millis: (quiet.max(0.0) * 1e3) as u64 }
    }

    /// What asks for the most.
    fn load_of(&self, now: Moment, wanted: u32) -> LoadOf {
        if wanted <= self.floor(now) {
            LoadOf::Floor
        } else if wanted <= self.prepared {
            LoadOf::ThisHour
        } else if self.asked.front().is_some_and(|(_, servers)| wanted <= *servers) {
            LoadOf::Now
        } else {
            LoadOf::NextHour
        }
    }
}
