//! Prints fields with their masks, separated by commas.

use std::fmt::{Display, LowerHex};
use std::net::{Ipv4Addr, Ipv6Addr};

use lasthop_module_api::Mac;

/// Formats a number as C's `%#x` does: a zero has no prefix.
pub(super) fn hex(number: impl LowerHex + PartialEq + Default) -> String {
    if number == Default::default() { "0".to_owned() } else { format!("{number:#x}") }
}

/// Formats bytes as one number, without leading zeros.
pub(super) fn hex_bytes(bytes: &[u8]) -> String {
    let Some(first) = bytes.iter().position(|byte| *byte != 0) else { return "0".to_owned() };
    let digits: String = bytes.iter().skip(first).map(|byte| format!("{byte:02x}")).collect();
    format!("0x{}", digits.trim_start_matches('0'))
}

/// Formats the names of set bits, lowest first; bits without a name follow as a number.
pub(super) fn flags(flags: u32, names: &[(u32, &str)], between: &str) -> String {
    let known = |bit: u32| names.iter().find(|(flag, _)| *flag == bit).map(|(_, name)| (*name).to_owned());
    let bits = || (0..32).map(|at| 1 << at).filter(|bit| flags & bit != 0);
    let mut words: Vec<String> = bits().filter_map(known).collect();
    let unknown = bits().filter(|bit| known(*bit).is_none()).fold(0, |all, bit| all | bit);
    if unknown != 0 {
        words.push(format!("{unknown:#x}"));
    }
    if words.is_empty() { "0".to_owned() } else { words.join(between) }
}

/// Formats the names of the mask's bits, each with its value.
pub(super) fn masked_flags(value: u32, mask: u32, all: u32, names: &[(u32, &str)]) -> String {
    if mask == all {
        return flags(value, names, "|");
    }
    if mask == 0 {
        return "0/0".to_owned();
    }
    let sign = |bit: u32| if value & bit != 0 { '+' } else { '-' };
    let name = |bit: u32| names.iter().find(|(flag, _)| *flag == bit).map_or("[Unknown]", |(_, name)| name);
    let bits = (0..32).map(|at| 1_u32 << at).filter(|bit| mask & bit != 0);
    bits.map(|bit| format!("{}{}", sign(bit), name(bit))).collect()
}

/// Formats an IPv6 address like inet_ntop(3), which recognizes embedded IPv4 addresses by zeros.
pub(super) fn ipv6(address: Ipv6Addr) -> String {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => {
            let [[a, b], [c, d]] = [high.to_be_bytes(), low.to_be_bytes()];
            format!("::{}", Ipv4Addr::new(a, b, c, d))
        }
        _ => address.to_string(),
    }
}

/// `name=value/mask,name=value` ...
#[derive(Debug)]
pub(super) struct Text {
    fields: Vec<String>,
    is_verbose: bool,
}

impl Text {
    pub(super) fn new(is_verbose: bool) -> Self {
        Self { fields: Vec::new(), is_verbose }
    }

    pub(super) fn finish(self) -> String {
        self.fields.join(",")
    }

    pub(super) fn push(&mut self, field: String) {
        self.fields.push(field);
    }

    pub(super) fn is_verbose(&self) -> bool {
        self.is_verbose
    }

    /// Adds a field. Without a mask it is exact; a field that the mask ignores is omitted, unless verbose.
    pub(super) fn put<T: PartialEq + Copy>(
        &mut self,
        name: &str,
        (value, mask): (T, Option<T>),
        (zero, ones): (T, T),
        (show, show_mask): (impl Fn(T) -> String, impl Fn(T) -> String),
    ) {
        if !self.is_verbose && mask == Some(zero) {
            return;
        }
        let tail = mask.filter(|mask| *mask != ones).map(|mask| format!("/{}", show_mask(mask)));
        self.push(format!("{name}={}{}", show(value), tail.unwrap_or_default()));
    }

    pub(super) fn mac(&mut self, name: &str, value: Mac, mask: Option<Mac>) {
        let show = |mac: Mac| mac.to_string();
        self.put(name, (value, mask), (Mac([0; 6]), Mac([0xff; 6])), (show, show));
    }

    pub(super) fn ipv4(&mut self, name: &str, value: Ipv4Addr, mask: Option<Ipv4Addr>) {
        let show = |address: Ipv4Addr| address.to_string();
        self.put(name, (value, mask), (Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST), (show, show));
    }

    pub(super) fn ipv6(&mut self, name: &str, value: Ipv6Addr, mask: Option<Ipv6Addr>) {
        let ends = (Ipv6Addr::UNSPECIFIED, Ipv6Addr::from(u128::MAX));
        self.put(name, (value, mask), ends, (ipv6, ipv6));
    }

    /// Adds a decimal number; its mask is hexadecimal.
    pub(super) fn u8(&mut self, name: &str, value: u8, mask: Option<u8>) {
        self.put(name, (value, mask), (0, u8::MAX), (decimal, hex));
    }

    pub(super) fn u8_hex(&mut self, name: &str, value: u8, mask: Option<u8>) {
        self.put(name, (value, mask), (0, u8::MAX), (hex, hex));
    }

    /// Adds a decimal number; its mask is hexadecimal.
    pub(super) fn u16(&mut self, name: &str, value: u16, mask: Option<u16>) {
        self.put(name, (value, mask), (0, u16::MAX), (decimal, hex));
    }

    pub(super) fn u16_hex(&mut self, name: &str, value: u16, mask: Option<u16>) {
        self.put(name, (value, mask), (0, u16::MAX), (hex, hex));
    }
}

fn decimal(number: impl Display) -> String {
    number.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_in_c() {
        assert_eq!((hex(0_u8), hex(31_u16)), ("0".to_owned(), "0x1f".to_owned()));
        assert_eq!((hex_bytes(&[0, 0]), hex_bytes(&[0, 5, 0])), ("0".to_owned(), "0x500".to_owned()));
    }

    #[test]
    fn bits_have_names_or_are_numbers() {
        let names = [(1, "one"), (4, "four")];
        assert_eq!(flags(0, &names, "|"), "0");
        assert_eq!(flags(0b1111, &names, "|"), "one|four|0xa");
        assert_eq!(masked_flags(1, 0b101, 0xff, &names), "+one-four");
        assert_eq!(masked_flags(1, 0xff, 0xff, &names), "one");
        assert_eq!(masked_flags(0, 2, 0xff, &names), "-[Unknown]");
        assert_eq!(masked_flags(1, 0, 0xff, &names), "0/0");
    }

    #[test]
    fn addresses_are_as_in_libc() {
        let show = |text: &str| ipv6(text.parse().expect("an address"));
        assert_eq!(show("::1"), "::1");
        assert_eq!(show("::a:b"), "::0.10.0.11");
        assert_eq!(show("::a:0"), "::0.10.0.0");
        assert_eq!(show("::ffff:a00:1"), "::ffff:10.0.0.1");
        assert_eq!(show("fe80:0:0:1::"), "fe80:0:0:1::");
    }
}
