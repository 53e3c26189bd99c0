//! Opening devices, in the process that may: descriptors with everything set on them, for a process that may nothing.

mod error;
mod link;
mod packet;
mod tap;

pub use error::OpenError;
pub use packet::{PacketOptions, packet};
pub use tap::{TapOptions, tap};
