//! Any command that prints a number.
//!
//! The command runs under `sh -c` once per reading. Its first line must be a number, optionally followed by a unit; no
//! output is an absent reading.

use super::spec::Spec;
use super::{Channel, Meter, MeterError, Opened, Quantity, Source};
use ebb_power::Machine;
use ebb_power::program::{self, ProgramError};
use std::process::Command;
use std::time::Duration;

struct Shell {
    command: String,
    timeout: Duration,
}

/// `power`, `energy` (a counter), `temperature`, `voltage` or `current`.
pub fn parse_quantity(name: &str) -> Option<Quantity> {
    use Quantity::{Current, Energy, Power, Temperature, Voltage};
    let all = [Power, Energy { range: None }, Temperature, Voltage, Current];
    all.into_iter().find(|quantity| quantity.name() == name)
}

/// The option `quantity`: the meaning of a number that does not state it.
pub(super) fn quantity(spec: &mut Spec) -> Result<Quantity, MeterError> {
    let Some(name) = spec.value("quantity")? else { return Ok(Quantity::Power) };
    parse_quantity(&name).ok_or_else(|| {
        let known = "power, energy (a counter), temperature, voltage or current";
        spec.wrong(format!("quantity={name} is unknown: use {known}"))
    })
}

pub(super) fn open(_: &Machine, spec: &mut Spec) -> Result<Opened, MeterError> {
    let command = spec.needed("the command to run")?;
    let channel = Channel {
        source: Source::Stated,
        ..Channel::measured("command", quantity(spec)?, format!("what {command:?} prints"))
    };
    let timeout = spec.duration("timeout")?.unwrap_or(Duration::from_secs(10));
    Ok((vec![channel], Box::new(Shell { command, timeout })))
}

impl Meter for Shell {
    fn read(&mut self, _: &mut Option<String>) -> Result<Vec<Option<f64>>, MeterError> {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(&self.command);
        let output = program::run(shell, self.timeout).map_err(|error| failed(&self.command, error))?;
        let Some(line) = output.lines().find(|line| !line.trim().is_empty()) else {
            return Err(MeterError::Command {
                command: self.command.clone(),
                why: "it printed nothing".into(),
            });
        };
        let number = leading_number(line).ok_or_else(|| MeterError::Command {
            command: self.command.clone(),
            why: format!("it printed {line:?} where a number belongs"),
        })?;
        Ok(vec![Some(number)])
    }
}

/// `12.5`, `12.5 W` and `12.5W` are 12.5.
pub(super) fn leading_number(text: &str) -> Option<f64> {
    let word = text.split_whitespace().next()?;
    let number = word.trim_end_matches(|c: char| c.is_alphabetic() || c == '°');
    number.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Why a command gave no reading. `shown` is its name in errors.
pub(super) fn failed(shown: &str, error: ProgramError) -> MeterError {
    let why = match error {
        ProgramError::Late { .. } => format!("{error}; the option timeout gives it longer"),
        _ => error.to_string(),
    };
    MeterError::Command { command: shown.to_string(), why }
}

#[cfg(test)]
mod tests {
    use super::super::open_on;
    use super::super::tests::machine;
    use super::*;
    use std::time::Instant;

    fn read(spec: &str) -> Result<Vec<Option<f64>>, MeterError> {
        open_on(&machine().1, spec)?.meter.read(&mut None)
    }

    #[test]
    fn the_first_line_is_the_reading() {
        assert_eq!(read("command:echo 12.5").unwrap(), [Some(12.5)]);
        assert_eq!(read("command:printf '\\n 41.5 W, more\\n99\\n'").unwrap(), [Some(41.5)]);
        let open = open_on(&machine().1, "command,quantity=temperature:echo 30°C").unwrap();
        assert_eq!(open.channels[0].quantity, Quantity::Temperature);
        assert_eq!(open.channels[0].source, Source::Stated);
        assert_eq!(leading_number("30°C"), Some(30.0));
        assert_eq!(leading_number("inf"), None);
    }

    #[test]
    fn failures_say_what_happened() {
        let text = |spec: &str| read(spec).unwrap_err().to_string();
        assert!(text("command:echo many").contains("\"many\" where a number belongs"));
        assert!(text("command:true").contains("\"true\" gave no reading: it printed nothing"));
        assert!(text("command:echo no such plug >&2; exit 3").contains("exit status: 3: no such plug"));
        let started = Instant::now();
        assert!(text("command,timeout=200ms:sleep 3600 & wait").contains("did not end within 200ms"));
        assert!(text("command,timeout=200ms:exec >&- 2>&-; sleep 3600").contains("did not end within 200ms"));
        assert!(started.elapsed() < Duration::from_secs(1800), "the command was waited for");
        assert!(text("command").contains("after the colon belongs"));
        assert!(text("command,quantity=smell:echo 1").contains("smell"));
        assert!(text("command,color=red:echo 1").contains("no option \"color\""));
    }
}
