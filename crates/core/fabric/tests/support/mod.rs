//! Simulated guests for a fabric: each has its own memory and rings; there are no threads and no clock.
#![allow(dead_code, unreachable_pub)] // each test file uses its own part of this module

use std::ops::RangeInclusive;
use std::sync::Arc;

use lasthop_fabric::{Capabilities, Fabric, PortCounters, RingId};
use lasthop_guestmem::{Mapping, MemoryMap, Region};
use lasthop_module_api::{Batch, DropReason, Module, PortId, PortSettings, Verdicts};
use lasthop_ring::{DeviceRing, DriverRing, RingAddresses, RingFormat, RingMemory};
use lasthop_wire::Offload;
use lasthop_wire::vnet::HEADER_BYTES;

pub const TX_RINGS: u64 = 0;
pub const RX_RINGS: u64 = 1 << 20;
const TX_BUFFERS: u64 = 2 << 20;
pub const RX_BUFFERS: u64 = 10 << 20;
const TX_BUFFER_BYTES: u64 = 68 << 10;
const TX_BUFFERS_COUNT: u32 = 64;
pub const MEMORY_BYTES: usize = 32 << 20;

/// All offloads, mergeable buffers.
pub fn everything() -> Capabilities {
    Capabilities {
        mergeable: true,
        csum: true,
        tso4: true,
        tso6: true,
        ecn: true,
        uso: true,
        header_bytes: HEADER_BYTES,
        sent_header_bytes: HEADER_BYTES,
    }
}

pub fn ring_at(map: &MemoryMap, entries: u32, base: u64) -> RingMemory {
    ring_of(RingFormat::Split, map, entries, base)
}

/// As `ring_at`, for a ring of either format.
pub fn ring_of(format: RingFormat, map: &MemoryMap, entries: u32, base: u64) -> RingMemory {
    let available = base + 16 * u64::from(entries);
    let used = (available + 6 + 2 * u64::from(entries)).next_multiple_of(64);
    RingMemory::of(format, map, entries, RingAddresses { descriptors: base, available, used }).unwrap()
}

/// Memory of a guest with `pairs` queue pairs.
pub fn memory(pairs: usize) -> Arc<MemoryMap> {
    let mapping = Arc::new(Mapping::anonymous(pairs * MEMORY_BYTES).unwrap());
    Arc::new(MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }]).unwrap())
}

/// A frame as received by a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    pub offload: Offload,
    pub num_buffers: u16,
    pub frame: Vec<u8>,
}

/// One queue pair of a guest, usually its only one.
pub struct TestGuest {
    pub port: PortId,
    pub queue: u16,
    /// Guest address of the memory that the pair uses.
    base: u64,
    pub map: Arc<MemoryMap>,
    pub tx: DriverRing,
    pub rx: DriverRing,
    pub rx_buffer_bytes: u32,
    pub rx_buffers: u32,
    pub capabilities: Capabilities,
    /// Whether its transmit chains are returned in the order in which they were made available.
    pub in_order: bool,
    /// The format of its rings.
    pub format: RingFormat,
    entries: u32,
    free_tx: Vec<u32>,
}

impl TestGuest {
    /// Adds a port with a running guest. Its rings have `entries`; `post` posts receive buffers.
    pub fn attach(
        fabric: &mut Fabric,
        port: u16,
        capabilities: Capabilities,
        entries: u32,
        rx_buffer_bytes: u32,
    ) -> Self {
        let port = PortId(port);
        fabric.add_port(port, 1);
        fabric.set_capabilities(port, capabilities);
        let map = memory(1);
        fabric.set_memory(port, &map);
        let mut guest = Self::pair(port, 0, map, capabilities, entries, rx_buffer_bytes);
        guest.start(fabric, 0);
        guest.start(fabric, 1);
        guest
    }

