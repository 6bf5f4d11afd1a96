//! How often a member did what: each kind of input that it took, and each kind of outcome that it gave.

use crate::{Input, Outcome};
use ebb_types::ServerMessage;

ebb_types::actions! {
    // Taken.
    Raft "raft"
    Heartbeat "heartbeat"
    Reports "reports"
    Ready "ready_to_sleep"
    Exam "exam"
    Recalls "recalls"
    Refuses "sleep_refusal"
    Request "request"
    Switched "switched"
    // Given.
    SendRaft "send_raft"
    Push "push"
    Reply "reply"
    Map "push_map"
    Order "sleep_order"
    Switch "switch"
    Magic "magic_packet"
    Notice "notice"
    Broken "broken_rule"
    Bug "bug"
}

// Each is a sample in every scrape of every member.
const _: () = assert!(NAMES.len() <= 32);

impl Actions {
    pub(crate) fn took(&mut self, input: &Input) {
        self.ran(match input {
            Input::Raft { .. } => Action::Raft,
            Input::Server(ServerMessage::Heartbeat { .. }) => Action::Heartbeat,
            Input::Server(ServerMessage::Reports { .. }) => Action::Reports,
            Input::Server(ServerMessage::ReadyToSleep { .. }) => Action::Ready,
            Input::Server(ServerMessage::Exam { .. }) => Action::Exam,
            Input::Server(ServerMessage::Recalls { .. }) => Action::Recalls,
            Input::Refuses { .. } => Action::Refuses,
            Input::Client { .. } => Action::Request,
            Input::Switched { .. } => Action::Switched,
        });
    }

    pub(crate) fn gave(&mut self, outcome: &Outcome) {
        self.ran(match outcome {
            Outcome::SendRaft { .. } => Action::SendRaft,
            Outcome::Push { .. } => Action::Push,
            Outcome::Reply { .. } => Action::Reply,
            Outcome::Map { .. } => Action::Map,
            Outcome::Order { .. } => Action::Order,
            Outcome::Switch { .. } => Action::Switch,
            Outcome::Magic { .. } => Action::Magic,
            Outcome::Notice(_) => Action::Notice,
            Outcome::Broken(_) => Action::Broken,
            Outcome::Bug(_) => Action::Bug,
        });
    }
}
