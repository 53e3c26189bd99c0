//! Virtqueues, split and packed (virtio 1.2, 2.7 and 2.8), in memory that the other side also writes: the device's side
//! and the driver's side.
//!
//! **Purpose.** [`DeviceRing`] is the back end's side: it takes heads, walks chains, writes used entries, publishes
//! them, and suppresses notifications in both directions. [`DriverRing`] is the other side, for guests in user space.
//! [`SlotRing`] is a faster driver's side with fewer features.
//!
//! **Contract.** For any contents written by the other side, a call ends in bounded time and returns a value or a
//! [`RingError`]. After an error the ring has to be stopped. Used entries are written first and published by one store, of
//! the index or of a packed ring's first used descriptor ([`DeviceRing::publish`]). A thread may sleep only after [`DeviceRing::arm_kicks`] returned false; like every
//! sleeper of the workspace, it uses [`arm_and_recheck`].
//!
//! **Not checked.** The driver may change published descriptors: each is read once into a local value, and only that is
//! used. Of a packed ring's, ID and link are read when its chain is found, the rest when it is taken. The driver may
//! publish a head twice: the owner's side table detects it, or the marks of a packed ring.
//!
//! **Threading.** One thread at a time owns a ring; the other side runs concurrently in another process. Indices are
//! atomics, entries are volatile.
//!
//! ```text
//!   driver writes                                device writes
//!   avail.idx ----------------+                  used.idx ------------+
//!                             v                                       v
//!   avail.ring [ . . h h h h |. . ]              used.ring [ u u u u |. . . ]
//!                    ^ next_avail                            ^ signalled  (next_used = used.idx + unpublished)
//!                    |-pending-|                             |-unsignalled-|
//!   avail.used_event: "signal me past this"      used.avail_event: "kick me past this"
//! ```
//!
//! # Examples
//!
//! ```
//! use std::sync::Arc;
//!
//! use lasthop_guestmem::{Mapping, MemoryMap, Region};
//! use lasthop_ring::{DeviceRing, DriverRing, RingAddresses, RingMemory};
//!
//! const GUEST: u64 = 0x10_0000;
//! const USER: u64 = 0x7000_0000;
//! let mapping = Arc::new(Mapping::anonymous(65_536).unwrap());
//! let map = MemoryMap::new(vec![Region { guest_addr: GUEST, user_addr: USER, mapping }]).unwrap();
//! let addresses = RingAddresses { descriptors: USER, available: USER + 8192, used: USER + 12_288 };
//! let memory = || RingMemory::new(&map, 256, addresses).unwrap();
//! let mut driver = DriverRing::new(memory(), false);
//! let mut device = DeviceRing::new(memory(), 0, false);
//!
//! // The driver makes a buffer of 64 bytes available, and notes the number 7 for itself.
//! let head = driver.add(&[(GUEST + 16_384, 64)], &[], 7).unwrap();
//! driver.publish();
//! // The device takes the chain and returns it.
//! assert_eq!((device.pending().unwrap(), device.head(0).unwrap()), (1, head));
//! device.take(1);
//! device.complete(head, 0);
//! device.publish();
//! assert_eq!(driver.take_used().unwrap().unwrap().token, 7);
//! ```

mod adaptive_poll;
mod chain;
mod core_yield;
#[doc(hidden)]
pub mod death;
mod device;
mod driver;
mod inflight;
mod ledger;
mod memory;
mod packed_memory;
mod rendezvous;
mod signal_retry;
mod slot_ring;
#[cfg(test)]
mod tests;

pub use adaptive_poll::AdaptivePoll;
pub use chain::{BufferAccess, ChainStart, walk, walk_from, walk_in};
pub use core_yield::{CoreReturn, CoreYield};
pub use device::{DeviceRing, LoneChain};
pub use driver::*;
pub use inflight::RingLog;
pub use ledger::{Ledger, LedgerError};
pub use memory::{Descriptor, RingAddresses, RingFormat, RingMemory};
pub use packed_memory::{position_of_wire, wire_position};
pub use rendezvous::arm_and_recheck;
pub use signal_retry::SignalRetry;
pub use slot_ring::{Returned, SlotRing};

use thiserror::Error;

/// Entries of a ring (virtio 1.2, 2.7: "Maximum Queue Size value is 32768").
pub const RING_ENTRIES_MAX: u16 = 32768;
/// Entries of a packed ring: fewer than the specification allows, since its ledger has more to keep for each of them. No
/// known driver makes larger ones.
pub const PACKED_ENTRIES_MAX: u16 = 4096;
/// Descriptors of one chain, indirect ones included: more than any driver uses, and few enough to walk.
pub const CHAIN_DESCRIPTORS_MAX: u32 = 1024;
/// Empty descriptors in a readable chain: no driver needs them, and walking them is wasted work.
pub const EMPTY_DESCRIPTORS_MAX: u32 = 32;

/// The chain continues at `next` (virtio 1.2, 2.7.5).
pub const DESC_NEXT: u16 = 1;
/// The device writes to the buffer.
pub const DESC_WRITE: u16 = 2;
/// The buffer is a table of descriptors.
pub const DESC_INDIRECT: u16 = 4;

/// A fault of the other side of a ring. The ring has to be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RingError {
    /// A size that is not a power of two in range.
    #[error("ring size {0} is not a power of two from 1 to {RING_ENTRIES_MAX}")]
    BadSize(u32),
    /// A packed ring of more than [`PACKED_ENTRIES_MAX`].
    #[error(
        "a packed ring has at most {PACKED_ENTRIES_MAX} entries, and this one {0}: make it smaller, or use a split ring"
    )]
    PackedTooLarge(u32),
    /// An area of the ring is outside memory, crosses regions, or is misaligned.
    #[error("the ring's {0} area at {1:#x} does not lie, aligned, inside one memory region")]
    BadArea(&'static str, u64),
    /// The available index ran ahead by more than the ring holds.
    #[error("available index jumped by {0} in a ring of {1}")]
    IndexJump(u16, u16),
    /// A head or a next field beyond the table.
    #[error("descriptor index {0} in a table of {1}")]
    DescriptorOutOfRange(u16, u16),
    /// More descriptors than the table has: the chain loops.
    #[error("descriptor chain loops")]
    ChainLoops,
    /// A buffer outside guest memory.
    #[error("buffer of {1} bytes at guest address {0:#x} lies outside guest memory")]
    BufferOutside(u64, u32),
    /// An empty receive buffer.
    #[error("receive buffer of no bytes at guest address {0:#x}")]
    EmptyBuffer(u64),
    /// More than `EMPTY_DESCRIPTORS_MAX` empty descriptors in one chain.
    #[error("more than {EMPTY_DESCRIPTORS_MAX} empty descriptors in one chain")]
    ManyEmpty,
    /// A writable buffer in a transmit chain, a readable one in a receive chain.
    #[error("descriptor for the wrong direction")]
    WrongDirection,
    /// An indirect table inside an indirect table, or followed by a next descriptor.
    #[error("indirect descriptor where none is allowed")]
    NestedIndirect,
    /// The length of an indirect table is not a multiple of 16, zero, or too large.
    #[error("indirect table of {0} bytes")]
    BadIndirectLength(u32),
    /// The ring was taken over in order, but the driver overwrote available entries of chains in flight.
    #[error("descriptor {0} stands where the driver had made a chain available that is in flight")]
    ChainsInFlight(u16),
    /// The driver made a head available that is in flight.
    #[error("descriptor {0} is available twice")]
    HeadTwice(u16),
}