    /// Queue pair `queue` of a guest with `memory`, not started.
    pub fn pair(
        port: PortId,
        queue: u16,
        map: Arc<MemoryMap>,
        capabilities: Capabilities,
        entries: u32,
        rx_buffer_bytes: u32,
    ) -> Self {
        let base = u64::from(queue) * MEMORY_BYTES as u64;
        let tx = DriverRing::new(ring_at(&map, entries, base + TX_RINGS), true);
        let rx = DriverRing::new(ring_at(&map, entries, base + RX_RINGS), true);
        let free_tx = (0..TX_BUFFERS_COUNT).collect();
        let rx_buffers = 0;
        let in_order = false;
        Self {
            port,
            queue,
            base,
            tx,
            rx,
            rx_buffer_bytes,
            rx_buffers,
            capabilities,
            in_order,
            format: RingFormat::Split,
            entries,
            free_tx,
            map,
        }
    }

    /// Adds a port with a running guest of several queue pairs, which has posted its buffers.
    pub fn attach_pairs(fabric: &mut Fabric, port: PortId, pairs: u16) -> Vec<Self> {
        let map = memory(usize::from(pairs));
        fabric.add_port(port, pairs);
        fabric.set_capabilities(port, everything());
        fabric.set_memory(port, &map);
        let pair = |queue| {
            let mut pair = Self::pair(port, queue, map.clone(), everything(), 64, 2048);
            for index in 0..2 {
                fabric.start_ring(port, 2 * queue + index, pair.device_ring(index, 0), true);
            }
            pair.post(64);
            pair
        };
        (0..pairs).map(pair).collect()
    }

    /// Sets whether VIRTIO_F_IN_ORDER is negotiated; its rings must not run.
    pub fn in_order(mut self, in_order: bool) -> Self {
        let rings = [self.tx, self.rx].map(|ring| ring.in_order(in_order));
        [self.tx, self.rx] = rings;
        Self { in_order, ..self }
    }

    /// Sets the format of its rings, which must be unused.
    pub fn of_format(mut self, format: RingFormat) -> Self {
        self.format = format;
        let fresh = |index| DriverRing::new(self.ring_memory(index), true).in_order(self.in_order);
        (self.rx, self.tx) = (fresh(0), fresh(1));
        self
    }

    /// Starts the rings anew, packed.
    pub fn packed(self, fabric: &mut Fabric) -> Self {
        (0..2).for_each(|index| _ = fabric.stop_ring(self.port, index));
        let mut guest = self.of_format(RingFormat::Packed);
        (0..2).for_each(|index| guest.start(fabric, index));
        guest
    }

    /// As `attach`, with VIRTIO_F_IN_ORDER negotiated.
    pub fn attach_in_order(fabric: &mut Fabric, port: u16, entries: u32, rx_buffer_bytes: u32) -> Self {
        let guest = Self::attach(fabric, port, everything(), entries, rx_buffer_bytes);
        (0..2).for_each(|index| _ = fabric.stop_ring(guest.port, index));
        let mut guest = guest.in_order(true);
        (0..2).for_each(|index| guest.start(fabric, index));
        guest
    }

    /// The switch's side of virtqueue `index % 2` of the pair, which continues at `position`.
    pub fn device_ring(&self, index: u16, position: u16) -> DeviceRing {
        self.ordered(index, DeviceRing::new(self.ring_memory(index), position, true))
    }

    /// Sets the negotiated order of transmit chains on the switch's side `ring` of virtqueue `index % 2`.
    pub fn ordered(&self, index: u16, ring: DeviceRing) -> DeviceRing {
        let is_marked = self.in_order && index % 2 == 1;
        if is_marked { ring.keep_order().unwrap() } else { ring }
    }

    /// The memory of virtqueue `index % 2` of the pair.
    pub fn ring_memory(&self, index: u16) -> RingMemory {
        let base = self.base + if index.is_multiple_of(2) { RX_RINGS } else { TX_RINGS };
        ring_of(self.format, &self.map, self.entries, base)
    }

    /// (Re)starts virtqueue `index` on the switch's side.
    pub fn start(&mut self, fabric: &mut Fabric, index: u16) {
        let position = if index == 0 { self.rx.used_position() } else { self.tx.used_position() };
        fabric.start_ring(self.port, index, self.device_ring(index, position), true);
    }

