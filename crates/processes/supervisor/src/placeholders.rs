//! Makes the vnics' placeholders, makes them again, and passes their changes on to the vnics.

use std::collections::BTreeSet;

use log::warn;
use serde_json::{Map, Value};

use lasthop_api::orders::Order;
use lasthop_api::port::{PortSpec, change};
use lasthop_api::switches::SwitchName;

use super::Outputs;
use super::port::Port;
use super::port_table::PortTable;
use super::ports::Ports;
use super::switch_process::SwitchProcess;
use super::switch_table::SwitchTable;
use lasthop_device_ports::placeholder::{Placeholder, mtu_of};
use lasthop_runtime::poller::Poller;

impl PortTable {
    /// Makes a vnic's placeholder if it needs one. Without it only Open vSwitch cannot use the vnic.
    pub(super) fn make_placeholder(&mut self, number: u32, switches: &SwitchTable, poller: &Poller) {
        let Some(port) = self.all.get(&number).filter(|port| port.device().is_none()) else { return };
        if !switches.has_outside_controller(&port.spec) {
            return;
        }
        let made = Placeholder::make(&port.spec.common);
        // To notice its deletion.
        let watched = self.watch_links(poller);
        let Some(port) = self.all.get_mut(&number) else { return };
        match made {
            Ok(placeholder) => port.placeholder = Some(placeholder),
            Err(error) => {
                warn!(limited = true, port:% = port.spec.common.name; "port {name}: Open vSwitch will not find it, for want of a tap of its name: {error}",
                name = port.spec.common.name)
            }
        }
        if let Err(fault) = watched {
            warn!(limited = true, port:% = port.spec.common.name; "port {}: {fault}", port.spec.common.name);
        }
    }

    /// Makes or removes the placeholders of a changed switch's vnics.
    pub(super) fn settle_placeholders(
        &mut self,
        switch: &SwitchName,
        switches: &SwitchTable,
        process: &mut SwitchProcess,
        poller: &Poller,
    ) {
        let own = self.all.iter().filter(|(_, port)| port.spec.common.switch == *switch);
        let own: Vec<u32> = own.map(|(number, _)| *number).collect();
        for number in own {
            let Some(port) = self.all.get(&number) else { continue };
            match (switches.has_outside_controller(&port.spec), port.placeholder.is_some()) {
                (true, false) => self.make_placeholder(number, switches, poller),
                (false, true) => {
                    if let Some(port) = self.all.get_mut(&number) {
                        port.placeholder = None;
                    }
                }
                _ => continue,
            }
            self.tell_of_placeholder(number, process);
        }
    }

    /// Handles news of devices: makes deleted placeholders again.
    pub(super) fn look_for_placeholders(
        &mut self,
        names: &BTreeSet<String>,
        switches: &SwitchTable,
        process: &mut SwitchProcess,
        poller: &Poller,
    ) {
        let is_lost = |port: &Port| {
            let placeholder =
                port.placeholder.as_ref().filter(|_| names.contains(port.spec.common.name.as_str()));
            placeholder.is_some_and(Placeholder::is_gone)
        };
        let lost: Vec<u32> =
            self.all.iter().filter(|(_, port)| is_lost(port)).map(|(number, _)| *number).collect();
        for number in lost {
            if let Some(port) = self.all.get_mut(&number) {
                port.placeholder = None;
            }
            self.make_placeholder(number, switches, poller);
            self.tell_of_placeholder(number, process);
        }
    }

    fn tell_of_placeholder(&self, number: u32, process: &mut SwitchProcess) {
        let Some(port) = self.all.get(&number) else { return };
        let device = port.placeholder.as_ref().map(Placeholder::host_device);
        process.tell(Order::HostDevice { name: port.spec.common.name.to_string(), device });
    }
}

impl Ports {
    /// After a vnic's change to an MTU of `asked_bytes`, applies later changes of its placeholder.
    pub(super) fn heed_after_change(&mut self, number: u32, asked_bytes: u32, out: &mut Outputs) {
        let Some(port) = self.table.all.get(&number) else { return };
        let mtu = port.placeholder.as_ref().and_then(|placeholder| placeholder.mtu_bytes(&port.spec.common));
        if mtu.is_some_and(|mtu| mtu != asked_bytes) {
            let name = port.spec.common.name.clone();
            self.heed_placeholders(|other| other == name.as_str(), out);
        }
    }

    /// Applies new MTUs of these placeholders to their ports. A port that cannot change now does it later.
    pub(super) fn heed_placeholders(&mut self, is_meant: impl Fn(&str) -> bool, out: &mut Outputs) {
        if !out.switch_process.process.is_up() {
            return;
        }
        let wanted = |port: &Port| {
            let may_change = !port.is_changing && is_meant(port.spec.common.name.as_str());
            let placeholder = port.placeholder.as_ref().filter(|_| may_change)?;
            let mtu =
                placeholder.mtu_bytes(&port.spec.common).filter(|mtu| *mtu != mtu_of(&port.spec.common))?;
            Some((port.spec.clone(), mtu))
        };
        let wanted: Vec<(u32, (PortSpec, u32))> =
            self.table.all.iter().filter_map(|(number, port)| Some((*number, wanted(port)?))).collect();
        for (number, (spec, mtu)) in wanted {
            let name = spec.common.name.clone();
            let keys = Map::from_iter([("mtu".to_owned(), Value::from(mtu))]);
            let changed =
                change::with_keys(&spec, keys).and_then(|to| self.change_port(number, to, None, out));
            if let Err(fault) = changed {
                warn!(limited = true, port:% = name; "port {name}: its tap was given an MTU of {mtu}, which its guest will not have: {}",
                    fault.message);
            }
        }
    }
}
