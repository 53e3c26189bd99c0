//! A virtio-net guest in user space: the driver of a network card whose back end is reached over vhost-user.
//!
//! **Purpose.** [`Guest`] plays both the VMM (vhost-user front end, memory, eventfds) and the driver inside the guest
//! (rings, buffers, packet headers), so that a process can send and receive frames like a virtual machine. It serves
//! tests and benchmarks of back ends, and processes that attach to the switch like a virtual machine. [`Vnic`] is the
//! card alone, for users with buffers of their own.
//!
//! **Contract.** Frames are sent in the order of [`Guest::send`] once [`Guest::flush`] has published them, and received
//! complete, with their offload metadata. Buffers become available to the back end again as soon as they are read.
//! Memory is laid out once, without allocation per frame. A fault of the back end is a [`GuestError`]; the guest then
//! has to be dropped or [reset](Guest::reset).
//!
//! **Not checked.** Frames are not parsed: offload metadata is sent as given, even if it is invalid, and returned as
//! the back end wrote it. The raw accessors ([`Guest::transmit_ring`] and its neighbours) can break every promise
//! above; they are for tests of back ends.
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
//!
//! # Examples
//!
//! ```no_run
//! use lasthop_frontend::{Guest, GuestOptions};
//!
//! let mut guest = Guest::connect("/run/lasthop/vm1.sock", GuestOptions::default())?;
//! assert!(guest.send(0, &[0xff; 60], Default::default())?, "the ring has room");
//! guest.flush(0)?;
//! # Ok::<(), lasthop_frontend::GuestError>(())
//! ```

#![forbid(unsafe_code)]

mod burst;
mod error;
mod guest;
mod handshake;
mod listener;
mod memory;
mod notifications;
mod options;
mod rx;
#[cfg(test)]
mod tests;
mod tx;
mod vnic;

pub use burst::{BurstGuest, ReadDepth, START_BYTES};
pub use error::GuestError;
pub use guest::{Guest, GuestCounters};
pub use handshake::DeviceConfig;
pub use listener::GuestListener;
pub use options::{ALL_FEATURES, GuestOptions, PARTS_MAX, QUEUE_PAIRS_MAX, SLOT_BYTES_MAX};
pub use rx::ReceivedFrame;
pub use vnic::{PIECES_MAX, Vnic, VnicOptions, VnicPair, VnicRing};
