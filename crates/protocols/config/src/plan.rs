//! The steps from the running switch to the switch that a file asks for, and their text. Nothing here changes anything.

use std::collections::BTreeMap;

use lasthop_api::acl::AclRule;
use lasthop_api::fdb::StaticEntry;
use lasthop_api::modules::ModuleName;
use lasthop_api::port::change::{Change, When, changes, value_text};
use lasthop_api::port::{Name, PortSpec};
use lasthop_api::report::ConfigReport;
use lasthop_api::settings::Settings;
use lasthop_api::switches::{SwitchChange, SwitchName, SwitchSpec};
use serde::Serialize;
use serde_json::Value;

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
#[expect(missing_docs, reason = "the fields of a step are what its comment names")]
pub enum Step {
    /// A port goes, and its guest with it.
    Remove { name: Name },
    /// A port changes while its guest is attached.
    Change { name: Name, changes: Vec<Change> },
    /// A port goes and comes again, since some of its keys cannot change; its guest attaches again.
    Anew { port: PortSpec, changes: Vec<Change> },
    /// A port comes.
    Add { port: PortSpec },
    /// A switch goes; its ports went before.
    #[serde(rename = "remove_switch")]
    RemoveSwitch { name: SwitchName },
    /// A switch comes.
    #[serde(rename = "add_switch")]
    AddSwitch { switch: SwitchSpec },
    /// A switch changes, with the guests that it has.
    #[serde(rename = "set_switch")]
    SetSwitch { switch: SwitchSpec, from: String, to: String },
    /// A static entry of the forwarding table goes.
    Forget { entry: StaticEntry },
    /// A static entry comes.
    Enter { entry: StaticEntry },
    /// The rules about connections are others.
    #[serde(rename = "set_acl")]
    SetAcl { rules: Vec<AclRule>, from: Vec<AclRule> },
    /// A setting of the switch is another, which takes a restart.
    Restart { key: String, from: Value, to: Value },
}

/// The steps, in the order in which they are shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// In the order in which they are taken.
    pub steps: Vec<Step>,
}

impl Plan {
    /// From the running configuration to the wanted one. Settings of the switch that the file leaves out are not compared.
    pub fn new(running: &ConfigReport, wanted: &ConfigReport) -> Self {
        let by_name = |report: &ConfigReport| -> BTreeMap<Name, PortSpec> {
            report.all_ports().map(|port| (port.name().clone(), port.clone())).collect()
        };
        let (old, new) = (by_name(running), by_name(wanted));
        let removed = old.keys().filter(|name| !new.contains_key(*name));
        let removed = removed.map(|name| Step::Remove { name: name.clone() });
        let changed = new.values().filter_map(|port| change(old.get(port.name())?, port));
        let added = new.values().filter(|port| !old.contains_key(port.name()));
        let added = added.map(|port| Step::Add { port: port.clone() });
        let ports: Vec<Step> = removed.chain(changed).chain(added).collect();
        // A removed port takes its entries along.
        let is_gone = |gone: &Name| {
            ports.iter().any(|step| match step {
                Step::Remove { name } => name == gone,
                Step::Anew { port, .. } => port.name() == gone,
                _ => false,
            })
        };
        let stays =
            |entry: &StaticEntry, other: &ConfigReport| !is_gone(&entry.port) && other.fdb.contains(entry);
        let obsolete =
            running.fdb.iter().filter(|entry| !is_gone(&entry.port) && !wanted.fdb.contains(entry));
        let missing = wanted.fdb.iter().filter(|entry| !stays(entry, running));
        let obsolete = obsolete.map(|entry| Step::Forget { entry: entry.clone() });
        let missing = missing.map(|entry| Step::Enter { entry: entry.clone() });
        let entries: Vec<Step> = obsolete.chain(missing).collect();
        let default = default_switch(&running.settings, &wanted.settings);
        let settings = restarts(running, wanted).chain(default).chain(switches(running, wanted));
        let rules = (running.acl != wanted.acl)
            .then(|| Step::SetAcl { rules: wanted.acl.clone(), from: running.acl.clone() });
        Self { steps: settings.chain(ports).chain(entries).chain(rules).collect() }
    }

