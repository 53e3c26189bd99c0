//! Answers as text for people. Nothing here writes anything.

mod change;
mod cloud_hypervisor;
mod config;
mod libvirt;
mod mac;
mod plan;
mod qemu;
mod rates;
mod shell;
mod stats;
mod table;
mod testpmd;
mod vnic;

pub(crate) use change::vnic_set;
pub(crate) use cloud_hypervisor::{cloud_hypervisor, cloud_hypervisor_hint};
pub(crate) use config::config;
pub(crate) use libvirt::libvirt;
pub(crate) use plan::{plan, plan_sum};
pub(crate) use qemu::{qemu, qemu_hint};
pub(crate) use rates::rates;
pub(crate) use stats::{conservation, stats, workers};
pub(crate) use testpmd::{TESTPMD_HINT, testpmd};
pub(crate) use vnic::{vnic, vnic_added, vnic_list};

use crate::report::{FdbReport, VersionReport};

use table::Table;

/// The forwarding table.
pub(crate) fn fdb(fdb: &FdbReport) -> String {
    if fdb.entries.is_empty() {
        return "no addresses yet: they are learned from what guests send".to_owned();
    }
    let mut table = Table::new(&["ADDRESS", "VNIC", ">AGE"]);
    for entry in &fdb.entries {
        let age = if entry.is_static { "static".to_owned() } else { format!("{} s", entry.age_ms / 1000) };
        table.row([entry.mac.clone(), entry.port.clone(), age]);
    }
    table.text()
}

/// This program and the running switch.
pub(crate) fn version(own: &str, running: Option<&VersionReport>) -> String {
    match running {
        Some(VersionReport { version, pid, module }) => {
            format!("lasthop {own}\nrunning: {version} (process {pid}, module {module})")
        }
        None => format!("lasthop {own}\nrunning: none"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::FdbLine;

    #[test]
    fn addresses_are_shown_with_their_age() {
        let line =
            |mac: &str, age_ms, is_static| FdbLine { mac: mac.into(), port: "vm1".into(), age_ms, is_static };
        let entries = vec![line("02:00:00:00:00:01", 0, true), line("02:00:00:00:00:02", 12_345, false)];
        let text = fdb(&FdbReport { entries });
        let expected = "ADDRESS            VNIC     AGE\n\
                        02:00:00:00:00:01  vm1   static\n\
                        02:00:00:00:00:02  vm1     12 s\n";
        assert_eq!(text, expected);
    }
}
