//! Datagrams of a real socket on their way to a switch that is played here.

mod cut;
mod ipv4;
mod layer3;
mod long;

use std::net::UdpSocket;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use lasthop_device::{DeviceDropReason, DriverCounters, TunnelFacts, TunnelKind};
use lasthop_frontend::{Vnic, VnicOptions, VnicPair};
use lasthop_guestmem::MemoryMap;
use lasthop_ring::{DESC_NEXT, DeviceRing};
use lasthop_vhost::features::HOST_TSO;
use lasthop_wire::tunnel::{HEADER_BYTES, OuterHeader, geneve};
use lasthop_wire::vnet::{GSO_TCPV4, HEADER_BYTES as VNET_BYTES};
use lasthop_wire::{Offload, Sum};

use super::UdpQueue;
use crate::bounds::{DATAGRAMS_MAX, RECEIVE_SLOTS, TUNNEL_ARENA_BYTES, TUNNEL_ENTRIES};
use crate::sys::set_option;
use crate::tests::switch;
use crate::{Next, Queue};

/// Bytes of the headers of `segment`.
const HEAD_BYTES: usize = 54;

struct Tunnel {
    queue: UdpQueue,
    pair: VnicPair,
    counters: DriverCounters,
    sender: UdpSocket,
    rx: DeviceRing,
    tx: DeviceRing,
    map: Arc<MemoryMap>,
    _vnic: Vnic,
}

/// A frame as the switch sees it.
#[derive(Debug, PartialEq)]
struct Frame {
    offload: Offload,
    id: u64,
    bytes: Vec<u8>,
    pieces: usize,
}

fn tunnel(coalesces: bool) -> Tunnel {
    let socket = UdpSocket::bind("[::1]:0").expect("a socket");
    socket.set_nonblocking(true).expect("set");
    if coalesces {
        set_option(socket.as_fd(), libc::IPPROTO_UDP, libc::UDP_GRO, 1).expect("Linux 5.0");
    }
    let port = socket.local_addr().expect("its address").port();
    let facts = TunnelFacts { kind: TunnelKind::Geneve, port: 6081 };
    over(socket.into(), port, facts, coalesces)
}

/// A tunnel's end with this socket at a port.
fn over(socket: OwnedFd, port: u16, facts: TunnelFacts, coalesces: bool) -> Tunnel {
    let (front, rings, maps) = switch();
    let options = VnicOptions {
        features: u64::MAX,
        queue_pairs: 1,
        rx_entries: 256,
        tx_entries: if coalesces { TUNNEL_ENTRIES } else { RECEIVE_SLOTS },
        arena_bytes: TUNNEL_ARENA_BYTES,
        has_tunnel: false,
    };
    let (vnic, mut pairs) = Vnic::over(front, options).expect("a vNIC");
    let mut pair = pairs.pop().expect("a pair");
    let sender = UdpSocket::bind("[::1]:0").expect("a socket");
    sender.connect(("::1", port)).expect("connected");
    let features = if coalesces { HOST_TSO } else { 0 };
    let mut queue = UdpQueue::new(socket, features, facts, &pair).expect("a queue");
    let mut counters = DriverCounters::default();
    queue.start(&mut pair, &mut counters).expect("started");
    pair.rx.flush().expect("published");
    let rx = rings.recv().expect("the receive ring").1;
    let (tx, map) = (rings.recv().expect("the transmit ring").1, maps.recv().expect("memory"));
    Tunnel { queue, pair, counters, sender, rx, tx, map, _vnic: vnic }
}

impl Tunnel {
    /// Sends datagrams of one length, but the last, as one message.
    fn send(&self, datagrams: &[Vec<u8>]) {
        let len = datagrams[0].len() as i32;
        set_option(self.sender.as_fd(), libc::IPPROTO_UDP, libc::UDP_SEGMENT, len).expect("Linux 4.18");
        self.sender.send(&datagrams.concat()).expect("sent");
    }

    fn receive(&mut self) -> Next {
        let visit = self.queue.receive(&mut self.pair, &mut self.counters).expect("received");
        self.pair.tx.flush().expect("published");
        assert!(self.counters.is_conserved(), "{:?}", self.counters);
        visit.next
    }

