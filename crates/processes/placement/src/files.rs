//! Small files of the run directory, for the next supervisor.

use std::io::{self, Read};
use std::path::Path;

use serde::Serialize;

use crate::bounds::RECORD_BYTES_MAX;

/// The text of a file, up to [`RECORD_BYTES_MAX`]; `None` if there is none.
pub(crate) fn read_file(file: &Path) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(file).ok()?.take(RECORD_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Replaces a file in one step.
pub(crate) fn replace_file(file: &Path, contents: &impl Serialize) -> io::Result<()> {
    let next = file.with_extension("next");
    std::fs::write(&next, serde_json::to_vec(contents)?)?;
    std::fs::rename(next, file)
}
