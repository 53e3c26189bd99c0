//! Opens the UDP sockets of tunnel ports.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use lasthop_device::{Backend, DeviceFacts, OpenedDevice, TunnelFacts};
use lasthop_vhost::features;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with, sockopt};

use crate::OpenError;
use crate::packet::set_room;
use crate::sys::set_option;

/// Level, name and value of an option of a socket.
pub(crate) type SocketOption = (libc::c_int, libc::c_int, libc::c_int);

/// linux/udp.h: accepts IPv6 datagrams without a checksum, as tunnels send them (RFC 6936).
const UDP_NO_CHECK6_RX: libc::c_int = 102;
/// Datagrams of IPv6 have no flow label, as those of the kernel's tunnel devices. The kernel would make one of addresses and ports, which
/// are the same for all flows inside.
const NO_FLOW_LABEL: SocketOption = (libc::IPPROTO_IPV6, libc::IPV6_AUTOFLOWLABEL, 0);
/// The kernel queues errors at the socket: they say the MTU of a path for which a datagram was too long.
pub(crate) const ERRORS: SocketOption = (libc::IPPROTO_IP, libc::IP_RECVERR, 1);
/// Of any socket of IPv6: a raw one tells its fields in this way, too.
pub(crate) const IPV6_OPTIONS: [SocketOption; 6] = [
    (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1),
    (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
    (libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 1),
    NO_FLOW_LABEL,
];
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

/// Which sockets may have the UDP port already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortClaim {
    /// None.
    Alone,
    /// Sockets of tunnels after [`release_udp_port`].
    AfterReleased,
}

/// Opens a tunnel port at a UDP port, for IPv4 and IPv6; on a host without IPv6, for IPv4. Datagrams pass the host's own stack, both
/// ways. `name` is for messages. The facts have the offloads of frames to the port, and of those
/// from it if datagrams are coalesced.
///
/// # Errors
/// [`OpenError`]; [`OpenError::PortTaken`] if another socket has the UDP port, as one of a tunnel device of the kernel.
pub(crate) fn udp(
    name: &str,
    tunnel: TunnelFacts,
    coalescing: Coalescing,
    claim: PortClaim,
) -> Result<OpenedDevice, OpenError> {
    let port = (tunnel.port, claim);
    let socket = match bound(name, port, AddressFamily::INET6) {
        Err(OpenError::NoIpv6(_)) => bound(name, port, AddressFamily::INET)?,
        socket => socket?,
    };
    let coalesces = coalescing == Coalescing::Wanted
        && !tunnel.kind.needs_room()
        && set_option(socket.as_fd(), libc::IPPROTO_UDP, libc::UDP_GRO, 1).is_ok();
    let mut opened = end(name, Backend::Udp, tunnel, socket);
    opened.facts.features = SENT_FEATURES | if coalesces { features::HOST_TSO } else { 0 };
    Ok(opened)
}

/// For datagrams of IPv4, of a socket of either family.
const IPV4_OPTIONS: [SocketOption; 4] = [
    (libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
    (libc::IPPROTO_IP, libc::IP_RECVTTL, 1),
    (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
    ERRORS,
];
/// Tells addresses, of a socket of IPv4. One of IPv6 tells them as mapped ones.
const IPV4_ADDRESSES: SocketOption = (libc::IPPROTO_IP, libc::IP_PKTINFO, 1);
/// Further ones of a UDP socket of IPv6, which takes IPv4, too.
const DUAL_OPTIONS: [SocketOption; 2] =
    [(libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0), (libc::IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)];

/// A socket of this family with the options of a tunnel's end, at the UDP port. That of IPv6 takes IPv4, too.
fn bound(name: &str, (port, claim): (u16, PortClaim), family: AddressFamily) -> Result<OwnedFd, OpenError> {
    let failed = |what| OpenError::of(name, "CAP_NET_BIND_SERVICE", what);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP));
    let socket: OwnedFd = socket.map_err(|error| match error {
        Errno::AFNOSUPPORT => OpenError::NoIpv6(name.to_owned()),
        error => failed("make a UDP socket")(error),
    })?;
    let (any, own): (IpAddr, [&[SocketOption]; 2]) = match family {
        AddressFamily::INET => (Ipv4Addr::UNSPECIFIED.into(), [&[IPV4_ADDRESSES], &[]]),
        _ => (Ipv6Addr::UNSPECIFIED.into(), [&IPV6_OPTIONS, &DUAL_OPTIONS]),
    };
    for (level, option, value) in own.into_iter().flatten().chain(&IPV4_OPTIONS) {
        set_option(socket.as_fd(), *level, *option, *value)
            .map_err(failed("set options of the UDP socket"))?;
    }
    set_room(socket.as_fd());
    let share = |shares| {
        sockopt::set_socket_reuseaddr(&socket, shares).map_err(failed("set options of the UDP socket"))
    };
    share(claim == PortClaim::AfterReleased)?;
    bind(&socket, &SocketAddr::new(any, port)).map_err(|error| match error {
        Errno::ADDRINUSE => OpenError::PortTaken { name: name.to_owned(), port },
        error => failed("bind the UDP socket")(error),
    })?;
    share(false)?;
    Ok(socket)
}

