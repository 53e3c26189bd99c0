//! Packets without an Ethernet header: on a socket they have no placeholder, for the switch each has one.

use std::net::UdpSocket;

use lasthop_device::{DeviceDropReason, TunnelKind};
use lasthop_wire::tunnel::{OuterHeader, layer3};
use lasthop_wire::{Offload, vnet};
use proptest::prelude::*;

use super::Tunnel;
use super::cut::{switched, tcp};
use super::long::{ends_of, port, tunnel_to};
use crate::bounds::SEND_SLOT_BYTES;

const PLACEHOLDER: usize = layer3::PLACEHOLDER_BYTES;
/// The header of VXLAN-GPE with this next protocol, for network 77.
const fn gpe(next: u8) -> [u8; 8] {
    [0x0c, 0, 0, next, 0, 0, 77, 0]
}

fn bare(port: u16) -> OuterHeader {
    OuterHeader { is_layer3: true, ..tunnel_to(port) }
}

fn ipv4(len: usize) -> Vec<u8> {
    [&[0x45][..], &(1..len).map(|at| at as u8).collect::<Vec<_>>()].concat()
}

fn framed(packet: &[u8], ethertype: u16) -> Vec<u8> {
    [&layer3::placeholder(ethertype)[..], packet].concat()
}

fn arrived(there: &UdpSocket) -> Vec<u8> {
    let mut got = vec![0; 1 << 16];
    let len = there.recv(&mut got).expect("a datagram");
    got.truncate(len);
    got
}

impl Tunnel {
    /// The frames of datagrams that the other host sends, and whether each is said to have a placeholder.
    fn frames_of(&mut self, there: &UdpSocket, datagrams: &[Vec<u8>]) -> Vec<(Vec<u8>, bool)> {
        let here = self.sender.peer_addr().expect("its address");
        for datagram in datagrams {
            there.send_to(datagram, here).expect("sent");
        }
        self.receive();
        let seen = self.pass().into_iter().map(|(tunnel, frame)| (frame.bytes, tunnel.is_layer3));
        seen.collect()
    }
}

#[test]
fn a_packet_gets_a_placeholder_on_the_way_in() {
    let ipv6 = [&[0x60][..], &[9; 59]].concat();
    for (kind, headers) in
        [(TunnelKind::Bareudp, [vec![], vec![]]), (TunnelKind::VxlanGpe, [gpe(1), gpe(2)].map(Vec::from))]
    {
        let (mut tunnel, there) = ends_of(kind);
        let datagrams: Vec<Vec<u8>> = (20..60)
            .flat_map(|len| [[&headers[0][..], &ipv4(len)].concat(), [&headers[1][..], &ipv6].concat()])
            .collect();
        let frames = tunnel.frames_of(&there, &datagrams);
        let expected = (20..60).flat_map(|len| [framed(&ipv4(len), 0x0800), framed(&ipv6, 0x86dd)]);
        // Neighbouring datagrams are not written over.
        assert!(
            frames == expected.map(|frame| (frame, true)).take(frames.len()).collect::<Vec<_>>(),
            "{kind:?}"
        );
        assert!(frames.len() >= 32, "a batch: {}", frames.len());
    }
}

#[test]
fn a_packet_loses_its_placeholder_on_the_way_out() {
    for (kind, header) in [(TunnelKind::Bareudp, vec![]), (TunnelKind::VxlanGpe, gpe(1).to_vec())] {
        let (mut tunnel, there) = ends_of(kind);
        let (to, packet) = (bare(port(&there)), ipv4(100));
        let deliver = |tunnel: &mut Tunnel, to: &OuterHeader, offload: &Offload, frame: &[u8]| {
            tunnel.deliver_in(SEND_SLOT_BYTES as usize, offload, to, frame);
            assert!(tunnel.pass().is_empty());
        };
        deliver(&mut tunnel, &to, &Offload::default(), &framed(&packet, 0x0800));
        assert_eq!(arrived(&there), [&header[..], &packet].concat());
        // A large one is cut, and each segment loses it.
        let mut large = tcp(5000, 1000);
        large.bytes[..12].fill(0);
        deliver(&mut tunnel, &to, &large.offload, &large.bytes);
        for segment in switched(&large).expect("it can be cut") {
            assert_eq!(arrived(&there), [&header[..], &segment[PLACEHOLDER..]].concat());
        }
        assert_eq!(tunnel.lost(DeviceDropReason::NoTunnel), 0);
        // No packet behind the placeholder, half a placeholder, and a packet that this kind does not carry.
        for frame in [framed(&[], 0x0800), vec![0; 7], framed(&packet, 0x0806)] {
            deliver(&mut tunnel, &to, &Offload::default(), &frame);
        }
        assert_eq!(tunnel.lost(DeviceDropReason::NoTunnel), 3, "{kind:?}");
    }
    let (mut tunnel, there) = ends_of(TunnelKind::Geneve);
    tunnel.deliver_in(
        SEND_SLOT_BYTES as usize,
        &Offload::default(),
        &bare(port(&there)),
        &framed(&ipv4(100), 0x0800),
    );
    assert!(tunnel.pass().is_empty());
    assert_eq!(tunnel.lost(DeviceDropReason::NoTunnel), 1, "Geneve carries frames only");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_datagram_is_a_packet_or_counted(
        datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..120), 1..16), first in 0..8_u8,
    ) {
        for kind in [TunnelKind::Bareudp, TunnelKind::VxlanGpe] {
            let (mut tunnel, there) = ends_of(kind);
            let plausible = |mut datagram: Vec<u8>| {
                let start = if kind == TunnelKind::Bareudp { vec![first << 4 | 5] } else { gpe(first).to_vec() };
                let len = start.len().min(datagram.len());
                datagram[..len].copy_from_slice(&start[..len]);
                datagram
            };
            let sent: Vec<Vec<u8>> = datagrams.iter().cloned().map(plausible).collect();
            let frames = tunnel.frames_of(&there, &sent);
            prop_assert_eq!(frames.len() as u64 + tunnel.lost(DeviceDropReason::BadTunnel), sent.len() as u64);
            for (frame, is_bare) in frames {
                prop_assert!(frame.len() >= vnet::HEADER_BYTES && (kind == TunnelKind::VxlanGpe || is_bare));
                let inner = if is_bare { &frame[PLACEHOLDER..] } else { &frame[..] };
                prop_assert!(sent.iter().any(|datagram| datagram.ends_with(inner)), "bytes of no datagram");
            }
        }
    }
}
