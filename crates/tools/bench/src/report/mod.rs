//! Reports on samples, for people and for programs: comparison, text, Markdown, TSV, JSON and two pictures.
//!
//! All reports are pure functions of the samples. Figures are compared within one [`Placement`](crate::Placement) only,
//! ratios say how much better the reference is, and each disturbance of a figure is written next to it.
//!
//! ```text
//!   samples ──┬──────────────────────────> tsv
//!             └──> Comparison ──┬────────> table, markdown, json
//!                               └─ Panel > svg, svg_round_trips
//! ```

mod caption;
mod comparison;
mod data;
mod figures;
mod markdown;
mod marks;
mod panel;
mod round_trips;
mod scale;
mod spread;
mod svg;
mod text;

#[cfg(test)]
mod tests;

use lasthop_chart as canvas;

pub use comparison::{Cell, Comparison, LIMIT_BACKEND, NULL_BACKEND, Role, Row};
pub use data::{json, tsv};
pub use markdown::markdown;
pub use round_trips::svg_round_trips;
pub use spread::{Ratio, Spread};
pub use svg::{Heading, svg};
pub use text::table;

/// The text of a report without samples.
const NOTHING: &str = "Nothing was measured.";
