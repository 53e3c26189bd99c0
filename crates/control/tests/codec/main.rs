//! The codec against itself, and against bytes that others wrote.

mod refusals;
mod round_trips;
mod values;
