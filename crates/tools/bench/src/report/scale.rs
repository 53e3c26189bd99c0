/// A linear scale from 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Linear {
    /// The value at the end.
    pub(super) max: f64,
    /// The length.
    pub(super) length_px: f64,
}

impl Linear {
    /// The position of a value; values beyond the end are placed at the end.
    pub(super) fn at(&self, value: f64) -> f64 {
        if self.max > 0.0 { (value / self.max).clamp(0.0, 1.0) * self.length_px } else { 0.0 }
    }

    /// Whether a value is beyond the end.
    pub(super) fn cuts(&self, value: f64) -> bool {
        value > self.max
    }
}

/// A logarithmic scale.
#[derive(Clone, Copy, Debug)]
pub(super) struct Logarithmic {
    min: f64,
    max: f64,
    length_px: f64,
}

/// Steps within a decade that have a tick.
const STEPS: [f64; 3] = [1.0, 2.0, 5.0];

impl Logarithmic {
    /// From the tick below `least` to the tick above `most`; both are above 0.
    pub(super) fn around(least: f64, most: f64, length_px: f64) -> Self {
        let min = ticks(least / 10.0, least).pop().unwrap_or(least);
        let max = ticks(most, most * 10.0).first().copied().unwrap_or(most);
        Self { min, max: if max > min { max } else { min * 10.0 }, length_px }
    }

    /// The position of a value; values beyond an end are placed there.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = (value / self.min).ln() / (self.max / self.min).ln();
        share.clamp(0.0, 1.0) * self.length_px
    }

    /// Values of the ticks: 1, 2 and 5 of each decade; on wide scales only the decades.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let ticks = ticks(self.min, self.max);
        let decade = |tick: &f64| (tick.log10() - tick.log10().round()).abs() < 1e-9;
        if ticks.len() > 10 { ticks.into_iter().filter(decade).collect() } else { ticks }
    }
}

/// Ticks from one value to another, both included.
fn ticks(from: f64, to: f64) -> Vec<f64> {
    let decades = from.log10().floor() as i32..=to.log10().ceil() as i32;
    let all = decades.flat_map(|decade| STEPS.map(|step| step * 10f64.powi(decade)));
    all.filter(|tick| (from * (1.0 - 1e-9)..=to * (1.0 + 1e-9)).contains(tick)).collect()
}
