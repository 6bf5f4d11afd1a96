//! Runs a program with a deadline.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Most output that is read from a program.
const MOST_OUTPUT: u64 = 1 << 20;

/// Why a program did not do what it was run for.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("it could not be started: {0}")]
    Start(std::io::Error),
    #[error("it did not end within {timeout:?}")]
    Late { timeout: Duration },
    #[error("{0}")]
    Wait(std::io::Error),
    #[error("it ended with {status}: {said}")]
    Failed { status: ExitStatus, said: String },
}

/// Runs a program without input, and returns its output. At the timeout the program and all its children are killed.
pub fn run(mut command: Command, timeout: Duration) -> Result<String, ProgramError> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(ProgramError::Start)?;
    let output = drain(child.stdout.take().expect("it is piped"));
    let errors = drain(child.stderr.take().expect("it is piped"));
    let deadline = Instant::now() + timeout;
    let left = || deadline.saturating_duration_since(Instant::now());
    let texts = output.recv_timeout(left()).ok().zip(errors.recv_timeout(left()).ok());
    let late = |child: &mut Child| {
        kill_group(child);
        let _ = child.wait();
        ProgramError::Late { timeout }
    };
    let Some((output, errors)) = texts else { return Err(late(&mut child)) };
    let status = ended(&mut child, deadline).map_err(ProgramError::Wait)?;
    let Some(status) = status else { return Err(late(&mut child)) };
    if !status.success() {
        let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        return Err(ProgramError::Failed { status, said: last.trim().to_owned() });
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
