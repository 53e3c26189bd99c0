//! The codec against itself, and against bytes that others wrote.

mod golden;
mod refusals;
mod round_trips;
mod values;
