//! The superblock: which mirror a disk belongs to, and what it knows about itself and about the other disk.
//!
//! It has two slots. The superblock with number `written` goes to [`Superblock::slot`], so the one before it stays
//! intact while it is written: after a crash one of the two decodes, and [`Superblock::newest`] finds it.
//! `docs/mirror-format.md` draws the bytes.
//!
//! `events` grows with each change of membership, on the disks that take part in it. So the disk with the larger number
//! saw the other one leave, and the states `since_events` say from which change on a copy is older.
//!
//! Together with the number of the intent map, `written` orders two disks: the one with the smaller numbers is an older
//! copy of itself, whatever it says of the other one.
//!
//! The paper has a persistent flag that is set before a change of speed and cleared after it [LogStore §3.2]; that is
//! [`Own::Behind`].

use crate::fields::{BLOCK, id_at, is_intact, put, seal, u32_at, u64_at};
use crate::geometry::Geometry;
use crate::{BLOCK_BYTES, Side};

/// Version of the format. A disk of any other version is refused.
pub const FORMAT: u32 = 1;
/// Longest name of a mirror, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 64;
const MAGIC: [u8; 8] = *b"EBBMIRRO";
const NAME_AT: usize = 152;
const OTHER_MAP_AT: usize = NAME_AT + NAME_BYTES_MAX;

const _: () =
    assert!(144 + 5 <= NAME_AT && OTHER_MAP_AT + size_of::<u64>() <= BLOCK, "no field is in another");

/// Drawn at random when the mirror is created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MirrorId(pub [u8; 16]);

/// Drawn at random when a disk joins a mirror.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskId(pub [u8; 16]);

/// What a disk knows about the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    InSync,
    /// It left for a change of speed or a while. It comes back, and the intent map knows what it lacks.
    Away {
        since_events: u64,
    },
    /// It failed or was taken out. It has to be rebuilt.
    Lost {
        since_events: u64,
    },
}

/// What a disk knows about its own content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Own {
    InSync,
    /// Set before the disk leaves for a change of speed: the other one is ahead.
    Behind {
        since_events: u64,
    },
    /// Blocks up to here are copied from the other disk.
    Rebuilding {
        done_blocks: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    #[error("not an Ebb mirror disk: check the path, or create a mirror on it")]
    NotAMirror,
    #[error("its superblock is damaged ({what}): start with the mirror's other disk and rebuild this one")]
    Damaged { what: &'static str },
    #[error(
        "its format is version {found} and this program knows version {known}: use the release that wrote it"
    )]
    OtherFormat { found: u32, known: u32 },
    #[error("its superblocks are of two mirrors: creating the newer one did not finish, create it again")]
    TwoMirrors,
}

/// State of one disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Grows with each write of a superblock. The first ones are 1 and 2: both slots are written when a mirror is
    /// created.
    pub written: u64,
    pub mirror: MirrorId,
    /// At most [`NAME_BYTES_MAX`] bytes.
    pub name: String,
    pub side: Side,
    pub disk: DiskId,
    pub other_disk: DiskId,
    pub geometry: Geometry,
    /// Number of changes of membership.
    pub events: u64,
    pub other: Other,
    /// Unless the other one is in sync: the number of the last intent map that it was sent. 0: not known.
    pub other_map: u64,
    pub own: Own,
    /// Batches of other epochs in the log are void.
    pub log_epoch: u64,
    /// The mirror was closed in order: no region differs between the disks but for what `own` and `other` say. The log
    /// may have entries all the same.
    pub clean: bool,
}

impl Superblock {
    /// The slot that the superblock goes to.
    pub fn slot(&self) -> usize {
        (self.written % 2) as usize
    }

    /// Panics if the name is too long: a name from a user is checked where it comes in.
    pub fn encode(&self) -> [u8; BLOCK] {
        assert!(self.name.len() <= NAME_BYTES_MAX, "the name {:?} is too long", self.name);
        let (other, other_events) = match self.other {
            Other::InSync => (0, 0),
            Other::Away { since_events } => (1, since_events),
            Other::Lost { since_events } => (2, since_events),
        };
        let (own, own_number) = match self.own {
            Own::InSync => (0, 0),
            Own::Behind { since_events } => (1, since_events),
            Own::Rebuilding { done_blocks } => (2, done_blocks),
        };
        let mut out = [0; BLOCK];
        put(&mut out, 12, &FORMAT.to_le_bytes());
        put(&mut out, 24, &self.mirror.0);
        put(&mut out, 40, &self.disk.0);
        put(&mut out, 56, &self.other_disk.0);
        let numbers = [(16, self.written), (112, self.events), (120, self.log_epoch)];
        for (at, number) in numbers.into_iter().chain([(128, other_events), (136, own_number)]) {
            put(&mut out, at, &number.to_le_bytes());
        }
        for (n, number) in areas(&self.geometry).iter().enumerate() {
            put(&mut out, 72 + 8 * n, &number.to_le_bytes());
        }
        let name_len = u8::try_from(self.name.len()).expect("it is 64 at most");
        put(&mut out, 144, &[self.side as u8, other, own, u8::from(self.clean), name_len]);
        put(&mut out, NAME_AT, self.name.as_bytes());
        put(&mut out, OTHER_MAP_AT, &self.other_map.to_le_bytes());
        seal(&mut out, &MAGIC);
        out
    }

