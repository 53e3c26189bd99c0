//! A number of which a trace tells the bounds.

use std::fmt;

/// At least, and at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) least: u64,
    pub(crate) most: u64,
}

impl Range {
    /// A known number.
    pub(crate) const fn exactly(number: u64) -> Self {
        Self { least: number, most: number }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        let Self { least, most } = self;
        Self { least: least.saturating_add(other.least), most: most.saturating_add(other.most) }
    }

    pub(crate) fn minus(self, number: u64) -> Self {
        Self { least: self.least.saturating_sub(number), most: self.most.saturating_sub(number) }
    }

    /// In thousands.
    pub(crate) fn thousands(self) -> Self {
        Self { least: self.least / 1000, most: self.most / 1000 }
    }
}

impl fmt::Display for Range {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { least, most } if least == most => write!(out, "{least}"),
            Self { least, most } => write!(out, "{least} to {most}"),
        }
    }
}
