//! Strips as sums of the data strips: one row of coefficients each, in GF(2^8) with polynomial 0x11d. The first k rows
//! are the data strips themselves.

use crate::Shape;
use rusty_erasure::{Coder, Matrix, gf};

/// Of so many strips any k are independent, as ISA-L says of `gf_gen_rs_matrix`. Of more they are not.
const _: () = assert!(Shape::DATA_MAX <= 21 && Shape::PARITY_MAX <= 4);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub data: usize,
    pub all: Vec<Vec<u8>>,
}

/// Some strips as sums of others.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Solution {
    /// Strips that are needed.
    pub sources: Vec<usize>,
    /// For each wanted strip, a coefficient for each source.
    pub coefficients: Vec<Vec<u8>>,
}

impl Rows {
    /// `further`: the rows after the data strips'.
    pub fn new(data: usize, further: Vec<Vec<u8>>) -> Rows {
        let unit = |n| (0..data).map(|column| u8::from(column == n)).collect();
        let all: Vec<Vec<u8>> = (0..data).map(unit).chain(further).collect();
        assert!(all.iter().all(|row| row.len() == data), "a coefficient for each data strip");
        Rows { data, all }
    }

    /// Rows of the code: ISA-L's, whose first parity is the XOR of the data. Any k are independent for all shapes.
    pub fn parity(data: usize, parity: usize) -> Vec<Vec<u8>> {
        (0..parity).map(|exponent| Rows::powers(data, exponent)).collect()
    }

    /// Coefficients 2^(exponent · i) for data strip i.
    pub fn powers(data: usize, exponent: usize) -> Vec<u8> {
        (0..data).map(|column| power(exponent * column)).collect()
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// All rows, for the kernels.
    pub fn matrix(&self) -> Matrix {
        Matrix::from_bytes(self.len(), self.data, self.all.concat()).expect("its dimensions are right")
    }

    /// The wanted strips from some of those that are present; earlier ones are preferred. `None`: they do not suffice.
    pub fn solve(&self, present: &[usize], wanted: &[usize]) -> Option<Solution> {
        // Each reduced row stands beside the sum of present rows that it is.
        let mut reduced: Vec<(usize, Vec<u8>, Vec<u8>)> = Vec::new();
        for (index, &strip) in present.iter().enumerate() {
            let mut row = self.all[strip].clone();
            let mut sum = vec![0; present.len()];
            sum[index] = 1;
            reduce(&reduced, &mut row, &mut sum);
            if let Some(pivot) = row.iter().position(|c| *c != 0) {
                let scale = gf::inv(row[pivot]);
                row.iter_mut().chain(&mut sum).for_each(|c| *c = gf::mul(*c, scale));
                reduced.push((pivot, row, sum));
            }
        }
        let sum_of = |&strip: &usize| {
            let mut row = self.all[strip].clone();
            let mut sum = vec![0; present.len()];
            reduce(&reduced, &mut row, &mut sum);
            row.iter().all(|c| *c == 0).then_some(sum)
        };
        let sums: Vec<Vec<u8>> = wanted.iter().map(sum_of).collect::<Option<_>>()?;
        let used: Vec<usize> = (0..present.len()).filter(|n| sums.iter().any(|sum| sum[*n] != 0)).collect();
        let pick = |sum: &Vec<u8>| used.iter().map(|n| sum[*n]).collect();
        let solution = Solution {
            sources: used.iter().map(|n| present[*n]).collect(),
            coefficients: sums.iter().map(pick).collect(),
        };
        debug_assert!(solution.gives(wanted, self), "the wanted strips are these sums of present ones");
        Some(solution)
    }
}

impl Solution {
    /// Whether the wanted strips are these sums of their sources.
    fn gives(&self, wanted: &[usize], rows: &Rows) -> bool {
        let sum = |coefficients: &[u8], column: usize| {
            let parts = self.sources.iter().zip(coefficients);
            parts.fold(0, |sum, (source, c)| sum ^ gf::mul(rows.all[*source][column], *c))
        };
        wanted.iter().zip(&self.coefficients).all(|(strip, coefficients)| {
            (0..rows.data).all(|column| sum(coefficients, column) == rows.all[*strip][column])
        })
    }

    pub fn coder(&self) -> Coder {
        let rows = Rows::new(self.sources.len(), self.coefficients.clone());
        rusty_erasure::coder(rows.matrix()).expect("more rows than columns")
    }
}

/// Subtracts the reduced rows that have a part in `row`.
fn reduce(reduced: &[(usize, Vec<u8>, Vec<u8>)], row: &mut [u8], sum: &mut [u8]) {
    for (pivot, other, other_sum) in reduced {
        let factor = row[*pivot];
        if factor != 0 {
            row.iter_mut().zip(other).for_each(|(c, o)| *c ^= gf::mul(*o, factor));
            sum.iter_mut().zip(other_sum).for_each(|(c, o)| *c ^= gf::mul(*o, factor));
        }
    }
}

/// 2 to a power.
fn power(exponent: usize) -> u8 {
    (0..exponent % 255).fold(1, |product, _| gf::mul(product, 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_parity_is_the_xor_and_all_are_isa_ls() {
        for k in 2..=12 {
            for r in 1..=4 {
                let rows = Rows::new(k, Rows::parity(k, r));
                assert_eq!(rows.matrix(), Matrix::reed_solomon(k, r).unwrap());
                assert_eq!(rows.all[k], vec![1; k]);
            }
        }
    }

    #[test]
    fn a_strip_is_solved_from_no_more_than_it_needs() {
        let rows = Rows::new(3, vec![vec![1, 1, 1], vec![1, 1, 0]]);
        let solve = |present: &[usize], wanted: &[usize]| rows.solve(present, wanted);
        let of = |sources: &[usize], coefficients: &[&[u8]]| {
            Some(Solution {
                sources: sources.to_vec(),
                coefficients: coefficients.iter().map(|c| c.to_vec()).collect(),
            })
        };
        assert_eq!(solve(&[0, 1, 2], &[1]), of(&[1], &[&[1]]));
        assert_eq!(solve(&[3, 4], &[2]), of(&[3, 4], &[&[1, 1]]));
        assert_eq!(solve(&[0, 1, 4], &[2]), None, "the last one knows nothing of it");
        assert_eq!(solve(&[0, 4, 3], &[1, 2]), of(&[0, 4, 3], &[&[1, 1, 0], &[0, 1, 1]]));
    }
}
