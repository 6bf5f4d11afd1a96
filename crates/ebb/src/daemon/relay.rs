//! Passes a client's requests on to a process that it does not reach, and back what that one says.
//!
//! The other process is called as the client's own party, so it grants what it would grant the client itself. Each
//! service says which kinds of frames go up and come down ([`Wire`]); any other ends both connections, so nothing is
//! passed on twice. The end of one is the end of the other, and the client looks for another way.
//!
//! Bounded (R12): a frame is read only when there is room in the queue to the other end, and TCP makes the sender wait.
//!
//! Invariant (R16): a process that stood still passes nothing on. What arrived meanwhile is old: its client has given
//! it up and gone on, and the other process, which ran all the time, would carry it out after what is newer.

use crate::daemon::heap;
use ebb_client::transport::{Connection, Frame, Identity, Receiver, Sender, connect};
use ebb_client::{Clock, Secret};
use ebb_types::Moment;
use serde::{Serialize, de::DeserializeOwned};
use std::cell::Cell;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Who takes longer to answer a call is not reached from here, either. The client waits for twice as long.
const DIAL: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(500);
/// A process that has not looked at the clock for this long stood still.
const STILL: Duration = Duration::from_secs(2);

/// Whom to call, and as whom.
pub struct Way {
    pub address: String,
    pub secret: Secret,
    pub own: Identity,
}

/// Passes a frame on. `None`: the other end takes no more, or this is not passed on.
pub type Pass = fn(&Frame, &Sender) -> Option<()>;

#[derive(Clone, Copy)]
pub struct Wire {
    pub up: Pass,
    pub down: Pass,
}

/// Calls the other process for a client.
pub async fn call(Way { address, secret, own }: Way) -> Option<Connection> {
    match timeout(DIAL, connect(&address, &secret, own)).await {
        Ok(Ok(other)) => return Some(other),
        Ok(Err(error)) => tracing::debug!("a client is not passed on: {error}"),
        Err(_) => tracing::debug!("a client is not passed on: {address} took longer than {DIAL:?}"),
    }
    None
}

/// Returns when either end has ended, or has sent what is not passed on. `guard` is as old as the client's question.
pub async fn pass_both_ways(
    wire: Wire,
    client: &Sender,
    requests: &mut Receiver,
    other: Connection,
    guard: &Guard,
) {
    let Connection { sender, mut receiver, .. } = other;
    tokio::select! {
        _ = pass_up(wire.up, requests, &sender, guard) => {}
        _ = pass_down(wire.down, &mut receiver, client) => {}
        () = guard.watch() => {}
    }
}

async fn pass_up(up: Pass, requests: &mut Receiver, other: &Sender, guard: &Guard) -> Option<()> {
    loop {
        other.room().await;
        let frame = requests.next().await.ok()??;
        if !guard.ran_on() {
            return None;
        }
        up(&frame, other)?;
    }
}

async fn pass_down(down: Pass, answers: &mut Receiver, client: &Sender) -> Option<()> {
    loop {
        client.room().await;
        let frame = answers.next().await.ok()??;
        down(&frame, client)?;
    }
}

/// Passes on a frame whose message is a `T`.
pub fn pass<T: Serialize + DeserializeOwned>(frame: &Frame, to: &Sender) -> Option<()> {
    heap::used();
    let (id, message) = frame.decode::<T>().ok()?;
    to.send(frame.kind, id, &message, frame.payload.clone()).ok()
}

/// Notices that this process stood still, or its machine.
pub struct Guard {
    clock: Clock,
    /// When it last looked.
    seen: Cell<Moment>,
}

impl Guard {
    pub fn new(clock: Clock) -> Guard {
        let seen = Cell::new(clock.now());
        Guard { clock, seen }
    }

    /// Whether it did not stand still since the last look. Each look ends the relay if it did, so that none hides it
    /// from the other.
    fn ran_on(&self) -> bool {
        let now = self.clock.now();
        now.since(self.seen.replace(now)) <= STILL
    }

    /// Returns once it stood still.
    async fn watch(&self) {
        while self.ran_on() {
            sleep(LOOK).await;
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use bytes::Bytes;
    use ebb_client::transport::{Listener, Party};

    const KIND: u8 = 2;
    const NUMBERS: Wire = Wire { up: pass::<u64>, down: pass::<u64> };

    /// A caller's end of a connection, and the other one.
    pub async fn pair() -> (Connection, Connection) {
        let secret = Secret::from_bytes(b"a secret of the tests").unwrap();
        let identity = |party| Identity { cluster: 7, party };
        let listener = Listener::bind("127.0.0.1:0", &secret, identity(Party::Meta)).await.unwrap();
        let address = listener.address().unwrap().to_string();
        let called = async { listener.accept().await.handshake().await.unwrap() };
        let (caller, called) = tokio::join!(connect(&address, &secret, identity(Party::Client)), called);
        (caller.unwrap(), called)
    }

    #[tokio::test(start_paused = true)]
    async fn what_came_while_the_process_stood_still_is_not_passed_on() {
        let (mut client, mut asked) = pair().await;
        let (relayed, mut other) = pair().await;
        let clock = Clock::simulated();
        let guard = Guard::new(clock.clone());
        let talk = async {
            for id in [7, 8] {
                client.sender.send(KIND, id, &5u64, Bytes::from_static(b"up")).unwrap();
                let frame = other.receiver.next().await.unwrap().unwrap();
                assert_eq!((frame.decode::<u64>().unwrap(), &frame.payload[..]), ((id, 5), &b"up"[..]));
                other.sender.send(KIND, id, &6u64, Bytes::from_static(b"down")).unwrap();
                let frame = client.receiver.next().await.unwrap().unwrap();
                assert_eq!((frame.decode::<u64>().unwrap(), &frame.payload[..]), ((id, 6), &b"down"[..]));
                // It has nothing to do, and runs.
                sleep(10 * STILL).await;
            }
            clock.suspend(STILL + LOOK);
            client.sender.send(KIND, 9, &5u64, Bytes::new()).unwrap();
            assert!(!matches!(other.receiver.next().await, Ok(Some(_))), "it came late");
        };
        tokio::join!(pass_both_ways(NUMBERS, &asked.sender, &mut asked.receiver, relayed, &guard), talk);
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_one_connection_is_the_end_of_the_other() {
        for client_ends in [true, false] {
            let (client, mut asked) = pair().await;
            let (relayed, mut other) = pair().await;
            let guard = Guard::new(Clock::simulated());
            let ends = if client_ends { &client.sender } else { &other.sender };
            ends.close();
            pass_both_ways(NUMBERS, &asked.sender, &mut asked.receiver, relayed, &guard).await;
            assert!(!matches!(other.receiver.next().await, Ok(Some(_))));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_makes_the_other_end_wait() {
        const FRAME: usize = 1 << 20;
        let (_client, mut asked) = pair().await;
        let (relayed, other) = pair().await;
        let guard = Guard::new(Clock::simulated());
        let flood = async {
            while timeout(STILL, other.sender.room()).await.is_ok() {
                other.sender.send(KIND, 1, &6u64, vec![0; FRAME].into()).unwrap();
            }
        };
        let client = asked.sender.clone();
        tokio::select! {
            () = pass_both_ways(NUMBERS, &client, &mut asked.receiver, relayed, &guard) => panic!("it ended"),
            () = flood => {}
        }
        assert!(client.queued_bytes() <= 10 * FRAME, "{} bytes wait in it", client.queued_bytes());
    }
}
