//! The network: every pair of nodes has one connection, which delays messages, and when it breaks loses those in
//! flight. As with TCP nothing else is ever lost, and both ends eventually learn that it broke: the protocol relies on
//! that. A message that meets a loss or a cut breaks the connection, or waits until the cut ends. If asked, the network
//! also repeats and reorders messages; TCP does not, but two connections of a pair do: the protocol must tolerate it.

use crate::engine::MILLI;
use ebb_types::Random;
use ebb_types::ServerId;
use std::collections::BTreeMap;
use std::fmt;

/// The administrator's node; no client has this number.
pub const ADMIN: u32 = 1000;

/// A sender or receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Node {
    Server(ServerId),
    Member(u64),
    Client(u32),
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Node::Server(id) => write!(f, "{id}"),
            Node::Member(id) => write!(f, "member-{id}"),
            Node::Client(ADMIN) => write!(f, "the administrator"),
            Node::Client(id) => write!(f, "client-{id}"),
        }
    }
}

/// A message that takes longer counts as late.
const LATE: u64 = 100 * MILLI;

/// How unreliable the network is. Times in nanoseconds, chances per mille. `loss`: chance that a message breaks its
/// connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetModel {
    pub delay: u64,
    pub loss: u64,
    pub repeat: u64,
    pub reorder: u64,
}

impl fmt::Display for NetModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NetModel { delay, loss, repeat, reorder } = self;
        let micros = delay / 1000;
        write!(
            f,
            "{micros} us delay; of 1000 messages {loss} lost, {repeat} repeated, {reorder} out of order"
        )
    }
}

#[derive(Default)]
struct Link {
    /// Which connection of this pair it is; messages in flight on an older one are lost.
    generation: u64,
    /// When the last message in each direction arrives.
    last: [u64; 2],
}

pub struct Net {
    pub model: NetModel,
    pub random: Random,
    links: BTreeMap<(Node, Node), Link>,
    /// Directed pairs that are cut, until when, and whether connections survive it.
    cuts: BTreeMap<(Node, Node), (u64, bool)>,
    /// Directed pairs of which nothing arrives, without an error, until when.
    mute: BTreeMap<(Node, Node), u64>,
    /// Directed pairs whose queue is full, until when: what is to be sent is refused, and the connection stays.
    full: BTreeMap<(Node, Node), u64>,
    /// Counts of messages by fate.
    pub lost: u64,
    pub refused: u64,
    pub late: u64,
    pub repeated: u64,
    pub reordered: u64,
}

impl Net {
    pub fn new(model: NetModel, random: Random) -> Net {
        Net {
            model,
            random,
            links: BTreeMap::new(),
            cuts: BTreeMap::new(),
            mute: BTreeMap::new(),
            full: BTreeMap::new(),
            lost: 0,
            refused: 0,
            late: 0,
            repeated: 0,
            reordered: 0,
        }
    }

    pub fn generation(&self, a: Node, b: Node) -> u64 {
        self.links.get(&(a.min(b), a.max(b))).map_or(0, |l| l.generation)
    }

    /// Breaks the connection of a pair.
    pub fn reset(&mut self, a: Node, b: Node) {
        self.links.entry((a.min(b), a.max(b))).or_default().generation += 1;
        self.open_again(a, b);
        self.full.remove(&(a, b));
        self.full.remove(&(b, a));
    }

    /// Breaks every connection of a node.
    pub fn reset_all(&mut self, node: Node) {
        for ((a, b), link) in &mut self.links {
            link.generation += u64::from(*a == node || *b == node);
        }
        let is_its_own = |(a, b): &(Node, Node)| *a == node || *b == node;
        self.mute.retain(|pair, _| !is_its_own(pair));
        self.full.retain(|pair, _| !is_its_own(pair));
    }

    pub fn cut(&mut self, from: Node, to: Node, until: u64, outlasted: bool) {
        let (end, last) = self.cuts.entry((from, to)).or_default();
        (*end, *last) = (until.max(*end), outlasted);
    }

    /// Cuts one way, or both.
    pub fn cut_pair(&mut self, (from, to): (Node, Node), both: bool, until: u64, outlasted: bool) {
        self.cut(from, to, until, outlasted);
        if both {
            self.cut(to, from, until, outlasted);
        }
    }

    pub fn mute(&mut self, from: Node, to: Node, until: u64) {
        self.mute.insert((from, to), until);
    }

    /// What the node sends there is lost, and it does not notice.
    pub fn is_mute(&self, now: u64, from: Node, to: Node) -> bool {
        self.mute.get(&(from, to)).is_some_and(|until| *until > now)
    }

    /// One end opens another connection.
    pub fn open_again(&mut self, a: Node, b: Node) {
        self.mute.remove(&(a, b));
        self.mute.remove(&(b, a));
    }

    pub fn fill_queue(&mut self, from: Node, to: Node, until: u64) {
        self.full.insert((from, to), until);
    }

    pub fn is_full(&self, now: u64, from: Node, to: Node) -> bool {
        self.full.get(&(from, to)).is_some_and(|until| *until > now)
    }

    /// Whether every node can reach every other.
    pub fn is_whole(&self, now: u64) -> bool {
        self.cuts.values().map(|(until, _)| until).chain(self.mute.values()).all(|until| *until <= now)
    }

    /// Returns the pairs whose connection breaks, as it would hold back what is sent from now on: behind what it held
    /// back until the end of a cut that was longer.
    pub fn heal(&mut self, now: u64) -> Vec<(Node, Node)> {
        self.cuts.clear();
        self.mute.clear();
        self.full.clear();
        self.model.loss = 0;
        self.model.repeat = 0;
        self.model.reorder = 0;
        let holds = |link: &Link| link.last.iter().any(|at| *at > now + LATE);
        let mut broken = Vec::new();
        for (pair, link) in self.links.iter_mut().filter(|(_, link)| holds(link)) {
            (link.generation, link.last) = (link.generation + 1, [now; 2]);
            broken.push(*pair);
        }
        broken
    }

    /// When the message arrives: once, twice, or never. In the last case its connection broke.
    pub fn send(&mut self, now: u64, from: Node, to: Node) -> Vec<u64> {
        let cut = self.cuts.get(&(from, to)).copied().filter(|(until, _)| *until > now);
        if cut.is_some_and(|(_, outlasted)| !outlasted) || self.random.chance(self.model.loss) {
            self.lost += 1;
            self.reset(from, to);
            return Vec::new();
        }
        let at = cut.map_or(now, |(until, _)| until) + self.random.delay(self.model.delay);
        self.late += u64::from(at > now + LATE);
        let link = self.links.entry((from.min(to), from.max(to))).or_default();
        let last = &mut link.last[usize::from(from < to)];
        let mut times = vec![if self.random.chance(self.model.reorder) { at } else { at.max(*last + 1) }];
        self.reordered += u64::from(times[0] < *last);
        *last = times[0].max(*last);
        // A client's request must be refused or carried out once each time it is sent: TCP repeats nothing.
        let repeats = !matches!(from, Node::Client(_)) && self.random.chance(self.model.repeat);
        if repeats {
            self.repeated += 1;
            times.push(at + self.random.delay(self.model.delay * 20));
        }
        times
    }
}
