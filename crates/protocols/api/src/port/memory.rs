//! How much memory a vnic's guest may bring: `64G`.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use lasthop_runtime::fault::Fault;

/// Least and most bytes: those of the smallest guests, and the most that one memory region may have.
const BYTES_MIN: u64 = 1 << 20;
const BYTES_MAX: u64 = lasthop_guestmem::REGION_BYTES_MAX;
/// Units by their letters, binary as in the options of QEMU, largest first.
const UNITS: [(char, u32); 4] = [('T', 40), ('G', 30), ('M', 20), ('K', 10)];

/// Bytes that the memory regions of a guest may have together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "serde_json::Value", into = "String")]
#[schemars(inline, with = "String", extend("pattern" = "^[0-9]+[KMGTkmgt]?$", "default" = Self::default()))]
pub struct MemoryMax(u64);

impl MemoryMax {
    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl Default for MemoryMax {
    fn default() -> Self {
        Self(lasthop_vhost::MEMORY_BYTES_MAX_DEFAULT)
    }
}

impl FromStr for MemoryMax {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let unit = UNITS.iter().find(|(letter, _)| text.ends_with([*letter, letter.to_ascii_lowercase()]));
        let (digits, shift) = unit.map_or((text, 0), |(_, shift)| (&text[..text.len() - 1], *shift));
        let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.parse::<u64>().ok().filter(|_| is_number);
        let bytes = number.and_then(|number| number.checked_mul(1 << shift));
        match bytes.filter(|bytes| (BYTES_MIN..=BYTES_MAX).contains(bytes)) {
            Some(bytes) => Ok(Self(bytes)),
            None => Err(Fault::params(format!(
                "memory-max={text} is no size from {} to {}; write a whole number and a unit, as 64G",
                Self(BYTES_MIN),
                Self(BYTES_MAX)
            ))),
        }
    }
}

/// Reads text only: a number would have no unit.
impl TryFrom<serde_json::Value> for MemoryMax {
    type Error = Fault;

    fn try_from(value: serde_json::Value) -> Result<Self, Fault> {
        match value.as_str() {
            Some(text) => text.parse(),
            None => Err(Fault::params("memory-max must be a size in quotes, as \"64G\"")),
        }
    }
}

impl From<MemoryMax> for String {
    fn from(memory: MemoryMax) -> Self {
        memory.to_string()
    }
}

impl fmt::Display for MemoryMax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, shift)| self.0.is_multiple_of(1 << shift)) {
            Some((letter, shift)) => write!(f, "{}{letter}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_a_number_with_a_unit() {
        for (text, bytes, written) in [
            ("64G", 64 << 30, "64G"),
            ("1t", 1 << 40, "1T"),
            ("65536M", 64 << 30, "64G"),
            ("1500K", 1500 << 10, "1500K"),
            ("1048577", (1 << 20) + 1, "1048577"),
        ] {
            let parsed = text.parse::<MemoryMax>();
            assert_eq!(parsed.map(|size| (size.bytes(), size.to_string())), Ok((bytes, written.to_owned())));
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_a_remedy() {
        for text in
            ["", "G", "-1G", "+1G", "1.5G", "64GB", "1 G", "1K", "65T", "18446744073709551616", "16777216T"]
        {
            let fault = text.parse::<MemoryMax>().expect_err(text);
            assert!(fault.message.contains("as 64G"), "{text}: {fault}");
        }
    }
}
