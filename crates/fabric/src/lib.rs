//! The switching fabric: packets from transmit rings through a module's verdicts into receive rings, copied once.
//!
//! **Purpose.** [`Fabric`] holds the ports of one switch and moves packets between them (mSwitch's batched,
//! per-destination forwarding; Hyper-Switch's vNIC with its internal receive queue). It knows nothing of forwarding
//! decisions: those come from a [`Module`].
//!
//! **Contract.** Sans-io: time comes in as a number, signals go out as a list ([`Fabric::signals`]); nothing here
//! makes a system call, reads a clock or starts a thread, and nothing is allocated per packet. Every packet is accounted
//! for: [`PortCounters::is_conserved`] holds between any two calls. A chain belongs to the switch from `visit` until its
//! last copy is delivered or dropped; stopping a ring ends that at once.
//!
//! **Not checked.** That maps and rings given to one port belong together: the session sees to that.
//!
//! **Threading.** One worker owns a fabric. Sending and receiving sides are apart, since a sending side belongs to its
//! home worker and a receiving side to whoever claims it.
//!
//! ```text
//!            visit(ring)                                                                     signals()
//!   fetch ------------> decide ---------> sort ---------------> deliver -----------> publish ----------->
//!   transmit ring       module            per destination       reserve | copy       used rings
//!   side table          verdicts          only those touched        |                complete
//!   header images                                                   +-> internal receive queue -> drain(ring)
//! ```
#![forbid(unsafe_code)]

pub mod bounds;
mod counters;
mod deliver;
mod destinations;
mod frame;
mod internal;
mod lifecycle;
mod receiver;
mod reference;
mod reservation;
mod sender;
mod side_table;

pub use counters::{Drops, PortCounters};
pub use internal::InjectError;
pub use lifecycle::RingState;

use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_verdict::{BATCH_PACKETS_MAX, Batch, DropReason, Module, PortId, Verdicts};

use deliver::Scratch;
use destinations::Destinations;
use internal::InternalPort;
use receiver::{Copy, Receivers};
use sender::{Fetched, Senders};

/// What a port's guest negotiated, as far as packets are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// A packet may span several receive buffers (MRG_RXBUF).
    pub mergeable: bool,
    /// Takes packets whose checksum is not complete (GUEST_CSUM).
    pub csum: bool,
    /// Takes unsegmented TCP over IPv4 (GUEST_TSO4).
    pub tso4: bool,
    /// Takes unsegmented TCP over IPv6 (GUEST_TSO6).
    pub tso6: bool,
    /// Takes unsegmented TCP with congestion marks (GUEST_ECN).
    pub ecn: bool,
    /// Bytes of the virtio-net header: 12, or 10 for legacy guests without MRG_RXBUF.
    pub header_bytes: usize,
}

impl Default for Capabilities {
    fn default() -> Self {
        let header_bytes = lasthop_wire::vnet::HEADER_BYTES;
        Self { mergeable: false, csum: false, tso4: false, tso6: false, ecn: false, header_bytes }
    }
}

/// A ring of one direction: queue pair `queue` of `port`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingId {
    /// The port.
    pub port: PortId,
    /// The queue pair.
    pub queue: u16,
}

/// A guest to be signalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The port.
    pub port: PortId,
    /// Index of the virtqueue: receive rings are even, transmit rings odd (virtio 1.2, 5.1.2).
    pub index: u16,
}

impl Signal {
    fn receive(ring: RingId) -> Self {
        Self { port: ring.port, index: 2 * ring.queue }
    }

    fn transmit(ring: RingId) -> Self {
        Self { port: ring.port, index: 2 * ring.queue + 1 }
    }
}

/// The ports of one switch and everything a worker needs to move packets between them.
pub struct Fabric {
    module: Arc<dyn Module>,
    senders: Senders,
    receivers: Receivers,
    internal: InternalPort,
    fetched: Fetched,
    verdicts: Verdicts,
    destinations: Destinations,
    scratch: Scratch,
    signals: Vec<Signal>,
    epoch: u32,
}

impl Fabric {
    /// Takes a batch from a transmit ring and sees it through. Returns the packets taken: 0 means the ring is empty,
    /// stopped, or waits for slow receivers.
    pub fn visit(&mut self, ring: RingId, now_ns: u64) -> usize {
        let taken = self.senders.fetch(ring, &mut self.fetched);
        if self.fetched.len > 0 {
            self.switch(ring.port, now_ns);
        }
        if taken > 0 {
            self.publish();
        }
        taken
    }

