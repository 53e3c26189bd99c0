//! Other processes of this machine, as far as they concern vhost-user: command lines, and the mapping of guests' memory.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Display;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use lasthop_api::facts::FileFacts;
use lasthop_api::rundir;
use lasthop_runtime::harmless::harmless;
use lasthop_runtime::procfs;
use serde_json::Value;

use crate::permissions::Credentials;

/// A process and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) name: String,
    pub(crate) arguments: Vec<String>,
    /// The user that it runs as.
    pub(crate) user: Credentials,
    /// XDG_RUNTIME_DIR, if it is readable.
    pub(crate) runtime_dir: Option<String>,
}

/// Words that command lines of vhost-user front ends have: QEMU, Cloud Hypervisor, DPDK, User Mode Linux.
const FRONT_END_WORDS: &[&str] = &["vhost-user", "vhost_user", "virtio_user", "virtio_uml"];

/// The longest label of a security module that is read. The kernel's limit is a page.
const LABEL_BYTES_MAX: u64 = 4096;

/// The argument that tells a kernel in user mode its socket.
const UML_DEVICE: &str = "virtio_uml.device=";

impl Process {
    /// `None` if the process has ended, or access is denied.
    pub(crate) fn read(pid: i32) -> Option<Self> {
        let arguments = procfs::text(pid, "cmdline")?.split_terminator('\0').map(of_others).collect();
        let name = of_others(procfs::text(pid, "comm")?.trim());
        let status = procfs::text(pid, "status")?;
        let numbers = |key: &str| -> Vec<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok()).collect()
        };
        let gids = numbers("Gid:").into_iter().skip(1).take(1).chain(numbers("Groups:")).collect();
        // The directory of a process that may not be dumped belongs to root.
        let uid = *numbers("Uid:").get(1)?;
        let environment = procfs::text(pid, "environ").unwrap_or_default();
        let runtime_dir = procfs::variable(&environment, "XDG_RUNTIME_DIR").map(of_others);
        Some(Self { pid, name, arguments, user: Credentials { uid, gids }, runtime_dir })
    }

    /// All processes that look like front ends, and all switches.
    pub(crate) fn of_interest() -> Vec<Self> {
        procfs::pids()
            .filter_map(Self::read)
            .filter(|process| process.is_front_end() || process.run_dir().is_some())
            .collect()
    }

    /// Whether it is a wrapper that started the front end whose words it has.
    fn is_wrapper(&self) -> bool {
        ["timeout", "sudo", "su", "nohup", "setsid", "env", "strace", "setpriv"].contains(&self.name.as_str())
    }

    fn is_front_end(&self) -> bool {
        self.arguments.iter().any(|argument| FRONT_END_WORDS.iter().any(|word| argument.contains(word)))
    }

    /// A guest that is its own front end.
    pub(crate) fn is_user_mode_linux(&self) -> bool {
        self.arguments.iter().any(|argument| argument.starts_with(UML_DEVICE))
    }

    /// "qemu-system-x86 (process 12)".
    pub(crate) fn title(&self) -> String {
        format!("{} (process {})", self.name, self.pid)
    }

    /// The sockets of its vhost-user network cards, if it is a front end.
    pub(crate) fn sockets(&self) -> Vec<PathBuf> {
        if !self.is_front_end() || self.is_wrapper() {
            return Vec::new();
        }
        let paths = self
            .arguments
            .iter()
            // A QEMU has character devices for other things, too.
            .filter(|argument| match value(argument, "id") {
                Some(id) => self.arguments.iter().any(|other| is_card_at(other, id)),
                None => true,
            })
            .flat_map(|argument| paths(argument));
        paths.filter(|path| path.is_absolute()).collect()
    }

    /// Whether a path leads it to the same file as this process, as far as can be told: it may have another file
    /// system.
    pub(crate) fn sees(&self, path: &Path) -> bool {
        procfs::sees(self.pid, path)
    }

    /// The way in which its card meets the switch at this socket, according to its command line.
    pub(crate) fn role_at(&self, socket: &Path) -> Role {
        let is_on = |value: &str| ["on", "yes", "true"].contains(&value);
        let of_socket = |argument: &&String| paths(argument).iter().any(|path| path == socket);
        let Some(card) = self.arguments.iter().find(of_socket) else { return Role::Once };
        let is_number = |value: &str| value.parse::<u64>().is_ok_and(|pause| pause > 0);
        if value(card, "server").is_some_and(is_on) || card.split(',').any(|part| part == "server") {
            Role::Listens
        } else if ["reconnect", "reconnect-ms"].iter().any(|key| value(card, key).is_some_and(is_number)) {
            Role::Again
        } else {
            Role::Once
        }
    }

    /// The label under which a security module confines it; `None` if none does, or that is not known.
    pub(crate) fn confinement(&self) -> Option<String> {
        let file = File::open(procfs::dir(self.pid).join("attr/current")).ok()?;
        let mut label = Vec::new();
        file.take(LABEL_BYTES_MAX).read_to_end(&mut label).ok()?;
        confining(&String::from_utf8_lossy(&label))
    }

    /// Whether its guest's memory is shared, according to its command line.
    pub(crate) fn sharing(&self) -> Sharing {
        let program = self.arguments.first().map_or("", String::as_str);
        if program.contains("cloud-hypervisor") {
            let shared = self.arguments.iter().any(|argument| argument.contains("shared=on"));
            return if shared { Sharing::Shared } else { Sharing::Private("--memory without shared=on") };
        }
        if program.contains("qemu") || program.contains("kvm") {
            self.qemu_sharing()
        } else {
            Sharing::Unknown
        }
    }

    fn qemu_sharing(&self) -> Sharing {
        let backends: Vec<&String> =
            self.arguments.iter().filter(|argument| argument.starts_with("memory-backend-")).collect();
        let is_on = |backend: &&&String| match value(backend, "share") {
            Some(share) => ["on", "yes", "true"].contains(&share),
            None => is_shared_by_default(backend),
        };
        let used = |backend: &&String| {
            let id = value(backend, "id").unwrap_or_default();
            let users = [format!("memory-backend={id}"), format!("memdev={id}")];
            self.arguments
                .iter()
                .any(|other| other.split(',').any(|part| users.iter().any(|user| user == part)))
        };
        if let Some(is_shared) = self.shares_by_json() {
            return match is_shared {
                true => Sharing::Shared,
                false => {
                    Sharing::Private("a memory backend that is not shared (libvirt: <access mode='shared'/>)")
                }
            };
        }
        match backends.iter().find(is_on) {
            Some(backend) if used(backend) => Sharing::Shared,
            Some(_) => Sharing::Private(
                "a shared memory backend that nothing uses (-machine memory-backend=ID is missing)",
            ),
            None if backends.is_empty() => Sharing::Private("no memory backend"),
            None => Sharing::Private("a memory backend without share=on"),
        }
    }

    /// Whether a memory backend in JSON, which libvirt writes, is shared; `None` if there is none.
    fn shares_by_json(&self) -> Option<bool> {
        let objects = self.arguments.iter().filter(|argument| argument.starts_with('{'));
        let objects = objects.filter_map(|argument| serde_json::from_str::<Value>(argument).ok());
        let shared = objects.filter_map(|object| {
            let kind = object["qom-type"].as_str().filter(|kind| kind.starts_with("memory-backend-"))?;
            Some(object["share"].as_bool().unwrap_or_else(|| is_shared_by_default(kind)))
        });
        shared.reduce(|one, other| one || other)
    }

    /// The run directory, if this is a `lasthop run` and its directory is known.
    pub(crate) fn run_dir(&self) -> Option<PathBuf> {
        let program = Path::new(self.arguments.first()?).file_name()?.to_str()?;
        if !program.starts_with("lasthop") || !self.arguments.iter().any(|argument| argument == "run") {
            return None;
        }
        let named = |pair: &[String]| (pair[0] == "--dir").then(|| pair[1].clone());
        let joined =
            self.arguments.iter().find_map(|argument| argument.strip_prefix("--dir=").map(str::to_owned));
        let dir = self.arguments.windows(2).find_map(named).or(joined);
        dir.map(PathBuf::from).or_else(|| rundir::default_of(self.user.uid == 0, self.runtime_dir.as_deref()))
    }
}

