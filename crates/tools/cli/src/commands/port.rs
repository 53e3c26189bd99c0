//! `lasthop port`: device ports of a running switch.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::show;
use lasthop_api::report::{DevicePortList, DevicePortReport};
use lasthop_runtime::fault::Fault;

use super::PortCommand;
use super::ask::ApiRequest;
use super::client::ask;

impl ApiRequest {
    pub(super) fn port(&self, command: PortCommand) -> Result<ExitCode, Fault> {
        match command {
            PortCommand::Add { port } => {
                let made: DevicePortReport = ask(&self.dir, "port.add", &port)?;
                self.show(&made, show::port_added)
            }
            PortCommand::Del { name } => {
                let done: Value = ask(&self.dir, "port.del", &json!({"name": name}))?;
                self.show(&done, |_| format!("deleted {name}"))
            }
            PortCommand::List => {
                let list: DevicePortList = ask(&self.dir, "port.list", &json!({}))?;
                self.show(&list, show::port_list)
            }
            PortCommand::Show { name } => {
                let port: DevicePortReport = ask(&self.dir, "port.show", &json!({"name": name}))?;
                self.show(&port, show::port)
            }
        }
    }
}
