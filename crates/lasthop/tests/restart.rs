//! `kill -9` of the switch process under load: guests are not affected.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lasthop_frontend::{ALL_FEATURES, Guest, GuestOptions};
use lasthop_rig::guests::{ONE, TWO, WAIT, frame, guest, guest_with, receive, send};
use lasthop_rig::successors::{
    own_version, successor_of_version, successor_that_ends, successor_that_waits, successor_without_option,
};
use lasthop_rig::talkers::Talker;
use lasthop_rig::{ProcessStat, Switch, copy_of_lasthop, eventually, fds, open_files, signal, stop};
use lasthop_vhost::features::{IN_ORDER, RING_PACKED};
use lasthop_wire::Offload;
use rustix::process::Signal;

/// Number of deaths in each test.
const DEATHS: u32 = 5;
/// The time between two deaths: longer than the life of a process for whose death the supervisor blames its guests.
const LIFE: Duration = Duration::from_millis(300);
fn kill(switch: &Switch) -> u32 {
    let pid = eventually("the switch process", || switch.switch_pid());
    signal(pid, Signal::KILL);
    eventually("the next one", || switch.switch_pid().filter(|next| *next != pid))
}

fn guests_do_not_notice(words: &[&str], options: GuestOptions) {
    let words = [words, &["--vnic", "one,queues=2", "--vnic", "two,queues=2"]].concat();
    let switch = Switch::start(&words);
    let one = guest_with(&switch, "one", GuestOptions { mac: ONE, ..options.clone() });
    let two = guest_with(&switch, "two", GuestOptions { mac: TWO, ..options });
    let talkers = [Talker::start(one, ONE, TWO), Talker::start(two, TWO, ONE)];
    let mut held = Vec::new();
    for round in 0..DEATHS {
        talkers.iter().for_each(|talker| talker.hear(200));
        std::thread::sleep(LIFE);
        let process = kill(&switch);
        talkers.iter().for_each(|talker| talker.hear(200));
        eventually("its start", || {
            let starts = switch.log().matches("running again").count();
            (starts == round as usize + 1).then_some(())
        });
        held.push(eventually("that nothing is opened or closed", || settled(&switch, process)));
    }
    let counts: Vec<_> = held.iter().map(|(supervisor, process)| (supervisor.len(), process.len())).collect();
    assert!(counts.windows(2).all(|pair| pair[0] == pair[1]), "descriptors leak: {held:#?}");
    let heard: u32 = talkers.iter().map(Talker::heard).sum();
    for talker in talkers {
        talker.end().reclaim(0).expect("a sound ring");
    }
    let stats = switch.json(&["stats"]);
    let sum = |key: &str| {
        let ports = stats["ports"].as_array().expect("ports");
        ports.iter().filter_map(|port| port[key].as_u64()).sum::<u64>()
    };
    // Counts of the last ten milliseconds of each process are lost.
    assert!(sum("tx_packets") > u64::from(heard) / 2, "counters began anew: {stats}");
    assert_eq!(sum("forwarded"), sum("tx_packets"), "{stats}");
}

#[test]
fn guests_do_not_notice_that_the_switch_process_is_killed() {
    guests_do_not_notice(&[], GuestOptions::default());
}

#[test]
fn guests_with_several_regions_and_small_rings_do_not_notice() {
    let options = GuestOptions {
        ring_entries: 16,
        regions: 8,
        queue_pairs: 2,
        start_position: 65_500,
        rx_buffer_bytes: 256,
        ..GuestOptions::default()
    };
    guests_do_not_notice(&["--workers", "3"], options);
}

#[test]
fn guests_that_get_their_chains_back_in_order_do_not_notice() {
    let options = GuestOptions { queue_pairs: 2, ring_entries: 64, ..in_order() };
    guests_do_not_notice(&["--workers", "2"], options);
}

#[test]
fn guests_with_packed_rings_do_not_notice() {
    let options = GuestOptions {
        ring_entries: 16,
        regions: 8,
        queue_pairs: 2,
        start_position: 65_500,
        rx_buffer_bytes: 256,
        ..packed()
    };
    guests_do_not_notice(&["--workers", "3"], options);
}

