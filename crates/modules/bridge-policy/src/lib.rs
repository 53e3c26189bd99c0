//! The rules of a bridge, for two implementations.
//!
//! **Purpose.** The module `bridge` decides on each packet; the controller decides on the first packet of a flow, and
//! installs a flow for all packets with the same decision. Both call the functions of this crate, so each rule and its
//! drop reason exist once.
//!
//! **Contract.** No state, no clock, no I/O, no `unsafe`, no allocation. Tables belong to the caller, which passes
//! closures; a closure is called only if the decision depends on its result, and at most once. A decision depends only
//! on bits of the frame that were reported to the [`Recorder`]: packets that agree in those bits get the same decision,
//! as long as the tables are unchanged.
//!
//! **Not checked.** That addresses are at most 48 bits wide, and VIDs at most 12.
//!
//! **Threading.** Functions without side effects, for any thread.
//!
//! ```text
//!   classify      which VLAN? ── not carried, wrong tag: dropped
//!        v
//!   admit         may it come from there? ── spoofed, group address: dropped       (the caller learns its source)
//!        v
//!   route         where is its destination? ── link-local, same port, isolated: dropped
//!        v
//!   one port, or a flood of a FloodKind, which has a limit of its own
//! ```
//!
//! # Examples
//!
//! ```
//! use lasthop_bridge_policy::{Unrecorded, classify};
//! use lasthop_module_api::{DropReason, FrameTag, PortVlans, Vid};
//!
//! let access = PortVlans::Access(Vid::try_from(5).unwrap());
//! assert_eq!(classify(&access, None, &mut Unrecorded), Ok((5, FrameTag::None)));
//! assert_eq!(classify(&access, Some(6), &mut Unrecorded), Err(DropReason::VlanTagged));
//! ```
#![forbid(unsafe_code)]

mod destination;
mod recorder;
mod source;
mod vlan;

pub use destination::{FloodKind, IsolationClass, Target, route};
pub use recorder::{MAC_ONES, Recorder, TCI_VID, Unrecorded, digits_apart, mac_digits_apart};
pub use source::{SourceEntry, admit, entry_holds, refused_source_bits};
pub use vlan::{VlanRules, classify};

/// The individual/group bit of an address (IEEE 802-2014, 8.2.2).
pub const GROUP: u64 = 1 << 40;
