//! The life of one request.
//!
//! It keeps its id through all its tries, so that a write is carried out once however often it is sent. Two things end
//! a try early: its connection breaks, or the map names another primary. So a server that was put to sleep or stopped
//! in the middle of a reply delays a request no longer than the metadata service takes to replace it, and a slow server
//! gets no request twice (R12). A connection is given up when nothing at all was received on it for a while. One
//! deadline covers all tries.
//!
//! Invariant (R16): a change under a claim, of which a server may have taken a try, ends when it is known what became
//! of it, deadline or not. The claim's owner lets what changes the same blocks follow then: a try that came later would
//! undo that.

use crate::trouble::Trouble;
use crate::view::{Route, View};
use bytes::Bytes;
use ebb_types::{
    ChunkError, ChunkOp, ClientReply, ClientRequest, Epoch, GroupEntry, GroupId, Looked, Moment, ServerId,
    SetEntry, SetId, Version, piece_crcs,
};
use std::time::Duration;

/// Bounds of the pause between two tries.
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// The longest one of a request that is held beyond its deadline.
const PAUSE_HELD: Duration = Duration::from_secs(2);
/// A connection on which nothing was received for this many looks is closed.
const SILENT_LOOKS: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// How long a request is retried before it fails. One that is held ([`Request::is_ordered`]): as long as it takes.
    pub deadline: Duration,
    /// Time limit for opening a connection, and the interval of looks at a connection on which a reply is awaited.
    pub look: Duration,
    /// No other client writes where this one does. A write whose outcome is no longer known is then carried out again:
    /// it overwrites nothing newer.
    pub sole_writer: bool,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { deadline: Duration::from_secs(30), look: Duration::from_secs(5), sole_writer: false }
    }
}

/// Bytes with their checksums: one per block of the chunk that they touch, as from [`piece_crcs`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summed {
    pub bytes: Bytes,
    pub crcs: Vec<u32>,
}

#[derive(Clone, Debug)]
pub enum Failure {
    /// Retrying does not help.
    Chunk(ChunkError),
    /// What was written is gone, with servers that were declared lost.
    Gone,
    /// `server`: the last one asked.
    Unserved { tries: u32, waited: Duration, server: Option<ServerId>, last: Trouble },
    /// A write may or may not have been carried out: the server that would have to repeat it has forgotten.
    Unknown { tries: u32, waited: Duration, server: Option<ServerId> },
}

#[derive(Debug)]
pub enum Event {
    /// The request begins, the map has changed, or [`Request::due`] has passed. `heard`: frames received so far on the
    /// connection of the present try; `None`: there is no connection yet.
    Look { heard: Option<u64> },
    /// The present try was answered.
    Answered { reply: ClientReply, bytes: Bytes },
    /// The present try gets no reply: its connection could not be opened, or broke.
    Lost(Trouble),
}

#[derive(Debug)]
pub enum Command {
    /// Begin a try: replies to earlier ones are no longer wanted.
    Send {
        server: ServerId,
        message: ClientRequest,
    },
    /// The present try is over.
    TryFailed(Trouble),
    /// Have the view adopt this entry.
    Adopt {
        group: GroupId,
        entry: GroupEntry,
    },
    /// The same for a set.
    AdoptSet {
        set: SetId,
        entry: SetEntry,
    },
    /// Have the view note that the group's primary has assigned this version.
    Heard {
        group: GroupId,
        newest: Version,
    },
    /// Ask the metadata service to wake the set, if [`View::wake`] agrees.
    Wake {
        set: SetId,
    },
    /// Ask for the map, if [`View::refresh`] agrees.
    Refresh,
    /// Close the connection to this server: nothing is received on it.
    Close {
        server: ServerId,
    },
    End(Result<Summed, Failure>),
}

#[derive(Debug)]
enum Step {
    /// Waiting for a route other than `route`, or for `until`.
    Pausing {
        route: Option<Route>,
        until: Moment,
    },
    Asked {
        route: Route,
        look: Moment,
        heard: u64,
        silent: u32,
    },
    Ended,
}

/// A request in progress. It begins with a first [`Event::Look`] and ends with [`Command::End`].
#[derive(Debug)]
pub struct Request {
    message: ClientRequest,
    patience: Patience,
    began: Moment,
    pause: Duration,
    tries: u32,
    server: Option<ServerId>,
    /// A try that ended may have been carried out, or may still be: later tries are not a new request.
    open: bool,
    /// It was open, and others wait for its end.
    held: bool,
    /// From the reply to a write that was carried out.
    done: Option<Version>,
    looked: Option<Looked>,
    step: Step,
}

