//! Messages between members: whose they are, and what they say.
//!
//! ```text
//! message = instance of the cluster u64 LE | generation of the group u32 LE | kind u8 | what it says
//! ```

/// The group of members that a message is of. Only its own members are listened to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lineage {
    /// The cluster; `None`: this member is joining and does not know it yet.
    pub instance: Option<u64>,
    /// How often it was rescued from a minority ([`super::rescue()`]).
    pub generation: u32,
}

pub(super) enum Packet<'a> {
    /// Of the library.
    Raft(&'a [u8]),
    /// Asks to add this id.
    Join(u64),
    /// What a follower knows that its leader should.
    Says(Said),
    /// Nothing but the sender's generation, to a member of an earlier one.
    Passed,
}

/// A message by its sender's group.
pub(super) enum Heard<'a> {
    Own(Lineage, Packet<'a>),
    /// Of this cluster, and of an earlier generation.
    Earlier,
    /// Of this cluster, and of this later generation.
    Later(u32),
}

/// What a follower says to its leader now and then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// Chunk servers that it hears.
    pub servers: u32,
    /// Its wall clock.
    pub unix_millis: u64,
}

const HEADER: usize = 13;
const _: () = assert!(HEADER == 8 + 4 + 1);

impl Packet<'_> {
    /// `None`: it is no message, or of another cluster.
    pub fn read(bytes: &[u8], own: Lineage) -> Option<Heard<'_>> {
        let (head, rest) = bytes.split_at_checked(HEADER)?;
        let instance = u64::from_le_bytes(head[..8].try_into().expect("eight bytes"));
        let generation = u32::from_le_bytes(head[8..12].try_into().expect("four bytes"));
        let its = Lineage { instance: Some(instance).filter(|id| *id != 0), generation };
        let packet = match head[12] {
            0 => Packet::Raft(rest),
            1 => Packet::Join(u64::from_le_bytes(rest.try_into().ok()?)),
            2 => {
                let (servers, unix_millis) = rest.split_at_checked(4)?;
                let servers = u32::from_le_bytes(servers.try_into().ok()?);
                Packet::Says(Said { servers, unix_millis: u64::from_le_bytes(unix_millis.try_into().ok()?) })
            }
            3 => Packet::Passed,
            _ => return None,
        };
        match (own.instance, its.instance) {
            (Some(known), Some(instance)) if known != instance => None,
            (Some(_), Some(_)) if generation < own.generation => Some(Heard::Earlier),
            (Some(_), Some(_)) if generation > own.generation => Some(Heard::Later(generation)),
            // A joiner that does not know its cluster yet.
            (Some(_), None) if !matches!(packet, Packet::Join(_)) => None,
            (None, None) => None,
            _ => Some(Heard::Own(its, packet)),
        }
    }

    pub fn write(&self, own: Lineage) -> Vec<u8> {
        let mut out = own.instance.unwrap_or(0).to_le_bytes().to_vec();
        out.extend_from_slice(&own.generation.to_le_bytes());
        match self {
            Packet::Raft(message) => {
                out.push(0);
                out.extend_from_slice(message);
            }
            Packet::Join(id) => {
                out.push(1);
                out.extend_from_slice(&id.to_le_bytes());
            }
            Packet::Says(Said { servers, unix_millis }) => {
                out.push(2);
                out.extend_from_slice(&servers.to_le_bytes());
                out.extend_from_slice(&unix_millis.to_le_bytes());
            }
            Packet::Passed => out.push(3),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_generation_of_the_own_cluster_is_listened_to() {
        let of = |instance, generation| Lineage { instance, generation };
        let own = of(Some(77), 2);
        let said = Packet::Says(Said { servers: 3, unix_millis: 9 });
        let seen = |its: Lineage| match Packet::read(&said.write(its), own) {
            Some(Heard::Own(..)) => "own",
            Some(Heard::Earlier) => "earlier",
            Some(Heard::Later(3)) => "later",
            Some(Heard::Later(_)) => panic!("it is of generation 3"),
            None => "dropped",
        };
        assert_eq!(seen(own), "own");
        assert_eq!(seen(of(Some(77), 1)), "earlier");
        assert_eq!(seen(of(Some(77), 3)), "later");
        assert_eq!(seen(of(Some(78), 2)), "dropped");
        assert_eq!(seen(of(Some(78), 3)), "dropped", "another cluster's generations mean nothing");
        assert_eq!(seen(of(None, 0)), "dropped");
        let join = Packet::Join(5).write(Lineage::default());
        assert!(
            matches!(Packet::read(&join, own), Some(Heard::Own(_, Packet::Join(5)))),
            "it knows none yet"
        );
        assert!(Packet::read(&join, Lineage::default()).is_none(), "nor does this one");
        let bytes = Packet::Raft(b"x").write(own);
        let learns = Packet::read(&bytes, Lineage::default());
        assert!(matches!(learns, Some(Heard::Own(its, Packet::Raft(b"x"))) if its == own));
    }
}
