//! What the data servers keep for the parity servers: rows of strips that a parity server has not, by parity.

use std::collections::BTreeSet;

/// A row: the stripe and its place within each strip.
pub type Row = u64;
/// What a row is kept once for: all writes that have one number.
pub type Write = u64;

#[derive(Default)]
struct ForOne {
    waiting: BTreeSet<(Row, Write)>,
    /// Being sent; they take memory until they have arrived.
    sending: u64,
    /// It takes changes at once.
    is_awake: bool,
}

pub struct Kept {
    row_bytes: u64,
    extra: u64,
    parities: Vec<ForOne>,
}

impl Kept {
    pub fn new(parities: usize, extra: usize, row_bytes: u64) -> Kept {
        let parities = (0..parities).map(|_| ForOne::default()).collect();
        Kept { row_bytes, extra: extra as u64, parities }
    }

    pub fn change(&mut self, rows: impl Iterator<Item = Row> + Clone, write: Write) {
        for parity in self.parities.iter_mut().filter(|parity| !parity.is_awake) {
            parity.waiting.extend(rows.clone().map(|row| (row, write)));
        }
    }

    /// Servers that a change of one strip goes to: the sleepers' holders and those of the extra strips, and who is
    /// awake.
    pub fn messages(&self) -> u64 {
        let asleep = self.parities.iter().any(|parity| !parity.is_awake);
        self.parities.len() as u64 + if asleep { self.extra } else { 0 }
    }

    pub fn is_awake(&self, parity: usize) -> bool {
        self.parities[parity].is_awake
    }

    /// It gets everything now, and changes at once. Returns the bytes to send.
    pub fn send(&mut self, parity: usize) -> u64 {
        let one = &mut self.parities[parity];
        one.is_awake = true;
        one.sending = std::mem::take(&mut one.waiting).len() as u64;
        one.sending * self.row_bytes
    }

    pub fn sent(&mut self, parity: usize) {
        self.parities[parity].sending = 0;
    }

    pub fn sleep(&mut self, parity: usize) {
        self.parities[parity].is_awake = false;
    }

    /// Bytes of memory in all data servers. The extra strips are kept as long as any parity is.
    pub fn bytes(&self) -> u64 {
        let rows = |one: &ForOne| one.waiting.len() as u64 + one.sending;
        let most = self.parities.iter().map(rows).max().unwrap_or(0);
        let all: u64 = self.parities.iter().map(rows).sum();
        (all + self.extra * most) * self.row_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_kept_once_for_each_sleeper_and_the_extra_strip() {
        let mut kept = Kept::new(3, 1, 512);
        kept.change([1, 2].into_iter(), 0);
        kept.change([2, 3].into_iter(), 0);
        assert_eq!((kept.bytes(), kept.messages()), (3 * 4 * 512, 4));
        assert_eq!(kept.send(0), 3 * 512);
        kept.change([9].into_iter(), 0);
        assert_eq!(kept.bytes(), (3 + 4 + 4 + 4) * 512, "P1 is on its way, and takes the new change itself");
        kept.sent(0);
        assert_eq!(kept.bytes(), (4 + 4 + 4) * 512);
        for parity in [1, 2] {
            assert_eq!(kept.send(parity), 4 * 512);
            kept.sent(parity);
        }
        assert_eq!(
            (kept.bytes(), kept.messages()),
            (0, 3),
            "without sleepers, no server keeps an extra strip"
        );
        kept.sleep(1);
        kept.change([5].into_iter(), 0);
        assert_eq!(kept.bytes(), 2 * 512);
    }

    #[test]
    fn a_row_is_kept_once_for_each_number_that_its_writes_have() {
        let mut kept = Kept::new(1, 0, 512);
        kept.change([1, 2].into_iter(), 7);
        kept.change([2, 3].into_iter(), 7);
        assert_eq!(kept.bytes(), 3 * 512);
        kept.change([2, 3].into_iter(), 8);
        assert_eq!((kept.bytes(), kept.send(0)), (5 * 512, 5 * 512));
    }
}
