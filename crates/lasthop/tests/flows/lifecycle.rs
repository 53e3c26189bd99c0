//! Datapaths, ports and switch processes come and go.

use std::time::Duration;

use lasthop_dpif::client::{Client, ClientError};
use lasthop_dpif::family::FlowMessage;
use lasthop_flow::{Action, Conntrack};
use lasthop_frontend::Guest;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Signal;

use crate::plane::{Plane, two_guests, two_vnics};
use lasthop_rig::guests::{ONE, TWO, check_balance, frame, receive, send};
use lasthop_rig::{Switch, eventually, is_zombie, signal, stop};

/// The time limit of an answer on a busy machine: longer than any test takes.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Flows that no guest's packets match.
const MANY: u32 = 1400;

fn hello(number: u32) -> Vec<u8> {
    frame(TWO, ONE, number, 60)
}

#[test]
fn a_port_is_in_one_datapath_at_a_time_and_goes_home() {
    let red = ["--switch", "red,module=flow,controller=none"];
    let switch = two_vnics(&red);
    let (mut one, mut two) = two_guests(&switch);
    send(&mut one, &hello(1));
    assert_eq!(receive(&mut two), hello(1), "without a control plane the switch is a bridge");
    let (mut plane, first, second) = Plane::of_two(&switch, "red");
    plane.join(first, second);
    send(&mut one, &hello(2));
    assert_eq!(receive(&mut two), hello(2));
    let refused = plane.try_add_port("one").expect_err("it is there");
    assert!(refused.to_string().contains("File exists"), "{refused}");
    let mut other = Plane::new(&switch, "default");
    let refused = other.try_add_port("one").expect_err("in two datapaths");
    assert!(refused.to_string().contains("there is a port of that name"), "{refused}");
    plane.remove_port(first);
    assert_eq!(other.add_port("one"), 1, "it is at home");
    send(&mut one, &hello(3));
    eventually("a frame to nobody", || (switch.port("one")["rx_drops"]["no_destination"] == 1).then_some(()));
    check_balance(&switch);
}

#[test]
fn a_vnic_that_is_deleted_leaves_its_datapath() {
    let switch = two_vnics(&[]);
    let (mut plane, _, second) = Plane::of_two(&switch, "default");
    switch.ask(&["vnic", "del", "two"]).ok();
    let ports = plane.client.ports(plane.datapath).expect("listed");
    let names: Vec<_> = ports.iter().filter_map(|port| port.name.as_deref()).collect();
    assert_eq!(names, ["default", "one"]);
    switch.ask(&["vnic", "add", "two"]).ok();
    assert_eq!(plane.add_port("two"), second, "the lowest number");
}

#[test]
fn ports_of_a_switch_without_flows_are_not_to_be_had() {
    let words = ["--module", "bridge", "--switch", "red,module=flow,controller=none", "--vnic", "one"];
    let switch = Switch::start(&words);
    let mut plane = Plane::new(&switch, "red");
    let refused = plane.try_add_port("one").expect_err("it is a bridge's");
    assert!(refused.to_string().contains("module flow"), "{refused}");
    let refused = Plane::try_new(&switch, "default").err().expect("a bridge");
    assert!(refused.to_string().contains("no flow table"), "{refused}");
    eventually("a line in the log", || switch.log().contains("its switch has no flow table").then_some(()));
}

#[test]
fn a_client_that_connects_as_the_switch_process_dies_does_not_wait_for_ever() {
    let switch = two_vnics(&["--fail-mode", "secure"]);
    let address = SocketAddrUnix::new(switch.path("datapath.sock")).expect("short");
    for _ in 0..3 {
        let process = switch.switch_pid().expect("a switch process");
        // The supervisor receives both messages at once.
        stop(switch.pid());
        signal(process, Signal::KILL);
        eventually("its end", || is_zombie(process).then_some(()));
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket");
        set_socket_timeout(&socket, Timeout::Recv, Some(LONGEST_WAIT)).expect("set");
        connect(&socket, &address).expect("it listens");
        signal(switch.pid(), Signal::CONT);
        match Client::new(socket) {
            Ok(mut client) => drop(client.datapaths().expect("an answer")),
            // The dead process had it.
            Err(error) => assert!(matches!(error, ClientError::HungUp), "{error}"),
        }
        eventually("another process", || switch.switch_pid().filter(|pid| *pid != process));
    }
}

