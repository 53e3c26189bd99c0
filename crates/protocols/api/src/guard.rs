//! Checks of a port's claims: `guard=mac+ip+arp+dhcp`, and the port's own addresses: `addresses=10.0.0.5+dhcp`.

use std::net::IpAddr;

use lasthop_module_api::{Mac, PortGuard};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use lasthop_runtime::fault::Fault;

/// Largest number of addresses of one port.
const ADDRESSES_MAX: usize = 16;
const WORDS: [&str; 4] = ["mac", "ip", "arp", "dhcp"];
/// Among the addresses: those that a DHCP server gives.
const BY_DHCP: &str = "dhcp";
/// Among the addresses: every link-local one.
const ANY_LINK_LOCAL: &str = "fe80::/10";
/// The words among the addresses.
const ADDRESS_WORDS: usize = 2;

/// The checks of a port, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
#[schemars(inline, extend("items" = { "enum": WORDS }, "default" = []))]
pub struct GuardChecks(Vec<String>);

impl GuardChecks {
    /// Checks words such as `mac+ip`.
    pub fn of<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, Fault> {
        let mut given: Vec<String> = words.into_iter().map(str::to_owned).collect();
        if let Some(odd) = given.iter().find(|word| !WORDS.contains(&word.as_str())) {
            let hint = names::hint(odd, WORDS);
            return Err(Fault::params(format!(
                "guard: there is no check \"{odd}\"{hint} (there are {})",
                WORDS.join(", ")
            )));
        }
        given.sort_by_key(|word| WORDS.iter().position(|known| known == word));
        given.dedup();
        Ok(Self(given))
    }

    /// The words, joined as on the command line.
    pub fn joined(&self) -> String {
        self.0.join("+")
    }

    fn has(&self, word: &str) -> bool {
        self.0.iter().any(|given| given == word)
    }

    /// The checks in the form for a module.
    pub fn policy(&self, addresses: &GuardAddresses) -> PortGuard {
        PortGuard {
            addresses: addresses.fixed.clone(),
            follows_dhcp: addresses.follows_dhcp,
            has_any_link_local: addresses.has_any_link_local,
            has_mac: self.has("mac"),
            has_ip: self.has("ip"),
            has_arp: self.has("arp"),
            has_dhcp: self.has("dhcp"),
        }
    }

    /// Words and addresses of a module's checks; `None` without checks.
    pub fn of_policy(guard: &PortGuard) -> (Option<Self>, Option<GuardAddresses>) {
        let all = [guard.has_mac, guard.has_ip, guard.has_arp, guard.has_dhcp];
        let words = WORDS.iter().zip(all).filter(|(_, is_on)| *is_on).map(|(word, _)| (*word).to_owned());
        let checks = Self(words.collect());
        let addresses = GuardAddresses {
            fixed: guard.addresses.clone(),
            follows_dhcp: guard.follows_dhcp,
            has_any_link_local: guard.has_any_link_local,
        };
        (Some(checks).filter(|checks| !checks.0.is_empty()), Some(addresses).filter(|all| !all.is_empty()))
    }

    /// Refuses checks without the keys that they need.
    ///
    /// # Errors
    /// The key that is missing, and why.
    pub fn check(&self, mac: Option<Mac>, addresses: &GuardAddresses) -> Result<(), &'static str> {
        let why = if self.has("mac") && mac.is_none() {
            "has guard=mac, which checks its own address; give it one: mac="
        } else if (self.has("ip") || self.has("arp")) && addresses.is_empty() {
            "has guard=ip or guard=arp, which check its own addresses; give it some: addresses="
        } else if addresses.follows_dhcp && mac.is_none() {
            "has addresses=dhcp, which follows the answers of DHCP servers to its Ethernet address; give it one: mac="
        } else if addresses.follows_dhcp && !self.has("ip") && !self.has("arp") {
            "has addresses=dhcp, which only guard=ip and guard=arp use; add one of them, or leave dhcp out of addresses"
        } else {
            return Ok(());
        };
        Err(why)
    }
}

impl TryFrom<Vec<String>> for GuardChecks {
    type Error = Fault;

    fn try_from(words: Vec<String>) -> Result<Self, Fault> {
        Self::of(words.iter().map(String::as_str))
    }
}

impl From<GuardChecks> for Vec<String> {
    fn from(checks: GuardChecks) -> Self {
        checks.0
    }
}

/// The network addresses of a port: fixed ones, those that DHCP servers give to it, and all link-local ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
#[schemars(inline, with = "Vec<String>", extend("maxItems" = ADDRESSES_MAX + ADDRESS_WORDS, "default" = []))]
pub struct GuardAddresses {
    fixed: Vec<IpAddr>,
    follows_dhcp: bool,
    has_any_link_local: bool,
}

