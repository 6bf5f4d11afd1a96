//! How much parity the data servers keep, and when its servers must wake [ECS² §4.2].

use crate::Shape;

/// Writes to a set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Writes {
    /// R_req_w.
    pub per_second: f64,
    /// Mean size, S_req_w.
    pub bytes: f64,
}

/// What the data servers have for parity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Buffers {
    pub shape: Shape,
    /// S_strip.
    pub strip_bytes: f64,
    /// All data servers' together, S_buf.
    pub bytes: f64,
}

impl Buffers {
    /// Bytes of one parity strip that a write adds, S_req_buf: formula (16). Formula (9) would give a whole strip to
    /// writes that are smaller; those stay on one server.
    pub fn per_write(&self, writes: &Writes) -> f64 {
        if writes.bytes <= self.strip_bytes {
            return writes.bytes;
        }
        (writes.bytes / (self.shape.data() as f64 * self.strip_bytes)).ceil() * self.strip_bytes
    }

    /// Bytes per second by which all buffers fill together. The paper has r + 1 strips, for r = 3; this is r + Δr.
    pub fn fill_rate(&self, writes: &Writes) -> f64 {
        let kept = self.shape.parity() + self.shape.extra();
        writes.per_second * self.per_write(writes) * kept as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffers() -> Buffers {
        Buffers { shape: Shape::new(6, 3).unwrap(), strip_bytes: 16e3, bytes: 1200e6 }
    }

    #[test]
    fn formula_16_a_write_below_a_strip_adds_its_own_size() {
        let per_write = |bytes| buffers().per_write(&Writes { per_second: 1.0, bytes });
        assert_eq!([3e3, 16e3, 17e3, 96e3, 97e3].map(per_write), [3e3, 16e3, 16e3, 16e3, 32e3]);
    }
}
