//! Ports of every backend, one or all; and changes of a port, with the time at which they take effect.

use std::collections::BTreeMap;

use lasthop_api::leases::LeaseReport;
use lasthop_api::port::PeerKind;
use lasthop_api::port::change::{Change, When};
use lasthop_api::report::{DeviceStatus, DriverFacts, PortStatus, PortStatusList, SetReport};
use lasthop_device::FrameCount;
use lasthop_module_api::{PortVlans, StormLimits, Vid};

use super::fold::{for_screen, keys_for_screen};
use super::guest_port;
use super::table::Table;

/// Width of keys, with the spaces behind them.
const KEY_COLUMNS: usize = 14;

/// The subject of a line, and its text.
pub(super) type KeyLine = (String, String);

/// A line for each port: first those of guests, then those over devices, which have other facts.
pub(crate) fn port_list(list: &PortStatusList) -> String {
    if list.ports.is_empty() {
        return "no ports; make one with: lasthop port add NAME,backend=vhost-user, or NAME,device=DEVICE"
            .to_owned();
    }
    let guests = list.ports.iter().filter(|port| port.guest.is_some());
    let devices = list.ports.iter().filter(|port| port.device.is_some());
    let tables = [guest_port::table(guests.clone()), device_table(devices.clone())];
    let counts = [guests.count(), devices.count()];
    let shown = tables.iter().zip(counts).filter(|(_, count)| *count > 0).map(|(table, _)| table.text());
    let whys = list.ports.iter().filter_map(|port| Some(format!("{}: {}\n", port.name, port.why.as_ref()?)));
    let warnings = list
        .ports
        .iter()
        .flat_map(|port| port.warnings.iter().map(|warning| format!("warning: {}: {warning}\n", port.name)));
    shown.collect::<Vec<_>>().join("\n") + &for_screen(&whys.chain(warnings).collect::<String>())
}

fn device_table<'a>(ports: impl Iterator<Item = &'a PortStatus>) -> Table {
    let mut table = Table::new(&[
        "NAME",
        "DEVICE",
        "KIND",
        "STATE",
        "BACKEND",
        ">QUEUES",
        ">MTU",
        ">RECEIVED",
        ">SENT",
        ">DROPPED",
    ]);
    for port in ports {
        let Some(device) = &port.device else { continue };
        let counters = &device.counters;
        table.row([
            port.name.clone(),
            device.device.clone(),
            kind(port).to_owned(),
            port.state.clone(),
            device.backend.map_or("-", |backend| backend.name()).to_owned(),
            port.settings.common.queues.to_string(),
            or_dash(device.mtu),
            counters.from_device.frames.to_string(),
            counters.to_device.frames.to_string(),
            (counters.missed + counters.drops.values().sum::<u64>()).to_string(),
        ]);
    }
    table
}

/// The next step with a new port, or its state.
pub(crate) fn port_added(port: &PortStatus) -> String {
    if let Some((guest, backend)) = port.guest.as_ref().zip(port.settings.vhost_user()) {
        return guest_port::added(&port.name, guest, backend.mode);
    }
    let why = port.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    let device = port.device.as_ref().map_or("", |device| &device.device);
    format!("added {} over {device} ({}){why}", port.name, port.state)
}

/// All about one port.
pub(crate) fn port(port: &PortStatus) -> String {
    let common = &port.settings.common;
    let line = |key: &str, value: String| (key.to_owned(), value);
    let (first, last) = match (&port.guest, port.settings.vhost_user(), &port.device) {
        (Some(guest), Some(backend), _) => guest_port::lines(port, guest, backend),
        (_, _, Some(device)) => device_lines(port, device),
        _ => Default::default(),
    };
    let mut lines = vec![line("name", port.name.clone()), line("switch", common.switch.to_string())];
    lines.extend(first);
    lines.push(line("vlans", vlans_text(&common.policy.vlans)));
    if common.policy.is_isolated {
        lines.push(line("isolated", "yes: talks to ports that are not".to_owned()));
    }
    if !common.policy.groups.is_empty() {
        lines.push(line("groups", common.policy.groups.join(" ")));
    }
    lines.extend(
        port.settings.made_by.iter().map(|maker| line("made by", format!("{maker}: apply leaves it alone"))),
    );
    lines.extend(port.leases.iter().map(|lease| line("leased", lease_text(lease))));
    if !common.features_off.is_empty() {
        lines.push(line("features off", common.features_off.joined()));
    }
    lines.extend(storm_text(common.policy.storm).map(|limits| line("storm limits", limits)));
    if !port.features.is_empty() {
        lines.push(line("negotiated", port.features.join(" ")));
    }
    lines.extend(last);
    lines.extend(port.warnings.iter().map(|warning| line("warning", warning.clone())));
    if port.guest.is_some() {
        lines.push(line("attach with", guest_port::attach_text(&port.name)));
    }
    let text: String = lines.iter().map(|(key, value)| format!("{key:<KEY_COLUMNS$}{value}\n")).collect();
    keys_for_screen(&text, KEY_COLUMNS)
}

