//! A flow table in the fabric, with a small control plane: misses go up, packets come back, and flows take over in
//! order.

use std::sync::Arc;

use crate::support::{TestGuest, assert_conserved, everything, frame};
use crate::tcp::tcp_frame;
use lasthop_fabric::bounds::LEAVING_NS_MAX;
use lasthop_fabric::{Fabric, Release, UpcallLimits, UpcallReader, UpcallRecord, upcalls};
use lasthop_flow::{Action, Ethernet, FlowKey, Match, Userspace};
use lasthop_flowtable::bounds::{PENDING_NS_MAX, PENDING_PACKETS_MAX};
use lasthop_flowtable::{Execution, FlowModule, FlowSpec};
use lasthop_module_api::{DropReason, Mac, Module, PortId, PortKind, PortSettings, UpcallReason};
use lasthop_wire::vnet::{F_NEEDS_CSUM, GSO_TCPV4};
use lasthop_wire::{Metadata, Offload};

const LIMITS: UpcallLimits = UpcallLimits { packets: 64, bytes: 200_000, rate: 0 };
const PORTS: [PortId; 3] = [PortId(1), PortId(2), PortId(3)];

struct Switch {
    fabric: Fabric,
    module: Arc<FlowModule>,
    reader: UpcallReader,
    guests: [TestGuest; 3],
}

impl Switch {
    fn new() -> Self {
        Self::with(LIMITS)
    }

    fn with(limits: UpcallLimits) -> Self {
        let module = Arc::new(FlowModule::default());
        let mut fabric = Fabric::new(Arc::clone(&module) as Arc<_>).unwrap();
        let (mut writers, reader) = upcalls(1, limits).unwrap();
        fabric.set_upcalls(writers.pop());
        let mut guests = PORTS.map(|port| TestGuest::attach(&mut fabric, port.0, everything(), 64, 2048));
        guests.iter_mut().for_each(|guest| guest.post(64));
        Self { fabric, module, reader, guests }
    }

    /// Guest 1 sends frames with these numbers to the guest at port `to`.
    fn send(&mut self, to: u8, numbers: std::ops::Range<u8>, now_ns: u64) {
        for number in numbers {
            let mut bytes = frame(to, 1, 100);
            bytes[20] = number;
            assert!(self.guests[0].queue(&bytes, Offload::default()));
        }
        while self.fabric.visit(self.guests[0].tx_ring(), now_ns) > 0 {}
        self.guests[0].reclaim();
    }

    /// The control plane answers up to `count` upcalls: each packet goes to the port that its address names.
    fn answer(&mut self, count: usize) -> Vec<u8> {
        let (mut numbers, mut bytes) = (Vec::new(), Vec::new());
        while numbers.len() < count
            && let Some(record) = self.reader.pop(&mut bytes)
        {
            assert_eq!(record.reason, UpcallReason::Miss);
            let actions = [Action::Output(u32::from(bytes[5]))];
            self.execute(&record, &bytes, &actions);
            numbers.push(bytes[20]);
        }
        numbers
    }

    /// The control plane executes actions for a packet, unless its ticket has expired.
    fn execute(&mut self, record: &UpcallRecord, bytes: &[u8], actions: &[Action]) {
        if self.module.begin(record.ticket) {
            self.module
                .execute_next(Execution::new(self.module.table(), record.metadata, actions, 0).unwrap())
                .unwrap();
            self.fabric.inject_for(record.port, bytes, Offload::default(), 0).unwrap();
        } else {
            self.fabric.drop_injected(record.port, DropReason::OutOfOrder);
        }
        self.module.done(record.ticket);
    }

    fn install(&self, to: u8, actions: Vec<Action>) {
        let address = |last| Mac([2, 0, 0, 0, 0, last]);
        let key = FlowKey {
            ethernet: Some(Ethernet { src: address(1), dst: address(to) }),
            ether_type: Some(0x88b5),
            ..FlowKey::default()
        };
        let mask = FlowKey {
            ethernet: Some(Ethernet { src: Mac([0; 6]), dst: Mac([0xff; 6]) }),
            ..FlowKey::default()
        };
        self.module
            .table()
            .install(FlowSpec {
                ufid: None,
                matching: Match { key, mask: Some(mask) },
                actions,
                is_probe: false,
            })
            .unwrap();
    }

