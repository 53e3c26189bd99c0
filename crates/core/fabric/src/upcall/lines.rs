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

use lasthop_module_api::{PORTS_MAX, PortId};

use crate::bounds::{UPCALL_LINES_OF_INTERNAL, UPCALLS_SPARSE};
use crate::upcall::UpcallRecord;

/// Number of lines of one kind.
const LINES: u16 = PORTS_MAX as u16 + UPCALL_LINES_OF_INTERNAL;

/// A line in which packets for the control plane wait. Each port has one. Packets of the port `internal`, which control
/// planes sent, have one per deciding module. Suspended packets, mostly fragments, have a second set of lines, so that
/// they do not displace the first packets of flows. Each line has its own turns, bounds and tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpcallLine(u16);

impl UpcallLine {
    /// The line of packets from `port` about which `origin` decided.
    pub(crate) fn of(port: PortId, origin: u16, is_suspended: bool) -> Self {
        let first = if is_suspended { LINES } else { 0 };
        match port {
            PortId::INTERNAL => Self(first + PORTS_MAX as u16 + origin % UPCALL_LINES_OF_INTERNAL),
            port => Self(first + port.0),
        }
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// All lines.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..2 * LINES).map(Self)
    }
}

/// All lines, and those whose turn comes.
#[derive(Debug)]
pub(super) struct UpcallTurns {
    lines: Vec<Line>,
    /// Lines that are neither empty nor paused, the next one first.
    sparse: VecDeque<UpcallLine>,
    busy: VecDeque<UpcallLine>,
}

#[derive(Debug, Default)]
struct Line {
    queue: VecDeque<(UpcallRecord, Vec<u8>)>,
    is_paused: bool,
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
        // While it is paused, a packet that was taken from it waits elsewhere.
        if is_first && !line.is_paused {
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
    pub(super) fn pause(&mut self, paused: UpcallLine) {
        if let Some(line) = self.lines.get_mut(paused.index()) {
            line.is_paused = true;
            self.sparse.retain(|turn| *turn != paused);
            self.busy.retain(|turn| *turn != paused);
        }
    }

    /// Ends the pause of a line.
    pub(super) fn resume(&mut self, paused: UpcallLine) {
        let Some(line) = self.lines.get_mut(paused.index()) else { return };
        if std::mem::take(&mut line.is_paused) && !line.queue.is_empty() {
            self.queue(paused);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_port_has_a_line_and_the_internal_one_has_several() {
        let last = PortId(PORTS_MAX as u16 - 1);
        assert_eq!(UpcallLine::of(last, 1, false), UpcallLine::of(last, 2, false));
        assert_ne!(UpcallLine::of(PortId::INTERNAL, 1, false), UpcallLine::of(PortId::INTERNAL, 2, false));
        let len = UpcallLine::all().count();
        assert!((0..=u16::MAX).all(|origin| UpcallLine::of(PortId::INTERNAL, origin, true).index() < len));
        let fragments = UpcallLine::of(PortId(1), 1, true).index();
        assert!(UpcallLine::of(PortId::INTERNAL, u16::MAX, false).index() < fragments);
        assert!(UpcallLine::of(last, 1, false).index() < UpcallLine::of(PortId::INTERNAL, 0, false).index());
    }
}
