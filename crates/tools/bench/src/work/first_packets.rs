use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use lasthop_frontend::{BurstGuest, GuestError, ReadDepth};

use super::frames::{Frames, is_ours, number};
use super::round_trip::{histogram, silence, summary};
use super::traffic::Tally;
use crate::{RoundTrip, Workload};

/// A packet that has not arrived after this time counts as lost.
const LOST_AFTER: Duration = Duration::from_millis(500);
/// The number of remembered departure times: more than the packets that are sent within [`LOST_AFTER`] at the highest
/// rate.
const DEPARTURES: usize = 1 << 20;
/// The packets that are sent late after this thread was kept from running; further ones are left out.
const LATE_MAX: u64 = 8;
/// The most packets that are received between two sends.
const BURST: usize = 32;

/// One guest sends packets to another at a set rate, each the first of its flow.
///
/// Flows are pairs of MAC addresses if the workload has several: the back end knows each address, but not this
/// combination of a sender and a receiver. Otherwise flows are pairs of UDP ports.
#[derive(Debug)]
pub(crate) struct FirstPackets {
    frames: Frames,
    flow: fn(&mut Frames, u32, &Workload),
    workload: Workload,
    rate_pps: u64,
    /// Departure times in ns from the start; 0: the packet has arrived.
    departures: Box<[u64]>,
    sent: u32,
    received: u64,
    times: Histogram<u64>,
}

impl FirstPackets {
    pub(crate) fn new(workload: &Workload, rate_pps: u64) -> Self {
        Self {
            frames: Frames::new(&Workload { flows: 1, macs: 1, ..*workload }, 0, 1),
            flow: if workload.macs > 1 { set_addresses } else { set_ports },
            workload: *workload,
            rate_pps,
            departures: vec![0; DEPARTURES].into_boxed_slice(),
            sent: 0,
            received: 0,
            times: histogram(),
        }
    }

    /// Sends for a while, from flow `first` on; returns the flow after the last one.
    pub(crate) fn run(
        &mut self,
        guests: &mut [BurstGuest],
        duration: Duration,
        first: u32,
    ) -> Result<u32, GuestError> {
        guests.iter_mut().try_for_each(silence)?;
        let start = Instant::now();
        // Packets of the schedule that were sent or left out.
        let mut past = 0;
        while start.elapsed() < duration {
            let due = (start.elapsed().as_secs_f64() * self.rate_pps as f64) as u64;
            past = past.max(due.saturating_sub(LATE_MAX));
            if past < due && self.send(&mut guests[0], start, first)? {
                past += 1;
            }
            self.receive(&mut guests[1], start)?;
        }
        let end = Instant::now();
        while self.received < u64::from(self.sent) && end.elapsed() < LOST_AFTER {
            self.receive(&mut guests[1], start)?;
        }
        Ok(first.wrapping_add(self.sent))
    }

    /// Sends a packet if there is room; returns whether there was.
    fn send(&mut self, guest: &mut BurstGuest, start: Instant, first: u32) -> Result<bool, GuestError> {
        if guest.room()? == 0 {
            return Ok(false);
        }
        (self.flow)(&mut self.frames, first.wrapping_add(self.sent), &self.workload);
        self.frames.set_number(self.sent);
        guest.put(self.frames.next())?;
        self.departures[self.sent as usize % DEPARTURES] = (start.elapsed().as_nanos() as u64).max(1);
        self.sent = self.sent.wrapping_add(1);
        guest.flush().map(|()| true)
    }

    fn receive(&mut self, guest: &mut BurstGuest, start: Instant) -> Result<(), GuestError> {
        let Self { departures, received, times, sent, .. } = self;
        guest.recv(BURST, ReadDepth::Start, |bytes, _| {
            let number = number(bytes);
            if !is_ours(bytes) || sent.wrapping_sub(number) as usize > DEPARTURES {
                return;
            }
            // A duplicate was counted already.
            let departure = std::mem::take(&mut departures[number as usize % DEPARTURES]);
            if departure > 0 {
                *received += 1;
                times.saturating_record((start.elapsed().as_nanos() as u64).saturating_sub(departure).max(1));
            }
        })?;
        Ok(())
    }

    pub(crate) fn tally(&self) -> Tally {
        Tally { sent: self.sent.into(), received: self.received }
    }

    pub(crate) fn result(&self) -> RoundTrip {
        summary(&self.times)
    }
}

/// Sets the pair of addresses for `flow`; pairs of equal numbers are skipped, as the back end knows them.
fn set_addresses(frames: &mut Frames, flow: u32, workload: &Workload) {
    let [from, to] = address_pair(flow, workload.macs);
    frames.set_addresses(from, to);
}

fn address_pair(flow: u32, macs: u32) -> [u32; 2] {
    let (from, turn) = (flow % macs, flow / macs % (macs - 1));
    [from, (from + 1 + turn) % macs]
}

fn set_ports(frames: &mut Frames, flow: u32, workload: &Workload) {
    // Flow 0 is the one by which the guests met.
    frames.set_ports(1 + flow % (workload.flows - 1));
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_pair_of_addresses_comes_twice_or_has_met() {
        let pairs: HashSet<_> = (0..30 * 29).map(|flow| address_pair(flow, 30)).collect();
        assert_eq!(pairs.len(), 30 * 29);
        assert!(pairs.iter().all(|[from, to]| from != to && *from < 30 && *to < 30));
        assert_eq!(address_pair(30 * 29, 30), address_pair(0, 30), "then it starts again");
    }

    #[test]
    fn packets_are_known_by_their_number() {
        let mut first = FirstPackets::new(&"first=10,flows=100".parse().expect("a workload"), 10);
        (first.flow)(&mut first.frames, 7, &first.workload);
        first.frames.set_number(0x0102_0304);
        let start = first.frames.next_start();
        assert!(is_ours(start));
        assert_eq!(number(start), 0x0102_0304);
    }
}
