//! What the controller hears and says.

use crate::{Command, NewPool, SwitchAction, Token};
use ebb_types::{AdminRequest, Bug, MetaPush, MetaReply, Notice, ServerId, ServerMessage, SetId};

#[derive(Clone, Debug)]
pub enum Event {
    /// This member leads, and its state includes everything that earlier leaders committed. `unix_millis`: time of day
    /// now.
    BecameLeader {
        unix_millis: u64,
    },
    LostLeadership,
    Server(ServerMessage),
    /// Commands were applied. `own`: the controller's batch was among them.
    Applied {
        own: bool,
    },
    /// The controller's batch was not applied, and some time has passed since.
    Refused,
    Switched {
        server: ServerId,
        action: SwitchAction,
        result: Result<(), String>,
    },
    Admin {
        token: Token,
        request: AdminRequest,
    },
    /// An administrator adds a pool.
    CreatePool {
        token: Token,
        pool: NewPool,
    },
    /// A client needs a set that hibernates.
    Wake {
        token: Token,
        set: SetId,
    },
    /// Everything that arrived together has been delivered, or `Controller::next_wake` is reached: decide.
    Tick,
}

impl Event {
    /// Who waits for an answer.
    pub(crate) fn token(&self) -> Option<Token> {
        match self {
            Event::Admin { token, .. } | Event::CreatePool { token, .. } | Event::Wake { token, .. } => {
                Some(*token)
            }
            _ => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// Answer with `Applied { own: true }`, or with `Refused`.
    Propose(Vec<Command>),
    /// An administrator's command: propose it and answer `token` when it is applied.
    ProposeFor {
        token: Token,
        command: Command,
    },
    /// Anything but the map may leave only after this member has proved that it still led when the heartbeat arrived
    /// (R2).
    Push {
        to: ServerId,
        push: MetaPush,
    },
    /// The same holds for switches.
    Switch {
        server: ServerId,
        action: SwitchAction,
    },
    Reply {
        token: Token,
        reply: MetaReply,
    },
    Notice(Notice),
    Bug(Bug),
}

impl From<Bug> for Output {
    fn from(bug: Bug) -> Output {
        Output::Bug(bug)
    }
}
