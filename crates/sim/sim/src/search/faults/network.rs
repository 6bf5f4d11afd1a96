//! Networks that part some nodes and not others.

use crate::world::World;
use crate::world::clock::{MILLI, SECOND};
use crate::world::net::Node;

impl World<'_> {
    /// Two sides do not hear each other, and the rest hears both; or what one side sends does not reach the other. Or a
    /// metadata member is cut off from all but the other members.
    pub(super) fn split(&mut self) {
        let time = self.fault_random.delay(1500 * MILLI).min(15 * SECOND);
        let until = self.now + time;
        let nodes = self.all_nodes();
        let members: Vec<u64> = self.members.keys().copied().collect();
        let deaf =
            self.fault_random.chance(300).then(|| *self.fault_random.pick(&members).expect("one member"));
        let (one, other): (Vec<Node>, Vec<Node>) = match deaf {
            Some(member) => {
                let others = nodes.iter().copied().filter(|node| !matches!(node, Node::Member(_)));
                (vec![Node::Member(member)], others.collect())
            }
            None => {
                let mut sides = [Vec::new(), Vec::new(), Vec::new()];
                for node in nodes {
                    sides[self.fault_random.index(3)].push(node);
                }
                let [one, other, _] = sides;
                (one, other)
            }
        };
        let (both, outlasted) = (self.fault_random.chance(600), self.fault_random.chance(400));
        self.count(if deaf.is_some() { "deaf metadata member" } else { "partition that is not transitive" });
        self.note(|| {
            let names = |side: &[Node]| side.iter().map(Node::to_string).collect::<Vec<_>>().join(", ");
            format!("cut off from each other are {} and {}", names(&one), names(&other))
        });
        for (a, b) in one.iter().flat_map(|a| other.iter().map(move |b| (*a, *b))) {
            self.net.cut(a, b, until, outlasted);
            if both {
                self.net.cut(b, a, until, outlasted);
            }
        }
    }
}
