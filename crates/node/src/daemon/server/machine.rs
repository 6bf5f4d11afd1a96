//! What a server does with machines by the metadata leader's order: it puts its own to sleep, and sends the packet that wakes a
//! neighbour's.
//!
//! A machine is put to sleep by its own server, which alone knows whether it may: an order counts only for the run that it
//! names, once that is drained and flushed, and as long as the map has not had it awake since (R7). An order that waited in a
//! socket while the machine slept would put it to sleep again: so it is void a lease after the heartbeat that it answers.

use ebb_power::OwnMachine;
use ebb_power::switch::{Mac, Magic, send_magic};
use ebb_types::{Depth, Moment};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;

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
    let own = own.clone();
    match spawn_blocking(move || work(&own)).await {
        Ok(done) => done.map_err(|error| error.to_string()),
        Err(panicked) => Err(panicked.to_string()),
    }
}

/// Sends a magic packet.
pub fn send(mac: [u8; 6], to: &str) {
    match to.parse().map(|to| send_magic(&Magic { mac: Mac(mac), to })) {
        Ok(Ok(())) => tracing::info!("sent the magic packet that wakes {} to {to}", Mac(mac)),
        Ok(Err(error)) => tracing::warn!("{error}"),
        Err(error) => tracing::warn!("{to:?} is no address for a magic packet: {error}"),
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
}
