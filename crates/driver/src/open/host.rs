use serde::{Deserialize, Serialize};

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
