//! A learning Ethernet bridge (IEEE 802.1D-2004, 7.7 to 7.9, without a spanning tree).
//!
//! The bridge learns the source address of each frame, and looks the destination address up. Frames to unknown and
//! group addresses go to all other ports. Ageing is lazy: an entry that was not refreshed for 300 s counts as absent,
//! its slot is reused when it is needed, and no timer runs.
//!
//! Floods from one port can be limited (`storm.rs`); by default they are not.
//!
//! A port with a static address (`mac`) may send from that address only, and no other port may. The internal port is
//! excluded from learning and from floods.
//!
//! Each VLAN is a separate bridge (independent learning, IEEE 802.1Q-2022, 8.8). A frame belongs to the VLAN of its
//! tag, or to that of its port's untagged frames. Addresses are learned, looked up and flooded within the VLAN. A copy
//! is sent tagged or untagged, as its receiver's port requires.
//!
//! The rules and their drop reasons are those of `lasthop_bridge_policy`, which the controller follows, too.

mod changed;
mod configured;
mod explain;
mod flood;
mod learning;
mod moves;
mod ports;
mod slot;
mod stats;
mod storm;
mod table;
#[cfg(test)]
mod tests;
mod visit;
mod vlans;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lasthop_bridge_policy::{FloodKind, IsolationClass, Target};
use lasthop_module_api::{
    BATCH_PACKETS_MAX, Batch, DropReason, FdbEntry, FdbMove, FrameTag, Header, Mac, Module, NO_VID, PortId,
    PortSettings, Reasons, Verdicts, Vid,
};

pub use stats::BridgeStats;
pub use table::random_key;

use configured::one_vlan;
use flood::{Flooded, output_edited};
use moves::Moves;
use ports::Ports;
use slot::{FdbValue, Stamp};
use stats::Counts;
use storm::Storms;
use table::Table;
use visit::{Route, Visit};
use vlans::Vlans;

/// Time without a frame from a learned address after which it counts as absent, in nanoseconds
/// (IEEE 802.1D-2004, table 7-5: 300 s).
pub const AGEING_NS_DEFAULT: u64 = 300_000_000_000;
/// Default number of addresses in the table: 16 for each of 1024 ports, 256 KiB.
pub const FDB_ENTRIES_MAX: usize = 16_384;
/// Largest table that a user may configure, in entries: 16 MiB.
pub const FDB_ENTRIES_LIMIT: usize = 1 << 20;
/// Smallest table that a user may configure, in entries: 16 for each of 4 ports.
pub const FDB_ENTRIES_MIN: usize = 64;
/// The addresses learned from one port may take 1/N of the table: one guest cannot fill it.
const PORT_SHARE: usize = 4;

/// Settings of a bridge.
#[derive(Clone, Debug)]
pub struct BridgeSettings {
    /// Slots of the address table; rounded up to a power of two, at most [`FDB_ENTRIES_LIMIT`].
    pub entries_max: usize,
    /// Default limit of addresses that are learned from one port.
    pub port_macs_max: u32,
    /// Time without a frame after which an address counts as absent, in nanoseconds; exact to 134 ms.
    pub ageing_ns: u64,
    /// Secret of the hash. It comes from [`random_key`] unless a run must be repeatable.
    pub hash_key: [u64; 2],
}

impl Default for BridgeSettings {
    fn default() -> Self {
        Self::with_entries(FDB_ENTRIES_MAX)
    }
}

impl BridgeSettings {
    /// Settings for a table of `entries_max` addresses, of which one port may take a quarter.
    #[must_use]
    pub fn with_entries(entries_max: usize) -> Self {
        let entries_max = entries_max.min(FDB_ENTRIES_LIMIT);
        let port_macs_max = (entries_max / PORT_SHARE) as u32; // less than the limit
        Self { entries_max, port_macs_max, ageing_ns: AGEING_NS_DEFAULT, hash_key: random_key() }
    }
}

/// The learning bridge.
#[derive(Debug)]
pub struct Bridge {
    table: Table,
    ports: Ports,
    storms: Storms,
    vlans: Vlans,
    counts: Counts,
    port_macs_max: u32,
    /// Earliest time of the next sweep.
    sweep_at_ns: AtomicU64,
    /// The writer lock of the table and of `ports`, with state that only its holder uses.
    control: Mutex<Control>,
}

/// Names of the ports by number, for error messages.
#[derive(Debug, Default)]
struct Control {
    names: BTreeMap<PortId, String>,
    /// Keys of static entries that were added for one VLAN. The same key may also be the one for all VLANs of the port.
    for_one_vlan: BTreeSet<(PortId, u64)>,
    moves: Moves,
}

impl Bridge {
    /// Returns a bridge without ports. It allocates all memory that forwarding will need.
    #[must_use]
    pub fn new(settings: &BridgeSettings) -> Self {
        let entries = settings.entries_max.min(FDB_ENTRIES_LIMIT);
        Self {
            table: Table::new(entries, settings.hash_key, settings.ageing_ns),
            ports: Ports::default(),
            storms: Storms::default(),
            vlans: Vlans::default(),
            counts: Counts::default(),
            port_macs_max: settings.port_macs_max,
            sweep_at_ns: AtomicU64::new(0),
            control: Mutex::default(),
        }
    }