impl Request {
    /// `op` covers at most one record.
    pub fn new(now: Moment, group: GroupId, op: ChunkOp, patience: Patience) -> Request {
        Request {
            message: ClientRequest { group, epoch: Epoch(0), since: Version::ZERO, claim: 0, op },
            patience,
            began: now,
            pause: PAUSE_MIN,
            tries: 0,
            server: None,
            open: false,
            held: false,
            done: None,
            looked: None,
            step: Step::Pausing { route: None, until: now },
        }
    }

    /// Sent by the owner of the object, under the claim of this number.
    pub fn under(mut self, claim: u64) -> Request {
        self.message.claim = claim;
        self
    }

    pub fn op(&self) -> &ChunkOp {
        &self.message.op
    }

    pub fn tries(&self) -> u32 {
        self.tries
    }

    /// The version that its server answered with when the write was done. Its epoch is the one under which the write
    /// was taken.
    pub fn done(&self) -> Option<Version> {
        self.done
    }

    /// What a look found.
    pub fn looked(&self) -> Option<&Looked> {
        self.looked.as_ref()
    }

    /// The server whose reply is awaited.
    pub fn asked(&self) -> Option<ServerId> {
        match self.step {
            Step::Asked { route, .. } => Some(route.primary),
            Step::Pausing { .. } | Step::Ended => None,
        }
    }

    /// When to look again, whatever else happens.
    pub fn due(&self) -> Moment {
        let due = match self.step {
            Step::Pausing { until, .. } => until,
            Step::Asked { look, .. } => look,
            Step::Ended => Moment(u64::MAX),
        };
        due.min(self.deadline())
    }

    /// Whether changes of the same blocks follow when this one has ended.
    pub fn is_ordered(&self) -> bool {
        let ClientRequest { group, claim, op, .. } = &self.message;
        let changes = matches!(op, ChunkOp::Write { .. } | ChunkOp::Zero { up_to: None, .. });
        changes && *claim > 0 && !op.chunk().is_of_claim() && group.column().is_none()
    }

    fn deadline(&self) -> Moment {
        let asked = matches!(self.step, Step::Asked { .. }) && self.is_ordered();
        if self.held || asked { Moment(u64::MAX) } else { self.began + self.patience.deadline }
    }

    pub fn on(&mut self, now: Moment, view: &View, event: Event, out: &mut Vec<Command>) {
        match event {
            Event::Look { heard } => self.look(now, view, heard, out),
            Event::Answered { reply, bytes } => self.answered(now, view, reply, bytes, out),
            Event::Lost(why) => self.failed(now, view, why, out),
        }
    }

    fn look(&mut self, now: Moment, view: &View, heard: Option<u64>, out: &mut Vec<Command>) {
        let (current, deadline) = (self.route(view), self.deadline());
        match &mut self.step {
            Step::Ended => {}
            Step::Pausing { route, until } => {
                if current != *route || now >= *until {
                    self.try_now(now, view, out);
                }
            }
            Step::Asked { route, .. } if current.is_none_or(|r| r.primary != route.primary) => {
                self.try_failed(heard.map_or(Trouble::Unsent, |_| Trouble::Superseded), out);
                self.try_now(now, view, out);
            }
            Step::Asked { look, heard: before, silent, route } => {
                let (server, mut in_vain) = (route.primary, now >= deadline);
                if now >= *look {
                    *look = now + self.patience.look;
                    let frames = heard.unwrap_or(0);
                    *silent = if std::mem::replace(before, frames) == frames { *silent + 1 } else { 0 };
                    if *silent >= SILENT_LOOKS {
                        out.push(Command::Close { server });
                    }
                    in_vain |= heard.is_none() || *silent >= SILENT_LOOKS;
                    if !in_vain {
                        out.push(Command::Refresh);
                    }
                }
                if in_vain {
                    self.failed(now, view, heard.map_or(Trouble::Unsent, |_| Trouble::NoAnswer), out);
                }
            }
        }
    }

