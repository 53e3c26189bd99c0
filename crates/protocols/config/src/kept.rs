//! Ports of other programs, which a file does not have and `lasthop apply` leaves alone.

use std::collections::BTreeMap;

use lasthop_api::port::{Maker, Name};
use lasthop_api::report::ConfigReport;
use lasthop_api::switches::SwitchName;
use serde::Serialize;

/// Most names in a line. A host has a thousand ports at most, and each reload writes the line to the log.
const NAMES_MAX: usize = 8;

/// The ports of other programs, and the switches that they need.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// By the program that made them.
    pub ports: BTreeMap<Maker, Vec<Name>>,
    /// Switches that the file does not have, each with a port that is on it.
    pub switches: BTreeMap<SwitchName, Name>,
}

impl Kept {
    /// Takes ports that other programs made, and their switches, out of the running configuration, unless the file has them.
    pub fn take(running: &mut ConfigReport, wanted: &ConfigReport) -> Self {
        let mut kept = Self::default();
        let mut needed = BTreeMap::new();
        for port in
            running.all_ports().filter(|port| wanted.ports.iter().all(|other| other.name() != port.name()))
        {
            let Some(maker) = &port.made_by else { continue };
            kept.ports.entry(maker.clone()).or_default().push(port.name().clone());
            needed.entry(port.common.switch.clone()).or_insert_with(|| port.name().clone());
        }
        let is_kept = |name: &Name| kept.ports.values().flatten().any(|kept| kept == name);
        running.ports.retain(|port| !is_kept(port.name()));
        running.vnics.retain(|vnic| !is_kept(vnic.0.name()));
        let is_wanted = |name: &SwitchName| wanted.switches.iter().any(|switch| switch.name == *name);
        running.switches.retain(|switch| match needed.remove(&switch.name) {
            Some(port) if !is_wanted(&switch.name) => {
                kept.switches.insert(switch.name.clone(), port);
                false
            }
            _ => true,
        });
        kept
    }

    /// A line for each program, and for each switch.
    pub fn lines(&self) -> String {
        let ports = self.ports.iter().map(|(maker, names)| {
            let shown: Vec<&str> = names.iter().take(NAMES_MAX).map(Name::as_str).collect();
            let more = match names.len().saturating_sub(NAMES_MAX) {
                0 => String::new(),
                count => format!(" and {count} more"),
            };
            format!("kept: {}{more}, made by {maker}\n", shown.join(", "))
        });
        let switches = self
            .switches
            .iter()
            .map(|(switch, port)| format!("kept: switch {switch}, which port {port} is on\n"));
        ports.chain(switches).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, lines};

    fn report(ports: &[&str], switches: &[&str]) -> ConfigReport {
        ConfigReport {
            ports: ports.iter().map(|port| port.parse().expect("a port")).collect(),
            switches: switches.iter().map(|switch| switch.parse().expect("a switch")).collect(),
            ..ConfigReport::default()
        }
    }

    #[test]
    fn ports_of_other_programs_stay_with_their_switch() {
        let others = "vhu1,backend=vhost-user,switch=ovs-system,made-by=ovs-relay";
        let mut running = report(&["hand,backend=vhost-user", others], &["ovs-system,module=flow", "empty"]);
        let wanted = report(&["vm1,backend=vhost-user"], &[]);
        let kept = Kept::take(&mut running, &wanted);
        assert_eq!(
            kept.lines(),
            "kept: vhu1, made by ovs-relay\nkept: switch ovs-system, which port vhu1 is on\n"
        );
        assert_eq!(lines(&Plan::new(&running, &wanted)), "- switch empty\n- port hand\n+ port vm1\n");
    }

    #[test]
    fn the_file_has_precedence() {
        let mut running = report(&["a,backend=vhost-user,mtu=1400,made-by=x"], &[]);
        let wanted = report(&["a,backend=vhost-user,mtu=1500"], &[]);
        assert_eq!(Kept::take(&mut running, &wanted), Kept::default());
        let plan = Plan::new(&running, &wanted);
        assert_eq!(lines(&plan), "~ port a mtu: 1400 -> 1500 (for the next guest that attaches)\n");
    }

    #[test]
    fn a_line_is_short_for_a_thousand_ports() {
        let ports: Vec<String> =
            (0..1000).map(|number| format!("v{number:03},backend=vhost-user,made-by=x")).collect();
        let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
        let kept = Kept::take(&mut report(&ports, &[]), &ConfigReport::default());
        assert_eq!(
            kept.lines(),
            "kept: v000, v001, v002, v003, v004, v005, v006, v007 and 992 more, made by x\n"
        );
    }
}
