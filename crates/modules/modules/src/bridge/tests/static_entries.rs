//! Tests static addresses in VLANs, entries that users add, and removal of learned ones.

use lasthop_module_api::Vid;

use super::vlans::{lab_of, settings};
use super::*;
use crate::testing::tagged;

fn vid(number: u16) -> Option<Vid> {
    Some(number.try_into().expect("a VLAN"))
}

const OWN: &str = "mac=02:00:00:00:00:01";

#[test]
fn a_ports_own_address_holds_in_all_its_vlans_and_nowhere_else() {
    for (words, held, free) in [
        (&*format!("vlan=5,{OWN}"), &[5][..], &[6, 7][..]),
        (&format!("trunk=5-6,{OWN}"), &[5, 6], &[7]),
        (&format!("trunk=6,native=5,{OWN}"), &[5, 6], &[7]),
        (OWN, &[5, 6, 7], &[]),
    ] {
        let mut lab = lab_of(&[words, "trunk=5-7", "trunk=5-7"]);
        for vid in held {
            let to_it = lab.send(2, tagged(*vid, &frame(2, 1)));
            assert_eq!(to_it, Ok(vec![1]), "{words}: known from the start in {vid}");
            assert_eq!(lab.send(2, tagged(*vid, &frame(1, 9))), Err(DropReason::SourceSpoofed), "{words}");
        }
        for vid in free {
            assert_eq!(
                lab.send(2, tagged(*vid, &frame(1, 9))),
                Ok(vec![3]),
                "{words}: somebody else's in {vid}"
            );
            assert_eq!(lab.send(3, tagged(*vid, &frame(3, 1))), Ok(vec![2]), "{words}");
        }
        assert_eq!(lab.module.fdb(lab.now_ns).iter().filter(|entry| entry.is_static).count(), 1, "{words}");
    }
}

#[test]
fn another_source_address_is_spoofed_in_each_vlan() {
    let mut lab = lab_of(&[&format!("trunk=5-6,{OWN}"), "trunk=5-6"]);
    for vid in [5, 6] {
        assert_eq!(lab.send(1, tagged(vid, &frame(3, 9))), Err(DropReason::SourceSpoofed));
        assert_eq!(lab.send(1, tagged(vid, &frame(1, 9))), Ok(vec![2]));
    }
}

#[test]
fn one_address_belongs_to_ports_that_never_meet() {
    let lab = lab_of(&[&format!("vlan=5,{OWN}"), &format!("vlan=6,{OWN}"), &format!("trunk=7-8,{OWN}")]);
    for words in ["vlan=5", "vlan=7", "trunk=1-5", "trunk=8", "native=6", "", "trunk=100"] {
        let added = lab.module.port_added(PortId(9), &settings(9, &format!("{words},{OWN}")));
        let error = added.expect_err(words);
        assert!(error.contains("02:00:00:00:00:01 is the address of"), "{words}: {error}");
    }
    lab.module.port_added(PortId(9), &settings(9, &format!("vlan=9,{OWN}"))).expect("nobody has it there");
    assert_eq!(lab.module.fdb(lab.now_ns).len(), 4);
}

#[test]
fn a_new_ports_address_is_forgotten_where_it_was_learned() {
    let mut lab = lab_of(&["trunk=5-7", "trunk=5-7"]);
    for vid in [5, 6, 7] {
        lab.send(1, tagged(vid, &frame(1, 9))).expect("flooded");
    }
    lab.module
        .port_added(PortId(3), &settings(3, &format!("trunk=5-6,{OWN}")))
        .expect("learned is no obstacle");
    assert_eq!(lab.send(2, tagged(6, &frame(2, 1))), Ok(vec![3]));
    assert_eq!(lab.send(2, tagged(7, &frame(2, 1))), Ok(vec![1]));
    assert_counts(&lab.module, &[1, 2, 3]);
}

