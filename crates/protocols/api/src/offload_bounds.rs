//! Which copies helpers share, and on which CPUs, as a setting: `bytes=32768,packets=32,idle=group,reach=all,signals=visit`; and
//! `checksums=BYTES`, `far=BYTES`, which are off by default.

use std::fmt;
use std::str::FromStr;

use lasthop_sched::{CpuDistance, OffloadCriteria, PlaceCriteria};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::pairs::{number, unknown};
use lasthop_runtime::fault::Fault;

const SETTING: &str = "offload";
const KEYS: [&str; 7] = ["bytes", "checksums", "far", "packets", "idle", "reach", "signals"];
/// Frames of 9000 bytes lose by it, those of 64 KiB gain (docs/results/performance.md, "Helpers"). A batch of packets: the
/// home copies them too, so it never waits for a helper that has more to do.
const DEFAULT: OffloadBounds = OffloadBounds {
    bytes: 32_768,
    checksums: None,
    far: None,
    packets: 32,
    idle: IdlePart::Group,
    reach: Reach::All,
    signals: SignalTime::Visit,
};
/// Frames of the usual MTU are never offloaded.
const BYTES_MIN: u32 = 1536;
/// The longest frame.
const BYTES_MAX: u32 = 65_536;
/// Packets that may wait in one receiver's queue.
const PACKETS_MAX: u32 = 256;

/// The part of a machine that has to be idle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IdlePart {
    /// All CPUs that share the second-level cache.
    Group,
    /// The helper's CPU.
    Cpu,
}

/// The farthest CPU, from the receiver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Llc,
    Node,
    All,
}

/// When the home of a shared frame signals its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SignalTime {
    /// After each frame.
    Frame,
    /// After its visit.
    Visit,
}

/// When workers share copies with helpers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(inline, extend("default" = DEFAULT))]
pub struct OffloadBounds {
    bytes: u32,
    /// The least length of frames whose checksum is completed, and of those for far receivers, if it is less than `bytes`.
    checksums: Option<u32>,
    far: Option<u32>,
    packets: u32,
    idle: IdlePart,
    reach: Reach,
    signals: SignalTime,
}

impl OffloadBounds {
    /// Which copies are shared.
    pub fn offload(self) -> OffloadCriteria {
        OffloadCriteria {
            packet_bytes_min: self.bytes,
            summed_bytes_min: self.checksums.unwrap_or(u32::MAX),
            far_bytes_min: self.far.unwrap_or(u32::MAX),
            helper_packets_max: self.packets,
            ..OffloadCriteria::default()
        }
    }

    /// On which CPUs.
    pub fn place(self) -> PlaceCriteria {
        let farthest = match self.reach {
            Reach::Llc => CpuDistance::Llc,
            Reach::Node => CpuDistance::Node,
            Reach::All => CpuDistance::Far,
        };
        PlaceCriteria { whole_group: self.idle == IdlePart::Group, farthest }
    }

    /// Whether a home signals the receiver after each frame that it shares.
    pub fn signals_each_frame(self) -> bool {
        self.signals == SignalTime::Frame
    }
}

impl Default for OffloadBounds {
    fn default() -> Self {
        DEFAULT
    }
}

impl fmt::Display for OffloadBounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle = match self.idle {
            IdlePart::Group => "group",
            IdlePart::Cpu => "cpu",
        };
        let reach = match self.reach {
            Reach::Llc => "llc",
            Reach::Node => "node",
            Reach::All => "all",
        };
        let signals = match self.signals {
            SignalTime::Frame => "frame",
            SignalTime::Visit => "visit",
        };
        let Self { bytes, packets, checksums, far, .. } = self;
        write!(f, "bytes={bytes},packets={packets},idle={idle},reach={reach},signals={signals}")?;
        for (key, bytes) in [("checksums", checksums), ("far", far)] {
            bytes.map_or(Ok(()), |bytes| write!(f, ",{key}={bytes}"))?;
        }
        Ok(())
    }
}

