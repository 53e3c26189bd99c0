//! Guests attach, leave and change while one switch process replaces another, and processes die meanwhile.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lasthop_frontend::Guest;
use lasthop_rig::guests::{ONE, TWO, frame, guest, receive, running, send};
use lasthop_rig::rogue::send_with_fds;
use lasthop_rig::successors::late_successor;
use lasthop_rig::talkers::Talker;
use lasthop_rig::{Answer, Switch, eventually, fds, signal, stop};
use rustix::process::Signal;

const FOUR: [u8; 6] = [0x02, 0, 0, 0, 0, 4];
/// Longer than the life of a switch process for whose death the supervisor blames its guests.
const LIFE: Duration = Duration::from_millis(300);

fn switch_of_four() -> Switch {
    Switch::start(&["--workers", "2", "--vnic", "one", "--vnic", "two", "--vnic", "three", "--vnic", "four"])
}

/// An upgrade whose new process receives all messages, but reads them only after `meanwhile`.
fn upgrade_slowly(switch: &Switch, rest: &str, meanwhile: impl FnOnce()) -> Answer {
    upgrade_to(switch, &late_successor(switch, true, rest), meanwhile)
}

fn upgrade_to(switch: &Switch, successor: &str, meanwhile: impl FnOnce()) -> Answer {
    // A process of a refused upgrade may still be ending.
    let before = switch_processes(switch);
    std::thread::scope(|scope| {
        let asked = scope.spawn(|| switch.ask(&["upgrade", successor]));
        eventually("the new process", || {
            switch_processes(switch).iter().any(|process| !before.contains(process)).then_some(())
        });
        // The supervisor reads its first message before it asks for anything else.
        std::thread::sleep(Duration::from_millis(100));
        switch.json(&["stats"]);
        meanwhile();
        std::fs::write(switch.base.path().join("go"), "").expect("written");
        asked.join().expect("an answer")
    })
}

/// Lasthop itself, as a shell command.
fn lasthop() -> String {
    format!("exec {} \"$@\"", env!("CARGO_BIN_EXE_lasthop"))
}

/// All switch processes: the current one, and a new one.
fn switch_processes(switch: &Switch) -> Vec<u32> {
    let is_switch = |pid: &u32| {
        let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.split(|byte| *byte == 0).any(|word| word == b"switch-process")
    };
    switch.children().into_iter().filter(is_switch).collect()
}

fn meet(sender: (&mut Guest, [u8; 6]), receiver: (&mut Guest, [u8; 6]), number: u32) {
    let frame = frame(receiver.1, sender.1, number, 60 + number as usize);
    send(sender.0, &frame);
    // This includes frames that were flooded before it knew the addresses.
    while receive(receiver.0) != frame {}
}

/// Each of them sends to each other one.
fn all_meet(guests: &mut [(Guest, [u8; 6])], number: u32) {
    for from in 0..guests.len() {
        for to in (0..guests.len()).filter(|to| *to != from) {
            let [one, two] = guests.get_disjoint_mut([from, to]).expect("two guests");
            meet((&mut one.0, one.1), (&mut two.0, two.1), number);
        }
    }
}

