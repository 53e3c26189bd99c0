//! One group below our own, and a group for each share below that. Nothing else is written.
//!
//! ```text
//!   version 1                            version 2, with Delegate=cpu
//!   own                                  own           + cpu in cgroup.subtree_control
//!    └ NAME          cpu.shares           └ NAME       all processes; cpu.weight; + cpu in cgroup.subtree_control
//!       │            all processes           │
//!       └ worker0.7  cpu.shares, tasks       └ worker0.7   cgroup.type threaded, cpu.weight, cgroup.threads
//! ```

use std::io;
use std::path::{Path, PathBuf};

use lasthop_runtime::fault::Fault;
use rustix::io::Errno;

use crate::bounds::LISTINGS_MAX;
use crate::hierarchy::{Hierarchy, Version, has_cpu};

const PROCESSES: &str = "cgroup.procs";
const ENABLED: &str = "cgroup.subtree_control";

/// Our group, which may not exist yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    pub(crate) version: Version,
    own: PathBuf,
    pub(crate) dir: PathBuf,
}

/// Whether a process or thread is in its group now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    Yes,
    /// It has ended.
    Gone,
}

impl Group {
    pub(crate) fn new(hierarchy: &Hierarchy, name: &str) -> Self {
        let Hierarchy { version, own } = hierarchy.clone();
        Self { version, dir: own.join(name), own }
    }

    pub(crate) fn exists(&self) -> bool {
        self.dir.is_dir()
    }

    /// Makes the group with all of our processes in it. One of an earlier supervisor is used.
    pub(crate) fn make(&self, weight: u32, is_ours: impl Fn(u32) -> bool) -> Result<(), Fault> {
        make_dir(&self.dir)?;
        // As a killed supervisor left it, the group of version 2 takes no process: it passes a controller on, and so does the
        // one above, in which this process is.
        self.take_controllers_back()?;
        self.take_process(std::process::id())?;
        self.take_neighbours(is_ours)?;
        if self.version == Version::Two {
            // A group of version 2 gives controllers to those below it once it has no process itself.
            enable(&self.own)?;
        }
        write(&self.dir.join(self.version.weight_file()), weight.min(self.version.weight_max()))
    }

    /// Moves our processes that were started beside this one: the children of children, too. Others may come meanwhile.
    fn take_neighbours(&self, is_ours: impl Fn(u32) -> bool) -> Result<(), Fault> {
        for _ in 0..LISTINGS_MAX {
            let ours: Vec<u32> =
                members(&self.own.join(PROCESSES))?.into_iter().filter(|pid| is_ours(*pid)).collect();
            if ours.is_empty() {
                break;
            }
            for pid in ours {
                self.take_ours(pid, &is_ours)?;
            }
        }
        Ok(())
    }

    /// Moves a process of ours into the group. Its number may have become another's meanwhile: that one is returned.
    pub(crate) fn take_ours(&self, pid: u32, is_ours: impl Fn(u32) -> bool) -> Result<(), Fault> {
        if self.take_process(pid)? == Moved::Yes && !is_ours(pid) {
            self.return_process(pid)?;
        }
        Ok(())
    }

    /// Moves a process into the group, with all of its threads.
    fn take_process(&self, pid: u32) -> Result<Moved, Fault> {
        move_to(&self.dir.join(PROCESSES), pid)
    }

    /// Moves a process out of the group, to where we were started.
    fn return_process(&self, pid: u32) -> Result<Moved, Fault> {
        move_to(&self.own.join(PROCESSES), pid)
    }

    /// Moves a thread out of the group, to where we were started: for a stranger's.
    pub(crate) fn return_thread(&self, tid: u32) -> Result<Moved, Fault> {
        move_to(&self.own.join(self.version.threads_file()), tid)
    }

    /// Makes a share.
    pub(crate) fn make_share(&self, name: &str, weight: u32) -> Result<(), Fault> {
        let dir = self.dir.join(name);
        make_dir(&dir)?;
        if self.version == Version::Two {
            write(&dir.join("cgroup.type"), "threaded")?;
            enable(&self.dir)?;
        }
        self.set_weight(name, weight)
    }

