//! The report of a switch process that died: the cause, and its counts.

use std::time::Duration;

use lasthop_rig::guests::{ONE, TWO, frame, guest, receive, send};
use lasthop_rig::{Switch, eventually, signal};
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};

/// Longer than the interval at which counters are copied.
const LATER: Duration = Duration::from_millis(100);

#[test]
fn the_log_has_the_signal_and_the_last_counters() {
    let switch = Switch::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&switch, "one", ONE), guest(&switch, "two", TWO));
    for number in 1..=5 {
        send(&mut one, &frame(TWO, ONE, number, 60));
        receive(&mut two);
    }
    send(&mut one, &frame(ONE, ONE, 6, 60)); // to its own port
    let is_dropped = || switch.port("one")["rx_drops"].as_object().is_some_and(|drops| !drops.is_empty());
    eventually("that the controller has it dropped", || is_dropped().then_some(()));
    std::thread::sleep(LATER);
    let pid = switch.switch_pid().expect("a switch process");
    signal(pid, Signal::ILL);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    let log = switch.log();
    let line = log.lines().find(|line| line.contains(&format!("process {pid} was killed"))).expect("a line");
    assert!(
        line.contains("was killed by signal 4 (SIGILL: an instruction that this CPU does not have)"),
        "{line}"
    );
    assert!(line.contains("; it had taken 6 packets, delivered 5, and dropped 1 "), "{line}");
    let told = switch.ask(&["doctor"]).out;
    assert!(told.contains("signal 4 (SIGILL"), "{told}");
}

#[test]
fn the_log_has_the_last_words_of_a_switch_process_under_its_name() {
    let switch = Switch::start(&["--vnic", "one"]);
    let pid = switch.switch_pid().expect("a switch process");
    // A page: the kernel refuses the next memory that it asks for. 0 would be no limit. The runtime writes to standard error, as a panic
    // does, and aborts.
    let none = Rlimit { current: Some(4096), ..getrlimit(Resource::Data) };
    prlimit(i32::try_from(pid).ok().and_then(Pid::from_raw), Resource::Data, none).expect("limited");
    switch.ask(&["switch", "add", "other,module=bridge"]);
    eventually("the next one", || switch.log().contains("running again").then_some(()));
    let log = switch.log();
    let words = |line: &&str| line.starts_with("lasthop: the switch process: memory allocation of ");
    assert!(log.lines().any(|line| words(&line) && line.ends_with(" bytes failed")), "{log}");
    assert!(log.contains("(SIGABRT: it gave up; the log has its last words)"), "{log}");
}
