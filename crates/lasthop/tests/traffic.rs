//! Two guests on the built binary: packets arrive unchanged, and every one is accounted for.

use std::time::Duration;

use lasthop_frontend::{Guest, GuestListener, GuestOptions};
use lasthop_rig::guests::{ONE, TWO, WAIT, check_balance, controlled, frame, guest, receive, running, send};
use lasthop_rig::{Switch, eventually, fds, signal};
use rustix::process::Signal;
use serde_json::{Value, json};

#[test]
fn frames_pass_between_two_guests_unchanged() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    controlled(&switch);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    for (number, len) in (0..40).zip([60, 61, 1514, 1400, 18].into_iter().cycle()) {
        let there = frame(TWO, ONE, number, len);
        send(&mut one, &there);
        assert_eq!(receive(&mut two), there);
        let back = frame(ONE, TWO, number, len);
        send(&mut two, &back);
        assert_eq!(receive(&mut one), back);
        one.reclaim(0).expect("a sound ring");
        two.reclaim(0).expect("a sound ring");
    }
    check_balance(&switch);
    let port = switch.port("one");
    assert_eq!((port["rx_packets"].as_u64(), port["tx_packets"].as_u64()), (Some(40), Some(40)));
    assert!(
        switch
            .ask(&["stats", "--check"])
            .ok()
            .starts_with("conserved: 80 packets in, 80 delivered, 0 dropped")
    );
    let fdb = switch.json(&["fdb", "show"]);
    let entries: Vec<_> =
        fdb["entries"].as_array().expect("entries").iter().map(|e| (&e["mac"], &e["port"])).collect();
    let text = |text: &str| Value::from(text);
    assert_eq!(
        entries,
        [(&text("02:00:00:00:00:01"), &text("one")), (&text("02:00:00:00:00:02"), &text("two"))]
    );
    let shown = switch.ask(&["vnic", "show", "one"]).ok();
    assert!(
        shown.contains("state         running") && shown.contains("ring 1        from guest, 256 entries"),
        "{shown}"
    );
}

#[test]
fn what_is_flooded_is_no_drop_where_a_guest_is_off() {
    for module in ["flow", "bridge"] {
        let vnics = ["--vnic", "one", "--vnic", "two", "--vnic", "off"];
        let switch = Switch::start(&[&["--module", module], &vnics[..]].concat());
        let mut one = guest(&switch, "one", ONE);
        let broadcast = frame([0xff; 6], ONE, 1, 60);
        send(&mut one, &broadcast);
        let counted = || (switch.port("one")["flooded_to_none"] == 1).then_some(());
        eventually("the flood to be counted", counted);
        let mut two = guest(&switch, "two", TWO);
        send(&mut one, &broadcast);
        assert_eq!(receive(&mut two), broadcast);
        for port in ["one", "two", "off"] {
            let port = switch.port(port);
            assert_eq!((&port["rx_drops"], &port["tx_drops"]), (&json!({}), &json!({})), "{module}: {port}");
        }
        let hello = frame(ONE, TWO, 1, 60);
        send(&mut two, &hello);
        assert_eq!(receive(&mut one), hello);
        drop(two);
        let is_off = || (switch.port("two")["state"] == "waiting for guest").then_some(());
        eventually("the guest to be gone", is_off);
        send(&mut one, &frame(TWO, ONE, 2, 60));
        let is_lost = || (switch.port("two")["tx_drops"] == json!({"port_down": 1})).then_some(());
        eventually("the frame for it to be dropped", is_lost);
        check_balance(&switch);
    }
}

/// With two ports a flood has one copy, like a frame for a known address.
#[test]
fn a_frame_for_an_unknown_address_is_no_drop_where_the_only_other_guest_is_off() {
    let switch = Switch::start(&["--module", "bridge", "--vnic", "one", "--vnic", "off"]);
    let mut one = guest(&switch, "one", ONE);
    send(&mut one, &frame(TWO, ONE, 1, 60));
    let counted = || (switch.port("one")["flooded_to_none"] == 1).then_some(());
    eventually("the flood to be counted", counted);
    for port in ["one", "off"] {
        let port = switch.port(port);
        assert_eq!((&port["rx_drops"], &port["tx_drops"]), (&json!({}), &json!({})), "{port}");
    }
    check_balance(&switch);
}

