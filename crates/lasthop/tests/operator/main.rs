//! An operator's work on a running switch: vnics changed, files applied, counters watched, texts printed to paste.

mod apply;
mod bench;
mod documented;
mod explain;
mod metrics;
mod print;
mod relay;
mod set;
mod watch;
