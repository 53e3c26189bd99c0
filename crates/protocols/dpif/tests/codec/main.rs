//! Tests of the codec against itself, and against bytes of other programs.

mod golden;
mod refusals;
mod round_trips;
mod values;
