//! Upcalls that the embedded controller has to answer: how many at once, and of which ports.
//!
//! An upcall waits behind those that the controller has already. So it has few at once while several ports make upcalls:
//! any number up to a bound from ports with few, and a handful of all busy ones together. These also get a share of its
//! time only ([`BusyTime`]). A port that is alone has the whole bound and all the time.

use std::time::{Duration, Instant};

use lasthop_dpif::server::{PeerId, Reader};
use lasthop_fabric::bounds::UPCALLS_SPARSE;

use super::busy_time::BusyTime;

/// Upcalls that the embedded controller has to answer, beyond which the next ones wait in their ports' lines. There ports
/// have turns, and nothing overtakes packets on their way. They are a fraction of a millisecond's work.
const TO_ANSWER_MAX: usize = 32;
/// The same of busy lines while several ports make upcalls: another port's packet waits behind these. With fewer, each
/// would wake the controller by itself.
const BUSY_TO_ANSWER_MAX: usize = 4;
/// How long an upcall counts as one that will be answered: one that never is must not take others' room.
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(1);
/// How long a port counts as one that makes upcalls.
const RECENT: Duration = Duration::from_millis(100);

/// Whether a packet's line had few packets, and its port few with the controller. Sparse ones go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Traffic {
    Sparse,
    Busy,
}

/// An upcall's port: its datapath, and its number there.
pub(super) type AskingPort = (i32, u32);

/// A client, and which upcalls for it.
pub(super) type UpcallClass = (PeerId, Traffic);

#[derive(Clone, Copy, Debug)]
struct Open {
    /// It comes back with the answer.
    hash: Option<u64>,
    port: AskingPort,
    traffic: Traffic,
    since: Instant,
}

/// Upcalls to the embedded controller that it has not answered.
#[derive(Debug, Default)]
pub(super) struct UnansweredUpcalls {
    open: Vec<Open>,
    /// How many of them are of busy lines.
    busy: usize,
    /// None of them is older.
    oldest: Option<Instant>,
    answered: u64,
    /// The last ports that made upcalls: two different ones.
    recent: [Option<(AskingPort, Instant)>; 2],
    time: BusyTime,
}

impl UnansweredUpcalls {
    pub(super) fn asked(&mut self, hash: Option<u64>, (port, traffic): (AskingPort, Traffic), now: Instant) {
        self.pass(now);
        let [last, _] = self.recent;
        if last.is_some_and(|(last, _)| last != port) {
            self.recent[1] = last;
        }
        self.recent[0] = Some((port, now));
        self.open.push(Open { hash, port, traffic, since: now });
        self.busy += usize::from(traffic == Traffic::Busy);
        self.oldest.get_or_insert(now);
    }

    pub(super) fn answered(&mut self, hash: u64, now: Instant) {
        self.pass(now);
        self.answered += 1;
        if let Some(at) = self.open.iter().position(|open| open.hash == Some(hash)) {
            let answered = self.open.swap_remove(at);
            self.busy -= usize::from(answered.traffic == Traffic::Busy);
            self.oldest = self.oldest.filter(|_| !self.open.is_empty());
        }
    }

    /// Forgets all upcalls under way: another controller begins, or this one does not answer for some.
    pub(super) fn forget(&mut self) {
        self.open.clear();
        (self.busy, self.oldest) = (0, None);
    }

    /// How a packet goes to the controller if its line had few others, or many.
    pub(super) fn traffic(&self, port: AskingPort, is_sparse: bool) -> Traffic {
        let own = || self.open.iter().filter(|open| open.port == port).count();
        if is_sparse && own() < UPCALLS_SPARSE as usize { Traffic::Sparse } else { Traffic::Busy }
    }

    /// The state of the controller as a reader of such packets. It has enough to read also while it has enough to answer.
    pub(super) fn of(&self, reader: Reader, traffic: Traffic, now: Instant) -> Reader {
        let is_busy = reader.is_busy || !self.has_room(traffic, now);
        Reader { is_busy, taken: reader.taken.wrapping_add(self.answered), ..reader }
    }

