//! A client's connection: its state, and its waiting messages.

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use super::dump::Dump;
use super::request::RequestDatagram;
use crate::bounds::{
    ANSWER_BYTES_MAX, GROUPS_MAX, PATIENT_ENDS_MAX, UPCALL_BATCH_BYTES_MAX, UPCALL_BYTES_MAX,
};
use crate::datapath::{DatapathId, RemovalId};
use crate::message::NetlinkHeader;

/// A removed flow whose statistics the client gets in order.
#[derive(Clone, Copy, Debug)]
pub(super) struct Removal {
    pub(super) header: NetlinkHeader,
    pub(super) id: DatapathId,
    pub(super) removal: RemovalId,
    pub(super) omitted: u32,
}

/// A removal of all flows in progress; later messages of the client wait for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flush {
    pub(super) id: DatapathId,
    /// Where to continue: see [`Datapath::flows_flush`](crate::datapath::Datapath::flows_flush).
    pub(super) cursor: u64,
    /// The request to acknowledge at the end, and its length in bytes.
    pub(super) owed: Option<(NetlinkHeader, usize)>,
}

/// Messages waiting for a client, in order.
#[derive(Debug)]
enum Waiting {
    Datagram(Vec<u8>),
    /// Misses and ENDs in one datagram.
    Batch(Batch),
    Removal(Removal),
}

/// A datagram that grows until it is sent.
#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    ends: usize,
    has_misses: bool,
}

impl Batch {
    /// Adds a message at a multiple of four bytes; returns the bytes that it takes.
    fn add(&mut self, message: &[u8]) -> usize {
        let before = self.bytes.len();
        self.bytes.resize(before.next_multiple_of(4), 0);
        self.bytes.extend_from_slice(message);
        self.bytes.len() - before
    }
}

impl Waiting {
    /// Bytes that count against the limit.
    fn len_bytes(&self) -> usize {
        match self {
            Waiting::Datagram(datagram) => datagram.len(),
            Waiting::Batch(batch) => batch.bytes.len(),
            Waiting::Removal(_) => size_of::<Self>(),
        }
    }
}

/// A connection after its HELLO.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) port_id: u32,
    pub(super) protocol: u32,
    /// Whether it wants sentences in acknowledgements.
    pub(super) is_extended: bool,
    /// Whether its lists include datapaths of embedded controllers.
    pub(super) sees_all: bool,
    /// Whether it takes several misses and ENDs in one datagram.
    pub(super) takes_batches: bool,
    /// Whether its program does not wait for answers to flows and packets.
    pub(super) runs_ahead: bool,
    pub(super) groups: ArrayVec<u32, GROUPS_MAX>,
    /// The rest of a request datagram during a dump.
    pub(super) request: Option<RequestDatagram>,
    pub(super) dump: Option<Dump>,
    pub(super) flush: Option<Flush>,
    output: VecDeque<Waiting>,
    output_bytes: usize,
    /// The memory of the last batch that was sent, for the next one.
    spare: Vec<u8>,
    pub(super) lost: u64,
    /// Number of sent datagrams.
    pub(super) taken: u64,
    /// Number of received request datagrams.
    pub(super) heard: u64,
}

impl Peer {
    pub(super) fn new(port_id: u32, protocol: u32) -> Self {
        Self {
            port_id,
            protocol,
            is_extended: false,
            sees_all: false,
            takes_batches: false,
            runs_ahead: false,
            groups: ArrayVec::new(),
            request: None,
            dump: None,
            flush: None,
            output: VecDeque::new(),
            output_bytes: 0,
            spare: Vec::new(),
            lost: 0,
            taken: 0,
            heard: 0,
        }
    }

    /// Whether another request datagram may be read.
    pub(super) fn is_idle(&self) -> bool {
        self.request.is_none() && self.has_room()
    }

    /// Whether there is room for answers.
    pub(super) fn has_room(&self) -> bool {
        self.output_bytes < ANSWER_BYTES_MAX
    }

    /// Whether a miss or a notification of `len_bytes` has room.
    pub(super) fn has_room_for_upcall(&self, len_bytes: usize) -> bool {
        self.output_bytes + len_bytes <= UPCALL_BYTES_MAX
    }

