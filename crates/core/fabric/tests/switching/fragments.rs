//! Fragments at an action `ct`: they wait outside of their guest's ring, and their packet is tracked whole and
//! delivered as fragments.

use std::sync::Arc;

use crate::support::{TestGuest, assert_conserved, everything};
use lasthop_fabric::{Fabric, UpcallLimits, UpcallReader, upcalls};
use lasthop_flow::{Action, Conntrack, CtKey, Ethernet, FlowKey, Match, Nat, NatRange, NatSource, ct_state};
use lasthop_flowtable::{Execution, FlowModule, FlowSpec, describe, suspended_zone};
use lasthop_module_api::{DropReason, PortId, UpcallReason};
use lasthop_reassembly::{FragmentLoss, FragmentPlace, FragmentPool, LostFragments};
use lasthop_wire::{Fragment, Fragmentation, Layers, Metadata, Offload, Sum};
use proptest::prelude::*;

const LIMITS: UpcallLimits = UpcallLimits { packets: 256, bytes: 400_000, rate: 0 };
const PORTS: [PortId; 2] = [PortId(1), PortId(2)];
const ZONE: u16 = 9;

/// A switch with a flow table, and the work of its main thread.
struct Switch {
    fabric: Fabric,
    module: Arc<FlowModule>,
    reader: UpcallReader,
    guests: [TestGuest; 2],
    pool: FragmentPool,
    lost: Vec<LostFragments>,
    /// Frames of the upcalls, with the size of their fragments.
    asked: Vec<(Vec<u8>, u16)>,
}

impl Switch {
    fn new() -> Self {
        let module = Arc::new(FlowModule::default());
        let mut fabric = Fabric::new(Arc::clone(&module) as Arc<_>).unwrap();
        let (mut writers, reader) = upcalls(1, LIMITS).unwrap();
        fabric.set_upcalls(writers.pop());
        let mut guests = PORTS.map(|port| TestGuest::attach(&mut fabric, port.0, everything(), 64, 2048));
        guests.iter_mut().for_each(|guest| guest.post(64));
        let (pool, lost, asked) = (FragmentPool::default(), Vec::new(), Vec::new());
        Self { fabric, module, reader, guests, pool, lost, asked }
    }

    /// Installs `actions` for all packets of this pass, with this `ct_state` if given.
    fn install(&self, recirc_id: u32, state: Option<u32>, actions: Vec<Action>) {
        let ct = |state| CtKey { state, ..CtKey::default() };
        let ethernet = Some(Ethernet::default());
        let key = FlowKey { recirc_id: Some(recirc_id), ethernet, ct: ct(state), ..FlowKey::default() };
        let mask =
            FlowKey { recirc_id: Some(u32::MAX), ct: ct(state.map(|_| u32::MAX)), ..FlowKey::default() };
        let matching = Match { key, mask: Some(mask) };
        let spec = FlowSpec { ufid: None, matching, actions, is_probe: false };
        self.module.table().install(spec).unwrap();
    }

    /// Guest 1 sends frames; the main thread's work is done after each.
    fn send(&mut self, frames: &[Vec<u8>]) {
        for frame in frames {
            assert!(self.guests[0].queue(frame, Offload::default()));
            while self.fabric.visit(self.guests[0].tx_ring(), 0) > 0 {}
            assert_eq!(self.guests[0].reclaim(), 1, "a fragment holds up no ring");
            self.answer();
        }
    }

    fn answer(&mut self) {
        let mut bytes = Vec::new();
        while let Some(record) = self.reader.pop(&mut bytes) {
            let UpcallReason::Suspended { flow, .. } = record.reason else {
                assert_eq!(record.reason, UpcallReason::Miss);
                self.module.settle(record.ticket);
                self.fabric.drop_injected(record.port, DropReason::NoFlow);
                self.asked.push((bytes.clone(), record.mtu_bytes));
                continue;
            };
            let words = record.take_suspended(&mut bytes);
            let place =
                FragmentPlace { datapath: 1, zone: suspended_zone(&words).unwrap(), source: record.port.0 };
            let whole = self.pool.take(place, std::mem::take(&mut bytes), 0, &mut self.lost);
            for lost in self.lost.drain(..) {
                assert_eq!(lost.reason, FragmentLoss::Overlap);
                (0..lost.fragments)
                    .for_each(|_| self.fabric.drop_injected(record.port, DropReason::FragOverlap));
            }
            let Some(whole) = whole else { continue };
            let head = &whole.frame[..whole.frame.len().min(128)];
            let cut = (whole.mtu_bytes, whole.identification);
            let offload = Fragmentation::offload(head, whole.frame.len() as u32, cut).unwrap();
            let execution = Execution::resumed(record.metadata, flow, &words).unwrap();
            self.module.execute_next(execution).unwrap();
            self.fabric.inject_for(record.port, &whole.frame, offload, 0).unwrap();
        }
    }

