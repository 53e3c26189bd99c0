//! `lasthop switch`: the switches of a running process.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::show;
use lasthop_api::report::{SwitchList, SwitchReport};
use lasthop_api::switches::SwitchChange;
use lasthop_runtime::fault::Fault;

use super::SwitchCommand;
use super::ask::ApiRequest;
use super::client::ask;

impl ApiRequest {
    pub(super) fn switch(&self, command: SwitchCommand) -> Result<ExitCode, Fault> {
        match command {
            SwitchCommand::Add { switch } => {
                let made: SwitchReport = ask(&self.dir, "switch.add", &switch)?;
                self.show(&made, show::switch_added)
            }
            SwitchCommand::Set { name, keys } => {
                let change = SwitchChange::parse(name, &keys)?;
                let set: SwitchReport = ask(&self.dir, "switch.set", &change)?;
                self.show(&set, |set| format!("switch {} is of module {}", set.name, set.module))
            }
            SwitchCommand::Del { name } => {
                let done: Value = ask(&self.dir, "switch.del", &json!({"name": name}))?;
                self.show(&done, |_| format!("deleted switch {name}"))
            }
            SwitchCommand::List => {
                let list: SwitchList = ask(&self.dir, "switch.list", &json!({}))?;
                self.show(&list, show::switch_list)
            }
        }
    }
}