    /// Numbers of the frames that a guest received.
    fn received(&mut self, port: usize) -> Vec<u8> {
        let guest = &mut self.guests[port - 1];
        std::iter::from_fn(|| guest.receive()).map(|received| received.frame[20]).collect()
    }
}

#[test]
fn packets_keep_their_order_while_the_control_plane_decides() {
    let mut switch = Switch::new();
    switch.send(2, 0..3, 0);
    assert_eq!(switch.answer(2), [0, 1]);
    switch.install(2, vec![Action::Output(2)]);
    switch.send(2, 3..5, 1000);
    assert_eq!(switch.received(2), [0, 1], "2 is on the way, and 3 and 4 are behind it");
    assert_eq!(switch.answer(9), [2, 3, 4]);
    switch.send(2, 5..7, 2000);
    assert_eq!(switch.received(2), [2, 3, 4, 5, 6]);
    assert_conserved(&switch.fabric, &PORTS);
}

#[test]
fn a_control_plane_that_does_not_answer_holds_a_flow_up_for_a_while_and_no_other() {
    let mut switch = Switch::new();
    switch.install(3, vec![Action::Output(3)]);
    switch.send(2, 0..1, 0);
    switch.install(2, vec![Action::Output(2)]);
    switch.send(2, 1..2, 1_000_000);
    switch.send(3, 9..12, 1_000_000);
    assert_eq!((switch.received(2), switch.received(3)), (vec![], vec![9, 10, 11]));
    switch.send(2, 2..4, PENDING_NS_MAX);
    assert_eq!(switch.received(2), [2, 3]);
    assert_conserved(&switch.fabric, &PORTS);
}

#[test]
fn overtaken_packets_that_come_back_are_dropped() {
    let mut switch = Switch::new();
    switch.send(2, 0..2, 0);
    switch.install(2, vec![Action::Output(2)]);
    switch.send(2, 2..3, PENDING_NS_MAX);
    assert_eq!(switch.answer(9), [0, 1]);
    assert_eq!(switch.received(2), [2]);
    let counters = switch.guests[0].counters(&switch.fabric);
    assert_eq!((counters.injected, counters.rx_drops.of(DropReason::OutOfOrder)), (2, 2));
    assert_conserved(&switch.fabric, &PORTS);
}

#[test]
fn nothing_passes_a_packet_that_is_just_being_sent() {
    let mut switch = Switch::new();
    switch.send(2, 0..1, 0);
    let first = switch.reader.pop(&mut Vec::new()).unwrap();
    assert!(switch.module.begin(first.ticket));
    let dropped = |switch: &Switch| {
        let counters = switch.guests[0].counters(&switch.fabric);
        [DropReason::OutOfOrder, DropReason::NoFlow].map(|reason| counters.rx_drops.of(reason))
    };
    switch.module.set_asked(false);
    switch.send(2, 1..2, 1000);
    assert_eq!(dropped(&switch), [1, 0], "there is no flow, and nobody is asked");
    switch.install(3, vec![Action::Output(3)]);
    switch.send(2, 2..3, 2000);
    assert_eq!(dropped(&switch), [2, 0], "there are flows");
    switch.module.set_asked(true);
    switch.install(2, vec![Action::Output(2)]);
    switch.send(2, 3..4, PENDING_NS_MAX);
    assert_eq!(switch.received(2), [], "it is behind, though overdue");
    switch.module.done(first.ticket);
    assert_eq!((switch.answer(9), switch.received(2)), (vec![3], vec![3]));
    switch.module.set_asked(false);
    switch.send(4, 4..5, PENDING_NS_MAX);
    assert_eq!(dropped(&switch), [2, 1], "by what stands in");
    assert_conserved(&switch.fabric, &PORTS);
}

/// Tries to move the ring of guest 1, to where it is. Returns whether it moved.
fn relocate(switch: &mut Switch, now_ns: u64) -> bool {
    match switch.fabric.release_ring(switch.guests[0].tx_ring(), 0, now_ns) {
        Release::Moving(ring) => switch.fabric.adopt_ring(ring),
        Release::Unanswered => return false,
        other => panic!("{other:?}"),
    }
    true
}