    pub(super) fn push(&mut self, datagram: Vec<u8>) {
        self.enqueue(Waiting::Datagram(datagram));
    }

    /// Adds a miss; returns the bytes that it takes.
    pub(super) fn push_miss(&mut self, message: &[u8]) -> usize {
        if !self.takes_batches {
            self.push(message.to_vec());
            return message.len();
        }
        self.add_to_batch(message, |batch| batch.has_misses = true)
    }

    /// Adds the END of a request datagram; returns the bytes that it takes.
    pub(super) fn push_end(&mut self, message: Vec<u8>) -> usize {
        let len = message.len();
        if !self.takes_batches {
            self.push(message);
            return len;
        }
        self.add_to_batch(&message, |batch| batch.ends += 1)
    }

    /// Adds a message to the last datagram if that is a batch with room, else to a new one.
    fn add_to_batch(&mut self, message: &[u8], note: impl FnOnce(&mut Batch)) -> usize {
        let has_room = |batch: &Batch| batch.bytes.len() + message.len() <= UPCALL_BATCH_BYTES_MAX;
        if !matches!(self.output.back(), Some(Waiting::Batch(batch)) if has_room(batch)) {
            let bytes = std::mem::take(&mut self.spare);
            self.output.push_back(Waiting::Batch(Batch { bytes, ..Batch::default() }));
        }
        let Some(Waiting::Batch(batch)) = self.output.back_mut() else { return 0 };
        note(batch);
        let len = batch.add(message);
        self.output_bytes += len;
        len
    }

    /// Whether all that waits are ENDs, and few of them.
    pub(super) fn is_patient(&self) -> bool {
        let front = self.output.front().filter(|_| self.output.len() == 1);
        matches!(front, Some(Waiting::Batch(batch)) if !batch.has_misses && batch.ends < PATIENT_ENDS_MAX)
    }

    pub(super) fn push_removal(&mut self, removal: Removal) {
        self.enqueue(Waiting::Removal(removal));
    }

    fn enqueue(&mut self, waiting: Waiting) {
        self.output_bytes += waiting.len_bytes();
        self.output.push_back(waiting);
    }

    /// The next datagram; `None` while it is for a removed flow with packets to count.
    pub(super) fn output(&self) -> Option<&[u8]> {
        match self.output.front()? {
            Waiting::Datagram(datagram) => Some(datagram),
            Waiting::Batch(batch) => Some(&batch.bytes),
            Waiting::Removal(_) => None,
        }
    }

    pub(super) fn pop(&mut self) {
        if let Some(waiting) = self.output.pop_front_if(|waiting| !matches!(waiting, Waiting::Removal(_))) {
            self.output_bytes -= waiting.len_bytes();
            self.taken += 1;
            if let Waiting::Batch(mut batch) = waiting {
                batch.bytes.clear();
                self.spare = batch.bytes;
            }
        }
    }

    /// Removals without final statistics.
    pub(super) fn removals(&self) -> impl Iterator<Item = Removal> {
        self.output.iter().filter_map(|waiting| match waiting {
            Waiting::Removal(removal) => Some(*removal),
            Waiting::Datagram(_) | Waiting::Batch(_) => None,
        })
    }

    /// Replaces each removal by the message that `tell` returns; `Some(None)` for none. Returns whether any removal is
    /// left.
    pub(super) fn settle(&mut self, mut tell: impl FnMut(Removal) -> Option<Option<Vec<u8>>>) -> bool {
        for waiting in &mut self.output {
            if let Waiting::Removal(removal) = waiting
                && let Some(told) = tell(*removal)
            {
                *waiting = Waiting::Datagram(told.unwrap_or_default());
            }
        }
        let is_empty =
            |waiting: &Waiting| matches!(waiting, Waiting::Datagram(datagram) if datagram.is_empty());
        self.output.retain(|waiting| !is_empty(waiting));
        self.output_bytes = self.output.iter().map(Waiting::len_bytes).sum();
        self.removals().next().is_some()
    }

    pub(super) fn output_bytes(&self) -> usize {
        self.output_bytes
    }
}
