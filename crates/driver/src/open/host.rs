use serde::{Deserialize, Serialize};

/// Who else sees an uplink's frames: the host's own network stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Host {
    /// Nobody: the host's stack neither receives from the device nor sends to it.
    Off,
    /// The host's stack uses the device as before, beside the switch.
    #[default]
    Shared,
    /// The host's stack has a port of the switch of its own: what it sends to the device goes to the switch, and what the
    /// switch sends to that port arrives in the stack as if received by the device.
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
