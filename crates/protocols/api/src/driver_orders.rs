//! Messages between supervisor and driver process.

use lasthop_device::{DeviceFacts, DriverCounters};
use serde::{Deserialize, Serialize};

use lasthop_runtime::sandbox::{ForbiddenCall, Layer};

/// An order of the supervisor's. Ports have the supervisor's numbers. `round` numbers questions, from 1: the answer to one has its number.
/// `why` is a sentence without a full stop.
#[derive(Debug, Serialize, Deserialize)]
pub enum DriverOrder {
    /// Serve a port: the attached descriptors are the device's, and behind them a connection to the switch.
    Attach { port: u32, facts: DeviceFacts },
    /// The device is there again; the attached descriptors are its own.
    ReplaceDevice { port: u32, facts: DeviceFacts },
    /// The switch is there again; the attached descriptor is a connection to it.
    ReplaceSwitch { port: u32 },
    /// Let go of a port.
    Detach { port: u32 },
    /// Tell all counters.
    Stats { round: u64 },
}

/// From the driver process.
#[derive(Debug, Serialize, Deserialize)]
pub enum DriverReport {
    /// A port's device does not work any more; frames to it are dropped and counted.
    DeviceGone { port: u32, why: String },
    /// A port's connection to the switch is over.
    SwitchGone { port: u32, why: String },
    /// A port is not served.
    Refused { port: u32, why: String },
    /// The answer to [`DriverOrder::Stats`].
    Stats { round: u64, ports: Vec<(u32, DriverCounters)> },
    /// The layers of its sandbox, before it had any device.
    Sandbox(Vec<Layer>),
    /// It made a system call that its sandbox does not allow, and ends.
    Forbidden(ForbiddenCall),
    /// The driver process cannot go on and ends.
    Failed { why: String },
}
