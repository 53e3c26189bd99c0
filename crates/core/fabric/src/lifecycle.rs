//! Adds and removes ports, memory and rings. Removing one also ends all references to it.
//!
//! Every fabric is informed of every change, so that no worker looks anything up in another one:
//!
//! ```text
//!   start   home: prepare_ring ──> others: join_ring ──> home: set_ring_enabled
//!   stop    home: stop_step until it is done ──> others: leave_ring
//! ```
//!
//! Between two calls a worker holds no reference to guest memory: it drops its part of a ring when it leaves the ring.
//! The last reference frees the memory.

use std::sync::Arc;

use lasthop_guestmem::MemoryMap;
use lasthop_module_api::{DropReason, Module, PortId};
use lasthop_ring::{DeviceRing, RingError};

use crate::bounds::WORKERS_MAX;
use crate::rx::receive_ring::ReceiveRing;
use crate::rx::receiver::Receiver;
use crate::side_table::Chains;
use crate::tx::sender::Sender;
use crate::tx::tx_queue::TxQueue;
use crate::{Board, Capabilities, Fabric, InternalPort, PortCounters, RingId, Segment, Tools, tools};

/// The state of a port's ring for reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingState {
    /// Entries of the ring.
    pub entries: u16,
    /// Whether packets pass while the port's link is up.
    pub enabled: bool,
    /// The guest's fault. The ring stays stopped until it is started again.
    pub error: Option<RingError>,
}

/// The shared part of a ring, for other workers.
#[derive(Clone, Debug)]
pub struct RingPart(Part);

#[derive(Clone, Debug)]
enum Part {
    Receive(Arc<ReceiveRing>),
    Transmit(Arc<Chains>),
}

/// The progress of stopping a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopping {
    /// Another worker is copying from it or into it: call again.
    Busy,
    /// It is stopped, and would continue at this available position. `None` if it did not run here.
    Done(Option<u16>),
}

/// Splits a virtqueue's index into queue pair and direction.
fn queue_of(index: u16) -> (usize, bool) {
    (usize::from(index / 2), index % 2 == 1)
}

impl Fabric {
    /// Makes a fabric for a single worker, with the port `internal` only; `module` decides.
    ///
    /// # Errors
    /// If the memory for the switch's own packets cannot be allocated.
    pub fn new(module: Arc<dyn Module>) -> Result<Self, String> {
        let mut fabrics = Self::for_workers(&module, 1)?;
        fabrics.pop().ok_or_else(|| "a switch has at least one worker".to_owned())
    }

    /// As `new`, for `workers` of one switch (1 to `WORKERS_MAX`): one fabric each. The first one is the home of the
    /// port `internal`.
    ///
    /// # Errors
    /// If the memory for the switch's own packets cannot be allocated, or the number is out of range.
    pub fn for_workers(module: &Arc<dyn Module>, workers: usize) -> Result<Vec<Self>, String> {
        if !(1..=WORKERS_MAX).contains(&workers) {
            return Err(format!("{workers} workers; choose 1 to {WORKERS_MAX}"));
        }
        let board = Arc::new(Board::new(workers));
        let mut fabrics: Vec<Self> =
            (0..workers as u8).map(|worker| Self::alone(Arc::clone(module), &board, worker)).collect();
        let (internal, sender) = InternalPort::new()?;
        board.set_sending(PortId::INTERNAL, InternalPort::RING.queue, true);
        for other in &mut fabrics[1..] {
            let (map, chains) = (Arc::clone(&sender.map), sender.chains.clone());
            let replica = Sender { map, chains, epoch: sender.epoch, ..Sender::default() };
            other.senders.put(PortId::INTERNAL, replica);
        }
        fabrics[0].senders.put(PortId::INTERNAL, sender);
        fabrics[0].internal = Some(internal);
        Ok(fabrics)
    }

    fn alone(module: Arc<dyn Module>, board: &Arc<Board>, worker: u8) -> Self {
        Self {
            module,
            senders: crate::Senders::new(Arc::clone(board), worker),
            receivers: crate::Receivers::new(Arc::clone(board)),
            internal: None,
            fetched: crate::Fetched::default(),
            verdicts: crate::Verdicts::of_worker(usize::from(worker)),
            upcalls: crate::Upcalls::default(),
            destinations: crate::Destinations::default(),
            scratch: crate::Scratch::default(),
            segments: Box::new([Segment::default(); crate::bounds::CHAIN_SEGMENTS_MAX]),
            signals: Vec::with_capacity(4 * lasthop_module_api::PORTS_MAX),
            wakes: 0,
            epoch: 1,
            helping: None,
            shared: crate::SharedFrame::new(board.workers()),
        }
    }