/// Lines before and after those of ports of every backend.
fn device_lines(port: &PortStatus, device: &DeviceStatus) -> (Vec<KeyLine>, Vec<KeyLine>) {
    let common = &port.settings.common;
    let line = |key: &str, value: String| (key.to_owned(), value);
    let mut first = vec![
        line("device", format!("{} ({})", device.device, kind(port))),
        line("state", port.state.clone()),
    ];
    first.extend(port.why.as_ref().map(|why| line("", why.clone())));
    first.extend([
        line("backend", backend_text(port, device)),
        line("queues", common.queues.to_string()),
        line("mtu", or_dash(device.mtu)),
        line("mac", or_dash(device.mac.as_ref())),
    ]);
    if let Some(tap) = port.settings.tap().filter(|tap| !tap.address.is_empty()) {
        let addresses: Vec<String> = tap.address.iter().map(ToString::to_string).collect();
        first.push(line("address", addresses.join(" ")));
    }
    match port.settings.device() {
        _ if port.requested => {
            first.push(line("asked for", format!("by the controller of {}", common.switch)))
        }
        Some(settings) => first.push(line("host", settings.host.name().to_owned())),
        None => {}
    }
    if port.settings.device().is_some_and(|settings| settings.link_tracking) {
        first.push(line("link tracking", "guests have a link only while an uplink has one".to_owned()));
    }
    let driver = line("driver", driver_text(&device.driver));
    let counters = counter_lines(device).into_iter().map(|(key, value)| line(key, value));
    (first, std::iter::once(driver).chain(counters).collect())
}

/// An address that a DHCP server gave to the port.
fn lease_text(LeaseReport { address, vlan, seconds_left }: &LeaseReport) -> String {
    let vlan = vlan.map_or_else(String::new, |vlan| format!(" in VLAN {vlan}"));
    let end = seconds_left.map_or_else(|| "without end".to_owned(), |seconds| format!("for {seconds} s"));
    format!("{address}{vlan} {end}")
}

/// The VLANs that a port carries.
fn vlans_text(vlans: &PortVlans) -> String {
    let with_native =
        |native: &Option<Vid>| native.map_or_else(String::new, |vid| format!(", native {vid} (untagged)"));
    match vlans {
        PortVlans::Any => "all (frames pass as they are)".to_owned(),
        PortVlans::Access(vid) => format!("{vid} (access: untagged)"),
        PortVlans::Trunk { carried: Some(set), native } => {
            format!("{set} (trunk: tagged){}", with_native(native))
        }
        PortVlans::Trunk { carried: None, native } => format!("all (trunk: tagged){}", with_native(native)),
    }
}

