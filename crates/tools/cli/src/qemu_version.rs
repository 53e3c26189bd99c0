//! The version of QEMU, by which options for it differ.

use std::fmt::{self, Display, Formatter};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use lasthop_runtime::fault::Fault;

/// The beginning of the names of its programs; the rest is the guest's architecture.
const PROGRAM: &str = "qemu-system-";
/// Directories of PATH that are searched.
const DIRECTORIES_MAX: usize = 64;
/// The longest wait for its answer, which usually takes some 30 ms.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// The longest answer that is read: the version stands in its first line.
const ANSWER_BYTES_MAX: usize = 4096;

/// The first two numbers of a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QemuVersion {
    major: u32,
    minor: u32,
}

/// The first version that knows `reconnect-ms`.
const WITH_MS: QemuVersion = QemuVersion { major: 9, minor: 2 };

impl QemuVersion {
    /// That of the first QEMU in `PATH`; `None` without one, or if it does not answer in time.
    pub(crate) fn installed() -> Option<Self> {
        let path = std::env::var_os("PATH")?;
        Self::of(&find(std::env::split_paths(&path))?)
    }

    /// The answer of this program.
    fn of(program: &Path) -> Option<Self> {
        // A socket in place of a pipe, since reads of it can have a time limit.
        let (mut answer, output) = UnixStream::pair().ok()?;
        let mut command = Command::new(program);
        command.arg("--version").stdin(Stdio::null()).stderr(Stdio::null());
        let mut child = command.stdout(OwnedFd::from(output)).spawn().ok()?;
        drop(command);
        let version = first_line(&mut answer).and_then(|line| Self::in_answer(&line));
        let _ = child.kill().and_then(|()| child.wait());
        version
    }

    /// "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)".
    fn in_answer(line: &str) -> Option<Self> {
        line.split_once(" version ")?.1.split_whitespace().next()?.parse().ok()
    }

    /// The option of a character device that connects again after a second, if its socket goes away. Until 9.1 there is
    /// `reconnect` alone, from 9.2 on `reconnect-ms`; 10.2 no longer knows `reconnect`.
    pub(crate) fn reconnect(version: Option<Self>) -> &'static str {
        match version {
            Some(version) if version >= WITH_MS => "reconnect-ms=1000",
            // Distributions have versions before 10.2, for the most part.
            _ => "reconnect=1",
        }
    }
}

impl FromStr for QemuVersion {
    type Err = Fault;

    /// Reads "9.2"; further numbers do not matter.
    fn from_str(text: &str) -> Result<Self, Fault> {
        let mut numbers = text.splitn(3, '.').map(str::parse);
        match (numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok(Self { major, minor }),
            _ => {
                Err(Fault::params(format!("\"{text}\" is no version of QEMU; write two numbers, as in 9.2")))
            }
        }
    }
}

impl Display for QemuVersion {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The first program of QEMU in these directories. In one with several, that for guests of this machine's architecture.
fn find(directories: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let is_program = |path: &Path| {
        path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
    };
    let own = format!("{PROGRAM}{}", std::env::consts::ARCH);
    // A relative directory would be another one each time.
    directories.take(DIRECTORIES_MAX).filter(|directory| directory.is_absolute()).find_map(|directory| {
        let own = directory.join(&own);
        if is_program(&own) {
            return Some(own);
        }
        let files = directory.read_dir().ok()?.flatten();
        let named = files.filter(|file| file.file_name().to_string_lossy().starts_with(PROGRAM));
        named.map(|file| file.path()).filter(|path| is_program(path)).min()
    })
}

/// Reads up to the end of the first line.
fn first_line(answer: &mut UnixStream) -> Option<String> {
    let end = Instant::now() + ANSWER_MAX;
    let mut bytes = vec![0; ANSWER_BYTES_MAX];
    let mut len = 0;
    while len < bytes.len() {
        let left = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
        answer.set_read_timeout(Some(left)).ok()?;
        let got = answer.read(&mut bytes[len..]).ok()?;
        len += got;
        if got == 0 || bytes[..len].contains(&b'\n') {
            break;
        }
    }
    let text = String::from_utf8_lossy(&bytes[..len]);
    text.lines().next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> QemuVersion {
        text.parse().expect("a version")
    }

    #[test]
    fn each_version_gets_the_option_that_it_knows() {
        for (text, option) in [
            ("7.2", "reconnect=1"),
            ("9.1", "reconnect=1"),
            ("9.2", "reconnect-ms=1000"),
            ("10.2", "reconnect-ms=1000"),
            ("11.0", "reconnect-ms=1000"),
        ] {
            assert_eq!(QemuVersion::reconnect(Some(version(text))), option, "{text}");
        }
        assert_eq!(QemuVersion::reconnect(None), "reconnect=1");
    }

    #[test]
    fn a_version_is_two_numbers() {
        assert_eq!(version("10.2.1"), version("10.2"));
        assert_eq!(version("9.2.0-rc1").to_string(), "9.2");
        for text in ["", "9", "9.", ".2", "nine.two", "-1.2", "9,2"] {
            let fault = text.parse::<QemuVersion>().expect_err(text);
            assert!(fault.message.contains("as in 9.2"), "{}", fault.message);
        }
    }

    /// Makes a program of a shell's script.
    fn program(directory: &Path, name: &str, script: &str) -> PathBuf {
        let path = directory.join(name);
        // By a process of its own: a child that another test starts meanwhile would hold the file open for writing.
        let write = "printf '%s\\n' '#!/bin/sh' \"$2\" > \"$1\" && chmod 755 \"$1\"";
        let mut shell = Command::new("sh");
        let status = shell.args(["-c", write, "sh"]).arg(&path).arg(script).status();
        assert!(status.expect("a shell").success());
        path
    }

    #[test]
    fn the_first_program_of_the_path_is_asked() {
        let (first, second) = (tempfile::tempdir().expect("one"), tempfile::tempdir().expect("another"));
        let path = || [first.path(), second.path()].map(Path::to_path_buf).into_iter();
        assert_eq!(find(path()), None);
        let debian = "echo 'QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)'; echo Copyright";
        let old = program(second.path(), &format!("{PROGRAM}{}", std::env::consts::ARCH), debian);
        assert_eq!(find(path()), Some(old.clone()));
        assert_eq!(QemuVersion::of(&old), Some(version("7.2")));
        let new = program(first.path(), "qemu-system-z80", "echo QEMU emulator version 10.2.0");
        std::fs::write(first.path().join("qemu-system-a"), "not executable").expect("written");
        assert_eq!(find(path()), Some(new.clone()));
        assert_eq!(QemuVersion::of(&new), Some(version("10.2")));
    }

    #[test]
    fn a_program_that_gives_no_version_is_none() {
        let directory = tempfile::tempdir().expect("a directory");
        for script in ["exit 1", "echo hello", "exec cat /dev/zero"] {
            assert_eq!(QemuVersion::of(&program(directory.path(), "q", script)), None, "{script}");
        }
        assert_eq!(QemuVersion::of(&directory.path().join("missing")), None);
    }
}
