//! Standard output and standard error: the only module of this program that writes there.

use std::io::{ErrorKind, IsTerminal, Write};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use lasthop_bench::{Metric, Progress, Sample};

/// Characters of the bar itself.
const BAR_CHARS: usize = 30;
/// In place of a control character.
const REPLACEMENT: &str = "\u{fffd}";

/// Writes a line to standard error. Failures to write are ignored.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "lasthop-bench: {}", text.replace(char::is_control, REPLACEMENT));
}

/// Writes `text` to standard output. A closed pipe (`| head`) is not an error.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write the answer"),
        _ => Ok(()),
    }
}

/// Progress as lines, with a progress bar below them on a terminal.
#[derive(Debug, Default)]
pub(crate) struct Console {
    measured: usize,
    start: Option<Instant>,
}

impl Console {
    /// Writes a line above the bar.
    pub(crate) fn say(&self, text: &str) {
        self.clear();
        say(text);
    }

    /// Writes a line for each event of a run.
    pub(crate) fn tell(&mut self, progress: &Progress<'_>) {
        match progress {
            Progress::Starting(name) => self.say(&format!("starting {name}")),
            Progress::Failure(failure) if failure.missing => self.say(&format!("skip: {failure}")),
            Progress::Failure(failure) => self.say(&format!("failed: {failure}")),
            Progress::Sample(sample, total) => {
                self.measured += 1;
                self.say(&format!("{}/{total} {}", self.measured, line(sample)));
                let elapsed = self.start.get_or_insert_with(Instant::now).elapsed();
                if std::io::stderr().is_terminal() {
                    let _ = write!(std::io::stderr(), "{}", bar(self.measured, *total, elapsed));
                }
            }
        }
    }

    /// Removes the bar.
    pub(crate) fn clear(&self) {
        if self.measured > 0 && std::io::stderr().is_terminal() {
            // Back to the first column, and erase the line (ECMA-48).
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

/// The share that is done, and an estimate of the remaining time. `elapsed` counts from the first sample.
fn bar(measured: usize, total: usize, elapsed: Duration) -> String {
    let total = total.max(measured).max(1);
    let full = BAR_CHARS * measured / total;
    let rest = if measured > 1 {
        let seconds = elapsed.as_secs_f64() / (measured - 1) as f64 * (total - measured) as f64;
        format!(", {} left", clock(seconds.round() as u64))
    } else {
        String::new()
    };
    format!("[{}{}] {measured}/{total}{rest}", "#".repeat(full), " ".repeat(BAR_CHARS - full))
}

fn clock(seconds: u64) -> String {
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

fn line(sample: &Sample) -> String {
    let metric = sample.workload.metric();
    let value = sample.value().map_or("-".to_owned(), |value| format!("{value:.2} {}", metric.unit()));
    let cpu = match (metric, sample.cpu_percent()) {
        (Metric::CpuPercent, _) | (_, None) => String::new(),
        (_, Some(percent)) => format!(", {percent:.0} % CPU"),
    };
    format!(
        "{} {}: {value}{cpu}, cores {:.0} ns apart",
        sample.backend, sample.workload, sample.core_to_core_ns
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_grows_and_foresees_the_end() {
        let empty = bar(1, 60, Duration::ZERO);
        assert!(empty.ends_with("] 1/60") && !empty.contains('#'), "{empty}");
        let half = bar(31, 61, Duration::from_secs(120));
        assert!(half.contains("31/61, 2:00 left"), "{half}");
        assert_eq!(half.matches('#').count(), 15);
        assert!(bar(5, 0, Duration::ZERO).contains("5/5"), "more than was foreseen");
    }
}
