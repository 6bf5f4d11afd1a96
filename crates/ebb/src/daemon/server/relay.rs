//! What a chunk server passes on between a client and another chunk server that the client does not reach.

use super::driver::{Handle, Input};
use crate::daemon::relay::{Guard, Wire, call, pass, pass_both_ways};
use bytes::Bytes;
use ebb_client::Clock;
use ebb_client::transport::{Frame, Party, Receiver, Sender, kind};
use ebb_types::frame::FrameError;
use ebb_types::{ClientReply, ClientRequest, ServerId};

const WIRE: Wire = Wire { up, down };

/// Does what the first frame of a connection asks for. Returns when either end has ended, or has sent what is not
/// passed on.
pub async fn relay(
    shared: &Handle,
    party: Party,
    asked: &Frame,
    client: &Sender,
    requests: &mut Receiver,
) -> Result<(), FrameError> {
    let (_, to) = asked.decode::<ServerId>()?;
    let guard = Guard::new(Clock::new());
    let Some(way) = shared.queue.ask(|answer| Input::Relay { party, to, answer }).await else {
        tracing::debug!("{party:?} is not passed on to {to}");
        return Ok(());
    };
    let Ok(_turn) = shared.flow.relays.try_acquire() else {
        // That says nothing of the other server. The client ends the connection when it has read it.
        let _ = client.send(kind::CHUNK_RELAY, 0, &shared.about.me, Bytes::new());
        let _ = requests.next().await;
        return Ok(());
    };
    let Some(server) = call(way).await else { return Ok(()) };
    let is_right = server.peer.party == Party::Server(to);
    if is_right && client.send(kind::CHUNK_RELAY, 0, &to, Bytes::new()).is_ok() {
        pass_both_ways(WIRE, client, requests, server, &guard).await;
    }
    Ok(())
}

fn up(frame: &Frame, server: &Sender) -> Option<()> {
    match frame.kind {
        kind::CLIENT_REQUEST => pass::<ClientRequest>(frame, server),
        _ => None,
    }
}

fn down(frame: &Frame, client: &Sender) -> Option<()> {
    match frame.kind {
        kind::CLIENT_REPLY => pass::<ClientReply>(frame, client),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::relay::tests::pair;
    use ebb_types::{ChunkId, ChunkOp, Epoch, GroupId, RequestId, Version, piece_crcs};

    #[tokio::test(start_paused = true)]
    async fn requests_go_up_with_their_bytes_and_nobody_is_passed_on_twice() {
        let (mut client, mut asked) = pair().await;
        let (relayed, mut server) = pair().await;
        let guard = Guard::new(Clock::simulated());
        let request = RequestId { client: 3, seq: 9 };
        let crcs = piece_crcs(0, b"abc");
        let op = ChunkOp::Write { chunk: ChunkId::default(), offset: 0, len: 3, request, crcs };
        let message =
            ClientRequest { group: GroupId(4), epoch: Epoch(2), since: Version::ZERO, claim: 5, op };
        let talk = async {
            client.sender.send(kind::CLIENT_REQUEST, 7, &message, Bytes::from_static(b"abc")).unwrap();
            let frame = server.receiver.next().await.unwrap().unwrap();
            assert_eq!(frame.decode::<ClientRequest>().unwrap(), (7, message.clone()));
            assert_eq!((frame.kind, &frame.payload[..]), (kind::CLIENT_REQUEST, &b"abc"[..]));
            let reply = ClientReply::Data { crcs: piece_crcs(0, b"def") };
            server.sender.send(kind::CLIENT_REPLY, 7, &reply, Bytes::from_static(b"def")).unwrap();
            let frame = client.receiver.next().await.unwrap().unwrap();
            assert_eq!(frame.decode::<ClientReply>().unwrap(), (7, reply));
            assert_eq!((frame.kind, &frame.payload[..]), (kind::CLIENT_REPLY, &b"def"[..]));
            client.sender.send(kind::CHUNK_RELAY, 0, &ServerId(1), Bytes::new()).unwrap();
            assert!(!matches!(server.receiver.next().await, Ok(Some(_))), "it is passed on");
        };
        tokio::join!(pass_both_ways(WIRE, &asked.sender, &mut asked.receiver, relayed, &guard), talk);
    }
}
