//! The switching fabric moves packets from transmit rings to receive rings as a module decides, with one copy.
//!
//! **Purpose.** A [`Fabric`] is one worker's view of a switch. It knows all ports and moves packets between them (the
//! batched, per-destination forwarding of mSwitch; the vNIC with an internal receive queue of Hyper-Switch). Forwarding
//! decisions come from a [`Module`].
//!
//! **Contract.** Sans-io: the caller passes the time as a number and reads signals from a list ([`Fabric::signals`]).
//! No code here makes a system call, reads a clock, starts a thread or allocates per packet. Every packet is accounted
//! for: [`PortCounters::is_conserved`] holds between any two calls. A chain belongs to the switch from `visit` until
//! its last copy is delivered or dropped. Stopping a ring ends that at once.
//!
//! **Not checked.** The session ensures that maps and rings of one port belong together. The engine tells every fabric
//! of a switch about every port and ring ([`Fabric::join_ring`]).
//!
//! **Threading.** Each worker owns a fabric; [`Fabric::for_workers`] makes all fabrics of one switch. A transmit ring
//! has a home: the fabric that started it. Only the home takes, counts and completes its packets. Receive rings are
//! shared: the worker with a ring's claim delivers. Other workers queue references at the ring and continue. No worker
//! ever waits.
//!
//! ```text
//!            visit(ring)                                                                     signals(), wakes()
//!   fetch ------------> decide ---------> sort ---------------> deliver -----------> publish ----------->
//!   transmit ring       module            per destination       claim? reserve|copy  used rings
//!   side table          verdicts          only those touched      |        |         complete <- take_returns()
//!   header images                                                 |        +-> no buffers: waits -> drain(ring)
//!                                                                 +-> taken: left for its holder ----^
//! ```
//!
//! # Examples
//!
//! ```
//! use std::sync::Arc;
//!
//! use lasthop_fabric::{Fabric, RingId};
//! use lasthop_guestmem::{Mapping, MemoryMap, Region};
//! use lasthop_module_api::{Module, PortId, PortSettings};
//! use lasthop_ring::{DeviceRing, DriverRing, RingAddresses, RingMemory};
//!
//! // The module joins both ports.
//! let module = Arc::new(lasthop_modules::Dummy::default());
//! let mut fabric = Fabric::new(module.clone()).unwrap();
//! // Two guests, each with a receive and a transmit ring in its memory.
//! let mut guests = [1, 2].map(|number| {
//!     let port = PortId(number);
//!     module.port_added(port, &PortSettings::default()).unwrap();
//!     fabric.add_port(port, 1);
//!     let mapping = Arc::new(Mapping::anonymous(65_536).unwrap());
//!     let map = Arc::new(MemoryMap::new(vec![Region { guest_addr: 0, user_addr: 0, mapping }]).unwrap());
//!     fabric.set_memory(port, &map);
//!     [0, 1].map(|index| {
//!         let at = u64::from(index) * 16_384;
//!         let addresses = RingAddresses { descriptors: at, available: at + 4096, used: at + 8192 };
//!         let memory = || RingMemory::new(&map, 256, addresses).unwrap();
//!         fabric.start_ring(port, index, DeviceRing::new(memory(), 0, true), true);
//!         DriverRing::new(memory(), true)
//!     })
//! });
//! let [[_, transmit], [receive, _]] = &mut guests;
//!
//! // One guest posts a buffer. The other sends a frame of 60 bytes behind its virtio-net header.
//! receive.add(&[], &[(32_768, 2048)], 0).unwrap();
//! receive.publish();
//! transmit.add(&[(32_768, 72)], &[], 0).unwrap();
//! transmit.publish();
//! assert_eq!(fabric.visit(RingId { port: PortId(1), queue: 0 }, 0), 1);
//! assert_eq!(receive.take_used().unwrap().unwrap().len, 72);
//! ```
#![forbid(unsafe_code)]

mod board;
pub mod bounds;
mod capture;
mod counters;
mod destinations;
mod detach;
mod frame;
mod help;
mod lifecycle;
mod lone;
mod profile;
mod progress;
mod reference;
mod rx;
mod side_table;
mod steering;
mod takeover;
mod tally;
mod tap;
mod tx;
mod upcall;

