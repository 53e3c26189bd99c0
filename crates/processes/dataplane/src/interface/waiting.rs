//! Upcalls for clients that have enough to read: one from each line, which is held meanwhile.
//!
//! ```text
//!   lines ── next upcall ──> does its client have enough to read? ── no ──> the client
//!     ^                          │ yes                                   ^
//!     └── its line is held <── waits, behind others for that client ─────┘ when the client has read, is gone, or is given up
//! ```
//!
//! So a client that does not read delays its own upcalls only. After a while without a read, or once all room is taken,
//! its upcalls wait no longer and are lost.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use lasthop_dpif::server::{PeerId, Reader};

/// How long upcalls wait for a client that does not read; later ones are lost. A slow client reads for some time from
/// its socket before that accepts more.
pub(super) const READ_PATIENCE: Duration = Duration::from_secs(1);

/// The longest pause between turns that counts against the client: in a longer one this thread may have been delayed.
const GRACE: Duration = Duration::from_millis(50);

/// Upcalls that wait for one client.
struct Slow<T> {
    held: VecDeque<T>,
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

/// Waiting upcalls, by client.
pub(super) struct Waiting<T> {
    slow: BTreeMap<PeerId, Slow<T>>,
    /// Clients that were given up.
    stalled: BTreeSet<PeerId>,
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
    pub(super) fn is_waited_for(&self, reader: Reader) -> bool {
        reader.is_busy && !self.stalled.contains(&reader.client)
    }

    /// Adds an upcall behind others for its client, or in front if it has waited before.
    pub(super) fn hold(&mut self, held: T, Reader { client, taken, .. }: Reader, has_waited: bool) {
        let fresh = || Slow { held: VecDeque::new(), since: Instant::now(), taken, is_last_chance: false };
        let slow = self.slow.entry(client).or_insert_with(fresh);
        match has_waited {
            true => slow.held.push_front(held),
            false => slow.held.push_back(held),
        }
    }

    /// Clients whose upcalls need not wait any more: those that have read, are gone or are given up.
    pub(super) fn ready(
        &mut self,
        reader: impl Fn(PeerId) -> Option<Reader>,
        now: Instant,
    ) -> VecDeque<PeerId> {
        self.stalled.retain(|client| reader(*client).is_some_and(|reader| reader.is_busy));
        for (client, slow) in &mut self.slow {
            let taken = reader(*client).map_or(slow.taken, |reader| reader.taken);
            if slow.taken != taken {
                (slow.taken, slow.since, slow.is_last_chance) = (taken, now, false);
            } else if slow.is_last_chance && now >= slow.due() {
                self.stalled.insert(*client);
            } else if !slow.is_last_chance && now >= slow.due() {
                (slow.since, slow.is_last_chance) = (now - READ_PATIENCE, true);
            }
        }
        let is_ready = |client: &&PeerId| reader(**client).is_none_or(|reader| !self.is_waited_for(reader));
        self.slow.keys().filter(is_ready).copied().collect()
    }

    /// Whether a client was given up.
    pub(super) fn is_given_up(&self, client: PeerId) -> bool {
        self.stalled.contains(&client)
    }

    /// Takes the upcall that has waited longest for a client.
    pub(super) fn take(&mut self, client: PeerId) -> Option<T> {
        let slow = self.slow.get_mut(&client)?;
        let held = slow.held.pop_front();
        if slow.held.is_empty() {
            self.slow.remove(&client);
        }
        held
    }

    /// Gives up the client with most waiting upcalls, since there is no room for more.
    pub(super) fn give_up_slowest(&mut self) {
        let waited_for = self.slow.iter().filter(|(client, _)| !self.stalled.contains(client));
        self.stalled.extend(waited_for.max_by_key(|(_, slow)| slow.held.len()).map(|(client, _)| *client));
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

    fn busy(client: PeerId) -> Reader {
        Reader { client, is_busy: true, taken: 0, heard: 0 }
    }

    fn holding(count: usize) -> (Waiting<usize>, Instant) {
        let mut waiting = Waiting::default();
        (0..count).for_each(|number| waiting.hold(number, busy(A), false));
        let since = waiting.slow.get(&A).map(|slow| slow.since);
        (waiting, since.expect("it waits"))
    }

    #[test]
    fn a_client_that_does_not_read_is_waited_for_and_nobody_else() {
        let (mut waiting, now) = holding(2);
        assert!(waiting.ready(|client| Some(busy(client)), now).is_empty());
        assert!(waiting.is_waited_for(busy(A)));
        assert!(!waiting.is_waited_for(Reader { is_busy: false, ..busy(B) }), "others read");
        waiting.hold(7, busy(B), false);
        let has_read = |client| Some(Reader { is_busy: client == A, ..busy(client) });
        assert_eq!(waiting.ready(has_read, now), [B]);
        assert_eq!((waiting.take(B), waiting.take(B)), (Some(7), None));
        assert!(!waiting.is_empty());
    }

    #[test]
    fn patience_is_with_a_client_that_takes_nothing_and_begins_again_when_it_does() {
        let (mut waiting, now) = holding(2);
        let (nearly, over) = (now + READ_PATIENCE / 2, now + READ_PATIENCE);
        let takes = |taken| move |client| Some(Reader { taken, ..busy(client) });
        assert!(waiting.ready(takes(1), nearly).is_empty());
        assert!(waiting.ready(takes(1), over).is_empty(), "it took something meanwhile");
        assert_eq!(waiting.due(), Some(nearly + READ_PATIENCE));
        assert!(waiting.ready(takes(1), nearly + READ_PATIENCE).is_empty(), "one more turn");
        assert_eq!(waiting.due(), Some(nearly + READ_PATIENCE + GRACE));
        assert_eq!(waiting.ready(takes(1), nearly + READ_PATIENCE + GRACE), [A]);
        assert!(!waiting.is_waited_for(busy(A)), "it loses its own from now on");
        assert_eq!(waiting.take(A), Some(0));
        waiting.hold(0, busy(A), true);
        assert_eq!((waiting.take(A), waiting.take(A), waiting.take(A)), (Some(0), Some(1), None));
        assert!(waiting.is_empty() && waiting.due().is_none());
        waiting.ready(|client| Some(Reader { is_busy: false, ..busy(client) }), over);
        assert!(waiting.is_waited_for(busy(A)), "it has read, and is waited for again");
    }

    #[test]
    fn packets_of_a_client_that_is_gone_do_not_wait() {
        let (mut waiting, now) = holding(1);
        assert_eq!(waiting.ready(|_| None, now), [A]);
        assert_eq!(waiting.take(A), Some(0));
    }

    #[test]
    fn without_room_the_one_with_most_lines_is_given_up_first() {
        let (mut waiting, now) = holding(2);
        waiting.hold(9, busy(B), false);
        let everybody = |client| Some(busy(client));
        waiting.give_up_slowest();
        assert_eq!(waiting.ready(everybody, now), [A]);
        waiting.give_up_slowest();
        assert_eq!(waiting.ready(everybody, now), [A, B]);
        waiting.give_up_slowest();
    }
}
