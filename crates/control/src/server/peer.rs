//! One client's connection: what it is, and what waits for it.

use std::collections::VecDeque;

use arrayvec::ArrayVec;

use super::dump::Dump;
use crate::bounds::{ANSWER_BYTES_MAX, GROUPS_MAX, UPCALL_BYTES_MAX};

/// A connection, by a number that its owner chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId(pub u64);

/// A connection that said HELLO.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) port_id: u32,
    pub(super) protocol: u32,
    /// Wants sentences in acknowledgements.
    pub(super) is_extended: bool,
    pub(super) groups: ArrayVec<u32, GROUPS_MAX>,
    /// What is left of a request datagram while a dump of it goes on.
    pub(super) request: Option<Vec<u8>>,
    pub(super) dump: Option<Dump>,
    output: VecDeque<Vec<u8>>,
    output_bytes: usize,
    pub(super) lost: u64,
}

impl Peer {
    pub(super) fn new(port_id: u32, protocol: u32) -> Self {
        Self {
            port_id,
            protocol,
            is_extended: false,
            groups: ArrayVec::new(),
            request: None,
            dump: None,
            output: VecDeque::new(),
            output_bytes: 0,
            lost: 0,
        }
    }

    /// Whether another request datagram may be taken.
    pub(super) fn is_idle(&self) -> bool {
        self.request.is_none() && self.has_room()
    }

    /// Whether there is room for answers.
    pub(super) fn has_room(&self) -> bool {
        self.output_bytes < ANSWER_BYTES_MAX
    }

    /// Whether a miss or a notification of so many bytes has room.
    pub(super) fn has_room_for_upcall(&self, len_bytes: usize) -> bool {
        self.output_bytes + len_bytes <= UPCALL_BYTES_MAX
    }

    pub(super) fn push(&mut self, datagram: Vec<u8>) {
        self.output_bytes += datagram.len();
        self.output.push_back(datagram);
    }

    pub(super) fn output(&self) -> Option<&[u8]> {
        self.output.front().map(Vec::as_slice)
    }

    pub(super) fn pop(&mut self) -> usize {
        let len_bytes = self.output.pop_front().map_or(0, |datagram| datagram.len());
        self.output_bytes -= len_bytes;
        len_bytes
    }

    pub(super) fn output_bytes(&self) -> usize {
        self.output_bytes
    }
}