    /// Statistics of the address table.
    #[must_use]
    pub fn stats(&self) -> BridgeStats {
        self.counts.read()
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Floods a frame of no VLAN. It is not inlined into the path of frames to known addresses.
    #[inline(never)]
    fn flood_plain(
        &self,
        (packet, header): (usize, &Header),
        from: PortId,
        now_ns: u64,
        verdicts: &mut Verdicts,
    ) {
        let (vid, tag) = (NO_VID, FrameTag::None);
        self.flood_within_limits(&Flooded { packet, from, vid, tag, header }, now_ns, verdicts);
    }

    /// Floods a frame, within its port's limits.
    fn flood_within_limits(&self, flooded: &Flooded<'_>, now_ns: u64, verdicts: &mut Verdicts) {
        let &Flooded { packet, from, vid, header, .. } = flooded;
        let destination = header.ethernet().map_or(0, |(destination, ..)| destination);
        let is_heard = || match vid {
            NO_VID => self.hearers_as_it_is(from).next().is_some(),
            vid => self.hearers(from, vid).next().is_some(),
        };
        let admitted = self.storms.admit(from, FloodKind::of(destination), is_heard, now_ns);
        match admitted {
            Err(reason) => verdicts.drop_packet(packet, reason),
            Ok(()) if vid == NO_VID => self.flood_as_it_is(packet, from, verdicts),
            Ok(()) => self.flood(flooded, verdicts),
        }
    }

    /// Prefetches the buckets of a batch's addresses side by side. Equal headers in a row are taken once. Frames in
    /// VLANs have other buckets, which are not prefetched.
    #[inline(never)]
    fn look_ahead(&self, headers: &[Header]) {
        let mut homes = [[0; 2]; BATCH_PACKETS_MAX];
        let (mut last, mut count) = (None, 0);
        for ethernet in headers.iter().map(Header::ethernet) {
            if let Some((destination, source, _)) = ethernet.filter(|_| ethernet != last) {
                let Some(place) = homes.get_mut(count) else { break };
                *place = [self.table.home(destination), self.table.home(source)];
                count += 1;
            }
            last = ethernet;
        }
        self.table.touch(homes[..count].as_flattened());
    }

    /// Decides a frame of a batch, and the following ones with the same Ethernet header. Returns how many.
    #[inline(always)]
    fn decide_some(
        &self,
        visit: &mut Visit<'_>,
        (batch, packet, header): (&Batch<'_>, usize, &Header),
        now_ns: u64,
        verdicts: &mut Verdicts,
    ) -> usize {
        let Some((destination, source, ethertype)) = header.ethernet() else {
            verdicts.drop_packet(packet, DropReason::TooShort);
            return 1;
        };
        if !visit.is_plain(ethertype) {
            let ethernet = (destination, source, ethertype);
            self.decide_in_vlan(visit, (packet, header), ethernet, now_ns, verdicts);
            return 1;
        }
        match visit.direct(source, destination) {
            Ok(Target::Port(port)) if visit.expects_runs() => {
                let behind = batch.headers[packet..].iter().skip(1);
                let count = 1 + behind.take_while(|other| other.is_alike(header)).count();
                visit.note_run(count);
                verdicts.output_run(packet, count, port);
                return count;
            }
            Ok(Target::Port(port)) => verdicts.output(packet, port),
            Ok(Target::Flood) => self.flood_plain((packet, header), batch.port, now_ns, verdicts),
            Err(reason) => verdicts.drop_packet(packet, reason),
        }
        1
    }

    /// Decides on a batch of several frames. Apart from a lone one, which needs less room.
    #[inline(never)]
    fn decide_all(&self, batch: &Batch<'_>, now_ns: u64, verdicts: &mut Verdicts) {
        if self.table.is_large() {
            self.look_ahead(batch.headers);
        }
        let mut visit = Visit::new(self, batch.port, Stamp::at(now_ns));
        let mut packet = 0;
        while let Some(header) = batch.headers.get(packet) {
            packet += self.decide_some(&mut visit, (batch, packet, header), now_ns, verdicts);
        }
    }

    /// Decides on the only frame of a batch: nothing is remembered for a next one.
    #[inline(always)]
    fn decide_lone(&self, port: PortId, header: &Header, now_ns: u64, verdicts: &mut Verdicts) {
        let Some((destination, source, ethertype)) = header.ethernet() else {
            return verdicts.drop_packet(0, DropReason::TooShort);
        };
        let mut visit = Visit::new(self, port, Stamp::at(now_ns));
        if !visit.is_plain(ethertype) {
            return self.decide_lone_in_vlan(port, header, now_ns, verdicts);
        }
        match visit.direct(source, destination) {
            Ok(Target::Port(to)) => verdicts.output(0, to),
            Ok(Target::Flood) => self.flood_plain((0, header), port, now_ns, verdicts),
            Err(reason) => verdicts.drop_packet(0, reason),
        }
    }

    /// As [`Self::decide_in_vlan`], for the only frame of a batch.
    #[inline(never)]
    fn decide_lone_in_vlan(&self, port: PortId, header: &Header, now_ns: u64, verdicts: &mut Verdicts) {
        let Some(ethernet) = header.ethernet() else { return };
        let mut visit = Visit::new(self, port, Stamp::at(now_ns));
        self.decide_in_vlan(&mut visit, (0, header), ethernet, now_ns, verdicts);
    }

    /// Decides on a frame that may be in a VLAN. Kept out of the way of those that are in none.
    #[inline(never)]
    fn decide_in_vlan(
        &self,
        visit: &mut Visit<'_>,
        (packet, header): (usize, &Header),
        ethernet: (u64, u64, u16),
        now_ns: u64,
        verdicts: &mut Verdicts,
    ) {
        match visit.route(header, ethernet) {
            Ok(Route::To(port, None)) => verdicts.output(packet, port),
            Ok(Route::To(port, Some(edit))) => output_edited(packet, port, header, edit, verdicts),
            Ok(Route::Flood { vid, tag }) => {
                let flooded = Flooded { packet, from: visit.port(), vid, tag, header };
                self.flood_within_limits(&flooded, now_ns, verdicts);
            }
            Err(reason) => verdicts.drop_packet(packet, reason),
        }
    }
}

impl Module for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn decide(&self, batch: &Batch<'_>, now_ns: u64, verdicts: &mut Verdicts) {
        if let [header] = batch.headers {
            return self.decide_lone(batch.port, header, now_ns, verdicts);
        }
        self.decide_all(batch, now_ns, verdicts);
    }

    fn explain(
        &self,
        (port, header): (PortId, &Header),
        now_ns: u64,
        verdicts: &mut Verdicts,
        reasons: &mut Reasons<'_>,
    ) -> bool {
        self.explain_frame((port, header), now_ns, verdicts, reasons);
        true
    }

    fn port_added(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        crate::check_number(port, settings)?;
        let mut control = self.control();
        if let Some(name) = control.names.get(&port) {
            return Err(format!(
                "port {port} is \"{name}\" already; remove it before \"{}\" is added",
                settings.name
            ));
        }
        let isolation = IsolationClass::of(settings.policy.is_isolated, settings.kind);
        self.vlans.set(port, &settings.policy.vlans, isolation.is_barred());
        if let Some(mac) = settings.policy.mac {
            self.configure(&control, (mac, None), port, &settings.name)?;
        }
        self.storms.open(port, settings.policy.storm);
        let macs_max = settings.macs_max.unwrap_or(self.port_macs_max);
        self.vlans.set_static_mac(port, settings.policy.mac.map_or(0, Mac::to_bits));
        self.ports.open(port, macs_max, self.vlans.of(port), isolation);
        control.names.insert(port, settings.name.clone());
        Ok(())
    }

    fn port_changed(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        self.change(port, settings)
    }

    fn port_removed(&self, port: PortId) {
        let mut control = self.control();
        self.ports.close(port);
        self.vlans.set_static_mac(port, 0);
        for (slot, _, place) in self.table.entries().filter(|(_, _, place)| place.port() == port) {
            slot.vacate();
            if !place.is_static() {
                self.ports.release_slot(port);
            }
        }
        control.moves.forget(port);
        control.names.remove(&port);
        control.for_one_vlan.retain(|(owner, _)| *owner != port);
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        self.stats().counters().collect()
    }

    fn fdb(&self, now_ns: u64) -> Vec<FdbEntry> {
        let now = Stamp::at(now_ns);
        let live = self.table.entries().filter(|(_, _, place)| !self.table.is_aged(*place, now));
        let mut entries: Vec<_> = live.map(|(_, key, place)| fdb_entry(key, place, now_ns)).collect();
        let place = |entry: &FdbEntry| (entry.mac, entry.vlan, entry.is_static);
        entries.sort_by_key(|entry| (place(entry), entry.age_ns, entry.port));
        // Without the lock, an address that moves between slots during the listing may appear twice. A static address
        // may appear for several ports without a common VLAN.
        entries.dedup_by(|later, kept| {
            place(later) == place(kept) && (!kept.is_static || later.port == kept.port)
        });
        entries
    }

    fn moves(&self, now_ns: u64) -> Vec<FdbMove> {
        self.control().moves.list(now_ns)
    }

    fn fdb_add(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), String> {
        self.add_static(mac, vlan, port)
    }

    fn fdb_del(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), String> {
        self.delete_static(mac, vlan, port)
    }

    fn fdb_flush(&self, port: Option<PortId>, vlan: Option<Vid>) -> Result<usize, String> {
        Ok(self.forget_learned(&self.control(), port, vlan))
    }
}

fn fdb_entry(key: u64, place: FdbValue, now_ns: u64) -> FdbEntry {
    let is_static = place.is_static();
    let age_ns = if is_static { 0 } else { now_ns.saturating_sub(place.stamp().as_ns()) };
    let vlan = one_vlan(key);
    FdbEntry { mac: Mac::from_bits(key), vlan, port: place.port(), age_ns, is_static }
}
