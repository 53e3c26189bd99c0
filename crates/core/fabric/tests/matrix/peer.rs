//! Guests with any layout of chains and buffers.

use std::sync::Arc;

use lasthop_fabric::{Capabilities, Fabric, RingId};
use lasthop_guestmem::MemoryMap;
use lasthop_module_api::PortId;
use lasthop_ring::{DeviceRing, DriverRing, write_table};

use crate::header::VnetHeader;
use crate::model::Received;
use crate::support::{RX_BUFFERS, RX_RINGS, TX_RINGS, memory, ring_at};

/// Addresses of frames to send and of receive buffers, far apart within the memory that `support` makes.
const TX_BUFFER: u64 = 2 << 20;
const TX_TABLE: u64 = 3 << 20;
const RX_TABLES: u64 = 4 << 20;
const TABLE_BYTES: u64 = 1 << 10;
const ENTRIES: u32 = 256;

/// The layout of a chain.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    /// The offsets of cuts between descriptors, in bytes of header and frame.
    pub(crate) cuts: Vec<usize>,
    pub(crate) indirect: bool,
}

impl Layout {
    /// The descriptors of `len` bytes at `addr`.
    fn parts(&self, addr: u64, len: usize) -> Vec<(u64, u32)> {
        let mut from = 0;
        let ends = self.cuts.iter().copied().chain([len]);
        let part = |end: usize| {
            let end = end.clamp(from, len);
            let part = (addr + from as u64, (end - from) as u32);
            from = end;
            part
        };
        ends.map(part).collect()
    }
}

pub(crate) struct Peer {
    pub(crate) port: PortId,
    header_bytes: usize,
    map: Arc<MemoryMap>,
    tx: DriverRing,
    rx: DriverRing,
    /// Receive buffers, by token: address, bytes, layout.
    buffers: Vec<(u64, usize, Layout)>,
    next_buffer: u64,
}

impl Peer {
    pub(crate) fn attach(fabric: &mut Fabric, port: u16, capabilities: Capabilities) -> Self {
        Self::with_rings(fabric, port, capabilities, ENTRIES)
    }

    /// As `attach`, with rings of `entries`.
    pub(crate) fn with_rings(
        fabric: &mut Fabric,
        port: u16,
        capabilities: Capabilities,
        entries: u32,
    ) -> Self {
        let (port, map) = (PortId(port), memory(1));
        fabric.add_port(port, 1);
        fabric.set_capabilities(port, capabilities);
        fabric.set_memory(port, &map);
        let [tx, rx] = [TX_RINGS, RX_RINGS].map(|base| DriverRing::new(ring_at(&map, entries, base), true));
        for (index, base) in [(0, RX_RINGS), (1, TX_RINGS)] {
            fabric.start_ring(port, index, DeviceRing::new(ring_at(&map, entries, base), 0, true), true);
        }
        let (buffers, next_buffer) = (Vec::new(), RX_BUFFERS);
        Self { port, header_bytes: capabilities.header_bytes, map, tx, rx, buffers, next_buffer }
    }

    pub(crate) fn ring(&self) -> RingId {
        RingId { port: self.port, queue: 0 }
    }

    fn write(&self, addr: u64, bytes: &[u8]) {
        let segment = self.map.translate(addr, bytes.len() as u32, &mut 0).unwrap();
        self.map.write(segment, 0, bytes).unwrap();
    }

    fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let segment = self.map.translate(addr, len as u32, &mut 0).unwrap();
        self.map.read(segment, 0, &mut bytes).unwrap();
        bytes
    }

    /// Writes the indirect table for the given parts at `addr`. Returns its length in bytes.
    fn table(&self, addr: u64, readable: &[(u64, u32)], writable: &[(u64, u32)]) -> u32 {
        let table = self.map.translate(addr, TABLE_BYTES as u32, &mut 0).unwrap();
        write_table(self.tx.format(), &self.map, table, readable, writable).unwrap()
    }

    /// Sends one frame and has the switch deliver it and return its chain.
    pub(crate) fn send(&mut self, fabric: &mut Fabric, header: VnetHeader, frame: &[u8], layout: &Layout) {
        self.put(header, frame, layout);
        assert_eq!(fabric.visit(self.ring(), 0), 1);
    }

    /// Puts one frame into the ring.
    fn put(&mut self, header: VnetHeader, frame: &[u8], layout: &Layout) {
        let mut bytes = header.to_bytes();
        bytes.resize(self.header_bytes, 0xee);
        bytes.extend(frame);
        self.write(TX_BUFFER, &bytes);
        let parts = layout.parts(TX_BUFFER, bytes.len());
        let added = if layout.indirect {
            let len = self.table(TX_TABLE, &parts, &[]);
            self.tx.add_indirect(TX_TABLE, len, 0)
        } else {
            self.tx.add(&parts, &[], 0)
        };
        added.expect("the ring has room");
        self.tx.publish();
    }

    /// Whether the switch has returned all chains.
    pub(crate) fn is_done(&mut self) -> bool {
        while self.tx.take_used().unwrap().is_some() {}
        self.tx.in_flight() == 0
    }

    /// Posts a new receive buffer.
    pub(crate) fn post(&mut self, len: usize, layout: &Layout) {
        self.buffers.push((self.next_buffer, len, layout.clone()));
        self.next_buffer += len as u64;
        self.post_again(self.buffers.len() as u32 - 1);
    }

    fn post_again(&mut self, token: u32) {
        let (addr, len, layout) = &self.buffers[token as usize];
        let parts = layout.parts(*addr, *len);
        let added = if layout.indirect {
            let table = RX_TABLES + u64::from(token) * TABLE_BYTES;
            let len = self.table(table, &[], &parts);
            self.rx.add_indirect(table, len, token)
        } else {
            self.rx.add(&[], &parts, token)
        };
        added.expect("the ring has room");
        self.rx.publish();
    }

    /// The next frame with its header. Posts its buffers again.
    pub(crate) fn receive(&mut self) -> Option<Received> {
        let mut bytes = self.take_buffer()?;
        let header = VnetHeader::of(&bytes);
        let num_buffers =
            if self.header_bytes == 12 { u16::from_le_bytes([bytes[10], bytes[11]]) } else { 1 };
        assert!(num_buffers > 0, "a packet has a buffer");
        for _ in 1..num_buffers {
            bytes.extend(self.take_buffer().expect("all buffers of a packet are published together"));
        }
        Some((header, bytes.split_off(self.header_bytes)))
    }

    /// Whether there is a frame to receive.
    pub(crate) fn has_received(&mut self) -> bool {
        self.rx.used_pending().unwrap() > 0
    }

    fn take_buffer(&mut self) -> Option<Vec<u8>> {
        let used = self.rx.take_used().unwrap()?;
        let (addr, len, _) = self.buffers[used.token as usize];
        assert!(used.len as usize <= len, "no more is written than the buffer holds");
        let bytes = self.read(addr, used.len as usize);
        self.post_again(used.token);
        Some(bytes)
    }
}
