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

/// How the driver works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverSettings {
    /// I/O threads; queues are spread over them.
    pub threads: usize,
    /// The longest time to poll a queue without frames before its thread sleeps, in us. The actual time
    /// adapts to recent success ([`lasthop_ring::AdaptivePoll`]). The same as the switch's own: the answer to
    /// a delivered frame comes within it, or late.
    pub hysteresis_us: u32,
}

impl Default for DriverSettings {
    fn default() -> Self {
        Self { threads: 1, hysteresis_us: 200 }
    }
}

/// Counters of an I/O thread since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStats {
    /// Its number in the system (gettid(2)), for tools that look at threads.
    pub thread_id: i32,
    /// Processor time that it used, in ns.
    pub cpu_ns: u64,
    /// Queues that it serves.
    pub lanes: usize,
    /// Times that it went to sleep.
    pub sleeps: u64,
    /// Times that it looked for events without sleeping.
    pub polls: u64,
    /// Times that it let others have its core, which they wanted, while it looked for more in vain.
    #[serde(default)]
    pub crowded: u64,
    /// Times that it looked at a queue.
    pub visits: u64,
    /// Times that it found something there.
    pub batches: u64,
}

/// A port as it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePortStats {
    /// The port.
    pub port: DevicePortId,
    /// Sums over all queues, and over all devices and switches that it had.
    pub counters: DriverCounters,
    /// Whether the device is there. It may have no carrier.
    pub has_device: bool,
    /// Whether the switch is there.
    pub has_switch: bool,
    /// Virtio features as negotiated with the switch; 0 without.
    pub features: u64,
}

/// Everything that the driver did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverStats {
    /// Ports in the order of their numbers.
    pub ports: Vec<DevicePortStats>,
    /// I/O threads.
    pub threads: Vec<ThreadStats>,
}
