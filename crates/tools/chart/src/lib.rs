//! Pictures of figures as SVG: for the bench and the command line.
//!
//! **Purpose.** [`Canvas`] takes shapes and texts and makes a document of them; [`Font`] says how much room a text needs.
//!
//! **Contract.** Pure functions. Any text may be drawn: it has no meaning to XML.
//!
//! **Not checked.** Whether anything is drawn over something else, or beyond the edge.
//!
//! **Threading.** None: plain values.
//!
//! ```text
//!   bar, line, dot, text ──> Canvas ──finish──> an SVG document
//! ```
//!
//! # Examples
//!
//! ```
//! use lasthop_chart::{Canvas, colour};
//!
//! let mut canvas = Canvas::default();
//! canvas.bar((10.0, 10.0), (80.0, 12.0), colour::REFERENCE);
//! let svg = canvas.finish((100.0, 32.0), "A bar");
//! assert!(svg.starts_with("<svg") && svg.contains("<title>A bar</title>"));
//! ```
#![forbid(unsafe_code)]

mod canvas;

pub use canvas::{Anchor, Canvas, Font, PART_GAP_PX, colour, width_em};
