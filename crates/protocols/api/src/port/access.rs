//! Access to a vnic's socket: the mode, owner and group of its file.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use lasthop_runtime::fault::Fault;

/// Default mode of a port's socket file: its owner and group may attach a guest.
const SOCKET_MODE_DEFAULT: SocketMode = SocketMode(0o660);
/// All permitted bits: reading, writing and executing.
const MODE_MAX: u32 = 0o777;

/// The mode of a socket's file, written in octal digits: `0660`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "serde_json::Value", into = "String")]
#[schemars(inline, with = "String", extend("pattern" = "^0?[0-7]{3}$", "default" = SOCKET_MODE_DEFAULT))]
pub struct SocketMode(pub u32);

impl Default for SocketMode {
    fn default() -> Self {
        SOCKET_MODE_DEFAULT
    }
}

impl FromStr for SocketMode {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let digits = (3..=4).contains(&text.len()) && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        let mode = u32::from_str_radix(text, 8).ok().filter(|mode| digits && *mode <= MODE_MAX);
        mode.map(Self).ok_or_else(|| {
            Fault::params(format!(
                "socket-mode={text} is no mode of a file; write it in octal digits, as 0660"
            ))
        })
    }
}

/// Reads text only: the number 660 would be another mode in decimal and in octal.
impl TryFrom<serde_json::Value> for SocketMode {
    type Error = Fault;

    fn try_from(value: serde_json::Value) -> Result<Self, Fault> {
        match value.as_str() {
            Some(text) => text.parse(),
            None => Err(Fault::params("socket-mode must be octal digits in quotes, as \"0660\"")),
        }
    }
}

impl From<SocketMode> for String {
    fn from(mode: SocketMode) -> Self {
        mode.to_string()
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_three_or_four_octal_digits() {
        assert_eq!("0660".parse(), Ok(SocketMode(0o660)));
        assert_eq!("777".parse::<SocketMode>().map(String::from), Ok("0777".to_owned()));
        for text in ["", "66", "0o660", "0888", "1777", "+660", "rw-rw----", "00660"] {
            let fault = text.parse::<SocketMode>().expect_err(text);
            assert!(fault.message.contains("as 0660"), "{text}: {fault}");
        }
    }
}
