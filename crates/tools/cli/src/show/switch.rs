//! The switches of the process.

use lasthop_api::report::{ControlClient, SwitchList, SwitchReport};
use lasthop_api::switches::ControllerKind;

use super::table::Table;

/// A line for each switch.
pub(crate) fn switch_list(list: &SwitchList) -> String {
    let mut table = Table::new(&["NAME", "MODULE", ">VNICS", ">ADDRESSES", ">FDB ENTRIES", "CONTROLLER"]);
    for switch in &list.switches {
        // A module without a table has no addresses, and a stopped switch process cannot be asked.
        let addresses = switch.addresses.filter(|_| switch.fdb_entries.is_some());
        table.row([
            switch.name.to_string(),
            switch.module.clone(),
            switch.vnics.len().to_string(),
            or_dash(addresses),
            or_dash(switch.fdb_entries),
            controller(switch),
        ]);
    }
    table.text()
}

/// The controller that gets packets without a flow.
fn controller(switch: &SwitchReport) -> String {
    let Some(kind) = switch.controller else { return "-".to_owned() };
    if kind != ControllerKind::External {
        return kind.to_string();
    }
    let name = |client: &ControlClient| match (&client.name, client.pid) {
        (Some(name), Some(pid)) => format!("{name} ({pid})"),
        _ => "connected".to_owned(),
    };
    let names: Vec<String> = switch.clients.iter().map(name).collect();
    if names.is_empty() { format!("{kind}, not connected") } else { format!("{kind}: {}", names.join(", ")) }
}

/// The next step with a new switch.
pub(crate) fn switch_added(switch: &SwitchReport) -> String {
    let (name, module) = (&switch.name, &switch.module);
    format!(
        "added switch {name} ({module}): give it vnics with: lasthop port add NAME,backend=vhost-user,switch={name}"
    )
}

fn or_dash(number: Option<usize>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_line_for_each() {
        let switch = |name: &str, module: &str, fdb_entries, addresses| SwitchReport {
            name: name.parse().expect("a name"),
            module: module.to_owned(),
            fdb_entries,
            vnics: vec!["a".to_owned(), "b".to_owned()],
            addresses,
            counters: Default::default(),
            controller: None,
            clients: Vec::new(),
        };
        let outside = |clients: &[(&str, i32)]| SwitchReport {
            controller: Some(ControllerKind::External),
            clients: clients
                .iter()
                .map(|(name, pid)| ControlClient {
                    pid: Some(*pid),
                    name: Some((*name).to_owned()),
                    connected_ms: 5,
                })
                .collect(),
            ..switch("out", "flow", None, Some(0))
        };
        let switches = vec![
            switch("default", "bridge", Some(16384), Some(2)),
            switch("blue", "dummy", None, Some(0)),
            switch("red", "bridge", Some(64), None),
            outside(&[]),
            outside(&[("ovs-vswitchd", 4711)]),
        ];
        let expected = "NAME     MODULE  VNICS  ADDRESSES  FDB ENTRIES  CONTROLLER\n\
                        default  bridge      2          2        16384  -\n\
                        blue     dummy       2          -            -  -\n\
                        red      bridge      2          -           64  -\n\
                        out      flow        2          -            -  external, not connected\n\
                        out      flow        2          -            -  external: ovs-vswitchd (4711)\n";
        assert_eq!(switch_list(&SwitchList { switches }), expected);
    }
}
