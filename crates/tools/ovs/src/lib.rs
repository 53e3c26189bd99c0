//! The stock Open vSwitch, with a switch as its datapath: `lasthop ovs`.
//!
//! **Purpose.** [`run()`] starts the system's Open vSwitch in the foreground, [`Unit`] makes its service use the switch, and [`exec`] runs one
//! of its tools. Programs that use the kernel's datapath are started with a preloaded library (`ovs-glue`), which connects them to the
//! switch's control interface instead. [`relay()`] makes vnics of the interfaces that OpenStack and libvirt add for OVS-DPDK. [`Status`] names the
//! parts that are missing, and [`Bridges`] has the VLANs of bridges, for `lasthop doctor`.
//!
//! **Contract.** Nothing of Open vSwitch is changed but the drop-in that [`Unit`] writes and removes. A message of the database that the relay
//! does not understand passes unchanged. Messages and bytes that wait are bounded. Errors are one sentence with the remedy.
//!
//! **Not checked.** Open vSwitch's programs and its database: they belong to the administrator. Specifications of vnics: the supervisor decides.
//!
//! **Threading.** One thread; [`run()`] and [`relay()`] have it until a signal comes.
//!
//! ```text
//!   ovs-vsctl ──> ovsdb-server <── relay <── ovs-vswitchd ── ovs-glue ──> datapath.sock
//!                                    └── port.add, port.del ──> control.sock
//! ```
#![forbid(unsafe_code)]

mod bridges;
mod install;
mod programs;
mod relay;
mod run;
mod status;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub use bridges::{BridgePort, Bridges, PortNeighbours};
pub use install::{Unit, UnitChange};
pub use relay::{Ask, VhostUser, serve as relay};
pub use run::{Places, run};
pub use status::{ControlledVnic, Status};

use lasthop_api::rundir::datapath_socket;
use lasthop_runtime::fault::Fault;

/// Names the switch's socket for the library.
const SOCKET_VARIABLE: &str = "LASTHOP_DATAPATH";
/// Names the library for the loader.
const PRELOAD_VARIABLE: &str = "LD_PRELOAD";
/// Tells the other commands the database of an ovs-vswitchd, which may be connected to a relay.
const DATABASE_VARIABLE: &str = "LASTHOP_OVSDB";

/// Makes a program use the switch in `dir` instead of the kernel's datapath.
fn divert(command: &mut Command, dir: &Path) -> Result<(), Fault> {
    command.env(PRELOAD_VARIABLE, programs::library()?).env(SOCKET_VARIABLE, datapath_socket(dir));
    Ok(())
}

/// The output of a tool of Open vSwitch; `None` if it cannot run, or fails.
fn output_of(mut tool: Command) -> Option<String> {
    let output = tool.stdin(Stdio::null()).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Executes a program with the switch in `dir` as its datapath. Returns only on failure.
pub fn exec(dir: &Path, words: &[String]) -> Fault {
    let Some((program, arguments)) = words.split_first() else {
        return Fault::params("which command? for example: lasthop ovs exec ovs-dpctl show");
    };
    let found = programs::find(program).unwrap_or_else(|| PathBuf::from(program));
    let mut command = Command::new(&found);
    if let Err(fault) = divert(&mut command, dir) {
        return fault;
    }
    let error = command.args(arguments).exec();
    Fault::params(format!("cannot run {}: {error}", found.display()))
}