pub use counters::{Drops, HandoffCounters, PortCounters};
pub use help::HelpStep;
pub use lasthop_stages::{PortTicks, RoundTime, StageMeter, StageProfile, StageTicks, TickClock, WorkStage};
pub use lifecycle::{RingPart, RingState, Stopping};
pub use progress::RingProgress;
pub use rx::shared::SharedStep;
pub use tally::{RX_DROPS, TX_DROPS};
pub use tap::{CaptureDirection, CapturedFrame, Tap, TapClock, TapReader, Watch, tap};
pub use tx::internal::InjectError;
pub use tx::moves::{MovingRing, Release, SettledCopies};
pub use tx::offloads::{HelpShare, HelperFinder, LargeCopies};
pub use upcall::{UpcallLimits, UpcallReader, UpcallWriter, upcalls};

use std::sync::Arc;

use arrayvec::ArrayVec;
use lasthop_guestmem::Segment;
pub use lasthop_module_api::RingId;
pub use lasthop_turns::{ActiveRing, DrrScheduler, UpcallLine, UpcallRecord, VisitMeter, Visited};

use lasthop_module_api::{BATCH_PACKETS_MAX, Batch, DropReason, Module, PORTS_MAX, PortId, Verdicts};

use board::{Board, HelpOrder};
use destinations::Destinations;
use reference::{Attempt, PacketCopy, Return};
use rx::receiver::Receivers;
use rx::service::{Scratch, Tools};
use rx::shared::SharedFrame;
use side_table::SegmentBuffer;
use tx::internal::InternalPort;
use tx::sender::Fetched;
use tx::senders::Senders;
use upcall::Upcalls;

/// The features that a port's guest negotiated, as far as they concern packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// A packet may span several receive buffers (MRG_RXBUF).
    pub mergeable: bool,
    /// Takes packets with an incomplete checksum (GUEST_CSUM).
    pub csum: bool,
    /// Takes unsegmented TCP over IPv4 (GUEST_TSO4).
    pub tso4: bool,
    /// Takes unsegmented TCP over IPv6 (GUEST_TSO6).
    pub tso6: bool,
    /// Takes unsegmented TCP with congestion marks (GUEST_ECN).
    pub ecn: bool,
    /// Takes unsegmented UDP. Needs GUEST_USO4 and GUEST_USO6, since `gso_type` is the same for both.
    pub uso: bool,
    /// Bytes of the virtio-net header: 12, or 10 for legacy guests without MRG_RXBUF, or 128 for tunnel ports.
    pub header_bytes: usize,
    /// Bytes of the header on packets that the guest sends: 8 more if it reports hashes.
    pub sent_header_bytes: usize,
}

impl Default for Capabilities {
    fn default() -> Self {
        let header_bytes = lasthop_wire::vnet::HEADER_BYTES;
        Self {
            mergeable: false,
            csum: false,
            tso4: false,
            tso6: false,
            ecn: false,
            uso: false,
            header_bytes,
            sent_header_bytes: header_bytes,
        }
    }
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

/// One worker's view of a switch, with all state for moving packets.
pub struct Fabric {
    module: Arc<dyn Module>,
    senders: Senders,
    receivers: Receivers,
    internal: Option<InternalPort>,
    fetched: Fetched,
    verdicts: Verdicts,
    upcalls: Upcalls,
    destinations: Destinations,
    scratch: Scratch,
    segments: Box<SegmentBuffer>,
    signals: Vec<Signal>,
    wakes: u64,
    epoch: u32,
    /// The ring at which this helper copies large frames.
    helping: Option<HelpOrder>,
    /// The large frame that this worker copies without the claim.
    shared: SharedFrame,
}

/// Borrows the tools of a fabric and its receivers at the same time.
macro_rules! tools {
    ($fabric:ident) => {
        Tools {
            senders: &mut $fabric.senders,
            scratch: &mut $fabric.scratch,
            segments: &mut $fabric.segments,
            signals: &mut $fabric.signals,
        }
    };
}
use tools;

impl Fabric {
    /// Polls a transmit ring whose home is here: fetches a batch and completes its processing. Returns the number of
    /// packets taken; 0 if the ring is empty, stopped, or waits for slow receivers.
    pub fn visit(&mut self, ring: RingId, now_ns: u64) -> usize {
        self.visit_with(ring, now_ns, &mut |_| ())
    }

    /// As `visit`; `signal` as in [`Self::visit_in_turn_signalling`].
    fn visit_with(&mut self, ring: RingId, now_ns: u64, signal: &mut dyn FnMut(&mut Self)) -> usize {
        let taken = self.begin_visit(ring, now_ns);
        let has_leases = !self.receivers.leases.is_empty();
        if has_leases {
            self.copy_visit_with(signal);
        }
        match taken {
            0 => {}
            _ if has_leases => self.finish_visit(),
            _ => self.publish(),
        }
        taken
    }