    /// The next frame, whose buffers the switch keeps; its number, to return it.
    fn look(&mut self) -> Option<(u16, Frame)> {
        if self.tx.pending().expect("a ring") == 0 {
            return None;
        }
        let head = self.tx.head(0).expect("a head");
        self.tx.take(1);
        let (mut bytes, mut pieces, mut next) = (Vec::new(), 0, head);
        loop {
            let descriptor = self.tx.descriptor(next);
            let segment = self.map.translate_whole(descriptor.addr, descriptor.len, &mut 0).expect("memory");
            let mut piece = vec![0; descriptor.len as usize];
            self.map.read(segment, 0, &mut piece).expect("memory");
            bytes.extend(piece);
            (pieces, next) = (pieces + 1, descriptor.next);
            if descriptor.flags & DESC_NEXT == 0 {
                break;
            }
        }
        let offload = Offload::parse(bytes.first_chunk().expect("a header"));
        let id = OuterHeader::parse(&bytes[VNET_BYTES..]).expect("metadata").id;
        Some((head, Frame { offload, id, bytes: bytes.split_off(HEADER_BYTES), pieces }))
    }

    fn give_back(&mut self, head: u16) {
        self.tx.complete(head, 0);
        self.tx.publish();
    }

    /// All frames, which are returned at once.
    fn taken(&mut self) -> Vec<Frame> {
        let mut frames = Vec::new();
        while let Some((head, frame)) = self.look() {
            self.give_back(head);
            frames.push(frame);
        }
        frames
    }
}

/// Segment `number` of a connection that sends `len` bytes at a time.
fn segment(number: u16, len: usize) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0]);
    frame.extend((40 + len as u16).to_be_bytes());
    frame.extend(number.to_be_bytes());
    frame.extend([0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x14, 0x51, 0x13, 0x89]);
    frame.extend((u32::from(number) * len as u32).to_be_bytes());
    frame.extend([0, 0, 0, 1, 0x50, 0x10, 1, 1, 0, 0, 0, 0]);
    frame.extend((0..len).map(|at| at as u8 ^ number as u8));
    let mut sum = Sum::default();
    sum.add(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.finish().to_be_bytes());
    let mut sum = Sum::pseudo_v4([10, 0, 0, 1], [10, 0, 0, 2], 6, 20 + len as u16);
    sum.add(&frame[34..]);
    frame[50..52].copy_from_slice(&sum.finish().to_be_bytes());
    frame
}

fn datagram(id: u64, frame: &[u8]) -> Vec<u8> {
    let mut header = [0; geneve::HEADER_BYTES_MAX];
    let len = geneve::write(&OuterHeader { id, ..OuterHeader::default() }, &mut header);
    [&header[..len], frame].concat()
}

fn datagrams(id: u64, count: u16, len: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| datagram(id, &segment(number, len))).collect()
}

#[test]
fn segments_of_a_connection_reach_the_switch_as_one_frame() {
    let mut tunnel = tunnel(true);
    tunnel.send(&datagrams(7, 40, 1400));
    tunnel.receive();
    let frames = tunnel.taken();
    let [frame] = &frames[..] else { panic!("{} frames", frames.len()) };
    let told = (frame.offload.gso_type, frame.offload.gso_size, frame.offload.csum_start, frame.id);
    assert_eq!((told, frame.pieces, frame.bytes.len()), ((GSO_TCPV4, 1400, 34, 7), 40, 54 + 40 * 1400));
    let payload: Vec<u8> = (0..40).flat_map(|number| segment(number, 1400).split_off(HEAD_BYTES)).collect();
    assert!(frame.bytes[HEAD_BYTES..] == payload, "other bytes");
    assert_eq!(frame.bytes[16..18], (40 + 40 * 1400_u16).to_be_bytes());
    let counted =
        (tunnel.counters.from_device.frames, tunnel.counters.to_switch.frames, tunnel.counters.joined);
    assert_eq!(counted, (40, 1, 39));
}