#[test]
fn guests_with_packed_rings_in_order_do_not_notice() {
    let features = packed().features | IN_ORDER;
    guests_do_not_notice(&["--workers", "2"], GuestOptions { ring_entries: 64, features, ..packed() });
}

fn in_order() -> GuestOptions {
    GuestOptions { features: ALL_FEATURES | IN_ORDER, ..GuestOptions::default() }
}

fn packed() -> GuestOptions {
    GuestOptions { features: ALL_FEATURES | RING_PACKED, ..GuestOptions::default() }
}

/// The keeper that shares the switch process's memory, once it has no other descriptors.
fn keeper_of(process: u32) -> u32 {
    let children = format!("/proc/{process}/task/{process}/children");
    let children = || std::fs::read_to_string(&children).expect("a process");
    let keeper = eventually("a keeper", || children().split_whitespace().next()?.parse().ok());
    assert_eq!(children().split_whitespace().count(), 1, "{}", children());
    eventually("nothing but a pipe", || (own_fds(keeper) == 1).then_some(()));
    keeper
}

/// Descriptors, without those that the test runner passes to all processes.
fn own_fds(pid: u32) -> usize {
    let numbers = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a process").flatten();
    numbers.filter(|entry| entry.file_name().to_str().expect("a number").len() < 3).count()
}

#[test]
fn a_keeper_has_the_memory_and_the_sandbox_and_nothing_else() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let _guests = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let process = switch.switch_pid().expect("a switch process");
    let keeper = keeper_of(process);
    let text =
        |pid: u32, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).expect("a process");
    // Unless the process maps more memory between the two.
    eventually("the same memory", || (text(keeper, "maps") == text(process, "maps")).then_some(()));
    let seccomp =
        |pid: u32| text(pid, "status").lines().find(|line| line.starts_with("Seccomp:")).map(str::to_owned);
    assert_eq!(seccomp(keeper), seccomp(process));
    let next = kill(&switch);
    eventually("its end", || (!std::path::Path::new(&format!("/proc/{keeper}/exe")).exists()).then_some(()));
    assert_ne!(keeper_of(next), keeper);
    switch.ask(&["upgrade"]).ok();
    let last = eventually("another one", || switch.switch_pid().filter(|pid| *pid != next));
    assert_ne!(keeper_of(last), keeper);
}

#[test]
fn a_guest_that_leaves_during_the_gap_is_gone() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (one, two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let pid = switch.switch_pid().expect("a switch process");
    signal(pid, Signal::STOP);
    drop(one);
    signal(pid, Signal::KILL);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    eventually("its end", || (switch.port("one")["state"] == "waiting for guest").then_some(()));
    assert_eq!(switch.port("two")["state"], "running");
    let (mut one, mut two) = (guest(&switch, "one", ONE), two);
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
}

/// The files that supervisor and switch process have open, if they are unchanged a moment later.
fn settled(switch: &Switch, process: u32) -> Option<(BTreeMap<u32, String>, BTreeMap<u32, String>)> {
    let now = (kept_open(switch.pid()), kept_open(process));
    std::thread::sleep(Duration::from_millis(50));
    (now == (kept_open(switch.pid()), kept_open(process))).then_some(now)
}

/// The files that a process has open, without those in /proc. The supervisor lists threads there to restore their
/// slices once guests no longer wait.
fn kept_open(pid: u32) -> BTreeMap<u32, String> {
    open_files(pid).into_iter().filter(|(_, file)| !file.starts_with("/proc/")).collect()
}

/// CPU time of a process, in clock ticks of 10 ms.
fn cpu_ticks(pid: u32) -> u64 {
    ProcessStat::of(pid).expect("a process").cpu_ticks
}

