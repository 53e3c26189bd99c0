use serde::Serialize;

/// Several measurements of one thing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The median; for an even number, the mean of the two in the middle.
    pub median: f64,
    /// The minimum.
    pub min: f64,
    /// The maximum.
    pub max: f64,
    /// The number of samples, at least 1.
    pub samples: usize,
}

impl Spread {
    /// The spread of all finite values; `None` if there is none.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|value| value.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        Some(Self { median: median(&values), min, max, samples: values.len() })
    }

    /// The largest deviation from the median, in percent of the median; 0 if the median is 0.
    #[must_use]
    pub fn percent(&self) -> f64 {
        let distance = (self.max - self.median).max(self.median - self.min);
        if self.median == 0.0 { 0.0 } else { 100.0 * distance / self.median }
    }
}

fn median(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) }
}
