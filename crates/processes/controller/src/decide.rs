//! The decision about a packet, by the rules of the bridge, and the bits that it depends on.
//!
//! ```text
//!   which VLAN? ── not carried, wrong tag: dropped
//!        v
//!   may it come from there? ── spoofed, group address: dropped       (here its source is learned)
//!        v
//!   where is its destination? ── one port, or all that carry the VLAN ──> actions
//! ```
//!
//! A drop looks at as few digits as tell the packet from those that pass: one that makes up addresses is met by some dozens of
//! flows.

use std::collections::BTreeMap;

use lasthop_flow::{Action, Vlan};
use lasthop_verdict::{DropReason, FrameTag, NO_VID, TagEdit, TagForm};
use lasthop_wire::headers::ETHERTYPE_VLAN;

use crate::addresses::{Addresses, FdbKey};
use crate::frame::{Frame, Looked, MAC_ONES, TCI_PRIORITY, TCI_VID, apart, apart_from_mac, apart_from_tag};
use crate::ports::Port;

/// Bridge group addresses 01-80-C2-00-00-00 to -0F, which no bridge forwards (IEEE 802.1D-2004, 7.12.6).
const LINK_LOCAL: u64 = 0x0180_c200_0000;
const LINK_LOCAL_MASK: u64 = MAC_ONES & !0xf;
/// The individual/group bit of an address (IEEE 802-2014, 8.2.2).
const GROUP: u64 = 1 << 40;
const BROADCAST: u64 = MAC_ONES;

/// Why a frame is flooded; each has its meter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flood {
    Broadcast,
    Multicast,
    Unknown,
}

impl Flood {
    pub(crate) const ALL: [Flood; 3] = [Flood::Broadcast, Flood::Multicast, Flood::Unknown];

    /// Frames per second that `port` may have flooded; 0 is no limit.
    pub(crate) fn limit(self, port: &Port) -> u32 {
        let limits = &port.settings.storm;
        match self {
            Flood::Broadcast => limits.broadcast,
            Flood::Multicast => limits.multicast,
            Flood::Unknown => limits.unknown,
        }
    }

    /// The number of the meter of a port's floods.
    pub(crate) fn meter(self, port: u32) -> u32 {
        port * 3 + 1 + self as u32
    }
}

/// The state that a decision looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) ports: &'a BTreeMap<u32, Port>,
    pub(crate) addresses: &'a Addresses,
    pub(crate) now_ns: u64,
}

/// A packet that may come from where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Admitted {
    pub(crate) vid: u16,
    /// Where its source is to be learned; none at ports with an address of their own, and for addresses that are entered.
    pub(crate) learn_at: Option<FdbKey>,
}

/// The actions for a packet, and for all that are like it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Decision {
    pub(crate) actions: Vec<Action>,
    pub(crate) looked: Looked,
}

/// Whether the packet may come from where it came from, or why it is dropped.
pub(crate) fn admit(view: View<'_>, frame: &Frame, looked: &mut Looked) -> Result<Admitted, DropReason> {
    let port = view.ports.get(&frame.port).ok_or(DropReason::NoFlow)?;
    let vid = classify(port, frame, looked)?;
    let fdb_key = (vid, frame.src);
    if frame.src & GROUP != 0 {
        looked.src |= GROUP;
        return Err(DropReason::SourceInvalid);
    }
    if frame.src == 0 {
        looked.src = MAC_ONES;
        return Err(DropReason::SourceInvalid);
    }
    if port.own_mac() == 0 {
        looked.src = MAC_ONES;
        let entered = view.addresses.find_static(fdb_key, view.ports);
        return match entered {
            Some(entry) if entry.port != frame.port => Err(DropReason::SourceSpoofed),
            Some(_) => Ok(Admitted { vid, learn_at: None }),
            None => Ok(Admitted { vid, learn_at: Some(fdb_key) }),
        };
    }
    let own = || view.addresses.statics_of(frame.port, vid, view.ports).chain([port.own_mac()]);
    if own().any(|mac| mac == frame.src) {
        looked.src = MAC_ONES;
        return Ok(Admitted { vid, learn_at: None });
    }
    // Not one of its own, nor a group's or none, which are dropped for another reason.
    looked.src |= GROUP;
    own().chain([0]).for_each(|mac| looked.src |= apart_from_mac(frame.src, mac));
    Err(DropReason::SourceSpoofed)
}

/// The VLAN that a frame belongs to (IEEE 802.1Q-2022, 6.9.1, 8.6.2).
fn classify(port: &Port, frame: &Frame, looked: &mut Looked) -> Result<u16, DropReason> {
    if frame.outer.0 == 0 {
        // A frame that ends in its tag looks untagged but for its EtherType.
        if frame.ether_type == ETHERTYPE_VLAN {
            looked.ether_type = u16::MAX;
            return Err(DropReason::TooShort);
        }
        looked.ether_type |= apart_from_tag(frame.ether_type);
    }
    if frame.is_tagged() && frame.vid() != NO_VID {
        if port.is_access() {
            looked.tci |= apart(frame.vid().into(), NO_VID.into(), u64::MAX, 12) as u16;
            return Err(DropReason::VlanTagged);
        }
        looked.tci |= TCI_VID;
        let is_carried = port.carries(frame.vid());
        return is_carried.then_some(frame.vid()).ok_or(DropReason::VlanNotCarried);
    }
    if frame.is_tagged() {
        looked.tci |= TCI_VID;
    }
    let own = port.untagged_vid();
    let is_homeless = own == NO_VID && !port.is_any();
    if is_homeless { Err(DropReason::VlanUntagged) } else { Ok(own) }
}