    /// Whether the switch is as it is wanted.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Whether only a restart of the switch can do some of it.
    pub fn needs_restart(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::Restart { .. }))
    }

    /// Ports whose address has to be taken away first, since another one gets it before they get theirs.
    pub fn addresses_to_free(&self) -> Vec<Name> {
        let address = |changes: &[Change]| changes.iter().find(|change| change.key == "mac").cloned();
        let wanted: Vec<Value> = self
            .steps
            .iter()
            .filter_map(|step| match step {
                Step::Change { changes, .. } => Some(address(changes)?.to),
                Step::Anew { port, .. } => Some(Value::String(port.common.policy.mac?.to_string())),
                _ => None, // added ports come last
            })
            .collect();
        let moves = self.steps.iter().filter_map(|step| match step {
            Step::Change { name, changes } => Some((name, address(changes)?.from)),
            _ => None,
        });
        let moves = moves.filter(|(_, from)| !from.is_null() && wanted.contains(from));
        moves.map(|(name, _)| name.clone()).collect()
    }
}

fn change(old: &PortSpec, new: &PortSpec) -> Option<Step> {
    // A file says nothing about that.
    let new = &PortSpec { made_by: old.made_by.clone(), ..new.clone() };
    let changes = changes(old, new);
    match changes.iter().any(|change| change.when == When::Anew) {
        _ if changes.is_empty() => None,
        true => Some(Step::Anew { port: new.clone(), changes }),
        false => Some(Step::Change { name: new.name().clone(), changes }),
    }
}

/// Switches that go, come, or are set up in another way.
fn switches(running: &ConfigReport, wanted: &ConfigReport) -> Vec<Step> {
    let (old, new) = (&running.switches, &wanted.switches);
    let find =
        |all: &[SwitchSpec], name: &SwitchName| all.iter().find(|switch| switch.name == *name).cloned();
    let removed = old.iter().filter(|switch| find(new, &switch.name).is_none());
    let removed = removed.map(|switch| Step::RemoveSwitch { name: switch.name.clone() });
    let others = new.iter().filter_map(|switch| match find(old, &switch.name) {
        None => Some(Step::AddSwitch { switch: switch.clone() }),
        Some(other) => set_switch(&other, switch),
    });
    removed.chain(others).collect()
}

/// The switch that is always there: keys that the file leaves out stay as they are.
fn default_switch(running: &Settings, wanted: &Settings) -> Option<Step> {
    let spec = |settings: &Settings| {
        let Settings { module, fdb_entries, controller, fail_mode, .. } = settings.clone();
        SwitchSpec::default_of(module.unwrap_or_default(), fdb_entries, controller, fail_mode)
    };
    let old = spec(running);
    let table = |module: &ModuleName| SwitchSpec { module: module.clone(), ..old.clone() }.table();
    let mut all = wanted.clone().over(running.clone());
    // A table is not meant for a module that has none.
    all.fdb_entries =
        all.fdb_entries.filter(|_| all.module.as_ref().is_none_or(|module| table(module).is_some()));
    set_switch(&old, &spec(&all))
}

/// Most of a switch can change while it runs.
fn set_switch(old: &SwitchSpec, new: &SwitchSpec) -> Option<Step> {
    let (from, to) = (old.options_text(), new.options_text());
    if from == to {
        return None;
    }
    if SwitchChange::to(new).of(old).is_err() {
        let key = format!("switch {}", new.name);
        return Some(Step::Restart { key, from: from.into(), to: to.into() });
    }
    Some(Step::SetSwitch { switch: new.clone(), from, to })
}

/// Keys of the settings that are the default switch's.
const SWITCH_KEYS: [&str; 4] = ["module", "fdb_entries", "controller", "fail_mode"];

