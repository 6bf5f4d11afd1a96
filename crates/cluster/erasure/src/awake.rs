//! Which data server keeps which parity while the parity servers sleep [ECS² §3.2, §3.6, Appendix].
//!
//! Each parity strip of a stripe waits in the memory of one data server, and Δm extra strips in those of others, no two
//! in one. A server that fails takes its data strip and what it kept for the sleepers. The extra strips make up for the
//! latter, so that the data servers alone survive ⌈(m+1)/2⌉ failures:
//!
//! | m | extra strips | survives |
//! |---|---|---|
//! | 1 | Q1 = P1: a copy | 1 |
//! | 2 | Q1 = P1 ⊕ D\[P2\], Q2 = D\[P1\] ⊕ D\[P2\] | 2 |
//! | 3 | Q1 = P1 ⊕ D\[P2\] | 2 |
//! | 4 | Q1, Q2: coefficients 2^(4i) and 2^(10i) for data strip i | 3 |
//!
//! D\[Pj\] is the data strip of the server that keeps Pj. m = 2 and 3 are the paper's; m = 1 and 4 are ours. The
//! paper's general construction, two more rows of the Vandermonde matrix, does not survive every failure: at 9+4, three
//! are fatal in one turn. The exponents 4 and 10 are the first pair of which all survive, found by trying them in
//! order.
//!
//! Stripes differ in their `turn`, by which the strips wander over the servers: each keeps its share. The paper fills
//! one region after the other instead [ECS² Algorithm 1], which loads one server at a time.

use crate::rows::Rows;
use crate::{Code, Shape, ShapeError};

/// Of the extra strips for m = 4.
const EXPONENTS: [usize; 2] = [4, 10];

/// The strips of one turn.
#[derive(Debug)]
pub struct Awake {
    shape: Shape,
    /// For each strip beside the data, the data server that keeps it.
    holders: Vec<usize>,
    code: Code,
}

impl Awake {
    /// Refuses a shape that [`Shape::may_sleep`] refuses.
    pub fn new(shape: Shape, turn: usize) -> Result<Awake, ShapeError> {
        shape.may_sleep()?;
        let kept = shape.parity() + shape.extra();
        let holders: Vec<usize> = (0..kept).map(|strip| (turn + strip) % shape.data()).collect();
        let parity = Rows::parity(shape.data(), shape.parity());
        let extra = extra(shape, &parity, &holders);
        assert!(kept <= shape.data(), "no data server keeps two strips for sleepers");
        assert_eq!(extra.len(), shape.extra(), "a row for each extra strip");
        let code = Code::with(Rows::new(shape.data(), [parity, extra].concat()));
        Ok(Awake { shape, holders, code })
    }

    pub fn into_code(self) -> Code {
        self.code
    }

    /// Strips 0 to k-1 are data, then the m parities, then the extra ones.
    pub fn code(&self) -> &Code {
        &self.code
    }

    /// The data server, 0 to k-1, that keeps a strip: its own data strip, or one for a sleeper.
    pub fn holder(&self, strip: usize) -> usize {
        strip.checked_sub(self.shape.data()).map_or(strip, |kept| self.holders[kept])
    }

    /// The strips that are left when data servers fail.
    pub fn left(&self, failed: &[usize]) -> Vec<usize> {
        (0..self.code.strips()).filter(|strip| !failed.contains(&self.holder(*strip))).collect()
    }
}

fn extra(shape: Shape, parity: &[Vec<u8>], holders: &[usize]) -> Vec<Vec<u8>> {
    let data_of = |strip: usize| unit(shape.data(), holders[strip]);
    match shape.parity() {
        1 => vec![parity[0].clone()],
        2 => vec![sum(&parity[0], &data_of(1)), sum(&data_of(0), &data_of(1))],
        3 => vec![sum(&parity[0], &data_of(1))],
        _ => EXPONENTS.map(|exponent| Rows::powers(shape.data(), exponent)).to_vec(),
    }
}

fn unit(data: usize, strip: usize) -> Vec<u8> {
    (0..data).map(|column| u8::from(column == strip)).collect()
}

