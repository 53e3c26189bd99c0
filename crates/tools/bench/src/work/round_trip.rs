use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lasthop_frontend::{BurstGuest, GuestError, ReadDepth};

use super::frames::is_ours;
use super::traffic::Lane;
use crate::RoundTrip;

/// A packet counts as lost after this time, and the next one is sent.
const LOST_AFTER: Duration = Duration::from_millis(500);
/// The largest value of the histogram, in ns; longer times count as this.
const LONGEST_NS: u64 = 10_000_000_000;

/// A packet that goes there and back repeatedly.
#[derive(Debug)]
pub(crate) struct PingPong {
    pub(crate) there: Lane,
    pub(crate) back: Lane,
    pub(crate) sleeping: bool,
    pub(crate) pause: Duration,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    times: Histogram<u64>,
}

impl PingPong {
    pub(crate) fn new(there: Lane, back: Lane, sleeping: bool, pause: Duration) -> Self {
        let times = histogram();
        Self { there, back, sleeping, pause, sent: 0, received: 0, times }
    }

    pub(crate) fn run(&mut self, guests: &mut [BurstGuest], duration: Duration) -> Result<(), GuestError> {
        // A late frame of an earlier run would be taken for the answer, and each answer for the next one's.
        guests.iter_mut().try_for_each(silence)?;
        let start = Instant::now();
        while start.elapsed() < duration {
            let sent = Instant::now();
            self.sent += 1;
            if self.pass(guests, true)? && self.pass(guests, false)? {
                self.received += 1;
                self.times.saturating_record((sent.elapsed().as_nanos() as u64).clamp(1, LONGEST_NS));
            } else {
                guests.iter_mut().try_for_each(silence)?;
            }
            self.rest();
        }
        Ok(())
    }

    /// Sends a packet from one guest to the other; returns whether it arrived.
    fn pass(&mut self, guests: &mut [BurstGuest], there: bool) -> Result<bool, GuestError> {
        let (lane, to) =
            if there { (&mut self.there, self.back.from) } else { (&mut self.back, self.there.from) };
        lane.send(&mut guests[lane.from], 1)?;
        arrived(&mut guests[to], self.sleeping)
    }

    fn rest(&self) {
        if self.sleeping {
            std::thread::sleep(self.pause);
            return;
        }
        let start = Instant::now();
        while start.elapsed() < self.pause {
            std::hint::spin_loop();
        }
    }

    /// The times of the round trips.
    pub(crate) fn result(&self) -> RoundTrip {
        summary(&self.times)
    }
}

/// Percentiles of the recorded times.
pub(super) fn summary(times: &Histogram<u64>) -> RoundTrip {
    let at = |share| times.value_at_quantile(share);
    RoundTrip {
        count: times.len(),
        p50_ns: at(0.5),
        p90_ns: at(0.9),
        p99_ns: at(0.99),
        p999_ns: at(0.999),
        max_ns: times.max(),
    }
}

/// A histogram for all possible times: values beyond its end would be recorded wrongly.
pub(super) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LONGEST_NS, 3).unwrap_or_else(|_| unreachable!("these bounds are possible"))
}

/// Waits for one of our frames.
fn arrived(guest: &mut BurstGuest, sleeping: bool) -> Result<bool, GuestError> {
    let start = Instant::now();
    let mut ours = 0;
    loop {
        for _ in 0..64 {
            let count = guest.recv(1, ReadDepth::Start, |start, _| ours += u32::from(is_ours(start)))?;
            if ours > 0 {
                return Ok(true);
            }
            if count == 0 && sleeping && !guest.wait(Some(LOST_AFTER))? {
                return Ok(false);
            }
        }
        if start.elapsed() > LOST_AFTER {
            return Ok(false);
        }
    }
}

/// Receives until no frame has arrived for a while.
pub(super) fn silence(guest: &mut BurstGuest) -> Result<(), GuestError> {
    const WHILE: Duration = Duration::from_millis(5);
    let mut last = Instant::now();
    while last.elapsed() < WHILE {
        if guest.recv(32, ReadDepth::Start, |_, _| {})? > 0 {
            last = Instant::now();
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_times_are_entered_as_what_they_are() {
        let mut times = histogram();
        for time in [700, 5_000, 40_000_000, LONGEST_NS] {
            times.clear();
            times.saturating_record(time);
            let entered = times.value_at_quantile(0.5);
            assert!(entered.abs_diff(time) * 500 <= time, "{time} ns were entered as {entered}");
        }
    }
}