/// Where a packet goes that is admitted.
pub(crate) fn route(view: View<'_>, frame: &Frame, vid: u16, mut looked: Looked) -> Decision {
    let (targets, flood) = match targets(view, frame, vid, &mut looked) {
        Ok(found) => found,
        Err(reason) => return Decision::drop_for(reason, looked),
    };
    let tag = frame.tag();
    let forms = targets.iter().map(|(number, port)| (*number, port.form(vid)));
    let mut actions = outputs(frame, (vid, tag), forms, &mut looked);
    if actions.is_empty() {
        let is_nested = targets.iter().any(|(_, port)| port.form(vid) == TagForm::Untagged);
        let reason = if is_nested { DropReason::VlanNested } else { DropReason::NoDestination };
        return Decision::drop_for(reason, looked);
    }
    let from = view.ports.get(&frame.port);
    let metered = flood.zip(from).filter(|(flood, from)| flood.limit(from) > 0);
    if let Some((flood, _)) = metered {
        actions.insert(0, Action::Meter(flood.meter(frame.port)));
    }
    Decision { actions, looked }
}

type Targets<'a> = Vec<(u32, &'a Port)>;

impl Decision {
    pub(crate) fn drop_for(reason: DropReason, looked: Looked) -> Self {
        Self { actions: vec![Action::drop_for(reason)], looked }
    }
}

/// Ports that get the packet, and why it is flooded, if it is; or why it is dropped.
fn targets<'a>(
    view: View<'a>,
    frame: &Frame,
    vid: u16,
    looked: &mut Looked,
) -> Result<(Targets<'a>, Option<Flood>), DropReason> {
    let from = view.ports.get(&frame.port).ok_or(DropReason::NoFlow)?;
    let reaches = |number: u32, port: &Port| number != frame.port && from.barrier(port).is_none();
    let everybody = || {
        let all = view.ports.iter().map(|(number, port)| (*number, port));
        all.filter(|(number, port)| reaches(*number, port) && port.carries(vid)).collect()
    };
    if frame.dst & GROUP != 0 {
        let flood = group(from, frame, looked).ok_or(DropReason::LinkLocal)?;
        return Ok((everybody(), Some(flood)));
    }
    looked.dst = MAC_ONES;
    let Some(number) = view.addresses.find((vid, frame.dst), view.ports, view.now_ns) else {
        return Ok((everybody(), Some(Flood::Unknown)));
    };
    if number == frame.port {
        return Err(DropReason::SamePort);
    }
    let to = view.ports.get(&number).ok_or(DropReason::PortGone)?;
    from.barrier(to).map_or_else(|| Ok((vec![(number, to)], None)), Err)
}

/// Why a frame to a group address is flooded; `None` if it is not.
fn group(from: &Port, frame: &Frame, looked: &mut Looked) -> Option<Flood> {
    if frame.dst & LINK_LOCAL_MASK == LINK_LOCAL {
        looked.dst |= LINK_LOCAL_MASK;
        return None;
    }
    looked.dst |= GROUP | apart(frame.dst, LINK_LOCAL, LINK_LOCAL_MASK, 48);
    let is_limited = [Flood::Broadcast, Flood::Multicast].into_iter().any(|flood| flood.limit(from) > 0);
    if frame.dst == BROADCAST {
        looked.dst |= if is_limited { MAC_ONES } else { 0 };
        return Some(Flood::Broadcast);
    }
    looked.dst |= if is_limited { apart_from_mac(frame.dst, BROADCAST) } else { 0 };
    Some(Flood::Multicast)
}

/// A copy for each target in its form; those that need the same done to them follow each other.
fn outputs(
    frame: &Frame,
    (vid, tag): (u16, FrameTag),
    targets: impl Iterator<Item = (u32, TagForm)>,
    looked: &mut Looked,
) -> Vec<Action> {
    let (mut as_is, mut untagged, mut tagged) = (Vec::new(), Vec::new(), Vec::new());
    for (port, form) in targets {
        match tag.edit(form, vid) {
            None => as_is.push(port),
            Some(TagEdit::Pop) => untagged.push(port),
            Some(TagEdit::Push(_) | TagEdit::Rename(_)) => tagged.push(port),
        }
    }
    if !untagged.is_empty() && would_show_another_tag(frame, looked) {
        untagged.clear();
    }
    let sent = |ports: Vec<u32>| ports.into_iter().map(Action::Output);
    let mut actions: Vec<Action> = sent(as_is).collect();
    let is_popped = !untagged.is_empty() || !tagged.is_empty() && tag == FrameTag::PriorityOnly;
    actions.extend(is_popped.then_some(Action::PopVlan));
    actions.extend(sent(untagged));
    if !tagged.is_empty() {
        looked.tci |= if tag == FrameTag::PriorityOnly { TCI_PRIORITY } else { 0 };
        actions.push(Action::PushVlan(Vlan { tpid: ETHERTYPE_VLAN, tci: frame.tci(vid) }));
        actions.extend(sent(tagged));
    }
    actions
}

/// Whether the frame without its tag would pass for one of the VLAN that its sender wrote behind it.
fn would_show_another_tag(frame: &Frame, looked: &mut Looked) -> bool {
    if frame.inner != 0 {
        return frame.inner == ETHERTYPE_VLAN;
    }
    let is_cut = frame.ether_type == ETHERTYPE_VLAN;
    looked.ether_type |= if is_cut { u16::MAX } else { apart_from_tag(frame.ether_type) };
    is_cut
}
