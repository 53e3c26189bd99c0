//! The cgroup that this process is in, as `/proc/self/cgroup` and `/proc/self/mountinfo` show it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use lasthop_runtime::fault::Fault;

/// The version of a cgroup hierarchy, with its names of files and its scale of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    One,
    Two,
}

impl Version {
    pub(crate) const fn weight_file(self) -> &'static str {
        match self {
            Self::One => "cpu.shares",
            Self::Two => "cpu.weight",
        }
    }

    pub(crate) const fn threads_file(self) -> &'static str {
        match self {
            Self::One => "tasks",
            Self::Two => "cgroup.threads",
        }
    }

    /// The weight of a thread at nice 0, and of a group by default.
    pub(crate) const fn credit(self) -> u32 {
        match self {
            Self::One => 1024,
            Self::Two => 100,
        }
    }

    /// The largest weight that the kernel takes.
    pub(crate) const fn weight_max(self) -> u32 {
        match self {
            Self::One => 262_144,
            Self::Two => 10_000,
        }
    }
}

/// A directory with a cpu controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    pub(crate) version: Version,
    /// The directory of the group in which this process was started.
    pub(crate) own: PathBuf,
}

/// A mounted hierarchy.
struct Mounted<'a> {
    version: Version,
    /// The group at the mount point.
    root: PathBuf,
    at: PathBuf,
    controllers: &'a str,
}

impl Hierarchy {
    /// The hierarchy whose cpu controller this process can use. `name` is the group's: a process that is in it was started
    /// from the group above. `proc` is `/proc`, except in tests.
    pub(crate) fn find(proc: &Path, name: &str) -> Result<Self, Fault> {
        let read = |file: &str| {
            let path = proc.join(file);
            std::fs::read_to_string(&path).map_err(|error| {
                Fault::refused(format!("cannot read {}: {error}; mount /proc", path.display()))
            })
        };
        let (groups, mounts) = (read("self/cgroup")?, read("self/mountinfo")?);
        let of = |version: Version| {
            let mounted = mounts.lines().filter_map(mounted).find(|mounted| {
                mounted.version == version && (version == Version::Two || has_cpu(mounted.controllers, ','))
            })?;
            let own = groups.lines().find_map(|line| group_of(line, version))?;
            Some((mounted, own))
        };
        let mut outside = None;
        for version in [Version::Two, Version::One] {
            let Some((mounted, group)) = of(version) else { continue };
            let Some(own) = mounted.directory(group) else {
                outside = Some(group);
                continue;
            };
            let own = if own.ends_with(name) { own.parent().unwrap_or(&own).to_owned() } else { own };
            if version == Version::One || has_cpu(&controllers(&own), ' ') {
                return Ok(Self { version, own });
            }
        }
        Err(Fault::refused(match outside {
            Some(group) => format!(
                "the cgroup {group} of this process is not in the mounted hierarchy: mount its own at /sys/fs/cgroup, or set shares = \"none\""
            ),
            None => "no cgroup of this process has the cpu controller: start the service with Delegate=cpu, or mount the cpu controller (cgroup v1), or set shares = \"none\"".to_owned(),
        }))
    }
}

impl Mounted<'_> {
    fn directory(&self, group: &str) -> Option<PathBuf> {
        let below = Path::new(group).strip_prefix(&self.root).ok()?;
        // A group outside of the cgroup namespace is shown with "..".
        let is_plain = below.components().all(|part| matches!(part, Component::Normal(_)));
        is_plain.then(|| if below.as_os_str().is_empty() { self.at.clone() } else { self.at.join(below) })
    }
}

/// The controllers that the group above enables for this one.
fn controllers(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("cgroup.controllers")).unwrap_or_default()
}

pub(crate) fn has_cpu(controllers: &str, separator: char) -> bool {
    controllers.trim().split(separator).any(|controller| controller == "cpu")
}

