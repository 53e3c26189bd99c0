//! Vnics, one or all.

use lasthop_module_api::{Vid, VlanSet};

use lasthop_api::report::{RingReport, VnicList, VnicReport};
use lasthop_api::vnic::VnicMode;

use super::table::Table;

/// A line for each vnic.
pub(crate) fn vnic_list(list: &VnicList) -> String {
    if list.vnics.is_empty() {
        return "no vnics; make one with: lasthop vnic add NAME".to_owned();
    }
    table(list).text() + &list.vnics.iter().map(warning_lines).collect::<String>()
}

fn table(list: &VnicList) -> Table {
    // Said when it is not the default one for all.
    let has_several = list.vnics.iter().any(|vnic| !vnic.switch.is_default());
    let mut table = Table::new(&["NAME", "SWITCH", "STATE", "MODE", "=MAC", ">QUEUES", ">MTU", "SOCKET"]);
    for vnic in &list.vnics {
        table.row([
            vnic.name.clone(),
            vnic.switch.to_string(),
            state_text(vnic),
            vnic.mode.name().to_owned(),
            or_dash(vnic.mac),
            vnic.queues.to_string(),
            or_dash(vnic.mtu),
            vnic.socket.display().to_string(),
        ]);
    }
    if has_several { table } else { table.without(1) }
}

fn state_text(vnic: &VnicReport) -> String {
    match (vnic.link.is_up(), vnic.uplinks_down) {
        (true, false) => vnic.state.clone(),
        (true, true) => format!("{}, link down with its uplinks", vnic.state),
        (false, _) => format!("{}, link down", vnic.state),
    }
}

fn warning_lines(vnic: &VnicReport) -> String {
    vnic.warnings.iter().map(|warning| format!("warning: {}: {warning}\n", vnic.name)).collect()
}

/// All about one vnic.
pub(crate) fn vnic(vnic: &VnicReport) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: String| text.push_str(&format!("{key:<14}{value}\n"));
    line("name", vnic.name.clone());
    line("switch", vnic.switch.to_string());
    line("state", state_text(vnic));
    line("socket", format!("{} ({})", vnic.socket.display(), who_listens(vnic.mode)));
    if let Some(access) = access_text(vnic) {
        line("socket file", access);
    }
    line("mac", vnic.mac.map_or_else(|| "any (learned)".to_owned(), |mac| format!("{mac} (static)")));
    line("queues", vnic.queues.to_string());
    line("mtu", or_dash(vnic.mtu));
    if let Some(memory) = vnic.memory_max {
        line("memory max", memory.to_string());
    }
    line("vlans", vlans_text(vnic.vlan, vnic.trunk.as_ref(), vnic.native));
    if vnic.isolated {
        line("isolated", "yes: talks to vnics that are not".to_owned());
    }
    if !vnic.features_off.is_empty() {
        line("features off", vnic.features_off.joined());
    }
    if let Some(limits) = storm_text(vnic) {
        line("storm limits", limits);
    }
    if !vnic.features.is_empty() {
        line("negotiated", vnic.features.join(" "));
    }
    for ring in &vnic.rings {
        line(&format!("ring {}", ring.index), ring_text(ring));
    }
    if let Some(why) = &vnic.last_refusal {
        line("last refusal", why.clone());
    }
    for warning in &vnic.warnings {
        line("warning", warning.clone());
    }
    line(
        "attach with",
        format!("lasthop vnic show {} --qemu (or --libvirt, --cloud-hypervisor, --testpmd)", vnic.name),
    );
    text
}

/// Which VLANs a vnic carries.
pub(super) fn vlans_text(vlan: Option<Vid>, trunk: Option<&VlanSet>, native: Option<Vid>) -> String {
    let with_native = native.map_or_else(String::new, |vid| format!(", native {vid} (untagged)"));
    match (vlan, trunk) {
        (Some(vid), _) => format!("{vid} (access: untagged)"),
        (None, Some(set)) => format!("{set} (trunk: tagged){with_native}"),
        (None, None) if native.is_some() => format!("all (trunk: tagged){with_native}"),
        (None, None) => "all (frames pass as they are)".to_owned(),
    }
}

/// The next step with a new vnic.
pub(crate) fn vnic_added(vnic: &VnicReport) -> String {
    let socket = vnic.socket.display();
    match vnic.mode {
        VnicMode::Listen => format!("added {}: connect its guest to {socket}", vnic.name),
        VnicMode::Connect => format!("added {}: its guest has to listen at {socket}", vnic.name),
    }
}

/// The settings of the socket's file.
fn access_text(vnic: &VnicReport) -> Option<String> {
    let mode = vnic.socket_mode.map(|mode| format!("mode {mode}"));
    let owner = vnic.socket_owner.as_ref().map(|owner| format!("owner {owner}"));
    let group = vnic.socket_group.as_ref().map(|group| format!("group {group}"));
    let said: Vec<String> = [mode, owner, group].into_iter().flatten().collect();
    (!said.is_empty()).then(|| said.join(", "))
}

