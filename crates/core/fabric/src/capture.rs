//! Reports frames to the taps of a worker.

use lasthop_guestmem::{Cursor, Segment};
use lasthop_module_api::{BATCH_PACKETS_MAX, DropReason, Header, PortId};

use crate::bounds::CHAIN_SEGMENTS_MAX;
use crate::reference::{Attempt, Outcome, PacketCopy, PacketRef};
use crate::tap::{CaptureDirection, Event, Tap};
use crate::tx::senders::Senders;
use crate::{Fabric, RingId};

/// A packet of this batch, as received.
fn whole<'a>(packet: PacketRef, header: &'a Header) -> PacketCopy<'a> {
    PacketCopy { packet, header, truncate_len_bytes: u32::MAX, image: 0 }
}

impl Senders {
    /// Whether any capture is active. Callers check it before they call other functions of this file.
    #[inline]
    pub(crate) fn is_tapped(&self) -> bool {
        self.taps.is_some()
    }

    fn tap(&mut self, event: Event, copy: &PacketCopy<'_>) {
        let Some(mut taps) = self.taps.take() else { return };
        taps.see(event, self.source(copy.packet).as_ref(), copy);
        self.taps = Some(taps);
    }

    /// Reports a copy to `to` that was delivered or dropped. A waiting copy is not reported.
    #[cold]
    pub(crate) fn tap_copy(&mut self, to: PortId, copy: &PacketCopy<'_>, outcome: Outcome) {
        let dropped = match outcome {
            Outcome::Wait | Outcome::ToNone => return,
            Outcome::Done => None,
            Outcome::Drop(reason) => Some(reason),
        };
        if dropped.is_some() {
            let port = self.account_of(copy.packet);
            self.tap(Event { port, direction: CaptureDirection::Inbound, dropped }, copy);
        }
        self.tap(Event { port: to, direction: CaptureDirection::Outbound, dropped }, copy);
    }

    /// Reports copies that were delivered whole.
    #[cold]
    pub(crate) fn tap_delivered(&mut self, to: PortId, copies: &[PacketCopy<'_>]) {
        copies.iter().for_each(|copy| self.tap_copy(to, copy, Outcome::Done));
    }

    /// Reports copies that were tried.
    #[cold]
    pub(crate) fn tap_attempts(&mut self, to: PortId, copies: &[PacketCopy<'_>], attempts: &[Attempt]) {
        copies.iter().zip(attempts).for_each(|(copy, attempt)| self.tap_copy(to, copy, attempt.outcome));
    }

    /// Reports a packet that was dropped before its destination was known.
    fn tap_dropped(&mut self, copy: &PacketCopy<'_>, reason: DropReason) {
        let port = self.account_of(copy.packet);
        self.tap(Event { port, direction: CaptureDirection::Inbound, dropped: Some(reason) }, copy);
    }

    /// Reports a refused frame, whose headers were not read.
    fn tap_refused(&mut self, packet: PacketRef, reason: DropReason) {
        let mut header = Header::default();
        let mut segments = [Segment::default(); CHAIN_SEGMENTS_MAX];
        let len = self.source(packet).map_or(0, |source| {
            let segments = source.segments(packet, &mut segments).unwrap_or_default();
            let bytes = Cursor::new(source.map(), segments).remaining_bytes();
            bytes.saturating_sub(source.vnet_bytes() as u64)
        });
        header.fill(u32::try_from(len).unwrap_or(u32::MAX), 0);
        self.tap_dropped(&whole(packet, &header), reason);
    }
}

impl Fabric {
    /// Adds `tap` to this worker's captures.
    pub fn add_tap(&mut self, tap: Tap) {
        self.senders.taps.get_or_insert_default().taps.push(tap);
    }

    /// Removes the tap with this id.
    pub fn remove_tap(&mut self, id: u64) {
        let Some(taps) = &mut self.senders.taps else { return };
        taps.taps.retain(|tap| tap.id != id);
        if taps.taps.is_empty() {
            self.senders.taps = None;
        }
    }

    /// Stops watching a removed port: the next port with its number is another one.
    pub(crate) fn untap(&mut self, port: PortId) {
        if let Some(taps) = &mut self.senders.taps {
            taps.forget(port);
        }
    }

    /// Reports the chains that a visit took: frames and refused ones. Their segments are valid until the next visit.
    #[cold]
    pub(crate) fn tap_fetched(&mut self, ring: RingId, taken: usize) {
        let RingId { port, queue } = ring;
        let (home, epoch) = (self.senders.worker, self.senders.get(port).map_or(0, |sender| sender.epoch));
        let packets = self.fetched.packets[..self.fetched.len].iter().zip(self.fetched.headers.iter());
        let mut packets = packets.peekable();
        for chain in &self.fetched.chains[..taken] {
            if let Some((&packet, header)) = packets.next_if(|(packet, _)| packet.head == chain.head) {
                let event = Event { port, direction: CaptureDirection::Inbound, dropped: None };
                self.senders.tap(event, &whole(packet, header));
            } else if let Some(reason) = self.senders.queue_mut(ring).map(|queue| queue.refusal(chain.head)) {
                let packet = PacketRef { port: port.0, queue, head: chain.head, home, epoch };
                self.senders.tap_refused(packet, reason);
            }
        }
    }

    /// Reports packets of this visit, and copies, that the module drops. Reads the verdicts again, so that the usual
    /// path need not keep them.
    #[cold]
    pub(crate) fn tap_decided(&mut self) {
        let Self { senders, fetched, verdicts, .. } = self;
        let mut has_copies = [false; BATCH_PACKETS_MAX];
        verdicts.outputs().iter().for_each(|output| has_copies[usize::from(output.packet)] = true);
        verdicts.upcalls().iter().for_each(|upcall| has_copies[usize::from(upcall.packet)] = true);
        let mut reasons = [DropReason::NoDestination; BATCH_PACKETS_MAX];
        let mut drop = |index: usize, reason| {
            senders.tap_dropped(&whole(fetched.packets[index], &fetched.headers[index]), reason);
        };
        for &(packet, reason) in verdicts.drops() {
            let index = usize::from(packet);
            reasons[index] = reason;
            if has_copies[index] {
                drop(index, reason);
            }
        }
        (0..fetched.len).filter(|index| !has_copies[*index]).for_each(|index| drop(index, reasons[index]));
    }
}
