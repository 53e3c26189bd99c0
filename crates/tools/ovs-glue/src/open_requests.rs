//! Requests of a socket whose END has not come, and which of them the program waits for.
//!
//! A thread of ovs-vswitchd that answers upcalls sends their flows and packets in datagrams of some five upcalls, and reads after each
//! one whether something was refused. The kernel knows that when its system call ends. Here it would mean two changes of the thread
//! that runs, for each datagram. So such a thread does not wait, as long as nothing was refused: refusals are rare, and OVS does
//! nothing about them but log a line and try again with the flow's next packet. A copy of its flows is kept until
//! its END has come: if the switch process ends before, the next one gets them. Its packets are lost then, as before: the old process
//! may have sent them.
//!
//! A refused flow of a datagram that was not waited for counts as installed for OVS. So its packets still come as upcalls, without
//! another attempt, until OVS checks its flows. For a while after a refusal all answers at that socket are waited for, so this concerns few flows.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use lasthop_dpif::message::{HEADER_BYTES, Messages, NetlinkMessage};
use lasthop_dpif::server::Family;

/// Datagrams that are not waited for at once: more than a thread sends for the 64 upcalls that it takes at a time.
pub(crate) const UNWAITED_MAX: usize = 16;
/// Bytes of such a datagram. OVS sends more than a page at once only if one request is that long.
const UNWAITED_BYTES_MAX: usize = 4096;
/// How long all answers of a socket are waited for after a refusal.
const CAREFUL: Duration = Duration::from_secs(10);
/// linux/netlink.h: `NLM_F_ACK`, `NLM_F_ECHO`.
const ANSWERED_FLAGS: u16 = 4 | 8;
/// linux/openvswitch.h: `OVS_FLOW_CMD_NEW`, `OVS_PACKET_CMD_EXECUTE`.
const FLOW_NEW: u8 = 1;
const PACKET_EXECUTE: u8 = 3;

thread_local! {
    /// Whether this thread answers upcalls. Others want to know what is refused: they try out the datapath's features.
    static ANSWERS_UPCALLS: Cell<bool> = const { Cell::new(false) };
}

/// Notes a message that the program receives.
pub(crate) fn note_upcall(kind: u16) {
    if kind == Family::Packet.id() {
        ANSWERS_UPCALLS.set(true);
    }
}

/// The requests, in order.
#[derive(Debug, Default)]
pub(crate) struct OpenRequests {
    /// Copies of the flows of those that the program does not wait for.
    all: VecDeque<Option<Vec<u8>>>,
    careful_until: Option<Instant>,
}

impl OpenRequests {
    /// Notes a request that was sent; `copy` has its flows if it need not be waited for.
    pub(crate) fn sent(&mut self, copy: Option<Vec<u8>>) {
        self.all.push_back(copy);
    }

    /// Notes the END of the first one.
    pub(crate) fn ended(&mut self) {
        self.all.pop_front();
    }

    /// Notes that a flow was refused, if it was for an upcall.
    pub(crate) fn refused(&mut self, now: Instant) {
        if ANSWERS_UPCALLS.get() || matches!(self.all.front(), Some(Some(_))) {
            self.careful_until = Some(now + CAREFUL);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether the program has to wait for an answer.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.all.len() > UNWAITED_MAX || self.all.iter().any(Option::is_none)
    }

    /// Whether refusals are so rare that a request need not be waited for.
    pub(crate) fn is_confident(&self, now: Instant) -> bool {
        self.careful_until.is_none_or(|until| until <= now)
    }

    /// Takes the copies of those that another switch process has to get. Returns whether others are lost.
    pub(crate) fn take(&mut self) -> (Vec<Vec<u8>>, bool) {
        let has_lost = self.all.iter().any(Option::is_none);
        (self.all.drain(..).flatten().filter(|flows| !flows.is_empty()).collect(), has_lost)
    }
}

/// A copy of the flows of a datagram of these pieces, if the thread answers upcalls by it: it has only new flows and packets to execute, and
/// no request for an answer.
pub(crate) fn unwaited_copy<'a>(pieces: impl Iterator<Item = &'a [u8]> + Clone) -> Option<Vec<u8>> {
    if !ANSWERS_UPCALLS.get() {
        return None;
    }
    let len_bytes: usize = pieces.clone().map(<[u8]>::len).sum();
    if len_bytes > UNWAITED_BYTES_MAX {
        return None;
    }
    let mut flows = Vec::with_capacity(len_bytes);
    for piece in pieces {
        if unwaited_family(piece)? == Family::Flow {
            flows.extend_from_slice(piece);
        }
    }
    Some(flows)
}

/// Whether an answer refuses a flow; it repeats the request's header.
pub(crate) fn refuses_flow(answer: &NetlinkMessage<'_>) -> bool {
    let kind = answer.body.get(8..10).filter(|_| answer.body.len() >= 4 + HEADER_BYTES);
    answer.error().is_some_and(|errno| errno > 0) && kind == Some(&Family::Flow.id().to_ne_bytes())
}

/// The family of a piece that is such a request, and one request only, as OVS sends them.
fn unwaited_family(piece: &[u8]) -> Option<Family> {
    let mut messages = Messages::new(piece);
    let message = messages.next().filter(|message| message.header.flags & ANSWERED_FLAGS == 0)?;
    if messages.next().is_some() {
        return None;
    }
    let (kind, command) = (message.header.kind, message.generic().ok()?.command);
    match command {
        FLOW_NEW if kind == Family::Flow.id() => Some(Family::Flow),
        PACKET_EXECUTE if kind == Family::Packet.id() => Some(Family::Packet),
        _ => None,
    }
}
