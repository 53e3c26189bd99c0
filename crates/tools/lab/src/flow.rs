//! Conversations of guests, like TCP's: a window of unacknowledged packets, acknowledgements for each second packet;
//! requests and responses; senders without limit. Each checks the order of its frames.

use crate::frame::{FrameHead, FrameKind};
use crate::random::Random;

/// Received packets that one acknowledgement is for, as TCP's delayed acknowledgements.
const PACKETS_PER_ACK: u64 = 2;
/// Packets of a window, whatever their size: receive rings hold those of all senders.
const WINDOW_PACKETS_MAX: u64 = 64;

/// Round trips of a flow that are kept.
const ROUND_TRIPS_MAX: usize = 1_000_000;

/// The kind of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Talk {
    /// Data in one direction, within a window in bytes.
    Stream { window_bytes: u64 },
    /// A request of the sender, a response of the receiver, one at a time; after each response a pause, which is up to
    /// `jitter_ns` longer, by the number of the request.
    Echo { pause_ns: u64, jitter_ns: u64 },
    /// Data in one direction as fast as the ring takes it.
    Flood,
}

/// The state of a direction.
#[derive(Clone, Copy, Debug, Default)]
struct Direction {
    sent: u64,
    received: u64,
    lost: u64,
    /// Packets that arrived: frames, or their segments.
    packets: u64,
    /// The last frame of which segments came, and their bytes.
    part: (u64, u32),
}

impl Direction {
    /// Enters a packet. Returns whether its frame is complete; `None` if it is not the next one of its frame.
    fn enter(&mut self, head: &FrameHead, frame_bytes: u32) -> Option<bool> {
        self.packets += 1;
        let FrameKind::Tcp { at_bytes, is_end, .. } = head.kind else { return Some(true) };
        let (number, bytes) = self.part;
        let expected = if number == head.number { bytes } else { 0 };
        self.part = (head.number, at_bytes.saturating_add(head.payload_bytes));
        (at_bytes == expected && is_end == (self.part.1 == frame_bytes)).then_some(is_end)
    }
}

/// A conversation between two NICs.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    pub(crate) number: u32,
    pub(crate) from: u16,
    pub(crate) to: u16,
    pub(crate) talk: Talk,
    pub(crate) payload_bytes: u32,
    /// Its payload goes in TCP frames, which the switch cuts for the receiver.
    pub(crate) is_cut: bool,
    /// The same without cuts: the switch completes the checksum for the receiver.
    pub(crate) is_summed: bool,
    there: Direction,
    back: Direction,
    /// Packets there that the sender knows to be received.
    acked: u64,
    /// When the pause of an echo ends.
    pub(crate) ready_ns: u64,
    /// Packets there that the receiver has acknowledged.
    answered: u64,
    /// When the last request of an echo was sent, and the times until its response, up to [`ROUND_TRIPS_MAX`].
    pub(crate) request_ns: u64,
    pub(crate) round_trips_ns: Vec<u64>,
    /// Frames that came before an earlier one of their direction, or twice.
    pub(crate) disorder: u64,
}

impl Flow {
    /// A conversation that has not begun.
    pub(crate) fn new(number: u32, [from, to]: [u16; 2], talk: Talk, payload_bytes: u32) -> Self {
        let (there, back) = Default::default();
        Self {
            number,
            from,
            to,
            talk,
            payload_bytes,
            is_cut: false,
            is_summed: false,
            there,
            back,
            acked: 0,
            ready_ns: 0,
            answered: 0,
            request_ns: 0,
            round_trips_ns: Vec::new(),
            disorder: 0,
        }
    }

    /// Packets that the sender may send at `now_ns`.
    pub(crate) fn sendable(&self, now_ns: u64) -> u64 {
        let in_flight = self.there.sent - self.acked;
        match self.talk {
            Talk::Flood => u64::MAX,
            Talk::Echo { .. } => u64::from(in_flight == 0 && now_ns >= self.ready_ns),
            Talk::Stream { window_bytes } => {
                let packets =
                    (window_bytes / u64::from(self.payload_bytes.max(1))).clamp(2, WINDOW_PACKETS_MAX);
                packets.saturating_sub(in_flight)
            }
        }
    }

    /// The next packet of the sender.
    pub(crate) fn send(&mut self) -> FrameHead {
        self.there.sent += 1;
        let whole = FrameKind::Tcp { at_bytes: 0, is_end: true, is_cut: self.is_cut };
        let is_tcp = self.is_cut || self.is_summed;
        self.frame(true, if is_tcp { whole } else { FrameKind::Data }, self.there.sent - 1, 0)
    }

    fn frame(&self, is_there: bool, kind: FrameKind, number: u64, acked: u64) -> FrameHead {
        let (from, to) = if is_there { (self.from, self.to) } else { (self.to, self.from) };
        let payload_bytes = if kind == FrameKind::Ack { 0 } else { self.payload_bytes };
        FrameHead { from, to, flow: self.number, kind, number, acked, payload_bytes }
    }

