//! Changes a port's settings while its frames pass.
//!
//! Each frame is judged by the old settings or by the new ones: they are one word, stored once. Before that store the
//! table has the static addresses of both settings, after it only those of the new ones.

use lasthop_bridge_policy::{IsolationClass, entry_holds};
use lasthop_module_api::{Mac, NO_VID, PortId, PortSettings, PortVlans, Vid};

use super::configured::{one_vlan, taken};
use super::slot::FdbValue;
use super::table::{EVERYWHERE, key_in, mac_bits, vid_of};
use super::{Bridge, Control};

/// VIDs that a frame can have, and [`NO_VID`].
const VIDS: u16 = 4095;

impl Bridge {
    /// Changes a port's settings; an error leaves them as they were.
    pub(super) fn change(&self, port: PortId, settings: &PortSettings) -> Result<(), String> {
        let control = self.control();
        let (old, old_keys) = (self.vlans.of(port), self.static_keys(port));
        let isolation = IsolationClass::of(settings.policy.is_isolated, settings.kind);
        let mac = settings.policy.mac.map_or(0, Mac::to_bits);
        let keys = self.keys_after(&control, &old_keys, port, settings)?;
        for key in keys.iter().filter(|key| !old_keys.contains(key)) {
            self.refuse_taken(&control, (*key, port), settings)?;
        }
        self.enter(&control, &keys, port, settings)?;
        self.storms.change(port, settings.policy.storm);
        self.ports.set_isolation(port, isolation);
        let is_other_vlan = self.vlans.change(port, &settings.policy.vlans, isolation.is_barred(), mac);
        self.ports.set_standing(port, self.vlans.of(port));
        for key in old_keys.iter().filter(|key| !keys.contains(key)) {
            self.forget_static(&control, *key, port);
        }
        // Learned addresses are removed if the static address or the VLANs change: the guest may no longer use either.
        if is_other_vlan || mac != old.static_mac() {
            self.forget_learned(&control, Some(port), None);
        }
        Ok(())
    }

    /// Keys of all static addresses of a port.
    fn static_keys(&self, port: PortId) -> Vec<u64> {
        let own = self.table.entries().filter(|(_, _, place)| place.is_static() && place.port() == port);
        own.map(|(_, key, _)| key).collect()
    }

    /// Those keys under the new settings: an address for all VLANs of the port is then for all of its new VLANs.
    fn keys_after(
        &self,
        control: &Control,
        old_keys: &[u64],
        port: PortId,
        settings: &PortSettings,
    ) -> Result<Vec<u64>, String> {
        let (old_mac, old_everywhere) =
            (self.vlans.of(port).static_mac(), vid_of(self.static_key(0, None, port)));
        let everywhere = filter_of(&settings.policy.vlans);
        let own_key = (old_mac != 0).then(|| key_in(old_everywhere, old_mac));
        let mut keys: Vec<u64> =
            settings.policy.mac.iter().map(|mac| key_in(everywhere, mac.to_bits())).collect();
        for key in old_keys.iter().filter(|key| Some(**key) != own_key) {
            let (filter, mac) = (vid_of(*key), mac_bits(*key));
            let name = &settings.name;
            let is_for_all = filter == old_everywhere && !control.for_one_vlan.contains(&(port, *key));
            if !is_for_all && !settings.policy.vlans.carries(filter) {
                return Err(format!(
                    "\"{name}\" has the static address {} in VLAN {filter}, which it would not carry any more; first: \
                     lasthop fdb del {} {name} --vlan {filter}",
                    Mac::from_bits(mac),
                    Mac::from_bits(mac),
                ));
            }
            let key = if is_for_all { key_in(everywhere, mac) } else { *key };
            if keys.contains(&key) {
                let mac = Mac::from_bits(mac);
                return Err(format!(
                    "{mac} is a static address of \"{name}\" already; see: lasthop fdb show"
                ));
            }
            keys.push(key);
        }
        Ok(keys)
    }

    /// Refuses an address that another port has in one of the same VLANs.
    fn refuse_taken(
        &self,
        control: &Control,
        (key, port): (u64, PortId),
        settings: &PortSettings,
    ) -> Result<(), String> {
        let mac = Mac::from_bits(mac_bits(key));
        if mac.to_bits() == 0 || mac.is_group() {
            return Err(format!(
                "{mac} cannot be the address of \"{}\"; give it a unicast address",
                settings.name
            ));
        }
        let meets = |other: u64, owner: PortId| {
            let both =
                |vid: &u16| holds(key, &settings.policy.vlans, *vid) && self.holds_in(other, owner, *vid);
            other == key || (NO_VID..VIDS).any(|vid| both(&vid))
        };
        let mut others = self.table.entries().filter(|(_, other, place)| {
            let is_others = place.is_static() && place.port() != port;
            is_others && mac_bits(*other) == mac_bits(key) && meets(*other, place.port())
        });
        match others.next() {
            Some((_, _, place)) => Err(taken(control, mac, place.port(), &settings.name)),
            None => Ok(()),
        }
    }

    /// Adds the missing keys, and displaces learned entries if necessary. An error adds none of them.
    fn enter(
        &self,
        control: &Control,
        keys: &[u64],
        port: PortId,
        settings: &PortSettings,
    ) -> Result<(), String> {
        let is_there = |key: u64| self.table.find(key).is_some_and(|(_, place)| place.is_static());
        let missing: Vec<u64> = keys.iter().copied().filter(|key| !is_there(*key)).collect();
        for (count, key) in missing.iter().enumerate() {
            self.make_way(control, *key, |vid| holds(*key, &settings.policy.vlans, vid));
            let room = self.make_room(*key, Mac::from_bits(mac_bits(*key)), &settings.name);
            match room {
                Ok(slot) => slot.occupy(*key, FdbValue::configured(port)),
                Err(why) => {
                    missing.iter().take(count).for_each(|key| self.forget_static(control, *key, port));
                    return Err(why);
                }
            }
        }
        Ok(())
    }
}

/// The filter id of static addresses that are valid in all VLANs of a port.
fn filter_of(vlans: &PortVlans) -> u16 {
    match vlans {
        PortVlans::Any => NO_VID,
        PortVlans::Access(vid) => Vid::get(*vid),
        PortVlans::Trunk { .. } => EVERYWHERE,
    }
}

/// Whether a static address with this key is valid in VLAN `vid`, at a port that carries `vlans`.
fn holds(key: u64, vlans: &PortVlans, vid: u16) -> bool {
    entry_holds(one_vlan(key), vid, |vid| vlans.carries(vid))
}
