//! The handshake: both sides prove that they know the key of the caller's party, and state their cluster, party and
//! wire version. A caller without the key of a party cannot claim to be one.
//!
//! Four messages of fixed size, so that nothing is allocated for a stranger: hello, hello, proof, verdict
//! with proof. A proof is an HMAC-SHA256 over both hellos; each has a fresh nonce, so that a recorded
//! handshake proves nothing later, and a label distinguishes the two directions, so that a proof cannot be
//! reflected to its maker. The called side proves last, so that a stranger who calls gets nothing to guess the
//! secret from. `docs/wire.md` draws the bytes.

use crate::error::TransportError;
use crate::secret::{Key, Secret, random};
use ebb_types::ServerId;
use ebb_types::frame::{MAGIC, WIRE_VERSION};
use hmac::Mac;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Time limit for connecting and for the handshake. A stopped process's kernel still accepts connections, so
/// only this ends the wait.
pub const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(5);

const HELLO_BYTES: usize = 48;
const PROOF_BYTES: usize = 32;
const NONCE_BYTES: usize = 32;
// Magic, version, party, server, cluster, nonce (`docs/wire.md`).
const _: () = assert!(HELLO_BYTES == MAGIC.len() + 1 + 1 + 2 + 8 + NONCE_BYTES);

/// What one side of a connection claims to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    Client,
    Server(ServerId),
    Meta,
    /// A client that may also change the cluster.
    Admin,
}

impl Party {
    fn key(self) -> Key {
        match self {
            Party::Client => Key::Client,
            Party::Server(_) => Key::Server,
            Party::Meta => Key::Meta,
            Party::Admin => Key::Admin,
        }
    }
}

/// Identity of one side of a connection. `cluster` zero: not known yet; accepts that of the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub cluster: u64,
    pub party: Party,
}

/// The called side's final answer.
#[derive(Clone, Copy)]
enum Verdict {
    Welcome = 0,
    WrongSecret = 1,
    WrongCluster = 2,
    /// The called side has no key for callers of this kind.
    NoKey = 3,
}

/// The calling side. Returns the other side's identity.
pub(crate) async fn call(
    stream: &mut TcpStream,
    own: Identity,
    secret: &Secret,
) -> Result<Identity, TransportError> {
    let key = own.party.key();
    let mine = hello(own);
    let mac =
        |label, theirs: &[u8]| secret.mac(key, &[label, &mine, theirs]).ok_or(TransportError::NoKey { key });
    mac(b"ebb caller", &[])?;
    stream.write_all(&mine).await.map_err(broken)?;
    let mut theirs = [0; HELLO_BYTES];
    stream.read_exact(&mut theirs).await.map_err(broken)?;
    let other = parse_hello(&theirs)?;
    let proof = mac(b"ebb caller", &theirs)?.finalize().into_bytes();
    stream.write_all(&proof).await.map_err(broken)?;
    let mut answer = [0; 1 + PROOF_BYTES];
    stream.read_exact(&mut answer).await.map_err(broken)?;
    match answer[0] {
        v if v == Verdict::Welcome as u8 => {}
        v if v == Verdict::WrongCluster as u8 => {
            return Err(TransportError::WrongCluster { own: own.cluster, other: other.cluster });
        }
        v if v == Verdict::NoKey as u8 => return Err(TransportError::RoleRefused { key }),
        _ => return Err(TransportError::WrongSecret),
    }
    let expected = mac(b"ebb called", &theirs)?;
    expected.verify_slice(&answer[1..]).map_err(|_| TransportError::WrongSecret)?;
    same_cluster(own, other)?;
    Ok(other)
}

