use std::time::{Duration, Instant};

use lasthop_frontend::{BurstGuest, GuestError, ReadDepth};

use super::frames::{Frames, is_ours};
use crate::Workload;

/// Frames that are put into a ring before they are made available to the back end.
const BURST: usize = 32;
/// The longest sleep until a signal: frames that were dropped cause none.
const SIGNAL_WAIT_MAX: Duration = Duration::from_millis(1);
/// Iterations between two reads of the clock.
const TURNS_PER_LOOK: u32 = 64;

/// Frames counted at the guests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Frames that were put into a ring, or due while the ring was full.
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

/// The frames from one guest to another.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) from: usize,
    pub(crate) frames: Frames,
    /// Number of frames that are written completely: all, or enough to leave their bytes in every buffer.
    whole: u64,
    sent: u64,
}

impl Lane {
    pub(crate) fn new(workload: &Workload, from: usize, to: usize) -> Self {
        let frames = Frames::new(workload, from as u16, to as u16); // at most 256 guests
        let whole = if workload.touched { u64::MAX } else { u64::from(workload.ring_entries) };
        Self { from, frames, whole, sent: 0 }
    }

    /// Puts up to `frames_max` frames into the ring and makes them available; returns how many fitted.
    #[inline(always)]
    pub(crate) fn send(&mut self, guest: &mut BurstGuest, frames_max: usize) -> Result<usize, GuestError> {
        let count = guest.room()?.min(frames_max);
        if count > 0 {
            self.put(guest, count)?;
        }
        Ok(count)
    }

    /// Puts `count` frames into the ring, which has room for them.
    #[inline(always)]
    fn put(&mut self, guest: &mut BurstGuest, count: usize) -> Result<(), GuestError> {
        let whole = self.sent < self.whole;
        for _ in 0..count {
            if whole {
                guest.put(self.frames.next())?;
            } else {
                let len_bytes = self.frames.len_bytes();
                guest.put_start(self.frames.next_start(), len_bytes)?;
            }
        }
        self.sent += count as u64;
        guest.flush()
    }

    /// Fills the ring in whole bursts: single frames would only cost index stores.
    #[inline(always)]
    fn saturate(&mut self, guest: &mut BurstGuest, entries: usize) -> Result<(), GuestError> {
        let burst = BURST.min(entries);
        if guest.room()? >= burst { self.put(guest, burst) } else { Ok(()) }
    }
}

/// Sending at a set rate.
#[derive(Debug)]
struct Pace {
    rate_pps: u64,
    start: Instant,
    /// Frames of the schedule that were sent, refused or left out.
    past: u64,
    /// Frames that were due while the ring was full, because the back end is too slow.
    refused: u64,
}

impl Pace {
    /// The longest delay that is caught up with after this thread was kept from running; packets beyond it are left out
    /// and count as not offered.
    const LATE: Duration = Duration::from_millis(1);

    fn new(rate_pps: u64) -> Self {
        Self { rate_pps, start: Instant::now(), past: 0, refused: 0 }
    }

    /// Sends the packets that are due.
    fn keep(&mut self, lanes: &mut [Lane], guests: &mut [BurstGuest]) -> Result<(), GuestError> {
        let frames = |time: Duration| (time.as_secs_f64() * self.rate_pps as f64) as u64;
        let due = frames(self.start.elapsed());
        self.past = self.past.max(due.saturating_sub(frames(Self::LATE).max(BURST as u64)));
        let missing = due.saturating_sub(self.past);
        if missing > 0 {
            let lane = &mut lanes[0];
            let sent = lane.send(&mut guests[lane.from], missing as usize)?;
            self.refused += missing - sent as u64;
            self.past = due;
        }
        Ok(())
    }
}

/// The senders and receivers, and the rate.
#[derive(Debug)]
pub(crate) struct Traffic {
    pub(crate) lanes: Vec<Lane>,
    pub(crate) receivers: Vec<usize>,
    /// Packets per second of each lane; `None`: as fast as possible.
    pub(crate) rate_pps: Option<u64>,
    pub(crate) depth: ReadDepth,
    pub(crate) entries: usize,
    /// Bytes of a frame that arrives in pieces; `None`: each arrives whole.
    pub(crate) cut_bytes: Option<u64>,
    pub(crate) nap: Duration,
    /// Whether the guests sleep until the first receiver is signalled.
    pub(crate) signalled: bool,
}

