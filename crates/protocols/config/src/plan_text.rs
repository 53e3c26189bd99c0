//! The steps that bring the switch in line with a file, planned or done.

use crate::plan::{Plan, Step};
use lasthop_api::acl::AclRule;
use lasthop_api::fdb::StaticEntry;
use lasthop_api::port::change::{Change, When, value_text};

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
