//! VLANs and addresses, in the form of the `bridge` tool of iproute2.

use lasthop_api::report::{FdbLine, FdbReport, VlansReport};
use lasthop_api::switches::SwitchName;

use super::table::Table;

/// The VLANs that each vnic carries.
pub(crate) fn vlans(report: &VlansReport) -> String {
    if report.vnics.is_empty() {
        return "no vnics; make one with: lasthop port add NAME,backend=vhost-user".to_owned();
    }
    let mut table = Table::new(&["PORT", "VLAN-ID"]);
    for vnic in &report.vnics {
        if vnic.passes_all {
            table.row([vnic.name.clone(), "all, and untagged frames: no VLAN settings".to_owned()]);
            continue;
        }
        for (index, vlan) in vnic.vlans.iter().enumerate() {
            let name = if index == 0 { vnic.name.clone() } else { String::new() };
            let first = vlan.vlan.to_string();
            let range = vlan.vlan_end.map_or(first.clone(), |end| format!("{first}-{end}"));
            let words: Vec<String> = std::iter::once(range).chain(vlan.flags.iter().cloned()).collect();
            table.row([name, words.join(" ")]);
        }
    }
    table.text()
}

/// The forwarding tables; a switch other than the default one is shown as `master`.
pub(crate) fn fdb(fdb: &FdbReport) -> String {
    if fdb.entries.is_empty() && fdb.unanswered.is_empty() {
        return "no addresses yet: they are learned from packets of guests".to_owned();
    }
    let lines = fdb.entries.iter().map(fdb_line);
    lines.chain(fdb.unanswered.iter().map(left_out)).collect()
}

/// Instead of the addresses of a switch with a silent controller.
fn left_out(switch: &SwitchName) -> String {
    format!(
        "the addresses of switch {switch} are left out, as its controller process does not answer: try again, or see: \
         lasthop doctor\n"
    )
}

fn fdb_line(entry: &FdbLine) -> String {
    let vlan = entry.vlan.map_or_else(String::new, |vid| format!(" vlan {vid}"));
    let age = if entry.is_static { "static".to_owned() } else { format!("age {} s", entry.age_ms / 1000) };
    let master = if entry.switch.is_default() { String::new() } else { format!(" master {}", entry.switch) };
    format!("{} dev {}{vlan}{master} {age}\n", entry.mac, entry.port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use lasthop_api::report::VnicVlans;

    #[test]
    fn addresses_are_shown_with_their_age() {
        let line = |mac: &str, vlan, age_ms, is_static| FdbLine {
            switch: "default".parse().expect("a name"),
            mac: mac.into(),
            vlan,
            port: "vm1".into(),
            age_ms,
            is_static,
        };
        let mut entries =
            vec![line("02:00:00:00:00:01", None, 0, true), line("02:00:00:00:00:02", Some(5), 12_345, false)];
        entries.push(line("02:00:00:00:00:01", Some(5), 1000, false));
        entries[2].switch = "red".parse().expect("a name");
        let text = fdb(&FdbReport::whole(entries));
        let expected = "02:00:00:00:00:01 dev vm1 static\n02:00:00:00:00:02 dev vm1 vlan 5 age 12 s\n\
                        02:00:00:00:00:01 dev vm1 vlan 5 master red age 1 s\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_switch_whose_controller_is_silent_is_named() {
        let mut silent = FdbReport::whole(Vec::new());
        silent.unanswered.push("red".parse().expect("a name"));
        let text = fdb(&silent);
        assert!(text.starts_with("the addresses of switch red are left out"), "{text}");
    }

    #[test]
    fn vlans_are_shown_with_what_is_untagged() {
        let of = |text: &str| VnicVlans::of(&lasthop_api::port::vnic(text).expect("a vnic").common);
        let report = VlansReport {
            vnics: ["a,vlan=5", "b,trunk=10+20-29,native=99", "c", "d,native=7"].map(of).into(),
        };
        let expected = "PORT  VLAN-ID\n\
                        a     5 PVID Egress Untagged\n\
                        b     10\n      20-29\n      99 PVID Egress Untagged\n\
                        c     all, and untagged frames: no VLAN settings\n\
                        d     1-6\n      7 PVID Egress Untagged\n      8-4094\n";
        assert_eq!(vlans(&report), expected);
    }
}
