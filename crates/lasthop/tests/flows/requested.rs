//! Ports without configuration: devices that a control plane names, and taps that are created for it.

use lasthop_dpif::client::ClientError;
use lasthop_dpif::family::{VportKind, VportMessage};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::plane::Plane;
use lasthop_rig::guests::{ONE, guest};
use lasthop_rig::namespaces::{Namespace, may};
use lasthop_rig::successors::{own_version, report, successor_of_version};
use lasthop_rig::{Switch, eventually, signal, stop};

const EPERM: i32 = 1;
const EEXIST: i32 = 17;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;
const EADDRINUSE: i32 = 98;

/// A switch in its own namespace, and a control plane with a datapath whose name no device has.
struct Lab {
    switch: Switch,
    plane: Plane,
    host: Namespace,
}

impl Lab {
    fn new() -> Self {
        let host = Namespace::new();
        let switch = Switch::start_in(host.name(), &["--controller", "external"]);
        Self { plane: Plane::new(&switch, "dp7"), switch, host }
    }

    fn add(&mut self, name: &str, kind: VportKind) -> Result<VportMessage, ClientError> {
        self.plane.client.port_add(&VportMessage {
            datapath: self.plane.datapath,
            name: Some(name.to_owned()),
            kind: Some(kind),
            upcall_port_ids: Some(vec![0]),
            ..VportMessage::default()
        })
    }

    fn refusal(&mut self, name: &str, kind: VportKind) -> i32 {
        match self.add(name, kind).expect_err(name) {
            ClientError::Refused { errno, .. } => errno,
            other => panic!("{other}"),
        }
    }

    /// The device of this name as `ip` reports it.
    fn link(&self, name: &str) -> Option<Value> {
        let links: Value = serde_json::from_str(&self.host.ip("-j link")).expect("JSON");
        links.as_array().expect("a list").iter().find(|link| link["ifname"] == name).cloned()
    }

    /// The number of ports over devices and taps.
    fn devices(&self) -> usize {
        let list = self.switch.json(&["port", "list"]);
        list["ports"].as_array().expect("ports").iter().filter(|port| port.get("device").is_some()).count()
    }

    fn gone(&self, name: &str) {
        eventually("the device to go", || self.link(name).is_none().then_some(()));
        eventually("only the datapath's own port", || (self.devices() == 1).then_some(()));
    }
}

#[test]
fn internal_ports_are_taps_that_come_and_go_with_them() {
    if !may() {
        return;
    }
    let mut lab = Lab::new();
    assert!(lab.link("dp7").is_some(), "the datapath's own");
    for _ in 0..3 {
        let port = lab.add("in1", VportKind::Internal).expect("a port");
        let link = lab.link("in1").expect("a device");
        assert_eq!(port.ifindex.map(u64::from), link["ifindex"].as_u64());
        assert_eq!(link["operstate"], "DOWN", "who wants it sets it up");
        assert_eq!(lab.refusal("in1", VportKind::Internal), EEXIST);
        lab.plane.remove_port(port.number.expect("a number"));
    }
    lab.gone("in1");
    assert!(lab.switch.ask(&["config", "show"]).ok().find("dp7").is_none(), "nobody configured it");
    let refused = lab.switch.ask(&["port", "del", "dp7"]).refused();
    assert!(refused.contains("ovs-vsctl del-port dp7"), "{refused}");
}

#[test]
fn devices_are_ports_while_they_are_wanted_and_there() {
    if !may() {
        return;
    }
    let mut lab = Lab::new();
    assert_eq!(lab.refusal("wire", VportKind::Netdev), ENODEV);
    assert_eq!(lab.refusal("lo", VportKind::Netdev), EINVAL);
    let outside = Namespace::new();
    lab.host.wire("wire", &outside, "eth0");
    assert_eq!(lab.refusal("wire", VportKind::Internal), EEXIST, "it is another one's");
    let port = lab.add("wire", VportKind::Netdev).expect("a port");
    let index = lab.link("wire").expect("a device")["ifindex"].as_u64();
    assert_eq!(port.ifindex.map(u64::from).or(index), index);
    let state = || lab.switch.json(&["port", "show", "wire"])["state"] == "up";
    eventually("the wire", || state().then_some(()));
    lab.plane.remove_port(port.number.expect("a number"));
    eventually("the port to go", || (lab.devices() == 1).then_some(()));
    assert!(lab.link("wire").is_some(), "the wire is not ours to delete");
    lab.add("wire", VportKind::Netdev).expect("a port");
    lab.host.ip("link del wire");
    lab.gone("wire");
    let ports = lab.plane.client.ports(lab.plane.datapath).expect("a datapath");
    assert_eq!(ports.len(), 1, "it is out of the datapath");
}