fn restarts<'a>(running: &'a ConfigReport, wanted: &'a ConfigReport) -> impl Iterator<Item = Step> + 'a {
    let settings = |report: &ConfigReport| match serde_json::to_value(&report.settings) {
        Ok(Value::Object(settings)) => settings,
        _ => serde_json::Map::new(),
    };
    let old = settings(running);
    let given = settings(wanted)
        .into_iter()
        .filter(|(key, to)| !to.is_null() && !SWITCH_KEYS.contains(&key.as_str()));
    given.filter_map(move |(key, to)| {
        let from = old.get(&key).cloned().unwrap_or_default();
        (from != to).then(|| Step::Restart { key: key.replace('_', "-"), from, to })
    })
}

/// A line for each vnic or static entry that comes (`+`), goes (`-`) or changes (`~`), and for changes that take a restart (`!`).
pub fn lines(plan: &Plan) -> String {
    plan.steps.iter().map(step).collect()
}

fn step(step: &Step) -> String {
    match step {
        Step::Remove { name } => format!("- port {name}\n"),
        Step::Add { port } => format!("+ port {}\n", port.name()),
        Step::RemoveSwitch { name } => format!("- switch {name}\n"),
        Step::AddSwitch { switch } => format!("+ switch {}\n", switch.name),
        Step::SetSwitch { switch, from, to } => format!("~ switch {}: {from} -> {to}\n", switch.name),
        Step::Change { name, changes } => changes
            .iter()
            .map(|change| format!("~ port {name} {}{}\n", change.text(), effect(change)))
            .collect(),
        Step::Anew { port, changes } => {
            let guest = if port.is_vhost_user() { ": its guest attaches again" } else { "" };
            let line =
                |change: &Change| format!("~ port {} {} (made anew{guest})\n", port.name(), change.text());
            changes.iter().map(line).collect()
        }
        Step::Forget { entry } => format!("- fdb {}\n", entry_text(entry)),
        Step::Enter { entry } => format!("+ fdb {}\n", entry_text(entry)),
        Step::SetAcl { rules, from } => acl_lines(rules, from),
        Step::Restart { key, from, to } => {
            format!("! {key}: {} -> {} (takes a restart of the switch)\n", value_text(from), value_text(to))
        }
    }
}

/// The rules that go and come; if these are the same ones, their order is another.
fn acl_lines(rules: &[AclRule], from: &[AclRule]) -> String {
    let line = |sign: char, rule: &AclRule| format!("{sign} acl {}: {}\n", rule.name, rule.text());
    let gone = from.iter().filter(|rule| !rules.contains(rule)).map(|rule| line('-', rule));
    let new = rules.iter().filter(|rule| !from.contains(rule)).map(|rule| line('+', rule));
    let lines: String = gone.chain(new).collect();
    if lines.is_empty() { "~ acl: the rules in another order\n".to_owned() } else { lines }
}

fn entry_text(entry: &StaticEntry) -> String {
    let vlan = entry.vlan.map_or_else(String::new, |vid| format!(" vlan {vid}"));
    format!("{} dev {}{vlan}", entry.mac, entry.port)
}

fn effect(change: &Change) -> &'static str {
    match change.when {
        When::Attach => " (for the next guest that attaches)",
        When::Now | When::Anew => "",
    }
}

/// How many came, went and changed.
pub fn sum(plan: &Plan) -> String {
    let count = |is: fn(&Step) -> bool| plan.steps.iter().filter(|step| is(step)).count();
    let added = count(|step| matches!(step, Step::Add { .. } | Step::AddSwitch { .. } | Step::Enter { .. }));
    let removed =
        count(|step| matches!(step, Step::Remove { .. } | Step::RemoveSwitch { .. } | Step::Forget { .. }));
    let changed = count(|step| {
        matches!(step, Step::SetAcl { .. } | Step::Change { .. } | Step::SetSwitch { .. } | Step::Anew { .. })
    });
    format!("{added} added, {removed} removed, {changed} changed")
}

