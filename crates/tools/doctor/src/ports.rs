//! Checks ports over devices and taps: the device, the driver process, and its losses.

use lasthop_api::facts::Facts;
use lasthop_api::report::{DeviceStatus, DriverFacts, DropCounts, PortStatus};
use lasthop_device::Backend;

use super::finding::{Finding, Link, Restarts, Verdict, YOUNG_MS, stopped};
use super::link::learning::duplicate;
use super::link::starved::Starved;

/// Losses of the driver process: name in the counters, meaning, remedy.
const LOSSES: &[(&str, &str, &str)] = &[
    (
        "device_full",
        "the device's queue was full: it is slower than the ports that send to it",
        "a longer queue: ip link set DEVICE txqueuelen 10000; or more queues= at the port",
    ),
    (
        "too_long",
        "guests send frames longer than the device's MTU",
        "give all the same MTU: ip link set DEVICE mtu BYTES, or lasthop port set NAME mtu=BYTES",
    ),
    (
        "truncated",
        "frames from the device were longer than 64 KiB",
        "turn off offloads there: ethtool -K DEVICE gro off",
    ),
    (
        "bad_offload",
        "frames from the device have offloads that virtio cannot express",
        "turn off offloads there: ethtool -K DEVICE gro off lro off",
    ),
    (
        "refused",
        "the kernel refused frames",
        "see the host's log (dmesg), and that the device takes such frames",
    ),
];

/// Same for a tunnel port, where they differ: there is no device, and the path has the MTU.
const TUNNEL_LOSSES: &[(&str, &str, &str)] = &[
    (
        "device_full",
        "a queue of the host's device was full: it is slower than the guests that send into tunnels",
        "see tc -s qdisc show for the device that the tunnel's packets leave by",
    ),
    (
        "too_long",
        "guests send packets longer than the path of their tunnel takes",
        "give them a smaller MTU: 50 bytes less than the path over IPv4, 70 over IPv6, with OVN 8 more; or the tunnel options:df_default=false",
    ),
];

/// The remedy for frames that the driver process did not read in time.
const MISSED_REMEDY: &str = "give the driver process more CPU time, or the port more queues=";

/// All findings about a port, from facts of two times. For the switch's health only losses between them count, and no
/// address of a guest.
pub(super) fn chain(
    before: &PortStatus,
    port: &PortStatus,
    facts: &Facts,
    is_of_switch: bool,
) -> Vec<Finding> {
    let Some((before, now)) = before.device.as_ref().zip(port.device.as_ref()) else { return Vec::new() };
    let shared = duplicate(facts, &port.name).filter(|_| !is_of_switch);
    let links = [
        Some((Link::Driver, driver(&now.driver))),
        Some((Link::Device, device(port, now))),
        shared.map(|verdict| (Link::Learning, verdict)),
        Some((Link::Drops, drops(&port.name, before, now, is_of_switch))),
    ];
    links.into_iter().flatten().map(|(link, verdict)| verdict.about(Some(&port.name), link)).collect()
}

fn driver(driver: &DriverFacts) -> Verdict {
    let restarts = Restarts {
        process: "driver",
        number: driver.restarts,
        last_end: driver.last_end.as_ref(),
        remedy: "see the log of lasthop run; report it as a bug; if a device causes it, remove its port (lasthop port del)",
    };
    let Some(pid) = driver.pid else { return restarts.down() };
    if let Some(stopped) = stopped("driver", pid, "no frame passes between devices and the switch") {
        return stopped;
    }
    match &driver.deaf {
        Some(why) => Verdict::broken(
            why,
            format!(
                "the supervisor restarts one that hangs; if it lasts: kill {pid}, and another one starts"
            ),
        ),
        None if restarts.last_end.is_some_and(|end| end.ago_ms < YOUNG_MS) => restarts.young("ended"),
        None => Verdict::ok(format!("process {pid}, {}", restarts.text())),
    }
}