fn who_listens(mode: VnicMode) -> &'static str {
    match mode {
        VnicMode::Listen => "the switch listens",
        VnicMode::Connect => "the VMM listens",
    }
}

fn ring_text(ring: &RingReport) -> String {
    let direction = if ring.index.is_multiple_of(2) { "to guest" } else { "from guest" };
    let state = match (&ring.error, ring.enabled) {
        (Some(error), _) => format!("stopped: {error}"),
        (None, true) => "enabled".to_owned(),
        (None, false) => "disabled".to_owned(),
    };
    format!("{direction}, {} entries, {state}", ring.entries)
}

/// Limits of floods, unless there are none.
fn storm_text(vnic: &VnicReport) -> Option<String> {
    let limits = [
        ("broadcast", vnic.storm_broadcast),
        ("multicast", vnic.storm_multicast),
        ("unknown", vnic.storm_unknown),
    ];
    let limits = limits.iter().filter(|(_, rate)| *rate > 0);
    let texts: Vec<String> = limits.map(|(kind, rate)| format!("{kind} {rate}/s")).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn report(text: &str) -> VnicReport {
        VnicReport::new(&text.parse().expect("a vnic"), PathBuf::from("/d/vm1.sock"), "running")
    }

    #[test]
    fn a_list_has_a_line_for_each() {
        let text = vnic_list(&VnicList { vnics: vec![report("vm1,mac=02:00:00:00:00:01,mtu=1400")] });
        let row: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        assert_eq!(row, ["vm1", "running", "listen", "02:00:00:00:00:01", "1", "1400", "/d/vm1.sock"]);
        let vnics = vec![report("vm1"), report("vm2,switch=red")];
        let text = vnic_list(&VnicList { vnics });
        let starts: Vec<_> =
            text.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>()).collect();
        assert_eq!(starts, [["NAME", "SWITCH"], ["vm1", "default"], ["vm2", "red"]]);
        assert!(vnic_list(&VnicList { vnics: vec![] }).contains("vnic add"));
    }

    #[test]
    fn a_list_fits_a_terminal_of_80_columns_whatever_is_in_it() {
        let name = "n".repeat(64);
        let text =
            format!("{name},switch={name},mode=connect,mac=02:00:00:00:00:01,mtu=65535,queues=16,link=down");
        let path = PathBuf::from(format!("/run/lasthop/{name}.sock"));
        let worst = VnicReport::new(&text.parse().expect("a vnic"), path, "waiting for guest");
        for vnics in [vec![worst.clone()], vec![worst.clone(), report("vm1")], vec![report("vm1")]] {
            let text = table(&VnicList { vnics }).fitted(80);
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
        let mut usual = report("vm1,mac=02:00:00:00:00:01,mtu=9000");
        (usual.state, usual.socket) = ("waiting for guest".into(), "/run/lasthop/vm1.sock".into());
        let text = vnic_list(&VnicList { vnics: vec![usual] });
        assert!(text.lines().all(|line| line.len() <= 80), "in a file, too: {text}");
    }

    #[test]
    fn a_vnic_is_shown_with_its_vlans() {
        for (text, line) in [
            ("a", "vlans         all (frames pass as they are)\n"),
            ("a,vlan=5", "vlans         5 (access: untagged)\n"),
            ("a,trunk=20-29+10", "vlans         10+20-29 (trunk: tagged)\n"),
            ("a,trunk=10,native=9", "vlans         10 (trunk: tagged), native 9 (untagged)\n"),
            (
                "a,native=9,isolated=true",
                "vlans         all (trunk: tagged), native 9 (untagged)\nisolated      yes",
            ),
        ] {
            let text = vnic(&report(text));
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn a_vnic_is_shown_with_its_rings() {
        let mut report = report("vm1,memory-max=64G,features-off=TSO4,storm-broadcast=1000,storm-unknown=50");
        report.features = vec!["CSUM".into(), "MQ".into()];
        report.rings = vec![RingReport { index: 1, entries: 256, enabled: false, error: None }];
        report.last_refusal = Some("front end sent nothing".into());
        let text = vnic(&report);
        for words in [
            "switch        default",
            "mac           any (learned)",
            "memory max    64G\n",
            "features off  TSO4",
            "storm limits  broadcast 1000/s, unknown 50/s\n",
            "negotiated    CSUM MQ",
            "last refusal  front end sent nothing\n",
        ] {
            assert!(text.contains(words), "{text}");
        }
        assert!(text.contains("ring 1        from guest, 256 entries, disabled\n"), "{text}");
    }
}
