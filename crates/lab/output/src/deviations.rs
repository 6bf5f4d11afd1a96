//! How two figures go together: by least squares.

/// Sums over points of how far they are from the means.
#[derive(Clone, Copy, Debug)]
pub struct Deviations {
    pub mean: (f64, f64),
    pub xx: f64,
    pub xy: f64,
    pub yy: f64,
}

impl Deviations {
    pub fn of(points: &[(f64, f64)]) -> Deviations {
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let sum = |of: fn(f64, f64) -> f64| points.iter().map(|point| of(point.0 - x, point.1 - y)).sum();
        Deviations { mean: (x, y), xx: sum(|x, _| x * x), xy: sum(|x, y| x * y), yy: sum(|_, y| y * y) }
    }

    /// Pearson's, -1 to 1. `None`: one of both is the same at every point.
    pub fn correlation(&self) -> Option<f64> {
        let spread = (self.xx * self.yy).sqrt();
        (spread > 0.0).then(|| self.xy / spread)
    }

    /// How near the points are to their line, 0 to 1. `None`: as for the correlation.
    pub fn r_squared(&self) -> Option<f64> {
        let Deviations { xx, xy, yy, .. } = *self;
        // Rounding may lead above 1.
        (xx > 0.0 && yy > 0.0).then(|| (xy * xy / (xx * yy)).min(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r_squared_says_how_near_points_lie_to_a_line() {
        let is = |points: &[(f64, f64)], wanted: f64| {
            let found = Deviations::of(points).r_squared().unwrap();
            assert!((found - wanted).abs() < 1e-12, "{found} is not {wanted}");
        };
        is(&[(1.0, 5.0), (2.0, 7.0), (4.0, 11.0)], 1.0);
        is(&[(1.0, 1.0), (2.0, 2.0), (3.0, 2.0)], 0.75);
        assert_eq!(Deviations::of(&[(1.0, 5.0)]).r_squared(), None);
    }
}
