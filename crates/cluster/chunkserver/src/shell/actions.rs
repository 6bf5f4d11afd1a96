//! How often the shell did what: each kind of event that it took, and each kind of command that it gave.

use super::api::{Command, Event};
use crate::common::api as core;

ebb_types::actions! {
    // Taken.
    Request "request"
    Message "message"
    Unread "unread"
    PeerLost "peer_lost"
    ScrubAll "scrub_all"
    Tick "tick"
    Stored "stored"
    Space "space"
    Beat "heartbeat"
    Push "push"
    Order "sleep_order"
    Checked "machine_checked"
    Suspended "machine_suspended"
    // Given.
    Send "send"
    Reply "reply"
    Store "store_command"
    Task "store_task"
    Tell "tell"
    Exam "exam"
    Timer "timer"
    Early "early_heartbeat"
    KeepScrubs "keep_scrubs"
    Check "check_machine"
    Suspend "suspend_machine"
    Refuse "refuse_sleep"
    Say "say"
    End "end"
}

// Each is a sample in every scrape of every server.
const _: () = assert!(NAMES.len() <= 32);

impl Actions {
    pub(crate) fn took(&mut self, event: &Event) {
        self.ran(match event {
            Event::Core(event) => of_core(event),
            Event::Stored { .. } => Action::Stored,
            Event::Space(_) => Action::Space,
            Event::Beat(_) => Action::Beat,
            Event::Push(_) => Action::Push,
            Event::Order(_) => Action::Order,
            Event::Checked { .. } => Action::Checked,
            Event::Suspended { .. } => Action::Suspended,
        });
    }

    pub(crate) fn gave(&mut self, command: &Command) {
        self.ran(match command {
            Command::Send { .. } => Action::Send,
            Command::Reply { .. } => Action::Reply,
            Command::Store { .. } => Action::Store,
            Command::Task { .. } => Action::Task,
            Command::Tell(_) => Action::Tell,
            Command::Exam { .. } => Action::Exam,
            Command::Tick => Action::Timer,
            Command::Heartbeat => Action::Early,
            Command::KeepScrubs { .. } => Action::KeepScrubs,
            Command::Check(_) => Action::Check,
            Command::Suspend(_) => Action::Suspend,
            Command::Refuse(_) => Action::Refuse,
            Command::Say(_) => Action::Say,
            Command::End(_) => Action::End,
        });
    }
}

fn of_core(event: &core::Event) -> Action {
    match event {
        core::Event::Client { .. } => Action::Request,
        core::Event::Peer { .. } => Action::Message,
        core::Event::Unread { .. } => Action::Unread,
        core::Event::PeerLost { .. } => Action::PeerLost,
        core::Event::ScrubAll => Action::ScrubAll,
        core::Event::Tick => Action::Tick,
        // The shell passes these on by itself: from a driver they count as what brings them.
        core::Event::Map(_)
        | core::Event::Lease { .. }
        | core::Event::Drain
        | core::Event::HandOver { .. } => Action::Push,
        core::Event::Stored { .. } | core::Event::NotDropped { .. } => Action::Stored,
        core::Event::Space { .. } => Action::Space,
        core::Event::Beat { .. } | core::Event::NoteCommits => Action::Beat,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_action_counts_under_a_name_of_its_own() {
        let mut actions = Actions::default();
        actions.took(&Event::Core(core::Event::Tick));
        actions.gave(&Command::Heartbeat);
        actions.gave(&Command::Heartbeat);
        let counted: Vec<_> = actions.counts().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("tick", 1), ("early_heartbeat", 2)]);
        assert_eq!(actions.counts().map(|(name, _)| name).collect::<BTreeSet<_>>().len(), NAMES.len());
    }
}
