//! Named lists of workloads.

use std::str::FromStr;

use crate::Workload;

/// A named list of workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// A first impression, in a minute.
    Quick,
    /// The measurements of docs/results/performance.md.
    Standard,
    /// Every frame size with every ring size, touched and not.
    Full,
}

/// Every back end passes 65000 bytes as one segment; Open vSwitch has a limit near 65,400.
const QUICK: &[&str] = &[
    "stream,size=64",
    "testpmd=flowgen,size=64",
    "stream,size=1500,touched",
    "rtt,size=64",
    "testpmd=rtt",
    "stream,size=65000",
    "idle=2",
];

const STANDARD: &[&str] = &[
    "stream,size=64",
    "stream,size=256",
    "stream,size=1500",
    "stream,size=1500,touched",
    "stream,size=64,flows=1000",
    "stream,size=64,flows=100000",
    "stream,size=64,macs=1000",
    "stream,size=64,macs=100000",
    "both,size=64",
    "both,size=1500",
    "rtt,size=64",
    "rtt,pause-us=20,size=64",
    "rtt,pause-us=1000,size=64",
    "rtt,sleep,size=64",
    "rtt,sleep,pause-us=1000,size=64",
    "offered=1000,size=64",
    "offered=10000,size=64",
    "offered=100000,size=64",
    "offered=1000000,size=64",
    "idle=2,size=64",
    "stream,size=64,ring=1024",
    "stream,size=1500,ring=1024",
    "stream,size=1500,ring=1024,touched",
    "stream,size=9000",
    "stream,size=9000,touched",
    "stream,size=9000,ring=1024",
    "stream,size=9000,ring=1024,touched",
    "stream,size=65000",
    "stream,size=65000,touched",
    "testpmd=flowgen,size=64",
    "testpmd=flowgen,size=64,mrg=off",
    "testpmd=flowgen,size=64,ring=1024",
    "testpmd=flowgen,size=64,ring=1024,flows=10000",
    "testpmd=flowgen,size=64,ring=1024,in-order=off",
    "testpmd=flowgen,size=1500,ring=1024",
    "testpmd=flowgen,size=9000,ring=1024",
    "testpmd=5tswap,size=64,ring=1024",
    "testpmd=rtt,size=64",
    "all-to-all=4,size=64",
    "pairs=4,size=64",
    "pairs=4,size=1500",
    "fan-in=4,size=64",
    "fan-in=4,size=1500",
    "idle=100,size=64",
];

impl Suite {
    /// The names.
    pub const NAMES: &[&str] = &["quick", "standard", "full"];

    /// The workloads.
    #[must_use]
    pub fn workloads(self) -> Vec<Workload> {
        match self {
            Self::Quick => parse(QUICK.iter().copied()),
            Self::Standard => parse(STANDARD.iter().copied()),
            Self::Full => full(),
        }
    }
}

fn parse<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<Workload> {
    texts.into_iter().filter_map(|text| text.parse().ok()).collect()
}

/// The standard suite, and every frame size with every ring size, one way and both, touched and not.
fn full() -> Vec<Workload> {
    let mut all = Suite::Standard.workloads();
    all.extend(parse([
        "rtt,sleep,pause-us=1000000",
        "fan-in=16,size=64",
        "pairs=16,size=64",
        "all-to-all=16",
        "testpmd=txonly",
        "testpmd=macswap,ring=1024",
    ]));
    all.extend([1_u16, 10, 100, 1000].map(|idle_ports| Workload { idle_ports, ..Workload::default() }));
    for size in [64, 256, 1500, 9000, 65536] {
        for ring in [256, 1024] {
            for kind in ["stream", "both"] {
                for touched in ["", ",touched"] {
                    all.extend(parse([format!("{kind},size={size},ring={ring}{touched}").as_str()]));
                }
            }
        }
    }
    let mut seen = Vec::new();
    all.retain(|workload| {
        !seen.contains(workload) && {
            seen.push(*workload);
            true
        }
    });
    all
}

impl FromStr for Suite {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "quick" => Ok(Self::Quick),
            "standard" => Ok(Self::Standard),
            "full" => Ok(Self::Full),
            _ => Err(format!("there is no suite \"{text}\"; there are {}", Self::NAMES.join(", "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_are_read_whole_and_hold_nothing_twice() {
        assert_eq!(Suite::Quick.workloads().len(), QUICK.len());
        assert_eq!(Suite::Standard.workloads().len(), STANDARD.len());
        for name in Suite::NAMES {
            let workloads = name.parse::<Suite>().expect(name).workloads();
            for (at, workload) in workloads.iter().enumerate() {
                assert!(!workloads[..at].contains(workload), "{name}: {workload}");
            }
        }
        assert!("x".parse::<Suite>().is_err());
    }
}