fn device(port: &PortStatus, now: &DeviceStatus) -> Verdict {
    let (name, why) = (&now.device, port.why.clone().unwrap_or_default());
    match port.state.as_str() {
        "up" if now.is_of_bridge => Verdict::warning(
            format!(
                "{name} is a port of a Linux bridge, too: the host and the switch both forward each frame, and frames may loop"
            ),
            format!(
                "take it out of the bridge: ip link set {name} nomaster; or lasthop port del {}",
                port.name
            ),
        ),
        "up" => Verdict::ok(format!(
            "{name} is up, {}, MTU {}",
            now.backend.map_or("no back end", |backend| backend.name()),
            now.mtu.unwrap_or_default()
        )),
        "no device" => Verdict::broken(
            why,
            format!(
                "ip link shows the devices; for one of another namespace: ip netns exec THERE ip link set {name} netns PID, with the PID of lasthop run"
            ),
        ),
        "down" if port.requested && port.settings.tap().is_some() => {
            Verdict::ok(format!("{name} is down, as a controller asked for it and it was not set up"))
        }
        "down" => Verdict::broken(why, format!("ip link set {name} up")),
        "no carrier" => Verdict::broken(
            format!("{name} has no carrier"),
            format!("check its cable and the other end; ethtool {name} shows the device's link"),
        ),
        "driver restarting" | "switch restarting" => Verdict::not_reached(),
        state if why.is_empty() => {
            Verdict::warning(format!("{name} is not served yet ({state})"), "ask again in a moment")
        }
        state => Verdict::broken(
            format!("{name} is not served ({state}): {why}"),
            format!("remedy the cause, or remove the port: lasthop port del {}", port.name),
        ),
    }
}

