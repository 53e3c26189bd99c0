//! VLANs on the built binary: three guests, two VLANs and a trunk, and the output of the command line.

use lasthop_rig::guests::{controlled, guest, receive, send};
use lasthop_rig::{Switch, eventually, lasthop, signal};
use rustix::process::Signal;
use serde_json::{Value, json};

const BROADCAST: [u8; 6] = [0xff; 6];

fn mac(number: u8) -> [u8; 6] {
    [0x02, 0, 0, 0, 0, number]
}

/// A frame of a type that no protocol uses (IEEE 802 local experimental), with a number in it.
fn frame(to: [u8; 6], from: [u8; 6], number: u8) -> Vec<u8> {
    let mut frame = [&to[..], &from, &[0x88, 0xb5, number]].concat();
    frame.resize(200, number);
    frame
}

fn tagged(tci: u16, frame: &[u8]) -> Vec<u8> {
    let [high, low] = tci.to_be_bytes();
    [&frame[..12], &[0x81, 0, high, low], &frame[12..]].concat()
}

const FILE: &str = "
[[vnic]]
name = \"a\"
vlan = 5

[[vnic]]
name = \"b\"
vlan = 6

[[vnic]]
name = \"t\"
trunk = [5, \"6-9\"]
native = 20

[[fdb]]
mac = \"02:00:00:00:00:99\"
vnic = \"t\"
vlan = 5
";

fn start(file: &str) -> Switch {
    let base = tempfile::tempdir().expect("a directory");
    let path = base.path().join("lasthop.toml");
    std::fs::write(&path, file).expect("written");
    let switch = Switch::spawn(base, &["--config", path.to_str().expect("text")]);
    eventually("the switch", || switch.log().contains("switch is running").then_some(()));
    controlled(&switch);
    switch
}

#[test]
fn guests_hear_their_vlan_and_a_trunk_hears_all() {
    let switch = start(FILE);
    let [mut a, mut b, mut t] =
        [("a", 1), ("b", 2), ("t", 3)].map(|(port, number)| guest(&switch, port, mac(number)));
    let from_a = frame(BROADCAST, mac(1), 1);
    send(&mut a, &from_a);
    assert_eq!(receive(&mut t), tagged(5, &from_a));
    let from_b = frame(BROADCAST, mac(2), 2);
    send(&mut b, &from_b);
    assert_eq!(receive(&mut t), tagged(6, &from_b), "and b's frame is the next one: a's did not go around");
    let answer = frame(mac(1), mac(3), 3);
    send(&mut t, &tagged(0x6005, &answer));
    assert_eq!(receive(&mut a), answer);
    send(&mut t, &tagged(6, &frame(mac(2), mac(3), 4)));
    assert_eq!(receive(&mut b), frame(mac(2), mac(3), 4), "b's first frame: nothing of VLAN 5 came to it");
    // A static entry sends frames to the trunk for an address that never sent one.
    let to_entry = frame(mac(0x99), mac(1), 5);
    send(&mut a, &to_entry);
    assert_eq!(receive(&mut t), tagged(5, &to_entry));
    send(&mut a, &tagged(6, &frame(mac(2), mac(1), 6)));
    eventually("the drop", || (switch.port("a")["rx_drops"]["vlan_tagged"] == 1).then_some(()));
    assert_eq!(switch.port("a")["tx_packets"], 1);
    switch.ask(&["stats", "--check"]).ok();
    let fdb = switch.ask(&["fdb", "show"]).ok();
    let shown: Vec<_> = fdb.lines().map(|line| line.split(" age ").next().unwrap_or(line)).collect();
    let expected = [
        "02:00:00:00:00:01 dev a vlan 5",
        "02:00:00:00:00:02 dev b vlan 6",
        "02:00:00:00:00:03 dev t vlan 5",
        "02:00:00:00:00:03 dev t vlan 6",
        "02:00:00:00:00:99 dev t vlan 5 static",
    ];
    assert_eq!(shown, expected);
    let flush = |words: &[&str]| switch.ask(&[&["fdb", "flush"], words].concat()).ok();
    assert_eq!(flush(&["--vnic", "t", "--vlan", "6"]), "forgot 1 learned address\n");
    assert_eq!(flush(&[]), "forgot 3 learned addresses\n");
    assert_eq!(switch.ask(&["fdb", "show"]).ok(), "02:00:00:00:00:99 dev t vlan 5 static\n");
}

#[test]
fn settings_are_shown_and_mistakes_named() {
    let switch = start(FILE);
    let shown = switch.ask(&["vlan", "show"]).ok();
    let expected = "PORT  VLAN-ID\n\
                    a     5 PVID Egress Untagged\n\
                    b     6 PVID Egress Untagged\n\
                    t     5-9\n      20 PVID Egress Untagged\n";
    assert_eq!(shown, expected);
    assert_eq!(
        switch.json(&["vlan", "show"])["vnics"][2],
        json!({"name": "t", "passes_all": false, "vlans":
            [{"vlan": 5, "vlan_end": 9}, {"vlan": 20, "flags": ["PVID", "Egress Untagged"]}]})
    );
    let listed = switch.json(&["vnic", "list"]);
    let keys =
        |index: usize| ["vlan", "trunk", "native", "isolated"].map(|key| listed["vnics"][index][key].clone());
    assert_eq!(keys(0), [json!(5), Value::Null, Value::Null, json!(false)]);
    assert_eq!(keys(2), [Value::Null, json!(["5-9"]), json!(20), json!(false)]);
    switch.ask(&["vnic", "add", "i,isolated=true,trunk=1-3"]).ok();
    let shown = switch.ask(&["vnic", "show", "i"]).ok();
    assert!(shown.contains("vlans         1-3 (trunk: tagged)\nisolated      yes"), "{shown}");
    for (words, message) in [
        (&["fdb", "add", "02:00:00:00:00:07", "a", "--vlan", "6"][..], "\"a\" does not carry VLAN 6"),
        (&["fdb", "add", "02:00:00:00:00:07", "x"], "there is no port \"x\""),
        (&["fdb", "add", "02:00:00:00:00:99", "t", "--vlan", "5"], "is a static address of \"t\" already"),
        (&["fdb", "del", "02:00:00:00:00:07", "a"], "there is no static entry"),
        (&["fdb", "flush", "--vnic", "x"], "there is no port \"x\""),
    ] {
        let said = switch.ask(words).refused();
        assert!(said.contains(message), "{words:?}: {said}");
    }
}

#[test]
fn mistakes_on_the_command_line_are_named_before_anything_starts() {
    for (vnic, message) in [
        ("a,vlan=0", "0 is no VLAN"),
        ("a,vlan=4095", "4095 is reserved"),
        ("a,trunk=10+4096", "4096 cannot be the number of a VLAN"),
        ("a,trunk=10,vlan=10", "both vlan and trunk"),
        ("a,native=0,trunk=5", "0 is no VLAN"),
    ] {
        let answer = lasthop(&["run", "--vnic", vnic]);
        assert!(answer.code != Some(0) && answer.err.contains(message), "{vnic}: {}", answer.err);
    }
    for (words, message) in [
        (["fdb", "add", "ff:ff:ff:ff:ff:ff", "a"], "unicast"),
        (["fdb", "flush", "--vlan", "0"], "0 is no VLAN"),
    ] {
        let answer = lasthop(&words);
        assert!(answer.code != Some(0) && answer.err.contains(message), "{words:?}: {}", answer.err);
    }
}

#[test]
fn a_file_is_applied_and_written_again_with_vlans_and_entries() {
    let switch = start(FILE);
    let path = switch.base.path().join("next.toml");
    let next = FILE.replace("vlan = 6", "vlan = 7").replace("00:99\"", "00:98\"");
    std::fs::write(&path, &next).expect("written");
    let file = path.to_str().expect("text");
    let said = switch.ask(&["apply", "-c", file]).ok();
    for line in [
        "~ port b vlan: 6 -> 7\n",
        "- fdb 02:00:00:00:00:99 dev t vlan 5\n",
        "+ fdb 02:00:00:00:00:98 dev t vlan 5\n",
        "1 added, 1 removed, 1 changed\n",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert_eq!(switch.ask(&["fdb", "show"]).ok(), "02:00:00:00:00:98 dev t vlan 5 static\n");
    assert!(switch.ask(&["apply", "-c", file]).ok().contains("nothing to do"));
    let written = switch.ask(&["config", "show"]).ok();
    std::fs::write(&path, &written).expect("written");
    assert!(switch.ask(&["apply", "-c", file]).ok().contains("nothing to do"), "{written}");
    let said = switch.ask(&["vnic", "set", "t", "trunk=8+9"]).refused();
    let remedy = switch.addressed("first: lasthop fdb del 02:00:00:00:00:98 t --vlan 5");
    assert!(said.contains("would not carry any more") && said.contains(&remedy), "{said}");
    assert!(switch.ask(&["apply", "-c", file]).ok().contains("nothing to do"), "refused and unchanged");
    // Its entry is in the same file as its VLAN.
    let next = next.replace("trunk = [5, \"6-9\"]", "trunk = [8]").replace("vlan = 5\n\"", "\"");
    let next = next.split("[[fdb]]").next().unwrap_or_default().to_owned();
    std::fs::write(&path, &next).expect("written");
    let said = switch.ask(&["apply", "-c", file]).ok();
    assert!(said.contains("~ port t trunk: 5-9 -> 8\n"), "{said}");
    assert!(switch.ask(&["apply", "-c", file]).ok().contains("nothing to do"));
}

/// Frames that a guest received in the meantime are discarded.
fn clear(guest: &mut lasthop_frontend::Guest) {
    let mut frame = Vec::new();
    while guest.recv(0, &mut frame).expect("a sound ring").is_some() {}
}

/// Makes one guest send to the other until the frame arrives as `seen`, or does not arrive, three times in a row.
fn settles(
    switch: &Switch,
    (from, to): (&mut lasthop_frontend::Guest, &mut lasthop_frontend::Guest),
    sent: &[u8],
    seen: Option<&[u8]>,
) {
    let mut in_a_row = 0;
    eventually("the new settings", || {
        clear(to);
        send(from, sent);
        let is_heard = to.wait(Some(std::time::Duration::from_millis(100))).expect("connected");
        let mut frame = Vec::new();
        let heard = is_heard && to.recv(0, &mut frame).expect("a sound ring").is_some();
        in_a_row = if heard.then_some(&frame[..]) == seen { in_a_row + 1 } else { 0 };
        (in_a_row == 3).then_some(())
    });
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn vlans_and_isolation_change_under_guests_that_stay_attached() {
    for module in ["flow", "bridge"] {
        let switch = Switch::start(&["--module", module, "--vnic", "a", "--vnic", "b", "--vnic", "t"]);
        let [mut a, mut b, mut t] =
            [("a", 1), ("b", 2), ("t", 3)].map(|(port, number)| guest(&switch, port, mac(number)));
        let (to_b, to_t) = (frame(mac(2), mac(1), 1), frame(mac(3), mac(1), 2));
        settles(&switch, (&mut a, &mut b), &to_b, Some(&to_b));
        send(&mut t, &frame(mac(1), mac(3), 3));
        assert_eq!(receive(&mut a), frame(mac(1), mac(3), 3));
        let set = |vnic: &str, keys: &str| switch.ask(&["vnic", "set", vnic, keys]).ok();
        assert_eq!(set("a", "vlan=5"), "a vlan: - -> 5\n");
        settles(&switch, (&mut a, &mut b), &to_b, Some(&tagged(5, &to_b)));
        set("b", "vlan=6");
        settles(&switch, (&mut a, &mut b), &to_b, None);
        set("b", "vlan=5,isolated=true");
        settles(&switch, (&mut a, &mut b), &to_b, Some(&to_b));
        set("a", "isolated=true");
        settles(&switch, (&mut a, &mut b), &to_b, None);
        set("a", "isolated=none");
        settles(&switch, (&mut a, &mut b), &to_b, Some(&to_b));
        set("t", "trunk=6+7");
        settles(&switch, (&mut a, &mut t), &to_t, None);
        set("t", "trunk=5-7");
        settles(&switch, (&mut a, &mut t), &to_t, Some(&tagged(5, &to_t)));
        set("a", "vlan=none");
        set("b", "vlan=none");
        settles(&switch, (&mut a, &mut b), &to_b, Some(&to_b));
        assert!(!switch.log().contains("left"), "a guest was let go: {}", switch.log());
        assert_eq!(switch.json(&["vnic", "show", "t"])["trunk"], json!(["5-7"]));
        // The next switch process receives them.
        signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
        settles(&switch, (&mut a, &mut t), &to_t, None);
        set("a", "vlan=7");
        settles(&switch, (&mut a, &mut t), &to_t, Some(&tagged(7, &to_t)));
    }
}

#[test]
fn a_file_changes_vlans_while_guests_talk_and_no_frame_is_unaccounted_for() {
    let switch = start("[[vnic]]\nname = \"a\"\nvlan = 5\n[[vnic]]\nname = \"b\"\nvlan = 5\n");
    let [mut a, mut b] = [("a", 1), ("b", 2)].map(|(port, number)| guest(&switch, port, mac(number)));
    let path = switch.base.path().join("next.toml");
    let file = path.to_str().expect("text");
    let to_b = frame(mac(2), mac(1), 1);
    for vlan in [6_u16, 7, 8, 9] {
        let vnic = |name: &str| format!("[[vnic]]\nname = \"{name}\"\nvlan = {vlan}\n");
        std::fs::write(&path, vnic("a") + &vnic("b")).expect("written");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let talks = scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    clear(&mut b);
                    send(&mut a, &to_b);
                    let _ = b.wait(Some(std::time::Duration::from_millis(1))).expect("connected");
                }
            });
            let said = switch.ask(&["apply", "-c", file]);
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            talks.join().expect("they stay attached");
            assert!(said.ok().contains("2 changed"));
        });
        settles(&switch, (&mut a, &mut b), &to_b, Some(&to_b));
    }
    lasthop_rig::guests::check_balance(&switch);
    let sums = |key: &str| switch.port("a")[key].clone();
    assert_eq!(sums("conserved"), json!(true));
}

