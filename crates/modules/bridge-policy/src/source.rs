//! Source addresses that a port may use, and its static addresses.

use lasthop_module_api::DropReason;

use crate::GROUP;
use crate::recorder::{MAC_ONES, Recorder, mac_digits_apart};

/// The static entry of a source address, as looked up for its port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceEntry<T> {
    /// The address belongs to this port.
    Here,
    /// The address belongs to another port.
    Elsewhere,
    /// There is no entry: the address may be learned.
    None(T),
}

/// Whether a port may send a frame with source address `source`. `own_mac` is the port's own address, 0 if it has none;
/// in that case `look_up` finds the static entry. Otherwise `is_entered` tells whether `source` was entered for the
/// port.
///
/// Returns the content of [`SourceEntry::None`] if the address may be learned.
///
/// # Errors
/// [`DropReason::SourceInvalid`], [`DropReason::SourceSpoofed`].
#[inline(always)] // for every frame of the bridge; without this the compiler makes it a call
pub fn admit<T>(
    source: u64,
    own_mac: u64,
    is_entered: impl FnOnce() -> bool,
    look_up: impl FnOnce() -> SourceEntry<T>,
    recorder: &mut impl Recorder,
) -> Result<Option<T>, DropReason> {
    if source & GROUP != 0 {
        recorder.source(GROUP);
        return Err(DropReason::SourceInvalid);
    }
    if source == 0 {
        recorder.source(MAC_ONES);
        return Err(DropReason::SourceInvalid);
    }
    if own_mac == 0 {
        recorder.source(MAC_ONES);
        return match look_up() {
            SourceEntry::Here => Ok(None),
            SourceEntry::Elsewhere => Err(DropReason::SourceSpoofed),
            SourceEntry::None(found) => Ok(Some(found)),
        };
    }
    if source == own_mac || is_entered() {
        recorder.source(MAC_ONES);
        return Ok(None);
    }
    recorder.refused_source(source);
    Err(DropReason::SourceSpoofed)
}

/// The bits that distinguish a refused source from all addresses of its port, and from group addresses and zero, which
/// are dropped for another reason.
#[must_use]
pub fn refused_source_bits(source: u64, addresses: impl Iterator<Item = u64>) -> u64 {
    addresses.chain([0]).fold(GROUP, |bits, address| bits | mac_digits_apart(source, address))
}

/// Whether an entry applies in VLAN `vid`: one for a VLAN only in that VLAN, others in all VLANs that their port
/// carries.
#[inline]
#[must_use]
pub fn entry_holds(entered_for: Option<u16>, vid: u16, port_carries: impl FnOnce(u16) -> bool) -> bool {
    entered_for.map_or_else(|| port_carries(vid), |own| own == vid)
}