#[test]
fn guests_that_change_after_the_new_process_was_told_of_them_go_on_as_they_are() {
    let switch = switch_of_four();
    let (one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let three = guest(&switch, "three", [0x02, 0, 0, 0, 0, 3]);
    let process = switch.switch_pid();
    let mut four = None;
    upgrade_slowly(&switch, &lasthop(), || {
        drop(three);
        two.share_anew(4).expect("another memory table");
        four = Some(guest(&switch, "four", FOUR));
        eventually("its end", || (switch.port("three")["state"] == "waiting for guest").then_some(()));
    })
    .ok();
    assert_ne!(switch.switch_pid(), process);
    let mut guests = [(one, ONE), (two, TWO), (four.expect("a guest"), FOUR)];
    all_meet(&mut guests, 1);
    let next = (guest(&switch, "three", [0x02, 0, 0, 0, 0, 3]), [0x02, 0, 0, 0, 0, 3]);
    let [one, two, four] = guests;
    all_meet(&mut [one, two, next, four], 2);
    assert!(!switch.log().contains("has to connect again"), "{}", switch.log());
    switch.ask(&["stats", "--check"]).ok();
}

/// The channel to a switch process; the test acts as the supervisor.
struct SwitchProcess {
    child: std::process::Child,
    channel: UnixStream,
}

impl SwitchProcess {
    fn start() -> Self {
        let (channel, theirs) = UnixStream::pair().expect("sockets");
        let words = ["switch-process", "--module", "bridge", "--workers", "1", "--sandbox", "off"];
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_lasthop"));
        let command = command.args(words).args(["--hysteresis-us", "200"]);
        let child = command.stdin(OwnedFd::from(theirs)).spawn().expect("it starts");
        channel.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        Self { child, channel }
    }

    fn order(&self, id: u64, order: &serde_json::Value, fds: &[BorrowedFd<'_>]) {
        let text = serde_json::json!({"id": id, "order": order}).to_string();
        let lengths = [text.len() as u32, fds.len() as u32].map(u32::to_ne_bytes).concat();
        let bytes = [lengths, text.into_bytes()].concat();
        assert_eq!(send_with_fds(self.channel.as_fd(), &bytes, fds).expect("sent"), bytes.len());
    }

    /// Waits until the order with this number is done.
    fn await_done(&mut self, id: u64) {
        loop {
            let mut lengths = [0; 8];
            self.channel.read_exact(&mut lengths).expect("an answer");
            let [a, b, c, d, ..] = lengths;
            let mut text = vec![0; u32::from_ne_bytes([a, b, c, d]) as usize];
            self.channel.read_exact(&mut text).expect("all of it");
            let report: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
            if report["Reply"]["id"] == id {
                assert_eq!(report["Reply"]["result"]["Ok"], "Done", "{report}");
                return;
            }
        }
    }
}

/// Number of unread bytes.
fn unread(socket: &UnixStream) -> u64 {
    rustix::io::ioctl_fionread(socket).expect("a socket")
}

impl Drop for SwitchProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_process_that_rests_is_told_to_rest_once_more_and_says_so_though_a_message_is_half_there() {
    use serde_json::json;
    let mut process = SwitchProcess::start();
    let port = json!({"vnic": {"name": "one"}, "leads": "inside", "is_requested": false, "device": null});
    process.order(1, &json!({"AddPort": port}), &[]);
    process.await_done(1);
    process.order(2, &json!("Wake"), &[]);
    process.await_done(2);
    let (front_end, connection) = UnixStream::pair().expect("sockets");
    process.order(0, &json!({"Attach": {"name": "one", "attachment": 7}}), &[connection.as_fd()]);
    (&front_end).write_all(&[1, 0, 0, 0, 1, 0]).expect("written");
    eventually("it has read that", || (unread(&connection) == 0).then_some(()));
    for id in [3, 4] {
        process.order(id, &json!("Rest"), &[]);
        process.await_done(id);
    }
}

#[test]
fn a_program_that_does_not_get_ready_takes_guests_over_all_the_same() {
    let switch = switch_of_four();
    let (one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let process = switch.switch_pid();
    let successor = late_successor(&switch, false, &lasthop());
    upgrade_to(&switch, &successor, || two.share_anew(3).expect("another memory table")).ok();
    assert_ne!(switch.switch_pid(), process);
    all_meet(&mut [(one, ONE), (two, TWO)], 1);
    assert!(!switch.log().contains("has to connect again"), "{}", switch.log());
}

#[test]
fn guests_that_change_while_the_old_process_comes_to_rest_go_on_as_they_are() {
    let switch = switch_of_four();
    let (one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let three = guest(&switch, "three", [0x02, 0, 0, 0, 0, 3]);
    let old = switch.switch_pid().expect("a switch process");
    let answer = std::thread::scope(|scope| {
        let (mut two_changes, mut four_comes) = (None, None);
        let (path, two) = (switch.path("four.sock"), &mut two);
        let answer = upgrade_slowly(&switch, &lasthop(), || {
            stop(old);
            // It is asked to rest meanwhile, and finds all of this when it continues.
            two_changes = Some(scope.spawn(move || two.share_anew(4).expect("another memory table")));
            four_comes = Some(scope.spawn(move || {
                let options = lasthop_frontend::GuestOptions { mac: FOUR, ..Default::default() };
                Guest::connect(path, options).expect("attached")
            }));
            drop(three);
            scope.spawn(move || {
                std::thread::sleep(LIFE);
                signal(old, Signal::CONT);
            });
        });
        two_changes.expect("a thread").join().expect("its new memory table");
        (answer, four_comes.expect("a thread").join().expect("a guest"))
    });
    let (answer, four) = answer;
    if answer.code != Some(0) {
        assert!(answer.err.contains("in the middle of a message"), "{}", answer.err);
        switch.ask(&["upgrade"]).ok();
    }
    assert_ne!(switch.switch_pid(), Some(old));
    running(&switch, "four");
    all_meet(&mut [(one, ONE), (two, TWO), (four, FOUR)], 1);
    eventually("its end", || (switch.port("three")["state"] == "waiting for guest").then_some(()));
    assert!(!switch.log().contains("has to connect again"), "{}", switch.log());
    switch.ask(&["stats", "--check"]).ok();
}

#[test]
fn a_new_process_that_is_killed_at_any_moment_costs_no_guest_its_connection() {
    let switch = switch_of_four();
    let (one, two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    let talkers = [Talker::start(one, ONE, TWO), Talker::start(two, TWO, ONE)];
    for round in 0..12_u64 {
        std::thread::sleep(LIFE);
        let old = switch.switch_pid().expect("a switch process");
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| switch.ask(&["upgrade"]));
            let successor = eventually("the new process", || {
                switch_processes(&switch).into_iter().find(|pid| *pid != old)
            });
            std::thread::sleep(Duration::from_millis(3 * round));
            signal(successor, Signal::KILL);
            asked.join().expect("an answer, whatever it is");
        });
        talkers.iter().for_each(|talker| talker.hear(200));
    }
    talkers.into_iter().for_each(|talker| drop(talker.end()));
    assert!(!switch.log().contains("has to connect again"), "{}", switch.log());
    eventually("that one is left", || (switch_processes(&switch).len() == 1).then_some(()));
    switch.ask(&["stats", "--check"]).ok();
}

/// Files of guest memory and sessions that a process has mapped.
fn maps(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("a process");
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

#[test]
fn upgrades_leave_nothing_behind_whatever_becomes_of_them() {
    let switch = switch_of_four();
    let mut guests = [(guest(&switch, "one", ONE), ONE), (guest(&switch, "two", TWO), TWO)];
    let held = || {
        let process = eventually("a switch process", || switch.switch_pid());
        [fds(switch.pid()), fds(process), maps(process)]
    };
    switch.ask(&["upgrade"]).ok();
    let before = eventually("its beginning", || {
        let before = held();
        std::thread::sleep(LIFE);
        (before == held()).then_some(before)
    });
    let refused = upgrade_slowly(&switch, "exit 3", || guests[1].0.share_anew(1).expect("a memory table"));
    assert!(refused.refused().contains("ended without an answer"));
    std::fs::remove_file(switch.base.path().join("go")).expect("removed");
    upgrade_slowly(&switch, &lasthop(), || guests[0].0.share_anew(1).expect("a memory table")).ok();
    switch.ask(&["upgrade"]).ok();
    eventually("as much as before", || (held() == before).then_some(()));
    all_meet(&mut guests, 1);
}
