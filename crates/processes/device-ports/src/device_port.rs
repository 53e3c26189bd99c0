//! The additional state of a port over a device: an open device, and the driver process that serves it.
//!
//! ```text
//!   device:  absent ──there, and up──► open ──► descriptors unsent ──► at the driver ──gone──► absent
//!   port:    Idle at the switch + descriptors + a driver ──► a socket pair: one end each ──► joined
//! ```

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use lasthop_device::{DeviceFacts, DriverCounters, OpenedDevice};
use lasthop_netdev::{Uplink, tap_namespace_id};
use rustix::io::Errno;

use lasthop_api::orders::HostDevice;
use lasthop_netdev::links::LinkDevice;
use lasthop_runtime::clock::Pause;

use crate::opening::Opening;

/// Pause before a failed device is opened again; doubles.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A device that was open for this long counts as sound.
const SOUND: Duration = Duration::from_secs(10);

/// How long the switch may take to report the end of a connection.
const PATIENCE: Duration = Duration::from_millis(500);

/// The supervisor's state of a device port.
#[derive(Debug)]
pub struct DevicePort {
    /// Whether the switch makes its device.
    is_tap: bool,
    /// Whether a controller requested it; neither file nor flags have it.
    pub is_requested: bool,
    /// The facts of the host's device that the switch was told.
    pub told: Option<HostDevice>,
    /// The device in the kernel's last message; `None` if there is none.
    pub seen: Option<LinkDevice>,
    opened: Option<Opened>,
    /// Whether the driver process has the port.
    pub is_driven: bool,
    /// When a useless connection to the switch is closed, unless it ends by itself.
    stale: Option<Instant>,
    /// The last logged fault.
    trouble: Option<String>,
    /// When the device is opened again after a failure.
    retry: Option<Instant>,
    pause: Pause,
    /// Counters of earlier driver processes, and the last ones of the present one: they start at zero with each
    /// process.
    pub counters: DriverCounters,
}

#[derive(Debug)]
struct Opened {
    facts: DeviceFacts,
    /// The reason for this back end.
    why: String,
    /// Descriptors that the driver process does not have yet.
    unsent: Option<Vec<OwnedFd>>,
    /// Keeps a tap alive while there is no driver process: a tap exists while a process has it open.
    kept: Vec<OwnedFd>,
    /// Keeps the host's stack where it belongs while there is no driver process.
    uplink: Option<Uplink>,
    /// The namespace to which a tap was moved.
    namespace: Option<i32>,
    /// Whether the driver process could not continue with its descriptors.
    is_spent: bool,
    since: Instant,
}

impl Opened {
    /// Descriptors for the next driver process; `None` if the device has to be opened again.
    fn renew(&mut self) -> Option<Vec<OwnedFd>> {
        match &mut self.uplink {
            Some(uplink) => {
                let OpenedDevice { facts, descriptors } = uplink.sockets().ok()?;
                self.facts = facts;
                Some(descriptors)
            }
            None => self.kept.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>().ok(),
        }
    }
}

impl DevicePort {
    /// A port without a device. `is_tap`: whether the switch makes it.
    pub fn new(is_tap: bool) -> Self {
        Self {
            is_tap,
            is_requested: false,
            told: None,
            seen: None,
            opened: None,
            is_driven: false,
            stale: None,
            trouble: None,
            retry: None,
            pause: Pause::new(PAUSE_MIN, PAUSE_MAX),
            counters: DriverCounters::default(),
        }
    }

    /// Whether a device has to be opened. It must be up: a device that is down fails at once.
    pub fn wants_opening(&self, now: Instant) -> bool {
        self.could_open() && self.retry.is_none_or(|at| at <= now)
    }

    fn could_open(&self) -> bool {
        match &self.opened {
            // It is open, and stays open.
            Some(opened) => opened.is_spent,
            // An internal port's tap is made once.
            None if self.is_internal() => false,
            None => self.is_tap || self.seen.as_ref().is_some_and(|device| device.is_up),
        }
    }

