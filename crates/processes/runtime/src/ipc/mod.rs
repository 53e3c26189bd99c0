//! The channel between supervisor and switch: frames with descriptors over a Unix stream socket.
//!
//! ```text
//!   ┌───────────────┬───────────┬─────────────────────┐   descriptors are sent with the frame's first byte,
//!   │ length u32 LE │ fds u32 LE│ JSON, length bytes   │   so they are there before its last
//!   └───────────────┴───────────┴─────────────────────┘
//! ```

mod channel;
mod frames;

pub use channel::Channel;
pub(crate) use frames::frame;
pub use frames::{FRAME_BYTES_MAX, FRAME_FDS_MAX};

use std::os::fd::{AsFd, OwnedFd};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fault::{Fault, Kind};

/// The channel of a process that the supervisor started: its standard input.
pub fn take_channel<Out: Serialize, In: DeserializeOwned>() -> Result<Channel<Out, In>, Fault> {
    let failed = |error: &dyn std::fmt::Display| {
        Fault::new(
            Kind::Internal,
            format!("this command is for lasthop's own use: standard input is no channel: {error}"),
        )
    };
    let fd: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| failed(&error))?;
    rustix::net::sockopt::socket_type(&fd).map_err(|error| failed(&error))?;
    Channel::new(fd.into()).map_err(|error| failed(&error))
}