    fn answered(
        &mut self,
        now: Moment,
        view: &View,
        reply: ClientReply,
        bytes: Bytes,
        out: &mut Vec<Command>,
    ) {
        let Step::Asked { route, .. } = self.step else { return };
        let group = self.message.group;
        let is_read = self.message.op.is_read();
        let (offset, len) = self.message.op.range();
        let trouble = match reply {
            ClientReply::Data { crcs } if is_read && bytes.len() == len as usize => {
                if crcs == piece_crcs(offset, &bytes) {
                    return self.end(Ok(Summed { bytes, crcs }), out);
                }
                Trouble::Garbled
            }
            ClientReply::Looked(looked) if matches!(self.message.op, ChunkOp::Look { .. }) => {
                self.looked = Some(looked);
                return self.end(Ok(Summed::default()), out);
            }
            ClientReply::Done { newest } if !is_read => {
                out.push(Command::Heard { group, newest });
                self.done = Some(newest);
                return self.end(Ok(Summed::default()), out);
            }
            ClientReply::Forgotten { in_part, .. }
                if !is_read && (self.open || in_part) && !self.may_repeat() =>
            {
                let (tries, waited, server) = (self.tries, now.since(self.began), self.server);
                return self.end(Err(Failure::Unknown { tries, waited, server }), out);
            }
            ClientReply::Forgotten { newest, .. } if !is_read => {
                // No attempt was or will be carried out, or that does no harm: it starts over at once.
                out.push(Command::Heard { group, newest });
                self.open = false;
                self.try_failed(Trouble::Forgotten, out);
                self.step = Step::Pausing { route: None, until: now };
                return;
            }
            ClientReply::Data { .. }
            | ClientReply::Looked(_)
            | ClientReply::Done { .. }
            | ClientReply::Forgotten { .. } => Trouble::Nonsense,
            // Another try of it may be on its way to a server that has space or a sound copy by then.
            ClientReply::Failed { why } if self.held && why.may_pass() => Trouble::Refused(why),
            ClientReply::Failed { why } => return self.end(Err(Failure::Chunk(why)), out),
            ClientReply::Retry { why } => Trouble::NotReady(why),
            ClientReply::Moved { entry } => {
                let (why, is_news) = (Trouble::Elsewhere(entry.epoch), view.is_news(group, &entry));
                if is_news {
                    return self.reroute(now, route, why, Command::Adopt { group, entry }, out);
                }
                why
            }
            ClientReply::SetMoved { set, entry } => {
                let (why, is_news) = (Trouble::Elsewhere(entry.epoch), view.is_set_news(set, &entry));
                if is_news {
                    return self.reroute(now, route, why, Command::AdoptSet { set, entry }, out);
                }
                why
            }
        };
        self.failed(now, view, trouble, out);
    }

    /// `adopt` changes the route, so the next look tries again.
    fn reroute(&mut self, now: Moment, from: Route, why: Trouble, adopt: Command, out: &mut Vec<Command>) {
        self.step = Step::Pausing { route: Some(from), until: now + self.pause };
        self.try_failed(why, out);
        out.push(adopt);
    }

    fn route(&self, view: &View) -> Option<Route> {
        view.route(self.message.group, self.message.op.chunk())
    }

    /// Whether it may be carried out twice. No client uses a chunk after asking for its deletion, rows of coded chunks
    /// are immutable, and nobody else writes under a claim.
    fn may_repeat(&self) -> bool {
        let alone = self.patience.sole_writer || self.message.claim > 0;
        let is_coded = self.message.group.column().is_some();
        alone || is_coded || matches!(self.message.op, ChunkOp::Delete { .. })
    }

    fn failed(&mut self, now: Moment, view: &View, why: Trouble, out: &mut Vec<Command>) {
        let Step::Asked { route, .. } = self.step else { return };
        self.try_failed(why.clone(), out);
        self.rest(now, Some(route), why, out);
        if matches!(self.step, Step::Pausing { .. }) && self.route(view) != Some(route) {
            self.try_now(now, view, out);
        }
    }

    fn try_failed(&mut self, why: Trouble, out: &mut Vec<Command>) {
        self.open |= why.leaves_it_open();
        self.held |= self.open && self.is_ordered();
        out.push(Command::TryFailed(why));
    }

    fn try_now(&mut self, now: Moment, view: &View, out: &mut Vec<Command>) {
        let Some(route) = self.route(view) else {
            if self.is_in_vain(view) {
                return self.end(Err(Failure::Gone), out);
            }
            let set = view.hibernates(self.message.group);
            out.extend(set.map(|set| Command::Wake { set }));
            return self.rest(now, None, set.map_or(Trouble::NoPrimary, Trouble::Hibernates), out);
        };
        if now >= self.deadline() {
            return self.unserved(now, Trouble::NoAnswer, out);
        }
        debug_assert!(route.epoch >= self.message.epoch, "a view does not go back");
        self.tries += 1;
        self.server = Some(route.primary);
        self.message.epoch = route.epoch;
        if !self.open {
            self.message.since = view.newest(self.message.group, route);
        }
        self.step = Step::Asked { route, look: now + self.patience.look, heard: 0, silent: 0 };
        out.push(Command::Send { server: route.primary, message: self.message.clone() });
    }