fn drops(name: &str, before: &DeviceStatus, port: &DeviceStatus, is_of_switch: bool) -> Verdict {
    let (earlier, counters) = (&before.counters, &port.counters);
    if !counters.conserved {
        return Verdict::warning(
            "frames are not accounted for",
            "report this as a bug, with lasthop port show --json",
        );
    }
    let starved = port.inside.as_ref().and_then(|inside| Starved::of(before.inside.as_ref(), inside));
    if let Some(starved) = starved.filter(|starved| !is_of_switch && starved.matters_from_device()) {
        let (cause, remedy) = starved.of_device(name);
        return Verdict::broken(starved.text("frame from the device", &cause), remedy);
    }
    let missed = ("frames were lost before the driver process took them", MISSED_REMEDY);
    let missed = (missed.0, missed.1, earlier.missed, counters.missed);
    let of = |drops: &DropCounts, reason: &str| drops.get(reason).copied().unwrap_or(0);
    let is_tunnel = matches!(port.backend, Some(Backend::Udp | Backend::Raw));
    let dropped = LOSSES.iter().map(|loss| {
        let of_tunnel = TUNNEL_LOSSES.iter().find(|(reason, _, _)| is_tunnel && *reason == loss.0);
        let (reason, what, remedy) = *of_tunnel.unwrap_or(loss);
        (what, remedy, of(&earlier.drops, reason), of(&counters.drops, reason))
    });
    let mut found: Vec<_> = [missed].into_iter().chain(dropped).filter(|(_, _, _, now)| *now > 0).collect();
    found.sort_by_key(|(_, _, before, now)| now <= before);
    let Some((what, remedy, before, lost)) = found.first() else {
        return Verdict::ok("none that indicate a fault");
    };
    let is_going_on = lost > before;
    let text = format!("{what} ({lost} lost, {})", if is_going_on { "now" } else { "earlier" });
    if is_of_switch && !is_going_on {
        return Verdict::ok(format!("none now; {text}"));
    }
    Verdict::warning(text, remedy.replace("DEVICE", &port.device))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::finding::State;
    use lasthop_api::report::PortReport;

    fn port(state: &str, drops: serde_json::Value) -> PortStatus {
        let flow = json!({"frames": 0, "bytes": 0});
        let counters = json!({"from_device": flow, "to_switch": flow, "from_switch": flow, "to_device": flow,
            "missed": 0, "drops": drops, "waiting": 0, "conserved": true});
        serde_json::from_value(json!({
            "name": "wan", "settings": {"name": "wan", "device": "eth1"}, "device": "eth1", "state": state,
            "why": null, "backend": "af_packet", "backend_why": null, "mtu": 1500, "mac": null, "has_link": true,
            "features": [], "driver": {"pid": 7, "restarts": 0, "last_end": null}, "counters": counters, "inside": null
        }))
        .expect("a report")
    }

    fn judged(port: &PortStatus) -> Verdict {
        device(port, port.device.as_ref().expect("a device"))
    }

    fn lost(before: &PortStatus, port: &PortStatus, is_of_switch: bool) -> Verdict {
        let device = |port: &PortStatus| port.device.clone().expect("a device");
        drops("wan", &device(before), &device(port), is_of_switch)
    }

    fn chain_of(port: &PortStatus) -> Vec<Finding> {
        chain(port, port, &Facts::default(), false)
    }

    #[test]
    fn a_sound_port_has_no_complaint() {
        let states: Vec<State> =
            chain_of(&port("up", json!({"device_down": 3}))).iter().map(|finding| finding.state).collect();
        assert_eq!(states, [State::Ok; 3]);
    }

    #[test]
    fn a_driver_process_that_does_not_answer_is_broken() {
        let mut deaf = port("up", json!({}));
        let facts = deaf.device.as_mut().map(|device| &mut device.driver).expect("a device");
        facts.deaf =
            Some("the driver process (process 7) does not answer: it waits for the kernel (D)".into());
        let verdict = driver(facts);
        assert!(
            verdict.state == State::NotOk && verdict.text.ends_with("waits for the kernel (D)"),
            "{verdict:?}"
        );
    }

    #[test]
    fn an_internal_port_may_be_down() {
        let mut internal = port("down", json!({}));
        internal.requested = true;
        assert_eq!(judged(&internal).state, State::NotOk, "a device is of no use so");
        internal.settings = "in1,tap=in1".parse().expect("a port");
        assert_eq!(judged(&internal).state, State::Ok);
    }

    #[test]
    fn what_is_missing_and_what_is_lost_have_remedies() {
        for (state, remedy) in
            [("no device", "ip link"), ("down", "ip link set eth1 up"), ("no carrier", "cable")]
        {
            let verdict = judged(&port(state, json!({})));
            assert_eq!(verdict.state, State::NotOk);
            assert!(verdict.remedy.as_ref().is_some_and(|text| text.contains(remedy)), "{verdict:?}");
        }
        for (reason, _, _) in LOSSES {
            let [one, three] = [1, 3].map(|count| port("up", json!({*reason: count})));
            let verdict = lost(&three, &three, false);
            assert!(
                verdict.state == State::Warning && verdict.text.contains("(3 lost, earlier)"),
                "{verdict:?}"
            );
            let verdict = lost(&one, &three, true);
            assert!(verdict.state == State::Warning && verdict.text.contains("(3 lost, now)"), "{verdict:?}");
        }
    }

    #[test]
    fn frames_that_the_switch_drops_are_told_unless_that_is_usual() {
        let with = |reason: &str, count: u64| {
            let mut port = port("up", json!({}));
            let rx_drops = [(reason.to_owned(), count)].into();
            let inside = PortReport { rx_packets: count, rx_drops, ..PortReport::default() };
            port.device.as_mut().expect("a device").inside = Some(inside);
            port
        };
        let starved = with("vlan_not_carried", 40);
        let verdict = lost(&starved, &starved, false);
        assert!(
            verdict.state == State::NotOk && verdict.text.starts_with("every frame from the device"),
            "{verdict:?}"
        );
        assert!(verdict.remedy.is_some_and(|remedy| remedy.contains("trunk=")));
        assert_eq!(lost(&starved, &starved, true).state, State::Ok, "a matter of its settings");
        for quiet in [with("vlan_not_carried", 3), with("port_down", 40), with("flow_drop", 1)] {
            assert_eq!(lost(&quiet, &quiet, false).state, State::Ok);
        }
    }

    #[test]
    fn packets_too_long_for_a_tunnel_are_no_matter_of_a_device() {
        let mut tunnel = port("up", json!({"too_long": 3}));
        tunnel.device.as_mut().expect("a device").backend = Some(Backend::Udp);
        let verdict = lost(&tunnel, &tunnel, false);
        assert!(verdict.text.contains("path of their tunnel"), "{verdict:?}");
        assert!(verdict.remedy.is_some_and(|remedy| remedy.contains("df_default=false")));
        let mut tunnel = port("up", json!({"device_full": 3}));
        tunnel.device.as_mut().expect("a device").backend = Some(Backend::Raw);
        let verdict = lost(&tunnel, &tunnel, false);
        assert!(verdict.remedy.is_some_and(|remedy| remedy.contains("tc -s qdisc")));
    }

    #[test]
    fn the_health_of_the_switch_is_that_of_now() {
        let lossy = port("up", json!({"device_full": 3, "refused": 9}));
        let verdict = lost(&lossy, &lossy, true);
        assert!(verdict.state == State::Ok && verdict.text.contains("none now"), "{verdict:?}");
        let mut missed = lossy.clone();
        missed.device.as_mut().expect("a device").counters.missed = 7;
        let verdict = lost(&lossy, &missed, true);
        assert_eq!(verdict.state, State::Warning);
        assert!(verdict.text.contains("took them (7 lost, now)"), "{verdict:?}");
    }
}
