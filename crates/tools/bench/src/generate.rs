//! Files for packages, made from the command line's definition: the manual page and shell completions.

use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;

use crate::console::print;
use crate::options::Options;

const NAME: &str = "lasthop-bench";

/// Writes the manual page into `directory`, which is created if missing.
pub(crate) fn man(directory: &Path) -> Result<()> {
    let made = std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(Options::command(), directory));
    made.with_context(|| format!("cannot write the manual page into \"{}\"", directory.display()))
}

/// Writes the completion script for a shell.
pub(crate) fn completions(shell: clap_complete::Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Options::command(), NAME, &mut script);
    print(&String::from_utf8_lossy(&script))
}
