//! Tests the receivers of frames, and the form that each gets.

use lasthop_module_api::{Hashes, PortKind, PortVlans};

use super::*;
use crate::testing::tagged;

/// Parses `vlan=5` or `trunk=10+20-29,native=7`, the words of the command line, into settings for a module.
pub(super) fn settings(port: u16, words: &str) -> PortSettings {
    let mut settings = PortSettings { name: format!("vm{port}"), ..PortSettings::default() };
    let (mut carried, mut native) = (None, None);
    for (key, value) in words.split(',').filter_map(|word| word.split_once('=')) {
        match key {
            "vlan" => settings.policy.vlans = PortVlans::Access(value.parse().expect("a VLAN")),
            "trunk" if value != "all" => carried = Some(value.parse().expect("a list")),
            "native" => native = Some(value.parse().expect("a VLAN")),
            "isolated" => settings.policy.is_isolated = true,
            "kind" => settings.kind = kind(value),
            "mac" => settings.policy.mac = Some(value.parse().expect("an address")),
            _ => {}
        }
    }
    if words.contains("trunk") || native.is_some() {
        settings.policy.vlans = PortVlans::Trunk { carried, native };
    }
    settings
}

fn kind(word: &str) -> PortKind {
    match word {
        "uplink" => PortKind::Uplink,
        "transit" => PortKind::TransitUplink,
        _ => PortKind::Inside,
    }
}

/// A bridge with ports from 1 on, configured by `ports`.
pub(super) fn lab_of(ports: &[&str]) -> Lab<Bridge> {
    let lab = lab(256, &[]);
    for (port, words) in (1..).zip(ports) {
        lab.module.port_added(PortId(port), &settings(port, words)).expect("a new port is accepted");
    }
    lab
}

#[test]
fn access_ports_hear_their_vlan_only_and_without_tags() {
    let mut lab = lab_of(&["vlan=5", "vlan=5", "vlan=6", "trunk=5-6", "trunk=6", ""]);
    let plain = frame(1, 99);
    let with_tag = tagged(5, &plain);
    let expected = vec![(2, plain.clone()), (4, with_tag.clone()), (6, with_tag.clone())];
    assert_eq!(lab.deliver(1, plain.clone()), Ok(expected));
    let from_trunk = vec![(1, frame(4, 99)), (2, frame(4, 99)), (6, tagged(5, &frame(4, 99)))];
    assert_eq!(lab.deliver(4, tagged(5, &frame(4, 99))), Ok(from_trunk));
}

#[test]
fn learned_addresses_are_reached_in_the_form_of_their_port() {
    let mut lab = lab_of(&["vlan=5", "trunk=5", "trunk=6,native=5", ""]);
    for (port, frame) in [(1, frame(1, 99)), (2, tagged(5, &frame(2, 99))), (3, frame(3, 99))] {
        lab.send(port, frame).expect("flooded");
    }
    lab.send(4, tagged(5, &frame(4, 99))).expect("flooded");
    assert_eq!(lab.deliver(1, frame(1, 2)), Ok(vec![(2, tagged(5, &frame(1, 2)))]));
    assert_eq!(lab.deliver(1, frame(1, 3)), Ok(vec![(3, frame(1, 3))]));
    assert_eq!(lab.deliver(1, frame(1, 4)), Ok(vec![(4, tagged(5, &frame(1, 4)))]));
    assert_eq!(lab.deliver(2, tagged(0x6005, &frame(2, 1))), Ok(vec![(1, frame(2, 1))]));
    assert_eq!(lab.deliver(2, tagged(0x6005, &frame(2, 4))), Ok(vec![(4, tagged(0x6005, &frame(2, 4)))]));
    assert_eq!(lab.deliver(3, tagged(0x6005, &frame(3, 2))), Ok(vec![(2, tagged(0x6005, &frame(3, 2)))]));
}

#[test]
fn one_address_lives_in_several_vlans() {
    let mut lab = lab_of(&["vlan=5", "vlan=6", "trunk=5-6", ""]);
    lab.send(1, frame(1, 99)).expect("flooded");
    lab.send(2, frame(1, 99)).expect("flooded");
    lab.send(4, frame(1, 99)).expect_err("nobody else has untagged frames of no VLAN");
    assert_eq!(lab.deliver(3, tagged(5, &frame(3, 1))), Ok(vec![(1, frame(3, 1))]));
    assert_eq!(lab.deliver(3, tagged(6, &frame(3, 1))), Ok(vec![(2, frame(3, 1))]));
    let vlans: Vec<_> = lab.module.fdb(lab.now_ns).iter().map(|entry| (entry.mac.0[5], entry.vlan)).collect();
    assert_eq!(vlans, [(1, None), (1, Some(5)), (1, Some(6)), (3, Some(5)), (3, Some(6))]);
    assert_eq!(lab.module.stats().moved, 0);
}

