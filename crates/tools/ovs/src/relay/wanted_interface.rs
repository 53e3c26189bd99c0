//! Interfaces with the types of OVS-DPDK's vhost-user ports, and the vnics that they ask for.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::value::Texts;

/// The types: the switch listens, and the switch connects.
pub(super) const TYPES: [&str; 2] = ["dpdkvhostuser", "dpdkvhostuserclient"];
/// A network device's name has at most this many bytes, and ovs-vswitchd looks for a device of the vnic's name.
const NAME_BYTES_MAX: usize = 15;

/// An interface of one of the types.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedInterface {
    pub(super) name: String,
    pub(super) kind: String,
    pub(super) options: Texts,
    /// `other_config:vhost-sock-dir`.
    pub(super) socket_dir: Option<String>,
}

/// The side that makes the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Mode {
    /// The switch.
    Listen,
    /// QEMU.
    Connect,
}

/// The vnic for an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Vnic {
    pub(super) name: String,
    pub(super) mode: Mode,
    pub(super) socket: PathBuf,
}

/// Directories where sockets may be.
#[derive(Clone, Debug)]
pub(super) struct Directories {
    /// Where Open vSwitch makes sockets by default.
    pub(super) run: PathBuf,
    /// Where else they may be.
    pub(super) others: Vec<PathBuf>,
}

impl Directories {
    /// The vnic that an interface asks for, or a sentence for the interface's column `error`.
    pub(super) fn vnic(&self, wish: &WantedInterface) -> Result<Vnic, String> {
        let name = &wish.name;
        if name.len() > NAME_BYTES_MAX {
            return Err(format!(
                "{name} is longer than {NAME_BYTES_MAX} bytes, the most for a network device: take a shorter name"
            ));
        }
        if name.contains('/') {
            return Err(format!("{name} has a slash: take another name"));
        }
        let (mode, socket) = if wish.kind == TYPES[0] {
            (Mode::Listen, self.listening(wish)?)
        } else {
            let path = wish.options.get("vhost-server-path");
            let path =
                path.ok_or("options:vhost-server-path is missing: set it to the socket of the guest's VMM")?;
            (Mode::Connect, PathBuf::from(path))
        };
        Ok(Vnic { name: name.clone(), mode, socket: self.allowed(&socket)? })
    }

    fn listening(&self, wish: &WantedInterface) -> Result<PathBuf, String> {
        let below = wish.socket_dir.as_deref().unwrap_or("");
        if Path::new(below).components().any(|part| part == Component::ParentDir) {
            return Err(format!(
                "other_config:vhost-sock-dir={below} leads upwards: name a directory below that of Open vSwitch"
            ));
        }
        // As with Open vSwitch, the directory is always below its own.
        Ok(self.run.join(below.trim_start_matches('/')).join(&wish.name))
    }

    /// The path with the real path of its directory, if that is allowed.
    fn allowed(&self, socket: &Path) -> Result<PathBuf, String> {
        let shown = socket.display();
        let parent = socket.parent().filter(|_| socket.is_absolute());
        let (Some(parent), Some(file)) = (parent, socket.file_name()) else {
            return Err(format!("{shown} is no absolute path of a socket"));
        };
        let real = parent.canonicalize().map_err(|error| {
            format!("the directory of {shown} cannot be used: {error}; make it, and add the port again")
        })?;
        let mut directories = std::iter::once(&self.run).chain(&self.others);
        // A directory that is not there has no sockets.
        if directories.any(|allowed| allowed.canonicalize().is_ok_and(|allowed| real.starts_with(allowed))) {
            return Ok(real.join(file));
        }
        Err(format!(
            "{shown} is in no directory of the option --vhost-user-dir: add {} there, or move the socket",
            real.display()
        ))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn wish(kind: &str, name: &str, path: Option<&Path>) -> WantedInterface {
        let option = path.map(|path| ("vhost-server-path".to_owned(), path.display().to_string()));
        WantedInterface {
            name: name.into(),
            kind: kind.into(),
            options: option.into_iter().collect(),
            socket_dir: None,
        }
    }

    #[test]
    fn sockets_are_in_allowed_directories_only() {
        let dir = tempfile::tempdir().expect("a directory");
        let base = dir.path().canonicalize().expect("it is there");
        for name in ["run/sub", "sockets", "other"] {
            std::fs::create_dir_all(base.join(name)).expect("writable");
        }
        symlink(base.join("other"), base.join("sockets/away")).expect("writable");
        symlink(base.join("sockets"), base.join("known")).expect("writable");
        let directories = Directories { run: base.join("run"), others: vec![base.join("sockets")] };
        let client = |path: &str| directories.vnic(&wish(TYPES[1], "vhu1", Some(&base.join(path))));
        let vnic = |mode, path| Ok(Vnic { name: "vhu1".into(), mode, socket: base.join(path) });
        assert_eq!(client("sockets/a"), vnic(Mode::Connect, "sockets/a"));
        assert_eq!(client("known/a"), vnic(Mode::Connect, "sockets/a"), "the real path");
        for path in ["other/a", "sockets/away/a", "sockets/../other/a", "sockets/.."] {
            assert!(
                client(path)
                    .is_err_and(|text| text.contains("--vhost-user-dir") || text.contains("no absolute")),
                "{path}"
            );
        }
        assert!(client("sockets/none/a").is_err_and(|text| text.contains("make it")));
        let mut server = wish(TYPES[0], "vhu1", None);
        assert_eq!(directories.vnic(&server), vnic(Mode::Listen, "run/vhu1"));
        server.socket_dir = Some("/sub".into());
        assert_eq!(directories.vnic(&server), vnic(Mode::Listen, "run/sub/vhu1"));
        server.socket_dir = Some("../other".into());
        assert!(directories.vnic(&server).is_err_and(|text| text.contains("upwards")));
    }

    #[test]
    fn wishes_that_cannot_be_met_are_told_with_the_remedy() {
        let directories = Directories { run: PathBuf::from("/"), others: Vec::new() };
        let told = |wish: &WantedInterface| directories.vnic(wish).expect_err("impossible");
        assert!(told(&wish(TYPES[0], "a234567890123456", None)).contains("15 bytes"));
        assert!(told(&wish(TYPES[0], "a/b", None)).contains("slash"));
        assert!(told(&wish(TYPES[1], "a", None)).contains("vhost-server-path is missing"));
        assert!(told(&wish(TYPES[1], "a", Some(Path::new("b")))).contains("no absolute path"));
    }
}
