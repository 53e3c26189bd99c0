//! `lasthop bench`: runs the program `lasthop-bench`, which is installed beside this one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use lasthop_runtime::fault::Fault;

const NAME: &str = "lasthop-bench";

/// Executes the bench with the rest of the command line. Returns only on failure.
pub(super) fn run(words: &[OsString], as_json: bool) -> Result<ExitCode, Fault> {
    let own = std::env::current_exe().map_err(|error| Fault::internal("find this program", error))?;
    let program = beside(&own);
    let mut command = Command::new(&program);
    command.args(as_json.then_some("--json")).args(words);
    Err(not_started(&program, &command.exec()))
}

fn beside(own: &Path) -> PathBuf {
    own.with_file_name(NAME)
}

fn not_started(program: &Path, error: &std::io::Error) -> Fault {
    Fault::params(format!(
        "the bench cannot be started: \"{}\": {error}; install it (make install, or the package), or build it \
         (cargo build --release -p lasthop-bench)",
        program.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_looked_for_beside_this_program() {
        assert_eq!(beside(Path::new("/usr/bin/lasthop")), Path::new("/usr/bin/lasthop-bench"));
        let error = std::io::Error::from(std::io::ErrorKind::NotFound);
        let said = not_started(Path::new("/usr/bin/lasthop-bench"), &error).to_string();
        assert!(said.contains("/usr/bin/lasthop-bench") && said.contains("make install"), "{said}");
    }
}