    /// Whether it is a tap that a controller requested. It is made once; its user may move it to another network
    /// namespace, rename and delete it.
    pub fn is_internal(&self) -> bool {
        self.is_requested && self.is_tap
    }

    /// Notes an opened device.
    pub fn open(&mut self, opening: Opening, now: Instant) {
        let Opening { device: OpenedDevice { facts, descriptors }, why, uplink } = opening;
        let copies = descriptors.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>();
        let kept = if self.is_tap { copies.unwrap_or_default() } else { Vec::new() };
        (self.trouble, self.retry) = (None, None);
        self.opened = Some(Opened {
            facts,
            why,
            unsent: Some(descriptors),
            kept,
            uplink,
            namespace: None,
            is_spent: false,
            since: now,
        });
    }

    /// Notes that the device could not be opened. Returns true if the reason is new.
    pub fn failed(&mut self, why: &str, now: Instant) -> bool {
        self.retry = Some(now + self.pause.take());
        let is_news = self.trouble.as_deref() != Some(why);
        self.trouble = Some(why.to_owned());
        is_news
    }

    /// Notes that the device is gone, or was replaced by another one of the same name.
    pub fn lost(&mut self, now: Instant) {
        let is_internal = self.is_internal();
        let Some(opened) = &mut self.opened else { return };
        let was_sound = now.saturating_duration_since(opened.since) >= SOUND;
        if was_sound {
            self.pause.reset();
        }
        self.retry = Some(now + if was_sound { Duration::ZERO } else { self.pause.take() });
        if is_internal {
            opened.is_spent = true;
        } else {
            self.opened = None;
        }
    }

    /// Gets packet sockets without rings, since the kernel fills the old ones' rings no more. The device stays separated from the host's stack
    /// meanwhile.
    /// Other queues of the old sockets may pass frames until the driver process has the new ones, where the same frames are dropped.
    /// Returns false if no socket has a ring: the report was about earlier ones.
    pub fn ring_stopped(&mut self, now: Instant) -> bool {
        let Some(opened) = self.opened.as_mut().filter(|opened| opened.facts.ring.is_some()) else {
            return false;
        };
        opened.uplink.iter_mut().for_each(Uplink::stop_rings);
        opened.why += "; received by system calls, since a frame stopped its ring";
        opened.unsent = opened.renew();
        if opened.unsent.is_none() {
            self.lost(now);
        }
        true
    }

    /// Gets descriptors of the same tap for the next driver process.
    pub fn renew(&mut self) {
        if let Some(opened) = &mut self.opened {
            (opened.unsent, opened.is_spent) = (opened.renew(), false);
        }
    }

    /// Finds the namespace of a tap that others may have moved. Returns false if it is gone.
    pub fn look_for_tap(&mut self) -> bool {
        let Some(opened) = &mut self.opened else { return false };
        let Some(queue) = opened.kept.first() else { return true };
        match tap_namespace_id(queue.as_fd()) {
            Ok(namespace) => opened.namespace = namespace,
            Err(error) => return error != Errno::BADFD,
        }
        true
    }

