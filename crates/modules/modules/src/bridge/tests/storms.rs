//! Tests floods beyond a port's limits.

use lasthop_module_api::{PortPolicy, PortVlans, StormLimits};

use super::*;

const MULTICAST: Mac = Mac([1, 0, 0x5e, 0, 0, 1]);
/// The burst at 10 frames per second.
const BURST: usize = 32;

fn limited(storm: StormLimits) -> Lab<Bridge> {
    let mut lab = small(&[2, 3]);
    let settings = PortSettings {
        name: "vm1".into(),
        policy: PortPolicy { storm, ..PortPolicy::default() },
        ..PortSettings::default()
    };
    lab.module.port_added(PortId(1), &settings).expect("a new port is accepted");
    lab.send(2, frame(22, 99)).expect("flooded");
    lab
}

/// Sends 100 frames to `destination`. Returns how many arrive, and the drop reasons of the others.
fn arrived(lab: &mut Lab<Bridge>, port: u16, destination: Mac) -> (usize, Option<DropReason>) {
    let fates: Vec<_> = (0..100).map(|_| lab.send(port, frame_of(mac(11), destination))).collect();
    (
        fates.iter().filter(|fate| fate.is_ok()).count(),
        fates.iter().find_map(|fate| fate.as_ref().err().copied()),
    )
}

#[test]
fn each_kind_of_flood_has_its_own_limit_and_reason() {
    let one = StormLimits { broadcast: 10, ..StormLimits::default() };
    let mut lab = limited(one);
    assert_eq!(arrived(&mut lab, 1, BROADCAST), (BURST, Some(DropReason::StormBroadcast)));
    assert_eq!(arrived(&mut lab, 1, MULTICAST), (100, None));
    assert_eq!(arrived(&mut lab, 1, mac(99)), (100, None));

    let mut lab = limited(StormLimits { broadcast: 10, multicast: 20, unknown: 30 });
    assert_eq!(arrived(&mut lab, 1, MULTICAST), (BURST, Some(DropReason::StormMulticast)));
    assert_eq!(arrived(&mut lab, 1, mac(99)), (BURST, Some(DropReason::StormUnknown)));
    lab.now_ns += SECOND_NS + 1000; // a token takes a little more than its share of a second
    assert_eq!(arrived(&mut lab, 1, MULTICAST).0, 20);
    assert_eq!(arrived(&mut lab, 1, mac(99)).0, 30);
}

#[test]
fn known_addresses_and_other_ports_are_not_limited() {
    let mut lab = limited(StormLimits { broadcast: 1, multicast: 1, unknown: 1 });
    for destination in [BROADCAST, MULTICAST, mac(99)] {
        assert_eq!(arrived(&mut lab, 1, destination).0, BURST);
        assert_eq!(arrived(&mut lab, 3, destination), (100, None), "another port");
    }
    assert_eq!(arrived(&mut lab, 1, mac(22)), (100, None), "a known address");
}

#[test]
fn a_frame_beyond_the_limit_still_teaches() {
    let mut lab = limited(StormLimits { unknown: 1, ..StormLimits::default() });
    arrived(&mut lab, 1, mac(99));
    assert_eq!(lab.send(1, frame(12, 99)), Err(DropReason::StormUnknown));
    assert_eq!(lab.send(2, frame(22, 12)), Ok(vec![1]));
}

#[test]
fn a_port_that_is_made_again_has_its_own_limits() {
    let mut lab = limited(StormLimits { broadcast: 1, ..StormLimits::default() });
    lab.module.port_removed(PortId(1));
    lab.add(1).expect("the number is free again");
    assert_eq!(arrived(&mut lab, 1, BROADCAST), (100, None));
}

#[test]
fn limits_change_while_frames_pass() {
    let mut lab = limited(StormLimits { broadcast: 1, multicast: 1, unknown: 0 });
    assert_eq!((arrived(&mut lab, 1, BROADCAST).0, arrived(&mut lab, 1, MULTICAST).0), (BURST, BURST));
    let storm = StormLimits { broadcast: 0, multicast: 1, unknown: 5 };
    let settings = PortSettings {
        name: "vm1".into(),
        policy: PortPolicy { storm, ..PortPolicy::default() },
        ..PortSettings::default()
    };
    lab.module.port_changed(PortId(1), &settings).expect("nothing is in the way");
    assert_eq!(arrived(&mut lab, 1, BROADCAST), (100, None));
    assert_eq!(arrived(&mut lab, 1, MULTICAST).0, 0, "a bucket whose limit stays is not filled");
    assert_eq!(arrived(&mut lab, 1, mac(99)).0, BURST);
}

#[test]
fn floods_within_a_vlan_are_limited_too() {
    let mut lab = small(&[]);
    let vlan = lasthop_module_api::PortVlans::Access("5".parse().expect("a VLAN"));
    for port in [1, 2] {
        let storm = StormLimits { broadcast: 1, multicast: 0, unknown: 1 };
        let settings = PortSettings {
            name: format!("vm{port}"),
            policy: PortPolicy { vlans: vlan.clone(), storm, ..PortPolicy::default() },
            ..PortSettings::default()
        };
        lab.module.port_added(PortId(port), &settings).expect("a new port is accepted");
    }
    assert_eq!(arrived(&mut lab, 1, BROADCAST), (BURST, Some(DropReason::StormBroadcast)));
    assert_eq!(arrived(&mut lab, 1, mac(99)), (BURST, Some(DropReason::StormUnknown)));
    assert_eq!(arrived(&mut lab, 1, MULTICAST), (100, None));
    lab.send(2, frame(22, 99)).expect("flooded");
    assert_eq!(arrived(&mut lab, 1, mac(22)), (100, None), "a known address");
}

#[test]
fn a_flood_that_no_port_gets_has_no_destination_and_takes_no_token() {
    for vlan in [None, Some("5")] {
        let vlans = vlan.map_or(PortVlans::Any, |vid| PortVlans::Access(vid.parse().expect("a VLAN")));
        let storm = StormLimits { broadcast: 10, multicast: 10, unknown: 10 };
        let settings = |port: u16| PortSettings {
            name: format!("vm{port}"),
            policy: PortPolicy { vlans: vlans.clone(), storm, ..PortPolicy::default() },
            ..PortSettings::default()
        };
        let mut lab = small(&[]);
        lab.module.port_added(PortId(1), &settings(1)).expect("a new port is accepted");
        for destination in [BROADCAST, MULTICAST, mac(99)] {
            let fates: Vec<_> = (0..100).map(|_| lab.send(1, frame_of(mac(11), destination))).collect();
            assert!(fates.iter().all(|fate| *fate == Err(DropReason::NoDestination)), "{vlan:?}: {fates:?}");
        }
        lab.module.port_added(PortId(2), &settings(2)).expect("a new port is accepted");
        for destination in [BROADCAST, MULTICAST, mac(99)] {
            assert_eq!(arrived(&mut lab, 1, destination).0, BURST, "{vlan:?}: a full bucket");
        }
    }
}