/// The called side. Returns the caller's identity.
pub(crate) async fn answer(
    stream: &mut TcpStream,
    own: Identity,
    secret: &Secret,
) -> Result<Identity, TransportError> {
    let mut theirs = [0; HELLO_BYTES];
    stream.read_exact(&mut theirs).await.map_err(broken)?;
    let other = match parse_hello(&theirs) {
        // Another release cannot finish the handshake; it learns our version from the hello.
        Err(error @ TransportError::WireVersion { .. }) => {
            stream.write_all(&hello(own)).await.map_err(broken)?;
            return Err(error);
        }
        parsed => parsed?,
    };
    let mine = hello(own);
    stream.write_all(&mine).await.map_err(broken)?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof).await.map_err(broken)?;
    let key = other.party.key();
    let known = match secret.mac(key, &[b"ebb caller", &theirs, &mine]) {
        None => Err(TransportError::NoKey { key }),
        Some(mac) => mac.verify_slice(&proof).map_err(|_| TransportError::WrongSecret),
    };
    let own_proof = known.is_ok().then(|| secret.mac(key, &[b"ebb called", &theirs, &mine])).flatten();
    let outcome = known.and_then(|()| same_cluster(own, other));
    let verdict = match &outcome {
        Ok(()) => Verdict::Welcome,
        Err(TransportError::WrongCluster { .. }) => Verdict::WrongCluster,
        Err(TransportError::NoKey { .. }) => Verdict::NoKey,
        Err(_) => Verdict::WrongSecret,
    };
    let mut last = [0; 1 + PROOF_BYTES];
    last[0] = verdict as u8;
    if let Some(proof) = own_proof {
        last[1..].copy_from_slice(&proof.finalize().into_bytes());
    }
    stream.write_all(&last).await.map_err(broken)?;
    outcome.map(|()| other)
}

fn broken(error: std::io::Error) -> TransportError {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        return TransportError::HandshakeCut;
    }
    TransportError::Io(error)
}

fn same_cluster(own: Identity, other: Identity) -> Result<(), TransportError> {
    if own.cluster != 0 && other.cluster != 0 && own.cluster != other.cluster {
        return Err(TransportError::WrongCluster { own: own.cluster, other: other.cluster });
    }
    Ok(())
}

fn hello(own: Identity) -> [u8; HELLO_BYTES] {
    let (party, server) = match own.party {
        Party::Client => (0, 0),
        Party::Server(id) => (1, id.0),
        Party::Meta => (2, 0),
        Party::Admin => (3, 0),
    };
    let mut out = [0; HELLO_BYTES];
    out[..4].copy_from_slice(&MAGIC);
    out[4] = WIRE_VERSION;
    out[5] = party;
    out[6..8].copy_from_slice(&server.to_le_bytes());
    out[8..16].copy_from_slice(&own.cluster.to_le_bytes());
    out[16..].copy_from_slice(&random::<NONCE_BYTES>());
    out
}

fn parse_hello(bytes: &[u8; HELLO_BYTES]) -> Result<Identity, TransportError> {
    if bytes[..4] != MAGIC {
        return Err(TransportError::NotEbb);
    }
    if bytes[4] != WIRE_VERSION {
        return Err(TransportError::WireVersion { found: bytes[4] });
    }
    let server = ServerId(u16::from_le_bytes([bytes[6], bytes[7]]));
    let party = match bytes[5] {
        0 => Party::Client,
        1 => Party::Server(server),
        2 => Party::Meta,
        3 => Party::Admin,
        _ => return Err(TransportError::NotEbb),
    };
    Ok(Identity { cluster: u64::from_le_bytes(bytes[8..16].try_into().expect("eight bytes")), party })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_hellos_are_refused_or_read() {
        let samples = [Party::Client, Party::Server(ServerId(7)), Party::Meta, Party::Admin]
            .map(|party| hello(Identity { cluster: 9, party }));
        let samples: Vec<&[u8]> = samples.iter().map(|hello| &hello[..]).collect();
        ebb_testing::fuzz(&samples, |bytes| {
            let Some(bytes) = bytes.first_chunk() else { return };
            if let Ok(Identity { cluster, party }) = parse_hello(bytes) {
                let again = hello(Identity { cluster, party });
                assert!(again[..6] == bytes[..6] && again[8..16] == bytes[8..16], "another than said");
            }
        });
    }
}
