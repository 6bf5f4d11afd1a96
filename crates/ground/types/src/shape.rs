//! How many servers of a set keep data, and how many keep parity.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// k data and m parity servers; written `6+3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Shape {
    data: u8,
    parity: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    #[error("the code is {0:?}: write it as data and parity servers, such as 6+3")]
    Form(String),
    #[error("the code has {0} data servers: give it {min} to {max}", min = Shape::DATA_MIN, max = Shape::DATA_MAX)]
    Data(u8),
    #[error(
        "the code has {0} parity servers: give it 1 to {max}; without parity a set loses data with its first disk",
        max = Shape::PARITY_MAX
    )]
    Parity(u8),
    #[error(
        "the code {shape} needs {needed} data servers to keep the parity while its servers sleep: widen it to {needed}+{parity}, \
         or lower the parity",
        parity = shape.parity
    )]
    Narrow { shape: Shape, needed: u8 },
}

impl Shape {
    pub const DATA_MIN: u8 = 2;
    pub const DATA_MAX: u8 = 12;
    pub const PARITY_MAX: u8 = 4;

    pub fn new(data: u8, parity: u8) -> Result<Shape, ShapeError> {
        if !(Shape::DATA_MIN..=Shape::DATA_MAX).contains(&data) {
            return Err(ShapeError::Data(data));
        }
        if !(1..=Shape::PARITY_MAX).contains(&parity) {
            return Err(ShapeError::Parity(parity));
        }
        Ok(Shape { data, parity })
    }

    /// k.
    pub fn data(self) -> usize {
        self.data.into()
    }

    /// m.
    pub fn parity(self) -> usize {
        self.parity.into()
    }

    /// k + m.
    pub fn servers(self) -> usize {
        self.data() + self.parity()
    }

    /// Bytes stored per byte: (k + m)/k.
    pub fn overhead(self) -> f64 {
        self.servers() as f64 / self.data() as f64
    }

    /// Failures that the data servers survive alone, while all parity servers sleep: ⌈(m+1)/2⌉.
    ///
    /// The paper, which writes r for m, says ⌊(m+1)/2⌋ in its text and formula (22). For odd m that is the
    /// same. For even m it contradicts formulas (20) and (21), by which Δm = 2 gives m/2 + 1.
    pub fn awake_tolerance(self) -> usize {
        self.parity() / 2 + 1
    }

    /// Whether the parity servers may sleep: no data server may have to keep two strips for them, so k ≥ m + Δm.
    pub fn may_sleep(self) -> Result<(), ShapeError> {
        let needed = self.parity() + self.extra();
        if self.data() < needed {
            return Err(ShapeError::Narrow { shape: self, needed: needed as u8 });
        }
        Ok(())
    }

    /// Strips beside the parity that the data servers keep for that: Δm of formula (21).
    pub fn extra(self) -> usize {
        2 - self.parity() % 2
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}+{}", self.data, self.parity)
    }
}

impl FromStr for Shape {
    type Err = ShapeError;

    fn from_str(text: &str) -> Result<Shape, ShapeError> {
        let numbers = text.split_once('+').and_then(|(k, r)| Some((k.parse().ok()?, r.parse().ok()?)));
        let (data, parity) = numbers.ok_or_else(|| ShapeError::Form(text.to_owned()))?;
        Shape::new(data, parity)
    }
}

impl TryFrom<String> for Shape {
    type Error = ShapeError;

    fn try_from(text: String) -> Result<Shape, ShapeError> {
        text.parse()
    }
}

impl From<Shape> for String {
    fn from(shape: Shape) -> String {
        shape.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_is_read_as_it_is_written() {
        for (k, r) in [(2, 1), (6, 3), (12, 4)] {
            let shape = Shape::new(k, r).unwrap();
            assert_eq!(shape.to_string().parse(), Ok(shape));
        }
        let wrong = |text: &str| text.parse::<Shape>().unwrap_err();
        assert_eq!(wrong("6"), ShapeError::Form("6".into()));
        assert_eq!(wrong("6+-3"), ShapeError::Form("6+-3".into()));
        assert_eq!(wrong("1+1"), ShapeError::Data(1));
        assert_eq!(wrong("13+3"), ShapeError::Data(13));
        assert_eq!(wrong("6+0"), ShapeError::Parity(0));
        assert_eq!(wrong("6+5"), ShapeError::Parity(5));
    }

    /// Formulas (20) and (21).
    #[test]
    fn extra_strips_raise_the_tolerance_of_the_awake_servers_by_one() {
        for r in 1..=4 {
            let shape = Shape::new(6, r).unwrap();
            assert_eq!(shape.awake_tolerance(), (shape.parity() + shape.extra()) / 2);
            assert_eq!(shape.awake_tolerance(), shape.parity() / 2 + 1);
        }
    }
}
