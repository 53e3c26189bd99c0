//! The decisions for one batch: one port has received all frames of it, and the time is the same for all.

use lasthop_bridge_policy::{GROUP, SourceEntry, Target, Unrecorded, admit, classify, route};
use lasthop_module_api::{DropReason, FrameTag, Header, PortId, TagEdit};
use lasthop_wire::headers::ETHERTYPE_VLAN;

use super::Bridge;
use super::learning::LearnOutcome;
use super::slot::{FdbValue, Stamp};
use super::table::{key_in, mac_bits};
use super::vlans::{PortRules, Standing};

/// Equals no key.
const NOTHING: u64 = u64::MAX;

/// Once this number of frames had a successor with another Ethernet header, the rest of the batch is not searched for
/// runs.
const SINGLES_MAX: u8 = 2;

/// The destination of a frame of a VLAN, and the edit of its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    To(PortId, Option<TagEdit>),
    Flood { vid: u16, tag: FrameTag },
}

/// The state of the decisions for one batch.
///
/// Frames of a batch often share their addresses, so the last source and destination are remembered. A remembered
/// source is not refreshed again: time stands still within a batch. A remembered destination is dropped when a source
/// of the same batch changes the table. Changes of other workers count as made after the batch.
pub(crate) struct Visit<'a> {
    bridge: &'a Bridge,
    port: PortId,
    standing: Standing,
    now: Stamp,
    /// Key of the last source that was accepted.
    admitted: u64,
    /// Key of the last source that was refused, and the reason.
    refused: (u64, DropReason),
    /// Key of the last destination; `target` is its port.
    destination: u64,
    target: Result<Target<PortId>, DropReason>,
    /// Number of frames so far whose successor had another Ethernet header.
    singles: u8,
}

impl<'a> Visit<'a> {
    #[inline]
    pub(crate) fn new(bridge: &'a Bridge, port: PortId, now: Stamp) -> Self {
        let (standing, target) = (bridge.vlans.of(port), Ok(Target::Flood));
        Self {
            bridge,
            port,
            standing,
            now,
            admitted: NOTHING,
            refused: (NOTHING, DropReason::SourceInvalid),
            destination: NOTHING,
            target,
            singles: 0,
        }
    }

    pub(crate) fn port(&self) -> PortId {
        self.port
    }

    /// Whether to compare the next frames' Ethernet headers: runs were found, or few frames were compared.
    #[inline]
    pub(crate) fn expects_runs(&self) -> bool {
        self.singles < SINGLES_MAX
    }

    /// Notes a run of `count` frames with the same Ethernet header.
    #[inline]
    pub(crate) fn note_run(&mut self, count: usize) {
        self.singles += u8::from(count == 1);
    }

    /// Whether frames with this EtherType pass unchanged: they have no tag, and their port has no VLAN settings.
    #[inline]
    pub(crate) fn is_plain(&self, ethertype: u16) -> bool {
        ethertype != ETHERTYPE_VLAN && self.standing.is_any()
    }

    /// Returns the destination of a frame in no VLAN, or a drop reason. `source` and `destination` are keys of
    /// addresses. Before that it learns the source.
    #[inline(always)] // runs for every frame; without the attribute the compiler does not inline it
    pub(crate) fn direct(&mut self, source: u64, destination: u64) -> Result<Target<PortId>, DropReason> {
        if source != self.admitted {
            self.admit(source)?;
        }
        if destination != self.destination {
            self.target = self.find(destination);
            self.destination = destination;
        }
        self.target
    }

    /// Returns the route of a frame that may be in a VLAN, or a drop reason.
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

    /// The VLAN of a frame, and the tag that it was received with (IEEE 802.1Q-2022, 6.9.1, 8.6.2).
    fn classify(&self, header: &Header, ethertype: u16) -> Result<(u16, FrameTag), DropReason> {
        let tag_vid = if ethertype == ETHERTYPE_VLAN { Some(header.tag_vid()?) } else { None };
        let rules = PortRules { vlans: &self.bridge.vlans, port: self.port, standing: self.standing };
        classify(&rules, tag_vid, &mut Unrecorded)
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
        let (bridge, port, now) = (self.bridge, self.port, self.now);
        let is_entered = || bridge.is_configured(key, port);
        let own_mac = self.standing.static_mac();
        // Before the rules ask for it: usually nothing has to be called.
        let is_known = own_mac == 0 && bridge.is_known(key, port, now);
        let look_up = || match is_known {
            true => SourceEntry::None(LearnOutcome::Nothing),
            false => bridge.learn(key, port, now),
        };
        if admit(mac_bits(key), own_mac, is_entered, look_up, &mut Unrecorded)? == Some(LearnOutcome::Learned)
        {
            self.destination = NOTHING;
        }
        Ok(())
    }

    #[inline(always)]
    fn find(&self, key: u64) -> Result<Target<PortId>, DropReason> {
        // Before the rules ask for it: usually nothing has to be called.
        let found = match key & GROUP {
            0 => self.bridge.table.look_up(key, self.now),
            _ => None,
        };
        let look_up = || found.or_else(|| self.bridge.find_everywhere(key)).map(FdbValue::port);
        let (bridge, from, is_barred) = (self.bridge, self.port, self.standing.is_barred());
        let barrier = |port| if is_barred { bridge.barrier(from, port) } else { None };
        route(mac_bits(key), self.port, look_up, barrier, &mut Unrecorded)
    }
}

impl Bridge {
    /// Why nothing passes from `from`, which there may be a barrier around, to `port`.
    #[cold]
    fn barrier(&self, from: PortId, port: PortId) -> Option<DropReason> {
        if self.vlans.of(port).is_barred() { self.ports.barrier(from, port) } else { None }
    }
}
