//! Messages between supervisor and driver process.

use lasthop_device::{DeviceFacts, DriverCounters};
use serde::{Deserialize, Serialize};

use lasthop_runtime::sandbox::{ForbiddenCall, Layer};

/// An order of the supervisor. Ports have the supervisor's numbers. `round` numbers questions, from 1; an answer has
/// the question's number. `why` is a sentence without a full stop.
#[derive(Debug, Serialize, Deserialize)]
pub enum DriverOrder {
    /// Serve a port: the attached descriptors are the device's, and last a connection to the switch.
    Attach { port: u32, facts: DeviceFacts },
    /// The device is back; the attached descriptors are its own.
    ReplaceDevice { port: u32, facts: DeviceFacts },
    /// The switch is back; the attached descriptor is a connection to it.
    ReplaceSwitch { port: u32 },
    /// Release a port.
    Detach { port: u32 },
    /// Report all counters.
    Stats { round: u64 },
    /// Give a sign of life, once all I/O threads have given one.
    Live { round: u64 },
}

/// A message of the driver process.
#[derive(Debug, Serialize, Deserialize)]
pub enum DriverReport {
    /// A port's device failed; frames to it are dropped and counted.
    DeviceGone { port: u32, why: String },
    /// As [`Self::DeviceGone`]; the next sockets should have no ring.
    RingStopped { port: u32, why: String },
    /// A port's connection to the switch has ended.
    SwitchGone { port: u32, why: String },
    /// A port cannot be served.
    Refused { port: u32, why: String },
    /// The answer to [`DriverOrder::Stats`].
    Stats { round: u64, ports: Vec<(u32, DriverCounters)> },
    /// The answer to [`DriverOrder::Live`].
    Alive { round: u64 },
    /// It has executed an order about a port, and owes no answer to [`DriverOrder::Live`]. Many orders may take long.
    Progress,
    /// The layers of its sandbox, reported before it had any device.
    Sandbox(Vec<Layer>),
    /// It made a system call that its sandbox does not allow, and ends.
    Forbidden(ForbiddenCall),
    /// It cannot continue, and ends.
    Failed { why: String },
}