    /// Decodes one slot.
    pub fn decode(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
        let bytes =
            bytes.get(..BLOCK).filter(|bytes| bytes[..8] == MAGIC).ok_or(SuperblockError::NotAMirror)?;
        if !is_intact(bytes) {
            return Err(SuperblockError::Damaged { what: "checksum" });
        }
        let found = u32_at(bytes, 12);
        if found != FORMAT {
            return Err(SuperblockError::OtherFormat { found, known: FORMAT });
        }
        Superblock::fields(bytes).map_err(|what| SuperblockError::Damaged { what })
    }

    /// The fields of an intact block, or the name of the first one without sense.
    fn fields(bytes: &[u8]) -> Result<Superblock, &'static str> {
        let events = u64_at(bytes, 112);
        let geometry = Geometry::of_areas(u64_at(bytes, 72), u64_at(bytes, 88)).ok_or("geometry")?;
        if areas(&geometry).iter().enumerate().any(|(n, number)| u64_at(bytes, 72 + 8 * n) != *number) {
            return Err("geometry");
        }
        let since = |at: usize| Some(u64_at(bytes, at)).filter(|since| *since <= events).ok_or("events");
        let name = bytes[NAME_AT..NAME_AT + NAME_BYTES_MAX].get(..usize::from(bytes[148])).ok_or("name")?;
        Ok(Superblock {
            written: u64_at(bytes, 16),
            mirror: MirrorId(id_at(bytes, 24)),
            name: str::from_utf8(name).map_err(|_| "name")?.to_owned(),
            side: *Side::BOTH.get(usize::from(bytes[144])).ok_or("side")?,
            disk: DiskId(id_at(bytes, 40)),
            other_disk: DiskId(id_at(bytes, 56)),
            geometry,
            events,
            other: match bytes[145] {
                0 => Other::InSync,
                1 => Other::Away { since_events: since(128)? },
                2 => Other::Lost { since_events: since(128)? },
                _ => return Err("state of the other disk"),
            },
            other_map: u64_at(bytes, OTHER_MAP_AT),
            own: match bytes[146] {
                0 => Own::InSync,
                1 => Own::Behind { since_events: since(136)? },
                2 if u64_at(bytes, 136) <= geometry.data_blocks() => {
                    Own::Rebuilding { done_blocks: u64_at(bytes, 136) }
                }
                _ => return Err("own state"),
            },
            log_epoch: u64_at(bytes, 120),
            clean: match bytes[147] {
                0 => false,
                1 => true,
                _ => return Err("clean"),
            },
        })
    }

    /// The newer one of the two slots that are intact.
    ///
    /// A slot of another format counts even if the other slot is of ours: the release that wrote it has changed the
    /// disk since.
    pub fn newest(slots: [&[u8]; 2]) -> Result<Superblock, SuperblockError> {
        use SuperblockError::{Damaged, OtherFormat, TwoMirrors};
        match slots.map(Superblock::decode) {
            [Ok(a), Ok(b)] if (a.mirror, a.disk) != (b.mirror, b.disk) => Err(TwoMirrors),
            [Ok(a), Ok(b)] => Ok(if a.written > b.written { a } else { b }),
            [Err(error @ OtherFormat { .. }), _] | [_, Err(error @ OtherFormat { .. })] => Err(error),
            [Ok(one), _] | [_, Ok(one)] => Ok(one),
            [Err(error @ Damaged { .. }), _] | [_, Err(error)] => Err(error),
        }
    }
}

const _: () = assert!(72 + 5 * size_of::<u64>() == 112, "what follows the geometry");

