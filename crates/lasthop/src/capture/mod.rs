//! Captures: what all of `lasthop capture`, the supervisor and the switch process know of them (docs/user/capture.md).

pub(crate) mod blocks;
pub(crate) mod pcapng;
mod spec;

pub(crate) use spec::{CaptureSpec, Sighting};
