//! Files that packages ship with the binary, generated from the command line: shell completions and manual pages.

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, ValueEnum};

use crate::output::print;
use lasthop_runtime::fault::Fault;

use super::Cli;

/// Shells with completions.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(super) enum Shell {
    Bash,
    Zsh,
    Fish,
}

impl From<Shell> for clap_complete::Shell {
    fn from(shell: Shell) -> Self {
        match shell {
            Shell::Bash => Self::Bash,
            Shell::Zsh => Self::Zsh,
            Shell::Fish => Self::Fish,
        }
    }
}

/// Writes a shell's completion script.
pub(super) fn completions(shell: Shell) -> Result<ExitCode, Fault> {
    let mut script = Vec::new();
    clap_complete::generate(clap_complete::Shell::from(shell), &mut Cli::command(), "lasthop", &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

/// Writes a manual page for each subcommand into `dir`: `lasthop.1`, `lasthop-vnic-add.1`.
pub(super) fn man(dir: &Path) -> Result<ExitCode, Fault> {
    let made = std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir));
    made.map_err(|error| {
        let dir = dir.display();
        Fault::params(format!(
            "cannot write manual pages into \"{dir}\": {error}; name a directory that you may write to"
        ))
    })?;
    Ok(ExitCode::SUCCESS)
}
