//! Guests while there is no supervisor.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use lasthop_frontend::{Guest, GuestOptions};
use rustix::process::Signal;

use crate::service::Service;
use lasthop_rig::guests::{ONE, TWO, WAIT, frame, guest, receive, running, send};
use lasthop_rig::{eventually, signal, stop};

/// Ends the supervisor, and runs `work` before the next one starts.
fn in_the_gap<T>(service: &Service, work: impl FnOnce() -> T) -> T {
    service.settle();
    let (manager, pid) = (service.switch.pid(), service.pid());
    // Neither process serves anyone from now on.
    let inner = service.inner().expect("a switch process");
    stop(manager);
    stop(inner);
    signal(pid, Signal::KILL);
    let done = work();
    let times = service.said("switch is running");
    signal(manager, Signal::CONT);
    service.started(times + 1);
    done
}

fn talk(one: &mut Guest, two: &mut Guest, number: u32) {
    send(one, &frame(TWO, ONE, number, 60));
    assert_eq!(receive(two), frame(TWO, ONE, number, 60));
}

#[test]
fn a_guest_that_leaves_is_gone() {
    let service = Service::start(&["--vnic", "one", "--vnic", "two"]);
    let (one, mut two) = (guest(&service.switch, "one", ONE), guest(&service.switch, "two", TWO));
    in_the_gap(&service, || drop(one));
    eventually("its end", || (service.switch.port("one")["state"] == "waiting for guest").then_some(()));
    assert_eq!(service.switch.port("two")["state"], "running");
    let mut one = guest(&service.switch, "one", ONE);
    talk(&mut one, &mut two, 1);
}

#[test]
fn guests_that_reset_or_change_memory_are_served_afterwards() {
    let service = Service::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&service.switch, "one", ONE), guest(&service.switch, "two", TWO));
    talk(&mut one, &mut two, 1);
    // A front end waits for a reply, so it has its own thread; two begin in the gap.
    let (reset, anew) = in_the_gap(&service, || {
        let reset = std::thread::spawn(move || one.reset().map(|()| one).expect("reset"));
        let anew = std::thread::spawn(move || two.share_anew(3).map(|()| two).expect("shared"));
        std::thread::sleep(Duration::from_millis(50));
        (reset, anew)
    });
    let (mut one, mut two) = (reset.join().expect("done"), anew.join().expect("done"));
    running(&service.switch, "one");
    talk(&mut one, &mut two, 2);
    service.nobody_was_let_go();
}

#[test]
fn guests_and_questions_that_come_wait_and_are_let_in() {
    let service = Service::start(&["--vnic", "one", "--vnic", "two"]);
    let mut two = guest(&service.switch, "two", TWO);
    let (guest, caller) = in_the_gap(&service, || {
        let connect = |name| UnixStream::connect(service.switch.path(name)).expect("somebody listens");
        (connect("one.sock"), connect("control.sock"))
    });
    let options = GuestOptions { mac: ONE, ..GuestOptions::default() };
    let mut one = Guest::over(guest, options).expect("attached");
    running(&service.switch, "one");
    talk(&mut one, &mut two, 1);
    (&caller).write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"version\"}\n").expect("written");
    caller.set_read_timeout(Some(WAIT)).expect("a socket");
    assert_eq!((&caller).read(&mut [0]).expect("an answer"), 1);
}

#[test]
fn a_message_half_read_ends_its_session_alone() {
    let service = Service::start(&["--vnic", "one", "--vnic", "two", "--vnic", "half"]);
    let (mut one, mut two) = (guest(&service.switch, "one", ONE), guest(&service.switch, "two", TWO));
    for end in [Service::kill, Service::restart] {
        let mut half = service.switch.connect("half.sock");
        let request = [1, 1, 0_u32].map(u32::to_ne_bytes).concat(); // GET_FEATURES
        half.write_all(&[&request[..], &request[..5]].concat()).expect("written");
        // The bytes after the first message have been read once that message is answered.
        half.read_exact(&mut [0; 20]).expect("an answer");
        service.settle();
        let said = "port half: its guest could not be taken over and has to connect again: it was in the middle of a message";
        let before = service.said(said);
        end(&service);
        eventually("that it is said", || (service.said(said) == before + 1).then_some(()));
        assert_eq!(half.read(&mut [0]).ok(), Some(0), "its connection is shut down");
        talk(&mut one, &mut two, 1);
    }
}

#[test]
fn a_supervisor_that_dies_again_and_again_at_its_start() {
    let service = Service::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&service.switch, "one", ONE), guest(&service.switch, "two", TWO));
    service.settle();
    // At any time during its start.
    for pause_us in (0..40_000).step_by(800) {
        let starts = service.state()["starts"].as_u64();
        signal(service.pid(), Signal::KILL);
        eventually("the next start", || (service.state()["starts"].as_u64() != starts).then_some(()));
        std::thread::sleep(Duration::from_micros(pause_us));
    }
    eventually("the guest", || {
        let answer = service.switch.ask(&["vnic", "show", "one"]);
        (answer.code == Some(0) && answer.out.contains("running")).then_some(())
    });
    talk(&mut one, &mut two, 1);
    service.nobody_was_let_go();
}

#[test]
fn a_supervisor_that_dies_amid_an_upgrade() {
    let service = Service::start(&["--vnic", "one", "--vnic", "two"]);
    let (mut one, mut two) = (guest(&service.switch, "one", ONE), guest(&service.switch, "two", TWO));
    for round in 0..10 {
        service.settle();
        std::thread::scope(|scope| {
            scope.spawn(|| service.switch.ask(&["upgrade"]));
            std::thread::sleep(Duration::from_millis(4 * round));
            service.kill();
        });
        talk(&mut one, &mut two, round as u32);
    }
    service.nobody_was_let_go();
}
