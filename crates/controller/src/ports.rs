//! What the controller knows of a port: which VLANs it carries, how, and whom it talks to. The rules are the bridge's.

use lasthop_flow::VLAN_PRESENT;
use lasthop_verdict::{PortKind, PortSettings, PortVlans};

use crate::frame::{ETHERTYPE_VLAN, Frame, TCI_VID, number};

/// No VLAN: untagged frames of ports without VLAN settings.
pub(crate) const NO_VID: u16 = 0;
const VIDS: usize = 4096;
/// A reserved VID, which no trunk carries (IEEE 802.1Q-2022, table 9-2).
const VID_RESERVED: u16 = 4095;

/// How a frame is to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    AsItIs,
    Untagged,
    Tagged,
}

/// How a frame came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tag {
    None,
    /// With a priority and VID 0, which belongs to the VLAN of untagged frames (IEEE 802.1Q-2022, 6.9.1).
    PriorityOnly,
    Vlan,
}

impl Tag {
    pub(crate) fn of(frame: &Frame) -> Self {
        match (frame.is_tagged(), frame.vid()) {
            (false, _) => Self::None,
            (true, NO_VID) => Self::PriorityOnly,
            (true, _) => Self::Vlan,
        }
    }

    /// The TCI of the tag that is put in front where this one was, if any, for VLAN `vid`.
    pub(crate) fn tci(frame: &Frame, vid: u16) -> u16 {
        let kept = if frame.outer.0 == ETHERTYPE_VLAN { frame.outer.1 & !TCI_VID } else { 0 };
        kept | VLAN_PRESENT | vid
    }
}

/// A port that has a number.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) settings: PortSettings,
    /// VLANs of a trunk with a list; empty without.
    listed: Vec<u64>,
}

impl Port {
    pub(crate) fn new(settings: PortSettings) -> Self {
        let mut listed = Vec::new();
        if let PortVlans::Trunk { carried: Some(set), .. } = &settings.vlans {
            listed = vec![0_u64; VIDS / 64];
            let vids = set.ranges().iter().flat_map(|(first, last)| first.get()..=last.get());
            for vid in vids {
                if let Some(word) = listed.get_mut(usize::from(vid / 64)) {
                    *word |= 1 << (vid % 64);
                }
            }
        }
        Self { settings, listed }
    }

    /// Its own address, the only one that it may send from but for entries of the user's; 0 is none.
    pub(crate) fn own_mac(&self) -> u64 {
        self.settings.mac.map_or(0, number)
    }

    /// Without VLAN settings: frames pass as they are.
    pub(crate) fn is_any(&self) -> bool {
        self.settings.vlans == PortVlans::Any
    }

    pub(crate) fn is_access(&self) -> bool {
        matches!(self.settings.vlans, PortVlans::Access(_))
    }

    /// The VLAN of untagged frames; [`NO_VID`] if there is none.
    pub(crate) fn untagged_vid(&self) -> u16 {
        match &self.settings.vlans {
            PortVlans::Any => NO_VID,
            PortVlans::Access(vid) => vid.get(),
            PortVlans::Trunk { native, .. } => native.map_or(NO_VID, |vid| vid.get()),
        }
    }

    /// Whether frames of VLAN `vid` come from and go to the port.
    pub(crate) fn carries(&self, vid: u16) -> bool {
        match &self.settings.vlans {
            PortVlans::Any => true,
            _ if vid == NO_VID => false,
            _ if vid == self.untagged_vid() => true,
            PortVlans::Access(_) => false,
            PortVlans::Trunk { carried: None, .. } => vid < VID_RESERVED,
            PortVlans::Trunk { .. } => {
                self.listed.get(usize::from(vid / 64)).is_some_and(|word| word >> (vid % 64) & 1 != 0)
            }
        }
    }

    /// What frames of VLAN `vid`, which the port carries, look like there.
    pub(crate) fn form(&self, vid: u16) -> Form {
        match vid {
            NO_VID => Form::AsItIs,
            _ if vid == self.untagged_vid() => Form::Untagged,
            _ => Form::Tagged,
        }
    }

    /// Whether nothing passes between the two.
    pub(crate) fn is_barred_from(&self, other: &Self) -> bool {
        let (one, other) = (&self.settings, &other.settings);
        let is_inside = |kind| kind == PortKind::Inside;
        let wires = !is_inside(one.kind) && !is_inside(other.kind);
        let is_transit = |kind| kind == PortKind::TransitUplink;
        one.is_isolated && other.is_isolated || wires && !(is_transit(one.kind) && is_transit(other.kind))
    }
}
