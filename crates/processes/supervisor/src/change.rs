//! `port.set`: changes a port while its guest is attached.

use log::info;
use serde_json::{Map, Value};

use lasthop_api::orders::{Answer, Order};
use lasthop_api::port::PortSpec;
use lasthop_api::port::change::{self, Change};
use lasthop_api::report::SetReport;
use lasthop_fd_store::RecordKey;
use lasthop_listeners::{Caller, check_absolute};
use lasthop_runtime::fault::{Fault, Kind};

use super::Outputs;
use super::ports::Ports;
use super::question::{Changing, OrderPurpose, switch_process_down, to_json};
use super::switch_table::SwitchTable;
use lasthop_device_ports::placeholder::mtu_of;

impl Ports {
    /// Changes some keys of a port. If the switch refuses, they stay as they were.
    pub(super) fn set(
        &mut self,
        params: Value,
        caller: &Caller,
        switches: &SwitchTable,
        out: &mut Outputs,
    ) -> Result<Option<Value>, Fault> {
        let (name, keys) = name_and_keys(params)?;
        let number = self.table.find_in_form(&name, caller.in_vnic_form)?;
        let Some(port) = self.table.all.get(&number) else { return Ok(None) };
        let to = change::with_keys(&port.spec, keys)?;
        switches.check_switch_of(&to)?;
        self.change_port(number, to, Some(caller.clone()), out)
    }

    /// Like `set`, for a client that waits for a reply, or without one.
    pub(super) fn change_port(
        &mut self,
        number: u32,
        to: PortSpec,
        caller: Option<Caller>,
        out: &mut Outputs,
    ) -> Result<Option<Value>, Fault> {
        let Some(port) = self.table.all.get_mut(&number) else { return Ok(None) };
        let name = port.spec.common.name.to_string();
        check_absolute(&to)?;
        let changes = change::changes(&port.spec, &to);
        change::refuse_anew(to.name(), &changes, &to)?;
        if changes.is_empty() {
            return to_json(&SetReport { name, changes, guest_told: None }).map(Some);
        }
        if port.is_changing {
            return Err(Fault::refused(format!("port \"{name}\" is being changed; try again in a moment")));
        }
        if !out.switch_process.process.is_up() {
            return Err(switch_process_down());
        }
        port.set_access(&port.spec, &to).inspect_err(|_| {
            // Part of the change may have been made.
            let _ = port.set_access(&to, &port.spec);
        })?;
        port.is_changing = true;
        let order = Order::ChangePort(port.as_told(&to));
        out.switch_process.order(
            order,
            OrderPurpose::Changed(Box::new(Changing { port: number, to, changes })),
            caller,
        );
        Ok(None)
    }

    /// Handles the switch's reply to a change of a port.
    pub(super) fn changed(
        &mut self,
        changing: Changing,
        result: Result<Answer, Fault>,
        out: &mut Outputs,
    ) -> Result<Value, Fault> {
        let (number, asked_bytes) = (changing.port, mtu_of(&changing.to.common));
        let result = self.conclude_change(changing, result, out);
        self.heed_after_change(number, asked_bytes, out);
        result
    }

    fn conclude_change(
        &mut self,
        changing: Changing,
        result: Result<Answer, Fault>,
        out: &mut Outputs,
    ) -> Result<Value, Fault> {
        let Changing { port, to, changes } = changing;
        out.store.is_late(RecordKey::Port(port));
        let Some(port) = self.table.all.get_mut(&port) else {
            return Err(Fault::new(Kind::NoSuchVnic, "the port was deleted while it was being changed"));
        };
        port.is_changing = false;
        self.table.is_tracking_late = true;
        match result {
            Ok(answer) => {
                let what = changes.iter().map(Change::text).collect::<Vec<_>>().join(", ");
                info!(port:% = to.name(); "port {}: {what}", to.name());
                let name = to.name().to_string();
                port.spec = to;
                let is_mtu_other = changes.iter().any(|change| change.key == "mtu");
                port.placeholder
                    .iter()
                    .for_each(|placeholder| placeholder.follow(&port.spec.common, is_mtu_other));
                let guest_told = if let Answer::Changed { guest_told } = answer { guest_told } else { None };
                to_json(&SetReport { name, changes, guest_told })
            }
            Err(fault) => {
                // Restore the former access; it was possible before.
                let _ = port.set_access(&to, &port.spec);
                Err(fault)
            }
        }
    }
}

fn name_and_keys(params: Value) -> Result<(String, Map<String, Value>), Fault> {
    let Value::Object(mut keys) = params else {
        return Err(Fault::params("a change needs an object with \"name\" and the keys to change"));
    };
    match keys.remove("name") {
        Some(Value::String(name)) => Ok((name, keys)),
        _ => Err(Fault::params("\"name\" is missing; it is the port's, as text")),
    }
}