    pub fn tx_ring(&self) -> RingId {
        RingId { port: self.port, queue: self.queue }
    }

    /// Posts up to `count` receive buffers.
    pub fn post(&mut self, count: u32) {
        for _ in 0..count {
            let addr = self.base + RX_BUFFERS + u64::from(self.rx_buffers) * u64::from(self.rx_buffer_bytes);
            if self.rx.add(&[], &[(addr, self.rx_buffer_bytes)], self.rx_buffers).is_none() {
                break;
            }
            self.rx_buffers += 1;
        }
        self.rx.publish();
    }

    fn write(&self, addr: u64, bytes: &[u8]) {
        let segment = self.map.translate(addr, bytes.len() as u32, &mut 0).unwrap();
        self.map.write(segment, 0, bytes).unwrap();
    }

    /// Queues a frame, its chain cut behind each of `cuts` bytes (the virtio-net header counts).
    pub fn queue_cut(&mut self, frame: &[u8], offload: Offload, cuts: &[usize]) -> bool {
        self.reclaim();
        let Some(buffer) = self.free_tx.pop() else { return false };
        let parts = self.lay_out(buffer, frame, offload, cuts);
        if self.tx.add(&parts, &[], buffer).is_none() {
            self.free_tx.push(buffer);
            return false;
        }
        self.tx.publish();
        true
    }

    /// Queues `count` chains of one frame, which share its memory.
    pub fn queue_shared(&mut self, frame: &[u8], cuts: &[usize], count: usize) {
        let buffer = self.free_tx.pop().expect("a free buffer");
        let parts = self.lay_out(buffer, frame, Offload::default(), cuts);
        for _ in 0..count {
            self.tx.add(&parts, &[], buffer).expect("a ring with room for all");
        }
        self.tx.publish();
    }

    /// Writes a frame to a buffer. Returns its pieces.
    fn lay_out(&self, buffer: u32, frame: &[u8], offload: Offload, cuts: &[usize]) -> Vec<(u64, u32)> {
        let addr = self.base + TX_BUFFERS + u64::from(buffer) * TX_BUFFER_BYTES;
        let header = &offload.emit(0)[..self.capabilities.header_bytes];
        let bytes = [header, frame].concat();
        self.write(addr, &bytes);
        let mut parts = Vec::new();
        let mut from = 0;
        for &cut in cuts.iter().chain(&[bytes.len()]) {
            let to = cut.clamp(from, bytes.len());
            parts.push((addr + from as u64, (to - from) as u32));
            from = to;
        }
        parts
    }

    pub fn queue(&mut self, frame: &[u8], offload: Offload) -> bool {
        self.queue_cut(frame, offload, &[])
    }

    /// Overwrites the start of every transmit buffer, whether the switch has it or not.
    pub fn overwrite(&self, bytes: &[u8]) {
        for buffer in 0..u64::from(TX_BUFFERS_COUNT) {
            self.write(self.base + TX_BUFFERS + buffer * TX_BUFFER_BYTES, bytes);
        }
    }

    /// Takes back completed transmit chains.
    pub fn reclaim(&mut self) -> usize {
        let mut count = 0;
        while let Some(used) = self.tx.take_used().unwrap() {
            self.free_tx.push(used.token);
            count += 1;
        }
        count
    }

    /// Number of chains published and not completed.
    pub fn in_flight(&self) -> u16 {
        self.tx.in_flight()
    }

    /// The next received frame. Posts its buffers again.
    pub fn receive(&mut self) -> Option<Received> {
        let mut bytes = self.take_buffer()?;
        let header = bytes.first_chunk::<HEADER_BYTES>().copied().unwrap();
        let header_bytes = self.capabilities.header_bytes;
        let num_buffers =
            if header_bytes == HEADER_BYTES { u16::from_le_bytes([header[10], header[11]]) } else { 1 };
        for _ in 1..num_buffers {
            bytes.extend(self.take_buffer().expect("all buffers of a packet are published together"));
        }
        Some(Received { offload: Offload::parse(&header), num_buffers, frame: bytes.split_off(header_bytes) })
    }

