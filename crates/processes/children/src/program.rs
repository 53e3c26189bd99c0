//! The program of inner processes. One of an upgrade is an open file: later starts are of the same program, whatever
//! is at its path by then. A package that was installed meanwhile may have another version of the kept state.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use lasthop_runtime::fault::Fault;
use lasthop_runtime::{descriptors, procfs};
use rustix::fs::{Access, Mode, OFlags, access, open};
use rustix::io::Errno;

/// The file of this program, even if another one has its path now.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Directories that the packaged service does not see (systemd.exec(5): ProtectHome, PrivateTmp).
const HIDDEN: [&str; 5] = ["/home", "/root", "/run/user", "/tmp", "/var/tmp"];

/// A program from which processes are started.
#[derive(Clone, Debug)]
pub struct ChildProgram {
    /// For messages: its path when it was opened.
    path: PathBuf,
    /// `None` for this program itself.
    file: Option<Rc<OwnedFd>>,
}

impl ChildProgram {
    /// The program of this process.
    pub fn own() -> Self {
        Self { path: PathBuf::from(OWN_PROGRAM), file: None }
    }

    /// The program that is at `path` now.
    ///
    /// # Errors
    /// A path that is not absolute or of no program, for the user.
    pub fn open(path: &Path) -> Result<Self, Fault> {
        check(path)?;
        let file = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| Fault::internal(&format!("open the program {}", path.display()), error))?;
        Ok(Self { path: path.to_path_buf(), file: Some(Rc::new(file)) })
    }

    /// Whether it is that of this process.
    pub fn is_own(&self) -> bool {
        self.file.is_none()
    }

    /// The path where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path by which it is started, while this value exists. It goes by the number of this process: the new process
    /// has no copy of the descriptor, and the interpreter of a script opens the path again.
    pub(crate) fn start_path(&self) -> PathBuf {
        match &self.file {
            Some(file) => procfs::dir(std::process::id()).join(format!("fd/{}", file.as_raw_fd())),
            None => self.path.clone(),
        }
    }
}

impl fmt::Display for ChildProgram {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.path.display().fmt(out)
    }
}

fn check(program: &Path) -> Result<(), Fault> {
    let shown = program.display();
    if !program.is_absolute() {
        return Err(Fault::params(format!("the path \"{shown}\" must start with /")));
    }
    let is_file = program.metadata().map(|meta| meta.is_file()).map_err(|error| {
        let remedy = match HIDDEN.iter().any(|directory| program.starts_with(directory)) {
            true => "the packaged service does not see this directory (ProtectHome, PrivateTmp): put the program below /usr/local or /opt",
            false => "name the new lasthop",
        };
        Fault::params(format!("cannot find the program {shown}: {error}; {remedy}"))
    })?;
    if !is_file {
        return Err(Fault::params(format!("{shown} is no file; name the new lasthop")));
    }
    access(program, Access::EXEC_OK).map_err(|error| {
        Fault::params(format!(
            "the program {shown} cannot be run: {error}; make it executable: chmod a+x {shown}"
        ))
    })
}

/// The file that this program was started from, or its replacement.
pub fn own_path() -> Result<PathBuf, Fault> {
    let path = std::env::current_exe().map_err(|error| Fault::internal("find this program's file", error))?;
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or_else(|| path.clone(), PathBuf::from))
}

/// Whether a start failed for lack of memory, processes or descriptors, which another program would lack, too.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    descriptors::is_shortage(error) || Errno::from_io_error(error) == Some(Errno::AGAIN)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// By another process: a file that this one writes cannot be started while a child of another test has its descriptor.
    fn copy(program: &str, to: &Path) {
        assert!(Command::new("cp").arg(program).arg(to).status().expect("run").success());
    }

    #[test]
    fn a_program_that_was_opened_runs_when_another_file_has_its_path() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("program");
        copy("/bin/true", &path);
        let program = ChildProgram::open(&path).expect("opened");
        let runs =
            |program: &ChildProgram| Command::new(program.start_path()).status().expect("run").success();
        assert!(runs(&program));
        let other = dir.path().join("other");
        copy("/bin/false", &other);
        std::fs::rename(&other, &path).expect("replaced");
        assert!(runs(&program), "the file that was opened");
        assert!(!runs(&ChildProgram::open(&path).expect("opened")), "that of the path is another one");
        std::fs::remove_file(&path).expect("removed");
        assert!(runs(&program), "without a path");
    }

    #[test]
    fn a_script_is_started_by_its_descriptor_too() {
        let dir = tempfile::tempdir().expect("a directory");
        let (text, path) = (dir.path().join("text"), dir.path().join("script"));
        std::fs::write(&text, "#!/bin/sh\nexit 7\n").expect("written");
        let install = Command::new("install").args(["-m", "755"]).args([&text, &path]).status();
        assert!(install.expect("run").success());
        let program = ChildProgram::open(&path).expect("opened");
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(Command::new(program.start_path()).status().expect("run").code(), Some(7));
    }

    #[test]
    fn a_program_that_cannot_be_run_is_told_from_one_that_is_not_there() {
        let dir = tempfile::tempdir().expect("a directory");
        let text = dir.path().join("text");
        std::fs::write(&text, "no program").expect("written");
        for (program, words) in [
            (Path::new("lasthop"), "must start with /"),
            (Path::new("/nonexistent"), "cannot find the program /nonexistent: No such file"),
            (Path::new("/root/nonexistent/lasthop"), "put the program below /usr/local or /opt"),
            (Path::new("/tmp/nonexistent/lasthop"), "(ProtectHome, PrivateTmp)"),
            (dir.path(), "is no file"),
            (text.as_path(), "chmod a+x"),
        ] {
            let fault = ChildProgram::open(program).expect_err("no program");
            assert!(fault.message.contains(words), "{fault}");
        }
        let fault = ChildProgram::open(Path::new("/nonexistent")).expect_err("no program");
        assert!(!fault.message.contains("ProtectHome"), "{fault}");
        ChildProgram::open(Path::new("/bin/sh")).expect("a program");
    }
}