    pub(crate) fn set_weight(&self, name: &str, weight: u32) -> Result<(), Fault> {
        write(&self.dir.join(name).join(self.version.weight_file()), weight.min(self.version.weight_max()))
    }

    /// Moves a thread of a process of the group into a share.
    pub(crate) fn take_thread(&self, share: &str, tid: u32) -> Result<Moved, Fault> {
        move_to(&self.dir.join(share).join(self.version.threads_file()), tid)
    }

    /// Removes a share; its threads stay in the group.
    pub(crate) fn remove_share(&self, name: &str) -> Result<(), Fault> {
        let dir = self.dir.join(name);
        empty(&dir.join(self.version.threads_file()), &self.dir.join(self.version.threads_file()))?;
        remove_dir(&dir)
    }

    /// The names of all shares.
    pub(crate) fn shares(&self) -> Vec<String> {
        directories(&self.dir)
    }

    /// Removes the shares and the group. All processes of it continue where we were started.
    pub(crate) fn remove(&self) -> Result<(), Fault> {
        if !self.exists() {
            return Ok(());
        }
        self.take_controllers_back()?;
        empty(&self.dir.join(PROCESSES), &self.own.join(PROCESSES))?;
        remove_dir(&self.dir)
    }

    /// Removes the shares; with version 2 no group passes on the controller after that.
    fn take_controllers_back(&self) -> Result<(), Fault> {
        for share in self.shares() {
            self.remove_share(&share)?;
        }
        if self.version == Version::Two {
            disable(&self.dir)?;
            // Others may have groups beside ours.
            if directories(&self.own).len() <= 1 {
                disable(&self.own)?;
            }
        }
        Ok(())
    }
}

/// Moves all members of one list to another.
fn empty(from: &Path, to: &Path) -> Result<(), Fault> {
    for _ in 0..LISTINGS_MAX {
        let members = members(from)?;
        if members.is_empty() {
            break;
        }
        for member in members {
            move_to(to, member)?;
        }
    }
    Ok(())
}

/// The processes or threads of a list; none if there is no list.
fn members(file: &Path) -> Result<Vec<u32>, Fault> {
    match std::fs::read_to_string(file) {
        // 0 is a process that another PID namespace hides.
        Ok(text) => {
            Ok(text.lines().filter_map(|line| line.parse().ok()).filter(|number| *number > 0).collect())
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(failed("read", file, &error)),
    }
}

fn move_to(file: &Path, number: u32) -> Result<Moved, Fault> {
    match std::fs::write(file, number.to_string()) {
        Ok(()) => Ok(Moved::Yes),
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(Moved::Gone),
        Err(error) => Err(failed("write to", file, &error)),
    }
}

/// Gives the cpu controller to the groups below this one.
fn enable(dir: &Path) -> Result<(), Fault> {
    if is_enabled(dir) { Ok(()) } else { write(&dir.join(ENABLED), "+cpu") }
}

fn disable(dir: &Path) -> Result<(), Fault> {
    if is_enabled(dir) { write(&dir.join(ENABLED), "-cpu") } else { Ok(()) }
}

fn is_enabled(dir: &Path) -> bool {
    std::fs::read_to_string(dir.join(ENABLED)).is_ok_and(|enabled| has_cpu(&enabled, ' '))
}

fn make_dir(dir: &Path) -> Result<(), Fault> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(failed("make", dir, &error)),
        _ => Ok(()),
    }
}

fn remove_dir(dir: &Path) -> Result<(), Fault> {
    match std::fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed("remove", dir, &error)),
        _ => Ok(()),
    }
}

fn directories(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok);
    let dirs = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut names: Vec<String> = dirs.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn write(file: &Path, text: impl ToString) -> Result<(), Fault> {
    std::fs::write(file, text.to_string()).map_err(|error| failed("write to", file, &error))
}

