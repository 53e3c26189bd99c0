//! Tests full ports and a full table.

use super::*;

fn with_limit(lab: &Lab<Bridge>, port: u16, macs_max: u32) {
    let settings =
        PortSettings { name: format!("vm{port}"), macs_max: Some(macs_max), ..PortSettings::default() };
    lab.module.port_added(PortId(port), &settings).expect("a new port is accepted");
}

#[test]
fn beyond_its_limit_a_port_teaches_nothing_but_still_sends() {
    let mut lab = small(&[2, 3]);
    with_limit(&lab, 1, 2);
    for source in [11, 12, 13, 14] {
        assert_eq!(lab.send(1, frame(source, 99)), Ok(vec![2, 3]));
    }
    assert_eq!(lab.send(2, frame(22, 12)), Ok(vec![1]));
    assert_eq!(lab.send(2, frame(22, 13)), Ok(vec![1, 3]), "answers are flooded");
    assert_eq!((lab.module.ports.learned(PortId(1)), lab.module.stats().limit_hit), (2, 2));
}

#[test]
fn a_limit_of_none_is_kept_too() {
    let mut lab = small(&[2]);
    with_limit(&lab, 1, 0);
    assert_eq!(lab.send(1, frame(11, 99)), Ok(vec![2]));
    assert_eq!(lab.module.fdb(lab.now_ns), []);
}

#[test]
fn the_default_limit_is_a_quarter_of_the_default_table() {
    let mut lab = lab(FDB_ENTRIES_MAX, &[1, 2]);
    for n in 0..5000u16 {
        let [high, low] = n.to_be_bytes();
        lab.send(1, frame_of(Mac([2, 0, 0, 1, high, low]), mac(99))).expect("flooded");
    }
    let (stats, learned) = (lab.module.stats(), lab.module.ports.learned(PortId(1)));
    assert_eq!(u64::from(learned), 5000 - stats.limit_hit - stats.bucket_full);
    assert_eq!(learned as usize, FDB_ENTRIES_MAX / 4);
}

#[test]
fn aged_addresses_do_not_count_against_the_limit() {
    let mut lab = lab(4096, &[2, 3]);
    with_limit(&lab, 1, 2);
    lab.send(1, frame(11, 99)).expect("flooded");
    lab.send(1, frame(12, 99)).expect("flooded");
    lab.now_ns += 301 * SECOND_NS;
    lab.send(1, frame(13, 99)).expect("flooded");
    assert_eq!(lab.send(2, frame(22, 13)), Ok(vec![1]));
    assert_eq!(lab.module.ports.learned(PortId(1)), 1);
    assert_eq!((lab.module.stats().aged_out, lab.module.stats().limit_hit), (2, 0));
}

#[test]
fn the_table_is_not_swept_for_every_frame_beyond_the_limit() {
    let mut lab = small(&[2]);
    with_limit(&lab, 1, 1);
    lab.send(1, frame(11, 99)).expect("flooded");
    lab.now_ns += 300 * SECOND_NS;
    lab.send(1, frame(12, 99)).expect("flooded"); // sweeps, but no entry is aged
    lab.now_ns += SECOND_NS / 2; // 11 is aged now
    lab.send(1, frame(13, 99)).expect("flooded");
    assert_eq!(lab.module.stats().limit_hit, 2);
    lab.now_ns += SECOND_NS;
    lab.send(1, frame(14, 99)).expect("flooded");
    assert_eq!((lab.module.stats().limit_hit, lab.module.stats().learned), (2, 2));
}

#[test]
fn an_address_that_moves_to_a_full_port_is_flooded_to() {
    let mut lab = small(&[1, 3]);
    with_limit(&lab, 2, 1);
    lab.send(1, frame(11, 99)).expect("flooded");
    lab.send(2, frame(22, 99)).expect("flooded");
    lab.send(2, frame(11, 99)).expect("flooded");
    assert_eq!(lab.send(3, frame(33, 11)), Ok(vec![1, 2]));
    assert_eq!((lab.module.stats().moved, lab.module.stats().limit_hit), (0, 1));
    assert_counts(&lab.module, &[1, 2, 3]);
}

#[test]
fn a_move_makes_room_on_the_port_it_leaves() {
    let mut lab = small(&[2, 3]);
    with_limit(&lab, 1, 1);
    lab.send(1, frame(11, 99)).expect("flooded");
    lab.send(2, frame(11, 99)).expect("flooded");
    lab.send(1, frame(12, 99)).expect("flooded");
    assert_eq!(lab.send(3, frame(33, 12)), Ok(vec![1]));
}

#[test]
fn a_full_table_keeps_what_it_has() {
    let mut lab = lab(4, &[1, 2, 3]);
    for source in 1..=4 {
        lab.send(1, frame(source, 99)).expect("flooded");
    }
    for source in 50..=200 {
        assert_eq!(lab.send(2, frame(source, 99)), Ok(vec![1, 3]));
    }
    for known in 1..=4 {
        assert_eq!(lab.send(3, frame(255, known)), Ok(vec![1]));
    }
    assert_eq!(lab.module.stats().bucket_full, 151 + 4);
}

#[test]
fn a_full_table_uses_aged_slots_again() {
    let mut lab = lab(4, &[1, 2, 3]);
    for source in 1..=4 {
        lab.send(1, frame(source, 99)).expect("flooded");
    }
    lab.now_ns += 301 * SECOND_NS;
    lab.send(2, frame(22, 99)).expect("flooded");
    assert_eq!(lab.send(3, frame(33, 22)), Ok(vec![2]));
    assert_eq!((lab.module.stats().aged_out, lab.module.stats().bucket_full), (2, 0));
    assert_counts(&lab.module, &[1, 2, 3]);
}

#[test]
fn a_static_address_displaces_the_one_unseen_for_longest() {
    let mut lab = lab(4, &[1, 2]);
    for source in 1..=4 {
        lab.send(1, frame(source, 99)).expect("flooded");
        lab.now_ns += SECOND_NS;
    }
    lab.send(1, frame(1, 99)).expect("flooded"); // refreshes 1, so 2 is the oldest
    add_with_mac(&lab, 3, mac(33)).expect("room is made");
    assert_eq!(
        lab.module.fdb(lab.now_ns).iter().map(|entry| entry.mac.0[5]).collect::<Vec<_>>(),
        [1, 3, 4, 33]
    );
    assert_eq!(lab.module.stats().displaced, 1);
    assert_counts(&lab.module, &[1, 2, 3]);
}

#[test]
fn a_table_full_of_static_addresses_refuses_another() {
    let mut lab = lab(4, &[]);
    for port in 1..=4 {
        add_with_mac(&lab, port, mac(port as u8)).expect("room");
    }
    let error = add_with_mac(&lab, 5, mac(5)).expect_err("no room");
    assert!(error.contains("no room") && error.contains("vm5") && error.contains("larger"), "{error}");
    assert_eq!(lab.send(1, frame(1, 2)), Ok(vec![2]));
}
