//! Running guests whose packets do not arrive, or arrive slowly.

use lasthop_frontend::{Guest, GuestOptions};
use lasthop_vhost::features;

use crate::{ONE, TWO, blamed, blames, controlled, diagnosed, guest, guest_with, receive, send};
use crate::{try_remedies_during, warns};
use lasthop_rig::{Switch, eventually};

/// Waits until the packet of vm1 is counted: a drop during the doctor's two samples is an error, an earlier one a warning.
fn was_counted(switch: &Switch) {
    eventually("the packet", || (switch.port("vm1")["rx_packets"] == 1).then_some(()));
}

#[test]
fn two_guests_with_one_address_are_told() {
    let switch = Switch::start(&["--vnic", "vm1", "--vnic", "vm2"]);
    let (mut one, mut two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", ONE));
    let place = || {
        let fdb = switch.json(&["fdb", "show"]);
        fdb["entries"][0]["port"].as_str().map(str::to_owned)
    };
    // A frame that arrives before the controller has the port is learned only by the bridge that stands in for the
    // controller, whose addresses are no longer shown afterwards.
    let talk = |guest: &mut Guest, name: &str| {
        eventually("its frame", || {
            send(guest, [0xff; 6], ONE, 60);
            (place().as_deref() == Some(name)).then_some(())
        });
    };
    for _ in 0..2 {
        talk(&mut one, "vm1");
        talk(&mut two, "vm2");
    }
    blames(&switch, &["duplicate MAC address 02:00:00:00:00:01", "vm1", "vm2"]);
}

#[test]
fn a_guest_with_another_address_than_its_vnic_is_told() {
    let switch = Switch::start(&["--vnic", "vm1,mac=02:00:00:00:00:01", "--vnic", "vm2"]);
    let (mut one, _two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", TWO));
    send(&mut one, [0xff; 6], [0x02, 0, 0, 0, 0, 9], 60);
    was_counted(&switch);
    warns(&switch, &["vm1 drops", "another address than the vnic's mac=", "source_spoofed"]);
}

#[test]
fn a_guest_that_goes_on_with_another_address_is_broken() {
    let switch = Switch::start(&["--vnic", "vm1,mac=02:00:00:00:00:01", "--vnic", "vm2"]);
    let (mut one, _two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", TWO));
    let answer = eventually("a diagnosis during traffic", || {
        // Sends during both samples of the doctor.
        std::thread::scope(|scope| {
            let doctor = scope.spawn(|| switch.ask(&["doctor"]));
            while !doctor.is_finished() {
                send(&mut one, [0xff; 6], [0x02, 0, 0, 0, 0, 9], 60);
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            Some(doctor.join().expect("asked")).filter(|answer| answer.out.starts_with("not ok: vm1 drops"))
        })
    });
    assert_eq!(answer.code, Some(1), "{}", answer.out);
    assert!(answer.out.contains("is dropped (now): the guest sends from another address"), "{}", answer.out);
}

#[test]
fn mtus_that_differ_are_told() {
    let switch = Switch::start(&["--vnic", "vm1,mtu=9000", "--vnic", "vm2"]);
    let (_one, _two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", TWO));
    warns(&switch, &["vm1 link", "MTU mismatch", "9000", "1500"]);
}

#[test]
fn a_vlan_that_nobody_else_has_is_told() {
    let switch = Switch::start(&["--vnic", "vm1,vlan=10", "--vnic", "vm2"]);
    let (_one, _two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", TWO));
    warns(&switch, &["vm1 link", "VLAN mismatch", "VLAN 10", "vlan=10"]);
    assert_eq!(switch.json(&["vnic", "show", "vm2"])["vlan"], 10, "as the remedy says");
}

#[test]
fn vlans_that_differ_are_broken() {
    let switch = Switch::start(&["--vnic", "vm1,vlan=10", "--vnic", "vm2,vlan=20,mtu=1400"]);
    let (_one, _two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", TWO));
    blames(&switch, &["vm1 link", "VLAN mismatch", "VLAN 10", "port set vm2 vlan=10"]);
}

#[test]
fn tags_that_a_vnic_does_not_take_are_told() {
    let switch = Switch::start(&["--vnic", "vm1,vlan=10", "--vnic", "vm2,vlan=10"]);
    let (mut one, _two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", TWO));
    let tagged = [&TWO[..], &ONE, &[0x81, 0, 0, 20, 0x88, 0xb5], &[0; 50]].concat();
    assert!(one.send(0, &tagged, lasthop_wire::Offload::default()).expect("sent"));
    one.flush(0).expect("flushed");
    was_counted(&switch);
    warns(&switch, &["vm1 drops", "VLAN mismatch", "tagged", "trunk="]);
}

#[test]
fn vnics_that_are_all_isolated_are_told() {
    let switch = Switch::start(&["--vnic", "vm1,isolated=true", "--vnic", "vm2,isolated=true"]);
    let (_one, _two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", TWO));
    blames(&switch, &["vm1 link", "all others are isolated"]);
}

#[test]
fn a_link_that_was_set_down_is_told() {
    let switch = Switch::start(&["--vnic", "vm1", "--vnic", "vm2"]);
    let (_one, _two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", TWO));
    switch.ask(&["vnic", "set", "vm2", "link=down"]).ok();
    blames(&switch, &["vm2 link", "link was set down", "port set vm2 link=up"]);
}

#[test]
fn frames_that_do_not_fit_into_buffers_are_told() {
    let switch = Switch::start(&["--vnic", "vm1", "--vnic", "vm2"]);
    let mut one = guest(&switch, "vm1", ONE);
    let small = GuestOptions { mac: TWO, rx_buffer_bytes: 400, ..GuestOptions::default() };
    let offloads = features::MRG_RXBUF | features::GUEST_TSO4 | features::GUEST_TSO6 | features::GUEST_ECN;
    let _two = guest_with(&switch, "vm2", small.without(offloads));
    send(&mut one, TWO, ONE, 1000);
    eventually("the drop", || (switch.port("vm2")["tx_drops"]["rx_buffer_small"] == 1).then_some(()));
    let answer = diagnosed(&switch, &["vm2 negotiation", "MRG_RXBUF"]);
    assert!(
        answer.out.contains("vm2 drops: MTU mismatch: frames are larger than the guest's receive buffers"),
        "{}",
        answer.out
    );
}

#[test]
fn offloads_that_are_off_are_told_with_their_cost() {
    let switch = Switch::start(&["--vnic", "vm1,features-off=TSO"]);
    let _one = guest(&switch, "vm1", ONE);
    warns(&switch, &["vm1 negotiation", "offloads are off", "HOST_TSO4", "45 times", "features-off=TSO"]);
}

#[test]
fn a_guest_that_is_alone_is_told() {
    let switch = Switch::start(&["--vnic", "vm1"]);
    let mut one = guest(&switch, "vm1", ONE);
    send(&mut one, [0xff; 6], ONE, 60);
    was_counted(&switch);
    warns(&switch, &["vm1 drops", "no other port to talk to", "only vnic", "port add"]);
}

#[test]
fn a_guest_whose_only_neighbour_is_in_another_switch_is_told() {
    let vnics = ["--vnic", "vm1,mtu=9000", "--vnic", "vm2,switch=two"];
    let switch = Switch::start(&[&["--switch", "two"], &vnics[..]].concat());
    let (mut one, _two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", TWO));
    send(&mut one, [0xff; 6], ONE, 60);
    was_counted(&switch);
    warns(&switch, &["warning: vm1 drops", "no other port to talk to", "only vnic of its switch"]);
}

#[test]
fn a_guest_all_of_whose_packets_are_dropped_is_not_well() {
    let vnics = ["vm1,isolated=true", "vm2,isolated=true", "vm3"].map(|vnic| ["--vnic", vnic]);
    let switch = Switch::start(&vnics.concat());
    controlled(&switch);
    let (mut one, mut two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", TWO));
    let mut three = guest(&switch, "vm3", [0x02, 0, 0, 0, 0, 3]);
    send(&mut two, [0xff; 6], TWO, 60);
    receive(&mut three);
    eventually("the address", || {
        let fdb = switch.json(&["fdb", "show"]);
        fdb["entries"].as_array()?.iter().any(|entry| entry["port"] == "vm2").then_some(())
    });
    for _ in 0..20 {
        send(&mut one, TWO, ONE, 60);
    }
    eventually("the drops", || (switch.port("vm1")["rx_drops"]["isolated"] == 20).then_some(()));
    let words = ["vm1 drops", "every packet from the guest is dropped", "isolated", "isolated=false"];
    let said = blamed(&switch, &words);
    try_remedies_during(&switch, &said, || send(&mut one, TWO, ONE, 60));
    receive(&mut two);
}

#[test]
fn addresses_of_a_guest_are_those_of_the_external_controller() {
    let words = ["--module", "flow", "--controller", "external", "--vnic", "vm1", "--vnic", "vm2"];
    let switch = Switch::start(&words);
    let (_one, _two) = (guest(&switch, "vm1", ONE), guest(&switch, "vm2", TWO));
    let said = switch.ask(&["doctor", "vm1"]).out;
    let line = "learning     the controller of its switch has its addresses; Open vSwitch: ovs-appctl fdb/show BRIDGE\n";
    assert!(said.contains(&format!("  ok       {line}")), "{said}");
}