#[test]
fn an_entry_sends_frames_to_its_port_and_refuses_its_address_elsewhere() {
    let mut lab = lab_of(&["vlan=5", "trunk=5-6", "", "vlan=6"]);
    lab.module.fdb_add(mac(7), None, PortId(1)).expect("free");
    lab.module.fdb_add(mac(7), vid(6), PortId(2)).expect("free in 6");
    assert_eq!(lab.send(2, tagged(5, &frame(2, 7))), Ok(vec![1]));
    assert_eq!(lab.send(4, frame(4, 7)), Ok(vec![2]));
    assert_eq!(lab.send(2, tagged(5, &frame(7, 9))), Err(DropReason::SourceSpoofed));
    assert_eq!(lab.send(4, frame(7, 9)), Err(DropReason::SourceSpoofed));
    assert_eq!(lab.send(1, frame(7, 9)), Ok(vec![2, 3]));
    assert_eq!(lab.send(1, frame(8, 9)), Ok(vec![2, 3]), "the port may send from others, too");
    lab.module.fdb_del(mac(7), vid(6), PortId(2)).expect("it is there");
    assert_eq!(lab.send(4, frame(4, 7)), Ok(vec![2, 3]));
    lab.module.fdb_del(mac(7), None, PortId(1)).expect("it is there");
    assert!(lab.module.fdb(lab.now_ns).iter().all(|entry| !entry.is_static));
    assert_counts(&lab.module, &[1, 2, 3, 4]);
}

#[test]
fn a_port_with_an_address_may_send_from_its_entries_as_well() {
    let mut lab = lab_of(&[OWN, ""]);
    assert_eq!(lab.send(1, frame(7, 9)), Err(DropReason::SourceSpoofed));
    lab.module.fdb_add(mac(7), None, PortId(1)).expect("free");
    assert_eq!(lab.send(1, frame(7, 9)), Ok(vec![2]));
    assert_eq!(lab.send(1, tagged(5, &frame(7, 9))), Ok(vec![2]), "without a VLAN it is for all of them");
}

