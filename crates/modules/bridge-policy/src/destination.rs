//! Destination addresses: to one port, to all, or to none.

use lasthop_module_api::DropReason;

use crate::GROUP;
use crate::recorder::{MAC_BITS, MAC_ONES, Recorder, digits_apart};

/// Bridge group addresses 01-80-C2-00-00-00 to -0F, which no bridge forwards (IEEE 802.1D-2004, 7.12.6).
const LINK_LOCAL: u64 = 0x0180_c200_0000;
const LINK_LOCAL_MASK: u64 = MAC_ONES & !0xf;

/// The destination of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<P> {
    /// To one port.
    Port(P),
    /// To all other ports that carry its VLAN.
    Flood,
}

/// The destination of a frame from port `from`, by its destination address. `look_up` finds the port of an individual
/// address; `barrier` returns why frames may not pass to a port.
///
/// # Errors
/// [`DropReason::LinkLocal`], [`DropReason::SamePort`], and those of `barrier`.
#[inline(always)] // for every frame of the bridge; without this the compiler makes it a call
pub fn route<P: Copy + PartialEq>(
    destination: u64,
    from: P,
    look_up: impl FnOnce() -> Option<P>,
    barrier: impl FnOnce(P) -> Option<DropReason>,
    recorder: &mut impl Recorder,
) -> Result<Target<P>, DropReason> {
    if destination & GROUP != 0 {
        return route_group(destination, recorder);
    }
    recorder.destination(MAC_ONES);
    match look_up() {
        None => Ok(Target::Flood),
        Some(port) if port == from => Err(DropReason::SamePort),
        Some(port) => barrier(port).map_or(Ok(Target::Port(port)), Err),
    }
}

#[inline]
fn route_group<P>(destination: u64, recorder: &mut impl Recorder) -> Result<Target<P>, DropReason> {
    if destination & LINK_LOCAL_MASK == LINK_LOCAL {
        recorder.destination(LINK_LOCAL_MASK);
        return Err(DropReason::LinkLocal);
    }
    recorder.destination(GROUP | digits_apart(destination, LINK_LOCAL, LINK_LOCAL_MASK, MAC_BITS));
    Ok(Target::Flood)
}
