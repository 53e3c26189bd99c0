//! The VLANs in which a static entry applies.

/// Whether an entry applies in VLAN `vid`: one for a VLAN only in that VLAN, others in all VLANs that their port
/// carries.
#[inline]
#[must_use]
pub fn entry_holds(entered_for: Option<u16>, vid: u16, port_carries: impl FnOnce(u16) -> bool) -> bool {
    entered_for.map_or_else(|| port_carries(vid), |own| own == vid)
}