impl Traffic {
    /// Sends and receives for a while.
    pub(crate) fn run(&mut self, guests: &mut [BurstGuest], duration: Duration) -> Result<Tally, GuestError> {
        let before = self.sent();
        let mut pace = self.rate_pps.map(Pace::new);
        let (start, mut received) = (Instant::now(), 0);
        while start.elapsed() < duration {
            if !self.nap.is_zero() {
                std::thread::sleep(self.nap);
                received += self.fill_and_empty(guests)?;
                continue;
            }
            if self.signalled {
                received += self.receive(guests)?;
                self.saturate(guests)?;
                guests[self.receivers[0]].wait(Some(SIGNAL_WAIT_MAX))?;
                continue;
            }
            for _ in 0..TURNS_PER_LOOK {
                match &mut pace {
                    None => self.saturate(guests)?,
                    Some(pace) => pace.keep(&mut self.lanes, guests)?,
                }
                received += self.receive(guests)?;
            }
        }
        let sent = self.sent() - before;
        if let Some(frame_bytes) = self.cut_bytes {
            received /= frame_bytes;
        }
        let Some(pace) = pace else { return Ok(Tally { sent, received }) };
        received += self.rest(guests, sent.saturating_sub(received))?;
        Ok(Tally { sent: sent + pace.refused, received })
    }

    fn sent(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.sent).sum()
    }

    #[inline]
    fn saturate(&mut self, guests: &mut [BurstGuest]) -> Result<(), GuestError> {
        let entries = self.entries;
        self.lanes.iter_mut().try_for_each(|lane| lane.saturate(&mut guests[lane.from], entries))
    }

    /// Takes all that arrived, and fills the rings.
    fn fill_and_empty(&mut self, guests: &mut [BurstGuest]) -> Result<u64, GuestError> {
        let mut received = 0;
        for _ in 0..self.entries.div_ceil(BURST) {
            received += self.receive(guests)?;
            self.saturate(guests)?;
        }
        Ok(received)
    }

    /// The number of frames that arrived, or of their bytes if they arrive in pieces.
    #[inline]
    fn receive(&self, guests: &mut [BurstGuest]) -> Result<u64, GuestError> {
        let mut received = 0;
        for index in &self.receivers {
            // Twice, as a sender's burst may meet room for two bursts here: receiving never falls behind.
            for _ in 0..2 {
                let is_cut = self.cut_bytes.is_some();
                let each = |start: &_, len: usize| {
                    received += if is_cut { len as u64 } else { 1 } * u64::from(is_ours(start));
                };
                let count = guests[*index].recv(BURST, self.depth, each)?;
                if count < BURST {
                    break;
                }
            }
        }
        Ok(received)
    }

    /// Receives packets in flight: up to `expected` frames, for a moment.
    pub(crate) fn rest(&self, guests: &mut [BurstGuest], expected: u64) -> Result<u64, GuestError> {
        const MOMENT: Duration = Duration::from_millis(50);
        let (start, mut received) = (Instant::now(), 0);
        while received < expected && start.elapsed() < MOMENT {
            received += self.receive(guests)?;
        }
        Ok(received)
    }

    /// Sends `count` frames of each lane, receives frames meanwhile, and waits until the back end has taken all.
    pub(crate) fn send_all(&mut self, guests: &mut [BurstGuest], count: u64) -> Result<u64, GuestError> {
        const PATIENCE: Duration = Duration::from_secs(5);
        let (start, mut received) = (Instant::now(), 0);
        let goals: Vec<u64> = self.lanes.iter().map(|lane| lane.sent + count).collect();
        let mut busy = true;
        while busy && start.elapsed() < PATIENCE {
            busy = false;
            for (lane, goal) in self.lanes.iter_mut().zip(&goals) {
                let guest = &mut guests[lane.from];
                lane.send(guest, BURST.min((goal - lane.sent) as usize))?;
                busy |= lane.sent < *goal || guest.in_flight() > 0;
            }
            received += self.receive(guests)?;
        }
        Ok(received)
    }
}
