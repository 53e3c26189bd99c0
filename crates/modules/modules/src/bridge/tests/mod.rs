//! Tests each rule of the bridge with frames.

mod apart;
mod limits;
mod model;
mod static_entries;
mod storms;
mod threads;
mod vlan_model;
mod vlans;

use lasthop_module_api::{DropReason, PortPolicy};

use super::*;
use crate::testing::{Lab, SECOND_NS, frame, frame_of, mac};

const BROADCAST: Mac = Mac([0xff; 6]);

/// A bridge with a known hash key, and ports without settings.
pub(crate) fn lab(entries_max: usize, ports: &[u16]) -> Lab<Bridge> {
    let settings =
        BridgeSettings { entries_max, hash_key: [0x0123_4567, 0x89ab_cdef], ..BridgeSettings::default() };
    let mut lab = Lab::new(Bridge::new(&settings));
    for port in ports {
        lab.add(*port).expect("a new port is accepted");
    }
    lab
}

fn small(ports: &[u16]) -> Lab<Bridge> {
    lab(64, ports)
}

fn add_with_mac(lab: &Lab<Bridge>, port: u16, mac: Mac) -> Result<(), String> {
    let settings = PortSettings {
        name: format!("vm{port}"),
        policy: PortPolicy { mac: Some(mac), ..PortPolicy::default() },
        ..PortSettings::default()
    };
    lab.module.port_added(PortId(port), &settings)
}

/// Asserts that each port's count is the number of slots that it holds.
pub(crate) fn assert_counts(bridge: &Bridge, ports: &[u16]) {
    for port in ports {
        let of_port = |place: &FdbValue| place.port() == PortId(*port) && !place.is_static();
        let held = bridge.table.entries().filter(|(_, _, place)| of_port(place)).count();
        assert_eq!(bridge.ports.learned(PortId(*port)) as usize, held, "port {port}");
    }
}

#[test]
fn unknown_and_group_addresses_go_to_all_others_in_order() {
    let mut lab = small(&[7, 1, 3, 0]);
    for destination in [mac(9), BROADCAST, Mac([1, 0, 0x5e, 0, 0, 1]), Mac([0; 6])] {
        assert_eq!(lab.send(3, frame_of(mac(1), destination)), Ok(vec![1, 7]));
    }
}

#[test]
fn an_empty_flood_is_no_destination() {
    let mut lab = small(&[1]);
    assert_eq!(lab.send(1, frame_of(mac(1), BROADCAST)), Err(DropReason::NoDestination));
}

#[test]
fn a_learned_address_gets_its_frames_alone() {
    let mut lab = small(&[1, 2, 3]);
    lab.send(1, frame(11, 99)).expect("flooded");
    assert_eq!(lab.send(2, frame(22, 11)), Ok(vec![1]));
    assert_eq!(lab.send(1, frame(11, 22)), Ok(vec![2]));
    assert_eq!(lab.module.stats(), BridgeStats { learned: 2, ..BridgeStats::default() });
}

#[test]
fn a_destination_behind_the_senders_port_is_not_sent_back() {
    let mut lab = small(&[1, 2]);
    lab.send(1, frame(11, 99)).expect("flooded");
    assert_eq!(lab.send(1, frame(12, 11)), Err(DropReason::SamePort));
    assert_eq!(lab.send(1, frame(11, 11)), Err(DropReason::SamePort));
}

#[test]
fn link_local_frames_are_not_forwarded_but_teach() {
    let mut lab = small(&[1, 2, 3]);
    for last in 0..=0x0f {
        let link_local = Mac([0x01, 0x80, 0xc2, 0, 0, last]);
        assert_eq!(lab.send(1, frame_of(mac(11), link_local)), Err(DropReason::LinkLocal));
    }
    assert_eq!(lab.send(1, frame_of(mac(11), Mac([0x01, 0x80, 0xc2, 0, 0, 0x10]))), Ok(vec![2, 3]));
    assert_eq!(lab.send(0, frame_of(mac(11), Mac([0x01, 0x80, 0xc2, 0, 0, 0]))), Err(DropReason::LinkLocal));
    assert_eq!(lab.send(2, frame(22, 11)), Ok(vec![1]));
}

#[test]
fn frames_shorter_than_a_header_are_too_short() {
    let mut lab = small(&[1, 2]);
    for len in 0..14 {
        assert_eq!(lab.send(1, frame(1, 2)[..len].to_vec()), Err(DropReason::TooShort), "{len} bytes");
    }
    assert_eq!(lab.send(1, frame(1, 2)[..14].to_vec()), Ok(vec![2]));
}