#[test]
fn datapaths_numbers_and_flows_outlive_a_switch_process() {
    outlive(|switch| signal(switch.switch_pid().expect("a switch process"), Signal::KILL));
}

#[test]
fn datapaths_numbers_and_flows_outlive_an_upgrade() {
    outlive(|switch| drop(switch.ask(&["upgrade"]).ok()));
}

/// Another switch process replaces the current one, twice: datapath, numbers and flows are unchanged, no packet of a
/// known flow causes an upcall, and counters do not decrease.
fn outlive(replace: impl Fn(&Switch)) {
    let switch = two_vnics(&["--fail-mode", "secure"]);
    let (mut one, mut two) = two_guests(&switch);
    let (mut plane, first, second) = Plane::of_two(&switch, "default");
    plane.listen(&switch);
    plane.join(first, second);
    plane.place(ONE, first);
    send(&mut two, &frame(ONE, TWO, 0, 60));
    let asked = plane.next(lasthop_rig::guests::WAIT).expect("a packet of no flow");
    plane.answer(asked);
    assert_eq!(receive(&mut one), frame(ONE, TWO, 0, 60));
    // More than are installed again at once, and some that are removed.
    (0..MANY).for_each(|number| plane.add_other(number));
    (0..MANY).step_by(2).for_each(|number| plane.remove_other(number));
    let mut before = 0;
    for life in 1..3 {
        send(&mut one, &hello(life));
        assert_eq!(receive(&mut two), hello(life));
        let flows = plane.flows();
        assert_eq!(flows.len(), 2 + MANY as usize / 2);
        let packets = plane.packets_from(first);
        assert!(packets > before, "{packets} after {before}");
        before = packets;
        replace(&switch);
        let mut again = Plane::of_existing(&switch, "default");
        assert_eq!(again.datapath, plane.datapath);
        let numbers = again.client.ports(again.datapath).expect("listed");
        let numbers: Vec<_> = numbers.iter().map(|port| (port.name.as_deref(), port.number)).collect();
        assert_eq!(
            numbers,
            [(Some("default"), Some(0)), (Some("one"), Some(first)), (Some("two"), Some(second))]
        );
        assert_eq!(again.flows(), flows, "what they match, do and are called");
        assert!(again.packets_from(first) >= before, "what was told of them is true");
        plane = again;
    }
    plane.listen(&switch);
    let upcalls = switch.port("one")["upcalls"].clone();
    send(&mut one, &hello(9));
    assert_eq!(receive(&mut two), hello(9), "by its flow");
    send(&mut two, &frame(ONE, TWO, 9, 60));
    assert_eq!(receive(&mut one), frame(ONE, TWO, 9, 60), "by its flow");
    assert!(plane.next(Duration::from_millis(50)).is_none(), "nobody is asked about known packets");
    assert_eq!(switch.port("one")["upcalls"], upcalls);
    plane.remove_other(1);
    assert_eq!(plane.flows().len(), 1 + MANY as usize / 2);
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn flows_that_are_gone_stay_gone() {
    let switch = two_vnics(&[]);
    let (mut plane, first, second) = Plane::of_two(&switch, "default");
    plane.join(first, second);
    let all = FlowMessage { datapath: plane.datapath, ..FlowMessage::default() };
    plane.client.flow_remove(&all).expect("removed");
    plane.join(second, first);
    // The supervisor knows the datapath before the answer is sent.
    switch.port("one");
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    let mut again = Plane::of_existing(&switch, "default");
    let keys: Vec<_> = again.flows().into_iter().map(|flow| flow.key.and_then(|key| key.in_port)).collect();
    assert_eq!(keys, [Some(second)]);
    switch.ask(&["switch", "set", "default", "module=bridge"]).ok();
    switch.ask(&["switch", "set", "default", "module=flow,controller=none"]).ok();
    let (mut other, _, _) = Plane::of_two(&switch, "default");
    assert!(other.flows().is_empty(), "those of a datapath before it are none of its own");
    switch.port("one");
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    let mut again = Plane::of_existing(&switch, "default");
    assert!(again.flows().is_empty());
}

#[test]
fn a_secure_switch_without_a_controller_passes_what_has_a_flow_and_nothing_else() {
    let switch = two_vnics(&["--fail-mode", "secure"]);
    let (mut one, mut two) = two_guests(&switch);
    send(&mut one, &hello(1));
    eventually("a drop", || (switch.port("one")["rx_drops"]["no_flow"] == 1).then_some(()));
    let (mut plane, first, second) = Plane::of_two(&switch, "default");
    plane.join(first, second);
    send(&mut one, &hello(2));
    assert_eq!(receive(&mut two), hello(2));
    send(&mut two, &frame(ONE, TWO, 3, 60));
    eventually("a drop", || (switch.port("two")["rx_drops"]["no_flow"] == 1).then_some(()));
    check_balance(&switch);
}

#[test]
fn a_controller_that_goes_leaves_its_flows_and_the_bridge_takes_the_rest() {
    let switch = two_vnics(&[]);
    let (mut one, mut two) = two_guests(&switch);
    let (mut plane, first, second) = Plane::of_two(&switch, "default");
    plane.listen(&switch);
    plane.join(first, second);
    send(&mut two, &frame(ONE, TWO, 1, 60));
    let asked = plane.next(lasthop_rig::guests::WAIT).expect("it is asked");
    assert_eq!((asked.packet, asked.key.in_port), (frame(ONE, TWO, 1, 60), Some(second)));
    drop(plane);
    send(&mut one, &hello(2));
    assert_eq!(receive(&mut two), hello(2), "by its flow");
    eventually("a bridge", || {
        send(&mut two, &frame(ONE, TWO, 3, 60));
        one.wait(Some(Duration::from_millis(100))).expect("connected").then_some(())
    });
    let again = &mut Plane::of_existing(&switch, "default").client;
    let flows = again.flows(1).expect("listed");
    assert_eq!(flows.len(), 1, "nothing is twice: {flows:?}");
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn a_switch_changes_its_module_and_keeps_ports_and_guests() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = two_guests(&switch);
    let mut number = 0;
    let mut pass = |one: &mut Guest, two: &mut Guest| {
        number += 1;
        send(one, &hello(number));
        assert_eq!(receive(two), hello(number));
    };
    pass(&mut one, &mut two);
    switch.ask(&["switch", "set", "default", "module=flow,controller=none"]).ok();
    pass(&mut one, &mut two);
    let (mut plane, first, second) = Plane::of_two(&switch, "default");
    plane.join(first, second);
    pass(&mut one, &mut two);
    assert_eq!(
        plane.client.flows(plane.datapath).expect("listed")[0].stats.map(|stats| stats.packets),
        Some(1)
    );
    switch.ask(&["switch", "set", "default", "fail-mode=secure"]).ok();
    pass(&mut one, &mut two);
    switch.ask(&["switch", "set", "default", "module=bridge"]).ok();
    assert!(plane.client.datapaths().expect("listed").is_empty(), "it is none any more");
    pass(&mut one, &mut two);
    switch.ask(&["switch", "set", "default", "module=flow"]).ok();
    eventually("the controller", || {
        (Plane::connect(&switch).datapaths().expect("listed").len() == 1).then_some(())
    });
    pass(&mut one, &mut two);
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    let module = &switch.json(&["switch", "list"])["switches"][0]["module"];
    assert_eq!(module, "flow", "the next one has it, too");
    pass(&mut one, &mut two);
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn another_controller_finds_nothing_of_the_one_before() {
    let switch = Switch::start(&["--module", "flow", "--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = two_guests(&switch);
    eventually("the controller", || {
        let served = &switch.json(&["switch", "list"])["switches"][0]["counters"]["ports_served"];
        (served == 2).then_some(())
    });
    send(&mut one, &hello(1));
    assert_eq!(receive(&mut two), hello(1));
    let mut client = Plane::connect(&switch);
    eventually("its flow", || (!client.flows(1).expect("listed").is_empty()).then_some(()));
    switch.ask(&["switch", "set", "default", "controller=none"]).ok();
    assert!(client.datapaths().expect("listed").is_empty(), "nobody has asked for one");
    send(&mut two, &frame(ONE, TWO, 2, 60));
    assert_eq!(receive(&mut one), frame(ONE, TWO, 2, 60), "without a control plane the switch is a bridge");
    switch.ask(&["switch", "set", "default", "controller=embedded"]).ok();
    eventually("the controller", || (client.datapaths().expect("listed").len() == 1).then_some(()));
    send(&mut one, &hello(3));
    assert_eq!(receive(&mut two), hello(3));
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn the_doctor_and_the_status_say_whether_anybody_decides() {
    let switch = Switch::start(&[
        "--module",
        "flow",
        "--controller",
        "external",
        "--fail-mode",
        "secure",
        "--vnic",
        "one",
        "--vnic",
        "two",
    ]);
    let said = switch.ask(&["doctor", "--switch"]).out;
    assert!(
        said.contains("no controller is connected to datapath.sock, and fail-mode=secure drops"),
        "{said}"
    );
    assert!(said.contains("ovs run"), "{said}");
    let (mut plane, _, _) = Plane::of_two(&switch, "default");
    plane.listen(&switch);
    let said = switch.ask(&["doctor", "--switch"]).out;
    assert!(!said.contains("no controller is connected"), "{said}");
    let own = format!("(process {}), connected for ", std::process::id());
    let line = said.lines().find(|line| line.contains(" controller ")).expect("a line of the controller");
    assert!(line.contains("external: ") && line.contains(&own), "{said}");
    let said = switch.ask(&["ovs", "status"]).out;
    assert!(said.contains("one, two can be ports") && said.contains(&own), "{said}");
    let listed = switch.json(&["switch", "list"]);
    let client = &listed["switches"][0]["clients"][0];
    assert_eq!(
        (&listed["switches"][0]["controller"], &client["pid"]),
        (&"external".into(), &std::process::id().into())
    );
    assert!(client["name"].is_string() && client["connected_ms"].is_u64(), "{listed}");
    assert!(switch.ask(&["switch", "list"]).ok().contains(&format!("({})", std::process::id())));
    drop(plane);
    let gone = || switch.json(&["switch", "list"])["switches"][0]["clients"] == serde_json::json!([]);
    eventually("it is gone", || gone().then_some(()));
    assert!(switch.ask(&["switch", "list"]).ok().contains("external, not connected"));
    assert!(switch.ask(&["ovs", "status"]).out.contains("no process takes packets of no flow"));
}

#[test]
fn a_flow_with_an_action_that_there_is_not_is_refused_and_logged_with_the_remedy() {
    let switch = two_vnics(&[]);
    let (mut plane, one, _) = Plane::of_two(&switch, "default");
    for _ in 0..3 {
        let sip = Conntrack { helper: Some("sip".to_owned()), ..Conntrack::default() };
        let tracked = plane.flow_from(one, vec![Action::Ct(Box::new(sip))]);
        plane.client.flow_add(&tracked).expect_err("there is no such helper");
    }
    let is_line = |line: &&str| line.contains("refused a flow for packets from one");
    let line = eventually("the line", || switch.log().lines().find(is_line).map(str::to_owned));
    assert!(
        line.contains("helper other than ftp and tftp is not supported") && line.contains("OpenFlow rules"),
        "{line}"
    );
    assert_eq!(switch.log().lines().filter(is_line).count(), 1, "and not for each try");
}

#[test]
fn packets_that_are_all_dropped_for_lack_of_a_flow_are_not_well() {
    let switch = two_vnics(&["--fail-mode", "secure"]);
    let (mut one, _two) = two_guests(&switch);
    for number in 0..5 {
        send(&mut one, &frame(TWO, ONE, number, 60));
    }
    eventually("the drops", || (switch.port("one")["rx_drops"]["no_flow"] == 5).then_some(()));
    let said = switch.ask(&["doctor", "one"]);
    assert_eq!(said.code, Some(1), "{}", said.out);
    assert!(
        said.out.starts_with("not ok: one drops: every packet from the guest is dropped"),
        "{}",
        said.out
    );
    // The doctor samples current traffic, and no packet is sent.
    let said = switch.ask(&["doctor", "--switch"]);
    assert!(!said.out.contains("every packet"), "{}", said.out);
    let said = std::thread::scope(|scope| {
        let doctor = scope.spawn(|| switch.ask(&["doctor", "--switch"]));
        while !doctor.is_finished() {
            send(&mut one, &frame(TWO, ONE, 9, 60));
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        doctor.join().expect("asked")
    });
    assert_eq!(said.code, Some(2), "{}", said.out);
    assert!(
        said.out.contains("one drops: every packet from the guest is dropped (now): no flow"),
        "{}",
        said.out
    );
}
