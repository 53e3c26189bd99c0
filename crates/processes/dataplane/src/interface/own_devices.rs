//! Taps of datapaths' own ports that disappeared with the last supervisor.
//!
//! A restart of the service removes all taps. Clients request those of other ports again, since they see that these are
//! gone. A datapath's own port stays, so no client requests its tap: this process does, once it has the datapath again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lasthop_api::orders::{WantedDevice, WantedKind};

use super::super::port_requests::PortRequests;

/// Pause between two requests: the last supervisor's processes may take a moment to release a tap.
const PAUSE: Duration = Duration::from_millis(250);
/// Requests for one device. After ten seconds another program must have its name.
const ATTEMPTS: u32 = 40;

/// The missing devices.
#[derive(Debug, Default)]
pub(super) struct OwnDevices {
    /// Remaining attempts, by name of device and datapath.
    missing: BTreeMap<String, u32>,
    /// Time of the next request.
    due: Option<Instant>,
}

impl OwnDevices {
    pub(super) fn new(missing: impl Iterator<Item = String>, now: Instant) -> Self {
        let missing: BTreeMap<String, u32> = missing.map(|name| (name, ATTEMPTS)).collect();
        let due = (!missing.is_empty()).then_some(now);
        Self { missing, due }
    }

    /// Time of the next request, if a device is missing.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Requests missing devices if it is time.
    pub(super) fn ask(&mut self, port_requests: &mut PortRequests, now: Instant) {
        if self.due.take_if(|due| *due <= now).is_none() {
            return;
        }
        for (name, attempts) in &mut self.missing {
            *attempts -= 1;
            let (name, switch) = (name.clone(), name.clone());
            port_requests.want_for_ourselves(WantedDevice { name, kind: WantedKind::Internal, switch });
        }
    }

    /// Notes that the supervisor has the device; returns whether it was missing.
    pub(super) fn arrived(&mut self, name: &str) -> bool {
        self.missing.remove(name).is_some()
    }

    /// Notes that the supervisor cannot have it now.
    pub(super) fn denied(&mut self, name: &str, now: Instant) {
        match self.missing.get(name) {
            Some(0) => drop(self.missing.remove(name)),
            Some(_) => self.due = Some(now + PAUSE),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_is_asked_for_until_it_is_there() {
        let (mut port_requests, mut now) = (PortRequests::default(), Instant::now());
        let mut devices = OwnDevices::new(["ovs-system".to_owned()].into_iter(), now);
        assert_eq!(devices.due(), Some(now));
        devices.ask(&mut port_requests, now);
        assert_eq!((port_requests.take_reports().len(), devices.due()), (1, None), "asked once");
        devices.ask(&mut port_requests, now);
        assert!(port_requests.take_reports().is_empty());
        devices.denied("other", now);
        devices.denied("ovs-system", now);
        now += PAUSE;
        assert_eq!(devices.due(), Some(now));
        devices.ask(&mut port_requests, now);
        assert_eq!(port_requests.take_reports().len(), 1);
        assert!(devices.arrived("ovs-system") && !devices.arrived("ovs-system"));
        assert_eq!(devices.due(), None);
    }

    #[test]
    fn a_name_that_is_taken_is_given_up() {
        let (mut port_requests, mut now) = (PortRequests::default(), Instant::now());
        let mut devices = OwnDevices::new(["ovs-system".to_owned()].into_iter(), now);
        for _ in 0..2 * ATTEMPTS {
            devices.ask(&mut port_requests, now);
            devices.denied("ovs-system", now);
            now += PAUSE;
        }
        assert_eq!(port_requests.take_reports().len(), ATTEMPTS as usize);
        assert!(devices.due().is_none_or(|due| due <= now) && !devices.arrived("ovs-system"));
        assert!(OwnDevices::new(std::iter::empty(), now).due().is_none());
    }
}
