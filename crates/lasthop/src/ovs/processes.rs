//! Running daemons of Open vSwitch, and whether they have the library.

use std::path::{Path, PathBuf};

use super::{PRELOAD_VARIABLE, SOCKET_VARIABLE};

/// Where the library looks that is told nothing (`ovs-glue`).
const SOCKET: &str = "/run/lasthop/datapath.sock";

/// A running ovs-vswitchd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Daemon {
    pub(super) pid: i32,
    /// Where its library looks for the switch; none if it has no library and uses the kernel.
    pub(super) socket: Option<PathBuf>,
}

/// All that may be looked at.
pub(super) fn daemons() -> Vec<Daemon> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| daemon(pid, &PathBuf::from(format!("/proc/{pid}")))).collect()
}

fn daemon(pid: i32, dir: &Path) -> Option<Daemon> {
    let read = |name: &str| std::fs::read(dir.join(name)).ok();
    let name = String::from_utf8_lossy(&read("comm")?).into_owned();
    // Another binary of it for DPDK has a longer name.
    if !name.starts_with("ovs-vswitchd") {
        return None;
    }
    let environment = String::from_utf8_lossy(&read("environ")?).into_owned();
    Some(Daemon { pid, socket: socket(&environment) })
}

fn socket(environment: &str) -> Option<PathBuf> {
    let value = |name: &str| {
        environment.split('\0').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
    };
    value(PRELOAD_VARIABLE).filter(|libraries| libraries.contains("lasthop_ovs_glue"))?;
    Some(value(SOCKET_VARIABLE).unwrap_or_else(|| SOCKET.to_owned()).into())
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
