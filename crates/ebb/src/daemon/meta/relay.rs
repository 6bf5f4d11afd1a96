//! Passes a client's requests on to the leader, and back what it says: for a client that reaches this member, and not
//! the leader.
//!
//! The leader is called as the client's own party, so it grants what it would grant the client itself. Only requests go
//! up, and only answers and pushes come down; anything else ends both connections, so nothing is passed on twice. The
//! end of one is the end of the other, and the client looks for the leader again.
//!
//! Invariant (R16): a process that stood still passes nothing on. What arrived meanwhile is old: its client has given
//! it up and gone on, and the leader, which ran all the time, would carry it out after what is newer.

use crate::daemon::heap;
use bytes::Bytes;
use ebb_client::transport::{Connection, Frame, Identity, Receiver, Sender, connect, kind};
use ebb_client::{Clock, Secret};
use ebb_types::{MetaPush, MetaReply, MetaRequest, Moment};
use serde::{Serialize, de::DeserializeOwned};
use std::cell::Cell;
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// A leader that takes longer to answer a call is not reached from here, either. The client waits for twice as long.
const DIAL: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(500);
/// A process that has not looked at the clock for this long stood still.
const STILL: Duration = Duration::from_secs(2);

/// Returns when either end has ended, or has sent what is not passed on.
pub async fn relay(
    (address, secret, own): (String, Secret, Identity),
    client: &Sender,
    requests: &mut Receiver,
) {
    let guard = Guard::new(Clock::new());
    match timeout(DIAL, connect(&address, &secret, own)).await {
        Ok(Ok(leader)) => pass_both_ways(client, requests, leader, &guard).await,
        Ok(Err(error)) => tracing::debug!("a client is not passed on to the leader: {error}"),
        Err(_) => {
            tracing::debug!("a client is not passed on to the leader: {address} took longer than {DIAL:?}");
        }
    }
}

async fn pass_both_ways(client: &Sender, requests: &mut Receiver, leader: Connection, guard: &Guard) {
    let Connection { sender, mut receiver, .. } = leader;
    tokio::select! {
        _ = pass_up(requests, &sender, guard) => {}
        _ = pass_down(&mut receiver, client) => {}
        () = guard.watch() => {}
    }
}

async fn pass_up(requests: &mut Receiver, leader: &Sender, guard: &Guard) -> Option<()> {
    loop {
        leader.room().await;
        let frame = requests.next().await.ok()??;
        if frame.kind != kind::META_REQUEST || !guard.ran_on() {
            return None;
        }
        pass::<MetaRequest>(&frame, leader)?;
    }
}

async fn pass_down(answers: &mut Receiver, client: &Sender) -> Option<()> {
    loop {
        client.room().await;
        let frame = answers.next().await.ok()??;
        match frame.kind {
            kind::META_REPLY => pass::<MetaReply>(&frame, client)?,
            kind::META_PUSH => pass::<MetaPush>(&frame, client)?,
            _ => return None,
        }
    }
}

fn pass<T: Serialize + DeserializeOwned>(frame: &Frame, to: &Sender) -> Option<()> {
    heap::used();
    let (id, message) = frame.decode::<T>().ok()?;
    to.send(frame.kind, id, &message, Bytes::new()).ok()
}

/// Notices that this process stood still, or its machine.
struct Guard {
    clock: Clock,
    /// When it last looked.
    seen: Cell<Moment>,
}

impl Guard {
    fn new(clock: Clock) -> Guard {
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
mod tests {
    use super::*;
    use ebb_client::transport::{Listener, Party};

    /// A caller's end of a connection to a member, and the member's.
    async fn pair() -> (Connection, Connection) {
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
        let (relayed, mut leader) = pair().await;
        let clock = Clock::simulated();
        let guard = Guard::new(clock.clone());
        let question = MetaRequest::Watch { map_version: 5 };
        let answer = MetaReply::NotLeader { leader: None };
        let talk = async {
            for id in [7, 8] {
                client.sender.send(kind::META_REQUEST, id, &question, Bytes::new()).unwrap();
                let frame = leader.receiver.next().await.unwrap().unwrap();
                assert_eq!(frame.decode::<MetaRequest>().unwrap(), (id, question.clone()));
                leader.sender.send(kind::META_REPLY, id, &answer, Bytes::new()).unwrap();
                let frame = client.receiver.next().await.unwrap().unwrap();
                assert_eq!(frame.decode::<MetaReply>().unwrap(), (id, answer.clone()));
                // It has nothing to do, and runs.
                sleep(10 * STILL).await;
            }
            clock.suspend(STILL + LOOK);
            client.sender.send(kind::META_REQUEST, 9, &question, Bytes::new()).unwrap();
            assert!(!matches!(leader.receiver.next().await, Ok(Some(_))), "it came late");
        };
        tokio::join!(pass_both_ways(&asked.sender, &mut asked.receiver, relayed, &guard), talk);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_to_be_passed_on_once_more_is_left() {
        let (client, mut asked) = pair().await;
        let (relayed, mut leader) = pair().await;
        let guard = Guard::new(Clock::simulated());
        client.sender.send(kind::META_RELAY, 0, &(), Bytes::new()).unwrap();
        pass_both_ways(&asked.sender, &mut asked.receiver, relayed, &guard).await;
        assert!(!matches!(leader.receiver.next().await, Ok(Some(_))), "it is passed on");
    }
}
