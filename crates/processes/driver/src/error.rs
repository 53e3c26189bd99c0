//! Errors of the driver's control side.

use std::io;

use lasthop_frontend::GuestError;
use thiserror::Error;

use crate::{DevicePortId, QueueError};

/// Why the driver did not do as told.
#[derive(Debug, Error)]
pub enum DriverError {
    /// A port of this number is attached.
    #[error("the driver has a port {0} already")]
    PortExists(DevicePortId),
    /// No port of this number is attached.
    #[error("the driver has no port {0}")]
    NoSuchPort(DevicePortId),
    /// Descriptors and facts do not belong together.
    #[error("{name} was opened with {queues} queues, but {descriptors} descriptors came with it")]
    WrongDescriptors {
        /// The device.
        name: String,
        /// As in its facts.
        queues: u16,
        /// As received.
        descriptors: usize,
    },
    /// A virtio-net header that no kernel has.
    #[error("{name} was opened with virtio-net headers of {header_bytes} bytes, 10 and 12 are possible")]
    WrongHeaders {
        /// The device.
        name: String,
        /// As in its facts.
        header_bytes: u8,
    },
    /// A tunnel's end without its kind and port.
    #[error("{0} is a tunnel's end, and its kind was not told")]
    NoTunnel(String),
    /// The switch offers less than a driver can do with.
    #[error("the port is to offer the features VERSION_1 and MRG_RXBUF; take them out of its mask")]
    TooFewFeatures,
    /// The conversation with the switch failed.
    #[error("the switch did not take the port: {0}")]
    Switch(#[from] GuestError),
    /// The device cannot be served.
    #[error(transparent)]
    Device(#[from] QueueError),
    /// An I/O thread did not answer in time.
    #[error("the driver's thread {0} did not answer; it is stuck or the machine is overloaded")]
    NoAnswer(usize),
    /// The system refused something.
    #[error("cannot {0}: {1}")]
    System(&'static str, io::Error),
}
