//! Standard output: only this module of the binary writes to it.

use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;

use lasthop_runtime::fault::Fault;
use lasthop_runtime::harmless::harmless_lines;

/// Moves the cursor to the first column of the first line, and clears everything after it (ECMA-48: CUP, ED).
const HOME_AND_CLEAR: &[u8] = b"\x1b[H\x1b[J";

/// Writes `text` without characters that control a terminal, with a line end. A reader that closed the pipe (`| head`)
/// is no error.
pub(crate) fn print(text: &str) -> Result<(), Fault> {
    print_next(text).map(drop)
}

/// Clears the screen: the next output begins at its top.
pub(crate) fn clear_screen() -> Result<(), Fault> {
    let cleared = std::io::stdout().write_all(HOME_AND_CLEAR);
    cleared.map_err(|error| Fault::internal("clear the screen", error))
}

/// Like [`print()`], for one of several texts: returns false if the reader is gone.
pub(crate) fn print_next(text: &str) -> Result<bool, Fault> {
    let text = &harmless_lines(text);
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let mut out = std::io::stdout().lock();
    let written = out
        .write_all(text.as_bytes())
        .and_then(|()| out.write_all(end.as_bytes()))
        .and_then(|()| out.flush());
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Fault::internal("write the answer", error)),
    }
}

/// The terminal of standard output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

/// The terminal of standard output, if it is one and reports its size.
pub(crate) fn screen() -> Option<Screen> {
    #[cfg(test)]
    return tests::screen();
    #[cfg(not(test))]
    size(std::io::stdout())
}

/// Same for standard error.
pub(crate) fn error_screen() -> Option<Screen> {
    size(std::io::stderr())
}

fn size(of: impl AsFd) -> Option<Screen> {
    let size = rustix::termios::tcgetwinsize(of).ok()?;
    let screen = Screen { columns: size.ws_col.into(), rows: size.ws_row.into() };
    (screen.columns > 0 && screen.rows > 0).then_some(screen)
}

/// Writes `value` as indented JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Fault> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Fault::internal("write the answer as JSON", error))?;
    print(&text)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::Screen;

    thread_local! {
        static SCREEN: Cell<Option<Screen>> = const { Cell::new(None) };
    }

    /// The terminal of [`on_screen()`]: tests do not depend on that of their output.
    pub(super) fn screen() -> Option<Screen> {
        SCREEN.get()
    }

    /// Calls `show` as if standard output were a terminal.
    pub(crate) fn on_screen<T>(columns: usize, show: impl FnOnce() -> T) -> T {
        SCREEN.set(Some(Screen { columns, rows: 24 }));
        let shown = show();
        SCREEN.set(None);
        shown
    }
}
