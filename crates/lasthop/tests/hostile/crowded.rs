//! A user who has more descriptors in flight, sent and not received, than a process of theirs may have open: the kernel takes no more
//! from processes without capabilities (ETOOMANYREFS). A front end of that user can have it last.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use lasthop_vhost::message::{VhostMessage, request};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};

use crate::support::rogue::{Rogue, SENT_FDS_MAX, event_fd, send_with_fds};
use crate::support::victims::Victims;

/// More than the switch process has open, and fewer than other processes may have: this harms nothing else on the machine.
const OPEN_MAX: u64 = 512;
/// Commands meanwhile. Any of them fails if the switch process does not answer for 8 s.
const COMMANDS: usize = 20;

/// Descriptors that were sent and are not received, more than `OPEN_MAX`.
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

#[test]
fn operators_and_others_are_answered_while_descriptors_are_refused() {
    let mut victims = Victims::beside(&["bad"]);
    let (rogue, _desk) = Rogue::attach(&victims.switch, "bad", 1);
    let switch_process = victims.switch.switch_pid();
    let pid = switch_process.and_then(|pid| Pid::from_raw(pid as i32)).expect("a switch process");
    let limit = Rlimit { current: Some(OPEN_MAX), ..getrlimit(Resource::Nofile) };
    prlimit(Some(pid), Resource::Nofile, limit).expect("limited");
    let in_flight = InFlight::new();
    // The supervisor is to have a copy of it. The session is answered in the turn that brought it, and not served any further before.
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
