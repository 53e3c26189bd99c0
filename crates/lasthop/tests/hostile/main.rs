//! Front ends that do not behave, at the built binary, next to two guests that talk and lose nothing.
//! docs/design/hostile-guests.md lists what else is tried.

mod apart;
mod closing;
mod descriptors;
mod figures;
mod fuse;
mod memory;
mod sessions;
mod storm;
#[path = "../support/mod.rs"]
mod support;
mod taken_over;
