//! The decisions for one batch: all frames of it come from one port at one time.

use lasthop_verdict::{DropReason, Header, Mac, PortId};

use super::learning::Lesson;
use super::slot::Stamp;
use super::table::key_of;
use super::{Bridge, Flood};

/// Bridge group addresses 01-80-C2-00-00-00 to -0F, which no bridge forwards (IEEE 802.1D-2004, 7.12.6).
const LINK_LOCAL: u64 = 0x0180_c200_0000;
/// The individual/group bit of an address (IEEE 802-2014, 8.2.2), as a bit of a key.
const GROUP: u64 = 1 << 40;
/// The address of all stations, as a key.
const BROADCAST: u64 = 0xffff_ffff_ffff;

/// Where a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    To(PortId),
    Flood(Flood),
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
    static_key: u64,
    now: Stamp,
    source: Option<(u64, Result<(), DropReason>)>,
    destination: Option<(u64, Result<Route, DropReason>)>,
}

impl<'a> Visit<'a> {
    pub(crate) fn new(bridge: &'a Bridge, port: PortId, now: Stamp) -> Self {
        let static_key = bridge.ports.static_key(port);
        Self { bridge, port, static_key, now, source: None, destination: None }
    }

    /// Where the frame goes, or why nowhere. Learns from its source first, whatever its destination.
    #[inline]
    pub(crate) fn route(&mut self, header: &Header) -> Result<Route, DropReason> {
        let (destination, source) = header.macs().ok_or(DropReason::TooShort)?;
        if self.port != PortId::INTERNAL {
            self.admit(source)?;
        }
        self.direct(destination)
    }

    #[inline]
    fn admit(&mut self, source: Mac) -> Result<(), DropReason> {
        let key = key_of(source);
        if let Some((_, admitted)) = self.source.filter(|(last, _)| *last == key) {
            return admitted;
        }
        let admitted = self.admit_new(key);
        self.source = Some((key, admitted));
        admitted
    }

    fn admit_new(&mut self, key: u64) -> Result<(), DropReason> {
        if key == 0 || key & GROUP != 0 {
            return Err(DropReason::SourceInvalid);
        }
        if self.static_key != 0 {
            return if key == self.static_key { Ok(()) } else { Err(DropReason::SourceSpoofed) };
        }
        match self.bridge.learn(key, self.port, self.now) {
            Lesson::Nothing => {}
            Lesson::Learned => self.destination = None,
            Lesson::Spoofed => return Err(DropReason::SourceSpoofed),
        }
        Ok(())
    }

    #[inline]
    fn direct(&mut self, destination: Mac) -> Result<Route, DropReason> {
        let key = key_of(destination);
        if let Some((_, route)) = self.destination.filter(|(last, _)| *last == key) {
            return route;
        }
        let route = self.direct_new(key);
        self.destination = Some((key, route));
        route
    }

    fn direct_new(&self, key: u64) -> Result<Route, DropReason> {
        if key & GROUP != 0 {
            return direct_group(key);
        }
        match self.bridge.table.look_up(key, self.now) {
            Some(place) if place.port() == self.port => Err(DropReason::SamePort),
            Some(place) => Ok(Route::To(place.port())),
            None => Ok(Route::Flood(Flood::Unknown)),
        }
    }
}

fn direct_group(key: u64) -> Result<Route, DropReason> {
    match key {
        BROADCAST => Ok(Route::Flood(Flood::Broadcast)),
        _ if key & !0xf == LINK_LOCAL => Err(DropReason::LinkLocal),
        _ => Ok(Route::Flood(Flood::Multicast)),
    }
}