#[test]
fn a_guest_that_leaves_while_the_supervisor_stands_still_keeps_nobody_busy() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (one, _two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let (supervisor, process) = (switch.pid(), switch.switch_pid().expect("a switch process"));
    // It has a copy of the connection, and does not close it now.
    stop(supervisor);
    let before = fds(process);
    drop(one);
    eventually("that the switch process is done with it", || (fds(process) < before).then_some(()));
    let ticks = cpu_ticks(process);
    std::thread::sleep(std::time::Duration::from_millis(500));
    let spent = cpu_ticks(process) - ticks;
    signal(supervisor, Signal::CONT);
    assert!(spent < 10, "{spent} of 50 ticks");
}

#[test]
fn a_message_half_read_ends_its_session_alone() {
    use std::io::Write;
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two", "--vnic", "half"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let mut half = switch.connect("half.sock");
    let request = [1, 1, 0_u32].map(u32::to_ne_bytes).concat(); // GET_FEATURES
    half.write_all(&[&request[..], &request[..5]].concat()).expect("written");
    // The bytes after the first message have been read once that message is answered.
    std::io::Read::read_exact(&mut half, &mut [0; 20]).expect("an answer");
    eventually("that it is connected", || (switch.port("half")["state"] == "connected").then_some(()));
    kill(&switch);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    let said = "port half: its guest could not be taken over and has to connect again: it was in the middle of a message";
    eventually("the reason", || switch.log().contains(said).then_some(()));
    assert_eq!(std::io::Read::read(&mut half, &mut [0]).ok(), Some(0), "its connection is shut down");
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
}

#[test]
fn a_session_that_kills_the_switch_process_again_and_again_is_given_up() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let _guests = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let given_up = || switch.log().matches("has to connect again: the switch process died of it").count();
    // Six are enough, unless one dies before it received the session: that does not count.
    for _ in 0..6 {
        kill(&switch);
    }
    for _ in 0..9 {
        if given_up() < 2 {
            kill(&switch);
        }
    }
    eventually("that it is given up", || (given_up() == 2).then_some(()));
    eventually("the end of it", || (switch.port("one")["state"] == "waiting for guest").then_some(()));
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
}

fn copied(switch: &Switch, name: &str) -> String {
    let path = copy_of_lasthop(switch.base.path(), name);
    path.to_str().expect("text").to_owned()
}

fn program_of(pid: u32) -> String {
    let path = std::fs::read_link(format!("/proc/{pid}/exe")).expect("a process");
    path.to_str().expect("text").to_owned()
}