    /// As `visit`, for a [`DrrScheduler`]: returns the result, and the cost of the port's packets since the last call. For tests; the
    /// engine calls `visit_in_turn_signalling`.
    pub fn visit_in_turn(&mut self, ring: RingId, now_ns: u64) -> Visited {
        self.visit_in_turn_signalling(ring, now_ns, &mut |_| ())
    }

    /// As [`Self::visit_in_turn`]. Calls `signal` when a guest wants a signal for large frames while further ones are still to
    /// be copied in turns with a helper. It may send all of [`Self::signals`].
    pub fn visit_in_turn_signalling(
        &mut self,
        ring: RingId,
        now_ns: u64,
        signal: &mut dyn FnMut(&mut Self),
    ) -> Visited {
        let packets = self.visit_with(ring, now_ns, signal);
        let cost = self.senders.get_mut(ring.port).map_or(0, |sender| sender.charge.take());
        Visited { packets, more: packets > 0 && self.fetched.more, cost }
    }

    /// The first of `visit`'s three parts. It delivers packets that need no other worker, and reserves
    /// buffers in contended rings. The other two parts follow before any other call to this fabric. Other
    /// fabrics may work in between.
    pub fn begin_visit(&mut self, ring: RingId, now_ns: u64) -> usize {
        match self.begin_lone_visit(ring, now_ns) {
            Some(taken) => taken,
            None => self.begin_batch_visit(ring, now_ns),
        }
    }

    // Not inlined, so that visits to rings with one chain or none need less stack.
    #[inline(never)]
    fn begin_batch_visit(&mut self, ring: RingId, now_ns: u64) -> usize {
        self.lap(None);
        self.mark(WorkStage::Other);
        if self.is_resting(ring.port, now_ns) {
            self.fetched.len = 0;
            return 0;
        }
        self.fetched.spent_bytes = if self.senders.is_metered() { self.spent_bytes() } else { 0 };
        let taken = self.senders.fetch(ring, &mut self.fetched);
        self.mark(WorkStage::Parse);
        self.lap_fetched(ring);
        if taken == 0 {
            self.resume(ring, now_ns);
        }
        if self.senders.is_tapped() {
            self.senders.list(&mut self.fetched, 0);
            self.tap_fetched(ring, taken);
        }
        if self.fetched.len > 0 {
            let common = self.decide(ring.port, self.fetched.len, now_ns);
            self.forward(common, now_ns);
            self.heed_verdicts(ring);
        }
        taken
    }

    /// Ends the switching of packets of `ring`: pauses the ring if the module asks for it, and ranks waiting packets.
    #[inline]
    fn heed_verdicts(&mut self, ring: RingId) {
        if self.verdicts.pauses_ring() {
            self.pause(ring);
        }
        if self.senders.take_let_wait() {
            self.rank_waiting(ring);
        }
    }

    #[cold]
    fn pause(&mut self, ring: RingId) {
        if let Some(queue) = self.senders.queue_mut(ring) {
            queue.paused = true;
        }
    }

    /// Resumes a ring that was paused, if neither the module nor a move needs the pause any longer.
    fn resume(&mut self, ring: RingId, now_ns: u64) {
        let worker = self.worker();
        if let Some(queue) = self.senders.queue_mut(ring)
            && queue.paused
        {
            queue.paused =
                now_ns < queue.leaving_until_ns || self.module.keeps_paused(ring.port, worker, now_ns);
        }
    }

    /// The second part of `visit`: fills reserved buffers.
    pub fn copy_visit(&mut self) {
        self.copy_visit_with(&mut |_| ());
    }

    fn copy_visit_with(&mut self, signal: &mut dyn FnMut(&mut Self)) {
        self.receivers.copy_leases(&*self.fetched.headers, &mut tools!(self));
        while let Some(ring) = self.receivers.leases.next_shared() {
            self.copy_with_helper(ring, signal);
        }
        self.mark(WorkStage::Copy);
    }

    /// The third part of `visit`: publishes on both sides.
    pub fn finish_visit(&mut self) {
        if !self.receivers.leases.is_empty() {
            self.receivers.finish_leases(&mut tools!(self));
        }
        self.publish();
    }

    /// Has the module do what its last batch left for later. For a moment when the receivers have their signals.
    pub fn finish_rest(&mut self) {
        if let Some((port, rest)) = self.verdicts.take_rest() {
            self.module.delivered(port, rest);
            self.mark(WorkStage::LookUp);
        }
    }