    /// Whether the tap was moved to another network namespace.
    pub fn is_elsewhere(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.namespace.is_some())
    }

    /// The device as programs on the host find it.
    pub fn host_device(&self) -> Option<HostDevice> {
        let seen = self.seen.as_ref().map(|device| device.index);
        // A tunnel port has none.
        let index = self.facts().map(|facts| facts.index).or(seen).filter(|index| *index > 0)?;
        Some(HostDevice { index, namespace: self.opened.as_ref().and_then(|opened| opened.namespace) })
    }

    /// Reopens the device at once, since the tap for the host is a new one. Returns `number`.
    pub fn is_wanted_again(&mut self, number: u32, now: Instant) -> u32 {
        self.lost(now);
        self.retry = None;
        number
    }

    /// Handles the kernel's message about the device: a change ends any pause.
    pub fn see(&mut self, seen: Option<&LinkDevice>, now: Instant) {
        let is_same = match (&self.opened, seen) {
            (Some(opened), Some(device)) => opened.facts.index == device.index,
            (Some(_), None) => false,
            (None, _) => true,
        };
        if !is_same && !self.is_internal() {
            self.lost(now);
        }
        let came_up = |device: &LinkDevice| device.is_up && !self.seen.as_ref().is_some_and(|old| old.is_up);
        if seen.is_some_and(came_up) {
            self.retry = None;
        }
        self.seen = seen.cloned();
    }

    /// Of a tunnel's end: lets the next one have its UDP port, while the driver process and the service manager still have the
    /// socket. The port's number.
    #[must_use]
    pub fn release_udp_port(&self) -> Option<u16> {
        let opened = self.opened.as_ref()?;
        let tunnel = opened.facts.tunnel.filter(|tunnel| tunnel.kind.socket().is_udp())?;
        opened.kept.iter().for_each(|socket| lasthop_netdev::release_udp_port(socket.as_fd()));
        Some(tunnel.port)
    }

    /// Handles the end of the driver process, which had all descriptors.
    pub fn driver_gone(&mut self) {
        (self.is_driven, self.stale) = (false, None);
        if let Some(opened) = &mut self.opened {
            opened.unsent = opened.renew();
        }
        self.opened.take_if(|opened| opened.unsent.as_ref().is_none_or(Vec::is_empty));
    }

    /// Takes the descriptors that the driver process has to get.
    pub fn take_unsent(&mut self) -> Option<(DeviceFacts, Vec<OwnedFd>)> {
        let opened = self.opened.as_mut()?;
        Some((opened.facts.clone(), opened.unsent.take()?))
    }

    /// Whether the driver process has to get descriptors.
    pub fn has_unsent(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.unsent.is_some())
    }

    /// Notes that the driver process has a new connection to the switch.
    pub fn joined(&mut self) {
        (self.is_driven, self.stale) = (true, None);
    }

    /// Notes that the connection to the switch is of no use: the driver process reports its end, as the switch usually does,
    /// too; or the switch has stopped its rings.
    pub fn left(&mut self, now: Instant) {
        self.stale = Some(now + PATIENCE);
    }

    /// Whether the connection has not ended in time.
    pub fn is_stale(&self, now: Instant) -> bool {
        self.stale.is_some_and(|at| at <= now)
    }

    /// Notes that the driver process has released the port.
    pub fn undrive(&mut self) {
        (self.is_driven, self.stale) = (false, None);
    }

    /// The facts of the open device.
    pub fn facts(&self) -> Option<&DeviceFacts> {
        self.opened.as_ref().map(|opened| &opened.facts)
    }

    /// The reason for this back end.
    pub fn choice(&self) -> Option<&str> {
        self.opened.as_ref().map(|opened| opened.why.as_str())
    }

    /// The last fault of the device; `None` since it was opened.
    pub fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Notes a fault of an open device.
    pub fn note(&mut self, trouble: String) {
        self.trouble = Some(trouble);
    }

    /// Whether the device's link is up.
    pub fn has_link(&self) -> bool {
        self.seen.as_ref().is_some_and(|device| device.has_link)
    }

    /// Whether the device is also a port of a Linux bridge.
    pub fn is_of_bridge(&self) -> bool {
        self.seen.as_ref().is_some_and(|device| device.is_of_bridge)
    }

    /// The device's MTU in bytes, if it is known.
    pub fn mtu_bytes(&self) -> Option<u32> {
        let seen = self.seen.as_ref().map(|device| device.mtu_bytes);
        seen.or_else(|| self.facts().map(|facts| facts.mtu_bytes))
    }

    /// When a useless connection is closed.
    pub fn stale(&self) -> Option<Instant> {
        self.stale
    }

    /// When the device is opened again.
    pub fn due(&self) -> Option<Instant> {
        self.retry.filter(|_| self.could_open())
    }
}

