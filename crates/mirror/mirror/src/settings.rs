//! Thresholds and times of the policies, with the paper's defaults [LogStore §4.1].

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Utilisations, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Thresholds {
    /// Predicted sum of both disks at low speed (0 to 2) from which on reads are concentrated on one.
    pub balance: f64,
    pub go_up: f64,
    pub go_down: f64,
    pub max_regular: f64,
    pub min_regular: f64,
    pub max_replay: f64,
    pub min_log: f64,
    /// Of the disk that reads are concentrated on: from here on the other one takes reads, too.
    pub saturated: f64,
}

impl Default for Thresholds {
    fn default() -> Thresholds {
        Thresholds {
            balance: 0.6,
            go_up: 0.5,
            go_down: 0.3,
            max_regular: 0.5,
            min_regular: 0.3,
            max_replay: 0.5,
            min_log: 0.3,
            saturated: 0.9,
        }
    }
}

/// LogStore and the systems that the paper compares it with [LogStore §4.1].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicyKind {
    #[default]
    #[serde(rename = "logstore")]
    LogStore,
    /// Two speeds, no log.
    TwoSpeed,
    /// Diverted accesses: two speeds, no log, and reads always concentrated on one disk, which stays at high speed.
    Div,
    /// Conventional disks: always at high speed.
    OneSpeed,
}

/// Thresholds that follow from the disk and from what the user accepts, instead of fixed ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Adaptive {
    /// Mean response time of all requests to stay under. It has no default.
    pub response_limit: Duration,
    /// Changes of speed that a disk may make in a year, on average: what the vendor rates start/stop cycles at.
    pub cycles_per_year: u32,
    /// Changes that may follow each other without regard to the average; at least one trip down and up.
    pub cycles_at_once: u32,
}

impl Default for Adaptive {
    fn default() -> Adaptive {
        // [LogStore §2]: 600,000 cycles in three years.
        Adaptive { response_limit: Duration::ZERO, cycles_per_year: 200_000, cycles_at_once: 100 }
    }
}

/// Defects that are planted on purpose, for the fault search to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedBug {
    /// Writes do not wait until their regions are marked.
    WriteUnmarked,
    /// A disk leaves without a note that it falls behind.
    LeaveUnnoted,
    /// When a disk has returned, the regions that it missed are not marked as possibly different.
    ReturnUnmarked,
    /// Replayed blocks are voided before they are durable.
    VoidUnsynced,
    /// Reads do not care what a disk lacks.
    ReadBehind,
    /// A disk that is woken because the other one is lost does not get what it missed.
    WakeForgets,
    /// A start believes what the disks say of each other, however old one of them is.
    IgnoreCounts,
}

/// When a write is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ack {
    /// When both disks have it; while one changes its speed, when the other has it and memory keeps it for this one. A
    /// crash, a power failure (of what was flushed) or the loss of one disk loses nothing; a power failure during a
    /// change of speed together with the loss of the other disk may.
    #[default]
    Safe,
    /// When both disks have it, always: writes wait for a change of speed.
    Both,
    /// When one disk has it, as in the paper [LogStore §3.2]: for comparison.
    One,
}

/// Disks that serve nothing at low speed: one of them may sleep while the other serves alone.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Sleep {
    /// The longest time for which acknowledged writes wait in memory for a sleeping disk.
    pub behind_longest: Duration,
    /// The shortest time from a start or an awakening to the next sleep: starting up wears a disk out.
    pub awake_shortest: Duration,
}

impl Default for Sleep {
    fn default() -> Sleep {
        Sleep { behind_longest: Duration::from_secs(3600), awake_shortest: Duration::from_secs(1800) }
    }
}

