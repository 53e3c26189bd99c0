//! A learning Ethernet bridge (IEEE 802.1D-2004, 7.7 to 7.9, without a spanning tree).
//!
//! The source address of each frame teaches where it is; the destination address is looked up; unknown and
//! group addresses go to all other ports. Ageing is lazy: an entry that was not refreshed for 300 s counts as
//! absent, its slot is used again when needed, and no timer runs.
//!
//! What one port has flooded can be limited (`storm.rs`); by default it is not.
//!
//! A port with a static address (`mac`) may send from that address only, and no other port may. Nothing is
//! learned from the internal port and nothing is flooded to it.

mod hash;
mod learning;
mod ports;
mod slot;
mod stats;
mod storm;
mod table;
#[cfg(test)]
mod tests;
mod visit;

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lasthop_verdict::{Batch, DropReason, FdbEntry, Mac, Module, PortId, PortSettings, Verdicts};

pub use hash::random_key;
pub use stats::BridgeStats;

use ports::Ports;
use slot::{Place, Stamp};
use stats::Counts;
use storm::{Flood, Storms};
use table::{Table, key_of, mac_of};
use visit::{Route, Visit};

/// Time without a frame from a learned address after which it counts as absent, in nanoseconds
/// (IEEE 802.1D-2004, table 7-5: 300 s).
pub const AGEING_NS_DEFAULT: u64 = 300_000_000_000;
/// Addresses that the table has room for unless told otherwise: 16 for each of 1024 ports, 256 KiB.
pub const FDB_ENTRIES_MAX: usize = 16_384;
/// Largest table that can be asked for, in entries: 16 MiB.
pub const FDB_ENTRIES_LIMIT: usize = 1 << 20;
/// Smallest table that a user may ask for, in entries: 16 for each of 4 ports.
pub const FDB_ENTRIES_MIN: usize = 64;
/// Part of the table that the addresses learned from one port may take: one guest cannot fill it.
const PORT_SHARE: usize = 4;

/// How a bridge is made.
#[derive(Clone, Debug)]
pub struct BridgeSettings {
    /// Slots of the address table; rounded up to a power of two, at most [`FDB_ENTRIES_LIMIT`].
    pub entries_max: usize,
    /// Addresses that are learned from one port unless its settings say otherwise.
    pub port_macs_max: u32,
    /// Time without a frame after which an address counts as absent, in nanoseconds; exact to 134 ms.
    pub ageing_ns: u64,
    /// Secret of the hash; from [`random_key`] unless everything is to be repeatable.
    pub hash_key: [u64; 2],
}

impl Default for BridgeSettings {
    fn default() -> Self {
        Self::with_entries(FDB_ENTRIES_MAX)
    }
}

impl BridgeSettings {
    /// A table of `entries_max`, of which the addresses behind one port take a quarter at most.
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
    counts: Counts,
    port_macs_max: u32,
    /// When the table may be swept again.
    sweep_at_ns: AtomicU64,
    /// The writer lock of the table and of `ports`, and what only its holder needs.
    control: Mutex<Control>,
}

/// The ports by number with their names, for refusals.
#[derive(Debug, Default)]
struct Control {
    names: BTreeMap<PortId, String>,
}

impl Bridge {
    /// A bridge without ports. Allocates all it will ever need for forwarding.
    #[must_use]
    pub fn new(settings: &BridgeSettings) -> Self {
        let entries = settings.entries_max.min(FDB_ENTRIES_LIMIT);
        Self {
            table: Table::new(entries, settings.hash_key, settings.ageing_ns),
            ports: Ports::default(),
            storms: Storms::default(),
            counts: Counts::default(),
            port_macs_max: settings.port_macs_max,
            sweep_at_ns: AtomicU64::new(0),
            control: Mutex::default(),
        }
    }

    /// What happened to the address table so far.
    #[must_use]
    pub fn stats(&self) -> BridgeStats {
        self.counts.read()
    }

    /// Learned addresses of the port that occupy the table, aged ones included; what its limit counts.
    #[must_use]
    pub fn learned_macs(&self, port: PortId) -> u32 {
        self.ports.learned(port)
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline(never)]
    fn flood(&self, packet: usize, (from, kind): (PortId, Flood), now_ns: u64, verdicts: &mut Verdicts) {
        if let Err(reason) = self.storms.admit(from, kind, now_ns) {
            return verdicts.drop_packet(packet, reason);
        }
        let mut others = self.ports.others(from).peekable();
        if others.peek().is_none() {
            return verdicts.drop_packet(packet, DropReason::NoDestination);
        }
        others.for_each(|port| verdicts.output(packet, port));
    }

