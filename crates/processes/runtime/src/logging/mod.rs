//! The log: lines on standard error, by the facade `log`. The number of lines that others cause is limited.
//!
//! ```text
//!   info!, warn!, … ──> Logger ── level, rate ──> Line ──> text or JSON ──> standard error
//!   an inner process's pipe ──> relay ────────────────┘
//! ```
//!
//! Guests or clients can cause a record with `limited = true` at will, so some of these are omitted. Other keys of a
//! record are fields of its JSON object; its text names them anyway.

mod line;

use std::fmt;
use std::io::Write;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::log::kv::Key;
use ::log::{Level, LevelFilter, Log, Metadata, Record, warn};

use crate::fault::Fault;
pub use line::LINE_BYTES_MAX;
use line::Line;

/// Lines a second that guests and clients may cause: one that reconnects in a loop must not fill a disk.
const LINES_PER_SECOND_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(1);
/// Key of a record that may be omitted.
const LIMITED: &str = "limited";

static LOGGER: Logger = Logger;
static LIMITER: Mutex<Limiter> = Mutex::new(Limiter::new(LINES_PER_SECOND_MAX));
static IS_JSON: AtomicBool = AtomicBool::new(false);
static IS_RELAYED: AtomicBool = AtomicBool::new(false);

/// The form of lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// `lasthop: …`
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The lowest level that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLevel(LevelFilter);

impl Default for LogLevel {
    fn default() -> Self {
        Self(LevelFilter::Info)
    }
}

impl FromStr for LogFormat {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(Fault::params(format!("log-format={text} is no format; use text or json"))),
        }
    }
}

impl FromStr for LogLevel {
    type Err = Fault;

    fn from_str(text: &str) -> Result<Self, Fault> {
        match text {
            "error" => Ok(Self(LevelFilter::Error)),
            "warn" => Ok(Self(LevelFilter::Warn)),
            "info" => Ok(Self(LevelFilter::Info)),
            "debug" => Ok(Self(LevelFilter::Debug)),
            _ => Err(Fault::params(format!("log-level={text} is no level; use error, warn, info or debug"))),
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.as_str().to_ascii_lowercase())
    }
}

/// Starts the log with text lines from level info on. Finds out the kind of standard error before the sandbox, which
/// forbids that.
pub fn begin() {
    line::is_journal();
    // There is an error if a logger exists already.
    if ::log::set_logger(&LOGGER).is_ok() {
        ::log::set_max_level(LevelFilter::Info);
    }
}

/// Sets the form of lines and the lowest level.
pub fn set(format: LogFormat, level: LogLevel) {
    IS_JSON.store(format == LogFormat::Json, Ordering::Relaxed);
    ::log::set_max_level(level.0);
}

/// Sets the name of this process in lines of JSON.
pub fn set_process(name: &'static str) {
    line::PROCESS.get_or_init(|| name);
}

/// Declares this an inner process, whose lines the supervisor relays.
pub fn set_relayed() {
    // A relayed log is not the journal, even if the former one was.
    IS_RELAYED.store(true, Ordering::Relaxed);
}

/// Options by which an inner process logs like this one. Default ones are omitted, since older programs do not know
/// any.
pub fn options() -> Vec<String> {
    let level = LogLevel(::log::max_level());
    let format = is_json().then(|| ["--log-format".to_owned(), "json".to_owned()]);
    let level = (level != LogLevel::default()).then(|| ["--log-level".to_owned(), level.to_string()]);
    format.into_iter().chain(level).flatten().collect()
}

fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// Logs the end of this process; the text may have several lines.
pub fn failure(text: &str) {
    write(&if is_json() { Line::own(Level::Error, text).json() } else { line::failure_text(text) });
}

/// Writes an inner process's line under that process's name. The line starts with its level, if it is one of ours.
pub fn relay(process: &str, text: &str) {
    let line = Line::relayed(process, text, is_json());
    if line.level <= ::log::max_level() {
        line.write();
    }
}

fn write(line: &str) {
    let _ = std::io::stderr().write_all(line.as_bytes());
}

struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= ::log::max_level()
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let is_limited = record.key_values().get(Key::from_str(LIMITED)).is_some();
        let left_out = match is_limited {
            true => LIMITER.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now()),
            false => Some(0),
        };
        let Some(left_out) = left_out else { return };
        if left_out > 0 {
            warn!("{left_out} lines were left out, there were too many");
        }
        Line::of(record).write();
    }

    fn flush(&self) {}
}

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

    /// Whether a line may be written at `now`; if so, how many were omitted before it.
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
