//! One guest's memory, mapped into the switch, and copies between two guests' memories.
//!
//! **Purpose.** A front end provides its memory as regions of files. [`Mapping`] maps one such file range,
//! [`MemoryMap`] translates guest and user addresses to [`Segment`]s, [`Cursor`] walks a list of segments, and [`copy`]
//! copies bytes directly from one guest to another.
//!
//! **Contract.** A [`Segment`] is (region, offset, length) of one map. Every access checks it against the map that it
//! is used with, so a stale or wrong segment accesses other bytes of the same guest or fails with [`StaleSegment`]; it
//! never leaves guest memory. A [`Place`] is a checked range as an address. It borrows its map, so it cannot outlive
//! it, and accesses are checked only against its length. No reference into guest memory is ever made: bytes are copied
//! through raw pointers, each byte read once.
//!
//! **Not checked.** Guests write their memory at any time, so bytes copied twice may differ: callers copy once, then
//! check. The caller ensures that a segment belongs to the current memory table (epochs).
//!
//! **Threading.** Maps are immutable and shared; a mapping is unmapped when its last holder drops it. Access beyond the
//! end of a file that shrank raises SIGBUS: [`guard::install`] replaces the mapping by zero pages and marks it dead.
//!
//! ```text
//!   guest address space                      switch address space
//!   0x0        [ region 0 ]  --------------> [ Mapping A ......... ]
//!   0x4000000  [ region 1 ]  --+             [ Mapping B | offset  ]
//!                              +-----------------------> ^ Segment { region: 1, offset, len }
//! ```
//!
//! # Examples
//!
//! ```
//! use std::sync::Arc;
//!
//! use lasthop_guestmem::{Mapping, MemoryMap, Region};
//!
//! let mapping = Arc::new(Mapping::anonymous(65_536).unwrap());
//! let map = MemoryMap::new(vec![Region { guest_addr: 0x10_0000, user_addr: 0x7000_0000, mapping }]).unwrap();
//! let mut hint = 0;
//! let segment = map.translate(0x10_0100, 4, &mut hint).unwrap();
//! map.write(segment, 0, &[1, 2, 3, 4]).unwrap();
//! let mut bytes = [0; 2];
//! map.read(segment, 2, &mut bytes).unwrap();
//! assert_eq!(bytes, [3, 4]);
//! // The last byte is outside of the guest's memory.
//! assert!(map.translate_whole(0x10_fffe, 3, &mut hint).is_none());
//! ```

mod address_space;
mod backing;
pub mod counted;
mod cursor;
pub mod guard;
mod huge;
mod map;
mod mapping;
mod place;
mod short;
mod slots;
mod sum;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod sum_vector;
mod sum_words;
mod unmapping;
mod words;

pub use address_space::{ByteSize, MAPPED_BYTES_MAX};
pub use backing::{Backing, Filled, MemoryKind, memfd};
pub use cursor::{Cursor, copy, copy_and_sum};
pub use map::{MemoryMap, Region, Rest, Segment, StaleSegment};
pub use mapping::{FileRange, Mapping, MappingError};
pub use place::{Place, Window};
pub use slots::SlotArray;
pub use unmapping::Unmapped;
pub use words::{Word, Words};

/// Memory regions of one guest (vhost-user CONFIGURE_MEM_SLOTS): the maximum that QEMU asks for.
pub const REGIONS_MAX: usize = 509;
/// Bytes of one region: more than any guest has, and too few to overflow an offset.
pub const REGION_BYTES_MAX: u64 = 1 << 46;
