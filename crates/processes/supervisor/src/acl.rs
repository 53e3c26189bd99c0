//! Requests about rules: the supervisor stores them, and passes them to the controller process.

use serde::Deserialize;
use serde_json::Value;

use lasthop_api::acl::{self, AclRule, check_rules, name_all};
use lasthop_api::names;
use lasthop_api::port::PortCommon;
use lasthop_api::report::{AclLine, AclReport};
use lasthop_api::rpc;
use lasthop_api::switches::SwitchSpec;
use lasthop_fd_store::{RecordKey, RecordStore};
use lasthop_runtime::fault::Fault;

use super::port_table::PortTable;
use super::question::to_json;
use super::switch_table::SwitchTable;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DelParams {
    name: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddParams {
    rule: AclRule,
    /// The rule before which it is inserted; without one it becomes the last.
    before: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetParams {
    rules: Vec<AclRule>,
}

impl SwitchTable {
    /// All rules, each with its ports.
    pub(super) fn acl_report(&self, ports: &PortTable) -> AclReport {
        let mut all: Vec<&PortCommon> = ports.all.values().map(|port| &port.spec.common).collect();
        all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        let line = |rule: &AclRule| {
            let own = all.iter().filter(|port| rule.protects(port.name.as_str(), &port.policy.groups));
            AclLine { rule: rule.clone(), ports: own.map(|port| port.name.to_string()).collect() }
        };
        AclReport { rules: self.acl.iter().map(line).collect() }
    }

    /// Adds a rule, removes one, or replaces all. The controller gets them before anything else is served.
    pub(super) fn change_rules(
        &mut self,
        method: &str,
        params: Value,
        ports: &PortTable,
        store: &mut RecordStore,
    ) -> Result<Value, Fault> {
        match method {
            "acl.add" => {
                let AddParams { rule, before } = rpc::params(params)?;
                let at = before.map_or(Ok(self.acl.len()), |name| self.position(&name))?;
                let mut rules = self.acl.clone();
                rules.insert(at, rule);
                self.set_rules(rules, ports, store)?;
                to_json(&self.acl_report(ports).rules.swap_remove(at))
            }
            "acl.del" => {
                let DelParams { name } = rpc::params(params)?;
                let mut rules = self.acl.clone();
                rules.remove(self.position(&name)?);
                self.set_rules(rules, ports, store).map(|()| Value::Bool(true))
            }
            _ => {
                let SetParams { rules } = rpc::params(params)?;
                self.set_rules(rules, ports, store)?;
                to_json(&self.acl_report(ports))
            }
        }
    }

    fn set_rules(
        &mut self,
        mut rules: Vec<AclRule>,
        ports: &PortTable,
        store: &mut RecordStore,
    ) -> Result<(), Fault> {
        name_all(&mut rules);
        check_rules(&rules)?;
        check_members(&rules, &self.all, ports)?;
        self.acl = rules;
        store.is_late(RecordKey::Head);
        Ok(())
    }

    /// Refuses a change of a switch that has ports with rules and would not enforce them any more.
    pub(super) fn check_rules_with(&self, changed: &SwitchSpec, ports: &PortTable) -> Result<(), Fault> {
        let as_changed =
            |switch: &SwitchSpec| if switch.name == changed.name { changed } else { switch }.clone();
        check_members(&self.acl, &self.all.iter().map(as_changed).collect::<Vec<_>>(), ports)
    }

    fn position(&self, name: &str) -> Result<usize, Fault> {
        let found = self.acl.iter().position(|rule| rule.name.as_str() == name);
        found.ok_or_else(|| {
            let hint = names::hint(name, self.acl.iter().map(|rule| rule.name.as_str()));
            Fault::params(format!("there is no rule \"{name}\"{hint}; see the list: lasthop acl list"))
        })
    }
}

fn check_members(rules: &[AclRule], switches: &[SwitchSpec], ports: &PortTable) -> Result<(), Fault> {
    let mut all = ports.all.values();
    all.try_for_each(|port| acl::check_switch_of(rules, switches, &port.spec))
}