    /// Sets the secret for spreading flows over a guest's receive queues, so that no sender can select one, and whether they then
    /// follow the guest to the queue pair from which it sends them (virtio 1.2, 5.1.6.5.6). All workers
    /// of a switch use the same, so that a flow keeps its queue wherever it is sent from. Before ports are added.
    pub fn set_flow_key(&mut self, key: u64, follow: bool) {
        (self.receivers.flow_key, self.receivers.steers) = (key, follow);
    }

    /// Lets `module` decide from the next visit on.
    pub fn set_module(&mut self, module: Arc<dyn Module>) {
        self.module = module;
    }

    /// Adds a port without a guest: packets to it are dropped as `port_down`.
    pub fn add_port(&mut self, port: PortId, queue_pairs: u16) {
        let pairs = usize::from(queue_pairs.clamp(1, crate::bounds::QUEUE_PAIRS_MAX));
        let (board, flow_key) = (&self.senders.board, self.receivers.flow_key);
        let steers = pairs > 1 && self.receivers.steers;
        let steering = steers.then(|| board.steering(port, flow_key));
        let mut sender = Sender { steering: steering.clone(), ..Sender::default() };
        sender.queues.resize_with(pairs, || None);
        sender.chains.resize_with(pairs, || None);
        self.senders.put(port, sender);
        self.receivers.put(port, Receiver::new(pairs, steering));
        self.senders.board.set_link(port, true);
    }

    /// Sets the link of `port` up or down, in the fabrics of all workers. While it is down, packets from and to its
    /// guest are dropped as `link_down`. Other workers see the change after their present visit; the caller then calls
    /// [`Self::drop_waiting`].
    pub fn set_link(&mut self, port: PortId, up: bool) {
        self.senders.board.set_link(port, up);
    }

    /// Drops packets that wait for the guest of `port`, whose link is down. False if another worker has the claim of
    /// one of its rings; call again.
    pub fn drop_waiting(&mut self, port: PortId) -> bool {
        let pairs = self.receivers.get(port).map_or(0, |receiver| receiver.queues.len() as u16);
        let mut done = true;
        for ring in (0..pairs).map(|queue| RingId { port, queue }) {
            if self.receivers.ring(ring).is_some() {
                done &= self.hold(ring, |service| service.drop_waiting(DropReason::LinkDown)).is_some();
            }
        }
        done
    }

    /// Removes a port and its rings, and all references to it. Returns its last counters. With several workers, its
    /// rings must have been stopped at all of them.
    pub fn remove_port(&mut self, port: PortId) -> Option<PortCounters> {
        let pairs = self.senders.get(port)?.queues.len() as u16;
        for index in 0..2 * pairs {
            self.stop_ring(port, index);
        }
        // Packets on their way back to this worker must not be counted at the next port with this number.
        self.take_returns();
        let counters = self.counters(port);
        self.untap(port);
        self.senders.remove(port);
        self.receivers.remove(port);
        counters
    }

    /// Has the module forget the guest of `port`, which has left: see [`Module::guest_left`]. False: call again.
    pub fn forget_guest(&mut self, port: PortId) -> bool {
        let worker = self.worker();
        self.module.guest_left(port, worker)
    }

    /// Sets the features that the guest of `port` negotiated. Its rings must be stopped.
    pub fn set_capabilities(&mut self, port: PortId, capabilities: Capabilities) {
        if let (Some(sender), Some(receiver)) = (self.senders.get_mut(port), self.receivers.get_mut(port)) {
            (sender.capabilities, receiver.capabilities) = (capabilities, capabilities);
        }
    }

    /// Sets the memory of the guest of `port`. Its rings must be stopped, so that nothing refers to the old memory.
    pub fn set_memory(&mut self, port: PortId, map: &Arc<MemoryMap>) {
        self.epoch = self.epoch.wrapping_add(1);
        if let (Some(sender), Some(receiver)) = (self.senders.get_mut(port), self.receivers.get_mut(port)) {
            (sender.map, receiver.map) = (Arc::clone(map), Arc::clone(map));
            sender.epoch = self.epoch;
        }
    }

    /// Starts or restarts virtqueue `index` of `port` on the only worker.
    pub fn start_ring(&mut self, port: PortId, index: u16, ring: DeviceRing, enabled: bool) {
        self.stop_ring(port, index);
        self.prepare_ring(port, index, ring);
        self.set_ring_enabled(port, index, enabled);
    }

