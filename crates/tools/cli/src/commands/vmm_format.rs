//! `lasthop port show` for a VMM: text for its command line or configuration.

use std::process::ExitCode;

use clap::Args;
use log::info;
use serde_json::{Value, json};

use crate::output::error_screen;
use crate::qemu_version::QemuVersion;
use crate::show;
use lasthop_api::report::PortStatus;
use lasthop_doctor::remedy::addressed;
use lasthop_runtime::fault::Fault;

use super::ask::ApiRequest;

/// Begins each line of the log.
const LOG_PREFIX: &str = "lasthop: ";

/// The VMM for which the port is shown; none for users.
#[derive(Debug, Args)]
pub(super) struct VmmFormat {
    /// Arguments for QEMU
    #[arg(long, group = "vmm")]
    qemu: bool,
    /// Elements for a libvirt domain
    #[arg(long, group = "vmm")]
    libvirt: bool,
    /// Arguments for Cloud Hypervisor, after its documents: not tried
    #[arg(long, group = "vmm")]
    cloud_hypervisor: bool,
    /// A command line of DPDK's testpmd, as a guest with one port
    #[arg(long, group = "vmm")]
    testpmd: bool,
    /// With --qemu and --libvirt: for a guest that is emulated, without KVM
    #[arg(long, requires = "vmm", conflicts_with_all = ["cloud_hypervisor", "testpmd"])]
    tcg: bool,
    /// With --qemu: its version; without this that of the first qemu-system-... in PATH
    #[arg(long, value_name = "X.Y", requires = "qemu")]
    qemu_version: Option<QemuVersion>,
}

impl ApiRequest {
    /// The hint goes to standard error, so that standard output can be pasted unchanged.
    pub(super) fn show_for_vmm(
        &self,
        ports: &[PortStatus],
        is_one: bool,
        paste: &VmmFormat,
    ) -> Result<ExitCode, Fault> {
        let version = paste.qemu.then(|| paste.qemu_version.or_else(QemuVersion::installed)).flatten();
        let pasted = ports.iter().map(|port| pasted(port, paste, version));
        let pasted = pasted.collect::<Result<Vec<_>, Fault>>()?;
        if !self.json {
            pasted.iter().filter_map(|(_, _, hint)| hint.as_ref()).for_each(|hint| self.tell(hint));
        }
        let each: Vec<_> = pasted.iter().map(|(key, text, _)| json!({*key: text})).collect();
        let text = |value: &Value| {
            value
                .as_object()
                .and_then(|object| object.values().next()?.as_str())
                .unwrap_or_default()
                .to_owned()
        };
        self.show_each(&each, is_one, text)
    }
}

impl ApiRequest {
    /// Logs a hint, in lines that fit a terminal.
    fn tell(&self, hint: &str) {
        let hint = addressed(hint, &self.dir);
        let columns = error_screen().map_or(usize::MAX, |screen| screen.columns);
        show::folded(&hint, columns.saturating_sub(LOG_PREFIX.len()))
            .lines()
            .for_each(|line| info!("{line}"));
    }
}

impl VmmFormat {
    pub(super) fn is_for_vmm(&self) -> bool {
        self.qemu || self.libvirt || self.cloud_hypervisor || self.testpmd
    }
}

/// The name of the text, the text, and a hint about it.
fn pasted(
    port: &PortStatus,
    paste: &VmmFormat,
    version: Option<QemuVersion>,
) -> Result<(&'static str, String, Option<String>), Fault> {
    let tcg = paste.tcg;
    let over_device = || {
        Fault::params(format!(
            "port \"{0}\" is over a device, and no guest attaches to it; see: lasthop port show {0}",
            port.name
        ))
    };
    let guest = &port.attachment().ok_or_else(over_device)?;
    Ok(match paste {
        VmmFormat { qemu: true, .. } => {
            ("qemu", show::qemu(guest, tcg, version), Some(show::qemu_hint(guest, tcg, version)))
        }
        VmmFormat { libvirt: true, .. } => {
            ("libvirt", show::libvirt(guest, tcg), show::libvirt_hint(guest, tcg))
        }
        VmmFormat { cloud_hypervisor: true, .. } => {
            let hint = show::cloud_hypervisor_hint(guest);
            ("cloud-hypervisor", show::cloud_hypervisor(guest), Some(hint.to_owned()))
        }
        _ => ("testpmd", show::testpmd(guest)?, Some(show::TESTPMD_HINT.to_owned())),
    })
}
