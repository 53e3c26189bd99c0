//! The log: plain lines on standard error, and not too many of those that others cause.

use std::fmt::Arguments;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::harmless::{harmless, harmless_lines, shortened};

/// Lines a second that guests and clients may cause: one that connects and leaves in a loop must not fill a disk.
const LINES_PER_SECOND_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);

static LIMITER: Mutex<Limiter> = Mutex::new(Limiter::new(LINES_PER_SECOND_MAX));
static IS_RELAYED: AtomicBool = AtomicBool::new(false);

/// Bytes of one line: parts of it may come from an inner process that an attacker has taken over.
pub const LINE_BYTES_MAX: usize = 4096;

/// How much a line matters (syslog(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Something ended that should not, or cannot be done: packets or guests are lost by it.
    Error,
    /// Something is refused, or not as it should be; others go on.
    Warning,
    /// A usual event.
    Info,
}

impl Level {
    const ALL: [Self; 3] = [Self::Error, Self::Warning, Self::Info];

    /// As journald takes it in front of a line (sd-daemon(3)).
    fn prefix(self) -> &'static str {
        match self {
            Self::Error => "<3>",
            Self::Warning => "<4>",
            Self::Info => "<6>",
        }
    }
}

/// Whether standard error is the journal, which the variable names by device and inode (systemd.exec(5)).
fn is_journal() -> bool {
    static IS_JOURNAL: OnceLock<bool> = OnceLock::new();
    *IS_JOURNAL.get_or_init(|| {
        let Ok(named) = std::env::var("JOURNAL_STREAM") else { return false };
        let own = rustix::fs::fstat(std::io::stderr()).map(|meta| format!("{}:{}", meta.st_dev, meta.st_ino));
        own.is_ok_and(|own| own == named)
    })
}

/// Finds out the kind of the log before the sandbox, which has no call for it.
pub fn begin() {
    is_journal();
}

/// Writes `lasthop: …` as one line, with any text. Failures to write are ignored.
pub fn line(level: Level, text: Arguments<'_>) {
    let text = text.to_string();
    write(level, &harmless(&shortened(&text, LINE_BYTES_MAX)));
}

/// As [`line()`], for a text that may have several lines of its own.
pub fn lines(level: Level, text: Arguments<'_>) {
    write(level, &harmless_lines(&text.to_string()));
}

/// Writes a line that an inner process has written, under its name. Its level is in front of it, if it is one of ours.
pub fn relay(name: &str, text: &str) {
    let (level, rest) = Level::ALL
        .iter()
        .find_map(|level| Some((*level, text.strip_prefix(level.prefix())?)))
        .unwrap_or((Level::Error, text));
    line(level, format_args!("{name}: {}", rest.strip_prefix("lasthop: ").unwrap_or(rest)));
}

/// This is an inner process, whose lines the supervisor relays.
pub fn is_relayed() {
    // A relayed log is not the journal, even if the one before was.
    IS_RELAYED.store(true, Ordering::Relaxed);
}

fn write(level: Level, text: &str) {
    let has_level = IS_RELAYED.load(Ordering::Relaxed) || is_journal();
    let prefix = if has_level { level.prefix() } else { "" };
    let _ = std::io::stderr().write_all(format!("{prefix}lasthop: {text}\n").as_bytes());
}

/// As [`line()`], for events that others can cause at will: lines beyond a number a second are left out.
pub fn limited_line(level: Level, text: Arguments<'_>) {
    let verdict = LIMITER.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now());
    let Some(left_out) = verdict else { return };
    if left_out > 0 {
        line(Level::Warning, format_args!("{left_out} lines were left out, there were too many"));
    }
    line(level, text);
}

/// Logs a line, with the arguments of `format!`; `Warning:` or `Error:` goes in front of them where it is one.
#[macro_export]
macro_rules! say {
    ($level:ident: $($argument:tt)*) => { $crate::log::line($crate::log::Level::$level, format_args!($($argument)*)) };
    ($($argument:tt)*) => { $crate::log::line($crate::log::Level::Info, format_args!($($argument)*)) };
}
pub use say;

/// As `say!`, for a line that guests or clients have caused.
#[macro_export]
macro_rules! say_of_others {
    ($level:ident: $($argument:tt)*) => {
        $crate::log::limited_line($crate::log::Level::$level, format_args!($($argument)*))
    };
    ($($argument:tt)*) => { $crate::log::limited_line($crate::log::Level::Info, format_args!($($argument)*)) };
}
pub use say_of_others;

/// Counts the lines of the current second.
#[derive(Debug)]
pub struct Limiter {
    lines_max: u32,
    window: Option<Instant>,
    lines: u32,
    left_out: u64,
}

impl Limiter {
    /// Admits `lines_max` lines a second.
    pub const fn new(lines_max: u32) -> Self {
        Self { lines_max, window: None, lines: 0, left_out: 0 }
    }

    /// Whether a line may be written at `now`; if so, how many were left out before it.
    pub fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.window.is_none_or(|start| now.duration_since(start) >= WINDOW) {
            (self.window, self.lines) = (Some(now), 0);
        }
        if self.lines == self.lines_max {
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
        let mut limiter = Limiter::new(LINES_PER_SECOND_MAX);
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
