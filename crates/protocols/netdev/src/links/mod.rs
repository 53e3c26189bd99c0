//! The host's network devices: which there are, whether they have a link, and their settings; by rtnetlink(7).
//!
//! There is one non-blocking socket. It receives every change, requests all devices at the start and after a loss of
//! messages, and has the kernel add addresses to taps; answers come as events.
//!
//! ```text
//!   kernel ──RTM_NEWLINK, RTM_DELLINK──> LinkMessage  about all devices of this network namespace
//!          ──RTM_NEWQDISC, RTM_DELQDISC─>          about limits on one of them
//!          <──RTM_GETLINK (dump)───────            at the start, and after ENOBUFS
//!          <──RTM_NEWADDR──────────────            an address
//!          ──NLMSG_ERROR──> Done                   answers to these, by number
//! ```

mod message;
mod socket;
mod table;

pub use message::{Limited, LinkDevice, TrafficLimit};
pub use socket::Links;