#[test]
fn group_and_zero_sources_are_invalid() {
    let mut lab = small(&[1, 2]);
    for source in [BROADCAST, Mac([0x01, 0, 0x5e, 0, 0, 1]), Mac([0; 6])] {
        assert_eq!(lab.send(1, frame_of(source, mac(2))), Err(DropReason::SourceInvalid));
    }
    assert_eq!(lab.module.fdb(lab.now_ns), []);
}

#[test]
fn an_address_ages_out_unless_refreshed() {
    let mut lab = small(&[1, 2, 3]);
    lab.send(1, frame(11, 99)).expect("flooded");
    lab.now_ns += 200 * SECOND_NS;
    lab.send(1, frame(11, 99)).expect("flooded");
    lab.now_ns += 299 * SECOND_NS;
    assert_eq!(lab.send(2, frame(22, 11)), Ok(vec![1]), "refreshed in time");
    lab.now_ns += 2 * SECOND_NS;
    assert_eq!(lab.send(2, frame(22, 11)), Ok(vec![1, 3]), "aged out");
    assert_eq!(lab.send(1, frame(11, 22)), Ok(vec![2]));
    assert_eq!(lab.send(2, frame(22, 11)), Ok(vec![1]), "back again");
    assert_counts(&lab.module, &[1, 2, 3]);
}

#[test]
fn the_line_is_not_written_within_one_unit_of_the_stamp() {
    let mut lab = small(&[1, 2]);
    lab.now_ns = 1 << 40;
    let stamp = |lab: &Lab<Bridge>| lab.module.table.find(mac(11).to_bits()).map(|(_, place)| place.stamp());
    lab.send(1, frame(11, 99)).expect("flooded");
    lab.now_ns += (1 << 26) - 1;
    lab.send(1, frame(11, 99)).expect("flooded");
    assert_eq!(stamp(&lab), Some(Stamp::at(1 << 40)));
    lab.now_ns += 1;
    lab.send(1, frame(11, 99)).expect("flooded");
    assert_eq!(stamp(&lab), Some(Stamp::at(lab.now_ns)));
}

#[test]
fn an_address_moves_at_once() {
    let mut lab = small(&[1, 2, 3]);
    lab.send(1, frame(11, 99)).expect("flooded");
    lab.send(2, frame(11, 99)).expect("flooded");
    assert_eq!(lab.send(3, frame(33, 11)), Ok(vec![2]));
    assert_eq!((lab.module.ports.learned(PortId(1)), lab.module.ports.learned(PortId(2))), (0, 1));
    assert_eq!(lab.module.stats(), BridgeStats { learned: 2, moved: 1, ..BridgeStats::default() });
}

#[test]
fn an_aged_address_on_another_port_is_new_there() {
    let mut lab = small(&[1, 2, 3]);
    lab.send(1, frame(11, 99)).expect("flooded");
    lab.now_ns += 301 * SECOND_NS;
    lab.send(2, frame(11, 99)).expect("flooded");
    assert_eq!(lab.module.stats(), BridgeStats { learned: 2, aged_out: 1, ..BridgeStats::default() });
    assert_counts(&lab.module, &[1, 2]);
}

#[test]
fn a_port_with_a_static_address_sends_from_no_other() {
    let mut lab = small(&[2]);
    add_with_mac(&lab, 1, mac(11)).expect("free address");
    assert_eq!(lab.send(1, frame(12, 99)), Err(DropReason::SourceSpoofed));
    assert_eq!(lab.send(1, frame(11, 99)), Ok(vec![2]));
    assert_eq!(lab.send(1, frame_of(BROADCAST, mac(99))), Err(DropReason::SourceInvalid));
    assert_eq!(lab.module.ports.learned(PortId(1)), 0, "static addresses are not counted as learned");
}

#[test]
fn a_static_address_is_known_from_the_start_never_moves_and_never_ages() {
    let mut lab = small(&[2, 3]);
    add_with_mac(&lab, 1, mac(11)).expect("free address");
    assert_eq!(lab.send(2, frame(22, 11)), Ok(vec![1]));
    assert_eq!(lab.send(2, frame(11, 99)), Err(DropReason::SourceSpoofed));
    assert_eq!(lab.send_batch(2, &[frame(11, 99), frame(11, 99)]), vec![Err(DropReason::SourceSpoofed); 2]);
    lab.now_ns += 10_000 * SECOND_NS;
    assert_eq!(lab.send(2, frame(22, 11)), Ok(vec![1]));
}