/// Limits of floods, unless there are none.
fn storm_text(storm: StormLimits) -> Option<String> {
    let limits = [("broadcast", storm.broadcast), ("multicast", storm.multicast), ("unknown", storm.unknown)];
    let limits = limits.iter().filter(|(_, rate)| *rate > 0);
    let texts: Vec<String> = limits.map(|(kind, rate)| format!("{kind} {rate}/s")).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

fn counter_lines(port: &DeviceStatus) -> Vec<(&'static str, String)> {
    let counters = &port.counters;
    let mut lines =
        vec![("from device", flow_text(counters.from_device)), ("to device", flow_text(counters.to_device))];
    let missed = (counters.missed > 0).then(|| ("missed".to_owned(), counters.missed));
    let drops: BTreeMap<String, u64> = counters.drops.clone().into_iter().chain(missed).collect();
    if !drops.is_empty() {
        lines.push((
            "dropped",
            drops.iter().map(|(why, count)| format!("{why} {count}")).collect::<Vec<_>>().join(", "),
        ));
    }
    let (answers, withheld) = (counters.answers, counters.withheld);
    if answers + withheld > 0 {
        lines.push(("too big", format!("{answers} answered by ICMP, {withheld} held back")));
    }
    if let Some(inside) = &port.inside {
        let (rx, tx) = (inside.rx_packets, inside.tx_packets);
        lines.push(("in the switch", format!("{rx} frames in, {tx} out, {} dropped", inside.dropped())));
    }
    lines
}

fn flow_text(flow: FrameCount) -> String {
    format!("{} frames, {} bytes", flow.frames, flow.bytes)
}

fn kind(port: &PortStatus) -> &'static str {
    let tap = port.settings.tap();
    if port.requested {
        return if tap.is_some() { "internal" } else { "asked for" };
    }
    match (port.settings.leads(), tap.map(|tap| tap.address.is_empty())) {
        (PeerKind::Out, _) => "uplink",
        (PeerKind::Through, _) => "transit uplink",
        (PeerKind::Inside, Some(false)) => "host port",
        (PeerKind::Inside, Some(true)) => "tap",
        (PeerKind::Inside, None) => "guest's device",
    }
}

fn backend_text(port: &PortStatus, device: &DeviceStatus) -> String {
    let wanted = port.settings.device().map_or("tap", |device| device.io.name());
    match (device.backend, &device.backend_why) {
        (Some(backend), Some(why)) => format!("{}: {why}", backend.name()),
        (Some(backend), None) => backend.name().to_owned(),
        (None, _) => format!("none yet ({wanted} is asked for)"),
    }
}

fn driver_text(driver: &DriverFacts) -> String {
    let runs = driver.deaf.clone().or_else(|| driver.pid.map(|pid| format!("process {pid}")));
    let now = runs.unwrap_or_else(|| "being started again".to_owned());
    let ends = driver.last_end.as_ref().map_or_else(String::new, |end| {
        let (count, seconds) = (driver.restarts, end.ago_ms / 1000);
        let times = if count == 1 { "time" } else { "times" };
        format!(", started again {count} {times}; the last one {} {seconds} s ago", end.why)
    });
    now + &ends
}

pub(super) fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

/// A line for each key, without the end of the last one.
pub(crate) fn port_set(set: &SetReport) -> String {
    if set.changes.is_empty() {
        return format!("{} is like that already", set.name);
    }
    let line = |change: &Change| format!("{} {}{}", set.name, change.text(), effect(change, set));
    set.changes.iter().map(line).collect::<Vec<_>>().join("\n")
}

fn effect(change: &Change, set: &SetReport) -> String {
    match (change.when, change.key.as_str(), set.guest_told) {
        (When::Attach, ..) => " (for the next guest that attaches)".to_owned(),
        (_, "link", Some(true)) => " (its guest was told)".to_owned(),
        (_, "link", Some(false)) => format!(
            " (its guest cannot be told: its VMM takes no link state from a switch; QEMU: set_link net-{} {}; \
             libvirt: virsh domif-setlink)",
            set.name,
            if change.to == "up" { "on" } else { "off" }
        ),
        (_, "mac", _) if !change.to.is_null() => " (the only one that its guest may send from)".to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn text(key: &str, to: Value, when: When, guest_told: Option<bool>) -> String {
        let change = Change { key: key.to_owned(), from: Value::Null, to, when };
        port_set(&SetReport { name: "vm1".to_owned(), changes: vec![change], guest_told })
    }

    #[test]
    fn each_change_is_shown_with_its_effect() {
        assert_eq!(
            text("mtu", json!(1400), When::Attach, None),
            "vm1 mtu: - -> 1400 (for the next guest that attaches)"
        );
        assert_eq!(text("link", json!("down"), When::Now, None), "vm1 link: - -> down");
        assert!(text("link", json!("down"), When::Now, Some(true)).ends_with("down (its guest was told)"));
        assert!(text("link", json!("down"), When::Now, Some(false)).contains("set_link net-vm1 off"));
        let nothing = SetReport { name: "vm1".to_owned(), changes: vec![], guest_told: None };
        assert_eq!(port_set(&nothing), "vm1 is like that already");
    }
}
