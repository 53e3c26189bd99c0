//! What an operator does to a running switch: vnics changed, files applied, counters watched, things printed to paste.

mod apply;
mod documented;
mod metrics;
mod print;
mod set;
#[path = "../support/mod.rs"]
mod support;
mod watch;
