//! The rules of a bridge, one after the other, for two implementations of it.
//!
//! **Purpose.** The module `bridge` decides on each packet; the controller decides on the first packet of a flow, and installs a
//! flow for all packets that are decided alike. Both call the functions of this crate, so a rule and its drop reason stand once.
//!
//! **Contract.** No state, no clock, no I/O, no `unsafe`, no allocation. Tables belong to the caller, which hands closures over;
//! a closure is called only if the decision depends on its answer, and at most once. A decision depends on no bit of the frame
//! that the [`Recorder`] was not told of: packets that agree in those bits are decided alike, as long as the tables stay.
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
mod flood;
mod isolation;
mod recorder;
mod source;
mod statics;
mod vlan;

pub use destination::{Target, route};
pub use flood::FloodKind;
pub use isolation::IsolationClass;
pub use recorder::{MAC_ONES, Recorder, TCI_VID, Unrecorded, digits_apart, mac_digits_apart};
pub use source::{SourceEntry, admit, refused_source_bits};
pub use statics::entry_holds;
pub use vlan::{VlanRules, classify};

/// The individual/group bit of an address (IEEE 802-2014, 8.2.2).
pub const GROUP: u64 = 1 << 40;
