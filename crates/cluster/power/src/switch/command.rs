//! Programs of the user's: a power distribution unit, a smart plug, a hypervisor. They are run without a shell, and
//! must end with success within the time limit. One that is too late is killed with all its children, and so is one
//! whose order is no longer wanted: the next order begins when it has ended. Who leaves its process group (setsid) is
//! not reached.
//!
//! A program is a list: its path, and its arguments. Its environment has `EBB_SERVER` (the server's number),
//! `EBB_SERVER_NAME` (`server-7`) and, for
//! `sleep`, `EBB_DEPTH` (`standby` or `off`). What `sleep` does is the user's affair: without it, the machine puts
//! itself to sleep.

use super::{About, Clock, Driver, Fields, PowerState, Settle, SwitchError};
use crate::program::{self, ProgramError};
use ebb_types::Depth;
use std::process::Command;
use std::time::Duration;

struct Programs {
    about: About,
    wake: Vec<String>,
    sleep: Option<Vec<String>>,
    state: Option<Vec<String>>,
    server: String,
    timeout: Duration,
}

pub(super) fn open(fields: &mut Fields) -> Result<Box<dyn Driver>, SwitchError> {
    let example = "wake is missing: wake = [\"/usr/local/bin/plug\", \"on\", \"7\"]";
    let wake = fields.program("wake")?.ok_or_else(|| fields.wrong(example))?;
    let (sleep, state) = (fields.program("sleep")?, fields.program("state")?);
    let shown = wake.join(" ");
    let machine = format!("{} by `{shown}`", fields.server);
    let about = About {
        controller: shown,
        puts_to_sleep: sleep.is_some(),
        settle: state.is_some().then_some(Settle::MACHINE),
        ..About::new("command", machine, depths(fields)?)
    };
    let timeout = fields.duration("timeout")?.unwrap_or(Duration::from_secs(30));
    Ok(Box::new(Programs { about, wake, sleep, state, server: fields.server.0.to_string(), timeout }))
}

/// What a plug can wake from is `off`.
fn depths(fields: &mut Fields) -> Result<Vec<Depth>, SwitchError> {
    let wrong = "depths is a list of \"standby\" and \"off\", the states from which `wake` wakes";
    let Some(words) = fields.program("depths")? else { return Ok(vec![Depth::Off]) };
    let depth = |word: &String| match word.as_str() {
        "standby" => Ok(Depth::Standby),
        "off" => Ok(Depth::Off),
        _ => Err(fields.wrong(wrong)),
    };
    words.iter().map(depth).collect()
}

impl Programs {
    fn run(
        &self,
        list: &[String],
        depth: Option<&str>,
        clock: &mut dyn Clock,
    ) -> Result<String, SwitchError> {
        let (program, arguments) = list.split_first().expect("lists are checked");
        let mut command = Command::new(program);
        let name = format!("server-{}", self.server);
        command.args(arguments).env("EBB_SERVER", &self.server).env("EBB_SERVER_NAME", name);
        command.envs(depth.map(|depth| ("EBB_DEPTH", depth)));
        let ran = program::run_while(command, self.timeout, || clock.pause(Duration::ZERO));
        ran.map_err(|error| match error {
            ProgramError::Unwanted => SwitchError::Replaced,
            error => SwitchError::Unreachable { machine: list.join(" "), why: error.to_string() },
        })
    }
}

impl Driver for Programs {
    fn about(&self) -> &About {
        &self.about
    }

    fn available(&self) -> Result<(), SwitchError> {
        let lists = [Some(&self.wake), self.sleep.as_ref(), self.state.as_ref()];
        let path = std::env::var_os("PATH").unwrap_or_default();
        let is_there = |program: &str| match program.contains('/') {
            true => std::path::Path::new(program).exists(),
            false => std::env::split_paths(&path).any(|dir| dir.join(program).exists()),
        };
        match lists.into_iter().flatten().map(|list| &list[0]).find(|program| !is_there(program)) {
            None => Ok(()),
            Some(missing) => Err(SwitchError::Unavailable {
                what: missing.clone(),
                why: "there is no such program here: install it on every metadata server".into(),
            }),
        }
    }

    fn sleep(&mut self, depth: Depth, clock: &mut dyn Clock) -> Result<(), SwitchError> {
        let Some(list) = &self.sleep else { return Ok(()) };
        let depth = match depth {
            Depth::Standby => "standby",
            Depth::Off => "off",
        };
        self.run(list, Some(depth), clock).map(|_| ())
    }

    fn wake(&mut self, clock: &mut dyn Clock) -> Result<(), SwitchError> {
        self.run(&self.wake, None, clock).map(|_| ())
    }

    fn observe(&mut self, clock: &mut dyn Clock) -> Result<PowerState, SwitchError> {
        let Some(list) = &self.state else { return Ok(PowerState::Unknown) };
        let text = self.run(list, None, clock)?;
        match text.trim() {
            "on" => Ok(PowerState::On),
            "off" => Ok(PowerState::Off),
            "standby" => Ok(PowerState::Standby),
            found => {
                let found: String = found.chars().take(100).collect();
                let why = format!("it printed {found:?} where on, off or standby belongs");
                Err(SwitchError::Refused { what: list.join(" "), why })
            }
        }
    }
}
