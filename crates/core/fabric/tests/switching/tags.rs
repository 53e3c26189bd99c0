//! Copies of one packet with different tags: every byte is right, at every receiver and after any wait.

use std::sync::Arc;

use crate::support::{Received, TestGuest, assert_conserved, everything, frame};
use crate::tagging::{Retagging, tagged, untagged};
use crate::tcp::{capabilities, check_tcp, tcp_frame};
use lasthop_fabric::Fabric;
use lasthop_fabric::bounds::{FRAME_BYTES_MAX, WAITING_NS_MAX};
use lasthop_module_api::{DropReason, PortId, TagEdit};
use lasthop_wire::Offload;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_NONE, GSO_TCPV4, GSO_TCPV6};
use proptest::prelude::*;

const PORTS: [PortId; 4] = [PortId(1), PortId(2), PortId(3), PortId(4)];

fn fabric(edits: [Option<TagEdit>; 3]) -> Fabric {
    let to = PORTS[1..].iter().copied().zip(edits).collect();
    Fabric::new(Arc::new(Retagging(to))).unwrap()
}

/// The tag of the copy of a frame that arrived with `tci`.
fn expected_tci(tci: Option<u16>, edit: Option<TagEdit>) -> Option<u16> {
    match edit {
        None => tci,
        Some(TagEdit::Pop) => None,
        Some(TagEdit::Push(vid)) => Some(vid),
        Some(TagEdit::Rename(vid)) => tci.map(|tci| tci & 0xf000 | vid),
    }
}

/// An edit that the frame allows.
fn edit(is_tagged: bool) -> BoxedStrategy<Option<TagEdit>> {
    let vid = 1..4095_u16;
    if is_tagged {
        let rename = vid.prop_map(|vid| Some(TagEdit::Rename(vid)));
        prop_oneof![Just(None), Just(Some(TagEdit::Pop)), rename].boxed()
    } else {
        prop_oneof![Just(None), vid.prop_map(|vid| Some(TagEdit::Push(vid)))].boxed()
    }
}

/// The tag of a frame, and the edits of its three copies.
fn way() -> impl Strategy<Value = (Option<u16>, [Option<TagEdit>; 3])> {
    prop::option::of(1..0xffff_u16).prop_flat_map(|tci| {
        let edit = || edit(tci.is_some());
        (Just(tci), [edit(), edit(), edit()])
    })
}

/// Receives until no frame is left. Posts the buffers again.
fn receive_all(fabric: &mut Fabric, receiver: &mut TestGuest) -> Vec<Received> {
    let mut got = Vec::new();
    for _ in 0..100 {
        while let Some(received) = receiver.receive() {
            got.push(received);
        }
        fabric.drain(receiver.tx_ring());
        assert_conserved(fabric, &PORTS);
    }
    got
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_receiver_gets_its_form(
        (tci, edits) in way(),
        takes in [capabilities(), capabilities(), capabilities()],
        v6 in any::<bool>(),
        payload_len in prop_oneof![1_usize..2000, 1_usize..65_000],
        gso_size in 536_u16..9000,
        buffer_bytes in 1500_u32..6000,
        posted in 0_u32..60,
        cuts in proptest::collection::vec(0_usize..65_000, 0..6),
    ) {
        let gso = payload_len > usize::from(gso_size);
        let payload: Vec<u8> = (0..payload_len).map(|at| (at * 13 + at / 251) as u8).collect();
        let (plain, csum_start) = tcp_frame(v6, &payload);
        let kind = if v6 { GSO_TCPV6 } else { GSO_TCPV4 };
        let offload = Offload {
            flags: F_NEEDS_CSUM,
            gso_type: if gso { kind } else { GSO_NONE },
            gso_size: if gso { gso_size } else { 0 },
            hdr_len: if gso { csum_start as u16 + 20 } else { 0 },
            csum_start: csum_start as u16,
            csum_offset: 16,
        };
        let (bytes, sent) = tci.map_or_else(|| (plain.clone(), offload), |tci| tagged(&plain, offload, tci));
        let mut fabric = fabric(edits);
        let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
        let mut receivers: Vec<_> = (2..).zip(takes).map(|(port, takes)| {
            let room = if takes.mergeable { buffer_bytes } else { 66_000 };
            TestGuest::attach(&mut fabric, port, takes, 64, room)
        }).collect();
        receivers.iter_mut().for_each(|receiver| receiver.post(posted));
        let mut cuts = cuts;
        cuts.sort_unstable();
        prop_assert!(sender.queue_cut(&bytes, sent, &cuts));
        fabric.visit(sender.tx_ring(), 0);
        assert_conserved(&fabric, &PORTS);
        for ((receiver, takes), edit) in receivers.iter_mut().zip(takes).zip(edits) {
            receiver.post(64); // waiting packets keep their tag
            fabric.drain(receiver.tx_ring());
            let got = receive_all(&mut fabric, receiver);
            let takes_gso = takes.csum && if v6 { takes.tso6 } else { takes.tso4 };
            let segments = if gso && !takes_gso { payload_len.div_ceil(usize::from(gso_size)) } else { 1 };
            prop_assert_eq!(got.len(), segments);
            let (mut sequence, mut reassembled) = (1_000_000, Vec::new());
            for received in &got {
                let plain_again =
                    expected_tci(tci, edit).map_or_else(|| received.clone(), |tci| untagged(received, tci));
                prop_assert_eq!(plain_again.offload.needs_csum(), takes.csum);
                let (at, part) = check_tcp(&plain_again);
                prop_assert_eq!(at, sequence);
                sequence += part.len() as u32;
                reassembled.extend(part);
                if segments == 1 && takes.csum {
                    prop_assert!(plain_again.frame == plain, "not a byte differs");
                    prop_assert_eq!(plain_again.offload, offload, "nor does the metadata");
                }
            }
            prop_assert!(reassembled == payload, "payload differs");
            let bytes: u64 = got.iter().map(|received| received.frame.len() as u64).sum();
            prop_assert_eq!(receiver.counters(&fabric).tx_bytes, bytes, "bytes are counted as they were delivered");
        }
        fabric.expire(WAITING_NS_MAX);
        assert_conserved(&fabric, &PORTS);
        prop_assert_eq!(sender.counters(&fabric).rx_drops.total(), 0);
        prop_assert_eq!((sender.reclaim(), sender.in_flight()), (1, 0), "the chain came back");
    }
}

