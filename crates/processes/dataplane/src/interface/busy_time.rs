//! The time that busy lines may take of the slow path: main thread, controller and back.

use std::time::{Duration, Instant};

/// They may take one part in this many of the time, so that other ports mostly find the slow path free.
const TIME_SHARE: i64 = 4;
/// Time that they may take at once after a rest, in ns: some hundred upcalls, as when several guests start.
const BURST_NS: i64 = 10_000_000;

/// A token bucket of time. It fills as time passes, and empties while busy lines take the slow path. On a busy machine an
/// upcall takes longer, and the number of upcalls falls.
#[derive(Clone, Copy, Debug)]
pub(super) struct BusyTime {
    /// Time left, in ns; at least minus a burst, so that a delay costs a rest of bounded length.
    left_ns: i64,
    at: Option<Instant>,
}

impl Default for BusyTime {
    fn default() -> Self {
        Self { left_ns: BURST_NS, at: None }
    }
}

fn ns(time: Duration) -> i64 {
    i64::try_from(time.as_nanos()).unwrap_or(i64::MAX)
}

impl BusyTime {
    /// Notes that time has passed until `now`, and whether busy lines took the slow path meanwhile.
    pub(super) fn pass(&mut self, now: Instant, is_taken: bool) {
        let passed_ns = ns(self.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at)));
        let spent_ns = if is_taken { passed_ns } else { 0 };
        let left_ns = self.left_ns.saturating_add(passed_ns / TIME_SHARE).saturating_sub(spent_ns);
        (self.left_ns, self.at) = (left_ns.clamp(-BURST_NS, BURST_NS), self.at.max(Some(now)));
    }

    /// When there is time again, if there is none.
    pub(super) fn due(&self) -> Option<Instant> {
        let rest_ns = self.left_ns.checked_neg().filter(|over_ns| *over_ns > 0)?.saturating_mul(TIME_SHARE);
        Some(self.at? + Duration::from_nanos(rest_ns.unsigned_abs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// The time that is taken of `rounds` milliseconds by lines that always have packets.
    fn taken(time: &mut BusyTime, from: Instant, rounds: u32) -> u32 {
        let mut taken = 0;
        for round in 1..=rounds {
            let is_taken = time.due().is_none_or(|due| due <= from + (round - 1) * MS);
            taken += u32::from(is_taken);
            time.pass(from + round * MS, is_taken);
        }
        taken
    }

    #[test]
    fn busy_lines_take_a_burst_and_then_their_share() {
        let (mut time, start) = (BusyTime::default(), Instant::now());
        time.pass(start, false);
        assert_eq!(taken(&mut time, start, 13), 13, "a burst, and the share meanwhile");
        let taken = taken(&mut time, start + 13 * MS, 1000);
        assert!((250..=251).contains(&taken), "{taken}");
    }

    #[test]
    fn a_delay_costs_a_rest_of_bounded_length() {
        let (mut time, start) = (BusyTime::default(), Instant::now());
        time.pass(start, false);
        let late = start + Duration::from_secs(5);
        time.pass(late, true);
        assert_eq!(time.due(), Some(late + 40 * MS));
        time.pass(late + 40 * MS, false);
        assert_eq!(time.due(), None);
    }

    #[test]
    fn while_others_take_it_no_time_is_lost() {
        let (mut time, start) = (BusyTime::default(), Instant::now());
        time.pass(start, false);
        time.pass(start + 1000 * MS, false);
        assert_eq!((time.due(), time.left_ns), (None, BURST_NS));
    }
}
