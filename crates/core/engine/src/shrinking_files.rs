//! Watches whether the files of guests' memory shrink while workers wait for it.
//!
//! A front end can only make a worker wait repeatedly by removing pages from its files (fallocate(2), `PUNCH_HOLE`):
//! punching a range without pages takes no time. An innocent guest's page is slow if a thread that has it locked loses
//! its CPU; then no file shrinks. So the files of a port are watched for a while after each wait in its memory:
//!
//! ```text
//!   wait ──── checks, every 10 ms, 2.5 s ───> ends
//!               │ a file is smaller than at the last check
//!               v
//!   next wait: the files have shrunk since the last one
//! ```

use std::time::{Duration, Instant};

use lasthop_module_api::PortId;

/// How long the files of a port are watched after a wait. Waits that are rarer are no offence.
const LOOKS_TIME: Duration = Duration::from_millis(2500);
/// Pause between two checks; one takes some microseconds. Dropping the pages of a wait that counts takes longer than a
/// pause.
pub(crate) const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// Ports whose files are watched.
#[derive(Debug, Default)]
pub(crate) struct ShrinkingFiles(Vec<WatchedPort>);

#[derive(Debug)]
struct WatchedPort {
    port: PortId,
    filled_bytes: u64,
    looked_at: Instant,
    until: Instant,
    has_shrunk: bool,
}

impl ShrinkingFiles {
    /// Notes that a worker waited in the memory of `port`; returns whether its files have shrunk since the last wait.
    /// `filled_bytes` returns the allocated bytes.
    pub(crate) fn note_wait(&mut self, port: PortId, filled_bytes: u64, now: Instant) -> bool {
        let until = now + LOOKS_TIME;
        if let Some(watched) = self.0.iter_mut().find(|watched| watched.port == port) {
            watched.look(filled_bytes, now);
            watched.until = until;
            return std::mem::take(&mut watched.has_shrunk);
        }
        self.0.push(WatchedPort { port, filled_bytes, looked_at: now, until, has_shrunk: false });
        false
    }

    /// Whether no file is watched.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks the files that are due.
    pub(crate) fn look(&mut self, now: Instant, filled_bytes: impl Fn(PortId) -> u64) {
        self.0.retain(|watched| now < watched.until);
        for watched in &mut self.0 {
            if now.saturating_duration_since(watched.looked_at) >= LOOK_PAUSE {
                watched.look(filled_bytes(watched.port), now);
            }
        }
    }
}

impl WatchedPort {
    fn look(&mut self, filled_bytes: u64, now: Instant) {
        self.has_shrunk |= filled_bytes < self.filled_bytes;
        (self.filled_bytes, self.looked_at) = (filled_bytes, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PORT: PortId = PortId(1);

    #[test]
    fn files_that_shrink_between_two_waits_are_seen_once() {
        let (start, mut files) = (Instant::now(), ShrinkingFiles::default());
        assert!(!files.note_wait(PORT, 100, start), "there is nothing to compare with");
        files.look(start + LOOK_PAUSE, |_| 300);
        files.look(start + 2 * LOOK_PAUSE, |_| 200);
        files.look(start + 3 * LOOK_PAUSE, |_| 400);
        assert!(files.note_wait(PORT, 500, start + 4 * LOOK_PAUSE));
        assert!(!files.note_wait(PORT, 600, start + 5 * LOOK_PAUSE));
        assert!(files.note_wait(PORT, 599, start + 6 * LOOK_PAUSE), "the wait is a look");
    }

    #[test]
    fn files_that_grow_or_stay_have_not_shrunk() {
        let (start, mut files) = (Instant::now(), ShrinkingFiles::default());
        files.note_wait(PORT, 100, start);
        (1..100).for_each(|number| files.look(start + number * LOOK_PAUSE, |_| 100 + u64::from(number / 2)));
        assert!(!files.note_wait(PORT, 150, start + 100 * LOOK_PAUSE));
    }

    #[test]
    fn looks_have_a_pause_and_an_end() {
        let (start, mut files) = (Instant::now(), ShrinkingFiles::default());
        files.note_wait(PORT, 100, start);
        files.look(start + LOOK_PAUSE / 2, |_| unreachable!("too soon"));
        assert!(!files.is_empty());
        files.look(start + LOOKS_TIME, |_| unreachable!("it is over"));
        assert!(files.is_empty());
    }

    #[test]
    fn ports_are_told_apart() {
        let (start, mut files) = (Instant::now(), ShrinkingFiles::default());
        files.note_wait(PORT, 100, start);
        files.note_wait(PortId(2), 100, start);
        files.look(start + LOOK_PAUSE, |port| if port == PORT { 50 } else { 100 });
        assert!(!files.note_wait(PortId(2), 100, start + LOOK_PAUSE));
        assert!(files.note_wait(PORT, 50, start + LOOK_PAUSE));
    }
}
