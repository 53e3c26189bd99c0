//! A fabric and two guests, with the properties that hold between any two steps.

use std::sync::Arc;

use lasthop_fabric::{Capabilities, Fabric, RingId};
use lasthop_module_api::{Batch, DropReason, Module, PortId, PortSettings, Verdicts};
use lasthop_wire::hash;
use lasthop_wire::vnet::{HEADER_BYTES, HEADER_BYTES_LEGACY};

use crate::input::Input;

use super::layout::{
    BUFFER_BYTES, BUFFERS, ENTRIES_MAX, GUEST, INDIRECT, MEMORY_BYTES, NEXT, Raw, TABLE_BYTES, TABLES, WRITE,
    chain, u16_at,
};
use super::oracle::{self, SHOWN_BYTES};
use super::port::{Port, UsedEntry};
use super::program::{DROPPED, FORGOTTEN, FrameSpec, Place, Step, TWICE};
use super::ranges::Ranges;

/// Buffers of a guest.
const SLOTS: usize = (MEMORY_BYTES - BUFFERS) / BUFFER_BYTES;
/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;
/// Bytes of chains that are compared; longer ones are no frames.
const COMPARED_BYTES_MAX: usize = 70_000;

/// Every packet goes to every other port; the last byte of its destination address may say otherwise.
struct Flood;

/// Copies of a packet that one port gets.
fn copies(frame: &[u8]) -> usize {
    match frame.get(5) {
        Some(&DROPPED | &FORGOTTEN) => 0,
        Some(&TWICE) => 2,
        _ => 1,
    }
}

impl Module for Flood {
    fn name(&self) -> &'static str {
        "flood"
    }

    fn decide(&self, batch: &Batch<'_>, _now_ns: u64, verdicts: &mut Verdicts) {
        for (packet, header) in batch.headers.iter().enumerate() {
            for port in (1..=2).map(PortId).filter(|port| *port != batch.port) {
                (0..copies(header.bytes())).for_each(|_| verdicts.output(packet, port));
            }
            if header.bytes()[5] == DROPPED {
                verdicts.drop_packet(packet, DropReason::NoDestination);
            }
        }
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}

fn capabilities(bits: u8) -> Capabilities {
    let mergeable = bits & 1 != 0;
    // Only a legacy guest without mergeable buffers has the short header.
    let header_bytes = if bits & 32 != 0 && !mergeable { HEADER_BYTES_LEGACY } else { HEADER_BYTES };
    let tells_hashes = bits & 128 != 0 && header_bytes == HEADER_BYTES;
    Capabilities {
        mergeable,
        csum: bits & 2 != 0,
        tso4: bits & 4 != 0,
        tso6: bits & 8 != 0,
        ecn: bits & 16 != 0,
        uso: bits & 64 != 0,
        header_bytes,
        sent_header_bytes: if tells_hashes { hash::HEADER_BYTES } else { header_bytes },
    }
}

pub(super) struct World {
    fabric: Fabric,
    ports: [Port; 2],
    now_ns: u64,
    /// Packets forwarded and delivered by ports that are gone.
    gone: (u64, u64),
    compared: usize,
}

impl World {
    pub(super) fn new(input: &mut Input<'_>) -> Self {
        let mut fabric = Fabric::new(Arc::new(Flood)).expect("a little memory");
        fabric.set_flow_key(u64::from(input.u8()), true);
        let mut port = |id| {
            let entries = 1 << (input.u8() % 7);
            assert!(entries <= ENTRIES_MAX);
            Port::new(id, id, entries, input.bool(), capabilities(input.u8()))
        };
        let mut ports = [port(1), port(2)];
        ports.iter_mut().for_each(|port| port.attach(&mut fabric));
        Self { fabric, ports, now_ns: 0, gone: (0, 0), compared: 0 }
    }

    pub(super) fn step(&mut self, step: Step<'_>) {
        if self.write(step) {
            return;
        }
        self.ports.iter_mut().for_each(Port::prepare);
        self.step_fabric(step);
        self.ports.iter_mut().for_each(|port| drop(port.settle()));
        self.fabric.signals().clear();
        self.fabric.unblocked().clear();
        self.assert_conserved();
    }