/// The label of a process, if it can be refused something: of SELinux "system_u:system_r:svirt_t:s0:c1,c2", of AppArmor
/// "libvirt-UUID (enforce)". A profile that only complains refuses nothing.
fn confining(label: &str) -> Option<String> {
    let label = label.trim_end_matches(['\0', '\n']);
    let is_free = label.is_empty() || label.contains("unconfined") || label.ends_with(" (complain)");
    (!is_free).then(|| of_others(label))
}

/// Text that another user chose, made harmless.
fn of_others(text: &str) -> String {
    harmless(text).into_owned()
}

/// Paths of sockets that are in use: a program listens there, or has a guest that connected there. Includes the network
/// namespaces of these processes: each namespace lists only its own sockets, while paths are shared.
pub(crate) fn served_at(processes: &[Process]) -> HashSet<PathBuf> {
    let namespace = |pid: &dyn Display| std::fs::read_link(procfs::dir(pid).join("ns/net")).ok();
    let here = (namespace(&"self"), procfs::text("self", "net/unix"));
    let mut tables = HashMap::from([here]);
    for process in processes {
        let name = namespace(&process.pid);
        tables.entry(name).or_insert_with(|| procfs::text(process.pid, "net/unix"));
    }
    tables.values().flatten().flat_map(|table| served(table)).collect()
}

