//! A guest's network card: real virtio rings in memory of this process, the driver's side.
//!
//! ```text
//!   memory:  tx ring | rx ring | heads to send | heads received | payload to send | payload received
//!                                one for each slot                one for all slots: nobody reads it
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use lasthop_fabric::{Capabilities, Fabric};
use lasthop_guestmem::{Mapping, MemoryMap, Region, SlotArray};
use lasthop_module_api::PortId;
use lasthop_ring::{DeviceRing, DriverRing, RingAddresses, RingMemory};
use lasthop_wire::vnet::HEADER_BYTES;

use crate::frame::{FrameHead, IMAGE_BYTES, PAYLOAD_BYTES_MAX};

/// Frames in each ring; a chain has two descriptors.
pub(crate) const SLOTS: u32 = 256;
/// Packets in the receive ring of a card without receive offloads: the most that QEMU offers.
const PLAIN_SLOTS: u32 = 1024;
const RING_BYTES: u64 = 64 << 10;
const SLOT_BYTES: u32 = 128;
const HEADS_SENT: u64 = 2 * RING_BYTES;
const HEADS_RECEIVED: u64 = HEADS_SENT + (SLOTS * SLOT_BYTES) as u64;
const PAYLOAD_SENT: u64 = HEADS_RECEIVED + (PLAIN_SLOTS * SLOT_BYTES) as u64;
const PAYLOAD_BYTES: u32 = 68 << 10;
const PAYLOAD_RECEIVED: u64 = PAYLOAD_SENT + PAYLOAD_BYTES as u64;
const MEMORY_BYTES: u64 = PAYLOAD_RECEIVED + PAYLOAD_BYTES as u64;

/// A packet that became visible to the guest: the CPU that copied it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) copier_cpu: usize,
}

/// One card.
pub(crate) struct Nic {
    pub(crate) tx: DriverRing,
    pub(crate) rx: DriverRing,
    heads_sent: SlotArray,
    heads_received: SlotArray,
    free: Vec<u32>,
    /// Frames whose copies are complete, in the order of the receive ring. The guest takes no more than these.
    pub(crate) arrivals: VecDeque<Arrival>,
    /// Frames that the guest has made and that are not in the ring yet.
    pub(crate) outbox: VecDeque<FrameHead>,
    /// Frames in the ring, published, and not taken by the switch.
    pub(crate) published: VecDeque<FrameHead>,
    /// Frames in the ring that are not published yet.
    added: Vec<FrameHead>,
}

impl Nic {
    /// Adds a port to the fabrics of a switch, with a guest whose rings run. Their home is fabric number `home`. A
    /// `plain` card has no receive offloads.
    pub(crate) fn attach(fabrics: &mut [Fabric], home: usize, port: PortId, plain: bool) -> Result<Self> {
        let mapping = Arc::new(Mapping::anonymous(MEMORY_BYTES as usize)?);
        let region = Region { guest_addr: 0, user_addr: 0, mapping };
        let map = Arc::new(MemoryMap::new(vec![region]).map_err(|error| anyhow!(error))?);
        for fabric in &mut *fabrics {
            fabric.add_port(port, 1);
            let capabilities = Capabilities { mergeable: true, csum: !plain, ..Capabilities::default() };
            fabric.set_capabilities(port, capabilities);
            fabric.set_memory(port, &map);
        }
        let rx_slots = if plain { PLAIN_SLOTS } else { SLOTS };
        let memory = |index: u16| {
            let entries = 2 * if index == 0 { rx_slots } else { SLOTS };
            let base = u64::from(1 - index) * RING_BYTES;
            let available = base + 16 * u64::from(entries);
            let used = (available + 6 + 2 * u64::from(entries)).next_multiple_of(64);
            RingMemory::new(&map, entries, RingAddresses { descriptors: base, available, used })
        };
        let tx = DriverRing::new(memory(1)?, true);
        let rx = DriverRing::new(memory(0)?, true);
        for index in [0, 1] {
            start(fabrics, home, port, index, DeviceRing::new(memory(index)?, 0, true))?;
        }
        let slots = |at: u64, count: u32| {
            let first =
                map.translate(at, SLOT_BYTES, &mut 0).ok_or_else(|| anyhow!("a slot outside of memory"))?;
            SlotArray::new(&map, first, SLOT_BYTES, count).map_err(|error| anyhow!("{error:?}"))
        };
        let (heads_sent, heads_received) = (slots(HEADS_SENT, SLOTS)?, slots(HEADS_RECEIVED, rx_slots)?);
        let mut nic = Self {
            tx,
            rx,
            heads_sent,
            heads_received,
            free: (0..SLOTS).rev().collect(),
            arrivals: VecDeque::new(),
            outbox: VecDeque::new(),
            published: VecDeque::new(),
            added: Vec::new(),
        };
        (0..rx_slots).for_each(|slot| nic.post(slot));
        nic.rx.publish();
        Ok(nic)
    }

