//! Receivers that negotiated large frames and have no room for one get its segments.

use lasthop_fabric::bounds::PACKET_BUFFERS_MAX;
use lasthop_module_api::DropReason;

use crate::header::NEEDS_CSUM;
use crate::model::{Offloads, Received, Sent};
use crate::packet::Checksum;
use crate::peer::{Layout, Peer};
use crate::samples::samples;
use crate::support::{assert_conserved, flooding_fabric};

/// Sends 64 KiB of each kind to a receiver that accepts all offloads, into `count` posted buffers of `buffer_bytes`
/// each. Returns the received frames, and the expected ones, segmented or whole.
fn send_to(mergeable: bool, buffer_bytes: usize, count: u32) -> Vec<[Vec<Received>; 3]> {
    let sets = Offloads::all();
    let (none, everything) = (sets[0], sets[sets.len() - 1]);
    let csum = Offloads { csum: true, ..none };
    let mut results = Vec::new();
    for sample in samples().into_iter().filter(|sample| sample.packet.payload.len() > 60_000) {
        let mut fabric = flooding_fabric(2);
        let mut sender = Peer::attach(&mut fabric, 1, none.capabilities(true, 12));
        let mut receiver = Peer::with_rings(&mut fabric, 2, everything.capabilities(mergeable, 12), count);
        (0..count).for_each(|_| receiver.post(buffer_bytes, &Layout::default()));
        let (packet, gso_size) = (sample.packet, Some(sample.size));
        let item = Sent { packet, checksum: Checksum::Partial, gso_size };
        sender.send(&mut fabric, item.header(), &item.frame(), &Layout::default());
        let mut received = Vec::new();
        while !sender.is_done() || receiver.has_received() {
            received.extend(std::iter::from_fn(|| receiver.receive()));
            fabric.drain(receiver.ring());
        }
        assert_conserved(&fabric, &[sender.port, receiver.port]);
        let drops = fabric.counters(sender.port).unwrap().rx_drops;
        assert_eq!(drops.total(), drops.of(DropReason::RxBufferSmall));
        results.push([received, item.received(csum), item.received(everything)]);
    }
    assert_eq!(results.len(), 3);
    results
}

#[test]
fn small_rings_get_segments() {
    // Such a guest never posts more than 16 buffers of 1536 bytes.
    for [received, cut, _] in send_to(true, 1536, 16) {
        assert!(received == cut && cut.len() > 40 && cut[0].0.flags == NEEDS_CSUM);
    }
}

#[test]
fn small_buffers_that_are_not_merged_get_segments() {
    assert!(send_to(false, 1600, 128).iter().all(|[received, cut, _]| received == cut));
}

#[test]
fn more_buffers_than_a_packet_may_span_are_not_needed_for_segments() {
    let too_small = 65_000 / PACKET_BUFFERS_MAX;
    assert!(send_to(true, too_small, 128).iter().all(|[received, cut, _]| received == cut));
    let enough = 65_600_usize.div_ceil(PACKET_BUFFERS_MAX);
    assert!(send_to(true, enough, 128).iter().all(|[received, _, whole]| received == whole));
}

#[test]
fn segments_without_room_are_dropped_as_such() {
    assert!(send_to(false, 1400, 128).iter().all(|[received, ..]| received.is_empty()));
}