    /// Whether no server will ever have what it is to read. The map is believed when it was asked for several times:
    /// when the pauses have become long. A write waits until the group begins again, and so does a read of what may
    /// never have been written.
    fn is_in_vain(&self, view: &View) -> bool {
        let wants_all = matches!(self.message.op, ChunkOp::Read { must_exist: true, .. });
        wants_all && self.pause >= PAUSE_MAX && view.map().is_gone(self.message.group)
    }

    /// Pauses before the next try, or fails if the deadline comes first.
    fn rest(&mut self, now: Moment, route: Option<Route>, why: Trouble, out: &mut Vec<Command>) {
        let until = now + self.pause;
        self.step = Step::Pausing { route, until };
        if until >= self.deadline() {
            return self.unserved(now, why, out);
        }
        let is_late = self.held && now >= self.began + self.patience.deadline;
        self.pause = (self.pause * 2).min(if is_late { PAUSE_HELD } else { PAUSE_MAX });
        out.push(Command::Refresh);
    }

    fn unserved(&mut self, now: Moment, last: Trouble, out: &mut Vec<Command>) {
        let waited = now.since(self.began);
        let failure = Failure::Unserved { tries: self.tries, waited, server: self.server, last };
        self.end(Err(failure), out);
    }

    fn end(&mut self, result: Result<Summed, Failure>, out: &mut Vec<Command>) {
        let is_open = matches!(result, Err(Failure::Unserved { .. } | Failure::Unknown { .. }));
        debug_assert!(!matches!(self.step, Step::Ended), "a request ends once");
        debug_assert!(!(self.held && is_open), "what is held ends when it is known what became of it (R16)");
        self.step = Step::Ended;
        out.push(Command::End(result));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::{
        CLAIMS_FROM, ChunkId, MapDelta, ObjectId, Random, RequestId, ServerEntry, ServerState, Slot,
        SlotState, Unready,
    };

    const GROUP: GroupId = GroupId(0);
    const CHUNK: ChunkId = ChunkId { object: ObjectId(1), index: 0 };

    fn entry(epoch: u32, primary: Option<u16>) -> GroupEntry {
        GroupEntry { epoch: Epoch(epoch), primary: primary.map(ServerId), ..GroupEntry::unknown() }
    }

    fn view(entry: GroupEntry) -> View {
        let mut view = View::default();
        assert!(view.apply(&MapDelta {
            from: 0,
            to: 1,
            servers: Vec::new(),
            groups: vec![(GROUP, entry)],
            ..MapDelta::default()
        }));
        view
    }

    fn read() -> ChunkOp {
        ChunkOp::Read { chunk: CHUNK, offset: 0, len: 3, must_exist: false }
    }

    fn on(request: &mut Request, millis: u64, view: &View, event: Event) -> Vec<Command> {
        let mut out = Vec::new();
        request.on(Moment::ZERO + Duration::from_millis(millis), view, event, &mut out);
        out
    }

    fn look(heard: u64) -> Event {
        Event::Look { heard: Some(heard) }
    }

    #[test]
    fn an_answer_counts_only_if_its_bytes_are_those_that_were_sent() {
        let view = view(entry(1, Some(4)));
        let mut request = Request::new(Moment::ZERO, GROUP, read(), Patience::default());
        let begun = on(&mut request, 0, &view, Event::Look { heard: None });
        assert!(matches!(&begun[..], [Command::Send { server: ServerId(4), .. }]), "{begun:?}");
        let bytes = Bytes::from_static(b"abc");
        let crcs = piece_crcs(0, b"abd");
        let garbled = Event::Answered { reply: ClientReply::Data { crcs }, bytes: bytes.clone() };
        let again = on(&mut request, 1, &view, garbled);
        assert!(matches!(&again[..], [Command::TryFailed(Trouble::Garbled), Command::Refresh]), "{again:?}");
        let due = request.due().since(Moment::ZERO).as_millis() as u64;
        let tried = on(&mut request, due, &view, Event::Look { heard: None });
        assert!(matches!(&tried[..], [Command::Send { .. }]), "{tried:?}");
        let reply = ClientReply::Data { crcs: piece_crcs(0, &bytes) };
        let ended = on(&mut request, due + 1, &view, Event::Answered { reply, bytes });
        assert!(matches!(&ended[..], [Command::End(Ok(read))] if read.bytes[..] == *b"abc"), "{ended:?}");
    }

    #[test]
    fn a_slow_server_is_waited_for_and_a_silent_one_is_not() {
        let view = view(entry(1, Some(4)));
        for answers_others in [true, false] {
            let patience = Patience { deadline: Duration::from_secs(60), ..Patience::default() };
            let mut request = Request::new(Moment::ZERO, GROUP, read(), patience);
            on(&mut request, 0, &view, Event::Look { heard: None });
            let looks = (1..=11).map(|n| {
                let heard = if answers_others { 100 + n } else { 0 };
                on(&mut request, n * 5000, &view, look(heard))
            });
            let looks: Vec<_> = looks.collect();
            let closed = looks.iter().position(|l| matches!(l[0], Command::Close { server: ServerId(4) }));
            assert_eq!(closed, (!answers_others).then_some(2), "{looks:?}");
            assert!(!answers_others || request.tries() == 1);
        }
    }

    #[test]
    fn a_try_ends_when_the_map_names_another_primary() {
        let mut view = view(entry(1, Some(4)));
        let mut request = Request::new(Moment::ZERO, GROUP, read(), Patience::default());
        on(&mut request, 0, &view, Event::Look { heard: None });
        view.adopt(GROUP, entry(2, Some(4)));
        assert!(on(&mut request, 1, &view, look(0)).is_empty(), "the same server will answer");
        view.adopt(GROUP, entry(3, Some(5)));
        let moved = on(&mut request, 2, &view, look(0));
        let [Command::TryFailed(Trouble::Superseded), Command::Send { server: ServerId(5), message }] =
            &moved[..]
        else {
            panic!("{moved:?}")
        };
        assert_eq!(message.epoch, Epoch(3));
    }

    /// What follows it would be undone.
    #[test]
    fn a_change_under_a_claim_does_not_end_while_it_may_still_be_carried_out() {
        let view = view(entry(1, Some(4)));
        let write = |index| {
            let (chunk, request) = (ChunkId { index, ..CHUNK }, RequestId { client: 1, seq: 1 });
            let crcs = vec![0];
            let op = ChunkOp::Write { chunk, offset: 0, len: 1, request, crcs };
            Request::new(Moment::ZERO, GROUP, op, Patience { sole_writer: true, ..Patience::default() })
        };
        let unready =
            || Event::Answered { reply: ClientReply::Retry { why: Unready::Behind }, bytes: Bytes::new() };
        let is_given_up = |mut request: Request, lost: Trouble| {
            on(&mut request, 0, &view, Event::Look { heard: None });
            on(&mut request, 1, &view, Event::Lost(lost));
            while request.due() < Moment::ZERO + Duration::from_secs(90) {
                let event = if request.asked().is_some() { unready() } else { Event::Look { heard: None } };
                let mut out = Vec::new();
                request.on(request.due(), &view, event, &mut out);
                if let Some(Command::End(ended)) = out.pop() {
                    return matches!(ended, Err(Failure::Unserved { .. }));
                }
            }
            false
        };
        assert!(!is_given_up(write(0).under(7), Trouble::Lost));
        assert!(is_given_up(write(0), Trouble::Lost), "who does not order its changes is told");
        assert!(is_given_up(write(0).under(7), Trouble::WrongServer), "it was not carried out");
        assert!(is_given_up(write(CLAIMS_FROM).under(7), Trouble::Lost), "a claim only grows");
        assert!(is_given_up(write(0).under(7), Trouble::Unsent), "nor was this");
        assert!(is_given_up(read_request().under(7), Trouble::Lost));

        // Neither a refusal that may pass nor forgetting ends what was open.
        let answered = |reply| Event::Answered { reply, bytes: Bytes::new() };
        let mut request = write(0).under(7);
        on(&mut request, 0, &view, Event::Look { heard: None });
        on(&mut request, 1, &view, Event::Lost(Trouble::Lost));
        for (at, reply) in [
            (40_000, ClientReply::Failed { why: ChunkError::NoSpace }),
            (80_000, ClientReply::Forgotten { newest: version(1, 9), in_part: false }),
            (120_000, ClientReply::Failed { why: ChunkError::Corrupt }),
        ] {
            on(&mut request, at, &view, Event::Look { heard: None });
            let out = on(&mut request, at + 1, &view, answered(reply));
            assert!(matches!(&out[..], [.., Command::TryFailed(_)] | [.., Command::Refresh]), "{out:?}");
        }
        on(&mut request, 160_000, &view, Event::Look { heard: None });
        let done = on(&mut request, 160_001, &view, answered(ClientReply::Done { newest: version(1, 10) }));
        assert!(matches!(&done[..], [.., Command::End(Ok(_))]), "{done:?}");
    }

    /// While its try is awaited, a request under a claim has no deadline; what it then waits for has one again.
    #[test]
    fn no_look_is_due_before_now() {
        let view = view(entry(1, Some(4)));
        let (chunk, request) = (CHUNK, RequestId { client: 1, seq: 1 });
        let op = ChunkOp::Zero { chunk, offset: 0, len: 4096, up_to: None, request };
        let mut request = Request::new(Moment::ZERO, GROUP, op, Patience::default()).under(7);
        for at in (0..).step_by(10) {
            let unready = ClientReply::Retry { why: Unready::Behind };
            let answered = Event::Answered { reply: unready, bytes: Bytes::new() };
            let event = if request.asked().is_some() { answered } else { Event::Look { heard: None } };
            let out = on(&mut request, at, &view, event);
            if let [.., Command::End(ended)] = &out[..] {
                let why = |last: &Trouble| matches!(last, Trouble::NotReady(Unready::Behind));
                return assert!(
                    matches!(ended, Err(Failure::Unserved { last, .. }) if why(last)),
                    "{ended:?}"
                );
            }
            assert!(request.due() > Moment::ZERO + Duration::from_millis(at), "at {at}");
            assert!(at < 31_000, "it ends");
        }
    }

    fn read_request() -> Request {
        Request::new(Moment::ZERO, GROUP, read(), Patience::default())
    }

    fn delete() -> Request {
        let op = ChunkOp::Delete { chunk: CHUNK, request: RequestId { client: 1, seq: 1 } };
        Request::new(Moment::ZERO, GROUP, op, Patience::default())
    }

    fn version(epoch: u32, seq: u64) -> Version {
        Version { epoch: Epoch(epoch), seq }
    }

    /// The version `since` of the message sent last.
    fn since(out: &[Command]) -> Version {
        match out {
            [.., Command::Send { message, .. }] => message.since,
            _ => panic!("{out:?}"),
        }
    }

    #[test]
    fn a_write_that_was_surely_not_carried_out_starts_over() {
        let mut view = view(entry(2, Some(4)));
        let answered = |reply| Event::Answered { reply, bytes: Bytes::new() };
        let mut request = delete();
        assert_eq!(since(&on(&mut request, 0, &view, Event::Look { heard: None })), version(2, 0));
        let newest = version(2, 70);
        let bounced = on(&mut request, 1, &view, answered(ClientReply::Forgotten { newest, in_part: false }));
        let [Command::Heard { group: GROUP, newest: heard }, Command::TryFailed(Trouble::Forgotten)] =
            bounced[..]
        else {
            panic!("{bounced:?}")
        };
        view.hear(GROUP, heard);
        view.hear(GROUP, version(2, 3));
        assert_eq!(request.due(), Moment::ZERO + Duration::from_millis(1), "at once");
        assert_eq!(since(&on(&mut request, 1, &view, Event::Look { heard: None })), newest);
        on(&mut request, 2, &view, answered(ClientReply::Retry { why: Unready::NoLease }));
        let moved = entry(3, Some(5));
        view.adopt(GROUP, moved);
        assert_eq!(since(&on(&mut request, 3, &view, Event::Look { heard: None })), version(3, 0));
        let done = on(&mut request, 4, &view, answered(ClientReply::Done { newest: version(3, 9) }));
        assert!(matches!(done[..], [Command::Heard { .. }, Command::End(Ok(_))]), "{done:?}");
        assert_eq!(request.done(), Some(version(3, 9)));
    }

    #[test]
    fn a_set_that_hibernates_is_woken_and_the_request_goes_on_when_it_is() {
        let (set, object) = (ebb_types::SetId(0), ebb_types::ObjectId(1).in_pool(ebb_types::PoolId(1)));
        let column =
            |server| ebb_types::Column { server: ServerId(server), state: ebb_types::SlotState::InSync };
        let entry = |epoch, hibernates_since| SetEntry {
            pool: ebb_types::PoolId(1),
            shape: ebb_types::Shape::new(2, 1).unwrap(),
            epoch: Epoch(epoch),
            hibernates_since,
            columns: [1, 2, 3].map(column).to_vec(),
        };
        let mut view = View::default();
        let delta = ebb_types::MapDelta { to: 1, sets: vec![(set, entry(4, Some(1)))], ..Default::default() };
        assert!(view.apply(&delta));
        let chunk = ChunkId { object, index: 0 };
        let op = ChunkOp::Read { chunk, offset: 0, len: 1, must_exist: true };
        let patience = Patience { deadline: Duration::from_secs(1), ..Patience::default() };
        let mut request = Request::new(Moment::ZERO, GroupId::of_column(set, 1), op, patience);
        let look = || Event::Look { heard: None };
        let asked = on(&mut request, 0, &view, look());
        assert!(matches!(asked[..], [Command::Wake { set: SetId(0) }, Command::Refresh]), "{asked:?}");
        assert!(view.wake(Moment::ZERO, set).is_some() && view.wake(Moment::ZERO, set).is_none(), "once");
        view.adopt_set(set, entry(5, None));
        let sent = on(&mut request, 500, &view, look());
        assert!(matches!(sent[..], [Command::Send { server: ServerId(2), .. }]), "{sent:?}");
        view.adopt_set(set, entry(6, Some(2)));
        on(&mut request, 900, &view, look());
        let ended = on(&mut request, 1000, &view, look());
        let [.., Command::End(Err(Failure::Unserved { last: Trouble::Hibernates(_), .. }))] = ended[..]
        else {
            panic!("{ended:?}")
        };
    }

    /// Its only server may come back, or was declared lost.
    fn without_a_primary(state: ServerState) -> View {
        let server = ServerEntry {
            id: ServerId(4),
            rack: ebb_types::RackId(0),
            pool: ebb_types::PoolId::REPLICATED,
            gear_group: ebb_types::GearGroup(0),
            address: String::new(),
            state,
            incarnation: ebb_types::Incarnation(1),
            store: ebb_types::StoreId(1),
        };
        let slot = Slot { server: server.id, state: SlotState::InSync, holder: None };
        let groups = vec![(GROUP, GroupEntry { slots: vec![slot], ..entry(1, None) })];
        let mut view = View::default();
        assert!(view.apply(&MapDelta { to: 1, servers: vec![server], groups, ..MapDelta::default() }));
        view
    }

    #[test]
    fn a_read_of_what_is_gone_fails_soon_and_whatever_may_still_be_served_waits() {
        let read = |must_exist| ChunkOp::Read { chunk: CHUNK, offset: 0, len: 3, must_exist };
        let request = RequestId { client: 1, seq: 1 };
        let write = ChunkOp::Zero { chunk: CHUNK, offset: 0, len: 1, up_to: None, request };
        let cases = [
            (read(true), ServerState::Lost, true),
            (read(true), ServerState::Failed, false),
            (read(false), ServerState::Lost, false),
            (write, ServerState::Lost, false),
        ];
        for (op, state, is_in_vain) in cases {
            let view = without_a_primary(state);
            let mut request = Request::new(Moment::ZERO, GROUP, op, Patience::default());
            let (mut millis, mut asked_for_the_map) = (0, 0);
            let failure = loop {
                match on(&mut request, millis, &view, Event::Look { heard: None }).pop() {
                    Some(Command::End(Err(failure))) => break failure,
                    Some(Command::Refresh) => asked_for_the_map += 1,
                    other => panic!("{other:?}"),
                }
                millis = request.due().since(Moment::ZERO).as_millis() as u64;
            };
            assert_eq!(matches!(failure, Failure::Gone), is_in_vain, "{failure:?}");
            assert_eq!(millis < 1000, is_in_vain, "after {millis} ms");
            assert!(asked_for_the_map > 5);
        }
    }

    fn zero(sole_writer: bool) -> Request {
        let request = RequestId { client: 1, seq: 1 };
        let op = ChunkOp::Zero { chunk: CHUNK, offset: 0, len: 1, up_to: None, request };
        Request::new(Moment::ZERO, GROUP, op, Patience { sole_writer, ..Patience::default() })
    }

    /// Unless no other client writes there.
    #[test]
    fn a_write_that_may_have_been_carried_out_never_starts_over() {
        let lost = || Event::Lost(Trouble::Lost);
        let interrupted = || Event::Answered {
            reply: ClientReply::Retry { why: Unready::Interrupted },
            bytes: Bytes::new(),
        };
        let cases = [(lost as fn() -> Event, false), (interrupted, false), (interrupted, true)];
        for ((open, in_part), sole_writer) in cases.iter().flat_map(|case| [(case, false), (case, true)]) {
            let (open, in_part) = (*open, *in_part);
            let mut view = view(entry(2, Some(4)));
            let mut request = zero(sole_writer);
            on(&mut request, 0, &view, Event::Look { heard: None });
            on(&mut request, 1, &view, open());
            view.hear(GROUP, version(2, 70));
            view.adopt(GROUP, entry(3, Some(5)));
            assert_eq!(since(&on(&mut request, 2, &view, Event::Look { heard: None })), version(2, 0));
            let reply = ClientReply::Forgotten { newest: version(3, 70), in_part };
            let ended = on(&mut request, 3, &view, Event::Answered { reply, bytes: Bytes::new() });
            if sole_writer {
                view.hear(GROUP, version(3, 70));
                let again = on(&mut request, 3, &view, Event::Look { heard: None });
                assert_eq!(since(&again), version(3, 70), "{ended:?}");
                continue;
            }
            assert!(matches!(ended[..], [Command::End(Err(Failure::Unknown { tries: 2, .. }))]), "{ended:?}");
        }
    }

    /// Whatever happens: one try at a time, always to the primary, always the same request; it ends once, by its
    /// deadline.
    #[test]
    fn every_request_ends_by_its_deadline() {
        for seed in 0..2000 {
            let mut random = Random::new(seed);
            let mut view = view(entry(1, random.chance(700).then_some(1)));
            let op = ChunkOp::Delete { chunk: CHUNK, request: RequestId { client: 1, seq: seed } };
            let patience =
                Patience { deadline: Duration::from_secs(random.between(1, 30)), ..Patience::default() };
            let mut request = Request::new(Moment::ZERO, GROUP, op.clone(), patience);
            let (mut now, mut asked, mut epoch, mut ended) = (Moment::ZERO, false, 1, false);
            let mut event = Event::Look { heard: None };
            for _ in 0..100_000 {
                let mut out = Vec::new();
                request.on(now, &view, event, &mut out);
                for command in out {
                    assert!(!ended, "seed {seed}: {command:?} after the end");
                    match command {
                        Command::Send { server, message } => {
                            assert!(!std::mem::replace(&mut asked, true), "seed {seed}: two tries");
                            assert_eq!(
                                (message.op, Some(server)),
                                (op.clone(), view.route(GROUP, ChunkId::default()).map(|r| r.primary))
                            );
                        }
                        Command::TryFailed(_) => assert!(std::mem::take(&mut asked), "seed {seed}"),
                        Command::Adopt { group, entry } => view.adopt(group, entry),
                        Command::AdoptSet { set, entry } => view.adopt_set(set, entry),
                        Command::Heard { group, newest } => view.hear(group, newest),
                        Command::Refresh | Command::Close { .. } | Command::Wake { .. } => {}
                        Command::End(_) => ended = true,
                    }
                }
                if ended {
                    break;
                }
                assert!(
                    request.due() > now || now == Moment::ZERO || !asked,
                    "seed {seed}: it is due for ever"
                );
                let heard = Some(random.below(2)).filter(|_| asked);
                event = match random.below(10) {
                    0 if asked => Event::Answered { reply: draw(&mut random, epoch), bytes: Bytes::new() },
                    1 if asked => Event::Lost(Trouble::Lost),
                    2 => {
                        epoch += 1;
                        view.adopt(GROUP, entry(epoch, random.chance(700).then_some(random.below(3) as u16)));
                        Event::Look { heard }
                    }
                    _ => {
                        now = now.max(request.due());
                        Event::Look { heard }
                    }
                };
            }
            assert!(ended && now <= Moment::ZERO + patience.deadline, "seed {seed}: {request:?} at {now:?}");
        }
    }

    /// Any reply but the right one.
    fn draw(random: &mut Random, epoch: u32) -> ClientReply {
        match random.below(5) {
            4 => {
                let newest = Version { epoch: Epoch(epoch), seq: random.below(9) };
                ClientReply::Forgotten { newest, in_part: false }
            }
            0 => ClientReply::Retry { why: Unready::Busy },
            1 => ClientReply::Data { crcs: Vec::new() },
            2 => ClientReply::Moved { entry: entry(epoch + 1, Some(1)) },
            _ => ClientReply::Moved { entry: entry(epoch - 1, Some(2)) },
        }
    }
}
