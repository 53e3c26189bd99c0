//! Answers as text for people. Nothing here writes anything.

mod libvirt;
mod mac;
mod qemu;
mod stats;
mod table;
mod vlan;
mod vnic;

pub(crate) use libvirt::libvirt;
pub(crate) use qemu::{qemu, qemu_hint};
pub(crate) use stats::{conservation, stats};
pub(crate) use vlan::{fdb, vlans};
pub(crate) use vnic::{vnic, vnic_added, vnic_list};

use crate::report::VersionReport;

/// This program and the running switch.
pub(crate) fn version(own: &str, running: Option<&VersionReport>) -> String {
    match running {
        Some(VersionReport { version, pid, module }) => {
            format!("lasthop {own}\nrunning: {version} (process {pid}, module {module})")
        }
        None => format!("lasthop {own}\nrunning: none"),
    }
}
