//! Upcalls for clients that have enough to read: one from each line, which is paused meanwhile. Those of sparse lines do not
//! wait behind those of busy ones.
//!
//! ```text
//!   lines ── next upcall ──> does its client have enough to read? ── no ──> the client
//!     ^                          │ yes                                   ^
//!     └── its line is paused <── waits, behind others for that client ─────┘ when the client has read, is gone, or is given up
//! ```
//!
//! So a client that does not read delays its own upcalls only. After a while without a read, or once all room is taken,
//! its upcalls wait no longer and are lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use lasthop_dpif::server::{PeerId, Reader};

use super::unanswered_upcalls::{Traffic, UpcallClass};

/// How long upcalls wait for a client that does not read; later ones are lost. A slow client reads for some time from
/// its socket before that accepts more.
pub(super) const READ_PATIENCE: Duration = Duration::from_secs(1);

/// The longest pause between turns that counts against the client: in a longer one this thread may have been delayed.
const GRACE: Duration = Duration::from_millis(50);

/// Upcalls that wait for one client, of sparse lines or of busy ones.
struct Slow<T> {
    queue: VecDeque<T>,
    /// When it last read, and how much it had read by then.
    since: Instant,
    taken: u64,
    /// Whether its time is over, and it is in its grace period.
    is_last_chance: bool,
}

impl<T> Slow<T> {
    fn due(&self) -> Instant {
        self.since + READ_PATIENCE + if self.is_last_chance { GRACE } else { Duration::ZERO }
    }
}

/// Waiting upcalls.
pub(super) struct Waiting<T> {
    slow: BTreeMap<UpcallClass, Slow<T>>,
    /// Clients that were given up.
    stalled: BTreeSet<UpcallClass>,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self { slow: BTreeMap::new(), stalled: BTreeSet::new() }
    }
}