#[test]
fn a_module_without_vlans_refuses_them() {
    let switch = Switch::start(&["--module", "dummy"]);
    let said = switch.ask(&["vnic", "add", "a,vlan=5"]).refused();
    assert!(said.contains("would not keep VLANs"), "{said}");
    switch.ask(&["vnic", "add", "b"]).ok();
    for words in [&["fdb", "flush"][..], &["fdb", "add", "02:00:00:00:00:07", "b"]] {
        assert!(switch.ask(words).refused().contains("has no forwarding table"));
    }
}

#[test]
fn entries_outlive_the_switch_process_and_end_with_their_vnic() {
    let switch = Switch::start(&["--vnic", "a", "--vnic", "b,vlan=5"]);
    let add = |mac: &str, vnic: &str| switch.ask(&["fdb", "add", mac, vnic]).ok();
    assert_eq!(add("02:00:00:00:00:07", "a"), "added 02:00:00:00:00:07 of a\n");
    add("02:00:00:00:00:08", "b");
    add("02:00:00:00:00:09", "b");
    switch.ask(&["fdb", "del", "02:00:00:00:00:09", "b"]).ok();
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    let both = "02:00:00:00:00:07 dev a static\n02:00:00:00:00:08 dev b vlan 5 static\n";
    assert_eq!(switch.ask(&["fdb", "show"]).ok(), both);
    switch.ask(&["vnic", "del", "b"]).ok();
    assert_eq!(switch.ask(&["fdb", "show"]).ok(), "02:00:00:00:00:07 dev a static\n");
    switch.ask(&["vnic", "add", "b,vlan=5"]).ok();
    signal(switch.switch_pid().expect("a switch process"), Signal::KILL);
    eventually("the third", || (switch.log().matches("running again").count() == 2).then_some(()));
    assert_eq!(switch.ask(&["fdb", "show"]).ok(), "02:00:00:00:00:07 dev a static\n");
}

