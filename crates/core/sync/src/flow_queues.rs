//! The receive queues of one guest's flows: each follows the transmit queue from which the guest sends the flow.
//!
//! Virtio 1.2, 5.1.6.5.6 (automatic receive steering): once the driver has sent a packet of a flow on transmitq X, packets of the flow
//! should come by receiveq X. A flow is a hash of 32 bits that both directions share. It has a home: the queue by its hash, where its
//! packets go while nobody has moved it.
//!
//! ```text
//!   guest sends      sent[hash]:  flow 32, queue                     the last flow of a place counts
//!   packet for it    moved[hash]: flow 32, used at 24, queue         a place is a flow's until it is unused for a second
//!                    moved? its queue : home ── sent elsewhere, and the queue is drained ──> moved
//! ```
//!
//! **Order.** A flow moves only while its queue is drained: the guest has taken all packets there. So does one that loses its place, which
//! takes it home. A flow's packets come from one worker at a time, which alone moves the flow; a worker that uses a place renews its
//! time by compare-and-swap, and another flow gets the place by compare-and-swap. So only a worker that stands still for
//! [`UNUSED_MS`] between its look and its delivery could see packets overtake each other.

use crate::FLOW_PLACES;
use crate::sync::{AtomicU64, Ordering};

/// How long a place is unused until another flow may have it, in units of 2^20 ns, nearly milliseconds.
pub const UNUSED_MS: u64 = 1024;
/// How old the time of a place may be before its flow renews it.
const RENEW_MS: u64 = 128;

/// A word is 0, or: flow 32, time 24, queue 7, and 1.
const TIME_BITS: u64 = 24;
const TIME_MASK: u64 = (1 << TIME_BITS) - 1;
const QUEUE_MASK: u64 = 0x7f;

/// The receive queues of a guest's flows. All workers share them.
#[derive(Debug)]
pub struct FlowQueues(Box<[Words]>);

/// The words of a place, in one cache line.
#[derive(Debug)]
struct Words {
    sent: AtomicU64,
    moved: AtomicU64,
}

/// Where a packet of a flow goes, and what may change that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowPlace {
    flow: u32,
    home: u16,
    seen: Entry,
    /// The queue of its packets.
    pub queue: u16,
    /// The queue from which the guest sends the flow, if it is another one, open, and the place is free.
    pub wanted: Option<u16>,
}

impl FlowPlace {
    /// The queue of another flow that would go home, if there is one. It has to be drained, too.
    #[must_use]
    pub fn displaced(&self) -> Option<u16> {
        self.seen.of_other(self.flow).then(|| self.seen.queue())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    const NONE: Self = Self(0);

    fn new(flow: u32, queue: u16, time: u64) -> Self {
        Self(u64::from(flow) << 32 | time << 8 | (u64::from(queue) & QUEUE_MASK) << 1 | 1)
    }

    #[inline]
    fn is_of(self, flow: u32) -> bool {
        self != Self::NONE && self.0 >> 32 == u64::from(flow)
    }

    fn of_other(self, flow: u32) -> bool {
        self != Self::NONE && !self.is_of(flow)
    }

    #[inline]
    fn queue(self) -> u16 {
        (self.0 >> 1 & QUEUE_MASK) as u16
    }

    #[inline]
    fn age(self, time: u64) -> u64 {
        time.wrapping_sub(self.0 >> 8) & TIME_MASK
    }
}

fn time(now_ns: u64) -> u64 {
    now_ns >> 20 & TIME_MASK
}

impl Default for FlowQueues {
    fn default() -> Self {
        let words = |_| Words { sent: AtomicU64::new(0), moved: AtomicU64::new(0) };
        Self((0..FLOW_PLACES).map(words).collect())
    }
}

impl FlowQueues {
    /// Notes that the guest sent a packet of `flow` from transmit queue `queue`, at most 63.
    #[inline]
    pub fn note_sent(&self, flow: u32, queue: u16) {
        let (sent, entry) = (&self.words(flow).sent, Entry::new(flow, queue, 0));
        if sent.load(Ordering::Relaxed) != entry.0 {
            sent.store(entry.0, Ordering::Relaxed);
        }
    }

    #[inline]
    fn words(&self, flow: u32) -> &Words {
        &self.0[flow as usize % FLOW_PLACES]
    }

