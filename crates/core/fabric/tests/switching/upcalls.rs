//! Upcalls are whole, finished packets, taken from ports in turn and bounded per port. All are accounted for.

use std::sync::Arc;

use crate::support::{Received, TestGuest, assert_conserved, everything, frame};
use crate::tcp::{check_tcp, tcp_frame};
use lasthop_fabric::bounds::{PACKET_COST, UPCALL_COST, UPCALLS_SPARSE, VISIT_COST};
use lasthop_fabric::{Fabric, UpcallLimits, UpcallReader, UpcallRecord, upcalls};
use lasthop_module_api::{Batch, DropReason, Module, PortId, PortSettings, Upcall, UpcallReason, Verdicts};
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4, GSO_TCPV6};
use lasthop_wire::{Metadata, Offload};
use proptest::prelude::*;

const LIMITS: UpcallLimits = UpcallLimits { packets: 16, bytes: 200_000, rate: 0 };
const REASON: UpcallReason = UpcallReason::Action { flow: 7, step: 2 };

/// Sends every packet to the control plane, truncated, and some to port 2 as well.
struct UpcallModule {
    truncate_len_bytes: u32,
    also_forwards: bool,
}

impl Module for UpcallModule {
    fn name(&self) -> &'static str {
        "asking"
    }

    fn decide(&self, batch: &Batch<'_>, _: u64, verdicts: &mut Verdicts) {
        for packet in 0..batch.headers.len() {
            let metadata = Metadata { in_port: batch.port.0, mark: 5, ..Metadata::default() };
            let index = packet as u16;
            let truncate_len_bytes = self.truncate_len_bytes;
            let upcall = Upcall {
                packet: index,
                image: index,
                truncate_len_bytes,
                reason: REASON,
                metadata,
                ticket: 9,
                origin: 3,
            };
            assert!(verdicts.upcall(upcall));
            if self.also_forwards {
                verdicts.output(packet, PortId(2));
            }
        }
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}

fn fabric(limits: UpcallLimits, module: UpcallModule) -> (Fabric, UpcallReader) {
    let mut fabric = Fabric::new(Arc::new(module)).unwrap();
    let (mut writers, reader) = upcalls(1, limits).unwrap();
    fabric.set_upcalls(writers.pop());
    (fabric, reader)
}

fn whole() -> UpcallModule {
    UpcallModule { truncate_len_bytes: u32::MAX, also_forwards: false }
}

fn popped(reader: &mut UpcallReader) -> Vec<(UpcallRecord, Vec<u8>)> {
    let mut bytes = Vec::new();
    std::iter::from_fn(|| reader.pop(&mut bytes).map(|record| (record, bytes.clone()))).collect()
}

