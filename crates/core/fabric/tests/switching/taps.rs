//! A capture sees each frame at its place, unchanged, counts those for which it has no room, and changes nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::support::{TestGuest, assert_conserved, everything, flooding_pair, frame};
use lasthop_fabric::bounds::{TAP_BYTES, WAITING_NS_MAX};
use lasthop_fabric::{CaptureDirection, CapturedFrame, Fabric, TapClock, TapReader, Watch, tap};
use lasthop_module_api::{DropReason, PortId};
use lasthop_wire::Offload;

const PORTS: [PortId; 2] = [PortId(1), PortId(2)];

fn watch(ports: &[u16]) -> Watch {
    let ports = ports.iter().copied().map(PortId).collect();
    Watch {
        ports,
        inbound: true,
        outbound: true,
        drops: true,
        snap_len_bytes: 262_144,
        buffer_bytes: TAP_BYTES,
    }
}

/// A clock that advances by one at each read.
fn clock() -> TapClock {
    let now = AtomicU64::new(100);
    Arc::new(move || now.fetch_add(1, Ordering::Relaxed))
}

fn tapped(fabric: &mut Fabric, watch: &Watch) -> TapReader {
    let (tap, reader) = tap(7, watch, &clock()).unwrap();
    fabric.add_tap(tap);
    reader
}

fn seen(reader: &mut TapReader) -> Vec<(CapturedFrame, Vec<u8>)> {
    let mut frame = Vec::new();
    std::iter::from_fn(|| reader.pop(&mut frame).map(|captured| (captured, frame.clone()))).collect()
}

/// Interface, direction and drop reason of each captured frame.
fn events(seen: &[(CapturedFrame, Vec<u8>)]) -> Vec<(u16, CaptureDirection, Option<DropReason>)> {
    seen.iter().map(|(captured, _)| (captured.interface, captured.direction, captured.dropped)).collect()
}

use CaptureDirection::{Inbound, Outbound};

