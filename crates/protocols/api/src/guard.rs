//! Checks of a port's claims: `guard=mac+ip+arp+dhcp`, and the port's own addresses.

use std::net::IpAddr;

use lasthop_module_api::{Mac, PortGuard};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;
use lasthop_runtime::fault::Fault;

/// Largest number of addresses of one port.
const ADDRESSES_MAX: usize = 16;
const WORDS: [&str; 4] = ["mac", "ip", "arp", "dhcp"];

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
            addresses: addresses.0.clone(),
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
        let (checks, addresses) = (Self(words.collect()), GuardAddresses(guard.addresses.clone()));
        (Some(checks).filter(|checks| !checks.0.is_empty()), Some(addresses).filter(|all| !all.0.is_empty()))
    }

    /// Refuses checks without the keys that they need.
    ///
    /// # Errors
    /// The key that is missing, and why.
    pub fn check(&self, mac: Option<Mac>, addresses: &GuardAddresses) -> Result<(), &'static str> {
        let why = if self.has("mac") && mac.is_none() {
            "has guard=mac, which checks its own address; give it one: mac="
        } else if (self.has("ip") || self.has("arp")) && addresses.0.is_empty() {
            "has guard=ip or guard=arp, which check its own addresses; give it some: addresses="
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

/// The network addresses of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<IpAddr>", into = "Vec<IpAddr>")]
#[schemars(inline, with = "Vec<String>", extend("maxItems" = ADDRESSES_MAX, "default" = []))]
pub struct GuardAddresses(Vec<IpAddr>);

impl GuardAddresses {
    /// Parses text such as `10.0.0.5+fd00::5`.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        let address = |word: &str| {
            word.parse().map_err(|_| {
                Fault::params(format!("addresses: \"{word}\" is no IP address such as 10.0.0.5 or fd00::5"))
            })
        };
        text.split('+').map(address).collect::<Result<Vec<IpAddr>, Fault>>()?.try_into()
    }

    /// The addresses, joined as on the command line.
    pub fn joined(&self) -> String {
        self.0.iter().map(ToString::to_string).collect::<Vec<_>>().join("+")
    }
}

impl TryFrom<Vec<IpAddr>> for GuardAddresses {
    type Error = Fault;

    fn try_from(addresses: Vec<IpAddr>) -> Result<Self, Fault> {
        if addresses.len() > ADDRESSES_MAX {
            let count = addresses.len();
            return Err(Fault::params(format!("addresses has {count} of them; at most {ADDRESSES_MAX}")));
        }
        match addresses.iter().find(|address| address.is_unspecified() || address.is_multicast()) {
            Some(odd) => Err(Fault::params(format!("addresses: {odd} cannot be an address of one port"))),
            None => Ok(Self(addresses)),
        }
    }
}

impl From<GuardAddresses> for Vec<IpAddr> {
    fn from(addresses: GuardAddresses) -> Self {
        addresses.0
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
            (GuardAddresses::parse("10.0.0").map(drop), "\"10.0.0\" is no IP address"),
            (GuardAddresses::parse("224.0.0.1").map(drop), "cannot be an address of one port"),
        ] {
            let refusal = refused.expect_err(words).message;
            assert!(refusal.contains(words), "{refusal}");
        }
    }
}
