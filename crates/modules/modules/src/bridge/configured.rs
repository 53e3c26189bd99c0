//! Static addresses: those of the ports, and those that a user added.
//!
//! ```text
//!   for                                        filter id of the key
//!   one VLAN                                   its VID
//!   all VLANs of a port without VLAN settings  0, which is also where its untagged frames are
//!   all VLANs of a trunk                       EVERYWHERE: valid in the VLANs that the port carries
//! ```
//!
//! Frames from a static address are accepted from its port only. In VLANs that the port does not carry, other ports may
//! use the address.

use lasthop_bridge_policy::entry_holds;
use lasthop_module_api::{Mac, NO_VID, PortId, Vid};

use super::slot::{FdbValue, Slot, Stamp};
use super::table::{EVERYWHERE, key_in, mac_bits, vid_of};
use super::{Bridge, Control};

/// The only VLAN in which a static address with this key is valid; `None` if it is valid in all VLANs of its port.
pub(super) fn one_vlan(key: u64) -> Option<u16> {
    Some(vid_of(key)).filter(|vid| !matches!(*vid, NO_VID | EVERYWHERE))
}

impl Bridge {
    /// Finds the static entry of an address that was added for all VLANs of its port, if one of these is the VLAN of
    /// `key`.
    pub(super) fn find_everywhere(&self, key: u64) -> Option<FdbValue> {
        let vid = vid_of(key);
        if vid == NO_VID {
            return None;
        }
        let in_trunks = || self.table.find(key_in(EVERYWHERE, mac_bits(key)));
        let in_others = || self.table.find(mac_bits(key));
        let holds = |place: &FdbValue| place.is_static() && self.vlans.carries(place.port(), vid);
        let place = |found: Option<(&Slot, FdbValue)>| found.map(|(_, place)| place).filter(holds);
        place(in_trunks()).or_else(|| place(in_others()))
    }

    /// Whether `key` is a static address of `port`.
    pub(super) fn is_configured(&self, key: u64, port: PortId) -> bool {
        let own = |place: &FdbValue| place.is_static() && place.port() == port;
        let found = self.table.find(key).map(|(_, place)| place);
        found.filter(own).or_else(|| self.find_everywhere(key).filter(own)).is_some()
    }

    /// Adds a static address, and displaces a learned entry if necessary. The port's VLANs must be set before.
    pub(super) fn configure(
        &self,
        control: &Control,
        (mac, vlan): (Mac, Option<Vid>),
        port: PortId,
        name: &str,
    ) -> Result<(), String> {
        let bits = mac.to_bits();
        if bits == 0 || mac.is_group() {
            return Err(format!("{mac} cannot be the address of \"{name}\"; give it a unicast address"));
        }
        let key = self.static_key(bits, vlan, port);
        if let Some(owner) = self.owner_in(key, port) {
            return Err(taken(control, mac, owner, name));
        }
        self.make_way(control, key, |vid| self.holds_in(key, port, vid));
        self.make_room(key, mac, name)?.occupy(key, FdbValue::configured(port));
        Ok(())
    }

    /// The key of a static address: for one VLAN, or for all that the port carries.
    pub(super) fn static_key(&self, mac: u64, vlan: Option<Vid>, port: PortId) -> u64 {
        let standing = self.vlans.of(port);
        let filter = match vlan {
            Some(vid) => vid.get(),
            None if standing.is_any() => NO_VID,
            None if standing.is_access() => standing.untagged_vid(),
            None => EVERYWHERE,
        };
        key_in(filter, mac)
    }

    /// Whether a static address with this key is valid in VLAN `vid`.
    pub(super) fn holds_in(&self, key: u64, port: PortId, vid: u16) -> bool {
        entry_holds(one_vlan(key), vid, |vid| self.vlans.carries(port, vid))
    }

    /// The port that already has the address in a VLAN where `key` would be valid for `port`.
    fn owner_in(&self, key: u64, port: PortId) -> Option<PortId> {
        let same = self.table.entries().filter(|(_, other, place)| {
            place.is_static()
                && mac_bits(*other) == mac_bits(key)
                && self.meet(key, port, *other, place.port())
        });
        same.map(|(_, _, place)| place.port()).next()
    }

