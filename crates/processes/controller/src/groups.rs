//! Groups of ports by which rules select the other side of a connection: the addresses of their ports.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::rc::Rc;

use lasthop_api::acl::AclRule;
use lasthop_module_api::PortSettings;

use crate::ranges::range_digits;

/// Ports' addresses in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct AddressSet {
    v4: Vec<u128>,
    v6: Vec<u128>,
}

impl AddressSet {
    fn new(addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        let mut set = Self::default();
        for address in addresses {
            match address {
                IpAddr::V4(address) => set.v4.push(address.to_bits().into()),
                IpAddr::V6(address) => set.v6.push(address.to_bits()),
            }
        }
        for all in [&mut set.v4, &mut set.v6] {
            all.sort_unstable();
            all.dedup();
        }
        set
    }

    /// Whether the set has an address of `width` bits; adds the digits that decide to `bits`.
    pub(crate) fn has(&self, address: u128, width: u32, bits: &mut u128) -> bool {
        let all = if width == u32::BITS { &self.v4 } else { &self.v6 };
        match all.binary_search(&address) {
            Ok(_) => {
                *bits |= range_digits(address, address, address, width);
                true
            }
            // No other member shares more leading digits with the address than its neighbours.
            Err(at) => {
                let neighbours = [at.checked_sub(1), Some(at)].into_iter().flatten();
                for near in neighbours.filter_map(|at| all.get(at).copied()) {
                    *bits |= range_digits(address, near, near, width);
                }
                false
            }
        }
    }
}

/// The addresses of the groups that rules name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Groups(BTreeMap<Vec<String>, Rc<AddressSet>>);

impl Groups {
    /// The groups that these rules name, with the addresses of these ports of one switch.
    pub(crate) fn of<'a>(rules: &[AclRule], ports: impl Iterator<Item = &'a PortSettings> + Clone) -> Self {
        let mut groups = BTreeMap::new();
        for names in rules.iter().map(|rule| rule.remote_group.names()).filter(|names| !names.is_empty()) {
            groups.entry(names.to_vec()).or_insert_with(|| {
                let is_in =
                    |port: &&PortSettings| port.policy.groups.iter().any(|group| names.contains(group));
                let own =
                    ports.clone().filter(is_in).flat_map(|port| port.policy.guard.addresses.iter().copied());
                Rc::new(AddressSet::new(own))
            });
        }
        Self(groups)
    }

    /// The addresses that a rule allows for the other side; `None` if the rule names no group.
    pub(crate) fn addresses(&self, rule: &AclRule) -> Option<Rc<AddressSet>> {
        let names = rule.remote_group.names();
        // Unknown groups have no addresses.
        (!names.is_empty()).then(|| self.0.get(names).cloned().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// All addresses that share the recorded digits are in the set, or none is.
        #[test]
        fn digits_of_a_set_decide(
            all in prop::collection::vec(0_u32..0x1000, 0..20),
            address in 0_u32..0x1000,
            other in 0_u32..0x1000,
        ) {
            let set = AddressSet::new(all.iter().map(|address| IpAddr::V4((*address).into())));
            let mut bits = 0;
            let is_in = set.has(address.into(), u32::BITS, &mut bits);
            prop_assert_eq!(is_in, all.contains(&address));
            let like = u128::from(address) & bits | u128::from(other) & !bits;
            prop_assert_eq!(set.has(like, u32::BITS, &mut 0), is_in);
        }
    }
}
