//! Says once when no metadata leader is heard any more, and once when one is again.
//!
//! Sierra gives servers their schedule in advance [Sierra §3.4]. Here they stay as they are: only the leader says who
//! serves (R3) and throws switches, so a server that followed a plan by itself would serve nothing, and could take the
//! last awake copy to sleep.

use ebb_types::Moment;
use std::time::Duration;

/// Elections and restarts are over by then.
const LONG: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub struct Silence {
    heard: Moment,
    said: bool,
}

/// What to put in the log.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// How long no leader has been heard.
    Silent(Duration),
    /// A leader is heard again, after this long.
    Over(Duration),
}

impl Silence {
    pub fn new(now: Moment) -> Silence {
        Silence { heard: now, said: false }
    }

    /// The leader said something.
    pub fn heard(&mut self, now: Moment) -> Option<News> {
        let since = std::mem::replace(&mut self.heard, now);
        std::mem::take(&mut self.said).then(|| News::Over(now.since(since)))
    }

    /// Time has passed.
    pub fn pass(&mut self, now: Moment) -> Option<News> {
        let silent = now.since(self.heard);
        let news = silent >= LONG && !self.said;
        self.said |= news;
        news.then_some(News::Silent(silent))
    }
}

impl News {
    pub fn log(self) {
        match self {
            News::Silent(time) => tracing::warn!(
                "no metadata leader has been heard for {} s: this server stays as it is, serves nothing without a lease, and goes to \
                 sleep on no older order; check the metadata servers",
                time.as_secs()
            ),
            News::Over(time) => {
                tracing::info!("a metadata leader is heard again after {} s", time.as_secs());
            }
        }
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
        assert_eq!(silence.heard(at(100)), Some(News::Over(Duration::from_secs(80))));
        assert_eq!(
            silence.pass(at(131)),
            Some(News::Silent(Duration::from_secs(31))),
            "and again the next time"
        );
    }
}
