//! How the state of a server is called, in one letter and in a word.

use ebb_types::ServerState;

/// One letter per server.
pub fn letter(state: ServerState) -> char {
    match state {
        ServerState::Awake => 'A',
        ServerState::Draining => 'd',
        ServerState::Asleep => 'z',
        ServerState::Waking => 'w',
        ServerState::Failed => 'X',
        ServerState::Lost => 'L',
    }
}

pub fn word(state: ServerState) -> &'static str {
    match state {
        ServerState::Awake => "awake",
        ServerState::Draining => "draining",
        ServerState::Asleep => "asleep",
        ServerState::Waking => "waking",
        ServerState::Failed => "FAILED",
        ServerState::Lost => "lost",
    }
}
