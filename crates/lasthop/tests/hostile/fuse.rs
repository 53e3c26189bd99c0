//! Files of a file system that the front end serves itself (FUSE) and that does not answer. A thread that closes such a file waits in a
//! system call that nothing interrupts, not even SIGKILL.

use std::os::fd::{AsFd, OwnedFd};

use lasthop_dpif::client::Client;
use lasthop_vhost::message::request;
use rustix::process::Signal;

use super::closing::{named, requests, unseen};
use lasthop_rig::fuse::{self, FuseServer, opcode};
use lasthop_rig::guests::{ONE, guest};
use lasthop_rig::rogue::{Desk, Rogue, send_with_fds};
use lasthop_rig::victims::Victims;
use lasthop_rig::{eventually, signal};

/// Sends a file with a message, and keeps no copy.
fn send_file(
    victims: &Victims,
    rogue: &Rogue,
    number: u32,
    body: &[u8],
    unanswered: &'static [u32],
) -> FuseServer {
    // A session that has ended accepts none.
    unseen(victims, || FuseServer::send(unanswered, |file| _ = rogue.send(number, body, &[file])))
}

fn files_with_any_message_harm_nobody(unanswered: &'static [u32]) {
    if !fuse::may() {
        return;
    }
    let vnics = requests().map(|(vnic, ..)| vnic);
    let mut victims = Victims::beside(&vnics);
    let mut servers = Vec::new();
    for (vnic, number, body) in requests() {
        let (mut rogue, desk) = (Rogue::connect(&victims.switch, vnic), Desk::new(1));
        rogue.negotiate();
        rogue.share(&desk, &[]);
        rogue.await_turn();
        servers.push(send_file(&victims, &rogue, number, &body, unanswered));
        let _ = rogue.front.get_features(); // some of these end the session
    }
    servers.iter().for_each(FuseServer::await_victim);
    victims.assert_unharmed();
    victims.upgrade();
    victims.assert_unharmed();
    let old =
        "was killed and cannot end: its thread closing waits in a system call that nothing interrupts (D)";
    if unanswered.contains(&opcode::FLUSH) {
        eventually("the old process's name", || victims.switch.log().contains(old).then_some(()));
    }
    victims.upgrade();
    victims.assert_unharmed();
}

#[test]
fn files_whose_close_is_not_answered_harm_nobody_with_any_message() {
    files_with_any_message_harm_nobody(&[opcode::FLUSH]);
}

#[test]
fn files_of_which_nothing_is_answered_harm_nobody_with_any_message() {
    files_with_any_message_harm_nobody(&[opcode::FLUSH, opcode::READ, opcode::GETATTR, opcode::RELEASE]);
}

#[test]
fn files_whose_attributes_and_release_are_not_answered_harm_nobody() {
    if !fuse::may() {
        return;
    }
    let mut victims = Victims::beside(&["bad"]);
    let rogue = Rogue::connect(&victims.switch, "bad");
    let unanswered = &[opcode::READ, opcode::GETATTR, opcode::RELEASE];
    let server = send_file(&victims, &rogue, request::SET_LOG_FD, &[], unanswered);
    server.await_victim();
    victims.assert_unharmed();
    victims.upgrade();
    victims.assert_unharmed();
}

/// A switch process with a thread that waits for a file system that does not answer, and the server of that.
fn stuck(victims: &Victims) -> (u32, FuseServer) {
    let rogue = Rogue::connect(&victims.switch, "bad");
    let server = send_file(victims, &rogue, request::GET_FEATURES, &[], &[opcode::FLUSH]);
    server.await_victim();
    named(victims, "bad");
    (victims.switch.switch_pid().expect("it runs"), server)
}