#[test]
fn vlans_that_a_port_does_not_carry_are_dropped_by_name() {
    let mut lab = lab_of(&["vlan=5", "trunk=10+20-29", "trunk=10,native=7", "", "native=8"]);
    for (port, frame, reason) in [
        (1, tagged(5, &frame(1, 9)), DropReason::VlanTagged),
        (1, tagged(6, &frame(1, 9)), DropReason::VlanTagged),
        (2, frame(2, 9), DropReason::VlanUntagged),
        (2, tagged(0xe000, &frame(2, 9)), DropReason::VlanUntagged),
        (2, tagged(19, &frame(2, 9)), DropReason::VlanNotCarried),
        (2, tagged(4095, &frame(2, 9)), DropReason::VlanNotCarried),
        (3, tagged(8, &frame(3, 9)), DropReason::VlanNotCarried),
        (5, tagged(4095, &frame(5, 9)), DropReason::VlanNotCarried),
        (1, tagged(5, &frame(1, 9))[..17].to_vec(), DropReason::TooShort),
        (4, tagged(5, &frame(1, 9))[..17].to_vec(), DropReason::TooShort),
    ] {
        assert_eq!(lab.send(port, frame.clone()), Err(reason), "port {port}: {frame:x?}");
    }
    assert_eq!(lab.module.fdb(lab.now_ns), [], "what is dropped at the door teaches nothing");
    assert_eq!(
        lab.deliver(3, tagged(7, &frame(3, 9))).map(|out| out.len()),
        Ok(2),
        "a native VLAN is carried with tags, too"
    );
}

#[test]
fn a_priority_tag_belongs_to_the_vlan_of_untagged_frames() {
    let mut lab = lab_of(&["vlan=5", "vlan=5", "trunk=5", "trunk=6,native=5", ""]);
    let with_priority = tagged(0xe000, &frame(1, 99));
    let expected = vec![
        (2, frame(1, 99)),
        (3, tagged(0xe005, &frame(1, 99))),
        (4, frame(1, 99)),
        (5, tagged(0xe005, &frame(1, 99))),
    ];
    assert_eq!(lab.deliver(1, with_priority), Ok(expected));
}

#[test]
fn ports_without_settings_pass_everything_as_it_is() {
    let mut lab = lab_of(&["", "", "vlan=5"]);
    for bytes in [
        frame(1, 99),
        tagged(0xe000, &frame(1, 99)),
        tagged(0xf007, &frame(1, 99)),
        tagged(4095, &frame(1, 99)),
        tagged(7, &tagged(9, &frame(1, 99))),
    ] {
        assert_eq!(lab.deliver(1, bytes.clone()), Ok(vec![(2, bytes)]));
    }
}

#[test]
fn service_tags_are_payload() {
    let mut lab = lab_of(&["vlan=5", "vlan=5", "trunk=5"]);
    let mut service = tagged(9, &frame(1, 99));
    service[12..14].copy_from_slice(&[0x88, 0xa8]);
    let expected = vec![(2, service.clone()), (3, tagged(5, &service))];
    assert_eq!(lab.deliver(1, service), Ok(expected));
}

/// If the tag were removed, receivers would take the second tag for the first.
#[test]
fn no_tag_of_a_senders_making_comes_to_light() {
    let mut lab = lab_of(&["vlan=5", "trunk=6,native=5", "trunk=5"]);
    let hidden = tagged(0, &tagged(6, &frame(1, 2)));
    lab.send(2, frame(2, 99)).expect("flooded");
    assert_eq!(lab.send(1, hidden), Err(DropReason::VlanNested));
    assert_eq!(lab.send(3, tagged(5, &tagged(6, &frame(3, 2)))), Err(DropReason::VlanNested));
}

/// The trunk gets its copy, the access port does not: both are counted.
#[test]
fn a_flood_loses_the_copies_that_cannot_be_made() {
    let mut lab = lab_of(&["trunk=5", "vlan=5", "vlan=5", "trunk=5"]);
    let bytes = tagged(5, &tagged(6, &frame(1, 99)));
    let headers = [Header::new(&bytes, bytes.len() as u32, lasthop_wire::Offload::default())];
    let mut verdicts = Verdicts::default();
    lab.module.decide(
        &Batch { port: PortId(1), headers: &headers, hashes: &Hashes::NONE },
        lab.now_ns,
        &mut verdicts,
    );
    assert_eq!(verdicts.outputs().iter().map(|output| output.port.0).collect::<Vec<_>>(), [4]);
    assert_eq!(verdicts.drops(), [(0, DropReason::VlanNested)], "once for all that want it untagged");
    lab.module.port_removed(PortId(4));
    assert_eq!(lab.send(1, bytes), Err(DropReason::VlanNested));
}

