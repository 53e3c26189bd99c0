//! Offload metadata between guests with different features: the payload is equal byte for byte, and checksums are right
//! at every receiver. An independent parser (etherparse) checks them.

use crate::support::{Received, TestGuest, assert_conserved, everything, flooding_fabric};
use crate::tcp::{capabilities, check_tcp, tcp_frame, tso4};
use lasthop_fabric::Capabilities;
use lasthop_fabric::bounds::WAITING_NS_MAX;
use lasthop_module_api::PortId;
use lasthop_wire::Offload;
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6};
use proptest::prelude::*;

/// Bytes of the frame that are read once, checked, and then used (`IMAGE_FETCH_BYTES`).
const READ_ONCE: usize = 128;

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_receiver_gets_the_form_it_accepts(
        receiver_takes in capabilities(),
        v6 in any::<bool>(),
        ecn in any::<bool>(),
        payload_len in 1_usize..65_000,
        gso_size in 536_u16..9000,
        buffer_bytes in 1500_u32..6000,
        posted in 4_u32..60,
        cuts in proptest::collection::vec(0_usize..65_000, 0..6),
    ) {
        let gso = payload_len > usize::from(gso_size);
        let payload: Vec<u8> = (0..payload_len).map(|at| (at * 13 + at / 251) as u8).collect();
        let (frame, csum_start) = tcp_frame(v6, &payload);
        let kind = if v6 { GSO_TCPV6 } else { GSO_TCPV4 };
        let offload = Offload {
            flags: F_NEEDS_CSUM,
            gso_type: if gso { kind | if ecn { GSO_ECN } else { 0 } } else { GSO_NONE },
            gso_size: if gso { gso_size } else { 0 },
            hdr_len: 0,
            csum_start: csum_start as u16,
            csum_offset: 16,
        };
        let takes_gso = receiver_takes.csum
            && (if v6 { receiver_takes.tso6 } else { receiver_takes.tso4 })
            && (!ecn || receiver_takes.ecn);
        // A receiver that takes whole TSO frames without merging posts buffers for them, as Linux does.
        let room = if receiver_takes.mergeable {
            buffer_bytes
        } else if receiver_takes.tso4 || receiver_takes.tso6 {
            66_000
        } else {
            9_100
        };
        let mut fabric = flooding_fabric(2);
        let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
        let mut receiver = TestGuest::attach(&mut fabric, 2, receiver_takes, 64, room);
        let mut cuts = cuts;
        cuts.sort_unstable();
        receiver.post(posted);
        prop_assert!(sender.queue_cut(&frame, offload, &cuts));
        fabric.visit(sender.tx_ring(), 0);
        let mut got = Vec::new();
        for _ in 0..200 {
            while let Some(received) = receiver.receive() {
                got.push(received);
            }
            fabric.drain(receiver.tx_ring());
            assert_conserved(&fabric, &[PortId(1), PortId(2)]);
        }
        if got.is_empty() {
            // Drops are allowed only if the whole packet does not fit a mergeable ring.
            let needs = (frame.len() as u32 + 12).div_ceil(room);
            prop_assert!(receiver_takes.mergeable && needs > posted.min(64), "lost: {:?}", sender.counters(&fabric));
            fabric.expire(WAITING_NS_MAX);
            assert_conserved(&fabric, &[PortId(1), PortId(2)]);
            return Ok(());
        }
        let segments = if gso && !takes_gso { payload_len.div_ceil(usize::from(gso_size)) } else { 1 };
        prop_assert_eq!(got.len(), segments);
        let mut expected_sequence = 1_000_000;
        let mut reassembled = Vec::new();
        for received in &got {
            prop_assert_eq!(received.offload.is_gso(), gso && takes_gso);
            prop_assert_eq!(received.offload.needs_csum(), receiver_takes.csum);
            let (sequence, part) = check_tcp(received);
            prop_assert_eq!(sequence, expected_sequence);
            expected_sequence += part.len() as u32;
            reassembled.extend(part);
        }
        prop_assert!(reassembled == payload, "payload differs");
        let counters = sender.counters(&fabric);
        prop_assert_eq!(counters.segments_added, segments as u64 - 1);
        prop_assert_eq!(counters.forwarded, segments as u64);
        if gso && takes_gso {
            prop_assert_eq!(got[0].offload.gso_size, gso_size, "metadata passes untouched");
            prop_assert!(got[0].frame == frame, "so does the frame");
        }
        assert_conserved(&fabric, &[PortId(1), PortId(2)]);
    }
}

#[test]
fn headers_that_change_after_the_check_are_delivered_as_they_were_checked() {
    for segmented in [false, true] {
        let mut fabric = flooding_fabric(2);
        let mut sender = TestGuest::attach(&mut fabric, 2, everything(), 64, 2048);
        let takes = if segmented { Capabilities { tso4: false, ..everything() } } else { everything() };
        let mut receiver = TestGuest::attach(&mut fabric, 1, takes, 64, 2048);
        let (frame, csum_start) = tcp_frame(false, &[7; 3000]);
        let offload = tso4(csum_start, 1000);
        assert!(sender.queue(&frame, offload));
        fabric.visit(sender.tx_ring(), 0);
        assert_eq!(sender.counters(&fabric).waiting, 1, "checked, and there are no buffers yet");
        // Overwrites all bytes that were checked: addresses, lengths, segment size and checksum position.
        sender.overwrite(&[0xff; lasthop_wire::vnet::HEADER_BYTES + READ_ONCE]);
        receiver.post(64);
        assert!(fabric.drain(receiver.tx_ring()));
        let received: Vec<Received> = std::iter::from_fn(|| receiver.receive()).collect();
        assert_eq!(received.len(), if segmented { 3 } else { 1 });
        for one in &received {
            assert_eq!(one.frame[..14], frame[..14], "the addresses");
            assert_eq!(
                (one.frame[23], &one.frame[26..34]),
                (frame[23], &frame[26..34]),
                "protocol, IP addresses"
            );
        }
        assert_eq!(received.iter().map(|one| one.frame.len() - 54).sum::<usize>(), 3000);
        assert_conserved(&fabric, &[PortId(1), PortId(2)]);
    }
}

#[test]
fn a_tunnels_end_gets_large_frames_as_they_are_and_small_ones_with_their_sums() {
    let header_bytes = lasthop_wire::vnet::HEADER_BYTES + lasthop_wire::tunnel::TUNNEL_BYTES;
    let mut fabric = flooding_fabric(2);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receiver =
        TestGuest::attach(&mut fabric, 2, Capabilities { header_bytes, ..everything() }, 64, 8192);
    receiver.post(8);
    for (payload_len, gso_size) in [(3000, 1000), (100, 0)] {
        let (frame, csum_start) = tcp_frame(false, &vec![7; payload_len]);
        let gso_type = if gso_size > 0 { GSO_TCPV4 } else { GSO_NONE };
        let csum_start = csum_start as u16;
        let offload =
            Offload { flags: F_NEEDS_CSUM, gso_type, hdr_len: 54, gso_size, csum_start, csum_offset: 16 };
        assert!(sender.queue(&frame, offload));
        fabric.visit(sender.tx_ring(), 0);
        let received = receiver.receive().unwrap();
        assert_eq!(received.offload.needs_csum(), gso_size > 0);
        assert_eq!(check_tcp(&received).1.len(), payload_len);
    }
    assert_conserved(&fabric, &[PortId(1), PortId(2)]);
}
