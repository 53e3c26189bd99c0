//! A user who has more descriptors in flight, sent and not received, than a process of theirs may have open: the kernel takes no more
//! from processes without capabilities (ETOOMANYREFS). A front end of that user can have it last.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::Command;

use lasthop_vhost::message::{VhostMessage, request};
use rustix::process::{Pid, Resource, Rlimit, Signal, geteuid, getrlimit, prlimit};

use lasthop_rig::rogue::{Rogue, SENT_FDS_MAX, event_fd, send_with_fds};
use lasthop_rig::victims::Victims;
use lasthop_rig::{eventually, is_alive, signal};

/// More than the switch process has open, and fewer than other processes may have, so nothing else on the machine is
/// affected.
const OPEN_MAX: u64 = 512;
/// Commands during the attack. Each fails if the switch process does not answer for 8 s.
const COMMANDS: usize = 20;

/// Descriptors that were sent but not received, more than `OPEN_MAX`.
struct InFlight {
    _sockets: (UnixStream, UnixStream),
}

impl InFlight {
    fn new() -> Self {
        let sockets = UnixStream::pair().expect("a pair");
        let file = event_fd();
        for _ in 0..=OPEN_MAX as usize / SENT_FDS_MAX {
            let sent = send_with_fds(sockets.0.as_fd(), b"x", &[file.as_fd(); SENT_FDS_MAX]);
            assert_eq!(sent.expect("this process may have more"), 1);
        }
        Self { _sockets: sockets }
    }
}

/// Makes the kernel refuse descriptors of a process, while more of its user's than `OPEN_MAX` are in flight, if it has
/// no capability against that.
fn limit(pid: u32) {
    let pid = Pid::from_raw(pid as i32).expect("a process");
    let limit = Rlimit { current: Some(OPEN_MAX), ..getrlimit(Resource::Nofile) };
    prlimit(Some(pid), Resource::Nofile, limit).expect("limited");
}

#[test]
fn operators_and_others_are_answered_while_descriptors_are_refused() {
    let mut victims = Victims::beside(&["bad"]);
    let (rogue, _desk) = Rogue::attach(&victims.switch, "bad", 1);
    let switch_process = victims.switch.switch_pid();
    limit(switch_process.expect("a switch process"));
    let in_flight = InFlight::new();
    // The supervisor has to get a copy of it. The session is answered in the turn that brought it, and not served
    // further before that.
    let call = event_fd();
    let with_fd = VhostMessage::new(request::SET_VRING_CALL, 0_u64.to_le_bytes().to_vec()).encode();
    let question = VhostMessage::new(request::GET_FEATURES, Vec::new()).encode();
    rogue.send_bytes(&[with_fd, question.clone()].concat(), &[call.as_fd()]).expect("written");
    rogue.answer().expect("an answer");
    rogue.send_bytes(&question, &[]).expect("written");
    for _ in 0..COMMANDS {
        victims.talk(1);
        victims.talk_anew(1);
        victims.operate();
        victims.switch.ask(&["vnic", "list"]).ok();
        victims.switch.ask(&["fdb", "show"]).ok();
    }
    assert_eq!(victims.switch.switch_pid(), switch_process, "it was not taken for one that hangs");
    rogue.stream.set_nonblocking(true).expect("a socket");
    assert!(rogue.answer().is_err(), "nothing was refused");
    rogue.stream.set_nonblocking(false).expect("a socket");
    drop(in_flight);
    assert_eq!(rogue.answer().expect("the session goes on").request, request::GET_FEATURES);
    victims.assert_unharmed();
}

/// A switch whose supervisor has no capability to send descriptors nevertheless, as under the systemd service.
fn beside_an_unprivileged_supervisor() -> Victims {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lasthop"));
    if geteuid().is_root() {
        command = Command::new("setpriv");
        command.args(["--bounding-set", "-sys_admin,-sys_resource", env!("CARGO_BIN_EXE_lasthop")]);
    }
    let victims = Victims::beside_by(command, &["bad"], &[]);
    let processes = [Some(victims.switch.pid()), victims.switch.switch_pid()];
    processes.into_iter().for_each(|pid| limit(pid.expect("a process")));
    victims
}

#[test]
fn a_supervisor_whose_descriptors_are_refused_serves_others_and_lets_guests_in_later() {
    let mut victims = beside_an_unprivileged_supervisor();
    let processes = [Some(victims.switch.pid()), victims.switch.switch_pid()];
    let in_flight = InFlight::new();
    // The switch process has to get its connection.
    let rogue = Rogue::connect(&victims.switch, "bad");
    let question = VhostMessage::new(request::GET_FEATURES, Vec::new()).encode();
    rogue.send_bytes(&question, &[]).expect("written");
    for _ in 0..COMMANDS {
        victims.talk(1);
        victims.talk_anew(1);
        victims.operate();
        victims.switch.ask(&["vnic", "list"]).ok();
        victims.switch.ask(&["fdb", "show"]).ok();
    }
    rogue.stream.set_nonblocking(true).expect("a socket");
    assert!(rogue.answer().is_err(), "nothing was refused");
    rogue.stream.set_nonblocking(false).expect("a socket");
    drop(in_flight);
    assert_eq!(rogue.answer().expect("it is let in").request, request::GET_FEATURES);
    assert_eq!([Some(victims.switch.pid()), victims.switch.switch_pid()], processes, "none was replaced");
    victims.assert_unharmed();
    victims.upgrade();
    victims.talk(10);
}

#[test]
fn a_switch_process_that_dies_while_descriptors_are_refused_is_replaced_once_they_are_not() {
    let mut victims = beside_an_unprivileged_supervisor();
    let in_flight = InFlight::new();
    let before = victims.switch.switch_pid().expect("a switch process");
    signal(before, Signal::KILL);
    eventually("its end", || (!is_alive(before)).then_some(()));
    // It is there at once. Its guests come when descriptors can be sent.
    eventually("the next one", || victims.switch.switch_pid().filter(|pid| *pid != before));
    victims.switch.ask(&["version"]).ok();
    drop(in_flight);
    // The counters of the killed process's last milliseconds are lost, so they are not compared.
    victims.talk(10);
    victims.talk_anew(10);
    victims.operate();
    victims.attach_another();
}
