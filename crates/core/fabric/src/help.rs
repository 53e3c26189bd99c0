//! Helpers: workers that are home to no ring, and copy large frames for others on CPUs that are idle.
//!
//! ```text
//!   home: visit ──large frames──> receiver's queue ──order──> helper's mailbox      wakes it if it sleeps
//!           └── copies in turns ─────────┴───── copies in turns ──┘                 until the queue is empty
//!           └──────────────────────────────────── order back ─────┘                 if frames are left when the order ends
//! ```
//!
//! A worker that releases a claim last sees to the frames that are left. A helper has no time for that: it gives its order back
//! to the worker that gave it.

use lasthop_sync::full_fence;

use crate::board::HelpOrder;
use crate::bounds::HELP_FRAMES_MAX;
use crate::reference::PacketCopy;
use crate::rx::lease::Leases;
use crate::rx::receive_ring::FollowUp;
use crate::rx::receiver::Receivers;
use crate::rx::service::{Service, Tools};
use crate::rx::shared::SharedStep;
use crate::tx::offloads::{HelpShare, HelperFinder, LargeCopies};
use crate::{Fabric, RingId, tools};

/// The state of a helper after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HelpStep {
    /// A frame is to be copied.
    Reserved,
    /// A frame was delivered, or an order is done.
    Done,
    /// Other workers are ahead of it: it may try again.
    Busy,
    /// It has no order.
    Idle,
}

/// No copy is shared.
const ALONE: HelpShare = HelpShare { helper: 0, packets: 0 };

impl Service<'_, '_> {
    /// Whether copies may be shared with a helper.
    #[inline]
    pub(crate) fn may_share(&self) -> bool {
        self.tools.senders.offloads.with.is_some()
    }