    /// Makes this fabric the home of virtqueue `index` of `port`, which is stopped. All other workers have to join the
    /// returned part before the ring is enabled and packets pass. If the ring was taken over, chains that the previous
    /// device had taken are returned undelivered. `None` if there is no such queue.
    pub fn prepare_ring(&mut self, port: PortId, index: u16, ring: DeviceRing) -> Option<RingPart> {
        let (queue, transmit) = queue_of(index);
        let id = RingId { port, queue: queue as u16 };
        let part = if transmit {
            let chains = self.senders.begin(id, TxQueue::new(ring))?;
            self.publish();
            Part::Transmit(chains)
        } else {
            let receiver = self.receivers.get(port)?;
            let (map, workers) = (Arc::clone(&receiver.map), self.senders.board.workers());
            Part::Receive(Arc::new(ReceiveRing::new(id, map, receiver.capabilities, ring, workers)))
        };
        let part = RingPart(part);
        self.join_ring(port, index, &part);
        Some(part)
    }

    /// Joins a ring whose home is another worker.
    pub fn join_ring(&mut self, port: PortId, index: u16, part: &RingPart) {
        let queue = usize::from(index / 2);
        match &part.0 {
            Part::Transmit(chains) => {
                let slot = self.senders.get_mut(port).and_then(|sender| sender.chains.get_mut(queue));
                slot.into_iter().for_each(|slot| *slot = Some(Arc::clone(chains)));
            }
            Part::Receive(ring) => {
                let slot = self.receivers.get_mut(port).and_then(|receiver| receiver.queues.get_mut(queue));
                slot.into_iter().for_each(|slot| *slot = Some(Arc::clone(ring)));
            }
        }
    }

    /// Leaves a stopped ring whose home is another worker: drops this worker's part of it.
    pub fn leave_ring(&mut self, port: PortId, index: u16) {
        let (queue, transmit) = queue_of(index);
        if transmit {
            let slot = self.senders.get_mut(port).and_then(|sender| sender.chains.get_mut(queue));
            slot.into_iter().for_each(|slot| *slot = None);
        } else {
            // Workers that still saw the ring open may have queued packets after the ring was closed. The last worker
            // to leave drops them all.
            let ring = RingId { port, queue: queue as u16 };
            self.hold(ring, |service| {
                if !service.claim.is_open() {
                    service.drop_waiting(DropReason::PortDown);
                }
            });
            let slot = self.receivers.get_mut(port).and_then(|receiver| receiver.queues.get_mut(queue));
            slot.into_iter().for_each(|slot| *slot = None);
        }
    }

    /// As `stop_step`, when no other worker can have the ring: on the only worker, or away from the ring's home.
    pub fn stop_ring(&mut self, port: PortId, index: u16) -> Option<u16> {
        match self.stop_step(port, index) {
            Stopping::Done(base) => base,
            Stopping::Busy => None,
        }
    }

    /// Stops virtqueue `index` of `port`, whose home is here. Its waiting packets are dropped and completed; packets
    /// that wait for it are dropped. The caller repeats the call until it is done, at most for as long as other
    /// workers' visits take.
    pub fn stop_step(&mut self, port: PortId, index: u16) -> Stopping {
        let (queue, transmit) = queue_of(index);
        let ring = RingId { port, queue: queue as u16 };
        let stopping = if transmit { self.stop_sending(ring) } else { self.stop_receiving(ring) };
        self.publish();
        if stopping != Stopping::Busy {
            self.leave_ring(port, index);
        }
        stopping
    }

    fn stop_sending(&mut self, ring: RingId) -> Stopping {
        self.take_returns();
        let Some(queue) = self.senders.queue_mut(ring) else { return Stopping::Done(None) };
        queue.closed = true;
        self.senders.recall_postponed(ring);
        if self.senders.queue_mut(ring).is_some_and(|queue| queue.taken() > 0) {
            self.recall(ring);
            self.take_returns();
        }
        self.publish();
        let slot =
            self.senders.get_mut(ring.port).and_then(|sender| sender.queues.get_mut(usize::from(ring.queue)));
        let stopped = slot.and_then(|slot| slot.take_if(|queue| queue.taken() == 0));
        match stopped {
            None => Stopping::Busy,
            Some(stopped) => {
                self.senders.board.set_sending(ring.port, ring.queue, false);
                Stopping::Done(Some(stopped.ring.base()))
            }
        }
    }

