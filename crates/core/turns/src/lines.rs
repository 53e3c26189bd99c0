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
//! quiet port does not wait behind those of ports with many. Each packet is returned with the kind of list that it came
//! from: its owner gives busy lines their share.

use std::collections::VecDeque;

use lasthop_module_api::{PORTS_MAX, PortId};

/// Upcall lines for packets of the port `internal`. There are more than datapaths, so two datapaths share one only if
/// many were created and deleted in between.
pub const UPCALL_LINES_OF_INTERNAL: u16 = 64;
/// Packets of a line since it was empty that go ahead of those of busy lines: a guest that opens a few connections at
/// once. There may be as many of its port with the control plane.
pub const UPCALLS_SPARSE: u32 = 4;
/// Number of lines of one kind.
const LINES: u16 = PORTS_MAX as u16 + UPCALL_LINES_OF_INTERNAL;

/// A line in which packets for the control plane wait. Each port has one. Packets of the port `internal`, which control
/// planes sent, have one per deciding module. Suspended packets, mostly fragments, have a second set of lines, so that
/// they do not displace the first packets of flows. Each line has its own turns, bounds and tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UpcallLine(u16);

impl UpcallLine {
    /// The line of packets from `port` about which `origin` decided.
    #[must_use]
    pub fn of(port: PortId, origin: u16, is_suspended: bool) -> Self {
        let first = if is_suspended { LINES } else { 0 };
        match port {
            PortId::INTERNAL => Self(first + PORTS_MAX as u16 + origin % UPCALL_LINES_OF_INTERNAL),
            port => Self(first + port.0),
        }
    }

    /// Its number.
    #[must_use]
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// All lines.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..2 * LINES).map(Self)
    }
}

/// All lines, and those whose turn comes.
#[derive(Debug)]
pub struct UpcallTurns<T> {
    lines: Vec<Line<T>>,
    /// Lines that are neither empty nor paused, the next one first.
    sparse: VecDeque<UpcallLine>,
    busy: VecDeque<UpcallLine>,
}

#[derive(Debug)]
struct Line<T> {
    queue: VecDeque<T>,
    is_paused: bool,
    /// Packets that it may still have as a sparse line.
    sparse_left: u32,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Self { queue: VecDeque::new(), is_paused: false, sparse_left: 0 }
    }
}

impl<T> Default for UpcallTurns<T> {
    fn default() -> Self {
        let lines = UpcallLine::all().map(|_| Line::default()).collect();
        Self { lines, sparse: VecDeque::new(), busy: VecDeque::new() }
    }
}

impl<T> UpcallTurns<T> {
    /// Adds a packet to line `at`.
    pub fn push(&mut self, at: UpcallLine, packet: T) {
        let Some(line) = self.lines.get_mut(at.index()) else { return };
        let is_first = line.queue.is_empty();
        line.queue.push_back(packet);
        // While it is paused, a packet that was taken from it waits elsewhere.
        if is_first && !line.is_paused {
            line.sparse_left = UPCALLS_SPARSE;
            self.sparse.push_back(at);
        }
    }

    /// Takes the next packet, and whether its line is sparse.
    pub fn pop(&mut self) -> Option<(T, bool)> {
        let (at, is_sparse) = match self.sparse.pop_front() {
            Some(at) => (at, true),
            None => (self.busy.pop_front()?, false),
        };
        let line = self.lines.get_mut(at.index())?;
        let packet = line.queue.pop_front()?;
        line.sparse_left = line.sparse_left.saturating_sub(u32::from(is_sparse));
        if !line.queue.is_empty() {
            self.queue(at);
        }
        Some((packet, is_sparse))
    }

    /// Skips a line from now on.
    pub fn pause(&mut self, paused: UpcallLine) {
        if let Some(line) = self.lines.get_mut(paused.index()) {
            line.is_paused = true;
            self.sparse.retain(|turn| *turn != paused);
            self.busy.retain(|turn| *turn != paused);
        }
    }

    /// Ends the pause of a line.
    pub fn resume(&mut self, paused: UpcallLine) {
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
    fn sparse_lines_go_first_and_paused_ones_wait() {
        let line = |port| UpcallLine::of(PortId(port), 0, false);
        let mut turns = UpcallTurns::default();
        (0..6).for_each(|number| turns.push(line(1), number));
        let first: Vec<_> = (0..4).filter_map(|_| turns.pop()).collect();
        assert_eq!(first, [(0, true), (1, true), (2, true), (3, true)]);
        turns.push(line(2), 10);
        assert_eq!(turns.pop(), Some((10, true)), "it has few");
        turns.pause(line(1));
        assert_eq!(turns.pop(), None);
        turns.resume(line(1));
        assert_eq!([turns.pop(), turns.pop(), turns.pop()], [Some((4, false)), Some((5, false)), None]);
    }

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
