//! What a server does with machines by the metadata leader's order: it puts its own to sleep, and sends the packet that
//! wakes a neighbour's.
//!
//! A machine is put to sleep by its own server, which alone knows whether it may: an order counts only for the run that
//! it names, once that is drained and flushed, and as long as the map has not had it awake since (R7). An order that
//! waited in a socket while the machine slept would put it to sleep again: so it is void a lease after the heartbeat
//! that it answers.

use ebb_power::OwnMachine;
use ebb_power::switch::{Mac, Magic, MagicTo, send_magic};
use ebb_types::{Depth, Moment};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Whether an order that answers a heartbeat sent at `heard` still counts.
pub fn is_fresh(now: Moment, heard: Moment, lease: Duration) -> bool {
    heard <= now && now.since(heard) <= lease
}

/// Whether the machine can sleep so deep and be woken again.
pub async fn check(own: &Arc<OwnMachine>, depth: Depth) -> Result<(), String> {
    blocking(own, move |own| own.check(depth)).await
}

/// Puts the machine to sleep; returns from a suspend when it is awake again.
pub async fn sleep(own: &Arc<OwnMachine>, depth: Depth) -> Result<(), String> {
    blocking(own, move |own| own.sleep(depth)).await
}

async fn blocking<E: std::error::Error + Send + 'static>(
    own: &Arc<OwnMachine>,
    work: impl FnOnce(&OwnMachine) -> Result<(), E> + Send + 'static,
) -> Result<(), String> {
    let (own, (done, outcome)) = (own.clone(), oneshot::channel());
    // Not one of the runtime's threads: that would wait for it when the process is told to end.
    let thread = std::thread::Builder::new().name("machine".into());
    // When the process ends, no task waits for the outcome any more.
    thread.spawn(move || drop(done.send(work(&own)))).map_err(|error| error.to_string())?;
    match outcome.await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(_) => Err("a bug in this program: the thread that does it ended without an answer".into()),
    }
}

/// Sends a magic packet.
pub fn send(mac: [u8; 6], to: &str) {
    match to.parse::<MagicTo>().map(|to| send_magic(&Magic { mac: Mac(mac), to })) {
        Ok(Ok(())) => tracing::info!("sent the magic packet that wakes {} to {to}", Mac(mac)),
        Ok(Err(error)) => tracing::warn!("{error}"),
        Err(error) => tracing::warn!("a magic packet: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_that_waited_while_the_machine_slept_is_void() {
        let (at, lease) = (|seconds: u64| Moment(seconds * 1_000_000_000), Duration::from_secs(3));
        assert!(is_fresh(at(10), at(9), lease) && is_fresh(at(10), at(7), lease));
        assert!(!is_fresh(at(10), at(6), lease), "it slept since");
        assert!(!is_fresh(at(10), at(11), lease), "from before a reboot");
    }

    #[test]
    fn a_process_that_is_told_to_end_does_not_wait_for_the_command_that_suspends() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let script = format!("echo $$ >{0}.new; mv {0}.new {0}; exec sleep 3600", file.display());
        let words = |script: &str| ["sh", "-c", script].map(str::to_owned).to_vec();
        let own = Arc::new(OwnMachine::new(words(&script), words("true"), Vec::new()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let pid = runtime.block_on(async {
            tokio::select! {
                ended = sleep(&own, Depth::Standby) => panic!("it lasts: {ended:?}"),
                pid = started(&file) => pid,
            }
        });
        drop(runtime);
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        let runs = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        assert!(
            runs.is_ok(),
            "the runtime waited for the command, until that was killed for taking too long"
        );
    }

    async fn started(file: &std::path::Path) -> i32 {
        loop {
            if let Ok(text) = std::fs::read_to_string(file) {
                return text.trim().parse().unwrap();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