#[test]
fn segments_of_several_messages_of_a_batch_are_one_frame() {
    let mut tunnel = tunnel(true);
    let all = datagrams(7, 9, 1400);
    all.chunks(3).for_each(|some| tunnel.send(some));
    tunnel.receive();
    let frames = tunnel.taken();
    assert_eq!((frames.len(), frames[0].bytes.len()), (1, 54 + 9 * 1400));
    tunnel.receive();
    assert_eq!(tunnel.queue.arrivals.room(&tunnel.pair), usize::from(TUNNEL_ENTRIES) / (2 * DATAGRAMS_MAX));
}

#[test]
fn other_tunnels_wrong_checksums_and_bad_headers_stay_apart() {
    let mut tunnel = tunnel(true);
    let mut all = datagrams(7, 8, 500);
    all[2] = datagram(8, &segment(2, 500)); // another network
    all[4][200] ^= 1;
    all[6][0] = 0xff; // no version of Geneve
    tunnel.send(&all);
    tunnel.receive();
    let frames = tunnel.taken();
    let shape: Vec<_> = frames.iter().map(|frame| (frame.id, frame.bytes.len() - HEAD_BYTES)).collect();
    assert_eq!(shape, [(7, 1000), (8, 500), (7, 500), (7, 500), (7, 500), (7, 500)]);
    assert_eq!(frames[3].bytes, all[4][8..], "it is the receiver's to drop");
    for (frame, sent) in [(1, 2), (2, 3), (4, 5), (5, 7)] {
        assert_eq!((&frames[frame].bytes[..], frames[frame].offload), (&all[sent][8..], Offload::default()));
    }
    assert_eq!(tunnel.counters.dropped(DeviceDropReason::BadTunnel), 1);
}

#[test]
fn where_datagrams_are_not_coalesced_each_is_a_frame() {
    let mut tunnel = tunnel(false);
    tunnel.send(&datagrams(7, 10, 500));
    tunnel.receive();
    let frames = tunnel.taken();
    assert_eq!(frames.len(), 10);
    for (number, frame) in (0..).zip(frames) {
        assert_eq!((frame.bytes, frame.offload, frame.pieces), (segment(number, 500), Offload::default(), 1));
    }
}

#[test]
fn datagrams_that_a_full_socket_drops_are_counted() {
    let mut tunnel = tunnel(false);
    set_option(tunnel.queue.fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, 4096).expect("set");
    let sent = 100;
    for datagram in datagrams(7, sent, 500) {
        tunnel.sender.send(&datagram).expect("sent");
    }
    tunnel.receive();
    let (received, missed) = (tunnel.counters.from_device.frames, tunnel.queue.missed());
    assert!(received > 0 && missed > 0, "{received} received, {missed} missed");
    assert_eq!(received + missed, u64::from(sent));
    assert_eq!(tunnel.queue.missed(), 0, "they are counted once");
}

#[test]
fn a_buffer_is_free_when_the_last_frame_in_it_is_returned() {
    let mut tunnel = tunnel(true);
    // Each is a frame of its own: no segment is next to the one before it.
    let apart = |round: usize| -> Vec<_> {
        (0..DATAGRAMS_MAX as u16 / 2).map(|at| datagram(round as u64, &segment(at * 2, 300))).collect()
    };
    let mut held = Vec::new();
    for round in 0..600 {
        tunnel.send(&apart(round));
        while tunnel.receive() == Next::Blocked {
            // Not in the order in which they came.
            assert!(!held.is_empty(), "round {round}: blocked while the switch has nothing");
            let (head, _) = held.remove(round % held.len());
            tunnel.give_back(head);
        }
        while let Some((head, frame)) = tunnel.look() {
            let number = held.iter().filter(|(_, id)| *id == frame.id).count() as u16;
            assert!(number > 0 || frame.bytes == segment(0, 300));
            held.push((head, frame.id));
        }
    }
    held.into_iter().for_each(|(head, _)| tunnel.give_back(head));
    tunnel.receive();
    assert_eq!(tunnel.pair.tx.room(), TUNNEL_ENTRIES);
    assert_eq!(tunnel.queue.arrivals.spans().len(), usize::from(RECEIVE_SLOTS));
    assert_eq!(tunnel.counters.from_device.frames, 600 * 64);
}