#[test]
fn a_paused_line_keeps_its_packets_and_delays_no_other() {
    let (mut fabric, mut reader) = fabric(LIMITS, whole());
    let mut guests = [1, 2].map(|port| TestGuest::attach(&mut fabric, port, everything(), 64, 2048));
    let mut ask = |guest: usize, fabric: &mut Fabric| {
        assert!(guests[guest].queue(&frame(9, 1, 100), Offload::default()));
        while fabric.visit(guests[guest].tx_ring(), 0) > 0 {}
    };
    for guest in [0, 0, 1, 1] {
        ask(guest, &mut fabric);
    }
    let ports = |reader: &mut UpcallReader| -> Vec<u16> {
        popped(reader).iter().map(|(record, _)| record.metadata.in_port).collect()
    };
    let first = reader.pop(&mut Vec::new()).expect("of port 1");
    reader.pause(first.line());
    assert_eq!(ports(&mut reader), [2, 2]);
    ask(0, &mut fabric);
    ask(1, &mut fabric);
    assert_eq!(ports(&mut reader), [2], "what comes later waits behind");
    reader.resume(first.line());
    reader.resume(first.line());
    assert_eq!(ports(&mut reader), [1, 1]);
    ask(0, &mut fabric);
    assert_eq!(ports(&mut reader), [1]);
    assert_conserved(&fabric, &[1, 2].map(PortId));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn packets_are_cut_and_summed_before_they_are_handed_over(
        v6: bool,
        payload_len in 1_usize..60_000,
        gso_size in 536_u16..9000,
        cuts in proptest::collection::vec(0_usize..60_000, 0..4),
    ) {
        let is_gso = payload_len > usize::from(gso_size);
        let payload: Vec<u8> = (0..payload_len).map(|at| (at * 13 + at / 251) as u8).collect();
        let (bytes, csum_start) = tcp_frame(v6, &payload);
        let kind = if v6 { GSO_TCPV6 } else { GSO_TCPV4 };
        let offload = Offload {
            flags: F_NEEDS_CSUM,
            gso_type: if is_gso { kind } else { 0 },
            gso_size: if is_gso { gso_size } else { 0 },
            hdr_len: 0,
            csum_start: csum_start as u16,
            csum_offset: 16,
        };
        let (mut fabric, mut reader) = fabric(LIMITS, whole());
        let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
        let mut cuts = cuts;
        cuts.retain(|cut| *cut < bytes.len());
        cuts.sort_unstable();
        cuts.dedup();
        cuts.retain(|cut| *cut > 0);
        prop_assert!(sender.queue_cut(&bytes, offload, &cuts));
        fabric.visit(sender.tx_ring(), 0);
        prop_assert!(fabric.take_upcalled() && !fabric.take_upcalled());
        let mut found = Vec::new();
        let records = popped(&mut reader);
        for (record, frame) in records {
            prop_assert_eq!((record.reason, record.metadata.in_port, record.metadata.mark), (REASON, 1, 5));
            prop_assert_eq!((record.len_bytes as usize, record.ticket), (frame.len(), 9));
            let received = Received { offload: Offload::default(), num_buffers: 1, frame };
            let (sequence, payload) = check_tcp(&received);
            prop_assert_eq!(sequence as usize, 1_000_000 + found.len());
            found.extend(payload);
        }
        prop_assert_eq!(found, payload);
        prop_assert_eq!((sender.reclaim(), sender.in_flight()), (1, 0));
        assert_conserved(&fabric, &[PortId(1)]);
    }
}

#[test]
fn a_port_has_so_many_on_the_way_and_others_have_their_turns() {
    let (mut fabric, mut reader) = fabric(LIMITS, whole());
    let mut guests = [1, 2, 3].map(|port| TestGuest::attach(&mut fabric, port, everything(), 64, 2048));
    for (guest, count) in guests.iter_mut().zip([40, 2, 3]) {
        (0..count).for_each(|_| assert!(guest.queue(&frame(9, 1, 100), Offload::default())));
        while fabric.visit(guest.tx_ring(), 0) > 0 {}
    }
    let ports: Vec<_> = popped(&mut reader).iter().map(|(record, _)| record.metadata.in_port).collect();
    assert_eq!(ports[..8], [1, 2, 3, 1, 2, 3, 1, 3]);
    assert_eq!(ports.iter().filter(|port| **port == 1).count(), 16);
    let counters = guests[0].counters(&fabric);
    assert_eq!((counters.forwarded, counters.rx_drops.of(DropReason::NoFlow)), (16, 24));
    assert!(guests[0].queue(&frame(9, 1, 100), Offload::default()));
    fabric.visit(guests[0].tx_ring(), 0);
    assert_eq!(popped(&mut reader).len(), 1, "what was taken is not on the way any more");
    assert_conserved(&fabric, &[1, 2, 3].map(PortId));
}

