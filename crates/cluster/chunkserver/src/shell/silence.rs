//! Says once when no metadata leader is heard any more, and once when one is again.
//!
//! Sierra gives servers their schedule in advance [Sierra §3.4]. Here they stay as they are: only the leader says who
//! serves (R3) and throws switches, so a server that followed a plan by itself would serve nothing, and could take the
//! last awake copy to sleep.

use super::api::News;
use ebb_types::Moment;
use std::time::Duration;

/// Elections and restarts are over by then.
const LONG: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Silence {
    heard: Moment,
    said: bool,
}

impl Silence {
    pub fn new(now: Moment) -> Silence {
        Silence { heard: now, said: false }
    }

    /// The leader said something.
    pub fn heard(&mut self, now: Moment) -> Option<News> {
        let since = std::mem::replace(&mut self.heard, now);
        std::mem::take(&mut self.said).then(|| News::Heard(now.since(since)))
    }

    /// Time has passed.
    pub fn pass(&mut self, now: Moment) -> Option<News> {
        let silent = now.since(self.heard);
        let news = silent >= LONG && !self.said;
        self.said |= news;
        news.then_some(News::Silent(silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_leader_says_so_once_and_once_when_it_is_over() {
        let at = |seconds: u64| Moment(seconds * 1_000_000_000);
        let mut silence = Silence::new(at(0));
        assert_eq!((silence.pass(at(10)), silence.heard(at(20))), (None, None));
        assert_eq!(silence.pass(at(49)), None, "an election takes a while");
        assert_eq!(silence.pass(at(50)), Some(News::Silent(Duration::from_secs(30))));
        assert_eq!(silence.pass(at(90)), None, "it is said once");
        assert_eq!(silence.heard(at(100)), Some(News::Heard(Duration::from_secs(80))));
        assert_eq!(
            silence.pass(at(131)),
            Some(News::Silent(Duration::from_secs(31))),
            "and again the next time"
        );
    }
}