#[cfg(test)]
mod tests {
    use lasthop_api::modules::FdbEntries;
    use lasthop_api::port::vnic;
    use lasthop_api::workers::Workers;

    use super::*;

    fn report(vnics: &[&str]) -> ConfigReport {
        let ports = vnics.iter().map(|name| vnic(name).expect("a vnic")).collect();
        ConfigReport { ports, ..ConfigReport::default() }
    }

    fn plan(old: &[&str], new: &[&str]) -> Plan {
        Plan::new(&report(old), &report(new))
    }

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    #[test]
    fn a_supervisor_of_before_is_understood() {
        let told = serde_json::json!({"module": "flow", "vnics": [{"name": "a", "mode": "listen", "queues": 1,
            "features_off": [], "storm_broadcast": 0, "storm_multicast": 0, "storm_unknown": 0, "link": "up"}],
            "ports": [{"name": "eth1", "backend": "auto", "queues": 1, "host": "shared", "uplink": true}]});
        let running: ConfigReport = serde_json::from_value(told).expect("a report");
        let mut wanted = report(&["a"]);
        wanted.ports.push("eth1".parse().expect("a port"));
        assert!(Plan::new(&running, &wanted).is_empty());
        let now = ConfigReport {
            vnics: vec![lasthop_api::port::VnicForm(wanted.ports[0].clone())],
            ..wanted.clone()
        };
        assert!(Plan::new(&now, &wanted).is_empty(), "and one of today, who tells it twice");
    }

    #[test]
    fn what_is_the_same_is_left_alone() {
        assert!(plan(&["a,mtu=1400", "b"], &["b", "a,mtu=1400"]).is_empty());
    }

    /// A short word for each step, with its first change.
    fn words(plan: &Plan) -> Vec<String> {
        let word = |step: &Step| match step {
            Step::Remove { name } => format!("- {name}"),
            Step::Change { name, changes } => format!("~ {name} {}", changes[0].text()),
            Step::Anew { port, changes } => format!("! {} {}", port.name(), changes[0].text()),
            Step::Add { port } => format!("+ {}", port.name()),
            other => format!("{other:?}"),
        };
        plan.steps.iter().map(word).collect()
    }

    #[test]
    fn vnics_go_change_and_come() {
        let plan = plan(&["a", "b,mtu=1400", "c"], &["b,mtu=1500", "c,queues=2", "d"]);
        let words = words(&plan);
        assert_eq!(words, ["- a", "~ b mtu: 1400 -> 1500", "! c queues: 1 -> 2", "+ d"]);
        assert!(!plan.needs_restart());
    }

    #[test]
    fn switches_come_go_and_change() {
        let with = |switches: &[&str]| ConfigReport {
            switches: switches.iter().map(|switch| switch.parse().expect("a switch")).collect(),
            ..report(&[])
        };
        let plan = Plan::new(
            &with(&["a", "b", "c,module=bridge,fdb-entries=64", "e,module=flow"]),
            &with(&["b,fdb-entries=16384", "c,module=bridge", "e,module=flow,fdb-entries=64", "d"]),
        );
        let switch = |text: &str| text.parse().expect("a switch");
        let (from, to) = ("module=bridge,fdb-entries=64".into(), "module=bridge,fdb-entries=16384".into());
        let key = "switch e".to_owned();
        let restart = |from: &str, to: &str| Step::Restart { key, from: from.into(), to: to.into() };
        let expected = [
            Step::RemoveSwitch { name: "a".parse().expect("a name") },
            Step::SetSwitch { switch: switch("c,module=bridge"), from, to },
            restart("module=flow,fdb-entries=16384", "module=flow,fdb-entries=64"),
            Step::AddSwitch { switch: switch("d") },
        ];
        assert_eq!(plan.steps, expected);
    }

