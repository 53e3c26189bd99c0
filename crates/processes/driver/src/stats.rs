//! Settings of the driver, and its statistics by port and thread.

use std::fmt;

use serde::{Deserialize, Serialize};

use lasthop_device::DriverCounters;

/// A port, by the number that its owner gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DevicePortId(pub u32);

impl fmt::Display for DevicePortId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Settings of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverSettings {
    /// I/O threads; queues are spread over them.
    pub threads: usize,
    /// The longest time to poll a queue without frames before its thread sleeps, in us. The actual time adapts to
    /// recent success ([`lasthop_ring::AdaptivePoll`]). It equals the switch's: most guests answer a delivered frame
    /// within it.
    pub hysteresis_us: u32,
    /// Whether threads keep polling beside others that compute on their CPU ([`lasthop_ring::CoreYield`]).
    pub polls_on_any_cpu: bool,
}

impl Default for DriverSettings {
    fn default() -> Self {
        Self { threads: 1, hysteresis_us: 200, polls_on_any_cpu: false }
    }
}

/// Counters of an I/O thread since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStats {
    /// Its thread id (gettid(2)), for diagnostic tools.
    pub thread_id: i32,
    /// Processor time that it used, in ns.
    pub cpu_ns: u64,
    /// Queues that it serves.
    pub lanes: usize,
    /// Number of times that it went to sleep.
    pub sleeps: u64,
    /// Number of times that it polled for events without sleeping.
    pub polls: u64,
    /// Number of times that another thread took the core that it offered while polling in vain.
    #[serde(default)]
    pub crowded: u64,
    /// Number of times that others had that core for so long that the thread polled little for a while.
    #[serde(default)]
    pub scarce: u64,
    /// Number of visits to queues.
    pub visits: u64,
    /// Number of visits that moved frames.
    pub batches: u64,
}

/// The state of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePortStats {
    /// The port.
    pub port: DevicePortId,
    /// Sums over all its queues, devices and switches.
    pub counters: DriverCounters,
    /// Whether it has a device, which may have no carrier.
    pub has_device: bool,
    /// Whether it has a connection to the switch.
    pub has_switch: bool,
    /// Negotiated virtio features; 0 without a switch.
    pub features: u64,
}

/// Statistics of the driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverStats {
    /// Ports in the order of their numbers.
    pub ports: Vec<DevicePortStats>,
    /// I/O threads.
    pub threads: Vec<ThreadStats>,
}