    /// Lets the module decide on the `count` fetched packets of `port`. Returns their destination if it is the same port
    /// for all.
    #[inline(always)] // so that a lone packet's count is a constant
    fn decide(&mut self, port: PortId, count: usize, now_ns: u64) -> Option<PortId> {
        self.verdicts.clear();
        let headers = &self.fetched.headers[..count];
        let hashes = &self.fetched.hashes;
        self.module.decide(&Batch { port, headers, hashes }, now_ns, &mut self.verdicts);
        self.mark(WorkStage::LookUp);
        self.lap(None);
        let is_usual = |port: &PortId| {
            // A flood to a port that is down is settled with the others.
            port.index() < PORTS_MAX && (self.verdicts.flooded() == 0 || !self.receivers.is_down(*port))
        };
        self.verdicts.common_port(count).filter(is_usual)
    }

    /// Executes the verdicts. If `common` is given, all packets go to that port.
    fn forward(&mut self, common: Option<PortId>, now_ns: u64) {
        if let Some(destination) = common {
            self.forward_all(destination, now_ns);
            self.lap(Some(destination));
            return;
        }
        self.senders.list(&mut self.fetched, 0);
        self.destinations.sort(self.verdicts.outputs());
        self.expect_copies();
        self.fetched.add_images(self.verdicts.images());
        if !self.verdicts.upcalls().is_empty() {
            self.send_upcalls(now_ns);
        }
        while let Some(list) = self.destinations.next() {
            let mut at = Some(list.first);
            while at.is_some() {
                let mut copies = ArrayVec::<PacketCopy<'_>, BATCH_PACKETS_MAX>::new();
                while let Some(index) = at.filter(|_| !copies.is_full()) {
                    let output = self.verdicts.outputs()[index];
                    copies.push(PacketCopy {
                        packet: self.fetched.packets[usize::from(output.packet)],
                        header: &self.fetched.headers[usize::from(output.image)],
                        truncate_len_bytes: output.truncate_len_bytes,
                        image: output.image,
                    });
                    at = self.destinations.after(index);
                }
                self.receivers.accept(list.port, &copies, &mut tools!(self), now_ns);
            }
            self.lap(Some(list.port));
        }
    }

    /// Delivers all packets of the batch to `port`, whole and alone: the usual case, without lists per destination.
    #[inline]
    fn forward_all(&mut self, port: PortId, now_ns: u64) {
        match self.fetched.is_listed {
            false => self.receivers.accept_unlisted(port, &mut self.fetched, &mut tools!(self), now_ns),
            true => self.receivers.accept_listed(port, &self.fetched, &mut tools!(self), now_ns),
        }
    }

    /// Records how many copies each packet has; drops packets that have none.
    fn expect_copies(&mut self) {
        if self.senders.is_tapped() {
            self.tap_decided();
        }
        let mut copies = [0_u16; BATCH_PACKETS_MAX];
        let mut counts = 0; // the bitwise or of all counts: above 1 if a packet has several copies
        for output in self.verdicts.outputs() {
            let count = &mut copies[usize::from(output.packet)];
            *count += 1;
            counts |= *count;
        }
        let mut to_none = 0;
        if (counts > 1 || self.verdicts.flooded() != 0)
            && self.destinations.ports().any(|port| self.receivers.is_down(port))
        {
            to_none = self.leave_out_ports_down(&mut copies);
        }
        for upcall in self.verdicts.upcalls() {
            copies[usize::from(upcall.packet)] += 1;
        }
        let mut reasons = [DropReason::NoDestination; BATCH_PACKETS_MAX];
        for &(packet, reason) in self.verdicts.drops() {
            reasons[usize::from(packet)] = reason;
            if copies[usize::from(packet)] > 0 {
                self.senders.count_lost(self.fetched.packets[usize::from(packet)], 1, reason);
            }
        }
        for (index, &packet) in self.fetched.packets[..self.fetched.len].iter().enumerate() {
            match to_none >> index & 1 {
                0 => self.senders.expect_copies(packet, copies[index], reasons[index]),
                _ => self.senders.settle(packet, Attempt::to_none()),
            }
        }
        if self.verdicts.lost() > 0 {
            let (first, lost) = (self.fetched.packets[0], self.verdicts.lost());
            self.senders.count_lost(first, lost, DropReason::VerdictOverflow);
        }
    }