#[test]
fn a_killed_switch_process_that_cannot_end_is_replaced_and_named_and_reaped_in_the_end() {
    if !fuse::may() {
        return;
    }
    let mut victims = Victims::beside(&["bad"]);
    let (pid, server) = stuck(&victims);
    let path = victims.switch.path("datapath.sock");
    let mut client = Client::connect(&path).expect("a client");
    client.ports(1).expect("listed");
    signal(pid, Signal::KILL);
    eventually("the next one", || victims.switch.switch_pid().filter(|next| *next != pid));
    let line = format!("the switch process {pid} was killed and cannot end: its thread closing waits");
    assert!(victims.switch.log().contains(&line), "{}", victims.switch.log());
    // The counters of the killed process's last milliseconds are lost, so they are not compared.
    victims.talk(10);
    victims.talk_anew(10);
    victims.operate();
    victims.attach_another();
    client.ports(1).expect_err("its connection is over");
    victims.upgrade();
    victims.talk(10);
    assert!(victims.switch.children().contains(&pid), "it is stuck still");
    drop(server);
    eventually("its end", || (!victims.switch.children().contains(&pid)).then_some(()));
    eventually("a line about it", || {
        victims
            .switch
            .log()
            .contains(&format!("the switch process {pid}, which was stuck, has ended"))
            .then_some(())
    });
}

#[test]
fn beside_as_many_stuck_processes_as_there_may_be_no_other_one_is_started() {
    /// As in docs/design/hostile-guests.md.
    const STUCK_MAX: usize = 16;
    if !fuse::may() {
        return;
    }
    let vnics: Vec<String> = (0..STUCK_MAX).map(|number| format!("bad{number}")).collect();
    let mut victims = Victims::beside(&vnics.iter().map(String::as_str).collect::<Vec<_>>());
    let mut servers = Vec::new();
    for vnic in &vnics {
        let pid = victims.switch.switch_pid().expect("it runs");
        let rogue = Rogue::connect(&victims.switch, vnic);
        let server = send_file(&victims, &rogue, request::GET_FEATURES, &[], &[opcode::FLUSH]);
        server.await_victim();
        servers.push(server);
        victims.upgrade();
        let line = format!("the switch process {pid} was killed and cannot end");
        eventually("its name", || victims.switch.log().contains(&line).then_some(()));
    }
    let told = victims.switch.ask(&["upgrade"]).refused();
    assert!(told.contains(&format!("{STUCK_MAX} processes that were killed cannot end")), "{told}");
    victims.talk(10);
    victims.talk_anew(10);
    victims.operate();
    victims.attach_another();
    drop(servers.pop());
    eventually("room", || (victims.switch.ask(&["upgrade"]).code == Some(0)).then_some(()));
    victims.talk(10);
}

#[test]
fn the_supervisor_ends_beside_a_switch_process_that_cannot() {
    if !fuse::may() {
        return;
    }
    let mut victims = Victims::beside(&["bad"]);
    let (_, server) = stuck(&victims);
    assert!(victims.switch.end().success());
    drop(server);
}

#[test]
fn a_call_descriptor_of_fuse_is_refused_and_its_ring_goes_on_without() {
    if !fuse::may() {
        return;
    }
    let mut victims = Victims::beside(&["bad"]);
    let (mut rogue, desk) = (Rogue::connect(&victims.switch, "bad"), Desk::new(1));
    rogue.negotiate();
    rogue.share(&desk, &[]);
    let server = unseen(&victims, || {
        FuseServer::send(&[opcode::FLUSH], |file| {
            rogue.start_ring(0, Some(desk.kick.as_fd()), Some(file)).expect("sent");
        })
    });
    server.await_victim();
    rogue.await_end();
    victims.assert_unharmed();
    drop(guest(&victims.switch, "spare", ONE));
}

#[test]
fn files_that_a_control_client_sends_keep_no_process_from_starting() {
    if !fuse::may() {
        return;
    }
    let mut victims = Victims::beside(&[]);
    let clients: Vec<OwnedFd> = (0..3).map(|_| victims.switch.connect("control.sock").into()).collect();
    // The second of a client's two files waits until the first one is closed.
    let servers: Vec<FuseServer> = unseen(&victims, || {
        let send = |client: &OwnedFd| {
            FuseServer::send(&[opcode::FLUSH], |file| {
                send_with_fds(client.as_fd(), b"x", &[file, file]).expect("sent");
            })
        };
        clients.iter().map(send).collect()
    });
    servers.iter().for_each(FuseServer::await_victim);
    victims.assert_unharmed();
    let pid = victims.switch.switch_pid().expect("it runs");
    signal(pid, Signal::KILL);
    victims.talk(10);
    victims.attach_another();
    victims.upgrade();
    victims.talk(10);
}