#[test]
fn a_frame_of_any_pieces_is_seen_coming_in_and_going_out() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(64);
    let mut reader = tapped(&mut fabric, &watch(&[1, 2]));
    receiver.post(64);
    let frames: Vec<_> = [60, 128, 129, 1514, 9000].map(|len| frame(2, 1, len)).into();
    for (frame, cuts) in frames.iter().zip([&[][..], &[12], &[20, 100], &[12, 700], &[5000]]) {
        assert!(sender.queue_cut(frame, Offload::default(), cuts));
    }
    fabric.visit(sender.tx_ring(), 0);
    let seen = seen(&mut reader);
    let inbound = seen
        .iter()
        .filter(|(captured, _)| *captured == CapturedFrame { direction: Inbound, interface: 0, ..*captured });
    assert_eq!(inbound.map(|(_, bytes)| bytes).collect::<Vec<_>>(), frames.iter().collect::<Vec<_>>());
    let outbound = seen.iter().filter(|(captured, _)| {
        *captured == CapturedFrame { direction: Outbound, interface: 1, ..*captured }
    });
    assert_eq!(outbound.map(|(_, bytes)| bytes).collect::<Vec<_>>(), frames.iter().collect::<Vec<_>>());
    assert!(
        seen.iter().all(|(captured, bytes)| captured.len_bytes as usize == bytes.len() && captured.dropped.is_none())
    );
    assert!(seen.is_sorted_by_key(|(captured, _)| captured.time_ns));
    let received: Vec<_> = std::iter::from_fn(|| receiver.receive()).map(|received| received.frame).collect();
    assert_eq!(received, frames);
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn only_watched_events_are_seen_up_to_the_snap_length() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(64);
    receiver.post(8);
    let mut inbound = tapped(&mut fabric, &Watch { outbound: false, drops: false, ..watch(&[1, 2]) });
    let mut outbound =
        tapped(&mut fabric, &Watch { inbound: false, drops: false, snap_len_bytes: 70, ..watch(&[2]) });
    let mut other = tapped(&mut fabric, &watch(&[9]));
    assert!(sender.queue(&frame(2, 1, 1000), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    let seen_in = seen(&mut inbound);
    assert_eq!((events(&seen_in), seen_in[0].1.len()), (vec![(0, Inbound, None)], 1000));
    let seen_out = seen(&mut outbound);
    assert_eq!(events(&seen_out), [(0, Outbound, None)]);
    assert_eq!((seen_out[0].0.len_bytes, &seen_out[0].1[..]), (1000, &frame(2, 1, 1000)[..70]));
    assert_eq!(seen(&mut other), []);
}

#[test]
fn drops_are_seen_with_their_reason_on_both_sides() {
    let (mut fabric, mut sender, _receiver) = flooding_pair(16);
    let mut reader = tapped(&mut fabric, &Watch { inbound: false, outbound: false, ..watch(&[1, 2]) });
    assert!(sender.queue(&[1, 2, 3], Offload::default()));
    assert!(sender.queue(&frame(2, 1, 500), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    let at_once = seen(&mut reader);
    assert_eq!(events(&at_once), [(0, Inbound, Some(DropReason::TooShort))]);
    assert_eq!((at_once[0].0.len_bytes, &at_once[0].1[..]), (3, &[1, 2, 3][..]));
    fabric.expire(WAITING_NS_MAX);
    let late = seen(&mut reader);
    let reason = Some(DropReason::RxTimeout);
    assert_eq!(events(&late), [(0, Inbound, reason), (1, Outbound, reason)]);
    assert!(late.iter().all(|(_, bytes)| *bytes == frame(2, 1, 500)));
    fabric.stop_ring(PortId(2), 0);
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    let reason = Some(DropReason::PortDown);
    assert_eq!(events(&seen(&mut reader)), [(0, Inbound, reason), (1, Outbound, reason)]);
    let counters = sender.counters(&fabric);
    assert_eq!(counters.rx_drops.total(), 3, "{counters:?}");
    assert_conserved(&fabric, &PORTS);
}

#[test]
fn drops_of_the_module_are_seen() {
    let module: Arc<dyn lasthop_module_api::Module> =
        lasthop_modules::by_name("bridge", &lasthop_modules::BridgeSettings::default()).unwrap().into();
    module.port_added(PortId(1), &lasthop_module_api::PortSettings::default()).unwrap();
    let mut fabric = Fabric::new(module).unwrap();
    let mut sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let mut reader = tapped(&mut fabric, &watch(&[1]));
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    let seen = seen(&mut reader);
    assert_eq!(events(&seen), [(0, Inbound, None), (0, Inbound, Some(DropReason::NoDestination))]);
    assert!(seen.iter().all(|(_, bytes)| *bytes == frame(2, 1, 60)));
}

#[test]
fn a_packet_that_waits_is_seen_going_out_when_it_does() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(16);
    let mut reader = tapped(&mut fabric, &Watch { inbound: false, ..watch(&[2]) });
    assert!(sender.queue(&frame(2, 1, 300), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    assert_eq!(seen(&mut reader), []);
    receiver.post(1);
    assert!(fabric.drain_waiting());
    let seen = seen(&mut reader);
    assert_eq!((events(&seen), &seen[0].1), (vec![(0, Outbound, None)], &frame(2, 1, 300)));
}

#[test]
fn only_a_slow_reader_loses_frames() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(64);
    let mut reader = tapped(&mut fabric, &Watch { outbound: false, ..watch(&[1]) });
    let long = frame(2, 1, 60_000);
    let sent = 200;
    for _ in 0..sent {
        receiver.post(64);
        assert!(sender.queue(&long, Offload::default()));
        fabric.visit(sender.tx_ring(), 0);
        assert_eq!(receiver.receive().unwrap().frame, long);
    }
    let kept = seen(&mut reader).len() as u64;
    assert_eq!(kept + reader.lost(0), sent);
    assert!(kept > TAP_BYTES as u64 / 70_000 && reader.lost(0) > 0, "{kept} kept");
    assert_eq!(sender.counters(&fabric).forwarded, sent);
    assert_conserved(&fabric, &PORTS);
    receiver.post(64);
    assert!(sender.queue(&long, Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    assert_eq!(seen(&mut reader).len(), 1, "there is room again");
}

#[test]
fn a_port_that_goes_and_a_tap_that_goes_are_seen_no_more() {
    let (mut fabric, mut sender, mut receiver) = flooding_pair(64);
    receiver.post(64);
    let mut reader = tapped(&mut fabric, &watch(&[1, 2]));
    assert_eq!(reader.ports(), 2);
    fabric.remove_port(PortId(2));
    assert_eq!(reader.ports(), 1);
    fabric.add_port(PortId(2), 1);
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    let reason = Some(DropReason::PortDown);
    assert_eq!(events(&seen(&mut reader)), [(0, Inbound, None), (0, Inbound, reason)]);
    fabric.remove_tap(7);
    assert!(sender.queue(&frame(2, 1, 60), Offload::default()));
    fabric.visit(sender.tx_ring(), 0);
    assert_eq!(seen(&mut reader), []);
}