/// The geometry as it is stored.
fn areas(geometry: &Geometry) -> [u64; 5] {
    [
        geometry.data_blocks(),
        geometry.log_offset(),
        geometry.log_blocks() * BLOCK_BYTES,
        geometry.data_offset(),
        geometry.region_bytes(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_types::crc32c;

    fn superblock(written: u64) -> Superblock {
        Superblock {
            written,
            mirror: MirrorId([1; 16]),
            name: "työ".to_owned(),
            side: Side::B,
            disk: DiskId([2; 16]),
            other_disk: DiskId([3; 16]),
            geometry: Geometry::new(1 << 30, 1 << 24).unwrap(),
            events: 9,
            other: Other::Away { since_events: 8 },
            other_map: 6,
            own: Own::Rebuilding { done_blocks: 77 },
            log_epoch: 5,
            clean: true,
        }
    }

    #[test]
    fn a_superblock_comes_back_in_every_state() {
        let others = [Other::InSync, Other::Away { since_events: 0 }, Other::Lost { since_events: 9 }];
        let owns = [Own::InSync, Own::Behind { since_events: 9 }, Own::Rebuilding { done_blocks: 0 }];
        let names = [String::new(), "mirror".to_owned(), "é".repeat(NAME_BYTES_MAX / 2)];
        for (n, name) in names.into_iter().enumerate() {
            for (other, own) in others.into_iter().flat_map(|other| owns.map(|own| (other, own))) {
                let side = Side::BOTH[n % 2];
                let block =
                    Superblock { name: name.clone(), side, clean: n == 1, other, own, ..superblock(7) };
                assert_eq!(Superblock::decode(&block.encode()), Ok(block));
            }
        }
        // If this fails, the format is another one: change FORMAT and docs/mirror-format.md.
        assert_eq!(crc32c(&superblock(7).encode()), 328_606_047);
    }

    #[test]
    fn every_flipped_bit_of_a_superblock_is_noticed() {
        let mut bytes = superblock(7).encode();
        for bit in 0..BLOCK * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                0..8 => SuperblockError::NotAMirror,
                _ => SuperblockError::Damaged { what: "checksum" },
            };
            assert_eq!(Superblock::decode(&bytes), Err(expected), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!((0..BLOCK).all(|len| Superblock::decode(&bytes[..len]).is_err()));
    }

    /// With a right checksum.
    fn with(at: usize, value: &[u8]) -> [u8; BLOCK] {
        let mut bytes = superblock(7).encode();
        put(&mut bytes, at, value);
        seal(&mut bytes, &MAGIC);
        bytes
    }

    #[test]
    fn values_without_sense_are_refused_by_name() {
        let cases: [(usize, &[u8], &str); 14] = [
            (72, &u64::MAX.to_le_bytes(), "geometry"),
            (72, &0u64.to_le_bytes(), "geometry"),
            (80, &0u64.to_le_bytes(), "geometry"),
            (88, &(1u64 << 63).to_le_bytes(), "geometry"),
            (96, &(1u64 << 20).to_le_bytes(), "geometry"),
            (104, &0u64.to_le_bytes(), "geometry"),
            (128, &10u64.to_le_bytes(), "events"),
            (136, &u64::MAX.to_le_bytes(), "own state"),
            (144, &[2], "side"),
            (145, &[3], "state of the other disk"),
            (146, &[3], "own state"),
            (147, &[2], "clean"),
            (148, &[65], "name"),
            (NAME_AT, &[0xff], "name"),
        ];
        for (at, value, what) in cases {
            let found = Superblock::decode(&with(at, value));
            assert_eq!(found, Err(SuperblockError::Damaged { what }), "at {at}");
        }
        let other = SuperblockError::OtherFormat { found: 2, known: FORMAT };
        assert_eq!(Superblock::decode(&with(12, &[2])), Err(other));
    }

    #[test]
    fn a_write_torn_at_any_byte_leaves_the_superblock_before_it() {
        let mut slots = [[0; BLOCK]; 2];
        for written in 1..=4 {
            let new = superblock(written);
            let slot = new.slot();
            for cut in 0..=BLOCK {
                let mut torn = slots;
                torn[slot][..cut].copy_from_slice(&new.encode()[..cut]);
                let newest = Superblock::newest([&torn[0], &torn[1]]);
                match newest {
                    Ok(found) => assert!(found == new || found == superblock(written - 1), "{cut}"),
                    // The first write of all.
                    Err(_) => assert!(written == 1 && cut < BLOCK),
                }
            }
            slots[slot] = new.encode();
            assert_eq!(Superblock::newest([&slots[0], &slots[1]]), Ok(new));
        }
    }

    #[test]
    fn the_newest_slot_counts_and_one_of_another_format_always() {
        use SuperblockError::*;
        let (ours, newer) = (superblock(7).encode(), superblock(8).encode());
        let (blank, other) = ([0; BLOCK], with(12, &[2]));
        let mut damaged = ours;
        damaged[200] ^= 1;
        let mut foreign = superblock(9);
        foreign.mirror = MirrorId([9; 16]);
        let wrong = Damaged { what: "checksum" };
        for (a, b, expected) in [
            (&ours, &newer, Ok(superblock(8))),
            (&ours, &blank, Ok(superblock(7))),
            (&ours, &damaged, Ok(superblock(7))),
            (&ours, &other, Err(OtherFormat { found: 2, known: 1 })),
            (&damaged, &other, Err(OtherFormat { found: 2, known: 1 })),
            (&damaged, &blank, Err(wrong)),
            (&blank, &blank, Err(NotAMirror)),
            (&ours, &foreign.encode(), Err(TwoMirrors)),
        ] {
            assert_eq!(Superblock::newest([a, b]), expected);
            assert_eq!(Superblock::newest([b, a]), expected);
        }
    }

    #[test]
    fn made_up_superblocks_are_refused_or_read() {
        ebb_testing::fuzz(&[&superblock(7).encode(), &superblock(1).encode()], |bytes| {
            let _ = Superblock::decode(bytes);
            // As if the checksum were right.
            let mut bytes = bytes.to_vec();
            bytes.resize(BLOCK, 0);
            seal(&mut bytes, &MAGIC);
            if let Ok(found) = Superblock::decode(&bytes) {
                assert!(found.geometry.data_at(found.geometry.data_blocks()) >= found.geometry.log_offset());
                assert_eq!(Superblock::decode(&found.encode()), Ok(found));
            }
        });
    }
}
