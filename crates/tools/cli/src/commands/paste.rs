//! `lasthop vnic show` for a VMM: the text to paste into its command line or configuration.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::show;
use lasthop_api::report::VnicReport;
use lasthop_runtime::fault::Fault;
use lasthop_runtime::log::say;

use super::ask::ApiRequest;

/// The reader that the vnic is shown for; none: people.
#[derive(Debug, Args)]
pub(super) struct Paste {
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
}

impl ApiRequest {
    /// The hint goes to standard error, so that standard output can be pasted or substituted as it is.
    pub(super) fn show_vnics(
        &self,
        vnics: &[VnicReport],
        is_one: bool,
        paste: &Paste,
    ) -> Result<ExitCode, Fault> {
        if !paste.is_for_vmm() {
            return self.show_each(vnics, is_one, show::vnic);
        }
        let pasted = vnics.iter().map(|vnic| pasted(vnic, paste)).collect::<Result<Vec<_>, Fault>>()?;
        if !self.json {
            pasted.iter().filter_map(|(_, _, hint)| hint.as_ref()).for_each(|hint| say!("{hint}"));
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

impl Paste {
    fn is_for_vmm(&self) -> bool {
        self.qemu || self.libvirt || self.cloud_hypervisor || self.testpmd
    }
}

/// The name of the text, the text, and a hint about it.
fn pasted(vnic: &VnicReport, paste: &Paste) -> Result<(&'static str, String, Option<String>), Fault> {
    let tcg = paste.tcg;
    Ok(match paste {
        Paste { qemu: true, .. } => ("qemu", show::qemu(vnic, tcg), Some(show::qemu_hint(vnic, tcg))),
        Paste { libvirt: true, .. } => ("libvirt", show::libvirt(vnic, tcg), show::libvirt_hint(vnic, tcg)),
        Paste { cloud_hypervisor: true, .. } => {
            let hint = show::cloud_hypervisor_hint(vnic);
            ("cloud-hypervisor", show::cloud_hypervisor(vnic), Some(hint.to_owned()))
        }
        _ => ("testpmd", show::testpmd(vnic)?, Some(show::TESTPMD_HINT.to_owned())),
    })
}
