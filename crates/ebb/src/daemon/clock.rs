//! The one clock that programs pass to decision makers. It keeps running while the machine is suspended, so a server
//! that slept through the end of its lease sees that the lease has ended.

pub use ebb_client::since_boot as now;

/// Wall clock, for displayed dates and the hour of day. Never for ordering or leases.
pub fn unix_millis() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |d| d.as_millis() as u64)
}

/// Day of the week and time of day of a Unix time, in UTC: `Sun 14:00:00`.
pub fn weekday_and_time(unix_millis: u64) -> String {
    let t = time::UtcDateTime::UNIX_EPOCH + std::time::Duration::from_millis(unix_millis);
    let (hour, minute, second) = t.as_hms();
    format!("{:.3} {hour:02}:{minute:02}:{second:02}", t.weekday().to_string())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_unix_time_reads_as_a_day_and_a_time() {
        assert_eq!(super::weekday_and_time(0), "Thu 00:00:00");
        assert_eq!(super::weekday_and_time(1_795_308_367_049), "Sun 00:46:07");
    }
}