/// How a mirror behaves.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    pub kind: PolicyKind,
    pub thresholds: Thresholds,
    pub epoch: Duration,
    /// Epochs after a change of speed in which there is no other.
    pub settle_epochs: u32,
    /// Weight of the old value in the moving average of utilisation.
    pub smoothing: f64,
    /// `None`: `thresholds` as they stand. With it, they are where it begins, and give the proportions between
    /// thresholds.
    pub adaptive: Option<Adaptive>,
    pub ack: Ack,
    /// Memory for what is written while a disk is away; more waits. A sleeping disk is woken at half of it.
    pub postponed_bytes: u64,
    /// `None`: disks serve at low speed.
    pub sleep: Option<Sleep>,
    #[cfg(feature = "planted-bugs")]
    #[serde(skip)]
    pub planted: Option<PlantedBug>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            kind: PolicyKind::default(),
            thresholds: Thresholds::default(),
            epoch: Duration::from_secs(3),
            settle_epochs: 3,
            smoothing: 0.875,
            adaptive: None,
            ack: Ack::Safe,
            postponed_bytes: 256 << 20,
            sleep: None,
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SettingsError {
    #[error("{name} is {value}: set it to a utilisation from 0 to {most}")]
    Range { name: &'static str, value: f64, most: f64 },
    #[error(
        "{lower} is {low} and {upper} is {high}, so a disk would change back and forth: lower {lower} or raise {upper}"
    )]
    Order { lower: &'static str, low: f64, upper: &'static str, high: f64 },
    #[error("the epoch has no length: set epoch to some seconds; the paper's is 3 s")]
    Epoch,
    #[error(
        "smoothing is {0}: set it to the weight of the old value, from 0 to below 1; the paper's is 0.875"
    )]
    Smoothing(f64),
    #[error("no response limit: set adaptive.response_limit to the mean response time that you accept")]
    ResponseLimit,
    #[error(
        "adaptive.cycles_per_year is 0, so a disk could never change its speed: set it, or use kind one-speed"
    )]
    NoCycles,
    #[error("adaptive.cycles_at_once is {0}: set it to 2 or more, a trip down and up")]
    CyclesAtOnce(u32),
    #[error(
        "disks that sleep at low speed log nothing: choose the policy two-speed, div or one-speed instead of logstore"
    )]
    SleepLogs,
    #[error(
        "with both disks in every acknowledgement, writes would wait for a sleeping disk: acknowledge safe, or choose the policy one-speed"
    )]
    SleepStalls,
}

impl Settings {
    pub fn check(&self) -> Result<(), SettingsError> {
        self.thresholds.check()?;
        if self.epoch.is_zero() {
            return Err(SettingsError::Epoch);
        }
        if !(0.0..1.0).contains(&self.smoothing) {
            return Err(SettingsError::Smoothing(self.smoothing));
        }
        if self.sleep.is_some() && self.kind == PolicyKind::LogStore {
            return Err(SettingsError::SleepLogs);
        }
        if self.sleep.is_some() && self.kind != PolicyKind::OneSpeed && self.ack == Ack::Both {
            return Err(SettingsError::SleepStalls);
        }
        self.adaptive.map_or(Ok(()), |adaptive| adaptive.check())
    }
}

impl Thresholds {
    fn check(&self) -> Result<(), SettingsError> {
        let balance = ("balance", self.balance);
        let go_up = ("go_up", self.go_up);
        let go_down = ("go_down", self.go_down);
        let max_regular = ("max_regular", self.max_regular);
        let min_regular = ("min_regular", self.min_regular);
        let max_replay = ("max_replay", self.max_replay);
        let min_log = ("min_log", self.min_log);
        let saturated = ("saturated", self.saturated);
        let single = [go_up, go_down, max_regular, min_regular, max_replay, min_log, saturated];
        for ((name, value), most) in single.map(|one| (one, 1.0)).into_iter().chain([(balance, 2.0)]) {
            if !(0.0..=most).contains(&value) {
                return Err(SettingsError::Range { name, value, most });
            }
        }
        let may_be_equal =
            [(min_regular, max_regular), (min_regular, max_replay), (min_log, max_regular), (min_log, go_up)];
        let wrong = may_be_equal.into_iter().find(|(low, high)| low.1 > high.1);
        let wrong = wrong.or((go_down.1 >= go_up.1).then_some((go_down, go_up)));
        match wrong {
            Some(((lower, low), (upper, high))) => Err(SettingsError::Order { lower, low, upper, high }),
            None => Ok(()),
        }
    }
}

impl Adaptive {
    fn check(&self) -> Result<(), SettingsError> {
        if self.response_limit.is_zero() {
            return Err(SettingsError::ResponseLimit);
        }
        if self.cycles_per_year == 0 {
            return Err(SettingsError::NoCycles);
        }
        if self.cycles_at_once < 2 {
            return Err(SettingsError::CyclesAtOnce(self.cycles_at_once));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Settings)) -> Option<String> {
        let mut settings = Settings::default();
        change(&mut settings);
        settings.check().err().map(|error| error.to_string())
    }

