//! What a server offers: a named range of bytes, and its rules.

use crate::wire;

/// Lengths in bytes. The protocol's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSizes {
    /// Every request begins and ends at a multiple of it. A power of two, at most 64 KiB.
    pub minimum: u32,
    /// Requests of whole blocks of this size are served best. A power of two, at least 512 and `minimum`.
    pub preferred: u32,
    /// The longest payload of a read or write: a multiple of `minimum`, at least 64 KiB and `preferred`. Clients that
    /// do not ask for it send up to 32 MiB.
    pub maximum: u32,
}

/// A block device that clients open by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Unique in its server. At most 4096 bytes, of which none is 0.
    pub name: String,
    /// For people; may be empty. As long as a name.
    pub description: String,
    /// Bytes: a multiple of the smallest block.
    pub size: u64,
    pub block: BlockSizes,
    /// Writes, trims and zeroes are refused.
    pub read_only: bool,
    /// The client should prefer sequential requests.
    pub rotational: bool,
    /// A client may use several connections at once: what one of them wrote is seen by the others, and a flush on one
    /// covers what was answered on the others.
    pub multi_conn: bool,
}

/// Why an export cannot be offered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadExport {
    #[error("the name and the description of an export must be at most 4096 bytes each, none of them 0")]
    Text,
    #[error(
        "{0:?}: the smallest block must be a power of two up to 64 KiB, the preferred one a power of two from 512, the longest \
         payload a multiple of the smallest block from 64 KiB, each at least as long as the one before"
    )]
    Block(BlockSizes),
    #[error("the size, {size} bytes, is not a multiple of the smallest block, {minimum} bytes")]
    Size { size: u64, minimum: u32 },
}

impl Export {
    /// Whether it keeps the rules of its fields. Names of a server's other exports are not compared.
    pub fn check(&self) -> Result<(), BadExport> {
        let BlockSizes { minimum, preferred, maximum } = self.block;
        let is_text = |text: &str| text.len() <= wire::TEXT_MAX && !text.contains('\0');
        if !is_text(&self.name) || !is_text(&self.description) {
            return Err(BadExport::Text);
        }
        let smallest = minimum.is_power_of_two() && minimum <= 1 << 16;
        let better = preferred.is_power_of_two() && preferred >= minimum.max(512);
        // A chunk of a reply has a length of 32 bits, of which 8 bytes are the offset.
        let longest = (preferred.max(1 << 16)..=u32::MAX - 8).contains(&maximum);
        if !smallest || !better || !longest || !maximum.is_multiple_of(minimum) {
            return Err(BadExport::Block(self.block));
        }
        if !self.size.is_multiple_of(minimum.into()) {
            return Err(BadExport::Size { size: self.size, minimum });
        }
        Ok(())
    }

    /// What the client may send.
    pub(crate) fn flags(&self, structured: bool) -> u16 {
        let mut flags = wire::HAS_FLAGS | wire::SEND_FLUSH | wire::SEND_FUA | wire::SEND_CACHE;
        flags |= match self.read_only {
            true => wire::READ_ONLY,
            false => wire::SEND_TRIM | wire::SEND_WRITE_ZEROES | wire::SEND_FAST_ZERO,
        };
        for (set, flag) in [
            (self.rotational, wire::ROTATIONAL),
            (self.multi_conn, wire::CAN_MULTI_CONN),
            (structured, wire::SEND_DF),
        ] {
            flags |= if set { flag } else { 0 };
        }
        flags
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_that_breaks_a_rule_is_named() {
        let block = BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 20 };
        let good = Export {
            name: "a".to_owned(),
            description: String::new(),
            size: 1024,
            block,
            read_only: false,
            rotational: false,
            multi_conn: false,
        };
        assert_eq!(good.check(), Ok(()));
        assert_eq!(Export { size: 0, ..good.clone() }.check(), Ok(()));
        for text in ["a\0", &"x".repeat(4097)] {
            assert_eq!(Export { name: text.to_owned(), ..good.clone() }.check(), Err(BadExport::Text));
            assert_eq!(Export { description: text.to_owned(), ..good.clone() }.check(), Err(BadExport::Text));
        }
        assert_eq!(
            Export { size: 1000, ..good.clone() }.check(),
            Err(BadExport::Size { size: 1000, minimum: 512 })
        );
        for block in [
            BlockSizes { minimum: 0, ..block },
            BlockSizes { minimum: 513, ..block },
            BlockSizes { minimum: 1 << 17, preferred: 1 << 17, ..block },
            BlockSizes { minimum: 1, preferred: 256, ..block },
            BlockSizes { preferred: 5000, ..block },
            BlockSizes { minimum: 8192, ..block },
            BlockSizes { maximum: 1 << 15, ..block },
            BlockSizes { preferred: 1 << 21, ..block },
            BlockSizes { maximum: (1 << 20) + 1, ..block },
            BlockSizes { minimum: 1, maximum: u32::MAX - 7, ..block },
        ] {
            assert_eq!(Export { block, ..good.clone() }.check(), Err(BadExport::Block(block)));
        }
    }
}