/// The driver process closes a tunnel's socket when it comes to it. A control plane makes the next tunnel at once.
#[test]
fn a_tunnel_s_udp_port_is_free_when_the_tunnel_is_gone() {
    if !may() {
        return;
    }
    let mut lab = Lab::new();
    let mut port = lab.add("genev_sys_6081", VportKind::Geneve).expect("a port");
    let driver = |lab: &Lab| {
        let shown = lab.switch.json(&["port", "show", "genev_sys_6081"]);
        shown["driver"]["pid"].as_u64().filter(|_| shown["state"] == "up")
    };
    let pid = eventually("the tunnel", || driver(&lab));
    stop(pid as u32);
    for _ in 0..3 {
        lab.plane.remove_port(port.number.expect("a number"));
        port = lab.add("genev_sys_6081", VportKind::Geneve).expect("a port");
    }
    assert_eq!(lab.refusal("genev_sys_2", VportKind::Geneve), EADDRINUSE, "the port has a tunnel");
    signal(pid as u32, Signal::CONT);
    assert_eq!(eventually("the tunnel", || driver(&lab)), pid);
    let sockets =
        || std::fs::read_to_string(format!("/proc/{}/net/udp6", lab.switch.pid())).expect("sockets");
    eventually("one socket", || (sockets().matches(":17C1 ").count() == 1).then_some(()));
}

#[test]
fn a_tunnel_is_shown_as_a_port_that_is_up() {
    if !may() {
        return;
    }
    let mut lab = Lab::new();
    lab.add("genev_sys_6081", VportKind::Geneve).expect("a port");
    let shows = |words: &[&str]| lab.switch.ask(words).ok();
    eventually("the tunnel", || shows(&["port", "list"]).contains("up").then_some(()));
    for words in
        [&["port", "show", "genev_sys_6081"][..], &["port", "list"], &["port", "list", "--backend", "device"]]
    {
        let shown = shows(words);
        let line =
            shown.lines().find(|line| line.contains("genev_sys_6081")).unwrap_or_else(|| panic!("{shown}"));
        assert!(!shown.contains("no device") && shown.contains("up"), "{words:?}: {line}");
    }
}

#[test]
fn an_operator_says_which_devices_there_may_be() {
    if !may() {
        return;
    }
    let host = Namespace::new();
    let switch =
        Switch::start_in(host.name(), &["--controller", "external", "--datapath-devices", "dp7,br*"]);
    let mut lab = Lab { plane: Plane::new(&switch, "dp7"), switch, host };
    assert_eq!(lab.refusal("in1", VportKind::Internal), EPERM);
    lab.add("br1", VportKind::Internal).expect("a port");
    assert!(lab.link("br1").is_some() && lab.link("in1").is_none());
    let shown = lab.switch.ask(&["config", "show"]).ok();
    assert!(shown.contains("datapath-devices = [\"dp7\", \"br*\"]"), "{shown}");
}

