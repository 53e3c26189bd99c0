//! The decisions for one batch: all frames of it come from one port at one time.

use lasthop_verdict::{DropReason, Header, PortId, TagEdit};
use lasthop_wire::headers::ETHERTYPE_VLAN;

use super::Bridge;
use super::learning::Lesson;
use super::slot::Stamp;
use super::table::{key_in, mac_bits, vid_of};
use super::vlans::{Form, Membership, NO_VID, Tag};

/// Bridge group addresses 01-80-C2-00-00-00 to -0F, which no bridge forwards (IEEE 802.1D-2004, 7.12.6).
const LINK_LOCAL: u64 = 0x0180_c200_0000;
/// The individual/group bit of an address (IEEE 802-2014, 8.2.2), as a bit of a key.
const GROUP: u64 = 1 << 40;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// To one port, as it is.
    To(PortId),
    /// To one port, with another tag.
    Edited(PortId, TagEdit),
    /// To all others that carry its VLAN.
    Flood { vid: u16, tag: Tag },
}

/// Where an address is reached, and in which form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Port(PortId, Form),
    All,
}

/// One batch on its way through the bridge.
///
/// Frames of a batch often share their addresses, so the last of each kind is remembered. A remembered source
/// is not refreshed again: time stands still within a batch. A remembered destination is forgotten when a
/// source of the same batch changes the table; what other workers change meanwhile counts as changed after
/// the batch.
pub(crate) struct Visit<'a> {
    bridge: &'a Bridge,
    port: PortId,
    membership: Membership,
    static_mac: u64,
    now: Stamp,
    source: Option<(u64, Result<(), DropReason>)>,
    destination: Option<(u64, Result<Target, DropReason>)>,
}

impl<'a> Visit<'a> {
    pub(crate) fn new(bridge: &'a Bridge, port: PortId, now: Stamp) -> Self {
        let (membership, static_mac) = (bridge.vlans.of(port), bridge.ports.static_mac(port));
        Self { bridge, port, membership, static_mac, now, source: None, destination: None }
    }

    /// Where the frame goes, or why nowhere. Learns from its source first, whatever its destination.
    #[inline]
    pub(crate) fn route(&mut self, header: &Header) -> Result<Route, DropReason> {
        let (destination, source, ethertype) = header.ethernet().ok_or(DropReason::TooShort)?;
        let (vid, tag) = if ethertype != ETHERTYPE_VLAN && self.membership.is_any() {
            (NO_VID, Tag::None)
        } else {
            self.classify(header, ethertype)?
        };
        if self.port != PortId::INTERNAL {
            self.admit(key_in(vid, source))?;
        }
        match self.direct(key_in(vid, destination))? {
            Target::Port(port, Form::AsItIs) => Ok(Route::To(port)),
            Target::Port(port, form) => Ok(edited(port, tag.edit(form, vid))),
            Target::All => Ok(Route::Flood { vid, tag }),
        }
    }

    /// The VLAN that a frame belongs to, and how it says so (IEEE 802.1Q-2022, 6.9.1, 8.6.2).
    fn classify(&self, header: &Header, ethertype: u16) -> Result<(u16, Tag), DropReason> {
        let (vid, tag) = match ethertype {
            ETHERTYPE_VLAN => (header.tag_vid()?, Tag::Vlan),
            _ => (NO_VID, Tag::None),
        };
        if vid == NO_VID {
            let tag = if tag == Tag::None { tag } else { Tag::PriorityOnly };
            let own = self.membership.untagged_vid();
            let is_homeless = own == NO_VID && !self.membership.is_any();
            return if is_homeless { Err(DropReason::VlanUntagged) } else { Ok((own, tag)) };
        }
        if self.membership.is_access() {
            return Err(DropReason::VlanTagged);
        }
        let is_carried = self.bridge.vlans.carries(self.port, vid);
        if is_carried { Ok((vid, tag)) } else { Err(DropReason::VlanNotCarried) }
    }

    #[inline]
    fn admit(&mut self, key: u64) -> Result<(), DropReason> {
        if let Some((_, admitted)) = self.source.filter(|(last, _)| *last == key) {
            return admitted;
        }
        let admitted = self.admit_new(key);
        self.source = Some((key, admitted));
        admitted
    }

    fn admit_new(&mut self, key: u64) -> Result<(), DropReason> {
        if mac_bits(key) == 0 || key & GROUP != 0 {
            return Err(DropReason::SourceInvalid);
        }
        if self.static_mac != 0 {
            let is_own = mac_bits(key) == self.static_mac || self.bridge.is_configured(key, self.port);
            return if is_own { Ok(()) } else { Err(DropReason::SourceSpoofed) };
        }
        match self.bridge.learn(key, self.port, self.now) {
            Lesson::Nothing => {}
            Lesson::Learned => self.destination = None,
            Lesson::Spoofed => return Err(DropReason::SourceSpoofed),
        }
        Ok(())
    }

    #[inline]
    fn direct(&mut self, key: u64) -> Result<Target, DropReason> {
        if let Some((_, target)) = self.destination.filter(|(last, _)| *last == key) {
            return target;
        }
        let target = self.direct_new(key);
        self.destination = Some((key, target));
        target
    }

    fn direct_new(&self, key: u64) -> Result<Target, DropReason> {
        if key & GROUP != 0 {
            let is_link_local = mac_bits(key) & !0xf == LINK_LOCAL;
            return if is_link_local { Err(DropReason::LinkLocal) } else { Ok(Target::All) };
        }
        let found = self.bridge.table.look_up(key, self.now).or_else(|| self.bridge.find_everywhere(key));
        let Some(port) = found.map(|place| place.port()) else { return Ok(Target::All) };
        let there = self.bridge.vlans.of(port);
        match port {
            _ if port == self.port => Err(DropReason::SamePort),
            _ if self.membership.is_isolated() && there.is_isolated() => Err(DropReason::Isolated),
            _ => Ok(Target::Port(port, there.form(vid_of(key)))),
        }
    }
}

fn edited(port: PortId, edit: Option<TagEdit>) -> Route {
    edit.map_or(Route::To(port), |edit| Route::Edited(port, edit))
}