    fn post(&mut self, slot: u32) {
        let head = HEADS_RECEIVED + u64::from(slot * SLOT_BYTES);
        let parts = [(head, IMAGE_BYTES as u32), (PAYLOAD_RECEIVED, PAYLOAD_BYTES)];
        self.rx.add(&[], &parts, slot);
    }

    /// Puts a frame into the transmit ring; the switch sees it at [`Self::publish`]. False if the ring is full.
    pub(crate) fn add(&mut self, head: FrameHead) -> bool {
        self.reclaim();
        let Some(slot) = self.free.pop() else { return false };
        debug_assert!(head.payload_bytes <= PAYLOAD_BYTES_MAX);
        let written = self.heads_sent.write(slot as usize, 0, &head.emit());
        debug_assert!(written.is_ok(), "slots hold a head");
        let address = HEADS_SENT + u64::from(slot * SLOT_BYTES);
        let head_bytes = head.head_bytes();
        let rest = head.frame_bytes() - head_bytes;
        let image_bytes = HEADER_BYTES as u32 + head_bytes;
        self.tx.add(&[(address, image_bytes), (PAYLOAD_SENT, rest)], &[], slot);
        self.added.push(head);
        true
    }

    /// Takes back chains that the switch has completed.
    fn reclaim(&mut self) {
        while let Ok(Some(used)) = self.tx.take_used() {
            self.free.push(used.token);
        }
    }

    /// Room for frames in the transmit ring.
    pub(crate) fn room(&mut self) -> usize {
        self.reclaim();
        self.free.len()
    }

    /// Publishes what was added on both rings. Returns the number of frames.
    pub(crate) fn publish(&mut self) -> usize {
        self.rx.publish();
        self.tx.publish();
        let count = self.added.len();
        self.published.extend(self.added.drain(..));
        count
    }

    /// The next packet that has arrived, and the CPU that copied it. Its buffer is free again at [`Self::publish`].
    pub(crate) fn receive(&mut self) -> Option<(FrameHead, Arrival)> {
        self.arrivals.front()?;
        let head = self.take()?;
        Some((head, self.arrivals.pop_front()?))
    }

    /// The next packet of the receive ring, visible or not.
    pub(crate) fn take(&mut self) -> Option<FrameHead> {
        let used = self.rx.take_used().ok().flatten()?;
        let mut image = [0; IMAGE_BYTES];
        let read = self.heads_received.read(used.token as usize, 0, &mut image);
        debug_assert!(read.is_ok(), "slots hold a head");
        self.post(used.token);
        Some(FrameHead::parse(&image))
    }

    /// Packets in the receive ring that the guest has not taken, visible or not.
    pub(crate) fn delivered(&mut self) -> usize {
        usize::from(self.rx.used_pending().unwrap_or(0))
    }
}

/// Starts a virtqueue at its home, after all other fabrics know it.
fn start(fabrics: &mut [Fabric], home: usize, port: PortId, index: u16, ring: DeviceRing) -> Result<()> {
    let part =
        fabrics[home].prepare_ring(port, index, ring).ok_or_else(|| anyhow!("port {port} has no ring"))?;
    for (_, fabric) in fabrics.iter_mut().enumerate().filter(|(number, _)| *number != home) {
        fabric.join_ring(port, index, &part);
    }
    fabrics[home].set_ring_enabled(port, index, true);
    Ok(())
}
