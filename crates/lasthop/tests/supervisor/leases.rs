//! Addresses that a guest got by DHCP, while each of the processes ends.

use etherparse::PacketBuilder;
use lasthop_frontend::Guest;
use rustix::process::Signal;
use serde_json::Value;

use crate::service::Service;
use lasthop_rig::guests::{ONE, TWO, check_balance, guest, receive, send};
use lasthop_rig::{Switch, children, copy_of_lasthop, eventually, signal};

const GIVEN: [u8; 4] = [10, 0, 0, 50];
const SERVER: [u8; 4] = [10, 0, 0, 1];

fn udp(macs: [[u8; 6]; 2], addresses: [[u8; 4]; 2], ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(macs[0], macs[1]).ipv4(addresses[0], addresses[1], 64);
    let mut bytes = Vec::new();
    builder.udp(ports.0, ports.1).write(&mut bytes, payload).expect("a datagram");
    bytes
}

/// A DHCP message about the first guest: DHCPREQUEST or DHCPACK.
fn dhcp(is_request: bool, xid: u32) -> Vec<u8> {
    let (op, given) = if is_request { (1, [0; 4]) } else { (2, GIVEN) };
    let head = [&[op, 1, 6, 0][..], &xid.to_be_bytes(), &[0; 8], &given, &[0; 8], &ONE, &[0; 202]].concat();
    let options =
        if is_request { vec![53, 1, 3, 50, 4, 10, 0, 0, 50] } else { vec![53, 1, 5, 51, 4, 0, 0, 14, 16] };
    let payload = [&head[..], &[99, 130, 83, 99], &options, &[255]].concat();
    match is_request {
        true => udp([ONE, [0xff; 6]], [[0; 4], [255; 4]], (68, 67), &payload),
        false => udp([TWO, ONE], [SERVER, GIVEN], (67, 68), &payload),
    }
}

fn message(number: u32) -> Vec<u8> {
    udp([ONE, TWO], [GIVEN, SERVER], (1000, 2000), &number.to_be_bytes())
}

/// Sends until a packet from the given address arrives; none is refused.
fn talk(switch: &Switch, one: &mut Guest, two: &mut Guest, number: &mut u32) {
    let mut frame = Vec::new();
    eventually("a packet", || {
        *number += 1;
        send(one, &message(*number));
        let has_come = two.wait(Some(std::time::Duration::from_millis(200))).expect("connected");
        has_come.then_some(())
    });
    while two.recv(0, &mut frame).expect("a sound ring").is_some() {}
    assert_eq!(spoofed(switch), 1, "only the one before the lease");
}

fn spoofed(switch: &Switch) -> u64 {
    switch.port("one")["rx_drops"]["ip_spoofed"].as_u64().unwrap_or(0)
}

fn leases(switch: &Switch) -> Vec<Value> {
    switch.json(&["port", "show", "one"])["leases"].as_array().cloned().unwrap_or_default()
}

fn process(service: &Service, role: &str) -> Option<u32> {
    let is_it = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == role.as_bytes())
    };
    children(service.pid()).into_iter().find(is_it)
}

/// Kills a process of the service, and waits for the next one.
fn replace(service: &Service, role: &str) {
    let pid = eventually(role, || process(service, role));
    signal(pid, Signal::KILL);
    eventually("the next one", || process(service, role).filter(|next| *next != pid));
}

fn served(switch: &Switch) {
    let ports = || switch.json(&["switch", "list"])["switches"][0]["counters"]["ports_served"].as_u64();
    eventually("the controller", || (ports() == Some(2)).then_some(()));
}

#[test]
fn a_guest_keeps_the_address_of_its_lease() {
    let vnic = "one,mac=02:00:00:00:00:01,addresses=dhcp,guard=mac+ip+arp+dhcp";
    let service =
        Service::start(&["--module", "flow", "--fail-mode", "secure", "--vnic", vnic, "--vnic", "two"]);
    let switch = &service.switch;
    served(switch);
    let (mut one, mut two) = (guest(switch, "one", ONE), guest(switch, "two", TWO));
    assert!(leases(switch).is_empty());
    send(&mut one, &message(0));
    eventually("the drop", || (spoofed(switch) == 1).then_some(()));
    let request = dhcp(true, 77);
    send(&mut one, &request);
    assert_eq!(receive(&mut two), request);
    send(&mut two, &dhcp(false, 77));
    assert_eq!(receive(&mut one), dhcp(false, 77));
    // As soon as it has the answer.
    send(&mut one, &message(1));
    assert_eq!(receive(&mut two), message(1));
    let shown = eventually("the lease", || leases(switch).first().cloned());
    assert_eq!(shown["address"], "10.0.0.50");
    assert!((1..=3600).contains(&shown["seconds_left"].as_u64().expect("an end")), "{shown}");
    assert!(switch.ask(&["port", "show", "one"]).ok().contains("10.0.0.50 for 3"));

    let mut number = 1;
    let mut goes_on = || {
        served(switch);
        talk(switch, &mut one, &mut two, &mut number);
        assert_eq!(leases(switch).len(), 1);
    };
    replace(&service, "controller-process");
    goes_on();
    replace(&service, "switch-process");
    goes_on();
    let program = copy_of_lasthop(switch.base.path(), "next");
    switch.ask(&["upgrade", program.to_str().expect("text")]).ok();
    let runs = |pid: &u32| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program);
    eventually("the next controller", || process(&service, "controller-process").filter(runs));
    goes_on();
    service.settle();
    service.kill();
    goes_on();
    service.settle();
    service.restart();
    goes_on();
    check_balance(switch);

    switch.ask(&["port", "set", "one", "addresses=10.0.0.9"]).ok();
    eventually("the end of the lease", || {
        send(&mut one, &message(number));
        (spoofed(switch) > 1).then_some(())
    });
    assert!(leases(switch).is_empty());
}