impl GuardAddresses {
    /// Parses text such as `10.0.0.5+fd00::5+dhcp`.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        Self::of(text.split('+'))
    }

    /// Checks words, each an address, `dhcp` or `fe80::/10`.
    fn of<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, Fault> {
        let mut addresses = Self::default();
        for word in words {
            match word {
                BY_DHCP => addresses.follows_dhcp = true,
                ANY_LINK_LOCAL => addresses.has_any_link_local = true,
                _ => addresses.fixed.push(word.parse().map_err(|_| {
                    Fault::params(format!(
                        "addresses: \"{word}\" is neither an IP address such as 10.0.0.5 or fd00::5, nor {BY_DHCP}, nor {ANY_LINK_LOCAL}"
                    ))
                })?),
            }
        }
        addresses.checked()
    }

    fn checked(self) -> Result<Self, Fault> {
        if self.fixed.len() > ADDRESSES_MAX {
            let count = self.fixed.len();
            return Err(Fault::params(format!("addresses has {count} of them; at most {ADDRESSES_MAX}")));
        }
        match self.fixed.iter().find(|address| address.is_unspecified() || address.is_multicast()) {
            Some(odd) => Err(Fault::params(format!("addresses: {odd} cannot be an address of one port"))),
            None => Ok(self),
        }
    }

    fn is_empty(&self) -> bool {
        self.fixed.is_empty() && !self.follows_dhcp && !self.has_any_link_local
    }

    fn words(&self) -> impl Iterator<Item = String> {
        let words = [(self.has_any_link_local, ANY_LINK_LOCAL), (self.follows_dhcp, BY_DHCP)];
        let words = words.into_iter().filter(|(is_given, _)| *is_given).map(|(_, word)| word.to_owned());
        self.fixed.iter().map(ToString::to_string).chain(words)
    }

    /// The addresses, joined as on the command line.
    pub fn joined(&self) -> String {
        self.words().collect::<Vec<_>>().join("+")
    }
}

impl TryFrom<Vec<String>> for GuardAddresses {
    type Error = Fault;

    fn try_from(words: Vec<String>) -> Result<Self, Fault> {
        Self::of(words.iter().map(String::as_str))
    }
}

impl From<GuardAddresses> for Vec<String> {
    fn from(addresses: GuardAddresses) -> Self {
        addresses.words().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_are_known_and_have_their_addresses() {
        let checks = GuardChecks::of("dhcp+ip+mac".split('+')).expect("words");
        assert_eq!(checks.joined(), "mac+ip+dhcp");
        let own = GuardAddresses::parse("10.0.0.5+fd00::5").expect("addresses");
        assert_eq!(own.joined(), "10.0.0.5+fd00::5");
        let any_link_local = GuardAddresses::parse("dhcp+fe80::/10+fd00::5").expect("addresses");
        assert_eq!(any_link_local.joined(), "fd00::5+fe80::/10+dhcp");
        let told = GuardChecks::of_policy(&checks.policy(&any_link_local)).1;
        assert_eq!(told, Some(any_link_local));
        let policy = checks.policy(&own);
        assert!(policy.has_ip && policy.has_dhcp && !policy.has_arp && policy.addresses.len() == 2);
        let mac = Some(Mac([2, 0, 0, 0, 0, 1]));
        assert!(checks.check(mac, &own).is_ok());
        for (mac, own, words) in
            [(None, own, "give it one: mac="), (mac, GuardAddresses::default(), "addresses=")]
        {
            let refusal = checks.check(mac, &own).expect_err(words);
            assert!(refusal.contains(words), "{refusal}");
        }
        for (refused, words) in [
            (GuardChecks::of(["arb"]).map(drop), "did you mean \"arp\""),
            (GuardAddresses::parse("10.0.0").map(drop), "\"10.0.0\" is neither an IP address"),
            (GuardAddresses::parse("224.0.0.1").map(drop), "cannot be an address of one port"),
        ] {
            let refusal = refused.expect_err(words).message;
            assert!(refusal.contains(words), "{refusal}");
        }
    }

    #[test]
    fn addresses_by_dhcp_need_a_mac_and_a_check_that_uses_them() {
        let own = GuardAddresses::parse("dhcp+10.0.0.5").expect("addresses");
        assert_eq!(own.joined(), "10.0.0.5+dhcp");
        let json = serde_json::to_value(&own).expect("JSON");
        assert_eq!(json, serde_json::json!(["10.0.0.5", "dhcp"]));
        assert_eq!(serde_json::from_value::<GuardAddresses>(json).expect("read"), own);
        let (checks, mac) = (GuardChecks::of(["ip"]).expect("words"), Some(Mac([2, 0, 0, 0, 0, 1])));
        let policy = checks.policy(&own);
        assert!(policy.follows_dhcp && policy.addresses.len() == 1);
        assert_eq!(GuardChecks::of_policy(&policy), (Some(checks.clone()), Some(own.clone())));
        assert!(checks.check(mac, &own).is_ok());
        assert!(checks.check(mac, &GuardAddresses::parse("dhcp").expect("addresses")).is_ok(), "alone");
        let unused = GuardChecks::of(["mac", "dhcp"]).expect("words");
        for (checks, mac, words) in [(&checks, None, "give it one: mac="), (&unused, mac, "only guard=ip")] {
            let refusal = checks.check(mac, &own).expect_err(words);
            assert!(refusal.contains(words), "{refusal}");
        }
    }
}
