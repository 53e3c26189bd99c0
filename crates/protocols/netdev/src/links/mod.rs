//! The host's network devices: which there are, whether they have a link, and their settings; by rtnetlink(7).
//!
//! One socket, never waited for. It hears of every change, asks for all devices at the start and when news were lost, and
//! has the kernel give addresses to taps; answers come as events.
//!
//! ```text
//!   kernel ──RTM_NEWLINK, RTM_DELLINK──> News      of all devices of this network namespace
//!          ──RTM_NEWQDISC, RTM_DELQDISC─>          of limits that are set on one of them
//!          <──RTM_GETLINK (dump)───────            at the start, and after ENOBUFS
//!          <──RTM_NEWADDR──────────────            an address
//!          ──NLMSG_ERROR──> Done                   to those, by number
//! ```

mod attributes;
mod message;
mod socket;
mod table;

pub use message::{Limited, LinkDevice, TrafficLimit};
pub use socket::Links;
