//! A port as the controller knows it: the VLANs it carries, in which form, and the ports it may reach. The rules are the bridge's.

use lasthop_verdict::{DropReason, Mac, PortKind, PortSettings, PortVlans, TagForm};

/// A port that has a number.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) settings: PortSettings,
}

impl Port {
    /// Its own address, the only one that it may send from but for entries of the user's; 0 is none.
    pub(crate) fn own_mac(&self) -> u64 {
        self.settings.mac.map_or(0, Mac::to_bits)
    }

    /// Without VLAN settings: frames pass as they are.
    pub(crate) fn is_any(&self) -> bool {
        self.settings.vlans == PortVlans::Any
    }

    pub(crate) fn is_access(&self) -> bool {
        matches!(self.settings.vlans, PortVlans::Access(_))
    }

    pub(crate) fn untagged_vid(&self) -> u16 {
        self.settings.vlans.untagged_vid()
    }

    /// Whether frames of VLAN `vid` come from and go to the port.
    pub(crate) fn carries(&self, vid: u16) -> bool {
        self.settings.vlans.carries(vid)
    }

    /// The form of frames of VLAN `vid`, which the port carries.
    pub(crate) fn form(&self, vid: u16) -> TagForm {
        TagForm::of(vid, self.untagged_vid())
    }

    /// Why nothing passes between the two; `None` if it does.
    pub(crate) fn barrier(&self, other: &Self) -> Option<DropReason> {
        let (one, other) = (&self.settings, &other.settings);
        let is_inside = |kind| kind == PortKind::Inside;
        let wires = !is_inside(one.kind) && !is_inside(other.kind);
        let is_transit = |kind| kind == PortKind::TransitUplink;
        match () {
            () if one.is_isolated && other.is_isolated => Some(DropReason::Isolated),
            () if wires && !(is_transit(one.kind) && is_transit(other.kind)) => Some(DropReason::NoTransit),
            () => None,
        }
    }
}