impl From<OffloadBounds> for String {
    fn from(bounds: OffloadBounds) -> Self {
        bounds.to_string()
    }
}

impl TryFrom<String> for OffloadBounds {
    type Error = Fault;

    fn try_from(text: String) -> Result<Self, Fault> {
        text.parse()
    }
}

impl FromStr for OffloadBounds {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        let mut all = DEFAULT;
        for pair in text.split(',') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (key, value) {
                ("bytes", _) => all.bytes = length(key, value)?,
                ("checksums", "off") => all.checksums = None,
                ("checksums", _) => all.checksums = Some(length(key, value)?),
                ("far", "off") => all.far = None,
                ("far", _) => all.far = Some(length(key, value)?),
                ("packets", _) => all.packets = number(SETTING, (key, value), 2..=PACKETS_MAX, DEFAULT)?,
                ("idle", "group") => all.idle = IdlePart::Group,
                ("idle", "cpu") => all.idle = IdlePart::Cpu,
                ("reach", "llc") => all.reach = Reach::Llc,
                ("reach", "node") => all.reach = Reach::Node,
                ("reach", "all") => all.reach = Reach::All,
                ("signals", "frame") => all.signals = SignalTime::Frame,
                ("signals", "visit") => all.signals = SignalTime::Visit,
                ("idle", _) => return Err(no_word(key, value, "group or cpu")),
                ("reach", _) => return Err(no_word(key, value, "llc, node or all")),
                ("signals", _) => return Err(no_word(key, value, "frame or visit")),
                _ => return Err(unknown(SETTING, key, &KEYS, DEFAULT)),
            }
        }
        Ok(all)
    }
}

fn length(key: &str, value: &str) -> Result<u32, Fault> {
    number(SETTING, (key, value), BYTES_MIN..=BYTES_MAX, DEFAULT)
}

fn no_word(key: &str, value: &str, words: &str) -> Fault {
    Fault::params(format!("{SETTING}: {key}={value} is not {words} (default: {DEFAULT})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_as_usual() {
        let near = "idle=cpu,reach=llc,signals=frame".parse::<OffloadBounds>().expect("three keys");
        let signals = SignalTime::Frame;
        assert_eq!(near, OffloadBounds { idle: IdlePart::Cpu, reach: Reach::Llc, signals, ..DEFAULT });
        assert!(near.signals_each_frame() && !DEFAULT.signals_each_frame());
        assert_eq!(near.to_string().parse(), Ok(near));
        let place = PlaceCriteria { whole_group: false, farthest: CpuDistance::Llc };
        assert_eq!((near.place(), near.offload().helper_packets_max), (place, 32));
    }

    #[test]
    fn other_lengths_are_off_unless_they_are_set() {
        let usual = DEFAULT.offload();
        assert_eq!((usual.summed_bytes_min, usual.far_bytes_min), (u32::MAX, u32::MAX));
        let both = "checksums=9000,far=4096".parse::<OffloadBounds>().expect("two lengths");
        assert_eq!((both.offload().summed_bytes_min, both.offload().far_bytes_min), (9000, 4096));
        assert_eq!((both.offload().packet_bytes_min, both.to_string().parse()), (32_768, Ok(both)));
        assert_eq!("checksums=9000,checksums=off,far=off".parse(), Ok(DEFAULT));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_would_be_right() {
        let cases = [
            ("bytes=64", "from 1536 to 65536"),
            ("far=near", "from 1536 to 65536"),
            ("checksums=64", "from 1536 to 65536"),
            ("packets=1", "packets=1 is not a whole number from 2 to 256"),
            ("idle=core", "idle=core is not group or cpu"),
            ("reach=", "reach= is not llc, node or all"),
            ("signals=batch", "signals=batch is not frame or visit"),
            ("byte=4000", "did you mean \"bytes\""),
            ("", "offload has no \"\""),
        ];
        for (text, words) in cases {
            let fault = text.parse::<OffloadBounds>().expect_err(text);
            assert!(fault.message.contains(words), "{text}: {fault}");
        }
    }
}
