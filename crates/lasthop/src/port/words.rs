//! Words of a device port that stand for one of a few things.

use std::fmt;
use std::str::FromStr;

use lasthop_verdict::PortKind;
use serde::{Deserialize, Serialize};

use crate::fault::Fault;
use crate::names;

/// How frames get to and from a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", try_from = "String")]
pub(crate) enum Backend {
    /// What the device and the kernel can do best.
    #[default]
    Auto,
    AfPacket,
    AfXdp,
    Tap,
}

impl Backend {
    const ALL: [Self; 4] = [Self::Auto, Self::AfPacket, Self::AfXdp, Self::Tap];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::AfPacket => "af_packet",
            Self::AfXdp => "af_xdp",
            Self::Tap => "tap",
        }
    }
}

/// Who else sees the frames of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", try_from = "String")]
pub(crate) enum Host {
    /// The host's own stack, as before.
    #[default]
    Shared,
    /// Nobody.
    Off,
    /// The host's stack, by a port of its own at the switch.
    Port,
}

impl Host {
    const ALL: [Self; 3] = [Self::Shared, Self::Off, Self::Port];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Shared => "shared",
            Self::Off => "off",
            Self::Port => "port",
        }
    }
}

/// What a port leads to, which decides whom it talks to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Leads {
    /// A guest, or the host itself.
    #[default]
    Inside,
    /// A wire: an uplink.
    Out,
    /// A wire whose frames may go to other wires.
    Through,
}

impl Leads {
    /// The same in the words of the modules.
    pub(crate) fn kind(self) -> PortKind {
        match self {
            Self::Inside => PortKind::Inside,
            Self::Out => PortKind::Uplink,
            Self::Through => PortKind::TransitUplink,
        }
    }
}

/// The one of `all` that is called `word`.
fn find<T: Copy>(key: &str, word: &str, all: &[T], name: fn(T) -> &'static str) -> Result<T, Fault> {
    all.iter().copied().find(|one| name(*one) == word).ok_or_else(|| {
        let known = || all.iter().map(|one| name(*one));
        let (hint, known) = (names::hint(word, known()), known().collect::<Vec<_>>().join(", "));
        Fault::params(format!("there is no {key} \"{word}\"{hint} (there are {known})"))
    })
}

impl FromStr for Backend {
    type Err = Fault;

    fn from_str(word: &str) -> Result<Self, Fault> {
        find("backend", word, &Self::ALL, Self::name)
    }
}

impl FromStr for Host {
    type Err = Fault;

    fn from_str(word: &str) -> Result<Self, Fault> {
        find("host", word, &Self::ALL, Self::name)
    }
}

impl TryFrom<String> for Backend {
    type Error = Fault;

    fn try_from(word: String) -> Result<Self, Fault> {
        word.parse()
    }
}

impl TryFrom<String> for Host {
    type Error = Fault;

    fn try_from(word: String) -> Result<Self, Fault> {
        word.parse()
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_and_written_alike_and_close_ones_are_offered() {
        for backend in Backend::ALL {
            assert_eq!(backend.name().parse(), Ok(backend));
            assert_eq!(serde_json::to_value(backend).expect("JSON"), backend.name());
        }
        for host in Host::ALL {
            assert_eq!(host.name().parse(), Ok(host));
            assert_eq!(serde_json::to_value(host).expect("JSON"), host.name());
        }
        let fault = "af_paket".parse::<Backend>().expect_err("no such one");
        assert!(fault.message.contains("did you mean \"af_packet\""), "{fault}");
        let fault = "none".parse::<Host>().expect_err("no such one");
        assert!(fault.message.contains("there are shared, off, port"), "{fault}");
    }
}
