//! All bounds of the control interface, each with its unit and its reason.

/// Ports of one datapath (`DP_MAX_PORTS` of the kernel's).
pub const PORTS_MAX: u32 = 65_536;
/// Bytes of one list of actions (`MAX_ACTIONS_BUFSIZE` of the kernel's).
pub const ACTION_BYTES_MAX: usize = 32 * 1024;
/// How deep lists of actions may be nested (the kernel's limit): each level is a frame of our stack.
pub const ACTION_DEPTH_MAX: usize = 16;
/// Bytes of a device's name, final NUL excluded (IFNAMSIZ - 1).
pub const NAME_BYTES_MAX: usize = 15;
/// Bytes of a generic family's or group's name (GENL_NAMSIZ - 1).
pub const FAMILY_BYTES_MAX: usize = 15;
/// Port ids in one list: one for each CPU of the largest machines.
pub const CPUS_MAX: usize = 8192;
/// Bands of one meter (`DP_MAX_BANDS` of the kernel's, where more has never been used).
pub const BANDS_MAX: usize = 1;
/// Limits in one message: all that fit an attribute.
pub const ZONE_LIMITS_MAX: usize = 65_535 / 12;
