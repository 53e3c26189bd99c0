//! Opens devices by XDP sockets.

use std::os::fd::AsFd;

use lasthop_bpf::{Hook, Link};
use lasthop_vhost::features;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::netlink::{self, Interface};
use super::programs::{SocketMap, UplinkProgram};
use super::xdp_error::{XdpError, system};
use super::xdp_memory::XdpMemory;
use lasthop_device::Host;
use lasthop_device::XDP_MTU_BYTES_MAX as MTU_BYTES_MAX;
use lasthop_device::{Backend, DeviceFacts, OpenedDevice, XdpFacts};

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
        ring: None,
        xdp: Some(XdpFacts { native, partial_checksums }),
        tunnel: None,
    }
}
