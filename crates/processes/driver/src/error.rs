//! Errors of the driver's control side.

use std::io;

use lasthop_frontend::GuestError;
use thiserror::Error;

use crate::{DevicePortId, QueueError};

/// Why the driver refused or failed.
#[derive(Debug, Error)]
pub enum DriverError {
    /// There is a port of this number already.
    #[error("the driver has a port {0} already")]
    PortExists(DevicePortId),
    /// There is no port of this number.
    #[error("the driver has no port {0}")]
    NoSuchPort(DevicePortId),
    /// The number of descriptors differs from that in the device's facts.
    #[error("{name} was opened with {queues} queues, but {descriptors} descriptors came with it")]
    WrongDescriptors {
        /// The device.
        name: String,
        /// Number of queues in its facts.
        queues: u16,
        /// Number of received descriptors.
        descriptors: usize,
    },
    /// A virtio-net header that no kernel has.
    #[error("{name} was opened with virtio-net headers of {header_bytes} bytes, 10 and 12 are possible")]
    WrongHeaders {
        /// The device.
        name: String,
        /// Header length in its facts.
        header_bytes: u8,
    },
    /// A tunnel port without its kind and UDP port.
    #[error("{0} is a tunnel's end, and its kind was not told")]
    NoTunnel(String),
    /// The switch does not offer the features that a driver needs.
    #[error("the port is to offer the features VERSION_1 and MRG_RXBUF; take them out of its mask")]
    TooFewFeatures,
    /// The vhost-user session with the switch failed.
    #[error("the switch did not take the port: {0}")]
    Switch(#[from] GuestError),
    /// The device's queues cannot be used.
    #[error(transparent)]
    Device(#[from] QueueError),
    /// An I/O thread did not answer in time.
    #[error("the driver's thread {0} did not answer within 10 s; it is stuck or the machine is overloaded")]
    NoAnswer(usize),
    /// A system call failed.
    #[error("cannot {0}: {1}")]
    System(&'static str, io::Error),
}
