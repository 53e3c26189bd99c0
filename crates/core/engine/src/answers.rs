//! Rings that answer each other, so that after a sleep both are polled from the first packet on.
//!
//! ```text
//!   asleep ── A kicks ──> A and B are polled ── A's packet reaches B's guest ── its answer is found without a kick
//!                              └ the guest behind B answered A's packet the last time
//! ```
//!
//! A guest that polls answers before the visit that delivered the packet is over, so the ring has to be polled before. A guest that
//! has not answered before a long silence is not expected to: its ring is armed as it was, and costs nothing.

use lasthop_fabric::RingId;
use lasthop_module_api::PortId;

/// Askers whose answers are remembered, by port; others share their places.
const PAIRS: usize = 64;

/// The packets of a worker since it slept: who asked, and whose came last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FirstPackets {
    /// The ring of the first packets, and the port that received them.
    pub(crate) asker: Option<(RingId, PortId)>,
    /// The ring of the last packets.
    pub(crate) last: Option<RingId>,
}

/// Which rings have answered which.
#[derive(Debug)]
pub(crate) struct Answers {
    pairs: [Option<(RingId, RingId)>; PAIRS],
    /// The ring of the first packets since the last long silence, and the port that received them.
    asker: Option<(RingId, PortId)>,
    /// Until then the answer is worth polling for.
    until_ns: u64,
    stage: Stage,
}

/// The stage of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Open,
    /// An answer is expected.
    Expecting,
    /// There is nothing more to learn.
    Over,
}

impl Default for Answers {
    fn default() -> Self {
        Self { pairs: [None; PAIRS], asker: None, until_ns: 0, stage: Stage::Open }
    }
}

fn place(asker: RingId) -> usize {
    asker.port.index() % PAIRS
}

impl Answers {
    /// Begins a conversation after a long silence, with packets of `asker`. Returns the ring that answers them, if it did
    /// the last time.
    pub(crate) fn begin(&mut self, asker: Option<RingId>) -> Option<RingId> {
        if let Some((unanswered, _)) = self.asker.take()
            && self.stage != Stage::Over
        {
            self.pairs[place(unanswered)] = None;
        }
        let pair = asker.and_then(|asker| self.pairs[place(asker)].filter(|(first, _)| *first == asker));
        self.stage = if pair.is_some() { Stage::Expecting } else { Stage::Open };
        pair.map(|(_, answering)| answering)
    }

    /// Whether an answer is expected that has not come.
    pub(crate) fn is_expecting(&self) -> bool {
        self.stage == Stage::Expecting
    }

    /// Whether it has nothing to learn from this conversation.
    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Learns from the packets of one of the thread's workers. An answer counts if it comes within `look_ns`;
    /// none does if that is 0: nothing is polled for then.
    pub(crate) fn learn(&mut self, seen: &FirstPackets, now_ns: u64, look_ns: u64) {
        if self.asker.is_none() {
            (self.asker, self.until_ns) = (seen.asker, now_ns + look_ns);
        }
        let (Some((asker, receiver)), Some(last)) = (self.asker, seen.last) else { return };
        if last.port == receiver && last != asker {
            let is_worth_it = look_ns > 0 && now_ns <= self.until_ns;
            self.pairs[place(asker)] = is_worth_it.then_some((asker, last));
            self.stage = Stage::Over;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: FirstPackets = FirstPackets { asker: Some((ring(1), PortId(2))), last: Some(ring(1)) };
    const ANSWERED: FirstPackets = FirstPackets { last: Some(ring(2)), ..ASKED };
    const LOOK_NS: u64 = 10;

    const fn ring(port: u16) -> RingId {
        RingId { port: PortId(port), queue: 0 }
    }

    #[test]
    fn an_answer_is_expected_as_long_as_it_comes() {
        let mut answers = Answers::default();
        assert_eq!(answers.begin(Some(ring(1))), None);
        answers.learn(&ASKED, 100, LOOK_NS);
        assert!(!answers.is_over() && !answers.is_expecting());
        answers.learn(&ANSWERED, 110, LOOK_NS);
        assert!(answers.is_over());
        assert_eq!(answers.begin(Some(ring(1))), Some(ring(2)));
        assert!(answers.is_expecting());
        answers.learn(&ASKED, 200, LOOK_NS);
        assert_eq!(answers.begin(Some(ring(1))), None, "it did not come");
        assert!(!answers.is_expecting());
    }

    #[test]
    fn an_answer_that_took_long_is_not_worth_polling_for() {
        let mut answers = Answers::default();
        answers.learn(&ANSWERED, 100, LOOK_NS);
        assert_eq!(answers.begin(Some(ring(1))), Some(ring(2)));
        answers.learn(&ASKED, 200, LOOK_NS);
        answers.learn(&ANSWERED, 211, LOOK_NS);
        assert!(answers.is_over());
        assert_eq!(answers.begin(Some(ring(1))), None);
    }

    #[test]
    fn without_polling_no_answer_is_expected() {
        let mut answers = Answers::default();
        answers.learn(&ANSWERED, 100, 0);
        assert_eq!(answers.begin(Some(ring(1))), None, "it came in the same round");
    }

    #[test]
    fn packets_of_others_are_no_answer() {
        let mut answers = Answers::default();
        answers.learn(&FirstPackets { last: Some(ring(3)), ..ASKED }, 100, LOOK_NS);
        assert_eq!(answers.begin(Some(ring(1))), None);
    }

    #[test]
    fn askers_that_share_a_place_get_no_other_s_answer() {
        let mut answers = Answers::default();
        answers.learn(&ANSWERED, 100, LOOK_NS);
        assert_eq!(answers.begin(Some(ring(1 + PAIRS as u16))), None);
        assert_eq!(answers.begin(None), None, "a task ended the sleep");
        assert_eq!(answers.begin(Some(ring(1))), Some(ring(2)), "neither of them changes the pair");
    }
}
