//! A worker that stops a ring while another one uses it.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use lasthop_fabric::RingId;
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_module_api::PortId;
use lasthop_modules::{BridgeSettings, by_name};
use lasthop_vhost::Session;
use rustix::event::{PollFd, PollFlags, poll};

use crate::{Engine, EngineSettings, Gathering, PortConfig};

/// Long enough for the slowest machine; nothing is asserted about time.
const PATIENCE: Duration = Duration::from_secs(120);
const RECEIVE_RING: u16 = 0;

/// A port and its guest; the session is served until the guest is gone.
fn attach(engine: &Engine) -> (PortId, Guest) {
    let port = engine.add_port(PortConfig { name: "bad".into(), ..PortConfig::default() }).unwrap();
    let (front, back) = UnixStream::pair().unwrap();
    let mut session = Session::new(back.into(), engine.device(port).unwrap()).unwrap();
    std::thread::spawn(move || {
        while session.ready().is_ok() {
            poll(&mut [PollFd::new(&session.fd(), PollFlags::IN)], None).unwrap();
        }
    });
    (port, Guest::over(front, GuestOptions::default()).unwrap())
}

#[test]
fn a_ring_that_another_worker_is_slow_to_leave_is_stopped_in_the_end() {
    let settings = EngineSettings { workers: 2, gathering: Gathering::Never, ..EngineSettings::default() };
    let engine =
        Engine::start(by_name("dummy", &BridgeSettings::default()).unwrap().into(), &settings).unwrap();
    let (port, _guest) = attach(&engine);
    let has_ring =
        |number| engine.pool.call(number, move |worker| worker.is_home(port, RECEIVE_RING)).unwrap();
    let home = usize::from(!has_ring(0));
    let (tell, is_there) = sync_channel(1);
    let (end, is_over) = sync_channel::<()>(1);
    engine.pool.mailbox(1 - home).post(Box::new(move |worker| {
        let stay = || {
            tell.send(()).unwrap();
            is_over.recv().unwrap();
        };
        while worker.fabric.while_serving(RingId { port, queue: RECEIVE_RING / 2 }, stay).is_none() {}
    }));
    is_there.recv().unwrap();
    // It waits for the other worker for a limited time.
    engine.pool.call(home, move |worker| worker.stop_for(port, "a fault")).unwrap();
    assert!(has_ring(home), "the other worker is at it");
    end.send(()).unwrap();
    let until = Instant::now() + PATIENCE;
    while has_ring(home) {
        assert!(Instant::now() < until, "it is not stopped");
        std::thread::yield_now();
    }
}