#[test]
fn a_ring_moves_once_the_control_plane_has_answered_and_takes_no_packets_before() {
    let mut switch = Switch::new();
    assert!(relocate(&mut switch, 0));
    switch.send(2, 0..2, 0);
    assert!(!relocate(&mut switch, 1000));
    switch.send(2, 2..4, 2000);
    assert_eq!(switch.answer(1), [0]);
    assert!(!relocate(&mut switch, 3000), "packet 1 is with the control plane");
    assert_eq!(switch.answer(9), [1], "the others were not taken");
    switch.install(2, vec![Action::Output(2)]);
    assert!(relocate(&mut switch, 4000));
    switch.send(2, 4..5, 5000);
    assert_eq!((switch.received(2), switch.answer(9)), (vec![0, 1, 2, 3, 4], vec![]));
    assert_conserved(&switch.fabric, &PORTS);
}

#[test]
fn a_ring_moves_though_the_control_plane_does_not_answer_and_its_late_packets_are_dropped() {
    let mut switch = Switch::new();
    switch.send(2, 0..1, 0);
    assert!(!relocate(&mut switch, PENDING_NS_MAX - 1) && relocate(&mut switch, PENDING_NS_MAX));
    assert_eq!((switch.answer(9), switch.received(2)), (vec![0], vec![]));
    let counters = switch.guests[0].counters(&switch.fabric);
    assert_eq!(counters.rx_drops.of(DropReason::OutOfOrder), 1);
    assert_conserved(&switch.fabric, &PORTS);
}

#[test]
fn a_ring_that_was_to_move_takes_packets_again_if_nobody_tries_once_more() {
    let mut switch = Switch::new();
    switch.send(2, 0..1, 0);
    assert!(!relocate(&mut switch, 0));
    switch.send(2, 1..2, LEAVING_NS_MAX - 1);
    assert_eq!(switch.answer(9), [0]);
    switch.send(2, 2..3, LEAVING_NS_MAX);
    switch.send(2, 3..4, LEAVING_NS_MAX);
    assert_eq!(switch.answer(9), [1, 2, 3]);
    assert_conserved(&switch.fabric, &PORTS);
}

#[test]
fn packets_of_a_guest_that_has_left_do_not_come_behind_those_of_the_next_one() {
    let mut switch = Switch::new();
    switch.send(2, 0..2, 0);
    let first = switch.reader.pop(&mut Vec::new()).unwrap();
    assert!(switch.module.begin(first.ticket));
    assert!(!switch.fabric.forget_guest(PORTS[0]), "one is just being sent");
    switch.module.done(first.ticket);
    switch.fabric.drop_injected(PORTS[0], DropReason::OutOfOrder);
    assert!(switch.fabric.forget_guest(PORTS[0]));
    switch.install(2, vec![Action::Output(2)]);
    switch.send(2, 2..3, 1000);
    assert_eq!(switch.answer(9), [1], "it comes back late");
    assert_eq!(switch.received(2), [2]);
    let counters = switch.guests[0].counters(&switch.fabric);
    assert_eq!(counters.rx_drops.of(DropReason::OutOfOrder), 2);
    assert_conserved(&switch.fabric, &PORTS);
}

#[test]
fn a_pair_whose_transmit_ring_has_stopped_moves_once_the_control_plane_has_answered() {
    let mut switch = Switch::new();
    switch.send(2, 0..1, 0);
    let ring = switch.guests[0].tx_ring();
    switch.fabric.stop_ring(ring.port, 2 * ring.queue + 1);
    let released = |switch: &mut Switch| switch.fabric.release_ring(ring, 0, 0);
    assert!(matches!(released(&mut switch), Release::Unanswered), "its next home would overtake the packet");
    assert_eq!(switch.answer(9), [0]);
    assert!(matches!(released(&mut switch), Release::NotHere));
    assert_conserved(&switch.fabric, &PORTS);
}

