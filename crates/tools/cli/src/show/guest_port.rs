//! Vhost-user ports, one or all.

use lasthop_api::port::{VhostUserBackend, VnicMode};
use lasthop_api::report::{GuestStatus, PortStatus, RingReport};

use super::port::{KeyLine, or_dash};
use super::state::state_text;
use super::table::Table;

/// A line for each.
pub(super) fn table<'a>(ports: impl Iterator<Item = &'a PortStatus> + Clone) -> Table {
    // The switch is shown if it is not the default one for all.
    let has_several = ports.clone().any(|port| !port.settings.common.switch.is_default());
    let mut table = Table::new(&["NAME", "SWITCH", "STATE", "MODE", "=MAC", ">QUEUES", ">MTU", "SOCKET"]);
    for port in ports {
        let common = &port.settings.common;
        let Some(attachment) = port.attachment() else { continue };
        table.row([
            port.name.clone(),
            common.switch.to_string(),
            state_text(port),
            attachment.mode.name().to_owned(),
            or_dash(common.policy.mac),
            common.queues.to_string(),
            or_dash(common.mtu),
            attachment.socket.display().to_string(),
        ]);
    }
    if has_several { table } else { table.without(1) }
}

/// Lines before and after those of ports of every backend.
pub(super) fn lines(
    port: &PortStatus,
    guest: &GuestStatus,
    backend: &VhostUserBackend,
) -> (Vec<KeyLine>, Vec<KeyLine>) {
    let common = &port.settings.common;
    let line = |key: &str, value: String| (key.to_owned(), value);
    let mut first = vec![
        line("state", state_text(port)),
        line("socket", format!("{} ({})", guest.socket.display(), who_listens(backend.mode))),
    ];
    first.extend(access_text(backend).map(|access| line("socket file", access)));
    let mac = common.policy.mac.map_or_else(|| "any (learned)".to_owned(), |mac| format!("{mac} (static)"));
    first.extend([
        line("mac", mac),
        line("queues", common.queues.to_string()),
        line("mtu", or_dash(common.mtu)),
    ]);
    first.extend(common.memory_max.map(|memory| line("memory max", memory.to_string())));
    let rings = guest.rings.iter().map(|ring| (format!("ring {}", ring.index), ring_text(ring)));
    let refusal = guest.last_refusal.as_ref().map(|why| line("last refusal", why.clone()));
    (first, rings.chain(refusal).collect())
}

/// The command for the options of a VMM.
pub(super) fn attach_text(name: &str) -> String {
    format!("lasthop port show {name} --qemu (or --libvirt, --cloud-hypervisor, --testpmd)")
}

/// The next step with a new port.
pub(super) fn added(name: &str, guest: &GuestStatus, mode: VnicMode) -> String {
    let socket = guest.socket.display();
    match mode {
        VnicMode::Listen => format!("added {name}: connect its guest to {socket}"),
        VnicMode::Connect => format!("added {name}: its guest has to listen at {socket}"),
    }
}

/// The settings of the socket's file.
fn access_text(backend: &VhostUserBackend) -> Option<String> {
    let mode = backend.socket_mode.map(|mode| format!("mode {mode}"));
    let owner = backend.socket_owner.as_ref().map(|owner| format!("owner {owner}"));
    let group = backend.socket_group.as_ref().map(|group| format!("group {group}"));
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

#[cfg(test)]
mod tests {
    use lasthop_api::report::PortStatusList;

    use super::*;
    use crate::output::tests::on_screen;
    use crate::show::{port, port_list, tests::guest};

    fn report(text: &str) -> PortStatus {
        PortStatus { state: "running".to_owned(), ..guest(text, "/d/vm1.sock") }
    }

    fn list(ports: Vec<PortStatus>) -> String {
        port_list(&PortStatusList { ports })
    }

    #[test]
    fn a_list_has_a_line_for_each() {
        let text = list(vec![report("vm1,mac=02:00:00:00:00:01,mtu=1400")]);
        let row: Vec<&str> = text.lines().nth(1).unwrap_or_default().split_whitespace().collect();
        assert_eq!(row, ["vm1", "running", "listen", "02:00:00:00:00:01", "1", "1400", "/d/vm1.sock"]);
        let text = list(vec![report("vm1"), report("vm2,switch=red")]);
        let starts: Vec<_> =
            text.lines().map(|line| line.split_whitespace().take(2).collect::<Vec<_>>()).collect();
        assert_eq!(starts, [["NAME", "SWITCH"], ["vm1", "default"], ["vm2", "red"]]);
        assert!(list(vec![]).contains("port add"));
    }

    #[test]
    fn a_list_fits_a_terminal_of_80_columns_whatever_is_in_it() {
        let name = "n".repeat(64);
        let text =
            format!("{name},switch={name},mode=connect,mac=02:00:00:00:00:01,mtu=65535,queues=16,link=down");
        let worst = guest(&text, &format!("/run/lasthop/{name}.sock"));
        for ports in [vec![worst.clone()], vec![worst.clone(), report("vm1")], vec![report("vm1")]] {
            let text = table(ports.iter()).fitted(80);
            assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        }
        let text = list(vec![guest("vm1,mac=02:00:00:00:00:01,mtu=9000", "/run/lasthop/vm1.sock")]);
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
            let text = port(&report(text));
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn a_vnic_is_shown_with_its_rings() {
        let mut report = report("vm1,memory-max=64G,features-off=TSO4,storm-broadcast=1000,storm-unknown=50");
        report.features = vec!["CSUM".into(), "MQ".into()];
        let state = report.guest.as_mut().expect("a guest's port");
        state.rings = vec![RingReport { index: 1, entries: 256, enabled: false, worker: None, error: None }];
        state.last_refusal = Some("front end sent nothing".into());
        let text = port(&report);
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

    #[test]
    fn a_vnic_in_a_terminal_goes_on_below_its_texts() {
        let mut report = report("vm1,link=down");
        let features =
            "CSUM GUEST_CSUM MTU MAC GUEST_TSO4 GUEST_TSO6 GUEST_ECN HOST_TSO4 HOST_TSO6 EVENT_IDX VERSION_1";
        report.features = features.split(' ').map(str::to_owned).collect();
        report.warnings =
            vec!["mtu is 9000, but two has 1500; larger packets to them may be lost: ".repeat(2)];
        let text = on_screen(80, || port(&report));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let expected = "negotiated    CSUM GUEST_CSUM MTU MAC GUEST_TSO4 GUEST_TSO6 GUEST_ECN HOST_TSO4\n\
                        \x20             HOST_TSO6 EVENT_IDX VERSION_1\n";
        assert!(text.contains(expected), "{text}");
        assert!(text.contains("\nattach with   lasthop port show vm1 --qemu\n"), "{text}");
        assert!(port(&report).contains(features), "a file has it in one line");
        let text = on_screen(80, || list(vec![report]));
        assert!(
            text.contains("\nwarning: vm1: mtu") && text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
}
