//! Shared by both kinds of tests with real devices: a switch, the driver's events, work in network namespaces.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lasthop_driver::{DevicePortId, DevicePortStats, Driver, DriverEvent};
use lasthop_engine::{Engine, EngineSettings, PortConfig};
use lasthop_module_api::{Module, PortId};
use lasthop_modules::BridgeSettings;
use lasthop_vhost::Session;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Long enough for the slowest machine; nothing is asserted about time.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A switch with a bridge, and the sessions of its ports.
pub(crate) struct Switch {
    pub(crate) engine: Engine,
}

impl Switch {
    pub(crate) fn start() -> Self {
        let module: Arc<dyn Module> =
            lasthop_modules::by_name("bridge", &BridgeSettings::default()).unwrap().into();
        Self { engine: Engine::start(module, &EngineSettings::default()).unwrap() }
    }

    pub(crate) fn add_port(&self, name: &str, queue_pairs: u16) -> PortId {
        let config = PortConfig { name: name.into(), queue_pairs, ..PortConfig::default() };
        self.engine.add_port(config).unwrap()
    }

    /// Serves a session on a port in a thread of its own. Returns the front end's socket, and one that ends the
    /// session. Waits while the port has another session.
    pub(crate) fn serve(&self, port: PortId) -> (UnixStream, UnixStream) {
        let mut device = None;
        eventually("the port is free", || {
            device = self.engine.device(port).ok();
            device.is_some()
        });
        let (front, back) = UnixStream::pair().unwrap();
        let knife = back.try_clone().unwrap();
        let mut session = Session::new(back.into(), device.unwrap()).unwrap();
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
        (front, knife)
    }

    pub(crate) fn assert_conserved(&self) {
        let stats = self.engine.stats().unwrap();
        for port in &stats.ports {
            assert!(port.counters.is_conserved(), "{port:?}");
        }
        let forwarded: u64 = stats.ports.iter().map(|port| port.counters.forwarded).sum();
        let delivered: u64 = stats.ports.iter().map(|port| port.counters.tx_packets).sum();
        assert_eq!(forwarded, delivered);
    }
}

/// Checks that every frame is accounted for, in the driver and in the switch.
pub(crate) fn assert_conserved(driver: &Driver, switch: &Switch) {
    for port in driver.stats().unwrap().ports {
        assert!(port.counters.is_conserved(), "{port:?}");
    }
    switch.assert_conserved();
}

/// The next event of a driver.
pub(crate) fn event(driver: &mut Driver) -> DriverEvent {
    let until = Instant::now() + PATIENCE;
    loop {
        if let Some(event) = driver.next_event() {
            return event;
        }
        assert!(Instant::now() < until, "no event comes");
        let timeout = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut [PollFd::new(&driver.events_fd(), PollFlags::IN)], Some(&timeout)).unwrap();
    }
}

/// A driver's statistics of a port.
pub(crate) fn port(driver: &Driver, number: u32) -> DevicePortStats {
    let stats = driver.stats().unwrap();
    stats.ports.into_iter().find(|stats| stats.port == DevicePortId(number)).unwrap()
}

/// Runs `work` in a thread inside a network namespace.
pub(crate) fn within<R: Send>(namespace: &str, work: impl FnOnce() -> R + Send) -> R {
    let enter = move || {
        let file = File::open(format!("/run/netns/{namespace}")).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(enter).join().unwrap())
}

/// Waits for a condition that others bring about.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
