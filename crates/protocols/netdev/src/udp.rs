//! Opens the UDP sockets of tunnel ports.

use std::net::Ipv6Addr;
use std::os::fd::{AsFd, OwnedFd};

use lasthop_device::{Backend, DeviceFacts, OpenedDevice, TunnelFacts};
use lasthop_vhost::features;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrV6, SocketFlags, SocketType, bind, ipproto, socket_with};

use crate::OpenError;
use crate::packet::set_room;
use crate::sys::set_option;

/// linux/udp.h: accepts IPv6 datagrams without a checksum, as tunnels send them (RFC 6936).
const UDP_NO_CHECK6_RX: libc::c_int = 102;
/// Datagrams of IPv6 have no flow label, as those of the kernel's tunnel devices. The kernel would make one of addresses and ports, which
/// are the same for all flows inside.
pub(crate) const NO_FLOW_LABEL: (libc::c_int, libc::c_int, libc::c_int) =
    (libc::IPPROTO_IPV6, libc::IPV6_AUTOFLOWLABEL, 0);
/// The kernel queues errors at the socket: they say the MTU of a path for which a datagram was too long.
pub(crate) const ERRORS: (libc::c_int, libc::c_int, libc::c_int) = (libc::IPPROTO_IP, libc::IP_RECVERR, 1);
/// Same for IPv6.
pub(crate) const ERRORS_6: (libc::c_int, libc::c_int, libc::c_int) =
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1);
/// The driver process cuts large frames into datagrams, and completes checksums.
const SENT_FEATURES: u64 = features::GUEST_CSUM
    | features::GUEST_TSO4
    | features::GUEST_TSO6
    | features::GUEST_ECN
    | features::GUEST_USO4
    | features::GUEST_USO6;
/// The largest packet that a guest may be told of; the outer path bounds packets, datagram by datagram.
const MTU_BYTES: u32 = 65_000;

/// Whether a tunnel's socket hands over datagrams that belong together as one message (udp(7), UDP_GRO).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coalescing {
    /// If the kernel can, from Linux 5.0 on.
    Wanted,
    /// Never.
    Off,
}

/// Opens a tunnel port at a UDP port, for IPv4 and IPv6. Datagrams pass the host's own stack, both ways. `name` is for
/// messages. The facts have the offloads of frames to the port, and of those
/// from it if datagrams are coalesced.
///
/// # Errors
/// [`OpenError`]; [`OpenError::PortTaken`] if another socket has the UDP port, as one of a tunnel device of the kernel.
pub(crate) fn udp(
    name: &str,
    tunnel: TunnelFacts,
    coalescing: Coalescing,
) -> Result<OpenedDevice, OpenError> {
    let failed = |what| OpenError::of(name, "CAP_NET_BIND_SERVICE", what);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::INET6, SocketType::DGRAM, flags, Some(ipproto::UDP));
    let socket: OwnedFd = socket.map_err(|error| match error {
        Errno::AFNOSUPPORT => OpenError::NoIpv6(name.to_owned()),
        error => failed("make a UDP socket")(error),
    })?;
    let options = [
        (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
        (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1),
        (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
        ERRORS_6,
        NO_FLOW_LABEL,
        (libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
        (libc::IPPROTO_IP, libc::IP_RECVTTL, 1),
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
        ERRORS,
        (libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1),
    ];
    for (level, option, value) in options {
        set_option(socket.as_fd(), level, option, value).map_err(failed("set options of the UDP socket"))?;
    }
    set_room(socket.as_fd());
    let any = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, tunnel.port, 0, 0);
    bind(&socket, &any).map_err(|error| match error {
        Errno::ADDRINUSE => OpenError::PortTaken { name: name.to_owned(), port: tunnel.port },
        error => failed("bind the UDP socket")(error),
    })?;
    let coalesces = coalescing == Coalescing::Wanted
        && !tunnel.kind.needs_room()
        && set_option(socket.as_fd(), libc::IPPROTO_UDP, libc::UDP_GRO, 1).is_ok();
    let mut opened = end(name, Backend::Udp, tunnel, socket);
    opened.facts.features = SENT_FEATURES | if coalesces { features::HOST_TSO } else { 0 };
    Ok(opened)
}

/// Whether a tunnel's socket hands over coalesced datagrams, by its facts.
#[must_use]
pub fn coalesces(facts: &DeviceFacts) -> bool {
    facts.features & features::HOST_TSO == features::HOST_TSO
}

/// A tunnel's end with this socket.
pub(crate) fn end(name: &str, backend: Backend, tunnel: TunnelFacts, socket: OwnedFd) -> OpenedDevice {
    let facts = DeviceFacts {
        backend,
        name: name.to_owned(),
        index: 0,
        queues: 1,
        mtu_bytes: MTU_BYTES,
        mac: [0; 6],
        features: 0,
        header_bytes: 0,
        ring: None,
        xdp: None,
        tunnel: Some(tunnel),
    };
    OpenedDevice { facts, descriptors: vec![socket] }
}

#[cfg(test)]
mod tests {
    use lasthop_device::TunnelKind;

    use super::*;

    #[test]
    fn a_port_has_one_end() {
        // A free port, from the range that the kernel assigns.
        let free = std::net::UdpSocket::bind("[::]:0").expect("a port");
        let port = free.local_addr().expect("its address").port();
        let facts = TunnelFacts { kind: TunnelKind::Geneve, port };
        let taken = udp("genev_sys", facts, Coalescing::Wanted).expect_err("it is taken");
        assert_eq!(taken, OpenError::PortTaken { name: "genev_sys".to_owned(), port });
        drop(free);
        let opened = udp("genev_sys", facts, Coalescing::Wanted).expect("it is free");
        assert_eq!(
            (opened.descriptors.len(), opened.facts.tunnel, opened.facts.is_tunnel()),
            (1, Some(facts), true)
        );
        assert!(coalesces(&opened.facts), "Linux 5.0");
        drop(opened);
        let opened = udp("genev_sys", facts, Coalescing::Off).expect("it is free");
        assert!(!coalesces(&opened.facts));
        assert_eq!(opened.facts.features, SENT_FEATURES);
    }
}
