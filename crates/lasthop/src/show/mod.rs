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
mod switch;
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
pub(crate) use stats::{conservation, stats};
pub(crate) use switch::{switch_added, switch_list};
pub(crate) use testpmd::{TESTPMD_HINT, testpmd};
pub(crate) use vnic::{vnic, vnic_added, vnic_list};

use crate::report::{FdbReport, VersionReport};

use table::Table;

/// The forwarding tables; whose they are is said when it is not only the default switch's.
pub(crate) fn fdb(fdb: &FdbReport) -> String {
    if fdb.entries.is_empty() {
        return "no addresses yet: they are learned from what guests send".to_owned();
    }
    let has_several = fdb.entries.iter().any(|entry| !entry.switch.is_default());
    let mut table = Table::new(&["SWITCH", "ADDRESS", "VNIC", ">AGE"]);
    for entry in &fdb.entries {
        let age = if entry.is_static { "static".to_owned() } else { format!("{} s", entry.age_ms / 1000) };
        table.row([entry.switch.to_string(), entry.mac.clone(), entry.port.clone(), age]);
    }
    if has_several { table.text() } else { table.without(0).text() }
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
        let line = |switch: &str, mac: &str, age_ms, is_static| FdbLine {
            switch: switch.parse().expect("a name"),
            mac: mac.into(),
            port: "vm1".into(),
            age_ms,
            is_static,
        };
        let mut entries = vec![
            line("default", "02:00:00:00:00:01", 0, true),
            line("default", "02:00:00:00:00:02", 12_345, false),
        ];
        let text = fdb(&FdbReport { entries: entries.clone() });
        let expected = "ADDRESS            VNIC     AGE\n\
                        02:00:00:00:00:01  vm1   static\n\
                        02:00:00:00:00:02  vm1     12 s\n";
        assert_eq!(text, expected);
        entries.push(line("red", "02:00:00:00:00:01", 1000, false));
        let expected = "SWITCH   ADDRESS            VNIC     AGE\n\
                        default  02:00:00:00:00:01  vm1   static\n\
                        default  02:00:00:00:00:02  vm1     12 s\n\
                        red      02:00:00:00:00:01  vm1      1 s\n";
        assert_eq!(fdb(&FdbReport { entries }), expected);
    }
}
