//! Frames towards a tunnel that are too long for its path, and errors that other hosts cause.

use std::net::{Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use lasthop_device::{DeviceDropReason, TunnelFacts, TunnelKind};
use lasthop_netdev::{Coalescing, PortClaim};
use lasthop_wire::tunnel::{HEADER_BYTES, OuterHeader, TUNNEL_BYTES, flag};
use lasthop_wire::{Offload, vnet};

use super::{Frame, Tunnel, datagram, over, segment};
use crate::bounds::{SEND_SLOT_BYTES, SEND_SLOTS};

/// Bytes of packets that are longer than the loopback device's MTU with headers of IPv6 outside.
const LONG_BYTES: usize = 65_500;
/// Its MTU, less the outer headers of IPv6, UDP and Geneve, and the inner one of Ethernet.
const MTU: u16 = (65_536 - 40 - 8 - 8 - 14) as u16;
const ID: u64 = 77;

/// A tunnel's end as the supervisor opens it, and another host, which has sent nothing.
pub(super) fn ends() -> (Tunnel, UdpSocket) {
    ends_of(TunnelKind::Geneve)
}

/// The same of another kind.
pub(super) fn ends_of(kind: TunnelKind) -> (Tunnel, UdpSocket) {
    let free = UdpSocket::bind("[::]:0").expect("a port");
    let port = free.local_addr().expect("its address").port();
    drop(free);
    let facts = TunnelFacts { kind, port };
    let mut opened =
        lasthop_netdev::tunnel("genev_sys", facts, Coalescing::Off, PortClaim::Alone).expect("it is free");
    let there = UdpSocket::bind("[::1]:0").expect("a socket");
    there.set_read_timeout(Some(Duration::from_secs(20))).expect("a limit");
    (over(opened.descriptors.remove(0), port, facts, false), there)
}

pub(super) fn port(socket: &UdpSocket) -> u16 {
    socket.local_addr().expect("its address").port()
}

/// As a flow sets it for packets to a port of this host.
pub(super) fn tunnel_to(tp_dst: u16) -> OuterHeader {
    let flags = flag::SEND | flag::IPV6 | flag::KEY | flag::DONT_FRAGMENT;
    let dst = Ipv6Addr::LOCALHOST.to_bits();
    OuterHeader { flags, ttl: 64, tp_dst, id: ID, dst, ..OuterHeader::default() }
}

/// A long packet of a connection of `source`'s, with DF or without.
fn long(source: u8, is_fixed: bool) -> Vec<u8> {
    let mut frame = segment(0, LONG_BYTES - 40);
    (frame[11], frame[29]) = (source, source);
    frame[20] = if is_fixed { 0x40 } else { 0 };
    frame
}

impl Tunnel {
    /// Acts as a switch: delivers a frame for a tunnel.
    pub(super) fn deliver(&mut self, tunnel: &OuterHeader, frame: &[u8]) {
        self.deliver_in(SEND_SLOT_BYTES as usize, &Offload::default(), tunnel, frame);
    }

    /// The same for a frame whose checksum or segmentation is left to the tunnel, in buffers of which each gets `part_bytes`.
    pub(super) fn deliver_in(
        &mut self,
        part_bytes: usize,
        offload: &Offload,
        tunnel: &OuterHeader,
        frame: &[u8],
    ) {
        let mut metadata = [0; TUNNEL_BYTES];
        let _ = tunnel.emit(&mut metadata);
        let mut bytes = [&[0; vnet::HEADER_BYTES][..], &metadata, frame].concat();
        let parts = bytes.len().div_ceil(part_bytes) as u16;
        bytes[..vnet::HEADER_BYTES].copy_from_slice(&offload.emit(parts));
        for part in bytes.chunks(part_bytes) {
            let head = self.rx.head(0).expect("a buffer");
            let descriptor = self.rx.descriptor(head);
            self.rx.take(1);
            let place = self.map.translate_whole(descriptor.addr, descriptor.len, &mut 0).expect("memory");
            self.map.write(place, 0, part).expect("memory");
            self.rx.complete(head, part.len() as u32);
        }
        self.rx.publish();
    }

    /// Has the driver send what was delivered; all frames that it has for the switch then.
    pub(super) fn pass(&mut self) -> Vec<(OuterHeader, Frame)> {
        use crate::Queue;
        self.queue.send(&mut self.pair, &mut self.counters).expect("sent");
        self.pair.rx.flush().expect("published");
        self.pair.tx.flush().expect("published");
        assert!(self.counters.is_conserved(), "{:?}", self.counters);
        assert_eq!(self.rx.pending(), Ok(SEND_SLOTS), "all buffers are lent again");
        let mut frames = Vec::new();
        while let Some((head, frame)) = self.look() {
            let descriptor = self.tx.descriptor(head);
            let place = self.map.translate_whole(descriptor.addr, descriptor.len, &mut 0).expect("memory");
            let mut header = [0; HEADER_BYTES];
            self.map.read(place, 0, &mut header).expect("memory");
            self.give_back(head);
            frames.push((OuterHeader::parse(&header[vnet::HEADER_BYTES..]).expect("metadata"), frame));
        }
        frames
    }

    pub(super) fn lost(&self, reason: DeviceDropReason) -> u64 {
        self.counters.dropped(reason)
    }

    /// Has a datagram arrive from the other host, so that its address for us is known.
    pub(super) fn hear_from(&mut self, there: &UdpSocket) {
        let here = self.sender.peer_addr().expect("its address");
        there.send_to(&datagram(ID, &segment(0, 10)), here).expect("sent");
        self.receive();
        assert_eq!(self.taken().len(), 1);
    }
}

#[test]
fn a_packet_too_long_for_its_path_is_answered_out_of_its_tunnel() {
    let (mut tunnel, there) = ends();
    let (to, frame) = (tunnel_to(port(&there)), long(2, true));
    tunnel.deliver(&to, &frame);
    assert!(tunnel.pass().is_empty(), "nothing says at which address the other host reaches us");
    assert_eq!((tunnel.counters.withheld, tunnel.lost(DeviceDropReason::TooLong)), (1, 1));
    tunnel.hear_from(&there);
    tunnel.deliver(&to, &frame);
    let answers = tunnel.pass();
    let [(header, answer)] = &answers[..] else { panic!("{} answers", answers.len()) };
    let localhost = Ipv6Addr::LOCALHOST.to_bits();
    assert_eq!((header.src, header.dst, header.id, header.tp_src), (localhost, localhost, ID, port(&there)));
    assert_eq!(header.flags, flag::IPV6 | flag::KEY);
    let bytes = &answer.bytes;
    assert_eq!((&bytes[..6], &bytes[6..12]), (&frame[6..12], &frame[..6]));
    assert_eq!((&bytes[26..30], &bytes[30..34]), (&frame[30..34], &frame[26..30]));
    assert_eq!((&bytes[34..36], &bytes[40..42]), (&[3, 4][..], &MTU.to_be_bytes()[..]));
    assert_eq!(bytes[42..], frame[14..14 + bytes.len() - 42]);
    let counters = tunnel.counters;
    assert_eq!((counters.answers, counters.withheld, tunnel.lost(DeviceDropReason::TooLong)), (1, 1, 2));
}

#[test]
fn an_address_that_the_flow_chose_needs_no_datagram_from_there() {
    let (mut tunnel, there) = ends();
    let src = Ipv6Addr::LOCALHOST.to_bits();
    tunnel.deliver(&OuterHeader { src, ..tunnel_to(port(&there)) }, &long(2, true));
    assert_eq!(tunnel.pass().len(), 1);
}

#[test]
fn packets_that_fit_and_packets_without_df_get_no_answer() {
    let (mut tunnel, there) = ends();
    tunnel.hear_from(&there);
    let to = tunnel_to(port(&there));
    tunnel.deliver(&to, &long(2, false));
    tunnel.deliver(&to, &segment(1, 1400));
    assert!(tunnel.pass().is_empty());
    let counters = tunnel.counters;
    assert_eq!((counters.withheld, counters.to_device.frames), (0, 1));
    assert_eq!(tunnel.lost(DeviceDropReason::TooLong), 1);
    // One that may be cut is cut.
    tunnel.deliver(&OuterHeader { flags: to.flags & !flag::DONT_FRAGMENT, ..to }, &long(2, true));
    assert!(tunnel.pass().is_empty());
    assert_eq!((tunnel.counters.to_device.frames, tunnel.lost(DeviceDropReason::TooLong)), (2, 1));
}

#[test]
fn a_refusal_that_says_no_mtu_is_answered_by_one_that_leaves_room_for_encryption() {
    let (mut tunnel, there) = ends();
    tunnel.hear_from(&there);
    // As over IPv6 with IPsec: an error of the call, and none in the queue.
    crate::sys::set_option(tunnel.queue.fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_RECVERR, 0).expect("set");
    let to = tunnel_to(port(&there));
    for source in [2, 2] {
        tunnel.deliver(&to, &long(source, true));
    }
    let answers = tunnel.pass();
    let [(_, answer)] = &answers[..] else { panic!("{} answers", answers.len()) };
    assert_eq!(answer.bytes[40..42], ((LONG_BYTES - 40) as u16).to_be_bytes());
    assert_eq!((tunnel.counters.answers, tunnel.lost(DeviceDropReason::TooLong)), (1, 2));
}

#[test]
fn of_packets_of_a_connection_that_are_lost_together_one_is_answered() {
    let (mut tunnel, there) = ends();
    tunnel.hear_from(&there);
    let to = tunnel_to(port(&there));
    for source in [2, 2, 2, 3, 3] {
        tunnel.deliver(&to, &long(source, true));
    }
    let answers = tunnel.pass();
    let sources: Vec<u8> = answers.iter().map(|(_, answer)| answer.bytes[5]).collect();
    assert_eq!((sources, tunnel.lost(DeviceDropReason::TooLong)), (vec![2, 3], 5));
}

#[test]
fn a_sender_that_does_not_listen_gets_no_more_answers_than_the_limit() {
    let (mut tunnel, there) = ends();
    tunnel.hear_from(&there);
    let (to, start) = (tunnel_to(port(&there)), std::time::Instant::now());
    let (mut answers, rounds) = (0, 200);
    for _ in 0..rounds {
        tunnel.deliver(&to, &long(2, true));
        answers += tunnel.pass().len() as u64;
    }
    let allowed = 17 + start.elapsed().as_millis() as u64 / 20;
    assert!((1..=allowed).contains(&answers), "{answers} answers, {allowed} allowed");
    let counters = tunnel.counters;
    assert_eq!(
        (counters.answers + counters.withheld, tunnel.lost(DeviceDropReason::TooLong)),
        (rounds, rounds)
    );
}

#[test]
fn a_port_that_sends_from_many_addresses_uses_up_no_answers_of_others() {
    let (mut tunnel, there) = ends();
    tunnel.hear_from(&there);
    let of = |sender| OuterHeader { sender, ..tunnel_to(port(&there)) };
    for source in 0..=u8::MAX {
        tunnel.deliver(&of(1), &long(source, true));
        tunnel.pass();
    }
    // More in all than there are buffers, and each port has 16 at once.
    for (sender, source) in (2..18).flat_map(|sender| (0..16).map(move |source| (sender, source))) {
        tunnel.deliver(&of(sender), &long(source, true));
        assert_eq!(tunnel.pass().len(), 1, "answer {source} of {sender}");
    }
}

#[test]
fn errors_that_other_hosts_cause_cost_no_frame() {
    let (mut tunnel, there) = ends();
    let nobody = UdpSocket::bind("[::1]:0").map(|socket| port(&socket)).expect("a port");
    // Each datagram to a port that nobody has is answered by ICMP, which fails a call on the socket.
    for round in 0..100_u16 {
        tunnel.deliver(&tunnel_to(nobody), &segment(0, 20));
        if round % 2 == 0 {
            // Else it fails within the call that sends both.
            assert!(tunnel.pass().is_empty());
        }
        tunnel.deliver(&tunnel_to(port(&there)), &segment(round, 100));
        assert!(tunnel.pass().is_empty());
        let mut got = [0; 512];
        let len = there.recv(&mut got).expect("a datagram");
        assert_eq!(got[8..len], segment(round, 100));
    }
    assert_eq!((tunnel.counters.to_device.frames, tunnel.counters.drops), (200, [0; 10]));
    // The same when it receives.
    tunnel.deliver(&tunnel_to(nobody), &segment(0, 20));
    tunnel.pass();
    tunnel.hear_from(&there);
}
