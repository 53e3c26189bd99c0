//! Datapaths and ports that come and go.

use crate::plane::Plane;
use crate::support::Switch;
use crate::support::guests::{ONE, TWO, check_balance, frame, guest, receive, send};

const TWO_VNICS: [&str; 6] = ["--module", "flow", "--vnic", "one", "--vnic", "two"];

#[test]
fn a_datapath_that_nothing_is_named_after_takes_ports_and_gives_them_back() {
    let switch = Switch::start(&TWO_VNICS);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let hello = |number| frame(TWO, ONE, number, 60);
    send(&mut one, &hello(1));
    assert_eq!(receive(&mut two), hello(1), "without a control plane the switch is a bridge");
    let mut plane = Plane::new(&switch, "ovs-system");
    let (first, second) = (plane.add_port("one"), plane.add_port("two"));
    plane.join(first, second);
    send(&mut one, &hello(2));
    assert_eq!(receive(&mut two), hello(2));
    send(&mut two, &frame(ONE, TWO, 3, 60));
    let refused = plane.try_add_port("one").expect_err("it is there");
    assert!(refused.to_string().contains("File exists"), "{refused}");
    let unknown = plane.try_add_port("three").expect_err("there is none");
    assert!(unknown.to_string().contains("No such device"), "{unknown}");
    let mut other = Plane::new(&switch, "default");
    assert!(other.try_add_port("one").is_err(), "in two datapaths");
    switch.ask(&["vnic", "del", "two"]).ok();
    let ports = plane.client.ports(plane.datapath).expect("listed");
    let names: Vec<_> = ports.iter().filter_map(|port| port.name.as_deref()).collect();
    assert_eq!(names, ["ovs-system", "one"], "a vnic that is deleted leaves its datapath");
    switch.ask(&["stats", "--check"]).ok();
    switch.ask(&["vnic", "add", "two"]).ok();
    assert_eq!(plane.add_port("two"), second, "the lowest number");
    check_balance(&switch);
}
