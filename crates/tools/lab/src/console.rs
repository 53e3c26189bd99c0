//! Standard output and standard error: the only module of this program that writes there.

use std::io::{ErrorKind, IsTerminal, Write};

use anyhow::{Context, Result};

/// Characters of the bar itself.
const BAR_CHARS: usize = 30;
/// In place of a control character.
const REPLACEMENT: &str = "\u{fffd}";

/// Writes a line to standard error. Failures to write are ignored.
pub(crate) fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "lasthop-lab: {}", text.replace(char::is_control, REPLACEMENT));
}

/// Writes `text` to standard output. A closed pipe (`| head`) is not an error.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("cannot write the answer"),
        _ => Ok(()),
    }
}

/// A bar on a terminal, for work whose length is known. Elsewhere it says nothing.
#[derive(Debug)]
pub(crate) struct Progress {
    done: usize,
    total: usize,
}

impl Progress {
    /// Nothing of `total` is done.
    pub(crate) const fn new(total: usize) -> Self {
        Self { done: 0, total }
    }

    /// One more is done.
    pub(crate) fn step(&mut self, words: &str) {
        self.done += 1;
        if std::io::stderr().is_terminal() {
            let end = if self.done < self.total { "" } else { "\n" };
            // Back to the first column, and erase the line (ECMA-48).
            let _ = write!(std::io::stderr(), "\r\x1b[K{} {words}{end}", bar(self.done, self.total));
        }
    }
}

fn bar(done: usize, total: usize) -> String {
    let full = BAR_CHARS * done.min(total) / total.max(1);
    format!("[{}{}] {done}/{total}", "#".repeat(full), " ".repeat(BAR_CHARS - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_grows() {
        assert_eq!(bar(0, 2).matches('#').count(), 0);
        assert_eq!(bar(1, 2).matches('#').count(), 15);
        assert!(bar(3, 2).ends_with("] 3/2"), "more than was foreseen");
    }
}