    /// Removes from the verdicts the copies of flooded packets for ports that are down, since a bridge floods only to
    /// ports with a carrier. Updates `copies` of each packet. Returns the packets that have no output, upcall or
    /// drop left, as bits.
    #[cold]
    fn leave_out_ports_down(&mut self, copies: &mut [u16; BATCH_PACKETS_MAX]) -> u32 {
        let bits =
            |packets: &mut dyn Iterator<Item = u16>| packets.fold(0_u32, |bits, packet| bits | 1 << packet);
        let several = (0..).zip(&*copies).filter(|(_, count)| **count > 1);
        let flooded = bits(&mut several.map(|(packet, _)| packet)) | self.verdicts.flooded();
        let Self { verdicts, receivers, destinations, .. } = self;
        verdicts.retain_outputs(|output| {
            let is_left_out = flooded >> output.packet & 1 != 0 && receivers.is_down(output.port);
            copies[usize::from(output.packet)] -= u16::from(is_left_out);
            !is_left_out
        });
        while destinations.next().is_some() {}
        destinations.sort(verdicts.outputs());
        let upcalls = verdicts.upcalls().iter().map(|upcall| upcall.packet);
        let drops = verdicts.drops().iter().map(|(packet, _)| *packet);
        let left = (0..).zip(&*copies).filter(|(_, count)| **count > 0).map(|(packet, _)| packet);
        flooded & !bits(&mut left.chain(upcalls).chain(drops))
    }

    /// Publishes completions to senders, once per batch. Receivers were served before.
    #[inline]
    fn publish(&mut self) {
        if self.senders.has_news() {
            self.publish_news();
        }
        self.mark(WorkStage::Completion);
    }

    #[inline(never)]
    fn publish_news(&mut self) {
        self.senders.publish(&mut self.signals);
        self.detach_obstacles();
        self.wakes |= self.senders.sleepers() | self.senders.moved.told();
    }

    /// Settles packets that other workers delivered or dropped: a chain is completed with its last copy. Returns
    /// whether there were any.
    pub fn take_returns(&mut self) -> bool {
        let mut any = false;
        while let Some(reference) = self.senders.next_return() {
            any = true;
            self.senders.handoffs.returned += 1;
            let outcome = self.senders.corrected(reference.packet, reference.outcome);
            self.receivers.enter(&Return { outcome, ..reference });
            self.senders.charge(reference.packet, 1, &reference.delivered);
            let attempt = Attempt { outcome, delivered: reference.delivered.packets as u32 };
            self.senders.settle_waiting(reference.packet, attempt);
        }
        any |= self.senders.offloads.has_ordered && self.take_orders_back();
        if any {
            self.publish();
        }
        any
    }

    /// Announces that this worker goes to sleep: from now on other workers request its wake-up (`wakes`). The caller
    /// then passes a full fence and calls `take_returns` once more; see `lasthop_ring::arm_and_recheck`.
    pub fn prepare_sleep(&self) {
        self.senders.board.inbox(self.senders.worker).sleep_flag.prepare_sleep();
    }

    /// Announces that this worker is awake.
    pub fn end_sleep(&self) {
        self.senders.board.inbox(self.senders.worker).sleep_flag.clear();
    }

    /// Returns the workers to be woken, as bits, and clears them.
    pub fn wakes(&mut self) -> u64 {
        std::mem::take(&mut self.wakes)
    }

    /// Counters of hand-overs to other workers.
    #[must_use]
    pub fn handoff_counters(&self) -> HandoffCounters {
        self.senders.handoffs
    }

    /// Number of this worker in its switch.
    #[must_use]
    pub fn worker(&self) -> usize {
        usize::from(self.senders.worker)
    }

    /// Delivers the packets that wait for a receive ring, which may have new buffers. Returns whether the queue is
    /// empty. Also false if another worker has the ring's claim.
    pub fn drain(&mut self, ring: RingId) -> bool {
        self.lap(None);
        let empty = self.receivers.drain(ring, &mut tools!(self));
        self.lap(Some(ring.port));
        self.publish();
        empty
    }

    /// As `drain`, after a kick. Only this worker receives the kick. If another worker has the claim, this one tries
    /// again later, since the holder may have read the guest's index before the guest moved it.
    pub fn receive_kick(&mut self, ring: RingId) {
        self.lap(None);
        self.receivers.drain_kicked(ring, &mut tools!(self));
        self.lap(Some(ring.port));
        self.publish();
    }

    /// Receive rings with a follow-up at this worker, since it queued packets there.
    #[must_use]
    pub fn waiting_rings(&self) -> &[RingId] {
        self.receivers.kept()
    }

