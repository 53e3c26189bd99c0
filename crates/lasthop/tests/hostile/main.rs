//! Front ends that do not behave, at the built binary, next to two guests that talk and lose no frame.
//! docs/design/hostile-guests.md lists the other attacks.

mod apart;
mod closing;
mod crowded;
mod descriptors;
mod figures;
mod fuse;
mod memory;
mod new_flows;
mod sessions;
mod storm;
mod taken_over;