    /// Receives a frame, or a segment of one, at `now_ns`. Returns the answer, if one is due now.
    pub(crate) fn receive(&mut self, head: &FrameHead, now_ns: u64) -> Option<FrameHead> {
        let is_there = head.to == self.to;
        let direction = if is_there { &mut self.there } else { &mut self.back };
        let expected = direction.received + direction.lost;
        let is_complete = direction.enter(head, self.payload_bytes);
        if is_complete == Some(false) {
            return None;
        }
        if is_complete.is_none() || head.number < expected {
            self.disorder += 1;
            return None;
        }
        direction.lost += head.number - expected;
        direction.received += 1;
        match self.talk {
            Talk::Stream { .. } if is_there => self.answer(PACKETS_PER_ACK),
            Talk::Stream { .. } => {
                self.acked = self.acked.max(head.acked);
                None
            }
            Talk::Echo { .. } if is_there => {
                self.back.sent += 1;
                Some(self.frame(false, FrameKind::Data, self.back.sent - 1, 0))
            }
            Talk::Echo { pause_ns, jitter_ns } => {
                self.acked = self.there.sent;
                self.ready_ns = now_ns + pause_ns + Random::new(self.there.sent).below(jitter_ns + 1);
                if self.round_trips_ns.len() < ROUND_TRIPS_MAX {
                    self.round_trips_ns.push(now_ns - self.request_ns);
                }
                None
            }
            Talk::Flood => None,
        }
    }

    /// An acknowledgement, if at least `packets` are not acknowledged. With 1: the receiver has read all and goes to
    /// sleep.
    pub(crate) fn answer(&mut self, packets: u64) -> Option<FrameHead> {
        let passed = self.there.received + self.there.lost;
        if !matches!(self.talk, Talk::Stream { .. }) || passed - self.answered < packets {
            return None;
        }
        self.answered = passed;
        self.back.sent += 1;
        Some(self.frame(false, FrameKind::Ack, self.back.sent - 1, passed))
    }

    /// Packets and payload that the receiver has, and transactions that are complete.
    pub(crate) fn received(&self) -> Received {
        let packets = self.there.received;
        Received { packets, bytes: packets * u64::from(self.payload_bytes), transactions: self.back.received }
    }

    /// Frames that were sent, and those that arrived or are known to be lost, in both directions.
    pub(crate) fn frames(&self) -> FrameCounts {
        let [there, back] = [self.there, self.back];
        FrameCounts {
            sent: there.sent + back.sent,
            received: there.received + back.received,
            skipped: there.lost + back.lost,
            packets: there.packets + back.packets,
        }
    }
}

/// The useful part of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) transactions: u64,
}

/// Frames of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameCounts {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    /// Lost before one that was received.
    pub(crate) skipped: u64,
    /// Packets that arrived: frames, or their segments.
    pub(crate) packets: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: Talk = Talk::Stream { window_bytes: 4000 };

    #[test]
    fn a_stream_stops_at_its_window_and_goes_on_with_acknowledgements() {
        let mut flow = Flow::new(3, [0, 1], STREAM, 1000);
        let sent: Vec<FrameHead> =
            std::iter::from_fn(|| (flow.sendable(0) > 0).then(|| flow.send())).collect();
        assert_eq!(sent.len(), 4);
        assert_eq!(flow.receive(&sent[0], 0), None, "acknowledgements are delayed");
        let ack = flow.receive(&sent[1], 0).unwrap();
        assert_eq!((ack.kind, ack.acked, ack.from, ack.to), (FrameKind::Ack, 2, 1, 0));
        flow.receive(&ack, 0);
        assert_eq!(flow.sendable(0), 2);
        flow.receive(&sent[2], 0);
        assert_eq!(flow.answer(1).unwrap().acked, 3, "the receiver goes to sleep");
        assert_eq!(flow.answer(1), None);
    }

    #[test]
    fn a_request_waits_for_its_response() {
        let mut flow = Flow::new(0, [4, 5], Talk::Echo { pause_ns: 50, jitter_ns: 0 }, 100);
        let request = flow.send();
        assert_eq!(flow.sendable(0), 0);
        let response = flow.receive(&request, 5).unwrap();
        assert_eq!((response.from, response.to, response.payload_bytes), (5, 4, 100));
        flow.receive(&response, 10);
        assert_eq!((flow.sendable(59), flow.sendable(60), flow.received().transactions), (0, 1, 1));
    }

    #[test]
    fn a_frame_is_complete_with_its_last_segment() {
        let mut flow = Flow::new(0, [0, 1], Talk::Flood, 2500);
        flow.is_cut = true;
        let [first, second] = [flow.send(), flow.send()];
        let segment = |frame: FrameHead, at_bytes, payload_bytes, is_end| FrameHead {
            kind: FrameKind::Tcp { at_bytes, is_end, is_cut: true },
            payload_bytes,
            ..frame
        };
        flow.receive(&segment(first, 0, 1448, false), 0);
        assert_eq!((first.packets(), flow.received().packets), (2, 0));
        flow.receive(&segment(first, 1448, 1052, true), 0);
        let counts = flow.frames();
        assert_eq!((flow.received().packets, counts.packets, flow.disorder), (1, 2, 0));
        flow.receive(&segment(second, 1448, 1052, true), 0);
        assert_eq!(flow.disorder, 1, "the first segment is missing");
        flow.receive(&segment(second, 0, 1448, true), 0);
        assert_eq!(flow.disorder, 2, "shorter than it was sent");
    }

    #[test]
    fn gaps_and_disorder_are_noticed() {
        let mut flow = Flow::new(0, [0, 1], Talk::Flood, 10);
        let [first, second, third] = [flow.send(), flow.send(), flow.send()];
        flow.receive(&second, 0);
        assert_eq!((flow.frames().skipped, flow.disorder), (1, 0));
        flow.receive(&first, 0);
        assert_eq!(flow.disorder, 1, "too late");
        flow.receive(&third, 0);
        flow.receive(&third, 0);
        assert_eq!((flow.frames().received, flow.disorder), (2, 2), "twice");
    }
}
