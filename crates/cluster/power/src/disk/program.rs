//! Any program that changes a disk's speed. It is run without a shell, and must end with success within the time limit.
//!
//! A program is a list: its path, and its arguments. Its environment has `EBB_MIRROR` (the mirror's name), `EBB_DISK`
//! (`a` or `b`) and `EBB_DISK_PATH`. A program that is to stay must give up its output, which is read to its end.

use super::{About, Change, DiskError, DiskSwitch};
use crate::program;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// The programs of a mirror's disks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Programs {
    pub low: Vec<String>,
    pub high: Vec<String>,
    /// Prints `low` or `high`. `None`: what the others say by their exit status is believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub show: Option<Vec<String>>,
}

impl Programs {
    /// A list that cannot be run.
    pub fn check(&self) -> Result<(), &'static str> {
        let lists = [("low", Some(&self.low)), ("high", Some(&self.high)), ("show", self.show.as_ref())];
        let empty = |(_, list): &(&str, Option<&Vec<String>>)| {
            list.is_some_and(|list| list.first().is_none_or(String::is_empty))
        };
        lists.into_iter().find(empty).map_or(Ok(()), |(name, _)| Err(name))
    }
}

/// One disk whose speed programs change.
pub struct Program {
    programs: Programs,
    path: PathBuf,
    /// Names and values for the programs' environment.
    environment: Vec<(&'static str, String)>,
    timeout: Duration,
    about: About,
}

impl Program {
    /// `slowdown`: how many times as long operations take at low speed.
    pub fn new(
        programs: Programs,
        mirror: &str,
        disk: &str,
        path: PathBuf,
        slowdown: f64,
        timeout: Duration,
    ) -> Program {
        let environment = vec![
            ("EBB_MIRROR", mirror.to_owned()),
            ("EBB_DISK", disk.to_owned()),
            ("EBB_DISK_PATH", path.display().to_string()),
        ];
        let about = About {
            what: format!("{} and {}", programs.high.join(" "), programs.low.join(" ")),
            slowdown,
            rated: None,
            change: Change { down: timeout, up: timeout },
        };
        Program { programs, path, environment, timeout, about }
    }

    fn run(&self, list: &[String]) -> Result<String, DiskError> {
        let (program, arguments) = list.split_first().expect("lists are checked");
        let mut command = Command::new(program);
        command.args(arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        program::run(command, self.timeout).map_err(|error| self.failed(list, error.to_string()))
    }

    fn failed(&self, list: &[String], why: String) -> DiskError {
        DiskError::Program { command: list.join(" "), path: self.path.clone(), why }
    }

    fn set(&self, list: &[String], wanted: &str) -> Result<(), DiskError> {
        self.run(list)?;
        let Some(show) = &self.programs.show else { return Ok(()) };
        let text = self.run(show)?;
        match text.trim() {
            found if found == wanted => Ok(()),
            found @ ("low" | "high") => Err(DiskError::Kept {
                path: self.path.clone(),
                wanted: format!("{wanted} speed"),
                found: format!("{found} speed"),
            }),
            found => {
                let found: String = found.chars().take(100).collect();
                Err(self.failed(show, format!("it printed {found:?} where low or high belongs")))
            }
        }
    }
}

impl DiskSwitch for Program {
    fn go_low(&mut self) -> Result<(), DiskError> {
        self.set(&self.programs.low, "low")
    }

    fn go_high(&mut self) -> Result<(), DiskError> {
        self.set(&self.programs.high, "high")
    }

    fn about(&self) -> &About {
        &self.about
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(script: &str) -> Vec<String> {
        ["sh", "-c", script].map(str::to_owned).to_vec()
    }

    fn switch(low: &str, high: &str, show: Option<&str>, timeout: Duration) -> Program {
        let programs = Programs { low: list(low), high: list(high), show: show.map(list) };
        Program::new(programs, "m", "a", "/dev/x".into(), 2.0, timeout)
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn programs_are_run_with_the_disk_in_their_environment_and_believed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("speed");
        let set =
            |speed: &str| format!("echo {speed} $EBB_MIRROR $EBB_DISK $EBB_DISK_PATH > {}", file.display());
        let mut believed = switch(&set("low"), &set("high"), None, LONG);
        believed.go_low().unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "low m a /dev/x\n");
        believed.go_high().unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "high m a /dev/x\n");
        let show = format!("cut -d' ' -f1 {}", file.display());
        let mut shown = switch(&set("low"), &set("low"), Some(&show), LONG);
        shown.go_low().unwrap();
        let text = shown.go_high().unwrap_err().to_string();
        assert!(text.contains("asked for high speed and reports low speed"), "{text}");
    }

    #[test]
    fn what_fails_hangs_or_babbles_is_an_error() {
        let text = |mut switch: Program| switch.go_low().unwrap_err().to_string();
        assert!(text(switch("echo no >&2; exit 3", "", None, LONG)).contains("exit status: 3: no"));
        let began = std::time::Instant::now();
        let hangs = switch("sleep 3600", "", None, Duration::from_millis(50));
        assert!(text(hangs).contains("did not end within 50ms"));
        assert!(began.elapsed() < Duration::from_secs(1800), "it was killed");
        let babbles = text(switch("true", "", Some("yes medium | head -c 100000"), LONG));
        assert!(babbles.contains("where low or high belongs") && babbles.len() < 1000, "{babbles}");
        let mut missing = switch("", "", None, LONG);
        missing.programs.low = vec!["/nowhere/speed".to_owned()];
        assert!(text(missing).contains("could not be started"));
    }

    #[test]
    fn empty_lists_are_noticed() {
        let good = Programs { low: list(""), high: list(""), show: None };
        assert_eq!(good.check(), Ok(()));
        assert_eq!(Programs { low: Vec::new(), ..good.clone() }.check(), Err("low"));
        assert_eq!(Programs { high: vec![String::new()], ..good.clone() }.check(), Err("high"));
        assert_eq!(Programs { show: Some(Vec::new()), ..good }.check(), Err("show"));
    }
}