    fn received(&mut self) -> Vec<Vec<u8>> {
        let all: Vec<_> = std::iter::from_fn(|| self.guests[1].receive()).map(|got| got.frame).collect();
        self.guests[1].post(all.len() as u32);
        assert_conserved(&self.fabric, &PORTS);
        all
    }
}

fn sum_of(frame: &[u8]) -> u16 {
    let layers = Layers::parse(frame).unwrap();
    let l4 = &frame[usize::from(layers.l4_offset)..];
    let mut sum = Sum::default();
    sum.add(layers.addresses(frame));
    sum.add_word(17);
    sum.add_word(l4.len() as u16);
    sum.add(l4);
    sum.finish()
}

/// A UDP packet with a valid checksum.
fn packet(is_ipv6: bool, payload_bytes: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    let len = (8 + payload_bytes) as u16;
    if is_ipv6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
        frame.extend(len.to_be_bytes());
        frame.extend([17, 64]);
        frame.extend([0xfc; 16]);
        frame.extend([0xfd; 16]);
    } else {
        frame.extend([8, 0, 0x45, 0]);
        frame.extend((20 + len).to_be_bytes());
        frame.extend([0x12, 0x34, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        let mut sum = Sum::default();
        sum.add(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.finish().to_be_bytes());
    }
    let l4 = frame.len();
    frame.extend([0x30, 0x39, 0, 53]);
    frame.extend(len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend((0..payload_bytes).map(|at| ((at * 31) >> 3) as u8));
    let sum = sum_of(&frame).to_be_bytes();
    frame[l4 + 6..l4 + 8].copy_from_slice(&sum);
    frame
}

fn cut(frame: &[u8], mtu_bytes: u16) -> Vec<Vec<u8>> {
    let (head, len) = (&frame[..128], frame.len() as u32);
    let offload = Fragmentation::offload(head, len, (mtu_bytes, 77)).unwrap();
    let plan = Fragmentation::plan(head, &offload, len).unwrap();
    let all = (0..plan.count()).map(|index| {
        let mut out = vec![0; plan.header_len() as usize];
        plan.write_header(index, head, &mut out);
        let payload = plan.payload(index);
        out.extend(&frame[payload.start as usize..payload.end as usize]);
        out
    });
    all.collect()
}

fn put_together(frames: &[Vec<u8>]) -> Vec<u8> {
    let (mut pool, mut lost) = (FragmentPool::default(), Vec::new());
    let place = FragmentPlace { datapath: 0, zone: 0, source: 0 };
    let mut whole = frames.iter().filter_map(|frame| pool.take(place, frame.clone(), 0, &mut lost));
    whole.next().expect("all fragments are there").frame
}

fn ct(is_commit: bool, nat: Option<Nat>) -> Action {
    Action::Ct(Box::new(Conntrack { zone: Some(ZONE), is_commit, nat, ..Conntrack::default() }))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any sizes and order the receiver gets the same fragments, in order, and there is one connection.
    #[test]
    fn fragments_pass_as_they_came(
        is_ipv6: bool,
        payload_bytes in 1500..12_000_usize,
        mtu_bytes in 576..1501_u16,
        first in 0..30_usize,
    ) {
        let mut switch = Switch::new();
        switch.install(0, None, vec![ct(true, None), Action::Output(2)]);
        let whole = packet(is_ipv6, payload_bytes);
        let fragments = cut(&whole, mtu_bytes);
        let mut sent = fragments.clone();
        sent.rotate_left(first % fragments.len());
        switch.send(&sent[..1]);
        prop_assert!(switch.received().is_empty() && switch.pool.queued().fragments == 1);
        switch.send(&sent[1..]);
        prop_assert_eq!(switch.received(), fragments);
        prop_assert_eq!(switch.module.table().connections().len(), 1);
        prop_assert_eq!(switch.pool.queued().fragments, 0);
    }
}

#[test]
fn behind_ct_a_packet_is_whole_for_flows_and_has_its_ports() {
    for is_ipv6 in [false, true] {
        let mut switch = Switch::new();
        switch.install(0, None, vec![ct(true, None), Action::Recirc(1)]);
        let whole = packet(is_ipv6, 4000);
        switch.send(&cut(&whole, 1500));
        assert!(switch.received().is_empty());
        let [(asked, mtu_bytes)] = &switch.asked[..] else {
            panic!("{} are asked about", switch.asked.len())
        };
        assert_eq!(
            (asked, *mtu_bytes <= 1500 && *mtu_bytes > 1484),
            (&whole, true),
            "one packet is asked about"
        );
        let key = describe(asked, &Metadata::default());
        assert_eq!(key.udp.map(|ports| (ports.src, ports.dst)), Some((12345, 53)));
    }
}

#[test]
fn a_translated_packet_leaves_as_fragments_with_right_checksums() {
    let range = NatRange { ip_min: "10.9.9.9".parse().ok(), ..NatRange::default() };
    let nat = Nat { source: Some(NatSource::Src), range, ..Nat::default() };
    let mut switch = Switch::new();
    switch.install(0, None, vec![ct(true, Some(nat)), Action::Recirc(1)]);
    switch.install(1, Some(ct_state::TRACKED | ct_state::NEW | ct_state::SRC_NAT), vec![Action::Output(2)]);
    let mut fragments = cut(&packet(false, 5000), 1400);
    fragments.reverse();
    switch.send(&fragments);
    let received = switch.received();
    assert_eq!(received.len(), fragments.len());
    for frame in &received {
        assert_eq!(frame[26..30], [10, 9, 9, 9]);
        let mut sum = Sum::default();
        sum.add(&frame[14..34]);
        assert_eq!(sum.finish(), 0);
        assert!(Fragment::parse(frame).is_ok());
    }
    let whole = put_together(&received);
    assert_eq!((sum_of(&whole), &whole[42..]), (0, &packet(false, 5000)[42..]));
}

#[test]
fn fragments_that_overlap_are_dropped_by_name() {
    let mut switch = Switch::new();
    switch.install(0, None, vec![ct(true, None), Action::Output(2)]);
    let fragments = cut(&packet(false, 3000), 1000);
    let mut over = cut(&packet(false, 3000), 900)[1].clone();
    over[21] -= 1;
    switch.send(&[fragments[0].clone(), over, fragments[1].clone()]);
    assert!(switch.received().is_empty());
    let counters = switch.guests[0].counters(&switch.fabric);
    assert_eq!(counters.rx_drops.of(DropReason::FragOverlap), 2);
    assert_eq!((switch.pool.queued().fragments, switch.module.table().connections().len()), (1, 0));
}

#[test]
fn a_guest_cannot_send_a_frame_that_the_switch_would_cut() {
    let mut switch = Switch::new();
    switch.install(0, None, vec![Action::Output(2)]);
    let whole = packet(false, 4000);
    let offload = Fragmentation::offload(&whole[..128], whole.len() as u32, (1500, 1)).unwrap();
    assert!(offload.is_fragmented());
    assert!(switch.guests[0].queue(&whole, offload));
    while switch.fabric.visit(switch.guests[0].tx_ring(), 0) > 0 {}
    assert!(switch.received().is_empty());
    assert_eq!(switch.guests[0].counters(&switch.fabric).rx_drops.of(DropReason::BadGso), 1);
}

#[test]
fn more_fragments_than_the_queue_takes_are_dropped_by_name() {
    let mut switch = Switch::new();
    switch.install(0, None, vec![ct(true, None), Action::Output(2)]);
    let fragment = cut(&packet(false, 3000), 1500)[0].clone();
    for number in 0..600_u16 {
        let mut frame = fragment.clone();
        frame[18..20].copy_from_slice(&number.to_be_bytes());
        assert!(switch.guests[0].queue(&frame, Offload::default()));
        while switch.fabric.visit(switch.guests[0].tx_ring(), 0) > 0 {}
        switch.guests[0].reclaim();
    }
    let counters = switch.guests[0].counters(&switch.fabric);
    assert!(counters.rx_drops.of(DropReason::FragShare) >= 344, "{counters:?}");
    assert!(switch.received().is_empty());
    // The first packet of a flow still finds room.
    switch.module.table().flush(0, usize::MAX);
    assert!(switch.guests[0].queue(&packet(false, 100), Offload::default()));
    while switch.fabric.visit(switch.guests[0].tx_ring(), 0) > 0 {}
    let mut reasons = std::iter::from_fn(|| switch.reader.pop(&mut Vec::new())).map(|record| record.reason);
    assert!(reasons.any(|reason| reason == UpcallReason::Miss));
}
