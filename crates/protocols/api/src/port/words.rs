//! Keys of a port with one of a few words as value.

use std::fmt;
use std::str::FromStr;

use lasthop_module_api::PortKind;
use lasthop_runtime::fault::Fault;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::names;

/// The other end of a port, as the key `backend` has it: for a device also how packets get to and from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", try_from = "String")]
#[schemars(inline, !try_from)]
pub enum BackendChoice {
    /// A network device, by the fastest way that it and the kernel support.
    #[default]
    Auto,
    /// A network device, by packet sockets.
    AfPacket,
    /// A network device, by XDP sockets.
    AfXdp,
    /// A tap of the switch.
    Tap,
    /// A guest's front end, at a vhost-user socket.
    #[serde(rename = "vhost-user")]
    VhostUser,
}

impl BackendChoice {
    const ALL: [Self; 5] = [Self::Auto, Self::AfPacket, Self::AfXdp, Self::Tap, Self::VhostUser];

    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::AfPacket => "af_packet",
            Self::AfXdp => "af_xdp",
            Self::Tap => "tap",
            Self::VhostUser => "vhost-user",
        }
    }
}

/// The three kinds of backends, each with its own keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", try_from = "String")]
pub enum BackendKind {
    VhostUser,
    Device,
    Tap,
}

impl BackendKind {
    const ALL: [Self; 3] = [Self::VhostUser, Self::Device, Self::Tap];

    pub fn name(self) -> &'static str {
        match self {
            Self::VhostUser => "vhost-user",
            Self::Device => "device",
            Self::Tap => "tap",
        }
    }

    /// Ports of this kind, for a sentence.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::VhostUser => "vhost-user ports",
            Self::Device => "devices",
            Self::Tap => "taps",
        }
    }

    /// A predicate that says that a port is of this kind, for a sentence.
    pub(super) fn predicate(self) -> &'static str {
        match self {
            Self::VhostUser => "is a vhost-user port",
            Self::Device => "is for a device",
            Self::Tap => "is a tap",
        }
    }
}

/// The side that makes the socket of a vhost-user port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum VnicMode {
    /// The switch listens, the VMM connects.
    #[default]
    Listen,
    /// The VMM listens, the switch connects.
    Connect,
}

impl VnicMode {
    /// The word for the key `mode`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Listen => "listen",
            Self::Connect => "connect",
        }
    }
}

/// Whether the host sees the frames of a device, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", try_from = "String")]
#[schemars(inline, !try_from)]
pub enum HostAccess {
    /// The host's own stack, as before.
    #[default]
    Shared,
    /// No packet: only the switch uses the device.
    Off,
    /// The host's stack, by a port of its own at the switch.
    Port,
}

impl HostAccess {
    const ALL: [Self; 3] = [Self::Shared, Self::Off, Self::Port];

    pub fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Off => "off",
            Self::Port => "port",
        }
    }
}

/// The kind of peer behind a port, which decides about the ports that it may reach.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PeerKind {
    /// A guest, or the host itself.
    #[default]
    Inside,
    /// A wire: an uplink.
    Out,
    /// A wire whose frames may go to other wires.
    Through,
}

impl PeerKind {
    /// The module's value for it.
    pub fn kind(self) -> PortKind {
        match self {
            Self::Inside => PortKind::Inside,
            Self::Out => PortKind::Uplink,
            Self::Through => PortKind::TransitUplink,
        }
    }
}

/// Finds the value in `all` whose name is `word`.
fn find<T: Copy>(key: &str, word: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T, Fault> {
    all.iter().copied().find(|one| name(*one) == word).ok_or_else(|| {
        let known = || all.iter().map(|one| name(*one));
        let (hint, known) = (names::hint(word, known()), known().collect::<Vec<_>>().join(", "));
        Fault::params(format!("there is no {key} \"{word}\"{hint} (there are {known})"))
    })
}

impl FromStr for BackendChoice {
    type Err = Fault;

    fn from_str(word: &str) -> Result<Self, Fault> {
        match word {
            // Only the kind is given: the best method for the device.
            "device" => Ok(Self::Auto),
            _ => find("backend", word, &Self::ALL, Self::name),
        }
    }
}

impl FromStr for BackendKind {
    type Err = Fault;

    fn from_str(word: &str) -> Result<Self, Fault> {
        find("backend", word, &Self::ALL, Self::name)
    }
}

impl FromStr for VnicMode {
    type Err = Fault;

    fn from_str(word: &str) -> Result<Self, Fault> {
        match word {
            "listen" => Ok(Self::Listen),
            "connect" => Ok(Self::Connect),
            _ => Err(Fault::params(format!("mode={word} is neither mode=listen nor mode=connect"))),
        }
    }
}

impl FromStr for HostAccess {
    type Err = Fault;

    fn from_str(word: &str) -> Result<Self, Fault> {
        find("host", word, &Self::ALL, Self::name)
    }
}

impl TryFrom<String> for BackendChoice {
    type Error = Fault;

    fn try_from(word: String) -> Result<Self, Fault> {
        word.parse()
    }
}

impl TryFrom<String> for BackendKind {
    type Error = Fault;

    fn try_from(word: String) -> Result<Self, Fault> {
        word.parse()
    }
}

impl TryFrom<String> for HostAccess {
    type Error = Fault;

    fn try_from(word: String) -> Result<Self, Fault> {
        word.parse()
    }
}

impl fmt::Display for BackendChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The administrative state of a vnic (IF-MIB, RFC 2863: ifAdminStatus).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase", try_from = "String")]
#[schemars(inline, !try_from)]
pub enum LinkState {
    /// Packets pass.
    #[default]
    Up,
    /// Frames from the guest and to it are dropped as `link_down`.
    Down,
}

impl LinkState {
    pub fn is_up(self) -> bool {
        self == Self::Up
    }
}

impl FromStr for LinkState {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        match text {
            "up" => Ok(Self::Up),
            "down" => Ok(Self::Down),
            _ => {
                let hint = names::hint(text, ["up", "down"]);
                Err(Fault::params(format!("link={text} is unknown; use link=up or link=down{hint}")))
            }
        }
    }
}

impl TryFrom<String> for LinkState {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_written_alike_and_close_ones_are_offered() {
        for backend in BackendChoice::ALL {
            assert_eq!(backend.name().parse(), Ok(backend));
            assert_eq!(serde_json::to_value(backend).expect("JSON"), backend.name());
        }
        for host in HostAccess::ALL {
            assert_eq!(host.name().parse(), Ok(host));
            assert_eq!(serde_json::to_value(host).expect("JSON"), host.name());
        }
        let fault = "af_paket".parse::<BackendChoice>().expect_err("no such one");
        assert!(fault.message.contains("did you mean \"af_packet\""), "{fault}");
        let fault = "none".parse::<HostAccess>().expect_err("no such one");
        assert!(fault.message.contains("there are shared, off, port"), "{fault}");
    }
}
