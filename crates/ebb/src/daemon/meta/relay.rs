//! What a member passes on between a client that does not reach the leader and the leader.

use crate::daemon::relay::{Guard, Way, Wire, call, pass, pass_both_ways};
use ebb_client::transport::{Frame, Receiver, Sender, kind};
use ebb_types::{MetaPush, MetaReply, MetaRequest};

const WIRE: Wire = Wire { up, down };

/// Returns when either end has ended, or has sent what is not passed on. `guard` is as old as the client's question.
pub async fn relay(way: Way, client: &Sender, requests: &mut Receiver, guard: &Guard) {
    if let Some(leader) = call(way).await {
        pass_both_ways(WIRE, client, requests, leader, guard).await;
    }
}

fn up(frame: &Frame, leader: &Sender) -> Option<()> {
    match frame.kind {
        kind::META_REQUEST => pass::<MetaRequest>(frame, leader),
        _ => None,
    }
}

fn down(frame: &Frame, client: &Sender) -> Option<()> {
    match frame.kind {
        kind::META_REPLY => pass::<MetaReply>(frame, client),
        kind::META_PUSH => pass::<MetaPush>(frame, client),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::relay::tests::pair;
    use bytes::Bytes;
    use ebb_client::Clock;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_to_be_passed_on_once_more_is_left() {
        let (client, mut asked) = pair().await;
        let (relayed, mut leader) = pair().await;
        let guard = Guard::new(Clock::simulated());
        client.sender.send(kind::META_RELAY, 0, &(), Bytes::new()).unwrap();
        pass_both_ways(WIRE, &asked.sender, &mut asked.receiver, relayed, &guard).await;
        assert!(!matches!(leader.receiver.next().await, Ok(Some(_))), "it is passed on");
    }
}