/// A compromised controller that sends anything.
#[test]
fn a_switch_process_gets_no_device_that_no_controller_may_ask_for() {
    if !may() {
        return;
    }
    let (host, other) = (Namespace::new(), Namespace::new());
    host.wire("ve0", &other, "ve1");
    let switch = Switch::start_in(host.name(), &["--controller", "none"]);
    let wanted = |name: &str, kind: &str| {
        report(&format!(r#"{{"Wanted":{{"name":"{name}","kind":"{kind}","switch":"default"}}}}"#))
    };
    let wants = [wanted("ve0", "Netdev"), wanted("evil0", "Internal")].concat();
    let taken_over = format!("for i in 1 2 3 4 5; do\n{wants}sleep 0.2\ndone");
    switch.ask(&["upgrade", &successor_of_version(&switch, own_version(&switch), &taken_over)]).refused();
    for name in ["ve0", "evil0"] {
        let line =
            format!("switch default: no port {name} for its controller: no switch has controller=external");
        eventually("a line in the log", || switch.log().contains(&line).then_some(()));
    }
    let links = host.ip("-j link");
    assert!(links.contains("ve0") && !links.contains("evil0"), "{links}");
    let ports = switch.json(&["port", "list"]);
    assert_eq!(ports["ports"], json!([]));
}

#[test]
fn what_was_asked_for_outlives_both_inner_processes() {
    if !may() {
        return;
    }
    let mut lab = Lab::new();
    let before = lab.add("in1", VportKind::Internal).expect("a port");
    let driver = || lab.switch.json(&["port", "show", "in1"])["driver"]["pid"].as_u64();
    let pid = eventually("a driver process", driver);
    signal(u32::try_from(pid).expect("a number"), Signal::KILL);
    eventually("another one", || driver().filter(|other| *other != pid));
    signal(lab.switch.switch_pid().expect("a process"), Signal::KILL);
    let mut again = Plane::of_existing(&lab.switch, "dp7");
    let ports = again.client.ports(again.datapath).expect("a datapath");
    let after = ports.iter().find(|port| port.name == before.name).expect("the port");
    assert_eq!((after.number, after.ifindex), (before.number, before.ifindex));
    again.remove_port(before.number.expect("a number"));
    lab.gone("in1");
}

#[test]
fn a_vnic_for_controllers_outside_has_a_device_that_shows_its_guest() {
    if !may() {
        return;
    }
    let host = Namespace::new();
    let words =
        ["--switch", "red,module=flow,controller=external", "--switch", "blue,module=flow,controller=none"];
    let vnics = ["--vnic", "vm1,switch=red,mtu=1400,mac=02:00:00:00:00:01", "--vnic", "vm2,switch=blue"];
    let switch = Switch::start_in(host.name(), &[words, vnics].concat());
    let mut lab = Lab { plane: Plane::new(&switch, "dp7"), switch, host };
    assert!(lab.link("vm2").is_none(), "nobody looks for it");
    let link = lab.link("vm1").expect("a device");
    assert_eq!((&link["mtu"], &link["address"]), (&json!(1400), &json!("02:00:00:00:00:01")));
    let has_link = |lab: &Lab| {
        let flags = lab.link("vm1").expect("a device")["flags"].clone();
        assert!(flags.as_array().expect("flags").contains(&json!("UP")), "{flags}");
        flags.as_array().expect("flags").contains(&json!("LOWER_UP"))
    };
    assert!(!has_link(&lab));
    let first = guest(&lab.switch, "vm1", ONE);
    eventually("a link", || has_link(&lab).then_some(()));
    lab.switch.ask(&["vnic", "set", "vm1", "link=down"]).ok();
    eventually("no link", || (!has_link(&lab)).then_some(()));
    lab.switch.ask(&["vnic", "set", "vm1", "link=up"]).ok();
    eventually("a link", || has_link(&lab).then_some(()));
    drop(first);
    eventually("no link", || (!has_link(&lab)).then_some(()));
    lab.switch.ask(&["vnic", "set", "vm1", "mac=02:00:00:00:00:07"]).ok();
    assert_eq!(lab.link("vm1").expect("a device")["address"], "02:00:00:00:00:07");
    lab.host.ip("link del vm1");
    let again = eventually("another one", || lab.link("vm1"));
    let port = lab.add("vm1", VportKind::Netdev).expect("a port");
    eventually("its index", || {
        let ports = lab.plane.client.ports(lab.plane.datapath).expect("a datapath");
        let index = ports.iter().find(|other| other.number == port.number).and_then(|port| port.ifindex);
        (index.map(u64::from) == again["ifindex"].as_u64()).then_some(())
    });
    lab.plane.remove_port(port.number.expect("a number"));
    assert!(lab.link("vm1").is_some(), "it was configured");
    lab.switch.ask(&["vnic", "del", "vm1"]).ok();
    assert!(lab.link("vm1").is_none());
}
