//! The end of a tunnel on a host without IPv6.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::Duration;

use lasthop_device::{DeviceDropReason, TunnelFacts, TunnelKind};
use lasthop_netdev::{Coalescing, OpenError, PortClaim};
use lasthop_wire::tunnel::{OuterHeader, flag};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

use super::long::{port, tunnel_to};
use super::{Tunnel, datagram, over, segment};
use crate::udp::TunnelSocket;

const HERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const THERE: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);

/// From now on the kernel refuses sockets of IPv6 to this thread, as one that was started with ipv6.disable=1 does.
fn refuse_ipv6() {
    let of_ipv6 = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, libc::AF_INET6 as u64);
    let rule = SeccompRule::new(vec![of_ipv6.expect("a condition")]).expect("a rule");
    let filter = SeccompFilter::new(
        [(libc::SYS_socket, vec![rule])].into(),
        SeccompAction::Allow,
        SeccompAction::Errno(libc::EAFNOSUPPORT as u32),
        std::env::consts::ARCH.try_into().expect("an architecture of ours"),
    );
    let program: seccompiler::BpfProgram = filter.expect("a filter").try_into().expect("a program");
    seccompiler::apply_filter(&program).expect("applied");
}

/// A tunnel's end as the supervisor opens it there.
fn opened(facts: TunnelFacts) -> Result<OwnedFd, OpenError> {
    let open = move || {
        refuse_ipv6();
        let opened = lasthop_netdev::tunnel("genev_sys", facts, Coalescing::Off, PortClaim::Alone);
        opened.map(|mut opened| opened.descriptors.remove(0))
    };
    std::thread::spawn(open).join().expect("opened")
}

/// The end, its address, and another host.
fn ends() -> (Tunnel, SocketAddr, UdpSocket) {
    let free = UdpSocket::bind((HERE, 0)).expect("a port");
    let here = free.local_addr().expect("its address");
    drop(free);
    let facts = TunnelFacts { kind: TunnelKind::Geneve, port: here.port() };
    let tunnel = over(opened(facts).expect("it is free"), here.port(), facts, false);
    assert_eq!(tunnel.queue.headers.socket(), TunnelSocket::UdpIpv4);
    let there = UdpSocket::bind((THERE, 0)).expect("a socket");
    there.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    (tunnel, here, there)
}

fn to_there(tp_dst: u16) -> OuterHeader {
    let flags = flag::SEND | flag::KEY | flag::DONT_FRAGMENT;
    OuterHeader { flags, dst: THERE.to_bits().into(), ttl: 9, ..tunnel_to(tp_dst) }
}

#[test]
fn a_datagram_says_which_hosts_it_is_of() {
    let (mut tunnel, here, there) = ends();
    there.set_ttl(7).expect("set");
    there.send_to(&datagram(77, &segment(0, 10)), here).expect("sent");
    tunnel.receive();
    let frames = tunnel.pass();
    let [(header, frame)] = &frames[..] else { panic!("{} frames", frames.len()) };
    assert_eq!(frame.bytes, segment(0, 10));
    assert_eq!((header.src, header.dst), (THERE.to_bits().into(), HERE.to_bits().into()));
    assert_eq!((header.flags & flag::IPV6, header.ttl, header.tp_src), (0, 7, port(&there)));
}

#[test]
fn a_packet_leaves_from_the_address_that_the_flow_chose() {
    let (mut tunnel, here, there) = ends();
    let to = to_there(port(&there));
    for src in [HERE, Ipv4Addr::new(127, 0, 0, 5)] {
        tunnel.deliver(&OuterHeader { src: src.to_bits().into(), ..to }, &segment(0, 10));
        assert!(tunnel.pass().is_empty());
        let mut got = [0; 2048];
        let (len, from) = there.recv_from(&mut got).expect("a datagram");
        assert_eq!((&got[..len], from), (&datagram(to.id, &segment(0, 10))[..], (src, here.port()).into()));
    }
}

#[test]
fn a_packet_for_a_tunnel_over_ipv6_is_lost_for_that_reason() {
    let (mut tunnel, _, there) = ends();
    tunnel.deliver(&tunnel_to(port(&there)), &segment(0, 10));
    tunnel.deliver(&to_there(port(&there)), &segment(1, 10));
    assert!(tunnel.pass().is_empty());
    assert_eq!((tunnel.lost(DeviceDropReason::NoTunnel), tunnel.counters.to_device.frames), (1, 1));
}

#[test]
fn a_host_that_refuses_datagrams_costs_others_none() {
    let (mut tunnel, _, there) = ends();
    let nobody = port(&UdpSocket::bind((THERE, 0)).expect("a port"));
    for _ in 0..20 {
        for tp_dst in [nobody, port(&there)] {
            tunnel.deliver(&to_there(tp_dst), &segment(0, 10));
        }
        assert!(tunnel.pass().is_empty());
        there.recv(&mut [0; 2048]).expect("a datagram");
    }
    assert_eq!(tunnel.counters.to_device.frames, 40, "{:?}", tunnel.counters);
}

#[test]
fn a_tunnel_over_ipv6_is_refused_with_the_reason() {
    let refused = opened(TunnelFacts { kind: TunnelKind::Ip6Gre, port: 0 }).expect_err("there is no IPv6");
    assert_eq!(refused, OpenError::NoIpv6("genev_sys".to_owned()));
}