/// The sentence about a failed call, with the remedy.
fn failed(what: &str, path: &Path, error: &io::Error) -> Fault {
    let remedy = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS) => {
            "start Lasthop as root, or as a service with Delegate=cpu that may write there (docs/user/operating.md, Shares)"
        }
        Some(Errno::BUSY) => {
            "another process is in that cgroup: start Lasthop in one of its own, as a service with Delegate=cpu"
        }
        Some(Errno::NOSPC | Errno::AGAIN) => "raise the limit of cgroups above it (cgroup.max.descendants)",
        _ => "this kernel or cgroup does not permit it",
    };
    let shown = path.display();
    Fault::refused(format!("cannot {what} {shown}: {error}; {remedy}, or set shares = \"none\""))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::FakeHost;

    fn group(host: &FakeHost, version: Version) -> Group {
        Group::new(&Hierarchy { version, own: host.at("own") }, "lasthop-x")
    }

    #[test]
    fn shares_of_version_one_are_groups_with_tasks() {
        let host = FakeHost::new();
        host.file("own/tasks", "");
        let group = group(&host, Version::One);
        group.make(1 << 20, |_| false).expect("made");
        assert_eq!(host.read("own/lasthop-x/cpu.shares"), "262144", "the most that the kernel takes");
        assert_eq!(host.read("own/lasthop-x/cgroup.procs"), std::process::id().to_string());
        group.make_share("worker0.7", 1024).expect("made");
        assert_eq!(group.take_thread("worker0.7", 7).expect("moved"), Moved::Yes);
        group.set_weight("worker0.7", 512).expect("set");
        assert_eq!(host.read("own/lasthop-x/worker0.7/tasks"), "7");
        assert_eq!(host.read("own/lasthop-x/worker0.7/cpu.shares"), "512");
        assert_eq!(group.shares(), ["worker0.7"]);
    }

    #[test]
    fn shares_of_version_two_are_threaded_and_the_controller_is_passed_down() {
        let host = FakeHost::new();
        host.file("own/cgroup.subtree_control", "");
        let group = group(&host, Version::Two);
        group.make(200, |_| false).expect("made");
        assert_eq!(host.read("own/cgroup.subtree_control"), "+cpu");
        assert_eq!(host.read("own/lasthop-x/cpu.weight"), "200");
        group.make_share("io-0.9", 100).expect("made");
        assert_eq!(host.read("own/lasthop-x/cgroup.subtree_control"), "+cpu");
        assert_eq!(host.read("own/lasthop-x/io-0.9/cgroup.type"), "threaded");
        group.take_thread("io-0.9", 9).expect("moved");
        assert_eq!(host.read("own/lasthop-x/io-0.9/cgroup.threads"), "9");
    }

    #[test]
    fn our_processes_beside_this_one_come_along_and_strangers_stay() {
        let host = FakeHost::new();
        host.file("own/cgroup.procs", "5\n0\n6\n");
        let group = group(&host, Version::Two);
        let asked = std::cell::Cell::new(0);
        group.make(100, |pid| pid == 6 && asked.replace(asked.get() + 1) < 2).expect("made");
        assert_eq!(host.read("own/lasthop-x/cgroup.procs"), "6");
        assert_eq!(host.read("own/cgroup.subtree_control"), "+cpu");
    }

    #[test]
    fn errors_name_the_file_and_the_remedy() {
        let host = FakeHost::new();
        let group = group(&host, Version::One);
        let why = group.make(1, |_| false).expect_err("own is missing").message;
        assert!(why.contains("own/lasthop-x: ") && why.ends_with("set shares = \"none\""), "{why}");
        host.file("own/tasks", "");
        group.make(1, |_| false).expect("made");
        // A directory of files cannot be removed, unlike a cgroup; so this one stays.
        let why = group.remove().expect_err("not empty").message;
        assert!(why.starts_with("cannot remove") && why.contains("lasthop-x"), "{why}");
        for (errno, remedy) in [
            (Errno::ROFS, "Delegate=cpu that may write"),
            (Errno::BUSY, "one of its own"),
            (Errno::INVAL, "this kernel"),
        ] {
            let why = failed("write to", Path::new("/f"), &errno.into()).message;
            assert!(why.contains(remedy) && why.contains("/f"), "{why}");
        }
    }
}
