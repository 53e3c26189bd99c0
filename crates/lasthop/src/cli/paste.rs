//! `lasthop vnic show` for a VMM: what to paste into its command line or configuration.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::fault::Fault;
use crate::log::say;
use crate::report::VnicReport;
use crate::show;

use super::ask::Asking;

/// What the vnic is to be shown for; nothing: for people.
#[derive(Debug, Args)]
pub(super) struct Paste {
    /// Arguments for QEMU
    #[arg(long, group = "vmm")]
    qemu: bool,
    /// Elements for a libvirt domain
    #[arg(long, group = "vmm")]
    libvirt: bool,
    /// Arguments for Cloud Hypervisor
    #[arg(long, group = "vmm")]
    cloud_hypervisor: bool,
    /// A command line of DPDK's testpmd, as a guest with one port
    #[arg(long, group = "vmm")]
    testpmd: bool,
    /// With --qemu and --libvirt: for a guest that is emulated, without KVM
    #[arg(long, requires = "vmm", conflicts_with_all = ["cloud_hypervisor", "testpmd"])]
    tcg: bool,
}

impl Asking {
    /// The hint goes to standard error, so that standard output can be pasted or substituted as it is.
    pub(super) fn show_vnic(&self, vnic: &VnicReport, paste: &Paste) -> Result<ExitCode, Fault> {
        let tcg = paste.tcg;
        let (key, text, hint) = match paste {
            Paste { qemu: true, .. } => ("qemu", show::qemu(vnic, tcg), Some(show::qemu_hint(vnic, tcg))),
            Paste { libvirt: true, .. } => {
                ("libvirt", show::libvirt(vnic, tcg), show::libvirt_hint(vnic, tcg))
            }
            Paste { cloud_hypervisor: true, .. } => {
                let hint = show::cloud_hypervisor_hint(vnic);
                ("cloud-hypervisor", show::cloud_hypervisor(vnic), Some(hint.to_owned()))
            }
            Paste { testpmd: true, .. } => {
                ("testpmd", show::testpmd(vnic)?, Some(show::TESTPMD_HINT.to_owned()))
            }
            _ => return self.show(vnic, show::vnic),
        };
        if let Some(hint) = hint.filter(|_| !self.json) {
            say!("{hint}");
        }
        self.show(&json!({key: text}), |_| text.clone())
    }
}
