//! Device ports, one or all.

use std::collections::BTreeMap;

use lasthop_device::FrameCount;

use lasthop_api::port::Leads;
use lasthop_api::report::{DevicePortList, DevicePortReport, DriverFacts};

use super::table::Table;
use super::vnic::vlans_text;

/// A line for each device port.
pub(crate) fn port_list(list: &DevicePortList) -> String {
    if list.ports.is_empty() {
        return "no ports over devices; make one with: lasthop port add NAME,device=DEVICE".to_owned();
    }
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
    for port in &list.ports {
        let counters = &port.counters;
        table.row([
            port.name.clone(),
            port.device.clone(),
            kind(port).to_owned(),
            port.state.clone(),
            port.backend.map_or("-", |backend| backend.name()).to_owned(),
            port.settings.queues.to_string(),
            or_dash(port.mtu),
            counters.from_device.frames.to_string(),
            counters.to_device.frames.to_string(),
            (counters.missed + counters.drops.values().sum::<u64>()).to_string(),
        ]);
    }
    let whys = list.ports.iter().filter_map(|port| Some(format!("{}: {}\n", port.name, port.why.as_ref()?)));
    let warnings = list
        .ports
        .iter()
        .flat_map(|port| port.warnings.iter().map(|warning| format!("warning: {}: {warning}\n", port.name)));
    table.text() + &whys.chain(warnings).collect::<String>()
}

/// The state of a new port.
pub(crate) fn port_added(port: &DevicePortReport) -> String {
    let why = port.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
    format!("added {} over {} ({}){why}", port.name, port.device, port.state)
}

/// All about one device port.
pub(crate) fn port(port: &DevicePortReport) -> String {
    let mut text = String::new();
    let mut line = |key: &str, value: String| text.push_str(&format!("{key:<14}{value}\n"));
    let settings = &port.settings;
    line("name", port.name.clone());
    line("switch", settings.switch.to_string());
    line("device", format!("{} ({})", port.device, kind(port)));
    line("state", port.state.clone());
    if let Some(why) = &port.why {
        line("", why.clone());
    }
    line("backend", backend_text(port));
    line("queues", settings.queues.to_string());
    line("mtu", or_dash(port.mtu));
    line("mac", or_dash(port.mac.as_ref()));
    if !settings.address.is_empty() {
        line("address", settings.address.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "));
    }
    if port.requested {
        line("asked for", format!("by the controller of {}", settings.switch));
    } else if !settings.is_tap() {
        line("host", settings.host.name().to_owned());
    }
    if settings.link_tracking {
        line("link tracking", "guests have a link only while an uplink has one".to_owned());
    }
    line("vlans", vlans_text(settings.vlan, settings.trunk.as_ref(), settings.native));
    if settings.isolated {
        line("isolated", "yes: talks to vnics that are not".to_owned());
    }
    if !port.features.is_empty() {
        line("negotiated", port.features.join(" "));
    }
    line("driver", driver_text(&port.driver));
    for (key, value) in counter_lines(port) {
        line(key, value);
    }
    for warning in &port.warnings {
        line("warning", warning.clone());
    }
    text
}

fn counter_lines(port: &DevicePortReport) -> Vec<(&'static str, String)> {
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
    if let Some(inside) = &port.inside {
        let (rx, tx) = (inside.rx_packets, inside.tx_packets);
        lines.push(("in the switch", format!("{rx} frames in, {tx} out, {} dropped", inside.dropped())));
    }
    lines
}

fn flow_text(flow: FrameCount) -> String {
    format!("{} frames, {} bytes", flow.frames, flow.bytes)
}

fn kind(port: &DevicePortReport) -> &'static str {
    if port.requested {
        return if port.settings.is_tap() { "internal" } else { "asked for" };
    }
    match (port.settings.leads(), port.settings.is_tap(), port.settings.address.is_empty()) {
        (Leads::Out, ..) => "uplink",
        (Leads::Through, ..) => "transit uplink",
        (Leads::Inside, true, false) => "host port",
        (Leads::Inside, true, true) => "tap",
        (Leads::Inside, false, _) => "guest's device",
    }
}

fn backend_text(port: &DevicePortReport) -> String {
    let wanted = port.settings.backend.name();
    match (port.backend, &port.backend_why) {
        (Some(backend), Some(why)) => format!("{}: {why}", backend.name()),
        (Some(backend), None) => backend.name().to_owned(),
        (None, _) => format!("none yet ({wanted} is asked for)"),
    }
}

fn driver_text(driver: &DriverFacts) -> String {
    let now = driver.pid.map_or_else(|| "being started again".to_owned(), |pid| format!("process {pid}"));
    let ends = driver.last_end.as_ref().map_or_else(String::new, |end| {
        let (count, seconds) = (driver.restarts, end.ago_ms / 1000);
        let times = if count == 1 { "time" } else { "times" };
        format!(", started again {count} {times}; the last one {} {seconds} s ago", end.why)
    });
    now + &ends
}

fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}