    fn switch(&mut self, port: PortId, now_ns: u64) {
        self.verdicts.clear();
        let headers = &self.fetched.headers[..self.fetched.len];
        self.module.decide(&Batch { port, headers }, now_ns, &mut self.verdicts);
        self.expect_copies();
        self.destinations.sort(self.verdicts.outputs());
        while let Some(list) = self.destinations.next() {
            self.receivers.prefetch(list.port, list.len);
            let mut at = Some(list.first);
            while at.is_some() {
                let mut copies = ArrayVec::<Copy<'_>, BATCH_PACKETS_MAX>::new();
                while let Some(index) = at.filter(|_| !copies.is_full()) {
                    let output = self.verdicts.outputs()[index];
                    copies.push(Copy {
                        packet: self.fetched.packets[usize::from(output.packet)],
                        header: &self.fetched.headers[usize::from(output.image)],
                        truncate_len_bytes: output.truncate_len_bytes,
                    });
                    at = self.destinations.after(index);
                }
                self.receivers.accept(list.port, &copies, &mut self.senders, &mut self.scratch, now_ns);
            }
        }
    }

    /// Tells each packet's slot how many copies to wait for; packets without any are dropped here.
    fn expect_copies(&mut self) {
        let mut copies = [0_u16; BATCH_PACKETS_MAX];
        for output in self.verdicts.outputs() {
            copies[usize::from(output.packet)] += 1;
        }
        let mut reasons = [DropReason::NoDestination; BATCH_PACKETS_MAX];
        for &(packet, reason) in self.verdicts.drops() {
            reasons[usize::from(packet)] = reason;
        }
        for (index, &packet) in self.fetched.packets[..self.fetched.len].iter().enumerate() {
            self.senders.expect_copies(packet, copies[index], reasons[index]);
        }
        if self.verdicts.lost() > 0 {
            self.senders.count_lost(self.fetched.packets[0].port(), self.verdicts.lost());
        }
    }

    /// Shows both sides what was done, once per batch: receivers first, then senders.
    fn publish(&mut self) {
        self.receivers.publish(&mut self.signals);
        self.senders.publish(&mut self.signals);
    }

    /// A receive ring may have new buffers: delivers what waits for it. Returns whether nothing waits any more.
    pub fn drain(&mut self, ring: RingId) -> bool {
        let empty = self.receivers.drain(ring, &mut self.senders, &mut self.scratch);
        self.publish();
        empty
    }

    /// Receive rings that packets wait for.
    #[must_use]
    pub fn waiting_rings(&self) -> &[RingId] {
        self.receivers.waiting_rings()
    }

    /// Tries every receive ring that packets wait for and whose guest has moved; returns whether any did.
    pub fn drain_waiting(&mut self) -> bool {
        let mut moved = false;
        for index in (0..self.receivers.waiting_rings().len()).rev() {
            let Some(&ring) = self.receivers.waiting_rings().get(index) else { continue };
            let moved_on =
                |queue: &mut receiver::RxQueue| queue.ring.available_index() != queue.seen_available;
            if self.receivers.queue_mut(ring).is_some_and(moved_on) {
                let before = self.signals.len();
                moved |= self.drain(ring) || self.signals.len() > before;
            }
        }
        moved
    }

    /// Drops what waited too long.
    pub fn expire(&mut self, now_ns: u64) {
        self.receivers.expire(now_ns, &mut self.senders, &mut self.scratch);
        self.publish();
    }

    /// When `expire` has something to do, on the clock of `visit`.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        self.receivers.deadline_ns()
    }

    /// Tells the guest not to kick for a transmit ring: it is visited anyway.
    pub fn suppress_kicks(&mut self, ring: RingId) {
        if let Some(queue) = self.senders.queue_mut(ring) {
            queue.ring.suppress_kicks();
        }
    }

    /// Asks for a kick of a transmit ring and looks once more. True: there is work, do not sleep.
    pub fn arm(&mut self, ring: RingId) -> bool {
        let Some(queue) = self.senders.queue_mut(ring) else { return false };
        // A blocked ring is visited again when a waiting chain is settled (`unblocked`), not by a kick.
        if queue.error.is_some() || queue.is_blocked() {
            return false;
        }
        queue.ring.arm_kicks().unwrap_or_else(|error| {
            queue.error = Some(error);
            false
        })
    }

    /// Rings to be visited again although nobody kicked: chains that blocked them were settled. Cleared by the caller.
    pub fn unblocked(&mut self) -> &mut Vec<RingId> {
        self.senders.unblocked()
    }

    /// Asks for a kick of every receive ring that packets wait for, and looks once more. True: a guest has posted buffers.
    pub fn arm_waiting(&mut self) -> bool {
        let mut moved = false;
        for index in 0..self.receivers.waiting_rings().len() {
            let ring = self.receivers.waiting_rings()[index];
            let Some(queue) = self.receivers.queue_mut(ring) else { continue };
            // Past what the last attempt saw, not past what is there now: buffers posted in between would be missed.
            let seen = queue.seen_available;
            moved |= queue.ring.arm_kicks_past(seen);
        }
        moved
    }

    /// Guests to be signalled, in order; cleared by the caller.
    pub fn signals(&mut self) -> &mut Vec<Signal> {
        &mut self.signals
    }
}