    /// Whether two static entries of one address have a VLAN in common, or the same place in the table.
    fn meet(&self, one: u64, port: PortId, other: u64, owner: PortId) -> bool {
        match (one_vlan(one), one_vlan(other)) {
            _ if one == other => true,
            (None, None) => self.vlans.overlap(port, owner),
            (None, Some(vid)) => self.holds_in(one, port, vid),
            (Some(vid), _) => self.holds_in(other, owner, vid),
        }
    }

    /// Removes learned entries of an address in the VLANs in which it is about to be configured.
    pub(super) fn make_way(&self, _lock: &Control, key: u64, holds_in: impl Fn(u16) -> bool) {
        let learned = self.table.entries().filter(|(_, other, place)| {
            !place.is_static() && mac_bits(*other) == mac_bits(key) && holds_in(vid_of(*other))
        });
        for (slot, _, place) in learned {
            slot.vacate();
            self.ports.release_slot(place.port());
        }
    }

    /// Returns a slot for a static address; it displaces a learned one if all are in use.
    pub(super) fn make_room(&self, key: u64, mac: Mac, name: &str) -> Result<&Slot, String> {
        // At time zero no entry is aged: this takes an empty slot, or else the least recently seen entry.
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

    /// Adds a static address for an existing port.
    pub(super) fn add_static(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), String> {
        let mut control = self.control();
        let name = control.name(port)?;
        if let Some(vid) = vlan.filter(|vid| !self.vlans.carries(port, vid.get())) {
            return Err(format!("\"{name}\" does not carry VLAN {vid}; see: lasthop vlan show"));
        }
        self.configure(&control, (mac, vlan), port, name)?;
        if vlan.is_some() {
            let key = self.static_key(mac.to_bits(), vlan, port);
            control.for_one_vlan.insert((port, key));
        }
        Ok(())
    }

    /// Removes an entry of `add_static`.
    pub(super) fn delete_static(&self, mac: Mac, vlan: Option<Vid>, port: PortId) -> Result<(), String> {
        let mut control = self.control();
        let name = control.name(port)?;
        let key = self.static_key(mac.to_bits(), vlan, port);
        let found = self.table.find(key).filter(|(_, place)| place.is_static() && place.port() == port);
        let (slot, _) = found.ok_or_else(|| {
            let place = vlan.map_or_else(String::new, |vid| format!(" in VLAN {vid}"));
            format!("there is no static entry {mac} for \"{name}\"{place}; see: lasthop fdb show")
        })?;
        if self.vlans.of(port).static_mac() == mac.to_bits()
            && key == self.static_key(mac.to_bits(), None, port)
        {
            return Err(format!(
                "{mac} is the address of \"{name}\" itself, set by mac=; it goes with the vnic"
            ));
        }
        slot.vacate();
        control.for_one_vlan.remove(&(port, key));
        Ok(())
    }

    /// Removes the static entry with this key if it belongs to the port.
    pub(super) fn forget_static(&self, _lock: &Control, key: u64, port: PortId) {
        let found = self.table.find(key).filter(|(_, place)| place.is_static() && place.port() == port);
        if let Some((slot, _)) = found {
            slot.vacate();
        }
    }

    /// Removes learned addresses of one port or all, and of one VLAN or all. Returns how many.
    pub(super) fn forget_learned(&self, _lock: &Control, port: Option<PortId>, vlan: Option<Vid>) -> usize {
        let chosen = self.table.entries().filter(|(_, key, place)| {
            let in_vlan = vlan.is_none_or(|vid| vid.get() == vid_of(*key));
            !place.is_static() && in_vlan && port.is_none_or(|port| place.port() == port)
        });
        let mut flushed = 0;
        for (slot, _, place) in chosen {
            slot.vacate();
            self.ports.release_slot(place.port());
            flushed += 1;
        }
        flushed
    }
}

impl Control {
    fn name(&self, port: PortId) -> Result<&str, String> {
        self.names.get(&port).map(String::as_str).ok_or_else(|| format!("there is no port {port}"))
    }
}

pub(super) fn taken(control: &Control, mac: Mac, owner: PortId, name: &str) -> String {
    let owner = control.names.get(&owner).map_or("another port", String::as_str);
    if owner == name {
        return format!("{mac} is a static address of \"{name}\" already; see: lasthop fdb show");
    }
    format!("{mac} is the address of \"{owner}\" already; give \"{name}\" another one, or remove \"{owner}\"")
}