#[test]
fn an_address_that_is_not_the_vnics_own_is_refused() {
    let switch = Switch::start(&["--vnic", "one,mac=02:00:00:00:00:01", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    assert_eq!(one.mac(), ONE);
    send(&mut one, &frame(TWO, [0x02, 0, 0, 0, 0, 9], 1, 60));
    let honest = frame(TWO, ONE, 2, 60);
    send(&mut one, &honest);
    assert_eq!(receive(&mut two), honest);
    assert_eq!(switch.port("one")["rx_drops"]["source_spoofed"], 1);
    check_balance(&switch);
    assert!(switch.ask(&["stats"]).ok().contains("one dropped from guest: source_spoofed 1"));
}

#[test]
fn a_guest_that_is_gone_leaves_no_descriptor() {
    const GUESTS_GONE: u32 = 4;
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let process = switch.switch_pid().expect("a switch process");
    // Those of the last orders, one for each vnic, may not be closed yet. More guests than that leave more, if they leave any.
    let before = fds(process);
    for _ in 0..GUESTS_GONE {
        drop((guest(&switch, "one", ONE), guest(&switch, "two", TWO)));
    }
    eventually("descriptors as before", || (fds(process) <= before).then_some(()));
}

#[test]
fn a_guest_that_serves_is_connected_to() {
    let switch = Switch::start(&["--vnic", "one,mode=connect", "--vnic", "two"]);
    let listener = GuestListener::bind(switch.path("one.sock")).expect("bound");
    let mut one = listener.accept(GuestOptions { mac: ONE, ..GuestOptions::default() }).expect("attached");
    running(&switch, "one");
    let mut two = guest(&switch, "two", TWO);
    let hello = frame(ONE, TWO, 7, 100);
    send(&mut two, &hello);
    assert_eq!(receive(&mut one), hello);
    check_balance(&switch);
}

#[test]
fn guests_come_back_after_the_switch_process_was_killed() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let first = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    drop(first);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let hello = frame(TWO, ONE, 1, 1000);
    send(&mut one, &hello);
    assert_eq!(receive(&mut two), hello);
    check_balance(&switch);
}

#[test]
fn a_vnic_that_is_deleted_hangs_up_on_its_guest() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    send(&mut one, &frame(TWO, ONE, 1, 60));
    receive(&mut two);
    switch.ask(&["vnic", "del", "two"]).ok();
    assert!(two.wait(Some(WAIT)).is_err(), "still connected");
    send(&mut one, &frame(TWO, ONE, 2, 60));
    // A flow to it may exist for a moment longer.
    let reasons = [serde_json::json!({"no_destination": 1}), serde_json::json!({"port_gone": 1})];
    eventually("the drop", || reasons.contains(&switch.port("one")["rx_drops"]).then_some(()));
    switch.ask(&["stats", "--check"]).ok();
    switch.ask(&["vnic", "add", "two"]).ok();
    let mut two = guest(&switch, "two", TWO);
    let hello = frame(TWO, ONE, 3, 60);
    eventually("a frame, once that flow is gone", || {
        send(&mut one, &hello);
        two.wait(Some(Duration::from_millis(100))).expect("connected").then_some(())
    });
    assert_eq!(receive(&mut two), hello);
}

/// Fills the call eventfd of a guest's receive ring and makes writes to it block.
fn block_calls(guest: &Guest) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let call = guest.call_fds().next().expect("a queue");
    while rustix::io::write(call, &(u64::MAX - 1).to_ne_bytes()).is_err() {
        let _ = rustix::io::read(call, &mut [0_u8; 8][..]); // it may have been signalled meanwhile
    }
    fcntl_setfl(call, fcntl_getfl(call).expect("flags") - OFlags::NONBLOCK).expect("flags");
}

#[test]
fn a_vnic_whose_calls_block_is_stopped_and_shown() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    block_calls(&two);
    send(&mut one, &frame([0xff; 6], ONE, 1, 60));
    let stopped = || switch.port("two")["state"].as_str()?.contains("a call eventfd blocks").then_some(());
    eventually("the vnic is stopped", stopped);
    let shown = switch.ask(&["vnic", "show", "two"]).ok();
    assert!(shown.contains("state         stopped: a call eventfd blocks"), "{shown}");
    drop(two);
    eventually("its guest is gone", || (switch.port("two")["state"] == "waiting for guest").then_some(()));
    let mut two = guest(&switch, "two", TWO);
    let hello = frame(TWO, ONE, 2, 60);
    send(&mut one, &hello);
    assert_eq!(receive(&mut two), hello);
    check_balance(&switch);
}
