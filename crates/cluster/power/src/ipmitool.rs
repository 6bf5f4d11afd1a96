//! Calls of the program `ipmitool`, which knows the management controllers' many quirks.
//!
//! The password is passed in the environment, never on the command line, which all users can read.

use crate::program::{self, ProgramError};
use std::process::Command;
use std::time::Duration;

/// A controller, and how it is asked.
pub struct Ipmitool {
    pub program: String,
    /// Arguments before ipmitool's own command.
    pub arguments: Vec<String>,
    pub password: Option<String>,
    pub timeout: Duration,
}

impl Ipmitool {
    pub fn run(&self, words: &[&str]) -> Result<String, ProgramError> {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).args(words);
        if let Some(password) = &self.password {
            command.env("IPMI_PASSWORD", password);
        }
        program::run(command, self.timeout)
    }
}

/// The arguments that reach `address`, `HOST[:PORT]`, over the network; `None`: it is not such an address. The password
/// is to be in the environment if `has_password`.
pub fn over_lan(address: &str, user: Option<&str>, has_password: bool) -> Option<Vec<String>> {
    let (host, port) = match address.rsplit_once(':') {
        // An IPv6 address is in brackets if a port follows.
        Some((host, port)) if port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']')) => {
            (host, Some(port))
        }
        _ => (address, None),
    };
    let host = host.trim_matches(['[', ']']);
    if host.is_empty() || host.starts_with('-') {
        return None;
    }
    let mut arguments = vec!["-I".to_string(), "lanplus".into(), "-H".into(), host.into()];
    for (flag, value) in [("-p", port), ("-U", user)] {
        arguments.extend(value.into_iter().flat_map(|value| [flag.to_string(), value.to_string()]));
    }
    if has_password {
        arguments.push("-E".into());
    }
    Some(arguments)
}