#[test]
fn a_static_address_takes_over_from_a_learned_one() {
    let mut lab = small(&[2, 3]);
    lab.send(2, frame(11, 99)).expect("flooded");
    add_with_mac(&lab, 1, mac(11)).expect("learned elsewhere is no obstacle");
    assert_eq!(lab.send(3, frame(33, 11)), Ok(vec![1]));
    assert_eq!(lab.send(2, frame(11, 99)), Err(DropReason::SourceSpoofed));
    assert_counts(&lab.module, &[1, 2, 3]);
}

#[test]
fn ports_are_refused_in_a_sentence_that_names_the_remedy() {
    let mut lab = small(&[2]);
    add_with_mac(&lab, 1, mac(11)).expect("free address");
    let error = add_with_mac(&lab, 3, mac(11)).expect_err("taken");
    assert_eq!(
        error,
        "02:00:00:00:00:0b is the address of \"vm1\" already; give \"vm3\" another one, or remove \"vm1\""
    );
    assert!(lab.add(2).expect_err("twice").contains("port 2 is \"vm2\" already"));
    for invalid in [BROADCAST, Mac([0; 6])] {
        assert!(add_with_mac(&lab, 3, invalid).expect_err("invalid").contains("unicast"));
    }
    assert!(lab.add(lasthop_module_api::PORTS_MAX as u16).expect_err("too high").contains("1023"));
    assert_eq!(lab.send(2, frame_of(mac(22), BROADCAST)), Ok(vec![1]), "a refused port is not there");
}

#[test]
fn a_removed_port_is_forgotten() {
    let mut lab = small(&[1, 2, 3]);
    lab.send(1, frame(11, 99)).expect("flooded");
    lab.send(1, frame(12, 99)).expect("flooded");
    add_with_mac(&lab, 4, mac(44)).expect("free address");
    lab.module.port_removed(PortId(1));
    lab.module.port_removed(PortId(4));
    lab.module.port_removed(PortId(9));
    lab.module.port_removed(PortId(u16::MAX));
    assert_eq!(lab.module.fdb(lab.now_ns), []);
    assert_eq!(lab.module.ports.learned(PortId(1)), 0);
    assert_eq!(lab.send(2, frame(22, 11)), Ok(vec![3]));
    add_with_mac(&lab, 1, mac(44)).expect("the address is free again");
    lab.add(4).expect("the number is free again");
    assert_eq!(lab.send(4, frame(41, 44)), Ok(vec![1]), "no static address is left behind");
}

#[test]
fn a_port_that_is_not_there_teaches_nothing() {
    let mut lab = small(&[1, 2]);
    for port in [5, u16::MAX] {
        assert_eq!(lab.send(port, frame(11, 99)), Ok(vec![1, 2]));
    }
    assert_eq!(lab.module.fdb(lab.now_ns), []);
}

#[test]
fn the_internal_port_is_trusted_and_teaches_nothing() {
    let mut lab = small(&[0, 1, 2]);
    add_with_mac(&lab, 3, mac(33)).expect("free address");
    assert_eq!(lab.send(0, frame_of(mac(33), BROADCAST)), Ok(vec![1, 2, 3]));
    assert_eq!(lab.send(0, frame(11, 33)), Ok(vec![3]));
    assert_eq!(lab.send(1, frame(12, 11)), Ok(vec![2, 3]));
}

#[test]
fn a_batch_is_decided_like_its_frames_one_by_one() {
    let mut lab = small(&[1, 2, 3]);
    lab.send(2, frame(22, 99)).expect("flooded");
    let frames = [frame(11, 12), frame(12, 12), frame(11, 22), frame(22, 22), frame(22, 12), frame(11, 22)];
    let fates = lab.send_batch(1, &frames);
    let (flood, same_port) = (Ok(vec![2, 3]), Err(DropReason::SamePort));
    let expected = [flood, same_port.clone(), Ok(vec![2]), same_port.clone(), same_port.clone(), same_port];
    assert_eq!(fates, expected, "the second frame teaches where 12 is, the fourth moves 22");
}

#[test]
fn frames_with_the_same_addresses_in_a_row_are_decided_like_others() {
    let mut lab = small(&[1, 2, 3]);
    lab.send(2, frame(22, 99)).expect("flooded");
    lab.send(3, frame(33, 99)).expect("flooded");
    // Runs of equal headers first, then enough single frames to end the search for runs, then runs again.
    let destinations = [22, 22, 22, 33, 33, 22, 33, 22, 33, 33, 22, 22, 22];
    let fates = lab.send_batch(1, &destinations.map(|destination| frame(11, destination)));
    let expected = destinations.map(|destination| Ok(vec![u16::from(destination / 11)]));
    assert_eq!(fates, expected);
}

