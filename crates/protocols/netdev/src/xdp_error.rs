//! Obstacles to XDP sockets, each with its remedy.

use std::io;

use lasthop_device::XDP_MTU_BYTES_MAX as MTU_BYTES_MAX;
use thiserror::Error;

/// Why a device cannot be used through XDP sockets.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum XdpError {
    /// There is no such device.
    #[error("there is no network device {0} in this network namespace")]
    NoDevice(String),
    /// Another program is attached to it.
    #[error(
        "{name} has an XDP program already (number {program}): detach it (ip link set dev {name} xdp off, or end the process that holds it), or use backend = \"af_packet\""
    )]
    Taken {
        /// The device.
        name: String,
        /// The program's number, as bpftool prog shows it.
        program: u32,
    },
    /// Its frames do not fit a slot.
    #[error(
        "the MTU of {name} is {mtu_bytes}, with af_xdp at most {MTU_BYTES_MAX} is possible: lower it (ip link set dev {name} mtu {MTU_BYTES_MAX}), or use backend = \"af_packet\""
    )]
    Mtu {
        /// The device.
        name: String,
        /// Its MTU.
        mtu_bytes: u32,
    },
    /// Frames of queues without a socket would be lost.
    #[error(
        "{name} receives with {channels} queues, and the port has {queues}: frames of the others would be lost; set queues = {channels}, or let the device use fewer (ethtool -L {name} combined {queues}; for veth: ethtool -L {name} rx {queues})"
    )]
    Queues {
        /// The device.
        name: String,
        /// Number of active receive queues.
        channels: u32,
        /// Number of the port's queues.
        queues: u16,
    },
    /// VLAN tags would be lost.
    #[error(
        "{0} takes VLAN tags out of the frames that it receives, where af_xdp cannot put them back: ethtool -K {0} rxvlan off, or use backend = \"af_packet\""
    )]
    TagsOut(String),
    /// XDP takes frames before the stack sees them.
    #[error(
        "host = \"shared\" cannot be had with af_xdp, which takes frames before the host's stack sees them: set host = \"off\" or \"port\", or use backend = \"af_packet\""
    )]
    Shared,
    /// Frames for the stack would be taken from it again.
    #[error(
        "host = \"port\" needs a device whose driver runs XDP programs itself, and {0} has none: use backend = \"af_packet\""
    )]
    GenericPort(String),
    /// The capabilities CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW are missing.
    #[error(
        "af_xdp needs the capabilities CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF: start lasthop run as root, or use backend = \"tap\" or vhost-user ports only"
    )]
    Permission,
    /// The driver refuses programs with its current settings.
    #[error(
        "the driver of {name} refuses XDP programs ({reason}): use backend = \"af_packet\", or see dmesg"
    )]
    Driver {
        /// The device.
        name: String,
        /// The kernel's message.
        reason: String,
    },
    /// The limit for locked memory is too low, and CAP_IPC_LOCK is missing.
    #[error(
        "RLIMIT_MEMLOCK leaves no room for the {kib} KiB of queue {queue}'s XDP socket, beside other locked memory of this user: start lasthop run with CAP_IPC_LOCK, or raise the limit (systemd: LimitMEMLOCK=infinity, a shell: ulimit -l unlimited)"
    )]
    LockedMemory {
        /// The queue.
        queue: u16,
        /// The memory of a queue.
        kib: u64,
    },
    /// Any other error.
    #[error("{what} failed: {reason}")]
    System {
        /// The operation.
        what: &'static str,
        /// The kernel's message.
        reason: String,
    },
}

/// The error of a failed operation.
pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> XdpError {
    move |reason| match reason.raw_os_error() {
        Some(libc::EPERM) => XdpError::Permission,
        _ => XdpError::System { what, reason: reason.to_string() },
    }
}
