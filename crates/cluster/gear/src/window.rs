//! Times of day that do not count when a cluster is sized: of maintenance, whose work has no deadline. [Sierra §4.3]

use serde::{Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Minutes.
const HOUR: u32 = 60;
const DAY: u32 = 24 * HOUR;

/// A time of every day, from its begin up to but not including its end; over midnight if it ends before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// In minutes since midnight.
    from: u32,
    to: u32,
}

impl Window {
    /// Whether a moment, counted from a midnight, is in it.
    pub fn holds(&self, at: Duration) -> bool {
        self.since(at.as_secs() / 60) < self.length()
    }

    /// Whether a part of an hour, counted from a midnight, is in it.
    pub fn meets_hour(&self, hour: u64) -> bool {
        let since = self.since(hour * u64::from(HOUR));
        since < self.length() || DAY - since < HOUR
    }

    /// Minutes from its last begin to a minute.
    fn since(&self, minute: u64) -> u32 {
        ((minute % u64::from(DAY)) as u32 + DAY - self.from) % DAY
    }

    fn length(&self) -> u32 {
        if self.to > self.from { self.to - self.from } else { self.to + DAY - self.from }
    }
}

/// `02:30`, up to `24:00`.
fn minutes(text: &str) -> Option<u32> {
    let (hours, minutes) = text.split_once(':')?;
    let (hours, minutes): (u32, u32) = (hours.parse().ok()?, minutes.parse().ok()?);
    let is_time = hours < 24 && minutes < HOUR || (hours, minutes) == (24, 0);
    is_time.then_some(hours * HOUR + minutes)
}

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Window, String> {
        let times = text.split_once('-').and_then(|(from, to)| Some((minutes(from)?, minutes(to)?)));
        let window = times.filter(|(from, to)| *from < DAY && from != to);
        let window = window.map(|(from, to)| Window { from, to });
        window
            .ok_or_else(|| format!("{text:?} is not a time of day from one to another, such as 00:00-02:00"))
    }
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Window { from, to } = self;
        write!(f, "{:02}:{:02}-{:02}:{:02}", from / HOUR, from % HOUR, to / HOUR, to % HOUR)
    }
}

impl Serialize for Window {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_is_the_same_time_of_every_day_and_may_go_over_midnight() {
        let window = |text: &str| text.parse::<Window>().unwrap();
        let minute = |minutes: u64| Duration::from_secs(60 * minutes);
        let night = window("22:30-01:30");
        for (at, right) in [(0, true), (89, true), (90, false), (1349, false), (1350, true), (1439, true)] {
            assert_eq!(night.holds(minute(at)), right, "{at}");
            assert_eq!(night.holds(minute(3 * 1440 + at)), right, "{at}, three days later");
        }
        let hours = |window: Window| (0..48).filter(|hour| window.meets_hour(*hour)).collect::<Vec<_>>();
        assert_eq!(hours(night), [0, 1, 22, 23, 24, 25, 46, 47], "an hour of which it has a half is met");
        assert_eq!(hours(window("00:00-02:00")), [0, 1, 24, 25]);
        assert_eq!(hours(window("13:15-13:45")), [13, 37]);
        assert_eq!(hours(window("00:00-24:00")).len(), 48);
    }

    #[test]
    fn a_window_is_written_as_it_is_read_and_nothing_else_is_one() {
        for text in ["00:00-02:00", "22:30-01:30", "00:00-24:00"] {
            assert_eq!(text.parse::<Window>().unwrap().to_string(), text);
        }
        for text in ["", "02:00", "02:00-", "02:00-02:00", "24:00-01:00", "1-2", "00:60-02:00", "00:00-24:01"]
        {
            let error = text.parse::<Window>().unwrap_err();
            assert!(error.contains("such as 00:00-02:00"), "{text}: {error}");
        }
    }
}