#[test]
fn guests_do_not_notice_an_upgrade() {
    let switch = Switch::start(&["--workers", "2", "--vnic", "one", "--vnic", "two"]);
    let (one, two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let talkers = [Talker::start(one, ONE, TWO), Talker::start(two, TWO, ONE)];
    for name in ["first", "second", "third"] {
        talkers.iter().for_each(|talker| talker.hear(200));
        let program = copied(&switch, name);
        let said = switch.ask(&["upgrade", &program]).ok();
        assert!(said.starts_with(&format!("the switch process is that of {program} now;")), "{said}");
        talkers.iter().for_each(|talker| talker.hear(200));
        assert_eq!(program_of(switch.switch_pid().expect("a switch process")), program);
    }
    kill(&switch);
    talkers.iter().for_each(|talker| talker.hear(200));
    let next = switch.switch_pid().expect("a switch process");
    assert!(program_of(next).ends_with("/third"), "and so are those after it");
    talkers.into_iter().for_each(|talker| drop(talker.end()));
    assert!(!switch.log().contains("has to connect again"), "{}", switch.log());
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn a_process_after_an_upgrade_is_of_the_same_program_whatever_has_its_path_by_then() {
    let switch = Switch::start(&["--module", "flow", "--vnic", "one", "--vnic", "two"]);
    let (one, two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let talkers = [Talker::start(one, ONE, TWO), Talker::start(two, TWO, ONE)];
    let program = copied(&switch, "next");
    switch.ask(&["upgrade", &program]).ok();
    eventually("the next controller process", || {
        switch.log().contains(&format!("to be replaced by that of {program}")).then_some(())
    });
    // A package of another version is installed, and refused.
    let other = successor_of_version(&switch, own_version(&switch) + 1, "cat");
    std::fs::rename(&other, &program).expect("installed");
    switch.ask(&["upgrade", &program]).refused();
    std::thread::sleep(LIFE);
    let replaced = kill(&switch);
    talkers.iter().for_each(|talker| talker.hear(200));
    assert_eq!(program_of(replaced), format!("{program} (deleted)"));
    std::fs::remove_file(&program).expect("removed");
    std::thread::sleep(LIFE);
    let removed = kill(&switch);
    talkers.iter().for_each(|talker| talker.hear(200));
    assert_eq!(program_of(removed), format!("{program} (deleted)"));
    let controller = switch.child_pid("controller-process").expect("a controller process");
    signal(controller, Signal::KILL);
    let next = eventually("the next controller process", || {
        switch.child_pid("controller-process").filter(|next| *next != controller)
    });
    assert_eq!(program_of(next), format!("{program} (deleted)"));
    talkers.into_iter().for_each(|talker| drop(talker.end()));
    assert!(!switch.log().contains("has to connect again"), "{}", switch.log());
}

/// Waits until the switch has fetched all that the guest has sent; returns the number of frames.
fn taken_from(guest: &mut Guest) -> u64 {
    eventually("an empty ring", || {
        guest.reclaim(0).expect("a sound ring");
        (guest.in_flight(0).expect("a queue") == 0).then_some(())
    });
    guest.counters().sent_frames
}

#[test]
fn an_upgrade_forgets_no_count() {
    let switch = Switch::start(&["--workers", "2", "--vnic", "one", "--vnic", "two"]);
    let (one, two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let talkers = [Talker::start(one, ONE, TWO), Talker::start(two, TWO, ONE)];
    for _ in 0..DEATHS {
        talkers.iter().for_each(|talker| talker.hear(200));
        switch.ask(&["upgrade"]).ok();
    }
    talkers.iter().for_each(|talker| talker.hear(200));
    let taken = talkers.map(|talker| taken_from(&mut talker.end()));
    let stats = switch.json(&["stats"]);
    let counted = [1, 2].map(|port| stats["ports"][port]["rx_packets"].as_u64().expect("a count"));
    assert_eq!(counted, taken, "{stats}");
    switch.ask(&["stats", "--check"]).ok();
}

/// Sends numbered frames until stopped, at a rate at which a slow guest has some waiting most of the time.
fn send_on(mut guest: Guest, is_over: &AtomicBool) -> Guest {
    for number in 1.. {
        let frame = frame(TWO, ONE, number, 200);
        guest.reclaim(0).expect("each chain comes back once");
        guest.send(0, &frame, Offload::default()).expect("connected");
        guest.flush(0).expect("connected");
        if is_over.load(Ordering::Relaxed) {
            return guest;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    guest
}

/// Receives pending frames at intervals; returns how many.
fn receive_slowly(mut guest: Guest, is_over: &AtomicBool) -> u32 {
    let (mut bytes, mut last, mut heard) = (Vec::new(), 0, 0);
    while !is_over.load(Ordering::Relaxed) {
        while guest.recv(0, &mut bytes).expect("a sound ring").is_some() {
            let number = u32::from_be_bytes(bytes[14..18].try_into().expect("a number"));
            assert!(number > last, "{number} came after {last}");
            assert_eq!(bytes, frame(TWO, ONE, number, 200), "damaged");
            (last, heard) = (number, heard + 1);
        }
        std::thread::sleep(Duration::from_millis(30));
    }
    heard
}

#[test]
fn an_upgrade_loses_nothing_that_waits_for_a_slow_guest() {
    nothing_that_waits_is_lost(GuestOptions::default());
}

#[test]
fn an_upgrade_loses_nothing_that_waits_in_order() {
    nothing_that_waits_is_lost(in_order());
}

#[test]
fn an_upgrade_loses_nothing_that_waits_in_packed_rings() {
    nothing_that_waits_is_lost(packed());
}

fn nothing_that_waits_is_lost(options: GuestOptions) {
    let switch = Switch::start(&["--workers", "2", "--module", "bridge", "--vnic", "one", "--vnic", "two"]);
    let one = guest_with(&switch, "one", GuestOptions { mac: ONE, ..options });
    let options = GuestOptions { mac: TWO, rx_buffers: 8, ..GuestOptions::default() };
    let two = guest_with(&switch, "two", options);
    let is_over = AtomicBool::new(false);
    let heard = std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_on(one, &is_over));
        let receiver = scope.spawn(|| receive_slowly(two, &is_over));
        for _ in 0..DEATHS {
            std::thread::sleep(LIFE);
            switch.ask(&["upgrade"]).ok();
        }
        is_over.store(true, Ordering::Relaxed);
        drop(sender.join().expect("a sound ring"));
        receiver.join().expect("everything that it heard was right")
    });
    let port = switch.port("one");
    assert!(heard > 0 && port["rx_drops"]["restart"].is_null(), "{heard} {port}");
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn an_upgrade_to_what_is_no_lasthop_is_refused_and_touches_nothing() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let process = switch.switch_pid();
    let text = switch.base.path().join("text");
    std::fs::write(&text, "no program").expect("written");
    for (program, why) in [
        ("/bin/true", "it ended without an answer"),
        ("/nonexistent", "cannot find the program /nonexistent"),
        (text.to_str().expect("text"), "make it executable"),
    ] {
        let said = switch.ask(&["upgrade", program]).refused();
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(switch.switch_pid(), process);
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
}

#[test]
fn an_upgrade_to_another_version_of_what_is_kept_is_refused() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let process = switch.switch_pid();
    let version = own_version(&switch);
    for other in [version - 1, version + 1] {
        let said = switch.ask(&["upgrade", &successor_of_version(&switch, other, "cat")]).refused();
        assert!(said.contains(&format!("it has state version {other}")), "{said}");
    }
    assert_eq!(switch.switch_pid(), process);
    assert!(!switch.log().contains("running again"), "{}", switch.log());
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
}

#[test]
fn an_upgrade_to_a_program_that_does_not_know_a_key_of_a_vnic_says_which_and_what_to_do() {
    let switch = Switch::start(&["--vnic", "one,memory-max=64G"]);
    let (process, version) = (switch.switch_pid(), own_version(&switch));
    let older = successor_of_version(&switch, version, "exec cat >/dev/null");
    let said = switch.ask(&["upgrade", &older]).refused();
    let (what, remedy) = ("port one has memory-max", switch.addressed("lasthop port set one memory-max=1T"));
    assert!(
        said.contains(what) && said.contains(&remedy) && said.contains("a lasthop of before it"),
        "{said}"
    );
    assert_eq!(switch.switch_pid(), process);
    switch.ask(&["vnic", "set", "one", "memory-max=1T"]).ok();
    let said = switch.ask(&["upgrade", &older]).refused();
    assert!(!said.contains("memory-max"), "it gets further: {said}");
}

#[test]
fn an_upgrade_to_a_program_that_lacks_a_feature_of_a_guest_says_which_and_what_to_do() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let older = successor_of_version(&switch, own_version(&switch), "exec cat >/dev/null");
    let (mut one, mut two) = (guest_with(&switch, "one", packed()), guest(&switch, "two", TWO));
    let process = switch.switch_pid();
    let said = switch.ask(&["upgrade", &older]).refused();
    let why =
        "the guest of port one uses RING_PACKED, which that program, a lasthop of before it, does not know";
    assert!(said.contains(why) && said.contains("packed=off"), "{said}");
    assert_eq!(switch.switch_pid(), process);
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60), "its guest keeps its connection");
    drop(one);
    eventually("no guest", || (switch.port("one")["state"] == "waiting for guest").then_some(()));
    let said = switch.ask(&["upgrade", &older]).refused();
    assert!(!said.contains("RING_PACKED"), "it gets further: {said}");
    switch.ask(&["port", "set", "one", "features-off=RING_PACKED"]).ok();
    let said = switch.ask(&["upgrade", &older]).refused();
    assert!(said.contains("port one has features-off=RING_PACKED, which that program"), "{said}");
}

