//! `ebb gear plan --series`: a load series as the hours that a cluster would have recorded, through the reader of `ebb
//! simulate load`.

use crate::cli::simulate::load::{Zeros, parse_provision};
use crate::error::{NodeError, io, refused};
use clap::Args;
use ebb_sim::load::{self, Fold, Given, LoadColumns, Provision, Series};
use ebb_types::{Schedule, parse_duration};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A finer series is folded to this, as in the simulator: an hour's peak is that of its minutes.
const STEP: Duration = Duration::from_secs(60);

#[derive(Args)]
pub struct SeriesArgs {
    /// Ask no cluster: plan by the configuration file alone, after this load series (as of `ebb simulate load`)
    #[arg(long, value_name = "FILE")]
    pub series: Option<PathBuf>,
    /// `peak`: the highest step needs all servers; or the load that one server sustains, in the series' unit
    #[arg(long, value_name = "peak|LOAD", default_value = "peak", value_parser = parse_provision, requires = "series")]
    provision: Provision,
    /// Time between two loads, such as 1h, 1m, 1s [default: as the series says]
    #[arg(long, value_parser = parse_duration, requires = "series")]
    interval: Option<Duration>,
    /// The columns of load and time in a table of more, by number or title, such as load=3,time=1;
    /// time=1+2: the date, and the time of day or the hour
    #[arg(long = "column", value_name = "load=COLUMN[,time=COLUMN[+COLUMN]]", requires = "series")]
    columns: Option<LoadColumns>,
    /// Whether intervals of exactly zero are gaps in the recording or real load
    #[arg(long, value_name = "gap|load", default_value = "gap", requires = "series")]
    zeros: Zeros,
}

impl SeriesArgs {
    /// The number and the peak, in servers' worth of work, of each hour of the series at `path`. Hours are counted
    /// since 1970; a series without dates begins with hour 0.
    pub fn peaks(
        &self,
        path: &Path,
        schedule: &Schedule,
        servers: u32,
    ) -> Result<Vec<(u64, f64)>, NodeError> {
        let refused = |why: String| refused(format!("{}: {why}", path.display()));
        let file = std::fs::File::open(path).map_err(io("read", path))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let hour = Duration::from_millis(schedule.hour_millis);
        let fold = Fold::AtLeast(STEP.min(hour));
        let given = Given { interval: self.interval, fold, columns: self.columns.clone() };
        let found = load::read_found(Box::new(file), &name, &given).map_err(|e| refused(e.to_string()))?;
        let mut series = found.series;
        if self.zeros == Zeros::Gap {
            series.zeros_are_gaps();
        }
        if series.interval > hour {
            return Err(refused(format!(
                "one load per {:?} says nothing of the peak of each hour of {hour:?}: use a finer series",
                series.interval
            )));
        }
        let per_server =
            self.provision.per_server(&series, servers).map_err(|error| refused(error.to_string()))?;
        let begins = found.begins.and_then(|second| u64::try_from(second).ok()).unwrap_or(0);
        let peaks = peaks(&series, Duration::from_secs(begins), hour, per_server);
        if peaks.is_empty() {
            return Err(refused(format!(
                "no hour of {hour:?} was recorded for half of it: use a longer series"
            )));
        }
        Ok(peaks)
    }
}

/// The peak of each hour of which at least half was recorded, as the metadata leader records them.
fn peaks(series: &Series, begins: Duration, hour: Duration, per_server: f64) -> Vec<(u64, f64)> {
    let (step, hour) = (series.interval.as_nanos(), hour.as_nanos().max(1));
    let mut hours: BTreeMap<u64, (f64, u128)> = BTreeMap::new();
    for (n, load) in series.values.iter().enumerate() {
        let Some(load) = load else { continue };
        let at = (begins.as_nanos() + n as u128 * step) / hour;
        let (peak, recorded) = hours.entry(at as u64).or_default();
        *peak = peak.max(load / per_server);
        *recorded += step;
    }
    let whole = hours.into_iter().filter(|(_, (_, recorded))| recorded * 2 >= hour);
    whole.map(|(at, (peak, _))| (at, peak)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn half_hours(values: &[Option<f64>]) -> Series {
        Series { interval: Duration::from_secs(1800), values: values.to_vec() }
    }

    #[test]
    fn an_hour_has_the_peak_of_its_steps_and_one_that_was_hardly_recorded_is_none() {
        let series = half_hours(&[Some(2.0), Some(6.0), None, None, None, Some(3.0), Some(1.0)]);
        assert_eq!(peaks(&series, Duration::ZERO, HOUR, 2.0), [(0, 3.0), (2, 1.5), (3, 0.5)]);
        let quarter = Series { interval: Duration::from_secs(900), ..half_hours(&[Some(1.0); 5]) };
        assert_eq!(
            peaks(&quarter, HOUR * 5, HOUR, 1.0),
            [(5, 1.0)],
            "a quarter of the next one is not enough"
        );
    }

    #[test]
    fn a_server_sustains_its_share_of_the_peak_or_what_is_given() {
        let series = half_hours(&[Some(2.0), None, Some(18.0)]);
        assert_eq!(Provision::Peak.per_server(&series, 9).ok(), Some(2.0));
        assert_eq!(Provision::PerServer(5.0).per_server(&series, 9).ok(), Some(5.0));
        assert!(Provision::Peak.per_server(&half_hours(&[Some(0.0)]), 9).is_err());
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Provision::PerServer(wrong).per_server(&series, 9).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_file_becomes_hours_since_1970_or_from_0_if_it_has_no_dates() {
        let place = tempfile::tempdir().unwrap();
        let read = |text: &str| {
            let path = place.path().join("hourly.csv");
            std::fs::write(&path, text).unwrap();
            let args = SeriesArgs {
                series: None,
                provision: Provision::Peak,
                interval: None,
                columns: None,
                zeros: Zeros::Gap,
            };
            args.peaks(&path, &Schedule::default(), 9).map_err(|error| error.to_string())
        };
        // 1 January 2024 is day 19,723.
        let dated = read("time,load\n2024-01-01 05:00,4\n2024-01-01 06:00,8\n2024-01-01 07:00,0\n");
        assert_eq!(dated.unwrap(), [(19_723 * 24 + 5, 4.5), (19_723 * 24 + 6, 9.0)]);
        assert_eq!(read("1\n2\n").unwrap(), [(0, 4.5), (1, 9.0)]);
        let long = read("time,load\n2024-01-01,4\n2024-01-02,8\n").unwrap_err();
        assert!(long.contains("use a finer series"), "{long}");
    }
}
