//! The decisions for one batch: all frames of it come from one port at one time.

use lasthop_verdict::{DropReason, FrameTag, Header, NO_VID, PortId, TagEdit};
use lasthop_wire::headers::ETHERTYPE_VLAN;

use super::Bridge;
use super::learning::Lesson;
use super::slot::Stamp;
use super::table::{key_in, mac_bits};
use super::vlans::Standing;

/// Bridge group addresses 01-80-C2-00-00-00 to -0F, which no bridge forwards (IEEE 802.1D-2004, 7.12.6).
const LINK_LOCAL: u64 = 0x0180_c200_0000;
/// The individual/group bit of an address (IEEE 802-2014, 8.2.2), as a bit of a key.
const GROUP: u64 = 1 << 40;

/// Never a key.
const NOTHING: u64 = u64::MAX;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Port(PortId),
    /// All other ports.
    All,
}

/// The destination of a frame of a VLAN, and the change of its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    To(PortId, Option<TagEdit>),
    Flood { vid: u16, tag: FrameTag },
}

/// One batch on its way through the bridge.
///
/// Frames of a batch often share their addresses, so the last of each kind is remembered. A remembered source
/// is not refreshed again: time stands still within a batch. A remembered destination is forgotten when a
/// source of the same batch changes the table; changes of other workers count as made after the batch.
pub(crate) struct Visit<'a> {
    bridge: &'a Bridge,
    port: PortId,
    standing: Standing,
    now: Stamp,
    /// Key of the last source that was admitted.
    admitted: u64,
    /// Key of the last one that was not, and why.
    refused: (u64, DropReason),
    /// Key of the last destination, and where it is.
    destination: u64,
    target: Result<Target, DropReason>,
}

impl<'a> Visit<'a> {
    #[inline]
    pub(crate) fn new(bridge: &'a Bridge, port: PortId, now: Stamp) -> Self {
        let (standing, target) = (bridge.vlans.of(port), Ok(Target::All));
        Self {
            bridge,
            port,
            standing,
            now,
            admitted: NOTHING,
            refused: (NOTHING, DropReason::SourceInvalid),
            destination: NOTHING,
            target,
        }
    }

    pub(crate) fn port(&self) -> PortId {
        self.port
    }

    /// Whether frames with this EtherType pass as they are: without tag, from a port without VLAN settings.
    #[inline]
    pub(crate) fn is_plain(&self, ethertype: u16) -> bool {
        ethertype != ETHERTYPE_VLAN && self.standing.is_any()
    }

    /// The destination of a frame in no VLAN, or a drop reason. `source` and `destination` are keys of
    /// addresses. Learns from the source first, for any destination.
    #[inline(always)] // for every frame; left to itself the compiler calls it
    pub(crate) fn direct(&mut self, source: u64, destination: u64) -> Result<Target, DropReason> {
        if source != self.admitted {
            self.admit(source)?;
        }
        if destination != self.destination {
            self.target = self.find(destination);
            self.destination = destination;
        }
        self.target
    }

    /// Where a frame goes that may be in a VLAN, or why nowhere.
    pub(crate) fn route(
        &mut self,
        header: &Header,
        (destination, source, ethertype): (u64, u64, u16),
    ) -> Result<Route, DropReason> {
        let (vid, tag) = self.classify(header, ethertype)?;
        let Target::Port(port) = self.direct(key_in(vid, source), key_in(vid, destination))? else {
            return Ok(Route::Flood { vid, tag });
        };
        Ok(Route::To(port, tag.edit(self.bridge.vlans.of(port).form(vid), vid)))
    }

    /// The VLAN that a frame belongs to, and how it says so (IEEE 802.1Q-2022, 6.9.1, 8.6.2).
    fn classify(&self, header: &Header, ethertype: u16) -> Result<(u16, FrameTag), DropReason> {
        let (vid, tag) = match ethertype {
            ETHERTYPE_VLAN => (header.tag_vid()?, FrameTag::Vlan),
            _ => (NO_VID, FrameTag::None),
        };
        if vid == NO_VID {
            let tag = if tag == FrameTag::None { tag } else { FrameTag::PriorityOnly };
            let own = self.standing.untagged_vid();
            let is_homeless = own == NO_VID && !self.standing.is_any();
            return if is_homeless { Err(DropReason::VlanUntagged) } else { Ok((own, tag)) };
        }
        if self.standing.is_access() {
            return Err(DropReason::VlanTagged);
        }
        let is_carried = self.bridge.vlans.carries(self.port, vid);
        if is_carried { Ok((vid, tag)) } else { Err(DropReason::VlanNotCarried) }
    }

    #[inline(always)]
    fn admit(&mut self, key: u64) -> Result<(), DropReason> {
        if key == self.refused.0 {
            return Err(self.refused.1);
        }
        if self.port != PortId::INTERNAL {
            self.admit_new(key).inspect_err(|reason| self.refused = (key, *reason))?;
        }
        self.admitted = key;
        Ok(())
    }

    #[inline(always)]
    fn admit_new(&mut self, key: u64) -> Result<(), DropReason> {
        if mac_bits(key) == 0 || key & GROUP != 0 {
            return Err(DropReason::SourceInvalid);
        }
        let own = self.standing.static_mac();
        if own != 0 {
            let is_own = mac_bits(key) == own || self.bridge.is_configured(key, self.port);
            return if is_own { Ok(()) } else { Err(DropReason::SourceSpoofed) };
        }
        match self.bridge.learn(key, self.port, self.now) {
            Lesson::Nothing => {}
            Lesson::Learned => self.destination = NOTHING,
            Lesson::Spoofed => return Err(DropReason::SourceSpoofed),
        }
        Ok(())
    }

    #[inline]
    fn find(&self, key: u64) -> Result<Target, DropReason> {
        if key & GROUP != 0 {
            let is_link_local = mac_bits(key) & !0xf == LINK_LOCAL;
            return if is_link_local { Err(DropReason::LinkLocal) } else { Ok(Target::All) };
        }
        let found = self.bridge.table.look_up(key, self.now).or_else(|| self.bridge.find_everywhere(key));
        match found.map(|place| place.port()) {
            None => Ok(Target::All),
            Some(port) if port == self.port => Err(DropReason::SamePort),
            Some(port) if self.is_barred_from(port) => self.pass(port),
            Some(port) => Ok(Target::Port(port)),
        }
    }

    /// Whether it has to be asked if the two talk to each other.
    #[inline]
    fn is_barred_from(&self, port: PortId) -> bool {
        self.standing.is_barred() && self.bridge.vlans.of(port).is_barred()
    }

    #[cold]
    fn pass(&self, port: PortId) -> Result<Target, DropReason> {
        self.bridge.ports.barrier(self.port, port).map_or(Ok(Target::Port(port)), Err)
    }
}