    fn take_buffer(&mut self) -> Option<Vec<u8>> {
        let used = self.rx.take_used().unwrap()?;
        let addr = self.base + RX_BUFFERS + u64::from(used.token) * u64::from(self.rx_buffer_bytes);
        assert!(used.len <= self.rx_buffer_bytes, "no more is written than the buffer holds");
        let mut bytes = vec![0; used.len as usize];
        let segment = self.map.translate(addr, used.len, &mut 0).unwrap();
        self.map.read(segment, 0, &mut bytes).unwrap();
        self.rx.add(&[], &[(addr, self.rx_buffer_bytes)], used.token).unwrap();
        self.rx.publish();
        Some(bytes)
    }

    pub fn counters(&self, fabric: &Fabric) -> PortCounters {
        fabric.counters(self.port).unwrap()
    }
}

/// Asserts every port's equation, and that the sums of forwarded and delivered packets are equal.
pub fn assert_conserved(fabric: &Fabric, ports: &[PortId]) {
    let mut totals = (0, 0);
    for &port in ports.iter().chain(&[PortId::INTERNAL]) {
        let counters = fabric.counters(port).unwrap();
        assert!(counters.is_conserved(), "port {port}: {counters:?}");
        totals = (totals.0 + counters.forwarded, totals.1 + counters.tx_packets);
    }
    assert_eq!(totals.0, totals.1, "forwarded = delivered");
}

/// An Ethernet frame of `len` bytes with a recognisable payload.
pub fn frame(to: u8, from: u8, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
    frame.extend((14..len).map(|at| (at * 7 + usize::from(from)) as u8));
    frame
}

/// A module that sends every packet to a fixed list of ports.
pub struct Everywhere(pub Vec<PortId>);

impl Module for Everywhere {
    fn name(&self) -> &'static str {
        "everywhere"
    }

    fn decide(
        &self,
        batch: &lasthop_module_api::Batch<'_>,
        _now_ns: u64,
        verdicts: &mut lasthop_module_api::Verdicts,
    ) {
        for index in 0..batch.headers.len() {
            for &port in self.0.iter().filter(|port| **port != batch.port) {
                verdicts.output(index, port);
            }
        }
    }

    fn port_added(&self, _: PortId, _: &lasthop_module_api::PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}

/// A fabric that floods among ports 1 to `ports`.
pub fn flooding_fabric(ports: u16) -> Fabric {
    Fabric::new(Arc::new(Everywhere((1..=ports).map(PortId).collect()))).unwrap()
}

/// A sender at port 1 and a receiver at port 2 with `rx_entries` receive buffers.
pub fn flooding_pair(rx_entries: u32) -> (Fabric, TestGuest, TestGuest) {
    let mut fabric = flooding_fabric(2);
    let sender = TestGuest::attach(&mut fabric, 1, everything(), 64, 2048);
    let receiver = TestGuest::attach(&mut fabric, 2, everything(), rx_entries, 2048);
    (fabric, sender, receiver)
}

/// Sends to the port that the last byte of the destination names; 0xff is all ports of `flooded` but the sender's, 0 is
/// no port.
pub struct ByLastByte {
    pub flooded: RangeInclusive<u16>,
}

impl Module for ByLastByte {
    fn name(&self) -> &'static str {
        "by-last-byte"
    }

    fn decide(&self, batch: &Batch<'_>, _now_ns: u64, verdicts: &mut Verdicts) {
        for (index, header) in batch.headers.iter().enumerate() {
            match header.bytes()[5] {
                0xff => {
                    let others = self.flooded.clone().map(PortId).filter(|port| *port != batch.port);
                    others.for_each(|port| verdicts.output(index, port));
                }
                0 => verdicts.drop_packet(index, DropReason::NoDestination),
                port => verdicts.output(index, PortId(port.into())),
            }
        }
    }

    fn port_added(&self, _: PortId, _: &PortSettings) -> Result<(), String> {
        Ok(())
    }

    fn port_removed(&self, _: PortId) {}
}