    fn port(&mut self, port: u8) -> &mut Port {
        &mut self.ports[usize::from(port) % 2]
    }

    fn ring(&mut self, port: u8, ring: u8) -> usize {
        usize::from(ring) % self.port(port).rings.len()
    }

    fn ring_id(&mut self, place: Place) -> RingId {
        let port = self.port(place.port);
        RingId { port: port.id, queue: u16::from(place.queue) % (port.rings.len() / 2) as u16 }
    }

    /// A guest's turn; false if it is the switch's.
    fn write(&mut self, step: Step<'_>) -> bool {
        match step {
            Step::Descriptor { port, ring, index, raw } => {
                let ring = self.ring(port, ring);
                let port = self.port(port);
                let at = port.rings[ring].areas.descriptors
                    + 16 * (usize::from(index) % usize::from(port.entries));
                port.write(at, &raw.bytes());
            }
            Step::TableEntry { port, table, index, raw } => {
                let at = TABLES + usize::from(table) % 8 * TABLE_BYTES + 16 * (usize::from(index) % 64);
                self.port(port).write(at, &raw.bytes());
            }
            Step::Available { port, ring, head } => {
                let ring = self.ring(port, ring);
                self.port(port).publish(ring, u16::from(head));
            }
            Step::AvailableIndex { port, ring, value } => {
                let ring = self.ring(port, ring);
                self.port(port).publish_index(ring, value);
            }
            Step::Bytes { port, at, bytes } => {
                let (port, at) = (self.port(port), usize::from(at));
                if !port.is_used_ring(&(at..at + bytes.len())) {
                    port.write(at, bytes);
                }
            }
            Step::Post { place, count, len } => self.post(place, count, u32::from(len)),
            Step::Send { place, frame, pieces } => self.send(place, frame, u16::from(pieces)),
            _ => return false,
        }
        true
    }

    fn post(&mut self, place: Place, count: u8, len: u32) {
        let ring = 2 * usize::from(self.ring_id(place).queue);
        let port = self.port(place.port);
        for _ in 0..count {
            let head = port.rings[ring].available % port.entries;
            let slot = (usize::from(head) + ring * SLOTS / 4) % SLOTS;
            let addr = GUEST + (BUFFERS + slot * BUFFER_BYTES) as u64;
            let raw = Raw { addr, len, flags: WRITE, next: 0 };
            port.write(port.rings[ring].areas.descriptors + 16 * usize::from(head), &raw.bytes());
            port.publish(ring, head);
        }
    }

    /// The frame's first bytes are written; where it is longer than the buffer, pieces of the buffer come again.
    fn send(&mut self, place: Place, frame: FrameSpec, pieces: u16) {
        let ring = 2 * usize::from(self.ring_id(place).queue) + 1;
        let port = self.port(place.port);
        let Capabilities { header_bytes, sent_header_bytes, .. } = port.capabilities;
        let header = &frame.offload().emit(0)[..header_bytes];
        let hash = &[0xa5; hash::HASH_BYTES][..sent_header_bytes - header_bytes];
        let bytes = [header, hash, &frame.frame()].concat();
        let head = port.rings[ring].available % port.entries;
        let slot = usize::from(head) % 16;
        let buffer = BUFFERS + slot * BUFFER_BYTES;
        port.write(buffer, &bytes[..bytes.len().min(BUFFER_BYTES)]);
        let piece_bytes = bytes.len().div_ceil(usize::from(pieces)).max(1);
        let starts: Vec<usize> = (0..bytes.len()).step_by(piece_bytes).collect();
        let table = TABLES + slot % 8 * TABLE_BYTES;
        let direct = starts.len() == 1;
        for (number, &from) in starts.iter().enumerate() {
            let len = piece_bytes.min(bytes.len() - from);
            let at = if from + len <= BUFFER_BYTES { from } else { 0 };
            let (flags, next) = if number + 1 < starts.len() { (NEXT, number as u16 + 1) } else { (0, 0) };
            let raw = Raw { addr: GUEST + (buffer + at) as u64, len: len as u32, flags, next };
            let at = if direct {
                port.rings[ring].areas.descriptors + 16 * usize::from(head)
            } else {
                table + 16 * number
            };
            port.write(at, &raw.bytes());
        }
        if !direct {
            let raw =
                Raw { addr: GUEST + table as u64, len: 16 * starts.len() as u32, flags: INDIRECT, next: 0 };
            port.write(port.rings[ring].areas.descriptors + 16 * usize::from(head), &raw.bytes());
        }
        port.publish(ring, head);
    }

