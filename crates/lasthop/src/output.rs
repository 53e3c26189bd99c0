//! Standard output: the only place of the binary that writes there.

use std::io::{ErrorKind, Write};

use crate::fault::Fault;

/// Writes `text` and a line end if it has none. A reader that went away (`| head`) has seen what it wanted.
pub(crate) fn print(text: &str) -> Result<(), Fault> {
    let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
    let mut out = std::io::stdout().lock();
    match out
        .write_all(text.as_bytes())
        .and_then(|()| out.write_all(end.as_bytes()))
        .and_then(|()| out.flush())
    {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Fault::internal("write the answer", error))
        }
        _ => Ok(()),
    }
}

/// Writes `value` as indented JSON.
pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Fault> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Fault::internal("write the answer as JSON", error))?;
    print(&text)
}
