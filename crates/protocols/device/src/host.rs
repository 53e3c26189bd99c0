//! The host's own network stack beside or behind an uplink.

use serde::{Deserialize, Serialize};

/// Bytes of a device's name (IFNAMSIZ of linux/if.h, 16, less its zero).
const DEVICE_BYTES_MAX: usize = 15;
const HOST_TAP_END: &str = "-host";

/// The host's own network stack at an uplink.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    /// The host's stack neither receives from the device nor sends to it.
    Off,
    /// The host's stack uses the device as before, beside the switch.
    #[default]
    Shared,
    /// The host's stack has a port of the switch of its own. Its packets to the device go to the switch;
    /// packets from the switch to that port arrive in the stack as if received by the device.
    Port,
}

impl Host {
    /// The name in configuration and output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Shared => "shared",
            Self::Port => "port",
        }
    }
}

/// The name of the tap that is the host's port in the place of `device`: the first ten bytes of its name, and `-host`.
#[must_use]
pub fn host_tap(device: &str) -> String {
    let end = device.floor_char_boundary(DEVICE_BYTES_MAX - HOST_TAP_END.len());
    format!("{}{HOST_TAP_END}", &device[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_s_tap_has_a_name_that_devices_can_have() {
        assert_eq!(host_tap("eth1"), "eth1-host");
        assert_eq!(host_tap("enp129s0f1np1"), "enp129s0f1-host");
        assert_eq!(host_tap("enp129s0f1np1").len(), DEVICE_BYTES_MAX);
        assert_eq!(host_tap("aaaaaaaaa\u{e4}"), "aaaaaaaaa-host");
    }
}