    /// A step of the fabric.
    fn step_fabric(&mut self, step: Step<'_>) {
        match step {
            Step::Visit(place) => self.visit(place),
            Step::Drain(place) => {
                let ring = self.ring_id(place);
                self.fabric.drain(ring);
            }
            Step::DrainWaiting => drop(self.fabric.drain_waiting()),
            Step::Expire { ms } => {
                self.now_ns += u64::from(ms) * 4 * MS;
                self.fabric.expire(self.now_ns);
                assert!(self.fabric.deadline_ns().is_none_or(|deadline| deadline > self.now_ns));
            }
            Step::Arm(place) => {
                let ring = self.ring_id(place);
                let _ = self.fabric.arm(ring);
                let _ = self.fabric.arm_waiting();
                self.fabric.suppress_kicks(ring);
            }
            Step::Enable { port, ring, enabled } => {
                let (ring, id) = (self.ring(port, ring), self.port(port).id);
                self.fabric.set_ring_enabled(id, ring as u16, enabled);
            }
            Step::Inject(frame) => drop(self.fabric.inject(&frame.frame(), frame.offload(), self.now_ns)),
            _ => self.attach_anew(step),
        }
    }

    /// A session's turn.
    fn attach_anew(&mut self, step: Step<'_>) {
        match step {
            Step::Restart { port, ring } => {
                let (ring, at) = (self.ring(port, ring), usize::from(port) % 2);
                self.ports[at].stop(&mut self.fabric, ring);
                self.ports[at].start(&mut self.fabric, ring);
            }
            Step::Memory { port, regions } => {
                self.ports[usize::from(port) % 2].remap(&mut self.fabric, regions & 3);
            }
            Step::Capabilities { port, bits } => {
                let port = &mut self.ports[usize::from(port) % 2];
                (0..port.rings.len()).for_each(|ring| port.stop(&mut self.fabric, ring));
                port.capabilities = capabilities(bits);
                self.fabric.set_capabilities(port.id, port.capabilities);
                (0..port.rings.len()).for_each(|ring| port.start(&mut self.fabric, ring));
            }
            Step::Replace { port } => {
                self.remove(usize::from(port) % 2);
                self.ports[usize::from(port) % 2].attach(&mut self.fabric);
            }
            _ => {}
        }
    }

    fn remove(&mut self, at: usize) {
        let port = &mut self.ports[at];
        (0..port.rings.len()).for_each(|ring| port.stop(&mut self.fabric, ring));
        let last = self.fabric.remove_port(port.id).expect("the port was there");
        assert!(last.is_conserved() && last.waiting == 0, "{last:?}");
        self.gone = (self.gone.0 + last.forwarded, self.gone.1 + last.tx_packets);
    }

    fn visit(&mut self, place: Place) {
        let ring = self.ring_id(place);
        let (from, index) = (usize::from(place.port % 2), 2 * usize::from(ring.queue) + 1);
        let waited = self.fabric.waiting_rings().len();
        let taken = self.fabric.visit(ring, self.now_ns);
        let sender = &mut self.ports[from];
        let heads = sender.take(index, taken);
        if waited > 0 || !sender.trusted {
            return;
        }
        let (memory, areas) = (&sender.before, sender.rings[index].areas);
        let buffers: Vec<Vec<Raw>> =
            heads.iter().map(|head| chain(memory, areas, sender.entries, *head)).collect();
        if buffers.iter().flatten().any(|raw| sender.is_used_ring(&raw.clipped())) {
            // The buffers change while they are sent: the switch itself writes there.
            return;
        }
        let chains: Vec<Vec<u8>> = buffers
            .iter()
            .filter(|buffers| buffers.iter().map(|raw| raw.len as usize).sum::<usize>() <= COMPARED_BYTES_MAX)
            .map(|buffers| oracle::gather(memory, buffers))
            .collect();
        let header_bytes = sender.capabilities.sent_header_bytes;
        self.compared += compare(&mut self.ports[1 - from], &chains, header_bytes);
    }

