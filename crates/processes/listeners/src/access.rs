//! Owner, group and mode of a port's socket file: QEMU usually runs as another user than the switch.

use std::fs::Permissions;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use lasthop_api::names;
use lasthop_api::port::VhostUserBackend;
use lasthop_runtime::fault::Fault;

/// The files of user and group names. They contain the users that VMMs run as.
const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

/// The users that may attach to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketAccess {
    mode: u32,
    owner: Option<u32>,
    group: Option<u32>,
}

impl SocketAccess {
    /// For the switch's own user only.
    pub const OWNER_ALONE: Self = Self { mode: 0o600, owner: None, group: None };

    /// The mode and group of a file without a record of them.
    pub const OF_A_GROUP: Self = Self { mode: 0o660, owner: None, group: Some(0) };

    /// For the switch's own user, and for a group if one is given.
    pub fn of_control(group: Option<&str>) -> Result<Self, Fault> {
        let Some(name) = group else { return Ok(Self::OWNER_ALONE) };
        Ok(Self { mode: 0o660, owner: None, group: Some(number("control-group", name, GROUPS)?) })
    }

    /// The access that a vhost-user port's settings ask for.
    pub fn of(spec: &VhostUserBackend) -> Result<Self, Fault> {
        let number = |key, name: &Option<String>, table| {
            name.as_deref().map(|name| number(key, name, table)).transpose()
        };
        Ok(Self {
            mode: spec.socket_mode.unwrap_or_default().0,
            owner: number("socket-owner", &spec.socket_owner, USERS)?,
            group: number("socket-group", &spec.socket_group, GROUPS)?,
        })
    }

    /// Sets mode, owner and group of the file at `path`; resets an owner or group that only `before` had.
    pub fn apply(self, before: Option<Self>, path: &Path) -> Result<(), Fault> {
        let own = |was: Option<u32>, own: u32| was.map(|_| own);
        let (was_owner, was_group) = before.map_or((None, None), |before| (before.owner, before.group));
        let owner = self.owner.or_else(|| own(was_owner, rustix::process::geteuid().as_raw()));
        let group = self.group.or_else(|| own(was_group, rustix::process::getegid().as_raw()));
        let socket = open_socket_file(path)?;
        let file = PathBuf::from(format!("/proc/self/fd/{}", socket.as_raw_fd()));
        if owner.is_some() || group.is_some() {
            chown(&file, owner, group).map_err(|error| self.cannot_give(path, &error))?;
        }
        std::fs::set_permissions(&file, Permissions::from_mode(self.mode)).map_err(|error| {
            let (mode, path) = (self.mode, path.display());
            Fault::socket(format!("cannot set the mode of the socket \"{path}\" to {mode:04o}: {error}"))
        })
    }

    fn cannot_give(self, path: &Path, error: &std::io::Error) -> Fault {
        let wanted = match (self.owner, self.group) {
            (Some(owner), Some(group)) => format!("user {owner} and group {group}"),
            (Some(owner), None) => format!("user {owner}"),
            (None, group) => format!("group {}", group.unwrap_or_default()),
        };
        let remedy = match error.kind() {
            ErrorKind::PermissionDenied => {
                "; only root gives files away, and others give them to groups that they are in: \
                 run the switch as root, or use socket-group with a group of yours"
            }
            _ => "",
        };
        Fault::socket(format!("cannot give the socket \"{}\" to {wanted}: {error}{remedy}", path.display()))
    }
}

/// Opens the socket at `path`: a user with write access to its directory could replace it by a link to another file at
/// any time, and so have the ownership of that file changed.
fn open_socket_file(path: &Path) -> Result<OwnedFd, Fault> {
    let shown = path.display();
    let failed = |error: Errno| Fault::socket(format!("cannot look at the socket \"{shown}\": {error}"));
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    let meta = rustix::fs::fstat(&file).map_err(failed)?;
    if FileType::from_raw_mode(meta.st_mode) == FileType::Socket {
        return Ok(file);
    }
    Err(Fault::socket(format!("\"{shown}\" is no socket any more; add the port anew, or use another path")))
}

/// The number of a user or group; the name may be a number.
fn number(key: &str, name: &str, table: &str) -> Result<u32, Fault> {
    match name.parse() {
        // To chown(2) this number means no change.
        Ok(u32::MAX) => {
            return Err(Fault::params(format!(
                "{key}={name}: no user or group has this number; use a smaller one"
            )));
        }
        Ok(number) => return Ok(number),
        Err(_) => {}
    }
    let text = std::fs::read_to_string(table).unwrap_or_default();
    find(&text, name).ok_or_else(|| {
        let known = text.lines().filter_map(|line| line.split(':').next());
        let hint = names::hint(name, known);
        let kind = if key == "socket-owner" { "user" } else { "group" };
        Fault::params(format!(
            "{key}={name}: there is no {kind} \"{name}\" in {table}{hint}; a number will do, too"
        ))
    })
}

/// Third field of the line with this name (passwd(5), group(5)).
fn find(table: &str, name: &str) -> Option<u32> {
    let mut lines = table.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn names_are_found_as_whole_words() {
        let table = "root:x:0:0:root:/root:/bin/sh\nlibvirt-qemu:x:64055:994::/:/bin/false\nodd\n";
        assert_eq!(find(table, "libvirt-qemu"), Some(64055));
        assert_eq!((find(table, "libvirt"), find(table, "odd"), find(table, "")), (None, None, None));
        assert_eq!(number("socket-group", "108", GROUPS), Ok(108));
        let fault = number("socket-owner", "rooot", USERS).expect_err("no such user");
        assert!(fault.message.contains("did you mean \"root\""), "{fault}");
    }

    #[test]
    fn a_files_owner_and_mode_are_set_and_taken_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("a.sock");
        let _socket = std::os::unix::net::UnixListener::bind(&path).expect("bound");
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let state =
            || path.metadata().map(|meta| (meta.mode() & 0o777, meta.uid(), meta.gid())).expect("there");
        let access = SocketAccess { mode: 0o606, owner: None, group: Some(own.1) };
        access.apply(None, &path).expect("our own group");
        assert_eq!(state(), (0o606, own.0, own.1));
        if own.0 != 0 {
            let fault = SocketAccess { owner: Some(0), ..access }.apply(None, &path).expect_err("not root");
            assert!(fault.message.contains("run the switch as root"), "{fault}");
            return;
        }
        let given = SocketAccess { mode: 0o660, owner: Some(12345), group: Some(12346) };
        given.apply(Some(access), &path).expect("root may");
        assert_eq!(state(), (0o660, 12345, 12346));
        SocketAccess::OWNER_ALONE.apply(Some(given), &path).expect("root may");
        assert_eq!(state(), (0o600, 0, 0));
    }

    #[test]
    fn a_link_in_the_place_of_a_socket_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let (file, link) = (dir.path().join("precious"), dir.path().join("a.sock"));
        std::fs::write(&file, "").expect("written");
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("ours");
        std::os::unix::fs::symlink(&file, &link).expect("linked");
        let fault = SocketAccess::OWNER_ALONE.apply(None, &link).expect_err("no socket");
        assert!(fault.message.contains("is no socket any more"), "{fault}");
        assert_eq!(file.metadata().expect("there").mode() & 0o777, 0o644);
    }
}