/// The paths in one table (proc(5), net/unix).
fn served(table: &str) -> impl Iterator<Item = PathBuf> {
    /// The flag __SO_ACCEPTCON, as it is printed.
    const ACCEPTS: &str = "00010000";
    /// The state SS_CONNECTED.
    const CONNECTED: &str = "03";
    table.lines().filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_served = words.get(3) == Some(&ACCEPTS) || words.get(5) == Some(&CONNECTED);
        is_served.then(|| words.get(7).map(PathBuf::from)).flatten()
    })
}

/// A card's way to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// It connects when its VMM starts.
    Once,
    /// It connects until it succeeds, and again after the switch was gone.
    Again,
    /// It waits for the switch to connect.
    Listens,
}

/// A guest's memory by its command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    Unknown,
    Shared,
    /// The private memory that it has.
    Private(&'static str),
}

/// Whether this is the `-netdev` of a vhost-user card at the character device `id`: as users write it, or as JSON,
/// which libvirt writes.
fn is_card_at(argument: &str, id: &str) -> bool {
    if argument.starts_with('{') {
        let Ok(netdev) = serde_json::from_str::<Value>(argument) else { return false };
        return netdev["type"] == "vhost-user" && netdev["chardev"] == id;
    }
    argument.contains("vhost-user") && value(argument, "chardev") == Some(id)
}

/// Whether QEMU shares a backend of this kind without `share=`.
fn is_shared_by_default(backend: &str) -> bool {
    ["memory-backend-memfd", "memory-backend-shm"].iter().any(|kind| backend.starts_with(kind))
}

/// The value of a key in `word,key=value,...`.
fn value<'a>(argument: &'a str, key: &str) -> Option<&'a str> {
    argument.split(',').find_map(|part| part.strip_prefix(key)?.strip_prefix('='))
}

/// Sockets that one argument names.
fn paths(argument: &str) -> Vec<PathBuf> {
    if let Some(device) = argument.strip_prefix(UML_DEVICE) {
        return device.split(':').next().map(PathBuf::from).into_iter().collect();
    }
    ["path", "socket"].iter().filter_map(|key| value(argument, key)).map(PathBuf::from).collect()
}

/// How files are mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mapped {
    Shared,
    Private,
}

/// How a process maps these files; `None` if it maps none of them, or access is denied. One shared mapping is enough: a
/// private one may be left from the start.
pub(super) fn of_process(pid: i32, files: &[FileFacts]) -> Option<Mapped> {
    mapped(&procfs::text(pid, "maps")?, files)
}