    fn assert_conserved(&self) {
        let (mut forwarded, mut delivered) = self.gone;
        for port in [PortId::INTERNAL, PortId(1), PortId(2)] {
            let counters = self.fabric.counters(port).expect("the port is there");
            assert!(counters.is_conserved(), "port {port}: {counters:?}");
            (forwarded, delivered) = (forwarded + counters.forwarded, delivered + counters.tx_packets);
        }
        assert_eq!(forwarded, delivered, "forwarded = delivered");
    }

    /// Both guests leave. How many packets were compared.
    pub(super) fn finish(mut self) -> usize {
        for at in 0..2 {
            self.ports.iter_mut().for_each(Port::prepare);
            self.remove(at);
            self.ports.iter_mut().for_each(|port| drop(port.settle()));
        }
        assert!(self.fabric.waiting_rings().is_empty());
        self.compared
    }
}

/// A receiver got the packets of these chains in the last visit, in order, with nothing in between that was
/// never sent. How many packets it got.
fn compare(receiver: &mut Port, chains: &[Vec<u8>], header_bytes: usize) -> usize {
    let packets_of = |chain: &Vec<u8>| {
        let copies = copies(chain.get(header_bytes..).unwrap_or_default());
        vec![oracle::packets(chain, header_bytes, receiver.capabilities); copies].concat()
    };
    let expected: Vec<Vec<u8>> = chains.iter().flat_map(packets_of).collect();
    let used = receiver.settle();
    let mut seen = Ranges::default();
    let rings = used.iter().enumerate().filter(|(ring, _)| ring % 2 == 0);
    let buffers: Vec<_> = rings.map(|(ring, used)| received(receiver, ring, used, &mut seen)).collect();
    if seen.overlap_themselves() {
        // The last of several packets is in a buffer.
        return 0;
    }
    let mut compared = 0;
    for buffers in buffers {
        let mut left = expected.iter();
        for got in packets(&buffers, receiver.capabilities.header_bytes) {
            assert!(left.any(|packet| *packet == got), "port {} got what nobody sent: {got:x?}", receiver.id);
            compared += 1;
        }
    }
    compared
}

/// The bytes in a ring's new used entries, one list for each; the parts of memory that they come from go to `seen`.
fn received(receiver: &Port, ring: usize, used: &[UsedEntry], seen: &mut Ranges) -> Vec<Vec<u8>> {
    let (memory, areas) = (&receiver.before, receiver.rings[ring].areas);
    let bytes_of = |used: &UsedEntry| {
        let (mut bytes, mut left) = (Vec::new(), used.len as usize);
        for raw in chain(memory, areas, receiver.entries, used.head) {
            // The last buffer may reach beyond memory, where nothing is written any more.
            let range = raw.clipped();
            let range = range.start..range.end.min(range.start + left);
            left -= range.len();
            bytes.extend(&memory[range.clone()]);
            seen.add(range);
        }
        bytes
    };
    used.iter().map(bytes_of).collect()
}

/// The packets in these buffers, without their number of buffers.
fn packets(buffers: &[Vec<u8>], header_bytes: usize) -> Vec<Vec<u8>> {
    let (mut packets, mut left) = (Vec::new(), buffers);
    while !left.is_empty() {
        // The header may lie in several buffers too, though no sensible driver posts such.
        let header: Vec<u8> = left.iter().flatten().copied().take(header_bytes).collect();
        let count = header.get(10..12).map_or(1, |count| usize::from(u16_at(count, 0)));
        assert!((1..=left.len()).contains(&count), "a packet in {count} of {} buffers", left.len());
        let bytes = left[..count].concat();
        packets.push([&bytes[..SHOWN_BYTES], &bytes[header_bytes..]].concat());
        left = &left[count..];
    }
    packets
}