    /// Serves every receive ring of `waiting_rings` whose guest has moved. Returns whether any did.
    pub fn drain_waiting(&mut self) -> bool {
        self.drain_waiting_signalling(&mut |_| ())
    }

    /// As [`Self::drain_waiting`]; `signal` as in [`Self::visit_in_turn_signalling`].
    pub fn drain_waiting_signalling(&mut self, signal: &mut dyn FnMut(&mut Self)) -> bool {
        let mut moved = false;
        self.lap(None);
        for index in (0..self.receivers.kept().len()).rev() {
            let Some(&ring) = self.receivers.kept().get(index) else { continue };
            moved |= match self.receivers.has_helper(ring) && !self.senders.is_metered() {
                true => self.copy_with_helper(ring, signal),
                false => self.receivers.drain_if_moved(ring, &mut tools!(self)),
            };
            self.lap(Some(ring.port));
        }
        self.publish();
        moved
    }

    /// Drops packets that have waited too long.
    pub fn expire(&mut self, now_ns: u64) {
        for index in (0..self.receivers.kept().len()).rev() {
            let Some(ring) = self.receivers.kept_until(index, now_ns) else { continue };
            self.receivers.with_claim(ring, &mut tools!(self), |service| service.expire(now_ns));
        }
        self.publish();
    }

    /// The time at which `expire` or `drain_waiting` has work, on the clock of `visit`; 0 means at once.
    #[must_use]
    pub fn deadline_ns(&self) -> Option<u64> {
        self.receivers.deadline_ns()
    }

    /// Suppresses kicks of a transmit ring, since it is polled.
    pub fn suppress_kicks(&mut self, ring: RingId) {
        if let Some(queue) = self.senders.queue_mut(ring) {
            queue.ring.suppress_kicks();
        }
    }

    /// Suppresses the kick that a transmit ring is armed for, before its next head. Returns whether the ring is at home here.
    pub fn suppress_next_kick(&mut self, ring: RingId) -> bool {
        let queue = self.senders.queue_mut(ring);
        queue.map(|queue| queue.ring.suppress_next_kick()).is_some()
    }

    /// Arms the kick of a transmit ring and checks once more. True if there is work: the caller must not sleep.
    pub fn arm(&mut self, ring: RingId) -> bool {
        let Some(queue) = self.senders.queue_mut(ring) else { return false };
        if queue.error.is_none() {
            // A blocked ring is visited again when a waiting chain is settled (`unblocked`), not by a kick.
            if queue.closed || queue.blocked {
                return false;
            }
            if queue.postponement.is_due() {
                return true;
            }
            match queue.ring.arm_kicks() {
                Ok(has_work) => return has_work,
                Err(error) => queue.error = Some(error),
            }
        }
        if let Some(error) = queue.error {
            self.senders.note_broken(ring.port, error);
        }
        false
    }

    /// Takes a port of which a virtqueue was found broken: it takes or gets no packets until it is started again. Transmit
    /// rings are noted when they are armed.
    #[inline]
    pub fn take_broken(&mut self) -> Option<(PortId, lasthop_ring::RingError)> {
        self.senders.take_broken()
    }

    /// Rings to be polled without a kick: the chains that blocked them were settled. The caller clears the list.
    pub fn unblocked(&mut self) -> &mut Vec<RingId> {
        self.senders.unblocked()
    }

    /// Arms the kick of every receive ring of `waiting_rings`, and checks once more. True if a guest has posted
    /// buffers.
    pub fn arm_waiting(&mut self) -> bool {
        let mut moved = false;
        for index in (0..self.receivers.kept().len()).rev() {
            let Some(&ring) = self.receivers.kept().get(index) else { continue };
            moved |= self.receivers.arm(ring, &mut tools!(self));
        }
        // Releasing a claim may mean serving once more.
        self.publish();
        moved
    }

    /// Guests to be signalled, in order. The caller clears the list.
    pub fn signals(&mut self) -> &mut Vec<Signal> {
        &mut self.signals
    }

    /// Serves a receive ring, and calls `meanwhile` while it holds the ring's claim, as if this worker had lost its
    /// core there. For tests of other workers; `None` if the claim was taken.
    #[doc(hidden)]
    pub fn while_serving<R>(&mut self, ring: RingId, meanwhile: impl FnOnce() -> R) -> Option<R> {
        self.hold(ring, |service| {
            service.serve();
            meanwhile()
        })
    }
}
