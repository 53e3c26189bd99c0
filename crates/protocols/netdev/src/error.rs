//! Errors of opening devices, each with a remedy.

use rustix::io::Errno;
use thiserror::Error;

use super::XdpError;

/// Why a device cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OpenError {
    /// A name that no device can have.
    #[error("{0:?} cannot be a device's name: 1 to 15 bytes without / are")]
    BadName(String),
    /// No such device in this network namespace.
    #[error(
        "there is no device {0} in this network namespace; `ip link` lists those that are, `ip link set {0} netns NAME` moves one"
    )]
    NoDevice(String),
    /// It is not an Ethernet device.
    #[error("{0} is not an Ethernet device")]
    NotEthernet(String),
    /// The process lacks a capability.
    #[error("opening {name} needs {capability}; start lasthop as root or give it that capability")]
    NotPermitted {
        /// The device.
        name: String,
        /// The missing capability.
        capability: &'static str,
    },
    /// Another process uses the tap.
    #[error(
        "the tap {0} is in use by another process, or was made with other queues; close it there, or choose another name"
    )]
    Busy(String),
    /// Another socket uses the UDP port.
    #[error(
        "the UDP port {port} of {name} is taken, for example by a tunnel device of the kernel; `ss -ulnp` and `ip -d link` show by which, remove that"
    )]
    PortTaken {
        /// The tunnel port.
        name: String,
        /// The UDP port.
        port: u16,
    },
    /// A socket of IPv6 on a host without it.
    #[error(
        "the tunnel {0} is over IPv6, which this kernel was started without (ipv6.disable=1); start it without that word, and with the sysctl \
         net.ipv6.conf.all.disable_ipv6=1 if only some devices are to have such addresses"
    )]
    NoIpv6(String),
    /// The kernel has no taps.
    #[error("/dev/net/tun is missing; load the kernel module `tun`")]
    NoTaps,
    /// The kernel has no links for programs of the stack (TCX).
    #[error(
        "host = \"off\" and \"port\" need Linux 6.6 or newer, whose programs for {0} go when they have to; set host = \"shared\""
    )]
    OldKernel(String),
    /// The tap for the host is missing.
    #[error(
        "host = \"port\" gives the host's stack the port {tap} in the place of {device}, and there is no tap {tap}: add it: lasthop port add {tap},tap={tap}"
    )]
    NoHostTap {
        /// The uplink's device.
        device: String,
        /// The missing tap.
        tap: String,
    },
    /// The device cannot be used through XDP sockets.
    #[error(transparent)]
    Xdp(#[from] XdpError),
    /// An impossible number of queues.
    #[error("{name} cannot have {queues} queues; 1 to {max} are possible")]
    BadQueues {
        /// The device.
        name: String,
        /// The requested number.
        queues: u16,
        /// The largest possible number.
        max: u16,
    },
    /// Another error of the kernel.
    #[error("cannot {what} of {name}: {error}")]
    System {
        /// The device.
        name: String,
        /// The operation.
        what: &'static str,
        /// The kernel's error.
        error: Errno,
    },
}

impl OpenError {
    /// The error that a system call would have returned for the same operation.
    #[must_use]
    pub fn errno(&self) -> Errno {
        match self {
            Self::NoDevice(_) => Errno::NODEV,
            Self::NotPermitted { .. } | Self::Xdp(XdpError::Permission) => Errno::PERM,
            Self::Busy(_) => Errno::BUSY,
            Self::PortTaken { .. } => Errno::ADDRINUSE,
            Self::NoIpv6(_) => Errno::AFNOSUPPORT,
            Self::NoTaps | Self::OldKernel(_) => Errno::OPNOTSUPP,
            Self::System { error, .. } => *error,
            Self::BadName(_)
            | Self::NotEthernet(_)
            | Self::NoHostTap { .. }
            | Self::Xdp(_)
            | Self::BadQueues { .. } => Errno::INVAL,
        }
    }

    /// Makes the error for the kernel's answer to operation `what` on a device.
    pub(crate) fn of(name: &str, capability: &'static str, what: &'static str) -> impl Fn(Errno) -> Self {
        let name = name.to_owned();
        move |error| match error {
            Errno::PERM | Errno::ACCESS => Self::NotPermitted { name: name.clone(), capability },
            Errno::NODEV | Errno::NXIO => Self::NoDevice(name.clone()),
            error => Self::System { name: name.clone(), what, error },
        }
    }
}
