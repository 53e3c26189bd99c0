//! Sockets in the file system: creates, connects and removes them.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use lasthop_foreign::{ForeignFd, Origin};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};

use lasthop_api::port::PortSpec;
use lasthop_runtime::fault::Fault;

use super::access::SocketAccess;

/// Longest path of a Unix socket, in bytes (unix(7): sun_path without its zero).
const PATH_BYTES_MAX: usize = 107;

/// The most connections that wait to be accepted: ovs-vswitchd opens one for each core, and those of all its sockets
/// again after a restart of the switch.
const BACKLOG: i32 = 1024;

/// A listening socket; dropping it removes its file.
#[derive(Debug)]
pub struct ListenSocket {
    listener: ForeignFd,
    path: PathBuf,
    /// Device and inode, so that no other file is removed.
    identity: Option<(u64, u64)>,
}

impl ListenSocket {
    /// Listens at `path`, for the users that `access` names. A socket file without a listener is replaced.
    pub fn bind(path: &Path, access: SocketAccess) -> Result<Self, Fault> {
        check_length(path)?;
        clear(path)?;
        let listener = UnixListener::bind(path).map_err(|error| cannot_bind(path, &error))?;
        Self::begin(listener.into(), path, access)
    }

    /// As `bind`, for connections with message boundaries (SEQPACKET).
    pub fn bind_sequenced(path: &Path, access: SocketAccess) -> Result<Self, Fault> {
        check_length(path)?;
        clear(path)?;
        let listener = listen_sequenced(path).map_err(|error| cannot_bind(path, &error.into()))?;
        Self::begin(listener, path, access)
    }

    fn begin(listener: OwnedFd, path: &Path, access: SocketAccess) -> Result<Self, Fault> {
        // Closing it also closes connections that were not accepted, with descriptors that were sent over them.
        let listener = ForeignFd::new(listener, &Origin::new("a listening socket"));
        let this = Self { listener, path: path.to_path_buf(), identity: identity(path) };
        ioctl_fionbio(&this.listener, true).map_err(|error| cannot_bind(path, &error.into()))?;
        access.apply(None, path)?;
        Ok(this)
    }

    /// A socket that already listens at `path`, if the file there has that device and inode.
    pub fn of_kept(socket: ForeignFd, path: &Path, file: (u64, u64)) -> Option<Self> {
        let this = Self { listener: socket, path: path.to_path_buf(), identity: Some(file) };
        (identity(path) == this.identity && ioctl_fionbio(&this.listener, true).is_ok()).then_some(this)
    }

    /// Device and inode of its file, unless another process owns the file now.
    pub fn file(&self) -> Option<(u64, u64)> {
        self.identity
    }

    /// Keeps its file when this is dropped: another process also has the socket.
    pub fn leave(&mut self) {
        self.identity = None;
    }

