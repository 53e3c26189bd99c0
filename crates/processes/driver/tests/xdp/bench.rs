//! A switch with a guest and a driver.

use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use lasthop_device::{DriverCounters, OpenedDevice};
use lasthop_driver::{DevicePortId, DevicePortStats, Driver, DriverEvent, DriverSettings};
use lasthop_frontend::{Guest, GuestOptions};
use lasthop_module_api::PortId;
use lasthop_wire::Offload;
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::frames;
use crate::support::{self, PATIENCE, Switch};

/// A switch, a guest, and a driver without privileges.
pub(crate) struct Bench {
    pub(crate) switch: Switch,
    pub(crate) guest: Guest,
    pub(crate) driver: Driver,
    /// Ports of the switch that the driver serves, by the driver's number, and a descriptor that ends their sessions.
    served: BTreeMap<u32, (PortId, UnixStream)>,
}

impl Bench {
    pub(crate) fn new() -> Self {
        let switch = Switch::start();
        let stream = switch.serve(switch.add_port("guest", 1)).0;
        let guest = Guest::over(stream, GuestOptions::plain()).unwrap();
        let driver = with_only(CapabilitySet::empty(), || Driver::start(&DriverSettings::default())).unwrap();
        Self { switch, guest, driver, served: BTreeMap::new() }
    }

    /// Makes a device a port.
    pub(crate) fn attach(&mut self, number: u32, device: OpenedDevice) {
        let port = self.switch.add_port(&device.facts.name, device.facts.queues);
        let (stream, knife) = self.switch.serve(port);
        self.served.insert(number, (port, knife));
        let OpenedDevice { facts, descriptors } = device;
        let driver = &mut self.driver;
        with_only(CapabilitySet::empty(), || driver.attach(DevicePortId(number), facts, descriptors, stream))
            .unwrap();
    }

    /// Ends a port's session with the switch, and makes another one.
    pub(crate) fn reconnect(&mut self, number: u32) {
        let (port, knife) = self.served.remove(&number).unwrap();
        knife.shutdown(std::net::Shutdown::Both).unwrap();
        let event = self.event();
        assert!(matches!(event, DriverEvent::SwitchGone { .. }), "{event:?}");
        let (stream, knife) = self.switch.serve(port);
        self.served.insert(number, (port, knife));
        with_only(CapabilitySet::empty(), || self.driver.replace_switch(DevicePortId(number), stream))
            .unwrap();
    }

    /// Gives a port a fresh device.
    pub(crate) fn replace(&mut self, number: u32, device: OpenedDevice) {
        let OpenedDevice { facts, descriptors } = device;
        let driver = &mut self.driver;
        with_only(CapabilitySet::empty(), || driver.replace_device(DevicePortId(number), facts, descriptors))
            .unwrap();
    }

    pub(crate) fn port(&self, number: u32) -> DevicePortStats {
        support::port(&self.driver, number)
    }

    pub(crate) fn counters(&self, number: u32) -> DriverCounters {
        self.port(number).counters
    }

    /// The next event of the driver.
    pub(crate) fn event(&mut self) -> DriverEvent {
        support::event(&mut self.driver)
    }

    /// Checks that every frame is accounted for, in the driver and in the switch.
    pub(crate) fn assert_conserved(&self) {
        support::assert_conserved(&self.driver, &self.switch);
    }

    /// Sends a frame from the guest.
    pub(crate) fn send(&mut self, frame: &[u8]) {
        while !self.guest.send(0, frame, Offload::default()).unwrap() {
            self.guest.flush(0).unwrap();
            self.guest.reclaim(0).unwrap();
        }
        self.guest.flush(0).unwrap();
    }

    /// The numbers in the guest's received datagrams, until there are `count`.
    pub(crate) fn receive(&mut self, count: usize) -> Vec<u32> {
        let (mut numbers, mut bytes, until) = (Vec::new(), Vec::new(), Instant::now() + PATIENCE);
        while numbers.len() < count {
            assert!(Instant::now() < until, "{} of {count} datagrams arrived", numbers.len());
            if self.guest.recv(0, &mut bytes).unwrap().is_none() {
                self.guest.wait(Some(Duration::from_millis(100))).unwrap();
            } else if let Some(payload) = frames::datagram(&bytes) {
                numbers.push(frames::number(payload));
            }
        }
        numbers
    }

    /// The numbers in the datagrams that the guest has received so far.
    pub(crate) fn received(&mut self) -> Vec<u32> {
        let (mut numbers, mut bytes) = (Vec::new(), Vec::new());
        while self.guest.recv(0, &mut bytes).unwrap().is_some() {
            numbers.extend(frames::datagram(&bytes).map(frames::number));
        }
        numbers
    }
}

/// Runs `work` with no other capabilities.
pub(crate) fn with_only<R: Send>(capabilities: CapabilitySet, work: impl FnOnce() -> R + Send) -> R {
    let (effective, permitted) = (capabilities, capabilities);
    let sets = CapabilitySets { effective, permitted, inheritable: CapabilitySet::empty() };
    let confined = move || {
        rustix::thread::set_capabilities(None, sets).unwrap();
        work()
    };
    std::thread::scope(|scope| scope.spawn(confined).join().unwrap())
}
