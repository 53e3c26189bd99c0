//! The VLAN of a frame.

use lasthop_module_api::{DropReason, FrameTag, NO_VID, PortVlans};

use crate::recorder::{Recorder, TCI_VID, VID_BITS, digits_apart};

/// The VLAN settings of a port.
pub trait VlanRules {
    /// Whether the port has no VLAN settings: frames pass unchanged.
    fn is_any(&self) -> bool;

    /// Whether it carries only untagged frames of one VLAN.
    fn is_access(&self) -> bool;

    /// The VLAN of untagged frames; [`NO_VID`] if there is none.
    fn untagged_vid(&self) -> u16;

    /// Whether the port carries VLAN `vid`; [`NO_VID`] stands for frames without a VLAN.
    fn carries(&self, vid: u16) -> bool;
}

impl VlanRules for PortVlans {
    fn is_any(&self) -> bool {
        *self == Self::Any
    }

    fn is_access(&self) -> bool {
        matches!(self, Self::Access(_))
    }

    fn untagged_vid(&self) -> u16 {
        Self::untagged_vid(self)
    }

    fn carries(&self, vid: u16) -> bool {
        Self::carries(self, vid)
    }
}

/// The VLAN of a frame from a port, and how the frame indicates it (IEEE 802.1Q-2022, 6.9.1, 8.6.2). `tag_vid` is the
/// VID in the frame's first tag, if that is a tag of IEEE 802.1Q.
///
/// # Errors
/// [`DropReason::VlanTagged`], [`DropReason::VlanNotCarried`], [`DropReason::VlanUntagged`].
#[inline]
pub fn classify(
    port: &impl VlanRules,
    tag_vid: Option<u16>,
    recorder: &mut impl Recorder,
) -> Result<(u16, FrameTag), DropReason> {
    let vid = match tag_vid {
        None => return classify_untagged(port, FrameTag::None),
        Some(NO_VID) => {
            recorder.tci(TCI_VID);
            return classify_untagged(port, FrameTag::PriorityOnly);
        }
        Some(vid) => vid,
    };
    if port.is_access() {
        recorder.tci(digits_apart(vid.into(), NO_VID.into(), u64::MAX, VID_BITS) as u16); // 12 bits
        return Err(DropReason::VlanTagged);
    }
    recorder.tci(TCI_VID);
    if port.carries(vid) { Ok((vid, FrameTag::Vlan)) } else { Err(DropReason::VlanNotCarried) }
}

fn classify_untagged(port: &impl VlanRules, tag: FrameTag) -> Result<(u16, FrameTag), DropReason> {
    let vid = port.untagged_vid();
    if vid == NO_VID && !port.is_any() { Err(DropReason::VlanUntagged) } else { Ok((vid, tag)) }
}
