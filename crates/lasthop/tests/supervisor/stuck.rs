//! The end of a supervisor whose switch process cannot end: one of its threads closes a file of a file system that does not answer.

use lasthop_vhost::message::request;
use rustix::process::Signal;

use crate::service::Service;
use lasthop_rig::fuse::{self, FuseServer, opcode};
use lasthop_rig::guests::{ONE, TWO, frame, guest, receive, send};
use lasthop_rig::rogue::Rogue;
use lasthop_rig::{eventually, is_alive, signal, stop};

fn guests_go_on_after(end: impl Fn(&Service)) {
    if !fuse::may() {
        return;
    }
    let service = Service::start(&["--vnic", "one", "--vnic", "two", "--vnic", "bad"]);
    let (mut one, mut two) = (guest(&service.switch, "one", ONE), guest(&service.switch, "two", TWO));
    let rogue = Rogue::connect(&service.switch, "bad");
    let inner = service.inner().expect("a switch process");
    stop(inner);
    let server = FuseServer::send(&[opcode::FLUSH], |file| {
        rogue.send(request::GET_FEATURES, &[], &[file]).expect("sent");
    });
    signal(inner, Signal::CONT);
    server.await_victim();
    // Its session ends with the next message, as that of a vnic whose descriptors take long to close.
    service.settle();
    end(&service);
    send(&mut one, &frame(TWO, ONE, 1, 60));
    assert_eq!(receive(&mut two), frame(TWO, ONE, 1, 60));
    service.nobody_was_let_go();
    assert!(is_alive(inner), "it is stuck still");
    drop(rogue);
    eventually("the end of its session", || {
        (service.switch.port("bad")["state"] == "waiting for guest").then_some(())
    });
    drop(guest(&service.switch, "bad", [2, 0, 0, 0, 0, 3]));
    drop(server);
    eventually("its end", || (!is_alive(inner)).then_some(()));
}

#[test]
fn guests_go_on_when_the_supervisor_is_killed_beside_a_switch_process_that_cannot_end() {
    guests_go_on_after(|service| {
        service.kill();
        let line = "the last supervisor's switch process";
        assert_eq!(service.said(line), 1, "{}", service.switch.log());
    });
}

#[test]
fn guests_go_on_when_the_service_is_restarted_beside_a_switch_process_that_cannot_end() {
    guests_go_on_after(Service::restart);
}
