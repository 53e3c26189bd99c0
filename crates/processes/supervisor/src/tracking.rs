//! Link tracking: guests of a switch have a link only while one of its tracked uplinks has one.

use std::collections::BTreeMap;

use log::info;

use lasthop_api::orders::Order;
use lasthop_api::switches::SwitchName;
use lasthop_device_ports::DevicePort;
use lasthop_netdev::links::Links;

use super::port::Port;
use super::port_table::PortTable;
use super::question::OrderPurpose;
use super::switch_process::SwitchProcess;

impl PortTable {
    /// Tells the switch which guests' links go down or up.
    pub(super) fn track_uplinks(&mut self, switch: &mut SwitchProcess) {
        let is_known = self.links.as_ref().is_some_and(Links::is_complete);
        if !is_known || !std::mem::take(&mut self.is_tracking_late) {
            return;
        }
        let has_link = has_link(self.all.values());
        let mut orders = Vec::new();
        for port in self.all.values_mut().filter(|port| port.device().is_none() && !port.is_changing) {
            let is_cut = has_link.get(&port.spec.common.switch) == Some(&false);
            if std::mem::replace(&mut port.is_cut, is_cut) != is_cut {
                let (name, what) =
                    (&port.spec.common.name, if is_cut { "goes down with" } else { "is up again, as is" });
                info!(limited = true, port:% = name; "port {name}: its link {what} the uplinks'");
                orders.push(Order::ChangePort(port.as_told(&port.spec)));
            }
        }
        // A starting switch process gets it with the port.
        if switch.process.is_up() {
            orders.into_iter().for_each(|order| switch.order(order, OrderPurpose::Tracked, None));
        }
    }
}

/// Switches with tracked uplinks, and whether one of these has a link.
fn has_link<'a>(ports: impl Iterator<Item = &'a Port>) -> BTreeMap<SwitchName, bool> {
    let mut switches = BTreeMap::new();
    let tracked = ports.filter(|port| port.spec.device().is_some_and(|device| device.link_tracking));
    for port in tracked {
        let has_link = port.device().is_some_and(DevicePort::has_link);
        *switches.entry(port.spec.common.switch.clone()).or_default() |= has_link;
    }
    switches
}
