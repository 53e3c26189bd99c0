//! Ports over devices: their driver process, and frames that the switch drops.

use std::net::UdpSocket;

use rustix::process::Signal;
use serde_json::Value;

use lasthop_rig::namespaces::{Namespace, may};
use lasthop_rig::{Switch, eventually, signal, stop};

fn until_up(switch: &Switch, port: &str) -> Value {
    eventually("the port", || {
        let shown = switch.json(&["port", "show", port]);
        (shown["state"] == "up").then_some(shown)
    })
}

#[test]
fn a_driver_process_that_is_stopped_is_told() {
    if !may() {
        return;
    }
    let host = Namespace::new();
    let switch = Switch::start_in(host.name(), &["--host-port", "host"]);
    let shown = until_up(&switch, "host");
    let pid = shown["driver"]["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process");
    assert_eq!(switch.ask(&["doctor", "--switch"]).code, Some(0));
    stop(pid);
    let said = switch.ask(&["doctor", "--switch"]);
    let first = format!("not ok: host driver: the driver process {pid} is stopped (T): ");
    let remedy = format!("\n  remedy: continue it: kill -CONT {pid}\n");
    assert!(
        said.code == Some(2) && said.out.starts_with(&first) && said.out.contains(&remedy),
        "{}",
        said.out
    );
    // The supervisor looks once a second.
    eventually("its silence", || {
        let shown = switch.json(&["port", "show", "host"]);
        shown["driver"]["deaf"].as_str()?.contains("does not answer: it is stopped (T)").then_some(())
    });
    let line =
        format!("driver        the driver process (process {pid}) does not answer: it is stopped (T)\n");
    assert!(switch.ask(&["port", "show", "host"]).ok().contains(&line));
    signal(pid, Signal::CONT);
    eventually("its health", || (switch.ask(&["doctor", "--switch"]).code == Some(0)).then_some(()));
}

#[test]
fn a_port_all_of_whose_frames_are_dropped_is_not_well() {
    if !may() {
        return;
    }
    let (host, outside) = (Namespace::new(), Namespace::new());
    host.wire("wire", &outside, "eth0");
    outside.ip("addr add 192.0.2.9/24 dev eth0");
    let switch = Switch::start_in(host.name(), &["--vnic", "vm1", "--uplink", "wire,trunk=10"]);
    until_up(&switch, "wire");
    // Broadcasts without a tag, which its trunk has no VLAN for.
    eventually("the drops", || {
        outside.within(|| {
            let socket = UdpSocket::bind("192.0.2.9:0").expect("bound");
            socket.set_broadcast(true).expect("set");
            socket.send_to(b"x", "192.0.2.255:9").expect("sent");
        });
        (switch.port("wire")["rx_drops"]["vlan_untagged"].as_u64() >= Some(12)).then_some(())
    });
    let said = switch.ask(&["doctor", "wire"]).refused_with_output();
    assert!(said.starts_with("not ok: wire drops: every frame from the device is dropped ("), "{said}");
    assert!(
        said.contains("vlan_untagged") && said.contains("remedy: ") && said.contains("native="),
        "{said}"
    );
}