    /// When busy lines have time again, if they wait for nothing else. Passes with time ([`Self::pass`]).
    pub(super) fn due(&self) -> Option<Instant> {
        self.time.due().filter(|_| self.busy == 0 && self.open.len() < TO_ANSWER_MAX)
    }

    /// Notes that time has passed.
    pub(super) fn pass(&mut self, now: Instant) {
        let is_taken = self.busy > 0 && self.is_shared(now);
        self.time.pass(now, is_taken);
        let is_late = |since: Instant| now.saturating_duration_since(since) >= ANSWER_WAIT_MAX;
        if self.oldest.is_some_and(is_late) {
            self.open.retain(|open| !is_late(open.since));
            self.busy = self.open.iter().filter(|open| open.traffic == Traffic::Busy).count();
            self.oldest = self.open.iter().map(|open| open.since).min();
        }
    }

    fn has_room(&self, traffic: Traffic, now: Instant) -> bool {
        if self.open.len() >= TO_ANSWER_MAX {
            return false;
        }
        if traffic == Traffic::Sparse || !self.is_shared(now) {
            return true;
        }
        self.busy < BUSY_TO_ANSWER_MAX && self.time.due().is_none_or(|due| due <= now)
    }

    /// Whether several ports make upcalls.
    fn is_shared(&self, now: Instant) -> bool {
        self.recent[1].is_some_and(|(_, at)| now.saturating_duration_since(at) < RECENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const READER: Reader = Reader { client: PeerId(1), is_busy: false, taken: 0, heard: 0 };

    /// Asks for a port until there is no room; returns the number of upcalls.
    fn fill(to_answer: &mut UnansweredUpcalls, port: u32, traffic: Traffic, now: Instant) -> usize {
        let before = to_answer.open.len();
        while !to_answer.of(READER, traffic, now).is_busy {
            to_answer.asked(Some(port.into()), ((1, port), traffic), now);
        }
        to_answer.open.len() - before
    }

    #[test]
    fn a_controller_has_as_many_upcalls_at_once_as_it_answers_soon() {
        let (mut to_answer, now) = (UnansweredUpcalls::default(), Instant::now());
        assert_eq!(fill(&mut to_answer, 1, Traffic::Busy, now), TO_ANSWER_MAX, "a port that is alone");
        to_answer.answered(1, now);
        let after = to_answer.of(READER, Traffic::Busy, now);
        assert!(!after.is_busy && after.taken != READER.taken, "that is progress");
        let reader = Reader { is_busy: true, ..READER };
        assert!(to_answer.of(reader, Traffic::Sparse, now).is_busy, "it has enough to read");
        assert_eq!(fill(&mut to_answer, 1, Traffic::Busy, now), 1);
        to_answer.forget();
        (0..2).for_each(|_| to_answer.answered(1, now));
        assert_eq!(fill(&mut to_answer, 1, Traffic::Busy, now), TO_ANSWER_MAX, "late answers count for none");
    }

    #[test]
    fn an_upcall_that_is_never_answered_takes_no_room_for_long() {
        let (mut to_answer, now) = (UnansweredUpcalls::default(), Instant::now());
        fill(&mut to_answer, 1, Traffic::Busy, now);
        to_answer.answered(77, now + ANSWER_WAIT_MAX - MS);
        assert!(
            to_answer.of(READER, Traffic::Sparse, now + ANSWER_WAIT_MAX - MS).is_busy,
            "the answer of another one"
        );
        to_answer.pass(now + ANSWER_WAIT_MAX);
        assert!(!to_answer.of(READER, Traffic::Sparse, now + ANSWER_WAIT_MAX).is_busy);
    }

    #[test]
    fn while_several_ports_ask_the_busy_ones_have_few_at_once_and_leave_room_for_others() {
        let (mut to_answer, now) = (UnansweredUpcalls::default(), Instant::now());
        to_answer.asked(Some(1), ((1, 1), Traffic::Busy), now);
        to_answer.asked(Some(2), ((1, 2), Traffic::Busy), now);
        assert_eq!(fill(&mut to_answer, 3, Traffic::Busy, now), BUSY_TO_ANSWER_MAX - 2);
        assert!(!to_answer.of(READER, Traffic::Sparse, now).is_busy);
        assert_eq!(fill(&mut to_answer, 4, Traffic::Sparse, now), TO_ANSWER_MAX - BUSY_TO_ANSWER_MAX);
    }

    #[test]
    fn a_port_with_many_upcalls_to_be_answered_is_busy_though_its_line_is_empty() {
        let (mut to_answer, now, port) = (UnansweredUpcalls::default(), Instant::now(), (1, 7));
        for _ in 0..UPCALLS_SPARSE {
            assert_eq!(to_answer.traffic(port, true), Traffic::Sparse);
            to_answer.asked(Some(7), (port, Traffic::Sparse), now);
        }
        assert_eq!(to_answer.traffic(port, true), Traffic::Busy);
        assert_eq!(to_answer.traffic((1, 8), true), Traffic::Sparse);
        assert_eq!(to_answer.traffic((1, 8), false), Traffic::Busy);
        to_answer.answered(7, now);
        assert_eq!(to_answer.traffic(port, true), Traffic::Sparse);
    }

    /// Upcalls of busy ports that are answered within `duration`, if each batch takes a millisecond.
    fn answered_within(
        to_answer: &mut UnansweredUpcalls,
        ports: &[u32],
        start: Instant,
        duration: Duration,
    ) -> usize {
        let (mut now, mut count) = (start, 0);
        while now < start + duration {
            let mut asked = Vec::new();
            for port in ports.iter().cycle() {
                if to_answer.of(READER, Traffic::Busy, now).is_busy {
                    break;
                }
                to_answer.asked(Some((*port).into()), ((1, *port), Traffic::Busy), now);
                asked.push(*port);
            }
            now += MS;
            asked.iter().for_each(|port| to_answer.answered((*port).into(), now));
            count += asked.len();
        }
        count
    }

    #[test]
    fn busy_ports_take_their_share_of_the_time_together_and_a_port_alone_all_of_it() {
        let (mut to_answer, start) = (UnansweredUpcalls::default(), Instant::now());
        let alone = answered_within(&mut to_answer, &[1], start, 1000 * MS);
        assert_eq!(alone, 1000 * TO_ANSWER_MAX, "it has all of it");
        let later = start + 2000 * MS;
        let together = answered_within(&mut to_answer, &[1, 2, 3, 4], later, 1000 * MS);
        let share = 250 * BUSY_TO_ANSWER_MAX;
        assert!((share..share + 20 * BUSY_TO_ANSWER_MAX).contains(&together), "{together}");
        assert!(to_answer.due().is_some() || to_answer.open.is_empty());
        let rested = answered_within(&mut to_answer, &[1], later + 1200 * MS, 10 * MS);
        assert_eq!(rested, 10 * TO_ANSWER_MAX, "it is alone again");
    }

    #[test]
    fn a_sparse_port_is_asked_for_while_busy_ones_rest() {
        let (mut to_answer, start) = (UnansweredUpcalls::default(), Instant::now());
        // Longer than a burst, and not answered meanwhile.
        to_answer.asked(Some(1), ((1, 1), Traffic::Busy), start);
        to_answer.asked(Some(2), ((1, 2), Traffic::Busy), start);
        let now = start + 50 * MS;
        [1, 2].into_iter().for_each(|hash| to_answer.answered(hash, now));
        let due = to_answer.due().expect("they rest");
        assert!(due > now && to_answer.of(READER, Traffic::Busy, now).is_busy);
        assert!(!to_answer.of(READER, Traffic::Sparse, now).is_busy);
        assert!(!to_answer.of(READER, Traffic::Busy, due).is_busy);
    }
}