#[cfg(test)]
mod tests {
    use lasthop_device::Backend;

    use super::*;

    fn opening(index: u32) -> Opening {
        let facts = DeviceFacts {
            backend: Backend::AfPacket,
            name: "eth1".to_owned(),
            index,
            queues: 1,
            mtu_bytes: 1500,
            mac: [2, 0, 0, 0, 0, 1],
            features: 0,
            header_bytes: 12,
            ring: None,
            xdp: None,
            tunnel: None,
        };
        let queue = std::fs::File::open("/dev/null").expect("a descriptor").into();
        Opening {
            device: OpenedDevice { facts, descriptors: vec![queue] },
            why: "any".to_owned(),
            uplink: None,
        }
    }

    fn device(index: u32, is_up: bool) -> LinkDevice {
        LinkDevice {
            index,
            name: "eth1".to_owned(),
            is_up,
            has_link: is_up,
            mtu_bytes: 1500,
            is_of_bridge: false,
        }
    }

    #[test]
    fn a_device_is_opened_when_it_is_there_and_up() {
        let (mut port, now) = (DevicePort::new(false), Instant::now());
        assert!(!port.wants_opening(now));
        port.see(Some(&device(7, false)), now);
        assert!(!port.wants_opening(now) && port.due().is_none());
        port.see(Some(&device(7, true)), now);
        assert!(port.wants_opening(now));
        port.open(opening(7), now);
        assert!(!port.wants_opening(now) && port.has_unsent());
        assert!(port.take_unsent().is_some() && port.take_unsent().is_none());
    }

    #[test]
    fn another_device_of_the_same_name_is_another_device() {
        let (mut port, now) = (DevicePort::new(false), Instant::now());
        port.see(Some(&device(7, true)), now);
        port.open(opening(7), now);
        port.see(Some(&device(7, false)), now);
        assert!(port.facts().is_some(), "down is not gone");
        port.see(Some(&device(8, true)), now);
        assert!(port.facts().is_none() && port.wants_opening(now));
        port.open(opening(8), now);
        port.see(None, now);
        assert!(port.facts().is_none() && !port.wants_opening(now));
    }

    #[test]
    fn failures_are_told_once_and_tried_again_with_growing_pauses() {
        let (mut port, mut now) = (DevicePort::new(false), Instant::now());
        port.see(Some(&device(7, true)), now);
        for (attempt, pause_ms) in [100, 200, 400, 800, 1600, 3200, 5000, 5000].into_iter().enumerate() {
            assert_eq!(port.failed("no", now), attempt == 0);
            assert!(!port.wants_opening(now));
            now += Duration::from_millis(pause_ms);
            assert_eq!(port.due(), Some(now));
            assert!(port.wants_opening(now));
        }
        assert!(port.failed("another reason", now));
        port.see(Some(&device(7, false)), now);
        port.see(Some(&device(7, true)), now);
        assert!(port.wants_opening(now), "the kernel had news");
    }

    #[test]
    fn a_tap_outlives_the_driver_process_and_a_socket_does_not() {
        let now = Instant::now();
        for (is_tap, is_kept) in [(true, true), (false, false)] {
            let mut port = DevicePort::new(is_tap);
            port.open(opening(7), now);
            port.take_unsent();
            port.joined();
            port.driver_gone();
            assert_eq!((port.has_unsent(), port.is_driven), (is_kept, false), "tap: {is_tap}");
        }
    }

    #[test]
    fn a_connection_of_no_use_has_its_time() {
        let (mut port, now) = (DevicePort::new(false), Instant::now());
        port.joined();
        port.left(now);
        assert!(!port.is_stale(now) && port.is_stale(now + PATIENCE));
        port.joined();
        assert!(!port.is_stale(now + PATIENCE));
    }
}
