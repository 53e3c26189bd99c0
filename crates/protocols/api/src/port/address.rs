//! Addresses of the host on a tap.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::NETWORK_PATTERN;
use lasthop_runtime::fault::Fault;

/// An address and the length of its network's prefix in bits: `192.0.2.1/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("pattern" = NETWORK_PATTERN))]
pub struct Prefix {
    /// The address.
    pub address: IpAddr,
    /// Bits of the prefix.
    pub len_bits: u8,
}

impl FromStr for Prefix {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let wrong = |why: &str| Fault::params(format!("{text} is no address with a prefix length: {why}"));
        let (address, len) =
            text.split_once('/').ok_or_else(|| wrong("write it as 192.0.2.1/24 or 2001:db8::1/64"))?;
        let address: IpAddr = address.parse().map_err(|_| wrong("use an IPv4 or IPv6 address"))?;
        if address.is_unspecified() || address.is_multicast() {
            return Err(wrong("it belongs to no host; use a unicast address"));
        }
        let max = if address.is_ipv4() { 32 } else { 128 };
        match len.parse::<u8>() {
            Ok(len_bits) if len_bits <= max => Ok(Self { address, len_bits }),
            _ => Err(wrong(&format!("the length is 0 to {max} bits"))),
        }
    }
}

impl TryFrom<String> for Prefix {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> Self {
        prefix.to_string()
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_both_families_have_their_prefix() {
        for text in ["192.0.2.1/24", "10.0.0.1/32", "2001:db8::1/64"] {
            assert_eq!(text.parse::<Prefix>().expect(text).to_string(), text);
        }
        for (text, words) in [
            ("192.0.2.1", "write it as"),
            ("192.0.2/24", "IPv4 or IPv6"),
            ("192.0.2.1/33", "0 to 32 bits"),
            ("2001:db8::1/129", "0 to 128 bits"),
            ("0.0.0.0/0", "belongs to no host"),
            ("224.0.0.1/4", "belongs to no host"),
        ] {
            let fault = text.parse::<Prefix>().expect_err(text);
            assert!(fault.message.contains(words), "{fault}");
        }
    }
}
