//! Facts about a network interface, over netlink: links (rtnetlink(7)), XDP features and channels (the
//! kernel's Documentation/netlink/specs/netdev.yaml and ethtool.yaml).
//!
//! One request, one answer; this module does not watch for changes.

mod generic;
mod link;
pub(crate) mod message;
mod namespace;

pub(crate) use generic::{channels, has_zero_copy, takes_tags_out};
pub(crate) use link::{Interface, interface};
pub use namespace::tap_namespace_id;
