//! The order in which upcalls leave their lines.
//!
//! ```text
//!   a packet comes to an empty line ──> sparse lines, by turns ──> first
//!                                            │ more than a few packets since it was empty
//!                                            v
//!                                       busy lines, by turns ──> while no sparse line has a packet
//! ```
//!
//! A line with few packets is sparse, as with FQ-CoDel (RFC 8290, 4.1: its list of new flows). So the first packet of a
//! quiet port does not wait behind those of ports with many. The reader says of each packet which list it came from:
//! its owner gives busy lines their share ([`UpcallRecord::is_sparse`]).

use std::collections::VecDeque;

use crate::bounds::UPCALLS_SPARSE;
use crate::upcall::UpcallRecord;
use crate::upcall::line::UpcallLine;

/// All lines, and those whose turn comes.
#[derive(Debug)]
pub(super) struct UpcallTurns {
    lines: Vec<Line>,
    /// Lines that are neither empty nor held, the next one first.
    sparse: VecDeque<UpcallLine>,
    busy: VecDeque<UpcallLine>,
}

#[derive(Debug, Default)]
struct Line {
    queue: VecDeque<(UpcallRecord, Vec<u8>)>,
    is_held: bool,
    /// Packets that it may still have as a sparse line.
    sparse_left: u32,
}

impl UpcallTurns {
    pub(super) fn new() -> Self {
        let lines = UpcallLine::all().map(|_| Line::default()).collect();
        Self { lines, sparse: VecDeque::new(), busy: VecDeque::new() }
    }

    /// Adds a packet to its line.
    pub(super) fn push(&mut self, record: UpcallRecord, bytes: Vec<u8>) {
        let at = record.line();
        let Some(line) = self.lines.get_mut(at.index()) else { return };
        let is_first = line.queue.is_empty();
        line.queue.push_back((record, bytes));
        // While it is held, a packet that was taken from it waits elsewhere.
        if is_first && !line.is_held {
            line.sparse_left = UPCALLS_SPARSE;
            self.sparse.push_back(at);
        }
    }

    /// Takes the next packet.
    pub(super) fn pop(&mut self) -> Option<(UpcallRecord, Vec<u8>)> {
        let (at, is_sparse) = match self.sparse.pop_front() {
            Some(at) => (at, true),
            None => (self.busy.pop_front()?, false),
        };
        let line = self.lines.get_mut(at.index())?;
        let (record, bytes) = line.queue.pop_front()?;
        line.sparse_left = line.sparse_left.saturating_sub(u32::from(is_sparse));
        if !line.queue.is_empty() {
            self.queue(at);
        }
        Some((UpcallRecord { is_sparse, ..record }, bytes))
    }

    /// Skips a line from now on.
    pub(super) fn hold(&mut self, held: UpcallLine) {
        if let Some(line) = self.lines.get_mut(held.index()) {
            line.is_held = true;
            self.sparse.retain(|turn| *turn != held);
            self.busy.retain(|turn| *turn != held);
        }
    }

    /// Ends the hold of a line.
    pub(super) fn release(&mut self, held: UpcallLine) {
        let Some(line) = self.lines.get_mut(held.index()) else { return };
        if std::mem::take(&mut line.is_held) && !line.queue.is_empty() {
            self.queue(held);
        }
    }

    /// Puts a line behind others of its kind.
    fn queue(&mut self, at: UpcallLine) {
        match self.lines.get(at.index()) {
            Some(line) if line.sparse_left > 0 => self.sparse.push_back(at),
            _ => self.busy.push_back(at),
        }
    }
}
