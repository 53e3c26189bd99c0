//! A switch with a guest and an uplink through XDP sockets.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lasthop_driver::{Counters, DeviceFacts, OpenedDevice, Queue, XdpQueue};
use lasthop_engine::{Engine, EngineSettings, PortConfig};
use lasthop_guest::{Guest, GuestOptions, Vnic, VnicOptions, VnicPair};
use lasthop_verdict::{Module, PortId};
use lasthop_vhost::{Session, features};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Long enough for the slowest machine; nothing is asserted about time.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Switch {
    pub engine: Engine,
}

impl Switch {
    pub fn new() -> Self {
        let settings = lasthop_modules::BridgeSettings::default();
        let module: Arc<dyn Module> = lasthop_modules::by_name("bridge", &settings).unwrap().into();
        Self {
            engine: Engine::start(module, &EngineSettings { workers: 1, ..EngineSettings::default() })
                .unwrap(),
        }
    }

    /// A port and the socket of its front end.
    pub fn port(&self, name: &str) -> (PortId, UnixStream) {
        let port = self.engine.add_port(PortConfig { name: name.into(), ..PortConfig::default() }).unwrap();
        (port, self.serve(port))
    }

    pub fn serve(&self, port: PortId) -> UnixStream {
        let (front, back) = UnixStream::pair().unwrap();
        let mut session = Session::new(OwnedFd::from(back), self.engine.device(port).unwrap()).unwrap();
        std::thread::spawn(move || {
            loop {
                let wanted =
                    if session.wants_write() { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
                poll(&mut [PollFd::new(&session.fd(), wanted)], None).unwrap();
                if session.ready().is_err() {
                    return;
                }
            }
        });
        front
    }

    pub fn guest(&self) -> Guest {
        Guest::over(self.port("guest").1, GuestOptions::plain()).unwrap()
    }

    pub fn assert_conserved(&self) {
        for port in &self.engine.stats().unwrap().ports {
            assert!(port.counters.is_conserved(), "{port:?}");
        }
    }
}

/// Serves one device's queues as a driver process does, without privileges, until dropped.
pub struct Pump {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Counters>>,
}

impl Pump {
    pub fn start(switch: &Switch, device: OpenedDevice) -> Self {
        let (_, stream) = switch.port("uplink");
        let stop = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            drop_capabilities();
            let (_vnic, mut lanes) = attach(stream, device);
            while !told.load(Ordering::Relaxed) {
                round(&mut lanes);
            }
            lanes.iter().fold(Counters::default(), |mut sum, lane| {
                sum += lane.2;
                sum
            })
        });
        Self { stop, thread: Some(thread) }
    }

    pub fn stop(mut self) -> Counters {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap()
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

type Lane = (VnicPair, XdpQueue, Counters);

fn attach(stream: UnixStream, device: OpenedDevice) -> (Vnic, Vec<Lane>) {
    let OpenedDevice { facts, queues } = device;
    let needs = XdpQueue::needs(&facts).unwrap();
    let options = VnicOptions {
        features: facts.features
            | features::VERSION_1
            | features::EVENT_IDX
            | features::MRG_RXBUF
            | features::MQ,
        queue_pairs: facts.queues,
        rx_entries: needs.rx_entries,
        tx_entries: needs.tx_entries,
        arena_bytes: needs.arena_bytes,
    };
    let (vnic, pairs) = Vnic::over(stream, options).unwrap();
    let lanes = pairs
        .into_iter()
        .zip(queues)
        .enumerate()
        .map(|(number, (pair, socket))| lane(&facts, number as u16, pair, socket));
    let lanes = lanes.collect();
    (vnic, lanes)
}

fn lane(facts: &DeviceFacts, number: u16, mut pair: VnicPair, socket: OwnedFd) -> Lane {
    let mut queue = XdpQueue::new(facts, number, socket).unwrap();
    let mut counters = Counters::default();
    queue.start(&mut pair, &mut counters).unwrap();
    pair.rx.flush().unwrap();
    (pair, queue, counters)
}

/// A visit to each lane, and a short rest if there was nothing.
fn round(lanes: &mut [Lane]) {
    let mut frames = 0;
    for (pair, queue, counters) in lanes.iter_mut() {
        let sent = queue.send(pair, counters).unwrap();
        let received = queue.receive(pair, counters).unwrap();
        pair.rx.flush().unwrap();
        pair.tx.flush().unwrap();
        frames += sent.frames + received.frames;
    }
    if frames == 0 {
        let mut fds: Vec<_> =
            lanes.iter().map(|lane| PollFd::from_borrowed_fd(lane.1.fd(), PollFlags::IN)).collect();
        let moment = Timespec { tv_sec: 0, tv_nsec: 200_000 };
        poll(&mut fds, Some(&moment)).unwrap();
    }
}

fn drop_capabilities() {
    let none = rustix::thread::CapabilitySets {
        effective: rustix::thread::CapabilitySet::empty(),
        permitted: rustix::thread::CapabilitySet::empty(),
        inheritable: rustix::thread::CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none).unwrap();
}

/// Waits for a condition that others bring about.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
