//! Formats answers as text. Nothing here writes output.

mod acl;
mod config;
mod explain;
mod fold;
mod guest_port;
mod placement;
mod port;
mod profile;
mod profile_svg;
mod prometheus;
mod rates;
mod sched;
mod sched_table;
mod state;
mod stats;
mod switch;
mod table;
mod vlan;
mod vmm;
#[cfg(test)]
mod widths;

pub(crate) use acl::{acl, acl_added};
pub(crate) use config::config;
pub(crate) use explain::explanation;
pub(crate) use fold::{folded, for_screen};
pub(crate) use placement::measured;
pub(crate) use port::{port, port_added, port_list, port_set};
pub(crate) use profile::profile;
pub(crate) use profile_svg::profile_svg;
pub(crate) use prometheus::prometheus;
pub(crate) use rates::{Sort, View, rates};
pub(crate) use sched::{sched, sched_trace};
pub(crate) use sched_table::sched_table;
pub(crate) use state::StateWord;
pub(crate) use stats::{conservation, stats, workers};
pub(crate) use switch::{switch_added, switch_list};
pub(crate) use vlan::{fdb, vlans};
pub(crate) use vmm::{
    TESTPMD_HINT, cloud_hypervisor, cloud_hypervisor_hint, libvirt, libvirt_hint, qemu, qemu_hint, testpmd,
};

use lasthop_api::report::{SandboxReport, VersionReport};
use lasthop_runtime::sandbox::summary;

/// The versions of this program and of the running switch, or why that is unknown.
pub(crate) fn version(own: &str, running: Option<&VersionReport>, fault: Option<&str>) -> String {
    match (running, fault) {
        (Some(VersionReport { version, pid, module, driver_pid, sandboxes }), _) => {
            let driver = driver_pid.map_or_else(String::new, |pid| format!(", driver process {pid}"));
            let sandbox = |one: &SandboxReport| {
                format!("\nsandbox of the {} process: {}", one.process, summary(&one.layers))
            };
            let sandboxes: String = sandboxes.iter().map(sandbox).collect();
            format!("lasthop {own}\nrunning: {version} (process {pid}, module {module}{driver}){sandboxes}")
        }
        (None, Some(fault)) => format!("lasthop {own}\nrunning: not known: {fault}"),
        (None, None) => format!("lasthop {own}\nrunning: none"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use lasthop_api::port;
    use lasthop_api::report::PortStatus;

    /// A vhost-user port without a guest.
    pub(super) fn guest(text: &str, socket: &str) -> PortStatus {
        let spec = port::vnic(text).expect("a vhost-user port");
        PortStatus::of_guest(&spec, PathBuf::from(socket), "waiting for guest")
    }
}