    /// As [`Self::place`], for a flow that is where it should be, and whose time need not be renewed. Most packets are of such.
    #[inline(always)] // it is a part of a loop over packets, in which the time and the queues are constant
    #[must_use]
    pub fn at_rest(&self, flow: u32, home: impl FnOnce() -> u16, open: u64, now_ns: u64) -> Option<u16> {
        let Words { sent, moved } = self.words(flow);
        let (sent, moved) = (sent.load(Ordering::Relaxed), Entry(moved.load(Ordering::Acquire)));
        let queue = match moved.is_of(flow) {
            false => home(),
            true if moved.age(time(now_ns)) < RENEW_MS && open >> (moved.queue() % 64) & 1 != 0 => {
                moved.queue()
            }
            true => return None,
        };
        let is_elsewhere = Entry(sent).is_of(flow) && sent != Entry::new(flow, queue, 0).0;
        (!is_elsewhere).then_some(queue)
    }

    /// Where a packet of `flow` goes. `home` is the queue by its hash, one of the `open` queues, which are bits.
    #[inline]
    #[must_use]
    pub fn place(&self, flow: u32, (home, open): (u16, u64), now_ns: u64) -> FlowPlace {
        let seen = self.renewed(flow, time(now_ns));
        let is_open = |queue: &u16| open >> (queue % 64) & 1 != 0;
        let moved = Some(seen.queue()).filter(|queue| seen.is_of(flow) && is_open(queue));
        let queue = moved.unwrap_or(home);
        let sent = Entry(self.words(flow).sent.load(Ordering::Relaxed));
        let is_free = !seen.of_other(flow) || seen.age(time(now_ns)) >= UNUSED_MS;
        let wanted = Some(sent.queue()).filter(|_| is_free && sent.is_of(flow));
        let wanted = wanted.filter(|wanted| *wanted != queue && is_open(wanted));
        FlowPlace { flow, home, seen, queue, wanted }
    }

    /// The entry at the flow's place. If it is the flow's, its time is about now.
    #[inline]
    fn renewed(&self, flow: u32, time: u64) -> Entry {
        let place = &self.words(flow).moved;
        let seen = Entry(place.load(Ordering::Acquire));
        if !seen.is_of(flow) || seen.age(time) < RENEW_MS {
            return seen;
        }
        let renewed = Entry::new(flow, seen.queue(), time);
        match place.compare_exchange(seen.0, renewed.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => renewed,
            // Another flow has the place.
            Err(now) => Entry(now),
        }
    }

