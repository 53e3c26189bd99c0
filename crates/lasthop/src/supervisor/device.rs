//! What a device port has beside a vnic: a device that was opened, and the driver process that serves it.
//!
//! ```text
//!   device:  absent ──there, and up──► open ──► descriptors unsent ──► at the driver ──gone──► absent
//!   vnic:    Idle at the switch + descriptors + a driver ──► a socket pair: one end each ──► joined
//! ```

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use lasthop_driver::{Counters, DeviceFacts, OpenedDevice};

use crate::clock::{Pause, earlier};
use crate::links::Device;
use crate::port::PortSpec;

/// Pause before a device that could not be opened, or failed, is opened again; doubles.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// A device that was open for this long had no trouble.
const SOUND: Duration = Duration::from_secs(10);

/// How long the switch may take to say that a connection is over.
const PATIENCE: Duration = Duration::from_millis(500);

/// The outside of a device port.
#[derive(Debug)]
pub(super) struct DevicePort {
    pub(super) spec: PortSpec,
    /// The device as the kernel told last; none if there is none.
    pub(super) seen: Option<Device>,
    opened: Option<Opened>,
    /// Whether the driver process has the port.
    pub(super) is_driven: bool,
    /// When a connection to the switch, which is of no use any more, is taken down unless it ends by itself.
    stale: Option<Instant>,
    /// Why there is trouble, as logged last.
    trouble: Option<String>,
    /// When the device is opened next, after a failure.
    retry: Option<Instant>,
    pause: Pause,
    /// What the driver process told last, and before: its counters start at zero with it.
    pub(super) counters: Counters,
}

#[derive(Debug)]
struct Opened {
    facts: DeviceFacts,
    /// Why this back end.
    why: String,
    /// For the driver process, which has not got them yet.
    unsent: Option<Vec<OwnedFd>>,
    /// A tap is there as long as somebody has it open: also while there is no driver process.
    kept: Vec<OwnedFd>,
    since: Instant,
}

impl DevicePort {
    pub(super) fn new(spec: PortSpec) -> Self {
        Self {
            spec,
            seen: None,
            opened: None,
            is_driven: false,
            stale: None,
            trouble: None,
            retry: None,
            pause: Pause::new(PAUSE_MIN, PAUSE_MAX),
            counters: Counters::default(),
        }
    }

    /// Whether there is something to open that is not open. Devices have to be up: one that is down fails at once.
    pub(super) fn wants_opening(&self, now: Instant) -> bool {
        let is_there = self.spec.is_tap() || self.seen.as_ref().is_some_and(|device| device.is_up);
        self.opened.is_none() && is_there && self.retry.is_none_or(|at| at <= now)
    }

    /// The device was opened, `why` with this back end.
    pub(super) fn open(&mut self, device: OpenedDevice, why: String, now: Instant) {
        let OpenedDevice { facts, queues } = device;
        let copies = queues.iter().map(OwnedFd::try_clone).collect::<Result<_, _>>();
        let kept = if self.spec.is_tap() { copies.unwrap_or_default() } else { Vec::new() };
        (self.trouble, self.retry) = (None, None);
        self.opened = Some(Opened { facts, why, unsent: Some(queues), kept, since: now });
    }

    /// The device could not be opened. True if that is news.
    pub(super) fn failed(&mut self, why: &str, now: Instant) -> bool {
        self.retry = Some(now + self.pause.take());
        let is_news = self.trouble.as_deref() != Some(why);
        self.trouble = Some(why.to_owned());
        is_news
    }

    /// The device is gone, or is another one of the same name.
    pub(super) fn lost(&mut self, now: Instant) {
        let Some(opened) = self.opened.take() else { return };
        let was_sound = now.saturating_duration_since(opened.since) >= SOUND;
        if was_sound {
            self.pause.reset();
        }
        self.retry = Some(now + if was_sound { Duration::ZERO } else { self.pause.take() });
    }

    /// Whatever the kernel says of the device is news: there is no use in waiting.
    pub(super) fn see(&mut self, seen: Option<&Device>, now: Instant) {
        let is_same = match (&self.opened, seen) {
            (Some(opened), Some(device)) => opened.facts.index == device.index,
            (Some(_), None) => false,
            (None, _) => true,
        };
        if !is_same {
            self.lost(now);
        }
        let came_up = |device: &Device| device.is_up && !self.seen.as_ref().is_some_and(|old| old.is_up);
        if seen.is_some_and(came_up) {
            self.retry = None;
        }
        self.seen = seen.cloned();
    }

    /// The driver process is gone, and with it all that it had.
    pub(super) fn driver_gone(&mut self) {
        (self.is_driven, self.stale) = (false, None);
        if let Some(opened) = &mut self.opened {
            opened.unsent = opened.kept.iter().map(OwnedFd::try_clone).collect::<Result<Vec<_>, _>>().ok();
        }
        // Only what was kept can be sent again.
        self.opened.take_if(|opened| opened.kept.is_empty());
    }

    /// Descriptors for the driver process, if it has to get some.
    pub(super) fn take_unsent(&mut self) -> Option<(DeviceFacts, Vec<OwnedFd>)> {
        let opened = self.opened.as_mut()?;
        Some((opened.facts.clone(), opened.unsent.take()?))
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.unsent.is_some())
    }

    /// The driver process has another connection to the switch.
    pub(super) fn joined(&mut self) {
        (self.is_driven, self.stale) = (true, None);
    }

    /// The driver process says that its connection to the switch is over. Usually the switch says so, too.
    pub(super) fn left(&mut self, now: Instant) {
        self.stale = Some(now + PATIENCE);
    }

    /// Whether nobody has ended the connection in time.
    pub(super) fn is_stale(&self, now: Instant) -> bool {
        self.stale.is_some_and(|at| at <= now)
    }

    /// The driver process has let go of the port.
    pub(super) fn undrive(&mut self) {
        (self.is_driven, self.stale) = (false, None);
    }

    pub(super) fn facts(&self) -> Option<&DeviceFacts> {
        self.opened.as_ref().map(|opened| &opened.facts)
    }

    /// Why this back end.
    pub(super) fn choice(&self) -> Option<&str> {
        self.opened.as_ref().map(|opened| opened.why.as_str())
    }

    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Notes what is wrong with a device that is open.
    pub(super) fn note(&mut self, trouble: String) {
        self.trouble = Some(trouble);
    }

    /// Whether frames can pass at the device's end.
    pub(super) fn has_link(&self) -> bool {
        self.seen.as_ref().is_some_and(|device| device.has_link)
    }

    /// The device's MTU in bytes, as far as it is known.
    pub(super) fn mtu_bytes(&self) -> Option<u32> {
        let seen = self.seen.as_ref().map(|device| device.mtu_bytes);
        seen.or_else(|| self.facts().map(|facts| facts.mtu_bytes))
    }

    /// When the device is to be opened again, or the connection to be taken down.
    pub(super) fn due(&self) -> Option<Instant> {
        let is_there = self.spec.is_tap() || self.seen.as_ref().is_some_and(|device| device.is_up);
        let opens = self.retry.filter(|_| self.opened.is_none() && is_there);
        earlier(opens, self.stale)
    }
}
