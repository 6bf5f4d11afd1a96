//! Runs a program with a deadline, and for no longer than it is wanted.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Most output that is read from a program.
const MOST_OUTPUT: u64 = 1 << 20;
/// How often it is asked whether a program is still wanted.
const LOOK: Duration = Duration::from_millis(20);

/// Why a program did not do what it was run for.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    #[error("it could not be started: {0}")]
    Start(std::io::Error),
    #[error("it did not end within {timeout:?}")]
    Late { timeout: Duration },
    #[error("it was ended, because it is not wanted any more")]
    Unwanted,
    #[error("{0}")]
    Wait(std::io::Error),
    #[error("it ended with {status}: {said}")]
    Failed { status: ExitStatus, said: String },
}

/// Runs a program without input, and returns its output. At the timeout the program and all its children are killed.
pub fn run(command: Command, timeout: Duration) -> Result<String, ProgramError> {
    run_looking(command, timeout, timeout, &mut || true)
}

/// The same, and they are killed as soon as the program is not `wanted` any more. It has ended when this returns.
pub fn run_while(
    command: Command,
    timeout: Duration,
    mut wanted: impl FnMut() -> bool,
) -> Result<String, ProgramError> {
    run_looking(command, timeout, LOOK, &mut wanted)
}

fn run_looking(
    mut command: Command,
    timeout: Duration,
    look: Duration,
    wanted: &mut dyn FnMut() -> bool,
) -> Result<String, ProgramError> {
    if !wanted() {
        return Err(ProgramError::Unwanted);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(ProgramError::Start)?;
    let output = drain(child.stdout.take().expect("it is piped"));
    let errors = drain(child.stderr.take().expect("it is piped"));
    let deadline = Instant::now() + timeout;
    let mut patience = || {
        let left = deadline.saturating_duration_since(Instant::now());
        match (wanted(), left.is_zero()) {
            (false, _) => Err(ProgramError::Unwanted),
            (true, true) => Err(ProgramError::Late { timeout }),
            (true, false) => Ok(left.min(look)),
        }
    };
    let (output, errors, status) =
        ended(&mut child, (&output, &errors), &mut patience).inspect_err(|_| kill(&mut child))?;
    if !status.success() {
        let last = errors.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing");
        return Err(ProgramError::Failed { status, said: last.trim().to_owned() });
    }
    Ok(output)
}

/// How long to wait before the program is looked at again; an error ends it.
type Patience<'a> = dyn FnMut() -> Result<Duration, ProgramError> + 'a;

/// Waits for the end of a program: for what it says and complains, and for its status.
fn ended(
    child: &mut Child,
    (output, errors): (&Receiver<String>, &Receiver<String>),
    patience: &mut Patience<'_>,
) -> Result<(String, String, ExitStatus), ProgramError> {
    let (output, errors) = (text(output, patience)?, text(errors, patience)?);
    // Both pipes are closed, so it has ended, or will soon, or never.
    loop {
        if let Some(status) = child.try_wait().map_err(ProgramError::Wait)? {
            return Ok((output, errors, status));
        }
        patience()?;
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn text(pipe: &Receiver<String>, patience: &mut Patience<'_>) -> Result<String, ProgramError> {
    loop {
        match pipe.recv_timeout(patience()?) {
            Ok(text) => return Ok(text),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(ProgramError::Wait(std::io::Error::other("its output cannot be read")));
            }
        }
    }
}

/// Kills the program and all its children, and waits until it has ended.
fn kill(child: &mut Child) {
    if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
        // It may have ended by itself.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
    let _ = child.wait();
}

/// Reads a pipe to its end on a thread, so that a command that fills both of its pipes does not block.
fn drain(mut pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (send, receive) = channel();
    std::thread::spawn(move || {
        let mut text = Vec::new();
        let read = (&mut pipe).take(MOST_OUTPUT).read_to_end(&mut text);
        if read.is_ok() && std::io::copy(&mut pipe, &mut std::io::sink()).is_ok() {
            // The receiver may have given up.
            let _ = send.send(String::from_utf8_lossy(&text).into_owned());
        }
    });
    receive
}
