//! Opens the raw sockets of GRE tunnels' ends.

use std::os::fd::{AsFd, OwnedFd};

use lasthop_device::{Backend, OpenedDevice, TunnelFacts, TunnelSocket};
use lasthop_wire::tunnel::{erspan, gre};
use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, SocketFlags, SocketType, socket_with};

use crate::OpenError;
use crate::packet::set_room;
use crate::sys::{set_option, take_gre};
use crate::udp::{Coalescing, ERRORS, IPV6_OPTIONS, PortClaim, SocketOption, end, udp};

/// The end of tunnels of any kind. Datagrams pass the host's own stack, both ways. `name` is for messages.
///
/// # Errors
/// [`OpenError`]; [`OpenError::PortTaken`] if another socket has the UDP port, as one of a tunnel device of the kernel.
pub fn tunnel(
    name: &str,
    tunnel: TunnelFacts,
    coalescing: Coalescing,
    claim: PortClaim,
) -> Result<OpenedDevice, OpenError> {
    match tunnel.kind.socket() {
        TunnelSocket::Udp | TunnelSocket::UdpIpv4 => udp(name, tunnel, coalescing, claim),
        TunnelSocket::RawIpv4 => raw(name, tunnel, AddressFamily::INET, &OPTIONS),
        TunnelSocket::RawIpv6 => raw(name, tunnel, AddressFamily::INET6, &IPV6_OPTIONS),
    }
}

/// With IPv4, the received header says the rest.
const OPTIONS: [SocketOption; 2] = [(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO), ERRORS];

/// The kernel hands every raw socket a copy of each datagram: a filter keeps ERSPAN apart from other GRE.
fn raw(
    name: &str,
    tunnel: TunnelFacts,
    family: AddressFamily,
    options: &[SocketOption],
) -> Result<OpenedDevice, OpenError> {
    let failed = |what| OpenError::of(name, "CAP_NET_RAW", what);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let gre = rustix::net::RawProtocol::new(gre::IP_PROTOCOL.into()).map(Protocol::from_raw);
    let socket = socket_with(family, SocketType::RAW, flags, gre);
    let socket: OwnedFd = socket.map_err(|error| match error {
        Errno::AFNOSUPPORT => OpenError::NoIpv6(name.to_owned()),
        error => failed("make a raw socket for GRE")(error),
    })?;
    let has_ip_header = family == AddressFamily::INET;
    take_gre(socket.as_fd(), has_ip_header, erspan::PROTOCOLS, tunnel.kind.is_erspan())
        .map_err(failed("set the filter of the raw socket"))?;
    for (level, option, value) in options {
        set_option(socket.as_fd(), *level, *option, *value)
            .map_err(failed("set options of the raw socket"))?;
    }
    set_room(socket.as_fd());
    Ok(end(name, Backend::Raw, tunnel, socket))
}