    /// As `accept`. Large copies are queued for a helper and this worker, which copies them later. Returns their number.
    #[inline(never)] // usual copies pay one branch
    pub(crate) fn accept_large(
        &mut self,
        copies: &[PacketCopy<'_>],
        leases: &mut Leases,
        now_ns: u64,
    ) -> usize {
        let share = self.large_share(copies);
        let (own, large) = copies.split_at(copies.len() - share.packets as usize);
        if !own.is_empty() {
            self.accept(own, leases, now_ns);
        }
        if large.is_empty() {
            return 0;
        }
        let shared = self.share(large, share.helper, now_ns);
        if shared < large.len() {
            self.accept(&large[shared..], leases, now_ns);
        }
        shared
    }

    /// The helper for `copies`, and how many of them it shares: those that are large, if there is a helper.
    fn large_share(&mut self, copies: &[PacketCopy<'_>]) -> HelpShare {
        let Some((bytes_min, _)) = self.tools.senders.offloads.with else { return ALONE };
        let first = copies.first().map_or(0, |copy| copy.header.frame_len_bytes());
        if first < bytes_min { ALONE } else { self.find_share(copies) }
    }

    fn find_share(&mut self, copies: &[PacketCopy<'_>]) -> HelpShare {
        let bytes = copies.iter().map(|copy| u64::from(copy.header.frame_len_bytes())).sum();
        let capabilities = self.place.capabilities;
        let large = LargeCopies {
            packets: copies.len() as u32,
            bytes,
            waiting: self.claim.waiting() as u32,
            is_summed: copies.iter().all(|copy| capabilities.sums(copy.header.offload)),
        };
        // Memory that faults is charged to its port, which needs laps of one thread.
        let is_possible = copies.len() > 1 && self.claim.is_open() && !self.tools.senders.is_metered();
        let finder = self.tools.senders.offloads.with.as_mut().filter(|_| is_possible);
        let share = finder.and_then(|(_, finder)| finder.find(self.place.id, large));
        share.map_or(ALONE, |share| HelpShare { packets: share.packets.min(large.packets), ..share })
    }

    /// Puts an order for this ring into the helper's mailbox, unless it has one, and wakes the helper if it sleeps.
    pub(crate) fn order(&mut self, helper: u8) {
        let senders = &mut *self.tools.senders;
        let inbox = senders.board.inbox(helper);
        if !self.place.help.give(&inbox.orders, HelpOrder { ring: self.place.id, from: senders.worker }) {
            return;
        }
        senders.offloads.has_ordered = true;
        full_fence();
        if inbox.sleep_flag.wake()
            && let Some((_, finder)) = &mut senders.offloads.with
        {
            finder.wake(usize::from(helper));
        }
    }
}

impl Receivers {
    /// Whether a helper has the order to copy large frames at `ring`.
    pub(crate) fn has_helper(&self, ring: RingId) -> bool {
        self.ring(ring).is_some_and(|place| place.help.is_given())
    }
}

impl Fabric {
    /// Copies the large frames that wait at `ring`, in turns with a helper, while there are buffers. Calls `signal` when
    /// published frames made a guest want a signal. Returns whether any frame was delivered.
    pub(crate) fn copy_with_helper(&mut self, ring: RingId, signal: &mut dyn FnMut(&mut Self)) -> bool {
        let mut delivered = false;
        // Then its own rings have a turn.
        for number in 0..=HELP_FRAMES_MAX {
            let step = self.begin_sharing(ring, number < HELP_FRAMES_MAX);
            if !self.signals.is_empty() {
                signal(self);
            }
            match step {
                SharedStep::Reserved => self.copy_sharing(ring),
                SharedStep::Done => {}
                SharedStep::Nothing | SharedStep::Busy => break,
            }
            delivered = true;
        }
        delivered
    }

    /// Lets this worker share copies of frames from `bytes_min` bytes on with the helpers that `finder` finds.
    pub fn begin_offload(&mut self, bytes_min: u32, finder: Box<dyn HelperFinder>) {
        self.senders.offloads.with = Some((bytes_min, finder));
    }

    /// Stops sharing of copies. Frames that wait are delivered as others.
    pub fn end_offload(&mut self) {
        self.senders.offloads.with = None;
    }

    /// Whether this helper has orders.
    #[inline]
    #[must_use]
    pub fn has_orders(&self) -> bool {
        self.helping.is_some() || !self.senders.board.inbox(self.senders.worker).orders.is_empty()
    }

    /// The first part of copying a frame by the orders in this helper's mailbox: reserves buffers for the oldest one, and
    /// publishes the last one. Without `wants_more` it only publishes, and gives the order up. [`Self::copy_help`]
    /// follows if it is [`HelpStep::Reserved`], and then another call, before the helper does anything else.
    pub fn begin_help(&mut self, wants_more: bool) -> HelpStep {
        let board = &self.senders.board;
        self.helping = self.helping.or_else(|| board.inbox(self.senders.worker).orders.pop());
        let Some(order) = self.helping else { return HelpStep::Idle };
        let (step, follow_up) =
            self.receivers.share_step(order.ring, &mut tools!(self), &mut self.shared, wants_more);
        if step == SharedStep::Nothing || !wants_more {
            self.end_order(order, follow_up);
        }
        self.publish();
        match step {
            SharedStep::Reserved => HelpStep::Reserved,
            SharedStep::Done | SharedStep::Nothing => HelpStep::Done,
            SharedStep::Busy => HelpStep::Busy,
        }
    }

    /// The second part: copies the frame.
    pub fn copy_help(&mut self) {
        let Some(order) = self.helping else { return };
        self.copy_sharing(order.ring);
    }

    /// The ring of this helper's order; at a home the next one at which large frames of its visit wait. For tests and the
    /// lab, whose virtual time lets other workers go on between two frames of [`Self::copy_visit`].
    pub fn shared_ring(&mut self) -> Option<RingId> {
        self.helping.map(|order| order.ring).or_else(|| self.receivers.leases.next_shared())
    }

    /// One step of [`Self::copy_visit`] at a shared ring. For tests and the lab, as `shared_ring`.
    pub fn begin_sharing(&mut self, ring: RingId, wants_more: bool) -> SharedStep {
        let (step, follow_up) =
            self.receivers.share_step(ring, &mut tools!(self), &mut self.shared, wants_more);
        // If another worker has the claim, a home tries again: it may wait for a helper.
        self.receivers.note(ring, follow_up.unwrap_or(FollowUp::Now));
        step
    }

    /// Copies the frame that `begin_sharing` reserved buffers for. For tests and the lab, as `shared_ring`.
    pub fn copy_sharing(&mut self, ring: RingId) {
        self.receivers.copy_shared(ring, &mut tools!(self), &mut self.shared);
    }

    /// Ends an order: the next large frames need another one. Its giver sees to frames that are left, since another thread may
    /// want this CPU. If another worker has the claim, that one does: `None`.
    fn end_order(&mut self, order: HelpOrder, follow_up: Option<FollowUp>) {
        self.helping = None;
        self.receivers.ring(order.ring).into_iter().for_each(|place| place.help.end());
        let Some(follow_up) = follow_up.filter(|follow_up| *follow_up != FollowUp::None) else { return };
        match self.senders.board.inbox(order.from).orders.push(order) {
            Ok(()) => self.senders.note_news_for(order.from),
            // The mailbox is full: this helper has to do it.
            Err(_) => self.receivers.note(order.ring, follow_up),
        }
    }

    /// Takes orders that helpers gave back. Returns whether there were any.
    #[inline(never)]
    pub(crate) fn take_orders_back(&mut self) -> bool {
        let orders = std::iter::from_fn(|| self.senders.board.inbox(self.senders.worker).orders.pop());
        orders.map(|order| self.receivers.note(order.ring, FollowUp::Now)).count() > 0
    }
}
