//! Counts the bytes that are copied for each byte delivered, and names the cases in which a byte is copied twice.
//!
//! A frame's first 128 bytes (its image) are read once, checked, and written to the receiver. All bytes behind them move
//! from the sender's memory to the receiver's in one step. Either way a byte leaves the sender's memory once and enters
//! the receiver's once.
#![cfg(debug_assertions)] // other builds do not count

use std::sync::Arc;

use crate::support::{ByLastByte, TestGuest, assert_conserved, everything, flooding_pair, frame};
use crate::tcp::tcp_frame;
use lasthop_fabric::bounds::TAP_FRAME_BYTES_MAX;
use lasthop_fabric::{Capabilities, Fabric, UpcallLimits, Watch, tap, upcalls};
use lasthop_guestmem::counted::{self, AccessCounts};
use lasthop_module_api::{
    Batch, IMAGE_FETCH_BYTES, Module, PortId, PortSettings, Upcall, UpcallReason, Verdicts,
};
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4, HEADER_BYTES};
use lasthop_wire::{Metadata, Offload};

const VNET: u64 = HEADER_BYTES as u64;
const IMAGE: u64 = IMAGE_FETCH_BYTES as u64;

/// Bytes alone; ring words are the subject of `idle_ports`.
fn bytes_during(work: impl FnOnce()) -> (u64, u64, u64) {
    let AccessCounts { read_bytes, written_bytes, moved_bytes, .. } = counted::during(work);
    (read_bytes, written_bytes, moved_bytes)
}

/// The counts of one copy of `len` bytes: read, written, moved.
fn one_copy(len: usize) -> (u64, u64, u64) {
    let image = (len as u64).min(IMAGE);
    (VNET + image, VNET + image, len as u64 - image)
}

#[test]
fn a_plain_packet_is_copied_once() {
    for len in [60, 128, 129, 1514, 9014, 65_000] {
        // In one piece, in two with the header apart, and in several.
        for cuts in [&[][..], &[HEADER_BYTES], &[12, 40, 100, 1000]] {
            let (mut fabric, mut sender, mut receiver) = flooding_pair(64);
            receiver.post(64);
            let sent = frame(2, 1, len);
            assert!(sender.queue_cut(&sent, Offload::default(), cuts));
            let counts = bytes_during(|| assert_eq!(fabric.visit(sender.tx_ring(), 0), 1));
            assert_eq!(counts, one_copy(len), "{len} bytes, cut at {cuts:?}");
            assert_eq!(receiver.receive().unwrap().frame, sent);
            assert_conserved(&fabric, &[sender.port, receiver.port]);
        }
    }
}

#[test]
fn a_batch_is_copied_once() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(64);
    receiver.post(64);
    (0..32).for_each(|_| assert!(sender.queue(&frame(2, 1, 500), Offload::default())));
    let counts = bytes_during(|| assert_eq!(fabric.visit(sender.tx_ring(), 0), 32));
    let (read, written, moved) = one_copy(500);
    assert_eq!(counts, (32 * read, 32 * written, 32 * moved));
    assert_conserved(&fabric, &[sender.port, receiver.port]);
}

#[test]
fn a_flood_reads_the_image_once_and_copies_once_for_each_receiver() {
    let mut fabric = Fabric::new(Arc::new(ByLastByte { flooded: 1..=5 })).unwrap();
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receivers: Vec<_> =
        (2..=5).map(|port| TestGuest::attach(&mut fabric, port, everything(), 64, 2048)).collect();
    receivers.iter_mut().for_each(|receiver| receiver.post(64));
    assert!(sender.queue(&frame(0xff, 1, 1514), Offload::default()));
    let counts = bytes_during(|| assert_eq!(fabric.visit(sender.tx_ring(), 0), 1));
    let (read, written, moved) = one_copy(1514);
    assert_eq!(counts, (read, 4 * written, 4 * moved));
    assert_conserved(&fabric, &[1, 2, 3, 4, 5].map(PortId));
}

/// A TCP packet with a partial checksum, in segments of `gso_size` bytes unless that is 0.
fn tcp_packet(payload_len: usize, gso_size: u16) -> (Vec<u8>, Offload) {
    let (bytes, csum_start) = tcp_frame(false, &vec![7; payload_len]);
    let offload = Offload {
        flags: F_NEEDS_CSUM,
        gso_type: if gso_size > 0 { GSO_TCPV4 } else { 0 },
        gso_size,
        hdr_len: 0,
        csum_start: csum_start as u16,
        csum_offset: 16,
    };
    (bytes, offload)
}

/// Sends a packet to a receiver without offloads. Returns the counts and the received frames.
fn finished((bytes, offload): (Vec<u8>, Offload)) -> ((u64, u64, u64), Vec<Vec<u8>>) {
    let (mut fabric, mut sender, _) = flooding_pair(64);
    let plain =
        Capabilities { csum: false, tso4: false, tso6: false, ecn: false, uso: false, ..everything() };
    fabric.remove_port(PortId(2));
    let mut receiver = TestGuest::attach(&mut fabric, 2, plain, 64, 2048);
    receiver.post(64);
    assert!(sender.queue(&bytes, offload));
    let counts = bytes_during(|| {
        fabric.visit(sender.tx_ring(), 0);
    });
    assert_conserved(&fabric, &[sender.port, receiver.port]);
    (counts, std::iter::from_fn(|| receiver.receive()).map(|received| received.frame).collect())
}

/// The sum is of the bytes that the copy holds in registers; only the two bytes of the field are written once more.
#[test]
fn a_software_checksum_costs_no_second_copy() {
    let (packet, offload) = tcp_packet(1400, 0);
    let (read, written, moved) = one_copy(packet.len());
    let (counts, frames) = finished((packet, offload));
    assert_eq!(counts, (read, written + 2, moved));
    assert_eq!(frames.len(), 1);
}