#[test]
fn a_file_whose_entry_is_homeless_or_impossible_does_not_start() {
    let a = "[[vnic]]\nname = \"a\"\nvlan = 5\n";
    let b = "[[vnic]]\nname = \"b\"\nvlan = 5\nmac = \"02:00:00:00:00:07\"\n";
    let plain = "[[vnic]]\nname = \"a\"\n";
    let entry = |rest: &str| format!("[[fdb]]\nmac = \"02:00:00:00:00:07\"\n{rest}\n");
    let (here, there) = (entry("vnic = \"a\""), entry("vnic = \"c\""));
    for (text, message) in [
        (format!("{a}{}", entry("vnic = \"x\"")), "and there is no such port"),
        (format!("{a}{}", entry("vnic = \"a\"\nvlan = 6")), "\"a\" does not carry VLAN 6"),
        (format!("{a}{b}{here}"), "address of port \"b\" already"),
        (format!("{a}[[vnic]]\nname = \"c\"\n{here}{there}"), "address of port \"a\" already"),
        (format!("module = \"dummy\"\n{a}"), "would not keep VLANs"),
        (format!("module = \"dummy\"\n{plain}isolated = true\n"), "would not keep VLANs"),
        (format!("module = \"dummy\"\n{plain}{here}"), "has no forwarding table"),
        ("[[vnic]]\nname = \"datapath\"\n".to_owned(), "the switch's own"),
    ] {
        let base = tempfile::tempdir().expect("a directory");
        let path = base.path().join("lasthop.toml");
        std::fs::write(&path, &text).expect("written");
        let path = path.to_str().expect("text").to_owned();
        let checked = lasthop(&["check", "-c", &path]);
        assert!(checked.code == Some(1) && checked.out.contains(message), "{text}: {checked:?}");
        let mut switch = Switch::spawn(base, &["--config", &path]);
        assert!(!switch.wait().success(), "{text}");
        assert!(switch.log().contains(message), "{text}: {}", switch.log());
    }
}