impl<T> Waiting<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.slow.is_empty()
    }

    /// Whether upcalls for a client have to wait.
    pub(super) fn is_waited_for(&self, reader: Reader, traffic: Traffic) -> bool {
        reader.is_busy && !self.stalled.contains(&(reader.client, traffic))
    }

    /// Adds an upcall behind others of its kind for its client, or in front if it has waited before.
    pub(super) fn add(
        &mut self,
        upcall: T,
        (Reader { client, taken, .. }, traffic): (Reader, Traffic),
        has_waited: bool,
    ) {
        let fresh = || Slow { queue: VecDeque::new(), since: Instant::now(), taken, is_last_chance: false };
        let slow = self.slow.entry((client, traffic)).or_insert_with(fresh);
        match has_waited {
            true => slow.queue.push_front(upcall),
            false => slow.queue.push_back(upcall),
        }
    }

    /// Notes which clients have read, and gives up those that have not for too long.
    pub(super) fn look(&mut self, reader: impl Fn(UpcallClass) -> Option<Reader>, now: Instant) {
        self.stalled.retain(|audience| reader(*audience).is_some_and(|reader| reader.is_busy));
        for (audience, slow) in &mut self.slow {
            let taken = reader(*audience).map_or(slow.taken, |reader| reader.taken);
            if slow.taken != taken {
                (slow.taken, slow.since, slow.is_last_chance) = (taken, now, false);
            } else if slow.is_last_chance && now >= slow.due() {
                self.stalled.insert(*audience);
            } else if !slow.is_last_chance && now >= slow.due() {
                (slow.since, slow.is_last_chance) = (now - READ_PATIENCE, true);
            }
        }
    }

    /// Takes the upcall of this kind that has waited longest for a client which it need not wait for any more: one that
    /// has read, is gone or is given up.
    pub(super) fn take(
        &mut self,
        traffic: Traffic,
        reader: impl Fn(UpcallClass) -> Option<Reader>,
    ) -> Option<T> {
        let is_ready = |audience: &UpcallClass| {
            audience.1 == traffic
                && reader(*audience).is_none_or(|reader| !self.is_waited_for(reader, traffic))
        };
        let audience = *self.slow.keys().find(|audience| is_ready(audience))?;
        let slow = self.slow.get_mut(&audience)?;
        let upcall = slow.queue.pop_front();
        if slow.queue.is_empty() {
            self.slow.remove(&audience);
        }
        upcall
    }

    /// Whether a client was given up.
    pub(super) fn is_given_up(&self, client: PeerId) -> bool {
        self.stalled.iter().any(|(stalled, _)| *stalled == client)
    }

    /// Gives up the client with most waiting upcalls, since there is no room for more.
    pub(super) fn give_up_slowest(&mut self) {
        let waited_for = self.slow.iter().filter(|(client, _)| !self.stalled.contains(client));
        self.stalled.extend(waited_for.max_by_key(|(_, slow)| slow.queue.len()).map(|(client, _)| *client));
    }

    /// The time at which the next client is given up.
    pub(super) fn due(&self) -> Option<Instant> {
        self.slow.values().map(Slow::due).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);
    const SPARSE: Traffic = Traffic::Sparse;

    fn busy(client: PeerId) -> Reader {
        Reader { client, is_busy: true, taken: 0, heard: 0 }
    }

    fn everybody((client, _): UpcallClass) -> Option<Reader> {
        Some(busy(client))
    }

    fn holding(count: usize) -> (Waiting<usize>, Instant) {
        let mut waiting = Waiting::default();
        (0..count).for_each(|number| waiting.add(number, (busy(A), SPARSE), false));
        let since = waiting.slow.get(&(A, SPARSE)).map(|slow| slow.since);
        (waiting, since.expect("it waits"))
    }

    #[test]
    fn a_client_that_does_not_read_is_waited_for_and_nobody_else() {
        let (mut waiting, now) = holding(2);
        waiting.look(everybody, now);
        assert_eq!(waiting.take(SPARSE, everybody), None);
        assert!(waiting.is_waited_for(busy(A), SPARSE));
        assert!(!waiting.is_waited_for(Reader { is_busy: false, ..busy(B) }, SPARSE), "others read");
        waiting.add(7, (busy(B), SPARSE), false);
        let has_read = |(client, _)| Some(Reader { is_busy: client == A, ..busy(client) });
        assert_eq!((waiting.take(SPARSE, has_read), waiting.take(SPARSE, has_read)), (Some(7), None));
        assert!(!waiting.is_empty());
    }

    #[test]
    fn upcalls_of_sparse_lines_do_not_wait_behind_those_of_busy_ones() {
        let mut waiting = Waiting::default();
        waiting.add(1, (busy(A), Traffic::Busy), false);
        waiting.add(2, (busy(A), Traffic::Busy), false);
        waiting.add(3, (busy(A), SPARSE), false);
        let has_room = |(client, traffic)| Some(Reader { is_busy: traffic != SPARSE, ..busy(client) });
        assert_eq!(waiting.take(Traffic::Busy, has_room), None);
        assert_eq!(waiting.take(SPARSE, has_room), Some(3));
        let reads = |(client, _)| Some(Reader { is_busy: false, ..busy(client) });
        assert_eq!(waiting.take(SPARSE, reads), None);
        assert_eq!([(); 3].map(|()| waiting.take(Traffic::Busy, reads)), [Some(1), Some(2), None]);
    }

    #[test]
    fn patience_is_with_a_client_that_takes_nothing_and_begins_again_when_it_does() {
        let (mut waiting, now) = holding(2);
        let (nearly, over) = (now + READ_PATIENCE / 2, now + READ_PATIENCE);
        let takes = |taken| move |(client, _): UpcallClass| Some(Reader { taken, ..busy(client) });
        waiting.look(takes(1), nearly);
        waiting.look(takes(1), over);
        assert_eq!(waiting.take(SPARSE, takes(1)), None, "it took something meanwhile");
        assert_eq!(waiting.due(), Some(nearly + READ_PATIENCE));
        waiting.look(takes(1), nearly + READ_PATIENCE);
        assert_eq!(waiting.take(SPARSE, takes(1)), None, "one more turn");
        assert_eq!(waiting.due(), Some(nearly + READ_PATIENCE + GRACE));
        waiting.look(takes(1), nearly + READ_PATIENCE + GRACE);
        assert!(waiting.is_given_up(A) && !waiting.is_waited_for(busy(A), SPARSE));
        assert_eq!(waiting.take(SPARSE, takes(1)), Some(0), "it loses its own from now on");
        waiting.add(0, (busy(A), SPARSE), true);
        assert_eq!([(); 3].map(|()| waiting.take(SPARSE, takes(1))), [Some(0), Some(1), None]);
        assert!(waiting.is_empty() && waiting.due().is_none());
        waiting.look(|(client, _)| Some(Reader { is_busy: false, ..busy(client) }), over);
        assert!(waiting.is_waited_for(busy(A), SPARSE), "it has read, and is waited for again");
    }

    #[test]
    fn packets_of_a_client_that_is_gone_do_not_wait() {
        let (mut waiting, now) = holding(1);
        waiting.look(|_| None, now);
        assert_eq!(waiting.take(SPARSE, |_| None), Some(0));
    }

    #[test]
    fn without_room_the_one_with_most_lines_is_given_up_first() {
        let (mut waiting, now) = holding(2);
        waiting.add(9, (busy(B), SPARSE), false);
        waiting.give_up_slowest();
        waiting.look(everybody, now);
        let given_up = |waiting: &Waiting<usize>| [A, B].map(|client| waiting.is_given_up(client));
        assert_eq!(given_up(&waiting), [true, false]);
        waiting.give_up_slowest();
        assert_eq!(given_up(&waiting), [true, true]);
        waiting.give_up_slowest();
    }
}