/// Software segmentation writes the headers once for each segment, from the image. The payload moves once.
#[test]
fn software_segmentation_repeats_only_the_headers() {
    const HEADERS: u64 = 14 + 20 + 20;
    let (packet, offload) = tcp_packet(14_000, 1400);
    let len = packet.len() as u64;
    let (counts, frames) = finished((packet, offload));
    assert_eq!(frames.len(), 10);
    let fields = 10 * 2;
    let in_image = IMAGE - HEADERS;
    assert_eq!(counts, (VNET + IMAGE, 10 * (VNET + HEADERS) + in_image + fields, len - IMAGE));
}

/// A packet that waits for its receiver stays in its sender's memory, but for its image, and is copied once in the end.
#[test]
fn a_packet_that_waits_is_copied_once_when_there_are_buffers() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(64);
    assert!(sender.queue(&frame(2, 1, 1514), Offload::default()));
    let fetched = bytes_during(|| assert_eq!(fabric.visit(sender.tx_ring(), 0), 1));
    assert_eq!(fetched, (VNET + IMAGE, 0, 0), "no copy");
    receiver.post(64);
    let delivered = bytes_during(|| assert!(fabric.drain_waiting()));
    assert_eq!(delivered.1 + delivered.2, VNET + 1514);
    assert_eq!(delivered, (0, VNET + IMAGE, 1514 - IMAGE));
    assert_eq!(receiver.receive().unwrap().frame, frame(2, 1, 1514));
    assert_conserved(&fabric, &[sender.port, receiver.port]);
}

/// Detaching is a second copy: a guest with VIRTIO_F_IN_ORDER gets its chains back in order, so packets that wait for a slow
/// receiver move to memory of the switch when later ones are delivered.
#[test]
fn a_detached_packet_is_copied_twice() {
    let mut fabric = Fabric::new(Arc::new(ByLastByte { flooded: 2..=3 })).unwrap();
    let mut sender = TestGuest::attach_in_order(&mut fabric, 1, 256, 2048);
    let mut slow = TestGuest::attach(&mut fabric, 2, everything(), 256, 2048);
    let mut fast = TestGuest::attach(&mut fabric, 3, everything(), 256, 2048);
    fast.post(64);
    assert!(sender.queue(&frame(2, 1, 1514), Offload::default()));
    assert!(sender.queue(&frame(3, 1, 60), Offload::default()));
    let counts = bytes_during(|| while fabric.visit(sender.tx_ring(), 0) > 0 {});
    let (_, plain_written, plain_moved) = one_copy(60);
    assert_eq!(sender.counters(&fabric).detached, 1);
    assert_eq!((counts.1, counts.2), (plain_written, plain_moved + VNET + 1514), "the first copy");
    slow.post(64);
    let delivered = bytes_during(|| _ = fabric.drain(slow.tx_ring()));
    assert_eq!(delivered.1 + delivered.2, VNET + 1514, "the second copy");
    assert_eq!(slow.receive().unwrap().frame, frame(2, 1, 1514));
    assert_conserved(&fabric, &[1, 2, 3].map(PortId));
}

/// Sends each packet to port 2, and to the control plane.
struct Asking;

impl Module for Asking {
    fn name(&self) -> &'static str {
        "asking"
    }

    fn decide(&self, batch: &Batch<'_>, _: u64, verdicts: &mut Verdicts) {
        for packet in 0..batch.headers.len() as u16 {
            assert!(verdicts.upcall(Upcall {
                packet,
                image: packet,
                truncate_len_bytes: u32::MAX,
                reason: UpcallReason::Action { flow: 1, step: 1 },
                metadata: Metadata::default(),
                ticket: 0,
                origin: 0,
            }));
            verdicts.output(packet.into(), PortId(2));
        }
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}

/// A packet that is forwarded and sent to the control plane is copied once for each of the two.
#[test]
fn an_upcall_is_a_copy_of_its_own() {
    let mut fabric = Fabric::new(Arc::new(Asking)).unwrap();
    let (mut writers, mut reader) =
        upcalls(1, UpcallLimits { packets: 16, bytes: 200_000, rate: 0 }).unwrap();
    fabric.set_upcalls(writers.pop());
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 64, 2048);
    receiver.post(64);
    assert!(sender.queue(&frame(2, 1, 1514), Offload::default()));
    let counts = bytes_during(|| assert_eq!(fabric.visit(sender.tx_ring(), 0), 1));
    let (read, written, moved) = one_copy(1514);
    assert_eq!(counts, (read + 1514 - IMAGE, written, moved));
    assert_eq!(reader.pop(&mut Vec::new()).unwrap().len_bytes, 1514);
    assert_conserved(&fabric, &[sender.port, receiver.port]);
}

/// A capture copies up to its snap length from the sender's memory; without one there is no such copy.
#[test]
fn a_capture_is_a_copy_of_its_own() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(64);
    let watch = Watch {
        ports: vec![PortId(2)],
        inbound: false,
        outbound: true,
        drops: false,
        snap_len_bytes: TAP_FRAME_BYTES_MAX as u32,
        buffer_bytes: 1 << 20,
    };
    let (tap, _reader) = tap(1, &watch, &(Arc::new(|| 0_u64) as _)).unwrap();
    fabric.add_tap(tap);
    receiver.post(64);
    assert!(sender.queue(&frame(2, 1, 1514), Offload::default()));
    let counts = bytes_during(|| assert_eq!(fabric.visit(sender.tx_ring(), 0), 1));
    let (read, written, moved) = one_copy(1514);
    assert_eq!(counts, (read + 1514 - IMAGE, written, moved));
    assert_conserved(&fabric, &[sender.port, receiver.port]);
}