/// Lets another socket have the UDP port of a tunnel's socket while that is still open: another process closes it later. The kernel
/// gives datagrams to the one that was bound last.
pub fn release_udp_port(socket: BorrowedFd<'_>) {
    // It only fails for other descriptors, which have no such port.
    let _ = sockopt::set_socket_reuseaddr(socket, true);
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
    use rustix::net::RecvFlags;

    use super::*;

    #[test]
    fn a_host_without_ipv6_has_an_end_of_ipv4() {
        let other = bound("genev_sys", (0, PortClaim::Alone), AddressFamily::INET).expect("a socket");
        let address = rustix::net::getsockname(&other).expect("its address");
        assert_eq!(address.address_family(), AddressFamily::INET);
        let port = SocketAddr::try_from(address).expect("an address").port();
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            let taken = bound("genev_sys", (port, PortClaim::Alone), family).expect_err("it is taken");
            assert_eq!(taken, OpenError::PortTaken { name: "genev_sys".to_owned(), port });
        }
    }

    #[test]
    fn a_released_port_is_the_next_socket_s_while_the_first_is_open() {
        for family in [AddressFamily::INET6, AddressFamily::INET] {
            let open = |port, claim| bound("genev_sys", (port, claim), family);
            let first = open(0, PortClaim::Alone).expect("a socket");
            let address = rustix::net::getsockname(&first).expect("its address");
            let port = SocketAddr::try_from(address).expect("an address").port();
            let taken = OpenError::PortTaken { name: "genev_sys".to_owned(), port };
            assert_eq!(open(port, PortClaim::AfterReleased).expect_err("it is not released"), taken);
            release_udp_port(first.as_fd());
            assert_eq!(open(port, PortClaim::Alone).expect_err("it is still open"), taken);
            let next = open(port, PortClaim::AfterReleased).expect("it is released");
            assert_eq!(open(port, PortClaim::AfterReleased).expect_err("it has one end"), taken);
            let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
            sender.send_to(&[7], ("127.0.0.1", port)).expect("sent");
            let received = |socket| rustix::net::recv(socket, &mut [0; 9][..], RecvFlags::DONTWAIT);
            assert_eq!(received(&first).expect_err("it has none"), Errno::AGAIN);
            assert_eq!(received(&next).expect("a datagram").0, 1);
        }
    }

    #[test]
    fn a_port_has_one_end() {
        // A free port, from the range that the kernel assigns.
        let free = std::net::UdpSocket::bind("[::]:0").expect("a port");
        let port = free.local_addr().expect("its address").port();
        let facts = TunnelFacts { kind: TunnelKind::Geneve, port };
        let taken = udp("genev_sys", facts, Coalescing::Wanted, PortClaim::Alone).expect_err("it is taken");
        assert_eq!(taken, OpenError::PortTaken { name: "genev_sys".to_owned(), port });
        drop(free);
        let opened = udp("genev_sys", facts, Coalescing::Wanted, PortClaim::Alone).expect("it is free");
        assert_eq!(
            (opened.descriptors.len(), opened.facts.tunnel, opened.facts.is_tunnel()),
            (1, Some(facts), true)
        );
        assert!(coalesces(&opened.facts), "Linux 5.0");
        drop(opened);
        let opened = udp("genev_sys", facts, Coalescing::Off, PortClaim::Alone).expect("it is free");
        assert!(!coalesces(&opened.facts));
        assert_eq!(opened.facts.features, SENT_FEATURES);
    }
}