    /// Drops all packets of one transmit ring, wherever they wait. Once all references have come back, its guest's
    /// memory is unused.
    fn recall(&mut self, sender: RingId) {
        let rings: Vec<RingId> = self.receivers.rings().collect();
        for ring in rings {
            self.receivers.with_claim(ring, &mut tools!(self), |service| {
                let of_sender = |packet: crate::reference::PacketRef| packet.ring() == sender;
                service.drop_those(of_sender, DropReason::Recalled);
                // Another packet is first now; the buffers that were too few for the old one may suffice for it.
                service.serve();
            });
        }
    }

    fn stop_receiving(&mut self, ring: RingId) -> Stopping {
        if self.receivers.ring(ring).is_none() {
            return Stopping::Done(None);
        }
        self.senders.board.set_receiving(ring.port, ring.queue, false);
        let stopped = self.receivers.with_claim(ring, &mut tools!(self), |service| {
            service.publish();
            let idle = service.claim.leases.is_empty();
            service.claim.closed |= idle;
            idle.then(|| {
                service.drop_waiting(DropReason::PortDown);
                service.claim.ring.base()
            })
        });
        stopped.flatten().map_or(Stopping::Busy, |base| Stopping::Done(Some(base)))
    }

    /// Enables or disables virtqueue `index` of `port`. Packets of a disabled transmit ring are discarded, and no
    /// packets are delivered to a disabled receive ring (vhost-user, "Ring states"). False if another worker has the
    /// ring; call again.
    pub fn set_ring_enabled(&mut self, port: PortId, index: u16, enabled: bool) -> bool {
        let (queue, transmit) = queue_of(index);
        let ring = RingId { port, queue: queue as u16 };
        let board = Arc::clone(&self.senders.board);
        if transmit {
            let runs = self.senders.get(port).and_then(|sender| sender.chains.get(queue)?.as_ref()).is_some();
            board.set_sending(port, ring.queue, enabled && runs);
            return true;
        }
        if self.receivers.ring(ring).is_none() {
            return true;
        }
        self.hold(ring, |service| {
            service.claim.enabled = enabled;
            board.set_receiving(port, ring.queue, service.claim.is_open());
            if !enabled {
                service.drop_waiting(DropReason::PortDown);
                service.publish();
            }
            // Copies under way are published before a ring counts as disabled.
            enabled || service.claim.leases.is_empty()
        })
        .unwrap_or(false)
    }

    /// The state of virtqueue `index` of `port`, if it runs. Only the home knows a transmit ring.
    #[must_use]
    pub fn ring_state(&self, port: PortId, index: u16) -> Option<RingState> {
        let (queue, transmit) = queue_of(index);
        let board = &self.senders.board;
        if transmit {
            let tx = self.senders.get(port)?.queues.get(queue)?.as_ref()?;
            let enabled = board.link(port).is_wanted(queue, true);
            Some(RingState { entries: tx.ring.entries(), enabled, error: tx.error })
        } else {
            let place = self.receivers.ring(RingId { port, queue: queue as u16 })?;
            let enabled = board.link(port).is_wanted(queue, false);
            Some(RingState { entries: place.entries, enabled, error: place.error.get().copied() })
        }
    }

    /// Whether the guest or front end of `port` truncated a file behind its memory.
    #[must_use]
    pub fn memory_is_dead(&self, port: PortId) -> bool {
        self.senders.get(port).is_some_and(|sender| sender.map.is_dead())
    }

    /// The port's counters for both sides, as far as this worker counted them.
    #[must_use]
    pub fn counters(&self, port: PortId) -> Option<PortCounters> {
        let sent = self.senders.get(port)?.counters;
        let Some(receiver) = self.receivers.get(port) else {
            // For the port `internal`, the switch injected the packets taken from its ring, and the control plane
            // received those delivered to it.
            let (delivered, tx_drops) = (&self.upcalls.delivered, self.upcalls.drops);
            return Some(PortCounters {
                injected: sent.rx_packets,
                rx_packets: 0,
                tx_packets: delivered.packets,
                tx_bytes: delivered.bytes,
                tx_csum_completed: delivered.csum_completed,
                tx_drops,
                ..sent
            });
        };
        let got = &receiver.received;
        Some(PortCounters {
            tx_packets: got.delivered.packets,
            tx_bytes: got.delivered.bytes,
            tx_gso_packets: got.delivered.gso_packets,
            tx_drops: got.drops,
            tx_csum_completed: got.delivered.csum_completed,
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
