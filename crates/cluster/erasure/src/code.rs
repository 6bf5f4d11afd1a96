//! Reed–Solomon coding of strips. The kernels are the library's; which strips give which is ours, because the strips
//! that the data servers keep for sleepers ([`crate::Awake`]) are not a code of which any k suffice.

use crate::Shape;
use crate::rows::Rows;
use rusty_erasure::Coder;

/// The wanted strips do not follow from those that are present.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("strips {wanted:?} cannot be rebuilt from strips {present:?}: too many are lost")]
pub struct Unrecoverable {
    pub present: Vec<usize>,
    pub wanted: Vec<usize>,
}

/// k data strips, and others that are sums of them. Strips are numbered: 0 to k-1 are data, the others follow. All
/// strips of a call have one length.
#[derive(Debug)]
pub struct Code {
    rows: Rows,
    coder: Coder,
}

impl Code {
    /// The m parity strips that the parity servers keep; the first one is the XOR of the data.
    pub fn new(shape: Shape) -> Code {
        Code::with(Rows::new(shape.data(), Rows::parity(shape.data(), shape.parity())))
    }

    pub(crate) fn with(rows: Rows) -> Code {
        let coder = rusty_erasure::coder(rows.matrix()).expect("there are strips beside the data");
        Code { rows, coder }
    }

    /// All strips.
    pub fn strips(&self) -> usize {
        self.rows.len()
    }

    /// Which of the present strips are needed for the wanted ones; `None`: they do not suffice.
    pub fn sources(&self, present: &[usize], wanted: &[usize]) -> Option<Vec<usize>> {
        self.rows.solve(present, wanted).map(|solution| solution.sources)
    }

    /// Fills all strips but the data.
    pub fn encode(&self, data: &[&[u8]], further: &mut [&mut [u8]]) {
        self.coder.encode(data, further).expect("k strips of one length, and room for the others");
    }

    /// Rebuilds strips, data or not, from some of those that are present; earlier ones are preferred.
    pub fn recover(
        &self,
        present: &[(usize, &[u8])],
        wanted: &[usize],
        out: &mut [&mut [u8]],
    ) -> Result<(), Unrecoverable> {
        assert_eq!(wanted.len(), out.len(), "room for each wanted strip");
        let numbers: Vec<usize> = present.iter().map(|(strip, _)| *strip).collect();
        let Some(solution) = self.rows.solve(&numbers, wanted) else {
            return Err(Unrecoverable { present: numbers, wanted: wanted.to_vec() });
        };
        let bytes =
            |strip: &usize| present.iter().find(|(number, _)| number == strip).expect("it is present").1;
        let sources: Vec<&[u8]> = solution.sources.iter().map(bytes).collect();
        solution.coder().encode(&sources, out).expect("strips of one length");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Awake;
    use ebb_types::Random;

    /// Multiplication as defined, bit by bit.
    fn times(a: u8, b: u8) -> u8 {
        let step = |(product, a): (u8, u8), bit: u8| {
            let product = if b >> bit & 1 == 1 { product ^ a } else { product };
            (product, a << 1 ^ if a & 0x80 != 0 { 0x1d } else { 0 })
        };
        (0..8).fold((0, a), step).0
    }

    fn naive(row: &[u8], data: &[Vec<u8>]) -> Vec<u8> {
        let at = |n: usize| row.iter().zip(data).fold(0, |sum, (c, strip)| sum ^ times(*c, strip[n]));
        (0..data[0].len()).map(at).collect()
    }

    fn codes() -> impl Iterator<Item = Code> {
        let shapes = (2..=12).flat_map(|k| (1..=4).map(move |r| Shape::new(k, r).expect("a shape")));
        shapes.flat_map(|shape| [Some(Code::new(shape)), awake(shape)].into_iter().flatten())
    }

    fn awake(shape: Shape) -> Option<Code> {
        let awake = Awake::new(shape, 1).ok()?;
        Some(Code::with(Rows::new(
            shape.data(),
            (shape.data()..awake.code().strips()).map(|n| awake.code().rows.all[n].clone()).collect(),
        )))
    }

    fn strip(random: &mut Random, length: usize) -> Vec<u8> {
        (0..length).map(|_| random.below(256) as u8).collect()
    }

    fn encoded(code: &Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut further = vec![vec![0; data[0].len()]; code.strips() - data.len()];
        let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        code.encode(&sources, &mut further.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        further
    }

    /// Kernels, matrices and solver against the definition, for all shapes, at odd lengths.
    #[test]
    fn strips_are_encoded_and_rebuilt_as_defined() {
        let mut random = Random::new(7);
        for code in codes() {
            let k = code.rows.data;
            let length = 1 + random.below(300) as usize;
            let data: Vec<Vec<u8>> = (0..k).map(|_| strip(&mut random, length)).collect();
            let further = encoded(&code, &data);
            for (n, strip) in further.iter().enumerate() {
                assert_eq!(*strip, naive(&code.rows.all[k + n], &data));
            }
            rebuild(&code, &mut random, &[data, further].concat());
        }
    }

    /// Any k strips of those that are there, in any order, rebuild what follows from them.
    fn rebuild(code: &Code, random: &mut Random, all: &[Vec<u8>]) {
        let (k, length) = (code.rows.data, all[0].len());
        let mut order: Vec<usize> = (0..all.len()).collect();
        for n in (1..order.len()).rev() {
            order.swap(n, random.below(n as u64 + 1) as usize);
        }
        let present: Vec<(usize, &[u8])> = order[..k].iter().map(|n| (*n, all[*n].as_slice())).collect();
        for (wanted, strip) in all.iter().enumerate() {
            let mut out = vec![0; length];
            let found = code.recover(&present, &[wanted], &mut [&mut out]);
            assert_eq!(found.is_ok(), code.sources(&order[..k], &[wanted]).is_some());
            if found.is_ok() {
                assert_eq!(out, *strip, "strip {wanted} from {:?}", &order[..k]);
            }
        }
    }

    #[test]
    fn too_few_strips_are_an_error_that_names_them() {
        let code = Code::new(Shape::new(3, 2).expect("a shape"));
        let strip = [0; 4];
        let error = code.recover(&[(0, &strip), (3, &strip)], &[1], &mut [&mut [0; 4]]).unwrap_err();
        assert_eq!(error, Unrecoverable { present: vec![0, 3], wanted: vec![1] });
    }
}