fn mapped(maps: &str, files: &[FileFacts]) -> Option<Mapped> {
    let device = |file: &FileFacts| {
        format!("{:02x}:{:02x}", rustix::fs::major(file.device), rustix::fs::minor(file.device))
    };
    let wanted: BTreeSet<(String, u64)> = files.iter().map(|file| (device(file), file.inode)).collect();
    // START-END PERMISSIONS OFFSET DEVICE INODE PATH
    let of_files = maps.lines().filter_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (permissions, _offset, device) = (words.next()?, words.next()?, words.next()?);
        let inode = words.next()?.parse().ok()?;
        wanted.contains(&(device.to_owned(), inode)).then_some(permissions)
    });
    let kinds: Vec<&str> = of_files.collect();
    match kinds.iter().any(|permissions| permissions.ends_with('s')) {
        true => Some(Mapped::Shared),
        false => (!kinds.is_empty()).then_some(Mapped::Private),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(line: &str) -> Process {
        let arguments = line.split_whitespace().map(str::to_owned).collect();
        Process { pid: 7, name: "p".into(), arguments, ..Process::default() }
    }

    const CARD: &str = "-chardev socket,id=c,path=/r/a.sock,reconnect=1 -netdev vhost-user,id=n,chardev=c";

    #[test]
    fn sockets_of_cards_are_found_and_others_are_not() {
        let sockets = |line: &str| process(line).sockets();
        let monitor = "-chardev socket,id=m,path=/r/qmp.sock -mon chardev=m";
        assert_eq!(sockets(&format!("qemu {monitor} {CARD}")), [PathBuf::from("/r/a.sock")]);
        assert_eq!(
            sockets("testpmd --vdev net_virtio_user0,path=/r/b.sock,queues=1"),
            [PathBuf::from("/r/b.sock")]
        );
        assert_eq!(sockets("ch --net vhost_user=true,socket=/r/c.sock"), [PathBuf::from("/r/c.sock")]);
        assert_eq!(sockets("linux.uml mem=64M virtio_uml.device=/r/d.sock:1"), [PathBuf::from("/r/d.sock")]);
        assert!(sockets(&format!("qemu {monitor}")).is_empty());
        let libvirts = r#"-chardev socket,id=charnet0,path=/r/e.sock,reconnect=1 -netdev {"type":"vhost-user","chardev":"charnet0","id":"hostnet0"}"#;
        assert_eq!(sockets(&format!("qemu {monitor} {libvirts}")), [PathBuf::from("/r/e.sock")]);
    }

    #[test]
    fn sharing_is_read_off_a_command_line() {
        let sharing = |line: &str| process(&format!("/usr/bin/{line} {CARD}")).sharing();
        let shared = "-object memory-backend-memfd,id=m,size=1G,share=on";
        let machine = "-machine q35,memory-backend=m";
        assert_eq!(sharing(&format!("qemu-system-x86_64 {shared} {machine}")), Sharing::Shared);
        assert!(
            matches!(sharing(&format!("qemu-system-x86_64 {shared}")), Sharing::Private(why) if why.contains("nothing uses"))
        );
        let private = "-object memory-backend-memfd,id=m,size=1G,share=off";
        assert_eq!(
            sharing(&format!("qemu-system-x86_64 {private} {machine}")),
            Sharing::Private("a memory backend without share=on")
        );
        for (backend, is_shared) in [
            ("memory-backend-memfd,id=m,size=1G", true),
            ("memory-backend-shm,id=m,size=1G", true),
            ("memory-backend-memfd,id=m,size=1G,share=no", false),
            ("memory-backend-memfd,id=m,size=1G,share=false", false),
            ("memory-backend-file,id=m,size=1G,mem-path=/dev/shm", false),
            ("memory-backend-ram,id=m,size=1G", false),
            (r#"{"qom-type":"memory-backend-memfd","id":"m","size":1073741824}"#, true),
            (r#"{"qom-type":"memory-backend-memfd","id":"m","share":true}"#, true),
            (r#"{"qom-type":"memory-backend-memfd","id":"m","share":false}"#, false),
            (r#"{"qom-type":"memory-backend-ram","id":"pc.ram","size":1073741824}"#, false),
        ] {
            let told = sharing(&format!("qemu-system-x86_64 -object {backend} {machine}"));
            assert_eq!(told == Sharing::Shared, is_shared, "{backend}: {told:?}");
            assert_eq!(matches!(told, Sharing::Private(_)), !is_shared, "{backend}: {told:?}");
        }
        assert_eq!(sharing("qemu-system-x86_64 -m 1G"), Sharing::Private("no memory backend"));
        assert_eq!(sharing("testpmd"), Sharing::Unknown);
        assert_eq!(sharing("cloud-hypervisor --memory size=1G,shared=on"), Sharing::Shared);
    }

    #[test]
    fn the_role_of_a_card_is_read_off_its_character_device() {
        let role = |words: &str| {
            let chardev = format!("-chardev socket,id=c,path=/r/a.sock{words}");
            let line = format!("qemu -chardev socket,id=m,path=/r/m.sock,server=on {chardev}");
            process(&line).role_at(Path::new("/r/a.sock"))
        };
        assert_eq!(role(""), Role::Once);
        for words in [",reconnect=0", ",server=off", ",reconnect-ms=0"] {
            assert_eq!(role(words), Role::Once, "{words}");
        }
        for words in [",reconnect=1", ",reconnect-ms=1000", ",server=off,reconnect=10"] {
            assert_eq!(role(words), Role::Again, "{words}");
        }
        for words in [",server=on", ",server=on,wait=off", ",server"] {
            assert_eq!(role(words), Role::Listens, "{words}");
        }
    }

    #[test]
    fn labels_that_confine_are_told_from_others() {
        let selinux = "system_u:system_r:svirt_t:s0:c107,c434";
        assert_eq!(confining(&format!("{selinux}\0")).as_deref(), Some(selinux));
        let apparmor = "libvirt-1b2c (enforce)";
        assert_eq!(confining(&format!("{apparmor}\n")).as_deref(), Some(apparmor));
        for free in ["", "\0", "unconfined\n", "unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023\0"] {
            assert_eq!(confining(free), None, "{free}");
        }
        assert_eq!(confining("qemu (complain)\n"), None);
        assert_eq!(confining("a\x1b[2Jb").as_deref().map(|label| label.contains('\x1b')), Some(false));
    }

    #[test]
    fn a_switch_is_known_by_its_words() {
        assert_eq!(process("/usr/bin/lasthop run --dir /r").run_dir(), Some(PathBuf::from("/r")));
        assert_eq!(process("lasthop --dir=/r run").run_dir(), Some(PathBuf::from("/r")));
        assert_eq!(process("lasthop doctor --dir /r").run_dir(), None);
        assert_eq!(process("lasthop run").run_dir(), Some(PathBuf::from("/run/lasthop")));
        let user = |runtime_dir: Option<&str>| Process {
            user: Credentials { uid: 7, gids: Vec::new() },
            runtime_dir: runtime_dir.map(str::to_owned),
            ..process("lasthop run")
        };
        assert_eq!(user(Some("/run/user/7")).run_dir(), Some(PathBuf::from("/run/user/7/lasthop")));
        assert_eq!(user(None).run_dir(), None);
    }

    #[test]
    fn sockets_of_use_are_told_from_others() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                     00000000a: 00000002 00000000 00010000 0001 01 1 /r/listens.sock\n\
                     00000000b: 00000003 00000000 00000000 0001 03 2 /r/connected.sock\n\
                     00000000c: 00000002 00000000 00000000 0001 01 3 /r/only-bound.sock\n\
                     00000000d: 00000002 00000000 00010000 0001 01 4\n";
        let paths: Vec<PathBuf> = served(table).collect();
        assert_eq!(paths, ["/r/listens.sock", "/r/connected.sock"].map(PathBuf::from));
    }

    #[test]
    fn files_are_found_by_device_and_inode() {
        let line = |permissions: &str, device: &str, inode: u64| {
            format!(
                "7f0000000000-7f0000100000 {permissions} 00000000 {device} {inode}    /memfd:mem (deleted)\n"
            )
        };
        let file = |inode| FileFacts { device: rustix::fs::makedev(0, 1), inode };
        let look = |maps: &str| mapped(maps, &[file(7), file(9)]);
        assert_eq!(look(""), None);
        assert_eq!(look(&line("rw-s", "00:01", 8)), None, "another file");
        assert_eq!(look(&line("rw-s", "00:02", 7)), None, "another device");
        assert_eq!(look(&line("rw-s", "00:01", 7)), Some(Mapped::Shared));
        assert_eq!(look(&line("rw-p", "00:01", 9)), Some(Mapped::Private));
        assert_eq!(look(&(line("rw-p", "00:01", 9) + &line("rw-s", "00:01", 7))), Some(Mapped::Shared));
    }
}