    #[test]
    fn the_papers_settings_are_accepted_and_so_are_those_of_its_sensitivity_analysis() {
        assert_eq!(refusal(|_| {}), None);
        let lower = |s: &mut Settings| (s.thresholds.max_regular, s.thresholds.min_log) = (0.3, 0.15);
        assert_eq!(refusal(lower), None);
        assert_eq!(refusal(|s| s.epoch = Duration::from_secs(5)), None);
    }

    #[test]
    fn thresholds_out_of_order_are_refused() {
        type Change = fn(&mut Thresholds);
        let cases: [(Change, &str, &str); 5] = [
            (|t| t.min_regular = 0.51, "min_regular is 0.51", "raise max_regular"),
            (|t| t.max_replay = 0.29, "min_regular is 0.3", "raise max_replay"),
            (|t| t.min_log = 0.51, "min_log is 0.51", "raise max_regular"),
            (|t| (t.max_regular, t.min_log) = (0.9, 0.6), "min_log is 0.6", "raise go_up"),
            (|t| t.go_down = 0.5, "go_down is 0.5 and go_up is 0.5", "raise go_up"),
        ];
        for (change, what, advice) in cases {
            let said = refusal(|s| change(&mut s.thresholds)).unwrap_or_else(|| panic!("{what} is accepted"));
            assert!(said.contains(what) && said.ends_with(advice), "{said}");
        }
        for equal in [|t: &mut Thresholds| t.min_regular = 0.5, |t: &mut Thresholds| t.min_log = 0.5] {
            assert_eq!(refusal(|s| equal(&mut s.thresholds)), None);
        }
    }

    #[test]
    fn thresholds_outside_their_range_are_refused() {
        let fields: [fn(&mut Thresholds) -> &mut f64; 8] = [
            |t| &mut t.balance,
            |t| &mut t.go_up,
            |t| &mut t.go_down,
            |t| &mut t.max_regular,
            |t| &mut t.min_regular,
            |t| &mut t.max_replay,
            |t| &mut t.min_log,
            |t| &mut t.saturated,
        ];
        for (at, field) in fields.into_iter().enumerate() {
            for value in [-0.1, 2.1, f64::NAN] {
                let said = refusal(|s| *field(&mut s.thresholds) = value);
                assert!(said.is_some_and(|said| said.contains("from 0 to")), "field {at}: {value}");
            }
        }
        assert_eq!(refusal(|s| s.thresholds.balance = 1.5), None, "it is a sum of two");
    }

    #[test]
    fn each_other_setting_is_checked() {
        let adaptive = Adaptive { response_limit: Duration::from_millis(20), ..Adaptive::default() };
        assert_eq!(refusal(|s| s.adaptive = Some(adaptive)), None);
        let cases = [
            (Settings { epoch: Duration::ZERO, ..Settings::default() }, SettingsError::Epoch),
            (Settings { smoothing: 1.0, ..Settings::default() }, SettingsError::Smoothing(1.0)),
            (
                Settings { adaptive: Some(Adaptive::default()), ..Settings::default() },
                SettingsError::ResponseLimit,
            ),
        ];
        for (settings, error) in cases {
            assert_eq!(settings.check(), Err(error));
        }
        let sleeping =
            Settings { sleep: Some(Sleep::default()), kind: PolicyKind::TwoSpeed, ..Settings::default() };
        assert_eq!(sleeping.check(), Ok(()));
        let cases = [
            (Settings { kind: PolicyKind::LogStore, ..sleeping }, Err(SettingsError::SleepLogs)),
            (Settings { ack: Ack::Both, ..sleeping }, Err(SettingsError::SleepStalls)),
            (Settings { ack: Ack::Both, kind: PolicyKind::OneSpeed, ..sleeping }, Ok(())),
        ];
        for (settings, wanted) in cases {
            assert_eq!(settings.check(), wanted);
        }
        let cases = [
            (Adaptive { cycles_per_year: 0, ..adaptive }, SettingsError::NoCycles),
            (Adaptive { cycles_at_once: 1, ..adaptive }, SettingsError::CyclesAtOnce(1)),
        ];
        for (adaptive, error) in cases {
            assert_eq!(Settings { adaptive: Some(adaptive), ..Settings::default() }.check(), Err(error));
        }
    }
}
