//! A virtio-net guest in user space: the driver of a network card, with a back end over vhost-user.
//!
//! **Purpose.** [`Guest`] plays both the VMM (vhost-user front end, memory, eventfds) and the driver inside
//! the guest (rings, buffers, packet headers), so that a process can send and receive frames as a virtual
//! machine does. For tests and benchmarks of back ends, and for processes that attach to the switch as a
//! machine would. [`Vnic`] is the card alone, for users with buffers of their own.
//!
//! **Contract.** Frames go out in the order of [`Guest::send`] once [`Guest::flush`] published them, and are
//! received whole, with their offload metadata. Buffers are returned to the back end as soon as they were
//! read. Memory is laid out once and nothing is allocated for a frame. A fault of the back end is a
//! [`GuestError`]; the guest then has to be dropped or [reset](Guest::reset).
//!
//! **Not checked.** Frames are not looked at: offload metadata goes out as given, also if it makes no sense, and comes in
//! as the back end wrote it. The raw accessors ([`Guest::transmit_ring`] and its neighbours) break every promise above;
//! they are for tests of back ends.
//!
//! **Threading.** One thread at a time; nothing runs in the background. [`Guest::wait`] sleeps in poll(2).
//!
//! ```text
//!   one memfd          guest address 0x1_0000_0000, user address 0x7000_0000_0000
//!   [ ring 0: descriptors | available | used ] [ ring 1 ] ...        ring 2 n receives, ring 2 n + 1 transmits
//!   [ pair 0: receive buffers | transmit buffers | indirect tables ] [ pair 1 ] ...
//!
//!   send:  free slot -> header, frame -> chain -> available ... used -> free slot
//!   recv:  all slots available ... used -> header, frame -> copied out -> available again
//! ```

#![forbid(unsafe_code)]

mod burst;
mod config;
mod error;
mod eventfds;
mod guest;
mod handshake;
mod layout;
mod listener;
mod memory;
mod options;
mod rx;
mod sleep;
#[cfg(test)]
mod tests;
mod tx;
mod vnic;

pub use burst::{BurstGuest, ReadDepth, START_BYTES};
pub use config::DeviceConfig;
pub use error::GuestError;
pub use guest::{Guest, GuestCounters};
pub use listener::GuestListener;
pub use options::{ALL_FEATURES, GuestOptions, PARTS_MAX, QUEUE_PAIRS_MAX, SLOT_BYTES_MAX};
pub use rx::ReceivedFrame;
pub use vnic::{Vnic, VnicOptions, VnicPair, VnicRing};
