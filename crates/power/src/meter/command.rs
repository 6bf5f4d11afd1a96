//! Any command that prints a number, and how commands are run for other drivers.
//!
//! The command runs under `sh -c` once per reading. Its first line must be a number, optionally followed by a unit; no
//! output is an absent reading.

use super::spec::Spec;
use super::sysfs::Machine;
use super::{Channel, Meter, MeterError, Quantity, Source};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Most output that is read from a command.
const MOST_OUTPUT: u64 = 1 << 20;

struct Shell {
    channels: [Channel; 1],
    command: String,
    timeout: Duration,
}

/// `power`, `energy` (a counter), `temperature`, `voltage` or `current`.
pub fn parse_quantity(name: &str) -> Option<Quantity> {
    match name {
        "power" => Some(Quantity::Power),
        "energy" => Some(Quantity::Energy { range: None }),
        "temperature" => Some(Quantity::Temperature),
        "voltage" => Some(Quantity::Voltage),
        "current" => Some(Quantity::Current),
        _ => None,
    }
}

/// The option `quantity`: the meaning of a number that does not state it.
pub(super) fn quantity(spec: &mut Spec) -> Result<Quantity, MeterError> {
    let Some(name) = spec.value("quantity")? else { return Ok(Quantity::Power) };
    parse_quantity(&name).ok_or_else(|| {
        let known = "power, energy (a counter), temperature, voltage or current";
        spec.wrong(format!("quantity={name} is unknown: use {known}"))
    })
}

pub(super) fn open(_: &Machine, spec: &mut Spec) -> Result<Box<dyn Meter>, MeterError> {
    let command = spec.needed("the command to run")?;
    let channel = Channel {
        name: "command".into(),
        quantity: quantity(spec)?,
        source: Source::Measured,
        part_of: None,
        sees: format!("what {command:?} prints"),
    };
    let timeout = spec.duration("timeout")?.unwrap_or(Duration::from_secs(10));
    Ok(Box::new(Shell { channels: [channel], command, timeout }))
}

impl Meter for Shell {
    fn channels(&self) -> &[Channel] {
        &self.channels
    }

    fn read(&mut self) -> Result<Vec<Option<f64>>, MeterError> {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(&self.command);
        let output = run(shell, &self.command, self.timeout)?;
        let Some(line) = output.lines().find(|line| !line.trim().is_empty()) else { return Ok(vec![None]) };
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

/// Runs a command without input, and returns its output. `shown` is its name in errors. At the timeout the command and
/// all its children are killed.
pub(super) fn run(mut command: Command, shown: &str, timeout: Duration) -> Result<String, MeterError> {
    let failed = |why: String| MeterError::Command { command: shown.to_string(), why };
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|source| failed(format!("it could not be started: {source}")))?;
    let output = drain(child.stdout.take().expect("it is piped"));
    let errors = drain(child.stderr.take().expect("it is piped"));
    let deadline = Instant::now() + timeout;
    let left = || deadline.saturating_duration_since(Instant::now());
    let texts = output.recv_timeout(left()).ok().zip(errors.recv_timeout(left()).ok());
    let late = |child: &mut Child| {
        kill_group(child);
        let _ = child.wait();
        failed(format!("it did not end within {timeout:?}; the option timeout gives it longer"))
    };
    let Some((output, errors)) = texts else { return Err(late(&mut child)) };
    let status = ended(&mut child, deadline).map_err(|source| failed(source.to_string()))?;
    let Some(status) = status else { return Err(late(&mut child)) };
    if !status.success() {
        let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        return Err(failed(format!("it ended with {status}: {}", last.trim())));
    }
    Ok(output)
}

/// Both pipes are closed, so it has ended, or will soon, or never.
fn ended(child: &mut Child, deadline: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        let status = child.try_wait()?;
        if status.is_some() || Instant::now() >= deadline {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn kill_group(child: &Child) {
    if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
        // It may have ended by itself.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// Reads a pipe to its end on a thread, so that a command that fills both of its pipes does not block.
fn drain(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let mut pipe = pipe;
        let read = (&mut pipe).take(MOST_OUTPUT).read_to_end(&mut text);
        if read.is_ok() && std::io::copy(&mut pipe, &mut std::io::sink()).is_ok() {
            // The receiver may have given up.
            let _ = send.send(String::from_utf8_lossy(&text).into_owned());
        }
    });
    receive
}

#[cfg(test)]
mod tests {
    use super::super::open_on;
    use super::super::tests::machine;
    use super::*;

    fn read(spec: &str) -> Result<Vec<Option<f64>>, MeterError> {
        open_on(&machine().1, spec)?.meter.read()
    }

    #[test]
    fn the_first_line_is_the_reading() {
        assert_eq!(read("command:echo 12.5").unwrap(), [Some(12.5)]);
        assert_eq!(read("command:printf '\\n 41.5 W, more\\n99\\n'").unwrap(), [Some(41.5)]);
        assert_eq!(read("command:true").unwrap(), [None]);
        let open = open_on(&machine().1, "command,quantity=temperature:echo 30°C").unwrap();
        assert_eq!(open.meter.channels()[0].quantity, Quantity::Temperature);
        assert_eq!(leading_number("30°C"), Some(30.0));
        assert_eq!(leading_number("inf"), None);
    }

    #[test]
    fn failures_say_what_happened() {
        let text = |spec: &str| read(spec).unwrap_err().to_string();
        assert!(text("command:echo many").contains("\"many\" where a number belongs"));
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