#[test]
fn entries_are_refused_in_a_sentence_that_names_the_remedy() {
    let lab = lab_of(&[&format!("vlan=5,{OWN}"), "trunk=5-6", "vlan=7"]);
    lab.module.fdb_add(mac(7), vid(6), PortId(2)).expect("free");
    let add = |mac, vlan, port| lab.module.fdb_add(mac, vlan, PortId(port)).expect_err("refused");
    let del = |mac, vlan, port| lab.module.fdb_del(mac, vlan, PortId(port)).expect_err("refused");
    for (error, words) in [
        (add(mac(7), vid(6), 2), "02:00:00:00:00:07 is a static address of \"vm2\" already"),
        (add(mac(7), None, 2), "02:00:00:00:00:07 is a static address of \"vm2\" already"),
        (add(mac(1), vid(5), 2), "is the address of \"vm1\" already"),
        (add(mac(8), vid(5), 3), "\"vm3\" does not carry VLAN 5; see: lasthop vlan show"),
        (add(BROADCAST, None, 3), "unicast"),
        (add(mac(8), None, 9), "no port 9"),
        (del(mac(7), vid(5), 2), "no static entry 02:00:00:00:00:07 for \"vm2\" in VLAN 5"),
        (del(mac(8), None, 3), "no static entry 02:00:00:00:00:08 for \"vm3\"; see: lasthop fdb show"),
        (del(mac(1), None, 1), "is the address of \"vm1\" itself, set by mac="),
        (del(mac(1), vid(5), 1), "is the address of \"vm1\" itself, set by mac="),
    ] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn flushing_removes_learned_addresses_only() {
    let learn = || {
        let mut lab = lab_of(&["trunk=5-6", "trunk=5-6", OWN]);
        lab.module.fdb_add(mac(7), vid(5), PortId(1)).expect("free");
        for (port, vid) in [(1, 5), (1, 6), (2, 5)] {
            lab.send(port, tagged(vid, &frame(10 + port as u8, 9))).expect("flooded");
        }
        lab
    };
    for (port, vlan, flushed) in [
        (None, None, 3),
        (Some(1), None, 2),
        (None, vid(5), 2),
        (Some(1), vid(6), 1),
        (Some(3), None, 0),
        (Some(2), vid(6), 0),
    ] {
        let lab = learn();
        assert_eq!(lab.module.fdb_flush(port.map(PortId), vlan), Ok(flushed), "{port:?} {vlan:?}");
        let left = lab.module.fdb(lab.now_ns);
        assert_eq!((left.len(), left.iter().filter(|entry| entry.is_static).count()), (5 - flushed, 2));
        assert_counts(&lab.module, &[1, 2, 3]);
    }
}

#[test]
fn entries_go_with_their_port() {
    let mut lab = lab_of(&["trunk=5", "trunk=5", "vlan=5"]);
    lab.module.fdb_add(mac(7), None, PortId(1)).expect("free");
    lab.module.port_removed(PortId(1));
    assert_eq!(lab.module.fdb(lab.now_ns), []);
    assert_eq!(lab.send(3, frame(3, 7)), Ok(vec![2]));
    lab.module.fdb_add(mac(7), None, PortId(2)).expect("free again");
}

#[test]
fn another_address_takes_the_old_ones_place_in_all_vlans() {
    let change = |lab: &Lab<Bridge>, words: &str| lab.module.port_changed(PortId(1), &settings(1, words));
    for vlans in ["trunk=5-6", ""] {
        let mut lab = lab_of(&[&format!("{vlans},{OWN}"), "trunk=5-6"]);
        lab.module.fdb_add(mac(7), vid(5), PortId(1)).expect("free");
        change(&lab, &format!("{vlans},mac=02:00:00:00:00:03")).expect("free");
        assert_eq!(lab.send(2, tagged(6, &frame(2, 3))), Ok(vec![1]));
        assert_eq!(lab.send(1, tagged(6, &frame(1, 2))), Err(DropReason::SourceSpoofed));
        assert_eq!(lab.send(2, tagged(6, &frame(1, 9))), Ok(vec![1]), "the old address is free");
        assert_eq!(lab.send(1, tagged(5, &frame(7, 9))), Ok(vec![2]), "what users entered stays");
        change(&lab, vlans).expect("any address");
        assert_eq!(lab.send(1, tagged(6, &frame(3, 2))), Ok(vec![2]));
        assert_counts(&lab.module, &[1, 2]);
    }
}

#[test]
fn entries_follow_the_vlans_of_a_port_that_changes() {
    let mut lab = lab_of(&[&format!("vlan=5,{OWN}"), "trunk=5-7", "vlan=5"]);
    let change = |lab: &Lab<Bridge>, port: u16, words: &str| {
        lab.module.port_changed(PortId(port), &settings(port, words))
    };
    lab.module.fdb_add(mac(7), None, PortId(1)).expect("entered");
    lab.module.fdb_add(mac(8), vid(5), PortId(1)).expect("entered");
    let why = change(&lab, 1, &format!("vlan=6,{OWN}")).expect_err("8 is for VLAN 5 alone");
    assert!(
        why.contains("in VLAN 5") && why.contains("lasthop fdb del 02:00:00:00:00:08 vm1 --vlan 5"),
        "{why}"
    );
    assert_eq!(lab.deliver(2, tagged(5, &frame(2, 7))), Ok(vec![(1, frame(2, 7))]), "refused and unchanged");
    change(&lab, 1, &format!("trunk=5-6,{OWN}")).expect("VLAN 5 is carried");
    for (n, tag, is_known) in [(1, 6, true), (7, 6, true), (8, 5, true), (8, 6, false)] {
        let from = lab.deliver(1, tagged(tag, &frame(n, 2))).map(drop);
        assert_eq!(from == Err(DropReason::SourceSpoofed), !is_known, "{n} in VLAN {tag}: {from:?}");
    }
    lab.module.fdb_del(mac(8), vid(5), PortId(1)).expect("it is there");
    change(&lab, 1, &format!("vlan=6,{OWN}")).expect("nothing of VLAN 5 is left");
    assert_eq!(lab.deliver(2, tagged(6, &frame(2, 7))), Ok(vec![(1, frame(2, 7))]));
    assert_eq!(lab.send(3, frame(7, 99)), Ok(vec![2]), "in VLAN 5 the address is free");
    let why = change(&lab, 2, &format!("trunk=5-7,{OWN}")).expect_err("taken in VLAN 6");
    assert!(why.contains("is the address of \"vm1\" already"), "{why}");
    change(&lab, 2, &format!("trunk=5+7,{OWN}")).expect("VLAN 6 is not carried");
}
