//! The words with which `lasthop run` starts the binary in its inner roles.

/// The word for the inner role of the binary: `lasthop run` starts it.
pub const SWITCH_ROLE: &str = "switch-process";

/// Likewise for the process that serves device ports.
pub const DRIVER_ROLE: &str = "driver-process";

/// Likewise for the one that decides for switches of module flow.
pub const CONTROLLER_ROLE: &str = "controller-process";