#[test]
fn a_port_with_few_packets_goes_ahead_of_those_with_many() {
    let (mut fabric, mut reader) = fabric(LIMITS, whole());
    let mut guests = [1, 2, 3, 4, 5].map(|port| TestGuest::attach(&mut fabric, port, everything(), 64, 2048));
    let mut ask = |port: usize, count: usize, fabric: &mut Fabric| {
        let guest = &mut guests[port - 1];
        (0..count).for_each(|_| assert!(guest.queue(&frame(9, 1, 100), Offload::default())));
        while fabric.visit(guest.tx_ring(), 0) > 0 {}
    };
    (1..=4).for_each(|port| ask(port, 16, &mut fabric));
    let next = |count: usize, reader: &mut UpcallReader| -> Vec<(u16, bool)> {
        let records = std::iter::from_fn(|| reader.pop(&mut Vec::new()));
        records.take(count).map(|record| (record.metadata.in_port, record.is_sparse)).collect()
    };
    let begun = next(4 * UPCALLS_SPARSE as usize, &mut reader);
    assert!(begun.iter().all(|(_, is_sparse)| *is_sparse), "each of them was quiet before: {begun:?}");
    assert_eq!(next(3, &mut reader), [(1, false), (2, false), (3, false)]);
    ask(5, 1, &mut fabric);
    assert_eq!(next(2, &mut reader), [(5, true), (4, false)]);
    ask(5, UPCALLS_SPARSE as usize + 1, &mut fabric);
    let ports: Vec<_> = next(9, &mut reader);
    assert_eq!(ports[..4], [(5, true); 4], "what a guest begins at once");
    assert_eq!(ports[4..], [1, 2, 3, 4, 5].map(|port| (port, false)), "the rest has turns");
    popped(&mut reader);
    assert_conserved(&fabric, &[1, 2, 3, 4, 5].map(PortId));
}

#[test]
fn packets_for_the_control_plane_are_charged_for_also_if_there_is_no_room() {
    let (mut fabric, _reader) = fabric(LIMITS, whole());
    let mut guest = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let (count, len) = (LIMITS.packets + 4, 100);
    (0..count).for_each(|_| assert!(guest.queue(&frame(9, 1, len), Offload::default())));
    let visited = fabric.visit_in_turn(guest.tx_ring(), 0);
    let bytes = u64::from(LIMITS.packets) * len as u64;
    assert_eq!(visited.cost, VISIT_COST + u64::from(count) * (PACKET_COST + UPCALL_COST) + bytes);
}

#[test]
fn a_rate_holds_over_time() {
    let limits = UpcallLimits { packets: 1000, rate: 100, ..LIMITS };
    let (mut fabric, mut reader) = fabric(limits, whole());
    let mut guest = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut passed = 0;
    for tenth in 1..=10 {
        (0..30).for_each(|_| assert!(guest.queue(&frame(9, 1, 100), Offload::default())));
        while fabric.visit(guest.tx_ring(), tenth * 100_000_000) > 0 {}
        guest.reclaim();
        passed += popped(&mut reader).len();
    }
    assert_eq!(passed, 100);
}

#[test]
fn copies_go_both_ways_and_are_cut_for_the_control_plane_alone() {
    let module = UpcallModule { truncate_len_bytes: 50, also_forwards: true };
    let (mut fabric, mut reader) = fabric(LIMITS, module);
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut receiver = TestGuest::attach(&mut fabric, 2, everything(), 64, 2048);
    receiver.post(4);
    assert!(sender.queue(&frame(2, 1, 300), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    let (record, bytes) = popped(&mut reader).pop().unwrap();
    assert_eq!((record.len_bytes, &bytes[..]), (300, &frame(2, 1, 300)[..50]));
    assert_eq!(receiver.receive().unwrap().frame, frame(2, 1, 300));
    assert_conserved(&fabric, &[1, 2].map(PortId));
}

#[test]
fn without_a_control_plane_packets_of_no_flow_are_lost_by_name() {
    let mut fabric = Fabric::new(Arc::new(whole())).unwrap();
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    assert!(sender.queue(&frame(2, 1, 300), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    assert_eq!(sender.counters(&fabric).rx_drops.of(DropReason::NoFlow), 1);
    assert_conserved(&fabric, &[PortId(1)]);
}