#[test]
fn an_upgrade_to_a_program_that_does_not_know_the_controller_option_says_so() {
    let switch = Switch::start(&["--module", "flow", "--controller", "external", "--vnic", "one"]);
    let (process, older) = (switch.switch_pid(), successor_without_option(&switch, "--controller"));
    let said = switch.ask(&["upgrade", &older]).refused();
    for words in ["an older one", "controller=external", "upgrade to a later one, or restart"] {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(switch.switch_pid(), process);
    switch.ask(&["switch", "set", "default", "controller=embedded"]).ok();
    let said = switch.ask(&["upgrade", &older]).refused();
    assert!(
        said.contains("it has state version 0") && !said.contains("controller"),
        "it gets further: {said}"
    );
}

#[test]
fn an_upgrade_that_is_refused_after_its_program_has_told_what_it_knows_leaves_flows_as_they_are() {
    let words = ["--module", "flow", "--controller", "none", "--vnic", "one", "--vnic", "two"];
    let switch = Switch::start(&words);
    switch.ask(&["flow", "join", "two", "one", "--datapath", "default"]).ok();
    let flows = || {
        let shown = switch.json(&["flow", "show"]);
        shown.to_string().matches("\"match\"").count()
    };
    let process = switch.switch_pid().expect("a switch process");
    // It does not say that it keeps flows.
    let successor = successor_that_ends(&switch, own_version(&switch));
    switch.ask(&["upgrade", &successor]).refused();
    assert_eq!(switch.switch_pid(), Some(process));
    let before = flows();
    assert!(before > 0, "{}", switch.json(&["flow", "show"]));
    std::thread::sleep(LIFE);
    kill(&switch);
    assert_eq!(flows(), before, "the next process does not have them");
}

#[test]
fn a_program_that_does_not_answer_is_no_heir() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let process = switch.switch_pid();
    let path = switch.base.path().join("mute");
    std::fs::write(&path, "#!/bin/sh\ncat >/dev/null\n").expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("made executable");
    let said = switch.ask(&["upgrade", path.to_str().expect("text")]).refused();
    assert!(said.contains("there was no answer in time"), "{said}");
    assert_eq!(switch.switch_pid(), process);
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
}

