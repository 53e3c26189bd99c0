//! Running daemons of Open vSwitch, and whether they use the library.

use std::path::{Path, PathBuf};

use lasthop_runtime::procfs;

use super::{PRELOAD_VARIABLE, SOCKET_VARIABLE};

/// Default socket of the library (`ovs-glue`).
const SOCKET: &str = "/run/lasthop/datapath.sock";

/// A running ovs-vswitchd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Daemon {
    pub(super) pid: i32,
    /// The switch's socket for its library; `None` if it has no library and uses the kernel.
    pub(super) socket: Option<PathBuf>,
}

/// Readable daemons that could use the switch whose control interface is at `own`. Daemons in other network and mount
/// namespaces see neither its devices nor its socket, and the same path may be another switch's there.
pub(super) fn daemons(own: &Path) -> Vec<Daemon> {
    let is_ours = |daemon: &Daemon| daemon.socket.as_deref() == Some(own) && procfs::sees(daemon.pid, own);
    let is_beside = |daemon: &Daemon| ["net", "mnt"].iter().all(|kind| is_shared(daemon.pid, kind));
    let is_near = |daemon: &Daemon| is_ours(daemon) || is_beside(daemon);
    procfs::pids().filter_map(daemon).filter(is_near).collect()
}

/// Whether a process shares a namespace with this one.
fn is_shared(pid: i32, kind: &str) -> bool {
    let namespace = |dir: PathBuf| std::fs::read_link(dir.join("ns").join(kind)).ok();
    namespace(procfs::dir(pid)) == namespace(procfs::dir("self"))
}

fn daemon(pid: i32) -> Option<Daemon> {
    // Its binary for DPDK has a longer name.
    if !procfs::text(pid, "comm")?.starts_with("ovs-vswitchd") {
        return None;
    }
    Some(Daemon { pid, socket: socket(&procfs::text(pid, "environ")?) })
}

fn socket(environment: &str) -> Option<PathBuf> {
    let value = |name: &str| procfs::variable(environment, name);
    value(PRELOAD_VARIABLE).filter(|libraries| libraries.contains("lasthop_ovs_glue"))?;
    Some(value(SOCKET_VARIABLE).unwrap_or(SOCKET).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_tells_whose_datapath_it_has() {
        let library = "HOME=/\0LD_PRELOAD=/usr/lib/lasthop/liblasthop_ovs_glue.so\0";
        let diverted = format!("{library}LASTHOP_DATAPATH=/run/x.sock\0");
        assert_eq!(socket(&diverted), Some(PathBuf::from("/run/x.sock")));
        assert_eq!(socket(library), Some(PathBuf::from(SOCKET)));
        assert_eq!(socket("LD_PRELOAD=/usr/lib/other.so\0LASTHOP_DATAPATH=/run/x.sock\0"), None);
        assert_eq!(socket("HOME=/\0"), None);
    }
}
