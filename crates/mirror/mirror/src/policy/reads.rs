//! Which disk serves a read: spread evenly while both disks can be at low speed, else concentrated on one, so that the
//! other can stay low [LogStore §3.1].
//!
//! A disk at high speed is preferred; between equals the choice of before stays. The paper uses the other disk "when
//! the first disk is nearly saturated"; we then spread until the first could serve all reads again. Ending it as soon
//! as the first is below the limit would end it by its own effect.

use crate::{PolicyKind, Side, Speed, Thresholds};

/// What the distribution of reads depends on, of one disk. Utilisations, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadLoad {
    pub speed: Speed,
    pub util: f64,
    /// Predicted at low speed.
    pub at_low: f64,
    /// Part of `util` that reads cause.
    pub reads: f64,
}

/// Distribution of reads over the two disks.
#[derive(Clone, Debug)]
pub struct Reads {
    kind: PolicyKind,
    /// Reads are concentrated on it, unless they are spread.
    first: Side,
    is_spread: bool,
    /// The first disk is nearly saturated.
    overflows: bool,
    last: Side,
}

impl Reads {
    pub fn new(kind: PolicyKind) -> Reads {
        let is_spread = kind != PolicyKind::Div;
        Reads { kind, first: Side::A, is_spread, overflows: false, last: Side::B }
    }

    /// The disk that reads are or would be concentrated on.
    pub fn first(&self) -> Side {
        self.first
    }

    /// At the start of each epoch, with the loads of the last one, by side.
    pub fn at_epoch(&mut self, thresholds: &Thresholds, loads: [ReadLoad; 2]) {
        let [a, b] = loads;
        self.first = match (a.speed, b.speed) {
            (Speed::High, Speed::Low) => Side::A,
            (Speed::Low, Speed::High) => Side::B,
            _ => self.first,
        };
        self.is_spread = match self.kind {
            PolicyKind::LogStore | PolicyKind::TwoSpeed => a.at_low + b.at_low < thresholds.balance,
            PolicyKind::Div => false,
            PolicyKind::OneSpeed => true,
        };
        let (first, other) = (loads[self.first.index()], loads[(!self.first).index()]);
        self.overflows = first.util >= thresholds.saturated
            || self.overflows && first.util + other.reads >= thresholds.saturated;
    }

    /// The disk for a read. `able`, by side: it holds the newest data and is not changing its speed. `None`: none is.
    pub fn choose(&mut self, able: [bool; 2]) -> Option<Side> {
        let wanted = if self.is_spread || self.overflows { !self.last } else { self.first };
        let side = [wanted, !wanted].into_iter().find(|side| able[side.index()])?;
        self.last = side;
        Some(side)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Side::{A, B};

    const BOTH: [bool; 2] = [true; 2];

    fn low(util: f64) -> ReadLoad {
        ReadLoad { speed: Speed::Low, util, at_low: util, reads: util / 2.0 }
    }

    /// At low speed it would be twice as busy.
    fn high(util: f64) -> ReadLoad {
        ReadLoad { speed: Speed::High, util, at_low: 2.0 * util, reads: util / 2.0 }
    }

    fn after(kind: PolicyKind, epochs: &[[ReadLoad; 2]]) -> Reads {
        let mut reads = Reads::new(kind);
        epochs.iter().for_each(|loads| reads.at_epoch(&Thresholds::default(), *loads));
        reads
    }

    fn four(reads: &mut Reads) -> Vec<Side> {
        (0..4).filter_map(|_| reads.choose(BOTH)).collect()
    }

    #[test]
    fn below_balance_reads_alternate_and_from_balance_on_one_disk_takes_them() {
        assert_eq!(four(&mut Reads::new(PolicyKind::LogStore)), [A, B, A, B], "before anything is known");
        for kind in [PolicyKind::LogStore, PolicyKind::TwoSpeed] {
            assert_eq!(four(&mut after(kind, &[[low(0.29), low(0.29)]])), [A, B, A, B]);
            assert_eq!(four(&mut after(kind, &[[low(0.25), low(0.35)]])), [A; 4]);
            assert_eq!(four(&mut after(kind, &[[high(0.15), low(0.29)]])), [A, B, A, B]);
            assert_eq!(four(&mut after(kind, &[[high(0.15), low(0.3)]])), [A; 4]);
        }
    }

    #[test]
    fn the_disk_at_high_speed_takes_them_and_the_choice_stays() {
        let to_b = [low(0.4), high(0.4)];
        for then in [[low(0.4), low(0.4)], [high(0.4), high(0.4)]] {
            assert_eq!(four(&mut after(PolicyKind::LogStore, &[to_b, then, then])), [B; 4]);
        }
        let spread = [low(0.1), low(0.1)];
        assert_eq!(four(&mut after(PolicyKind::LogStore, &[to_b, spread, [low(0.4), low(0.4)]])), [B; 4]);
    }

    #[test]
    fn the_other_disk_helps_while_the_first_could_not_serve_all_reads() {
        let calm = [high(0.89), low(0.3)];
        assert_eq!(four(&mut after(PolicyKind::LogStore, &[calm])), [A; 4]);
        let saturated = [high(0.9), low(0.3)];
        assert_eq!(four(&mut after(PolicyKind::LogStore, &[saturated])), [A, B, A, B]);
        let helped = [high(0.6), low(0.7)];
        assert_eq!(
            four(&mut after(PolicyKind::LogStore, &[saturated, helped])),
            [A, B, A, B],
            "0.6 + 0.35 is too much"
        );
        let less = [high(0.6), low(0.5)];
        assert_eq!(four(&mut after(PolicyKind::LogStore, &[saturated, helped, less])), [A; 4]);
        assert_eq!(four(&mut after(PolicyKind::LogStore, &[helped])), [A; 4]);
    }

    #[test]
    fn a_disk_in_transition_serves_nothing() {
        for epochs in [[low(0.1), low(0.1)], [high(0.5), low(0.3)]] {
            let mut reads = after(PolicyKind::LogStore, &[epochs]);
            for _ in 0..3 {
                assert_eq!(reads.choose([false, true]), Some(B));
                assert_eq!(reads.choose([true, false]), Some(A));
                assert_eq!(reads.choose([false, false]), None);
            }
        }
    }

    #[test]
    fn div_always_concentrates_and_one_speed_always_spreads() {
        assert_eq!(four(&mut Reads::new(PolicyKind::Div)), [A; 4]);
        assert_eq!(four(&mut after(PolicyKind::Div, &[[low(0.1), low(0.1)]])), [A; 4]);
        assert_eq!(four(&mut after(PolicyKind::Div, &[[low(0.95), low(0.1)]])), [A, B, A, B]);
        assert_eq!(four(&mut after(PolicyKind::OneSpeed, &[[high(0.5), high(0.5)]])), [A, B, A, B]);
    }
}