#[test]
fn a_program_that_dies_while_it_takes_over_is_followed_by_the_old_one() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let (process, program) = (switch.switch_pid(), program_of(switch.switch_pid().expect("a process")));
    let version = own_version(&switch);
    // On a busy machine it would need seconds to answer, which is no reason to give it up.
    let successor = successor_that_waits(&switch, version, "sleep 6\n", "sleep 0.2; exit 3");
    let said = switch.ask(&["upgrade", &successor]).refused();
    assert!(said.contains("the new one died; one of the old program continues"), "{said}");
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    assert_ne!(switch.switch_pid(), process);
    assert_eq!(program_of(switch.switch_pid().expect("a process")), program);
    eventually("its end", || switch.log().contains("ended with status 3").then_some(()));
    assert!(!switch.log().contains("has to connect again"), "{}", switch.log());
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn a_program_that_never_takes_over_is_followed_by_the_old_one_and_no_vnic_stays_behind() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let _one = guest(&switch, "one", ONE);
    let (process, program) = (switch.switch_pid(), program_of(switch.switch_pid().expect("a process")));
    let version = own_version(&switch);
    let said =
        switch.ask(&["upgrade", &successor_of_version(&switch, version, "exec cat >/dev/null")]).refused();
    assert!(said.contains("there was no answer in time"), "{said}");
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    assert_ne!(switch.switch_pid(), process);
    assert_eq!(program_of(switch.switch_pid().expect("a process")), program);
    let _two = guest(&switch, "two", TWO);
    assert!(!switch.log().contains("has to connect again"), "{}", switch.log());
}

