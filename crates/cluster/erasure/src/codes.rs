//! The codes of a set: one per turn, because the extra strips depend on who keeps them.

use crate::{Awake, Code, Shape};

/// Tables for every turn of a shape, made once.
#[derive(Debug)]
pub struct Codes {
    by_turn: Vec<Code>,
}

impl Codes {
    /// A shape whose parity servers may not sleep has no extra strips: its codes are all equal.
    pub fn new(shape: Shape) -> Codes {
        let code = |turn| Awake::new(shape, turn).map_or_else(|_| Code::new(shape), Awake::into_code);
        Codes { by_turn: (0..shape.data()).map(code).collect() }
    }

    pub fn of(&self, turn: usize) -> &Code {
        &self.by_turn[turn % self.by_turn.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_too_narrow_to_sleep_has_no_extra_strips() {
        let strips = |k, r| Codes::new(Shape::new(k, r).unwrap()).of(1).strips();
        assert_eq!(strips(6, 3), 10);
        assert_eq!(strips(2, 2), 4);
    }
}