#[test]
fn short_frames_go_together_in_the_form_of_each_receiver() {
    let mut fabric = fabric([Some(TagEdit::Push(5)), None, Some(TagEdit::Push(5))]);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receivers = [2, 3, 4].map(|port| TestGuest::attach(&mut fabric, port, everything(), 64, 2048));
    receivers.iter_mut().for_each(|receiver| receiver.post(64));
    let frames: Vec<_> = (0..30).map(|n| frame(9, n, 14 + 7 * usize::from(n))).collect();
    frames.iter().for_each(|frame| assert!(sender.queue(frame, Offload::default())));
    fabric.visit(sender.tx_ring(), 0);
    for (receiver, tci) in receivers.iter_mut().zip([Some(5), None, Some(5)]) {
        for frame in &frames {
            let received = receiver.receive().expect("a frame");
            let expected = tci.map_or_else(|| frame.clone(), |tci| tagged(frame, Offload::default(), tci).0);
            assert_eq!((received.frame, received.offload), (expected, Offload::default()));
        }
        assert_eq!(receiver.receive(), None);
    }
    assert_conserved(&fabric, &PORTS);
}

/// A tag may make a frame too long: the receiver of the untagged copy gets it, and the tagged copy is accounted for.
#[test]
fn a_copy_that_cannot_be_made_is_a_drop_of_its_own() {
    let mut fabric = fabric([Some(TagEdit::Push(5)), None, None]);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receivers = [2, 3, 4].map(|port| TestGuest::attach(&mut fabric, port, everything(), 64, 66_000));
    receivers.iter_mut().for_each(|receiver| receiver.post(4));
    for (len, arrives) in [(FRAME_BYTES_MAX - 4, 1), (FRAME_BYTES_MAX - 3, 0)] {
        assert!(sender.queue(&frame(9, 1, len as usize), Offload::default()));
        fabric.visit(sender.tx_ring(), 0);
        let got = receivers.each_mut().map(|receiver| receive_all(&mut fabric, receiver).len());
        assert_eq!(got, [arrives, 1, 1], "{len} bytes");
    }
    let counters = sender.counters(&fabric);
    assert_eq!((counters.rx_drops.of(DropReason::TooLong), counters.rx_drops.total()), (1, 1));
    assert_eq!((counters.rx_packets, counters.copies_added, counters.forwarded), (2, 4, 5));
    sender.reclaim();
    assert_eq!(sender.in_flight(), 0, "both chains came back");
}

#[test]
fn a_tag_needs_room_in_the_receivers_buffer() {
    let mut fabric = fabric([Some(TagEdit::Push(5)), None, None]);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let merging_not = lasthop_fabric::Capabilities { mergeable: false, ..everything() };
    let mut receivers = [2, 3].map(|port| TestGuest::attach(&mut fabric, port, merging_not, 64, 1526));
    let mut third = TestGuest::attach(&mut fabric, 4, everything(), 64, 1526);
    receivers.iter_mut().chain([&mut third]).for_each(|receiver| receiver.post(4));
    assert!(sender.queue(&frame(9, 1, 1514), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    assert_eq!(receivers[0].counters(&fabric).tx_drops.of(DropReason::RxBufferSmall), 1);
    assert!(
        receivers[0].receive().is_none() && receivers[1].receive().is_some() && third.receive().is_some()
    );
    assert_conserved(&fabric, &PORTS);
}

/// A guest's checksum must not be in bytes that the switch decides on.
#[test]
fn a_checksum_in_the_link_header_is_refused() {
    let mut fabric = fabric([None, None, None]);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, lasthop_fabric::Capabilities::default(), 64, 2048);
    receiver.post(8);
    for csum_start in [0, 6, 13] {
        let offload = Offload { flags: F_NEEDS_CSUM, csum_start, csum_offset: 0, ..Offload::default() };
        assert!(sender.queue(&frame(9, 1, 100), offload));
    }
    fabric.visit(sender.tx_ring(), 0);
    assert_eq!((receiver.receive(), sender.counters(&fabric).rx_drops.of(DropReason::BadCsum)), (None, 3));
}
