//! What comes out depends on the bytes alone, not on how they were divided.

use super::client::*;
use super::*;
use ebb_types::Random;

/// A client's whole side of a conversation: options, accepted and refused requests with payloads, and the end.
pub fn conversation(structured: bool) -> Vec<u8> {
    let mut says = vec![Say::Flags(3), Say::Option(3, b""), Say::Option(99, b"what?")];
    if structured {
        says.push(Say::Option(8, b""));
        says.push(Say::Contexts { set: true, name: "", queries: &["base:allocation"] });
    }
    says.extend([
        Say::Info { go: false, name: "none", kinds: &[] },
        Say::Info { go: true, name: "disk", kinds: &[1, 2, 3] },
        request(READ, 0, 1, 0, 1024),
        request(WRITE, 0, 2, 512, 512),
        request(WRITE, NO_HOLE, 3, 512, 512),
        request(TRIM, FUA, 4, 0, 1 << 20),
        request(WRITE, FUA, 5, 1 << 20, 512),
        request(BLOCK_STATUS, 0, 6, 0, 512),
        request(FLUSH, 0, 7, 0, 0),
        request(DISC, 0, 0, 0, 0),
        request(FLUSH, 0, 8, 0, 0),
    ]);
    says.iter().flat_map(Say::bytes).collect()
}

/// What comes out if the input comes in these parts, and how much of it is left. All requests are answered at the end.
fn outputs<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Output>, usize) {
    let (mut session, _) = Session::new(exports());
    let (mut input, mut out) = (BytesMut::new(), Vec::new());
    for part in parts {
        input.extend_from_slice(part);
        session.on_bytes(&mut input, &mut out);
    }
    answer_all(&mut session, &mut out);
    (out, input.len())
}

pub fn answer_all(session: &mut Session, out: &mut Vec<Output>) {
    let requests = out.iter().filter_map(|output| match output {
        Output::Request { id, request } => Some((*id, plain_reply(request))),
        _ => None,
    });
    for (id, reply) in requests.collect::<Vec<_>>() {
        session.reply(id, reply, out);
    }
}

#[test]
fn the_same_bytes_give_the_same_outputs_wherever_they_are_cut() {
    for structured in [false, true] {
        let bytes = conversation(structured);
        let whole = outputs([&bytes[..]]);
        assert!(whole.0.contains(&Output::Close(CloseReason::Disconnected)));
        assert_eq!(whole.1, 28, "what follows a goodbye is not taken");
        for cut in 0..=bytes.len() {
            assert_eq!(outputs([&bytes[..cut], &bytes[cut..]]), whole, "cut at {cut}");
        }
        assert_eq!(outputs(bytes.chunks(1)), whole, "byte by byte");
        let mut random = Random::new(1);
        for _ in 0..200 {
            let mut cuts: Vec<usize> = (0..random.index(9)).map(|_| random.index(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort();
            assert_eq!(outputs(cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]])), whole, "cut at {cuts:?}");
        }
    }
}

/// A driver that reads no more than it is told to gets everything, and each read gets it further or tells it more.
#[test]
fn what_is_wanted_is_enough_and_never_too_much() {
    let bytes = conversation(true);
    let (mut session, _) = Session::new(exports());
    let (mut input, mut out, mut at) = (BytesMut::new(), Vec::new(), 0);
    session.on_bytes(&mut input, &mut out);
    loop {
        let wanted = session.wants(input.len());
        if wanted == 0 {
            break;
        }
        input.extend_from_slice(&bytes[at..at + wanted]);
        at += wanted;
        session.on_bytes(&mut input, &mut out);
        assert!(input.len() <= 28, "only the head of a write waits for its payload");
    }
    assert_eq!(at, bytes.len() - 28, "all but what follows the goodbye");
    answer_all(&mut session, &mut out);
    assert_eq!(out, outputs([&bytes[..]]).0);
}

/// A payload is the memory of the input that it came in.
#[test]
fn payloads_are_not_copied() {
    let mut peer = Peer::open("disk", true);
    let say = request(WRITE, 0, 1, 0, LONGEST).bytes();
    peer.input = BytesMut::from(&say[..]);
    let came_in = peer.input[28..].as_ptr();
    peer.receives(&[]);
    let (id, Request::Write { payload, .. }) = &peer.requests[0] else { panic!("{:?}", peer.requests) };
    assert_eq!((*id, payload.as_ptr(), payload.len()), (0, came_in, LONGEST as usize));

    peer.says(&request(READ, 0, 2, 0, 512));
    let found = Bytes::from(vec![1; 512]);
    let mut out = Vec::new();
    peer.session.reply(1, Reply::Data(vec![ebb_nbd::Piece::Data(found.clone())]), &mut out);
    let Output::Send(sent) = &out[1] else { panic!("{out:?}") };
    assert_eq!(sent.as_ptr(), found.as_ptr());
}