/// Guest 1 sends a packet that goes to the control plane as three segments.
fn send_segments(switch: &mut Switch, now_ns: u64) {
    let (mut bytes, csum_start) = tcp_frame(false, &[7; 300]);
    bytes[..12].copy_from_slice(&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
    let (csum_start, csum_offset) = (csum_start as u16, 16);
    let (flags, gso_type, gso_size, hdr_len) = (F_NEEDS_CSUM, GSO_TCPV4, 100, 54);
    let offload = Offload { flags, gso_type, hdr_len, gso_size, csum_start, csum_offset };
    assert!(switch.guests[0].queue(&bytes, offload));
    switch.fabric.visit(switch.guests[0].tx_ring(), now_ns);
    switch.guests[0].reclaim();
}

#[test]
fn a_packet_is_through_when_all_of_its_segments_are() {
    let mut switch = Switch::new();
    send_segments(&mut switch, 0);
    switch.install(2, vec![Action::Output(2)]);
    assert_eq!(switch.answer(2).len(), 2);
    send_segments(&mut switch, 1);
    assert_eq!(switch.received(2).len(), 2, "those behind the third segment wait");
    assert_eq!((switch.answer(9).len(), switch.received(2).len()), (4, 4));
    send_segments(&mut switch, 2);
    assert_eq!((switch.answer(9).len(), switch.received(2).len()), (0, 1), "by its flow");
    assert_conserved(&switch.fabric, &PORTS);
}

#[test]
fn segments_that_come_back_after_they_were_overtaken_go_nowhere() {
    let mut switch = Switch::new();
    send_segments(&mut switch, 0);
    switch.install(2, vec![Action::Output(2)]);
    assert_eq!(switch.answer(1).len(), 1);
    send_segments(&mut switch, PENDING_NS_MAX);
    assert_eq!(switch.received(2).len(), 2, "a segment, and all of the next packet");
    assert_eq!((switch.answer(9).len(), switch.received(2).len()), (2, 0));
    let counters = switch.guests[0].counters(&switch.fabric);
    assert_eq!((counters.injected, counters.rx_drops.of(DropReason::OutOfOrder)), (3, 2));
    assert_conserved(&switch.fabric, &PORTS);
}

/// Guest 1 sends faster than the control plane answers. Returns the number of packets sent, and the numbers of those
/// that arrived.
fn outrun(switch: &mut Switch) -> (u32, Vec<u32>) {
    let (mut arrived, mut sent) = (Vec::new(), 0_u32);
    for round in 0..400 {
        // For each packet that the control plane answers, guest 1 sends as many as find room.
        loop {
            let mut bytes = frame(2, 1, 100);
            bytes[20..24].copy_from_slice(&sent.to_be_bytes());
            if !switch.guests[0].queue(&bytes, Offload::default()) {
                break;
            }
            sent += 1;
        }
        while switch.fabric.visit(switch.guests[0].tx_ring(), round) > 0 {}
        switch.guests[0].reclaim();
        if round == 0 {
            switch.install(2, vec![Action::Output(2)]);
        }
        switch.answer(1);
        let got = std::iter::from_fn(|| switch.guests[1].receive());
        arrived.extend(got.map(|got| u32::from_be_bytes(got.frame[20..24].try_into().unwrap())));
    }
    assert_eq!(switch.guests[0].counters(&switch.fabric).forwarded as usize, arrived.len() + up(switch));
    assert_conserved(&switch.fabric, &PORTS);
    (sent, arrived)
}

/// The number of upcalls.
fn up(switch: &Switch) -> usize {
    switch.fabric.counters(PortId::INTERNAL).unwrap().tx_packets as usize
}

#[test]
fn a_stream_that_outruns_its_control_plane_waits_and_loses_nothing() {
    let mut switch = Switch::with(UpcallLimits { packets: 4096, bytes: 4 << 20, rate: 0 });
    let (sent, arrived) = outrun(&mut switch);
    assert!(arrived.iter().copied().eq(0..arrived.len() as u32), "{arrived:?}");
    assert_eq!(sent - arrived.len() as u32, 0, "the last burst went by its flow");
    let asked = up(&switch) as u32;
    assert!(asked < PENDING_PACKETS_MAX && sent > 2 * PENDING_PACKETS_MAX, "{asked} of {sent}");
}

#[test]
fn a_stream_from_an_uplink_that_outruns_its_control_plane_loses_packets_and_no_order() {
    let mut switch = Switch::with(UpcallLimits { packets: 4096, bytes: 4 << 20, rate: 0 });
    let uplink = PortSettings { kind: PortKind::Uplink, ..PortSettings::default() };
    switch.module.port_added(PortId(1), &uplink).unwrap();
    let (sent, arrived) = outrun(&mut switch);
    assert!(arrived.is_sorted_by(|one, next| one < next), "{arrived:?}");
    let lost = switch.guests[0].counters(&switch.fabric).rx_drops.of(DropReason::OutOfOrder);
    assert!(lost > 0 && arrived.len() as u64 + lost == u64::from(sent), "{lost} of {sent}");
    assert_eq!(up(&switch), PENDING_PACKETS_MAX as usize);
}

#[test]
fn a_ring_that_waits_for_a_control_plane_in_vain_goes_on_after_a_while() {
    let mut switch = Switch::with(UpcallLimits { packets: 4096, bytes: 4 << 20, rate: 0 });
    while up(&switch) < PENDING_PACKETS_MAX as usize - 32 {
        switch.send(2, 0..32, 0);
    }
    let ring = switch.guests[0].tx_ring();
    assert!(switch.guests[0].queue(&frame(3, 1, 60), Offload::default()));
    switch.install(3, vec![Action::Output(3)]);
    let visit = |switch: &mut Switch, now_ns| switch.fabric.visit(ring, now_ns);
    assert_eq!([0, 1, PENDING_NS_MAX - 1].map(|now_ns| visit(&mut switch, now_ns)), [0, 0, 0]);
    assert_eq!([0, 1].map(|more| visit(&mut switch, PENDING_NS_MAX + more)), [0, 1]);
    assert_eq!(std::iter::from_fn(|| switch.guests[2].receive()).count(), 1);
    assert_conserved(&switch.fabric, &PORTS);
}

/// Packets that the control plane sends are counted at their input port: dropped, delivered in copies, waiting.
#[test]
fn packets_that_come_back_count_at_their_port() {
    let mut switch = Switch::new();
    switch.send(2, 0..3, 0);
    let actions = [
        vec![Action::drop_for(DropReason::SourceSpoofed)],
        vec![Action::Output(2), Action::Output(3), Action::Output(77)],
        vec![],
    ];
    let mut bytes = Vec::new();
    for actions in actions {
        let record = switch.reader.pop(&mut bytes).unwrap();
        switch.execute(&record, &bytes, &actions);
    }
    let counters = switch.guests[0].counters(&switch.fabric);
    assert_eq!((counters.rx_packets, counters.injected, counters.copies_added), (3, 3, 2));
    assert_eq!(counters.forwarded, 3 + 2, "to the control plane, and to two ports");
    let reasons = [DropReason::SourceSpoofed, DropReason::PortGone, DropReason::FlowDrop];
    assert_eq!(reasons.map(|reason| counters.rx_drops.of(reason)), [1, 1, 1]);
    let own = switch.fabric.counters(PortId::INTERNAL).unwrap();
    assert_eq!((own.injected, own.forwarded, own.rx_drops.total(), own.tx_packets), (0, 0, 0, 3));
    assert_conserved(&switch.fabric, &PORTS);
}

#[test]
fn packets_that_come_back_and_wait_are_counted_though_their_port_goes() {
    let mut switch = Switch::new();
    let slow = PortId(4);
    let mut guest = TestGuest::attach(&mut switch.fabric, slow.0, everything(), 64, 2048);
    let mut bytes = Vec::new();
    switch.send(2, 0..2, 0);
    for _ in 0..2 {
        let record = switch.reader.pop(&mut bytes).unwrap();
        switch.execute(&record, &bytes, &[Action::Output(4), Action::Output(3), Action::Output(4)]);
    }
    let counters = switch.guests[0].counters(&switch.fabric);
    assert_eq!((counters.injected, counters.copies_added, counters.waiting), (2, 4, 4));
    assert_conserved(&switch.fabric, &[PortId(1), PortId(2), PortId(3), slow]);
    switch.fabric.remove_port(PortId(1));
    let own = switch.fabric.counters(PortId::INTERNAL).unwrap();
    assert!(own.is_conserved() && own.waiting == 4, "{own:?}");
    guest.post(64);
    switch.fabric.drain_waiting();
    assert_eq!(std::iter::from_fn(|| guest.receive()).count(), 4);
    let own = switch.fabric.counters(PortId::INTERNAL).unwrap();
    assert!(own.is_conserved() && (own.waiting, own.forwarded) == (0, 4), "{own:?}");
    // The next packets use the same slots.
    switch.fabric.inject(&frame(2, 1, 60), Offload::default(), 0).unwrap();
    let own = switch.fabric.counters(PortId::INTERNAL).unwrap();
    assert_eq!((own.rx_drops.of(DropReason::NoFlow), own.is_conserved()), (1, true));
}

#[test]
fn a_packet_that_could_not_go_up_holds_up_none_of_its_flow() {
    let mut switch = Switch::with(UpcallLimits { packets: 1, bytes: 4096, rate: 0 });
    switch.send(3, 7..8, 0);
    switch.send(2, 0..1, 0);
    switch.install(2, vec![Action::Output(2)]);
    switch.send(2, 1..2, 0);
    assert_eq!(switch.received(2), [1], "0 was dropped, so nothing is on the way");
    let counters = switch.guests[0].counters(&switch.fabric);
    assert_eq!(counters.rx_drops.of(DropReason::NoFlow), 1);
    assert_conserved(&switch.fabric, &PORTS);
}

#[test]
fn a_flood_of_unknown_headers_leaves_known_flows_alone() {
    let mut switch = Switch::new();
    switch.install(3, vec![Action::Output(3)]);
    for round in 0..20_u8 {
        for number in 0..40 {
            let mut bytes = frame(9, 1, 60);
            (bytes[8], bytes[9]) = (round, number);
            assert!(switch.guests[1].queue(&bytes, Offload::default()));
        }
        while switch.fabric.visit(switch.guests[1].tx_ring(), 0) > 0 {}
        switch.guests[1].reclaim();
        switch.send(3, round..round + 1, 0);
    }
    assert_eq!(switch.received(3), (0..20).collect::<Vec<_>>());
    let counters = switch.guests[1].counters(&switch.fabric);
    assert_eq!((counters.forwarded, counters.rx_drops.of(DropReason::NoFlow)), (64, 20 * 40 - 64));
    switch.send(2, 7..8, 0);
    assert!(switch.answer(2).contains(&7), "its turn is the second at most");
    assert_conserved(&switch.fabric, &PORTS);
}

#[test]
fn actions_of_a_flow_reach_several_ports_and_the_control_plane() {
    let mut switch = Switch::new();
    let userspace = Action::Userspace(Userspace::default());
    switch.install(
        2,
        vec![Action::Output(2), Action::Truncate(40), userspace, Action::Output(3), Action::Output(77)],
    );
    switch.send(2, 4..5, 0);
    assert_eq!((switch.received(2), switch.received(3)), (vec![4], vec![4]));
    let mut bytes = Vec::new();
    let record = switch.reader.pop(&mut bytes).unwrap();
    let UpcallReason::Action { flow, step: 0 } = record.reason else { panic!("{record:?}") };
    assert_eq!(
        (bytes.len(), switch.module.table().named(flow).map(|flow| flow.actions.len())),
        (40, Some(5))
    );
    let counters = switch.guests[0].counters(&switch.fabric);
    assert_eq!(counters.rx_drops.of(DropReason::PortGone), 1);
    assert_conserved(&switch.fabric, &PORTS);
}

#[test]
fn packets_of_the_control_plane_come_back_on_its_own_account() {
    let mut switch = Switch::new();
    let metadata = Metadata { in_port: 700, ..Metadata::default() };
    for _ in 0..3 {
        let actions = [Action::Userspace(Userspace::default()), Action::Recirc(9)];
        switch
            .module
            .execute_next(Execution::new(switch.module.table(), metadata, &actions, 0).unwrap())
            .unwrap();
        switch.fabric.inject(&frame(2, 1, 60), Offload::default(), 0).unwrap();
        let mut bytes = Vec::new();
        let record = switch.reader.pop(&mut bytes).unwrap();
        assert_eq!((record.port, record.metadata.in_port), (PortId::INTERNAL, 700));
        let record = switch.reader.pop(&mut bytes).unwrap();
        assert_eq!((record.reason, record.metadata.recirc_id), (UpcallReason::Miss, 9));
    }
    assert_conserved(&switch.fabric, &PORTS);
}

#[test]
fn a_packet_without_announced_actions_is_dropped() {
    let mut switch = Switch::new();
    switch.fabric.inject(&frame(2, 1, 60), Offload::default(), 0).unwrap();
    let counters = switch.fabric.counters(PortId::INTERNAL).unwrap();
    assert_eq!(counters.rx_drops.of(DropReason::NoFlow), 1);
    assert_conserved(&switch.fabric, &PORTS);
}
