//! The words by which `lasthop run` starts this binary as an inner process.

/// The word for the switch process.
pub const SWITCH_ROLE: &str = "switch-process";

/// The word for the driver process.
pub const DRIVER_ROLE: &str = "driver-process";

/// The word for the controller process.
pub const CONTROLLER_ROLE: &str = "controller-process";
