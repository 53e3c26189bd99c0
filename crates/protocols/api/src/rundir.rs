//! The run directory: its path, and a lock, so that only one switch uses it.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use lasthop_runtime::fault::Fault;

/// Run directory of root's switch.
const ROOT_DIR: &str = "/run/lasthop";
/// Attempts to lock a file that its last owner is removing.
const LOCK_TRIES_MAX: usize = 10;

/// The run directory: `--dir`, else the default of root or of the user.
pub fn choose(dir: Option<&Path>) -> Result<PathBuf, Fault> {
    let chosen = default_dir(dir, is_root(), std::env::var_os("XDG_RUNTIME_DIR"))?;
    std::path::absolute(&chosen).map_err(|error| {
        Fault::socket(format!("cannot use the run directory \"{}\": {error}", chosen.display()))
    })
}

/// The default directory of another user's switch.
pub fn default_of(is_root: bool, runtime_dir: Option<&str>) -> Option<PathBuf> {
    default_dir(None, is_root, runtime_dir.map(OsString::from)).ok()
}

/// The option with which a command finds the switch in `dir`; empty if that is the default.
pub fn option(dir: &Path) -> String {
    match choose(None) {
        Ok(default) if default == dir => String::new(),
        _ => format!(" --dir {}", dir.display()),
    }
}

/// The process that uses a run directory, for users who may read that.
pub fn owner(dir: &Path) -> Option<u32> {
    std::fs::read_to_string(dir.join("lock")).ok()?.trim().parse().ok()
}

/// The control socket in a run directory.
pub fn control_socket(dir: &Path) -> PathBuf {
    dir.join("control.sock")
}

/// The datapath socket, for controllers such as Open vSwitch.
pub fn datapath_socket(dir: &Path) -> PathBuf {
    dir.join("datapath.sock")
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn default_dir(dir: Option<&Path>, is_root: bool, runtime_dir: Option<OsString>) -> Result<PathBuf, Fault> {
    match (dir, runtime_dir.filter(|path| !path.is_empty())) {
        (Some(dir), _) => Ok(dir.to_path_buf()),
        (None, _) if is_root => Ok(PathBuf::from(ROOT_DIR)),
        (None, Some(path)) => Ok(PathBuf::from(path).join("lasthop")),
        (None, None) => Err(Fault::socket(
            "XDG_RUNTIME_DIR is not set, so there is no default run directory; name one with --dir",
        )),
    }
}

/// A run directory that is locked until this is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    is_new: bool,
    /// Holds the lock.
    _lock: File,
}

impl RunDir {
    /// Creates the directory if it does not exist, and locks it.
    pub fn claim(path: PathBuf) -> Result<Self, Fault> {
        let is_new = make(&path)?;
        match lock(&path) {
            Ok(lock) => Ok(Self { path, is_new, _lock: lock }),
            Err(fault) => {
                remove_if(is_new, &path);
                Err(fault)
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path.join("lock"));
        remove_if(self.is_new, &self.path);
    }
}

/// Removes the directory if this process created it and it is empty.
fn remove_if(is_new: bool, path: &Path) {
    if is_new {
        let _ = std::fs::remove_dir(path);
    }
}

fn make(path: &Path) -> Result<bool, Fault> {
    let mode = if is_root() { 0o755 } else { 0o700 };
    let shown = path.display();
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => {
            // Sets the mode again, since the umask may have removed bits.
            let _ = std::fs::set_permissions(path, Permissions::from_mode(mode));
            Ok(true)
        }
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(false),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            Err(Fault::socket(format!("\"{shown}\" is not a directory; name another one with --dir")))
        }
        Err(error) => Err(cannot_create(path, &error)),
    }
}

fn cannot_create(path: &Path, error: &std::io::Error) -> Fault {
    let remedy = match error.kind() {
        ErrorKind::NotFound => "create its parent, or name another one with --dir",
        ErrorKind::PermissionDenied => "name one that you may write to with --dir",
        ErrorKind::StorageFull => "free some room there (df, df -i), or name another one with --dir",
        _ => "name another one with --dir",
    };
    Fault::socket(format!("cannot create the run directory \"{}\": {error}; {remedy}", path.display()))
}

fn lock(dir: &Path) -> Result<File, Fault> {
    let path = dir.join("lock");
    let failed = |error: &std::io::Error| {
        let remedy = match error.kind() {
            ErrorKind::StorageFull => "free some room there (df, df -i), or use another --dir",
            ErrorKind::ReadOnlyFilesystem => "use another --dir",
            _ => "run as its owner, or use another --dir",
        };
        Fault::socket(format!("cannot lock \"{}\": {error}; {remedy}", path.display()))
    };
    for _ in 0..LOCK_TRIES_MAX {
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let mut file = options.open(&path).map_err(|error| failed(&error))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) if is_current(&file, &path) => {
                return write_pid(&mut file).map(|()| file).map_err(|error| failed(&error));
            }
            // Its last owner has removed the file between the two calls.
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(in_use(dir, &mut file)),
            Err(error) => return Err(failed(&error.into())),
        }
    }
    Err(failed(&std::io::Error::other("it changes all the time")))
}

fn is_current(file: &File, path: &Path) -> bool {
    let identity = |meta: &std::fs::Metadata| (meta.dev(), meta.ino());
    matches!(&(file.metadata(), std::fs::metadata(path)), (Ok(ours), Ok(there)) if identity(ours) == identity(there))
}

fn write_pid(file: &mut File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn in_use(dir: &Path, file: &mut File) -> Fault {
    let mut pid = String::new();
    let _ = file.take(16).read_to_string(&mut pid);
    let (dir, pid) = (dir.display(), pid.trim());
    Fault::socket(format!(
        "another switch (process {pid}) has the run directory \"{dir}\"; stop it, or name another one with --dir"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_depends_on_the_user() {
        let xdg = || Some(OsString::from("/run/user/7"));
        let dir = |dir, root, xdg| default_dir(dir, root, xdg).ok();
        assert_eq!(dir(None, true, xdg()), Some(PathBuf::from("/run/lasthop")));
        assert_eq!(dir(None, false, xdg()), Some(PathBuf::from("/run/user/7/lasthop")));
        assert_eq!(dir(Some(Path::new("/x")), true, None), Some(PathBuf::from("/x")));
        let fault =
            default_dir(None, false, Some(OsString::new())).expect_err("an empty variable is not set");
        assert!(fault.message.contains("--dir"), "{fault}");
    }

    #[test]
    fn a_directory_has_one_owner_at_a_time_and_is_gone_after_it() {
        let base = tempfile::tempdir().expect("a directory");
        let path = base.path().join("run");
        let owner = RunDir::claim(path.clone()).expect("the first");
        let fault = RunDir::claim(path.clone()).expect_err("the second");
        assert!(fault.message.contains(&format!("process {}", std::process::id())), "{fault}");
        drop(owner);
        assert!(!path.exists());
        RunDir::claim(path).expect("free again");
    }

    #[test]
    fn the_remedy_fits_the_trouble() {
        let message = |kind: ErrorKind| cannot_create(Path::new("/x/y"), &kind.into()).message;
        assert!(message(ErrorKind::NotFound).contains("create its parent"));
        let denied = message(ErrorKind::PermissionDenied);
        assert!(denied.contains("permission denied; name one that you may write to"), "{denied}");
    }

    #[test]
    fn a_directory_that_was_there_stays() {
        let base = tempfile::tempdir().expect("a directory");
        drop(RunDir::claim(base.path().to_path_buf()).expect("claimed"));
        assert_eq!(base.path().read_dir().expect("still there").count(), 0);
    }
}
