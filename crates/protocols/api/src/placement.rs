//! Placement of threads by last-level cache, and measured caches: setting, orders and reports.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use lasthop_runtime::fault::Fault;

use crate::options::{value_of_number, whole_number};

/// The caches and the memory of a CPU, as the numbers of its L2 group, its last-level cache and its node.
pub type CpuPlaceNumbers = (u16, u16, u16);

/// Which threads are brought into one last-level cache with those that they pass packets to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum PlacementMode {
    /// None: the host's scheduler decides.
    #[default]
    Off,
    /// Lasthop's own.
    Own,
    /// In addition, the vCPUs of guests, within the CPUs that they are allowed.
    Guests,
}

impl PlacementMode {
    /// The name of the setting, as for a policy.
    pub const NAME: &str = "placement";

    /// The word that users write.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Own => "own",
            Self::Guests => "guests",
        }
    }
}

impl FromStr for PlacementMode {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        [Self::Off, Self::Own, Self::Guests].into_iter().find(|mode| mode.as_str() == text).ok_or_else(|| {
            Fault::params(format!("placement must be \"off\", \"own\" or \"guests\", not \"{text}\""))
        })
    }
}

/// The default: the paper's threshold (Liao and Bhuyan, 4.2).
const BATCHES_DEFAULT: u32 = lasthop_sched::BATCHES_PER_SLICE as u32;
/// The largest threshold.
const BATCHES_MAX: u32 = 1_000_000;

/// Batches of packets in 30 ms: two threads with more between them belong together; 1 to 1000000.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "serde_json::Value")]
#[schemars(inline, with = "u32", extend("minimum" = 1, "maximum" = BATCHES_MAX, "default" = BATCHES_DEFAULT))]
pub struct PlacementBatches(pub u32);

impl Default for PlacementBatches {
    fn default() -> Self {
        Self(BATCHES_DEFAULT)
    }
}

impl TryFrom<serde_json::Value> for PlacementBatches {
    type Error = Fault;

    fn try_from(value: serde_json::Value) -> Result<Self, Fault> {
        whole_number(&value, 1..=BATCHES_MAX).map(Self).ok_or_else(|| {
            Fault::params(format!(
                "placement-batches must be a whole number from 1 to {BATCHES_MAX} (default: {BATCHES_DEFAULT})"
            ))
        })
    }
}

impl FromStr for PlacementBatches {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        value_of_number(text).try_into()
    }
}

/// The places of threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementReport {
    /// off, own or guests.
    pub mode: PlacementMode,
    /// More batches than this in 30 ms make two threads belong together.
    pub batches: u64,
    /// Why the mode is not in effect, with the remedy.
    pub why: Option<String>,
    /// Decisions since the start: one a second.
    pub decisions: u64,
    /// Threads that were given another last-level cache since the start.
    pub moves: u64,
    /// The threads that have less than the CPUs that they are allowed.
    pub threads: Vec<PlacedThreadReport>,
}

/// A thread in a last-level cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedThreadReport {
    pub name: String,
    pub tid: u32,
    /// The vnic of its guest.
    pub vnic: Option<String>,
    /// The CPUs that it may use now, as 0-3,6.
    pub cpus: String,
    /// Those that it is allowed without the placement.
    pub own_cpus: String,
}

/// Caches as `lasthop sched calibrate` measured them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredCaches {
    /// Second-level group, last-level cache and node of each CPU.
    pub places: Vec<CpuPlaceNumbers>,
    /// The time of the measurement, in seconds since 1970.
    pub measured_s: u64,
    /// The end of its use, in seconds since 1970.
    pub expires_s: u64,
    /// The measured distances, the nearest first.
    #[serde(default)]
    pub distances: Vec<MeasuredDistance>,
}

/// The CPUs of one distance from each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredDistance {
    /// group, llc, node or far.
    pub distance: String,
    /// Pairs of CPUs.
    pub pairs: u64,
    /// Time for a cache line from one CPU to the other: the median of the pairs.
    pub line_ns: u64,
    /// Copies of memory that the other CPU has written: the median of the pairs, in MB a second.
    pub copy_mb_per_s: u64,
}

/// Params of "sched.calibrate": measured caches, or none to return to those of sysfs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrateParams {
    pub measured: Option<MeasuredCaches>,
}

/// The caches that decisions use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachesReport {
    pub cpus: usize,
    /// Groups of CPUs that share a second-level cache.
    pub groups: usize,
    /// Last-level caches.
    pub llcs: usize,
    /// Memory nodes.
    pub nodes: usize,
    /// The measurement; none: sysfs tells.
    pub measured: Option<MeasuredCaches>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_words() {
        for mode in [PlacementMode::Off, PlacementMode::Own, PlacementMode::Guests] {
            assert_eq!(mode.as_str().parse(), Ok(mode));
        }
        let fault = "on".parse::<PlacementMode>().expect_err("no such mode");
        assert!(fault.message.contains("\"own\" or \"guests\""), "{fault}");
        assert_eq!("1".parse(), Ok(PlacementBatches(1)));
        for text in ["0", "1000001", "-1", "many"] {
            let fault = text.parse::<PlacementBatches>().expect_err(text);
            assert!(fault.message.contains("from 1 to 1000000"), "{fault}");
        }
    }
}
