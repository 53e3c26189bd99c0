//! Ports, memory and rings come and go; whoever goes takes its references along.

use std::sync::Arc;

use lasthop_guestmem::MemoryMap;
use lasthop_ring::{DeviceRing, RingError};
use lasthop_verdict::{DropReason, Module, PortId};

use crate::receiver::{Receiver, RxQueue};
use crate::sender::{Sender, TxQueue};
use crate::{Capabilities, Fabric, PortCounters, RingId};

/// A port's ring as seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingState {
    /// Entries of the ring.
    pub entries: u16,
    /// Whether packets pass.
    pub enabled: bool,
    /// What the guest did wrong; the ring is stopped until it is started again.
    pub error: Option<RingError>,
}

/// Splits a virtqueue's index into queue pair and direction.
fn queue_of(index: u16) -> (usize, bool) {
    (usize::from(index / 2), index % 2 == 1)
}

impl Fabric {
    /// A fabric whose packets `module` decides on; it has the port `internal` and no other.
    ///
    /// # Errors
    /// When the switch's own packet memory cannot be had.
    pub fn new(module: Arc<dyn Module>) -> Result<Self, String> {
        let (internal, sender) = crate::internal::InternalPort::new()?;
        let mut fabric = Self {
            module,
            senders: crate::Senders::default(),
            receivers: crate::Receivers::default(),
            internal,
            fetched: crate::Fetched::default(),
            verdicts: crate::Verdicts::default(),
            destinations: crate::Destinations::default(),
            scratch: crate::Scratch::default(),
            signals: Vec::with_capacity(4 * lasthop_verdict::PORTS_MAX),
            epoch: 1,
        };
        fabric.senders.put(PortId::INTERNAL, sender);
        Ok(fabric)
    }

    /// Sets the secret by which flows are spread over a guest's receive queues, so that no sender can aim at one.
    pub fn set_flow_key(&mut self, key: u64) {
        self.receivers.flow_key = key;
    }

    /// A port appears, without guest: what is sent to it is dropped as `port_down`.
    pub fn add_port(&mut self, port: PortId, queue_pairs: u16) {
        let pairs = usize::from(queue_pairs.clamp(1, crate::bounds::QUEUE_PAIRS_MAX));
        let mut sender = Sender::default();
        sender.queues.resize_with(pairs, || None);
        let mut receiver = Receiver::default();
        receiver.queues.resize_with(pairs, || None);
        self.senders.put(port, sender);
        self.receivers.put(port, receiver);
    }

    /// A port goes, with its rings; nothing refers to it afterwards. Returns its last counters.
    pub fn remove_port(&mut self, port: PortId) -> Option<PortCounters> {
        let pairs = self.senders.get(port)?.queues.len() as u16;
        for index in 0..2 * pairs {
            self.stop_ring(port, index);
        }
        let counters = self.counters(port);
        self.senders.remove(port);
        self.receivers.remove(port);
        counters
    }

    /// What the guest of `port` negotiated. Its rings are stopped at that time.
    pub fn set_capabilities(&mut self, port: PortId, capabilities: Capabilities) {
        if let (Some(sender), Some(receiver)) = (self.senders.get_mut(port), self.receivers.get_mut(port)) {
            (sender.capabilities, receiver.capabilities) = (capabilities, capabilities);
        }
    }

    /// The memory of the guest of `port`. Its rings are stopped at that time, so nothing refers to the old one.
    pub fn set_memory(&mut self, port: PortId, map: &Arc<MemoryMap>) {
        self.epoch = self.epoch.wrapping_add(1);
        if let (Some(sender), Some(receiver)) = (self.senders.get_mut(port), self.receivers.get_mut(port)) {
            (sender.map, receiver.map) = (Arc::clone(map), Arc::clone(map));
            sender.epoch = self.epoch;
        }
    }