#[test]
fn isolated_ports_talk_to_others_only() {
    let mut lab = lab_of(&[
        "isolated=true",
        "isolated=true",
        "",
        "vlan=5,isolated=true",
        "vlan=5,isolated=true",
        "vlan=5",
    ]);
    for port in 1..=3 {
        lab.send(port, frame(port as u8, 99)).expect("flooded");
    }
    assert_eq!(lab.send(1, frame(1, 99)), Ok(vec![3]));
    assert_eq!(lab.send(3, frame(3, 99)), Ok(vec![1, 2]));
    assert_eq!(lab.send(1, frame(1, 2)), Err(DropReason::Isolated));
    assert_eq!(lab.send(1, frame(1, 3)), Ok(vec![3]));
    assert_eq!(lab.send(3, frame(3, 1)), Ok(vec![1]));
    assert_eq!(lab.send(4, frame(4, 99)), Ok(vec![3, 6]));
    assert_eq!(lab.send(5, frame(5, 4)), Err(DropReason::Isolated));
    lab.module.port_removed(PortId(2));
    lab.add(2).expect("the number is free again");
    assert_eq!(lab.send(1, frame(1, 99)), Ok(vec![2, 3]), "isolation goes with the port");
}

#[test]
fn uplinks_talk_to_each_other_if_both_are_for_transit() {
    let mut lab = lab_of(&["kind=uplink", "kind=uplink", "kind=transit", "kind=transit", ""]);
    for port in 1..=5 {
        lab.send(port, frame(port as u8, 99)).expect("flooded");
    }
    assert_eq!(lab.send(1, frame(1, 99)), Ok(vec![5]));
    assert_eq!(lab.send(3, frame(3, 99)), Ok(vec![4, 5]));
    assert_eq!(lab.send(5, frame(5, 99)), Ok(vec![1, 2, 3, 4]));
    assert_eq!(lab.send(1, frame(1, 2)), Err(DropReason::NoTransit));
    assert_eq!(lab.send(1, frame(1, 3)), Err(DropReason::NoTransit));
    assert_eq!(lab.send(3, frame(3, 1)), Err(DropReason::NoTransit));
    assert_eq!(lab.send(3, frame(3, 4)), Ok(vec![4]));
    assert_eq!(lab.send(2, frame(2, 5)), Ok(vec![5]));
    lab.module.port_removed(PortId(2));
    lab.add(2).expect("the number is free again");
    assert_eq!(lab.send(1, frame(1, 99)), Ok(vec![2, 5]), "what it led to goes with the port");
}

#[test]
fn isolated_ports_alone_have_no_destination() {
    let mut lab = lab_of(&["isolated=true", "isolated=true", "vlan=5,isolated=true", "vlan=5,isolated=true"]);
    assert_eq!(lab.send(4, frame(4, 99)), Err(DropReason::NoDestination));
    assert_eq!(lab.send(1, frame(1, 99)), Err(DropReason::NoDestination));
}

#[test]
fn link_local_frames_are_not_forwarded_in_a_vlan_either() {
    let mut lab = lab_of(&["vlan=5", "vlan=5"]);
    let lldp = frame_of(mac(1), Mac([0x01, 0x80, 0xc2, 0, 0, 0x0e]));
    assert_eq!(lab.send(1, lldp), Err(DropReason::LinkLocal));
}

#[test]
fn a_batch_of_several_vlans_is_decided_like_its_frames_one_by_one() {
    let mut lab = lab_of(&["trunk=5-6", "vlan=5", "vlan=6"]);
    lab.send(2, frame(2, 99)).expect("flooded");
    lab.send(3, frame(2, 99)).expect("flooded");
    let (five, six) = (tagged(5, &frame(1, 2)), tagged(6, &frame(1, 2)));
    let fates = lab.send_batch(1, &[five.clone(), six.clone(), five, frame(1, 2), six]);
    let expected = [Ok(vec![2]), Ok(vec![3]), Ok(vec![2]), Err(DropReason::VlanUntagged), Ok(vec![3])];
    assert_eq!(fates, expected);
}
