//! The channel between supervisor and switch: frames with descriptors over a Unix stream socket.
//!
//! ```text
//!   ┌───────────────┬───────────┬─────────────────────┐   descriptors are sent with the frame's first byte,
//!   │ length u32 LE │ fds u32 LE│ JSON, length bytes   │   so they are there before its last
//!   └───────────────┴───────────┴─────────────────────┘
//! ```

mod channel;
mod frames;

pub(crate) use channel::Channel;
pub(crate) use frames::FRAME_FDS_MAX;
