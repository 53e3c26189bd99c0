//! Whether the host may cut datagrams into fragments. That is an option of the socket, as control data of IPv4 has no word for it.

use std::os::fd::BorrowedFd;

use lasthop_device::TunnelSocket;
use lasthop_wire::tunnel::{OuterHeader, flag};
use rustix::io::Errno;

use crate::sys::set_option;

/// How a datagram that is longer than its path takes is treated (ip(7), ipv6(7), `IP_MTU_DISCOVER`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Fragments {
    /// DF is set, and one that is too long is refused.
    #[default]
    Never,
    /// DF is not set, and the host cuts it.
    Allowed,
}

impl Fragments {
    /// By the tunnel that an action set: `df_default` of Open vSwitch.
    pub(super) fn of(tunnel: &OuterHeader) -> Self {
        if tunnel.has(flag::DONT_FRAGMENT) { Self::Never } else { Self::Allowed }
    }

    /// Has the socket send datagrams so, of each version of IP that it has.
    ///
    /// # Errors
    /// Errors of setsockopt(2).
    pub(super) fn choose(self, fd: BorrowedFd<'_>, socket: TunnelSocket) -> Result<(), Errno> {
        let (ipv4, ipv6) = match self {
            Self::Never => (libc::IP_PMTUDISC_DO, libc::IPV6_PMTUDISC_DO),
            Self::Allowed => (libc::IP_PMTUDISC_DONT, libc::IPV6_PMTUDISC_DONT),
        };
        if socket != TunnelSocket::RawIpv6 {
            set_option(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, ipv4)?;
        }
        if !socket.is_ipv4_only() {
            set_option(fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, ipv6)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    /// With headers of IPv6 longer than the loopback device's MTU; those of IPv4 leave no room for that (tests/real/ovs-tunnels).
    const LONG_BYTES: usize = 65_500;

    fn tunnel(flags: u8) -> OuterHeader {
        OuterHeader { flags, ..OuterHeader::default() }
    }

    #[test]
    fn the_flag_of_the_tunnel_decides() {
        assert_eq!(Fragments::of(&tunnel(flag::DONT_FRAGMENT | flag::KEY)), Fragments::Never);
        assert_eq!(Fragments::of(&tunnel(flag::KEY)), Fragments::Allowed);
    }

    #[test]
    fn a_socket_cuts_only_where_it_may() {
        let socket = UdpSocket::bind("[::]:0").expect("a socket");
        let itself = ("::1", socket.local_addr().expect("its address").port());
        for _ in 0..2 {
            Fragments::Never.choose(socket.as_fd(), TunnelSocket::Udp).expect("set");
            let refused =
                socket.send_to(&[0; LONG_BYTES], itself).expect_err("it is longer than the path takes");
            assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE));
            Fragments::Allowed.choose(socket.as_fd(), TunnelSocket::Udp).expect("set");
            assert_eq!(socket.send_to(&[0; LONG_BYTES], itself).expect("it is cut"), LONG_BYTES);
        }
    }
}