    /// Virtqueue `index` of `port` starts, or starts over.
    pub fn start_ring(&mut self, port: PortId, index: u16, ring: DeviceRing, enabled: bool) {
        self.stop_ring(port, index);
        let (queue, transmit) = queue_of(index);
        if transmit {
            let slot = self.senders.get_mut(port).and_then(|sender| sender.queues.get_mut(queue));
            if let Some(slot) = slot {
                *slot = Some(TxQueue::new(ring, enabled));
            }
        } else {
            let slot = self.receivers.get_mut(port).and_then(|receiver| receiver.queues.get_mut(queue));
            if let Some(slot) = slot {
                let mut queue = RxQueue::new(ring, enabled);
                queue.ring.suppress_kicks();
                *slot = Some(queue);
            }
        }
    }

    /// Virtqueue `index` of `port` stops: packets of it that wait are dropped and completed, packets that wait for it are
    /// dropped. Returns the available position where it would go on, `None` if it was not running.
    pub fn stop_ring(&mut self, port: PortId, index: u16) -> Option<u16> {
        let (queue, transmit) = queue_of(index);
        let ring = RingId { port, queue: queue as u16 };
        if transmit {
            self.receivers.recall(ring, &mut self.senders, &mut self.scratch);
        } else {
            self.receivers.drop_waiting(ring, DropReason::PortDown, &mut self.senders);
        }
        self.publish();
        if transmit {
            let stopped = self.senders.get_mut(port)?.queues.get_mut(queue)?.take()?;
            debug_assert!(stopped.taken() == 0, "a stopped ring has no chain under way");
            Some(stopped.ring.base())
        } else {
            let stopped = self.receivers.get_mut(port)?.queues.get_mut(queue)?.take()?;
            Some(stopped.ring.base())
        }
    }

    /// Virtqueue `index` of `port` is enabled or disabled. Packets of a disabled transmit ring are discarded, nothing is
    /// delivered to a disabled receive ring (vhost-user, "Ring states").
    pub fn set_ring_enabled(&mut self, port: PortId, index: u16, enabled: bool) {
        let (queue, transmit) = queue_of(index);
        let ring = RingId { port, queue: queue as u16 };
        if transmit {
            if let Some(queue) = self.senders.queue_mut(ring) {
                queue.enabled = enabled;
            }
            return;
        }
        if !enabled {
            self.receivers.drop_waiting(ring, DropReason::PortDown, &mut self.senders);
            self.publish();
        }
        if let Some(queue) = self.receivers.queue_mut(ring) {
            queue.enabled = enabled;
        }
    }

    /// Virtqueue `index` of `port`, if it runs.
    #[must_use]
    pub fn ring_state(&self, port: PortId, index: u16) -> Option<RingState> {
        let (queue, transmit) = queue_of(index);
        if transmit {
            let queue = self.senders.get(port)?.queues.get(queue)?.as_ref()?;
            Some(RingState { entries: queue.ring.entries(), enabled: queue.enabled, error: queue.error })
        } else {
            let queue = self.receivers.get(port)?.queues.get(queue)?.as_ref()?;
            Some(RingState { entries: queue.ring.entries(), enabled: queue.enabled, error: queue.error })
        }
    }

    /// Whether a file behind the port's memory was cut short by its guest or front end.
    #[must_use]
    pub fn memory_is_dead(&self, port: PortId) -> bool {
        self.senders.get(port).is_some_and(|sender| sender.map.is_dead())
    }

    /// The port's counters, both sides taken together.
    #[must_use]
    pub fn counters(&self, port: PortId) -> Option<PortCounters> {
        let sent = self.senders.get(port)?.counters;
        let Some(receiver) = self.receivers.get(port) else {
            // The switch's own port: what was taken from its ring was put in by the switch.
            return Some(PortCounters { injected: sent.rx_packets, rx_packets: 0, ..sent });
        };
        let got = receiver.counters;
        Some(PortCounters {
            tx_packets: got.tx_packets,
            tx_bytes: got.tx_bytes,
            tx_gso_packets: got.tx_gso_packets,
            tx_drops: got.tx_drops,
            tx_csum_completed: got.tx_csum_completed,
            ..sent
        })
    }

    /// Counts a written call eventfd.
    pub fn count_signal(&mut self, port: PortId) {
        if let Some(sender) = self.senders.get_mut(port) {
            sender.counters.signals += 1;
        }
    }
}