#[test]
fn an_upgrade_to_a_program_that_was_told_of_other_vnics_is_refused() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let (process, version) = (switch.switch_pid(), own_version(&switch));
    let (told, go) = (switch.base.path().join("told"), switch.base.path().join("go"));
    // Three hundred bytes are more than the first request.
    let (told_at, go_at) = (told.display(), go.display());
    let waits = format!("head -c 300 >{told_at}\nwhile ! [ -e {go_at} ]; do sleep 0.01; done\n");
    let successor = successor_that_waits(&switch, version, &waits, "cat >/dev/null");
    let said = std::thread::scope(|scope| {
        let asked = scope.spawn(|| switch.ask(&["upgrade", &successor]).refused());
        eventually("that it is told", || (std::fs::metadata(&told).ok()?.len() == 300).then_some(()));
        switch.ask(&["vnic", "add", "three"]).ok();
        std::fs::write(&go, "").expect("written");
        asked.join().expect("an answer")
    });
    assert!(said.contains("changed meanwhile; try again"), "{said}");
    assert_eq!(switch.switch_pid(), process);
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn an_upgrade_to_a_program_that_was_started_for_another_default_switch_is_refused() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (process, version) = (switch.switch_pid(), own_version(&switch));
    let (started, go) = (switch.base.path().join("started"), switch.base.path().join("go"));
    let script = successor_of_version(&switch, version, "cat >/dev/null");
    let waits = format!(
        "#!/bin/sh\n>{}\nwhile ! [ -e {} ]; do sleep 0.01; done\n. {script}\n",
        started.display(),
        go.display()
    );
    let successor = switch.base.path().join("late");
    std::fs::write(&successor, waits).expect("written");
    std::fs::set_permissions(&successor, std::fs::Permissions::from_mode(0o755)).expect("made executable");
    let said = std::thread::scope(|scope| {
        let asked = scope.spawn(|| switch.ask(&["upgrade", successor.to_str().expect("text")]).refused());
        eventually("its start", || started.exists().then_some(()));
        switch.ask(&["switch", "set", "default", "module=dummy"]).ok();
        std::fs::write(&go, "").expect("written");
        asked.join().expect("an answer")
    });
    assert!(said.contains("changed meanwhile; try again"), "{said}");
    assert_eq!(switch.switch_pid(), process);
}

#[test]
fn an_address_that_the_next_program_refuses_is_in_the_way_of_no_upgrade() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    switch.ask(&["fdb", "add", "02:00:00:00:00:07", "two"]).ok();
    // A dummy has no table: it refuses the previous module's entries.
    switch.ask(&["switch", "set", "default", "module=dummy"]).ok();
    let process = switch.switch_pid();
    switch.ask(&["upgrade"]).ok();
    assert_ne!(switch.switch_pid(), process);
    switch.ask(&["switch", "set", "default", "module=bridge"]).ok();
    let shown = switch.ask(&["fdb", "show"]).ok();
    assert!(shown.contains("02:00:00:00:00:07 dev two"), "{shown}");
}

#[test]
fn an_upgrade_waits_for_no_front_end() {
    use std::io::{Read, Write};
    const GET_FEATURES: [u32; 3] = [1, 1, 0];
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two", "--vnic", "half"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let mut half = switch.connect("half.sock");
    half.set_read_timeout(Some(WAIT)).expect("a socket");
    let request = GET_FEATURES.map(u32::to_ne_bytes).concat();
    half.write_all(&[&request[..], &request[..8]].concat()).expect("written");
    // The bytes after the first message have been read once that message is answered.
    half.read_exact(&mut [0; 20]).expect("an answer");
    let process = switch.switch_pid();
    switch.ask(&["upgrade"]).ok();
    assert_ne!(switch.switch_pid(), process);
    assert_eq!(half.read(&mut [0; 20]).expect("its end"), 0);
    let said = "port half: its guest could not be taken over and has to connect again: it was in the middle of a message";
    eventually("the reason", || switch.log().contains(said).then_some(()));
    assert_eq!(switch.log().matches("has to connect again").count(), 1, "{}", switch.log());
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
    eventually("it may connect again", || {
        (switch.port("half")["state"] == "waiting for guest").then_some(())
    });
}