    #[test]
    fn ports_over_devices_come_go_change_and_are_made_anew() {
        let with = |ports: &[&str]| ConfigReport {
            ports: ports.iter().map(|port| port.parse().expect("a port")).collect(),
            ..ConfigReport::default()
        };
        let plan = Plan::new(
            &with(&["a", "b", "c,vlan=5", "e", "f"]),
            &with(&["b", "c,vlan=6", "d", "e,host=off", "f,backend=vhost-user"]),
        );
        let words = words(&plan);
        let expected =
            ["- a", "~ c vlan: 5 -> 6", "! e host: shared -> off", "! f backend: auto -> vhost-user", "+ d"];
        assert_eq!(words, expected);
    }

    #[test]
    fn entries_come_and_go_and_come_again_with_their_port() {
        let entry = |mac: u8, port: &str| StaticEntry {
            mac: lasthop_module_api::Mac([2, 0, 0, 0, 0, mac]),
            vlan: None,
            port: name(port),
        };
        let (mut old, mut new) = (report(&["a", "b", "c,vlan=5"]), report(&["a", "c,queues=2"]));
        old.fdb = vec![entry(1, "a"), entry(2, "a"), entry(3, "b"), entry(4, "c")];
        new.fdb = vec![entry(2, "a"), entry(4, "c"), entry(5, "a")];
        let plan = Plan::new(&old, &new);
        let entries = plan.steps.iter().filter_map(|step| match step {
            Step::Forget { entry } => Some(('-', entry.mac.0[5])),
            Step::Enter { entry } => Some(('+', entry.mac.0[5])),
            _ => None,
        });
        assert_eq!(entries.collect::<Vec<_>>(), [('-', 1), ('+', 4), ('+', 5)]);
        assert!(Plan::new(&new, &new).is_empty());
    }

    #[test]
    fn addresses_that_change_hands_are_freed_first() {
        let (one, two) = ("mac=02:00:00:00:00:01", "mac=02:00:00:00:00:02");
        let swap =
            plan(&[&format!("a,{one}"), &format!("b,{two}")], &[&format!("a,{two}"), &format!("b,{one}")]);
        assert_eq!(swap.addresses_to_free(), [name("a"), name("b")]);
        let chain = plan(&[&format!("a,{one}"), "b"], &["a", &format!("b,{one}")]);
        assert_eq!(chain.addresses_to_free(), [name("a")]);
        let anew = plan(&["a", &format!("b,{one}")], &[&format!("a,{one},queues=2"), &format!("b,{two}")]);
        assert_eq!(anew.addresses_to_free(), [name("b")], "for one that is made anew, too");
        assert_eq!(plan(&["a"], &[&format!("a,{one}")]).addresses_to_free(), Vec::<Name>::new());
    }

    #[test]
    fn the_default_switch_changes_as_others_do() {
        let with = |module: &str, entries: Option<usize>| {
            let mut with = report(&[]);
            with.settings.module = Some(module.parse().expect("a module"));
            with.settings.fdb_entries = entries.map(FdbEntries);
            with
        };
        let steps = |old, new| Plan::new(&old, &new).steps;
        assert!(steps(with("bridge", Some(16384)), with("bridge", None)).is_empty());
        let [Step::SetSwitch { switch, .. }] = &steps(with("bridge", Some(64)), with("flow", None))[..]
        else {
            panic!("one step");
        };
        assert_eq!((switch.module.as_str(), switch.table()), ("flow", Some(64)));
        assert!(matches!(steps(with("bridge", Some(64)), with("dummy", None))[..], [Step::SetSwitch { .. }]));
    }

    #[test]
    fn settings_of_the_switch_are_compared_if_they_are_given() {
        let mut old = report(&[]);
        old.settings.workers = Some(Workers(2));
        let mut new = report(&[]);
        assert!(Plan::new(&old, &new).is_empty());
        new.settings.workers = Some(Workers(4));
        let plan = Plan::new(&old, &new);
        assert!(plan.needs_restart() && plan.steps.len() == 1, "{plan:?}");
    }
}
