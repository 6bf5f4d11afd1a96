//! What a server does with machines by the metadata leader's order: it puts its own to sleep, and sends the packet that
//! wakes a neighbour's.
//!
//! A machine is put to sleep by its own server, which alone knows whether it may: an order counts only for the run that
//! it names, once that is drained and flushed, and as long as nothing counts on it again (R7). An order that is older
//! than what the server knows is void ([`ebb_types::SleepOrder::counts`]).

use ebb_power::OwnMachine;
use ebb_power::switch::{Mac, Magic, MagicTo, send_magic};
use ebb_types::Depth;
use std::sync::Arc;
use tokio::sync::oneshot;

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
    use std::time::Duration;

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
