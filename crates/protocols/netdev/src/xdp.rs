//! Opens devices by XDP sockets.

use std::io;
use std::os::fd::AsFd;

use lasthop_bpf::{Hook, Link};
use lasthop_vhost::features;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use thiserror::Error;

use super::netlink::{self, Interface};
use super::programs::{SocketMap, UplinkProgram};
use super::xdp_memory::XdpMemory;
use lasthop_device::Host;
use lasthop_device::XDP_MTU_BYTES_MAX as MTU_BYTES_MAX;
use lasthop_device::{Backend, DeviceFacts, OpenedDevice, XdpFacts};

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

/// A device whose frames go to XDP sockets while this exists: a link of this process only attaches the program. Frames
/// without a socket are dropped; the host's stack gets none. A [`Gate`](super::Gate) handles packets from the stack to
/// the device.
#[derive(Debug)]
pub struct XdpDevice {
    facts: DeviceFacts,
    map: SocketMap,
    _link: Link,
}

impl XdpDevice {
    /// Attaches to the device of the given name, which receives with `queues` queues.
    ///
    /// # Errors
    /// [`XdpError`]; nothing is left behind.
    pub fn attach(name: &str, queues: u16, host: Host) -> Result<Self, XdpError> {
        let interface = netlink::interface(name).map_err(|error| match error {
            Errno::NODEV | Errno::INVAL => XdpError::NoDevice(name.to_owned()),
            error => system("asking for the device")(error.into()),
        })?;
        check(&interface, queues, host)?;
        let map = SocketMap::new(queues).map_err(system("making a BPF map"))?;
        let program = UplinkProgram::to_sockets(&map).map_err(system("loading a BPF program"))?;
        let (link, native) = attach(&program, &interface)?;
        if !native && host == Host::Port {
            return Err(XdpError::GenericPort(interface.name));
        }
        Ok(Self { facts: facts(&interface, queues, native), map, _link: link })
    }

    /// The facts about the device.
    #[must_use]
    pub fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    /// A fresh socket for each queue, which gets the frames once it is bound, and their memory. Earlier sockets get no
    /// more frames, and keep their queue until they are closed. Call it in the device's network namespace.
    ///
    /// # Errors
    /// [`XdpError::System`], [`XdpError::Permission`], [`XdpError::LockedMemory`].
    pub fn sockets(&self) -> Result<OpenedDevice, XdpError> {
        let memory = XdpMemory::new(&self.facts)?;
        let open = |queue| {
            let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None);
            let socket = socket.map_err(|error| system("making an XDP socket")(error.into()))?;
            memory.register(queue, socket.as_fd())?;
            self.map.set(queue, socket.as_fd()).map_err(system("entering an XDP socket into the BPF map"))?;
            Ok(socket)
        };
        let mut descriptors = (0..self.facts.queues).map(open).collect::<Result<Vec<_>, XdpError>>()?;
        descriptors.push(memory.into_file());
        Ok(OpenedDevice { facts: self.facts.clone(), descriptors })
    }
}

pub(crate) fn system(what: &'static str) -> impl Fn(io::Error) -> XdpError {
    move |reason| match reason.raw_os_error() {
        Some(libc::EPERM) => XdpError::Permission,
        _ => XdpError::System { what, reason: reason.to_string() },
    }
}

fn check(interface: &Interface, queues: u16, host: Host) -> Result<(), XdpError> {
    let name = interface.name.clone();
    if host == Host::Shared {
        return Err(XdpError::Shared);
    }
    if let Some(program) = interface.xdp_program {
        return Err(XdpError::Taken { name, program });
    }
    if interface.mtu_bytes > MTU_BYTES_MAX {
        return Err(XdpError::Mtu { name, mtu_bytes: interface.mtu_bytes });
    }
    // A virtual device reports its peer here, which is checked separately.
    if !interface.is_virtual() && netlink::takes_tags_out(interface.index) {
        return Err(XdpError::TagsOut(name));
    }
    let channels = netlink::channels(interface.index);
    if channels != u32::from(queues) {
        return Err(XdpError::Queues { name, channels, queues });
    }
    Ok(())
}

/// Attaches the program; returns the link, and whether the device's driver runs it.
fn attach(program: &UplinkProgram, interface: &Interface) -> Result<(Link, bool), XdpError> {
    let refused = match program.attach(interface.index, Hook::XdpNative) {
        Ok(link) => return Ok((link, true)),
        Err(error) => error,
    };
    let name = interface.name.clone();
    match refused.raw_os_error() {
        Some(libc::EOPNOTSUPP) => {}
        Some(libc::EBUSY) => return Err(XdpError::Taken { name, program: 0 }),
        Some(libc::EPERM) => return Err(XdpError::Permission),
        _ => return Err(XdpError::Driver { name, reason: refused.to_string() }),
    }
    let link =
        program.attach(interface.index, Hook::XdpGeneric).map_err(system("attaching an XDP program"))?;
    Ok((link, false))
}

fn facts(interface: &Interface, queues: u16, native: bool) -> DeviceFacts {
    // Frames of a virtual device come from a stack of this machine, which leaves checksums to hardware.
    let partial_checksums = interface.is_virtual();
    DeviceFacts {
        backend: Backend::AfXdp,
        name: interface.name.clone(),
        index: interface.index,
        queues,
        mtu_bytes: interface.mtu_bytes,
        mac: interface.mac,
        features: if partial_checksums { features::CSUM } else { 0 },
        header_bytes: 0,
        xdp: Some(XdpFacts { native, partial_checksums }),
        tunnel: None,
    }
}