#[test]
fn the_table_is_listed_in_order_with_ages_and_without_aged_entries() {
    let mut lab = small(&[1, 2]);
    lab.now_ns = 1 << 50; // the start of a unit, so that ages are exact
    lab.send(1, frame(99, 1)).expect("flooded");
    lab.now_ns += 200 * SECOND_NS;
    let seen_ns = lab.now_ns;
    lab.send(2, frame(12, 1)).expect("flooded");
    add_with_mac(&lab, 3, mac(5)).expect("free address");
    lab.now_ns += 101 * SECOND_NS;
    let fdb = lab.module.fdb(lab.now_ns);
    assert_eq!(fdb.iter().map(|entry| entry.mac).collect::<Vec<_>>(), [mac(5), mac(12)]);
    assert_eq!(fdb[0], FdbEntry { mac: mac(5), vlan: None, port: PortId(3), age_ns: 0, is_static: true });
    assert_eq!((fdb[1].port, fdb[1].is_static), (PortId(2), false));
    assert_eq!(fdb[1].age_ns, lab.now_ns - Stamp::at(seen_ns).as_ns());
}

#[test]
fn counters_have_names_of_their_own() {
    let names: std::collections::BTreeSet<_> =
        BridgeStats::default().counters().map(|(name, _)| name).collect();
    assert_eq!(names.len(), BridgeStats::default().counters().count());
    assert!(
        BridgeStats { moved: 3, ..BridgeStats::default() }.counters().any(|pair| pair == ("fdb_moved", 3))
    );
}

fn change_mac(lab: &Lab<Bridge>, port: u16, mac: Option<Mac>) -> Result<(), String> {
    let settings = PortSettings {
        name: format!("vm{port}"),
        policy: PortPolicy { mac, ..PortPolicy::default() },
        ..PortSettings::default()
    };
    lab.module.port_changed(PortId(port), &settings)
}

#[test]
fn a_port_gets_another_address_while_frames_pass() {
    let mut lab = small(&[1, 2, 3]);
    lab.send(1, frame(11, 99)).expect("flooded");
    change_mac(&lab, 1, Some(mac(12))).expect("free");
    assert_eq!(lab.send(1, frame(11, 99)), Err(DropReason::SourceSpoofed));
    assert_eq!(lab.send(2, frame(22, 11)), Ok(vec![1, 3]), "what was learned is forgotten");
    assert_eq!(lab.send(2, frame(22, 12)), Ok(vec![1]));
    change_mac(&lab, 1, Some(mac(13))).expect("free");
    assert_eq!((lab.send(2, frame(22, 12)), lab.send(2, frame(22, 13))), (Ok(vec![1, 3]), Ok(vec![1])));
    change_mac(&lab, 2, Some(mac(12))).expect("free again");
    assert!(change_mac(&lab, 3, Some(mac(13))).expect_err("taken").contains("\"vm1\""));
    assert_eq!(lab.send(3, frame(33, 13)), Ok(vec![1]), "a refused change changes nothing");
    change_mac(&lab, 1, None).expect("any address");
    assert_eq!(lab.send(1, frame(11, 33)), Ok(vec![3]));
    assert_eq!(lab.send(2, frame(12, 11)), Ok(vec![1]), "learned again");
    assert_counts(&lab.module, &[1, 2, 3]);
}

/// The number may get another guest: `moves` must not show the old guest's.
#[test]
fn moves_from_and_to_a_removed_port_are_forgotten() {
    let mut lab = small(&[1, 2, 3]);
    let moved_to = |lab: &mut Lab<Bridge>, from: u16, to: u16, address: u8| {
        for port in [from, to] {
            lab.send(port, frame(address, 9)).expect("flooded");
        }
    };
    moved_to(&mut lab, 1, 2, 21);
    moved_to(&mut lab, 2, 1, 22);
    moved_to(&mut lab, 1, 3, 23);
    assert_eq!(lab.module.moves(lab.now_ns).len(), 3);
    lab.module.port_removed(PortId(2));
    let left = lab.module.moves(lab.now_ns);
    assert_eq!(left.iter().map(|moved| moved.mac).collect::<Vec<_>>(), [mac(23)]);
}
