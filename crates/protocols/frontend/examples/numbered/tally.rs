//! Results of one flow: its threads count, and the measuring program reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Numbers for which it is known whether they were received.
const WINDOW: u32 = 1 << 16;

/// A count that one thread writes and others read.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// One flow: numbered frames from one end to the other, echoes of one guest, or bytes of connections.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Frames published to the switch; unused for a sink.
    pub(crate) sent: Count,
    /// Different frames that were received; bytes for a sink.
    pub(crate) heard: Count,
    /// Frames that were received twice.
    pub(crate) twice: Count,
    /// Frames that came after one with a higher number.
    pub(crate) late: Count,
    /// Frames, or reads, with wrong bytes.
    pub(crate) damaged: Count,
    /// Frames in the sender's ring.
    pub(crate) held: Count,
    /// Connections that began: of a guest to the switch, of a sink over TCP.
    pub(crate) connections: Count,
    /// Connections that ended.
    pub(crate) ended: Count,
    /// Longest time between two frames, or reads, since this was last set to 0.
    pub(crate) gap_ns: Count,
}

impl Tally {
    /// All counts as text.
    pub(crate) fn words(&self) -> String {
        let counts = [
            ("sent", &self.sent),
            ("heard", &self.heard),
            ("twice", &self.twice),
            ("late", &self.late),
            ("damaged", &self.damaged),
            ("held", &self.held),
            ("connections", &self.connections),
            ("ended", &self.ended),
            ("gap_ns", &self.gap_ns),
        ];
        counts.map(|(name, count)| format!("{name}={}", count.get())).join(" ")
    }
}

/// Measures the longest time without an event.
#[derive(Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Notes an event.
    pub(crate) fn tick(&mut self, tally: &Tally) {
        let now = Instant::now();
        let gap_ns = now.duration_since(self.0).as_nanos() as u64;
        tally.gap_ns.0.fetch_max(gap_ns, Ordering::Relaxed);
        self.0 = now;
    }
}

/// The received numbers: the highest, and whether each of the last ones below it was received.
#[derive(Debug)]
pub(crate) struct Ear {
    highest: u32,
    came: Vec<bool>,
    clock: Clock,
}

impl Ear {
    pub(crate) fn new() -> Self {
        Self { highest: 0, came: vec![false; WINDOW as usize], clock: Clock::start() }
    }

    /// Notes a received frame with this number; the first one has 1.
    pub(crate) fn hear(&mut self, number: u32, tally: &Tally) {
        self.clock.tick(tally);
        if number > self.highest {
            let skipped = (number - self.highest).min(WINDOW);
            (number - skipped + 1..=number).for_each(|skipped| self.came[place(skipped)] = false);
            self.highest = number;
        } else if self.highest - number >= WINDOW || self.came[place(number)] {
            tally.twice.add(1);
            return;
        } else {
            tally.late.add(1);
        }
        self.came[place(number)] = true;
        tally.heard.add(1);
    }
}

fn place(number: u32) -> usize {
    (number % WINDOW) as usize
}
