//! IPMI: turns a machine on through its management controller, by the program `ipmitool`.
//!
//! Cipher suite 17, and where that fails 3: ipmitool does not fall back by itself. Some controllers crash if they are
//! asked more often than every few seconds, and some run out of sessions; each call of ipmitool closes its own.
//! [Ironic, ipmi.py]

use super::fields::Password;
use super::{About, Clock, Driver, Fields, PowerState, Settle, SwitchError};
use crate::ipmitool::{Ipmitool, over_lan};
use crate::program::{self, ProgramError};
use ebb_types::Depth;
use std::process::Command;
use std::time::Duration;

/// Least time between two commands to one controller.
const PACE: Duration = Duration::from_secs(5);
/// In the order of preference.
const CIPHERS: [&str; 2] = ["17", "3"];

struct Ipmi {
    about: About,
    program: String,
    /// That reach the controller.
    arguments: Vec<String>,
    password: Option<Password>,
    timeout: Duration,
    /// That worked last.
    cipher: Option<&'static str>,
    /// When the last command ended.
    last: Option<Duration>,
}

pub(super) fn open(fields: &mut Fields) -> Result<Box<dyn Driver>, SwitchError> {
    let host = fields.needed("host", "bmc7")?;
    let (login, program, timeout) = (fields.login()?, fields.text("program")?, fields.duration("timeout")?);
    let user = login.as_ref().map_or(String::new(), |(user, _)| format!("{user}@"));
    let password = login.as_ref().map(|(_, password)| password.option());
    let options = password
        .into_iter()
        .chain(program.as_ref().map(|program| format!("program={program}")))
        .chain(timeout.map(|time| format!("timeout={}s", time.as_secs_f64())));
    let options: String = options.map(|option| format!(",{option}")).collect();
    let meter = format!("ipmi{options}:{user}{host}");
    let (user, password) = login.unzip();
    let arguments = over_lan(&host, user.as_deref(), password.is_some())
        .ok_or_else(|| fields.wrong(format!("host is HOST or HOST:PORT, and {host:?} is neither")))?;
    let about = About {
        settle: Some(Settle { poll: PACE, watch: 2 * PACE, ..Settle::MACHINE }),
        meter: Some(meter),
        ..About::new("ipmi", host, vec![Depth::Off])
    };
    Ok(Box::new(Ipmi {
        about,
        program: program.unwrap_or_else(|| "ipmitool".into()),
        arguments,
        password,
        timeout: timeout.unwrap_or(Duration::from_secs(20)),
        cipher: None,
        last: None,
    }))
}

/// How long to wait at `now` after a command that ended at `last`.
fn pace(last: Option<Duration>, now: Duration) -> Duration {
    last.map_or(Duration::ZERO, |last| (last + PACE).saturating_sub(now))
}

impl Ipmi {
    fn run(&mut self, words: &[&str], clock: &mut dyn Clock) -> Result<String, SwitchError> {
        let password = self.password.as_ref().map(Password::read).transpose()?;
        let ciphers = self.cipher.map_or(CIPHERS.to_vec(), |known| vec![known]);
        let mut whys = Vec::new();
        for cipher in ciphers {
            let wait = pace(self.last, clock.now());
            if !wait.is_zero() && !clock.pause(wait) {
                return Err(SwitchError::Replaced);
            }
            let arguments = [&self.arguments[..], &["-C".to_string(), cipher.to_string()]].concat();
            let tool = Ipmitool {
                program: self.program.clone(),
                arguments,
                password: password.clone(),
                timeout: self.timeout,
            };
            let answer = tool.run(words);
            self.last = Some(clock.now());
            match answer {
                Ok(output) => {
                    self.cipher = Some(cipher);
                    return Ok(output);
                }
                Err(error @ ProgramError::Start(_)) => return Err(self.missing(&error)),
                // The session stood, so another cipher suite changes nothing.
                Err(ProgramError::Failed { said, .. }) if said.contains("not supported in present state") => {
                    return Err(SwitchError::GoingDown { machine: self.about.machine.clone() });
                }
                Err(error) => whys.push(format!("with cipher suite {cipher} {error}")),
            }
        }
        self.cipher = None;
        let remedy = "check host, user and password, and that IPMI over LAN is allowed";
        Err(SwitchError::Unreachable {
            machine: self.about.machine.clone(),
            why: format!("{}; {remedy}", whys.join("; ")),
        })
    }

    fn missing(&self, error: &ProgramError) -> SwitchError {
        SwitchError::Unavailable { what: self.program.clone(), why: format!("{error}; install ipmitool") }
    }
}

impl Driver for Ipmi {
    fn about(&self) -> &About {
        &self.about
    }

    fn available(&self) -> Result<(), SwitchError> {
        self.password.as_ref().map(Password::read).transpose()?;
        let mut version = Command::new(&self.program);
        version.arg("-V");
        match program::run(version, self.timeout) {
            Err(error @ ProgramError::Start(_)) => Err(self.missing(&error)),
            _ => Ok(()),
        }
    }

    fn wake(&mut self, clock: &mut dyn Clock) -> Result<(), SwitchError> {
        self.run(&["chassis", "power", "on"], clock).map(|_| ())
    }

    fn observe(&mut self, clock: &mut dyn Clock) -> Result<PowerState, SwitchError> {
        let answer = self.run(&["chassis", "power", "status"], clock)?;
        Ok(match answer.trim().to_ascii_lowercase().strip_prefix("chassis power is ") {
            Some("on") => PowerState::On,
            Some("off") => PowerState::Off,
            _ => PowerState::Unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_gets_five_seconds_between_commands() {
        let at = Duration::from_secs;
        assert_eq!(pace(None, at(0)), Duration::ZERO);
        assert_eq!(pace(Some(at(10)), at(10)), at(5));
        assert_eq!(pace(Some(at(10)), at(13)), at(2));
        assert_eq!(pace(Some(at(10)), at(15)), Duration::ZERO);
        assert_eq!(pace(Some(at(10)), at(99)), Duration::ZERO);
    }
}
