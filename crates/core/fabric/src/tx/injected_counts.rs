//! Counts re-injected packets at their original input port.
//!
//! ```text
//!   port 3: rx ── upcall ──> forwarded at port 3 ... control plane ... inject_for(3) ──> injected at port 3
//!                                                                           └──> forwarded, dropped, waiting at port 3
//! ```
//!
//! The frames are in the ring of the port `internal`, and only that ring's home counts them. Each frame is counted at
//! one port. When that port is removed, its packets under way are counted at `internal`. So both sums are conserved.

use lasthop_module_api::{DropReason, PortId};

use crate::bounds::INTERNAL_FRAMES_MAX;
use crate::counters::PortCounters;
use crate::reference::{Attempt, PacketRef};
use crate::tx::internal::InternalPort;
use crate::tx::sender::Fetched;
use crate::tx::senders::Senders;

/// The port at which a frame is counted, and the number of its waiting copies.
#[derive(Clone, Copy, Debug)]
pub(super) struct InjectedFrame {
    pub(super) port: PortId,
    pub(super) waiting: u64,
}

/// Indexed by the head of the chain in the ring of the port `internal`.
#[derive(Debug)]
pub(super) struct InjectedFrames(pub(super) [InjectedFrame; INTERNAL_FRAMES_MAX as usize]);

impl Default for InjectedFrames {
    fn default() -> Self {
        Self([InjectedFrame { port: PortId::INTERNAL, waiting: 0 }; INTERNAL_FRAMES_MAX as usize])
    }
}

impl InjectedFrames {
    pub(super) fn of(&self, head: u16) -> PortId {
        self.0.get(usize::from(head)).map_or(PortId::INTERNAL, |account| account.port)
    }
}

impl Senders {
    /// Opens an account for the next frame with `head` of the port `internal`: it is counted at `port`, if that port
    /// exists.
    pub(crate) fn open_account(&mut self, head: u16, port: PortId) {
        let port = if self.get(port).is_some() { port } else { PortId::INTERNAL };
        if let Some(account) = self.accounts.0.get_mut(usize::from(head)) {
            *account = InjectedFrame { port, waiting: 0 };
        }
    }

    /// The port at which a packet is counted.
    #[inline]
    pub(crate) fn account_of(&self, packet: PacketRef) -> PortId {
        match packet.port() {
            PortId::INTERNAL => self.accounts.of(packet.head),
            port => port,
        }
    }

    /// The counters that a packet is counted in.
    #[inline]
    pub(crate) fn counters_of(&mut self, packet: PacketRef) -> Option<&mut PortCounters> {
        self.get_mut(self.account_of(packet)).map(|sender| &mut sender.counters)
    }

    /// Counts frames taken from the port `internal`.
    #[cold]
    pub(crate) fn enter_accounts(&mut self, fetched: &Fetched) {
        for (packet, header) in fetched.packets[..fetched.len].iter().zip(fetched.headers.iter()) {
            let port = self.account_of(*packet);
            if port == PortId::INTERNAL {
                continue;
            }
            if let Some(own) = self.get_mut(PortId::INTERNAL) {
                own.counters.rx_packets -= 1;
                own.counters.rx_bytes -= u64::from(header.frame_len_bytes());
                own.counters.rx_gso_packets -= u64::from(header.offload.is_gso());
            }
            self.count_injected(port, 1);
        }
    }

    /// Counts a copy that begins to wait or stops waiting.
    pub(crate) fn count_waiting(&mut self, packet: PacketRef, begins: bool) {
        let step = |count: u64| if begins { count + 1 } else { count - 1 };
        if let Some(counters) = self.counters_of(packet) {
            counters.waiting = step(counters.waiting);
        }
        let account = self.accounts.0.get_mut(usize::from(packet.head));
        if let Some(account) = account.filter(|_| packet.port() == PortId::INTERNAL) {
            account.waiting = step(account.waiting);
        }
    }

    /// As `settle_all`, for frames of the port `internal`.
    #[cold]
    pub(crate) fn settle_own(&mut self, attempts: impl Iterator<Item = (PacketRef, Attempt)>) {
        let mut completed = false;
        for (packet, attempt) in attempts {
            let is_over = self.counters_of(packet).is_some_and(|counters| counters.settle(attempt));
            if is_over && let Some(queue) = self.queue_mut(InternalPort::RING) {
                completed |= queue.settle(packet.head, || false);
            }
        }
        if completed {
            self.note_completed(InternalPort::RING);
        }
    }

    /// Counts a packet that comes back for `port` and is dropped before it is sent.
    pub(crate) fn drop_injected(&mut self, port: PortId, reason: DropReason) {
        let port = if self.get(port).is_some() { port } else { PortId::INTERNAL };
        self.count_injected(port, 1);
        if let Some(sender) = self.get_mut(port) {
            sender.counters.rx_drops.count(reason);
        }
    }

    /// Counts injected packets. Those of the port `internal` itself count as received there.
    fn count_injected(&mut self, port: PortId, packets: u64) {
        let Some(sender) = self.get_mut(port) else { return };
        match port {
            PortId::INTERNAL => sender.counters.rx_packets += packets,
            _ => sender.counters.injected += packets,
        }
    }

    /// Closes the account of a removed port: its packets under way are counted at `internal` from now on, as if they
    /// had come from there.
    pub(crate) fn close_accounts(&mut self, port: PortId) {
        if port == PortId::INTERNAL {
            return;
        }
        let Self { accounts, .. } = self;
        let left: Vec<(u16, u64)> = (0..)
            .zip(&mut accounts.0)
            .filter(|(_, account)| account.port == port)
            .map(|(head, account)| {
                account.port = PortId::INTERNAL;
                (head, account.waiting)
            })
            .collect();
        for (head, waiting) in left {
            let Some(own) = self.get_mut(PortId::INTERNAL) else { return };
            let copies = own.pending_copies(head);
            own.counters.rx_packets += u64::from(copies.min(1));
            own.counters.copies_added += u64::from(copies.saturating_sub(1));
            own.counters.waiting += waiting;
        }
    }
}
