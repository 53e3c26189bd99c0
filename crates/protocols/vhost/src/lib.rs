//! One vhost-user session: a front end (a VMM) hands over its memory and rings, and a device serves them.
//!
//! **Purpose.** [`Session`] reads messages from a connected socket, [`Protocol`] is the state machine behind it, and
//! both control a [`Device`]. [`front::FrontEnd`] is the other side, for guests in user space.
//!
//! **Contract.** For any message of a front end, each call returns, uses bounded memory, and either continues the session
//! or ends it with a [`SessionEnd`]. Its text names the reason and, where there is one, the remedy. A ring runs exactly
//! while it has memory, size, addresses and a kick. The session stops it before one of these changes and when the
//! session is dropped; it continues at its position. If the front end asked for acknowledgements (REPLY_ACK), a failure
//! is acknowledged as such and kept in [`Refusals`]; otherwise it ends the session. Regions of memory that a new table
//! repeats keep their mapping.
//!
//! **Own codec.** This crate decodes messages itself. rust-vmm's `vhost` crate requires a memory table of exactly the
//! stated number of regions, while some front ends (User Mode Linux) send a table of fixed size, 72 bytes, with a count
//! of 1. Here a table may have room for more regions than it has, up to 8.
//!
//! **Not checked.** The contents of rings and buffers, which the device reads. The order of messages: front ends
//! differ, so each message is served when it comes. That eventfds stay non-blocking: the front end shares that flag.
//!
//! **Threading.** None: a session belongs to one thread, which waits for [`Session::fd`].
//!
//! ```text
//!   front end                      Session                                Device
//!   socket --- bytes + fds --> [ Link ] -- Message, fds --> [ Protocol ] ----> set_features, set_memory,
//!          <-- bytes --------- [ 16 KiB ] <---- reply ----- [          ]       start_ring, stop_ring, ...
//!
//!   a ring:   memory + SET_VRING_NUM + SET_VRING_ADDR + SET_VRING_KICK                      (any order)
//!             waiting ------------------------------------------------> running --+
//!                ^                                                        |  ^    | memory, features, place change,
//!                +-- GET_VRING_BASE, reset (needs a new kick) ------------+  +----+ SET_VRING_KICK: stop, start at base
//! ```
//!
//! # Examples
//!
//! ```
//! use lasthop_vhost::message::{VhostMessage, request};
//!
//! let message = VhostMessage::new(request::SET_VRING_NUM, vec![0, 0, 0, 0, 0, 1, 0, 0]);
//! let state = message.ring_state().unwrap();
//! assert_eq!((state.index, state.value), (0, 256));
//! ```

#![forbid(unsafe_code)]

mod channel;
mod device;
mod error;
mod fds;
pub mod features;
pub mod front;
mod inflight;
mod memory;
pub mod message;
mod rings;
mod saved;
mod session;
mod socket;
mod state;

pub use device::{Device, Offer, RingStart};
pub use error::{ProtocolError, RequestError, SessionEnd};
/// A descriptor of a front end.
pub use lasthop_foreign::ForeignFd;
pub use message::{MemoryRegionMessage, RingAddressMessage};
pub use rings::RingView;
pub use saved::{PreviousSession, SavedSession, SessionMemory, SessionUpdate, TakeOverError};
pub use session::{Session, Successor};
pub use state::{Protocol, Refusals, SessionView};

/// Largest number of memory regions that a front end may add one by one: the most that QEMU asks for.
pub const MEMORY_SLOTS_MAX: usize = lasthop_guestmem::REGIONS_MAX;
/// Default limit for the total size of a front end's memory regions, in bytes: more than all but the largest guests
/// have.
pub const MEMORY_BYTES_MAX_DEFAULT: u64 = 1 << 40;
/// Messages served in one turn. After each turn the thread that serves the session may charge its time.
pub const MESSAGES_PER_TURN: usize = 16;
/// Bytes of replies that may wait for room in the socket, which has itself room for thousands of replies.
pub const OUTPUT_BYTES_MAX: usize = 16 * 1024;
/// Least MTU in bytes (RFC 791: every IPv4 link must carry it).
pub const MTU_BYTES_MIN: u16 = 68;
