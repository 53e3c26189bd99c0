//! Ports over network devices, as the supervisor keeps them.
//!
//! **Purpose.** A [`DevicePort`] is the state of one port: whether its device is there, open, at the driver process, and when it is opened
//! again after a failure. [`opening`] opens the device that a specification names. A [`placeholder`] is a device that stands for a vnic.
//!
//! **Contract.** Time is an argument. A device that fails is opened again after growing pauses, and at once after news of the kernel. A tap
//! outlives the driver process; a socket does not.
//!
//! **Not checked.** Specifications: `lasthop-api` parses them. Frames and counters: the driver process has them.
//!
//! **Threading.** All values belong to one thread.
//!
//! ```text
//!   kernel ── LinkDevice ──> DevicePort ── wants_opening ──> opening::open ── Opening ──> DevicePort ── descriptors ──> driver process
//! ```
#![forbid(unsafe_code)]

mod device_port;
pub mod opening;
pub mod placeholder;

pub use device_port::DevicePort;