    /// The next connection, if one waits; descriptors sent over it belong to `origin`.
    pub fn accept(&self, origin: &Origin) -> std::io::Result<Option<ForeignFd>> {
        loop {
            match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => return Ok(Some(ForeignFd::new(socket, origin))),
                Err(Errno::INTR) => {}
                // The other side may have given up already.
                Err(Errno::AGAIN | Errno::CONNABORTED) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for ListenSocket {
    fn drop(&mut self) {
        if self.identity.is_some() && identity(&self.path) == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn listen_sequenced(path: &Path) -> rustix::io::Result<OwnedFd> {
    let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    bind(&listener, &SocketAddrUnix::new(path)?)?;
    listen(&listener, BACKLOG)?;
    Ok(listener)
}

/// Connects to the listener at `path`, without waiting.
pub fn connect_to(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Refuses a relative path: a client may have another working directory.
pub fn check_absolute(spec: &PortSpec) -> Result<(), Fault> {
    let socket = spec.vhost_user().and_then(|backend| backend.socket.as_ref());
    match socket.filter(|path| !path.is_absolute()) {
        Some(path) => Err(Fault::params(format!("the socket path \"{}\" must start with /", path.display()))),
        None => Ok(()),
    }
}

/// Refuses a path that is too long for a socket.
pub fn check_length(path: &Path) -> Result<(), Fault> {
    let length = path.as_os_str().len();
    if length <= PATH_BYTES_MAX {
        return Ok(());
    }
    Err(Fault::socket(format!(
        "the socket path \"{}\" has {length} bytes, and the limit is {PATH_BYTES_MAX}; use a shorter --dir or socket=PATH",
        path.display()
    )))
}

/// Makes room for a socket: removes only a socket file without a listener.
fn clear(path: &Path) -> Result<(), Fault> {
    let shown = path.display();
    let meta = match path.symlink_metadata() {
        Ok(meta) => meta,
        Err(_) => return Ok(()),
    };
    if !meta.file_type().is_socket() {
        return Err(Fault::socket(format!(
            "\"{shown}\" is there and is no socket; remove it, or use another path"
        )));
    }
    match connect_to(path) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(|error| {
            Fault::socket(format!(
                "cannot remove the left-over socket \"{shown}\": {error}; remove it, or use another path"
            ))
        }),
        Err(Errno::NOENT) => Ok(()),
        Err(Errno::ACCESS | Errno::PERM) => Err(Fault::socket(format!(
            "the socket \"{shown}\" belongs to another user (permission denied); remove it, or use another path"
        ))),
        Err(_) => Err(in_use(path, None)),
        Ok(probe) => Err(in_use(path, lasthop_engine::peer_process(probe.as_fd()))),
    }
}

fn in_use(path: &Path, pid: Option<i32>) -> Fault {
    let who = pid.map_or_else(|| "another process".to_owned(), |pid| format!("another process, {pid}"));
    let shown = path.display();
    Fault::socket(format!("the socket \"{shown}\" is in use by {who}; stop that, or use another path"))
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    path.symlink_metadata().ok().map(|meta| (meta.dev(), meta.ino()))
}

fn cannot_bind(path: &Path, error: &std::io::Error) -> Fault {
    let remedy = match error.kind() {
        ErrorKind::PermissionDenied => "use a directory that you may write to",
        ErrorKind::NotFound => "create its directory first",
        ErrorKind::StorageFull => "free some room there (df, df -i), or use another path",
        _ => "use another path",
    };
    Fault::socket(format!("cannot listen at \"{}\": {error}; {remedy}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(path: &Path) -> String {
        ListenSocket::bind(path, SocketAccess::OWNER_ALONE).expect_err("refused").message
    }

    #[test]
    fn a_left_over_socket_is_replaced_and_ours_is_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.sock");
        drop(UnixListener::bind(&path).expect("bound"));
        assert!(path.exists(), "the file stays behind");
        let socket = ListenSocket::bind(&path, SocketAccess::OWNER_ALONE).expect("replaced");
        assert_eq!(path.metadata().expect("there").mode() & 0o777, 0o600);
        assert!(connect_to(&path).is_ok());
        assert!(socket.accept(Origin::own()).expect("no trouble").is_some());
        assert!(socket.accept(Origin::own()).expect("no trouble").is_none());
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_live_socket_is_left_alone_and_its_owner_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.sock");
        let _owner = UnixListener::bind(&path).expect("bound");
        assert!(message(&path).contains(&format!("in use by another process, {}", std::process::id())));
        assert!(connect_to(&path).is_ok());
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.sock");
        std::fs::write(&path, "precious").expect("written");
        assert!(message(&path).contains("is no socket"));
        assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
    }

    #[test]
    fn a_path_that_cannot_be_is_refused_with_a_remedy() {
        assert!(message(Path::new("/nonexistent/a.sock")).contains("create its directory"));
        assert!(message(&PathBuf::from(format!("/{}", "x".repeat(107)))).contains("limit is 107"));
    }

    #[test]
    fn somebody_elses_file_is_not_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.sock");
        let socket = ListenSocket::bind(&path, SocketAccess::OWNER_ALONE).expect("bound");
        std::fs::rename(&path, dir.path().join("b.sock")).expect("moved");
        std::fs::write(&path, "new").expect("written");
        drop(socket);
        assert!(path.exists());
    }
}