fn sum(a: &[u8], b: &[u8]) -> Vec<u8> {
    a.iter().zip(b).map(|(a, b)| a ^ b).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures(servers: usize, count: usize) -> Vec<Vec<usize>> {
        let sets = (0u32..1 << servers).filter(|set| set.count_ones() as usize == count);
        sets.map(|set| (0..servers).filter(|server| set >> server & 1 == 1).collect()).collect()
    }

    /// Every shape, every turn, every set of failed data servers: all that they kept is rebuilt from the others.
    #[test]
    fn the_awake_servers_alone_survive_what_ecs2_promises() {
        let mut tried = [0; 5];
        for k in 2..=12 {
            for r in 1..=4 {
                let shape = Shape::new(k, r).unwrap();
                if shape.may_sleep().is_err() {
                    assert!(matches!(Awake::new(shape, 0), Err(ShapeError::Narrow { .. })));
                    continue;
                }
                for turn in 0..shape.data() {
                    let awake = Awake::new(shape, turn).unwrap();
                    let all: Vec<usize> = (0..awake.code().strips()).collect();
                    for failed in failures(shape.data(), shape.awake_tolerance()) {
                        let left = awake.left(&failed);
                        assert!(
                            awake.code().sources(&left, &all).is_some(),
                            "{shape} turn {turn} {failed:?}"
                        );
                        tried[shape.parity()] += 1;
                    }
                }
            }
        }
        // Sums over k of k times k over the tolerance.
        assert_eq!(tried, [0, 649, 2_706, 2_706, 7_224]);
    }

    /// The extra strips are needed: without them, some failures of that number are fatal.
    #[test]
    fn without_extra_strips_the_awake_servers_survive_one_failure_less() {
        for r in 1..=4 {
            let shape = Shape::new(8, r).unwrap();
            let awake = Awake::new(shape, 0).unwrap();
            let all: Vec<usize> = (0..shape.data()).collect();
            let survives = |failed: &Vec<usize>| {
                let left = awake
                    .left(failed)
                    .into_iter()
                    .filter(|strip| *strip < shape.servers())
                    .collect::<Vec<_>>();
                awake.code().sources(&left, &all).is_some()
            };
            assert!(!failures(8, shape.awake_tolerance()).iter().all(survives), "{shape}");
            assert!(failures(8, shape.parity() / 2).iter().all(survives), "{shape}");
        }
    }

    /// The layout of Figure 3: P1 on DN3, P2 on DN4, P3 on DN6, Q1 on DN2. Servers and strips count from 0 here.
    fn figure_3() -> Awake {
        let shape = Shape::new(6, 3).unwrap();
        let holders = vec![2, 3, 5, 1];
        let parity = Rows::parity(6, 3);
        let extra = extra(shape, &parity, &holders);
        Awake { shape, holders, code: Code::with(Rows::new(6, [parity, extra].concat())) }
    }

    const P1: usize = 6;
    const P2: usize = 7;
    const P3: usize = 8;
    const Q1: usize = 9;

    /// [ECS² Table III], row by row: the blocks that are left, and what they give.
    #[test]
    fn table_iii_double_failures_are_decoded_from_the_blocks_that_it_lists() {
        let awake = figure_3();
        let rows: [(&[usize], &[usize]); 6] = [
            (&[1, 2], &[0, 3, 4, 5, P2, P3]),
            (&[1, 3], &[0, 2, 4, 5, P1, P3]),
            (&[1, 5], &[0, 1, 2, 3, 4, P1]),
            (&[2, 3], &[0, 1, 4, 5, Q1, P3]),
            (&[2, 5], &[0, 1, 3, 4, Q1, P2]),
            (&[3, 5], &[0, 1, 2, 4, Q1, P1]),
        ];
        for (failed, listed) in rows {
            let left = awake.left(failed);
            // In the row of DN2 and DN6, the paper lists D2, which was on DN2: P2 stands in for it.
            let listed: Vec<usize> = match failed {
                [1, 5] => vec![0, 2, 3, 4, P1, P2],
                _ => listed.to_vec(),
            };
            assert!(listed.iter().all(|strip| left.contains(strip)), "{failed:?}: {listed:?} of {left:?}");
            assert!(awake.code().sources(&listed, &[0, 1, 2, 3, 4, 5]).is_some(), "{failed:?}");
        }
        for failed in [[0, 1], [1, 4], [0, 4]] {
            assert!(awake.left(&failed).len() >= 7, "of ten, so that one more may fail: {failed:?}");
        }
    }

    #[test]
    fn table_iii_auxiliary_blocks_are_sums_of_those_that_it_names() {
        let awake = figure_3();
        let sources = |present: &[usize], wanted| awake.code().sources(present, &[wanted]);
        assert_eq!(sources(&[Q1, 0, 1, 4, 5], 2), Some(vec![Q1, 0, 1, 4, 5]), "D3 = Q1 + D1 + D2 + D5 + D6");
        assert_eq!(sources(&[Q1, 3], P1), Some(vec![Q1, 3]), "P1 = Q1 + D4");
        assert_eq!(sources(&[P1, Q1], 3), Some(vec![P1, Q1]), "D4 = P1 + Q1");
    }

    #[test]
    fn figure_5_after_synchronisation_any_three_of_nine_may_fail() {
        let code = Code::new(Shape::new(6, 3).unwrap());
        let all: Vec<usize> = (0..9).collect();
        for failed in failures(9, 3) {
            let left: Vec<usize> = all.iter().copied().filter(|strip| !failed.contains(strip)).collect();
            assert!(code.sources(&left, &all).is_some(), "{failed:?}");
        }
    }
}
