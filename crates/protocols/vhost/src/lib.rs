//! One vhost-user session: a front end (a VMM) hands over its memory and rings, and a device serves them.
//!
//! **Purpose.** [`Session`] reads messages from a connected socket, [`Protocol`] is the state machine behind it, and
//! they drive a [`Device`]. [`front::FrontEnd`] is the other side, for guests in user space.
//!
//! **Contract.** With any message of a front end, a call returns, the memory it takes is bounded, and the session either
//! continues or ends with a [`SessionEnd`]. Its text names the reason and, where there is one, the remedy. A ring runs
//! exactly while it has memory, size, addresses and a kick. It is stopped before one of these changes, continues from where
//! it stopped, and is stopped when the session is dropped. If the front end asked for acknowledgements (REPLY_ACK), a
//! failure is acknowledged as such and kept in [`Refusals`]; else it ends the session. Regions of memory that a new table
//! repeats keep their mapping.
//!
//! **Own codec.** The messages are decoded here and not by rust-vmm's `vhost` crate, since that wants a memory table of
//! exactly as many regions as its count says, while some front ends (User Mode Linux) send one of fixed size, 72 bytes,
//! with a count of 1. Here a table may have room for more regions than it has, up to 8.
//!
//! **Not checked.** The contents of rings and buffers: the device reads those. That messages come in a certain order: front
//! ends differ, so each message is taken when it comes. That eventfds stay non-blocking: the front end shares that flag.
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

/// Memory regions of one front end that adds them one by one: as many as QEMU asks for at most.
pub const MEMORY_SLOTS_MAX: usize = lasthop_guestmem::REGIONS_MAX;
/// Bytes of all of a front end's memory regions, unless its device says otherwise: more than all but the largest guests have.
pub const MEMORY_BYTES_MAX_DEFAULT: u64 = 1 << 40;
/// Messages served in one turn. After each turn, the thread that serves the session may charge its time.
pub const MESSAGES_PER_TURN: usize = 16;
/// Bytes of replies that may wait for room in the socket; it has room for thousands itself.
pub const OUTPUT_BYTES_MAX: usize = 16 * 1024;
/// Least MTU in bytes (RFC 791: every IPv4 link must carry it).
pub const MTU_BYTES_MIN: u16 = 68;
