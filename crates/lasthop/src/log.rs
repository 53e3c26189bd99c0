//! The log: plain lines on standard error, and not too many of those that others cause.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Lines a second that guests and clients may cause: one that connects and leaves in a loop must not fill a disk.
const LINES_PER_SECOND_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);

static LIMITER: Mutex<Limiter> = Mutex::new(Limiter { window: None, lines: 0, left_out: 0 });

/// Writes `lasthop: …` as one line. A failure to write it is nobody's business.
pub(crate) fn line(text: Arguments<'_>) {
    let _ = std::io::stderr().write_all(format!("lasthop: {text}\n").as_bytes());
}

/// As [`line()`], for what somebody else can cause at will: beyond a number of lines a second it is left out.
pub(crate) fn limited_line(text: Arguments<'_>) {
    let verdict = LIMITER.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now());
    let Some(left_out) = verdict else { return };
    if left_out > 0 {
        line(format_args!("{left_out} lines were left out, there were too many"));
    }
    line(text);
}

/// Logs a line, with the arguments of `format!`.
macro_rules! say {
    ($($argument:tt)*) => { $crate::log::line(format_args!($($argument)*)) };
}
pub(crate) use say;

/// Logs a line that guests or clients have caused.
macro_rules! say_of_others {
    ($($argument:tt)*) => { $crate::log::limited_line(format_args!($($argument)*)) };
}
pub(crate) use say_of_others;

/// Counts the lines of the current second.
struct Limiter {
    window: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Limiter {
    /// Whether a line may be written at `now`; if so, how many were left out before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.window.is_none_or(|start| now.duration_since(start) >= WINDOW) {
            (self.window, self.lines) = (Some(now), 0);
        }
        if self.lines == LINES_PER_SECOND_MAX {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_are_left_out_and_counted() {
        let mut limiter = Limiter { window: None, lines: 0, left_out: 0 };
        let start = Instant::now();
        for _ in 0..LINES_PER_SECOND_MAX {
            assert_eq!(limiter.admit(start), Some(0));
        }
        assert_eq!(limiter.admit(start), None);
        assert_eq!(limiter.admit(start), None);
        assert_eq!(limiter.admit(start + WINDOW), Some(2));
        assert_eq!(limiter.admit(start + WINDOW), Some(0));
    }
}
