//! How the state of a server is called, in one letter and in a word; and arguments that are words.

use ebb_types::ServerState;

/// A value that is given by its word in JSON, one of these.
#[cfg(feature = "lab")]
pub fn one_of<T: serde::de::DeserializeOwned + Clone + Send + Sync + 'static>(
    words: impl IntoIterator<Item = &'static str> + 'static,
) -> impl clap::builder::TypedValueParser<Value = T> {
    use clap::builder::{PossibleValuesParser, TypedValueParser};
    let value = |word: String| serde_json::from_value::<T>(word.into()).expect("each word is a value's");
    PossibleValuesParser::new(words).map(value)
}

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