    /// Enters a static address, in place of a learned one if it must be.
    fn configure(&self, control: &Control, mac: Mac, port: PortId, name: &str) -> Result<(), String> {
        let key = key_of(mac);
        if key == 0 || mac.is_group() {
            return Err(format!("{mac} cannot be the address of \"{name}\"; give it a unicast address"));
        }
        match self.table.find(key) {
            Some((_, place)) if place.is_static() => return Err(taken(control, mac, place.port(), name)),
            Some((slot, place)) => {
                slot.vacate();
                self.ports.release_slot(place.port());
            }
            None => {}
        }
        self.make_room(key, mac, name)?.occupy(key, Place::configured(port));
        Ok(())
    }

    /// Takes all addresses of a port out of the table, except the one with the key `except`.
    fn forget(&self, _lock: &Control, port: PortId, except: u64) {
        let of_port = |place: &Place| place.port() == port;
        for (slot, _, place) in
            self.table.entries().filter(|(_, key, place)| of_port(place) && *key != except)
        {
            slot.vacate();
            if !place.is_static() {
                self.ports.release_slot(port);
            }
        }
    }

    /// A slot for a static address; a learned one has to go if all are in use.
    fn make_room(&self, key: u64, mac: Mac, name: &str) -> Result<&slot::Slot, String> {
        // At time zero nothing is aged: the empty slot, else whoever was unseen for longest.
        if let Some((slot, _)) = self.table.vacancy(key, Stamp::at(0)) {
            return Ok(slot);
        }
        let (slot, place) = self.table.weakest(key).ok_or_else(|| {
            format!(
                "the address table has no room for the address {mac} of \"{name}\"; make the table larger"
            )
        })?;
        self.ports.release_slot(place.port());
        self.counts.displaced.raise();
        Ok(slot)
    }
}

impl Module for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn decide(&self, batch: &Batch<'_>, now_ns: u64, verdicts: &mut Verdicts) {
        let mut visit = Visit::new(self, batch.port, Stamp::at(now_ns));
        for (packet, header) in batch.headers.iter().enumerate() {
            match visit.route(header) {
                Ok(Route::To(port)) => verdicts.output(packet, port),
                Ok(Route::Flood(kind)) => self.flood(packet, (batch.port, kind), now_ns, verdicts),
                Err(reason) => verdicts.drop_packet(packet, reason),
            }
        }
    }

    fn port_added(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        crate::number::check(port, settings)?;
        let mut control = self.control();
        if let Some(name) = control.names.get(&port) {
            return Err(format!(
                "port {port} is \"{name}\" already; remove it before \"{}\" is added",
                settings.name
            ));
        }
        if let Some(mac) = settings.mac {
            self.configure(&control, mac, port, &settings.name)?;
        }
        self.storms.open(port, settings.storm);
        self.ports.open(
            port,
            settings.mac.map_or(0, key_of),
            settings.macs_max.unwrap_or(self.port_macs_max),
        );
        control.names.insert(port, settings.name.clone());
        Ok(())
    }

    /// What was learned from the port goes with its old address: its guest may use neither any more.
    fn port_changed(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        let control = self.control();
        let static_key = settings.mac.map_or(0, key_of);
        if static_key != self.ports.static_key(port) {
            if let Some(mac) = settings.mac {
                self.configure(&control, mac, port, &settings.name)?;
            }
            self.ports.set_static_key(port, static_key);
            self.forget(&control, port, static_key);
        }
        self.storms.change(port, settings.storm);
        Ok(())
    }

    fn port_removed(&self, port: PortId) {
        let mut control = self.control();
        self.ports.close(port);
        self.forget(&control, port, 0);
        control.names.remove(&port);
    }

    fn fdb(&self, now_ns: u64) -> Vec<FdbEntry> {
        let now = Stamp::at(now_ns);
        let live = self.table.entries().filter(|(_, _, place)| !self.table.is_aged(*place, now));
        let mut entries: Vec<_> = live.map(|(_, key, place)| fdb_entry(key, place, now_ns)).collect();
        entries.sort_by_key(|entry| (entry.mac, entry.age_ns));
        // Without the lock, an address that goes from one slot to another while we look may show up in both.
        entries.dedup_by_key(|entry| entry.mac);
        entries
    }
}

fn fdb_entry(key: u64, place: Place, now_ns: u64) -> FdbEntry {
    let is_static = place.is_static();
    let age_ns = if is_static { 0 } else { now_ns.saturating_sub(place.stamp().as_ns()) };
    FdbEntry { mac: mac_of(key), port: place.port(), age_ns, is_static }
}

fn taken(control: &Control, mac: Mac, owner: PortId, name: &str) -> String {
    let owner = control.names.get(&owner).map_or("another port", String::as_str);
    format!("{mac} is the address of \"{owner}\" already; give \"{name}\" another one, or remove \"{owner}\"")
}