/// The group of a line of `/proc/self/cgroup`, if it is of this hierarchy: `1:cpu,cpuacct:/a` or `0::/a`.
fn group_of(line: &str, version: Version) -> Option<&str> {
    let mut fields = line.splitn(3, ':');
    let (number, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
    let is_it = match version {
        Version::One => has_cpu(controllers, ','),
        Version::Two => number == "0" && controllers.is_empty(),
    };
    is_it.then_some(group)
}

/// A line of `/proc/self/mountinfo` that is a cgroup hierarchy: proc(5).
fn mounted(line: &str) -> Option<Mounted<'_>> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, at) = (unescaped(mount.next()?), unescaped(mount.next()?));
    let mut kind = kind.split(' ');
    let version = match kind.next()? {
        "cgroup" => Version::One,
        "cgroup2" => Version::Two,
        _ => return None,
    };
    Some(Mounted { version, root, at, controllers: kind.nth(1).unwrap_or_default() })
}

/// A path without the kernel's escapes, as \040 for a space.
fn unescaped(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        let octal =
            after.get(..3).filter(|_| *byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                bytes.push(escaped);
                rest = &after[3..];
            }
            None => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    PathBuf::from(OsStr::from_bytes(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::FakeHost;

    #[test]
    fn version_two_is_preferred_where_it_has_the_controller() {
        let host = FakeHost::new();
        host.groups("4:cpu,cpuacct:/old\n0::/system.slice/lasthop.service\n");
        host.mounts(&[("/", "v1 cpu", "cgroup", "rw,cpu,cpuacct"), ("/", "v2", "cgroup2", "rw")]);
        let found = |name| Hierarchy::find(&host.proc(), name).expect("found");
        assert_eq!(found("x"), Hierarchy { version: Version::One, own: host.at("v1 cpu/old") });
        host.file("v2/system.slice/lasthop.service/cgroup.controllers", "cpu pids\n");
        assert_eq!(
            found("x"),
            Hierarchy { version: Version::Two, own: host.at("v2/system.slice/lasthop.service") }
        );
        host.file("v2/system.slice/cgroup.controllers", "cpuset\n");
        assert_eq!(found("lasthop.service").own, host.at("v1 cpu/old"), "that of the group above counts");
    }

    #[test]
    fn a_process_that_was_started_in_the_group_does_not_nest_another() {
        let host = FakeHost::new();
        host.groups("1:cpu:/a/lasthop-x\n");
        host.mounts(&[("/", "v1", "cgroup", "rw,cpu")]);
        assert_eq!(Hierarchy::find(&host.proc(), "lasthop-x").expect("found").own, host.at("v1/a"));
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_mount_point() {
        let host = FakeHost::new();
        host.groups("1:cpu:/docker/7/in\n");
        host.mounts(&[("/docker/7", "v1", "cgroup", "rw,cpu")]);
        assert_eq!(Hierarchy::find(&host.proc(), "x").expect("found").own, host.at("v1/in"));
        host.groups("1:cpu:/docker/8\n");
        let outside = Hierarchy::find(&host.proc(), "x").expect_err("not mounted").message;
        assert!(outside.contains("/docker/8") && outside.contains("shares = \"none\""), "{outside}");
        host.groups("1:cpu:/docker/7/../..\n");
        assert!(Hierarchy::find(&host.proc(), "x").is_err());
    }

    #[test]
    fn without_a_controller_the_error_names_the_remedy() {
        let host = FakeHost::new();
        host.groups("2:cpuset:/\n0::/\n");
        host.mounts(&[
            ("/", "v2", "cgroup2", "rw"),
            ("/", "set", "cgroup", "rw,cpuset"),
            ("/", "tmp", "tmpfs", "rw"),
        ]);
        let why = Hierarchy::find(&host.proc(), "x").expect_err("no controller").message;
        assert!(why.contains("Delegate=cpu") && why.contains("shares = \"none\""), "{why}");
        let why = Hierarchy::find(&host.at("nowhere"), "x").expect_err("no proc").message;
        assert!(why.contains("nowhere/self/cgroup"), "{why}");
    }
}