    /// Moves a flow to the queue that it wants. False, and no change, if the place has changed. The caller has found both its queue and
    /// that of a displaced flow drained, after it got `from`.
    #[must_use]
    pub fn change(&self, from: &FlowPlace, now_ns: u64) -> bool {
        let Some(wanted) = from.wanted else { return false };
        let entry = match wanted == from.home {
            true => Entry::NONE,
            false => Entry::new(from.flow, wanted, time(now_ns)),
        };
        let place = &self.words(from.flow).moved;
        place.compare_exchange(from.seen.0, entry.0, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const OPEN: u64 = 0b1111;
    const MS: u64 = 1 << 20;
    const OTHER: u32 = 7 + FLOW_PLACES as u32;

    fn place(queues: &FlowQueues, flow: u32, now_ns: u64) -> FlowPlace {
        let at_rest = queues.at_rest(flow, || 0, OPEN, now_ns);
        let place = queues.place(flow, (0, OPEN), now_ns);
        assert!(at_rest.is_none_or(|queue| (queue, None) == (place.queue, place.wanted)));
        let again = queues.at_rest(flow, || 0, OPEN, now_ns);
        assert!(again.is_some() || place.wanted.is_some() || place.displaced().is_some());
        place
    }

    #[test]
    fn a_flow_goes_where_the_guest_sends_it() {
        let queues = FlowQueues::default();
        assert_eq!((place(&queues, 7, 0).queue, place(&queues, 7, 0).wanted), (0, None));
        queues.note_sent(7, 3);
        let found = place(&queues, 7, 0);
        assert_eq!((found.queue, found.wanted, found.displaced()), (0, Some(3), None));
        assert!(queues.change(&found, 0));
        assert_eq!((place(&queues, 7, 0).queue, place(&queues, 7, 0).wanted), (3, None));
        assert!(!queues.change(&found, 0), "it has changed since");
        queues.note_sent(7, 0);
        let found = place(&queues, 7, 5 * MS);
        assert_eq!((found.queue, found.wanted), (3, Some(0)));
        assert!(queues.change(&found, 5 * MS));
        assert_eq!(queues.words(7).moved.load(Ordering::Relaxed), 0, "at home it needs no place");
    }

    #[test]
    fn a_closed_queue_gets_no_packets() {
        let queues = FlowQueues::default();
        queues.note_sent(7, 3);
        assert_eq!(queues.place(7, (0, 0b0111), 0).wanted, None);
        assert!(queues.change(&place(&queues, 7, 0), 0));
        assert_eq!(queues.place(7, (0, 0b0111), 0).queue, 0);
        assert_eq!(place(&queues, 7, 0).queue, 3, "and gets them when it is open again");
    }

    #[test]
    fn a_place_is_a_flow_s_while_it_has_packets() {
        let queues = FlowQueues::default();
        queues.note_sent(7, 3);
        assert!(queues.change(&place(&queues, 7, 0), 0));
        queues.note_sent(OTHER, 2);
        let mut now_ns = 0;
        for _ in 0..100 {
            now_ns += (UNUSED_MS - 1) * MS;
            let found = place(&queues, OTHER, now_ns);
            assert_eq!((found.queue, found.wanted, found.displaced()), (0, None, Some(3)));
            assert_eq!(place(&queues, 7, now_ns).queue, 3);
        }
        now_ns += UNUSED_MS * MS;
        let found = place(&queues, OTHER, now_ns);
        assert_eq!((found.queue, found.wanted, found.displaced()), (0, Some(2), Some(3)));
        // The first flow comes back before the other one has its place.
        let back = place(&queues, 7, now_ns);
        assert_eq!(back.queue, 3);
        assert!(!queues.change(&found, now_ns));
        let found = place(&queues, OTHER, now_ns + UNUSED_MS * MS);
        assert!(queues.change(&found, now_ns + UNUSED_MS * MS));
        assert_eq!(place(&queues, 7, now_ns + UNUSED_MS * MS).queue, 0);
    }

    #[test]
    fn the_longest_time_ends_before_an_entry_looks_new() {
        let entry = Entry::new(u32::MAX, 63, TIME_MASK);
        assert_eq!((entry.age(TIME_MASK), entry.age(0), entry.age(9)), (0, 1, 10));
        assert!(entry.is_of(u32::MAX) && entry.of_other(1) && entry.queue() == 63);
        assert!(!Entry::NONE.is_of(0) && !Entry::NONE.of_other(0));
        let first = Entry::new(0, 0, 0);
        assert!(first.is_of(0) && first != Entry::NONE);
    }

    /// Each flow's packets stay in order: in the queue of its last one, or that was drained.
    #[test]
    fn no_flow_leaves_a_queue_with_packets() {
        let (queues, mut seed) = (FlowQueues::default(), 1_u64);
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        // By queue: which flows have packets there.
        let mut packets: BTreeMap<u16, Vec<u32>> = BTreeMap::new();
        let (mut now_ns, mut changes) = (0, 0);
        for _ in 0..100_000 {
            now_ns += random(64) * MS;
            let flow = 7 + random(3) as u32 * FLOW_PLACES as u32;
            match random(4) {
                0 => queues.note_sent(flow, random(4) as u16),
                1 => drop(packets.remove(&(random(4) as u16))),
                _ => {
                    let mut found = place(&queues, flow, now_ns);
                    let is_drained = |queue: u16| !packets.contains_key(&queue);
                    let may = is_drained(found.queue) && found.displaced().is_none_or(is_drained);
                    if may && queues.change(&found, now_ns) {
                        changes += 1;
                        found = place(&queues, flow, now_ns);
                    }
                    let elsewhere =
                        packets.iter().any(|(queue, flows)| *queue != found.queue && flows.contains(&flow));
                    assert!(!elsewhere, "flow {flow} overtakes itself in queue {}", found.queue);
                    packets.entry(found.queue).or_default().push(flow);
                }
            }
        }
        assert!(changes > 1000, "{changes}");
    }
}
